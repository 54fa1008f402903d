"""The command plot: samples before and after normalization."""

from argparse import Namespace
from typing import Any

import numpy as np

from gyrobn.cli import normalize as files
from gyrobn.data.chunks import Chunks
from gyrobn.data.writing import check_replaceable
from gyrobn.estimator.applying import settled
from gyrobn.plot import can_plot, plot_normalization, plot_tangent
from gyrobn.plot.figures import check_format, differ_by_ten, save_figure
from gyrobn.statistics.frechet import frechet

MOST = 2000
"""Maximum number of samples that are drawn."""


def run(options: Namespace) -> dict[str, Any]:
    """Draw samples before and after normalization."""
    check_replaceable(options.figure)
    check_format(options.figure)
    bn = files.estimator(options)
    source = files.opened(options, bn)
    count, domains = len(source), files.domains_of(options, source)
    rows = np.unique(np.linspace(0, count - 1, min(count, MOST)).astype(int))
    labels = domains if options.labels is None else files.labels_in(options.labels)
    if labels is not None and labels.shape != (count,):
        raise ValueError(f"expected {count} labels, one for each sample, got {labels.shape}")
    with files.located(source):
        if options.model is None:
            with files.watched(options, "fit", Chunks(source)) as x:
                bn.fit(x, domains=domains)
        bn.set_params(output="points")
        M, bias = bn.manifold_, bn.bias
        x = settled(M, np.concatenate(list(Chunks(source).select(rows))))
        with files.watched(options, "transform", Chunks(source)) as samples:
            chunks = Chunks(lambda: bn.transform_chunks(samples, domains))
            y = np.concatenate(list(chunks.select(rows)))
    many = int(np.prod(x.shape[1 : x.ndim - len(M.point_shape)], dtype=int))
    if not 0 <= options.channel < many:
        raise ValueError(f"there is no channel {options.channel} among {many}, counted from 0")
    x, y = (
        points.reshape(len(rows), many, *M.point_shape)[:, options.channel] for points in (x, y)
    )
    if bias is not None and np.shape(bias) != M.point_shape:
        bias = np.reshape(bias, (many, *M.point_shape))[options.channel]
    given = {"labels": None if labels is None else labels[rows]}
    deviations = (float(np.sqrt(np.sum(frechet(M, points).variance))) for points in (x, y))
    if can_plot(M) and not differ_by_ten(*deviations):
        kind, figure = "surface", plot_normalization(M, x, y, bias, **given).figure
    else:
        kind, figure = "tangent", plot_tangent(M, x, y, bias, **given)[0].figure
    save_figure(figure, options.figure, dpi=150)
    values = files.about(source) | {"manifold": repr(M), "drawn": len(rows)}
    return values | {"kind": kind, "figure": options.figure}
