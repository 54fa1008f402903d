"""From samples in memory, or on several ranks, to their mean with its derivatives."""

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce
from typing import Any

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.checks import check_choice
from gyrobn.statistics.held import Held, arrays_of
from gyrobn.statistics.implicit import implicit, learnt, onto, with_learnt
from gyrobn.statistics.newton import ROUGH_SLOPE, Found, Search, check_search, solve, status
from gyrobn.statistics.spread import LARGEST, Shared, Spread, Traced
from gyrobn.statistics.streaming import in_memory
from gyrobn.statistics.uniqueness import warn


def check_mean(mean: Any, steps: int | None, started: bool = False) -> None:
    """Refuse a kind of mean that is not known, and a centroid that is searched for."""
    check_choice("mean", mean, ("frechet", "centroid"))
    if mean == "centroid" and (steps is not None or started):
        name = "init" if steps is None else "steps"
        raise ValueError(
            f"mean='centroid' takes no step from any start, so {name} has no meaning: leave it "
            "out, or use mean='frechet'"
        )


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
    mean: str = "frechet",
) -> tuple[Found, Centred]:
    """Return what was found, and the samples ``inside`` the manifold as seen from the mean.

    Samples (N, *channels, *point_shape) and weights (N, *channels) come from :func:`arrange`, or,
    if the batch lies on several ranks, from :func:`~gyrobn.statistics.spread.arrange_spread`.
    ``tell`` is what warns of a mean that was not found, or is not the only one. With the mean
    ``"centroid"`` nothing is searched for: it is the geometry's first guess.
    """
    search = check_search(tol, max_iter, steps)
    check_mean(mean, search.steps, init is not None)
    check_choice("mean_gradient", mean_gradient, ("implicit", "detach"))
    if init is not None:
        check_floating(x, init)
        if tuple(init.shape) != tuple(x.shape[1:]):
            raise ValueError(f"init must have shape {tuple(x.shape[1:])}, got {tuple(init.shape)}")
    stop = backend_of(x).stop_gradient
    space, y = manifold.inside, manifold.to_inside(x)
    start = None if init is None else stop(manifold.to_inside(init))
    asked = None if mean == "centroid" else search
    found, view = _find(space, y, w, start, asked, mean_gradient == "implicit", spread)
    if steps is None and not backend_of(x).hides_values(found.mean):
        # of samples on other ranks, only the distance of those here is known
        given = (stop(x),), (stop(y), stop(w)) if spread is None else None
        tell(manifold, space.detached(), *given, found, search.max_iter)
    return outside(manifold, found), view


def _find(
    space: GyroSpace,
    x: Array,
    w: Array,
    init: Array | None,
    search: Search | None,
    exact: bool,
    spread: Spread | None,
) -> tuple[Found, Centred]:
    """Find the mean, with its derivatives; of each factor of a product by itself.

    Without a search it is the centroid.
    """
    parts = space.parts(x)
    if parts[0][0] is not space:
        starts = [None] * len(parts) if init is None else [p for _, p in space.parts(init)]
        each = [
            _find(factor, own, w, start, search, exact, spread)
            for (factor, own), start in zip(parts, starts, strict=True)
        ]
        found = _join(space, [f for f, _ in each])
        return found, space.joined(found.mean, x, [view for _, view in each])
    if search is None:
        return _centroid(space, x, w, exact, spread)
    if spread is not None:
        return _find_spread(space, x, w, init, search, exact, spread)
    shim = backend_of(x)
    constant, frozen = space.detached(), (shim.stop_gradient(x), shim.stop_gradient(w))
    if shim.hides_values(x) and not (space.flat and search.steps is None):
        found = _opaque_solve(constant, *frozen, init, search)
    else:
        found = _visible_solve(constant, x, w, init, search)
    view = found.view
    if not isinstance(view, Centred):
        view = constant.centred(found.mean, frozen[0], view)
    found = found._replace(status=partial(status, constant, view, frozen[1], search.tol))
    if shim.differentiable(x, w, *space.learnable()):
        if not exact:
            view = view.moved(space, onto(space, constant, found.mean), x)
        elif space.flat:
            view = view.moved(space, space.start(x, w), x)
        else:
            view, _ = implicit(space, view, x, w, tol=_slope_error(space, search))
        found = found._replace(mean=view.mean, variance=None)
    if found.variance is None:
        found = found._replace(variance=view.variance(w))
    return found, view


def _slope_error(space: GyroSpace, search: Search) -> float:
    """Return the error that a derivative may have: after a few steps with a large H it is rough."""
    return ROUGH_SLOPE if search.steps is not None and space.dim > LARGEST else 0.0


def _visible_solve(
    constant: GyroSpace, x: Array, w: Array, init: Array | None, search: Search
) -> Found:
    """Run the loop on samples whose values can be seen."""
    with as_few(constant, x, w, init) as (own, weights, start):
        stop = backend_of(own).stop_gradient
        held = Held(constant, stop(own), stop(weights))
        samples = in_memory(held) if search.steps is None else held
        found = solve(samples, start, search)
    if samples is not held:
        found = found._replace(view=())
    if namespace_of(own) is namespace_of(x):
        return found
    arrays = found.mean, found.variance, *arrays_of(found.view)
    mean, variance, *seen = backend_of(x).from_few(arrays)
    return found._replace(mean=mean, variance=variance, view=tuple(seen))


