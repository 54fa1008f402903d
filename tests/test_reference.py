"""Normalization as seen from a reference, centring alone, and the distance to the cut locus."""

import itertools
import math
import warnings

import jax
import numpy as np
import pytest
import torch
from conftest import FIRST, GEOMETRIES, Library, assert_like, cloud, host, per_block

from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    ProjectedHypersphere,
    SpecialOrthogonal,
    Sphere,
    Stats,
    Stereographic,
    batch_stats,
    denormalize,
    frechet,
    normalize,
    normalize_batch,
)
from gyrobn.manifolds.rebased import Rebased

CHOSEN = [
    Euclidean(2),
    PoincareBall(3),
    Hyperboloid(2),
    Klein(2),
    Sphere(3),
    Stereographic(2, 0.3),
    Grassmannian(5, 2),
    Grassmannian(4, 2, "projector"),
    SPD(3),
    SPD(3, "log_cholesky"),
    SpecialOrthogonal(4),
    Correlation(3),
    Product(PoincareBall(2), Sphere(2)),
]


def reference_of(M, *channels, like=None):
    return M.random(*channels, rng=11, like=like, spread=min(0.6, 0.4 * M.convexity_radius))


def batch(M, count=20, like=None, spread=0.4):
    spread = min(spread, 0.2 * M.convexity_radius)
    return cloud(M, count, spread, np.zeros(()) if like is None else like, offset=0.5)


def apart(M, x, y):
    return float(host(M.dist(x, y)).max())


# ---------------------------------------------------------------------- the geometry


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
class TestLaws:
    """They are those of the geometry, for another identity."""

    def test_gyrogroup(self, M, eager: Library):
        R = Rebased(M, reference_of(M, like=eager.like))
        x, y, z = (M.random(8, rng=seed, like=eager.like, spread=0.3) for seed in (1, 2, 3))
        small = 2e3 * eager.eps / getattr(M, "theta", 1.0)
        e = R.origin(x)
        assert apart(M, R.add(e, x), x) < small
        assert apart(M, R.add(R.neg(x), x), M.add(e, 0.0 * x + M.origin(x))) < small
        assert apart(M, R.add(R.neg(x), R.add(x, y)), y) < small
        left, right = R.add(x, R.add(y, z)), R.add(R.add(x, y), R.gyration(x, y, z))
        assert apart(M, left, right) < small
        assert apart(M, R.from_normal(R.to_normal(x)), x) < small
        assert apart(M, R.exp(x, R.log(x, y)), y) < small
        assert_like(R.add(x, y), x)

    def test_it_is_isometric(self, M, eager: Library):
        R = Rebased(M, reference_of(M, like=eager.like))
        x, y, z = (M.random(8, rng=seed, like=eager.like, spread=0.3) for seed in (1, 2, 3))
        small = 2e3 * eager.eps / getattr(M, "theta", 1.0)
        d = host(M.dist(y, z))
        np.testing.assert_allclose(host(M.dist(R.add(x, y), R.add(x, z))), d, atol=small)
        np.testing.assert_allclose(host(R.norm(R.relative(y, z))), d, atol=small)
        v = M.log(x, y)
        np.testing.assert_allclose(host(R.log(x, y)), host(v), atol=small)
        np.testing.assert_allclose(host(R.inner(x, v, v)), host(M.inner(x, v, v)), atol=small)
        np.testing.assert_allclose(host(R.push(x, R.pull(x, v))), host(v), atol=small)

    def test_no_reference_is_the_identity(self, M, eager: Library):
        x = batch(M, like=eager.like)
        e = 0.0 * x[0, ...] + M.origin(x)
        stats = batch_stats(M, x)
        y = normalize(M, x, stats, scale=0.3)
        assert apart(M, normalize(M, x, stats, scale=0.3, reference=e), y) < 1e3 * eager.eps


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
class TestTheorem:
    @pytest.mark.parametrize("with_bias", [False, True])
    def test_mean_and_variance(self, M, eager: Library, with_bias):
        """The mean is the bias, by default the reference; the variance is s²v²/(v²+ε)."""
        x, r = batch(M, like=eager.like), reference_of(M, like=eager.like)
        bias = M.random(rng=7, like=eager.like, spread=0.4) if with_bias else None
        s, eps = min(0.5, 0.3 * M.convexity_radius), 1e-3
        stats = batch_stats(M, x)
        y = normalize(M, x, stats, bias, s, eps, reference=r)
        found = frechet(M, y)
        small = 1e-9 if eager.double else 2e-4
        assert apart(M, found.mean, r if bias is None else bias) < small
        variance = host(stats.var)
        expected = s * s * variance / (variance + eps)
        np.testing.assert_allclose(host(found.variance), expected, rtol=small)
        same, own = normalize_batch(M, x, bias=bias, scale=s, eps=eps, reference=r)
        assert apart(M, same, y) < small
        assert apart(M, own.mean, stats.mean) < small
        np.testing.assert_allclose(host(own.var), variance, rtol=small)
        back = denormalize(M, y, stats, bias, s, eps, reference=r)
        assert apart(M, back, x) < small

    def test_centre_only(self, M, eager: Library):
        """With ``scale=None`` all distances stay, and the mean moves to the bias."""
        x = batch(M, like=eager.like)
        bias, r = M.random(rng=7, like=eager.like, spread=0.4), reference_of(M, like=eager.like)
        stats, small = batch_stats(M, x), 1e-9 if eager.double else 2e-4
        for reference in (None, r):
            y = normalize(M, x, stats, bias, None, reference=reference)
            found = frechet(M, y)
            assert apart(M, found.mean, bias) < small
            np.testing.assert_allclose(host(found.variance), host(stats.var), rtol=small)
            apart_before, apart_after = M.dist(x[:1, ...], x), M.dist(y[:1, ...], y)
            np.testing.assert_allclose(host(apart_after), host(apart_before), atol=small)
            same, _ = normalize_batch(M, x, bias=bias, scale=None, reference=reference)
            assert apart(M, same, y) < small
            back = denormalize(M, y, stats, bias, None, reference=reference)
            assert apart(M, back, x) < small


