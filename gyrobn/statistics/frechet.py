r"""Fréchet mean and variance, with exact derivatives.

:mod:`gyrobn.statistics.newton` finds the mean with gradients stopped; here it gets its derivatives,
which do not depend on how it was found.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import array_api_compat as compat

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.backends.contract import RootRules
from gyrobn.data.chunks import Chunks
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics import solvers
from gyrobn.numerics.arrays import check_floating, weighted_sum
from gyrobn.numerics.checks import check_choice
from gyrobn.statistics import lazy
from gyrobn.statistics.held import Held
from gyrobn.statistics.newton import ROUGH_SLOPE, Found, check_search, solve, status
from gyrobn.statistics.samples import arrange
from gyrobn.statistics.spread import Seen, Shared, Spread, share_of
from gyrobn.statistics.streaming import in_memory, search
from gyrobn.statistics.uniqueness import FrechetWarning, warn

__all__ = [
    "FrechetResult",
    "FrechetWarning",
    "frechet",
    "frechet_mean",
    "frechet_variance",
    "locate",
    "result_of",
    "told",
]

Search = tuple[float | None, int, int | None]
"""Tolerance, most evaluations, and the number of steps to take instead."""


class FrechetResult(NamedTuple):
    """What :func:`frechet` returns; every field but ``mean`` has the shape of the channels.

    On a geometry of several blocks the variance has one entry per block, (*channels, blocks).
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
        Or :class:`~gyrobn.Chunks` of them, or a Dask array, which may be more than memory holds:
        then the mean is a constant, and each iteration a pass over the chunks or one ``compute``.
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
        derivative is that of a mean, as if the steps had reached it.
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
    if isinstance(x, Chunks) or compat.is_dask_array(x):
        if axis not in (0, (0,)) or steps is not None:
            raise ValueError("samples in chunks are averaged over their first axis, to convergence")
        return _streamed(manifold, x, weights, tol, max_iter, init)
    samples, w = arrange(manifold, x, weights, axis)
    found, _ = locate(manifold, samples, w, tol, max_iter, init, steps, mean_gradient)
    return result_of(found)


def result_of(found: Found) -> FrechetResult:
    """Return what was found as arrays of the library of the samples."""
    mean, variance, count = found.mean, found.variance, found.evaluations
    residual, converged = found.told
    xp, device = namespace_of(mean), device_of(mean)
    if isinstance(count, int):
        count = xp.full(residual.shape, count, dtype=xp.int32, device=device)
    numbers = (_like(values, mean) for values in (count, residual, converged))
    return FrechetResult(mean, variance, *numbers)


def _like(values: Array, mean: Array) -> Array:
    """Return values from the host in the library and on the device of the mean."""
    xp = namespace_of(mean)
    same = namespace_of(values) is xp
    return values if same else xp.asarray(values, device=device_of(mean))


def _streamed(
    manifold: GyroSpace,
    x: Any,
    weights: Array | None,
    tol: float | None,
    max_iter: int,
    init: Array | None,
) -> FrechetResult:
    """Find the mean of samples that are read a chunk at a time; it is a constant."""
    tol, max_iter, _ = check_search(tol, max_iter, None)
    constant = manifold.detached()
    given: Iterable[Array]
    if isinstance(x, Chunks):
        found, given = search(constant, x, weights, tol, max_iter, init), iter(x)
    else:
        found, given = lazy.search(constant, x, weights, tol, max_iter, init)
    return told(manifold, found, given, max_iter)


def told(
    manifold: GyroSpace, found: Found, given: Iterable[Array], max_iter: int, **options: Any
) -> FrechetResult:
    """Return what was found of samples not in memory, with the warnings about it."""
    warn(manifold, manifold.detached().inside, given, None, found, max_iter, **options)
    return result_of(_outside(manifold, found))


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
    spread: Spread | None = None,
) -> tuple[Found, Centred]:
    """Return what was found, and the samples ``inside`` the manifold as seen from the mean.

    Samples (N, *channels, *point_shape) and weights (N, *channels) come from :func:`arrange`, or,
    if the batch lies on several ranks, from :func:`~gyrobn.statistics.spread.arrange_spread`.
    ``tell`` is what warns of a mean that was not found, or is not the only one.
    """
    tol, max_iter, steps = check_search(tol, max_iter, steps)
    check_choice("mean_gradient", mean_gradient, ("implicit", "detach"))
    if init is not None:
        check_floating(x, init)
        if tuple(init.shape) != tuple(x.shape[1:]):
            raise ValueError(f"init must have shape {tuple(x.shape[1:])}, got {tuple(init.shape)}")
    stop = backend_of(x).stop_gradient
    space, y = manifold.inside, manifold.to_inside(x)
    start = None if init is None else stop(manifold.to_inside(init))
    search = tol, max_iter, steps
    found, view = _find(space, y, w, start, search, mean_gradient == "implicit", spread)
    if steps is None and not backend_of(x).hides_values(found.mean):
        # of samples on other ranks, only the distance of those here is known
        given = (stop(x),), (stop(y), stop(w)) if spread is None else None
        tell(manifold, space.detached(), *given, found, max_iter)
    return _outside(manifold, found), view


