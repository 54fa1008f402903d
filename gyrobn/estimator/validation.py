"""What the estimator checks before it computes: samples, geometry, bias, scale and weights.

Every function returns what it was given in the form that the computation needs, or raises an error
that says what came and what to do.
"""

import math
from dataclasses import replace
from typing import Any

import array_api_compat as compat
import numpy as np
from sklearn import get_config
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from gyrobn.backends import Array, backend_of, cast_to, device_of, namespace_of
from gyrobn.data.chunks import Chunks, is_chunk_list, is_streamed
from gyrobn.estimator.labels import check_policy
from gyrobn.manifolds import REGISTRY, Euclidean
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import scale_for
from gyrobn.numerics.checks import check_choice, check_number, did_you_mean, host, unmasked
from gyrobn.statistics.mean import check_search
from gyrobn.statistics.points import Moved, on_manifold

UNDO = "inverse_transform"


def check_parameters(bn: Any) -> None:
    """Check the parameters that are plain values."""
    check_choice("on_invalid", bn.on_invalid, ("raise", "project"))
    check_number("eps", bn.eps, 0.0)
    check_search(bn.tol, bn.max_iter, None)
    check_policy(bn)
    check_output(bn)


def check_output(bn: Any) -> None:
    """Check what ``transform`` should return."""
    check_choice("output", bn.output, ("points", "coordinates"))
    if bn.output == "coordinates" and bn.bias is not None:
        raise ValueError(
            "output='coordinates' returns coordinates around the mean, which is at 0, and bias "
            "is a point: leave bias at None, or choose output='points'"
        )


# ---------------------------------------------------------------------- what fit saw


def sample_shape(bn: Any) -> tuple[int, ...]:
    """Return the shape of the samples that ``fit`` saw, (*channels, *point_shape)."""
    return tuple(bn.mean_.shape)[0 if bn.domains_ is None else 1 :]


def channels_of(bn: Any) -> tuple[int, ...]:
    """Return the shape of the channels that ``fit`` saw."""
    shape = sample_shape(bn)
    return shape[: len(shape) - len(bn.manifold_.point_shape)]


def result_shape(bn: Any, method: str) -> tuple[int, ...]:
    """Return the shape of what a method returns for a sample."""
    if bn.output == "coordinates" and method != UNDO:
        return (math.prod(channels_of(bn)) * int(bn.manifold_.dim),)
    return sample_shape(bn)


def given_shape(bn: Any, method: str) -> tuple[int, ...]:
    """Return the shape of a sample that a method of a fitted estimator takes."""
    return result_shape(bn, "transform") if method == UNDO else sample_shape(bn)


def column_names(channels: tuple[int, ...], dim: int, word: str = "gyrobn") -> list[str]:
    """Return names of coordinates: a number, after that of the channel if there are several.

    >>> column_names((), 2), column_names((2,), 2)
    (['gyrobn0', 'gyrobn1'], ['gyrobn0_0', 'gyrobn0_1', 'gyrobn1_0', 'gyrobn1_1'])
    """
    each = ["".join(f"{k}_" for k in at) for at in np.ndindex(channels)]
    return [f"{word}{channel}{k}" for channel in each for k in range(dim)]


# ---------------------------------------------------------------------- samples


def as_array(bn: Any, X: Any, method: str) -> Array:
    """Return X as an array, after checking all that does not depend on values."""
    given, fitted = X, method != "fit" and hasattr(bn, "mean_")
    plain = type(X) is np.ndarray and X.dtype.char in "df" and X.ndim > 1 and X.size > 0
    if not plain:
        X = _any_array(bn, X, method)
    if fitted:
        _check_as_fitted(bn, X, method)
    # scikit-learn checks names and number of columns; the output of transform has no names
    checked = fitted and plain and X.ndim > 2 and not hasattr(bn, "feature_names_in_")
    if method != UNDO and not checked:
        validate_data(bn, given, reset=not fitted, skip_check_array=True)
    return X


