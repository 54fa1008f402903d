"""The command ``gyrobn``.

Exit codes: 0 success; 1 failure, said in one line on stderr; 2 wrong usage; 128 + n ended by
signal n (130: Ctrl-C).
"""

import io
import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gyrobn.cli.arguments import parse
from gyrobn.cli.console import Console

__all__ = ["main"]

FAILURES = (OSError, ValueError, TypeError, ImportError, MemoryError, OverflowError)
"""What bad input can raise; anything else is a fault of this program, and shows its traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv
        The arguments after the program's name; those of the process by default.
    """
    _open_streams()
    options = parse(argv)
    console = Console(options)
    try:
        with _ended_by_signals():
            return _run(options, console)
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, _Ended) else signal.SIGINT
        print("gyrobn: interrupted", file=sys.stderr)
        return 128 + number


def _run(options: Namespace, console: Console) -> int:
    try:
        # what overflows is off its manifold, and is reported as such
        with console.showing_warnings(), np.errstate(all="ignore"):
            options.run(options, console)
            sys.stdout.flush()
    except BrokenPipeError:  # who read the report has seen enough
        _forget_stdout()
        return 1
    except FAILURES as error:
        console.error(error)
        _forget_stdout()
        return 1
    return 0


def _open_streams() -> None:
    """Let stdout and stderr take anything: closed ones nothing, others what they cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Ended(KeyboardInterrupt):
    """A signal that asks to end: like Ctrl-C, it leaves time to clean up."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as Ctrl-C does, unless something else handles them."""

    def end(number: int, frame: Any) -> None:
        raise _Ended(number)

    names = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    ours = [s for s in names if s is not None and signal.getsignal(s) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []  # only the main thread may say what a signal does
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _forget_stdout() -> None:
    """Drop what stdout still holds, if it cannot be written, or Python would complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
