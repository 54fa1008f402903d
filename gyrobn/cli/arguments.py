"""The arguments of the commands. What a command does is imported when it runs, not before."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gyrobn import __version__
from gyrobn.cli.pipes import FORMATS
from gyrobn.cli.usage import check, geometries, geometry_options
from gyrobn.data.layouts import Layout
from gyrobn.data.matlab import AXES
from gyrobn.data.tables import HEADERS
from gyrobn.normalization.domains import UNSEEN
from gyrobn.numerics.checks import check_number, is_number

FILES = (
    "Files are .npy, .npz (one array, or --key) or .zarr, with samples along the first axis; "
    "tables (.csv, .tsv, .parquet) with one sample per row; or .mat files of MATLAB. A - is a pipe."
)


def _is_float(having: dict[str, Any]) -> bool:
    return all(isinstance(one.default, float) for one in having.values())


def _number(kind: type[int] | type[float], *bounds: float) -> Callable[[str], Any]:
    """Return a converter of a word for argparse, to a number within bounds."""

    def convert(text: str) -> Any:
        value = kind(text)
        try:
            check_number("", value, *bounds)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).strip()) from error
        return value

    convert.__name__ = kind.__name__  # argparse explains a ValueError by this name
    return convert


def _scale(text: str) -> float | str:
    """Return a finite number that is not negative, or the name of one."""
    if text == "sqrt_dim":
        return text
    try:
        return check_number("scale", float(text), 0.0)
    except ValueError as error:
        message = f"expected a finite number of at least 0 or sqrt_dim, got {text}"
        raise argparse.ArgumentTypeError(message) from error


def _layout(text: str) -> Layout:
    try:
        return Layout.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


NUMBER, NOT_NEGATIVE, POSITIVE_INTEGER = _number(float), _number(float, 0.0), _number(int, 1)


# ---------------------------------------------------------------------- tables

READ = "--key --axis --layout --header --domain-column --format"
"""Arguments that say how a file holds samples."""
INPUT = f"input {READ} --domains"
"""Arguments of the commands that read samples."""
SEVERAL = f"{INPUT} --domain-per-file"
"""Those of the commands that read several files."""
AFFINE = "--scale --bias --eps --tol --max-iter --on-invalid --unseen"
"""Arguments that are parameters of GyroBN."""


class _Command(NamedTuple):
    """A command: the module with its ``run``, its texts, and the names of its arguments."""

    module: str
    summary: str
    description: str
    arguments: str
    changes: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    """What differs from :data:`ARGUMENTS`, by name."""


OPTIONAL: dict[str, Any] = {"required": False}
ONE = {"input": {"help": "the samples", "nargs": None}}
EITHER = {"--manifold": {"help": "or --model; the geometry of the points"}, "--model": OPTIONAL}

COMMANDS = {
    "normalize": _Command(
        "statistics",
        "bring samples to a mean and a variance",
        "Find the mean and variance of the samples, or take those of a model, and write the "
        "samples with the mean moved to the bias and the standard deviation to the scale.",
        f"{SEVERAL} output --manifold --model {AFFINE} --coordinates --save-model --engine "
        "--workers --scheduler",
        EITHER,
    ),
    "fit": _Command(
        "statistics",
        "find mean and variance and write them to a model",
        "Find the mean and variance of the samples and write them to a file, for transform.",
        f"{SEVERAL} save_model --manifold {AFFINE} --coordinates",
    ),
    "transform": _Command(
        "statistics",
        "normalize samples with a model",
        "Normalize samples with the mean and variance of a model, which may come from others.",
        f"{SEVERAL} output --model --on-invalid --unseen --coordinates",
    ),
    "inverse": _Command(
        "statistics",
        "undo transform",
        "Bring normalized samples back to where they came from.",
        f"{SEVERAL} output --model --on-invalid --coordinates",
        {
            "output": {"help": "the samples as they were; it appears when it is complete"},
            "--coordinates": {"help": "IN holds coordinates, as --coordinates of transform wrote"},
        },
    ),
    "inspect": _Command(
        "inspection",
        "describe a file",
        "Describe a model, or samples: how many are points of a geometry, how they are spread and "
        "whether their mean is unique; without --manifold, which geometries they are points of.",
        f"input {READ} --suggest --manifold",
        {"input": {"metavar": "FILE", "help": "samples, or a model", "nargs": None}},
    ),
    "plot": _Command(
        "picture",
        "draw samples before and after",
        "Draw samples before and after normalization: on their surface if that has dimension "
        "2, otherwise in the tangent space at the mean. At most 2000 samples are drawn. Colours "
        "are those of --labels, else of the domains.",
        f"{INPUT} figure --manifold --model {AFFINE} --labels --after --channel",
        EITHER | ONE,
    ),
    "demo": _Command(
        "demo",
        "normalize points on every geometry, print a table, write a figure",
        "Normalize generated points on every geometry, and data that come with scikit-learn, print "
        "their mean and variance before and after, and write one figure.",
        "--output --samples --seed",
    ),
    "backends": _Command(
        "backends",
        "list what is installed, and the options of each geometry",
        "List the installed array libraries with their devices and default dtypes, the other "
        "packages, and the options of each geometry.",
        "--check",
    ),
    "completion": _Command(
        "completion",
        "print a script that completes commands in a shell",
        "Print a script that lets a shell complete commands, options and files. It needs shtab.",
        "shell",
    ),
    "selftest": _Command(
        "selftest",
        "check every geometry on each library and device against NumPy",
        "Check operations, laws, means, variances and gradients of every geometry on each library "
        "and device (torch, JAX, CuPy, dpnp; CPU and GPU) against NumPy in float64, and time them. "
        "The exit code is 1 if anything is off.",
        "--library --quick --report",
    ),
}


def _value(convert: Callable[[str], Any], metavar: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": convert, "metavar": metavar, "help": text, **more}


_path = partial(_value, Path)

ARGUMENTS: dict[str, dict[str, Any]] = {
    "input": _path(
        "IN", "the samples; several files, or a pattern in quotes, are one data set", nargs="+"
    ),
    "output": _path(
        "OUT",
        "the normalized samples; it appears when it is complete. For several files, a folder, "
        "where they keep their names",
    ),
    "save_model": _path("MODEL", "the file to write"),
    "figure": _path("FIGURE", "the picture, .png, .svg or .pdf"),
    "--key": {"metavar": "NAME", "help": "the array or variable, if the file holds several"},
    "--axis": {"choices": AXES, "help": "of a .mat file: the axis that counts the samples"},
    "--layout": _value(
        _layout,
        "FORM",
        "of a table: what a row holds if it is no vector; 4x4, a matrix row by row; 4x4:columns, "
        "column by column; upper or lower, a triangle of a symmetric matrix, row by row",
    ),
    "--header": {"choices": HEADERS, "help": "of .csv, .tsv: whether the first line holds names"},
    "--domain-column": {
        "metavar": "NAME",
        "help": "of a table: the column with a label for each sample (subject, session)",
    },
    "--format": {"choices": FORMATS, "help": "of what comes or goes through a pipe (npy)"},
    "--domains": _path(
        "FILE", "a label for each sample (subject, session): an array, or one label per line"
    ),
    "--domain-per-file": {
        "action": "store_true",
        "help": "each file is a domain, called by its name without the suffix",
    },
    "--manifold": {"metavar": "NAME", "help": "the geometry of the points"},
    "--model": _path(
        "FILE", "geometry, mean and variance, as fit or GyroBN.save wrote them", required=True
    ),
    "--scale": _value(
        _scale, "S", "standard deviation (1), or sqrt_dim: a variance of one per dimension"
    ),
    "--bias": _path("FILE", "where the mean goes (the identity)"),
    "--eps": _value(NOT_NEGATIVE, "E", "added to the variance (1e-5)"),
    "--tol": _value(NOT_NEGATIVE, "T", "of the mean, in standard deviations (8 ulp)"),
    "--max-iter": _value(POSITIVE_INTEGER, "N", "most iterations for the mean (64)"),
    "--on-invalid": {
        "choices": ("raise", "project"),
        "help": "what to do with samples off the manifold: fail (default), or move them onto it",
    },
    "--unseen": {
        "choices": UNSEEN,
        "help": "what to do with a domain that the model does not know: fail (default), take mean "
        "and variance of its own samples, move the average of the known domains towards them, or "
        "move it sample by sample, in their order",
    },
    "--coordinates": {
        "action": "store_true",
        "help": "write normal coordinates, one row per sample: features for a classifier",
    },
    "--suggest": {
        "action": "store_true",
        "help": "fit a curvature in two dimensions to vectors, or to a matrix of distances",
    },
    "--save-model": _path("FILE", "write the model there"),
    "--engine": {
        "choices": ("dask",),
        "help": "compute with Dask, block by block and in parallel: .npy and .zarr files",
    },
    "--workers": _value(
        POSITIVE_INTEGER, "N", "processes that Dask starts here (threads by default)"
    ),
    "--scheduler": {
        "metavar": "ADDRESS",
        "help": "a Dask cluster that runs, such as tcp://host:8786; it must see the same files",
    },
    "--labels": _path(
        "FILE",
        "what colours stand for (classes): a label for each sample, as in --domains. Labels do not "
        "change the normalization",
    ),
    "--after": _path("FILE", "the normalized samples, if they exist: only the picture is computed"),
    "--channel": _value(_number(int, 0), "N", "which one, if X has several", default=0),
    "--output": _path("FIGURE", "the picture (%(default)s)", default=Path("gyrobn-demo.png")),
    "--samples": _value(
        _number(int, 1, 100_000), "N", "points on a geometry (%(default)s)", default=200
    ),
    "--seed": _value(_number(int, 0), "N", "of the points (%(default)s)", default=0),
    "shell": {"choices": ("bash", "zsh", "fish"), "help": "bash, zsh or fish"},
    "--check": {"action": "store_true", "help": "run GyroBN on every geometry and library, too"},
    "--library": {
        "choices": ("numpy", "torch", "jax", "cupy", "dpnp", "torch.compile"),
        "help": "test only this one (all that are installed)",
    },
    "--quick": {
        "action": "store_true",
        "help": "one instance per geometry, in float64; two on JAX, none with torch.compile",
    },
    "--report": _path("FILE", "write a report in Markdown there, to attach to an issue"),
}


# ---------------------------------------------------------------------- parsing


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command, with its name as ``command``."""
    parser, commands = build()
    words = sys.argv[1:] if argv is None else argv
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    options = parser.parse_args(_joined(words))
    check(commands[options.command], options)
    return options


