"""SPD matrices: against pyRiemann, the published layers' formulas, and finite differences."""

import functools
import warnings

import jax
import numpy as np
import pytest
import scipy.linalg as sl
from conftest import Library, assert_close, cloud, host

from gyrobn import GyroBN, Stats, batch_stats, frechet, normalize
from gyrobn.estimator.files import geometry_from_json
from gyrobn.manifolds.spd import METRICS, SPD

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pyriemann.geometry.distance import distance_logchol, distance_logeuclid, distance_riemann
    from pyriemann.geometry.mean import mean_logchol, mean_logeuclid, mean_riemann
    from pyriemann.geometry.tangentspace import (
        exp_map_logchol,
        exp_map_logeuclid,
        exp_map_riemann,
        log_map_logchol,
        log_map_logeuclid,
        log_map_riemann,
        transport_riemann,
    )

SPACES = [
    *SPD.examples(),
    SPD(3, "cholesky_affine_invariant", theta=-0.7),
    SPD(3, "cholesky_affine_invariant", theta=0.5, alpha=0.4, beta=0.7),
]
NUMPY, TORCH, JAX = (Library(name, "float64") for name in ("numpy", "torch", "jax"))
AUTODIFF = pytest.mark.parametrize("library", [TORCH, JAX], ids=["torch", "jax"])
spaces = pytest.mark.parametrize("M", SPACES, ids=repr)


def covariances(n, count, seed=0, mixing=0.3):
    """Covariances of two times n samples, of sources that are mixed a little differently."""
    rng = np.random.default_rng(seed)
    sources = rng.standard_normal((count, n, 2 * n))
    mixed = (rng.standard_normal((n, n)) + mixing * rng.standard_normal((count, n, n))) @ sources
    return mixed @ np.swapaxes(mixed, -1, -2) / (2 * n)


def power(P, t):
    return np.real(sl.fractional_matrix_power(P, t))


def exponential(P):
    return sl.expm(P)


def logarithm(P):
    return np.real(sl.logm(P))


def symmetric(v):
    return 0.5 * (v + np.swapaxes(v, -1, -2))


class TestAgainstPyriemann:
    @pytest.mark.parametrize("n", [4, 8, 16])
    def test_affine_invariant_mean(self, n):
        x, w = covariances(n, 30), np.linspace(0.5, 2.0, 30)
        for weights in (None, w):
            ours = frechet(SPD(n), x, weights, tol=1e-12)
            theirs = mean_riemann(x, tol=1e-12, sample_weight=weights, maxiter=200)
            assert ours.converged
            assert ours.iterations <= 14
            assert SPD(n).dist(ours.mean, theirs) < 1e-8
            np.testing.assert_allclose(ours.mean, theirs, rtol=0, atol=1e-8 * abs(theirs).max())

    @pytest.mark.parametrize("metric", METRICS)
    def test_means_and_distances(self, metric):
        x = covariances(5, 20, mixing=0.05)
        mean, distance = {
            "log_euclidean": (mean_logeuclid, distance_logeuclid),
            "log_cholesky": (mean_logchol, distance_logchol),
        }.get(metric, (functools.partial(mean_riemann, tol=1e-12), distance_riemann))
        M, w = SPD(5, metric), np.linspace(0.1, 1.0, 20)
        np.testing.assert_allclose(M.dist(x[:10], x[10:]), distance(x[:10], x[10:]), rtol=1e-11)
        expected = mean(x, sample_weight=w)
        np.testing.assert_allclose(frechet(M, x, w).mean, expected, atol=1e-10 * abs(x).max())

    @pytest.mark.parametrize("metric", METRICS)
    def test_exp_and_log(self, metric):
        x = covariances(4, 2)
        M, P, Q = SPD(4, metric), *x
        log, exp = {
            "log_euclidean": (log_map_logeuclid, exp_map_logeuclid),
            "log_cholesky": (log_map_logchol, exp_map_logchol),
        }.get(
            metric,
            (
                functools.partial(log_map_riemann, C12=True),
                functools.partial(exp_map_riemann, Cm12=True),
            ),
        )
        v = log(Q, P)
        np.testing.assert_allclose(M.log(P, Q), v, atol=1e-10 * abs(v).max())
        np.testing.assert_allclose(M.exp(P, 0.3 * v), exp(0.3 * v, P), atol=1e-10 * abs(x).max())

    @pytest.mark.parametrize("metric", ["affine_invariant", "cholesky_affine_invariant"])
    def test_transport(self, metric):
        P, Q, S = covariances(4, 3)
        M, v = SPD(4, metric), symmetric(S)
        expected = transport_riemann(v, P, Q)
        np.testing.assert_allclose(M.transport(P, Q, v), expected, rtol=0, atol=1e-9)


