"""normalize, fit, transform, inverse and plot on good files, compared with the library."""

import json
import os
import warnings

import numpy as np
import pytest
from cli_runner import names, report, run, run_here

from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    Grassmannian,
    GyroBN,
    Hyperboloid,
    PoincareBall,
    Product,
    Sphere,
    Stereographic,
    batch_stats,
)
from gyrobn import normalize as normalize_with
from gyrobn.cli import main
from gyrobn.data import create_array, open_array
from gyrobn.data.stored import fits

BALL = PoincareBall(2, -0.5)
X = BALL.add(np.asarray([0.3, 0.2]), BALL.random(60, rng=0, spread=0.6))


def save(path, x):
    """Write an array in the format of the suffix, in two chunks."""
    with create_array(path, x.shape, x.dtype) as out:
        out.write(x[:7])
        out.write(x[7:])
    return path


def load(path, key=None):
    with open_array(path, key) as x:
        return x[:]


def expected(M, x, **options):
    return normalize_with(M, x, batch_stats(M, x), **options)


def close(y, wanted, tolerance=1e-12):
    assert y.dtype == wanted.dtype
    assert y.shape == wanted.shape
    np.testing.assert_allclose(y, wanted, rtol=0, atol=tolerance)


def call(*arguments):
    """Run the command in this process; it must succeed."""
    assert main([*map(str, arguments)]) == 0


# ---------------------------------------------------------------------- normalize


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".zarr"])
def test_normalize(tmp_path, suffix):
    source, out = save(tmp_path / f"x{suffix}", X), tmp_path / f"y{suffix}"
    options = ("--manifold", "poincare_ball", "--curvature", "-0.5", "--scale", "0.25")
    values = report("normalize", source, out, *options)
    close(load(out), expected(BALL, X, scale=0.25))
    assert names(tmp_path) == [f"x{suffix}", f"y{suffix}"]
    bn = GyroBN(BALL, scale=0.25).fit(X)
    assert values.pop("seconds") > 0
    assert values.pop("mean_distance") == pytest.approx(float(BALL.norm(bn.mean_)), abs=1e-12)
    assert values.pop("standard_deviation") == pytest.approx(float(bn.var_) ** 0.5, abs=1e-12)
    assert 1 <= values.pop("iterations") <= 12
    assert values == {
        "command": "normalize",
        "input": str(source),
        "output": str(out),
        "model": None,
        "shape": [60, 2],
        "dtype": "float64",
        "samples": 60,
        "manifold": "PoincareBall(n=2, curvature=-0.5)",
        "converged": True,
        "domains": None,
        "scale": 0.25,
        "eps": 1e-5,
        "warnings": [],
    }


def test_normalize_says_what_it_did(tmp_path):
    np.save(tmp_path / "x.npy", X)
    process = run("normalize", "x.npy", "y.npy", "--manifold", "poincare_ball", cwd=tmp_path)
    assert process.returncode == 0
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    assert lines[0].startswith("normalized 60 samples of x.npy, shape (60, 2), float64, on Poinc")
    assert "converged" in lines[1]
    assert "to become 1" in lines[2]
    assert lines[3].split() == ["written", "y.npy"]


def test_the_report_counts_eps(tmp_path):
    """Samples close together do not get the standard deviation of the scale."""
    np.save(tmp_path / "x.npy", 1e-3 * X)
    options = "--manifold", "poincare_ball", "--save-model", "m.npz"
    said = run_here("normalize", "x.npy", "y.npy", *options, cwd=tmp_path).stdout
    deviation = GyroBN(PoincareBall(2)).fit(np.load(tmp_path / "y.npy")).var_ ** 0.5
    assert deviation < 0.5
    assert f"to become {deviation:.4g}\n" in said
    assert f"to become {deviation:.4g}\n" in run_here("inspect", "m.npz", cwd=tmp_path).stdout


