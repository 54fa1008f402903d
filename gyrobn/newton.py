r"""The gyro-Newton loop that finds the mean of samples on every geometry.

.. math:: c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i), \qquad g = \sum_i w_i c_i, \qquad
          \mu \leftarrow \mu \oplus \operatorname{Exp}_e(H^{-1} g)

with H the mean Hessian of half the squared distance, which has a closed form on a symmetric space.
A step that lowers neither the variance nor, where that no longer changes, the residual
:math:`\|g\|`, is taken back and tried again at a quarter of its length, so the loop cannot diverge.
Channels are solved together; one that is done stops moving, and one with a sample that is not on
the manifold never begins to.
"""

from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.centred import Centred
from gyrobn.checks import check_integer, check_number
from gyrobn.gyrospace import GyroSpace

__all__ = [
    "ROUGH",
    "Found",
    "FrechetResult",
    "Held",
    "Look",
    "Samples",
    "after_steps",
    "check_search",
    "solve",
]

ROUGH = 1e-2
"""Accuracy of a Newton step, where only a few are asked for and no mean; where they are to lead
there, it takes fewer of them if each is accurate."""


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


class Look(NamedTuple):
    """What the loop asks of the samples at a mean."""

    seen: tuple[Array, ...]
    """What ``Centred`` has seen from there, if it can be kept."""
    g: Array
    """The mean of the normal coordinates: minus the gradient."""
    variance: Array
    """One per block."""
    far: Array
    """Squared distance of the farthest sample."""
    resolution: Array
    """Distance of the mean to its neighbours in floating point; one per block, or one."""

    @classmethod
    def from_view(cls, view: Centred, w: Array) -> Self:
        """Return what is seen of samples in memory."""
        xp, squares = namespace_of(w), view.squares
        total = squares[..., 0] if squares.shape[-1] == 1 else xp.sum(squares, axis=-1)
        far = xp.max(total, axis=0)
        return cls(view.seen, view.gradient(w), view.variance(w), far, view.resolutions)


class Samples(Protocol):
    """Where the loop finds its samples: in memory, or a chunk at a time."""

    def parts(self, manifold: GyroSpace) -> "list[tuple[GyroSpace, Samples]]":
        """Return the factors of a product, each with its part of the samples."""

    def start(self, manifold: GyroSpace) -> Array:
        """Return a first guess of the mean."""

    def look(self, manifold: GyroSpace, mean: Array) -> Look:
        """Return what is seen from a mean."""

    def step(self, manifold: GyroSpace, mean: Array, now: Look, accuracy: float) -> Array:
        """Return nearly H⁻¹g: the Newton step from a mean, in normal coordinates."""

    def shift(self, manifold: GyroSpace, mean: Array, now: Look, step: Array) -> Array:
        """Return the mean after a step."""

    def prepared(self, manifold: GyroSpace) -> "Samples":
        """Return the samples with what is needed of them alone computed, once for all means."""


class Held(NamedTuple):
    """Samples in memory."""

    x: Array
    """Shape (N, *channels, *point_shape)."""
    w: Array
    """Shape (N, *channels), of sum one."""
    known: tuple[Array, ...] = ()
    """What the geometry needs of the samples alone."""

    def prepared(self, manifold: GyroSpace) -> Self:
        """Return the samples with what is needed of them alone computed, once for all means."""
        return self._replace(known=manifold.known(self.x))

    def parts(self, manifold: GyroSpace) -> "list[tuple[GyroSpace, Samples]]":
        """Return the factors of a product, each with its part of the samples."""
        return [(space, Held(x, self.w)) for space, x in manifold.parts(self.x)]

    def start(self, manifold: GyroSpace) -> Array:
        """Return a first guess of the mean."""
        return manifold.start(self.x, self.w)

    def look(self, manifold: GyroSpace, mean: Array) -> Look:
        """Return what is seen from a mean."""
        return Look.from_view(manifold.centred(mean, self.x, (), self.known), self.w)

    def step(self, manifold: GyroSpace, mean: Array, now: Look, accuracy: float) -> Array:
        """Return nearly H⁻¹g."""
        return self._view(manifold, mean, now).hessian(self.w).solve(now.g, accuracy)

    def shift(self, manifold: GyroSpace, mean: Array, now: Look, step: Array) -> Array:
        """Return the mean after a step."""
        return self._view(manifold, mean, now).shift(step)

    def _view(self, manifold: GyroSpace, mean: Array, now: Look) -> Centred:
        return manifold.centred(mean, self.x, now.seen, self.known)


class Numbers(NamedTuple):
    """What decides about a mean: few numbers per channel, on the host where they can be seen."""

    variance: Array
    """One per block, as are the next two: no block may wait for the largest one to be small."""
    residual: Array
    """Length of the gradient."""
    resolution: Array
    """Distance of the mean to its neighbours in floating point."""
    far: Array
    """Squared distance of the farthest sample."""
    gain: Array
    """How far the variance should fall by the step that led here, if it is quadratic along it."""


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
    """What :func:`solve` returns."""

    result: FrechetResult
    radius: Array
    """Largest distance of a sample from the mean."""
    seen: tuple[Array, ...]
    """What ``Centred`` has seen from the mean."""
    told: tuple[Array, Array] | None = None
    """Whether it converged, and that distance, once more, on the host; None if they are hidden."""


