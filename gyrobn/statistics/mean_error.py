r"""How far a mean that was not searched for to the end is from the Fréchet mean.

Half the Fréchet function, :math:`F(y) = \tfrac12 \sum_i w_i d^2(x_i, y)`, has the gradient −g at a
point m, :math:`g = \sum_i w_i \operatorname{Log}_m x_i`. If F has no second derivative below c
around m, its minimum μ satisfies

.. math:: d(m, \mu) \le \frac{\|g\|}c, \qquad 0 \le v^2(m) - v^2(\mu) \le \frac{\|g\|^2}c .

Where no curvature is positive, c = 1 everywhere. Elsewhere c depends on the distances.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import length, pieces, weighted_sum
from gyrobn.numerics.checks import host, warn_caller
from gyrobn.numerics.hessian import newton_step
from gyrobn.numerics.scalar import cotangent
from gyrobn.statistics.frechet import locate
from gyrobn.statistics.samples import arrange
from gyrobn.statistics.sources import learnt_of
from gyrobn.statistics.uniqueness import FrechetWarning, factors

MUCH = 0.1
"""A layer warns if the gradient is longer than this part of the standard deviation."""


class MeanError(NamedTuple):
    """What :func:`mean_error` returns; arrays of the shape of the channels."""

    distance: Array
    """The distance to the Fréchet mean is at most this."""
    variance: Array
    """The Fréchet variance is smaller by at most this part of the variance, which is never too
    small. On a geometry of several blocks there is one number per block."""
    sure: Array
    """Whether both are bounds. Otherwise they are estimates: the first Newton step."""


def mean_error(
    manifold: GyroSpace, x: Array, weights: Array | None = None, axis: Any = 0, **options: Any
) -> MeanError:
    r"""Return how far a mean of samples, by default the centroid, is from the Fréchet mean.

    With g the mean of the samples' normal coordinates, seen from the mean m that is asked about,

    .. math:: d(m, \mu) \le \|g\|, \qquad v^2(m) - \|g\|^2 \le v^2(\mu) \le v^2(m)

    on geometries without positive curvature: both are bounds, and take one pass over the samples.
    On spheres, Grassmannians and rotations ‖g‖ is divided by a lower bound c of the second
    derivatives of the Fréchet function around m. There is one if the samples lie within the
    geometry's ``convexity_radius`` of m, and then a mean lies as near as stated. If they do not,
    :math:`\|H^{-1} g\|` and :math:`g^\top H^{-1} g` are returned, as estimates.

    Normalization with m and :math:`v^2(m)` multiplies g by
    :math:`t = s/\sqrt{v^2(m) + \epsilon}`. So without positive curvature the mean of the output is
    at most :math:`t\,\|g\|` from the bias, and its variance is smaller than
    :math:`s^2 v^2(m)/(v^2(m) + \epsilon)` by at most the part that is returned.

    Parameters
    ----------
    manifold, x, weights, axis
        As in :func:`~gyrobn.frechet`.
    **options
        As in :func:`~gyrobn.frechet`: with ``steps`` the error after those steps is returned. Or
        ``mean="centroid"``, the default if no option is given.

    Returns
    -------
    MeanError
        Distance, variance (relative), sure. They are constants.

    Examples
    --------
    >>> from gyrobn import PoincareBall, batch_stats, mean_error
    >>> M = PoincareBall(2)
    >>> x = M.random(100, rng=0, spread=2.0)
    >>> off = mean_error(M, x)
    >>> centroid, mean = batch_stats(M, x, mean="centroid").mean, batch_stats(M, x).mean
    >>> bool(M.dist(centroid, mean) <= off.distance), bool(off.sure)
    (True, True)
    """

    def run(x: Array, weights: Array | None, options: dict[str, Any]) -> MeanError:
        samples, w = arrange(manifold, x, weights, axis)
        return measured(manifold, samples, w, **options)

    found: MeanError = backend_of(x).auto_sharded(run, x, weights, options or {"mean": "centroid"})
    return found


def measured(
    manifold: GyroSpace, x: Array, w: Array, at: Array | None = None, **options: Any
) -> MeanError:
    """Do what :func:`mean_error` does with samples from :func:`arrange`.

    If ``at`` is given, return the error of that point, which may be any.
    """
    stop, constant = backend_of(x).stop_gradient, manifold.detached()
    if any(backend_of(v).traced(v) for v in learnt_of(constant)[0]):
        raise ValueError(
            f"mean_error needs the curvature of {type(manifold).__name__} as a number, which a "
            "compiled or vectorized function hides: call it outside of jit, grad and vmap"
        )
    constant = constant.with_learnable([float(v) for v in constant.learnable()])
    if at is None:
        _, view = locate(constant, stop(x), stop(w), **options)
    else:
        view = constant.inside.centred(constant.to_inside(at), constant.to_inside(stop(x)))
    square, variance, sure = _errors(view.space, view.normal, stop(w))
    return MeanError(square**0.5, manifold.squeeze_blocks(variance), sure)


def _errors(space: GyroSpace, c: Array, w: Array) -> tuple[Array, Array, Array]:
    """Return the squared distance, the variance by block, and whether they are bounds."""
    xp, spaces = namespace_of(c), [factor for factor, _ in factors(space, space)]
    total, gaps, sure = 0.0, [], True
    for factor, own in zip(spaces, pieces(c, [f.dim for f in spaces]), strict=True):
        g, variance = weighted_sum(w, own), weighted_sum(w, factor.by_block(own * own))
        square, gap = xp.sum(g * g, axis=-1), factor.by_block(g * g)
        sure = xp.logical_and(xp.isfinite(square), sure)
        if factor.convexity_radius < math.inf:
            lowest, near = _convexity(factor, own, w, xp.sqrt(square))
            step = newton_step(factor.hessian(own, w), g, 1e-4)
            sure = xp.logical_and(sure, near)
            gap = xp.where(near, square / lowest, xp.sum(g * step, axis=-1))[..., None]
            square = xp.where(near, square / (lowest * lowest), xp.sum(step * step, axis=-1))
        total = total + square
        gaps.append(gap / xp.where(variance > 0, variance, 1.0))
    return total, xp.concat(gaps, axis=-1), sure


def _convexity(space: GyroSpace, c: Array, w: Array, r: Array) -> tuple[Array, Array]:
    r"""Return a lower bound of the second derivatives around a mean, and whether it is one.

    At a distance of at most D from the mean, a sample is at most ρ + D away, ρ the distance of the
    farthest. There they are at least :math:`h = a \cot a` with :math:`a = \tfrac\pi2 (\rho + D)/R`,
    R the convexity radius: no curvature is larger than :math:`(\pi/2R)^2`. If :math:`h D \ge r`, F
    rises on the sphere of radius D, so that a minimum lies inside it, not more than r/h away. D is
    twice what h at D = 0 asks for.
    """
    xp, R = namespace_of(c), space.convexity_radius
    far = xp.max(xp.where(w > 0, length(c), 0.0), axis=0)

    def h(reach: Array) -> Array:
        a = (0.5 * math.pi / R) * xp.clip(reach, max=R)
        return xp.clip(cotangent(a * a, 1), min=1e-6)

    at_mean = h(far)
    around = h(far + 2.0 * r / at_mean)
    return around, xp.logical_and(far + 2.0 * r / at_mean < R, 2.0 * around >= at_mean)


def tell_error(manifold: GyroSpace, *known: Any) -> None:
    """Warn of a centroid that is far from the mean, as ``tell`` of ``locate``."""
    *_, found, _ = known
    residual, variance = found.status()[0], host(found.variance)
    total = np.sum(variance, axis=-1)
    part = float(np.max(host(residual) / np.sqrt(np.where(total > 0, total, 1.0))))
    if part > MUCH:
        warn_caller(
            f"the centroid of a batch on {manifold!r} is not its Fréchet mean: the gradient there "
            f"is {part:.2g} standard deviations long, so the mean of the output is off by about as "
            "many, and its variance by the square. mean_error has the numbers; mean='frechet' has "
            "no such error",
            FrechetWarning,
        )
