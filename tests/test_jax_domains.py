"""DomainGyroBN of Flax and Equinox: the numbers of torch's, and labels that are traced."""

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
from gyrobn import SPD, PoincareBall

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
        (ys[-1] * torch.cos(b.detach())).sum().backward()
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
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_torch(library, compiled, case):
    if not compiled and case not in ("ball", "spd", "bias"):
        pytest.skip("compiled only")
    M, options = CASES[case]
    ys, grads, kept = by_torch(M, options)
    call, own, state, named, shown = BUILD[library](M, options)
    x, w = data(M)
    k = jnp.asarray(LABELS)

    def loss(own, state, x, k, w):
        y, state = call(own, state, x, k, w, False)
        return (y * jnp.cos(jax.lax.stop_gradient(x))).sum(), (y, state)

    step = jax.value_and_grad(loss, (0, 2), has_aux=True)
    step = jax.jit(step) if compiled else step
    for i in range(3):
        (_, (y, state)), slopes = step(own, state, jnp.asarray(x[i]), k, jnp.asarray(w[i]))
        np.testing.assert_allclose(y, ys[i], **close)
    found = {"x": slopes[1]} | {n: g[...] for n, g in named(slopes[0]).items()}
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
