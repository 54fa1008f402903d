"""The centroid instead of the Fréchet mean, and what is told of its error."""

import importlib.util
import warnings
from pathlib import Path

import dask.array
import equinox as eqx
import jax
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES
from flax import nnx
from layer_cases import batches
from sklearn.base import clone

import gyrobn.equinox
import gyrobn.flax
import gyrobn.torch
from gyrobn import (
    SPD,
    Chunks,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    Hyperboloid,
    PoincareBall,
    SpecialOrthogonal,
    Sphere,
    Stereographic,
    batch_stats,
    mean_error,
    merge_stats,
    normalize_batch,
)

ROOT = Path(__file__).parent.parent
quiet = pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")


def benchmark(name):
    spec = importlib.util.spec_from_file_location(
        f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@quiet
@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_the_error_is_bounded(M):
    for spread in (0.1, 0.3, 1.5):
        x = batches(M, 12, 2, spread=spread)
        weights = np.linspace(0.2, 1.0, 12)
        centroid, about = batch_stats(M, x, weights, mean="centroid")
        mean, var = batch_stats(M, x, weights)
        off = mean_error(M, x, weights)
        gap, distance = (about - var) / about, M.dist(centroid, mean)
        assert np.all(gap > -1e-12)
        sure = off.sure
        assert sure.all() or (spread > 0.1 and M.convexity_radius < np.inf)
        assert np.all(distance[sure] <= off.distance[sure] * (1 + 1e-9) + 1e-12)
        assert np.all(gap[sure] <= off.variance[sure] * (1 + 1e-6) + 1e-12)
        if M.inside.flat:
            assert distance.max() < 1e-12
            assert np.allclose(about, var, rtol=1e-12, atol=0)
            assert off.distance.max() < 1e-12
        else:  # neither the bound nor the estimate is far from the error of a narrow cloud
            slack = 1.02 if M.convexity_radius == np.inf else 1.2
            assert spread > 0.1 or np.all(off.distance <= slack * distance + 1e-12)


@pytest.mark.parametrize("M", [Sphere(3), Grassmannian(5, 2), SpecialOrthogonal(4)], ids=repr)
def test_an_estimate_is_the_first_newton_step(M):
    x = batches(M, 60, spread=1.2 * M.convexity_radius / 2)
    off = mean_error(M, x)
    (centroid, about), (mean, var) = batch_stats(M, x, mean="centroid"), batch_stats(M, x)
    assert not off.sure
    np.testing.assert_allclose(off.distance, M.dist(centroid, mean), rtol=0.1)
    np.testing.assert_allclose(off.variance, (about - var) / about, rtol=0.1)


@pytest.mark.parametrize("M", [Hyperboloid(3), SPD(3)], ids=repr)
def test_what_the_output_has(M):
    x, bias, s = batches(M, 20, spread=2.0), M.random(rng=1), 0.7
    y, stats = normalize_batch(M, x, bias=bias, scale=s, eps=1e-3, mean="centroid")
    off = mean_error(M, x)
    mean, var = batch_stats(M, y)
    t = s / np.sqrt(stats.var + 1e-3)
    assert 0.5 * t * off.distance < M.dist(bias, mean) <= t * off.distance
    asked = s**2 * stats.var / (stats.var + 1e-3)
    assert (1.0 - off.variance) * asked <= var <= asked


def test_steps_have_an_error_too():
    M = PoincareBall(3)
    x = batches(M, 20, spread=1.5)
    none, one, all_ = (mean_error(M, x, steps=k).distance for k in (0, 1, None))
    assert none == mean_error(M, x).distance
    assert all_ < 1e-14 < one < 0.1 * none


@quiet
@pytest.mark.parametrize(
    "M", [Stereographic(2, curvature=0.4), PoincareBall(2), SPD(2), Grassmannian(4, 2),
          SpecialOrthogonal(3)], ids=repr
)  # fmt: skip
def test_derivatives(M):
    x = torch.as_tensor(batches(M, 4))
    weights = torch.linspace(0.3, 1.0, 4, dtype=torch.float64)

    def call(c, weights):
        y, stats = normalize_batch(M, M.from_normal(c), weights, mean="centroid")
        return M.to_normal(y), M.norm(stats.mean), stats.var

    inputs = M.to_normal(x).requires_grad_(), weights.requires_grad_()
    assert torch.autograd.gradcheck(call, inputs, eps=1e-6, atol=1e-7, rtol=1e-6)


def test_the_curvature_has_its_slope():
    K = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    c = torch.as_tensor(PoincareBall(2).random(6, rng=0))

    def call(K):
        M = PoincareBall(2, curvature=K)
        stats = batch_stats(M, M.from_normal(c), mean="centroid")
        return stats.mean, stats.var

    assert torch.autograd.gradcheck(call, (K,), eps=1e-6, atol=1e-8)


def test_a_detached_centroid_is_a_constant():
    M = SPD(2)
    x = torch.as_tensor(batches(M, 5)).requires_grad_()
    stats = batch_stats(M, x, mean="centroid", mean_gradient="detach")
    assert not stats.mean.requires_grad
    (slope,) = torch.autograd.grad(stats.var, x)
    held = gyrobn.frechet_variance(M, x, stats.mean)
    torch.testing.assert_close(slope, torch.autograd.grad(held, x)[0])


@pytest.mark.parametrize("M", [Hyperboloid(2), SPD(2)], ids=repr)
def test_flax_and_equinox_agree_with_torch(M):
    x = batches(M, 6, 2)
    layer = gyrobn.torch.GyroBN(M, 2, mean="centroid", dtype=torch.float64)
    own = torch.as_tensor(x).requires_grad_()
    y = layer(own)
    (y**3).sum().backward()
    off = layer.mean_error(own.detach())
    flax = gyrobn.flax.GyroBN(M, 2, mean="centroid", param_dtype=np.float64)
    module, state = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(
        M, 2, mean="centroid", dtype=np.float64
    )

    loss = nnx.value_and_grad(lambda flax, x: (flax(x) ** 3).sum(), argnums=1)
    value, found = nnx.jit(loss)(flax, jax.numpy.asarray(x))
    np.testing.assert_allclose(found, own.grad, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(value, float((y**3).sum().detach()), rtol=1e-11)
    z, _ = module(jax.numpy.asarray(x), state)
    np.testing.assert_allclose(z, y.detach(), atol=1e-12)
    for other in (flax, module):
        for a, b in zip(other.mean_error(jax.numpy.asarray(x)), off, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
    direct = mean_error(M, x)
    for a, b in zip(direct, off, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


class TestLayer:
    def test_it_warns_of_an_error_of_the_first_batch(self):
        M = PoincareBall(2)
        wide, narrow = (torch.as_tensor(batches(M, 8, spread=s)) for s in (4.0, 0.1))
        layer = gyrobn.torch.GyroBN(M, mean="centroid", dtype=torch.float64)
        with pytest.warns(FrechetWarning, match=r"is 0\.\d+ standard deviations"):
            layer(wide)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer(wide)  # not the first batch
            layer.check_input = False
            layer(wide)
            layer.check_input = True
            layer(narrow)
            layer(wide)
        layer.check_input = True  # the next batch is the first again
        with pytest.warns(FrechetWarning, match="mean='frechet'"):
            layer(wide)

    def test_a_free_curvature_is_looked_at(self):
        def error(K):
            M = Stereographic(2, curvature=K)
            layer = gyrobn.torch.GyroBN(M, learn_curvature=True, mean="centroid")
            return layer.double().mean_error(
                M.random(9, rng=0, like=torch.zeros(1).double(), spread=1.2)
            )

        assert error(-1.0).sure
        assert not error(1.0).sure

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"mean": "median"}, "mean must be"),
            ({"mean": "centroid", "steps": 1}, "steps has no meaning"),
        ],
    )
    def test_options_are_checked(self, options, words):
        with pytest.raises(ValueError, match=words):
            gyrobn.torch.GyroBN(Euclidean(2), **options)

    def test_init_and_hidden_curvature_are_refused(self):
        M, x = PoincareBall(2), batches(PoincareBall(2), 4)
        with pytest.raises(ValueError, match="init has no meaning"):
            batch_stats(M, x, mean="centroid", init=x[0])
        with pytest.raises(ValueError, match="outside of jit"):
            jax.jit(lambda K: mean_error(PoincareBall(2, curvature=K), jax.numpy.asarray(x)))(-1.0)

    def test_repr(self):
        assert "mean='centroid'" in repr(gyrobn.torch.GyroBN(Euclidean(2), mean="centroid"))


