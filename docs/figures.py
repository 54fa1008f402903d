"""Draw the figures of the documentation, into ``docs/_static``: run by hand, when they change.

The tangent space and the convergence are those of real series where ``../shared/data`` is at hand,
and of generated ones elsewhere.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import gyrobn.demo
from gyrobn import SPD, PoincareBall, batch_stats, normalize
from gyrobn.plot import plot_convergence, plot_tangent

HERE = Path(__file__).resolve().parent
MOTIONS = HERE.parent.parent / "shared" / "data" / "basicmotions.npz"


def motions() -> tuple[np.ndarray, np.ndarray]:
    """Return covariance matrices of six sensors, and the names of the motions."""
    if MOTIONS.exists():
        with np.load(MOTIONS) as data:
            series, names = data["X"].astype(np.float64), data["class_names"][data["y"]]
    else:
        names = np.repeat(["first", "second", "third", "fourth"], 20)
        rng = np.random.default_rng(0)
        strength = np.repeat(rng.uniform(0.2, 5.0, (4, 6)), 20, axis=0)
        series = strength[..., None] * rng.standard_normal((80, 6, 100))
    centred = series - series.mean(axis=-1, keepdims=True)
    return centred @ np.swapaxes(centred, -1, -2) / series.shape[-1], names


def demo(path: Path) -> None:
    """Draw what ``gyrobn demo`` draws."""
    gyrobn.demo.run(path)


def convergence(path: Path) -> None:
    """Draw the mean of the covariances of each motion, and of points of the ball."""
    x, names = motions()
    kinds = np.unique(names)
    by_motion = np.stack([x[names == name] for name in kinds], axis=1)
    spreads = 0.5, 1.0, 2.0, 4.0
    ball = np.stack([PoincareBall(5).random(100, rng=1, spread=s) for s in spreads], axis=1)
    figure = Figure(figsize=(8.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_convergence(SPD(6), by_motion, left, title="SPD(6): covariances of motions")
    plot_convergence(PoincareBall(5), ball, right, title="PoincareBall(5): generated points")
    for ax, labels in ((left, kinds), (right, [f"spread {s:g}" for s in spreads])):
        handles, _ = ax.get_legend_handles_labels()
        ax.legend(handles, [*labels, "tolerance"], frameon=False)
    figure.savefig(path, dpi=120)


def tangent(path: Path) -> None:
    """Draw the covariances of the motions before and after, a colour a motion."""
    x, names = motions()
    manifold = SPD(6)
    target = manifold.origin(x)
    y = normalize(manifold, x, batch_stats(manifold, x), bias=target, scale=3.0)
    before, _ = plot_tangent(
        manifold, x, y, target, labels=names, title="Covariances of motions, SPD(6)"
    )
    before.figure.savefig(path, dpi=120)


def main() -> None:
    """Write all figures, with at most 256 colours each to keep them small."""
    for draw in (demo, convergence, tangent):
        path = HERE / "_static" / f"{draw.__name__}.png"
        draw(path)
        with Image.open(path) as image:
            # three rounds keep colours that are rare, as those of the means are
            small = image.convert("RGB").quantize(256, kmeans=3)
        small.save(path, optimize=True)
        print(f"{path}: {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
