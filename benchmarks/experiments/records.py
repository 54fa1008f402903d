"""Runs of an experiment: which are done, which are left, and where their results are kept.

An experiment is a list of cells: dictionaries of settings, the seed among them. The results are
lines of JSON in ``results/NAME.jsonl``, one per finished cell, appended as soon as it ends. So a
killed run loses one cell at most, and starting it again does the cells that are left.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("gyrobn", "torch", "numpy", "scikit-learn")

Cell = dict[str, Any]
Tick = Callable[[float], None]
"""Called during a cell with the fraction of it that is done."""


def read(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the finished cells of an experiment, one per group of settings."""
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    done = {}
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # a kill in the middle of a line leaves half of it
            continue
        done[key(row["settings"])] = row
    return list(done.values())


def key(settings: Cell) -> str:
    """Return what identifies a cell."""
    return json.dumps(settings, sort_keys=True)


def run(
    name: str,
    cells: Iterable[Cell],
    work: Callable[[Cell, Tick], dict[str, Any]],
    part: tuple[int, int] = (1, 1),
    folder: Path = RESULTS,
) -> None:
    """Run the cells that are not done yet, and append each result; ``part`` k of n takes every
    n-th cell, done or not, so that processes started at any time share the work.
    """
    done = {key(row["settings"]) for row in read(name, folder)}
    left = [cell for cell in list(cells)[part[0] - 1 :: part[1]] if key(cell) not in done]
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{name}: {len(left)} cells to run, {len(done)} done", flush=True)
    with tqdm(desc=name, total=1000 * len(left), disable=None) as bar:
        for number, cell in enumerate(left):
            begin, cpu = time.perf_counter(), time.process_time()

            def tick(fraction: float, number: int = number) -> None:
                bar.update(round(1000 * (number + min(fraction, 1.0))) - bar.n)

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = work(cell, tick)
            result["warnings"] = len(caught)
            row = {
                "settings": cell,
                "result": result,
                "seconds": round(time.perf_counter() - begin, 2),
                "cpu_seconds": round(time.process_time() - cpu, 2),
                "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "versions": versions(),
            }
            append(folder / f"{name}.jsonl", row)
            bar.clear()
            shown = {k: v for k, v in result.items() if isinstance(v, int | float)}
            print(f"{number + 1}/{len(left)} {cell} {shown} {row['seconds']} s", flush=True)


def append(path: Path, row: dict[str, Any]) -> None:
    """Append one line in one write, so that lines of several processes do not mix."""
    data = json.dumps(row, ensure_ascii=False) + "\n"
    if path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size:
        data = "\n" + data  # the line before was cut off by a kill
    with path.open("ab", buffering=0) as file:
        file.write(data.encode())
        os.fsync(file.fileno())


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, and the commit where there is one."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {"python": platform.python_version(), **found, "commit": commit}


def arguments(description: str, **choices: Iterable[str]) -> argparse.ArgumentParser:
    """Return a parser with the options of every experiment, and a filter per setting."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of data")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument(
        "--part", default="1/1", help="k/n: run every n-th cell, for n processes side by side"
    )
    for name, values in choices.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", nargs="+", choices=list(values), help=f"only this {name}"
        )
    return parser


def command(
    name: str,
    description: str | None,
    cells: Callable[[int], Iterable[Cell]],
    work: Callable[[Cell, Tick, Path], dict[str, Any]],
    **choices: Iterable[str],
) -> None:
    """Run the cells of an experiment that the command line asks for, on one thread."""
    args = arguments(description or "", **choices).parse_args()
    torch.set_num_threads(1)
    folder, args.data = args.data, args.data_set
    wanted = chosen(cells(args.seeds), args)
    part = part_of(args.part)
    run(name, wanted, lambda cell, tick: work(cell, tick, folder), part, args.results)


def part_of(text: str) -> tuple[int, int]:
    """Return k and n of ``k/n``."""
    k, _, n = text.partition("/")
    if not (k.isdigit() and n.isdigit() and 1 <= int(k) <= int(n)):
        raise SystemExit(f"--part must be k/n with 1 <= k <= n, for example 1/2, got {text!r}")
    return int(k), int(n)


def chosen(cells: Iterable[Cell], args: argparse.Namespace) -> Iterator[Cell]:
    """Return the cells that the filters of the command line let through."""
    for cell in cells:
        given = {name: getattr(args, name, None) for name in cell}
        if all(wanted is None or cell[name] in wanted for name, wanted in given.items()):
            yield cell
