"""LRBN and ManifoldNorm as PyTorch layers, for comparisons with GyroBN.

They are :class:`gyrobn.torch.GyroBN` with another formula: see
:mod:`gyrobn.normalization.baselines`.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.baselines import lrbn, manifold_norm
from gyrobn.normalization.normalize import Stats
from gyrobn.torch.layer import GyroBN


class LRBN(GyroBN):
    """Batch normalization of Lou et al. (2020): :func:`gyrobn.normalization.baselines.lrbn`.

    Parameters and attributes are those of :class:`gyrobn.torch.GyroBN`.
    """

    _formula = staticmethod(lrbn)


class ManifoldNorm(GyroBN):
    """ManifoldNorm of Chakraborty (2020): :func:`gyrobn.normalization.baselines.manifold_norm`.

    Parameters
    ----------
    manifold, channels, **options
        As in :class:`gyrobn.torch.GyroBN`; ``eps`` has no effect.
    diagonal
        Whether there is one scale per normal coordinate, the algorithm's diagonal matrix, or one
        for all of them, as in the paper's experiments.

    Attributes
    ----------
    scale : Parameter of shape (*channels, dim), or (*channels, 1)
        Diagonal of S.
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int] = (),
        *,
        diagonal: bool = True,
        **options: Any,
    ) -> None:
        if options.get("clamp") is not None:
            raise ValueError("ManifoldNorm does not divide by the variance: nothing to clamp")
        super().__init__(manifold, channels, **options)
        if self.scale is not None:
            shape = (*self.settings.channels, manifold.dim if diagonal else 1)
            self.scale = nn.Parameter(self.scale.detach().new_ones(shape))

    @staticmethod
    def _formula(
        manifold: GyroSpace, x: Tensor, stats: Stats, bias: Any, scale: Any, *_: Any
    ) -> Tensor:
        y: Tensor = manifold_norm(manifold, x, stats, bias, scale)
        return y
