"""The house: the public names stay, and docs/design.md shows the imports and calls as they are."""

import ast
import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import gyrobn
import gyrobn.torch
from gyrobn.cli import main
from gyrobn.statistics.newton import solve

ROOT = Path(gyrobn.__file__).parent
DESIGN = ROOT.parent / "docs" / "design.md"

NAMES = [
    "Euclidean",
    "Stereographic",
    "PoincareBall",
    "ProjectedHypersphere",
    "Hyperboloid",
    "Sphere",
    "Klein",
    "ProperVelocity",
    "Grassmannian",
    "SPD",
    "Correlation",
    "SpecialOrthogonal",
    "Product",
    "REGISTRY",
    "GyroSpace",
    "MeanError",
    "convert",
    "covariance_to_correlation",
    "Chunks",
    "FrechetResult",
    "FrechetWarning",
    "PrecisionWarning",
    "Stats",
    "Suggestion",
    "GyroBN",
    "frechet",
    "frechet_mean",
    "frechet_variance",
    "mean_error",
    "batch_stats",
    "normalize",
    "normalize_batch",
    "suggest",
    "denormalize",
    "update_stats",
    "merge_stats",
]
SETS = ["GyroGroupNorm", "GyroInstanceNorm", "GyroLayerNorm", "GyroRMSNorm"]
LAYERS = {
    "gyrobn.torch": ["GyroBN", "DomainGyroBN", *SETS],
    "gyrobn.torch.baselines": ["LRBN", "ManifoldNorm"],
    "gyrobn.torch.nn": [
        "BetaConcat",
        "FermiDiracDecoder",
        "GrassmannPool",
        "GrassmannTranslation",
        "GyroActivation",
        "GyroLinear",
        "HorosphereBlock",
        "Horospheres",
        "LorentzActivation",
        "LorentzLinear",
        "ManifoldParameter",
        "PoincareLinear",
        "PoincareMLR",
        "ProjMap",
    ],
    "gyrobn.flax": ["GyroBN", *SETS],
    "gyrobn.equinox": ["GyroBN", *SETS],
    "gyrobn.plot": ["plot_normalization", "plot_tangent", "plot_convergence"],
    "gyrobn.cli": ["main"],
    "gyrobn.data": ["open_array", "create_array"],
    "gyrobn.estimator": ["GyroBN"],
}


def test_public_names():
    assert sorted(gyrobn.__all__) == sorted(NAMES)
    assert all(hasattr(gyrobn, name) for name in NAMES)


@pytest.mark.parametrize("module", LAYERS)
def test_names_of_the_rooms(module):
    assert all(hasattr(importlib.import_module(module), name) for name in LAYERS[module])


def rooms():
    """Each room, and the other rooms that its modules import, also inside of functions."""
    found = {}
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room.startswith("__"):
            continue
        uses = found.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                uses.add(node.module)
            elif isinstance(node, ast.Import):
                uses |= {alias.name for alias in node.names}
    return {
        room: {name.split(".")[1] for name in uses if name.startswith("gyrobn.")} - {room}
        for room, uses in found.items()
    }


def test_the_picture_of_the_house():
    text = DESIGN.read_text(encoding="utf-8")
    picture = re.search(r"```text\n(backends .*?)```", text, re.DOTALL)[1]
    drawn = {}
    for line in picture.splitlines():
        match = re.fullmatch(r"(\w+) .*?(?:\(uses (.+)\))?", line)
        drawn[match[1]] = set((match[2] or "").split(", ")) - {""}
    assert drawn == rooms()


def test_few_entries():
    entries = [path for path in ROOT.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 16


def test_files_and_functions_are_short():
    """At most 400 lines per file, and 60 of code per function: docstrings of what users call are
    longer, as they hold the parameters and an example.
    """
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = (
                    node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                )
                head = node.body[0].lineno - node.lineno
                code = head + body[-1].end_lineno - body[0].lineno + 1
                assert code <= 60, (path, node.name, code)


BALL = gyrobn.PoincareBall(3)
X = BALL.random(20, rng=0)


def run_command(folder):
    np.save(folder / "x.npy", X)
    words = ["normalize", folder / "x.npy", folder / "y.npy", "--manifold", "poincare_ball"]
    assert main([*map(str, words), "--quiet"]) == 0


ROADS = {
    "frechet(M, x)": lambda _: gyrobn.frechet(BALL, X),
    "GyroBN(M).fit(x)": lambda _: gyrobn.GyroBN(BALL).fit(X),
    "gyrobn.torch.GyroBN(M)(x)": lambda _: gyrobn.torch.GyroBN(BALL)(
        torch.as_tensor(X, dtype=torch.float32)
    ),
    "jax.jit": lambda _: jax.jit(lambda x: gyrobn.normalize_batch(BALL, x))(
        jnp.asarray(X, jnp.float32)
    ),
    "gyrobn normalize": run_command,
}
"""The roads to the loop."""


def listed_roads():
    """The calls of each road in the table of docs/design.md, with their files."""
    rows = DESIGN.read_text(encoding="utf-8").split("| road | calls |\n|---|---|\n")[1]
    found = {}
    for row in rows.split("\n\n")[0].splitlines():
        road, calls = re.fullmatch(r"\| `([^`]+)`.* \| (.+) \|", row).groups()
        found[road] = []
        for group in calls.split("; "):
            names, path = re.fullmatch(r"(.+) in `([^`]+)`", group).groups()
            found[road] += [(path, name.strip("`")) for name in names.split(", ")]
    return found


def walked(call):
    """The functions of gyrobn on the stack when the loop starts for the first time."""
    stacks = []

    def look(frame, event, _):
        if event != "call" or frame.f_code is not solve.__code__:
            return
        stack = []
        while frame is not None:
            path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
            if path.is_relative_to(ROOT) and not name.startswith("<"):
                stack.append((path.relative_to(ROOT).as_posix(), name))
            frame = frame.f_back
        stacks.append(stack[::-1])

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return stacks[0]


def test_every_road_is_listed():
    assert list(listed_roads()) == list(ROADS)


@pytest.mark.parametrize("road", ROADS)
def test_roads_are_short_and_as_listed(road, tmp_path):
    frames = walked(lambda: ROADS[road](tmp_path))
    assert frames == listed_roads()[road]
    assert len(frames) <= 8
