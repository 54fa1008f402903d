"""The command ``gyrobn``.

Exit codes: 0 success; 1 failure, said in one line on stderr; 2 wrong usage; 128 + n ended by
signal n (130: Ctrl-C; 141: a closed pipe, as after ``| head``).
"""

import io
import os
import signal
import sys
import threading
from _thread import interrupt_main
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import numpy as np

from gyrobn.cli.arguments import COMMANDS, parse
from gyrobn.cli.console import Console
from gyrobn.cli.interrupts import end_at_once

FAILURES = (OSError, ValueError, TypeError, ImportError, MemoryError, OverflowError)
"""What bad input can raise. Anything else is a bug, and shows its traceback."""

BROKEN_PIPE = getattr(signal, "SIGPIPE", 13)
"""The signal of a write to a closed pipe, which Python turns into an exception."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv
        The arguments after the program's name; those of the process by default.
    """
    _open_streams()
    try:
        console = Console(Namespace(command=None))
        try:
            with _ended_by_signals():
                try:
                    options = parse(argv)
                finally:
                    sys.stdout.flush()  # write the help now, while an error can still be shown
                console = Console(options)
                # what overflows is off the manifold, and is reported as such
                with console.showing_warnings(), np.errstate(all="ignore"):
                    module = import_module(f"gyrobn.cli.{COMMANDS[options.command].module}")
                    module.run(options, console)
                sys.stdout.flush()
        except BrokenPipeError:
            raise
        except FAILURES as error:
            console.error(error)
            return 1
        return 0
    except KeyboardInterrupt as stop:  # also while an error is shown
        with suppress(OSError):
            print("gyrobn: interrupted", file=sys.stderr)
        return 128 + (stop.args[0] if isinstance(stop, _Ended) else signal.SIGINT)
    except BrokenPipeError:  # the reader of the output has stopped
        return 128 + BROKEN_PIPE
    finally:
        _forget_what_cannot_be_written()


def _open_streams() -> None:
    """Let stdout and stderr take any text, also if they are closed or cannot encode it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Ended(KeyboardInterrupt):
    """A signal to end, by its number: like Ctrl-C, it leaves time to clean up."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as Ctrl-C does, unless something else handles them.

    Ctrl-C itself is handled by Python, unless this process is the command (see ``interrupts``).
    """
    received: list[int] = []

    def end(number: int, frame: Any) -> None:
        received.append(number)
        raise _Ended(number)

    def end_again(dropped: Any) -> None:
        """Repeat a signal that came while garbage was collected: Python drops what is raised.

        What else is dropped after a signal, such as that a file was not closed, follows from it.
        """
        if isinstance(dropped.exc_value, _Ended):
            threading.Timer(0.01, interrupt_main, dropped.exc_value.args).start()
        elif not received:
            show(dropped)

    show, sys.unraisablehook = sys.unraisablehook, end_again
    ours = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
        for number in filter(None, numbers):  # Windows has no SIGHUP
            if signal.getsignal(number) in (signal.SIG_DFL, end_at_once):
                ours[number] = signal.signal(number, end)
    try:
        yield
    except Exception:
        if received:  # matplotlib turns an interrupt during its import into an ImportError
            raise _Ended(received[0]) from None
        raise
    finally:
        sys.unraisablehook = show
        for number, handler in ours.items():
            signal.signal(number, handler)


def _forget_what_cannot_be_written() -> None:
    """Drop what stdout and stderr cannot write, or Python would complain at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
