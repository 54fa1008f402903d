"""GyroBN for PyTorch: layers that hold parameters and running statistics, and call Algorithm 1.

They keep the habits of ``torch.nn.BatchNorm1d``; the mathematics is in
:mod:`gyrobn.normalization.normalize`.
"""

from gyrobn.torch.domains import DomainGyroBN
from gyrobn.torch.layer import GyroBN

__all__ = ["DomainGyroBN", "GyroBN"]
