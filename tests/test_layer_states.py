"""What layers of all frameworks take in and load: off the manifold, in half precision, of another
geometry."""

import copy
import io
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import FIRST
from flax import nnx
from torch import nn

import gyrobn.equinox
import gyrobn.flax
from gyrobn import (
    SPD,
    Euclidean,
    GyroBN,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    Sphere,
    Stereographic,
)
from gyrobn.torch import DomainGyroBN
from gyrobn.torch import GyroBN as TorchGyroBN

# ---------------------------------------------------------------------- the three frameworks


def by_torch(M, **options):
    layer = TorchGyroBN(M, dtype=torch.float64, **options)
    return lambda x, training=True: layer.train(training)(torch.as_tensor(x)).detach()


def by_domains(M, **options):
    layer = DomainGyroBN(M, 1, unseen="refit", dtype=torch.float64, **options)
    none = torch.zeros(10, dtype=torch.int64)
    return lambda x, training=True: layer.train(training)(torch.as_tensor(x), none).detach()


def by_flax(M, **options):
    layer = gyrobn.flax.GyroBN(M, param_dtype=jnp.float64, **options)
    return lambda x, training=True: layer(jnp.asarray(x), use_running_average=not training)


def by_equinox(M, **options):
    layer, state = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(M, **options)

    def call(x, training=True):
        nonlocal state
        y, state = layer(jnp.asarray(x), state, inference=not training)
        return y

    return call


FRAMEWORKS = pytest.mark.parametrize("make", [by_torch, by_domains, by_flax, by_equinox])


def bad_ones(M):
    x = M.random(10, rng=0, spread=0.3)
    return {
        "off": np.concatenate([x[:3], x[3:5] * 40.0, x[5:]]),
        "nan": x + np.where(x == x[4], np.nan, 0),
    }


# ---------------------------------------------------------------------- input off the manifold


TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


@FRAMEWORKS
@TRAINING
def test_every_batch_is_checked(make, training):
    M = Sphere(2)
    x, bad = M.random(10, rng=0, spread=0.3), bad_ones(M)
    layer = make(M, steps=1)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"off Sphere.* by 39 in 2 of 10 .* at index 3: give"):
            layer(bad["off"], training)
        with pytest.raises(ValueError, match="has NaN in 1 of 10 samples, the first at index 4"):
            layer(bad["nan"], training)
        layer(x, training)
    first = make(M, steps=1, check_input="first")
    for _ in range(2):  # what was refused does not count
        with pytest.raises(ValueError, match="off Sphere"):
            first(bad["off"], training)
    first(x, training)
    first(bad["off"], training)
    make(M, steps=1, check_input=False)(bad["off"], training)
    with pytest.raises(ValueError, match="check_input must be 'first', True or False, got 'last'"):
        make(M, check_input="last")


@dataclass(frozen=True)
class Counting(Euclidean):
    """It counts how often it is asked whether something is a point."""

    asked: ClassVar[list[int]] = []

    def violation(self, x):
        self.asked.append(1)
        return super().violation(x)


@FRAMEWORKS
def test_unchecked_batches_are_not_looked_at(make):
    M = Counting(2)
    counts = []
    for check in ("first", True, False):
        layer, x = make(M, check_input=check), M.random(10, rng=0)
        for _ in range(3):
            M.asked.clear()
            layer(x)
            counts.append(len(M.asked))
    assert counts == [1, 0, 0, 1, 1, 1, 0, 0, 0]


def test_the_same_words_as_the_estimator():
    x = PoincareBall(2).random(5, rng=0, spread=0.3)
    x[2] *= 50.0
    said = []
    for call in (GyroBN(PoincareBall(2)).fit, by_torch(PoincareBall(2)), by_flax(PoincareBall(2))):
        with pytest.raises(ValueError, match="off PoincareBall") as error:
            call(x)
        said.append(str(error.value).split(":")[0].split(" is off ")[1])
    assert said[0] == said[1] == said[2]


