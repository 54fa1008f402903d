"""What the Array API standard lacks, one module a library, each with the same names.

===================  =======================================================================
``differentiable``   may a gradient be asked through this array?
``hides_values``     is this array traced, so that its values cannot be looked at?
``stop_gradient``    the same values, constant to differentiation
``while_loop``       ``while condition(state): state = body(state)``, at most ``limit`` times
``to_numpy``         a NumPy copy or view, on the host
``from_numpy``       an array in the library, dtype and device of ``like``
===================  =======================================================================

A module is imported the first time an array of its library is seen, so ``import gyrobn`` imports
no framework. Arrays of any other library that follows the standard are served by the NumPy module.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

import array_api_compat as compat

__all__ = ["Array", "backend_of", "namespace_of"]

Array = Any
"""An array of any library that follows the standard (there is no common static type yet)."""

_SHIMS = {"torch": compat.is_torch_array, "jax": compat.is_jax_array, "cupy": compat.is_cupy_array}


def backend_of(x: Array) -> ModuleType:
    """Return the shim of the library that ``x`` belongs to."""
    for name, is_its_array in _SHIMS.items():
        if is_its_array(x):
            return import_module(f"gyrobn.backends.{name}")
    return import_module("gyrobn.backends.numpy")


def namespace_of(*arrays: Array) -> Any:
    """Return the Array API namespace of ``arrays``, which must belong to one library.

    >>> import numpy as np
    >>> namespace_of(np.ones(3)).__name__
    'array_api_compat.numpy'
    """
    try:
        return compat.array_namespace(*arrays)
    except TypeError as error:
        kinds = ", ".join(sorted({f"{type(a).__module__}.{type(a).__qualname__}" for a in arrays}))
        raise TypeError(
            f"expected arrays of one library that follows the Array API standard, got {kinds}: "
            "convert them to one library first, for example with numpy.asarray"
        ) from error
