"""What the estimator checks before it computes: samples, geometry, bias, scale and weights.

Every function returns what it was given in the form that the computation needs, or raises an error
that says what came and what to do.
"""

import math
from dataclasses import replace
from typing import Any

import array_api_compat as compat
import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from gyrobn.backends import Array, backend_of, cast_to, device_of, namespace_of
from gyrobn.data.chunks import Chunks, is_chunk_list, is_streamed
from gyrobn.estimator.labels import check_policy
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import scale_for
from gyrobn.numerics.checks import check_choice, check_number, did_you_mean, host, unmasked
from gyrobn.statistics.frechet import check_search
from gyrobn.statistics.points import on_manifold

_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


def check_parameters(given: Any) -> None:
    """Check the parameters that are plain values, of an estimator or a model."""
    check_choice("on_invalid", given.on_invalid, ("raise", "project"))
    check_number("eps", given.eps, 0.0)
    check_search(given.tol, given.max_iter, None)
    check_policy(given)
    check_output(given)


def check_output(given: Any) -> None:
    """Check what ``transform`` should return, of an estimator or a model."""
    check_choice("output", given.output, ("points", "coordinates"))
    if given.output == "coordinates" and given.bias is not None:
        raise ValueError(
            "output='coordinates' returns coordinates around the mean, which is at 0, and bias "
            "is a point: leave bias at None, or choose output='points'"
        )


def sample_shape(fitted: Any) -> tuple[int, ...]:
    """Return the shape of the samples that ``fit`` saw, (*channels, *point_shape)."""
    return tuple(fitted.mean_.shape)[0 if fitted.domains_ is None else 1 :]


def channels_of(fitted: Any) -> tuple[int, ...]:
    """Return the shape of the channels that ``fit`` saw."""
    shape = sample_shape(fitted)
    return shape[: len(shape) - len(fitted.manifold_.point_shape)]


def count_columns(fitted: Any) -> int:
    """Return the number of coordinates of a sample, in all channels."""
    return math.prod(channels_of(fitted)) * int(fitted.manifold_.dim)


def column_names(channels: tuple[int, ...], dim: int, word: str = "gyrobn") -> list[str]:
    """Return names of coordinates: a number, after that of the channel if there are several.

    >>> column_names((), 2), column_names((2,), 2)
    (['gyrobn0', 'gyrobn1'], ['gyrobn0_0', 'gyrobn0_1', 'gyrobn1_0', 'gyrobn1_1'])
    """
    each = ["".join(f"{k}_" for k in at) for at in np.ndindex(channels)]
    return [f"{word}{channel}{k}" for channel in each for k in range(dim)]


def takes_coordinates(fitted: Any, method: str) -> bool:
    """Return whether a method takes coordinates in place of points."""
    return fitted.output == "coordinates" and method == "inverse_transform"


def result_shape(fitted: Any, method: str) -> tuple[int, ...]:
    """Return the shape of what a method returns for a sample."""
    if fitted.output == "coordinates" and method == "transform":
        return (count_columns(fitted),)
    return sample_shape(fitted)


def as_array(estimator: Any, X: Any, method: str) -> Array:
    """Return X as an array, after checking all that does not depend on values."""
    given, fitted = X, method != "fit" and hasattr(estimator, "mean_")
    plain = type(X) is np.ndarray and X.dtype in _FLOATS and X.ndim > 1 and X.size > 0
    if not plain:
        X = _any_array(estimator, X, method)
    if fitted:
        _check_as_fitted(estimator, X, method)
    # scikit-learn checks names and number of columns; the output of transform has no names
    checked = fitted and plain and X.ndim > 2 and not hasattr(estimator, "feature_names_in_")
    if method != "inverse_transform" and not checked:
        validate_data(estimator, given, reset=not fitted, skip_check_array=True)
    return X


def _any_array(estimator: Any, X: Any, method: str) -> Array:
    """Return X, a list, a data frame or an array of any library, as an array of floats."""
    X = unmasked(X, "X")
    if (is_streamed(X) and not hasattr(X, "shape")) or is_chunk_list(X, _axes(estimator, method)):
        raise TypeError(
            f"GyroBN.{method}() returns one array, and takes one: of chunks, "
            "GyroBN.transform_chunks() returns chunks"
        )
    if not compat.is_array_api_obj(X) or compat.is_numpy_array(X):
        options = {"dtype": [np.float64, np.float32], "allow_nd": True, "input_name": "X"}
        # NaN and infinity are found later, by a check that says where they are
        X = check_array(X, ensure_all_finite=False, estimator=estimator, **options)
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


def _check_as_fitted(estimator: Any, X: Array, method: str) -> None:
    """Refuse samples of another library, device or shape than those that ``fit`` saw."""
    mean, shape = estimator.mean_, tuple(X.shape)
    if not (type(X) is type(mean) is np.ndarray):
        got, wanted = ((_library(a), device_of(a)) for a in (X, mean))
        if got != wanted:
            raise ValueError(
                f"Inputs passed to GyroBN.{method}() must use the same namespace and the same "
                f"device as those passed to fit(): got {got[0]} (device {got[1]}), fitted to "
                f"{wanted[0]} (device {wanted[1]}); convert X, or fit to arrays like X"
            )
    if takes_coordinates(estimator, method):
        columns = count_columns(estimator)
        if shape[1:] != (columns,):
            raise ValueError(
                f"GyroBN.{method}() with output='coordinates' expects the coordinates that "
                f"transform() returns, shape (N, {columns}), got X of shape {shape}"
            )
        return
    seen = sample_shape(estimator)
    table = method != "inverse_transform" and len(shape) == 2 and len(seen) == 1
    if shape[1:] != seen and not table:  # scikit-learn checks the columns of a table
        raise ValueError(
            f"GyroBN.{method}() expects samples of shape {seen}, as fit() saw them, "
            f"got X of shape {shape}"
        )


