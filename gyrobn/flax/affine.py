"""What all normalization layers of Flax share: bias, scale and curvature, and their geometry."""

from typing import Any

from flax import nnx

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import Learnt
from gyrobn.normalization.settings import LayerSettings

__all__ = ["AffineLayer"]


class AffineLayer(nnx.Module):
    """A layer that normalizes points, with a learnable bias, scale and curvature."""

    settings: Any

    def _hold(self, settings: LayerSettings, learnt: Learnt) -> None:
        """Take settings, and make the parameters."""
        self.settings = settings
        self.bias, self.scale, self.raw_curvature = (
            None if value is None else nnx.Param(value, geometry=settings.geometry)
            for value in learnt
        )

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        manifold: GyroSpace = self.settings.manifold(self._learnt.raw_curvature)
        return manifold

    @property
    def _variables(self) -> tuple[Any, ...]:
        return self.bias, self.scale, self.raw_curvature

    @property
    def _learnt(self) -> Learnt:
        """The parameters. Each variable carries its geometry, also through ``nnx.update``."""
        own, shift = self.settings.geometry, 0.0
        for variable in self._variables:
            saved = own if variable is None else variable.get_metadata().get("geometry", own)
            if saved != own:
                shift = self.settings.raw_shift(saved)
        learnt = Learnt(
            *(None if p is None else p[...] for p in (self.bias, self.scale, self.raw_curvature))
        )
        if learnt.raw_curvature is None or not shift:
            return learnt
        return learnt._replace(raw_curvature=learnt.raw_curvature + shift)

    @property
    def check_input(self) -> str | bool:
        """Which batches to check for samples off the manifold: ``"first"``, True or False."""
        which: str | bool = self.settings.check_input
        return which

    @check_input.setter
    def check_input(self, value: str | bool) -> None:
        self.settings = self.settings.checking(value)
