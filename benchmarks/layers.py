"""Speed of the layers: ratios of medians, interleaved, one thread.

``python benchmarks/layers.py`` prints the tables and writes docs/speed_layers.md. The layers of
other libraries are left out where they are not installed::

    pip install --no-deps spd-learn einops hypll
"""

import math
import os
import statistics
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
import timing  # first: it sets the number of threads

# isort: split
import jax
import torch
from flax import nnx
from matrices import BATCH, CHANNELS, P, cayley, covariances, published, subspaces
from speed import table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gyrobn import SPD, Grassmannian, PoincareBall, frechet
from gyrobn.flax import GyroBN as FlaxGyroBN
from gyrobn.torch import GyroBN

GRADIENTS = IMPLICIT, DETACH = "implicit", "detach"  # of the mean
HEAD = ("case", "ms", "beside", "ms beside", "ratio", "at most", "met")


def row(case, t, ours, other, bar=None):
    """Return a line of a table from the medians of a run, and print it."""
    ratio = t[ours] / t[other]
    met = "–" if bar is None else "yes" if ratio <= bar else "no"
    line = (case, f"{1e3 * t[ours]:.1f}", other, f"{1e3 * t[other]:.1f}", f"{ratio:.2f}")
    line = (*line, "–" if bar is None else bar, met)
    print(*line, sep=" | ", flush=True)
    return line


def training_step(layer, x, slope):
    """Return a forward and a backward pass, to the input and to the parameters."""
    layer, x = layer.train(), x.detach().requires_grad_()

    def run():
        layer.zero_grad()
        x.grad = None
        layer(x).backward(slope)

    return run


# ---------------------------------------------------------------------- Grassmannian


def grassmannian():
    rows = []
    for n, bar in ((93, 0.4), (150, 0.15)):
        _, x, _, _, slope = subspaces(n)
        runs = {"the n × n layer": published(n, cayley)}
        for gradient in GRADIENTS:
            layer = GyroBN(Grassmannian(n, P), CHANNELS, steps=1, mean_gradient=gradient)
            runs[gradient] = training_step(layer, x, slope)
        t = timing.medians(runs, 15)
        rows.append(row(f"n = {n}, {IMPLICIT}", t, IMPLICIT, "the n × n layer", bar))
        rows.append(row(f"n = {n}, {DETACH}", t, DETACH, "the n × n layer"))
        rows.append(row(f"n = {n}, {IMPLICIT}", t, IMPLICIT, DETACH, 2.0))
    return rows


# ---------------------------------------------------------------------- SPD


class Decompositions(TorchDispatchMode):
    """Count the matrices whose eigenvalues or singular values are asked for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.overloadpacket.__name__ in ("_linalg_eigh", "_linalg_svd"):
            self.count += args[0].shape[:-2].numel()
        return operation(*args, **(kwargs or {}))


def decompositions(run):
    with Decompositions() as mode:
        run()
    return mode.count


def batches(count, n):
    """Matrices of unit variance about a mean; and sample covariances, which vary far more."""
    M, like = SPD(n), torch.empty((), dtype=torch.float64)
    mean = M.random(rng=1, like=like)
    yield "unit variance", M.add(mean, M.random(count, rng=0, like=like))
    yield "covariances", torch.asarray(covariances(0.3, n, count, 2 * n))


BARS = {
    ("unit variance", "one step"): 0.8,
    ("unit variance", "to convergence"): 0.5,
    ("covariances", "to convergence"): 1.2,
}


def spd():
    if find_spec("spd_learn") is None:
        print("spd_learn is not installed: no comparison on SPD matrices")
        return [], []
    from spd_learn.modules import SPDBatchNormMeanVar

    rows, counts = [], []
    for count, n in ((64, 32), (128, 64)):
        for (data, x), (mean, steps, n_iter) in product(
            batches(count, n), (("one step", 1, 1), ("to convergence", None, 10))
        ):
            bar = BARS.get((data, mean))
            slope = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
            other = f"`n_iter={n_iter}`"
            theirs = SPDBatchNormMeanVar(n, n_iter=n_iter, dtype=x.dtype)
            runs = {other: training_step(theirs, x, slope + slope.mT)}
            for gradient in GRADIENTS:
                layer = GyroBN(SPD(n), steps=steps, mean_gradient=gradient, dtype=x.dtype)
                runs[gradient] = training_step(layer, x, slope + slope.mT)
            t = timing.medians(runs, 15 if n == 32 else 5)
            case = f"{count} × {n} × {n}, {data}, {mean}"
            rows.append(row(f"{case}, {IMPLICIT}", t, IMPLICIT, other, bar))
            rows.append(row(f"{case}, {DETACH}", t, DETACH, other))
            found = (f"{decompositions(runs[k]) / count:.1f}" for k in (*GRADIENTS, other))
            counts.append((case, *found, int(frechet(SPD(n), x, steps=steps).iterations)))
            print(*counts[-1], sep=" | ", flush=True)
    return rows, counts


# ---------------------------------------------------------------------- the Poincaré ball


def ball(N=64, n=16):
    """A training step beside HypLL's layer, with its midpoint and with its Fréchet mean."""
    if find_spec("hypll") is None:
        print("hypll is not installed: no comparison on the ball")
        return []
    from hypll.manifolds.poincare_ball import Curvature
    from hypll.manifolds.poincare_ball import PoincareBall as TheirBall
    from hypll.nn import HBatchNorm
    from hypll.tensors import ManifoldTensor

    M = PoincareBall(n)
    x = M.random(N, rng=0, like=torch.empty(()), spread=0.5)
    slope = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    minus_one = Curvature(math.log(math.e - 1.0), requires_grad=False)  # the softplus of it is 1

    class Theirs(nn.Module):
        def __init__(self, midpoint):
            super().__init__()
            self.layer = HBatchNorm(n, TheirBall(minus_one), use_midpoint=midpoint)

        def forward(self, x):
            return self.layer(ManifoldTensor(x, manifold=self.layer.manifold)).tensor

    midpoint, mean = "HypLL, midpoint", "HypLL, Fréchet mean"
    runs = {
        "convergence": training_step(GyroBN(M), x, slope),
        "one step": training_step(GyroBN(M, steps=1), x, slope),
        midpoint: training_step(Theirs(True), x, slope),
        mean: training_step(Theirs(False), x, slope),
    }
    t = timing.medians(runs, 101)
    return [
        row("to convergence", t, "convergence", midpoint, 1.0),
        row("to convergence", t, "convergence", mean),
        row("one step", t, "one step", midpoint),
    ]