def test_the_check_is_no_state():
    """State, pytree, settings and graph are the same before the first batch and after."""
    layer, x = TorchGyroBN(Euclidean(2)), torch.randn(4, 2)
    twin, keys = copy.deepcopy(layer), list(layer.state_dict())
    layer(x)
    assert list(layer.state_dict()) == keys
    assert layer.settings == twin.settings
    assert hash(layer.settings) == hash(twin.settings)
    with pytest.raises(ValueError, match="inf"):
        twin(x / 0.0)  # its own first batch
    layer.check_input = True
    with pytest.raises(ValueError, match="inf"):
        layer.eval()(x / 0.0)
    flax = gyrobn.flax.GyroBN(Euclidean(2))
    before = nnx.split(flax)
    flax(jnp.asarray(x))
    after = nnx.split(flax)
    assert before[0] == after[0]
    assert jax.tree.structure(before[1]) == jax.tree.structure(after[1])
    flax.check_input = True
    flax.eval()
    with pytest.raises(ValueError, match="inf"):
        flax(jnp.asarray(x) / 0.0)
    module, state = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(Euclidean(2))
    shape = jax.tree.structure(module)
    _, state = module(jnp.asarray(x), state)
    assert jax.tree.structure(module) == shape
    with pytest.raises(ValueError, match="inf"):
        module(jnp.asarray(x) / 0.0, state, inference=True, check_input=True)


def test_unchecked_programs_have_no_check():
    M, x = PoincareBall(2), np.full((4, 2), 0.3)
    programs = []
    for check in ("first", False, True):
        flax = gyrobn.flax.GyroBN(M, check_input=check)
        graph, state = nnx.split(flax)
        programs.append(str(jax.make_jaxpr(lambda s, x: nnx.merge(graph, s)(x))(state, x)))  # noqa: B023
    assert programs[0] == programs[1] != programs[2]


def test_the_sample_is_named_by_its_place_in_the_input():
    M = PoincareBall(2)
    x = torch.as_tensor(M.random(3, 5, rng=0, spread=0.3))
    x[2, 4] = 7.0
    with pytest.raises(ValueError, match=r"in 1 of 15 samples, the first at index \(2, 4\)"):
        TorchGyroBN(M, 3, axis=1, dtype=torch.float64)(x)
    layer = DomainGyroBN(M, 2, dtype=torch.float64, check_input=False)
    y = x[0].clone()
    y[3] = float("nan")
    with (
        pytest.warns(gyrobn.FrechetWarning),
        pytest.raises(ValueError, match="first at index 3"),
    ):
        layer(y, torch.tensor([0, 0, 0, 1, 1]))


def test_a_learnt_curvature_decides():
    M = PoincareBall(2)
    layer = TorchGyroBN(M, learn_curvature=True, dtype=torch.float64)
    nn.init.constant_(layer.raw_curvature, np.log(4.0))  # a ball of radius 1/2
    x = torch.as_tensor(M.random(6, rng=0, spread=0.3))
    x[1] = torch.tensor([0.6, 0.0])
    with pytest.raises(ValueError, match=r"curvature=-4.0\) by 0.2 in 1 of 6 .* index 1"):
        layer(x)


# ---------------------------------------------------------------------- half precision