def build() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and those of the commands by name."""
    parser = argparse.ArgumentParser(
        prog="gyrobn",
        description="Riemannian batch normalization on gyrogroups: bring data on a curved space to "
        "a given mean and variance.",
        epilog="'gyrobn COMMAND --help' tells more.",
    )
    parser.add_argument("--version", action="version", version=f"gyrobn {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        _add(commands, name, command)
    return parser, commands.choices


def _add(commands: Any, name: str, command: _Command) -> None:
    """Add the parser of a command."""
    parser = commands.add_parser(name, help=command.summary, description=command.description)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    usage = ["%(prog)s [options]"]  # one line, because it stands before each error
    for word in command.arguments.split():
        about = ARGUMENTS[word] | command.changes.get(word, {})
        if word == "input":
            parser.epilog = FILES
        if word == "--manifold":
            _add_geometry(parser, about)
            continue
        action = parser.add_argument(word, **about)
        if action.required:
            value = action.metavar or action.dest
            usage += [word] * word.startswith("--")
            usage.append(f"{value} [{value} ...]" if action.nargs == "+" else value)
    parser.usage = " ".join(usage)


def _add_geometry(parser: argparse.ArgumentParser, about: dict[str, Any]) -> None:
    """Add the option for the geometry, and those that the registry knows."""
    group = parser.add_argument_group("geometry")
    group.add_argument(
        "--manifold", **about | {"choices": geometries(), "help": f"{about['help']}: %(choices)s"}
    )
    for name, having in geometry_options().items():
        number = _is_float(having)
        group.add_argument(
            f"--{name}",
            type=NUMBER if number else str,
            metavar="NUMBER" if number else "WORD",
            help="; ".join(_meanings(having)),
        )


def _meanings(having: dict[str, Any]) -> Iterator[str]:
    """Yield what an option means: once per group of geometries that take the same values."""
    groups: dict[str, list[str]] = {}
    for geometry, field in having.items():
        words = field.metadata.get("choices")
        groups.setdefault(f": {', '.join(words)}" if words else "", []).append(geometry)
    for words, names in groups.items():
        yield f"of {', '.join(names)}{words}"


def _joined(argv: Sequence[str]) -> list[str]:
    """Join an option and a negative number by an equals sign: some look like options themselves.

    >>> _joined(["fit", "x.npy", "--curvature", "-1e-3"])
    ['fit', 'x.npy', '--curvature=-1e-3']
    """
    numbers = {"--scale", *(f"--{name}" for name, h in geometry_options().items() if _is_float(h))}
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] in numbers and word.startswith("-") and is_number(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined
