"""What the Array API standard lacks, one module per library: a *backend*.

:class:`gyrobn.backends.contract.Backend` is the contract, with a docstring for each function.

A backend is imported the first time an array of its library is seen, so ``import gyrobn`` imports
no framework. Arrays of any other library that follows the standard are served by the NumPy backend,
except those of Dask, which have none: they hold tasks, and the mathematics runs on their blocks.
"""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import array_api_compat as compat
import numpy as np

from gyrobn.backends.contract import Array, Arrays, Backend

__all__ = [
    "Array",
    "Arrays",
    "Backend",
    "backend_of",
    "cast_to",
    "check_kind",
    "declare",
    "declared",
    "device_of",
    "namespace_of",
    "with_functions",
]

DASK = (
    "this function does not compute with Dask arrays: give x.compute(), an array, or call it on "
    "each block with x.map_blocks(function, dtype=x.dtype). The estimator gyrobn.GyroBN, "
    "gyrobn.frechet and gyrobn.batch_stats take a Dask array of samples as it is, and with it Dask "
    "arrays of weights and domains"
)
"""What a Dask array gets, except where it is welcome."""

_LIBRARIES: dict[str, Callable[[Any], bool]] = {
    "torch": compat.is_torch_array,
    "jax": compat.is_jax_array,
    "cupy": compat.is_cupy_array,
    "mlx": lambda x: type(x).__module__ == "mlx.core",
}
_known: dict[type, tuple[Any, Backend]] = {}


def _library_of(x: Array) -> tuple[Any, Backend]:
    """Return namespace and backend of an array; looked up once per type."""
    kind = type(x)
    if kind not in _known:
        if compat.is_dask_array(x):
            raise TypeError(DASK)
        check_kind(x)
        try:
            xp = compat.array_namespace(x)
        except TypeError as error:
            raise TypeError(
                f"expected an array that follows the Array API standard, got {_name(x)}: "
                "convert it first, for example with numpy.asarray"
            ) from error
        name = next((name for name, is_its_array in _LIBRARIES.items() if is_its_array(x)), "numpy")
        backend = import_module(f"gyrobn.backends.{name}")
        if name != "numpy" or compat.is_numpy_array(x):
            xp = getattr(backend, "namespace", xp)
        _known[kind] = xp, cast(Backend, backend)
    return _known[kind]


def with_functions(module: ModuleType, **functions: Any) -> ModuleType:
    """Return a namespace of array_api_compat with some functions replaced by quicker ones.

    Those of array_api_compat convert arguments that do not occur here, which takes longer than the
    operation itself on a small array.
    """
    namespace = ModuleType(module.__name__)
    namespace.__dict__.update(vars(module) | functions)
    return namespace


def check_kind(x: Any, name: str = "this") -> None:
    """Refuse what looks like an array of points and is none, with what to give instead."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and its mask would be lost: drop or impute what is masked; "
            "or give x.data, with a weight of 0 for samples that are masked"
        )
    if hasattr(x, "as_matrix") and hasattr(x, "as_quat"):
        raise TypeError(
            f"{name} is a {type(x).__name__}: give rotation.as_matrix(), points of "
            "SpecialOrthogonal(3), and turn the result back with Rotation.from_matrix"
        )


def cast_to(x: Array, dtype: str) -> str:
    """Return code that converts an array to another dtype."""
    library = _name(x).split(".")[0]
    if library == "torch":
        return f"x.to(torch.{dtype})"
    return f"x.astype(mx.{dtype})" if library == "mlx" else f"x.astype({dtype!r})"


def backend_of(x: Array) -> Backend:
    """Return the backend of the library that ``x`` belongs to."""
    return (_known.get(type(x)) or _library_of(x))[1]


def namespace_of(*arrays: Array) -> Any:
    """Return the Array API namespace of ``arrays``, which must belong to one library.

    >>> import numpy as np
    >>> namespace_of(np.ones(3)).__name__
    'array_api_compat.numpy'
    """
    xp = (_known.get(type(arrays[0])) or _library_of(arrays[0]))[0]
    for x in arrays[1:]:
        if (_known.get(type(x)) or _library_of(x))[0] is not xp:
            kinds = " and ".join(sorted({_name(a) for a in arrays}))
            raise TypeError(f"arrays of different libraries, {kinds}: convert them to one first")
    return xp


def device_of(x: Array) -> Any:
    """Return the device on which arrays that are to meet ``x`` must be created."""
    return backend_of(x).device(x)


def _name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


# ---------------------------------------------------------------------- pytrees of JAX

declared: list[type] = []
"""Classes that JAX does not know yet."""


@cache
def declare(cls: type) -> None:
    """Make a dataclass a pytree of JAX; ``cls.parameters`` names the children.

    JAX must know a class before it meets an object of it. The backend registers it when an object
    is made while JAX is imported, or when the first JAX array is seen; ``import gyrobn.jax`` does
    so, too.
    """
    declared.append(cls)
    if "jax" in sys.modules:
        import_module("gyrobn.backends.jax").register()
