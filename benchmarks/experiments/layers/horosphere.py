"""The horosphere block of Riemannian residual networks (Katsman et al., 2023)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.experiments.layers.geometric import GeometryLayer
from benchmarks.experiments.layers.poincare import check_ball
from gyrobn.manifolds.models import PoincareBall
from gyrobn.numerics.arrays import check_floating, dot, length
from gyrobn.numerics.checks import check_integer, check_number
from gyrobn.torch.layers import no_autocast
from gyrobn.torch.nn import HALF, rounded, wide, wide_points


class Horospheres(GeometryLayer):
    r"""Signed distances of points of a Poincaré ball to learnt horospheres.

    .. math:: q_j(x) = \frac1{\sqrt{-K}} \log\frac{1 + K\|x\|^2}{\|\sqrt{-K}\,x - \omega_j\|^2}
              + b_j, \qquad \omega_j = \frac{w_j}{\|w_j\|} .

    :math:`\omega_j` is the point of the boundary that horosphere j touches. Both w and b start at
    standard normal numbers.

    Parameters
    ----------
    manifold
        The ball, of any negative curvature.
    count
        Number of horospheres.
    learn_curvature, device, dtype
        As in :class:`PoincareLinear`.

    Attributes
    ----------
    weight : Parameter
        The w, one vector of n numbers per horosphere; only their direction matters.
    bias : Parameter
        The b, one number per horosphere.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall
    >>> layer = Horospheres(PoincareBall(2), 10)
    >>> bool(torch.equal(layer(torch.zeros(2)), layer.bias))  # at the identity
    True
    """

    weight: nn.Parameter
    bias: nn.Parameter
    _shown = ("count",)

    def __init__(
        self,
        manifold: PoincareBall,
        count: int = 250,
        learn_curvature: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(check_ball(self, manifold), learn_curvature, device, dtype)
        self.count = check_integer("count", count, 1)
        self.weight = nn.Parameter(torch.empty(count, manifold.n, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(count, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw standard normal numbers."""
        super().reset_parameters()
        with torch.no_grad():
            self.weight.normal_()
            self.bias.normal_()

    def forward(self, x: Tensor) -> Tensor:
        """Return the signed distances, shape (..., count), for points (..., n)."""
        with no_autocast(x):
            M = self.manifold
            return rounded(self._measure(M, wide_points(M, x))[0], x)

    def field(self, x: Tensor, weights: Callable[[Tensor], Tensor]) -> Tensor:
        r"""Return the vectors :math:`\sum_j a_j \nabla q_j(x)`, :math:`a = ` ``weights(q(x))``.

        .. math:: \nabla q_j(x) = -\sqrt{-K}\,\lambda_x x
                  - 2\,\frac{\sqrt{-K}\,x - \omega_j}{\|\sqrt{-K}\,x - \omega_j\|^2}

        is the Euclidean gradient, as in the published networks. The Riemannian one is it divided
        by :math:`\lambda_x^2`.
        """
        with no_autocast(x):
            M = self.manifold
            points = wide_points(M, x)
            q, room, gap, omega = self._measure(M, points)
            k = abs(M._parameter("curvature", points)) ** 0.5
            a = weights(q)
            share = a / gap
            along = k * (a.sum(-1) / room + share.sum(-1))
            v: Tensor = 2.0 * (torch.matmul(share, omega) - along[..., None] * points)
            return rounded(v, x)

    def _measure(self, M: PoincareBall, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, 1 + K‖x‖², ‖√-K x − ω‖² and ω."""
        M._namespace(x)  # checks the shape
        weight = wide(self.weight)
        check_floating(x, weight)
        k = abs(M._parameter("curvature", x)) ** 0.5
        size = length(weight)
        omega = weight / torch.where(size > 0, size, 1.0)[:, None]
        y = k * x
        square = dot(y, y)
        room = torch.clamp(1.0 - square, min=torch.finfo(x.dtype).eps)
        gap = 1.0 + square[..., None] - 2.0 * torch.matmul(y, omega.mT)
        # by rounding the sum may be smaller than the squared distance from the boundary
        gap = torch.maximum(gap, (0.5 * room).square()[..., None])
        q = (torch.log(room)[..., None] - torch.log(gap)) / k + wide(self.bias)
        return q, room, gap, omega


class HorosphereBlock(nn.Module):
    r"""The block of a Riemannian residual network that is built on horospheres.

    .. math:: x \mapsto \operatorname{Exp}_x\Bigl(\sum_j a_j(x)\,\nabla q_j(x)\Bigr), \qquad
              a = W_2\,\mathrm{BN}(\mathrm{relu}(W_1 q(x) + b_1)) + b_2,

    where q are the distances to :class:`Horospheres` and BN is ``torch.nn.BatchNorm1d``. Before and
    after it vectors are pulled back to :math:`\sqrt{-K}\|x\| \le 1 - \mathrm{edge}`. So it takes
    any vectors, such as the output of ``torch.nn.Linear``.

    Parameters
    ----------
    horospheres
        The horospheres. Blocks that are given the same module share them.
    hidden
        Width of the hidden layer that computes a.
    edge
        The least distance from the boundary of the unit ball. The vectors of the field grow without
        bound towards it.
    device, dtype
        Of the hidden layer; those of the horospheres by default.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(4)
    >>> net = torch.nn.Sequential(
    ...     torch.nn.Linear(7, 4),
    ...     HorosphereBlock(Horospheres(M, 20), hidden=8),
    ...     HorosphereBlock(Horospheres(M, 20), hidden=8),
    ... )
    >>> y = net(torch.randn(10, 7))
    >>> y.shape, bool(M.contains(y).all())
    (torch.Size([10, 4]), True)
    """

    def __init__(
        self,
        horospheres: Horospheres,
        hidden: int = 128,
        edge: float = 1e-3,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.horospheres = horospheres
        self.edge = check_number("edge", edge, 0.0, 1.0)
        check_integer("hidden", hidden, 1)
        weight, count = horospheres.weight, horospheres.count
        own: dict[str, Any] = {"device": device or weight.device, "dtype": dtype or weight.dtype}
        self.weights = nn.Sequential(
            nn.Linear(count, hidden, **own),
            nn.ReLU(),
            nn.BatchNorm1d(hidden, **own),
            nn.Linear(hidden, count, **own),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return moved points, shape (..., n), for vectors (..., n)."""
        M = self.horospheres.manifold
        with no_autocast(x):
            points = self._inside(M, wide(x))
            v = self.horospheres.field(points, self._weights)
            return rounded(self._inside(M, M.exp(points, v)), x)

    def _weights(self, q: Tensor) -> Tensor:
        flat, own = q.reshape(-1, q.shape[-1]), self.weights[0].weight.dtype
        out: Tensor = self.weights(flat.to(own) if own in HALF else flat)
        return out.to(q.dtype).reshape(q.shape)

    def _inside(self, M: PoincareBall, x: Tensor) -> Tensor:
        M._namespace(x)
        most = (1.0 - self.edge) / abs(M._parameter("curvature", x)) ** 0.5
        size = length(x)
        out = size > most
        return x * torch.where(out, most / torch.where(out, size, 1.0), 1.0)[..., None]

    def extra_repr(self) -> str:
        """Return the options to print."""
        return f"edge={self.edge}"
