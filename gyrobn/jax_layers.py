"""What the layers of Flax and Equinox share besides :mod:`gyrobn.normalization.layers`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gyrobn.backends.jax import auto_sharded, varies, varying
from gyrobn.normalization.layers import Learnt, Settings, State
from gyrobn.normalization.layers import forward as any_forward
from gyrobn.normalization.normalize import Stats
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.checks import check_number
from gyrobn.statistics.samples import Group


def check_momentum(momentum: Any) -> float:
    """Check the fraction of the running statistics to keep, and return it."""
    name = "momentum, the fraction of the running statistics to keep,"
    return check_number(name, momentum, 0.0, 1.0)


def arguments(bn: Any, dtype: Any) -> tuple[Any, dict[str, Any], Any]:
    """Return an estimator in NumPy, the options of a layer like it, and the layer's dtype."""
    from gyrobn.estimator.conversion import fitted
    from gyrobn.estimator.validation import channels_of

    model = fitted(bn)
    dtype = jax.dtypes.canonicalize_dtype(model.var_.dtype if dtype is None else dtype)
    given = {"tol": model.tol, "max_iter": model.max_iter, "channels": channels_of(model)}
    given["reference"] = model.reference_
    given |= {"scale": None} if model.scale is None else {}
    return model, given, dtype


def start(layer: Any, model: Any, dtype: Any) -> tuple[Learnt, Stats]:
    """Return parameters and running statistics of a layer that does what an estimator does."""
    from gyrobn.estimator.conversion import values_for

    wide = np.float64 if dtype == jnp.float64 else np.float32
    has = layer.bias is not None, layer.scale is not None
    values = values_for(layer.settings, model, *has, tracked=True, dtype=wide)
    learnt, stats = jax.tree.map(jnp.asarray, values)
    return jax.tree.map(lambda a: a.astype(dtype), learnt), stats


def forward(
    settings: Settings,
    learnt: Learnt,
    state: State,
    x: Array,
    weights: Array | None,
    momentum: float = 1.0,
    training: bool = True,
) -> tuple[Array, State]:
    """Do what ``layers.forward`` does, with statistics of the batch on all devices of an axis."""
    check_floating(x, half=True, complex_points=settings.geometry.complex_points)
    name, groups = settings.axis_name, settings.axis_index_groups
    alone: Any = ()  # one example under a named axis has no axis of the batch
    if name is not None and x.shape == (*settings.channels, *settings.geometry.point_shape):
        alone = (None,) * len(settings.axis or ())
        x, weights = x[alone], None if weights is None else weights[alone]
    typed = name is not None and training and bool(varies(x))
    group = None
    if name is not None and training and _size(name, groups) != 1:
        group = Group((name, groups))
    if typed:
        learnt = jax.tree.map(lambda a: varying(a, name), learnt)

    if callable(settings.train_momentum):
        raise TypeError("train_momentum is a number in layers of JAX, which count no batches")
    rates = 1.0 - momentum, training, group, settings.train_momentum

    def run(x: Array, learnt: Learnt, state: State, weights: Array | None) -> Any:
        return any_forward(settings, learnt, state, x, weights, *rates)

    y, new = auto_sharded(run, x, learnt, state, weights)
    if typed and groups is None:  # they are equal on all devices, and JAX shall know that
        new = jax.tree.map(partial(jax.lax.pmax, axis_name=name), new)
    return y[(0,) * len(alone)] if alone else y, new


def like(dtype: Any) -> Array:
    """Return an array of a dtype; JAX's default by default."""
    return jnp.zeros((), jnp.result_type(float) if dtype is None else dtype)


def _size(name: Any, groups: Any) -> int:
    """Return how many devices share a batch, or 0 if there is no such axis."""
    if groups is not None:
        return len(groups[0])
    try:
        return int(jax.lax.psum(1, name))  # type: ignore[no-untyped-call]
    except NameError:  # the first sum raises it again, if the input is right
        return 0
