"""Rotations: against SciPy's exponentials, logarithms and rotations, and mpmath close to π."""

import functools
import itertools

import jax
import mpmath
import numpy as np
import pytest
import scipy.linalg as sl
import torch
from conftest import Library, host
from scipy.spatial.transform import Rotation

from gyrobn import SpecialOrthogonal, batch_stats, denormalize, frechet, normalize

SIZES = (2, 3, 4, 5, 8)
sizes = pytest.mark.parametrize("n", SIZES)
wide = pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")


def skew(n, c):
    """The skew matrix whose entries below the diagonal are c/√2."""
    X = np.zeros((n, n))
    X[np.tril_indices(n, -1)] = c / 2**0.5
    return X - X.T


def logarithm(R):
    X = np.real(sl.logm(R))
    return 0.5 * (X - X.T)


@functools.cache
def basis(n, seed):
    """A random orthogonal matrix in 50 digits."""
    with mpmath.workdps(50):
        entries = np.random.default_rng(seed).standard_normal((n, n))
        return mpmath.qr(mpmath.matrix(entries.tolist()))[0]


@functools.cache
def exact(n, *angles, seed=0):
    """A rotation by the angles in planes in general position, in 50 digits, then rounded."""
    with mpmath.workdps(50):
        Q = basis(n, seed)
        middle = mpmath.eye(n)
        for k, angle in enumerate(angles):
            c, s = mpmath.cos(angle), mpmath.sin(angle)
            i, j = 2 * k, 2 * k + 1
            middle[i, i], middle[i, j], middle[j, i], middle[j, j] = c, -s, s, c
        return np.asarray((Q * middle * Q.T).tolist(), dtype=float)


def below_pi(delta):
    """π − δ in 50 digits."""
    with mpmath.workdps(50):
        return mpmath.pi - mpmath.mpf(delta)


class TestAgainstScipy:
    @sizes
    def test_exponential_and_logarithm(self, n):
        M = SpecialOrthogonal(n)
        assert M.dim == n * (n - 1) // 2
        c = np.random.default_rng(0).standard_normal((6, M.dim)) / M.dim**0.5 * 2.0
        x = M.from_normal(c)
        expected = np.stack([sl.expm(skew(n, row)) for row in c])
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-14)
        np.testing.assert_allclose(M.to_normal(x), c, rtol=0, atol=1e-13)
        for R, row in zip(x, c, strict=True):
            np.testing.assert_allclose(logarithm(R), skew(n, row), rtol=0, atol=1e-12)
        np.testing.assert_allclose(M.norm(x), np.linalg.norm(c, axis=-1), rtol=1e-14)

    @sizes
    def test_at_another_point(self, n):
        M = SpecialOrthogonal(n)
        x, y = (M.random(4, rng=seed, spread=1.3) for seed in (1, 2))
        v = M.log(x, y)
        for R, S, found in zip(x, y, v, strict=True):
            np.testing.assert_allclose(found, R @ logarithm(R.T @ S), rtol=0, atol=1e-12)
            np.testing.assert_allclose(
                M.exp(R, 0.7 * found), R @ sl.expm(0.7 * logarithm(R.T @ S)), rtol=0, atol=1e-13
            )
            assert abs(M.dist(R, S) - np.linalg.norm(logarithm(R.T @ S))) < 1e-12
        np.testing.assert_allclose(M.inner(x, v, v), np.sum(v * v, axis=(-2, -1)), rtol=1e-13)

    def test_rotations_of_space(self):
        M, there = SpecialOrthogonal(3), Rotation.random(50, rng=np.random.default_rng(0))
        x = there.as_matrix()
        # below the diagonal of the skew matrix: (z, −y, x) of the axis times the angle
        expected = 2**0.5 * there.as_rotvec()[:, [2, 1, 0]] * [1.0, -1.0, 1.0]
        np.testing.assert_allclose(M.to_normal(x), expected, atol=1e-12)
        np.testing.assert_allclose(M.norm(x), 2**0.5 * there.magnitude(), atol=1e-13)
        np.testing.assert_allclose(M.scale(0.3, x), (there**0.3).as_matrix(), atol=1e-13)
        np.testing.assert_allclose(M.add(x[:25], x[25:]), (there[:25] * there[25:]).as_matrix())

    def test_the_plane_is_a_circle(self):
        M, angles = SpecialOrthogonal(2), np.asarray([0.2, 1.0, -0.7, 0.4])
        x = Rotation.from_euler("z", angles[:, None]).as_matrix()[:, :2, :2]
        np.testing.assert_allclose(M.to_normal(x)[:, 0], 2**0.5 * angles, atol=1e-15)
        stats = batch_stats(M, x)
        np.testing.assert_allclose(M.to_normal(stats.mean), [2**0.5 * angles.mean()], atol=1e-15)
        np.testing.assert_allclose(stats.var, 2.0 * np.var(angles), rtol=1e-14)
        assert M.gyrocommutative
        assert not SpecialOrthogonal(3).gyrocommutative


