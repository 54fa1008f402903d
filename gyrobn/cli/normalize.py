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

from gyrobn.cli.command import Report, geometry_options, progress
from gyrobn.data.chunks import Chunks, rows_per_chunk
from gyrobn.data.files import Joined, StoredArray, join, layouts, open_array, suffix_of
from gyrobn.data.writing import check_replaceable, create_array
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import scale_for
from gyrobn.numerics.checks import host

DONE = {"normalize": "normalized", "fit": "fitted to", "transform": "transformed"}
DONE |= {"inverse": "brought back"}
GIVEN = ("scale", "eps", "tol", "max_iter", "on_invalid", "unseen")
"""Options that are parameters of GyroBN; an option that is not given has its default."""


def run(options: Namespace) -> Report:
    """Fit a model or load one; write the model and the normalized samples."""
    output, saved = options.output, options.save_model
    if output is not None:
        suffix_of(output)
        check_replaceable(output)
        if len(options.input) > 1 and output.exists():
            raise FileExistsError(f"{output} exists: of several files, OUT must be a new one")
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
        projected = bn.n_projected_
        if output is not None:
            counted = _write(options, bn, source, samples, domains)
            projected = projected if fitted else counted
        if saved is not None:
            bn.save(saved)
    shape, dtype, manifold = source.shape, str(source.dtype), repr(bn.manifold_)
    count = f"{len(source)} sample{'s' * (len(source) != 1)} of {source.path}"
    lines = [f"{DONE[options.command]} {count}, shape {shape}, {dtype}, on {manifold}"]
    given = options.input if len(options.input) > 1 else options.input[0]
    values = {"input": given, "shape": shape, "dtype": dtype, "samples": shape[0]}
    if options.command in ("normalize", "fit"):
        found, text = describe(bn)
        values, lines = values | found, lines + text
    values["manifold"] = manifold
    if bn.on_invalid == "project" and projected is not None:
        values["projected"] = projected
        lines.append(f"  projected           {projected} samples onto the manifold")
    values |= {} if output is None else {"output": output}
    values["model"] = saved or options.model
    lines += [f"  written             {path}" for path in (output, saved) if path is not None]
    return values, lines


def _check_model(path: Path) -> None:
    """Refuse to replace a file that is not a model."""
    from gyrobn import GyroBN

    check_replaceable(path)
    try:
        GyroBN.load(path)
    except FileNotFoundError:
        pass
    except ValueError:
        raise FileExistsError(f"{path} exists and is not a model: remove it first") from None


def _samples(options: Namespace, source: StoredArray) -> Any:
    """Return the samples in chunks, or as a Dask array."""
    if options.dask is None:
        return Chunks(source)
    import dask.array as da

    meta = np.empty((0,) * source.ndim, source.dtype)
    chunks = (_rows(source), *source.shape[1:])
    return da.from_array(source, chunks, name=False, asarray=False, inline_array=True, meta=meta)


def _rows(source: StoredArray) -> int:
    return min(rows_per_chunk(source), len(source))


@contextmanager
def _cluster(options: Namespace) -> Iterator[None]:
    """Start worker processes of Dask, or connect to a cluster that has access to the files."""
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
    """Write the normalized samples; return how many points were projected, without Dask."""
    inverse, coordinates = options.command == "inverse", bn.output == "coordinates"
    names, layout, invalid = source.names, source.layout, dict[int, int]()
    if coordinates:
        names, layout = () if inverse else (*bn.get_feature_names_out(),), None

    def count(x: Any, rows: Any) -> Any:
        if bn.on_invalid == "project" and not (inverse and coordinates):
            invalid[rows[0]] = int(np.sum(~bn.manifold_.contains(x)))
        return x

    with watched(options, "inverse" if inverse else "transform", samples) as x:
        if options.dask is None:
            chunks = bn.transform_chunks(x.map(count), domains, inverse)
            first = next(chunks)
        else:
            first = (bn.inverse_transform if inverse else bn.transform)(x, domains)
        shape, form = (len(source), *first.shape[1:]), {"layout": layout, "axis": source.axis}
        with create_array(
            options.output, shape, source.dtype, rows=_rows(source), names=names, **form
        ) as out:
            if options.dask is None:
                for chunk in chain([first], chunks):
                    out.write(chunk)
                return sum(invalid.values())
            first.store(out, lock=False)
            out.count = len(source)
            return None


def describe(bn: Any) -> Report:
    """Return what a model holds, as values and as lines."""
    # what the theorem says: eps counts if the samples are close together
    deviation = np.abs(scale_for(bn.manifold_, bn.scale)) * np.sqrt(bn.var_ / (bn.var_ + bn.eps))
    values, lines = about_mean(bn.manifold_, bn.mean_, bn.var_, bn.n_iter_, bn.converged_)
    lines[1] += f", to become {span(deviation)}"
    if bn.domains_ is not None:
        lines.append(f"  domains             {len(bn.domains_)}")
    more = {"domains": bn.domains_, "scale": bn.scale, "eps": bn.eps}
    return {"manifold": repr(bn.manifold_)} | values | more, lines


