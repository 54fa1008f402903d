r"""Fréchet mean and variance: the gyro-Newton loop on every geometry, and its exact derivatives.

.. math:: c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i), \qquad g = \sum_i w_i c_i, \qquad
          \mu \leftarrow \mu \oplus \operatorname{Exp}_e(H^{-1} g)

with H the mean Hessian of half the squared distance, which has a closed form on a symmetric space.
A step that lowers neither the variance nor, where that no longer changes, the residual
:math:`\|g\|`, is undone and tried again at a quarter of its length, so the loop cannot diverge.
Channels are solved together; one that is done stops moving, and one with a sample that is not on
the manifold never begins to.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, device_of, namespace_of
from gyrobn.data.chunks import Chunks
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.numerics.arrays import blocks_of, check_floating, pieces, weighted_sum
from gyrobn.numerics.checks import check_choice, check_integer, check_number
from gyrobn.numerics.hessian import DENSE, inverse, newton_step
from gyrobn.statistics import lazy
from gyrobn.statistics.parts import Parts, Source, in_chunks
from gyrobn.statistics.samples import (
    Evaluation,
    Group,
    Memory,
    Ranks,
    Sums,
    arrange,
    if_weighted,
    over_ranks,
    parameters_of,
    with_parameters,
)
from gyrobn.statistics.uniqueness import warn_of

ROUGH = 1e-2
"""Accuracy of a step by conjugate gradients, if a number of steps is given: a step is short."""
ROUGH_DERIVATIVE = 1e-5
"""Accuracy of the derivative by conjugate gradients of a mean that those steps need not reach."""


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
        it is: NaN, or padding that is not a point.
    axis
        The batch axis, or axes, to average over.
    tol
        Largest residual, relative to the square root of the variance; 8 ulp by default.
    max_iter
        Maximum number of evaluations; a warning says when they do not suffice.
    init
        Where to start, shape ``(*channels, *point_shape)``.
    steps
        Take exactly so many Newton steps and no convergence test, as in the paper's experiments.
        The derivative is that of a mean, as if the steps had reached it. With 0 steps the mean is
        the geometry's start: the centroid, a formula in one pass over the samples. Where no
        curvature is positive, a mean m that is not reached is in error by

        .. math:: d(m, \mu) \le \|g\|, \qquad v^2(m) - \|g\|^2 \le v^2(\mu) \le v^2(m),

        with :math:`\|g\|` the ``residual`` that is returned. Elsewhere :math:`\|g\|` is to be
        divided by a lower bound of the eigenvalues of the Hessian around m.
    mean_gradient
        ``"implicit"``: the mean has its exact derivative. ``"detach"``: it is a constant, and the
        variance has the derivative of the mean squared distance to it.

    Returns
    -------
    FrechetResult
        Mean, variance, iterations, residual, converged. The mean and the variance carry the exact
        first and second derivatives with respect to the samples, the weights and the curvature on
        torch and JAX, whatever the number of iterations was. (A third derivative raises an error,
        unless the geometry is flat.)

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
        search = check_search(tol, max_iter, None)
        constant = check_manifold(manifold).detached()  # the mean is a constant, too
        start = None if init is None else constant.to_inside(init)
        if isinstance(x, Chunks):
            return of_source(manifold, in_chunks(constant, x, weights), x, search, start)
        source = lazy.source_of(constant, x, weights)
        return of_source(manifold, source, source.blocks.each(), search, start)

    def run(x: Array, manifold: GyroSpace, weights: Array | None, init: Array) -> FrechetResult:
        samples, w = arrange(manifold, x, weights, axis)
        return result_of(locate(manifold, samples, w, tol, max_iter, init, steps, mean_gradient))

    found: FrechetResult = backend_of(x).auto_sharded(run, x, manifold, weights, init)
    return found


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

    def run(x: Array, manifold: GyroSpace, mean: Array, weights: Array | None) -> Array:
        samples, w = arrange(manifold, x, weights, axis)
        if not manifold.block_shape:
            distance = manifold.dist(mean, samples)
            return weighted_sum(w, distance * distance)
        return manifold.centred(mean, samples).variance(w)

    return backend_of(x).auto_sharded(run, x, manifold, mean, weights)


# ---------------------------------------------------------------------- a search and its result


class Search(NamedTuple):
    """The limits of a search."""

    tol: float | None = None
    """Largest residual, relative to the standard deviation; 8 ulp by default."""
    max_iter: int = 64
    """Maximum number of evaluations."""
    steps: int | None = None
    """The number of steps to take instead, without a test for convergence."""


def check_search(tol: Any, max_iter: Any, steps: Any) -> Search:
    """Return the limits of a search as plain numbers, or name the one that is not a number."""
    return Search(
        None if tol is None else check_number("tol", tol, 0.0),
        check_integer("max_iter", max_iter, 1),
        None if steps is None else check_integer("steps", steps, 0),
    )


class Found(NamedTuple):
    """The result of a search; numbers of a channel are on the host where they can be."""

    mean: Array
    variance: Array
    """One per block."""
    view: Centred
    """The samples seen from the mean, inside the manifold."""
    evaluations: Array | int
    """The number of evaluations, passes over the samples."""
    residual: Array
    """Length of the gradient."""
    converged: Array
    far: Array
    """As in :class:`Evaluation`."""
    sums: Arrays
    """As in :class:`Evaluation`."""


def locate(
    manifold: GyroSpace,
    x: Array,
    w: Array,
    tol: float | None = None,
    max_iter: int = 64,
    init: Array | None = None,
    steps: int | None = None,
    mean_gradient: str = "implicit",
    warn: Callable[..., None] = warn_of,
    group: Group | None = None,
) -> Found:
    """Find the mean of samples in memory or on several ranks, with its derivatives.

    Samples (N, *channels, *point_shape) and weights (N, *channels) come from :func:`arrange`, with
    the same group. ``warn`` is called with a mean that was searched for.
    """
    search = check_search(tol, max_iter, steps)
    check_choice("mean_gradient", mean_gradient, ("implicit", "detach"))
    backend = backend_of(x)
    stop, space, y = backend.stop_gradient, manifold.inside, manifold.to_inside(x)
    constant, start = space.detached(), None
    if init is not None:
        check_floating(x, init)
        if tuple(init.shape) != tuple(x.shape[1:]):
            raise ValueError(f"init must have shape {tuple(x.shape[1:])}, got {tuple(init.shape)}")
        start = stop(manifold.to_inside(init))
    if group is None:
        memory = Memory(constant, stop(y), stop(w))
    else:
        first, w = over_ranks(constant, stop(y), w, group)
        memory = Ranks(constant, stop(y), stop(w), group)
        start = stop(first) if start is None else start
    source = memory if steps is not None else _in_blocks(memory)
    found = solve(source, start, search)
    if source is not memory:
        found = found._replace(view=memory.view(found.mean))
    if backend.differentiable(y, w, *space.learnable()):
        found = _with_derivatives(space, memory, found, y, w, mean_gradient == "implicit", search)
    if steps is None and not backend.traced(found.mean):
        # of samples on other ranks, only the distance of those here is available
        own = (memory.x, memory.w) if group is None else None
        warn(manifold, (stop(x),), own, found, search.max_iter)
    return _outside(manifold, found)


def of_source(
    manifold: GyroSpace,
    source: Source,
    given: Iterable[Array],
    search: Search,
    init: Array | None = None,
    **options: Any,
) -> FrechetResult:
    """Find the mean of samples that are not in memory, a constant, and warn about it."""
    found = solve(source, init, search)
    warn_of(manifold, given, None, found, search.max_iter, **options)
    return result_of(_outside(manifold, found))


def result_of(found: Found) -> FrechetResult:
    """Return what was found as arrays of the library of the samples."""
    mean, count = found.mean, found.evaluations
    residual, converged = like(found.residual, mean), like(found.converged, mean)
    if isinstance(count, int):
        xp = namespace_of(mean)
        count = xp.full(residual.shape, count, dtype=xp.int32, device=device_of(mean))
    return FrechetResult(mean, found.variance, like(count, mean), residual, converged)


def _outside(manifold: GyroSpace, found: Found) -> Found:
    """Map the mean out of the space in which it was found; one block needs no axis."""
    variance = manifold.squeeze_blocks(found.variance)
    return found._replace(mean=manifold.from_inside(found.mean), variance=variance)


def _in_blocks(memory: Memory) -> Source:
    """Return samples in memory as blocks that fit the cache, if they are many NumPy arrays.

    Blocks take less time and memory, but nothing is saved of the samples seen from the mean.
    """
    x, w, space = memory.x, memory.w, memory.space
    blocks = blocks_of(x, 1024)
    if len(blocks) == 1 or isinstance(memory, Ranks) or space.flat or space.dim > DENSE:
        return memory

    def start() -> Array:
        return space.start(sum(weighted_sum(w[b], space.moments(x[b])) for b in blocks))

    return Parts(space, lambda: ((x[b], w[b]) for b in blocks), start)


# ---------------------------------------------------------------------- the loop


class Numbers(NamedTuple):
    """The numbers that judge a mean: a few per channel, NumPy's if values can be read."""

    variance: Array
    """One per block, as are the next three: no block may wait for the largest one to be small."""
    residual: Array
    """Length of the gradient."""
    resolution: Array
    """Distance of the mean to its neighbours in floating point."""
    goal: Array
    """The residual to reach."""
    gain: Array
    """How far the variance falls by the whole step that led here, if it is quadratic along it."""
    far: Array

    def length(self) -> Array:
        """Return the length of the gradient, of all blocks together."""
        xp = namespace_of(self.residual)
        return xp.sqrt(xp.sum(self.residual * self.residual, axis=-1))

    def small(self) -> Array:
        """Return whether the residual is small enough in every block."""
        return namespace_of(self.goal).all(self.residual <= self.goal, axis=-1)

    def finite(self) -> Array:
        """Return whether variance and residual are finite."""
        xp = namespace_of(self.goal)
        return xp.isfinite(xp.sum(self.variance + self.residual, axis=-1))


