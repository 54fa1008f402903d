"""Curvatures that several layers share, and those of the factors of a product."""

import copy
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

import gyrobn.equinox
import gyrobn.flax
from gyrobn import (
    SPD,
    Euclidean,
    PoincareBall,
    Product,
    Sphere,
    Stereographic,
    batch_stats,
    normalize,
)
from gyrobn.torch import Curvature, DomainGyroBN, GyroBN, GyroLayerNorm, GyroRMSNorm
from gyrobn.torch.nn import GyroLinear, ManifoldParameter

DOUBLE = {"dtype": torch.float64}
X = 0.4 * np.random.default_rng(0).standard_normal((12, 3))
C = 0.4 * np.random.default_rng(1).standard_normal((12, 5))


def owner(kind, K):
    """Return a learnable curvature, and how to set it."""
    if kind == "parameter":
        k = torch.nn.Parameter(torch.tensor(K, **DOUBLE))
        return k, k, lambda new: k.data.fill_(new)
    k = Curvature(K, **DOUBLE)
    return k, k.raw, lambda new: k.raw.data.fill_(math.log(new / K))


class Network(torch.nn.Module):
    """Two normalizations and two linear layers on one geometry, of a curvature that it owns."""

    def __init__(self, k):
        super().__init__()
        self.K, M = k, PoincareBall(3, k)
        parts = [GyroLinear(Euclidean(3), M, **DOUBLE), GyroBN(M, **DOUBLE)]
        self.parts = torch.nn.ModuleList([*parts, GyroLinear(M, M, **DOUBLE), GyroBN(M, **DOUBLE)])

    def __getitem__(self, place):
        return self.parts[place]

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


kinds = pytest.mark.parametrize("kind", ["parameter", "module"])


@kinds
def test_one_parameter_for_all_layers(kind):
    k, raw, _ = owner(kind, -0.8)
    net = Network(k)
    assert sum(p is raw for p in net.parameters()) == 1
    names = [name for name in net.state_dict() if name.startswith("K")]
    assert names == (["K"] if kind == "parameter" else ["K.raw"])
    assert len(net.state_dict()) == 1 + 2 * 2 + 2 * 6
    assert not [name for name, _ in net[1].named_parameters() if name not in ("bias", "scale")]


@kinds
@pytest.mark.parametrize("mode", [True, False])
def test_values_and_gradients(kind, mode):
    """As with the number in its place; the gradient, against differences."""
    k, raw, put = owner(kind, -0.8)
    torch.manual_seed(0)
    net, x = Network(k), torch.as_tensor(X)
    net(x)
    net.train(mode)
    loss = lambda y: y.pow(3).sum() + y[:, 0].sum()  # noqa: E731
    frozen = copy.deepcopy(net)
    frozen.eval() if not mode else frozen.train()
    (slope,) = torch.autograd.grad(loss(net(x)), raw)
    values = []
    for step in (-1e-5, 1e-5):
        other = copy.deepcopy(frozen)
        (other.K if kind == "parameter" else other.K.raw).data += step
        values.append(float(loss(other(x)).detach()))
    assert float(slope) == pytest.approx((values[1] - values[0]) / 2e-5, rel=1e-6)
    put(-1.7)
    y = net[1](net[1].manifold.detached().from_normal(x))
    K = float(net[1].manifold.curvature.detach())
    assert abs(K + 1.7) < 1e-12
    plain = GyroBN(PoincareBall(3, K), **DOUBLE).train(mode)
    plain.load_state_dict(net[1].state_dict())
    fixed = plain(plain.manifold.from_normal(x))
    torch.testing.assert_close(y, fixed, rtol=1e-13, atol=1e-13)


@kinds
@pytest.mark.parametrize("compiled", [False, True])
def test_every_call_has_the_current_value(kind, compiled):
    k, raw, _ = owner(kind, -0.8)
    layer, x = GyroBN(PoincareBall(3, k), **DOUBLE), torch.as_tensor(X)
    run = torch.compile(layer, backend="aot_eager") if compiled else layer
    optimizer = torch.optim.SGD([raw, *layer.parameters()], lr=0.05)
    for _ in range(3):
        K = float(layer.manifold.curvature.detach())
        points = PoincareBall(3, K).from_normal(x)
        optimizer.zero_grad()
        y = run(points)
        M = PoincareBall(3, K)
        expected = normalize(
            M, points, batch_stats(M, points), M.from_normal(layer.bias), layer.scale
        )
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)
        y.pow(2).sum().backward()
        optimizer.step()
        assert float(layer.manifold.curvature.detach()) != K


