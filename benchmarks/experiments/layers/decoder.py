"""From distances to probabilities."""

import torch
from torch import Tensor

from gyrobn.torch.layers import no_autocast
from gyrobn.torch.nn import On, Place, rounded, wide_points


class FermiDiracDecoder(On):
    r"""Probability of an edge between two points, from their distance.

    .. math:: p(x, y) = \frac{1}{e^{(d(x, y)^2 - r)/t} + 1}

    Where x = y, the first derivative is right, and second ones are not.

    Parameters
    ----------
    manifold
        The geometry, or a layer such as :class:`gyrobn.torch.GyroBN` whose geometry it follows.
    radius
        r: at squared distance r the probability is one half.
    temperature
        t: the smaller it is, the sharper the step.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import Euclidean
    >>> decoder = FermiDiracDecoder(Euclidean(1), radius=4.0)
    >>> decoder(torch.tensor([[0.0], [0.0]]), torch.tensor([[2.0], [9.0]]))
    tensor([5.0000e-01, 3.6251e-34])
    """

    def __init__(self, manifold: Place, radius: float = 2.0, temperature: float = 1.0) -> None:
        super().__init__(manifold)
        self.radius, self.temperature = radius, temperature

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the probabilities of pairs of points, shape ``(...)``."""
        with no_autocast(x, y):
            M = self.manifold
            d: Tensor = M.dist(wide_points(M, x), wide_points(M, y))
            return rounded(torch.sigmoid((self.radius - d * d) / self.temperature), x, y)

    def extra_repr(self) -> str:
        """Return the geometry and the options."""
        return f"{super().extra_repr()}, radius={self.radius}, temperature={self.temperature}"
