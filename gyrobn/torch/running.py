"""What the layers of torch with running statistics share: the buffers, and when they change."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from gyrobn.normalization.layers import common_dtype, is_half
from gyrobn.normalization.normalize import Stats
from gyrobn.numerics.checks import check_number
from gyrobn.torch.affine import AffineLayer
from gyrobn.torch.graphs import recomputing

__all__ = ["RunningLayer"]


class RunningLayer(AffineLayer):
    """A layer that normalizes points and may keep running statistics, in buffers."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    _copies: tuple[int, ...] = ()
    """Shape of the statistics in front of the channels."""

    def _track(self, stats: Stats, momentum: float | None, tracked: bool) -> None:
        """Make the buffers, or none of them."""
        if momentum is not None:
            check_number("momentum, the fraction of a new batch,", momentum, 0.0, 1.0)
        self.momentum, self.track_running_stats = momentum, tracked
        count = torch.zeros(self._copies, dtype=torch.long, device=stats.var.device)
        self.register_buffer("running_mean", stats.mean if tracked else None)
        self.register_buffer("running_var", stats.var if tracked else None)
        self.register_buffer("num_batches_tracked", count if tracked else None)

    @property
    def _rate(self) -> Any:
        """The fraction of the next batch in the running statistics."""
        if self.momentum is None and self.track_running_stats:
            return 1.0 / (self.num_batches_tracked + 1).to(self.running_var.dtype)
        return 0.0 if self.momentum is None else self.momentum

    def _learn(self, new: Any) -> None:
        """Keep running statistics after a batch of training."""
        if new and self.training and not recomputing():
            # torch.compile (2.13) loses what is written into a float64 buffer without axes on a
            # CPU, but not what is written into a view of it.
            self.running_mean.detach().copy_(new[0])
            self.running_var.detach().copy_(new[1])
            self.num_batches_tracked += 1

    @property
    def _own(self) -> Tensor | None:
        return self.running_var if self.scale is None else self.scale

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert the layer, as ``half`` and ``to`` do, but keep the statistics in float32."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, new in self._buffers.items():
            old = before[name]
            if old is not None and new is not None and new.is_floating_point() and is_half(new):
                self._buffers[name] = old.to(new.device, common_dtype(new))
        return self

    def reset_running_stats(self) -> None:
        """Forget the running statistics: the mean is the identity, the variance one."""
        if self.track_running_stats:
            self.running_mean.copy_(self.settings.geometry.origin(self.running_mean))
            self.running_var.fill_(1.0)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Reset the parameters and the running statistics."""
        self.reset_running_stats()
        super().reset_parameters()