def psi(P, theta):
    L = np.linalg.cholesky(power(P, theta))
    return np.tril(L, -1) + np.diag(np.log(np.diag(L)))


def psi_inverse(C, theta):
    L = np.tril(C, -1) + np.diag(np.exp(np.diag(C)))
    return power(L @ L.T, 1.0 / theta)


class TestPublishedLayers:
    """SPDBN and LieBN, as their papers write them, are this library's ``normalize``."""

    x, bias = covariances(3, 12), covariances(3, 2, seed=5)[0]

    def check(self, M, layer):
        """Compare with the formula of a layer: (mean, factor) to its outputs, and the variance."""
        stats = batch_stats(M, self.x)
        expected, var = layer(stats.mean, 0.7 / np.sqrt(stats.var + 1e-3))
        np.testing.assert_allclose(stats.var, var, rtol=1e-10)
        found = normalize(M, self.x, stats, self.bias, 0.7, 1e-3)
        np.testing.assert_allclose(found, np.stack(expected), atol=1e-9)

    def test_spdbn(self):
        def layer(mean, t):
            B, back = power(self.bias, 0.5), power(mean, -0.5)
            var = np.mean(distance_riemann(self.x, mean) ** 2)
            return [B @ power(back @ P @ back, t) @ B for P in self.x], var

        self.check(SPD(3), layer)

    @pytest.mark.parametrize("theta", [1.0, 0.5, -0.5])
    def test_liebn_affine_invariant(self, theta):
        def layer(mean, t):
            L = np.linalg.cholesky(power(self.bias, theta))
            back = np.linalg.inv(np.linalg.cholesky(power(mean, theta)))
            powers = np.stack([power(P, theta) for P in self.x])
            inner = [L @ power(back @ P @ back.T, t) @ L.T for P in powers]
            var = np.mean(distance_riemann(powers, power(mean, theta)) ** 2) / theta**2
            return [power(symmetric(P), 1.0 / theta) for P in inner], var

        self.check(SPD(3, "cholesky_affine_invariant", theta), layer)

    @pytest.mark.parametrize("theta", [1.0, 0.5])  # the deformation changes nothing in the first
    @pytest.mark.parametrize("metric", ["log_euclidean", "log_cholesky"])
    def test_liebn_of_flat_metrics(self, metric, theta):
        there, back, unit = logarithm, exponential, 1.0
        if metric == "log_cholesky":
            there, back = (functools.partial(f, theta=theta) for f in (psi, psi_inverse))
            unit = theta

        def layer(mean, t):
            centred = np.stack([there(P) for P in self.x])
            centred = centred - centred.mean(0)
            var = np.mean(np.sum(centred**2, axis=(1, 2))) / unit**2
            return [back(t * c + there(self.bias)) for c in centred], var

        self.check(SPD(3, metric, theta), layer)

    @pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.5), (0.3, -0.09)])
    @pytest.mark.parametrize("theta", [1.0, -0.5])
    def test_liebn_of_other_weights(self, theta, alpha, beta):
        """Its variance is α‖log‖² + β logdet² over θ²; its layer is otherwise the same."""

        def layer(mean, t):
            L = np.linalg.cholesky(power(self.bias, theta))
            back = np.linalg.inv(np.linalg.cholesky(power(mean, theta)))
            centred = [back @ power(P, theta) @ back.T for P in self.x]
            logs = [sl.logm(P) for P in centred]
            squares = [alpha * np.sum(X * X) + beta * np.trace(X) ** 2 for X in logs]
            inner = [L @ power(symmetric(P), t) @ L.T for P in centred]
            outputs = [power(symmetric(P), 1.0 / theta) for P in inner]
            return outputs, np.mean(squares) / theta**2

        M = SPD(3, "cholesky_affine_invariant", theta, alpha, beta)
        self.check(M, layer)


WEIGHTED = [
    SPD(4, metric, theta, alpha, beta)
    for metric in METRICS
    for theta, alpha, beta in [(1.0, 2.5, 0.0), (0.5, 1.0, 3.0), (-2.0, 0.5, -0.12)]
    if metric != "log_cholesky"
]
"""With weights alpha of the traceless part, and alpha + 4 beta of the trace."""


