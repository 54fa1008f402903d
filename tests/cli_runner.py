"""How the tests of the command line start it: as a process, as a user does."""

import json
import os
import subprocess
import sys

PYTHON = [sys.executable, "-W", "error"]
COMMAND = [*PYTHON, "-m", "gyrobn"]


def environment():
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    variables.pop("DISPLAY", None)
    return variables


def run(*arguments, cwd=None, start=("-m", "gyrobn"), **options):
    """Run the command, or Python started otherwise, and return the finished process."""
    command = [*PYTHON, *start, *map(str, arguments)]
    options = {"capture_output": True, "encoding": "utf-8", "timeout": 300} | options
    return subprocess.run(command, cwd=cwd, env=environment(), **options)


def report(*arguments, cwd=None):
    """Run the command, which must succeed, and return its report."""
    process = run(*arguments, "--json", cwd=cwd)
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
