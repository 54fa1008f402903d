"""The layers of GyroGr, a network of subspaces (Nguyen and Yang, 2023)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.experiments.layers.geometric import GeometryLayer
from gyrobn.manifolds.grassmannian import Grassmannian
from gyrobn.manifolds.gyrospace import check_manifold
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.checks import check_integer
from gyrobn.torch.layers import no_autocast
from gyrobn.torch.nn import rounded, wide, wide_points


def _check_grassmannian(layer: object, manifold: Any) -> Grassmannian:
    if not isinstance(check_manifold(manifold), Grassmannian):
        raise TypeError(f"{type(layer).__name__} works on a Grassmannian, got {manifold!r}")
    return manifold  # type: ignore[no-any-return]


class GrassmannTranslation(GeometryLayer):
    r"""Gyrotranslation of subspaces by one learnt subspace per channel.

    .. math:: U \mapsto \operatorname{Exp}_e(B) \oplus U = \operatorname{mexp}
              \begin{pmatrix} 0 & -B^\top \\ B & 0 \end{pmatrix} U

    B starts uniform between :math:`\pm\sqrt{6/(C(n-p)p)}` for C channels.

    Parameters
    ----------
    manifold
        The Grassmannian.
    channels
        Number of channels of the output.
    device, dtype
        Of the parameter, and of the input.

    Attributes
    ----------
    weight : Parameter of shape (channels, dim)
        Normal coordinates of the learnt subspaces: the entries of B, row by row.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import Grassmannian
    >>> M = Grassmannian(5, 2)
    >>> layer = GrassmannTranslation(M, 8)
    >>> layer(M.random(30, 1, rng=0, like=torch.zeros(1))).shape  # one channel becomes eight
    torch.Size([30, 8, 5, 2])
    """

    weight: nn.Parameter
    _shown = ("channels",)

    def __init__(
        self,
        manifold: Grassmannian,
        channels: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(_check_grassmannian(self, manifold))
        self.channels = check_integer("channels", channels, 1)
        empty = torch.empty(channels, manifold.dim, device=device, dtype=dtype)
        self.weight = nn.Parameter(empty)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the coordinates uniformly."""
        bound = (6.0 / self.weight.numel()) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return translated points; the channels of x, the axis before a point, are C or 1."""
        with no_autocast(x):
            M, weight, points = self.manifold, wide(self.weight), wide_points(self.manifold, x)
            M._namespace(points)
            check_floating(points, weight)
            if x.ndim > 2 and x.shape[-3] not in (1, self.channels):
                raise ValueError(
                    f"GrassmannTranslation expects input of shape (..., {self.channels} or 1, "
                    f"{', '.join(map(str, M.point_shape))}), got {tuple(x.shape)}"
                )
            y: Tensor = M.add(M.from_normal(weight), points)
            return rounded(y, x)


class GrassmannPool(nn.Module):
    r"""Pooling of subspaces of :math:`\mathbb R^n` to subspaces of half that dimension.

    The projector :math:`UU^\top` is averaged over 2 × 2 blocks, and the result is the span of the
    p leading eigenvectors. If n is odd, a row and a column of zeros come first, and count. Such a
    mean is :math:`(SU)(SU)^\top`, where S takes the means of pairs of rows. So the result is the
    span of the columns of SU, which needs no eigenvectors: the derivative does not depend on gaps
    among the p eigenvalues. Where SU has a rank below p, the span and its derivative are not
    determined.

    Parameters
    ----------
    manifold
        The Grassmannian of the input; ⌈n/2⌉ must be larger than p.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import Grassmannian
    >>> M = Grassmannian(93, 10)
    >>> pool = GrassmannPool(M)
    >>> y = pool(M.random(3, rng=0, like=torch.zeros(1), spread=5.0))
    >>> y.shape, pool.out_manifold
    (torch.Size([3, 47, 10]), Grassmannian(n=47, p=10, representation='basis'))
    """

    def __init__(self, manifold: Grassmannian) -> None:
        super().__init__()
        self.manifold = _check_grassmannian(self, manifold)
        self.out_manifold = replace(manifold, n=(manifold.n + 1) // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return points of ``out_manifold`` for points of ``manifold``."""
        with no_autocast(x):
            points = wide_points(self.manifold, x)
            self.manifold._namespace(points)
            pooled = _mean_of_pairs(points)
            if self.manifold.representation == "projector":
                pooled = _mean_of_pairs(pooled.mT)
            y: Tensor = self.out_manifold.project(pooled)
            return rounded(y, x)

    def extra_repr(self) -> str:
        """Return the options to print."""
        return repr(self.manifold)


def _mean_of_pairs(x: Tensor) -> Tensor:
    """Return the means of pairs of rows, after a row of zeros if their number is odd."""
    if x.shape[-2] % 2:
        x = nn.functional.pad(x, (0, 0, 1, 0))
    return 0.5 * (x[..., ::2, :] + x[..., 1::2, :])


class ProjMap(nn.Module):
    r"""The entries of the projector :math:`UU^\top`, as a vector of :math:`n^2` numbers.

    It does not depend on the basis, so an ordinary layer can follow.

    Parameters
    ----------
    manifold
        The Grassmannian.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import Grassmannian
    >>> ProjMap(Grassmannian(2, 1))(torch.tensor([[0.6], [0.8]]))
    tensor([0.3600, 0.4800, 0.4800, 0.6400])
    """

    def __init__(self, manifold: Grassmannian) -> None:
        super().__init__()
        self.manifold = _check_grassmannian(self, manifold)

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors, shape (..., n²)."""
        with no_autocast(x):
            points = wide_points(self.manifold, x)
            self.manifold._namespace(points)
            if self.manifold.representation == "basis":
                points = torch.matmul(points, points.mT)
            return rounded(points.flatten(-2), x)

    def extra_repr(self) -> str:
        """Return the options to print."""
        return repr(self.manifold)
