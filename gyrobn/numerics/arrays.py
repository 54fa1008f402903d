"""Checks of arrays, lengths of vectors, and sums over samples."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, backend_of, cast_to, device_of, namespace_of


def check_floating(*arrays: Array, half: bool = False, complex_points: bool = False) -> Any:
    """Return the namespace of ``arrays``, which must share one device and one dtype.

    The dtype is float32 or float64, or that of complex numbers of two of them. Geometry in half
    precision would have three digits, and LAPACK has none of it. A layer that computes it in
    float32 allows it by ``half``.
    """
    xp, first = namespace_of(*arrays), arrays[0]
    single = xp.float64 == xp.float32  # the widest dtype
    allowed = _complex(xp) if complex_points else (xp.float32, xp.float64)
    for x in arrays:
        if x.dtype not in allowed:
            real = xp.isdtype(x.dtype, "real floating")
            if complex_points:
                raise TypeError(
                    f"expected complex64 or complex128, got {x.dtype}: convert it first, "
                    f"for example with {cast_to(x, 'complex128')}"
                )
            if not (real and half):
                known = "float32" if single else "float32 or float64"
                kind = known if real else "a real floating dtype"
                raise TypeError(
                    f"expected {kind}, got {x.dtype}: convert it first, "
                    f"for example with {cast_to(x, 'float32' if single else 'float64')}"
                )
        if x.dtype != first.dtype:
            raise TypeError(
                f"mixed dtypes {first.dtype} and {x.dtype}: cast one to the other first"
            )
        if x is not first and device_of(x) != device_of(first):
            raise ValueError(
                f"arrays on devices {device_of(first)} and {device_of(x)}: move them to one device "
                "first"
            )
    return xp


def check_coordinates(manifold: Any, c: Array) -> Any:
    """Return the namespace of normal coordinates after checking their number and dtype."""
    if c.shape[-1:] != (manifold.dim,):
        raise ValueError(
            f"{manifold!r} expects coordinates of shape (..., {manifold.dim}), got {tuple(c.shape)}"
        )
    return check_floating(c)


def _complex(xp: Any) -> tuple[Any, ...]:
    """Return the complex dtypes that a library has."""
    return tuple(getattr(xp, n) for n in ("complex64", "complex128") if hasattr(xp, n))


def real_like(x: Array) -> Array:
    """Return the real part of complex numbers: its dtype is that of distances and weights."""
    xp = namespace_of(x)
    return xp.real(x) if x.dtype in _complex(xp) else x


def real_dtype(x: Array) -> Any:
    """Return the dtype of distances, coordinates and weights of points like ``x``."""
    return real_like(x).dtype


def cast(x: Array | None, dtype: Any) -> Any:
    """Return an array in a real dtype, complex numbers as two of them; None stays None."""
    if x is None or real_dtype(x) == dtype:
        return x
    xp = namespace_of(x)
    if x.dtype in _complex(xp):
        dtype = xp.complex128 if dtype == xp.float64 else xp.complex64
    return xp.astype(x, dtype)


def from_host(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return NumPy's numbers in the library, precision and device of ``like``."""
    copy, like = backend_of(like).from_numpy, real_like(like)
    if a.dtype.kind == "c":
        return copy(np.array(a.real), like) + 1j * copy(np.array(a.imag), like)
    return copy(a, like)


def scalars_like(values: Any, x: Array) -> Any:
    """Return a number as a Python float, other scalars as an array in the dtype of ``x``."""
    if isinstance(values, (int, float)):
        return float(values)
    if isinstance(values, str):  # NumPy would read it
        raise ValueError(f"expected a number, or an array of numbers, got {values!r}")
    xp, dtype = namespace_of(x), real_dtype(x)
    if compat.is_array_api_obj(values) and namespace_of(values) is xp:
        return xp.astype(values, dtype, copy=False)
    return xp.asarray(values, dtype=dtype, device=device_of(x))


def all_true(condition: Array) -> bool:
    """Return whether a condition holds everywhere, and can be seen to."""
    return not backend_of(condition).traced(condition) and bool(
        namespace_of(condition).all(condition)
    )


def zeros(n: int, like: Array) -> Array:
    """Return a zero vector in the library, dtype and device of ``like``."""
    return namespace_of(like).zeros((n,), dtype=like.dtype, device=device_of(like))


def eps_of(x: Array) -> float:
    """Return the relative precision of the dtype."""
    return float(namespace_of(x).finfo(x.dtype).eps)


def tiny_of(x: Array) -> float:
    """Return next to nothing, so that a quotient takes its limit at 0: XLA flushes less to zero."""
    return float(namespace_of(x).finfo(x.dtype).smallest_normal)


def pieces(x: Array, sizes: Sequence[int]) -> list[Array]:
    """Return consecutive pieces of these sizes along the last axis."""
    ends = accumulate(sizes)
    return [x[..., end - size : end] for size, end in zip(sizes, ends, strict=True)]


# ---------------------------------------------------------------------- vectors


def dot(x: Array, y: Array) -> Array:
    """Return the inner product of vectors along the last axis, broadcasting over the others."""
    return namespace_of(x).vecdot(x, y)


def square(v: Array) -> Array:
    """Return the squared length of each vector, in one pass: for large arrays of constants."""
    if isinstance(v, np.ndarray):
        return np.vecdot(v, v)
    return namespace_of(v).linalg.vector_norm(v, axis=-1) ** 2


def times(a: Any, v: Array) -> Array:
    """Return vectors times one number each, or a float times all of them."""
    if isinstance(a, float):
        return v if a == 1.0 else a * v
    return a[..., None] * v