def _any_array(bn: Any, X: Any, method: str) -> Array:
    """Return X, a list, a data frame or an array of any library, as an array of floats."""
    X = unmasked(X, "X")
    if (is_streamed(X) and not hasattr(X, "shape")) or is_chunk_list(X, _axes(bn, method)):
        raise TypeError(
            f"GyroBN.{method}() returns one array, and takes one: of chunks, "
            "GyroBN.transform_chunks() returns chunks"
        )
    if not compat.is_array_api_obj(X) or compat.is_numpy_array(X):
        # NaN and infinity are found later, by a check that says where they are
        options = {"ensure_all_finite": False, "allow_nd": True, "input_name": "X"}
        X = check_array(X, dtype=[np.float64, np.float32], estimator=bn, **options)
    xp, shape = namespace_of(X), tuple(X.shape)
    if X.dtype not in (xp.float32, xp.float64):
        raise TypeError(
            f"GyroBN takes float32 and float64 arrays of {_library(X)}, got {X.dtype}: "
            f"convert X first, for example with {cast_to(X, 'float32')}"
        )
    if len(shape) < 2 or 0 in shape:
        raise ValueError(
            f"expected X of shape (N, *channels, *point_shape), no length 0, got {shape}"
        )
    return X


def _check_as_fitted(bn: Any, X: Array, method: str) -> None:
    """Refuse samples of another library, device or shape than those that ``fit`` saw."""
    mean, shape, wanted = bn.mean_, tuple(X.shape), given_shape(bn, method)
    if not (type(X) is type(mean) is np.ndarray):
        here, there = (f"{_library(a)} (device {device_of(a)!r})" for a in (X, mean))
        if here != there:
            raise ValueError(
                f"Inputs passed to GyroBN.{method}() must use the same namespace and the same "
                f"device as those passed to fit(): got {here}, fitted to {there}; convert X, or "
                "fit to arrays like X"
            )
    table = method != UNDO and len(shape) == 2 and len(wanted) == 1
    if shape[1:] == wanted or table:  # scikit-learn checks the columns of a table
        return
    if bn.output == "coordinates" and method == UNDO:
        raise ValueError(
            f"GyroBN.{method}() with output='coordinates' expects the coordinates that "
            f"transform() returns, shape (N, {wanted[0]}), got X of shape {shape}"
        )
    raise ValueError(
        f"GyroBN.{method}() expects samples of shape {wanted}, as fit() saw them, got X of shape "
        f"{shape}"
    )


def _library(x: Array) -> str:
    return str(namespace_of(x).__name__).removeprefix("array_api_compat.").split(".")[0]


def chunked(bn: Any, X: Any, method: str) -> Any:
    """Return ``Chunks`` if X comes in chunks, else X."""
    if isinstance(X, Chunks):
        return X
    X = unmasked(X, "X")
    return Chunks(X) if is_streamed(X) or is_chunk_list(X, _axes(bn, method)) else X


def _axes(bn: Any, method: str) -> int:
    """Return the number of axes of a sample; before fit, of a point, since channels are unknown."""
    if method != "fit" and hasattr(bn, "mean_"):
        return len(given_shape(bn, method))
    cls, manifold = _class_of(bn.manifold), bn.manifold
    return len((cls.examples()[0] if isinstance(manifold, str) else manifold).point_shape)


def checked(bn: Any, X: Array, method: str, first: Any = 0, moved: Moved | None = None) -> Array:
    """Return samples that are points, or coordinates of shape (N, *channels, dim), or refuse them.

    ``first`` and ``moved`` are as in :func:`~gyrobn.statistics.points.on_manifold`.
    """
    if bn.output == "coordinates" and method == UNDO:
        dim = bn.manifold_.dim
        X = namespace_of(X).reshape(X, (X.shape[0], *channels_of(bn), dim))
        return on_manifold(Euclidean(dim), X, first=first)  # finite
    return on_manifold(
        bn.manifold_, X, project=bn.on_invalid == "project", first=first, moved=moved
    )


