"""Subspaces: against matrix exponentials, principal angles and the logarithms of the literature."""

import tracemalloc

import numpy as np
import pytest
import scipy.linalg as sl
import torch
from conftest import Library, host

from gyrobn import Grassmannian, batch_stats, denormalize, frechet, normalize

SIZES = [(2, 1), (5, 1), (4, 2), (7, 3), (5, 3), (6, 5), (47, 10)]
sizes = pytest.mark.parametrize(("n", "p"), SIZES, ids=str)
wide = pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")  # beyond a radius of π/4


def skew(M, c):
    """Ω of normal coordinates: the blocks (0, −Bᵀ) and (B, 0)."""
    B = c.reshape(M.n - M.p, M.p)
    return np.block([[np.zeros((M.p, M.p)), -B.T], [B, np.zeros((M.n - M.p,) * 2)]])


def projector(U):
    return U @ np.swapaxes(U, -1, -2)


def gap(U, V):
    """Largest entry of the difference of two projectors: no operation of the library is in it."""
    return float(abs(projector(U) - projector(V)).max())


def orthogonal(n, *batch, seed=0):
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((*batch, n, n)))
    return Q


def with_angles(n, theta, seed=0, offset=True):
    """Two bases at the given principal angles, in general position unless ``offset`` is false."""
    p = len(theta)
    U, V = np.eye(n)[:, :p], np.zeros((n, p))
    V[:p], V[p : 2 * p] = np.diag(np.cos(theta)), np.diag(np.sin(theta))
    Q = orthogonal(n, seed=seed) if offset else sl.block_diag(np.eye(p), orthogonal(n - p))
    return Q @ U, Q @ V


def points(M, count, *seeds, spread=0.8):
    """Samples whose bases are not the ones that the library makes."""
    return [
        M.random(count, rng=seed, spread=spread) @ orthogonal(M.p, count, seed=100 + seed)
        for seed in seeds
    ]


@sizes
def test_the_direct_rotation(n, p):
    """By matrix exponentials: the gyro operations, in coordinates and for any basis."""
    M = Grassmannian(n, p)
    c = np.random.default_rng(0).standard_normal((3, M.dim)) * 0.9 / M.dim**0.5
    x = M.from_normal(c)
    np.testing.assert_allclose(x, [sl.expm(skew(M, row))[:, :p] for row in c], rtol=0, atol=1e-14)
    np.testing.assert_allclose(M.to_normal(x), c, rtol=0, atol=1e-14)
    x, y = points(M, 3, 1, 2, spread=1.0)
    turns = np.stack([sl.expm(skew(M, c)) for c in M.to_normal(x)])
    np.testing.assert_allclose(M.add(x, y), turns @ y, rtol=0, atol=1e-12)
    back = np.swapaxes(turns, -1, -2) @ y
    np.testing.assert_allclose(M.relative(x, y), back, rtol=0, atol=1e-12)
    assert gap(M.add(x, np.eye(n)[:, :p]), x) < 1e-14
    for t in (-1.7, 0.3, 1.0, 2.5):
        expected = [sl.expm(t * skew(M, c))[:, :p] for c in M.to_normal(x)]
        assert gap(M.scale(t, x), np.stack(expected)) < 1e-13
    assert gap(M.scale(-1.0, x), M.neg(x)) < 1e-14
    far = M.from_normal(10.0 * np.random.default_rng(0).standard_normal(M.dim))
    assert M.violation(far) < 1e-14  # any (n − p)·p numbers are a point


def test_it_is_the_smallest_rotation():
    """The direct rotation is the square root of the product of two reflections (Davis, Kahan)."""
    M = Grassmannian(6, 2)
    (x,) = points(M, 1, 3)
    (U,), e = x, np.eye(6)[:, :2]
    reflect_u, reflect_e = (np.eye(6) - 2 * projector(a) for a in (U, e))
    y = np.random.default_rng(0).standard_normal((6, 2))
    np.testing.assert_allclose(
        M.add(U, y), np.real(sl.sqrtm(reflect_u @ reflect_e)) @ y, atol=1e-13
    )


SAME = [Grassmannian(7, 3), Grassmannian(5, 3), Grassmannian(4, 1), Grassmannian(47, 10)]


