"""LRBN and ManifoldNorm: their formulas, and what they do to mean and variance."""

import jax
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES, Library, assert_same, cloud, host
from scipy.linalg import expm, logm, sqrtm

from gyrobn import (
    SPD,
    Grassmannian,
    PoincareBall,
    SpecialOrthogonal,
    Sphere,
    Stats,
    batch_stats,
    frechet,
    normalize,
)
from gyrobn.normalization.baselines import lrbn, manifold_norm, manifold_norm_group
from gyrobn.torch.baselines import LRBN, ManifoldNorm

EPS = 1e-3
FOUR = [PoincareBall(3), SPD(3), Grassmannian(5, 2), SpecialOrthogonal(3)]


def setting(M, like=None, spread=1.0):
    """Return samples, their statistics, a bias, and a scale that keeps the output convex."""
    like = np.zeros(1) if like is None else like
    x = cloud(M, 20, min(spread, 0.3 * M.convexity_radius), like)
    bias = M.random(rng=7, like=like, spread=0.5)
    return x, batch_stats(M, x), bias, min(1.3, 0.45 * M.convexity_radius)


# ---------------------------------------------------------------------- textbook operators, plainly


class BallReference:
    """Unit Poincaré ball by Möbius arithmetic, one vector at a time."""

    e = np.zeros(3)

    def add(self, x, y):
        xy, xx, yy = x @ y, x @ x, y @ y
        return ((1 + 2 * xy + yy) * x + (1 - xx) * y) / (1 + 2 * xy + xx * yy)

    def lam(self, x):
        return 2 / (1 - x @ x)

    def exp(self, x, v):
        r = np.linalg.norm(v)
        return self.add(x, np.tanh(self.lam(x) * r / 2) * v / r)

    def log(self, x, y):
        u = self.add(-x, y)
        r = np.linalg.norm(u)
        return 2 / self.lam(x) * np.arctanh(r) * u / r

    def transport(self, x, y, v):
        def gyrate(z):  # gyr[y, −x] z, linear in z
            return self.add(-self.add(y, -x), self.add(y, self.add(-x, z)))

        r = np.linalg.norm(v)
        return self.lam(x) / self.lam(y) * gyrate(0.5 * v / r) * 2 * r

    def act(self, b, x):
        return self.add(b, x)


class SPDReference:
    """SPD matrices, affine-invariant."""

    e = np.eye(3)

    def exp(self, P, V):
        return P @ expm(np.linalg.solve(P, V))

    def log(self, P, Q):
        return P @ logm(np.linalg.solve(P, Q))

    def transport(self, P, Q, V):
        E = sqrtm(Q @ np.linalg.inv(P))
        return E @ V @ E.T

    def act(self, B, X):
        root = sqrtm(B)
        return root @ X @ root


class GrassmannianReference:
    """Bases, by the singular value decompositions of the paper's table and Edelman's transport."""

    e = np.eye(5, 2)

    def exp(self, U, D):
        Y, s, Rt = np.linalg.svd(D, full_matrices=False)
        return (U @ Rt.T * np.cos(s) + Y * np.sin(s)) @ Rt

    def log(self, U, V):
        Y, s, Rt = np.linalg.svd(V @ np.linalg.inv(U.T @ V) - U, full_matrices=False)
        return Y * np.arctan(s) @ Rt

    def along(self, U, D):
        """Return the n × n matrix that transports from U along D."""
        Y, s, Rt = np.linalg.svd(D, full_matrices=False)
        return np.eye(5) - Y @ Y.T + (Y * np.cos(s) - U @ Rt.T * np.sin(s)) @ Y.T

    def transport(self, U, V, D):
        """To the basis of V's span that the geodesic reaches, and then to V itself."""
        L = self.log(U, V)
        return self.along(U, L) @ D @ (self.exp(U, L).T @ V)

    def act(self, B, X):
        D = self.log(self.e, B)[2:]
        return expm(np.block([[np.zeros((2, 2)), -D.T], [D, np.zeros((3, 3))]])) @ X


class RotationReference:
    """Rotations, transported along one-parameter groups."""

    e = np.eye(3)

    def exp(self, R, V):
        return R @ expm(R.T @ V)

    def log(self, R, S):
        return R @ logm(R.T @ S)

    def transport(self, R, S, V):
        half = expm(logm(R.T @ S) / 2)
        return R @ half @ (R.T @ V) @ half

    def act(self, B, X):
        return B @ X


