"""Tests whether matrices are symmetric and positive definite, and projection to those that are."""

from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import surely
from gyrobn.numerics.decompositions import eigh, finite_or_identity, surely_definite
from gyrobn.numerics.linalg import symmetric_functions
from gyrobn.numerics.matrices import eye, kept_eye, symmetric, transpose
from gyrobn.numerics.spectra import Pairs
from gyrobn.numerics.spectral import Spectral
from gyrobn.numerics.triples import Triples

__all__ = ["Definite"]


class Definite:
    """What every geometry of symmetric positive definite n × n matrices has."""

    n: int
    _namespace: Callable[..., Any]

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
        self._namespace(x)
        return nearest(x)

    def violation(self, x: Array) -> Array:
        """Return the largest of asymmetry and lack of definiteness, relative to the size."""
        self._namespace(x)
        return violation(x)

    def contains(self, x: Array) -> Array:
        """Return whether matrices are symmetric and positive definite."""
        self._namespace(x)
        return contains(x)


def _definiteness(x: Array) -> tuple[Array, Array, Array]:
    """Return the smallest and the largest eigenvalue, and whether the smallest is too small.

    If no eigenvalue is positive, the largest absolute value is returned. A matrix that is not
    finite counts as the identity.
    """
    A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
    return _extremes(namespace_of(x).linalg.eigvalsh(A))


def _extremes(values: Array) -> tuple[Array, Array, Array]:
    """Return what :func:`_definiteness` does, from the eigenvalues."""
    xp = namespace_of(values)
    low, high = values[..., 0], values[..., -1]
    bad = low <= values.shape[-1] * float(xp.finfo(values.dtype).eps) * high
    return low, xp.where(high > 0, high, -low), bad


def contains(x: Array) -> Array:
    """Return which matrices have a :func:`violation` of at most √ε.

    If all matrices have a Cholesky factor, no eigenvalue is computed.
    """
    xp, shim = namespace_of(x), backend_of(x)
    some = float(xp.finfo(x.dtype).eps) ** 0.5
    if shim.hides_values(x):
        return violation(x) <= some
    x = shim.stop_gradient(x)
    same = bool(xp.all(x == transpose(x)))
    if not surely_definite(x if same else symmetric(x)):
        return violation(x) <= some
    small = xp.isfinite(2.0 * xp.linalg.trace(x))  # no entry is larger than the trace
    if same and surely(small):
        return small
    off, size = _asymmetry(x)
    return xp.logical_and(off <= some, xp.isfinite(2.0 * size))


def _asymmetry(x: Array) -> tuple[Array, Array]:
    """Return the asymmetry of each matrix relative to its largest entry, and that entry."""
    xp = namespace_of(x)
    size = xp.max(xp.abs(x), axis=(-2, -1))
    some = xp.where(size > 0, size, 1.0)
    return xp.max(xp.abs(x - transpose(x)), axis=(-2, -1)) / some, size


def violation(x: Array) -> Array:
    """Return the larger of the relative asymmetry and the lack of positive definiteness."""
    xp = namespace_of(x)
    low, _, bad = _definiteness(x)
    asymmetry, size = _asymmetry(x)
    some = xp.where(size > 0, size, 1.0)
    missing = 2.0 * xp.finfo(x.dtype).eps ** 0.5 + xp.abs(low) / some
    found = xp.maximum(asymmetry, xp.where(bad, missing, 0.0))
    return xp.where(xp.isfinite(2.0 * size), found, xp.inf)  # x + xᵀ must not overflow


def _floor_quotient(pairs: Pairs, t: Array) -> Array:
    """Return (max(x, t) − max(y, t))/(x − y)."""
    x, y = pairs.of("x")
    xp = namespace_of(x)
    high, low = xp.maximum(x, y), xp.minimum(x, y)
    across = xp.logical_and(high > t, low < t)
    part = (high - t) / xp.where(across, high - low, 1.0)
    return xp.where(across, part, xp.where(low >= t, 1.0, 0.0))


def _floor_second(p: Triples, t: Array) -> Array:
    """Return the quotient of those of max(x, t), which is not zero where t lies between."""
    xp = namespace_of(p.mean)
    low, high = xp.clip(t - p.low, min=0.0), xp.clip(p.high - t, min=0.0)
    above = p.middle >= t
    part = xp.where(above, low, high)
    gap = xp.where(above, p.middle - p.low, p.high - p.middle)
    across = xp.logical_and(low > 0, high > 0)
    return xp.where(across, part, 0.0) / xp.where(across, gap * (p.high - p.low), 1.0)


FLOOR = Spectral(
    lambda s, t: namespace_of(s.x).maximum(s.x, t),
    _floor_quotient,
    _floor_second,
    lambda s, t: namespace_of(s.x).where(s.x < t, 1.0 + 0.0 * s.x, 0.0),
)


def nearest(x: Array) -> Array:
    """Return the symmetric part; raise eigenvalues to √ε of the largest if one is too small."""
    xp = namespace_of(x)
    nothing = xp.max(xp.abs(x), axis=(-2, -1), keepdims=True) == 0
    A = xp.where(nothing, kept_eye(x), symmetric(x))
    known = eigh(backend_of(x).stop_gradient(A), exact=True)
    _, high, bad = _extremes(known.values)
    least = float(xp.finfo(x.dtype).eps) ** 0.5 * high
    (raised,) = symmetric_functions(A, FLOOR, t=least, known=known)
    return xp.where(bad[..., None, None], raised, A)
