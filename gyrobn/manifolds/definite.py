"""Symmetric positive definite matrices: which they are, and what to do where rounding ends them."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import all_true, decided
from gyrobn.numerics.checks import check_square, warn_caller
from gyrobn.numerics.matrices import (
    PrecisionWarning,
    adjoint,
    congruence,
    eye,
    finite_or_identity,
    identity,
    surely_definite,
    symmetric,
)
from gyrobn.numerics.matrix_functions import EXP, Eigen, Spectral, eigh, matrix_function


@dataclass(frozen=True)
class Definite(GyroSpace):
    """What every geometry of symmetric positive definite n × n matrices has."""

    n: int
    definite: ClassVar[bool] = True

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n, n)``."""
        return self.n, self.n

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the geometry whose points are the last two axes of ``shape``."""
        return cls(check_square("definite matrices are square, shape (..., n, n)", shape))

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n)

    def project(self, x: Array) -> Array:
        """Return the symmetric part, with eigenvalues raised if it is not positive definite.

        They are raised to √ε times the largest eigenvalue: 1e-8 of it in float64.
        """
        xp = self._namespace(x)
        zero = xp.max(xp.abs(x), axis=(-2, -1), keepdims=True) == 0
        A = xp.where(zero, identity(x), symmetric(x))
        eigen = eigh(A)
        return _raised(A, eigen, _singular(eigen.values), _half_of_the_digits(x))

    def violation(self, x: Array) -> Array:
        """Return the largest of asymmetry and lack of definiteness, relative to the size."""
        xp = self._namespace(x)
        A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
        values = xp.linalg.eigvalsh(A)
        asymmetry, size = self._asymmetry(x)
        missing = xp.abs(values[..., 0]) / xp.where(size > 0, size, 1.0)
        missing = xp.where(_singular(values), missing + 2.0 * _half_of_the_digits(x), 0.0)
        return xp.maximum(asymmetry, missing)

    def contains(self, x: Array) -> Array:
        """Return which matrices have a :meth:`violation` of at most √ε.

        If all matrices have a Cholesky factor, no eigenvalue is computed.
        """
        self._namespace(x)
        x = backend_of(x).stop_gradient(x)
        most, definite = _half_of_the_digits(x), surely_definite(symmetric(x))
        near = definite & (self._asymmetry(x)[0] <= most)
        return decided(near, lambda: self.violation(x) <= most)

    def _asymmetry(self, x: Array) -> tuple[Array, Array]:
        """Return the asymmetry of each matrix relative to its largest entry, and that entry.

        It is infinite if x + xᵀ is not finite.
        """
        xp = namespace_of(x)
        size = xp.max(xp.abs(x), axis=(-2, -1))
        off = xp.max(xp.abs(x - adjoint(x)), axis=(-2, -1)) / xp.where(size > 0, size, 1.0)
        return xp.where(xp.isfinite(2.0 * size), off, xp.inf), size


def _half_of_the_digits(x: Array) -> float:
    """Return √ε."""
    return math.sqrt(namespace_of(x).finfo(x.dtype).eps)


def _limit(x: Array) -> float:
    """Return the smallest quotient of eigenvalues that the dtype resolves."""
    return float(x.shape[-1] * namespace_of(x).finfo(x.dtype).eps)


def _singular(values: Array) -> Array:
    """Return whether the smallest eigenvalue is not positive, or vanishes beside the largest."""
    return values[..., 0] <= _limit(values) * values[..., -1]


POSITIVE_PART = Spectral(
    (
        lambda x: namespace_of(x).clip(x, min=0.0),
        lambda x: namespace_of(x).astype(x > 0, x.dtype),
        lambda x: 0.0 * x,
    )
)
"""The function max(x, 0). Numbers of different signs are never close, so its kink does no harm."""


def _raised(A: Array, eigen: Eigen, singular: Array, floor: float) -> Array:
    """Return A with the eigenvalues of singular matrices raised to a part of the largest one.

    That part counts as a constant.
    """
    xp, (values, U) = namespace_of(A), eigen
    low, high = values[..., :1], values[..., -1:]
    least = floor * xp.where(high > 0, high, -low)
    level = least[..., None] * identity(A)
    above = matrix_function(A - level, POSITIVE_PART, Eigen(values - least, U))
    return xp.where(singular[..., None, None], symmetric(above) + level, A)


def change_of_factor(L: Array, change: Array) -> Array:
    r"""Return :math:`L^{-1}dL` for the Cholesky factor L of a matrix P, from the change of P.

    It is the lower triangle of :math:`L^{-1}\,dP\,L^{-\top}`, its diagonal halved.
    """
    xp = namespace_of(L)
    return xp.tril(congruence(xp.linalg.inv(L), change)) * (1.0 - 0.5 * identity(L))


def exponential(C: Array) -> Array:
    """Return exp C of symmetric matrices, clamped before it is singular."""
    values, U = eigen = eigh(C)
    return clamped(matrix_function(C, EXP, eigen), Eigen(EXP.value(values), U))


def clamped(x: Array, eigen: Eigen | None = None) -> Array:
    """Return matrices whose condition number ends where their dtype does, and warn of the others.

    The eigenvalues of a matrix whose condition number is close to 1/(nε) are raised to 8nε of the
    largest, as a ball ends a few digits before its boundary. ``eigen`` is the decomposition of x
    before it was rounded, if it is known.
    """
    if eigen is None:
        if all_true(surely_definite(backend_of(x).stop_gradient(x))):
            return x
        eigen = eigh(x)
    xp, values, limit = namespace_of(x), eigen.values, _limit(x)
    low, high = values[..., 0], values[..., -1]
    singular = low <= 2.0 * limit * high
    if not backend_of(x).traced(x):
        if not bool(xp.any(singular)):
            return x
        condition = float(xp.max(xp.where(low > 0, high / xp.where(low > 0, low, 1.0), xp.inf)))
        warn_caller(
            f"{int(xp.sum(xp.astype(singular, xp.int32)))} of {math.prod(singular.shape)} "
            f"coordinates lead to matrices that are singular in {x.dtype}: their condition number "
            f"is up to {condition:.2g}, and the limit is {1.0 / limit:.2g}. Their lowest "
            f"eigenvalues were raised to {8.0 * limit:.2g} of the largest; use smaller coordinates "
            "or a wider dtype",
            PrecisionWarning,
        )
    return _raised(x, eigen, singular, 8.0 * limit)


def reduce_rank(x: Array) -> tuple[Array, Array]:
    r"""Reduce covariances that lack the same directions to the subspace they share.

    .. math:: C_i \mapsto W^\top C_i W

    W is an orthonormal basis of the range of the mean of all :math:`C_i`. After an average
    reference, an interpolated channel or ICA, the rank of the covariances of n channels is less
    than n, and they are points of ``SPD(r)``, r < n, only after this. Apply the same W to further
    samples: ``W.T @ x @ W``. It is a constant to differentiation; inside ``jit`` r is not known.

    Parameters
    ----------
    x
        Symmetric matrices, shape ``(..., n, n)``.

    Returns
    -------
    tuple
        The matrices of the subspace, ``(..., r, r)``, and W, ``(n, r)``.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import SPD, reduce_rank
    >>> centring = np.eye(4) - 0.25  # an average reference
    >>> x = centring @ SPD(4).random(10, rng=0) @ centring
    >>> y, W = reduce_rank(x)
    >>> y.shape, W.shape, bool(SPD(3).contains(y).all()), bool(np.allclose(W @ y @ W.T, x))
    ((10, 3, 3), (4, 3), True, True)
    """
    check_square("expected square matrices, shape (..., n, n)", x.shape)
    xp, n = namespace_of(x), x.shape[-1]
    total = xp.sum(xp.reshape(symmetric(x), (-1, n, n)), axis=0)
    values, U = eigh(backend_of(x).stop_gradient(total))
    rank = int(xp.sum(xp.astype(values > 10 * n * xp.finfo(x.dtype).eps * values[-1], xp.int32)))
    W = U[:, n - rank :]
    return congruence(adjoint(W), x), W
