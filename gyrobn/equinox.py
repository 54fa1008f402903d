"""GyroBN for Equinox: layers that hold parameters, and an index to their running statistics.

The mathematics is in :mod:`gyrobn.normalization.normalize`. What is not said here is as in
:mod:`gyrobn.flax` and :mod:`gyrobn.torch`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self, Unpack

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from gyrobn.jax_layers import (
    DomainState,
    arguments,
    check_momentum,
    domain_forward,
    forward,
    like,
    per_domain,
    start,
)
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import (
    Learnt,
    Options,
    Settings,
    State,
    grouped,
    initial,
    initial_state,
    separated,
)
from gyrobn.numerics.checks import check_integer

__all__ = [
    "DomainGyroBN",
    "GyroBN",
    "GyroGroupNorm",
    "GyroInstanceNorm",
    "GyroLayerNorm",
    "GyroRMSNorm",
]


class LayerOptions(Options, total=False):
    """The options of every layer of Equinox."""

    eps: float
    use_bias: bool
    use_scale: bool
    dtype: Any


class NormalizationLayer(eqx.nn.StatefulLayer):
    """A layer with a learnable bias, scale and curvature."""

    bias: Array | None
    scale: Array | None
    raw_curvature: Array | None
    shared_curvature: list[Array]
    """Curvatures that were given as arrays; ``equinox.nn.Shared`` ties those of several layers."""
    settings: Any = eqx.field(static=True)
    stats: ClassVar[Any] = None
    more: ClassVar[Any] = None
    momentum: ClassVar[float] = 1.0

    def __init__(
        self,
        manifold: GyroSpace,
        own: dict[str, Any],
        /,
        *,
        eps: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        dtype: Any = None,
        **options: Unpack[Options],
    ) -> None:
        manifold, shared, owners = separated(manifold, float)
        own, self.shared_curvature = own | shared, [*map(jnp.asarray, owners)]
        self.settings = Settings.of(type(self).__name__, manifold, options, eps=eps, **own)
        learnt, _ = initial(self.settings, like(dtype), use_bias, use_scale)
        self.bias, self.scale, self.raw_curvature, _ = learnt

    def is_stateful(self) -> bool:
        """Tell ``equinox.nn.Sequential`` whether to call the layer with a state."""
        return self.stats is not None

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        manifold: GyroSpace = self.settings.manifold(*self._learnt[2:4])
        return manifold

    @property
    def _learnt(self) -> Learnt:
        """The parameters."""
        owners = self.shared_curvature
        shared = jnp.stack([K.reshape(()) for K in owners]) if owners else None
        return Learnt(self.bias, self.scale, self.raw_curvature, shared)

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
        """Normalize a batch, or every set of it.

        Parameters
        ----------
        x, weights
            As in :mod:`gyrobn.torch`.
        state
            Holds the running statistics, if the layer has them.
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
        if self.stats is not None and state is None:
            raise TypeError(
                f"{self.settings.name} has its running statistics in a state: call it as "
                "y, state = layer(x, state), with the state of eqx.nn.make_with_state"
            )
        kept = State() if self.stats is None else self._kept(state)
        settings = self.settings if check_input is None else self.settings.checking(check_input)
        frozen = getattr(self, "inference", False) if inference is None else inference
        given = settings, self._learnt, kept, x, weights, self.momentum
        y, new = forward(*given, training=not frozen)
        if self.stats is None or state is None:
            return y
        return y, state if frozen else self._store(state, new)

    def _kept(self, state: Any) -> State:
        """Return what the layer keeps in a state."""
        kept = State() if self.more is None else state.get(self.more)
        return kept._replace(running=state.get(self.stats))

    def _store(self, state: eqx.nn.State, new: State) -> eqx.nn.State:
        """Return a state with new running statistics and reference."""
        state = state.set(self.stats, new.running)
        return state if self.more is None else state.set(self.more, new._replace(running=None))


