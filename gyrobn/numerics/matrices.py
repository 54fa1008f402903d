"""Products, identities and triangles of matrices, and what to do with bad ones."""

from functools import reduce
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import eps_of, sum_of_products
from gyrobn.numerics.checks import warn_caller

LAPACK_ERRORS = (np.linalg.LinAlgError, RuntimeError, ValueError)
"""What libraries raise for a matrix without a decomposition; dpnp's own error is a ValueError."""


def adjoint(A: Array) -> Array:
    """Return the transposed matrices."""
    return namespace_of(A).matrix_transpose(A)


def symmetric(A: Array) -> Array:
    """Return the symmetric part of A."""
    return 0.5 * (A + adjoint(A))


def matmul(*factors: Array) -> Array:
    """Return the product of matrices, from left to right."""
    return reduce(namespace_of(factors[0]).matmul, factors)


def congruence(R: Array, A: Array) -> Array:
    """Return the symmetric matrix R A Rᵀ."""
    return symmetric(matmul(R, A, adjoint(R)))


def identity(like: Array) -> Array:
    """Return the identity matrix for vectors like ``like``; it must not reach a user."""
    return backend_of(like).cached(np.eye, like, like.shape[-1])


def eye(like: Array, n: int | None = None) -> Array:
    """Return the n × n identity, in the library, dtype and device of ``like``, for a user."""
    size = like.shape[-1] if n is None else n
    # not eye of array_api_compat, which on torch writes into zeros: a graph for ONNX cannot
    return namespace_of(like).astype(backend_of(like).cached(np.eye, like, size), like.dtype)


def diagonal_matrix(values: Array) -> Array:
    """Return the matrices with these values on the diagonal."""
    return values[..., None] * identity(values)


def with_diagonal(A: Array, value: float) -> Array:
    """Return A with ``value`` on the diagonal."""
    return A * (1.0 - identity(A)) + value * identity(A)


# ---------------------------------------------------------------------- triangles as vectors


def to_triangle(A: Array, diagonal: bool, weight: float = 1.0) -> Array:
    """Return the lower triangle of A as vectors, row by row, times ``weight`` off the diagonal.

    With weight √2 and the diagonal, the vectors of symmetric matrices have their Frobenius norm.
    """
    xp, n, cached = namespace_of(A), A.shape[-1], backend_of(A).cached
    flat = xp.reshape(A, (*A.shape[:-2], n * n))
    entries = xp.take(flat, cached(_triangle, A, n, diagonal), axis=-1)
    return entries * cached(_weights, A, n, diagonal, weight)


def _triangle(n: int, diagonal: bool) -> "np.ndarray[Any, Any]":
    """Return where the entries of a lower triangle are, in a flat matrix."""
    rows, columns = _lower(n, diagonal)
    return np.asarray(rows * n + columns, dtype=np.int32)


def _weights(n: int, diagonal: bool, weight: float) -> "np.ndarray[Any, Any]":
    rows, columns = _lower(n, diagonal)
    # np.where(…, 1.0, weight) would be float32 for torch.compile
    return np.asarray(weight ** np.asarray(rows != columns, dtype=float))


def _lower(n: int, diagonal: bool) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    return np.tril_indices(n, 0 if diagonal else -1)


def from_triangle(
    c: Array, n: int, diagonal: bool, weight: float = 1.0, mirror: float = 0.0
) -> Array:
    """Undo :func:`to_triangle`; the upper triangle is ``mirror`` times the lower one."""
    xp, cached = namespace_of(c), backend_of(c).cached
    entries = xp.take(c, cached(_places, c, n, diagonal), axis=-1)
    factors = cached(_factors, c, n, diagonal, weight, mirror)
    return xp.reshape(entries * factors, (*c.shape[:-1], n, n))


