"""Derivatives of Algorithm 1 with batch statistics, against differences, on every geometry.

They are torch's; test_layers.py holds those of JAX to them, on the same data.
"""

import jax
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES, cloud

import gyrobn
from gyrobn import (
    SPD,
    Grassmannian,
    MatrixBall,
    PoincareBall,
    Product,
    SiegelDisk,
    SpecialOrthogonal,
    SpecialUnitary,
    Unitary,
    batch_stats,
    frechet,
    frechet_variance,
    normalize,
    normalize_batch,
)


def turned(seed, *angles_or_values, skew=False):
    """A matrix with the given eigenvalues, or rotation angles, in a random basis."""
    values = np.asarray(angles_or_values, dtype=float)
    n = 2 * len(values) if skew else len(values)
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    middle = np.diag(values)
    if skew:
        middle = np.zeros((n, n))
        for k, angle in enumerate(values):
            middle[2 * k + 1, 2 * k], middle[2 * k, 2 * k + 1] = angle, -angle
    return basis @ middle @ basis.T


def with_repeated_spectra(M):
    """Five points with repeated eigenvalues or principal angles; None for vectors."""
    if isinstance(M, Grassmannian):
        rng = np.random.default_rng(0)
        blocks = []
        for angle in (0.2, 0.5, 0.5, 0.7, 0.3):
            Q, _ = np.linalg.qr(rng.standard_normal((max(M.n - M.p, M.p),) * 2))
            blocks.append(angle * Q[: M.n - M.p, : M.p])
        return M.from_normal(np.stack(blocks).reshape(5, M.dim))
    if isinstance(M, SpecialOrthogonal):
        if M.n % 2:
            return None
        X = np.stack([turned(i, *(a for _ in range(M.n // 2)), skew=True) for i, a in ANGLES])
        rows, columns = np.tril_indices(M.n, -1)
        return M.from_normal(X[:, rows, columns] * 2**0.5)
    if M.point_shape == (3, 3) and hasattr(M, "metric") and not M.complex_points:
        ones = np.ones((3, 3)) - np.eye(3)
        if "Correlation" in type(M).__name__:
            return np.stack([np.eye(3) + r * ones for r in (0.5, 0.2, -0.3, 0.0, 0.7)])
        return np.stack(
            [2 * np.eye(3), np.eye(3), turned(0, 1, 1, 3), turned(1, 2, 2, 0.5), np.eye(3) / 3]
        )
    if isinstance(M, Unitary):
        phases = np.outer([a for _, a in ANGLES], np.ones(M.n))
        if isinstance(M, SpecialUnitary):
            phases[:, -1] *= 1 - M.n  # their sum is 0
        return np.exp(1j * phases)[..., None] * np.eye(M.n)
    if M.point_shape == (2, 2):
        sizes = np.asarray([0.5, 1.0, 2.0, 0.7, 1.3])
        if isinstance(M, (MatrixBall, SiegelDisk)):
            sizes = sizes / 4.0
        return (sizes + (0j if M.complex_points else 0.0))[:, None, None] * np.eye(2)
    return None


ANGLES = ((0, 0.3), (1, 0.6), (2, 0.4), (3, 0.1), (4, 0.5))


def samples(M, data):
    spread = min(0.8, 0.3 * M.convexity_radius)
    x = cloud(M, 5, spread, np.zeros(())).copy()
    if data == "with the identity":
        x[2] = M.origin(x)
        return x
    if data == "collapsed":
        x[:] = x[0]
        return x
    return with_repeated_spectra(M) if data == "repeated spectra" else x


def kinds(M):
    """Return the names of the data that there are for M."""
    special = [] if with_repeated_spectra(M) is None else ["repeated spectra"]
    return ["generic", "with the identity", "collapsed", *special]


LARGE = [
    Grassmannian(25, 8),
    SpecialOrthogonal(18),
    Product(Grassmannian(25, 8)),
    PoincareBall(150),
]
"""Where the Hessian is applied, and not formed."""
CASES = [(M, data) for M in GEOMETRIES for data in kinds(M)] + [(M, "generic") for M in LARGE]


class Case:
    """Algorithm 1 as a function of one number, which moves samples, bias and scale."""

    def __init__(self, M, data):
        self.M, x = M, samples(M, data)
        rng = np.random.default_rng(5)
        tangent = M.push(x, rng.standard_normal((5, M.dim)))
        bias = M.to_normal(M.random(rng=7, spread=0.3))
        turn = 0.3 * rng.standard_normal(M.dim)
        self.arrays = x, tangent, bias, turn, *rng.standard_normal((2, 5, M.dim))

    def __call__(self, t, convert=np.asarray):
        return value(self.M, t, *map(convert, self.arrays))

    def difference(self, h=1e-4):
        near, far = self(h) - self(-h), self(2 * h) - self(-2 * h)
        return float(8 * near - far) / (12 * h)


def value(M, t, x, tangent, bias, turn, linear, square):
    x = M.exp(x, t * tangent)
    y = normalize(M, x, batch_stats(M, x), M.from_normal(bias + t * turn), 0.3 + 0.2 * t, eps=1e-2)
    c = M.to_normal(y)
    return (linear * c + square * c * c).sum()


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")  # samples about a far identity
@pytest.mark.parametrize(("M", "data"), CASES, ids=str)
def test_normalize(M, data):
    case = Case(M, data)
    expected = case.difference()
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    case(t, torch.as_tensor).backward()
    assert abs(float(t.grad) - expected) < 1e-6 * abs(expected)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_normalize_by_weights(M):
    """The mean and the variance change with the weights, and so does the output."""
    x = torch.as_tensor(samples(M, "generic"))
    along, *linear = torch.as_tensor(np.random.default_rng(5).standard_normal((1 + M.dim, 5)))

    def loss(t):
        y, _ = normalize_batch(M, x, torch.exp(t * along), scale=0.5)
        return (torch.stack(linear, -1) * M.to_normal(y)).sum()

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    loss(t).backward()
    h = 1e-4
    near, far = (loss(k * h) - loss(-k * h) for k in (1, 2))
    expected = float(8 * near - far) / (12 * h)
    assert abs(float(t.grad) - expected) < 1e-6 * abs(expected)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_number_of_steps_gives_the_same_mean_with_and_without_derivatives(M, steps):
    x = cloud(M, 5, min(0.8, 0.3 * M.convexity_radius), np.zeros(()))
    expected = frechet(M, x, steps=steps)
    leaf = torch.as_tensor(x).clone().requires_grad_(True)
    found = frechet(M, leaf, steps=steps)
    assert float(M.dist(found.mean.detach().numpy(), expected.mean)) < 1e-13
    np.testing.assert_allclose(found.variance.detach(), expected.variance, rtol=1e-12)
    assert int(found.iterations) == int(expected.iterations) == steps + 1
    found.variance.sum().backward()
    assert torch.isfinite(leaf.grad).all()
    assert float(leaf.grad.abs().max()) > 1e-3


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_steps_that_reach_the_mean_have_its_derivative(M):
    x = torch.as_tensor(cloud(M, 5, min(0.8, 0.3 * M.convexity_radius), np.zeros(())))
    weight = torch.as_tensor(np.random.default_rng(0).standard_normal(M.dim))

    def slope(**options):
        leaf = x.clone().requires_grad_(True)
        result = frechet(M, leaf, **options)
        (result.variance.sum() + (weight * M.to_normal(result.mean)).sum()).backward()
        return leaf.grad

    expected = slope()
    assert float((slope(steps=8) - expected).abs().max()) < 1e-8
    assert float((slope(steps=1) - expected).abs().max()) < 0.1 * float(expected.abs().max())


@pytest.mark.parametrize("M", [PoincareBall(3), SpecialOrthogonal(3), SPD(3)], ids=repr)
def test_the_variance_changes_with_a_mean_that_was_not_reached(M):
    """By the samples, and by the derivative of the mean that a number of steps has."""
    spread = min(1.5, 0.4 * M.convexity_radius)
    x = torch.as_tensor(cloud(M, 5, spread, np.zeros(()))).requires_grad_(True)
    found = frechet(M, x, steps=0)
    assert float(found.residual) > 1e-3
    (expected,) = torch.autograd.grad(frechet_variance(M, x, found.mean), x, retain_graph=True)
    (slope,) = torch.autograd.grad(found.variance, x)
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_only_parameters_are_learnt(M):
    """The samples are constants: what is overwritten in place then must not be what they need."""
    x = torch.as_tensor(cloud(M, 5, min(0.8, 0.3 * M.convexity_radius), np.zeros(())))
    stats = batch_stats(M, x)
    coordinates = torch.as_tensor(M.to_normal(M.random(rng=7, spread=0.3)))
    weight = torch.as_tensor(np.random.default_rng(0).standard_normal((5, M.dim)))

    def loss(t):
        y = normalize(M, x, stats, M.from_normal(coordinates * (1 + t)), 0.3 + 0.2 * t)
        return (weight * M.to_normal(y)).sum()

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    loss(t).backward()
    h = 1e-4
    near, far = loss(h) - loss(-h), loss(2 * h) - loss(-2 * h)
    expected = float(8 * near - far) / (12 * h)
    assert abs(float(t.grad) - expected) < 1e-6 * (1e-3 + abs(expected))


@pytest.mark.parametrize("name", ["Hyperboloid", "Sphere", "PoincareBall", "Klein"])
def test_a_mean_moves_with_the_points_of_its_model(name):
    """Points of some models move with the curvature, and so does the mean of the same vectors."""
    c = np.random.default_rng(0).normal(0.2, 0.3, (9, 3))
    cls, first = getattr(gyrobn, name), 0.8 if name == "Sphere" else -0.7

    def loss(K, convert=torch.as_tensor):
        M = cls(3, curvature=K)
        mean = gyrobn.frechet_mean(M, M.from_normal(convert(c)))
        return (mean * convert(np.arange(1.0, mean.shape[-1] + 1.0))).sum()

    K = torch.tensor(first, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(K), K)
    with torch.no_grad():
        up, down = (loss(K + h) for h in (1e-5, -1e-5))
    assert abs(slope - (up - down) / 2e-5) < 1e-8
    if name in ("Hyperboloid", "Sphere"):  # those that move
        compiled = jax.jit(jax.grad(lambda K: loss(K, jax.numpy.asarray)))
        assert abs(float(compiled(first)) - float(slope)) < 1e-12


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize(
    ("M", "radius"),
    [
        (gyrobn.Sphere(2), 1.9),
        (gyrobn.ProjectedHypersphere(2), 1.9),
        (gyrobn.Sphere(3, 2.0), 1.2),
        (Grassmannian(4, 2), 1.4),
        (SpecialOrthogonal(4), 3.5),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_a_mean_of_samples_beyond_a_hemisphere(M, radius, library):
    """No sample's Hessian is positive there, but their mean is, and the mean has its derivative."""
    rng = np.random.default_rng(0)
    c, _ = np.linalg.qr(rng.standard_normal((M.dim, M.dim)))
    x, e = M.from_normal(radius * np.concatenate([c, -c])), M.origin(np.zeros(()))
    d, slope = rng.standard_normal((2 * M.dim, M.dim)), rng.standard_normal(M.dim)

    def along(t, x, e, d, slope):
        found = frechet(M, M.shift(x, t * d), init=e)
        return (M.relative_normal(e, found.mean) * slope).sum()

    exact = (along(1e-5, x, e, d, slope) - along(-1e-5, x, e, d, slope)) / 2e-5
    if library == "torch":
        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        along(t, *map(torch.as_tensor, (x, e, d, slope))).backward()
        found = t.grad
    else:
        with jax.enable_x64(True):
            found = jax.grad(along)(0.0, *map(jax.numpy.asarray, (x, e, d, slope)))
    np.testing.assert_allclose(float(found), exact, rtol=1e-6)
