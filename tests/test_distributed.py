"""torch layers on several processes (gloo) against one process with the whole batch."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gyrobn import SPD, PoincareBall
from gyrobn.statistics.samples import if_weighted
from gyrobn.torch import DomainGyroBN, GyroBN

pytestmark = pytest.mark.xdist_group("processes")
SCRIPT = Path(__file__).with_name("ranks.py")


def run(folder, world, check, expected=0):
    """Start the processes, wait at most three minutes, and return what each of them found."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[1])}
    command = [sys.executable, str(SCRIPT), str(folder), str(world), check]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    failed = [code for code in json.loads(output) if code]
    assert failed == ([expected] if expected else []), errors
    files = (folder / f"{rank}.json" for rank in range(world))
    return [json.loads(f.read_text()) if f.exists() else None for f in files]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_batch_may_lie_on_several_ranks(world, tmp_path):
    results, *others = run(tmp_path, world, "geometries")
    assert len(results) >= 9
    for name, found in results.items():
        if not name.endswith("sent"):
            assert max(found.values()) < 1e-10, (name, found)
    for other in others:  # every rank has sent the same
        assert [v for k, v in other.items() if k.endswith("sent")] == [
            v for k, v in results.items() if k.endswith("sent")
        ]
    if world > 1:
        check_counts(results)


def check_counts(results):
    """One reduction to begin with, one for each evaluation, one in the backward pass.

    All factors of a product are searched together. A common start may take an evaluation more or
    less than that of one process.
    """
    for name, sent in results.items():
        if not name.endswith("sent"):
            continue
        assert sent["all"] == sent["forward"] + 1, name
        assert sent["all"] <= sent["evaluations"] + 1 + 2, name
        dim, blocks = sent["dim"], sent["blocks"]
        if sent["flat"]:  # its Hessian is the identity
            assert sent["most"] <= 2 * (dim + blocks + 2), name
        else:  # the Hessian goes along, up to 128 dimensions
            assert sent["most"] <= 2 * (dim + 2 * blocks + 1 + dim * (dim + 1) // 2), name


def test_options_on_two_ranks(tmp_path):
    results, _ = run(tmp_path, 2, "options")
    rough = results.pop("float32")
    assert max(rough.values()) < 2e-5
    for name, found in results.items():
        assert max(found.values()) < 1e-10, (name, found)


@pytest.mark.parametrize("check", ["twice", "forward"])
def test_other_derivatives_on_two_ranks(check, tmp_path):
    """Slopes of slopes, and forward mode."""
    results, _ = run(tmp_path, 2, check)
    for name, found in results.items():
        assert max(found) < 1e-10, (name, found)


@pytest.mark.parametrize("world", [2, 3])
def test_domains(world, tmp_path):
    for found in run(tmp_path, world, "domains"):
        assert found["largest"] < 1e-10
        assert found["seen"]


def test_two_groups(tmp_path):
    """Errors name a rank by its number among all processes, not in the group."""
    first, second, third, fourth = run(tmp_path, 4, "groups")
    assert first["largest"] < 1e-10
    assert first["error"] == third["error"] == "no error"
    assert "because of rank 3" in second["error"]
    assert "this is rank 1" in second["error"]
    assert "on rank 3: the input of GyroBN has NaN" in fourth["error"]


def test_training_with_distributed_data_parallel(tmp_path):
    """Fifty steps on two ranks leave both with the same numbers, those of one process."""
    for found in run(tmp_path, 2, "training"):
        assert found["gap"] < 1e-10
        assert found["same"]
        assert found["evaluation"] == 0  # layers synchronise in training only


def test_fully_shard_and_compile(tmp_path):
    for found in run(tmp_path, 2, "sharded"):
        assert found["statistics"] == "torch.float32"
        assert found["variance"] < 1e-2  # the samples come from layers in half precision
        assert found["sharded"] < 3e-2
        assert found["compiled"] < 1e-6


def test_errors_name_the_rank(tmp_path):
    first, second, third = run(tmp_path, 3, "errors")
    for case in ("first batch, NaN", "a later batch, NaN"):
        assert "rank 1" in first[case]
        assert "rank 1" in third[case]
        assert "on rank 1" in second[case]
        assert "index 2" in second[case]
    assert "on rank 2" in third["off the manifold"]
    assert "rank 2" in first["off the manifold"]
    assert "on rank 0" in first["shape"]
    assert "rank 0" in third["shape"]
    assert all("empty on every rank" in r["nothing at all"] for r in (first, second, third))
    assert "on rank 0" in first["domain"]
    assert "rank 0" in second["domain"]
    for found in (first, second, third):
        assert "domain 1 has one sample" in found["one sample of a domain"]


def test_a_rank_that_dies_is_named(tmp_path):
    first, _, third = run(tmp_path, 3, "death", expected=3)
    for found in (first, third):
        assert "rank 1 does not answer" in found["error"]
        assert found["seconds"] < 60


def test_a_rank_that_weighs_nothing_sends_zeros():
    """Also where its placeholder is opposite to the mean, and what it sees from there is NaN."""
    part = torch.tensor([[torch.nan], [4.0]])
    assert if_weighted(torch.tensor([[0.0, 0.5]]), part).tolist() == [[0.0], [4.0]]


class TestConversion:
    def test_it_recurses_and_keeps_what_a_layer_has(self):
        net = torch.nn.Sequential(
            GyroBN(PoincareBall(2)),
            torch.nn.Sequential(DomainGyroBN(SPD(2), 3), torch.nn.Linear(2, 2)),
        )
        state = {name: value.clone() for name, value in net.state_dict().items()}
        net.eval()
        converted = GyroBN.convert_sync(net)
        assert converted is net
        assert net[0].process_group == net[1][0].process_group == "world"
        assert not net[0].training
        assert list(state) == list(net.state_dict())
        fresh = torch.nn.Sequential(
            GyroBN(PoincareBall(2)),
            torch.nn.Sequential(DomainGyroBN(SPD(2), 3), torch.nn.Linear(2, 2)),
        )
        fresh.load_state_dict(net.state_dict())

    def test_without_other_processes_it_is_the_plain_layer(self):
        space = PoincareBall(2)
        x = space.random(20, rng=0, like=torch.empty(()))
        plain, alone = GyroBN(space), GyroBN(space, process_group="world")
        assert torch.equal(plain(x), alone(x))
