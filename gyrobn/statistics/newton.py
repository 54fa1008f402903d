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
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import pieces
from gyrobn.numerics.checks import check_integer, check_number
from gyrobn.numerics.hessian import DENSE
from gyrobn.numerics.solvers import newton_step
from gyrobn.statistics.held import Held, Look, Samples, arrays_of, choose, choose_all

ROUGH = 1e-2
"""Accuracy of a Newton step with a large H, where only a few are asked for and no mean; where they
are to lead there, it takes fewer of them if each is accurate."""
ROUGH_SLOPE = 1e-5
"""Accuracy of the derivative of a mean, with a large H, that a number of steps need not reach."""


class Search(NamedTuple):
    """The limits of a search."""

    tol: float | None = None
    """Largest residual, relative to the spread; 8 ulp by default."""
    max_iter: int = 64
    """Most evaluations."""
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
    gain: Array
    """How far the variance should fall by the step that led here, if it is quadratic along it."""
    far: Array | None
    """Squared distance of the farthest sample, one per block, if it was looked for."""

    @property
    def length(self) -> Array:
        """The length of the gradient, of all blocks together."""
        return _sum(self.residual * self.residual) ** 0.5

    def small(self, tol: float | None) -> Array:
        """Return whether the residual meets the tolerance in every block."""
        return namespace_of(self.gain).all(self.residual <= self.least(tol), axis=-1)

    def least(self, tol: float | None) -> Array:
        """Return the residual to reach in each block."""
        return least_residual(self.variance, self.resolution, tol)


def least_residual(variance: Array, resolution: Array, tol: float | None) -> Array:
    """Return the residual to reach: ``tol`` times the spread, or as much as rounding leaves."""
    xp = namespace_of(variance)
    tol = 8.0 * float(xp.finfo(variance.dtype).eps) if tol is None else tol
    return xp.maximum(tol * xp.sqrt(variance), 8.0 * resolution)


class _State(NamedTuple):
    """Where the loop stands: the best mean so far, and the step that led there or failed."""

    step: Array
    """In normal coordinates at the mean."""
    look: Look
    """The mean, and the samples seen from it."""
    numbers: Numbers
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
    """Squared distance of the farthest sample, one per block, on spaces where a mean need not be
    unique."""
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


def solve(samples: Samples, init: Array | None, search: Search) -> Found:
    """Run the loop."""
    manifold, (tol, max_iter, steps) = samples.manifold, search
    at_once = manifold.flat and steps is None and isinstance(samples, Held)
    mean = samples.start() if init is None or at_once else init
    if isinstance(samples, Held) and (at_once or steps is not None):
        return _take_steps(samples, mean, steps)
    if steps is not None:
        return _walk(samples, mean, tol, steps)

    def body(now: _State) -> _State:
        old = now.look
        full = samples.step(old, _accuracy(now))
        step = choose(now.taken, full, lambda: 0.25 * now.step)
        new = samples.look(samples.shift(old, step))
        numbers = _numbers(manifold, new, full, old.g)
        gain = choose(now.taken, numbers.gain, lambda: 0.25 * now.gain)
        better, stuck = _judge(now.numbers, numbers, gain, tol)
        take = better & ~now.done
        numbers = Numbers(*choose_all(take, numbers, now.numbers))
        return _State(
            step=step,
            look=samples.merged(take, new, old),
            numbers=numbers,
            gain=gain,
            taken=better,
            count=now.count + _as_counts(~now.done),
            done=now.done | stuck | numbers.small(tol),
        )

    look = samples.look(mean)
    numbers = _numbers(manifold, look, look.g, look.g)
    always = ~(numbers.gain < 0)
    # a sample off the manifold is NaN from everywhere: no step helps
    total = _sum(numbers.residual) + _sum(numbers.variance)
    sound = namespace_of(total).isfinite(total)
    state = _State(
        step=look.g,
        look=look,
        numbers=numbers,
        gain=numbers.gain,
        taken=always,
        count=_as_counts(always),
        done=numbers.small(tol) | ~sound,
    )
    loop = backend_of(mean).while_loop
    return _found(loop(lambda now: ~now.done.all(), body, state, max_iter - 1), sound)


