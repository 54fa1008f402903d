"""From a layer of any framework to the estimator and back.

In evaluation a layer and an estimator are the same function of the running statistics, bias and
scale. An estimator does not hold what only training needs: momentum, ``steps``, ``mean_gradient``
and how the batch is distributed.

Layers import this module, and with it scikit-learn, only when they are converted.
"""

import json
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array, namespace_of
from gyrobn.estimator.files import (
    PLAIN,
    NewerVersion,
    geometry_from_json,
    geometry_to_json,
)
from gyrobn.estimator.models import (
    Model,
    in_dtype,
    number_or_array,
    of_estimator,
    settle,
    to_estimator,
)
from gyrobn.estimator.transformer import GyroBN
from gyrobn.manifolds import Product
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.dtypes import common_dtype
from gyrobn.normalization.layers import Learnt
from gyrobn.normalization.normalize import Stats, normalize, scale_for
from gyrobn.normalization.settings import LearntGeometry, Settings
from gyrobn.numerics.checks import host
from gyrobn.statistics.points import plain_geometry


def geometry_text(settings: LearntGeometry) -> str:
    """Return the geometry of a layer in JSON, for its state in a checkpoint."""
    return json.dumps(geometry_to_json(settings.geometry, registered=False))


def raw_shift(settings: LearntGeometry, text: str, raw: float | None) -> float:
    """Return what to add to a learnt curvature of a checkpoint, or refuse another geometry.

    ``settings`` are those of the layer to load into, ``text`` is the :func:`geometry_text` of the
    saved layer, ``raw`` as in :meth:`gyrobn.normalization.layers.Settings.raw_shift`.
    """
    own = json.loads(geometry_text(settings))
    try:
        value = json.loads(text)
        same = _with_defaults(value, settings.geometry, own) == own
        saved = settings.geometry if same else geometry_from_json(value)
    except NewerVersion as error:
        raise ValueError(f"the state {error}") from None
    except ValueError:  # a geometry of the user, or of a newer gyrobn
        raise settings.foreign(text) from None
    return settings.raw_shift(saved, raw)


def _with_defaults(value: Any, geometry: GyroSpace, own: Any) -> Any:
    """Return the description of a geometry with the options that an older version did not have.

    ``own`` describes the geometry of the layer, perhaps another one.
    """
    if not isinstance(value, dict) or value.get("name") != own["name"]:
        return value
    if isinstance(geometry, Product):
        factors = value.get("factors")
        if not isinstance(factors, list) or len(factors) != len(geometry.factors):
            return value
        each = zip(factors, geometry.factors, own["factors"], strict=True)
        return value | {"factors": [_with_defaults(*part) for part in each]}
    if value.keys() - own.keys():
        raise NewerVersion(f"the geometry {own['name']!r} has", value.keys() - own.keys())
    defaults = {key: one.default for key, one in geometry.options().items()}
    return {key: v if isinstance(v, PLAIN) else repr(v) for key, v in defaults.items()} | value


def fitted(bn: Any, domains: bool = False) -> Model:
    """Return what a fitted estimator knows; refuse one with domains where none are expected."""
    check_is_fitted(bn)
    model = of_estimator(bn)
    if model.output != "points":
        raise ValueError(
            f"a layer returns points, and this estimator has output={model.output!r}: call "
            "bn.set_params(output='points') first"
        )
    if domains and model.domains is None:
        raise ValueError("this estimator was fitted without domains: use GyroBN.from_estimator")
    if not domains and model.domains is not None:
        raise ValueError(
            f"this estimator was fitted with {len(model.domains)} domains: use "
            "gyrobn.torch.DomainGyroBN.from_estimator"
        )
    return model


