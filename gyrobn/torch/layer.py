"""The layer: GyroBN with the habits of ``torch.nn.BatchNorm1d``."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gyrobn.backends import backend_of, namespace_of
from gyrobn.gyrospace import GyroSpace
from gyrobn.normalize import Stats, batch_stats, normalize, update_stats

__all__ = ["GyroBN"]

# What a kind of array is served by is looked up once, and torch.compile could not follow that.
namespace_of(torch.empty(()), nn.Parameter(torch.empty(())))


class GyroBN(nn.Module):
    r"""Riemannian batch normalization.

    .. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
              (\ominus\mu \oplus x_i)\Bigr)

    In training :math:`\mu` and :math:`v^2` are the Fréchet mean and variance of the batch; in
    evaluation they are the running ones. The bias is :math:`\beta = \operatorname{Exp}_e(b)` with
    an unconstrained parameter b of ``manifold.dim`` numbers a channel, so any optimizer works.

    Parameters
    ----------
    manifold
        The geometry of the points.
    channels
        Shape of the channels, each normalized on its own: input is ``(batch, *channels,
        *point_shape)``.
    eps
        Added to the variance.
    momentum
        Fraction of a new batch in the running statistics; None for the average of all batches.
    affine
        Whether bias and scale are learnt.
    track_running_stats
        Whether to keep running statistics; without, evaluation uses those of the batch.
    mean_gradient
        ``"implicit"`` for the exact derivative of the mean, ``"detach"`` to hold it constant.
    steps
        Number of Newton steps for the mean; until convergence by default.
    learn_curvature
        Whether the curvature is a parameter. It keeps its sign; on ``Stereographic`` it is free.
    clamp
        Largest factor :math:`s/\sqrt{v^2+\epsilon}`, if any.
    axis
        The batch axis, or axes; the other leading axes are the channels.
    tol, max_iter
        As in :func:`gyrobn.frechet`.
    device, dtype
        Of the parameters and running statistics.

    Attributes
    ----------
    bias : Parameter of shape (*channels, dim)
        Normal coordinates b of the bias.
    scale : Parameter of shape (*channels,), or (*channels, blocks)
        Standard deviation s of the output.
    running_mean, running_var, num_batches_tracked
        Buffers: the running statistics, and the number of batches in them.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(4)
    >>> x = M.random(32, 3, like=torch.zeros(1), spread=0.5)
    >>> layer = GyroBN(M, channels=3)
    >>> y = layer(x)
    >>> y.shape, bool((frechet(M, y).variance - 1.0).abs().max() < 1e-3)
    (torch.Size([32, 3, 4]), True)
    >>> sum(p.numel() for p in layer.parameters())  # 3 × (4 + 1)
    15
    """

    bias: nn.Parameter | None
    scale: nn.Parameter | None
    raw_curvature: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int] = (),
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        mean_gradient: str = "implicit",
        steps: int | None = None,
        learn_curvature: bool = False,
        clamp: float | None = None,
        axis: int | Sequence[int] = 0,
        tol: float | None = None,
        max_iter: int = 64,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if mean_gradient not in ("implicit", "detach"):
            raise ValueError(f"mean_gradient must be 'implicit' or 'detach', got {mean_gradient!r}")
        self.geometry = manifold
        self.channels = (channels,) if isinstance(channels, int) else tuple(channels)
        self.axis = (axis,) if isinstance(axis, int) else tuple(axis)
        self.eps, self.momentum, self.affine = eps, momentum, affine
        self.track_running_stats, self.mean_gradient = track_running_stats, mean_gradient
        self.steps, self.clamp, self.tol, self.max_iter = steps, clamp, tol, max_iter
        self.learn_curvature = learn_curvature

        like = torch.empty((), device=device, dtype=dtype)
        blocks = () if len(manifold.blocks) == 1 else (len(manifold.blocks),)
        if affine:
            self.bias = nn.Parameter(like.new_zeros((*self.channels, manifold.dim)))
            self.scale = nn.Parameter(like.new_ones((*self.channels, *blocks)))
        else:
            self.register_parameter("bias", None)
            self.register_parameter("scale", None)
        if learn_curvature:
            if "curvature" not in manifold.parameters:
                raise ValueError(f"{manifold!r} has no curvature to learn")
            self.raw_curvature = nn.Parameter(like.new_tensor(self._initial_curvature()))
        else:
            self.register_parameter("raw_curvature", None)
        self._register_statistics(like, blocks)

    def _register_statistics(self, like: Tensor, blocks: tuple[int, ...]) -> None:
        if not self.track_running_stats:
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                self.register_buffer(name, None)
            return
        self.register_buffer("running_mean", self._origins(like))
        self.register_buffer("running_var", like.new_ones((*self._leading, *blocks)))
        count = torch.zeros(self._leading[: self._domain_axes], dtype=torch.long)
        self.register_buffer("num_batches_tracked", count.to(like.device))

    _domain_axes = 0

    @property
    def _leading(self) -> tuple[int, ...]:
        """Shape of the statistics in front of a point."""
        return self.channels

    def _origins(self, like: Tensor) -> Tensor:
        e: Tensor = self.geometry.origin(like)
        return e.expand((*self._leading, *e.shape)).clone()

    # ------------------------------------------------------------------ the geometry

    def _initial_curvature(self) -> float:
        return float(self.geometry.curvature) if self._free_curvature else 0.0  # type: ignore[attr-defined]

    @property
    def _free_curvature(self) -> bool:
        return getattr(self.geometry, "required_sign", None) is None

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        if self.raw_curvature is None:
            return self.geometry
        raw = self.raw_curvature
        K = raw if self._free_curvature else self.geometry.curvature * raw.exp()  # type: ignore[attr-defined]
        return replace(self.geometry, curvature=K)  # type: ignore[call-arg]

    # ------------------------------------------------------------------ the call

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Normalize a batch.

        Parameters
        ----------
        x
            Points, shape ``(batch, *channels, *point_shape)``.
        weights
            Weights of the samples in the statistics of the batch, as in :func:`gyrobn.frechet`.
        """
        with torch.autocast(x.device.type, enabled=False):
            x, order = self._arrange(x)
            manifold = self.manifold
            if self.training or not self.track_running_stats:
                stats = self._batch_stats(manifold, x, weights)
                if self.training and self.track_running_stats:
                    self._update(manifold, stats)
            else:
                stats = self._running(manifold)
            y = self._normalize(manifold, x, stats)
        return y if order is None else y.permute(order)

    def _normalize(self, manifold: GyroSpace, x: Tensor, stats: Stats) -> Tensor:
        bias = None if self.bias is None else manifold.from_normal(self.bias)
        scale = 1.0 if self.scale is None else self.scale
        y: Tensor = normalize(manifold, x, stats, bias, scale, self.eps, self.clamp)
        return y

    def _arrange(self, x: Tensor) -> tuple[Tensor, list[int] | None]:
        """Return the input with its batch axes in front, in one dtype, and how to undo that."""
        points = self.geometry.point_shape
        lead = x.ndim - len(points)
        axes = tuple(a % lead for a in self.axis) if lead > 0 else ()
        rest = tuple(a for a in range(lead) if a not in axes)
        found = tuple(x.shape[a] for a in rest)
        if lead < 1 or tuple(x.shape[lead:]) != points or found != self.channels:
            wanted = ", ".join(["batch", *map(str, (*self.channels, *points))])
            raise ValueError(
                f"{type(self).__name__} on {self.geometry!r} expects input of shape ({wanted}), "
                f"got {tuple(x.shape)}"
            )
        if x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()  # geometry in half precision would have three digits
        own: Tensor | None = self.running_var if self.scale is None else self.scale
        if own is not None and x.dtype != own.dtype:
            raise TypeError(
                f"{type(self).__name__} holds {own.dtype}, got input of {x.dtype}: convert the "
                f"layer, for example with layer.to({x.dtype}), or the input"
            )
        forward = [*axes, *rest, *range(lead, x.ndim)]
        if forward == list(range(x.ndim)):
            return x, None
        return x.permute(forward), [forward.index(a) for a in range(x.ndim)]

    def _batch_stats(self, manifold: GyroSpace, x: Tensor, weights: Tensor | None) -> Stats:
        count = math.prod(x.shape[: len(self.axis)])
        if self.training and count < 2:
            raise ValueError(
                f"{type(self).__name__} in training needs more than one sample a channel, got "
                f"input of shape {tuple(x.shape)}: use a larger batch, or layer.eval()"
            )
        stats = batch_stats(
            manifold,
            x,
            weights,
            axis=tuple(range(len(self.axis))),
            steps=self.steps,
            tol=self.tol,
            max_iter=self.max_iter,
            mean_gradient=self.mean_gradient,
        )
        if not backend_of(x).hides_values(stats.var) and not bool(stats.var.isfinite().all()):
            k = len(self.geometry.point_shape)
            good = x.isfinite().flatten(start_dim=x.ndim - k).all(-1)
            where = "no sample is NaN or infinite, so points are off the manifold or too far out"
            if not bool(good.all()):
                index = tuple(int(i) for i in (~good).nonzero()[0])
                where = f"the first NaN or infinite sample is at index {index}"
            raise ValueError(
                f"{type(self).__name__} on {self.geometry!r} finds no variance of this batch: "
                f"{where}; check the layer before it, its learning rate, and manifold.contains(x)"
            )
        return stats

    def _running(self, manifold: GyroSpace) -> Stats:
        mean = self.running_mean
        if self.learn_curvature:  # the points of some models move when the curvature changes
            mean = manifold.project(mean)
        return Stats(mean, self.running_var)

    @torch.no_grad()
    def _update(self, manifold: GyroSpace, batch: Stats) -> None:
        """Move the running statistics towards those of the batch."""
        manifold = manifold.detached()
        self.num_batches_tracked += 1
        rate: Any = self.momentum
        if rate is None:
            rate = 1.0 / self.num_batches_tracked.to(batch.var.dtype)
        batch = Stats(batch.mean.detach(), batch.var.detach())
        new = update_stats(manifold, self._running(manifold), batch, rate)
        # torch.compile (2.13) loses what is written into a float64 buffer of no axes on a CPU, but
        # not what is written into a view of it
        self.running_mean.detach().copy_(new.mean)
        self.running_var.detach().copy_(new.var)

    # ------------------------------------------------------------------ torch's habits

    def reset_running_stats(self) -> None:
        """Forget the running statistics: the mean is the identity, the variance one."""
        if self.track_running_stats:
            self.running_mean.copy_(self._origins(self.running_mean))
            self.running_var.fill_(1.0)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Forget what was learnt, too."""
        self.reset_running_stats()
        with torch.no_grad():
            if self.bias is not None and self.scale is not None:
                self.bias.zero_()
                self.scale.fill_(1.0)
            if self.raw_curvature is not None:
                self.raw_curvature.fill_(self._initial_curvature())

    def parameter_groups(self, **scale_options: Any) -> list[dict[str, Any]]:
        """Return groups for an optimizer, the scale in one of its own with ``scale_options``.

        >>> import torch
        >>> from gyrobn import PoincareBall
        >>> layer = GyroBN(PoincareBall(4))
        >>> optimizer = torch.optim.SGD(layer.parameter_groups(lr=1e-3), lr=1e-2)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.001]
        """
        others = [p for name, p in self.named_parameters() if name != "scale"]
        scales = [] if self.scale is None else [self.scale]
        return [{"params": others}, {"params": scales, **scale_options}]

    def extra_repr(self) -> str:
        """Return what tells this layer from others."""
        parts = [repr(self.geometry), f"channels={self.channels}", f"eps={self.eps}"]
        parts += [f"momentum={self.momentum}", f"affine={self.affine}"]
        for name, default in _DEFAULTS.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(parts)


_DEFAULTS = {
    "track_running_stats": True,
    "mean_gradient": "implicit",
    "steps": None,
    "learn_curvature": False,
    "clamp": None,
    "axis": (0,),
}
