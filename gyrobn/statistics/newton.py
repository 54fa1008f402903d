r"""The gyro-Newton loop that finds the mean of samples on every geometry.

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
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.checks import check_integer, check_number
from gyrobn.numerics.hessian import DENSE
from gyrobn.numerics.solvers import newton_step
from gyrobn.statistics.held import Held, Look, Samples, choose, choose_all

__all__ = ["ROUGH_SLOPE", "Found", "Numbers", "check_search", "solve", "status"]

ROUGH = 1e-2
"""Accuracy of a Newton step with a large H, where only a few are asked for and no mean; where they
are to lead there, it takes fewer of them if each is accurate."""
ROUGH_SLOPE = 1e-5
"""Accuracy of the derivative of a mean, with a large H, that a number of steps need not reach."""


class Numbers(NamedTuple):
    """The numbers that judge a mean: a few per channel, on the host if values can be read."""

    variance: Array
    """One per block, as are the next two: no block may wait for the largest one to be small."""
    residual: Array
    """Length of the gradient."""
    resolution: Array
    """Distance of the mean to its neighbours in floating point."""
    gain: Array
    """How far the variance should fall by the step that led here, if it is quadratic along it."""
    far: Array | None
    """Squared distance of the farthest sample, if it was looked for."""

    @property
    def length(self) -> Array:
        """The length of the gradient, of all blocks together."""
        return _sum(self.residual * self.residual) ** 0.5

    def small(self, tol: float | None) -> Array:
        """Return whether the residual meets the tolerance in every block."""
        return namespace_of(self.gain).all(self.each_small(tol), axis=-1)

    def each_small(self, tol: float | None) -> Array:
        """Return whether the residual meets the tolerance, for each block."""
        return self.residual <= self.least(tol)

    def least(self, tol: float | None) -> Array:
        """Return the residual to reach in each block."""
        xp = namespace_of(self.gain)
        tol = 8.0 * float(xp.finfo(self.gain.dtype).eps) if tol is None else tol
        return xp.maximum(tol * xp.sqrt(self.variance), 8.0 * self.resolution)


class _State(NamedTuple):
    """Where the loop stands: the best mean so far, and the step that led there or failed."""

    mean: Array
    look: Look
    """The samples, seen from the mean."""
    numbers: Numbers
    step: Array
    """In normal coordinates at the mean."""
    gain: Array
    """The gain that the step promises."""
    taken: Array
    """Whether the last step was good; otherwise a part of it is tried next."""
    count: Array
    done: Array
    """Whether the mean has converged, or never will."""


class Found(NamedTuple):
    """What :func:`solve` returns; numbers of a channel are on the host where they can be."""

    mean: Array
    variance: Array | None
    """One per block; None after a number of steps, which need not know it."""
    view: Any
    """What :class:`Look` has kept of the samples, as they are seen from the mean."""
    evaluations: Array | int
    """The number of evaluations, passes over the samples."""
    residual: Array | None = None
    """Length of the gradient; None where the search did not need it: see :func:`status`."""
    converged: Array | None = None
    far: Array | None = None
    """Squared distance of the farthest sample, on spaces where a mean need not be unique."""
    status: Callable[[], tuple[Array, Array]] | None = None
    """A function that returns residual and convergence, if they are not known."""

    @property
    def told(self) -> tuple[Array, Array]:
        """Residual and convergence, computed if need be."""
        if self.residual is not None:
            return self.residual, self.converged
        assert self.status is not None
        residual, small = self.status()
        return residual, small if self.converged is None else self.converged


def solve(
    manifold: GyroSpace,
    samples: Samples,
    init: Array | None,
    tol: float | None,
    max_iter: int,
    steps: int | None = None,
) -> Found:
    """Run the loop."""
    samples = samples.prepared(manifold)
    at_once = manifold.flat and steps is None and isinstance(samples, Held)
    mean = samples.start(manifold) if init is None or at_once else init
    if isinstance(samples, Held) and (at_once or steps is not None):
        return _take_steps(manifold, samples, mean, steps)
    if steps is not None:
        return _walk(manifold, samples, mean, tol, steps)

    def body(state: tuple[Any, ...]) -> _State:
        now = _State(*state)
        old = Look(*now.look)
        full = samples.step(manifold, now.mean, old, _accuracy(now))
        step = choose(now.taken, full, lambda: 0.25 * now.step)
        trial = samples.shift(manifold, now.mean, old, step)
        new = samples.look(manifold, trial)
        numbers = _numbers(manifold, new, full, old.g)
        gain = choose(now.taken, numbers.gain, lambda: 0.25 * now.gain)
        better, stuck = _judge(Numbers(*now.numbers), numbers, gain, tol)
        take = better & ~now.done
        both = (trial, *numbers, *new[1:]), (now.mean, *now.numbers, *old[1:])
        mean, *rest = choose_all(take, *both)
        numbers, rest = Numbers(*rest[: len(numbers)]), rest[len(numbers) :]
        view = samples.merged(manifold, mean, take, new, old)
        return _State(
            mean=mean,
            look=Look(view, *rest),
            numbers=numbers,
            step=step,
            gain=gain,
            taken=better,
            count=now.count + _as_counts(~now.done),
            done=now.done | stuck | numbers.small(tol),
        )

    look = samples.look(manifold, mean)
    numbers = _numbers(manifold, look, look.g, look.g)
    always = ~(numbers.gain < 0)
    sound = _finite(numbers)  # a sample off the manifold is NaN from everywhere: no step helps
    state = _State(
        mean=mean,
        look=look,
        numbers=numbers,
        step=look.g,
        gain=numbers.gain,
        taken=always,
        count=_as_counts(always),
        done=numbers.small(tol) | ~sound,
    )
    loop = backend_of(mean).while_loop
    state = _State(*loop(lambda s: ~_State(*s).done.all(), body, state, max_iter - 1))
    return _found(state, sound)


def _take_steps(manifold: GyroSpace, samples: Held, mean: Array, steps: int | None) -> Found:
    """Take exactly that many steps, without a test for convergence; None if the mean is known."""
    x, w, known = samples
    accuracy = _accuracy_of_few(manifold, x)

    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        view = manifold.centred(state[0], x, (), known)
        return (view.shift(newton_step(view.hessian(w), view.gradient(w), accuracy)),)

    if steps:
        (mean,) = backend_of(mean).while_loop(lambda state: True, body, (mean,), steps)
    view = manifold.centred(mean, x, (), known)
    if steps is not None:
        return Found(mean, None, view, steps + 1)
    variance = view.variance(w)
    shim = backend_of(variance)
    seen = variance if shim.hides_values(variance) else shim.to_numpy(variance)
    xp = namespace_of(seen)
    return Found(mean, variance, view, 1, converged=xp.all(xp.isfinite(seen), axis=-1))


def _walk(
    manifold: GyroSpace, samples: Samples, mean: Array, tol: float | None, steps: int
) -> Found:
    """Take exactly that many steps with samples that are not all in memory here."""
    look = samples.look(manifold, mean)
    accuracy = _accuracy_of_few(manifold, mean)
    for _ in range(steps):
        mean = samples.shift(manifold, mean, look, samples.step(manifold, mean, look, accuracy))
        look = samples.look(manifold, mean)
    numbers = _numbers(manifold, look, look.g, look.g)
    small = numbers.small(tol)
    return Found(mean, look.variance, look.view, steps + 1, numbers.length, small, numbers.far)


def _found(state: _State, sound: Array) -> Found:
    """Return the result; the mean is NaN where no evaluation was finite."""
    mean, look, numbers = state.mean, Look(*state.look), Numbers(*state.numbers)
    xp, residual = namespace_of(mean), numbers.length
    known = namespace_of(residual).isfinite(residual)
    variance = choose(known, look.variance, lambda: xp.full_like(look.variance, xp.nan))
    mean = choose(known, mean, lambda: xp.full_like(mean, xp.nan))
    view = look.view
    if mean is not state.mean and isinstance(view, Centred):  # it belongs to another mean
        view = view.seen
    return Found(mean, variance, view, state.count, residual, state.done & sound, numbers.far)


# ---------------------------------------------------------------------- numbers that decide


def _accuracy(now: _State) -> float:
    """Return the error that may be left in a Newton step, relative to it.

    The closer the mean is, the better is an exact step: what is left of the residual, relative to
    the spread of the samples, is its square. A step as good as that saves an evaluation.
    """
    numbers = Numbers(*now.numbers)
    if backend_of(numbers.variance).hides_values(numbers.variance):
        return 1e-4
    residual, variance = (
        values[~now.done].astype(np.float64) for values in (numbers.residual, numbers.variance)
    )
    ratio = float(np.sqrt(np.min(residual**2 / (variance + 1e-300))))  # 0 of a block without spread
    return min(max(1e-2 * ratio, 1e-9), 1e-3)


def _accuracy_of_few(manifold: GyroSpace, x: Array) -> float:
    """Return the error that may be left in a Newton step if a number of them is asked for.

    Half the digits, where H may be a matrix: a step is short against the spread of the samples, so
    the mean does not depend on how H is inverted, which ranks do in another way. Where H is too
    large for that, they all apply it as often; that is most of a step's time.
    """
    return ROUGH if manifold.dim > DENSE else math.sqrt(float(namespace_of(x).finfo(x.dtype).eps))


def _judge(old: Numbers, new: Numbers, gain: Array, tol: float | None) -> tuple[Array, Array]:
    """Return whether a step is good; and whether it shows that only rounding errors are left.

    On a sphere the gradient also vanishes where the variance is largest, and grows on the way down
    from there. So the variance decides, as long as the gain that the step promised can be seen in
    it, and after that the gradient.
    """
    xp = namespace_of(gain)
    some = float(xp.finfo(gain.dtype).eps) ** 0.5
    after, before = _sum(new.variance), _sum(old.variance)
    lower = (gain > some * before) & (after <= before - 0.1 * gain)
    nearer = xp.all((new.residual < old.residual) | new.each_small(tol), axis=-1)
    # rounding errors of the distances are no reason to reject a step either
    slack = some * before + 16.0 * xp.sqrt(before) * xp.max(old.resolution, axis=-1)
    better = lower | ((after <= before + slack) & nearer)
    # if the samples differ by rounding errors only, no residual is small against their spread
    close = old.residual <= xp.maximum(some * xp.sqrt(old.variance), 64.0 * old.resolution)
    # a Newton step that does not halve a residual near its bound has met rounding errors
    still = (new.residual > 0.5 * old.residual) & (old.residual <= 64.0 * old.least(tol))
    return better, xp.all(close, axis=-1) & (xp.all(still, axis=-1) | ~better)


def status(manifold: GyroSpace, view: Centred, w: Array, tol: float | None) -> tuple[Array, Array]:
    """Return the residual at a mean that was not searched for, and whether it is small."""
    g = view.gradient(w)
    look = Look(None, g, view.variance(w), None, view.resolutions(w))
    numbers = _unpack(_pack(manifold, look, g, g), len(manifold.blocks), None)
    return numbers.length, numbers.small(tol)


def _numbers(manifold: GyroSpace, look: Look, full: Array, g: Array) -> Numbers:
    """Return the numbers of a mean to which the step ``full`` led, from where the gradient was g.

    They are brought to the host, if they can be, all at once: on a GPU this is the one wait for it.
    """
    packed = _pack(manifold, look, full, g)
    shim = backend_of(packed)
    if not shim.hides_values(packed):
        packed = shim.to_numpy(packed)
    return _unpack(packed, len(manifold.blocks), look.far)


def _pack(manifold: GyroSpace, look: Look, full: Array, g: Array) -> Array:
    xp = namespace_of(g)
    parts = [look.variance, manifold.by_block(look.g * look.g), look.resolution]
    parts.append(xp.sum(g * full, axis=-1, keepdims=True))
    if look.far is not None:
        parts.append(look.far[..., None])
    return xp.concat(parts, axis=-1)


def _unpack(packed: Array, blocks: int, far: Array | None) -> Numbers:
    xp, far_too = namespace_of(packed), far is not None
    variance, square = packed[..., :blocks], packed[..., blocks : 2 * blocks]
    last = packed.shape[-1] - 1 - far_too
    resolution, gain = packed[..., 2 * blocks : last], packed[..., last]
    return Numbers(
        variance, xp.sqrt(square), resolution, gain, packed[..., -1] if far_too else None
    )


def _finite(numbers: Numbers) -> Array:
    total = _sum(numbers.residual) + _sum(numbers.variance)
    return namespace_of(total).isfinite(total)


def _sum(values: Array) -> Array:
    return namespace_of(values).sum(values, axis=-1)


def _as_counts(values: Array) -> Array:
    xp = namespace_of(values)
    return xp.astype(values, xp.int32)


def check_search(tol: Any, max_iter: Any, steps: Any) -> tuple[float | None, int, int | None]:
    """Return the limits of a search as plain numbers, or name the one that is not a number."""
    return (
        None if tol is None else check_number("tol", tol, 0.0),
        check_integer("max_iter", max_iter, 1),
        None if steps is None else check_integer("steps", steps, 0),
    )
