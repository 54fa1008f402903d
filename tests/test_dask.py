"""Where Dask arrays are refused, the error says what to do and what takes them."""

import dask.array as da
import equinox
import jax
import numpy as np
import pytest
import torch
from conftest import FIRST

import gyrobn.torch
from gyrobn import (
    Chunks,
    GyroBN,
    Hyperboloid,
    PoincareBall,
    Product,
    Stats,
    batch_stats,
    convert,
    denormalize,
    frechet,
    frechet_variance,
    normalize,
    normalize_batch,
    update_stats,
)
from gyrobn.equinox import GyroBN as EquinoxGyroBN
from gyrobn.flax import GyroBN as FlaxGyroBN
from gyrobn.normalization.baselines import lrbn
from gyrobn.plot import plot_normalization

M = PoincareBall(2)
X = M.random(20, rng=0, spread=0.5)
LAZY = da.from_array(X, chunks=(6, 2))
ONES = da.ones(20, chunks=6)
STATS = batch_stats(M, X)
BN = GyroBN(M).fit(X)
EQUINOX = equinox.nn.make_with_state(EquinoxGyroBN)(M)


def refused(function, *arguments, **options):
    """Assert that a call is refused, by the error that says what to do."""
    with pytest.raises(TypeError, match=r"does not compute with Dask arrays: give x.compute\(\)"):
        function(*arguments, **options)


POINTS = {"neg": 1, "to_normal": 1, "norm": 1, "project": 1, "violation": 1, "contains": 1}
POINTS |= {"add": 2, "dist": 2, "relative": 2, "relative_normal": 2, "log": 2, "coadd": 2}
POINTS |= {"gyration": 3, "origin": 1}
"""Operations on points, and how many they take."""


@pytest.mark.parametrize("manifold", FIRST, ids=repr)
def test_operations(manifold):
    x = manifold.random(20, rng=0, spread=0.5)
    lazy = da.from_array(x, chunks=(6, *x.shape[1:]))
    c = manifold.to_normal(x)
    for name, count in POINTS.items():
        for k in range(count):
            points = [lazy if i == k else x for i in range(count)]
            refused(getattr(manifold, name), *points)
    refused(manifold.from_normal, da.from_array(c))
    refused(manifold.push, x, da.from_array(c))
    refused(manifold.pull, lazy, x)
    refused(manifold.random, 3, like=lazy)
    if len(manifold.blocks) == 1:
        refused(manifold.scale, ONES, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda: PoincareBall(2, curvature=da.from_array(np.asarray(-1.0))).add(X, X),
        lambda: convert(M, Hyperboloid(2), LAZY),
        lambda: Product(M, M).join(LAZY, X),
        lambda: frechet(M, X, ONES),
        lambda: frechet_variance(M, LAZY, STATS.mean),
        lambda: normalize(M, LAZY, STATS),
        lambda: normalize(M, X, STATS, scale=ONES[0]),
        lambda: denormalize(M, LAZY, STATS),
        lambda: normalize_batch(M, LAZY),
        lambda: update_stats(M, STATS, Stats(LAZY[0], ONES[0]), 0.1),
        lambda: lrbn(M, LAZY, STATS),
        lambda: Chunks(LAZY),
        lambda: Chunks(LAZY[LAZY[:, 0] > 0]),  # of a length that is not known
        lambda: GyroBN(M).fit(iter([LAZY]).__iter__),
        lambda: GyroBN(M).fit(X, sample_weight=ONES),
        lambda: GyroBN(M).fit(X, domains=ONES.astype(int)),
        lambda: GyroBN(M, bias=LAZY[0]).fit(X),
        lambda: GyroBN(M, scale=ONES[0]).fit(X),
        lambda: next(BN.transform_chunks(LAZY)),
        lambda: gyrobn.torch.GyroBN(M)(LAZY),
        lambda: gyrobn.torch.GyroBN(M)(torch.as_tensor(X, dtype=torch.float32), ONES),
        lambda: gyrobn.torch.DomainGyroBN(M, 2)(torch.as_tensor(X), ONES.astype(int)),
        lambda: FlaxGyroBN(M)(LAZY),
        lambda: EQUINOX[0](LAZY, EQUINOX[1]),
        lambda: plot_normalization(M, LAZY, X),
    ],
)
def test_everything_else(call):
    refused(call)


def test_load(tmp_path):
    BN.save(tmp_path / "model.npz")
    refused(GyroBN.load, tmp_path / "model.npz", like=LAZY)


@pytest.mark.parametrize("wrong", [X, jax.numpy.asarray(X)], ids=["numpy", "jax"])
def test_a_torch_layer_takes_tensors(wrong):
    with pytest.raises(TypeError, match=r"takes torch tensors, got .*torch.as_tensor"):
        gyrobn.torch.GyroBN(M)(wrong)
    with pytest.raises(TypeError, match=r"takes torch tensors, got .*torch.as_tensor"):
        gyrobn.torch.DomainGyroBN(M, 2)(torch.as_tensor(X), wrong)


def test_what_the_error_says_works():
    np.testing.assert_allclose(M.neg(LAZY.compute()), M.neg(X), atol=0)
    np.testing.assert_allclose(LAZY.map_blocks(M.neg, dtype=LAZY.dtype).compute(), M.neg(X), atol=0)
    np.testing.assert_allclose(GyroBN(M).fit(LAZY).mean_, BN.mean_, atol=1e-14)
    np.testing.assert_allclose(frechet(M, LAZY, ONES).mean, BN.mean_, atol=1e-14)
    np.testing.assert_allclose(batch_stats(M, LAZY).var, BN.var_, atol=1e-14)
    blocks = Chunks(lambda: (block.compute() for block in LAZY.blocks.ravel()))
    bn = GyroBN(M).fit(blocks)
    np.testing.assert_allclose(bn.mean_, BN.mean_, atol=1e-14)
    assert [len(chunk) for chunk in bn.transform_chunks(blocks)] == [6, 6, 6, 2]
    near = GyroBN(M)
    for block in LAZY.blocks.ravel():
        near.partial_fit(block.compute())
    assert near.n_samples_seen_ == 20
