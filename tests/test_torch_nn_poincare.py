"""Layers of Hyperbolic Neural Networks++: 50-digit values, limits, derivatives, sizes."""

import itertools

import mpmath as mp
import pytest
import torch
from torch.func import functional_call

from benchmarks.experiments.layers import BetaConcat, PoincareLinear, PoincareMLR
from gyrobn import Grassmannian, PoincareBall, Stereographic

DOUBLE = torch.zeros((), dtype=torch.float64)


def drawn(layer, seed=0, bias=0.7):
    """Give a layer random parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            spread = {"bias": bias, "raw_curvature": 0.2}.get(name, 1.0)
            p.copy_(spread * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return layer


def scores(layer, x, curvature=None):
    """The paper's formula, in the form with λ, for one point."""
    with mp.workdps(max(50, mp.mp.dps)):
        c = -mp.mpf(layer.manifold.curvature) if curvature is None else -curvature
        x = [mp.mpf(e) for e in x.tolist()]
        conformal = 2 / (1 - c * mp.fdot(x, x))
        found = []
        for *z, g, r in torch.column_stack([layer.weight_v, layer.weight_g, layer.bias]).tolist():
            inner = mp.sqrt(c) * mp.fdot(x, z) / mp.sqrt(mp.fdot(z, z))
            angle = 2 * mp.sqrt(c) * r
            argument = conformal * inner * mp.cosh(angle) - (conformal - 1) * mp.sinh(angle)
            found.append(2 * g / mp.sqrt(c) * mp.asinh(argument))
        return found


def outputs(layer, x):
    with mp.workdps(50):
        k = mp.sqrt(-mp.mpf(layer.manifold.curvature))
        w = [mp.sinh(k * v) / k for v in scores(layer, x)]
        below = 1 + mp.sqrt(1 + k**2 * mp.fdot(w, w))
        return [e / below for e in w]