GEOMETRIES = [
    (Euclidean(3), ["euclidean"]),
    (Stereographic(2, 0.3), ["stereographic", "--curvature", "0.3"]),
    (Hyperboloid(2), ["hyperboloid"]),
    (Sphere(3, 0.5), ["sphere", "--curvature", "0.5"]),
    (SPD(3, "log_euclidean"), ["spd", "--metric", "log_euclidean"]),
    (SPD(2, theta=0.5), ["spd", "--theta", "0.5"]),
    (Correlation(4, "off_log"), ["correlation", "--metric", "off_log"]),
    (Correlation(3), ["correlation"]),
    (Grassmannian(4, 2), ["grassmannian"]),
    (Grassmannian(5, 2, "projector"), ["grassmannian", "--representation", "projector"]),
]


@pytest.mark.parametrize(("M", "options"), GEOMETRIES, ids=[repr(M) for M, _ in GEOMETRIES])
def test_geometries(tmp_path, M, options, capsys):
    x = M.random(20, 3, rng=1, spread=0.3)
    np.save(tmp_path / "x.npy", x)
    call("normalize", tmp_path / "x.npy", tmp_path / "y.npy", "--json", "--manifold", *options)
    close(load(tmp_path / "y.npy"), expected(M, x))
    values = json.loads(capsys.readouterr().out)
    assert values["manifold"] == repr(M)
    assert np.shape(values["mean_distance"]) == (3,)
    assert np.shape(values["standard_deviation"]) == (3, *([len(M.blocks)] * (len(M.blocks) > 1)))


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", ">f4"])
def test_dtype_and_byte_order_stay(tmp_path, suffix, dtype):
    x = X.astype(dtype)
    save(tmp_path / f"x{suffix}", x)
    paths = tmp_path / f"x{suffix}", tmp_path / f"y{suffix}"
    call("normalize", *paths, "--manifold", "poincare_ball", "--curvature", "-0.5")
    with open_array(paths[1]) as y:
        assert y.stored == x.dtype
        native = x.astype(y.dtype)
        wanted = expected(BALL, native)
        np.testing.assert_allclose(y[:], wanted, rtol=0, atol=20 * np.finfo(y.dtype).eps)


def test_fortran_order(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    call("normalize", tmp_path / "x.npy", tmp_path / "y.npy", "--manifold", "poincare_ball")
    close(load(tmp_path / "y.npy"), expected(PoincareBall(2), X))


def test_from_one_format_to_another(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", other=np.zeros(2), mine=X)
    call(
        *("normalize", tmp_path / "x.npz", tmp_path / "y.npz", "--key", "mine"),
        *("--manifold", "poincare_ball"),
    )
    close(load(tmp_path / "y.npz", "mine"), expected(PoincareBall(2), X))
    call("normalize", tmp_path / "y.npz", tmp_path / "z.npy", "--manifold", "euclidean")
    assert load(tmp_path / "z.npy").shape == X.shape


def test_several_chunks(tmp_path, monkeypatch):
    """What is larger than a chunk is read in parts, and comes out the same."""
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 400)
    for suffix in (".npy", ".npz", ".zarr"):
        paths = save(tmp_path / f"x{suffix}", X), tmp_path / f"y{suffix}"
        call("normalize", *paths, "--manifold", "poincare_ball")
        close(load(paths[1]), expected(PoincareBall(2), X))


def test_bias_eps_and_projection(tmp_path):
    M = PoincareBall(2)
    x = X.copy()
    x[3] = [2.0, 0.0]
    bias = np.asarray([0.0, 0.5])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "b.npy", bias)
    call(
        *("normalize", tmp_path / "x.npy", tmp_path / "y.npy", "--manifold", "poincare_ball"),
        *("--bias", tmp_path / "b.npy", "--eps", "0.1", "--on-invalid", "project"),
    )
    bn = GyroBN(M, bias=bias, eps=0.1, on_invalid="project").fit(x)
    close(load(tmp_path / "y.npy"), bn.transform(x))