REFERENCES = [BallReference(), SPDReference(), GrassmannianReference(), RotationReference()]
PAIRS, IDS = list(zip(FOUR, REFERENCES, strict=True)), list(map(repr, FOUR))


@pytest.mark.parametrize(("M", "R"), PAIRS, ids=IDS)
def test_lrbn_is_its_formula(M, R):
    x, (mean, var), bias, s = setting(M)
    t = s / (var + EPS) ** 0.5
    expected = [R.exp(bias, t * R.transport(mean, bias, R.log(mean, a))) for a in x]
    assert_same(M, lrbn(M, x, Stats(mean, var), bias, s, EPS), np.real(expected), 1e-11)


@pytest.mark.parametrize(("M", "R"), PAIRS, ids=IDS)
def test_manifold_norm_is_its_formula(M, R):
    x, (mean, var), bias, s = setting(M)
    centred = [R.exp(R.e, R.transport(mean, R.e, R.log(mean, a))) for a in x]
    expected = [R.act(bias, R.exp(R.e, s * R.log(R.e, a))) for a in centred]
    assert_same(M, manifold_norm(M, x, Stats(mean, var), bias, s), np.real(expected), 1e-11)


@pytest.mark.parametrize("M", FOUR, ids=repr)
def test_manifold_norm_scales_each_coordinate(M):
    x, stats, _, _ = setting(M)
    S = np.linspace(0.5, 1.5, M.dim)
    centred = M.to_normal(manifold_norm(M, x, stats))
    y = manifold_norm(M, x, stats, None, S)
    np.testing.assert_allclose(M.to_normal(y), S * centred, rtol=0, atol=1e-12)


def test_manifold_norm_on_matrix_groups():
    """Algorithms 3–4 by scipy: they are GyroBN, so mean and variance are exact."""
    M = SpecialOrthogonal(3)
    x, stats, bias, s = setting(M)
    t = s / (stats.var + EPS) ** 0.5
    expected = np.asarray([bias @ expm(t * logm(stats.mean.T @ a)) for a in x])
    y = manifold_norm_group(M, x, stats, bias, s, EPS)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)
    distances = [np.linalg.norm(logm(stats.mean.T @ a)) for a in x]
    np.testing.assert_allclose(np.mean(np.square(distances)), stats.var, rtol=1e-12)
    with pytest.raises(TypeError, match="not a matrix group"):
        manifold_norm_group(SPD(3), x, stats)


# ---------------------------------------------------------------------- mean and variance


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_lrbn_with_exact_statistics_controls_them(M, eager: Library):
    """The paper states no guarantee; there is one: transport is linear and keeps lengths."""
    x, stats, bias, s = setting(M, eager.like)
    found = frechet(M, lrbn(M, x, stats, bias, s, EPS))
    variance = host(stats.var)
    tolerance = 1e-10 if eager.double else 2e-4
    assert float(host(M.dist(found.mean, bias))) < tolerance
    wrong = host(found.variance) / (s * s * variance / (variance + EPS)) - 1
    assert np.abs(wrong).max() < tolerance


@pytest.mark.parametrize("M", [PoincareBall(3), SpecialOrthogonal(3)], ids=repr)
def test_under_jit(M):
    x, stats, bias, s = setting(M)
    arrays = [jax.numpy.asarray(a) for a in (x, *stats, bias)]

    @jax.jit
    def both(x, mean, var, bias):
        stats = Stats(mean, var)
        return lrbn(M, x, stats, bias, s, EPS), manifold_norm(M, x, stats, bias, s)

    expected = lrbn(M, x, stats, bias, s, EPS), manifold_norm(M, x, stats, bias, s)
    for found, wanted in zip(both(*arrays), expected, strict=True):
        assert_same(M, np.asarray(found), wanted, 1e-11)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_manifold_norm_controls_the_mean_and_not_the_variance(M):
    """Two batches, one of a fraction of the spread: GyroBN's variances agree, these do not."""
    outputs = []
    for spread in (1.0, 0.1):
        x, stats, bias, _ = setting(M, spread=spread)
        y = manifold_norm(M, x, stats, bias)
        found, exact = frechet(M, y), frechet(M, normalize(M, x, stats, bias, 0.5, 0.0))
        assert M.dist(found.mean, bias) < 1e-10
        np.testing.assert_allclose(exact.variance, 0.25, rtol=1e-10)
        np.testing.assert_allclose(found.variance, stats.var, rtol=1e-10)
        outputs.append(found.variance)
    assert np.all(outputs[1] < 0.7 * outputs[0])


