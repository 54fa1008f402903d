"""The layer for Equinox: the values of NumPy, the gradients of torch, and the habits of Equinox."""

import io
import re
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_flax
from conftest import FIRST
from flax import nnx
from layer_cases import CHEAP, HALVES, QUICK, Case, batches, check

from gyrobn import SPD, Euclidean, PoincareBall, Stats, Stereographic, batch_stats
from gyrobn.equinox import GyroBN


def build(*args, **options):
    return eqx.nn.make_with_state(GyroBN)(*args, **options)


def layer_for(case, **options):
    layer, state = build(case.M, 2, momentum=case.momentum, **options)
    values = jnp.asarray(case.bias), jnp.asarray(case.scale)
    return eqx.tree_at(lambda m: (m.bias, m.scale), layer, values), state


def program_of(case, **options):
    """The compiled layer with its gradients; it keeps the state."""
    layer, state = layer_for(case, **options)
    learnt, rest = eqx.partition(layer, eqx.is_inexact_array)

    def loss(learnt, x, state, training):
        y, state = eqx.combine(learnt, rest)(x, state, inference=not training)
        return (y * case.weight).sum(), (y, state)

    slopes = jax.grad(loss, argnums=(0, 1), has_aux=True)
    compiled = jax.jit(slopes, static_argnums=3, compiler_options=QUICK)

    def program(x, training):
        nonlocal state
        (by_learnt, by_x), (y, state) = compiled(learnt, x, state, training)
        names = "bias", "scale", "raw_curvature"
        found = {name: getattr(by_learnt, name) for name in names}
        stats = state.get(layer.stats)
        found |= {"y": y, "x": by_x, "mean": stats.mean, "var": stats.var}
        return {name: value for name, value in found.items() if value is not None}

    return program


@pytest.mark.parametrize("M", HALVES[1], ids=repr)
def test_numpy_and_torch(M):
    case = Case(M)
    check(case, program_of(case))


def test_learnt_curvature_that_is_free():
    case = Case(Stereographic(2, 0.2))
    options = {"learn_curvature": True, "steps": 1}
    check(case, program_of(case, **options), **options)


@pytest.mark.parametrize("M", FIRST, ids=repr)
@pytest.mark.parametrize("training", [True, False])
def test_the_same_program_as_flax(M, training):
    """So what test_flax.py finds on its half of the geometries holds here, and the reverse."""
    case = Case(M)
    layer, state = layer_for(case)
    graph, learnt, kept = nnx.split(test_flax.layer_for(case), nnx.Param, nnx.BatchStat)

    def by_equinox(bias, scale, stats, x):
        changed = eqx.tree_at(lambda m: (m.bias, m.scale), layer, (bias, scale))
        y, new = changed(x, state.set(layer.stats, stats), inference=not training)
        return y, new.get(layer.stats)

    def by_flax(bias, scale, stats, x):
        other = nnx.merge(graph, learnt, kept, copy=True)
        other.bias, other.scale = nnx.Param(bias), nnx.Param(scale)
        other.mean, other.var = map(nnx.BatchStat, stats)
        y = other(x, use_running_average=not training)
        return y, Stats(other.mean[...], other.var[...])

    arguments = layer.bias, layer.scale, state.get(layer.stats), jnp.asarray(case.x[0])
    texts = [
        re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(f)(*arguments)))
        for f in (by_equinox, by_flax)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 100


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
    call = eqx.filter_jit(jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None)))
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
    assert states.get(layers.stats).mean.shape == (3, 2, 3)


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


def test_training_run():
    """Bias and scale move for 20 steps; inference then normalizes the data."""
    M = SPD(2, "log_euclidean")
    layer, state = build(M, momentum=0.7, dtype=jnp.float32)
    x = jnp.asarray(batches(M, 30), jnp.float32)
    target = M.random(rng=8, like=x, spread=0.5)

    @eqx.filter_jit
    def step(layer, state, x):
        def loss(layer):
            y, new = layer(x, state)
            return jnp.mean(M.dist(target, y) ** 2), new

        (value, new), slope = eqx.filter_value_and_grad(loss, has_aux=True)(layer)
        return value, eqx.apply_updates(layer, jax.tree.map(lambda g: -0.1 * g, slope)), new

    losses = []
    for _ in range(20):
        value, layer, state = step(layer, state, x)
        losses.append(float(value))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    y, _ = eqx.filter_jit(eqx.nn.inference_mode(layer))(x, state)
    mean, var = batch_stats(M, np.asarray(y, np.float64))
    assert float(M.dist(mean, M.from_normal(np.asarray(layer.bias, np.float64)))) < 1e-2
    assert abs(float(var) - float(layer.scale) ** 2) < 1e-2
    assert state.get(layer.stats).mean.dtype == jnp.float32


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
