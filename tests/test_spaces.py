"""Groups, subspaces and balls of matrices against formulas that share no code with them."""

import itertools

import numpy as np
import pytest
import scipy.linalg
import torch

from gyrobn import (
    HPD,
    SPD,
    ComplexBall,
    Euclidean,
    FixedRankSPD,
    FrechetWarning,
    Grassmannian,
    Klein,
    MatrixBall,
    PoincareBall,
    Product,
    SiegelDisk,
    SpecialEuclidean,
    SpecialOrthogonal,
    SpecialUnitary,
    Torus,
    Unitary,
    frechet,
    frechet_mean,
    frechet_variance,
    normalize_batch,
)
from gyrobn.manifolds.group import Group

RNG = np.random.default_rng(0)
NEW = [
    HPD(2),
    HPD(3, "log_euclidean"),
    HPD(2, "log_cholesky"),
    Unitary(2),
    SpecialUnitary(2),
    SpecialUnitary(3),
    SpecialEuclidean(3),
    Torus(2),
    MatrixBall(3, 2),
    MatrixBall(2, 3),
    ComplexBall(2),
    SiegelDisk(2),
    FixedRankSPD(4, 2),
]


# ---------------------------------------------------------------------- Hermitian matrices


def test_hpd_distance_by_generalized_eigenvalues():
    M = HPD(3)
    for x, y in zip(M.random(20, rng=0), M.random(20, rng=1), strict=True):
        expected = np.linalg.norm(np.log(scipy.linalg.eigh(x, y, eigvals_only=True)))
        np.testing.assert_allclose(M.dist(x, y), expected, rtol=1e-12)


def test_hpd_log_euclidean_by_scipy():
    M = HPD(3, "log_euclidean")
    for x, y in zip(M.random(5, rng=0), M.random(5, rng=1), strict=True):
        expected = np.linalg.norm(scipy.linalg.logm(x) - scipy.linalg.logm(y))
        np.testing.assert_allclose(M.dist(x, y), expected, rtol=1e-11)


def test_hpd_log_cholesky_by_numpy():
    M = HPD(3, "log_cholesky")
    x, y = M.random(20, rng=0), M.random(20, rng=1)

    def factor(P):
        L = np.linalg.cholesky(P)
        return np.tril(L, -1) + np.log(L * np.eye(3) + 1.0 - np.eye(3)) * np.eye(3)

    expected = np.linalg.norm(factor(x) - factor(y), axis=(-2, -1))
    np.testing.assert_allclose(M.dist(x, y), expected, rtol=1e-12)


def test_real_matrices_are_those_of_spd():
    M, N = HPD(3), SPD(3)
    x = N.random(10, rng=0)
    mean = frechet_mean(M, x.astype(complex))
    np.testing.assert_allclose(mean, frechet_mean(N, x), rtol=0, atol=1e-13)


# ---------------------------------------------------------------------- unitary matrices

CLOSE = [np.pi, -np.pi + 1e-9, np.pi - 1e-9, 1.0, 2.5, -2.5, 0.5, 0.5]


