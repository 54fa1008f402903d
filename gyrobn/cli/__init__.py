"""The command ``gyrobn``. This file imports nothing, because ``interrupts`` must come first."""

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: see :func:`gyrobn.cli.command.main`."""
    from gyrobn.cli.command import main as run

    return run(argv)
