"""Layers seen from a reference, that only centre, and that train with running statistics."""

import copy
import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gyrobn.equinox
import gyrobn.flax
from gyrobn import (
    SPD,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    PoincareBall,
    Product,
    SpecialOrthogonal,
    Sphere,
    Stats,
    batch_stats,
    frechet,
    normalize,
    update_stats,
)
from gyrobn.manifolds.rebased import Rebased
from gyrobn.normalization import layers as core
from gyrobn.torch import (
    DomainGyroBN,
    GyroBN,
    GyroInstanceNorm,
    GyroLayerNorm,
    GyroRMSNorm,
)
from gyrobn.torch.baselines import LRBN, ManifoldNorm

DOUBLE = torch.zeros((), dtype=torch.float64)
MANIFOLDS = [
    PoincareBall(3),
    Sphere(2),
    Grassmannian(5, 2),
    SPD(3),
    SpecialOrthogonal(3),
    Product(PoincareBall(2), Sphere(2)),
]


def batch(M, seed=0, count=16, channels=(2,)):
    spread = min(0.4, 0.25 * M.convexity_radius)
    centre = M.random(rng=100, like=DOUBLE, spread=0.5)
    return M.add(centre, M.random(count, *channels, rng=seed, like=DOUBLE, spread=spread))


def point(M, *channels):
    return M.random(*channels, rng=11, like=DOUBLE, spread=0.4)


