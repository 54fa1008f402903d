r"""Fréchet mean and variance: one gyro-Newton loop for every geometry.

.. math:: c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i), \qquad g = \sum_i w_i c_i, \qquad
          \mu \leftarrow \mu \oplus \operatorname{Exp}_e(H^{-1} g)

with H the mean Hessian of half the squared distance, which has a closed form on a symmetric space.
A step that lowers neither the variance nor, where that no longer changes, the residual
:math:`\|g\|`, is taken back and tried again at a quarter of its length, so the loop cannot diverge.
Channels are solved together; one that is done stops moving.
"""

import math
import warnings
from typing import Any, NamedTuple

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.gyrospace import GyroSpace, Hessian, check_floating, scalars_like, weighted_sum
from gyrobn.scalar import safe_sqrt

__all__ = ["FrechetResult", "FrechetWarning", "frechet", "frechet_mean", "frechet_variance"]

DENSE = 128
"""Up to this dimension the Hessian is formed and solved; beyond, Chebyshev steps apply it."""


class FrechetWarning(UserWarning):
    """The mean did not converge, or the data need not have just one."""


class FrechetResult(NamedTuple):
    """What :func:`frechet` returns; every field but ``mean`` has the shape of the channels."""

    mean: Array
    """The Fréchet mean, shape (*channels, *point_shape)."""
    variance: Array
    """Mean squared distance to the mean."""
    iterations: Array
    """How many times the centred samples were computed for the channel."""
    residual: Array
    """Length of the gradient, the mean of the centred samples' normal coordinates."""
    converged: Array
    """Whether the residual met the tolerance, or the limit of the arithmetic."""


