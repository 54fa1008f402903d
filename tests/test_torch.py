"""The PyTorch layers: derivatives, training, and the habits of torch's BatchNorm."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from conftest import FIRST, GEOMETRIES, cloud
from torch import nn

from gyrobn import (
    SPD,
    Euclidean,
    Hyperboloid,
    PoincareBall,
    SpecialOrthogonal,
    Stereographic,
    batch_stats,
    frechet,
    normalize,
)
from gyrobn.numerics.arrays import dot
from gyrobn.numerics.matrix_functions import LOG, matrix_function
from gyrobn.torch import DomainGyroBN, GyroBN, GyroLayerNorm

pytestmark = pytest.mark.filterwarnings(  # float(tensor) in an assertion
    "ignore:Converting a tensor with requires_grad"
)

DOUBLE = torch.zeros((), dtype=torch.float64)
SINGLE = torch.zeros(())
ONE = torch.ones(())


def batch(M, count=16, spread=0.4, like=DOUBLE, offset=0.5):
    return cloud(M, count, min(spread, 0.3 * M.convexity_radius), like, offset)


# ---------------------------------------------------------------------- derivatives


def test_a_detached_mean_has_no_derivative():
    M = PoincareBall(3)
    x = batch(M).requires_grad_(True)
    slopes = []
    for how in ("implicit", "detach"):
        layer = GyroBN(M, dtype=torch.float64, mean_gradient=how)
        y = layer(x)
        slopes.append(torch.autograd.grad(M.to_normal(y).sum(), x)[0])
    assert float(slopes[0].abs().max()) < 1e-6  # the output's mean does not move
    assert float(slopes[1].abs().max()) > 1e-2


def graph_size(tensor):
    seen, stack = set(), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(n for n, _ in node.next_functions)
    return len(seen)


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_the_graph_does_not_grow_with_the_number_of_iterations():
    M = PoincareBall(3)
    x = batch(M, spread=2.0).requires_grad_(True)
    for options in ({"max_iter": 2}, {"max_iter": 64}), ({"steps": 1}, {"steps": 9}):
        few, many = (graph_size(GyroBN(M, dtype=torch.float64, **o)(x)) for o in options)
        assert few == many


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_training(M):
    """30 steps in float32: finite; the running statistics become the data's; eval normalizes."""
    centre = M.random(rng=100, like=SINGLE, spread=0.5)
    layer = GyroBN(M, channels=2, momentum=0.3)  # 0.7³⁰ of the first statistics is left: 2e-5
    nn.init.constant_(layer.scale, 0.3)  # a sphere has no room for more
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
    x = M.add(centre, M.random(64, 2, rng=0, like=SINGLE, spread=0.3)).requires_grad_(True)
    target = M.to_normal(M.random(rng=3, like=SINGLE, spread=0.3))
    for _ in range(30):
        optimizer.zero_grad()
        loss = ((M.to_normal(layer(x)) - target) ** 2).mean()
        loss.backward()
        assert torch.isfinite(loss)
        for p in (x, *layer.parameters()):
            assert torch.isfinite(p.grad).all()
        optimizer.step()
    found = frechet(M, x.detach())
    assert float(M.dist(layer.running_mean, found.mean).max()) < 1e-3
    torch.testing.assert_close(layer.running_var, found.variance, rtol=1e-3, atol=1e-4)
    layer.eval()
    with torch.no_grad():
        y = frechet(M, layer(x))
        assert float(M.dist(y.mean, M.from_normal(layer.bias)).max()) < 1e-3
        torch.testing.assert_close(y.variance, layer.scale**2, rtol=3e-3, atol=0.0)
    for buffer in layer.buffers():
        assert buffer.grad_fn is None
        assert not buffer.requires_grad


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_no_graph_is_kept(M):
    """Nothing that a derivative would need outlives the output."""
    domains = DomainGyroBN(M, 2, dtype=torch.float64, train_momentum=0.5)
    layers = GyroBN(M, dtype=torch.float64), domains
    x, d, kept = batch(M, 6).requires_grad_(True), torch.arange(6) % 2, weakref.WeakSet()

    class Saved:
        def __init__(self, tensor):
            self.values = tensor.detach()  # an output itself would own the graph that owns it
            kept.add(self)

    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.values):
        for _ in range(2):
            y = layers[0](x), layers[1](x, d)
    assert len(kept) > 0
    del y
    gc.collect()
    assert len(kept) == 0
    assert not any(buffer.requires_grad for layer in layers for buffer in layer.buffers())


