"""Layers of GyroGr: translations, pooling by its definition, derivatives, sizes."""

import pytest
import torch
from test_torch_nn_poincare import DOUBLE, slopes_hold

from benchmarks.experiments.layers import GrassmannPool, GrassmannTranslation, ProjMap
from gyrobn import Grassmannian, PoincareBall

KINDS = ["basis", "projector"]


def points(M, *batch):
    return M.random(*batch, rng=0, like=DOUBLE, spread=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_translation(kind):
    M = Grassmannian(5, 2, kind)
    layer = GrassmannTranslation(M, 3, dtype=torch.float64)
    x, one = points(M, 4, 3), points(M, 4, 1)
    B = M.from_normal(layer.weight)
    torch.testing.assert_close(layer(x), M.add(B.expand_as(x), x))
    wide = one.expand_as(x).contiguous()
    torch.testing.assert_close(layer(one), M.add(B.expand_as(x), wide))
    torch.testing.assert_close(layer(one[0, 0]), layer(one)[0])
    y = layer(x)
    torch.testing.assert_close(M.dist(y[0], y[1]), M.dist(x[0], x[1]))
    if kind == "basis":  # the matrix exponential of the paper
        for b, given, found in zip(layer.weight.detach(), x[0], y[0].detach(), strict=True):
            lower = torch.zeros(5, 5, dtype=torch.float64)
            lower[2:, :2] = b.reshape(3, 2)
            torch.testing.assert_close(found, torch.linalg.matrix_exp(lower - lower.mT) @ given)


@pytest.mark.parametrize("n", [8, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_pooling_by_its_definition(kind, n):
    M = Grassmannian(n, 3, kind)
    pool = GrassmannPool(M)
    x = points(M, 4, 2)
    P = M.inside.project(M.to_inside(x))
    P = P @ P.mT
    mean = torch.nn.functional.avg_pool2d(P, 2, padding=n % 2)
    leading = torch.linalg.eigh(mean).eigenvectors[..., -3:]
    y = pool(x)
    out = pool.out_manifold
    assert y.shape == (4, 2, *out.point_shape)
    assert bool(out.contains(y).all())
    found = ProjMap(out)(y).unflatten(-1, (-1, (n + 1) // 2))
    torch.testing.assert_close(found, leading @ leading.mT, rtol=1e-11, atol=1e-12)
    assert pool(x.float()).dtype == torch.float32


@pytest.mark.parametrize("sizes", [(93, 47, 24, 12), (150, 75, 38, 19)])
def test_sizes_of_pooling(sizes):
    M = Grassmannian(sizes[0], 10)
    for n in sizes[1:]:
        M = GrassmannPool(M).out_manifold
        assert M.n == n


@pytest.mark.parametrize("kind", KINDS)
def test_slopes(kind):
    M = Grassmannian(5, 2, kind)
    layer = GrassmannTranslation(M, 2, dtype=torch.float64)
    net = torch.nn.Sequential(layer, GrassmannPool(M), ProjMap(GrassmannPool(M).out_manifold))
    x = points(M, 2, 1)
    assert slopes_hold(net, x)


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_at_repeated_eigenvalues(kind):
    """All leading eigenvalues of the mean projector are equal, and so are the others."""
    torch.manual_seed(0)
    half = torch.linalg.qr(torch.randn(4, 2, dtype=torch.float64)).Q
    x = (half / 2**0.5).repeat_interleave(2, dim=0)
    M = Grassmannian(8, 2, kind)
    if kind == "projector":
        x = x @ x.mT
    mean = torch.nn.functional.avg_pool2d((x @ x.mT)[None], 2)
    values = torch.linalg.eigvalsh(mean)
    assert float((values[..., -1] - values[..., -2]).max()) < 1e-15
    pool = GrassmannPool(M)
    assert slopes_hold(torch.nn.Sequential(pool, ProjMap(pool.out_manifold)), x)


def test_parameters_of_the_papers_network():
    """HDM05, one block: 2 074 381 parameters."""
    M = Grassmannian(93, 10)
    pool = GrassmannPool(M)
    translation = GrassmannTranslation(M, 8)
    head = ProjMap(pool.out_manifold), torch.nn.Flatten(), torch.nn.Linear(8 * 47**2, 117)
    net = torch.nn.Sequential(translation, pool, *head)
    assert sum(p.numel() for p in net.parameters()) == 2_074_381
    bound = (6 / 6640) ** 0.5
    assert 0.99 * bound < float(translation.weight.detach().abs().max()) <= bound
    assert net(M.random(2, 1, rng=0, like=torch.zeros(()), spread=8.0)).shape == (2, 117)


def test_a_state_knows_its_space():
    state = GrassmannTranslation(Grassmannian(5, 2), 3).state_dict()
    with pytest.raises(RuntimeError, match="this one is on"):
        GrassmannTranslation(Grassmannian(5, 3), 3).load_state_dict(state)


def test_errors():
    M = Grassmannian(5, 2)
    layer = GrassmannTranslation(M, 3)
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 3 or 1, 5, 2\), got \(4, 2, 5, 2\)"):
        layer(torch.zeros(4, 2, 5, 2))
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 5, 2\), got \(4, 3, 6, 2\)"):
        layer(torch.zeros(4, 3, 6, 2))
    with pytest.raises(TypeError, match="mixed dtypes"):
        layer(torch.zeros(3, 5, 2, dtype=torch.float64))
    for module in (GrassmannPool(M), ProjMap(M)):
        with pytest.raises(ValueError, match=r"shape \(\.\.\., 5, 2\), got \(5, 3\)"):
            module(torch.zeros(5, 3))
    with pytest.raises(ValueError, match="subspaces smaller than the space, got p=3, n=3"):
        GrassmannPool(Grassmannian(5, 3))
    with pytest.raises(TypeError, match="works on a Grassmannian, got PoincareBall"):
        ProjMap(PoincareBall(3))
