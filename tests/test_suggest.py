"""Which geometry fits: known spaces are recognised, and the uncertainty is honest."""

import numpy as np
import pytest

from gyrobn import Euclidean, PoincareBall, Product, Sphere, suggest
from gyrobn.suggestion import _stress


def distances(M, count=60, noise=0.0, rng=0):
    x = M.random(count, rng=rng)
    d = M.dist(x[:, None], x)
    error = np.triu(np.random.default_rng(rng).standard_normal(d.shape), 1)
    return np.maximum(d + noise * (error + error.T), 0.0) * (1 - np.eye(count))


@pytest.mark.parametrize("curvatures", [(-0.7,), (0.4,), (0.0,), (-0.7, 0.5)])
def test_slopes_of_the_stress(curvatures):
    rng = np.random.default_rng(0)
    target = distances(Euclidean(2), 7)
    points = [rng.standard_normal((7, 2)) for _ in curvatures]
    K, h = np.asarray(curvatures), 1e-6
    _, slopes, by_curvature = _stress(target, points, K)

    def value(points, K):
        return _stress(target, points, K)[0]

    for f in range(len(K)):
        step = np.zeros((7, 2))
        step[3, 1] = h
        near = [
            [p + sign * step if k == f else p for k, p in enumerate(points)] for sign in (1, -1)
        ]
        found = (value(near[0], K) - value(near[1], K)) / (2 * h)
        assert slopes[f][3, 1] == pytest.approx(found, rel=1e-6)
        if K[f] != 0:
            step = h * np.eye(len(K))[f]
            found = (value(points, K + step) - value(points, K - step)) / (2 * h)
            assert by_curvature[f] == pytest.approx(found, rel=1e-6)


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
        assert "do not decide its sign" in str(found)


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
    assert "curvature 2" in str(found)


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


def test_bad_input_is_refused_in_words():
    good = distances(Euclidean(2), 30)
    bad = good.copy()
    bad[3, 4] = np.inf
    with pytest.raises(ValueError, match="got inf between 3 and 4: leave out"):
        suggest(distances=bad)
    bad = good.copy()
    bad[3, 4] += 1.0
    with pytest.raises(
        ValueError, match="symmetric and not negative, got a largest asymmetry of 1"
    ):
        suggest(distances=bad)
    with pytest.raises(ValueError, match="a square matrix, got shape"):
        suggest(distances=good[:3])
    with pytest.raises(ValueError, match="at least 16 points, got 5"):
        suggest(distances=good[:5, :5])
    with pytest.raises(ValueError, match="all distances are zero"):
        suggest(distances=np.zeros((20, 20)))
    with pytest.raises(ValueError, match="give one of them"):
        suggest()
    with pytest.raises(ValueError, match=r"shape \(N, n\), got \(9, 2, 2\)"):
        suggest(np.zeros((9, 2, 2)))
    apart = np.random.default_rng(0).random((40, 2)) + 9.0 * np.repeat([0, 1], 20)[:, None]
    with pytest.raises(ValueError, match="falls into 2 parts"):
        suggest(apart, neighbours=8)
    with pytest.raises(ValueError, match="NaN or infinity"):
        suggest(np.full((20, 2), np.nan))
