"""Tables, MATLAB's files, pipes and several files, compared with the library."""

import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.io
import scipy.sparse
from cli_runner import COMMAND, check_one_line, environment, names, report, run_here

from gyrobn import SPD, Grassmannian, GyroBN, PoincareBall
from gyrobn.cli.arguments import COMMANDS, build
from gyrobn.data import create_array, open_array

BALL = PoincareBall(2)
X = BALL.add(np.asarray([0.3, 0.2]), BALL.random(60, rng=0, spread=0.6))
M = SPD(3)
P = M.add(M.random(rng=2), M.random(40, rng=1))
LABELS = np.resize(["Ada", 'Bo, "jr"', "Cy"], len(P))


def lines(rows, delimiter=","):
    return "".join(delimiter.join(map(str, row)) + "\n" for row in np.asarray(rows).tolist())


def normalized(geometry, x, domains=None, **options):
    return GyroBN(geometry, **options).fit(x, domains=domains).transform(x, domains=domains)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def close(y, wanted):
    assert y.shape == wanted.shape
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- tables


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize("header", [None, ["a", "b, in m"]])
def test_text(here, monkeypatch, suffix, delimiter, header):
    """In several blocks, with the byte order mark and the line ends of Windows."""
    monkeypatch.setattr("gyrobn.data.tables.FIELDS", 14)
    first = "" if header is None else delimiter.join(f'"{name}"' for name in header) + "\n"
    text = "\ufeff" + (first + lines(X, delimiter)).replace("\n", "\r\n")
    (here / f"x.{suffix}").write_text(text, encoding="utf-8", newline="")
    values = report("normalize", f"x.{suffix}", f"y.{suffix}", "--manifold", "poincare_ball")
    assert (values["shape"], values["dtype"]) == ([60, 2], "float64")
    found = (here / f"y.{suffix}").read_text(encoding="utf-8").splitlines()
    if header is not None:
        quoted = '"b, in m"' if delimiter == "," else "b, in m"
        assert found.pop(0) == f"a{delimiter}{quoted}"
    y = np.asarray([line.split(delimiter) for line in found], dtype=float)
    close(y, normalized(BALL, X))
    with open_array(here / f"y.{suffix}") as again:  # to the last bit
        np.testing.assert_array_equal(again[:], y)


TRIANGLES = {"upper": np.triu_indices(3), "lower": np.tril_indices(3)}


