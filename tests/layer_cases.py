"""What the tests of the layers share."""

from typing import Any

import numpy as np

from gyrobn import PoincareBall

CHEAP = {"manifold": PoincareBall(2), "steps": 1}
"""A curved geometry that compiles fast, to test what does not depend on the geometry."""


def batches(M: Any, *shape: int, spread: float = 0.4) -> np.ndarray:
    """Points around one that is not the origin."""
    return M.add(M.random(rng=9, spread=0.5), M.random(*shape, rng=4, spread=spread))
