"""Very large and very small coordinates: squares that overflow or underflow lose no result."""

import math
import warnings

import jax
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES, Library, host
from flax import nnx

import gyrobn.flax
from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    FrechetWarning,
    GyroBN,
    Hyperboloid,
    Klein,
    PoincareBall,
    PrecisionWarning,
    Product,
    Stats,
    Stereographic,
    batch_stats,
    normalize,
)

SMALL = {"float64": (1e-300, 1e-170, 1e-120), "float32": (1e-37, 1e-25, 1e-18)}
LARGE = {"float64": (1e120, 1e160, 1e300), "float32": (1e15, 1e20, 1e37)}
HYPERBOLIC = [
    PoincareBall(2),
    PoincareBall(3, -2.0),
    Stereographic(2, -0.3),
    Hyperboloid(3),
    Hyperboloid(2, -0.5),
    Klein(2),
]
FLAT = [Euclidean(2), Euclidean(5), Stereographic(3, 0.0)]
dtypes = pytest.mark.parametrize("dtype", ["float64", "float32"])


def lengths(c):
    return np.asarray([math.hypot(*row) for row in host(c)])


def rows(M, dtype, size=1.0, count=6):
    c = np.random.default_rng(0).standard_normal((count, M.dim))
    return (size * c / np.linalg.norm(c, axis=-1, keepdims=True)).astype(dtype)


class TestSmall:
    @dtypes
    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_norms_and_distances(self, M, dtype):
        """A point as close to e as its coordinates allow is as far from e as these say."""
        for size in SMALL[dtype]:
            x = M.from_normal(rows(M, dtype, size))
            expected = lengths(M.to_normal(x))
            e = np.broadcast_to(M.origin(x), x.shape)
            limit = 8 * np.finfo(dtype).eps * expected.max() if expected.max() else 0.0
            np.testing.assert_allclose(M.norm(x), expected, rtol=0, atol=limit)
            np.testing.assert_allclose(
                M.dist(e, x), lengths(M.relative_normal(e, x)), rtol=0, atol=4 * limit
            )

    @pytest.mark.parametrize("M", [*HYPERBOLIC, *FLAT], ids=repr)
    def test_nothing_becomes_zero(self, M, eager: Library):
        for size in SMALL[eager.dtype]:
            c, half = (eager.array(rows(M, eager.dtype, s)) for s in (size, 0.5 * size))
            x, y = M.from_normal(c), M.from_normal(-c)
            np.testing.assert_allclose(host(M.norm(x)), size, rtol=1e-5)
            np.testing.assert_allclose(host(M.dist(x, y)), 2.0 * size, rtol=1e-5)
            np.testing.assert_allclose(host(M.to_normal(M.scale(0.5, x))), host(half), rtol=1e-5)

    @pytest.mark.parametrize("M", [Euclidean(2), PoincareBall(2), Hyperboloid(2)], ids=repr)
    def test_slopes(self, M):
        """That of the norm has length 1, also where the square is no number; and 0 at e."""
        for size in (0.0, 1e-170, 1e-300):
            c = torch.tensor([0.6 * size, -0.8 * size], dtype=torch.float64, requires_grad=True)
            (slope,) = torch.autograd.grad(M.norm(M.from_normal(c)), c)
            expected = [0.6, -0.8] if size else [0.0, 0.0]
            np.testing.assert_allclose(slope, expected, atol=1e-14)
            slope = jax.grad(lambda c: M.norm(M.from_normal(c)))(jax.numpy.asarray(host(c)))
            np.testing.assert_allclose(slope, expected, atol=1e-14)


