"""normalize, fit, transform, inverse and plot on good files, compared with the library."""

import re
import sys
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
from gyrobn.cli import plot
from gyrobn.data import create_array, open_array

BALL = PoincareBall(2, -0.5)
X = BALL.add(np.asarray([0.3, 0.2]), BALL.random(60, rng=0, spread=0.6))
BALLS = "--manifold", "poincare_ball", "--curvature", "-0.5"
SUFFIXES = [".npy", ".npz", ".zarr", ".csv", ".h5", ".hdf5", ".mat"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(path, x):
    """Write an array in the format of the suffix, in two chunks."""
    with create_array(path, x.shape, x.dtype) as out:
        out.write(x[:7])
        out.write(x[7:])


def load(path, **options):
    if path.endswith(".mat"):
        options = {"axis": "first"} | options
    with open_array(path, **options) as x:
        return x[:]


def close(y, wanted, tolerance=1e-12):
    assert y.dtype == wanted.dtype
    assert y.shape == wanted.shape
    np.testing.assert_allclose(y, wanted, rtol=0, atol=tolerance)


def expected(M, x, **options):
    return normalize_with(M, x, batch_stats(M, x), **options)


def drawn(monkeypatch, name):
    """Return a list of what a function of plots is given."""
    calls, function = [], getattr(plot, name)
    monkeypatch.setattr(plot, name, lambda *a, **k: calls.append((a, k)) or function(*a, **k))
    return calls


# ---------------------------------------------------------------------- normalize


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("bytes_", [400, 2**23])
def test_normalize(here, monkeypatch, suffix, bytes_):
    """In chunks of a few samples the numbers are the same."""
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", bytes_)
    save(f"x{suffix}", X)
    more = ["--axis", "first"] if suffix == ".mat" else []
    values = report("normalize", f"x{suffix}", f"y{suffix}", *BALLS, "--scale", "0.25", *more)
    close(load(f"y{suffix}"), expected(BALL, X, scale=0.25))
    assert names(here) == [f"x{suffix}", f"y{suffix}"]
    bn = GyroBN(BALL, scale=0.25).fit(X)
    assert values.pop("seconds") > 0
    assert values.pop("mean_distance") == pytest.approx(float(BALL.norm(bn.mean_)), abs=1e-12)
    assert values.pop("standard_deviation") == pytest.approx(float(bn.var_) ** 0.5, abs=1e-12)
    assert 1 <= values.pop("iterations") <= 12
    assert values == {
        "command": "normalize",
        "input": f"x{suffix}",
        "output": f"y{suffix}",
        "model": None,
        "shape": [60, 2],
        "dtype": "float64",
        "samples": 60,
        "manifold": "PoincareBall(n=2, curvature=-0.5)",
        "converged": True,
        "domains": None,
        "scale": 0.25,
        "eps": 1e-5,
        "normalized_deviation": pytest.approx(0.25 * (bn.var_ / (bn.var_ + 1e-5)) ** 0.5),
        "warnings": [],
    }


def test_normalize_says_what_it_did():
    """As a process; samples close together do not get the standard deviation of the scale."""
    np.save("x.npy", 1e-3 * X)
    options = "--manifold", "poincare_ball", "--save-model", "m.npz"
    process = run("normalize", "x.npy", "y.npy", *options)
    assert (process.returncode, process.stderr) == (0, "")
    said = dict(re.split("  +", line) for line in process.stdout.splitlines())
    deviation = GyroBN(PoincareBall(2)).fit(np.load("y.npy")).var_ ** 0.5
    assert deviation < 0.5
    assert said["normalized deviation"] == f"{deviation:.4g}"
    assert said["shape"] == "(60, 2)"
    assert (said["converged"], said["output"], said["model"]) == ("yes", "y.npy", "m.npz")
    assert f"normalized deviation  {deviation:.4g}\n" in run_here("inspect", "m.npz").stdout


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
    *((PoincareBall(2, float(K)), ["poincare_ball", "--curvature", K]) for K in ("-1e-3", "-.5")),
]


@pytest.mark.parametrize(("M", "options"), GEOMETRIES, ids=[repr(M) for M, _ in GEOMETRIES])
def test_geometries(M, options):
    x = M.random(20, 3, rng=1, spread=0.3)
    np.save("x.npy", x)
    values = report("normalize", "x.npy", "y.npy", "--manifold", *options)
    close(load("y.npy"), expected(M, x))
    assert values["manifold"] == repr(M)
    assert np.shape(values["mean_distance"]) == (3,)
    assert np.shape(values["standard_deviation"]) == (3, *([len(M.blocks)] * (len(M.blocks) > 1)))


