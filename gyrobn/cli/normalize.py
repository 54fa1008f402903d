"""The commands normalize, fit, transform and inverse, and how they read files."""

import re
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.cli.command import geometry_options, progress
from gyrobn.data.chunks import Chunks, rows_per_chunk
from gyrobn.data.files import Joined, StoredArray, join, layouts, open_array, pack, suffix_of
from gyrobn.data.writing import check_replaceable, create_array
from gyrobn.estimator.transformer import GyroBN
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import scale_for
from gyrobn.numerics.checks import host


def run(options: Namespace) -> dict[str, Any]:
    """Fit a model or load one; write the model and the normalized samples."""
    out, saved, several = options.out, options.save_model, len(options.input) > 1
    if out is not None:
        suffix_of(out)
        check_replaceable(out)
        if several and out.exists():
            raise FileExistsError(f"{out} exists: of several files, OUT must be a new one")
    if saved is not None:
        check_replaceable(saved)
        if saved.exists() and not is_model(saved):
            raise FileExistsError(f"{saved} exists and is not a model: remove it first")
    bn = estimator(options)
    source = opened(options, bn)
    domains, fitted = domains_of(options, source), options.model is None
    with _samples(options, source) as samples, source, located(source):
        if fitted:
            with watched(options, "fit", samples) as x:
                bn.fit(x, domains=domains)
        projected = bn.n_projected_
        if out is not None:
            counted = _write(options, bn, source, samples, domains)
            projected = projected if fitted else counted
        if saved is not None:
            bn.save(saved)
    values = about(source) | {"input": [*map(str, options.input)] if several else source.path}
    values["manifold"] = repr(bn.manifold_)
    values |= describe(bn) if fitted or options.command == "normalize" else {}
    if bn.on_invalid == "project":
        values["projected"] = projected
    return values | {"output": out, "model": saved or options.model}


@contextmanager
def _samples(options: Namespace, source: StoredArray) -> Iterator[Any]:
    """Yield the samples in chunks; or as a Dask array, on processes or a running cluster."""
    if options.dask is None:
        yield Chunks(source)
        return
    try:
        import dask.array as da
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise ImportError("--dask needs Dask: pip install 'gyrobn[dask]'") from error
    own = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    meta = np.empty((0,) * source.ndim, source.dtype)
    given = {"name": False, "asarray": False, "inline_array": True, "meta": meta}
    try:
        with Client(**own) if options.dask == "local" else Client(options.dask):
            yield da.from_array(source, (_rows(source), *source.shape[1:]), **given)
    except KilledWorker as error:
        raise OSError("the workers died several times, perhaps for want of memory") from error


def _rows(source: StoredArray) -> int:
    return min(rows_per_chunk(source), len(source))


def _write(
    options: Namespace, bn: GyroBN, source: StoredArray, samples: Any, domains: Any
) -> int | None:
    """Write the normalized samples; return how many points were projected, without Dask."""
    inverse, coordinates = options.command == "inverse", bn.output == "coordinates"
    names, layout, invalid = source.names, source.layout, dict[int, int]()
    if coordinates:
        names, layout = () if inverse else (*bn.get_feature_names_out(),), None

    def count(x: Any, rows: Any) -> Any:
        if bn.on_invalid == "project" and not (inverse and coordinates):
            invalid[rows[0]] = int(np.sum(~bn.manifold_.contains(x)))
        return x

    with watched(options, options.command, samples) as x:
        if options.dask is None:
            chunks = bn.transform_chunks(x.map(count), domains, inverse)
            first = next(chunks)
        else:
            first = (bn.inverse_transform if inverse else bn.transform)(x, domains)
        shape, form = (len(source), *first.shape[1:]), {"layout": layout, "axis": source.axis}
        with create_array(
            options.out, shape, source.dtype, rows=_rows(source), names=names, **form
        ) as out:
            if options.dask is None:
                for chunk in chain([first], chunks):
                    out.write(chunk)
                return sum(invalid.values())
            first.store(out, lock=False)
            out.count = len(source)
            return None


