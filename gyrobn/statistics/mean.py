r"""The gyro-Newton loop that finds the mean of samples on every geometry, and its derivative.

.. math:: c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i), \qquad g = \sum_i w_i c_i, \qquad
          \mu \leftarrow \mu \oplus \operatorname{Exp}_e(H^{-1} g)

with H the mean Hessian of half the squared distance, which has a closed form on a symmetric space.
A step that lowers neither the variance nor, where that no longer changes, the residual
:math:`\|g\|`, is taken back and tried again at a quarter of its length, so the loop cannot diverge.
Channels are solved together; one that is done stops moving, and one with a sample that is not on
the manifold never begins to.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import pieces
from gyrobn.numerics.checks import check_integer, check_number
from gyrobn.numerics.hessian import DENSE, inverse, newton_step
from gyrobn.statistics.parts import in_blocks
from gyrobn.statistics.sources import (
    Evaluation,
    Group,
    Memory,
    Ranks,
    Source,
    if_weighted,
    learnt_of,
    over_ranks,
)

ROUGH = 1e-2
"""Accuracy of a step by conjugate gradients, if a number of steps is given: a step is short."""
ROUGH_DERIVATIVE = 1e-5
"""Accuracy of the derivative by conjugate gradients of a mean that those steps need not reach."""


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
    """What a search has found; numbers of a channel are on the host where they can be."""

    mean: Array
    variance: Array
    """One per block."""
    view: Centred
    """The samples seen from the mean, as :class:`Evaluation` has them."""
    evaluations: Array | int
    """The number of evaluations, passes over the samples."""
    status: Callable[[], tuple[Array, Array]]
    """Return the length of the gradient, and whether the mean has converged."""
    far: Array | None = None
    """Squared distance of the farthest sample, one per block, on spaces where a mean need not be
    unique, after a search to convergence."""
    sums: Arrays = ()
    """The sums of :class:`Evaluation`."""
    searched: bool = True
    """Whether the mean was searched for, and is not the centroid."""


def solve(source: Source, init: Array | None, search: Search) -> Found:
    """Find the mean of samples, as a constant."""
    if search.steps is not None:
        return _take_steps(source, source.start() if init is None else init, search)
    return _converge(source, source.start() if init is None or source.exact else init, search)


def _take_steps(source: Source, mean: Array, search: Search) -> Found:
    """Take exactly that many steps; no value is read."""
    constants, remade = source.arrays()
    steps = search.steps or 0

    def body(constants: Arrays, state: tuple[Array]) -> tuple[Array]:
        at = remade(*constants).evaluate(*state)
        return (at.view.shift(newton_step(at.hessian(), at.g, ROUGH)),)

    key, loop = (source.space, search, source), backend_of(mean).while_loop
    (mean,) = loop(key, lambda state: True, body, constants, (mean,), steps)
    at = source.evaluate(mean)
    status = partial(_status, source.space, at, search.tol)
    return Found(mean, at.variance, at.view, steps + 1, status, None, at.sums)


def _status(space: GyroSpace, at: Evaluation, tol: float | None) -> tuple[Array, Array]:
    """Return the residual at a mean, and whether it is small."""
    numbers = _numbers(space, at, at.variance[..., :1])
    return numbers.length, numbers.small(tol)


# ---------------------------------------------------------------------- search to convergence


class Numbers(NamedTuple):
    """The numbers that judge a mean: a few per channel, on the host if values can be read."""

    variance: Array
    """One per block, as are the next two: no block may wait for the largest one to be small."""
    residual: Array
    """Length of the gradient."""
    resolution: Array
    """Distance of the mean to its neighbours in floating point."""
    gain: Array
    """How far the variance falls by the whole step that led here, if it is quadratic along it;
    shape (*channels, 1)."""
    far: Array
    """Squared distance of the farthest sample, one per block, or nothing: shape (*channels, 0)."""

    @property
    def length(self) -> Array:
        """The length of the gradient, of all blocks together."""
        xp = namespace_of(self.residual)
        return xp.sqrt(xp.sum(self.residual * self.residual, axis=-1))

    def least(self, tol: float | None) -> Array:
        """Return the residual to reach in each block: ``tol``, or as much as rounding leaves."""
        return least_residual(self.variance, self.resolution, tol)

    def small(self, tol: float | None) -> Array:
        """Return whether the residual meets the tolerance in every block."""
        return namespace_of(self.variance).all(self.residual <= self.least(tol), axis=-1)

    def finite(self) -> Array:
        """Return whether variance and residual are finite."""
        xp = namespace_of(self.variance)
        return xp.isfinite(xp.sum(self.variance + self.residual, axis=-1))


def least_residual(variance: Array, resolution: Array, tol: float | None) -> Array:
    """Return the residual to reach: ``tol`` standard deviations, or as much as rounding leaves."""
    xp = namespace_of(variance)
    tol = 8.0 * float(xp.finfo(variance.dtype).eps) if tol is None else tol
    return xp.maximum(tol * xp.sqrt(variance), 8.0 * resolution)


class State(NamedTuple):
    """Where the loop stands: the best mean so far, and the step to try from there."""

    mean: Array
    step: Array
    """The Newton step from the mean, in normal coordinates."""
    gain: Array
    """How far the variance falls by the whole step, if it is quadratic along it."""
    share: Array
    """The part of it to try: all, or a quarter after each step that was taken back."""
    numbers: Numbers
    count: Array
    done: Array
    """Whether the mean has converged, or never will."""
    saved: Arrays
    """The decompositions of the samples seen from the mean, in a traced loop."""
    sums: Arrays
    """Those of :class:`Evaluation`."""


def _converge(source: Source, mean: Array, search: Search) -> Found:
    """Run the loop until the mean of every channel has converged."""
    space, (tol, max_iter, _) = source.space, search
    traced = backend_of(mean).traced(mean)
    constants, remade = source.arrays()
    at = source.evaluate(mean)
    view: Centred | None = at.view

    def stepped(at: Evaluation, state: State, take: Array) -> State:
        """Return the state with the Newton step, unless no channel needs one."""
        if _readable(take) and not (take & ~state.done).any():
            return state
        step = newton_step(at.hessian(), at.g, _accuracy(space, state))
        gain = namespace_of(step).sum(step * at.g, axis=-1, keepdims=True)
        return state._replace(step=step, gain=gain)

    def body(constants: Arrays, now: State) -> State:
        nonlocal view
        now = _read(now) if traced else now
        own, xp = remade(*constants), namespace_of(now.share)
        if view is None or view.mean is not now.mean:
            view = own.view(now.mean, now.saved)
        step = like(now.share, now.mean)[..., None] * now.step
        trial = _chosen(now.done, now.mean, view.shift(step))
        at = own.evaluate(trial)
        numbers = _numbers(space, at, now.gain)
        better, stuck = _judge(now, numbers, tol)
        take = better | now.done
        now = now._replace(count=now.count + ~now.done, done=now.done | stuck)
        new = now._replace(
            mean=trial,
            share=xp.ones_like(now.share),
            numbers=numbers,
            done=now.done | numbers.small(tol),
            sums=at.sums,
        )
        old = now._replace(share=0.25 * now.share)
        saved = _chosen(take, at.view.saved if now.saved else (), now.saved, lead=1)
        new, old = stepped(at, new, take)._replace(saved=()), old._replace(saved=())
        state: State = _chosen(take, new, old)._replace(saved=saved)
        view = at.view if state.mean is trial and not traced else None
        return state

    numbers = _numbers(space, at, at.variance[..., :1])
    # a sample off the manifold is NaN from everywhere: no step helps
    done = numbers.small(tol) | ~numbers.finite()
    xp, one = namespace_of(done), numbers.gain[..., 0]
    state = State(
        mean=mean,
        step=at.g,
        gain=at.variance[..., :1],
        share=xp.ones_like(one),
        numbers=numbers,
        count=xp.astype(xp.ones_like(one), xp.int32),
        done=done,
        saved=at.view.saved if traced else (),
        sums=at.sums,
    )
    if not source.exact:
        key, loop = (space, search, source), backend_of(mean).while_loop
        first = stepped(at, state, ~done)
        state = loop(key, lambda now: ~now.done.all(), body, constants, first, max_iter - 1)
    return _found(source, view, state)


def _found(source: Source, view: Centred | None, state: State) -> Found:
    """Return what the loop has found; the mean is NaN where no evaluation was finite."""
    numbers, sound = state.numbers, state.numbers.finite()
    values = state.mean, like(numbers.variance, state.mean)
    mean, variance = (_chosen(sound, a, namespace_of(a).full_like(a, math.nan)) for a in values)
    if view is None or view.mean is not mean:
        view = source.view(mean, state.saved)
    converged = sound if source.exact else state.done & sound
    far = numbers.far if numbers.far.shape[-1] else None
    status = lambda: (numbers.length, converged)  # noqa: E731
    return Found(mean, variance, view, state.count, status, far, state.sums)


def _judge(old: State, new: Numbers, tol: float | None) -> tuple[Array, Array]:
    """Return whether a step is good; and whether it shows that only rounding errors are left.

    On a sphere the gradient also vanishes where the variance is largest, and grows on the way down
    from there. So the variance decides, as long as the gain that the step promised can be seen in
    it, and after that the gradient.
    """
    xp, was, gain = namespace_of(old.share), old.numbers, old.share * new.gain[..., 0]
    some = float(xp.finfo(gain.dtype).eps) ** 0.5
    after, before = xp.sum(new.variance, axis=-1), xp.sum(was.variance, axis=-1)
    lower = (gain > some * before) & (after <= before - 0.1 * gain)
    nearer = xp.all((new.residual < was.residual) | (new.residual <= new.least(tol)), axis=-1)
    # rounding errors of the distances are no reason to reject a step either
    slack = some * before + 16.0 * xp.sqrt(before) * xp.max(was.resolution, axis=-1)
    better = lower | ((after <= before + slack) & nearer)
    close = xp.all(was.residual <= some * xp.sqrt(was.variance), axis=-1)
    # a Newton step that does not halve a residual near its bound has met rounding errors
    still = (new.residual > 0.5 * was.residual) & (was.residual <= 64.0 * was.least(tol))
    # If the samples differ by rounding errors only, no residual is small against their standard
    # deviation. Then steps shorter than the resolution fail, too. (Far out it is coarse: long steps
    # prove little.)
    near = xp.all(was.residual <= 64.0 * was.resolution, axis=-1) & (old.share <= 1.0 / 64.0)
    return better, (close & xp.all(still, axis=-1)) | ((close | near) & ~better)


def _accuracy(space: GyroSpace, state: State) -> float:
    """Return the error that may be left in a step by conjugate gradients, relative to it.

    The closer the mean is, the better is an exact step: what is left of the residual, relative to
    the standard deviation, is its square. A step as good as that saves an evaluation.
    """
    if space.dim <= DENSE or not _readable(state.done):
        return 1e-4
    residual, variance = (
        values[~state.done].astype(np.float64)
        for values in (state.numbers.residual, state.numbers.variance)
    )
    ratio = float(np.sqrt(np.min(residual**2 / (variance + 1e-300), initial=1.0)))
    return min(max(1e-2 * ratio, 1e-9), 1e-3)


# ---------------------------------------------------------------------- numbers that decide


def _numbers(space: GyroSpace, at: Evaluation, gain: Array) -> Numbers:
    """Return the numbers of a mean, on the host if they can be: the one wait for a GPU."""
    xp = namespace_of(at.g)
    square = space.by_block(at.g * at.g)
    resolution = xp.broadcast_to(at.resolution, square.shape)
    parts = [at.variance, square, resolution, gain, at.far]
    packed = _on_host(xp.concat(parts, axis=-1))
    variance, square, *rest = pieces(packed, [part.shape[-1] for part in parts])
    return Numbers(variance, namespace_of(packed).sqrt(square), *rest)


def _readable(x: Array) -> bool:
    return not backend_of(x).traced(x)


def _on_host(values: Array) -> Array:
    """Return small arrays on the host if they can be read."""
    return backend_of(values).to_numpy(values) if _readable(values) else values


def _read(state: State) -> State:
    """Return a state with its numbers on the host, if they can be read."""
    numbers = Numbers(*map(_on_host, state.numbers))
    share, count, done = map(_on_host, (state.share, state.count, state.done))
    return state._replace(share=share, numbers=numbers, count=count, done=done)


def like(values: Array, like: Array) -> Array:
    """Return numbers from the host in the library and on the device of ``like``."""
    xp = namespace_of(like)
    same = namespace_of(values) is xp
    return values if same else xp.asarray(values, device=device_of(like))


def _chosen(take: Array, new: Any, old: Any, lead: int = 0) -> Any:
    """Return the new values of the channels to take, and the old values of the others.

    They are arrays or tuples of arrays. ``lead`` axes stand before the channels.
    """
    if _readable(take):
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


def find(
    space: GyroSpace,
    x: Array,
    w: Array,
    init: Array | None,
    search: Search,
    exact: bool = True,
    group: Group | None = None,
) -> Found:
    """Find the mean of samples in memory or on several ranks, with its derivatives.

    Without ``exact`` the mean is a constant, and the variance has the derivative of the mean
    squared distance to it. The weights on the ranks of a group need not sum to one.
    """
    backend = backend_of(x)
    stop, constant = backend.stop_gradient, space.detached()
    differentiable = backend.differentiable(x, w, *space.learnable())
    if group is None:
        ranks, memory = None, Memory(constant, stop(x), stop(w))
    else:
        start, w = over_ranks(constant, stop(x), w, group)
        init = stop(start) if init is None else init
        ranks = memory = Ranks(constant, stop(x), stop(w), group)
    source = in_blocks(memory) if search.steps is None else memory
    found = solve(source, init, search)
    if source is not memory:
        found = found._replace(view=memory.view(found.mean))
    if not differentiable:
        return found
    if exact and memory.exact:
        view = space.centred(Memory(space, x, w).start(), x)
        return found._replace(mean=view.mean, variance=view.variance(w), view=view)
    rough = 0.0 if search.steps is None else ROUGH_DERIVATIVE
    return _with_derivatives(space, found, x, w, exact, ranks, rough)


def _with_derivatives(
    space: GyroSpace,
    found: Found,
    x: Array,
    w: Array,
    exact: bool,
    ranks: Ranks | None,
    rough: float,
) -> Found:
    r"""Return a mean, the variance and the view with their derivatives.

    The mean is where :math:`g(x, w, \theta; \mu) = \sum_i w_i \operatorname{Log}_e(\ominus\mu
    \oplus x_i)` is zero, θ the parameters of the geometry. So a change of the others moves it by
    :math:`\delta = H^{-1}\,dg` in normal coordinates. Such a step from the constant mean is right
    to first order; a second one from there, with the same H, to second order. If the points of a
    model move with θ, the mean moves with them.

    On several ranks, the gradients are summed before :math:`H^{-1}`, together with the variances.
    """
    backend, count = backend_of(x), len(found.sums)
    stop = backend.stop_gradient
    learnt, remade = learnt_of(space)

    def function(order: int, constants: Arrays, x: Array, w: Array, *learnt: Array) -> Arrays:
        mean, *rest = constants
        sums, saved, own = tuple(rest[:count]), tuple(rest[count:]), remade(learnt)
        base = own.project(mean) if learnt else mean
        at = own.centred(base, x, saved)
        whole = None if ranks is None else ranks.evaluated(at, w, sums)
        variance: Arrays = () if whole is None else (whole.variance,)
        if order == 0 or not exact:
            if order and ranks is not None:
                variance = (ranks.total(if_weighted(w, at.variance(w))),)
            return base, *variance, *at.image
        hessian = at.hessian(w) if whole is None else whole.hessian()

        def solved(here: Array) -> Array:
            """Reduce before H⁻¹, which may take further reductions; backwards, too."""
            assert ranks is not None
            change, there = pieces(ranks.total(here), [space.dim, here.shape[-1]])
            return namespace_of(here).concat([inverse(hessian, change, rough), there], axis=-1)

        moved = base
        for k in range(order):
            at = at if k == 0 else own.centred(moved, x, saved)
            g = at.gradient(w)
            change = g - stop(g)
            if whole is None:
                step = inverse(hessian, change, rough)
            else:
                here = namespace_of(g).concat([change, at.variance(w)], axis=-1)
                found = backend.self_adjoint(solved, if_weighted(w, here))
                step, there = pieces(found, [space.dim, here.shape[-1]])
                # a step from a mean that was not reached changes the variance
                variance = (there - 2.0 * own.by_block(whole.g * step),)
            image = at.followed(step) if order == 1 else None
            if image is not None:
                return base + at.push(step), *variance, *image
            point = at.shift(step)
            moved = mean + (point - stop(point))
        return moved, *variance, *own.centred(moved, x, saved).image

    constants = found.mean, *found.sums, *found.view.saved
    mean, *image = backend.differentiate(function, constants, x, w, *learnt)
    variance = None if ranks is None else image.pop(0)
    view = space.centred(mean, x, found.view.saved).showing(*image)
    variance = view.variance(w) if variance is None else variance
    return found._replace(mean=mean, variance=variance, view=view)


def centroid(space: GyroSpace, x: Array, w: Array, exact: bool, group: Group | None) -> Found:
    """Return the geometry's first guess of the mean, differentiated as the formula it is."""
    stop, constant = backend_of(x).stop_gradient, space.detached()
    if group is None:
        mean = Memory(space, x, w).start()
        source = Memory(constant, stop(x), stop(w))
    else:
        mean, w = over_ranks(space, x, w, group)
        source = Ranks(constant, stop(x), stop(w), group)
    if not exact:
        mean = stop(mean) if constant is space else space.project(stop(mean))
    view = space.centred(mean, x)
    variance = view.variance(w)
    if isinstance(source, Ranks):
        variance = source.total(if_weighted(w, variance))
    status = lambda: _status(constant, source.evaluate(stop(mean)), None)  # noqa: E731
    return Found(mean, variance, view, 1, status, searched=False)
