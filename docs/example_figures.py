"""Draw the pictures of the example pages: ``python docs/example_figures.py``, by hand.

The pictures show what the pages compute: their blocks are run, up to the ones that are needed. Real
recordings are taken from ``../shared/data`` beside the checkout; without it the last picture is
drawn from the page's generated data.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from gyrobn import Correlation, GyroBN, PoincareBall, covariance_to_correlation

DOCS = Path(__file__).resolve().parent
DATA = DOCS.parents[1] / "shared" / "data"
# Okabe and Ito's palette, without its yellow, which is too light for small markers
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#222222")
MARKERS = ("o", "^", "s", "D")
GREY = "#888888"


def run_page(name: str, blocks: int) -> dict[str, Any]:
    """Run the first blocks of an example page and return what they define."""
    text = (DOCS / "examples" / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    for block in found[:blocks]:
        exec(block, namespace)
    return namespace


def save(figure: Figure, name: str) -> None:
    path = DOCS / "_static" / f"example_{name}.png"
    figure.savefig(path, dpi=110)
    print(path, path.stat().st_size // 1024, "KB")


def principal(features: Any) -> Any:
    """Return the first two principal components."""
    centred = features - features.mean(axis=0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def scatter_before_after(M: Any, before: Any, after: Any, colour: Any, marker: Any) -> Figure:
    """Draw samples in two tangent coordinates, coloured by one label and marked by another."""
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    titles = ("before", "after normalization of each domain")
    for ax, points, title in zip(figure.subplots(1, 2), (before, after), titles, strict=True):
        place = principal(M.to_normal(points))
        for c, name in zip(COLOURS, np.unique(colour), strict=False):
            for m, kind in zip(MARKERS, np.unique(marker), strict=False):
                mine = (colour == name) & (marker == kind)
                style = {"s": 22, "color": c, "marker": m, "alpha": 0.8, "linewidths": 0}
                ax.scatter(*place[mine].T, **style)
        ax.set(aspect="equal", title=title)
        ax.set(xlabel="first principal component", ylabel="second")
        # as wide as high, so that both panels are equally large and no axis is stretched
        reach = 1.08 * np.abs(place).max()
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
        ax.grid(color="#DDDDDD", linewidth=0.6)
        ax.set_axisbelow(True)
    style = {"linestyle": "none", "markersize": 6}
    handles = [
        ax.plot([], [], "s", color=c, label=name, **style)[0]
        for c, name in zip(COLOURS, np.unique(colour), strict=False)
    ] + [
        ax.plot([], [], m, color=GREY, label=kind, **style)[0]
        for m, kind in zip(MARKERS, np.unique(marker), strict=False)
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure


def draw_eeg() -> None:
    page = run_page("eeg", 1)
    M, X, who = page["M"], page["X"], page["who"]
    classes = np.where(page["y"] == 0, "class 0", "class 1")
    after = GyroBN(M).fit_transform(X, domains=who)
    save(scatter_before_after(M, X, after, who, classes), "eeg")


def draw_correlation() -> None:
    file = DATA / "basicmotions.npz"
    if file.exists():
        data = np.load(file)
        series, names = data["X"].astype(float), data["class_names"][data["y"]]
        series -= series.mean(axis=-1, keepdims=True)
        series /= series.std(axis=-1, keepdims=True)
        rng = np.random.default_rng(0)
        cable = np.where(np.arange(len(series)) % 2, "bad cable", "good cable")
        hum = rng.normal(size=(len(series), 1, series.shape[-1]))
        bad = cable == "bad cable"
        series[bad] += np.asarray([1.5, -1.2, 1.0, 0.8, -1.5, 1.2])[:, None] * hum[bad]
        C = covariance_to_correlation(series @ series.swapaxes(-1, -2))
        M = Correlation(C.shape[-1], "off_log")
    else:
        page = run_page("correlation", 1)
        M, C, cable = page["M"], page["C"], page["sites"]
        names = np.where(page["y"] == 0, "class 0", "class 1")
    after = GyroBN(M).fit_transform(C, domains=cable)
    save(scatter_before_after(M, C, after, names, cable), "correlation")


def draw_hyperbolic() -> None:
    page = run_page("hyperbolic", 2)
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    spaces = ((left, PoincareBall(2), "Poincaré disc"), (middle, page["Euclidean"](2), "plane"))
    for (ax, M, title), colour in zip(spaces, COLOURS, strict=False):
        model, losses = page["train"](M)
        with torch.no_grad():
            x = model.eval()(torch.arange(page["n"])).numpy()
        for child in range(2, page["n"] + 1):  # an edge is a geodesic
            path = M.geodesic(x[child // 2 - 1], x[child - 1], np.linspace(0.0, 1.0, 41))
            ax.plot(*path.T, color=GREY, linewidth=1.0, zorder=1)
        level = np.floor(np.log2(np.arange(1, page["n"] + 1))).astype(int)
        ax.scatter(*x.T, c=np.asarray(COLOURS)[level], s=26, zorder=2)
        error = losses[-1] ** 0.5
        ax.set(aspect="equal", xticks=[], yticks=[], title=f"{title}: error {error:.0%}")
        ax.spines[:].set_visible(False)
        right.semilogy(losses, color=colour, label=title)
    angle = np.linspace(0.0, 2.0 * np.pi, 201)
    left.plot(np.cos(angle), np.sin(angle), color="#222222", linewidth=1.2)
    right.set(xlabel="epoch", ylabel="mean squared relative error", title="training")
    right.legend(frameon=False)
    right.grid(color="#DDDDDD", linewidth=0.6)
    save(figure, "hyperbolic")


def draw_subspaces() -> None:
    page = run_page("subspaces", 3)
    cameras, bn = list(page["cameras"]), page["bn"]
    axes = page["coordinates"](range(10), 16)
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 1.2))
    top.suptitle("mean of each camera's image sets, as an image", fontsize=11)
    for ax, name in zip(top.subplots(1, len(cameras)), cameras, strict=True):
        mean = bn.mean_[list(bn.domains_).index(name)][:, 0]
        image = (axes @ (mean * np.sign(mean[0]))).reshape(8, 8)
        reach = abs(image).max()
        image *= np.sign(image.sum())
        ax.imshow(image, cmap="Greys", vmin=0.0, vmax=reach)
        ax.set(xticks=[], yticks=[], title=name)
    ax = bottom.subplots()
    at = np.arange(len(cameras))
    kinds = (("before", page["before"], COLOURS[0]), ("after", page["after"], COLOURS[1]))
    for shift, (label, values, colour) in zip((-0.2, 0.2), kinds, strict=True):
        bars = ax.bar(at + shift, [values[c] for c in cameras], 0.38, color=colour, label=label)
        ax.bar_label(bars, fmt="%.2f", fontsize=9)
    ax.axhline(0.1, color=GREY, linestyle=":", linewidth=1.0)
    ax.set(xticks=at, xticklabels=cameras, ylim=(0.0, 1.12), ylabel="accuracy")
    ax.annotate("guessing", (at[-1] + 0.45, 0.12), ha="left", fontsize=9, color=GREY)
    ax.spines[["top", "right"]].set_visible(False)
    bottom.legend(loc="outside right center", frameon=False)
    save(figure, "subspaces")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        import os

        os.chdir(folder)  # the pages write files
        draw_eeg()
        draw_correlation()
        draw_hyperbolic()
        draw_subspaces()
