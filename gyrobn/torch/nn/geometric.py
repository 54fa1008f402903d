"""What the layers with a geometry share: its place in the state, and a curvature to learn."""

from typing import Any

import torch
from torch import nn

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.settings import LearntGeometry
from gyrobn.torch.states import GeometryState

__all__ = ["GeometryLayer"]


class GeometryLayer(GeometryState):
    """A layer on one geometry, whose curvature may be learnt as in :class:`gyrobn.torch.GyroBN`.

    Its state dict holds the geometry, and refuses that of a layer on another one.
    """

    raw_curvature: nn.Parameter | None

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
        return self.settings.manifold(self.raw_curvature)

    def reset_parameters(self) -> None:
        """Reset the curvature."""
        if self.raw_curvature is not None:
            with torch.no_grad():
                self.raw_curvature.fill_(self.settings.initial_curvature)

    def extra_repr(self) -> str:
        """Return the options to print."""
        learns = ", learn_curvature=True" if self.settings.learn_curvature else ""
        return f"{self.settings.geometry!r}{learns}"
