r"""How far layers move the mean of a batch, and how long a gyroaddition takes: two small tables.

``python -m benchmarks.experiments.covariate_shift`` writes both. They need no data.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.experiments import records
from benchmarks.experiments.layers import GrassmannPool
from gyrobn import Grassmannian, Hyperboloid, PoincareBall, Sphere, frechet_mean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.torch.nn import GyroLinear

NAME, EFFICIENCY = "covariate_shift", "efficiency"
LIKE = torch.zeros((), dtype=torch.float64)
SAMPLES, SPREAD = 30, 0.5
DIMENSIONS = (16, 32, 64, 128, 256, 1024, 2048)


def shift_cells(seeds: int) -> list[records.Cell]:
    """Return one cell per layer and seed; the paper has ten seeds on the Grassmannian."""
    return [{"layer": layer, "seed": seed} for layer in LAYERS for seed in range(seeds)]


def efficiency_cells() -> list[records.Cell]:
    """Return one cell per geometry and dimension of the paper's table."""
    return [{"geometry": M.__name__, "dim": n} for M in (Hyperboloid, Sphere) for n in DIMENSIONS]


def centred_batch(M: GyroSpace, rng: np.random.Generator) -> Tensor:
    """Draw points, and move them so that their mean is the identity."""
    x = M.random(SAMPLES, rng=rng, like=LIKE, spread=SPREAD)
    return M.relative(frechet_mean(M, x), x)


def random_subspace(M: Grassmannian, rng: np.random.Generator) -> Tensor:
    """Draw a subspace from the uniform distribution."""
    return torch.as_tensor(np.linalg.qr(rng.standard_normal((M.n, M.p)))[0])


def pooling(rng: np.random.Generator) -> dict[str, float]:
    r"""Pool subspaces of dimension 10 in 100 dimensions, whose mean is the identity.

    Pooling joins the ten axes of the identity in pairs, so five of them are left, and noise decides
    about the other five directions: the distance is about :math:`\sqrt5\,\pi/2`.
    """
    M = Grassmannian(100, 10)
    pool = GrassmannPool(M)
    return _grassmann_shift(pool.out_manifold, pool(centred_batch(M, rng)))


def transformation(rng: np.random.Generator) -> dict[str, float]:
    """Translate such subspaces by a uniformly distributed one: the mean becomes that one."""
    M = Grassmannian(100, 10)
    return _grassmann_shift(M, M.add(random_subspace(M, rng), centred_batch(M, rng)))


def start(rng: np.random.Generator) -> dict[str, float]:
    """Translate them by a weight as GyroGr draws it before training, for one of 8 channels."""
    M = Grassmannian(100, 10)
    bound = math.sqrt(6 / (8 * M.dim))
    weight = torch.as_tensor(rng.uniform(-bound, bound, M.dim))
    return _grassmann_shift(M, M.add(M.from_normal(weight), centred_batch(M, rng)))


def ball(rng: np.random.Generator) -> dict[str, float]:
    """Apply a transformation of HNN, as it is before training, to points of a ball in 5 dimensions.

    The bias starts at 0 and would leave the mean of a centred batch near 0, so it is drawn, too.
    """
    M = PoincareBall(5)
    torch.manual_seed(int(rng.integers(2**31)))
    layer = GyroLinear(M, M, dtype=torch.float64)
    torch.nn.init.normal_(layer.bias, std=SPREAD / M.dim**0.5)
    x = M.random(SAMPLES, rng=rng, like=LIKE, spread=SPREAD)
    with torch.no_grad():
        before, after = frechet_mean(M, x), frechet_mean(M, layer(x))
    return {"distance": float(M.dist(before, after))}


def _grassmann_shift(M: Grassmannian, x: Tensor) -> dict[str, float]:
    distance = float(M.norm(frechet_mean(M, x)))
    return {"distance": distance, "percent": 100 * distance / (math.sqrt(M.p) * math.pi / 2)}


LAYERS: dict[str, Callable[[np.random.Generator], dict[str, float]]] = {
    "pooling": pooling,
    "transformation": transformation,
    "transformation_start": start,
    "ball": ball,
}


def shift(cell: records.Cell, tick: records.Tick) -> dict[str, Any]:
    """Return the distance of the mean after a layer from that before it."""
    found = LAYERS[cell["layer"]](np.random.default_rng(cell["seed"]))
    return {name: round(value, 4) for name, value in found.items()}


def efficiency(cell: records.Cell, tick: records.Tick) -> dict[str, Any]:
    """Time a gyroaddition of 10,000 points: ours, the paper's closed form and the definition.

    CPU seconds on one thread in float32, medians of alternatives that take turns.
    """
    sys.path.append(str(Path(__file__).parents[1]))  # the benchmarks are scripts
    import speed
    import timing

    M = {"Hyperboloid": Hyperboloid, "Sphere": Sphere}[cell["geometry"]](cell["dim"])
    x, y = (M.random(speed.N, rng=seed, like=torch.empty(())) for seed in (0, 1))
    runs = {
        "library": lambda: M.add(x, y),
        "closed_form": lambda: speed.closed_form(M, x, y),
        "definition": lambda: speed.by_definition(M, x, y),
    }
    times = timing.medians(runs, rounds=9)
    return {f"{name}_microseconds": round(1e6 * t, 1) for name, t in times.items()}


def main() -> None:
    """Write both tables."""
    parser = records.arguments(__doc__ or "")
    parser.set_defaults(seeds=10)
    args = parser.parse_args()
    part = records.part_of(args.part)
    records.run(NAME, shift_cells(args.seeds), shift, part, args.results)
    records.run(EFFICIENCY, efficiency_cells(), efficiency, part, args.results)


if __name__ == "__main__":
    main()
