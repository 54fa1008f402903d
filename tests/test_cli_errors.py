"""Bad input, interrupted runs and full disks: one line, an exit code, and no half files."""

import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.io
from cli_runner import (
    COMMAND,
    check_one_line,
    contents,
    environment,
    names,
    run,
    run_here,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyrobn import SPD, GyroBN, PoincareBall
from gyrobn.cli import main
from gyrobn.data import create_array

BALL = PoincareBall(2)
X = BALL.random(20, rng=0)
TABLE = "".join(f"{a},{b}\n" for a, b in X.tolist())
ROWS = TABLE.splitlines()

TEXTS = {
    "good.csv": TABLE,
    "empty.csv": "",
    "header.csv": "a,b\n",
    "cut.csv": TABLE[: TABLE.rindex(",")],
    "long.csv": "\n".join([*ROWS[:5], "0.1,0.2,0.3", *ROWS[5:]]),
    "text.csv": "\n".join([*ROWS[:5], "0.1,high", *ROWS[5:]]),
    "missing.csv": "a,b\n0.1,\n",
    "grouped.csv": "a,b\n0.1,1_0\n",
    "nan.csv": "\n".join([*ROWS[:5], "0.1,nan", *ROWS[5:]]),
    "off.csv": "\n".join([*ROWS[:5], "0.9,0.9", *ROWS[5:]]),
    "semicolon.csv": TABLE.replace(",", ";"),
    "european.csv": "a;b\n0,1;0,2\n0,3;0,4\n",
    "mixed.csv": "Ada,0.1\nBo,0.2\n",
    "pandas.csv": "0,1\n0.1,0.2\n",
    "who.csv": "a,who,b\n0.1,Ada,0.2\n",
    "six.csv": "1,0,0,1,0,1\n" * 3,
    "36.csv": ",".join(["1"] * 36) + "\n",
    "seven.csv": "1,2,3,4,5,6,7\n",
    "text.npy": "0.1 0.2\n0.3 0.4\n",
    "x.xls": "0.1,0.2\n",
    "labels.txt": "a\nb\n",
    "blank.txt": "a\n\nb\n",
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Return a folder with files of all kinds."""
    folder = tmp_path_factory.mktemp("originals")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    x = X.copy()
    x[11, 1] = np.nan
    off = X.copy()
    off[11] = [0.9, 0.9]
    arrays = {"x": X, "flat": X[:, 0], "number": np.asarray(1.0), "empty": X[:0], "nan": x}
    arrays |= {"off": off, "square": np.zeros((4, 3, 2)), "integer": np.ones((4, 2), dtype=int)}
    arrays |= {"complex": X.astype(complex), "half": X.astype(np.float16)}
    arrays |= {"single": X.astype(np.float32), "three": PoincareBall(3).random(5, rng=0)}
    arrays |= {"projector": np.zeros((3, 4, 4)), "b": np.asarray([2.0, 0.0])}
    arrays |= {"words": np.asarray(["a", "b"]), "nine": np.full(20, 9)}
    arrays |= {"spd": SPD(3).random(9, rng=0)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "object.npy", np.asarray([[1.0, None]], dtype=object), allow_pickle=True)
    np.savez(folder / "two.npz", a=X, b=X)
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:-1])
    (folder / "nothing.npy").touch()
    (folder / "latin.csv").write_bytes("größe,b\n0.1,0.2\n".encode("latin-1"))
    (folder / "binary.txt").write_bytes(b"\xff\xfe\xfd")
    scipy.io.savemat(folder / "x.mat", {"X": X})
    scipy.io.savemat(folder / "two.mat", {"X": X, "Y": X, "s": {"a": 1.0}})
    (folder / "cut.mat").write_bytes((folder / "x.mat").read_bytes()[:-200])
    (folder / "text.h5").write_text("hello")
    with create_array(folder / "x.h5", X.shape, X.dtype) as out:
        out.write(X)
    with zipfile.ZipFile(folder / "foreign.npz", "w") as archive:
        archive.writestr("hello.txt", "hello")
    GyroBN(BALL).fit(X).save(folder / "m.npz")
    GyroBN(PoincareBall(3)).fit(PoincareBall(3).random(20, rng=0)).save(folder / "three.npz")
    GyroBN(BALL).fit(X, domains=np.arange(20) % 2).save(folder / "d.npz")
    content = (folder / "m.npz").read_bytes()
    (folder / "broken.npz").write_bytes(content[: len(content) // 2])
    (folder / "folder").mkdir()
    (folder / "folder" / "x.npy").write_bytes((folder / "x.npy").read_bytes())
    return folder


@pytest.fixture
def folder(originals, tmp_path, monkeypatch):
    shutil.copytree(originals, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


BALLS = "--manifold poincare_ball"


def bad(name, *words, options="", out="y.npy"):
    return f"normalize {name} {out} {BALLS} {options}".strip(), words


BAD = [
    bad("missing.npy", "missing.npy: No such file"),
    bad("object.npy", "object.npy", "Python objects"),
    bad("off.npy", "off PoincareBall", "at index 11: on_invalid='project' moves"),
    bad("text.npy", "cannot read text.npy", "magic"),
    bad("cut.npy", "cannot read cut.npy"),
    bad("nothing.npy", "cannot read nothing.npy"),
    bad("x.xls", "x.xls", "suffix '.xls'", ".npy, .npz, .zarr, .csv, .mat, .h5"),
    bad(".", "suffix"),
    bad("integer.npy", "integer.npy holds int64, expected float32 or float64"),
    bad("complex.npy", "complex128"),
    bad("half.npy", "float16"),
    bad("words.npy", "<U1"),
    bad("number.npy", "number.npy holds a single number"),
    bad("flat.npy", "flat.npy has shape (20,)"),
    bad("empty.npy", "empty.npy"),
    bad("two.npz", "two.npz holds the arrays a, b: choose one by key"),
    bad("two.npz", "holds the arrays a, b", "got 'c'", options="--key c"),
    bad("x.npy", "x.npy", "without a name", options="--key c"),
    bad("nan.npy", "NaN", "at index 11"),
    bad("x.npy", "bias is off", options="--bias b.npy"),
    bad("x.npy", "bias must be a point", options="--bias x.npy"),
    bad("x.npy", "words.npy", options="--bias words.npy"),
    bad("x.npy", "missing.npy: No such file", options="--bias missing.npy"),
    bad("x.npy", "domains", "(20,)", options="--domains labels.txt"),
    bad("x.npy", "binary.txt is neither", options="--domains binary.txt"),
    bad("x.npy", "missing.txt: No such file", options="--domains missing.txt"),
    bad("x.npy", "line 2 of blank.txt is empty", options="--domains blank.txt"),
    bad("x.npy", "y.xls", "suffix", out="y.xls"),
    bad("x.npy", "missing: No such file", out="missing/y.npy"),
    bad("x.npy", "x.npy: Not a directory", out="x.npy/y.npy"),
    bad("x.npy", "folder.zarr", out="folder.zarr"),
    bad("x.npy", "No such file", options="--save-model missing/m"),
    bad("x.npy", "nan.npy exists and is not a model", options="--save-model nan.npy"),
    # tables
    bad("empty.csv", "empty.csv holds no rows of numbers"),
    bad("header.csv", "header.csv holds no rows of numbers"),
    bad("cut.csv", "cannot read cut.csv: the number of columns changed from 2 to 1"),
    bad("long.csv", "the number of columns changed from 2 to 3 at row 6"),
    bad("text.csv", "could not convert string 'high' to float64 at row 5", "by columns"),
    bad("missing.csv", "could not convert string ''"),
    bad("grouped.csv", "could not convert string '1_0'"),
    bad("nan.csv", "NaN", "at index 5"),
    bad("off.csv", "off PoincareBall", "at index 5"),
    bad("semicolon.csv", "cannot read semicolon.csv: could not convert"),
    bad("european.csv", "cannot read european.csv"),
    bad("mixed.csv", "first line of mixed.csv is Ada,0.1", "header='yes' or 'no'"),
    bad("pandas.csv", "first line of pandas.csv is 0,1", "header='yes' or 'no'"),
    bad("mixed.csv", "could not convert string 'Ada'", options="--header no"),
    bad("who.csv", "could not convert string 'Ada'", "by columns, such as 1-3,5"),
    bad("who.csv", "columns of who.csv must be numbers from 1 to 3", options="--columns 1-4"),
    bad("who.csv", "must be numbers from 1 to 3", options="--columns a,b"),
    bad("who.csv", "must be numbers from 1 to 3", options="--columns 0"),
    bad("who.csv", "who.csv has no column x: its first line is a", options="--domain-column x"),
    bad("who.csv", "who.csv has no column 4", options="--domain-column 4"),
    bad("latin.csv", "cannot read latin.csv", "utf-8"),
    bad("good.csv", "does not hold matrices in layout='matrix'", options="--layout matrix"),
    bad("good.csv", "without a name", options="--key a"),
    bad("good.csv", "axis does not apply to good.csv", options="--axis last"),
    bad("x.npy", "header does not apply to x.npy", options="--header no"),
    bad("x.npy", "columns does not apply to x.npy", options="--columns 1"),
    (
        "normalize six.csv y.npy --manifold correlation",
        ("--layout upper (3 × 3) or --layout strict (4 × 4)",),
    ),
    (
        "normalize 36.csv y.npy --manifold spd",
        ("36 numbers per row", "--layout matrix (6 × 6) or --layout upper (8 × 8)"),
    ),
    ("inspect seven.csv --manifold spd", ("7 numbers per row, which hold no matrix of SPD",)),
    # MATLAB and HDF5
    bad("x.mat", "(20, 2)", "axis='first' or 'last'"),
    bad("two.mat", "two.mat holds the arrays X, Y, s: choose one by key"),
    bad("two.mat", "two.mat holds [(", "expected float32", options="--key s --axis first"),
    bad("cut.mat", "cannot read cut.mat", options="--axis first"),
    bad("text.h5", "cannot read text.h5"),
    bad("x.h5", "x.h5 holds the arrays X", options="--key Y"),
    # several files
    bad("x.npy three.npy", "three.npy holds samples of shape (3,)"),
    bad("x.npy single.npy", "single.npy holds samples of shape (2,), float32"),
    bad("x.npy off.npy", "at index 31", "sample 11 of off.npy"),
    bad("x.npy missing.npy", "missing.npy: No such file"),
    bad("x.npy off.npy", "three.npy exists: of several files, OUT must be a new", out="three.npy"),
    bad("x.npy folder/x.npy", "domains would be called x", options="--domain-per-file"),
    # geometries and models
    ("normalize x.npy y.npy --manifold spd", ("X of shape (20, 2)", "square")),
    ("normalize square.npy y.npy --manifold correlation", ("square",)),
    (
        "normalize projector.npy y.npy --manifold grassmannian --representation projector",
        ("X of shape (3, 4, 4)", "the first samples have the trace 0"),
    ),
    (
        "normalize x.npy y.npy --manifold product",
        ("X of shape (20, 2)", "give the geometry itself"),
    ),
    (
        "normalize spd.npy y.npy --manifold sphere",
        ("would normalize their rows: give manifold='spd'",),
    ),
    (
        "normalize x.npy y.npy --manifold sphere --metric m",
        ("sphere has no metric", "such parameters sphere has curvature"),
    ),
    (
        "normalize x.npy y.npy --manifold poincare_ball --curvature 1",
        ("negative sectional curvature",),
    ),
    ("normalize x.npy y.npy --manifold poincare_ball --curvature nan", ("finite number",)),
    ("normalize x.npy y.npy --manifold poincare_ball --eps -1", ("eps", "at least 0, got -1")),
    ("normalize x.npy y.npy --manifold poincare_ball --scale inf", ("scale", "finite number")),
    ("normalize x.npy y.npy --manifold poincare_ball --scale -2", ("scale", "not be negative")),
    ("normalize x.npy y.npy --manifold poincare_ball --max-iter 0", ("max_iter", "positive")),
    ("normalize x.npy y.npy --model m.npz --curvature -1", ("--curvature and --model exclude",)),
    (f"fit nan.npy y.npy {BALLS}", ("NaN", "at index 11")),
    (f"fit x.npy nan.npy {BALLS}", ("nan.npy exists and is not a model",)),
    (f"fit x.npy missing/m {BALLS}", ("No such file",)),
    ("transform x.npy y.npy --model missing", ("missing", "No such file")),
    ("transform x.npy y.npy --model x.npy", ("x.npy", "not a gyrobn model")),
    ("transform x.npy y.npy --model foreign.npz", ("foreign.npz", "not a gyrobn model")),
    ("transform x.npy y.npy --model broken.npz", ("broken.npz",)),
    ("transform x.npy y.npy --model three.npz", ("features", "3")),
    ("transform x.npy y.npy --model d.npz", ("domains=...",)),
    ("transform x.npy y.npy --model d.npz --domains nine.npy", ("unseen='refit' or 'adapt'",)),
    ("transform off.npy y.npy --model m.npz", ("at index 11",)),
    ("inverse off.npy y.npy --model m.npz", ("at index 11",)),
    ("inspect missing.npy", ("missing.npy: No such file",)),
    ("inspect text.npy", ("cannot read text.npy",)),
    ("inspect foreign.npz", ("foreign.npz holds the arrays (none)",)),
    ("inspect broken.npz", ("broken.npz",)),
    ("inspect d.npz --manifold sphere", ("d.npz",)),
    (f"plot off.npy y.png {BALLS}", ("at index 11",)),
    (f"plot x.npy y.nonsense {BALLS}", ("nonsense",)),
    (f"plot x.npy missing/y.png {BALLS}", ("No such file",)),
    (f"plot x.npy y.png {BALLS} --channel 1", ("no channel 1 among 1",)),
    (f"plot x.npy y.png {BALLS} --labels labels.txt", ("20 labels", "(2,)")),
    (f"plot x.npy y.png {BALLS} --labels missing", ("missing: No such file",)),
    ("demo --samples 0", ("--samples must be positive",)),
    ("demo --output missing/y.png", ("No such file",)),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_input(folder, line, words):
    """One line, nothing written, and what was at OUT stays; as a process for the first."""
    (folder / "folder.zarr").mkdir()
    (folder / "folder.zarr" / "mine").touch()
    if "y.npy" in line and not line.startswith("fit") and line.count(".npy") < 3:
        (folder / "y.npy").write_bytes(b"precious")
    before = contents(folder)
    process = (run if (line, words) in BAD[:1] else run_here)(*line.split())
    assert (process.returncode, process.stdout) == (1, "")
    check_one_line(process.stderr, *words)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "line",
    [
        "normalize bad.npy y.npy --manifold spd",
        "fit bad.npy y.npz --manifold spd",
        "transform bad.npy y.npy --model m.npz",
        "inverse bad.npy y.npy --model m.npz",
        "plot bad.npy y.png --manifold spd",
        "normalize good.npy bad.npy y.npy --manifold spd",
    ],
)
def test_every_kind_of_bad_sample_is_reported(tmp_path, line):
    x = SPD(3).random(20, rng=0)
    np.save(tmp_path / "good.npy", x)
    GyroBN(SPD(3)).fit(x).save(tmp_path / "m.npz")
    x[11, 1, 1], x[7] = np.nan, -x[7]
    np.save(tmp_path / "bad.npy", x)
    process = run_here(*line.split(), cwd=tmp_path)
    assert process.returncode == 1
    start = 20 if "good" in line else 0
    check_one_line(process.stderr, "has NaN in 1 of", f"at index {start + 11}: drop or impute")
    check_one_line(process.stderr, "is off SPD", f"at index {start + 7}: that matrix is indefinite")
    if start:
        check_one_line(process.stderr, "sample 11 of bad.npy", "sample 7 of bad.npy")


def test_a_long_file_is_read_up_to_its_first_bad_sample(tmp_path, monkeypatch):
    """So a count in the error is not that of the file, and the error says which command counts."""
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 72 * 7)  # seven samples a chunk
    x = SPD(3).random(20, rng=0)
    x[3, 1, 1], x[17] = np.nan, -x[17]
    np.save(tmp_path / "x.npy", x)
    process = run_here("normalize", "x.npy", "y.npy", "--manifold", "spd", cwd=tmp_path)
    check_one_line(process.stderr, "NaN in 1 of 7 samples", "gyrobn inspect counts all")
    said = run_here("inspect", "x.npy", "--manifold", "spd", cwd=tmp_path).stdout
    assert re.search("on manifold +18\n", said)
    assert re.search("worst index +\\(17,\\)\nworst +indefinite", said)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("", "are required: COMMAND"),
        ("nothing", "invalid choice: 'nothing'"),
        ("inspect", "IN"),
        ("normalize x.npy y.npy --manifold doughnut", "invalid choice: 'doughnut'"),
        ("normalize x.npy y.npy", "one of the arguments --manifold --model is required"),
        ("normalize x.npy y.npy --model m --manifold sphere", "not allowed with argument"),
        (
            "fit x.csv m --manifold sphere --domain-column w --domains d",
            "not allowed with argument",
        ),
        (
            "fit x.npy m --manifold sphere --domain-per-file --domains d",
            "not allowed with argument",
        ),
        ("normalize x.npy --manifold sphere", "OUT"),
        ("normalize x.npy y.npy --manifold sphere --scale wide", "invalid scale value: 'wide'"),
        ("normalize x.npy y.npy --manifold sphere --on-invalid skip", "skip"),
        ("normalize x.npy y.npy --manifold sphere --layout lower", "invalid choice: 'lower'"),
        ("fit x.npy --manifold sphere", "MODEL"),
        ("fit x.npy m", "--manifold"),
        ("transform x.npy y.npy", "--model"),
        ("transform x.npy y.npy --model m --manifold sphere", "--manifold"),
    ],
)
def test_wrong_usage(line, word):
    process = run_here(*line.split())
    assert (process.returncode, process.stdout) == (2, "")
    check_one_line(process.stderr, word, "; see gyrobn ", " --help")


@pytest.mark.parametrize(
    ("line", "module", "extra"),
    [
        (f"normalize x.npy y.zarr {BALLS}", "zarr", "zarr"),
        (f"normalize x.h5 y.npy {BALLS}", "h5py", "hdf5"),
        (f"normalize x.npy y.npy {BALLS} --dask", "distributed", "dask"),
        (f"plot x.npy y.png {BALLS}", "matplotlib.figure", "plot"),
    ],
)
def test_without_a_package(folder, monkeypatch, line, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    before = contents(folder)
    process = run_here(*line.split())
    assert (process.returncode, process.stdout) == (1, "")
    check_one_line(process.stderr, f"pip install 'gyrobn[{extra}]'")
    assert contents(folder) == before


# ---------------------------------------------------------------------- writing over what is read


def _same(path, how):
    """Return another path to a file."""
    other = path.with_name(f"other{path.suffix}")
    if how == "itself":
        return path.name
    if how == "roundabout":
        return f"folder/../{path.name}"
    if how == "link to its folder":
        (path.parent / "link").symlink_to(".")
        return f"link/{path.name}"
    other.symlink_to(path.name) if how == "symbolic link" else os.link(path, other)
    return other.name


WRITING = [
    f"normalize {{x}} {{y}} {BALLS}",
    "transform {x} {y} --model m.npz",
    "inverse {x} {y} --model m.npz",
    f"fit {{x}} {{y}} {BALLS}",
    f"plot {{x}} {{y}} {BALLS}",
    f"normalize nan.npy {{x}} {{y}} {BALLS}",
    f"normalize x.npy {{y}} {BALLS} --bias {{x}}",
    f"normalize x.npy {{y}} {BALLS} --domains {{x}}",
    f"normalize x.npy {{x}} {BALLS} --save-model {{y}}",
    "normalize x.npy z.npy --model {x} --save-model {y}",
    f"plot x.npy {{y}} {BALLS} --labels {{x}}",
]


@pytest.mark.parametrize(
    "how", ["itself", "roundabout", "link to its folder", "symbolic link", "hard link"]
)
@pytest.mark.parametrize("line", WRITING)
def test_no_command_writes_over_what_it_reads(folder, line, how):
    np.save("read.npy", X)
    other = _same(folder / "read.npy", how)
    before = contents(folder)
    process = run_here(*line.format(x="read.npy", y=other).split())
    assert process.returncode == 1
    check_one_line(process.stderr, "would be replaced: name another file")
    assert contents(folder) == before


# ---------------------------------------------------------------------- how a run ends


def test_a_message_cannot_write_to_the_terminal(folder, capsys):
    """A name, or a file, may hold escape sequences and line feeds."""
    assert main(["inspect", "a\x1b[31m\nb.npy"]) == 1
    captured = capsys.readouterr()
    check_one_line(captured.err)
    assert "\x1b" not in captured.err
    GyroBN(BALL).fit(X, domains=["a\x1b[31m", "b"] * 10).save("labels")
    assert "\x1b" not in run_here("inspect", "labels").stdout


def test_little_memory_and_faults_of_the_program(folder, monkeypatch):
    before = contents(folder)
    monkeypatch.setattr("gyrobn.cli.normalize.estimator", lambda _: exec("raise MemoryError"))
    line = f"normalize x.npy y.npy {BALLS}".split()
    check_one_line(run_here(*line).stderr, "MemoryError")
    monkeypatch.setattr("gyrobn.cli.normalize.estimator", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(line)
    assert contents(folder) == before


def make_long(path):
    """Make a file of zeros, of 2 GB: it takes no room on the disk, and long to work on."""
    with open(path, "wb") as file:
        shape = (10**8, 2)
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": shape}
        )
        file.truncate(file.tell() + 16 * shape[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_or_killed(folder, number):
    """Ctrl-C cleans up. What a killed process has left, the next run with that OUT removes."""
    make_long("long.npy")
    before = names(folder)
    command = [*COMMAND, "transform", "long.npy", "y.npy", "--model", "m.npz"]
    # what is ignored here, as in a background job, would stay ignored there
    fresh = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); "
    fresh += "os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", fresh, *command],
        stderr=subprocess.PIPE,
        env=environment(),
        encoding="utf-8",
    ) as process:
        begin = time.monotonic()
        while names(folder) == before and time.monotonic() < begin + 60:
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    os.remove("long.npy")
    left = set(names(folder)) - set(before)
    assert "y.npy" not in left
    if number == signal.SIGINT:
        assert (process.returncode, error, left) == (130, "gyrobn: interrupted\n", set())
    else:
        assert process.returncode == -number
        assert all(name.startswith(".y.npy.gyrobn-") for name in left)
        assert len(left) == 1
    assert run_here("transform", "x.npy", "z.npy", "--model", "m.npz").returncode == 0
    assert left <= set(names(folder))  # it is not of that OUT
    assert run_here("transform", "x.npy", "y.npy", "--model", "m.npz").returncode == 0
    assert set(names(folder)) == {*before, "y.npy", "z.npy"} - {"long.npy"}


@contextmanager
def files_no_longer_than(count):
    """Limit the length of the files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("name", ["y.npy", "y.npz", "y.zarr", "y.csv", "y.mat", "y.h5"])
def test_full_disk(folder, name, there):
    """No file may be longer than 100,000 bytes, and the result would be."""
    x = 0.5 * np.random.default_rng(0).random((10_000, 2))
    np.save("long.npy", x)
    if there:
        with create_array(name, X.shape, X.dtype) as out:
            out.write(X)
    before = contents(folder)
    with files_no_longer_than(100_000):
        process = run_here(*f"normalize long.npy {name} {BALLS}".split())
    assert process.returncode == 1
    check_one_line(process.stderr)
    assert contents(folder) == before


def test_a_closed_pipe(folder):
    """Such as ``gyrobn ... | head -0``: no traceback."""
    theirs, ours = os.pipe()
    os.close(theirs)
    command = [*COMMAND, "inspect", "x.npy"]
    process = subprocess.run(command, stdout=ours, stderr=subprocess.PIPE, env=environment())
    os.close(ours)
    assert (process.returncode, process.stderr) == (1, b"")


# ---------------------------------------------------------------------- any bytes

BOUNDED = settings(
    derandomize=True,
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

LINES = (
    f"normalize {{}} y.npy {BALLS} --axis first",
    f"normalize {{}} y.npy {BALLS}",
    f"normalize x.npy y.npy {BALLS} --bias {{}}",
    f"normalize x.npy y.npy {BALLS} --domains {{}}",
    "inspect {}",
    "inverse x.npy y.npy --model {}",
)


@BOUNDED
@given(draw=st.data())
def test_damaged_files(folder, draw):
    """Any bytes changed, or cut off: the command succeeds, or fails in one line."""
    name = draw.draw(st.sampled_from(["x.npy", "two.npz", "m.npz", "good.csv", "x.h5"]))
    content = bytearray((folder / name).read_bytes())
    for _ in range(draw.draw(st.integers(1, 4))):
        content[draw.draw(st.integers(0, len(content) - 1))] = draw.draw(st.integers(0, 255))
    if draw.draw(st.booleans()):
        del content[draw.draw(st.integers(0, len(content) - 1)) :]
    run_on(folder, f"z{name[name.index('.') :]}", content, draw)


@BOUNDED
@given(draw=st.data(), data=st.binary(max_size=300))
def test_any_bytes(folder, draw, data):
    heads = {".csv": b"a,b\n", ".npy": b"\x93NUMPY\x01\x00\x76\x00", ".npz": b"PK\x03\x04"}
    heads |= {".h5": b"\x89HDF\r\n\x1a\n", ".txt": b"a\n"}
    suffix = draw.draw(st.sampled_from(sorted(heads)))
    run_on(folder, f"z{suffix}", draw.draw(st.sampled_from([b"", heads[suffix]])) + data, draw)


def run_on(folder, name, content, draw):
    (folder / "y.npy").unlink(missing_ok=True)
    (folder / name).write_bytes(content)
    before = names(folder)
    process = run_here(*draw.draw(st.sampled_from(LINES)).format(name).split())
    if process.returncode:
        assert (process.returncode, process.stdout) == (1, "")
        *said, error = process.stderr.splitlines(keepends=True)
        assert all(line.startswith("gyrobn: warning: ") for line in said)
        check_one_line(error)
        assert names(folder) == before
    (folder / name).unlink()


class Bomb:
    """What a pickle runs when it is read."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_no_pickle_runs(folder, line, suffix):
    array = np.asarray([[Bomb(), 1.0]], dtype=object)
    (np.save if suffix == ".npy" else np.savez)(f"z{suffix}", array)
    if line.endswith("--model {}"):
        (folder / f"z{suffix}").write_bytes(pickle.dumps(Bomb()))
    process = run_here(*line.format(f"z{suffix}").split())
    assert process.returncode == 1
    check_one_line(process.stderr)
    assert not (folder / "exploded").exists()
