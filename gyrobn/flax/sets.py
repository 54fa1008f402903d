"""Layer, instance, group and root mean square normalization of points, for Flax NNX."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jax import Array

from gyrobn.flax.affine import AffineLayer, RunningLayer
from gyrobn.jax_layers import forward
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.docstrings import documented
from gyrobn.normalization.settings import SetSettings


class SetLayer(AffineLayer):
    """A layer that normalizes sets of points within each sample."""

    @documented
    def __call__(self, x: Array, *, weights: Array | None = None) -> Array:
        """Normalize every set of a batch.

        %(set_call)s
        """
        return forward(self.settings, self._learnt, None, x, weights)[0]


class AxisLayer(SetLayer):
    """A layer whose sets are given by their axes, with one bias and scale for all of them."""

    _centre: ClassVar[bool] = True

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
        settings = SetSettings.layer(
            type(self).__name__, manifold, axis, eps=epsilon, centre=self._centre, **options
        )
        super().__init__(settings, use_bias, use_scale, param_dtype)


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
        Whether to keep running statistics.
    use_running_average
        Whether to use them, if they are kept; :meth:`train` and :meth:`eval` switch it, and the
        call can overrule it.
    %(momentum)s
    %(set_options)s

    %(instance_attributes)s
    mean, var : nnx.BatchStat, or None
        The running statistics.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> images = M.random(4, 3, 5, 5, rng=0, like=jnp.zeros((), jnp.float32))
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
        name = type(self).__name__
        settings = SetSettings.instance(name, manifold, channels, eps=epsilon, **options)
        affine = use_bias, use_scale, param_dtype
        super().__init__(settings, *affine, momentum, use_running_average, track_running_stats)

    @documented
    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, weights: Array | None = None
    ) -> Array:
        """Normalize every set of a batch.

        %(set_call)s
        use_running_average
            Overrules that of the layer.
        """
        return self._run(x, weights, use_running_average)


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
        epsilon: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        settings = SetSettings.grouped(name, manifold, groups, channels, eps=epsilon, **options)
        super().__init__(settings, use_bias, use_scale, param_dtype)


@documented
class GyroRMSNorm(AxisLayer):
    """Riemannian root mean square normalization: sets are scaled from the identity, not centred.

    %(rms_norm)s
    """

    _centre = False
