"""The command ``gyrobn``: its arguments, and what it prints.

A command returns the values that it reports: ``--json`` prints them as JSON, and otherwise each
stands on a line of its own. The report goes to stdout; warnings, errors and progress go to stderr.
Exit codes: 0 success; 1 failure, reported in one line; 2 wrong usage; 130 interrupted.
"""

import json
import os
import sys
import time
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gyrobn import __version__
from gyrobn.manifolds import REGISTRY
from gyrobn.normalization.domains import UNSEEN
from gyrobn.numerics.checks import is_number
from gyrobn.statistics.uniqueness import FrechetWarning

FAILURES = (OSError, ValueError, TypeError, ImportError, MemoryError, OverflowError)
"""What bad input can raise. Anything else is a bug, and shows its traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv
        The arguments after the program's name; those of the process by default.
    """
    begin, shown = time.perf_counter(), list[str]()
    options = parser().parse_args(_joined(sys.argv[1:] if argv is None else argv))
    try:
        # what overflows is off the manifold, and is reported as such
        with _show_warnings(shown), np.errstate(all="ignore"):
            _check_paths(options)
            module, _, _ = COMMANDS[options.command]
            values = import_module(f"gyrobn.cli.{module}").run(options)
        if options.json:
            seconds = round(time.perf_counter() - begin, 3)
            values = {"command": options.command, **values, "seconds": seconds, "warnings": shown}
            lines = [_as_json(values)]
        else:
            lines = as_text(values)
        print("\n".join(map(_printable, lines)).strip("\n"), flush=True)
        return int(not values.get("passed", True))
    except BrokenPipeError:  # the reader of the report has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FAILURES as error:
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        _print_error("error", "; ".join([text, *getattr(error, "__notes__", ())]))
    except KeyboardInterrupt:
        print("gyrobn: interrupted", file=sys.stderr)
        return 130
    return 1


def _check_paths(options: Namespace) -> None:
    """Refuse to write over a file that the command reads or writes."""
    earlier = dict[Any, str]()
    for role in (*READ, *WRITTEN):
        given = getattr(options, role) or []
        for path in given if isinstance(given, list) else [given]:
            file = path.resolve()
            if path.exists():
                file = path.stat().st_dev, path.stat().st_ino
            if role in WRITTEN and file in earlier:
                raise ValueError(
                    f"{path} is given as {earlier[file]} and as {role}, and would be replaced: "
                    "name another file"
                )
            earlier[file] = role


@contextmanager
def _show_warnings(shown: list[str]) -> Iterator[None]:
    """Show each warning once, on one line."""

    def show(message: Warning | str, *_: Any) -> None:
        if str(message) not in shown:
            shown.append(str(message))
            _print_error("warning", str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", FrechetWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _print_error(kind: str, text: str) -> None:
    from tqdm import tqdm

    tqdm.write(f"gyrobn: {kind}: {_printable(' '.join(text.split()))}", file=sys.stderr)


def progress(options: Namespace, label: str, items: Any = None, total: int | None = None) -> Any:
    """Return the items with a progress bar, which is shown if stderr is a terminal."""
    from tqdm import tqdm

    return tqdm(items, desc=label, total=total, disable=options.quiet or None, leave=False)


# ---------------------------------------------------------------------- reports


def as_text(values: dict[str, Any]) -> list[str]:
    """Return the values as lines of text; a list of dictionaries is a table.

    >>> print(*as_text({"mean_distance": 0.25, "model": None, "shape": (60, 2)}), sep="\\n")
    mean distance         0.25
    shape                 (60, 2)
    """
    lines = list[str]()
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += ["", *_table(value), ""]
        elif value is not None:
            lines.append(f"{name.replace('_', ' '):20}  {span(value)}".rstrip())
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as a table, with each word of a heading on a line of its own."""
    words = [name.split("_") for name in rows[0]]
    most = max(map(len, words))
    columns = [
        [*[""] * (most - len(head)), *head, *(span(row[name]) for row in rows)]
        for name, head in zip(rows[0], words, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(map(str.ljust, line, widths)).rstrip() for line in zip(*columns, strict=True)
    ]
    return [*lines[:most], "-" * max(map(len, lines)), *lines[most:]]


def span(value: Any) -> str:
    """Return a value as text; of several numbers their range.

    >>> span(0.5), span([2, 2]), span([0.25, 0.5, 1.0]), span([True, False]), span(["a", "b"])
    ('0.5', '2', '0.25 to 1 (3 values)', 'no', 'a, b')
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biufU" or (isinstance(value, tuple) and array.dtype.kind == "i"):
        return "" if value is None else str(value)
    if not array.size:
        return "none"
    if array.dtype.kind == "b":
        return "yes" if array.all() else "no"
    if array.dtype.kind == "U":
        return ", ".join(array.ravel()[:10]) + ", …" * (array.size > 10)
    form = ".4g" if array.dtype.kind == "f" else "d"
    low, high = format(array.min(), form), format(array.max(), form)
    return low if low == high else f"{low} to {high} ({array.size} values)"


def _printable(line: str) -> str:
    """Return a line without control characters, which may come from a file."""
    return "".join(c if c.isprintable() else "?" for c in line)


def _as_json(values: Any) -> str:
    """Return JSON; NaN and infinity become null."""
    text = json.dumps(values, default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v))
    return json.dumps(json.loads(text, parse_constant=lambda _: None))