class State(NamedTuple):
    """Where the loop stands: the best mean so far, and the step to try from there."""

    mean: Array
    step: Array
    """The Newton step from the mean, in normal coordinates."""
    gain: Array
    """How far the variance falls by the whole step, if it is quadratic along it; (*channels, 1)."""
    share: Array
    """The part of it to try: all, or a quarter after each step that was undone."""
    numbers: Numbers
    count: Array
    done: Array
    """Whether the mean has converged, or never will."""
    view: Any
    """The view from the mean, or () if there is none; in a traced loop its decompositions."""
    sums: Arrays
    """Those of :class:`Evaluation`."""


def solve(source: Source, init: Array | None, search: Search) -> Found:
    """Find the mean of samples, as a constant."""
    space, (tol, max_iter, steps) = source.space, search
    mean = source.start() if init is None or (source.exact and steps is None) else init
    if steps is not None:
        return _take_steps(source, mean, search)
    backend = backend_of(mean)
    traced = any(map(backend.traced, (mean, *source.arrays())))

    def body(constants: Arrays, now: State) -> State:
        own, now = (source.with_arrays(*constants), _read(now)) if traced else (source, now)
        view = now.view if isinstance(now.view, Centred) else own.view(now.mean, now.view)
        trial = view.shift(like(now.share, now.mean)[..., None] * now.step)
        at = own.evaluate(_chosen(now.done, now.mean, trial))
        numbers = _numbers(space, at, now.gain, tol)
        better, stuck = _judge(now, numbers)
        take = better | now.done
        done = now.done | stuck | (take & numbers.small())
        new = at.view.mean, *_step(space, at, numbers, take & ~done), numbers, at.sums
        old = now.mean, now.step, now.gain, now.numbers, now.sums
        mean, step, gain, numbers, sums = _chosen(take, new, old)
        share = namespace_of(take).where(take, 1.0, 0.25 * now.share)
        view = _chosen(take, at.view.saved if traced else at.view, now.view, lead=1)
        return State(mean, step, gain, share, numbers, now.count + ~now.done, done, view, sums)

    at = source.evaluate(mean)
    numbers = _numbers(space, at, at.variance[..., :1], tol)
    # a sample off the manifold is NaN from everywhere: no step helps
    done, view = numbers.small() | ~numbers.finite(), at.view.saved if traced else at.view
    xp = namespace_of(numbers.gain)
    share = xp.ones_like(numbers.gain)
    count = xp.astype(share, xp.int32)
    if source.exact:
        done = numbers.finite()
    step, gain = _step(space, at, numbers, ~done)
    state = State(mean, step, gain, share, numbers, count, done, view, at.sums)
    if source.exact:
        return _found(source, state)
    key, going = (space, search, source), lambda now: ~now.done.all()
    limit = max_iter - 1
    return _found(source, backend.while_loop(key, going, body, source.arrays(), state, limit))


