"""What the layers with parameters on one geometry share."""

from typing import Any

import torch
from torch import nn

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import LearntGeometry
from gyrobn.torch.layers import GeometryState


class GeometryLayer(GeometryState):
    """A layer with parameters on one geometry, whose curvature may be learnt."""

    _shown: tuple[str, ...] = ()
    """Attributes to print."""

    def __init__(
        self,
        manifold: GyroSpace,
        learn_curvature: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.settings = LearntGeometry(manifold, learn_curvature)
        self.raw_curvature = None
        if learn_curvature:
            raw = self.settings.initial_curvature
            self.raw_curvature = nn.Parameter(torch.tensor(raw, device=device, dtype=dtype))

    @property
    def manifold(self) -> Any:
        """The geometry, with the curvature learnt so far."""
        return super().manifold

    def extra_repr(self) -> str:
        """Return the options to print."""
        learns = ["learn_curvature=True"] if self.settings.learn_curvature else []
        own = [f"{name}={getattr(self, name)}" for name in self._shown]
        return ", ".join([repr(self.settings.geometry), *learns, *own])