def test_tolerance_and_iterations(tmp_path, capsys):
    M = SPD(3)
    np.save(tmp_path / "x.npy", M.random(50, rng=0, spread=2.0))
    paths = tmp_path / "x.npy", tmp_path / "y.npy"
    call("normalize", *paths, "--manifold", "spd", "--max-iter", "1", "--json")
    captured = capsys.readouterr()
    values = json.loads(captured.out)
    assert values["converged"] is False
    (warning,) = values["warnings"]
    assert captured.err == f"gyrobn: warning: {warning}\n"
    assert "did not converge in 1 iterations" in warning
    call("normalize", *paths, "--manifold", "spd", "--max-iter", "1", "--tol", "1e3")
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------------- models


def test_fit_transform_inverse(tmp_path):
    new = BALL.random(30, rng=5)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "new.npy", new)
    geometry = ("--manifold", "poincare_ball", "--curvature", "-0.5")
    values = report("fit", "x.npy", "m.npz", *geometry, "--scale", 0.5, cwd=tmp_path)
    assert (values["model"], values["samples"], values["scale"]) == ("m.npz", 60, 0.5)
    assert "output" not in values
    values = report("transform", "new.npy", "y.npy", "--model", "m.npz", cwd=tmp_path)
    assert values["manifold"] == repr(BALL)
    assert values["samples"] == 30
    bn = GyroBN(BALL, scale=0.5).fit(X)
    close(load(tmp_path / "y.npy"), bn.transform(new))
    values = report("inverse", "y.npy", "z.npy", "--model", "m.npz", cwd=tmp_path)
    assert values["output"] == "z.npy"
    close(load(tmp_path / "z.npy"), new)
    assert names(tmp_path) == ["m.npz", "new.npy", "x.npy", "y.npy", "z.npy"]
    close(GyroBN.load(tmp_path / "m.npz").mean_, bn.mean_)


def test_normalize_saves_and_takes_a_model(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "new.npy", X[:30])
    save_to = ("--save-model", tmp_path / "m")
    paths = tmp_path / "x.npy", tmp_path / "y.npy"
    call("normalize", *paths, "--manifold", "poincare_ball", "--scale", "0.5", *save_to)
    bn = GyroBN("poincare_ball", scale=0.5).fit(X)
    paths = tmp_path / "new.npy", tmp_path / "z.npy"
    call("normalize", *paths, "--model", tmp_path / "m")
    close(load(tmp_path / "z.npy"), bn.transform(X[:30]))  # no fit to the thirty
    call("normalize", *paths, "--model", tmp_path / "m", "--scale", "2")
    close(load(tmp_path / "z.npy"), bn.set_params(scale=2.0).transform(X[:30]))


def test_a_product_comes_with_a_model(tmp_path):
    M = Product(BALL, Sphere(2))
    x = M.random(40, rng=0, spread=0.4)
    bn = GyroBN(M).fit(x)
    bn.save(tmp_path / "m.npz")
    np.save(tmp_path / "x.npy", x)
    call("transform", tmp_path / "x.npy", tmp_path / "y.npy", "--model", tmp_path / "m.npz")
    close(load(tmp_path / "y.npy"), bn.transform(x))


