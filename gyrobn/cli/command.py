"""The command ``gyrobn``: its arguments, and what it prints.

A command reports on stdout; warnings, errors and progress go to stderr. Exit codes: 0 success;
1 failure, said in one line; 2 wrong usage; 130 interrupted.
"""

import argparse
import json
import math
import os
import re
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn import __version__
from gyrobn.manifolds import REGISTRY
from gyrobn.normalization.domains import UNSEEN
from gyrobn.numerics.checks import is_number

Report = tuple[dict[str, Any], list[str]]
"""What a command reports: values for JSON, and lines of text."""

FAILURES = (OSError, ValueError, TypeError, ImportError, MemoryError, OverflowError)
"""What bad input can raise. Anything else is a bug, and shows its traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv
        The arguments after the program's name; those of the process by default.
    """
    begin, said = time.perf_counter(), list[str]()
    options = parser().parse_args(_joined(sys.argv[1:] if argv is None else argv))
    try:
        # what overflows is off the manifold, and is reported as such
        with _shown_warnings(said), np.errstate(all="ignore"):
            _check_paths(options)
            run = import_module(f"gyrobn.cli.{COMMANDS[options.command][0]}").run
            values, lines = run(options)
        if options.json:
            seconds = round(time.perf_counter() - begin, 3)
            values = {"command": options.command, **values, "seconds": seconds, "warnings": said}
            lines = [json.dumps(_plain(values), allow_nan=False)]
        print("\n".join(map(_printable, lines)), flush=True)
        return int(not values.get("passed", True))
    except BrokenPipeError:  # the reader of the report has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FAILURES as error:
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            text = ": ".join(filter(None, [error.filename and str(error.filename), error.strerror]))
        _say("error", "; ".join([text, *getattr(error, "__notes__", ())]))
        return 1
    except KeyboardInterrupt:
        with suppress(OSError):
            print("gyrobn: interrupted", file=sys.stderr)
        return 130


def _check_paths(options: Namespace) -> None:
    """Refuse to write over a file that the command reads or writes."""
    given = [(role, getattr(options, role, None)) for role in (*READ, *WRITTEN)]
    paths = [(role, p) for role, v in given for p in (v if isinstance(v, list) else [v]) if p]
    for k, (role, path) in enumerate(paths):
        for other, before in paths[:k] if role in WRITTEN else ():
            same = os.path.realpath(path) == os.path.realpath(before)
            if same or (path.exists() and before.exists() and path.samefile(before)):
                raise ValueError(
                    f"{path} is given as {other} and as {role}, and would be replaced: name "
                    "another file"
                )


@contextmanager
def _shown_warnings(said: list[str]) -> Iterator[None]:
    """Show each warning once, on one line."""

    def show(message: Warning | str, *_: Any) -> None:
        if str(message) not in said:
            said.append(str(message))
            _say("warning", str(message))

    from gyrobn.statistics.uniqueness import FrechetWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", FrechetWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _say(kind: str, text: str) -> None:
    from tqdm import tqdm

    tqdm.write(f"gyrobn: {kind}: {_printable(' '.join(text.split()))}", file=sys.stderr)


def _printable(line: str) -> str:
    """Return a line without control characters, which may come from a file."""
    return "".join(c if c.isprintable() else "?" for c in line)


