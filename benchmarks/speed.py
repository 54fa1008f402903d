"""Speed beside other libraries, as ratios: ``python benchmarks/speed.py`` writes docs/speed.md.

Alternatives take turns in one process on one thread, and medians of CPU time are compared. Two of
the libraries are not among the test requirements: ``pip install --no-deps hypll spd-learn einops``.
"""

import math
import os
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import timing  # first: it sets the number of threads

# isort: split
import geoopt
import numpy as np
import torch
from hypll.manifolds.poincare_ball import Curvature
from hypll.manifolds.poincare_ball import PoincareBall as HypLLBall
from hypll.nn import HBatchNorm
from hypll.tensors import ManifoldTensor
from pages import table
from pyriemann.geometry.mean import mean_riemann
from spd_learn.modules import SPDBatchNormMeanVar
from torch import nn

from gyrobn import SPD, Euclidean, PoincareBall, Stats, frechet, normalize
from gyrobn.torch import GyroBN

Row = tuple[str, str, str, str]


def rows(case: str, runs: dict[str, Callable[[], object]], rounds: int = 31) -> Iterator[Row]:
    """Yield a row for each alternative beside the first run."""
    (_, ours), *others = timing.medians(runs, rounds).items()
    for name, theirs in others:
        row = case, f"{1e3 * ours:.2f}", f"{name}: {1e3 * theirs:.2f}", f"{ours / theirs:.2f}"
        print(*row, sep=" | ", flush=True)
        yield row


def step(layer: nn.Module, x: torch.Tensor, *, symmetric: bool = False) -> Callable[[], None]:
    """Return a training step: forward, and backward to the input and the parameters."""
    slope = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    slope = slope + slope.mT if symmetric else slope
    x = x.detach().requires_grad_()

    def run() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x).backward(slope)

    return run


class HypLL(nn.Module):
    """HypLL's normalization of tensors on the ball of curvature -1."""

    def __init__(self, n: int, midpoint: bool) -> None:
        super().__init__()
        curvature = Curvature(math.log(math.e - 1.0), requires_grad=False)  # its softplus is 1
        self.layer = HBatchNorm(n, HypLLBall(curvature), use_midpoint=midpoint)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize a batch."""
        return self.layer(ManifoldTensor(x, manifold=self.layer.manifold)).tensor


def ball() -> Iterator[Row]:
    """Training steps on the ball beside HypLL, eager and compiled."""
    for count, n in ((64, 16), (1024, 64)):
        M = PoincareBall(n)
        bias = M.random(rng=1, like=torch.empty(()), spread=0.5)
        x = M.add(bias, M.random(count, rng=0, like=bias, spread=0.5))
        peers = {
            "HypLL, Fréchet mean": step(HypLL(n, False), x),
            "HypLL, midpoint": step(HypLL(n, True), x),
        }
        case = f"training step, ball, {count} × {n}"
        yield from rows(case, {"gyrobn": step(GyroBN(M), x)} | peers)
        compiled = step(torch.compile(GyroBN(M), fullgraph=True), x)
        yield from rows(f"{case}, compiled", {"gyrobn": compiled} | peers)


def spd() -> Iterator[Row]:
    """Training steps on SPD matrices beside spd_learn."""
    for count, n in ((64, 32), (128, 64)):
        M, like = SPD(n), torch.empty((), dtype=torch.float64)
        x = M.add(M.random(rng=1, like=like), M.random(count, rng=0, like=like))
        for name, steps, n_iter in (("one step", 1, 1), ("to convergence", None, 10)):
            ours = GyroBN(M, steps=steps, dtype=x.dtype)
            theirs = SPDBatchNormMeanVar(n, n_iter=n_iter, dtype=x.dtype)
            runs = {
                "gyrobn": step(ours, x, symmetric=True),
                f"spd_learn, n_iter={n_iter}": step(theirs, x, symmetric=True),
            }
            yield from rows(f"training step, SPD, {count} × {n}², {name}", runs)


def evaluation(count: int = 10_000, n: int = 128) -> Iterator[Row]:
    """Normalization with given statistics beside geoopt's operations, and of the layer."""
    M, theirs, like = PoincareBall(n), geoopt.PoincareBall(c=1.0), torch.empty(())
    x = M.random(count, rng=0, like=like, spread=0.5)
    mean, bias = (M.random(rng=seed, like=like, spread=0.5) for seed in (1, 2))
    t = torch.tensor(2.0**-0.5)

    def composed() -> torch.Tensor:
        centred = theirs.mobius_add(-mean, x)
        return theirs.mobius_add(bias, theirs.mobius_scalar_mul(t, centred))

    layers = {"gyrobn": GyroBN(M), "nn.BatchNorm1d": nn.BatchNorm1d(n)}
    for layer in layers.values():
        layer(x)
        layer.eval()
    layers["gyrobn, unchecked"] = GyroBN(M, check_input=False).eval()
    with torch.no_grad():
        runs = {
            "gyrobn": lambda: normalize(M, x, Stats(mean, torch.tensor(2.0)), bias, eps=0.0),
            "geoopt": composed,
        }
        yield from rows(f"normalize, ball, {count:,} × {n}", runs)
        evaluated = {name: lambda layer=layer: layer(x) for name, layer in layers.items()}
        yield from rows(f"evaluation of the layer, ball, {count:,} × {n}", evaluated)


