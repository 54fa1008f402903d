"""Dask arrays whose blocks are not NumPy's: they stay in their library, on their device.

array-api-strict on its second device stands for CuPy: its arrays refuse to become NumPy arrays by
themselves, and refuse what the standard lacks. Dask holds such blocks and maps functions over them.
It cannot join them, so the tests look at the blocks.
"""

import dask
import dask.array as da
import jax
import numpy as np
import pytest
import torch
from conftest import LIBRARIES, assert_close

from gyrobn import (
    SPD,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    PoincareBall,
    Product,
    Sphere,
    batch_stats,
    frechet,
)

M = PoincareBall(2)
SPACES = [M, SPD(3), SPD(8), Product(M, Sphere(2)), Grassmannian(4, 2)]
OTHERS = [lib for lib in LIBRARIES if lib.name not in ("numpy", "jax", "mlx")]
DOUBLE = [lib for lib in OTHERS if lib.double]
CASES = [(lib, space) for space in SPACES for lib in OTHERS if lib.double or space in SPACES[:2]]
LABELS = np.arange(120) % 7 // 3  # 52, 51 and 17 samples


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def samples(manifold, *batch, spread=0.25):
    """Samples about a point that is not the identity, on NumPy."""
    x = manifold.random(*batch, rng=0, spread=spread)
    return manifold.add(manifold.random(rng=99, spread=spread), x)


def lazy(lib, x, rows=31):
    """Return a Dask array whose blocks are arrays of a library."""
    X = da.from_array(x, chunks=(rows, *x.shape[1:]))
    return X.map_blocks(lib.array, meta=lib.array(np.empty((0,) * x.ndim)))


def computed(X):
    """Return the blocks of a Dask array."""
    return dask.compute(*X.to_delayed().ravel())


def check_blocks(X, whole, tolerance):
    """Assert that the blocks are arrays like ``whole``, and its values."""
    first = 0
    for block in computed(X):
        part = whole[first : first + block.shape[0], ...]
        assert_close(block, part, tolerance)
        first += block.shape[0]
    assert first == whole.shape[0]


def check_fitted(bn, memory, tolerance):
    """Assert that two estimators are fitted alike, in the same library and on the same device."""
    for name in ("mean_", "var_"):
        assert_close(getattr(bn, name), getattr(memory, name), tolerance)
    assert_close(bn.weight_sum_, memory.weight_sum_, 100 * tolerance)  # up to 120
    for name in ("n_iter_", "converged_"):
        assert type(getattr(bn, name)) is type(getattr(memory, name))
    assert bn.n_samples_seen_ == memory.n_samples_seen_
    np.testing.assert_array_equal(bn.domains_, memory.domains_)


@pytest.mark.parametrize(("lib", "manifold"), CASES, ids=str)
@pytest.mark.parametrize("given", ["", "weights", "channels", "domains"])
def test_as_in_memory(lib, manifold, given):
    tolerance = 1e-12 if lib.double else 2e-5
    x = samples(manifold, 120, *((2,) if given == "channels" else ()))
    X, whole, known, d = lazy(lib, x), lib.array(x), {}, {}
    if given == "weights":
        w = np.random.default_rng(1).random(120)
        known = {"sample_weight": (lib.array(w), w, da.from_array(w, chunks=50))}
    if given == "domains":
        known = d = {"domains": (LABELS, da.from_array(LABELS, chunks=50))}
    memory = GyroBN(manifold, scale=0.5).fit(whole, **{k: v[0] for k, v in known.items()})
    for i in range(len(next(iter(known.values()), [None]))):
        bn = GyroBN(manifold, scale=0.5).fit(X, **{k: v[i] for k, v in known.items()})
        check_fitted(bn, memory, tolerance)
    y = memory.transform(whole, **{k: v[0] for k, v in d.items()})
    for i in range(2 if d else 1):
        labels = {k: v[i] for k, v in d.items()}
        Y = bn.transform(X, **labels)
        assert Y.chunks == X.chunks
        assert type(Y._meta) is type(whole)
        check_blocks(Y, y, tolerance)
        Z = bn.inverse_transform(Y, **labels)
        expected = memory.inverse_transform(y, **{k: v[0] for k, v in d.items()})
        check_blocks(Z, expected, tolerance)


