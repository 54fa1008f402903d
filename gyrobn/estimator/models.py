"""What a fitted GyroBN knows, in NumPy: files hold it, and frameworks exchange it.

The constructor of :class:`Model` checks everything, so a model is as sound as a fitted estimator,
whether it comes from an estimator, a layer or a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.estimator.labels import as_labels
from gyrobn.estimator.validation import GEOMETRY, affine_for, check_parameters
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.online import OnlineStats
from gyrobn.numerics.checks import check_integer, check_number, host
from gyrobn.statistics.points import on_manifold, plain_geometry

PARAMETERS = ("eps", "tol", "max_iter", "on_invalid", "unseen", "adapt_rate", "prior_strength")
"""The parameters of the estimator that are plain values."""

Estimator = TypeVar("Estimator")
Values = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Model:
    """The parameters and attributes of a fitted estimator, checked.

    The fields have the names of the parameters and attributes of :class:`gyrobn.GyroBN`, without
    the last underscore. The statistics of several domains have a leading axis.
    """

    geometry: GyroSpace
    """The geometry, its parameters plain numbers."""
    manifold: GyroSpace | str
    """The parameter of the estimator: a geometry, or its name."""
    mean: Values
    """Shape (*channels, *point_shape), float32 or float64."""
    var: Values
    """Shape (*channels,), or (*channels, blocks), in the dtype of the mean."""
    weight: Values
    """Sum of the weights of the samples, shape (*channels,), in the dtype of the mean; zero if it
    is not known."""
    n_iter: Values
    """Iterations that the mean took, shape (*channels,), int32."""
    converged: Values
    """Whether the mean met the tolerance, shape (*channels,), bool."""
    n_samples_seen: int = 0
    """Number of samples seen; zero if it is not known."""
    n_projected: int = 0
    """Number of points that were moved onto the manifold."""
    bias: Values | None = None
    """A point, or one per channel, float64."""
    scale: float | str | Values = 1.0
    eps: float = 1e-5
    tol: float | None = None
    max_iter: int = 64
    on_invalid: str = "raise"
    unseen: str = "error"
    adapt_rate: float = 0.1
    prior_strength: float = 4.0
    output: str = "points"
    metric: str | None = None
    curvature: float | None = None
    theta: float | None = None
    representation: str | None = None
    domains: Values | None = None
    """Labels, integers or strings, sorted."""
    feature_names: Values | None = None
    """Names of the columns of a table, strings."""
    online: Values | None = None
    """Labels, sorted, of new domains that ``unseen="online"`` follows; the next three have an axis
    of these in front."""
    online_count: Values | None = None
    """Number of samples, integers."""
    online_mean: Values | None = None
    online_var: Values | None = None

    def __post_init__(self) -> None:
        _check_geometry(self)
        _check_parameters(self)
        _check_labels(self)
        _check_statistics(self)

    @property
    def lead(self) -> tuple[int, ...]:
        """Shape of the axis of the domains; empty without domains."""
        return () if self.domains is None else self.domains.shape

    @property
    def channels(self) -> tuple[int, ...]:
        """Shape of the channels."""
        return self.mean.shape[len(self.lead) : self.mean.ndim - len(self.geometry.point_shape)]


def of_estimator(bn: Any) -> Model:
    """Return what a fitted estimator knows.

    >>> from gyrobn import GyroBN, PoincareBall
    >>> model = of_estimator(GyroBN("poincare_ball").fit(PoincareBall(2).random(10, 3, rng=0)))
    >>> model.geometry, model.manifold, model.channels
    (PoincareBall(n=2, curvature=-1.0), 'poincare_ball', (3,))
    """
    geometry = plain_geometry(bn.manifold_)
    mean = host(bn.mean_)
    lead = mean.shape[: mean.ndim - len(geometry.point_shape)]
    named = bn.manifold if isinstance(bn.manifold, str) else plain_geometry(bn.manifold)
    names = getattr(bn, "feature_names_in_", None)
    return Model(
        geometry=geometry,
        manifold=named,
        mean=mean,
        var=host(bn.var_),
        weight=host(bn.weight_sum_),
        n_iter=_on(lead, bn.n_iter_, np.int32),
        converged=_on(lead, bn.converged_, np.bool_),
        n_samples_seen=bn.n_samples_seen_,
        n_projected=bn.n_projected_,
        bias=None if bn.bias is None else host(bn.bias).astype(np.float64),
        scale=number_or_array(bn.scale),
        domains=bn.domains_,
        feature_names=None if names is None else np.asarray(names, dtype=np.str_),
        output=bn.output,
        **_of_online(bn.online_),
        **{name: number_or_array(getattr(bn, name)) for name in (*PARAMETERS, *GEOMETRY)},
    )


def to_estimator(cls: type[Estimator], model: Model, like: Array | None = None) -> Estimator:
    """Return the estimator of a model, of class :class:`gyrobn.GyroBN` or one derived from it.

    The statistics get the library, dtype and device of ``like``; by default they are NumPy arrays
    in the dtype of the model.
    """
    like = np.empty((), model.mean.dtype) if like is None else like
    xp, shim = namespace_of(like), backend_of(like)
    if like.dtype not in (xp.float32, xp.float64):
        raise ValueError(f"like must be an array of float32 or float64, got {like.dtype}")
    model = in_dtype(model, np.float32 if like.dtype == xp.float32 else np.float64)

    def put(values: Any, dtype: Any) -> Array:
        # first in the dtype of like: so every library puts it on the device of like
        return xp.astype(shim.from_numpy(values.copy(), like), dtype)

    given = ("manifold", "bias", "scale", "output", *PARAMETERS, *GEOMETRY)
    values = {name: getattr(model, name) for name in given}
    bn: Any = cls(**values)
    bn.manifold_, bn.domains_ = model.geometry, model.domains
    bn.online_ = {
        label: OnlineStats(int(count), put(mean, like.dtype), put(var, like.dtype))
        for label, count, mean, var in _online_rows(model)
    }
    bn.mean_, bn.var_ = put(model.mean, like.dtype), put(model.var, like.dtype)
    several = model.n_iter.ndim > 0
    bn.n_iter_ = put(model.n_iter, xp.int32) if several else int(model.n_iter)
    bn.converged_ = put(model.converged, xp.bool) if several else bool(model.converged)
    bn.weight_sum_ = put(model.weight, like.dtype)
    bn.n_samples_seen_, bn.n_projected_ = model.n_samples_seen, model.n_projected
    bn.n_features_in_ = model.mean.shape[len(model.lead)]
    if model.feature_names is not None:
        bn.feature_names_in_ = model.feature_names.astype(object)
    return bn  # type: ignore[no-any-return]


def in_dtype(model: Model, dtype: Any) -> Model:
    """Return a model with its statistics in another precision.

    A point to the digits of float32 may be off the manifold to those of float64: it is projected.

    >>> import numpy as np
    >>> from gyrobn import GyroBN, Sphere
    >>> bn = GyroBN(Sphere(2)).fit(Sphere(2).random(10, rng=2, spread=0.5).astype(np.float32))
    >>> model = in_dtype(of_estimator(bn), np.float64)
    >>> [bool(Sphere(2).contains(x)) for x in (bn.mean_.astype(np.float64), model.mean)]
    [False, True]
    """
    if model.mean.dtype == dtype:
        return model
    bias = model.bias
    with np.errstate(all="ignore"):  # what leaves the range is refused by the new model
        if bias is not None and dtype == np.float64:
            bias = settle(model.geometry, bias)
        mean, var, weight = (a.astype(dtype) for a in (model.mean, model.var, model.weight))
        mean = settle(model.geometry, mean)
        changed = {"mean": mean, "var": var, "weight": weight, "bias": bias}
        if model.online_mean is not None and model.online_var is not None:
            changed["online_mean"] = settle(model.geometry, model.online_mean.astype(dtype))
            changed["online_var"] = model.online_var.astype(dtype)
        return replace(model, **changed)


def settle(geometry: GyroSpace, points: Array) -> Array:
    """Return the points; those that are off the manifold are projected."""
    good = geometry.contains(points)[(..., *(None,) * len(geometry.point_shape))]
    return namespace_of(points).where(good, points, geometry.project(points))


# ---------------------------------------------------------------------- reading an estimator


def _on(shape: tuple[int, ...], value: Any, dtype: Any) -> Any:
    return np.broadcast_to(host(value), shape).astype(dtype)


def number_or_array(value: Any) -> Any:
    """Return None and words as they are, a number as a plain value, else an array of float64."""
    if value is None or isinstance(value, str):
        return value
    array = host(value)
    return array.item() if array.ndim == 0 else array.astype(np.float64)


def _of_online(online: dict[Any, OnlineStats]) -> dict[str, Any]:
    """Return the fields of the domains that are followed, if there are any."""
    labels = sorted(online)
    if not labels:
        return {}
    states = [online[label] for label in labels]
    return {
        "online": as_labels(labels),
        "online_count": np.asarray([state.count for state in states], dtype=np.int64),
        "online_mean": np.stack([host(state.mean) for state in states]),
        "online_var": np.stack([host(state.var) for state in states]),
    }


def _online_rows(model: Model) -> Iterator[tuple[Any, ...]]:
    """Yield label, count, mean and variance of each domain that is followed."""
    rows = (model.online_count, model.online_mean, model.online_var)
    labels = [] if model.online is None else model.online.tolist()
    return zip(labels, *(() if a is None else a for a in rows), strict=True)


# ---------------------------------------------------------------------- checks


def _check_geometry(model: Model) -> None:
    if not isinstance(model.geometry, GyroSpace):
        raise ValueError(f"geometry must be a GyroSpace, got {model.geometry!r}")
    manifold = model.manifold
    named = isinstance(manifold, str) and manifold in REGISTRY
    if not named and not isinstance(manifold, GyroSpace):
        raise ValueError(f"manifold must be a geometry or the name of one, got {manifold!r}")


def _check_parameters(model: Model) -> None:
    check_parameters(model)
    check_integer("n_samples_seen", model.n_samples_seen, 0)
    check_integer("n_projected", model.n_projected, 0)
    for name, kind in GEOMETRY.items():
        value = getattr(model, name)
        if value is not None and kind is float:
            check_number(name, value)
        elif not isinstance(value, str | None):
            raise ValueError(f"{name} must be a word, got {value!r}")
    if not isinstance(model.scale, (str, np.ndarray)):
        check_number("scale", model.scale)


def _check_labels(model: Model) -> None:
    names = model.feature_names
    for name, labels in (("domains", model.domains), ("online", model.online)):
        if labels is None:
            continue
        _check_array(name, labels, "iubU", (labels.size,))
        if len(labels) == 0 or not np.array_equal(labels, np.unique(labels)):
            raise ValueError(f"{name} must be different labels in their order, one at least")
    if names is not None:
        _check_array("feature_names", names, "U", (names.size,))


def _check_statistics(model: Model) -> None:
    geometry, mean, k = model.geometry, model.mean, len(model.lead)
    batch = (*model.lead, *model.channels)
    # the shape of the mean first: a geometry that contradicts it may have far too many blocks
    _check_array("mean", mean, "f", (*batch, *geometry.point_shape))
    if 0 in mean.shape:
        raise ValueError(f"mean must have no axis of length 0, got shape {mean.shape}")
    _check_sizes("var", model.var, "f", (*batch, *geometry.block_shape))
    _check_sizes("weight", model.weight, "f", batch)
    _check_sizes("n_iter", model.n_iter, "i", batch)
    _check_array("converged", model.converged, "b", batch)
    dtypes = {a.dtype for a in (mean, model.var, model.weight)}
    if len(dtypes) > 1 or mean.dtype not in (np.float32, np.float64):
        raise ValueError(
            "mean, var and weight must all be float32, or all float64, got "
            + ", ".join(sorted(map(str, dtypes)))
        )
    names = model.feature_names
    if names is not None and mean.shape[k : k + 1] != names.shape:
        raise ValueError(f"feature_names must be {mean.shape[k]} names, got {len(names)}")
    on_manifold(geometry, mean, "mean")
    if model.bias is not None:
        _check_array("bias", model.bias, "f", model.bias.shape)
    if isinstance(model.scale, np.ndarray):
        _check_array("scale", model.scale, "f", model.scale.shape)
    _check_online(model)
    affine_for(geometry, mean if k else mean[None], model.bias, model.scale)


def _check_online(model: Model) -> None:
    given = model.online, model.online_count, model.online_mean, model.online_var
    labels, count, mean, var = given
    if all(a is None for a in given):
        return
    if labels is None or count is None or mean is None or var is None or model.domains is None:
        raise ValueError("online, online_count, online_mean and online_var belong together")
    known = model.domains
    if (labels.dtype.kind == "U") != (known.dtype.kind == "U") or np.isin(labels, known).any():
        raise ValueError("online must be labels other than domains, and like them")
    _check_array("online_count", count, "i", labels.shape)
    _check_array("online_mean", mean, "f", (*labels.shape, *model.mean.shape[1:]))
    _check_sizes("online_var", var, "f", (*labels.shape, *model.var.shape[1:]))
    if mean.dtype != model.mean.dtype or var.dtype != model.mean.dtype or np.any(count < 1):
        raise ValueError("online_mean and online_var must be like mean, and online_count positive")
    on_manifold(model.geometry, mean, "online_mean")


def _check_sizes(name: str, array: Any, kinds: str, shape: tuple[int, ...]) -> None:
    _check_array(name, array, kinds, shape)
    if not np.all((array >= 0) & (array < np.inf)):
        raise ValueError(f"{name} must be finite and not negative")


def _check_array(name: str, array: Any, kinds: str, shape: tuple[int, ...]) -> None:
    if array.dtype.kind not in kinds or array.shape != shape:
        words = {"f": "floats", "i": "integers", "b": "booleans", "U": "strings"}
        raise ValueError(
            f"{name} must be an array of {words.get(kinds, 'labels')} of shape {shape}, got one of "
            f"{array.dtype} of shape {array.shape}"
        )
