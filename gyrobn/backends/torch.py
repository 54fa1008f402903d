"""PyTorch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import sleep
from typing import Any

import array_api_compat.torch
import array_api_compat.torch.linalg as compat_linalg
import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed as dist
from torch import Tensor

# private: torch has no public test for the tensors of its compiler
from torch._subclasses.fake_tensor import is_fake
from torch.distributed.distributed_c10d import PrefixStore

# private: torch has no public functions for trees of tensors
from torch.utils._pytree import register_constant as register_constant
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gyrobn.backends import numpy as eager
from gyrobn.backends import with_functions
from gyrobn.backends.contract import THIRD_ORDER, Array, Arrays, Loop
from gyrobn.backends.numpy import auto_sharded as auto_sharded

_functorch = torch._C._functorch  # private: no public test for transformed tensors


def no_autocast(x: Array) -> AbstractContextManager[Any]:
    """Return a context without autocast on the device of ``x``; torch raises for those without it.

    A context that does nothing stays out of graphs.
    """
    kind = x.device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def _matmul(x: Array, y: Array, /) -> Array:
    """Return the product of matrices in their own dtype, also inside of autocast."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return torch.matmul(x, y)
    with no_autocast(x):
        return torch.matmul(x, y)


def _cholesky(A: Array, /) -> Array:
    """Return the factor; a compiled graph has NaN for a matrix without one, and no error."""
    if not traced(A):
        return torch.linalg.cholesky(A)
    factor, info = torch.linalg.cholesky_ex(A)
    return torch.where((info == 0)[..., None, None], factor, torch.nan)


namespace = with_functions(
    array_api_compat.torch,
    all=lambda x, /, axis=None, keepdims=False: torch.all(x, axis, keepdim=keepdims),
    clip=lambda x, /, min=None, max=None: torch.clamp(x, min, max),
    finfo=torch.finfo,
    linalg=with_functions(compat_linalg, cholesky=_cholesky),
    matmul=_matmul,
    matrix_transpose=lambda x, /: x.mT,
    maximum=torch.maximum,
    minimum=torch.minimum,
    sum=lambda x, /, axis=None, keepdims=False: torch.sum(x, axis, keepdims),
    take=lambda x, indices, /, axis: torch.index_select(x, axis, indices),
    vecdot=lambda x, y, /: (x * y).sum(-1),  # torch's own rounds to half precision in autocast
    where=torch.where,
)
"""PyTorch as the standard has it, for arrays of one dtype."""


def _transformed() -> bool:
    """Return whether torch.func, or forward mode, is under way."""
    return _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def valueless(x: Array) -> bool:
    """Return whether ``x`` has a shape and no values: in a compiler, or on the device meta."""
    return bool(x.is_meta or is_fake(x))


def traced(x: Array) -> bool:
    """Return whether ``x`` is compiled, without values, or batched by ``vmap``."""
    compiled = torch.compiler.is_compiling() or valueless(x)
    return bool(compiled or _functorch.is_batchedtensor(_unwrapped(x)))


def _unwrapped(x: Array) -> Array:
    """Return the tensor inside of those of ``torch.func``, up to one that is batched."""
    while _functorch.is_functorch_wrapped_tensor(x) and not _functorch.is_batchedtensor(x):
        x = _functorch.get_unwrapped(x)
    return x


def differentiable(*arrays: Any) -> bool:
    """Return whether autograd, backward or forward, follows any of ``arrays``."""
    if torch.is_grad_enabled():
        for a in arrays:
            if isinstance(a, Tensor) and a.requires_grad:
                return True
    if torch.compiler.is_compiling() or not _transformed():
        return False
    return any(
        _functorch.is_functorch_wrapped_tensor(a) or forward_ad.unpack_dual(a).tangent is not None  # type: ignore[no-untyped-call]
        for a in arrays
        if isinstance(a, Tensor)
    )


def stop_gradient(x: Array) -> Array:
    """Return the values of ``x`` outside the graph."""
    return x.detach()


# ---------------------------------------------------------------------- derivatives