# ---------------------------------------------------------------------- torch's habits


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_as_batchnorm_in_flat_space_and_everywhere_the_theorem(M):
    layer = GyroBN(M, channels=(2,), dtype=torch.float64)
    nn.init.constant_(layer.scale, 0.3)
    x = M.add(
        M.random(rng=9, like=DOUBLE, spread=0.5), M.random(32, 2, rng=0, like=DOUBLE, spread=0.3)
    )
    y = frechet(M, layer(x).detach())
    v = frechet(M, x).variance
    assert float(M.norm(y.mean).max()) < 1e-10
    torch.testing.assert_close(y.variance, 0.09 * v / (v + 1e-5), rtol=1e-9, atol=0)
    if isinstance(M, Euclidean):
        norm = nn.BatchNorm1d(2, dtype=torch.float64)
        flat = GyroBN(Euclidean(1), channels=2, dtype=torch.float64)
        z = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(flat(z[..., None])[..., 0], norm(z))
        torch.testing.assert_close(flat.running_mean[:, 0], norm.running_mean)


def test_momentum_none_averages_all_batches():
    M = Euclidean(2)
    layer = GyroBN(M, momentum=None, dtype=torch.float64)
    batches = torch.randn(5, 8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for x in batches:
        layer(x)
    assert int(layer.num_batches_tracked) == 5
    torch.testing.assert_close(layer.running_mean, batches.mean((0, 1)))
    expected = torch.stack([frechet(M, x).variance for x in batches]).mean()
    torch.testing.assert_close(layer.running_var, expected)
    layer.reset_running_stats()
    assert (int(layer.num_batches_tracked), float(layer.running_var)) == (0, 1.0)
    assert not layer.running_mean.any()


def test_train_and_eval():
    M = PoincareBall(3)
    x = batch(M)
    layer = GyroBN(M, dtype=torch.float64).eval()
    before = copy.deepcopy(layer.state_dict())
    y = layer(x)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
    torch.testing.assert_close(y, M.scale((1 + 1e-5) ** -0.5, x))
    free = GyroBN(M, dtype=torch.float64, track_running_stats=False, affine=False)
    assert list(free.state_dict()) == ["_extra_state"]
    torch.testing.assert_close(free.eval()(x), layer.train()(x))
    layer.reset_parameters()
    assert torch.equal(layer.running_mean, before["running_mean"])


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_copies(M):
    """state_dict, also before the first batch and through double; deepcopy; pickle."""
    x = batch(M, like=SINGLE)
    layer = GyroBN(M)
    GyroBN(M).load_state_dict(saved_and_loaded(layer))
    layer(x)
    other = GyroBN(M, dtype=torch.float64)
    other.load_state_dict(saved_and_loaded(layer.double()))
    assert other.running_mean.dtype == torch.float64
    assert other.num_batches_tracked.dtype == torch.int64
    layer.eval()
    x = M.project(x.double())
    y = layer(x)
    copies = other.eval(), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    for twin in copies:
        assert torch.equal(twin(x), y)
        assert repr(twin) == repr(layer)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_made_without_memory(M):
    fresh, layer = GyroBN(M, channels=2), GyroBN(M, channels=2, device="meta")
    layer.to_empty(device="cpu").reset_parameters()
    torch.testing.assert_close(layer.state_dict(), fresh.state_dict(), rtol=0.0, atol=0.0)


def test_extra_repr():
    assert repr(GyroBN(PoincareBall(2), 3)) == (
        "GyroBN(PoincareBall(n=2, curvature=-1.0), channels=(3,))"
    )
    layer = GyroBN(PoincareBall(2), steps=1, clamp=2.0, momentum=None, affine=False)
    assert "clamp=2.0, steps=1, momentum=None, affine=False" in repr(layer)


def test_functional_call_and_vmap():
    M = PoincareBall(3)
    x = batch(M)
    layer = GyroBN(M, dtype=torch.float64).eval()
    layer.running_mean.copy_(x[0])
    own = dict(layer.named_parameters())

    def loss(own, x):
        return (torch.func.functional_call(layer, own, (x,)) ** 2).sum()

    slopes = torch.func.grad(loss)(own, x)
    loss(own, x).backward()
    torch.testing.assert_close(slopes["bias"], layer.bias.grad)
    many = torch.stack([x, 0.5 * x])
    torch.testing.assert_close(torch.vmap(layer)(many), torch.stack([layer(z) for z in many]))
    free = GyroBN(M, dtype=torch.float64, track_running_stats=False)
    torch.testing.assert_close(torch.vmap(free)(many), torch.stack([free(z) for z in many]))


def test_mixed_precision_keeps_the_geometry_in_float32():
    M = PoincareBall(3)
    x = batch(M, like=SINGLE)
    layer, linear = GyroBN(M), nn.Linear(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x).dtype == torch.bfloat16
        y = layer(x)
        half = layer(x.bfloat16())
    assert (y.dtype, half.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(y, GyroBN(M)(x))
    assert float(M.dist(y, half.float()).detach().max()) < 0.1


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_functions_keep_their_dtype_inside_of_autocast(M):
    x = batch(M, like=SINGLE)

    def all_of_it():
        y = normalize(M, x, batch_stats(M, x), bias=x[0], scale=0.3)
        return y, M.dist(x, y), M.add(x, y), M.scale(0.5, y), frechet(M, y).mean

    expected = all_of_it()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = all_of_it()
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


def test_backward_inside_of_autocast():
    """The rules compute in full precision. (torch's own products of matrices do not.)"""
    rotations, x = SpecialOrthogonal(3), SPD(3).random(5, rng=0, like=SINGLE)
    layer = GyroBN(rotations)
    slopes = []
    for on in (False, True):
        logs, turns = x.clone().requires_grad_(), batch(rotations, like=SINGLE).requires_grad_()
        out = (matrix_function(logs, LOG)[:, :1] * x[:, 1:]).sum(), (layer(turns) ** 3).sum()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            slopes.append(torch.autograd.grad(out, (logs, turns)))
    (exact, about), (first, second) = slopes
    torch.testing.assert_close(first, exact, rtol=0.0, atol=0.0)
    torch.testing.assert_close(second, about, rtol=0.0, atol=0.05 * float(about.abs().max()))


def test_points_in_half_precision_are_brought_back_to_the_manifold():
    """Rounded to a few digits they are off it, and their statistics would be."""
    M = Hyperboloid(2)
    x = batch(M, like=SINGLE).bfloat16()
    assert not M.contains(x.float()).all()
    rounded, whole = GyroBN(M), GyroBN(M)
    rounded(x)
    whole(M.project(x.float()))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(rounded, name), getattr(whole, name))


def test_axes_weights_and_clamp():
    M = PoincareBall(3)
    x = M.random(4, 2, 6, rng=0, like=DOUBLE, spread=0.5)
    layer = GyroBN(M, channels=2, axis=(0, 2), dtype=torch.float64)
    y = layer(x)
    flat = x.permute(0, 2, 1, 3).reshape(24, 2, 3)
    expected = GyroBN(M, channels=2, dtype=torch.float64)(flat)
    torch.testing.assert_close(y, expected.reshape(4, 6, 2, 3).permute(0, 2, 1, 3))
    w = torch.tensor([1.0] * 20 + [0.0] * 4, dtype=torch.float64)
    few, all_of_them = (GyroBN(M, channels=2, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(all_of_them(flat, w)[:20], few(flat[:20]))
    close = M.scale(1e-3, flat)
    clamped = GyroBN(M, channels=2, dtype=torch.float64, clamp=10.0)(close)
    assert float(M.norm(clamped).detach().max()) < 0.05


@pytest.mark.parametrize("axis", [1, -1])
def test_weights_of_a_batch_that_is_not_in_front(axis):
    """Weights of a whole batch lie as the batch does."""
    M = PoincareBall(3)
    x = M.random(2, 6, rng=0, like=DOUBLE, spread=0.5)
    w = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(2, 6)
    layer, front = (GyroBN(M, 2, axis=a, dtype=torch.float64) for a in (axis, 0))
    expected = front(x.transpose(0, 1), w.T).transpose(0, 1)
    torch.testing.assert_close(layer(x, w), expected)
    torch.testing.assert_close(layer.running_mean, front.running_mean)
    torch.testing.assert_close(layer(x, w[0]), front(x.transpose(0, 1), w[0]).transpose(0, 1))
    square = M.random(2, 2, rng=0, like=DOUBLE, spread=0.5)  # equal axes
    expected = front(square.transpose(0, 1), w[:, :2].T).transpose(0, 1)
    torch.testing.assert_close(layer(square, w[:, :2]), expected)


@pytest.mark.parametrize("axis", [2, -3, (0, 3)])
def test_an_axis_that_is_not_there(axis):
    with pytest.raises(ValueError, match="axis"):
        GyroBN(PoincareBall(3), 2, axis=axis)


def test_the_scale_has_its_own_parameter_group():
    layer = GyroBN(Stereographic(2), learn_curvature=True)
    others, scales = layer.parameter_groups(lr=1e-3, weight_decay=0.0)
    assert scales["lr"] == 1e-3
    assert scales["params"][0] is layer.scale
    assert {id(p) for p in others["params"]} == {id(layer.bias), id(layer.raw_curvature)}


@pytest.mark.parametrize("M", [PoincareBall(3, -2.0), Hyperboloid(3), Stereographic(3, 0.1)])
def test_a_learnt_curvature(M):
    """It keeps its sign, however it is pushed; on Stereographic it passes through zero."""
    layer = GyroBN(M, learn_curvature=True, dtype=torch.float64)
    assert abs(float(layer.manifold.curvature.detach()) - M.curvature) < 1e-12
    optimizer = torch.optim.SGD([layer.raw_curvature], lr=0.1)
    x = M.random(16, rng=0, like=DOUBLE, spread=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        layer.manifold.curvature.backward() if M.curvature > 0 else (
            -layer.manifold.curvature
        ).backward()
        optimizer.step()
        y = layer(layer.manifold.detached().project(x))
        assert torch.isfinite(y).all()
    K = float(layer.manifold.curvature.detach())
    assert abs(K) < abs(M.curvature) if M.required_sign else K < 0 < M.curvature
    assert float(layer.manifold.violation(layer.manifold.project(layer.running_mean))) < 1e-12
    with pytest.raises(ValueError, match="no curvature"):
        GyroBN(SPD(2), learn_curvature=True)


@pytest.mark.parametrize(
    ("shape", "channels", "words"),
    [
        ((8, 3), (), r"shape \(batch, 2\), got \(8, 3\)"),
        ((8, 4, 2), (3,), r"shape \(batch, 3, 2\), got \(8, 4, 2\)"),
        ((2,), (), r"shape \(batch, 2\), got \(2,\)"),
        ((1, 2), (), "more than one sample"),
    ],
)
def test_wrong_shapes(shape, channels, words):
    with pytest.raises(ValueError, match=words):
        GyroBN(PoincareBall(2), channels)(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("training", [True, False])
def test_input_that_is_not_real(dtype, training):
    """The message is gyrobn's, not that of torch.finfo."""
    M, x = PoincareBall(3), torch.zeros(4, 3, dtype=dtype)
    message = f"expected a real floating dtype, got {dtype}: convert it first"
    for layer in (GyroBN(M), GyroBN(M, affine=False, track_running_stats=False), GyroLayerNorm(M)):
        with pytest.raises(TypeError, match=message):
            layer.train(training)(x)
    with pytest.raises(TypeError, match=message):
        DomainGyroBN(M, 2).train(training)(x, torch.zeros(4, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_wrong_values_and_dtypes():
    layer, x = GyroBN(PoincareBall(2)), PoincareBall(2).random(8, rng=0, like=SINGLE)
    x[5, 1] = float("nan")
    with pytest.raises(ValueError, match="has NaN in 1 of 8 samples, the first at index 5"):
        layer(x)
    assert int(layer.num_batches_tracked) == 0
    with pytest.raises(TypeError, match=r"holds torch.float32, got input of torch.float64"):
        layer(x.double())
    with pytest.raises(ValueError, match="mean_gradient"):
        GyroBN(PoincareBall(2), mean_gradient="exact")


# ---------------------------------------------------------------------- domains


def two_domains(M, count=24):
    """Two clouds about different points, one twice as wide, shuffled."""
    d = torch.arange(count) % 2
    centres = M.random(2, rng=5, like=DOUBLE, spread=0.6)
    widths = torch.tensor([0.2, 0.4], dtype=torch.float64)[d]
    if len(M.blocks) > 1:
        widths = widths[:, None]
    return M.add(centres[d], M.scale(widths, M.random(count, rng=6, like=DOUBLE, spread=0.5))), d


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_each_domain_has_its_own_statistics(M):
    x, d = two_domains(M)
    layer = DomainGyroBN(M, 3, dtype=torch.float64, momentum=1.0)
    y = layer(x, d)
    for k in range(2):
        torch.testing.assert_close(y[d == k], GyroBN(M, dtype=torch.float64)(x[d == k]))
        found = frechet(M, x[d == k])
        assert float(M.dist(layer.running_mean[k], found.mean)) < 1e-9
        torch.testing.assert_close(layer.running_var[k], found.variance)
    assert layer.num_batches_tracked.tolist() == [1, 1, 0]
    torch.testing.assert_close(layer.eval()(x, d), y)
    twin = DomainGyroBN(M, 3, dtype=torch.float64).eval()
    twin.load_state_dict(saved_and_loaded(layer))
    assert torch.equal(twin(x, d), layer(x, d))


def test_separate_momenta_and_a_schedule():
    M = Euclidean(1)
    rates = []

    def schedule(step):
        rates.append(1.0 / (step + 1))
        return rates[-1]

    layer = DomainGyroBN(M, 1, dtype=torch.float64, train_momentum=schedule, momentum=0.25)
    none = torch.zeros(2, dtype=torch.int64)
    for value in (1.0, 3.0):
        x = torch.tensor([[value - 1], [value + 1]], dtype=torch.float64)
        y = layer(x, none)
    assert rates == [1.0, 0.5]
    assert float(layer.training_mean[0]) == 2.0
    assert float(layer.running_mean[0]) == 0.25 * 0.75 + 0.25 * 3.0
    torch.testing.assert_close(y, (x - 2.0) / (1.0 + 1e-5) ** 0.5)
    assert "training_mean" in layer.state_dict()


def test_an_unseen_domain():
    M = PoincareBall(2)
    x, d = two_domains(M)
    layers = {
        unseen: DomainGyroBN(M, 3, dtype=torch.float64, unseen=unseen, momentum=0.5)
        for unseen in ("error", "refit", "adapt")
    }
    other = torch.full_like(d, 2)
    for layer in layers.values():
        layer(x, d)
        layer.eval()
    with pytest.raises(ValueError, match=r"training did not see domain 2 \(it saw 0, 1\)"):
        layers["error"](x, other)
    y = layers["refit"](x, other)
    torch.testing.assert_close(y, GyroBN(M, dtype=torch.float64)(x))
    adapted = layers["adapt"]
    z = adapted(x, other).detach()
    average = frechet(M, adapted.running_mean[:2]).mean
    middle = M.geodesic(average, frechet(M, x).mean, 0.5)
    assert float(M.norm(frechet(M, z).mean)) > 1e-3
    variance = 0.5 * (adapted.running_var[:2].mean() + frechet(M, x).variance)
    torch.testing.assert_close(z, M.scale((variance + 1e-5) ** -0.5, M.relative(middle, x)))


def test_domain_errors():
    M = PoincareBall(2)
    x, d = two_domains(M)
    layer = DomainGyroBN(M, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="from 0 to 1, got 1 to 2"):
        layer(x, d + 1)
    with pytest.raises(ValueError, match="shape of the batch"):
        layer(x, d[:3])
    with pytest.raises(ValueError, match="unseen must be"):
        DomainGyroBN(M, 2, unseen="guess")
    with pytest.raises(ValueError, match="axis=0"):
        DomainGyroBN(M, 2, axis=1)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func.jvp itself
@pytest.mark.parametrize("rows", [8, 1024])
def test_squared_lengths_of_few_and_many_vectors(rows):
    """Many vectors take a road of their own; its derivatives of both orders are those of few."""
    g = torch.Generator().manual_seed(0)
    x, v = (torch.randn(rows, 128, dtype=torch.float64, generator=g) for _ in range(2))
    x[0] = 0.0  # where the length has no slope, but its square has
    slope = torch.randn(rows, dtype=torch.float64, generator=g)
    leaf = x.clone().requires_grad_()
    square = dot(leaf, leaf)
    torch.testing.assert_close(square.detach(), (x * x).sum(-1), rtol=1e-14, atol=0.0)
    (first,) = torch.autograd.grad(square, leaf, slope, retain_graph=True)
    torch.testing.assert_close(first, 2.0 * slope[:, None] * x, rtol=1e-15, atol=0.0)
    (first,) = torch.autograd.grad(square, leaf, slope, create_graph=True)
    (second,) = torch.autograd.grad(first, leaf, v)
    torch.testing.assert_close(second, 2.0 * slope[:, None] * v, rtol=1e-15, atol=0.0)
    _, forward = torch.func.jvp(lambda x: dot(x, x), (x,), (v,))
    torch.testing.assert_close(forward, 2.0 * (x * v).sum(-1), rtol=1e-12, atol=1e-12)
