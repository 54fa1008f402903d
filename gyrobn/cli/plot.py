"""The command plot: samples before and after normalization."""

from argparse import Namespace
from typing import Any

import numpy as np

from gyrobn.cli.command import Report
from gyrobn.cli.normalize import (
    domains_of,
    estimator,
    labels_in,
    located,
    model_of,
    opened,
    watched,
)
from gyrobn.data.chunks import Chunks
from gyrobn.data.writing import check_replaceable
from gyrobn.plot import can_plot, plot_normalization, plot_tangent
from gyrobn.plot.canvas import check_format, save_figure
from gyrobn.plot.tangent import differ_by_ten
from gyrobn.statistics.frechet import frechet

MOST = 2000
"""The most samples that are drawn."""


def run(options: Namespace) -> Report:
    """Draw samples before and after normalization."""
    check_replaceable(options.figure)
    check_format(options.figure)
    bn = model_of(options)
    source = opened(options, bn)
    count, domains = len(source), domains_of(options, source)
    rows = np.unique(np.linspace(0, count - 1, min(count, MOST)).astype(int))
    colours = domains if options.labels is None else labels_in(options.labels)
    if colours is not None and colours.shape != (count,):
        raise ValueError(f"expected {count} labels, one for each sample, got {colours.shape}")
    with located(source):
        if bn is None:
            with watched(options, "fit", Chunks(source)) as x:
                bn = estimator(options, source).fit(x, domains=domains)
        bn.set_params(output="points")
        x = np.concatenate(list(Chunks(source).select(rows)))
        with watched(options, "transform", Chunks(source)) as samples:
            chunks = Chunks(lambda: bn.transform_chunks(samples, domains))
            y = np.concatenate(list(chunks.select(rows)))
    M = bn.manifold_
    if bn.on_invalid == "project":
        good = M.contains(x)[(..., *(None,) * len(M.point_shape))]
        x = np.where(good, x, M.project(x))
    x, y, bias = _channel(M, options.channel, x, y, bn.bias)
    labels = None if colours is None else colours[rows]
    if can_plot(M) and not differ_by_ten(
        *(np.sqrt(np.sum(frechet(M, z).variance)) for z in (x, y))
    ):
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
