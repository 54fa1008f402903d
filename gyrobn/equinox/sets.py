"""Layer, instance, group and root mean square normalization of points, for Equinox."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
from jax import Array

from gyrobn.equinox.affine import AffineLayer, RunningLayer
from gyrobn.jax_layers import forward
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.docstrings import documented
from gyrobn.normalization.settings import SetSettings


class SetLayer(AffineLayer):
    """A layer that normalizes sets of points within each sample; it needs no state."""

    @documented
    def __call__(
        self,
        x: Array,
        *,
        key: Any = None,
        check_input: str | bool | None = None,
        weights: Array | None = None,
    ) -> Array:
        """Normalize every set of a batch.

        %(set_call)s
        key
            Not used; every Equinox layer accepts it.
        check_input
            Overrules that of the layer.
        """
        return forward(self._checking(check_input), self._learnt, None, x, weights)[0]


class AxisLayer(SetLayer):
    """A layer whose sets are given by their axes, with one bias and scale for all of them."""

    _centre: ClassVar[bool] = True

    def __init__(
        self,
        manifold: GyroSpace,
        axis: int | Sequence[int] | None = None,
        *,
        eps: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        settings = SetSettings.layer(
            type(self).__name__, manifold, axis, eps=eps, centre=self._centre, **options
        )
        # not super(): mypy takes the constructor of SetLayer for one of a dataclass
        AffineLayer.__init__(self, settings, use_bias, use_scale, dtype)


@documented
class GyroLayerNorm(AxisLayer):
    """Riemannian layer normalization: all points of a sample are one set.

    %(layer_norm)s

    Examples
    --------
    %(jax_tokens)s
    """


@documented
class GyroInstanceNorm(RunningLayer):
    """Riemannian instance normalization: the points of one channel of a sample are one set.

    %(instance_norm)s
    track_running_stats
        Whether to keep running statistics, in a state that the layer takes and returns.
    %(momentum)s
    inference
        Whether to use the running statistics, if they are kept; ``equinox.nn.inference_mode``
        switches it, and the call can overrule it.
    %(set_options)s

    %(instance_attributes)s
    stats : equinox.nn.StateIndex, or None
        ``state.get(layer.stats)`` are the running statistics, a :class:`gyrobn.Stats`.

    Examples
    --------
    >>> import equinox as eqx
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> images = M.random(4, 3, 5, 5, rng=0, like=jnp.zeros((), jnp.float32))
    >>> make = eqx.nn.make_with_state(GyroInstanceNorm)
    >>> layer, state = make(M, 3, track_running_stats=True, dtype=jnp.float32)
    >>> y, state = layer(images, state)
    >>> y.shape, state.get(layer.stats).mean.shape
    ((4, 3, 5, 5, 2), (3, 2))
    >>> GyroInstanceNorm(M, 3, dtype=jnp.float32)(images).shape  # keeps none, and needs no state
    (4, 3, 5, 5, 2)
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        *,
        track_running_stats: bool = False,
        momentum: float = 0.99,
        eps: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        inference: bool = False,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        settings = SetSettings.instance(name, manifold, channels, eps=eps, **options)
        affine = use_bias, use_scale, dtype
        super().__init__(settings, *affine, momentum, inference, track_running_stats)

    @documented
    def __call__(
        self,
        x: Array,
        state: eqx.nn.State | None = None,
        *,
        key: Any = None,
        inference: bool | None = None,
        check_input: str | bool | None = None,
        weights: Array | None = None,
    ) -> Any:
        """Normalize every set of a batch.

        %(set_call)s
        state
            Holds the running statistics, if the layer keeps them.
        key
            Not used; every Equinox layer accepts it.
        inference, check_input
            Overrule those of the layer.

        Returns
        -------
        y, or (y, state)
            The normalized batch. A layer with running statistics also returns the state with the
            new ones.
        """
        if self.stats is None:
            return forward(self._checking(check_input), self._learnt, None, x, weights)[0]
        if state is None:
            raise TypeError(
                f"{self.settings.name} with track_running_stats=True keeps them in a state: call "
                "it as y, state = layer(x, state), with the state of eqx.nn.make_with_state"
            )
        return self._run(x, state, weights, inference, check_input)


@documented
class GyroGroupNorm(SetLayer):
    """Riemannian group normalization: the points of a group of channels are one set.

    %(group_norm)s
    """

    def __init__(
        self,
        manifold: GyroSpace,
        groups: int,
        channels: int,
        *,
        eps: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        settings = SetSettings.grouped(name, manifold, groups, channels, eps=eps, **options)
        AffineLayer.__init__(self, settings, use_bias, use_scale, dtype)


@documented
class GyroRMSNorm(AxisLayer):
    """Riemannian root mean square normalization: sets are scaled from the identity, not centred.

    %(rms_norm)s
    """

    _centre = False
