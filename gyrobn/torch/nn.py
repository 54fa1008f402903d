"""Layers for networks between geometries, beside the normalization of :mod:`gyrobn.torch`.

They act on normal coordinates, so they are for every geometry. A layer has a ``manifold``, and an
``out_manifold`` if its output lies on another. They follow a curvature that another layer learns,
if they are given that layer in place of a geometry. Input in half precision is computed in float32
and rounded back, also with parameters in half precision.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.torch.layers import current, no_autocast

__all__ = ["GyroActivation", "GyroLinear", "ManifoldParameter"]


Place = GyroSpace | nn.Module
"""A geometry, or a layer that has one. With a layer, its learnt curvature is followed."""


class On(nn.Module):
    """A layer on a geometry, or from one to another.

    Another layer given for it does not become a part of this one: it stays with whoever made it.
    """

    def __init__(self, manifold: Place, out_manifold: Place | None = None) -> None:
        super().__init__()
        out_manifold = manifold if out_manifold is None else out_manifold
        self._places = manifold, out_manifold  # in a tuple, because torch registers bare layers
        _ = self.manifold, self.out_manifold

    @property
    def manifold(self) -> GyroSpace:
        """The geometry of the input, with the curvature learnt so far."""
        return _geometry(self._places[0])

    @property
    def out_manifold(self) -> GyroSpace:
        """The geometry of the output, with the curvature learnt so far."""
        return _geometry(self._places[1])

    def extra_repr(self) -> str:
        """Return the geometries."""
        first, second = self._places
        return repr(self.manifold) + (f", {self.out_manifold!r}" if second is not first else "")


def _geometry(place: Place) -> GyroSpace:
    """Return the geometry: that of the output if a layer has two."""
    found = getattr(place, "out_manifold", getattr(place, "manifold", place))
    if not isinstance(found, GyroSpace):
        raise TypeError(f"expected a geometry, or a layer that has one (GyroBN), got {place!r}")
    return current(found)


HALF = (torch.float16, torch.bfloat16)


def wide(x: Tensor) -> Tensor:
    """Return an array in float32 if it is in half precision."""
    return x.float() if x.dtype in HALF else x


def wide_points(manifold: Any, x: Tensor) -> Tensor:
    """Return points in float32 if they are in half precision, projected as rounding moved them."""
    return manifold.project(x.float()) if x.dtype in HALF else x


def rounded(y: Tensor, *inputs: Tensor) -> Tensor:
    """Return the output in the dtype of the inputs, if they are in half precision."""
    dtype = inputs[0].dtype
    return y.to(dtype) if dtype in HALF and all(x.dtype == dtype for x in inputs) else y


class GyroLinear(On):
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


class ManifoldParameter(On):
    r"""A learnable point: free normal coordinates c, read as :math:`\operatorname{Exp}_e(c)`.

    Every optimizer can train it, since the coordinates are an ordinary parameter
    (a *trivialisation*). Call it for the point.

    Parameters
    ----------
    manifold
        The geometry, or a layer such as :class:`gyrobn.torch.GyroBN` whose geometry it follows.
    *shape
        Number of points along each axis; one point by default.
    device, dtype
        Of the coordinates, which start at zero: the point is the identity.

    Attributes
    ----------
    coordinates : Parameter of shape (*shape, dim)

    Examples
    --------
    >>> import torch
    >>> from gyrobn import SPD
    >>> p = ManifoldParameter(SPD(2))
    >>> p()
    tensor([[1., 0.],
            [0., 1.]], grad_fn=...)
    >>> q = ManifoldParameter.of(SPD(2), torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> bool((q() - torch.tensor([[2.0, 1.0], [1.0, 2.0]])).abs().max() < 1e-6)
    True
    """

    def __init__(
        self,
        manifold: Place,
        *shape: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(manifold)
        start = torch.zeros(*shape, self.manifold.dim, device=device, dtype=dtype)
        self.coordinates = nn.Parameter(start)

    @classmethod
    def of(cls, manifold: GyroSpace, points: Tensor) -> Self:
        """Return a parameter that starts at given points."""
        coordinates = manifold.to_normal(wide_points(manifold, points.detach()))
        made = cls(manifold, *coordinates.shape[:-1], device=points.device, dtype=points.dtype)
        with torch.no_grad():
            made.coordinates.copy_(coordinates)
        return made

    def forward(self) -> Tensor:
        """Return the point, or the points."""
        with no_autocast(self.coordinates):
            point: Tensor = self.manifold.from_normal(wide(self.coordinates))
            return rounded(point, self.coordinates)

    def extra_repr(self) -> str:
        """Return the geometry and the number of points."""
        return f"{super().extra_repr()}, shape={tuple(self.coordinates.shape[:-1])}"
