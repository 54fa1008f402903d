"""DomainGyroBN of Flax and Equinox: the numbers of torch's, and labels that are traced."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import gyrobn.equinox
import gyrobn.flax
import gyrobn.torch
from gyrobn import HPD, SPD, PoincareBall

BALL = PoincareBall(2)
LABELS = np.asarray([0, 2, 0, 2, 2, 0, 2, 2, 0, 2])  # four domains: 1 and 3 are not in the batch
STATE = "mean", "var", "training_mean", "training_var", "reference"
CASES = {
    "ball": (BALL, {}),
    "spd": (SPD(2), {}),
    "bias": (BALL, {"domain_bias": True}),
    "momentum": (BALL, {"train_momentum": 0.3}),
    "reference": (BALL, {"reference": "first_batch"}),
    "curvature": (BALL, {"learn_curvature": True}),
    "complex": (HPD(2), {}),
}
close = {"rtol": 1e-7, "atol": 1e-9}


def data(M):
    """Three batches of training and one of evaluation, about a point of their own."""
    x = M.random(4, 10, 3, rng=4, spread=0.4)
    w = np.random.default_rng(2).uniform(0.5, 1.5, (4, 10))
    return M.add(M.random(rng=9, spread=0.5), x), w


def learnt(M, options):
    rng = np.random.default_rng(5)
    own = {
        "bias": 0.3 * rng.standard_normal((*[4] * ("domain_bias" in options), 3, M.dim)),
        "scale": rng.uniform(0.3, 0.7, 3),
    }
    return own | ({"raw_curvature": np.asarray(0.2)} if "learn_curvature" in options else {})


def by_torch(M, options):
    """Outputs, gradients of the last batch of training, and the statistics."""
    layer = gyrobn.torch.DomainGyroBN(M, 4, 3, dtype=torch.float64, **options)
    with torch.no_grad():
        for name, value in learnt(M, options).items():
            getattr(layer, name).copy_(torch.asarray(value))
    x, w = map(torch.asarray, data(M))
    k, ys = torch.asarray(LABELS), []
    for i in range(3):
        layer.zero_grad()
        b = x[i].clone().requires_grad_(True)
        ys.append(layer(b, k, w[i]))
        (ys[-1].real * torch.cos(b.detach().real)).sum().backward()
    grads = {"x": b.grad} | {name: p.grad for name, p in layer.named_parameters()}
    ys.append(layer.eval()(x[3], k))
    own = (getattr(layer, f"running_{n}" if n in ("mean", "var") else n, None) for n in STATE)
    kept = {n: a.numpy() for n, a in zip(STATE, own, strict=True) if a is not None}
    kept["counts"] = layer.num_batches_tracked.numpy()
    return [y.detach().numpy() for y in ys], {n: g.numpy() for n, g in grads.items()}, kept


def build_flax(M, options):
    """A layer as pure functions of its parameters, its state, a batch and its labels."""
    layer = gyrobn.flax.DomainGyroBN(M, 4, 3, momentum=0.9, param_dtype=jnp.float64, **options)
    graph, own, state = nnx.split(layer, nnx.Param, nnx.BatchStat)

    def call(own, state, x, k, w, frozen):
        layer = nnx.merge(graph, own, state, copy=True)
        y = layer(x, k, use_running_average=frozen, weights=w)
        return y, nnx.state(layer, nnx.BatchStat)

    for name, value in learnt(M, options).items():
        own[name][...] = jnp.asarray(value)
    return call, own, state, lambda own: own, lambda state: {n: a[...] for n, a in state.items()}


def build_equinox(M, options):
    make = eqx.nn.make_with_state(gyrobn.equinox.DomainGyroBN)
    layer, state = make(M, 4, 3, momentum=0.9, dtype=jnp.float64, **options)
    values = learnt(M, options)
    where = lambda layer: [getattr(layer, name) for name in values]  # noqa: E731
    layer = eqx.tree_at(where, layer, [jnp.asarray(v) for v in values.values()])
    own, rest = eqx.partition(layer, eqx.is_inexact_array)

    def call(own, state, x, k, w, frozen):
        return eqx.combine(own, rest)(x, k, state, inference=frozen, weights=w)

    def shown(state):
        found = dict(zip(STATE, state.get(layer.stats), strict=False))
        if layer.more is not None:
            _, training, found["reference"] = state.get(layer.more)
            found |= zip(STATE[2:], training or (), strict=False)
        found = {n: a for n, a in found.items() if a is not None}
        return found | {"counts": state.get(layer.counts)}

    return call, own, state, lambda own: {n: getattr(own, n) for n in values}, shown


BUILD = {"flax": build_flax, "equinox": build_equinox}


@pytest.mark.parametrize("library", BUILD)
@pytest.mark.parametrize(
    ("case", "compiled"), [(case, True) for case in CASES] + [("ball", False), ("spd", False)]
)
def test_the_numbers_of_torch(library, case, compiled):
    M, options = CASES[case]
    ys, grads, kept = by_torch(M, options)
    call, own, state, named, shown = BUILD[library](M, options)
    x, w = data(M)
    k = jnp.asarray(LABELS)

    def loss(own, state, x, k, w):
        y, state = call(own, state, x, k, w, False)
        return (y.real * jnp.cos(jax.lax.stop_gradient(x).real)).sum(), (y, state)

    step = jax.value_and_grad(loss, (0, 2), has_aux=True)
    step = jax.jit(step) if compiled else step
    for i in range(3):
        (_, (y, state)), slopes = step(own, state, jnp.asarray(x[i]), k, jnp.asarray(w[i]))
        np.testing.assert_allclose(y, ys[i], **close)
    found = {"x": slopes[1].conj()} | {n: g[...] for n, g in named(slopes[0]).items()}
    assert {*found} == {*grads}
    for name, value in grads.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, **close)
    frozen = lambda *given: call(*given, None, True)  # noqa: E731
    frozen = jax.jit(frozen) if compiled else frozen
    y, after = frozen(own, state, jnp.asarray(x[3]), k)
    np.testing.assert_allclose(y, ys[3], **close)
    assert {*shown(after)} == {*kept}
    for name, value in kept.items():
        np.testing.assert_allclose(shown(after)[name], value, err_msg=name, **close)


# ---------------------------------------------------------------------- labels


def make_flax(M, domains, **options):
    """A layer with a state, as a function of the batch, its labels, the mode and weights."""
    layer = gyrobn.flax.DomainGyroBN(M, domains, param_dtype=jnp.float64, **options)
    call = lambda x, k, w=None, frozen=False: layer(x, k, frozen, weights=w)  # noqa: E731
    step = nnx.jit(lambda layer, x, k, w, frozen: layer(x, k, frozen, weights=w), static_argnums=4)
    compiled = lambda x, k, w=None, frozen=False: step(layer, x, k, w, frozen)  # noqa: E731
    kept = lambda: (layer.mean[...], layer.var[...], layer.counts[...])  # noqa: E731
    return call, compiled, kept


def make_equinox(M, domains, **options):
    make = eqx.nn.make_with_state(gyrobn.equinox.DomainGyroBN)
    layer, state = make(M, domains, dtype=jnp.float64, **options)

    def through(call):
        def step(x, k, w=None, frozen=False):
            nonlocal state
            y, state = call(x, k, state, inference=frozen, weights=w)
            return y

        return step

    kept = lambda: (*state.get(layer.stats), state.get(layer.counts))  # noqa: E731
    return through(layer), through(eqx.filter_jit(layer)), kept


MAKE = pytest.mark.parametrize("make", [make_flax, make_equinox], ids=["flax", "equinox"])


@MAKE
def test_wrong_labels(make):
    call, _, kept = make(BALL, 3, steps=1)
    x, before = jnp.asarray(BALL.random(4, rng=0)), kept()
    with pytest.raises(ValueError, match=r"shape of the batch, \(4,\), got \(3,\)"):
        call(x, jnp.asarray([0, 0, 1]))
    with pytest.raises(TypeError, match="integers from 0 to 2, got float64"):
        call(x, jnp.zeros(4))
    for wrong in ([0, 0, 3, 3], [0, 0, -1, -1]):
        with pytest.raises(ValueError, match="domains must be from 0 to 2, got"):
            call(x, jnp.asarray(wrong))
    with pytest.raises(ValueError, match="domain 1 has one sample in this batch"):
        call(x, jnp.asarray([0, 0, 1, 0]))
    call(x, jnp.asarray([0, 0, 2, 2]))
    with pytest.raises(ValueError, match=r"did not see domain 1 \(it saw 0, 2\)"):
        call(x, jnp.asarray([0, 0, 1, 0]), frozen=True)
    with pytest.raises(ValueError, match="weights"):
        call(x, jnp.asarray([0, 0, 2, 2]), jnp.asarray([0.0, 0.0, 1.0, 1.0]))
    assert kept()[2].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(kept()[0][1], before[0][1])


@MAKE
def test_traced_labels_that_are_wrong_give_nan(make):
    _, call, kept = make(BALL, 3, steps=1)
    x = jnp.asarray(BALL.random(8, rng=0))
    k = jnp.asarray([0, 0, 3, 1, 0, -1, 0, 3])  # 3 and -1 are out of range, and 1 is alone
    before = kept()
    y = call(x, k)
    np.testing.assert_array_equal(np.isnan(y).any(axis=1), k != 0)
    alone = make(BALL, 3, steps=1)
    good = np.flatnonzero(k == 0)
    np.testing.assert_allclose(y[good], alone[0](x[good], k[good]), **close)
    for found, expected, first in zip(kept(), alone[2](), before, strict=True):
        np.testing.assert_allclose(found, expected, **close)
        np.testing.assert_array_equal(found[1:], first[1:])
    y = call(x, k.astype(jnp.int8), frozen=True)
    np.testing.assert_array_equal(np.isnan(y).any(axis=1), k != 0)
    np.testing.assert_allclose(y[good], alone[0](x[good], k[good], frozen=True), **close)


@MAKE
def test_traced_weights_of_zero(make):
    """A domain without weight keeps its statistics, and padding is not NaN."""
    _, call, kept = make(BALL, 2, steps=1)
    x, k = jnp.asarray(BALL.random(6, rng=0)), jnp.asarray([0, 0, 0, 1, 1, 1])
    before = kept()
    y = call(x, k, jnp.asarray([1.0, 1.0, 2.0, 0.0, 0.0, 0.0]))
    assert np.isfinite(y).all()
    mean, var, counts = kept()
    assert counts.tolist() == [1, 0]
    np.testing.assert_array_equal(mean[1], before[0][1])
    assert var[1] == before[1][1]
    assert var[0] != before[1][0]


@MAKE
def test_arguments(make):
    with pytest.raises(ValueError, match="domain_bias needs a bias"):
        make(BALL, 2, domain_bias=True, use_bias=False)
    with pytest.raises(ValueError, match="domains"):
        make(BALL, 0)
    call, _, _ = make(BALL, 2, train_momentum=lambda n: 1 / (n + 1))
    with pytest.raises(TypeError, match="train_momentum is a number"):
        call(jnp.asarray(BALL.random(4, rng=0)), jnp.asarray([0, 0, 1, 1]))


def test_a_state_is_saved_and_loaded():
    options = {"domain_bias": True, "train_momentum": 0.3, "reference": "first_batch", "steps": 1}
    x, k = jnp.asarray(BALL.random(10, rng=0)), jnp.asarray(LABELS)
    one, other = (
        gyrobn.flax.DomainGyroBN(BALL, 4, param_dtype=jnp.float64, **options) for _ in range(2)
    )
    one(x, k)
    assert np.isfinite(one.reference[...]).all()
    nnx.update(other, jax.tree.map(jnp.array, nnx.state(one)))
    np.testing.assert_array_equal(other(x, k, True), one(x, k, True))

    make = eqx.nn.make_with_state(gyrobn.equinox.DomainGyroBN)
    layer, state = make(BALL, 4, dtype=jnp.float64, **options)
    _, after = layer(x, k, state)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, (layer, after))
    file.seek(0)
    fresh = make(BALL, 4, dtype=jnp.float64, **options)
    loaded, kept = eqx.tree_deserialise_leaves(file, fresh)
    np.testing.assert_array_equal(
        loaded(x, k, kept, inference=True)[0], layer(x, k, after, inference=True)[0]
    )
