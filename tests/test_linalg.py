"""Functions of matrices: values, and first derivatives also at repeated eigenvalues."""

import warnings
from itertools import pairwise

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.linalg
import torch
from conftest import assert_close, host

from gyrobn.numerics.matrices import adjoint, from_triangle, matmul, to_triangle
from gyrobn.numerics.matrix_functions import (
    EXP,
    INVERSE,
    INVERSE_ROOT,
    LOG,
    ROOT,
    eigh,
    matrix_frame,
    matrix_function,
    matrix_functions,
    matrix_power,
    power,
)
from gyrobn.numerics.orthogonal import ANGLE, COSINE_OF_ROOT, SINC_OF_ROOT, polar

# torch.func.jvp and forward_ad import what they themselves call deprecated
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

# ---------------------------------------------------------------------- of eigenvalues

DIGITS = 120
GAPS = (0.0, 1e-12, 1e-8, 1e-5, 1e-3, 3e-2, 0.09, 0.11, 0.19, 0.21, 0.5)
COSINES = (1.0, 1 - 1e-12, 1 - 1e-7, 0.999, 0.99, 0.9, 0.7, 0.5, 0.3, 1e-3, 0.0)
SQUARES = (0.0, 1e-12, 1e-5, 0.0999, 0.1001, 0.5, 0.999, 2.0, 2.4674, 30.0)  # of angles


def _sinc_of_root(u):
    root = mp.sqrt(u)
    return mp.mpf(1) if u == 0 else mp.re(mp.sin(root) / root)


def _angle(c):
    theta = mp.acos(c)
    return mp.mpf(1) if theta == 0 else mp.re(theta / mp.sin(theta))


EXACT = {
    "EXP": (EXP, mp.exp),
    "LOG": (LOG, mp.log),
    "ROOT": (ROOT, mp.sqrt),
    "INVERSE_ROOT": (INVERSE_ROOT, lambda x: 1 / mp.sqrt(x)),
    "INVERSE": (INVERSE, lambda x: 1 / x),
    **{f"power({t})": (power(t), lambda x, t=t: mp.power(x, t)) for t in (0.3, -1.7, 2.0)},
    "ANGLE": (ANGLE, _angle),
    "COSINE_OF_ROOT": (COSINE_OF_ROOT, lambda u: mp.re(mp.cos(mp.sqrt(u)))),
    "SINC_OF_ROOT": (SINC_OF_ROOT, _sinc_of_root),
}
OF_ANGLES = ("ANGLE", "COSINE_OF_ROOT", "SINC_OF_ROOT")


def pairs(name):
    """Points to test the function at, and others at each of the gaps from them."""
    if name == "EXP":
        return [(x, x - gap) for x in (-40.0, -0.3, 0.25, 5.0) for gap in (*GAPS, 3.0, 20.0)]
    if name not in OF_ANGLES:
        found = [(m, m * (1 - gap)) for m in (1e-26, 1.0, 1e20) for gap in GAPS]
        return [*found, (1e20, 1.0), (1e-13, 3.0)]
    starts, top = (COSINES, 1.0) if name == "ANGLE" else (SQUARES, 31.0)
    found = [(x, y) for x in starts for gap in GAPS for y in (x - gap, x + gap)]
    return [(x, y) for x, y in found if 0.0 <= y <= top]


def exact_difference(f, *points):
    """Return the divided difference of numbers; those that are equal are made a little unequal."""
    move = mp.mpf(10) ** -24
    x = [mp.mpf(float(p)) * (1 - k * move) if p else k * move for k, p in enumerate(points, 1)]
    table = [f(a) for a in x]
    for k in range(1, len(x)):
        steps = enumerate(pairwise(table))
        table = [(b - a) / (x[i + k] - x[i]) for i, (a, b) in steps]
    return table[0]


def error(found, exact, floor=0.0):
    """Largest error, relative to the exact number or, where that is smaller, to ``floor``."""
    scales = [max(abs(e), mp.mpf(floor)) for e in exact]
    return max(
        float(abs(mp.mpf(float(a)) - e) / s if s else abs(mp.mpf(float(a)) - e))
        for a, e, s in zip(found, exact, scales, strict=True)
    )


