"""Estimator to layer and back: the same function of the same statistics, on every geometry."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import FIRST, GEOMETRIES, cloud
from sklearn.exceptions import NotFittedError

from gyrobn import SPD, Correlation, Euclidean, GyroBN, PoincareBall, Sphere, Stereographic
from gyrobn import equinox as equinox_layers
from gyrobn import flax as flax_layers
from gyrobn import torch as torch_layers
from gyrobn.normalization.layers import Learnt, forward
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
def test_torch_layer_does_what_the_estimator_does_and_back(M):
    bn, x = fitted(M), more(M)
    layer = torch_layers.GyroBN.from_estimator(bn).eval()
    assert far(M, layer(torch.as_tensor(x)), bn.transform(x)) < 1e-12
    back = layer.to_estimator()
    assert far(M, back.transform(x), bn.transform(x)) < 1e-12
    assert far(M, back.inverse_transform(x), bn.inverse_transform(x)) < 1e-12
    np.testing.assert_array_equal(back.mean_, bn.mean_)
    np.testing.assert_array_equal(back.var_, bn.var_)
    for name in ("eps", "tol", "max_iter", "manifold"):
        assert getattr(back, name) == getattr(bn, name)


@pytest.mark.parametrize("M", GEOMETRIES, ids=str)
def test_flax_layer_holds_what_the_estimator_does_and_back(M):
    """What the layers of all frameworks call does it, here in NumPy: nothing is compiled."""
    bn, x = fitted(M), more(M)
    layer = flax_layers.GyroBN.from_estimator(bn)
    learnt = Learnt(np.asarray(layer.bias[...]), np.asarray(layer.scale[...]), None)
    stats = Stats(np.asarray(layer.mean[...]), np.asarray(layer.var[...]))
    y, _ = forward(layer.settings, learnt, stats, x, None, 0.0, training=False)
    assert far(M, y, bn.transform(x)) < 1e-12
    assert far(M, layer.to_estimator().transform(x), bn.transform(x)) < 1e-12


@pytest.mark.parametrize("M", FIRST, ids=str)
def test_flax_layer_does_what_the_estimator_does(M):
    bn, x = fitted(M), more(M)
    layer = flax_layers.GyroBN.from_estimator(bn, use_running_average=True)
    y = jax.jit(lambda x: layer(x))(x)
    assert far(M, y, bn.transform(x)) < 1e-12


@pytest.mark.parametrize("M", FIRST, ids=str)
def test_equinox_layer_holds_what_the_flax_layer_holds_and_back(M):
    bn, x = fitted(M), more(M)
    model = flax_layers.GyroBN.from_estimator(bn)
    layer, state = equinox_layers.GyroBN.from_estimator(bn)
    np.testing.assert_array_equal(layer.bias, model.bias[...])
    np.testing.assert_array_equal(layer.scale, model.scale[...])
    np.testing.assert_array_equal(state.get(layer.stats).mean, model.mean[...])
    np.testing.assert_array_equal(state.get(layer.stats).var, model.var[...])
    assert layer.settings.eps == bn.eps
    assert far(M, layer.to_estimator(state).transform(x), bn.transform(x)) < 1e-12


@pytest.mark.parametrize("M", FIRST, ids=str)
def test_domains_keep_their_statistics(M):
    labels = np.asarray(["Bo", "Ada", "Cy"] * 4)
    bn = fitted(M, domains=labels, unseen="adapt", adapt_rate=0.3)
    x, own = more(M), ["Cy", "Bo", "Ada", "Bo", "Cy"]
    layer = torch_layers.DomainGyroBN.from_estimator(bn).eval()
    number = torch.as_tensor([bn.domains_.tolist().index(label) for label in own])
    assert far(M, layer(torch.as_tensor(x), number), bn.transform(x, domains=own)) < 1e-12
    back = layer.to_estimator(labels=bn.domains_)
    assert far(M, back.transform(x, domains=own), bn.transform(x, domains=own)) < 1e-12
    assert (back.unseen, back.adapt_rate, layer.momentum) == ("adapt", 0.3, 0.3)
    new = ["Di"] * 5
    assert far(M, back.transform(x, domains=new), bn.transform(x, domains=new)) < 1e-12


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
    back = layer.to_estimator()
    assert far(M, back.transform(x), bn.transform(x)) < 1e-12
    assert isinstance(back.scale, float if channels + blocks(M) == () else np.ndarray)


def test_no_bias_and_scale_are_the_identity_and_one():
    M = PoincareBall(2)
    bn = fitted(M, bias=None, scale=1.0)
    for affine in (True, False):
        layer = torch_layers.GyroBN.from_estimator(bn, affine=affine).eval()
        x = more(M)
        assert far(M, layer(torch.as_tensor(x)), bn.transform(x)) < 1e-12
        back = layer.to_estimator()
        assert (back.bias is None) is not affine
        assert far(M, back.transform(x), bn.transform(x)) < 1e-12


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
    layer, state = equinox_layers.GyroBN.from_estimator(plain, use_bias=False)
    assert model.bias is None
    assert model.scale is None
    assert layer.bias is None
    assert layer.scale.shape == (2,)
    assert model.to_estimator().bias is None
    assert layer.to_estimator(state).bias is None


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
    with pytest.raises(NotImplementedError, match="meta"):  # went there, where no values are
        torch_layers.GyroBN.from_estimator(bn, device="meta").to_estimator()
    with torch.device("meta"):  # torch's own default does not move statistics that have a place
        assert torch_layers.GyroBN.from_estimator(bn).scale.device == torch.device("cpu")


def test_estimator_gets_the_library_that_is_asked_for():
    M = PoincareBall(2)
    bn, x = fitted(M), torch.as_tensor(more(M))
    layer = torch_layers.GyroBN.from_estimator(bn)
    back = layer.to_estimator(like=x)
    assert isinstance(back.mean_, torch.Tensor)
    assert far(M, back.transform(x), layer.eval()(x)) < 1e-12
    assert isinstance(flax_layers.GyroBN.from_estimator(bn).to_estimator(like=x).var_, torch.Tensor)
    pair = equinox_layers.GyroBN.from_estimator(bn)
    assert isinstance(pair[0].to_estimator(pair[1], like=x).var_, torch.Tensor)
    labelled = fitted(M, domains=[0, 1] * 6)
    several = torch_layers.DomainGyroBN.from_estimator(labelled).to_estimator(like=x)
    assert isinstance(several.n_iter_, torch.Tensor)


@pytest.mark.parametrize("M", [Sphere(2), SPD(3), Correlation(3)], ids=str)
def test_a_layer_trained_in_float32_and_converted_to_float64(M):
    layer = torch_layers.GyroBN(M)
    layer(cloud(M, 20, 0.5, torch.zeros(())))
    bn = layer.double().eval().to_estimator()
    x = more(M, ())
    assert far(M, bn.transform(x), layer(torch.as_tensor(x))) < 1e-6
    assert bool(M.contains(bn.mean_))


def test_statistics_of_a_layer_that_are_no_points_are_refused():
    layer = torch_layers.GyroBN(Sphere(2), **DOUBLE)
    layer.running_mean += 0.1
    with pytest.raises(ValueError, match="mean is off Sphere"):
        layer.to_estimator()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_parameters_in_half_precision(dtype):
    """They are numbers of float32, too; statistics are never in half precision."""
    M = PoincareBall(2)
    layer = torch_layers.GyroBN(M, dtype=dtype, learn_curvature=True)
    torch.nn.init.constant_(layer.bias, 0.3)
    x = M.random(8, rng=0, like=torch.zeros(()))
    layer(x)
    layer.eval()
    bn = layer.to_estimator()
    np.testing.assert_allclose(bn.transform(x.numpy()), layer(x).detach().numpy(), atol=1e-6)


# ---------------------------------------------------------------------- training, before and after


def test_trained_layers_become_estimators_and_files_of_nothing_else():
    """The estimator holds copies: what becomes of the layer later is no concern of it."""
    M = PoincareBall(3)
    layer = torch_layers.GyroBN(M, channels=2, **DOUBLE)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
    x = torch.as_tensor(more(M))
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()
    y = layer.eval()(x)
    bn = layer.to_estimator()
    layer.train()(x)
    layer.reset_parameters()
    assert far(M, bn.transform(x.numpy()), y) < 1e-12
    assert (bn.n_samples_seen_, bn.n_features_in_, bn.domains_) == (0, 2, None)
    assert not bn.weight_sum_.any()
    assert not bn.n_iter_.any()
    assert not bn.converged_.any()


@pytest.mark.parametrize("M", [Stereographic(2, -0.5), Sphere(2, 2.0)], ids=str)
def test_learnt_curvature_becomes_a_number(M):
    layer = torch_layers.GyroBN(M, learn_curvature=True, **DOUBLE)
    layer(torch.as_tensor(more(M, ())))
    with torch.no_grad():
        layer.raw_curvature += 0.4  # the running mean is still that of the curvature before
        layer.bias += 0.2
    K = layer.manifold.curvature.item()
    bn = layer.eval().to_estimator()
    assert bn.manifold_ == bn.manifold == type(M)(2, K)
    assert type(bn.manifold_.curvature) is float
    x = bn.manifold_.random(6, rng=2, spread=0.3)
    assert far(bn.manifold_, bn.transform(x), layer(torch.as_tensor(x))) < 1e-12
    again = torch_layers.GyroBN.from_estimator(bn, learn_curvature=True).eval()
    assert far(bn.manifold_, bn.transform(x), again(torch.as_tensor(x))) < 1e-12
    model = flax_layers.GyroBN(M, learn_curvature=True, param_dtype=jnp.float64)
    model.raw_curvature[...] = jnp.asarray(layer.raw_curvature.item())
    assert model.to_estimator().manifold_.curvature == pytest.approx(K, rel=1e-15)
    other, state = eqx.nn.make_with_state(equinox_layers.GyroBN)(M, learn_curvature=True)
    assert other.to_estimator(state).manifold_ == M


def test_a_layer_that_saw_nothing_is_the_identity():
    M = PoincareBall(2)
    x = more(M, ())
    bn = torch_layers.GyroBN(M, eps=0.0, **DOUBLE).to_estimator()
    np.testing.assert_allclose(bn.transform(x), x, rtol=0, atol=1e-15)
    bn = flax_layers.GyroBN(M, epsilon=0.0, param_dtype=jnp.float64).to_estimator()
    np.testing.assert_allclose(bn.transform(x), x, rtol=0, atol=1e-15)


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


def test_domains_that_were_not_seen_are_left_out_and_labels_are_sorted():
    M = Euclidean(1)
    layer = torch_layers.DomainGyroBN(M, 3, unseen="refit", momentum=None, **DOUBLE)
    layer(torch.as_tensor([[0.0], [2.0], [5.0], [9.0]], **DOUBLE), torch.as_tensor([0, 0, 2, 2]))
    bn = layer.to_estimator(labels=["z", "b", "a"])
    assert bn.domains_.tolist() == ["a", "z"]
    assert bn.mean_[:, 0].tolist() == [7.0, 1.0]
    assert (bn.unseen, bn.adapt_rate) == ("refit", 0.1)
    assert layer.to_estimator().domains_.tolist() == [0, 2]


def test_training_statistics_begin_with_those_of_the_estimator():
    M = Euclidean(1)
    bn = GyroBN(M).fit([[0.0], [2.0], [5.0], [9.0]], domains=[0, 0, 1, 1])
    layer = torch_layers.DomainGyroBN.from_estimator(bn, train_momentum=0.5)
    assert layer.training_mean[:, 0].tolist() == [1.0, 7.0]
    assert layer.training_var.tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", "b"], "labels must be 3, one per domain, got 2"),
        (["a", "b", "a"], "labels must differ"),
    ],
)
def test_labels_that_do_not_fit(labels, words):
    layer = torch_layers.DomainGyroBN(Euclidean(1), 3)
    with pytest.raises(ValueError, match=words):
        layer.to_estimator(labels=labels)
    with pytest.raises(TypeError, match="all integers or all strings"):
        layer.to_estimator(labels=[1, "a", 2])


def test_domains_of_which_none_was_seen():
    with pytest.raises(ValueError, match="no domain was seen"):
        torch_layers.DomainGyroBN(Euclidean(1), 3).to_estimator()


# ---------------------------------------------------------------------- what cannot be converted


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (torch_layers.GyroBN(PoincareBall(2), clamp=3.0), "no clamp.*clamp=3.0"),
        (torch_layers.GyroBN(PoincareBall(2), axis=(0, 1)), "samples along the first axis"),
        (torch_layers.GyroBN(PoincareBall(2), channels=3, axis=1), "along the first.*axis=0"),
        (torch_layers.GyroBN(PoincareBall(2), track_running_stats=False), "without running"),
        (LRBN(PoincareBall(2)), "not those of the baselines"),
        (ManifoldNorm(PoincareBall(2)), "not those of the baselines"),
        (flax_layers.GyroBN(PoincareBall(2), clamp=3.0), "no clamp"),
    ],
)
def test_layers_that_an_estimator_cannot_express(layer, words):
    with pytest.raises(ValueError, match=words):
        layer.to_estimator()


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
    assert torch_layers.GyroBN.from_estimator(bn).to_estimator().manifold_ == Own(2)


def test_a_bias_too_far_away_is_refused():
    """At the edge of the ball, where coordinates do not lead back to the same point."""
    bn = fitted(PoincareBall(2), ()).set_params(bias=[1.0 - 2.0**-53, 0.0])
    with pytest.raises(ValueError, match="too far away: a layer cannot learn it"):
        torch_layers.GyroBN.from_estimator(bn)


@pytest.mark.parametrize("M", [Sphere(2), SPD(3)], ids=str)
def test_bias_of_a_layer_in_float32_is_a_point_of_float64(M):
    layer = torch_layers.GyroBN(M)
    with torch.no_grad():
        layer.bias += 0.3
    bias = layer.to_estimator().bias
    assert bias.dtype == np.float64
    assert bool(M.contains(bias))