def _find(
    space: GyroSpace,
    x: Array,
    w: Array,
    init: Array | None,
    search: Search,
    implicit: bool,
    spread: Spread | None,
) -> tuple[Found, Centred]:
    """Find the mean, with its derivatives; of each factor of a product by itself."""
    parts = space.parts(x)
    if parts[0][0] is not space:
        starts = [None] * len(parts) if init is None else [p for _, p in space.parts(init)]
        each = [
            _find(factor, own, w, start, search, implicit, spread)
            for (factor, own), start in zip(parts, starts, strict=True)
        ]
        found = _join(space, [f for f, _ in each])
        return found, space.joined(found.mean, x, [view for _, view in each])
    if spread is not None:
        return _find_spread(space, x, w, init, search, implicit, spread)
    shim = backend_of(x)
    constant, frozen = space.detached(), (shim.stop_gradient(x), shim.stop_gradient(w))
    if shim.hides_values(x) and not (space.flat and search[2] is None):
        found = _opaque_solve(constant, *frozen, init, search)
    else:
        samples = Held(*frozen) if search[2] is not None else in_memory(constant, *frozen)
        found = solve(constant, samples, init, *search)
        found = found if isinstance(samples, Held) else found._replace(view=())
    view = found.view
    if not isinstance(view, Centred):
        view = constant.centred(found.mean, frozen[0], view)
    found = found._replace(status=partial(status, constant, view, frozen[1], search[0]))
    if shim.differentiable(x, w, *space.learnable()):
        if not implicit:
            view = view.moved(space, _onto(space, constant, found.mean), x)
        elif space.flat:
            view = view.moved(space, space.start(x, w), x)
        else:
            view, _ = _implicit(space, view, x, w, 0.0 if search[2] is None else ROUGH_SLOPE)
        found = found._replace(mean=view.mean, variance=None)
    if found.variance is None:
        found = found._replace(variance=view.variance(w))
    return found, view


def _find_spread(
    space: GyroSpace,
    x: Array,
    w: Array,
    init: Array | None,
    search: Search,
    implicit: bool,
    spread: Spread,
) -> tuple[Found, Centred]:
    """Find the mean of a batch on several ranks, with its derivatives."""
    shim = backend_of(x)
    stop, constant = shim.stop_gradient, space.detached()
    weightless = spread._replace(weight=stop(spread.weight))
    samples = Shared.of(constant, Held(stop(x), stop(w)), weightless)
    found = solve(constant, samples, init, *search)
    kept = Seen(*found.view).view
    if isinstance(kept, Centred) and kept.mean is not found.mean:  # which is NaN
        kept = kept.seen
    view = samples.held.view(constant, found.mean, kept)
    if not shim.differentiable(x, w, spread.weight, *space.learnable()):
        return found, view
    share = share_of(spread) if shim.differentiable(spread.weight) else samples.share
    if implicit:
        tol = 0.0 if search[2] is None else ROUGH_SLOPE
        view, variance = _implicit(space, view, x, w * share, tol, samples, found.variance)
    else:
        view = view.moved(space, _onto(space, constant, found.mean), x)
        variance = samples.total(view.variance(w * share))
    return found._replace(mean=view.mean, variance=variance), view


def _join(space: GyroSpace, found: Sequence[Found]) -> Found:
    """Put what was found for the factors of a product together."""
    xp = namespace_of(found[0].mean)
    mean = space.join(*(f.mean for f in found))
    variance = xp.concat([f.variance for f in found], axis=-1)

    def status() -> tuple[Array, Array]:
        each = [[_like(values, mean) for values in f.told] for f in found]
        squares = (residual * residual for residual, _ in each)
        return xp.sqrt(reduce(xp.add, squares)), reduce(xp.logical_and, (c for _, c in each))

    whether = [f.converged for f in found]
    reached = [f.far for f in found if f.far is not None]
    return Found(
        mean,
        variance,
        None,
        reduce(_larger, (f.evaluations for f in found)),
        converged=None if any(c is None for c in whether) else reduce(operator.and_, whether),
        far=reduce(_larger, reached) if reached else None,
        status=status,
    )


def _larger(a: Any, b: Any) -> Any:
    """Return the larger of two numbers, or of two arrays."""
    if isinstance(a, int):
        return max(a, b) if isinstance(b, int) else namespace_of(b).clip(b, min=a)
    xp = namespace_of(a)
    return xp.clip(a, min=b) if isinstance(b, int) else xp.maximum(a, b)


def _outside(manifold: GyroSpace, found: Found) -> Found:
    """Carry the mean out of the space in which it was found; one block needs no axis."""
    variance = manifold.squeeze_blocks(found.variance)
    return found._replace(mean=manifold.from_inside(found.mean), variance=variance)


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
    if not manifold.block_shape:
        distance = manifold.dist(mean, samples)
        return weighted_sum(w, distance * distance)
    return manifold.centred(mean, samples).variance(w)


