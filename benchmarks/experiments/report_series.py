"""The sections of the page about subspaces, correlation matrices and covariances."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.experiments import paper
from benchmarks.experiments.report import Row, published, scores, spread, table, verdict

GRASSMANN = {
    "none": "none",
    "manifold_norm": "ManifoldNorm",
    "lrbn": "LRBN",
    "gyro": "GyroBN",
    "gyro_framed": "GyroBN, seen from the data",
}
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
        grassmann(rows.get("grassmann", [])),
        correlation(rows.get("correlation", [])),
        spd(rows.get("spd", [])),
        shift(rows.get("covariate_shift", [])),
        efficiency(rows.get("efficiency", [])),
    ]


def _accuracy(rows: list[Row], **settings: Any) -> dict[int, float]:
    return scores(rows, "test_accuracy", **settings)


def _median(rows: list[Row], name: str, **settings: Any) -> str:
    found = scores(rows, name, **settings)
    return f"{statistics.median(found.values()):.3g}" if found else "–"


# ---------------------------------------------------------------------- subspaces


def grassmann(rows: list[Row]) -> str:
    """Return the tables of GyroGr."""
    main = [
        [
            data,
            label,
            spread(_accuracy(rows, data=data, blocks=1, norm=norm).values()),
            _median(rows, "seconds_per_epoch", data=data, blocks=1, norm=norm),
            _median(rows, "parameters", data=data, blocks=1, norm=norm).replace("e+0", "e"),
            published(paper.GRASSMANN.get(norm)) if data == "hdm05_11" else "–",
        ]
        for data in SERIES[:2]
        for norm, label in GRASSMANN.items()
    ]
    blocks = [
        [
            data,
            label,
            *(spread(_accuracy(rows, data=data, blocks=k, norm=norm).values()) for k in (2, 3, 4)),
        ]
        for data in SERIES[:2]
        for norm, label in GRASSMANN.items()
    ]
    pairs = {
        (data, k): tuple(
            _accuracy(rows, data=data, blocks=k, norm=norm) for norm in ("gyro", "none")
        )
        for data in SERIES[:2]
        for k in (1, 2, 3, 4)
    }
    framed = {
        (data, k): tuple(
            _accuracy(rows, data=data, blocks=k, norm=norm) for norm in ("gyro_framed", "gyro")
        )
        for data in SERIES[:2]
        for k in (1, 2, 3, 4)
    }
    return f"""
## Subspaces: GyroGr

Classes of motions from subspaces of the coordinates of joints. The paper's data sets are not to be had here; ours are 11
classes of HDM05 and MSR Action 3D, of 288 and 567 clips, split by subjects. So only the direction of a difference can be
compared. Settings are those of the published code, but 40 epochs at the rate 0.5 in place of 400 at 0.05, and exact maps.

Accuracy in percent, CPU seconds per epoch, number of parameters:

{table(["data", "normalization", "accuracy", "seconds", "parameters", "paper: HDM05, 117 classes"], main)}

Two to four blocks:

{table(["data", "normalization", "2", "3", "4"], blocks)}

GyroBN is better than no normalization in {verdict(pairs)}. The identity of the Grassmannian, the span of the first p axes, has
no meaning for the data, and its principal angles with a mean come close to π/2. There ⊖μ ⊕ x rotates samples very differently
for nearby means, so the noise of a mean becomes noise of the samples. "Seen from the data" first carries the mean of the
training samples to the identity; it is better than GyroBN in {verdict(framed)}.

{conditions(rows)}
"""


def conditions(rows: list[Row]) -> str:
    """Return the table of condition numbers."""
    lines = []
    for data in SERIES[:1]:
        for norm, label in GRASSMANN.items():
            weights = scores(rows, "weight_conditions", data=data, blocks=1, norm=norm)
            jacobian = scores(rows, "jacobian_condition", data=data, blocks=1, norm=norm)
            flat = [value for one in weights.values() for value in one]
            means = [one["mean"] for one in jacobian.values()]
            theirs = paper.CONDITIONS.get(norm, ("–", "–"))
            ours = [
                f"{statistics.mean(v):.1f} to {max(v):.1f}" if v else "not run"
                for v in (flat, means)
            ]
            lines.append([label, ours[0], ours[1], *theirs])
    head = ["normalization", "weights", "Jacobian", "paper: weights", "paper: Jacobian"]
    return (
        "Condition numbers after training on hdm05_11, of the weights and of the Jacobian: mean and "
        "largest over channels and seeds.\n\n" + table(head, lines)
    )


# ---------------------------------------------------------------------- correlation matrices


def correlation(rows: list[Row]) -> str:
    """Return the table of CorNet."""
    norms = {"none": "none", "lrbn": "LRBN", "gyro": "GyroBN"}
    lines = [
        [data, *(spread(_accuracy(rows, data=data, norm=norm).values()) for norm in norms)]
        for data in SERIES
    ]
    pairs = {
        data: tuple(_accuracy(rows, data=data, norm=norm) for norm in ("gyro", "none"))
        for data in SERIES
    }
    return f"""
## Correlation matrices: CorNet

Each series becomes correlation matrices, their Cholesky rows points of balls; then come a Poincaré layer to 325 dimensions, the
normalization, and a Poincaré classifier. The paper's data (Radar, HDM05, FPHA) are not to be had here. Accuracy in percent:

{table(["data", *norms.values()], lines)}

GyroBN is better than none in {verdict(pairs)}. In the paper it gains 1.1 and 2.9 points on Radar and FPHA and loses 1.4 on
HDM05.
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
