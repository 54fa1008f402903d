"""``torch.compile(fullgraph=True)``: the same numbers and gradients, in training and evaluation.

The default compiler takes many seconds for a geometry, so each is compiled once, and options are
compiled for a backend that traces forward and backward passes in full but generates no code.
"""

import numpy as np
import pytest
import torch
from conftest import FIRST
from functorch.compile import make_boxed_func
from layer_cases import batches
from torch._dynamo.backends.common import aot_autograd

from benchmarks.experiments.layers import GrassmannTranslation
from gyrobn import (
    SPD,
    Correlation,
    Grassmannian,
    PoincareBall,
    Product,
    SpecialOrthogonal,
    Sphere,
)
from gyrobn.torch import DomainGyroBN, GyroBN
from gyrobn.torch.baselines import LRBN

DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(layer, call, x, weights=None):
    """Return what two batches in training and one in evaluation give, with all gradients."""
    x = x.detach().requires_grad_()
    layer.train()
    found = []
    for _ in range(2):
        y = call(x, weights)
        slope = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
        found += [y, *torch.autograd.grad((y * slope).sum(), (x, *layer.parameters()))]
    layer.eval()
    with torch.no_grad():
        found.append(call(x, None))
    return [*found, *layer.buffers()]


CALLS = []


class Recorded(torch.fx.Interpreter):
    """Runs a graph, and records how operations of our own are called."""

    def call_function(self, target, args, kwargs):
        if "gyrobn" in str(target):
            CALLS.append((target, args, kwargs))
        return super().call_function(target, args, kwargs)


def interpreted(graph, inputs):
    return make_boxed_func(Recorded(graph).run)


def same_compiled(make, x, weights=None):
    plain, layer = make(), make()
    backend = aot_autograd(fw_compiler=interpreted)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    expected = run(plain, plain, x, weights)
    found = run(layer, compiled, x, weights)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


class Both(torch.nn.Module):
    """Two layers, in training and in evaluation, so that one compilation serves both."""

    def __init__(self, M, dtype, steps):
        super().__init__()
        self.training_layer = GyroBN(M, dtype=dtype, steps=steps)
        self.evaluation_layer = GyroBN(M, dtype=dtype, steps=steps).eval()

    def forward(self, x):
        return self.training_layer(x), self.evaluation_layer(x)


def results(module, call, x):
    """Return outputs, gradients by the samples and by all parameters, and statistics."""
    x = x.detach().requires_grad_()
    outputs = call(x)
    weights = [torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape) for y in outputs]
    total = sum((w * y).sum() for w, y in zip(weights, outputs, strict=True))
    return [*outputs, *torch.autograd.grad(total, (x, *module.parameters())), *module.buffers()]


def same_by_default(M, dtype, tolerance, steps=1, **options):
    """Compare the default compiler with eager mode.

    There are enough numbers for vectorized code, a sample at the identity, and one close to it: of
    functions such as exp(x) − 1, a compiler may have a form without digits there.
    """
    c = 0.3 * np.random.default_rng(0).standard_normal((16, M.dim)) / M.dim**0.5
    c[0], c[1] = 0.0, 1e-9 * c[1]
    x = torch.as_tensor(M.from_normal(c), dtype=dtype)
    eager, compiled = (Both(M, dtype, steps) for _ in range(2))
    expected = results(eager, eager, x)
    # no processes for kernels of GPUs
    options = {"compile_threads": 1, **options}
    found = results(compiled, torch.compile(compiled, fullgraph=True, options=options), x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(b.max())))


@pytest.mark.filterwarnings("ignore")  # torch has its own, of several kinds
@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_every_family_by_default(M):
    """Forward and backward, in training and in evaluation.

    A search until convergence has an operation of our own in its graph, and twice the code: once
    for vectors, once for matrices with eigenvalues, once with singular values.
    """
    searches = type(M) in (PoincareBall, SPD, Grassmannian)
    same_by_default(M, DOUBLE, 1e-10, steps=None if searches else 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("M", "options"),
    [
        (SPD(6), {}),
        (PoincareBall(3), {"cpp.use_decompose_tanh": True}),  # as torch 2.7 does
    ],
    ids=["SPD", "PoincareBall"],
)
def test_single_precision_by_default(M, options):
    same_by_default(M, torch.float32, 1e-4, **options)


@pytest.mark.parametrize(
    ("M", "options"),
    [
        (PoincareBall(2), {"learn_curvature": True, "momentum": None}),
        (PoincareBall(2), {"steps": 1, "clamp": 1.2}),
        (SPD(3), {"steps": 2, "mean_gradient": "detach", "axis": 1}),
        (Grassmannian(4, 2), {"affine": False, "track_running_stats": False}),
        (Grassmannian(5, 2), {}),
        (SpecialOrthogonal(4), {"momentum": None}),
        (Product(PoincareBall(2), SPD(2)), {}),
        (Correlation(3, "off_log"), {}),
        (Correlation(3, "log_scaled"), {}),
    ],
    ids=lambda value: repr(value),
)
def test_options(M, options):
    x = torch.as_tensor(
        batches(M, 2 if options.get("axis") else 6, 6 if options.get("axis") else 2)
    )
    CALLS.clear()
    same_compiled(lambda: GyroBN(M, channels=2, dtype=DOUBLE, **options), x)
    if "steps" in options:  # so few are in the graph
        assert not CALLS
    else:
        torch.library.opcheck(*CALLS[0])


