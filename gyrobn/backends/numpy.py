"""NumPy, and any other eager library that follows the standard and has no shim of its own."""

from collections.abc import Callable
from typing import Any

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, namespace_of

State = tuple[Array, ...]


def differentiable(*arrays: Array) -> bool:
    """Tell whether a gradient may be asked through any of ``arrays``: never here."""
    return False


def hides_values(x: Array) -> bool:
    """Tell whether ``x`` is traced: never here."""
    return False


def stop_gradient(x: Array) -> Array:
    """Return ``x``: there is nothing to stop."""
    return x


def while_loop(
    condition: Callable[[State], Array], body: Callable[[State], State], state: State, limit: int
) -> State:
    """Run ``body`` while ``condition`` holds, at most ``limit`` times."""
    for _ in range(limit):
        if not bool(condition(state)):
            break
        state = body(state)
    return state


def device(x: Array) -> Any:
    """Return the device of ``x``."""
    return compat.device(x)


def vecdot(x: Array, y: Array) -> Array:
    """Return the inner product along the last axis."""
    return namespace_of(x, y).vecdot(x, y)


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` as a NumPy array."""
    return np.asarray(x) if compat.is_numpy_array(x) else np.from_dlpack(x, device="cpu", copy=True)


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` in the library, dtype and device of ``like``."""
    return namespace_of(like).asarray(a, dtype=like.dtype, device=like.device)
