"""Layer, instance, group and root mean square normalization of points, for PyTorch."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.docstrings import documented
from gyrobn.normalization.settings import SetSettings
from gyrobn.torch.affine import AffineLayer


class SetLayer(AffineLayer):
    """A layer that normalizes sets of points within each sample."""

    settings: SetSettings

    @documented
    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Normalize every set of a batch.

        %(set_call)s
        """
        return super().forward(x, weights)

    def extra_repr(self) -> str:
        """Return the options to print; some only if they differ from the default."""
        settings = self.settings
        parts = [repr(settings.geometry)]
        if settings.group is not None:
            groups = settings.channels[0]
            parts += [f"groups={groups}", f"channels={groups * settings.group}"]
        elif settings.channels:
            parts.append(f"channels={settings.channels}")
        else:
            parts.append(f"axis={settings.axis}")
        parts += [f"eps={settings.eps}", f"affine={self.affine}", *self._unusual()]
        if self.track_running_stats:
            parts += [f"momentum={self.momentum}", "track_running_stats=True"]
        return ", ".join(parts)


class AxisLayer(SetLayer):
    """A layer whose sets are given by their axes, with one bias and scale for all of them."""

    _centre: ClassVar[bool] = True

    def __init__(
        self,
        manifold: GyroSpace,
        axis: int | Sequence[int] | None = None,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        settings = SetSettings.layer(
            type(self).__name__, manifold, axis, eps=eps, centre=self._centre, **options
        )
        super().__init__(settings, None, affine, False, device, dtype)


@documented
class GyroLayerNorm(AxisLayer):
    """Riemannian layer normalization: all points of a sample are one set.

    %(layer_norm)s

    Examples
    --------
    A batch of two sequences of four tokens, of which the second has one token of padding:

    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(3)
    >>> x = M.random(2, 4, rng=0, like=torch.zeros(1), spread=0.5)
    >>> mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    >>> y = GyroLayerNorm(M)(x, mask)
    >>> found = frechet(M, y, mask, axis=1)
    >>> bool(found.mean.abs().max() < 1e-5), found.variance.round(decimals=3).tolist()
    (True, [1.0, 1.0])
    """


@documented
class GyroInstanceNorm(SetLayer):
    """Riemannian instance normalization: the points of one channel of a sample are one set.

    %(instance_norm)s
    momentum
        Fraction of a new batch in the running statistics; None for the average of all batches.
    track_running_stats
        Whether to keep running statistics, and to use them in evaluation.
    %(set_options)s

    %(instance_attributes)s
    running_mean, running_var, num_batches_tracked
        Buffers: the running statistics, and the number of batches in them; None without.

    Examples
    --------
    Images with 3 channels of 5 × 5 points:

    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(2)
    >>> x = M.random(2, 3, 5, 5, rng=0, like=torch.zeros(1), spread=0.5)
    >>> y = GyroInstanceNorm(M, 3)(x)
    >>> bool((frechet(M, y, axis=(2, 3)).variance - 1.0).abs().max() < 1e-3)
    True
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        eps: float = 1e-5,
        affine: bool = True,
        *,
        momentum: float | None = 0.1,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        settings = SetSettings.instance(name, manifold, channels, eps=eps, **options)
        super().__init__(settings, momentum, affine, track_running_stats, device, dtype)


@documented
class GyroGroupNorm(SetLayer):
    """Riemannian group normalization: the points of a group of channels are one set.

    %(group_norm)s

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(2)
    >>> x = M.random(2, 6, 5, rng=0, like=torch.zeros(1), spread=0.5)
    >>> y = GyroGroupNorm(M, 3, 6)(x).reshape(2, 3, 2 * 5, 2)
    >>> bool((frechet(M, y, axis=2).variance - 1.0).abs().max() < 1e-3)
    True
    """

    def __init__(
        self,
        manifold: GyroSpace,
        groups: int,
        channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        settings = SetSettings.grouped(name, manifold, groups, channels, eps=eps, **options)
        super().__init__(settings, None, affine, False, device, dtype)


@documented
class GyroRMSNorm(AxisLayer):
    """Riemannian root mean square normalization: sets are scaled from the identity, not centred.

    %(rms_norm)s

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> y = GyroRMSNorm(M)(M.random(3, rng=0, like=torch.zeros(1)))
    >>> M.norm(y).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    """

    _centre = False
