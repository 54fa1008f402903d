"""The tables of the page that compares: read from the pages that the benchmarks wrote."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
CLEAR = 2.0
"""Errors of libraries are called different if one is more than this times the other."""

PEERS = {
    "geoopt": "geoopt",
    "mean_riemann": "pyRiemann",
    "n_iter": "spd_learn",
    "HypLL": "HypLL",
    "the n × n layer": "published GyroBN",
    "BatchNorm1d": "torch BatchNorm1d",
    "nnx.BatchNorm": "Flax BatchNorm",
    "StandardScaler": "StandardScaler",
}
"""Words in a column "beside", and whom they mean. Other rows compare the library with itself."""

COLUMNS = {
    "of geoopt": "geoopt",
    "of pyRiemann": "pyRiemann",
    "of Cayley": "published GyroBN",
}
"""Columns of ratios, for tables without a column "beside"."""


class Error(NamedTuple):
    """The errors of both in one cell of the page about accuracy."""

    place: str
    peer: str
    what: str
    where: str
    ours: float
    theirs: float


class Ratio(NamedTuple):
    """Our time over a peer's."""

    peer: str
    page: str
    what: str
    ratio: float


class Table(NamedTuple):
    """A table of a page: the headings above it, the line above it, its head and its rows."""

    heading: str
    above: str
    head: list[str]
    rows: list[list[str]]


def read_tables(text: str) -> Iterator[Table]:
    """Yield the tables of a page in Markdown."""
    heading = above = ""
    lines: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if lines:
            head, _, *rows = lines
            yield Table(heading, above, head, rows)
            lines = []
        if line.startswith("## "):
            heading, above = line[3:], ""
        elif line.strip():
            above = line.strip()


def errors(text: str) -> Iterator[Error]:
    """Yield every cell "ours / theirs" of the page about accuracy that has a peer."""
    for heading, above, head, rows in read_tables(text):
        if head[0] == "operation":
            for operation, dtype, peer, *cells in rows:
                if peer in ("–", "paper"):
                    continue
                for where, cell in zip(head[3:], cells, strict=True):
                    if pair := _pair(cell):
                        yield Error(
                            heading.split(",")[0], peer, f"{operation}, {dtype}", where, *pair
                        )
        elif head[0] == "n":
            for n, vectors, *cells in rows:
                for where, cell in zip(head[2:], cells, strict=True):
                    what = f"dist, {n} × {n}, {vectors} eigenvectors, {above.rstrip(':')}"
                    if pair := _pair(cell):
                        yield Error("SPD", "pyRiemann", what, f"condition {where}", *pair)


def _pair(cell: str) -> tuple[float, float] | None:
    """Return both errors; infinity stands for NaN or a point outside the model."""
    parts = [re.sub(r"[†‡*]|\(.*\)", "", part).strip() for part in cell.split("/")]
    if len(parts) < 2 or "–" in parts[:2]:
        return None
    ours, theirs = (float("inf") if part == "off" else float(part) for part in parts[:2])
    return ours, theirs


def ratios(page: str, text: str) -> Iterator[Ratio]:
    """Yield our time over a peer's for each row of a page about speed that has a peer."""
    for heading, _, head, rows in read_tables(text):
        for row in rows:
            cell = dict(zip(head, row, strict=True))
            if "beside" in head:
                peer = next((name for word, name in PEERS.items() if word in cell["beside"]), None)
                if peer:
                    what = f"{heading}: {row[0]}; beside {cell['beside']}"
                    yield Ratio(peer, page, what, float(cell["ratio"]))
            for column, peer in COLUMNS.items():
                if cell.get(column, "–") != "–":
                    sizes = ", ".join(
                        value if name == "library" else f"{name} = {value}"
                        for name, value in zip(head, row, strict=True)
                        if name in ("library", "n", "mixing")
                    )
                    yield Ratio(peer, page, f"{heading}: {sizes}", float(cell[column]))


# ---------------------------------------------------------------------- tables


def accuracy_rows(found: list[Error]) -> list[list[str]]:
    """Return for each geometry how often either library is clearly closer."""
    rows = []
    for place, peer in dict.fromkeys((e.place, e.peer) for e in found):
        pairs = [(e.ours, e.theirs) for e in found if e.place == place]
        ours = sum(CLEAR * a < b for a, b in pairs)
        theirs = sum(CLEAR * b < a for a, b in pairs)
        equal = len(pairs) - ours - theirs
        rows.append([place, peer, *map(str, (len(pairs), ours, equal, theirs))])
    return rows


def worse_rows(found: list[Error]) -> list[list[str]]:
    """Return the operations in which a peer is clearly closer, with the worst cell of each."""
    worst: dict[tuple[str, str], Error] = {}
    for e in found:
        key = (e.place, e.what)
        if CLEAR * e.theirs < e.ours and (key not in worst or _loss(e) > _loss(worst[key])):
            worst[key] = e
    return [
        [e.peer, e.place, e.what, e.where, f"{e.ours:.0e}", f"{e.theirs:.0e}"]
        for e in worst.values()
    ]


def _loss(e: Error) -> float:
    return e.ours / max(e.theirs, 1e-17)


def speed_rows(found: list[Ratio]) -> list[list[str]]:
    """Return for each peer and page the range of ratios."""
    rows = []
    for peer, page in dict.fromkeys((r.peer, r.page) for r in found):
        times = [r.ratio for r in found if (r.peer, r.page) == (peer, page)]
        slower = sum(time > 1.0 for time in times)
        ends = f"{min(times):.2f} to {max(times):.2f}"
        rows.append([peer, f"{{doc}}`{page}`", str(len(times)), ends, str(slower)])
    return rows


def slower_rows(found: list[Ratio]) -> list[list[str]]:
    """Return the cases in which a peer is faster, the worst first."""
    slow = sorted((r for r in found if r.ratio > 1.0), key=lambda r: -r.ratio)
    return [[r.peer, r.what, f"{r.ratio:.2f}"] for r in slow]


PAGES = ("speed_layers", "speed", "speed_matrices", "speed_samples")


def tables() -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the page. A peer without any row is an error: a page has changed."""
    text = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in PAGES}
    precise = list(errors((DOCS / "accuracy.md").read_text(encoding="utf-8")))
    fast = [ratio for name in PAGES for ratio in ratios(name, text[name])]
    if missing := {*PEERS.values(), *COLUMNS.values()} - {r.peer for r in fast}:
        raise ValueError(f"no row of {', '.join(PAGES)} compares with {sorted(missing)}")
    if missing := {"geoopt", "pyRiemann"} - {e.peer for e in precise}:
        raise ValueError(f"no row of accuracy.md compares with {sorted(missing)}")
    closer = ["geometry", "peer", "numbers", "gyrobn closer", "equal", "peer closer"]
    worse = ["peer", "geometry", "operation", "worst at", "gyrobn", "peer"]
    times = ["peer", "page", "cases", "gyrobn's time / peer's", "peer faster"]
    return {
        "compared_accuracy": (closer, accuracy_rows(precise)),
        "compared_worse": (worse, worse_rows(precise)),
        "compared_speed": (times, speed_rows(fast)),
        "compared_slower": (["peer", "case", "gyrobn's time / peer's"], slower_rows(fast)),
    }
