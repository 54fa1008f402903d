"""Functions of matrices: values, first derivatives at repeated eigenvalues, refused second ones."""

import warnings

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.linalg
import torch
from conftest import assert_close, host

from gyrobn.numerics.linalg import polar, symmetric_functions
from gyrobn.numerics.matrices import from_triangle, matmul, to_triangle, transpose
from gyrobn.numerics.spectra import Pairs, Spectrum
from gyrobn.numerics.spectral import (
    ANGLE,
    COSINE_OF_ROOT,
    EXP,
    INVERSE,
    INVERSE_ROOT,
    LOG,
    POWER,
    ROOT,
    SINC_OF_ROOT,
    power,
)

# torch.func.jvp and forward_ad import what they themselves call deprecated
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

# ---------------------------------------------------------------------- of eigenvalues

DIGITS = 60
GAPS = (0.0, 1e-12, 1e-8, 1e-5, 1e-3, 3e-2, 0.09, 0.11, 0.5)
COSINES = (1.0, 1 - 1e-12, 1 - 1e-7, 0.999, 0.99, 0.9, 0.7, 0.5, 0.3, 1e-3, 0.0)
ROOTS = (0.0, 1e-12, 1e-5, 0.0999, 0.1001, 0.5, 2.0, 2.4674)  # squares of angles up to π/2


def _sinc_of_root(u):
    root = mp.sqrt(u)
    return mp.mpf(1) if u == 0 else mp.re(mp.sin(root) / root)


def _angle(c, t):
    theta = mp.acos(c)
    return mp.mpf(1) if theta == 0 else mp.re(theta / mp.sin(theta))


EXACT = {
    "EXP": (EXP, lambda x, t: mp.exp(x)),
    "LOG": (LOG, lambda x, t: mp.log(x)),
    "POWER": (POWER, lambda x, t: mp.power(x, t)),
    "power(-0.5)": (power(-0.5), lambda x, t: 1 / mp.sqrt(x)),
    "power(3.0)": (power(3.0), lambda x, t: x**3),
    "ROOT": (ROOT, lambda x, t: mp.sqrt(x)),
    "INVERSE_ROOT": (INVERSE_ROOT, lambda x, t: 1 / mp.sqrt(x)),
    "INVERSE": (INVERSE, lambda x, t: 1 / x),
    "ANGLE": (ANGLE, _angle),
    "COSINE_OF_ROOT": (COSINE_OF_ROOT, lambda u, t: mp.re(mp.cos(mp.sqrt(u)))),
    "SINC_OF_ROOT": (SINC_OF_ROOT, lambda u, t: _sinc_of_root(u)),
}
POSITIVE = ("LOG", "POWER", "power(-0.5)", "power(3.0)")
POSITIVE += ("ROOT", "INVERSE_ROOT", "INVERSE")
ANY_SIZE = [(name, None) for name in POSITIVE if name != "POWER"]
ANY_SIZE += [("POWER", t) for t in (0.3, -1.3, 2.0)]
BOUNDED = [("EXP", None), ("ANGLE", None), ("COSINE_OF_ROOT", None), ("SINC_OF_ROOT", None)]


def pairs(name, dtype="float64"):
    """Points to test the function at, twice: x, and y at each of the gaps from it."""
    if name in POSITIVE:
        found = [(m, m * (1 - gap)) for m in (1e-26, 1.0, 1e20) for gap in GAPS]
        found += [(b, a) for a, b in found] + [(1e20, 1.0), (1e-13, 3.0)]
    elif name == "EXP":
        found = [(x, x - gap) for x in (-40.0, -0.3, 0.25, 5.0) for gap in (*GAPS, 3.0, 20.0)]
    else:
        starts = ROOTS if "OF_ROOT" in name else COSINES
        found = [(x, y) for x in starts for gap in GAPS for y in (x - gap, x + gap)]
        top = 2.5 if "OF_ROOT" in name else 1.0
        found = [(x, y) for x, y in found if 0.0 <= y <= top]
    x, y = np.asarray(found, dtype=dtype).T
    return x, y


def exact_quotient(f, x, y, t):
    with mp.workdps(DIGITS):
        x, y = mp.mpf(float(x)), mp.mpf(float(y))
        t = None if t is None else mp.mpf(t)
        if x == y:
            return mp.re(mp.diff(lambda s: f(s, t), x))
        return (f(x, t) - f(y, t)) / (x - y)