@pytest.mark.parametrize("name", EXACT)
class TestEigenvalues:
    """Against 120 digits, at every gap between eigenvalues and for magnitudes 1e-26 to 1e20."""

    def test_value(self, name):
        f, exact = EXACT[name]
        x = np.unique(np.asarray(pairs(name))[:, 0])
        with mp.workdps(DIGITS):
            expected = [exact(mp.mpf(float(a))) for a in x]
            amplitude = 1.0 if name in OF_ANGLES else 0.0
            assert error(f.value(x), expected, amplitude) <= 1e-13

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_difference_of_two(self, name, dtype):
        f, exact = EXACT[name]
        x, y = np.asarray(pairs(name), dtype=dtype).T
        with mp.workdps(DIGITS):
            expected = [exact_difference(exact, a, b) for a, b in zip(x, y, strict=True)]
            if dtype == "float32":  # where the numbers themselves exist
                sizes = zip(map(exact, map(mp.mpf, map(float, x))), expected, strict=True)
                keep = [all(v == 0 or 1e-37 < abs(v) < 1e37 for v in pair) for pair in sizes]
                x, y = x[keep], y[keep]
                expected = [e for e, k in zip(expected, keep, strict=True) if k]
            for points in ((x, y), (y, x)):
                with np.errstate(over="ignore", under="ignore"):
                    found = f.difference(*points)
                assert found.dtype == dtype
                tolerance = 1e-13 if dtype == "float64" else 3e-5
                assert error(found, expected, 1e-3 if name in OF_ANGLES else 0.0) <= tolerance

    def test_difference_of_three(self, name):
        f, exact = EXACT[name]
        for share in (0.0, 0.3, 1.0):
            x, z = np.asarray(pairs(name)).T
            y = (1.0 - share) * x + share * z
            with np.errstate(over="ignore"):
                found = f.difference(x, y, z)
            with mp.workdps(DIGITS):
                expected = [exact_difference(exact, *p) for p in zip(x, y, z, strict=True)]
                keep = [1e-290 < abs(e) < 1e290 for e in expected]
                expected = [e for e, k in zip(expected, keep, strict=True) if k]
                floor = 1e-3 if name in OF_ANGLES else 0.0
                assert error(found[keep], expected, floor) <= 2e-13


# ---------------------------------------------------------------------- of matrices: values


def rotation(seed, n=3):
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    return q * np.sign(np.diag(r))


SPECTRA = {
    "generic": (0.9, 0.55, 0.3),
    "repeated": (0.8, 0.8, 0.3),
    "nearly, 1e-14": (0.8, 0.8 - 1e-14, 0.3),
    "nearly, 1e-10": (0.8, 0.8 - 1e-10, 0.3),
    "nearly, 1e-6": (0.8, 0.8 - 1e-6, 0.3),
    "scalar": (0.6, 0.6, 0.6),
    "identity": (1.0, 1.0, 1.0),
}
"""Eigenvalues in (0, 1], where every function is defined."""

Q = np.stack([np.eye(3) if name == "identity" else rotation(i) for i, name in enumerate(SPECTRA)])
POINTS = Q @ (np.asarray(list(SPECTRA.values()))[..., None] * np.swapaxes(Q, -1, -2))
POINTS = 0.5 * (POINTS + np.swapaxes(POINTS, -1, -2))
TIMES = np.asarray([0.3, -1.3, 0.7, 1.1, 2.0, -0.5, 0.4])
DIRECTION = np.random.default_rng(7).standard_normal(POINTS.shape)
WEIGHT = np.random.default_rng(8).standard_normal(POINTS.shape)

PLAIN = (EXP, LOG, INVERSE_ROOT, ANGLE, COSINE_OF_ROOT, SINC_OF_ROOT)


def by_eigh(f, A, t=None):
    """Apply a NumPy function to the eigenvalues of each matrix."""
    values, U = np.linalg.eigh(A)
    found = f(values) if t is None else f(values, np.asarray(t)[..., None])
    return (U * found[..., None, :]) @ np.swapaxes(U, -1, -2)


