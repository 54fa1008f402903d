"""Riemannian batch normalization on gyrogroups, on any array library.

``GyroBN`` is the scikit-learn transformer. A geometry, such as ``PoincareBall(2)`` or ``SPD(8)``,
has the operations on points. ``batch_stats`` and ``normalize`` are the algorithm, and ``frechet``
finds the mean. The layers are in ``gyrobn.torch``, ``gyrobn.flax`` and ``gyrobn.equinox``, and
pictures in ``gyrobn.plot``. ``gyrobn --help`` describes the command line.

``from gyrobn import *`` leaves out ``GyroBN``, which is the name of the layers, too: import it by
name.

The algorithm is that of *Riemannian Batch Normalization: A Gyro Approach*,
https://arxiv.org/abs/2509.07115.
"""

from typing import TYPE_CHECKING, Any

from gyrobn.data.chunks import Chunks
from gyrobn.manifolds import *
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.correlation import covariance_to_correlation
from gyrobn.manifolds.definite import reduce_rank
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.models import convert
from gyrobn.normalization.normalize import (
    Stats,
    batch_stats,
    denormalize,
    merge_stats,
    normalize,
    normalize_batch,
    update_stats,
)
from gyrobn.numerics.matrices import PrecisionWarning
from gyrobn.statistics.frechet import FrechetResult, frechet, frechet_mean, frechet_variance
from gyrobn.statistics.uniqueness import FrechetWarning
from gyrobn.suggestion import Suggestion, suggest

__version__ = "0.1.0"
__all__ = [
    "REGISTRY",
    "Chunks",
    "FrechetResult",
    "FrechetWarning",
    "GyroSpace",
    "PrecisionWarning",
    "Stats",
    "Suggestion",
    "batch_stats",
    "convert",
    "covariance_to_correlation",
    "denormalize",
    "frechet",
    "frechet_mean",
    "frechet_variance",
    "merge_stats",
    "normalize",
    "normalize_batch",
    "reduce_rank",
    "suggest",
    "update_stats",
]
__all__ += [cls.__name__ for cls in REGISTRY.values()]

if TYPE_CHECKING:
    from gyrobn.estimator.transformer import GyroBN as GyroBN
else:

    def __getattr__(name: str) -> Any:
        """Import the estimator, and with it scikit-learn, only when it is asked for."""
        if name == "GyroBN":
            from gyrobn.estimator.transformer import GyroBN

            return GyroBN
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "GyroBN"})