@pytest.mark.parametrize("layout", ["3x3", "3x3:columns", "upper", "lower"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_of_matrices_with_a_column_of_labels(here, layout, suffix):
    flat = P.reshape(-1, 9) if layout.startswith("3x3") else P[:, *TRIANGLES[layout]]
    columns = [*flat[:, :2].T, LABELS, *flat[:, 2:].T]
    called = [f"c{k}" for k in range(len(columns))]
    called[2] = "who"
    table = pyarrow.table(dict(zip(called, columns, strict=True)))
    if suffix == ".csv":
        import pandas

        pandas.DataFrame(dict(zip(called, columns, strict=True))).to_csv("x.csv", index=False)
    else:
        pyarrow.parquet.write_table(table, "x.parquet", row_group_size=7)
    options = "--manifold", "spd", "--layout", layout, "--domain-column", "who"
    values = report("normalize", f"x{suffix}", f"y{suffix}", *options)
    assert values["domains"] == sorted(set(LABELS))
    wanted = normalized(M, P, LABELS)
    with open_array(f"y{suffix}", layout=layout, domain_column="who") as y:
        close(y[:], wanted)
        assert y.form.names == tuple(called)
        assert y.form.column == 2
        np.testing.assert_array_equal(y.form.labels, LABELS)
    report("normalize", f"x{suffix}", "y.npy", *options)
    close(np.load("y.npy"), wanted)  # an array has the shape of its samples
    if layout == "upper":
        values = report("plot", f"x{suffix}", "y.png", *options, "--after", f"y{suffix}")
        assert values["drawn"] == len(P)


def test_a_wrong_layout_is_not_always_found(here):
    """As the page of the command line says: a triangle makes symmetric matrices in any order."""
    page = (Path(__file__).parents[1] / "docs" / "command_line.md").read_text(encoding="utf-8")
    assert "a wrong one is not always found" in page
    x = np.asarray([[3.0, 1.0, 1.5], [1.0, 2.0, 1.5], [1.5, 1.5, 3.0]]) + 0.01 * P
    (here / "x.csv").write_text(lines(x[:, *TRIANGLES["upper"]]))
    found = [
        report("inspect", "x.csv", "--manifold", "spd", "--layout", layout)["on_manifold"]
        for layout in ("upper", "lower")
    ]
    assert found == [len(P), len(P)]
    # triangles of whole matrices with large diagonals: the other one is indefinite, and refused
    (here / "x.csv").write_text(lines((np.eye(3) + 0.01 * P)[:, *TRIANGLES["upper"]]))
    process = run_here("normalize", "x.csv", "y.csv", "--manifold", "spd", "--layout", "lower")
    check_one_line(process.stderr, "indefinite")


@pytest.mark.parametrize("layout", ["2x4x2", "2x4x2:columns"])
def test_the_order_of_a_row(here, layout):
    """Of what is not symmetric, with channels; rows and columns of each matrix differ."""
    G = Grassmannian(4, 2)
    x = G.random(30, 2, rng=0, spread=0.3)
    flat = x.swapaxes(-1, -2) if "columns" in layout else x
    (here / "x.csv").write_text(lines(flat.reshape(30, 16)))
    options = "--manifold", "grassmannian", "--layout", layout, "--scale", 0.3
    report("normalize", "x.csv", "y.csv", *options)
    y = np.loadtxt("y.csv", delimiter=",").reshape(flat.shape)
    close(y.swapaxes(-1, -2) if "columns" in layout else y, normalized(G, x, scale=0.3))


def test_parquet_of_float32_and_integer_labels(here):
    x, who = X.astype(np.float32), np.arange(60) % 3
    table = {"a": x[:, 0], "who": who, "b": x[:, 1]}
    pyarrow.parquet.write_table(pyarrow.table(table), "x.parquet")
    options = "--manifold", "poincare_ball", "--domain-column", "who"
    values = report("fit", "x.parquet", "m", *options)
    assert (values["dtype"], values["domains"]) == ("float32", [0, 1, 2])
    report("transform", "x.parquet", "y.parquet", "--model", "m", "--domain-column", "who")
    y = pyarrow.parquet.read_table("y.parquet")
    assert [str(kind) for kind in y.schema.types] == ["float", "int64", "float"]
    report("transform", "x.parquet", "y.csv", "--model", "m", "--domain-column", "who")
    digits = np.loadtxt("y.csv", delimiter=",", skiprows=1, dtype=np.float32)
    np.testing.assert_array_equal(digits, np.stack([c.to_numpy() for c in y.columns], axis=1))
    fields = (here / "y.csv").read_text().replace("\n", ",").split(",")
    assert max(map(len, fields)) < 15  # no digits of float64


def test_parquet_of_labels_of_64_bits(here):
    labels = [2**63 + 5, 7]
    table = {"a": X[:, 0], "b": X[:, 1], "who": np.asarray(labels * 30, dtype=np.uint64)}
    pyarrow.parquet.write_table(pyarrow.table(table), "x.parquet")
    options = "--manifold", "poincare_ball", "--domain-column", "who"
    assert report("normalize", "x.parquet", "y.parquet", *options)["domains"] == sorted(labels)
    y = pyarrow.parquet.read_table("y.parquet")
    assert y["who"].to_pylist() == labels * 30
    found = np.stack([y[name].to_numpy() for name in "ab"], axis=1)
    close(found, normalized(BALL, X, domains=labels * 30))


def test_other_arrays_become_tables(here):
    np.save("x.npy", P)
    report("normalize", "x.npy", "y.parquet", "--manifold", "spd")
    y = pyarrow.parquet.read_table("y.parquet")
    assert y.column_names == [f"x{k}" for k in range(9)]
    close(np.stack([c.to_numpy() for c in y.columns], axis=1).reshape(-1, 3, 3), normalized(M, P))


def test_a_header_of_numbers_is_asked_for(here):
    """As pandas writes one; it may also be a sample."""
    (here / "x.csv").write_text("0,1\n" + lines(X))
    process = run_here("inspect", "x.csv")
    assert process.returncode == 1
    assert "--header yes or --header no" in process.stderr
    assert report("inspect", "x.csv", "--header", "yes")["samples"] == 60
    assert report("inspect", "x.csv", "--header", "no")["samples"] == 61


def test_a_bias_in_a_table(here):
    bias = M.random(rng=5)
    bias = (bias + bias.T) / 2  # a triangle has to say all of it
    np.save("b.npy", bias)
    (here / "b.csv").write_text(lines(bias[TRIANGLES["upper"]][None]))
    (here / "x.csv").write_text(lines(P[:, *TRIANGLES["upper"]]))
    for name in ("b.npy", "b.csv"):
        options = "--manifold", "spd", "--layout", "upper", "--bias", name
        report("normalize", "x.csv", f"{name}.npy", *options)
    np.testing.assert_array_equal(np.load("b.npy.npy"), np.load("b.csv.npy"))


# ---------------------------------------------------------------------- MATLAB


@pytest.mark.parametrize("axis", ["first", "last"])
def test_matlab(here, axis):
    """Beside square matrices the axis is clear; one of whole numbers is stored as integers."""
    whole = np.round(100 * P)
    stored = whole if axis == "first" else np.moveaxis(whole, 0, -1)
    scipy.io.savemat("x.mat", {"covs": stored}, do_compression=True)
    values = report("normalize", "x.mat", "y.mat", "--manifold", "spd")
    assert (values["shape"], values["dtype"]) == ([40, 3, 3], "float64")
    y = scipy.io.loadmat("y.mat")["covs"]
    assert y.shape == stored.shape
    close(y if axis == "first" else np.moveaxis(y, -1, 0), normalized(M, whole))


def test_the_axis_of_a_matlab_file_is_asked_for(here):
    scipy.io.savemat("x.mat", {"X": X.T, "note": "hello"})
    process = run_here("inspect", "x.mat", "--key", "X")
    assert "X of x.mat is 2 × 60, 2 samples of shape (60,) or 60 of shape (2,)" in process.stderr
    assert "--axis first or --axis last" in process.stderr
    options = "--key", "X", "--axis", "last", "--manifold", "poincare_ball"
    report("normalize", "x.mat", "y.npy", *options)
    close(np.load("y.npy"), normalized(BALL, X))
    scipy.io.savemat("square.mat", {"X": np.stack([np.eye(3)] * 3)})
    assert "3 × 3 × 3" in run_here("inspect", "square.mat").stderr
    assert report("inspect", "square.mat", "--axis", "first")["shape"] == [3, 3, 3]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [*"bBhHiIlLfd"])
def test_numbers_of_a_matlab_file(here, packed, dtype):
    """SciPy wrote them, beside all that is no array of numbers; long and short names and data."""
    rng = np.random.default_rng(0)
    for name, shape in (("x", (1, 1)), ("a_name_of_length_30___________", (3, 5, 4, 2))):
        x = (100 * rng.random(shape)).astype(dtype)
        more = {"cell": np.asarray(["a", 1.0], dtype=object), "struct": {"a": x}, "text": "hello"}
        more |= {"sparse": scipy.sparse.eye_array(3), "flag": np.asarray([[True]])}
        scipy.io.savemat("x.mat", {**more, name: x, "after": x}, do_compression=packed)
        with open_array("x.mat", name, axis="first") as found:
            assert found.dtype == x.dtype
            np.testing.assert_array_equal(found[:], x)
        with open_array("x.mat", name, axis="last") as found:
            np.testing.assert_array_equal(found[:], np.moveaxis(x, -1, 0))


def test_a_matlab_file_of_another_machine(here):
    """In the other byte order, with whole numbers stored as bytes, as MATLAB does."""

    def element(code, content):
        if len(content) <= 4:
            return struct.pack(">HH", len(content), code) + content.ljust(4, b"\0")
        return struct.pack(">II", code, len(content)) + content + bytes(-len(content) % 8)

    flags, sizes = struct.pack(">II", 6, 0), struct.pack(">ii", 2, 3)
    inside = element(6, flags) + element(5, sizes) + element(1, b"X") + element(2, bytes(range(6)))
    content = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(">H", 0x0100) + b"MI"
    (here / "x.mat").write_bytes(content + element(14, inside))
    assert scipy.io.loadmat("x.mat")["X"].tolist() == [[0, 2, 4], [1, 3, 5]]
    with open_array("x.mat", axis="first") as found:
        assert (found.dtype, found[:].tolist()) == (np.float64, [[0, 2, 4], [1, 3, 5]])


# ---------------------------------------------------------------------- several files


def parts(suffix=".npy"):
    """Write three files of a subject each, of 10, 20 and 30 samples; return their labels."""
    for name, x in zip("cab", np.split(X, [10, 30]), strict=True):
        with create_array(f"sub-{name}{suffix}", x.shape, x.dtype) as out:
            out.write(x)
    return {f"sub-{name}": x for name, x in zip("cab", np.split(X, [10, 30]), strict=True)}


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".zarr", ".mat"])
@pytest.mark.parametrize("there", [False, True])
def test_a_domain_per_file(here, monkeypatch, suffix, there):
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 7)  # chunks of seven samples
    if there:
        (here / "out").mkdir()
        (here / "out" / f"sub-a{suffix}").symlink_to("elsewhere")
        (here / "out" / "precious").write_text("precious")
    given = parts(suffix)
    more = ["--axis", "first"] if suffix == ".mat" else []
    options = ["--manifold", "poincare_ball", "--domain-per-file", "--save-model", "m", *more]
    values = report("normalize", f"sub-*{suffix}", "out", *options)
    assert values["domains"] == ["sub-a", "sub-b", "sub-c"]
    assert values["input"] == [f"sub-{name}{suffix}" for name in "abc"]
    assert (values["samples"], values["output"]) == (60, "out")
    for name, x in given.items():
        with open_array(f"out/{name}{suffix}", axis="first" if more else None) as y:
            close(y[:], normalized(BALL, x))
    kept = ["elsewhere", "precious"] if there else []
    assert names(here / "out") == sorted([*(f"{n}{suffix}" for n in given), *kept])
    one = f"sub-b{suffix}"
    report("transform", one, "again", "--model", "m", "--domain-per-file", *more)
    with open_array(f"again/{one}", axis="first" if more else None) as y:
        close(y[:], normalized(BALL, given["sub-b"]))


