"""How many operations a layer takes: counted at torch's dispatcher, the same on every machine.

The bounds are those of ``benchmarks/operations.py``.
"""

import importlib.util
from pathlib import Path

import pytest

path = Path(__file__).parent.parent / "benchmarks" / "operations.py"
spec = importlib.util.spec_from_file_location("benchmarks_operations", path)
counting = importlib.util.module_from_spec(spec)
spec.loader.exec_module(counting)


def check(manifold, found, bounds):
    """Compare counts with their bounds."""
    assert all(f <= most for f, most in zip(found, bounds, strict=True)), (manifold, found, bounds)


def within_bounds(manifold, options, bounds):
    """Count the operations of a layer, and return the counts in training and in evaluation."""
    training, evaluation = counting.torch_counts(manifold, **options)
    found = training.operations, evaluation.operations, training.syncs
    check(manifold, found, bounds)
    return training, evaluation


@pytest.mark.parametrize("row", range(len(counting.TORCH)))
def test_torch(row):
    _, evaluation = within_bounds(*counting.TORCH[row])
    assert evaluation.syncs == 0


@pytest.mark.parametrize("row", range(len(counting.SETS)))
def test_sets(row):
    """The search for the mean serves all sets together, however many there are."""
    training, evaluation = within_bounds(*counting.SETS[row])
    assert evaluation.syncs <= training.syncs


@pytest.mark.parametrize(
    ("count", "row"),
    [(counting.penalty_counts, row) for row in counting.PENALTY]
    + [(counting.online_counts, row) for row in counting.ONLINE],
)
def test_second_derivatives_and_single_samples(count, row):
    """A sample that is followed online takes one step along a geodesic, and no search."""
    manifold, bounds = row
    counted = count(manifold)
    found = counted.operations, counted.syncs
    check(manifold, found, bounds)


@pytest.mark.parametrize(
    ("count", "row"),
    [(counting.suggest_counts, row) for row in counting.SUGGEST]
    + [(counting.jax_counts, row) for row in counting.JAX],
)
def test_suggest_and_jax(count, row):
    """A suggestion takes a fixed number of fits, of few evaluations each."""
    manifold, bounds = row
    found = count(manifold)
    check(manifold, found, bounds)