HALF = {"float16": 2e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_half_precision_in_and_out(M, name):
    """As in float32, to the digits of the dtype; points that rounding moved off are taken."""
    half = getattr(torch, name)
    x = M.random(12, rng=0, like=torch.zeros(()), spread=0.3)
    expected = TorchGyroBN(M)
    y = expected(x)
    for layer in (TorchGyroBN(M).to(half), TorchGyroBN(M), TorchGyroBN(M, dtype=half)):
        found = layer(x.to(half))
        assert found.dtype == half
        assert layer.running_mean.dtype == layer.running_var.dtype == torch.float32
        assert float(M.dist(M.project(found.float()), y).detach().max()) < 10 * HALF[name]
        assert float(M.dist(layer.running_mean, expected.running_mean).max()) < HALF[name]
        found.float().square().sum().backward()
        assert layer.bias.grad.dtype == layer.bias.dtype
        assert bool(torch.isfinite(layer.bias.grad).all())
        assert layer.eval()(x.to(half)).dtype == half


def test_a_network_in_half_precision():
    net = nn.Sequential(nn.Linear(3, 4), TorchGyroBN(Euclidean(4)), nn.Linear(4, 2))
    batch = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    net(x)
    kept = net[1].running_mean.clone()
    for model in (net, batch):
        assert model.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    assert not torch.equal(net[1].running_mean, kept)
    assert [p.dtype for p in net[1].parameters()] == [torch.bfloat16] * 2
    domains = DomainGyroBN(Euclidean(3), 2).half()
    y = domains(x.half(), torch.arange(16) % 2)
    assert (y.dtype, domains.running_var.dtype) == (torch.float16, torch.float32)
    assert domains.eval()(x.half(), torch.arange(16) % 2).dtype == torch.float16
    with pytest.raises(TypeError, match=r"holds torch.float64, got input of torch.bfloat16"):
        TorchGyroBN(Euclidean(3)).double()(x.bfloat16())


def test_statistics_do_not_pass_through_half_precision():
    layer = TorchGyroBN(Euclidean(2))
    layer.running_mean.copy_(torch.tensor([1.0001, 2.0003]))
    kept = layer.running_mean.clone()
    assert torch.equal(layer.bfloat16().float().running_mean, kept)
    assert torch.equal(layer.to(torch.float16).running_mean, kept)
    assert layer.double().running_mean.dtype == torch.float64
    assert layer.half().running_mean.dtype == torch.float32


@pytest.mark.parametrize("name", HALF)
def test_half_precision_in_jax(name):
    M = Sphere(2)
    x = jnp.asarray(M.random(8, rng=0, spread=0.3), jnp.float32)
    expected = gyrobn.flax.GyroBN(M, steps=1)(x)
    layer = gyrobn.flax.GyroBN(M, steps=1, param_dtype=name)
    module, state = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(M, steps=1, dtype=name)
    y = layer(x.astype(name))
    z, state = module(x.astype(name), state)
    for found, stats in ((y, (layer.mean, layer.var)), (z, state.get(module.stats))):
        assert found.dtype == name
        assert [a.dtype for a in stats] == [jnp.float32] * 2
        assert float(M.dist(M.project(found.astype(jnp.float32)), expected).max()) < 4 * HALF[name]
    all_half = jax.tree.map(lambda a: a.astype(name), nnx.state(layer))
    nnx.update(layer, all_half)
    assert layer(x.astype(name)).dtype == name


def test_rounding_to_the_boundary_of_the_ball():
    """A point that half precision puts on the boundary is one far out, and the layer takes it."""
    M = PoincareBall(2)
    x = torch.tensor([[0.7719, 0.6349], [0.1, 0.0], [-0.2, 0.1]])
    assert bool(M.contains(x).all())
    x = x.bfloat16()
    assert float(x[0].float().norm()) > 1.0
    y = TorchGyroBN(M).bfloat16()(x).detach()
    assert bool(M.contains(y.float() * 0.99).all())
    direction = y[0].float() / y[0].float().norm()
    assert float(direction @ torch.tensor([0.7719, 0.6349])) > 0.9
    with pytest.raises(ValueError, match=r"off PoincareBall.* by 1 in 1 of 3"):
        TorchGyroBN(M).bfloat16()(2 * x)


# ---------------------------------------------------------------------- the geometry of a state

OTHERS = [
    (PoincareBall(8), Euclidean(8)),
    (PoincareBall(8), Klein(8)),
    (PoincareBall(8), PoincareBall(8, -0.5)),
    (Stereographic(3, -1.0), PoincareBall(3)),
    (SPD(3), SPD(3, "log_euclidean")),
    (SPD(3, theta=0.5), SPD(3)),
    (Product(Euclidean(2), PoincareBall(2)), Product(PoincareBall(2), Euclidean(2))),
    (Counting(2), Euclidean(2)),
]
PAIRS = pytest.mark.parametrize(("M", "other"), OTHERS, ids=repr)


def kept(module):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@PAIRS
def test_torch_refuses_the_state_of_another_geometry(M, other):
    state = kept(nn.Sequential(TorchGyroBN(M)))
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    nn.Sequential(TorchGyroBN(M)).load_state_dict(state)
    net = nn.Sequential(TorchGyroBN(other))
    nn.init.constant_(net[0].bias, 0.5)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"0: the state is of a layer on .* this one is on"):
            net.load_state_dict(state, strict=strict)
    assert bool((net[0].bias == 0.5).all())  # nothing was loaded
    with pytest.raises(RuntimeError, match="the state is of a layer on"):
        DomainGyroBN(other, 2).load_state_dict(DomainGyroBN(M, 2).state_dict())
    older = {key: value for key, value in state.items() if "extra" not in key}
    assert not any(nn.Sequential(TorchGyroBN(M)).load_state_dict(older))


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of torch.compile itself
def test_the_geometry_follows_a_module_everywhere():
    layer = TorchGyroBN(PoincareBall(2))
    for state in (
        kept(copy.deepcopy(layer)),
        {k.removeprefix("_orig_mod."): v for k, v in torch.compile(layer).state_dict().items()},
        {k: v.to(torch.float64) for k, v in layer.state_dict().items()},
        copy.deepcopy(layer).half().state_dict(),
    ):
        assert str(TorchGyroBN(PoincareBall(2)).load_state_dict(state)).startswith("<All keys")
        with pytest.raises(RuntimeError, match="the state is of"):
            TorchGyroBN(Euclidean(2)).load_state_dict(state)
    with torch.device("meta"):
        empty = TorchGyroBN(PoincareBall(2))
    empty.load_state_dict(layer.state_dict(), assign=True)
    assert empty.running_mean.device.type == "cpu"
    torch.func.functional_call(layer, layer.state_dict(), torch.zeros(3, 2))


