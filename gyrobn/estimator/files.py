"""Fitted estimators in files: a ``.npz`` without pickle, that is, arrays and a header in JSON.

``header.json`` has the format, its version, the names of the arrays, the geometry and the
parameters. Reading runs no code of the file, needs memory in proportion to its length, and checks
everything before an estimator is made.
"""

import copy
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from reprlib import repr as _shown
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data import replacing
from gyrobn.estimator import validation as check
from gyrobn.estimator.applying import affine_of, as_points, settled
from gyrobn.manifolds import REGISTRY, Product
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.online import OnlineStats
from gyrobn.numerics.checks import check_integer, host
from gyrobn.statistics.points import on_manifold, plain_geometry

FORMAT, VERSION, HEADER = "gyrobn model", 1, "header.json"
ARRAYS = {
    "mean": "mean_",
    "var": "var_",
    "weight": "weight_sum_",
    "n_iter": "n_iter_",
    "converged": "converged_",
}
"""The arrays of every file, with their attributes."""
ONLINE = ("online", "online_count", "online_mean", "online_var")
COUNTS = ("n_samples_seen", "n_projected")
FORMER = {"mean_kind"}
"""Entries of older files that mean nothing any more."""
PLAIN = (str, int, float, type(None))
"""The types that JSON stores as they are."""


# ---------------------------------------------------------------------- writing


def write(bn: Any, path: Any) -> None:
    """Write a fitted estimator to a file, completely or not at all."""
    bn = converted(bn)
    arrays = {name: getattr(bn, attribute) for name, attribute in ARRAYS.items()}
    arrays["domains"] = bn.domains_
    if hasattr(bn, "feature_names_in_"):
        arrays["feature_names"] = np.asarray(bn.feature_names_in_, dtype=np.str_)
    values = bn.get_params(deep=False)
    arrays |= {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
    if bn.online_:
        arrays["online"] = check.as_labels(sorted(bn.online_))
        states = [bn.online_[label] for label in sorted(bn.online_)]
        for name in ("count", "mean", "var"):
            arrays[f"online_{name}"] = np.stack([getattr(state, name) for state in states])
    arrays = {name: np.asarray(a, order="C") for name, a in arrays.items() if a is not None}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "gyrobn": sys.modules["gyrobn"].__version__,  # an import would be circular
        "arrays": sorted(arrays),
        "geometry": geometry_to_json(bn.manifold_),
        **{name: getattr(bn, f"{name}_") for name in COUNTS},
        **{name: v for name, v in values.items() if name not in arrays and v is not None},
    }
    if isinstance(bn.manifold, GyroSpace):
        header["manifold"] = geometry_to_json(bn.manifold)
    text = json.dumps(header, allow_nan=False, indent=1)
    with replacing(path) as draft, open(draft, "x+b") as file:
        np.savez(file, allow_pickle=False, **arrays)
        with ZipFile(file, "a") as archive:
            archive.writestr(ZipInfo(HEADER), text)  # with no date: the same model, the same bytes


def geometry_to_json(geometry: GyroSpace, registered: bool = True) -> dict[str, Any]:
    """Return a geometry in a form for JSON.

    A geometry that is not in ``gyrobn.REGISTRY`` is refused. With ``registered=False`` the name of
    its class stands for it: such a description can be compared, but not read again.

    >>> from gyrobn import Euclidean, PoincareBall, Product
    >>> geometry_to_json(PoincareBall(2, curvature=-0.5))
    {'name': 'poincare_ball', 'n': 2, 'curvature': -0.5}
    >>> geometry_to_json(Product(Euclidean(3), Euclidean(1)))["factors"][1]
    {'name': 'euclidean', 'n': 1}
    """
    cls = type(geometry)
    names = [name for name, known in REGISTRY.items() if known is cls]
    if not names and registered:
        raise ValueError(f"{cls.__name__} cannot be saved: it is not in gyrobn.REGISTRY")
    values = {one.name: getattr(geometry, one.name) for one in fields(cls)}
    if isinstance(geometry, Product):
        values["factors"] = [geometry_to_json(part, registered) for part in geometry.factors]
    elif not registered:
        values = {key: v if isinstance(v, PLAIN) else repr(v) for key, v in values.items()}
    return {"name": names[0] if names else cls.__qualname__} | values


# ---------------------------------------------------------------------- reading


class Refused(ValueError):
    """A file that is complete but is not a model for this version; the message says why."""


class NewerVersion(Refused):
    """What was written has entries that this version does not have."""

    def __init__(self, what: str, unknown: Iterable[Any], by: str = "") -> None:
        what = f"{what} {_shown(sorted(map(str, unknown)))}"
        super().__init__(f"was written by a newer version of gyrobn{by}: {what}; upgrade gyrobn")


