"""Files of older versions can be read: those in ``tests/stored``, and those that lack an option.

An option that is new, and has a default, must not make older files and checkpoints unreadable. One
that is unknown says that the file comes from a newer version.
"""

import json
import pickle
import sys
import zipfile
from dataclasses import field, make_dataclass
from pathlib import Path

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from stored import write

import gyrobn
import gyrobn.flax
import gyrobn.torch
import gyrobn.torch.nn
from gyrobn import REGISTRY, SPD, Euclidean, GyroBN, Product, Sphere
from gyrobn.cli import main
from gyrobn.estimator.files import geometry_from_json, geometry_to_json

STORED = Path(__file__).parent / "stored"


def expected(kind):
    with np.load(STORED / f"{kind}_expected.npz") as archive:
        return dict(archive)


# ---------------------------------------------------------------------- stored files


@pytest.mark.parametrize("kind", ["estimator", "product", "coordinates"])
def test_estimators(kind):
    bn, known = GyroBN.load(STORED / f"{kind}.npz"), expected(kind)
    domains = None if bn.domains_ is None else write.WHO
    y = bn.transform(known["x"], domains=domains)
    assert y.dtype == known["y"].dtype
    np.testing.assert_allclose(y, known["y"], atol=1e-5 if y.dtype == np.float32 else 1e-11)
    if kind == "estimator":
        assert bn.manifold_ == SPD(2, "log_euclidean")
        assert (bn.manifold, bn.metric, bn.unseen) == ("spd", "log_euclidean", "online")
        assert bn.online_["Cy"].count == 4
    if kind == "product":
        assert bn.manifold == bn.manifold_ == Product(Sphere(2), Euclidean(2))
        # it was written with an option that is gone, mean="centroid"
        assert (bn.scale, bn.tol) == ("sqrt_dim", 1e-6)


def test_torch_states():
    net, known = write.torch_net(), expected("torch")
    found = net.load_state_dict(torch.load(STORED / "torch.pt", weights_only=True))
    assert not found.missing_keys
    assert not found.unexpected_keys
    given = {name: known[f"x_{name}"] for name in net}
    with torch.no_grad():
        for name, y in write.run_torch(net.eval(), given).items():
            np.testing.assert_allclose(y.numpy(), known[f"y_{name}"], atol=1e-11)
    for M in (SPD(2), Euclidean(2)):  # a state of another geometry is still refused
        other = gyrobn.torch.DomainGyroBN(M, 2, dtype=torch.float64)
        with pytest.raises(RuntimeError, match=r"the state is of a layer on SPD\(n=2, metric='log"):
            other.load_state_dict(net["domains"].state_dict())


def test_flax_states():
    with jax.enable_x64(True):
        layer, known = write.flax_layer(), expected("flax")
        state = nnx.state(layer)
        content = (STORED / "flax.msgpack").read_bytes()
        pure = jax.tree.map(jnp.asarray, flax.serialization.msgpack_restore(content))
        nnx.replace_by_pure_dict(state, pure)
        nnx.update(layer, state)
        y = layer(jnp.asarray(known["x"]), use_running_average=True)
        np.testing.assert_allclose(y, known["y"], atol=1e-11)


def test_equinox_files():
    with jax.enable_x64(True), (STORED / "equinox.eqx").open("rb") as file:
        manifold = geometry_from_json(json.loads(file.readline()))
        layer, state = eqx.tree_deserialise_leaves(file, write.equinox_layer(manifold))
        known = expected("equinox")
        y, _ = layer(jnp.asarray(known["x"]), state, inference=True)
        np.testing.assert_allclose(y, known["y"], atol=1e-11)


# ---------------------------------------------------------------------- a new option

OPTIONS = {
    "number": field(default=1.5),
    "word": field(default="plain", metadata={"choices": ("plain", "other")}),
}
OTHER = {"number": 2.5, "word": "other"}


def geometry(*options):
    """Return a geometry of one's own, in an older version (no options) or in a newer one."""
    new = [(name, type(OPTIONS[name].default), OPTIONS[name]) for name in options]
    cls = make_dataclass("Own", new, bases=(Euclidean,), frozen=True)
    cls.__module__ = __name__
    return cls


OLD = geometry()


@pytest.fixture(params=["registered", "own"])
def version(request, monkeypatch):
    """A function that makes a version of the geometry the installed one."""

    def install(cls):
        if request.param == "registered":
            monkeypatch.setitem(REGISTRY, "own", cls)
        monkeypatch.setattr(sys.modules[__name__], "Own", cls, raising=False)
        return cls

    return install


def around(wrap, M):
    return Product(Sphere(2), M) if wrap == "product" else M


@pytest.fixture
def registry(monkeypatch):
    """A function that makes a version of the geometry the one that files mean."""
    return lambda cls: monkeypatch.setitem(REGISTRY, "own", cls) or cls


