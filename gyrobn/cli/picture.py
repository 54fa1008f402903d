"""The command plot: samples before and after."""

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np

from gyrobn.cli import inputs
from gyrobn.cli.console import Console
from gyrobn.cli.statistics import InOrder, fitted, load
from gyrobn.data.chunks import Chunks
from gyrobn.estimator.validation import labels_for
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.plot import can_plot, plot_normalization, plot_tangent
from gyrobn.plot.canvas import check_format, save_figure
from gyrobn.plot.tangent import differ_by_ten
from gyrobn.statistics.frechet import frechet
from gyrobn.statistics.points import Moved, on_manifold

MOST = 2000
"""The most samples that are drawn."""


def run(options: Namespace, console: Console) -> None:
    """Draw samples before and after normalization, computed or read from a file."""
    inputs.check_place(options.figure)
    check_format(options.figure)
    with inputs.open_samples(options.input, options) as source:
        domains = inputs.domains_of(options, source)
        if domains is not None:
            domains = labels_for(domains, len(source))
        rows = np.unique(np.linspace(0, len(source) - 1, min(len(source), MOST)).astype(int))
        own = None if domains is None else domains[rows]
        colours = own if options.labels is None else _labels(options, len(source))[rows]
        samples = [(options.input, _take(Chunks(source), rows))]
        if options.after is None:
            bn = fitted(options, source, domains, InOrder(source, console))
            bn.set_params(output="points")
            manifold, bias, project = bn.manifold_, bn.bias, bn.on_invalid == "project"
            known = bn.domains_
            if domains is not None and known is not None and len(np.setdiff1d(domains, known)):
                # all samples of a new domain matter for it, not only those that are drawn
                chunks = Chunks(partial(bn.transform_chunks, Chunks(source), domains))
                samples.append((options.input, _take(chunks, rows)))
        else:
            with inputs.check_samples(inputs.open_other(options.after, options)) as after:
                if after.shape != source.shape:
                    raise ValueError(
                        f"{options.after} has shape {after.shape}, {options.input} {source.shape}: "
                        "the same samples must be in both, before and after"
                    )
                samples.append((options.after, _take(Chunks(after), rows)))
            bias, project = inputs.read_bias(options), options.on_invalid == "project"
            if options.model is None:
                manifold = inputs.geometry_of(options, source)
            else:
                manifold = load(options.model).manifold_
    moved = Moved()
    x, *rest = (on_manifold(manifold, a, str(path), project, rows, moved) for path, a in samples)
    y = rest[0] if rest else bn.transform(x, domains=own)
    x, y, bias = _channel(manifold, options.channel, x, y, bias)
    if can_plot(manifold) and not differ_by_ten(_deviation(manifold, x), _deviation(manifold, y)):
        kind, figure = "surface", plot_normalization(manifold, x, y, bias, labels=colours).figure
    else:
        kind, figure = "tangent", plot_tangent(manifold, x, y, bias, labels=colours)[0].figure
    save_figure(figure, options.figure, dpi=150)
    values = {"input": options.input, "manifold": repr(manifold), "samples": len(source)}
    values |= {"drawn": len(rows), "kind": kind, "figure": options.figure}
    values["seconds"] = console.seconds
    lines = [f"drew {len(rows)} of {len(source)} samples of {options.input} on {manifold!r}"]
    if project:
        values["projected"] = moved.count
        lines.append(f"  projected           {moved.count} of the drawn samples onto the manifold")
    console.report(values, [*lines, f"  written             {options.figure}"])


def _labels(options: Namespace, count: int) -> Any:
    """Return the labels that colours stand for, one per sample."""
    labels = inputs.labels_in(options.labels, options)
    if labels.shape != (count,):
        raise ValueError(
            f"{options.labels} holds labels of shape {labels.shape}, and {options.input} {count} "
            "samples: give one label per sample"
        )
    return labels


def _deviation(manifold: GyroSpace, x: Any) -> float:
    """Return the standard deviation."""
    return float(np.sqrt(np.sum(frechet(manifold, x).variance)))


def _take(chunks: Chunks, rows: Any) -> Any:
    """Return some of the samples, by number."""
    return np.concatenate(list(chunks.select(rows)))


def _channel(manifold: GyroSpace, channel: int, x: Any, y: Any, bias: Any) -> tuple[Any, ...]:
    """Return one channel of the samples and of the bias."""
    point = manifold.point_shape
    count = int(np.prod(x.shape[1 : x.ndim - len(point)], dtype=int))
    if channel >= count:
        raise ValueError(f"there is no channel {channel} among {count}, counted from 0")
    x, y = (points.reshape(len(points), count, *point)[:, channel] for points in (x, y))
    if bias is not None:
        bias = np.asarray(bias)
        bias = bias if bias.shape == point else bias.reshape(count, *point)[channel]
    return x, y, bias
