"""The pages of the experiments, made from their results.

``python -m benchmarks.experiments.report`` writes docs/experiments.md with its pictures, and
docs/unseen_subjects.md. A test makes them again and compares, so nothing on the pages is written by
hand but their sentences.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.experiments import records

DOCS = Path(__file__).parents[2] / "docs"
NORMS = {
    "none": "none",
    "lrbn_published": "LRBN, as published",
    "lrbn": "LRBN, running statistics",
    "gyro": "GyroBN",
}
Row = dict[str, Any]


def main() -> None:
    """Write the pages and their pictures."""
    from benchmarks.experiments import pictures

    for name, text in pages().items():
        (DOCS / name).write_text(text)
    for path in pictures.draw(DOCS / "_static"):
        print(path)


def pages() -> dict[str, str]:
    """Return the pages by the names of their files."""
    from benchmarks.experiments import (
        report_claims,
        report_grassmann,
        report_links,
        report_online,
        report_series,
    )

    rows = {path.stem: records.read(path.stem) for path in records.RESULTS.glob("*.jsonl")}
    parts = [report_claims.section(rows), *report_links.sections(rows)]
    parts += [report_grassmann.section(rows["grassmann"]), *report_series.sections(rows)]
    return {
        "experiments.md": "\n\n".join(part.strip() for part in parts) + "\n",
        "unseen_subjects.md": report_online.page(rows),
    }


# ---------------------------------------------------------------------- numbers


def scores(rows: Iterable[Row], name: str = "test_roc", **settings: Any) -> dict[int, float]:
    """Return a result of all seeds of a cell; settings that are not given must not be there."""
    found = {}
    for row in rows:
        given = dict(row["settings"])
        seed = given.pop("seed")
        if given == settings:
            found[seed] = row["result"][name]
    return found


def spread(values: Iterable[float]) -> str:
    """Return mean ± standard deviation, and the number of runs if it is not three."""
    values = list(values)
    if not values:
        return "not run"
    if len(values) == 1:
        return f"{values[0]:.1f} (1)"
    runs = "" if len(values) == 3 else f" ({len(values)})"
    return f"{statistics.mean(values):.1f}±{statistics.stdev(values):.1f}{runs}"


def published(value: tuple[float, float] | None) -> str:
    """Return a number of the paper."""
    return "–" if value is None else f"{value[0]:.1f}±{value[1]:.1f}"


def papers(values: Mapping[str, tuple[float, float]]) -> str:
    """Return the paper's means: none, LRBN and GyroBN."""
    means = [values.get(norm) for norm in ("none", "lrbn", "gyro")]
    return "/".join("–" if value is None else f"{value[0]:.1f}" for value in means)


PAPERS = "paper: none/LRBN/GyroBN"


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def compare(pairs: Iterable[tuple[Mapping[int, float], Mapping[int, float]]]) -> tuple[int, int]:
    """Count the cells in which the mean of the first is larger, over those that both have run."""
    means = [
        (statistics.mean(a.values()), statistics.mean(b.values())) for a, b in pairs if a and b
    ]
    return sum(a > b for a, b in means), len(means)


def difference(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[float, float] | None:
    """Return the mean difference of two cells, and its standard error from the seeds."""
    if len(a) < 2 or len(b) < 2:
        return None
    errors = (statistics.variance(x.values()) / len(x) for x in (a, b))
    return statistics.mean(a.values()) - statistics.mean(b.values()), math.sqrt(sum(errors))


def summary(pairs: Mapping[Any, tuple[Mapping[int, float], Mapping[int, float]]]) -> str:
    """Return the number of wins and the mean difference, for a cell of a table."""
    wins, count = compare(pairs.values())
    return f"{wins} of {count} cells, {average(pairs):+.1f} points" if count else "not run"


def average(pairs: Mapping[Any, tuple[Mapping[int, float], Mapping[int, float]]]) -> float:
    """Return the mean difference of the cells that both have run; NaN if there is none."""
    found = [
        statistics.mean(a.values()) - statistics.mean(b.values())
        for a, b in pairs.values()
        if a and b
    ]
    return statistics.mean(found) if found else math.nan


def verdict(pairs: Mapping[Any, tuple[Mapping[int, float], Mapping[int, float]]]) -> str:
    """Return a sentence: wins with their interval, and how many differences are clear."""
    wins, count = compare(pairs.values())
    if not count:
        return "no cell that was run"
    known = [d for a, b in pairs.values() if (d := difference(a, b)) is not None]
    up, down = (sum(sign * d > 2 * e for d, e in known) for sign in (1, -1))
    text = f"{wins} of {count} cells"
    if known:
        text += f" ({average(pairs):+.1f} points; "
        text += f"clearly better in {up}, worse in {down} of {len(known)})"
    return text


if __name__ == "__main__":
    main()