class _RunningLayer(NormalizationLayer):
    """A layer that has running statistics, or may have them."""

    stats: Any  # type: ignore[misc]
    """``eqx.nn.StateIndex[Stats]``, or None if the layer has no running statistics."""
    more: Any  # type: ignore[misc]
    """Index of a ``State`` with the reference and the statistics of ``train_momentum``, or None."""
    inference: bool
    momentum: float = eqx.field(static=True)  # type: ignore[misc]

    def __init__(
        self,
        manifold: GyroSpace,
        own: dict[str, Any],
        momentum: float,
        inference: bool,
        track_running_stats: bool = True,
        /,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(manifold, own, **options)
        self.momentum, self.inference = check_momentum(momentum), inference
        stats = initial(self.settings, like(options.get("dtype")), False, False)[1]
        self.stats = eqx.nn.StateIndex(stats) if track_running_stats else None
        more = initial_state(self.settings, stats, options.get("reference"), track_running_stats)
        more = more._replace(running=None)
        self.more = None if all(a is None for a in more) else eqx.nn.StateIndex(more)


class GyroBN(_RunningLayer):
    r"""Riemannian batch normalization: see :class:`gyrobn.torch.GyroBN`.

    Call the layer with the whole batch. With an ``axis_name`` it can also be called with one
    example under ``vmap``, like ``equinox.nn.BatchNorm``::

        jax.vmap(layer, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)

    Parameters
    ----------
    manifold, channels, axis, mean_gradient, steps, learn_curvature, clamp, scale, reference,
    train_momentum, tol, max_iter
        As in :class:`gyrobn.torch.GyroBN`.
    eps
        Added to the variance.
    momentum, use_bias, use_scale, axis_index_groups, check_input
        As in :class:`gyrobn.flax.GyroBN`; the call can overrule ``check_input``.
    axis_name
        As in :class:`gyrobn.flax.GyroBN`. The input is then a part of the batch, or one example
        ``(*channels, *point_shape)``.
    inference
        Whether to use the running statistics; ``equinox.nn.inference_mode`` switches it, and the
        call can overrule it.
    dtype
        Of the parameters and the running statistics; JAX's default by default. The statistics are
        in float32 at least. The computation is in the wider dtype of the layer and the input, and
        in float32 at least; half precision in gives half precision out.

    Attributes
    ----------
    bias, scale, raw_curvature : array, or None
        As in :class:`gyrobn.torch.GyroBN`.
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
        momentum: float = 0.99,
        axis: int | Sequence[int] = 0,
        axis_name: Any = None,
        axis_index_groups: Any = None,
        inference: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        own: dict[str, Any] = {"channels": channels, "axis": axis, "axis_name": axis_name}
        own["axis_index_groups"] = axis_index_groups
        own["remedy"] = "the running statistics, with inference=True"
        super().__init__(manifold, own, momentum, inference, **options)

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
            As in the layer; that of the statistics by default, if JAX is set to it.
        **options
            Other arguments of the layer; eps, tol and max_iter are the estimator's by default.

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
        if layer.more is not None and layer.settings.train_momentum is not None:
            state = state.set(layer.more, state.get(layer.more)._replace(training=stats))
        return layer, state.set(layer.stats, stats)


class DomainGyroBN(_RunningLayer):
    """GyroBN with statistics per domain, and one scale: see :class:`gyrobn.flax.DomainGyroBN`.

    ``eps``, ``inference``, ``dtype`` and the state are as in :class:`GyroBN`.

    Examples
    --------
    >>> import equinox as eqx
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> x = M.random(16, rng=0, like=jnp.zeros((), jnp.float32))
    >>> layer, state = eqx.nn.make_with_state(DomainGyroBN)(M, domains=3, dtype=jnp.float32)
    >>> y, state = eqx.filter_jit(layer)(x, jnp.arange(16) % 2, state)
    >>> y.shape, state.get(layer.stats).mean.shape, state.get(layer.counts).tolist()
    ((16, 2), (3, 2), [1, 1, 0])
    """

    counts: Any
    """Index of the number of training batches with each domain."""

    def __init__(
        self,
        manifold: GyroSpace,
        domains: int,
        channels: int | Sequence[int] = (),
        *,
        domain_bias: bool = False,
        momentum: float = 0.99,
        inference: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        domains = check_integer("domains", domains, 1)
        own = {"channels": channels, "remedy": "the running statistics, with inference=True"}
        super().__init__(manifold, own, momentum, inference, **options)
        self.stats = eqx.nn.StateIndex(per_domain(domains, self.stats.init))
        if self.more is not None:
            more = self.more.init
            more = more._replace(training=per_domain(domains, more.training))
            self.more = eqx.nn.StateIndex(more)
        if domain_bias:
            if self.bias is None:
                raise ValueError("domain_bias needs a bias: leave out use_bias=False")
            self.bias = per_domain(domains, self.bias)
        self.counts = eqx.nn.StateIndex(jnp.zeros(domains, jnp.int32))

    def __call__(  # type: ignore[override]
        self,
        x: Array,
        domains: Array,
        state: eqx.nn.State,
        *,
        key: Any = None,
        inference: bool | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, eqx.nn.State]:
        """Normalize each sample with the statistics of its domain.

        Parameters
        ----------
        x, domains, weights
            As in :class:`gyrobn.torch.DomainGyroBN`.
        state, key, inference
            As in :class:`GyroBN`.

        Returns
        -------
        y, state
            The normalized batch, and the state with the new statistics.
        """
        frozen = self.inference if inference is None else inference
        kept = DomainState(self._kept(state), state.get(self.counts))
        given = self.settings, self._learnt, kept, x, domains, weights, self.momentum
        y, new = domain_forward(*given, training=not frozen)
        return y, state if frozen else self._store(state, new.state).set(self.counts, new.counts)


class _AxisNorm(NormalizationLayer):
    """A layer whose sets are given by their axes, with one bias and scale for all of them."""

    _centre: ClassVar[bool] = True

    def __init__(
        self,
        manifold: GyroSpace,
        axis: int | Sequence[int] | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        own = {"sets": True, "axis": axis, "centre": self._centre}
        super().__init__(manifold, own, **options)


class GyroLayerNorm(_AxisNorm):
    """Riemannian layer normalization: see :class:`gyrobn.torch.GyroLayerNorm`.

    ``use_bias``, ``use_scale`` and ``dtype`` are as in :class:`GyroBN`. The layer needs no state.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> tokens = M.random(2, 4, rng=0, like=jnp.zeros((), jnp.float32))
    >>> mask = jnp.asarray([[True] * 4, [True] * 3 + [False]])
    >>> GyroLayerNorm(M)(tokens, weights=mask).shape
    (2, 4, 2)
    """


class GyroRMSNorm(_AxisNorm):
    """Riemannian root mean square normalization: see :class:`gyrobn.torch.GyroRMSNorm`.

    ``use_bias``, ``use_scale`` and ``dtype`` are as in :class:`GyroBN`. The layer needs no state.
    """

    _centre = False


class GyroInstanceNorm(_RunningLayer):
    """Riemannian instance normalization: see :class:`gyrobn.torch.GyroInstanceNorm`.

    With ``track_running_stats`` they are in a state that the layer takes and returns; then
    ``momentum`` and ``inference`` are as in :class:`GyroBN`, as are ``use_bias``, ``use_scale`` and
    ``dtype``.

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
    >>> GyroInstanceNorm(M, 3, dtype=jnp.float32)(images).shape  # has none, and needs no state
    (4, 3, 5, 5, 2)
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        *,
        track_running_stats: bool = False,
        momentum: float = 0.99,
        inference: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        own = {"sets": True, "axis": None, "channels": channels}
        super().__init__(manifold, own, momentum, inference, track_running_stats, **options)


class GyroGroupNorm(NormalizationLayer):
    """Riemannian group normalization: see :class:`gyrobn.torch.GyroGroupNorm`.

    ``use_bias``, ``use_scale`` and ``dtype`` are as in :class:`GyroBN`. The layer needs no state.
    """

    def __init__(
        self, manifold: GyroSpace, groups: int, channels: int, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(manifold, grouped(groups, channels), **options)
