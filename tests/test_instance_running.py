"""Instance normalization with running statistics: those of the average set of each channel."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES
from layer_cases import CHEAP, batches

import gyrobn.equinox
import gyrobn.flax
from gyrobn import SPD, Euclidean, PoincareBall, Stats, frechet, normalize
from gyrobn.torch import GyroGroupNorm, GyroInstanceNorm

RATE = 0.3
SHAPE = (3, 2, 4)
"""Samples, channels, positions."""


def layer_on(M, **options):
    options = {"momentum": RATE, "track_running_stats": True, "dtype": torch.float64} | options
    return GyroInstanceNorm(M, 2, **options)


def points_of(M, k=0):
    """Batch number k; each has its own centre."""
    x = M.add(M.random(rng=30 + k, spread=0.3), batches(M, *SHAPE, spread=0.3))
    return torch.as_tensor(x)


def average_set(M, x):
    """The mean of the means of the sets of one channel, and the mean of their variances."""
    found = [frechet(M, own) for own in x]
    mean = frechet(M, torch.stack([f.mean for f in found])).mean
    return mean, torch.stack([f.variance for f in found]).mean(0)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_running_statistics(M):
    """Set after set and batch after batch, by the definition; then evaluation, and a new layer."""
    layer, plain = layer_on(M), layer_on(M, track_running_stats=False)
    e, one = M.origin(points_of(M)), torch.ones(M.block_shape, dtype=torch.float64)
    expected = [(e, one)] * SHAPE[1]
    for k in range(3):
        x = points_of(M, k)
        torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=0)  # as without: the theorem
        for c, (mean, var) in enumerate(expected):
            new, v = average_set(M, x[:, c])
            expected[c] = M.geodesic(mean, new, RATE), (1 - RATE) * var + RATE * v
    assert int(layer.num_batches_tracked) == 3
    for c, (mean, var) in enumerate(expected):
        assert float(M.dist(layer.running_mean[c], mean)) < 1e-12
        torch.testing.assert_close(layer.running_var[c], var, rtol=1e-12, atol=0)
    before = layer.running_mean.clone()
    with torch.no_grad():
        y = layer.eval()(x)
        again = layer_on(M)
        again.load_state_dict(layer.state_dict())
        torch.testing.assert_close(again.eval()(x[:1, :, :1]), y[:1, :, :1], rtol=1e-11, atol=1e-11)
    assert bool((layer.running_mean == before).all())
    for c, stats in enumerate(expected):
        assert float(M.dist(y[:, c], normalize(M, x[:, c], Stats(*stats))).max()) < 1e-11


def test_as_in_torch():
    """On the line, but for torch's factor n/(n - 1) in the running variance."""
    x = torch.as_tensor(np.random.default_rng(0).normal(1.0, 2.0, (3, 2, 5)))
    own = layer_on(Euclidean(1), momentum=0.1)
    other = torch.nn.InstanceNorm1d(2, affine=True, track_running_stats=True, dtype=torch.float64)
    average = layer_on(Euclidean(1), momentum=None)
    each = (x, 3.0 * x + 1.0, x[:1])
    for batch in each:
        average(batch[..., None])
        y = other(batch)
        torch.testing.assert_close(own(batch[..., None])[..., 0], y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own.running_mean[:, 0], other.running_mean)
    start = 0.9**3  # what is left of the one at the beginning
    torch.testing.assert_close((own.running_var - start) * 1.25, other.running_var - start)
    other.running_var.copy_(own.running_var)
    y, wanted = own.eval()(x[..., None])[..., 0], other.eval()(x)
    torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-12)
    # all batches count the same (torch's own layer then keeps the zeros of the beginning)
    mean = sum(batch.mean((0, 2)) for batch in each) / 3
    torch.testing.assert_close(average.running_mean[:, 0], mean)


@pytest.mark.parametrize("M", [PoincareBall(2), SPD(2)], ids=repr)
def test_masks(M):
    """Empty sets do not count, and a channel of nothing else keeps its statistics."""
    x, mask = points_of(M), torch.ones(SHAPE, dtype=torch.bool)
    mask[1, 0] = mask[:, 1] = mask[0, 0, 1] = False
    x[1, 0] = x[0, 0, 1] = x[:, 1] = torch.nan
    layer = layer_on(M, check_input=True)
    y = layer(x, mask)
    assert bool(y[1, 0].isnan().all())
    sets = x[0, 0, [0, 2, 3]], x[2, 0]
    means, variances = zip(*(average_set(M, own[None]) for own in sets), strict=True)
    mean = M.geodesic(M.origin(x), M.geodesic(*means, 0.5), RATE)
    assert float(M.dist(layer.running_mean[0], mean)) < 1e-12
    torch.testing.assert_close(layer.running_var[0], 1 - RATE + RATE * sum(variances) / 2)
    assert float(M.norm(layer.running_mean[1])) == 0.0
    assert float(layer.running_var[1]) == 1.0
    y = layer.eval()(x, mask)
    assert bool(y[~mask].isnan().all())
    assert bool(M.contains(y[mask]).all())


