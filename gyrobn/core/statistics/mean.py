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
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gyrobn.core.backends import Array, Arrays, backend_of, device_of, namespace_of
from gyrobn.core.manifolds.centred import Centred
from gyrobn.core.manifolds.gyrospace import GyroSpace
from gyrobn.core.numerics.arrays import pieces
from gyrobn.core.numerics.hessian import DENSE, Hessian, inverse, newton_step
from gyrobn.core.statistics.sources import Look, Memory, Source, learnt_of
from gyrobn.numerics.checks import check_integer, check_number


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


class Numbers(NamedTuple):
    """The numbers that judge a mean: a few per channel, on the host if values can be read."""

    variance: Array
    """One per block, as are the next two: no block may wait for the largest one to be small."""
    residual: Array
    """Length of the gradient."""
    resolution: Array
    """Distance of the mean to its neighbours in floating point."""
    far: Array
    """Squared distance of the farthest sample, one per block, or nothing: shape (*channels, 0)."""

    def least(self, tol: float | None) -> Array:
        """Return the residual to reach in each block: ``tol``, or as much as rounding leaves."""
        xp = namespace_of(self.variance)
        tol = 8.0 * float(xp.finfo(self.variance.dtype).eps) if tol is None else tol
        return xp.maximum(tol * xp.sqrt(self.variance), 8.0 * self.resolution)

    def small(self, tol: float | None) -> Array:
        """Return whether the residual meets the tolerance in every block."""
        return namespace_of(self.variance).all(self.residual <= self.least(tol), axis=-1)


class State(NamedTuple):
    """Where the loop stands: the best mean so far, and the step to try from there."""

    mean: Array
    step: Array
    """The Newton step from the mean, in normal coordinates."""
    share: Array
    """The part of it to try: all, or a quarter after each step that was taken back."""
    gain: Array
    """How far the variance falls by the whole step, if it is quadratic along it."""
    numbers: Numbers
    count: Array
    done: Array
    """Whether the mean has converged, or never will."""
    saved: Arrays
    """The decompositions of the samples seen from the mean, in a traced loop."""


class Found(NamedTuple):
    """What :func:`find` returns; numbers of a channel are on the host where they can be."""

    mean: Array
    variance: Array
    """One per block."""
    view: Centred
    """The samples seen from the mean."""
    evaluations: Array
    """The number of evaluations, passes over the samples."""
    residual: Array
    """Length of the gradient."""
    converged: Array
    far: Array | None = None
    """Squared distance of the farthest sample, one per block, on spaces where a mean need not be
    unique."""


def solve(source: Source, init: Array | None, search: Search) -> tuple[State, Any]:
    """Run the loop, and return where it ended and the view from there, if it has one."""
    space, (tol, max_iter, steps) = source.space, search
    mean = source.start() if init is None else init
    view: Any = None

    def step_of(look: Look, numbers: Numbers, done: Array) -> tuple[Array, Array]:
        """Return the Newton step, and its gain: none if all is done."""
        if steps is None and not backend_of(done).traced(done) and bool(done.all()):
            return look.g, numbers.residual[..., 0]
        tolerance = _accuracy(space, numbers, done) if steps is None else _accuracy_of_steps(mean)
        step = newton_step(look.hessian, look.g, tolerance)
        return step, _on_host(namespace_of(step).sum(step * look.g, axis=-1))

    def body(constants: Arrays, now: State) -> State:
        nonlocal view
        source, now = remade(*constants), _read(now)
        part = namespace_of(now.share).where(now.done, 0.0, now.share)
        step = _like(part, now.mean)[..., None] * now.step
        moved = source.shift(view, now.mean, step)
        trial = moved if steps is not None else _chosen(now.done, now.mean, moved)
        look = source.look(trial)
        numbers = _numbers(space, look)
        if steps is None:
            better, stuck = _judge(now, numbers, tol)
            take = better | now.done
        else:
            take, stuck = ~now.done, now.done
        all_taken = not backend_of(take).traced(take) and bool(take.all())
        view = look.view if all_taken else None
        numbers = Numbers(*map(partial(_chosen, take), numbers, now.numbers))
        done = now.done | stuck | numbers.small(tol) if steps is None else now.done
        full, gain = step_of(look, numbers, done)
        return State(
            mean=_chosen(take, trial, now.mean),
            step=_chosen(take, full, now.step),
            share=_chosen(take, namespace_of(part).ones_like(part), 0.25 * now.share),
            gain=_chosen(take, gain, now.gain),
            numbers=numbers,
            count=now.count + namespace_of(done).astype(~now.done, now.count.dtype),
            done=done,
            saved=tuple(
                _chosen(take, new, old, lead=1)
                for new, old in zip(_saved(look.view), now.saved, strict=True)
            ),
        )

    constants, remade = source.arrays()
    look = source.look(mean)
    numbers, view = _numbers(space, look), look.view
    # a sample off the manifold is NaN from everywhere: no step helps
    sound = _finite(numbers)
    done = numbers.small(tol) | ~sound if steps is None and not space.flat else ~sound
    if space.flat and steps is None:
        done = done | sound
    full, gain = step_of(look, numbers, done)
    xp = namespace_of(gain)
    state = State(
        mean=mean,
        step=full,
        share=xp.ones_like(gain),
        gain=gain,
        numbers=numbers,
        count=xp.astype(xp.ones_like(gain), xp.int32),
        done=done,
        saved=_saved(look.view),
    )
    limit = max_iter - 1 if steps is None else steps
    state = backend_of(mean).while_loop(
        (space, search, source),
        lambda now: ~now.done.all() if steps is None else True,
        body,
        constants,
        state,
        limit,
    )
    return state, view if view is not None and view.mean is state.mean else None


