"""More samples than memory holds: chunks, the mean over them, and samples that come bit by bit."""

import tracemalloc
from pathlib import Path

import array_api_strict
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import GEOMETRIES
from sklearn.exceptions import NotFittedError

from gyrobn import (
    SPD,
    Chunks,
    Correlation,
    Euclidean,
    FrechetWarning,
    GyroBN,
    PoincareBall,
    Product,
    Sphere,
    Stats,
    batch_stats,
    frechet,
    frechet_variance,
    merge_stats,
)
from gyrobn.data import chunks
from gyrobn.statistics.lazy import LocalBlocks

FLAT = [
    Euclidean(3),
    SPD(3, "log_euclidean"),
    SPD(3, "log_cholesky"),
    Correlation(3, "off_log"),
    Correlation(3, "log_euclidean_cholesky"),
]
HADAMARD = [PoincareBall(3), SPD(3), Correlation(3), SPD(2, "affine_invariant", 0.5)]


def samples(manifold, *batch, seed=0):
    """Points about a centre other than the identity."""
    size = min(0.8, 0.25 * manifold.convexity_radius)
    cloud = manifold.random(*batch, rng=seed, spread=size)
    return manifold.add(manifold.random(rng=99, spread=size), cloud)


def cut(x, size=17):
    count = x.shape[0]
    return lambda: (x[i : min(i + size, count), ...] for i in range(0, count, size))


def saved(x, path: Path):
    np.save(path, x)
    return np.load(path, mmap_mode="r")


# ---------------------------------------------------------------------- the mean over chunks


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_chunks_have_the_mean_of_the_array(manifold):
    x = samples(manifold, 400)
    whole, streamed = frechet(manifold, x), frechet(manifold, Chunks(cut(x)))
    assert manifold.dist(whole.mean, streamed.mean) < 1e-12
    np.testing.assert_allclose(streamed.variance, whole.variance, rtol=1e-12)
    assert bool(streamed.converged)
    assert streamed.iterations <= 16
    assert streamed.variance.shape == whole.variance.shape


@pytest.mark.parametrize("manifold", [PoincareBall(2), SPD(2), Product(Sphere(2), Correlation(3))])
@pytest.mark.parametrize("shape", [(200,), (200, 3)])
def test_weights_and_channels(manifold, shape):
    x = samples(manifold, 200, 3)
    w = np.random.default_rng(1).random(shape)
    w[17:34] = 0.0  # a chunk that weighs nothing
    if shape == (200, 3):
        w[:187, 1] = 0.0  # all but the last of one channel
    whole, streamed = frechet(manifold, x, w), frechet(manifold, Chunks(cut(x)), w)
    assert np.max(manifold.dist(whole.mean, streamed.mean)) < 1e-12
    np.testing.assert_allclose(streamed.variance, whole.variance, rtol=1e-12)
    one, init = frechet(manifold, Chunks(cut(x)), w, init=whole.mean), whole.iterations
    assert np.all(one.iterations < init)


@pytest.mark.parametrize("manifold", [PoincareBall(2), SPD(2)], ids=repr)
@pytest.mark.parametrize("convert", [torch.as_tensor, array_api_strict.asarray])
def test_every_library(manifold, convert):
    x = samples(manifold, 100)
    whole, own = frechet(manifold, x), convert(x)
    streamed = frechet(manifold, Chunks(cut(own)))
    assert type(streamed.mean) is type(own)
    np.testing.assert_allclose(np.asarray(streamed.mean), whole.mean, rtol=0, atol=1e-12)


def test_jax():
    jax = pytest.importorskip("jax")
    manifold, x = PoincareBall(2), samples(PoincareBall(2), 60).astype(np.float32)
    streamed = frechet(manifold, Chunks(cut(jax.numpy.asarray(x), 20)))
    np.testing.assert_allclose(streamed.mean, frechet(manifold, x).mean, rtol=0, atol=1e-6)


def test_sums_of_many_chunks_keep_their_digits():
    """300,000 chunks of one sample, in float32: one after the other they would lose four digits."""
    blocks = LocalBlocks(lambda: iter([np.float32(0.1)] * 300_000))
    total = blocks.reduce("sum", lambda block: block, lambda parts: sum(parts, np.float32(0)))
    assert abs(float(total) - 300_000 * float(np.float32(0.1))) < 1e-2


def test_what_chunks_cannot_do():
    x = samples(PoincareBall(2), 40)
    for options in ({"steps": 1}, {"axis": 1}, {"axis": (0, 1)}):
        with pytest.raises(ValueError, match="in chunks are averaged over their first axis"):
            frechet(PoincareBall(2), Chunks(cut(x)), **options)
    with pytest.raises(ValueError, match="there are 40 samples and 39 weights"):
        frechet(PoincareBall(2), Chunks(cut(x)), np.ones(39))
    with pytest.raises(ValueError, match="weights must be finite and non-negative"):
        frechet(PoincareBall(2), Chunks(cut(x)), np.where(np.arange(40) == 30, -1.0, 1.0))
    with pytest.raises(ValueError, match="positive sum"):
        frechet(PoincareBall(2), Chunks(cut(x)), np.zeros(40))
    with pytest.raises(ValueError, match=r"weights must have the shape .* got \('N', 7\)"):
        frechet(PoincareBall(2), Chunks(cut(x)), np.ones((40, 7)))
    stats = batch_stats(PoincareBall(2), Chunks(cut(x)))
    np.testing.assert_allclose(stats.mean, batch_stats(PoincareBall(2), x).mean, atol=1e-14)


# ---------------------------------------------------------------------- chunks


def test_chunks_of_an_array_on_disk(tmp_path):
    x = np.arange(70.0).reshape(35, 2)
    found = Chunks(saved(x, tmp_path / "x.npy"), size=10)
    assert [len(c) for c in found] == [10, 10, 10, 5]
    np.testing.assert_array_equal(np.concatenate(list(found)), x)
    np.testing.assert_array_equal(np.concatenate(list(found)), x)
    some = found.select(np.asarray([3, 4, 31]))
    assert [rows.tolist() for rows, _ in some.numbered()] == [[3, 4], [31]]
    np.testing.assert_array_equal(np.concatenate(list(some)), x[[3, 4, 31]])
    assert (some.count, some.total) == (3, 35)


def test_only_chunks_that_are_needed_are_read():
    class Disk:
        shape, dtype = (1000, 2), np.float64

        def __init__(self):
            self.read = []

        def __getitem__(self, key):
            self.read.append(key.start)
            return np.zeros((key.stop - key.start, 2))

    disk = Disk()
    list(Chunks(disk, size=100).select(np.asarray([250, 260, 901])))
    assert disk.read == [200, 900]


class Stored:
    """An array on disk that says in what pieces it is stored, as zarr and HDF5 do."""

    def __init__(self, array, chunks):
        self.array, self.chunks = array, chunks
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, key):
        return self.array[key]


def test_default_size(monkeypatch):
    monkeypatch.setattr(chunks, "BYTES", 1600)
    x = np.zeros((1000, 2))
    assert len(next(iter(Chunks(x)))) == 100
    assert [len(c) for c in Chunks(Stored(x, (30, 2)))][:2] == [90, 90]
    assert [len(c) for c in Chunks(Stored(x, (300, 2)))] == [300, 300, 300, 100]  # whole
    assert {len(c) for c in Chunks(Stored(x, (1000, 1)))} == {100}  # too long
    assert len(next(iter(Chunks(np.zeros((3, 500)))))) == 1


def test_maps_see_the_numbers_of_samples():
    x = np.zeros((10, 2))
    mapped = Chunks(x, size=4).map(lambda c, rows: c + rows[:, None])
    np.testing.assert_array_equal(np.concatenate(list(mapped))[:, 0], np.arange(10))
    twice = mapped.map(lambda c, rows: 2 * c).select(np.asarray([1, 9]))
    np.testing.assert_array_equal(np.concatenate(list(twice))[:, 0], [2, 18])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "an array on disk, an iterable of arrays, or a function .* got int"),
        ((np.zeros((2, 2)) for _ in range(3)), "a generator can be read only once"),
    ],
)
def test_sources_that_are_none(source, message):
    with pytest.raises(TypeError, match=message):
        Chunks(source)