def frechet(
    manifold: GyroSpace,
    x: Array,
    weights: Array | None = None,
    axis: int | tuple[int, ...] = 0,
    tol: float | None = None,
    max_iter: int = 64,
    init: Array | None = None,
    steps: int | None = None,
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
        Take just so many Newton steps and no convergence test, as in the paper's experiments.

    Returns
    -------
    FrechetResult
        Mean, variance, iterations, residual, converged. The mean and the variance carry the exact
        first and second derivatives with respect to the samples, the weights and the curvature on
        torch and JAX, whatever the number of iterations was.

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
    samples, w = _arrange(manifold, x, weights, axis)
    if max_iter < 1 or (steps is not None and steps < 0):
        raise ValueError(
            f"max_iter must be at least 1 and steps at least 0, got {max_iter}, {steps}"
        )
    if init is not None:
        check_floating(x, init)
        wanted = (
            *samples.shape[1 : samples.ndim - len(manifold.point_shape)],
            *manifold.point_shape,
        )
        if tuple(init.shape) != wanted:
            raise ValueError(f"init must have shape {wanted}, got {tuple(init.shape)}")
    shim = backend_of(x)
    parameters = [getattr(manifold, name) for name in manifold.parameters]
    constant = manifold.detached()
    frozen = shim.stop_gradient(samples), shim.stop_gradient(w)

    result, radius = _solve(constant, *frozen, tol, max_iter, init, steps)
    if shim.differentiable(samples, w, *parameters):
        result = _differentiable(manifold, samples, w, constant, frozen, result)
    if not shim.hides_values(result.mean) and steps is None:
        _warn(constant, frozen[0], result, radius, max_iter)
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
    samples, w = _arrange(manifold, x, weights, axis)
    distance = manifold.dist(mean, samples)
    return namespace_of(x).sum(w * distance * distance, axis=0)


# ---------------------------------------------------------------------- the loop


class _State(NamedTuple):
    """Where the loop stands: the best mean so far, and the next one to try."""

    mean: Array
    variance: Array
    residual: Array
    far: Array
    """Squared distance of the farthest sample."""
    step: Array
    """From the mean to the trial, in normal coordinates at the mean."""
    gain: Array
    """How far the variance falls if it is quadratic along the step."""
    trial: Array
    count: Array
    done: Array
    """Whether the mean has converged; never where a number of steps was asked for."""


def _solve(
    manifold: GyroSpace,
    x: Array,
    w: Array,
    tol: float | None,
    max_iter: int,
    init: Array | None,
    steps: int | None,
) -> tuple[FrechetResult, Array]:
    """Run the loop on samples (N, *channels, *point_shape); also return the largest distance."""
    xp = namespace_of(x)
    eps = float(xp.finfo(x.dtype).eps)
    tol = 8.0 * eps if tol is None else tol
    point = (None,) * len(manifold.point_shape)

    def evaluate(mean: Array) -> tuple[Array, ...]:
        c = manifold.relative_normal(mean, x)
        g = weighted_sum(w, c)
        square = xp.sum(c * c, axis=-1)
        residual = safe_sqrt(xp.sum(g * g, axis=-1))
        return c, g, residual, xp.sum(w * square, axis=0), xp.max(square, axis=0)

    def newton(c: Array, g: Array) -> Array:
        hessian = manifold.hessian(c, w)
        return _inverse_times(manifold, hessian, g, rounds=8, floor=0.25)

    def body(state: tuple[Array, ...]) -> _State:
        now = _State(*state)
        c, g, residual, variance, far = evaluate(now.trial)
        # On a sphere the gradient also vanishes where the variance is largest, and grows on the way
        # down from there. So the variance decides, as long as the gain that the step promised can
        # be seen in it, and after that the gradient.
        seen = now.gain > eps**0.5 * now.variance
        lower = xp.logical_and(seen, variance <= now.variance - 0.1 * now.gain)
        level = variance <= now.variance * (1.0 + eps**0.5)
        better = xp.logical_or(lower, xp.logical_and(level, residual < now.residual))
        if steps is not None:
            better = xp.ones_like(better)
        take = xp.logical_and(better, xp.logical_not(now.done))
        mean = xp.where(take[(..., *point)], now.trial, now.mean)
        variance = xp.where(take, variance, now.variance)
        spread = safe_sqrt(variance)
        # a step that does not help, so close to the mean, only shows the rounding error
        floor = xp.logical_and(xp.logical_not(better), now.residual <= eps**0.5 * spread)
        residual = xp.where(take, residual, now.residual)
        done = now.done
        if steps is None:
            good = xp.logical_or(small(mean, variance, residual), floor)
            done = xp.logical_or(done, xp.logical_and(good, xp.isfinite(variance)))
        full = newton(c, g)
        step = xp.where(better[..., None], full, 0.25 * now.step)
        moved = manifold.project(manifold.relative(manifold.neg(mean), manifold.from_normal(step)))
        return _State(
            mean=mean,
            variance=variance,
            residual=residual,
            far=xp.where(take, far, now.far),
            step=step,
            gain=xp.where(better, xp.sum(g * full, axis=-1), 0.25 * now.gain),
            trial=xp.where(done[(..., *point)], mean, moved),
            count=now.count + xp.astype(xp.logical_not(now.done), now.count.dtype),
            done=done,
        )

    def small(mean: Array, variance: Array, residual: Array) -> Array:
        return residual <= xp.maximum(tol * safe_sqrt(variance), 8.0 * manifold.resolution(mean))

    start = manifold.start(x, w) if init is None else init
    channels = x.shape[1 : x.ndim - len(manifold.point_shape)]
    zero = xp.sum(w, axis=0) * 0.0
    state = _State(
        mean=start,
        variance=zero + xp.inf,
        residual=zero + xp.inf,
        far=zero,
        step=xp.broadcast_to(zero[..., None], (*channels, manifold.dim)),
        gain=zero,
        trial=start,
        count=xp.astype(zero, xp.int32),
        done=zero > 0,
    )
    limit = max_iter if steps is None else steps + 1
    loop = backend_of(x).while_loop
    state = _State(*loop(lambda s: xp.logical_not(xp.all(_State(*s).done)), body, state, limit))
    converged = state.done
    if steps is not None:
        converged = small(state.mean, state.variance, state.residual)
    known = xp.isfinite(state.residual)  # otherwise no evaluation was: there is nothing to return
    mean = xp.where(known[(..., *point)], state.mean, xp.nan)
    variance = xp.where(known, state.variance, xp.nan)
    return FrechetResult(mean, variance, state.count, state.residual, converged), xp.sqrt(state.far)


def _inverse_times(
    manifold: GyroSpace, hessian: Hessian, g: Array, rounds: int, floor: float
) -> Array:
    """Return H⁻¹g, linear in g: solved where H is small, by Chebyshev steps where it is large.

    Where an eigenvalue may fall below ``floor`` (samples beyond a hemisphere), H is shifted up.
    """
    xp = namespace_of(g)
    shift = xp.clip(floor - hessian.low, min=0.0)[..., None, None]
    b = g[..., None]
    if manifold.dim <= DENSE:
        eye = xp.eye(manifold.dim, dtype=g.dtype, device=device_of(g))
        matrix = hessian.apply(xp.broadcast_to(eye, (*g.shape, manifold.dim))) + shift * eye
        return xp.linalg.solve(matrix, b)[..., 0]
    low, high = hessian.low[..., None, None] + shift, hessian.high[..., None, None] + shift
    centre, half = 0.5 * (high + low), 0.5 * (high - low)
    x = b / centre
    step, factor = x, 2.0 * xp.ones_like(centre)
    for _ in range(rounds):
        factor = 1.0 / (1.0 - 0.25 * (half / centre) ** 2 * factor)
        rest = b - hessian.apply(x) - shift * x
        step = (factor - 1.0) * step + factor * rest / centre
        x = x + step
    return x[..., 0]


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
    xp = namespace_of(x)
    mean = result.mean
    hessian = constant.hessian(constant.relative_normal(mean, frozen[0]), frozen[1])
    for _ in range(2):
        g = weighted_sum(w, manifold.relative_normal(mean, x))
        step = _inverse_times(manifold, hessian, g, rounds=24, floor=1e-3)
        mean = manifold.relative(manifold.neg(mean), manifold.from_normal(step))
    distance = manifold.relative_normal(mean, x)
    variance = xp.sum(w * xp.sum(distance * distance, axis=-1), axis=0)
    return result._replace(mean=mean, variance=variance)


# ---------------------------------------------------------------------- input and warnings


def _arrange(
    manifold: GyroSpace, x: Array, weights: Array | None, axis: int | tuple[int, ...]
) -> tuple[Array, Array]:
    """Return samples (N, *channels, *point_shape) and weights (N, *channels) that sum to one."""
    xp = manifold._namespace(x)
    batch = x.shape[: x.ndim - len(manifold.point_shape)]
    if not batch:
        raise ValueError(
            f"expected a batch of points, shape (N, ..., {manifold.point_shape}), "
            f"got one point of shape {tuple(x.shape)}: add a batch axis, x[None]"
        )
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    for a in axes:
        if not -len(batch) <= a < len(batch):
            raise ValueError(
                f"axis {a} is not one of the {len(batch)} batch axes of an array of shape "
                f"{tuple(x.shape)} with points of shape {manifold.point_shape}"
            )
    axes = tuple(a % len(batch) for a in axes)
    if len(set(axes)) != len(axes) or not axes:
        raise ValueError(f"axis must name distinct batch axes, got {axis}")
    reduced = tuple(batch[a] for a in axes)
    if 0 in batch:
        raise ValueError(f"an empty batch has no mean: x has shape {tuple(x.shape)}")
    kept = tuple(a for a in range(len(batch)) if a not in axes)
    order = (*axes, *kept)
    channels = tuple(batch[a] for a in kept)
    count = math.prod(reduced)
    points = tuple(range(len(batch), x.ndim))
    samples = xp.reshape(
        xp.permute_dims(x, (*order, *points)), (count, *channels, *manifold.point_shape)
    )
    if weights is None:
        w = xp.full((count, *channels), 1.0 / count, dtype=x.dtype, device=device_of(x))
        return samples, w
    weights = scalars_like(weights, x)
    shape = tuple(getattr(weights, "shape", ()))  # a lone number weighs nothing in particular
    if shape == reduced:
        w = xp.reshape(weights, (count, *(1 for _ in channels)))
        w = xp.broadcast_to(w, (count, *channels))
    elif shape == tuple(batch):
        w = xp.reshape(xp.permute_dims(weights, order), (count, *channels))
    else:
        raise ValueError(
            f"weights must have the shape of the reduced axes, {reduced}, or of the whole batch, "
            f"{tuple(batch)}; got {shape}"
        )
    total = xp.sum(w, axis=0)
    if not backend_of(x).hides_values(w):
        bad = bool(xp.any(xp.logical_not(w >= 0))) or bool(xp.any(xp.logical_not(total > 0)))
        if bad or not bool(xp.all(xp.isfinite(total))):
            raise ValueError(
                "weights must be finite and non-negative, with a positive sum for every channel"
            )
    return samples, w / total


def _warn(manifold: GyroSpace, x: Array, result: FrechetResult, radius: Array, limit: int) -> None:
    """Say that the mean did not converge, or that there may be more than one."""
    xp = namespace_of(x)
    bad = xp.logical_not(result.converged)
    if bool(xp.any(bad)):
        count = int(xp.sum(xp.astype(bad, xp.int32)))
        worst = float(xp.max(xp.where(bad, result.residual, 0.0)))
        warnings.warn(
            f"the Fréchet mean on {manifold!r} did not converge in {limit} iterations "
            f"({count} of {math.prod(bad.shape)} channels, largest residual {worst:.2e}): "
            "raise max_iter or tol, check the data for NaN and for points off the manifold",
            FrechetWarning,
            stacklevel=3,
        )
    if bool(xp.any(radius >= manifold.convexity_radius)):
        radius = _enclosing_radius(manifold, x, result.mean)
        far = float(xp.max(radius))
        if far >= manifold.convexity_radius:
            warnings.warn(
                f"the samples on {manifold!r} need a ball of radius {far:.3f}, beyond the "
                f"{manifold.convexity_radius:.3f} within which a mean is sure to be unique: "
                "another mean may fit as well",
                FrechetWarning,
                stacklevel=3,
            )


def _enclosing_radius(manifold: GyroSpace, x: Array, centre: Array, rounds: int = 64) -> Array:
    """Return nearly the radius of the smallest ball around samples (Bădoiu and Clarkson).

    The centre moves towards the sample farthest from it, by ever smaller parts of the way.
    """
    xp = namespace_of(x)
    points = (None,) * len(manifold.point_shape)
    best = None
    for k in range(rounds):
        distance = manifold.dist(centre, x)
        radius = xp.max(distance, axis=0)
        best = radius if best is None else xp.minimum(best, radius)
        index = xp.argmax(distance, axis=0)[(None, ..., *points)]
        index = xp.broadcast_to(index, (1, *x.shape[1:]))
        farthest = xp.take_along_axis(x, index, axis=0)[0, ...]
        centre = manifold.project(manifold.geodesic(centre, farthest, 1.0 / (k + 2)))
    return best