@pytest.mark.parametrize("M", SAME, ids=repr)
class TestOnlyTheSubspaceCounts:
    @pytest.fixture
    def data(self, M):
        """Three sets of points, and the same subspaces by other bases."""
        x = points(M, 6, 1, 2, 3, spread=0.5)
        return x, [a @ orthogonal(M.p, 6, seed=seed) for seed, a in enumerate(x)]

    def test_points_and_numbers(self, M, data):
        (x, y, _), (a, b, _) = data
        for name, arguments in {
            "add": (0, 1),
            "neg": (0,),
            "relative": (0, 1),
            "coadd": (0, 1),
            "gyration": (0, 1, 2),
            "project": (0,),
        }.items():
            one, other = (getattr(M, name)(*(d[k] for k in arguments)) for d in data)
            assert gap(one, other) < 1e-13, name
        assert gap(M.scale(0.6, x), M.scale(0.6, a)) < 1e-13
        assert gap(M.geodesic(x, y, 0.3), M.geodesic(a, b, 0.3)) < 1e-13
        for name in ("dist", "relative_normal"):
            one, other = getattr(M, name)(x, y), getattr(M, name)(a, b)
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)
        assert M.dist(x, a).max() < 1e-14

    @wide
    def test_statistics_and_normalize(self, M, data):
        (x, y, _), (a, b, _) = data
        one, other = batch_stats(M, x), batch_stats(M, a)
        assert gap(one.mean, other.mean) < 1e-13
        np.testing.assert_allclose(other.var, one.var, rtol=1e-13)
        out = normalize(M, x, one, y[0], 0.4)
        assert gap(out, normalize(M, a, other, b[0], 0.4)) < 1e-13
        assert gap(frechet(M, a, init=b[0]).mean, one.mean) < 1e-12

    def test_tangent_vectors_turn_with_the_basis(self, M, data):
        (x, y, z), (a, b, _) = data
        turn, turn_y = (np.swapaxes(s, -1, -2) @ t for s, t in ((x, a), (y, b)))
        v, u = M.log(x, y), M.log(x, z)
        assert abs(np.swapaxes(x, -1, -2) @ v).max() < 1e-14  # horizontal
        np.testing.assert_allclose(M.log(a, b), v @ turn, atol=1e-13)
        assert gap(M.exp(a, u @ turn), M.exp(x, u)) < 1e-13
        np.testing.assert_allclose(M.inner(a, u @ turn, v @ turn), M.inner(x, u, v), atol=1e-13)
        np.testing.assert_allclose(M.inner(x, u, v), np.sum(u * v, axis=(-2, -1)), atol=1e-13)
        moved = M.transport(a, b, u @ turn)
        np.testing.assert_allclose(moved, M.transport(x, y, u) @ turn_y, atol=1e-13)
        np.testing.assert_allclose(M.transport(x, x, u), u, atol=1e-13)


def bendokat(U, Y):
    """Algorithm 5.3 of Bendokat, Zimmermann and Absil: the logarithm by two SVDs."""
    Q, _, Rt = np.linalg.svd(Y.T @ U)
    best = Y @ Q @ Rt
    P, S, Tt = np.linalg.svd(best - U @ (U.T @ best), full_matrices=False)
    return P @ np.diag(np.arcsin(np.minimum(S, 1.0))) @ Tt


