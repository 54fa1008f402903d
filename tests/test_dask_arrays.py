"""GyroBN, frechet and batch_stats on Dask arrays: the numbers of memory, by few computes."""

import subprocess
import sys
import tracemalloc
from itertools import chain

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.callbacks import Callback

from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    PoincareBall,
    Product,
    Sphere,
    batch_stats,
    frechet,
    frechet_mean,
    frechet_variance,
)
from gyrobn.data.dask import DaskBlocks

SPACES = [
    PoincareBall(2),
    SPD(3),
    SPD(8),  # its Hessian is that of samples that are drawn
    SPD(3, metric="log_euclidean"),
    Correlation(4),
    Product(PoincareBall(2), Sphere(2)),
    Grassmannian(4, 2),
]
M = PoincareBall(2)


@pytest.fixture(autouse=True)
def _threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


class Computes(Callback):
    """Counts computes, and the tasks in them by name."""

    def __init__(self):
        super().__init__()
        self.count, self.names = 0, set()

    def _start(self, dsk):
        self.count += 1

    def _pretask(self, key, dsk, state):
        self.names.add(dask.utils.key_split(key))


def samples(manifold, n=200, channels=(), spread=0.25, seed=0):
    """Samples about a point that is not the identity."""
    x = manifold.random(n * int(np.prod(channels, dtype=int)), rng=seed, spread=spread)
    x = manifold.add(manifold.random(rng=99, spread=spread), x)
    return x.reshape(n, *channels, *manifold.point_shape)


def lazy(x, rows=31):
    return da.from_array(x, chunks=(rows, *x.shape[1:]))


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def same(a, b):
    """Assert that two estimators are fitted alike."""
    for name in ("mean_", "var_"):
        assert type(getattr(b, name)) is type(getattr(a, name))
        assert getattr(b, name).dtype == getattr(a, name).dtype
        close(getattr(b, name), getattr(a, name))
    np.testing.assert_allclose(b.weight_sum_, a.weight_sum_, rtol=1e-14)
    assert b.n_samples_seen_ == a.n_samples_seen_
    assert b.n_features_in_ == a.n_features_in_
    assert np.shape(b.n_iter_) == np.shape(a.n_iter_)
    assert np.all(b.converged_)
    np.testing.assert_array_equal(a.domains_, b.domains_)


@pytest.mark.parametrize("manifold", SPACES, ids=repr)
@pytest.mark.parametrize("given", ["", "weights", "channels", "domains", "weights domains"])
def test_as_in_memory(manifold, given):
    rng = np.random.default_rng(1)
    x = samples(manifold, channels=(2,) if "channels" in given else ())
    known, d = {}, {}
    if "weights" in given:
        known["sample_weight"] = rng.random(len(x)) * (rng.random(len(x)) < 0.9)
    if "domains" in given:
        d["domains"] = np.asarray(["a", "b", "c"])[rng.integers(0, 3, len(x))]
    X, before = lazy(x), x.copy()
    dasks = {name: da.from_array(value, chunks=70) for name, value in (known | d).items()}
    memory = GyroBN(manifold, scale=0.5).fit(x, **known, **d)
    for given in (known | d, dasks):
        bn = GyroBN(manifold, scale=0.5)
        with Computes() as computes:
            bn.fit(X, **given)
        assert computes.count <= np.max(bn.n_iter_) + 1
        same(memory, bn)
    y = memory.transform(x, **d)
    for labels in (d, {k: v for k, v in dasks.items() if k in d}):
        with Computes() as computes:
            Y = bn.transform(X, **labels)
            Z = bn.inverse_transform(Y, **labels)
        assert computes.count == 0
        assert Y.chunks == X.chunks == Z.chunks
        assert Y.dtype == X.dtype
        close(Y.compute(), y)
        close(Z.compute(), memory.inverse_transform(y, **d))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("manifold", SPACES, ids=repr)