@kinds
def test_copies_states_and_conversions(kind):
    k, _, put = owner(kind, -0.8)
    net = Network(k)
    twin = copy.deepcopy(net)
    put(-2.0)
    for layer in (net[1], net[3]):
        assert float(layer.manifold.curvature.detach()) == pytest.approx(-2.0)
        assert float(net[2].manifold.curvature.detach()) == pytest.approx(-2.0)
    assert float(twin[1].manifold.curvature.detach()) == pytest.approx(-0.8)
    twin.load_state_dict(net.state_dict())
    assert float(twin[3].manifold.curvature.detach()) == pytest.approx(-2.0)
    twin.float()
    x = torch.as_tensor(X, dtype=torch.float32)
    assert twin[1].manifold.curvature.dtype == twin(x).dtype == torch.float32
    twin.bfloat16()
    assert twin(x.bfloat16()).dtype == torch.bfloat16
    assert twin[1].manifold.curvature.dtype == torch.float32


def test_a_module_follows_replaced_parameters():
    """``assign=True`` and ``functional_call`` put other tensors in the place of parameters."""
    net, other, x = Network(Curvature(-0.8, **DOUBLE)), Network(Curvature(-0.8, **DOUBLE)), X
    with torch.no_grad():
        other.K.raw.fill_(0.5)
    x, other = torch.as_tensor(x), other.eval()
    expected = other(x)
    net.eval()
    found = torch.func.functional_call(net, other.state_dict(), (x,))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    net.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)


def test_the_state_holds_the_current_value():
    k, _, put = owner("parameter", -0.8)
    layer = GyroBN(PoincareBall(3, k), **DOUBLE)
    put(-2.0)
    state = layer.state_dict()
    assert "curvature=-2.0" in repr(layer)
    GyroBN(PoincareBall(3, -2.0), **DOUBLE).load_state_dict(state)
    GyroBN(PoincareBall(3, owner("module", -0.3)[0]), **DOUBLE).load_state_dict(state)
    for M in (PoincareBall(3, -0.8), PoincareBall(2, k), Stereographic(3, k)):
        with pytest.raises(RuntimeError, match="the state is of a layer on"):
            GyroBN(M, **DOUBLE).load_state_dict(state)


def test_the_dtype_is_that_of_the_layer():
    layer = GyroBN(PoincareBall(3, torch.tensor(-0.8, **DOUBLE)))
    assert layer(torch.as_tensor(X, dtype=torch.float32)).dtype == torch.float32


def test_a_curvature_keeps_its_sign():
    for initial in (-0.7, 2.0):
        K = Curvature(initial, **DOUBLE)
        optimizer = torch.optim.SGD(K.parameters(), lr=1.0)
        for _ in range(20):
            optimizer.zero_grad()
            (K() * math.copysign(1.0, initial)).backward()
            optimizer.step()
        assert 0.0 < float(K().detach()) / initial < 0.5
    with pytest.raises(ValueError, match="must not be 0"):
        Curvature(0.0)
    assert "initial=-1.0" in repr(Curvature())


def test_a_wrong_curvature():
    with pytest.raises(
        ValueError, match=r"needs a negative sectional curvature, got curvature=0\.5"
    ):
        GyroBN(PoincareBall(3, torch.tensor(0.5)))
    for wrong in (torch.zeros(2), np.asarray(-1.0), torch.nn.Linear):
        with pytest.raises(ValueError, match="the curvature of a layer must be a number"):
            GyroBN(PoincareBall(3, wrong))
    k, _, put = owner("parameter", -0.5)
    layer = GyroBN(PoincareBall(3, k), **DOUBLE)
    put(0.1)
    with pytest.raises(ValueError, match="needs a negative sectional curvature"):
        layer(torch.as_tensor(X))
    with pytest.raises(ValueError, match="has no curvature to learn"):
        GyroBN(Product(SPD(2), Euclidean(1)), learn_curvature=True)
    put(-0.5)
    with pytest.raises(ValueError, match="has no curvature to learn"):
        GyroBN(PoincareBall(3, k), learn_curvature=True)