def _take_steps(source: Source, mean: Array, search: Search) -> Found:
    """Take exactly that many steps; no value is read."""
    steps, loop = search.steps or 0, backend_of(mean).while_loop

    def body(constants: Arrays, state: tuple[Array]) -> tuple[Array]:
        at = source.with_arrays(*constants).evaluate(*state)
        return (at.view.shift(newton_step(at.hessian(), at.g, ROUGH)),)

    key = source.space, search, source
    (mean,) = loop(key, lambda _: True, body, source.arrays(), (mean,), steps)
    at = source.evaluate(mean)
    numbers = _numbers(source.space, at, at.variance[..., :1], search.tol, read=False)
    residual, small = numbers.length(), numbers.small()
    return Found(mean, at.variance, at.view, steps + 1, residual, small, at.far, at.sums)


def _found(source: Source, state: State) -> Found:
    """Return what the loop has found; the mean is NaN where no evaluation was finite."""
    numbers, sound, mean = state.numbers, state.numbers.finite(), state.mean
    variance = like(numbers.variance, mean)
    nothing = mean * math.nan, variance * math.nan
    mean, variance = _chosen(sound, (mean, variance), nothing)
    view = state.view if mean is state.mean else ()
    if not isinstance(view, Centred):
        view = source.view(mean, view)
    residual, converged = numbers.length(), state.done & sound
    return Found(mean, variance, view, state.count, residual, converged, numbers.far, state.sums)


