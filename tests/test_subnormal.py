"""No value depends on subnormal numbers: XLA flushes them to zero, and torch if it is asked to.

Where points coincide, quotients are limits, taken at next to nothing over next to nothing: that
must not be 0/0. ``torch.set_flush_denormal`` sets the mode of the processor for the thread, so
NumPy's arithmetic flushes as well.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES, host
from flax import nnx
from operations import call, operations, values

import gyrobn.flax
import gyrobn.torch
from gyrobn import (
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    ProperVelocity,
    Sphere,
    Stats,
    Stereographic,
    denormalize,
    merge_stats,
    normalize,
    normalize_batch,
    update_stats,
)

VECTORS = [
    PoincareBall(2),
    PoincareBall(3, -2.0),
    Stereographic(2, -0.3),
    Stereographic(2, 0.3),
    Hyperboloid(2),
    Klein(2),
    ProperVelocity(2),
    Sphere(2),
    Product(PoincareBall(2), Sphere(2)),
]


@pytest.fixture
def flush():
    """Return a function that turns flushing on and off; it is off after the test."""
    assert torch.set_flush_denormal(True), "this processor cannot flush subnormal numbers"
    yield torch.set_flush_denormal
    torch.set_flush_denormal(False)


def test_numpy_flushes_too(flush):
    least = np.asarray([np.finfo(np.float64).smallest_normal])
    assert (0.5 * least == 0.0).all()
    flush(False)
    assert (0.5 * least > 0.0).all()


def coinciding(M, like):
    """Yield values for every parameter of the operations, with points that are the same."""
    given = values(M, like)
    x = given["x"]
    e, one = M.origin(x) + 0.0 * x, x[:1, ...] + 0.0 * x
    for a, b, z in ((x, x, x), (e, e, e), (one, x, one)):
        u, v, c = M.log(a, z), M.log(a, b), M.to_normal(b)
        first, second = (Stats(p[0, ...], given[k].var) for p, k in ((a, "first"), (b, "second")))
        points = {"x": a, "y": b, "z": z, "points": (a, b), "bias": b[0, ...]}
        points |= dict.fromkeys(("mean", "init"), z[0, ...])
        points |= {"c": c, "u": u, "v": v, "tangents": (u, v)}
        points |= dict.fromkeys(("squares", "values"), c * c)
        points |= dict.fromkeys(("stats", "first", "running"), first)
        yield given | points | dict.fromkeys(("second", "batch"), second)


SEARCHES = {"frechet", "frechet_mean", "batch_stats", "normalize_batch", "start"}
"""These stop where rounding ends, which may be one step later: a test of its own holds them."""


@pytest.mark.parametrize(
    ("like", "eps"), [(np.zeros(()), 2e-16), (torch.zeros(()), 1e-7)], ids=["numpy", "torch"]
)
@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")  # a mean of opposite points
def test_operations(M, like, eps, flush):
    """Every operation, on points that coincide: the same result with flushing and without."""
    flush(False)
    for given in coinciding(M, like):
        for name, function in operations(M):
            found = []
            for on in (True, False) if name not in SEARCHES else ():
                flush(on)
                with np.errstate(all="ignore"):
                    found.append([host(a) for a in call(M, name, function, given)])
            for flushed, expected in zip(*found, strict=True):
                size = np.abs(np.where(np.isfinite(expected), expected, 0.0)).max(initial=1.0)
                np.testing.assert_allclose(
                    flushed, expected, rtol=0, atol=100 * eps * size, err_msg=name
                )


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_batches(M, flush):
    """Samples of which one is the mean, and samples that are all the same."""
    like = torch.zeros((), dtype=torch.float64)
    c = M.to_normal(M.random(3, rng=1, like=like, spread=0.3))
    around = M.from_normal(torch.cat([c, -c, 0.0 * c]))
    bias = M.random(rng=2, like=like, spread=0.3)
    for x in (around, M.add(bias, around), around[:1, ...].repeat(4, *(1,) * len(M.point_shape))):
        found = []
        for on in (False, True):
            flush(on)
            given = x.clone().requires_grad_()
            y, stats = normalize_batch(M, given, bias=bias, scale=0.5)
            (slope,) = torch.autograd.grad(M.to_normal(y)[..., 0].sum(), given)
            found.append((M.to_normal(y), stats.var, slope))
        for expected, flushed in zip(*found, strict=True):
            assert torch.isfinite(flushed).all()
            # a collapsed batch is scaled by 158, with its rounding
            torch.testing.assert_close(flushed, expected, rtol=0, atol=1e-10)


def at_the_mean(M, x, samples, ones):
    """Return results on a point that is the first of the samples, each with what it must be."""
    bias, stats = M.scale(0.5, x), Stats(x, ones)
    return [
        (M.geodesic(x, x, 0.5), x),
        (M.geodesic(x, x, 0.0 * x[0] + 0.5), x),
        (normalize(M, samples, stats, bias)[0, ...], bias),
        (normalize(M, samples, stats)[0, ...], M.origin(x)),
        (denormalize(M, samples, Stats(bias, ones), x)[0, ...], bias),
        (update_stats(M, stats, stats, 0.3).mean, x),
        (merge_stats(M, stats, stats, 0.3).mean, x),
    ]


def given_at(M, dtype):
    """Return a point, samples of which it is the first, and a variance of one."""
    samples = M.from_normal(np.linspace(0.3, 0.5, 2 * M.dim, dtype=dtype).reshape(2, M.dim))
    return samples[0], samples, np.ones(M.block_shape, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("M", VECTORS, ids=repr)
def test_a_sample_at_the_mean(M, dtype, flush):
    """In eager JAX, and in NumPy and torch with flushing on."""
    for array in (np.asarray, torch.tensor, jnp.asarray):
        for found, expected in at_the_mean(M, *map(array, given_at(M, dtype))):
            np.testing.assert_allclose(
                host(found), host(expected), rtol=0, atol=20 * np.finfo(dtype).eps
            )


@pytest.mark.parametrize("M", [PoincareBall(2), Klein(2), Hyperboloid(2)], ids=repr)
def test_in_jax(M):
    """Values, and the derivative of x ↦ β ⊕ (t ⊙ (⊖μ ⊕ x)) at x = μ, against a difference."""
    given = list(map(jnp.asarray, given_at(M, "float64")))
    run = jax.jit(lambda *given: [found for found, _ in at_the_mean(M, *given)])
    for found, (_, expected) in zip(run(*given), at_the_mean(M, *given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)

    mean, bias = (M.from_normal(np.asarray(c)) for c in ([0.3, 0.5], [-0.2, 0.4]))
    weights = jnp.asarray([0.3, -0.7])

    def loss(c, xp=jnp):
        x = M.exp(xp.asarray(mean), M.push(xp.asarray(mean), c))
        stats = Stats(xp.asarray(mean), xp.ones(()))
        y = normalize(M, x, stats, xp.asarray(bias), 0.7)
        return xp.sum(xp.asarray(weights) * M.relative_normal(xp.asarray(bias), y))

    slope = jax.grad(loss)(jnp.zeros(2))
    h = 1e-5
    steps = [(loss(d, np) - loss(-d, np)) / (2 * h) for d in h * np.eye(2)]
    np.testing.assert_allclose(slope, steps, rtol=0, atol=1e-8)


@pytest.mark.parametrize("M", [PoincareBall(2), Product(PoincareBall(2), Sphere(2))], ids=repr)
def test_the_same_batch_again(M, flush):
    """The running mean is then the mean of the batch, to the last digit or nearly so."""
    x = M.add(M.random(rng=1, spread=0.5), M.random(8, rng=0, spread=0.3))
    layers = [
        gyrobn.flax.GyroBN(M, momentum=0.0, rngs=nnx.Rngs(0), param_dtype=jnp.float64),
        gyrobn.torch.GyroBN(M, momentum=1.0, dtype=torch.float64),
    ]
    for layer, array in zip(layers, (jnp.asarray, torch.tensor), strict=True):
        for _ in range(4):
            layer(array(x))
        mean = layer.mean[...] if array is jnp.asarray else layer.running_mean
        expected = normalize_batch(M, x)[1].mean
        np.testing.assert_allclose(host(mean), expected, rtol=0, atol=1e-14)
        layer.eval()
        y = layer(array(np.stack([expected, x[0]])))
        y = y.detach() if isinstance(y, torch.Tensor) else y
        np.testing.assert_allclose(host(M.norm(y))[0], 0.0, atol=1e-12)
