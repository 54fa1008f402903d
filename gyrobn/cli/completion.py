"""The command completion: a script for a shell, which shtab writes from the parser."""

from argparse import Namespace
from pathlib import Path

from gyrobn.cli.arguments import build
from gyrobn.cli.console import Console


def run(options: Namespace, console: Console) -> None:
    """Print the script."""
    try:
        import shtab
    except ImportError as error:
        message = "completion needs shtab: install it with pip install 'gyrobn[completion]'"
        raise ImportError(message) from error
    parser, commands = build()
    for command in commands.values():
        for action in command._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(parser, shell=options.shell)
    if options.json:
        console.report({"shell": options.shell, "script": script}, [])
    else:  # as it is, with its tabs
        print(script)
