"""Networks in half precision: every layer of torch takes it, computes in float32, and returns it.

GyroBN itself, with its statistics, is in test_layer_states.py.
"""

import copy
import re
from pathlib import Path

import pytest
import torch
from conftest import FIRST
from torch import nn

from benchmarks.experiments import layers as paper
from gyrobn import Euclidean, Grassmannian, Hyperboloid, PoincareBall, Stereographic
from gyrobn.torch import DomainGyroBN, GyroBN, GyroInstanceNorm, GyroLayerNorm, GyroRMSNorm
from gyrobn.torch import nn as gnn
from gyrobn.torch.baselines import LRBN, ManifoldNorm

DTYPES = {"float16": 4e-3, "bfloat16": 3e-2}
BALL, SURFACE, SUBSPACES = PoincareBall(4), Hyperboloid(3), Grassmannian(6, 2)

LAYERS = {
    "PoincareLinear": (lambda **own: paper.PoincareLinear(BALL, 3, **own), (BALL,)),
    "PoincareMLR": (lambda **own: paper.PoincareMLR(BALL, 3, **own), (BALL,)),
    "BetaConcat": (
        lambda **own: paper.BetaConcat(PoincareBall(8), (4, 4), **own),
        (BALL, BALL),
    ),
    "Horospheres": (lambda **own: paper.Horospheres(BALL, 5, **own), (BALL,)),
    "HorosphereBlock": (
        lambda **own: paper.HorosphereBlock(paper.Horospheres(BALL, 5, **own), 6),
        (BALL,),
    ),
    "LorentzLinear": (
        lambda **own: paper.LorentzLinear(SURFACE, Hyperboloid(2), **own),
        (SURFACE,),
    ),
    "LorentzLinear, reach": (
        lambda **own: paper.LorentzLinear(SURFACE, SURFACE, learn_reach=True, **own),
        (SURFACE,),
    ),
    "LorentzActivation": (lambda **_: paper.LorentzActivation(SURFACE), (SURFACE,)),
    "GrassmannTranslation": (
        lambda **own: paper.GrassmannTranslation(SUBSPACES, 5, **own),
        (SUBSPACES,),
    ),
    "GrassmannPool": (lambda **_: paper.GrassmannPool(SUBSPACES), (SUBSPACES,)),
    "ProjMap": (lambda **_: paper.ProjMap(SUBSPACES), (SUBSPACES,)),
    "FermiDiracDecoder": (lambda **_: paper.FermiDiracDecoder(BALL), (BALL, BALL)),
    "ManifoldParameter": (lambda **own: gnn.ManifoldParameter(SURFACE, 5, **own), ()),
    "learnt curvature": (
        lambda **own: paper.PoincareLinear(BALL, 3, learn_curvature=True, **own),
        (BALL,),
    ),
    "LRBN": (lambda **own: LRBN(BALL, **own), (BALL,)),
    "ManifoldNorm": (lambda **own: ManifoldNorm(BALL, **own), (BALL,)),
}
for M in (M for M in FIRST if not M.complex_points):  # there is no such dtype
    LAYERS[f"GyroLinear from {M!r}"] = (lambda M=M, **own: gnn.GyroLinear(M, BALL, **own), (M,))
    LAYERS[f"GyroLinear to {M!r}"] = (lambda M=M, **own: gnn.GyroLinear(BALL, M, **own), (BALL,))
    LAYERS[f"GyroActivation on {M!r}"] = (lambda M=M, **_: gnn.GyroActivation(M, torch.tanh), (M,))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer(kind, name):
    """As in float32 of the same numbers, to the digits of the dtype."""
    make, spaces = LAYERS[kind]
    half = getattr(torch, name)
    torch.manual_seed(0)
    layer = make(dtype=half)  # the parameters start in half precision, ...
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(0.3 * torch.randn(p.shape))
    given = [M.random(5, rng=k, like=torch.zeros(()), spread=0.4) for k, M in enumerate(spaces)]
    given = [x.to(half).requires_grad_() for x in given]
    wide = [M.project(x.detach().float()) for M, x in zip(spaces, given, strict=True)]
    wide = [x.requires_grad_() for x in wide]
    exact = copy.deepcopy(layer).float()
    expected = exact(*wide)
    expected.square().sum().backward()
    steepest = max(float(a.grad.abs().max()) for a in [*exact.parameters(), *wide])
    moved = copy.deepcopy(exact).to(
        half
    )  # ... or are moved there, as by Lightning's bf16-true, ...
    for own, inputs, out in (
        (layer, given, half),
        (moved, given, half),
        (copy.deepcopy(exact), given, half),  # ... or only the input is in half precision,
        (layer, wide, torch.float32),  # ... or only the parameters
    ):
        if not inputs and own.coordinates.dtype != half:
            continue
        own.zero_grad()
        y = own(*inputs)
        assert y.dtype == (out if inputs else half)
        assert y.shape == expected.shape
        scale = 1.0 + float(expected.detach().abs().max())
        assert float((y.float() - expected).detach().abs().max()) < scale * DTYPES[name]
        y.float().square().sum().backward()
        for (of, p), q in zip(own.named_parameters(), exact.parameters(), strict=True):
            assert p.grad.dtype == p.dtype
            far = float((p.grad.float() - q.grad).abs().max())
            assert far < 5 * (0.1 + steepest) * DTYPES[name], of
        assert all(x.grad.dtype == x.dtype and x.grad.isfinite().all() for x in inputs)


