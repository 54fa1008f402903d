r"""The networks of the link prediction tables, and the normalizations they are run with.

HNN, KNN, SNN, PHNN and LNN are one encoder, on five geometries: two blocks of a transformation, a
normalization and an activation. HNN++ is the same encoder with other transformations. RResNet moves
points along a learnt field, and has one normalization at its end.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from benchmarks.experiments.layers import (
    HorosphereBlock,
    Horospheres,
    LorentzActivation,
    LorentzLinear,
    PoincareLinear,
)
from gyrobn import (
    Euclidean,
    Hyperboloid,
    Klein,
    PoincareBall,
    ProjectedHypersphere,
    Sphere,
    batch_stats,
)
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.torch import GyroBN
from gyrobn.torch.baselines import LRBN
from gyrobn.torch.nn import GyroActivation, GyroLinear

DTYPE = torch.float64


@dataclass(frozen=True)
class Backbone:
    """A row of the tables: its geometry, and how features become points of it."""

    space: type[GyroSpace]
    unit: float = 1.0
    r"""Length of the paper's :math:`\operatorname{Log}_0` coordinates in normal coordinates: 2 on
    the ball and the projected hypersphere, whose metric is four times Euclid's at the origin."""
    clip: float = float("inf")
    """Largest length of features, in the paper's coordinates."""
    edge: float = float("inf")
    """Largest length after a transformation, in the paper's coordinates. HGCN keeps points of the
    ball below norm 1 − 1e-5, that is artanh(1 − 1e-5). Without it, the first embeddings of Disease
    lie so far apart that no pair has a slope, and plain HNN never leaves chance."""
    transform: type[nn.Module] = GyroLinear

    def features(self, f: Tensor) -> Tensor:
        """Return the first points, or for GyroLinear their coordinates, computed once."""
        if self.transform is HorosphereBlock:
            return thin(f)  # an ordinary linear map comes first
        space = self.space(f.shape[-1])
        points = space.from_normal(self.unit * clip(f, self.clip))
        return thin(space.to_normal(points)) if self.transform is GyroLinear else points


def thin(f: Tensor) -> Tensor:
    """Return features that are mostly zero as a sparse matrix: a linear map then is much faster."""
    return f.to_sparse_csr() if 10 * f.count_nonzero() < f.numel() else f


def clip(c: Tensor, size: float) -> Tensor:
    """Shorten vectors that are longer than ``size``."""
    return c * torch.clamp(size / c.norm(dim=-1, keepdim=True), max=1.0)


EDGE = math.atanh(1.0 - 1e-5)
BACKBONES = {
    "HNN": Backbone(PoincareBall, 2.0, EDGE, EDGE),
    "KNN": Backbone(Klein, 1.0, EDGE, EDGE),
    "LNN": Backbone(Hyperboloid, 1.0, 15.0, transform=LorentzLinear),
    "SNN": Backbone(Sphere),
    "PHNN": Backbone(ProjectedHypersphere, 2.0),
    "HNN++": Backbone(PoincareBall, 2.0, EDGE, EDGE, PoincareLinear),
    "RResNet": Backbone(PoincareBall, 2.0, transform=HorosphereBlock),
}


