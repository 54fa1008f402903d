"""The commands normalize, fit, transform and inverse: GyroBN from file to file."""

import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gyrobn.chunks import Chunks
from gyrobn.cli.console import Console, span
from gyrobn.cli.inputs import check_place, geometry_of, open_samples, read_bias, read_labels
from gyrobn.normalize import scale_for
from gyrobn.progress import Watched
from gyrobn.storage import ArrayWriter, StoredArray, create_array

if TYPE_CHECKING:
    from gyrobn.estimator import GyroBN

__all__ = ["describe", "fit", "fitted", "inverse", "load", "normalize", "transform"]


GIVEN = ("scale", "eps", "tol", "max_iter", "on_invalid", "unseen")
"""Options that are parameters of GyroBN; those that are not given have its defaults."""


def normalize(options: Namespace, console: Console) -> None:
    """Find the statistics, or take those of a model, and write normalized samples."""
    begin = time.perf_counter()
    check_place(options.save_model, model=True)
    domains = read_labels(options.domains)
    with open_samples(options.input, options.key) as source:
        # made before the work, so that a place that cannot be written is known before it
        with create_array(options.output, source.shape, source.stored, source.key) as out:
            bn = fitted(options, source, domains, console)
            moved = _write(bn, source, out, domains, console)
            if options.save_model is not None:
                bn.save(options.save_model)
        values, lines = describe(bn)
        more, line = _projected(bn, moved)
        values, lines = _about(options, source) | values | more, lines + line
    values |= {"output": options.output, "model": options.save_model or options.model}
    _report(console, values, begin, "normalized", lines, options.output, options.save_model)


def fit(options: Namespace, console: Console) -> None:
    """Find the statistics and write them to a model."""
    begin = time.perf_counter()
    check_place(options.save_model, model=True)
    domains = read_labels(options.domains)
    with open_samples(options.input, options.key) as source:
        bn = fitted(options, source, domains, console)
        bn.save(options.save_model)
        values, lines = describe(bn)
        more, line = _projected(bn, bn.n_projected_)
        values = _about(options, source) | values | more | {"model": options.save_model}
        lines += line
    _report(console, values, begin, "fitted to", lines, options.save_model)


def transform(options: Namespace, console: Console) -> None:
    """Write samples that are normalized with a model."""
    _apply(options, console, inverse=False)


def inverse(options: Namespace, console: Console) -> None:
    """Write samples as they were before a model normalized them."""
    _apply(options, console, inverse=True)


def _apply(options: Namespace, console: Console, inverse: bool) -> None:
    begin = time.perf_counter()
    domains = read_labels(options.domains)
    with open_samples(options.input, options.key) as source:
        bn = fitted(options, source, domains, console)
        with create_array(options.output, source.shape, source.stored, source.key) as out:
            moved = _write(bn, source, out, domains, console, inverse)
        more, lines = _projected(bn, moved)
        values = _about(options, source) | {"manifold": repr(bn.manifold_)} | more
    values |= {"output": options.output, "model": options.model}
    verb = "brought back" if inverse else "transformed"
    _report(console, values, begin, verb, lines, options.output)


def load(path: Path) -> "GyroBN":
    """Return a model that was saved."""
    # here and in ``fitted``, when the other files are known to be good: scikit-learn takes a second
    from gyrobn.estimator import GyroBN

    model: GyroBN = GyroBN.load(path)
    return model


def fitted(options: Namespace, source: StoredArray, domains: Any, console: Console) -> "GyroBN":
    """Return the model of the options, fitted to the samples unless it comes from a file."""
    given: dict[str, Any] = {name: getattr(options, name, None) for name in GIVEN}
    given["bias"] = read_bias(getattr(options, "bias", None))
    given = {name: value for name, value in given.items() if value is not None}
    if getattr(options, "model", None) is not None:
        bn = load(options.model)
        bn.set_params(**given)
        return bn
    manifold = geometry_of(options, source)
    from gyrobn.estimator import GyroBN

    with console.progress("fit", len(source)) as bar:
        return GyroBN(manifold, **given).fit(Chunks(Watched(source, bar)), domains=domains)


def describe(bn: "GyroBN") -> tuple[dict[str, Any], list[str]]:
    """Return what a model holds, as values and as lines."""
    distance = bn.manifold_.norm(bn.mean_)
    deviation = np.sqrt(bn.var_)
    scale = scale_for(bn.manifold_, bn.scale)
    values = {
        "manifold": repr(bn.manifold_),
        "mean_distance": distance,
        "standard_deviation": deviation,
        "iterations": bn.n_iter_,
        "converged": bn.converged_,
        "domains": bn.domains_,
        "scale": bn.scale,
        "eps": bn.eps,
    }
    found = "converged" if np.all(bn.converged_) else "NOT converged"
    lines = [
        f"  mean                at distance {span(distance)} from the identity; "
        f"{found}, iterations: {span(bn.n_iter_, 'd')}",
        f"  standard deviation  {span(deviation)}, to become {span(np.abs(scale))}",
    ]
    if bn.domains_ is not None:
        lines.append(f"  domains             {len(bn.domains_)}")
    return values, lines


def _write(
    bn: "GyroBN",
    source: StoredArray,
    out: ArrayWriter,
    domains: Any,
    console: Console,
    inverse: bool = False,
) -> int:
    """Write the samples, and return how many points were off the manifold and moved onto it."""
    label = "inverse" if inverse else "transform"
    moved: dict[int, int] = {}  # by chunk: one that is read twice counts once

    def counted(x: Any, rows: Any) -> Any:
        if bn.on_invalid == "project" and int(rows[0]) not in moved:
            with np.errstate(all="ignore"):
                moved[int(rows[0])] = int(np.sum(~bn.manifold_.contains(x)))
        return x

    with console.progress(label, len(source)) as bar:
        chunks = Chunks(Watched(source, bar)).map(counted)
        for chunk in bn.transform_chunks(chunks, domains=domains, inverse=inverse):
            out.write(chunk)
    return sum(moved.values())


def _projected(bn: "GyroBN", moved: int) -> tuple[dict[str, Any], list[str]]:
    """Return how many points were moved onto the manifold, where that was asked for."""
    if bn.on_invalid != "project":
        return {}, []
    return {"projected": moved}, [f"  projected           {moved} samples onto the manifold"]


def _about(options: Namespace, source: StoredArray) -> dict[str, Any]:
    shape, dtype = list(source.shape), str(source.stored)
    return {"input": options.input, "shape": shape, "dtype": dtype, "samples": len(source)}


def _report(
    console: Console,
    values: dict[str, Any],
    begin: float,
    verb: str,
    lines: list[str],
    *written: Any,
) -> None:
    values["seconds"] = round(time.perf_counter() - begin, 3)
    first = (
        f"{verb} {values['samples']} samples of {values['input']}, shape "
        f"{tuple(values['shape'])}, {values['dtype']}, on {values['manifold']}"
    )
    paths = [f"  written             {path}" for path in written if path is not None]
    console.report(values, [first, *lines, *paths])
