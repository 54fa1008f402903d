"""The arguments of the commands. What a command does is imported when it runs, not before."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from gyrobn import __version__
from gyrobn.manifolds import REGISTRY

__all__ = ["parse"]

READ, WRITTEN = ("input", "model", "bias", "domains", "after"), ("output", "save_model", "figure")

FILES = "Files are .npy, .npz (one array, or --key) or .zarr, with samples along the first axis."


def _names() -> list[str]:
    """Return the geometries whose sizes the samples tell; they do not tell a product's factors."""
    return [name for name in REGISTRY if name != "product"]


def _options() -> dict[str, dict[str, Any]]:
    """Return the options of geometries: of each the geometries that have it, with its field."""
    found: dict[str, dict[str, Any]] = {}
    for key in _names():
        for name, one in REGISTRY[key].options().items():
            found.setdefault(name, {})[key] = one
    return found


def _is_float(having: dict[str, Any]) -> bool:
    return all(isinstance(one.default, float) for one in having.values())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command, with ``command``, its name, and ``run``, its function."""
    parser = argparse.ArgumentParser(
        prog="gyrobn",
        description="Riemannian batch normalization on gyrogroups: bring data on a curved space to "
        "a given mean and variance.",
        epilog="'gyrobn COMMAND --help' tells more.",
    )
    parser.add_argument("--version", action="version", version=f"gyrobn {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for add in (_normalize, _fit, _transform, _inverse, _inspect, _plot, _demo, _backends):
        add(commands)
    options = parser.parse_args(_joined(sys.argv[1:] if argv is None else argv))
    usage = commands.choices[options.command]
    if hasattr(options, "manifold"):
        _check_geometry(usage, options)
    if getattr(options, "after", None) is not None:
        for name in ("scale", "eps", "tol", "max_iter", "unseen"):
            if getattr(options, name) is not None:
                usage.error(f"--{name.replace('_', '-')} and --after exclude each other")
    _check_paths(usage, options)
    return options


def _joined(argv: Sequence[str]) -> list[str]:
    """Join options and negative numbers by a sign of equality, or some would pass for options.

    >>> _joined(["fit", "x.npy", "--curvature", "-1e-3"])
    ['fit', 'x.npy', '--curvature=-1e-3']
    """
    numbers = {
        "--scale",
        *(f"--{name}" for name, having in _options().items() if _is_float(having)),
    }
    joined: list[str] = []
    for word in argv:
        if (
            joined
            and joined[-1] in ("--scale", *numbers)
            and word.startswith("-")
            and _is_number(word)
        ):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------- the commands


def _normalize(commands: Any) -> None:
    parser = _command(
        commands,
        "normalize",
        "statistics",
        "bring samples to a mean and a variance",
        "Find the mean and variance of the samples, or take those of a model, and write the "
        "samples with the mean moved to the bias and the standard deviation to the scale.",
    )
    _add_input(parser)
    _add_output(parser, "the normalized samples; it appears when it is complete")
    _add_geometry(parser, "or --model; the geometry of the points")
    _add_model(parser, required=False)
    _add_affine(parser)
    parser.add_argument("--save-model", type=Path, metavar="FILE", help="write the model there")


def _fit(commands: Any) -> None:
    parser = _command(
        commands,
        "fit",
        "statistics",
        "find mean and variance and write them to a model",
        "Find the mean and variance of the samples and write them to a file, for transform.",
    )
    _add_input(parser)
    parser.add_argument("save_model", type=Path, metavar="MODEL", help="the file to write")
    _add_geometry(parser, "the geometry of the points")
    _add_affine(parser)


def _transform(commands: Any) -> None:
    parser = _command(
        commands,
        "transform",
        "statistics",
        "normalize samples with a model",
        "Normalize samples with the mean and variance of a model, which may come from others.",
    )
    _add_input(parser)
    _add_output(parser, "the normalized samples; it appears when it is complete")
    _add_model(parser)
    _add_invalid(parser)
    _add_unseen(parser)


def _inverse(commands: Any) -> None:
    parser = _command(
        commands,
        "inverse",
        "statistics",
        "undo transform",
        "Bring normalized samples back to where they came from.",
    )
    _add_input(parser)
    _add_output(parser, "the samples as they were; it appears when it is complete")
    _add_model(parser)
    _add_invalid(parser)


def _inspect(commands: Any) -> None:
    parser = _command(
        commands,
        "inspect",
        "inspection",
        "tell what is in a file",
        "Tell how many samples of a file are points of a geometry, how they are spread and whether "
        "their mean is unique; without --manifold, of which geometries they could be points. Of a "
        "model, tell what it holds.",
    )
    _add_samples(parser, "FILE", "samples, or a model")
    _add_geometry(parser, "the geometry of the points")


def _plot(commands: Any) -> None:
    parser = _command(
        commands,
        "plot",
        "picture",
        "draw samples before and after",
        "Draw samples before and after normalization: on their surface where that is of dimension "
        "2, otherwise in the tangent space at the mean. Of many samples, some are drawn.",
    )
    _add_input(parser)
    parser.add_argument(
        "figure", type=Path, metavar="FIGURE", help="the picture, .png, .svg or .pdf"
    )
    _add_geometry(parser, "or --model; the geometry of the points")
    _add_model(parser, required=False)
    _add_affine(parser)
    parser.add_argument(
        "--after",
        type=Path,
        metavar="FILE",
        help="the normalized samples, if they are there: nothing is computed but the picture",
    )
    parser.add_argument(
        "--channel", type=_integer(0), default=0, metavar="N", help="which one, where X has several"
    )


def _demo(commands: Any) -> None:
    parser = _command(
        commands,
        "demo",
        "demonstration",
        "normalize points on every geometry, print a table, write a figure",
        "Normalize generated points on every geometry, and data that come with scikit-learn, print "
        "what became of their mean and variance, and write one figure.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("gyrobn-demo.png"),
        metavar="FIGURE",
        help="the picture (%(default)s)",
    )
    parser.add_argument(
        "--samples",
        type=_integer(1, 100_000),
        default=200,
        metavar="N",
        help="points on a geometry (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=_integer(0), default=0, metavar="N", help="of the points (%(default)s)"
    )


def _backends(commands: Any) -> None:
    parser = _command(
        commands,
        "backends",
        "backends",
        "tell what is installed, and what each geometry takes",
        "Tell which array libraries and helpers are installed, with their devices and default "
        "dtypes, and which options each geometry has.",
    )
    parser.add_argument(
        "--check", action="store_true", help="run GyroBN on every geometry and library, too"
    )


# ---------------------------------------------------------------------- shared options


def _command(
    commands: Any, name: str, module: str, summary: str, description: str
) -> argparse.ArgumentParser:
    """Add a command that is a function of a module of this package."""

    def run(options: argparse.Namespace, console: Any) -> None:
        getattr(import_module(f"gyrobn.cli.{module}"), name)(options, console)

    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(run=run)
    return parser


def _add_samples(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    parser.epilog = FILES
    parser.add_argument("input", type=Path, metavar=name, help=text)
    parser.add_argument("--key", metavar="NAME", help="the array, where the file holds several")


def _add_input(parser: argparse.ArgumentParser) -> None:
    _add_samples(parser, "IN", "the samples")
    parser.add_argument(
        "--domains",
        type=Path,
        metavar="FILE",
        help="a label for each sample (subject, session): an array, or text with a label a line",
    )


def _add_output(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("output", type=Path, metavar="OUT", help=text)


def _add_geometry(parser: argparse.ArgumentParser, text: str) -> None:
    group = parser.add_argument_group("geometry")
    group.add_argument("--manifold", choices=_names(), metavar="NAME", help=f"{text}: %(choices)s")
    for name, having in _options().items():
        number = _is_float(having)
        group.add_argument(
            f"--{name}",
            type=_number() if number else str,
            metavar="NUMBER" if number else "WORD",
            help="; ".join(f"of {key}{_choices(one)}" for key, one in having.items()),
        )


def _choices(one: Any) -> str:
    words = one.metadata.get("choices")
    return f": {', '.join(words)}" if words else ""


def _add_model(parser: argparse.ArgumentParser, required: bool = True) -> None:
    parser.add_argument(
        "--model",
        type=Path,
        required=required,
        metavar="FILE",
        help="geometry, mean and variance, as fit or GyroBN.save wrote them",
    )


def _add_affine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scale",
        type=_scale,
        metavar="S",
        help="standard deviation (1), or sqrt_dim: a variance of one per dimension",
    )
    parser.add_argument(
        "--bias", type=Path, metavar="FILE", help="where the mean goes (the identity)"
    )
    parser.add_argument(
        "--eps", type=_number(0.0), metavar="E", help="added to the variance (1e-5)"
    )
    parser.add_argument(
        "--tol", type=_number(0.0), metavar="T", help="of the mean, in standard deviations (8 ulp)"
    )
    parser.add_argument(
        "--max-iter", type=_integer(1), metavar="N", help="most iterations for the mean (64)"
    )
    _add_invalid(parser)
    _add_unseen(parser)


def _add_invalid(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-invalid",
        choices=("raise", "project"),
        help="what to do with samples off the manifold: fail (default), or move them onto it",
    )


def _add_unseen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unseen",
        choices=("error", "refit", "adapt"),
        help="what to do with a domain that the model does not know: fail (default), take mean and "
        "variance of its own samples, or move the average of the known domains towards them",
    )


# ---------------------------------------------------------------------- checks


def _check_geometry(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse parameters that the geometry has not, or values that it cannot have."""
    given = {k: v for k in _options() if (v := getattr(options, k)) is not None}
    options.parameters = given
    if getattr(options, "model", None) is not None:
        for name in (k for k in ("manifold", *given) if getattr(options, k) is not None):
            parser.error(f"--{name} and --model exclude each other: the model has a geometry")
        return
    if options.manifold is None:
        if options.command != "inspect":
            parser.error(f"--manifold is required: one of {', '.join(_names())}")
        if given:
            parser.error(f"--{next(iter(given))} needs --manifold")
        return
    geometry = REGISTRY[options.manifold].examples()[0]
    known = list(geometry.options())
    for name in given:
        if name not in known:
            has = " and ".join(f"--{k}" for k in known) or "none"
            parser.error(f"{options.manifold} has no --{name}; of such options it has {has}")
    try:
        replace(geometry, **given)
    except (ValueError, TypeError) as error:
        parser.error(str(error))


