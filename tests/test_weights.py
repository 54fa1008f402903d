"""A weight of zero leaves a sample out, whatever it is, in the value and in the derivative."""

import jax
import numpy as np
import pytest
import torch
from conftest import FIRST, GEOMETRIES, assert_close, host
from flax import nnx

from gyrobn import Chunks, batch_stats, frechet, frechet_variance, normalize_batch
from gyrobn.flax import GyroBN as FlaxGyroBN
from gyrobn.torch import DomainGyroBN
from gyrobn.torch import GyroBN as TorchGyroBN

geometries = pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
PADDING = {"nan": np.nan, "zero": 0.0, "infinite": np.inf, "large": 1e6}
W = np.asarray([1.0, 0.0, 2.0, 1.0, 0.5, 0.0, 1.5])
KEPT = np.flatnonzero(W)
BAD = 5  # sample 1 weighs nothing, too, but is a point


def padded(M, fill):
    x = M.random(len(W), rng=0, spread=0.5)
    x[BAD] = fill
    return x


@geometries
@pytest.mark.parametrize("fill", PADDING.values(), ids=PADDING)
def test_functions(M, fill):
    x = padded(M, fill)
    mean, variance, *_ = frechet(M, x[KEPT], W[KEPT])
    found = frechet(M, x, W)
    assert np.max(M.dist(found.mean, mean)) < 1e-12
    assert_close(found.variance, variance, 1e-12)
    assert_close(frechet_variance(M, x, mean, W), variance, 1e-12)
    assert_close(batch_stats(M, x, W).var, variance, 1e-12)
    y, stats = normalize_batch(M, x, W)
    expected, _ = normalize_batch(M, x[KEPT], W[KEPT])
    assert np.max(M.dist(y[KEPT], expected)) < 1e-11
    assert_close(stats.var, variance, 1e-12)
    # a point that weighs nothing is normalized; what is no point comes back as it was
    assert bool(M.contains(y[1]))
    if not np.all(np.isfinite(x[BAD])) or not bool(M.contains(x[BAD])):
        np.testing.assert_array_equal(y[BAD], x[BAD])


@geometries
def test_channels_and_chunks(M):
    x = np.stack([padded(M, np.nan), M.random(len(W), rng=1, spread=0.5)], axis=1)
    w = np.stack([W, np.ones_like(W)], axis=1)
    found = frechet(M, x, w)
    for k in range(2):
        some = np.flatnonzero(w[:, k])
        assert np.max(M.dist(found.mean[k], frechet(M, x[some, k], w[some, k]).mean)) < 1e-12
    parts = Chunks([x[:3, 0], x[3:, 0]])
    assert np.max(M.dist(frechet(M, parts, W).mean, found.mean[0])) < 1e-11


@geometries
@pytest.mark.parametrize("fill", [np.nan, 0.0], ids=["nan", "zero"])
def test_derivatives(M, fill):
    def gradients(x, w, keep):
        a, b = (torch.tensor(v, requires_grad=True) for v in (x, w))
        y, stats = normalize_batch(M, a, b)
        (y[keep].abs().square().sum() + stats.var.sum()).backward()
        return host(a.grad), host(b.grad)

    x = padded(M, fill)
    by_x, by_w = gradients(x, W, KEPT)
    expected, by_weight = gradients(x[KEPT], W[KEPT], slice(None))
    assert np.all(np.isfinite(by_x))
    assert np.all(np.isfinite(by_w))
    np.testing.assert_array_equal(by_x[BAD], 0.0)
    size = 1.0 + np.abs(expected).max()
    np.testing.assert_allclose(by_x[KEPT], expected, rtol=0, atol=1e-9 * size)
    np.testing.assert_allclose(
        by_w[KEPT], by_weight, rtol=0, atol=1e-9 * (1 + abs(by_weight).max())
    )


@pytest.mark.parametrize("M", [M for M in GEOMETRIES if M.dim <= 3][:8], ids=repr)
def test_traced(M):
    x = padded(M, np.nan)
    mean = jax.jit(lambda x, w: frechet(M, x, w).mean)(x, W)
    assert np.max(M.dist(host(mean), frechet(M, x[KEPT], W[KEPT]).mean)) < 1e-12


@pytest.mark.parametrize("M", FIRST, ids=repr)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_torch_layers(M, training):
    """Padding passes through a layer, and its NaN reaches no parameter."""
    x = torch.tensor(padded(M, np.nan))
    w, kept = torch.tensor(W), torch.tensor(KEPT)
    layers = [TorchGyroBN(M).double() for _ in range(2)]
    for layer in layers:
        torch.nn.init.normal_(layer.bias, std=0.1, generator=torch.Generator().manual_seed(0))
        layer.train(training)
    y, expected = layers[0](x, w), layers[1](x[kept], w[kept])
    y[kept].abs().square().sum().backward()
    expected.abs().square().sum().backward()
    assert_close(y[kept].detach(), expected.detach(), 1e-10)
    assert torch.isnan(y[BAD]).all()
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert_close(a.grad, b.grad, 1e-9 * (1.0 + float(b.grad.abs().max())))
    domains = torch.zeros(len(W), dtype=torch.int64)
    by_domain = DomainGyroBN(M, 1).double()
    z = by_domain(x, domains, w)
    z[kept].abs().square().sum().backward()
    assert torch.isnan(z[BAD]).all()
    assert all(torch.isfinite(p.grad).all() for p in by_domain.parameters())


@pytest.mark.parametrize("M", FIRST[:3], ids=repr)
def test_jax_layers(M):
    x = padded(M, np.nan)
    layer = FlaxGyroBN(M, param_dtype=np.float64, rngs=nnx.Rngs(0))
    y = layer(jax.numpy.asarray(x), weights=jax.numpy.asarray(W))
    expected, _ = normalize_batch(M, x[KEPT], W[KEPT])
    assert np.max(M.dist(host(y)[KEPT], expected)) < 1e-9
    assert np.all(np.isnan(host(y)[BAD]))


@geometries
def test_layers_in_half_precision(M):
    if M.complex_points:  # torch has no pairs of numbers in half precision
        pytest.skip("there is no complex dtype of half precision")
    x = torch.from_numpy(padded(M, np.nan)).half()
    y = TorchGyroBN(M)(x, torch.from_numpy(W).float())
    assert y.dtype == torch.float16
    assert torch.isfinite(y[KEPT]).all()
    assert torch.isnan(y[BAD]).all()
