"""CuPy. No GPU was at hand when this was written: see the page on backends for how it is tested."""

from typing import Any

import cupy
import numpy as np

from gyrobn.backends import Array
from gyrobn.backends.numpy import (  # what an eager library without gradients does anyway
    add_product,
    device,
    differentiable,
    hides_values,
    implicit,
    norm,
    opaque,
    plain,
    shortcut,
    smooth,
    stop_gradient,
    stored,
    take,
    vecdot,
    while_loop,
    with_derivative,
)

__all__ = [
    "add_product",
    "device",
    "differentiable",
    "from_numpy",
    "hides_values",
    "implicit",
    "norm",
    "opaque",
    "plain",
    "shortcut",
    "smooth",
    "stop_gradient",
    "stored",
    "take",
    "to_numpy",
    "vecdot",
    "while_loop",
    "with_derivative",
]


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Copy ``x`` to the host."""
    return cupy.asnumpy(x)  # type: ignore[no-any-return]


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Copy ``a`` to the device of ``like``, in its dtype."""
    with like.device:
        return cupy.asarray(a, dtype=like.dtype)