def test_other_layers():
    k, raw, _ = owner("module", -0.6)
    M, plain = PoincareBall(3, k), PoincareBall(3, -0.6)
    x = plain.from_normal(torch.as_tensor(X)).reshape(4, 3, 3)
    for make in (GyroLayerNorm, GyroRMSNorm):
        found, expected = (make(N, **DOUBLE)(x) for N in (M, plain))
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
        assert torch.autograd.grad(found.pow(3).sum(), raw)[0].abs() > 1e-6
    domains = torch.tensor([0, 0, 1, 1] * 3)
    found, expected = (DomainGyroBN(N, 2, **DOUBLE)(x.reshape(12, 3), domains) for N in (M, plain))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    assert torch.autograd.grad(found.pow(3).sum(), raw)[0].abs() > 1e-6
    point = ManifoldParameter(M, **DOUBLE)
    assert bool(plain.contains(point().detach()))


def test_on_meta():
    with torch.device("meta"):
        k = Curvature(-0.6)
        layer = GyroBN(PoincareBall(3, k))
        assert layer(torch.empty(4, 3)).is_meta
        assert "curvature=-0.6" in repr(layer)
    assert layer.state_dict()


# ---------------------------------------------------------------------- factors of a product

CURVED = Product(PoincareBall(2, -0.6), Sphere(2, 0.4), Euclidean(1))


def test_a_curvature_for_each_factor():
    layer = GyroBN(CURVED, learn_curvature=True, **DOUBLE)
    assert layer.raw_curvature.shape == (2,)
    assert layer.manifold == CURVED
    c = torch.as_tensor(C)

    def loss(M, bn):
        y = bn(M.from_normal(c))
        return y.pow(3).sum() + (y[:, 0] * y[:, 3]).sum()

    # the points are made with the curvatures, too
    slopes = torch.autograd.grad(loss(layer.manifold, layer), layer.raw_curvature)[0]
    for i, slope in enumerate(slopes):
        values = []
        for h in (-1e-5, 1e-5):
            K = [-0.6, 0.4]
            K[i] *= math.exp(h)
            M = CURVED.with_learnable(K)
            values.append(float(loss(M, GyroBN(M, **DOUBLE)).detach()))
        assert float(slope) == pytest.approx((values[1] - values[0]) / 2e-5, rel=1e-6)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.3)
    for _ in range(5):
        optimizer.zero_grad()
        loss(layer.manifold, layer).backward()
        optimizer.step()
    ball, sphere = (float(K.detach()) for K in layer.manifold.learnable())
    assert ball < 0.0 < sphere
    assert (ball, sphere) != (-0.6, 0.4)
    layer.reset_parameters()
    assert layer.raw_curvature.tolist() == [0.0, 0.0]


def test_a_state_with_a_curvature_for_each_factor():
    other = Product(PoincareBall(2, -1.3), Sphere(2, 0.1), Euclidean(1))
    layer, to = (GyroBN(M, learn_curvature=True, **DOUBLE) for M in (CURVED, other))
    with torch.no_grad():
        layer.raw_curvature.copy_(torch.tensor([0.3, -0.2]))
    to.load_state_dict(layer.state_dict())
    K = [float(k.detach()) for k in layer.manifold.learnable()]
    assert [float(k.detach()) for k in to.manifold.learnable()] == pytest.approx(K, rel=1e-12)
    fixed = GyroBN(CURVED.with_learnable(K), **DOUBLE)
    fixed.load_state_dict(layer.state_dict(), strict=False)
    with pytest.raises(RuntimeError, match="the state is of a layer on"):
        GyroBN(CURVED, **DOUBLE).load_state_dict(layer.state_dict(), strict=False)
    swapped = Product(Sphere(2, 0.4), PoincareBall(2, -0.6), Euclidean(1))
    with pytest.raises(RuntimeError, match="the state is of a layer on"):
        GyroBN(swapped, learn_curvature=True, **DOUBLE).load_state_dict(layer.state_dict())


