"""The sections of the page about subspaces, correlation matrices and covariances."""

from collections.abc import Mapping

from benchmarks.experiments.report import Row


def sections(rows: Mapping[str, list[Row]]) -> list[str]:
    """Return the sections, in order."""
    return []
