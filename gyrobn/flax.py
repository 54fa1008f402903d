"""GyroBN for Flax NNX: layers that hold parameters and running statistics.

They follow the conventions of ``flax.nnx.BatchNorm``; the mathematics is in
:mod:`gyrobn.normalization.normalize`. What is not said here is as in :mod:`gyrobn.torch`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self, Unpack

import jax.numpy as jnp
from flax import nnx
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
from gyrobn.normalization.normalize import Stats
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
    """The options of every layer of Flax."""

    epsilon: float
    use_bias: bool
    use_scale: bool
    param_dtype: Any
    rngs: nnx.Rngs | None


class NormalizationLayer(nnx.Module):
    """A layer with a learnable bias, scale and curvature, and perhaps running statistics.

    A curvature that is an ``nnx.Variable`` belongs to all modules that hold it.
    """

    settings: Any

    def __init__(
        self,
        manifold: GyroSpace,
        own: dict[str, Any],
        momentum: float = 0.99,
        use_running_average: bool = False,
        track_running_stats: bool = False,
        /,
        *,
        epsilon: float = 1e-5,
        use_bias: bool = True,
        use_scale: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[Options],
    ) -> None:
        manifold, shared, owners = separated(manifold, _number)
        # a variable that several modules hold is one variable to NNX
        self.shared_curvature = nnx.List(owners) if owners else None
        own = own | shared
        self.settings = Settings.of(type(self).__name__, manifold, options, eps=epsilon, **own)
        self.momentum = check_momentum(momentum)
        self.use_running_average = use_running_average
        learnt, stats = initial(self.settings, like(param_dtype), use_bias, use_scale)
        self.bias, self.scale, self.raw_curvature = (
            None if value is None else nnx.Param(value, geometry=manifold) for value in learnt[:3]
        )
        state = initial_state(self.settings, stats, options.get("reference"), track_running_stats)
        kept = *(state.running or (None,) * 2), *(state.training or (None,) * 2), state.reference
        self.mean, self.var, self.training_mean, self.training_var, self.reference = (
            None if value is None else nnx.BatchStat(value, geometry=manifold) for value in kept
        )

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        manifold: GyroSpace = self.settings.manifold(*self._learnt[2:4])
        return manifold

    @property
    def _learnt(self) -> Learnt:
        """The parameters. Each variable carries its geometry, also through ``nnx.update``."""
        own = self.settings.geometry
        shift: tuple[float, ...] = ()
        learnt = self.bias, self.scale, self.raw_curvature
        for variable in (*learnt, *self._kept):
            saved = own if variable is None else variable.get_metadata().get("geometry", own)
            shift = self.settings.raw_shift(saved) or shift
        bias, scale, raw = (None if variable is None else variable[...] for variable in learnt)
        if raw is not None and shift:
            raw = raw + jnp.asarray(shift, raw.dtype).reshape(raw.shape)
        owners, shared = self.shared_curvature, None
        if owners is not None:
            shared = jnp.stack([own[...].reshape(()) for own in owners])
        return Learnt(bias, scale, raw, shared)

    @property
    def check_input(self) -> str | bool:
        """Which batches to check for samples off the manifold: ``"first"``, True or False."""
        which: str | bool = self.settings.check_input
        return which

    @check_input.setter
    def check_input(self, value: str | bool) -> None:
        self.settings = self.settings.checking(value)

    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, weights: Array | None = None
    ) -> Array:
        """Normalize a batch, or every set of it.

        Parameters
        ----------
        x, weights
            As in :mod:`gyrobn.torch`.
        use_running_average
            Overrules that of the layer, if it has running statistics.
        """
        frozen = self.use_running_average if use_running_average is None else use_running_average
        given = self.settings, self._learnt, self._state, x, weights, self.momentum
        y, new = forward(*given, training=not frozen)
        if not frozen:
            self._store(new)
        return y

    @property
    def _kept(self) -> tuple[Any, ...]:
        """The variables of the state."""
        return self.mean, self.var, self.training_mean, self.training_var, self.reference

    @property
    def _state(self) -> State:
        mean, var, own_mean, own_var, reference = (
            None if variable is None else variable[...] for variable in self._kept
        )
        running = None if mean is None else Stats(mean, var)
        return State(running, None if own_mean is None else Stats(own_mean, own_var), reference)

    def _store(self, state: State) -> None:
        """Replace the running statistics and the reference."""
        new = *(state.running or (None,) * 2), *(state.training or (None,) * 2), state.reference
        for variable, value in zip(self._kept, new, strict=True):
            if variable is not None and value is not None:
                variable[...] = value

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Let ``nnx.view`` set the mode."""
        if use_running_average is not None:
            self.use_running_average = use_running_average


