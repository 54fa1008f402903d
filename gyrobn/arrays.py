"""What every geometry does with arrays: checks, and sums over samples."""

from typing import Any

import array_api_compat as compat

from gyrobn.backends import Array, backend_of, device_of, dot, namespace_of
from gyrobn.scalar import safe_sqrt

__all__ = [
    "check_coordinates",
    "check_floating",
    "check_size",
    "length",
    "samples_last",
    "scalars_like",
    "unit",
    "weighted_sum",
    "zeros",
]


def check_floating(*arrays: Array) -> None:
    """Raise unless ``arrays`` share one real floating dtype and one device."""
    xp = namespace_of(*arrays)
    first = arrays[0]
    for x in arrays:
        if not _is_floating(xp, x.dtype):
            raise TypeError(
                f"expected a real floating dtype, got {x.dtype}: convert it first, "
                "for example with xp.astype(x, xp.float64)"
            )
        if x.dtype != first.dtype:
            raise TypeError(
                f"mixed dtypes {first.dtype} and {x.dtype}: cast one to the other first"
            )
        if device_of(x) != device_of(first):
            raise ValueError(
                f"arrays on devices {device_of(first)} and {device_of(x)}: "
                "move them to one device first"
            )


def scalars_like(values: Any, x: Array) -> Any:
    """Return a number as a Python float, other scalars as an array in the dtype of ``x``."""
    if isinstance(values, (int, float)):
        return float(values)
    if not compat.is_array_api_obj(values):
        values = namespace_of(x).asarray(values, dtype=x.dtype, device=device_of(x))
    return namespace_of(x, values).astype(values, x.dtype, copy=False)


_floating: dict[tuple[str, Any], bool] = {}


def _is_floating(xp: Any, dtype: Any) -> bool:
    key = xp.__name__, dtype
    if key not in _floating:  # asking takes longer than most operations
        _floating[key] = bool(xp.isdtype(dtype, "real floating"))
    return _floating[key]


def check_size(manifold: Any, *sizes: int) -> None:
    """Raise unless every size is a positive integer."""
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(
                f"{type(manifold).__name__} needs a positive integer for each size, got {size!r}"
            )


def check_coordinates(manifold: Any, c: Array) -> Any:
    """Return the namespace of normal coordinates after checking their number and dtype."""
    if c.shape[-1:] != (manifold.dim,):
        raise ValueError(
            f"{manifold!r} expects coordinates of shape (..., {manifold.dim}), got {tuple(c.shape)}"
        )
    check_floating(c)
    return namespace_of(c)


def zeros(n: int, like: Array) -> Array:
    """Return a zero vector in the library, dtype and device of ``like``."""
    return namespace_of(like).zeros((n,), dtype=like.dtype, device=device_of(like))


def weighted_sum(weights: Array, x: Array) -> Array:
    """Sum ``x`` of shape (N, *channels, k) over its first axis, with weights (N, *channels)."""
    xp = namespace_of(weights, x)
    return xp.matmul(samples_last(weights)[..., None, :], samples_last(x, 1))[..., 0, :]


def unit(x: Array, least: float = 0.0) -> tuple[Array, Array]:
    """Return the largest coordinate of each vector, at least ``least``, and x divided by it.

    The square of the quotient cannot overflow, as that of x can.
    """
    xp = namespace_of(x)
    large = xp.clip(
        xp.max(xp.abs(x), axis=-1), min=max(least, float(xp.finfo(x.dtype).smallest_normal))
    )
    return large, x / large[..., None]


def length(x: Array) -> Array:
    """Return the length of each vector; no square overflows or underflows. Its slope at 0 is 0.

    >>> import numpy as np
    >>> length(np.asarray([[3e200, 4e200], [3e-200, 4e-200]]))
    array([5.e+200, 5.e-200])
    """
    xp = namespace_of(x)
    info = xp.finfo(x.dtype)
    large = xp.clip(  # a constant: the slope by it is zero
        xp.max(xp.abs(backend_of(x).stop_gradient(x)), axis=-1),
        min=float(info.smallest_normal),
        max=float(info.max),
    )
    part = x / large[..., None]
    return large * safe_sqrt(dot(part, part))


def samples_last(x: Array, trailing: int = 0) -> Array:
    """Move the first axis behind the channels, in front of the last ``trailing`` axes."""
    axes = tuple(range(x.ndim))
    cut = x.ndim - trailing
    return namespace_of(x).permute_dims(x, (*axes[1:cut], 0, *axes[cut:]))