def _opaque_solve(
    manifold: GyroSpace, x: Array, w: Array, init: Array | None, search: Search
) -> Found:
    """Run the loop on samples that are traced: as one operation, if a graph is compiled."""
    steps = search[2]
    numbers = [v if isinstance(v, (int, float)) else None for v in manifold.learnable()]
    given = [v for v, n in zip(manifold.learnable(), numbers, strict=True) if n is None]

    def run(x: Array, w: Array, *rest: Array) -> tuple[Array, ...]:
        start, arrays = (None, iter(rest)) if init is None else (rest[0], iter(rest[1:]))
        values = [next(arrays) if n is None else n for n in numbers]
        found = solve(manifold.with_learnable(values), Held(x, w), start, *search)
        if steps is not None:
            return found.mean, *found.view.seen
        view = found.view.seen if isinstance(found.view, Centred) else found.view
        told = (_like(a, found.mean) for a in (found.evaluations, found.residual, found.converged))
        return found.mean, found.variance, *told, *view

    key = (manifold, numbers, init is None, search)
    starts = () if init is None else (init,)
    mean, *rest = backend_of(x).opaque(key, run, x, w, *starts, *given)
    if steps is not None:
        return Found(mean, None, tuple(rest), steps + 1)
    variance, count, residual, converged, *seen = rest
    return Found(mean, variance, tuple(seen), count, residual, converged)


# ---------------------------------------------------------------------- derivatives

Constants = tuple[Array, ...]
"""The mean, and what is known of the samples as they are seen from it."""


def _onto(manifold: GyroSpace, constant: GyroSpace, mean: Array) -> Array:
    """Return the mean, which is a constant, as the point it is at the learnable curvature.

    The points of some models move when the curvature changes.
    """
    return mean if manifold is constant else manifold.project(mean)


def _implicit(
    space: GyroSpace,
    view: Centred,
    x: Array,
    w: Array,
    tol: float,
    shared: Shared | None = None,
    variance: Array | None = None,
) -> tuple[Centred, Any]:
    r"""Return a constant view from a mean with its derivatives, to any order.

    The mean is where :math:`g(x, w, \theta; \mu) = \sum_i w_i \operatorname{Log}_e(\ominus\mu
    \oplus x_i)` is zero, θ the parameters of the geometry. So a change of the others moves it by
    :math:`\delta = H^{-1}\,dg` in normal coordinates at μ, μ held; and where the points of a model
    move with θ, by that. The rule is built of differentiable operations, with the mean itself in
    it, so that it can be differentiated again. The image of the samples, as they are seen from the
    mean, comes with it: what follows from it needs the same derivatives as g. H⁻¹ may have an error
    of ``tol`` where H is too large to be formed.

    In a batch on several ranks, g and H are sums over all of them. The variance, which is known,
    then comes out of the same rule, so that one reduction serves its slope and that of the mean.
    """
    values = space.learnable()
    learnt = [v for v in values if not isinstance(v, (int, float))]

    def seen(constants: Constants, x: Array, learnt: tuple[Array, ...]) -> Centred:
        left = iter(learnt)
        own = space.with_learnable(
            [v if isinstance(v, (int, float)) else next(left) for v in values]
        )
        mean, *rest = constants
        mean = own.project(mean) if learnt else mean
        return view.moved(own, mean, x, tuple(rest))

    def image(constants: Constants, x: Array, w: Array, *learnt: Array) -> tuple[Array, ...]:
        at = seen(constants, x, learnt)
        summed = () if shared is None else (at.variance(w),)
        return *at.image, *summed, at.gradient(w)

    def inverse(
        image: tuple[Array, ...],
        slopes: tuple[Array, ...],
        constants: Constants,
        v: Array | None,
        also: Array | None,
        x: Array,
        w: Array,
        *learnt: Array,
    ) -> tuple[Array, Array | None]:
        at = seen(constants, x, learnt).showing(*image)
        if slopes:
            more = at.slope_by_step(*slopes)
            v = more if v is None else v + more
        if shared is None:
            return solvers.inverse(at.hessian(w), v, tol), None
        if v is None:
            v = namespace_of(x).zeros(rules.shape, dtype=x.dtype, device=device_of(x))
        return shared.inverse(partial(solvers.inverse, tol=tol), at.hessian(shared.held.w), v, also)

    def move(constants: Constants, step: Array, x: Array, w: Array, *learnt: Array) -> Array:
        at = seen(constants, x, learnt)
        return at.mean + at.push(step)

    quick = view.slope_by_step is not None
    channels = tuple(view.mean.shape[: view.mean.ndim - len(space.point_shape)])
    total = None if shared is None else shared.total
    rules = RootRules(image, inverse, move, quick, (*channels, space.dim), total)
    constants = view.mean, *view.decompositions
    known = view.image if shared is None else (*view.image, variance)
    mean, *found = backend_of(x).implicit(rules, constants, known, x, w, *learnt)
    if shared is not None:
        *found, variance = found
    return view.moved(space, mean, x).showing(*found), variance