def _plain(value: Any) -> Any:
    """Return a value for JSON; NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int)) else str(value)


def progress(options: Namespace, label: str, total: int) -> Any:
    """Return a progress bar, shown if stderr is a terminal."""
    from tqdm import tqdm

    return tqdm(total=total, desc=label, disable=options.quiet or None, leave=False)


def span(values: Any, form: str = ".4g") -> str:
    """Return one number, or the range of several, as text.

    >>> span(0.5), span([2, 2], "d"), span([0.25, 0.5, 1.0])
    ('0.5', '2', '0.25 to 1 (3 values)')
    """
    v = np.asarray(values)
    low, high = format(v.min(), form), format(v.max(), form)
    return low if low == high else f"{low} to {high} ({v.size} values)"


# ---------------------------------------------------------------------- arguments

READ = "input", "model", "bias", "domains", "labels"
WRITTEN = "output", "save_model", "figure", "report"

FORMS = "--key --axis --layout --columns --header --domain-column"
"""Arguments that say how a file holds samples."""
SEVERAL = f"input {FORMS} --domains --domain-per-file"
AFFINE = "--scale --bias --eps --tol --max-iter --on-invalid --unseen"

COMMANDS = {
    "demo": (
        "demo",
        "normalize points on every geometry, print tables of mean and variance, write a figure",
        "--output --samples --seed",
    ),
    "inspect": (
        "inspect",
        "describe a model, or samples: how many are points of a geometry, their mean; "
        "without --manifold, which geometries they are points of",
        f"file {FORMS} --manifold --suggest",
    ),
    "fit": (
        "normalize",
        "find the mean and variance of samples and write them to a model",
        f"{SEVERAL} save_model --manifold {AFFINE} --coordinates --dask",
    ),
    "normalize": (
        "normalize",
        "write samples with the mean moved to the bias and the standard deviation to the scale",
        f"{SEVERAL} output --manifold --model {AFFINE} --coordinates --save-model --dask",
    ),
    "transform": (
        "normalize",
        "normalize samples with the mean and variance of a model",
        f"{SEVERAL} output --model --on-invalid --unseen --coordinates --dask",
    ),
    "inverse": (
        "normalize",
        "undo transform",
        f"{SEVERAL} output --model --on-invalid --coordinates --dask",
    ),
    "plot": (
        "plot",
        "draw at most 2000 samples before and after normalization",
        f"{SEVERAL} figure --manifold --model {AFFINE} --labels --channel",
    ),
    "selftest": (
        "selftest",
        "check every geometry on each library and device against NumPy, and time it",
        "--library --quick --report",
    ),
}
"""For each command its module, what it does, and its arguments."""


def scale(text: str) -> float | str:
    """Return a standard deviation; argparse calls it by this name."""
    return text if text == "sqrt_dim" else float(text)


def _number(text: str) -> dict[str, Any]:
    return {"type": float, "metavar": "X", "help": text}


def _path(text: str, metavar: str = "FILE", **more: Any) -> dict[str, Any]:
    return {"type": Path, "metavar": metavar, "help": text, **more}


def _flag(text: str) -> dict[str, Any]:
    return {"action": "store_true", "help": text}


ARGUMENTS: dict[str, dict[str, Any]] = {
    "file": _path("samples, or a model", "IN"),
    "input": _path("the samples; several files are one data set", "IN", nargs="+"),
    "output": _path("the file to write; it appears when it is complete", "OUT"),
    "save_model": _path("the file to write", "MODEL"),
    "figure": _path("the picture to write: .png, .svg or .pdf", "FIGURE"),
    "--key": {"metavar": "NAME", "help": "the array, if the file holds several"},
    "--axis": {"choices": ("first", "last"), "help": "of .mat: the axis that counts samples"},
    "--layout": {
        "choices": ("vector", "matrix", "upper", "strict"),
        "help": "what a row of numbers holds: a vector, a square matrix, its upper triangle, or "
        "that without the diagonal (of ones)",
    },
    "--columns": {"metavar": "1-3,5", "help": "of .csv: the columns to read"},
    "--header": {"choices": ("yes", "no"), "help": "of .csv: whether the first line holds names"},
    "--domain-column": {"metavar": "NAME", "help": "of .csv: the column with domains (or number)"},
    "--domains": _path("the domain (subject, session) of each sample: .npy, or lines of text"),
    "--domain-per-file": _flag("each file is a domain, called by its name without suffix"),
    "--model": _path("a model that fit or GyroBN.save wrote"),
    "--scale": {"type": scale, "metavar": "S", "help": "standard deviation (1), or sqrt_dim"},
    "--bias": _path("a file with the point where the mean goes (the identity)"),
    "--eps": _number("added to the variance (1e-5)"),
    "--tol": _number("tolerance of the mean, in standard deviations (8 ulp)"),
    "--max-iter": {"type": int, "metavar": "N", "help": "maximum number of iterations (64)"},
    "--on-invalid": {"choices": ("raise", "project"), "help": "what to do off the manifold"},
    "--unseen": {"choices": UNSEEN, "help": "what to do with a domain that is not in the model"},
    "--coordinates": _flag("write normal coordinates, or for inverse, read them"),
    "--save-model": _path("write the model, too"),
    "--dask": {
        "nargs": "?",
        "const": "local",
        "metavar": "ADDRESS",
        "help": "compute with Dask, on the cluster of an address or on a new one on this machine",
    },
    "--suggest": _flag("fit a curvature in two dimensions to vectors or distances"),
    "--labels": _path("what colours stand for: a label for each sample, as in --domains"),
    "--channel": {"type": int, "default": 0, "metavar": "N", "help": "which channel (0)"},
    "--output": _path("the picture (%(default)s)", default=Path("gyrobn-demo.png")),
    "--samples": {"type": int, "default": 200, "metavar": "N", "help": "points (%(default)s)"},
    "--seed": {"type": int, "default": 0, "metavar": "N", "help": "of the points (%(default)s)"},
    "--library": {
        "choices": ("numpy", "torch", "jax", "cupy", "dpnp", "torch.compile"),
        "help": "test only this one (all that are installed)",
    },
    "--quick": _flag("one instance of each geometry in float64; two on JAX"),
    "--report": _path("write a report in Markdown, to attach to an issue"),
}


def geometry_options() -> dict[str, dict[str, Any]]:
    """Return the options of geometries, each with the geometries that have it."""
    found: dict[str, dict[str, Any]] = {}
    for name, cls in REGISTRY.items():
        for key, one in cls.options().items():
            found.setdefault(key, {})[name] = one
    return found


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = argparse.ArgumentParser(
        prog="gyrobn",
        description="Riemannian batch normalization on gyrogroups: bring data on a curved space to "
        "a given mean and variance.",
        epilog="Files are .npy, .npz, .zarr, .csv, .mat, .h5 or .hdf5, with samples along the "
        "first axis. 'gyrobn COMMAND --help' lists the options of a command.",
    )
    root.add_argument("--version", action="version", version=f"gyrobn {__version__}")
    commands = root.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (_, summary, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        command.add_argument("--json", action="store_true", help="print the report as JSON")
        command.add_argument("--quiet", action="store_true", help="show no progress")
        words = arguments.split()
        needed = name != "inspect" and ("--manifold" in words) != ("--model" in words)
        for word in words:
            if word == "--manifold":
                _add_geometry(command, needed)
            else:
                required = {"required": True} if word == "--model" and needed else {}
                command.add_argument(word, **ARGUMENTS[word] | required)
    return root


def _add_geometry(command: argparse.ArgumentParser, required: bool) -> None:
    """Add the options of geometries, as their dataclasses describe them."""
    group = command.add_argument_group("geometry")
    names = [name for name in REGISTRY if name != "product"]
    group.add_argument("--manifold", choices=names, required=required, help="of the points")
    for key, having in geometry_options().items():
        words = {f": {', '.join(one.metadata.get('choices', ()))}" for one in having.values()}
        number = all(isinstance(one.default, float) for one in having.values())
        meaning = f"of {', '.join(having)}{'; '.join(sorted(words - {': '}))}"
        group.add_argument(
            f"--{key.replace('_', '-')}", type=float if number else str, metavar="X", help=meaning
        )


def _joined(words: Sequence[str]) -> list[str]:
    """Join an option and a negative number by an equals sign: some look like options themselves.

    >>> _joined(["fit", "x.npy", "--curvature", "-1e-3"])
    ['fit', 'x.npy', '--curvature=-1e-3']
    """
    joined: list[str] = []
    for word in words:
        if joined and re.match("--[^=]+$", joined[-1]) and word[0:1] == "-" and is_number(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined
