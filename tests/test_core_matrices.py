"""The new core on matrices beside the old one: operations, means, and first derivatives."""

import numpy as np
import pytest
import torch
from test_core_vectors import OPERATIONS

import gyrobn
from gyrobn.core.manifolds.correlation import Correlation
from gyrobn.core.manifolds.grassmannian import Grassmannian
from gyrobn.core.manifolds.rotations import SpecialOrthogonal
from gyrobn.core.manifolds.spd import SPD
from gyrobn.core.statistics.frechet import frechet

METRICS = gyrobn.SPD.options()["metric"].metadata["choices"]
CORRELATIONS = gyrobn.Correlation.options()["metric"].metadata["choices"]
PAIRS = [
    *((gyrobn.SPD(3, metric), SPD(3, metric)) for metric in METRICS),
    (gyrobn.SPD(2, theta=0.5), SPD(2, theta=0.5)),
    (gyrobn.Grassmannian(5, 2), Grassmannian(5, 2)),
    (gyrobn.Grassmannian(4, 2, "projector"), Grassmannian(4, 2, "projector")),
    (gyrobn.SpecialOrthogonal(2), SpecialOrthogonal(2)),
    (gyrobn.SpecialOrthogonal(3), SpecialOrthogonal(3)),
    (gyrobn.SpecialOrthogonal(4), SpecialOrthogonal(4)),
    *((gyrobn.Correlation(3, metric), Correlation(3, metric)) for metric in CORRELATIONS),
]
EACH = pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda M: repr(M))
VECTORS = {"push", "log", "transport"}
SKIPPED = {"project", "violation"}  # 1.2 times a matrix is a matter of its own


@EACH
@pytest.mark.parametrize("size", [1e-6, 0.3, 1.0])
def test_operations(old, new, size):
    size = min(size, 0.3 * old.convexity_radius)
    rng = np.random.default_rng(0)
    x, y, z = (
        old.from_normal(size * rng.normal(size=(8, old.dim)) / old.dim**0.5) for _ in range(3)
    )
    c = size * rng.normal(size=(8, old.dim)) / old.dim**0.5
    for name, operation in OPERATIONS.items():
        if name not in SKIPPED:
            a, b = operation(old, x, y, z, c), operation(new, x, y, z, c)
            error = old.dist(a, b) if a.shape == x.shape and name not in VECTORS else b - a
            assert np.abs(error).max() < 1e-9 * (1.0 + np.abs(a).max()), name


@EACH
def test_means_and_their_derivatives(old, new):
    rng = np.random.default_rng(1)
    size = min(0.5, 0.2 * old.convexity_radius)
    c = size * rng.normal(size=(12, 2, old.dim)) / old.dim**0.5
    slope = torch.tensor(rng.normal(size=(2, old.dim)))
    found = []
    for M, function in ((old, gyrobn.frechet), (new, frechet)):
        own = torch.tensor(c, requires_grad=True)
        result = function(M, M.from_normal(own))
        loss = (M.to_normal(result.mean) * slope).sum() + (result.variance**2).sum()
        found.append([M.to_normal(result.mean), result.variance, *torch.autograd.grad(loss, own)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-9)