@pytest.mark.parametrize("dtype", ["<f4", ">f8", ">f4"])
def test_precision_stays(dtype):
    x = X.astype(dtype)
    np.save("x.npy", x)
    report("normalize", "x.npy", "y.npy", *BALLS)
    y, native = np.load("y.npy"), x.astype(dtype[1:])
    assert y.dtype == native.dtype
    np.testing.assert_allclose(y, expected(BALL, native), rtol=0, atol=20 * np.finfo(y.dtype).eps)


def test_fortran_order_and_from_one_format_to_another():
    np.savez_compressed("x.npz", other=np.zeros(2), mine=np.asfortranarray(X))
    np.save("x.npy", np.asfortranarray(X))
    report("normalize", "x.npz", "y.zarr", "--key", "mine", *BALLS)
    report("normalize", "x.npy", "y.csv", *BALLS)
    close(load("y.zarr"), expected(BALL, X))
    close(load("y.csv"), expected(BALL, X))


@pytest.mark.parametrize("line", ["normalize x.npy y.npy", "normalize x.npy y.npy --domains d.npy"])
def test_bias_eps_and_projection(line):
    x, bias = np.stack([X, X], axis=1), np.asarray([0.0, 0.5])
    x[[3, 4, 17], :] = 2.0
    for name, array in {"x": x, "b": bias, "d": np.arange(60) % 3}.items():
        np.save(f"{name}.npy", array)
    options = "--bias", "b.npy", "--eps", "0.1", "--on-invalid", "project", "--save-model", "m"
    assert report(*line.split(), *BALLS, *options)["projected"] == 6
    domains = np.arange(60) % 3 if "d.npy" in line else None
    bn = GyroBN(BALL, bias=bias, eps=0.1, on_invalid="project").fit(x, domains=domains)
    close(load("y.npy"), bn.transform(x, domains))
    more = line.split()[3:]
    assert report("transform", "x.npy", "z.npy", "--model", "m", *more)["projected"] == 6
    close(load("z.npy"), load("y.npy"))
    x[[3, 4, 17], :] = 0.1
    x[9] = 1e9
    np.save("x.npy", 0.5 * x)
    process = run_here("inverse", "x.npy", "z.npy", "--model", "m", *more)
    assert re.search("projected +2\n", process.stdout)
    np.save("x.npy", np.stack([X, X], axis=1))
    assert "projected" not in report(*line.split(), *BALLS)


def test_samples_that_are_dropped():
    x = X.copy()
    x[3], x[17] = 2.0, np.nan
    np.save("x.npy", x)
    process = run_here("normalize", "x.npy", "y.npy", *BALLS, "--on-invalid", "drop")
    for words in "fit() dropped 2 of 60", "transform() returns NaN for 2 of 60":
        assert f"warning: GyroBN.{words} samples" in process.stderr
    good = ~np.isin(np.arange(60), [3, 17])
    assert np.isnan(load("y.npy")[~good]).all()
    close(load("y.npy")[good], expected(BALL, x[good]))


def test_tolerance_and_iterations():
    np.save("x.npy", SPD(3).random(50, rng=0, spread=2.0))
    line = "normalize", "x.npy", "y.npy", "--manifold", "spd", "--max-iter", "1"
    values = report(*line)
    assert values["converged"] is False
    assert "did not converge in 1 iterations" in values["warnings"][0]
    assert run_here(*line).stderr == f"gyrobn: warning: {values['warnings'][0]}\n"
    assert run_here(*line, "--tol", "1e3").stderr == ""


# ---------------------------------------------------------------------- models, domains


def test_fit_transform_inverse(here):
    new = BALL.random(30, rng=5)
    np.save("x.npy", X)
    np.save("new.npy", new)
    values = report("fit", "x.npy", "m.npz", *BALLS, "--scale", 0.5)
    assert (values["model"], values["samples"], values["scale"]) == ("m.npz", 60, 0.5)
    assert values["output"] is None
    values = report("transform", "new.npy", "y.npy", "--model", "m.npz")
    assert (values["manifold"], values["samples"]) == (repr(BALL), 30)
    bn = GyroBN(BALL, scale=0.5).fit(X)
    close(load("y.npy"), bn.transform(new))
    assert report("inverse", "y.npy", "z.npy", "--model", "m.npz")["output"] == "z.npy"
    close(load("z.npy"), new)
    assert names(here) == ["m.npz", "new.npy", "x.npy", "y.npy", "z.npy"]
    close(GyroBN.load("m.npz").mean_, bn.mean_)


def test_normalize_saves_and_takes_a_model():
    np.save("x.npy", X)
    np.save("new.npy", X[:30])
    report("normalize", "x.npy", "y.npy", *BALLS, "--scale", "0.5", "--save-model", "m")
    bn = GyroBN(BALL, scale=0.5).fit(X)
    report("normalize", "new.npy", "z.npy", "--model", "m")
    close(load("z.npy"), bn.transform(X[:30]))  # no fit to the thirty
    report("normalize", "new.npy", "z.npy", "--model", "m", "--scale", "2")
    close(load("z.npy"), bn.set_params(scale=2.0).transform(X[:30]))


