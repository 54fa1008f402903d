"""CuPy. No GPU was at hand when this was written: see the page on backends for how it is tested."""

from collections.abc import Callable
from functools import wraps
from inspect import isroutine
from typing import Any

import array_api_compat.cupy
import cupy
import cupyx
import numpy as np

from gyrobn.backends import with_functions
from gyrobn.backends.contract import Array

# what an eager library without gradients does anyway
from gyrobn.backends.numpy import all_sum as all_sum
from gyrobn.backends.numpy import auto_sharded as auto_sharded
from gyrobn.backends.numpy import cached as cached
from gyrobn.backends.numpy import device as device
from gyrobn.backends.numpy import differentiable as differentiable
from gyrobn.backends.numpy import differentiate as differentiate
from gyrobn.backends.numpy import self_adjoint as self_adjoint
from gyrobn.backends.numpy import stop_gradient as stop_gradient
from gyrobn.backends.numpy import traced as traced
from gyrobn.backends.numpy import while_loop as while_loop


def _raising(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function raise LinAlgError for a matrix without an answer, as NumPy's does.

    By default CuPy ignores what cuSOLVER reports, and returns numbers that mean nothing: the factor
    of an indefinite matrix, or the determinant of a singular one. Asking waits for the device.
    """

    @wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        with cupyx.errstate(linalg="raise"):
            return function(*arguments, **options)

    return checked


_cupy: Any = array_api_compat.cupy
_linalg = _cupy.linalg
_checked = {name: _raising(f) for name, f in vars(_linalg).items() if isroutine(f)}
namespace = with_functions(_cupy, linalg=with_functions(_linalg, **_checked))
"""CuPy as the standard has it, with errors of matrices as NumPy has them."""


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Copy ``x`` to the host."""
    return cupy.asnumpy(x)  # type: ignore[no-any-return]


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Copy ``a`` to the device of ``like``, in its dtype."""
    with like.device:
        return cupy.asarray(a, dtype=like.dtype)
