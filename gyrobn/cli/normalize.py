"""The commands normalize, fit, transform and inverse, and how they read files."""

import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.cli.command import Report, geometry_options, progress, span
from gyrobn.data.chunks import Chunks, rows_per_chunk
from gyrobn.data.files import Joined, StoredArray, join, layouts, open_array, suffix_of
from gyrobn.data.writing import check_replaceable, create_array
from gyrobn.manifolds import REGISTRY, Euclidean
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import scale_for
from gyrobn.numerics.checks import host

DONE = {"normalize": "normalized", "fit": "fitted to", "transform": "transformed"}
GIVEN = ("scale", "eps", "tol", "max_iter", "on_invalid", "unseen")
"""Options that are parameters of GyroBN; an option that is not given has its default."""


def run(options: Namespace) -> Report:
    """Fit a model or load one; write the model and the normalized samples."""
    output, saved = getattr(options, "output", None), getattr(options, "save_model", None)
    if output is not None:
        _check_output(output, len(options.input) > 1)
    if saved is not None:
        _check_model(saved)
    bn = model_of(options)
    source = opened(options, bn)
    domains = domains_of(options, source)
    with _cluster(options), source, located(source):
        samples = _samples(options, source)
        if fitted := bn is None:
            with watched(options, "fit", samples) as x:
                bn = estimator(options, source).fit(x, domains=domains)
        moved = bn.n_projected_
        if output is not None:
            counted = _write(options, bn, source, samples, domains)
            moved = moved if fitted else counted
        if saved is not None:
            bn.save(saved)
    shape, dtype, manifold = source.shape, str(source.dtype), repr(bn.manifold_)
    count = f"{len(source)} sample{'s' * (len(source) != 1)} of {source.path}"
    done = DONE.get(options.command, "brought back")
    lines = [f"{done} {count}, shape {shape}, {dtype}, on {manifold}"]
    given = options.input if len(options.input) > 1 else options.input[0]
    values = {"input": given, "shape": shape, "dtype": dtype, "samples": shape[0]}
    if options.command in ("normalize", "fit"):
        found, text = describe(bn)
        values, lines = values | found, lines + text
    values["manifold"] = manifold
    if bn.on_invalid == "project":
        values["projected"] = moved
        lines.append(f"  projected           {moved} samples onto the manifold")
    values |= {} if output is None else {"output": output}
    values["model"] = saved or options.model
    lines += [f"  written             {path}" for path in (output, saved) if path is not None]
    return values, lines


def _check_output(path: Path, several: bool) -> None:
    """Refuse, before the work, an output that cannot be written."""
    suffix_of(path)
    check_replaceable(path)
    if several and path.exists():
        raise FileExistsError(f"{path} exists: of several files, OUT must be a new one")


def _check_model(path: Path) -> None:
    """Refuse to replace a file that is not a model."""
    from gyrobn import GyroBN

    check_replaceable(path)
    if path.exists():
        try:
            GyroBN.load(path)
        except ValueError:
            raise FileExistsError(f"{path} exists and is not a model: remove it first") from None


def _samples(options: Namespace, source: StoredArray) -> Any:
    """Return the samples in chunks, or as a Dask array."""
    if options.dask is None:
        return Chunks(source)
    import dask.array as da

    meta = np.empty((0,) * source.ndim, source.dtype)
    chunks = (min(rows_per_chunk(source), len(source)), *source.shape[1:])
    return da.from_array(source, chunks, name=False, asarray=False, inline_array=True, meta=meta)


@contextmanager
def _cluster(options: Namespace) -> Iterator[None]:
    """Start worker processes of Dask, or connect to a cluster that sees the same files."""
    if options.dask is None:
        yield
        return
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise ImportError("--dask needs Dask: pip install 'gyrobn[dask]'") from error
    own = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    try:
        with Client(**own) if options.dask == "local" else Client(options.dask):
            yield
    except KilledWorker as error:
        raise OSError("the workers died several times, perhaps for want of memory") from error


