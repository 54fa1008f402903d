"""Bad input, interrupted runs and full disks: one line, an exit code, and no half files."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cli_runner import (
    COMMAND,
    check_one_line,
    environment,
    names,
    on_a_terminal,
    run,
    run_here,
    started,
)

import gyrobn
from gyrobn import SPD, GyroBN, PoincareBall
from gyrobn.cli import main
from gyrobn.cli.command import _ended_by_signals
from gyrobn.data import create_array

PACKAGE = Path(gyrobn.__file__).parent

BALL = PoincareBall(2)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a folder with models: of a ball, of one of three dimensions, one with domains."""
    folder = tmp_path_factory.mktemp("models")
    GyroBN(BALL).fit(BALL.random(20, rng=0)).save(folder / "m.npz")
    GyroBN(PoincareBall(3)).fit(PoincareBall(3).random(20, rng=0)).save(folder / "three.npz")
    labels = np.arange(20) % 2
    GyroBN(BALL).fit(BALL.random(20, rng=0), domains=labels).save(folder / "d.npz")
    content = (folder / "m.npz").read_bytes()
    (folder / "cut.npz").write_bytes(content[: len(content) // 2])
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path, monkeypatch, models):
    """Go to a folder with files of all kinds."""
    monkeypatch.chdir(tmp_path)
    x = BALL.random(20, rng=0)
    np.save("x.npy", x)
    np.save("flat.npy", x[:, 0])
    np.save("number.npy", np.asarray(1.0))
    np.save("empty.npy", x[:0])
    np.save("square.npy", np.zeros((4, 3, 2)))
    np.save("integer.npy", np.ones((4, 2), dtype=int))
    np.save("complex.npy", x.astype(complex))
    np.save("half.npy", x.astype(np.float16))
    np.save("object.npy", np.asarray([[1.0, None]], dtype=object), allow_pickle=True)
    np.savez("two.npz", a=x, b=x)
    x[11, 1] = np.nan
    np.save("nan.npy", x)
    x[11] = [0.9, 0.9]
    np.save("off.npy", x)
    np.save("projector.npy", np.zeros((3, 4, 4)))
    np.save("b.npy", np.asarray([2.0, 0.0]))
    np.save("words.npy", np.asarray(["a", "b"]))
    (tmp_path / "text.npy").write_text("0.1 0.2\n0.3 0.4\n")
    (tmp_path / "x.xls").write_text("0.1,0.2\n")
    (tmp_path / "labels.txt").write_text("a\nb\n")
    (tmp_path / "blank.txt").write_text("a\n\nb\n")
    np.save("nine.npy", np.full(20, 9))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\xfd")
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(content[:-1])
    with zipfile.ZipFile("foreign.npz", "w") as archive:
        archive.writestr("hello.txt", "hello")
    for name, data in models.items():
        (tmp_path / name).write_bytes(data) if name != "cut.npz" else None
    (tmp_path / "broken.npz").write_bytes(models["cut.npz"])
    return tmp_path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


NORMALIZE = "normalize {} y.npy --manifold poincare_ball"

BAD = [
    (NORMALIZE.format("missing.npy"), ["missing.npy: No such file"]),
    (NORMALIZE.format("text.npy"), ["cannot read text.npy", "magic"]),
    (NORMALIZE.format("cut.npy"), ["cut.npy", "cut off"]),
    (NORMALIZE.format("x.xls"), ["x.xls", "suffix '.xls'", ".npy, .npz, .zarr, .mat, .csv"]),
    (NORMALIZE.format("."), ["suffix"]),
    (NORMALIZE.format("object.npy"), ["object.npy", "pickle"]),
    (NORMALIZE.format("integer.npy"), ["integer.npy holds int64, expected float32 or float64"]),
    (NORMALIZE.format("complex.npy"), ["complex128"]),
    (NORMALIZE.format("half.npy"), ["float16"]),
    (NORMALIZE.format("words.npy"), ["<U1"]),
    (NORMALIZE.format("number.npy"), ["number.npy holds a single number"]),
    (NORMALIZE.format("flat.npy"), ["flat.npy has shape (20,)"]),
    (NORMALIZE.format("empty.npy"), ["empty.npy has shape (0, 2)"]),
    (NORMALIZE.format("two.npz"), ["two.npz holds 2 arrays (a, b)"]),
    (NORMALIZE.format("two.npz") + " --key c", ["no array 'c', but a, b"]),
    (NORMALIZE.format("x.npy") + " --key c", ["x.npy", "key 'c'"]),
    (NORMALIZE.format("nan.npy"), ["NaN", "at index 11"]),
    (NORMALIZE.format("off.npy"), ["off PoincareBall", "at index 11: --on-invalid project moves"]),
    (NORMALIZE.format("x.npy") + " --bias b.npy", ["bias is off"]),
    (NORMALIZE.format("x.npy") + " --bias x.npy", ["bias must be a point"]),
    (NORMALIZE.format("x.npy") + " --bias words.npy", ["words.npy holds <U1"]),
    (NORMALIZE.format("x.npy") + " --bias missing.npy", ["missing.npy: No such file"]),
    (NORMALIZE.format("x.npy") + " --domains labels.txt", ["domains", "(20,)"]),
    (NORMALIZE.format("x.npy") + " --domains binary.txt", ["binary.txt is neither"]),
    (NORMALIZE.format("x.npy") + " --domains missing.txt", ["missing.txt: No such file"]),
    (NORMALIZE.format("x.npy") + " --domains blank.txt", ["line 2 of blank.txt is empty"]),
    (
        "transform x.npy y.npy --model d.npz --domains nine.npy",
        ["--unseen refit or --unseen adapt"],
    ),
    ("inspect m.npz --manifold sphere", ["m.npz is a model"]),
    ("normalize x.npy y.xls --manifold poincare_ball", ["y.xls", "suffix"]),
    ("normalize x.npy missing/y.npy --manifold poincare_ball", ["missing/y.npy: No such file"]),
    ("normalize x.npy x.npy/y.npy --manifold poincare_ball", ["x.npy/y.npy: Not a directory"]),
    ("normalize x.npy y.npy --manifold spd", ["x.npy of shape (20, 2)", "square"]),
    ("normalize square.npy y.npy --manifold correlation", ["square"]),
    (
        "normalize projector.npy y.npy --manifold grassmannian --representation projector",
        ["projector.npy: the first samples have the trace 0"],
    ),
    (
        "normalize x.npy y.npy --manifold grassmannian --representation projector",
        ["projectors are square"],
    ),
    (NORMALIZE.format("x.npy") + " --save-model missing/m", ["missing/m", "No such file"]),
    ("fit nan.npy y.npy --manifold poincare_ball", ["NaN", "at index 11"]),
    ("fit x.npy nan.npy --manifold poincare_ball", ["nan.npy exists and is not a model"]),
    (NORMALIZE.format("x.npy") + " --save-model nan.npy", ["nan.npy exists and is not a model"]),
    ("fit x.npy missing/m --manifold poincare_ball", ["missing/m", "No such file"]),
    ("transform x.npy y.npy --model missing", ["missing: No such file"]),
    ("transform x.npy y.npy --model x.npy", ["x.npy", "not a gyrobn model"]),
    ("transform x.npy y.npy --model foreign.npz", ["foreign.npz", "not a gyrobn model"]),
    ("transform x.npy y.npy --model broken.npz", ["broken.npz"]),
    ("transform x.npy y.npy --model three.npz", ["X has 2 features", "expecting 3"]),
    ("transform x.npy y.npy --model d.npz", ["give --domains, too"]),
    ("transform off.npy y.npy --model m.npz", ["at index 11"]),
    ("inverse off.npy y.npy --model m.npz", ["at index 11"]),
    ("inverse missing.npy y.npy --model m.npz", ["missing.npy: No such file"]),
    ("inspect missing.npy", ["missing.npy: No such file"]),
    ("inspect text.npy", ["cannot read text.npy"]),
    ("inspect integer.npy --manifold sphere", ["int64"]),
    ("inspect x.npy --manifold spd", ["x.npy of shape (20, 2) holds no points of spd"]),
    ("inspect foreign.npz", ["foreign.npz holds 0 arrays"]),
    ("inspect broken.npz", ["broken.npz"]),
    ("plot off.npy y.png --manifold poincare_ball", ["at index 11"]),
    ("plot x.npy y.nonsense --manifold poincare_ball", ["nonsense"]),
    ("plot x.npy missing/y.png --manifold poincare_ball", ["missing/y.png: No such file"]),
    ("plot x.npy y.png --manifold poincare_ball --channel 1", ["no channel 1 among 1"]),
    ("plot x.npy y.png --manifold poincare_ball --after square.npy", ["square.npy has shape"]),
    ("plot x.npy y.png --manifold poincare_ball --after off.npy", ["at index 11"]),
    ("plot x.npy y.png --manifold poincare_ball --labels labels.txt", ["labels.txt", "20 samples"]),
    ("plot x.npy y.png --manifold poincare_ball --labels blank.txt", ["line 2 of blank.txt"]),
    ("plot x.npy y.png --manifold poincare_ball --labels missing", ["missing: No such file"]),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_input(folder, line, words, capsys):
    before = contents(folder)
    assert main(line.split()) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    check_one_line(captured.err, *words)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "line",
    [
        "normalize bad.npy y.npy --manifold spd",
        "normalize bad.npy y.npy --manifold spd --engine dask",
        "fit bad.npy y.npz --manifold spd",
        "transform bad.npy y.npy --model m.npz",
        "inverse bad.npy y.npy --model m.npz",
        "plot bad.npy y.png --manifold spd",
        "normalize good.npy bad.npy out --manifold spd",
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
    assert "18 of 20 points" in said
    assert "at index 17" in said


KEEPING = [
    NORMALIZE.format("missing.npy"),
    NORMALIZE.format("object.npy"),
    NORMALIZE.format("off.npy"),
    "fit nan.npy m.npz --manifold poincare_ball",
    "transform x.npy y.npy --model three.npz",
    "inverse off.npy y.npy --model m.npz",
    "inspect text.npy",
    "plot off.npy y.npy --manifold poincare_ball",
    "demo --output missing/y.png",
    "demo --output y.npy",
]


@pytest.mark.parametrize("line", KEEPING)
def test_bad_input_keeps_what_was_there(folder, line):
    """As a process, for the first few; what differs between the others is not how they end."""
    (folder / "y.npy").write_bytes(b"precious")
    before = contents(folder)
    process = (run if line in KEEPING[:2] else run_here)(*line.split(), cwd=folder)
    assert process.returncode == 1
    assert process.stdout == ""
    check_one_line(process.stderr, *dict(BAD).get(line, []))
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("normalize x.npy y.npy", "--manifold is required: one of euclidean"),
        ("normalize x.npy y.npy --manifold torus", "invalid choice: 'torus'"),
        ("normalize x.npy y.npy --manifold product", "invalid choice: 'product'"),
        ("normalize x.npy --manifold sphere", "OUT"),
        ("normalize two.npz two.npz --manifold poincare_ball --key a", "input and output"),
        ("plot x.npy y.png --manifold sphere --after z.npy --scale 2", "exclude each other"),
        ("plot x.npy y.npy --manifold sphere --after y.npy", "after and figure"),
        ("normalize x.npy d.npy --manifold sphere --domains d.npy", "domains and output"),
        ("normalize x.npy y.npy --manifold sphere --metric m", "sphere has no --metric"),
        ("normalize x.npy y.npy --manifold spd --metric m", "metric of SPD must be"),
        ("normalize x.npy y.npy --manifold sphere --curvature -1", "positive"),
        ("normalize x.npy y.npy --manifold sphere --curvature nan", "finite number"),
        ("normalize x.npy y.npy --manifold spd --theta 0", "theta"),
        ("normalize x.npy y.npy --manifold grassmannian --representation q", "representation"),
        ("normalize x.npy y.npy --manifold sphere --eps -1", "at least 0, got -1"),
        ("normalize x.npy y.npy --manifold sphere --scale inf", "finite number"),
        ("normalize x.npy y.npy --manifold sphere --max-iter 0", "at least 1"),
        ("normalize x.npy y.npy --manifold sphere --on-invalid drop", "drop"),
        ("normalize x.npy y.npy --model m --manifold sphere", "exclude each other"),
        ("normalize x.npy y.npy --model m --curvature -1", "--curvature and --model exclude"),
        ("normalize x.npy y.npy --model y.npy", "y.npy is given twice, as model and output"),
        ("normalize x.npy y.npy --manifold sphere --save-model y.npy", "output and save_model"),
        ("normalize x.npy y.npy --manifold sphere --save-model x.npy", "input and save_model"),
        ("normalize x.npy x.npy --manifold sphere --save-model x.npy", "input and output"),
        ("normalize x.npy ./b.npy --manifold sphere --bias b.npy", "bias and output"),
        ("fit x.npy x.npy --manifold sphere", "input and save_model"),
        ("fit x.npy --manifold sphere", "MODEL"),
        ("fit x.npy - --manifold sphere", "- is a pipe, for IN and OUT only"),
        ("transform x.npy y.npy --model -", "name a file as model"),
        ("plot x.npy - --manifold sphere", "name a file as figure"),
        ("demo --output -", "- is a pipe"),
        ("transform x.npy y.npy", "--model"),
        ("transform x.npy y.npy --model m --manifold sphere", "--manifold"),
        ("plot x.npy x.npy --manifold sphere", "input and figure"),
        ("plot x.npy y.png --manifold sphere --channel -1", "at least 0"),
        ("inspect x.npy --curvature 1", "--curvature needs --manifold"),
        ("inspect", "FILE"),
    ],
)
def test_wrong_usage(line, word, capsys):
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    usage, error = captured.err.splitlines()  # a long usage would hide the error
    assert usage.startswith("usage: gyrobn")
    assert word in error


# ---------------------------------------------------------------------- writing over what is read


def _same(path, how):
    """Return another path to a file or a store."""
    other = path.with_name(f"other{path.suffix}")
    if how == "itself":
        return path.name
    if how == "roundabout":
        (path.parent / "sub").mkdir()
        return f"sub/../{path.name}"
    if how == "absolute":
        return str(path)
    if how == "symbolic link":
        other.symlink_to(path.name)
    elif how == "link to its folder":
        (path.parent / "link").symlink_to(".")
        return f"link/{path.name}"
    else:
        os.link(path, other)
    return other.name


WAYS = ["itself", "roundabout", "absolute", "symbolic link", "link to its folder", "hard link"]
WRITING = [
    "normalize {x} {y} --manifold poincare_ball",
    "normalize {x} {y} --manifold poincare_ball --engine dask",
    "transform {x} {y} --model m.npz",
    "inverse {x} {y} --model m.npz",
    "fit {x} {y} --manifold poincare_ball",
    "plot {x} {y} --manifold poincare_ball",
    "normalize x.npy {y} --manifold poincare_ball --bias {x}",
    "normalize x.npy {y} --manifold poincare_ball --domains {x}",
    "normalize x.npy z.npy --model {x} --save-model {y}",
    "plot x.npy {y} --manifold poincare_ball --after {x}",
    "plot x.npy {y} --manifold poincare_ball --labels {x}",
]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("line", WRITING)
def test_no_command_writes_over_what_it_reads(folder, line, how):
    np.save("read.npy", BALL.random(20, rng=0))
    other = _same(folder / "read.npy", how)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    process = run_here(*line.format(x="read.npy", y=other).split(), cwd=folder)
    assert process.returncode == 2, process.stderr
    assert "would be replaced" in process.stderr
    assert "name another file" in process.stderr
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", [way for way in WAYS if way != "hard link"])
@pytest.mark.parametrize("suffix", [".npz", ".zarr", ".csv"])
def test_no_format_is_written_over(tmp_path, suffix, how):
    """A store of zarr is a folder, which has no hard links."""
    path = tmp_path / f"x{suffix}"
    with create_array(path, (20, 2), np.float64) as out:
        out.write(BALL.random(20, rng=0))
    other = _same(path, how)
    line = f"normalize {path.name} {other} --manifold poincare_ball"
    process = run_here(*line.split(), cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert "would be replaced" in process.stderr


@pytest.mark.parametrize("how", ["the same folder", "symbolic link", "hard link"])
def test_no_folder_is_written_over(folder, how):
    (folder / "out").mkdir()
    if how == "the same folder":
        line = "normalize x.npy off.npy ."
    else:
        line = "normalize x.npy off.npy out"
        (os.link if how == "hard link" else os.symlink)(folder / "x.npy", folder / "out" / "x.npy")
    before = (folder / "x.npy").read_bytes()
    process = run_here(*line.split(), "--manifold", "poincare_ball", cwd=folder)
    assert process.returncode == 2
    assert "x.npy is given twice, as input and output" in process.stderr
    assert (folder / "x.npy").read_bytes() == before


def test_a_file_that_is_redirected_is_not_written_over(folder):
    before = (folder / "x.npy").read_bytes()
    with open("x.npy", "rb") as stream:
        line = "normalize - x.npy --manifold poincare_ball"
        process = run(*line.split(), cwd=folder, stdin=stream)
    assert process.returncode == 2
    assert "would be replaced (- is the same file)" in process.stderr
    assert (folder / "x.npy").read_bytes() == before


def test_a_message_cannot_write_to_the_terminal(tmp_path, capsys):
    """A name, or a file, may hold escape sequences and line feeds."""
    assert main(["inspect", str(tmp_path / "a\x1b[31m\nb.npy")]) == 1
    captured = capsys.readouterr()
    check_one_line(captured.err)
    assert "\x1b" not in captured.err


def test_little_memory(folder, monkeypatch, capsys):
    def exhaust(*_):
        raise MemoryError

    monkeypatch.setattr("gyrobn.cli.statistics.fitted", exhaust)
    assert main(NORMALIZE.format("x.npy").split()) == 1
    check_one_line(capsys.readouterr().err, "not enough memory")
    assert "y.npy" not in names(folder)


def test_a_fault_of_the_program_shows_where_it_is(folder, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("gyrobn.cli.statistics.fitted", fail)
    before = contents(folder)
    with pytest.raises(ZeroDivisionError):
        main(NORMALIZE.format("x.npy").split())
    assert contents(folder) == before


# ---------------------------------------------------------------------- stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_report_that_cannot_be_written(folder):
    with open("/dev/full", "w") as full:
        process = run("inspect", "x.npy", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert process.returncode == 1
    check_one_line(process.stderr, "No space left")


# ---------------------------------------------------------------------- interrupted runs


def sparse(path, samples=1 << 27, dtype="<f8"):
    """Make a file of zeros, of 2 GB: it takes no room on the disk, and long to work on."""
    with path.open("wb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": (samples, 2)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + samples * 2 * np.dtype(dtype).itemsize)


def written(folder, least):
    """Tell whether there are so many bytes under a temporary name."""
    temporary = [path for path in folder.iterdir() if path.name.endswith(".part")]
    files = [path for folder in temporary for path in (folder, *folder.rglob("*"))]
    sizes = [path.stat().st_size for path in files if path.is_file()]
    return bool(temporary) and sum(sizes) >= least


@pytest.mark.parametrize(
    ("line", "least", "number"),
    [
        ("normalize x.npy y.npy --manifold euclidean", 0, signal.SIGINT),
        ("transform x.npy y.npy --model m", 1 << 24, signal.SIGTERM),
        ("inverse x.npy y.npz --model m", 1 << 24, signal.SIGINT),
        ("transform x.npy y.zarr --model m", 1, signal.SIGHUP),
    ],
)
def test_interrupted(tmp_path, line, least, number):
    """The signal comes during the fit, or when so many bytes are written."""
    # a file is looked through before the first byte is written
    sparse(tmp_path / "x.npy", samples=1 << (24 if least > 1 else 27))
    GyroBN("euclidean").fit(np.eye(2)).save(tmp_path / "m")
    out = tmp_path / line.split()[2]
    if out.suffix != ".zarr":
        out.write_bytes(b"precious")
    before = names(tmp_path)
    with started(*COMMAND, *line.split(), cwd=tmp_path) as process:
        while not written(tmp_path, least) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert output == ""
    assert errors == "gyrobn: interrupted\n"
    assert names(tmp_path) == before
    if out.suffix != ".zarr":
        assert out.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("fit x.npy model --manifold euclidean", signal.SIGINT),
        ("inspect x.npy --manifold euclidean", signal.SIGTERM),
        ("plot x.npy precious --manifold euclidean", signal.SIGINT),
        ("demo --samples 100000 --output precious", signal.SIGINT),
        ("backends --check", signal.SIGHUP),
    ],
)
def test_interrupted_when_the_bar_appears(tmp_path, line, number):
    """Stderr is a terminal, and the signal comes as soon as there is something to see."""
    # before it shows anything, plot looks through the file
    sparse(tmp_path / "x.npy", samples=1 << (23 if "plot" in line else 27))
    (tmp_path / "precious").write_bytes(b"precious")
    with on_a_terminal(*COMMAND, *line.split(), cwd=tmp_path) as (process, read):
        shown = read(everything=False)
        process.send_signal(number)
        shown += read()
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, shown
    assert output == ""
    assert shown.split("\r")[-2:] == ["gyrobn: interrupted", "\n"]
    assert "Traceback" not in shown
    assert names(tmp_path) == ["precious", "x.npy"]
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize("line", ["backends --manifold spd", "backends IN", "nothing", ""])
def test_wrong_usage_as_a_process(folder, line):
    process = run(*line.split(), cwd=folder)
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("usage: gyrobn")
    assert "Traceback" not in process.stderr


class InterruptedWhenDeleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # the signal arrives between two steps of Python
            pass


def test_interrupted_while_garbage_is_collected():
    """Python drops an exception that is raised there; JAX has code that runs there."""
    with pytest.raises(KeyboardInterrupt) as raised, _ended_by_signals():
        _interrupted_and_going_on()
    assert raised.value.args == (signal.SIGTERM,)


def _interrupted_and_going_on():
    garbage = InterruptedWhenDeleted()
    del garbage
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        pass


class BrokenWhenDeleted:
    def __del__(self):
        raise ResourceWarning("not closed")


def test_after_a_signal_nothing_else_is_shown(monkeypatch):
    """An interrupted import leaves a file open, of which Python would tell."""
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    with _ended_by_signals():
        BrokenWhenDeleted()
        assert len(shown) == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        BrokenWhenDeleted()
    assert len(shown) == 1


# A package that is interrupted when it is imported, and hides that, as some do.
INTERRUPTED = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # the signal arrives between two steps of Python
        pass
except BaseException:
    raise ImportError("initialization failed")
"""


@pytest.fixture
def interrupted_import(tmp_path_factory):
    """Return a function: the environment in which the import of a package is interrupted."""

    def variables(package):
        folder = tmp_path_factory.mktemp("packages")
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(INTERRUPTED)
        path = [str(folder), str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        return environment() | {"PYTHONPATH": os.pathsep.join(path)}

    return variables


@pytest.mark.parametrize("package", ["numpy", "array_api_compat", "sklearn", "matplotlib"])
@pytest.mark.parametrize("script", [False, True])
def test_interrupted_while_it_imports(folder, interrupted_import, package, script):
    project = Path(__file__).parents[1] / "pyproject.toml"
    entry = tomllib.loads(project.read_text())["project"]["scripts"]
    module, function = entry["gyrobn"].split(":")
    command = COMMAND
    if script:  # as pip writes it
        place = folder / "bin" / "gyrobn"
        place.parent.mkdir()
        place.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        command = [sys.executable, "-W", "error", place]
    words = ["normalize", "x.npy", "y.npy"]
    if package == "matplotlib":
        words = ["plot", "x.npy", "y.png"]
    words += ["--manifold", "poincare_ball"]
    before = names(folder)
    variables = interrupted_import(package)
    with started(*command, *words, cwd=folder, env=variables) as process:
        output, errors = process.communicate()
    assert process.returncode == 130, errors
    assert (output, errors) == ("", "gyrobn: interrupted\n")
    assert names(folder) == before


def test_a_program_that_imports_the_library_is_interrupted_as_ever(folder, interrupted_import):
    (folder / "program.py").write_text("import gyrobn\n")
    variables = interrupted_import("numpy")
    with started(sys.executable, "program.py", cwd=folder, env=variables) as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "KeyboardInterrupt" in errors  # which the package hid
    assert "ImportError: initialization failed" in errors


def test_signals_are_given_back(folder, capsys):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert main(["inspect", "x.npy"]) == 0
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


# ---------------------------------------------------------------------- closed pipes


@pytest.fixture
def closed_pipe():
    """Return a pipe from which no one reads."""
    theirs, ours = os.pipe()
    os.close(theirs)
    yield ours
    os.close(ours)


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--version",
        "plot --help",
        "inspect x.npy",
        "inspect m.npz --json",
        "normalize x.npy y.npy --manifold poincare_ball",
        "fit x.npy model --manifold poincare_ball",
        "transform x.npy y.npy --model m.npz",
        "inverse x.npy y.npy --model m.npz",
        "plot x.npy y.png --manifold poincare_ball",
        "demo --samples 5 --output y.png",
        "backends",
    ],
)
def test_closed_pipe(folder, monkeypatch, capsys, closed_pipe, line):
    """Such as ``gyrobn ... | head -1``: the end is that of other programs, 128 + SIGPIPE."""
    with os.fdopen(os.dup(closed_pipe), "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(line.split()) == 141
    assert capsys.readouterr().err == ""
    for name in {"y.npy", "y.png", "model"} & set(line.split()):
        assert (folder / name).stat().st_size > 0  # which was complete before


@pytest.mark.parametrize(
    ("line", "stream"),
    [("--help", "stdout"), ("inspect x.npy", "stdout"), ("inspect missing.npy", "stderr")],
)
def test_closed_pipe_as_a_process(folder, closed_pipe, line, stream):
    """Python itself does not complain, either, when it ends."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: closed_pipe}
    process = run(*line.split(), cwd=folder, capture_output=False, **options)
    assert process.returncode == 141
    assert not process.stdout
    assert not process.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_help_on_a_full_disk(folder):
    with open("/dev/full", "w") as full:
        process = run("--help", cwd=folder, capture_output=False, stdout=full, stderr=-1)
    assert process.returncode == 1
    check_one_line(process.stderr, "No space left")


# ---------------------------------------------------------------------- full disks


@contextmanager
def files_no_longer_than(size):
    """Limit the length of the files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    "line",
    [
        "normalize x.npy y.npy --manifold spd",
        "normalize x.npy y.npz --manifold spd",
        "normalize x.npy y.zarr --manifold spd",
        "transform x.npy y.npy --model m.npz",
        "inverse x.npy y.npy --model m.npz",
        "fit c.npy model --manifold spd",
        "plot x.npy y.png --manifold spd",
        "demo --samples 20 --output y.png",
    ],
)
def test_full_disk(tmp_path, line, there):
    """No file may be longer than 100,000 bytes, and the result would be."""
    x = SPD(12).random(300, rng=0)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "c.npy", SPD(12).random(3, 100, rng=0))  # channels: the model is long
    GyroBN("spd").fit(x).save(tmp_path / "m.npz")
    name = next(word for word in line.split() if word.startswith(("y.", "model")))
    out = tmp_path / name
    if there and name != "y.zarr":
        out.write_bytes(b"precious" if name != "model" else (tmp_path / "m.npz").read_bytes())
    elif there:
        import zarr

        zarr.create_array(str(out), data=np.ones((2, 2)))
    before = names(tmp_path)
    content = out.read_bytes() if out.is_file() else None
    with files_no_longer_than(100_000):
        process = run_here(*line.split(), cwd=tmp_path)
    assert process.returncode == 1, process.stderr
    check_one_line(process.stderr, name, "File too large")
    assert names(tmp_path) == before
    if there and name != "y.zarr":
        assert out.read_bytes() == content
    elif there:
        np.testing.assert_array_equal(zarr.open_array(str(out), mode="r")[:], np.ones((2, 2)))


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_stays_ignored(folder, monkeypatch, number):
    """As under nohup: when the terminal goes, the run goes on. Ctrl-C spares background jobs."""
    monkeypatch.setattr("gyrobn.cli.inspection.run", lambda *_: signal.raise_signal(number))
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert main(["inspect", "x.npy"]) == 0
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_in_a_thread(folder, capsys):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(["inspect", "x.npy"])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_a_report_cannot_write_to_the_terminal(folder, capsys):
    """Labels come out of a file, with whatever is in them."""
    labels = np.resize(["\x1b[2J\nfake line", "b"], 20)
    GyroBN(BALL).fit(BALL.random(20, rng=0), domains=labels).save("esc.npz")
    assert main(["inspect", "esc.npz"]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\nfake line" not in output


def test_an_archive_of_another_version(folder, capsys):
    content = bytearray((folder / "two.npz").read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 6] = 255  # the version that is needed to read it
    (folder / "future.npz").write_bytes(content)
    assert main(["inspect", "future.npz"]) == 1
    check_one_line(capsys.readouterr().err, "future.npz")


def test_a_link_to_itself(folder, capsys):
    (folder / "loop.npy").symlink_to("loop.npy")
    assert main(["inspect", "loop.npy"]) == 1
    check_one_line(capsys.readouterr().err, "loop.npy")


@pytest.mark.parametrize("closed", [1, 2])
def test_closed_streams(folder, closed):
    program = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
    words = ["inspect", "missing.npy" if closed == 2 else "x.npy"]
    process = run(str(closed), *COMMAND, *words, cwd=folder, start=("-c", program))
    assert process.returncode == closed - 1
    assert (process.stdout, process.stderr) == ("", "")


def test_names_that_stdout_cannot_encode(folder):
    variables = environment() | {"PYTHONIOENCODING": "ascii"}
    os.rename("x.npy", "é.npy")
    command = [*COMMAND, "normalize", "é.npy", "ö.npy", "--manifold", "poincare_ball"]
    process = subprocess.run(command, env=variables, capture_output=True)
    assert process.returncode == 0, process.stderr
    assert b"\\xf6.npy" in process.stdout
    assert (folder / "ö.npy").exists()


def test_an_interrupt_while_an_error_is_said(folder, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gyrobn.cli.console.Console.error", interrupt)
    assert main(["inspect", "missing.npy"]) == 130
    assert capsys.readouterr().err == "gyrobn: interrupted\n"


def test_nothing_is_computed_for_a_place_that_cannot_be_written(folder, monkeypatch, capsys):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr("gyrobn.cli.statistics.fitted", never)
    monkeypatch.setattr("gyrobn.cli.picture.fitted", never)
    monkeypatch.setattr("gyrobn.cli.demo.demonstrate", never)
    for line in (
        "fit x.npy missing/m --manifold poincare_ball",
        "normalize x.npy y.npy --manifold poincare_ball --save-model missing/m",
        "plot x.npy missing/y.png --manifold poincare_ball",
        "plot x.npy y.nonsense --manifold poincare_ball",
        "demo --output missing/y.png",
        "demo --output y.nonsense",
    ):
        assert main(line.split()) == 1
        check_one_line(capsys.readouterr().err)
