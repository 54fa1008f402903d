"""Riemannian batch normalization on gyrogroups, on any array library.

See https://arxiv.org/abs/2509.07115 for the paper, *Riemannian Batch Normalization: A Gyro
Approach*.
"""

from gyrobn.frechet import (
    FrechetResult,
    FrechetWarning,
    frechet,
    frechet_mean,
    frechet_variance,
)
from gyrobn.gyrospace import GyroSpace
from gyrobn.manifolds import (
    REGISTRY,
    Euclidean,
    Hyperboloid,
    Klein,
    PoincareBall,
    ProjectedHypersphere,
    Sphere,
    Stereographic,
    convert,
)
from gyrobn.normalize import Stats, batch_stats, denormalize, normalize, update_stats

__version__ = "0.1.0"
__all__ = [
    "REGISTRY",
    "Euclidean",
    "FrechetResult",
    "FrechetWarning",
    "GyroSpace",
    "Hyperboloid",
    "Klein",
    "PoincareBall",
    "ProjectedHypersphere",
    "Sphere",
    "Stats",
    "Stereographic",
    "batch_stats",
    "convert",
    "denormalize",
    "frechet",
    "frechet_mean",
    "frechet_variance",
    "normalize",
    "update_stats",
]
