"""A progress bar: one line on a terminal, redrawn in place."""

import shutil
import sys
import time
from contextlib import AbstractContextManager
from typing import Any, TextIO

INTERVAL = 0.1  # seconds between two drawings


class Progress(AbstractContextManager["Progress"]):
    """A bar on stderr: the task, the number of the pass, the part of it that is done, time left.

    ``fit: pass 3  [#####     ]  52%  0:12 left``. The time left is that of the pass, because the
    number of passes is unknown. Nothing is written if stderr is not a terminal.

    ``label`` is the task, ``total`` the number of samples per pass.

    >>> with Progress("fit", total=100) as bar:  # not a terminal: writes nothing
    ...     bar.update(50)
    """

    def __init__(
        self, label: str, total: int, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = not quiet and self._stream.isatty()
        self._label, self._total = label, total
        self._pass = self._done = 0
        self._begin = self._drawn = 0.0
        self._width = 0

    def update(self, done: int) -> None:
        """Set how many samples of the pass are done; zero, or fewer than before, is a new pass."""
        now = time.monotonic()
        if done == 0 or done < self._done:
            self._pass, self._begin, self._drawn = self._pass + 1, now, 0.0
        self._done = done
        if self._shown and (now - self._drawn >= INTERVAL or done >= self._total):
            self._drawn = now
            self._draw(now - self._begin)

    def watch(self, chunk: Any, rows: Any) -> Any:
        """Return a chunk, and note that the samples before it are done; for ``Chunks.map``."""
        self.update(int(rows[0]))
        return chunk

    def _draw(self, elapsed: float) -> None:
        part = min(1.0, self._done / self._total) if self._total else 1.0
        name = f"{self._label}: pass {self._pass}" if self._pass > 1 else self._label
        left = f"{_clock(elapsed * (1 - part) / part)} left" if part else ""
        columns = shutil.get_terminal_size().columns
        width = max(0, min(30, columns - len(name) - 26))
        bar = ("#" * round(part * width)).ljust(width)
        text = f"{name}  [{bar}] {100 * part:3.0f}%  {left}"[: max(0, columns - 1)]
        # set before the write, so that an interrupt during the write leaves nothing behind
        before, self._width = self._width, max(self._width, len(text))
        self._write("\r" + text.ljust(before))
        self._width = len(text)

    def clear(self) -> None:
        """Remove the line, so that something else can be written."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def __exit__(self, *_: object) -> None:
        self.clear()


def _clock(seconds: float) -> str:
    """Return a time as minutes and seconds, with hours if there are any.

    >>> _clock(12.3), _clock(3723)
    ('0:12', '1:02:03')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