class TestSymmetric:
    def test_against_scipy(self, lib):
        A = 3.0 * POINTS
        found = matrix_functions(lib.array(A), (LOG, EXP, power(0.5), power(-1.0)))
        functions = scipy.linalg.logm, scipy.linalg.expm, scipy.linalg.sqrtm, np.linalg.inv
        for a, f in zip(found, functions, strict=True):
            expected = np.stack([f(each) for each in A])
            assert_close(a, expected, 200 * lib.eps * np.abs(expected).max(), like=lib.like)

    def test_one_exponent_per_matrix(self, eager):
        lib, A = eager, 3.0 * POINTS
        for t, matrix in ((TIMES, A), (TIMES[:4], A[:1]), (TIMES[:4, None], A[:2]), (TIMES[0], A)):
            shape = np.broadcast_shapes(t.shape, matrix.shape[:-2])
            whole = np.broadcast_to(matrix, (*shape, 3, 3)), np.broadcast_to(t, shape)
            found = matrix_power(lib.array(matrix), lib.array(t))
            assert_close(found, by_eigh(np.power, *whole), 200 * lib.eps, like=lib.like)
        number, array = (matrix_power(lib.array(A), t) for t in (0.3, lib.array(0.3)))
        assert_close(number, array, 10 * lib.eps)

    def test_the_symmetric_part(self, lib):
        A, skew = 3.0 * POINTS, 0.3 * (DIRECTION - np.swapaxes(DIRECTION, -1, -2))
        found = matrix_function(lib.array(A + skew), LOG)
        assert_close(found, by_eigh(np.log, A), 50 * lib.eps, like=lib.like)

    def test_one_bad_matrix(self, lib):
        """NaN for it, and the same numbers as ever for the others; likewise of gradients."""
        A = POINTS.copy()
        A[1, 0, 2], A[3, 1, 1] = np.nan, np.inf
        good = [0, 2, 4, 5, 6]
        found, clean = (host(matrix_function(lib.array(a), LOG)) for a in (A, POINTS))
        assert np.isnan(found[[1, 3]]).all()
        np.testing.assert_array_equal(found[good], clean[good])
        if lib.name == "torch":
            x, y = (lib.array(a).requires_grad_() for a in (A, POINTS))
            for leaf in (x, y):
                (matrix_function(leaf, LOG) * lib.array(WEIGHT)).sum().backward()
            assert x.grad[1].isnan().all()
            assert torch.equal(x.grad[good], y.grad[good])


# ---------------------------------------------------------------------- of matrices: derivatives

ROTATIONS = np.stack([rotation(20 + i) for i in range(len(POINTS))])
SQUARE = POINTS @ ROTATIONS  # the polar factors are C = POINTS and W = ROTATIONS


def by_frame(A):
    """Return log A from its frame; the eigenvectors are constants."""
    eigen = eigh(A)
    return (matmul(matrix_frame(A, LOG, eigen), adjoint(eigen.vectors)),)


def by_polar_factors(A):
    """Return W and f(C) W of A = C W."""
    W = polar(A)
    return W, matmul(matrix_function(matmul(A, adjoint(W)), ANGLE), W)


def by_numpy(*functions):
    """Return functions of symmetric matrices by NumPy alone, analytic everywhere."""

    def function(A, t=None):
        A = 0.5 * (A + np.swapaxes(A, -1, -2))
        return [by_eigh(ORACLES[f], A, np.zeros(len(A)) if t is None else t) for f in functions]

    return function


def _theta(c):
    return np.arccos(c.astype(complex))  # differences at the identity go beyond a cosine of 1


ORACLES = {
    EXP: lambda x, t: np.exp(x),
    LOG: lambda x, t: np.log(x),
    INVERSE_ROOT: lambda x, t: x**-0.5,
    ANGLE: lambda c, t: (1 / np.sinc(_theta(c) / np.pi)).real,
    COSINE_OF_ROOT: lambda u, t: np.cos(np.sqrt(u)),
    SINC_OF_ROOT: lambda u, t: np.sinc(np.sqrt(u) / np.pi),
    "power": lambda x, t: x**t,
}


def polar_by_numpy(A):
    P, c, Th = np.linalg.svd(A)
    return P @ Th, (P * ORACLES[ANGLE](c, None)[..., None, :]) @ Th