DELTAS = ["1e-2", "1e-4", "1e-6", "1e-7", "1e-8", "1e-9", "1e-10", "1e-11", "1e-12", "1e-13", "0"]


def round_trip(M, x, length, tolerance=1e-13):
    c = M.to_normal(x)
    assert np.isfinite(c).all()
    assert abs(np.linalg.norm(c) - length) < tolerance
    np.testing.assert_allclose(M.from_normal(c), x, rtol=0, atol=1e-12)
    half = M.scale(0.5, x)
    np.testing.assert_allclose(half @ half, x, rtol=0, atol=1e-12)


class TestCloseToPi:
    @pytest.mark.parametrize("delta", DELTAS)
    @pytest.mark.parametrize("n", [4, 5, 8])
    def test_two_planes(self, n, delta):
        M, angle = SpecialOrthogonal(n), below_pi(delta)
        # in two planes at once, a turn by π − 1e-13 may be told from one by π + 1e-13, or not
        round_trip(M, exact(n, angle, angle), 2.0 * float(angle), tolerance=4e-13)
        other = below_pi("1e-9")
        round_trip(M, exact(n, angle, other), 2**0.5 * np.hypot(float(angle), float(other)))
        round_trip(M, exact(n, angle, 1.0), 2**0.5 * np.hypot(float(angle), 1.0))

    @pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
    def test_half_turns_about_the_axes(self, n):
        for turns in itertools.product((1.0, -1.0), repeat=n):
            if np.prod(turns) > 0.0:
                x = np.diag(turns)
                round_trip(SpecialOrthogonal(n), x, np.pi * np.sum(x < 0.0) ** 0.5)

    def test_the_axis(self):
        """Until π − 1e-7 the axis is as good as the entries allow."""
        for delta in (1e-2, 1e-4, 1e-6, 1e-7):
            vector = (np.pi - delta) * np.asarray([0.6, -0.48, 0.64])
            found = SpecialOrthogonal(3).to_normal(Rotation.from_rotvec(vector).as_matrix())
            expected = 2**0.5 * vector[[2, 1, 0]] * [1.0, -1.0, 1.0]
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-13)

    def test_in_a_batch(self, eager: Library):
        """Bad and good rotations together: none spoils another."""
        M = SpecialOrthogonal(4)
        batch = np.stack([exact(4, 1.0), -np.eye(4), np.eye(4), exact(4, below_pi("1e-9"), 0.1)])
        x = eager.array(batch)
        together = host(M.to_normal(x))
        for i in range(4):
            np.testing.assert_allclose(
                host(M.norm(x[i, ...])), np.linalg.norm(together[i]), atol=100 * eager.eps
            )
        np.testing.assert_allclose(host(M.from_normal(M.to_normal(x))), batch, atol=1e4 * eager.eps)


def in_random_planes(n, planes, delta, count, seed=0):
    """Rotations by π − δ in planes of every orientation."""
    rng = np.random.default_rng([seed, n, planes])
    Q = np.linalg.qr(rng.standard_normal((count, n, n)))[0]
    turn = np.eye(n)
    cos, sin = -np.cos(delta), np.sin(delta)
    for i in range(0, 2 * planes, 2):
        turn[i : i + 2, i : i + 2] = [[cos, -sin], [sin, cos]]
    return Q @ turn @ np.swapaxes(Q, -1, -2)


