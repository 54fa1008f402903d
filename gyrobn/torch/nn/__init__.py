"""Layers for networks between geometries, beside the normalization of :mod:`gyrobn.torch`.

Each is a few lines over a geometry. In place of a geometry every layer takes another layer, such as
:class:`gyrobn.torch.GyroBN`, and follows the curvature that it learns.
"""

from gyrobn.torch.nn.decoder import FermiDiracDecoder
from gyrobn.torch.nn.grassmann import GrassmannPool, GrassmannTranslation, ProjMap
from gyrobn.torch.nn.horosphere import HorosphereBlock, Horospheres
from gyrobn.torch.nn.linear import GyroActivation, GyroLinear
from gyrobn.torch.nn.lorentz import LorentzActivation, LorentzLinear
from gyrobn.torch.nn.parameter import ManifoldParameter
from gyrobn.torch.nn.poincare import BetaConcat, PoincareLinear, PoincareMLR

__all__ = [
    "BetaConcat",
    "FermiDiracDecoder",
    "GrassmannPool",
    "GrassmannTranslation",
    "GyroActivation",
    "GyroLinear",
    "HorosphereBlock",
    "Horospheres",
    "LorentzActivation",
    "LorentzLinear",
    "ManifoldParameter",
    "PoincareLinear",
    "PoincareMLR",
    "ProjMap",
]