def error(found, exact, floor=0.0):
    """Largest error, relative to the exact number or, where that is smaller, to ``floor``."""
    with mp.workdps(DIGITS):
        scales = [max(abs(e), mp.mpf(floor)) for e in exact]
        return max(
            float(abs(mp.mpf(float(a)) - e) / s if s else abs(mp.mpf(float(a)) - e))
            for a, e, s in zip(found, exact, scales, strict=True)
        )


@pytest.mark.parametrize(("name", "t"), ANY_SIZE + BOUNDED)
class TestEigenvalues:
    """Against 60 digits, at every gap between eigenvalues and for magnitudes 1e-26 to 1e20."""

    def test_value(self, name, t):
        f, exact = EXACT[name]
        x = np.unique(pairs(name)[0])
        with mp.workdps(DIGITS):
            expected = [exact(mp.mpf(float(a)), None if t is None else mp.mpf(t)) for a in x]
        amplitude = 1.0 if "COSINE" in name else 0.0
        assert error(f.value(Spectrum(x), t), expected, amplitude) <= 1e-13

    def test_quotient(self, name, t):
        f, exact = EXACT[name]
        x, y = pairs(name)
        expected = [exact_quotient(exact, a, b, t) for a, b in zip(x, y, strict=True)]
        assert error(f.quotient(Pairs(Spectrum(x), Spectrum(y)), t), expected) <= 1e-13
        assert error(f.quotient(Pairs(Spectrum(y), Spectrum(x)), t), expected) <= 1e-13

    def test_quotient_of_single_precision(self, name, t):
        f, exact = EXACT[name]
        x, y = pairs(name, "float32")
        expected = [exact_quotient(exact, a, b, t) for a, b in zip(x, y, strict=True)]
        if name in POSITIVE:  # where the numbers themselves exist
            with mp.workdps(DIGITS):
                sizes = [
                    (abs(exact(mp.mpf(float(a)), t)), abs(e))
                    for a, e in zip(x, expected, strict=True)
                ]
            keep = [all(s == 0 or 1e-37 < s < 1e37 for s in pair) for pair in sizes]
            x, y = x[keep], y[keep]
            expected = [e for e, k in zip(expected, keep, strict=True) if k]
        found = f.quotient(Pairs(Spectrum(x), Spectrum(y)), t)
        assert found.dtype == np.float32
        assert error(found, expected) <= 3e-5

    def test_slope(self, name, t):
        f, exact = EXACT[name]
        if t is None:
            assert f.slope is None
            return
        x = np.unique(pairs(name)[0])
        with mp.workdps(DIGITS):
            expected = [
                mp.re(mp.diff(lambda s, a=a: exact(mp.mpf(float(a)), s), mp.mpf(t))) for a in x
            ]
        assert error(f.slope(Spectrum(x), t), expected) <= 1e-13


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

PLAIN = (EXP, LOG, power(-0.5), ANGLE, COSINE_OF_ROOT, SINC_OF_ROOT)
TIMED = (POWER, LOG)


def by_eigh(f, A, t=None):
    """Apply a NumPy function to the eigenvalues of each matrix."""
    values, U = np.linalg.eigh(A)
    found = f(values) if t is None else f(values, np.asarray(t)[..., None])
    return (U * found[..., None, :]) @ np.swapaxes(U, -1, -2)