def test_a_diagonal_scale_gives_a_variance_that_depends_on_direction():
    """Two batches of the same mean and variance come out with different variances."""
    M = PoincareBall(2)
    S = np.asarray([0.2, 1.0])
    found = []
    for c in ([[0.5, 0.0], [-0.5, 0.0]], [[0.0, 0.5], [0.0, -0.5]]):
        x = M.from_normal(np.asarray(c))
        stats = batch_stats(M, x)
        np.testing.assert_allclose(stats.var, 0.25)
        found.append(float(batch_stats(M, manifold_norm(M, x, stats, None, S)).var))
    np.testing.assert_allclose(found, [0.01, 0.25])


def test_published_evaluation_of_lrbn_controls_no_variance():
    """What the code of Lou et al. evaluates, on a batch that has the running statistics.

    It carries the batch to the running mean and takes Exp at the bias, with the running variance
    in place of the one that was learnt. GyroBN, and LRBN here, give the variance asked for.
    """
    M = PoincareBall(3)
    x, stats, bias, s = setting(M)
    n = x.shape[0]
    v = M.transport(stats.mean, stats.mean, M.log(stats.mean, x))
    factor = (stats.var / (n / (n - 1) * stats.var + 1e-6)) ** 0.5
    published = frechet(M, M.exp(bias, factor * v)).variance
    assert abs(published / s**2 - 1) > 0.2
    for method in (normalize, lrbn):
        exact = frechet(M, method(M, x, stats, bias, s, 0.0)).variance
        np.testing.assert_allclose(exact, s**2, rtol=1e-10)


def test_one_step_of_the_mean_controls_nothing():
    """With the mean of the published code, one Karcher step from sample 0, no method is exact."""
    M = PoincareBall(3)
    x, _, bias, s = setting(M, spread=2.5)
    mean = M.exp(x[0], M.log(x[0], x).mean(axis=0))
    stats = Stats(mean, np.mean(M.dist(mean, x) ** 2))
    for method in (normalize, lrbn):
        assert M.dist(frechet(M, method(M, x, stats, bias, s)).mean, bias) > 0.05
    assert M.dist(frechet(M, manifold_norm(M, x, stats, bias)).mean, bias) > 0.05


@pytest.mark.parametrize("M", [Sphere(2), SpecialOrthogonal(3)], ids=repr)
def test_beyond_the_injectivity_radius_nobody_controls_the_variance(M):
    x, stats, bias, _ = setting(M)
    for method in (normalize, lrbn):
        y = method(M, x, stats, bias, 6.0, 0.0)
        assert abs(np.mean(M.dist(bias, y) ** 2) / 36.0 - 1) > 0.2


# ---------------------------------------------------------------------- how far from GyroBN

BY_PRODUCT = ("SpecialOrthogonal", "cholesky_affine_invariant")
"""Where ⊕ is the product of a group and not parallel transport from e."""
BY_TRANSPORT = [M for M in GEOMETRIES if not any(name in repr(M) for name in BY_PRODUCT)]


@pytest.mark.parametrize("M", BY_TRANSPORT, ids=repr)
def test_lrbn_is_gyrobn_turned_about_the_bias(M):
    r"""It is β ⊕ gyr[β, ⊖μ](t ⊙ (⊖μ ⊕ x)); at β = e nothing turns."""
    x, stats, bias, s = setting(M)
    z = normalize(M, x, stats, None, s, EPS)
    turned = M.add(bias, M.gyration(bias, M.neg(stats.mean), z))
    assert_same(M, lrbn(M, x, stats, bias, s, EPS), turned, 1e-10)
    assert_same(M, lrbn(M, x, stats, None, s, EPS), z, 1e-10)
    assert_same(M, manifold_norm(M, x, stats, bias), M.add(bias, M.relative(stats.mean, x)), 1e-10)


@pytest.mark.parametrize("M", FOUR, ids=repr)
def test_their_points_differ_from_gyrobn(M):
    x, stats, bias, s = setting(M)
    assert (
        M.dist(lrbn(M, x, stats, bias, s, EPS), normalize(M, x, stats, bias, s, EPS)).max() > 0.01
    )


