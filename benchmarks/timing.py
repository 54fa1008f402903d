"""Interleaved timing on one thread: alternatives take turns, and medians are compared."""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import statistics
import time
from collections.abc import Callable

import torch

torch.set_num_threads(1)


def medians(alternatives: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """Return the median CPU seconds of each alternative, the alternatives taking turns."""
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    for f in alternatives.values():
        f()
    for _ in range(rounds):
        for name, f in alternatives.items():
            begin = time.process_time()
            f()
            times[name].append(time.process_time() - begin)
    return {name: statistics.median(t) for name, t in times.items()}
