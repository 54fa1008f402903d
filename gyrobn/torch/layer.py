"""The layer: GyroBN with the habits of ``torch.nn.BatchNorm1d``."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from gyrobn.backends import namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import Learnt, common_dtype, initial, is_half
from gyrobn.normalization.normalize import Stats, normalize
from gyrobn.normalization.settings import Settings, documented
from gyrobn.numerics.checks import check_number
from gyrobn.torch.graphs import Constant, no_autocast, recomputing, run_forward
from gyrobn.torch.ranks import WORLD, group_of
from gyrobn.torch.states import GeometryState

if TYPE_CHECKING:
    from gyrobn.estimator.models import Model

__all__ = ["GyroBN"]


@documented
class GyroBN(GeometryState):
    """Riemannian batch normalization.

    %(algorithm)s

    Parameters
    ----------
    %(points)s
    eps
        Added to the variance.
    momentum
        Fraction of a new batch in the running statistics; None for the average of all batches.
    affine
        Whether bias and scale are learnt.
    track_running_stats
        Whether to keep running statistics. Without them, evaluation uses those of the batch.
    %(options)s
        It can be set later.
    process_group
        Processes of ``torch.distributed`` over which a training batch is spread: the statistics are
        those of the whole batch, on every backend, gloo on a CPU included. ``"world"`` stands for
        all processes. None, the default, uses the samples of each process alone.
        :meth:`convert_sync` sets it in a whole network.
    device, dtype
        Of the parameters and running statistics. The statistics are in float32 at least, also after
        ``layer.half()``. Input in half precision is computed in float32 and rounded back.

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

    settings: Settings
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
        check_input: str | bool = "first",
        process_group: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        search = {"tol": tol, "max_iter": max_iter, "steps": steps, "mean_gradient": mean_gradient}
        options = {"eps": eps, "clamp": clamp, "learn_curvature": learn_curvature} | search
        self.settings = Settings.of(
            manifold, channels, axis, check_input=check_input, formula=self._formula, **options
        )
        self._constant = Constant(self.settings)
        self.process_group = process_group
        if momentum is not None:
            check_number("momentum, the fraction of a new batch,", momentum, 0.0, 1.0)
        self.momentum, self.affine = momentum, affine
        self.track_running_stats = tracked = track_running_stats
        like = torch.empty((), device=device, dtype=dtype)
        learnt, stats = initial(self.settings, like, affine, affine, self._copies)
        self.bias, self.scale, self.raw_curvature = (
            None if value is None else nn.Parameter(value) for value in learnt
        )
        count = torch.zeros(self._copies, dtype=torch.long, device=like.device)
        self.register_buffer("running_mean", stats.mean if tracked else None)
        self.register_buffer("running_var", stats.var if tracked else None)
        self.register_buffer("num_batches_tracked", count if tracked else None)

    _formula: Callable[..., Tensor] = staticmethod(normalize)
    _copies: tuple[int, ...] = ()
    """Shape of the statistics in front of the channels."""

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        return self.settings.manifold(self.raw_curvature)

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

        Parameters
        ----------
        %(call)s
        """
        run: Any = self._forward
        sync = self.process_group is not None and self.training
        if sync and torch.compiler.is_dynamo_compiling():  # it runs between two graphs
            run = torch.compiler.disable(run)  # type: ignore[no-untyped-call]
        y: Tensor = run(x, weights)
        return y

    def _forward(self, x: Tensor, weights: Tensor | None) -> Tensor:
        with no_autocast(x):
            rate: Any = self.momentum
            if rate is None and self.track_running_stats:
                rate = 1.0 / (self.num_batches_tracked + 1).to(self.running_var.dtype)
            arrays = {
                "x": self._checked(x),
                "weights": weights,
                "bias": self.bias,
                "scale": self.scale,
                "raw_curvature": self.raw_curvature,
                "mean": self.running_mean,
                "var": self.running_var,
            }
            given = {name: a for name, a in arrays.items() if a is not None}
            group = group_of(self.process_group, x) if self.training else None
            run: Any = run_forward
            if torch.compiler.is_dynamo_compiling():
                # Record the operations on tensors instead of reading the Python code: this compiles
                # faster, and no construct of the language can stop it. It loads torch._dynamo.
                run = torch._dynamo.nonstrict_trace(run_forward)
            rest = () if group is None else (group,)  # the compiler takes plain values only
            rate = 0.0 if rate is None else rate
            y, *new = run(self._constant, given, rate, self.training, *rest)
            if new and self.training and not recomputing():
                # torch.compile (2.13) loses what is written into a float64 buffer without axes on a
                # CPU, but not what is written into a view of it.
                self.running_mean.detach().copy_(new[0])
                self.running_var.detach().copy_(new[1])
                self.num_batches_tracked += 1
        out: Tensor = y
        return out

    @classmethod
    def convert_sync(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Let all GyroBN layers of a network use the statistics of the batch on all processes.

        As ``nn.SyncBatchNorm.convert_sync_batchnorm`` does for torch's own layers: it recurses, and
        keeps parameters, buffers and mode. The layers are changed in place and synchronise in
        training only.

        Parameters
        ----------
        module
            A network, or a layer.
        process_group
            The processes; all of them by default.

        Examples
        --------
        >>> import torch
        >>> from gyrobn import PoincareBall
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), GyroBN(PoincareBall(4)))
        >>> GyroBN.convert_sync(net)[1].process_group
        'world'
        """
        for layer in module.modules():
            if isinstance(layer, GyroBN):
                layer.process_group = WORLD if process_group is None else process_group
        return module

    def _checked(self, x: Tensor) -> Tensor:
        """Return the input, unless it is float64 and the layer is not, or the reverse."""
        own: Tensor | None = self.running_var if self.scale is None else self.scale
        # Not by common_dtype: it looks into a table that grows while a graph is made. The compiler
        # would guard the table, and compile the same batch once more.
        if own is not None and (x.dtype == torch.float64) != (own.dtype == torch.float64):
            raise TypeError(
                f"{type(self).__name__} holds {own.dtype}, got input of {x.dtype}: convert the "
                f"layer, for example with layer.to({x.dtype}), or the input"
            )
        return x

    # ------------------------------------------------------------------ the estimator

    @classmethod
    @documented
    def from_estimator(
        cls, bn: Any, *, device: Any = None, dtype: torch.dtype | None = None, **options: Any
    ) -> Self:
        """Return a layer that does in evaluation what a fitted :class:`gyrobn.GyroBN` does.

        Its statistics count as those of one batch (``num_batches_tracked``).

        Parameters
        ----------
        %(bn)s
        device, dtype
            Of the layer; by default those of the statistics if they are tensors, else torch's
            device and the dtype of the statistics.

        Examples
        --------
        >>> import gyrobn
        >>> M = gyrobn.SPD(3)
        >>> bn = gyrobn.GyroBN(M).fit(M.random(20))
        >>> layer = GyroBN.from_estimator(bn, momentum=0.01).eval()
        >>> x = M.random(5, rng=1)
        >>> y = layer(torch.as_tensor(x))
        >>> bool(abs(y.detach().numpy() - bn.transform(x)).max() < 1e-12)
        True
        """
        from gyrobn.estimator.conversion import fitted

        model = fitted(bn)
        return cls._of_model(model, _place(bn, model, device, dtype) | options)

    @classmethod
    def _of_model(cls, model: "Model", options: dict[str, Any]) -> Self:
        """Return a layer with the parameters and statistics of a model."""
        from gyrobn.estimator.conversion import values_for

        given: dict[str, Any] = {"eps": model.eps, "tol": model.tol, "max_iter": model.max_iter}
        layer = cls(model.geometry, channels=model.channels, **given | options)
        dtype = np.float64 if options["dtype"] == torch.float64 else np.float32
        has = layer.bias is not None, layer.scale is not None, layer.track_running_stats
        learnt, stats = values_for(layer.settings, model, *has, dtype)
        kept = layer.bias, layer.scale, layer.running_mean, layer.running_var
        with torch.no_grad():
            for own, value in zip(kept, (*learnt[:2], *stats), strict=True):
                if own is not None and value is not None:
                    own.copy_(torch.tensor(value, device="cpu"))
            layer.num_batches_tracked.fill_(1)
        return layer

    @documented
    def to_estimator(self, *, like: Any = None) -> Any:
        """Return a fitted :class:`gyrobn.GyroBN` that does what this layer does in evaluation.

        %(to_estimator)s
        """
        from gyrobn.estimator.conversion import layer_to_estimator

        stats = Stats(self.running_mean, self.running_var) if self.track_running_stats else None
        return layer_to_estimator(self.settings, self._learnt, stats, like)

    @property
    def _learnt(self) -> Learnt:
        return Learnt(self.bias, self.scale, self.raw_curvature)

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
        with torch.no_grad():
            if self.bias is not None and self.scale is not None:
                self.bias.zero_()
                self.scale.fill_(1.0)
            if self.raw_curvature is not None:
                self.raw_curvature.fill_(self.settings.initial_curvature)

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
        """Return the options to print; some only if they differ from the default."""
        settings = self.settings
        parts = [repr(settings.geometry), f"channels={settings.channels}", f"eps={settings.eps}"]
        parts += [f"momentum={self.momentum}", f"affine={self.affine}"]
        if not self.track_running_stats:
            parts.append("track_running_stats=False")
        for name, default in _DEFAULTS.items():
            if getattr(settings, name) != default:
                parts.append(f"{name}={getattr(settings, name)!r}")
        return ", ".join(parts)


# Look up the namespace now: torch.compile cannot trace the lookup, and a layer may be compiled
# before its first call.
namespace_of(torch.empty(0), nn.Parameter(torch.empty(0)))

_Constant = Constant  # the name in older pickled layers

_DEFAULTS = {
    "mean_gradient": "implicit",
    "steps": None,
    "learn_curvature": False,
    "clamp": None,
    "axis": (0,),
}


def _place(bn: Any, model: "Model", device: Any, dtype: torch.dtype | None) -> dict[str, Any]:
    """Return device and dtype for a layer that does what an estimator does."""
    if device is None and isinstance(bn.mean_, Tensor):
        device = bn.mean_.device
    return {"device": device, "dtype": dtype or getattr(torch, model.mean.dtype.name)}