class TestLiterature:
    @sizes
    def test_logarithm(self, n, p):
        M = Grassmannian(n, p)
        x, y = points(M, 4, 1, 2, spread=0.6)
        for U, Y in zip(x, y, strict=True):
            v = M.log(U, Y)
            np.testing.assert_allclose(v, bendokat(U, Y), rtol=0, atol=1e-12)
            # the paper's: (I − UUᵀ) Y (UᵀY)⁻¹ = H Σ Rᵀ, Log = H arctan(Σ) Rᵀ
            A = (Y - U @ (U.T @ Y)) @ np.linalg.inv(U.T @ Y)
            H, S, Rt = np.linalg.svd(A, full_matrices=False)
            np.testing.assert_allclose(v, H @ np.diag(np.arctan(S)) @ Rt, rtol=0, atol=1e-11)

    @sizes
    def test_exponential(self, n, p):
        """Edelman, Arias and Smith: Exp_U(HΣRᵀ) = U R cos(Σ) Rᵀ + H sin(Σ) Rᵀ."""
        M = Grassmannian(n, p)
        x, y = points(M, 4, 1, 2, spread=0.6)
        for U, v in zip(x, 1.9 * M.log(x, y), strict=True):
            H, S, Rt = np.linalg.svd(v, full_matrices=False)
            expected = U @ Rt.T @ np.diag(np.cos(S)) @ Rt + H @ np.diag(np.sin(S)) @ Rt
            assert gap(M.exp(U, v), expected) < 1e-13

    @pytest.mark.parametrize("spread", [0.6, 1.4])  # the second where left reduction fails
    @pytest.mark.parametrize(("n", "p"), [(5, 1), (7, 3), (5, 3), (47, 10)])
    def test_transport(self, n, p, spread):
        """Edelman, Arias and Smith, theorem 2.4; and the pole ladder, exact by symmetry."""
        M = Grassmannian(n, p)
        x, y, z = points(M, 12, 1, 2, 3, spread=spread)
        moved = M.transport(x, y, M.log(x, z))
        for U, Y, v, found in zip(x, y, M.log(x, z), moved, strict=True):
            H, S, Rt = np.linalg.svd(bendokat(U, Y), full_matrices=False)
            end = U @ Rt.T @ np.diag(np.cos(S)) @ Rt + H @ np.diag(np.sin(S)) @ Rt
            along = -U @ Rt.T @ np.diag(np.sin(S)) @ H.T + H @ np.diag(np.cos(S)) @ H.T
            expected = along @ v + v - H @ (H.T @ v)
            np.testing.assert_allclose(found, expected @ (end.T @ Y), atol=1e-12)
        middle = M.geodesic(x, y, 0.5)
        small = 0.2 * M.log(x, z)
        mirrored = M.exp(middle, -M.log(middle, M.exp(x, small)))
        np.testing.assert_allclose(-M.log(y, mirrored), 0.2 * moved, atol=1e-12)

    @pytest.mark.parametrize(("n", "p"), [(4, 2), (9, 3), (47, 10)])
    def test_distance_is_the_norm_of_the_principal_angles(self, n, p):
        M = Grassmannian(n, p)
        x, y = points(M, 5, 1, 2, spread=1.2)
        angles = np.stack([sl.subspace_angles(U, Y) for U, Y in zip(x, y, strict=True)])
        np.testing.assert_allclose(M.dist(x, y), np.linalg.norm(angles, axis=-1), atol=1e-13)

    @pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-10, 1e-14])
    def test_nearly_equal_subspaces(self, size):
        M, theta = Grassmannian(8, 3), size * np.asarray([1.0, 0.5, 2.0])
        expected = np.linalg.norm(theta)
        _, V = with_angles(8, theta, offset=False)
        np.testing.assert_allclose(M.norm(V), expected, rtol=1e-14)  # from the identity: all digits
        np.testing.assert_allclose(M.norm(V @ orthogonal(3)), expected, rtol=0, atol=1e-15)
        U, V = with_angles(8, theta)  # elsewhere, those that the coordinates hold
        assert abs(M.dist(U, V) - expected) < 2e-15
        assert abs(M.dist(U, V @ orthogonal(3)) - expected) < 2e-15
        assert abs(np.linalg.norm(sl.subspace_angles(U, V)) - expected) < 4e-15

    @pytest.mark.parametrize("delta", [1e-3, 1e-7, 1e-10, 1e-13, 0.0])
    def test_nearly_orthogonal_directions(self, delta):
        M, theta = Grassmannian(8, 3), np.pi / 2 - np.asarray([delta, 0.4, delta])
        for offset in (False, True):
            U, V = with_angles(8, theta, offset=offset)
            assert abs(M.dist(U, V) - np.linalg.norm(theta)) < 2e-15
            v = M.log(U, V)
            assert abs(np.linalg.norm(v) - np.linalg.norm(theta)) < 1e-13
            assert gap(M.exp(U, v), V) < 1e-14


