"""Layers on the hyperboloid that act on its ambient coordinates (time, space)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from gyrobn.manifolds import Hyperboloid
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.torch.layers import no_autocast
from gyrobn.torch.nn import On, Place, rounded, wide, wide_points


class LorentzLinear(On):
    r"""The fully connected layer of Chen et al. (2021) on the hyperboloid.

    One affine map of the ambient coordinates gives a gate :math:`g` and a direction :math:`u`; the
    gate alone decides how far the output lies from the identity.

    .. math:: (g, u) = W x + b, \qquad s = \lambda\,\sigma(g)\,\frac{u}{\|u\|}, \qquad
              y = \Bigl(\sqrt{\|s\|^2 + 1/|K|},\; s\Bigr)

    Parameters
    ----------
    manifold, out_manifold
        Hyperboloids of input and output, or layers such as :class:`gyrobn.torch.GyroBN` on them.
    reach
        Initial :math:`\lambda`, the largest length of the spatial part.
    learn_reach
        Whether :math:`\lambda` is learnt, as its logarithm.
    drop
        Probability with which an entry of the input is zero in a training step.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    weight : Parameter of shape (out_manifold.n + 1, manifold.n + 1)
        Starts uniform in ±0.02. Its first row is the gate.
    bias : Parameter of shape (out_manifold.n + 1,)
        Starts at zero.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import Hyperboloid
    >>> M = Hyperboloid(3)
    >>> y = LorentzLinear(M, Hyperboloid(5))(M.random(8, rng=0, like=torch.zeros(1)))
    >>> y.shape, bool(Hyperboloid(5).contains(y).all())
    (torch.Size([8, 6]), True)
    """

    def __init__(
        self,
        manifold: Place,
        out_manifold: Place,
        reach: float = 10.0,
        learn_reach: bool = False,
        drop: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold, out_manifold)
        self.drop = drop
        own = {"device": device, "dtype": dtype}
        rows, columns = (_hyperboloid(M).n + 1 for M in (self.out_manifold, self.manifold))
        self.weight = nn.Parameter(torch.empty(rows, columns, **own))
        self.bias = nn.Parameter(torch.empty(rows, **own))
        self._reach, log = math.log(reach), torch.empty((), **own)
        self.log_reach = nn.Parameter(log) if learn_reach else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; the bias is zero, and the reach its initial value."""
        nn.init.uniform_(self.weight, -0.02, 0.02)
        nn.init.zeros_(self.bias)
        if self.log_reach is not None:
            nn.init.constant_(self.log_reach, self._reach)

    def forward(self, x: Tensor) -> Tensor:
        """Map points ``(..., manifold.n + 1)`` to ``(..., out_manifold.n + 1)``."""
        with no_autocast(x):
            points = wide_points(self.manifold, x)
            self.manifold._namespace(points)
            points = dropout(points, self.drop, self.training)
            y = linear(points, wide(self.weight), wide(self.bias))
            gate, u = y[..., :1], y[..., 1:]
            if self.log_reach is None:
                reach: Any = math.exp(self._reach)
            else:
                reach = torch.exp(wide(self.log_reach))
            s = reach * torch.sigmoid(gate) * nn.functional.normalize(u, dim=-1)
            return rounded(lift(self.out_manifold, s), x)


class LorentzActivation(On):
    r"""A function of each spatial coordinate; the time follows.

    .. math:: y = \Bigl(\sqrt{\|\varphi(x_s)\|^2 + 1/|K|},\; \varphi(x_s)\Bigr)

    Parameters
    ----------
    manifold
        The hyperboloid, or a layer such as :class:`gyrobn.torch.GyroBN` on it.
    function
        :math:`\varphi`, for example a ``torch.nn`` activation.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import Hyperboloid
    >>> M = Hyperboloid(2)
    >>> LorentzActivation(M)(torch.tensor([3.0, 2.0, -2.0]))
    tensor([2.2361, 2.0000, 0.0000])
    """

    def __init__(self, manifold: Place, function: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__(manifold)
        self.function = function
        _hyperboloid(self.manifold)

    def forward(self, x: Tensor) -> Tensor:
        """Map points to points of the same hyperboloid."""
        with no_autocast(x):
            points = wide_points(self.manifold, x)
            self.manifold._namespace(points)
            return rounded(lift(self.manifold, self.function(points[..., 1:])), x)


def lift(manifold: GyroSpace, s: Tensor) -> Tensor:
    """Return the point of the hyperboloid with a given spatial part."""
    K: Any = _hyperboloid(manifold).curvature
    time = torch.sqrt((s * s).sum(dim=-1, keepdim=True) - 1.0 / K)
    return torch.cat([time, s], dim=-1)


def _hyperboloid(manifold: GyroSpace) -> Hyperboloid:
    if not isinstance(manifold, Hyperboloid):
        raise TypeError(f"expected a Hyperboloid, got {manifold!r}: GyroLinear is for all others")
    return manifold
