"""Fitted estimators in files: a ``.npz`` without pickle, that is, arrays and a header in JSON.

``header.json`` has the format, its version, the names of the arrays, the geometry and the
parameters. Reading runs no code of the file, needs memory in proportion to its length, and checks
everything before an estimator is made.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from reprlib import repr as _short
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from gyrobn.backends import Array, namespace_of
from gyrobn.data import replacing
from gyrobn.estimator import validation as check
from gyrobn.estimator.applying import as_points, settled
from gyrobn.estimator.fitting import ATTRIBUTES, Fitted, store
from gyrobn.manifolds import REGISTRY, Product
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.online import OnlineStats
from gyrobn.numerics.arrays import cast, from_host, real_dtype
from gyrobn.numerics.checks import check_integer, host
from gyrobn.statistics.points import on_manifold, plain_geometry

FORMAT, VERSION, HEADER = "gyrobn model", 1, "header.json"
ONLINE = ("online", "online_count", "online_mean", "online_var")
OTHERS = (*ONLINE, "domains", "feature_names", "seen_from")
"""Arrays beside those of :class:`~gyrobn.estimator.fitting.Fitted` and of parameters."""
COUNTS = ("n_samples_seen", "n_projected")
FORMER = {"mean_kind"}
"""Entries of older files that mean nothing any more."""
PLAIN = (str, int, float, type(None))
"""The types that JSON stores as they are."""


# ---------------------------------------------------------------------- geometries


class Refused(ValueError):
    """What is complete but does not fit this version; the message says why."""


class NewerVersion(Refused):
    """What was written has entries that this version does not have."""

    def __init__(self, what: str, unknown: Iterable[Any], by: str = "") -> None:
        what = f"{what} {_short(sorted(map(str, unknown)))}"
        super().__init__(f"was written by a newer version of gyrobn{by}: {what}; upgrade gyrobn")


def geometry_to_json(geometry: GyroSpace, registered: bool = True) -> dict[str, Any]:
    """Return a geometry in a form for JSON.

    A geometry that is not in ``gyrobn.REGISTRY`` is refused. With ``registered=False`` the name of
    its class stands for it.

    >>> from gyrobn import Euclidean, PoincareBall, Product
    >>> geometry_to_json(PoincareBall(2, curvature=-0.5))
    {'name': 'poincare_ball', 'n': 2, 'curvature': -0.5}
    >>> geometry_to_json(Product(Euclidean(3), Euclidean(1)))["factors"][1]
    {'name': 'euclidean', 'n': 1}
    """
    cls = type(geometry)
    if cls not in REGISTRY.values() and registered:
        raise ValueError(f"{cls.__name__} cannot be saved: it is not in gyrobn.REGISTRY")
    values = {one.name: getattr(geometry, one.name) for one in fields(cls)}
    if isinstance(geometry, Product):
        values["factors"] = [geometry_to_json(part, registered) for part in geometry.factors]
    elif not registered:
        values = {key: v if isinstance(v, PLAIN) else repr(v) for key, v in values.items()}
    return {"name": name_of(cls)} | values


def name_of(cls: type[GyroSpace]) -> str:
    """Return the name of a geometry in files, and of one that cannot be in a file, of its class."""
    return next((name for name, one in REGISTRY.items() if one is cls), cls.__qualname__)


def geometry_from_json(
    value: Any, others: Mapping[str, type[GyroSpace]] | None = None
) -> GyroSpace:
    """Return the geometry of :func:`geometry_to_json`, or say what is wrong with it.

    An option that is missing, because an older version did not have it, takes its default.
    ``others`` are classes that are not registered, by name.

    >>> geometry_from_json({"name": "poincare_ball", "n": 2, "curvature": -0.5})
    PoincareBall(n=2, curvature=-0.5)
    """
    given = dict(value) if isinstance(value, dict) else {}
    name, classes = given.pop("name", None), {**(others or {}), **REGISTRY}
    if not isinstance(name, str):
        raise ValueError(f"{_short(value)} is not a geometry")
    if name not in classes:
        raise Refused(f"has the geometry {_short(name)}, which this gyrobn lacks: upgrade gyrobn")
    cls = classes[name]
    names = {one.name for one in fields(cls)}
    if given.keys() - names:
        raise NewerVersion(f"the geometry {name!r} has", given.keys() - names)
    missing = names - given.keys() - cls.options().keys()
    if missing:
        raise ValueError(f"the geometry {name} has no {_short(sorted(missing))}")
    if cls is Product:
        if not isinstance(given["factors"], list):
            raise ValueError(f"factors must be a list, got {_short(given['factors'])}")
        return Product(*(geometry_from_json(part, others) for part in given["factors"]))
    geometry = cls(**given)
    if not all(isinstance(v, (int, float)) for v in geometry.learnable()):
        raise ValueError(f"the parameters of a geometry must be numbers, got {_short(value)}")
    return geometry


# ---------------------------------------------------------------------- there and back


def write(bn: Any, path: Any) -> None:
    """Write a fitted estimator to a file, completely or not at all."""
    values, arrays = contents(bn)
    estimator(type(bn), dict(values), dict(arrays))  # which checks them
    header = {"format": FORMAT, "version": VERSION}
    header["gyrobn"] = sys.modules["gyrobn"].__version__  # an import would be circular
    given = {k: v for k, v in values.items() if v is not None or k == "scale"}
    header |= {"arrays": sorted(arrays)} | given
    text = json.dumps(header, allow_nan=False, indent=1, default=geometry_to_json)
    with replacing(path) as draft, open(draft, "x+b") as file:
        np.savez(file, allow_pickle=False, **arrays)
        with ZipFile(file, "a") as archive:
            archive.writestr(ZipInfo(HEADER), text)  # with no date: the same model, the same bytes


def read(cls: type[Any], path: Any, like: Array | None = None) -> Any:
    """Return the estimator that :func:`write` wrote, or say what is wrong with the file."""
    name, file = repr(os.fspath(path)), Path(os.fsdecode(path))
    if file.exists() and not file.is_file():
        kind = IsADirectoryError if file.is_dir() else ValueError
        raise kind(f"{name} is not a regular file: give a file that GyroBN.save() wrote")
    with open(file, "rb") as opened:
        try:
            with np.load(opened, allow_pickle=False) as archive:
                header = _header(cls, archive.zip)
                arrays = {key: archive[key] for key in header.pop("arrays")}
            header["geometry"] = geometry_from_json(header.get("geometry"))
            if header.get("manifold") not in list(REGISTRY):
                header["manifold"] = geometry_from_json(header.get("manifold"))
            bn = estimator(cls, header, arrays)
        except Refused as error:
            raise ValueError(f"{name} {error}") from None
        except Exception as error:  # zipfile, json and NumPy raise many kinds on a damaged file
            what = " ".join(f"{error}".split())[:300] or type(error).__name__
            raise ValueError(
                f"{name} is not a gyrobn model, or damaged or truncated ({what}): nothing was "
                "loaded"
            ) from error
    return bn if like is None else converted(bn, like)


def _header(cls: type[Any], archive: ZipFile) -> dict[str, Any]:
    """Return the header of a file with the members it should have; reading them checks the sums."""
    found = archive.namelist()
    # without compression a member cannot be longer than the file, and so cannot fill the memory
    if any(info.compress_type != ZIP_STORED for info in archive.infolist()):
        raise ValueError("a member is compressed")
    header = json.loads(archive.read(HEADER)) if HEADER in found else {}
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise Refused("is a zip archive, but not a gyrobn model")
    version, writer = header.pop("version"), f" ({_short(header.pop('gyrobn', None))})"
    if type(version) is not int or version < 1:
        raise ValueError(f"format version {_short(version)}")
    names = {name.removesuffix(".npy") for name in found} - {HEADER}
    header["arrays"] = arrays = header.get("arrays", sorted(names | {*Fitted._fields}))
    parameters = {*cls._get_param_names(), *FORMER}
    for what, unknown in (
        ("it has the format", {version} - {VERSION}),
        ("its header has", header.keys() - parameters - {*COUNTS, "arrays", "geometry"}),
        ("it has the arrays", {*map(str, arrays)} - parameters - {*Fitted._fields, *OTHERS}),
    ):
        if unknown:
            raise NewerVersion(what, unknown, writer)
    if sorted(found) != sorted([HEADER, *(f"{name}.npy" for name in arrays)]):
        raise ValueError(f"it should hold the arrays {_short(arrays)}, and has {_short(found)}")
    return {key: value for key, value in header.items() if key not in FORMER}


def contents(bn: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a file holds of a fitted estimator: plain values, and NumPy arrays."""
    values = {name: getattr(bn, f"{name}_") for name in COUNTS}
    values["geometry"] = plain_geometry(bn.manifold_)
    each = zip(Fitted._fields, ATTRIBUTES, strict=True)
    arrays = {name: host(getattr(bn, attribute)) for name, attribute in each}
    arrays["n_iter"] = arrays["n_iter"].astype(np.int32)
    for name, value in bn.get_params(deep=False).items():
        if isinstance(value, GyroSpace):
            values[name] = plain_geometry(value)
        elif value is None or isinstance(value, str):
            values[name] = value
        elif (array := host(value)).ndim:
            arrays[name] = cast(array, np.float64)
        else:
            values[name] = array.item()
    if bn.domains_ is not None:
        arrays["domains"] = bn.domains_
    if bn.reference_ is not None:
        arrays["seen_from"] = host(bn.reference_)
    if hasattr(bn, "feature_names_in_"):
        arrays["feature_names"] = np.asarray(bn.feature_names_in_, dtype=np.str_)
    if bn.online_:
        labels, states = zip(*sorted(bn.online_.items()), strict=True)
        rows = zip(*((s.count, host(s.mean), host(s.var)) for s in states), strict=True)
        arrays |= dict(zip(ONLINE, (check.as_labels([*labels]), *map(np.stack, rows)), strict=True))
    return values, {name: np.asarray(a, order="C") for name, a in arrays.items()}


