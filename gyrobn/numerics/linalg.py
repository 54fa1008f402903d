r"""Functions of matrices with derivatives that are exact and finite at repeated eigenvalues.

A function of a symmetric matrix, :math:`f(A) = U f(\Lambda) U^\top`, has the derivative

.. math:: df(A) = U\bigl(L \circ (U^\top dA\, U)\bigr)U^\top, \qquad
          L_{ij} = \frac{f(\lambda_i) - f(\lambda_j)}{\lambda_i - \lambda_j}

(Daleckii and Krein), where the derivatives of U and Λ on their own are infinite or arbitrary. The
quotients :math:`L` are computed without cancellation. Second derivatives are refused.
"""

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import broadcast_shapes, constant, weighted_gram
from gyrobn.numerics.spectral import LOG, Spectral, Spectrum

__all__ = [
    "Decomposition",
    "Eigen",
    "PrecisionWarning",
    "Singular",
    "again",
    "cholesky",
    "compose",
    "congruence",
    "constant",
    "diagonal_matrix",
    "differential",
    "eigh",
    "eye",
    "finite_or_identity",
    "framed_functions",
    "from_triangle",
    "kept_eye",
    "logarithm",
    "matmul",
    "mean_of_turned",
    "pack",
    "pair_sums",
    "polar",
    "solve",
    "spectrum_of",
    "surely_definite",
    "svd",
    "symmetric",
    "symmetric_functions",
    "to_triangle",
    "transpose",
    "unpack",
    "warn_of_lost_digits",
    "with_diagonal",
]


LAPACK_ERRORS = (np.linalg.LinAlgError, RuntimeError, ValueError)
"""What libraries raise for a matrix without a decomposition; dpnp's own error is a ValueError."""


class PrecisionWarning(UserWarning):
    """Matrices are so close to singular that their floats do not determine the result."""


class _Eigen(NamedTuple):
    values: Array
    vectors: Array


class _Singular(NamedTuple):
    left: Array
    values: Array
    right: Array


class Eigen(_Eigen):
    r"""What :func:`eigh` returns: :math:`A = U \operatorname{diag}(\lambda)\, U^\top`.

    Handed on as ``known``, it carries the tables of its eigenvalues from one function to the next.
    """

    @cached_property
    def _spectrum(self) -> Spectrum:
        return Spectrum(self.values)


class Singular(_Singular):
    """What :func:`svd` returns: A = P c Tᵀ, the last of them Tᵀ."""

    @cached_property
    def _spectrum(self) -> Spectrum:
        return Spectrum(self.values)


Decomposition = Eigen | Singular


def spectrum_of(known: Decomposition) -> Spectrum:
    """Return the eigenvalues, with the tables that were computed of them already.

    Where a transformation is under way (``jit``, ``vmap``, a compiler), nothing is kept from one
    function to the next: what is traced inside of one must not be seen by another.
    """
    if backend_of(known.values).plain(known.values):
        return known._spectrum
    return Spectrum(known.values)


# ---------------------------------------------------------------------- functions of matrices


