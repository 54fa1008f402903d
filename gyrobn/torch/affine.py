"""What all normalization layers of torch share: bias, scale and curvature, and their dtype."""

from typing import Any

import torch
from torch import Tensor, nn

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import Learnt
from gyrobn.normalization.settings import LayerSettings
from gyrobn.numerics.arrays import check_floating
from gyrobn.torch.graphs import Constant
from gyrobn.torch.states import GeometryState

__all__ = ["AffineLayer"]


class AffineLayer(GeometryState):
    """A layer that normalizes points, with a learnable bias, scale and curvature."""

    settings: LayerSettings
    bias: nn.Parameter | None
    scale: nn.Parameter | None
    raw_curvature: nn.Parameter | None

    def _hold(self, settings: LayerSettings, learnt: Learnt) -> None:
        """Take settings, and make the parameters."""
        self.settings, self._constant = settings, Constant(settings)
        self.bias, self.scale, self.raw_curvature = (
            None if value is None else nn.Parameter(value) for value in learnt
        )

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        return self.settings.manifold(self.raw_curvature)

    @property
    def check_input(self) -> str | bool:
        """Which batches to check for samples off the manifold: ``"first"``, True or False."""
        return self.settings.check_input

    @check_input.setter
    def check_input(self, value: str | bool) -> None:
        self.settings = self.settings.checking(value)
        self._constant = Constant(self.settings)

    @property
    def _learnt(self) -> Learnt:
        return Learnt(self.bias, self.scale, self.raw_curvature)

    @property
    def _own(self) -> Tensor | None:
        """An array in the dtype of the layer, if it has one."""
        return self.scale

    def _given(self, x: Tensor, weights: Tensor | None, **more: Tensor | None) -> dict[str, Tensor]:
        """Return the arrays of a call by name, for :mod:`gyrobn.torch.graphs`."""
        arrays = {
            "x": self._checked(x),
            "weights": weights,
            "bias": self.bias,
            "scale": self.scale,
            "raw_curvature": self.raw_curvature,
            **more,
        }
        return {name: a for name, a in arrays.items() if a is not None}

    def _checked(self, x: Tensor) -> Tensor:
        """Return the input; refuse other dtypes than real ones, and float64 mixed with float32."""
        if x.dtype not in _REAL:
            check_floating(x, half=True)
        own = self._own
        # Not by common_dtype: it looks into a table that grows while a graph is made. The compiler
        # would guard the table, and compile the same batch once more.
        if own is not None and (x.dtype == torch.float64) != (own.dtype == torch.float64):
            raise TypeError(
                f"{type(self).__name__} holds {own.dtype}, got input of {x.dtype}: convert the "
                f"layer, for example with layer.to({x.dtype}), or the input"
            )
        return x

    def reset_parameters(self) -> None:
        """Reset the parameters."""
        with torch.no_grad():
            if self.bias is not None and self.scale is not None:
                self.bias.zero_()
                self.scale.fill_(1.0)
            if self.raw_curvature is not None:
                self.raw_curvature.fill_(self.settings.initial_curvature)

    def parameter_groups(self, **scale_options: Any) -> list[dict[str, Any]]:
        """Return groups for an optimizer, the scale in one of its own with ``scale_options``.

        >>> import torch
        >>> from gyrobn import PoincareBall
        >>> from gyrobn.torch import GyroBN
        >>> layer = GyroBN(PoincareBall(4))
        >>> optimizer = torch.optim.SGD(layer.parameter_groups(lr=1e-3), lr=1e-2)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.001]
        """
        others = [p for name, p in self.named_parameters() if name != "scale"]
        scales = [] if self.scale is None else [self.scale]
        return [{"params": others}, {"params": scales, **scale_options}]

    def _unusual(self) -> list[str]:
        """Return the options to print because they differ from the default."""
        values = ((name, getattr(self.settings, name), usual) for name, usual in _USUAL.items())
        return [f"{name}={value!r}" for name, value, usual in values if value != usual]


_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

_USUAL = {
    "mean": "frechet",
    "mean_gradient": "implicit",
    "steps": None,
    "learn_curvature": False,
    "clamp": None,
}