def layer_on(M, **options):
    layer = GyroBN(M, 2, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.bias.copy_(
            0.2 * torch.as_tensor(np.random.default_rng(2).standard_normal((2, M.dim)))
        )
        if layer.scale is not None:
            layer.scale.mul_(0.4)
    return layer


def apart(M, x, y):
    return float(M.dist(x, y).detach().max())


# ---------------------------------------------------------------------- a reference


@pytest.mark.parametrize("M", MANIFOLDS, ids=repr)
class TestReference:
    def test_the_layer_is_the_function(self, M):
        """In training and in evaluation; with a bias of zero the output's mean is the reference."""
        r, x = point(M), batch(M)
        layer = layer_on(M, reference=r.numpy(), momentum=1.0)
        y, R = layer(x), Rebased(M, r)
        bias = R.from_normal(layer.bias)
        assert (
            apart(M, y, normalize(M, x, batch_stats(M, x), bias, layer.scale, reference=r)) < 1e-11
        )
        assert apart(M, frechet(M, y).mean, bias) < 1e-9
        assert apart(M, layer.eval()(x), y) < 1e-11
        with torch.no_grad():
            layer.bias.zero_()
        assert apart(M, frechet(M, layer.train()(x)).mean, r) < 1e-9
        assert apart(M, layer.running_mean, batch_stats(M, x).mean) < 1e-11

    def test_the_first_batch_sets_it(self, M):
        layer, x = layer_on(M, reference="first_batch"), batch(M)
        plain = layer_on(M)
        assert apart(M, layer.eval()(x), plain.eval()(x)) < 1e-12  # none is set: the identity
        assert bool(layer.reference.isnan().all())
        y, mean = layer.train()(x), batch_stats(M, x).mean
        assert apart(M, layer.reference, mean) < 1e-11
        bias = Rebased(M, mean).from_normal(layer.bias)
        assert (
            apart(M, y, normalize(M, x, batch_stats(M, x), bias, layer.scale, reference=mean))
            < 1e-10
        )
        before = layer.reference.clone()
        layer(batch(M, 1))
        assert torch.equal(layer.reference, before)
        layer.reset_running_stats()  # the bias is counted from it
        assert torch.equal(layer.reference, before)
        layer.reset_parameters()
        assert bool(layer.reference.isnan().all())
        layer(batch(M, 1))
        assert apart(M, layer.reference, batch_stats(M, batch(M, 1)).mean) < 1e-11

    def test_states(self, M):
        """A state carries it, also to a layer that has seen no batch; an older one has none."""
        x, options = batch(M), {"reference": "first_batch", "train_momentum": 0.5}
        layer = layer_on(M, **options)
        layer(x)
        for other in (layer_on(M, **options), copy.deepcopy(layer)):
            other.load_state_dict(layer.state_dict())
            assert torch.equal(other.eval()(x), layer.eval()(x))
            assert torch.equal(other.train()(batch(M, 1)), layer.train()(batch(M, 1)))
            assert torch.equal(other.reference, layer.reference)
            layer.load_state_dict(other.state_dict())
        old = layer_on(M)
        old(x)
        new = layer_on(M, **options)
        new.load_state_dict(old.state_dict())
        assert torch.equal(new.training_mean, old.running_mean)
        assert apart(M, new.eval()(x), old.eval()(x)) < 1e-12

    def test_gradients(self, M):
        """By samples and parameters, against central differences."""
        x, along = batch(M, count=5).detach(), np.random.default_rng(3)
        moves = torch.as_tensor(along.standard_normal((5, 2, M.dim)))
        weights = torch.as_tensor(along.standard_normal((5, 2, M.dim)))
        turn = torch.as_tensor(along.standard_normal((2, M.dim)))
        layer = layer_on(M, reference=point(M, 2), train_momentum=0.3)
        state = copy.deepcopy(layer.state_dict())

        def value(t):
            layer.load_state_dict(state)
            bias = layer.bias.detach() + t * turn
            given = {"bias": bias, "scale": layer.scale.detach() * (1.0 + t)}
            moved = M.add(x, M.from_normal(t * moves))
            y = torch.func.functional_call(layer, given, (moved,))
            return (weights * M.to_normal(y)).sum()

        t = DOUBLE.clone().requires_grad_()
        (slope,) = torch.autograd.grad(value(t), t)
        step = (value(DOUBLE + 1e-5) - value(DOUBLE - 1e-5)) / 2e-5
        assert slope.item() == pytest.approx(step.item(), rel=1e-6, abs=1e-7)


def subspaces_at(degrees, seed=0, count=100):
    """Subspaces around one whose principal angles to the identity are that large."""
    M = Grassmannian(6, 2)
    block = torch.zeros(4, 2, dtype=torch.float64)
    block[0, 0] = block[1, 1] = math.radians(degrees)
    return M, M.add(
        M.from_normal(block.reshape(-1)), M.random(count, rng=seed, like=DOUBLE, spread=0.5)
    )


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_the_noise_of_a_mean_at_88_degrees_does_not_become_that_of_the_samples():
    """The same samples, in the company of others: how far do they move from batch to batch?"""
    M, x = subspaces_at(88.0)
    moved = {}
    for reference in (None, "first_batch"):
        layer = GyroBN(M, scale=None, reference=reference, dtype=torch.float64)
        layer(x)
        outputs, means = [], []
        for seed in range(1, 6):
            together = torch.cat([x[:10], subspaces_at(88.0, seed)[1]])
            outputs.append(layer(together)[:10].detach())
            means.append(batch_stats(M, together).mean)
        pairs = [(i, j) for i in range(5) for j in range(i)]
        noise = sum(float(M.dist(outputs[i], outputs[j]).mean()) for i, j in pairs)
        moved[reference] = noise / sum(float(M.dist(means[i], means[j])) for i, j in pairs)
    assert moved["first_batch"] < 1.1
    assert moved[None] > 3.0


class TestWarning:
    def test_once_with_the_name_of_the_option(self):
        M, x = subspaces_at(88.0)
        layer = GyroBN(M, dtype=torch.float64)
        with pytest.warns(
            FrechetWarning, match=r"° from the cut locus of the identity.*first_batch"
        ):
            layer(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FrechetWarning)
            layer(x)
            GyroBN(M, dtype=torch.float64, check_input=False)(x)

    def test_not_with_a_good_reference(self):
        M, x = subspaces_at(88.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FrechetWarning)
            GyroBN(M, dtype=torch.float64, reference="first_batch")(x)
            GyroBN(M, dtype=torch.float64)(subspaces_at(75.0)[1])
        bad = M.neg(x[0])
        layer = GyroBN(M, dtype=torch.float64, reference=M.from_normal(0.01 * M.to_normal(bad)))
        with pytest.warns(FrechetWarning, match="cut locus of the reference.*nearer to the data"):
            layer(x)

    def test_a_mean_is_looked_at_in_the_first_batch_and_every_64th(self, monkeypatch):
        looked = []
        original = Sphere.cut_locus_angle
        monkeypatch.setattr(
            Sphere, "cut_locus_angle", lambda M, x: looked.append(1) or original(M, x)
        )
        layer, x = GyroBN(Sphere(2), 2, dtype=torch.float64), batch(Sphere(2))
        for _ in range(2 * core.EVERY + 1):
            layer(x)
        assert len(looked) == 3
        layer.eval()(x)
        flat = GyroBN(Euclidean(2), 2, dtype=torch.float64)
        monkeypatch.setattr(Euclidean, "cut_locus_angle", None)
        flat(batch(Euclidean(2)))


# ---------------------------------------------------------------------- centring, and momentum


@pytest.mark.parametrize("M", MANIFOLDS, ids=repr)
def test_centre_only(M):
    x = batch(M)
    layer = layer_on(M, scale=None, momentum=1.0)
    assert layer.scale is None
    assert "scale" not in layer.state_dict()
    y = layer(x)
    found, before = frechet(M, y), frechet(M, x)
    assert apart(M, found.mean, M.from_normal(layer.bias)) < 1e-9
    torch.testing.assert_close(found.variance, before.variance)
    assert apart(M, layer.eval()(x), y) < 1e-11
    whole = GyroLayerNorm(M, scale=None, dtype=torch.float64)(x[None])
    torch.testing.assert_close(
        frechet(M, whole.flatten(0, 2)).variance, frechet(M, x.flatten(0, 1)).variance
    )


def test_an_initial_scale():
    M, x = PoincareBall(3), batch(PoincareBall(3))
    for affine in (True, False):
        layer = GyroBN(M, 2, scale=0.5, affine=affine, dtype=torch.float64)
        torch.testing.assert_close(
            frechet(M, layer(x)).variance, 0.25 * torch.ones_like(x[0, :, 0]), rtol=1e-3, atol=0.0
        )
        layer.reset_parameters()
        assert layer.scale is None or layer.scale.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("M", MANIFOLDS, ids=repr)
@pytest.mark.parametrize("reference", [None, "first_batch"])
def test_training_with_running_statistics(M, reference):
    """It normalizes with statistics that move towards each batch; evaluation has its own."""
    layer = layer_on(M, train_momentum=0.3, momentum=0.1, reference=reference)
    own = other = Stats(layer.running_mean.clone(), layer.running_var.clone())
    for seed in range(3):
        x = batch(M, seed)
        found = batch_stats(M, x)
        own, other = update_stats(M, own, found, 0.3), update_stats(M, other, found, 0.1)
        y = layer(x)
        r = layer.reference
        bias = (M if r is None else Rebased(M, r)).from_normal(layer.bias)
        assert apart(M, y, normalize(M, x, own, bias, layer.scale, reference=r)) < 1e-9
    assert apart(M, layer.training_mean, own.mean) < 1e-10
    assert apart(M, layer.running_mean, other.mean) < 1e-10
    bias = (M if r is None else Rebased(M, r)).from_normal(layer.bias)
    expected = normalize(M, x, other, bias, layer.scale, reference=r)
    assert apart(M, layer.eval()(x), expected) < 1e-9


def test_a_schedule_counts_batches():
    seen = []
    layer = GyroBN(
        Euclidean(2), 2, train_momentum=lambda k: seen.append(k) or 0.5, dtype=torch.float64
    )
    for seed in range(3):
        layer(batch(Euclidean(2), seed))
    layer.eval()(batch(Euclidean(2)))
    assert seen == [0, 1, 2]


def test_statistics_that_are_gone_are_not_made_up():
    layer, x = (
        GyroBN(PoincareBall(3), 2, train_momentum=0.5, dtype=torch.float64),
        batch(PoincareBall(3)),
    )
    y = checkpoint(layer, x.requires_grad_(), use_reentrant=False)
    with pytest.raises(RuntimeError, match="leave the layer out of the checkpoint"):
        y.sum().backward()


def test_a_checkpoint_sets_the_reference_once():
    M = PoincareBall(3)
    layer, same = (layer_on(M, reference="first_batch") for _ in range(2))
    x = batch(M).requires_grad_()
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    slope, x.grad = x.grad, None
    same(x).sum().backward()
    torch.testing.assert_close(slope, x.grad)
    assert torch.equal(layer.reference, same.reference)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda M: GyroBN(M, reference="fit"), ValueError, "reference.*'first_batch'.*got 'fit'"),
        (lambda M: GyroBN(M, reference=np.zeros(2)), ValueError, r"shape \(3,\).*got \(2,\)"),
        (lambda M: GyroBN(M, reference=np.ones(3)), ValueError, "reference is off PoincareBall"),
        (lambda M: GyroBN(M, scale="one"), ValueError, "scale"),
        (lambda M: GyroBN(M, train_momentum=2.0), ValueError, "train_momentum"),
        (lambda M: GyroBN(M, train_momentum=0.5, track_running_stats=False), ValueError, "running"),
        (lambda M: GyroLayerNorm(M, reference=np.zeros(3)), TypeError, "no option 'reference'"),
        (lambda M: GyroInstanceNorm(M, 2, train_momentum=0.1), TypeError, "no option 'train_mom"),
        (lambda M: GyroRMSNorm(M, scale=None), TypeError, "no option 'scale'"),
        (lambda M: LRBN(M, reference="first_batch"), TypeError, "no option 'reference'"),
        (lambda M: ManifoldNorm(M, train_momentum=0.1), TypeError, "no option 'train_momentum'"),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make(PoincareBall(3))


