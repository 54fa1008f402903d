"""The normalization of subspaces as its published code computes it."""

from typing import Any

import torch
from torch import Tensor

from gyrobn import Grassmannian
from gyrobn.torch import GyroBN


class PublishedGyroBN(GyroBN):
    r"""GyroBN of subspaces with the statistics of the published code.

    The mean of a batch is one step of the Karcher flow from sample 0, and neither it nor the
    variance is differentiated. So the mean depends on the order of the samples.
    """

    manifold: Grassmannian

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Normalize a batch."""
        mean, var = self._learn(x.detach()) if self.training else self._running()
        factor = self.scale / (var + self.settings.eps) ** 0.5
        centred = self.translated(-self.manifold.to_normal(mean), x)
        scaled = self.from_normal(factor[..., None] * self.manifold.to_normal(centred))
        return self.translated(self.bias, scaled)

    def translated(self, c: Tensor, x: Tensor) -> Tensor:
        r"""Return :math:`E(\Omega_c)\,x`, with the exponential for E."""
        y: Tensor = self.manifold.add(self.manifold.from_normal(c), x)
        return y

    def from_normal(self, c: Tensor) -> Tensor:
        r"""Return :math:`E(\Omega_c)\,I_{p,n}`, with the exponential for E."""
        y: Tensor = self.manifold.from_normal(c)
        return y

    def _running(self) -> tuple[Tensor, Tensor]:
        return self.running_mean, self.running_var

    @torch.no_grad()
    def _learn(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a batch, and update the running ones by momentum."""
        M = self.manifold
        mean = M.exp(x[0], M.log(x[0], x).mean(dim=0))
        var = (M.dist(mean, x) ** 2).mean(dim=0)
        old = self.running_mean
        old.copy_(M.exp(old, self.momentum * M.log(old, mean)))
        self.running_var.lerp_(var, self.momentum)
        return mean, var


class CayleyGyroBN(PublishedGyroBN):
    r"""GyroBN of subspaces as published, with the Cayley map for the exponential.

    :math:`(I - \Omega)(I + \Omega)^{-1} \approx \operatorname{mexp}(-2\Omega)` in place of
    :math:`\operatorname{mexp}(\Omega)` moves the mean of a batch away from the identity.
    """

    def translated(self, c: Tensor, x: Tensor) -> Tensor:
        """Apply the Cayley map to bases."""
        omega = self._skew(c)
        eye = torch.eye(self.manifold.n, dtype=x.dtype)
        y: Tensor = torch.linalg.solve(eye + omega, (eye - omega) @ x)
        return y

    def from_normal(self, c: Tensor) -> Tensor:
        """Apply the Cayley map to the identity."""
        return self.translated(c, self.manifold.origin(c))

    def _skew(self, c: Tensor) -> Any:
        M = self.manifold
        B = c.reshape(*c.shape[:-1], M.n - M.p, M.p)
        upper = torch.nn.functional.pad(-B.mT, (M.p, 0))
        return torch.cat([upper, torch.nn.functional.pad(B, (0, M.n - M.p))], dim=-2)