def about_mean(
    manifold: GyroSpace, mean: Any, variance: Any, iterations: Any, converged: Any
) -> Report:
    """Return mean and standard deviation, as values and as lines."""
    distance, deviation = manifold.norm(mean), np.sqrt(variance)
    values = {"mean_distance": distance, "standard_deviation": deviation}
    found = "converged" if np.all(converged) else "NOT converged"
    return values | {"iterations": iterations, "converged": converged}, [
        f"  mean                at distance {span(distance)} from the identity; {found}, "
        f"iterations: {span(iterations, 'd')}",
        f"  standard deviation  {span(deviation)}",
    ]


def span(values: Any, form: str = ".4g") -> str:
    """Return one number, or the range of several, as text.

    >>> span(0.5), span([2, 2], "d"), span([0.25, 0.5, 1.0])
    ('0.5', '2', '0.25 to 1 (3 values)')
    """
    v = np.asarray(values)
    low, high = format(v.min(), form), format(v.max(), form)
    return low if low == high else f"{low} to {high} ({v.size} values)"


# ---------------------------------------------------------------------- models and geometries


def model_of(options: Namespace) -> Any:
    """Return the model of the options with their parameters, or None."""
    given = [k for k in ("manifold", *geometry_options()) if vars(options)[k] is not None]
    if options.model is None:
        if options.manifold is None:
            raise ValueError(f"--manifold is needed: one of {', '.join(REGISTRY)}")
        return None
    if given:
        raise ValueError(f"--{given[0]} and --model exclude each other")
    from gyrobn import GyroBN

    return GyroBN.load(options.model).set_params(**_parameters(options))


def estimator(options: Namespace, source: StoredArray) -> Any:
    """Return an estimator with the parameters of the options."""
    from gyrobn import GyroBN

    return GyroBN(geometry_of(options, source), **_parameters(options))


def _parameters(options: Namespace) -> dict[str, Any]:
    given = {name: vars(options)[name] for name in GIVEN}
    given["output"] = "coordinates" if options.coordinates else None
    if path := options.bias:
        point = host(open_array(path)[:], str(path), np.float64)
        given["bias"] = point[0] if path.suffix.lower() == ".csv" and len(point) == 1 else point
    return {name: value for name, value in given.items() if value is not None}


def geometry_of(options: Namespace, source: StoredArray) -> GyroSpace:
    """Return the geometry of the options, with its sizes from the samples."""
    given = {k: v for k in geometry_options() if (v := vars(options)[k]) is not None}
    cls = REGISTRY[options.manifold]
    for name in given.keys() - cls.options():
        has = " and ".join(f"--{name}" for name in cls.options()) or "none"
        raise ValueError(f"{options.manifold} has no --{name}; of such options it has {has}")
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
    given = {name: getattr(options, name) for name in ("key", "axis", "columns", "header")}
    parts = []
    for path in options.input:
        part = open_array(path, labels=options.domain_column, **given)
        if layout := _layout(options, part, bn):
            part = replace(part, layout=layout, given={**(part.given or {}), "layout": layout})
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


def _layout(options: Namespace, source: StoredArray, bn: Any) -> str | None:
    """Return how the rows hold matrices: by the option, or in a table by the geometry."""
    if options.layout is not None or source.path.suffix.lower() != ".csv":
        return None if options.layout == "vector" else options.layout
    if bn is not None:
        manifold, coordinates = bn.manifold_, bn.output == "coordinates"
    elif options.manifold is not None:
        manifold, coordinates = REGISTRY[options.manifold].examples()[0], False
    else:
        return None
    if len(manifold.point_shape) < 2 or (coordinates and options.command == "inverse"):
        return None
    found = {
        layout: n
        for layout, n in layouts(source.shape[1]).items()
        if bn is None or n == manifold.point_shape[0]
        if layout != "strict" or isinstance(manifold, REGISTRY["correlation"])
    }
    if len(found) == 1:
        return next(iter(found))
    choice = " or ".join(f"--layout {name} ({n} × {n})" for name, n in found.items())
    raise ValueError(
        f"{source.path} has {source.shape[1]} numbers per row"
        + (f": choose {choice}" if found else ", which hold no square matrix")
    )


def domains_of(options: Namespace, source: StoredArray) -> Any:
    """Return the label of each sample, or None: from a file, a column, or the names of files."""
    names = "domains", "domain_column", "domain_per_file"
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} exclude each other")
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
    with progress(options, label, samples.count) as bar:

        def watch(x: Any, rows: Any) -> Any:
            if not rows[0]:
                bar.reset()
            bar.update(len(rows))
            return x

        yield samples.map(watch)
