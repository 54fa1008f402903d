"""The pictures of the page, drawn from the results."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.experiments import records
from benchmarks.experiments.report import NORMS

COLOURS = {"none": "0.55", "lrbn_published": "C1", "lrbn": "C2", "gyro": "C0"}
PANELS = [
    (data, backbone) for backbone in ("HNN", "SNN") for data in ("disease", "airport", "cora")
]


def draw(folder: Path) -> list[Path]:
    """Draw all pictures, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [curves(folder / "experiments_curves.svg")]


def curves(path: Path) -> Path:
    """Draw the validation scores over epochs: the four normalizations, seed 0."""
    rows = records.read("link_prediction")
    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    for axes, (data, backbone) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for norm, label in NORMS.items():
            wanted = {"data": data, "backbone": backbone, "norm": norm, "seed": 0}
            for row in rows:
                if row["settings"] == wanted:
                    found = row["result"]
                    epochs = range(1, found["epochs"] + 1, found["curve_step"])
                    count = min(len(epochs), len(found["curve"]))
                    axes.plot(
                        list(epochs)[:count],
                        found["curve"][:count],
                        color=COLOURS[norm],
                        label=label,
                        linewidth=1.4,
                    )
        axes.set_title(f"{backbone} on {data}", fontsize=10)
        axes.grid(alpha=0.3)
        axes.set_xlabel("epoch")
        if not axes.lines:
            axes.text(0.5, 0.5, "not run", ha="center", transform=axes.transAxes)
    figure.supylabel("validation ROC area, %")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    """Write a picture that is the same bytes each time."""
    with mpl.rc_context({"svg.hashsalt": "gyrobn"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path
