"""What every geometry does with arrays: checks, and sums over samples."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, backend_of, cast_to, device_of, dot, namespace_of
from gyrobn.numerics.scalar import safe_sqrt


def check_floating(*arrays: Array, half: bool = False) -> Any:
    """Return the namespace of ``arrays``, which must share one device and one dtype.

    The dtype is float32 or float64. Geometry in half precision would have three digits, and LAPACK
    has none of it. A layer that computes it in float32 allows it by ``half``.
    """
    xp, first = namespace_of(*arrays), arrays[0]
    dtype = first.dtype
    for x in arrays:
        if (x is first or x.dtype != dtype) and not _is_floating(xp, x.dtype, half):
            real = _is_floating(xp, x.dtype, half=True)
            kind = "float32 or float64" if real else "a real floating dtype"
            raise TypeError(
                f"expected {kind}, got {x.dtype}: convert it first, "
                f"for example with {cast_to(x, 'float64')}"
            )
        if x.dtype != dtype:
            raise TypeError(f"mixed dtypes {dtype} and {x.dtype}: cast one to the other first")
    if len(arrays) > 1:
        device = backend_of(first).device
        here = device(first)
        for x in arrays[1:]:
            if device(x) != here:
                raise ValueError(
                    f"arrays on devices {here} and {device(x)}: move them to one device first"
                )
    return xp


def scalars_like(values: Any, x: Array) -> Any:
    """Return a number as a Python float, other scalars as an array in the dtype of ``x``."""
    if isinstance(values, (int, float)):
        return float(values)
    if isinstance(values, str):  # NumPy would read it
        raise ValueError(f"expected a number, or an array of numbers, got {values!r}")
    if not compat.is_array_api_obj(values):
        values = namespace_of(x).asarray(values, dtype=x.dtype, device=device_of(x))
    return namespace_of(x, values).astype(values, x.dtype, copy=False)


_floating: dict[tuple[str, Any, bool], bool] = {}


def _is_floating(xp: Any, dtype: Any, half: bool) -> bool:
    key = xp.__name__, dtype, half
    if key not in _floating:  # asking takes longer than most operations
        kinds = "real floating" if half else (xp.float32, xp.float64)
        _floating[key] = bool(xp.isdtype(dtype, kinds))
    return _floating[key]


def check_coordinates(manifold: Any, c: Array) -> Any:
    """Return the namespace of normal coordinates after checking their number and dtype."""
    if c.shape[-1:] != (manifold.dim,):
        raise ValueError(
            f"{manifold!r} expects coordinates of shape (..., {manifold.dim}), got {tuple(c.shape)}"
        )
    return check_floating(c)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape that arrays of these shapes have together.

    NumPy's function would bind a program that is exported for any batch to the size it is shown.

    >>> broadcast_shapes((4, 1), (3,), ())
    (4, 3)
    """
    most = max(map(len, shapes))
    axes = zip(*((1,) * (most - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in axes)


def zeros(n: int, like: Array) -> Array:
    """Return a zero vector in the library, dtype and device of ``like``."""
    return namespace_of(like).zeros((n,), dtype=like.dtype, device=device_of(like))


Totals = Callable[..., tuple[Array, ...]]
"""A function of several sums over samples that returns those over all ranks."""


def together(*sums: Array) -> tuple[Array, ...]:
    """Return the sums: all samples are here."""
    return sums


BLOCK = 256
"""How many float32 numbers are added one after the other at most, before partial sums are."""


def weighted_sum(weights: Array, x: Array) -> Array:
    r"""Sum ``x`` of shape (N, *channels, *rest) over its first axis, with weights (N, *channels).

    Many float32 numbers are summed by blocks, and the sums of blocks again: the rounding error is
    at most :math:`(k B + k)\varepsilon \sum_i w_i |x_i|` with B = ``BLOCK`` and
    :math:`k = \lceil\log_B N\rceil`, and a few ε of it in practice, however many there are.
    """
    xp = namespace_of(weights, x)
    rest = tuple(x.shape[weights.ndim :])
    if not rest:
        return sum_samples(weights * x)
    flat = x if len(rest) == 1 else xp.reshape(x, (*x.shape[: weights.ndim], math.prod(rest)))
    if weights.ndim == 1 and _one_block(x):
        total = xp.matmul(weights, flat)
    else:
        total = sum_of_products(weights[..., None, None], flat[..., None, :])[..., 0, :]
    return total if len(rest) == 1 else xp.reshape(total, (*total.shape[:-1], *rest))


def weighted_gram(weights: Array, T: Array) -> Array:
    r"""Return :math:`\sum_i T_i^\top \operatorname{diag}(w_i)\,T_i` in one large product.

    ``T`` has the shape (N, *channels, k, n), ``weights`` (N, *channels, k).
    """
    return sum_of_products(weights[..., None] * T, T)


def sum_of_products(A: Array, B: Array) -> Array:
    r"""Return :math:`\sum_i A_i^\top B_i` in one large product.

    Shapes are (N, *channels, k, m) and (N, *channels, k, n). Many float32 numbers are summed as in
    :func:`weighted_sum`.
    """
    xp = namespace_of(A, B)
    parts = []
    for blocks in zip(_blocks(A), _blocks(B), strict=True):
        rows = [samples_last(block, 2, 1) for block in blocks]
        # no -1 for the length, which would be ambiguous in an empty array
        shapes = [(*a.shape[:-3], a.shape[-3] * a.shape[-2], a.shape[-1]) for a in rows]
        left, right = map(xp.reshape, rows, shapes)
        parts.append(xp.matmul(xp.matrix_transpose(left), right))
    one = len(parts) == 1 and parts[0].shape[0] == 1
    return parts[0][0, ...] if one else sum_samples(xp.concat(parts))


def sum_samples(x: Array) -> Array:
    """Sum over the first axis, many float32 numbers as in :func:`weighted_sum`."""
    xp = namespace_of(x)
    if _one_block(x):
        return xp.sum(x, axis=0)
    return sum_samples(xp.concat([xp.sum(block, axis=1) for block in _blocks(x)]))


def _one_block(x: Array) -> bool:
    return x.dtype == namespace_of(x).float64 or bool(x.shape[0] <= BLOCK)


def _blocks(x: Array) -> list[Array]:
    """Return (N, ...) as (blocks, size, ...): one block, or those of ``BLOCK`` and the rest."""
    if _one_block(x):
        return [x[None, ...]]
    count, xp = x.shape[0], namespace_of(x)
    whole = count // BLOCK * BLOCK
    parts = [xp.reshape(x[:whole, ...], (whole // BLOCK, BLOCK, *x.shape[1:]))]
    return parts if whole == count else [*parts, x[None, whole:, ...]]


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


def surely(each: Array) -> bool:
    """Return whether all are true, and can be seen to be."""
    return not backend_of(each).hides_values(each) and bool(namespace_of(each).all(each))


def largest(x: Array) -> Array:
    """Return the largest absolute value of each vector's coordinates.

    The norm of order infinity is one operation, but ten times as slow in torch for many vectors.
    """
    xp = namespace_of(x)
    if x.ndim == 1:
        return xp.linalg.vector_norm(x, axis=-1, ord=xp.inf)
    return xp.max(xp.abs(x), axis=-1)


def unit(x: Array, least: float = 0.0, most: float | None = None) -> tuple[Array, Array]:
    """Return the largest coordinate of each vector, within the bounds, and x divided by it.

    The square of the quotient cannot overflow, as that of x can. The divisor counts as a constant:
    what is computed with both does not depend on it.
    """
    xp, large = namespace_of(x), largest(backend_of(x).stop_gradient(x))
    tiny = float(xp.finfo(x.dtype).smallest_normal)
    large = xp.clip(large, min=max(least, tiny), max=most)
    return large, x / large[..., None]


def length(x: Array) -> Array:
    """Return the length of each vector; no square overflows or underflows. Its slope at 0 is 0.

    >>> import numpy as np
    >>> length(np.asarray([[3e200, 4e200], [3e-200, 4e-200]]))
    array([5.e+200, 5.e-200])
    """
    large, part = unit(x, most=float(namespace_of(x).finfo(x.dtype).max))
    return large * safe_sqrt(dot(part, part))


def samples_last(x: Array, trailing: int = 0, first: int = 0) -> Array:
    """Move the axis ``first`` behind the channels, in front of the last ``trailing`` axes."""
    axes = tuple(range(x.ndim))
    cut = x.ndim - trailing
    order = (*axes[:first], *axes[first + 1 : cut], first, *axes[cut:])
    if order == axes:
        return x
    return namespace_of(x).permute_dims(x, order)


def pieces(x: Array, sizes: Sequence[int], axis: int = -1) -> list[Array]:
    """Return consecutive pieces of these sizes along the last axis, or the last but one."""
    cuts, stop = [], 0
    for size in sizes:
        start, stop = stop, stop + size
        cuts.append(x[..., start:stop] if axis == -1 else x[..., start:stop, :])
    return cuts


_constants: dict[Any, Array] = {}


def constant(make: Callable[..., "np.ndarray[Any, Any]"], like: Array, *key: Any) -> Array:
    """Return the NumPy array ``make(*key)`` in the library and on the device of ``like``.

    The array is kept, once per dtype and device: to copy it to a GPU again would wait for the GPU.
    So it must not be written to, nor be given to a user. ``make`` is a function of a module.
    """
    shim = backend_of(like)
    if not shim.plain(like):
        return _constant(make(*key), like)
    place = make, key, namespace_of(like).__name__, like.dtype, str(device_of(like))
    if place not in _constants:
        made = _constant(make(*key), like)
        if not shim.plain(made):
            return made
        _constants[place] = made
    return _constants[place]


def _constant(values: "np.ndarray[Any, Any]", like: Array) -> Array:
    xp = namespace_of(like)
    dtypes = {"f": like.dtype, "i": xp.int32, "b": xp.bool}
    return xp.asarray(values, dtype=dtypes[values.dtype.kind], device=device_of(like))
