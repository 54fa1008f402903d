"""Layer, instance, group and root mean square normalization: the theorem for every set."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import FIRST, GEOMETRIES
from layer_cases import CHEAP, batches

import gyrobn.equinox
import gyrobn.flax
import gyrobn.torch
from gyrobn import SPD, Euclidean, Grassmannian, Hyperboloid, PoincareBall, batch_stats
from gyrobn.torch import GyroBN, GyroGroupNorm, GyroInstanceNorm, GyroLayerNorm, GyroRMSNorm

EPS = 1e-2
"""Large enough to be seen in the variance."""
SHAPE = (2, 6, 2)
"""Samples, channels, positions."""
KINDS = {
    "GyroLayerNorm": ((), ()),
    "GyroInstanceNorm": ((6,), (6,)),
    "GyroGroupNorm": ((3, 6), (3,)),
    "GyroRMSNorm": ((), ()),
}
"""Arguments after the geometry, and the shape of bias and scale."""
SPLIT = {
    "GyroLayerNorm": ((2, 6, 2), (1, 2)),
    "GyroInstanceNorm": ((2, 6, 2), (2,)),
    "GyroGroupNorm": ((2, 3, 2, 2), (2, 3)),
}
"""The axes in front of a point, with the groups split, and those of a set."""


def parameters(M, kind):
    """Bias and scale that differ from one set to the next."""
    rng, shape = np.random.default_rng(3), KINDS[kind][1]
    bias = 0.2 * rng.standard_normal((*shape, M.dim))
    return bias, rng.uniform(0.2, 0.5, (*shape, *M.block_shape))


def layer_on(M, kind, **options):
    """A layer of torch in float64, with these parameters."""
    own = getattr(gyrobn.torch, kind)(M, *KINDS[kind][0], dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter, value in zip((own.bias, own.scale), parameters(M, kind), strict=True):
            parameter.copy_(torch.asarray(value))
    return own


def points_of(M, *shape):
    return torch.as_tensor(batches(M, *shape, spread=0.3))


def weights_of(*shape):
    return torch.as_tensor(np.random.default_rng(5).uniform(0.5, 1.5, shape))


# ---------------------------------------------------------------------- the theorem


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_theorem(M):
    """Every set has the bias as its mean, and s²v²/(v² + ε) as its variance."""
    x, w = points_of(M, *SHAPE), weights_of(*SHAPE)
    for kind, (split, axes) in SPLIT.items():
        y = layer_on(M, kind, eps=EPS)(x, w).detach()
        assert y.shape == x.shape
        bias, scale = (torch.asarray(a) for a in parameters(M, kind))
        before, after = (
            batch_stats(M, a.reshape(*split, *M.point_shape), w.reshape(split), axis=axes)
            for a in (x, y)
        )
        assert float(M.dist(after.mean, M.from_normal(bias)).max()) < 1e-12, kind
        expected = scale**2 * before.var / (before.var + EPS)
        torch.testing.assert_close(after.var, expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_root_mean_square(M):
    """The mean square of the distances from the bias, over a sample, a row or a single point."""
    x, w = points_of(M, *SHAPE), weights_of(*SHAPE)
    bias, scale = (torch.asarray(a) for a in parameters(M, "GyroRMSNorm"))

    def squares(a, centre):
        c = M.relative_normal(centre, a)
        return M.squeeze_blocks(M.by_block(c * c))

    for axis, axes in ((None, (1, 2)), (-1, (2,)), ((), ())):
        share = w / w.sum(axes, keepdim=True) if axes else torch.ones_like(w)
        share = share[(..., *(None,) * len(M.block_shape))]

        def total(a, centre, share=share, axes=axes):
            return (share * squares(a, centre)).sum(axes) if axes else squares(a, centre)

        y = layer_on(M, "GyroRMSNorm", axis=axis, eps=EPS)(x, w).detach()
        v = total(x, M.origin(x))
        expected = scale**2 * v / (v + EPS)
        torch.testing.assert_close(total(y, M.from_normal(bias)), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_every_set_by_itself(M):
    """The output is that of GyroBN, given one set after the other."""
    x, w = points_of(M, *SHAPE), weights_of(*SHAPE)
    for kind, (split, axes) in SPLIT.items():
        y = layer_on(M, kind, eps=EPS)(x, w).detach().reshape(*split, *M.point_shape)
        own, mass = x.reshape(y.shape), w.reshape(split)
        bias, scale = parameters(M, kind)
        one = GyroBN(M, eps=EPS, track_running_stats=False, dtype=torch.float64)
        for place in np.ndindex(*split[: axes[0]]):
            state = {"bias": bias[place[1:]], "scale": scale[place[1:]]}
            state = {name: torch.asarray(value) for name, value in state.items()}
            given = own[place].flatten(0, len(axes) - 1), mass[place].flatten()
            expected = torch.func.functional_call(one, state, given).detach()
            found = y[place].flatten(0, len(axes) - 1)
            assert float(M.dist(found, expected).max()) < 1e-12, (kind, place)


def test_the_layers_of_torch():
    """On the line, with one bias and scale, these are the layers of torch."""
    x = torch.as_tensor(np.random.default_rng(0).normal(1.0, 2.0, (3, 4, 5)))
    line, nn, double = Euclidean(1), torch.nn, {"dtype": torch.float64}
    pairs = [
        (GyroLayerNorm(line, **double), nn.LayerNorm((4, 5), **double)),
        (GyroLayerNorm(line, axis=-1, **double), nn.LayerNorm(5, **double)),
        (GyroInstanceNorm(line, 4, **double), nn.InstanceNorm1d(4, affine=True, **double)),
        (GyroGroupNorm(line, 2, 4, **double), nn.GroupNorm(2, 4, **double)),
        (GyroRMSNorm(line, **double), nn.RMSNorm((4, 5), eps=1e-5, **double)),
    ]
    for own, other in pairs:
        for training in (True, False):
            y = own.train(training)(x[..., None])[..., 0]
            torch.testing.assert_close(y, other.train(training)(x), rtol=1e-12, atol=1e-12)
    own, other = pairs[0]
    with torch.no_grad():
        for scale, bias in ((own.scale, own.bias), (other.weight, other.bias)):
            scale.fill_(3.0)
            bias.fill_(0.7)
    torch.testing.assert_close(own(x[..., None])[..., 0], other(x), rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------- masks and ragged sets


@pytest.mark.parametrize("M", FIRST, ids=repr)
@pytest.mark.parametrize("kind", ["GyroLayerNorm", "GyroRMSNorm"])
def test_padding(M, kind):
    """Padded sequences give what each gives by itself; padding, NaN too, comes back as it came."""
    lengths = (5, 3, 1, 0)
    x = points_of(M, 4, 5)
    mask = torch.arange(5) < torch.as_tensor(lengths)[:, None]
    for i, length in enumerate(lengths):
        x[i, length:] = (torch.nan, 0.0, torch.inf)[i % 3]
    layer = layer_on(M, kind, check_input=True)
    padded = x.clone().requires_grad_()
    y = layer(padded, mask)
    slope = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    (found,) = torch.autograd.grad((y * slope)[mask].sum(), padded)
    for i, length in enumerate(lengths):
        outside = y[i, length:].detach()
        if i == 1 and length and bool(M.contains(x[1, -1])):
            assert bool(M.contains(outside).all())  # a point is normalized, if without weight
        else:
            torch.testing.assert_close(outside, x[i, length:], rtol=0, atol=0, equal_nan=True)
        assert not found[i, length:].any()
        if length:
            alone = x[i : i + 1, :length].clone().requires_grad_()
            expected = layer(alone)
            assert float(M.dist(y[i, :length], expected[0]).detach().max()) < 1e-11
            (by_x,) = torch.autograd.grad((expected[0] * slope[i, :length]).sum(), alone)
            torch.testing.assert_close(found[i, :length], by_x[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["GyroInstanceNorm", "GyroGroupNorm"])
def test_one_mask_for_all_channels(kind):
    M = PoincareBall(2)
    x, mask = points_of(M, 2, 6, 3), torch.tensor([[[1, 1, 0]], [[1, 1, 1]]])
    x[0, :, 2] = torch.nan
    y = layer_on(M, kind)(x, mask)
    expected = layer_on(M, kind)(x[:1, :, :2])
    torch.testing.assert_close(y[:1, :, :2], expected, rtol=1e-12, atol=1e-12)
    assert bool(y[0, :, 2].isnan().all())


# ---------------------------------------------------------------------- derivatives, libraries


@pytest.mark.parametrize("M", [PoincareBall(2), SPD(2), Grassmannian(3, 1)], ids=repr)
@pytest.mark.parametrize("kind", ["GyroGroupNorm", "GyroRMSNorm"])
def test_derivatives(M, kind):
    """By central differences, along the coordinates of points, weights and parameters."""
    curved = isinstance(M, PoincareBall)
    layer = layer_on(M, kind, learn_curvature=curved, check_input=False)
    shape = (1, 6, 2)
    c, w = M.to_normal(points_of(M, *shape)), weights_of(*shape)
    names = [name for name, _ in layer.named_parameters()]

    def call(c, w, *values):
        own = dict(zip(names, values, strict=True))
        space = layer.settings.manifold(own.get("raw_curvature"))
        y = torch.func.functional_call(layer, own, (space.from_normal(c), w))
        return space.to_normal(y)

    given = [c, w, *(p.detach() for p in layer.parameters())]
    assert torch.autograd.gradcheck(
        call, [a.clone().requires_grad_() for a in given], fast_mode=True
    )


@pytest.mark.parametrize(
    ("kind", "M"),
    list(zip(KINDS, [SPD(2), Hyperboloid(2), Hyperboloid(2), Grassmannian(3, 1)], strict=True)),
    ids=KINDS,
)
def test_the_same_in_every_library(kind, M):
    """Flax and Equinox, under jit, give the numbers and gradients of torch.

    Both trace to the same program, so the second finds it in the cache.
    """
    x, w = points_of(M, *SHAPE), weights_of(*SHAPE)
    own = layer_on(M, kind)
    a = x.clone().requires_grad_()
    y = own(a, w)
    slope = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    (y * slope).sum().backward()
    expected = [t.detach().numpy() for t in (y, a.grad, own.bias.grad, own.scale.grad)]

    def by_flax(x, bias, scale, w):
        layer = getattr(gyrobn.flax, kind)(M, *KINDS[kind][0], param_dtype=jnp.float64)
        layer.bias[...], layer.scale[...] = bias, scale
        return layer(x, weights=w)

    def by_equinox(x, bias, scale, w):
        layer = getattr(gyrobn.equinox, kind)(M, *KINDS[kind][0])
        layer = eqx.tree_at(lambda m: (m.bias, m.scale), layer, (bias, scale))
        return layer(x, weights=w)

    given = [jnp.asarray(v) for v in (x.numpy(), *parameters(M, kind), w.numpy(), slope.numpy())]
    for function in (by_flax, by_equinox):

        def loss(x, bias, scale, w, slope, function=function):
            y = function(x, bias, scale, w)
            return (y * slope).sum(), y

        slopes, value = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*given)
        for found, wanted in zip((value, *slopes), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * (1 + abs(wanted).max()))


def test_compiled():
    """One graph, with a mask: the numbers and gradients of the layer itself."""
    torch._dynamo.reset()
    M = CHEAP["manifold"]
    x, w = points_of(M, *SHAPE), weights_of(*SHAPE)
    w[0, :2, 1] = 0.0
    layer = layer_on(M, "GyroGroupNorm", steps=CHEAP["steps"])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    both = []
    for call in (layer, compiled):
        a = x.clone().requires_grad_()
        y = call(a, w)
        both.append((y, *torch.autograd.grad(y.square().sum(), (a, *layer.parameters()))))
    for found, expected in zip(*both, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch._dynamo.reset()


# ---------------------------------------------------------------------- habits and errors


def test_habits():
    M = PoincareBall(2)
    layer = GyroGroupNorm(M, 2, 4, steps=1)
    assert layer.bias.shape == (2, 2)
    assert layer.scale.shape == (2,)
    assert "channels=4, steps=1, groups=2" in repr(layer)
    assert "axis=(1,)" in repr(GyroRMSNorm(M, 1))
    assert "channels=(4,)" in repr(GyroInstanceNorm(M, 4))
    assert not list(layer.buffers())
    half = layer.half()(points_of(M, 2, 4, 3).half())
    assert half.dtype == torch.float16
    assert not list(GyroLayerNorm(M, affine=False).parameters())
    with pytest.raises(RuntimeError, match="the state is of a layer on PoincareBall"):
        GyroGroupNorm(PoincareBall(2, -2.0), 2, 4).load_state_dict(layer.state_dict())
    layer.reset_parameters()
    assert len(layer.parameter_groups(lr=0.1)) == 2
    one = GyroLayerNorm(M, dtype=torch.float64)(points_of(M, 2, 1))  # sets of a single point
    assert float(M.norm(one).detach().max()) < 1e-12


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda M: GyroGroupNorm(M, 3, 4), ValueError, "4 channels do not fall into 3 groups"),
        (lambda M: GyroRMSNorm(M, steps=1), TypeError, "GyroRMSNorm has no option 'steps'"),
        (lambda M: GyroLayerNorm(M, momentum=0.1), TypeError, "no option 'momentum'"),
        (lambda M: GyroLayerNorm(M, centre=False), TypeError, "'centre'"),
        (lambda M: GyroInstanceNorm(M, 4, group=2), TypeError, "no option 'group'"),
        (lambda M: GyroGroupNorm(M, 2, 4, axis=1), TypeError, "no option 'axis'"),
        (lambda M: gyrobn.flax.GyroLayerNorm(M, eps=0.1), TypeError, "'eps'"),
        (lambda M: GyroLayerNorm(M, eps=-1.0), ValueError, "eps"),
        (lambda M: GyroLayerNorm(M)(torch.zeros(3, 2)), ValueError, "is a single point"),
        (lambda M: GyroLayerNorm(M)(torch.zeros(2)), ValueError, r"shape \(batch, ..., 2\)"),
        (lambda M: GyroLayerNorm(M, axis=3)(torch.zeros(3, 4, 2)), ValueError, "axis of GyroL"),
        (lambda M: GyroLayerNorm(M, axis=(1, -1))(torch.zeros(3, 4, 2)), ValueError, "different"),
        (
            lambda M: GyroInstanceNorm(M, 3)(torch.zeros(5, 4, 6, 2)),
            ValueError,
            r"GyroInstanceNorm on .* shape \(batch, 3, ..., 2\), got \(5, 4, 6, 2\)",
        ),
        (
            lambda M: GyroGroupNorm(M, 2, 4)(torch.zeros(5, 2, 6, 2)),
            ValueError,
            r"\(batch, 4, ..., 2\)",
        ),
        (
            lambda M: GyroLayerNorm(M)(torch.zeros(3, 4, 2), torch.ones(4)),
            ValueError,
            r"weights of shape \(3, 4\), in which axes may have length one; got \(4,\)",
        ),
        (
            lambda M: GyroLayerNorm(M)(torch.zeros(3, 4, 2), -torch.ones(3, 4)),
            ValueError,
            "non-negative",
        ),
        (
            lambda M: GyroRMSNorm(M)(torch.full((3, 4, 2), torch.nan)),
            ValueError,
            "the input of GyroRMSNorm has NaN",
        ),
        (lambda M: GyroLayerNorm(M)(torch.zeros(3, 4, 2).double()), TypeError, "holds torch.float"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(PoincareBall(2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-7, 1e7])
def test_weights_keep_their_digits_in_half_precision(kind, size):
    """In float16 these would be 0 or infinity: weights count by their ratios alone."""
    M = PoincareBall(2)
    layer = getattr(gyrobn.torch, kind)(M, *KINDS[kind][0])
    x, w = points_of(M, *SHAPE).half(), weights_of(*SHAPE).float()
    expected = layer(M.project(x.float()), w)
    torch.testing.assert_close(layer(x, size * w).float(), expected, rtol=0, atol=5e-4)
    torch.testing.assert_close(layer(x, size * w), layer(x, w), rtol=0, atol=0)
