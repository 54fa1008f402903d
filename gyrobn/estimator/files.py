"""Fitted estimators in files: a ``.npz`` without pickle, that is, arrays and a header in JSON.

``header.json`` has the format, its version, the names of the arrays, the geometry and the
parameters. Reading runs no code of the file, needs memory in proportion to its length, and checks
everything before an estimator is made.
"""

import copy
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from reprlib import repr as _shown
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data import replacing
from gyrobn.estimator.applying import affine_of, as_points, settled
from gyrobn.estimator.labels import as_labels, check_kind
from gyrobn.estimator.validation import check_parameters, geometry_options, sample_shape
from gyrobn.manifolds import REGISTRY, Product
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.online import OnlineStats
from gyrobn.numerics.checks import check_integer, host
from gyrobn.statistics.points import on_manifold, plain_geometry

FORMAT, VERSION, HEADER = "gyrobn model", 1, "header.json"
ARRAYS = {"mean", "var", "weight", "n_iter", "converged"}
"""The arrays of every file; the attributes have an underscore at the end."""
ONLINE = ("online", "online_count", "online_mean", "online_var")
OPTIONAL = {"bias", "scale", "domains", "feature_names", *ONLINE}
COUNTS = ("n_samples_seen", "n_projected")
FORMER = {"mean_kind"}
"""Entries of older files that mean nothing any more."""
PLAIN = (str, int, float, type(None))
"""The types that JSON stores as they are."""

# ---------------------------------------------------------------------- writing


def write(bn: Any, path: Any) -> None:
    """Write a fitted estimator to a file, completely or not at all."""
    bn = converted(bn)
    parameters = bn.get_params(deep=False)
    arrays = {name: getattr(bn, _attribute(name)) for name in ARRAYS}
    arrays |= {name: v for name, v in parameters.items() if isinstance(v, np.ndarray)}
    if bn.domains_ is not None:
        arrays["domains"] = bn.domains_
    if hasattr(bn, "feature_names_in_"):
        arrays["feature_names"] = np.asarray(bn.feature_names_in_, dtype=np.str_)
    if bn.online_:
        labels = sorted(bn.online_)
        states = [bn.online_[label] for label in labels]
        arrays["online"] = as_labels(labels)
        for name in ("count", "mean", "var"):
            arrays[f"online_{name}"] = np.stack([getattr(state, name) for state in states])
    values = {
        name: v for name, v in parameters.items() if v is not None or name not in geometry_options()
    }
    header = {
        "format": FORMAT,
        "version": VERSION,
        "gyrobn": sys.modules["gyrobn"].__version__,  # an import would be circular
        "arrays": sorted(arrays),
        "geometry": geometry_to_json(bn.manifold_),
        **{name: getattr(bn, f"{name}_") for name in COUNTS},
        **{name: None if name in arrays else _plain(v) for name, v in values.items()},
    }
    text = json.dumps(header, allow_nan=False, indent=1).encode()
    with replacing(path) as draft, open(draft, "x+b") as file:
        np.savez(file, **{name: np.asarray(a, order="C") for name, a in arrays.items()})
        with ZipFile(file, "a") as archive:
            archive.writestr(ZipInfo(HEADER), text)


def _attribute(name: str) -> str:
    return "weight_sum_" if name == "weight" else f"{name}_"


def _plain(value: Any) -> Any:
    return geometry_to_json(value) if isinstance(value, GyroSpace) else value


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
    names = [name for name, cls in REGISTRY.items() if cls is type(geometry)]
    if not names and registered:
        raise ValueError(
            f"{type(geometry).__name__} cannot be saved: a file holds geometries of gyrobn.REGISTRY"
        )
    if isinstance(geometry, Product):
        values: dict[str, Any] = {
            "factors": [geometry_to_json(part, registered) for part in geometry.factors]
        }
    else:
        values = {f.name: getattr(geometry, f.name) for f in fields(geometry)}
        values = {key: v if isinstance(v, PLAIN) else repr(v) for key, v in values.items()}
    return {"name": names[0] if names else type(geometry).__qualname__} | values


# ---------------------------------------------------------------------- reading


class Refused(ValueError):
    """A file that is complete but is not a model for this version; the message says why."""


