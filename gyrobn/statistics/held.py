"""The interface through which the loop reads its samples, and samples in memory."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.solvers import newton_step


class Look(NamedTuple):
    """What the loop needs to know about the samples, seen from a mean."""

    view: Any
    """The samples seen from there: a ``Centred``, in a traced loop its arrays, or None."""
    mean: Array
    g: Array
    """The mean of the normal coordinates: minus the gradient."""
    variance: Array
    """One per block."""
    far: Array | None
    """Squared distance of the farthest sample, one per block, on spaces where a mean need not be
    unique, if values can be seen."""
    resolution: Array
    """Distance of the mean to its neighbours in floating point; one per block, or one."""

    def unless(self, take: Array, new: "Look") -> "Look":
        """Return the new look for channels to take, else this one, without a view."""
        return Look(None, *choose_all(take, new[1:], self[1:]))


class Samples(Protocol):
    """The source of the loop's samples: memory, or chunks read one by one."""

    manifold: GyroSpace

    def start(self) -> Array:
        """Return a first guess of the mean."""

    def look(self, mean: Array) -> Look:
        """Return what is seen from a mean."""

    def step(self, now: Look, accuracy: float) -> Array:
        """Return nearly H⁻¹g: the Newton step from the mean, in normal coordinates."""

    def shift(self, now: Look, step: Array) -> Array:
        """Return the mean after a step."""

    def merged(self, take: Array, new: Look, old: Look) -> Look:
        """Return the new look for channels to take, else the old."""


class Held:
    """Samples in memory: ``x`` of shape (N, *channels, *point_shape), ``w`` (N, *channels).

    The weights sum to one.
    """

    def __init__(self, manifold: GyroSpace, x: Array, w: Array) -> None:
        self.manifold, self.x, self.w = manifold, x, w

    @cached_property
    def known(self) -> tuple[Array, ...]:
        """What the geometry needs of the samples alone, computed once for all means."""
        return self.manifold.known(self.x)

    def start(self) -> Array:
        """Return a first guess of the mean."""
        return self.manifold.start(self.x, self.w)

    def look(self, mean: Array) -> Look:
        """Return what is seen from a mean."""
        view, w = self.centred(mean), self.w
        hidden = backend_of(mean).hides_values(mean)
        far = None
        if not hidden and self.manifold.convexity_radius < float("inf"):
            xp = namespace_of(mean)
            far = xp.max(xp.where(w[..., None] > 0, view.squares, 0.0), axis=0)
        kept = view.seen if hidden else view
        return Look(kept, mean, view.gradient(w), view.variance(w), far, view.resolutions(w))

    def step(self, now: Look, accuracy: float) -> Array:
        """Return nearly H⁻¹g."""
        return newton_step(self.view(now).hessian(self.w), now.g, accuracy)

    def shift(self, now: Look, step: Array) -> Array:
        """Return the mean after a step."""
        return self.view(now).shift(step)

    def view(self, now: Look) -> Centred:
        """Return the samples seen from a mean, from what a look has kept of them."""
        return now.view if isinstance(now.view, Centred) else self.centred(now.mean, now.view)

    def centred(self, mean: Array, seen: tuple[Array, ...] = ()) -> Centred:
        """Return the samples seen from a mean."""
        return self.manifold.centred(mean, self.x, seen, self.known)

    def merged(self, take: Array, new: Look, old: Look) -> Look:
        """Return the new look for channels to take, else the old."""
        look = old.unless(take, new)
        if not isinstance(new.view, Centred):
            return look._replace(view=choose_all(take, new.view, old.view, lead=1))
        if take.all():
            return new
        if not take.any():
            return old
        seen = choose_all(take, new.view.seen, old.view.seen, lead=1)
        return look._replace(view=self.centred(look.mean, seen))


def arrays_of(view: Any) -> tuple[Array, ...]:
    """Return what a traced loop carries of a view."""
    return view.seen if isinstance(view, Centred) else view


def choose(take: Array, new: Any, old: Any) -> Any:
    """Return the new values of the channels to take, and the old values of the others.

    ``old`` may be a function that makes them, if needed. What is None stays None.
    """
    return choose_all(take, (new,), (old,))[0]


def choose_all(
    take: Array, new: Sequence[Any], old: Sequence[Any], lead: int = 0
) -> tuple[Any, ...]:
    """Do what :func:`choose` does with several arrays; ``lead`` axes stand before the channels."""
    if not backend_of(take).hides_values(take):
        if take.all():
            return tuple(new)
        if not take.any():
            return tuple(b() if callable(b) else b for b in old)
    return tuple(_mixed(take, a, b, lead) for a, b in zip(new, old, strict=True))


def _mixed(take: Array, new: Any, old: Any, lead: int) -> Any:
    if new is None:
        return None
    xp = namespace_of(new)
    old = old() if callable(old) else old
    mask = take if namespace_of(take) is xp else xp.asarray(take, device=device_of(new))
    return xp.where(mask[(..., *(None,) * (new.ndim - lead - mask.ndim))], new, old)
