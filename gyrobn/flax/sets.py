"""Layer, instance, group and root mean square normalization of points, for Flax NNX."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from gyrobn.flax.affine import AffineLayer
from gyrobn.flax.running import RunningLayer
from gyrobn.jax_layers import check_momentum, forward_sets
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import initial
from gyrobn.normalization.settings import SetSettings, documented

__all__ = ["GyroGroupNorm", "GyroInstanceNorm", "GyroLayerNorm", "GyroRMSNorm"]


class SetLayer(AffineLayer):
    """A layer that normalizes sets of points within each sample."""

    def __init__(
        self, settings: SetSettings, use_bias: bool, use_scale: bool, param_dtype: Any
    ) -> None:
        like = jnp.zeros((), param_dtype)
        self._hold(settings, initial(settings, like, use_bias, use_scale)[0])

    @documented
    def __call__(self, x: Array, *, weights: Array | None = None) -> Array:
        """Normalize every set of a batch.

        Parameters
        ----------
        %(set_call)s
        """
        return forward_sets(self.settings, self._learnt, None, x, weights)[0]


@documented
class GyroLayerNorm(SetLayer):
    """Riemannian layer normalization: all points of a sample are one set.

    %(sets)s

    %(no_running)s

    Parameters
    ----------
    %(set_manifold)s
    %(set_axis)s
    epsilon
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each for all sets.
    %(set_options)s
        It can be set later.
    %(flax_dtype)s

    Attributes
    ----------
    bias : nnx.Param of shape (dim,), or None
        Normal coordinates b of the bias.
    scale : nnx.Param of shape () or (blocks,), or None
        Standard deviation s of a set.
    raw_curvature : nnx.Param, or None
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
        epsilon: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        options |= {"eps": epsilon}
        settings = SetSettings.layer(type(self).__name__, manifold, axis, **options)
        super().__init__(settings, use_bias, use_scale, param_dtype)


@documented
class GyroInstanceNorm(RunningLayer, SetLayer):
    """Riemannian instance normalization: the points of one channel of a sample are one set.

    %(sets)s

    %(instance_running)s

    Parameters
    ----------
    %(set_manifold)s
    %(instance_channels)s
    track_running_stats
        Whether to keep running statistics.
    use_running_average
        Whether to use them, if they are kept; :meth:`train` and :meth:`eval` switch it, and the
        call can overrule it.
    %(momentum)s
    epsilon
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each per channel.
    %(set_options)s
        It can be set later.
    %(flax_dtype)s

    Attributes
    ----------
    bias : nnx.Param of shape (*channels, dim), or None
        Normal coordinates b of the bias.
    scale : nnx.Param of shape (*channels,), or (*channels, blocks), or None
        Standard deviation s of a set.
    raw_curvature : nnx.Param, or None
        See :attr:`manifold`.
    mean, var : nnx.BatchStat, or None
        The running statistics.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> images = M.random(4, 3, 5, 5, like=jnp.zeros((), jnp.float32))
    >>> layer = GyroInstanceNorm(M, 3, track_running_stats=True)
    >>> layer(images).shape, layer.mean.shape, layer.var.shape
    ((4, 3, 5, 5, 2), (3, 2), (3,))
    >>> layer.eval()  # from now on with the running statistics: one point is enough
    >>> layer(images[:1, :, :1, :1]).shape
    (1, 3, 1, 1, 2)
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        *,
        track_running_stats: bool = False,
        use_running_average: bool = False,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        options |= {"eps": epsilon}
        settings = SetSettings.instance(type(self).__name__, manifold, channels, **options)
        super().__init__(settings, use_bias, use_scale, param_dtype)
        stats = initial(settings, jnp.zeros((), param_dtype), False, False)[1]
        own = stats if track_running_stats else None
        self._keep(own, check_momentum(momentum), use_running_average)

    @documented
    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, weights: Array | None = None
    ) -> Array:
        """Normalize every set of a batch.

        Parameters
        ----------
        %(set_call)s
        use_running_average
            Overrules that of the layer.
        """
        return self._run(forward_sets, x, weights, use_running_average)


@documented
class GyroGroupNorm(SetLayer):
    """Riemannian group normalization: the points of a group of channels are one set.

    %(sets)s

    %(no_running)s

    Parameters
    ----------
    %(set_manifold)s
    %(group_channels)s
    epsilon
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each per group.
    %(set_options)s
        It can be set later.
    %(flax_dtype)s

    Attributes
    ----------
    bias : nnx.Param of shape (groups, dim), or None
        Normal coordinates b of the bias.
    scale : nnx.Param of shape (groups,), or (groups, blocks), or None
        Standard deviation s of a set.
    raw_curvature : nnx.Param, or None
        See :attr:`manifold`.
    """

    def __init__(
        self,
        manifold: GyroSpace,
        groups: int,
        channels: int,
        *,
        epsilon: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        options |= {"eps": epsilon}
        settings = SetSettings.grouped(type(self).__name__, manifold, groups, channels, **options)
        super().__init__(settings, use_bias, use_scale, param_dtype)


@documented
class GyroRMSNorm(SetLayer):
    """Riemannian root mean square normalization: sets are scaled from the identity, not centred.

    %(rms)s

    %(no_running)s

    Parameters
    ----------
    %(set_manifold)s
    %(rms_axis)s
    epsilon
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt, one of each for all sets.
    %(rms_options)s
        It can be set later.
    %(flax_dtype)s

    Attributes
    ----------
    bias : nnx.Param of shape (dim,), or None
        Normal coordinates b of the bias.
    scale : nnx.Param of shape () or (blocks,), or None
        Root mean square distance s of a set from the bias.
    raw_curvature : nnx.Param, or None
        See :attr:`manifold`.
    """

    def __init__(
        self,
        manifold: GyroSpace,
        axis: int | Sequence[int] | None = None,
        *,
        epsilon: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        options |= {"eps": epsilon, "centre": False}
        settings = SetSettings.layer(type(self).__name__, manifold, axis, **options)
        super().__init__(settings, use_bias, use_scale, param_dtype)
