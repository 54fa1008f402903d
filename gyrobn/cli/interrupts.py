"""Ctrl-C while the command ``gyrobn`` starts: one line and an exit code, no traceback.

Importing NumPy takes a while, so the ``__init__`` of the package imports this module first, which
imports almost nothing itself.
"""

import os
import signal
import sys


def watch() -> None:
    """Let Ctrl-C end this process at once, if it is the command and nothing else handles it."""
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)


def end_at_once(number: int, frame: object) -> None:
    """End the process; a module that is being imported could catch or show an exception."""
    try:
        os.write(2, b"gyrobn: interrupted\n")
    finally:  # even if stderr is closed
        os._exit(128 + number)


def _is_command() -> bool:
    """Return whether this process runs the script ``gyrobn`` or ``-m gyrobn``."""
    words = sys.orig_argv[-len(getattr(sys, "argv", ())) :]  # the program, then its arguments
    name = os.path.basename(words[0]) if words else ""
    return name.removeprefix("-m").removesuffix(".exe") == "gyrobn"