def _take_steps(samples: Held, mean: Array, steps: int | None) -> Found:
    """Take exactly that many steps, without a test for convergence; None if the mean is known."""
    accuracy, w = _accuracy_of_few(samples.manifold, mean), samples.w

    def body(state: tuple[Array]) -> tuple[Array]:
        view = samples.centred(state[0])
        return (view.shift(newton_step(view.hessian(w), view.gradient(w), accuracy)),)

    view = samples.centred(mean)  # computes what all means need, outside of the loop
    if steps:
        (mean,) = backend_of(mean).while_loop(lambda state: True, body, (mean,), steps)
        view = samples.centred(mean)
    if steps is not None:
        return Found(mean, None, view, steps + 1)
    variance = view.variance(w)
    shim = backend_of(variance)
    seen = variance if shim.hides_values(variance) else shim.to_numpy(variance)
    xp = namespace_of(seen)
    return Found(mean, variance, view, 1, converged=xp.all(xp.isfinite(seen), axis=-1))


def _walk(samples: Samples, mean: Array, tol: float | None, steps: int) -> Found:
    """Take exactly that many steps with samples that are not all in memory here."""
    look = samples.look(mean)
    accuracy = _accuracy_of_few(samples.manifold, mean)
    for _ in range(steps):
        look = samples.look(samples.shift(look, samples.step(look, accuracy)))
    numbers = _numbers(samples.manifold, look, look.g, look.g)
    more = steps + 1, numbers.length, numbers.small(tol), numbers.far
    return Found(look.mean, look.variance, look.view, *more)


def _found(state: _State, sound: Array) -> Found:
    """Return the result; the mean is NaN where no evaluation was finite."""
    look, residual = state.look, state.numbers.length
    known, xp = namespace_of(residual).isfinite(residual), namespace_of(look.mean)
    both = look.mean, look.variance
    nan = [partial(xp.full_like, values, xp.nan) for values in both]
    mean, variance = choose_all(known, both, nan)
    # a view knows its mean, and would be wrong with another
    view = look.view if mean is look.mean else arrays_of(look.view)
    converged = state.done & sound
    return Found(mean, variance, view, state.count, residual, converged, state.numbers.far)


# ---------------------------------------------------------------------- numbers that decide


def _accuracy(now: _State) -> float:
    """Return the error that may be left in a Newton step, relative to it.

    The closer the mean is, the better is an exact step: what is left of the residual, relative to
    the spread of the samples, is its square. A step as good as that saves an evaluation.
    """
    numbers = now.numbers
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
    nearer = xp.all((new.residual < old.residual) | (new.residual <= new.least(tol)), axis=-1)
    # rounding errors of the distances are no reason to reject a step either
    slack = some * before + 16.0 * xp.sqrt(before) * xp.max(old.resolution, axis=-1)
    better = lower | ((after <= before + slack) & nearer)
    close = xp.all(old.residual <= some * xp.sqrt(old.variance), axis=-1)
    # a Newton step that does not halve a residual near its bound has met rounding errors
    still = (new.residual > 0.5 * old.residual) & (old.residual <= 64.0 * old.least(tol))
    # If the samples differ by rounding errors only, no residual is small against their spread. Then
    # steps shorter than the resolution fail, too. (Far out it is coarse: long steps prove little.)
    near = xp.all(old.residual <= 64.0 * old.resolution, axis=-1) & (gain <= new.gain / 64.0)
    return better, (close & xp.all(still, axis=-1)) | ((close | near) & ~better)


def status(manifold: GyroSpace, view: Centred, w: Array, tol: float | None) -> tuple[Array, Array]:
    """Return the residual at a mean that was not searched for, and whether it is small."""
    g = view.gradient(w)
    look = Look(None, view.mean, g, view.variance(w), None, view.resolutions(w))
    numbers = _numbers(manifold, look, g, g, fetch=False)
    return numbers.length, numbers.small(tol)


def _numbers(manifold: GyroSpace, look: Look, full: Array, g: Array, fetch: bool = True) -> Numbers:
    """Return the numbers of a mean to which the step ``full`` led, from where the gradient was g.

    They are brought to the host, if they can be, all at once: on a GPU this is the one wait for it.
    """
    xp = namespace_of(g)
    gain = xp.sum(g * full, axis=-1, keepdims=True)
    parts = [look.variance, manifold.by_block(look.g * look.g), look.resolution, gain]
    if look.far is not None:
        parts.append(look.far)
    packed = xp.concat(parts, axis=-1)
    shim = backend_of(packed)
    if fetch and not shim.hides_values(packed):
        packed = shim.to_numpy(packed)
    found = pieces(packed, [part.shape[-1] for part in parts])
    variance, square, resolution, gain, far = (*found, None)[:5]
    return Numbers(variance, namespace_of(packed).sqrt(square), resolution, gain[..., 0], far)


def _sum(values: Array) -> Array:
    return namespace_of(values).sum(values, axis=-1)


def _as_counts(values: Array) -> Array:
    xp = namespace_of(values)
    return xp.astype(values, xp.int32)
