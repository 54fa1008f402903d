"""What the command line says: a report on stdout, warnings, errors and progress on stderr."""

import json
import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gyrobn.cli.progress import Progress
from gyrobn.statistics.uniqueness import FrechetWarning

__all__ = ["Console", "span"]


OPTIONS = {
    "on_invalid='project'": "--on-invalid project",
    "unseen='refit' or 'adapt'": "--unseen refit or --unseen adapt",
    "transform(X, domains=...), too; in a pipeline, by metadata routing and "
    "set_transform_request(domains=True)": "--domains, too",
    "inverse_transform(X, domains=...), too; in a pipeline, by metadata routing and "
    "set_inverse_transform_request(domains=True)": "--domains, too",
}
"""What the library says of its parameters, and what they are here."""


class Console:
    """Stdout and stderr of one command.

    Parameters
    ----------
    options
        The command's: ``command``, and ``json`` and ``quiet`` where it has them.
    """

    def __init__(self, options: Namespace) -> None:
        self._command = options.command
        self._json = getattr(options, "json", False)
        self._quiet = getattr(options, "quiet", False)
        self._bar: Progress | None = None
        self._warnings: list[str] = []

    def progress(self, label: str, total: int) -> Progress:
        """Return a bar for a run over the data."""
        self._bar = Progress(label, total, self._quiet)
        return self._bar

    def report(self, values: dict[str, Any], lines: list[str]) -> None:
        """Print the result: the values as JSON if that is asked for, otherwise the lines."""
        if self._json:
            values = {"command": self._command, **values, "warnings": self._warnings}
            print(json.dumps(_plain(values), allow_nan=False))
        else:
            print("\n".join(map(_printable, lines)))

    def error(self, error: BaseException) -> None:
        """Say on one line why the command failed."""
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        if isinstance(error, MemoryError):
            text = f"not enough memory: {text}" if text else "not enough memory"
        for parameter, option in OPTIONS.items():
            text = text.replace(parameter, option)
        self._say("error", text or type(error).__name__)

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
    """Return a line without what a file may have put into it, escape sequences of a terminal."""
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
    """Return a value as JSON can hold it; what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int)) else str(value)
