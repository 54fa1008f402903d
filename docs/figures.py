"""Draw the figures of the documentation into ``docs/_static``. Run it by hand when they change.

``python docs/figures.py [NAME ...]`` draws the named figures, or all. The figures of a page show
what the page computes: the script runs its blocks. Real recordings come from ``../shared/data``
beside the checkout. If it is missing, generated data replaces them.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from gyrobn import SPD, Correlation, GyroBN, PoincareBall, batch_stats, normalize
from gyrobn import covariance_to_correlation as to_correlation
from gyrobn.cli import main as command
from gyrobn.plot import plot_convergence, plot_tangent
from gyrobn.plot.figures import BLUE, COLOURS, MARKERS, ORANGE
from gyrobn.plot.scenes import GRID, INK

DOCS = Path(__file__).resolve().parent
MOTIONS = DOCS.parents[1] / "shared" / "data" / "basicmotions.npz"
GREY = "#888888"


def run_page(name: str, blocks: int) -> dict[str, Any]:
    """Run the first blocks of a page and return what they define."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    for block in found[:blocks]:
        exec(block, namespace)
    return namespace


def motions() -> tuple[Any, Any]:
    """Return series of six sensors, shape (N, 6, times), and the name of the motion of each."""
    if MOTIONS.exists():
        with np.load(MOTIONS) as data:
            series, names = data["X"].astype(np.float64), data["class_names"][data["y"]]
    else:
        names = np.repeat(["first", "second", "third", "fourth"], 20)
        rng = np.random.default_rng(0)
        strength = np.repeat(rng.uniform(0.2, 5.0, (4, 6)), 20, axis=0)
        series = strength[..., None] * rng.standard_normal((80, 6, 100))
    return series - series.mean(axis=-1, keepdims=True), names


def covariances(series: Any) -> Any:
    return series @ np.swapaxes(series, -1, -2) / series.shape[-1]


# ---------------------------------------------------------------------- the library's own pictures


def demo(path: Path) -> None:
    """Draw what ``gyrobn demo`` draws."""
    assert command(["demo", "--quiet", "--output", str(path)]) == 0


def command_line(path: Path) -> None:
    """Draw what the page of the command line draws."""
    run_page("command_line", 1)
    options = "--manifold spd --domains subjects.txt --scale 0.5"
    assert command(["plot", "covariances.npy", str(path), *options.split()]) == 0


def convergence(path: Path) -> None:
    """Draw the mean of the covariances of each motion, and of points of the ball."""
    series, names = motions()
    x, kinds = covariances(series), np.unique(names)
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
    """Draw the covariances of the motions before and after, one colour per motion."""
    series, names = motions()
    M, x = SPD(6), covariances(series)
    y = normalize(M, x, batch_stats(M, x), scale=3.0)
    before, _ = plot_tangent(
        M, x, y, M.origin(x), labels=names, title="Covariances of motions, SPD(6)"
    )
    before.figure.savefig(path, dpi=120)


# ---------------------------------------------------------------------- pictures of the examples


