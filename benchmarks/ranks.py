"""What a synchronised training step sends, and how long it takes, on 1 to 4 processes.

``python benchmarks/ranks.py`` prints the tables, and writes docs/speed_ranks.md and
docs/sent_ranks.md. ``python benchmarks/ranks.py sent`` writes only the second, which has no times.
Counts and bytes are exact. Times are medians of wall time on this machine: with more processes than
cores they say little.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gyrobn.numerics.solvers import conjugate_gradients
from gyrobn.statistics.held import Held
from speed import table

from gyrobn import (
    REGISTRY,
    SPD,
    Correlation,
    Grassmannian,
    PoincareBall,
    Product,
    SpecialOrthogonal,
    Sphere,
    frechet,
)
from gyrobn.statistics import newton, spread
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


# ---------------------------------------------------------------- with and without the Hessian

SMALL = [cls.examples()[0] for cls in REGISTRY.values() if cls is not Product]
LARGE = [PoincareBall(16), Sphere(16), SPD(8), Grassmannian(12, 3), Correlation(8)]
HUGE = [PoincareBall(256), SPD(16), Grassmannian(24, 9), SpecialOrthogonal(17)]
"""Beyond 128 dimensions the Hessian is not sent."""
BATCH = 64


class Secants:
    """Samples of which only gradients are known: quasi-Newton steps (BFGS), from a multiple of I.

    The multiple is the mean eigenvalue of the Hessian, which is one number. Vectors are not carried
    from mean to mean: the frames turn by little on these short ways.
    """

    def __init__(self, held):
        self.held, self.pairs, self.g = held, [], None

    def __getattr__(self, name):
        return getattr(self.held, name)

    def shift(self, now, step):
        self.way = step
        return self.held.shift(now, step)

    def step(self, now, accuracy):
        g = now.g
        if self.g is not None and self.g is not g and np.sum(self.way * (self.g - g)) > 0:
            self.pairs.append((self.way, self.g - g))
        self.g, v, back = g, g, []
        for s, y in reversed(self.pairs):
            back.append(np.sum(s * v) / np.sum(s * y))
            v = v - back[-1] * y
        matrix = self.held.view(now).hessian(self.held.w).as_matrix(g)
        v = v * (g.shape[-1] / np.trace(matrix))
        for (s, y), first in zip(self.pairs, reversed(back), strict=True):
            v = v + (first - np.sum(y * v) / np.sum(s * y)) * s
        return v


def by_secants(space):
    """Return evaluations by secants, and products with H that conjugate gradients take back."""
    x = space.to_inside(space.random(BATCH, rng=0, spread=0.5))
    w, inner, products = np.full(BATCH, 1.0 / BATCH), space.inside, []
    found = newton.solve(Secants(Held(inner, x, w)), None, newton.Search())
    view = inner.centred(found.mean, x)
    hessian = view.hessian(w)

    def apply(v):
        products.append(v)
        return hessian.apply(v[..., None])[..., 0]

    slope = np.random.default_rng(0).normal(size=inner.dim)
    conjugate_gradients(apply, slope, float(np.finfo(float).eps) ** (2 / 3))
    return int(found.evaluations), len(products)


def count(rank, folder):
    """Count what is sent with the Hessian and without it, and compare with secants."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    sent, original, rows = [], dist.all_reduce, []

    def all_reduce(x, *args, **kwargs):
        sent.append(x.numel())
        return original(x, *args, **kwargs)

    dist.all_reduce = all_reduce
    for space in (*SMALL, *LARGE, *HUGE):
        whole = space.random(BATCH, rng=0, like=torch.empty((), dtype=torch.float64), spread=0.5)
        x = whole[rank * BATCH // 2 :][: BATCH // 2].requires_grad_()
        cells = []
        for largest in (10**9, 0):
            if largest and space in HUGE:
                d = space.dim
                cells += ["–", f"({d * (d + 1) // 2} per evaluation)"]
                continue
            spread.LARGEST = largest
            layer = GyroBN(space, dtype=torch.float64, process_group="world")
            sent.clear()
            layer(x).sum().backward()
            cells += [len(sent), sum(sent)]
        if rank == 0:
            flat, d, blocks = space.inside.flat, space.dim, len(space.blocks)
            evaluations = int(np.max(frechet(space, whole.detach()).iterations.numpy()))
            more, products = (1, 0) if flat else by_secants(space)
            number = more + products + 2
            total = (more + 1) * (d + blocks + 2) + (products + 1) * d
            rows.append((repr(space), d, evaluations, *cells, number, more, total))
    if rank == 0:
        torch.save(rows, f"{folder}/rows.pt")
    dist.destroy_process_group()


def count_all():
    """Write the page that compares what is sent."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(count, (folder,), nprocs=2)
        rows = torch.load(f"{folder}/rows.pt")
    names = "geometry", "dim", "evaluations"
    names += "sent: reductions", "numbers", "applied: reductions", "numbers"
    names += "secants: reductions", "of them evaluations", "numbers"
    write(
        "sent_ranks.md",
        f"""<!-- made by: python benchmarks/ranks.py sent -->
# What is sent, with the Hessian and without

A training step of the torch layer, forward and backward, float64, {BATCH} samples of spread 0.5 on
two processes, one channel. `evaluations` are those of one process. The Hessian is *sent* with each
evaluation (up to 128 dimensions, what the layer does), or it is *applied* to vectors, one reduction
for each product (beyond 128 dimensions, what the layer does), or it is not used on the way:
*secants* are quasi-Newton steps that know gradients only. The layer does not take these; their
numbers are those of one process. They need more evaluations, and their backward pass still needs
products with the Hessian. The Hessian of a flat geometry is the identity, and nobody sends it.

{table(names, rows)}
""",
    )


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
    if sys.argv[1:] != ["sent"]:
        main()
    count_all()
