"""What the layers of Flax and Equinox share besides :mod:`gyrobn.normalization.layers`."""

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

__all__ = ["arguments", "forward", "settings_of", "start"]


def settings_of(momentum: float, axis_name: Any, *args: Any, **options: Any) -> Settings:
    """Check the arguments of a layer, and return them as settings."""
    check_number("momentum, the fraction of the running statistics to keep,", momentum, 0.0, 1.0)
    names = tuple(axis_name) if isinstance(axis_name, list) else axis_name
    return Settings.of(*args, axis_name=names, **options)


def arguments(bn: Any, dtype: Any) -> tuple["Model", dict[str, Any], Any]:
    """Return what an estimator knows, the options of a layer like it, and the layer's dtype."""
    from gyrobn.estimator.conversion import fitted

    model = fitted(bn)
    dtype = jax.dtypes.canonicalize_dtype(model.mean.dtype if dtype is None else dtype)
    return model, {"tol": model.tol, "max_iter": model.max_iter}, dtype


def start(layer: Any, model: "Model", dtype: Any) -> tuple[Learnt, Stats]:
    """Return parameters and running statistics of a layer that does what a model does."""
    from gyrobn.estimator.conversion import values_for

    wide = np.float64 if dtype == jnp.float64 else np.float32
    has = layer.bias is not None, layer.scale is not None
    values = values_for(layer.settings, model, *has, tracked=True, dtype=wide)
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
    """Do what ``layers.forward`` does, and gather the parts of a distributed batch."""
    check_floating(x, half=True)
    gather = None if settings.axis_name is None else partial(_gather, settings.axis_name)
    y, new = any_forward(settings, learnt, stats, x, weights, 1.0 - momentum, training, gather)
    assert new is not None
    return y, new


def _gather(axis_name: Any, x: Array) -> Array:
    """Join the parts of a batch.

    If ``shard_map`` checks which values vary between devices (``check_vma``), the result is
    declared not to vary. Without that check the derivative of the declaration would be wrong.
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
