"""The command demo: every geometry, real data and a figure, without any input."""

from argparse import Namespace
from contextlib import suppress
from typing import Any

from gyrobn.cli.console import Console
from gyrobn.cli.demo import STEPS, Row, run
from gyrobn.cli.inputs import check_place
from gyrobn.plot.canvas import check_format

__all__ = ["demo"]

POINTS = ("name", "x", "y", "target")  # of a row, not part of the report


def demo(options: Namespace, console: Console) -> None:
    """Normalize points and real data, print mean and variance, write a figure."""
    check_place(options.output)
    with suppress(ImportError):  # without matplotlib there are only tables
        check_format(options.output)
    with console.progress("demo", STEPS) as bar:
        found = run(options.output, options.samples, options.seed, bar)
    values = {
        "geometries": {row.name: _numbers(row) for row in found.rows},
        "data": {row.name: _numbers(row) for row in found.real},
        "figure": found.figure,
    }
    console.report(values, found.lines())


def _numbers(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name not in POINTS}