def test_bad_chunks():
    x = np.zeros((4, 2))
    for second in (np.zeros((4, 3)), np.zeros((4, 2), np.float32), torch.zeros(4, 2)):
        with pytest.raises(ValueError, match=r"must agree in the shape .* chunk 1 has"):
            list(Chunks(lambda second=second: iter([x, second])))
    with pytest.raises(TypeError, match=r"chunk 1 must be an array .* got list"):
        list(Chunks(lambda: iter([x, [1.0]])))
    with pytest.raises(TypeError, match=r"chunk 0 must be an array .* got shape \(4,\)"):
        list(Chunks(lambda: iter([x[:, 0]])))
    with pytest.raises(TypeError, match=r"chunk 0 must be .* got a DataFrame: call its to_numpy"):
        GyroBN().fit([pd.DataFrame(x), pd.DataFrame(x)])
    with pytest.raises(ValueError, match="hold 0 samples"):
        list(Chunks(lambda: iter([])))
    with pytest.raises(ValueError, match="size must be a positive integer"):
        Chunks(x, size=0)
    with pytest.raises(ValueError, match="size is for arrays on disk"):
        Chunks(lambda: iter([x]), size=2)
    with pytest.raises(ValueError, match=r"no length 0, got \(0, 2\)"):
        Chunks(x[:0])
    assert Chunks([x[:0], x, x[:0], x]).count == 8


def test_a_source_that_changes_is_told_of():
    once = iter([np.zeros((4, 2)), np.zeros((4, 2))])
    found = Chunks(lambda: once)
    assert len(list(found)) == 2
    with pytest.raises(ValueError, match="0 samples, where there were 8 before: they must be the"):
        list(found)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells what is resident")
def test_a_memory_map_does_not_stay_in_memory(tmp_path):
    """The pages of a map that were read count as the process's own until they are let go of."""

    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(s.split()[1] for s in lines if s.startswith("RssFile")))

    x = saved(np.ones((1_250_000, 4)), tmp_path / "x.npy")
    before = resident()
    assert sum(float(c.sum()) for c in Chunks(x, size=50_000)) == x.size
    assert resident() - before < x.nbytes / 4
    float(np.asarray(x).sum())
    assert resident() - before > x.nbytes / 2


def test_copies_on_writing_are_kept(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((100, 2)))
    x = np.load(tmp_path / "x.npy", mmap_mode="c")
    x[50] = 7.0
    assert sum(float(c.sum()) for c in Chunks(x, size=10)) == 14.0
    assert float(x.sum()) == 14.0


# ---------------------------------------------------------------------- the estimator