def _places(n: int, diagonal: bool) -> "np.ndarray[Any, Any]":
    """Return where the entries of a flat matrix are in its lower triangle."""
    rows, columns = _lower(n, diagonal)
    place = np.zeros((n, n), dtype=np.int32)
    place[columns, rows] = place[rows, columns] = np.arange(len(rows))
    return place.reshape(-1)


def _factors(n: int, diagonal: bool, weight: float, mirror: float) -> "np.ndarray[Any, Any]":
    row, column = np.indices((n, n))
    off = ((row > column) + mirror * (row < column)) / weight
    return np.asarray(off + diagonal * np.eye(n)).reshape(-1)


def pack(A: Array) -> Array:
    """Return symmetric matrices as vectors of the same norm."""
    return to_triangle(A, diagonal=True, weight=2.0**0.5)


def unpack(c: Array, n: int) -> Array:
    """Undo :func:`pack`."""
    return from_triangle(c, n, diagonal=True, weight=2.0**0.5, mirror=1.0)


def packed_operator(K: Array, U: Array) -> Array:
    r"""Return the sum of :math:`V \mapsto U(K \circ (U^\top V U))U^\top` as a matrix.

    It acts on packed V. Shapes are (N, *channels, n, n), and K is symmetric. Its value at
    :math:`e_c e_d^\top` has the entry :math:`Q_{ac,bd}` in row a and column b, where

    .. math:: Q = \sum_i P_i^\top K_i P_i, \qquad P_{k,ac} = U_{ak} U_{ck} .

    P has n rows, so Q takes fewer products than a sum over pairs of eigenvectors.
    """
    xp, n, cached = namespace_of(U), U.shape[-1], backend_of(U).cached
    d = n * (n + 1) // 2
    sides = xp.take(adjoint(U), cached(_sides, U, n), axis=-1)
    P = sides[..., :d] * sides[..., d:]
    Q = sum_of_products(matmul(K, P), P)
    flat = xp.reshape(Q, (*Q.shape[:-2], d * d))
    entries = xp.take(flat, cached(_exchanged, U, n), axis=-1)
    both = xp.reshape(entries, (*Q.shape[:-2], 2 * d, d))
    return (both[..., :d, :] + both[..., d:, :]) * cached(_halves, U, n)


def _sides(n: int) -> "np.ndarray[Any, Any]":
    """Return the rows of the entries of a lower triangle, and then their columns."""
    return np.concatenate(np.tril_indices(n)).astype(np.int32)


def _exchanged(n: int) -> "np.ndarray[Any, Any]":
    """Return where Q has, for each ab and cd, the entries of ac and bd, and then of ad and bc."""
    d, place = n * (n + 1) // 2, _places(n, True).reshape(n, n)
    rows, columns = np.tril_indices(n)
    a, b = rows[:, None], columns[:, None]
    pairs = (place[a, rows], place[b, columns]), (place[a, columns], place[b, rows])
    # Q is symmetric but for rounding errors, and what is made of it shall be exactly so
    flat = [np.minimum(p, q) * d + np.maximum(p, q) for p, q in pairs]
    return np.stack(flat).reshape(-1).astype(np.int32)


def _halves(n: int) -> "np.ndarray[Any, Any]":
    """Return 2fᵢfⱼ: packing stands for the basis f(eeᵀ + eeᵀ), f = 1/√2, or ½ on the diagonal."""
    factors = 0.5 * _weights(n, True, 2.0**0.5)
    return np.asarray(2.0 * factors[:, None] * factors)


# ---------------------------------------------------------------------- bad matrices


def finite_or_identity(A: Array) -> tuple[Array, Array]:
    """Return A with the identity in place of matrices that are not finite, and which are.

    It reads no value: on a GPU that would wait for everything computed before.
    """
    xp = namespace_of(A)
    finite = xp.max(xp.abs(A), axis=(-2, -1), keepdims=True) < xp.inf  # NaN is not less
    return xp.where(finite, A, identity(A)), finite


