"""How far a run over data has come, as one line on a terminal that is drawn over and over."""

import shutil
import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

__all__ = ["Progress", "Watched"]

INTERVAL = 0.1  # seconds between two drawings


class Progress:
    r"""A bar on stderr: what is done, which pass over the data, how much of it, time left.

    ``fit: pass 3  [#####     ]  52%  0:12 left``. The time is that of the pass: how many a mean
    will need is not known before. Nothing is written where stderr is not a terminal.

    Parameters
    ----------
    label
        What is done.
    total
        Number of samples in a pass.
    quiet
        Write nothing.
    stream
        Where to write, stderr by default.

    Examples
    --------
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
        """Say how many samples of the pass are done; none, or fewer than before: another pass."""
        now = time.monotonic()
        if done == 0 or done < self._done:
            self._pass, self._begin, self._drawn = self._pass + 1, now, 0.0
        self._done = done
        if self._shown and (now - self._drawn >= INTERVAL or done >= self._total):
            self._drawn = now
            self._draw(now - self._begin)

    def _draw(self, elapsed: float) -> None:
        part = min(1.0, self._done / self._total) if self._total else 1.0
        name = f"{self._label}: pass {self._pass}" if self._pass > 1 else self._label
        left = f"{_clock(elapsed * (1 - part) / part)} left" if part else ""
        columns = shutil.get_terminal_size().columns
        width = max(0, min(30, columns - len(name) - 26))
        bar = ("#" * round(part * width)).ljust(width)
        text = f"{name}  [{bar}] {100 * part:3.0f}%  {left}"[: max(0, columns - 1)]
        # told before it is written: whoever interrupts in between leaves nothing behind
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()


class Watched:
    """An array on disk whose every read is told to a :class:`Progress`.

    Parameters
    ----------
    source
        Anything with ``shape``, ``dtype`` and slices along the first axis.
    bar
        Is told where each slice begins: the samples before it are done when it is wanted.

    Examples
    --------
    >>> import numpy as np
    >>> with Progress("fit", total=4) as bar:
    ...     x = Watched(np.arange(4.0), bar)
    ...     print(x.shape, x[1:3])
    (4,) [1. 2.]
    """

    def __init__(self, source: Any, bar: Progress) -> None:
        self.shape, self.dtype = source.shape, source.dtype
        self.chunks = getattr(source, "chunks", None)
        self._source, self._bar = source, bar

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Any:
        """Read samples of the source."""
        self._bar.update(rows.indices(len(self))[0])
        return self._source[rows]


def _clock(seconds: float) -> str:
    """Return a time as minutes and seconds, with hours where there are some.

    >>> _clock(12.3), _clock(3723)
    ('0:12', '1:02:03')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
