"""Large NumPy arrays are computed in blocks of samples: the same numbers, in less memory."""

import gc
import tracemalloc

import numpy as np
import pytest

from gyrobn import (
    SPD,
    FrechetWarning,
    GyroBN,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    SpecialOrthogonal,
    Sphere,
    frechet,
)
from gyrobn.numerics import arrays
from gyrobn.numerics.arrays import blocks_of, blockwise
from gyrobn.numerics.hessian import DENSE
from gyrobn.statistics import lazy, uniqueness
from gyrobn.statistics.lazy import Parts

GEOMETRIES = [
    PoincareBall(3),
    Hyperboloid(3),
    Klein(2),
    Sphere(3),
    SPD(3),
    SPD(2, "cholesky_affine_invariant"),
    SpecialOrthogonal(3),
    Product(SPD(2), Sphere(2)),
]


def samples(M, *batch, spread=0.4, dtype=np.float64):
    x = M.add(M.random(*batch[1:], rng=1, spread=0.5), M.random(*batch, rng=0, spread=spread))
    return x.astype(dtype)


@pytest.fixture
def small_cache(monkeypatch):
    """Blocks of few samples, so that there are many."""
    monkeypatch.setattr(arrays, "CACHE", 2**13)
    inner = lazy.blocks_of
    monkeypatch.setattr(lazy, "blocks_of", lambda x, least=1: inner(x, 1))


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("channels", [(), (2,)], ids=str)
def test_blocks_lead_to_the_same_mean(M, channels, monkeypatch, small_cache):
    x = samples(M, 3001, *channels)
    w = np.random.default_rng(2).uniform(0.5, 1.5, x.shape[: 1 + len(channels)])
    looked = []
    inner = Parts.evaluate
    count = lambda self, *a: looked.append(len(list(self.blocks.read()))) or inner(self, *a)  # noqa: E731
    monkeypatch.setattr(Parts, "evaluate", count)
    found = frechet(M, x, w)
    assert looked
    assert min(looked) > 3
    monkeypatch.setattr(arrays, "CACHE", 2**30)
    whole = frechet(M, x, w)
    assert float(np.max(M.dist(found.mean, whole.mean))) < 1e-13
    np.testing.assert_allclose(found.variance, whole.variance, rtol=1e-13)
    assert np.all(found.converged)
    assert np.all(found.iterations <= whole.iterations + 1)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_blocks_normalize_alike(M, monkeypatch, small_cache):
    x = samples(M, 1001)
    bn = GyroBN(M, scale=0.3).fit(x)
    y = bn.transform(x)
    monkeypatch.setattr(arrays, "CACHE", 2**30)
    np.testing.assert_allclose(y, bn.transform(x), rtol=0, atol=1e-14)
    monkeypatch.setattr(arrays, "CACHE", 2**13)
    np.testing.assert_allclose(bn.inverse_transform(y), x, rtol=0, atol=1e-12)


def test_single_precision_keeps_its_digits(small_cache):
    M = PoincareBall(3)
    x = samples(M, 100_003, dtype=np.float32)
    single, double = frechet(M, x), frechet(M, x.astype(np.float64))
    assert float(M.dist(single.mean.astype(np.float64), double.mean)) < 1e-6
    np.testing.assert_allclose(single.variance, double.variance, rtol=1e-6)


def test_which_arrays_are_cut():
    x = np.zeros((100_000, 16))
    assert sum(x[block].shape[0] for block in blocks_of(x)) == 100_000
    assert all(x[block].nbytes <= arrays.CACHE for block in blocks_of(x))
    for other in (x[:1000], np.zeros((8, 10**6)), np.broadcast_to(x[0], (5, 16))):
        assert blocks_of(other) == [slice(None)]
    np.testing.assert_array_equal(blockwise(lambda a: a[:, 0] + 1.0, x), np.ones(100_000))


@pytest.mark.parametrize(
    ("M", "count", "cut"),
    [(SPD(3), 100_000, True), (SPD(3), 100, False), (PoincareBall(DENSE + 1), 20_000, False)],
    ids=repr,
)
def test_a_large_hessian_is_not_summed(M, count, cut, monkeypatch):
    """Each product with it would be a pass over the blocks."""
    read, inner = [], Parts.evaluate
    monkeypatch.setattr(Parts, "evaluate", lambda *a: read.append(1) or inner(*a))
    frechet(M, M.random(count, rng=0, spread=0.3))
    assert bool(read) == cut


@pytest.mark.parametrize(("M", "most"), [(PoincareBall(16), 0.5), (Sphere(15), 0.5), (SPD(3), 4.0)])
def test_memory(M, most):
    """What the search of the mean needs besides the data, as a part of that."""
    x = samples(M, 2_000_000 // int(np.prod(M.point_shape)), spread=0.2)
    bn = GyroBN(M).fit(x[:100])
    tracemalloc.start()
    bn.fit(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < most * x.nbytes


@pytest.mark.parametrize("M", [SPD(8), SPD(3), Sphere(3), SpecialOrthogonal(5)], ids=repr)
def test_nothing_waits_for_the_collector(M):
    """No table refers to itself, so all are gone when the statistics are there."""
    x = samples(M, 3000, spread=0.2)
    bn = GyroBN(M).fit(x)
    bn.transform(x)
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        bn.fit(x)
        bn.transform(x)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < 0.2 * x.nbytes


# ---------------------------------------------------------------------- the enclosing ball


def test_the_enclosing_ball():
    """The corners of a square are 0.5 from its centre, from which the search does not begin."""
    M = Sphere(2)
    corners = M.from_normal(np.asarray([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5], [0.0, -0.5]]))
    start = M.from_normal(np.asarray([0.3, 0.2]))
    assert float(uniqueness.enclosing_radius(M, corners, start)) == pytest.approx(0.5, rel=0.03)
    assert float(uniqueness.enclosing_radius(M, corners, start, enough=0.8)) > 0.6  # it ends early


def test_a_wide_sphere_still_warns():
    x = Sphere(2).random(20_000, rng=0, spread=0.7)
    with pytest.warns(FrechetWarning, match=r"need a ball of radius"):
        frechet(Sphere(2), x)