def test_functions(manifold):
    x, w = samples(manifold), np.random.default_rng(1).random(200)
    X = lazy(x)
    for weights, own in ((None, None), (w, w), (da.from_array(w, chunks=11), w)):
        with Computes() as computes:
            found = frechet(manifold, X, weights)
        inside = frechet(manifold, x, own)
        close(found.mean, inside.mean)
        close(found.variance, inside.variance)
        assert bool(found.converged)
        assert computes.count == int(found.iterations) + 1
        assert {"gyrobn-check", "gyrobn-evaluation"} <= computes.names
    close(batch_stats(manifold, X).var, inside.variance * 0 + batch_stats(manifold, x).var)
    close(frechet_mean(manifold, X), frechet_mean(manifold, x))
    close(frechet_variance(manifold, X), frechet_variance(manifold, x))
    start = frechet(manifold, X, init=inside.mean, tol=1e-6)
    assert int(start.iterations) <= 3


def test_partial_fit_and_fit_transform():
    x = samples(M, 200)
    near, memory = GyroBN(M), GyroBN(M)
    for k in range(4):
        part, label = x[50 * k : 50 * (k + 1)], ["a" if k < 2 else "b"] * 50
        near.partial_fit(lazy(part, 20), domains=label)
        memory.partial_fit(part, domains=label)
    same(memory, near)
    with Computes() as computes:
        Y = (bn := GyroBN(M)).fit_transform(lazy(x))
    assert computes.count == bn.n_iter_ + 1
    close(Y.compute(), GyroBN(M).fit_transform(x))


def test_fifty_domains_are_one_set_of_passes():
    x, labels = samples(M, 1000), np.arange(1000) % 50
    with Computes() as computes:
        bn = GyroBN(M).fit(lazy(x, 100), domains=labels)
    assert bn.mean_.shape == (50, 2)
    assert computes.count <= bn.n_iter_.max() + 1 <= 8
    same(GyroBN(M).fit(x, domains=labels), bn)
    order = np.argsort(labels, kind="stable")  # one domain in each block, or in two
    same(bn, GyroBN(M).fit(lazy(x[order], 33), domains=labels[order]))


@pytest.mark.parametrize("unseen", ["refit", "adapt"])
def test_domains_that_fit_did_not_see(unseen):
    """One set of passes finds the statistics of all of them; then the transform is lazy."""
    x, labels = samples(M, 240), np.arange(240) % 6
    old = labels < 3
    bn = GyroBN(M, unseen=unseen, adapt_rate=0.3).fit(x[old], domains=labels[old])
    before, expected = bn.mean_.copy(), bn.transform(x, domains=labels)
    most = GyroBN(M).fit(x[~old], domains=labels[~old]).n_iter_.max() + 1
    for given in (labels, da.from_array(labels, chunks=50)):
        with Computes() as computes:
            Y = bn.transform(lazy(x), domains=given)
        assert 0 < computes.count <= most
        close(Y.compute(), expected)
    with Computes() as computes:
        Y = bn.transform(lazy(x[old]), domains=labels[old])
    assert computes.count == 0
    close(Y.compute(), expected[old])
    Y = bn.transform(lazy(x[old]), domains=da.from_array(labels[old], chunks=50))
    close(Y.compute(), expected[old])
    np.testing.assert_array_equal(bn.mean_, before)  # nothing is kept for the next call
    with pytest.raises(ValueError, match="did not see domain 3, 4, 5"):
        bn.inverse_transform(lazy(x), domains=labels)
    with pytest.raises(ValueError, match="at least 2 samples of domain 3"):
        bn.transform(lazy(x[:4]), domains=labels[:4])


def test_unknown_and_empty_chunks():
    x, labels = samples(M, 200), np.arange(200) % 3
    X, keep = lazy(x), x[:, 0] > x[:, 0].mean()
    lot = lazy(x)[:, 0] > x[:, 0].mean()
    some, which = X[lot], da.from_array(labels, chunks=31)[lot]
    assert np.isnan(some.shape[0])
    with Computes() as computes:
        bn = GyroBN(M).fit(some)
    assert computes.count <= bn.n_iter_ + 2
    same(GyroBN(M).fit(x[keep]), bn)
    same(bn, GyroBN(M).fit(some, sample_weight=np.ones(keep.sum())))
    assert np.isnan(some.shape[0])  # not filled in, in place
    Y = bn.transform(some)
    assert str(Y.chunks) == str(some.chunks)
    close(Y.compute(), bn.transform(x[keep]))
    close(frechet(M, some).mean, frechet(M, x[keep]).mean)
    memory = GyroBN(M).fit(x[keep], domains=labels[keep])
    same(memory, bn := GyroBN(M).fit(some, domains=which))
    same(memory, GyroBN(M).fit(some, domains=labels[keep]))
    close(
        bn.transform(some, domains=which).compute(),
        memory.transform(x[keep], domains=labels[keep]),
    )
    with pytest.raises(ValueError, match=r"X.compute_chunk_sizes\(\)"):
        bn.transform(some, domains=labels[keep])
    with pytest.raises(ValueError, match=r"compute_chunk_sizes\(\) on both"):
        GyroBN(M).fit(some, sample_weight=da.ones(200, chunks=20)[da.ones(200, chunks=20) > 0])
    empty = X.rechunk({0: (0, 100, 0, 0, 90, 10, 0)})
    same(GyroBN(M).fit(x), GyroBN(M).fit(empty))
    close(GyroBN(M).fit(x).transform(empty).compute(), GyroBN(M).fit_transform(x))
    far = M.random(50, rng=0, spread=0.2)  # a whole chunk is left out
    both = da.concatenate([lazy(x), lazy(far * 0 + 0.9)])
    same(GyroBN(M).fit(x), GyroBN(M).fit(both[both[:, 0] < 0.89]))


def test_dtypes():
    x = samples(M).astype(np.float32)
    bn = GyroBN(M).fit(lazy(x))
    assert bn.mean_.dtype == np.float32
    assert bn.transform(lazy(x)).compute().dtype == bn.transform(lazy(x)).dtype == np.float32
    np.testing.assert_allclose(bn.mean_, GyroBN(M).fit(x).mean_, rtol=0, atol=1e-6)
    whole = np.arange(20).reshape(10, 2)
    out = GyroBN().fit(lazy(whole, 4)).transform(lazy(whole, 4))
    assert out.dtype == out.compute().dtype == np.float64
    close(out.compute(), GyroBN().fit_transform(whole))
    G = Grassmannian(4, 2, representation="projector")
    bn = GyroBN("grassmannian", representation="projector")
    with Computes() as computes:
        bn.fit(lazy(samples(G)))
    assert bn.manifold_ == G
    assert computes.count <= bn.n_iter_ + 2


def test_zarr(tmp_path):
    x = samples(SPD(3))
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(50, 3, 3))
    X = da.from_zarr(str(tmp_path / "x.zarr"))
    bn = GyroBN(SPD(3)).fit(X)
    same(GyroBN(SPD(3)).fit(x), bn)
    bn.transform(X).to_zarr(str(tmp_path / "y.zarr"))
    close(zarr.open_array(str(tmp_path / "y.zarr"))[:], bn.transform(x))
    close(GyroBN(SPD(3)).fit(X.persist()).mean_, bn.mean_)


def test_what_is_described_stays():
    x = samples(M)
    bn = GyroBN(M).fit(lazy(x))
    Y, expected = bn.transform(lazy(x)), bn.transform(x)
    assert Y.name == bn.transform(lazy(x)).name  # the same work has the same name
    bn.fit(0.5 * x)
    close(Y.compute(), expected)
    assert Y.name != bn.transform(lazy(x)).name