# ---------------------------------------------------------------------- compiled; domains


@pytest.mark.parametrize(
    "options",
    [
        {"reference": "first_batch"},
        {"reference": "first_batch", "train_momentum": 0.3, "scale": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("M", [Grassmannian(4, 2), PoincareBall(3)], ids=repr)
def test_compiled(M, options):
    """In one graph: the first batch sets the reference, and the next does not."""
    torch._dynamo.reset()
    layer = layer_on(M, **options)
    same = copy.deepcopy(layer)
    compiled = torch.compile(same, backend="aot_eager", fullgraph=True)
    for seed in range(3):
        x = batch(M, seed).requires_grad_()
        grads = []
        for call in (layer, compiled):
            y = call(x)
            (grad,) = torch.autograd.grad(M.norm(y).sum() + y.sum(), x)
            grads.append((y.detach(), grad))
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        for one, other in zip(layer.buffers(), same.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(layer.eval()(x), compiled.eval()(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("M", MANIFOLDS, ids=repr)
def test_domains_have_one_reference(M):
    layer = DomainGyroBN(M, 3, 2, reference="first_batch", scale=0.3, dtype=torch.float64)
    x, domains = batch(M), torch.arange(16) % 2
    y = layer(x, domains)
    means = torch.stack([batch_stats(M, x[domains == k]).mean for k in range(2)])
    assert layer.reference.shape == (2, *M.point_shape)
    assert apart(M, layer.reference, frechet(M, means).mean) < 1e-9
    for k in range(2):
        own = x[domains == k]
        expected = normalize(M, own, batch_stats(M, own), None, 0.3, reference=layer.reference)
        assert apart(M, y[domains == k], expected) < 1e-9
        assert apart(M, frechet(M, y[domains == k]).mean, layer.reference) < 1e-9
    other = DomainGyroBN(M, 3, 2, reference="first_batch", scale=0.3, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.eval()(x, domains), layer.eval()(x, domains))
    before = layer.reference.clone()
    layer.train()(batch(M, 1), domains)
    assert torch.equal(layer.reference, before)


def with_biases(M, **options):
    layer = DomainGyroBN(M, 3, 2, domain_bias=True, scale=0.3, dtype=torch.float64, **options)
    assert layer.bias.shape == (3, 2, M.dim)
    with torch.no_grad():
        layer.bias.copy_(
            0.2 * torch.as_tensor(np.random.default_rng(2).standard_normal((3, 2, M.dim)))
        )
    return layer


@pytest.mark.parametrize("reference", [None, "first_batch"])
@pytest.mark.parametrize("M", MANIFOLDS, ids=repr)
def test_each_domain_has_a_bias(M, reference):
    """Its mean is that bias, and only its samples give that a derivative."""
    layer = with_biases(M, reference=reference, momentum=1.0)
    x, domains = batch(M), torch.arange(16) % 2
    y = layer(x, domains)
    space = M if reference is None else Rebased(M, layer.reference)
    for k in range(2):
        found = frechet(M, y[domains == k]).mean
        assert apart(M, found, space.from_normal(layer.bias[k])) < 1e-9
        (grad,) = torch.autograd.grad(M.norm(y[domains == k]).sum(), layer.bias, retain_graph=True)
        assert grad[k].abs().max() > 1e-3
        assert not grad[1 - k].any()
        assert not grad[2].any()
    assert apart(M, layer.eval()(x, domains), y) < 1e-9
    exported = torch.export.export(layer, (x, domains)).module()
    assert apart(M, exported(x, domains), y) < 1e-9


def test_states_with_one_bias_and_several():
    M, x = PoincareBall(3), batch(PoincareBall(3))
    one, domains = DomainGyroBN(M, 3, 2, dtype=torch.float64), torch.arange(16) % 3
    torch.nn.init.normal_(one.bias, std=0.1)
    one(x, domains)
    several = DomainGyroBN(M, 3, 2, domain_bias=True, dtype=torch.float64)
    several.load_state_dict(one.state_dict())
    assert apart(M, several.eval()(x, domains), one.eval()(x, domains)) < 1e-12
    with torch.no_grad():
        several.bias[1].add_(0.1)
    again = DomainGyroBN(M, 3, 2, domain_bias=True, dtype=torch.float64).eval()
    again.load_state_dict(several.state_dict())
    assert torch.equal(again(x, domains), several(x, domains))
    with pytest.raises(ValueError, match="domain_bias needs a bias"):
        DomainGyroBN(M, 3, 2, domain_bias=True, affine=False)


def test_the_bias_of_a_new_domain_is_fitted_alone():
    """In evaluation, with the statistics of its own batch; the rest stays as it is."""
    M = SPD(2)
    layer = with_biases(M, unseen="refit")
    x, domains = batch(M), torch.arange(16) % 2
    layer(x, domains)
    layer.eval().requires_grad_(False)
    layer.bias.requires_grad_()
    state = copy.deepcopy(layer.state_dict())
    M.norm(layer(batch(M, 1), torch.full((16,), 2))).sum().backward()
    assert layer.bias.grad[2].any()
    assert not layer.bias.grad[:2].any()
    for name, value in layer.state_dict().items():
        assert torch.equal(value, state[name])


# ---------------------------------------------------------------------- Flax and Equinox


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"reference": "first_batch"},
        {"reference": "point", "train_momentum": 0.3},
        {"reference": "first_batch", "train_momentum": 0.3, "scale": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("M", [Grassmannian(4, 2), PoincareBall(3)], ids=repr)
def test_layers_of_jax_do_what_those_of_torch_do(M, options, jit):
    if options["reference"] == "point":
        options = options | {"reference": point(M).numpy()}
    layer = GyroBN(M, 2, momentum=0.1, dtype=torch.float64, **options)
    flax = gyrobn.flax.GyroBN(M, 2, momentum=0.9, param_dtype=jnp.float64, **options)
    call = gyrobn.flax.nnx.jit(lambda layer, x: layer(x)) if jit else lambda layer, x: layer(x)
    make = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)
    module, state = make(M, 2, momentum=0.9, dtype=jnp.float64, **options)
    step = eqx.filter_jit(module) if jit else module
    for seed in range(2):
        x = batch(M, seed)
        y, given = layer(x).detach().numpy(), jnp.asarray(x.numpy())
        np.testing.assert_allclose(call(flax, given), y, atol=1e-9)
        out, state = step(given, state)
        np.testing.assert_allclose(out, y, atol=1e-9)
        reference = state.get(module.more).reference
        for found in (flax.reference[...], reference):
            np.testing.assert_allclose(found, layer.reference, atol=1e-10)
    layer.eval()
    flax.eval()
    expected = layer(x).detach().numpy()
    np.testing.assert_allclose(call(flax, given), expected, atol=1e-9)
    found, _ = eqx.nn.inference_mode(module)(given, state)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert (flax.scale is None) == (layer.scale is None) == (module.scale is None)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("M", [Grassmannian(4, 2), PoincareBall(3)], ids=repr)
def test_layers_of_an_estimator(M, scale, with_bias):
    """They take its reference over, and that it only centres."""
    x = batch(M).numpy()
    bias = M.random(rng=3, spread=0.3) if with_bias else None
    bn = gyrobn.GyroBN(M, reference="fit", scale=scale, bias=bias).fit(x)
    expected, options = bn.transform(x), {"train_momentum": 0.5}
    layer = GyroBN.from_estimator(bn, **options).eval()
    assert apart(M, layer(torch.as_tensor(x)), torch.as_tensor(expected)) < 1e-9
    flax = gyrobn.flax.GyroBN.from_estimator(bn, **options)
    flax.eval()
    assert float(M.dist(np.asarray(flax(jnp.asarray(x))), expected).max()) < 1e-9
    module, state = gyrobn.equinox.GyroBN.from_estimator(bn, **options)
    found, _ = eqx.nn.inference_mode(module)(jnp.asarray(x), state)
    assert float(M.dist(np.asarray(found), expected).max()) < 1e-9
    assert (
        (layer.scale is None) == (flax.scale is None) == (module.scale is None) == (scale is None)
    )


def test_a_schedule_is_for_torch():
    layer = gyrobn.flax.GyroBN(PoincareBall(3), 2, train_momentum=lambda _: 0.5)
    with pytest.raises(TypeError, match="train_momentum is a number"):
        layer(jnp.zeros((4, 2, 3)))
    assert jax.config.jax_enable_x64