class TestSymmetric:
    def test_against_scipy(self, lib):
        A = 3.0 * POINTS
        found = symmetric_functions(lib.array(A), LOG, EXP, power(0.5), power(-1.0))
        expected = [
            np.stack([f(a) for a in A])
            for f in (
                scipy.linalg.logm,
                scipy.linalg.expm,
                scipy.linalg.sqrtm,
                np.linalg.inv,
            )
        ]
        assert len(found) == 4
        for a, e in zip(found, expected, strict=True):
            assert_close(a, e, 200 * lib.eps * np.abs(e).max(), like=lib.like)

    def test_trigonometric(self, lib):
        """At generic angles, where a formula with the inverse cosine is good enough."""
        A = 0.9 * POINTS
        found = symmetric_functions(lib.array(A), ANGLE, COSINE_OF_ROOT, SINC_OF_ROOT)
        expected = (
            by_eigh(lambda c: np.arccos(c) / np.sqrt(1 - c * c), A),
            by_eigh(lambda u: np.cos(np.sqrt(u)), A),
            by_eigh(lambda u: np.sin(np.sqrt(u)) / np.sqrt(u), A),
        )
        for a, e in zip(found, expected, strict=True):
            assert_close(a, e, 50 * lib.eps, like=lib.like)

    def test_one_exponent_a_matrix(self, lib):
        A, t = lib.array(3.0 * POINTS), lib.array(TIMES)
        raised, angle = symmetric_functions(A, POWER, LOG, t=t)
        assert_close(raised, by_eigh(np.power, 3.0 * POINTS, TIMES), 200 * lib.eps, like=lib.like)
        assert_close(angle, by_eigh(np.log, 3.0 * POINTS), 50 * lib.eps, like=lib.like)

    def test_broadcasting(self, eager):
        lib = eager
        A = 3.0 * POINTS[:2]
        for exponent, matrix, shape in (
            (TIMES[:4], A[0], (4,)),
            (TIMES[:4], A[:, None], (2, 4)),
            (TIMES[:4, None], A, (4, 2)),
            (TIMES[0], A, (2,)),
        ):
            (found,) = symmetric_functions(lib.array(matrix), POWER, t=lib.array(exponent))
            expected = by_eigh(
                np.power,
                np.broadcast_to(matrix, (*shape, 3, 3)),
                np.broadcast_to(exponent, shape),
            )
            assert found.shape == (*shape, 3, 3)
            assert_close(found, expected, 200 * lib.eps, like=lib.like)
        number = symmetric_functions(lib.array(A), POWER, t=0.3)[0]
        array = symmetric_functions(lib.array(A), POWER, t=lib.array(0.3))[0]
        assert_close(number, array, 10 * lib.eps)

    def test_the_symmetric_part(self, lib):
        A, skew = 3.0 * POINTS, 0.3 * (DIRECTION - np.swapaxes(DIRECTION, -1, -2))
        (found,) = symmetric_functions(lib.array(A + skew), LOG)
        assert_close(found, by_eigh(np.log, A), 50 * lib.eps, like=lib.like)

    def test_one_bad_matrix(self, lib):
        """NaN for it, and the same numbers as ever for the others."""
        A = POINTS.copy()
        A[1, 0, 2], A[3, 1, 1] = np.nan, np.inf
        good = np.asarray([0, 2, 4, 5, 6])
        clean = symmetric_functions(lib.array(POINTS), LOG, POWER, t=0.7)
        for a, e in zip(symmetric_functions(lib.array(A), LOG, POWER, t=0.7), clean, strict=True):
            assert np.isnan(host(a)[[1, 3]]).all()
            np.testing.assert_array_equal(host(a)[good], host(e)[good])

    def test_the_gradient_of_one_bad_matrix(self):
        A = POINTS.copy()
        A[1, 0, 2] = np.nan
        x = torch.tensor(A, requires_grad=True)
        (symmetric_functions(x, LOG)[0] * torch.as_tensor(WEIGHT)).sum().backward()
        y = torch.tensor(POINTS, requires_grad=True)
        (symmetric_functions(y, LOG)[0] * torch.as_tensor(WEIGHT)).sum().backward()
        good = [0, 2, 3, 4, 5, 6]
        assert x.grad[1].isnan().all()
        assert torch.equal(x.grad[good], y.grad[good])


# ---------------------------------------------------------------------- of matrices: derivatives

TURNS = np.stack([rotation(20 + i) for i in range(len(POINTS))])
SQUARE = POINTS @ TURNS  # the polar factors are C = POINTS and W = TURNS


def symmetric_plain(A):
    return symmetric_functions(A, *PLAIN)


def symmetric_timed(A, t):
    return symmetric_functions(A, *TIMED, t=t)


def only_polar(A):
    return (polar(A),)


CALLS = {
    "symmetric": (symmetric_plain, (POINTS,)),
    "symmetric, with t": (symmetric_timed, (POINTS, TIMES)),
    "polar": (only_polar, (SQUARE,)),
}


def _theta(c):
    return np.arccos(c.astype(complex))  # differences at the identity go beyond a cosine of 1


