"""Singular and edge cases, each with a stated outcome; docs/edge_cases.md lists them."""

import warnings

import numpy as np
import pytest
from conftest import GEOMETRIES, host

from gyrobn import (
    Correlation,
    Euclidean,
    FixedRankSPD,
    Hyperboloid,
    Klein,
    PoincareBall,
    ProjectedHypersphere,
    Sphere,
    Stereographic,
    batch_stats,
    convert,
    frechet,
    normalize,
)

e = np.asarray([1.0, 0.0, 0.0])


class TestSphere:
    """The paper's singular cases: sums and multiples that arrive at -e are right."""

    M = Sphere(2)

    def test_sums_and_multiples_arrive_opposite_to_the_identity(self):
        x = self.M.from_normal(np.asarray([1.2, 0.0]))
        y = x * np.asarray([-1.0, 1.0, 1.0])  # the same meridian, mirrored across the equator
        np.testing.assert_allclose(self.M.add(x, y), -e, atol=1e-15)
        x = self.M.from_normal(np.asarray([np.pi / 3, 0.0]))
        np.testing.assert_allclose(self.M.scale(3.0, x), -e, atol=1e-15)

    def test_the_opposite_point_has_no_direction_but_a_distance(self):
        assert float(self.M.norm(-e)) == pytest.approx(np.pi, abs=1e-15)
        assert float(self.M.dist(e, -e)) == pytest.approx(np.pi, abs=1e-15)
        assert np.isnan(self.M.to_normal(-e)).all()
        assert np.isnan(self.M.log(e, -e)).all()
        assert np.isnan(self.M.scale(0.5, -e)).all()
        with np.errstate(all="ignore"):  # no translation leads there
            assert np.isnan(self.M.add(-e, self.M.random(rng=0))).any()

    def test_antipodal_points(self, lib):
        x = lib.array(self.M.random(50, rng=1))
        d = host(self.M.dist(x, -x))
        np.testing.assert_allclose(d, np.pi, atol=4 * lib.eps)

    def test_close_to_antipodal(self):
        x = self.M.random(20, rng=1)
        near = -self.M.exp(x, 1e-7 * self.M.log(x, self.M.random(20, rng=2, spread=0.5)))
        off = self.M.dist(-x, near)
        np.testing.assert_allclose(self.M.dist(x, near), np.pi - off, atol=1e-15)

    def test_standardize_keeps_points_on_the_sphere(self):
        """Close to the point opposite to the mean the angle must come from the sine."""
        for delta in (1e-2, 1e-5, 1e-7):
            x = self.M.from_normal(np.asarray([np.pi - delta, 0.0]))
            y = self.M.standardize(x, e, 0.5)
            assert float(self.M.violation(y)) < 1e-15
            assert float(self.M.norm(y)) == pytest.approx(0.5 * (np.pi - delta), abs=1e-14)

    def test_a_mean_a_rounding_error_beside_the_opposite_point(self):
        """Its time is off by an ulp, from which 1 + t cannot be told."""
        rng = np.random.default_rng(0)
        for _ in range(50):
            c = 0.3 * rng.standard_normal((6, 2))
            angle = np.linalg.norm(c, axis=-1, keepdims=True)
            s = np.sin(angle) * c / angle
            x = np.concatenate([np.hstack([-np.cos(angle), s]), np.hstack([-np.cos(angle), -s])])
            found = frechet(self.M, x)
            assert found.converged
            assert self.M.dist(found.mean, -e) < 1e-15
            assert abs(found.variance - np.mean(angle**2)) < 1e-12

    def test_a_batch_opposite_to_the_identity(self):
        x = self.M.random(30, rng=0, spread=0.4) * np.asarray([-1.0, 1.0, 1.0])
        y = normalize(self.M, x, batch_stats(self.M, x), scale=0.3)
        mean, var = batch_stats(self.M, y)
        assert float(self.M.dist(mean, e)) < 1e-10
        assert float(var) == pytest.approx(0.09, rel=1e-3)


