"""What the layers for Flax and Equinox share beside :mod:`gyrobn.layers`."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import all_gather

from gyrobn.arrays import check_floating
from gyrobn.checks import check_number
from gyrobn.layers import Learnt, Settings
from gyrobn.layers import forward as any_forward
from gyrobn.normalize import Stats

if TYPE_CHECKING:
    from gyrobn.models import Model

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
    """Return the running statistics before the first batch: the identity and one."""
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
    from gyrobn.conversion import values_for

    wide = np.float64 if dtype == jnp.float64 else np.float32
    values = values_for(settings, model, bias, scale, tracked=True, dtype=wide)
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), values)  # type: ignore[no-any-return]


def forward(
    settings: Settings,
    learnt: Learnt,
    stats: Stats,
    x: Array,
    weights: Array | None,
    momentum: float,
    training: bool,
) -> tuple[Array, Stats]:
    """Return :func:`gyrobn.layers.forward` in one dtype; the new statistics keep theirs."""
    check_floating(x, half=True)
    arrays = [a for a in learnt if a is not None]
    # Half precision would leave the geometry three digits.
    dtype = jnp.promote_types(jnp.result_type(x, *arrays, *stats), jnp.float32)
    x, learnt, running = jax.tree.map(lambda a: a.astype(dtype), (x, learnt, stats))
    together = {}
    if settings.axis_name is not None:
        together["gather"] = partial(all_gather, axis_name=settings.axis_name, axis=0, tiled=True)
    y, new = any_forward(
        settings, learnt, running, x, weights, 1.0 - momentum, training, **together
    )
    return y, jax.tree.map(lambda a, old: a.astype(old.dtype), new, stats)
