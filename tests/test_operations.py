"""What a GPU user feels of a layer: host synchronisations, and a loose ceiling of operations.

They are counted at torch's dispatcher, the same on every machine.
"""

import importlib.util
from pathlib import Path

import pytest

path = Path(__file__).parent.parent / "benchmarks" / "operations.py"
spec = importlib.util.spec_from_file_location("benchmarks_operations", path)
counting = importlib.util.module_from_spec(spec)
spec.loader.exec_module(counting)


@pytest.mark.parametrize(("M", "options"), counting.TORCH + counting.SETS, ids=str)
def test_a_training_step(M, options):
    training, evaluation = counting.torch_counts(M, **options)
    assert training.operations <= 1500
    assert training.syncs <= 10
    assert evaluation.operations <= training.operations
    assert evaluation.syncs <= training.syncs


@pytest.mark.parametrize("M", counting.ONLINE, ids=repr)
def test_one_more_sample_takes_no_search(M):
    """A sample that is followed online takes one step along a geodesic."""
    assert counting.online_counts(M).operations <= 200