def powers(A, t):
    return matrix_power(A, t), matrix_function(A, LOG)


CASES = {
    "power": (powers, by_numpy("power", LOG), (POINTS, TIMES)),
    "frame": (by_frame, by_numpy(LOG), (POINTS,)),
    "polar": (by_polar_factors, polar_by_numpy, (SQUARE,)),
}
"""A function, the same by NumPy, and its inputs."""
EACH = {  # alone: a wrong difference is not to hide among the larger numbers of another
    f"function {k}": (lambda A, f=f: (matrix_function(A, f),), by_numpy(f), (POINTS,))
    for k, f in enumerate(PLAIN)
}


def moves_of(inputs):
    """Yield changes of the inputs: of all at once, then of one with the others constant."""
    all_of_them = DIRECTION, np.linspace(0.5, 1.5, len(POINTS))
    moves = all_of_them[: len(inputs)]
    yield moves
    for which in range(len(inputs)):
        yield tuple(d * (i == which) for i, d in enumerate(moves))


def changes(function, inputs, moves, h=1e-5):
    """The changes of all outputs along ``moves``, by differences."""
    up, down = (
        function(*(x + s * h * d for x, d in zip(inputs, moves, strict=True))) for s in (1, -1)
    )
    return [(a - b) / (2 * h) for a, b in zip(up, down, strict=True)]


def loss(*outputs):
    """One number per matrix that every entry of every output counts in, with its own weight."""
    return sum(
        ((k + 1.0) * a * asarray_like(np.roll(WEIGHT, k, axis=0), a)).sum((-2, -1))
        for k, a in enumerate(outputs)
    )


def asarray_like(values, like):
    """Return the weights of a batch, or under ``vmap`` of one matrix, as ``like`` is."""
    values = values if like.ndim == 3 else values[0]
    if isinstance(like, torch.Tensor):
        return torch.as_tensor(values)
    return values if isinstance(like, np.ndarray) else jnp.asarray(values)


def assert_slope(found, expected):
    """Check each matrix's derivative to 1e-6 of its own size; some by t are exactly zero."""
    found, expected = (np.asarray(a).reshape(len(POINTS), -1) for a in (found, expected))
    size = np.maximum(np.linalg.norm(expected, axis=-1), 1e-3)
    miss = np.linalg.norm(found - expected, axis=-1)
    assert np.all(miss <= 1e-6 * size), dict(zip(SPECTRA, miss / size, strict=True))


def along(gradients, moves):
    """Return gradients along a change of the inputs, one number per matrix."""
    return sum(
        np.reshape(np.asarray(g) * d, (len(POINTS), -1)).sum(-1)
        for g, d in zip(gradients, moves, strict=True)
    )