class TestLarge:
    @dtypes
    @pytest.mark.parametrize("M", FLAT, ids=repr)
    def test_flat(self, M, dtype):
        for size in LARGE[dtype]:
            with np.errstate(over="ignore"):
                x, y = M.from_normal(rows(M, dtype, size)), M.from_normal(-rows(M, dtype, size))
                np.testing.assert_allclose(M.norm(x), size, rtol=1e-5)
                np.testing.assert_allclose(M.dist(x, y), 2.0 * size, rtol=1e-5)
                np.testing.assert_allclose(M.to_normal(x), rows(M, dtype, size), rtol=1e-5)
                found = M.to_normal(M.scale(0.5, x))
                np.testing.assert_allclose(found, rows(M, dtype, 0.5 * size), rtol=1e-5)
                found = normalize(M, x, Stats(M.origin(x), np.asarray(1.0, dtype)), eps=0.0)
                np.testing.assert_allclose(found, x, rtol=1e-5)
                np.testing.assert_allclose(
                    M.relative_normal(x, y), -2.0 * rows(M, dtype, size), rtol=1e-5
                )

    @pytest.mark.parametrize("M", HYPERBOLIC, ids=repr)
    def test_points_stay_at_the_edge(self, M, lib: Library):
        """In their direction, where a thousand leads as well."""
        expected = M.from_normal(lib.array(rows(M, lib.dtype, 1000.0)))
        for size in LARGE[lib.dtype]:
            x = M.from_normal(lib.array(rows(M, lib.dtype, size)))
            assert host(M.contains(x)).all()
            np.testing.assert_allclose(host(x), host(expected), rtol=2e3 * lib.eps)

    @pytest.mark.parametrize("M", HYPERBOLIC, ids=repr)
    def test_multiples_stay_at_the_edge(self, M, lib: Library):
        x = M.from_normal(lib.array(rows(M, lib.dtype, 1.5)))
        e, one = M.origin(x), lib.array(1.0)
        expected = M.scale(1000.0, x)
        for factor in LARGE[lib.dtype]:
            found = (M.scale(factor, x), M.scale(lib.array(factor), x))
            with pytest.warns(FrechetWarning, match="6 of 6 samples, .* where they are held"):
                normalized = normalize(M, x, Stats(e, one), scale=factor, eps=0.0)
            for y in (*found, normalized):
                assert host(M.contains(y)).all()
                np.testing.assert_allclose(host(y), host(expected), rtol=2e3 * lib.eps)
            opposite = M.scale(-factor, x)
            np.testing.assert_allclose(host(opposite), host(M.neg(expected)), rtol=2e3 * lib.eps)
            middle = normalize(M, M.scale(0.0, x), Stats(e, one), scale=factor)
            assert host(M.norm(middle)).max() == 0.0  # the mean stays where it is

    @pytest.mark.parametrize("M", HYPERBOLIC, ids=repr)
    def test_a_batch_with_its_own_statistics(self, M, eager: Library):
        x = M.from_normal(eager.array(rows(M, eager.dtype, 0.7, 20)))
        bias = M.from_normal(eager.array(rows(M, eager.dtype, 0.5, 1)[0]))
        with pytest.warns(FrechetWarning, match="scales 20 of 20 samples"):
            y = normalize(M, x, batch_stats(M, x), bias, scale=LARGE[eager.dtype][1])
        assert host(M.contains(y)).all()

    @pytest.mark.parametrize("M", [PoincareBall(2), Hyperboloid(2), Klein(2)], ids=repr)
    def test_slopes_stay_finite(self, M):
        """At the edge a point moves across only, by how much it turns."""
        # on the hyperboloid slopes are e^351/size, and on the way beyond the range of floats
        for size in (1e20, 1e40) if isinstance(M, Hyperboloid) else (1e20, 1e160, 1e300):
            c = torch.tensor([0.6 * size, 0.8 * size], dtype=torch.float64, requires_grad=True)
            x = M.from_normal(c)
            (slope,) = torch.autograd.grad(x[-1], c)
            np.testing.assert_allclose(
                slope @ c.detach(), 0.0, atol=1e-6 * float(abs(x[-1].detach()))
            )
            (slope,) = torch.autograd.grad(M.norm(M.scale(size, M.from_normal(c / size))), c)
            assert torch.isfinite(slope).all()

    def test_compiled(self):
        M = PoincareBall(2)
        found = jax.jit(M.from_normal)(jax.numpy.asarray([1e20, 0.0], dtype="float32"))
        assert abs(float(found[0]) - 1.0) < 1e-5
        assert float(found[1]) == 0.0

    @dtypes
    def test_products(self, dtype):
        M = Product(PoincareBall(2), Euclidean(2))
        small, large = SMALL[dtype][1], LARGE[dtype][1]
        c = np.asarray([[3 * small, 0, 4 * small, 0], [0.5, 0, large, 0]], dtype=dtype)
        np.testing.assert_allclose(M.norm(M.from_normal(c)), [5 * small, large], rtol=1e-5)
        assert np.isfinite(M.from_normal(np.asarray([large, 0, 0, 0], dtype=dtype))).all()

    def test_infinite_and_nan(self):
        x = np.asarray([[np.inf, 1.0], [np.nan, 1.0], [-np.inf, np.inf], [0.0, 0.0]])
        np.testing.assert_array_equal(Euclidean(2).norm(x), [np.inf, np.nan, np.inf, 0.0])


