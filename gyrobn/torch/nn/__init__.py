"""Layers for networks between geometries, beside the normalization of :mod:`gyrobn.torch`.

Each is a few lines over a geometry: GyroLinear and GyroActivation are for all of them, the others
for one family. A layer has a ``manifold``, and an ``out_manifold`` if its output lies on another.
Curvature is learnt as in :class:`gyrobn.torch.GyroBN`. The layers that have no parameters on the
geometry follow a curvature that another layer learns, if they are given that layer in place of a
geometry. Input in half precision is computed in float32 and rounded back, also with parameters in
half precision.
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
