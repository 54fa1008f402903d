"""The interface through which the loop reads its samples, and samples in memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.solvers import newton_step

__all__ = ["Held", "Look", "Samples", "choose", "choose_all"]


class Look(NamedTuple):
    """What the loop needs to know about the samples, seen from a mean."""

    view: Any
    """The samples seen from there: a ``Centred``, in a traced loop its arrays, or None."""
    g: Array
    """The mean of the normal coordinates: minus the gradient."""
    variance: Array
    """One per block."""
    far: Array | None
    """Squared distance of the farthest sample, on spaces where a mean need not be unique, if values
    can be seen."""
    resolution: Array
    """Distance of the mean to its neighbours in floating point; one per block, or one."""


class Samples(Protocol):
    """The source of the loop's samples: memory, or chunks read one by one."""

    def prepared(self, manifold: GyroSpace) -> "Samples":
        """Return the samples with what is needed of them alone computed, once for all means."""

    def start(self, manifold: GyroSpace) -> Array:
        """Return a first guess of the mean."""

    def look(self, manifold: GyroSpace, mean: Array) -> Look:
        """Return what is seen from a mean."""

    def step(self, manifold: GyroSpace, mean: Array, now: Look, accuracy: float) -> Array:
        """Return nearly H⁻¹g: the Newton step from a mean, in normal coordinates."""

    def shift(self, manifold: GyroSpace, mean: Array, now: Look, step: Array) -> Array:
        """Return the mean after a step."""

    def merged(self, manifold: GyroSpace, mean: Array, take: Array, new: Look, old: Look) -> Any:
        """Return the view from a mean that is the new one for channels to take, else the old."""


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

    def start(self, manifold: GyroSpace) -> Array:
        """Return a first guess of the mean."""
        return manifold.start(self.x, self.w)

    def look(self, manifold: GyroSpace, mean: Array) -> Look:
        """Return what is seen from a mean."""
        view = self.view(manifold, mean)
        hidden = backend_of(mean).hides_values(mean)
        far = None
        if not hidden and manifold.convexity_radius < float("inf"):
            xp, squares = namespace_of(mean), view.squares
            total = squares[..., 0] if squares.shape[-1] == 1 else xp.sum(squares, axis=-1)
            far = xp.max(total, axis=0)
        kept = view.seen if hidden else view
        w = self.w
        return Look(kept, view.gradient(w), view.variance(w), far, view.resolutions(w))

    def step(self, manifold: GyroSpace, mean: Array, now: Look, accuracy: float) -> Array:
        """Return nearly H⁻¹g."""
        hessian = self.view(manifold, mean, now.view).hessian(self.w)
        return newton_step(hessian, now.g, accuracy)

    def shift(self, manifold: GyroSpace, mean: Array, now: Look, step: Array) -> Array:
        """Return the mean after a step."""
        return self.view(manifold, mean, now.view).shift(step)

    def view(self, manifold: GyroSpace, mean: Array, kept: Any = ()) -> Centred:
        """Return the samples seen from a mean, from what a look has kept of them."""
        if isinstance(kept, Centred):
            return kept
        return manifold.centred(mean, self.x, kept, self.known)

    def merged(self, manifold: GyroSpace, mean: Array, take: Array, new: Look, old: Look) -> Any:
        """Return the view from a mean that is the new one for channels to take, else the old."""
        if isinstance(new.view, Centred):
            if take.all():
                return new.view
            if not take.any():
                return old.view
            seen = choose_all(take, new.view.seen, old.view.seen, lead=1)
            return manifold.centred(mean, self.x, seen, self.known)
        return choose_all(take, new.view, old.view, lead=1)


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
