"""Correlation matrices: the paper's row-wise definition, five maps, the theorem, gradients."""

import warnings

import jax
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from conftest import Library, assert_close, host

from gyrobn import PoincareBall, PrecisionWarning, batch_stats, frechet, normalize
from gyrobn.manifolds.correlation import CHARTS, Correlation, covariance_to_correlation

METRICS = list(CHARTS)
FLAT = METRICS[1:]
ROWS = "poly_hyperbolic_cholesky"


def wishart(n, count, freedom, seed=0):
    """Correlation matrices of random data; strongly correlated where there is little of it."""
    z = np.random.default_rng(seed).standard_normal((count, n, freedom))
    return covariance_to_correlation(z @ z.swapaxes(-1, -2))


def equicorrelation(n, r):
    return (1 - r) * np.eye(n) + r


def hard(n):
    """Strong, smooth and negative correlations and a factor model, of condition 1e2 to 1e7."""
    i = np.arange(n)
    gap = abs(np.subtract.outer(i, i))
    f = np.random.default_rng(1).standard_normal((n, 2))
    smooth = np.exp(-(gap**2) / 8.0) + 1e-4 * np.eye(n)
    return np.stack(
        [
            0.99**gap,
            (-0.9) ** gap,
            equicorrelation(n, 0.999999),
            covariance_to_correlation(f @ f.T + 0.02 * np.eye(n)),
            covariance_to_correlation(smooth),
        ]
    )


def theta(C):
    L = np.linalg.cholesky(C)
    return L / np.diagonal(L, axis1=-2, axis2=-1)[..., None]


class TestRows:
    """GyroBN of the correlation manifold is GyroBN_i on the Poincaré ball of each Cholesky row."""

    @pytest.mark.parametrize(("n", "freedom"), [(2, 5), (5, 8), (5, 5)])
    def test_the_definition_of_the_paper(self, n, freedom):
        x = wishart(n, 12, freedom)
        bias = wishart(n, 1, 20, seed=1)[0]
        scale = np.linspace(0.4, 1.2, n - 1)
        M = Correlation(n)
        stats = batch_stats(M, x)
        y = normalize(M, x, stats, bias, scale if n > 2 else float(scale[0]), 1e-3)

        L, L_bias, L_mean = (np.linalg.cholesky(a) for a in (x, bias, stats.mean))
        out = np.zeros_like(L)
        out[:, 0, 0] = 1.0
        for i in range(1, n):
            ball = PoincareBall(i)
            rows, target, centre = (
                a[..., i, :i] / (1 + a[..., i, i, None]) for a in (L, L_bias, L_mean)
            )
            row = batch_stats(ball, rows)
            np.testing.assert_allclose(centre, row.mean, atol=1e-12)
            np.testing.assert_allclose(np.ravel(stats.var)[i - 1], row.var, rtol=1e-12)
            z = normalize(ball, rows, row, target, float(scale[i - 1]), 1e-3)
            square = (z * z).sum(-1, keepdims=True)
            out[:, i, :i] = 2 * z / (1 + square)
            out[:, i, i] = ((1 - square) / (1 + square))[:, 0]
        np.testing.assert_allclose(y, out @ out.swapaxes(-1, -2), atol=1e-12)

    def test_a_variance_and_a_scale_a_row(self, eager: Library):
        lib = eager
        M = Correlation(4)
        assert M.blocks == (1, 2, 3)
        x = lib.array(wishart(4, 10, 6))
        stats = batch_stats(M, x)
        assert stats.var.shape == (3,)
        channels = batch_stats(M, lib.array(wishart(4, 20, 6).reshape(10, 2, 4, 4)))
        assert channels.var.shape == (2, 3)
        y = normalize(M, x, stats, scale=lib.array([0.0, 0.5, 1.0]))
        L = np.linalg.cholesky(host(y))
        np.testing.assert_allclose(L[:, 1, 0], 0.0, atol=4 * lib.eps)
        assert abs(L[:, 3, :3]).max() > 0.1


