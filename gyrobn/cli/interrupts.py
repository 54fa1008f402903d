"""Ctrl-C while the command ``gyrobn`` starts: one line and an exit code, no traceback.

Importing NumPy takes a while, and to import anything of a package is to run the package's
``__init__`` first. So this is the first thing that it imports, and imports next to nothing itself.
"""

import os
import signal
import sys

__all__ = ["end_at_once", "watch"]


def watch() -> None:
    """Let Ctrl-C end this process at once, if it is the command and nothing else handles it."""
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)


def end_at_once(number: int, frame: object) -> None:
    """End the process. An exception could be lost, or shown, by what is being imported."""
    try:
        os.write(2, b"gyrobn: interrupted\n")
    finally:  # even where stderr is closed
        os._exit(128 + number)


def _is_command() -> bool:
    """Tell whether Python was told to run ``gyrobn``, the script or ``-m gyrobn``."""
    words = sys.orig_argv[-len(getattr(sys, "argv", ())) :]  # the program, then its arguments
    name = os.path.basename(words[0]) if words else ""
    return name.removeprefix("-m").removesuffix(".exe") == "gyrobn"