@pytest.mark.parametrize("M", CHOSEN, ids=repr)
def test_channels_may_have_references_of_their_own(M):
    x = np.stack([batch(M), M.add(reference_of(M), batch(M, spread=0.2))], axis=1)
    r, bias = reference_of(M, 2), M.random(2, rng=5, spread=0.3)
    scales = per_block(M, np.asarray([0.2, 0.4]))
    y, stats = normalize_batch(M, x, bias=bias, scale=scales, reference=r)
    for k in range(2):
        one, own = normalize_batch(
            M, x[:, k], bias=bias[k], scale=float(scales[k].ravel()[0]), reference=r[k]
        )
        assert apart(M, y[:, k], one) < 1e-11
        assert apart(M, stats.mean[k], own.mean) < 1e-11
    shared, _ = normalize_batch(M, x, reference=r[0])
    first, _ = normalize_batch(M, x[:, 0], reference=r[0])
    assert apart(M, shared[:, 0], first) < 1e-11


def test_points_of_another_shape_are_refused():
    M, x = PoincareBall(3), np.zeros((4, 3))
    with pytest.raises(ValueError, match=r"expects arrays of shape \(\.\.\., 3\), got \(2,\)"):
        normalize_batch(M, x, reference=np.zeros(2))
    with pytest.raises(TypeError, match="dtype"):
        normalize(M, x, Stats(x[0], 1.0), reference=np.zeros(3, np.float32))


def test_warnings_see_through_a_reference():
    """A mean that need not be unique, and samples beyond the end of coordinates."""
    M = Sphere(2)
    x = M.random(50, rng=0, spread=1.8)
    with pytest.warns(FrechetWarning, match=r"on Sphere\(n=2, curvature=1.0\) .*another mean"):
        normalize_batch(M, x, reference=M.random(rng=0, spread=0.3))
    M = PoincareBall(2)
    x, r = M.random(10, rng=0), M.random(rng=1)
    with pytest.warns(FrechetWarning, match="farther than coordinates"):
        normalize_batch(M, x, scale=60.0, reference=r)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        normalize_batch(M, x, scale=2.0, reference=r)
        normalize_batch(M, x, scale=None, reference=r)


# ---------------------------------------------------------------------- derivatives


def function_of(M, bias, weights, scale=0.4):
    """A number that depends on samples and reference, seen in the entries of the output."""

    def value(x, r):
        y, stats = normalize_batch(M, x, bias=bias, scale=scale, reference=r)
        return (weights * M.to_normal(y)).sum() + 0.3 * stats.var.sum()

    return value


