"""How the tests of the command line start it: as a process, as a user does, or in this one.

A process imports scikit-learn first, for longer than most commands take. So those tests start one
for which a process makes a difference.
"""

import io
import json
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import gyrobn
from gyrobn.cli import main

PYTHON = [sys.executable, "-W", "error"]
COMMAND = [*PYTHON, "-m", "gyrobn"]


def environment():
    """Return the variables of a process that runs this checkout, whichever is installed."""
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    path = [str(Path(gyrobn.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(path)
    for name in ("DISPLAY", "PYTHONUNBUFFERED"):
        variables.pop(name, None)
    return variables


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


def contents(folder):
    """Return every file below a folder with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_one_line(text, *words):
    """Assert that an error is said in one line, with these words, and without a traceback."""
    assert text.startswith("gyrobn: error: "), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    for word in words:
        assert word in text, text
