"""``torch.export`` and ``torch.onnx.export`` of an evaluation layer: operations of torch alone."""

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import FIRST

from gyrobn import (
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
from gyrobn.torch import GyroBN

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
