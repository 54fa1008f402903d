r"""Fréchet mean and variance, with exact derivatives.

:mod:`gyrobn.newton` finds the mean with gradients stopped; here it gets its derivatives, which do
not depend on how it was found.
"""

from typing import Any

from gyrobn.arrays import check_floating, weighted_sum
from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.gyrospace import GyroSpace
from gyrobn.newton import FrechetResult, is_small, solve
from gyrobn.samples import arrange
from gyrobn.scalar import safe_sqrt
from gyrobn.uniqueness import FrechetWarning, warn

__all__ = ["FrechetResult", "FrechetWarning", "frechet", "frechet_mean", "frechet_variance"]


def frechet(
    manifold: GyroSpace,
    x: Array,
    weights: Array | None = None,
    axis: int | tuple[int, ...] = 0,
    tol: float | None = None,
    max_iter: int = 64,
    init: Array | None = None,
    steps: int | None = None,
    mean_gradient: str = "implicit",
) -> FrechetResult:
    r"""Find the Fréchet mean and variance of samples on a manifold.

    .. math:: \mu = \operatorname{argmin}_y \sum_i w_i d^2(x_i, y), \qquad
              v^2 = \sum_i w_i d^2(x_i, \mu)

    Parameters
    ----------
    manifold
        The geometry of the points.
    x
        Samples, shape ``(*batch, *point_shape)``. Batch axes that are not reduced are channels.
    weights
        Non-negative weights, of the shape of the reduced axes or of the whole batch; they are
        divided by their sum. Equal by default.
    axis
        The batch axis, or axes, to average over.
    tol
        Largest residual, relative to the square root of the variance; 8 ulp by default.
    max_iter
        Most evaluations; a warning tells when they do not suffice.
    init
        Where to start, shape ``(*channels, *point_shape)``.
    steps
        Take just so many Newton steps and no convergence test, as in the paper's experiments. The
        derivative is then that of the last step, from where the others led.
    mean_gradient
        ``"implicit"``: the mean has its exact derivative. ``"detach"``: it is a constant, and the
        variance has the derivative of the mean squared distance to it.

    Returns
    -------
    FrechetResult
        Mean, variance, iterations, residual, converged. The mean and the variance carry the exact
        first and second derivatives with respect to the samples, the weights and the curvature on
        torch and JAX, whatever the number of iterations was. (Where a geometry uses functions of
        matrices, the second derivative raises an error.)

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(2)
    >>> x = np.asarray([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5], [0.0, -0.5]])
    >>> result = frechet(M, x)
    >>> bool(abs(result.mean).max() < 1e-15), bool(result.converged)
    (True, True)
    >>> round(float(result.variance), 12)
    1.206948960813
    """
    samples, w = arrange(manifold, x, weights, axis)
    if max_iter < 1 or (steps is not None and steps < 0):
        raise ValueError(
            f"max_iter must be at least 1 and steps at least 0, got {max_iter}, {steps}"
        )
    if mean_gradient not in ("implicit", "detach"):
        raise ValueError(f"mean_gradient must be 'implicit' or 'detach', got {mean_gradient!r}")
    if init is not None:
        check_floating(x, init)
        wanted = (
            *samples.shape[1 : samples.ndim - len(manifold.point_shape)],
            *manifold.point_shape,
        )
        if tuple(init.shape) != wanted:
            raise ValueError(f"init must have shape {wanted}, got {tuple(init.shape)}")
    shim = backend_of(x)
    space, y = manifold.inside, manifold.to_inside(samples)
    constant = space.detached()
    frozen = shim.stop_gradient(y), shim.stop_gradient(w)
    start = None if init is None else shim.stop_gradient(manifold.to_inside(init))
    slopes = shim.differentiable(y, w, *space.learnable())
    implicit = slopes and mean_gradient == "implicit"
    if steps is not None and implicit:
        result = _last_step(space, y, w, constant, frozen, tol, start, steps)
    else:
        result, radius = solve(constant, *frozen, tol, max_iter, start, steps)
        if not shim.hides_values(result.mean) and steps is None:
            warn(manifold, constant, frozen[0], result, radius, max_iter)
        if implicit:
            result = _differentiable(space, y, w, constant, frozen, result)
        elif slopes:
            mean = _onto(space, constant, result.mean)
            variance = _variance(space, space.relative_normal(mean, y), w)
            result = result._replace(variance=variance)
    result = result._replace(mean=manifold.from_inside(result.mean))
    if len(manifold.blocks) == 1:
        result = result._replace(variance=result.variance[..., 0])
    return result