@pytest.mark.parametrize("manifold", [PoincareBall(32), SPD(12)], ids=repr)
def test_memory_is_bounded_by_chunks(manifold, tmp_path, monkeypatch):
    """20 MB, with a bound that is a hundredth of the benchmark's for 4 GB, and smaller chunks."""
    monkeypatch.setattr(chunks, "BYTES", chunks.BYTES // 25)
    count = 20_000_000 // (8 * int(np.prod(manifold.point_shape)))
    X = np.load(_big(manifold, count, tmp_path), mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float64, X.shape)
    tracemalloc.start()
    bn, start = GyroBN(manifold, scale=0.5).fit(X), 0
    for chunk in bn.transform_chunks(X):
        out[start : start + len(chunk)] = chunk
        start += len(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert start == len(X)
    assert peak < 6e6
    whole = GyroBN(manifold, scale=0.5).fit(np.array(X))
    assert manifold.dist(bn.mean_, whole.mean_) < 1e-12
    assert bn.var_ == pytest.approx(whole.var_, rel=1e-12)
    for at in range(0, count, count // 7):
        part = slice(at, at + 100)
        np.testing.assert_allclose(out[part], whole.transform(X[part]), rtol=0, atol=1e-12)


def _big(manifold, count, folder):
    path = folder / "x.npy"
    np.save(path, samples(manifold, count))
    return path


def test_all_kinds_of_samples_are_taken(tmp_path):
    X = samples(PoincareBall(2), 120)
    mean = GyroBN("poincare_ball").fit(X).mean_
    sources = [
        saved(X, tmp_path / "x.npy"),
        Chunks(X, size=50),
        cut(X),
        torch.utils.data.DataLoader(torch.as_tensor(X), batch_size=50),
    ]
    for source in sources:
        bn = GyroBN("poincare_ball").fit(source)
        np.testing.assert_allclose(np.asarray(bn.mean_), mean, rtol=0, atol=1e-13)
        assert bn.n_samples_seen_ == 120
        got = np.concatenate([np.asarray(c) for c in bn.transform_chunks(source)])
        want = GyroBN("poincare_ball").fit(X).transform(X)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)
        like = torch.as_tensor if torch.is_tensor(bn.mean_) else np.asarray
        (back,) = bn.transform_chunks([like(got)], inverse=True)
        np.testing.assert_allclose(back, X, rtol=0, atol=1e-12)


def test_weights_and_domains(tmp_path):
    X = samples(SPD(2), 120, 2)
    labels = np.repeat(["c", "a", "b"], 40)
    w = np.random.default_rng(0).random(120)
    whole = GyroBN(SPD(2)).fit(X, sample_weight=w, domains=labels)
    path = saved(X, tmp_path / "x.npy")
    for source in (Chunks(path, size=25), cut(X)):
        bn = GyroBN(SPD(2)).fit(source, sample_weight=w, domains=labels)
        np.testing.assert_array_equal(bn.domains_, whole.domains_)
        np.testing.assert_allclose(bn.mean_, whole.mean_, rtol=0, atol=1e-12)
        np.testing.assert_allclose(bn.weight_sum_, whole.weight_sum_, rtol=1e-14)
        got = np.concatenate(list(bn.transform_chunks(source, domains=labels)))
        np.testing.assert_allclose(got, whole.transform(X, domains=labels), rtol=0, atol=1e-11)


@pytest.mark.parametrize("unseen", ["refit", "adapt"])
def test_a_new_domain_is_looked_at_as_a_whole(unseen):
    X, new = samples(PoincareBall(2), 60), samples(PoincareBall(2), 80, seed=5)
    bn = GyroBN(PoincareBall(2), unseen=unseen).fit(X, domains=[0, 1] * 30)
    labels = [7] * 80
    got = np.concatenate(list(bn.transform_chunks(Chunks(new, size=11), domains=labels)))
    np.testing.assert_allclose(got, bn.transform(new, domains=labels), rtol=0, atol=1e-12)
    strict = GyroBN(PoincareBall(2)).fit(X, domains=[0, 1] * 30)
    with pytest.raises(ValueError, match="did not see domain 7"):  # at once, not when first asked
        strict.transform_chunks(Chunks(new), domains=labels)


def test_errors_number_samples_from_the_first_chunk_on():
    X = samples(PoincareBall(2), 100)
    bad = X.copy()
    bad[57] = 2.0
    message = r"off PoincareBall.* in 1 of 20 samples, the first at index 57"
    with pytest.raises(ValueError, match=message):
        GyroBN(PoincareBall(2)).fit(Chunks(bad, size=20))
    bn = GyroBN(PoincareBall(2)).fit(Chunks(X, size=20))
    with pytest.raises(ValueError, match=message):
        list(bn.transform_chunks(Chunks(bad, size=20)))
    bad[57] = np.nan
    with pytest.raises(ValueError, match="NaN in 1 of 20 samples, the first at index 57"):
        GyroBN(PoincareBall(2)).fit(Chunks(bad, size=20))
    bad[57] = 1.5
    projected = GyroBN(PoincareBall(2), on_invalid="project").fit(Chunks(bad, size=20))
    whole = GyroBN(PoincareBall(2), on_invalid="project").fit(bad)
    np.testing.assert_allclose(projected.mean_, whole.mean_, rtol=0, atol=1e-13)


def test_transform_wants_one_array():
    X = samples(PoincareBall(2), 100)
    bn = GyroBN(PoincareBall(2)).fit(cut(X))
    for source in (Chunks(X), cut(X)):
        with pytest.raises(TypeError, match=r"one array; transform_chunks\(\) returns chunks"):
            bn.transform(source)
    with pytest.raises(ValueError, match=r"expects samples of shape \(2,\)|features"):
        list(bn.transform_chunks(Chunks(np.zeros((5, 3)))))


# ---------------------------------------------------------------------- partial_fit


def in_parts(manifold, X, parts=10, **options):
    bn = GyroBN(manifold, **options)
    for part in np.array_split(X, parts):
        bn.partial_fit(part)
    return bn


@pytest.mark.parametrize("manifold", FLAT, ids=repr)
def test_parts_make_the_whole_where_it_is_flat(manifold):
    X = samples(manifold, 101, 2)
    whole, running = GyroBN(manifold).fit(X), in_parts(manifold, X, 7)
    np.testing.assert_allclose(running.mean_, whole.mean_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(running.var_, whole.var_, rtol=1e-12)
    assert running.n_samples_seen_ == 101
    np.testing.assert_array_equal(running.weight_sum_, [101, 101])


@pytest.mark.parametrize("manifold", GEOMETRIES, ids=repr)
def test_parts_are_near_the_whole_where_it_is_curved(manifold):
    """Twenty parts of fifty: within 2 % of a standard deviation, and 2 % of the variance."""
    X = samples(manifold, 1000)
    whole, running = GyroBN(manifold).fit(X), in_parts(manifold, X, 20)
    assert manifold.dist(running.mean_, whole.mean_) < 0.02 * float(np.sum(whole.var_)) ** 0.5
    np.testing.assert_allclose(running.var_, whole.var_, rtol=0.02)
    # without the distance between means it would be off by 1/50 times the dimension and more
    assert bool(manifold.contains(running.mean_))


@pytest.mark.parametrize("manifold", [*HADAMARD, Sphere(3)], ids=repr)
def test_the_merged_variance_is_on_one_side(manifold):
    """Of the mean square distance from the running mean: below if K ≤ 0, above if K ≥ 0."""
    sign = -1.0 if isinstance(manifold, Sphere) else 1.0
    X = np.concatenate([samples(manifold, 40), samples(manifold, 60, seed=3)])
    X[40:] = manifold.add(manifold.random(rng=4, spread=0.4), X[40:])
    running = in_parts(manifold, X, 2)
    true = frechet_variance(manifold, X, mean=running.mean_)
    assert np.all(sign * (true - running.var_) > -1e-12)  # a block of one dimension is flat
    assert sign * np.sum(true - running.var_) > 1e-4 * np.sum(true)
    np.testing.assert_allclose(running.var_, true, rtol=0.1)


def test_statistics_merge_by_the_formula():
    M, rng = PoincareBall(2), np.random.default_rng(0)
    a, b = (batch_stats(M, M.random(20, 3, rng=rng)) for _ in range(2))
    rate = np.asarray([0.25, 0.0, 1.0])
    mean, var = merge_stats(M, a, b, rate)
    want = (1 - rate) * a.var + rate * b.var + rate * (1 - rate) * M.dist(a.mean, b.mean) ** 2
    np.testing.assert_allclose(var, want, rtol=1e-14)
    np.testing.assert_allclose(M.dist(a.mean, mean), rate * M.dist(a.mean, b.mean), atol=1e-14)
    np.testing.assert_allclose(mean[1:], [a.mean[1], b.mean[2]], atol=1e-15)
    several = Product(M, Euclidean(2))
    c, d = (batch_stats(several, several.random(20, 3, rng=rng)) for _ in range(2))
    merged = merge_stats(several, c, d, rate)
    one = Stats(c.mean[..., :2], c.var[..., 0]), Stats(d.mean[..., :2], d.var[..., 0])
    alone = merge_stats(M, *one, rate)
    np.testing.assert_allclose(merged.var[..., 0], alone.var, rtol=1e-13)
    np.testing.assert_allclose(merged.mean[..., :2], alone.mean, atol=1e-14)
    with pytest.raises(TypeError, match="mixed dtypes"):
        merge_stats(M, a, Stats(*(s.astype(np.float32) for s in b)), 0.5)


def test_parts_with_weights():
    X = samples(Euclidean(2), 60, 2)
    w = np.random.default_rng(2).random((60, 2))
    bn = GyroBN(Euclidean(2))
    for at in (slice(0, 1), slice(1, 20), slice(20, 60)):
        bn.partial_fit(X[at], sample_weight=w[at])
    whole = GyroBN(Euclidean(2)).fit(X, sample_weight=w)
    np.testing.assert_allclose(bn.mean_, whole.mean_, atol=1e-14)
    np.testing.assert_allclose(bn.var_, whole.var_, rtol=1e-13)
    np.testing.assert_allclose(bn.weight_sum_, w.sum(axis=0))


def test_parts_with_domains():
    X = samples(Euclidean(2), 60)
    labels = np.asarray(["b", "a", "c"] * 20)
    labels[:30][labels[:30] == "c"] = "b"  # "c" comes later, and sorts last
    bn = GyroBN(Euclidean(2))
    for part in np.array_split(np.arange(60), 4):
        bn.partial_fit(X[part], domains=labels[part])
    whole = GyroBN(Euclidean(2)).fit(X, domains=labels)
    np.testing.assert_array_equal(bn.domains_, whole.domains_)
    for name in ("mean_", "var_", "weight_sum_"):
        np.testing.assert_allclose(getattr(bn, name), getattr(whole, name), atol=1e-13)
    got, want = bn.transform(X, domains=labels), whole.transform(X, domains=labels)
    np.testing.assert_allclose(got, want, atol=1e-12)
    bn.partial_fit(X[:1], domains=["0"])  # one sample is a beginning
    assert bn.domains_.tolist() == ["0", "a", "b", "c"]
    np.testing.assert_array_equal(bn.var_[0], 0.0)
    with pytest.raises(ValueError, match="labels of the same kind"):
        bn.partial_fit(X[:2], domains=[1, 2])
    with pytest.raises(ValueError, match=r"was fitted with domains .* give partial_fit\(X, doma"):
        bn.partial_fit(X[:2])
    with pytest.raises(ValueError, match="fitted without domains: leave them out"):
        GyroBN(Euclidean(2)).fit(X).partial_fit(X, domains=labels)


def test_parts_go_on_from_fit_and_fit_starts_anew():
    X = samples(SPD(2), 60)
    bn = GyroBN(SPD(2)).fit(X[:40]).partial_fit(X[40:].astype(np.float32))
    assert bn.mean_.dtype == np.float64
    two = merge_stats(SPD(2), batch_stats(SPD(2), X[:40]), batch_stats(SPD(2), X[40:]), 1 / 3)
    np.testing.assert_allclose(bn.var_, two.var, rtol=1e-5)
    assert bn.n_samples_seen_ == 60
    again = bn.fit(X[:7])
    assert (again.n_samples_seen_, float(again.weight_sum_)) == (7, 7.0)


def test_statistics_of_unknown_weight_are_not_replaced():
    X = samples(PoincareBall(2), 60)
    bn = GyroBN(PoincareBall(2)).fit(X)
    bn.weight_sum_ = 0.0 * bn.weight_sum_  # as after a conversion from a layer
    with pytest.raises(ValueError, match="weight_sum_ is 0: set it to what the earlier samples"):
        bn.partial_fit(X)


def test_a_bad_part_changes_nothing():
    X = samples(PoincareBall(2), 60)
    bn = GyroBN("poincare_ball").partial_fit(X)
    before = {name: np.copy(getattr(bn, name)) for name in ("mean_", "var_", "weight_sum_")}
    bad = X.copy()
    bad[3] = np.nan
    for part, message in (
        (bad, "NaN in 1 of 60 samples, the first at index 3"),
        (np.zeros((4, 3)), "features"),
        (np.zeros((4, 1, 2)), r"partial_fit\(\) expects samples of shape \(2,\)"),
        (torch.as_tensor(X), "same namespace"),
    ):
        with pytest.raises(ValueError, match=message):
            bn.partial_fit(part)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(bn, name), value)
    assert bn.n_samples_seen_ == 60


@pytest.mark.parametrize("at", [0, 50, 99])
def test_far_data_is_told_of_wherever_it_is(at):
    M = Sphere(2)
    x = M.random(100, rng=0, spread=0.1)
    x[at] = M.from_normal(np.asarray([2.0, 0.0]))
    with pytest.warns(FrechetWarning, match=r"beyond the 1\.571"):
        frechet(M, Chunks(cut(x)))


FACTORS = Product(Sphere(2), Euclidean(2), Sphere(2, curvature=0.01))


def in_factors(spread):
    spreads = zip(FACTORS.factors, (spread, 10.0, 1.5), strict=True)
    return FACTORS.join(*(M.random(60, rng=k, spread=s) for k, (M, s) in enumerate(spreads)))


def test_only_the_closed_factors_of_a_product_are_near():
    # warnings are errors here: the samples lie 23 from their mean on the Euclidean factor
    GyroBN(FACTORS).fit(Chunks(cut(in_factors(0.1))))
    message = r"factor Sphere\(n=2, curvature=1\.0\) of .* lie up to .* beyond the 1\.571"
    with pytest.warns(FrechetWarning, match=message) as told:
        GyroBN(FACTORS).fit(Chunks(cut(in_factors(2.5))))
    assert len(told) == 1


def test_a_far_sample_that_weighs_nothing_is_left_out():
    x, w = Sphere(2).random(60, rng=0, spread=0.1), np.ones(60)
    x[7], w[7] = -x[8], 0.0
    GyroBN(Sphere(2)).fit(Chunks(cut(x)), sample_weight=w)


def test_parts_tell_of_the_search_in_the_new_samples():
    X = samples(SPD(2), 60)
    bn = GyroBN(SPD(2)).fit(X[:40])
    with pytest.warns(FrechetWarning, match="did not converge"):
        bn.set_params(max_iter=1).partial_fit(X[40:])
    assert (bn.n_iter_, bn.converged_) == (1, False)
    assert bn.set_params(max_iter=64).partial_fit(X[:20]).converged_ is True


def test_chunks_before_fit():
    with pytest.raises(NotFittedError):
        GyroBN(Euclidean(2)).transform_chunks(Chunks(np.zeros((5, 2))))


def test_output_that_cannot_be_is_numbered_from_the_first_chunk_on():
    X = samples(PoincareBall(2), 100)
    bn = GyroBN(Euclidean(2), scale=1e300).fit(X)
    X[57] = 1e300
    with pytest.raises(ValueError, match="index 57"):
        list(bn.transform_chunks(Chunks(X, size=20)))


@pytest.mark.parametrize("shape", [(), (2,)])
def test_domains_that_take_turns(shape):
    """In no chunk the samples of a domain are neighbours, and none has as many as are kept."""
    manifold = PoincareBall(2)
    X = samples(manifold, 400 * (2 if shape else 1)).reshape(400, *shape, 2)
    labels = np.random.default_rng(0).integers(0, 5, 400)
    weights = np.random.default_rng(1).random(400)
    whole = GyroBN(manifold, unseen="refit").fit(X, None, weights, labels)
    bn = GyroBN(manifold, unseen="refit").fit(Chunks(X, size=10), None, weights, labels)
    np.testing.assert_allclose(bn.mean_, whole.mean_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(bn.var_, whole.var_, rtol=1e-12)
    new = np.concatenate(list(bn.transform_chunks(Chunks(X, size=10), domains=labels + 3)))
    np.testing.assert_allclose(new, whole.transform(X, domains=labels + 3), rtol=0, atol=1e-12)


def test_a_generator_is_enough_to_transform():
    X = samples(SPD(2), 100)
    bn = GyroBN(SPD(2)).fit(X)
    got = np.concatenate(list(bn.transform_chunks(part for part in np.split(X, 4))))
    np.testing.assert_array_equal(got, np.concatenate([bn.transform(x) for x in np.split(X, 4)]))
    with pytest.raises(TypeError, match="can be read only once"):
        GyroBN(SPD(2)).fit(part for part in np.split(X, 4))


def test_one_set_of_passes_serves_all_factors_of_a_product():
    """As many as the factor takes that needs the most, products in products included."""
    parts = [SPD(2).random(300, rng=k, spread=s) for k, s in enumerate((0.2, 0.5, 1.0))]
    inner = Product(SPD(2), SPD(2))
    M = Product(SPD(2), inner)
    x = M.join(parts[0], inner.join(*parts[1:]))

    def passes(M, x):
        count, chunks = [], np.split(x, 6)
        found = frechet(M, Chunks(lambda: count.append(1) or iter(chunks)))
        return len(count), found

    count, found = passes(M, x)
    assert count == max(passes(SPD(2), part)[0] for part in parts)
    assert found.converged
    np.testing.assert_allclose(found.mean, frechet(M, x).mean, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.variance, frechet(M, x).variance, rtol=1e-13)
