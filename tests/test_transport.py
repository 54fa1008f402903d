"""Parallel transport keeps lengths, wherever the points are; test_oracle.py has its values."""

import numpy as np
import pytest
from conftest import GEOMETRIES, host

from gyrobn import (
    Grassmannian,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    ProjectedHypersphere,
    SpecialOrthogonal,
    Stereographic,
)
from gyrobn.manifolds.poly_hyperboloid import PolyHyperboloid

COUNT = 200


def directions(M, rng, size=1.0):
    u = rng.standard_normal((COUNT, M.dim))
    return size * u / np.linalg.norm(u, axis=-1, keepdims=True)


def largest_radius(M, dtype):
    """Where the points end: the boundary of a ball, the opposite point, or digits."""
    if isinstance(M, (SpecialOrthogonal, Grassmannian)):
        return 1.5
    K = getattr(M, "curvature", None)
    if K is not None and K > 0:
        return 0.999 * np.pi / K**0.5
    if K is not None and K < 0:
        digits = -np.log(np.finfo(dtype).eps)
        return (digits / 2 if isinstance(M, Klein) else digits) / (-K) ** 0.5
    return 2.0


def change_of_length(M, x, y, c):
    """Return how much a transport from x to y changes lengths, and what a vector at y is worth.

    The second is the change of length by :meth:`push` and :meth:`pull` alone: on the hyperboloid
    and in the Klein ball the digits of a tangent vector allow no better far out.
    """
    before = np.linalg.norm(c, axis=-1)
    v = M.push(x, c)
    inner = host(M.inner(x, v, v)) ** 0.5
    w = M.transport(x, y, v)
    moved = host(M.inner(y, w, w)) ** 0.5
    rounding = [host(M.pull(z, M.push(z, c))) for z in (x, y)]
    floor = max(np.max(np.linalg.norm(r - host(c), axis=-1) / before) for r in rounding)
    return np.max(abs(moved / inner - 1.0)), floor


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("far", ["neighbours", "near", "anywhere"])
@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_lengths_are_kept(M, far, dtype):
    rng = np.random.default_rng(0)
    eps, top = float(np.finfo(dtype).eps), largest_radius(M, dtype)
    for part in (0.0, 0.1, 0.3, 0.6, 0.8, 0.95):
        x = M.from_normal(directions(M, rng, part * top).astype(dtype))
        if far == "anywhere":
            y = M.from_normal(
                (directions(M, rng, part * top) * rng.random((COUNT, 1))).astype(dtype)
            )
        else:
            step = 1e-3 if far == "neighbours" else 0.3
            y = M.shift(x, directions(M, rng, step).astype(dtype))
        c = rng.standard_normal((COUNT, M.dim)).astype(dtype)
        change, floor = change_of_length(M, x, y, c)
        assert change < 50 * eps + 5 * floor, f"at {part} of {top}: {change / eps:.1e} ulps"


CONFORMAL = [
    PoincareBall(3),
    PoincareBall(8, -0.3),
    Stereographic(3, -1.0),
    Stereographic(3, np.asarray(-1.0)),
    Stereographic(3, np.asarray(0.0)),
    Stereographic(3, np.asarray(1.0)),
    ProjectedHypersphere(3),
    Product(PoincareBall(3), PoincareBall(2)),
]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("M", CONFORMAL, ids=repr)
def test_to_a_few_ulps_in_the_ball(M, dtype):
    """There a vector's digits are those of its direction: nothing is lost up to the boundary."""
    rng, eps = np.random.default_rng(1), float(np.finfo(dtype).eps)
    K = getattr(M, "curvature", -1.0)
    if isinstance(K, np.ndarray):
        M = Stereographic(3, K.astype(dtype))
    top = -np.log(eps) if K <= 0 else 3.14
    for radius in (0.0, 1.0, 0.3 * top, 0.6 * top, 0.9 * top, top):
        for step in (1e-4, 0.1, 1.0, 10.0 if K < 0 else 2.0):
            x = M.from_normal(directions(M, rng, radius).astype(dtype))
            y = M.shift(x, directions(M, rng, step).astype(dtype))
            change, _ = change_of_length(M, x, y, rng.standard_normal((COUNT, M.dim)).astype(dtype))
            assert change < 16 * eps, f"radius {radius}, step {step}: {change / eps:.1e} ulps"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("M", [Hyperboloid(3), Klein(3), PolyHyperboloid(3)], ids=repr)
def test_nowhere_does_it_leave_the_numbers(M, dtype):
    """Beyond the digits lengths are still those of vectors of some direction."""
    rng = np.random.default_rng(2)
    for radius in (1.0, 20.0, 30.0, 40.0):
        x = M.from_normal(directions(M, rng, radius).astype(dtype))
        y = M.shift(x, directions(M, rng, 1e-3).astype(dtype))
        c = rng.standard_normal((COUNT, M.dim)).astype(dtype)
        turned = M._gyrate_normal(y, M.neg(x), c)
        before, after = (np.linalg.norm(host(a), axis=-1) for a in (c, turned))
        np.testing.assert_allclose(after, before, rtol=1e-3)
