"""What the estimator checks, and what it says: points, parameters, statistics.

Every function raises an error that says what came and what to do, or returns what it was given in
the form that is wanted.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import array_api_compat as compat
import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from gyrobn.backends import Array, backend_of, cast_to, check_kind, device_of, namespace_of
from gyrobn.data.chunks import Chunks, is_chunk_list, is_streamed, take
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import domain_stats
from gyrobn.normalization.normalize import Stats, multiplier, scale_for
from gyrobn.numerics.arrays import blockwise
from gyrobn.numerics.checks import did_you_mean
from gyrobn.statistics.frechet import FrechetResult, frechet, locate, result_of
from gyrobn.statistics.points import Moved, describe, on_manifold
from gyrobn.statistics.samples import arrange
from gyrobn.statistics.uniqueness import FrechetWarning

__all__ = [
    "GEOMETRY",
    "Moved",
    "affine_for",
    "as_array",
    "check_around",
    "check_output",
    "chunked",
    "describe",
    "found_for",
    "geometry_for",
    "host",
    "library",
    "like",
    "on_manifold",
    "reason",
    "weight_sums",
    "weights_for",
]


_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


def as_array(estimator: Any, X: Any, method: str) -> Array:
    """Return X as an array, after checking all that does not depend on values."""
    X = unmasked(X, "X")
    given, fitted = X, hasattr(estimator, "mean_") and method != "fit"
    if (is_streamed(X) and not hasattr(X, "shape")) or is_chunk_list(X, _axes(estimator, method)):
        raise TypeError(
            f"GyroBN.{method}() returns one array, and takes one: of chunks, "
            "GyroBN.transform_chunks() returns chunks"
        )
    plain = type(X) is np.ndarray and X.dtype in _FLOATS and X.ndim > 1 and X.size > 0
    if not plain and (not compat.is_array_api_obj(X) or compat.is_numpy_array(X)):
        options = {"dtype": [np.float64, np.float32], "allow_nd": True, "input_name": "X"}
        # NaN and infinity are looked for later, to say where they are
        X = check_array(X, ensure_all_finite=False, estimator=estimator, **options)
    xp = namespace_of(X)
    if X.dtype not in (xp.float32, xp.float64):
        raise TypeError(
            f"GyroBN takes float32 and float64 arrays of {library(X)}, got {X.dtype}: "
            f"convert X first, for example with {cast_to(X, 'float32')}"
        )
    shape = tuple(X.shape)
    if len(shape) < 2 or 0 in shape:
        raise ValueError(
            f"expected X of shape (N, *channels, *point_shape), no length 0, got {shape}"
        )
    if fitted:
        got, wanted = ((library(a), device_of(a)) for a in (X, estimator.mean_))
        if got != wanted:
            raise ValueError(
                f"Inputs passed to GyroBN.{method}() must use the same namespace and the same "
                f"device as those passed to fit(): got {got[0]} (device {got[1]}), fitted to "
                f"{wanted[0]} (device {wanted[1]}); convert X, or fit to arrays like X"
            )
        seen = tuple(estimator.mean_.shape)[0 if estimator.domains_ is None else 1 :]
        table = method != "inverse_transform" and len(shape) == 2 and len(seen) == 1
        if shape[1:] != seen and not table:  # of a table, scikit-learn says it below
            raise ValueError(
                f"GyroBN.{method}() expects samples of shape {seen}, as fit() saw them, "
                f"got X of shape {shape}"
            )
    if method != "inverse_transform":  # whose input need not carry the names of the columns
        validate_data(estimator, given, reset=not fitted, skip_check_array=True)
    return X


GEOMETRY = {"metric": str, "curvature": float, "theta": float, "representation": str}
"""Options of the geometries that are parameters of the estimator; None for what it has."""


def named(manifold: Any) -> type[GyroSpace]:
    """Return the class of a geometry, or of the name of one."""
    known = f"a geometry such as gyrobn.PoincareBall(2), or a name out of {sorted(REGISTRY)}"
    if isinstance(manifold, str):
        if manifold not in REGISTRY:
            raise ValueError(
                f"unknown manifold {manifold!r}: give {known}{did_you_mean(manifold, REGISTRY)}"
            )
        return REGISTRY[manifold]
    if not isinstance(manifold, GyroSpace):
        raise TypeError(f"manifold must be {known}, got {manifold!r}")
    return type(manifold)


def unmasked(X: Any, name: str) -> Any:
    """Return X, of a masked array the data if nothing is masked, or refuse it in words."""
    if isinstance(X, np.ma.MaskedArray) and not np.ma.is_masked(X):
        return X.data
    for x in X if isinstance(X, (list, tuple)) else (X,):
        check_kind(x, name)
    return X


def _axes(estimator: Any, method: str) -> int:
    """Return the number of axes of a sample; before fit, of a point, as channels are not known."""
    if hasattr(estimator, "mean_") and method != "fit":
        return int(estimator.mean_.ndim) - (estimator.domains_ is not None)
    manifold = estimator.manifold
    one = named(manifold).examples()[0] if isinstance(manifold, str) else manifold
    return len(one.point_shape) if named(manifold) else 0


def chunked(estimator: Any, X: Any, method: str) -> Any:
    """Return Chunks where X comes a chunk at a time, else X."""
    if isinstance(X, Chunks):
        return X
    X = unmasked(X, "X")
    if is_streamed(X) or is_chunk_list(X, _axes(estimator, method)):
        return Chunks(X)
    return X


def geometry_for(estimator: Any, X: Array) -> GyroSpace:
    """Return the geometry, with sizes from X where only its name is given, and its parameters."""
    manifold: Any = estimator.manifold
    shape = tuple(X.shape)
    cls = named(manifold)
    given = {k: v for k in GEOMETRY if (v := getattr(estimator, k)) is not None}
    has = list(cls.options())
    for name in given:
        if name not in has:
            which = manifold if isinstance(manifold, str) else cls.__name__
            raise ValueError(
                f"{which} has no {name}, got {name}={given[name]!r}: leave it at None; of such "
                f"parameters {which} has {' and '.join(has) or 'none'}"
            )
    if isinstance(manifold, str):
        try:
            if given.get("representation") == "projector":
                manifold = of_projectors(backend_of(X).to_numpy(X[:100, ...]))
            else:
                manifold = cls.for_shape(shape[1:])
        except ValueError as error:
            raise ValueError(
                f"X of shape {shape}, with {shape[-1]} feature(s), holds no points of "
                f"{estimator.manifold}: {error}"
            ) from error
    if given:
        manifold = replace(manifold, **given)
    points = manifold.point_shape
    if len(shape) <= len(points) or shape[len(shape) - len(points) :] != points:
        raise ValueError(f"{manifold!r} expects X of shape (N, *channels, *{points}), got {shape}")
    return manifold  # type: ignore[no-any-return]


def affine_for(manifold: GyroSpace, X: Array, bias: Any, scale: Any) -> tuple[Any, Any]:
    """Return bias and scale, ready to meet X."""
    shape, points = tuple(X.shape[1:]), manifold.point_shape
    wanted = (*shape[: len(shape) - len(points)], *manifold.block_shape)
    each = "one a channel and block" if manifold.block_shape else "one a channel"
    s = host(scale_for(manifold, scale), "scale")
    if isinstance(scale, str) and s.ndim:
        s = np.broadcast_to(s, wanted)
    if s.shape not in ((), wanted) or not np.all(np.isfinite(s)):
        raise ValueError(
            f"scale must be a finite number, or an array of them, {each}, of shape "
            f"{wanted}, or 'sqrt_dim'; got {scale!r}"
        )
    factor = float(s) if s.ndim == 0 else like(s, X)
    if bias is None:
        return None, factor
    bias = like(bias, X, "bias")
    if tuple(bias.shape) not in (points, shape):
        raise ValueError(
            f"bias must be a point of {manifold!r}, shape {points}, or one a channel, "
            f"shape {shape}; got shape {tuple(bias.shape)}"
        )
    return on_manifold(manifold, bias, "bias"), factor


def weights_for(batch: tuple[int, ...], X: Array, weights: Any) -> Array | None:
    """Return the weights of the samples, not all zero; their signs are looked at with the mean.

    ``batch`` is the shape of all samples, (N, *channels), and ``X`` some of them.
    """
    if weights is None:
        return None
    w = like(weights, X, "sample_weight")
    if tuple(w.shape) not in (batch[:1], batch):
        raise ValueError(
            f"weights must have the shape of the samples, {batch[:1]}, or of the whole batch, "
            f"{batch}, got {tuple(w.shape)}"
        )
    if not bool(namespace_of(w).any(w != 0)):
        raise ValueError("sample_weight is zero for every sample: there is no mean")
    return w


def weight_sums(
    batch: tuple[int, ...], mean: Array, places: dict[Any, Any] | None, weights: Array | None
) -> Array:
    """Return how much all samples weigh, or those of each domain, a channel at a time."""
    w = np.ones(batch[0]) if weights is None else host(weights)
    w = np.broadcast_to(w.reshape(*w.shape, *(1,) * (len(batch) - w.ndim)), batch)
    if places is None:
        return like(w.sum(axis=0, dtype=np.float64), mean)
    return like(np.stack([w[at].sum(axis=0, dtype=np.float64) for at in places.values()]), mean)


def found_for(
    manifold: GyroSpace,
    X: Array | Chunks,
    places: dict[Any, Any] | None,
    weights: Array | None,
    method: str,
    **options: Any,
) -> tuple[FrechetResult, Centred | None]:
    """Return mean and variance of the samples, or of each domain, or say why there is none.

    Also return the samples seen from the mean, if they are in memory and have one.
    """
    for label, at in (places or {}).items():
        some = at if weights is None else at[host(weights)[at].reshape(len(at), -1).any(1)]
        if len(some) < 2 and method != "partial_fit":  # to which more may come
            raise ValueError(
                f"GyroBN.{method}() needs at least 2 samples of a domain (with a weight other "
                f"than 0) to find its variance, got {len(some)} of domain {label!r}: give more, "
                "leave it out, or join it to another"
            )
    view = None
    with np.errstate(all="ignore"):  # what goes wrong is said below
        if places is not None:
            found = domain_stats(manifold, X, places, weights, **options)
        elif isinstance(X, Chunks):
            found = frechet(manifold, X, weights, **options)
        else:
            at, view = locate(manifold, *arrange(manifold, X, weights, 0), **options)
            found = result_of(at)
    xp = namespace_of(found.mean)
    if backend_of(found.mean).hides_values(found.mean):
        return found, view
    good = xp.all(manifold.expand_blocks(xp.isfinite(found.variance)), axis=-1)
    good = xp.logical_and(good, xp.isfinite(found.residual))
    if not bool(xp.all(good)):
        which = "these samples"
        if places is not None:
            which = f"domain {list(places)[describe(good)[1][0]]!r}"
        raise ValueError(
            f"GyroBN.{method}() finds no mean of {which}. {reason(manifold, found.mean)}"
        )
    return found, view


def check_output(
    manifold: GyroSpace,
    X: Array,
    out: Array,
    stats: Sequence[Stats],
    places: Sequence[Any] | None,
    bias: Array | None,
    method: str,
    first: int,
) -> None:
    """Refuse an output that is not on the manifold, and say for which sample."""
    xp = namespace_of(X)
    good = blockwise(manifold.contains, out)
    if bool(xp.all(good)):
        return
    what, i = describe(good, first)
    k = 0 if places is None else next(k for k, at in enumerate(places) if i[0] in at)
    target = xp.broadcast_to(manifold.origin(X) if bias is None else bias, X.shape[1:])
    x, m, b = X[(*i, ...)], *(a[(*i[1:], ...)] for a in (stats[k].mean, target))
    c, name = (b, "bias") if method == "inverse_transform" else (m, "mean")
    raise ValueError(
        f"GyroBN.{method}() finds no point of {manifold!r} for {what}, at distance "
        f"{float(manifold.dist(c, x)):.4g} from the {name}; from the identity, the mean "
        f"is at {float(manifold.norm(m)):.4g}, the bias at {float(manifold.norm(b)):.4g}. "
        + reason(manifold, X)
    )


def check_around(
    manifold: GyroSpace,
    X: Array,
    out: Array,
    stats: Sequence[Stats],
    places: Sequence[Any] | None,
    bias: Array | None,
    scale: Any,
    eps: float,
    method: str,
    first: int,
) -> None:
    """Warn of samples that were scaled so far that they came back from the other side.

    On a closed space (sphere, Grassmannian, rotations) the coordinates of the output are then not
    those of the input, scaled.
    """
    good = np.ones(X.shape[: X.ndim - len(manifold.point_shape)], dtype=np.bool_)
    target = manifold.origin(X) if bias is None else bias
    for own, at in zip(stats, [slice(None)] if places is None else places, strict=True):
        x, y = (X, out) if places is None else (take(a, at) for a in (X, out))
        factor = multiplier(x, own, scale, eps, None)
        ends = own.mean, target
        if method == "inverse_transform":
            factor, ends = 1.0 / factor, ends[::-1]
        c = manifold.by_coordinate(factor) * manifold.relative_normal(ends[0], x)
        off = host(manifold.relative_normal(ends[1], y) - c)
        good[at] = np.linalg.norm(off, axis=-1) <= 0.01 * (1.0 + np.linalg.norm(host(c), axis=-1))
    if not np.all(good):
        warnings.warn(
            f"GyroBN.{method}() scales {describe(good, first)[0]}, beyond the opposite point, from "
            f"where they come back on the other side: on {manifold!r} the output then has not the "
            "variance that was asked for, and cannot be undone; give a smaller scale",
            FrechetWarning,
            stacklevel=5,
        )


def host(value: Any, name: str = "this") -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return numbers, from whatever library, as a NumPy array."""
    given = unmasked(value, name)
    value = given
    if compat.is_array_api_obj(value):
        value = backend_of(value).to_numpy(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":  # NumPy would make numbers of words
        raise ValueError(f"{name} must be numbers, got {given!r}")
    return np.array(array, dtype=np.float64)


def like(value: Any, x: Array, name: str = "this") -> Array:
    """Return numbers, from whatever library, in the library, dtype and device of ``x``."""
    return backend_of(x).from_numpy(host(value, name), x)


def library(x: Array) -> str:
    """Return the name of the library of ``x``."""
    return str(namespace_of(x).__name__).removeprefix("array_api_compat.").split(".")[0]


def reason(manifold: GyroSpace, x: Array) -> str:
    """Say what makes the arithmetic fail on points of the manifold."""
    if manifold.convexity_radius < float("inf"):
        return (
            f"Points {2 * manifold.convexity_radius:.4g} apart are opposite, and no one direction "
            "leads from one to the other: drop such samples, and keep the mean (by rotating the "
            "data) and the bias away from the point opposite to the identity"
        )
    return (
        f"Numbers leave the range of {x.dtype}: rescale the data, give a smaller scale or a larger "
        "eps, or compute in float64"
    )