def solve(
    manifold: GyroSpace,
    samples: Samples,
    tol: float | None,
    max_iter: int,
    init: Array | None,
    steps: int | None,
) -> Found:
    """Run the loop, for each factor of a product by itself: none waits for another."""
    parts = samples.parts(manifold)
    if len(parts) > 1:
        starts = [None] * len(parts) if init is None else [p for _, p in manifold.parts(init)]
        found = [
            solve(space, own, tol, max_iter, start, steps)
            for (space, own), start in zip(parts, starts, strict=True)
        ]
        return _join(manifold, found)
    # where the first guess is the mean
    at_once = manifold.flat and steps is None and isinstance(samples, Held)
    samples = samples.prepared(manifold)
    mean = samples.start(manifold) if init is None or at_once else init
    if steps is not None:
        return _take_steps(manifold, samples, tol, mean, steps)

    def body(state: tuple[Any, ...]) -> _State:
        now = _State(*state)
        old = Look(*now.look)
        full = samples.step(manifold, now.mean, old, 1e-4)
        step = _choose(now.taken, full, lambda: 0.25 * now.step)
        trial = samples.shift(manifold, now.mean, old, step)
        new = samples.look(manifold, trial)
        numbers = _numbers(manifold, new, full, old.g)
        gain = _choose(now.taken, numbers.gain, lambda: 0.25 * now.gain)
        better, stuck = _judge(Numbers(*now.numbers), numbers, gain, tol)
        take = better & ~now.done
        numbers = Numbers(*(_choose(take, a, b) for a, b in zip(numbers, now.numbers, strict=True)))
        look = Look(
            tuple(_choose(take, a, b, 1) for a, b in zip(new.seen, old.seen, strict=True)),
            *(_choose(take, a, b) for a, b in zip(new[1:], old[1:], strict=True)),
        )
        return _State(
            mean=_choose(take, trial, now.mean),
            look=look,
            numbers=numbers,
            step=step,
            gain=gain,
            taken=better,
            count=now.count + _as_counts(~now.done),
            done=now.done | stuck | is_small(numbers, tol),
        )

    look = samples.look(manifold, mean)
    numbers = _numbers(manifold, look, look.g, look.g)
    always = ~(numbers.far < 0)
    # a sample that is not on the manifold is NaN from wherever it is seen: no step would help
    sound = _finite(numbers)
    state = _State(
        mean=mean,
        look=look,
        numbers=numbers,
        step=look.g,
        gain=numbers.gain,
        taken=always,
        count=_as_counts(always),
        done=is_small(numbers, tol) | ~sound,
    )
    if at_once:
        return _found(state._replace(done=always), sound)
    loop = backend_of(mean).while_loop
    state = _State(*loop(lambda s: ~_State(*s).done.all(), body, state, max_iter - 1))
    return _found(state, sound)


def _take_steps(
    manifold: GyroSpace, samples: Samples, tol: float | None, mean: Array, steps: int
) -> Found:
    """Take just so many steps."""

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        mean, look = state[0], Look(*state[1])
        step = samples.step(manifold, mean, look, ROUGH)
        mean = samples.shift(manifold, mean, look, step)
        return mean, samples.look(manifold, mean)

    state = mean, samples.look(manifold, mean)
    mean, look = backend_of(mean).while_loop(lambda state: True, body, state, steps)
    return after_steps(manifold, mean, Look(*look), tol, steps)


def after_steps(
    manifold: GyroSpace, mean: Array, look: Look, tol: float | None, steps: int
) -> Found:
    """Return what a number of steps has led to; no value is looked at."""
    xp = namespace_of(mean)
    numbers = _unpack(_pack(manifold, look, look.g, look.g), len(manifold.blocks))
    count = xp.full(look.far.shape, steps + 1, dtype=xp.int32, device=device_of(mean))
    result = FrechetResult(mean, look.variance, count, _length(numbers), is_small(numbers, tol))
    return Found(result, xp.sqrt(look.far), look.seen)


def _found(state: _State, sound: Array) -> Found:
    """Return the result, without a mean where no evaluation was finite."""
    mean, look, numbers = state.mean, Look(*state.look), Numbers(*state.numbers)
    xp, residual, converged = namespace_of(mean), _length(numbers), state.done & sound
    known = namespace_of(residual).isfinite(residual)
    variance = _choose(known, look.variance, lambda: xp.full_like(look.variance, xp.nan))
    mean = _choose(known, mean, lambda: xp.full_like(mean, xp.nan))
    counts = (_like(values, mean) for values in (state.count, residual, converged))
    told = None if backend_of(mean).hides_values(mean) else (converged, numbers.far**0.5)
    return Found(FrechetResult(mean, variance, *counts), xp.sqrt(look.far), look.seen, told)