def converted(bn: Any, like: Array | None = None) -> Any:
    """Return a copy of a fitted estimator, checked, with its statistics in another library.

    They get the library, dtype and device of ``like``; by default they become NumPy arrays in their
    dtype. The parameters become plain numbers and NumPy arrays.
    """
    return estimator(type(bn), *contents(bn), like)


def estimator(
    cls: type[Any], values: dict[str, Any], arrays: dict[str, Any], like: Array | None = None
) -> Any:
    """Return the estimator with such :func:`contents`, checked, its statistics like ``like``."""
    arrays = {n: a.astype(a.dtype.newbyteorder("="), order="C") for n, a in arrays.items()}
    dtype, M = real_dtype(arrays["mean"]), values.pop("geometry")
    like = np.empty((), dtype) if like is None else like
    xp = namespace_of(like)
    if like.dtype not in (xp.float32, xp.float64):
        raise ValueError(f"statistics must be float32 or float64, got {like.dtype}")
    one = np.empty((), np.float32 if like.dtype == xp.float32 else np.float64)
    with np.errstate(all="ignore"):  # what leaves the range is refused by the check
        for name in arrays if dtype != one.dtype else ():
            if name in ("mean", "online_mean", "seen_from"):
                arrays[name] = as_points(M, arrays[name], one)
            elif name in ("var", "weight", "online_var"):
                arrays[name] = arrays[name].astype(one.dtype)
            elif name in ("bias", "reference") and one.dtype == np.float64:
                arrays[name] = settled(M, arrays[name])
    counts = {f"{name}_": check_integer(name, values.pop(name, 0), 0) for name in COUNTS}
    given = {name: arrays[name] for name in ("bias", "scale", "reference") if name in arrays}
    bn = cls(**values | given)
    vars(bn).update(counts, manifold_=M, domains_=arrays.get("domains"), mean_=arrays["mean"])
    _check(bn, arrays)

    def put(name: str) -> Array:
        # first in the dtype of like: so every library puts it on the device of like
        array = from_host(np.array(arrays[name]), like)
        return xp.astype(array, {"n_iter": xp.int32, "converged": xp.bool}.get(name, array.dtype))

    store(bn, Fitted(*map(put, Fitted._fields)))
    bn.reference_ = put("seen_from") if "seen_from" in arrays else None
    if "feature_names" in arrays:
        bn.feature_names_in_ = np.asarray(arrays["feature_names"].tolist(), dtype=object)
    bn.n_features_in_, bn.online_ = check.sample_shape(bn)[0], {}
    if "online" in arrays:
        mean, var = put("online_mean"), put("online_var")
        each = zip(arrays["online"].tolist(), arrays["online_count"].tolist(), strict=True)
        for k, (label, count) in enumerate(each):
            bn.online_[label] = OnlineStats(count, mean[k, ...], var[k, ...])
    return bn