def test_a_product_of_learnt_shared_and_free_curvatures():
    k, raw, put = owner("parameter", -0.5)
    M = Product(PoincareBall(2, k), Stereographic(1, 0.0), Sphere(1, 0.4))
    layer = GyroBN(M, learn_curvature=True, **DOUBLE)
    assert layer.raw_curvature.tolist() == [0.0, 0.0]
    with torch.no_grad():
        layer.raw_curvature.copy_(torch.tensor([-0.3, math.log(2.0)]))
    put(-0.7)
    K = [float(v.detach()) for v in layer.manifold.learnable()]
    np.testing.assert_allclose(K, [-0.7, -0.3, 0.8])
    x = layer.manifold.detached().random(8, rng=0, like=torch.zeros((), **DOUBLE), spread=0.4)
    plain = layer.manifold.with_learnable([-0.5, 0.0, 0.4])
    for at in (plain, layer.manifold.with_learnable(K)):  # which of them were learnt is not known
        with pytest.raises(RuntimeError, match="the state is of a layer on"):
            GyroBN(at, **DOUBLE).load_state_dict(layer.state_dict(), strict=False)
    layer(x).pow(3).sum().backward()
    assert bool((layer.raw_curvature.grad.abs() > 1e-8).all())
    assert raw.grad.abs() > 1e-8


# ---------------------------------------------------------------------- JAX


class Two(nnx.Module):
    """Two normalizations that share a curvature."""

    def __init__(self, K):
        self.K = nnx.Param(jnp.asarray(K))
        self.first = gyrobn.flax.GyroBN(PoincareBall(3, self.K))
        self.second = gyrobn.flax.GyroBN(PoincareBall(3, self.K))

    def __call__(self, x):
        return self.second(self.first(x))


def test_flax():
    model = Two(-0.8)
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert len(leaves) == 1 + 2 * 2
    x = PoincareBall(3, -0.5).from_normal(jnp.asarray(X, jnp.float32))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        grads = nnx.grad(lambda model: (model(x) ** 2).sum())(model)
        optimizer.update(model, grads)

    for _ in range(3):
        before = float(model.K[...])
        step(model, optimizer, x)
        assert float(model.K[...]) != before
        for layer in (model.first, model.second):
            assert float(layer.manifold.curvature) == float(model.K[...])
    alone, plain = (
        gyrobn.flax.GyroBN(PoincareBall(3, K), use_bias=False)
        for K in (model.K, float(model.K[...]))
    )
    np.testing.assert_allclose(alone(x), plain(x), atol=1e-6)


def test_flax_product():
    M = Product(PoincareBall(2, nnx.Param(jnp.asarray(-0.6))), Sphere(2, 0.4), Euclidean(1))
    layer = gyrobn.flax.GyroBN(M, learn_curvature=True)
    assert layer.raw_curvature.shape == (1,)
    x = CURVED.random(8, rng=0, like=jnp.zeros((), jnp.float32), spread=0.4)
    grads = nnx.grad(lambda layer: (layer(x) ** 3).sum())(layer)
    assert all(float(abs(g).max()) > 1e-8 for g in jax.tree.leaves(grads)[-2:])
    np.testing.assert_allclose(layer(x), gyrobn.flax.GyroBN(CURVED)(x), atol=1e-5)


def test_equinox():
    def make(K):
        return gyrobn.equinox.GyroLayerNorm(PoincareBall(3, K), dtype=jnp.float32)

    k = jnp.asarray(-0.8)
    x = PoincareBall(3, -0.5).from_normal(jnp.asarray(X, jnp.float32)).reshape(4, 3, 3)
    found, expected = make(k)(x), make(-0.8)(x)
    np.testing.assert_allclose(found, expected, atol=1e-6)

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(model):
        first, second = model() if isinstance(model, eqx.nn.Shared) else model
        return (second(first(x)) ** 3).sum()

    each = slope((make(k), make(k)))
    shared = eqx.nn.Shared(
        (make(k), make(k)),
        lambda pair: pair[1].shared_curvature[0],
        lambda pair: pair[0].shared_curvature[0],
    )
    both = slope(shared).pytree[0].shared_curvature[0]
    total = sum(float(layer.shared_curvature[0]) for layer in each)
    assert float(both) == pytest.approx(total, rel=1e-4)
    moved = eqx.tree_at(lambda own: own.shared_curvature[0], make(k), jnp.asarray(-0.5))
    assert float(moved.manifold.curvature) == -0.5
    np.testing.assert_allclose(moved(x), make(-0.5)(x), atol=1e-6)


def test_equinox_product():
    layer = gyrobn.equinox.GyroLayerNorm(CURVED, learn_curvature=True, dtype=jnp.float32)
    assert layer.raw_curvature.shape == (2,)
    x = CURVED.random(2, 5, rng=0, like=jnp.zeros((), jnp.float32), spread=0.4)
    grads = eqx.filter_grad(lambda layer: (layer(x) ** 3).sum())(layer)
    assert float(abs(grads.raw_curvature).min()) > 1e-8