class NewerVersion(Refused):
    """What was written has entries that this version does not have; the message says which."""

    def __init__(self, what: str, unknown: Iterable[Any], writer: Any = None) -> None:
        by = "" if writer is None else f" ({_shown(writer)})"
        super().__init__(
            f"was written by a newer version of gyrobn{by}: {what} "
            f"{_shown(sorted(map(str, unknown)))}; upgrade gyrobn"
        )


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


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turn every error about the bytes of a file into one line.

    zipfile, json and NumPy raise many kinds of exceptions on a damaged file.
    """
    try:
        yield
    except Refused as error:
        raise ValueError(f"{name} {error}") from None
    except Exception as error:
        what = " ".join(f"{error}".split())[:300] or type(error).__name__
        raise ValueError(
            f"{name} is damaged or truncated ({what}): nothing was loaded; save the model again"
        ) from error


def read(cls: type[Any], path: Any, like: Array | None = None) -> Any:
    """Return the estimator that :func:`write` wrote, or say what is wrong with the file."""
    name = repr(os.fspath(path))
    if not stat.S_ISREG(os.stat(path).st_mode):
        kind = IsADirectoryError if os.path.isdir(path) else ValueError
        raise kind(f"{name} is not a regular file: give a file that GyroBN.save() wrote")
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ValueError(f"{name} is not a gyrobn model: give a file that GyroBN.save() wrote")
        file.seek(0)
        with _damage(name), np.load(file, allow_pickle=False) as archive:
            bn = converted(_estimator(cls, *_contents(cls, archive)))
    return bn if like is None else converted(bn, like)


def _contents(cls: type[Any], archive: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the arrays of a file, all of which are complete."""
    members = [info.filename for info in archive.zip.infolist()]
    if HEADER not in members:
        raise Refused("is not a gyrobn model: give a file that GyroBN.save() wrote")
    # without compression a member cannot be longer than the file, and so cannot fill the memory
    if any(info.compress_type != ZIP_STORED for info in archive.zip.infolist()):
        raise ValueError("a member is compressed")
    if bad := archive.zip.testzip():
        raise ValueError(f"the checksum of {_shown(bad)} is wrong")
    header = json.loads(archive.zip.read(HEADER).decode())
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise Refused("is not a gyrobn model: give a file that GyroBN.save() wrote")
    version, writer = header.pop("version", None), header.pop("gyrobn", None)
    if type(version) is int and version > VERSION:
        raise NewerVersion(f"this one reads format {VERSION}, not", [version], writer)
    if type(version) is not int or version != VERSION:
        raise ValueError(f"format version {_shown(version)}")
    valid = {*cls._get_param_names(), *COUNTS, "arrays", "geometry"}
    header = {key: value for key, value in header.items() if key not in FORMER}
    if header.keys() - valid:
        raise NewerVersion("its header has", header.keys() - valid, writer)
    names = {name.removesuffix(".npy") for name in members} - {HEADER}
    wanted = set(header.pop("arrays", names | ARRAYS))  # older files do not list them
    if wanted - ARRAYS - OPTIONAL:
        raise NewerVersion("it has the arrays", wanted - ARRAYS - OPTIONAL, writer)
    if sorted(members) != sorted([HEADER, *(f"{name}.npy" for name in wanted)]):
        raise ValueError(
            f"it should hold the arrays {_shown(sorted(wanted))}, and has {_shown(members)}"
        )
    arrays = {name: archive[name] for name in wanted}
    return header, {n: a.astype(a.dtype.newbyteorder("="), order="C") for n, a in arrays.items()}