def _write(
    options: Namespace, bn: Any, source: StoredArray, samples: Any, domains: Any
) -> int | None:
    """Write the normalized samples; return how many points were off the manifold, if counted."""
    inverse = options.command == "inverse"
    off: dict[int, int] = {}
    written: dict[str, Any] = {"layout": source.layout, "axis": source.axis, "names": source.names}
    if bn.output == "coordinates":
        written["names"] = () if inverse else (*bn.get_feature_names_out(),)
        written["layout"] = None
    written["rows"] = min(rows_per_chunk(source), len(source))

    def count(x: Any, rows: Any) -> Any:
        if bn.on_invalid == "project" and not (inverse and bn.output == "coordinates"):
            off[rows[0]] = np.sum(~bn.manifold_.contains(x))
        return x

    with watched(options, "inverse" if inverse else "transform", samples) as x:
        if options.dask is None:
            chunks = bn.transform_chunks(x.map(count), domains, inverse)
            first = next(chunks)
        else:
            first = (bn.inverse_transform if inverse else bn.transform)(x, domains)
        shape = (len(source), *first.shape[1:])
        with create_array(options.output, shape, source.dtype, **written) as out:
            if options.dask is None:
                for chunk in chain([first], chunks):
                    out.write(chunk)
            else:
                first.store(out, lock=False)
                out.count = len(source)
    return int(sum(off.values())) if options.dask is None else None


def describe(bn: Any) -> Report:
    """Return what a model holds, as values and as lines."""
    # what the theorem says: eps counts if the samples are close together
    deviation = np.abs(scale_for(bn.manifold_, bn.scale)) * np.sqrt(bn.var_ / (bn.var_ + bn.eps))
    values, lines = about_mean(bn.manifold_, bn.mean_, bn.var_, bn.n_iter_, bn.converged_)
    values |= {"domains": bn.domains_, "scale": bn.scale, "eps": bn.eps}
    lines[1] += f", to become {span(deviation)}"
    if bn.domains_ is not None:
        lines.append(f"  domains             {len(bn.domains_)}")
    return {"manifold": repr(bn.manifold_)} | values, lines


def about_mean(
    manifold: GyroSpace, mean: Any, variance: Any, iterations: Any, converged: Any
) -> Report:
    """Return mean and standard deviation, as values and as lines."""
    distance, deviation = manifold.norm(mean), np.sqrt(variance)
    values = {"mean_distance": distance, "standard_deviation": deviation}
    values |= {"iterations": iterations, "converged": converged}
    found = "converged" if np.all(converged) else "NOT converged"
    return values, [
        f"  mean                at distance {span(distance)} from the identity; {found}, "
        f"iterations: {span(iterations, 'd')}",
        f"  standard deviation  {span(deviation)}",
    ]


# ---------------------------------------------------------------------- models and geometries


def model_of(options: Namespace) -> Any:
    """Return the model of the options with their parameters, or None."""
    given = {k: v for k in ("manifold", *geometry_options()) if (v := vars(options).get(k))}
    path = getattr(options, "model", None)
    if path is None and getattr(options, "manifold", None) is None:
        raise ValueError(f"--manifold is needed: one of {', '.join(REGISTRY)}")
    if path is None:
        return None
    if given:
        raise ValueError(f"--{next(iter(given))} and --model exclude each other")
    from gyrobn import GyroBN

    return GyroBN.load(path).set_params(**_parameters(options))


def estimator(options: Namespace, source: StoredArray) -> Any:
    """Return an estimator with the parameters of the options."""
    from gyrobn import GyroBN

    return GyroBN(geometry_of(options, source), **_parameters(options))


def _parameters(options: Namespace) -> dict[str, Any]:
    given = {name: vars(options).get(name) for name in GIVEN}
    given["output"] = "coordinates" if vars(options).get("coordinates") else None
    if path := vars(options).get("bias"):
        point = host(open_array(path)[:], str(path), np.float64)
        given["bias"] = point[0] if path.suffix.lower() == ".csv" and len(point) == 1 else point
    return {name: value for name, value in given.items() if value is not None}