@pytest.mark.parametrize("options", [("number",), ("word",), ("number", "word")])
@pytest.mark.parametrize("wrap", ["alone", "product"])
def test_estimators_without_a_new_option(registry, options, wrap, tmp_path, capsys):
    old, path = around(wrap, registry(OLD)(2)), tmp_path / "model.npz"
    X = old.random(20, rng=0, spread=0.4)
    bn = GyroBN(old, scale=0.5).fit(X)
    bn.save(path)
    new = registry(geometry(*options))
    again = GyroBN.load(path)
    assert again.manifold_ == again.manifold == around(wrap, new(2))
    np.testing.assert_allclose(again.transform(X), bn.transform(X), atol=1e-13)
    np.save(tmp_path / "x.npy", X)
    main(["transform", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), "--model", str(path)])
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), bn.transform(X), atol=1e-13)
    # the other way around: the older version says what the file needs
    GyroBN(around(wrap, new(2, **{options[0]: OTHER[options[0]]}))).fit(X).save(path)
    assert GyroBN.load(path).manifold_ != around(wrap, new(2))
    registry(OLD)
    message = r"was written by a newer version of gyrobn: the geometry 'own' has \['.*upgrade"
    with pytest.raises(ValueError, match=message):
        GyroBN.load(path)


@pytest.mark.parametrize("wrap", ["alone", "product"])
def test_torch_states_without_a_new_option(version, wrap):
    old = around(wrap, version(OLD)(2))
    x = torch.as_tensor(old.random(20, rng=0, spread=0.4))
    layer = gyrobn.torch.GyroBN(old, dtype=torch.float64)
    layer(x)
    linear = gyrobn.torch.nn.GyroLinear(Euclidean(3), old, dtype=torch.float64)
    state, weights = layer.state_dict(), linear.state_dict()
    new = version(geometry("number", "word"))
    again = gyrobn.torch.GyroBN(around(wrap, new(2)), dtype=torch.float64)
    again.load_state_dict(state)
    torch.testing.assert_close(again.eval()(x), layer.eval()(x))
    gyrobn.torch.nn.GyroLinear(
        Euclidean(3), around(wrap, new(2)), dtype=torch.float64
    ).load_state_dict(weights)
    # the default is part of the geometry: a layer with another value is another layer
    other = gyrobn.torch.GyroBN(around(wrap, new(2, number=2.5)), dtype=torch.float64)
    with pytest.raises(RuntimeError, match="the state is of a layer on"):
        other.load_state_dict(state)
    newer = other.state_dict()
    version(OLD)
    with pytest.raises(RuntimeError, match=r"the state was written by a newer version of gyrobn"):
        gyrobn.torch.GyroBN(old, dtype=torch.float64).load_state_dict(newer)


def test_flax_states_without_a_new_option(version):
    old = version(OLD)(2)
    layer, x = gyrobn.flax.GyroBN(old), jnp.asarray(old.random(20, rng=0))
    layer(x)
    pure, whole = nnx.to_pure_dict(nnx.state(layer)), pickle.dumps(nnx.state(layer))
    want = layer(x, use_running_average=True)
    new = version(geometry("number", "word"))
    for state in (pickle.loads(whole), pure):
        again = gyrobn.flax.GyroBN(new(2))
        own = nnx.state(again)
        nnx.replace_by_pure_dict(own, state) if state is pure else None
        nnx.update(again, own if state is pure else state)
        np.testing.assert_allclose(again(x, use_running_average=True), want, atol=1e-6)


def test_headers_of_equinox_without_a_new_option(registry):
    text = json.dumps(geometry_to_json(registry(OLD)(2)))
    new = registry(geometry("number", "word"))
    assert geometry_from_json(json.loads(text)) == new(2)
    newer = json.dumps(geometry_to_json(new(2, number=2.5)))
    registry(OLD)
    with pytest.raises(ValueError, match=r"by a newer version of gyrobn: .*\['number', 'word'\]"):
        geometry_from_json(json.loads(newer))


@pytest.mark.parametrize("M", [M for cls in REGISTRY.values() for M in cls.examples()], ids=repr)
def test_every_option_may_be_missing(M):
    """Sizes may not; an option takes its default."""
    whole = geometry_to_json(M)
    for name, option in type(M).options().items():
        part = {key: value for key, value in whole.items() if key != name}
        assert getattr(geometry_from_json(part), name) == option.default
    for name in whole.keys() - type(M).options().keys() - {"name"}:
        part = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(ValueError, match=f"has no .*{name}"):
            geometry_from_json(part)
    with pytest.raises(ValueError, match="written by a newer version of gyrobn"):
        geometry_from_json(whole | {"more": 1})


# ---------------------------------------------------------------------- the estimator's own options


def changed(path, **more):
    """Add entries to the header of a model, as a newer version would."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members["header.json"]) | more
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"header.json": json.dumps(header)}).items():
            archive.writestr(name, content)


def test_unknown_parameters_are_those_of_a_newer_version(tmp_path):
    path = tmp_path / "model.npz"
    GyroBN().fit([[1.0], [2.0]]).save(path)
    changed(path, gyrobn="9.1", later=3)
    message = r"newer version of gyrobn \('9\.1'\): its header has \['later'\], .* upgrade gyrobn"
    with pytest.raises(ValueError, match=message):
        GyroBN.load(path)


def test_pickles_without_a_new_parameter():
    bn = GyroBN(scale=0.5).fit([[1.0], [2.0]])
    for name in ("output", "prior_strength"):
        older = pickle.loads(pickle.dumps(bn))
        delattr(older, name)
        again = pickle.loads(pickle.dumps(older))
        assert getattr(again, name) == getattr(GyroBN(), name)
        np.testing.assert_array_equal(again.transform([[1.0]]), bn.transform([[1.0]]))