class TestTheCutLocus:
    @pytest.mark.parametrize(("n", "p"), [(2, 1), (4, 2), (7, 3)])
    def test_orthogonal_subspaces(self, n, p, eager: Library):
        M = Grassmannian(n, p)
        U, V = with_angles(n, np.full(p, np.pi / 2), seed=3)
        U, V = eager.array(U), eager.array(V)
        for x, y in ((U, V), (M.origin(U), eager.array(np.eye(n)[:, n - p :]))):
            v = M.log(x, y)
            assert np.isfinite(host(v)).all()
            assert abs(np.linalg.norm(host(v)) - np.pi / 2 * p**0.5) < 20 * eager.eps
            assert gap(host(M.exp(x, v)), host(y)) < 20 * eager.eps
            assert gap(host(M.geodesic(x, y, 1.0)), host(y)) < 20 * eager.eps
            half = M.geodesic(x, y, 0.5)
            np.testing.assert_allclose(
                host(M.dist(x, half)), np.pi / 4 * p**0.5, rtol=20 * eager.eps
            )

    def test_gradients_are_finite(self):
        M, e = Grassmannian(4, 2), torch.eye(4, dtype=torch.float64)[:, :2]
        x = torch.eye(4, dtype=torch.float64)[:, 2:].requires_grad_(True)
        for value in (M.dist(e, x), M.scale(0.5, x).sum(), M.add(x, e).sum(), M.log(e, x).sum()):
            assert torch.isfinite(*torch.autograd.grad(value, x)).all()

    def test_the_diameter(self):
        """With 2p > n the angles beyond n − p are zero."""
        assert abs(Grassmannian(5, 3).norm(np.eye(5)[:, 2:]) - np.pi / 2 * 2**0.5) < 1e-15
        assert abs(Grassmannian(47, 10).norm(np.eye(47)[:, 37:]) - 4.967) < 1e-3


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("spread", [1e-1, 1e-3, 1e-5])
@wide
def test_a_tight_cluster_stays_on_the_manifold(dtype, spread):
    """A cosine does not tell a small angle, so no multiple of it may be taken from there."""
    M, eps = Grassmannian(12, 3), np.finfo(dtype).eps
    x = M.random(30, rng=0, spread=spread)
    x = M.add(M.random(rng=1), x).astype(dtype)
    stats = batch_stats(M, x)
    for bias in (None, M.random(rng=2).astype(dtype)):
        y = normalize(M, x, stats, bias, eps=0.0)
        assert M.violation(y).max() < 50 * eps
    assert M.violation(M.scale(1.0 / spread, M.relative(stats.mean, x))).max() < 50 * eps


class TestRepeatedPrincipalAngles:
    @pytest.mark.parametrize("theta", [[0.7] * 3, [0.7, 0.0, 0.0], [0.0] * 3, [1.2, 1.2, 0.3]])
    def test_values(self, theta):
        M, theta = Grassmannian(8, 3), np.asarray(theta)
        U, V = with_angles(8, theta)
        assert abs(M.dist(U, V) - np.linalg.norm(theta)) < 1e-14
        expected = sl.expm(0.4 * skew(M, M.to_normal(V)))[:, :3]
        assert gap(M.scale(0.4, V), expected) < 1e-13
        np.testing.assert_allclose(M.log(U, V), bendokat(U, V), atol=1e-13)

    @pytest.mark.parametrize("theta", [[0.7, 0.7], [0.7, 0.0], [0.0, 0.0]])
    def test_derivatives(self, theta):
        """Of the square of a distance, and of a multiple, by the point and by the multiplier."""
        M = Grassmannian(5, 2)
        U, V = with_angles(5, theta, seed=2)
        rng = np.random.default_rng(0)
        tangent = M.push(V, rng.standard_normal(M.dim))
        target = rng.standard_normal((5, 5))

        def function(s, convert):
            x = M.exp(convert(V), s * convert(tangent))
            y = M.scale(0.4 + s, M.relative(convert(U), x))
            return M.dist(convert(U), x) ** 2 + (y @ y.T * convert(target)).sum()

        def difference(h=1e-3):
            near, far = (function(k, np.asarray) - function(-k, np.asarray) for k in (h, 2 * h))
            return (8 * near - far) / (12 * h)

        s = torch.zeros((), dtype=torch.float64, requires_grad=True)
        function(s, torch.as_tensor).backward()
        assert abs(float(s.grad) - difference()) < 1e-8