@pytest.mark.parametrize("form", ["npy", "txt"])
def test_domains(tmp_path, form):
    labels = np.asarray(["Ada", "Bo", "Bo"] * 20)
    if form == "npy":
        np.save(tmp_path / "labels.npy", labels)
    else:
        (tmp_path / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    np.save(tmp_path / "x.npy", X)
    domains = ("--domains", tmp_path / f"labels.{form}")
    paths = tmp_path / "x.npy", tmp_path / "y.npy"
    model = tmp_path / "m.npz"
    call("normalize", *paths, "--manifold", "poincare_ball", *domains, "--save-model", model)
    bn = GyroBN("poincare_ball").fit(X, domains=labels)
    close(load(paths[1]), bn.transform(X, domains=labels))
    call("inverse", paths[1], tmp_path / "z.npy", "--model", model, *domains)
    close(load(tmp_path / "z.npy"), X, 1e-11)


# ---------------------------------------------------------------------- plot


def size_of(path):
    from matplotlib.image import imread

    return imread(path).shape[:2]


def test_plot(tmp_path):
    np.save(tmp_path / "x.npy", X)
    values = report("plot", "x.npy", "x.png", "--manifold", "poincare_ball", cwd=tmp_path)
    assert values["kind"] == "surface"
    assert values["drawn"] == values["samples"] == 60
    assert min(size_of(tmp_path / "x.png")) > 300
    assert names(tmp_path) == ["x.npy", "x.png"]


def test_plot_what_has_no_surface(tmp_path, capsys, monkeypatch):
    """Some of the samples of one channel, as points of the tangent space, in two colours."""
    drawn = []
    monkeypatch.setattr("gyrobn.cli.picture.MOST", 15)
    from gyrobn.cli import picture

    tangent = picture.plot_tangent
    monkeypatch.setattr(
        picture, "plot_tangent", lambda *a, **k: drawn.append((a, k)) or tangent(*a, **k)
    )
    M = SPD(3)
    x = M.random(40, 2, rng=0)
    bias = M.random(2, rng=1)
    labels = np.arange(40) % 2
    for name, array in (("x", x), ("b", bias), ("d", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    call(
        *("plot", tmp_path / "x.npy", tmp_path / "x.svg", "--manifold", "spd", "--json"),
        *("--bias", tmp_path / "b.npy", "--channel", "1", "--domains", tmp_path / "d.npy"),
    )
    values = json.loads(capsys.readouterr().out)
    assert (values["kind"], values["drawn"], values["samples"]) == ("tangent", 15, 40)
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<?xml")
    ((_, before, after, target), options), *_ = drawn
    rows = np.linspace(0, 39, 15).astype(int)
    np.testing.assert_array_equal(before, x[rows, 1])
    bn = GyroBN(M, bias=bias).fit(x, domains=labels)
    np.testing.assert_allclose(after, bn.transform(x, domains=labels)[rows, 1], atol=1e-12)
    np.testing.assert_array_equal(target, bias[1])
    np.testing.assert_array_equal(options["labels"], labels[rows])


def test_plot_colours_a_surface_by_domain(tmp_path, monkeypatch):
    from gyrobn.cli import picture

    drawn = []
    save = picture.save_figure
    monkeypatch.setattr(
        picture, "save_figure", lambda f, *a, **k: drawn.append(f) or save(f, *a, **k)
    )
    monkeypatch.setattr("gyrobn.cli.picture.MOST", 15)
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "d.txt").write_text("\n".join(np.resize(["Ada", "Bo"], len(X))))
    paths = tmp_path / "x.npy", tmp_path / "x.png", "--domains", tmp_path / "d.txt"
    call("plot", *paths, "--manifold", "poincare_ball")
    (figure,) = drawn
    (legend,) = figure.legends
    entries = zip(legend.legend_handles, legend.get_texts(), strict=True)
    colours = {text.get_text(): handle for handle, text in entries}
    assert not np.array_equal(colours["Ada"].get_facecolor(), colours["Bo"].get_facecolor())


@pytest.mark.parametrize("M", [SPD(3), PoincareBall(2)], ids=["tangent", "surface"])
@pytest.mark.parametrize("by_domain", [False, True])
@pytest.mark.parametrize("suffix", [".txt", ".npy"])
def test_plot_colours_classes_that_it_does_not_remove(tmp_path, monkeypatch, M, by_domain, suffix):
    """Labels choose colours, and only domains are normalized one by one."""
    from gyrobn.cli import picture

    drawn = []
    for name in ("plot_tangent", "plot_normalization"):
        draw = getattr(picture, name)

        def watched(*a, draw=draw, **k):
            drawn.append((a, k))
            return draw(*a, **k)

        monkeypatch.setattr(picture, name, watched)
    monkeypatch.setattr("gyrobn.cli.picture.MOST", 15)
    classes, subjects = np.resize(["left", "right", "left"], 40), np.resize(["Ada", "Bo"], 40)
    x = M.random(40, rng=0, spread=0.3)
    x[classes == "left"] = M.add(M.random(rng=1), x[classes == "left"])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "classes.npy", classes)
    (tmp_path / "classes.txt").write_text("\n".join(classes))
    (tmp_path / "subjects.txt").write_text("\n".join(subjects))
    options = ["--labels", tmp_path / f"classes{suffix}"]
    options += ["--domains", tmp_path / "subjects.txt"] if by_domain else []
    name = "poincare_ball" if M.point_shape == (2,) else "spd"
    call("plot", tmp_path / "x.npy", tmp_path / "x.png", "--manifold", name, *options)
    ((_, before, after, _), given), *_ = drawn
    rows = np.linspace(0, 39, 15).astype(int)
    domains = subjects if by_domain else None
    wanted = GyroBN(M).fit(x, domains=domains).transform(x, domains=domains)
    np.testing.assert_array_equal(before, x[rows])
    np.testing.assert_allclose(after, wanted[rows], atol=1e-12)
    np.testing.assert_array_equal(given["labels"], classes[rows])


def test_plot_of_scales_that_differ_by_ten(tmp_path):
    """In one picture of a plane, one of the two clouds would be a dot."""
    x = Euclidean(2).random(60, rng=0)
    for scale, kind in ((0.02, "tangent"), (0.5, "surface"), (50.0, "tangent")):
        np.save(tmp_path / "x.npy", scale * x)
        values = report("plot", "x.npy", "x.png", "--manifold", "euclidean", cwd=tmp_path)
        assert values["kind"] == kind


def test_plot_before_and_after(tmp_path, monkeypatch):
    from gyrobn.cli import picture

    drawn = []
    surface = picture.plot_normalization
    monkeypatch.setattr(
        picture, "plot_normalization", lambda *a, **k: drawn.append(a) or surface(*a, **k)
    )
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", 0.5 * X)
    paths = tmp_path / "x.npy", tmp_path / "x.png", "--after", tmp_path / "y.npy"
    call("plot", *paths, "--manifold", "poincare_ball")
    np.testing.assert_array_equal(drawn[0][1], X)
    np.testing.assert_array_equal(drawn[0][2], 0.5 * X)
    GyroBN("poincare_ball").fit(X).save(tmp_path / "m.npz")
    call("plot", *paths, "--model", tmp_path / "m.npz")
    np.testing.assert_array_equal(drawn[1][2], 0.5 * X)
    call("plot", *paths[:2], "--model", tmp_path / "m.npz")
    np.testing.assert_allclose(drawn[2][2], expected(PoincareBall(2), X), atol=1e-12)


# ---------------------------------------------------------------------- backends, start


def test_backends():
    values = report("backends")
    assert {"numpy", "torch", "jax", "cupy", "array-api-strict"} == set(values["libraries"])
    numpy = values["libraries"]["numpy"]
    assert numpy["version"] == np.__version__
    assert numpy["devices"] == ["cpu"]
    assert numpy["default_dtypes"]["real floating"] == "float64"
    assert {"matplotlib", "zarr", "scikit-learn"} <= set(values["packages"])
    import matplotlib

    assert values["packages"]["matplotlib"] == matplotlib.__version__
    spd = values["geometries"]["spd"]
    assert spd["point_shape"] == "(n, n)"
    assert "log_cholesky" in spd["options"]["metric"]


def test_backends_without_a_library_and_with_a_broken_one(monkeypatch, capsys):
    import sys
    from types import ModuleType

    from gyrobn.cli import backends

    monkeypatch.setitem(sys.modules, "nothing_there", None)
    monkeypatch.setitem(sys.modules, "broken", ModuleType("broken"))
    libraries = {"numpy": "array_api_compat.numpy", "cupy": "nothing_there", "torch": "broken"}
    monkeypatch.setattr(backends, "LIBRARIES", libraries)
    call("backends", "--check")
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "not installed" in lines["cupy"]
    assert "cannot be used: AttributeError" in lines["torch"]
    # of the table at the end: one library, and an error of the mean for each geometry
    assert 0 <= float(lines["correlation"].split()[-1]) < 1e-12


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["normalize", "--help"], ["normalize", "x"], ["no"]]
)
def test_nothing_slow_is_imported_for_help_and_usage(arguments):
    import subprocess
    import sys

    program = (
        "import sys, atexit; from gyrobn.cli import main;"
        "atexit.register(lambda: print(sorted(m for m in"
        " ('sklearn', 'scipy', 'torch', 'jax', 'zarr', 'matplotlib') if m in sys.modules)));"
        "main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", env=os.environ)
    assert process.stdout.splitlines()[-1] == "[]"


