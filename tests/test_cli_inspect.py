"""inspect: what it says of samples, of whatever, and of models."""

import re
import warnings
from functools import partial

import numpy as np
import pytest
from cli_runner import check_one_line, report, run_here

from gyrobn import (
    SPD,
    Correlation,
    Grassmannian,
    GyroBN,
    Hyperboloid,
    PoincareBall,
    SpecialOrthogonal,
    Sphere,
    frechet,
)

BALL = PoincareBall(2)
X = BALL.add(np.asarray([0.2, 0.3]), BALL.random(50, rng=0))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def inspected(x, *options):
    """Save samples, and return the report on them."""
    np.save("x.npy", x)
    return report("inspect", "x.npy", *options)


def printed(x, *options):
    """Save samples, and return the lines of text on them by their first words."""
    np.save("x.npy", x)
    process = run_here("inspect", "x.npy", *options)
    assert process.returncode == 0, process.stderr
    return process.stdout


BALLS = "--manifold", "poincare_ball"


def test_samples():
    values = inspected(X, *BALLS)
    found = frechet(BALL, X)
    distance = BALL.dist(found.mean, X)
    close = {
        "mean_distance": BALL.norm(found.mean),
        "standard_deviation": found.variance**0.5,
        "nearest": distance.min(),
        "farthest": distance.max(),
    }
    for name, value in close.items():
        assert values.pop(name) == pytest.approx(float(value), abs=1e-12)
    assert values.pop("seconds") > 0
    assert 1 <= values.pop("iterations") <= 12
    assert values == {
        "command": "inspect",
        "input": "x.npy",
        "shape": [50, 2],
        "dtype": "float64",
        "samples": 50,
        "manifold": "PoincareBall(n=2, curvature=-1.0)",
        "points": 50,
        "on_manifold": 50,
        "nan": 0,
        "inf": 0,
        "worst_violation": 0.0,
        "worst_index": [0],
        "worst": None,
        "converged": True,
        "unique": True,
        "convexity_radius": None,
        "warnings": [],
    }


def test_what_is_printed():
    """The values of the report, a line each."""
    x = X.copy()
    x[12] = [0.8, 0.8]
    found = dict(line.rsplit("  ", 1) for line in printed(x, *BALLS).splitlines())
    found = {name.strip(): value.strip() for name, value in found.items()}
    values = inspected(x, *BALLS)
    assert found.keys() | {"command", "seconds", "warnings", "worst"} == {
        name.replace("_", " ") for name in values
    }
    assert (found["on manifold"], found["points"], found["unique"]) == ("49", "50", "yes")
    assert (found["worst index"], found["shape"]) == ("(12,)", "(50, 2)")
    assert found["standard deviation"] == f"{values['standard_deviation']:.4g}"


def test_bad_samples_are_counted_and_left_out(monkeypatch):
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 7)  # seven samples a chunk
    x = X.copy()
    x[9, 0], x[20], x[30] = np.nan, np.inf, [-np.inf, 0.0]
    x[12], x[40] = [0.8, 0.8], [0.9, 0.9]
    x[42:49] = 5.0  # a whole chunk
    x[45] = 6.0
    values = inspected(x, *BALLS)
    assert (values["nan"], values["inf"]) == (1, 3)
    assert (values["points"], values["on_manifold"]) == (50, 38)
    assert values["worst_index"] == [45]
    assert values["worst_violation"] == pytest.approx(float(BALL.violation(x[45])))
    good = np.delete(x, [9, 12, 20, 30, 40, *range(42, 49)], axis=0)
    found = frechet(BALL, good)
    assert values["standard_deviation"] == pytest.approx(float(found.variance) ** 0.5, abs=1e-12)
    farthest = float(BALL.dist(found.mean, good).max())
    assert values["farthest"] == pytest.approx(farthest, abs=1e-12)