@wide
def test_the_published_approximation_leaves_the_mean_far_from_the_identity():
    """Its Cayley map is nearly exp(−2X) where exp(X) is meant."""

    def cayley(X):
        return (np.eye(47) - X) @ np.linalg.inv(np.eye(47) + X)

    M = Grassmannian(47, 10)
    x = M.add(M.random(rng=1, spread=1.5), M.random(30, rng=0, spread=0.5))
    stats = batch_stats(M, x)
    centred = cayley(skew(M, -M.to_normal(stats.mean))) @ x
    factor = 1.0 / np.sqrt(stats.var + 1e-5)
    multiples = np.stack([factor * skew(M, c) for c in M.to_normal(centred)])
    theirs = batch_stats(M, cayley(multiples)[..., :10])
    assert M.norm(theirs.mean) > 1.0
    assert abs(theirs.var - 1.0) > 0.5
    for dtype, eps in (("float64", 2**-52), ("float32", 2**-23)):
        ours = batch_stats(M, normalize(M, x.astype(dtype), batch_stats(M, x.astype(dtype))))
        assert M.norm(ours.mean) < 1e3 * eps
        np.testing.assert_allclose(ours.var, stats.var / (stats.var + 1e-5), rtol=1e3 * eps)


PROJECTORS = pytest.mark.parametrize(("n", "p"), [(4, 1), (6, 2), (5, 3)])


def derivative(U, V):
    """The tangent vector at UUᵀ that V at U is."""
    VUt = V @ np.swapaxes(U, -1, -2)
    return VUt + np.swapaxes(VUt, -1, -2)


@PROJECTORS
class TestProjectors:
    def test_operations(self, n, p):
        M, N = Grassmannian(n, p), Grassmannian(n, p, "projector")
        assert (N.point_shape, N.dim, N.blocks) == ((n, n), M.dim, M.blocks)
        np.testing.assert_array_equal(N.origin(np.zeros(())), np.diag([1.0] * p + [0.0] * (n - p)))
        x, y, z = points(M, 5, 1, 2, 3, spread=0.6)
        P, Q, R = (projector(a) for a in (x, y, z))
        u, v = M.log(x, y), M.log(x, z)
        A, B = derivative(x, u), derivative(x, v)
        c = M.to_normal(x)
        for found, expected in (
            (N.add(P, Q), projector(M.add(x, y))),
            (N.neg(P), projector(M.neg(x))),
            (N.gyration(P, Q, R), projector(M.gyration(x, y, z))),
            (N.project(P), P),
            (N.scale(0.7, P), projector(M.scale(0.7, x))),
            (N.geodesic(P, Q, 0.3), projector(M.geodesic(x, y, 0.3))),
            (N.dist(P, Q), M.dist(x, y)),
            (N.to_normal(P), c),
            (N.from_normal(c), P),
            (N.log(P, Q), A),
            (N.exp(P, B), R),
            (N.inner(P, A, B), np.sum(u * v, axis=(-2, -1))),
            (N.inner(P, A, B), 0.5 * np.trace(A @ B, axis1=-2, axis2=-1)),
            (N.transport(P, Q, B), derivative(y, M.transport(x, y, v))),
        ):
            np.testing.assert_allclose(found, expected, atol=1e-13)

    @wide
    def test_statistics_and_normalize(self, n, p):
        M, N = Grassmannian(n, p), Grassmannian(n, p, "projector")
        x = M.add(M.random(rng=5, spread=0.5), M.random(12, rng=6, spread=0.3))
        w = np.linspace(0.5, 2.0, 12)
        one, other = batch_stats(M, x, w), batch_stats(N, projector(x), w)
        np.testing.assert_allclose(other.mean, projector(one.mean), atol=1e-13)
        np.testing.assert_allclose(other.var, one.var, rtol=1e-12)
        bias = M.random(rng=7, spread=0.4)
        out = normalize(M, x, one, bias, 0.3)
        found = normalize(N, projector(x), other, projector(bias), 0.3)
        np.testing.assert_allclose(found, projector(out), atol=1e-13)
        back = denormalize(N, found, other, projector(bias), 0.3)
        np.testing.assert_allclose(back, projector(x), atol=1e-13)


def test_nothing_is_n_by_n():
    M = Grassmannian(1500, 2)
    x, y, z = (M.random(6, rng=seed, spread=0.4) for seed in (1, 2, 3))
    tracemalloc.start()
    try:
        for found in (M.add(x, y), M.scale(0.5, x), M.geodesic(x, y, 0.5), M.gyration(x, y, z)):
            assert M.contains(M.project(found)).all()
        M.transport(x, y, M.log(x, z))
        normalize(M, x, batch_stats(M, x), x[0], 0.4)
        assert tracemalloc.get_traced_memory()[1] < 0.5 * 8 * M.n**2
    finally:
        tracemalloc.stop()