EVERY = [(n, k) for n in (2, 3, 4, 5, 6, 7, 10) for k in range(1, n // 2 + 1)]


class TestEveryOrientation:
    """Half turns and almost half turns have a logarithm of the right length, and lead back."""

    def check(self, M, x, planes, delta, tolerance, dtype=np.float64):
        x = x.astype(dtype)
        c = M.to_normal(x)
        length = np.linalg.norm(c.astype(float), axis=-1)
        off = abs(length - (2 * planes) ** 0.5 * (np.pi - delta)).max()
        back = abs(M.from_normal(c).astype(float) - x).max()
        assert max(off, back) < tolerance, f"length by {off:.1e}, round trip by {back:.1e}"

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize(("n", "planes"), EVERY)
    def test_half_turns(self, n, planes, dtype):
        x = in_random_planes(n, planes, 0.0, 4000)
        eps = float(np.finfo(dtype).eps)
        self.check(SpecialOrthogonal(n), x, planes, 0.0, 150 * eps, dtype)

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize(("n", "planes"), EVERY)
    def test_almost_half_turns(self, n, planes, dtype):
        """From the last digit to 1e-2; where several planes share an angle close to π, to ~1e-13.

        Then any two vectors of theirs may be taken for a plane.
        """
        M, eps = SpecialOrthogonal(n), float(np.finfo(dtype).eps)
        for i, ulps in enumerate((1, 8, 30, 70, 100, 130, 200, 400, 1e3, 1e4, 1e6, 1e9, 1e11)):
            if ulps * eps < 0.02:
                x = in_random_planes(n, planes, ulps * eps, 400, seed=i)
                tolerance = 150 * eps if planes == 1 or ulps > 1000 else 800 * eps
                self.check(M, x, planes, ulps * eps, tolerance, dtype)

    @pytest.mark.parametrize(("n", "planes"), [(3, 1), (4, 1), (4, 2), (6, 3)])
    @pytest.mark.parametrize("noise", [1e-13, 1e-11, 1e-9])
    def test_rotations_that_are_off(self, n, planes, noise):
        """A matrix that passes for a rotation is one to its own digits, not to the last."""
        M, x = SpecialOrthogonal(n), in_random_planes(n, planes, 0.0, 1000)
        x = x + noise * np.random.default_rng(0).standard_normal(x.shape)
        assert M.contains(x).all()
        self.check(M, x, planes, 0.0, 10 * noise)

    @pytest.mark.parametrize(("n", "planes"), [(3, 1), (4, 2)])
    def test_without_values(self, n, planes):
        """Under jit and vmap no value decides what is computed."""
        M, x = SpecialOrthogonal(n), in_random_planes(n, planes, 0.0, 300)
        expected = (2 * planes) ** 0.5 * np.pi
        compiled = jax.jit(jax.vmap(M.norm))(jax.numpy.asarray(x))
        np.testing.assert_allclose(compiled, expected, atol=3e-14)
        batched = torch.func.vmap(M.norm)(torch.as_tensor(x))
        np.testing.assert_allclose(batched, expected, atol=3e-14)

    @wide
    @pytest.mark.parametrize("n", [3, 4, 5])
    def test_the_mean_of_the_identity_and_a_half_turn(self, n):
        """There are two, a quarter turn each; the mean matrix that leads to them is singular."""
        M = SpecialOrthogonal(n)
        H = in_random_planes(n, 1, 0.0, 200)
        x = np.stack([np.broadcast_to(np.eye(n), H.shape), H])
        result = frechet(M, x)
        assert np.all(result.converged)
        np.testing.assert_allclose(M.dist(result.mean, x), np.pi / 2**0.5, atol=1e-12)


class TestCloseToTheIdentity:
    @sizes
    @pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-8, 1e-12, 1e-15])
    def test_relative_accuracy(self, n, size):
        M = SpecialOrthogonal(n)
        c = size * np.random.default_rng(n).standard_normal(M.dim)
        with mpmath.workdps(50):
            x = np.asarray(mpmath.expm(mpmath.matrix(skew(n, c).tolist())).tolist(), dtype=float)
        assert np.linalg.norm(M.to_normal(x) - c) < 1e-14 * np.linalg.norm(c)
        assert abs(M.norm(x) / np.linalg.norm(c) - 1.0) < 1e-14
        np.testing.assert_allclose(M.from_normal(c), x, rtol=0, atol=n * 4e-16)
        np.testing.assert_allclose(M.to_normal(M.from_normal(c)), c, rtol=1e-13, atol=1e-16)
        assert M.norm(np.eye(n)) == 0.0


