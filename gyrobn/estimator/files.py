"""Models in files: a ``.npz`` without pickle, that is, arrays and a header in JSON.

A file is a zip archive without compression: ``header.json`` has the format, its version, the
geometry and the parameters, and each array is an ``.npy``. Reading runs no code of the file, needs
memory in proportion to its length, and checks everything before a model is made.
"""

import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from io import BytesIO
from math import prod
from reprlib import repr as _shown
from typing import Any, Self
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array
from gyrobn.data import replacing
from gyrobn.data.npy import HEAD, Header
from gyrobn.estimator.models import PARAMETERS, Model, of_estimator, to_estimator
from gyrobn.estimator.validation import GEOMETRY
from gyrobn.manifolds import REGISTRY, Product
from gyrobn.manifolds.gyrospace import GyroSpace

FORMAT, VERSION = "gyrobn model", 1
HEADER, HEADER_LIMIT = "header.json", 2**20
NEEDED = {"mean", "var", "weight", "n_iter", "converged"}
ONLINE = {"online", "online_count", "online_mean", "online_var"}
OPTIONAL = {"bias", "scale", "domains", "feature_names", *ONLINE}
EXTRA: dict[str, Any] = {
    "n_projected": 0,
    "prior_strength": 4.0,
    "output": "points",
    **dict.fromkeys(GEOMETRY),
}
"""What the header holds only if it differs from this."""
ENTRIES = {"geometry", "manifold", "scale", "n_samples_seen", *PARAMETERS} - EXTRA.keys()
"""What the header always holds. A new parameter of the estimator belongs into ``EXTRA``, so that
older files can be read."""
RETIRED = {"mean_kind"}
"""What earlier versions wrote into the header, and nothing depends on any more."""
PLAIN = (str, int, float, type(None))
"""The types of options that JSON holds as they are."""
NESTED = 16
"""How deep products may be nested."""

Path = str | os.PathLike[str]


class FileMixin:
    """The methods ``save`` and ``load`` of the estimator."""

    def save(self, path: Path) -> None:
        """Write the fitted estimator to a file, completely or not at all, for :meth:`load`.

        The file is a ``.npz`` without pickle: arrays, and a header in JSON with the version of the
        format, the geometry and the parameters.

        Parameters
        ----------
        path : str or path
            Name of the file, used as it is. What was there is replaced.
        """
        check_is_fitted(self)
        write(of_estimator(self), path)

    @classmethod
    def load(cls, path: Path, like: Array | None = None) -> Self:
        """Return an estimator that was saved.

        No code in the file is run. A file that is damaged, cut off, of another program or of a
        newer version is refused.

        Parameters
        ----------
        path : str or path
            A file that :meth:`save` wrote, from arrays of any library.
        like : array, default=None
            The statistics get its library, dtype and device. By default they are NumPy arrays in
            their former dtype.

        Returns
        -------
        GyroBN
            Fitted, with the parameters it had.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from gyrobn import GyroBN, Sphere
        >>> path = Path(tempfile.mkdtemp()) / "model.npz"
        >>> X = Sphere(2).random(20, rng=0, spread=0.5)
        >>> bn = GyroBN(Sphere(2)).fit(X)
        >>> bn.save(path)
        >>> bool((GyroBN.load(path).transform(X) == bn.transform(X)).all())
        True
        """
        return to_estimator(cls, read(path), like)


def write(model: Model, path: Path) -> None:
    """Write a model to a file, completely or not at all; a file that was there is replaced."""
    arrays = {name: getattr(model, name) for name in sorted(NEEDED | OPTIONAL)}
    arrays = {name: a for name, a in arrays.items() if isinstance(a, np.ndarray)}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "gyrobn": sys.modules["gyrobn"].__version__,  # an import would be circular
        "geometry": geometry_to_json(model.geometry),
        "manifold": model.manifold
        if isinstance(model.manifold, str)
        else geometry_to_json(model.manifold),
        "scale": None if "scale" in arrays else model.scale,
        "n_samples_seen": model.n_samples_seen,
        **{name: getattr(model, name) for name in PARAMETERS if name not in EXTRA},
        **{name: v for name, default in EXTRA.items() if (v := getattr(model, name)) != default},
    }
    text = json.dumps(header, allow_nan=False, indent=1).encode()
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"the description of {type(model.geometry).__name__} is too long to save")
    with replacing(path) as draft, ZipFile(draft, "x", ZIP_STORED) as archive:
        archive.writestr(ZipInfo(HEADER), text)  # with no date: the same model, the same bytes
        for name, array in arrays.items():
            member = BytesIO()
            np.lib.format.write_array(member, np.asarray(array, order="C"), (1, 0), False)
            archive.writestr(ZipInfo(f"{name}.npy"), member.getvalue())