def geometry_from_json(value: Any) -> GyroSpace:
    """Return the geometry of :func:`geometry_to_json`, or say what is wrong with it.

    An option that is missing, because an older version did not have it, takes its default.

    >>> geometry_from_json({"name": "poincare_ball", "n": 2, "curvature": -0.5})
    PoincareBall(n=2, curvature=-0.5)
    """
    given = dict(value) if isinstance(value, dict) else {}
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"{_shown(value)} is not a geometry")
    if name not in REGISTRY:
        raise Refused(f"has the geometry {_shown(name)}, which this gyrobn lacks: upgrade gyrobn")
    cls = REGISTRY[name]
    names = {one.name for one in fields(cls)}
    if given.keys() - names:
        raise NewerVersion(f"the geometry {name!r} has", given.keys() - names)
    missing = names - given.keys() - cls.options().keys()
    if missing:
        raise ValueError(f"the geometry {name} has no {_shown(sorted(missing))}")
    if cls is Product:
        if not isinstance(given["factors"], list):
            raise ValueError(f"factors must be a list, got {_shown(given['factors'])}")
        return Product(*map(geometry_from_json, given["factors"]))
    geometry = cls(**given)
    if not all(isinstance(v, (int, float)) for v in geometry.learnable()):
        raise ValueError(f"the parameters of a geometry must be numbers, got {_shown(value)}")
    return geometry