def solve(A: Array, b: Array) -> Array:
    """Return A⁻¹b. If one matrix is singular, LAPACK raises: then all get a rounding error more."""
    xp, A = namespace_of(A), finite_or_identity(A)[0]
    try:
        return xp.linalg.solve(A, b[..., None])[..., 0]
    except LAPACK_ERRORS:
        if backend_of(A).traced(A):
            raise
        size = xp.max(xp.abs(A), axis=(-2, -1), keepdims=True)
        A = A + 4.0 * eps_of(A) * size * identity(b)
        return xp.linalg.solve(A, b[..., None])[..., 0]


def cholesky(P: Array) -> Array:
    """Return the Cholesky factor of the symmetric part, NaN for a matrix that is not finite.

    NumPy and torch raise for the whole batch if one matrix is not positive definite: say which.
    They would look at the lower triangle only, and not see a NaN above it.
    """
    xp = namespace_of(P)
    P = symmetric(P)
    try:
        return xp.linalg.cholesky(P)
    except LAPACK_ERRORS as error:
        if backend_of(P).traced(P):
            raise
        safe, finite = finite_or_identity(P)
        if bool(xp.all(finite)):
            raise ValueError(_not_definite(P)) from error
    return xp.where(finite, cholesky(safe), xp.nan)


def _not_definite(P: Array) -> str:
    backend = backend_of(P)
    values = backend.to_numpy(namespace_of(P).linalg.eigvalsh(backend.stop_gradient(P)))
    ratio = values[..., 0] / values[..., -1]
    bad = (values[..., -1] <= 0) | (ratio <= P.shape[-1] * np.finfo(values.dtype).eps)
    first = int(np.argmax(bad)) if bad.any() else int(np.argmin(ratio))
    place = "the matrix" if P.ndim == 2 else f"matrix {first} of the batch"
    return (
        f"{place} is not positive definite: its smallest eigenvalue is "
        f"{values[..., 0].reshape(-1)[first]:.3g}; project it (manifold.project) or add to its "
        "diagonal"
    )


def surely_definite(A: Array) -> Array:
    r"""Return which symmetric matrices are positive definite, by more than rounding decides.

    It takes one Cholesky factorization, an eighth of what eigenvalues take. False says nothing: the
    matrix, or another one of the batch, may be indefinite or nearly singular. If the factor of
    :math:`A - \delta I` exists, :math:`\delta = 2(n + 1)\varepsilon\operatorname{tr} A`, the
    smallest eigenvalue of A is above :math:`n\varepsilon` times the largest: the factor is that of
    a matrix within :math:`(n + 1)\varepsilon\operatorname{tr} A` (Higham, *Accuracy and Stability*,
    theorem 10.3).
    """
    xp, n = namespace_of(A), A.shape[-1]
    less = 2.0 * (n + 1) * eps_of(A) * xp.linalg.trace(A)
    A = A - less[..., None, None] * identity(A)
    try:
        return xp.isfinite(xp.linalg.cholesky(A)[..., -1, -1])
    except LAPACK_ERRORS:
        return xp.zeros_like(less) > 0.0


class PrecisionWarning(UserWarning):
    """Matrices are so close to singular that their floats do not determine the result."""


def warn_of_lost_digits(error: Array) -> None:
    """Warn if rounding the input may change its smallest eigenvalue by more than a tenth.

    ``error`` is that relative change, one number per matrix. There is no warning where values
    cannot be read.
    """
    backend = backend_of(error)
    if backend.traced(error):
        return
    errors = backend.to_numpy(backend.stop_gradient(error))
    lost = errors[errors > 0.1]
    if not lost.size:
        return
    warn_caller(
        f"{lost.size} of {errors.size} matrices are singular up to rounding in {error.dtype}: the "
        f"relative error of their smallest eigenvalue is up to {lost.max():.1g}, so distances "
        "and normal coordinates have no certain digit. Shrink the matrices towards a multiple of "
        "the identity, or use a wider dtype; for a distance, call dist(x, y) and not "
        "norm(relative(x, y))",
        PrecisionWarning,
    )
