"""What the layers for Flax and Equinox share beside :mod:`gyrobn.normalization.layers`."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import all_gather

from gyrobn.normalization.layers import Learnt, Settings
from gyrobn.normalization.layers import forward as any_forward
from gyrobn.normalization.normalize import Stats
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.checks import check_number

if TYPE_CHECKING:
    from gyrobn.estimator.models import Model

__all__ = ["dtype_for", "first_learnt", "first_stats", "forward", "settings_of", "start"]


def settings_of(momentum: float, axis_name: Any, *args: Any, **options: Any) -> Settings:
    """Check what a layer is built with."""
    check_number("momentum, the fraction of the running statistics to keep,", momentum, 0.0, 1.0)
    names = tuple(axis_name) if isinstance(axis_name, list) else axis_name
    return Settings.of(*args, axis_name=names, **options)


def first_learnt(settings: Settings, bias: bool, scale: bool, dtype: Any) -> Learnt:
    """Return what is learnt, as it is at first."""
    return Learnt(
        jnp.zeros((*settings.channels, settings.geometry.dim), dtype) if bias else None,
        jnp.ones(settings.statistics_shape, dtype) if scale else None,
        jnp.asarray(settings.initial_curvature, dtype) if settings.learn_curvature else None,
    )


def first_stats(settings: Settings, dtype: Any) -> Stats:
    """Return the running statistics at first: the identity and one, in float32 at least."""
    dtype = jnp.promote_types(dtype, jnp.float32)
    e = settings.geometry.origin(jnp.zeros((), dtype))
    mean = jnp.broadcast_to(e, (*settings.channels, *e.shape))
    return Stats(mean, jnp.ones(settings.statistics_shape, dtype))


def dtype_for(model: "Model", dtype: Any) -> Any:
    """Return the dtype for a layer that is to do what a model does."""
    return jax.dtypes.canonicalize_dtype(model.mean.dtype if dtype is None else dtype)


def start(
    settings: Settings, model: "Model", bias: bool, scale: bool, dtype: Any
) -> tuple[Learnt, Stats]:
    """Return bias, scale and running statistics of a layer that is to do what a model does."""
    from gyrobn.estimator.conversion import values_for

    wide = np.float64 if dtype == jnp.float64 else np.float32
    values = values_for(settings, model, bias, scale, tracked=True, dtype=wide)
    learnt, stats = jax.tree.map(jnp.asarray, values)
    return jax.tree.map(lambda a: a.astype(dtype), learnt), stats


def forward(
    settings: Settings,
    learnt: Learnt,
    stats: Stats,
    x: Array,
    weights: Array | None,
    momentum: float,
    training: bool,
) -> tuple[Array, Stats]:
    """Return what ``layers.forward`` does, with the samples of all parts of a batch."""
    check_floating(x, half=True)
    together = (
        {} if settings.axis_name is None else {"gather": partial(_gather, settings.axis_name)}
    )
    y, new = any_forward(settings, learnt, stats, x, weights, 1.0 - momentum, training, **together)
    assert new is not None
    return y, new


def _gather(axis_name: Any, x: Array) -> Array:
    """Put the parts of a batch together.

    Where ``shard_map`` checks which values vary from device to device (``check_vma``), it is told
    that these do not. Without the check the derivative of that would be wrong.
    """
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    kind = getattr(x, "aval", None)
    kind = getattr(kind, "mat", kind)  # JAX 0.10 has "mat.varying", others "vma" or nothing
    varies = getattr(kind, "varying", getattr(kind, "vma", ()))
    told = {"to": "invarying"} if any(name in varies for name in names) else {}
    try:
        y: Array = all_gather(x, axis_name, axis=0, tiled=True, **told)
        return y
    except TypeError as error:
        if not told:
            raise
        raise NotImplementedError(
            f"JAX {jax.__version__} cannot gather a batch under shard_map and check which values "
            "vary: give shard_map check_vma=False, or upgrade JAX"
        ) from error
