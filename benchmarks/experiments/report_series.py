"""The sections of the page about correlation matrices, covariances, shift and efficiency."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.experiments import paper
from benchmarks.experiments.correlation import HELD_OUT, LARGE
from benchmarks.experiments.report import Row, scores, spread, summary, table, verdict

SERIES = "hdm05_11", "msraction3d", "natops", "basicmotions", "japanesevowels"
SPD = {
    "none": "none",
    "spdbn_mean": "SPDBN, mean only",
    "spdbn": "SPDBN",
    "liebn_aim": "LieBN, affine-invariant",
    "liebn_aim_theta": "LieBN, affine-invariant, θ = ½",
    "liebn_lem": "LieBN, log-Euclidean",
    "liebn_lcm": "LieBN, log-Cholesky",
    "liebn_lcm_theta": "LieBN, log-Cholesky, θ = ½",
    "gyro": "GyroBN",
}


def sections(rows: Mapping[str, list[Row]]) -> list[str]:
    """Return the sections, in order."""
    return [
        correlation(rows.get("correlation", [])),
        spd(rows.get("spd", [])),
        shift(rows.get("covariate_shift", [])),
        efficiency(rows.get("efficiency", [])),
    ]


def _accuracy(rows: list[Row], **settings: Any) -> dict[int, float]:
    return scores(rows, "test_accuracy", **settings)


# ---------------------------------------------------------------------- correlation matrices


def cornet(rows: list[Row], held: bool = True) -> dict[str, Any]:
    """Return the cells of GyroBN and none, with or without a validation part."""
    more = {"validation": HELD_OUT} if held else {}
    return {
        data: tuple(_accuracy(rows, data=data, norm=norm, **more) for norm in ("gyro", "none"))
        for data in (*SERIES, *LARGE)
    }


def correlation(rows: list[Row]) -> str:
    """Return the table of CorNet."""
    norms, lines = {"none": "none", "lrbn": "LRBN", "gyro": "GyroBN"}, []
    for data in (*SERIES, *LARGE):
        cells = [
            _accuracy(rows, data=data, norm=norm, **more)
            for more in ({"validation": HELD_OUT}, {})
            for norm in norms
        ]
        if any(cells):
            lines.append([data, *(spread(cell.values()) if cell else "–" for cell in cells)])
    head = ["data", *norms.values(), *(f"{label}, last epoch" for label in norms.values())]
    return f"""
## Correlation matrices: CorNet

Each series becomes correlation matrices, their Cholesky rows points of balls; then come a Poincaré layer to 325 dimensions, the
normalization, and a Poincaré classifier. The paper's data (Radar, HDM05, FPHA) are not available here. A fifth of the training
samples is held out, and the epoch with the best accuracy on it is taken; the last three columns train with all samples and
take the last of 60 epochs. `radar` is simulated (echoes of three kinds of drones, `benchmarks/experiments/radar.py`), and the
windows are those of the clips. Accuracy in percent:

{table(head, lines)}

With a validation part, GyroBN is better than none in {verdict(cornet(rows))}. At the last epoch: {summary(cornet(rows, held=False))};
with normalization these networks over-train. In the paper it gains 1.1 and 2.9 points on Radar and FPHA and loses 1.4 on HDM05.
"""


# ---------------------------------------------------------------------- covariances


def spd(rows: list[Row]) -> str:
    """Return the table of SPDNet."""
    data = ("natops", "basicmotions", "japanesevowels", "hdm05_11")
    lines = [
        [label, *(spread(_accuracy(rows, data=d, norm=norm).values()) for d in data)]
        for norm, label in SPD.items()
    ]
    pairs = {
        d: tuple(_accuracy(rows, data=d, norm=norm) for norm in ("gyro", "none")) for d in data
    }
    return f"""
## Covariances: one layer, many names

SPDNet (BiMap, ReEig, LogEig) on covariances of series. All normalizations are settings of `gyrobn.torch.GyroBN`. SPDBN and LieBN
take one step of the mean and no derivative through it, as published. Accuracy in percent:

{table(["normalization", *data], lines)}

GyroBN is better than no normalization in {verdict(pairs)}.
"""


# ---------------------------------------------------------------------- covariate shift, efficiency


def shift(rows: list[Row]) -> str:
    """Return the table of the covariate shift."""
    lines = []
    for layer, label in {"pooling": "pooling", "transformation": "transformation"}.items():
        distance, percent = (
            scores(rows, name, layer=layer).values() for name in ("distance", "percent")
        )
        ours = f"{_mean(distance)}, {statistics.mean(percent):.1f} %" if percent else "not run"
        lines.append([label, ours, paper.COVARIATE_SHIFT[layer]])
    ball = scores(rows, "distance", layer="ball").values()
    lines.append(
        ["transformation of the ball", _mean(ball) if ball else "not run", "0.55 (one run)"]
    )
    return f"""
## Covariate shift

How far a layer moves a mean that was the identity: 30 subspaces of 100 × 10 (distance, and share of the largest possible), and
30 points of a ball of 5 dimensions.

{table(["layer", "ours, ten runs", "paper"], lines)}
"""


def _mean(values: Any) -> str:
    values = list(values)
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def shares(rows: list[Row], name: str) -> list[float]:
    """Return the time of a form of gyroaddition as shares of that of the definition."""
    results = [row["result"] for row in rows]
    return [r[f"{name}_microseconds"] / r["definition_microseconds"] for r in results]


def efficiency(rows: list[Row]) -> str:
    """Return the table of gyroaddition, closed form against definition."""
    lines = []
    for row in rows:
        settings, result = row["settings"], row["result"]
        base = result["definition_microseconds"]
        shares = [
            f"{100 * result[f'{name}_microseconds'] / base:.0f} %"
            for name in ("closed_form", "library")
        ]
        if settings["dim"] in (16, 128, 1024):
            lines.append([settings["geometry"], settings["dim"], *shares])
    return f"""
## Efficiency of gyroaddition

Time of x ⊕ y for 10,000 pairs, as a share of that of its definition by exponential, transport and logarithm. The paper reports
34 to 47 % for its closed form.

{table(["geometry", "dimension", "paper's closed form", "library"], lines)}
"""