def test_a_product_comes_with_a_model():
    M = Product(BALL, Sphere(2))
    x = M.random(40, rng=0, spread=0.4)
    GyroBN(M).fit(x).save("m.npz")
    np.save("x.npy", x)
    report("transform", "x.npy", "y.npy", "--model", "m.npz")
    close(load("y.npy"), GyroBN(M).fit_transform(x))


@pytest.mark.parametrize("form", ["npy", "txt"])
def test_domains(here, form):
    labels = np.asarray(["Ada", "Bo", "Bo"] * 20)
    np.save("d.npy", labels)
    (here / "d.txt").write_bytes("\ufeffAda\r\n Bo\t\r\nBo \r\n".encode() + b"Ada\nBo\nBo\n" * 19)
    np.save("x.npy", X)
    domains = "--domains", f"d.{form}"
    report("normalize", "x.npy", "y.npy", *BALLS, *domains, "--save-model", "m")
    bn = GyroBN(BALL).fit(X, domains=labels)
    close(load("y.npy"), bn.transform(X, domains=labels))
    report("inverse", "y.npy", "z.npy", "--model", "m", *domains)
    close(load("z.npy"), X, 1e-11)


@pytest.mark.parametrize("unseen", ["refit", "adapt", "online"])
def test_unseen_domains(here, monkeypatch, unseen):
    """As the estimator with all samples at once, in chunks, and where a few samples are drawn."""
    np.save("x.npy", X)
    np.save("old.npy", np.asarray([b"a", b"b"])[np.arange(60) % 2])
    (here / "new.txt").write_text("5\n6\n" * 30)
    report("fit", "x.npy", "m", *BALLS, "--domains", "old.npy")
    bn = GyroBN.load("m")
    assert bn.domains_.tolist() == ["a", "b"]
    calls = drawn(monkeypatch, "plot_normalization")
    monkeypatch.setattr(plot, "MOST", 7)
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 10)  # ten samples
    options = "--model", "m", "--domains", "new.txt", "--unseen", unseen
    report("transform", "x.npy", "y.npy", *options)
    report("plot", "x.npy", "y.png", *options)
    wanted = bn.set_params(unseen=unseen).transform(X, domains=np.resize(["5", "6"], 60))
    close(load("y.npy"), wanted)
    close(calls[0][0][2], wanted[np.linspace(0, 59, 7).astype(int)])


PARTS = {f"sub-{name}": x for name, x in zip("cab", np.split(X, [10, 30]), strict=True)}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_per_subject(here, monkeypatch, suffix):
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 7)  # chunks of seven samples
    for name, x in PARTS.items():
        save(f"{name}{suffix}", x)
    files = [f"{name}{suffix}" for name in PARTS]
    more = ["--domain-per-file", *(["--axis", "first"] if suffix == ".mat" else [])]
    values = report("normalize", *files, f"y{suffix}", *BALLS, *more, "--save-model", "m")
    assert values["domains"] == sorted(PARTS)
    assert (values["input"], values["samples"]) == (files, 60)
    wanted = [expected(BALL, x) for x in PARTS.values()]
    close(load(f"y{suffix}"), np.concatenate(wanted))
    report("transform", files[2], f"z{suffix}", "--model", "m", *more)
    close(load(f"z{suffix}"), wanted[2])
    report("fit", *files, "m", *BALLS, *more[1:])  # as one data set
    close(GyroBN.load("m").mean_, GyroBN(BALL).fit(X).mean_)


# ---------------------------------------------------------------------- plot


def test_plot(here, monkeypatch):
    from matplotlib.image import imread

    calls = drawn(monkeypatch, "plot_normalization")
    np.save("x.npy", X)
    (here / "classes.txt").write_text("rest\nmove\n" * 30)
    np.save("d.npy", np.arange(60) % 3)
    options = "--labels", "classes.txt", "--domains", "d.npy", "--scale", "0.5"
    values = report("plot", "x.npy", "x.png", *BALLS, *options)
    assert (values["kind"], values["drawn"], values["samples"]) == ("surface", 60, 60)
    assert min(imread("x.png").shape[:2]) > 300
    ((M, before, after, bias), given), *_ = calls
    assert (M, bias) == (BALL, None)
    np.testing.assert_array_equal(before, X)
    close(after, GyroBN(BALL, scale=0.5).fit_transform(X, domains=np.arange(60) % 3))
    np.testing.assert_array_equal(given["labels"], np.resize(["rest", "move"], 60))
    report("plot", "x.npy", "x.png", *BALLS, *options[2:])  # colours are those of the domains
    np.testing.assert_array_equal(calls[1][1]["labels"], np.arange(60) % 3)


