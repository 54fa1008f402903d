"""The output of a command: a report on stdout; warnings, errors and progress on stderr."""

import json
import math
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gyrobn.cli.pipes import PIPE
from gyrobn.cli.progress import Progress
from gyrobn.data import StoredArray
from gyrobn.data.chunks import Chunks
from gyrobn.numerics.checks import Parameter
from gyrobn.statistics.uniqueness import FrechetWarning

Report = tuple[dict[str, Any], list[str]]
"""What a command reports: values for JSON, and lines of text."""


class Console:
    """Stdout and stderr of one command with its options."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._bar: Progress | None = None
        self._warnings: list[str] = []
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time since the command began."""
        return round(time.perf_counter() - self._begin, 3)

    def progress(self, label: str, total: int) -> Progress:
        """Return a progress bar for a pass over the data."""
        self._bar = Progress(label, total, self._options.quiet)
        return self._bar

    @contextmanager
    def reading(self, label: str, source: StoredArray) -> Iterator[Chunks]:
        """Yield samples in chunks, with a progress bar for each pass over them."""
        with self.progress(label, len(source)) as bar:
            yield Chunks(source).map(bar.watch)

    @property
    def live(self) -> bool:
        """Whether somebody watches, and wants to see progress."""
        return not self._options.quiet and sys.stderr.isatty()

    def report(self, values: dict[str, Any], lines: list[str]) -> None:
        """Print the values as JSON with ``--json``, otherwise the lines.

        They go to stderr if the samples go to stdout.
        """
        stream = sys.stderr if getattr(self._options, "output", None) == PIPE else sys.stdout
        if self._options.json:
            values = {"command": self._options.command, **values, "warnings": self._warnings}
            print(json.dumps(_plain(values), allow_nan=False), file=stream)
        else:
            print("\n".join(map(_printable, lines)), file=stream)

    def error(self, error: BaseException) -> None:
        """Say on one line why the command failed."""
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        if isinstance(error, MemoryError):
            text = f"not enough memory: {text}" if text else "not enough memory"
        parameter = getattr(error, "parameter", None)
        if isinstance(parameter, Parameter) and hasattr(self._options, parameter.name):
            option = f"--{parameter.name.replace('_', '-')}"
            spelling = " or ".join(f"{option} {value}" for value in parameter.values) or option
            text = f"{parameter.before}{spelling}{parameter.after}"
        notes = getattr(error, "__notes__", ())
        self._say("error", "; ".join([text or type(error).__name__, *notes]))

    @contextmanager
    def showing_warnings(self) -> Iterator[None]:
        """Show each warning once, on one line."""

        def show(message: Warning | str, *_: Any) -> None:
            text = str(message)
            if text not in self._warnings:
                self._warnings.append(text)
                self._say("warning", text)

        with warnings.catch_warnings():
            warnings.simplefilter("always", FrechetWarning)
            warnings.showwarning = show  # type: ignore[assignment]
            yield

    def _say(self, kind: str, text: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        print(f"gyrobn: {kind}: {_printable(' '.join(text.split()))}", file=sys.stderr)


def _printable(line: str) -> str:
    """Return a line without control characters, which may come from a file."""
    return "".join(c if c.isprintable() else "?" for c in line)


def span(values: Any, form: str = ".4g") -> str:
    """Return one number, or the range of several, as text.

    >>> span(0.5), span([2, 2], "d"), span([0.25, 0.5, 1.0])
    ('0.5', '2', '0.25 to 1 (3 values)')
    """
    v = np.asarray(values)
    low, high = format(v.min(), form), format(v.max(), form)
    return low if low == high else f"{low} to {high} ({v.size} values)"


def _plain(value: Any) -> Any:
    """Return a value for JSON; NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int)) else str(value)
