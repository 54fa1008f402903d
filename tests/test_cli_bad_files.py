"""Bad tables, MATLAB files, pipes and folders: one line, an exit code, nothing written."""

import io
import os
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.io
from cli_runner import COMMAND, check_one_line, environment, names, run_here
from hypothesis import given
from hypothesis import strategies as st
from test_cli_fuzz import BOUNDED, CapturedWithWarnings

from gyrobn import GyroBN, PoincareBall
from gyrobn.cli import main

BALL = PoincareBall(2)
X = BALL.random(20, rng=0)

TABLE = "".join(f"{a},{b}\n" for a, b in X.tolist())
BALLS = "--manifold poincare_ball"
HEAD = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"


def tables(folder):
    rows = TABLE.splitlines()
    texts = {
        "good.csv": TABLE,
        "empty.csv": "",
        "blank.csv": "\n\n",
        "header.csv": "a,b\n",
        "cut.csv": TABLE[: TABLE.rindex(",")],
        "long.csv": "\n".join([*rows[:5], "0.1,0.2,0.3", *rows[5:]]),
        "gap.csv": "\n".join([*rows[:5], "", *rows[5:]]),
        "text.csv": "\n".join([*rows[:5], "0.1,high", *rows[5:]]),
        "missing.csv": "a,b\n0.1,\n",
        "nan.csv": "\n".join([*rows[:5], "0.1,nan", *rows[5:]]),
        "off.csv": "\n".join([*rows[:5], "0.9,0.9", *rows[5:]]),
        "semicolon.csv": TABLE.replace(",", ";"),
        "comma.csv": TABLE.replace(",", ";").replace(".", ","),
        "european.csv": "a;b\n0,1;0,2\n0,3;0,4\n",
        "decimals.csv": "0,1;0,2\n0,3;0,4\n",
        "quoted.csv": 'a,b\n"0,1","0,2"\n',
        "commas.tsv": TABLE,
        "names.csv": 'who,b\n"Lovelace, Ada",0.2\n',
        "spaces.csv": TABLE.replace(",", " "),
        "quote.csv": 'a,b\n"0.1,0.2\n',
        "index.csv": ",a,b\n0,0.1,0.2\n",
        "mixed.csv": "Ada,0.1\nBo,0.2\n",
        "who.csv": "a,who,b\n0.1,Ada,0.2\n0.3,,0.4\n",
        "twice.csv": "a,a\n0.1,0.2\n",
        "labels.txt": "a\nb\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "nul.csv").write_bytes(b"0.1,0.2\n\x00,0.1\n")
    (folder / "latin.csv").write_bytes("größe,b\n0.1,0.2\n".encode("latin-1"))


def others(folder):
    np.save("x.npy", X)
    np.save("three.npy", PoincareBall(3).random(5, rng=0))
    np.save("single.npy", X.astype(np.float32))
    off = X.copy()
    off[7] = 0.9
    np.save("off.npy", off)
    np.save("complex.npy", X + 1j)
    np.savez("two.npz", a=X, b=X)
    (folder / "empty.npy").write_bytes(b"")
    scipy.io.savemat("x.mat", {"X": X})
    scipy.io.savemat("two.mat", {"X": X, "names": "hello", "s": {"a": 1.0}})
    scipy.io.savemat("old.mat", {"X": X}, format="4")
    scipy.io.savemat("complex.mat", {"X": X + 1j})
    scipy.io.savemat("integer.mat", {"X": np.arange(20, dtype=np.int16).reshape(10, 2)})
    content = (folder / "x.mat").read_bytes()
    (folder / "cut.mat").write_bytes(content[:-200])
    (folder / "head.mat").write_bytes(content[:130])
    (folder / "empty.mat").write_bytes(b"")
    (folder / "hdf.mat").write_bytes(HEAD.ljust(512, b"\x00") + b"\x89HDF\r\n\x1a\n")
    columns = {"a": X[:, 0], "b": X[:, 1]}
    for name, more in (
        ("x", {}),
        ("id", {"id": np.arange(20)}),
        ("text", {"who": ["Ada", *["Bo"] * 18, None]}),
        ("list", {"v": [[0.1, 0.2]] * 20}),
    ):
        pyarrow.parquet.write_table(pyarrow.table(columns | more), f"{name}.parquet")
    content = (folder / "x.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(content[:-20])
    (folder / "sub").mkdir()
    np.save("sub/x.npy", X)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    before = os.getcwd()
    os.chdir(folder)
    tables(folder)
    others(folder)
    GyroBN(BALL).fit(X).save("m.npz")
    GyroBN(BALL).fit(X, domains=np.resize(["x", "three"], 20)).save("d.npz")
    os.chdir(before)
    return folder


@pytest.fixture
def folder(originals, tmp_path, monkeypatch):
    import shutil

    shutil.copytree(originals, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def contents(folder):
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def bad(name, *words, options="", out="y.npy"):
    return f"normalize {name} {out} {BALLS} {options}".strip(), words


BAD = [
    bad("empty.csv", "cannot read empty.csv: it is empty"),
    bad("blank.csv", "it is empty"),
    bad("header.csv", "header.csv has shape (0, 2)"),
    bad("cut.csv", "line 20 has 1 fields separated by ',', the first line has 2"),
    bad("long.csv", "line 6 has 3 fields"),
    bad("gap.csv", "line 6 is empty"),
    bad("text.csv", "line 6 of text.csv has 'high' in column 2, expected a number"),
    bad("missing.csv", "line 2 of missing.csv has '' in column 2, expected a number"),
    bad("nan.csv", "NaN", "at index 5"),
    bad("off.csv", "off PoincareBall", "at index 5: --on-invalid project moves"),
    bad("semicolon.csv", "line 2 of semicolon.csv has", ".csv is for commas"),
    bad("comma.csv", "of comma.csv"),
    bad("european.csv", "line 2 has 3 fields separated by ','", "numbers have decimal points"),
    bad("decimals.csv", "words and numbers: .csv is for commas", "by --header yes or --header no"),
    bad("quoted.csv", "has '0,1' in column 1", "numbers have decimal points"),
    bad("commas.tsv", "line 2 of commas.tsv has", ".tsv for tabs"),
    bad("names.csv", "has 'Lovelace, Ada' in column 1, who", "by --domain-column"),
    bad("spaces.csv", "line 2 of spaces.csv has", ".csv is for commas"),
    bad("quote.csv", "cannot read quote.csv"),
    bad("index.csv", "column 1 has no name", "index=False"),
    bad("mixed.csv", "words and numbers", "--header yes or --header no"),
    bad("mixed.csv", "line 1 of mixed.csv has 'Ada' in column 1", options="--header no"),
    bad("who.csv", "line 2 of who.csv has 'Ada' in column 2, who", "by --domain-column"),
    bad("who.csv", "line 3 has no label", options="--domain-column who"),
    bad("who.csv", "0 of its columns are called 'x', expected one", options="--domain-column x"),
    bad("twice.csv", "2 of its columns are called 'a'", options="--domain-column a"),
    bad("good.csv", "good.csv has no header", options="--domain-column a"),
    bad("nul.csv", "nul.csv"),
    bad("latin.csv", "cannot read latin.csv: byte 0xf6 is not UTF-8", "convert the file to utf-8"),
    bad("good.csv", "2 numbers per row, and layout 4x4 takes 16", options="--layout 4x4"),
    bad("good.csv", "layout upper takes n(n + 1)/2 numbers", options="--layout upper"),
    bad("good.csv", "good.csv is a .csv file, and --axis is for .mat", options="--axis last"),
    bad("good.csv", "holds one array without a name", options="--key a"),
    bad("x.npy", "x.npy is a .npy file, and --layout is for .csv", options="--layout 2x1"),
    bad("x.npy", "--header is for .csv, .tsv", options="--header no"),
    bad("x.npy", "--domain-column is for .csv", options="--domain-column a"),
    bad("x.mat", "--axis first or --axis last"),
    bad("two.mat", "two.mat holds 3 arrays (X, names, s): choose one by --key"),
    bad("x.npy", "two.npz holds 2 arrays (a, b): choose one by its key", options="--bias two.npz"),
    bad(
        "x.npy", "two.npz holds 2 arrays (a, b): choose one by its key", options="--domains two.npz"
    ),
    bad("complex.npy", "complex.npy holds complex128", "no geometry here has complex points"),
    bad("empty.npy", "cannot read empty.npy: it is empty"),
    bad("two.mat", "names is a char array", options="--key names"),
    bad("two.mat", "s is a struct", options="--key s"),
    bad("two.mat", "no array 'Y', but X, names, s", options="--key Y"),
    bad("old.mat", "no .mat file of version 5 to 7", "-v7"),
    bad("hdf.mat", "version 7.3, which is HDF5: save it in MATLAB with", "'-v7'"),
    bad("complex.mat", "X holds complex numbers", options="--axis first"),
    bad("integer.mat", "int16", options="--axis first"),
    bad("cut.mat", "cannot read cut.mat", options="--axis first"),
    bad("head.mat", "cannot read head.mat"),
    bad("empty.mat", "cannot read empty.mat"),
    bad("cut.parquet", "cannot read cut.parquet"),
    bad("id.parquet", "column 'id' holds int64, expected float or double"),
    bad("text.parquet", "column 'who' holds"),
    bad("text.parquet", "row 19 has no label in 'who'", options="--domain-column who"),
    bad("list.parquet", "column 'v' holds list"),
    bad("*.nothing", "no file matches *.nothing", out="out"),
    bad("x.npy three.npy", "three.npy holds samples of shape (3,)", out="out"),
    bad("x.npy single.npy", "single.npy holds samples of shape (2,), float32", out="out"),
    bad("x.npy off.npy", "at index 27", "; sample 7 of off.npy", out="out"),
    bad("x.npy good.csv cut.csv", "line 20 has 1 fields", out="out"),
    bad("x.npy missing.npy", "missing.npy: No such file", out="out"),
    bad("x.npy off.npy", "labels.txt exists and is not a folder", out="labels.txt"),
    bad("x.npy", "missing/out: No such file", out="missing/out", options="--domain-per-file"),
    ("transform x.npy three.npy out --model m.npz", ("three.npy holds",)),
    ("transform off.npy out --model d.npz --domain-per-file", ("did not see domain 'off'",)),
    ("inspect good.csv --manifold spd", ("holds no points of spd", "--layout 5x2")),
    (f"normalize good.csv y.npy {BALLS} --engine dask", ("takes .npy and .zarr files",)),
    (f"normalize x.npy y.csv {BALLS} --engine dask", ("y.csv is a .csv file", "name a .npy")),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_files(folder, line, words):
    before = contents(folder)
    process = run_here(*line.split())
    assert (process.returncode, process.stdout) == (1, "")
    check_one_line(process.stderr, *words)
    assert contents(folder) == before


def test_a_bad_bias_is_in_no_file_of_samples(folder):
    np.save("c.npy", np.stack([X, X], axis=1))
    np.save("d.npy", np.stack([X, X], axis=1))
    np.save("b.npy", np.asarray([[0.1, 0.2], [3.0, 0.0]]))
    process = run_here("normalize", "c.npy", "d.npy", "out", *BALLS.split(), "--bias", "b.npy")
    check_one_line(process.stderr, "bias is off", "the first at index 1")
    assert "c.npy" not in process.stderr


@pytest.mark.parametrize("there", [False, True])
def test_no_file_of_several_is_written_if_one_is_bad(folder, there):
    """Also if others are complete by then, and what was in the folder stays."""
    if there:
        (folder / "out").mkdir()
        (folder / "out" / "x.npy").write_bytes(b"precious")
    before = contents(folder)
    process = run_here("transform", "x.npy", "off.npy", "out", "--model", "m.npz")
    assert process.returncode == 1
    check_one_line(process.stderr, "at index 27", "sample 7 of off.npy")
    assert contents(folder) == before


USAGE = [
    ("normalize x.npy single.npy y.npy --manifold sphere", "OUT is a folder for several files"),
    ("normalize x.npy sub/x.npy out --manifold sphere", "files in OUT would be called x.npy"),
    ("normalize x.npy x.mat out --manifold sphere --domain-per-file", "domains would be called x"),
    ("fit x.npy ./x.npy m --manifold sphere", "x.npy is given twice as IN"),
    ("normalize sub/x.npy sub --manifold sphere", "given twice, as input and output"),
    ("normalize x.npy - out --manifold sphere", "- is one file"),
    ("normalize x.npy off.npy - --manifold sphere", "- is one file"),
    ("normalize x.npy off.npy sub --manifold sphere --model m", "exclude"),
    ("normalize x.npy y.npy --manifold sphere --format csv", "--format is for pipes"),
    ("normalize - - --manifold sphere --format mat", "invalid choice: 'mat'"),
    ("normalize good.csv y.npy --manifold spd --layout 0x4", "expected a layout such as 4x4"),
    ("normalize good.csv y.npy --manifold spd --layout rows", "got 'rows'"),
    ("fit who.csv m --manifold sphere --domain-column who --domains d", "exclude each other"),
    ("fit x.npy m --manifold sphere --domain-per-file --domains d", "exclude each other"),
    ("normalize x.npy - --manifold sphere --engine dask", "--engine dask takes one file"),
    ("completion tcsh", "invalid choice: 'tcsh'"),
]


@pytest.mark.parametrize(("line", "word"), USAGE, ids=[line for line, _ in USAGE])
def test_wrong_usage(folder, line, word):
    before = contents(folder)
    process = run_here(*line.split())
    assert (process.returncode, process.stdout) == (2, "")
    assert word in process.stderr.splitlines()[-1]
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("line", "module", "extra"),
    [
        (f"normalize x.parquet y.npy {BALLS}", "pyarrow", "parquet"),
        (f"normalize x.npy y.parquet {BALLS}", "pyarrow", "parquet"),
        ("completion zsh", "shtab", "completion"),
    ],
)
def test_without_a_package(folder, monkeypatch, line, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    before = contents(folder)
    process = run_here(*line.split())
    assert (process.returncode, process.stdout) == (1, "")
    check_one_line(process.stderr, module, f"pip install 'gyrobn[{extra}]'")
    assert contents(folder) == before


# ---------------------------------------------------------------------- full disks, pipes


@pytest.mark.parametrize("name", ["y.csv", "y.parquet", "y.mat", "out"])
def test_full_disk(folder, name):
    from test_cli_errors import files_no_longer_than

    rng = np.random.default_rng(0)
    np.save("x.npy", 0.5 * rng.random((10_000, 2)))
    before = names(folder)
    more = "--domain-per-file" if name == "out" else ""
    with files_no_longer_than(100_000):
        process = run_here(*f"normalize x.npy {name} {BALLS} {more}".split())
    assert process.returncode == 1
    check_one_line(process.stderr, "out/x.npy" if name == "out" else name, "File too large")
    assert names(folder) == before


class Pipe(io.TextIOWrapper):
    """Text over bytes, as standard streams are."""

    def __init__(self, content=b"", terminal=False):
        super().__init__(io.BytesIO(content))
        self.buffer.isatty = lambda: terminal


@pytest.mark.parametrize(
    ("content", "options", "word"),
    [
        (b"", "", "cannot read stdin"),
        (b"hello", "", "cannot read stdin"),
        (b"\x93NUMPY\x01\x00", "", "cannot read stdin"),
        (b"", "--format csv", "cannot read stdin: it is empty"),
        (b"0.1,0.2\n0.1,x\n", "--format csv", "line 2 of stdin has 'x' in column 2"),
        (b"0.1,0.2\n\xff,x\n", "--format csv", "cannot read stdin"),
        (b"0.1,0.2\n3,4\n", "--format csv", "at index 1"),
        (b"0.1,0.2\n", "--layout 2x1", "stdin is a .npy file, and --layout is for"),
        (None, "", "nothing is piped"),
    ],
)
def test_bad_pipes(folder, monkeypatch, capsys, content, options, word):
    stdout = Pipe()
    monkeypatch.setattr("sys.stdin", Pipe(content or b"", terminal=content is None))
    monkeypatch.setattr("sys.stdout", stdout)
    before = contents(folder)
    assert main(f"normalize - - {BALLS} {options}".split()) == 1
    check_one_line(capsys.readouterr().err, word)
    assert stdout.buffer.getvalue() == b""
    assert contents(folder) == before


def test_samples_are_not_printed_on_a_terminal(folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", Pipe(terminal=True))
    assert main(f"normalize x.npy - {BALLS}".split()) == 1
    check_one_line(capsys.readouterr().err, "standard output is no pipe")


def test_a_pipe_that_is_closed_early(folder):
    """128 + SIGPIPE and nothing else, as of other programs."""
    np.save("long.npy", 0.5 * np.random.default_rng(0).random((100_000, 2)))
    theirs, ours = os.pipe()
    os.close(theirs)
    command = [*COMMAND, "transform", "long.npy", "-", "--model", "m.npz"]
    process = subprocess.run(command, stdout=ours, stderr=subprocess.PIPE, env=environment())
    os.close(ours)
    assert process.returncode == 141
    assert process.stderr == b""


# ---------------------------------------------------------------------- any bytes


FUZZED = {"good.csv": "", "who.csv": "--domain-column who", "x.mat": "--axis first"}
FUZZED |= {"x.parquet": "", "text.parquet": "--domain-column who"}


@BOUNDED
@given(choice=st.data())
def test_damaged_files(folder, capsys, choice):
    """Any bytes changed, or cut off: the command succeeds, or fails in one line."""
    name = choice.draw(st.sampled_from(sorted(FUZZED)))
    content = bytearray((folder / name).read_bytes())
    for _ in range(choice.draw(st.integers(1, 4))):
        content[choice.draw(st.integers(0, len(content) - 1))] = choice.draw(st.integers(0, 255))
    if choice.draw(st.booleans()):
        del content[choice.draw(st.integers(0, len(content) - 1)) :]
    path = folder / f"z{name[name.index('.') :]}"
    path.write_bytes(content)
    (folder / "z.npy").unlink(missing_ok=True)
    before = names(folder)
    code = main(f"normalize {path.name} z.npy {BALLS} {FUZZED[name]}".split())
    captured = CapturedWithWarnings(capsys).readouterr()
    if code:
        assert code == 1
        check_one_line(captured.err)
        assert names(folder) == before
    path.unlink()


@BOUNDED
@given(data=st.binary(max_size=300), choice=st.data())
def test_any_bytes(folder, capsys, data, choice):
    suffix = choice.draw(st.sampled_from([".csv", ".tsv", ".mat", ".parquet"]))
    head = {".mat": b"MATLAB 5.0".ljust(124) + b"\x00\x01IM", ".parquet": b"PAR1"}
    start = choice.draw(st.sampled_from([b"", head.get(suffix, b"a,b\n")]))
    end = b"PAR1" if suffix == ".parquet" and choice.draw(st.booleans()) else b""
    path = folder / f"z{suffix}"
    path.write_bytes(start + data + end)
    assert main(f"normalize {path.name} y.npy --manifold spd".split()) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    check_one_line(captured.err)
    path.unlink()
