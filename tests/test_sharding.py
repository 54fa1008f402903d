"""A batch on several JAX devices, and in several processes, has the statistics of the whole batch.

The checks run in processes of their own: see tests/sharded.py.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "sharded.py"
pytestmark = pytest.mark.xdist_group("devices")  # several threads per device: not beside each other


def start(*args):
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    here = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SCRIPT.parents[1])}
    return subprocess.Popen(command, env=os.environ | here, **pipes)


def result(process, timeout=600):
    try:
        out, error = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, error
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("check", ["registry", "transformations", "explicit"])
def test_a_batch_in_parts(check):
    """Outputs, statistics and slopes are those of the whole batch."""
    found = result(start(check))
    assert found
    assert not {name: error for name, error in found.items() if not error < 1e-10}


def test_what_is_sent():
    """No samples. The loop of the program is one evaluation; another one stands before it."""
    most = {"shard_map forward": 3, "shard_map gradient": 4}
    # a layer also counts the samples that are on the manifold, in two numbers per channel
    most |= {"jit forward": 4, "flax forward": 6, "jit gradient": 6}
    found = result(start("programs"))
    assert len(found) == 2 * len(most)
    for name, (error, sent) in found.items():
        assert error < 1e-10, name
        assert {kind for kind, _ in sent} == {"all-reduce"}, (name, sent)
        assert len(sent) <= most[name.split(") ")[1]], (name, sent)
        sizes = {n for _, shapes in sent for shape in shapes for n in shape.split(",")}
        assert not sizes & {"61", "488"}, (name, sent)


def test_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [start("process", rank, port) for rank in (0, 1)]
    try:
        assert all(result(process, 120) < 1e-12 for process in both)
    finally:
        for process in both:
            process.kill()