def symmetric_functions(
    A: Array, *functions: Spectral, t: Any = None, known: Eigen | None = None
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
    >>> from gyrobn.numerics.spectral import power
    >>> A = np.asarray([[2.0, 1.0], [1.0, 2.0]])
    >>> root, back = symmetric_functions(A, power(0.5), power(-0.5))
    >>> bool(np.allclose(root @ root, A)), bool(np.allclose(root @ back, np.eye(2)))
    (True, True)
    """

    def primal(A: Array, *s: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        found = eigh(A) if known is None else known
        at, spectrum, U = _one(s, t), spectrum_of(found), found.vectors
        return tuple(compose(U, f.value(spectrum, at), U) for f in functions), (*found, *s)

    def tangent(kept: tuple[Array, ...], dA: Array, *ds: Array) -> tuple[Array, ...]:
        values, U, *s = kept
        change = matmul(transpose(U), dA if known else symmetric(dA), U)
        changes = _changes(functions, again(known, values), _one(s, t), change, ds)
        return tuple(matmul(U, d, transpose(U)) for d in changes)

    def cotangent(kept: tuple[Array, ...], *slopes: Array) -> tuple[Array, ...]:
        values, U, *s = kept
        inner = (matmul(transpose(U), slope, U) for slope in slopes)
        total, by_t = _slopes(functions, again(known, values), _one(s, t), inner, s)
        total = total if known else symmetric(total)
        return matmul(U, total, transpose(U)), *by_t

    rules = primal, tangent, cotangent
    return tuple(backend_of(A).with_derivative(*rules, *_inputs(A, t)))


def framed_functions(
    A: Array, known: Eigen, *functions: Spectral, t: Any = None
) -> tuple[Array, ...]:
    r"""Return :math:`f(A, t)\,U` for each of ``functions``, the eigenvectors U held constant.

    Its columns are :math:`f(\lambda_k)\,u_k`, so even the smallest has all its digits;
    :math:`U f(\Lambda) U^\top` mixes columns of different sizes and rounds to the largest. And it
    takes one product less.
    """

    def primal(A: Array, *s: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        at, spectrum, U = _one(s, t), spectrum_of(known), known.vectors
        return tuple(U * f.value(spectrum, at)[..., None, :] for f in functions), (*known, *s)

    def tangent(kept: tuple[Array, ...], dA: Array, *ds: Array) -> tuple[Array, ...]:
        values, U, *s = kept
        change = matmul(transpose(U), dA, U)
        changes = _changes(functions, again(known, values), _one(s, t), change, ds)
        return tuple(matmul(U, d) for d in changes)

    def cotangent(kept: tuple[Array, ...], *slopes: Array) -> tuple[Array, ...]:
        values, U, *s = kept
        inner = (matmul(transpose(U), slope) for slope in slopes)
        total, by_t = _slopes(functions, again(known, values), _one(s, t), inner, s)
        return matmul(U, symmetric(total), transpose(U)), *by_t

    rules = primal, tangent, cotangent
    return tuple(backend_of(A).with_derivative(*rules, *_inputs(A, t)))


def polar(A: Array, decompose: Callable[[Array], Singular] | None = None) -> Array:
    r"""Return the orthogonal factor W of A = C W, C symmetric.

    From a singular value decomposition :math:`A = P c T^\top` it is :math:`W = P T^\top`, and with
    :math:`E = P^\top dA\, T`

    .. math:: (P^\top dW\, T)_{ij} = \frac{E_{ij} - E_{ji}}{c_i + c_j} .

    A singular matrix has more than one orthogonal factor; one of them is returned. ``decompose``
    decides which: it takes the place of :func:`svd`.
    """
    decompose = decompose or svd

    def primal(A: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        found = decompose(A)
        return (matmul(found.left, found.right),), found

    def change(kept: tuple[Array, ...], change: Array) -> tuple[Array, ...]:
        """Return the change of W; the map is its own transpose."""
        P, c, Th = kept
        E = matmul(transpose(P), change, transpose(Th))
        return (matmul(P, (E - transpose(E)) / pair_sums(c), Th),)

    (W,) = backend_of(A).with_derivative(primal, change, change, A)
    return W


def again(known: Decomposition | None, values: Array) -> Spectrum:
    """Return the eigenvalues that a derivative was handed, with their tables if those are known."""
    if known is not None and backend_of(values).plain(values):
        return spectrum_of(known)
    return Spectrum(values)


def _changes(
    functions: Sequence[Spectral], spectrum: Spectrum, t: Any, change: Array, ds: Any
) -> Iterable[Array]:
    """Yield the changes of f(A, t) by that of A and by that of t, all in the eigenbasis of A."""
    for f in functions:
        inner = f.quotient(spectrum.pairs, _for_pairs(t)) * change
        if ds and f.slope is not None:
            inner = inner + diagonal_matrix(f.slope(spectrum, t) * ds[0][..., None])
        yield inner


def _slopes(
    functions: Sequence[Spectral], spectrum: Spectrum, t: Any, slopes: Iterable[Array], s: Any
) -> tuple[Any, tuple[Array, ...]]:
    """Transpose :func:`_changes`: return the slope by A, in its eigenbasis, and by t if given."""
    total: Any = None
    by_t = tuple(namespace_of(a).zeros_like(a) for a in s)
    for f, inner in zip(functions, slopes, strict=True):
        product = f.quotient(spectrum.pairs, _for_pairs(t)) * inner
        total = product if total is None else total + product
        if by_t and f.slope is not None:
            xp = namespace_of(inner)
            along = xp.sum(f.slope(spectrum, t) * xp.linalg.diagonal(inner), axis=-1)
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


def _for_pairs(t: Any) -> Any:
    """Return t as pairs of eigenvalues can meet it."""
    return t if t is None or isinstance(t, (int, float)) else t[..., None]


def pair_sums(c: Array) -> Array:
    """Return c_i + c_j, not zero: a singular matrix has no derivative, but no NaN either."""
    xp = namespace_of(c)
    least = float(xp.finfo(c.dtype).eps)
    return xp.clip(c[..., :, None] + c[..., None, :], min=least)


def compose(U: Array, values: Array, V: Array) -> Array:
    """Return U diag(values) Vᵀ."""
    return matmul(U * values[..., None, :], transpose(V))


def diagonal_matrix(values: Array) -> Array:
    """Return the matrices with these values on the diagonal."""
    return values[..., None] * kept_eye(values)


# ---------------------------------------------------------------------- decompositions


def finite_or_identity(A: Array) -> tuple[Array, Array]:
    """Return A with the identity in place of matrices that are not finite, and which are finite.

    No value is looked at: on a GPU that would wait for all that was computed before.
    """
    finite = _finite(A)
    return namespace_of(A).where(finite, A, kept_eye(A)), finite


def _finite(A: Array) -> Array:
    xp = namespace_of(A)
    return xp.max(xp.abs(A), axis=(-2, -1), keepdims=True) < xp.inf  # NaN is not less


def eigh(A: Array, exact: bool = False) -> Eigen:
    """Return eigenvalues and eigenvectors, the eigenvalues NaN for a matrix that is not finite.

    LAPACK would raise for the whole batch, or not return. ``exact`` says that A is symmetric but
    for rounding; of others the symmetric part is taken.
    """
    xp = namespace_of(A)
    A = A if exact else symmetric(A)
    finite = _finite(A)
    values, U = xp.linalg.eigh(xp.where(finite, A, 0.0))
    return Eigen(xp.where(finite[..., 0], values, xp.nan), U)


def svd(A: Array) -> Singular:
    """Return P, c, Tᵀ of square matrices A = P c Tᵀ, c and T NaN for a matrix that has one."""
    xp = namespace_of(A)
    A, finite = finite_or_identity(A)
    P, c, Th = xp.linalg.svd(A, full_matrices=False)
    return Singular(P, _or_nan(finite[..., 0], c), _or_nan(finite, Th))


def _or_nan(good: Array, x: Array) -> Array:
    return namespace_of(x).where(good, x, np.nan)


def differential(f: Spectral, A: Array, dA: Array, inverse: bool = False) -> Array:
    """Return the change of f(A) by that of A, all symmetric; or the change of A by that of f(A)."""
    values, U = eigh(A)
    quotients = f.quotient(Spectrum(values).pairs, None)
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
    except LAPACK_ERRORS as error:
        if backend_of(P).hides_values(P):
            raise
        safe, finite = finite_or_identity(P)
        if bool(xp.all(finite)):
            raise ValueError(_not_definite(P)) from error
    return _or_nan(finite, cholesky(safe))


def surely_definite(A: Array) -> bool:
    r"""Tell whether all symmetric matrices are positive definite, by more than rounding decides.

    It takes one Cholesky factorization, an eighth of what eigenvalues take. False says nothing:
    one matrix may be indefinite, or nearly singular. If the factor of :math:`A - \delta I`
    exists, :math:`\delta = 2(n + 1)\varepsilon\operatorname{tr} A`, the smallest eigenvalue of A is
    above :math:`n\varepsilon` times the largest: the factor is that of a matrix within
    :math:`(n + 1)\varepsilon\operatorname{tr} A` (Higham, *Accuracy and Stability*, theorem 10.3).
    """
    xp, n = namespace_of(A), A.shape[-1]
    if not _tells_of_indefinite(A):
        return False
    less = 2.0 * (n + 1) * float(xp.finfo(A.dtype).eps) * xp.linalg.trace(A)
    try:
        factor = xp.linalg.cholesky(A - less[..., None, None] * kept_eye(A))
    except LAPACK_ERRORS:
        return False
    return bool(xp.all(xp.isfinite(factor[..., -1, -1])))


_telling: dict[Any, bool] = {}


def _tells_of_indefinite(like: Array) -> bool:
    """Tell whether the library raises, or returns NaN, for a matrix without a Cholesky factor."""
    xp = namespace_of(like)
    if xp.__name__ not in _telling:
        minus = -kept_eye(like, 2)
        try:
            found = bool(xp.all(xp.isnan(xp.linalg.cholesky(minus))))
        except LAPACK_ERRORS:
            found = True
        _telling[xp.__name__] = found
    return _telling[xp.__name__]


def solve(A: Array, b: Array) -> Array:
    """Return A⁻¹b for vectors b, NaN where A is singular: LAPACK would raise for the batch."""
    xp = namespace_of(A, b)
    try:
        return xp.linalg.solve(A, b[..., None])[..., 0]
    except LAPACK_ERRORS:
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
    return reduce(operator.matmul, factors)  # matmul of array_api_compat looks at dtypes first


def eye(like: Array, n: int | None = None) -> Array:
    """Return the n × n identity, in the library, dtype and device of ``like``."""
    size = like.shape[-1] if n is None else n
    # not eye of array_api_compat, which on torch writes into zeros: a graph for ONNX cannot
    return namespace_of(like).astype(constant(_on_diagonal, like, size), like.dtype)


def _eye(n: int) -> "np.ndarray[Any, Any]":
    return np.eye(n)


def kept_eye(like: Array, n: int | None = None) -> Array:
    """Return the identity as :func:`eye` does, as a constant that must not reach a user."""
    return constant(_eye, like, like.shape[-1] if n is None else n)


def _on_diagonal(n: int) -> "np.ndarray[Any, Any]":
    return np.eye(n) > 0


def with_diagonal(A: Array, value: float) -> Array:
    """Return A with ``value`` on the diagonal."""
    one = kept_eye(A)
    diagonal = constant(_on_diagonal, A, A.shape[-1])
    return namespace_of(A).where(diagonal, one if value == 1.0 else value * one, A)


def to_triangle(A: Array, diagonal: bool, weight: float = 1.0) -> Array:
    """Return the lower triangle of A as vectors, row by row, times ``weight`` off the diagonal.

    With weight √2 and the diagonal, the vectors of symmetric matrices have their Frobenius norm.
    """
    xp = namespace_of(A)
    n = A.shape[-1]
    flat = xp.reshape(A, (*A.shape[:-2], n * n))
    entries = backend_of(A).take(flat, constant(_triangle, A, n, diagonal))
    if diagonal and weight != 1.0:
        return entries * constant(_triangle_weights, A, n, weight)
    return entries if weight == 1.0 else weight * entries


def _triangle(n: int, diagonal: bool) -> "np.ndarray[Any, Any]":
    """Return where the entries of a lower triangle are, in a flat matrix."""
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    return (rows * n + columns).astype(np.int32)


def _triangle_weights(n: int, weight: float) -> "np.ndarray[Any, Any]":
    rows, columns = np.tril_indices(n)
    return np.where(rows == columns, 1.0, weight)


def from_triangle(
    c: Array, n: int, diagonal: bool, weight: float = 1.0, mirror: float = 0.0
) -> Array:
    """Undo :func:`to_triangle`; the upper triangle is ``mirror`` times the lower one."""
    xp = namespace_of(c)
    entries = backend_of(c).take(c, constant(_places, c, n, diagonal))
    factors = constant(_factors, c, n, diagonal, weight, mirror)
    return xp.reshape(entries * factors, (*c.shape[:-1], n, n))


def _places(n: int, diagonal: bool) -> "np.ndarray[Any, Any]":
    """Return where the entries of a flat matrix are in its lower triangle."""
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    place = np.zeros((n, n), dtype=np.int32)
    place[columns, rows] = place[rows, columns] = np.arange(len(rows))
    return place.reshape(-1)


def _factors(n: int, diagonal: bool, weight: float, mirror: float) -> "np.ndarray[Any, Any]":
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    factor = np.zeros((n, n))
    factor[columns, rows] = mirror / weight
    factor[rows, columns] = 1.0 / weight
    if diagonal:
        np.fill_diagonal(factor, 1.0)
    return factor.reshape(-1)


def pack(A: Array) -> Array:
    """Return symmetric matrices as vectors of the same norm."""
    return to_triangle(A, diagonal=True, weight=2.0**0.5)


def unpack(c: Array, n: int) -> Array:
    """Undo :func:`pack`."""
    return from_triangle(c, n, diagonal=True, weight=2.0**0.5, mirror=1.0)


def mean_of_turned(K: Array, U: Array, weights: Array) -> Array:
    r"""Return the weighted sum of :math:`V \mapsto U(K \circ (U^\top V U))U^\top` as a matrix.

    It acts on packed V. Shapes are (N, *channels, n, n), K symmetric, and (N, *channels). It is
    :math:`\sum_i w_i T_i^\top \operatorname{diag}(K_i)\,T_i` with T the inner products of the
    :math:`E_{kl}` and the :math:`U^\top E_{ij} U`, for the basis E that packing stands for.
    """
    shim, n = backend_of(U), U.shape[-1]
    d = n * (n + 1) // 2
    sides = constant(_sides, U, n)
    some = shim.take(transpose(shim.take(U, sides)), sides)
    # E has 1/√2 twice off the diagonal: T is half of this, times √2 for each of ij and kl there
    T = some[..., :d, :d] * some[..., d:, d:] + some[..., :d, d:] * some[..., d:, :d]
    heavy = weights[..., None] * to_triangle(K, diagonal=True, weight=2.0)
    return weighted_gram(heavy, T) * constant(_quarters, U, n)


def _sides(n: int) -> "np.ndarray[Any, Any]":
    """Return the rows of the entries of a lower triangle, and then their columns."""
    return np.concatenate(np.tril_indices(n)).astype(np.int32)


def _quarters(n: int) -> "np.ndarray[Any, Any]":
    factors = _triangle_weights(n, 2.0**0.5)
    return np.asarray(0.25 * factors[:, None] * factors)