def with_phases(n, phases, seed):
    Q = Unitary(n).random(rng=seed, spread=2.0)
    return Q @ np.diag(np.exp(1j * phases)) @ Q.conj().T


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_unitary_logarithm_by_phases(n):
    """Also -I, repeated phases, and pairs next to -1.

    There the logarithm is exact, and longer than the principal one by the distance to -1 at most.
    """
    M = Unitary(n)
    for seed in range(60):
        phases = np.full(n, np.pi) if seed == 0 else np.random.default_rng(seed).choice(CLOSE, n)
        U = with_phases(n, phases, seed)
        c = M.to_normal(U)
        np.testing.assert_allclose(M.from_normal(c), U, rtol=0, atol=1e-13)
        expected = np.linalg.norm(np.angle(np.exp(1j * phases)))
        longer = np.linalg.norm(c) - expected  # a phase next to -π may become one beyond π
        assert -1e-12 < longer < (1e-8 if np.any(phases == CLOSE[1]) else 1e-12)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_special_unitary_logarithm_by_brute_force(n):
    """The shortest of all logarithms whose phases add up to zero."""
    M = SpecialUnitary(n)
    for seed in range(60):
        phases = np.random.default_rng(seed).choice(CLOSE, n)
        phases[-1] = -phases[:-1].sum()
        U = with_phases(n, phases, seed)
        c = M.to_normal(U)
        np.testing.assert_allclose(M.from_normal(c), U, rtol=0, atol=1e-12)
        plain = np.angle(np.exp(1j * phases))
        shifts = 2 * np.pi * np.asarray(list(itertools.product((-2, -1, 0, 1, 2), repeat=n)))
        each = plain + shifts
        each = each[abs(each.sum(-1)) < 1e-6]
        shortest = np.linalg.norm(each, axis=-1).min()
        np.testing.assert_allclose(np.linalg.norm(c), shortest, rtol=0, atol=1e-12)


def test_bi_invariance():
    for M in (Unitary(3), SpecialUnitary(3), SpecialOrthogonal(4), Torus(2)):
        assert isinstance(M, Group) or isinstance(M.inside._spaces[0], Group)
        x, y, z = (M.random(10, rng=i, spread=0.7) for i in range(3))
        d = M.dist(x, y)
        np.testing.assert_allclose(M.dist(M.add(z, x), M.add(z, y)), d, atol=1e-13)
        np.testing.assert_allclose(M.dist(M.add(x, z), M.add(y, z)), d, atol=1e-13)


# ---------------------------------------------------------------------- motions, angles


def test_motions_by_scipy():
    M = SpecialEuclidean(3)
    x, y = M.random(10, rng=0), M.random(10, rng=1)
    np.testing.assert_allclose(M.add(x, y), x @ y, atol=1e-15)
    np.testing.assert_allclose(M.neg(x), np.linalg.inv(x), atol=1e-14)
    for a, b in zip(x, y, strict=True):
        R, S = a[:3, :3], b[:3, :3]
        turn = np.linalg.norm(scipy.linalg.logm(R.T @ S))
        expected = np.hypot(turn, np.linalg.norm(a[:3, 3] - b[:3, 3]))
        np.testing.assert_allclose(M.dist(a, b), expected, rtol=1e-12)
    c = RNG.standard_normal(6)
    X = np.zeros((3, 3))
    X[np.tril_indices(3, -1)] = c[:3] / 2**0.5
    found = M.from_normal(c)
    np.testing.assert_allclose(found[:3, :3], scipy.linalg.expm(X - X.T), atol=1e-14)
    np.testing.assert_array_equal(found[:3, 3], c[3:])


def test_the_mean_of_motions_is_that_of_their_parts():
    M = SpecialEuclidean(3)
    x = M.random(20, rng=0, spread=0.5)
    mean = frechet_mean(M, x)
    rotation = frechet_mean(SpecialOrthogonal(3), x[:, :3, :3])
    np.testing.assert_allclose(mean[:3, :3], rotation, atol=1e-13)
    np.testing.assert_allclose(mean[:3, 3], x[:, :3, 3].mean(0), atol=1e-14)


@pytest.mark.parametrize("factor", ["translations", "cores", "rotations"])
def test_only_the_factor_that_closes_warns(factor, recwarn):
    """A spread of translations, or of cores, is no reason to doubt the mean."""
    if factor == "cores":
        M = FixedRankSPD(4, 2)
        c = 0.05 * RNG.standard_normal((10, M.dim)) + 5.0 * (np.arange(M.dim) >= 4)
        c *= np.where(np.arange(10) % 2, 1.0, -1.0)[:, None]
    else:
        M = SpecialEuclidean(3)
        c = 0.05 * RNG.standard_normal((10, 6))
        if factor == "translations":
            c[:, 3:] *= 1e3
        else:
            c[:, :3] *= 60.0
    frechet(M, M.from_normal(c))
    found = [w for w in recwarn if issubclass(w.category, FrechetWarning)]
    assert bool(found) == (factor == "rotations")
    if found:
        assert "the factor SpecialOrthogonal(n=3) of SpecialEuclidean(n=3)" in str(found[0].message)