ORACLES = {
    EXP: lambda x, t: np.exp(x),
    LOG: lambda x, t: np.log(x),
    ANGLE: lambda c, t: (1 / np.sinc(_theta(c) / np.pi)).real,
    COSINE_OF_ROOT: lambda u, t: np.cos(np.sqrt(u)),
    SINC_OF_ROOT: lambda u, t: np.sinc(np.sqrt(u) / np.pi),
    POWER: lambda x, t: x**t,
}


def by_numpy(*functions):
    """Return functions of symmetric matrices by NumPy alone, analytic everywhere."""

    def function(A, t=None):
        c, P = np.linalg.eigh(0.5 * (A + np.swapaxes(A, -1, -2)))
        found = []
        for f in functions:
            values = ORACLES.get(f, lambda x, t: x**-0.5)(c, np.asarray(t)[..., None])
            found.append((P * values[..., None, :]) @ np.swapaxes(P, -1, -2))
        return found

    return function


def polar_by_numpy(A):
    P, _, Th = np.linalg.svd(A)
    return (P @ Th,)


EXPECTED = {
    "symmetric": by_numpy(*PLAIN),
    "symmetric, with t": by_numpy(*TIMED),
    "polar": polar_by_numpy,
}


def loss(function):
    """A number that every entry of every output counts in, each with a weight of its own."""

    def total(*inputs):
        found = function(*inputs)
        return sum(
            ((k + 1.0) * a * asarray_like(np.roll(WEIGHT, k, axis=0), a)).sum()
            for k, a in enumerate(found)
        )

    return total


def asarray_like(values, like):
    """Return the weights of a batch, or under ``vmap`` of one matrix, as ``like`` is."""
    values = values if like.ndim == 3 else values[0]
    if isinstance(like, torch.Tensor):
        return torch.as_tensor(values)
    return values if isinstance(like, np.ndarray) else jnp.asarray(values)


def differences(function, inputs, which, h=1e-5):
    """The gradient of ``loss`` by one input, by differences, one entry per matrix at once."""
    x = inputs[which]
    entries = np.ndindex(x.shape[1:])
    found = np.zeros_like(x)
    for entry in entries:
        step = np.zeros_like(x)
        step[:, *entry] = h
        ends = []
        for sign in (1, -1):
            moved = [a + sign * step if i == which else a for i, a in enumerate(inputs)]
            ends.append(
                sum(
                    ((k + 1.0) * a * np.roll(WEIGHT, k, axis=0)).sum((-2, -1))
                    for k, a in enumerate(function(*moved))
                )
            )
        found[:, *entry] = (ends[0] - ends[1]) / (2 * h)
    return found


def assert_slope(found, expected):
    """Check each matrix's derivative to 1e-6 of its own size; some by t are exactly zero."""
    found = np.asarray(found).reshape(len(expected), -1)
    expected = expected.reshape(len(expected), -1)
    size = np.maximum(np.linalg.norm(expected, axis=-1), 1e-3)
    miss = np.linalg.norm(found - expected, axis=-1)
    assert np.all(miss <= 1e-6 * size), dict(zip(SPECTRA, miss / size, strict=True))


def changes(inputs):
    return tuple(d for d, _ in zip((DIRECTION, np.linspace(0.5, 1.5, 7)), inputs, strict=False))


def differences_along(function, inputs, moves, h=1e-5):
    """The changes of all outputs along ``moves``."""
    up, down = (
        function(*(x + s * h * d for x, d in zip(inputs, moves, strict=True))) for s in (1, -1)
    )
    return [(a - b) / (2 * h) for a, b in zip(up, down, strict=True)]


