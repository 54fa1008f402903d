r"""The gyro-Newton loop that finds the mean of samples on every geometry.

.. math:: c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i), \qquad g = \sum_i w_i c_i, \qquad
          \mu \leftarrow \mu \oplus \operatorname{Exp}_e(H^{-1} g)

with H the mean Hessian of half the squared distance, which has a closed form on a symmetric space.
A step that lowers neither the variance nor, where that no longer changes, the residual
:math:`\|g\|`, is taken back and tried again at a quarter of its length, so the loop cannot diverge.
Channels are solved together; one that is done stops moving, and one with a sample that is not on
the manifold never begins to.
"""

from typing import Any, NamedTuple, Protocol

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.checks import check_integer, check_number
from gyrobn.gyrospace import GyroSpace
from gyrobn.scalar import safe_sqrt

__all__ = [
    "ROUGH",
    "FrechetResult",
    "Held",
    "Look",
    "Samples",
    "check_search",
    "is_small",
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
    """One a block."""
    far: Array
    """Squared distance of the farthest sample."""


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


class Held(NamedTuple):
    """Samples in memory."""

    x: Array
    """Shape (N, *channels, *point_shape)."""
    w: Array
    """Shape (N, *channels), of sum one."""

    def parts(self, manifold: GyroSpace) -> "list[tuple[GyroSpace, Samples]]":
        """Return the factors of a product, each with its part of the samples."""
        return [(space, Held(x, self.w)) for space, x in manifold.parts(self.x)]

    def start(self, manifold: GyroSpace) -> Array:
        """Return a first guess of the mean."""
        return manifold.start(self.x, self.w)

    def look(self, manifold: GyroSpace, mean: Array) -> Look:
        """Return what is seen from a mean."""
        view = manifold.centred(mean, self.x)
        xp = namespace_of(self.x)
        far = xp.max(xp.sum(view.squares, axis=-1), axis=0)
        return Look(view.seen, view.gradient(self.w), view.variance(self.w), far)

    def step(self, manifold: GyroSpace, mean: Array, now: Look, accuracy: float) -> Array:
        """Return nearly H⁻¹g."""
        return manifold.centred(mean, self.x, now.seen).hessian(self.w).solve(now.g, accuracy)


class _State(NamedTuple):
    """Where the loop stands: the best mean so far, and the step that led there or failed."""

    mean: Array
    look: Look
    """The samples, seen from the mean."""
    residual: Array
    """One a block, as is the variance: none may wait for the largest one to be small."""
    step: Array
    """In normal coordinates at the mean."""
    gain: Array
    """How far the variance falls if it is quadratic along the step."""
    taken: Array
    """Whether the last step was good; otherwise a part of it is tried next."""
    count: Array
    done: Array
    """Whether the mean has converged, or never will; not where a number of steps was asked for."""


def solve(
    manifold: GyroSpace,
    samples: Samples,
    tol: float | None,
    max_iter: int,
    init: Array | None,
    steps: int | None,
) -> tuple[FrechetResult, Array, tuple[Array, ...]]:
    """Run the loop.

    Also return the largest distance, and what ``Centred`` has seen from the mean.
    """
    parts = samples.parts(manifold)
    if len(parts) > 1:  # no factor waits for another
        starts = [None] * len(parts) if init is None else [p for _, p in manifold.parts(init)]
        found = [
            solve(space, own, tol, max_iter, start, steps)
            for (space, own), start in zip(parts, starts, strict=True)
        ]
        return _join(manifold, found)
    mean = samples.start(manifold) if init is None else init
    xp = namespace_of(mean)
    eps = float(xp.finfo(mean.dtype).eps)
    accuracy = 1e-4 if steps is None else ROUGH
    point = (None,) * len(manifold.point_shape)

    def evaluate(mean: Array) -> tuple[Look, Array]:
        look = samples.look(manifold, mean)
        return look, safe_sqrt(manifold.by_block(look.g * look.g))

    def finished(mean: Array, variance: Array, residual: Array) -> Array:
        return xp.all(is_small(manifold, mean, variance, residual, tol), axis=-1)

    def body(state: tuple[Any, ...]) -> _State:
        now = _State(*state)
        old = Look(*now.look)
        full = samples.step(manifold, now.mean, old, accuracy)
        step = xp.where(now.taken[..., None], full, 0.25 * now.step)
        gain = xp.where(now.taken, xp.sum(old.g * full, axis=-1), 0.25 * now.gain)
        moved = manifold.shift(now.mean, step)
        trial = xp.where(now.done[(..., *point)], now.mean, manifold.project(moved))
        new, residual = evaluate(trial)
        # On a sphere the gradient also vanishes where the variance is largest, and grows on the way
        # down from there. So the variance decides, as long as the gain that the step promised can
        # be seen in it, and after that the gradient.
        total, before = xp.sum(new.variance, axis=-1), xp.sum(old.variance, axis=-1)
        visible = gain > eps**0.5 * before
        lower = xp.logical_and(visible, total <= before - 0.1 * gain)
        level = total <= before * (1.0 + eps**0.5)
        small = is_small(manifold, trial, new.variance, residual, tol)
        nearer = xp.all(xp.logical_or(residual < now.residual, small), axis=-1)
        better = xp.logical_or(lower, xp.logical_and(level, nearer))
        # a step that does not help, so close to the mean, only shows the rounding error
        close = xp.all(now.residual <= eps**0.5 * safe_sqrt(old.variance), axis=-1)
        floor = xp.logical_and(xp.logical_not(better), close)
        if steps is not None:
            better = xp.ones_like(better)
        take = xp.logical_and(better, xp.logical_not(now.done))
        mean = xp.where(take[(..., *point)], trial, now.mean)
        look = Look(
            seen=_choose(take, new.seen, old.seen),
            g=xp.where(take[..., None], new.g, old.g),
            variance=xp.where(take[..., None], new.variance, old.variance),
            far=xp.where(take, new.far, old.far),
        )
        residual = xp.where(take[..., None], residual, now.residual)
        done = now.done
        if steps is None:
            good = finished(mean, look.variance, residual)
            done = xp.logical_or(done, xp.logical_or(floor, good))
        return _State(
            mean=mean,
            look=look,
            residual=residual,
            step=step,
            gain=gain,
            taken=better,
            count=now.count + xp.astype(xp.logical_not(now.done), now.count.dtype),
            done=done,
        )

    look, residual = evaluate(mean)
    always = xp.logical_not(look.far < 0)
    # a sample that is not on the manifold is NaN from wherever it is seen: no step would help
    sound = xp.isfinite(xp.sum(residual + look.variance, axis=-1))
    done = xp.logical_not(always)
    if steps is None:
        small = finished(mean, look.variance, residual)
        done = xp.logical_or(small, xp.logical_not(sound))
    state = _State(
        mean=mean,
        look=look,
        residual=residual,
        step=0.0 * look.g,
        gain=0.0 * look.far,
        taken=always,
        count=xp.astype(always, xp.int32),
        done=done,
    )
    limit = max_iter - 1 if steps is None else steps
    loop = backend_of(mean).while_loop
    state = _State(*loop(lambda s: xp.logical_not(xp.all(_State(*s).done)), body, state, limit))
    seen, _, variance, far = state.look
    converged = xp.logical_and(state.done, sound)
    if steps is not None:
        converged = xp.all(is_small(manifold, state.mean, variance, state.residual, tol), axis=-1)
    residual = safe_sqrt(xp.sum(state.residual * state.residual, axis=-1))
    known = xp.isfinite(residual)  # otherwise no evaluation was: there is nothing to return
    mean = xp.where(known[(..., *point)], state.mean, xp.nan)
    variance = xp.where(known[..., None], variance, xp.nan)
    result = FrechetResult(mean, variance, state.count, residual, converged)
    return result, xp.sqrt(far), seen


def _choose(take: Array, new: tuple[Array, ...], old: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return samples (N, *channels, ...), the new ones of the channels to take."""
    xp = namespace_of(take)
    if not backend_of(take).hides_values(take) and bool(xp.all(take)):
        return new

    def one(a: Array, b: Array) -> Array:
        return xp.where(take[(..., *(None,) * (a.ndim - 1 - take.ndim))], a, b)

    return tuple(one(a, b) for a, b in zip(new, old, strict=True))


def _join(
    manifold: GyroSpace, found: list[tuple[FrechetResult, Array, tuple[Array, ...]]]
) -> tuple[FrechetResult, Array, tuple[Array, ...]]:
    """Put the results of a product's factors together."""
    results, radii, _ = zip(*found, strict=True)
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
    return result, xp.sqrt(far), ()


def check_search(tol: Any, max_iter: Any, steps: Any) -> tuple[float | None, int, int | None]:
    """Return what bounds a search, as plain numbers, or say which of them is none."""
    return (
        None if tol is None else check_number("tol", tol, 0.0),
        check_integer("max_iter", max_iter, 1),
        None if steps is None else check_integer("steps", steps, 0),
    )


def is_small(
    manifold: GyroSpace, mean: Array, variance: Array, residual: Array, tol: float | None
) -> Array:
    """Tell, a block at a time, whether the residual meets the tolerance."""
    xp = namespace_of(mean)
    tol = 8.0 * float(xp.finfo(mean.dtype).eps) if tol is None else tol
    return residual <= xp.maximum(tol * safe_sqrt(variance), 8.0 * manifold.resolutions(mean))
