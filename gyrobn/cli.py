"""The command ``gyrobn``.

Exit codes: 0 success, 1 failure (one line on stderr says which), 2 wrong usage.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gyrobn import __version__

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv
        The arguments after the program's name; those of the process by default.
    """
    options = _parser().parse_args(argv)
    try:
        options.run(options)
    except (OSError, ValueError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"gyrobn: error: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gyrobn: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gyrobn", description="Riemannian batch normalization on gyrogroups."
    )
    parser.add_argument("--version", action="version", version=f"gyrobn {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="normalise points on every geometry, print a table, write a figure",
        description="Normalise random points on every geometry, print what became of their mean "
        "and variance, and write one figure.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument(
        "--output", type=Path, default=Path("gyrobn-demo.png"), metavar="PATH", help="the figure"
    )
    demo.add_argument(
        "--samples", type=_integer(1, 100_000), default=200, metavar="N", help="points a geometry"
    )
    demo.add_argument("--seed", type=_integer(0), default=0, metavar="N", help="of the points")
    demo.set_defaults(run=_demo)
    return parser


def _demo(options: argparse.Namespace) -> None:
    # imported here so that --version and --help need not wait for it
    from gyrobn.demo import run

    run(options.output, options.samples, options.seed)


def _integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a converter to an integer from ``low`` to ``high``."""

    def integer(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"expected an integer {bounds}, got {value}")
        return value

    return integer


if __name__ == "__main__":
    sys.exit(main())