# ---------------------------------------------------------------------- numbers that decide


def _judge(old: Numbers, new: Numbers, gain: Array, tol: float | None) -> tuple[Array, Array]:
    """Tell whether a step is good; and whether, as it is not, only rounding errors are left.

    On a sphere the gradient also vanishes where the variance is largest, and grows on the way down
    from there. So the variance decides, as long as the gain that the step promised can be seen in
    it, and after that the gradient.
    """
    xp = namespace_of(gain)
    some = float(xp.finfo(gain.dtype).eps) ** 0.5
    after, before = _sum(new.variance), _sum(old.variance)
    lower = (gain > some * before) & (after <= before - 0.1 * gain)
    nearer = xp.all((new.residual < old.residual) | _is_small(new, tol), axis=-1)
    better = lower | ((after <= before * (1.0 + some)) & nearer)
    close = xp.all(old.residual <= some * xp.sqrt(old.variance), axis=-1)
    return better, ~better & close


def is_small(numbers: Numbers, tol: float | None) -> Array:
    """Tell whether the residual meets the tolerance in every block."""
    return namespace_of(numbers.far).all(_is_small(numbers, tol), axis=-1)


def _is_small(numbers: Numbers, tol: float | None) -> Array:
    xp = namespace_of(numbers.far)
    tol = 8.0 * float(xp.finfo(numbers.far.dtype).eps) if tol is None else tol
    least = xp.maximum(tol * xp.sqrt(numbers.variance), 8.0 * numbers.resolution)
    return numbers.residual <= least


def _numbers(manifold: GyroSpace, look: Look, full: Array, g: Array) -> Numbers:
    """Return the numbers of a mean to which the step ``full`` led, from where the gradient was g.

    They are brought to the host, if they can be, all at once: on a GPU this is the one wait for it.
    """
    packed = _pack(manifold, look, full, g)
    shim = backend_of(packed)
    if not shim.hides_values(packed):
        packed = shim.to_numpy(packed)
    return _unpack(packed, len(manifold.blocks))


def _pack(manifold: GyroSpace, look: Look, full: Array, g: Array) -> Array:
    xp = namespace_of(g)
    rest = (look.resolution, look.far[..., None], xp.sum(g * full, axis=-1)[..., None])
    return xp.concat([look.variance, manifold.by_block(look.g * look.g), *rest], axis=-1)


def _unpack(packed: Array, blocks: int) -> Numbers:
    xp = namespace_of(packed)
    variance, square = packed[..., :blocks], packed[..., blocks : 2 * blocks]
    resolution = packed[..., 2 * blocks : -2]
    return Numbers(variance, xp.sqrt(square), resolution, packed[..., -2], packed[..., -1])


def _finite(numbers: Numbers) -> Array:
    total = _sum(numbers.residual) + _sum(numbers.variance)
    return namespace_of(total).isfinite(total)


def _length(numbers: Numbers) -> Array:
    """Return the length of the gradient, of all blocks together."""
    return _sum(numbers.residual * numbers.residual) ** 0.5


def _sum(values: Array) -> Array:
    return namespace_of(values).sum(values, axis=-1)


def _as_counts(values: Array) -> Array:
    xp = namespace_of(values)
    return xp.astype(values, xp.int32)


def _choose(take: Array, new: Array, old: Any, lead: int = 0) -> Array:
    """Return the new values of the channels to take and the old ones of others.

    ``lead`` axes stand before the channels. ``old`` may be a function that makes them, if needed.
    """
    if not backend_of(take).hides_values(take):
        if take.all():
            return new
        if not take.any():
            return old() if callable(old) else old
    xp = namespace_of(new)
    old = old() if callable(old) else old
    mask = take if namespace_of(take) is xp else xp.asarray(take, device=device_of(new))
    return xp.where(mask[(..., *(None,) * (new.ndim - lead - mask.ndim))], new, old)


def _like(values: Array, mean: Array) -> Array:
    """Return values from the host in the library and on the device of the mean."""
    xp = namespace_of(mean)
    same = namespace_of(values) is xp
    return values if same else xp.asarray(values, device=device_of(mean))


def _join(manifold: GyroSpace, found: list[Found]) -> Found:
    """Put the results of a product's factors together."""
    results, radii, _, told = zip(*found, strict=True)
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
    result = FrechetResult(mean, variance, count, xp.sqrt(square), converged)
    host = None
    if None not in told:
        good, reach = zip(*told, strict=True)
        host = np.all(good, axis=0), np.sqrt(np.sum(np.square(reach), axis=0))
    return Found(result, xp.sqrt(far), (), host)


def check_search(tol: Any, max_iter: Any, steps: Any) -> tuple[float | None, int, int | None]:
    """Return what bounds a search, as plain numbers, or say which of them is none."""
    return (
        None if tol is None else check_number("tol", tol, 0.0),
        check_integer("max_iter", max_iter, 1),
        None if steps is None else check_integer("steps", steps, 0),
    )
