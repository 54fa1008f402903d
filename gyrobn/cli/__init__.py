"""The command ``gyrobn``. This file imports nothing, because ``interrupts`` must come first."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gyrobn.cli.command import main

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gyrobn.cli.command import main

    return main
