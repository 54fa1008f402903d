r"""Fréchet mean and variance: one gyro-Newton loop for every geometry.

.. math:: c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i), \qquad g = \sum_i w_i c_i, \qquad
          \mu \leftarrow \mu \oplus \operatorname{Exp}_e(H^{-1} g)

with H the mean Hessian of half the squared distance, which has a closed form on a symmetric space.
A step that lowers neither the variance nor, where that no longer changes, the residual
:math:`\|g\|`, is taken back and tried again at a quarter of its length, so the loop cannot diverge.
Channels are solved together; one that is done stops moving.
"""

from typing import Any, NamedTuple

from gyrobn.arrays import check_floating, weighted_sum
from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.gyrospace import GyroSpace
from gyrobn.samples import arrange
from gyrobn.scalar import safe_sqrt
from gyrobn.uniqueness import FrechetWarning, warn

__all__ = ["FrechetResult", "FrechetWarning", "frechet", "frechet_mean", "frechet_variance"]


class FrechetResult(NamedTuple):
    """What :func:`frechet` returns; every field but ``mean`` has the shape of the channels.

    On a geometry of several blocks the variance has one entry a block, (*channels, blocks).
    """

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
        result, radius = _solve(constant, *frozen, tol, max_iter, start, steps)
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


# ---------------------------------------------------------------------- the loop


