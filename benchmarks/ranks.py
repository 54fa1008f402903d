"""What a synchronised training step sends, and how long it takes, on 1 to 4 processes.

``python benchmarks/ranks.py`` prints the table, and writes docs/speed_ranks.md. Bytes are exact.
Times are medians of wall time on this machine: with more processes than cores they say little.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from speed import table

from gyrobn import (
    SPD,
    Correlation,
    Grassmannian,
    PoincareBall,
    Sphere,
    frechet,
)
from gyrobn.torch import GyroBN

SPACES = [PoincareBall(16), Sphere(16), SPD(8), Grassmannian(12, 3), Correlation(8), SPD(16)]
COUNT = 1024
"""Samples of the whole batch."""


def work(rank, world, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store{world}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    sent, original = [], dist.all_reduce

    def count(x, *args, **kwargs):
        sent.append(x.numel() * x.element_size())
        return original(x, *args, **kwargs)

    dist.all_reduce = count
    rows = []
    for space in SPACES:
        whole = space.random(COUNT, rng=0, like=torch.empty((), dtype=torch.float64), spread=0.5)
        x = whole[rank * COUNT // world : (rank + 1) * COUNT // world].requires_grad_()
        layer = GyroBN(space, dtype=torch.float64, process_group="world")
        times = []
        for _ in range(12):
            sent.clear()
            begin = time.perf_counter()
            layer(x).sum().backward()
            times.append(time.perf_counter() - begin)
        evaluations = int(np.max(frechet(space, whole.detach()).iterations.numpy()))
        ms = 1e3 * statistics.median(times[2:])
        rows.append((repr(space), space.dim, world, evaluations, len(sent), sum(sent), f"{ms:.1f}"))
    if rank == 0:
        torch.save(rows, f"{folder}/{world}.pt")
    dist.destroy_process_group()


def main():
    """Write the page with the times."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for world in (1, 2, 3, 4):
            mp.spawn(work, (world, folder), nprocs=world)
            rows += torch.load(os.path.join(folder, f"{world}.pt"))
    head = ("geometry", "dim", "processes", "evaluations", "reductions", "bytes sent", "ms")
    rows.sort(key=lambda row: [repr(s) for s in SPACES].index(row[0]))
    page = f"""<!-- made by: python benchmarks/ranks.py -->
# Speed on several processes

A training step of the torch layer, forward and backward, float64, {COUNT} samples in all, gloo on
one machine with 2 cores. `evaluations` are those of the mean in one process; `bytes sent` is what
one rank gives to all reductions of the step together. It does not grow with the batch.

{table(head, rows)}
"""
    write("speed_ranks.md", page)


def write(name, page):
    print(page)
    Path(__file__).parents[1].joinpath("docs", name).write_text(page)


if __name__ == "__main__":
    main()