def test_a_sample_with_a_bad_channel():
    x = np.stack([X, X], axis=1)
    x[7, 1] = [2.0, 0.0]
    values = inspected(x, *BALLS)
    assert (values["points"], values["on_manifold"]) == (100, 99)
    assert values["worst_index"] == [7, 1]
    found = frechet(BALL, np.delete(x, 7, axis=0))
    np.testing.assert_allclose(values["mean_distance"], BALL.norm(found.mean), atol=1e-12)
    assert values["converged"] == [True, True]
    x[:, 1] *= 0.5
    assert "(2 values)" in printed(x, *BALLS)


def test_no_sample_on_the_manifold():
    values = inspected(X, "--manifold", "sphere")
    assert values["on_manifold"] == 0
    assert "mean_distance" not in values
    assert "there is no mean" in values["mean"]
    values = inspected(np.full((3, 2), np.nan), *BALLS)
    assert (values["nan"], values["worst_index"]) == (6, None)


def test_a_mean_that_may_not_be_unique():
    M = Sphere(2)
    circle = np.linspace(0, 2 * np.pi, 9)[:-1]
    x = np.stack([np.cos(circle), np.sin(circle), 0 * circle], axis=-1)
    x[:, 2] += np.linspace(-0.1, 0.3, 8)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    values = inspected(x, "--manifold", "sphere")
    assert values["unique"] is False
    assert values["convexity_radius"] == pytest.approx(M.convexity_radius)
    assert any("another mean may fit as well" in w for w in values["warnings"])
    x = M.random(20, rng=0, spread=0.2)
    assert inspected(x, "--manifold", "sphere")["unique"] is True
    values = inspected([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], "--manifold", "sphere")
    assert not values["unique"]
    assert values["nearest"] is values["farthest"] is None or values["farthest"] > 1.0


def test_a_mean_that_did_not_converge(monkeypatch):
    monkeypatch.setattr("gyrobn.cli.inspect.frechet", partial(frechet, max_iter=1))
    values = inspected(SPD(3).random(50, rng=0, spread=2.0), "--manifold", "spd")
    assert (values["converged"], values["unique"], values["iterations"]) == (False, False, 1)
    assert "did not converge" in values["warnings"][0]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.ones((3, 3)), "singular, of rank 1 of 3"),
        (np.diag([1.0, 2.0, -1.0]), "indefinite, with 1 of 3 eigenvalues negative"),
    ],
)
def test_the_rank_of_the_worst_matrix(bad, words):
    x = SPD(3).random(20, rng=0)
    x[5] = bad
    values = inspected(x, "--manifold", "spd")
    assert (values["on_manifold"], values["worst_index"]) == (19, [5])
    assert words in values["worst"]


def test_the_rank_of_all_matrices():
    centring, x = np.eye(5) - 0.2, SPD(5).random(20, rng=0)
    assert inspected(x)["rank"] == 5
    x = centring @ x @ centring
    x[3] = np.nan
    for options in ((), ("--manifold", "spd")):
        values = inspected(x, *options)
        assert values["rank"] == 4
        assert "gyrobn.reduce_rank" in values["advice"]
    assert "rank" not in inspected(SpecialOrthogonal(3).random(5, rng=0))


def test_the_rank_of_projectors_is_that_of_most():
    M = Grassmannian(4, 2, "projector")
    x = M.random(9, rng=0, spread=0.2)
    x[0] = np.nan
    options = "--manifold", "grassmannian", "--representation", "projector"
    assert inspected(x, *options)["manifold"] == repr(M)


# ---------------------------------------------------------------------- no geometry


@pytest.mark.parametrize(
    ("M", "options"),
    [
        (SPD(3), "spd"),
        (Correlation(3), "correlation"),
        (SpecialOrthogonal(3), "special_orthogonal"),
        (Grassmannian(5, 2), "grassmannian"),
        (Grassmannian(5, 2, "projector"), "grassmannian --representation projector"),
        (Sphere(2), "sphere"),
        (Hyperboloid(2), "hyperboloid"),
    ],
    ids=repr,
)
def test_geometries_that_have_such_points(M, options):
    """The first is the one that the points are of, and the options that it names work."""
    x = M.random(20, rng=0, spread=0.3)
    x[7] *= 3.0  # a bad sample does not hide what the others are
    rows = inspected(x)["geometries"]
    (row,) = [row for row in rows if row["manifold"] == repr(M)]
    assert row["options"] == f"--manifold {options}"
    assert (row["on_manifold"], row["points"]) == (20 if isinstance(M, SPD) else 19, 20)
    values = inspected(x, *row["options"].split())
    assert all(values[name] == row[name] for name in ("manifold", "on_manifold", "points"))
    assert row == inspected(M.random(20, rng=0, spread=0.3))["geometries"][0] | {
        "on_manifold": row["on_manifold"]
    }
    assert row["options"] in printed(x)


