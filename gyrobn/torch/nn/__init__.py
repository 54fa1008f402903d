"""Layers of networks on geometries, for use between :class:`gyrobn.torch.GyroBN` layers."""

from gyrobn.torch.nn.grassmann import GrassmannPool, GrassmannTranslation, ProjMap
from gyrobn.torch.nn.horosphere import HorosphereBlock, Horospheres
from gyrobn.torch.nn.poincare import BetaConcat, PoincareLinear, PoincareMLR

__all__ = [
    "BetaConcat",
    "GrassmannPool",
    "GrassmannTranslation",
    "HorosphereBlock",
    "Horospheres",
    "PoincareLinear",
    "PoincareMLR",
    "ProjMap",
]
