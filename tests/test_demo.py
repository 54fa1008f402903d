"""``gyrobn demo``: the theorem on every geometry, as numbers and as a picture."""

import sys
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import pytest
from cli_runner import check_one_line, names, report, run, run_here

from gyrobn import REGISTRY, SPD, Euclidean, PoincareBall, frechet
from gyrobn.cli import demo
from gyrobn.cli.demo import EPS, demonstrate
from gyrobn.plot import can_plot

ROWS = [*REGISTRY, "iris"]


def check_rows(rows):
    assert [row["name"] for row in rows] == ROWS
    for row in rows:
        assert row["distance_before"] > 0.4
        assert row["distance_after"] <= 1e-10
        assert row["variance_after"] == pytest.approx(row["variance_expected"], rel=1e-9)
        expected = row["scale"] ** 2 * row["variance_before"] / (row["variance_before"] + EPS)
        # of several blocks the table has the average
        assert row["variance_expected"] == pytest.approx(expected, abs=1e-4)
        assert abs(row["variance_after"] - row["variance_before"]) > 0.01
        assert 1 <= row["iterations"] <= 12
        assert row["milliseconds"] > 0


def test_numbers_depend_on_the_options(tmp_path):
    options = "--samples", 50, "--seed", 3, "--output", "a.svg"
    found = report("demo", *options, cwd=tmp_path)
    check_rows(found["geometries"])
    assert found["figure"] == "a.svg"
    assert names(tmp_path) == ["a.svg"]
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<?xml")
    for row in found["geometries"]:
        for seed, same in (3, True), (4, False):
            again = demonstrate(row["name"], 50, seed)
            assert (again.variance_before == row["variance_before"]) == same


def test_as_a_user_runs_it(tmp_path):
    """Without a display and without a framework; the picture has a panel per geometry."""
    from matplotlib.image import imread

    program = (
        "import sys; from gyrobn.cli import main; main(sys.argv[1:]);"
        "print(sorted({'torch', 'jax', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    process = run("demo", cwd=tmp_path, start=("-c", program))
    assert (process.returncode, process.stderr) == (0, "")  # not a terminal: no progress
    *lines, figure, modules = process.stdout.splitlines()
    assert (figure.split(), modules) == (["figure", "gyrobn-demo.png"], "[]")
    assert [line.split()[0] for line in lines if len(line.split()) == 9][1:] == ROWS
    assert max(map(len, lines)) <= 110
    image = imread(tmp_path / "gyrobn-demo.png")[..., :3]
    drawn = sum(can_plot(demonstrate(name, 5).manifold) for name in REGISTRY)
    cells = [c for row in np.array_split(image, 3, axis=0) for c in np.array_split(row, 4, axis=1)]
    for cell in cells[: drawn + 1]:  # the legend's, too
        assert len(np.unique(cell.reshape(-1, 3), axis=0)) > 100
        assert 0.02 < np.mean(np.any(cell < 1.0, axis=-1)) < 0.95


def test_version():
    process = run_here("--version")
    assert (process.returncode, process.stdout) == (0, f"gyrobn {version('gyrobn')}\n")


@dataclass(frozen=True)
class Mine(Euclidean):
    """A geometry that was added to the registry."""


def test_a_new_geometry_is_in_the_table_and_in_the_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "REGISTRY", {"mine": Mine, "spd": SPD})
    panels, draw = [], demo.plot_overview
    monkeypatch.setattr(demo, "plot_overview", lambda p: panels.extend(p) or draw(p))
    found = report("demo", "--samples", 20, "--output", "b", cwd=tmp_path)
    assert (tmp_path / "b").read_bytes().startswith(b"\x89PNG")
    assert [row["name"] for row in found["geometries"]] == ["mine", "spd", "iris"]
    (panel,) = panels
    assert panel.manifold == Mine(2)
    name, numbers = panel.title.splitlines()
    assert name == "Mine(2)"
    assert f"→ {found['geometries'][0]['variance_after']:.2f}" in numbers


def test_without_matplotlib_still_prints_the_table(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = report("demo", cwd=tmp_path)
    check_rows(found["geometries"])
    assert "pip install 'gyrobn[plot]'" in found["figure"]
    assert not names(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--output", "missing/a.png"), "No such file"),
        (("--output", "file/a.png"), "Not a directory"),
        (("--output", "."), "is a directory"),
        (("--output", "a.nonsense"), "suffix '.nonsense'"),
        (("--samples", "0"), "--samples must be positive, and --seed not negative"),
        (("--seed", "-1"), "--samples must be positive, and --seed not negative"),
    ],
)
def test_wrong_options(tmp_path, options, words):
    (tmp_path / "file").touch()
    process = run_here("demo", *options, cwd=tmp_path)
    assert process.returncode == 1
    check_one_line(process.stderr, words)
    assert names(tmp_path) == ["file"]


def test_interrupt(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "demonstrate", interrupt)
    process = run_here("demo")
    assert (process.returncode, process.stderr) == (130, "gyrobn: interrupted\n")


@pytest.mark.parametrize("name", ROWS)
def test_any_seed_and_sample_converges(name):
    for seed in range(5):  # FrechetWarning is an error here
        for samples in (1, 2, 3, 2_000) if name in REGISTRY else (0,):
            row = demonstrate(name, samples, seed)
            assert row.manifold.contains(row.x).all()
            assert row.manifold.contains(row.y).all()
            assert row.distance_after <= 1e-10
            expected = pytest.approx(row.variance_expected, rel=1e-9, abs=1e-20)
            assert row.variance_after == expected


def test_covariances_are_those_of_numpy():
    from sklearn.datasets import load_iris

    rows, label = load_iris(return_X_y=True)
    rng, x = np.random.default_rng(0), demonstrate("iris").x
    first = rng.permutation(rows[label == 0])[:25]
    np.testing.assert_allclose(x[0], np.cov(first, rowvar=False), atol=1e-14)


def test_iterations_are_those_of_the_input():
    M = PoincareBall(3)
    x = M.random(50, rng=0, spread=4.0)
    row = demo._normalized("wide", M, x, M.origin(x), 0.1)
    before, after = (int(frechet(M, points).iterations) for points in (row.x, row.y))
    assert row.iterations == before != after
