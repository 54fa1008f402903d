"""What kill -9 leaves behind: it is named after OUT, and the next run with that OUT removes it."""

import os
import time

import numpy as np
import pytest
from cli_runner import names, report, run, run_here

from gyrobn import GyroBN, PoincareBall
from gyrobn.data import create_array, open_array

BALL = PoincareBall(2)
X = BALL.random(40, rng=0)
LATE = np.float64(0.25) * X

# A command that is killed when it is about to move what it has written to its place, which is given
# first, by the k-th renaming: a store that is there already is moved away before.
KILLED = """
import os, signal, sys
from gyrobn.cli import main

place, left, rename = sys.argv.pop(1), int(sys.argv.pop(1)), os.rename

def killed(source, target):
    global left
    left -= place in (os.path.realpath(source), os.path.realpath(target))
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

os.rename = os.replace = killed
main(sys.argv[1:])
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kill(line, place, at=1):
    """Run a command as a process that is killed."""
    process = run(os.path.realpath(place), at, *line.split(), start=("-c", KILLED))
    assert process.returncode == -9, process.stderr


def left(place, out):
    """Return what a killed process has left of OUT, beside it or in it."""
    found = sorted(path for path in place.rglob(".*") if path.name.startswith(f".{out}."))
    assert all(path.name.endswith((".part", ".part.old")) for path in found)
    return found


def put(path, x):
    with create_array(path, x.shape, x.dtype) as out:
        out.write(x)


def get(path):
    with open_array(path) as x:
        return x[:]


GEOMETRY = "--manifold poincare_ball"
LINES = {
    f"normalize x.npy y.npy {GEOMETRY}": "y.npy",
    f"normalize x.npy y.zarr {GEOMETRY}": "y.zarr",
    f"normalize a.npy b.npy out {GEOMETRY}": "out",
    f"fit x.npy model {GEOMETRY}": "model",
}


@pytest.mark.parametrize(("line", "out"), LINES.items(), ids=LINES.values())
def test_the_next_run_removes_what_a_killed_one_left(here, line, out):
    inputs = ["a.npy", "b.npy", "x.npy"]
    for name in inputs:
        np.save(name, X)
    kill(line, out)
    (part,) = left(here, out)
    assert sum(path.stat().st_size for path in (part, *part.rglob("*")) if path.is_file()) > 0
    assert names(here) == sorted([*inputs, part.name])  # and no OUT
    report("normalize", "x.npy", "other.npy", *GEOMETRY.split())
    assert left(here, out) == [part]  # it is not of that OUT
    os.remove("other.npy")
    report(*line.split())
    assert names(here) == sorted([*inputs, out])


@pytest.mark.parametrize("out", ["y.zarr", "out"])
def test_what_was_there_comes_back(here, out):
    """There is no one call that replaces a folder: it is away for a moment."""
    place = here / "out" / "x.zarr" if out == "out" else here / out
    place.parent.mkdir(exist_ok=True)
    put(here / "x.zarr", X)
    put(place, LATE)
    put(here / "bad.zarr", 9 * X)
    kill(f"normalize x.zarr {out} {GEOMETRY}", place, at=2)
    assert left(here, out)
    assert not place.exists()
    # a run that fails leaves OUT as it was
    process = run_here("normalize", "bad.zarr", out, *GEOMETRY.split())
    assert process.returncode == 1
    assert left(here, out) == []
    np.testing.assert_array_equal(get(place), LATE)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".zarr", ".csv"])
def test_the_part_of_a_process_that_runs_is_kept(here, suffix):
    path = here / f"y{suffix}"
    with create_array(path, X.shape, X.dtype) as first:
        first.write(X[:7])
        put(path, LATE)
        assert len(left(here, path.name)) == 1
        first.write(X[7:])
    np.testing.assert_array_equal(get(path), X)
    assert names(here) == [path.name]


def test_the_part_of_another_machine_is_kept_for_a_day(here, monkeypatch):
    """Its processes cannot be asked, and a container has a new name each time."""
    np.save("x.npy", X)
    kill(f"normalize x.npy y.npy {GEOMETRY}", "y.npy")
    (part,) = left(here, "y.npy")
    monkeypatch.setattr("platform.node", lambda: "elsewhere.example.org")
    for hours, kept in ((0, True), (20, True), (30, False)):
        then = time.time() - 3600 * hours
        os.utime(part, (then, then))
        put("y.npy", X)
        assert part.exists() == kept
    assert names(here) == ["x.npy", "y.npy"]


def test_other_files_with_such_names_are_kept(here):
    others = [".y.npy.part", ".y.npy.gyrobn.part", ".yy.npy.gyrobn-a-1-12345678.part"]
    for name in others:
        (here / name).touch()
        os.utime(here / name, (0, 0))
    put("y.npy", X)
    assert names(here) == sorted([*others, "y.npy"])


@pytest.mark.parametrize("letter", ["a", "é", "漢"])
def test_long_names(here, letter):
    """A name may have 255 bytes."""
    name = letter * (250 // len(letter.encode())) + ".npz"
    GyroBN(BALL).fit(X).save(name)
    GyroBN(BALL).fit(X).save(name)
    assert names(here) == [name]