def test_operations_of_a_user():
    """In a function of the user's own, without a layer: no value may be looked at."""
    M = PoincareBall(3)
    x, mean, bias = M.random(5, rng=0), M.random(rng=1), M.random(rng=2)
    given = [torch.as_tensor(a) for a in (x, mean, bias)]
    for function in (
        lambda x, *_: M.from_normal(x),
        lambda *a: M.standardize(a[0], a[1], 1.3, a[2]),
    ):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-12, atol=1e-12)


def test_weights_and_another_formula():
    M = PoincareBall(2)
    x, w = torch.as_tensor(batches(M, 6)), torch.linspace(0.5, 1.5, 6, dtype=DOUBLE)
    same_compiled(lambda: LRBN(M, dtype=DOUBLE), x, w)


class Network(torch.nn.Module):
    def __init__(self, M):
        super().__init__()
        self.M, self.normalization = M, GyroBN(M, steps=1, dtype=DOUBLE)

    def forward(self, c):
        return self.M.to_normal(self.normalization(self.M.from_normal(c)))


def test_in_a_network_that_computes_on_the_manifold_itself():
    c = torch.as_tensor(np.random.default_rng(0).standard_normal((6, 2)))
    network = Network(PoincareBall(2))
    expected = network(c)
    found = torch.compile(network, fullgraph=True, backend="aot_eager")(c)
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at it itself
def test_domains_break_the_graph():
    M = PoincareBall(2)
    x = torch.as_tensor(batches(M, 8))
    layer = DomainGyroBN(M, 2, dtype=DOUBLE)
    domains = torch.arange(8) % 2
    expected = layer(x, domains)
    compiled = torch.compile(lambda x: layer(x, domains) * 1.0, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)


class Halved(DomainGyroBN):
    """A layer that does something to the input first."""

    def forward(self, x, domains):
        return super().forward(0.5 * x, domains)


def test_a_subclass_of_domains_is_compiled_with_its_own_forward():
    M, domains = PoincareBall(2), torch.arange(8) % 2
    x = torch.as_tensor(batches(M, 8))
    layers = [Halved(M, 2, dtype=DOUBLE) for _ in range(2)]
    expected = layers[0](x, domains)
    found = torch.compile(layers[1], backend="aot_eager")(x, domains)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(layers[1].running_var, layers[0].running_var)


def test_the_search_is_one_operation():
    """Its number of iterations follows the data, though the graph was made with others."""
    M = PoincareBall(2)
    layer = torch.compile(GyroBN(M, dtype=DOUBLE), fullgraph=True, backend="aot_eager")
    for count, spread in ((20, 0.1), (20, 3.0), (13, 1.0)):  # the last batch is a short one
        x = M.random(count, rng=1, like=torch.zeros((), dtype=DOUBLE), spread=spread)
        expected = GyroBN(M, dtype=DOUBLE)(x)
        np.testing.assert_allclose(layer(x).detach(), expected.detach(), atol=1e-12)


@pytest.mark.parametrize(("dynamic", "graphs"), [(None, [1, 1, 2, 2]), (True, [1, 1, 1, 1])])
def test_a_batch_size_is_compiled_once(dynamic, graphs):
    """The first other size compiles once more, for any size, as torch does with every layer."""
    M, found = PoincareBall(2), []
    counters = torch._dynamo.utils.counters
    counters.clear()
    layer = torch.compile(
        GyroBN(M, dtype=DOUBLE), fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for count in (20, 20, 13, 17):
        x = M.random(count, rng=1, like=torch.zeros((), dtype=DOUBLE), spread=0.5)
        layer(x.requires_grad_()).sum().backward()
        found.append(counters["stats"]["unique_graphs"])
    assert found == graphs


def test_evaluation_has_no_operation_of_our_own():
    """In the graph that the compiler's backend is given."""
    M, names = PoincareBall(2), []

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    layer = GyroBN(M, dtype=DOUBLE).eval()
    compiled = torch.compile(
        layer, fullgraph=True, backend=aot_autograd(fw_compiler=backend, bw_compiler=backend)
    )
    x = M.random(20, rng=1, like=torch.zeros((), dtype=DOUBLE), spread=0.5)
    torch.testing.assert_close(compiled(x), layer(x))
    assert names
    assert not [name for name in names if "gyrobn" in name]


def slopes(call, inputs):
    y = call(inputs[0])
    weights = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    return [y, *torch.autograd.grad(y, inputs, weights)]


# torch warns where it breaks a graph, as it does at frozen dataclasses and cached functions
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", ["function", "one matrix function", "vectors", "layer"])
def test_outside_of_normalization(case):
    """A user's function of coordinates, whose constants Dynamo would take in float32; a layer."""
    c = torch.as_tensor(np.random.default_rng(0).normal(size=(4, 3)) * 0.3).requires_grad_()
    call, inputs = lambda c: SPD(2).to_normal(SPD(2).from_normal(c) + 0.0) ** 2, [c]
    if case == "one matrix function":  # two wrong signs would make a right one
        call = SPD(2).from_normal
    elif case == "vectors":
        call = Sphere(3).from_normal
    elif case == "layer":
        M = Grassmannian(3, 1)
        call = GrassmannTranslation(M, 2, dtype=DOUBLE)
        x = torch.as_tensor(M.random(3, 1, rng=0)).requires_grad_()
        inputs = [x, *call.parameters()]
    compiled = torch.compile(call, backend="aot_eager")
    for a, b in zip(slopes(compiled, inputs), slopes(call, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