def is_model(path: Path) -> bool:
    """Return whether a file is a model, by the name of its header."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.startswith("header.") for name in archive.namelist())


def about(source: StoredArray) -> dict[str, Any]:
    """Return what the report says of the samples."""
    dtype = str(source.dtype)
    return {"input": source.path, "samples": len(source), "shape": source.shape, "dtype": dtype}


def describe(bn: GyroBN) -> dict[str, Any]:
    """Return what the report says of a model."""
    values = about_mean(bn.manifold_, bn.mean_, bn.var_, bn.n_iter_, bn.converged_)
    # what the theorem says: eps counts if the samples are close together
    after = np.sqrt(bn.var_)
    if bn.scale is not None:
        after = np.abs(scale_for(bn.manifold_, bn.scale)) * after / np.sqrt(bn.var_ + bn.eps)
    values |= {"normalized_deviation": after, "scale": bn.scale, "eps": bn.eps}
    return values | {"domains": bn.domains_}


def about_mean(
    manifold: GyroSpace, mean: Any, variance: Any, iterations: Any, converged: Any
) -> dict[str, Any]:
    """Return what the report says of a mean and variance."""
    values = {"mean_distance": manifold.norm(mean), "standard_deviation": np.sqrt(variance)}
    return values | {"iterations": iterations, "converged": converged}


# ---------------------------------------------------------------------- the estimator


def estimator(options: Namespace) -> GyroBN:
    """Return a new estimator with the parameters of the options, or the model with them."""
    names = GyroBN().get_params(deep=False)
    given = {name: v for name in names if (v := vars(options).get(name)) is not None}
    if path := options.bias:
        given["bias"] = _point(path)
    if options.reference not in (None, "fit"):
        given["reference"] = _point(Path(options.reference))
    if options.scale == "none":
        given["scale"] = None
    if options.model is None:
        return GyroBN(**given)
    for name in given.keys() & {*geometry_options(), "reference"}:
        raise ValueError(f"--{name} and --model exclude each other")
    bn: GyroBN = GyroBN.load(options.model).set_params(**given)
    return bn


def _point(path: Path) -> Any:
    """Return the point in a file, or one per channel."""
    point = host(open_array(path)[:], str(path))
    return point[0] if path.suffix.lower() == ".csv" and len(point) == 1 else point


# ---------------------------------------------------------------------- samples


def opened(options: Namespace, bn: GyroBN | None) -> StoredArray:
    """Open the samples, those of several files as one array."""
    given = {name: getattr(options, name) for name in ("key", "axis", "columns", "header")}
    parts = []
    for path in options.input:
        part = open_array(path, labels=options.domain_column, **given)
        layout = None if options.layout == "vector" else options.layout
        if options.layout is None and bn is not None and path.suffix.lower() == ".csv":
            layout = _layout(options, part, bn)
        if layout:
            part = replace(part, layout=layout, given={**(part.given or {}), "layout": layout})
        if part.dtype.char not in "dfDF":
            raise ValueError(
                f"{path} holds {part.dtype}, expected float32 or float64: convert it first, with "
                "x.astype(numpy.float64) for example"
            )
        if part.ndim < 2 or 0 in part.shape:
            raise ValueError(
                f"{path} has shape {part.shape}, expected (N, *channels, *point_shape), no length 0"
            )
        parts.append(part)
    return join(parts) if len(parts) > 1 else parts[0]


def _layout(options: Namespace, source: StoredArray, bn: GyroBN) -> str | None:
    """Return how the rows of a table hold the points of a geometry, or None for vectors."""
    fitted, inverse = options.model is not None, options.command == "inverse"
    manifold = bn.manifold_ if fitted else REGISTRY[options.manifold].examples()[0]
    if len(manifold.point_shape) < 2 or (bn.output == "coordinates" and inverse):
        return None
    point = manifold.random(1, rng=0)
    found = {
        layout: n
        for layout, n in layouts(source.shape[1]).items()
        if not fitted or n == point.shape[-1]
        # does a point survive it?
        if np.allclose(StoredArray(source.path, pack(point, layout), layout=layout)[:], point)
    }
    if len(found) == 1:
        return next(iter(found))
    choice = " or ".join(f"--layout {name} ({n} × {n})" for name, n in found.items())
    raise ValueError(
        f"{source.path} has {source.shape[1]} numbers per row"
        + (
            f": choose {choice}"
            if found
            else f", which hold no matrix of {type(manifold).__name__}"
        )
    )


def domains_of(options: Namespace, source: StoredArray) -> Any:
    """Return the label of each sample, or None: from a file, a column, or the names of files."""
    if options.domain_per_file:
        parts = source.array.parts if isinstance(source.array, Joined) else [source]
        stems = [part.path.stem for part in parts]
        if len(set(stems)) < len(stems):
            raise ValueError(f"two of the domains would be called {max(stems, key=stems.count)}")
        return np.repeat(np.asarray(stems, dtype=np.str_), [len(part) for part in parts])
    return labels_in(options.domains) if options.domains else source.labels


def labels_in(path: Path) -> Any:
    """Return the labels in a file, an array or lines of text."""
    if path.suffix.lower() in (".npy", ".npz", ".zarr"):
        labels = open_array(path)[:]
        return np.char.decode(labels, "utf-8") if labels.dtype.kind == "S" else labels
    try:
        words = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is neither an array nor text with one label per line") from error
    if "" in words:
        raise ValueError(f"line {words.index('') + 1} of {path} is empty: give one label per line")
    return np.asarray(words, dtype=np.str_)


@contextmanager
def located(source: StoredArray) -> Iterator[None]:
    """Add the file, if there are several, to an error that names a sample by its index."""
    try:
        yield
    except ValueError as error:
        if " samples, the first at index" in str(error) and _rows(source) < len(source):
            error.add_note("the file was read up to there: gyrobn inspect counts all")
        if isinstance(source.array, Joined):
            for index in dict.fromkeys(re.findall(r"at index \(?(\d+)", str(error))):
                path, row = source.array.place(int(index))
                error.add_note(f"sample {row} of {path}")
        raise


@contextmanager
def watched(options: Namespace, label: str, samples: Any) -> Iterator[Any]:
    """Yield the samples, and show each pass over them as progress, if they come in chunks."""
    if not isinstance(samples, Chunks):
        yield samples
        return
    with progress(options, label, total=samples.count) as bar:

        def watch(x: Any, rows: Any) -> Any:
            if not rows[0]:
                bar.reset()
            bar.update(len(rows))
            return x

        yield samples.map(watch)