class TestInvariance:
    @sizes
    def test_distance_from_both_sides(self, n, eager: Library):
        M = SpecialOrthogonal(n)
        x, y, z = (M.random(5, rng=seed, like=eager.like, spread=1.5) for seed in (1, 2, 3))
        expected = host(M.dist(x, y))
        for one, other in (
            (M.add(z, x), M.add(z, y)),
            (M.add(x, z), M.add(y, z)),
            (M.neg(x), M.neg(y)),
        ):
            np.testing.assert_allclose(host(M.dist(one, other)), expected, atol=1e3 * eager.eps)

    @sizes
    def test_transport(self, n):
        """The pole ladder, which is exact on a symmetric space, with SciPy's exp and log."""
        M = SpecialOrthogonal(n)
        x, y, z = (M.random(3, rng=seed, spread=1.0) for seed in (1, 2, 3))
        v = 0.3 * M.log(x, z)
        for R, S, w, found in zip(x, y, v, M.transport(x, y, v), strict=True):
            middle = R @ sl.expm(0.5 * logarithm(R.T @ S))
            end = R @ sl.expm(R.T @ w)
            mirrored = middle @ end.T @ middle
            np.testing.assert_allclose(found, -S @ logarithm(S.T @ mirrored), atol=1e-12)
            assert abs(S.T @ found + found.T @ S).max() < 1e-13  # tangent


class TestNormalization:
    @pytest.mark.parametrize("n", [3, 5])
    def test_liebn(self, n):
        """B expm(s/√(v² + ε) logm(MᵀR)), by SciPy."""
        M = SpecialOrthogonal(n)
        x = M.add(M.random(rng=1, spread=1.0), M.random(12, rng=2, spread=0.6))
        stats = batch_stats(M, x)
        logs = np.stack([logarithm(stats.mean.T @ R) for R in x])
        np.testing.assert_allclose(np.mean(logs, axis=0), 0.0, atol=1e-12)
        var = np.mean(np.sum(logs**2, axis=(1, 2)))
        np.testing.assert_allclose(stats.var, var, rtol=1e-12)
        bias, s, eps = M.random(rng=3), 0.7, 1e-3
        t = s / np.sqrt(var + eps)
        expected = np.stack([bias @ sl.expm(t * X) for X in logs])
        out = normalize(M, x, stats, bias, s, eps)
        np.testing.assert_allclose(out, expected, atol=1e-12)
        np.testing.assert_allclose(denormalize(M, out, stats, bias, s, eps), x, atol=1e-12)
        again = batch_stats(M, out)
        np.testing.assert_allclose(again.mean, bias, atol=1e-12)
        np.testing.assert_allclose(again.var, s * s * var / (var + eps), rtol=1e-12)

    @wide
    @sizes
    def test_first_order_condition(self, n):
        M, w = SpecialOrthogonal(n), np.linspace(0.2, 1.0, 20)
        x = M.add(M.random(rng=1, spread=1.5), M.random(20, rng=2, spread=1.2))
        result = frechet(M, x, w)
        assert result.converged
        logs = np.stack([logarithm(result.mean.T @ R) for R in x])
        gradient = np.tensordot(w / w.sum(), logs, 1)
        assert np.linalg.norm(gradient) < 1e-12
        assert abs(result.mean @ result.mean.T - np.eye(n)).max() < 1e-14
        others = M.add(result.mean, M.random(20, rng=3, spread=0.05))
        spread = np.sum(w[:, None] / w.sum() * M.dist(x[:, None], others) ** 2, axis=0)
        assert (spread > result.variance).all()


class TestProjection:
    @sizes
    def test_the_nearest_rotation(self, n):
        M, rng = SpecialOrthogonal(n), np.random.default_rng(n)
        for _ in range(10):
            A = rng.standard_normal((n, n))
            found = M.project(A)
            assert M.violation(found) < 1e-14
            U, s, Vt = np.linalg.svd(A)
            signs = np.ones(n)
            signs[-1] = np.sign(np.linalg.det(U @ Vt))
            np.testing.assert_allclose(found, (U * signs) @ Vt, atol=1e-12 / s[-1])
            if signs[-1] > 0:
                np.testing.assert_allclose(found, sl.orthogonal_procrustes(np.eye(n), A)[0])

    @sizes
    def test_a_singular_matrix(self, n):
        """It has several nearest rotations: one of them, and no reflection."""
        M, rng = SpecialOrthogonal(n), np.random.default_rng(n)
        for rank in range(n):
            A = rng.standard_normal((200, n, rank)) @ rng.standard_normal((200, rank, n))
            found = M.project(A)
            assert M.violation(found).max() < 1e-13
            inner = np.sum(A * found, axis=(-2, -1))  # of the nearest: the sum of singular values
            np.testing.assert_allclose(inner, np.linalg.svd(A)[1].sum(-1), atol=1e-12)


