"""The command ``gyrobn``."""

from gyrobn.cli.command import main

__all__ = ["main"]
