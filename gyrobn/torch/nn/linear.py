"""Linear maps and activations in normal coordinates, on every geometry."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from gyrobn.torch.graphs import no_autocast
from gyrobn.torch.nn.place import Between, On, Place
from gyrobn.torch.nn.precision import rounded, wide, wide_points


class GyroLinear(Between):
    r"""A linear map between the tangent spaces at the identities, and a translation.

    .. math:: y = \operatorname{Exp}_e(W \operatorname{Log}_e x) \oplus \operatorname{Exp}_e(b)

    ``Euclidean(n)`` as the first geometry takes features as they are, since its coordinates are the
    point itself.

    Parameters
    ----------
    manifold, out_manifold
        Geometries of input and output, of any kind and size. A layer such as
        :class:`gyrobn.torch.GyroBN` stands for its geometry with the curvature that it learns.
    bias
        Whether there is a translation.
    dropconnect
        Probability with which an entry of W is zero in a training step; the others grow by
        1/(1 − p).
    device, dtype
        Of the parameters.

    Attributes
    ----------
    weight : Parameter of shape (out_manifold.dim, manifold.dim)
        Starts as Xavier's uniform with the gain of a ReLU.
    bias : Parameter of shape (out_manifold.dim,)
        Starts at zero.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import SPD, PoincareBall
    >>> layer = GyroLinear(SPD(3), PoincareBall(4))
    >>> y = layer(SPD(3).random(8, rng=0, like=torch.zeros(1)))
    >>> y.shape, bool(PoincareBall(4).contains(y).all())
    (torch.Size([8, 4]), True)
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        manifold: Place,
        out_manifold: Place,
        bias: bool = True,
        dropconnect: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold, out_manifold)
        self.dropconnect = dropconnect
        shape = self.out_manifold.dim, self.manifold.dim
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        free = torch.empty(shape[0], device=device, dtype=dtype) if bias else None
        self.bias = None if free is None else nn.Parameter(free)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, and set the bias to zero."""
        nn.init.xavier_uniform_(self.weight, gain=2.0**0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map points ``(..., *manifold.point_shape)`` to ``(..., *out_manifold.point_shape)``."""
        with no_autocast(x):
            M, out = self.manifold, self.out_manifold
            weight = dropout(wide(self.weight), self.dropconnect, self.training)
            y: Tensor = out.from_normal(linear(M.to_normal(wide_points(M, x)), weight))
            if self.bias is not None:
                y = out.shift(y, wide(self.bias))
            return rounded(y, x)

    def extra_repr(self) -> str:
        """Return the geometries and the options."""
        text = f"{super().extra_repr()}, bias={self.bias is not None}"
        return text + (f", dropconnect={self.dropconnect}" if self.dropconnect else "")


class GyroActivation(On):
    r"""A function of each normal coordinate.

    .. math:: y = \operatorname{Exp}_e(\varphi(\operatorname{Log}_e x))

    Parameters
    ----------
    manifold
        The geometry, or a layer such as :class:`gyrobn.torch.GyroBN` whose geometry it follows.
    function
        :math:`\varphi`, for example a ``torch.nn`` activation.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import Sphere
    >>> layer = GyroActivation(Sphere(2))
    >>> layer(Sphere(2).from_normal(torch.tensor([-0.5, 1.0])))  # only the second is left
    tensor([0.5403, 0.0000, 0.8415])
    """

    def __init__(self, manifold: Place, function: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__(manifold)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Map points to points of the same geometry."""
        with no_autocast(x):
            M = self.manifold
            y: Tensor = M.from_normal(self.function(M.to_normal(wide_points(M, x))))
            return rounded(y, x)
