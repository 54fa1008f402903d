"""PyTorch."""

from collections.abc import Callable
from typing import Any

import array_api_compat.torch
import numpy as np
import torch
from torch._subclasses.fake_tensor import is_fake

from gyrobn.backends import with_functions
from gyrobn.backends.contract import Array, Loop, Rule, State
from gyrobn.backends.numpy import auto_sharded as auto_sharded
from gyrobn.backends.numpy import while_loop as _eager_while_loop
from gyrobn.backends.torch_ranks import all_sum as all_sum
from gyrobn.backends.torch_root import implicit as implicit
from gyrobn.backends.torch_rules import shortcut as shortcut
from gyrobn.backends.torch_rules import smooth as smooth
from gyrobn.backends.torch_twice import with_derivative as with_derivative
from gyrobn.backends.torch_values import differentiable as differentiable
from gyrobn.backends.torch_values import few as few
from gyrobn.backends.torch_values import from_few as from_few
from gyrobn.backends.torch_values import (
    is_plain,
    no_autocast,
    no_transform,
    quicker_by_numpy,
    through_numpy,
)


def _where(condition: Array, x: Any, y: Any, /) -> Array:
    """Return x where the condition holds, else y; a number in place of x takes one operation."""
    if isinstance(x, float) and isinstance(y, torch.Tensor):
        return y.masked_fill(condition, x)
    return array_api_compat.torch.where(condition, x, y)


def _matmul(x: Array, y: Array, /) -> Array:
    """Return the product of matrices.

    On one thread NumPy's BLAS takes less time than torch's for many matrices in double precision: a
    third to a half less on processors of AMD.
    """
    double = x.dtype == y.dtype == torch.float64 and x.ndim > 1 and y.ndim > 1
    if double and quicker_by_numpy(2**14, x, y):
        return through_numpy(np.matmul, x, y)
    return _product(x, y)


def _product(x: Array, y: Array) -> Array:
    """Return the product of matrices in their own dtype, also inside of autocast."""
    with no_autocast(x):
        return torch.matmul(x, y)


# In vectorized code for CPUs, torch's compiler writes expm1(x) as exp(x) - 1, and before torch 2.8
# tanh(x) as 2/(1 + exp(-2x)) - 1, which have no digits at small x. sinh has all of them. Arguments
# stop where the result is -1 or 1 to the last digit, so that nothing overflows or is subnormal.


def _expm1(x: Array, /) -> Array:
    """Return exp(x) − 1; in compiled code as 2 exp(x/2) sinh(x/2)."""
    if not torch.compiler.is_compiling():
        return torch.expm1(x)
    half = 0.5 * torch.clamp(x, min=-80.0)
    return 2.0 * torch.exp(half) * torch.sinh(half)


def _tanh(x: Array, /) -> Array:
    """Return tanh x; in compiled code as sinh x/cosh x."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return torch.tanh(x)  # ONNX has no sinh in float64
    x = torch.clamp(x, -20.0, 20.0)
    return torch.sinh(x) / torch.cosh(x)


namespace = with_functions(
    array_api_compat.torch,
    clip=lambda x, /, min=None, max=None: torch.clamp(x, min, max),
    expm1=_expm1,
    finfo=torch.finfo,
    matmul=_matmul,
    maximum=torch.maximum,
    minimum=torch.minimum,
    tanh=_tanh,
    where=_where,
)
"""PyTorch as the standard has it, for arrays of one dtype."""


def hides_values(x: Array) -> bool:
    """Return whether ``x`` is compiled, batched by ``vmap`` or on ``meta``: ``bool(x)`` fails."""
    if torch.compiler.is_compiling() or x.is_meta:
        return True
    if is_plain(x):
        return False
    if is_fake(x):
        return True
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def plain(x: Array) -> bool:
    """Return whether what is computed from ``x`` may be kept: no transformation is under way.

    Autograd could not use tensors that were made in inference mode.
    """
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return False
    return is_plain(x)


def stop_gradient(x: Array) -> Array:
    """Return the values of ``x`` outside the graph."""
    return x.detach()


def while_loop(
    condition: Callable[..., Array], body: Callable[..., Loop], state: Loop, limit: int
) -> Loop:
    """Run ``body`` while ``condition`` holds; under ``vmap``, exactly ``limit`` times.

    Under ``vmap`` no value can be looked at, so the body itself must leave a finished state alone.
    On ``meta`` there are only shapes, which the body does not change.
    """
    if state[0].is_meta or (_only_shapes and is_fake(state[0])):
        return state
    if any(hides_values(s) for s in state if isinstance(s, torch.Tensor)):
        for _ in range(limit):
            state = body(state)
        return state
    return _eager_while_loop(condition, body, state, limit)


def opaque(key: Any, function: Rule, *arrays: Array) -> State:
    """Return ``function(*arrays)``; where a graph is compiled, as one operation of it.

    The graph holds the text of ``key``, not the function: it may be kept on the disk.
    """
    if torch.compiler.is_dynamo_compiling() or is_plain(arrays[0]) or not is_fake(arrays[0]):
        return function(*arrays)
    text = repr(key)
    _functions[text] = function
    return tuple(torch.ops.gyrobn.opaque(text, list(arrays)))


_functions: dict[str, Callable[..., State]] = {}
_only_shapes: list[bool] = []
"""Not empty while the shapes of an opaque function's outputs are asked for."""