def test_inspect_needs_no_scikit_learn(tmp_path):
    import subprocess
    import sys

    np.save(tmp_path / "x.npy", X)
    program = (
        "import sys; from gyrobn.cli import main; main(sys.argv[1:]);"
        "print(sorted({'sklearn', 'torch', 'jax', 'zarr', 'matplotlib'} & set(sys.modules)))"
    )
    arguments = ["inspect", "x.npy", "--manifold", "poincare_ball"]
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path)
    assert process.stdout.splitlines()[-1] == "[]"


def test_the_warnings_of_the_caller_are_untouched(tmp_path):
    np.save(tmp_path / "x.npy", X)
    before = warnings.showwarning, list(warnings.filters)
    call("inspect", tmp_path / "x.npy")
    assert (warnings.showwarning, list(warnings.filters)) == before


def test_a_model_is_not_saved_before_the_samples_are_written(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    np.save(tmp_path / "x.npy", X)
    monkeypatch.setattr("gyrobn.data.ArrayWriter.write", fail)
    paths = tmp_path / "x.npy", tmp_path / "y.npy", "--save-model", tmp_path / "m"
    assert main(["normalize", *map(str, paths), "--manifold", "poincare_ball"]) == 1
    assert names(tmp_path) == ["x.npy"]


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("normalize x.npy y.npy --manifold poincare_ball", 6),
        ("normalize x.npy y.npy --manifold poincare_ball --domains d.npy", 6),
        ("normalize x.npy y.npy --model m", 6),
        ("fit x.npy f --manifold poincare_ball", 6),
        ("transform x.npy y.npy --model m", 6),
        ("transform x.npy y.npy --model d --domains d.npy --unseen refit", 6),
        ("inverse x.npy y.npy --model m", 6),
        ("plot x.npy y.png --manifold poincare_ball", 6),
        ("plot x.npy y.png --manifold poincare_ball --after x.npy", 12),
    ],
)
def test_the_report_tells_how_many_were_projected(tmp_path, monkeypatch, capsys, line, moved):
    """However often the chunks are read, and none where that is not asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 2 * 10)  # ten samples of two channels
    x = np.stack([X, X], axis=1)
    x[[3, 4, 17], :] = 2.0
    np.save("x.npy", x)
    domains = np.arange(len(x)) % 3
    np.save("d.npy", domains)
    good = np.stack([X, X], axis=1)
    GyroBN("poincare_ball").fit(good).save("m")
    GyroBN("poincare_ball").fit(good[domains > 0], domains=domains[domains > 0]).save("d")
    call(*line.split(), "--on-invalid", "project", "--json")
    assert json.loads(capsys.readouterr().out)["projected"] == moved
    call(*line.split(), "--on-invalid", "project")
    assert f"  projected           {moved} " in capsys.readouterr().out
    np.save("x.npy", good)
    call(*line.split(), "--json")
    assert "projected" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["transform", "inverse"])
def test_projection_with_a_model(tmp_path, command):
    x = 0.9 * X
    x[3] = [2.0, 0.0]
    np.save(tmp_path / "x.npy", x)
    bn = GyroBN("poincare_ball").fit(X)
    bn.save(tmp_path / "m")
    paths = tmp_path / "x.npy", tmp_path / "y.npy", "--model", tmp_path / "m"
    call(command, *paths, "--on-invalid", "project")
    bn.set_params(on_invalid="project")
    apply = bn.transform if command == "transform" else bn.inverse_transform
    close(load(tmp_path / "y.npy"), apply(x))


def test_channels_of_which_one_did_not_converge(tmp_path, capsys):
    """The first has all samples at one point, which is their mean at once."""
    x = SPD(2).random(30, 2, rng=0, spread=2.0)
    x[:, 0] = np.eye(2)
    np.save(tmp_path / "x.npy", x)
    paths = tmp_path / "x.npy", tmp_path / "y.npy"
    call("normalize", *paths, "--manifold", "spd", "--max-iter", "1")
    captured = capsys.readouterr()
    assert "; NOT converged, iterations: 1" in captured.out
    assert "did not converge" in captured.err


def test_plot_before_and_after_with_bias_and_projection(tmp_path, monkeypatch):
    from gyrobn.cli import picture

    drawn = []
    surface = picture.plot_normalization
    monkeypatch.setattr(
        picture, "plot_normalization", lambda *a, **k: drawn.append(a) or surface(*a, **k)
    )
    x, bias = X.copy(), np.asarray([0.0, 0.5])
    x[3] = [2.0, 0.0]
    for name, array in (("x", x), ("y", 0.5 * x), ("b", bias)):
        np.save(tmp_path / f"{name}.npy", array)
    paths = tmp_path / "x.npy", tmp_path / "x.png", "--bias", tmp_path / "b.npy"
    options = "--manifold", "poincare_ball", "--on-invalid", "project"
    call("plot", *paths, "--after", tmp_path / "y.npy", *options)
    call("plot", *paths, *options)
    M = PoincareBall(2)
    for _, before, _, target in drawn:
        np.testing.assert_array_equal(before, M.project(x))
        np.testing.assert_array_equal(target, bias)
    np.testing.assert_array_equal(drawn[0][2], M.project(0.5 * x))
    bn = GyroBN(M, bias, on_invalid="project").fit(x)
    np.testing.assert_allclose(drawn[1][2], bn.transform(x), atol=1e-12)


def test_check_of_a_library_that_computes_something_else(monkeypatch, capsys):
    from gyrobn.cli import backends

    monkeypatch.setattr(backends, "LIBRARIES", {"numpy": "array_api_compat.numpy"})
    monkeypatch.setattr(backends, "normalize", lambda M, x, *_, **__: x)
    call("backends", "--check", "--json")
    check = json.loads(capsys.readouterr().out)["check"]
    assert all(row["numpy"] > 0.1 for row in check.values())


def test_labels_without_the_space_around_them(tmp_path):
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "d.txt").write_bytes(b" Ada\r\nAda \r\nBo\r\nBo\t\r\n" * 15)
    options = "--manifold", "poincare_ball", "--domains", tmp_path / "d.txt"
    call("fit", tmp_path / "x.npy", tmp_path / "m", *options)
    assert GyroBN.load(tmp_path / "m").domains_.tolist() == ["Ada", "Bo"]


@pytest.mark.parametrize("K", ["-1e-3", "-1.", "-.5"])
def test_negative_curvatures_in_any_form(tmp_path, capsys, K):
    np.save(tmp_path / "x.npy", X)
    paths = tmp_path / "x.npy", tmp_path / "m"
    call("fit", *paths, "--manifold", "poincare_ball", "--curvature", K)
    assert GyroBN.load(tmp_path / "m").manifold_.curvature == float(K)
    with pytest.raises(SystemExit):
        call("fit", *paths, "--manifold", "poincare_ball", "--scale", K)
    message = f"argument --scale: expected a finite number of at least 0 or sqrt_dim, got {K}"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("unseen", ["refit", "adapt", "online"])
def test_unseen_domains(tmp_path, monkeypatch, unseen):
    """As the estimator with all samples at once, in chunks, and where a few samples are drawn."""
    from gyrobn.cli import picture

    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "old.npy", np.arange(len(X)) % 2)
    np.save(tmp_path / "new.npy", np.asarray([b"a", b"b"])[np.arange(len(X)) % 2])
    (tmp_path / "new.txt").write_text("\ufeff" + "5\n6\n" * (len(X) // 2), encoding="utf-8")
    paths = tmp_path / "x.npy", tmp_path / "m"
    call("fit", *paths, "--manifold", "poincare_ball", "--domains", tmp_path / "new.npy")
    bn = GyroBN.load(tmp_path / "m")
    assert bn.domains_.tolist() == ["a", "b"]
    drawn, surface = [], picture.plot_normalization
    monkeypatch.setattr(
        picture, "plot_normalization", lambda *a, **k: drawn.append(a) or surface(*a, **k)
    )
    monkeypatch.setattr(picture, "MOST", 7)
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 10)  # ten samples
    options = "--model", tmp_path / "m", "--domains", tmp_path / "new.txt", "--unseen", unseen
    call("transform", tmp_path / "x.npy", tmp_path / "y.npy", *options)
    call("plot", tmp_path / "x.npy", tmp_path / "y.png", *options)
    expected = bn.set_params(unseen=unseen).transform(X, domains=np.resize(["5", "6"], len(X)))
    close(load(tmp_path / "y.npy"), expected)
    close(drawn[0][2], expected[np.linspace(0, len(X) - 1, 7).astype(int)])


def test_the_rank_of_projectors_is_that_of_most(tmp_path):
    M = Grassmannian(4, 2, "projector")
    x = M.random(9, rng=0, spread=0.2)
    x[0] = np.nan
    np.save(tmp_path / "x.npy", x)
    options = "--manifold", "grassmannian", "--representation", "projector"
    assert report("inspect", tmp_path / "x.npy", *options)["manifold"] == repr(M)


def test_plot_names_the_sample_of_the_file(tmp_path, monkeypatch, capsys):
    from gyrobn.cli import picture

    monkeypatch.setattr(picture, "MOST", 10)
    x = np.tile(X[:1], (91, 1))
    np.save(tmp_path / "x.npy", x)
    x[40] = 2.0  # every tenth is drawn
    np.save(tmp_path / "y.npy", x)
    paths = tmp_path / "x.npy", tmp_path / "x.png", "--after", tmp_path / "y.npy"
    assert main(["plot", *map(str, paths), "--manifold", "poincare_ball"]) == 1
    message = capsys.readouterr().err
    assert "y.npy is off PoincareBall" in message
    assert "at index 40: --on-invalid project moves" in message


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".zarr"])
@pytest.mark.parametrize("command", ["normalize", "fit", "plot", "inspect"])
def test_what_fits_in_memory_is_read_once(tmp_path, monkeypatch, suffix, command):
    """However many passes a command takes over it; otherwise as often, with the same numbers."""
    source = save(tmp_path / f"x{suffix}", X)
    with open_array(source) as opened:
        kind = type(opened)
    counts, inner = np.zeros(len(X), int), kind._read

    def counted(self, start, stop):
        counts[start:stop] += 1
        return inner(self, start, stop)

    monkeypatch.setattr(kind, "_read", counted)
    targets = {"normalize": ["y.npy"], "fit": ["m.npz"], "plot": ["p.png"], "inspect": []}
    paths = [tmp_path / name for name in targets[command]]
    arguments = [command, source, *paths, "--manifold", "poincare_ball", "--curvature", "-0.5"]
    call(*arguments)
    assert set(counts) == {1}
    if command == "normalize":
        once = load(paths[0])
        monkeypatch.setattr("gyrobn.cli.inputs.fits", lambda source: False)
        call(*arguments)
        assert counts.min() > 3
        np.testing.assert_array_equal(load(paths[0]), once)


def test_what_fits_is_a_part_of_the_free_memory(tmp_path):
    """An array that declares more than there is, in a file that is a hole, is read by parts."""
    path = tmp_path / "x.npy"
    with create_array(path, (1, 2), np.float64) as out:
        out.write(X[:1])
    with open_array(path) as small:
        assert fits(small)
        small.shape = (2**60, 2)
        assert not fits(small)
