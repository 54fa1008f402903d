"""The derivative of every operation of a geometry, against differences, on every geometry.

Points are compared by their normal coordinates and tangent vectors by those they are pulled to, so
that no representative of a subspace counts. The slopes are of no symmetry: a rule that takes
symmetric ones for granted fails.
"""

import numpy as np
import pytest
import torch
from conftest import GEOMETRIES
from mpmath import mp

from gyrobn import Hyperboloid, PoincareBall, ProjectedHypersphere, ProperVelocity, Sphere

T = torch.zeros((), dtype=torch.float64)


class Moving:
    """Points and a tangent vector that depend on a number t."""

    def __init__(self, M):
        spread = min(0.6, 0.2 * M.convexity_radius)
        self.M = M
        self.starts = [M.random(4, rng=seed, like=T, spread=spread) for seed in (1, 2, 3)]
        rng = np.random.default_rng(0)
        self.lines = [torch.as_tensor(rng.standard_normal((4, M.dim))) * 0.2 for _ in range(4)]

    def __call__(self, t):
        x, y, z = (self.M.shift(p, t * c) for p, c in zip(self.starts, self.lines, strict=False))
        return x, y, z, self.M.push(x, self.lines[3] + t * self.lines[0])


OPERATIONS = {
    "add": lambda M, x, y, z, v: M.to_normal(M.add(x, y)),
    "neg": lambda M, x, y, z, v: M.to_normal(M.neg(x)),
    "scale": lambda M, x, y, z, v: M.to_normal(M.scale(0.7, x)),
    "relative": lambda M, x, y, z, v: M.to_normal(M.relative(x, y)),
    "relative_normal": lambda M, x, y, z, v: M.relative_normal(x, y),
    "norm": lambda M, x, y, z, v: M.norm(x),
    "dist": lambda M, x, y, z, v: M.dist(x, y),
    "geodesic": lambda M, x, y, z, v: M.to_normal(M.geodesic(x, y, 0.3)),
    "gyration": lambda M, x, y, z, v: M.to_normal(M.gyration(x, y, z)),
    "coadd": lambda M, x, y, z, v: M.to_normal(M.coadd(x, y)),
    "standardize": lambda M, x, y, z, v: M.to_normal(M.standardize(x, y[0], 0.7, z[0])),
    "exp": lambda M, x, y, z, v: M.to_normal(M.exp(x, v)),
    "log": lambda M, x, y, z, v: M.pull(x, M.log(x, y)),
    "inner": lambda M, x, y, z, v: M.inner(x, v, M.log(x, y)),
    "transport": lambda M, x, y, z, v: M.pull(y, M.transport(x, y, v)),
}


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_slopes(M):
    moving = Moving(M)
    for name, operation in OPERATIONS.items():
        t = T.clone().requires_grad_(True)
        found = operation(M, *moving(t))
        weights = torch.as_tensor(np.random.default_rng(5).standard_normal(found.shape))
        (slope,) = torch.autograd.grad((weights * found).sum(), t)
        h = 1e-3
        with torch.no_grad():
            a, b, c, d = (
                (weights * operation(M, *moving(T + k * h))).sum() for k in (1.0, -1.0, 2.0, -2.0)
            )
        expected = float(8 * (a - b) - (c - d)) / (12 * h)
        assert abs(float(slope) - expected) < 1e-7 * (1.0 + abs(expected)), name


LINES = {  # of the point or the coordinate at r, on a line through the identity
    "ball": (lambda r: PoincareBall(1).from_normal(r)[..., 0], lambda r: mp.tanh(r / 2)),
    "ball_log": (lambda r: PoincareBall(1).to_normal(r)[..., 0], lambda r: 2 * mp.atanh(r)),
    "plane": (lambda r: ProjectedHypersphere(1).from_normal(r)[..., 0], lambda r: mp.tan(r / 2)),
    "plane_log": (lambda r: ProjectedHypersphere(1).to_normal(r)[..., 0], lambda r: 2 * mp.atan(r)),
    "sheet": (lambda r: Hyperboloid(1).from_normal(r)[..., 1], mp.sinh),
    "sheet_time": (lambda r: Hyperboloid(1).from_normal(r)[..., 0], mp.cosh),
    "sphere": (lambda r: Sphere(1).from_normal(r)[..., 1], mp.sin),
    "vector_log": (lambda r: ProperVelocity(1).to_normal(r)[..., 0], mp.asinh),
}


@pytest.mark.parametrize("name", LINES)
def test_derivatives_near_the_identity(name):
    """Where quotients cancel a series takes over: of all digits, at either side of the seam."""
    function, exact = LINES[name]
    r = torch.logspace(-9, -0.5, 52, dtype=torch.float64)
    first = torch.func.grad(lambda r: function(r[:, None]).sum())
    second = torch.func.grad(lambda r: first(r).sum())
    with mp.workdps(60):
        expected = [[mp.diff(exact, v, k) for v in r.tolist()] for k in (1, 2)]
    for found, right, limit in zip((first(r), second(r)), expected, (1e-15, 4e-14), strict=True):
        np.testing.assert_allclose(found, np.asarray(right, dtype=float), rtol=0, atol=limit)
    at_zero = torch.zeros(1, dtype=torch.float64)
    assert float(second(at_zero)) == (1.0 if name == "sheet_time" else 0.0)