@pytest.mark.parametrize("name", CALLS)
class TestDerivatives:
    """Of every function, by matrices and by t, at repeated and nearly repeated eigenvalues."""

    def test_torch_backward(self, name):
        function, inputs = CALLS[name]
        leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
        loss(function)(*leaves).backward()
        for which, leaf in enumerate(leaves):
            assert_slope(leaf.grad, differences(EXPECTED[name], inputs, which))

    def test_torch_backward_by_one_input(self, name):
        function, inputs = CALLS[name]
        for which in range(len(inputs)):
            leaves = [torch.tensor(x, requires_grad=i == which) for i, x in enumerate(inputs)]
            loss(function)(*leaves).backward()
            assert_slope(leaves[which].grad, differences(EXPECTED[name], inputs, which))

    def test_torch_forward(self, name):
        function, inputs = CALLS[name]
        tensors = tuple(map(torch.as_tensor, inputs))
        for which in range(-1, len(inputs)):  # all at once, then by one with the others constant
            moves = changes(inputs)
            if which >= 0:
                moves = tuple(d * (i == which) for i, d in enumerate(moves))
                inner = lambda x, k=which: function(*tensors[:k], x, *tensors[k + 1 :])  # noqa: E731
                given = (tensors[which],), (torch.as_tensor(moves[which]),)
            else:
                inner, given = function, (tensors, tuple(map(torch.as_tensor, moves)))
            values, found = torch.func.jvp(inner, *given)
            expected = differences_along(EXPECTED[name], inputs, moves)
            for value, clean in zip(values, function(*inputs), strict=True):
                np.testing.assert_allclose(value, clean, atol=1e-14)
            for a, e in zip(found, expected, strict=True):
                assert_slope(a, e)

    def test_torch_dual_numbers(self, name):
        function, inputs = CALLS[name]
        expected = differences_along(EXPECTED[name], inputs, changes(inputs))
        with torch.autograd.forward_ad.dual_level():
            duals = [
                torch.autograd.forward_ad.make_dual(torch.as_tensor(x), torch.as_tensor(d))
                for x, d in zip(inputs, changes(inputs), strict=True)
            ]
            for a, e in zip(function(*duals), expected, strict=True):
                assert_slope(torch.autograd.forward_ad.unpack_dual(a).tangent, e)

    def test_torch_vmap(self, name):
        function, inputs = CALLS[name]
        tensors = [torch.as_tensor(x) for x in inputs]
        for a, e in zip(torch.func.vmap(function)(*tensors), function(*tensors), strict=True):
            np.testing.assert_allclose(a, e, atol=1e-13)
        which = tuple(range(len(inputs)))
        slope = torch.func.grad(loss(function), argnums=which)
        together = torch.func.vmap(slope)(*tensors)
        alone = [slope(*(x[i] for x in tensors)) for i in range(len(POINTS))]
        for k in which:
            np.testing.assert_allclose(
                together[k], torch.stack([a[k] for a in alone]), rtol=1e-11, atol=1e-11
            )
        # the same by another order of the two, and forward
        first = torch.func.grad(lambda *x: torch.func.vmap(loss(function))(*x).sum())(*tensors)
        np.testing.assert_allclose(first, together[0], rtol=1e-11, atol=1e-11)
        move = torch.as_tensor(DIRECTION)
        along = torch.func.vmap(
            lambda *x: torch.func.jvp(lambda A: loss(function)(A, *x[2:]), (x[0],), (x[1],))[1]
        )(tensors[0], move, *tensors[1:])
        np.testing.assert_allclose(along, (together[0] * move).sum((-2, -1)), rtol=1e-10)


def some_symmetric(A, t):
    return symmetric_functions(A, LOG, POWER, t=t)


@pytest.mark.parametrize(
    ("function", "inputs", "by_numpy"),
    [
        (some_symmetric, (POINTS, TIMES), by_numpy(LOG, POWER)),
        (only_polar, (SQUARE,), polar_by_numpy),
    ],
    ids=["symmetric", "polar"],
)
class TestDerivativesOfJax:
    """The same, with fewer functions: they take long to compile."""

    def test_by_all(self, function, inputs, by_numpy):
        arrays, moves = (tuple(map(jnp.asarray, x)) for x in (inputs, changes(inputs)))
        which = tuple(range(len(inputs)))
        slope = jax.grad(loss(function), argnums=which)
        expected = [differences(by_numpy, inputs, k) for k in which]
        along = differences_along(by_numpy, inputs, changes(inputs))

        def everything(arrays, moves):
            return slope(*arrays), jax.vmap(slope)(*arrays), jax.jvp(function, arrays, moves)[1]

        by_all, by_vmap, forward = jax.jit(everything)(arrays, moves)
        for a, e in zip((*by_all, *forward), (*expected, *along), strict=True):
            assert_slope(a, e)
        one = jax.jit(slope)
        alone = [one(*(x[i] for x in arrays)) for i in range(len(POINTS))]
        for k in which:
            np.testing.assert_allclose(
                by_vmap[k], np.stack([a[k] for a in alone]), rtol=1e-11, atol=1e-11
            )

    def test_values(self, function, inputs, by_numpy):
        arrays = tuple(map(jnp.asarray, inputs))
        expected = by_numpy(*inputs)
        for found in (jax.jit(function)(*arrays), jax.jit(jax.vmap(function))(*arrays)):
            for a, e in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, e, atol=1e-13)


