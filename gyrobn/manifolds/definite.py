"""Tests whether matrices are symmetric and positive definite, and projection to those that are."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import surely
from gyrobn.numerics.checks import warn_caller
from gyrobn.numerics.decompositions import (
    PrecisionWarning,
    eigh,
    factored,
    finite_or_identity,
    surely_definite,
)
from gyrobn.numerics.linalg import symmetric_functions
from gyrobn.numerics.matrices import eye, kept_eye, symmetric, transpose
from gyrobn.numerics.spectra import Pairs
from gyrobn.numerics.spectral import Spectral
from gyrobn.numerics.triples import Triples


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
        xp = self._namespace(x)
        nothing = xp.max(xp.abs(x), axis=(-2, -1), keepdims=True) == 0
        A = xp.where(nothing, kept_eye(x), symmetric(x))
        known = eigh(backend_of(x).stop_gradient(A), exact=True)
        low, high = known.values[..., 0], known.values[..., -1]
        least = float(xp.finfo(x.dtype).eps) ** 0.5 * xp.where(high > 0, high, -low)
        (raised,) = symmetric_functions(A, FLOOR, t=least, known=known)
        return xp.where(_singular(known.values)[..., None, None], raised, A)

    def violation(self, x: Array) -> Array:
        """Return the largest of asymmetry and lack of definiteness, relative to the size."""
        xp = self._namespace(x)
        A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
        values = xp.linalg.eigvalsh(A)
        asymmetry, size = _asymmetry(x)
        some = xp.where(size > 0, size, 1.0)
        missing = 2.0 * xp.finfo(x.dtype).eps ** 0.5 + xp.abs(values[..., 0]) / some
        found = xp.maximum(asymmetry, xp.where(_singular(values), missing, 0.0))
        return xp.where(xp.isfinite(2.0 * size), found, xp.inf)  # x + xᵀ must not overflow

    def contains(self, x: Array) -> Array:
        """Return which matrices have a :meth:`violation` of at most √ε.

        If all matrices have a Cholesky factor, no eigenvalue is computed; and none in a compiled
        program, where the factor decides: see :func:`has_factor`.
        """
        xp, shim = self._namespace(x), backend_of(x)
        some = float(xp.finfo(x.dtype).eps) ** 0.5
        if shim.hides_values(x):
            return has_factor(x)
        x = shim.stop_gradient(x)
        trace = xp.linalg.trace(x)  # no entry of a definite matrix is larger
        with np.errstate(all="ignore"):  # the exact test looks at what overflows
            gap = x - transpose(x)
            near = xp.abs(gap) <= (some / self.n * trace)[..., None, None]
            small = xp.isfinite(2.0 * trace)
            if surely(near) and surely(small) and surely_definite(x - 0.5 * gap):
                return small
        return self.violation(x) <= some


def has_factor(x: Array) -> Array:
    r"""Return which matrices are symmetric to √ε and positive definite, reading no value.

    A matrix counts as positive definite if :math:`A - n\varepsilon\max_{ij}|A_{ij}|\,I` has a
    Cholesky factor. That takes an eighth of the time of eigenvalues.
    """
    xp, n = namespace_of(x), x.shape[-1]
    eps = float(xp.finfo(x.dtype).eps)
    A, finite = finite_or_identity(backend_of(x).stop_gradient(x))
    asymmetry, size = _asymmetry(A)
    fine = xp.logical_and(asymmetry <= eps**0.5, xp.isfinite(2.0 * size))
    fine = xp.logical_and(fine, finite[..., 0, 0])
    A = xp.where(fine[..., None, None], symmetric(A), kept_eye(A))
    return xp.logical_and(fine, factored(A - (n * eps * size)[..., None, None] * kept_eye(A)))


def regular(manifold: Any, x: Array, finish: Callable[[Array], Array] | None = None) -> Array:
    """Return matrices that coordinates lead to, with a multiple of the identity added to singular
    ones, and warn of these.

    ``finish`` is applied to the sums.
    """
    xp, shim, n = namespace_of(x), backend_of(x), x.shape[-1]
    good = manifold.contains(x)
    if surely(good):
        return x
    eps, tiny = (float(v) for v in (xp.finfo(x.dtype).eps, xp.finfo(x.dtype).smallest_normal))
    least = n * eps
    finite = xp.max(xp.abs(x), axis=(-2, -1)) < xp.inf
    bad = xp.logical_and(xp.logical_not(good), finite)
    out = bad[..., None, None]
    safe = xp.where(out, x, kept_eye(x))
    size = xp.clip(xp.linalg.trace(shim.stop_gradient(safe)), min=tiny / eps)  # may underflow
    more = 8.0 * least * size
    raised = safe + more[..., None, None] * kept_eye(x)
    y = xp.where(out, raised if finish is None else finish(raised), x)
    if not shim.hides_values(bad) and bool(xp.any(bad)):
        values = np.linalg.eigvalsh(shim.to_numpy(shim.stop_gradient(safe)).astype(np.float64))
        low = values[..., 0]
        worst = (values[..., -1] / np.where(low > 0, low, np.nan)).max()
        worst = np.inf if np.isnan(worst) else worst  # rounding made one indefinite
        count = int(xp.sum(xp.astype(bad, xp.int32)))
        warn_caller(
            f"{count} of {math.prod(good.shape)} coordinates lead to matrices that are singular in "
            f"{x.dtype}: their condition number is up to {worst:.2g}, and the limit is "
            f"{1.0 / least:.2g}. {8.0 * least:.2g} of their trace was added to their diagonal; use "
            "smaller coordinates or a wider dtype",
            PrecisionWarning,
        )
    return y


def _singular(values: Array) -> Array:
    """Return whether the smallest eigenvalue is not positive, or vanishes beside the largest."""
    eps = float(namespace_of(values).finfo(values.dtype).eps)
    return values[..., 0] <= values.shape[-1] * eps * values[..., -1]


def _asymmetry(x: Array) -> tuple[Array, Array]:
    """Return the asymmetry of each matrix relative to its largest entry, and that entry."""
    xp = namespace_of(x)
    size = xp.max(xp.abs(x), axis=(-2, -1))
    some = xp.where(size > 0, size, 1.0)
    return xp.max(xp.abs(x - transpose(x)), axis=(-2, -1)) / some, size


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
