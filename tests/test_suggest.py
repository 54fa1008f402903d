"""Which geometry fits: known spaces are recognised, and the uncertainty is honest."""

import numpy as np
import pytest

from gyrobn import Euclidean, PoincareBall, Product, Sphere, suggest
from gyrobn.suggestion import _factor


def distances(M, count=60, noise=0.0, rng=0):
    x = M.random(count, rng=rng)
    d = M.dist(x[:, None], x)
    error = np.triu(np.random.default_rng(rng).standard_normal(d.shape), 1)
    return np.maximum(d + noise * (error + error.T), 0.0) * (1 - np.eye(count))


@pytest.mark.parametrize("K", [-0.7, 0.0, 0.4])
def test_slopes_of_the_distances(K):
    rng, h = np.random.default_rng(0), 1e-6
    p, weights, step = rng.standard_normal((7, 2)), rng.random((7, 7)), rng.standard_normal((7, 2))
    np.fill_diagonal(weights, 0.0)
    by_points, by_curvature = _factor(p, K)[1](weights)

    def value(p, K):
        return np.sum(weights * _factor(p, K)[0])

    quotient = (value(p + h * step, K) - value(p - h * step, K)) / (2 * h)
    assert np.sum(by_points * step) == pytest.approx(quotient, rel=1e-6)
    if K:
        quotient = (value(p, K + h) - value(p, K - h)) / (2 * h)
        assert by_curvature == pytest.approx(quotient, rel=1e-6)


@pytest.mark.parametrize(
    "M", [PoincareBall(2, -2.0), PoincareBall(3, -0.1), Sphere(2, 0.5), Sphere(3, 2.0)], ids=repr
)
def test_exact_distances_give_the_curvature(M):
    found = suggest(distances=distances(M), dim=M.dim)
    assert found.geometry == M
    assert found.curvature[0] == pytest.approx(M.curvature, rel=1e-4)
    assert found.error < 1e-6 < found.flat_error
    scaled = suggest(distances=3.0 * distances(M), dim=M.dim)  # another unit of length
    assert scaled.curvature[0] == pytest.approx(M.curvature / 9.0, rel=1e-4)


def test_flat_distances_do_not_decide_a_sign():
    for noise in (0.0, 0.05):
        found = suggest(distances=distances(Euclidean(2), noise=noise))
        assert found.geometry == Euclidean(2)
        ((low, high),) = found.interval
        assert low < 0.0 < high


def test_intervals_of_noisy_distances_contain_the_curvature():
    M = PoincareBall(2, -1.0)
    hits = 0
    for seed in range(6):
        found = suggest(distances=distances(M, noise=0.1, rng=seed), rng=seed)
        ((low, high),) = found.interval
        assert high - low > 0.02
        hits += low <= -1.0 <= high
    assert hits >= 4


def test_factors_of_a_product_have_a_curvature_each():
    M = Product(PoincareBall(2, -1.5), Sphere(2, 1.0))
    found = suggest(distances=distances(M, 50), dim=(2, 2))
    assert found.geometry == M
    assert found.curvature == pytest.approx((-1.5, 1.0), rel=1e-3)
    assert set(found.fits) == {"--", "-+", "++"}


def test_points_of_a_sphere_in_space_show_its_curvature():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 3))
    x = 2.0 * x / np.linalg.norm(x, axis=1, keepdims=True)
    x = x[x[:, 0] > -0.5]
    found = suggest(x)
    assert found.points == 120
    assert isinstance(found.geometry, Sphere)
    assert 0.15 < found.curvature[0] < 0.3  # 1/4; paths along the graph are longer than arcs


def test_a_tree_is_hyperbolic():
    count = 40
    parent = [0, *((k - 1) // 2 for k in range(1, count))]
    d = np.full((count, count), np.inf)
    np.fill_diagonal(d, 0.0)
    for k in range(1, count):
        d[k, parent[k]] = d[parent[k], k] = 1.0
    for k in range(count):
        d = np.minimum(d, d[:, [k]] + d[[k]])
    found = suggest(distances=d)
    assert found.hyperbolicity < 1e-12
    assert found.curvature[0] < 0.0
    assert isinstance(found.geometry, PoincareBall)


GOOD = distances(Euclidean(2), 30)
LINK = np.zeros((30, 30))
LINK[3, 4] = 1.0
APART = np.random.default_rng(0).random((40, 2)) + 9.0 * np.repeat([0, 1], 20)[:, None]
BAD = [
    ({"distances": GOOD + np.where(LINK, np.inf, 0.0)}, "finite numbers.*: leave out points"),
    ({"distances": GOOD + LINK}, "symmetric"),
    ({"distances": -GOOD}, "none negative"),
    ({"distances": GOOD[:3]}, r"square.*got shape \(3, 30\)"),
    ({"distances": GOOD[:5, :5]}, "at least 16 points, got 5"),
    ({"distances": np.zeros((20, 20))}, "all distances are zero"),
    ({}, "give one of them"),
    ({"x": np.zeros((9, 2, 2))}, r"shape \(N, n\).*got \(9, 2, 2\)"),
    ({"x": APART, "neighbours": 8}, "or give more neighbours"),
    ({"x": np.full((20, 2), np.nan)}, "without NaN and infinity"),
]


@pytest.mark.parametrize(("given", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_input_is_refused_in_words(given, words):
    with pytest.raises(ValueError, match=words):
        suggest(**given)
