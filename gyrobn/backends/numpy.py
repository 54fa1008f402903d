"""NumPy, and any other eager library that follows the standard and has no backend of its own."""

from collections.abc import Callable
from functools import cache
from typing import Any

import array_api_compat as compat
import array_api_compat.numpy
import numpy as np

from gyrobn.backends import device_of, namespace_of, with_functions
from gyrobn.backends.contract import Array, Arrays, Loop


def _clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Return x, at least ``min`` and at most ``max``, of its dtype."""
    x = x if min is None else np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


namespace = with_functions(array_api_compat.numpy, clip=_clip, finfo=cache(np.finfo))
"""NumPy as the standard has it, with bounds of ``clip`` that do not change the dtype."""


def traced(x: Array) -> bool:
    """Return False: values can be read."""
    return False


def differentiable(*arrays: Any) -> bool:
    """Return False: there are no derivatives here."""
    return False


def stop_gradient(x: Array) -> Array:
    """Return ``x``."""
    return x


def differentiate(function: Callable[..., Arrays], constants: Arrays, *inputs: Array) -> Arrays:
    """Return the values."""
    return function(0, constants, *inputs)


def self_adjoint(solve: Callable[[Array], Array], v: Array) -> Array:
    """Return ``solve(v)``."""
    return solve(v)


def while_loop(
    key: Any,
    condition: Callable[[Loop], Array],
    body: Callable[[Arrays, Loop], Loop],
    constants: Arrays,
    state: Loop,
    limit: int,
) -> Loop:
    """Run ``body`` while ``condition`` holds, at most ``limit`` times."""
    for _ in range(limit):
        if not bool(condition(state)):
            break
        state = body(constants, state)
    return state


def all_sum(x: Array, group: Any) -> Array:
    """Refuse: an eager array is in one process."""
    raise TypeError(
        f"{type(x).__module__} has no processes to sum over: use torch.distributed, JAX or Dask"
    )


def auto_sharded(function: Callable[..., Any], x: Array, *args: Any) -> Any:
    """Return ``function(x, *args)``."""
    return function(x, *args)


_cache: dict[Any, Array] = {}


def cached(make: Callable[..., Any], like: Array, *key: Any) -> Array:
    """Return ``make(*key)`` like ``like``, made once."""
    place = make, key, namespace_of(like).__name__, like.dtype, str(device(like))
    if place not in _cache:
        _cache[place] = made(make, like, *key)
    return _cache[place]


def made(make: Callable[..., Any], like: Array, *key: Any) -> Array:
    """Return ``make(*key)`` like ``like``."""
    xp, values = namespace_of(like), make(*key)
    dtypes = {"f": like.dtype, "i": xp.int32, "b": xp.bool}
    return xp.asarray(values, dtype=dtypes[values.dtype.kind], device=device_of(like))


def device(x: Array) -> Any:
    """Return the device of ``x``."""
    return "cpu" if isinstance(x, np.ndarray) else compat.device(x)


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` as a NumPy array."""
    return np.asarray(x) if compat.is_numpy_array(x) else np.from_dlpack(x, device="cpu", copy=True)


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` in the library, dtype and device of ``like``."""
    return namespace_of(like).asarray(a, dtype=like.dtype, device=compat.device(like))