def test_plot_of_a_channel_in_the_tangent_space(here, monkeypatch):
    calls = drawn(monkeypatch, "plot_tangent")
    monkeypatch.setattr(plot, "MOST", 15)
    M = SPD(3)
    x, bias, labels = M.random(40, 2, rng=0), M.random(2, rng=1), np.arange(40) % 2
    x[3] = -x[3]
    for name, array in {"x": x, "b": bias, "d": labels}.items():
        np.save(f"{name}.npy", array)
    options = "--bias", "b.npy", "--channel", "1", "--domains", "d.npy", "--on-invalid", "project"
    values = report("plot", "x.npy", "x.svg", "--manifold", "spd", *options)
    assert (values["kind"], values["drawn"], values["samples"]) == ("tangent", 15, 40)
    assert (here / "x.svg").read_text(encoding="utf-8").startswith("<?xml")
    ((_, before, after, target), given), *_ = calls
    rows = np.linspace(0, 39, 15).astype(int)
    np.testing.assert_allclose(before, M.project(x)[rows, 1], atol=1e-14)
    bn = GyroBN(M, bias=bias, on_invalid="project")
    with warnings.catch_warnings(action="ignore"):
        wanted = bn.fit(x, domains=labels).transform(x, domains=labels)
    np.testing.assert_allclose(after, wanted[rows, 1], atol=1e-12)
    np.testing.assert_array_equal(target, bias[1])
    np.testing.assert_array_equal(given["labels"], labels[rows])


def test_plot_where_the_deviation_changes_much():
    np.save("x.npy", X)
    assert report("plot", "x.npy", "x.png", *BALLS, "--scale", "0.01")["kind"] == "tangent"


# ---------------------------------------------------------------------- Dask


@pytest.mark.parametrize("suffix", [".npy", ".zarr", ".csv", ".h5"])
def test_dask(here, monkeypatch, suffix):
    """On a cluster of this process: the tests of the cluster start processes."""
    from distributed import Client

    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 10)  # ten samples a block
    for name, x in PARTS.items():
        save(f"{name}{suffix}", x)
    files = [f"{name}{suffix}" for name in PARTS]
    local = {"processes": False, "n_workers": 1, "dashboard_address": None}
    with Client(**local) as client:
        address = client.scheduler.address
        more = "--domain-per-file", "--dask", address
        report("normalize", *files, f"y{suffix}", *BALLS, *more, "--save-model", "m")
        np.save("d.npy", np.repeat([*PARTS], [10, 20, 30]))
        options = "--model", "m", "--dask", address, "--domains", "d.npy"
        report("inverse", f"y{suffix}", f"z{suffix}", *options)
    close(load(f"z{suffix}"), X, 1e-11)
    close(load(f"y{suffix}"), np.concatenate([expected(BALL, x) for x in PARTS.values()]))


# ---------------------------------------------------------------------- start


@pytest.mark.parametrize("arguments", [["--help"], ["normalize", "--help"], ["normalize", "x"]])
def test_nothing_slow_is_imported_for_help_and_usage(arguments):
    program = (
        "import sys, atexit; from gyrobn.cli import main;"
        "atexit.register(lambda: print(sorted(m for m in"
        " ('sklearn', 'scipy', 'torch', 'jax', 'zarr', 'matplotlib') if m in sys.modules)));"
        "main(sys.argv[1:])"
    )
    assert run(*arguments, start=("-c", program)).stdout.splitlines()[-1] == "[]"


def test_a_command_imports_no_framework_and_the_library_no_command_line():
    np.save("x.npy", X)
    program = (
        "import sys, gyrobn; assert 'gyrobn.cli' not in sys.modules;"
        "from gyrobn.cli import main; main(sys.argv[1:]);"
        "print(sorted({'torch', 'jax', 'zarr', 'matplotlib', 'dask'} & set(sys.modules)))"
    )
    line = "normalize", "x.npy", "y.npy", "--manifold", "poincare_ball"
    assert run(*line, start=("-c", program)).stdout.splitlines()[-1] == "[]"


def test_progress_on_a_terminal(monkeypatch, capsys):
    """Stdout stays clean, and the bar is gone at the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    np.save("x.npy", X)
    from gyrobn.cli import main

    for more in ([], ["--quiet"]):
        assert main(["normalize", "x.npy", "y.npy", *BALLS, *more]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith("input ")
        assert "\r" not in captured.out
        assert ("fit: " in captured.err, "normalize: " in captured.err) == (not more, not more)
        assert captured.err == "" or captured.err.endswith("\r")
