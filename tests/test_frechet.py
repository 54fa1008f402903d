"""The Fréchet mean: convergence, weights, axes, channels, derivatives, warnings."""

import warnings

import jax
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES, cloud, host

from gyrobn import (
    Euclidean,
    FrechetWarning,
    Grassmannian,
    Hyperboloid,
    Klein,
    PoincareBall,
    ProjectedHypersphere,
    SpecialOrthogonal,
    Sphere,
    Stereographic,
    frechet,
    frechet_mean,
    frechet_variance,
)
from gyrobn.statistics import frechet as loop


def unit(seed, n):
    v = np.random.default_rng(seed).standard_normal(n)
    return v / np.linalg.norm(v)


def gradient(M, x, mean, weights=None):
    """Length of the mean of the logarithms at ``mean``, by the public operators."""
    v = np.average(M.log(mean, x), axis=0, weights=weights)
    return float(np.sqrt(M.inner(mean, v, v)))


class TestConvergence:
    @pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
    @pytest.mark.parametrize("n", [2, 8, 128])
    @pytest.mark.parametrize("cls", [PoincareBall, Hyperboloid, Klein])
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_hyperbolic(self, cls, n, spread, dtype):
        M = cls(n)
        x = cloud(M, 40, spread, np.zeros((), dtype))
        result = frechet(M, x)
        assert bool(result.converged)
        assert int(result.iterations) <= 12
        assert np.isfinite(result.mean).all()
        if dtype == "float64":
            assert float(result.residual) <= 1e-11
            assert gradient(M, x, result.mean) <= 1e-11
        else:
            assert float(result.residual) <= 1e-4 * spread

    @pytest.mark.parametrize("n", [2, 8, 128])
    @pytest.mark.parametrize("cls", [Sphere, ProjectedHypersphere])
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_a_hemisphere(self, cls, n, dtype):
        M = cls(n)
        rng = np.random.default_rng(0)
        direction = rng.standard_normal((200, n))
        direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
        c = direction * rng.uniform(0.0, 1.45, (200, 1))  # a cap; the mean is not its centre
        x = M.from_normal(c.astype(dtype))
        result = frechet(M, x)  # warnings are errors here: it must be known to be unique
        assert bool(result.converged)
        assert int(result.iterations) <= 12
        assert float(result.residual) <= (1e-11 if dtype == "float64" else 1e-6)

    @pytest.mark.parametrize(
        ("cls", "far", "spread"), [(PoincareBall, 12.0, 4.0), (Hyperboloid, 11.0, 6.0)]
    )
    def test_far_out_in_float32_no_step_is_taken_for_rounding(self, cls, far, spread):
        """On the way the mean is where floats are coarse; steps fail there, or hardly help."""
        M = cls(3)
        for seed in range(16):
            rng = np.random.default_rng(seed)
            centre = M.from_normal(far * unit(seed, 3))
            c = spread / 3**0.5 * rng.standard_normal((10, 3))
            x = M.project(M.add(centre, M.from_normal(c)).astype("float32"))
            result = frechet(M, x)
            expected = frechet(M, M.project(x.astype("float64"))).mean
            assert result.converged
            assert M.dist(M.project(result.mean.astype("float64")), expected) < 0.05 * spread

    def test_data_along_a_line(self):
        """Where a scalar in place of the Hessian would be slow: see DENSE for both branches."""
        for n in (2, 100, 200):
            M = Hyperboloid(n)
            c = np.zeros((50, n))
            c[:, 0] = np.random.default_rng(0).exponential(3.0, 50)
            result = frechet(M, M.from_normal(c))
            assert int(result.iterations) <= 12
            expected = M.from_normal(c.mean(0))  # on a geodesic the mean is the plain one
            assert float(M.dist(result.mean, expected)) < 1e-12

    def test_two_points_have_a_midpoint(self, eager):
        lib = eager
        for M in GEOMETRIES:
            x = M.random(2, rng=1, like=lib.like, spread=0.6)
            middle = M.geodesic(x[0, ...], x[1, ...], 0.5)
            mean = frechet_mean(M, x)
            # with θ = ½ distances, and their rounding errors, are twice as large
            assert float(host(M.dist(mean, middle))) < 50 * lib.eps / getattr(M, "theta", 1.0)
            total = host(frechet_variance(M, x)).sum()
            expected = float(host(M.dist(x[0, ...], x[1, ...]))) ** 2 / 4
            np.testing.assert_allclose(total, expected, atol=50 * lib.eps)

    def test_order_does_not_matter(self):
        for M in GEOMETRIES:
            x = cloud(M, 300, min(0.5, 0.3 * M.convexity_radius), np.zeros(()))
            shuffled = np.random.default_rng(1).permutation(x)
            assert float(M.dist(frechet_mean(M, x), frechet_mean(M, shuffled))) <= 1e-12

    def test_it_is_the_minimum(self):
        for M in GEOMETRIES:
            x = cloud(M, 30, 0.5, np.zeros(()))
            result = frechet(M, x)
            for seed in range(5):
                other = M.add(result.mean, M.random(rng=seed, spread=1e-2))
                assert frechet_variance(M, x, other).sum() > result.variance.sum()

    def test_a_start_far_away_also_ends_there(self):
        for M in (PoincareBall(3), Hyperboloid(3), Klein(3)):
            x = cloud(M, 30, 2.0, np.zeros(()))
            far = M.random(rng=9, spread=6.0)
            expected = frechet(M, x)
            found = frechet(M, x, init=far)
            assert bool(found.converged)
            assert float(M.dist(found.mean, expected.mean)) < 1e-12

    def test_from_the_far_side_of_a_sphere(self):
        """Where the variance is not convex, and largest at a point where the gradient vanishes."""
        for M in (Sphere(2), Sphere(3), ProjectedHypersphere(2)):
            for seed in range(20):
                x = M.random(20, rng=seed, spread=0.5)
                expected = frechet(M, x)
                opposite = M.exp(expected.mean, M.push(expected.mean, 3.0 * unit(seed, M.dim)))
                found = frechet(M, x, init=opposite)
                assert bool(found.converged)
                assert float(M.dist(found.mean, expected.mean)) < 1e-12

    def test_steps(self):
        M = PoincareBall(3)
        x = cloud(M, 40, 1.5, np.zeros(()))
        errors = []
        for steps in range(4):
            result = frechet(M, x, steps=steps)
            errors.append(float(M.dist(result.mean, frechet_mean(M, x))))
            assert int(result.iterations) == steps + 1
        assert errors[0] > 1e-2
        assert errors[1] < 0.2 * errors[0]
        assert errors[2] < 1e-2 * errors[1]
        assert errors[3] < 1e-8

    @pytest.mark.parametrize("M", [PoincareBall(2), Sphere(2)], ids=repr)
    def test_a_step_that_is_too_long_is_taken_back(self, M, monkeypatch):
        """Four times the way to the mean leads farther from it, and a quarter of that does not."""
        x = cloud(M, 20, 0.7, np.zeros(()))
        expected = frechet_mean(M, x)
        step = loop.newton_step
        monkeypatch.setattr(loop, "newton_step", lambda *given: 4.4 * step(*given))
        result = frechet(M, x)
        assert bool(result.converged)
        assert float(M.dist(result.mean, expected)) < 1e-6


