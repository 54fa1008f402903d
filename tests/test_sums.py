"""Sums over many samples in float32 keep its digits, whatever axes they have, on every library."""

import numpy as np
import pytest
from conftest import LIBRARIES, host

from gyrobn import Correlation, Euclidean, PoincareBall, frechet
from gyrobn.numerics.arrays import sum_of_products, sum_samples, weighted_sum

SINGLE = [lib for lib in LIBRARIES if lib.dtype == "float32"]
EPS = float(np.finfo(np.float32).eps)
MANY = 1_000_003  # no multiple of a block


@pytest.mark.parametrize("lib", SINGLE, ids=lambda lib: lib.name)
@pytest.mark.parametrize(("channels", "rest"), [((), ()), ((), (3,)), ((2,), ()), ((2,), (2, 2))])
def test_weighted_sums(lib, channels, rest):
    rng = np.random.default_rng(0)
    x = rng.gamma(2.0, 1.0, (MANY, *channels, *rest)).astype(np.float32)
    w = rng.uniform(0.5, 1.5, (MANY, *channels)).astype(np.float32)
    wide = w.reshape(*w.shape, *(1 for _ in rest)).astype(np.float64)
    true = np.sum(wide * x, axis=0)
    found = host(weighted_sum(lib.array(w), lib.array(x)))
    np.testing.assert_allclose(found, true, rtol=8 * EPS)
    np.testing.assert_allclose(host(sum_samples(lib.array(w))), w.sum(0, np.float64), rtol=8 * EPS)


@pytest.mark.parametrize("lib", SINGLE, ids=lambda lib: lib.name)
@pytest.mark.parametrize("shape", [(300, 0), (5, 2, 0), (5, 0, 3), (0, 2, 3)])
def test_sums_of_empty_arrays(lib, shape):
    x = lib.array(np.ones(shape, dtype=np.float32))
    w = lib.array(np.ones(shape[:-1], dtype=np.float32))
    np.testing.assert_array_equal(host(weighted_sum(w, x)), np.zeros(shape[1:]))
    found = sum_of_products(x[..., None, :], x[..., None, :])
    np.testing.assert_array_equal(host(found), np.zeros((*shape[1:], shape[-1])))


@pytest.mark.parametrize(
    ("M", "channels"),
    [(Correlation(3), ()), (Euclidean(2), (4,)), (PoincareBall(2), ())],
    ids=repr,
)
def test_the_variance_of_many_samples(M, channels):
    """The variance in float32 is that of the same samples in float64."""
    few = M.random(1000, *channels, rng=0, spread=0.3)
    x = np.tile(few, (MANY // 1000, *(1 for _ in few.shape[1:]))).astype(np.float32)
    single = frechet(M, x)
    double = frechet(M, x[:1000].astype(np.float64))
    np.testing.assert_allclose(single.variance, double.variance, rtol=3e-6)
    assert float(np.max(M.dist(single.mean.astype(np.float64), double.mean))) < 1e-6


def test_the_mean_of_many_weights():
    """Weights are divided by their sum, which must be right itself."""
    x = np.asarray([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)[np.arange(MANY) % 2]
    w = np.full((MANY, 3), 0.1, dtype=np.float32)
    channels = np.broadcast_to(x[:, None, :], (MANY, 3, 2))
    mean = frechet(Euclidean(2), np.ascontiguousarray(channels), w).mean
    np.testing.assert_allclose(mean, 0.5, atol=2e-6)