def _step(space: GyroSpace, at: Evaluation, numbers: Numbers, wanted: Array) -> tuple[Array, Array]:
    """Return the Newton step and how far the variance falls by it, if any channel wants one.

    The closer the mean is, the better is an exact step: what is left of the residual, relative to
    the standard deviation, is its square. A step by conjugate gradients that is as good as that
    saves an evaluation.
    """
    tol = 1e-4
    if isinstance(wanted, HOST):
        if not wanted.any():
            return at.g, at.variance[..., :1]
        if space.dim > DENSE:
            ratio = numbers.residual[wanted] / np.sqrt(numbers.variance[wanted] + 1e-300)
            tol = min(max(1e-2 * float(np.min(ratio)), 1e-9), 1e-3)
    step = newton_step(at.hessian(), at.g, tol)
    return step, namespace_of(step).sum(step * at.g, axis=-1, keepdims=True)


def _judge(old: State, new: Numbers) -> tuple[Array, Array]:
    """Return whether a step is good; and whether it shows that only rounding errors are left.

    On a sphere the gradient also vanishes where the variance is largest, and grows on the way down
    from there. So the variance decides, as long as the gain that the step promised can be seen in
    it, and after that the gradient.
    """
    xp, was, gain = namespace_of(old.share), old.numbers, old.share * new.gain
    some = float(xp.finfo(gain.dtype).eps) ** 0.5
    after, before = xp.sum(new.variance, axis=-1), xp.sum(was.variance, axis=-1)
    lower = (gain > some * before) & (after <= before - 0.1 * gain)
    nearer = xp.all((new.residual < was.residual) | (new.residual <= new.goal), axis=-1)
    # rounding errors of the distances are no reason to reject a step either
    slack = some * before + 16.0 * xp.sqrt(before) * xp.max(was.resolution, axis=-1)
    better = lower | ((after <= before + slack) & nearer)
    close = xp.all(was.residual <= some * xp.sqrt(was.variance), axis=-1)
    # a Newton step that does not halve a residual near its bound has met rounding errors
    still = (new.residual > 0.5 * was.residual) & (was.residual <= 64.0 * was.goal)
    # If the samples differ by rounding errors only, no residual is small against their standard
    # deviation. Then steps shorter than the resolution fail, too. (Far out it is coarse: long steps
    # prove little.)
    near = xp.all(was.residual <= 64.0 * was.resolution, axis=-1) & (old.share <= 1.0 / 64.0)
    return better, (close & xp.all(still, axis=-1)) | ((close | near) & ~better)