def safe_sqrt(x: Array) -> Array:
    r"""Return :math:`\sqrt{\max(x, 0)}`, with derivative zero where x is not positive; NaN for NaN.

    >>> import numpy as np
    >>> safe_sqrt(np.asarray([-1.0, 0.0, 4.0]))
    array([0., 0., 2.])
    """
    xp = namespace_of(x)
    low = x <= 0
    return xp.where(low, 0.0, xp.sqrt(xp.where(low, 1.0, x)))


def unit(x: Array, least: float = 0.0, most: float | None = None) -> tuple[Array, Array]:
    """Return the largest coordinate of each vector, within the bounds, and x divided by it.

    The square of the quotient cannot overflow, as that of x can. The divisor counts as a constant:
    what is computed with both does not depend on it.
    """
    xp = namespace_of(x)
    large = xp.max(xp.abs(backend_of(x).stop_gradient(x)), axis=-1)
    large = xp.clip(large, min=max(least, tiny_of(x)), max=most)
    return large, x / large[..., None]


def length(x: Array) -> Array:
    """Return the length of each vector; no square overflows or underflows. Its slope at 0 is 0.

    >>> import numpy as np
    >>> length(np.asarray([[3e200, 4e200], [3e-200, 4e-200]]))
    array([5.e+200, 5.e-200])
    """
    large, part = unit(x, most=float(namespace_of(x).finfo(x.dtype).max))
    return large * safe_sqrt(dot(part, part))


# ---------------------------------------------------------------------- sums over samples

BLOCK = 256
"""How many float32 numbers are added one after the other at most, before partial sums are."""


def weighted_sum(weights: Array, x: Array) -> Array:
    """Sum ``x`` of shape (N, *channels, *rest) over its first axis, with weights (N, *channels)."""
    xp, rest = namespace_of(weights, x), x.shape[weights.ndim :]
    size = math.prod(rest)
    if weights.ndim == 1 and (x.dtype != xp.float32 or x.shape[0] <= BLOCK):  # one product
        return xp.reshape(xp.matmul(weights, xp.reshape(x, (*weights.shape, size))), rest)
    rows = xp.reshape(x, (*weights.shape, 1, size))
    total = _in_blocks(_product, weights[..., None, None], rows)
    return xp.reshape(total, (*weights.shape[1:], *rest))


def sum_of_products(A: Array, B: Array) -> Array:
    r"""Return :math:`\sum_i A_i^\top B_i` in one large product.

    Shapes are (N, *channels, k, m) and (N, *channels, k, n).
    """
    return _in_blocks(_product, A, B)


def sum_samples(x: Array) -> Array:
    """Sum over the first axis."""
    return _in_blocks(lambda x: namespace_of(x).sum(x, axis=0), x)


def _in_blocks(function: Callable[..., Array], *arrays: Array) -> Array:
    r"""Return a sum over the first axis; of many float32 numbers by blocks, and then of their sums.

    The rounding error of a sum is at most :math:`(k B + k)\varepsilon \sum_i |x_i|` with B =
    ``BLOCK`` and :math:`k = \lceil\log_B N\rceil`, and a few ε of it in practice.
    """
    xp, count = namespace_of(*arrays), arrays[0].shape[0]
    if arrays[0].dtype != xp.float32 or count <= BLOCK:
        return function(*arrays)
    blocks = count // BLOCK  # each has the samples of one index of an axis that is like a channel
    whole = [xp.reshape(a[: blocks * BLOCK, ...], (BLOCK, blocks, *a.shape[1:])) for a in arrays]
    rest = [a[blocks * BLOCK :, ...] for a in arrays]
    return sum_samples(function(*whole)) + function(*rest)


def _product(A: Array, B: Array) -> Array:
    """Return the sum of the products along the first axis."""
    xp, last = namespace_of(A, B), A.ndim - 1
    order = (*range(1, last - 1), 0, last - 1, last)
    A, B = xp.permute_dims(A, order), xp.permute_dims(B, order)
    *lead, count, k, _ = A.shape
    A = xp.reshape(A, (*lead, count * k, A.shape[-1]))  # not -1: an array may be empty
    B = xp.reshape(B, (*lead, count * k, B.shape[-1]))
    return xp.matmul(xp.matrix_transpose(A), B)


# ---------------------------------------------------------------------- large NumPy arrays

CACHE = 2**20
"""How many bytes of samples to compute with at a time, so that temporaries stay in the cache."""


def blocks_of(x: Array, least: int = 64) -> list[slice]:
    """Return the parts of a large NumPy array, along its first axis, to compute one by one.

    One part, the whole, if the array is small, if ``least`` samples do not fit the cache, or if it
    is of another library: those have compilers, graphs and caches of their own.
    """
    count = x.shape[0]
    if not isinstance(x, np.ndarray) or x.nbytes <= 4 * CACHE:
        return [slice(None)]
    rows = CACHE * count // x.nbytes
    if rows < least:
        return [slice(None)]
    return [slice(i, i + rows) for i in range(0, count, rows)]


def decided(near: Array, exact: Callable[[], Array]) -> Array:
    """Return ``near`` if it holds everywhere, else ``exact()``, which is computed only then."""
    backend, holds = backend_of(near), namespace_of(near).all

    def body(_: Any, __: Any) -> tuple[Array]:
        return (exact(),)

    (found,) = backend.while_loop("decided", lambda s: ~holds(s[0]), body, (), (near,), 1)
    return found


def blockwise(function: Callable[[Array], Array], x: Array) -> Array:
    """Return ``function(x)``, computed block by block; it treats each sample by itself."""
    first, *rest = blocks_of(x)
    if not rest:
        return function(x)
    part = function(x[first])
    whole = np.empty((x.shape[0], *part.shape[1:]), dtype=part.dtype)
    whole[first] = part
    for block in rest:
        whole[block] = function(x[block])
    return whole
