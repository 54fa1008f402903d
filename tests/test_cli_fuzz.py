"""Any bytes in a file: a command succeeds, or fails in one line, and nothing of the file runs."""

import os
import pickle
import zipfile

import numpy as np
import pytest
from cli_runner import check_one_line, names
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyrobn import GyroBN, PoincareBall
from gyrobn.cli import main

BOUNDED = settings(
    derandomize=True,
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

X = PoincareBall(2).random(5, rng=0)

COMMANDS = (
    "normalize {} out.npy --manifold poincare_ball",
    "inspect {}",
    "inspect {} --manifold poincare_ball",
    "transform {} out.npy --model good.npz",
    "inverse good.npy out.npy --model {}",
    "normalize good.npy out.npy --manifold poincare_ball --bias {}",
    "normalize good.npy out.npy --manifold poincare_ball --domains {}",
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    np.save(folder / "a.npy", X)
    np.savez(folder / "b.npz", x=X)
    np.savez_compressed(folder / "c.npz", x=X)
    GyroBN("poincare_ball").fit(X).save(folder / "m.npz")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def check(line, content, suffix, originals, capsys):
    """Run a command on a file with this content, in an empty folder, and look at what it did."""
    name = f"x{suffix}"
    for path in names_of_here():
        os.remove(path)
    files = {"good.npy": originals["a.npy"], "good.npz": originals["m.npz"], name: content}
    for path, data in files.items():
        with open(path, "wb") as file:
            file.write(data)
    code = main(line.format(name).split())
    captured = capsys.readouterr()
    if code:
        assert code == 1
        assert captured.out == ""
        check_one_line(captured.err)
        assert set(names_of_here()) == set(files)
    else:
        assert set(names_of_here()) <= {*files, "out.npy"}
    return code


def names_of_here():
    from pathlib import Path

    return names(Path())


@BOUNDED
@given(data=st.binary(max_size=200), choice=st.data())
def test_any_bytes(tmp_path, monkeypatch, originals, capsys, data, choice):
    monkeypatch.chdir(tmp_path)
    suffix = choice.draw(st.sampled_from([".npy", ".npz"]))
    magic = choice.draw(st.sampled_from([b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04"]))
    line = choice.draw(st.sampled_from(COMMANDS))
    assert check(line, magic + data, suffix, originals, capsys) == 1


@BOUNDED
@given(choice=st.data())
def test_damaged_files(tmp_path, monkeypatch, originals, capsys, choice):
    monkeypatch.chdir(tmp_path)
    name = choice.draw(st.sampled_from(sorted(originals)))
    content = bytearray(originals[name])
    for _ in range(choice.draw(st.integers(1, 4))):
        content[choice.draw(st.integers(0, len(content) - 1))] = choice.draw(st.integers(0, 255))
    if choice.draw(st.booleans()):
        del content[choice.draw(st.integers(0, len(content) - 1)) :]
    line = choice.draw(st.sampled_from(COMMANDS))
    check(line, bytes(content), name[1:], originals, capsys)


@BOUNDED
@given(
    shape=st.lists(st.integers(-5, 10**31) | st.integers(0, 3), max_size=5).map(tuple),
    descr=st.sampled_from(["<f8", ">f4", "|O", "<U2", "<c16", "|V4", "<m8[s]", "no", "<f16"]),
    order=st.sampled_from([True, False, 1, None]),
    data=st.binary(max_size=100),
    line=st.sampled_from(COMMANDS),
)
def test_any_header(tmp_path, monkeypatch, originals, capsys, shape, descr, order, data, line):
    monkeypatch.chdir(tmp_path)
    header = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data
    check(line, content, ".npy", originals, capsys)


@BOUNDED
@given(values=st.lists(st.floats(width=64), min_size=2, max_size=8), line=st.data())
def test_any_numbers(tmp_path, monkeypatch, originals, capsys, values, line):
    """Good files with any numbers in them: infinite, NaN, huge, tiny."""
    from io import BytesIO

    monkeypatch.chdir(tmp_path)
    command = line.draw(st.sampled_from(COMMANDS[:4]))
    geometry = line.draw(st.sampled_from(["poincare_ball", "hyperboloid", "sphere", "euclidean"]))
    stream = BytesIO()
    np.save(stream, np.asarray(values[: len(values) // 2 * 2]).reshape(-1, 2))
    command = command.replace("poincare_ball", geometry)
    main_code = check(command, stream.getvalue(), ".npy", originals, CapturedWithWarnings(capsys))
    assert main_code in (0, 1)


class CapturedWithWarnings:
    """What was captured, without the lines that warn, which may come before an error."""

    def __init__(self, capsys):
        self.capsys = capsys

    def readouterr(self):
        captured = self.capsys.readouterr()
        lines = captured.err.splitlines(keepends=True)
        rest = [line for line in lines if not line.startswith("gyrobn: warning: ")]
        return type(captured)(captured.out, "".join(rest))


class Harm:
    def __reduce__(self):
        return (os.system, ("touch harm",))


@pytest.mark.parametrize("line", COMMANDS)
def test_nothing_runs(tmp_path, monkeypatch, originals, capsys, line):
    """Pickles where arrays are expected, and code where a header is."""
    monkeypatch.chdir(tmp_path)
    np.save("object.npy", np.asarray([Harm()], dtype=object), allow_pickle=True)
    with open("object.npy", "rb") as file:
        inside = file.read()
    code = b"__import__('os').system('touch harm')"
    header = b"\x93NUMPY\x01\x00" + len(code).to_bytes(2, "little") + code
    for content in (pickle.dumps(Harm()), inside, header):
        assert check(line, content, ".npy", originals, capsys) == 1
        with zipfile.ZipFile("object.npz", "w") as archive:
            archive.writestr("x.npy", content)
        with open("object.npz", "rb") as file:
            packed = file.read()
        assert check(line, packed, ".npz", originals, capsys) == 1
