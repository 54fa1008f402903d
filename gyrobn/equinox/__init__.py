"""GyroBN for Equinox: layers that hold parameters, and an index to their running statistics.

The mathematics is in :mod:`gyrobn.normalization.normalize`.
"""

from gyrobn.equinox.layer import GyroBN
from gyrobn.equinox.sets import GyroGroupNorm, GyroInstanceNorm, GyroLayerNorm, GyroRMSNorm

__all__ = ["GyroBN", "GyroGroupNorm", "GyroInstanceNorm", "GyroLayerNorm", "GyroRMSNorm"]