def _estimator(cls: type[Any], header: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """Return an estimator with the entries and arrays of a file."""
    geometry = geometry_from_json(header.pop("geometry", None))
    counts = {name: check_integer(name, header.pop(name, 0), 0) for name in COUNTS}
    manifold = header.get("manifold")
    if not (isinstance(manifold, str) and manifold in REGISTRY):
        header["manifold"] = geometry_from_json(manifold)
    header |= {name: arrays.pop(name) for name in ("bias", "scale") if name in arrays}
    bn = cls(**header)
    bn.manifold_, bn.domains_ = geometry, arrays.pop("domains", None)
    vars(bn).update({f"{name}_": count for name, count in counts.items()})
    vars(bn).update({_attribute(name): arrays.pop(name) for name in ARRAYS})
    names = arrays.pop("feature_names", None)
    if names is not None:
        bn.feature_names_in_ = np.asarray(names.tolist(), dtype=object)
    bn.online_ = {}
    if arrays:
        labels, *states = (arrays[name] for name in ONLINE)
        bn.online_ = {
            label: OnlineStats(*(a[k, ...] for a in states))
            for k, label in enumerate(labels.tolist())
        }
    bn.n_features_in_ = sample_shape(bn)[0]
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
        raise ValueError(f"like must be an array of float32 or float64, got {like.dtype}")
    numbers = np.empty((), np.float32 if like.dtype == xp.float32 else np.float64)
    new.manifold_ = plain_geometry(bn.manifold_)
    for name, value in bn.get_params(deep=False).items():
        setattr(new, name, _number_or_array(value))
    with np.errstate(all="ignore"):  # what leaves the range is refused by the check
        if new.bias is not None and mean.dtype != numbers.dtype == np.float64:
            new.bias = settled(new.manifold_, new.bias)
        new.mean_ = as_points(new.manifold_, mean, numbers)
        new.var_, new.weight_sum_ = (
            host(a).astype(numbers.dtype) for a in (bn.var_, bn.weight_sum_)
        )
        new.n_iter_, new.converged_ = host(bn.n_iter_, dtype=np.int32), host(bn.converged_)
        new.online_ = {
            label: OnlineStats(
                int(state.count),
                as_points(new.manifold_, host(state.mean), numbers),
                host(state.var).astype(numbers.dtype),
            )
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


def _number_or_array(value: Any) -> Any:
    """Return a parameter as a plain value, or as an array of float64."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, GyroSpace):
        return plain_geometry(value)
    array = host(value)
    return array.item() if array.ndim == 0 else array.astype(np.float64)


def _check(bn: Any) -> None:
    """Refuse an estimator of NumPy arrays with attributes that ``fit`` would not have set."""
    check_parameters(bn)
    M, mean, domains = bn.manifold_, bn.mean_, bn.domains_
    if domains is not None:
        _check_labels("domains", domains)
    batch = mean.shape[: mean.ndim - len(M.point_shape)]
    _check_array("mean", mean, (*batch, *M.point_shape), mean.dtype)
    if 0 in mean.shape or mean.dtype not in (np.float32, np.float64):
        raise ValueError(f"mean has dtype {mean.dtype} and shape {mean.shape}")
    if domains is not None and batch[:1] != domains.shape:
        raise ValueError(f"mean must be {len(domains)} means, got shape {mean.shape}")
    _check_array("var", bn.var_, (*batch, *M.block_shape), mean.dtype)
    _check_array("weight", bn.weight_sum_, batch, mean.dtype)
    _check_array("n_iter", bn.n_iter_, batch, np.dtype(np.int32))
    _check_array("converged", bn.converged_, batch, np.dtype(np.bool_))
    on_manifold(M, mean, "mean")
    shape = sample_shape(bn)
    names = getattr(bn, "feature_names_in_", None)
    if names is not None and (len(names) != shape[0] or not all(isinstance(n, str) for n in names)):
        raise ValueError(f"feature_names must be {shape[0]} names, got {_shown(list(names))}")
    affine_of(bn, np.empty((0, *shape), mean.dtype), "transform")
    if not bn.online_:
        return
    labels = as_labels(sorted(bn.online_))
    if domains is None or np.isin(labels, domains).any():
        raise ValueError("online must be labels other than domains")
    check_kind(domains, labels)
    for state in bn.online_.values():
        check_integer("online_count", state.count, 1)
        _check_array("online_mean", state.mean, shape, mean.dtype)
        _check_array("online_var", state.var, bn.var_.shape[1:], mean.dtype)
        on_manifold(M, state.mean, "online_mean")


def _check_labels(name: str, labels: Any) -> None:
    if labels.dtype.kind not in "iubU" or labels.ndim != 1 or not labels.size:
        raise ValueError(f"{name} must be a list of labels, got {_shown(labels)}")
    if not np.array_equal(labels, np.unique(labels.tolist())):
        raise ValueError(f"{name} must be different labels in their order, got {_shown(labels)}")


def _check_array(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{name} must be an array of {dtype} of shape {shape}, got {array.dtype} of shape "
            f"{array.shape}"
        )
    if name != "mean" and not np.all((array >= 0) & (array < np.inf)):
        raise ValueError(f"{name} must be finite and not negative")