def _check(bn: Any, arrays: dict[str, Any]) -> None:
    """Refuse NumPy arrays that ``fit`` would not have made."""
    check.check_parameters(bn)
    M, mean, domains = bn.manifold_, bn.mean_, bn.domains_
    batch, dtype = mean.shape[: mean.ndim - len(M.point_shape)], real_dtype(mean)
    if 0 in mean.shape:
        raise ValueError(f"mean has dtype {dtype} and shape {mean.shape}")
    if domains is not None:
        good = domains.dtype.kind in "iubU" and np.array_equal(domains, np.unique(domains.tolist()))
        if not good or domains.shape != batch[:1]:
            raise ValueError(f"domains must be {batch[:1]} different labels, got {_short(domains)}")
    if (online := arrays.get("online")) is not None:
        check.check_kind(domains, online)
        if np.isin(online, domains).any():
            raise ValueError("online must be labels other than domains")
        for count in arrays["online_count"]:
            check_integer("online_count", count, 1)

    def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "mean", (*batch, *M.point_shape)  # before others: a size may be of a damaged file
        yield "var", (*batch, *M.block_shape)
        yield from ((name, batch) for name in ("weight", "n_iter", "converged"))
        if online is not None:
            yield "online_mean", (*online.shape, *mean.shape[1:])
            yield "online_var", (*online.shape, *arrays["var"].shape[1:])

    for name, shape in shapes():
        array, kind = arrays[name], {"n_iter": np.int32, "converged": np.bool_}.get(name, dtype)
        kind = mean.dtype if name.endswith("mean") else kind
        if array.dtype != kind or array.shape != shape:
            raise ValueError(
                f"{name} must be an array of {np.dtype(kind)} of shape {shape}, got {array.dtype} "
                f"of shape {array.shape}"
            )
        if name.endswith("mean"):
            on_manifold(M, array, name)
        elif not ((array >= 0) & (array < np.inf)).all():
            raise ValueError(f"{name} must be finite and not negative")
    shape, names = check.sample_shape(bn), arrays.get("feature_names")
    if names is not None and (names.dtype.kind != "U" or names.shape != shape[:1]):
        raise ValueError(f"feature_names must be {shape[0]} names, got {_short(names)}")
    check.affine_for(bn, M, shape, mean, "transform")
    check.reference_for(bn, M, shape, mean)
    if "seen_from" in arrays:
        check.point_for("reference", arrays["seen_from"], M, shape, mean)
    elif bn.reference is not None:
        raise ValueError("the reference is missing")
