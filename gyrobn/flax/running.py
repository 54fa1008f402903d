"""What Flax layers with running statistics share: where these are, and when they are used."""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jax import Array

from gyrobn.flax.affine import AffineLayer
from gyrobn.normalization.normalize import Stats

__all__ = ["RunningLayer"]


class RunningLayer(AffineLayer):
    """A layer that keeps running statistics, or may keep them."""

    def _keep(self, stats: Stats | None, momentum: float, use_running_average: bool) -> None:
        """Take the first statistics, None if there are none, and how they are used."""
        self.momentum, self.use_running_average = momentum, use_running_average
        self.mean, self.var = (
            None if value is None else nnx.BatchStat(value, geometry=self.settings.geometry)
            for value in stats or (None, None)
        )

    @property
    def _variables(self) -> tuple[Any, ...]:
        return *super()._variables, self.mean, self.var

    @property
    def _stats(self) -> Stats | None:
        if self.mean is None or self.var is None:
            return None
        return Stats(self.mean[...], self.var[...])

    def _run(
        self,
        forward: Callable[..., tuple[Array, Stats | None]],
        x: Array,
        weights: Array | None,
        use_running_average: bool | None,
    ) -> Array:
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
