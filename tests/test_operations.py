"""How many operations an evaluation takes: counted at torch's dispatcher, the same everywhere."""

import importlib.util
from pathlib import Path

import pytest

from gyrobn import Euclidean
from gyrobn.manifolds.constant_curvature import ConstantCurvature

path = Path(__file__).parent.parent / "benchmarks" / "operations.py"
spec = importlib.util.spec_from_file_location("benchmarks_operations", path)
counting = importlib.util.module_from_spec(spec)
spec.loader.exec_module(counting)

VECTORS = [
    (manifold, bounds[1])
    for manifold, options, bounds in counting.TORCH
    if isinstance(manifold, (Euclidean, ConstantCurvature)) and not options
]


@pytest.mark.parametrize(("manifold", "bound"), VECTORS, ids=repr)
def test_evaluation(manifold, bound):
    _, evaluation = counting.torch_counts(manifold)
    assert evaluation.operations <= bound, evaluation.names
    assert evaluation.syncs == 0
