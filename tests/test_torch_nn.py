"""The layers of gyrobn.torch.nn that are for every geometry, or for the hyperboloid."""

import math

import pytest
import torch

from benchmarks.experiments.layers import FermiDiracDecoder, LorentzActivation, LorentzLinear
from gyrobn import REGISTRY, Euclidean, Hyperboloid, PoincareBall, Product, Sphere
from gyrobn.torch import GyroBN
from gyrobn.torch.nn import GyroActivation, GyroLinear, ManifoldParameter

DOUBLE = torch.zeros((), dtype=torch.float64)
SPACES = [cls.examples()[0] for cls in REGISTRY.values()]


def drawn(layer, spread=0.3):
    """Give a layer random parameters."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(spread * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return layer


def slopes_hold(layer, M, x):
    """Compare the derivatives by coordinates of the input and by parameters with differences."""
    names, values = zip(*layer.named_parameters(), strict=True) if layer.state_dict() else ((), ())

    def call(c, *given):
        given = dict(zip(names, given, strict=True))
        return torch.func.functional_call(layer, given, (M.from_normal(c),))

    arrays = [a.detach().clone().requires_grad_() for a in (M.to_normal(x), *values)]
    return torch.autograd.gradcheck(call, arrays, eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("M", SPACES, ids=repr)
def test_linear_map_and_activation_on_every_geometry(M):
    x = M.random(3, rng=0, like=DOUBLE, spread=0.4)
    target = PoincareBall(2)
    out = drawn(GyroLinear(M, target, dtype=torch.float64))
    back = drawn(GyroLinear(target, M, dtype=torch.float64))
    with torch.no_grad():
        y = out(x)
        c = M.to_normal(x) @ out.weight.mT
        b = target.from_normal(out.bias)
        torch.testing.assert_close(y, target.add(target.from_normal(c), b))
        z = back(y)
        assert bool(M.contains(z).all())
        first = M.from_normal(target.to_normal(y) @ back.weight.mT)
        torch.testing.assert_close(z, M.add(first, M.from_normal(back.bias)))
        active = GyroActivation(M)(x)
        torch.testing.assert_close(M.to_normal(active), torch.relu(M.to_normal(x)))
    assert slopes_hold(out, M, x)
    assert slopes_hold(back, target, y)
    assert slopes_hold(GyroActivation(M, torch.tanh), M, x)


@pytest.mark.parametrize("M", SPACES, ids=repr)
def test_a_parameter_is_a_point(M):
    x = M.random(2, 3, rng=0, like=DOUBLE, spread=0.5)
    p = ManifoldParameter.of(M, x)
    torch.testing.assert_close(p(), x)
    assert p.coordinates.shape == (2, 3, M.dim)
    assert p.coordinates.requires_grad
    one = ManifoldParameter(M, dtype=torch.float64)
    torch.testing.assert_close(one(), M.origin(DOUBLE))
    # a few steps of an ordinary optimizer find a point
    target = x[0, 0].detach()
    optimizer = torch.optim.LBFGS(one.parameters(), line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        d = torch.sum(M.relative_normal(target, one()) ** 2)
        d.backward()
        return d

    optimizer.step(loss)
    assert float(loss().detach()) < 1e-10


def test_dropconnect_sets_weights_to_zero_in_training_only():
    torch.manual_seed(0)
    layer = GyroLinear(Euclidean(50), Euclidean(40), bias=False, dropconnect=0.2)
    x = torch.eye(50)
    layer.eval()
    torch.testing.assert_close(layer(x), layer.weight.mT)
    layer.train()
    kept = layer(x).mT != 0
    assert 0.75 < float(kept.double().mean()) < 0.85
    torch.testing.assert_close(layer(x).sum(), layer.weight.sum(), rtol=0.5, atol=8.0)
    assert "dropconnect=0.2" in repr(layer)
    assert layer.bias is None


def test_layers_follow_a_curvature_that_another_layer_learns():
    ball = PoincareBall(3)
    norm = GyroBN(ball, learn_curvature=True, dtype=torch.float64)
    net = torch.nn.ModuleList(
        [GyroLinear(Euclidean(4), norm, dtype=torch.float64), norm, GyroActivation(norm)]
    )
    decoder = FermiDiracDecoder(net[0])
    with torch.no_grad():
        norm.raw_curvature.fill_(0.7)
    K = -math.exp(0.7)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x
    for layer in net:
        y = layer(y)
        assert bool(PoincareBall(3, K).contains(y).all())
    assert net[0].out_manifold.curvature is not None
    d = PoincareBall(3, K).dist(y[0], y[1])
    p = decoder(y[0], y[1])
    torch.testing.assert_close(p, 1 / (torch.exp(d * d - 2.0) + 1))
    p.backward()
    assert norm.raw_curvature.grad.abs() > 1e-3
    # the norm is one part of the network, not a part of every layer that follows it
    names = [name for name, _ in net.named_parameters()]
    assert names == ["0.weight", "0.bias", "1.bias", "1.scale", "1.raw_curvature"]
    assert not [name for name in net.state_dict() if "raw_curvature" in name and name[0] != "1"]
    with pytest.raises(TypeError, match="expected a geometry, or a layer"):
        GyroActivation(torch.nn.ReLU())


@pytest.mark.parametrize("curvature", [-1.0, -0.25])
def test_lorentz_layers(curvature):
    M, out = Hyperboloid(3, curvature), Hyperboloid(2, curvature)
    x = M.random(4, rng=0, like=DOUBLE)
    layer = drawn(LorentzLinear(M, out, reach=5.0, learn_reach=True, dtype=torch.float64))
    assert sum(p.numel() for p in layer.parameters()) == 4 * 3 + 3 + 1
    y = layer(x)
    assert bool(out.contains(y).all())
    affine = x @ layer.weight.mT + layer.bias
    size = torch.exp(layer.log_reach) * torch.sigmoid(affine[:, 0])
    torch.testing.assert_close(y[:, 1:].norm(dim=-1), size)
    torch.testing.assert_close(
        y[:, 1:] / size[:, None], affine[:, 1:] / affine[:, 1:].norm(dim=-1)[:, None]
    )
    assert slopes_hold(layer, M, x)
    act = LorentzActivation(M)
    z = act(x)
    assert bool(M.contains(z).all())
    torch.testing.assert_close(z[:, 1:], torch.relu(x[:, 1:]))
    assert slopes_hold(LorentzActivation(M, torch.tanh), M, x)
    torch.manual_seed(0)
    fresh = LorentzLinear(M, out, reach=5.0)
    assert bool((fresh.weight.abs() <= 0.02).all())
    assert not fresh.bias.any()
    with pytest.raises(TypeError, match="expected a Hyperboloid, got PoincareBall"):
        LorentzActivation(PoincareBall(3))


@pytest.mark.parametrize(
    "M", [PoincareBall(3), Sphere(3), Product(Sphere(2), Euclidean(2))], ids=repr
)
def test_decoder(M):
    x, y = M.random(2, 5, rng=0, like=DOUBLE, spread=0.8)
    decoder = FermiDiracDecoder(M, radius=1.5, temperature=0.5)
    d = M.dist(x, y)
    torch.testing.assert_close(decoder(x, y), 1 / (torch.exp((d * d - 1.5) / 0.5) + 1))
    same = x.clone().requires_grad_()
    decoder(same, same.detach()).sum().backward()  # the pair of a node with itself
    assert bool((same.grad == 0).all())


def test_layers_refuse_other_shapes():
    with pytest.raises(ValueError, match=r"expects arrays of shape \(\.\.\., 3\), got \(4, 2\)"):
        GyroLinear(PoincareBall(3), Sphere(2))(torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"expects arrays of shape \(\.\.\., 4\), got \(5, 3\)"):
        LorentzActivation(Hyperboloid(3))(torch.zeros(5, 3))


@pytest.mark.parametrize("M", SPACES, ids=repr)
def test_autocast_is_off_in_the_layers(M):
    x, y = M.random(2, 3, rng=0, like=torch.zeros(()), spread=0.4)
    layers = [GyroLinear(M, M), GyroActivation(M), ManifoldParameter(M, 2), FermiDiracDecoder(M)]
    arguments = [(x,), (x,), (), (x, y)]
    if isinstance(M, Hyperboloid):
        layers += [LorentzLinear(M, M), LorentzActivation(M)]
        arguments += [(x,), (x,)]
    for layer, given in zip(layers, arguments, strict=True):
        drawn(layer, 0.1)
        expected = layer(*given)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = layer(*given)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
