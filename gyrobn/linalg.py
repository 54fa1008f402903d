r"""Functions of matrices with derivatives that are exact and finite at repeated eigenvalues.

A function of a symmetric matrix, :math:`f(A) = U f(\Lambda) U^\top`, has the derivative

.. math:: df(A) = U\bigl(L \circ (U^\top dA\, U)\bigr)U^\top, \qquad
          L_{ij} = \frac{f(\lambda_i) - f(\lambda_j)}{\lambda_i - \lambda_j}

(Daleckii and Krein), where the derivatives of U and Λ on their own are infinite or arbitrary. The
quotients :math:`L` are computed without cancellation. Second derivatives are refused.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gyrobn.arrays import broadcast_shapes
from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.spectral import LOG, Spectral

__all__ = [
    "Decomposition",
    "PrecisionWarning",
    "cholesky",
    "congruence",
    "differential",
    "eigh",
    "eye",
    "finite_or_identity",
    "framed_functions",
    "from_triangle",
    "log_squares",
    "logarithm",
    "matmul",
    "pack",
    "polar",
    "solve",
    "svd",
    "symmetric",
    "symmetric_functions",
    "to_triangle",
    "transpose",
    "unpack",
    "warn_of_lost_digits",
]


class PrecisionWarning(UserWarning):
    """Matrices are so close to singular that their floats do not determine the result."""


Decomposition = tuple[Array, ...]
"""What :func:`eigh` or :func:`svd` returns."""

# ---------------------------------------------------------------------- functions of matrices


def symmetric_functions(
    A: Array, *functions: Spectral, t: Any = None, known: Decomposition | None = None
) -> tuple[Array, ...]:
    """Return f(A, t) for each of ``functions``, from one eigendecomposition.

    Parameters
    ----------
    A
        Symmetric matrices; of others, the symmetric part is taken.
    *functions
        What to apply to the eigenvalues.
    t
        The functions' second argument: a number, or an array with one number a matrix.
    known
        Eigenvalues and eigenvectors of A, if they are known, as constants. Then A, and what its
        functions are multiplied by to differentiate them, must be symmetric.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn.spectral import power
    >>> A = np.asarray([[2.0, 1.0], [1.0, 2.0]])
    >>> root, back = symmetric_functions(A, power(0.5), power(-0.5))
    >>> bool(np.allclose(root @ root, A)), bool(np.allclose(root @ back, np.eye(2)))
    (True, True)
    """

    def primal(A: Array, *s: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        values, U = eigh(A) if known is None else known
        at = _one(s, t)
        return tuple(_compose(U, f.value(values, at), U) for f in functions), (values, U, *s)

    def tangent(kept: tuple[Array, ...], dA: Array, *ds: Array) -> tuple[Array, ...]:
        values, U, *s = kept
        change = matmul(transpose(U), dA if known else symmetric(dA), U)
        return _changes(functions, U, values, _one(s, t), change, ds)

    def cotangent(kept: tuple[Array, ...], *slopes: Array) -> tuple[Array, ...]:
        values, U, *s = kept
        if known is None:
            slopes = tuple(symmetric(slope) for slope in slopes)
        total, by_t = _slopes(functions, U, values, _one(s, t), slopes, s)
        return matmul(U, total, transpose(U)), *by_t

    rules = primal, tangent, cotangent
    return tuple(backend_of(A).with_derivative(*rules, *_inputs(A, t)))


def framed_functions(A: Array, known: Decomposition, *functions: Spectral) -> tuple[Array, ...]:
    r"""Return :math:`f(A)\,U` for each of ``functions``, the eigenvectors U held constant.

    Its columns are :math:`f(\lambda_k)\,u_k`, so even the smallest has all its digits;
    :math:`U f(\Lambda) U^\top` mixes columns of different sizes and rounds to the largest.
    """

    def primal(A: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        values, U = known
        return tuple(U * f.value(values, None)[..., None, :] for f in functions), known

    def tangent(kept: tuple[Array, ...], dA: Array) -> tuple[Array, ...]:
        values, U = kept
        change = matmul(transpose(U), dA, U)
        return tuple(matmul(d, U) for d in _changes(functions, U, values, None, change, ()))

    def cotangent(kept: tuple[Array, ...], *slopes: Array) -> tuple[Array, ...]:
        values, U = kept
        by_function = (symmetric(matmul(slope, transpose(U))) for slope in slopes)
        total, _ = _slopes(functions, U, values, None, by_function, ())
        return (matmul(U, total, transpose(U)),)

    return tuple(backend_of(A).with_derivative(primal, tangent, cotangent, A))


def polar(
    A: Array,
    *functions: Spectral,
    t: Any = None,
    known: Decomposition | None = None,
    decompose: Callable[[Array], Decomposition] | None = None,
) -> tuple[Array, ...]:
    r"""Return the orthogonal factor W of A = C W, and f(C, t) for each of ``functions``.

    From one singular value decomposition :math:`A = P c T^\top`: :math:`W = P T^\top` and
    :math:`f(C) = P f(c) P^\top`. With :math:`E = P^\top dA\, T`,

    .. math:: (P^\top dW\, T)_{ij} = \frac{E_{ij} - E_{ji}}{c_i + c_j}, \qquad
              (P^\top dC\, P)_{ij} = \frac{c_j E_{ij} + c_i E_{ji}}{c_i + c_j} .

    A singular matrix has more than one orthogonal factor; one of them is returned. ``decompose``
    decides which: it takes the place of :func:`svd`. ``known`` is the decomposition of A, if there
    is one.
    """
    xp = namespace_of(A)
    decompose = decompose or svd

    def primal(A: Array, *s: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        P, c, Th = decompose(A) if known is None else known
        at = _one(s, t)
        values = (_compose(P, f.value(c, at), P) for f in functions)
        return (matmul(P, Th), *values), (P, c, Th, *s)

    def tangent(kept: tuple[Array, ...], dA: Array, *ds: Array) -> tuple[Array, ...]:
        P, c, Th, *s = kept
        E = matmul(transpose(P), dA, transpose(Th)) / _pair_sums(xp, c)
        dC = E * c[..., None, :] + transpose(E * c[..., None, :])
        changes = _changes(functions, P, c, _one(s, t), dC, ds)
        return matmul(P, E - transpose(E), Th), *changes

    def cotangent(kept: tuple[Array, ...], *slopes: Array) -> tuple[Array, ...]:
        P, c, Th, *s = kept
        G = matmul(transpose(P), slopes[0], transpose(Th))
        by_C, by_t = _slopes(functions, P, c, _one(s, t), map(symmetric, slopes[1:]), s)
        total = G - transpose(G) + 2.0 * by_C * c[..., None, :]
        return matmul(P, total / _pair_sums(xp, c), Th), *by_t

    rules = primal, tangent, cotangent
    return tuple(backend_of(A).with_derivative(*rules, *_inputs(A, t)))


def log_squares(A: Array, known: Decomposition) -> Array:
    r"""Return :math:`\|\log A\|^2`; its derivative is :math:`2\operatorname{tr}(A^{-1}\log A\,dA)`.

    ``known`` are the eigenvalues and eigenvectors.
    """
    xp = namespace_of(A)

    def primal(A: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        values, U = known
        return (xp.sum(xp.log(values) ** 2, axis=-1),), (values, U)

    def slope(kept: tuple[Array, ...]) -> Array:
        values, U = kept
        return _compose(U, 2.0 * xp.log(values) / values, U)

    def tangent(kept: tuple[Array, ...], dA: Array) -> tuple[Array, ...]:
        return (xp.sum(slope(kept) * dA, axis=(-2, -1)),)

    def cotangent(kept: tuple[Array, ...], by_square: Array) -> tuple[Array, ...]:
        return (by_square[..., None, None] * slope(kept),)

    (squares,) = backend_of(A).with_derivative(primal, tangent, cotangent, A)
    return squares


def _changes(
    functions: Sequence[Spectral], U: Array, values: Array, t: Any, change: Array, ds: Any
) -> tuple[Array, ...]:
    """Return the changes of f(A, t) by that of A, in its eigenbasis U, and by that of t."""
    found = []
    for f in functions:
        inner = _quotients(f, values, t) * change
        if ds and f.slope is not None:
            inner = inner + _diagonal(f.slope(values, t) * ds[0][..., None])
        found.append(matmul(U, inner, transpose(U)))
    return tuple(found)


def _slopes(
    functions: Sequence[Spectral], U: Array, values: Array, t: Any, slopes: Any, s: Any
) -> tuple[Any, tuple[Array, ...]]:
    """Transpose :func:`_changes`: return the slope by A, in its eigenbasis, and by t if given."""
    total, by_t = 0.0, tuple(namespace_of(a).zeros_like(a) for a in s)
    for f, slope in zip(functions, slopes, strict=True):
        inner = matmul(transpose(U), slope, U)
        total = total + _quotients(f, values, t) * inner
        if by_t and f.slope is not None:
            xp = namespace_of(inner)
            along = xp.sum(f.slope(values, t) * xp.linalg.diagonal(inner), axis=-1)
            by_t = (by_t[0] + along,)
    return total, by_t


def _inputs(A: Array, t: Any) -> tuple[Array, ...]:
    """Return what to differentiate by: the matrices and, where it is an array, t, of one shape."""
    xp = namespace_of(A)
    if t is None or isinstance(t, (int, float)):
        return (A,)
    batch = broadcast_shapes(A.shape[:-2], t.shape)
    return xp.broadcast_to(A, (*batch, *A.shape[-2:])), xp.broadcast_to(t, batch)


def _one(s: Any, t: Any) -> Any:
    """Return t as eigenvalues can meet it: a number, or one number a matrix."""
    return s[0][..., None] if s else t


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


# ---------------------------------------------------------------------- decompositions


def finite_or_identity(A: Array) -> tuple[Array, Array]:
    """Return A, the identity in place of matrices that are not finite, and which are finite.

    The latter as an array that meets A.
    """
    xp = namespace_of(A)
    # without an array of the size of A
    ends = xp.min(A, axis=(-2, -1), keepdims=True), xp.max(A, axis=(-2, -1), keepdims=True)
    finite = xp.logical_and(xp.isfinite(ends[0]), xp.isfinite(ends[1]))
    if not backend_of(A).hides_values(finite) and bool(xp.all(finite)):
        return A, finite
    return xp.where(finite, A, eye(A)), finite


def eigh(A: Array) -> tuple[Array, Array]:
    """Return eigenvalues and eigenvectors, NaN for a matrix that has one: LAPACK would raise."""
    xp = namespace_of(A)
    A, finite = finite_or_identity(symmetric(A))
    values, U = xp.linalg.eigh(A)
    return xp.where(finite[..., 0], values, xp.nan), U


def svd(A: Array) -> tuple[Array, Array, Array]:
    """Return P, c, Tᵀ of square matrices A = P c Tᵀ, c and T NaN for a matrix that has one."""
    xp = namespace_of(A)
    A, finite = finite_or_identity(A)
    P, c, Th = xp.linalg.svd(A, full_matrices=False)
    return P, xp.where(finite[..., 0], c, xp.nan), xp.where(finite, Th, xp.nan)


def differential(f: Spectral, A: Array, dA: Array, inverse: bool = False) -> Array:
    """Return the change of f(A) by that of A, all symmetric; or the change of A by that of f(A)."""
    values, U = eigh(A)
    quotients = _quotients(f, values, None)
    inner = congruence(transpose(U), dA)
    return congruence(U, inner / quotients if inverse else inner * quotients)


def cholesky(P: Array) -> Array:
    """Return the Cholesky factor of the symmetric part, NaN for a matrix that has one.

    NumPy and torch raise for the whole batch if one matrix is not positive definite: say which.
    They would look at the lower triangle only, and not see a NaN above it.
    """
    xp = namespace_of(P)
    P = symmetric(P)
    try:
        return xp.linalg.cholesky(P)
    except (np.linalg.LinAlgError, RuntimeError) as error:
        if backend_of(P).hides_values(P):
            raise
        safe, finite = finite_or_identity(P)
        if bool(xp.all(finite)):
            raise ValueError(_not_definite(P)) from error
    return xp.where(finite, cholesky(safe), xp.nan)


def solve(A: Array, b: Array) -> Array:
    """Return A⁻¹b for vectors b, NaN where A is singular: LAPACK would raise for the batch."""
    xp = namespace_of(A, b)
    try:
        return xp.linalg.solve(A, b[..., None])[..., 0]
    except (np.linalg.LinAlgError, RuntimeError):
        if backend_of(A).hides_values(A):
            raise
        singular = xp.linalg.slogdet(A)[0] == 0
        if not bool(xp.any(singular)):
            raise
    safe = xp.where(singular[..., None, None], eye(A), A)
    return xp.where(singular[..., None], xp.nan, solve(safe, b))


def _not_definite(P: Array) -> str:
    xp, shim = namespace_of(P), backend_of(P)
    values = shim.to_numpy(xp.linalg.eigvalsh(shim.stop_gradient(P)))
    ratio = values[..., 0] / values[..., -1]
    bad = (values[..., -1] <= 0) | (ratio <= P.shape[-1] * np.finfo(values.dtype).eps)
    first = int(np.argmax(bad)) if bad.any() else int(np.argmin(ratio))
    place = "the matrix" if P.ndim == 2 else f"matrix {first} of the batch"
    return (
        f"{place} is not positive definite: its smallest eigenvalue is "
        f"{values[..., 0].reshape(-1)[first]:.3g}; project it (manifold.project) or add to its "
        "diagonal"
    )


def logarithm(A: Array) -> Array:
    """Return the logarithm of SPD matrices; warn if one is singular up to rounding."""
    values, _ = known = eigh(backend_of(A).stop_gradient(A))
    eps = float(namespace_of(A).finfo(A.dtype).eps)
    warn_of_lost_digits(abs(eps * values[..., -1] / values[..., 0]))
    return symmetric(symmetric_functions(symmetric(A), LOG, known=known)[0])


def warn_of_lost_digits(error: Array) -> None:
    """Warn if rounding the input may change its smallest eigenvalue by more than a tenth.

    ``error`` is that relative change, one number per matrix. Nothing is said where values cannot
    be seen.
    """
    xp, shim = namespace_of(error), backend_of(error)
    if shim.hides_values(error):
        return
    error = shim.stop_gradient(error)
    lost = error > 0.1
    if not bool(xp.any(lost)):
        return
    count = int(xp.sum(xp.astype(lost, xp.int32)))
    worst = float(xp.max(xp.where(lost, error, 0.0)))
    warnings.warn(
        f"{count} of {math.prod(error.shape)} matrices are singular up to rounding in "
        f"{error.dtype}: the relative error of their smallest eigenvalue is up to {worst:.1g}, so "
        "distances and normal coordinates have no certain digit. Shrink the matrices towards a "
        "multiple of the identity, or use a wider dtype; for a distance, call dist(x, y) and not "
        "norm(relative(x, y))",
        PrecisionWarning,
        stacklevel=4,
    )


# ---------------------------------------------------------------------- small helpers


def transpose(A: Array) -> Array:
    """Return the transposed matrices."""
    return namespace_of(A).matrix_transpose(A)


def symmetric(A: Array) -> Array:
    """Return the symmetric part of A."""
    return 0.5 * (A + transpose(A))


def congruence(R: Array, A: Array) -> Array:
    """Return the symmetric matrix R A Rᵀ."""
    return symmetric(matmul(R, A, transpose(R)))


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


def pack(A: Array) -> Array:
    """Return symmetric matrices as vectors of the same norm."""
    return to_triangle(A, diagonal=True, weight=2.0**0.5)


def unpack(c: Array, n: int) -> Array:
    """Undo :func:`pack`."""
    return from_triangle(c, n, diagonal=True, weight=2.0**0.5, mirror=1.0)


def _constant(values: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return numbers, or indices, in the library and on the device of ``like``."""
    xp = namespace_of(like)
    dtype = like.dtype if values.dtype.kind == "f" else xp.int32
    return xp.asarray(values, dtype=dtype, device=device_of(like))
