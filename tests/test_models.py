"""The paper's own formulas, written out here, against ours; and the models against each other."""

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

RADIUS = [Hyperboloid(4), Hyperboloid(3, -0.3), Sphere(4), Sphere(3, 2.0)]
STEREOGRAPHIC = [PoincareBall(4), PoincareBall(3, -0.3), ProjectedHypersphere(4, 0.7)]
KLEIN = [Klein(4), Klein(3, -2.0)]


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


class PaperRadius:
    """Table of the radius model, general form and at the origin."""

    def __init__(self, M):
        self.K, self.k = M.curvature, math.sqrt(abs(M.curvature))
        self.cos, self.sin, self.acos = (
            (np.cos, np.sin, np.arccos) if self.K > 0 else (np.cosh, np.sinh, np.arccosh)
        )

    def product(self, x, y):
        time = x[..., :1] * y[..., :1]
        return dots(x[..., 1:], y[..., 1:]) + (time if self.K > 0 else -time)

    def dist(self, x, y):
        return self.acos(self.K * self.product(x, y))[..., 0] / self.k

    def log(self, x, y):
        b = self.K * self.product(x, y)
        return self.acos(b) / np.sqrt(np.sign(self.K) * (1 - b * b)) * (y - b * x)

    def exp(self, x, v):
        a = self.k * np.sqrt(self.product(v, v))
        return self.cos(a) * x + self.sin(a) / a * v

    def transport(self, x, y, v):
        K = self.K
        return v - K * self.product(y, v) / (1 + K * self.product(x, y)) * (x + y)

    def add(self, x, y):
        """Equation of the closed form."""
        K, k, x_s, y_s = self.K, self.k, x[..., 1:], y[..., 1:]
        a, b = 1 + k * x[..., :1], 1 + k * y[..., :1]
        n_x, n_y, s = dots(x_s, x_s), dots(y_s, y_s), dots(x_s, y_s)
        D = a**2 * b**2 - 2 * K * a * b * s + K**2 * n_x * n_y
        N = a**2 * n_y + 2 * a * b * s + b**2 * n_x
        A_s, A_y = a * b**2 - 2 * K * b * s - K * a * n_y, b * (a**2 + K * n_x)
        spatial = 2 * (A_s * x_s + A_y * y_s) / (D + K * N)
        return np.concatenate([(D - K * N) / (k * (D + K * N)), spatial], axis=-1)

    def scale(self, t, x):
        a = self.acos(self.k * x[..., :1])
        size = np.linalg.norm(x[..., 1:], axis=-1, keepdims=True)
        return np.concatenate([self.cos(t * a), self.sin(t * a) / size * x[..., 1:]], -1) / self.k


@pytest.mark.parametrize("M", RADIUS, ids=repr)
class TestRadius:
    def test_operators(self, M):
        paper, (x, y, z) = PaperRadius(M), points(M)
        v = M.log(x, z)
        close(M.dist(x, y), paper.dist(x, y), 1e-11)  # the inverse cosine costs the paper digits
        scale = np.abs(paper.log(x, y)).max()
        close(M.log(x, y) / scale, paper.log(x, y) / scale)
        close(M.exp(x, v), z, 1e-12)
        close(M.exp(x, v), paper.exp(x, v), 1e-10)  # the product of long vectors costs it digits
        close(M.transport(x, y, v) / scale, paper.transport(x, y, v) / scale, 1e-11)
        close(M.inner(x, v, v), paper.product(v, v)[..., 0], 1e-10)

    def test_addition_by_definition_and_by_the_closed_form(self, M):
        paper, (x, y, _) = PaperRadius(M), points(M)
        e = np.broadcast_to(M.origin(x), x.shape)
        definition = paper.exp(x, paper.transport(e, x, paper.log(e, y)))
        size = np.abs(definition).max(-1, keepdims=True)
        close(M.add(x, y) / size, definition / size)
        close(M.add(x, y) / size, paper.add(x, y) / size)
        close(M.scale(0.7, x), paper.scale(0.7, x))