def _saved(view: Centred | None) -> Arrays:
    """Return what a traced loop carries of a view."""
    return view.saved if view is not None and backend_of(view.mean).traced(view.mean) else ()


def _finite(numbers: Numbers) -> Array:
    xp = namespace_of(numbers.variance)
    return xp.isfinite(xp.sum(numbers.variance, axis=-1) + xp.sum(numbers.residual, axis=-1))


def _judge(old: State, new: Numbers, tol: float | None) -> tuple[Array, Array]:
    """Return whether a step is good; and whether it shows that only rounding errors are left.

    On a sphere the gradient also vanishes where the variance is largest, and grows on the way down
    from there. So the variance decides, as long as the gain that the step promised can be seen in
    it, and after that the gradient.
    """
    xp, was, gain = namespace_of(old.gain), old.numbers, old.share * old.gain
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


def _accuracy(space: GyroSpace, numbers: Numbers, done: Array) -> float:
    """Return the error that may be left in a step by conjugate gradients, relative to it.

    The closer the mean is, the better is an exact step: what is left of the residual, relative to
    the standard deviation, is its square. A step as good as that saves an evaluation.
    """
    if space.dim <= DENSE or backend_of(done).traced(done):
        return 1e-4
    residual, variance = (
        values[~done].astype(np.float64) for values in (numbers.residual, numbers.variance)
    )
    ratio = float(np.sqrt(np.min(residual**2 / (variance + 1e-300), initial=1.0)))
    return min(max(1e-2 * ratio, 1e-9), 1e-3)


def _accuracy_of_steps(like: Array) -> float:
    """Return that error if a number of steps was given: a step is short, half the digits do."""
    return math.sqrt(float(namespace_of(like).finfo(like.dtype).eps))


# ---------------------------------------------------------------------- numbers that decide


def _numbers(space: GyroSpace, look: Look) -> Numbers:
    """Return the numbers of a mean, on the host if they can be: the one wait for a GPU."""
    xp = namespace_of(look.g)
    shape = (*look.g.shape[:-1], len(space.blocks))
    resolution = xp.broadcast_to(look.resolution, shape)
    parts = [look.variance, space.by_block(look.g * look.g), resolution, *look.far]
    packed = _on_host(xp.concat(parts, axis=-1))
    sizes = [part.shape[-1] for part in parts]
    variance, square, resolution, *far = pieces(packed, sizes)
    least = far[0] if far else variance[..., :0]
    return Numbers(variance, namespace_of(packed).sqrt(square), resolution, least)


def _on_host(values: Array) -> Array:
    """Return small arrays on the host if they can be read."""
    backend = backend_of(values)
    return values if backend.traced(values) else backend.to_numpy(values)


def _read(state: State) -> State:
    """Return a state with its numbers on the host, if they can be read."""
    numbers = Numbers(*map(_on_host, state.numbers))
    share, gain, count, done = map(_on_host, (state.share, state.gain, state.count, state.done))
    return state._replace(share=share, gain=gain, numbers=numbers, count=count, done=done)


def _like(values: Array, like: Array) -> Array:
    """Return numbers from the host in the library and on the device of ``like``."""
    xp = namespace_of(like)
    if namespace_of(values) is xp:
        return values
    return xp.asarray(values, device=device_of(like))


