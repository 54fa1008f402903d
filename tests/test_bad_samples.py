"""A sample that is not on the manifold: what every layer of every framework does with it.

Where values can be seen, it is an error that names the sample. Where they cannot (``jit``,
``vmap``, ``torch.compile``), the sample's output is NaN, and outputs, gradients and statistics of
the others are those of a batch without it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import FIRST
from flax import nnx

import gyrobn.equinox
import gyrobn.flax
import gyrobn.torch
from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    ProjectedHypersphere,
    ProperVelocity,
    Sphere,
    Stereographic,
)

BAD = 6


def not_a_point(M, x):
    """An array near a point that is finite, if there is one, and not a point."""
    if isinstance(M, Product):
        parts = zip(M.factors, M.split(x), strict=True)
        return M.join(*(not_a_point(factor, part) for factor, part in parts))
    if isinstance(M, SPD):
        return x + 0.1 * np.triu(np.ones_like(x), 1)
    if isinstance(M, Correlation):  # of no positive definite matrix: torch would raise
        return x + 3.0 - 3.0 * np.eye(M.n)
    if isinstance(M, (Euclidean, ProjectedHypersphere)):
        return np.full_like(x, np.nan)
    if isinstance(M, ProperVelocity):
        return np.full_like(x, np.inf)
    if isinstance(M, (Stereographic, PoincareBall, Klein)):
        return 2.5 * x / np.linalg.norm(x)
    return 1.3 * x


def batch(M, *shape):
    """Ten samples with a bad one, and the nine others."""
    x = M.random(10, *shape, rng=0, spread=0.3)
    x[BAD] = [not_a_point(M, p) for p in x[BAD]] if shape else not_a_point(M, x[BAD])
    return x, np.delete(x, BAD, axis=0)


def compiled(layer):
    torch._dynamo.reset()
    return torch.compile(layer, backend="aot_eager", fullgraph=True)


@nnx.jit
def jitted(layer, x):
    return layer(x)


def assert_only_bad_is_nan(y, wanted, tolerance=1e-12):
    y = np.asarray(y)
    assert np.isnan(y[BAD]).all()
    np.testing.assert_allclose(np.delete(y, BAD, axis=0), wanted, rtol=0, atol=tolerance)


# ---------------------------------------------------------------------- every geometry


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_where_values_can_be_seen_it_is_an_error_in_every_batch(M):
    layer = gyrobn.torch.GyroBN(M, dtype=torch.float64)
    x, rest = (torch.as_tensor(a) for a in batch(M))
    layer(rest)
    before = [b.clone() for b in layer.buffers()]
    for training in (True, False):
        with pytest.raises(ValueError, match=f"1 of 10 samples, the first at index {BAD}"):
            layer.train(training)(x)
    assert all(torch.equal(a, b) for a, b in zip(before, layer.buffers(), strict=True))


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_under_jit_its_output_is_nan_and_the_others_are_right(M):
    x, rest = batch(M)
    options = {"param_dtype": jnp.float64, "steps": 1}
    layer, twin = (gyrobn.flax.GyroBN(M, **options) for _ in range(2))
    assert_only_bad_is_nan(jitted(layer, jnp.asarray(x)), jitted(twin, jnp.asarray(rest)))
    np.testing.assert_allclose(layer.mean[...], twin.mean[...], rtol=0, atol=1e-14)
    np.testing.assert_allclose(layer.var[...], twin.var[...], rtol=1e-13)


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_under_vmap_its_output_is_nan_and_the_others_are_right(M):
    x, rest = (torch.as_tensor(a) for a in batch(M))
    layer = gyrobn.torch.GyroBN(M, track_running_stats=False, steps=1, dtype=torch.float64)
    y = torch.vmap(layer)(torch.stack([x, x])).detach()
    wanted = layer(rest).detach()
    assert_only_bad_is_nan(y[0], wanted)
    assert_only_bad_is_nan(y[1], wanted)


@pytest.mark.parametrize("M", [PoincareBall(2), SPD(2), Correlation(2)], ids=repr)
def test_compiled_training_and_evaluation(M):
    x, rest = (torch.as_tensor(a) for a in batch(M))
    layer, twin = (gyrobn.torch.GyroBN(M, steps=1, dtype=torch.float64) for _ in range(2))
    run = compiled(layer)
    assert_only_bad_is_nan(run(x).detach(), twin(rest).detach())
    torch.testing.assert_close(layer.running_mean, twin.running_mean, rtol=0, atol=1e-14)
    torch.testing.assert_close(layer.running_var, twin.running_var, rtol=1e-13, atol=0)
    layer.eval()
    assert_only_bad_is_nan(run(x).detach(), twin.eval()(rest).detach())
    flax = gyrobn.flax.GyroBN(M, use_running_average=True, param_dtype=jnp.float64)
    wanted = flax(jnp.asarray(rest.numpy()))
    assert_only_bad_is_nan(jitted(flax, jnp.asarray(x.numpy())), wanted)


DEFINITE = [M for M in FIRST if isinstance(M, (SPD, Correlation))]


@pytest.mark.parametrize("M", DEFINITE, ids=repr)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_matrices_are_judged_alike_with_and_without_jit(M, dtype):
    """Good ones, ill-conditioned ones that count as good, indefinite, singular and asymmetric.

    The last has a Cholesky factor to within rounding errors only: its eigenvalues decide.
    """
    n, eps = M.n, float(np.finfo(dtype).eps)
    x = M.random(8, rng=0, spread=0.3)
    vector = np.ones((n, 1)) / n**0.5

    def with_lowest(value):
        A = np.eye(n) - (1.0 - value) * vector @ vector.T
        return A / A[0, 0] if isinstance(M, Correlation) else A

    x[1], x[2], x[3] = (with_lowest(v) for v in (20.0 * n * eps, -0.01, 0.0))
    x[4, 0, 1] += 0.1
    x[5, 0, 1] = np.nan
    x[6] = 0.0
    x[7] = with_lowest(2.0 * n * eps)
    x = jnp.asarray(x, dtype)
    expected = [True, True, False, False, False, False, False, True]
    assert np.asarray(M.contains(x)).tolist() == expected
    assert np.asarray(jax.jit(M.contains)(x)).tolist() == expected
    seen = torch.vmap(M.contains)(torch.tensor(np.asarray(x)))
    assert seen.tolist() == expected


# ---------------------------------------------------------------------- every kind of layer


def layers_of(kind, M):
    """The layer of each framework, on points (10, 4, 5): a batch, channels, positions."""
    sizes = {"GyroInstanceNorm": (4,), "GyroGroupNorm": (2, 4)}.get(kind, ())
    options = {} if kind == "GyroRMSNorm" else {"steps": 1}
    found = {
        "torch": getattr(gyrobn.torch, kind)(M, *sizes, dtype=torch.float64, **options),
        "flax": getattr(gyrobn.flax, kind)(M, *sizes, param_dtype=jnp.float64, **options),
        "equinox": getattr(gyrobn.equinox, kind)(M, *sizes, **options),
    }
    return found.values()


@pytest.mark.parametrize(
    "kind", ["GyroLayerNorm", "GyroInstanceNorm", "GyroGroupNorm", "GyroRMSNorm"]
)
def test_layers_of_sets(kind):
    M = PoincareBall(2)
    good = M.random(10, 4, 5, rng=0, spread=0.3)
    x, weights = good.copy(), np.ones((10, 4, 5))
    x[BAD, 1, 2] = [2.0, 0.0]
    weights[BAD, 1, 2] = 0.0
    for layer, asarray in zip(
        layers_of(kind, M), (torch.as_tensor, *2 * [jnp.asarray]), strict=True
    ):
        layer(asarray(good))
        with pytest.raises(
            ValueError, match=rf"1 of 200 samples, the first at index \({BAD}, 1, 2\)"
        ):
            layer(asarray(x))
        wanted = np.array(layer(asarray(good), weights=asarray(weights)).tolist())
        wanted[BAD, 1, 2] = np.nan
        run = compiled(layer) if asarray is torch.as_tensor else eqx.filter_jit(layer)
        if isinstance(layer, nnx.Module):
            run = lambda x, layer=layer: jitted(layer, x)  # noqa: E731
        y = np.array(run(asarray(x)).tolist())
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12)


def test_running_statistics_of_instances():
    M = PoincareBall(2)
    good = M.random(10, 3, 5, rng=0, spread=0.3)
    x, weights = good.copy(), np.ones((10, 3, 5))
    x[BAD, 1] = 2.0  # a whole set, and a channel
    x[:, 2] = 2.0
    weights[BAD, 1] = 0.0
    options = {"track_running_stats": True, "param_dtype": jnp.float64, "steps": 1}
    layer, twin = (gyrobn.flax.GyroInstanceNorm(M, 3, **options) for _ in range(2))
    y = np.asarray(jitted(layer, jnp.asarray(x)))
    wanted = np.array(twin(jnp.asarray(good), weights=jnp.asarray(weights)))
    wanted[BAD, 1] = wanted[:, 2] = np.nan
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(layer.mean[:2], twin.mean[:2], rtol=0, atol=1e-14)
    np.testing.assert_array_equal(layer.mean[2], [0.0, 0.0])
    assert float(layer.var[2]) == 1.0


def test_domains():
    M = PoincareBall(2)
    x, rest = (torch.as_tensor(a) for a in batch(M))
    layer = gyrobn.torch.DomainGyroBN(M, 2, dtype=torch.float64)
    who = torch.arange(10) % 2
    layer(rest, who[:9])
    before = [b.clone() for b in layer.buffers()]
    for run in (layer, torch.compile(layer, backend="eager")):
        for training in (True, False):
            layer.train(training)
            with pytest.raises(ValueError, match=f"1 of 10 samples, the first at index {BAD}"):
                run(x, who)
    assert all(torch.equal(a, b) for a, b in zip(before, layer.buffers(), strict=True))


# ---------------------------------------------------------------------- where values are hidden


def test_gradients_of_the_others_are_right():
    M = SPD(2)
    x, rest = batch(M)
    slopes = np.random.default_rng(1).normal(size=rest.shape)
    masked = np.insert(slopes, BAD, 0.0, axis=0)

    def loss(layer, x, slopes):
        y = layer(x)
        return jnp.sum(jnp.where(slopes == 0, 0.0, y * slopes))

    found, wanted = (
        nnx.jit(nnx.grad(loss, argnums=(0, 1)))(
            gyrobn.flax.GyroBN(M, param_dtype=jnp.float64, steps=1), jnp.asarray(x), jnp.asarray(s)
        )
        for x, s in ((x, masked), (rest, slopes))
    )
    np.testing.assert_array_equal(found[1][BAD], 0.0)
    np.testing.assert_allclose(np.delete(found[1], BAD, axis=0), wanted[1], rtol=0, atol=1e-11)
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(wanted[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11)

    grads = []
    for given, s in ((x, masked), (rest, slopes)):
        layer, given = gyrobn.torch.GyroBN(M, dtype=torch.float64, steps=1), torch.tensor(given)
        y = compiled(layer)(given.requires_grad_())
        torch.where(torch.tensor(s) == 0, 0.0, y * torch.tensor(s)).sum().backward()
        grads.append((given.grad.numpy(), layer.bias.grad, layer.scale.grad))
    found, wanted = grads
    np.testing.assert_array_equal(found[0][BAD], 0.0)
    for a, b in zip((np.delete(found[0], BAD, axis=0), *found[1:]), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11)


def test_a_channel_without_a_good_sample_keeps_its_statistics():
    """In the mean of no samples, one NaN would stay for ever."""
    M = PoincareBall(2)
    x = M.random(10, 2, rng=0, spread=0.3)
    x[:, 1] = 2.0
    layer = gyrobn.flax.GyroBN(M, 2, param_dtype=jnp.float64, steps=1)
    y = jitted(layer, jnp.asarray(x))
    assert not np.isnan(y[:, 0]).any()
    assert np.isnan(y[:, 1]).all()
    assert not np.array_equal(layer.mean[0], [0.0, 0.0])
    np.testing.assert_array_equal(layer.mean[1], [0.0, 0.0])
    assert float(layer.var[1]) == 1.0

    module, state = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(M, 2, axis_name="batch", steps=1)
    run = jax.vmap(module, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    y, state = eqx.filter_jit(lambda x, state: run(x, state))(jnp.asarray(x), state)
    assert np.isnan(y[:, 1]).all()
    np.testing.assert_allclose(state.get(module.stats).mean, layer.mean[...], rtol=0, atol=1e-14)
    np.testing.assert_allclose(state.get(module.stats).var, layer.var[...], rtol=0, atol=1e-14)

    layer = gyrobn.torch.GyroBN(M, 2, dtype=torch.float64, steps=1)
    y = compiled(layer)(torch.as_tensor(x))
    assert y[:, 1].isnan().all()
    assert layer.running_mean[1].tolist() == [0.0, 0.0]
    assert layer.running_var[1] == 1.0
    y[:, 0].square().sum().backward()
    assert layer.bias.grad.isfinite().all()
    assert layer.scale.grad.isfinite().all()


def test_weights_and_padding():
    M = Sphere(2)
    x, w = M.random(10, 3, rng=0, spread=0.3), np.ones(10)
    x[BAD, 1] *= 1.3
    x[2], w[2] = np.nan, 0.0  # padding: returned as it came
    w, zeros, x = jnp.asarray(w), np.ones((10, 3)), jnp.asarray(x)
    zeros[2] = zeros[BAD, 1] = 0.0
    all_traced, weights_traced, alone = (
        gyrobn.flax.GyroBN(M, 3, param_dtype=jnp.float64, steps=1) for _ in range(3)
    )
    wanted = alone(x, weights=jnp.asarray(zeros)).at[BAD, 1].set(jnp.nan)
    for layer, y in (
        (all_traced, nnx.jit(lambda layer, x, w: layer(x, weights=w))(all_traced, x, w)),
        (weights_traced, nnx.jit(lambda layer, w: layer(x, weights=w))(weights_traced, w)),
    ):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12)
        np.testing.assert_allclose(layer.mean[...], alone.mean[...], rtol=0, atol=1e-14)


def test_a_batch_that_is_a_constant_of_a_compiled_function():
    M = PoincareBall(2)
    x, rest = batch(M)
    layer, twin = (gyrobn.flax.GyroBN(M, param_dtype=jnp.float64, steps=1) for _ in range(2))
    constant = jnp.asarray(x)
    assert_only_bad_is_nan(nnx.jit(lambda layer: layer(constant))(layer), twin(jnp.asarray(rest)))


def test_grad_of_jax_does_not_hide_values():
    x, _ = batch(PoincareBall(2))
    layer = gyrobn.flax.GyroBN(PoincareBall(2), param_dtype=jnp.float64, steps=1)
    with pytest.raises(ValueError, match=f"1 of 10 samples, the first at index {BAD}"):
        jax.grad(lambda x: jnp.sum(layer(x)))(jnp.asarray(x))


def test_half_precision():
    M = Sphere(2)
    x = jnp.asarray(M.random(10, rng=0, spread=0.3), jnp.bfloat16)
    bad = x.at[BAD].multiply(1.5)
    layer = gyrobn.flax.GyroBN(M)
    assert not jnp.isnan(jitted(layer, x)).any()
    y = jitted(layer, bad)
    assert jnp.isnan(y[BAD]).all()
    assert not jnp.isnan(jnp.delete(y, BAD, axis=0)).any()
    with pytest.raises(ValueError, match=f"1 of 10 samples, the first at index {BAD}"):
        layer(bad)


# ---------------------------------------------------------------------- a curvature that moves


def test_a_curvature_that_the_network_changes_is_not_silent():
    """The layer keeps the curvature it was built with, and the network's moves from 1 to 1.5."""
    M = Hyperboloid(3)
    x, moved = (a.random(10, rng=0, spread=0.3) for a in (M, Hyperboloid(3, curvature=-1.5)))
    own = gyrobn.torch.GyroBN(M, dtype=torch.float64)
    flax = gyrobn.flax.GyroBN(M, param_dtype=jnp.float64)
    module, state = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(M)
    own(torch.as_tensor(x))
    flax(jnp.asarray(x))
    _, state = module(jnp.asarray(x), state)
    for training in (True, False):
        calls = (
            lambda t=training: own.train(t)(torch.as_tensor(moved)),
            lambda t=training: flax(jnp.asarray(moved), use_running_average=not t),
            lambda t=training: module(jnp.asarray(moved), state, inference=not t),
        )
        for call in calls:
            with pytest.raises(
                ValueError, match=r"off Hyperboloid\(n=3, curvature=-1.0\) by .* 10 of 10"
            ):
                call()
    before = np.asarray(flax.mean[...])
    flax.train()
    assert np.isnan(jitted(flax, jnp.asarray(moved))).all()
    np.testing.assert_array_equal(flax.mean[...], before)
    before = own.running_mean.clone()
    assert compiled(own.train())(torch.as_tensor(moved)).isnan().all()
    assert torch.equal(own.running_mean, before)