def means() -> Iterator[Row]:
    """The mean of many small matrices beside pyRiemann."""
    x = SPD(3).random(100_000, rng=0)
    runs = {"gyrobn": lambda: frechet(SPD(3), x), "pyRiemann": lambda: mean_riemann(x)}
    yield from rows("frechet, 100,000 SPD(3)", runs)


FIRST_CALL = """
import resource, sys, torch
from gyrobn import PoincareBall
from gyrobn.torch import GyroBN
torch.set_num_threads(1)
x = PoincareBall(16).random(64, rng=0, like=torch.empty(()), spread=0.5).requires_grad_()
layer = GyroBN(PoincareBall(16)) if sys.argv[1] == "gyrobn" else torch.nn.BatchNorm1d(16)
torch.compile(layer)(x).sum().backward()
spent = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(sum(use.ru_utime + use.ru_stime for use in spent))
"""


def compilation() -> Iterator[Row]:
    """The first call of a compiled layer, each in a process of its own, without a cache."""
    times: dict[str, list[float]] = {"gyrobn": [], "nn.BatchNorm1d": []}
    settings = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for _ in range(3):
        for name, spent in times.items():
            with TemporaryDirectory() as folder:
                environment = os.environ | settings | {"TORCHINDUCTOR_CACHE_DIR": folder}
                command = [sys.executable, "-W", "ignore", "-c", FIRST_CALL, name]
                done = subprocess.run(command, env=environment, check=True, capture_output=True)
            spent.append(float(done.stdout))
    ours, theirs = (statistics.median(t) for t in times.values())
    beside = f"nn.BatchNorm1d: {1e3 * theirs:.0f}"
    yield "first compilation, ball 64 × 16", f"{1e3 * ours:.0f}", beside, f"{ours / theirs:.2f}"


def memory(n: int = 1024) -> float:
    """Return the peak extra memory of normalize on NumPy, in multiples of the output."""
    M = PoincareBall(n)
    x = M.random(10_000, rng=0, like=np.empty((), np.float32))
    tracemalloc.start()
    y = normalize(M, x, Stats(M.random(rng=1, like=x, spread=0.5), np.float32(2.0)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / y.nbytes


def overhead() -> Iterator[Row]:
    """What curvature costs: a flat layer beside torch's own."""
    x = torch.randn(1024, 64)
    runs = {"gyrobn": step(GyroBN(Euclidean(64)), x), "nn.BatchNorm1d": step(nn.BatchNorm1d(64), x)}
    yield from rows("training step, Euclidean, 1,024 × 64", runs)


PAGE = """<!-- made by: python benchmarks/speed.py -->
# Speed

Medians of CPU time on one thread, alternatives taking turns in one process. A ratio of 0.25 means
a quarter of the other library's time. A training step is forward and backward, with the mean to
convergence and its exact derivative unless the row says otherwise, and every sample is checked to
be on the manifold. Some peers compute less: HypLL's midpoint is not the Fréchet mean, and
spd_learn's mean takes `n_iter` steps of the Karcher flow and is a constant to differentiation.

{table}

On NumPy, `normalize` of 10,000 × 1,024 points of the ball needs {memory:.2f} times the memory of
its output.
"""

if __name__ == "__main__":
    parts = ball, spd, evaluation, means, overhead, compilation
    measured = [row for part in parts for row in part()]
    page = PAGE.format(
        table=table(("case", "ms", "beside, ms", "ratio"), measured), memory=memory()
    )
    Path(__file__).parents[1].joinpath("docs", "speed.md").write_text(page, encoding="utf-8")