def check_table(bn: Any, X: Array, method: str, lazy: bool = False) -> None:
    """Refuse the table that ``set_output`` requests if the output cannot fill one.

    The output of ``lazy`` samples is a Dask array, and a table would compute all of it at once.
    """
    own = getattr(bn, "_sklearn_output_config", {}).get("transform")
    wanted = own or get_config()["transform_output"]
    if method == UNDO or wanted == "default":
        return
    if X.ndim != 2 and bn.output == "points":
        raise not_a_table(
            f"set_output(transform={wanted!r}) makes a table with one column per feature",
            tuple(X.shape[1:]),
        )
    if lazy:
        raise ValueError(
            f"set_output(transform={wanted!r}) would compute all of a Dask array at once: leave it "
            "at set_output(transform='default')"
        )


def not_a_table(why: str, shape: tuple[int, ...]) -> ValueError:
    """Return the error for an output that is not a table."""
    return ValueError(
        f"{why}, and samples of shape {shape} are not rows of a table: choose "
        "output='coordinates', which returns normal coordinates, one named column each, or leave "
        "set_output at transform='default'"
    )


# ---------------------------------------------------------------------- geometry


def geometry_options() -> set[str]:
    """Return the names of the options of all geometries, which are parameters of the estimator."""
    return {name for cls in REGISTRY.values() for name in cls.options()}


def _class_of(manifold: Any) -> type[GyroSpace]:
    """Return the class of a geometry, or of the name of one."""
    if isinstance(manifold, GyroSpace):
        return type(manifold)
    valid = f"a geometry such as gyrobn.PoincareBall(2), or a name out of {sorted(REGISTRY)}"
    if not isinstance(manifold, str):
        raise TypeError(f"manifold must be {valid}, got {manifold!r}")
    if manifold not in REGISTRY:
        raise ValueError(
            f"unknown manifold {manifold!r}: give {valid}{did_you_mean(manifold, REGISTRY)}"
        )
    return REGISTRY[manifold]


def geometry_for(bn: Any, X: Array) -> GyroSpace:
    """Return the geometry, with the sizes of X if only its name is given, and its options."""
    manifold, shape, cls = bn.manifold, tuple(X.shape), _class_of(bn.manifold)
    given = {k: v for k in geometry_options() if (v := getattr(bn, k)) is not None}
    for name in given.keys() - cls.options().keys():
        which = manifold if isinstance(manifold, str) else cls.__name__
        raise ValueError(
            f"{which} has no {name}, got {name}={given[name]!r}: leave it at None; of such "
            f"parameters {which} has {' and '.join(cls.options()) or 'none'}"
        )
    if isinstance(manifold, str):
        if depends_on_values(bn, shape) and len(cls.examples()[0].point_shape) == 1:
            _check_rows(manifold, cls, X)
        try:
            if given.get("representation") == "projector":
                manifold = of_projectors(host(X[: min(100, shape[0]), ...]))
            else:
                manifold = cls.for_shape(shape[1:])
        except ValueError as error:
            raise ValueError(
                f"X of shape {shape}, with {shape[-1]} feature(s), holds no points of "
                f"{bn.manifold}: {error}"
            ) from error
    manifold = replace(manifold, **given) if given else manifold
    points = manifold.point_shape
    if len(shape) <= len(points) or shape[len(shape) - len(points) :] != points:
        raise ValueError(f"{manifold!r} expects X of shape (N, *channels, *{points}), got {shape}")
    return manifold  # type: ignore[no-any-return]


def depends_on_values(bn: Any, shape: Any) -> bool:
    """Return whether the samples say what a name means: the rank of projectors, or a mistake."""
    square = len(shape) > 2 and shape[-1] == shape[-2] > 1
    return isinstance(bn.manifold, str) and (bn.representation == "projector" or square)


