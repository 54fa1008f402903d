"""Layer, instance, group and root mean square normalization of points, for Equinox."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
from jax import Array

from gyrobn.jax_layers import check_momentum, forward_sets, like
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import Learnt, initial
from gyrobn.normalization.normalize import Stats
from gyrobn.normalization.settings import SetSettings, documented

__all__ = ["GyroGroupNorm", "GyroInstanceNorm", "GyroLayerNorm", "GyroRMSNorm"]


class SetLayer(eqx.Module):
    """A layer that normalizes sets of points within each sample; it needs no state."""

    bias: Array | None
    scale: Array | None
    raw_curvature: Array | None
    settings: SetSettings = eqx.field(static=True)

    def __init__(self, settings: SetSettings, use_bias: bool, use_scale: bool, dtype: Any) -> None:
        self.settings = settings
        learnt, _ = initial(settings, like(dtype), use_bias, use_scale)
        self.bias, self.scale, self.raw_curvature = learnt

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        return self.settings.manifold(self.raw_curvature)

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

        Parameters
        ----------
        %(set_call)s
        key
            Not used; every Equinox layer accepts it.
        check_input
            Overrules that of the layer.
        """
        settings = self.settings if check_input is None else self.settings.checking(check_input)
        return forward_sets(settings, self._learnt, None, x, weights)[0]

    @property
    def _learnt(self) -> Learnt:
        return Learnt(self.bias, self.scale, self.raw_curvature)


@documented
class GyroLayerNorm(SetLayer):
    """Riemannian layer normalization: all points of a sample are one set.

    %(sets)s

    %(no_running)s

    Parameters
    ----------
    %(set_manifold)s
    %(set_axis)s
    eps
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each for all sets.
    %(set_options)s
        The call can overrule it.
    %(equinox_dtype)s

    Attributes
    ----------
    bias : array of shape (dim,), or None
        Normal coordinates b of the bias.
    scale : array of shape () or (blocks,), or None
        Standard deviation s of a set.
    raw_curvature : array, or None
        See :attr:`manifold`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> tokens = M.random(2, 4, like=jnp.zeros((), jnp.float32))
    >>> mask = jnp.asarray([[True] * 4, [True] * 3 + [False]])
    >>> GyroLayerNorm(M)(tokens, weights=mask).shape
    (2, 4, 2)
    """

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
        options |= {"eps": eps}
        settings = SetSettings.layer(type(self).__name__, manifold, axis, **options)
        super().__init__(settings, use_bias, use_scale, dtype)


@documented
class GyroInstanceNorm(SetLayer, eqx.nn.StatefulLayer):
    """Riemannian instance normalization: the points of one channel of a sample are one set.

    %(sets)s

    %(instance_running)s

    Parameters
    ----------
    %(set_manifold)s
    %(instance_channels)s
    track_running_stats
        Whether to keep running statistics, in a state that the layer takes and returns.
    %(momentum)s
    eps
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each per channel.
    %(set_options)s
        The call can overrule it.
    inference
        Whether to use the running statistics, if they are kept; ``equinox.nn.inference_mode``
        switches it, and the call can overrule it.
    %(equinox_dtype)s

    Attributes
    ----------
    bias : array of shape (*channels, dim), or None
        Normal coordinates b of the bias.
    scale : array of shape (*channels,), or (*channels, blocks), or None
        Standard deviation s of a set.
    raw_curvature : array, or None
        See :attr:`manifold`.
    stats : equinox.nn.StateIndex, or None
        ``state.get(layer.stats)`` are the running statistics, a :class:`gyrobn.Stats`.

    Examples
    --------
    >>> import equinox as eqx
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> images = M.random(4, 3, 5, 5, like=jnp.zeros((), jnp.float32))
    >>> make = eqx.nn.make_with_state(GyroInstanceNorm)
    >>> layer, state = make(M, 3, track_running_stats=True, dtype=jnp.float32)
    >>> y, state = layer(images, state)
    >>> y.shape, state.get(layer.stats).mean.shape
    ((4, 3, 5, 5, 2), (3, 2))
    >>> GyroInstanceNorm(M, 3, dtype=jnp.float32)(images).shape  # keeps none, and needs no state
    (4, 3, 5, 5, 2)
    """

    stats: eqx.nn.StateIndex[Stats] | None
    inference: bool
    momentum: float = eqx.field(static=True)

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
        options |= {"eps": eps}
        settings = SetSettings.instance(type(self).__name__, manifold, channels, **options)
        super().__init__(settings, use_bias, use_scale, dtype)
        self.momentum, self.inference = check_momentum(momentum), inference
        stats = initial(settings, like(dtype), False, False)[1]
        self.stats = eqx.nn.StateIndex(stats) if track_running_stats else None

    def is_stateful(self) -> bool:
        """Tell ``equinox.nn.Sequential`` whether to call the layer with a state."""
        return self.stats is not None

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

        Parameters
        ----------
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
            return super().__call__(x, check_input=check_input, weights=weights)
        if state is None:
            raise TypeError(
                f"{self.settings.name} with track_running_stats=True keeps them in a state: call "
                "it as y, state = layer(x, state), with the state of eqx.nn.make_with_state"
            )
        inference = self.inference if inference is None else inference
        settings = self.settings if check_input is None else self.settings.checking(check_input)
        given = settings, self._learnt, state.get(self.stats), x, weights, self.momentum
        y, new = forward_sets(*given, training=not inference)
        return y, state if inference or new is None else state.set(self.stats, new)


@documented
class GyroGroupNorm(SetLayer):
    """Riemannian group normalization: the points of a group of channels are one set.

    %(sets)s

    %(no_running)s

    Parameters
    ----------
    %(set_manifold)s
    %(group_channels)s
    eps
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each per group.
    %(set_options)s
        The call can overrule it.
    %(equinox_dtype)s

    Attributes
    ----------
    bias : array of shape (groups, dim), or None
        Normal coordinates b of the bias.
    scale : array of shape (groups,), or (groups, blocks), or None
        Standard deviation s of a set.
    raw_curvature : array, or None
        See :attr:`manifold`.
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
        options |= {"eps": eps}
        settings = SetSettings.grouped(type(self).__name__, manifold, groups, channels, **options)
        super().__init__(settings, use_bias, use_scale, dtype)


@documented
class GyroRMSNorm(SetLayer):
    """Riemannian root mean square normalization: sets are scaled from the identity, not centred.

    %(rms)s

    %(no_running)s

    Parameters
    ----------
    %(set_manifold)s
    %(rms_axis)s
    eps
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each for all sets.
    %(rms_options)s
        The call can overrule it.
    %(equinox_dtype)s

    Attributes
    ----------
    bias : array of shape (dim,), or None
        Normal coordinates b of the bias.
    scale : array of shape () or (blocks,), or None
        Root mean square distance s of a set from the bias.
    raw_curvature : array, or None
        See :attr:`manifold`.
    """

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
        options |= {"eps": eps, "centre": False}
        settings = SetSettings.layer(type(self).__name__, manifold, axis, **options)
        super().__init__(settings, use_bias, use_scale, dtype)
