"""The tables of docs/compared.md: read from the pages of the benchmarks, losses included."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def compared():
    spec = importlib.util.spec_from_file_location("compared", DOCS / "compared.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = """# Accuracy

## Ball, far out

| operation | dtype | beside | radius 1 | radius 5 |
|---|---|---|---|---|
| add | float64 | geoopt | 1e-16 / 3e-16 | 5e-15 † / 2e-15 |
| dist | float64 | geoopt | 3e-15 / 1e-15 / 9e-9 | 1e-10 / off |
| log | float64 | paper | 9 / 1 | 9 / 1 |
| transport | float64 | – | 9 / – | 9 / – |

## SPD

float32:

| n | eigenvectors | 1e+00 |
|---|---|---|
| 4 | different | 1e-16 / 2e-02 (3 of 25 off) |
"""

SPEED = """## Layers

| case | ms | beside | ms beside | ratio |
|---|---|---|---|---|
| one step | 3 | `n_iter=1` | 2 | 1.50 |
| ten | 1 | `n_iter=10` | 2 | 0.50 |
| ours | 1 | detach | 1 | 9.00 |

## Many

| library | n | ms | of geoopt |
|---|---|---|---|
| NumPy | 128 | 2.9 | – |
| torch | 128 | 2.3 | 0.22 |
"""


def test_wins_and_losses_are_counted(compared):
    found = list(compared.errors(PAGE))
    assert compared.accuracy_rows(found) == [
        ["Ball", "geoopt", "4", "2", "0", "2"],
        ["SPD", "pyRiemann", "1", "1", "0", "0"],
    ]
    assert compared.worse_rows(found) == [
        ["geoopt", "Ball", "add, float64", "radius 5", "5e-15", "2e-15"],
        ["geoopt", "Ball", "dist, float64", "radius 1", "3e-15", "1e-15"],
    ]
    assert found[-1].what == "dist, 4 × 4, different eigenvectors, float32"

    times = list(compared.ratios("layers", SPEED))
    assert compared.speed_rows(times) == [
        ["spd_learn", "{doc}`layers`", "2", "0.50 to 1.50", "1"],
        ["geoopt", "{doc}`layers`", "1", "0.22 to 0.22", "0"],
    ]
    assert compared.slower_rows(times) == [
        ["spd_learn", "Layers: one step; beside `n_iter=1`", "1.50"]
    ]


def test_committed_pages_are_read_whole(compared):
    """No cell is lost: as many as a search of the text finds, and every slow row is listed."""
    tables = compared.tables()
    text = (DOCS / "accuracy.md").read_text("utf-8")
    rows = re.findall(r"^\|.*\| geoopt \|(.*)\|$|^\| \d+ \|.*? \|(.*)\|$", text, re.MULTILINE)
    cells = sum(cell.strip() != "–" for a, b in rows for cell in (a or b).split("|"))
    assert sum(int(row[2]) for row in tables["compared_accuracy"][1]) == cells > 300
    assert sum(int(row[4]) for row in tables["compared_speed"][1]) == len(
        tables["compared_slower"][1]
    )
    for _, rows in tables.values():
        assert rows


def test_a_changed_page_is_an_error(compared, monkeypatch):
    monkeypatch.setitem(compared.PEERS, "nobody", "nobody")
    with pytest.raises(ValueError, match="nobody"):
        compared.tables()