def test_points_off_the_manifold():
    x = samples(M)
    x[[123, 150], 0] = 2.0
    bad = lazy(x)
    unknown = bad[bad[:, 0] > -2]
    good = GyroBN(M).fit(lazy(samples(M)))
    for call in (
        lambda: GyroBN(M).fit(bad),
        lambda: GyroBN(M).fit(unknown),
        lambda: good.transform(bad[:140]).compute(),
    ):
        with pytest.raises(ValueError, match=r"is off .* the first at index 123: on_invalid"):
            call()
    with pytest.raises(ValueError, match="index 30") as info:  # 123 − 93
        good.transform(bad[:140][bad[:140, 0] > -2]).compute()
    assert info.value.__notes__ == ["The index counts from the start of block 3 of X."]
    before = x.copy()
    memory, bn = (GyroBN(M, on_invalid="project").fit(a) for a in (x, bad))
    same(memory, bn)
    assert bn.n_projected_ == 2
    close(bn.transform(bad).compute(), memory.transform(x))
    np.testing.assert_array_equal(x, before)
    x[[123, 150], 0] = np.nan
    with pytest.warns(FrechetWarning, match="2 of 200 samples are not on .* at index 123"):
        assert np.isnan(frechet(M, lazy(x)).mean).all()
    singular = samples(SPD(3))
    singular[[40, 150], 0] = singular[[40, 150], :, 0] = 0.0
    with pytest.warns(FrechetWarning, match=r"moved 2 of 200 .*the first, at index 40,"):
        GyroBN(SPD(3), on_invalid="project").fit(lazy(singular))


def test_a_mean_that_is_not_unique():
    S = Sphere(2)
    x = S.random(100, rng=0, spread=1.2)
    with pytest.warns(FrechetWarning, match="another mean may fit"):
        frechet(S, lazy(x))
    # warnings are errors here
    both = Product(S, Euclidean(2))
    wide = both.join(S.random(100, rng=0, spread=0.1), 10.0 * Euclidean(2).random(100, rng=0))
    GyroBN(both).fit(lazy(wide))
    with pytest.warns(FrechetWarning, match="of domain 1 on Sphere.* lie up to"):
        GyroBN(S).fit(lazy(np.concatenate([wide[:, :3], x])), domains=np.repeat([0, 1], 100))
    with pytest.warns(FrechetWarning, match="did not converge in 1 iterations"):
        GyroBN(M, max_iter=1).fit(lazy(samples(M)))
    with pytest.warns(FrechetWarning, match="of domains 0, 1 .*did not converge"):
        GyroBN(M, max_iter=1).fit(lazy(samples(M)), domains=np.arange(200) % 2)


@pytest.mark.parametrize("at", [0, 50, 99])
def test_far_data_is_told_of_wherever_it_is(at):
    S = Sphere(2)
    x = S.random(100, rng=0, spread=0.1)
    x[at] = S.from_normal(np.asarray([2.0, 0.0]))
    with pytest.warns(FrechetWarning, match=r"beyond the 1\.571"):
        frechet(S, lazy(x))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 64, 65])
def test_every_block_is_in_the_tree_once_and_in_order(count):
    """A task merges eight results: a last one that is alone counts, too."""
    blocks = DaskBlocks(da.ones((count, 2), chunks=(1, 2)))
    found = blocks.reduce("numbers", lambda block: [block.first], lambda parts: [*chain(*parts)])
    assert found == list(range(count))