def _number(curvature: Any) -> float:
    """Return the value of a curvature that others own."""
    if not isinstance(curvature, nnx.Variable):
        raise ValueError(
            "the curvature of a layer must be a number (with learn_curvature=True to learn it) or "
            f"an nnx.Variable, got {curvature!r}"
        )
    return float(curvature[...])


class GyroBN(NormalizationLayer):
    r"""Riemannian batch normalization: see :class:`gyrobn.torch.GyroBN`.

    ``axis`` is the batch axis here, and that of the features in ``nnx.BatchNorm``.

    Parameters
    ----------
    manifold, channels, axis, mean_gradient, steps, learn_curvature, clamp, scale, reference,
    train_momentum, tol, max_iter
        As in :class:`gyrobn.torch.GyroBN`.
    use_running_average
        Whether to use the running statistics; :meth:`train` and :meth:`eval` switch it, and the
        call can overrule it.
    momentum
        Fraction of the running statistics to keep at a new batch (one minus torch's ``momentum``).
        They start at the identity and one.
    epsilon
        Added to the variance.
    use_bias, use_scale
        Whether bias and scale are learnt.
    axis_name
        Name or names of the axes (of ``vmap``, ``pmap``, ``shard_map``) over which the batch is
        distributed. The statistics are those of the whole batch. Each evaluation of the mean is one
        ``psum`` of a few numbers per channel, and no samples are sent. Under plain ``jit`` a
        sharded batch is one batch, and needs no name.
    axis_index_groups
        Groups of indices of that axis, as in Flax's ``nnx.BatchNorm``: the devices of each group
        share one batch. JAX supports them in ``pmap``, and in ``shard_map`` with
        ``check_vma=False``.
    check_input
        As in :class:`gyrobn.torch.GyroBN`. Inside ``jit`` and ``vmap`` no error can be raised: with
        True, the output of a sample that is not on the manifold is NaN.
    param_dtype
        Of the parameters and the running statistics. The statistics are in float32 at least. The
        computation is in the wider dtype of the layer and the input, and in float32 at least; half
        precision in gives half precision out.
    rngs
        Not used, since nothing starts at random; every Flax layer accepts it.

    Attributes
    ----------
    bias, scale, raw_curvature : nnx.Param, or None
        As in :class:`gyrobn.torch.GyroBN`.
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
        axis: int | Sequence[int] = 0,
        axis_name: Any = None,
        axis_index_groups: Any = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        own: dict[str, Any] = {"channels": channels, "axis": axis, "axis_name": axis_name}
        own["axis_index_groups"] = axis_index_groups
        own["remedy"] = "the running statistics, with layer.eval()"
        super().__init__(manifold, own, momentum, use_running_average, True, **options)

    @classmethod
    def from_estimator(cls, bn: Any, *, param_dtype: Any = None, **options: Any) -> Self:
        """Return a layer that does in evaluation what a fitted :class:`gyrobn.GyroBN` does.

        Parameters
        ----------
        bn
            The estimator, fitted without domains.
        param_dtype
            As in the layer; that of the statistics by default, if JAX is set to it.
        **options
            Other arguments of the layer; epsilon, tol and max_iter are the estimator's by default.
        """
        model, given, dtype = arguments(bn, param_dtype)
        options = {"epsilon": model.eps, "param_dtype": dtype} | given | options
        layer = cls(model.manifold_, **options)
        learnt, stats = start(layer, model, dtype)
        for own, value in ((layer.bias, learnt.bias), (layer.scale, learnt.scale)):
            if own is not None:
                own[...] = value
        layer._store(State(stats, stats))
        return layer


class DomainGyroBN(NormalizationLayer):
    """GyroBN with statistics per domain, and one scale: see :class:`gyrobn.torch.DomainGyroBN`.

    Where ``domains`` are traced, as inside ``jit``, every batch has statistics of all domains, and
    no error can be raised: a sample is NaN if its domain is out of range, if it is the only one of
    its domain in training, or if evaluation finds no statistics.

    Parameters
    ----------
    manifold, channels, domain_bias, mean_gradient, steps, learn_curvature, clamp, scale, reference,
    train_momentum, tol, max_iter
        As in :class:`gyrobn.torch.DomainGyroBN`; ``train_momentum`` is a number.
    domains
        Number of domains.
    use_running_average, momentum, epsilon, use_bias, use_scale, check_input, param_dtype, rngs
        As in :class:`GyroBN`.

    Attributes
    ----------
    mean, var, counts : nnx.BatchStat
        The running statistics of each domain, and the number of batches in them.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> x = M.random(16, rng=0, like=jnp.zeros((), jnp.float32))
    >>> layer = DomainGyroBN(M, domains=3)
    >>> y = nnx.jit(lambda layer, x, k: layer(x, k))(layer, x, jnp.arange(16) % 2)
    >>> y.shape, layer.mean.shape, layer.counts[...].tolist()
    ((16, 2), (3, 2), [1, 1, 0])
    """

    def __init__(
        self,
        manifold: GyroSpace,
        domains: int,
        channels: int | Sequence[int] = (),
        *,
        domain_bias: bool = False,
        use_running_average: bool = False,
        momentum: float = 0.99,
        **options: Unpack[LayerOptions],
    ) -> None:
        domains = check_integer("domains", domains, 1)
        own = {"channels": channels, "remedy": "the running statistics, with layer.eval()"}
        super().__init__(manifold, own, momentum, use_running_average, True, **options)
        for name in ("mean", "var", "training_mean", "training_var", *["bias"] * domain_bias):
            one = getattr(self, name)
            if one is not None:
                setattr(self, name, one.replace(per_domain(domains, one[...])))
            elif name == "bias":
                raise ValueError("domain_bias needs a bias: leave out use_bias=False")
        self.counts = nnx.BatchStat(jnp.zeros(domains, jnp.int32))

    def __call__(  # type: ignore[override]
        self,
        x: Array,
        domains: Array,
        use_running_average: bool | None = None,
        *,
        weights: Array | None = None,
    ) -> Array:
        """Normalize each sample with the statistics of its domain.

        Parameters
        ----------
        x, domains, weights
            As in :class:`gyrobn.torch.DomainGyroBN`.
        use_running_average
            Overrules that of the layer.
        """
        frozen = self.use_running_average if use_running_average is None else use_running_average
        given = self.settings, self._learnt, DomainState(self._state, self.counts[...]), x, domains
        y, new = domain_forward(*given, weights, self.momentum, training=not frozen)
        if not frozen:
            self._store(new.state)
            self.counts[...] = new.counts
        return y


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

    ``epsilon``, ``use_bias``, ``use_scale``, ``param_dtype`` and ``rngs`` are as in
    :class:`GyroBN`.

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

    ``epsilon``, ``use_bias``, ``use_scale``, ``param_dtype`` and ``rngs`` are as in
    :class:`GyroBN`.
    """

    _centre = False


class GyroInstanceNorm(NormalizationLayer):
    """Riemannian instance normalization: see :class:`gyrobn.torch.GyroInstanceNorm`.

    ``use_running_average`` is for layers with ``track_running_stats``; it, ``momentum``,
    ``epsilon``, ``use_bias``, ``use_scale``, ``param_dtype`` and ``rngs`` are as in
    :class:`GyroBN`.

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
        **options: Unpack[LayerOptions],
    ) -> None:
        own = {"sets": True, "axis": None, "channels": channels}
        running = momentum, use_running_average, track_running_stats
        super().__init__(manifold, own, *running, **options)


class GyroGroupNorm(NormalizationLayer):
    """Riemannian group normalization: see :class:`gyrobn.torch.GyroGroupNorm`.

    ``epsilon``, ``use_bias``, ``use_scale``, ``param_dtype`` and ``rngs`` are as in
    :class:`GyroBN`.
    """

    def __init__(
        self, manifold: GyroSpace, groups: int, channels: int, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__(manifold, grouped(groups, channels), **options)
