"""Count the operations, host synchronisations and JAX equations of a layer.

``python benchmarks/operations.py`` prints a table. The counts are exact and the same on every
machine.

On torch, an operation is a call that a ``TorchDispatchMode`` sees in one training step
``layer(x).sum().backward()`` after a first one. Views are not counted, because they start no
kernel. ``_local_scalar_dense`` and ``is_nonzero`` are synchronisations: on a GPU each of them waits
for all kernels before it. The shim's ``to_numpy``, which copies the numbers of an evaluation to the
host, is also one. On JAX, the equations of ``make_jaxpr`` are counted. A call of an inner program
counts as the equations of that program.
"""

from collections import Counter
from unittest.mock import patch

import jax
import jax.extend.core
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gyrobn
import gyrobn.suggestion
import gyrobn.torch
from gyrobn.backends import torch as shim
from gyrobn.normalization.online import OnlineStats, online_stats

VIEWS = {
    "view", "_unsafe_view", "expand", "permute", "transpose", "slice", "select", "squeeze",
    "unsqueeze", "alias", "detach", "t", "as_strided",
}  # fmt: skip
SYNCS = {"_local_scalar_dense", "is_nonzero", "to_numpy"}


class Count(TorchDispatchMode):
    """Count dispatched operations by name."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __enter__(self):
        self.original = shim.to_numpy
        shim.to_numpy = self.to_numpy
        return super().__enter__()

    def __exit__(self, *error):
        shim.to_numpy = self.original
        return super().__exit__(*error)

    def to_numpy(self, x):
        self.names["to_numpy"] += 1
        return self.original(x)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    @property
    def operations(self):
        return sum(n for name, n in self.names.items() if name not in VIEWS | SYNCS)

    @property
    def syncs(self):
        return sum(self.names[name] for name in SYNCS)


def torch_counts(manifold, dtype="float32", batch=(64,), layer="GyroBN", **options):
    """Return the counters of a training step and of an evaluation."""
    dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    layer = getattr(gyrobn.torch, layer)(manifold, **options).to(dtype)
    x = manifold.random(*batch, rng=0, spread=0.5, like=torch.empty((), dtype=dtype))

    def step():
        layer(x.clone().requires_grad_()).sum().backward()

    step()
    with Count() as training:
        step()
    layer.eval()
    with torch.no_grad():
        layer(x)
        with Count() as evaluation:
            layer(x)
    return training, evaluation


def penalty_counts(manifold, batch=64):
    """Count a gradient penalty: a derivative of the derivative of a layer, at every point."""
    layer = gyrobn.torch.GyroBN(manifold, dtype=torch.float64)
    like = torch.zeros((), dtype=torch.float64)
    x = manifold.random(batch, rng=0, spread=0.5, like=like).requires_grad_()

    def step():
        (slope,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
        slope.square().sum().backward()

    step()
    with Count() as found:
        step()
    return found


def online_counts(manifold):
    """Count what one more sample of a domain takes that is followed online."""
    x = manifold.random(2, rng=0, spread=0.5, like=torch.zeros((), dtype=torch.float64))
    state = OnlineStats(1, x[0], torch.ones(manifold.block_shape, dtype=torch.float64))
    online_stats(manifold, state, x[1:])
    with Count() as found:
        online_stats(manifold, state, x[1:])
    return found


def suggest_counts(manifold):
    """Count the fits, and the evaluations of the stress, that a suggestion for 60 points takes."""
    suggestion = gyrobn.suggestion
    x = manifold.random(60, rng=0)
    with (
        patch.object(suggestion, "_minimise", wraps=suggestion._minimise) as fits,
        patch.object(suggestion, "_factor", wraps=suggestion._factor) as evaluations,
    ):
        gyrobn.suggest(distances=manifold.dist(x[:, None], x))
    return fits.call_count, evaluations.call_count


def equations(program):
    """Return the number of equations of a JAX program, including those of inner programs."""
    total = 0
    for equation in program.eqns:
        inner = [p for value in equation.params.values() for p in _programs(value)]
        total += sum(equations(p) for p in inner) if inner else 1
    return total


def _programs(value):
    if isinstance(value, jax.extend.core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, jax.extend.core.Jaxpr):
        return [value]
    if isinstance(value, (tuple, list)):
        return [p for part in value for p in _programs(part)]
    return []


def jax_counts(manifold, batch=64, dtype="float32"):
    """Return the equations of ``normalize_batch``, forward and with its gradient."""
    x = manifold.random(batch, rng=0, spread=0.5, like=jax.numpy.zeros((), dtype))

    def forward(x):
        return gyrobn.normalize_batch(manifold, x)[0]

    def loss(x):
        return forward(x).sum()

    programs = jax.make_jaxpr(forward)(x), jax.make_jaxpr(jax.grad(loss))(x)
    return tuple(equations(p.jaxpr) for p in programs)


TORCH = [
    (gyrobn.Euclidean(16), {}),
    (gyrobn.PoincareBall(16), {}),
    (gyrobn.PoincareBall(16), {"steps": 1}),
    (gyrobn.PoincareBall(16), {"steps": 0}),
    (gyrobn.Hyperboloid(16), {}),
    (gyrobn.Sphere(16), {}),
    (gyrobn.Klein(16), {}),
    (gyrobn.SPD(8), {"dtype": "float64"}),
    (gyrobn.SPD(8), {"dtype": "float64", "steps": 1}),
    (gyrobn.SPD(8), {"dtype": "float64", "steps": 0}),
    (gyrobn.Grassmannian(12, 3), {}),
    (gyrobn.Correlation(8), {}),
    (gyrobn.SpecialOrthogonal(3), {}),
]
IMAGES = {"batch": (4, 8, 5, 5), "channels": 8}
# sets within a sample, whose statistics an evaluation computes, too
SETS = [
    (gyrobn.PoincareBall(16), {"layer": "GyroLayerNorm", "batch": (8, 8)}),
    (gyrobn.PoincareBall(16), {"layer": "GyroInstanceNorm", **IMAGES}),
    (
        gyrobn.PoincareBall(16),
        {"layer": "GyroInstanceNorm", "track_running_stats": True, **IMAGES},
    ),
    (gyrobn.PoincareBall(16), {"layer": "GyroGroupNorm", "groups": 2, **IMAGES}),
    (gyrobn.PoincareBall(16), {"layer": "GyroRMSNorm", "batch": (8, 8)}),
    (gyrobn.SPD(8), {"layer": "GyroRMSNorm", "batch": (8, 8)}),
]
PENALTY = ONLINE = [gyrobn.PoincareBall(16), gyrobn.SPD(8), gyrobn.Grassmannian(12, 3)]
SUGGEST = [gyrobn.PoincareBall(2), gyrobn.Sphere(2), gyrobn.Euclidean(2)]
JAX = [
    gyrobn.Euclidean(16),
    gyrobn.PoincareBall(16),
    gyrobn.Sphere(16),
    gyrobn.SPD(8),
    gyrobn.Grassmannian(8, 2),
]


def main():
    print(f"{'torch, batch 64 unless told':58} {'step':>12} {'evaluation':>12} {'syncs':>8}")
    for manifold, options in TORCH + SETS:
        training, evaluation = torch_counts(manifold, **options)
        name = f"{manifold!r} {', '.join(f'{k}={v}' for k, v in options.items())}"
        print(f"{name:58} {training.operations:12} {evaluation.operations:12} {training.syncs:8}")
    for name, heads, count, rows in (
        ("torch: gradient penalty, batch 64", ("operations", "syncs"), penalty_counts, PENALTY),
        ("torch: one sample more, online", ("operations", "syncs"), online_counts, ONLINE),
        ("suggest, 60 points", ("fits", "evaluations"), suggest_counts, SUGGEST),
        ("JAX, batch 64", ("forward", "gradient"), jax_counts, JAX),
    ):
        print(f"\n{name:58} {heads[0]:>12} {heads[1]:>12}")
        for manifold in rows:
            found = count(manifold)
            cells = (found.operations, found.syncs) if isinstance(found, Count) else found
            print(f"{manifold!r:58} {cells[0]:12} {cells[1]:12}")


if __name__ == "__main__":
    main()