def read(cls: type[Any], path: Any, like: Array | None = None) -> Any:
    """Return the estimator that :func:`write` wrote, or say what is wrong with the file."""
    name, file = repr(os.fspath(path)), Path(os.fsdecode(path))
    if file.exists() and not file.is_file():
        kind = IsADirectoryError if file.is_dir() else ValueError
        raise kind(f"{name} is not a regular file: give a file that GyroBN.save() wrote")
    with open(file, "rb") as opened, _damage(name):
        with ZipFile(opened) as archive:
            header = _header(cls, archive)
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as members:
            bn = _estimator(cls, header, {key: members[key] for key in header.pop("arrays")})
        bn = converted(bn)
    return bn if like is None else converted(bn, like)


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turn every error about the bytes of a file into one line."""
    try:
        yield
    except Refused as error:
        raise ValueError(f"{name} {error}") from None
    except Exception as error:  # zipfile, json and NumPy raise many kinds on a damaged file
        what = " ".join(f"{error}".split())[:300] or type(error).__name__
        raise ValueError(
            f"{name} is not a gyrobn model, or damaged or truncated ({what}): nothing was loaded"
        ) from error


def _header(cls: type[Any], archive: ZipFile) -> dict[str, Any]:
    """Return the header of a file, all members of which are complete."""
    found = [info.filename for info in archive.infolist()]
    if HEADER not in found:
        raise Refused("is a zip archive, but not a gyrobn model")
    # without compression a member cannot be longer than the file, and so cannot fill the memory
    if any(info.compress_type != ZIP_STORED for info in archive.infolist()):
        raise ValueError("a member is compressed")
    if wrong := archive.testzip():
        raise ValueError(f"the checksum of {_shown(wrong)} is wrong")
    header = json.loads(archive.read(HEADER).decode())
    if header.pop("format") != FORMAT:
        raise Refused("is a zip archive, but not a gyrobn model")
    version, writer = header.pop("version"), f" ({_shown(header.pop('gyrobn', None))})"
    if type(version) is not int or version < 1:
        raise ValueError(f"format version {_shown(version)}")
    if version > VERSION:
        raise NewerVersion("it has the format", [version], writer)
    header = {key: value for key, value in header.items() if key not in FORMER}
    unknown = header.keys() - {*cls._get_param_names(), *COUNTS, "arrays", "geometry"}
    if unknown:
        raise NewerVersion("its header has", unknown, writer)
    names = {name.removesuffix(".npy") for name in found} - {HEADER}
    header["arrays"] = arrays = header.get("arrays", sorted(names | ARRAYS.keys()))
    if sorted(found) != sorted([HEADER, *(f"{name}.npy" for name in arrays)]):
        raise ValueError(f"it should hold the arrays {_shown(arrays)}, and has {_shown(found)}")
    unknown = set(arrays) - {*ARRAYS, *ONLINE, "bias", "scale", "domains", "feature_names"}
    if unknown:
        raise NewerVersion("it has the arrays", unknown, writer)
    return header


def _estimator(cls: type[Any], header: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """Return an estimator with the entries and arrays of a file."""
    arrays = {n: a.astype(a.dtype.newbyteorder("="), order="C") for n, a in arrays.items()}
    geometry = geometry_from_json(header.pop("geometry", None))
    counts = {f"{name}_": check_integer(name, header.pop(name, 0), 0) for name in COUNTS}
    if header.get("manifold") not in list(REGISTRY):
        header["manifold"] = geometry_from_json(header.get("manifold"))
    bn = cls(**header | {name: arrays.pop(name) for name in ("bias", "scale") if name in arrays})
    bn.manifold_, bn.domains_, bn.online_ = geometry, arrays.pop("domains", None), {}
    vars(bn).update(counts | {ARRAYS[name]: arrays.pop(name) for name in ARRAYS})
    names = arrays.pop("feature_names", None)
    if names is not None:
        bn.feature_names_in_ = np.asarray(names.tolist(), dtype=object)
    if arrays:
        labels, *states = (arrays[name] for name in ONLINE)
        for k, label in enumerate(labels.tolist()):
            bn.online_[label] = OnlineStats(*(a[k, ...] for a in states))
    bn.n_features_in_ = check.sample_shape(bn)[0]
    return bn


# ---------------------------------------------------------------------- libraries and dtypes


def converted(bn: Any, like: Array | None = None) -> Any:
    """Return a copy of a fitted estimator, checked, with its statistics in another library.

    They get the library, dtype and device of ``like``; by default they become NumPy arrays in their
    dtype. The parameters become plain numbers and NumPy arrays.
    """
    new, mean = copy.copy(bn), host(bn.mean_)
    like = np.empty((), mean.dtype) if like is None else like
    xp, backend = namespace_of(like), backend_of(like)
    if like.dtype not in (xp.float32, xp.float64):
        raise ValueError(f"statistics must be float32 or float64, got {like.dtype}")
    one = np.empty((), np.float32 if like.dtype == xp.float32 else np.float64)
    M = new.manifold_ = plain_geometry(bn.manifold_)
    for name, value in bn.get_params(deep=False).items():
        setattr(new, name, _plain(value))

    def stats(mean: Any, var: Any) -> tuple[Any, Any]:
        return as_points(M, host(mean), one), host(var).astype(one.dtype)

    with np.errstate(all="ignore"):  # what leaves the range is refused by the check
        if new.bias is not None and mean.dtype != one.dtype == np.float64:
            new.bias = settled(M, new.bias)
        new.mean_, new.var_ = stats(mean, bn.var_)
        new.weight_sum_ = host(bn.weight_sum_).astype(one.dtype)
        new.n_iter_, new.converged_ = host(bn.n_iter_, dtype=np.int32), host(bn.converged_)
        new.online_ = {
            label: OnlineStats(int(state.count), *stats(state.mean, state.var))
            for label, state in bn.online_.items()
        }
    _check(new)

    def put(values: Any, dtype: Any = like.dtype) -> Array:
        # first in the dtype of like: so every library puts it on the device of like
        return xp.astype(backend.from_numpy(np.array(values), like), dtype)

    new.mean_, new.var_, new.weight_sum_ = map(put, (new.mean_, new.var_, new.weight_sum_))
    for label, state in new.online_.items():
        new.online_[label] = OnlineStats(state.count, put(state.mean), put(state.var))
    several = new.n_iter_.ndim > 0
    new.n_iter_ = put(new.n_iter_, xp.int32) if several else int(new.n_iter_)
    new.converged_ = put(new.converged_, xp.bool) if several else bool(new.converged_)
    return new


def _plain(value: Any) -> Any:
    """Return a parameter as a plain value, or as an array of float64."""
    if value is None or isinstance(value, (str, GyroSpace)):
        return plain_geometry(value) if isinstance(value, GyroSpace) else value
    array = host(value)
    return array.item() if array.ndim == 0 else array.astype(np.float64)


def _check(bn: Any) -> None:
    """Refuse an estimator of NumPy arrays with attributes that ``fit`` would not have set."""
    check.check_parameters(bn)
    M, mean, domains = bn.manifold_, bn.mean_, bn.domains_
    batch = mean.shape[: mean.ndim - len(M.point_shape)]
    _check_array("mean", mean, (*batch, *M.point_shape), mean.dtype)
    if 0 in mean.shape or mean.dtype not in (np.float32, np.float64):
        raise ValueError(f"mean has dtype {mean.dtype} and shape {mean.shape}")
    if domains is not None:
        alone = np.unique(domains.tolist())
        good = domains.dtype.kind in "iubU" and np.array_equal(domains, alone)
        if not good or domains.shape != batch[:1]:
            raise ValueError(f"domains must be {batch[:1]} different labels, got {_shown(domains)}")
    _check_array("var", bn.var_, (*batch, *M.block_shape), mean.dtype)
    _check_array("weight", bn.weight_sum_, batch, mean.dtype)
    _check_array("n_iter", bn.n_iter_, batch, np.int32)
    _check_array("converged", bn.converged_, batch, np.bool_)
    on_manifold(M, mean, "mean")
    shape, names = check.sample_shape(bn), getattr(bn, "feature_names_in_", None)
    if names is not None and not (names.shape == shape[:1] and set(map(type, names)) == {str}):
        raise ValueError(f"feature_names must be {shape[0]} names, got {_shown(list(names))}")
    affine_of(bn, np.empty((0, *shape), mean.dtype), "transform")
    if not bn.online_:
        return
    labels = check.as_labels(sorted(bn.online_))
    check.check_kind(domains, labels)
    if np.isin(labels, domains).any():
        raise ValueError("online must be labels other than domains")
    for state in bn.online_.values():
        check_integer("online_count", state.count, 1)
        _check_array("online_mean", state.mean, shape, mean.dtype)
        _check_array("online_var", state.var, bn.var_.shape[1:], mean.dtype)
        on_manifold(M, state.mean, "online_mean")


def _check_array(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{name} must be an array of {np.dtype(dtype)} of shape {shape}, got {array.dtype} of "
            f"shape {array.shape}"
        )
    if "mean" not in name and not np.all((array >= 0) & (array < np.inf)):
        raise ValueError(f"{name} must be finite and not negative")