def _library(x: Array) -> str:
    return str(namespace_of(x).__name__).removeprefix("array_api_compat.").split(".")[0]


def _axes(estimator: Any, method: str) -> int:
    """Return the number of axes of a sample; before fit, of a point, since channels are unknown."""
    if hasattr(estimator, "mean_") and method != "fit":
        return 1 if takes_coordinates(estimator, method) else len(sample_shape(estimator))
    cls, manifold = _class_of(estimator.manifold), estimator.manifold
    return len((cls.examples()[0] if isinstance(manifold, str) else manifold).point_shape)


def chunked(estimator: Any, X: Any, method: str) -> Any:
    """Return ``Chunks`` if X comes in chunks, else X."""
    if isinstance(X, Chunks):
        return X
    X = unmasked(X, "X")
    if is_streamed(X) or is_chunk_list(X, _axes(estimator, method)):
        return Chunks(X)
    return X


GEOMETRY = {"metric": str, "curvature": float, "theta": float, "representation": str}
"""Options of the geometries that are parameters of the estimator; None takes the default."""


def _class_of(manifold: Any) -> type[GyroSpace]:
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


def geometry_for(estimator: Any, X: Array) -> GyroSpace:
    """Return the geometry, with the sizes of X if only its name is given, and its parameters."""
    manifold: Any = estimator.manifold
    shape = tuple(X.shape)
    cls = _class_of(manifold)
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
        if depends_on_values(estimator, shape) and len(cls.examples()[0].point_shape) == 1:
            _check_rows(manifold, cls, X)
        try:
            if given.get("representation") == "projector":
                manifold = of_projectors(host(X[: min(100, shape[0]), ...]))
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


def depends_on_values(estimator: Any, shape: Any) -> bool:
    """Return whether the samples say what a name means: the rank of projectors, or a mistake."""
    square = len(shape) > 2 and shape[-1] == shape[-2] > 1
    return isinstance(estimator.manifold, str) and (
        estimator.representation == "projector" or square
    )


def _check_rows(name: str, cls: type[GyroSpace], X: Array) -> None:
    """Refuse symmetric matrices where the name of a geometry would take their rows as vectors."""
    shape, n = tuple(X.shape), X.shape[-1]
    x = host(X[: min(100, shape[0]), ...])
    with np.errstate(all="ignore"):
        off, size = np.abs(x - np.swapaxes(x, -1, -2)).max(), np.abs(x).max()
    if size > 0 and off <= np.finfo(x.dtype).eps ** 0.5 * size:
        raise ValueError(
            f"X of shape {shape} holds symmetric matrices, and manifold={name!r} would normalize "
            f"their rows, {n} channels of vectors: give manifold='spd' for covariances or "
            f"'correlation' for correlation matrices; if rows are what you mean, give the geometry "
            f"{cls.for_shape(shape[1:])!r} in place of its name"
        )


def check_scale(factor: Any, scale: Any) -> None:
    """Refuse a negative scale: it is the standard deviation of the output."""
    if np.any(host(factor) < 0):
        raise ValueError(
            "scale is the standard deviation of the output and must not be negative, got "
            f"{scale!r}: a negative scale would also reflect the samples at their mean"
        )


def affine_for(manifold: GyroSpace, X: Array, bias: Any, scale: Any) -> tuple[Any, Any]:
    """Return bias and scale in the library and dtype of X, their shapes checked."""
    shape, points = tuple(X.shape[1:]), manifold.point_shape
    factor = scale
    if type(scale) is not float or not math.isfinite(scale):
        factor = _scale_for(manifold, X, scale)
    if bias is None:
        return None, factor
    bias = like(bias, X, "bias")
    if tuple(bias.shape) not in (points, shape):
        raise ValueError(
            f"bias must be a point of {manifold!r}, shape {points}, or one per channel, "
            f"shape {shape}; got shape {tuple(bias.shape)}"
        )
    return on_manifold(manifold, bias, "bias"), factor


def _scale_for(manifold: GyroSpace, X: Array, scale: Any) -> Any:
    """Return the scale as a number, or as an array with one entry per channel (and block)."""
    wanted = (*X.shape[1 : X.ndim - len(manifold.point_shape)], *manifold.block_shape)
    each = "one per channel and block" if manifold.block_shape else "one per channel"
    s = host(scale_for(manifold, scale), "scale", np.float64)
    if isinstance(scale, str) and s.ndim:
        s = np.broadcast_to(s, wanted)
    if s.shape not in ((), wanted) or not np.all(np.isfinite(s)):
        raise ValueError(
            f"scale must be a finite number, or an array of them, {each}, of shape "
            f"{wanted}, or 'sqrt_dim'; got {scale!r}"
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
            f"Points {2 * manifold.convexity_radius:.4g} apart are opposite, and no one direction "
            "leads from one to the other: drop such samples, and keep the mean (by rotating the "
            "data) and the bias away from the point opposite to the identity"
        )
    wider = "" if "float64" in str(x.dtype) else ", or compute in float64"
    return (
        f"Numbers leave the range of {x.dtype}: rescale the data, give a smaller scale or a larger "
        f"eps{wider}"
    )