class TestWeightsAndAxes:
    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_weights_equal_repetition(self, M):
        x = cloud(M, 6, 0.5, np.zeros(()))
        counts = np.asarray([1, 0, 3, 2, 1, 4])
        weighted = frechet(M, x, weights=counts.astype(float))
        repeated = frechet(M, np.repeat(x, counts, axis=0))
        assert float(M.dist(weighted.mean, repeated.mean)) < 1e-13
        np.testing.assert_allclose(weighted.variance, repeated.variance, rtol=1e-13)

    def test_axes_and_channels(self, lib):
        # JAX would compile every operation for every shape
        for M in (PoincareBall(3), Sphere(2), Euclidean(2))[: 1 if lib.name == "jax" else 3]:
            x = M.random(5, 3, 4, rng=0, like=lib.like, spread=0.6)
            result = frechet(M, x, axis=(0, 2))
            assert result.mean.shape == (3, *M.point_shape)
            assert result.variance.shape == result.iterations.shape == (3,)
            for channel in range(3):
                xp_flat = host(x[:, channel, ...]).reshape(20, *M.point_shape)
                single = frechet(M, lib.array(xp_flat))
                np.testing.assert_allclose(
                    host(result.mean[channel, ...]), host(single.mean), atol=200 * lib.eps
                )

    def test_negative_axis_and_full_weights(self):
        M = Klein(2)
        x = M.random(4, 5, rng=0)
        w = np.random.default_rng(0).uniform(size=(4, 5))
        whole = frechet(M, x, weights=w, axis=-1)
        for i in range(4):
            one = frechet(M, x[i], weights=w[i])
            np.testing.assert_allclose(whole.mean[i], one.mean, atol=1e-14)

    def test_a_finished_channel_stops(self):
        M = PoincareBall(2)
        easy = np.tile(M.random(rng=1), (50, 1))
        hard = cloud(M, 50, 4.0, np.zeros(()), offset=3.0)
        result = frechet(M, np.stack([easy, hard], axis=1))
        assert result.iterations[0] < result.iterations[1]
        alone = frechet(M, easy)
        np.testing.assert_allclose(result.mean[0], alone.mean, atol=1e-15)

    def test_a_finished_channel_stays(self):
        """Also where it has not all digits, and another channel goes on."""
        M = PoincareBall(2)
        easy, hard = (cloud(M, 50, spread, np.zeros(()), offset=3.0) for spread in (0.5, 4.0))
        result = frechet(M, np.stack([easy, hard], axis=1), tol=0.05)
        assert result.iterations[0] < result.iterations[1]
        alone = frechet(M, easy, tol=0.05)
        assert float(alone.residual) > 1e-6
        np.testing.assert_allclose(result.mean[0], alone.mean, atol=1e-15)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            (np.ones(3), r"shape of the reduced axes, \(4,\), .* got \(3,\)"),
            (2.0, r"shape of the reduced axes, \(4,\), .* got \(\)"),
            (np.asarray([1.0, -1.0, 1.0, 1.0]), "finite and non-negative.*got -1.0 at index 1$"),
            (np.asarray([1.0, np.nan, 1.0, 1.0]), "finite and non-negative.*got nan at index 1$"),
            (np.zeros(4), "positive sum .*got a sum of 0.0 in float64$"),
        ],
    )
    def test_bad_weights(self, weights, message):
        with pytest.raises(ValueError, match=message):
            frechet(Euclidean(2), np.zeros((4, 2)), weights=weights)

    def test_bad_weights_of_a_channel(self):
        x, weights = np.zeros((4, 3, 2)), np.ones((4, 3))
        for value, message in ((0.0, "a sum of 0.0 in float64"), (-1.0, "-1.0 at index 0")):
            weights[:, 1] = value
            with pytest.raises(ValueError, match=f"got {message} of channel 1$"):
                frechet(Euclidean(2), x, weights=weights)

    @pytest.mark.parametrize("axis", [1, -2, (0, 0), ()])
    def test_bad_axis(self, axis):
        with pytest.raises(ValueError, match="axis"):
            frechet(Euclidean(2), np.zeros((4, 2)), axis=axis)

    def test_bad_options(self):
        x = np.zeros((4, 2))
        with pytest.raises(ValueError, match="max_iter"):
            frechet(Euclidean(2), x, max_iter=0)
        with pytest.raises(ValueError, match=r"init must have shape \(2,\), got \(3,\)"):
            frechet(Euclidean(2), x, init=np.zeros(3))


class TestWarnings:
    def test_not_converged(self):
        M = PoincareBall(2)
        x = cloud(M, 30, 3.0, np.zeros(()))
        with pytest.warns(FrechetWarning, match=r"did not converge in 2 iterations .*max_iter"):
            result = frechet(M, x, max_iter=2)
        assert not bool(result.converged)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frechet(M, x, steps=1)  # a fixed number of steps was asked for: nothing to warn of

    def test_more_than_a_hemisphere(self):
        M = Sphere(2)
        x = M.random(200, rng=0, spread=2.0)
        with pytest.warns(FrechetWarning) as caught:
            frechet(M, x)
        assert any("within which a mean is sure to be unique" in str(w.message) for w in caught)

    @pytest.mark.parametrize(
        "M", [Sphere(1), Sphere(2), Sphere(8), Grassmannian(6, 2), SpecialOrthogonal(5)], ids=repr
    )
    @pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
    def test_samples_all_over_the_space(self, M):
        """The mean is found in a few steps, since H is positive even if a bound of it is not."""
        rng = np.random.default_rng(0)
        found = frechet(M, M.project(rng.standard_normal((20, 30, *M.point_shape))))
        assert found.converged.all()
        assert np.median(found.iterations) <= 8

    def test_mean_opposite_to_the_identity(self):
        """No translation leads to -e, but the mean can come as close as rounding allows."""
        M = Sphere(2)
        c = np.asarray([[0.3, 0.0], [-0.3, 0.0], [0.0, 0.3], [0.0, -0.3]])
        x = M.from_normal(c) * np.asarray([-1.0, 1.0, 1.0])
        result = frechet(M, x)
        assert float(M.dist(result.mean, np.asarray([-1.0, 0.0, 0.0]))) < 1e-7
        np.testing.assert_allclose(result.variance, 0.09, rtol=1e-7)

    def test_antipodal_points(self):
        M = Sphere(2)
        x = np.asarray([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
        with pytest.warns(FrechetWarning):
            result = frechet(M, x)
        assert np.isfinite(result.mean).all()
        np.testing.assert_allclose(result.variance, (np.pi / 2) ** 2, rtol=1e-12)

    def test_nan_is_not_converged(self):
        x = PoincareBall(2).random(5, rng=0).copy()
        x[3, 1] = np.nan
        with pytest.warns(FrechetWarning, match="did not converge"):
            result = frechet(PoincareBall(2), x)
        assert not bool(result.converged)
        assert np.isnan(result.mean).all()
        assert np.isnan(result.variance)


@pytest.mark.parametrize(
    "M",
    [PoincareBall(3, -0.7), Klein(3), Hyperboloid(2), Sphere(2), Stereographic(2, 0.3)],
    ids=repr,
)
@pytest.mark.parametrize("data", ["generic", "with the identity", "collapsed"])
class TestDerivatives:
    """Of mean and variance by the curvature; test_gradients.py has the others."""

    def samples(self, M, data):
        x = cloud(M, 5, 0.8, np.zeros(())).copy()
        if data == "with the identity":
            x[2] = M.origin(x)
        if data == "collapsed":
            x[:] = x[0]
        return x

    def objective(self, M, x, w, curvature):
        """A smooth number made of mean and variance."""
        result = frechet(type(M)(M.n, curvature), x, weights=w)
        mean, variance = result.mean, result.variance
        return (mean * mean).sum() * 1.3 + (mean[0] * mean[1]) + 0.7 * variance

    def test_by_curvature(self, M, data):
        x, w, h = self.samples(M, data), np.ones(5), 1e-5
        if M.point_shape != (M.dim,):
            return  # points of the radius model move when the curvature changes
        up, down = (self.objective(M, x, w, M.curvature + s) for s in (h, -h))
        expected = float(up - down) / (2 * h)
        xj = jax.numpy.asarray(x)
        slope = jax.grad(lambda K: self.objective(M, xj, jax.numpy.ones(5), K))(M.curvature)
        assert abs(float(slope) - expected) < 1e-6 * (1 + abs(expected))
        K = torch.tensor(M.curvature, dtype=torch.float64, requires_grad=True)
        self.objective(M, torch.as_tensor(x), torch.ones(5, dtype=torch.float64), K).backward()
        assert abs(float(K.grad) - expected) < 1e-6 * (1 + abs(expected))


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_bounds_of_the_hessian(M, spread):
    """A shift follows from the lower bound, and nothing else would show a wrong one."""
    space = M.inside
    spread = min(spread, 0.7 * M.convexity_radius)
    c = np.random.default_rng(0).standard_normal((9, space.dim)) * (spread / space.dim**0.5)
    hessian = space.hessian(c, np.full(9, 1 / 9))
    matrix = hessian.apply(np.eye(space.dim))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    values = np.linalg.eigvalsh(matrix)
    lowest = 1.0 if hessian.lowest is None else hessian.lowest()
    assert lowest <= values[0] + 1e-12