def _run(key: str, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    # copies, since outputs may not share memory; LAPACK's matrices have strides of their own
    outputs = _functions[key](*arrays)
    return [a.clone(memory_format=torch.contiguous_format) for a in outputs]


def _shapes(key: str, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    _only_shapes.append(True)
    try:
        outputs = _functions[key](*arrays)
        return [torch.empty_like(a, memory_format=torch.contiguous_format) for a in outputs]
    finally:
        _only_shapes.pop()


_library = torch.library.Library("gyrobn", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("opaque(str key, Tensor[] arrays) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.impl("opaque", _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("gyrobn::opaque", _shapes, lib=_library)


def stored(x: Array) -> Array:
    """Return ``x``, which has no derivative, as an array that a compiler puts into memory.

    It would fuse the computation of one number per sample into the loop over the coordinates. A
    view by strides needs memory to look at, and costs nothing. A graph for export stays without it.
    Of a slice, such as a part of a product, the compiler would look at the beginning of the whole
    (torch 2.13). So what is stored is -x, which is never a view.
    """
    compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if not (compiling and no_transform()):
        return x
    minus = torch.neg(x).contiguous()
    return torch.neg(minus.as_strided(minus.size(), minus.stride()))


def device(x: Array) -> Any:
    """Return the device of ``x``."""
    return x.device


def vecdot(x: Array, y: Array) -> Array:
    """Return the inner product along the last axis.

    A product of matrices where the elementwise product would be large: above 32 MiB, fresh memory
    comes from the operating system a page at a time, and that costs more than the arithmetic.
    """
    if y.ndim == 1:
        return _product(x, y)
    if x is y:
        if not differentiable(x):
            return _square(x)
        # of few vectors it would cost more than it saves
        if not torch.compiler.is_compiling() and x.numel() > 2**16:
            rules = _sum_of_squares, _kept_square, _square_slopes
            return shortcut(*rules, x)[0]
    # a compiler makes no temporary, and a choice by size would bind its program to some sizes
    small = torch.compiler.is_compiling() or max(x.numel(), y.numel()) * y.element_size() < 2**25
    if small:
        return (x * y).sum(-1)
    return _product(x[..., None, :], y[..., None])[..., 0, 0]


def _square(x: Array) -> Array:
    """Return the squared length: this reads x once, and makes no other array of its size."""
    if quicker_by_numpy(2**16, x):
        return through_numpy(np.vecdot, x, x)
    return torch.linalg.vector_norm(x, dim=-1).square_()


def _sum_of_squares(x: Array) -> State:
    return ((x * x).sum(-1),)


def _kept_square(x: Array) -> tuple[State, State]:
    return (_square(x),), ()


def _square_slopes(inputs: Any, kept: State, slope: Array) -> Any:
    """Return 2x: one pass over x, where the slopes of a product take three."""
    return (lambda: (2.0 * slope)[..., None] * inputs[0],)


def take(x: Array, indices: Array) -> Array:
    """Return the entries at ``indices``, along the last axis."""
    return x.index_select(-1, indices)


def norm(x: Array) -> Array:
    """Return the length along the last axis."""
    return torch.linalg.vector_norm(x, dim=-1)


def add_product(total: Array, scalar: Any, vector: Array, out: Any) -> Array:
    """Return ``total + scalar * vector``, with one scalar per vector, without a temporary."""
    if isinstance(scalar, float):
        return (total.add_ if out is total else total.add)(vector, alpha=scalar)
    scalar = scalar[..., None]
    if out is total:  # autograd follows this, but not out=
        return total.addcmul_(scalar, vector)
    return torch.addcmul(total, scalar, vector, out=out)


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` on the host."""
    if no_transform():
        return x.detach().cpu().numpy()
    numbers = [v.item() for v in x.reshape(-1)]  # torch 2.7 has no tolist() inside of torch.func
    return np.asarray(numbers, dtype=str(x.dtype).removeprefix("torch.")).reshape(x.shape)


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` as a tensor in the dtype and on the device of ``like``."""
    return torch.as_tensor(a, dtype=like.dtype, device=like.device)