@pytest.mark.parametrize(
    "x", [np.full((3, 4), np.nan), np.full((2, 2, 2), 1e200), np.zeros((3, 1))]
)
def test_bad_samples_of_no_geometry(x):
    rows = inspected(x)["geometries"]
    assert all(row["on_manifold"] for row in rows)
    if not rows:
        assert re.search("geometries +none", printed(x))


FLAT = {
    "matrix": (SpecialOrthogonal(3), lambda x: x.reshape(len(x), -1)),
    "upper": (SPD(4), lambda x: x[:, *np.triu_indices(4)]),
    "strict": (Correlation(4), lambda x: x[:, *np.triu_indices(4, 1)]),
}


@pytest.mark.parametrize("layout", FLAT)
def test_rows_that_may_be_matrices(layout):
    """The row length says which; with the option, the geometries are those of matrices."""
    M, flatten = FLAT[layout]
    rows = flatten(M.random(60, rng=0, spread=1.0))
    rows[7] = -9.0
    asked = inspected(rows)["or_rows_of_matrices"]
    n = M.point_shape[0]
    assert f"--layout {layout} ({n} × {n})" in asked
    found = inspected(rows, "--layout", layout)
    assert found["or_rows_of_matrices"] is None
    (row,) = [row for row in found["geometries"] if row["manifold"] == repr(M)]
    assert row["on_manifold"] == 59
    assert inspected(rows[:, :5])["or_rows_of_matrices"] is None
    assert inspected(M.random(5, rng=0))["or_rows_of_matrices"] is None


def test_a_curvature_is_suggested_if_one_asks():
    M = PoincareBall(2, -2.0)
    x = M.random(40, rng=0)
    d = M.dist(x[:, None], x)
    assert "curvature" not in inspected(d)
    found = inspected(d, "--suggest")
    assert (found["geometry"], found["fitted_to"]) == (repr(M), "distances")
    assert "interval" in printed(x, "--suggest")
    for bad, words in (x[:5], "needs at least 16 points"), (d[None], "--suggest takes vectors"):
        np.save("bad.npy", bad)
        process = run_here("inspect", "bad.npy", "--suggest")
        assert process.returncode == 1
        check_one_line(process.stderr, words)


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize("name", ["m.npz", "model"])
def test_model(name):
    bn = GyroBN(SPD(3), scale=0.5, bias=2 * np.eye(3)).fit(SPD(3).random(30, 2, rng=0))
    bn.save(name)
    values = report("inspect", name)
    assert values["manifold"] == repr(SPD(3))
    assert values["samples"] == 30
    assert values["sample_shape"] == [2, 3, 3]
    assert values["scale"] == 0.5
    assert values["bias"] == (2 * np.eye(3)).tolist()
    np.testing.assert_allclose(values["standard_deviation"], bn.var_**0.5)


@pytest.mark.parametrize("labels", [np.repeat([f"subject {k}" for k in range(12)], 4), [0, 1] * 24])
def test_model_with_domains(labels):
    bn = GyroBN("poincare_ball").fit(X[:48], domains=labels)
    bn.save("m.npz")
    values = report("inspect", "m.npz")
    assert values["domains"] == bn.domains_.tolist()
    assert values["sample_shape"] == [2]
    text = run_here("inspect", "m.npz").stdout
    if isinstance(labels, np.ndarray):
        assert "subject 0, subject 1, " in text
        assert "subject 9" not in text  # the first ten by name


def test_the_warnings_of_the_caller_are_untouched():
    before = warnings.showwarning, list(warnings.filters)
    inspected(X)
    assert (warnings.showwarning, list(warnings.filters)) == before
