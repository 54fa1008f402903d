"""Layer, instance, group and root mean square normalization of points, for Equinox."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
from jax import Array

from gyrobn.jax_layers import forward_sets, like
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import Learnt, initial
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
        learnt = Learnt(self.bias, self.scale, self.raw_curvature)
        return forward_sets(settings, learnt, x, weights)


@documented
class GyroLayerNorm(SetLayer):
    """Riemannian layer normalization: all points of a sample are one set.

    %(sets)s

    Parameters
    ----------
    %(set_manifold)s
    axis
        The axis of a set, or axes, among those in front of a point; negative ones count from the
        point. By default all but the first: one set per sample.
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
class GyroInstanceNorm(SetLayer):
    """Riemannian instance normalization: the points of one channel of a sample are one set.

    %(sets)s

    Parameters
    ----------
    %(set_manifold)s
    %(instance_channels)s
    eps
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each per channel.
    %(set_options)s
        The call can overrule it.
    %(equinox_dtype)s

    Attributes
    ----------
    bias : array of shape (*channels, dim), or None
        Normal coordinates b of the bias.
    scale : array of shape (*channels,), or (*channels, blocks), or None
        Standard deviation s of a set.
    raw_curvature : array, or None
        See :attr:`manifold`.
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        *,
        eps: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        options |= {"eps": eps}
        settings = SetSettings.instance(type(self).__name__, manifold, channels, **options)
        super().__init__(settings, use_bias, use_scale, dtype)


@documented
class GyroGroupNorm(SetLayer):
    """Riemannian group normalization: the points of a group of channels are one set.

    %(sets)s

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

    Parameters
    ----------
    %(set_manifold)s
    axis
        The axis of a set, or axes, among those in front of a point; negative ones count from the
        point. By default all but the first: one set per sample. ``axis=()`` scales every
        point by itself, to distance s.
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
