"""Tensors on ``meta`` have shapes and no values: every layer finds the shapes of what follows."""

import pytest
import torch
from conftest import FIRST

from benchmarks.experiments import layers as paper
from gyrobn import Euclidean, Grassmannian, Hyperboloid, PoincareBall
from gyrobn.torch import (
    DomainGyroBN,
    GyroBN,
    GyroGroupNorm,
    GyroInstanceNorm,
    GyroLayerNorm,
    GyroRMSNorm,
)
from gyrobn.torch import nn as gnn

LAYERS = {
    "batch": lambda M: GyroBN(M, 2, device="meta"),
    "steps": lambda M: GyroBN(M, 2, steps=1, device="meta"),
    "centroid": lambda M: GyroBN(M, 2, steps=0, device="meta"),
    "domain": lambda M: DomainGyroBN(M, 3, 2, device="meta"),
    "layer": lambda M: GyroLayerNorm(M, device="meta"),
    "instance": lambda M: GyroInstanceNorm(M, 2, track_running_stats=True, device="meta"),
    "group": lambda M: GyroGroupNorm(M, 2, 2, device="meta"),
    "rms": lambda M: GyroRMSNorm(M, device="meta"),
}


CASES = [("batch", M) for M in FIRST]
CASES += [
    (kind, M) for kind in LAYERS for M in (PoincareBall(2), Grassmannian(4, 2)) if kind != "batch"
]


@pytest.mark.parametrize(("kind", "M"), CASES, ids=str)
def test_normalizations(kind, M):
    layer = LAYERS[kind](M)
    x = torch.empty(4, 2, 3, *M.point_shape, device="meta")
    if kind not in ("layer", "instance", "group", "rms"):
        x = x[:, :, 0]
    domains = [torch.zeros(4, dtype=torch.long, device="meta")] if kind == "domain" else []
    for mode in (layer.train, layer.eval):
        y = mode()(x, *domains)
        assert (y.shape, y.dtype, y.is_meta) == (x.shape, x.dtype, True)
    weights = torch.empty(x.shape[: x.ndim - len(M.point_shape)], device="meta")
    assert layer.train()(x, *domains, weights).shape == x.shape


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_gradients(M):
    x = torch.empty(4, 2, *M.point_shape, device="meta").requires_grad_()
    layer = GyroBN(M, 2, device="meta")
    layer(x).sum().backward()
    assert x.grad.shape == x.shape
    assert layer.bias.grad.shape == layer.bias.shape


def test_other_layers():
    with torch.device("meta"):
        ball, surface, subspaces = PoincareBall(4), Hyperboloid(3), Grassmannian(6, 2)
        net = torch.nn.Sequential(
            gnn.GyroLinear(Euclidean(5), ball), GyroBN(ball), gnn.GyroActivation(ball)
        )
        points = net(torch.empty(7, 5))
        assert points.shape == (7, 4)
        assert paper.PoincareMLR(ball, 3)(paper.PoincareLinear(ball, 4)(points)).shape == (7, 3)
        assert paper.HorosphereBlock(paper.Horospheres(ball, 5), 6)(points).shape == (7, 4)
        assert paper.BetaConcat(PoincareBall(8), (4, 4))(points, points).shape == (7, 8)
        assert paper.FermiDiracDecoder(ball)(points, points).shape == (7,)
        assert gnn.ManifoldParameter(ball, 7)().shape == (7, 4)
        y = paper.LorentzActivation(surface)(
            paper.LorentzLinear(surface, surface)(torch.empty(7, 4))
        )
        assert y.shape == (7, 4)
        moved = paper.GrassmannTranslation(subspaces, 3)(torch.empty(7, 1, 6, 2))
        assert (
            paper.ProjMap(Grassmannian(3, 2))(paper.GrassmannPool(subspaces)(moved)).shape[-1] == 9
        )