@pytest.mark.parametrize("M", [Hyperboloid(2, -2.0), Stereographic(2, 0.3)], ids=repr)
def test_a_learnt_curvature_is_loaded(M):
    """Wherever both began; what else makes the geometry must agree."""
    layer, other = (TorchGyroBN(N, learn_curvature=True) for N in (M, replace(M, curvature=-0.7)))
    nn.init.constant_(layer.raw_curvature, 0.4)
    other.load_state_dict(kept(layer))
    K = float(layer.manifold.curvature.detach())
    assert float(other.manifold.curvature.detach()) == pytest.approx(K, rel=1e-6)
    exact = TorchGyroBN(M, learn_curvature=True)
    exact.load_state_dict(kept(layer))
    assert torch.equal(exact.raw_curvature, layer.raw_curvature)
    fixed = TorchGyroBN(replace(M, curvature=K))
    assert fixed.load_state_dict(kept(layer), strict=False).unexpected_keys == ["raw_curvature"]
    with pytest.raises(RuntimeError, match="the state is of a layer on"):
        TorchGyroBN(M).load_state_dict(kept(layer), strict=False)
    with pytest.raises(RuntimeError, match="the state is of a layer on"):
        TorchGyroBN(PoincareBall(3), learn_curvature=True).load_state_dict(kept(layer))