def read(path: Path) -> Model:
    """Read a model that :func:`write` wrote, or say what is wrong with the file."""
    name = repr(os.fspath(path))
    if not stat.S_ISREG(os.stat(path).st_mode):
        kind = IsADirectoryError if os.path.isdir(path) else ValueError
        raise kind(f"{name} is not a regular file: give a file that GyroBN.save() wrote")
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ValueError(f"{name} is not a gyrobn model: give a file that GyroBN.save() wrote")
        size = file.seek(0, os.SEEK_END)
        with _damage(name), ZipFile(file) as archive:
            members = _members(archive)
            if HEADER not in members:
                raise _foreign()
            header = _header(_content(archive, members.pop(HEADER), min(size, HEADER_LIMIT)))
            arrays = _arrays(archive, members, size)
            return _model(header, arrays)


class _Refused(ValueError):
    """A file that seems complete but is not a model for this version; the message says why."""


class NewerVersion(_Refused):
    """What was written has entries that this version does not know."""

    def __init__(self, what: str, unknown: Iterable[Any], writer: Any = None) -> None:
        by = "" if writer is None else f" ({_shown(writer)})"
        names = _shown(sorted(map(str, unknown)))
        super().__init__(
            f"was written by a newer version of gyrobn{by}: {what} {names}, which this version "
            "does not know; upgrade gyrobn"
        )


def _foreign() -> _Refused:
    return _Refused(
        "is a zip archive, but not a gyrobn model: give a file that GyroBN.save() wrote"
    )


@contextmanager
def _damage(name: str) -> Iterator[None]:
    """Turn every error about the bytes of a file into one line.

    zipfile, json and NumPy raise many kinds of exceptions on a damaged file.
    """
    try:
        yield
    except _Refused as error:
        raise ValueError(f"{name} {error}") from None
    except Exception as error:
        what = " ".join(f"{error}".split())[:300] or type(error).__name__
        raise ValueError(
            f"{name} is damaged or cut off ({what}): nothing was loaded; save the model again"
        ) from error


# ---------------------------------------------------------------------- members of the archive


