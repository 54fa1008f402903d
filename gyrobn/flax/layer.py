"""The layer: GyroBN with the habits of ``flax.nnx.BatchNorm``."""

from collections.abc import Sequence
from typing import Any, Self

import jax.numpy as jnp
from flax import nnx
from jax import Array

from gyrobn.flax.affine import RunningLayer
from gyrobn.jax_layers import arguments, start
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.docstrings import documented
from gyrobn.normalization.settings import Settings


@documented
class GyroBN(RunningLayer):
    """Riemannian batch normalization.

    %(algorithm)s

    ``axis`` is the batch axis here, and that of the features in ``nnx.BatchNorm``.

    Parameters
    ----------
    %(points)s
    use_running_average
        Whether to use the running statistics; :meth:`train` and :meth:`eval` switch it, and the
        call can overrule it.
    %(momentum)s
    epsilon
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt.
    %(axis_name)s
        Under plain ``jit`` a sharded batch is one batch, and needs no name.
    %(axis_index_groups)s
    %(options)s
    param_dtype
        Of the parameters and the running statistics. %(dtype)s
    rngs
        Not used, since nothing starts at random; every Flax layer accepts it.

    %(attributes)s
    mean, var : nnx.BatchStat
        The running statistics.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> x = M.random(16, 3, rng=0, like=jnp.zeros((), jnp.float32))
    >>> layer = GyroBN(M, channels=3, momentum=0.9)
    >>> y = nnx.jit(lambda layer, x: layer(x))(layer, x)
    >>> y.shape, layer.mean.shape, layer.var.shape, layer.bias.shape
    ((16, 3, 2), (3, 2), (3,), (3, 2))
    >>> layer.eval()  # from now on with the running statistics
    >>> layer.use_running_average
    True
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int] = (),
        *,
        use_running_average: bool = False,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        axis: int | Sequence[int] = 0,
        axis_name: Any = None,
        axis_index_groups: Any = None,
        mean_gradient: str = "implicit",
        steps: int | None = None,
        clamp: float | None = None,
        learn_curvature: bool = False,
        tol: float | None = None,
        max_iter: int = 64,
        check_input: str | bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        remedy = "the running statistics, with layer.eval()"
        settings = Settings.from_arguments(locals(), eps=epsilon, remedy=remedy)
        super().__init__(settings, use_bias, use_scale, param_dtype, momentum, use_running_average)

    @classmethod
    @documented
    def from_estimator(cls, bn: Any, *, param_dtype: Any = None, **options: Any) -> Self:
        """Return a layer that does in evaluation what a fitted :class:`gyrobn.GyroBN` does.

        %(bn)s
        param_dtype
            As in the layer; that of the statistics by default, if JAX is set to it.
        """
        model, given, dtype = arguments(bn, param_dtype)
        options = {"epsilon": model.eps, "param_dtype": dtype} | given | options
        layer = cls(model.manifold_, **options)
        learnt, stats = start(layer, model, dtype)
        for own, value in ((layer.bias, learnt.bias), (layer.scale, learnt.scale)):
            if own is not None:
                own[...] = value
        layer._store(stats)
        return layer

    @documented
    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, weights: Array | None = None
    ) -> Array:
        """Normalize a batch.

        %(call)s
        use_running_average
            Overrules that of the layer.
        """
        return self._run(x, weights, use_running_average)