X = lazy(samples(M))
BN = GyroBN(M).fit(X)
DOMAINS = GyroBN(M).fit(X, domains=np.arange(200) % 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GyroBN(M).fit(X.rechunk((31, 1))), r"use X.rechunk\(\{1: -1\}\)"),
        (lambda: BN.transform(X.rechunk((31, 1))), r"use X.rechunk\(\{1: -1\}\)"),
        (lambda: frechet(M, X.rechunk((31, 1))), r"use x.rechunk\(\{1: -1\}\)"),
        (lambda: GyroBN(SPD(2)).fit(da.ones((9, 2, 2), chunks=1)), r"rechunk\(\{1: -1, 2: -1\}\)"),
        (lambda: GyroBN(M).fit(X[:0]), "0 sample"),
        (lambda: frechet(M, X[:0]), "there are no samples"),
        (lambda: GyroBN(M).fit(X[X[:, 0] > 2]), "0 sample"),
        (lambda: GyroBN(M).fit(X[:, 0]), r"expected X of shape \(N, "),
        (lambda: GyroBN(SPD(2)).fit(X), r"expects X of shape \(N, \*channels, \*\(2, 2\)\)"),
        (lambda: frechet(SPD(2), X), r"expects x of shape"),
        (lambda: frechet(M, X, axis=1), "averaged over their first axis"),
        (lambda: frechet(M, X, steps=1), "averaged over their first axis"),
        (lambda: BN.transform(da.ones((9, 3), chunks=3)), "3 features"),
        (lambda: GyroBN(M).fit(X, sample_weight=da.zeros(200)), "positive sum"),
        (lambda: GyroBN(M).fit(X, sample_weight=np.zeros(200)), "zero for every sample"),
        (lambda: GyroBN(M).fit(X, sample_weight=-da.ones(200)), "finite and non-negative"),
        (lambda: GyroBN(M).fit(X, sample_weight=da.ones(100)), "100 entries, and X has 200"),
        (lambda: GyroBN(M).fit(X, sample_weight=np.ones(100)), r"shape of the samples, \(200,\)"),
        (
            lambda: GyroBN(M).fit(X, sample_weight=da.ones((200, 5))),
            r"weights must have the shape .* got \('N', 5\)",
        ),
        (lambda: GyroBN(M).fit(X, domains=da.arange(200)), "needs at least 2 samples of domain 0"),
        (lambda: GyroBN(M).fit(X, domains=np.arange(9)), r"one label per sample, shape \(200,\)"),
        (lambda: GyroBN(M, scale=[1.0, 2.0]).fit(X), "scale must be"),
        (lambda: GyroBN(M, scale=0.0).fit(X).inverse_transform(X), "cannot be undone"),
        (lambda: BN.transform(X, domains=np.zeros(200, int)), "fitted without domains"),
        (lambda: DOMAINS.transform(X), "fitted with domains"),
        (lambda: DOMAINS.transform(X, domains=np.arange(200) % 4), r"did not see domain 3 \("),
        (
            lambda: DOMAINS.transform(X, domains=da.arange(200, chunks=9) % 4).compute(),
            r"did not see domain 3 \(",
        ),
        (lambda: DOMAINS.transform(X, domains=["a"] * 200), "labels of the same kind"),
        (
            lambda: GyroBN(M).set_output(transform="pandas").fit(X).transform(X),
            "would compute all of a Dask array at once",
        ),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_refused_types():
    with pytest.raises(ValueError, match="Complex data not supported: X holds complex128"):
        GyroBN(M).fit(X.astype(complex))
    with pytest.raises(TypeError, match="all integers or all strings"):
        GyroBN(M).fit(X, domains=da.ones(200))
    masked = X.map_blocks(np.ma.masked_array, meta=np.ma.masked_array(np.empty((0, 0))))
    with pytest.raises(TypeError, match="Dask arrays of NumPy blocks"):
        GyroBN(M).fit(masked)


def _made(block_id=None):
    return PoincareBall(4).random(20_000, rng=block_id[0], spread=0.5)


def test_memory_does_not_grow_with_the_number_of_blocks():
    def peak(count):
        made = da.map_blocks(_made, chunks=((20_000,) * count, (4,)), dtype=np.float64)
        tracemalloc.start()
        with dask.config.set(scheduler="synchronous"):
            bn = GyroBN(PoincareBall(4), tol=1e-8).fit(made)
            bn.transform(made).sum().compute()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1)  # imports
    few, many = peak(3), peak(24)
    assert many < 1.25 * few
    assert many < 40 * 20_000 * 4 * 8  # 40 blocks: samples seen from a mean, and their Hessian


def test_neither_dask_nor_distributed_is_imported():
    code = (
        "import sys, numpy as np, gyrobn, gyrobn.data, gyrobn.cli.normalize, gyrobn.estimator;"
        "gyrobn.GyroBN().fit_transform(np.eye(3));"
        "assert not {'dask', 'distributed'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_euclidean_needs_one_evaluation():
    x = samples(Euclidean(3))
    with Computes() as computes:
        bn = GyroBN(Euclidean(3)).fit(lazy(x))
    assert computes.count == bn.n_iter_ + 1 <= 3
    same(GyroBN(Euclidean(3)).fit(x), bn)