class TestWeights:
    @pytest.mark.parametrize("M", WEIGHTED, ids=repr)
    def test_distances(self, M):
        P, Q = SPD(4).random(2, rng=3)
        X = logarithm(P) - logarithm(Q)
        if M.metric != "log_euclidean":
            X = sl.logm(np.linalg.solve(power(P, M.theta), power(Q, M.theta))) / M.theta
        expected = M.alpha * np.trace(X @ X) + M.beta * np.trace(X) ** 2
        np.testing.assert_allclose(M.dist(P, Q) ** 2, expected, rtol=1e-9)
        np.testing.assert_allclose(np.sum(M.relative_normal(P, Q) ** 2), expected, rtol=1e-9)

    @pytest.mark.parametrize("M", WEIGHTED, ids=repr)
    def test_the_mean_does_not_change(self, M):
        x, w = M.random(20, rng=0), np.linspace(0.1, 1.0, 20)
        found, plain = frechet(M, x, w), frechet(SPD(4, M.metric, M.theta), x, w)
        assert found.converged
        assert SPD(4).dist(found.mean, plain.mean) < 1e-12
        squares = M.dist(found.mean, x) ** 2
        np.testing.assert_allclose(found.variance, np.average(squares, weights=w), rtol=1e-12)

    @pytest.mark.parametrize("M", WEIGHTED, ids=repr)
    def test_the_translations_do_not_change(self, M):
        x, y = M.random(2, rng=0)
        plain = SPD(4, M.metric, M.theta)
        for name in ("add", "gyration"):
            points = (x, y, y)[: 2 + (name == "gyration")]
            found, expected = (getattr(S, name)(*points) for S in (M, plain))
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)

    @pytest.mark.parametrize("M", WEIGHTED, ids=repr)
    def test_hessian_by_differences(self, M):
        x, v = M.random(6, rng=0, spread=1.5), np.random.default_rng(1).standard_normal(M.dim)
        hessian = M.inside.hessian(M.inside.to_normal(M.to_inside(x)), np.full(6, 1 / 6))
        ends = [0.5 * np.mean(M.dist(M.from_normal(h * v), x) ** 2) for h in (-1e-3, 0.0, 1e-3)]
        difference = (ends[0] - 2 * ends[1] + ends[2]) / 1e-6
        np.testing.assert_allclose(v @ hessian.apply(v[:, None])[:, 0], difference, rtol=1e-5)

    @pytest.mark.parametrize("metric", METRICS)
    def test_arguments(self, metric):
        for alpha, beta in [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.25), (1.0, -1.0)]:
            with pytest.raises(ValueError, match=r"alpha > 0 and alpha \+ 4 \* beta > 0, got"):
                SPD(4, metric, alpha=alpha, beta=beta)
        with pytest.raises(ValueError, match="beta of SPD must be a finite number"):
            SPD(4, metric, beta=np.inf)

    def test_log_cholesky_has_no_weights(self):
        for weights in ({"alpha": 2.0}, {"beta": 1.0}):
            with pytest.raises(ValueError, match="log_cholesky metric of SPD has no alpha"):
                SPD(4, "log_cholesky", **weights)

    @pytest.mark.parametrize("metric", ["affine_invariant", "log_euclidean"])
    def test_estimator_and_file(self, metric, tmp_path):
        x = covariances(3, 20, mixing=0.05)
        bn = GyroBN("spd", metric=metric, alpha=2.0, beta=-0.5).fit(x)
        assert bn.manifold_ == SPD(3, metric, alpha=2.0, beta=-0.5)
        np.testing.assert_allclose(bn.inverse_transform(bn.transform(x)), x, rtol=1e-9)
        bn.save(tmp_path / "model.npz")
        loaded = GyroBN.load(tmp_path / "model.npz")
        assert loaded.manifold_ == bn.manifold_
        np.testing.assert_array_equal(loaded.transform(x), bn.transform(x))

    def test_geometry_of_an_older_file(self):
        older = {"name": "spd", "n": 3, "metric": "affine_invariant", "theta": 0.5}
        assert geometry_from_json(older) == SPD(3, theta=0.5)