def _members(archive: ZipFile) -> dict[str, ZipInfo]:
    members: dict[str, ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in members:
            raise ValueError(f"two members {_shown(info.filename)}")
        members[info.filename] = info
    return members


def _content(archive: ZipFile, info: ZipInfo, limit: int) -> bytes:
    # without compression a member cannot be longer than the file, and so cannot fill the memory
    if info.compress_type != ZIP_STORED or info.file_size > limit:
        raise ValueError(f"member {_shown(info.filename)} is compressed, cut off or too long")
    return archive.read(info)  # also compares the checksum


def _header(text: bytes) -> dict[str, Any]:
    """Return the entries of the header, if it has this format and version."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) < len(pairs):
            raise ValueError("the header says something twice")
        return keys

    header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise _foreign()
    version, writer = header.pop("version", None), header.pop("gyrobn", None)
    if type(version) is int and version > VERSION:
        raise _Refused(
            f"was written by a newer gyrobn ({_shown(writer)}, format {_shown(version)}; this one "
            f"reads format {VERSION}): upgrade gyrobn"
        )
    if type(version) is not int or version != VERSION:
        raise ValueError(f"format version {_shown(version)}")
    for name in RETIRED:
        header.pop(name, None)
    if not header.keys() <= ENTRIES | EXTRA.keys():
        raise NewerVersion("its header has", header.keys() - ENTRIES - EXTRA.keys(), writer)
    return header


def _arrays(archive: ZipFile, members: dict[str, ZipInfo], size: int) -> dict[str, Any]:
    names = {name.removesuffix(".npy") if name.endswith(".npy") else "" for name in members}
    unknown = names - NEEDED - OPTIONAL
    if not names >= NEEDED or not all(name.isidentifier() for name in unknown):
        wrong = sorted(members.keys() ^ {f"{name}.npy" for name in NEEDED})
        raise ValueError(f"unknown or missing members among {_shown(wrong)}")
    if unknown:
        raise NewerVersion("it holds the arrays", unknown)
    return {name: _array(_content(archive, members[f"{name}.npy"], size), name) for name in names}


def _array(content: bytes, name: str) -> Any:
    """Return the array of an ``.npy``, if its header and its length agree."""
    header = Header(f"{name}.npy", content[:HEAD], len(content))
    shape, dtype = header.shape, header.dtype
    sizes = {"f": (4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "b": (1,)}
    if dtype.kind != "U" and dtype.itemsize not in sizes.get(dtype.kind, ()):
        raise ValueError(f"{name}.npy holds {_shown(str(dtype))} of shape {_shown(shape)}")
    data = memoryview(content)[header.offset :]
    if len(data) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}.npy is longer than its shape {_shown(shape)} says")
    if dtype.kind == "U":
        characters = np.frombuffer(data, f"{dtype.byteorder}u4")
        if characters.max(initial=0) > sys.maxunicode:
            raise ValueError(f"{name}.npy holds numbers that are no characters")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if header.fortran else "C")
    return array.astype(dtype.newbyteorder("="), order="C")


# ---------------------------------------------------------------------- the header


def _model(header: dict[str, Any], arrays: dict[str, Any]) -> Model:
    if not header.keys() >= ENTRIES:
        raise ValueError(f"missing in the header: {_shown(sorted(ENTRIES - header.keys()))}")
    if (header["scale"] is None) != ("scale" in arrays):
        raise ValueError("scale is there twice, or not at all")
    header["geometry"] = geometry_from_json(header["geometry"])
    if not isinstance(header["manifold"], str):
        header["manifold"] = geometry_from_json(header["manifold"])
    return Model(**{**header, **arrays})


def geometry_to_json(
    geometry: GyroSpace, depth: int = 0, registered: bool = True
) -> dict[str, Any]:
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
    if not names and not registered:
        names = [type(geometry).__qualname__]
    if not names or depth > NESTED:
        raise ValueError(
            f"{type(geometry).__name__} cannot be saved: a file holds geometries of "
            f"gyrobn.REGISTRY, products of them at most {NESTED} deep"
        )
    if isinstance(geometry, Product):
        factors = [geometry_to_json(part, depth + 1, registered) for part in geometry.factors]
        return {"name": names[0], "factors": factors}
    values = {f.name: getattr(geometry, f.name) for f in fields(geometry)}
    if not registered:
        values = {key: v if isinstance(v, PLAIN) else repr(v) for key, v in values.items()}
    return {"name": names[0]} | values


def geometry_from_json(value: Any, depth: int = 0) -> GyroSpace:
    """Return the geometry of :func:`geometry_to_json`, or say what is wrong with it.

    An option that is missing, because an older version did not have it, takes its default.

    >>> geometry_from_json({"name": "poincare_ball", "n": 2, "curvature": -0.5})
    PoincareBall(n=2, curvature=-0.5)
    >>> geometry_from_json({"name": "spd", "n": 2, "metric": "log_euclidean"})
    SPD(n=2, metric='log_euclidean', theta=1.0)
    """
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or depth > NESTED:
        raise ValueError(f"{_shown(value)} is no geometry")
    if name not in REGISTRY:
        raise _Refused(
            f"has the geometry {_shown(name)}, which this gyrobn does not know: upgrade gyrobn, if "
            "a newer one wrote it"
        )
    cls = REGISTRY[name]
    given = {key: part for key, part in value.items() if key != "name"}
    own = {one.name: one for one in fields(cls)}
    if given.keys() - own.keys():
        raise NewerVersion(f"the geometry {name!r} has", given.keys() - own.keys())
    missing = own.keys() - given.keys() - cls.options().keys()
    if missing:
        raise ValueError(f"the geometry {name} has no {_shown(sorted(missing))}")
    if cls is Product:
        if not isinstance(given["factors"], list):
            raise ValueError(f"factors must be a list, got {_shown(given['factors'])}")
        return Product(*(geometry_from_json(factor, depth + 1) for factor in given["factors"]))
    for key, part in given.items():
        _check_field(own[key], part)
    return cls(**given)


def _check_field(one: "Field[Any]", value: Any) -> None:
    """Refuse a value that is not of the kind of the field: a size, a number or a word."""
    if one.default is MISSING:
        good = type(value) is int and 0 < value < 2**31
    elif isinstance(one.default, float):
        good = type(value) in (int, float) and abs(value) <= sys.float_info.max
    elif one.default is None:
        good = isinstance(value, str | int | float | None)
    else:
        good = type(value) is type(one.default)
    if not good:
        raise ValueError(f"{one.name} of the geometry cannot be {_shown(value)}")
