"""Where a layer lives: on a geometry, or on that of another layer, whose curvature is learnt."""

from typing import Protocol, runtime_checkable

from torch import nn

from gyrobn.manifolds.gyrospace import GyroSpace


@runtime_checkable
class HasManifold(Protocol):
    """A layer with a geometry, such as :class:`gyrobn.torch.GyroBN`."""

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far."""


Place = GyroSpace | HasManifold
"""A geometry, or a layer that has one. With a layer, its learnt curvature is followed."""


class On(nn.Module):
    """A layer on a geometry.

    Another layer given for it does not become a part of this one: it stays with whoever made it.
    """

    def __init__(self, manifold: Place) -> None:
        super().__init__()
        self._place = (manifold,)  # in a tuple, because torch registers bare layers
        _ = self.manifold

    @property
    def manifold(self) -> GyroSpace:
        """The geometry of the input, with the curvature learnt so far."""
        return _geometry(self._place[0])

    def extra_repr(self) -> str:
        """Return the geometry."""
        return repr(self.manifold)


class Between(On):
    """A layer from one geometry to another."""

    def __init__(self, manifold: Place, out_manifold: Place) -> None:
        super().__init__(manifold)
        self._out_place = (out_manifold,)
        _ = self.out_manifold

    @property
    def out_manifold(self) -> GyroSpace:
        """The geometry of the output, with the curvature learnt so far."""
        return _geometry(self._out_place[0])

    def extra_repr(self) -> str:
        """Return both geometries."""
        return f"{self.manifold!r}, {self.out_manifold!r}"


def _geometry(place: Place) -> GyroSpace:
    """Return the geometry: that of the output if a layer has two."""
    if isinstance(place, GyroSpace):
        return place
    if not isinstance(place, HasManifold):
        raise TypeError(f"expected a geometry, or a layer that has one (GyroBN), got {place!r}")
    manifold: GyroSpace = getattr(place, "out_manifold", place.manifold)
    return manifold