@pytest.mark.parametrize("scale", [0.4, None])
@pytest.mark.parametrize("M", CHOSEN, ids=repr)
def test_gradients(M, scale):
    """By the samples and by the reference, on torch and JAX, against central differences."""
    x, r, bias = batch(M, 5), reference_of(M), M.random(rng=7, spread=0.3)
    weights = np.random.default_rng(3).standard_normal((5, M.dim))
    value = function_of(M, bias, weights, scale)
    along = np.random.default_rng(4).standard_normal((6, M.dim))
    points = np.concatenate([x, r[None]])
    h = 1e-5

    def moved(t):
        both = M.add(points, M.from_normal(t * along))
        return value(both[:5], both[5])

    slope = (moved(h) - moved(-h)) / (2 * h)
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, r)]
    own = function_of(M, torch.as_tensor(bias), torch.as_tensor(weights), scale)
    grads = torch.autograd.grad(own(*tensors), tensors)
    flat = np.concatenate([grads[0].numpy(), grads[1].numpy()[None]])
    tangent = M.push(points, along)
    found = (flat * tangent).sum()
    assert found == pytest.approx(slope, rel=2e-7, abs=2e-7)
    if M in (Grassmannian(5, 2), SPD(3), PoincareBall(3)):
        own = function_of(M, *map(jax.numpy.asarray, (bias, weights)), scale)
        found = jax.jit(jax.grad(own, (0, 1)))(*map(jax.numpy.asarray, (x, r)))
        for one, other in zip(found, grads, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.parametrize(
    "M", [PoincareBall(2), Sphere(2), Grassmannian(4, 2), SPD(2), SpecialOrthogonal(3)], ids=repr
)
def test_second_derivatives(M):
    """The derivative of the gradient, along one direction, against differences of gradients."""
    x, r, bias = batch(M, 4), reference_of(M), torch.as_tensor(M.random(rng=7, spread=0.3))
    weights = torch.as_tensor(np.random.default_rng(3).standard_normal((4, M.dim)))
    along = torch.as_tensor(np.random.default_rng(4).standard_normal((5, M.dim)))
    points = torch.as_tensor(np.concatenate([x, r[None]]))
    value = function_of(M, bias, weights)

    def slope(t, s):
        """The derivative by s of the value at the points moved by t and by s."""
        both = M.add(points, M.from_normal((t + s) * along))
        (found,) = torch.autograd.grad(value(both[:4], both[4]), s, create_graph=True)
        return found

    zero, h = torch.zeros((), dtype=torch.float64), 1e-5
    t = zero.clone().requires_grad_()
    (second,) = torch.autograd.grad(slope(t, zero.clone().requires_grad_()), t)
    steps = [slope(zero + s * h, zero.clone().requires_grad_()).item() for s in (1, -1)]
    assert second.item() == pytest.approx((steps[0] - steps[1]) / (2 * h), rel=1e-6, abs=1e-6)


# ---------------------------------------------------------------------- near the cut locus


def near_cut_locus(degrees):
    """Samples of Gr(6, 2) around a mean whose angles to the identity are that large."""
    M = Grassmannian(6, 2)
    block = np.zeros((4, 2))
    block[0, 0], block[1, 1] = math.radians(degrees), math.radians(degrees - 1.0)
    centre = M.from_normal(block.reshape(-1))
    return M, M.add(centre, M.random(200, rng=0, spread=0.6))


def test_noise_of_the_mean_does_not_become_noise_of_the_samples():
    M, x = near_cut_locus(88.0)
    halves = x[:100], x[100:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrechetWarning)
        means = [batch_stats(M, half).mean for half in halves]
        apart_means = float(M.dist(*means))
        moved = {}
        for name, r in (("identity", None), ("mean", batch_stats(M, x).mean)):
            one, other = (normalize(M, x, Stats(m, 1.0), scale=None, reference=r) for m in means)
            moved[name] = float(M.dist(one, other).mean()) / apart_means
    assert moved["mean"] < 1.1
    assert moved["identity"] > 3.0


CUT = [
    (Sphere(3, 0.5), lambda t: math.pi - t),
    (ProjectedHypersphere(2, 2.0), lambda t: math.pi - t),
    (Stereographic(2, 0.3), lambda t: math.pi - t),
    (Grassmannian(5, 2), lambda t: math.pi / 2 - t),
    (Grassmannian(4, 2, "projector"), lambda t: math.pi / 2 - t),
    (Grassmannian(5, 3), lambda t: math.pi / 2 - t),
    (SpecialOrthogonal(2), lambda t: math.pi - t),
    (SpecialOrthogonal(3), lambda t: math.pi - t),
    (SpecialOrthogonal(5), lambda t: math.pi - t),
]


@pytest.mark.parametrize(("M", "angle"), CUT, ids=[repr(M) for M, _ in CUT])
def test_cut_locus_angle(M, angle, eager: Library):
    """The angle left on a geodesic that turns one plane, at several lengths."""
    unit = np.zeros(M.dim)
    unit[0] = 2**0.5 if isinstance(M, SpecialOrthogonal) else 1.0
    unit /= getattr(M, "curvature", 1.0) ** 0.5
    end = angle(0.0)
    angles = end * np.asarray([0.0, 0.3, 0.9, 0.999])
    x = M.from_normal(eager.array(angles[:, None] * unit))
    found = M.cut_locus_angle(x)
    assert_like(found, x)
    np.testing.assert_allclose(host(found), angle(angles), atol=1e-3 if not eager.double else 1e-7)
    assert M.cut_locus_angle(x[0, ...]).shape == ()


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_points_without_a_cut_locus_are_infinitely_far_from_it(M):
    x = M.random(4, 3, rng=0, spread=0.5)
    found = M.cut_locus_angle(x)
    assert found.shape == (4, 3)
    assert np.isinf(found).all() == (M.convexity_radius == math.inf)


def test_the_nearest_cut_locus_of_a_product_counts():
    M = Product(Sphere(2), PoincareBall(2), SpecialOrthogonal(3))
    sphere, ball, rotation = M.factors
    for a, b in itertools.product((0.5, 3.0), repeat=2):
        x = M.join(
            sphere.from_normal(np.asarray([a, 0.0])),
            ball.random(rng=0),
            rotation.from_normal(np.asarray([b * 2**0.5, 0.0, 0.0])),
        )
        assert float(M.cut_locus_angle(x)) == pytest.approx(math.pi - max(a, b), abs=1e-12)
    r = M.random(rng=1, spread=0.3)
    seen = float(M.cut_locus_angle(M.relative(r, x)))
    assert float(Rebased(M, r).cut_locus_angle(x)) == pytest.approx(seen, abs=1e-12)
