"""Where a layer lives: on a geometry, or on that of another layer, whose curvature is learnt."""

from typing import Protocol, runtime_checkable

from torch import nn

from gyrobn.manifolds.gyrospace import GyroSpace

__all__ = ["Between", "HasManifold", "On", "Place"]


@runtime_checkable
class HasManifold(Protocol):
    """A layer with a geometry, such as :class:`gyrobn.torch.GyroBN`."""

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far."""


Place = GyroSpace | HasManifold
"""A geometry, or a layer that has one. With a layer, its learnt curvature is followed."""


class On(nn.Module):
    """A layer whose output lies on a geometry.

    Another layer given for it does not become a part of this one: it stays with whoever made it.
    """

    def __init__(self, manifold: Place) -> None:
        super().__init__()
        self._places = (manifold,)  # a tuple: torch registers bare layers
        _ = self.manifold

    @property
    def manifold(self) -> GyroSpace:
        """The geometry of the output, with the curvature learnt so far."""
        return _geometry(self._places[0])

    def extra_repr(self) -> str:
        """Return the geometry."""
        return repr(self.manifold)


class Between(On):
    """A layer from one geometry to another."""

    def __init__(self, source: Place, target: Place) -> None:
        super().__init__(target)
        self._sources = (source,)
        _ = self.source

    @property
    def source(self) -> GyroSpace:
        """The geometry of the input, with the curvature learnt so far."""
        return _geometry(self._sources[0])

    def extra_repr(self) -> str:
        """Return both geometries."""
        return f"{self.source!r}, {self.manifold!r}"


def _geometry(place: Place) -> GyroSpace:
    if isinstance(place, GyroSpace):
        return place
    if not isinstance(place, HasManifold):
        raise TypeError(f"expected a geometry, or a layer that has one (GyroBN), got {place!r}")
    return place.manifold
