"""The layer for Flax NNX: the habits of nnx. Values and gradients are in test_layers.py."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import CHEAP, batches

from gyrobn import Euclidean, PoincareBall, Product, Stereographic
from gyrobn.flax import GyroBN

# ---------------------------------------------------------------------- nnx


@cache
def cheap():
    """A layer, three batches, and what it does with them one after the other."""
    x = jnp.asarray(batches(CHEAP["manifold"], 3, 4, 2))
    layer = fresh()
    step = nnx.jit(lambda layer, x: layer(x))
    ys = jnp.stack([step(layer, b) for b in x])
    return x, ys, nnx.state(layer, nnx.BatchStat)


def fresh(**options):
    return GyroBN(channels=2, momentum=0.9, param_dtype=jnp.float64, **CHEAP, **options)


def same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected)


def test_scan_over_batches():
    x, ys, stats = cheap()
    graph, learnt, running = nnx.split(fresh(), nnx.Param, nnx.BatchStat)

    @jax.jit
    def run(running, x):
        def step(running, b):
            layer = nnx.merge(graph, learnt, running)
            y = layer(b)
            return nnx.state(layer, nnx.BatchStat), y

        return jax.lax.scan(step, running, x)

    found, y = run(running, x)
    same((y, found), (ys, stats))


def test_split_and_merge():
    x, _, stats = cheap()
    layer = fresh()
    nnx.update(layer, stats)
    graph, state = nnx.split(layer)
    copy = nnx.merge(graph, jax.tree.map(jnp.array, state))
    call = nnx.jit(lambda layer, x: layer(x, use_running_average=True))
    same(call(copy, x[0]), call(layer, x[0]))
    same(nnx.state(copy), nnx.state(layer))
    assert {*nnx.state(layer)} == {"bias", "scale", "mean", "var"}


def test_ensemble():
    x, ys, _ = cheap()
    make = nnx.vmap(lambda key: fresh(), in_axes=0)
    layers = make(jnp.arange(3))
    y = nnx.jit(nnx.vmap(lambda layer, x: layer(x)))(layers, x)
    same(y, ys)  # in training the output does not depend on the running statistics
    assert layers.mean.shape == (3, 2, 2)


def test_a_distributed_batch():
    """Values, running statistics and gradients are those of the whole batch."""
    x, ys, _ = cheap()
    weight = jnp.cos(jnp.arange(x[0].size).reshape(x[0].shape))
    graph, state = nnx.split(fresh())

    def loss(state, x, weight, axis_name=None):
        layer = nnx.merge(graph, state, copy=True)
        y = GyroBN.__call__(layer if axis_name is None else named(layer), x)
        return (y * weight).sum(), (y, layer.mean[...], layer.var[...])

    def named(layer):
        parted = fresh(axis_name="parts")
        nnx.update(parted, nnx.state(layer))
        layer.mean, layer.var = parted.mean, parted.var
        return parted

    @jax.jit
    def whole(x):
        return jax.grad(loss, argnums=(0, 1), has_aux=True)(state, x, weight)

    @jax.jit
    def parts(x):
        def part(x, weight):
            (by_state, by_x), aux = jax.grad(loss, argnums=(0, 1), has_aux=True)(
                state, x, weight, "parts"
            )
            return (jax.lax.psum(by_state, "parts"), by_x), aux

        halves = x.reshape(2, 2, *x.shape[1:]), weight.reshape(2, 2, *x.shape[1:])
        return jax.vmap(part, axis_name="parts")(*halves)

    (by_state, by_x), (y, mean, var) = whole(x[0])
    (by_state_2, by_x_2), (y_2, mean_2, var_2) = parts(x[0])
    same(y, ys[0])
    same((by_x_2.reshape(x[0].shape), y_2.reshape(x[0].shape)), (by_x, y))
    for i in (0, 1):
        same((mean_2[i], var_2[i]), (mean, var))
        for name in ("bias", "scale"):
            same(by_state_2[name][...][i], by_state[name][...])


def test_training_and_evaluation():
    x, _, _ = cheap()
    layer = fresh()
    assert layer.use_running_average is False
    layer.eval()
    assert layer.use_running_average is True
    call = nnx.jit(lambda layer, x: layer(x))
    call(layer, x[0])
    assert (layer.var[...] == 1.0).all()  # evaluation does not touch them
    layer.train()
    assert layer.use_running_average is False
    if hasattr(nnx, "view"):
        assert nnx.view(layer, use_running_average=True).use_running_average is True
        assert layer.use_running_average is False


# ---------------------------------------------------------------------- shapes, dtypes, errors


def test_parameters():
    M = Product(PoincareBall(2), Euclidean(3))
    layer = GyroBN(M, (2, 3))
    assert layer.bias.shape == (2, 3, 5)
    assert layer.scale.shape == layer.var.shape == (2, 3, 2)
    assert layer.mean.shape == (2, 3, 5)
    bare = GyroBN(M, use_bias=False, use_scale=False)
    assert bare.bias is None
    assert bare.scale is None
    assert nnx.state(bare, nnx.Param) == {}


@pytest.mark.parametrize(
    ("given", "held", "found"),
    [
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "bfloat16", "float16"),
        ("float32", "bfloat16", "float32"),
        ("float64", "float32", "float64"),
    ],
)
def test_dtypes(given, held, found):
    layer = GyroBN(Euclidean(2), param_dtype=held)
    assert layer(jnp.asarray(batches(Euclidean(2), 4), given)).dtype == found
    assert layer.bias.dtype == held
    assert layer.mean.dtype == layer.var.dtype == "float32"


def test_errors():
    M = PoincareBall(4)
    layer = GyroBN(M, 3)
    with pytest.raises(ValueError, match=r"expects input of shape \(batch, 3, 4\), got \(5, 2, 4"):
        layer(jnp.zeros((5, 2, 4)))
    for shape in ((), (4,), (3, 4), (5, 3, 5), (2, 5, 3, 4)):
        with pytest.raises(ValueError, match=r"\(batch, 3, 4\), got"):
            layer(jnp.zeros(shape))
    with pytest.raises(ValueError, match=r"\(3, batch, 4\), got"):
        GyroBN(M, 3, axis=1)(jnp.zeros((5, 3, 4)))
    with pytest.raises(ValueError, match=r"more than one sample .* layer.eval\(\)"):
        layer(jnp.zeros((1, 3, 4)))
    with pytest.raises(TypeError, match="floating"):
        layer(jnp.zeros((5, 3, 4), int))
    bad = jnp.zeros((5, 2)).at[3, 1].set(jnp.nan)
    with pytest.raises(ValueError, match="has NaN in 1 of 5 samples, the first at index 3"):
        GyroBN(Euclidean(2), steps=1)(bad)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mean_gradient": "exact"}, "implicit"),
        ({"momentum": 1.5}, "fraction of the running statistics to keep"),
        ({"learn_curvature": True}, "no curvature"),
        ({"axis": 1}, "axis must name"),
        ({"axis": (0, 0)}, "twice"),
    ],
)
def test_errors_in_building(options, match):
    with pytest.raises(ValueError, match=match):
        GyroBN(Euclidean(2), **options)


def test_a_curvature_must_be_a_number():
    with pytest.raises(ValueError, match="learn_curvature=True"):
        GyroBN(Stereographic(2, jnp.asarray(0.5)))
    layer = GyroBN(Stereographic(2, 0.5), learn_curvature=True)
    assert float(layer.manifold.curvature) == 0.5