# ---------------------------------------------------------------------- arguments

READ = "input", "model", "bias", "domains", "labels"
WRITTEN = "out", "save_model", "figure", "report"

FORMS = "--key --axis --layout --columns --header --domain-column"
"""Arguments that say how a file holds samples."""
SEVERAL = f"input {FORMS} --domains --domain-per-file"
AFFINE = "--scale --bias --reference --eps --tol --max-iter --on-invalid --unseen"
EXCLUSIVE = ("--manifold", "--model"), ("--domains", "--domain-column", "--domain-per-file")
"""Arguments of which a command takes one."""

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
        "compute the mean and variance of samples and write them to a model",
        f"{SEVERAL} save_model --manifold {AFFINE} --coordinates --dask",
    ),
    "normalize": (
        "normalize",
        "write samples with the mean moved to the bias and the standard deviation to the scale",
        f"{SEVERAL} out --manifold --model {AFFINE} --coordinates --save-model --dask",
    ),
    "transform": (
        "normalize",
        "normalize samples with the mean and variance of a model",
        f"{SEVERAL} out --model --on-invalid --unseen --coordinates --dask",
    ),
    "inverse": (
        "normalize",
        "undo transform",
        f"{SEVERAL} out --model --on-invalid --coordinates --dask",
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
    return text if text in ("sqrt_dim", "none") else float(text)


def _typed(kind: Any, text: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "help": text, **more}


def _choice(text: str, *choices: str) -> dict[str, Any]:
    return {"choices": choices, "help": text}


def _flag(text: str) -> dict[str, Any]:
    return {"action": "store_true", "help": text}


ARGUMENTS: dict[str, dict[str, Any]] = {
    "file": _typed(Path, "samples, or a model", metavar="IN"),
    "input": _typed(Path, "the samples; several files are one data set", metavar="IN", nargs="+"),
    "out": _typed(Path, "the file to write; it appears when it is complete", metavar="OUT"),
    "save_model": _typed(Path, "the file to write", metavar="MODEL"),
    "figure": _typed(Path, "the picture to write: .png, .svg or .pdf", metavar="FIGURE"),
    "--key": _typed(str, "the array, if the file holds several"),
    "--axis": _choice("of .mat: the axis that counts samples", "first", "last"),
    "--layout": _choice(
        "what a row of numbers holds: a vector, a square matrix, its upper triangle, or that "
        "without the diagonal (of ones)",
        *("vector", "matrix", "upper", "strict"),
    ),
    "--columns": _typed(str, "of .csv: the columns to read, such as 1-3,5"),
    "--header": _choice("of .csv: whether the first line holds names", "yes", "no"),
    "--domain-column": _typed(str, "of .csv: the column with domains (or number)"),
    "--domains": _typed(
        Path, "the domain (subject, session) of each sample: .npy, or lines of text"
    ),
    "--domain-per-file": _flag("each file is a domain, called by its name without suffix"),
    "--manifold": {"choices": REGISTRY, "help": "the geometry of the points"},
    "--model": _typed(Path, "a model that fit or GyroBN.save wrote"),
    "--scale": _typed(scale, "standard deviation (1), sqrt_dim, or none to centre only"),
    "--bias": _typed(Path, "a file with the point where the mean goes (the identity)"),
    "--reference": _typed(
        str, "see the geometry from the mean (fit), or from the point in a file, not the identity"
    ),
    "--eps": _typed(float, "added to the variance (1e-5)"),
    "--tol": _typed(float, "tolerance of the mean, in standard deviations (8 ulp)"),
    "--max-iter": _typed(int, "maximum number of iterations (64)"),
    "--on-invalid": _choice("what to do off the manifold", "raise", "project", "drop"),
    "--unseen": _choice("what to do with a domain that is not in the model", *UNSEEN),
    "--coordinates": _flag("write normal coordinates, or for inverse, read them")
    | {"action": "store_const", "const": "coordinates", "dest": "output"},
    "--save-model": _typed(Path, "write the model, too"),
    "--dask": _typed(
        str,
        "compute with Dask, on the cluster of an address or on a new one on this machine",
        nargs="?",
        const="local",
    ),
    "--suggest": _flag("fit a curvature in two dimensions to vectors or distances"),
    "--labels": _typed(Path, "what colours stand for: a label for each sample"),
    "--channel": _typed(int, "which channel (0)", default=0),
    "--output": _typed(Path, "the picture (gyrobn-demo.png)", dest="out"),
    "--samples": _typed(int, "points (%(default)s)", default=200),
    "--seed": _typed(int, "of the points (%(default)s)", default=0),
    "--library": _choice(
        "test only this one (all that are installed)",
        *("numpy", "torch", "jax", "cupy", "dpnp", "mlx", "torch.compile"),
    ),
    "--quick": _flag(
        "one instance of each geometry in float64; on what compiles only if asked for"
    ),
    "--report": _typed(Path, "write a report in Markdown, to attach to an issue"),
}


def geometry_options() -> dict[str, dict[str, Any]]:
    """Return the options of geometries, each with the geometries that have it."""
    found: dict[str, dict[str, Any]] = {}
    for name, cls in REGISTRY.items():
        for key, one in cls.options().items():
            found.setdefault(key, {})[name] = one
    return found


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report wrong usage in one line, too."""
        self.exit(2, f"gyrobn: error: {message}; see {self.prog} --help\n")


def parser() -> ArgumentParser:
    """Return the parser of the command line."""
    root = _Parser(
        prog="gyrobn",
        description="Riemannian batch normalization on gyrogroups: bring data on a curved space to "
        "a given mean and variance.",
        epilog="Files are .npy, .npz, .zarr, .csv, .mat, .h5 or .hdf5, with samples along the "
        "first axis. 'gyrobn COMMAND --help' lists the options of a command.",
    )
    root.add_argument("--version", action="version", version=f"gyrobn {__version__}")
    options = geometry_options()
    every = [*ARGUMENTS, *options]  # so that all commands have all
    root.set_defaults(**{word.strip("-").replace("-", "_"): None for word in every})
    commands = root.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, (_, summary, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        command.add_argument("--json", action="store_true", help="print the report as JSON")
        command.add_argument("--quiet", action="store_true", help="show no progress")
        groups = dict[Any, Any]()
        for word in arguments.split():
            kind = next((kind for kind in EXCLUSIVE if word in kind), None)
            if kind and kind not in groups:
                needed = "--model" in kind and name != "inspect"
                groups[kind] = command.add_mutually_exclusive_group(required=needed)
            groups.get(kind, command).add_argument(word, **ARGUMENTS[word])
        for key, having in options.items() if "--manifold" in arguments else ():
            each = {of: one.metadata.get("choices", (one.default,)) for of, one in having.items()}
            text = "; ".join(f"of {of}: {', '.join(map(str, each[of]))}" for of in each)
            command.add_argument(f"--{key}", **_typed(type(next(iter(each.values()))[0]), text))
    return root


def _joined(words: Sequence[str]) -> list[str]:
    """Join an option and a negative number by an equals sign: some look like options themselves.

    >>> _joined(["fit", "x.npy", "--curvature", "-1e-3"])
    ['fit', 'x.npy', '--curvature=-1e-3']
    """
    joined = [""]
    for word in words:
        if joined[-1].startswith("--") and word.startswith("-") and is_number(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined[1:]
