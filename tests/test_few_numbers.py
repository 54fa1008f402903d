"""NumPy computes for torch where numbers are few: both find the same outputs and slopes."""

import pytest
import torch

from gyrobn import SPD, PoincareBall, Sphere
from gyrobn.backends import torch_rules
from gyrobn.torch import GyroBN


@pytest.mark.parametrize("M", [PoincareBall(4, -0.7), Sphere(3), SPD(3)], ids=repr)
def test_torch_and_numpy_agree(M, monkeypatch):
    like = torch.empty((), dtype=torch.float64)
    x, weights = M.random(12, 2, like=like, spread=0.8), torch.rand(12, dtype=torch.float64) + 0.1
    slope = torch.randn(x.shape, dtype=torch.float64)
    layer = GyroBN(M, channels=2, dtype=torch.float64)
    with torch.no_grad():
        layer.bias.copy_(0.3 * torch.randn(layer.bias.shape))

    def found(create_graph):
        inputs = x.clone().requires_grad_(), weights.clone().requires_grad_()
        y = layer(*inputs)
        by = torch.autograd.grad(
            y, (*inputs, layer.bias, layer.scale), slope, create_graph=create_graph
        )
        return [a.detach() for a in (y, *by)]

    quick = found(False)
    monkeypatch.setattr(torch_rules, "FEW", -1)
    for other in found(False), found(True):  # the second differentiates the exact functions
        for a, b in zip(quick, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_memory_of_parameters_stays_free():
    """FSDP frees that of parameters between uses, which torch refuses for what NumPy holds."""
    M = PoincareBall(4)
    layer = GyroBN(M)
    x = torch.nn.Parameter(M.random(12, like=torch.empty(())))
    layer(x).sum().backward()
    assert all(p.untyped_storage().resizable() for p in (x, *layer.parameters()))