def as_few(constant: GyroSpace, *arrays: Any) -> AbstractContextManager[list[Any]]:
    """Return a context with constants, as NumPy's arrays if that takes less time."""
    if all(isinstance(v, (int, float)) for v in constant.learnable()):
        return backend_of(arrays[0]).few(*arrays)
    return nullcontext(list(arrays))


def _find_spread(
    space: GyroSpace,
    x: Array,
    w: Array,
    init: Array | None,
    search: Search,
    exact: bool,
    spread: Spread,
) -> tuple[Found, Centred]:
    """Find the mean of a batch on several ranks, with its derivatives."""
    shim = backend_of(x)
    stop, constant = shim.stop_gradient, space.detached()
    samples = Shared(Held(constant, stop(x), stop(w)), spread)
    found = solve(samples, init, search)
    view = found.view.view
    if not isinstance(view, Centred) or view.mean is not found.mean:  # which is NaN
        view = samples.held.centred(found.mean, arrays_of(view))
    if not shim.differentiable(x, w, spread.weight, *space.learnable()):
        return found, view
    w = samples.weights(w)
    if exact:
        known = samples, found.view.sums, found.variance
        view, variance = implicit(space, view, x, w, *known, tol=_slope_error(space, search))
    else:
        view = view.moved(space, onto(space, constant, found.mean), x)
        variance = samples.total(view.variance(w))
    return found._replace(mean=view.mean, variance=variance), view


def _centroid(
    space: GyroSpace, x: Array, w: Array, exact: bool, spread: Spread | None
) -> tuple[Found, Centred]:
    """Return the geometry's first guess of the mean, differentiated as the formula it is."""
    shim = backend_of(x)
    stop, constant = shim.stop_gradient, space.detached()
    held = Held(space, x, w)
    shared = None if spread is None else Shared(held, spread, slopes=True)
    mean = (shared or held).start()
    if not exact:
        mean = onto(space, constant, stop(mean))
    view = constant.centred(stop(mean), stop(x))
    told = partial(status, constant, view, stop(w), None)
    more = () if spread is None else (spread.weight,)
    if shim.differentiable(x, w, *more, *space.learnable()):
        view = view.moved(space, mean, x)
    if shared is None:
        return Found(mean, view.variance(w), None, 1, status=told), view
    (variance,) = shared.sums([view.variance(shared.weights(w))], whole=True)
    return Found(mean, variance, None, 1), view


def _join(space: GyroSpace, found: Sequence[Found]) -> Found:
    """Put what was found for the factors of a product together."""
    xp = namespace_of(found[0].mean)
    mean = space.join(*(f.mean for f in found))
    variance = xp.concat([f.variance for f in found], axis=-1)

    def status() -> tuple[Array, Array]:
        each = [[like(values, mean) for values in f.told] for f in found]
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
        far=namespace_of(reached[0]).concat(reached, axis=-1) if reached else None,
        status=status,
    )


def _larger(a: Any, b: Any) -> Any:
    """Return the larger of two numbers, or of two arrays."""
    if isinstance(a, int):  # an array, if there is one, comes first
        a, b = b, a
    return max(a, b) if isinstance(a, int) else namespace_of(a).clip(a, min=b)


def outside(manifold: GyroSpace, found: Found) -> Found:
    """Carry the mean out of the space in which it was found; one block needs no axis."""
    variance = manifold.squeeze_blocks(found.variance)
    return found._replace(mean=manifold.from_inside(found.mean), variance=variance)


def like(values: Array, mean: Array) -> Array:
    """Return values from the host in the library and on the device of the mean."""
    xp = namespace_of(mean)
    same = namespace_of(values) is xp
    return values if same else xp.asarray(values, device=device_of(mean))


def _opaque_solve(
    manifold: GyroSpace, x: Array, w: Array, init: Array | None, search: Search
) -> Found:
    """Run the loop on samples that are traced: as one operation, if a graph is compiled."""
    steps, starts = search.steps, () if init is None else (init,)

    def run(x: Array, w: Array, *rest: Array) -> tuple[Array, ...]:
        start = rest[0] if starts else None
        held = Held(with_learnt(manifold, rest[len(starts) :]), x, w)
        if steps is None and manifold.dim <= LARGEST and backend_of(x).hides_values(x):
            found = solve(Traced(held), start, search)
            view = found.view.view
        else:
            found = solve(held, start, search)
            view = found.view
        if steps is not None:
            return found.mean, *arrays_of(view)
        told = (like(a, found.mean) for a in (found.evaluations, found.residual, found.converged))
        return found.mean, found.variance, *told, *arrays_of(view)

    numbers = [v if isinstance(v, (int, float)) else None for v in manifold.learnable()]
    key = (manifold, numbers, init is None, tuple(search))
    mean, *rest = backend_of(x).opaque(key, run, x, w, *starts, *learnt(manifold))
    if steps is not None:
        return Found(mean, None, tuple(rest), steps + 1)
    variance, count, residual, converged, *seen = rest
    return Found(mean, variance, tuple(seen), count, residual, converged)