def test_torus_by_hand():
    M = Torus(2)
    x, y = np.asarray([3.0, 0.5]), np.asarray([-3.0, 1.0])
    turn = 2 * np.pi
    np.testing.assert_allclose(M.dist(x, y), np.hypot(turn - 6.0, 0.5), rtol=1e-14)
    np.testing.assert_allclose(M.add(x, x), [6.0 - turn, 1.0], rtol=1e-14)
    np.testing.assert_allclose(M.geodesic(x, y, 0.5), [np.pi, 0.75], rtol=1e-14)
    angles = np.asarray([[3.0], [-3.0], [3.1]])
    mean = frechet_mean(Torus(1), angles)
    expected = np.mean(np.mod(angles, turn))
    np.testing.assert_allclose(np.mod(mean[0], turn), expected, rtol=1e-14)


# ---------------------------------------------------------------------- balls


def test_columns_are_klein():
    M, K = MatrixBall(3, 1), Klein(3)
    x, y = K.random(10, rng=0), K.random(10, rng=1)
    np.testing.assert_allclose(M.dist(x[..., None], y[..., None]), K.dist(x, y), rtol=1e-12)
    np.testing.assert_allclose(
        M.add(x[..., None], y[..., None])[..., 0], K.add(x, y), rtol=0, atol=1e-14
    )
    mean = frechet_mean(M, x[..., None])[..., 0]
    np.testing.assert_allclose(mean, frechet_mean(K, x), rtol=0, atol=1e-13)


@pytest.mark.parametrize("M", [ComplexBall(1), SiegelDisk(1)], ids=repr)
def test_one_complex_number_is_the_poincare_disk(M):
    disk = PoincareBall(2, -4.0)
    x, y = disk.random(10, rng=0, spread=0.4), disk.random(10, rng=1, spread=0.4)

    def as_point(z):  # the ball of curvature -4 has the radius 1/2
        return (2.0 * (z[..., 0] + 1j * z[..., 1])).reshape(-1, *M.point_shape)

    np.testing.assert_allclose(M.dist(as_point(x), as_point(y)), disk.dist(x, y), rtol=1e-12)
    found = M.add(as_point(x), as_point(y))
    np.testing.assert_allclose(found, as_point(disk.add(x, y)), rtol=0, atol=1e-13)


def test_complex_ball_by_its_formula():
    M = ComplexBall(3)
    z, w = M.random(10, rng=0, spread=0.6), M.random(10, rng=1, spread=0.6)
    inner = (z.conj() * w).sum(-1)
    sizes = (1 - (abs(z) ** 2).sum(-1)) * (1 - (abs(w) ** 2).sum(-1))
    expected = np.arccosh(abs(1 - inner) / sizes**0.5)
    np.testing.assert_allclose(M.dist(z, w), expected, rtol=1e-11)


# ---------------------------------------------------------------------- fixed rank