def _chosen(take: Array, new: Array, old: Array, lead: int = 0) -> Array:
    """Return the new values of the channels to take, and the old values of the others.

    ``lead`` axes stand before the channels.
    """
    if not backend_of(take).traced(take):
        if take.all():
            return new
        if not take.any():
            return old
    xp = namespace_of(new)
    mask = _like(take, new)
    return xp.where(mask[(..., *(None,) * (new.ndim - lead - mask.ndim))], new, old)


# ---------------------------------------------------------------------- from samples to a mean


def find(
    space: GyroSpace,
    x: Array,
    w: Array,
    init: Array | None,
    search: Search,
    exact: bool = True,
    group: Any = None,
) -> Found:
    """Find the mean of samples in memory or on several ranks, with its derivatives.

    Without ``exact`` the mean is a constant, and the variance has the derivative of the mean
    squared distance to it.
    """
    backend = backend_of(x)
    stop, constant = backend.stop_gradient, space.detached()
    source = Memory(constant, stop(x), stop(w), group)
    state, view = solve(source, init, search)
    mean, numbers = state.mean, state.numbers
    sound = _finite(numbers)
    mean = _chosen(sound, mean, namespace_of(mean).full_like(mean, math.nan))
    if view is None or view.mean is not mean:
        view = constant.centred(mean, source.x, state.saved)
    variance = None
    if backend.differentiable(x, w, *space.learnable()):
        view, variance = _with_derivatives(space, view, x, w, exact, source)
    if variance is None:
        variance = source.total(view.variance(w))
    xp = namespace_of(numbers.residual)
    residual = xp.sqrt(xp.sum(numbers.residual**2, axis=-1))
    converged = (state.done if search.steps is None else numbers.small(search.tol)) & sound
    far = numbers.far if numbers.far.shape[-1] else None
    return Found(view.mean, variance, view, state.count, residual, converged, far)


def _with_derivatives(
    space: GyroSpace, view: Centred, x: Array, w: Array, exact: bool, source: Memory
) -> tuple[Centred, Array | None]:
    r"""Return the view from the mean with its derivatives, and the variance over all ranks.

    The mean is where :math:`g(x, w, \theta; \mu) = \sum_i w_i \operatorname{Log}_e(\ominus\mu
    \oplus x_i)` is zero, θ the parameters of the geometry. So a change of the others moves it by
    :math:`\delta = H^{-1}\,dg` in normal coordinates. Such a step from the constant mean is right
    to first order; a second one from there, with the same H, to second order. If the points of a
    model move with θ, the mean moves with them.

    On several ranks, the gradients are summed before :math:`H^{-1}`, together with the variances.
    """
    stop, total, ranks = backend_of(x).stop_gradient, source.total, source.group is not None
    learnt, remade = learnt_of(space)

    def function(order: int, constants: Arrays, x: Array, w: Array, *learnt: Array) -> Arrays:
        mean, *rest = constants
        saved = tuple(rest)
        own = remade(learnt)
        base = own.project(mean) if learnt else mean
        at = own.centred(base, x, saved)
        if space.flat or order == 0 or not exact:
            sums = (total(at.variance(w)),) if ranks else ()
            return base, *sums, *at.image
        hessian: Hessian = source.whole(at.hessian(w), at, w)
        moved = base
        for k in range(order):
            at = at if k == 0 else own.centred(moved, x, saved)
            g = at.gradient(w)
            parts = [g - stop(g)]
            if ranks:
                parts.append(at.variance(w))
            summed = total(namespace_of(g).concat(parts, axis=-1)) if ranks else parts[0]
            dim = g.shape[-1]
            step = inverse(hessian, summed[..., :dim])
            sums = ()
            if ranks:  # a step from a mean that was not reached changes the variance
                fall = own.by_block(total(stop(g)) * step)
                sums = (summed[..., dim:] - 2.0 * fall,)
            image = at.followed(step) if order == 1 else None
            if image is not None:
                return base + at.push(step), *sums, *image
            point = at.shift(step)
            moved = base + (point - stop(point))
        return moved, *sums, *own.centred(moved, x, saved).image

    if space.flat and exact:
        flat = Memory(space, x, w, source.group)
        mean = flat.start()
        at = space.centred(mean, x, view.saved)
        return at, total(at.variance(w)) if ranks else None
    constants = (view.mean, *view.saved)
    mean, *image = backend_of(x).differentiate(function, constants, x, w, *learnt)
    variance = image.pop(0) if ranks else None
    return space.centred(mean, x, view.saved).showing(*image), variance
