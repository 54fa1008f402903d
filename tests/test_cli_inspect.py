"""inspect: what it says of samples, of whatever, and of models, as a process and in this one."""

import json
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
from gyrobn.cli import main

BALL = PoincareBall(2)
X = BALL.add(np.asarray([0.2, 0.3]), BALL.random(50, rng=0))


def inspect(capsys, *arguments):
    """Run the command in this process; return its report."""
    assert main(["inspect", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_samples(tmp_path):
    np.save(tmp_path / "x.npy", X)
    values = report("inspect", "x.npy", "--manifold", "poincare_ball", cwd=tmp_path)
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
        "channels": [],
        "points": 50,
        "on_manifold": 50,
        "nan": 0,
        "inf": 0,
        "first_not_finite": None,
        "worst_violation": 0.0,
        "worst_index": [0],
        "worst": "",
        "converged": True,
        "unique": True,
        "convexity_radius": None,
        "warnings": [],
    }


def test_bad_samples_are_counted_and_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 7)  # seven samples a chunk
    x = X.copy()
    x[9, 0], x[20], x[30] = np.nan, np.inf, [-np.inf, 0.0]
    x[12], x[40] = [0.8, 0.8], [0.9, 0.9]
    x[42:49] = 5.0  # a whole chunk
    x[45] = 6.0
    np.save(tmp_path / "x.npy", x)
    values = inspect(capsys, tmp_path / "x.npy", "--manifold", "poincare_ball")
    assert (values["nan"], values["inf"]) == (1, 3)
    assert values["first_not_finite"] == [9]
    assert (values["points"], values["on_manifold"]) == (50, 38)
    assert values["worst_index"] == [45]
    assert values["worst_violation"] == pytest.approx(float(BALL.violation(x[45])))
    good = np.delete(x, [9, 12, 20, 30, 40, *range(42, 49)], axis=0)
    found = frechet(BALL, good)
    assert values["standard_deviation"] == pytest.approx(float(found.variance) ** 0.5, abs=1e-12)
    farthest = float(BALL.dist(found.mean, good).max())
    assert values["farthest"] == pytest.approx(farthest, abs=1e-12)


def test_a_sample_with_a_bad_channel(tmp_path, capsys):
    x = np.stack([X, X], axis=1)
    x[7, 1] = [2.0, 0.0]
    np.save(tmp_path / "x.npy", x)
    values = inspect(capsys, tmp_path / "x.npy", "--manifold", "poincare_ball")
    assert values["channels"] == [2]
    assert (values["points"], values["on_manifold"]) == (100, 99)
    assert values["worst_index"] == [7, 1]
    found = frechet(BALL, np.delete(x, 7, axis=0))
    np.testing.assert_allclose(values["mean_distance"], BALL.norm(found.mean), atol=1e-12)
    assert values["converged"] == [True, True]


