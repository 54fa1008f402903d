r"""SPDNet with the normalizations of the paper's first table, all of them settings of one layer.

``python -m benchmarks.experiments.spd --data ../shared/data`` runs the cells that are not done yet.
"""

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.experiments import records
from benchmarks.experiments.classification import DTYPE, train
from benchmarks.experiments.series import Split, covariances, split
from gyrobn import SPD, Stats, normalize
from gyrobn.manifolds.definite import POSITIVE_PART
from gyrobn.numerics.matrix_functions import matrix_function
from gyrobn.torch import GyroBN
from gyrobn.torch.baselines import LRBN

NAME = "spd"
SIZES = {
    "natops": (24, 16, 10),
    "basicmotions": (6, 5, 4),
    "japanesevowels": (12, 10, 8),
    "hdm05_11": (93, 20, 12),
}
"""The data sets, with the sizes of the matrices in a network."""
EPOCHS, LR, LEAST = 60, 1e-2, 1e-4


class MeanOnly(LRBN):
    """The first SPDBN: it moves the mean, and leaves the variance as it is."""

    @staticmethod
    def _formula(manifold: Any, x: Any, stats: Stats, bias: Any, *_: Any) -> Any:
        return normalize(manifold, x, Stats(stats.mean, 1.0 + 0.0 * stats.var), bias, eps=0.0)


AIM, LIE_AIM = "affine_invariant", "cholesky_affine_invariant"
NORMS: dict[str, tuple[type[GyroBN], tuple[Any, ...], dict[str, Any]] | None] = {
    "none": None,
    "spdbn_mean": (MeanOnly, (AIM,), {"steps": 1, "mean_gradient": "detach"}),
    "spdbn": (GyroBN, (AIM,), {"steps": 1, "mean_gradient": "detach"}),
    "liebn_aim": (GyroBN, (LIE_AIM, 1.0), {"steps": 1, "mean_gradient": "detach"}),
    "liebn_aim_theta": (GyroBN, (LIE_AIM, 0.5), {"steps": 1, "mean_gradient": "detach"}),
    "liebn_lem": (GyroBN, ("log_euclidean",), {}),
    "liebn_lcm": (GyroBN, ("log_cholesky", 1.0), {}),
    "liebn_lcm_theta": (GyroBN, ("log_cholesky", 0.5), {}),
    "gyro": (GyroBN, (AIM,), {}),
}
"""Layer, metric with θ, and options. GyroBN finds the mean exactly, and differentiates it."""


def cells(seeds: int) -> list[records.Cell]:
    """Return all cells, the cheap data sets first."""
    return [
        {"data": data, "norm": norm, "seed": seed}
        for data in SIZES
        for seed in range(seeds)
        for norm in NORMS
    ]


class BiMap(nn.Module):
    r"""The congruence :math:`W P W^\top` with a learnt W whose rows are orthonormal."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(m, n, dtype=DTYPE))
        nn.init.orthogonal_(self.weight)
        nn.utils.parametrizations.orthogonal(self, orthogonal_map="cayley")

    def forward(self, P: Tensor) -> Tensor:
        """Map n × n matrices to m × m matrices."""
        return self.weight @ P @ self.weight.mT


class ReEig(nn.Module):
    """Eigenvalues below ε become ε; the derivative is exact at repeated eigenvalues, too."""

    def forward(self, P: Tensor) -> Tensor:
        """Map symmetric matrices to positive definite ones."""
        least = LEAST * torch.eye(P.shape[-1], dtype=P.dtype)
        found: Tensor = matrix_function(P - least, POSITIVE_PART)
        return found + least


class LogEig(nn.Module):
    """The entries of log P on and below the diagonal, as a vector with the same length."""

    def forward(self, P: Tensor) -> Tensor:
        """Map n × n matrices to vectors of n(n + 1)/2 numbers."""
        c: Tensor = SPD(P.shape[-1], "log_euclidean").to_normal(P)
        return c


def network(sizes: tuple[int, ...], classes: int, norm: str = "none") -> nn.Sequential:
    """Return SPDNet: blocks of BiMap, normalization and ReEig, then LogEig and a linear layer."""
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layers.append(BiMap(n, m))
        setting = NORMS[norm]
        if setting is not None:
            layer, metric, options = setting
            layers.append(layer(SPD(m, *metric), dtype=DTYPE, **options))
        layers.append(ReEig())
    last = SPD(sizes[-1]).dim
    return nn.Sequential(*layers, LogEig(), nn.Linear(last, classes, dtype=DTYPE))


@cache
def data_of(name: str, folder: Path) -> Split:
    """Return the covariances of a data set, which all cells share."""
    return split(name, folder, covariances)


def work(cell: records.Cell, tick: records.Tick, folder: Path) -> dict[str, Any]:
    """Train one network, and return its results."""
    data = data_of(cell["data"], folder)
    torch.manual_seed(1024 + cell["seed"])
    net = network(SIZES[cell["data"]], data.classes, cell["norm"])
    return train(
        net,
        data,
        torch.optim.Adam(net.parameters(), lr=LR),
        cell.get("epochs", EPOCHS),
        tick,
        decay=True,
    )


def main() -> None:
    """Run the cells that the command line asks for."""
    records.command(NAME, __doc__, cells, work, data_set=SIZES, norm=NORMS)


if __name__ == "__main__":
    main()
