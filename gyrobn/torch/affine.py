"""What all normalization layers of torch share: parameters, running statistics, and the call."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from gyrobn.backends.torch import recomputing, recorded
from gyrobn.normalization.docstrings import documented
from gyrobn.normalization.dtypes import common_dtype, is_half
from gyrobn.normalization.layers import Learnt, initial
from gyrobn.normalization.settings import LayerSettings
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.checks import check_number
from gyrobn.torch.geometric import GeometryState
from gyrobn.torch.graphs import Constant, no_autocast, run_forward
from gyrobn.torch.ranks import group_of


class AffineLayer(GeometryState):
    """A layer that normalizes points, with a learnable bias, scale and curvature.

    It may keep running statistics, in buffers.
    """

    settings: LayerSettings
    bias: nn.Parameter | None
    scale: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    process_group: Any = None
    _copies: tuple[int, ...] = ()
    """Shape of the statistics in front of the channels."""

    def __init__(
        self,
        settings: LayerSettings,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: Any,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        if momentum is not None:
            check_number("momentum, the fraction of a new batch,", momentum, 0.0, 1.0)
        self.settings, self._constant = settings, Constant(settings)
        self.momentum, self.affine = momentum, affine
        self.track_running_stats = track_running_stats
        like = torch.empty((), device=device, dtype=dtype)
        learnt, stats = initial(settings, like, affine, affine, self._copies)
        self.bias, self.scale, self.raw_curvature = (
            None if value is None else nn.Parameter(value) for value in learnt
        )
        count = torch.zeros(self._copies, dtype=torch.long, device=device)
        buffers = {"running_mean": stats.mean, "running_var": stats.var}
        for name, value in (buffers | {"num_batches_tracked": count}).items():
            self.register_buffer(name, value if track_running_stats else None)

    @property
    def check_input(self) -> str | bool:
        """Which batches to check for samples off the manifold: ``"first"``, True or False."""
        return self.settings.check_input

    @check_input.setter
    def check_input(self, value: str | bool) -> None:
        self.settings = self.settings.checking(value)
        self._constant = Constant(self.settings)

    # ------------------------------------------------------------------ the call

    @documented
    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Normalize a batch.

        %(call)s
        """
        sync = self.process_group is not None and self.training
        if sync and torch.compiler.is_dynamo_compiling():  # it runs between two graphs
            run = torch.compiler.disable(AffineLayer.forward)  # type: ignore[no-untyped-call]
            return run(self, x, weights)  # type: ignore[no-any-return]
        with no_autocast(x):
            group = group_of(self.process_group, x) if self.training else None
            rest = () if group is None else (group,)  # the compiler takes plain values only
            given = self._given(x, weights), self._rate, self.training
            y, *new = recorded(run_forward)(self._constant, *given, *rest)
            if new and self.training and not recomputing():
                # torch.compile (2.13) loses what is written into a float64 buffer without axes on
                # a CPU, but not what is written into a view of it.
                self.running_mean.detach().copy_(new[0])
                self.running_var.detach().copy_(new[1])
                self.num_batches_tracked += 1
        out: Tensor = y
        return out

    @property
    def _learnt(self) -> Learnt:
        return Learnt(self.bias, self.scale, self.raw_curvature)

    @property
    def _rate(self) -> Any:
        """The fraction of the next batch in the running statistics."""
        if self.momentum is None and self.track_running_stats:
            return 1.0 / (self.num_batches_tracked + 1).to(self.running_var.dtype)
        return 0.0 if self.momentum is None else self.momentum

    def _given(self, x: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Return the arrays of a call by name, for :mod:`gyrobn.torch.graphs`."""
        arrays = {
            "x": self._checked(x),
            "weights": weights,
            "bias": self.bias,
            "scale": self.scale,
            "raw_curvature": self.raw_curvature,
            "mean": self.running_mean,
            "var": self.running_var,
        }
        return {name: a for name, a in arrays.items() if a is not None}

    def _checked(self, x: Tensor) -> Tensor:
        """Return the input; refuse other dtypes than real ones, and float64 mixed with float32."""
        if x.dtype not in _REAL:
            check_floating(x, half=True)
        own = self.running_var if self.scale is None else self.scale
        # Not by common_dtype: it looks into a table that grows while a graph is made. The compiler
        # would guard the table, and compile the same batch once more.
        if own is not None and (x.dtype == torch.float64) != (own.dtype == torch.float64):
            raise TypeError(
                f"{type(self).__name__} holds {own.dtype}, got input of {x.dtype}: convert the "
                f"layer, for example with layer.to({x.dtype}), or the input"
            )
        return x

    # ------------------------------------------------------------------ torch's habits

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
        if self.bias is not None and self.scale is not None:
            nn.init.zeros_(self.bias)
            nn.init.ones_(self.scale)

    def parameter_groups(self, **scale_options: Any) -> list[dict[str, Any]]:
        """Return groups for an optimizer, the scale in one of its own with ``scale_options``.

        >>> import torch
        >>> from gyrobn import PoincareBall
        >>> from gyrobn.torch import GyroBN
        >>> layer = GyroBN(PoincareBall(4))
        >>> optimizer = torch.optim.SGD(layer.parameter_groups(lr=1e-3), lr=1e-2)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.001]
        """
        others = [p for name, p in self.named_parameters() if name != "scale"]
        scales = [] if self.scale is None else [self.scale]
        return [{"params": others}, {"params": scales, **scale_options}]

    def _unusual(self) -> list[str]:
        """Return the options to print because they differ from the default."""
        values = ((name, getattr(self.settings, name), usual) for name, usual in _USUAL.items())
        return [f"{name}={value!r}" for name, value, usual in values if value != usual]


_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

_USUAL = {
    "mean_gradient": "implicit",
    "steps": None,
    "learn_curvature": False,
    "clamp": None,
}