class TestDerivatives:
    """Of every function, by matrices and by t, at repeated and nearly repeated eigenvalues."""

    @pytest.mark.parametrize("name", [*CASES, *EACH])
    def test_torch(self, name):
        function, oracle, inputs = (CASES | EACH)[name]
        leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
        tensors = tuple(map(torch.as_tensor, inputs))
        loss(*function(*leaves)).sum().backward()
        for moves in moves_of(inputs):
            expected = changes(oracle, inputs, moves)
            assert_slope(along([leaf.grad for leaf in leaves], moves), loss(*expected))
            values, found = torch.func.jvp(function, tensors, tuple(map(torch.as_tensor, moves)))
            for value, clean, a, e in zip(values, function(*inputs), found, expected, strict=True):
                np.testing.assert_allclose(value, clean, atol=1e-14)
                assert_slope(a, e)
        with torch.autograd.forward_ad.dual_level():
            duals = map(torch.autograd.forward_ad.make_dual, tensors, map(torch.as_tensor, moves))
            for a, e in zip(function(*duals), expected, strict=True):
                assert_slope(torch.autograd.forward_ad.unpack_dual(a).tangent, e)

    @pytest.mark.parametrize("name", CASES)
    def test_torch_vmap(self, name):
        function, _, inputs = CASES[name]
        tensors = [torch.as_tensor(x) for x in inputs]
        for a, e in zip(torch.func.vmap(function)(*tensors), function(*tensors), strict=True):
            np.testing.assert_allclose(a, e, atol=1e-13)

        def total(*x):
            return loss(*function(*x)).sum()

        slope = torch.func.grad(total, argnums=tuple(range(len(inputs))))
        together = torch.func.vmap(slope)(*tensors)
        alone = [slope(*(x[i] for x in tensors)) for i in range(len(POINTS))]
        for a, e in zip(together, zip(*alone, strict=True), strict=True):
            np.testing.assert_allclose(a, torch.stack(e), rtol=1e-11, atol=1e-11)
        # the same by another order of the two, and forward
        first = torch.func.grad(lambda *x: torch.func.vmap(total)(*x).sum())(*tensors)
        np.testing.assert_allclose(first, together[0], rtol=1e-11, atol=1e-11)
        move = torch.as_tensor(DIRECTION)
        forward = torch.func.vmap(
            lambda A, d, *x: torch.func.jvp(lambda A: total(A, *x), (A,), (d,))[1]
        )(tensors[0], move, *tensors[1:])
        np.testing.assert_allclose(forward, (together[0] * move).sum((-2, -1)), rtol=1e-10)

    @pytest.mark.parametrize("name", CASES)
    def test_jax(self, name):
        """With ``jit`` and without, and in lanes."""
        function, oracle, inputs = CASES[name]
        moves = next(moves_of(inputs))
        arrays, tangents = (tuple(map(jnp.asarray, x)) for x in (inputs, moves))
        slope = jax.grad(lambda *x: loss(*function(*x)).sum(), argnums=tuple(range(len(inputs))))
        expected = changes(oracle, inputs, moves)

        def both(arrays, tangents):
            return slope(*arrays), jax.jvp(function, arrays, tangents)[1]

        for call in (both, jax.jit(both)):
            gradients, found = call(arrays, tangents)
            assert_slope(along(gradients, moves), loss(*expected))
            for a, e in zip(found, expected, strict=True):
                assert_slope(a, e)
        by_vmap, one = jax.jit(jax.vmap(slope))(*arrays), jax.jit(slope)
        alone = [one(*(x[i] for x in arrays)) for i in range(len(POINTS))]
        for a, e in zip(by_vmap, zip(*alone, strict=True), strict=True):
            np.testing.assert_allclose(a, np.stack(e), rtol=1e-11, atol=1e-11)
        for found in (jax.jit(function)(*arrays), jax.jit(jax.vmap(function))(*arrays)):
            for a, e in zip(found, oracle(*inputs), strict=True):
                np.testing.assert_allclose(a, e, atol=1e-13)

    @pytest.mark.parametrize("name", [*CASES, *EACH])
    def test_single_precision(self, name):
        """The derivatives of float32 are float32, and near those of float64."""
        function, _, inputs = (CASES | EACH)[name]
        slopes = []
        for dtype in (torch.float32, torch.float64):
            leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in inputs]
            total = sum((a * torch.as_tensor(WEIGHT, dtype=dtype)).sum() for a in function(*leaves))
            slopes.append(torch.autograd.grad(total, leaves))
        for a, b in zip(*slopes, strict=True):
            assert a.dtype == torch.float32
            assert (a - b).norm() < 1e-4 * b.norm()

    def test_broadcast_inputs(self):
        """One matrix and many exponents."""
        found = []
        for matrix in (2.0 * POINTS[0], np.repeat(2.0 * POINTS[:1], 7, 0)):
            leaves = [torch.tensor(a, requires_grad=True) for a in (matrix, TIMES)]
            total = (matrix_power(*leaves) * torch.as_tensor(WEIGHT)).sum()
            found.append(torch.autograd.grad(total, leaves))
        (one, many), (full, times) = found
        np.testing.assert_allclose(one, full.sum(0), rtol=1e-12)
        np.testing.assert_allclose(many, times, rtol=1e-12)

    def test_values_alone_need_no_graph(self):
        A = torch.tensor(POINTS, requires_grad=True)
        with torch.no_grad():
            assert not matrix_function(A, LOG).requires_grad
        assert not matrix_function(A.detach(), LOG).requires_grad


# ---------------------------------------------------------------------- polar factors