class TestTheMean:
    def test_of_lines_in_the_plane(self):
        """Gr(2, 1) is a circle of length π: means of angles."""
        M, angles = Grassmannian(2, 1), np.asarray([0.3, 0.5, 1.0, -0.1])
        x = np.stack([np.cos(angles), np.sin(angles)], axis=-1)[..., None]
        x = x * np.asarray([1.0, -1.0, -1.0, 1.0])[:, None, None]
        result = frechet(M, x)
        mean, expected = result.mean, angles.mean()
        assert gap(mean, np.asarray([[np.cos(expected)], [np.sin(expected)]])) < 1e-14
        np.testing.assert_allclose(result.variance, np.var(angles), rtol=1e-13)

    @wide
    @pytest.mark.parametrize(("n", "p"), [(7, 3), (5, 3), (47, 10)])
    def test_first_order_condition(self, n, p):
        M = Grassmannian(n, p)
        x = M.add(M.random(rng=1), M.random(20, rng=2, spread=0.6))
        w = np.linspace(0.2, 1.0, 20)
        result = frechet(M, x, w)
        logs = np.stack([bendokat(result.mean, U) for U in x])
        gradient = np.tensordot(w / w.sum(), logs, 1)
        assert result.converged
        assert np.linalg.norm(gradient) < 1e-13
        np.testing.assert_allclose(
            result.variance, np.sum(w / w.sum() * np.sum(logs**2, axis=(1, 2))), rtol=1e-13
        )

    @wide
    def test_orthogonal_complements(self):
        """U ↦ U⊥ is an isometry of Gr(n, p) to Gr(n, n − p)."""
        M, N = Grassmannian(6, 2), Grassmannian(6, 4)
        x = M.add(M.random(rng=1), M.random(10, rng=2, spread=0.4))
        other = np.stack([sl.null_space(U.T) for U in x])
        one, two = frechet(M, x), frechet(N, other)
        np.testing.assert_allclose(one.variance, two.variance, rtol=1e-12)
        assert abs(projector(one.mean) + projector(two.mean) - np.eye(6)).max() < 1e-13


def test_construction():
    for arguments, message in {
        (3, 3): "smaller than the space, got p=3, n=3",
        (0, 1): "positive integer",
        (3, 0): "positive integer",
        (3, 1, "projection"): "must be 'basis' or 'projector', got 'projection'",
    }.items():
        with pytest.raises(ValueError, match=message):
            Grassmannian(*arguments)
    M = Grassmannian(5, 2)
    with pytest.raises(ValueError, match=r"expects arrays of shape \(\.\.\., 5, 5\)"):
        Grassmannian(5, 2, "projector").neg(M.random(3))
    for call in (M.from_normal, lambda c: M.push(M.random(), c)):
        with pytest.raises(ValueError, match=r"expects coordinates of shape \(\.\.\., 6\)"):
            call(np.zeros(5))
    assert Grassmannian.for_shape((9, 5, 2)) == M
    with pytest.raises(ValueError, match="a basis is a matrix"):
        Grassmannian.for_shape((5,))


@pytest.mark.parametrize("representation", ["basis", "projector"])
def test_derivative_of_a_sum_with_the_identity_in_any_basis(representation):
    """The sum x ⊕ e is a basis of its own, and its derivative belongs to that basis."""
    M, rng = Grassmannian(4, 2, representation), np.random.default_rng(0)
    x = M.random(rng=1, spread=0.5)
    if representation == "basis":
        x = x @ np.linalg.qr(rng.standard_normal((2, 2)))[0]
    x, weights, along = map(
        torch.as_tensor, (x, rng.standard_normal((4, 4)), rng.standard_normal(4))
    )

    def value(t):
        U = M.add(x, M.from_normal(t * along))
        return ((U @ U.mT if representation == "basis" else U) * weights).sum()

    (slope,) = torch.autograd.grad(value(t := torch.zeros_like(x[0, 0]).requires_grad_()), t)
    step = (value(1e-5) - value(-1e-5)) / 2e-5
    assert float(slope) == pytest.approx(float(step), rel=1e-7)