class TestEstimator:
    @quiet
    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_it_has_the_statistics_of_the_function(self, M, tmp_path):
        x, w = batches(M, 12, 2), np.linspace(0.2, 1.0, 12)
        bn = clone(GyroBN(M, mean="centroid", eps=1e-3)).fit(x, sample_weight=w)
        expected = batch_stats(M, x, w, mean="centroid")
        assert M.dist(bn.mean_, expected.mean).max() < 1e-12
        np.testing.assert_allclose(bn.var_, expected.var, rtol=1e-11)
        y, _ = normalize_batch(M, x, w, eps=1e-3, mean="centroid")
        for out in (bn.transform(x), bn.fit_transform(x, sample_weight=w)):
            assert M.dist(out, y).max() < 1e-11
        for own, other in zip(bn.mean_error(x, w), mean_error(M, x, w), strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-14)
        bn.save(tmp_path / "model")
        loaded = GyroBN.load(tmp_path / "model")
        assert loaded.get_params()["mean"] == "centroid"
        np.testing.assert_array_equal(loaded.fit(x, sample_weight=w).mean_, bn.mean_)

    @quiet
    @pytest.mark.parametrize("M", [SPD(2), Hyperboloid(2)], ids=repr)
    def test_domains(self, M):
        x, who = batches(M, 12), np.asarray(["b", "a", "c"] * 4)
        bn = GyroBN(M, mean="centroid", unseen="refit").fit(x[who < "c"], domains=who[who < "c"])
        for k, label in enumerate("ab"):
            own = batch_stats(M, x[who == label], mean="centroid")
            assert M.dist(bn.mean_[k], own.mean) < 1e-12
            off = bn.mean_error(x[who < "c"], domains=who[who < "c"])
            np.testing.assert_allclose(off.distance[k], mean_error(M, x[who == label]).distance)
        new, _ = normalize_batch(M, x[who == "c"], mean="centroid")
        assert M.dist(bn.transform(x, domains=who)[who == "c"], new).max() < 1e-11
        with pytest.raises(ValueError, match="did not see domain 'c', so there is no mean"):
            bn.mean_error(x, domains=who)

    def test_parts(self):
        """The merged centroids of two parts, and how far they are from the mean of all."""
        M = PoincareBall(2)
        x = batches(M, 12)
        bn = GyroBN(M, mean="centroid").partial_fit(x[:4]).partial_fit(x[4:])
        each = (batch_stats(M, part, mean="centroid") for part in (x[:4], x[4:]))
        np.testing.assert_allclose(bn.mean_, merge_stats(M, *each, 2 / 3).mean, rtol=1e-12)
        distance = M.dist(bn.mean_, batch_stats(M, x).mean)
        off = bn.mean_error(x)
        assert 0.5 * off.distance < distance <= off.distance
        exact = GyroBN(M).fit(x)
        assert exact.mean_error(x).distance < 1e-14

    def test_it_warns_and_refuses(self):
        M = PoincareBall(2)
        x = batches(M, 8, spread=4.0)
        bn = GyroBN(M, mean="centroid")
        for domains in (None, ["a"] * 8):
            with pytest.warns(FrechetWarning, match=r"is 0\.\d+ standard deviations"):
                bn.fit(x, domains=domains)
        for many in (Chunks(x, size=3), dask.array.from_array(x, chunks=(3, 2))):
            with pytest.raises(ValueError, match="mean='centroid' takes samples in one array"):
                bn.fit(many)
        with pytest.raises(ValueError, match="mean must be"):
            GyroBN(M, mean="median").fit(x)

    def test_layers_keep_it(self):
        M = SPD(2)
        x = batches(M, 8, spread=0.1)
        bn = GyroBN(M, mean="centroid").fit(x)
        layer = gyrobn.torch.GyroBN.from_estimator(bn)
        assert layer.settings.mean == "centroid"
        assert layer.to_estimator().mean == "centroid"
        assert gyrobn.flax.GyroBN.from_estimator(bn).settings.mean == "centroid"
        assert gyrobn.equinox.GyroBN.from_estimator(bn)[0].settings.mean == "centroid"


@pytest.mark.parametrize("M", [PoincareBall(4), SPD(3), Grassmannian(5, 2)], ids=repr)
def test_it_takes_fewer_operations_than_one_step(M):
    count = benchmark("operations").torch_counts
    one, none = count(M, batch=(8,), steps=1)[0], count(M, batch=(8,), mean="centroid")[0]
    assert none.operations < one.operations
    assert none.syncs <= one.syncs


def test_the_page_has_the_numbers_of_its_generator():
    made, page = benchmark("centroid"), (ROOT / "docs" / "centroid.md").read_text("utf-8")
    rows = [made.cloud_row(2, 1, "two"), made.cloud_row(16, 4, "one")]
    rows += [made.geometry_row(SPD(8), 0.3), made.geometry_row(Sphere(8), 1.0)]
    for cells in rows:
        assert f"| {' | '.join(cells[:-1])} |" in page  # the last digits of one step are rounding
