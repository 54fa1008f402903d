"""MLX: derivatives of both modes and orders, compiled and batched, as torch has them in float64.

Run them with ``--library mlx``: see requirements-mlx.txt.
"""

import importlib

import numpy as np
import pytest
import torch
from conftest import FIRST, host

from gyrobn import SPD, Grassmannian, GyroBN, PoincareBall, SpecialOrthogonal, normalize_batch
from gyrobn.backends import namespace_of
from gyrobn.cli.selftest import check, places
from gyrobn.numerics import matrices
from gyrobn.numerics.matrix_functions import LOG, matrix_function
from gyrobn.numerics.orthogonal import polar

pytestmark = [
    pytest.mark.parametrize("library", ["mlx"]),
    pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning"),
]


@pytest.fixture
def mx(library):
    return importlib.import_module(f"{library}.core")


def curve(shape, step):
    """Numbers that no symmetry relates."""
    return np.sin(1.0 + step * np.arange(np.prod(shape, dtype=int))).reshape(shape)


def derivatives(mx, f, x, v):
    """The gradient at x and its derivative along v, by every way MLX offers."""
    gradient = mx.grad(f)
    first = {
        "reverse": lambda: gradient(x),
        "compiled": lambda: mx.compile(gradient)(x),
    }
    second = {
        "reverse of reverse": lambda: mx.grad(lambda x: (gradient(x) * v).sum())(x),
        "forward of reverse": lambda: mx.jvp(gradient, [x], [v])[1][0],
        "reverse of forward": lambda: mx.grad(lambda x: mx.jvp(f, [x], [v])[1][0])(x),
    }
    slope = mx.jvp(f, [x], [v])[1][0]
    return first, second, slope


def compare(mx, f, x, tolerance):
    """Compare f, which takes arrays of any library to a number, with torch in float64."""
    t = torch.tensor(host(x), requires_grad=True)
    v = curve(x.shape, 3.0)
    (g,) = torch.autograd.grad(f(t), t, create_graph=True)
    (h,) = torch.autograd.grad((g * torch.tensor(v)).sum(), t)
    g, h = g.detach().numpy(), h.numpy()
    first, second, slope = derivatives(mx, f, x, mx.array(v, dtype=mx.float32))
    for ways, right in ((first, g), (second, h)):
        for name, way in ways.items():
            error = np.abs(host(way()) - right).max() / max(1.0, np.abs(right).max())
            assert error < tolerance, name
    assert abs(float(slope) - (g * v).sum()) < tolerance * max(1.0, np.abs(g).max())


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_normalization(mx, M):
    def loss(c):
        y, _ = normalize_batch(M, M.from_normal(c), scale=0.3)
        y = M.to_normal(y)
        weights = curve(y.shape, 1.0)
        return (y * namespace_of(y).asarray(weights, dtype=y.dtype)).sum()

    c = M.to_normal(M.random(12, rng=0, like=mx.zeros(()), spread=0.3))
    compare(mx, loss, c, 1e-5)


FUNCTIONS = {
    "inv": lambda A: namespace_of(A).linalg.inv(A),
    "solve": lambda A: matrices.solve(A, A[..., 0]),
    "solve, another batch": lambda A: namespace_of(A).linalg.solve(A[0, ...], A),
    "cholesky": matrices.cholesky,
    "Q": lambda A: namespace_of(A).linalg.qr(A[..., :2])[0] ** 2,
    "R": lambda A: namespace_of(A).linalg.qr(A[..., :2])[1] ** 2,
    "logarithm": lambda A: matrix_function(A, LOG),
    "polar": polar,
    "determinant": lambda A: namespace_of(A).linalg.det(A),
    "trace of a square": lambda A: namespace_of(A).linalg.trace(A @ A),
    "diagonal": lambda A: namespace_of(A).linalg.diagonal(A) ** 3,
    "triangle": lambda A: matrices.to_triangle(A, diagonal=True) ** 3,
}


@pytest.fixture
def A(mx):
    return mx.array(curve((2, 3, 3), 1.0) + 3.0 * np.eye(3), dtype=mx.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_matrices(mx, name, A):
    def f(A):
        A = matrices.symmetric(A)
        y = FUNCTIONS[name](A)
        return (y * namespace_of(y).asarray(curve(tuple(y.shape), 1.0), dtype=y.dtype)).sum()

    compare(mx, f, A, 1e-5)


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"Q", "R", "solve, another batch"}))
def test_vmap_of_matrices(mx, name, A):
    """MLX does not batch the decomposition QR."""

    def f(A):
        return (FUNCTIONS[name](matrices.symmetric(A)) ** 2).sum()

    for g in (f, mx.grad(f)):
        np.testing.assert_allclose(
            host(mx.vmap(g)(A)), np.stack([host(g(one)) for one in A]), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("M", [PoincareBall(2), SPD(2), SpecialOrthogonal(3)], ids=repr)
def test_vmap_of_a_normalization(mx, M):
    x = M.random(3, 8, rng=0, like=mx.zeros(()), spread=0.3)

    def f(x):
        return normalize_batch(M, x, scale=0.3)[0]

    expected = np.stack([host(f(one)) for one in x])
    np.testing.assert_allclose(host(mx.vmap(f)(x)), expected, rtol=0, atol=1e-5)


def test_third_derivatives_are_refused(mx, A):
    def f(A):
        return matrix_function(matrices.symmetric(A), LOG).sum()

    def twice(A):
        return mx.grad(lambda A: (mx.grad(f)(A) ** 2).sum())(A).sum()

    with pytest.raises(TypeError, match="third derivatives"):
        mx.grad(twice)(A)


def test_float64_is_refused(mx):
    x = mx.zeros((3, 2)).astype(mx.float64, stream=mx.cpu)
    with pytest.raises(TypeError, match=r"float32, got mlx.core.float64.*x.astype\(mx.float32\)"):
        PoincareBall(2).norm(x)


def test_bad_matrices_are_errors_at_once(mx):
    """MLX itself returns a factor of an indefinite matrix, and raises when values are needed."""
    linalg = namespace_of(mx.zeros(())).linalg
    indefinite = mx.array([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(np.linalg.LinAlgError):
        linalg.cholesky(indefinite)
    with pytest.raises(np.linalg.LinAlgError):
        linalg.inv(mx.zeros((2, 2)))
    assert np.isnan(host(mx.compile(linalg.cholesky)(indefinite))).all()


@pytest.mark.parametrize("M", [PoincareBall(2), SPD(2), Grassmannian(4, 2)], ids=repr)
def test_estimator(mx, M):
    x = M.random(40, rng=0, like=mx.zeros(()), spread=0.3)
    bn = GyroBN(M, scale=0.5).fit(x)
    y = bn.transform(x)
    assert isinstance(y, mx.array)
    assert isinstance(bn.mean_, mx.array)
    assert float(M.dist(bn.inverse_transform(y), x).max()) < 1e-5
    z = M.project(host(x))
    exact = GyroBN(M, scale=0.5).fit_transform(z)
    assert np.abs(host(M.to_normal(y)) - M.to_normal(exact)).max() < 1e-5


def test_selftest(library):
    (place,), _ = places(library)
    assert check(SPD(2), place, "float32")["result"] == "ok"