@pytest.mark.parametrize("name", DTYPES)
def test_parts_of_a_concatenation(name):
    half = getattr(torch, name)
    layer = paper.BetaConcat(PoincareBall(3), (1, 2))
    parts = torch.tensor([0.5], dtype=half), torch.tensor([0.0, 0.5], dtype=half)
    for part, back in zip(parts, layer.split(layer(*parts)), strict=True):
        torch.testing.assert_close(part, back, rtol=0.0, atol=DTYPES[name])


@pytest.mark.parametrize("name", DTYPES)
def test_points_in_half_precision_become_parameters(name):
    half = getattr(torch, name)
    points = SURFACE.random(3, like=torch.zeros(()), spread=0.5).to(half)
    p = gnn.ManifoldParameter.of(SURFACE, points)
    assert p.coordinates.dtype == half
    torch.testing.assert_close(p(), points, rtol=0.0, atol=4 * DTYPES[name])


@pytest.mark.parametrize("M", [PoincareBall(4), Hyperboloid(4), Stereographic(4, 0.3)], ids=repr)
def test_a_learnt_curvature_that_several_layers_follow(M):
    """They agree on it to the digits of float32, although the parameter has three."""
    norm = GyroBN(M, learn_curvature=True)
    net = nn.Sequential(
        gnn.GyroLinear(Euclidean(3), norm), norm, gnn.GyroActivation(norm), gnn.GyroLinear(norm, M)
    )
    nn.init.constant_(norm.raw_curvature, 0.2)
    net.bfloat16()
    assert norm.raw_curvature.dtype == torch.bfloat16
    assert norm.manifold.curvature.dtype == torch.float32
    y = net(torch.randn(16, 3).bfloat16())
    y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16
    assert bool(torch.isfinite(norm.raw_curvature.grad))


def network_of_the_readme():
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n((?:(?!```).)*gyrobn\.torch\.nn.*?)```", text, re.DOTALL)
    found = {}
    exec(block, found)
    return found["net"]


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("name", DTYPES)
def test_the_network_of_the_readme(name, capsys):
    """``module.to(dtype)`` and input in that dtype is what Lightning's ``bf16-true`` does."""
    half = getattr(torch, name)
    torch.manual_seed(0)
    net = network_of_the_readme().to(half).train()
    assert {p.dtype for p in net.parameters()} == {half}
    exact = copy.deepcopy(net).float()
    x = torch.randn(64, 5).to(half)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean()
        assert loss.dtype == half
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    assert abs(losses[0] - float((exact(x.float()) - 1).square().mean())) < 10 * DTYPES[name]
    assert {p.dtype for p in net.parameters()} == {half}
    net.eval()
    assert net(x[:1]).dtype == half


def test_every_normalization_between_layers_in_bfloat16():
    M = PoincareBall(4)
    for norm in (GyroBN(M, 3), GyroLayerNorm(M), GyroInstanceNorm(M, 3), GyroRMSNorm(M)):
        net = nn.Sequential(gnn.GyroActivation(M), norm, gnn.GyroLinear(M, Euclidean(2))).bfloat16()
        x = M.random(5, 3, 2, like=torch.zeros(()), spread=0.4).bfloat16()
        y = net(x[:, :, 0] if isinstance(norm, GyroBN) else x)
        assert y.dtype == torch.bfloat16
        assert bool(torch.isfinite(y).all())
    layer = DomainGyroBN(M, 2).bfloat16()
    x = gnn.GyroLinear(Euclidean(3), M).bfloat16()(torch.randn(8, 3).bfloat16())
    assert layer(x, torch.arange(8) % 2).dtype == torch.bfloat16


def test_under_autocast():
    """What torch's own layers give there is taken."""
    net = nn.Sequential(nn.Linear(3, 4), gnn.GyroLinear(Euclidean(4), BALL), GyroBN(BALL))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(torch.randn(8, 3))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()


def test_other_dtypes_are_still_refused():
    layer = paper.PoincareLinear(BALL, 3, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="mixed dtypes"):
        layer(BALL.random(3, like=torch.zeros((), dtype=torch.float64)))
    with pytest.raises(TypeError, match=r"real floating dtype, got torch.int64"):
        gnn.GyroActivation(BALL)(torch.zeros(3, 4, dtype=torch.int64))
