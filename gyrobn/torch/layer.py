"""The layer: GyroBN with the habits of ``torch.nn.BatchNorm1d``."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from gyrobn.backends import namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.docstrings import documented
from gyrobn.normalization.normalize import normalize
from gyrobn.normalization.settings import Settings
from gyrobn.torch.affine import AffineLayer
from gyrobn.torch.graphs import Constant
from gyrobn.torch.ranks import WORLD


@documented
class GyroBN(AffineLayer):
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
        ``torch.optim.swa_utils.update_bn`` skips this layer: after averaging weights, use
        :func:`gyrobn.torch.update_bn`.
    %(options)s
    process_group
        Processes of ``torch.distributed`` over which a training batch is spread: the statistics are
        those of the whole batch, on every backend, gloo on a CPU included. ``"world"`` stands for
        all processes. None, the default, uses the samples of each process alone.
        :meth:`convert_sync` sets it in a whole network.
    device, dtype
        Of the parameters and running statistics. The statistics are in float32 at least, also after
        ``layer.half()``. Input in half precision is computed in float32 and rounded back.

    %(attributes)s
    running_mean, running_var, num_batches_tracked
        Buffers: the running statistics, and the number of batches in them.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(4)
    >>> x = M.random(32, 3, rng=0, like=torch.zeros(1), spread=0.5)
    >>> layer = GyroBN(M, channels=3)
    >>> y = layer(x)
    >>> y.shape, bool((frechet(M, y).variance - 1.0).abs().max() < 1e-3)
    (torch.Size([32, 3, 4]), True)
    >>> sum(p.numel() for p in layer.parameters())  # 3 × (4 + 1)
    15
    """

    settings: Settings
    _formula: Callable[..., Tensor] = staticmethod(normalize)

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
        check_input: str | bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        settings = Settings.from_arguments(locals(), formula=self._formula)
        super().__init__(settings, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

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

    # ------------------------------------------------------------------ the estimator

    @classmethod
    @documented
    def from_estimator(
        cls, bn: Any, *, device: Any = None, dtype: torch.dtype | None = None, **options: Any
    ) -> Self:
        """Return a layer that does in evaluation what a fitted :class:`gyrobn.GyroBN` does.

        Its statistics count as those of one batch (``num_batches_tracked``).

        %(bn)s
        device, dtype
            Of the layer; by default those of the statistics if they are tensors, else torch's
            device and the dtype of the statistics.

        Examples
        --------
        >>> import gyrobn
        >>> M = gyrobn.SPD(3)
        >>> bn = gyrobn.GyroBN(M).fit(M.random(20, rng=0))
        >>> layer = GyroBN.from_estimator(bn, momentum=0.01).eval()
        >>> x = M.random(5, rng=1)
        >>> y = layer(torch.as_tensor(x))
        >>> bool(abs(y.detach().numpy() - bn.transform(x)).max() < 1e-12)
        True
        """
        from gyrobn.estimator.conversion import fitted

        return cls._of_model(bn, fitted(bn), device, dtype, options)

    @classmethod
    def _of_model(cls, bn: Any, model: Any, device: Any, dtype: Any, more: Any) -> Self:
        """Return a layer with the parameters and statistics of an estimator, ``model`` in NumPy."""
        from gyrobn.estimator.conversion import values_for
        from gyrobn.estimator.validation import channels_of

        if device is None and isinstance(bn.mean_, Tensor):
            device = bn.mean_.device
        dtype = dtype or getattr(torch, model.mean_.dtype.name)
        options: dict[str, Any] = {"eps": model.eps, "tol": model.tol, "max_iter": model.max_iter}
        options |= {"device": device, "dtype": dtype, **more}
        layer = cls(model.manifold_, channels=channels_of(model), **options)
        wide = np.float64 if dtype == torch.float64 else np.float32
        has = layer.bias is not None, layer.scale is not None, layer.track_running_stats
        learnt, stats = values_for(layer.settings, model, *has, wide)
        kept = layer.bias, layer.scale, layer.running_mean, layer.running_var
        with torch.no_grad():
            for own, value in zip(kept, (*learnt[:2], *stats), strict=True):
                if own is not None and value is not None:
                    own.copy_(torch.tensor(value, device="cpu"))
            layer.num_batches_tracked.fill_(1)
        return layer

    # ------------------------------------------------------------------ torch's habits

    def extra_repr(self) -> str:
        """Return the options to print; some only if they differ from the default."""
        settings = self.settings
        parts = [repr(settings.geometry), f"channels={settings.channels}", f"eps={settings.eps}"]
        parts += [f"momentum={self.momentum}", f"affine={self.affine}"]
        if not self.track_running_stats:
            parts.append("track_running_stats=False")
        parts += self._unusual()
        if settings.axis != (0,):
            parts.append(f"axis={settings.axis!r}")
        return ", ".join(parts)


# Look up the namespace now: torch.compile cannot trace the lookup, and a layer may be compiled
# before its first call.
namespace_of(torch.empty(0), nn.Parameter(torch.empty(0)))

_Constant = Constant  # the name in older pickled layers
