"""What the estimator checks before it computes: parameters, samples, geometry, bias, scale, labels.

Every function returns what it was given in the form that the computation needs, or raises an error
that says what came and what to do.
"""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

import array_api_compat as compat
import numpy as np
from sklearn import get_config
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from gyrobn.backends import Array, backend_of, cast_to, device_of, namespace_of
from gyrobn.data.chunks import is_streamed
from gyrobn.manifolds import REGISTRY, Euclidean
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import UNSEEN, listed, not_seen
from gyrobn.normalization.normalize import scale_for
from gyrobn.numerics.arrays import cast, from_host, real_dtype
from gyrobn.numerics.checks import check_choice, check_number, did_you_mean, host, unmasked
from gyrobn.statistics.frechet import check_search
from gyrobn.statistics.points import on_manifold

UNDO = "inverse_transform"
ON_INVALID = "raise", "project", "drop"


def check_parameters(bn: Any) -> None:
    """Check the parameters that are plain values."""
    check_choice("on_invalid", bn.on_invalid, ON_INVALID)
    check_choice("unseen", bn.unseen, UNSEEN)
    check_choice("without_domains", bn.without_domains, ("error", "new"))
    if bn.without_domains == "new" and bn.unseen not in ("refit", "adapt"):
        raise ValueError(
            "without_domains='new' takes X as one new domain: choose unseen='refit' or 'adapt', "
            f"too, got unseen={bn.unseen!r}"
        )
    check_number("eps", bn.eps, 0.0)
    check_number("adapt_rate", bn.adapt_rate, 0.0, 1.0)
    check_number("prior_strength", bn.prior_strength, 0.0)
    check_search(bn.tol, bn.max_iter, None)


# ---------------------------------------------------------------------- shapes at fit


def sample_shape(bn: Any) -> tuple[int, ...]:
    """Return the shape of the samples of ``fit``, (*channels, *point_shape)."""
    return tuple(bn.mean_.shape)[0 if bn.domains_ is None else 1 :]


def channels_of(bn: Any) -> tuple[int, ...]:
    """Return the shape of the channels of ``fit``."""
    shape = sample_shape(bn)
    return shape[: len(shape) - len(bn.manifold_.point_shape)]


def spaces(bn: Any, method: str) -> tuple[GyroSpace, GyroSpace]:
    """Return the space of what a method takes, and of what it returns; coordinates are vectors."""
    points = other = bn.manifold_
    if bn.output == "coordinates":
        other = Euclidean(points.dim)
    return (other, points) if method == UNDO else (points, other)


def row_shape(bn: Any, space: GyroSpace) -> tuple[int, ...]:
    """Return the shape of a sample in one of these spaces; coordinates are rows of a table."""
    if space is bn.manifold_:
        return sample_shape(bn)
    return (math.prod(channels_of(bn)) * space.dim,)


# ---------------------------------------------------------------------- samples


def as_array(bn: Any, X: Any, method: str) -> Array:
    """Return X as an array of floats, after checking all that does not depend on values."""
    given, fitted = X, method != "fit" and hasattr(bn, "mean_")
    if type(X) is not np.ndarray or X.dtype.char not in _kinds(bn) or X.ndim < 2 or not X.size:
        X = _any_array(bn, X, method)
    if fitted:
        _check_as_fitted(bn, X, method)
    same = fitted and type(given) is np.ndarray and X.shape[1:] == sample_shape(bn)
    if method != UNDO and (not same or hasattr(bn, "feature_names_in_")):
        # scikit-learn checks names and number of columns, which takes as long as a small transform
        validate_data(bn, given, reset=not fitted, skip_check_array=True)
    return X


def _kinds(bn: Any) -> str:
    """Return NumPy's characters of the dtypes of samples: complex ones if points are complex."""
    manifold = REGISTRY.get(bn.manifold) if isinstance(bn.manifold, str) else bn.manifold
    return "DF" if getattr(manifold, "complex_points", False) is True else "df"