def geometry_of(options: Namespace, source: StoredArray) -> GyroSpace:
    """Return the geometry of the options, with its sizes from the samples."""
    given = {k: v for k in geometry_options() if (v := vars(options)[k]) is not None}
    cls = REGISTRY[options.manifold]
    if other := given.keys() - cls.options().keys():
        has = " and ".join(f"--{name}" for name in cls.options()) or "none"
        raise ValueError(f"{options.manifold} has no --{other.pop()}; of such options it has {has}")
    try:
        if given.get("representation") == "projector":
            return of_projectors(source[:100])
        manifold = cls.for_shape(source.shape[1:])
    except ValueError as error:
        raise ValueError(
            f"{source.path} of shape {source.shape} holds no points of {options.manifold}: {error}"
        ) from error
    return replace(manifold, **given)


# ---------------------------------------------------------------------- samples


def opened(options: Namespace, bn: Any = None) -> StoredArray:
    """Open the samples, those of several files as one array."""
    names = "key", "axis", "columns", "header"
    given = {name: getattr(options, name) for name in names}
    parts = []
    for path in options.input:
        part = open_array(path, labels=options.domain_column, **given)
        part = _as_matrices(options, part, bn)
        if part.dtype not in (np.float32, np.float64):
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


def _as_matrices(options: Namespace, source: StoredArray, bn: Any) -> StoredArray:
    """Return samples whose rows are matrices if the layout or the geometry says so."""
    layout, length = options.layout, source.shape[-1]
    if layout == "vector":
        return source
    if layout is None and source.path.suffix.lower() == ".csv":
        if bn is not None:
            kind, shape = type(bn.manifold_), tuple(bn.manifold_.point_shape)
            if options.command == "inverse" and bn.output == "coordinates":
                return source
        else:
            kind = REGISTRY.get(options.manifold, Euclidean)
            shape = kind.examples()[0].point_shape
        if len(shape) < 2:
            return source
        fits = layouts(length)
        if bn is not None:
            fits = {name: n for name, n in fits.items() if n == shape[0]}
        if kind is not REGISTRY["correlation"]:
            fits.pop("strict", None)
        if len(fits) != 1:
            found = " or ".join(f"--layout {name} ({n} × {n})" for name, n in fits.items())
            raise ValueError(
                f"{source.path} has {length} numbers per row"
                + (f": choose {found}" if fits else ", which hold no square matrix")
            )
        (layout,) = fits
    if layout is None:
        return source
    return replace(source, layout=layout, given={**(source.given or {}), "layout": layout})


def domains_of(options: Namespace, source: StoredArray) -> Any:
    """Return the label of each sample, or None: from a file, a column, or the names of files."""
    names = "domains", "domain_column", "domain_per_file"
    given = [name for name in names if getattr(options, name)]
    if len(given) > 1:
        raise ValueError(
            " and ".join(f"--{n.replace('_', '-')}" for n in given) + " exclude each other"
        )
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
        if " samples, the first at index" in str(error) and rows_per_chunk(source) < len(source):
            error.add_note("the file was read up to there: gyrobn inspect counts all")
        if isinstance(source.array, Joined):
            for index in dict.fromkeys(re.findall(r"at index \(?(\d+)", str(error))):
                path, row = source.array.place(int(index))
                error.add_note(f"sample {row} of {path}")
        raise


@contextmanager
def watched(options: Namespace, label: str, samples: Any) -> Iterator[Any]:
    """Yield the samples, and show each pass over them as progress."""
    if not isinstance(samples, Chunks):
        yield samples
        return
    with progress(options, label, samples.count) as bar:

        def watch(x: Any, rows: Any) -> Any:
            if not rows[0]:
                bar.reset()
            bar.update(len(rows))
            return x

        yield samples.map(watch)