class TestPolar:
    def test_against_scipy(self, lib):
        """The orthogonal factor has the sign of the determinant, whichever that is."""
        for A in (SQUARE, SQUARE * np.asarray([1.0, 1.0, -1.0])):
            W = host(polar(lib.array(A)))
            expected = np.stack([scipy.linalg.polar(a)[0] for a in A])
            np.testing.assert_allclose(W, expected, atol=50 * lib.eps)

    def test_one_bad_matrix(self, lib):
        A = SQUARE.copy()
        A[2, 1, 0], A[5, 0, 0] = np.nan, np.inf
        good = np.asarray([0, 1, 3, 4, 6])
        found, clean = (host(polar(lib.array(a))) for a in (A, SQUARE))
        assert np.isnan(found[[2, 5]]).all()
        np.testing.assert_array_equal(found[good], clean[good])

    def test_singular_matrices(self, lib):
        """Of rank two, one and zero: no derivative exists, but there is no NaN either."""
        ranks = np.asarray([2, 1, 0, 2, 1, 0, 2])
        c = np.where(np.arange(3) < ranks[:, None], [0.9, 0.4, 0.2], 0.0)
        A = (Q * c[:, None, :]) @ ROTATIONS
        W = host(polar(lib.array(A)))
        np.testing.assert_allclose(W @ W.mT, np.broadcast_to(np.eye(3), A.shape), atol=20 * lib.eps)
        C = A @ W.mT
        np.testing.assert_allclose(C, C.mT, atol=20 * lib.eps)
        if lib.name == "torch":
            x = lib.array(A).requires_grad_(True)
            assert torch.autograd.grad(loss(polar(x.double())).sum(), x)[0].isfinite().all()
        if lib.name == "jax":
            slope = jax.grad(lambda x: loss(polar(x)).sum())
            assert np.isfinite(jax.jit(slope)(lib.array(A))).all()


# ---------------------------------------------------------------------- triangles


class TestTriangles:
    @pytest.mark.parametrize(("sign", "weight"), [(1, 2**0.5), (-1, 1.0), (-1, 2**0.5)])
    def test_and_back(self, sign, weight, lib):
        """Symmetric matrices with their diagonals, and skew ones without."""
        A, diagonal = DIRECTION + sign * np.swapaxes(DIRECTION, -1, -2), sign == 1
        c = to_triangle(lib.array(A), diagonal, weight)
        assert c.shape == (7, 6 if diagonal else 3)
        assert_close(from_triangle(c, 3, diagonal, weight, sign), lib.array(A), 8 * lib.eps)
        if weight != 1.0:  # their norm is that of the matrices
            norm = np.linalg.norm(A, axis=(-2, -1))
            np.testing.assert_allclose(np.linalg.norm(host(c), axis=-1), norm, rtol=4 * lib.eps)

    def test_lower(self, lib):
        """Row by row: the diagonal keeps its weight, and what is above it is lost."""
        A = lib.array(np.arange(9.0).reshape(3, 3))
        strict, full = to_triangle(A, False), to_triangle(A, True, 2.0)
        assert host(strict).tolist() == [3.0, 6.0, 7.0]
        assert host(full).tolist() == [0.0, 6.0, 4.0, 12.0, 14.0, 8.0]
        assert host(from_triangle(strict, 3, False)).tolist() == [[0, 0, 0], [3, 0, 0], [6, 7, 0]]
        assert host(from_triangle(full, 3, True, 2.0)).tolist() == [[0, 0, 0], [3, 4, 0], [6, 7, 8]]
        assert from_triangle(full, 3, True).dtype == A.dtype
        one = to_triangle(lib.array([[5.0]]), True, 2.0)
        assert host(from_triangle(one, 1, True, 2.0, 1.0)).tolist() == [[5.0]]

    def test_jax_of_single_precision(self):
        """As JAX is unless told otherwise: no warning that there are no wide integers."""
        with jax.enable_x64(False), warnings.catch_warnings():
            warnings.simplefilter("error")
            A = jnp.asarray(POINTS, dtype=jnp.float32)
            again = from_triangle(to_triangle(A, True), 3, True, mirror=1.0)
        np.testing.assert_array_equal(again, A)
