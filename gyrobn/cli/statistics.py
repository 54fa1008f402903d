"""The commands normalize, fit, transform and inverse: GyroBN from file to file."""

import math
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gyrobn.cli import inputs
from gyrobn.cli.console import Console, Report, span
from gyrobn.cli.pipes import PIPE, create_pipe
from gyrobn.data import StoredArray, create_array
from gyrobn.data.joined import Change, JoinedArray, as_it_was, create_folder
from gyrobn.data.stored import Form
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import scale_for
from gyrobn.statistics.points import Moved

if TYPE_CHECKING:
    from gyrobn.estimator.transformer import GyroBN

VERBS = {
    "normalize": "normalized",
    "fit": "fitted to",
    "transform": "transformed",
    "inverse": "brought back",
}
"""The commands, and what the report says they did."""

GIVEN = ("scale", "eps", "tol", "max_iter", "on_invalid", "unseen")
"""Options that are parameters of GyroBN; an option that is not given has its default."""


def run(options: Namespace, console: Console) -> None:
    """Fit a model or load one; write the model and the mapped samples, as the options ask."""
    model, output = getattr(options, "save_model", None), getattr(options, "output", None)
    inputs.check_place(model, model=True)
    # the output is created before the work, so that a path that cannot be written fails early
    with (
        inputs.open_inputs(options) as source,
        _engine(options, source, console) as engine,
        nullcontext() if output is None else engine.create(output, _change(options, source)) as out,
        inputs.naming_the_file(source),
    ):
        domains = inputs.domains_of(options, source)
        bn = fitted(options, source, domains, engine)
        if out is None:
            moved = bn.n_projected_
        else:
            method = "inverse_transform" if options.command == "inverse" else "transform"
            moved = engine.write(bn, out, domains, method)
        if model is not None:
            bn.save(model)
    shape, dtype, manifold = source.shape, str(source.stored), repr(bn.manifold_)
    given = options.input if options.joined else options.input[0]
    values = {"input": given, "shape": shape, "dtype": dtype, "samples": shape[0]}
    lines = [
        f"{VERBS[options.command]} {shape[0]} {'sample' if shape[0] == 1 else 'samples'} of "
        f"{source.path}, shape {shape}, {dtype}, on {manifold}"
    ]
    if options.command in ("normalize", "fit"):
        found, text = describe(bn)
        values |= found
        lines += text
    values["manifold"] = manifold
    if bn.on_invalid == "project":
        values["projected"] = moved
        lines.append(f"  projected           {moved} samples onto the manifold")
    if output is not None:
        values["output"] = output
    values["model"] = model or options.model
    values["seconds"] = console.seconds
    written = [f"  written             {path}" for path in (output, model) if path is not None]
    console.report(values, lines + written)


def _change(options: Namespace, source: StoredArray) -> Change:
    """Return the function that tells the shape and form of the output for an array of samples."""
    asked = getattr(options, "coordinates", False)
    if options.model is not None:
        bn = load(options.model)
        if not asked and bn.output == "points":
            return as_it_was
        manifold, lead = bn.manifold_, 0 if bn.domains_ is None else 1
        shape = tuple(bn.mean_.shape)[lead:]
    elif asked:
        manifold, shape = inputs.geometry_of(options, source), source.shape[1:]
    else:
        return as_it_was
    if options.command == "inverse":
        columns = [f"x{k}" for k in range(math.prod(shape))]
    else:
        from gyrobn.estimator.validation import column_names

        columns = column_names(shape[: len(shape) - len(manifold.point_shape)], manifold.dim)
        shape = (len(columns),)

    def change(part: StoredArray) -> tuple[tuple[int, ...], Form]:
        form, names = part.form, list(columns)
        if form.labels is not None and form.names is not None:
            names.insert(form.column, form.names[form.column])
        named = form.labels is None or form.names is not None
        form = replace(form, layout=None, names=tuple(names) if named else None)
        return (len(part), *shape), form

    return change


def load(path: Path) -> "GyroBN":
    """Return a model that was saved."""
    # imported here and in ``fitted``, after the other files were checked: it takes a second
    from gyrobn.estimator.transformer import GyroBN

    model: GyroBN = GyroBN.load(path)
    return model


def fitted(options: Namespace, source: StoredArray, domains: Any, engine: "InOrder") -> "GyroBN":
    """Return the model of the options, fitted to the samples unless it comes from a file."""
    given: dict[str, Any] = {name: getattr(options, name, None) for name in GIVEN}
    given["output"] = "coordinates" if getattr(options, "coordinates", False) else None
    given["bias"] = inputs.read_bias(options)
    given = {name: value for name, value in given.items() if value is not None}
    if getattr(options, "model", None) is not None:
        bn = load(options.model)
        bn.set_params(**given)
        return bn
    manifold = inputs.geometry_of(options, source)
    from gyrobn.estimator.transformer import GyroBN

    with engine.samples("fit") as samples:
        model: GyroBN = GyroBN(manifold, **given).fit(samples, domains=domains)
    return model


def describe(bn: "GyroBN") -> Report:
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


# ---------------------------------------------------------------------- engines


class InOrder:
    """An engine reads samples and writes what a model makes of them: here, chunk after chunk."""

    def __init__(self, source: StoredArray, console: Console, kind: str | None = None) -> None:
        self.source, self.console = source, console
        self.kind = kind
        """The format of an output that is a pipe."""

    def create(self, output: Path, change: Change) -> AbstractContextManager[Any]:
        """Return a context that makes the output and yields its writer."""
        source = self.source
        if output == PIPE:
            return create_pipe(self.kind, source, change)
        if isinstance(source, JoinedArray):
            return create_folder(output, source, change)
        shape, form = change(source)
        return create_array(output, shape, source.stored, source.key, form)

    def samples(self, label: str) -> AbstractContextManager[Any]:
        """Return a context that yields the samples, and shows each pass over them as progress."""
        return self.console.reading(label, self.source)

    def write(self, bn: Any, out: Any, domains: Any, method: str) -> int:
        """Write the mapped samples; return how many points were moved onto the manifold."""
        from gyrobn.estimator.applying import apply_chunks

        moved = Moved()
        label = "inverse" if method == "inverse_transform" else "transform"
        with self.samples(label) as chunks:
            for chunk in apply_chunks(bn, chunks, domains, method, moved):
                out.write(chunk)
        return moved.count


def _engine(
    options: Namespace, source: StoredArray, console: Console
) -> AbstractContextManager[InOrder]:
    if getattr(options, "engine", None) is None:
        return nullcontext(InOrder(source, console, options.format))
    from gyrobn.cli.dask import on_dask

    return on_dask(source, console, options.workers, options.scheduler)