def principal(features: Any) -> Any:
    """Return the first two principal components."""
    centred = features - features.mean(axis=0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def scatter_before_after(M: Any, before: Any, after: Any, colour: Any, marker: Any) -> Figure:
    """Draw samples in two tangent coordinates, coloured by one label and marked by another."""
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    colours = dict(zip(np.unique(colour), COLOURS, strict=False))
    markers = dict(zip(np.unique(marker), MARKERS, strict=False))
    titles = ("before", "after normalization of each domain")
    for ax, points, title in zip(figure.subplots(1, 2), (before, after), titles, strict=True):
        place = principal(M.to_normal(points))
        for name, c in colours.items():
            for kind, m in markers.items():
                mine = (colour == name) & (marker == kind)
                style = {"s": 22, "color": c, "marker": m, "alpha": 0.8, "linewidths": 0}
                ax.scatter(*place[mine].T, **style)
        # square, so that both panels have the same size and no axis is stretched
        reach = 1.08 * np.abs(place).max()
        ax.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach), title=title)
        ax.set(xlabel="first principal component", ylabel="second")
        ax.grid(color=GRID, linewidth=0.6)
        ax.set_axisbelow(True)
    style = {"linestyle": "none", "markersize": 6}
    handles = [ax.plot([], [], "s", color=c, label=name, **style)[0] for name, c in colours.items()]
    handles += [
        ax.plot([], [], m, color=GREY, label=kind, **style)[0] for kind, m in markers.items()
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure


def example_eeg(path: Path) -> None:
    page = run_page("examples/eeg", 1)
    M, X, who = page["M"], page["X"], page["who"]
    classes = np.where(page["y"] == 0, "class 0", "class 1")
    after = GyroBN(M).fit_transform(X, domains=who)
    scatter_before_after(M, X, after, who, classes).savefig(path, dpi=110)


def example_correlation(path: Path) -> None:
    series, names = motions()
    series /= series.std(axis=-1, keepdims=True)
    rng = np.random.default_rng(0)
    cable = np.where(np.arange(len(series)) % 2, "bad cable", "good cable")
    hum = rng.normal(size=(len(series), 1, series.shape[-1]))
    bad = cable == "bad cable"
    series[bad] += np.asarray([1.5, -1.2, 1.0, 0.8, -1.5, 1.2])[:, None] * hum[bad]
    C = to_correlation(covariances(series))
    M = Correlation(C.shape[-1], "off_log")
    after = GyroBN(M).fit_transform(C, domains=cable)
    scatter_before_after(M, C, after, names, cable).savefig(path, dpi=110)


def example_hyperbolic(path: Path) -> None:
    page = run_page("examples/hyperbolic", 2)
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    spaces = ((left, PoincareBall(2), "Poincaré disc"), (middle, page["Euclidean"](2), "plane"))
    for (ax, M, title), colour in zip(spaces, (BLUE, ORANGE), strict=True):
        model, losses = page["train"](M)
        with torch.no_grad():
            x = model.eval()(torch.arange(page["n"])).numpy()
        for child in range(2, page["n"] + 1):  # an edge is a geodesic
            way = M.geodesic(x[child // 2 - 1], x[child - 1], np.linspace(0.0, 1.0, 41))
            ax.plot(*way.T, color=GREY, linewidth=1.0, zorder=1)
        level = np.floor(np.log2(np.arange(1, page["n"] + 1))).astype(int)
        ax.scatter(*x.T, c=np.asarray(COLOURS)[level], s=26, zorder=2)
        reach = 1.04 * (1.0 if ax is left else abs(x).max())
        ax.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[])
        ax.set_title(f"{title}: error {losses[-1] ** 0.5:.0%}")
        ax.spines[:].set_visible(False)
        right.semilogy(losses, color=colour, label=title)
    angle = np.linspace(0.0, 2.0 * np.pi, 201)
    left.plot(np.cos(angle), np.sin(angle), color=INK, linewidth=1.2)
    right.set(xlabel="epoch", ylabel="mean squared relative error", title="training")
    right.set_box_aspect(1.0)
    right.legend(frameon=False)
    right.grid(color=GRID, linewidth=0.6)
    figure.savefig(path, dpi=110)


def example_subspaces(path: Path) -> None:
    page = run_page("examples/subspaces", 3)
    cameras, bn = list(page["cameras"]), page["bn"]
    axes = page["coordinates"](range(10), 16)
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 1.2))
    top.suptitle("mean of each camera's image sets, as an image", fontsize=11)
    for ax, name in zip(top.subplots(1, len(cameras)), cameras, strict=True):
        mean = bn.mean_[list(bn.domains_).index(name)][:, 0]
        image = (axes @ (mean * np.sign(mean[0]))).reshape(8, 8)
        image *= np.sign(image.sum())
        ax.imshow(image, cmap="Greys", vmin=0.0, vmax=abs(image).max())
        ax.set(xticks=[], yticks=[], title=name)
    ax = bottom.subplots()
    at = np.arange(len(cameras))
    kinds = (("before", page["before"], BLUE), ("after", page["after"], ORANGE))
    for shift, (label, values, colour) in zip((-0.2, 0.2), kinds, strict=True):
        bars = ax.bar(at + shift, [values[c] for c in cameras], 0.38, color=colour, label=label)
        ax.bar_label(bars, fmt="%.2f", fontsize=9)
    ax.axhline(0.1, color=GREY, linestyle=":", linewidth=1.0)
    ax.set(xticks=at, xticklabels=cameras, ylim=(0.0, 1.12), ylabel="accuracy")
    ax.annotate("guessing", (at[-1] + 0.45, 0.12), ha="left", fontsize=9, color=GREY)
    ax.spines[["top", "right"]].set_visible(False)
    bottom.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)


FIGURES = (demo, command_line, convergence, tangent, example_eeg, example_correlation)
FIGURES += (example_hyperbolic, example_subspaces)


def main(names: list[str]) -> None:
    """Draw figures, with at most 256 colours each to keep them small."""
    for draw in FIGURES:
        if names and draw.__name__ not in names:
            continue
        path = DOCS / "_static" / f"{draw.__name__}.png"
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # the pages write files
            draw(path)
            os.chdir(DOCS)
        with Image.open(path) as image:
            # three rounds keep rare colours, such as those of the means
            small = image.convert("RGB").quantize(256, kmeans=3)
        small.save(path, optimize=True)
        print(f"{path}: {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main(sys.argv[1:])