@pytest.mark.parametrize("fits", [True, False])
def test_several_files_are_one_data_set(here, monkeypatch, fits):
    monkeypatch.setattr("gyrobn.cli.inputs.fits", lambda *_: fits)
    given = parts()
    together = np.concatenate([given[f"sub-{name}"] for name in "abc"])
    (here / "who.txt").write_text("\n".join(np.resize(["x", "y"], 60)))
    (here / "out").mkdir()
    files = [f"sub-{name}.npy" for name in "abc"]
    report("normalize", *files, "out", "--manifold", "poincare_ball", "--domains", "who.txt")
    wanted = normalized(BALL, together, np.resize(["x", "y"], 60))
    close(np.concatenate([np.load(here / "out" / name) for name in files]), wanted)


def test_columns_of_labels_of_several_tables(here):
    for k, x in enumerate(np.split(X, 2)):
        rows = [[*map(repr, row), f"d{(i + k) % 3}"] for i, row in enumerate(x.tolist())]
        (here / f"{k}.csv").write_text("a,b,who\n" + lines(rows))
    options = "--manifold", "poincare_ball", "--domain-column", "who"
    report("normalize", "0.csv", "1.csv", "out", *options)
    who = np.asarray([f"d{(i + k) % 3}" for k in range(2) for i in range(30)])
    found = []
    for k in range(2):
        with open_array(f"out/{k}.csv", domain_column="who") as y:
            found.append(y[:])
    close(np.concatenate(found), normalized(BALL, X, who))