class PaperStereographic:
    """Table of the stereographic model, with the radius written so that K may have any sign."""

    def __init__(self, M):
        self.K, self.k = M.curvature, math.sqrt(abs(M.curvature))
        self.tan, self.atan = (np.tan, np.arctan) if self.K > 0 else (np.tanh, np.arctanh)

    def conformal(self, x):
        return 2 / (1 + self.K * dots(x, x))

    def add(self, x, y):
        K, xy, xx, yy = self.K, dots(x, y), dots(x, x), dots(y, y)
        above = (1 - 2 * K * xy - K * yy) * x + (1 + K * xx) * y
        return above / (1 - 2 * K * xy + K**2 * xx * yy)

    def scale(self, t, x):
        size = np.linalg.norm(x, axis=-1, keepdims=True)
        return self.tan(t * self.atan(self.k * size)) / self.k * x / size

    def dist(self, x, y):
        return 2 / self.k * self.atan(self.k * np.linalg.norm(self.add(-x, y), axis=-1))

    def log(self, x, y):
        w = self.add(-x, y)
        size = np.linalg.norm(w, axis=-1, keepdims=True)
        return 2 / (self.k * self.conformal(x)) * self.atan(self.k * size) * w / size

    def exp(self, x, v):
        size = np.linalg.norm(v, axis=-1, keepdims=True)
        step = self.tan(self.k * self.conformal(x) * size / 2) * v / (self.k * size)
        return self.add(x, step)

    def gyration(self, x, y, z):
        K, xy, xx, yy = self.K, dots(x, y), dots(x, x), dots(y, y)
        xz, yz = dots(x, z), dots(y, z)
        A = -(K**2) * xz * yy - K * yz + 2 * K**2 * xy * yz
        B = -(K**2) * yz * xx + K * xz
        return z + 2 * (A * x + B * y) / (1 - 2 * K * xy + K**2 * xx * yy)

    def transport(self, x, y, v):
        return self.conformal(x) / self.conformal(y) * self.gyration(y, -x, v)


@pytest.mark.parametrize("M", STEREOGRAPHIC, ids=repr)
def test_stereographic(M):
    paper, (x, y, z) = PaperStereographic(M), points(M)
    v = M.log(x, z)
    close(M.add(x, y), paper.add(x, y))
    close(M.scale(0.7, x), paper.scale(0.7, x))
    close(M.dist(x, y), paper.dist(x, y), 1e-11)
    close(M.log(x, y), paper.log(x, y))
    close(M.exp(x, v), paper.exp(x, v))
    close(M.gyration(x, y, z), paper.gyration(x, y, z), 1e-11)
    close(M.transport(x, y, v), paper.transport(x, y, v), 1e-11)
    close(M.inner(x, v, v), (paper.conformal(x) ** 2 * dots(v, v))[..., 0], 1e-11)


@pytest.mark.parametrize("M", KLEIN, ids=repr)
def test_klein(M):
    """Einstein addition, its gyration, and the theorem that writes Klein operators with it."""
    (x, y, z), K, k = points(M), M.curvature, math.sqrt(-M.curvature)
    w = 1 + K * dots(x, x)
    g_x, g_y = 1 / np.sqrt(w), 1 / np.sqrt(1 + K * dots(y, y))

    def einstein(x, y):
        g = 1 / np.sqrt(1 + K * dots(x, x))
        return (x + y / g - K * g / (1 + g) * dots(x, y) * x) / (1 - K * dots(x, y))

    xy, xz, yz = dots(x, y), dots(x, z), dots(y, z)
    A = K * g_x**2 / (g_x + 1) * (g_y - 1) * xz - K * g_x * g_y * yz
    A += 2 * K**2 * g_x**2 * g_y**2 / ((g_x + 1) * (g_y + 1)) * xy * yz
    B = K * g_y / (g_y + 1) * (g_x * (g_y + 1) * xz + (g_x - 1) * g_y * yz)
    close(M.add(x, y), einstein(x, y))
    close(M.gyration(x, y, z), z + (A * x + B * y) / (1 + g_x * g_y * (1 - K * xy)), 1e-11)

    def exp0(v):
        size = np.linalg.norm(v, axis=-1, keepdims=True)
        return np.tanh(k * size) * v / (k * size)

    r = np.linalg.norm(einstein(-x, y), axis=-1)
    close(M.dist(x, y), 2 / k * np.arctanh(k * r / (1 + np.sqrt(1 + K * r * r))), 1e-10)
    v = M.log(x, z)
    inside = v / np.sqrt(w) - K * dots(x, v) / ((1 + np.sqrt(w)) * w) * x
    close(M.exp(x, v), einstein(x, exp0(inside)), 1e-10)
    metric = dots(v, v) / w - K * dots(x, v) ** 2 / w**2
    close(M.inner(x, v, v) / metric[..., 0], 1.0, 1e-9)


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


def test_the_papers_differentials():
    """Klein to ball and back, as the proposition on Beltrami–Klein isometries prints them."""
    B, D = Klein(3, -0.7), PoincareBall(3, -0.7)
    K, (x, y, _) = -0.7, points(B)
    v, w = B.log(x, y), 1 + K * dots(x, x)
    to_ball = v / (1 + np.sqrt(w)) - K * dots(x, v) / ((1 + np.sqrt(w)) ** 2 * np.sqrt(w)) * x
    p, u = convert(B, D, x, v)
    close(p, x / (1 + np.sqrt(w)))
    close(u, to_ball, 1e-11)
    below = 1 - K * dots(p, p)
    close(convert(D, B, p, u)[1], 2 / below * u + 4 * K * dots(p, u) / below**2 * p, 1e-11)
    q = convert(D, Hyperboloid(3, K), p)
    square = dots(p, p)
    close(q[..., :1], (1 - K * square) / (1 + K * square) / math.sqrt(-K))
    close(q[..., 1:], 2 * p / (1 + K * square))


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