@pytest.mark.parametrize("lib", DOUBLE, ids=str)
@pytest.mark.parametrize("manifold", SPACES, ids=repr)
def test_functions(lib, manifold):
    x, w = samples(manifold, 120), np.random.default_rng(1).random(120)
    X, whole = lazy(lib, x), lib.array(x)
    for weights, own in ((None, None), (lib.array(w),) * 2, (da.from_array(w), lib.array(w))):
        found, expected = frechet(manifold, X, weights), frechet(manifold, whole, own)
        for name in ("mean", "variance"):
            assert_close(getattr(found, name), getattr(expected, name), 1e-12)
        assert found.iterations.dtype == expected.iterations.dtype
        assert bool(found.converged)
    stats = batch_stats(manifold, X)
    for a, b in zip(stats, batch_stats(manifold, whole), strict=True):
        assert_close(a, b, 1e-12)
    assert_close(frechet(manifold, X, init=stats.mean).mean, stats.mean, 1e-12)


@pytest.mark.parametrize("lib", DOUBLE, ids=str)
def test_the_rest_of_the_estimator(lib):
    """partial_fit, new domains, samples that are moved, empty blocks, projectors."""
    x = samples(M, 120)
    near, memory = GyroBN(M), GyroBN(M)
    for part in (x[:50], x[50:]):
        near.partial_fit(lazy(lib, part, 20))
        memory.partial_fit(lib.array(part))
    check_fitted(near, memory, 1e-12)
    old, whole = LABELS > 0, lib.array(x)
    for unseen in ("refit", "adapt"):
        bn = GyroBN(M, unseen=unseen).fit(lib.array(x[old]), domains=LABELS[old])
        Y = bn.transform(lazy(lib, x), domains=LABELS)
        check_blocks(Y, bn.transform(whole, domains=LABELS), 1e-12)
    off = samples(Sphere(2), 120)
    off[70] *= 1.5
    with pytest.raises(ValueError, match=r"is off .* the first at index 70: on_invalid"):
        GyroBN(Sphere(2)).fit(lazy(lib, off))
    bn, memory = (
        GyroBN(Sphere(2), on_invalid="project").fit(X) for X in (lazy(lib, off), lib.array(off))
    )
    assert bn.n_projected_ == 1
    check_fitted(bn, memory, 1e-12)
    check_blocks(bn.transform(lazy(lib, off)), memory.transform(lib.array(off)), 1e-12)
    check_fitted(GyroBN(M).fit(lazy(lib, x, (0, 100, 0, 20))), GyroBN(M).fit(whole), 1e-12)
    G = Grassmannian(4, 2, representation="projector")
    for X in (lazy(lib, samples(G, 40)), lib.array(samples(G, 40))):
        assert GyroBN("grassmannian", representation="projector").fit(X).manifold_ == G
    with pytest.warns(FrechetWarning, match="another mean may fit"):
        frechet(Sphere(2), lazy(lib, Sphere(2).random(100, rng=0, spread=1.2)))


def test_slopes_are_left_behind():
    x = samples(M, 120)
    X = da.from_array(x, chunks=(31, 2)).map_blocks(
        lambda block: torch.tensor(block, requires_grad=True), meta=torch.zeros(0, 0).double()
    )
    assert not GyroBN(M).fit(X).mean_.requires_grad


def test_refused():
    """What is in another library than fit saw, blocks that Dask does not keep, and integers."""
    x, lib = samples(M, 120), DOUBLE[0]
    X = lazy(lib, x)
    bn = GyroBN(M).fit(X)
    with pytest.raises(ValueError, match="must use the same namespace"):
        bn.transform(da.from_array(x, chunks=(31, 2)))
    with pytest.raises(ValueError, match="must use the same namespace"):
        GyroBN(M).fit(x).transform(X)
    Y = da.from_array(x).map_blocks(jax.numpy.asarray, meta=jax.numpy.zeros((0, 0)))
    with pytest.raises(TypeError, match=r"of jaxlib.*: GyroBN computes with Dask arrays of NumPy"):
        GyroBN(M).fit(Y)
    whole = da.ones((9, 2), chunks=3, dtype=int).map_blocks(
        torch.tensor, meta=torch.zeros((0, 0), dtype=torch.int64)
    )
    with pytest.raises(TypeError, match="takes float32 and float64 arrays of torch"):
        GyroBN(M).fit(whole)
    with pytest.raises(TypeError, match="expected a real floating dtype, got torch"):
        frechet(M, whole)