def test_more_files_than_a_process_can_open(here):
    import resource

    for k in range(60):
        np.save(f"{k:02}.npy", X[k : k + 1])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list((here / "/proc/self/fd").iterdir())) if sys.platform == "linux" else 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 30, before[1]))
    try:
        report("normalize", "*.npy", "out", "--manifold", "poincare_ball")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    close(np.concatenate([np.load(f"out/{k:02}.npy") for k in range(60)]), normalized(BALL, X))


# ---------------------------------------------------------------------- pipes


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_pipes(here, monkeypatch, capsys, kind):
    """The samples go to stdout, the report to stderr."""
    content = io.BytesIO()
    if kind == "npy":
        np.save(content, X.astype(">f4"))
    else:
        content.write(b"a,b\n" + lines(X).encode())
    content.seek(0)
    stdin, stdout, stderr = (io.TextIOWrapper(io.BytesIO()) for _ in range(3))
    stdin = io.TextIOWrapper(content)
    for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
        monkeypatch.setattr(sys, name, stream)
    from gyrobn.cli import main

    form = ["--format", "csv"] if kind == "csv" else []
    assert main(["normalize", "-", "-", "--manifold", "poincare_ball", "--json", *form]) == 0
    assert json.loads(stderr.buffer.getvalue())["output"] == "-"
    assert not stdin.closed
    found = io.BytesIO(stdout.buffer.getvalue())
    if kind == "npy":
        y = np.load(found)
        assert y.dtype == np.dtype(">f4")
        wanted = normalized(BALL, X.astype(np.float32))
        np.testing.assert_allclose(y.astype(np.float32), wanted, rtol=0, atol=1e-6)
    else:
        assert found.readline() == b"a,b\n"
        close(np.loadtxt(found, delimiter=","), normalized(BALL, X))
    assert names(here) == []


