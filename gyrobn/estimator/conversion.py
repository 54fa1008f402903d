"""From a fitted estimator to a layer of any framework, and the geometry of a layer in its state.

In evaluation a layer and an estimator are the same function of the statistics, bias and scale.
Layers import this module, and with it scikit-learn, only when they need it.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.estimator.files import (
    NewerVersion,
    converted,
    geometry_from_json,
    geometry_to_json,
    name_of,
)
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.rebased import seen_from
from gyrobn.normalization.layers import Learnt, LearntGeometry, Settings
from gyrobn.normalization.normalize import Stats, scale_for


def geometry_text(settings: LearntGeometry) -> str:
    """Return the geometry of a layer in JSON, for its state in a checkpoint."""
    return json.dumps(geometry_to_json(settings.geometry, registered=False))


def raw_shift(
    settings: LearntGeometry, text: str, raw: Sequence[float] | None
) -> tuple[float, ...]:
    """Return what to add to learnt curvatures of a checkpoint, or refuse another geometry.

    ``settings`` are those of the layer to load into, ``text`` is the :func:`geometry_text` of the
    saved layer, ``raw`` as in :meth:`gyrobn.normalization.layers.Settings.raw_shift`.
    """
    own = settings.geometry
    try:
        same = text == geometry_text(settings)
        saved = own if same else geometry_from_json(json.loads(text), _classes(own))
    except NewerVersion as error:
        raise ValueError(f"the state {error}") from None
    except ValueError:  # a geometry of the user, or of a newer gyrobn
        raise settings.foreign(text) from None
    return settings.raw_shift(saved, raw)


def _classes(geometry: GyroSpace) -> dict[str, type[GyroSpace]]:
    """Return the classes of a geometry and its factors, by name: they need not be registered."""
    found = {name_of(type(geometry)): type(geometry)}
    for part in getattr(geometry, "factors", ()):
        found |= _classes(part)
    return found


def fitted(bn: Any, domains: bool = False) -> Any:
    """Return a fitted estimator in NumPy; refuse one with domains where none are expected."""
    check_is_fitted(bn)
    if bn.output != "points":
        raise ValueError(
            f"a layer returns points, and this estimator has output={bn.output!r}: call "
            "bn.set_params(output='points') first"
        )
    if domains and bn.domains_ is None:
        raise ValueError("this estimator was fitted without domains: use GyroBN.from_estimator")
    if not domains and bn.domains_ is not None:
        raise ValueError(
            f"this estimator was fitted with {len(bn.domains_)} domains: use "
            "gyrobn.torch.DomainGyroBN.from_estimator"
        )
    return converted(bn)


def values_for(
    settings: Settings, bn: Any, bias: bool, scale: bool, tracked: bool, dtype: Any
) -> tuple[Learnt, Stats]:
    """Return, in NumPy, the arrays of a layer that does what an estimator does.

    ``bias``, ``scale`` and ``tracked`` say whether the layer has a bias, a scale and running
    statistics; ``dtype`` is that of the layer, float32 or float64 of NumPy.
    """
    if not tracked:
        raise ValueError("a layer without running statistics cannot hold those of an estimator")
    bn = converted(bn, np.empty((), dtype))
    M = seen_from(bn.manifold_, bn.reference_, bn.mean_)
    s = np.asarray(1.0 if bn.scale is None else scale_for(M, bn.scale))
    needed = {"bias": bn.bias is not None and not bias, "scale": np.any(s != 1.0) and not scale}
    missing = [name for name, lacks in needed.items() if lacks]
    if missing:
        raise ValueError(
            f"this estimator has a {' and a '.join(missing)}: give the layer one, too "
            "(affine=True, or use_bias and use_scale)"
        )
    b = np.zeros(M.dim)
    if bn.bias is not None:
        b = M.to_normal(bn.bias)
        with np.errstate(all="ignore"):
            off = M.dist(M.from_normal(b), bn.bias) / (1.0 + M.norm(bn.bias))
        if not np.all(off <= np.finfo(dtype).eps ** 0.5):
            raise ValueError(
                f"the bias is a point of {M!r} without coordinates at the identity, antipodal to "
                "it or too far away: a layer cannot learn it; give a bias nearer to the identity"
            )
    b = np.broadcast_to(b, (*settings.channels, M.dim)).astype(dtype)
    s = np.broadcast_to(s, settings.statistics_shape).astype(dtype)
    return Learnt(b if bias else None, s if scale else None, None), Stats(bn.mean_, bn.var_)
