"""Symmetric positive definite matrices: which they are, and what to do where rounding ends them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import all_true
from gyrobn.numerics.checks import warn_caller
from gyrobn.numerics.hessian import identity
from gyrobn.numerics.matrices import (
    PrecisionWarning,
    adjoint,
    eye,
    finite_or_identity,
    matmul,
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
        return raised(A, float(xp.finfo(x.dtype).eps) ** 0.5)[0]

    def violation(self, x: Array) -> Array:
        """Return the largest of asymmetry and lack of definiteness, relative to the size."""
        xp = self._namespace(x)
        A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
        values = xp.linalg.eigvalsh(A)
        asymmetry, size = _asymmetry(x)
        missing = 2.0 * float(xp.finfo(x.dtype).eps) ** 0.5
        missing = missing + xp.abs(values[..., 0]) / xp.where(size > 0, size, 1.0)
        found = xp.maximum(asymmetry, xp.where(_singular(values), missing, 0.0))
        return xp.where(xp.isfinite(2.0 * size), found, xp.inf)  # x + xᵀ must not overflow

    def contains(self, x: Array) -> Array:
        """Return which matrices have a :meth:`violation` of at most √ε.

        If all matrices have a Cholesky factor, no eigenvalue is computed.
        """
        xp, some = self._namespace(x), float(namespace_of(x).finfo(x.dtype).eps) ** 0.5
        if not backend_of(x).traced(x):
            x = backend_of(x).stop_gradient(x)
            same = bool(xp.all(x == adjoint(x)))
            if surely_definite(x if same else symmetric(x)):
                small = xp.isfinite(2.0 * xp.linalg.trace(x))  # no entry is larger than the trace
                if same and all_true(small):
                    return small
                asymmetry, size = _asymmetry(x)
                return xp.logical_and(asymmetry <= some, xp.isfinite(2.0 * size))
        return self.violation(x) <= some


def _singular(values: Array) -> Array:
    """Return whether the smallest eigenvalue is not positive, or vanishes beside the largest."""
    return values[..., 0] <= _limit(values) * values[..., -1]


def _asymmetry(x: Array) -> tuple[Array, Array]:
    """Return the asymmetry of each matrix relative to its largest entry, and that entry."""
    xp = namespace_of(x)
    size = xp.max(xp.abs(x), axis=(-2, -1))
    some = xp.where(size > 0, size, 1.0)
    return xp.max(xp.abs(x - adjoint(x)), axis=(-2, -1)) / some, size


POSITIVE_PART = Spectral(
    lambda x: namespace_of(x).clip(x, min=0.0),
    lambda x: namespace_of(x).astype(x > 0, x.dtype),
    lambda x: 0.0 * x,
)
"""The function max(x, 0). Numbers of different signs are never close, so its kink does no harm."""


def raised(A: Array, floor: float) -> tuple[Array, Array]:
    """Return A with the eigenvalues of singular matrices raised, and which matrices are singular.

    They are raised to ``floor`` times the largest eigenvalue, which counts as a constant.
    """
    xp, (values, U) = namespace_of(A), eigh(A)
    low, high, singular = values[..., :1], values[..., -1:], _singular(values)
    least = floor * xp.where(high > 0, high, -low)
    level = least[..., None] * identity(A)
    above = matrix_function(A - level, POSITIVE_PART, Eigen(values - least, U))
    return xp.where(singular[..., None, None], symmetric(above) + level, A), singular


# ---------------------------------------------------------------------- coordinates that are large


def exponential(C: Array) -> Array:
    """Return exp C of symmetric matrices, clamped where it would be singular: see :func:`clamped`.

    Its eigenvalues are known before it is rounded. Those within rounding of the limit are clamped.
    """
    xp, (values, U) = namespace_of(C), eigh(C)
    top, limit = values[..., -1:], _limit(C)
    singular = values[..., 0] < top[..., 0] + math.log(2.0 * limit)
    if not all_true(xp.logical_not(singular)):
        _warn(singular, C)
        missing = xp.clip(top + math.log(8.0 * limit) - values, min=0.0)
        missing = xp.where(singular[..., None], missing, 0.0)
        C = C + matmul(U * missing[..., None, :], adjoint(U))
        values = values + missing
    return matrix_function(C, EXP, Eigen(values, U))


def clamped(x: Array, raise_to: Callable[[Array, float], tuple[Array, Array]] = raised) -> Array:
    """Return matrices whose condition number ends where their dtype does, and warn of the others.

    The eigenvalues of a matrix whose condition number exceeds 1/(nε) are raised to 8nε of the
    largest, as a ball ends a few digits before its boundary.
    """
    if surely_definite(backend_of(x).stop_gradient(x)):
        return x
    y, singular = raise_to(x, 8.0 * _limit(x))
    _warn(singular, x)
    return y


def _limit(x: Array) -> float:
    """Return the smallest quotient of eigenvalues that the dtype resolves."""
    eps: float = float(namespace_of(x).finfo(x.dtype).eps)
    return float(x.shape[-1] * eps)


def _warn(singular: Array, x: Array) -> None:
    xp, limit = namespace_of(x), _limit(x)
    if backend_of(singular).traced(singular) or not bool(xp.any(singular)):
        return
    count = int(xp.sum(xp.astype(singular, xp.int32)))
    warn_caller(
        f"{count} of {math.prod(singular.shape)} coordinates lead to matrices with a condition "
        f"number above {1.0 / limit:.2g}, which are singular in {x.dtype}: their lowest "
        f"eigenvalues were raised to {8.0 * limit:.2g} of the largest; use smaller coordinates or "
        "a wider dtype",
        PrecisionWarning,
    )