# ---------------------------------------------------------------------- torch.compile

FIRST_CALL = """
import resource, sys, torch
from torch import nn
from gyrobn import PoincareBall
from gyrobn.torch import GyroBN

def spent():
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))

torch.set_num_threads(1)
M = PoincareBall(16)
layer = torch.compile({"GyroBN": GyroBN(M), "BatchNorm1d": nn.BatchNorm1d(16)}[sys.argv[1]])
for count in (64, 64, 48, 80):
    x = M.random(count, rng=0, like=torch.empty(()), spread=0.5).requires_grad_()
    begin = spent()
    layer(x).sum().backward()
    print(spent() - begin)
"""


def compiling(rounds=3):
    """The first call of a compiled layer, each in a process of its own, without any cache."""
    names = "GyroBN", "BatchNorm1d"
    times = {name: [] for name in names}
    settings = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for _ in range(rounds):
        for name in names:
            with TemporaryDirectory() as folder:
                environment = os.environ | settings | {"TORCHINDUCTOR_CACHE_DIR": folder}
                command = [sys.executable, "-W", "ignore", "-c", FIRST_CALL, name]
                done = subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True
                )
            times[name].append([float(line) for line in done.stdout.split()])
    each = {name: [statistics.median(t) for t in zip(*times[name], strict=True)] for name in names}
    cases = (
        ("first batch", 3.0),
        ("second batch, same size", None),
        ("another size", None),
        ("a third size", None),
    )
    rows = []
    for i, (case, bar) in enumerate(cases):
        t = {name: max(each[name][i], 1e-4) for name in names}
        rows.append(row(case, t, *names, bar))
    return rows


# ---------------------------------------------------------------------- a hyperbolic network


class HyperbolicLinear(nn.Module):
    """x ↦ tanh of W ⊗ x ⊕ b, each of the two functions in the tangent space at the identity."""

    def __init__(self, n, m, normalization):
        super().__init__()
        self.before, self.after = PoincareBall(n), PoincareBall(m)
        self.weight = nn.Parameter(torch.empty(m, n))
        self.bias = nn.Parameter(torch.zeros(m))
        nn.init.xavier_uniform_(self.weight)
        self.normalization = GyroBN(self.after) if normalization else nn.Identity()

    def forward(self, x):
        M = self.after
        y = M.from_normal(self.before.to_normal(x) @ self.weight.mT)
        y = self.normalization(M.add(y, M.from_normal(self.bias)))
        return M.from_normal(torch.tanh(M.to_normal(y)))