def _check_rows(name: str, cls: type[GyroSpace], X: Array) -> None:
    """Refuse symmetric matrices where the name of a geometry would take their rows as vectors."""
    shape, x = tuple(X.shape), host(X[: min(100, X.shape[0]), ...])
    with np.errstate(all="ignore"):
        off, size = np.abs(x - np.swapaxes(x, -1, -2)).max(), np.abs(x).max()
    if size > 0 and off <= np.finfo(x.dtype).eps ** 0.5 * size:
        raise ValueError(
            f"X of shape {shape} holds symmetric matrices, and manifold={name!r} would normalize "
            f"their rows, {shape[-1]} channels of vectors: give manifold='spd' for covariances or "
            f"'correlation' for correlation matrices; if rows are what you mean, give the geometry "
            f"{cls.for_shape(shape[1:])!r} in place of its name"
        )


# ---------------------------------------------------------------------- bias, scale and weights


def affine_for(
    manifold: GyroSpace, X: Array, bias: Any, scale: Any, method: str = "transform"
) -> tuple[Any, Any]:
    """Return bias and scale in the library and dtype of X, their shapes checked."""
    shape, points, factor = tuple(X.shape[1:]), manifold.point_shape, scale
    if type(scale) is not float or not math.isfinite(scale):
        factor = _scale_for(manifold, X, scale)
    if method == UNDO and not np.all(host(factor)):
        raise ValueError(
            f"scale={scale!r} takes all samples to one point, which cannot be undone: "
            "inverse_transform needs a scale other than 0"
        )
    if method != UNDO and method != "transform" and np.any(host(factor) < 0):
        raise ValueError(
            "scale is the standard deviation of the output and must not be negative, got "
            f"{scale!r}: a negative scale would also reflect the samples at their mean"
        )
    if bias is not None:
        bias = like(bias, X, "bias")
        if tuple(bias.shape) not in (points, shape):
            raise ValueError(
                f"bias must be a point of {manifold!r}, shape {points}, or one per channel, "
                f"shape {shape}; got shape {tuple(bias.shape)}"
            )
        bias = on_manifold(manifold, bias, "bias")
    return bias, factor


def _scale_for(manifold: GyroSpace, X: Array, scale: Any) -> Any:
    """Return the scale as a number, or as an array with one entry per channel (and block)."""
    wanted = (*X.shape[1 : X.ndim - len(manifold.point_shape)], *manifold.block_shape)
    s = host(scale_for(manifold, scale), "scale", np.float64)
    if isinstance(scale, str) and s.ndim:
        s = np.broadcast_to(s, wanted)
    if s.shape not in ((), wanted) or not np.all(np.isfinite(s)):
        each = "one per channel and block" if manifold.block_shape else "one per channel"
        raise ValueError(
            f"scale must be a finite number, or an array of them, {each}, of shape {wanted}, or "
            f"'sqrt_dim'; got {scale!r}"
        )
    return float(s) if s.ndim == 0 else like(s, X)


def weights_for(batch: tuple[int, ...], X: Array, weights: Any) -> Array | None:
    """Return the weights of the samples, not all zero; the search of the mean checks their signs.

    ``batch`` is the shape of all samples, (N, *channels), and ``X`` holds some of them.
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


def like(value: Any, x: Array, name: str = "this") -> Array:
    """Return numbers, from whatever library, in the library, dtype and device of ``x``."""
    return backend_of(x).from_numpy(np.array(host(value, name), dtype=np.float64), x)


def reason(manifold: GyroSpace, x: Array) -> str:
    """Say why the arithmetic fails on points of the manifold."""
    if manifold.convexity_radius < float("inf"):
        return (
            f"Points {2 * manifold.convexity_radius:.4g} apart are antipodal, and no one geodesic "
            "leads from one to the other: drop such samples, and keep the mean (by rotating the "
            "data) and the bias away from the point antipodal to the identity"
        )
    wider = "" if "float64" in str(x.dtype) else ", or compute in float64"
    return (
        f"Numbers leave the range of {x.dtype}: rescale the data, give a smaller scale or a larger "
        f"eps{wider}"
    )
