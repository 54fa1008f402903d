"""GyroBN for PyTorch: layers that hold parameters and running statistics, and call Algorithm 1.

They follow the conventions of ``torch.nn.BatchNorm1d``; the mathematics is in
:mod:`gyrobn.normalization.normalize`.
"""

from gyrobn.torch.averages import update_bn
from gyrobn.torch.domains import DomainGyroBN
from gyrobn.torch.layers import (
    Curvature,
    GyroBN,
    GyroGroupNorm,
    GyroInstanceNorm,
    GyroLayerNorm,
    GyroRMSNorm,
)

__all__ = [
    "Curvature",
    "DomainGyroBN",
    "GyroBN",
    "GyroGroupNorm",
    "GyroInstanceNorm",
    "GyroLayerNorm",
    "GyroRMSNorm",
    "update_bn",
]