def _any_array(bn: Any, X: Any, method: str) -> Array:
    """Return X, a list, a data frame or an array of any library, as an array of floats."""
    if in_chunks(bn, X, method) and not hasattr(X, "shape"):
        raise TypeError(f"GyroBN.{method}() takes one array; transform_chunks() returns chunks")
    X = unmasked(X, "X")
    plain = not compat.is_array_api_obj(X) or compat.is_numpy_array(X)
    own = compat.is_numpy_array(X) and X.dtype.char in "DF" and _kinds(bn) == "DF"
    if plain and not own:
        if getattr(getattr(X, "dtype", None), "kind", "f") == "c":
            raise ValueError(f"Complex data not supported: X holds {X.dtype}, and points are real")
        # NaN and infinity are found later, by a check that says where they are
        options = {"ensure_all_finite": False, "allow_nd": True, "input_name": "X"}
        X = check_array(X, dtype=[np.float64, np.float32], estimator=bn, **options)
    xp, shape = namespace_of(X), tuple(X.shape)
    dtype = real_dtype(X) if _kinds(bn) == "DF" else X.dtype
    if dtype not in (xp.float32, xp.float64):
        raise TypeError(
            f"GyroBN takes float32 and float64 arrays of {_library(X)}, got {X.dtype}: "
            f"convert X first, for example with {cast_to(X, 'float32')}"
        )
    if len(shape) < 2 or 0 in shape:
        raise ValueError(f"expected X of shape (N, *channels, *point_shape), none 0, got {shape}")
    return X


def _check_as_fitted(bn: Any, X: Array, method: str) -> None:
    """Refuse samples of another library, device or shape than those of ``fit``."""
    space, shape = spaces(bn, method)[0], tuple(X.shape[1:])
    here, there = (f"{_library(a)} (device {device_of(a)!r})" for a in (X, bn.mean_))
    if here != there:
        raise ValueError(
            f"Inputs passed to GyroBN.{method}() must use the same namespace and the same device "
            f"as those passed to fit(): got {here}, fitted to {there}; convert X, or fit to arrays "
            "like X"
        )
    wanted = row_shape(bn, space)
    table = method != UNDO and len(shape) == len(wanted) == 1  # scikit-learn counts its columns
    if shape != wanted and not table:
        of = "samples" if space is bn.manifold_ else "coordinates"
        raise ValueError(
            f"GyroBN.{method}() expects {of} of shape {wanted}, as fit() saw them, got X of shape "
            f"{tuple(X.shape)}"
        )


def _library(x: Array) -> str:
    return str(namespace_of(x).__name__).removeprefix("array_api_compat.").split(".")[0]


def in_chunks(bn: Any, X: Any, method: str) -> bool:
    """Return whether X is not one array but comes in chunks."""
    if method != "fit" and hasattr(bn, "mean_"):
        shape = row_shape(bn, spaces(bn, method)[0])
    else:  # channels are unknown
        cls, manifold = class_of(bn.manifold), bn.manifold
        shape = (cls.examples()[0] if isinstance(manifold, str) else manifold).point_shape
    X = unmasked(X, "X")
    return is_streamed(X, len(shape))


def check_table(bn: Any, shape: tuple[int, ...], lazy: bool = False, names: bool = False) -> None:
    """Refuse the table of ``set_output``, or names of columns, if the output is not a table."""
    own = getattr(bn, "_sklearn_output_config", {}).get("transform")
    wanted = own or get_config()["transform_output"]
    if wanted == "default" and not names:
        return
    if len(shape) > 1 and bn.output == "points":
        raise ValueError(
            f"set_output(transform={wanted!r}) and get_feature_names_out() are for tables, and "
            f"samples of shape {shape} are not rows: choose output='coordinates', one column each"
        )
    if lazy:
        raise ValueError(
            f"set_output(transform={wanted!r}) would compute all of a Dask array at once: leave it "
            "at set_output(transform='default')"
        )


# ---------------------------------------------------------------------- geometry


def geometry_options() -> set[str]:
    """Return the names of the options of all geometries, which are parameters of the estimator."""
    return {name for cls in REGISTRY.values() for name in cls.options()}


def class_of(manifold: Any) -> type[GyroSpace]:
    """Return the class of a geometry, or of the name of one."""
    if isinstance(manifold, GyroSpace):
        return type(manifold)
    valid = f"a geometry such as gyrobn.PoincareBall(2), or a name out of {sorted(REGISTRY)}"
    if not isinstance(manifold, str):
        raise TypeError(f"manifold must be {valid}, got {manifold!r}")
    if manifold not in REGISTRY:
        near = did_you_mean(manifold, REGISTRY)
        raise ValueError(f"unknown manifold {manifold!r}: give {valid}{near}")
    return REGISTRY[manifold]


