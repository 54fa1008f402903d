"""GyroBN for Equinox: a layer that holds parameters, and an index to its running statistics.

The mathematics is in :mod:`gyrobn.normalization.normalize`.
"""

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from gyrobn.jax_layers import (
    dtype_for,
    first_learnt,
    first_stats,
    forward,
    settings_of,
    start,
)
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import Learnt, Settings
from gyrobn.normalization.normalize import Stats

__all__ = ["GyroBN"]


class GyroBN(eqx.nn.StatefulLayer):
    r"""Riemannian batch normalization.

    .. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
              (\ominus\mu \oplus x_i)\Bigr)

    In training :math:`\mu` and :math:`v^2` are the Fréchet mean and variance of the batch; in
    inference they are the running ones. The bias is :math:`\beta = \operatorname{Exp}_e(b)` with
    an unconstrained parameter b of ``manifold.dim`` numbers a channel, so any optimizer works.

    The layer is called with the whole batch. ``equinox.nn.BatchNorm`` is called with one example
    under a ``vmap`` whose ``axis_name`` it was told; so can this layer be, if it is given an
    ``axis_name``::

        jax.vmap(layer, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)

    Parameters
    ----------
    manifold
        The geometry of the points, its parameters plain numbers.
    channels
        Shape of the channels, each normalized on its own: input is ``(batch, *channels,
        *point_shape)``.
    eps
        Added to the variance.
    momentum
        Fraction of the running statistics to keep at a new batch (torch's is one minus it). They
        start at the identity and one.
    use_bias, use_scale
        Whether bias and scale are learnt.
    axis
        The batch axis, or axes; the other leading axes are the channels.
    axis_name
        Name of the axis (of ``vmap``, ``pmap``, ``shard_map``), or names,
        over which the batch is distributed: its parts are gathered for the statistics. Input is
        then a part of the batch, or one example ``(*channels, *point_shape)``.
    mean_gradient
        ``"implicit"`` for the exact derivative of the mean, ``"detach"`` to hold it constant.
    steps
        Number of Newton steps for the mean; until convergence by default.
    clamp
        Largest factor :math:`s/\sqrt{v^2+\epsilon}`, if any.
    learn_curvature
        Whether the curvature is a parameter. It keeps its sign; on ``Stereographic`` it is free.
    tol, max_iter
        As in :func:`gyrobn.frechet`.
    check_input
        ``"first"`` to look for samples off the manifold in the first batch, training or evaluation,
        and raise ValueError; True to look in each, False in none. The call can overrule it.
        In ``jit``, ``grad`` and ``vmap`` no values can be seen, and nothing is checked.
    inference
        Whether to use the running statistics; ``equinox.nn.inference_mode`` switches it, and the
        call can overrule it.
    dtype
        Of the parameters and the running statistics; JAX's default by default. The statistics are
        in float32 at least. The computation is in the wider one of this and the input's, and in
        float32 at least; half precision in is half precision out.

    Attributes
    ----------
    bias : array of shape (*channels, dim), or None
        Normal coordinates b of the bias.
    scale : array of shape (*channels,), or (*channels, blocks), or None
        Standard deviation s of the output.
    raw_curvature : array, or None
        See :attr:`manifold`.
    stats : equinox.nn.StateIndex
        ``state.get(layer.stats)`` are the running statistics, a :class:`gyrobn.Stats`.

    Examples
    --------
    >>> import equinox as eqx
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> x = M.random(16, 3, like=jnp.zeros((), jnp.float32))
    >>> layer, state = eqx.nn.make_with_state(GyroBN)(M, channels=3, dtype=jnp.float32)
    >>> y, state = eqx.filter_jit(layer)(x, state)
    >>> y.shape, state.get(layer.stats).mean.shape, layer.bias.shape
    ((16, 3, 2), (3, 2), (3, 2))
    >>> layer = eqx.nn.inference_mode(layer)  # from now on with the running statistics
    >>> layer.inference
    True
    """

    bias: Array | None
    scale: Array | None
    raw_curvature: Array | None
    stats: eqx.nn.StateIndex[Stats]
    inference: bool
    momentum: float = eqx.field(static=True)
    settings: Settings = eqx.field(static=True)

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
        mean_gradient: str = "implicit",
        steps: int | None = None,
        clamp: float | None = None,
        learn_curvature: bool = False,
        tol: float | None = None,
        max_iter: int = 64,
        check_input: str | bool = "first",
        inference: bool = False,
        dtype: Any = None,
    ) -> None:
        self.settings = settings_of(
            momentum,
            axis_name,
            manifold,
            channels,
            axis,
            eps=eps,
            mean_gradient=mean_gradient,
            steps=steps,
            clamp=clamp,
            learn_curvature=learn_curvature,
            tol=tol,
            max_iter=max_iter,
            remedy="the running statistics, with inference=True",
            check_input=check_input,
        )
        self.momentum = float(momentum)
        self.inference = inference
        dtype = jnp.result_type(float) if dtype is None else dtype
        first = first_learnt(self.settings, use_bias, use_scale, dtype)
        self.bias, self.scale, self.raw_curvature = first
        self.stats = eqx.nn.StateIndex(first_stats(self.settings, dtype))

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        return self.settings.manifold(self.raw_curvature)

    @classmethod
    def from_estimator(
        cls, bn: Any, *, dtype: Any = None, **options: Any
    ) -> tuple[Self, eqx.nn.State]:
        """Return a layer that does in inference what a fitted :class:`gyrobn.GyroBN` does.

        Parameters
        ----------
        bn
            The estimator, fitted without domains.
        dtype
            As in the layer; that of the statistics by default, as far as JAX is set to it.
        **options
            Other arguments of the layer; eps, tol and max_iter are the estimator's by default.

        Returns
        -------
        layer, state
            As from ``equinox.nn.make_with_state``.
        """
        from gyrobn.estimator.conversion import fitted

        model = fitted(bn)
        given = {"eps": model.eps, "tol": model.tol, "max_iter": model.max_iter}
        dtype = dtype_for(model, dtype)
        layer, state = eqx.nn.make_with_state(cls)(
            model.geometry, model.channels, dtype=dtype, **given | options
        )
        has = layer.bias is not None, layer.scale is not None
        learnt, stats = start(layer.settings, model, *has, dtype)
        layer = eqx.tree_at(
            lambda own: (own.bias, own.scale),
            layer,
            (learnt.bias, learnt.scale),
            is_leaf=lambda leaf: leaf is None,
        )
        return layer, state.set(layer.stats, stats)

    def to_estimator(self, state: eqx.nn.State, *, like: Any = None) -> Any:
        """Return a fitted :class:`gyrobn.GyroBN` that does what this layer does in inference.

        The running statistics become its mean and variance, the bias a point, a learnt curvature a
        number. A layer does not count samples: ``n_samples_seen_`` and ``weight_sum_`` are zero,
        ``n_iter_`` too, and ``converged_`` is False. The estimator can be saved, with ``save``.

        Parameters
        ----------
        state
            Holds the running statistics.
        like
            An array whose library, dtype and device the statistics get; NumPy by default.
        """
        from gyrobn.estimator.conversion import layer_to_estimator

        learnt = Learnt(self.bias, self.scale, self.raw_curvature)
        return layer_to_estimator(self.settings, learnt, state.get(self.stats), like)

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

        Parameters
        ----------
        x
            Points, shape ``(batch, *channels, *point_shape)``.
        state
            Holds the running statistics.
        key
            Not used; accepted like by every layer.
        inference, check_input
            Overrule the layer's own.
        weights
            Weights of the samples in the statistics of the batch, as in :func:`gyrobn.frechet`.

        Returns
        -------
        y, state
            The normalized batch, and the state with the new running statistics.
        """
        inference = self.inference if inference is None else inference
        settings = self.settings if check_input is None else self.settings.checking(check_input)
        y, stats = forward(
            settings,
            Learnt(self.bias, self.scale, self.raw_curvature),
            state.get(self.stats),
            x,
            weights,
            self.momentum,
            training=not inference,
        )
        return y, state if inference else state.set(self.stats, stats)
