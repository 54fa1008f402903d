"""``gyrobn selftest``: it passes what is right, and finds what is wrong."""

import json

import numpy as np
import pytest
import torch
from cli_runner import run_here

from gyrobn import REGISTRY, SPD, PoincareBall, Sphere
from gyrobn.cli import selftest
from gyrobn.cli.command import ARGUMENTS

THREE = {"poincare_ball": PoincareBall, "sphere": Sphere, "spd": SPD}


@pytest.fixture
def three(monkeypatch):
    """Let the command know three geometries."""
    monkeypatch.setattr(selftest, "REGISTRY", THREE)


def rows(*arguments, cwd, code, library="numpy"):
    """Run the command on one library and return its rows."""
    process = run_here("selftest", "--library", library, "--json", *arguments, cwd=cwd)
    assert process.returncode == code, process.stderr
    report = json.loads(process.stdout)
    assert report["passed"] == (code == 0)
    return report["rows"]


def test_it_passes_and_writes_a_report(three, tmp_path):
    found = rows("--quick", "--report", "report.md", cwd=tmp_path, code=0)
    assert len(found) == len(THREE)
    for row in found:
        assert row["gradient"] is None
        assert all(row[kind] <= 1e-12 for kind in ("operations", "laws", "mean", "variance"))
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# gyrobn selftest\n")
    assert f"numpy {np.__version__}" in text
    assert text.count("  ok\n") == len(found)


FAULTS = {
    "mean": lambda M, given: (
        given | {"bias": M.origin(given["bias"])} if "bias" in given else given
    ),
    "variance": lambda M, given: given | {"scale": 1.001 * given["scale"]},
}
"""Faults that the reference shares, so that only the theorem finds them."""


@pytest.mark.parametrize("kind", FAULTS)
def test_it_finds_a_wrong_normalization(three, tmp_path, monkeypatch, kind):
    right = selftest.normalize_batch
    monkeypatch.setattr(
        selftest, "normalize_batch", lambda M, x, **given: right(M, x, **FAULTS[kind](M, given))
    )
    found = rows("--quick", cwd=tmp_path, code=1)
    assert all(row["result"] == f"OFF: {kind}" for row in found)


def test_it_finds_a_wrong_law(three, tmp_path, monkeypatch):
    monkeypatch.setattr(Sphere, "neg", lambda self, x: x)
    found = {row["geometry"]: row["result"] for row in rows("--quick", cwd=tmp_path, code=1)}
    assert "laws" in found["Sphere(n=2, curvature=1.0)"]
    assert found["PoincareBall(n=2, curvature=-1.0)"] == "ok"


def test_it_shows_an_exception(three, tmp_path, monkeypatch):
    def broken(self, x, y):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(SPD, "dist", broken)
    process = run_here("selftest", "--library", "numpy", "--quick", cwd=tmp_path)
    assert process.returncode == 1
    assert "FAILED: RuntimeError: no such kernel" in process.stdout
    assert "1 of 3 rows" in process.stdout


def test_float32_is_measured_as_such(monkeypatch):
    """Its errors are those of float32. The reference stays in float64."""
    ((place,), _), M = selftest.places("numpy"), PoincareBall(2)
    row = selftest.check(M, place, "float32")
    assert row["result"] == "ok"
    assert 1e-9 < row["operations"] < 1e-5
    monkeypatch.setitem(selftest.BOUNDS, "float32", selftest.BOUNDS["float64"])
    assert "OFF: operations" in selftest.check(M, place, "float32")["result"]


def test_every_metric_runs_unless_quick():
    ((place,), _), quick = selftest.places("numpy"), [True, False]
    short, long = ([run[0] for run in selftest._runs([place], q)] for q in quick)
    assert [type(M) for M in short] == list(selftest.REGISTRY.values())
    assert len(long) == 2 * sum(len(cls.examples()) for cls in selftest.REGISTRY.values())


def test_gradients_on_torch():
    (place, *_), _ = selftest.places("torch")
    row = selftest.check(PoincareBall(2), place, "float64", 8)
    assert row["result"] == "ok"
    assert row["gradient"] < 1e-7


class Wrong(torch.autograd.Function):
    """The identity, with a gradient of zero, as the one of a compiler that has lost all digits."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return 0.0 * slope


COMPILERS = {
    None: lambda layer, **_: layer,
    "gradient": lambda layer, **_: lambda x: Wrong.apply(layer(x)),
    "operations": lambda layer, **_: lambda x: layer(x) + 1e-9 * (not x.requires_grad),
}
"""Stand-ins for torch.compile by what they get wrong; the real one takes many seconds a row."""


@pytest.mark.parametrize("wrong", COMPILERS)
def test_a_compiled_row_for_each_geometry(wrong, three, tmp_path, monkeypatch):
    """Training with gradients, and evaluation."""
    monkeypatch.setattr(torch, "compile", COMPILERS[wrong])
    if wrong is None:
        monkeypatch.setattr(selftest, "REGISTRY", REGISTRY)
    found = rows(library="torch.compile", cwd=tmp_path, code=int(wrong is not None))
    assert [row["geometry"] for row in found] == [
        repr(cls.examples()[0]) for cls in selftest.REGISTRY.values()
    ]
    for row in found:
        assert all(row[kind] is not None for kind in ("operations", "mean", "variance", "gradient"))
        assert row["result"] == ("ok" if wrong is None else f"OFF: {wrong}")


def test_without_a_compiler(three, tmp_path, monkeypatch):
    """No row fails, since nothing is wrong with the numbers; a quick run does not look for one."""

    def missing(function, **_):
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", missing)
    process = run_here("selftest", "--library", "torch.compile", cwd=tmp_path)
    assert process.returncode == 1
    assert "torch.compile cannot be tested" in process.stderr
    assert "No working C++ compiler found" in process.stderr
    found, absent = selftest.places(quick=True)
    assert not {"jax", "torch.compile"} & {place.library for place in found}
    assert "--library torch.compile" in absent["torch.compile"]


def test_a_library_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(selftest.NAMESPACES, "dpnp", "gyrobn_no_such_module")
    process = run_here("selftest", "--library", "dpnp", cwd=tmp_path)
    assert process.returncode == 1
    assert process.stderr == "gyrobn: error: dpnp cannot be tested: it is not installed\n"
    assert set(ARGUMENTS["--library"]["choices"]) == set(selftest.NAMESPACES)
