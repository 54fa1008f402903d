"""Samples of a new domain one by one: a running barycentre with a prior from the known domains."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from test_domains import GEOMETRIES, host, samples

from gyrobn import (
    SPD,
    Chunks,
    Euclidean,
    GyroBN,
    Klein,
    PoincareBall,
    Product,
    Sphere,
    Stats,
    batch_stats,
    frechet,
    normalize,
)
from gyrobn.normalization.online import OnlineStats, online_stats
from gyrobn.torch import DomainGyroBN

M = PoincareBall(2)
KNOWN = np.asarray(["a", "b"] * 4)
NEW = np.asarray(["z", "b", "y", "z", "z", "a", "y", "z"])


def fitted(manifold=M, channels=(), **options):
    """Return an estimator that knows a and b, and samples with the labels NEW."""
    bn = GyroBN(manifold, unseen="online", **options)
    bn.fit(samples(manifold, KNOWN, channels), domains=KNOWN)
    return bn, samples(manifold, NEW, channels)


def one_by_one(bn, X, labels=NEW):
    return np.concatenate([bn.transform(X[i : i + 1], labels[i : i + 1]) for i in range(len(X))])


def same_state(first, second):
    assert first.keys() == second.keys()
    for label, state in first.items():
        assert state.count == second[label].count
        np.testing.assert_array_equal(state.mean, second[label].mean)
        np.testing.assert_array_equal(state.var, second[label].var)


# ---------------------------------------------------------------------- in any portions


@pytest.mark.parametrize("manifold", GEOMETRIES)
def test_one_by_one_is_the_batch_of_the_same_order(manifold):
    bn, X = fitted(manifold, bias=manifold.random(rng=7, spread=0.3), scale=0.4)
    Y = one_by_one(bn, X)
    each, known = bn.online_, bn.transform(X[1:2], ["b"])
    assert {label: state.count for label, state in each.items()} == {"y": 2, "z": 4}
    bn.reset_online()
    assert bn.online_ == {}
    np.testing.assert_allclose(bn.transform(X, NEW), Y, rtol=1e-11, atol=1e-13)
    same_state(bn.online_, each)
    np.testing.assert_allclose(Y[1:2], known, rtol=1e-11, atol=1e-13)
    # the last sample has been seen when it is normalized, and the first did not see the last
    stats = bn.online_["z"].stats
    expected = normalize(manifold, X[7:], stats, bn.bias, 0.4)
    np.testing.assert_allclose(Y[7:], expected, rtol=1e-11, atol=1e-13)
    alone = bn.reset_online().transform(X[:1], ["z"])
    np.testing.assert_allclose(Y[:1], alone, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("manifold", GEOMETRIES)
def test_a_file_keeps_what_is_known(manifold, tmp_path):
    """Some samples, save, load, the others: the numbers of one estimator that saw all of them."""
    whole, X = fitted(manifold, channels=(2,))
    parts = fitted(manifold, channels=(2,))[0]
    Y = whole.transform(X, NEW)
    first = one_by_one(parts, X[:3], NEW[:3])
    parts.save(tmp_path / "model")
    again = GyroBN.load(tmp_path / "model")
    same_state(again.online_, parts.online_)
    rest = one_by_one(again, X[3:], NEW[3:])
    np.testing.assert_allclose(np.concatenate([first, rest]), Y, rtol=1e-11, atol=1e-13)
    same_state(again.online_, whole.online_)
    single = GyroBN.load(tmp_path / "model", like=np.zeros((), np.float32))
    assert single.online_["z"].mean.dtype in (np.float32, np.complex64)
    tensors = GyroBN.load(tmp_path / "model", like=torch.zeros((), dtype=torch.float64))
    Z = tensors.transform(torch.as_tensor(X[3:]), NEW[3:])
    np.testing.assert_allclose(Z, rest, rtol=1e-11, atol=1e-13)


def test_a_damaged_state_is_refused(tmp_path):
    bn, X = fitted()
    bn.transform(X, NEW)
    z = bn.online_["z"]
    for label, changed, text in (
        ("z", {"count": 0}, "online_count must be a positive integer"),
        ("z", {"mean": np.full(2, 0.8)}, "online_mean is off PoincareBall"),
        ("z", {"mean": np.zeros(3)}, "online_mean must be an array"),
        ("z", {"var": np.asarray(np.nan)}, "online_var must be finite"),
        ("a", {}, "labels other than domains"),
        (1, {}, "labels of the same kind"),
    ):
        bn.online_ = {label: replace(z, **changed)}
        with pytest.raises(ValueError, match=text):
            bn.save(tmp_path / "model")


def test_chunks_are_one_call_after_the_other():
    bn, X = fitted(channels=(2,))
    Y, after = bn.transform(X, NEW), bn.online_
    bn.reset_online()
    chunks = bn.transform_chunks(Chunks(X, size=3), NEW)
    np.testing.assert_allclose(next(chunks), Y[:3], rtol=1e-12)
    assert bn.online_["z"].count == 1
    np.testing.assert_allclose(np.concatenate(list(chunks)), Y[3:], rtol=1e-12)
    same_state(bn.online_, after)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_libraries(library):
    import jax

    with jax.enable_x64(True):
        to = {"torch": torch.asarray, "jax": jax.numpy.asarray}[library]
        manifold = Euclidean(2) if library == "jax" else M  # JAX compiles every operation
        bn, X = fitted(manifold)
        other = clone(bn).fit(to(samples(manifold, KNOWN)), domains=KNOWN)
        Z = other.transform(to(X), NEW)
        assert type(Z) is type(to(X)) or library == "jax"
        np.testing.assert_allclose(host(Z), bn.transform(X, NEW), rtol=1e-11, atol=1e-12)
        if library == "jax":
            with pytest.raises(TypeError, match="in a traced function samples have no values"):
                jax.jit(lambda x: other.transform(x, NEW))(to(X))
            assert other.online_["z"].count == 4


def test_other_dtypes_keep_the_precision_of_the_model():
    for manifold in (M, SPD(2), Sphere(2)):
        bn, X = fitted(manifold)
        Y = bn.transform(X.astype(np.float32), NEW)
        assert Y.dtype in (np.float32, np.complex64)
        assert bn.online_["z"].mean.dtype == bn.online_["z"].var.dtype == np.float64
        assert manifold.contains(bn.online_["z"].mean)
        np.testing.assert_allclose(Y, bn.reset_online().transform(X, NEW), rtol=2e-4, atol=2e-5)


# ---------------------------------------------------------------------- what it converges to


@pytest.mark.parametrize("strength", [0.0, 1.0, 4.0, 2.5])
@pytest.mark.parametrize(
    "manifold", [Euclidean(3), SPD(2, metric="log_cholesky"), Product(Euclidean(2), Euclidean(1))]
)
def test_on_flat_spaces_it_is_exact(manifold, strength):
    bn, _ = fitted(manifold, prior_strength=strength)
    x = manifold.random(9, rng=3, spread=0.7)
    bn.transform(x, ["z"] * 9)
    centre = manifold.to_normal(bn.mean_).mean(axis=0)
    c = manifold.to_normal(x)
    mean = (strength * centre + c.sum(axis=0)) / (strength + 9)
    np.testing.assert_allclose(manifold.to_normal(bn.online_["z"].mean), mean, atol=1e-12)
    own = manifold.squeeze_blocks(manifold.by_block((c - mean) ** 2)).sum(axis=0)
    apart = manifold.squeeze_blocks(manifold.by_block((centre - mean) ** 2))
    var = (strength * (bn.var_.mean(axis=0) + apart) + own) / (strength + 9)
    np.testing.assert_allclose(bn.online_["z"].var, var, rtol=1e-11)


@pytest.mark.parametrize("manifold", [M, SPD(2), Sphere(2), Klein(3)], ids=str)
def test_many_samples_lead_to_their_statistics(manifold):
    x = manifold.add(manifold.random(rng=1, spread=0.5), manifold.random(20, rng=2, spread=0.6))
    mean, var = batch_stats(manifold, x)
    state = OnlineStats(0, manifold.random(rng=5, spread=1.0), 3.0 * var)
    off = []
    for turns in (4, 32):  # 80 samples, then 720 in all
        state = online_stats(manifold, state, np.concatenate([x] * turns), 4.0)[-1]
        off.append((manifold.dist(state.mean, mean), abs(state.var - var) / var))
    (d0, v0), (d1, v1) = off
    assert state.count == 720
    assert d1 < 0.2 * d0 < 0.1  # the prior's share falls from 4/84 to 4/724
    assert v1 < 0.2 * v0 < 0.1


def test_the_prior_counts_as_its_strength_says():
    bn, X = fitted(eps=0.0)
    prior = Stats(frechet(M, bn.mean_).mean, bn.var_.mean())
    assert bn.prior_strength == 4.0
    bn.transform(X[:1], ["z"])
    mean, var = bn.online_["z"].stats
    np.testing.assert_allclose(mean, M.geodesic(prior.mean, X[0], 1 / 5), rtol=1e-12)
    before, after = M.dist(prior.mean, X[0]), M.dist(mean, X[0])
    np.testing.assert_allclose(var, 0.8 * prior.var + 0.2 * before * after, rtol=1e-12)
    # a prior that counts infinitely is the average domain, one that counts nothing is left at once
    Y = bn.set_params(prior_strength=1e12).reset_online().transform(X, ["z"] * 8)
    np.testing.assert_allclose(Y, normalize(M, X, prior, eps=0.0), rtol=1e-9)
    Y = bn.set_params(prior_strength=0, eps=1e-5).reset_online().transform(X[:1], ["z"])
    np.testing.assert_allclose(Y, 0.0, atol=1e-12)
    assert bn.online_["z"].var == 0.0


# ---------------------------------------------------------------------- what is kept


def test_the_state_lives_in_the_estimator_and_in_pickles(tmp_path):
    bn, X = fitted(prior_strength=2.0)
    bn.transform(X, NEW)
    same = pickle.loads(pickle.dumps(bn))
    np.testing.assert_array_equal(same.transform(X, NEW), bn.transform(X, NEW))
    assert same.online_["z"].count == 8
    assert not hasattr(clone(bn), "online_")
    bn.save(tmp_path / "model")
    loaded = GyroBN.load(tmp_path / "model")
    assert (loaded.unseen, loaded.prior_strength) == ("online", 2.0)
    same_state(loaded.online_, bn.online_)
    np.testing.assert_array_equal(loaded.transform(X, NEW), bn.transform(X, NEW))
    bn.reset_online().save(tmp_path / "model")
    loaded = GyroBN.load(tmp_path / "model")
    assert loaded.online_ == {}
    np.testing.assert_array_equal(loaded.transform(X, NEW), bn.transform(X, NEW))
    for bad in (-0.1, np.nan, True, "4", None):
        with pytest.raises(ValueError, match="prior_strength must be"):
            clone(bn).set_params(prior_strength=bad).fit(X, domains=KNOWN)
    bn.partial_fit(X, domains=NEW)  # y and z are known now
    assert bn.online_ == {}
    bn.transform(X, NEW)
    assert bn.online_ == {}
    bn.transform(X[:1], ["x"])
    assert bn.fit(X, domains=["a"] * 8).online_ == {}


def test_a_call_that_fails_leaves_the_state():
    bn, X = fitted(Sphere(2))
    bn.transform(X, NEW)
    e = np.asarray([0.0, 1.0, 0.0])  # rounding errors would lead from other antipodal points
    bn.online_["y"] = replace(bn.online_["y"], mean=e)
    before = bn.online_
    opposite = np.stack([X[0], -e])
    for bad, labels in ((np.asarray([[9.0, 0.0, 0.0]]), ["z"]), (opposite, ["z", "y"])):
        with pytest.raises(ValueError, match=r"index|no point"):
            bn.transform(bad, labels)
    same_state(bn.online_, before)


def test_in_a_pipeline_trials_come_one_by_one():
    X, y = samples(M, KNOWN), np.arange(8) % 2
    with sklearn.config_context(enable_metadata_routing=True):
        bn = GyroBN(M, unseen="online")
        bn.set_fit_request(domains=True).set_transform_request(domains=True)
        pipe = make_pipeline(bn, KNeighborsClassifier(1)).fit(X, y, domains=KNOWN)
        new = samples(M, NEW)
        each = [pipe.predict(new[i : i + 1], domains=["z"])[0] for i in range(8)]
        assert pipe[0].online_["z"].count == 8
        pipe[0].reset_online()
        np.testing.assert_array_equal(each, pipe.predict(new, domains=["z"] * 8))


def test_what_cannot_be_done_is_said():
    import dask.array as da

    bn, X = fitted()
    with pytest.raises(ValueError, match=r"domain 'z' .* the statistics .* are not kept"):
        bn.inverse_transform(X, ["z"] * 8)
    with pytest.raises(ValueError, match=r"'z' .* unseen='online' follows the order of the samp"):
        bn.transform(da.from_array(X), ["z"] * 8)
    lazy = bn.transform(da.from_array(X), KNOWN)
    np.testing.assert_allclose(lazy.compute(), bn.transform(X, KNOWN), rtol=1e-12)
    with pytest.raises(ValueError, match="or 'online' for samples that come one by one"):
        bn.set_params(unseen="error").transform(X, ["z"] * 8)


# ---------------------------------------------------------------------- the layer


def trained(manifold=M, **options):
    layer = DomainGyroBN(manifold, 4, unseen="online", dtype=torch.float64, **options)
    x = torch.asarray(samples(manifold, KNOWN))
    layer(x, torch.asarray(np.unique(KNOWN, return_inverse=True)[1]))
    return layer.eval(), torch.asarray(samples(manifold, NEW))


@pytest.mark.parametrize("manifold", [M, SPD(2), Product(M, Sphere(2))], ids=str)
def test_the_layer_does_what_the_estimator_does(manifold):
    """The layer knows 0 and 1; 2 and 3 are new. A file of the layer's statistics is not needed."""
    layer, x = trained(manifold, prior_strength=2.0, momentum=1.0)
    d = torch.asarray([3, 1, 2, 3, 3, 0, 2, 3])
    y = layer(x, d).detach()
    bn = GyroBN(manifold, unseen="online", prior_strength=2.0)
    bn.fit(samples(manifold, KNOWN), domains=np.unique(KNOWN, return_inverse=True)[1])
    np.testing.assert_allclose(bn.mean_, layer.running_mean[:2], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(bn.transform(x.numpy(), d.numpy()), y, rtol=1e-9, atol=1e-11)
    after = layer.online
    layer.reset_online()
    each = torch.cat([layer(x[i : i + 1], d[i : i + 1]) for i in range(8)]).detach()
    torch.testing.assert_close(each, y, rtol=1e-11, atol=1e-12)
    same_state(layer.online, after)
    again = DomainGyroBN.from_estimator(bn)
    assert (again.unseen, again.prior_strength) == ("online", 2.0)


def test_the_layer_holds_its_state_outside_the_buffers():
    layer, x = trained()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    x.requires_grad_(True)
    new = torch.full((8,), 2)
    (slope,) = torch.autograd.grad(layer(x, new).sum(), x)
    assert not layer.online[2].mean.requires_grad
    stats = layer.online[2].stats
    last = x[7:].detach().requires_grad_(True)
    y = normalize(M, last, stats, M.from_normal(layer.bias.detach()), layer.scale.detach())
    torch.testing.assert_close(slope[7:], torch.autograd.grad(y.sum(), last)[0])
    now = layer.state_dict()
    assert now.keys() == before.keys()
    assert all(torch.equal(now[name], before[name]) for name in before)
    layer.float()(x[:1].detach().float(), new[:1])  # goes on in another precision
    assert layer.online[2].count == 9
    layer.double().train()(x.detach(), new)
    assert layer.online == {}
    layer.eval()(x[:1].detach(), new[:1])  # it is known now
    assert layer.online == {}


def test_what_the_layer_refuses():
    layer, x = trained()
    new = torch.full((8,), 2)
    with pytest.raises(ValueError, match="counts every sample once: leave out the weights"):
        layer(x, new, torch.ones(8))
    layer(x, new)
    bad = torch.cat([x[:1], torch.full_like(x[:1], torch.nan)])
    with pytest.raises(ValueError, match=r"NaN|nan|infinit"):
        layer(bad, new[:2])
    assert layer.online[2].count == 8
    assert bool(layer.online[2].mean.isfinite().all())
    with pytest.raises(ValueError, match=r"domain 2 has one sample .* call layer\.eval\(\)"):
        layer.train()(x[:1], new[:1])
    with pytest.raises(ValueError, match="prior_strength must be a finite number"):
        DomainGyroBN(M, 2, prior_strength=-1.0)
    empty = DomainGyroBN(M, 2, unseen="online", dtype=torch.float64).eval()
    with pytest.raises(ValueError, match="no domain was seen in training"):
        empty(x, torch.zeros(8, dtype=torch.int64))
