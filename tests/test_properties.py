"""Laws and the theorem on whatever hypothesis thinks of: any geometry, size and place."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gyrobn import (
    HPD,
    REGISTRY,
    SPD,
    ComplexBall,
    Correlation,
    Euclidean,
    FixedRankSPD,
    Grassmannian,
    Hyperboloid,
    Klein,
    MatrixBall,
    PoincareBall,
    Product,
    ProjectedHypersphere,
    ProperVelocity,
    SiegelDisk,
    SpecialEuclidean,
    SpecialOrthogonal,
    SpecialUnitary,
    Sphere,
    Stereographic,
    Torus,
    Unitary,
    batch_stats,
    frechet,
    normalize,
)
from gyrobn.manifolds.correlation import CHARTS
from gyrobn.manifolds.spd import METRICS

settings.register_profile("gyrobn", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("gyrobn")

SIZES = st.integers(1, 6)
SIGNS = st.sampled_from([-1.0, 1.0])
CURVATURES = st.floats(-6, 1.5).map(lambda e: 10.0**e)
THETAS = st.sampled_from([1.0, 0.5, 2.0, -0.7])


@st.composite
def subspaces(draw):
    n = draw(st.integers(2, 6))
    return Grassmannian(
        n, draw(st.integers(1, n - 1)), draw(st.sampled_from(["basis", "projector"]))
    )


SPACES = {
    "euclidean": st.builds(Euclidean, SIZES),
    "stereographic": st.builds(lambda n, K, s: Stereographic(n, s * K), SIZES, CURVATURES, SIGNS)
    | st.builds(Stereographic, SIZES, st.just(0.0)),
    "poincare_ball": st.builds(lambda n, K: PoincareBall(n, -K), SIZES, CURVATURES),
    "projected_hypersphere": st.builds(ProjectedHypersphere, SIZES, CURVATURES),
    "hyperboloid": st.builds(lambda n, K: Hyperboloid(n, -K), SIZES, CURVATURES),
    "sphere": st.builds(Sphere, SIZES, CURVATURES),
    "klein": st.builds(lambda n, K: Klein(n, -K), SIZES, CURVATURES),
    "proper_velocity": st.builds(lambda n, K: ProperVelocity(n, -K), SIZES, CURVATURES),
    "grassmannian": subspaces(),
    "spd": st.builds(SPD, st.integers(1, 5), st.sampled_from(METRICS), THETAS),
    "special_orthogonal": st.builds(SpecialOrthogonal, st.integers(2, 5)),
    "correlation": st.builds(Correlation, st.integers(2, 5), st.sampled_from(list(CHARTS))),
    "fixed_rank_spd": st.integers(1, 2).flatmap(
        lambda p: st.builds(FixedRankSPD, st.integers(p + 1, 4), st.just(p))
    ),
    "hpd": st.builds(HPD, st.integers(1, 3), st.sampled_from(METRICS)),
    "unitary": st.builds(Unitary, st.integers(1, 3)),
    "special_unitary": st.builds(SpecialUnitary, st.integers(2, 3)),
    "special_euclidean": st.builds(SpecialEuclidean, st.integers(2, 4)),
    "torus": st.builds(Torus, SIZES),
    "matrix_ball": st.builds(MatrixBall, st.integers(1, 3), st.integers(1, 3)),
    "complex_ball": st.builds(ComplexBall, st.integers(1, 3)),
    "siegel_disk": st.builds(SiegelDisk, st.integers(1, 2)),
    "product": st.builds(
        Product,
        st.builds(SPD, st.integers(1, 3), st.sampled_from(METRICS)),
        st.builds(Hyperboloid, st.integers(1, 3)) | st.builds(Correlation, st.just(3)),
        st.builds(Sphere, st.integers(1, 3)) | st.builds(SpecialOrthogonal, st.just(3)),
    ),
}
"""A family of instances for every name of the registry."""


def test_every_geometry_has_a_family():
    assert set(SPACES) == set(REGISTRY)


@st.composite
def samples(draw, spaces, count):
    """A geometry, points of any spread around any centre, and the distance that rounding makes.

    Distances are in units of the radius of curvature, of which those of a flat space may be any.
    """
    M = draw(spaces)
    unit = abs(getattr(M, "curvature", 1.0) or 1.0) ** -0.5
    if isinstance(M, Euclidean):
        unit = 10.0 ** draw(st.integers(-8, 8))
    reach = 0.6 * min(unit, M.convexity_radius)
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    spread, offset = (reach * draw(st.floats(0.02, 1.0)) for _ in range(2))
    x = M.random(count, rng=rng, spread=1.0)
    far = M.norm(x)[:, None]
    x = M.from_normal(M.to_normal(x) * spread / np.where(far > 0, far, 1.0))
    centre = M.random(rng=rng, spread=offset)
    x = M.add(centre, x)
    return M, x, 1e-11 * unit / min(1.0, abs(getattr(M, "theta", 1.0)))


def every_geometry(count, examples):
    """Run a law on so many examples of each geometry."""

    def decorate(law):
        @pytest.mark.parametrize("name", REGISTRY)
        @settings(max_examples=examples)
        @given(data=st.data())
        def test(name, data):
            law(*data.draw(samples(SPACES[name], count)), data.draw)

        test.__doc__ = law.__doc__
        return test

    return decorate


FRACTIONS = st.floats(0.0, 1.0)


@every_geometry(3, 25)
def test_laws(M, x, small, draw):
    """Those of a gyrogroup of isometries, and of Exp and Log."""
    a, b, c = x
    assert M.dist(M.add(M.neg(a), M.add(a, b)), b) <= small
    assert M.dist(M.add(a, M.add(b, c)), M.add(M.add(a, b), M.gyration(a, b, c))) <= small
    assert abs(M.dist(M.add(a, b), M.add(a, c)) - M.dist(b, c)) <= small
    v = M.log(a, b)
    assert M.dist(M.exp(a, v), b) <= small
    assert abs(np.sqrt(M.inner(a, v, v)) - M.dist(a, b)) <= small
    assert abs(M.norm(M.scale(0.3, a)) - 0.3 * M.norm(a)) <= small


@every_geometry(7, 12)
def test_theorem(M, x, small, draw):
    """In units of the radius of curvature, since a variance has units."""
    stats = batch_stats(M, x)
    # of seven samples one may be √6 deviations out: on a sphere that must end before the equator
    most = 0.3 * min(small * 1e11, M.convexity_radius)
    scale, eps = draw(st.floats(0.05, 1.0)) * most, 1e-4 * most**2
    found = frechet(M, normalize(M, x, stats, x[0], scale, eps))
    assert found.converged
    assert M.dist(found.mean, x[0]) <= 10 * small
    expected = scale**2 * stats.var / (stats.var + eps)
    # all samples of a line may be the same
    np.testing.assert_allclose(found.variance, expected, rtol=1e-8, atol=small**2)


VECTORS = ["poincare_ball", "projected_hypersphere", "hyperboloid", "sphere", "klein"]


@pytest.mark.parametrize("name", [*VECTORS, "stereographic", "proper_velocity"])
@settings(max_examples=30)
@given(data=st.data(), big=st.floats(-1e30, 1e30), other=st.floats(-1e30, 1e30))
def test_projection_always_lands(name, data, big, other):
    M = data.draw(SPACES[name])
    x = np.full(M.point_shape, big)
    x[..., 0] = other
    p = M.project(x)
    assert M.contains(p)
    np.testing.assert_allclose(M.project(p), p, rtol=1e-15)


@every_geometry(3, 20)
def test_triangles(M, x, small, draw):
    """The triangle inequality, and ‖x ⊕ y‖ between the difference and the sum of ‖x‖ and ‖y‖."""
    a, b, c = x
    assert M.dist(a, c) <= M.dist(a, b) + M.dist(b, c) + small
    norms = M.norm(a), M.norm(b)
    assert abs(norms[0] - norms[1]) - small <= M.norm(M.add(a, b)) <= sum(norms) + small
    assert abs(M.dist(a, b) - M.dist(b, a)) <= small
    assert abs(M.norm(M.neg(a)) - norms[0]) <= small


@every_geometry(2, 20)
def test_geodesics(M, x, small, draw):
    """They have unit speed; lengths on them add up; a part of one is one; they can be reversed."""
    a, b = x
    s, t, u = (draw(FRACTIONS) for _ in range(3))
    p, q = M.geodesic(a, b, s), M.geodesic(a, b, t)
    length = M.dist(a, b)
    assert abs(M.dist(p, q) - abs(s - t) * length) <= small
    assert abs(M.dist(a, p) + M.dist(p, b) - length) <= small
    assert M.dist(M.geodesic(p, q, u), M.geodesic(a, b, s + u * (t - s))) <= small
    assert M.dist(M.geodesic(b, a, 1.0 - s), p) <= small
    assert M.dist(M.exp(a, s * M.log(a, b)), p) <= small


@every_geometry(3, 20)
def test_transport(M, x, small, draw):
    """In a symmetric space, reflection in the midpoint of a and b carries −v at a to b."""
    a, b, c = x
    reflected = M.geodesic(c, M.geodesic(a, b, 0.5), 2.0)
    v = M.log(a, c)
    moved = M.transport(a, b, v)
    assert M.dist(M.exp(b, -moved), reflected) <= small
    assert abs(np.sqrt(M.inner(b, moved, moved)) - M.dist(a, c)) <= small


@every_geometry(5, 12)
def test_means_of_the_same_samples(M, x, small, draw):
    """In another order, twice, with weights for repetitions, and with a sample of no weight."""
    expected = frechet(M, x)
    counts = np.asarray(draw(st.lists(st.integers(0, 3), min_size=5, max_size=5)))
    assume(counts.any())
    order = draw(st.permutations(range(5)))
    weighted = frechet(M, x, weights=draw(st.floats(1e-3, 1e3)) * counts)
    pairs = [
        (expected, frechet(M, x[order])),
        (expected, frechet(M, np.concatenate([x, x]))),
        (weighted, frechet(M, np.repeat(x, counts, axis=0))),
        (weighted, frechet(M, x[order], weights=1.0 * counts[order])),
        (weighted, frechet(M, x[counts > 0], weights=1.0 * counts[counts > 0])),
    ]
    for one, other in pairs:
        assert one.converged.all()
        assert other.converged.all()
        assert M.dist(one.mean, other.mean) <= small
        deviations = np.sqrt(one.variance), np.sqrt(other.variance)
        np.testing.assert_allclose(*deviations, rtol=1e-9, atol=small)


@every_geometry(4, 12)
def test_the_mean_moves_with_the_samples(M, x, small, draw):
    """Left translations, and the gyroinverse where it is an isometry, carry mean to mean."""
    shift, x = x[0], x[1:]
    mean, variance = frechet(M, x)[:2]
    moved = frechet(M, M.add(shift, x))
    assert M.dist(moved.mean, M.add(shift, mean)) <= small
    np.testing.assert_allclose(np.sqrt(moved.variance), np.sqrt(variance), rtol=1e-9, atol=small)
    if M.gyrocommutative or isinstance(M, SpecialOrthogonal):
        assert M.dist(frechet(M, M.neg(x)).mean, M.neg(mean)) <= small


@every_geometry(3, 3)
def test_there_and_back_again(M, x, small, draw):
    """Fifty steps of log, exp and transport around a triangle, and fifty back."""
    start, vector = x[0], M.log(x[0], x[1])
    way = [k % 3 for k in range(51)]
    at, u = start, vector
    for k in (*way[1:], *way[-2::-1]):
        to = M.exp(at, M.log(at, x[k]))  # on the Grassmannian, maybe another basis of x[k]
        at, u = to, M.transport(at, to, u)
    assert M.dist(at, start) <= 10 * small
    assert M.dist(M.exp(at, u), x[1]) <= 10 * small
    lengths = np.sqrt([M.inner(at, u, u), M.inner(start, vector, vector)])
    assert abs(lengths[0] - lengths[1]) <= 10 * small


# ---------------------------------------------------------------------- matrices


def same_means(M, x, y, carry, small):
    """Distances of x and y agree, and their means, after one was carried to the other."""
    np.testing.assert_allclose(M.dist(y[1:], y[:-1]), M.dist(x[1:], x[:-1]), atol=small)
    one, other = frechet(M, x), frechet(M, y)
    assert one.converged.all()
    assert other.converged.all()
    assert M.dist(carry(one.mean), other.mean) <= small
    np.testing.assert_allclose(other.variance, one.variance, rtol=1e-8, atol=small**2)


def turn(seed, n):
    return SpecialOrthogonal(n).random(rng=seed, spread=2.0) if n > 1 else np.eye(1)


SEEDS = st.integers(0, 2**20)
AFFINE = [m for m in METRICS if m.endswith("affine_invariant")]
UNITS = st.integers(-20, 20).map(lambda e: 10.0**e)


@settings(max_examples=40)
@given(samples(st.builds(SPD, st.integers(1, 5), st.sampled_from(AFFINE)), 5), SEEDS, UNITS)
def test_congruence(case, seed, unit):
    """By any invertible matrix, of any size, and the inverse: distances stay, the mean follows."""
    M, x, small = case
    stretch = np.exp(np.random.default_rng(seed).uniform(-1.0, 1.0, M.n))
    A = unit * turn(seed, M.n) @ np.diag(stretch) @ turn(seed + 1, M.n)
    same_means(M, x, M.project(A @ x @ A.T), lambda P: M.project(A @ P @ A.T), 10 * small)
    same_means(M, x, np.linalg.inv(x), np.linalg.inv, 10 * small)


ROUND = [m for m in METRICS if m != "log_cholesky"]


@settings(max_examples=40)
@given(samples(st.builds(SPD, st.integers(1, 5), st.sampled_from(ROUND), THETAS), 5), SEEDS, UNITS)
def test_rotation_inversion_and_unit(case, seed, unit):
    """What holds for the deformed and the log-Euclidean metrics as well."""
    M, x, small = case
    R = turn(seed, M.n)
    same_means(M, x, unit * M.project(R @ x @ R.T), lambda P: unit * (R @ P @ R.T), 10 * small)
    same_means(M, x, M.project(np.linalg.inv(x)), np.linalg.inv, 10 * small)


@settings(max_examples=40)
@given(samples(st.builds(SPD, st.integers(1, 5), st.sampled_from(ROUND), THETAS), 4), SEEDS)
def test_joint_homogeneity(case, seed):
    """Multiples of the samples multiply the mean by their geometric mean; so do determinants."""
    M, x, small = case
    rng = np.random.default_rng(seed)
    factors, w = 10.0 ** rng.uniform(-6.0, 6.0, 4), rng.uniform(0.1, 1.0, 4)
    w /= w.sum()
    mean = frechet(M, x, weights=w).mean
    found = frechet(M, factors[:, None, None] * x, weights=w).mean
    assert M.dist(found, np.exp(w @ np.log(factors)) * mean) <= 100 * small
    logs = np.linalg.slogdet(x)[1]
    assert abs(np.linalg.slogdet(mean)[1] - w @ logs) <= 100 * small


@settings(max_examples=40)
@given(
    samples(st.builds(Correlation, st.integers(2, 5), st.sampled_from(list(CHARTS))), 5),
    SEEDS,
)
def test_variables_in_another_order_or_of_the_other_sign(case, seed):
    """The last two metrics know no order of the variables; all but the last know no sign."""
    M, x, small = case
    rng = np.random.default_rng(seed)
    signs, order = rng.choice([-1.0, 1.0], M.n), rng.permutation(M.n)
    if M.metric in ("off_log", "log_scaled"):
        P = np.eye(M.n)[order]
        same_means(M, x, P @ x @ P.T, lambda C: P @ C @ P.T, 10 * small)
    if M.metric != "log_scaled":
        D = np.outer(signs, signs)
        same_means(M, x, D * x, lambda C: D * C, 10 * small)
