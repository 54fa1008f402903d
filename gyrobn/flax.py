"""GyroBN for Flax NNX: a layer that holds parameters and running statistics.

It keeps the habits of ``flax.nnx.BatchNorm``; the mathematics is in
:mod:`gyrobn.normalization.normalize`.
"""

from collections.abc import Sequence
from typing import Any, Self

import jax.numpy as jnp
from flax import nnx
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
from gyrobn.normalization.layers import Learnt
from gyrobn.normalization.normalize import Stats

__all__ = ["GyroBN"]


class GyroBN(nnx.Module):
    r"""Riemannian batch normalization.

    .. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
              (\ominus\mu \oplus x_i)\Bigr)

    In training :math:`\mu` and :math:`v^2` are the Fréchet mean and variance of the batch; with
    ``use_running_average`` they are the running ones. The bias is :math:`\beta =
    \operatorname{Exp}_e(b)` with an unconstrained parameter b of ``manifold.dim`` numbers a
    channel, so any optimizer works.

    Parameters
    ----------
    manifold
        The geometry of the points, its parameters plain numbers.
    channels
        Shape of the channels, each normalized on its own: input is ``(batch, *channels,
        *point_shape)``.
    use_running_average
        Whether to use the running statistics; :meth:`train` and :meth:`eval` switch it, and the
        call can overrule it.
    momentum
        Fraction of the running statistics to keep at a new batch (torch's is one minus it).
    epsilon
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt.
    axis
        The batch axis, or axes; the other leading axes are the channels. (The ``axis`` of
        ``nnx.BatchNorm`` is that of the features.)
    axis_name
        Name of the axis (of ``pmap``, ``vmap``, ``shard_map``), or names,
        over which the batch is distributed: its parts are gathered for the statistics. Under plain
        ``jit`` a sharded batch is one batch, and needs no name.
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
        and raise ValueError; True to look in each, False in none. It can be set later. In
        ``jit``, ``grad`` and ``vmap`` no values can be seen, and nothing is checked.
    param_dtype
        Of the parameters and the running statistics, which are in float32 at least. The computation
        is in the wider one of this and the input's, and in float32 at least; half precision in is
        half precision out.
    rngs
        Not used, as nothing starts at random; accepted like by every layer.

    Attributes
    ----------
    bias : nnx.Param of shape (*channels, dim), or None
        Normal coordinates b of the bias.
    scale : nnx.Param of shape (*channels,), or (*channels, blocks), or None
        Standard deviation s of the output.
    raw_curvature : nnx.Param, or None
        See :attr:`manifold`.
    mean, var : nnx.BatchStat
        The running statistics.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> x = M.random(16, 3, like=jnp.zeros((), jnp.float32))
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
        mean_gradient: str = "implicit",
        steps: int | None = None,
        clamp: float | None = None,
        learn_curvature: bool = False,
        tol: float | None = None,
        max_iter: int = 64,
        check_input: str | bool = "first",
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.settings = settings_of(
            momentum,
            axis_name,
            manifold,
            channels,
            axis,
            eps=epsilon,
            mean_gradient=mean_gradient,
            steps=steps,
            clamp=clamp,
            learn_curvature=learn_curvature,
            tol=tol,
            max_iter=max_iter,
            remedy="the running statistics, with layer.eval()",
            check_input=check_input,
        )
        self.momentum = float(momentum)
        self.use_running_average = use_running_average
        first = first_learnt(self.settings, use_bias, use_scale, param_dtype)
        self.bias = _param(first.bias, manifold)
        self.scale = _param(first.scale, manifold)
        self.raw_curvature = _param(first.raw_curvature, manifold)
        stats = first_stats(self.settings, param_dtype)
        self.mean = nnx.BatchStat(stats.mean, geometry=manifold)
        self.var = nnx.BatchStat(stats.var, geometry=manifold)

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        return self.settings.manifold(self._learnt.raw_curvature)

    @property
    def _learnt(self) -> Learnt:
        """What is learnt. Each variable says of which geometry it is, also after ``nnx.update``."""
        own, shift = self.settings.geometry, 0.0
        for variable in (self.bias, self.scale, self.raw_curvature, self.mean, self.var):
            saved = own if variable is None else variable.get_metadata().get("geometry", own)
            if saved != own:
                shift = self.settings.raw_shift(saved)
        raw = _value(self.raw_curvature)
        if raw is not None and shift:
            raw = raw + shift
        return Learnt(_value(self.bias), _value(self.scale), raw)

    @property
    def check_input(self) -> str | bool:
        """Whether to look for samples off the manifold: ``"first"``, True or False."""
        return self.settings.check_input

    @check_input.setter
    def check_input(self, value: str | bool) -> None:
        self.settings = self.settings.checking(value)

    @classmethod
    def from_estimator(cls, bn: Any, *, param_dtype: Any = None, **options: Any) -> Self:
        """Return a layer that does in evaluation what a fitted :class:`gyrobn.GyroBN` does.

        Parameters
        ----------
        bn
            The estimator, fitted without domains.
        param_dtype
            As in the layer; that of the statistics by default, as far as JAX is set to it.
        **options
            Other arguments of the layer; epsilon, tol and max_iter are the estimator's by default.
        """
        from gyrobn.estimator.conversion import fitted

        model = fitted(bn)
        given = {"epsilon": model.eps, "tol": model.tol, "max_iter": model.max_iter}
        dtype = dtype_for(model, param_dtype)
        layer = cls(model.geometry, model.channels, param_dtype=dtype, **given | options)
        has = layer.bias is not None, layer.scale is not None
        learnt, stats = start(layer.settings, model, *has, dtype)
        for own, value in ((layer.bias, learnt.bias), (layer.scale, learnt.scale)):
            if own is not None:
                own[...] = value
        layer.mean[...], layer.var[...] = stats
        return layer

    def to_estimator(self, *, like: Any = None) -> Any:
        """Return a fitted :class:`gyrobn.GyroBN` that does what this layer does in evaluation.

        The running statistics become its mean and variance, the bias a point, a learnt curvature a
        number. A layer does not count samples: ``n_samples_seen_`` and ``weight_sum_`` are zero,
        ``n_iter_`` too, and ``converged_`` is False. The estimator can be saved, with ``save``.

        Parameters
        ----------
        like
            An array whose library, dtype and device the statistics get; NumPy by default.
        """
        from gyrobn.estimator.conversion import layer_to_estimator

        stats = Stats(self.mean[...], self.var[...])
        return layer_to_estimator(self.settings, self._learnt, stats, like)

    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, weights: Array | None = None
    ) -> Array:
        """Normalize a batch.

        Parameters
        ----------
        x
            Points, shape ``(batch, *channels, *point_shape)``.
        use_running_average
            Overrules the layer's own.
        weights
            Weights of the samples in the statistics of the batch, as in :func:`gyrobn.frechet`.
        """
        frozen = self.use_running_average if use_running_average is None else use_running_average
        y, stats = forward(
            self.settings,
            self._learnt,
            Stats(self.mean[...], self.var[...]),
            x,
            weights,
            self.momentum,
            training=not frozen,
        )
        if not frozen:
            self.mean[...], self.var[...] = stats
        return y

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Let ``nnx.view`` set the mode."""
        if use_running_average is not None:
            self.use_running_average = use_running_average


def _param(value: Array | None, geometry: GyroSpace) -> "nnx.Param[Array] | None":
    return None if value is None else nnx.Param(value, geometry=geometry)


def _value(param: "nnx.Param[Array] | None") -> Array | None:
    return None if param is None else param[...]
