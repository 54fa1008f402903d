"""The models of constant curvature against each other; test_oracle.py has the paper's formulas."""

import math

import jax
import numpy as np
import pytest
import torch

from gyrobn import (
    Hyperboloid,
    Klein,
    PoincareBall,
    ProjectedHypersphere,
    Sphere,
    Stereographic,
    convert,
)


def points(M, count=3, n=60):
    """Points out to radius 3, and within a hemisphere where the curvature is positive."""
    out = []
    for seed in range(count):
        c = np.random.default_rng(seed).standard_normal((n, M.dim))
        reach = min(3.0 / math.sqrt(abs(M.curvature)), 0.8 * M.convexity_radius)
        c *= (np.linspace(0.01, reach, n) / np.linalg.norm(c, axis=-1))[:, None]
        out.append(M.from_normal(c))
    return out


def close(a, b, atol=1e-12):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=atol)


def dots(x, y):
    return np.sum(x * y, axis=-1, keepdims=True)


HYPERBOLIC = [PoincareBall, Hyperboloid, Klein]
SPHERICAL = [ProjectedHypersphere, Sphere]
PAIRS = [(a, b, -0.7) for a in HYPERBOLIC for b in HYPERBOLIC if a is not b]
PAIRS += [(a, b, 0.7) for a in SPHERICAL for b in SPHERICAL if a is not b]


@pytest.mark.parametrize(("source", "target", "K"), PAIRS)
class TestIsometries:
    def test_preserve_everything(self, source, target, K):
        A, B = source(3, K), target(3, K)
        x, y, z = points(A)
        fx, fy, fz = (convert(A, B, p) for p in (x, y, z))
        far = np.abs(B.add(fx, fy)).max()
        close(convert(A, B, A.add(x, y)) / far, B.add(fx, fy) / far)
        close(convert(A, B, A.scale(0.6, x)), B.scale(0.6, fx))
        close(A.dist(x, y), B.dist(fx, fy), 1e-11)
        far = np.abs(fz).max()
        close(convert(A, B, A.gyration(x, y, z)) / far, B.gyration(fx, fy, fz) / far, 1e-11)
        close(convert(B, A, fx), x)

    def test_differential(self, source, target, K):
        A, B = source(3, K), target(3, K)
        x, y, _ = points(A)
        v = A.log(x, y) / 10
        fx, fv = convert(A, B, x, v)
        h = 1e-5
        slope = (convert(A, B, A.exp(x, h * v)) - convert(A, B, A.exp(x, -h * v))) / (2 * h)
        np.testing.assert_allclose(fv, slope, rtol=1e-6, atol=1e-6 * np.abs(fv).max())
        close(A.inner(x, v, v), B.inner(fx, fv, fv), 1e-11)


def test_convert_refuses_other_curvatures():
    with pytest.raises(ValueError, match="differ in dimension or curvature"):
        convert(PoincareBall(2), Klein(2, -2.0), np.zeros(2))


OPERATIONS = {
    "add": lambda M, x, y: M.add(x, y),
    "scale": lambda M, x, y: M.scale(0.6, x),
    "dist": lambda M, x, y: M.dist(x, y),
    "log": lambda M, x, y: M.log(x, y),
    "exp": lambda M, x, y: M.exp(x, y),
    "transport": lambda M, x, y: M.transport(x, y, x),
    "gyration": lambda M, x, y: M.gyration(x, y, x),
    "standardize": lambda M, x, y: M.standardize(x, y, 1.4, x),
}


class TestCurvatureZero:
    """Stereographic is smooth through K = 0, in value and in the derivative by K."""

    x, y = np.asarray([0.3, -0.2]), np.asarray([-0.1, 0.4])

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_value(self, name):
        f = OPERATIONS[name]
        flat = f(Stereographic(2, 0.0), self.x, self.y)
        for K in (1e-7, -1e-7):
            np.testing.assert_allclose(f(Stereographic(2, K), self.x, self.y), flat, atol=1e-6)
        for K in (1e-160, -1e-160, 1e-300):
            np.testing.assert_allclose(f(Stereographic(2, K), self.x, self.y), flat, atol=1e-15)

    def test_flat_is_euclidean(self):
        M = Stereographic(2, 0.0)
        np.testing.assert_allclose(M.add(self.x, self.y), self.x + self.y, atol=1e-16)
        twice = 2 * np.linalg.norm(self.x - self.y)
        np.testing.assert_allclose(M.dist(self.x, self.y), twice, atol=1e-15)

    @pytest.mark.parametrize("K", [-0.8, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.8])
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_derivative(self, name, K):
        f, h = OPERATIONS[name], 1e-4

        def slope(k):
            up, down = (f(Stereographic(2, k + s), self.x, self.y) for s in (h, -h))
            return (up - down) / (2 * h)

        x, y = jax.numpy.asarray(self.x), jax.numpy.asarray(self.y)
        by_jax = jax.jacfwd(lambda k: f(Stereographic(2, k), x, y))(K)
        np.testing.assert_allclose(by_jax, slope(K), atol=2e-8)
        x, y = torch.as_tensor(self.x), torch.as_tensor(self.y)
        curvature = torch.tensor(K, dtype=torch.float64)
        by_torch = torch.autograd.functional.jacobian(
            lambda k: f(Stereographic(2, k), x, y), curvature
        )
        np.testing.assert_allclose(by_torch, slope(K), atol=2e-8)

    def test_traced_and_static_curvature_agree(self):
        for K in (-1.0, -0.01, 0.0, 0.01, 1.0):
            for f in OPERATIONS.values():
                static = f(Stereographic(2, K), self.x, self.y)
                traced = f(Stereographic(2, np.asarray(K)), self.x, self.y)
                np.testing.assert_allclose(traced, static, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PoincareBall(2, 1.0), "PoincareBall needs a negative sectional curvature, got"),
        (lambda: Sphere(2, 0.0), "Sphere needs a positive"),
        (lambda: Stereographic(2, math.nan), "must be a finite number, got nan"),
        (lambda: Hyperboloid(0), "n of Hyperboloid must be a positive integer, got 0"),
        (lambda: Klein(2.5), "n of Klein must be a positive integer, got 2.5"),
    ],
)
def test_bad_parameters(build, message):
    with pytest.raises(ValueError, match=message):
        build()
