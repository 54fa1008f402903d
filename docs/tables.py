"""Tables that are written when the documentation is built: measured, or read from the classes."""

from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import torch

import gyrobn
from gyrobn.numerics.arrays import cast
from gyrobn.numerics.checks import host

FAMILIES = {name: cls.examples()[0] for name, cls in gyrobn.REGISTRY.items()}
"""One small instance of each geometry."""


def write(folder: Path) -> None:
    """Write the tables, as Markdown to include."""
    folder.mkdir(exist_ok=True)
    libraries = [
        [f"`{name}`", *(measure(M, like) for like in LIKE.values())] for name, M in FAMILIES.items()
    ]
    for name, header, rows in (
        ("libraries", ["geometry", *LIKE], libraries),
        ("properties", PROPERTIES, property_rows()),
    ):
        lines = [header, ["---"] * len(header), *rows]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


# ---------------------------------------------------------------------- array libraries


LIKE = {
    "NumPy": np.zeros(()),
    "torch": torch.zeros((), dtype=torch.float64),
    "torch, float32": torch.zeros(()),
    "array-api-strict": array_api_strict.zeros((), device=array_api_strict.Device("device1")),
}
"""A scalar of each library and dtype. (JAX would compile each operation.)"""


def measure(M: gyrobn.GyroSpace, like: Any) -> str:
    """Normalize points and return the distance of the output's mean from the bias."""
    spread = min(1.0, 0.3 * M.convexity_radius)
    x = M.random(50, rng=0, like=like, spread=spread)
    bias = M.random(rng=1, like=like, spread=0.5)
    y, _ = gyrobn.normalize_batch(M, x, bias=bias, scale=0.5 * spread)
    mean, target = (cast(host(a), np.float64) for a in (gyrobn.frechet_mean(M, y), bias))
    return f"{float(M.dist(mean, target)):.0e}".replace("-", "\N{NON-BREAKING HYPHEN}")


# ---------------------------------------------------------------------- properties

PROPERTIES = [
    "name",
    "example",
    "point shape",
    "dim",
    "blocks",
    "gyrocommutative",
    "reductive",
    "gyrovector",
    "convexity radius",
]


def property_rows() -> list[list[str]]:
    """Return what each geometry declares: one row per metric whose laws or blocks differ."""
    rows: dict[Any, list[str]] = {}
    for name, cls in gyrobn.REGISTRY.items():
        for M in cls.examples():
            laws = (M.gyrocommutative, M.reductive, M.gyrovector, len(M.blocks) == 1)
            rows.setdefault((name, laws), [f"`{name}`", *properties(M)])
    return list(rows.values())


def properties(M: gyrobn.GyroSpace) -> list[str]:
    """Return the cells of one geometry."""
    return [
        f"`{M!r}`",
        f"`{M.point_shape}`",
        str(M.dim),
        f"`{M.blocks}`",
        *("yes" if law else "no" for law in (M.gyrocommutative, M.reductive, M.gyrovector)),
        "∞" if M.convexity_radius == float("inf") else f"{M.convexity_radius:.3f}",
    ]
