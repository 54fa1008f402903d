"""The layers of single papers that the experiments use, beside :mod:`gyrobn.torch.nn`.

A layer has a ``manifold``, and an ``out_manifold`` if its output lies on another. Curvature is
learnt as in :class:`gyrobn.torch.GyroBN`.
"""

from benchmarks.experiments.layers.decoder import FermiDiracDecoder
from benchmarks.experiments.layers.grassmann import GrassmannPool, GrassmannTranslation, ProjMap
from benchmarks.experiments.layers.horosphere import HorosphereBlock, Horospheres
from benchmarks.experiments.layers.lorentz import LorentzActivation, LorentzLinear
from benchmarks.experiments.layers.poincare import BetaConcat, PoincareLinear, PoincareMLR

__all__ = [
    "BetaConcat",
    "FermiDiracDecoder",
    "GrassmannPool",
    "GrassmannTranslation",
    "HorosphereBlock",
    "Horospheres",
    "LorentzActivation",
    "LorentzLinear",
    "PoincareLinear",
    "PoincareMLR",
    "ProjMap",
]