def values_for(
    settings: Settings, model: Model, bias: bool, scale: bool, tracked: bool, dtype: Any
) -> tuple[Learnt, Stats]:
    """Return, in NumPy, the arrays of a layer that does what a model does.

    ``bias``, ``scale`` and ``tracked`` say whether the layer has a bias, a scale and running
    statistics; ``dtype`` is that of the layer, float32 or float64 of NumPy.
    """
    _check_formula(settings)
    if not tracked:
        raise ValueError("a layer without running statistics cannot hold those of an estimator")
    model_scale = np.asarray(scale_for(model.geometry, model.scale))
    missing = []
    if model.bias is not None and not bias:
        missing.append("bias")
    if np.any(model_scale != 1.0) and not scale:
        missing.append("scale")
    if missing:
        raise ValueError(
            f"this estimator has a {' and a '.join(missing)}: give the layer one, too "
            "(affine=True, or use_bias and use_scale)"
        )
    model, M = in_dtype(model, dtype), model.geometry
    b = np.zeros(M.dim)
    if model.bias is not None:
        b = M.to_normal(model.bias)
        with np.errstate(all="ignore"):
            off = M.dist(M.from_normal(b), model.bias) / (1.0 + M.norm(model.bias))
        if not np.all(off <= np.finfo(dtype).eps ** 0.5):
            raise ValueError(
                f"the bias is a point of {M!r} without coordinates at the identity, opposite to "
                "it or too far away: a layer cannot learn it; give a bias nearer to the identity"
            )
    b = np.broadcast_to(b, (*settings.channels, M.dim)).astype(dtype)
    s = np.broadcast_to(model_scale, settings.statistics_shape).astype(dtype)
    learnt = Learnt(b if bias else None, s if scale else None, None)
    return learnt, Stats(model.mean, model.var)


def layer_to_estimator(
    settings: Settings, learnt: Learnt, stats: Stats | None, like: Array | None, **more: Any
) -> Any:
    """Return the estimator that does what a layer does in evaluation.

    ``stats`` are the running statistics, None if the layer has none; ``like`` is as in
    :meth:`gyrobn.GyroBN.load`; ``more`` are other fields of the model.
    """
    _check_formula(settings)
    if stats is None:
        raise ValueError("a layer without running statistics cannot become an estimator")
    if settings.clamp is not None:
        raise ValueError(
            f"an estimator has no clamp, and this layer has clamp={settings.clamp}: what it does "
            "could not be kept"
        )
    if settings.axis != (0,):
        raise ValueError(
            f"an estimator has its samples along the first axis, and this layer along "
            f"{settings.axis}: load its state into a layer with axis=0, and rearrange the input"
        )
    dtype = common_dtype(*learnt, *stats)
    learnt = Learnt(*(None if a is None else namespace_of(a).astype(a, dtype) for a in learnt))
    geometry = plain_geometry(settings.manifold(learnt.raw_curvature))
    mean, variance = settings.running(geometry, Stats(*(_array_of_layer(a) for a in stats)))
    if mean.dtype == np.float64 and np.all(geometry.contains(mean.astype(np.float32))):
        mean = settle(geometry, mean)  # the layer was trained in float32 and then converted
    bias, scale = None, 1.0
    if learnt.bias is not None:
        bias = geometry.from_normal(_array_of_layer(learnt.bias).astype(np.float64))
    if learnt.scale is not None:
        scale = number_or_array(_array_of_layer(learnt.scale))
    batch = mean.shape[: mean.ndim - len(geometry.point_shape)]
    model = Model(
        geometry=geometry,
        manifold=geometry,
        mean=mean,
        var=variance,
        weight=np.zeros(batch, mean.dtype),
        n_iter=np.zeros(batch, np.int32),
        converged=np.zeros(batch, np.bool_),
        bias=bias,
        scale=scale,
        eps=settings.eps,
        tol=settings.tol,
        max_iter=settings.max_iter,
        **more,
    )
    return to_estimator(GyroBN, model, like)


def _check_formula(settings: Settings) -> None:
    if settings.formula is not normalize:
        raise ValueError("only GyroBN layers and the estimator convert, not those of the baselines")


def _array_of_layer(x: Array) -> Any:
    """Return an array of a layer as a NumPy array, if an estimator can compute in its dtype."""
    xp = namespace_of(x)
    if x.dtype not in (xp.float32, xp.float64):
        raise ValueError(
            f"an estimator computes in float32 or float64, and this layer holds {x.dtype}: "
            "convert the layer first"
        )
    return np.array(host(x))
