"""What the layers of Flax share: bias, scale and curvature, and running statistics."""

from typing import Any

from flax import nnx
from jax import Array

from gyrobn.jax_layers import check_momentum, forward, like
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import Learnt, initial
from gyrobn.normalization.normalize import Stats
from gyrobn.normalization.settings import LayerSettings


class AffineLayer(nnx.Module):
    """A layer that normalizes points, with a learnable bias, scale and curvature."""

    settings: Any

    def __init__(
        self, settings: LayerSettings, use_bias: bool, use_scale: bool, param_dtype: Any
    ) -> None:
        self.settings = settings
        learnt, _ = initial(settings, like(param_dtype), use_bias, use_scale)
        self.bias, self.scale, self.raw_curvature = (
            None if value is None else nnx.Param(value, geometry=settings.geometry)
            for value in learnt
        )

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        manifold: GyroSpace = self.settings.manifold(self._learnt.raw_curvature)
        return manifold

    @property
    def _variables(self) -> tuple[Any, ...]:
        return self.bias, self.scale, self.raw_curvature

    @property
    def _learnt(self) -> Learnt:
        """The parameters. Each variable carries its geometry, also through ``nnx.update``."""
        own, shift = self.settings.geometry, 0.0
        for variable in self._variables:
            saved = own if variable is None else variable.get_metadata().get("geometry", own)
            if saved != own:
                shift = self.settings.raw_shift(saved)
        learnt = Learnt(
            *(None if p is None else p[...] for p in (self.bias, self.scale, self.raw_curvature))
        )
        if learnt.raw_curvature is None or not shift:
            return learnt
        return learnt._replace(raw_curvature=learnt.raw_curvature + shift)

    @property
    def check_input(self) -> str | bool:
        """Which batches to check for samples off the manifold: ``"first"``, True or False."""
        which: str | bool = self.settings.check_input
        return which

    @check_input.setter
    def check_input(self, value: str | bool) -> None:
        self.settings = self.settings.checking(value)


class RunningLayer(AffineLayer):
    """A layer that keeps running statistics, or may keep them."""

    def __init__(
        self,
        settings: LayerSettings,
        use_bias: bool,
        use_scale: bool,
        param_dtype: Any,
        momentum: float,
        use_running_average: bool,
        tracked: bool = True,
    ) -> None:
        super().__init__(settings, use_bias, use_scale, param_dtype)
        self.momentum = check_momentum(momentum)
        self.use_running_average = use_running_average
        _, stats = initial(settings, like(param_dtype), False, False)
        self.mean, self.var = (
            nnx.BatchStat(value, geometry=settings.geometry) if tracked else None for value in stats
        )

    @property
    def _variables(self) -> tuple[Any, ...]:
        return *super()._variables, self.mean, self.var

    @property
    def _stats(self) -> Stats | None:
        if self.mean is None or self.var is None:
            return None
        return Stats(self.mean[...], self.var[...])

    def _run(self, x: Array, weights: Array | None, use_running_average: bool | None) -> Array:
        """Normalize a batch, and learn from it unless the running statistics are used."""
        frozen = self.use_running_average if use_running_average is None else use_running_average
        given = self.settings, self._learnt, self._stats, x, weights, self.momentum
        y, new = forward(*given, training=not frozen)
        if not frozen:
            self._store(new)
        return y

    def _store(self, stats: Stats | None) -> None:
        """Replace the running statistics, if the layer keeps them."""
        if stats is not None and self.mean is not None and self.var is not None:
            self.mean[...], self.var[...] = stats

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Let ``nnx.view`` set the mode."""
        if use_running_average is not None:
            self.use_running_average = use_running_average