class TestProjectedHypersphere:
    M = ProjectedHypersphere(2)

    def test_infinity(self):
        """u = v/(K‖v‖²): the sum is the point at infinity."""
        v = np.asarray([0.5, 0.0])
        total = self.M.add(v / 0.25, v)
        assert np.isinf(total).all() or np.linalg.norm(total) > 1e15
        assert not np.isnan(total).any()
        far = self.M.scale(2.0, np.asarray([1.0, 0.0]))  # twice a quarter turn
        assert np.isinf(far).all() or np.linalg.norm(far) > 1e15

        assert np.isinf(convert(Sphere(2), self.M, -e)).all()
        assert not self.M.contains(np.asarray([np.inf, 0.0]))

    def test_far_out_is_fine(self):
        x = np.asarray([[1e6, 0.0], [0.0, -1e6]])
        assert float(self.M.dist(x[0], x[1])) == pytest.approx(2e-6 * 2**0.5, rel=1e-6)


class TestBoundary:
    @pytest.mark.parametrize(
        "M", [PoincareBall(2), Klein(2, -4.0), Stereographic(2, -0.25)], ids=repr
    )
    def test_on_and_outside(self, M, lib):
        radius = abs(M.curvature) ** -0.5
        directions = np.asarray([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]]) * radius
        x = lib.array(directions * np.asarray([[1.0], [0.5], [3.0]]))
        off = host(M.violation(x))
        assert off[1] == 0
        assert 0 < off[0] < 1e-6
        assert off[2] == pytest.approx(2.0, rel=1e-6)
        assert host(M.contains(x)).tolist() == [0, 1, 0]
        inside = M.project(x)
        assert host(M.contains(inside)).all()
        np.testing.assert_array_equal(host(inside)[1], host(x)[1])  # good points stay
        np.testing.assert_array_equal(host(M.project(inside)), host(inside))
        ratio = host(inside) / np.maximum(np.abs(host(x)), 1e-9)
        assert (np.sign(ratio[[0, 2]]) == np.sign(host(x)[[0, 2]])).all()

    @pytest.mark.parametrize("M", [PoincareBall(3), Klein(3), Hyperboloid(3)], ids=repr)
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_results_stay_inside(self, M, dtype):
        """Beyond the largest radius the coordinates resolve, points saturate; they never leave."""
        c = np.random.default_rng(0).standard_normal((100, 3))
        c *= np.geomspace(1.0, 1e4, 100)[:, None]
        x = M.from_normal(c.astype(dtype))
        assert M.contains(x).all()
        y = M.add(x, x[::-1])
        assert np.isfinite(y).all()
        if M.point_shape == (3,):
            assert M.contains(y).all()

    def test_projection_does_not_overflow(self):
        for dtype, huge in (("float32", 1e30), ("float64", 1e200)):
            x = np.asarray([[huge, huge, huge]], dtype=dtype)
            for M in (PoincareBall(3), Klein(3), Sphere(2), Hyperboloid(2)):
                p = M.project(x)
                assert np.isfinite(p).all()
                assert M.contains(p).all()
                assert np.abs(p).max() > 0.5
                assert np.isfinite(M.violation(x)).all()

    def test_off_the_surface(self):
        for M in (Sphere(2), Hyperboloid(2)):
            x = M.random(3, rng=0).copy()
            x[1] *= 1.1
            assert M.contains(x).tolist() == [True, False, True]
            assert float(M.violation(x)[1]) > 0.01
            assert M.contains(M.project(x)).all()
        assert not Hyperboloid(2).contains(np.asarray([-1.0, 0.0, 0.0]))  # the lower sheet
        np.testing.assert_array_equal(Sphere(2).project(np.zeros(3)), e)


class TestBatches:
    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_the_identity(self, M, eager):
        """Among other samples, alone, and scaled."""
        x = host(M.random(20, rng=0, like=eager.like, spread=0.5)).copy()
        x[2] = e = host(M.origin(eager.like))
        y = normalize(M, eager.array(x), batch_stats(M, eager.array(x)))
        assert np.isfinite(host(y)).all()
        if eager.double:
            np.testing.assert_allclose(host(M.scale(3.0, eager.array(e))), e, rtol=0, atol=1e-15)
        x = eager.array(np.stack(20 * [e]))
        result = frechet(M, x)
        # weights of 1/20 add up to one within an ulp, and so does the first guess of the mean
        assert float(host(result.variance).max()) < (3.0 * eager.eps) ** 2
        assert bool(host(result.converged))
        # a mean that is three ulps off, divided by the root of 1e-5; range and core cost digits
        few = 3000 if isinstance(M, FixedRankSPD) else 1000
        assert float(host(M.norm(normalize(M, x, batch_stats(M, x)))).max()) < few * eager.eps

    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_batch_of_one(self, M, eager):
        x = M.random(1, rng=0, like=eager.like, spread=0.5)
        result = frechet(M, x)
        assert float(host(M.dist(result.mean, x)).max()) < 50 * eager.eps
        assert float(host(result.variance).max()) < (50 * eager.eps) ** 2
        y = normalize(M, x, batch_stats(M, x))
        assert float(host(M.norm(y)).max()) < 1e5 * eager.eps

    def test_one_block_without_spread(self):
        """Equal samples: the variance of a block may be 0, not 1e-15; float32 has no 1e-300."""
        M, zeros = Correlation(3), 0
        for seed in range(40):
            x = M.random(1, rng=seed, spread=2.0, like=np.zeros((), np.float32))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                result = frechet(M, np.repeat(x, 50, axis=0))
            assert result.converged
            zeros += result.variance.min() == 0.0
        assert zeros > 0

    def test_pair_and_its_middle(self):
        """The mean of {e, a, ⊖a} is e; peers return NaN."""
        for M in GEOMETRIES:
            a = M.random(rng=0, spread=0.5)
            x = np.stack([M.origin(a), a, M.scale(-1.0, a)])
            # with θ = ½ distances, and their rounding errors, are twice as large
            assert float(M.norm(frechet(M, x).mean)) < 5e-15 / getattr(M, "theta", 1.0)


class TestBadInput:
    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_empty_batch(self, M, lib):
        with pytest.raises(ValueError, match=r"an empty batch has no mean: x has shape \(0,"):
            frechet(M, lib.array(np.zeros((0, *M.point_shape), M.random(rng=0).dtype)))

    def test_one_point_is_not_a_batch(self):
        with pytest.raises(ValueError, match="add a batch axis"):
            frechet(Euclidean(2), np.zeros(2))

    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_shapes_and_dtypes(self, M):
        x = M.random(4, rng=0)
        shape = r"expects .* of shape .*\(4, 17\)"
        kind = "complex64 or complex128" if M.complex_points else "a real floating dtype"
        for bad, error, message in (
            (np.zeros((4, 17), x.dtype), ValueError, shape),
            (np.ones(x.shape, dtype=int), TypeError, f"expected {kind}, got int64"),
        ):
            with pytest.raises(error, match=message):
                M.add(x if error is ValueError else bad, bad)
            for call in (M.neg, M.to_normal, M.norm, M.project, lambda x: frechet(M, x)):
                with pytest.raises(error, match=message):
                    call(bad)
        with pytest.raises(ValueError, match=shape):
            M.from_normal(np.zeros((4, 17)))
        narrow = x.astype(np.complex64 if M.complex_points else np.float32)
        with pytest.raises(TypeError, match=f"mixed dtypes {x.dtype} and {narrow.dtype}: cast one"):
            M.add(x, narrow)

    def test_mixed_libraries_and_lists(self):
        import torch

        M = Euclidean(2)
        with pytest.raises(
            TypeError, match=r"different libraries, numpy\.ndarray and torch\.Tensor"
        ):
            M.add(np.zeros(2), torch.zeros(2, dtype=torch.float64))
        with pytest.raises(TypeError, match=r"follows the Array API standard, got builtins\.list"):
            M.add([0.0, 1.0], [0.0, 1.0])

    def test_mixed_devices(self):
        import array_api_strict as strict

        x, y = strict.zeros(2), strict.zeros(2, device=strict.Device("device1"))
        with pytest.raises(ValueError, match="move them to one device"):
            Euclidean(2).add(x, y)

    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_nan_is_never_a_number(self, M):
        x = M.random(3, rng=0).copy()
        x[1, -1] = np.nan
        assert np.isnan(M.dist(x, M.origin(x))[1])
        assert np.isnan(M.norm(x)[1])
        assert not M.contains(x)[1]
        assert np.isinf(M.violation(x)[1])
        assert np.isnan(M.scale(0.5, x)[1]).any()
        assert np.isfinite(M.scale(0.5, x)[[0, 2]]).all()
