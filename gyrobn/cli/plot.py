"""The command plot: samples before and after normalization."""

from argparse import Namespace
from typing import Any

import numpy as np

from gyrobn.cli import normalize as files
from gyrobn.cli.command import Report
from gyrobn.data.chunks import Chunks
from gyrobn.data.writing import check_replaceable
from gyrobn.plot import can_plot, plot_normalization, plot_tangent
from gyrobn.plot.figures import check_format, differ_by_ten, save_figure
from gyrobn.statistics.frechet import frechet

MOST = 2000
"""Maximum number of samples that are drawn."""


def run(options: Namespace) -> Report:
    """Draw samples before and after normalization."""
    check_replaceable(options.figure)
    check_format(options.figure)
    bn = files.model_of(options)
    source = files.opened(options, bn)
    count, domains = len(source), files.domains_of(options, source)
    rows = np.unique(np.linspace(0, count - 1, min(count, MOST)).astype(int))
    labels = domains if options.labels is None else files.labels_in(options.labels)
    if labels is not None and labels.shape != (count,):
        raise ValueError(f"expected {count} labels, one for each sample, got {labels.shape}")
    with files.located(source):
        if bn is None:
            with files.watched(options, "fit", Chunks(source)) as x:
                bn = files.estimator(options, source).fit(x, domains=domains)
        bn.set_params(output="points")
        x = np.concatenate(list(Chunks(source).select(rows)))
        with files.watched(options, "transform", Chunks(source)) as samples:
            chunks = Chunks(lambda: bn.transform_chunks(samples, domains))
            y = np.concatenate(list(chunks.select(rows)))
    M = bn.manifold_
    if bn.on_invalid == "project":
        good = M.contains(x)[(..., *(None,) * len(M.point_shape))]
        x = np.where(good, x, M.project(x))
    x, y, bias = _channel(M, options.channel, x, y, bn.bias)
    if labels is not None:
        labels = labels[rows]
    deviations = (float(np.sqrt(np.sum(frechet(M, points).variance))) for points in (x, y))
    if can_plot(M) and not differ_by_ten(*deviations):
        kind, figure = "surface", plot_normalization(M, x, y, bias, labels=labels).figure
    else:
        kind, figure = "tangent", plot_tangent(M, x, y, bias, labels=labels)[0].figure
    save_figure(figure, options.figure, dpi=150)
    values = {"input": source.path, "manifold": repr(M), "samples": count, "drawn": len(rows)}
    return values | {"kind": kind, "figure": options.figure}, [
        f"drew {len(rows)} of {count} samples of {source.path} on {M!r}",
        f"  written             {options.figure}",
    ]


def _channel(M: Any, channel: int, x: Any, y: Any, bias: Any) -> tuple[Any, ...]:
    """Return one channel of the samples and of the bias."""
    count = int(np.prod(x.shape[1 : x.ndim - len(M.point_shape)], dtype=int))
    if not 0 <= channel < count:
        raise ValueError(f"there is no channel {channel} among {count}, counted from 0")
    x, y = (points.reshape(len(points), count, *M.point_shape)[:, channel] for points in (x, y))
    if bias is not None and np.shape(bias) != M.point_shape:
        bias = np.reshape(bias, (count, *M.point_shape))[channel]
    return x, y, bias
