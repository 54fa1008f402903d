r"""Fréchet mean and variance, with exact derivatives.

:mod:`gyrobn.newton` finds the mean with gradients stopped; here it gets its derivatives, which do
not depend on how it was found.
"""

from collections.abc import Callable
from typing import Any

from gyrobn.arrays import check_floating, weighted_sum
from gyrobn.backends import Array, backend_of
from gyrobn.centred import Centred
from gyrobn.checks import check_choice
from gyrobn.chunks import Chunks
from gyrobn.gyrospace import GyroSpace
from gyrobn.newton import (
    ROUGH,
    Found,
    FrechetResult,
    Held,
    Look,
    after_steps,
    check_search,
    solve,
)
from gyrobn.samples import arrange
from gyrobn.streaming import search
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
        Or :class:`~gyrobn.Chunks` of them, which may be more than memory holds: then the mean is a
        constant, and each iteration a pass over the chunks.
    weights
        Non-negative weights, of the shape of the reduced axes or of the whole batch; they are
        divided by their sum. Equal by default. A sample whose weight is 0 is left out, whatever
        it is: NaN, or padding that is no point.
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
    if isinstance(x, Chunks):
        if axis not in (0, (0,)) or steps is not None:
            raise ValueError("samples in chunks are averaged over their first axis, to convergence")
        return _streamed(manifold, x, weights, tol, max_iter, init)
    samples, w = arrange(manifold, x, weights, axis)
    result, _ = locate(manifold, samples, w, tol, max_iter, init, steps, mean_gradient)
    return result


def _streamed(
    manifold: GyroSpace,
    chunks: Chunks,
    weights: Array | None,
    tol: float | None,
    max_iter: int,
    init: Array | None,
) -> FrechetResult:
    """Find the mean of samples that are read a chunk at a time; it is a constant."""
    tol, max_iter, _ = check_search(tol, max_iter, None)
    constant = manifold.detached()
    result, radius, _, told = search(constant, chunks, weights, tol, max_iter, init)
    told = told or (result.converged, radius)
    warn(manifold, constant.inside, chunks, None, result, told, max_iter)
    return _seen_outside(manifold, result)


def locate(
    manifold: GyroSpace,
    x: Array,
    w: Array,
    tol: float | None = None,
    max_iter: int = 64,
    init: Array | None = None,
    steps: int | None = None,
    mean_gradient: str = "implicit",
    tell: Callable[..., None] = warn,
) -> tuple[FrechetResult, Centred]:
    """Return what :func:`frechet` does, and the samples ``inside`` the manifold as seen from there.

    Samples (N, *channels, *point_shape) and weights (N, *channels) come from :func:`arrange`.
    ``tell`` is what warns of a mean that was not found, or is not the only one.
    """
    tol, max_iter, steps = check_search(tol, max_iter, steps)
    check_choice("mean_gradient", mean_gradient, ("implicit", "detach"))
    if init is not None:
        check_floating(x, init)
        if tuple(init.shape) != tuple(x.shape[1:]):
            raise ValueError(f"init must have shape {tuple(x.shape[1:])}, got {tuple(init.shape)}")
    shim = backend_of(x)
    space, y = manifold.inside, manifold.to_inside(x)
    constant = space.detached()
    frozen = shim.stop_gradient(y), shim.stop_gradient(w)
    start = None if init is None else shim.stop_gradient(manifold.to_inside(init))
    slopes = shim.differentiable(y, w, *space.learnable())
    implicit = slopes and mean_gradient == "implicit"
    if steps is not None and implicit:
        result, view = _last_step(space, y, w, constant, frozen, tol, start, steps)
        return _seen_outside(manifold, result), view
    result, radius, seen, told = _opaque_solve(constant, *frozen, tol, max_iter, start, steps)
    if not shim.hides_values(result.mean) and steps is None:
        given = (shim.stop_gradient(x),)
        told = told or (result.converged, radius)
        tell(manifold, constant, given, frozen, result, told, max_iter)
    view = constant.centred(result.mean, frozen[0], seen)
    if slopes:
        mean = _onto(space, constant, result.mean)
        if implicit:
            mean = space.start(y, w) if space.flat else _implicit(space, view, y, w)
        view = view.moved(space, mean, y)
        result = result._replace(mean=mean, variance=view.variance(w))
    return _seen_outside(manifold, result), view


def _seen_outside(manifold: GyroSpace, result: FrechetResult) -> FrechetResult:
    """Carry the mean out of the space in which it was found; one block needs no axis."""
    variance = result.variance if len(manifold.blocks) > 1 else result.variance[..., 0]
    return result._replace(mean=manifold.from_inside(result.mean), variance=variance)


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
        return weighted_sum(w, distance * distance)
    return manifold.centred(mean, samples).variance(w)