class PublishedLRBN(LRBN):
    r"""LRBN as its published code computes it: another function in training and evaluation.

    Training scales by :math:`\sqrt{s/(v^2+\epsilon)}`. Evaluation takes the mean and variance of
    the evaluation batch, carries its logarithms to the running mean m (not to the bias), scales by
    :math:`\sqrt{m_{v}/(\tfrac{n}{n-1}v^2+\epsilon)}` without s, and adds the vector, which belongs
    to m, at the bias. The running variance is the average of all batches.
    """

    @staticmethod
    def _formula(manifold: Any, x: Any, stats: Any, bias: Any, scale: Any, *rest: Any) -> Any:
        return LRBN._formula(manifold, x, stats, bias, scale.clamp(min=0.0) ** 0.5, *rest)

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Normalize a batch."""
        if self.training:
            old, count = self.running_var.clone(), int(self.num_batches_tracked)
            y = super().forward(x, weights)
            momentum = 0.1 if self.momentum is None else self.momentum
            batch = (self.running_var - (1.0 - momentum) * old) / momentum
            self.running_var.copy_(old + (batch - old) / (count + 1))
            return y
        M, n = self.manifold, len(x)
        stats = batch_stats(M, x)
        moved = M.transport(stats.mean, self.running_mean, M.log(stats.mean, x))
        factor = (self.running_var / (n / (n - 1) * stats.var + self.settings.eps)) ** 0.5
        out: Tensor = M.exp(M.from_normal(self.bias), factor * moved)
        return out


NORMS: dict[str, Callable[..., nn.Module] | None] = {
    "none": None,
    "lrbn_published": PublishedLRBN,
    "lrbn": LRBN,
    "gyro": GyroBN,
}


def encoder(
    backbone: str,
    features: int,
    norm: str = "none",
    dim: int = 128,
    activation: bool = True,
    dropout: float = 0.2,
    steps: int | None = None,
) -> nn.Sequential:
    """Return a network from features to points of ``dim`` dimensions."""
    row = BACKBONES[backbone]
    target = row.space(dim)
    make = NORMS[norm]
    options = {"eps": 1e-6, "steps": steps, "dtype": DTYPE}
    norms = [nn.Identity() if make is None else make(target, **options) for _ in range(2)]
    if row.transform is HorosphereBlock:
        return nn.Sequential(*_residual(features, target), norms[0], GyroActivation(target))
    layers: list[nn.Module] = []
    for transform, normalize in zip(_transforms(row, features, dim, dropout), norms, strict=True):
        layers.append(transform)
        if math.isfinite(row.edge):
            layers.append(GyroActivation(target, partial(clip, size=row.unit * row.edge)))
        layers.append(normalize)
        if activation:
            act = LorentzActivation if row.transform is LorentzLinear else GyroActivation
            layers.append(act(target))
    return nn.Sequential(*layers)


def _transforms(row: Backbone, features: int, dim: int, dropout: float) -> list[nn.Module]:
    """Return the layers features → dim → dim, with dropout on their weights."""
    first, target = row.space(features), row.space(dim)
    if row.transform is LorentzLinear:  # the paper names no dropout for it
        return [LorentzLinear(source, target, dtype=DTYPE) for source in (first, target)]
    if row.transform is PoincareLinear:
        layers = [PoincareLinear(source, dim, dtype=DTYPE) for source in (first, target)]
        return [register_parametrization(x, "weight_v", nn.Dropout(dropout)) for x in layers]
    sources = Euclidean(features), target  # the first layer is given coordinates
    return [GyroLinear(x, target, dropconnect=dropout, dtype=DTYPE) for x in sources]


def _residual(features: int, target: GyroSpace) -> list[nn.Module]:
    """Return RResNet. Its published code gives all blocks the horospheres of the last; so do we."""
    horospheres = Horospheres(target, dtype=DTYPE)
    blocks = [HorosphereBlock(horospheres) for _ in range(2)]
    return [nn.Linear(features, target.dim, dtype=DTYPE), *blocks]


def parameter_groups(net: nn.Module, unit: float, lr: float, decay: float) -> list[dict[str, Any]]:
    r"""Return groups in which Adam treats biases as if they were the paper's coordinates.

    With b = u b′ a step lr of b′ is one of u·lr of b, and a decay of b′ is one of decay/u² of b.
    """
    biases = [p for name, p in net.named_parameters() if name.endswith("bias")]
    others = [p for name, p in net.named_parameters() if not name.endswith("bias")]
    return [
        {"params": others, "lr": lr, "weight_decay": decay},
        {"params": biases, "lr": lr * unit, "weight_decay": decay / unit**2},
    ]