def slopes_hold(layer, *inputs):
    """Compare the derivatives by inputs and parameters with central differences."""
    names = [name for name, _ in layer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def call(*arrays):
        given = dict(zip(names, arrays[len(inputs) :], strict=True))
        return functional_call(layer, given, arrays[: len(inputs)])

    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    return torch.autograd.gradcheck(call, (*inputs, *values), eps=1e-6, atol=1e-7, rtol=1e-6)


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize("curvature", [-1.0, -0.3, -4.0, -1e-8])
def test_values_to_the_last_digits(curvature):
    M = PoincareBall(5, curvature)
    x = M.random(4, rng=0, like=DOUBLE, spread=1.5)
    for cls, reference in ((PoincareMLR, scores), (PoincareLinear, outputs)):
        layer = drawn(cls(M, 3, dtype=torch.float64))
        exact = torch.tensor(
            [[float(e) for e in reference(layer, one)] for one in x], dtype=x.dtype
        )
        torch.testing.assert_close(layer(x).detach(), exact, rtol=2e-13, atol=1e-14)
        learns = cls(M, 3, learn_curvature=True, dtype=torch.float64)
        learns.load_state_dict({"raw_curvature": DOUBLE, **layer.state_dict()})
        torch.testing.assert_close(learns(x).detach(), exact, rtol=2e-13, atol=1e-14)
        single = cls(M, 3)
        single.load_state_dict(layer.state_dict())
        found = single(x.float().reshape(2, 2, 5))
        assert found.dtype == torch.float32
        torch.testing.assert_close(
            found.reshape(4, 3).detach(), exact.float(), rtol=1e-4, atol=1e-5
        )


def test_the_score_is_the_distance_from_a_hyperplane():
    """Ganea's form: the hyperplane through p, orthogonal to z, by gyroaddition."""
    M = PoincareBall(4, -0.7)
    layer = drawn(PoincareMLR(M, 6, dtype=torch.float64))
    x = M.random(7, rng=0, like=DOUBLE)
    normal = torch.nn.functional.normalize(layer.weight_v, dim=-1)
    p = M.from_normal(2.0 * layer.bias[:, None] * normal)
    seen = M.relative(p, x[:, None])
    k, square = 0.7**0.5, (seen * seen).sum(-1)
    distance = torch.asinh(2 * k * (seen * normal).sum(-1) / (1 - 0.7 * square)) / k
    torch.testing.assert_close(layer(x), 2 * layer.weight_g * distance, rtol=1e-11, atol=1e-12)


def test_flat_limit():
    for curvature in (-1e-6, -1e-12):
        layer = drawn(PoincareMLR(PoincareBall(3, curvature), 4, dtype=torch.float64))
        x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        normal = torch.nn.functional.normalize(layer.weight_v, dim=-1)
        a, b = layer.weight_g[:, None] * normal, layer.weight_g * layer.bias
        torch.testing.assert_close(
            layer(x), 4 * (x @ a.mT - b), rtol=100 * -curvature, atol=100 * -curvature
        )


def test_the_output_has_the_scores_as_distances():
    """The signed distance to a coordinate hyperplane is asinh(√c λ y_k)/√c."""
    layer = drawn(PoincareLinear(PoincareBall(4, -2.0), 3, dtype=torch.float64))
    x = layer.manifold.random(6, rng=0, like=DOUBLE, spread=0.5)
    y, k = layer(x), 2.0**0.5
    conformal = 2 / (1 - 2.0 * (y * y).sum(-1, keepdim=True))
    torch.testing.assert_close(torch.asinh(k * conformal * y) / k, layer._scores(layer.manifold, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_out_nothing_breaks(dtype):
    """On the boundary, at 0, with huge offsets and gains, and a normal of length 0."""
    M = PoincareBall(3)
    x = torch.eye(3, dtype=dtype)
    x = torch.cat([x, -x, 0.0 * x[:1], x * (1 - torch.finfo(dtype).eps)]).requires_grad_()
    for cls, learn in itertools.product((PoincareMLR, PoincareLinear), (False, True)):
        layer = cls(M, 6, learn_curvature=learn, dtype=dtype)
        with torch.no_grad():
            layer.weight_g.copy_(torch.tensor([0.0, 1.0, 100.0, 1.0, 1.0, 1.0]))
            layer.bias.copy_(torch.tensor([0.0, 10.0, 30.0, -300.0, 1e4, 0.0]))
            layer.weight_v[5] = 0.0
        y = layer(x)
        assert bool(torch.isfinite(y).all())
        if cls is PoincareLinear:
            assert bool(layer.out_manifold.contains(y).all())
        found = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
        assert all(bool(torch.isfinite(g).all()) for g in found)


def test_far_hyperplanes_are_at_their_distance():
    layer = PoincareMLR(PoincareBall(2), 2, dtype=torch.float64)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([150.0, -20.0]))
        layer.weight_g.fill_(1.0)
    x = torch.tensor([0.3, -0.2], dtype=torch.float64)
    exact = torch.tensor([float(v) for v in scores(layer, x)], dtype=torch.float64)
    torch.testing.assert_close(layer(x).detach(), exact, rtol=1e-14, atol=0.0)


# ---------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("cls", [PoincareMLR, PoincareLinear])
def test_slopes(cls, learn):
    layer = drawn(cls(PoincareBall(3, -0.6), 2, learn_curvature=learn, dtype=torch.float64))
    x = layer.manifold.detached().random(2, rng=0, like=DOUBLE, spread=0.8)
    x[1] = 0.0
    assert slopes_hold(layer, x)


@pytest.mark.parametrize("curvature", [-1.0, -1e-7])
def test_slope_by_the_curvature(curvature):
    """Also where the layer is nearly flat: the two terms of asinh(√c m)/√c would cancel."""
    layer = PoincareMLR(PoincareBall(2, curvature), 1, learn_curvature=True, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_v.copy_(torch.tensor([[0.6, 0.8]]))
        layer.weight_g.fill_(1.3)
        layer.bias.fill_(0.2)
    x = torch.tensor([0.4, -0.3], dtype=torch.float64)

    with mp.workdps(50):
        exact = float(mp.diff(lambda raw: scores(layer, x, curvature * mp.exp(raw))[0], 0))
    (found,) = torch.autograd.grad(layer(x).sum(), [layer.raw_curvature])
    assert abs(float(found) - exact) < 1e-13 * abs(exact)


# ---------------------------------------------------------------------- sizes, states, errors


@pytest.mark.parametrize(
    ("sizes", "total"), [((3402, 325, 45), 1_121_015), ((1134, 325, 122), 409_094)]
)
def test_parameters_of_the_papers_networks(sizes, total):
    n, hidden, classes = sizes
    net = torch.nn.Sequential(
        PoincareLinear(PoincareBall(n), hidden), PoincareMLR(PoincareBall(hidden), classes)
    )
    assert sum(p.numel() for p in net.parameters()) == total


def test_initial_weights():
    torch.manual_seed(0)
    for layer, variance in (
        (PoincareLinear(PoincareBall(200, -4.0), 100), 1 / (2 * 200 * 100)),
        (PoincareMLR(PoincareBall(200, -4.0), 100), 1 / (4 * 200)),
    ):
        assert abs(float(layer.weight_v.detach().var()) / variance - 1) < 0.05
        lengths = torch.linalg.vector_norm(layer.weight_v.detach(), dim=-1)
        torch.testing.assert_close(layer.weight_g.detach(), lengths)
        assert not bool(layer.bias.any())


def test_only_the_direction_of_the_weights_matters():
    layer = drawn(PoincareLinear(PoincareBall(3), 2, dtype=torch.float64))
    x = layer.manifold.random(4, rng=0, like=DOUBLE)
    before = layer(x).detach()
    with torch.no_grad():
        layer.weight_v *= 1e-200
    torch.testing.assert_close(layer(x).detach(), before, rtol=1e-14, atol=0.0)


def test_a_state_knows_its_ball():
    M = PoincareBall(3, -0.5)
    layer = drawn(PoincareLinear(M, 2, learn_curvature=True))
    other = PoincareLinear(PoincareBall(3, -2.0), 2, learn_curvature=True)
    other.load_state_dict(layer.state_dict())
    x = M.random(4, rng=0, like=torch.zeros(()), spread=0.2)
    torch.testing.assert_close(other(x), layer(x))
    with pytest.raises(RuntimeError, match="this one is on"):
        PoincareLinear(PoincareBall(3, -2.0), 2).load_state_dict(PoincareLinear(M, 2).state_dict())
    layer.reset_parameters()
    assert float(layer.manifold.curvature.detach()) == -0.5


def test_errors():
    layer = PoincareLinear(PoincareBall(3), 2)
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 3\), got \(5, 4\)"):
        layer(torch.zeros(5, 4))
    with pytest.raises(TypeError, match="mixed dtypes"):
        layer(torch.zeros(5, 3, dtype=torch.float64))
    with pytest.raises(TypeError, match="works on a PoincareBall, got Grassmannian"):
        PoincareMLR(Grassmannian(3, 1), 2)
    with pytest.raises(TypeError, match="works on a PoincareBall, got Stereographic"):
        BetaConcat(Stereographic(3), (1, 2))
    with pytest.raises(ValueError, match="classes must be a positive integer, got 0"):
        PoincareMLR(PoincareBall(3), 0)
    with pytest.raises(ValueError, match="of which the sum is 4"):
        BetaConcat(PoincareBall(3), (2, 2))
    with pytest.raises(ValueError, match="expects 2 parts, got 1"):
        BetaConcat(PoincareBall(3), (1, 2))(torch.zeros(3))


# ---------------------------------------------------------------------- concatenation


def test_concatenation():
    sizes, M = (1, 2, 5), PoincareBall(8, -0.4)
    layer = BetaConcat(M, sizes)
    parts = [PoincareBall(n, -0.4).random(6, 1, like=DOUBLE, rng=n) for n in sizes]
    parts[1] = parts[1].expand(6, 3, 2)  # leading axes broadcast
    y = layer(*parts)
    assert y.shape == (6, 3, 8)
    for part, back in zip(parts, layer.split(y), strict=True):
        torch.testing.assert_close(back, part.expand_as(back), rtol=1e-13, atol=1e-14)
    # by the formula: Log_0 x = artanh(√c‖x‖) x/(√c‖x‖), Exp_0 its inverse
    beta = {n: float(mp.beta(mp.mpf(n) / 2, mp.mpf(1) / 2)) for n in (*sizes, 8)}
    k = 0.4**0.5
    logs = []
    for n, x in zip(sizes, parts, strict=True):
        size = k * torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        logs.append((beta[8] / beta[n] * torch.atanh(size) / size * x).expand(6, 3, n))
    v = torch.cat(logs, dim=-1)
    size = k * torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    torch.testing.assert_close(y, torch.tanh(size) / size * v, rtol=1e-13, atol=1e-14)


def test_the_size_of_coordinates_is_kept():
    """β_a/π is the mean size of a coordinate of a random unit vector of a numbers."""
    generator = torch.Generator().manual_seed(0)
    sizes, count = (2, 3, 7), 20_000
    unit = [
        torch.nn.functional.normalize(torch.randn(count, n, generator=generator), dim=-1)
        for n in (*sizes, 12)
    ]
    balls = [PoincareBall(n) for n in (*sizes, 12)]
    *parts, whole = (M.from_normal(u) for M, u in zip(balls, unit, strict=True))
    joined = balls[-1].to_normal(BetaConcat(balls[-1], sizes)(*parts))
    expected = float(balls[-1].to_normal(whole).abs().mean())
    start = 0
    for stop in itertools.accumulate(sizes):
        assert abs(float(joined[:, start:stop].abs().mean()) / expected - 1) < 0.01
        start = stop


@pytest.mark.parametrize("learn", [False, True])
def test_slopes_of_a_concatenation(learn):
    layer = BetaConcat(PoincareBall(3, -0.5), (1, 2), learn_curvature=learn, dtype=torch.float64)
    a, b = (PoincareBall(n, -0.5).random(2, like=DOUBLE, rng=n) for n in (1, 2))
    b[1] = 0.0
    assert slopes_hold(layer, a, b)
