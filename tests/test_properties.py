"""Laws and the theorem on whatever hypothesis thinks of: any curvature, dimension and radius."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gyrobn import (
    Hyperboloid,
    Klein,
    PoincareBall,
    ProjectedHypersphere,
    Sphere,
    Stereographic,
    batch_stats,
    frechet,
    normalize,
)

settings.register_profile("gyrobn", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("gyrobn")

SIZES = st.integers(1, 6)
SIGNED = {Stereographic: 0, PoincareBall: -1, Hyperboloid: -1, Klein: -1}
SIGNED |= {ProjectedHypersphere: 1, Sphere: 1}


@st.composite
def geometries(draw):
    cls = draw(st.sampled_from(list(SIGNED)))
    size = draw(st.floats(-6, 1.5).map(lambda e: 10.0**e) | st.just(1.0))
    sign = SIGNED[cls] or draw(st.sampled_from([-1, 0, 1]))
    return cls(draw(SIZES), size * sign)


@st.composite
def clouds(draw, count, angle):
    """A geometry and points on it, out to an angle: radius times the root of the curvature."""
    M = draw(geometries())
    reach = angle if M.curvature == 0 else angle / abs(M.curvature) ** 0.5
    if M.curvature > 0:
        reach = min(reach, 0.9 * M.convexity_radius)
    seed = draw(st.integers(0, 2**20))
    radii = draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    c = np.random.default_rng(seed).standard_normal((count, M.dim))
    c *= np.asarray(radii)[:, None] * reach / np.linalg.norm(c, axis=-1, keepdims=True)
    return M, M.from_normal(c), reach


@given(clouds(3, 1.5))
def test_laws(case):
    M, x, reach = case
    a, b, c = x
    small = 1e-12 * max(reach, 1e-300)
    assert M.dist(M.add(M.neg(a), M.add(a, b)), b) <= small
    assert M.dist(M.add(a, M.add(b, c)), M.add(M.add(a, b), M.gyration(a, b, c))) <= 10 * small
    assert abs(M.dist(M.add(a, b), M.add(a, c)) - M.dist(b, c)) <= small
    assert M.dist(M.exp(a, M.log(a, b)), b) <= small
    assert abs(M.norm(M.scale(0.3, a)) - 0.3 * M.norm(a)) <= small
    assert abs(np.sqrt(M.inner(a, M.log(a, b), M.log(a, b))) - M.dist(a, b)) <= small


@given(clouds(7, 1.0), st.floats(0.05, 1.0))
def test_theorem(case, relative_scale):
    """In units of the curvature radius, since a variance has units."""
    M, x, reach = case
    stats = batch_stats(M, x)
    assume(stats.var > (1e-3 * reach) ** 2)
    # of seven samples one may be √6 deviations out: on a sphere that must end before the equator
    most = 0.6 if M.curvature > 0 else 1.0
    scale, bias, eps = most * relative_scale * reach, x[0], 1e-4 * reach**2
    found = frechet(M, normalize(M, x, stats, bias, scale, eps))
    assert found.converged
    assert M.dist(found.mean, bias) <= 1e-10 * reach
    expected = scale**2 * stats.var / (stats.var + eps)
    assert abs(found.variance - expected) <= 1e-9 * expected


@given(geometries(), st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_projection_always_lands(M, big, other):
    x = np.full(M.point_shape, big)
    x[..., 0] = other
    p = M.project(x)
    assert M.contains(p)
    np.testing.assert_allclose(M.project(p), p, rtol=1e-15)
