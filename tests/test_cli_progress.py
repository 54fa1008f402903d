"""The progress bar: on a terminal only, one line, with an estimate, gone at the end."""

import io

import numpy as np
import pytest
from cli_runner import COMMAND, on_a_terminal

from gyrobn import Chunks
from gyrobn.cli import main, progress
from gyrobn.cli.progress import Progress
from gyrobn.data import chunks


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def drawn(self):
        """Return the lines that were drawn one over the other."""
        return [line.strip() for line in self.getvalue().split("\r") if line.strip()]


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose one item is the time."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", "80")
    return now


def test_bar(clock):
    terminal = Terminal()
    with Progress("fit", 100, stream=terminal) as bar:
        for done in (0, 25, 50, 75):
            bar.update(done)
            clock[0] += 10.0
    first, *others = terminal.drawn()
    assert first.split() == ["fit", "[", "]", "0%"]
    assert [line.split("]")[1].split() for line in others] == [
        ["25%", "0:30", "left"],
        ["50%", "0:20", "left"],
        ["75%", "0:10", "left"],
    ]
    assert [line.count("#") for line in others] == [8, 15, 22]
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith(" \r")  # nothing is left on the line


def test_passes(clock):
    terminal = Terminal()
    bar = Progress("fit", 100, stream=terminal)
    for done in (0, 50, 0, 50, 0, 0, 50):
        bar.update(done)
        clock[0] += 1.0
    names = [line.split("[")[0].strip() for line in terminal.drawn()]
    assert names == ["fit"] * 2 + ["fit: pass 2"] * 2 + ["fit: pass 3"] + ["fit: pass 4"] * 2
    assert "0:01 left" in terminal.drawn()[-1]  # of the pass, which began a second ago


def test_not_too_often(clock):
    terminal = Terminal()
    bar = Progress("fit", 1000, stream=terminal)
    for done in range(1000):
        bar.update(done)
        clock[0] += 0.01
    assert 50 <= len(terminal.drawn()) <= 110


@pytest.mark.parametrize("columns", [200, 80, 40, 20, 5, 1])
def test_fits_the_terminal(clock, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    bar = Progress("transform", 100, stream=terminal)
    for done in (0, 50, 100):
        clock[0] += 1000.0
        bar.update(done)
    assert max(map(len, terminal.getvalue().split("\r"))) < max(2, columns)


def test_no_samples(clock):
    terminal = Terminal()
    Progress("fit", 0, stream=terminal).update(0)
    assert "100%" in terminal.drawn()[0]


@pytest.mark.parametrize(("quiet", "stream"), [(True, Terminal()), (False, io.StringIO())])
def test_nothing_where_it_is_not_wanted(clock, quiet, stream):
    with Progress("fit", 10, quiet=quiet, stream=stream) as bar:
        bar.update(0)
        clock[0] += 1.0
        bar.update(5)
    assert stream.getvalue() == ""


def test_watch(clock, monkeypatch):
    monkeypatch.setattr(chunks, "BYTES", 16 * 2)  # two samples
    terminal = Terminal()
    x = np.arange(12.0).reshape(6, 2)
    watched = Chunks(x).map(Progress("fit", 6, stream=terminal).watch)
    for _ in range(2):
        for found, expected in zip(watched, np.split(x, 3), strict=True):
            np.testing.assert_array_equal(found, expected)
            clock[0] += 1.0
    parts = [line.split("]")[1].split()[0] for line in terminal.drawn()]
    assert parts == 2 * ["0%", "33%", "67%"]
    assert ["pass 2" in line for line in terminal.drawn()] == 3 * [False] + 3 * [True]


def test_a_warning_takes_the_place_of_the_bar(tmp_path, monkeypatch, clock, capsys):
    np.save(tmp_path / "x.npy", np.asarray([[1.0, 2.0], [3.0, 4.0]]))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    def fail(*_, **__):
        raise ValueError("it failed")

    monkeypatch.setattr("gyrobn.cli.inspection.frechet", fail)
    assert main(["inspect", str(tmp_path / "x.npy"), "--manifold", "euclidean"]) == 1
    *_, last = capsys.readouterr().err.split("\r")
    assert last == "gyrobn: error: it failed\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_on_a_terminal(tmp_path, quiet):
    """Stderr is a terminal, and stdout is not: the report stays clean."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((200, 3)))
    command = [*COMMAND, "normalize", "x.npy", "y.npy", "--manifold", "euclidean"]
    with on_a_terminal(*command, *["--quiet"] * quiet, cwd=tmp_path) as (process, read):
        text = read()
        output, _ = process.communicate()
    assert process.returncode == 0
    assert output.startswith("normalized 200 samples")
    assert "\r" not in output
    if quiet:
        assert text == ""
    else:
        assert "fit" in text
        assert "transform" in text
        assert text.endswith("\r")


def test_a_warning_is_shown_once(capsys):
    import warnings
    from argparse import Namespace

    from gyrobn import FrechetWarning
    from gyrobn.cli.console import Console

    with Console(Namespace(command="fit")).showing_warnings():
        for _ in range(2):
            warnings.warn("so it is", FrechetWarning, stacklevel=1)
    assert capsys.readouterr().err == "gyrobn: warning: so it is\n"
