"""GyroBN for Flax NNX: layers that hold parameters and running statistics.

They keep the habits of ``flax.nnx.BatchNorm``; the mathematics is in
:mod:`gyrobn.normalization.normalize`.
"""

from gyrobn.flax.layer import GyroBN
from gyrobn.flax.sets import GyroGroupNorm, GyroInstanceNorm, GyroLayerNorm, GyroRMSNorm

__all__ = ["GyroBN", "GyroGroupNorm", "GyroInstanceNorm", "GyroLayerNorm", "GyroRMSNorm"]
