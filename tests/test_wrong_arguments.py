"""Arguments of the wrong kind, in layers of all frameworks and in functions: the error names them.

Samples off the manifold are in test_layer_states.py and test_bad_matrices.py.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import FIRST, assert_close

import gyrobn
import gyrobn.equinox
import gyrobn.flax
import gyrobn.torch
from benchmarks.experiments.layers import GrassmannTranslation, PoincareLinear
from gyrobn import PoincareBall, Product, Stats
from gyrobn.torch import DomainGyroBN

BALL = PoincareBall(2)
X = BALL.random(8, rng=0)
STATS = Stats(X[0], np.asarray(0.5))

# ------------------------------------------------------------------- no geometry

PACKAGES = (gyrobn.torch, gyrobn.flax, gyrobn.equinox)
LAYERS = {
    f"{package.__name__}.{name}": (getattr(package, name), rest)
    for package in PACKAGES
    for name, rest in {
        "GyroBN": (),
        "DomainGyroBN": (2,),
        "GyroLayerNorm": (),
        "GyroInstanceNorm": (3,),
        "GyroGroupNorm": (2, 4),
        "GyroRMSNorm": (),
    }.items()
    if hasattr(package, name)
}
FUNCTIONS = {
    "batch_stats": lambda M: gyrobn.batch_stats(M, X),
    "convert to": lambda M: gyrobn.convert(BALL, M, X),
    "convert from": lambda M: gyrobn.convert(M, BALL, X),
    "denormalize": lambda M: gyrobn.denormalize(M, X, STATS),
    "frechet": lambda M: gyrobn.frechet(M, X),
    "frechet of chunks": lambda M: gyrobn.frechet(M, gyrobn.Chunks(X, 4)),
    "frechet_mean": lambda M: gyrobn.frechet_mean(M, X),
    "frechet_variance": lambda M: gyrobn.frechet_variance(M, X),
    "frechet_variance from": lambda M: gyrobn.frechet_variance(M, X, X[0]),
    "merge_stats": lambda M: gyrobn.merge_stats(M, STATS, STATS, 0.5),
    "normalize": lambda M: gyrobn.normalize(M, X, STATS),
    "normalize_batch": lambda M: gyrobn.normalize_batch(M, X),
    "normalize_batch to": lambda M: gyrobn.normalize_batch(M, X, bias=X[0]),
    "update_stats": lambda M: gyrobn.update_stats(M, STATS, STATS),
    "PoincareLinear": lambda M: PoincareLinear(M, 3),
    "GrassmannTranslation": lambda M: GrassmannTranslation(M, 3),
}
NO_GEOMETRY = {
    "number": (4, r"got 4$"),
    "name": ("poincare_ball", r"got 'poincare_ball'$"),
    "class": (PoincareBall, r"the class PoincareBall: give it its size, .* gyrobn.PoincareBall\("),
    "array": (X, r"got an object of type ndarray$"),
    "nothing": (None, r"got None$"),
}


@pytest.mark.parametrize("kind", NO_GEOMETRY)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_ask_for_a_geometry(name, kind):
    make, rest = LAYERS[name]
    value, words = NO_GEOMETRY[kind]
    with pytest.raises(TypeError, match=rf"manifold must be a geometry.* {words}"):
        make(value, *rest)


@pytest.mark.parametrize("kind", NO_GEOMETRY)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_ask_for_a_geometry(name, kind):
    value, words = NO_GEOMETRY[kind]
    with pytest.raises(TypeError, match=rf"manifold must be a geometry.* {words}"):
        FUNCTIONS[name](value)


def test_models_without_curvature_have_no_isometry():
    with pytest.raises(TypeError, match=r"models of constant curvature, got Euclidean\(n=2\)"):
        gyrobn.convert(gyrobn.Euclidean(2), BALL, X)


# ---------------------------------------------------------------------- weights


def by_torch(x, w):
    layer = gyrobn.torch.GyroBN(BALL, x.shape[1:-1], dtype=torch.float64)
    return layer, torch.as_tensor(x), torch.as_tensor(w)


def train(x, w):
    layer, x, w = by_torch(x, w)
    return layer(x, w)


def evaluate(x, w):
    layer, x, w = by_torch(x, w)
    return layer.eval()(x, w)


def by_domain(x, w):
    layer = DomainGyroBN(BALL, 2, x.shape[1:-1], dtype=torch.float64)
    return layer(torch.as_tensor(x), torch.arange(len(x)) % 2, torch.as_tensor(w))


def by_flax(x, w):
    layer = gyrobn.flax.GyroBN(BALL, x.shape[1:-1], steps=1, param_dtype=jnp.float64)
    return layer(jnp.asarray(x), weights=jnp.asarray(w))


def by_equinox(x, w):
    make = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)
    layer, state = make(BALL, x.shape[1:-1], steps=1, dtype=jnp.float64)
    return layer(jnp.asarray(x), state, weights=jnp.asarray(w))


def by_function(x, w):
    return gyrobn.normalize_batch(BALL, x, w)


@pytest.mark.parametrize("first", [0.0, 1.0], ids=["zero", "one"])  # weights of zero are looked at
@pytest.mark.parametrize(
    ("batch", "shape"),
    [((8,), (5,)), ((8,), (1,)), ((8,), ()), ((8,), (8, 1)), ((8, 3), (3,)), ((8, 3), (8, 2))],
    ids=str,
)
@pytest.mark.parametrize("call", [train, evaluate, by_domain, by_flax, by_equinox, by_function])
def test_weights_of_a_wrong_shape(call, batch, shape, first):
    w = np.ones(shape)
    w[(0,) * w.ndim] = first
    with pytest.raises(ValueError, match=r"weights .*shape.* got \("):
        call(BALL.random(*batch, rng=0), w)


@pytest.mark.parametrize("call", [train, evaluate, by_domain, by_flax, by_equinox, by_function])
def test_weights_per_sample_or_per_sample_and_channel(call):
    for shape in ((8,), (8, 3)):
        call(BALL.random(8, 3, rng=0, spread=0.3), np.ones(shape))


def test_weights_that_are_no_array():
    layer, x, _ = by_torch(X, 0.0)
    with pytest.raises(TypeError, match=r"Array API standard, got builtins.list: convert it"):
        layer(x, [1.0] * 8)


# ---------------------------------------------------------------------- domains


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool], ids=str)
def test_domains_are_integers(dtype, mode):
    layer = DomainGyroBN(BALL, 2, dtype=torch.float64)
    domains, x = torch.arange(8) % 2, torch.as_tensor(X)
    layer(x, domains)
    with pytest.raises(TypeError, match=rf"integers from 0 to 1, got {dtype}: .*domains.long\(\)"):
        getattr(layer, mode)()(x, domains.to(dtype))


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
def test_domains_of_every_integer_dtype(dtype):
    domains, x = torch.arange(8) % 2, torch.as_tensor(X)
    layers = [DomainGyroBN(BALL, 2, dtype=torch.float64) for _ in range(2)]
    assert torch.equal(layers[0](x, domains), layers[1](x, domains.to(dtype)))


@pytest.mark.parametrize("unseen", ["error", "refit", "adapt", "online"])
def test_one_sample_of_a_domain_in_training(unseen):
    """The error names the domain, and the layer has learnt nothing, of other domains either."""
    layer = DomainGyroBN(BALL, 3, unseen=unseen, dtype=torch.float64)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    words = r"domain 1 has one sample in this batch.* at least two .*larger batches"
    with pytest.raises(ValueError, match=words):
        layer(torch.as_tensor(X), torch.tensor([0, 0, 0, 1, 2, 2, 2, 2]))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0.0, atol=0.0)


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_a_bad_sample_of_a_domain_in_training():
    layer = DomainGyroBN(BALL, 2, dtype=torch.float64, check_input=False)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    x = torch.as_tensor(X).clone()
    x[6] = torch.nan
    with pytest.raises(ValueError, match="index 6"):
        layer(x, torch.arange(8) // 4)
    torch.testing.assert_close(layer.state_dict(), before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("unseen", ["refit", "adapt"])
def test_one_sample_of_a_new_domain(unseen):
    layer = DomainGyroBN(BALL, 3, unseen=unseen, dtype=torch.float64)
    x = torch.as_tensor(X)
    layer(x, torch.arange(8) % 2)
    words = rf"domain 2 was not seen .*one sample.* unseen='{unseen}' needs at least two.*'online'"
    with pytest.raises(ValueError, match=words):
        layer.eval()(x[:3], torch.tensor([0, 2, 1]))
    assert layer(x[:3], torch.tensor([0, 1, 1])).shape == (3, 2)  # those that were seen need no two


# ---------------------------------------------------------------------- a variance as a number


@pytest.mark.parametrize("M", [*FIRST, Product(BALL, PoincareBall(2))], ids=repr)
def test_a_variance_may_be_a_plain_number(M, eager):
    x = M.random(5, 3, like=eager.like, spread=0.3)
    mean, shape = x[0, ...], (3, *M.block_shape)
    number = Stats(mean, 0.8)
    array = Stats(mean, eager.array(np.full(shape, 0.8)))
    other = Stats(x[1, ...], eager.array(np.full(shape, 0.3)))
    for function in (gyrobn.normalize, gyrobn.denormalize):
        assert_close(function(M, x, number), function(M, x, array), 0.0)
    for function in (gyrobn.update_stats, gyrobn.merge_stats):
        for given, full in (((number, other), (array, other)), ((other, number), (other, array))):
            for a, b in zip(function(M, *given, 0.25), function(M, *full, 0.25), strict=True):
                assert_close(a, b, 0.0)
    with pytest.raises(ValueError, match="variance must be a finite number of at least 0, got -1"):
        gyrobn.normalize(M, x, Stats(mean, -1.0))


def test_a_variance_as_a_number_under_jax():
    x = jnp.asarray(X)
    y = gyrobn.normalize(BALL, x, Stats(x[0], 0.8))
    np.testing.assert_allclose(y, gyrobn.normalize(BALL, X, Stats(X[0], np.asarray(0.8))))
