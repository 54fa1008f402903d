"""The layer: GyroBN, with an index to its running statistics."""

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
from jax import Array

from gyrobn.equinox.affine import RunningLayer
from gyrobn.jax_layers import arguments, start
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.docstrings import documented
from gyrobn.normalization.settings import Settings


@documented
class GyroBN(RunningLayer):
    """Riemannian batch normalization.

    %(algorithm)s

    Call the layer with the whole batch. With an ``axis_name`` it can also be called with one
    example under ``vmap``, like ``equinox.nn.BatchNorm``::

        jax.vmap(layer, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)

    Parameters
    ----------
    %(points)s
    eps
        Added to the variance.
    %(momentum)s
    use_bias, use_scale
        Whether bias and scale are learnt.
    %(axis_name)s
        The input is then a part of the batch, or one example ``(*channels, *point_shape)``.
    %(axis_index_groups)s
    %(options)s
    inference
        Whether to use the running statistics; ``equinox.nn.inference_mode`` switches it, and the
        call can overrule it.
    dtype
        Of the parameters and the running statistics; JAX's default by default. %(dtype)s

    %(attributes)s
    stats : equinox.nn.StateIndex
        ``state.get(layer.stats)`` are the running statistics, a :class:`gyrobn.Stats`.

    Examples
    --------
    >>> import equinox as eqx
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> x = M.random(16, 3, rng=0, like=jnp.zeros((), jnp.float32))
    >>> layer, state = eqx.nn.make_with_state(GyroBN)(M, channels=3, dtype=jnp.float32)
    >>> y, state = eqx.filter_jit(layer)(x, state)
    >>> y.shape, state.get(layer.stats).mean.shape, layer.bias.shape
    ((16, 3, 2), (3, 2), (3, 2))
    >>> layer = eqx.nn.inference_mode(layer)  # from now on with the running statistics
    >>> layer.inference
    True
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int] = (),
        *,
        eps: float = 1e-5,
        momentum: float = 0.99,
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
        inference: bool = False,
        dtype: Any = None,
    ) -> None:
        remedy = "the running statistics, with inference=True"
        settings = Settings.from_arguments(locals(), remedy=remedy)
        super().__init__(settings, use_bias, use_scale, dtype, momentum, inference)

    @classmethod
    @documented
    def from_estimator(
        cls, bn: Any, *, dtype: Any = None, **options: Any
    ) -> tuple[Self, eqx.nn.State]:
        """Return a layer that does in inference what a fitted :class:`gyrobn.GyroBN` does.

        %(bn)s
        dtype
            As in the layer; that of the statistics by default, if JAX is set to it.

        Returns
        -------
        layer, state
            As from ``equinox.nn.make_with_state``.
        """
        model, given, dtype = arguments(bn, dtype)
        options = {"eps": model.eps, "dtype": dtype} | given | options
        layer, state = eqx.nn.make_with_state(cls)(model.manifold_, **options)
        learnt, stats = start(layer, model, dtype)
        layer = eqx.tree_at(
            lambda own: (own.bias, own.scale),
            layer,
            (learnt.bias, learnt.scale),
            is_leaf=lambda leaf: leaf is None,
        )
        return layer, state.set(layer.stats, stats)

    @documented
    def __call__(
        self,
        x: Array,
        state: eqx.nn.State,
        *,
        key: Any = None,
        inference: bool | None = None,
        check_input: str | bool | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, eqx.nn.State]:
        """Normalize a batch.

        %(call)s
        state
            Holds the running statistics.
        key
            Not used; every Equinox layer accepts it.
        inference, check_input
            Overrule those of the layer.

        Returns
        -------
        y, state
            The normalized batch, and the state with the new running statistics.
        """
        return self._run(x, state, weights, inference, check_input)