def geometry_for(bn: Any, X: Array) -> GyroSpace:
    """Return the geometry, with the sizes of X if only its name is given, and its options."""
    manifold, shape, cls = bn.manifold, tuple(X.shape), class_of(bn.manifold)
    given = {k: v for k in geometry_options() if (v := vars(bn).get(k)) is not None}
    for name in given.keys() - cls.options().keys():
        which = manifold if isinstance(manifold, str) else cls.__name__
        raise ValueError(
            f"{which} has no {name}, got {name}={given[name]!r}: leave it at None; of such "
            f"parameters {which} has {' and '.join(cls.options()) or 'none'}"
        )
    if isinstance(manifold, str):
        some, projectors = host(X[: min(100, shape[0]), ...]), bn.representation == "projector"
        try:
            manifold = of_projectors(some) if projectors else cls.for_shape(shape[1:])
        except ValueError as error:
            raise ValueError(
                f"X of shape {shape}, with {shape[-1]} feature(s), holds no points of "
                f"{bn.manifold}: {error}"
            ) from error
        if depends_on_values(bn, shape) and len(manifold.point_shape) == 1:
            _check_rows(bn, manifold, some, shape)
    manifold = replace(manifold, **given) if given else manifold
    points = manifold.point_shape
    if len(shape) <= len(points) or shape[len(shape) - len(points) :] != points:
        raise ValueError(f"{manifold!r} expects X of shape (N, *channels, *{points}), got {shape}")
    return manifold  # type: ignore[no-any-return]


def depends_on_values(bn: Any, shape: Any) -> bool:
    """Return whether the samples say what a name means: the rank of projectors, or a mistake."""
    square = len(shape) > 2 and shape[-1] == shape[-2] > 1
    return isinstance(bn.manifold, str) and (bn.representation == "projector" or square)


def _check_rows(bn: Any, manifold: GyroSpace, x: Any, shape: Any) -> None:
    """Refuse symmetric matrices where the name of a geometry would take their rows as vectors."""
    with np.errstate(all="ignore"):
        off, size = np.abs(x - np.swapaxes(x, -1, -2)).max(), np.abs(x).max()
    if size > 0 and off <= np.finfo(x.dtype).eps ** 0.5 * size:
        raise ValueError(
            f"X of shape {shape} holds symmetric matrices, and manifold={bn.manifold!r} would "
            "normalize their rows: give manifold='spd' for covariances or 'correlation' for "
            f"correlation matrices; for rows, give {manifold!r}, not its name"
        )


# ---------------------------------------------------------------------- bias, scale and weights


def affine_for(
    bn: Any, manifold: GyroSpace, shape: tuple[int, ...], x: Array, method: str
) -> tuple[Any, Any]:
    """Return bias and scale for samples of a shape, in the library and dtype of ``x``."""
    bias, scale, points = bn.bias, bn.scale, manifold.point_shape
    check_choice("output", bn.output, ("points", "coordinates"))
    if bn.output == "coordinates" and bias is not None:
        raise ValueError(
            "output='coordinates' returns coordinates around the mean, which is at 0: leave bias "
            "at None, or choose output='points'"
        )
    if bias is not None:
        bias = point_for("bias", bias, manifold, shape, x)
    if scale is None:
        return bias, None
    wanted = (*shape[: len(shape) - len(points)], *manifold.block_shape)
    s = host(scale_for(manifold, scale), "scale", np.float64)
    if isinstance(scale, str) and s.ndim:
        s = np.broadcast_to(s, wanted)
    if s.shape not in ((), wanted) or not np.isfinite(s).all():
        each = "one per channel and block" if manifold.block_shape else "one per channel"
        raise ValueError(
            f"scale must be a finite number, or an array of them, {each}, of shape {wanted}, "
            f"'sqrt_dim' or None; got {scale!r}"
        )
    if method == UNDO and not s.all():
        raise ValueError(f"scale={scale!r} takes all samples to one point, which cannot be undone")
    if method in ("fit", "partial_fit") and (s < 0).any():
        raise ValueError(
            f"scale is the standard deviation of the output and must not be negative, got {scale!r}"
        )
    return bias, like(s, x) if s.ndim else float(s)