class TestMaps:
    def test_euclidean_cholesky(self):
        x = wishart(4, 6, 6)
        c = Correlation(4, "euclidean_cholesky").to_normal(x)
        np.testing.assert_allclose(c, theta(x)[:, *np.tril_indices(4, -1)], atol=1e-14)

    def test_log_euclidean_cholesky(self):
        M = Correlation(5, "log_euclidean_cholesky")
        for C in (*wishart(5, 4, 7), *hard(5)[[0, 1, 3]]):
            S = scipy.linalg.logm(theta(C))[np.tril_indices(5, -1)]
            np.testing.assert_allclose(M.to_normal(C), S, atol=1e-10 * max(1, abs(S).max()))
            X = np.zeros((5, 5))
            X[np.tril_indices(5, -1)] = S
            E = scipy.linalg.expm(X)
            E /= np.linalg.norm(E, axis=-1, keepdims=True)
            np.testing.assert_allclose(M.from_normal(S), E @ E.T, atol=1e-13)

    def test_off_log(self):
        M = Correlation(4, "off_log")
        low = np.tril_indices(4, -1)
        for C in (*wishart(4, 4, 6), *hard(4)[[0, 1, 3]]):
            S = scipy.linalg.logm(C)
            np.testing.assert_allclose(M.to_normal(C), 2**0.5 * S[low], atol=1e-11)
        for seed in range(4):
            c = 1.5 * np.random.default_rng(seed).standard_normal(6)
            S = np.zeros((4, 4))
            S[low] = c / 2**0.5
            S = S + S.T

            def off(d, S=S):
                return np.diag(scipy.linalg.expm(S + np.diag(d))) - 1

            found = scipy.optimize.root(off, -np.log(off(np.zeros(4)) + 1), tol=1e-14)
            C = scipy.linalg.expm(S + np.diag(found.x))
            np.testing.assert_allclose(M.from_normal(c), C, atol=1e-12)

    @pytest.mark.filterwarnings("ignore:logm result may be inaccurate")  # to 1e-12
    def test_log_scaled(self):
        M = Correlation(4, "log_scaled")
        for C in (*wishart(4, 4, 6), *hard(4)[[0, 1, 3]]):
            S = self.log_scaled(C)
            np.testing.assert_allclose(S.sum(-1), 0, atol=1e-10)
            assert float(M.norm(C)) == pytest.approx(np.linalg.norm(S), rel=1e-10)
        x, y = wishart(4, 2, 6)
        differ = np.linalg.norm(self.log_scaled(x) - self.log_scaled(y))
        assert float(M.dist(x, y)) == pytest.approx(differ, rel=1e-10)

    @staticmethod
    def log_scaled(C):
        # the same convex problem by another method, polished by a root finder
        def value(x):
            return 0.5 * x @ C @ x - np.log(x).sum()

        bounds = scipy.optimize.Bounds(1e-6, np.inf)
        start = scipy.optimize.minimize(value, np.ones(4), bounds=bounds).x
        x = scipy.optimize.root(lambda x: x * (C @ x) - 1, start, tol=1e-14).x
        scaled = x[:, None] * C * x
        assert (x > 0).all()
        np.testing.assert_allclose(scaled.sum(-1), 1, atol=1e-11)
        return scipy.linalg.logm(scaled)

    @pytest.mark.parametrize("metric", METRICS)
    def test_round_trip_of_28_variables(self, metric):
        M = Correlation(28, metric)
        x = np.concatenate([wishart(28, 3, 60), wishart(28, 2, 28), hard(28)])
        off = abs(M.from_normal(M.to_normal(x)) - x).max()
        # measured: 6e-16, 6e-16, 8e-14 (the smooth one), 2e-14, 4e-14
        assert off < (5e-13 if metric == "log_euclidean_cholesky" else 1e-13)

    @pytest.mark.parametrize("metric", METRICS)
    def test_far_coordinates(self, metric):
        """Any vector has a matrix with diagonal one that is positive definite."""
        M = Correlation(5, metric)
        for spread in (1.0, 4.0, 10.0):
            with warnings.catch_warnings():
                if spread == 10.0:
                    warnings.simplefilter("ignore", PrecisionWarning)
                x = M.random(20, rng=0, spread=spread)
            assert (np.diagonal(x, axis1=-2, axis2=-1) == 1).all()
            np.testing.assert_array_equal(x, x.swapaxes(-1, -2))
            assert abs(x).max() <= 1 + 1e-15
            assert M.contains(x).all()
            assert float(M.violation(x).max()) == 0

    @pytest.mark.parametrize("metric", ["off_log", "log_scaled"])
    def test_the_order_of_the_variables_does_not_matter(self, metric):
        M = Correlation(4, metric)
        x, y = wishart(4, 2, 6)
        p = [2, 0, 3, 1]
        moved = M.dist(x[np.ix_(p, p)], y[np.ix_(p, p)])
        assert float(moved) == pytest.approx(float(M.dist(x, y)), rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
class TestNormalization:
    def test_strongly_correlated(self, metric):
        """Eight channels of an EEG: one source, and noise of 1e-3 beside it."""
        z = np.random.default_rng(0).standard_normal((30, 9, 200))
        data = z[:, :1] * np.linspace(1, 2, 8)[:, None] + 0.03 * z[:, 1:]
        x = covariance_to_correlation(data @ data.swapaxes(-1, -2))
        M = Correlation(8, metric)
        y = normalize(M, x, batch_stats(M, x), x[0], 0.5)
        assert abs(np.diagonal(y, axis1=-2, axis2=-1) - 1).max() <= 1e-12
        assert np.linalg.eigvalsh(y).min() > 0
        assert float(M.dist(frechet(M, y).mean, x[0])) < 1e-10

    def test_identity_stays_exactly(self, metric):
        M = Correlation(4, metric)
        one = np.eye(4)
        np.testing.assert_array_equal(M.scale(3.0, one), one)
        np.testing.assert_array_equal(M.to_normal(one), np.zeros(6))
        assert M.norm(one) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_tangent_vectors(metric):
    """Against differences, at correlations, at equal ones and at the identity."""
    M = Correlation(4, metric)
    x = np.concatenate([wishart(4, 3, 6), equicorrelation(4, 0.5)[None], np.eye(4)[None]])
    z, space = M.to_inside(x), M.inside
    c, h = np.random.default_rng(0).standard_normal((5, M.dim)), 1e-5
    v = M.tangent_from_inside(x, space.push(z, c))
    ahead, behind = (M.from_inside(space.exp(z, space.push(z, s * c))) for s in (h, -h))
    np.testing.assert_allclose(v, (ahead - behind) / (2 * h), atol=1e-8)
    assert (np.diagonal(v, axis1=-2, axis2=-1) == 0).all()
    slope = (M.to_inside(x + h * v) - M.to_inside(x - h * v)) / (2 * h)
    np.testing.assert_allclose(M.tangent_to_inside(x, v), slope, atol=1e-7)
    np.testing.assert_allclose(M.pull(x, M.push(x, c)), c, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_gradients(metric):
    """Compiled by JAX, by the samples; and on torch, by the coordinates."""
    M = Correlation(4, metric)
    rng = np.random.default_rng(5)
    weights, step, h = rng.standard_normal((5, 4, 4)), rng.standard_normal((5, M.dim)), 1e-5

    def loss(x, W):
        return (normalize(M, x, batch_stats(M, x), eps=1e-2) * W).sum()

    slope = jax.jit(jax.grad(lambda x: loss(x, jax.numpy.asarray(weights))))
    equal = np.stack([equicorrelation(4, r) for r in (-0.2, 0.1, 0.3, 0.6, 0.9)])
    for x in (wishart(4, 5, 6), equal, np.repeat(wishart(4, 1, 6), 5, axis=0)):
        v = M.push(x, step)
        at = [M.exp(x, s * h * v) for s in (1.0, -1.0, 2.0, -2.0)]
        a, b, c, d = (loss(y, weights) for y in at)
        expected = pytest.approx((8 * (a - b) - (c - d)) / (12 * h), rel=1e-6)
        assert (np.asarray(slope(jax.numpy.asarray(x))) * v).sum() == expected
        a, b, c, d = (M.to_normal(y) for y in at)
        change = (8 * (a - b) - (c - d)) / (12 * h)
        leaf = torch.tensor(M.to_normal(x), requires_grad=True)
        loss(M.from_normal(leaf), torch.tensor(weights)).backward()
        assert (leaf.grad.numpy() * change).sum() == expected


class TestOffTheManifold:
    M = Correlation(3)
    good = wishart(3, 1, 5)[0]

    def bad(self):
        asymmetric = self.good.copy()
        asymmetric[0, 1] += 0.1
        singular = np.ones((3, 3))
        indefinite = np.asarray([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
        return {
            "asymmetric": asymmetric,
            "diagonal": 1.5 * self.good,
            "singular": singular,
            "indefinite": indefinite,
            "zero": np.zeros((3, 3)),
            "negative": -np.eye(3),
            "huge": np.full((3, 3), 1e200),
            "units": self.good * np.outer([1e-9, 1.0, 1e9], [1e-9, 1.0, 1e9]),
        }

    def test_violation_and_projection(self):
        bad = self.bad()
        for name, x in bad.items():
            assert float(self.M.violation(x)) > 2e-8, name
            assert not self.M.contains(x), name
            p = self.M.project(x)
            assert self.M.contains(p), name
            assert (np.diag(p) == 1).all(), name
            assert np.isfinite(self.M.to_normal(p)).all(), name
            np.testing.assert_allclose(self.M.project(p), p, atol=1e-15)
        np.testing.assert_allclose(self.M.project(bad["diagonal"]), self.good, atol=1e-15)
        np.testing.assert_allclose(self.M.project(bad["units"]), self.good, atol=1e-15)
        np.testing.assert_array_equal(self.M.project(bad["zero"]), np.eye(3))
        middle = self.M.project(bad["asymmetric"])
        assert middle[0, 1] == pytest.approx(self.good[0, 1] + 0.05, abs=1e-15)

    def test_rounding_is_not_a_violation(self, lib: Library):
        x = lib.array(wishart(6, 10, 7))
        M = Correlation(6)
        assert float(host(M.violation(x)).max()) < 4 * lib.eps
        p = M.project(x)
        assert_close(p, x, 4 * lib.eps)


class TestCovariances:
    def test_any_size_and_batch(self, lib: Library):
        z = np.random.default_rng(0).standard_normal((2, 3, 4, 9))
        S = z @ z.swapaxes(-1, -2)
        expected = np.asarray([[np.corrcoef(b, rowvar=True) for b in a] for a in z])
        d = np.sqrt(np.diagonal(S, axis1=-2, axis2=-1))
        for size in (1.0, 1e-26, 1e20):
            C = covariance_to_correlation(lib.array(S * size))
            assert (np.diagonal(host(C), axis1=-2, axis2=-1) == 1).all()
            plain = S / d[..., None] / d[..., None, :]
            assert_close(C, plain, 4 * lib.eps, like=lib.array(S))
        centred = z - z.mean(-1, keepdims=True)
        found = covariance_to_correlation(lib.array(centred @ centred.swapaxes(-1, -2)))
        np.testing.assert_allclose(host(found), expected, atol=8 * lib.eps)

    def test_a_variance_that_is_not_positive(self, lib: Library):
        S = np.stack([np.eye(3)] * 4)
        S[2, 1, 1] = 0.0
        with pytest.raises(ValueError, match=r"sample 2, variable 1 has the variance 0\.0"):
            covariance_to_correlation(lib.array(S))
        with pytest.raises(ValueError, match=r"sample \(1, 0\), variable 1"):
            covariance_to_correlation(lib.array(S.reshape(2, 2, 3, 3)))
        with pytest.raises(ValueError, match=r"^variable 0 has the variance -1\.0"):
            covariance_to_correlation(lib.array(-np.eye(2)))

    def test_traced_values_and_nan_become_nan(self):
        for value, function in (
            (-2.0, jax.jit(covariance_to_correlation)),
            (np.nan, covariance_to_correlation),
        ):
            S = np.stack([np.eye(3)] * 2)
            S[1, 1, 1] = value
            C = np.asarray(function(S))
            assert np.isnan(C[1]).any()
            np.testing.assert_array_equal(C[0], np.eye(3))

    def test_bad_shapes(self):
        with pytest.raises(ValueError, match=r"square, shape \(\.\.\., n, n\), got \(3, 4\)"):
            covariance_to_correlation(np.ones((3, 4)))
        with pytest.raises(TypeError, match="real floating dtype"):
            covariance_to_correlation(np.eye(3, dtype=int))


class TestSizes:
    def test_construction(self):
        assert Correlation.for_shape((10, 5, 5)) == Correlation(5)
        assert Correlation(5).point_shape == (5, 5)
        assert [M.dim for M in Correlation.examples()] == [3] * 5
        with pytest.raises(ValueError, match=r"square, shape \(\.\.\., n, n\), got \(10, 5, 4\)"):
            Correlation.for_shape((10, 5, 4))
        with pytest.raises(
            ValueError, match="n of Correlation must be an integer of at least 2, got 1"
        ):
            Correlation(1)
        with pytest.raises(ValueError, match="'off_log' or 'log_scaled', got 'euclidean'"):
            Correlation(3, "euclidean")
