"""NumPy computes for torch where it takes less time: both find the same outputs and slopes."""

import numpy as np
import pytest
import torch

from gyrobn import SPD, PoincareBall, Sphere
from gyrobn.backends import dot, namespace_of, torch_values
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
    monkeypatch.setattr(torch_values, "FEW", -1)
    for other in found(False), found(True):  # the second differentiates the exact functions
        for a, b in zip(quick, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_evaluation_on_the_ball(dtype, monkeypatch):
    """Far out, at the mean, for either sign of the scale, and where the bias has more axes."""
    M, like = PoincareBall(3, -0.6), torch.empty((), dtype=dtype)
    x = torch.cat([M.random(50, like=like, spread=s) for s in (1e-3, 0.5, 5.0)])
    mean, bias = x[60], M.random(4, 1, rng=1, like=like)
    x = torch.cat([x, mean[None]])

    def found():
        both = [M.standardize(x, mean, t, bias) for t in (1.7, -0.4)]
        return [*both, M.standardize(x, mean, 1.7, bias[0, 0]), M.from_normal(x)]

    quick = found()
    monkeypatch.setattr(torch_values, "FEW", -1)
    exact = [
        M.add(bias, M.scale(1.7, M.relative(mean, x))),
        M.add(bias, M.scale(-0.4, M.relative(mean, x))),
        M.add(bias[0, 0], M.scale(1.7, M.relative(mean, x))),
    ]
    eps = torch.finfo(dtype).eps
    for a, b in zip(quick, found(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=8 * eps)
    for a, b in zip(quick, exact, strict=False):
        torch.testing.assert_close(a, b, rtol=0, atol=64 * eps)


@pytest.fixture
def threads():
    """Set the number of torch's threads, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2])
def test_large_products_on_one_thread(count, threads, monkeypatch):
    """NumPy has one thread: with more of them torch multiplies, and where it follows slopes."""
    threads(count)
    used = []
    for name in ("matmul", "vecdot"):
        own = getattr(np, name)
        monkeypatch.setattr(np, name, lambda *a, f=own, **k: used.append(f) or f(*a, **k))
    A, B = torch.randn(2, 64, 32, 32, dtype=torch.float64)
    x = torch.randn(3000, 40)
    multiply = namespace_of(A).matmul
    torch.testing.assert_close(multiply(A, B.mT), torch.matmul(A, B.mT))
    torch.testing.assert_close(multiply(A, B[0]), torch.matmul(A, B[0]))
    torch.testing.assert_close(dot(x, x), (x * x).sum(-1))
    with pytest.raises(RuntimeError, match=r"Float\b.*Double\b"):
        multiply(A, B.float())
    assert len(used) == (3 if count == 1 else 0)
    slope, P, Q = torch.randn(64, 32, 32, dtype=torch.float64), A.clone(), B.clone()
    multiply(P.requires_grad_(), Q.requires_grad_()).backward(slope)
    torch.testing.assert_close(P.grad, slope @ B.mT)
    torch.testing.assert_close(Q.grad, A.mT @ slope)
    assert len(used) == (3 if count == 1 else 0)
    assert A.untyped_storage().resizable()  # as in the next test


def test_large_products_warn_of_nothing(threads):
    """A product that is not finite is NaN or infinite, as torch has it; a warning is an error."""
    threads(1)
    A, x = torch.full((64, 16, 16), 1e200, dtype=torch.float64), torch.full((3000, 40), 1e30)
    A[0, 0, 0], A[0, 0, 1] = torch.inf, -torch.inf
    torch.testing.assert_close(namespace_of(A).matmul(A, A), A @ A, equal_nan=True)
    torch.testing.assert_close(dot(x, x), (x * x).sum(-1))


def test_memory_of_parameters_stays_free():
    """FSDP frees that of parameters between uses, which torch refuses for what NumPy holds."""
    M = PoincareBall(4)
    layer = GyroBN(M)
    x = torch.nn.Parameter(M.random(12, like=torch.empty(())))
    layer(x).sum().backward()
    assert all(p.untyped_storage().resizable() for p in (x, *layer.parameters()))
