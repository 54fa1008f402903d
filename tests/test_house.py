"""The house: the public names stay, and the picture in docs/design.md is what the imports are."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import gyrobn

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