def finite_slopes(M, x):
    """Gradients of a distance, a multiple and a projection by the rotation x."""
    leaf = torch.as_tensor(x).clone().requires_grad_(True)
    start = torch.eye(M.n, dtype=torch.float64)
    found = []
    for value in (
        M.dist(start, leaf) ** 2,
        M.dist(start, leaf),
        M.scale(0.4, leaf).sum(),
        M.log(start, leaf).sum(),
        M.project(leaf).sum(),
    ):
        (slope,) = torch.autograd.grad(value, leaf)
        assert torch.isfinite(slope).all()
        found.append(slope.numpy())
    return found


class TestGradients:
    @pytest.mark.parametrize("n", [2, 3, 4, 5])
    def test_at_the_identity(self, n):
        M = SpecialOrthogonal(n)
        square, distance, multiple, log, _ = finite_slopes(M, np.eye(n))
        np.testing.assert_allclose(square, 0.0, atol=1e-15)
        np.testing.assert_allclose(distance, 0.0, atol=1e-15)
        for h in (1.0, -1.0):  # along a skew matrix: by 0.4 h and by h
            X = skew(n, h * np.arange(1.0, M.dim + 1))
            assert abs(np.sum(multiple * X) - 0.4 * X.sum()) < 1e-13
            assert abs(np.sum(log * X) - X.sum()) < 1e-13

    @pytest.mark.parametrize("n", [2, 3, 4, 5])
    @pytest.mark.parametrize("delta", ["1e-1", "1e-2", "1e-3"])
    def test_close_to_pi(self, n, delta):
        """Along tangent vectors, against differences of the SciPy logarithm's squared norm."""
        M, x = SpecialOrthogonal(n), exact(n, below_pi(delta))
        square, _, multiple, _, _ = finite_slopes(M, x)
        X = skew(n, np.random.default_rng(0).standard_normal(M.dim))
        h = 1e-4 * float(delta)
        ends = [x @ sl.expm(k * h * X) for k in (1, -1)]
        lengths = [np.sum(logarithm(R) ** 2) for R in ends]
        slope = (lengths[0] - lengths[1]) / (2 * h)
        assert abs(np.sum(square * (x @ X)) - slope) < 1e-5 * (1.0 + abs(slope))
        powers = [sl.expm(0.4 * logarithm(R)).sum() for R in ends]
        slope = (powers[0] - powers[1]) / (2 * h)
        assert abs(np.sum(multiple * (x @ X)) - slope) < 1e-5 * (1.0 + abs(slope))

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize(("n", "planes"), [(2, 1), (3, 1), (4, 1), (4, 2), (5, 2)])
    def test_the_slope_of_a_square(self, n, planes, dtype):
        """Along a turn it is twice the logarithm, in every orientation and next to π.

        In space up to π itself; with more planes up to where the digits of the angle end.
        """
        M, library = SpecialOrthogonal(n), Library("torch", dtype)
        X = np.random.default_rng(n).standard_normal((300, n, n))
        for delta in (1e-1, 1e-3, 1e-5, 1e-7, 1e-10, 1e-13, 0.0):
            limit = 2000 * library.eps / (1.0 if n < 4 else max(delta, 1e-30))
            if limit > 0.1:
                continue
            x = library.array(in_random_planes(n, planes, delta, 300)).requires_grad_(True)
            (slope,) = torch.autograd.grad((M.norm(x) ** 2).sum(), x)
            log = M.log(library.array(np.eye(n)), x.detach())
            along = library.array(X - np.swapaxes(X, -1, -2)) / 2
            found = (slope * (x @ along)).sum((-2, -1)) - 2.0 * (log * along).sum((-2, -1))
            assert float(found.detach().abs().max()) < limit

    @pytest.mark.parametrize("delta", ["1e-6", "1e-9", "1e-13", "0"])
    @pytest.mark.parametrize("planes", [1, 2])
    def test_finite_at_pi(self, delta, planes):
        angle = below_pi(delta)
        for n in (4, 5):
            finite_slopes(SpecialOrthogonal(n), exact(n, *(angle for _ in range(planes))))
        finite_slopes(SpecialOrthogonal(4), -np.eye(4))


class TestConstruction:
    def test_sizes(self):
        for n, message in (
            (1, "at least 2, got 1"),
            (0, "integer of at least 2"),
            (2.5, "an integer"),
        ):
            with pytest.raises(ValueError, match=message):
                SpecialOrthogonal(n)
        assert SpecialOrthogonal.for_shape((7, 4, 4)) == SpecialOrthogonal(4)
        with pytest.raises(ValueError, match="a rotation is a square matrix"):
            SpecialOrthogonal.for_shape((4, 3))
