"""How the tests of the command line start it: as a process, as a user does, or in this one.

A process imports scikit-learn first, for longer than most commands take. So those tests start one
for which a process makes a difference.
"""

import io
import json
import os
import pty
import subprocess
import sys
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import gyrobn
from gyrobn.cli import main

PYTHON = [sys.executable, "-W", "error"]
COMMAND = [*PYTHON, "-m", "gyrobn"]


# What is ignored here stays ignored in what is started: SIGHUP under nohup, SIGINT and SIGQUIT in a
# background job of a script. The program that is started begins as on a terminal.
FRESH = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def environment():
    """Return the variables of a process that runs this checkout, whichever is installed."""
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    path = [str(Path(gyrobn.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(path)
    for name in ("DISPLAY", "PYTHONUNBUFFERED"):
        variables.pop(name, None)
    return variables


@contextmanager
def started(*command, cwd, env=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    """Start a program that signals are to meet, and leave no process and no pipe behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", FRESH, *map(str, command)],
        cwd=cwd,
        env=env or environment(),
        stdout=stdout,
        stderr=stderr,
        encoding="utf-8",
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def on_a_terminal(*command, cwd):
    """Start a program whose stderr is a terminal; also return a function that reads from it."""
    ours, theirs = pty.openpty()

    def read(everything=True):
        text = b""
        with suppress(OSError):  # that is how the end of a terminal is told
            while part := os.read(ours, 1 << 16):
                text += part
                if not everything:
                    break
        return text.decode()

    try:
        with started(*command, cwd=cwd, stderr=theirs) as process:
            os.close(theirs)
            yield process, read
    finally:
        os.close(ours)


def run(*arguments, cwd=None, start=("-m", "gyrobn"), **options):
    """Run the command, or Python started otherwise, and return the finished process."""
    command = [*PYTHON, *start, *map(str, arguments)]
    options = {"capture_output": True, "encoding": "utf-8", "timeout": 300} | options
    return subprocess.run(command, cwd=cwd, env=environment(), **options)


def run_here(*arguments, cwd="."):
    """Run the command in this process, and return what :func:`run` would."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([*map(str, arguments)])
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def report(*arguments, cwd="."):
    """Run the command in this process; it must succeed. Return its report."""
    process = run_here(*arguments, "--json", cwd=cwd)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("\n") == 1
    values = json.loads(process.stdout)
    assert values["command"] == arguments[0]
    assert values["warnings"] == [
        line.removeprefix("gyrobn: warning: ") for line in process.stderr.splitlines()
    ]
    return values


def names(folder):
    """Return what is in a folder, hidden files, too."""
    return sorted(path.name for path in folder.iterdir())


def check_one_line(text, *words):
    """Assert that an error is said in one line, with these words, and without a traceback."""
    assert text.startswith("gyrobn: error: "), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    for word in words:
        assert word in text, text
