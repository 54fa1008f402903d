r"""Functions of matrices with derivatives that are exact and finite at repeated eigenvalues.

A function of a symmetric matrix, :math:`f(A) = U f(\Lambda) U^\top`, has the derivative

.. math:: df(A) = U\bigl(L \circ (U^\top dA\, U)\bigr)U^\top, \qquad
          L_{ij} = \frac{f(\lambda_i) - f(\lambda_j)}{\lambda_i - \lambda_j}

(Daleckii and Krein), where the derivatives of U and Λ on their own are infinite or arbitrary. The
quotients :math:`L` are computed without cancellation. Second derivatives are refused.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.scalar import arc, cosine, safe_sqrt, sinc, sinc_slope

__all__ = [
    "ANGLE",
    "COSINE",
    "COSINE_OF_ROOT",
    "EXP",
    "LOG",
    "POWER",
    "SINC_OF_ROOT",
    "SINE_RATIO",
    "Spectral",
    "eigh",
    "eye",
    "from_triangle",
    "matmul",
    "polar",
    "power",
    "reciprocal_above",
    "symmetric",
    "symmetric_functions",
    "to_triangle",
    "transpose",
]


class Spectral(NamedTuple):
    """A function f(x, t) of an eigenvalue, with what its derivative needs."""

    value: Callable[[Array, Any], Array]
    quotient: Callable[[Array, Array, Any], Array]
    """(f(x, t) − f(y, t))/(x − y), and the derivative where x = y."""
    slope: Callable[[Array, Any], Array] | None = None
    """The derivative by t, where the function depends on it."""


# ---------------------------------------------------------------------- functions of eigenvalues


def _log_quotient(x: Array, y: Array) -> Array:
    """Return (log x − log y)/(x − y) for positive x and y of any size."""
    xp = namespace_of(x)
    root_x, root_y = xp.sqrt(x), xp.sqrt(y)
    sinh = 0.5 * (root_x / root_y - root_y / root_x)  # of half the difference of the logarithms
    return arc(-sinh * sinh, 1.0 + sinh * sinh, -1) / (root_x * root_y)


def _exp_quotient(x: Array, y: Array, t: Any) -> Array:
    """Return (exp(tx) − exp(ty))/(x − y)."""
    xp = namespace_of(x)
    half = 0.5 * t * (x - y)
    return t * xp.exp(0.5 * t * (x + y)) * sinc(-half * half, -1)


def _power_quotient(x: Array, y: Array, t: Any) -> Array:
    xp = namespace_of(x)
    return _exp_quotient(xp.log(x), xp.log(y), t) * _log_quotient(x, y)


def _raise_to(x: Array, t: Any) -> Array:
    return namespace_of(x).exp(t * namespace_of(x).log(x))


EXP = Spectral(
    lambda x, t: namespace_of(x).exp(x),
    lambda x, y, t: _exp_quotient(x, y, 1.0),
)
LOG = Spectral(
    lambda x, t: namespace_of(x).log(x),
    lambda x, y, t: _log_quotient(x, y),
)
POWER = Spectral(
    _raise_to,
    _power_quotient,
    lambda x, t: _raise_to(x, t) * namespace_of(x).log(x),
)


def power(exponent: float) -> Spectral:
    """Return the function x ↦ x^exponent, for a number that does not change."""
    return Spectral(
        lambda x, t: _raise_to(x, exponent),
        lambda x, y, t: _power_quotient(x, y, exponent),
    )


def reciprocal_above(one: float) -> Spectral:
    """Return the function x ↦ 1/(one + x)."""
    return Spectral(
        lambda x, t: 1.0 / (one + x),
        lambda x, y, t: -1.0 / ((one + x) * (one + y)),
    )


def _analytic(
    value: Callable[[Array, Any], Array],
    derivative: Callable[[Array, Any], Array],
    slope: Callable[[Array, Any], Array] | None = None,
) -> Spectral:
    """Return the function, with quotients by Gauss quadrature of the derivative where x ≈ y.

    Between points closer than a tenth of the scale on which the function changes, five nodes are
    exact to float64; between others the quotient itself loses one digit.
    """

    def quotient(x: Array, y: Array, t: Any) -> Array:
        xp = namespace_of(x)
        gap = x - y
        close = xp.abs(gap) < 0.1 / (1.0 if t is None else 1.0 + t * t)
        nodes, weights = np.polynomial.legendre.leggauss(5)
        middle, half = 0.5 * (x + y), 0.5 * xp.where(close, gap, 0.0)
        inner = 0.0
        for node, weight in zip(nodes, weights, strict=True):
            inner = inner + 0.5 * float(weight) * derivative(middle + float(node) * half, t)
        direct = (value(x, t) - value(y, t)) / xp.where(close, 1.0, gap)
        return xp.where(close, inner, direct)

    return Spectral(value, quotient, slope)


def _square_angle(c: Array) -> tuple[Array, Array]:
    """Return θ² and θ/sin θ from the cosine c; analytic at c = 1, and beyond it by rounding."""
    u = (1.0 - c) * (1.0 + c)
    ratio = arc(u, c, 1)
    return ratio * ratio * u, ratio


def _sine_ratio(c: Array, t: Any) -> Array:
    z, ratio = _square_angle(c)
    return t * sinc(t * t * z, 1) * ratio


def _sine_ratio_derivative(c: Array, t: Any) -> Array:
    z, ratio = _square_angle(c)
    below = sinc(z, 1)
    above = t * t * sinc_slope(t * t * z, 1) * below - sinc(t * t * z, 1) * sinc_slope(z, 1)
    return -2.0 * ratio * t * above / (below * below)


def _sine_ratio_slope(c: Array, t: Any) -> Array:
    z, ratio = _square_angle(c)
    return cosine(t * t * z, 1) * ratio


def _cosine_slope(c: Array, t: Any) -> Array:
    z, _ = _square_angle(c)
    return -t * z * sinc(t * t * z, 1)


ANGLE = _analytic(
    lambda c, t: _square_angle(c)[1],
    lambda c, t: 2.0 * _square_angle(c)[1] ** 3 * sinc_slope(_square_angle(c)[0], 1),
)
"""c = cos θ to θ/sin θ."""
COSINE = _analytic(
    lambda c, t: cosine(t * t * _square_angle(c)[0], 1),
    lambda c, t: t * _sine_ratio(c, t),
    _cosine_slope,
)
"""c = cos θ to cos tθ."""
SINE_RATIO = _analytic(_sine_ratio, _sine_ratio_derivative, _sine_ratio_slope)
"""c = cos θ to sin tθ / sin θ."""
COSINE_OF_ROOT = _analytic(lambda u, t: cosine(u, 1), lambda u, t: -0.5 * sinc(u, 1))
"""u = θ² to cos θ."""
SINC_OF_ROOT = _analytic(lambda u, t: sinc(u, 1), lambda u, t: sinc_slope(u, 1))
"""u = θ² to sin θ / θ."""


# ---------------------------------------------------------------------- functions of matrices


def symmetric_functions(A: Array, *functions: Spectral, t: Any = None) -> tuple[Array, ...]:
    """Return f(A, t) for each of ``functions``, from one eigendecomposition.

    Parameters
    ----------
    A
        Symmetric matrices; of others, the symmetric part is taken.
    *functions
        What to apply to the eigenvalues.
    t
        The functions' second argument: a number, or an array with one number a matrix.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.asarray([[2.0, 1.0], [1.0, 2.0]])
    >>> root, back = symmetric_functions(A, power(0.5), power(-0.5))
    >>> bool(np.allclose(root @ root, A)), bool(np.allclose(root @ back, np.eye(2)))
    (True, True)
    """
    xp = namespace_of(A)

    def primal(A: Array, *s: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        values, U = eigh(xp, A)
        at = _one(s, t)
        return tuple(_compose(U, f.value(values, at), U) for f in functions), (values, U, *s)

    def tangent(kept: tuple[Array, ...], dA: Array, *ds: Array) -> tuple[Array, ...]:
        values, U, *s = kept
        at = _one(s, t)
        change = matmul(transpose(U), symmetric(dA), U)
        found = []
        for f in functions:
            inner = _quotients(f, values, at) * change
            if ds and f.slope is not None:
                inner = inner + _diagonal(f.slope(values, at) * ds[0][..., None])
            found.append(matmul(U, inner, transpose(U)))
        return tuple(found)

    def cotangent(kept: tuple[Array, ...], *slopes: Array) -> tuple[Array, ...]:
        values, U, *s = kept
        at = _one(s, t)
        total, by_t = 0.0, 0.0
        for f, slope in zip(functions, slopes, strict=True):
            inner = matmul(transpose(U), symmetric(slope), U)
            total = total + _quotients(f, values, at) * inner
            if s and f.slope is not None:
                by_t = by_t + xp.sum(f.slope(values, at) * xp.linalg.diagonal(inner), axis=-1)
        return matmul(U, total, transpose(U)), *([by_t] if s else [])

    return backend_of(A).with_derivative(primal, tangent, cotangent, *_inputs(A, t))


def polar(A: Array, *functions: Spectral, t: Any = None) -> tuple[Array, ...]:
    r"""Return the orthogonal factor W of A = C W, and f(C, t) for each of ``functions``.

    From one singular value decomposition :math:`A = P c T^\top`: :math:`W = P T^\top` and
    :math:`f(C) = P f(c) P^\top`. With :math:`E = P^\top dA\, T`,

    .. math:: (P^\top dW\, T)_{ij} = \frac{E_{ij} - E_{ji}}{c_i + c_j}, \qquad
              (P^\top dC\, P)_{ij} = \frac{c_j E_{ij} + c_i E_{ji}}{c_i + c_j} .

    A singular matrix has more than one orthogonal factor; one of them is returned.
    """
    xp = namespace_of(A)

    def primal(A: Array, *s: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        finite = _finite(xp, A)
        P, c, Th = xp.linalg.svd(xp.where(finite, A, eye(A)), full_matrices=False)
        c = xp.where(finite[..., 0], c, xp.nan)
        Th = xp.where(finite, Th, xp.nan)
        at = _one(s, t)
        values = (_compose(P, f.value(c, at), P) for f in functions)
        return (matmul(P, Th), *values), (P, c, Th, *s)

    def tangent(kept: tuple[Array, ...], dA: Array, *ds: Array) -> tuple[Array, ...]:
        P, c, Th, *s = kept
        at = _one(s, t)
        E = matmul(transpose(P), dA, transpose(Th)) / _pair_sums(xp, c)
        found = [matmul(P, E - transpose(E), Th)]
        dC = E * c[..., None, :] + transpose(E * c[..., None, :])
        for f in functions:
            inner = _quotients(f, c, at) * dC
            if ds and f.slope is not None:
                inner = inner + _diagonal(f.slope(c, at) * ds[0][..., None])
            found.append(matmul(P, inner, transpose(P)))
        return tuple(found)

    def cotangent(kept: tuple[Array, ...], *slopes: Array) -> tuple[Array, ...]:
        P, c, Th, *s = kept
        at = _one(s, t)
        G = matmul(transpose(P), slopes[0], transpose(Th))
        total, by_t = G - transpose(G), 0.0
        for f, slope in zip(functions, slopes[1:], strict=True):
            inner = matmul(transpose(P), symmetric(slope), P)
            total = total + 2.0 * _quotients(f, c, at) * inner * c[..., None, :]
            if s and f.slope is not None:
                by_t = by_t + xp.sum(f.slope(c, at) * xp.linalg.diagonal(inner), axis=-1)
        return matmul(P, total / _pair_sums(xp, c), Th), *([by_t] if s else [])

    return backend_of(A).with_derivative(primal, tangent, cotangent, *_inputs(A, t))


def _inputs(A: Array, t: Any) -> tuple[Array, ...]:
    """Return what to differentiate by: the matrices and, where it is an array, t, of one shape."""
    xp = namespace_of(A)
    if t is None or isinstance(t, (int, float)):
        return (A,)
    batch = np.broadcast_shapes(tuple(A.shape[:-2]), tuple(t.shape))
    return xp.broadcast_to(A, (*batch, *A.shape[-2:])), xp.broadcast_to(t, batch)


def _one(s: Any, t: Any) -> Any:
    """Return t as eigenvalues can meet it: a number, or one number a matrix."""
    return s[0][..., None] if s else t


def _finite(xp: Any, A: Array) -> Array:
    return xp.all(xp.isfinite(A), axis=(-2, -1), keepdims=True)


def eigh(xp: Any, A: Array) -> tuple[Array, Array]:
    """Return eigenvalues and eigenvectors, NaN for a matrix that has one: LAPACK would raise."""
    finite = _finite(xp, A)
    values, U = xp.linalg.eigh(symmetric(xp.where(finite, A, eye(A))))
    return xp.where(finite[..., 0], values, xp.nan), U


def _quotients(f: Spectral, values: Array, t: Any) -> Array:
    at = t if t is None or isinstance(t, (int, float)) else t[..., None]
    return f.quotient(values[..., :, None], values[..., None, :], at)


def _pair_sums(xp: Any, c: Array) -> Array:
    """Return c_i + c_j, not zero: a singular matrix has no derivative, but no NaN either."""
    least = float(xp.finfo(c.dtype).eps)
    return xp.clip(c[..., :, None] + c[..., None, :], min=least)


def _compose(U: Array, values: Array, V: Array) -> Array:
    """Return U diag(values) Vᵀ."""
    return namespace_of(U).matmul(U * values[..., None, :], transpose(V))


def _diagonal(values: Array) -> Array:
    return values[..., None] * eye(values[..., None], values.shape[-1])


# ---------------------------------------------------------------------- small helpers


def transpose(A: Array) -> Array:
    """Return the transposed matrices."""
    return namespace_of(A).matrix_transpose(A)


def symmetric(A: Array) -> Array:
    """Return the symmetric part of A."""
    return 0.5 * (A + transpose(A))


def matmul(*factors: Array) -> Array:
    """Return the product of matrices, from left to right."""
    product, *rest = factors
    for factor in rest:
        product = namespace_of(product).matmul(product, factor)
    return product


def eye(like: Array, n: int | None = None) -> Array:
    """Return the n × n identity, in the library, dtype and device of ``like``."""
    size = like.shape[-1] if n is None else n
    return namespace_of(like).eye(size, dtype=like.dtype, device=device_of(like))


def to_triangle(A: Array, diagonal: bool, weight: float = 1.0) -> Array:
    """Return the lower triangle of A as vectors, row by row, times ``weight`` off the diagonal.

    With weight √2 and the diagonal, the vectors of symmetric matrices have their Frobenius norm.
    """
    xp = namespace_of(A)
    n = A.shape[-1]
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    flat = xp.reshape(A, (*A.shape[:-2], n * n))
    entries = xp.take(flat, _constant(rows * n + columns, A), axis=-1)
    if diagonal and weight != 1.0:
        return entries * _constant(np.where(rows == columns, 1.0, weight), A)
    return entries if weight == 1.0 else weight * entries


def from_triangle(
    c: Array, n: int, diagonal: bool, weight: float = 1.0, mirror: float = 0.0
) -> Array:
    """Undo :func:`to_triangle`; the upper triangle is ``mirror`` times the lower one."""
    xp = namespace_of(c)
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    place = np.zeros((n, n), dtype=np.int64)
    factor = np.zeros((n, n))
    place[columns, rows] = place[rows, columns] = np.arange(len(rows))
    factor[columns, rows] = mirror / weight
    factor[rows, columns] = 1.0 / weight
    if diagonal:
        np.fill_diagonal(factor, 1.0)
    entries = xp.take(c, _constant(place.reshape(-1), c), axis=-1)
    return xp.reshape(entries * _constant(factor.reshape(-1), c), (*c.shape[:-1], n, n))


def _constant(values: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return numbers, or indices, in the library and on the device of ``like``."""
    xp = namespace_of(like)
    dtype = like.dtype if values.dtype.kind == "f" else xp.int64
    return xp.asarray(values, dtype=dtype, device=device_of(like))