class _State(NamedTuple):
    """Where the loop stands: the best mean so far, and the next one to try."""

    mean: Array
    variance: Array
    """One a block, as is the residual: none may wait for the largest one to be small."""
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
    parts = manifold.parts(x) if init is None else manifold.parts(x, init)
    if len(parts) > 1:  # no factor waits for another
        found = [
            _solve(space, samples, w, tol, max_iter, begin[0] if begin else None, steps)
            for space, samples, *begin in parts
        ]
        return _join(manifold, found)
    xp = namespace_of(x)
    eps = float(xp.finfo(x.dtype).eps)
    point = (None,) * len(manifold.point_shape)

    def body(state: tuple[Array, ...]) -> _State:
        now = _State(*state)
        c = manifold.relative_normal(now.trial, x)
        g = weighted_sum(w, c)
        residual = safe_sqrt(manifold.by_block(g * g))
        squares = manifold.by_block(c * c)
        variance = xp.sum(w[..., None] * squares, axis=0)
        # On a sphere the gradient also vanishes where the variance is largest, and grows on the way
        # down from there. So the variance decides, as long as the gain that the step promised can
        # be seen in it, and after that the gradient.
        total, before = xp.sum(variance, axis=-1), xp.sum(now.variance, axis=-1)
        seen = now.gain > eps**0.5 * before
        lower = xp.logical_and(seen, total <= before - 0.1 * now.gain)
        level = total <= before * (1.0 + eps**0.5)
        small = _small(manifold, now.trial, variance, residual, tol)
        nearer = xp.all(xp.logical_or(residual < now.residual, small), axis=-1)
        better = xp.logical_or(lower, xp.logical_and(level, nearer))
        if steps is not None:
            better = xp.ones_like(better)
        take = xp.logical_and(better, xp.logical_not(now.done))
        mean = xp.where(take[(..., *point)], now.trial, now.mean)
        variance = xp.where(take[..., None], variance, now.variance)
        # a step that does not help, so close to the mean, only shows the rounding error
        close = xp.all(now.residual <= eps**0.5 * safe_sqrt(variance), axis=-1)
        floor = xp.logical_and(xp.logical_not(better), close)
        residual = xp.where(take[..., None], residual, now.residual)
        done = now.done
        if steps is None:
            good = xp.all(_small(manifold, mean, variance, residual, tol), axis=-1)
            good = xp.logical_and(
                xp.logical_or(good, floor), xp.all(xp.isfinite(variance), axis=-1)
            )
            done = xp.logical_or(done, good)
        full = manifold.hessian(c, w).solve(g, exact=False)
        step = xp.where(better[..., None], full, 0.25 * now.step)
        moved = manifold.project(manifold.relative(manifold.neg(mean), manifold.from_normal(step)))
        return _State(
            mean=mean,
            variance=variance,
            residual=residual,
            far=xp.where(take, xp.max(xp.sum(squares, axis=-1), axis=0), now.far),
            step=step,
            gain=xp.where(better, xp.sum(g * full, axis=-1), 0.25 * now.gain),
            trial=xp.where(done[(..., *point)], mean, moved),
            count=now.count + xp.astype(xp.logical_not(now.done), now.count.dtype),
            done=done,
        )

    start = manifold.start(x, w) if init is None else init
    channels = x.shape[1 : x.ndim - len(manifold.point_shape)]
    zero = xp.sum(w, axis=0) * 0.0
    zeros = xp.broadcast_to(zero[..., None], (*channels, len(manifold.blocks)))
    state = _State(
        mean=start,
        variance=zeros + xp.inf,
        residual=zeros + xp.inf,
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
        converged = xp.all(
            _small(manifold, state.mean, state.variance, state.residual, tol), axis=-1
        )
    residual = safe_sqrt(xp.sum(state.residual * state.residual, axis=-1))
    known = xp.isfinite(residual)  # otherwise no evaluation was: there is nothing to return
    mean = xp.where(known[(..., *point)], state.mean, xp.nan)
    variance = xp.where(known[..., None], state.variance, xp.nan)
    return FrechetResult(mean, variance, state.count, residual, converged), xp.sqrt(state.far)


def _join(
    manifold: GyroSpace, found: list[tuple[FrechetResult, Array]]
) -> tuple[FrechetResult, Array]:
    """Put the results of a product's factors together."""
    results, radii = zip(*found, strict=True)
    xp = namespace_of(radii[0])
    first, *rest = results
    count, converged, square, far = (
        first.iterations,
        first.converged,
        first.residual * first.residual,
        radii[0] * radii[0],
    )
    for result, radius in zip(rest, radii[1:], strict=True):
        count = xp.maximum(count, result.iterations)
        converged = xp.logical_and(converged, result.converged)
        square = square + result.residual * result.residual
        far = far + radius * radius
    mean = manifold.join(*(r.mean for r in results))
    variance = xp.concat([r.variance for r in results], axis=-1)
    return FrechetResult(mean, variance, count, xp.sqrt(square), converged), xp.sqrt(far)


def _onto(manifold: GyroSpace, constant: GyroSpace, mean: Array) -> Array:
    """Return the mean, which is a constant, as the point it is at the learnable curvature.

    The points of some models move when the curvature changes.
    """
    return mean if manifold is constant else manifold.project(mean)


def _small(
    manifold: GyroSpace, mean: Array, variance: Array, residual: Array, tol: float | None
) -> Array:
    """Tell, a block at a time, whether the residual meets the tolerance."""
    xp = namespace_of(mean)
    tol = 8.0 * float(xp.finfo(mean.dtype).eps) if tol is None else tol
    return residual <= xp.maximum(tol * safe_sqrt(variance), 8.0 * manifold.resolutions(mean))


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
            mean = _solve(constant, *frozen, tol, 1, init, steps - 1)[0].mean
        else:
            mean = constant.start(*frozen) if init is None else init
        c = manifold.relative_normal(mean, x)
        hessian = constant.hessian(stop_gradient(c), frozen[1])
        step = hessian.solve(weighted_sum(w, c), exact=False)
        mean = manifold.relative(manifold.neg(mean), manifold.from_normal(step))
    c = manifold.relative_normal(mean, x)
    g = weighted_sum(w, c)
    residual, variance = safe_sqrt(manifold.by_block(g * g)), _variance(manifold, c, w)
    converged = xp.all(_small(manifold, mean, variance, residual, tol), axis=-1)
    total = stop_gradient(safe_sqrt(xp.sum(residual * residual, axis=-1)))
    count = xp.full(total.shape, steps + 1, dtype=xp.int32, device=device_of(x))
    return FrechetResult(mean, variance, count, total, converged)