def _numbers(
    space: GyroSpace, at: Evaluation, gain: Array, tol: float | None, read: bool = True
) -> Numbers:
    """Return the numbers of a mean, as NumPy arrays if they can be: the one wait for a GPU."""
    squares = space.by_block(at.g * at.g)
    xp, k = namespace_of(squares), squares.shape[-1]
    resolution = xp.broadcast_to(at.resolution, squares.shape)
    packed = _read(xp.concat([at.variance, squares, resolution, gain, at.far], axis=-1), read)
    sizes = [k, k, k, 1, at.far.shape[-1]]
    variance, squares, resolution, gain, far = pieces(packed, sizes)
    goal = least_residual(variance, resolution, tol)
    residual = namespace_of(packed).sqrt(squares)
    return Numbers(variance, residual, resolution, goal, gain[..., 0], far)


def least_residual(variance: Array, resolution: Array, tol: float | None) -> Array:
    """Return the residual to reach: ``tol`` standard deviations, or as much as rounding leaves."""
    xp = namespace_of(variance)
    tol = 8.0 * float(xp.finfo(variance.dtype).eps) if tol is None else tol
    return xp.maximum(tol * xp.sqrt(variance), 8.0 * resolution)


# ---------------------------------------------------------------------- arrays of the loop

HOST = np.ndarray, np.generic
"""What the numbers of a channel are if they can be read; traced otherwise."""


def _read(values: Any, read: bool = True) -> Any:
    """Return arrays, or the numbers of a state, as NumPy arrays if they can be read."""
    if isinstance(values, State):
        variance = values.numbers.variance  # depends on all arrays; others may be constants
        if backend_of(variance).traced(variance):
            return values
        numbers = Numbers(*map(_read, values.numbers))
        share, count, done = map(_read, (values.share, values.count, values.done))
        return values._replace(share=share, numbers=numbers, count=count, done=done)
    backend = backend_of(values)
    return backend.to_numpy(values) if read and not backend.traced(values) else values


def like(values: Array, x: Array) -> Array:
    """Return numbers in the library and on the device of x."""
    if type(values) is type(x):
        return values
    return namespace_of(x).asarray(values, device=device_of(x))


def _chosen(take: Array, new: Any, old: Any, lead: int = 0) -> Any:
    """Return the new values of the channels to take, and the old values of the others.

    They are arrays or tuples of arrays, with ``lead`` axes before the channels; or views, of which
    there is none for some new and some old channels.
    """
    if isinstance(take, HOST):
        if take.all():
            return new
        if not take.any():
            return old
    if isinstance(new, Centred):
        return ()
    if isinstance(new, tuple):
        each = [_chosen(take, a, b, lead) for a, b in zip(new, old, strict=True)]
        return type(new)(*each) if hasattr(new, "_fields") else tuple(each)
    xp, mask = namespace_of(new), like(take, new)
    return xp.where(mask[(..., *(None,) * (new.ndim - lead - mask.ndim))], new, old)