def differentiate(function: Callable[..., Arrays], constants: Arrays, *inputs: Array) -> Arrays:
    """Return the values with derivatives: of the first order, and of the second on demand.

    A compiler differentiates once, and refuses a second time. Inside torch.func it cannot be known
    how often.
    """
    if not differentiable(*inputs):
        return function(0, constants, *inputs)
    if torch.compiler.is_compiling() or any(map(valueless, inputs)):
        return function(1, constants, *inputs)
    if _transformed():
        return _fenced(function(2, constants, *inputs), inputs)
    found: Arrays = _Differentiated.apply(function, constants, *inputs)  # type: ignore[no-untyped-call]
    return found


class _Differentiated(torch.autograd.Function):
    """A graph of the first order; one of the second replaces it if the gradient needs one."""

    @staticmethod
    def forward(ctx: Any, function: Any, constants: Arrays, *inputs: Tensor) -> Arrays:
        with torch.enable_grad():
            own = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            ctx.graph = own, function(1, constants, *own)
        ctx.function, ctx.constants = function, constants
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        return tuple(y.detach() for y in ctx.graph[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        again = torch.is_grad_enabled()
        inputs, outputs = ctx.graph
        if again:
            # views, since one input may depend on another: partial derivatives are wanted
            inputs = tuple(x.view_as(x) for x in ctx.saved_tensors)
            outputs = _fenced(ctx.function(2, ctx.constants, *inputs), inputs)
        wanted = [x for x in inputs if x.requires_grad]
        pairs = [
            (y, c)
            for y, c in zip(outputs, cotangents, strict=True)
            if c is not None and y.requires_grad
        ]
        if not pairs:
            return (None,) * (2 + len(inputs))
        with no_autocast(pairs[0][1]):
            found = torch.autograd.grad(
                [y for y, _ in pairs],
                wanted,
                [c for _, c in pairs],
                retain_graph=True,
                create_graph=again,
                allow_unused=True,
            )
        left = iter(found)
        return None, None, *(next(left) if x.requires_grad else None for x in inputs)


def _fenced(outputs: Arrays, inputs: Arrays) -> Arrays:
    """Return the outputs, whose third derivative by the inputs is an error."""
    fence = _Fence.apply(3, *inputs)  # type: ignore[no-untyped-call]
    return tuple(y + fence for y in outputs)


class _Fence(torch.autograd.Function):
    """The number zero, which can be differentiated ``order`` − 1 times, and then raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(order: int, *inputs: Tensor) -> Tensor:
        return inputs[0].new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.order, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def _next(ctx: Any) -> Tensor:
        if ctx.order == 1:
            raise TypeError(THIRD_ORDER)
        zero: Tensor = _Fence.apply(ctx.order - 1, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return zero

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        zero = _Fence._next(ctx)
        return None, *(torch.zeros_like(x) + zero for x in ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _Fence._next(ctx)


def self_adjoint(solve: Callable[[Array], Array], v: Array) -> Array:
    """Return ``solve(v)``, with itself as its derivative."""
    return _SelfAdjoint.apply(solve, v) if differentiable(v) else solve(v)  # type: ignore[no-untyped-call]


class _SelfAdjoint(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(solve: Any, v: Tensor) -> Any:
        return solve(v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.solve = inputs[0]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return None, self_adjoint(ctx.solve, cotangent)

    @staticmethod
    def jvp(ctx: Any, _: Any, tangent: Tensor) -> Any:
        return self_adjoint(ctx.solve, tangent)


# ---------------------------------------------------------------------- loops and graphs


UNROLLED = 2
"""How many rounds of a loop a compiled graph has, before the operation that goes on."""


def while_loop(
    key: Any,
    condition: Callable[[Loop], Array],
    body: Callable[[Arrays, Loop], Loop],
    constants: Arrays,
    state: Loop,
    limit: int,
) -> Loop:
    """Run ``body`` while ``condition`` holds.

    Under ``vmap`` exactly ``limit`` times. In a graph that is compiled, twice; one operation then
    goes on, which returns at once if the condition does not hold any more. The graph holds the text
    of ``key``, not the function: it may be kept on the disk.
    """
    leaves, tree = tree_flatten(state)
    tensors = [s for s in leaves if isinstance(s, Tensor)]
    if not any(map(traced, tensors)):
        return eager.while_loop(key, condition, body, constants, state, limit)
    compiled = any(map(valueless, tensors))
    for _ in range(min(limit, UNROLLED) if compiled else limit):
        state = body(constants, state)
    if not compiled or limit <= UNROLLED:
        return state

    def go_on(*arrays: Tensor) -> list[Tensor]:
        given, state = arrays[: len(constants)], tree_unflatten(arrays[len(constants) :], tree)
        rest = limit - UNROLLED
        return tree_leaves(eager.while_loop(key, condition, body, given, state, rest))

    text = repr(key)
    _functions[text] = go_on
    found = torch.ops.gyrobn.go_on(text, len(constants), [*constants, *tree_leaves(state)])
    rebuilt: Loop = tree_unflatten(found, tree)
    return rebuilt


_functions: dict[str, Callable[..., list[Tensor]]] = {}


def _run(key: str, constants: int, arrays: list[Tensor]) -> list[Tensor]:
    found = _functions[key](*arrays)
    # a result may not share memory with an argument, and has the strides that _shapes promises
    here = [torch.as_tensor(a, device=arrays[0].device) for a in found]
    return [a.clone(memory_format=torch.contiguous_format) for a in here]


def _shapes(key: str, constants: int, arrays: list[Tensor]) -> list[Tensor]:
    state = arrays[constants:]
    return [torch.empty_like(a, memory_format=torch.contiguous_format) for a in state]


_library = torch.library.Library("gyrobn", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("go_on(str key, int constants, Tensor[] arrays) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.impl("go_on", _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("gyrobn::go_on", _shapes, lib=_library)


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors; the compiler gets its operations and not its Python code.

    This compiles faster, and no construct of the language can stop it. It loads torch._dynamo.
    """
    if not torch.compiler.is_dynamo_compiling():
        return function
    found: Callable[..., Any] = torch._dynamo.nonstrict_trace(function)  # not public yet
    return found


def recomputing() -> bool:
    """Return whether this call repeats one for the backward pass, as ``checkpoint`` does.

    The running statistics have learnt from the batch already. (torch's own layers learn twice:
    https://github.com/pytorch/pytorch/issues/96136.)
    """
    # private: torch has no public test for a backward pass that is under way
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def cached(make: Callable[..., Any], like: Array, *key: Any) -> Array:
    """Return ``make(*key)`` like ``like``, made once; anew while a transformation is under way.

    Autograd could not use tensors that were made in inference mode.
    """
    compiled = torch.compiler.is_compiling() or is_fake(like)
    if compiled or torch.is_inference_mode_enabled() or _functorch.peek_interpreter_stack():
        return eager.made(make, like, *key)
    return eager.cached(make, like, *key)


# ---------------------------------------------------------------------- ranks


def all_sum(x: Array, group: Any) -> Array:
    """Return the sum over a process group; None is the group of all processes.

    (After an all-reduce in place, autograd would differentiate a copy.)
    """
    return self_adjoint(partial(_reduced, group), x)


def _reduced(group: Any, x: Tensor) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    try:
        dist.all_reduce(x, group=group)
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"GyroBN cannot sum its statistics over the ranks: {_missing(group)}; {error}"
        ) from error
    return x


def _missing(group: Any, seconds: float = 5.0) -> str:
    """Return words for the ranks that do not answer, from the store that connected them all."""
    own, ranks = dist.get_rank(), dist.get_process_group_ranks(group)
    try:
        store = PrefixStore("gyrobn", dist.distributed_c10d._get_default_store())
        store.set(f"alive {own}", "yes")
        sleep(seconds)
        gone = [str(k) for k in ranks if not store.check([f"alive {k}"])]
        found = f"rank {', '.join(gone)} does not answer" if gone else "all ranks still answer"
    except (RuntimeError, dist.DistError):
        found = "rank 0, which keeps the store of the group, does not answer"
    return f"{found} (this is rank {own}, in a group of {len(ranks)})"


# ---------------------------------------------------------------------- to and from the host


def device(x: Array) -> Any:
    """Return the device of ``x``."""
    return x.device


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` on the host."""
    with torch._C._DisableFuncTorch():  # private
        return _unwrapped(x).detach().cpu().numpy()


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` as a tensor in the dtype and on the device of ``like``."""
    return torch.as_tensor(a, dtype=like.dtype, device=like.device)
