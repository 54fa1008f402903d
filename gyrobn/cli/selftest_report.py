"""The table and the Markdown report of the command selftest."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import gyrobn
from gyrobn.cli.backends import version_of

KINDS = {
    "values": "operations",
    "laws": "laws",
    "mean": "mean",
    "variance": "variance",
    "slope": "gradient",
}
"""The headings of the kinds of errors."""

BOUNDS = {
    "float64": {"values": 1e-12, "laws": 1e-12, "mean": 1e-12, "variance": 1e-12, "slope": 1e-6},
    "float32": {"values": 2e-5, "laws": 2e-5, "mean": 2e-5, "variance": 2e-5, "slope": 1e-3},
}
"""The largest errors that pass, for points at distances of about 1 from the identity.

On CPUs errors are below 2e-14 and 3e-6. Gradients are compared with differences, which are right
to 1e-8.
"""

PACKAGES = ("numpy", "torch", "jax", "jaxlib", "cupy-cuda12x", "cupy-cuda13x", "cupy", "dpnp")
MORE = ("array-api-compat", "array-api-extra", "scikit-learn")


def table(rows: Sequence[Any]) -> list[str]:
    """Return the rows as lines of text."""
    names = [[_short(row), row.library, row.device, row.dtype] for row in rows]
    heads = ["geometry", "library", "device", "dtype"]
    widths = [max(map(len, column)) for column in zip(heads, *names, strict=True)]

    def line(words: Sequence[str], cells: Sequence[str], end: str) -> str:
        left = "  ".join(w.ljust(n) for w, n in zip(words, widths, strict=True))
        return f"{left}  {'  '.join(c.rjust(10) for c in cells)}  {end}".rstrip()

    head = line(heads, [*KINDS.values(), "time (ms)"], "")
    return [
        head,
        "-" * len(head),
        *(line(n, _cells(row), _verdict(row)) for n, row in zip(names, rows, strict=True)),
    ]


def _short(row: Any) -> str:
    """Return a geometry without the names of its fields; of a product, the name alone."""
    name, _, fields = row.geometry.partition("(")
    if "(" in fields:
        return f"{name}(...)"
    return f"{name}({', '.join(part.rpartition('=')[2] for part in fields.split(', '))}"


def _cells(row: Any) -> list[str]:
    none = "" if row.problem else "–"  # NumPy has no gradients
    errors = [f"{row.errors[kind]:.0e}" if kind in row.errors else none for kind in KINDS]
    return [*errors, "" if row.problem else f"{1e3 * row.seconds:.1f}"]


def _verdict(row: Any) -> str:
    if row.problem:
        return f"FAILED: {row.problem}"
    return "ok" if row.passed else f"OFF: {', '.join(KINDS[kind] for kind in row.off)}"


def report_of(
    rows: Sequence[Any], devices: Mapping[str, str], absent: Mapping[str, str], count: int
) -> str:
    """Return the report as Markdown: versions, machine, bounds and the table."""
    failed = sum(not row.passed for row in rows)
    lines = [
        f"# gyrobn selftest: {'all passed' if not failed else f'{failed} of {len(rows)} failed'}",
        "",
        f"* gyrobn {gyrobn.__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"* processor: {platform.processor() or platform.machine()}",
        *(f"* {name} {found}" for name in (*PACKAGES, *MORE) if (found := version_of(name))),
        *(f"* device {name}: {hardware}" for name, hardware in devices.items()),
        *(f"* not tested: {name}, {why}" for name, why in absent.items()),
        "",
        f"Batches of {count} samples; NumPy in float64 is the reference. Largest errors that pass:",
        "",
        *_markdown(
            ["dtype", *KINDS.values()],
            [[d, *(f"{b[kind]:.0e}" for kind in KINDS)] for d, b in BOUNDS.items()],
        ),
        "",
        "The time is that of all operations, laws, one normalization and its gradient.",
        "",
        *_markdown(
            ["geometry", "library", "device", "dtype", *KINDS.values(), "ms", "verdict"],
            [_entries(row) for row in rows],
        ),
    ]
    return "\n".join(lines) + "\n"


def _entries(row: Any) -> list[str]:
    place = [f"`{row.geometry}`", row.library, row.device, row.dtype]
    return [*place, *_cells(row), _verdict(row).replace("|", "/")]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]