class TestSizes:
    @pytest.mark.parametrize("metric", METRICS)
    def test_ill_conditioned(self, metric):
        M = SPD(5, metric)
        scales = np.geomspace(1.0, 1e-4, 5)  # condition 1e8
        x = scales[:, None] * covariances(5, 30, mixing=0.05) * scales
        stats = frechet(M, x)
        assert stats.converged
        y = normalize(M, x, Stats(stats.mean, stats.variance), eps=0.0)
        after = frechet(M, y)
        assert M.norm(after.mean) < 1e-6
        assert abs(after.variance - 1.0) < 1e-6

    @pytest.mark.parametrize("n", [3, 12])
    def test_equal_matrices_have_converged(self, n):
        """Rounding leaves a residual, of size ulp times condition, that no step can lower."""
        Q = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]
        for condition in (1.0, 1e4, 1e8):
            P = symmetric((Q * np.geomspace(1.0, 1.0 / condition, n)) @ Q.T)
            result = frechet(SPD(n), np.broadcast_to(P, (20, n, n)))
            assert result.converged
            assert result.iterations <= 4

    @pytest.mark.parametrize("metric", ["affine_invariant", "cholesky_affine_invariant"])
    def test_matrices_that_differ_by_rounding_have_converged(self, metric):
        """No residual is small against their spread, which is a rounding error itself."""
        M = SPD(4, metric)
        for seed in (4, 29, 44, 264, 384):
            rng = np.random.default_rng(seed)
            P = M.random(rng=rng, spread=(0.3, 1.0)[seed % 4])
            errors = symmetric(2**-52 * rng.standard_normal((200, 4, 4)))
            result = frechet(M, P * (1.0 + errors))
            assert result.converged
            assert result.iterations <= 8
            assert M.dist(result.mean, P) < 64 * 2**-52