def _check_paths(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse to write over anything that the command reads or writes, but for OUT over IN."""
    seen: dict[str, str] = {}
    for role in (*READ, *WRITTEN):
        path = getattr(options, role, None)
        if path is None:
            continue
        other = seen.setdefault(os.path.realpath(path), role)
        if role not in WRITTEN or other == role:
            continue
        if (other, role) != ("input", "output"):
            parser.error(f"{path} is given twice, as {other} and {role}, and would be replaced")
        if options.key is not None:
            parser.error(f"OUT would replace {path} with all its arrays by one: name another OUT")


def _integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a converter to an integer from ``low`` to ``high``."""

    def integer(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"expected an integer {bounds}, got {value}")
        return value

    return integer


def _scale(text: str) -> float | str:
    """Return a finite number, or the name of one."""
    if text == "sqrt_dim":
        return text
    try:
        return _number()(text)
    except ValueError as error:
        message = f"expected a finite number or sqrt_dim, got {text}"
        raise argparse.ArgumentTypeError(message) from error


def _number(low: float = -math.inf) -> Callable[[str], float]:
    """Return a converter to a finite number of at least ``low``."""

    def number(text: str) -> float:
        value = float(text)
        if not low <= value < math.inf or math.isinf(value):
            bound = "" if math.isinf(low) else f" of at least {low:g}"
            raise argparse.ArgumentTypeError(f"expected a finite number{bound}, got {text}")
        return value

    return number