def test_a_pipe_of_text_and_a_file_called_like_a_pipe(here, monkeypatch, capsys):
    GyroBN(BALL).fit(X).save("-")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(X).encode())))
    from gyrobn.cli import main

    assert main(["inspect", "-", "--manifold", "poincare_ball"]) == 1
    assert "holds a .npy file unless --format csv or" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(X).encode())))
    assert main(["inspect", "-", "--manifold", "poincare_ball", "--format", "csv"]) == 0
    assert f"-: {len(X)} samples" in capsys.readouterr().out


def test_a_pipeline(here):
    """Of real processes; the second one also reads what the first one wrote."""
    np.save("x.npy", X)
    words = ["normalize", "-", "-", "--manifold", "poincare_ball", "--scale", "0.5"]
    with open("x.npy", "rb") as file:
        first = subprocess.Popen(
            [*COMMAND, *words], stdin=file, stdout=-1, stderr=-1, env=environment()
        )
        words = ["inspect", "-", "--manifold", "poincare_ball", "--json"]
        with first:
            second = subprocess.run([*COMMAND, *words], stdin=first.stdout, capture_output=True)
    assert (first.returncode, second.returncode) == (0, 0)
    assert json.loads(second.stdout)["standard_deviation"] == pytest.approx(0.5, rel=1e-4)


# ---------------------------------------------------------------------- completion


OFFERED = {
    "no": "normalize",
    "normalize --domain-p": "--domain-per-file",
    "normalize --manifold sph": "sphere",
    "inspect sam": "samples.npy",
    "transform --model sam": "samples.npy",
}
"""Lines after gyrobn, and what a shell makes of their last words."""


def output(*words):
    process = subprocess.run(words, capture_output=True, encoding="utf-8", check=True)
    assert process.stderr == ""
    return process.stdout.splitlines()


def by_bash(line):
    """Return what bash offers for the last word."""
    words = ["gyrobn", *line.split()]
    return output(
        "bash",
        "-c",
        f"source ./script; COMP_CWORD={len(words) - 1}; COMP_WORDS=({' '.join(words)}); "
        "$(complete -p gyrobn | sed 's/.*-F \\([^ ]*\\).*/\\1/') gyrobn; "
        'printf "%s\\n" "${COMPREPLY[@]}"',
    )


def by_fish(line):
    """Return what fish offers, without the descriptions."""
    found = output("fish", "--no-config", "-c", f"source ./script; complete -C 'gyrobn {line}'")
    return [one.split("\t")[0] for one in found if one]


def by_zsh(line):
    """Return what zsh makes of the last word after a tab: it completes only in a terminal."""
    Path("functions").mkdir(exist_ok=True)
    Path("functions/_gyrobn").write_text(Path("script").read_text())
    terminal, inside = pty.openpty()
    words = "zsh", "-f", "-i"
    streams = {"stdin": inside, "stdout": inside, "stderr": inside, "start_new_session": True}
    with subprocess.Popen(words, **streams, env=environment() | {"TERM": "dumb"}) as process:
        os.close(inside)
        setup = "fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D"
        os.write(terminal, f"{setup}; gyrobn() {{ print -r -- $@[-1] > done; exit }}\n".encode())
        os.write(terminal, f"gyrobn {line}\t\n".encode())
        with suppress(OSError):  # the end of a terminal
            while os.read(terminal, 4096):
                pass
        os.close(terminal)
    assert process.returncode == 0
    return Path("done").read_text().split()


@pytest.mark.parametrize("complete", [by_bash, by_zsh, by_fish], ids=["bash", "zsh", "fish"])
def test_completion_in_a_shell(here, complete):
    """bash is everywhere; the others are tested where they are installed."""
    shell = complete.__name__.removeprefix("by_")
    if shell != "bash" and shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (here / "script").write_text(run_here("completion", shell).stdout)
    (here / "samples.npy").touch()
    lines = OFFERED if shell != "zsh" else ["normalize --domain-p", "inspect sam"]  # 1 s each
    assert {line: complete(line) for line in lines} == {line: [OFFERED[line]] for line in lines}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_option(shell):
    script = report("completion", shell)["script"]
    _, commands = build()
    assert set(commands) == set(COMMANDS)
    for name, parser in commands.items():
        assert name in script
        for action in parser._actions:
            for option in action.option_strings:
                assert option.lstrip("-") in script, (name, option)
