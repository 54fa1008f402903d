"""Commands in the documentation: each runs, and prints what its page shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from cli_runner import environment, run_here
from test_docs import ROOT, fences, run

from gyrobn import SPD

PAGE = ROOT / "docs" / "command_line.md"
COMMANDS = {"normalize", "fit", "transform", "inverse", "inspect", "plot"}
COMMANDS |= {"demo", "selftest"}


def pattern(text):
    """Return what a shown output matches: … is any text, on a line of its own any lines."""
    lines = text.strip("\n").split("\n")
    parts = [
        "(.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n" for line in lines
    ]
    return re.compile("".join(parts))


def shell(code, cwd):
    """Run a block: plain commands in this process, what needs a shell in one."""
    if "|" in code or ">" in code:
        return bash(code, cwd)
    output = ""
    for line in code.strip().splitlines():
        name, *arguments = shlex.split(line, comments=True)
        assert name == "gyrobn"
        process = run_here(*arguments, cwd=cwd)
        assert process.returncode == 0, process.stderr
        output += process.stdout
    return output


def bash(code, cwd):
    variables = environment()
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    process = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=cwd,
        env=variables,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_page_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output, seen, compared = "", set(), 0
    for language, code in fences(PAGE):
        if language == "python":
            run(str(PAGE), [code])
        elif language == "sh":
            output = shell(code, tmp_path)
            seen |= set(re.findall(r"^gyrobn (\w+)", code, re.MULTILINE))
        elif language == "text":
            assert pattern(code).fullmatch(output), output
            output = ""
            compared += 1
    assert seen == COMMANDS
    assert compared >= 9


def test_commands_of_the_readme(tmp_path):
    (code,) = [code for language, code in fences(ROOT / "README.md") if "gyrobn inspect" in code]
    np.save(tmp_path / "covariances.npy", SPD(4).random(50, rng=0))
    output = shell(code, tmp_path)
    assert re.search("on manifold +50\n", output)
    assert {"out.npy", "picture.png"} <= {path.name for path in tmp_path.iterdir()}


def test_patterns_can_fail():
    shown = "a …\n…\nend\n"
    assert pattern(shown).fullmatch("a 1\nb\nc\nend\n")
    assert pattern(shown).fullmatch("a \nend\n")
    assert not pattern(shown).fullmatch("a 1\nb\n")
    assert not pattern(shown).fullmatch("b\nend\n")
    assert not pattern(shown).fullmatch("a 1\nend\nmore\n")