@pytest.mark.parametrize(
    ("function", "A"),
    [(lambda A: symmetric_functions(A, LOG), POINTS), (only_polar, SQUARE)],
    ids=["symmetric", "polar"],
)
def test_derivatives_of_jax_outside_of_jit(function, A):
    x, d = jnp.asarray(A), jnp.asarray(DIRECTION)
    assert_slope(jax.grad(loss(function))(x), differences(function, (A,), 0))
    (along,) = jax.jvp(function, (x,), (d,))[1]
    assert_slope(along, differences_along(function, (A,), (DIRECTION,))[0])


def test_each_function_alone():
    """A wrong quotient of one is not to hide among the larger numbers of another."""
    for f in (*PLAIN, POWER):
        t = 0.7 if f is POWER else None

        def function(A, f=f, t=t):
            return symmetric_functions(A, f, t=t)

        def expected(A, f=f, t=t):
            return by_numpy(f)(A, t)

        leaf = torch.tensor(POINTS, requires_grad=True)
        loss(function)(leaf).backward()
        assert_slope(leaf.grad, differences(expected, (POINTS,), 0))


def test_single_precision():
    """The slopes of float32 are float32, and near those of float64."""
    for name, (function, inputs) in CALLS.items():
        slopes = []
        for dtype in (torch.float32, torch.float64):
            leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in inputs]
            total = sum((a * torch.as_tensor(WEIGHT, dtype=dtype)).sum() for a in function(*leaves))
            total.backward()
            slopes.append([leaf.grad for leaf in leaves])
        for a, b in zip(*slopes, strict=True):
            assert a.dtype == torch.float32
            assert (a - b).norm() < 1e-4 * b.norm(), name


def test_slope_of_broadcast_inputs():
    """One matrix and many exponents, and the other way round."""
    A, t = POINTS[:1] * 2.0, TIMES
    many = torch.tensor(t, requires_grad=True)
    one = torch.tensor(A[0], requires_grad=True)
    (symmetric_functions(one, POWER, t=many)[0] * torch.as_tensor(WEIGHT)).sum().backward()
    full = torch.tensor(np.repeat(A, 7, 0), requires_grad=True)
    times = torch.tensor(t, requires_grad=True)
    (symmetric_functions(full, POWER, t=times)[0] * torch.as_tensor(WEIGHT)).sum().backward()
    np.testing.assert_allclose(one.grad, full.grad.sum(0), rtol=1e-12)
    np.testing.assert_allclose(many.grad, times.grad, rtol=1e-12)


def test_functions_that_do_not_depend_on_t():
    """Their slope by t is zero; it is an array all the same."""
    call = symmetric_functions
    A, t = torch.tensor(POINTS), torch.tensor(TIMES, requires_grad=True)
    call(A, LOG, t=t)[-1].sum().backward()
    assert torch.equal(t.grad, torch.zeros_like(t))
    found = torch.func.grad(lambda t: call(A, LOG, t=t)[-1].sum())(t.detach())
    assert torch.equal(found, torch.zeros_like(t))
    slope = jax.grad(lambda t: call(jnp.asarray(POINTS), LOG, t=t)[-1].sum())(jnp.asarray(TIMES))
    assert not np.any(slope)


def test_values_alone_need_no_graph():
    A = torch.tensor(POINTS, requires_grad=True)
    with torch.no_grad():
        (found,) = symmetric_functions(A, LOG)
    assert not found.requires_grad
    assert not symmetric_functions(A.detach(), LOG)[0].requires_grad
    assert symmetric_functions(A, LOG)[0].requires_grad


# ---------------------------------------------------------------------- polar factors


