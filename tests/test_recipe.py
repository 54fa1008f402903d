"""The recipe of CONTRIBUTING holds: a geometry defined here takes every road of the package.

It has an integer field that no geometry of the package has, and an option of its own.
"""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import numpy as np
import pytest
import test_laws
import torch
from flax import nnx

import gyrobn
import gyrobn.equinox
import gyrobn.flax
import gyrobn.plot
import gyrobn.torch
from gyrobn import GyroBN, frechet, normalize_batch
from gyrobn.cli import main
from gyrobn.estimator.validation import GEOMETRY
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import zeros
from gyrobn.numerics.hessian import flat_hessian


@dataclass(frozen=True)
class Ratios(GyroSpace):
    """Positive numbers, x ⊕ y = xy, whose distances are m times those of their logarithms."""

    n: int
    m: int
    base: str = field(default="natural", metadata={"choices": ("natural", "two")})

    @property
    def point_shape(self):
        return (self.n,)

    @property
    def dim(self):
        return self.n

    @classmethod
    def for_shape(cls, shape):
        return cls(shape[-1], 1)

    @classmethod
    def examples(cls):
        return cls(2, 3), cls(5, 1, "two")

    @property
    def unit(self):
        return self.m * (1.0 if self.base == "natural" else 1.0 / np.log(2.0))

    def origin(self, like):
        return zeros(self.n, like) + 1.0

    def add(self, x, y):
        self._namespace(x, y)
        return x * y

    def neg(self, x):
        self._namespace(x)
        return 1.0 / x

    def to_normal(self, x):
        return float(self.unit) * self._namespace(x).log(x)

    def from_normal(self, c):
        return self._namespace(c).exp(c / float(self.unit))

    def push(self, x, c):
        return x * c / float(self.unit)

    def pull(self, x, v):
        return v / x * float(self.unit)

    def project(self, x):
        xp = self._namespace(x)
        return xp.where(x <= 0, xp.finfo(x.dtype).eps, x)

    def violation(self, x):
        xp = self._namespace(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        return xp.where(finite, xp.max(xp.where(x > 0, 0.0, 1.0 - x), axis=-1), xp.inf)

    def hessian(self, c, weights):
        return flat_hessian(weights)


@pytest.fixture(params=Ratios.examples(), ids=repr)
def M(request):
    return request.param


xyz, near = test_laws.xyz, test_laws.near


class TestLaws(test_laws.TestGyrogroup):
    pass


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(gyrobn.REGISTRY, "ratios", Ratios)


@pytest.fixture
def x():
    return np.random.default_rng(0).lognormal(1.0, 0.4, (60, 2))


def test_fields_are_checked():
    with pytest.raises(ValueError, match="m of Ratios must be a positive integer, got 0"):
        Ratios(2, 0)
    with pytest.raises(ValueError, match=r"base of Ratios must be .*got 'tow': did you mean 'two'"):
        Ratios(2, 1, "tow")


def test_estimator_and_file(registered, x, tmp_path):
    for manifold in (Ratios(2, 3), Ratios(2, 1, "two"), "ratios"):
        bn = GyroBN(manifold, scale=0.5).fit(x)
        y = bn.transform(x)
        assert abs(frechet(bn.manifold_, y).mean - 1.0).max() < 1e-12
        bn.save(tmp_path / "model.npz")
        again = GyroBN.load(tmp_path / "model.npz")
        assert again.manifold_ == bn.manifold_
        np.testing.assert_array_equal(again.transform(x), y)


def test_command_line(registered, x, tmp_path, capsys):
    np.save(tmp_path / "x.npy", x)
    x_file, model, y_file = (str(tmp_path / name) for name in ("x.npy", "model.npz", "y.npy"))
    assert main(["fit", x_file, model, "--manifold", "ratios", "--base", "two"]) == 0
    assert main(["transform", x_file, y_file, "--model", model]) == 0
    expected = GyroBN(Ratios(2, 1, "two")).fit_transform(x)
    np.testing.assert_allclose(np.load(y_file), expected, rtol=1e-12)
    assert main(["inspect", x_file, "--manifold", "ratios"]) == 0
    assert main(["plot", x_file, str(tmp_path / "x.png"), "--manifold", "ratios"]) == 0
    assert main(["backends"]) == 0
    shown = capsys.readouterr().out
    assert "points of shape (n,)" in shown
    assert "--base natural, two" in shown


def test_plot(x):
    bn = GyroBN(Ratios(2, 3)).fit(x)
    assert gyrobn.plot.plot_normalization(bn.manifold_, x, bn.transform(x)).axes
    assert gyrobn.plot.plot_tangent(bn.manifold_, x, bn.transform(x))


def test_layers(x):
    M = Ratios(2, 3)
    expected, _ = normalize_batch(M, x)
    layer = gyrobn.torch.GyroBN(M, dtype=torch.float64)
    np.testing.assert_allclose(layer(torch.as_tensor(x)).detach(), expected, rtol=1e-12)
    flax = gyrobn.flax.GyroBN(M, param_dtype=np.float64)
    np.testing.assert_allclose(flax(jax.numpy.asarray(x)), expected, rtol=1e-12)
    make = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)
    module, state = make(M, dtype=np.float64)
    y, _ = module(jax.numpy.asarray(x), state)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    jitted = jax.jit(lambda M, x: normalize_batch(M, x)[0])(M, jax.numpy.asarray(x))
    np.testing.assert_allclose(jitted, expected, rtol=1e-12)
    assert isinstance(flax, nnx.Module)


def test_the_estimator_knows_every_option():
    """A geometry given by name is searched by the parameters of the estimator."""
    options = {
        name: type(one.default)
        for cls in gyrobn.REGISTRY.values()
        for name, one in cls.options().items()
    }
    assert options == GEOMETRY
