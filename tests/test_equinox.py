"""The layer for Equinox: the habits of Equinox. Values and gradients are in test_layers.py."""

import io
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_cases import CHEAP, batches

from gyrobn import Euclidean, PoincareBall
from gyrobn.equinox import GyroBN


def build(*args, **options):
    return eqx.nn.make_with_state(GyroBN)(*args, **options)


# ---------------------------------------------------------------------- Equinox


@cache
def cheap():
    """A layer, three batches, and what it does with them one after the other."""
    x = jnp.asarray(batches(CHEAP["manifold"], 3, 4, 2))
    layer, state = fresh()
    call, ys = eqx.filter_jit(layer), []
    for b in x:
        y, state = call(b, state)
        ys.append(y)
    return x, jnp.stack(ys), state.get(layer.stats)


def fresh(**options):
    return build(channels=2, momentum=0.9, **CHEAP, **options)


def same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected)


def test_scan_over_batches():
    x, ys, stats = cheap()
    layer, state = fresh()

    @eqx.filter_jit
    def run(layer, state, x):
        def step(state, b):
            y, state = layer(b, state)
            return state, y

        return jax.lax.scan(step, state, x)

    state, y = run(layer, state, x)
    same((y, state.get(layer.stats)), (ys, stats))


def test_one_example_at_a_time():
    """As equinox.nn.BatchNorm is called: under vmap, the state is that of the whole batch."""
    x, ys, stats = cheap()
    layer, state = fresh(axis_name="batch")
    axes = {"axis_name": "batch", "in_axes": (0, None), "out_axes": (0, None)}
    call = eqx.filter_jit(lambda b, state: jax.vmap(layer, **axes)(b, state))
    for b, expected in zip(x, ys, strict=True):
        y, state = call(b, state)
        same(y, expected)
    same(state.get(layer.stats), stats)
    y, _ = eqx.filter_jit(eqx.nn.inference_mode(layer))(x[0, 0], state)
    whole, _ = eqx.filter_jit(fresh()[0])(x[0], state, inference=True)
    same(y, whole[0])


def test_ensemble():
    x, ys, _ = cheap()
    layers, states = eqx.filter_vmap(fresh, axis_size=3)()
    y, states = eqx.filter_jit(eqx.filter_vmap(lambda m, x, s: m(x, s)))(layers, x, states)
    same(y, ys)  # in training the output does not depend on the running statistics
    assert states.get(layers.stats).mean.shape == (3, 2, 2)


def test_serialisation():
    _, _, stats = cheap()
    layer, state = fresh()
    layer = eqx.tree_at(lambda m: m.scale, layer, jnp.asarray([0.5, 2.0]))
    state = state.set(layer.stats, stats)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, (layer, state))
    file.seek(0)
    read, kept = eqx.tree_deserialise_leaves(file, fresh())
    same(kept.get(read.stats), stats)
    same((read.bias, read.scale), (layer.bias, layer.scale))
    assert read.settings == layer.settings


def test_training_and_inference():
    x, _, _ = cheap()
    layer, state = fresh()
    frozen = eqx.nn.inference_mode(layer)
    assert (layer.inference, frozen.inference) == (False, True)
    _, after = eqx.filter_jit(frozen)(x[0], state)
    assert (after.get(layer.stats).var == 1.0).all()  # inference does not touch them
    assert eqx.nn.inference_mode(frozen, value=False).inference is False


def test_sequential():
    model, state = eqx.nn.make_with_state(
        lambda: eqx.nn.Sequential([GyroBN(Euclidean(2)), eqx.nn.Lambda(jnp.tanh)])
    )()
    y, state = eqx.filter_jit(model)(jnp.asarray(batches(Euclidean(2), 4)), state)
    assert y.shape == (4, 2)


# ---------------------------------------------------------------------- errors


def test_errors():
    layer, state = build(PoincareBall(4), 3)
    with pytest.raises(ValueError, match=r"expects input of shape \(batch, 3, 4\), got \(5, 2, 4"):
        layer(jnp.zeros((5, 2, 4)), state)
    with pytest.raises(ValueError, match=r"\(batch, 3, 4\), got \(3, 4\)"):
        layer(jnp.zeros((3, 4)), state)
    with pytest.raises(ValueError, match=r"more than one sample .* inference=True"):
        layer(jnp.zeros((1, 3, 4)), state)
    named, state = build(PoincareBall(4), 3, axis_name="b")
    with pytest.raises(ValueError, match=r"or one example \(3, 4\) under the axis 'b', got \(4,\)"):
        named(jnp.zeros(4), state)
    with pytest.raises(ValueError, match="more than one sample"):
        jax.vmap(named, axis_name="b", in_axes=(0, None))(jnp.zeros((1, 3, 4)), state)


def test_dtype():
    assert build(Euclidean(2))[0].bias.dtype == jnp.float64  # JAX's default, with x64
    assert build(Euclidean(2), dtype=jnp.float32)[0].bias.dtype == jnp.float32
    bare, _ = build(Euclidean(2), use_bias=False, use_scale=False)
    assert bare.bias is None
    assert bare.scale is None