class TestTangentVectors:
    @spaces
    def test_push_is_the_differential_of_the_translation(self, M):
        x, c, h = M.random(5, rng=1), np.random.default_rng(2).standard_normal((5, M.dim)), 1e-5
        ends = [M.add(x, M.from_normal(sign * h * c)) for sign in (1, -1)]
        np.testing.assert_allclose(M.push(x, c), (ends[0] - ends[1]) / (2 * h), atol=1e-7)
        np.testing.assert_allclose(M.pull(x, M.push(x, c)), c, atol=1e-10)

    @spaces
    def test_differential_of_the_map_inside(self, M):
        x, h = M.random(5, rng=1), 1e-5
        v = symmetric(np.random.default_rng(2).standard_normal((5, *M.point_shape)))
        slope = (M.to_inside(x + h * v) - M.to_inside(x - h * v)) / (2 * h)
        found = M.tangent_to_inside(x, v)
        np.testing.assert_allclose(found, slope, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(M.tangent_from_inside(x, found), v, atol=1e-10)

    @spaces
    def test_metric_is_that_of_the_distance(self, M):
        x = M.random(5, rng=1)
        v = 1e-4 * symmetric(np.random.default_rng(2).standard_normal((5, *M.point_shape)))
        ends = M.dist(x - v, x + v)
        np.testing.assert_allclose(np.sqrt(M.inner(x, v, v)), 0.5 * ends, rtol=1e-6)

    def test_the_group_is_one(self):
        M = SPD(3, "cholesky_affine_invariant")
        x, y, z = (M.random(4, rng=seed) for seed in (1, 2, 3))
        np.testing.assert_allclose(M.add(x, M.add(y, z)), M.add(M.add(x, y), z), atol=1e-12)
        assert M.reductive
        assert not M.gyrocommutative
        assert not M.gyrovector
        assert abs(M.add(x, y) - M.add(y, x)).max() > 0.1


def gradient(library, f, x):
    """Gradient of f, a function of arrays, symmetrised."""
    if library.name == "torch":
        t = library.array(x).requires_grad_(True)
        f(t).backward()
        return symmetric(host(t.grad))
    return symmetric(host(jax.jit(jax.grad(f))(library.array(x))))


@pytest.mark.parametrize(
    ("M", "library"),
    [
        (SPD(8), TORCH),
        (SPD(16), TORCH),
        (SPD(7), JAX),
        (SPD(2, "log_cholesky", 0.5), JAX),
        (SPD(4, theta=0.5, alpha=2.0, beta=-0.4), TORCH),
        (SPD(3, "cholesky_affine_invariant", alpha=0.5, beta=2.0), JAX),
        (SPD(3, "log_euclidean", alpha=0.5, beta=2.0), TORCH),
    ],
    ids=repr,
)
def test_gradients(M, library):
    """Of samples far apart, and of equal ones, against differences of the fourth order."""
    for x in (cloud(M, 5, 3.0 if M.n > 2 else 1.0, np.zeros(())), np.stack(4 * [np.eye(M.n)])):
        rng = np.random.default_rng(7)
        target, v, bias = *rng.standard_normal((2, *x.shape)), M.random(rng=8)
        v = symmetric(v) * np.linalg.norm(x, axis=(1, 2))[:, None, None]
        v /= np.linalg.norm(v)

        def loss(t, bias=bias, target=target):
            like = library if not isinstance(t, np.ndarray) else NUMPY
            y = normalize(M, t, batch_stats(M, t), like.array(bias), 0.8, 1e-2)
            return (y * like.array(target)).sum()

        slope = gradient(library, loss, x)
        a, b, c, d = (loss(x + h * v) for h in (1e-3, -1e-3, 2e-3, -2e-3))
        difference = (8 * (a - b) - (c - d)) / (12 * 1e-3)
        assert abs(np.sum(slope * v) - difference) <= 1e-6 * np.linalg.norm(slope)


@AUTODIFF
def test_gradients_with_constant_statistics(library):
    """As in evaluation: the factor is an array that no gradient is asked of."""
    M = SPD(3)
    x = cloud(M, 6, 1.0, np.zeros(()))
    mean, var = batch_stats(M, x)
    stats = Stats(library.array(mean), library.array(var))
    slope = gradient(library, lambda t: (normalize(M, t, stats) ** 2).sum(), x)
    v = symmetric(np.random.default_rng(3).standard_normal(x.shape))
    ends = [np.sum(normalize(M, x + h * v, Stats(mean, var)) ** 2) for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(np.sum(slope * v), (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


class TestBadInput:
    bad = np.stack(
        [
            np.eye(3),
            np.diag([1.0, 2.0, -0.5]),  # indefinite
            np.ones((3, 3)),  # singular
            np.zeros((3, 3)),
            -np.eye(3),
            np.eye(3) + np.triu(np.full((3, 3), 0.1), 1),  # not symmetric
            np.full((3, 3), np.nan),
            np.diag([1.0, 1e-12, 1e-4]),  # ill-conditioned, and good
        ]
    )

    @pytest.mark.parametrize("metric", METRICS)
    def test_violation_and_projection(self, lib, metric):
        M, x = SPD(3, metric), lib.array(self.bad)
        good = [True, False, False, False, False, False, False, lib.double]
        violation = host(M.violation(x))
        np.testing.assert_array_equal(host(M.contains(x)).astype(bool), good)
        assert violation[0] == 0
        assert np.isinf(violation[6])
        for scale in (1e-26, 1e20):
            np.testing.assert_allclose(host(M.violation(scale * x)), violation, rtol=1e-3)
        y = M.project(x)
        assert np.isnan(host(y)[6]).all()
        finite = [0, 1, 2, 3, 4, 5, 7]
        assert host(M.contains(y))[finite].all()
        assert_close(y[0, ...], x[0, ...], 0.0)
        np.testing.assert_array_equal(host(y)[3], np.eye(3))
        if lib.double:
            np.testing.assert_array_equal(host(y)[7], self.bad[7])
        np.testing.assert_allclose(np.diag(host(y)[1]), [1, 2, 2 * lib.eps**0.5], rtol=1e-2)

    @pytest.mark.parametrize("metric", ["log_cholesky", "cholesky_affine_invariant"])
    def test_indefinite_matrices_are_named(self, metric):
        M = SPD(3, metric)
        for library in (NUMPY, TORCH):
            x = library.array(self.bad[[0, 0, 1]])
            with pytest.raises(ValueError, match=r"matrix 2 of the batch .* -0\.5; project it"):
                M.add(x, x)
            with pytest.raises(ValueError, match="the matrix is not positive definite"):
                M.neg(x[2])
        y = M.neg(JAX.array(self.bad[[0, 1]]))
        assert np.isfinite(host(y)[0]).all()
        assert np.isnan(host(y)[1]).any()

    def test_arguments(self):
        with pytest.raises(ValueError, match=r"metric of SPD .*'log_cholesky'.* got 'log'"):
            SPD(3, "log")
        for theta in (0.0, np.nan, np.inf, "a"):
            with pytest.raises(ValueError, match="theta of SPD must be a finite number"):
                SPD(3, theta=theta)
        with pytest.raises(ValueError, match="positive integer"):
            SPD(0)
        with pytest.raises(ValueError, match="square"):
            SPD.for_shape((5, 3, 4))
        assert SPD.for_shape((5, 3, 3)) == SPD(3)