def point_for(
    name: str, point: Any, manifold: GyroSpace, shape: tuple[int, ...], x: Array
) -> Array:
    """Return a point, or one per channel, for samples of a shape, in the library of ``x``."""
    dtype = None if manifold.complex_points else np.float64
    point, wanted = like(point, x, name, dtype), manifold.point_shape
    if tuple(point.shape) not in (wanted, shape):
        raise ValueError(
            f"{name} must be a point of {manifold!r}, shape {wanted}, or one per channel, "
            f"shape {shape}; got shape {tuple(point.shape)}"
        )
    return on_manifold(manifold, point, name)


def reference_for(bn: Any, manifold: GyroSpace, shape: tuple[int, ...], x: Array) -> Array | None:
    """Return the point from which the geometry is seen, if it does not follow from the samples."""
    if isinstance(bn.reference, str):
        check_choice("reference", bn.reference, ("fit",))
    if bn.reference is None or isinstance(bn.reference, str):
        return None
    return point_for("reference", bn.reference, manifold, shape, x)


def weights_for(batch: tuple[int, ...], X: Array, weights: Any) -> Any:
    """Return the weights of the samples, not all zero; the search of the mean checks their signs.

    ``batch`` is the shape of all samples, (N, *channels), and ``X`` holds some of them. The tasks
    of a Dask array check their part.
    """
    if weights is None or compat.is_dask_array(weights):
        return weights
    w = like(weights, X, "sample_weight")
    if tuple(w.shape) not in (batch[:1], batch):
        raise ValueError(
            f"weights must have the shape of the samples, {batch[:1]}, or of the whole batch, "
            f"{batch}, got {tuple(w.shape)}"
        )
    if not bool(namespace_of(w).any(w != 0)):
        raise ValueError("sample_weight is zero for every sample: there is no mean")
    return w


def like(value: Any, x: Array, name: str = "this", dtype: Any = np.float64) -> Array:
    """Return numbers, from whatever library, in the library, precision and device of ``x``."""
    a = host(value, name, dtype)
    return from_host(np.array(cast(a, np.float64)), x)


def reason(manifold: GyroSpace, x: Array) -> str:
    """Say why the arithmetic fails on points of the manifold."""
    if manifold.convexity_radius < float("inf"):
        return (
            f"Points {2 * manifold.convexity_radius:.4g} apart are antipodal, and no one geodesic "
            "joins them: drop such samples, and keep mean and bias away from the antipode of the "
            "identity"
        )
    wider = "" if "float64" in str(real_dtype(x)) else ", or compute in float64"
    return (
        f"Numbers leave the range of {x.dtype}: rescale the data, give a smaller scale or a larger "
        f"eps{wider}"
    )


# ---------------------------------------------------------------------- labels of domains


def check_given(fitted: Any, domains: Any, method: str) -> None:
    """Refuse domains if fit had none, and their absence if fit had some."""
    if fitted is None and domains is not None:
        raise ValueError(
            f"GyroBN was fitted without domains: leave them out of {method}(), or give them to "
            "fit(X, domains=...), too, by name (its second argument is y, which is ignored)"
        )
    if fitted is not None and domains is None:
        new = ", or choose without_domains='new' to take X as one new domain"
        raise ValueError(
            f"GyroBN was fitted with domains ({listed(fitted)}): give {method}(X, domains=...), "
            f"too; in a pipeline, by metadata routing and set_{method}_request(domains=True)"
            f"{new if method == 'transform' else ''}"
        )


def check_target(bn: Any, y: Any, domains: Any, method: str) -> None:
    """Refuse a y without domains if ``unseen`` shows that domains were meant."""
    if domains is None and y is not None and bn.unseen != "error":
        raise ValueError(
            f"unseen={bn.unseen!r} is for data with domains, and GyroBN.{method}() got y, which is "
            f"ignored, but no domains: give {method}(X, domains=...) by name (to a pipeline, "
            "fit(X, y, gyrobn__domains=...)), or leave unseen at 'error'"
        )


