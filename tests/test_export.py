"""``torch.export`` and ``torch.onnx.export`` of an evaluation layer: operations of torch alone."""

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import FIRST

from gyrobn import (
    SPD,
    Euclidean,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    ProjectedHypersphere,
    SpecialOrthogonal,
    Sphere,
    Stereographic,
)
from gyrobn.torch import DomainGyroBN, GyroBN

ANY_BATCH = {"x": {0: torch.export.Dim("batch", min=2)}}


def trained(M):
    layer = GyroBN(M)
    x = M.random(6, rng=0, like=torch.zeros(()), spread=0.5)
    layer(x)
    torch.nn.init.constant_(layer.bias, 0.1)
    return layer.eval(), x


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_every_family_exports(M):
    """For every size of the batch, and with no operation of our own."""
    layer, x = trained(M)
    program = torch.export.export(layer, (x,), dynamic_shapes=ANY_BATCH)
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    assert not [n.target for n in calls if "gyrobn" in str(n.target)]
    for batch in (x, x[:4], torch.cat([x, x[:1]])):
        torch.testing.assert_close(program.module()(batch), layer(batch))


@pytest.mark.parametrize(
    "M", [Sphere(2), SPD(2), Product(Klein(2), SpecialOrthogonal(3))], ids=repr
)
def test_domains_export(M):
    """Each sample with the statistics of its domain; NaN where training saw no such domain."""
    layer = DomainGyroBN(M, 3, channels=2)
    x = M.random(9, 2, rng=0, like=torch.zeros(()), spread=0.5)
    domains = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 0])
    for _ in range(2):
        layer(x, domains)
    torch.nn.init.constant_(layer.bias, 0.1)
    layer.eval()
    size = torch.export.Dim("batch", min=2)
    shapes = {"x": {0: size}, "domains": {0: size}}
    run = torch.export.export(layer, (x, domains), dynamic_shapes=shapes).module()
    for rows in (slice(None), slice(4)):
        torch.testing.assert_close(run(x[rows], domains[rows]), layer(x[rows], domains[rows]))
    mixed = run(x[:3], torch.tensor([1, 2, 0]))
    assert bool(mixed[1].isnan().all())
    torch.testing.assert_close(mixed[::2], layer(x[:3:2], torch.tensor([1, 0])))
    for number in (-1, 3):  # a negative number does not count from the end
        with pytest.raises(IndexError, match="out of range"):
            run(x[:2], torch.tensor([0, number]))


def test_domains_export_in_training_is_refused():
    M = Euclidean(2)
    layer, x = DomainGyroBN(M, 2), M.random(6, rng=0, like=torch.zeros(()))
    with pytest.raises(RuntimeError, match=r"needs the values of domains.* layer.eval\(\) first"):
        torch.export.export(layer, (x, torch.arange(6) % 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of onnxscript
@pytest.mark.parametrize(
    "M",
    [
        Product(Euclidean(1), PoincareBall(2), Hyperboloid(2), Sphere(2), Klein(2)),
        Product(Stereographic(2, 0.0), Stereographic(2, 0.3), ProjectedHypersphere(2)),
        SpecialOrthogonal(3),
    ],
    ids=["vectors", "stereographic", "rotations"],
)
def test_onnx(M):
    """Geometries without a decomposition of matrices, of which ONNX has none."""
    layer, x = trained(M)
    program = torch.onnx.export(
        layer, (x,), dynamo=True, dynamic_shapes=ANY_BATCH, verbose=False, external_data=False
    ).model_proto
    assert {node.domain for node in program.graph.node} == {""}
    session = onnxruntime.InferenceSession(program.SerializeToString())
    (name,) = (given.name for given in session.get_inputs())
    for batch in (x, x[:4]):
        (y,) = session.run(None, {name: batch.numpy()})
        np.testing.assert_allclose(y, layer(batch).detach().numpy(), rtol=0, atol=2e-6)


def test_the_compiler_is_loaded_when_it_is_needed():
    """And a layer that was never called before can be compiled."""
    code = (
        "import sys, torch\n"
        "assert 'torch._dynamo' not in sys.modules, 'torch itself imports it'\n"
        "import gyrobn.torch\n"
        "M, x, domains = gyrobn.Euclidean(2), torch.eye(4)[:, :2], torch.arange(4) // 2\n"
        "gyrobn.torch.DomainGyroBN(M, 2)(x, domains).sum().backward()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "layer = gyrobn.torch.GyroBN(M).eval()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "compiled = torch.compile(layer, fullgraph=True, backend='eager')\n"
        "assert torch.allclose(compiled(x), layer(x))\n"
        "layer = gyrobn.torch.DomainGyroBN(M, 2)\n"
        "compiled = torch.compile(layer, backend='eager')\n"
        "assert torch.allclose(compiled(x, domains), layer(x, domains))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
