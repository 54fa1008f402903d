"""The horosphere block: distances, the field by differences, the published recipe."""

import pytest
import torch
from test_torch_nn_poincare import DOUBLE, slopes_hold

from benchmarks.experiments.layers import HorosphereBlock, Horospheres
from gyrobn import Klein, PoincareBall


def made(M, count=6, seed=0, **options):
    torch.manual_seed(seed)
    return Horospheres(M, count, dtype=torch.float64, **options)


def block_of(horospheres, hidden=5, seed=1, **options):
    """A block whose statistics and weights are not those it starts with."""
    torch.manual_seed(seed)
    block = HorosphereBlock(horospheres, hidden, **options)
    norm = block.weights[2]
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.normal_()
        norm.bias.normal_()
    return block.eval()


@pytest.mark.parametrize("curvature", [-1.0, -0.3, -3.0])
def test_distances_are_limits_of_distances(curvature):
    """minus q is Busemann's function: the limit of d(x, γ(s)) − s along the ray to ω."""
    M = PoincareBall(3, curvature)
    layer = made(M)
    x = M.random(5, rng=0, like=DOUBLE)
    far = 11.0 / (-curvature) ** 0.5
    ray = M.from_normal(far * torch.nn.functional.normalize(layer.weight.detach(), dim=-1))
    limit = far - M.dist(x[:, None], ray) + layer.bias.detach()
    torch.testing.assert_close(layer(x).detach(), limit, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("curvature", [-1.0, -0.3])
def test_the_field_is_the_gradient_of_the_distances(curvature):
    M = PoincareBall(4, curvature)
    layer = made(M)
    x = M.random(7, 2, rng=0, like=DOUBLE)
    a = torch.randn(6, dtype=torch.float64)
    h = 1e-5 * torch.eye(4, dtype=torch.float64)
    with torch.no_grad():
        found = layer.field(x, lambda q: a.expand_as(q))
        rise = layer(x[..., None, :] + h) - layer(x[..., None, :] - h)
    torch.testing.assert_close(found, rise @ a / 2e-5, rtol=1e-7, atol=1e-8)


def test_the_weights_see_the_distances():
    layer = made(PoincareBall(3))
    x = layer.manifold.random(4, rng=0, like=DOUBLE).requires_grad_()
    (slope,) = torch.autograd.grad(0.5 * layer(x).square().sum(), x)
    torch.testing.assert_close(layer.field(x, lambda q: q), slope, rtol=1e-12, atol=1e-13)


def published(block, x):
    """The published block: gradients by autograd, the exponential map by its formula.

    Near the boundary its sums cancel: it is right to 1e-10 here, and ours to 2e-13.
    """
    w, b = block.horospheres.weight, block.horospheres.bias
    x = x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) / 0.999).clamp(min=1.0)
    omega = w / w.norm(dim=-1, keepdim=True)
    q = ((1 - x.square().sum(-1))[:, None] / (x[:, None] - omega).square().sum(-1)).log() + b
    a = block.weights(q).detach()
    v = torch.autograd.grad((a * q).sum(), x)[0]
    conformal = 2 / (1 - x.square().sum(-1, keepdim=True))
    size = v.norm(dim=-1, keepdim=True)
    y = torch.tanh(0.5 * conformal * size) * v / size
    xy, xx, yy = ((p * r).sum(-1, keepdim=True) for p, r in ((x, y), (x, x), (y, y)))
    out = ((1 + 2 * xy + yy) * x + (1 - xx) * y) / (1 + 2 * xy + xx * yy)
    return out / (out.norm(dim=-1, keepdim=True) / 0.999).clamp(min=1.0)


def test_the_published_block():
    block = block_of(made(PoincareBall(4)))
    x = 0.5 * torch.randn(30, 4, dtype=torch.float64)
    x[:3] *= 5.0  # outside
    expected = published(block, x.requires_grad_()).detach()
    torch.testing.assert_close(block(x).detach(), expected, rtol=1e-7, atol=1e-9)
    again = block(x.reshape(5, 3, 2, 4)).reshape(30, 4)
    torch.testing.assert_close(again.detach(), expected, rtol=1e-7, atol=1e-9)
    block = block.float()
    assert block(x.detach().float()).dtype == torch.float32


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("curvature", [-0.6, -9.0])
def test_slopes(curvature, learn):
    block = block_of(made(PoincareBall(3, curvature), 4, learn_curvature=learn), hidden=3)
    x = 0.3 / (-curvature) ** 0.5 * torch.randn(3, 3, dtype=torch.float64)
    x[1] = 0.0
    x[2] *= 20.0  # outside
    assert slopes_hold(block, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deep_networks_stay_finite(dtype):
    torch.manual_seed(0)
    M = PoincareBall(5, -2.0)
    blocks = [HorosphereBlock(Horospheres(M, 30, dtype=dtype), 8) for _ in range(5)]
    net = torch.nn.Sequential(*blocks)
    x = (10.0 * torch.randn(20, 5, dtype=dtype)).requires_grad_()
    y = net(x)
    assert bool((2.0**0.5 * torch.linalg.vector_norm(y, dim=-1) < 0.9991).all())
    found = torch.autograd.grad(y.sum(), [x, *net.parameters()])
    assert all(bool(torch.isfinite(g).all()) for g in found)


def test_at_the_point_of_the_boundary_that_a_horosphere_touches():
    """There the squared distance is lost in rounding: at most it is that of the boundary."""
    layer = made(PoincareBall(3), 200).float()
    omega = torch.nn.functional.normalize(layer.weight.detach(), dim=-1)
    x = (omega * (1.0 - 1e-6)).requires_grad_()
    q, v = layer(x), layer.field(x, torch.ones_like)
    assert bool(torch.isfinite(q).all())
    assert bool((q - layer.bias < 17.0).all())  # log 2e7, the largest distance in float32
    assert bool(torch.isfinite(v).all())
    found = torch.autograd.grad(q.sum() + v.sum(), [x, *layer.parameters()])
    assert all(bool(torch.isfinite(g).all()) for g in found)


def test_blocks_share_horospheres_if_told_to():
    M = PoincareBall(8)
    common = Horospheres(M)
    shared = torch.nn.Sequential(HorosphereBlock(common), HorosphereBlock(common))
    apart = torch.nn.Sequential(*(HorosphereBlock(Horospheres(M)) for _ in range(2)))
    field = 250 * 128 + 128 + 2 * 128 + 128 * 250 + 250
    assert sum(p.numel() for p in shared.parameters()) == 250 * 9 + 2 * field
    assert sum(p.numel() for p in apart.parameters()) == 2 * (250 * 9 + field)


def test_errors():
    with pytest.raises(TypeError, match="works on a PoincareBall, got Klein"):
        Horospheres(Klein(3))
    block = HorosphereBlock(Horospheres(PoincareBall(3), 4), 2)
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 3\), got \(5, 4\)"):
        block(torch.zeros(5, 4))
    with pytest.raises(TypeError, match="mixed dtypes"):
        block(torch.zeros(5, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="edge must be"):
        HorosphereBlock(Horospheres(PoincareBall(3), 4), 2, edge=2.0)
