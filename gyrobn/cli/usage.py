"""Checks of the arguments of a command against each other, before anything is read."""

import argparse
import glob
import itertools
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gyrobn.cli.pipes import PIPE
from gyrobn.data.stored import SUFFIXES
from gyrobn.manifolds import REGISTRY

READ = "input", "model", "bias", "domains", "labels", "after"
WRITTEN = "output", "save_model", "figure", "report"
PIPED = "input", "output"

EXCLUSIVE = (
    *itertools.product(("scale", "eps", "tol", "max_iter", "unseen"), ("after",)),
    *itertools.combinations(("domains", "domain_column", "domain_per_file"), 2),
    ("suggest", "manifold"),
)
"""Pairs of options of which only one may be given."""


def geometries() -> list[str]:
    """Return the geometries whose sizes follow from the samples; a product's factors do not."""
    return [name for name in REGISTRY if name != "product"]


def geometry_options() -> dict[str, dict[str, Any]]:
    """Return the options of geometries; for each, the geometries that have it, with its field."""
    found: dict[str, dict[str, Any]] = {}
    for key in geometries():
        for name, one in REGISTRY[key].options().items():
            found.setdefault(name, {})[key] = one
    return found


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse arguments that do not go together; replace patterns by the files that match."""
    options.joined = False
    if hasattr(options, "manifold"):
        _check_geometry(parser, options)
    for pair in EXCLUSIVE:
        if all(_is_given(options, name) for name in pair):
            both = " and ".join(f"--{name.replace('_', '-')}" for name in pair)
            parser.error(f"{both} exclude each other")
    if isinstance(getattr(options, "input", None), list):
        _expand(parser, options)
    if _is_given(options, "format") and PIPE not in _paths(options):
        parser.error("--format is for pipes, an IN or OUT that is -: a suffix tells the format")
    _check_engine(parser, options)
    _check_paths(parser, options)


def _is_given(options: argparse.Namespace, name: str) -> bool:
    """Return whether a command has an option, and it is given."""
    value = getattr(options, name, None)
    return value is not None and value is not False


def _check_geometry(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse parameters that the geometry lacks, or values that it cannot have."""
    given = {k: v for k in geometry_options() if (v := getattr(options, k)) is not None}
    options.parameters = given
    if _is_given(options, "model"):
        for name in (k for k in ("manifold", *given) if _is_given(options, k)):
            parser.error(f"--{name} and --model exclude each other: the model has a geometry")
        return
    if options.manifold is None:
        if options.command != "inspect":
            parser.error(f"--manifold is required: one of {', '.join(geometries())}")
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


def _check_engine(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options of Dask without Dask, and two places to compute."""
    given = [name for name in ("workers", "scheduler") if _is_given(options, name)]
    if given and options.engine is None:
        parser.error(f"--{given[0]} needs --engine dask")
    if len(given) == 2:
        parser.error("--workers and --scheduler exclude each other")
    if _is_given(options, "engine") and (options.joined or PIPE in _paths(options)):
        parser.error("--engine dask takes one file IN and one file OUT")


# ---------------------------------------------------------------------- files


def _expand(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Replace patterns by files; set ``joined`` if OUT is a folder, for one file or several."""
    found: list[Path] = []
    for path in options.input:
        if path.exists() or not glob.has_magic(str(path)):
            found.append(path)
            continue
        options.joined = True
        files = sorted(map(Path, glob.glob(str(path))))
        if not files:
            raise FileNotFoundError(f"no file matches {path}")
        found += files
    options.input = found
    output = getattr(options, "output", None)
    folder = output is not None and output.is_dir() and output.suffix.lower() != ".zarr"
    options.joined |= len(found) > 1 or folder or options.domain_per_file
    if options.joined:
        _check_names(parser, options)


def _check_names(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse files that cannot be told apart by their names."""
    if PIPE in _paths(options):
        parser.error("- is one file: give files and a folder OUT, or - alone")
    output = getattr(options, "output", None)
    if output is not None and output.suffix.lower() in SUFFIXES and not output.is_dir():
        parser.error(f"OUT is a folder for several files, got {output}")
    first = _twice([os.path.realpath(path) for path in options.input])
    if first is not None:
        parser.error(f"{options.input[first]} is given twice as IN")
    per_file = options.domain_per_file
    first = _twice([path.stem if per_file else path.name for path in options.input])
    if first is not None and (per_file or hasattr(options, "output")):
        what = "domains" if per_file else "files in OUT"
        parser.error(f"two of the {what} would be called {options.input[first].name}")


def _twice(words: Sequence[str]) -> int | None:
    """Return where a word comes again."""
    return next((k for k, word in enumerate(words) if word in words[:k]), None)


def _paths(options: argparse.Namespace) -> list[Path]:
    """Return the paths of IN and OUT."""
    given = options.input if isinstance(options.input, list) else [options.input]
    return [*given, getattr(options, "output", None)]


def _check_paths(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse to write over a file that the command reads or writes."""
    seen: dict[Any, tuple[str, Path]] = {}
    for role in (*READ, *WRITTEN):
        piped = role in PIPED and hasattr(options, "input")
        if getattr(options, role, None) == PIPE and not piped:
            parser.error(f"- is a pipe, for IN and OUT only: name a file as {role}")
        for path in _files(options, role):
            for mark in _marks(path):
                other, name = seen.setdefault(mark, (role, path))
                if role not in WRITTEN or other == role:
                    continue
                same = "" if name == path else f" ({name} is the same file)"
                parser.error(
                    f"{path} is given twice, as {other} and {role}, and would be replaced{same}: "
                    "name another file"
                )


def _marks(path: Path) -> list[Any]:
    """Return what tells a file from others: where it is, and if it exists, its number there."""
    if path == PIPE:  # what is redirected into the command may be a file
        try:
            status = os.fstat(0)
        except OSError:
            return []
        return [(status.st_dev, status.st_ino)] if stat.S_ISREG(status.st_mode) else []
    try:
        status = os.stat(path)
    except OSError:
        return [os.path.realpath(path)]
    return [os.path.realpath(path), (status.st_dev, status.st_ino)]


def _files(options: argparse.Namespace, role: str) -> list[Path]:
    """Return the files that an argument names; a pipe only if it is read."""
    path = getattr(options, role, None)
    if role == "output" and path is not None and options.joined:
        return [path / one.name for one in options.input]
    paths = path if isinstance(path, list) else [path]
    return [path for path in paths if path is not None and (path != PIPE or role == "input")]