DEFINITE = [M for M in GEOMETRIES if isinstance(M, (SPD, Correlation))]
DEFINITE += [SPD(6), SPD(3, "cholesky_affine_invariant", theta=0.5), Product(SPD(2), Euclidean(1))]


class TestSingularMatrices:
    """``from_normal`` holds matrices where their dtype ends, as it holds points of a ball."""

    @pytest.mark.parametrize("M", DEFINITE, ids=repr)
    def test_any_coordinates_give_points(self, M, lib: Library):
        size = 12.0 if lib.dtype == "float32" else 30.0
        c = lib.array(size * np.random.default_rng(0).normal(size=(9, M.dim)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)
            P = M.from_normal(c)
        assert host(M.contains(P)).all()

    @pytest.mark.parametrize(
        "M",
        [SPD(6), SPD(3, "log_cholesky"), Correlation(3), Product(SPD(2), Euclidean(1))],
        ids=repr,
    )
    def test_under_jit_they_are_points_too(self, M):
        c = 12.0 * np.random.default_rng(0).normal(size=(9, M.dim)).astype(np.float32)
        P = jax.jit(M.from_normal)(jax.numpy.asarray(c))
        assert np.asarray(M.contains(P)).all()
        assert np.asarray(jax.jit(M.contains)(P)).all()
        small = jax.numpy.asarray(0.01 * c)
        np.testing.assert_allclose(
            jax.jit(M.from_normal)(small), M.from_normal(small), rtol=1e-5, atol=1e-6
        )

    def test_the_warning_has_the_limit(self):
        c = np.zeros((3, 3), np.float32)
        c[1, 0] = 40.0
        message = r"1 of 3 .* condition number is up to 2.4e\+17, and the limit is 4.2e\+06"
        with pytest.warns(PrecisionWarning, match=message):
            P = SPD(2).from_normal(c)
        np.testing.assert_allclose(P[1, 0, 0], np.exp(40.0), rtol=1e-5)
        assert np.array_equal(P[[0, 2]], np.stack(2 * [np.eye(2, dtype=np.float32)]))
        message = r"condition number 1e\+09; the limit in float32 is 4.2e\+06"
        with pytest.raises(ValueError, match=message):
            GyroBN("spd").fit(np.stack(4 * [np.diag([1.0, 1e-9]).astype(np.float32)]))

    def test_a_layer_takes_them(self):
        """In the middle of training in float32, eager after compiled."""
        M = SPD(6)
        layer = gyrobn.flax.GyroBN(M)
        c = jax.random.normal(jax.random.key(0), (16, M.dim), np.float32)
        step = nnx.jit(lambda layer, c: layer(M.from_normal(c)))
        for size in (0.3, 3.0, 8.0):
            y = step(layer, size * c)
            assert np.isfinite(y).all()
        layer.eval()
        with pytest.warns(PrecisionWarning, match="16 of 16"):
            x = M.from_normal(8.0 * c)
        assert np.isfinite(layer(x)).all()

    @pytest.mark.parametrize("M", [SPD(3), Correlation(3)], ids=repr)
    def test_gradients(self, M):
        """Those of ordinary coordinates do not change, and those of held ones are finite."""
        rng = np.random.default_rng(1)
        c = torch.as_tensor(rng.normal(size=(4, M.dim)), dtype=torch.float64)
        far = torch.cat([c, 40.0 * c]).requires_grad_()
        near = c.clone().requires_grad_()
        with pytest.warns(PrecisionWarning):
            M.from_normal(far).sum().backward()
        M.from_normal(near).sum().backward()
        torch.testing.assert_close(far.grad[:4], near.grad, rtol=1e-12, atol=1e-12)
        assert far.grad.isfinite().all()


def test_correlations_close_to_the_identity():
    M = Correlation(3)
    x = M.from_normal(np.asarray([3e-170, 0.0, 4e-170]))
    np.testing.assert_allclose(M.norm(x), 5e-170, rtol=1e-14)
