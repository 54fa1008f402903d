r"""CorNet: classes of series from correlation matrices, by way of the Poincaré ball.

``python -m benchmarks.experiments.correlation --data ../shared/data`` runs the cells that are not
done yet. The code of CorNet is not public; sizes of layers follow from its parameter counts, and
optimizer, learning rate and epochs are choices made here.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.experiments import radar, records
from benchmarks.experiments.classification import DTYPE, train
from benchmarks.experiments.layers import BetaConcat, PoincareLinear, PoincareMLR
from benchmarks.experiments.series import AXES, SERIES, WINDOWS, Split, correlations, divided, split
from gyrobn import PoincareBall
from gyrobn.torch import GyroBN
from gyrobn.torch.baselines import LRBN

NAME = "correlation"
HIDDEN, EPOCHS, LR = 325, 60, 5e-3
SCALE_RATE = 0.5
"""Learning rate of the scale s, in units of that of the other parameters: the paper's for HDM05."""
LARGE = "radar", *reversed(WINDOWS)
"""Data sets of thousands of samples: simulated echoes, and windows of clips."""
HELD_OUT = 0.2
"""Part of the training samples by which the epoch is chosen, in the cells that have one."""
NORMS: dict[str, Callable[..., nn.Module] | None] = {"none": None, "lrbn": LRBN, "gyro": GyroBN}


def cells(seeds: int) -> list[records.Cell]:
    """Return all cells: those in which a validation part chooses the epoch, then the others.

    The small data sets and the first seeds come first.
    """
    held = {"validation": HELD_OUT}
    sets = [(SERIES[::-1], held), (SERIES[::-1], {}), (LARGE, held)]
    return [
        {"data": data, "norm": norm, **more, "seed": seed}
        for names, more in sets
        for seed in range(seeds)
        for data in names
        for norm in NORMS
    ]


def to_ball(C: Tensor) -> Tensor:
    """Carry correlation matrices (..., channels, n, n) to one Poincaré ball.

    Row k of the Cholesky factor L becomes the point :math:`L_k/(1 + L_{kk})` of a ball of
    dimension k − 1, and the points of all rows and channels are β-concatenated.
    """
    channels, n = C.shape[-3:-1]
    L = torch.linalg.cholesky(C)
    rows = [(c, k) for c in range(channels) for k in range(1, n)]
    points = [L[..., c, k, :k] / (1.0 + L[..., c, k, k, None]) for c, k in rows]
    sizes = [k for _, k in rows]
    joined: Tensor = BetaConcat(PoincareBall(sum(sizes)), sizes)(*points)
    return joined


def network(
    size: int, classes: int, norm: str = "none", hidden: int = HIDDEN, dtype: Any = DTYPE
) -> nn.Sequential:
    """Return CorNet: a fully connected layer between balls, and a logistic regression on one."""
    first = PoincareLinear(PoincareBall(size), hidden, dtype=dtype)
    make, ball = NORMS[norm], first.out_manifold
    middle = [] if make is None else [make(ball, steps=2, dtype=dtype)]
    return nn.Sequential(first, *middle, PoincareMLR(ball, classes, dtype=dtype))


def optimizer_of(net: nn.Sequential) -> torch.optim.Optimizer:
    """Return Adam, with a slower scale in normalizations."""
    scales = [p for name, p in net.named_parameters() if name.endswith("scale")]
    others = [p for name, p in net.named_parameters() if not name.endswith("scale")]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": scales, "lr": SCALE_RATE * LR}]
    return torch.optim.Adam(groups, lr=LR)


@cache
def data_of(name: str, folder: Path) -> Split:
    """Return a data set as points of a ball, which all cells share.

    Clips of japanesevowels have as few as seven frames, too few for windows of time; those of the
    larger sets are windows already.
    """
    if name == "radar":
        C, y = radar.correlations()
        return divided(to_ball(torch.as_tensor(C)), y, np.arange(len(y)) >= len(y) // 2)
    axes, windows = AXES.get(name, 1), name not in ("japanesevowels", *WINDOWS)
    return split(
        name,
        folder,
        lambda parts: to_ball(torch.as_tensor(correlations(parts, axes, windows))).numpy(),
    )


def work(cell: records.Cell, tick: records.Tick, folder: Path) -> dict[str, Any]:
    """Train one network, and return its results."""
    data = data_of(cell["data"], folder)
    held = None
    if "validation" in cell:
        data, held = data.hold_out(cell["validation"], cell["seed"])
    torch.manual_seed(1024 + cell["seed"])
    net = network(data.x.shape[-1], data.classes, cell["norm"])
    epochs = cell.get("epochs", EPOCHS)
    return train(net, data, optimizer_of(net), epochs, tick, decay=True, validation=held)


def main() -> None:
    """Run the cells that the command line asks for."""
    records.command(NAME, __doc__, cells, work, data_set=(*SERIES, *LARGE), norm=NORMS)


if __name__ == "__main__":
    main()