def _opaque_solve(
    manifold: GyroSpace,
    x: Array,
    w: Array,
    tol: float | None,
    max_iter: int,
    init: Array | None,
    steps: int | None,
) -> Found:
    """Run the loop; one operation where a graph is compiled, which cannot look at values."""
    if not backend_of(x).hides_values(x):
        return solve(manifold, Held(x, w), tol, max_iter, init, steps)
    numbers = [v if isinstance(v, (int, float)) else None for v in manifold.learnable()]
    given = [v for v, n in zip(manifold.learnable(), numbers, strict=True) if n is None]

    def run(x: Array, w: Array, *rest: Array) -> tuple[Array, ...]:
        start, arrays = (None, iter(rest)) if init is None else (rest[0], iter(rest[1:]))
        values = [next(arrays) if n is None else n for n in numbers]
        space = manifold.with_learnable(values)
        found = solve(space, Held(x, w), tol, max_iter, start, steps)
        return (*found.result, found.radius, *found.seen)

    key = (manifold, numbers, tol, max_iter, init is None, steps)
    starts = () if init is None else (init,)
    found = backend_of(x).opaque(key, run, x, w, *starts, *given)
    k = len(FrechetResult._fields)
    return Found(FrechetResult(*found[:k]), found[k], tuple(found[k + 1 :]))


# ---------------------------------------------------------------------- derivatives

Constants = tuple[Array, ...]
"""The mean, and what is known of the samples as they are seen from it."""


def _onto(manifold: GyroSpace, constant: GyroSpace, mean: Array) -> Array:
    """Return the mean, which is a constant, as the point it is at the learnable curvature.

    The points of some models move when the curvature changes.
    """
    return mean if manifold is constant else manifold.project(mean)


def _implicit(space: GyroSpace, view: Centred, x: Array, w: Array) -> Array:
    r"""Return the mean of a constant view with its derivatives, to any order.

    The mean is where :math:`g(x, w, \theta; \mu) = \sum_i w_i \operatorname{Log}_e(\ominus\mu
    \oplus x_i)` is zero, θ the parameters of the geometry. So a change of the others moves it by
    :math:`\delta = H^{-1}\,dg` in normal coordinates at μ, μ held; and where the points of a model
    move with θ, by that. The rule is built of differentiable operations, with the mean itself in
    it, so that it can be differentiated again.
    """
    values = space.learnable()
    learnt = [v for v in values if not isinstance(v, (int, float))]

    def seen(constants: Constants, x: Array, *learnt: Array) -> Centred:
        left = iter(learnt)
        own = space.with_learnable(
            [v if isinstance(v, (int, float)) else next(left) for v in values]
        )
        mean, *rest = constants
        mean = own.project(mean) if learnt else mean
        return view.moved(own, mean, x, tuple(rest))

    def gradient(constants: Constants, x: Array, w: Array, *learnt: Array) -> Array:
        return seen(constants, x, *learnt).gradient(w)

    def inverse(constants: Constants, v: Array, x: Array, w: Array, *learnt: Array) -> Array:
        return seen(constants, x, *learnt).hessian(w).inverse(v)

    def move(constants: Constants, step: Array, x: Array, w: Array, *learnt: Array) -> Array:
        at = seen(constants, x, *learnt)
        return at.mean + at.space.push(at.mean, step)

    channels = tuple(view.mean.shape[: view.mean.ndim - len(space.point_shape)])
    rules = gradient, inverse, move, (*channels, space.dim)
    return backend_of(x).implicit(rules, (view.mean, *view.decompositions), x, w, *learnt)


def _last_step(
    manifold: GyroSpace,
    x: Array,
    w: Array,
    constant: GyroSpace,
    frozen: tuple[Array, Array],
    tol: float | None,
    init: Array | None,
    steps: int,
) -> tuple[FrechetResult, Centred]:
    """Take all steps but one as constants, and that one, H held constant, with its derivative."""
    shim = backend_of(x)
    stop = shim.stop_gradient

    def fixed(view: Centred) -> Centred:
        return constant.centred(stop(view.mean), frozen[0], tuple(stop(a) for a in view.seen))

    if steps == 0:
        mean = manifold.start(x, w) if init is None else init
    else:
        if steps > 1:
            mean = _opaque_solve(constant, *frozen, tol, 1, init, steps - 1).result.mean
        else:
            mean = constant.start(*frozen) if init is None else init
        view = manifold.centred(_onto(manifold, constant, mean), x)
        step = fixed(view).hessian(frozen[1]).solve(view.gradient(w), ROUGH)
        mean = manifold.shift(view.mean, step)
    view = manifold.centred(mean, x)
    variance = view.variance(w)
    look = Look.from_view(fixed(view), frozen[1])
    result = after_steps(constant, stop(mean), look, tol, steps).result
    return result._replace(mean=mean, variance=variance), view
