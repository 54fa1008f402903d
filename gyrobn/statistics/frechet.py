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
from gyrobn.numerics.arrays import check_floating, eps_of, pieces, real_like
from gyrobn.numerics.checks import check_choice, check_integer, check_number
from gyrobn.numerics.hessian import DENSE, inverse, newton_step
from gyrobn.statistics.lazy import in_blocks, in_chunks, in_dask
from gyrobn.statistics.samples import (
    Evaluation,
    Group,
    Memory,
    Ranks,
    Source,
    Sums,
    arrange,
    over_ranks,
    parameters_of,
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
        source, given = in_dask(constant, x, weights)
        return of_source(manifold, source, given, search, start)

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
        view = manifold.inside.centred(manifold.to_inside(mean), manifold.to_inside(samples))
        return manifold.squeeze_blocks(view.variance(w))

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
    iterations: Array | int
    """The number of evaluations, passes over the samples."""
    residual: Array
    """Length of the gradient."""
    converged: Array
    view: Centred
    """The samples seen from the mean, inside the manifold."""
    sums: Sums


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
        check_floating(*map(real_like, (x, init)))
        if tuple(init.shape) != tuple(x.shape[1:]):
            raise ValueError(f"init must have shape {tuple(x.shape[1:])}, got {tuple(init.shape)}")
        start = stop(manifold.to_inside(init))
    if group is None:
        memory = Memory(constant, stop(y), stop(w))
    else:
        first, w = over_ranks(constant, stop(y), w, group)
        memory = Ranks(constant, stop(y), stop(w), group.ranks)
        start = stop(first) if start is None else start
    source = memory if steps is not None else in_blocks(memory)
    found = solve(source, start, search)
    if source is not memory:
        found = found._replace(view=memory.view(found.mean))
    inputs = y, w, *parameters_of(space)
    if backend.differentiable(*inputs):
        found = _with_derivatives(memory, found, inputs, mean_gradient == "implicit", search)
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
    mean, variance, count, *numbers = found[:5]
    xp = namespace_of(mean)
    if isinstance(count, int):
        count = xp.full(numbers[0].shape, count, dtype=xp.int32, device=device_of(mean))
    return FrechetResult(mean, variance, *(like(a, mean) for a in (count, *numbers)))


def _outside(manifold: GyroSpace, found: Found) -> Found:
    """Map the mean out of the space in which it was found; one block needs no axis."""
    variance = manifold.squeeze_blocks(found.variance)
    return found._replace(mean=manifold.from_inside(found.mean), variance=variance)


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
    share: Array
    """The part of the next step to try: all, or a quarter after each step that was undone."""
    count: Array
    """The number of evaluations."""
    done: Array
    """Whether the mean has converged, or never will."""

    def finite(self) -> Array:
        """Return whether variance and residual are finite."""
        xp = namespace_of(self.goal)
        return xp.isfinite(xp.sum(self.variance + self.residual, axis=-1))


class State(NamedTuple):
    """Where the loop stands: the best mean so far, and the step to try from there."""

    mean: Array
    saved: Arrays
    """The decompositions of the view from the mean."""
    sums: Sums
    step: Array
    """The Newton step from the mean, in normal coordinates."""
    numbers: Numbers


def solve(source: Source, init: Array | None, search: Search) -> Found:
    """Find the mean of samples, as a constant."""
    space, (tol, max_iter, steps) = source.space, search
    exact = source.exact and steps is None
    mean = source.start() if init is None or exact else init
    if steps is not None:
        return _take_steps(source, mean, search)
    backend = backend_of(mean)
    traced = any(map(backend.traced, (mean, *source.arrays())))

    def body(constants: Arrays, now: State) -> State:
        own, was = source, now.numbers
        if traced:
            own, was = source.with_arrays(*constants), Numbers(*_read(*was))
        step = like(was.share, now.mean)[..., None] * now.step
        trial = own.view(now.mean, now.saved).shift(step)
        at = own.evaluate(_chosen(was.done, now.mean, trial))
        new = _numbers(at, tol, now.step * now.sums.added[..., : space.dim])
        better, stuck = _judge(was, new)
        take = better | was.done
        share = namespace_of(take).where(take, 1.0, 0.25 * was.share)
        done = was.done | stuck | (take & new.done)
        found = at.view.mean, at.sums, _step(at, new, take & ~done), new
        mean, sums, step, numbers = _chosen(take, found, (now.mean, now.sums, now.step, was))
        saved = _chosen(take, at.view.saved, now.saved, lead=1)
        numbers = numbers._replace(share=share, count=was.count + ~was.done, done=done)
        return State(mean, saved, sums, step, numbers)

    at = source.evaluate(mean)
    numbers = _numbers(at, tol, at.variance)
    if exact:
        numbers = numbers._replace(done=numbers.finite())
    state = State(mean, at.view.saved, at.sums, _step(at, numbers, ~numbers.done), numbers)
    if not exact:
        key, going = (space, search, source), lambda now: ~now.numbers.done.all()
        state = backend.while_loop(key, going, body, source.arrays(), state, max_iter - 1)
    mean, saved, sums, _, numbers = state
    sound, variance = numbers.finite(), like(numbers.variance, mean)
    # the mean is NaN where no evaluation was finite
    mean, variance = _chosen(sound, (mean, variance), (mean * math.nan, variance * math.nan))
    residual, xp = _length(numbers.residual), namespace_of(numbers.residual)
    # far out in hyperbolic space, a distance of one is not resolved
    digits = (xp.max(numbers.resolution, axis=-1) < 1.0) | exact
    converged = numbers.done & sound & digits
    return Found(mean, variance, numbers.count, residual, converged, source.view(mean, saved), sums)


def _take_steps(source: Source, mean: Array, search: Search) -> Found:
    """Take exactly that many steps; no value is read."""
    steps, loop = search.steps or 0, backend_of(mean).while_loop

    def body(constants: Arrays, state: tuple[Array]) -> tuple[Array]:
        at = source.with_arrays(*constants).evaluate(*state)
        return (at.view.shift(newton_step(at.hessian(), at.g, ROUGH)),)

    key = source.space, search, source
    (mean,) = loop(key, lambda _: True, body, source.arrays(), (mean,), steps)
    at = source.evaluate(mean)
    numbers = _numbers(at, search.tol, at.variance, read=False)
    residual, small = _length(numbers.residual), numbers.done & numbers.finite()
    return Found(mean, at.variance, steps + 1, residual, small, at.view, at.sums)


def _step(at: Evaluation, numbers: Numbers, wanted: Array) -> Array:
    """Return the Newton step, if any channel wants one.

    The closer the mean is, the better is an exact step: what is left of the residual, relative to
    the standard deviation, is its square. A step by conjugate gradients that is as good as that
    saves an evaluation.
    """
    tol = 1e-4
    if isinstance(wanted, HOST):
        if not wanted.any():
            return at.g
        if at.g.shape[-1] > DENSE:
            ratio = numbers.residual[wanted] / np.sqrt(numbers.variance[wanted] + 1e-300)
            tol = min(max(1e-2 * float(np.min(ratio)), 1e-9), 1e-3)
    return newton_step(at.hessian(), at.g, tol)


def _judge(was: Numbers, new: Numbers) -> tuple[Array, Array]:
    """Return whether a step is good; and whether it shows that only rounding errors are left.

    On a sphere the gradient also vanishes where the variance is largest, and grows on the way down
    from there. So the variance decides, as long as the gain that the step promised can be seen in
    it, and after that the gradient.
    """
    xp, gain = namespace_of(was.share), was.share * new.gain
    some = eps_of(gain) ** 0.5
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
    near = xp.all(was.residual <= 64.0 * was.resolution, axis=-1) & (was.share <= 1.0 / 64.0)
    return better, (close & xp.all(still, axis=-1)) | ((close | near) & ~better)


def _numbers(at: Evaluation, tol: float | None, gain: Array, read: bool = True) -> Numbers:
    """Return the numbers of a mean, as NumPy arrays if they can be: the one wait for a GPU.

    ``gain`` are terms, of which the sum is that of :class:`Numbers`.
    """
    squares = at.view.space.by_block(at.g * at.g)
    xp, k = namespace_of(squares), squares.shape[-1]
    resolution = xp.broadcast_to(at.resolution, squares.shape)
    gain = xp.sum(gain, axis=-1, keepdims=True)
    packed = xp.concat([at.variance, squares, resolution, gain], axis=-1)
    (packed,) = _read(packed) if read else (packed,)
    variance, squares, resolution, gain = pieces(packed, [k, k, k, 1])
    goal, xp = least_residual(variance, resolution, tol), namespace_of(variance)
    residual, share = xp.sqrt(squares), xp.ones_like(gain[..., 0])
    count, small = xp.astype(share, xp.int32), xp.all(residual <= goal, axis=-1)
    judged = Numbers(variance, residual, resolution, goal, gain[..., 0], share, count, small)
    # a sample off the manifold is NaN from everywhere: no step helps
    return judged._replace(done=small | ~judged.finite())


def _length(residual: Array) -> Array:
    """Return the length of the gradient, of all blocks together."""
    xp = namespace_of(residual)
    return xp.sqrt(xp.sum(residual * residual, axis=-1))


def least_residual(variance: Array, resolution: Array, tol: float | None) -> Array:
    """Return the residual to reach: ``tol`` standard deviations, or as much as rounding leaves."""
    xp = namespace_of(variance)
    tol = 8.0 * eps_of(variance) if tol is None else tol
    return xp.maximum(tol * xp.sqrt(variance), 8.0 * resolution)


# ---------------------------------------------------------------------- arrays of the loop

HOST = np.ndarray, np.generic
"""What the numbers of a channel are if they can be read; traced otherwise."""


def _read(*values: Array) -> Arrays:
    """Return numbers as NumPy arrays if all of them can be read."""
    backend = backend_of(values[0])
    if any(map(backend.traced, values)):
        return values
    return tuple(map(backend.to_numpy, values))


def like(values: Array, x: Array) -> Array:
    """Return numbers in the library and on the device of x."""
    if type(values) is type(x):
        return values
    return namespace_of(x).asarray(values, device=device_of(x))


def _chosen(take: Array, new: Any, old: Any, lead: int = 0) -> Any:
    """Return the new values of the channels to take, and the old values of the others.

    They are arrays or tuples of arrays, with ``lead`` axes before the channels.
    """
    if isinstance(take, HOST):
        if take.all():
            return new
        if not take.any():
            return old
    if isinstance(new, tuple):
        each = [_chosen(take, a, b, lead) for a, b in zip(new, old, strict=True)]
        return type(new)(*each) if hasattr(new, "_fields") else tuple(each)
    xp, mask = namespace_of(new), like(take, new)
    return xp.where(mask[(..., *(None,) * (new.ndim - lead - mask.ndim))], new, old)


# ---------------------------------------------------------------------- derivatives


def _with_derivatives(
    source: Memory, found: Found, inputs: Arrays, exact: bool, search: Search
) -> Found:
    r"""Return a mean, the variance and the view with their derivatives.

    The mean is where :math:`g(x, w, \theta; \mu) = \sum_i w_i \operatorname{Log}_e(\ominus\mu
    \oplus x_i)` is zero, θ the parameters of the geometry. So a change of the others moves it by
    :math:`\delta = H^{-1}\,dg` in normal coordinates. Such a step from the constant mean is right
    to first order; a second one from there, with the same H, to second order. If the points of a
    model move with θ, the mean moves with them. If it is not ``exact``, the mean is a constant.

    Gradient and variance are reduced together, before :math:`H^{-1}`. A step from a mean that was
    not reached changes the variance.
    """
    backend, dim, blocks = backend_of(found.mean), source.space.dim, len(source.space.blocks)
    stop, rough = backend.stop_gradient, 0.0 if search.steps is None else ROUGH_DERIVATIVE
    if exact and source.exact and search.steps != 0:
        own = source.with_arrays(*inputs)
        view = own.view(own.start())
        return found._replace(mean=view.mean, variance=view.variance(own.w), view=view)

    def function(order: int, constants: Arrays, *inputs: Array) -> Arrays:
        mean, variance, *rest = constants
        sums, saved, own = Sums(*rest[:2]), tuple(rest[2:]), source.with_arrays(*inputs)
        base = own.space.project(mean) if len(inputs) > 2 else mean
        at = own.view(base, saved)
        if order == 0:
            return base, variance, *at.image
        if not exact:
            return base, own.reduced(at.variance(own.w)), *at.image
        hessian = own.hessian(at, sums)

        def solved(here: Array) -> Array:
            """Reduce, and multiply by H⁻¹."""
            change, variance = pieces(own.reduced(here), [dim, blocks])
            return namespace_of(here).concat([inverse(hessian, change, rough), variance], axis=-1)

        moved = base
        for k in range(order):
            at = at if k == 0 else own.view(moved, saved)
            g = at.gradient(own.w)
            here = namespace_of(g).concat([g - stop(g), at.variance(own.w)], axis=-1)
            # H⁻¹ may take further reductions: backwards, too, they come after this one
            both = solved(here) if dim <= DENSE else backend.self_adjoint(solved, here)
            step, variance = pieces(both, [dim, blocks])
            variance = variance - 2.0 * own.space.by_block(sums.added[..., :dim] * step)
            image = at.followed(step) if order == 1 else None
            if image is not None:
                return base + at.push(step), variance, *image
            point = at.shift(step)
            moved = mean + (point - stop(point))
        return moved, variance, *own.view(moved, saved).image

    constants = found.mean, found.variance, *found.sums, *found.view.saved
    mean, variance, *image = backend.differentiate(function, constants, *inputs)
    view = source.with_arrays(*inputs).view(mean, found.view.saved).showing(*image)
    return found._replace(mean=mean, variance=variance, view=view)