def test_fixed_rank_is_its_product():
    M, N = FixedRankSPD(4, 2), Product(Grassmannian(4, 2), SPD(2))
    x, y = M.random(10, rng=0, spread=0.5), M.random(10, rng=1, spread=0.5)

    def parts(P):
        U = np.linalg.eigh(P)[1][..., -2:]
        polar = np.stack([scipy.linalg.polar(top)[0] for top in U[:, :2]])
        U = U @ polar.swapaxes(-1, -2)
        return N.join(U, U.swapaxes(-1, -2) @ P @ U)

    np.testing.assert_allclose(M.dist(x, y), N.dist(parts(x), parts(y)), rtol=1e-11)
    U, S = N.split(N.add(parts(x), parts(y)))
    polar = np.stack([scipy.linalg.polar(top)[0] for top in U[:, :2]])
    U = U @ polar.swapaxes(-1, -2)
    expected = U @ S @ U.swapaxes(-1, -2)
    np.testing.assert_allclose(M.add(x, y), expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- derivatives


def tangents(M, x, seed):
    return np.random.default_rng(seed).standard_normal(
        (*x.shape[: x.ndim - len(M.point_shape)], M.dim)
    )


@pytest.mark.parametrize("M", NEW, ids=repr)
def test_hessian_by_differences(M):
    """Of half the mean squared distance, in normal coordinates at e."""
    x = M.add(M.random(rng=7, spread=0.2), M.random(6, rng=0, spread=0.3))
    c, weights, h = M.to_normal(x), np.full(6, 1 / 6), 1e-3
    H = M.hessian(c, weights).as_matrix(c[0])
    steps = h * np.eye(M.dim)

    def value(v):
        return 0.5 * np.mean(M.dist(M.from_normal(v), x) ** 2)

    expected = [
        [(value(a + b) - value(a - b) - value(b - a) + value(-a - b)) / (4 * h * h) for b in steps]
        for a in steps
    ]
    np.testing.assert_allclose(H, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("M", NEW, ids=repr)
def test_gradients_by_differences(M):
    """First and second derivatives of the normalized batch along geodesics of the samples."""
    x = M.add(M.random(rng=7, spread=0.2), M.random(5, rng=0, spread=0.3))
    v, w = tangents(M, x, 1), torch.as_tensor(tangents(M, x, 2))
    at, along = torch.as_tensor(x), torch.as_tensor(v)

    def value(t):
        y, _ = normalize_batch(M, M.shift(at, t * along), scale=0.5)
        c = M.to_normal(y)
        return (w * c + c * c).sum()

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(value(t), t, create_graph=True)
    (second,) = torch.autograd.grad(first, t)
    h = 1e-4

    def slope(k):
        s = torch.tensor(k * h, dtype=torch.float64, requires_grad=True)
        return float(torch.autograd.grad(value(s), s)[0])

    values = {k: float(value(torch.tensor(k * h, dtype=torch.float64))) for k in (-2, -1, 1, 2)}
    quotient = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * h)
    np.testing.assert_allclose(float(first.detach()), quotient, rtol=1e-7, atol=1e-8)
    quotient = (8 * (slope(1) - slope(-1)) - (slope(2) - slope(-2))) / (12 * h)
    np.testing.assert_allclose(float(second.detach()), quotient, rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------------- complex numbers


@pytest.mark.parametrize("M", [M for M in NEW if M.complex_points], ids=repr)
def test_weights_and_variances_are_real(M):
    x = M.random(6, rng=0, like=np.zeros((), np.float32), spread=0.4)
    assert x.dtype == np.complex64
    result = frechet(M, x, np.arange(1.0, 7.0))
    assert result.mean.dtype == np.complex64
    assert result.variance.dtype == frechet_variance(M, x).dtype == np.float32
    assert M.to_normal(x).dtype == M.dist(x, x).dtype == np.float32
    assert M.random(2, rng=0, like=x).dtype == np.complex64
    with pytest.raises(TypeError, match="expected complex64 or complex128, got float64"):
        M.norm(x.real.astype(float))


def test_products_of_complex_spaces():
    M = Product(HPD(2), Unitary(2))
    x = M.random(10, rng=0, spread=0.4)
    y, stats = normalize_batch(M, x, scale=0.5, eps=0.0)
    result = frechet(M, y)
    np.testing.assert_allclose(result.variance, 0.25, rtol=1e-12)
    assert float(M.norm(result.mean)) < 1e-13
    assert stats.var.dtype == np.float64
    with pytest.raises(TypeError, match="mixes factors of complex and of real points"):
        Product(HPD(2), Euclidean(1))