# ---------------------------------------------------------------------- derivatives


def _with_derivatives(
    space: GyroSpace,
    memory: Memory,
    found: Found,
    x: Array,
    w: Array,
    exact: bool,
    search: Search,
) -> Found:
    r"""Return a mean, the variance and the view with their derivatives.

    The mean is where :math:`g(x, w, \theta; \mu) = \sum_i w_i \operatorname{Log}_e(\ominus\mu
    \oplus x_i)` is zero, θ the parameters of the geometry. So a change of the others moves it by
    :math:`\delta = H^{-1}\,dg` in normal coordinates. Such a step from the constant mean is right
    to first order; a second one from there, with the same H, to second order. If the points of a
    model move with θ, the mean moves with them. If it is not ``exact``, the mean is a constant.

    On several ranks, the gradients are summed before :math:`H^{-1}`, together with the variances.
    """
    if exact and memory.exact and search.steps != 0:
        view = space.centred(Memory(space, x, w).start(), x)
        return found._replace(mean=view.mean, variance=view.variance(w), view=view)
    backend, ranks = backend_of(x), memory if isinstance(memory, Ranks) else None
    stop, dim, count = backend.stop_gradient, space.dim, len(found.sums)
    rough = 0.0 if search.steps is None else ROUGH_DERIVATIVE

    def function(order: int, constants: Arrays, x: Array, w: Array, *learnt: Array) -> Arrays:
        mean, sums, saved = constants[0], constants[1 : count + 1], constants[count + 1 :]
        own = with_parameters(space, learnt)
        base = own.project(mean) if learnt else mean
        at = own.centred(base, x, saved)
        if ranks is None:
            variance: Arrays = ()
        elif order and not exact:
            variance = (ranks.total(if_weighted(w, at.variance(w))),)
        else:
            whole = ranks.evaluation(at, w, Sums(*sums))
            variance = (whole.variance,)
        if order == 0 or not exact:
            return base, *variance, *at.image
        hessian = at.hessian(w) if ranks is None else whole.hessian()

        def solved(here: Array) -> Array:
            """Reduce, and multiply by H⁻¹."""
            assert ranks is not None
            change, there = pieces(ranks.total(here), [dim, here.shape[-1] - dim])
            return namespace_of(here).concat([inverse(hessian, change, rough), there], axis=-1)

        moved = base
        for k in range(order):
            at = at if k == 0 else own.centred(moved, x, saved)
            g = at.gradient(w)
            change = g - stop(g)
            if ranks is None:
                step = inverse(hessian, change, rough)
            else:
                here = namespace_of(g).concat([change, at.variance(w)], axis=-1)
                here = if_weighted(w, here)
                # H⁻¹ may take further reductions: backwards, too, they come after this one
                both = solved(here) if dim <= DENSE else backend.self_adjoint(solved, here)
                step, there = pieces(both, [dim, here.shape[-1] - dim])
                # a step from a mean that was not reached changes the variance
                variance = (there - 2.0 * own.by_block(whole.g * step),)
            image = at.followed(step) if order == 1 else None
            if image is not None:
                return base + at.push(step), *variance, *image
            point = at.shift(step)
            moved = mean + (point - stop(point))
        return moved, *variance, *own.centred(moved, x, saved).image

    constants, learnt = (found.mean, *found.sums, *found.view.saved), parameters_of(space)
    mean, *image = backend.differentiate(function, constants, x, w, *learnt)
    variance = None if ranks is None else image.pop(0)
    view = space.centred(mean, x, found.view.saved).showing(*image)
    variance = view.variance(w) if variance is None else variance
    return found._replace(mean=mean, variance=variance, view=view)