def test_the_same_in_every_library():
    """Flax and Equinox, under jit: training, running statistics and evaluation of torch."""
    M, steps = CHEAP["manifold"], CHEAP["steps"]
    first, second = points_of(M, 0), points_of(M, 1)
    mask = torch.ones(SHAPE, dtype=torch.bool)
    mask[0, :, 3] = False
    own = layer_on(M, steps=steps)
    expected = [own(first, mask), own(second, mask), own.running_mean, own.running_var]
    expected.append(own.eval()(first, mask))

    options = {"track_running_stats": True, "momentum": 1 - RATE, "steps": steps}

    def by_flax(first, second, mask):
        kind = gyrobn.flax.GyroInstanceNorm
        layer = kind(M, 2, param_dtype=jnp.float64, **options)
        out = [layer(first, weights=mask), layer(second, weights=mask)]
        out += [layer.mean[...], layer.var[...], layer(first, True, weights=mask)]
        layer.eval()
        assert layer.use_running_average
        return out

    def by_equinox(first, second, mask):
        make = eqx.nn.make_with_state(gyrobn.equinox.GyroInstanceNorm)
        layer, state = make(M, 2, **options)
        one, state = layer(first, state, weights=mask)
        two, state = layer(second, state, weights=mask)
        done, same = eqx.nn.inference_mode(layer)(first, state, weights=mask)
        assert same is state
        return [one, two, *state.get(layer.stats), done]

    given = [jnp.asarray(a.numpy()) for a in (first, second, mask)]
    for function in (by_flax, by_equinox):
        for found, wanted in zip(jax.jit(function)(*given), expected, strict=True):
            np.testing.assert_allclose(found, wanted.detach(), rtol=0, atol=1e-12)


def test_compiled():
    """One graph: output, gradient and running statistics of the layer itself."""
    torch._dynamo.reset()
    M = CHEAP["manifold"]
    x, both = points_of(M), []
    for compiled in (False, True):
        layer = layer_on(M, steps=CHEAP["steps"])
        call = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
        a = x.clone().requires_grad_()
        y = call(a)
        (slope,) = torch.autograd.grad(y.square().sum(), a)
        both.append((y, slope, layer.running_mean, layer.running_var))
    for found, expected in zip(*both, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch._dynamo.reset()


def test_habits_and_errors():
    M = PoincareBall(2)
    layer = GyroInstanceNorm(M, 2, track_running_stats=True, momentum=None)
    assert "momentum=None, track_running_stats=True" in repr(layer)
    assert layer.half().running_var.dtype == torch.float32
    assert layer(points_of(M).half()).dtype == torch.float16
    assert float(M.norm(layer.running_mean).min()) > 0.1
    layer.reset_parameters()
    assert float(M.norm(layer.running_mean).max()) == int(layer.num_batches_tracked) == 0
    assert not list(GyroInstanceNorm(M, 2).buffers())
    with pytest.raises(ValueError, match="more than one point per set"):
        layer.float()(points_of(M)[:, :, :1].float())
    assert layer.eval()(points_of(M)[:1, :, :1].float()).shape == (1, 2, 1, 2)
    with pytest.raises(TypeError, match="no option 'track_running_stats'"):
        GyroGroupNorm(M, 1, 2, track_running_stats=True)
    with pytest.raises(ValueError, match="momentum"):
        GyroInstanceNorm(M, 2, momentum=2.0)
    state = layer.state_dict()
    with pytest.raises(RuntimeError, match="running_mean"):
        GyroInstanceNorm(M, 2).load_state_dict(state)
    x = jnp.asarray(points_of(M).numpy())
    alone = gyrobn.equinox.GyroInstanceNorm(M, 2)
    assert eqx.nn.Sequential([alone])(x).shape == x.shape
    tracked, held = eqx.nn.make_with_state(gyrobn.equinox.GyroInstanceNorm)(
        M, 2, track_running_stats=True
    )
    with pytest.raises(TypeError, match="statistics in a state"):
        tracked(x)
    y, after = eqx.nn.Sequential([tracked])(x, held)
    np.testing.assert_allclose(y, alone(x), rtol=0, atol=1e-14)
    assert not np.allclose(after.get(tracked.stats).mean, 0.0)