class TangentSpace(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.manifold = PoincareBall(n)

    def forward(self, x):
        return self.manifold.to_normal(x)


def network(normalization, nodes=2_708, features=1_433, width=128, classes=7):
    """Return a step of Adam on a network of two layers, with data of the size of Cora."""
    torch.manual_seed(0)
    x = (torch.rand(nodes, features) < 0.0127).double()
    x = x / x.sum(-1, keepdim=True).clamp(min=1.0)
    x = PoincareBall(features).from_normal(x)
    labels = torch.randint(classes, (nodes,))
    model = nn.Sequential(
        HyperbolicLinear(features, width, normalization),
        HyperbolicLinear(width, width, normalization),
        TangentSpace(width),
        nn.Linear(width, classes),
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return run


def hyperbolic_network():
    t = timing.medians({"with": network(True), "without normalization": network(False)}, 15)
    return [row("two layers", t, "with", "without normalization", 1.5)]


# ---------------------------------------------------------------------- evaluation


def evaluation(N=10_000, n=128):
    rows = []
    x = PoincareBall(n).random(N, rng=0, like=torch.empty(()), spread=0.5)
    layers = {"GyroBN": GyroBN(PoincareBall(n)), "BatchNorm1d": nn.BatchNorm1d(n)}
    for layer in layers.values():
        layer(x)  # so that the running statistics are some
        layer.eval()
    runs = {}
    for name, layer in layers.items():
        runs[name] = partial(layer, x)
        runs[f"{name}, compiled"] = partial(torch.compile(layer), x)
    with torch.no_grad():
        t = timing.medians(runs, 51)
    rows.append(row("torch, eager", t, "GyroBN", "BatchNorm1d", 4.0))
    rows.append(row("torch, compiled", t, "GyroBN, compiled", "BatchNorm1d, compiled", 2.0))
    rows.append(row("torch, compiled", t, "GyroBN, compiled", "BatchNorm1d"))

    y = jax.numpy.asarray(x.numpy())
    layers = {
        "GyroBN": FlaxGyroBN(PoincareBall(n)),
        "nnx.BatchNorm": nnx.BatchNorm(n, rngs=nnx.Rngs(0)),
    }
    runs = {}
    for name, layer in layers.items():
        layer(y)
        layer.eval()
        graph, state = nnx.split(layer)
        apply = jax.jit(lambda state, y, graph=graph: nnx.merge(graph, state)(y))
        runs[name] = lambda apply=apply, state=state: apply(state, y).block_until_ready()
    rows.append(row("JAX, jit", timing.medians(runs, 51), "GyroBN", "nnx.BatchNorm"))
    return rows


if __name__ == "__main__":
    balls, evaluations = ball(), evaluation()  # first: what others leave in memory slows them
    bases, (spds, counts) = grassmannian(), spd()
    networks, compiled = hyperbolic_network(), compiling()
    head = ("case", *GRADIENTS, "spd_learn", "evaluations of the mean")
    page = f"""<!-- made by: python benchmarks/layers.py -->
# Speed of the layers

Ratios of medians of CPU time, alternatives taking turns in one process on one thread. Smaller is
better; a ratio of 0.25 means a quarter of the time. `at most` is what the ratio is meant to be.

## Grassmannian

A training step, forward and backward: {BATCH} × {CHANNELS} bases of n × {P}, float32, one mean
step. Beside it the layer as it was published, with rotations as n × n matrices by a Cayley map; its
mean is a constant to differentiation, as with `mean_gradient="detach"` here.

{table(HEAD, bases)}

## SPD matrices

A training step, forward and backward, float64, the affine-invariant metric: beside
`SPDBatchNormMeanVar` of spd_learn, whose mean takes `n_iter` steps of the Karcher flow and is a
constant to differentiation, as with `mean_gradient="detach"` here. To convergence means to the last
digits. The variance is 1 for one kind of data; for sample covariances it is above 100.

{table(HEAD, spds) if spds else "spd_learn was not installed."}

Eigendecompositions in such a step, for every sample:

{table(head, counts) if counts else "spd_learn was not installed."}

## The Poincaré ball

A training step, forward and backward: 64 points, n = 16, float32. Beside it `HBatchNorm` of HypLL,
of which the midpoint is a mean in closed form that is not the Fréchet mean.

{table(HEAD, balls) if balls else "hypll was not installed."}

## A hyperbolic network

A step of Adam: 2,708 nodes of 1,433 features, two layers of width 128 on the Poincaré ball, a
linear read-out, float64. GyroBN after each layer, its mean to convergence with its exact
derivative; beside it the same network without.

{table(HEAD, networks)}

## Evaluation

10,000 points of the Poincaré ball, n = 128, float32, running statistics: beside the batch
normalization of the framework.

{table(HEAD, evaluations)}

## `torch.compile`

The CPU time of a training step, of the process and of the compilers that it starts, with the
default backend and no cache: 64 points of the Poincaré ball, n = 16, and then other batches. The
first call includes what torch sets up once in a process.

{table(HEAD, compiled)}
"""
    Path(__file__).parents[1].joinpath("docs", "speed_layers.md").write_text(page)