class TestPolar:
    def test_against_scipy(self, lib):
        W, tol = polar(lib.array(SQUARE)), 50 * lib.eps
        assert_close(matmul(W, transpose(W)), np.broadcast_to(np.eye(3), SQUARE.shape), tol, W)
        for i, a in enumerate(SQUARE):
            np.testing.assert_allclose(host(W)[i], scipy.linalg.polar(a)[0], atol=tol)

    def test_a_reflection(self):
        """The orthogonal factor has the sign of the determinant, whichever that is."""
        for A in (SQUARE, SQUARE * np.asarray([1.0, 1.0, -1.0])):
            W = polar(A)
            np.testing.assert_allclose(np.linalg.det(W), np.sign(np.linalg.det(A)))

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
        A = (Q * c[:, None, :]) @ TURNS

        W = polar(lib.array(A))
        tol = 20 * lib.eps
        assert_close(matmul(W, transpose(W)), np.broadcast_to(np.eye(3), A.shape), tol, W)
        C = host(matmul(lib.array(A), transpose(W)))
        np.testing.assert_allclose(C, np.swapaxes(C, -1, -2), atol=tol)
        if lib.name == "torch":
            x = lib.array(A).requires_grad_(True)
            (polar(x) * lib.array(WEIGHT)).sum().backward()
            assert x.grad.isfinite().all()
        if lib.name == "jax":
            slope = jax.grad(lambda x: (polar(x) * lib.array(WEIGHT)).sum())
            assert np.isfinite(jax.jit(slope)(lib.array(A))).all()


# ---------------------------------------------------------------------- triangles


class TestTriangles:
    def test_symmetric(self, lib):
        A = lib.array(POINTS)
        c = to_triangle(A, True, 2**0.5)
        assert c.shape == (7, 6)
        np.testing.assert_allclose(
            np.linalg.norm(host(c), axis=-1),
            np.linalg.norm(POINTS, axis=(-2, -1)),
            rtol=4 * lib.eps,
        )
        assert_close(from_triangle(c, 3, True, 2**0.5, 1.0), A, 2 * lib.eps)
        v = lib.array(np.random.default_rng(0).standard_normal((7, 6)))
        back = to_triangle(from_triangle(v, 3, True, 2**0.5, 1.0), True, 2**0.5)
        assert_close(back, v, 4 * lib.eps)

    def test_skew(self, lib):
        A = lib.array(DIRECTION - np.swapaxes(DIRECTION, -1, -2))
        for weight in (1.0, 2**0.5):
            c = to_triangle(A, False, weight)
            assert c.shape == (7, 3)
            assert_close(from_triangle(c, 3, False, weight, -1.0), A, 4 * lib.eps)
        np.testing.assert_allclose(
            np.linalg.norm(host(c), axis=-1),
            np.linalg.norm(host(A), axis=(-2, -1)),
            rtol=4 * lib.eps,
        )

    def test_lower(self, lib):
        """Row by row: the diagonal keeps its weight, and what is above it is lost."""
        A = lib.array(np.arange(9.0).reshape(3, 3))
        strict, full = to_triangle(A, False), to_triangle(A, True, 2.0)
        assert host(strict).tolist() == [3.0, 6.0, 7.0]
        assert host(full).tolist() == [0.0, 6.0, 4.0, 12.0, 14.0, 8.0]
        assert host(from_triangle(strict, 3, False)).tolist() == [[0, 0, 0], [3, 0, 0], [6, 7, 0]]
        assert host(from_triangle(full, 3, True, 2.0)).tolist() == [[0, 0, 0], [3, 4, 0], [6, 7, 8]]
        assert from_triangle(full, 3, True).dtype == A.dtype

    def test_one_by_one(self, eager):
        A = eager.array([[5.0]])
        assert host(to_triangle(A, True, 2.0)).tolist() == [5.0]
        assert host(from_triangle(eager.array([5.0]), 1, True, 2.0, 1.0)).tolist() == [[5.0]]

    def test_jax_of_single_precision(self):
        """As JAX is unless told otherwise: no warning that there are no wide integers."""
        with jax.enable_x64(False), warnings.catch_warnings():
            warnings.simplefilter("error")
            A = jnp.asarray(POINTS, dtype=jnp.float32)
            again = from_triangle(to_triangle(A, True), 3, True, mirror=1.0)
        np.testing.assert_array_equal(again, A)