def frechet_mean(
    manifold: GyroSpace, x: Array, weights: Array | None = None, **options: Any
) -> Array:
    """Return only the mean: see :func:`frechet` for the options."""
    return frechet(manifold, x, weights, **options).mean


def frechet_variance(
    manifold: GyroSpace,
    x: Array,
    mean: Array | None = None,
    weights: Array | None = None,
    axis: int | tuple[int, ...] = 0,
) -> Array:
    """Return the mean squared distance of samples to ``mean``, the Fréchet mean by default.

    Parameters
    ----------
    manifold, x, weights, axis
        As in :func:`frechet`.
    mean
        Point to measure from, shape ``(*channels, *point_shape)``.
    """
    if mean is None:
        return frechet(manifold, x, weights, axis).variance
    samples, w = arrange(manifold, x, weights, axis)
    if len(manifold.blocks) == 1:
        distance = manifold.dist(mean, samples)
        return namespace_of(x).sum(w * distance * distance, axis=0)
    return _variance(manifold, manifold.relative_normal(mean, samples), w)


def _variance(manifold: GyroSpace, c: Array, w: Array) -> Array:
    """Return the mean square of centred normal coordinates, a block at a time."""
    return namespace_of(c).sum(w[..., None] * manifold.by_block(c * c), axis=0)


# ---------------------------------------------------------------------- derivatives


def _onto(manifold: GyroSpace, constant: GyroSpace, mean: Array) -> Array:
    """Return the mean, which is a constant, as the point it is at the learnable curvature.

    The points of some models move when the curvature changes.
    """
    return mean if manifold is constant else manifold.project(mean)


def _differentiable(
    manifold: GyroSpace,
    x: Array,
    w: Array,
    constant: GyroSpace,
    frozen: tuple[Array, Array],
    result: FrechetResult,
) -> FrechetResult:
    """Give the converged mean its derivatives: two Newton steps from it, H held constant.

    The steps hardly change the value. Under a perturbation δ of the data the first leaves an error
    of order δ², the second of order δ³: so the derivatives of order one and two are exact.
    """
    mean = _onto(manifold, constant, result.mean)
    hessian = constant.hessian(constant.relative_normal(result.mean, frozen[0]), frozen[1])
    for _ in range(2):
        g = weighted_sum(w, manifold.relative_normal(mean, x))
        step = hessian.solve(g, exact=True)
        mean = manifold.relative(manifold.neg(mean), manifold.from_normal(step))
    variance = _variance(manifold, manifold.relative_normal(mean, x), w)
    return result._replace(mean=mean, variance=variance)


def _last_step(
    manifold: GyroSpace,
    x: Array,
    w: Array,
    constant: GyroSpace,
    frozen: tuple[Array, Array],
    tol: float | None,
    init: Array | None,
    steps: int,
) -> FrechetResult:
    """Take all steps but one as constants, and that one, H held constant, with its derivative."""
    xp, stop_gradient = namespace_of(x), backend_of(x).stop_gradient
    if steps == 0:
        mean = manifold.start(x, w) if init is None else init
    else:
        if steps > 1:
            mean = solve(constant, *frozen, tol, 1, init, steps - 1)[0].mean
        else:
            mean = constant.start(*frozen) if init is None else init
        mean = _onto(manifold, constant, mean)
        c = manifold.relative_normal(mean, x)
        hessian = constant.hessian(stop_gradient(c), frozen[1])
        step = hessian.solve(weighted_sum(w, c), exact=False)
        mean = manifold.relative(manifold.neg(mean), manifold.from_normal(step))
    c = manifold.relative_normal(mean, x)
    g = weighted_sum(w, c)
    residual, variance = safe_sqrt(manifold.by_block(g * g)), _variance(manifold, c, w)
    converged = xp.all(is_small(manifold, mean, variance, residual, tol), axis=-1)
    total = stop_gradient(safe_sqrt(xp.sum(residual * residual, axis=-1)))
    count = xp.full(total.shape, steps + 1, dtype=xp.int32, device=device_of(x))
    return FrechetResult(mean, variance, count, total, converged)
