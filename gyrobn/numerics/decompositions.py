"""Decompositions of matrices in which one bad matrix does not spoil the batch."""

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.checks import warn_caller
from gyrobn.numerics.matrices import eye, kept_eye, symmetric
from gyrobn.numerics.spectra import Spectrum

LAPACK_ERRORS = (np.linalg.LinAlgError, RuntimeError, ValueError)
"""What libraries raise for a matrix without a decomposition; dpnp's own error is a ValueError."""


class PrecisionWarning(UserWarning):
    """Matrices are so close to singular that their floats do not determine the result."""


class _Tables:
    """Keeps the :class:`Spectrum` of a decomposition, which :func:`spectrum_of` returns."""

    values: Array

    @cached_property
    def _spectrum(self) -> Spectrum:
        return Spectrum(self.values)


class _Eigen(NamedTuple):
    values: Array
    vectors: Array


class Eigen(_Eigen, _Tables):
    r"""What :func:`eigh` returns: :math:`A = U \operatorname{diag}(\lambda)\, U^\top`.

    Handed on as ``known``, it carries the tables of its eigenvalues from one function to the next.
    """


class _Singular(NamedTuple):
    left: Array
    values: Array
    right: Array


class Singular(_Singular, _Tables):
    """What :func:`svd` returns: A = P c Tᵀ, the last of them Tᵀ."""


def spectrum_of(known: Eigen | Singular) -> Spectrum:
    """Return the eigenvalues, with the tables that were computed of them already.

    Where a transformation is under way (``jit``, ``vmap``, a compiler), nothing is kept from one
    function to the next: what is traced inside of one must not be seen by another.
    """
    plain = backend_of(known.values).plain(known.values)
    return known._spectrum if plain else Spectrum(known.values)


def again(known: Eigen | Singular | None, values: Array) -> Spectrum:
    """Return the eigenvalues that a derivative was handed, with their tables if those are known."""
    if known is not None and backend_of(values).plain(values):
        return spectrum_of(known)
    return Spectrum(values)


def finite_or_identity(A: Array) -> tuple[Array, Array]:
    """Return A with the identity in place of matrices that are not finite, and which are finite.

    It reads no value: on a GPU that would wait for everything computed before.
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
    bad = xp.logical_not(_finite(A))
    values, U = xp.linalg.eigh(xp.where(bad, 0.0, A))
    return Eigen(xp.where(bad[..., 0], xp.nan, values), U)


def svd(A: Array) -> Singular:
    """Return P, c, Tᵀ of square matrices A = P c Tᵀ, c and T NaN for one that is not finite."""
    xp = namespace_of(A)
    A, finite = finite_or_identity(A)
    P, c, Th = xp.linalg.svd(A, full_matrices=False)
    return Singular(P, xp.where(finite[..., 0], c, xp.nan), xp.where(finite, Th, xp.nan))


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
        if backend_of(P).hides_values(P):
            raise
        safe, finite = finite_or_identity(P)
        if bool(xp.all(finite)):
            raise ValueError(_not_definite(P)) from error
    return xp.where(finite, cholesky(safe), xp.nan)


def surely_definite(A: Array) -> bool:
    r"""Return whether all symmetric matrices are positive definite, by more than rounding decides.

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


def factored(A: Array) -> Array:
    """Return which symmetric, finite matrices have a Cholesky factor, where values are traced."""
    linalg = namespace_of(A).linalg
    if hasattr(linalg, "cholesky_ex"):  # torch's cholesky would raise, in a compiled program too
        return linalg.cholesky_ex(A).info == 0
    return namespace_of(A).isfinite(linalg.cholesky(A)[..., -1, -1])


_telling: dict[Any, bool] = {}


def _tells_of_indefinite(like: Array) -> bool:
    """Return whether the library raises, or returns NaN, for a matrix without a Cholesky factor."""
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
    warn_caller(
        f"{count} of {math.prod(error.shape)} matrices are singular up to rounding in "
        f"{error.dtype}: the relative error of their smallest eigenvalue is up to {worst:.1g}, so "
        "distances and normal coordinates have no certain digit. Shrink the matrices towards a "
        "multiple of the identity, or use a wider dtype; for a distance, call dist(x, y) and not "
        "norm(relative(x, y))",
        PrecisionWarning,
    )