@pytest.mark.parametrize("M", FOUR, ids=repr)
def test_channels_are_separate(M):
    x = np.stack([cloud(M, 8, 0.5, np.zeros(1)), cloud(M, 8, 0.3, np.zeros(1), 0.2)], axis=1)
    bias, s = M.random(2, rng=3, spread=0.5), np.asarray([0.5, 0.8])
    stats = batch_stats(M, x)
    for k in range(2):
        own = Stats(stats.mean[k], stats.var[k])
        both = lrbn(M, x, stats, bias, s)[:, k]
        assert_same(M, both, lrbn(M, x[:, k], own, bias[k], s[k]), 1e-11)
        both = manifold_norm(M, x, stats, bias, s[:, None])[:, k]
        assert_same(M, both, manifold_norm(M, x[:, k], own, bias[k], s[k]), 1e-11)


def test_clamp_and_bad_arguments():
    M = PoincareBall(3)
    x, stats, _, _ = setting(M)
    expected = lrbn(M, x, stats, None, 0.1 * float(stats.var) ** 0.5, 0.0)
    assert_same(M, lrbn(M, x, stats, clamp=0.1), expected, 1e-12)
    with pytest.raises(ValueError, match="eps must be a finite number of at least 0"):
        lrbn(M, x, stats, eps=-1.0)
    with pytest.raises(TypeError, match="mixed dtypes"):
        manifold_norm(M, x.astype(np.float32), stats)


# ---------------------------------------------------------------------- layers


def layers(M, **options):
    options = {"dtype": torch.float64, "eps": EPS} | options
    result = [LRBN(M, **options), ManifoldNorm(M, **options), ManifoldNorm(M, diagonal=False)]
    result[2].to(torch.float64)
    for layer in result:
        with torch.no_grad():
            layer.bias += 0.1
            layer.scale *= 0.6
    return result


@pytest.mark.parametrize("M", FOUR, ids=repr)
def test_layers_call_the_functions(M):
    x, stats, _, _ = setting(M)
    bias = M.from_normal(np.full(M.dim, 0.1))
    expected = [lrbn(M, x, stats, bias, 0.6, EPS), *2 * [manifold_norm(M, x, stats, bias, 0.6)]]
    for layer, y in zip(layers(M), expected, strict=True):
        layer.momentum = 1.0
        for out in (layer(torch.as_tensor(x)), layer.eval()(torch.as_tensor(x))):
            assert_same(M, out.detach().numpy(), y, 1e-10)
        copy = type(layer)(M, dtype=torch.float64)
        if layer.scale.shape == copy.scale.shape:
            copy.load_state_dict(layer.state_dict())
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers(M)]
    assert counts == [M.dim + 1, 2 * M.dim, M.dim + 1]


@pytest.mark.parametrize("M", FOUR, ids=repr)
@pytest.mark.parametrize("case", ["generic", "with the identity", "collapsed"])
def test_gradients(M, case):
    """Against central differences along a line, through the mean and the variance."""
    rng = np.random.default_rng(1)
    spread = 0.0 if case == "collapsed" else 0.4
    c = 0.2 + rng.standard_normal((6, M.dim)) * spread / M.dim**0.5
    if case == "with the identity":
        c[0] = 0.0
    c = torch.tensor(c, requires_grad=True)
    w = torch.as_tensor(rng.standard_normal((6, M.dim)))
    for layer in layers(M)[:2]:
        layer.train()
        inputs = [c, layer.bias, layer.scale]

        def loss(layer=layer):
            return (w * M.to_normal(layer(M.from_normal(c)))).sum()

        grads = torch.autograd.grad(loss(), inputs)
        for value, grad in zip(inputs, grads, strict=True):
            line = torch.as_tensor(rng.standard_normal(value.shape))
            h, ends = 1e-5, []
            for sign in (1.0, -1.0):
                with torch.no_grad():
                    value += sign * h * line
                    ends.append(loss())
                    value -= sign * h * line
            expected = (ends[0] - ends[1]) / (2 * h)
            size = 1.0 + float(expected.abs())
            assert abs(float((grad * line).sum() - expected)) < 2e-6 * size


def test_manifold_norm_has_nothing_to_clamp():
    with pytest.raises(ValueError, match="nothing to clamp"):
        ManifoldNorm(PoincareBall(2), clamp=4.0)


def test_layers_without_parameters():
    M = PoincareBall(3)
    x = M.random(12, 2, rng=0, like=torch.zeros(1), spread=0.5)
    for kind in (LRBN, ManifoldNorm):
        y = kind(M, channels=2, affine=False, track_running_stats=False)(x)
        assert float(M.norm(frechet(M, y).mean).max()) < 1e-5
