"""A learnable point."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.torch.graphs import no_autocast
from gyrobn.torch.nn.place import On, Place
from gyrobn.torch.nn.precision import rounded, wide, wide_points


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