def check_kind(fitted: Any, labels: Any) -> None:
    """Refuse strings if fit had integers as labels, and integers if it had strings."""
    if (labels.dtype.kind == "U") != (fitted.dtype.kind == "U"):
        raise ValueError(
            f"fit() saw domains {listed(fitted)}, and now come {listed(np.unique(labels))}: give "
            "labels of the same kind, integers or strings, to both"
        )


def unseen_among(
    bn: Any, labels: Iterable[Any], fitted: Container[Any], method: str, ordered: bool = True
) -> list[Any]:
    """Return the labels without statistics, if ``unseen`` says what to do with their samples.

    Samples that are not ``ordered`` cannot be followed one by one.
    """
    new = [label for label in labels if label not in fitted and label is not None]
    if new:
        check_kind(bn.domains_, as_labels(new))
        check_parameters(bn)
        advice = ""
        if method == UNDO:
            advice = "leave it out: the statistics that transform() finds for it are not kept"
        elif bn.unseen == "error":
            advice = (
                "choose unseen='refit' or 'adapt', or 'online' for samples that come one by one"
            )
        elif bn.unseen == "online" and not ordered:
            advice = (
                "choose unseen='refit' or 'adapt', since unseen='online' follows the order of the "
                "samples, but the blocks of a Dask array are computed in any order"
            )
        if advice:
            who = f"GyroBN.{method}(): fit()"
            raise not_seen(who, new, bn.domains_, f"fit to it, too, or {advice}")
    return new


def labels_of(bn: Any, domains: Any, count: float, method: str, lazy: bool = False) -> Any:
    """Return the labels of samples to normalize, as :func:`labels_for` does.

    None, after ``fit`` with domains, is the label of one new domain.
    """
    if domains is not None or method != "transform" or bn.without_domains != "new":
        check_given(bn.domains_, domains, method)
    return labels_for(domains, count, lazy)


def labels_for(domains: Any, count: float, lazy: bool = False) -> Any:
    """Return the labels of so many samples as a NumPy array, all integers or all strings, or None.

    With Dask arrays of samples (``lazy``) may come Dask arrays, whose parts the tasks check.

    >>> labels_for(["b", "a"], 2)
    array(['b', 'a'], dtype='<U1')
    >>> labels_for([1, "a"], 2)
    Traceback (most recent call last):
        ...
    TypeError: domains must be all integers or all strings, got 'a' at index 1
    """
    if domains is None or (lazy and compat.is_dask_array(domains)):
        return domains
    if math.isnan(count):
        raise ValueError(
            "the chunk sizes of X are not known, and so it is not known which sample each of the "
            "domains belongs to: give the domains as a Dask array that is cut as X is, or call "
            "X.compute_chunk_sizes() first"
        )
    if compat.is_array_api_obj(domains):
        if backend_of(domains).traced(domains):
            raise TypeError(
                "domains tell which samples go together, and in a traced function they have no "
                "values: give a NumPy array or a list that is not an argument of that function"
            )
        domains = backend_of(domains).to_numpy(domains)
    elif isinstance(domains, Sequence) and not isinstance(domains, str):
        domains = np.array(domains, dtype=object)  # NumPy would make 1 and "1" the same
    labels = np.asarray(domains)
    if labels.shape != (count,):
        raise ValueError(
            f"domains must have one label per sample, shape ({count},), got shape {labels.shape}"
        )
    if labels.dtype.kind in "iubU":
        return labels
    values = labels.tolist()
    kind = str if isinstance(values[0], str) else (int, np.integer)
    for i, value in enumerate(values):
        if not isinstance(value, kind):
            raise TypeError(
                f"domains must be all integers or all strings, got {value!r} at index {i}"
            )
    return as_labels(values)


def as_labels(values: list[Any]) -> Any:
    """Return labels, all strings or all integers, as an array that holds them exactly.

    >>> as_labels([1, 2**63])  # NumPy would make floats of them
    array([                  1, 9223372036854775808], dtype=uint64)
    """
    if isinstance(values[0], (str, bool)):
        return np.asarray(values)
    low, high = min(values), max(values)
    if low < -(2**63) or high >= (2**64 if low >= 0 else 2**63):
        raise ValueError(f"domains must be integers of at most 64 bits, got {low} to {high}")
    return np.asarray(values, dtype=np.int64 if high < 2**63 else np.uint64)
