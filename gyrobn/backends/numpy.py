"""NumPy, and any other eager library that follows the standard and has no shim of its own."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import array_api_compat as compat
import array_api_compat.numpy
import numpy as np

from gyrobn.backends import namespace_of, with_functions
from gyrobn.backends.contract import Array, Loop, Partials, Primal, Rule, State


def _clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Return x, at least ``min`` and at most ``max``, of its dtype."""
    x = x if min is None else np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


def _reduction(ufunc: np.ufunc) -> Callable[..., Array]:
    """Return a reduction without what NumPy and array_api_compat do around it: half of its time."""

    def reduce(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
        return ufunc.reduce(x, axis=axis, keepdims=keepdims)

    return reduce


namespace = with_functions(
    array_api_compat.numpy,
    all=_reduction(np.logical_and),
    any=_reduction(np.logical_or),
    clip=_clip,
    finfo=cache(np.finfo),
    max=_reduction(np.maximum),
    min=_reduction(np.minimum),
    sum=_reduction(np.add),
)
"""NumPy as the standard has it, with bounds of ``clip`` that do not change the dtype."""


def differentiable(*arrays: Array) -> bool:
    """Return whether a gradient may be asked through any of ``arrays``: never here."""
    return False


def hides_values(x: Array) -> bool:
    """Return whether ``x`` is traced: never here."""
    return False


def plain(x: Array) -> bool:
    """Return whether what is computed from ``x`` may be kept: no transformation is under way."""
    return True


def stop_gradient(x: Array) -> Array:
    """Return ``x``: there is nothing to stop."""
    return x


def while_loop(
    condition: Callable[..., Array], body: Callable[..., Loop], state: Loop, limit: int
) -> Loop:
    """Run ``body`` while ``condition`` holds, at most ``limit`` times."""
    for _ in range(limit):
        if not bool(condition(state)):
            break
        state = body(state)
    return state


def opaque(key: Any, function: Rule, *arrays: Array) -> State:
    """Return ``function(*arrays)``: there is no graph to keep it out of."""
    return function(*arrays)


def auto_sharded(function: Callable[..., Any], x: Array, *args: Any) -> Any:
    """Return ``function(x, *args)``: there is one device."""
    return function(x, *args)


def few(*arrays: Any) -> AbstractContextManager[list[Any]]:
    """Return a context with ``arrays`` as they are: no library is known to take less time."""
    return nullcontext(list(arrays))


def from_few(values: Iterable[Any]) -> list[Any]:
    """Return the values as they are."""
    return list(values)


def stored(x: Array) -> Array:
    """Return ``x``: there is no compiler that would compute it again."""
    return x


def device(x: Array) -> Any:
    """Return the device of ``x``."""
    return "cpu" if isinstance(x, np.ndarray) else compat.device(x)


def vecdot(x: Array, y: Array) -> Array:
    """Return the inner product along the last axis."""
    return namespace_of(x, y).vecdot(x, y)


def take(x: Array, indices: Array) -> Array:
    """Return the entries at ``indices``, along the last axis."""
    return namespace_of(x).take(x, indices, axis=-1)


def norm(x: Array) -> Array:
    """Return the length along the last axis."""
    xp = namespace_of(x)
    return xp.sqrt(xp.vecdot(x, x))


def add_product(total: Array, scalar: Any, vector: Array, out: Any) -> Array:
    """Return ``total + scalar * vector``, with one scalar per vector; ``out`` may be either.

    A large product is computed and added block by block, so that it stays in the cache, and
    needs no fresh memory from the operating system, which would cost more than the arithmetic.
    """
    if isinstance(scalar, float):
        product = vector if scalar == 1.0 else scalar * vector
    elif out is vector:
        product = vector
        product *= scalar[..., None]
        product += total
        return product
    elif out is total and isinstance(total, np.ndarray) and total.nbytes > 2**22:
        scalar, vector = (
            np.broadcast_to(scalar, total.shape[:-1]),
            np.broadcast_to(vector, total.shape),
        )
        rows = max(1, total.shape[0] * 2**19 // total.nbytes)
        for i in range(0, total.shape[0], rows):
            block = slice(i, i + rows)
            total[block] += scalar[block, ..., None] * vector[block]
        return total
    else:
        product = scalar[..., None] * vector
    if out is total:
        total += product
        return total
    if product is not vector and product.shape[-total.ndim :] == total.shape:
        product += total
        return product
    return total + product


def with_derivative(
    primal: Primal, tangent: Rule, cotangent: Rule, *inputs: Array, twice: Rule | None = None
) -> State:
    """Return the outputs of ``primal``: there are no derivatives here."""
    return primal(*inputs)[0]


def implicit(rules: Any, constants: State, image: State, *inputs: Array) -> State:
    """Return the root and ``image``: there are no derivatives here."""
    return constants[0], *image


def smooth(function: Rule, partials: Partials, *inputs: Array) -> State:
    """Return the outputs of an elementwise ``function``: there are no derivatives here."""
    with np.errstate(all="ignore"):
        return function(*inputs)


def shortcut(exact: Rule, primal: Primal, cotangent: Callable[..., Any], *inputs: Any) -> State:
    """Return the outputs of ``primal``: there are no derivatives here."""
    return primal(*inputs)[0]


def all_sum(x: Array, group: Any) -> Array:
    """Refuse: an eager array is in one process."""
    raise TypeError(
        f"{type(x).__module__} has no processes to sum over: use torch.distributed, JAX or Dask"
    )


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` as a NumPy array."""
    return np.asarray(x) if compat.is_numpy_array(x) else np.from_dlpack(x, device="cpu", copy=True)


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` in the library, dtype and device of ``like``."""
    return namespace_of(like).asarray(a, dtype=like.dtype, device=like.device)
