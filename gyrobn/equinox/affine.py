"""What the layers of Equinox share: bias, scale and curvature, and statistics in a state."""

from typing import Any

import equinox as eqx
from jax import Array

from gyrobn.jax_layers import check_momentum, forward, like
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import Learnt, initial
from gyrobn.normalization.settings import LayerSettings


class AffineLayer(eqx.Module):
    """A layer that normalizes points, with a learnable bias, scale and curvature."""

    bias: Array | None
    scale: Array | None
    raw_curvature: Array | None
    settings: Any = eqx.field(static=True)

    def __init__(
        self, settings: LayerSettings, use_bias: bool, use_scale: bool, dtype: Any
    ) -> None:
        self.settings = settings
        learnt, _ = initial(settings, like(dtype), use_bias, use_scale)
        self.bias, self.scale, self.raw_curvature = learnt

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        manifold: GyroSpace = self.settings.manifold(self.raw_curvature)
        return manifold

    @property
    def _learnt(self) -> Learnt:
        return Learnt(self.bias, self.scale, self.raw_curvature)

    def _checking(self, check_input: str | bool | None) -> Any:
        """Return the settings, with another ``check_input`` if it is given."""
        return self.settings if check_input is None else self.settings.checking(check_input)


class RunningLayer(AffineLayer, eqx.nn.StatefulLayer):
    """A layer that keeps running statistics in a state, or may keep them."""

    stats: Any
    """``eqx.nn.StateIndex[Stats]``, or None if the layer keeps no statistics."""
    inference: bool
    momentum: float = eqx.field(static=True)

    def __init__(
        self,
        settings: LayerSettings,
        use_bias: bool,
        use_scale: bool,
        dtype: Any,
        momentum: float,
        inference: bool,
        tracked: bool = True,
    ) -> None:
        super().__init__(settings, use_bias, use_scale, dtype)
        self.momentum, self.inference = check_momentum(momentum), inference
        _, stats = initial(settings, like(dtype), False, False)
        self.stats = eqx.nn.StateIndex(stats) if tracked else None

    def is_stateful(self) -> bool:
        """Tell ``equinox.nn.Sequential`` whether to call the layer with a state."""
        return self.stats is not None

    def _run(
        self,
        x: Array,
        state: eqx.nn.State,
        weights: Array | None,
        inference: bool | None,
        check_input: str | bool | None,
    ) -> tuple[Array, eqx.nn.State]:
        """Normalize a batch, and learn from it unless the running statistics are used."""
        frozen = self.inference if inference is None else inference
        given = self._checking(check_input), self._learnt, state.get(self.stats), x, weights
        y, new = forward(*given, self.momentum, training=not frozen)
        return y, state if frozen else state.set(self.stats, new)
