"""From an estimator to a layer: the same function of the same statistics, on every geometry."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import FIRST, GEOMETRIES
from sklearn.exceptions import NotFittedError

from gyrobn import Correlation, Euclidean, GyroBN, PoincareBall, Sphere
from gyrobn import equinox as equinox_layers
from gyrobn import flax as flax_layers
from gyrobn import torch as torch_layers
from gyrobn.normalization.layers import Learnt, State, forward
from gyrobn.normalization.normalize import Stats
from gyrobn.torch.baselines import LRBN, ManifoldNorm

DOUBLE = {"dtype": torch.float64}


def blocks(M):
    return () if len(M.blocks) == 1 else (len(M.blocks),)


def fitted(M, channels=(2,), domains=None, dtype="float64", **options):
    """An estimator whose bias, scale and statistics are all something else than at first."""
    rng = np.random.default_rng(3)
    X = M.add(M.random(*channels, rng=7, spread=0.4), M.random(12, *channels, rng=8, spread=0.5))
    given = {
        "bias": M.random(*channels, rng=9, spread=0.6),
        "scale": rng.uniform(0.5, 1.5, (*channels, *blocks(M))),
        "eps": 1e-3,
        "tol": 1e-9,
        "max_iter": 77,
    }
    return GyroBN(M, **given | options).fit(X.astype(dtype), domains=domains)


def more(M, channels=(2,)):
    return M.add(M.random(*channels, rng=7, spread=0.3), M.random(5, *channels, rng=1, spread=0.5))


def far(M, a, b):
    a, b = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in (a, b))
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    return float(M.dist(a, b).max())


# ---------------------------------------------------------------------- every geometry


@pytest.mark.parametrize("M", GEOMETRIES, ids=str)
def test_torch_layer_does_what_the_estimator_does(M):
    bn, x = fitted(M), more(M)
    layer = torch_layers.GyroBN.from_estimator(bn).eval()
    assert far(M, layer(torch.as_tensor(x)), bn.transform(x)) < 1e-12
    np.testing.assert_array_equal(layer.running_mean, bn.mean_)
    np.testing.assert_array_equal(layer.running_var, bn.var_)
    for name in ("eps", "tol", "max_iter"):
        assert getattr(layer.settings, name) == getattr(bn, name)


@pytest.mark.parametrize("M", GEOMETRIES, ids=str)
def test_flax_layer_holds_what_the_estimator_does(M):
    """What the layers of all frameworks call does it, here in NumPy: nothing is compiled."""
    bn, x = fitted(M), more(M)
    layer = flax_layers.GyroBN.from_estimator(bn)
    learnt = Learnt(np.asarray(layer.bias[...]), np.asarray(layer.scale[...]), None)
    stats = Stats(np.asarray(layer.mean[...]), np.asarray(layer.var[...]))
    y, _ = forward(layer.settings, learnt, State(stats), x, None, 0.0, training=False)
    assert far(M, y, bn.transform(x)) < 1e-12


@pytest.mark.parametrize("M", FIRST, ids=str)
def test_flax_layer_does_what_the_estimator_does(M):
    bn, x = fitted(M), more(M)
    layer = flax_layers.GyroBN.from_estimator(bn, use_running_average=True)
    y = jax.jit(lambda x: layer(x))(x)
    assert far(M, y, bn.transform(x)) < 1e-12


@pytest.mark.parametrize("M", FIRST, ids=str)
def test_equinox_layer_holds_what_the_flax_layer_holds(M):
    bn = fitted(M)
    model = flax_layers.GyroBN.from_estimator(bn)
    layer, state = equinox_layers.GyroBN.from_estimator(bn)
    np.testing.assert_array_equal(layer.bias, model.bias[...])
    np.testing.assert_array_equal(layer.scale, model.scale[...])
    np.testing.assert_array_equal(state.get(layer.stats).mean, model.mean[...])
    np.testing.assert_array_equal(state.get(layer.stats).var, model.var[...])
    assert layer.settings.eps == bn.eps


@pytest.mark.parametrize("M", FIRST, ids=str)
def test_domains_keep_their_statistics(M):
    labels = np.asarray(["Bo", "Ada", "Cy"] * 4)
    bn = fitted(M, domains=labels, unseen="adapt", adapt_rate=0.3)
    x, own = more(M), ["Cy", "Bo", "Ada", "Bo", "Cy"]
    layer = torch_layers.DomainGyroBN.from_estimator(bn).eval()
    number = torch.as_tensor([bn.domains_.tolist().index(label) for label in own])
    assert far(M, layer(torch.as_tensor(x), number), bn.transform(x, domains=own)) < 1e-12
    assert (layer.unseen, layer.momentum) == ("adapt", 0.3)


def test_equinox_layer_does_what_the_estimator_does():
    M = PoincareBall(2)
    bn, x = fitted(M), more(M)
    layer, state = equinox_layers.GyroBN.from_estimator(bn, inference=True)
    y = jax.jit(lambda x: layer(x, state)[0])(x)
    assert far(M, y, bn.transform(x)) < 1e-12


# ---------------------------------------------------------------------- channels, bias, scale


@pytest.mark.parametrize("channels", [(), (2, 3)])
@pytest.mark.parametrize("M", [PoincareBall(2), Correlation(3)], ids=str)
def test_channels_and_one_bias_and_scale_for_all(M, channels):
    bn = fitted(M, channels, bias=M.random(rng=9, spread=0.6), scale=0.7)
    x = more(M, channels)
    layer = torch_layers.GyroBN.from_estimator(bn).eval()
    assert tuple(layer.bias.shape) == (*channels, M.dim)
    assert tuple(layer.scale.shape) == (*channels, *blocks(M))
    assert far(M, layer(torch.as_tensor(x)), bn.transform(x)) < 1e-12


def test_no_bias_and_scale_are_the_identity_and_one():
    M = PoincareBall(2)
    bn = fitted(M, bias=None, scale=1.0)
    for affine in (True, False):
        layer = torch_layers.GyroBN.from_estimator(bn, affine=affine).eval()
        x = more(M)
        assert far(M, layer(torch.as_tensor(x)), bn.transform(x)) < 1e-12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 1.0}, "has a bias:"),
        ({"bias": None}, "has a scale:"),
        ({}, "has a bias and a scale:"),
    ],
)
def test_a_layer_without_bias_and_scale_cannot_hold_them(options, words):
    bn = fitted(PoincareBall(2), **options)
    with pytest.raises(ValueError, match=words):
        torch_layers.GyroBN.from_estimator(bn, affine=False)
    with pytest.raises(ValueError, match=words):
        flax_layers.GyroBN.from_estimator(bn, use_bias=False, use_scale=False)
    with pytest.raises(ValueError, match=words):
        equinox_layers.GyroBN.from_estimator(bn, use_bias=False, use_scale=False)


def test_layers_of_jax_without_bias_or_scale():
    M = PoincareBall(2)
    plain = fitted(M, bias=None, scale=1.0)
    model = flax_layers.GyroBN.from_estimator(plain, use_bias=False, use_scale=False)
    layer, _ = equinox_layers.GyroBN.from_estimator(plain, use_bias=False)
    assert model.bias is None
    assert model.scale is None
    assert layer.bias is None
    assert layer.scale.shape == (2,)


def test_a_bias_opposite_to_the_identity_is_refused():
    M = Sphere(2)
    bn = fitted(M, ())
    bn.set_params(bias=-M.origin(np.zeros(())))
    with pytest.raises(ValueError, match="without coordinates at the identity"):
        torch_layers.GyroBN.from_estimator(bn)


# ---------------------------------------------------------------------- dtype, device, library


def test_dtype_is_that_of_the_statistics_or_the_one_asked_for():
    M = Sphere(2)
    bn = fitted(M, dtype="float32")
    assert torch_layers.GyroBN.from_estimator(bn).running_mean.dtype == torch.float32
    assert flax_layers.GyroBN.from_estimator(bn).mean.dtype == jnp.float32
    x = more(M)
    wide = torch_layers.GyroBN.from_estimator(bn, **DOUBLE).eval()
    y = wide(torch.as_tensor(x))
    assert bool(M.contains(wide.running_mean).all())  # to the digits of float64
    assert y.dtype == torch.float64
    assert far(M, y.float(), bn.transform(x.astype("float32"))) < 1e-6
    narrow = torch_layers.GyroBN.from_estimator(fitted(M), dtype=torch.float32)
    assert narrow.scale.dtype == narrow.running_var.dtype == torch.float32
    layer = flax_layers.GyroBN.from_estimator(fitted(M), param_dtype=jnp.float32)
    assert layer.scale.dtype == layer.mean.dtype == jnp.float32


def test_dtype_of_jax_as_far_as_it_is_set_to_it():
    bn = fitted(PoincareBall(2))
    with jax.enable_x64(False):
        layer = flax_layers.GyroBN.from_estimator(bn)
        other, state = equinox_layers.GyroBN.from_estimator(bn)
    assert layer.mean.dtype == other.bias.dtype == state.get(other.stats).var.dtype == jnp.float32


def test_device_is_that_of_the_statistics_or_the_one_asked_for():
    M = Euclidean(2)
    bn = GyroBN(M).fit(torch.as_tensor(M.random(5, rng=0)))
    assert torch_layers.GyroBN.from_estimator(bn).scale.device == torch.device("cpu")
    assert torch_layers.GyroBN.from_estimator(bn, device="meta").scale.device.type == "meta"
    with torch.device("meta"):  # torch's own default does not move statistics that have a place
        assert torch_layers.GyroBN.from_estimator(bn).scale.device == torch.device("cpu")


# ---------------------------------------------------------------------- training, before and after


def test_statistics_count_as_one_batch():
    M = Euclidean(1)
    bn = GyroBN(M).fit([[2.0], [4.0]])
    layer = torch_layers.GyroBN.from_estimator(bn, momentum=None)
    layer(torch.as_tensor([[6.0], [8.0]], **DOUBLE))
    assert layer.running_mean.tolist() == [5.0]
    assert int(layer.num_batches_tracked) == 2


def test_options_are_those_of_the_layer():
    bn = fitted(PoincareBall(2))
    layer = torch_layers.GyroBN.from_estimator(bn, momentum=0.01, steps=2, eps=0.5)
    assert (layer.momentum, layer.settings.steps, layer.settings.eps) == (0.01, 2, 0.5)
    assert (layer.settings.tol, layer.settings.max_iter) == (1e-9, 77)
    layer = flax_layers.GyroBN.from_estimator(bn, momentum=0.5, epsilon=0.5)
    assert (layer.momentum, layer.settings.eps, layer.settings.max_iter) == (0.5, 0.5, 77)
    assert layer.use_running_average is False
    layer, _ = equinox_layers.GyroBN.from_estimator(bn, momentum=0.5)
    assert (layer.momentum, layer.settings.tol, layer.settings.max_iter) == (0.5, 1e-9, 77)
    several = fitted(PoincareBall(2), domains=[0, 1] * 6)
    layer = torch_layers.DomainGyroBN.from_estimator(several, unseen="refit", momentum=0.2)
    assert (layer.unseen, layer.momentum) == ("refit", 0.2)


def test_converted_layers_train_and_copy():
    M = PoincareBall(2)
    bn, x = fitted(M), more(M)
    layer = copy.deepcopy(torch_layers.GyroBN.from_estimator(bn))
    layer(torch.as_tensor(x)).square().sum().backward()
    assert layer.bias.grad.isfinite().all()
    assert int(layer.num_batches_tracked) == 2
    model = flax_layers.GyroBN.from_estimator(fitted(Euclidean(2)))
    before = np.asarray(model.mean[...])
    model(jnp.asarray(x))
    assert not np.array_equal(before, model.mean[...])


# ---------------------------------------------------------------------- domains


def test_training_statistics_begin_with_those_of_the_estimator():
    M = Euclidean(1)
    bn = GyroBN(M).fit([[0.0], [2.0], [5.0], [9.0]], domains=[0, 0, 1, 1])
    layer = torch_layers.DomainGyroBN.from_estimator(bn, train_momentum=0.5)
    assert layer.training_mean[:, 0].tolist() == [1.0, 7.0]
    assert layer.training_var.tolist() == [1.0, 4.0]


# ---------------------------------------------------------------------- what cannot be converted


def test_layers_that_cannot_hold_an_estimator():
    bn = fitted(PoincareBall(2))
    with pytest.raises(ValueError, match="without running statistics"):
        torch_layers.GyroBN.from_estimator(bn, track_running_stats=False)
    for cls in (LRBN, ManifoldNorm):
        with pytest.raises(ValueError, match="not those of the baselines"):
            cls.from_estimator(bn)
    with pytest.raises(ValueError, match=r"fitted without domains: use GyroBN\.from_estimator"):
        torch_layers.DomainGyroBN.from_estimator(bn)
    several = fitted(PoincareBall(2), domains=[0, 1] * 6)
    for cls in (torch_layers.GyroBN, flax_layers.GyroBN, equinox_layers.GyroBN):
        with pytest.raises(ValueError, match=r"2 domains: use gyrobn\.torch\.DomainGyroBN"):
            cls.from_estimator(several)
        with pytest.raises(NotFittedError):
            cls.from_estimator(GyroBN())


def test_a_geometry_that_is_not_registered_converts_too():
    class Own(Euclidean):
        """Somebody's geometry."""

    bn = GyroBN(Own(2)).fit([[0.0, 1.0], [2.0, 3.0]])
    assert torch_layers.GyroBN.from_estimator(bn).manifold == Own(2)


def test_a_bias_too_far_away_is_refused():
    """At the edge of the ball, where coordinates do not lead back to the same point."""
    bn = fitted(PoincareBall(2), ()).set_params(bias=[1.0 - 2.0**-53, 0.0])
    with pytest.raises(ValueError, match="too far away: a layer cannot learn it"):
        torch_layers.GyroBN.from_estimator(bn)