def test_no_sample_on_the_manifold(tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    values = inspect(capsys, tmp_path / "x.npy", "--manifold", "sphere")
    assert values["on_manifold"] == 0
    assert "mean_distance" not in values
    assert main(["inspect", str(tmp_path / "x.npy"), "--manifold", "sphere"]) == 0
    assert "there is no mean" in capsys.readouterr().out
    np.save(tmp_path / "x.npy", np.full((3, 2), np.nan))
    values = inspect(capsys, tmp_path / "x.npy", "--manifold", "poincare_ball")
    assert values["nan"] == 6
    assert values["worst_index"] is None


def test_a_mean_that_may_not_be_unique(tmp_path):
    M = Sphere(2)
    circle = np.linspace(0, 2 * np.pi, 9)[:-1]
    x = np.stack([np.cos(circle), np.sin(circle), 0 * circle], axis=-1)
    x[:, 2] += np.linspace(-0.1, 0.3, 8)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    np.save(tmp_path / "x.npy", x)
    values = report("inspect", "x.npy", "--manifold", "sphere", cwd=tmp_path)
    assert values["unique"] is False
    assert values["convexity_radius"] == pytest.approx(M.convexity_radius)
    assert any("another mean may fit as well" in w for w in values["warnings"])
    np.save(tmp_path / "x.npy", M.random(20, rng=0, spread=0.2))
    assert report("inspect", "x.npy", "--manifold", "sphere", cwd=tmp_path)["unique"] is True


def test_what_is_printed(tmp_path):
    x = X.copy()
    x[12] = [0.8, 0.8]
    np.save(tmp_path / "x.npy", x)
    process = run_here("inspect", "x.npy", "--manifold", "poincare_ball", cwd=tmp_path)
    assert process.returncode == 0
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    assert lines[0] == "x.npy: 50 samples, shape (50, 2), float64"
    text = " ".join(process.stdout.split())
    assert "on the manifold 49 of 50 points" in text
    assert "NaN, inf 0 and 0 values" in text
    assert "at index 12" in text
    assert "of the 49 samples that are on the manifold" in text
    assert "; unique" in text
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (SPD(3).random(20, rng=0), "spd"),
        (Correlation(3).random(20, rng=0), "correlation"),
        (SpecialOrthogonal(3).random(20, rng=0), "special_orthogonal"),
        (Grassmannian(5, 2).random(20, rng=0, spread=0.3), "grassmannian"),
        (
            Grassmannian(5, 2, "projector").random(20, rng=0, spread=0.3),
            "grassmannian --representation projector",
        ),
        (Sphere(2).random(20, rng=0, spread=0.3), "sphere"),
        (Sphere(2, 0.25).random(20, 3, rng=0, spread=0.3), "sphere --curvature 0.25"),
        (Hyperboloid(2, -2.0).random(20, rng=0, spread=0.3), "hyperboloid --curvature -2.0"),
        (Hyperboloid(2).random(20, rng=0, spread=0.3), "hyperboloid"),
    ],
)
def test_guesses(tmp_path, capsys, x, options):
    """The first is the one that the points are of, and the options that it names work."""
    np.save(tmp_path / "x.npy", x)
    first, *others = inspect(capsys, tmp_path / "x.npy")["geometries"]
    assert first["options"] == options
    assert first["on_manifold"] == first["points"]
    values = inspect(capsys, tmp_path / "x.npy", "--manifold", *options.split())
    assert values["manifold"] == first["manifold"]
    assert values["on_manifold"] == first["points"]
    assert any(other["on_manifold"] < other["points"] for other in others)
    assert main(["inspect", str(tmp_path / "x.npy")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["all", "--manifold", *options.split()]
    assert not any(line.split()[0] == "0" for line in lines)


# ---------------------------------------------------------------------- matrices as rows, curvature

FLAT = {
    "matrix": (SpecialOrthogonal(3), lambda x: x.reshape(len(x), -1)),
    "upper": (SPD(4), lambda x: x[:, *np.triu_indices(4)]),
    "strict": (Correlation(4), lambda x: x[:, *np.triu_indices(4, 1)]),
}


@pytest.mark.parametrize("layout", FLAT)
@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_rows_that_may_be_matrices(tmp_path, layout, suffix):
    """The options that are shown are right."""
    M, flatten = FLAT[layout]
    rows = flatten(M.random(60, rng=0, spread=1.0))
    rows[7] = -9.0  # one bad sample does not hide what the others are
    path = tmp_path / f"x{suffix}"
    np.save(path, rows) if suffix == ".npy" else np.savetxt(path, rows, delimiter=",")
    found = report("inspect", path.name, cwd=tmp_path)["geometries"]
    (one,) = [row for row in found if row["manifold"] == repr(M)]
    assert one["options"].endswith(f" --layout {layout}")
    text = run_here("inspect", path.name, cwd=tmp_path).stdout
    assert f"59 of 60  --manifold {one['options']}" in text
    options = "--manifold", *one["options"].split()
    values = report("inspect", path.name, *options, cwd=tmp_path)
    assert (values["manifold"], values["on_manifold"]) == (repr(M), 59)


@pytest.mark.parametrize("M", [Sphere(2), Hyperboloid(3), PoincareBall(3), PoincareBall(16)])
def test_rows_that_are_points(tmp_path, M):
    np.save(tmp_path / "x.npy", M.random(60, rng=0))
    assert "--layout" not in run_here("inspect", "x.npy", cwd=tmp_path).stdout


def test_a_curvature_is_suggested_if_one_asks(tmp_path):
    M = PoincareBall(2, -2.0)
    x = M.random(40, rng=0)
    np.save(tmp_path / "d.npy", M.dist(x[:, None], x))
    np.save(tmp_path / "x.npy", x)
    assert "suggestion" not in report("inspect", "d.npy", cwd=tmp_path)
    found = report("inspect", "d.npy", "--suggest", cwd=tmp_path)["suggestion"]
    assert found["suggested"] == repr(M)
    assert "interval" in run_here("inspect", "x.npy", "--suggest", cwd=tmp_path).stdout
    np.save(tmp_path / "few.npy", x[:5])
    np.save(tmp_path / "matrices.npy", SPD(2).random(40, rng=0))
    for name, word in {
        "few.npy": "needs at least 16 points",
        "matrices.npy": "--suggest takes vectors",
    }.items():
        process = run_here("inspect", name, "--suggest", cwd=tmp_path)
        assert process.returncode == 1
        check_one_line(process.stderr, word)


def test_no_geometry_fits(tmp_path):
    np.save(tmp_path / "x.npy", np.full((4, 3), np.nan))
    assert run_here("inspect", "x.npy", cwd=tmp_path).stdout.splitlines()[-1].split() == ["none"]


def test_guesses_of_bad_samples(tmp_path, capsys):
    for x in (np.full((3, 4), np.nan), np.zeros((3, 1)), np.full((2, 2, 2), 1e200)):
        np.save(tmp_path / "x.npy", x)
        assert inspect(capsys, tmp_path / "x.npy")["geometries"]


@pytest.mark.parametrize("name", ["m.npz", "model"])
def test_model(tmp_path, name):
    GyroBN(SPD(3), scale=0.5, bias=2 * np.eye(3)).fit(SPD(3).random(30, 2, rng=0)).save(
        tmp_path / name
    )
    values = report("inspect", name, cwd=tmp_path)
    assert values["manifold"] == repr(SPD(3))
    assert values["samples"] == 30
    assert values["sample_shape"] == [2, 3, 3]
    assert values["scale"] == 0.5
    assert values["bias"] == (2 * np.eye(3)).tolist()
    assert np.shape(values["standard_deviation"]) == (2,)


def test_model_with_domains(tmp_path, capsys):
    labels = np.repeat([f"subject {k}" for k in range(12)], 4)
    GyroBN("poincare_ball").fit(X[:48], domains=labels).save(tmp_path / "m.npz")
    assert main(["inspect", str(tmp_path / "m.npz")]) == 0
    text = capsys.readouterr().out
    assert "a model of PoincareBall" in text
    assert "subject 0, subject 1, " in text
    assert "subject 9" not in text
    values = inspect(capsys, tmp_path / "m.npz")
    assert values["domains"] == sorted(set(labels.tolist()))


def test_a_mean_that_did_not_converge(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gyrobn.cli.inspect.frechet", partial(frechet, max_iter=1))
    np.save(tmp_path / "x.npy", SPD(3).random(50, rng=0, spread=2.0))
    assert main(["inspect", str(tmp_path / "x.npy"), "--manifold", "spd"]) == 0
    captured = capsys.readouterr()
    assert "; NOT converged, iterations: 1; NOT sure" in captured.out
    assert "did not converge" in captured.err


def test_sample_shape_of_a_model_with_domains(tmp_path, capsys):
    GyroBN("poincare_ball").fit(X, domains=[0, 1] * 25).save(tmp_path / "m")
    assert inspect(capsys, tmp_path / "m")["sample_shape"] == [2]


@pytest.mark.parametrize(
    ("M", "K"), [(Sphere(2, 1 / 3), "0.3333"), (Hyperboloid(2, -1 / 7), "-0.14")]
)
def test_curvatures_that_take_all_digits(tmp_path, capsys, M, K):
    np.save(tmp_path / "x.npy", M.random(20, rng=0, spread=0.5))
    first, *_ = inspect(capsys, tmp_path / "x.npy")["geometries"]
    name = type(M).__name__.lower()
    assert first["options"].startswith(f"{name} --curvature {K}")
    assert first["on_manifold"] == 20


def test_a_sample_that_is_nearly_nothing(tmp_path, capsys):
    x = np.ones((5, 3))
    x[0] = [1e-160, 0.0, 0.0]
    np.save(tmp_path / "x.npy", x)
    assert "euclidean" in [
        row["options"] for row in inspect(capsys, tmp_path / "x.npy")["geometries"]
    ]


def test_opposite_points_have_no_distance(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.asarray([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    values = inspect(capsys, tmp_path / "x.npy", "--manifold", "sphere")
    assert not values["unique"]
    assert values["nearest"] is values["farthest"] is None or values["farthest"] > 1.0


def test_the_rank_of_the_worst_matrix(tmp_path):
    x = SPD(3).random(20, rng=0)
    x[5] = np.ones((3, 3))
    np.save(tmp_path / "x.npy", x)
    values = report("inspect", "x.npy", "--manifold", "spd", cwd=tmp_path)
    assert (values["on_manifold"], values["worst_index"]) == (19, [5])
    assert "singular, of rank 1 of 3" in values["worst"]
    said = run_here("inspect", "x.npy", "--manifold", "spd", cwd=tmp_path).stdout
    assert "at index 5, singular, of rank 1 of 3" in said
    x[5] = np.diag([1.0, 2.0, -1.0])
    np.save(tmp_path / "x.npy", x)
    said = run_here("inspect", "x.npy", "--manifold", "spd", cwd=tmp_path).stdout
    assert "indefinite, with 1 of 3 eigenvalues negative" in said


def test_the_rank_of_projectors_is_that_of_most(tmp_path):
    M = Grassmannian(4, 2, "projector")
    x = M.random(9, rng=0, spread=0.2)
    x[0] = np.nan
    np.save(tmp_path / "x.npy", x)
    options = "--manifold", "grassmannian", "--representation", "projector"
    assert report("inspect", tmp_path / "x.npy", *options)["manifold"] == repr(M)


def test_the_warnings_of_the_caller_are_untouched(tmp_path):
    np.save(tmp_path / "x.npy", X)
    before = warnings.showwarning, list(warnings.filters)
    report("inspect", tmp_path / "x.npy")
    assert (warnings.showwarning, list(warnings.filters)) == before