@PAIRS
def test_flax_refuses_the_state_of_another_geometry(M, other):
    own, layer = gyrobn.flax.GyroBN(M), gyrobn.flax.GyroBN(other)
    x = jnp.asarray(other.random(4, rng=0, spread=0.3), jnp.float32)
    for kind in (nnx.Param, nnx.BatchStat):
        nnx.update(layer, nnx.state(own, kind))
        for call in (lambda: layer(x), lambda: layer.manifold):
            with pytest.raises(ValueError, match="the state is of a layer on"):
                call()
        nnx.update(layer, nnx.state(gyrobn.flax.GyroBN(other)))
        assert layer.manifold == other
    nnx.replace_by_pure_dict(state := nnx.state(layer), nnx.to_pure_dict(nnx.state(layer)))
    nnx.update(layer, state)  # numbers alone, as in older files
    assert layer.manifold == other


def test_a_learnt_curvature_is_loaded_in_flax():
    layer, other = (
        gyrobn.flax.GyroBN(PoincareBall(2, K), learn_curvature=True) for K in (-1.0, -3.0)
    )
    layer.raw_curvature[...] = jnp.asarray(0.4, jnp.float32)
    nnx.update(other, nnx.state(layer))
    assert float(other.manifold.curvature) == pytest.approx(float(layer.manifold.curvature))


@PAIRS
def test_equinox_keeps_geometries_apart(M, other):
    """The geometry is in the structure of the pytree: two of them do not mix."""
    make = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)
    (one, _), (two, _) = make(M), make(other)
    with pytest.raises(ValueError, match="Settings"):
        jax.tree.map(lambda a, b: b, two, one)


# ---------------------------------------------------------------------- several devices


def test_shard_map_as_it_is():
    """With JAX's check of what varies: output, statistics and gradients of the whole batch."""
    code = """
import os
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np, equinox as eqx
from jax.sharding import Mesh, PartitionSpec as P
from flax import nnx
import gyrobn, gyrobn.equinox, gyrobn.flax
jax.config.update("jax_enable_x64", True)
mesh = Mesh(np.array(jax.devices()), ("b",))
M = gyrobn.PoincareBall(2)
x = M.random(4, rng=0, like=jnp.zeros(()))
slope = jnp.cos(jnp.arange(8.0).reshape(4, 2))
make = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)

def loss(layer, state, x, slope):
    y, state = layer(x, state)
    return (y * slope).sum(), state.get(layer.stats)

def whole(x):
    layer, state = make(M, steps=1)
    return loss(layer, state, x, slope)

def parts(x):
    layer, state = make(M, steps=1, axis_name="b")
    def part(state, x, slope):
        value, stats = loss(layer, state, x, slope)
        return jax.lax.psum(value, "b"), stats
    specs = P(), P("b"), P("b")
    return jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=P())(state, x, slope)

expected, found = (jax.jit(jax.value_and_grad(f, has_aux=True))(x) for f in (whole, parts))
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected)

graph, state = nnx.split(gyrobn.flax.GyroBN(M, steps=1, axis_name="b", param_dtype=jnp.float64))
def part(state, x):
    layer = nnx.merge(graph, state)
    layer(x)
    return layer.mean[...]
mean = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=(P(), P("b")), out_specs=P()))(state, x)
np.testing.assert_allclose(mean, expected[0][1].mean, atol=1e-12)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("check", "times"), [("first", 1), (True, 1), (False, 0)])
def test_uniqueness_is_asked_of_the_first_batch(monkeypatch, check, times):
    """The search for a small ball around the samples is long: not at every batch in training."""
    calls, inner = [], gyrobn.statistics.uniqueness.enclosing_radius
    count = lambda *a: calls.append(a) or inner(*a)  # noqa: E731
    monkeypatch.setattr(gyrobn.statistics.uniqueness, "enclosing_radius", count)
    M = gyrobn.Sphere(2)
    x = M.random(20, rng=0, spread=1.2, like=torch.zeros(()))
    layer = gyrobn.torch.GyroBN(M, check_input=check)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gyrobn.FrechetWarning)
        layer.eval()(x)  # has no mean to ask of
        layer.train()
        for _ in range(4):
            layer(x)
    assert len(calls) == times
