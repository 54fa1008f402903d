"""The recipe of CONTRIBUTING holds: a geometry defined here takes every road of the package.

It has an integer field that no geometry of the package has, and an option of its own.
"""

import math
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
from gyrobn.backends import backend_of, namespace_of
from gyrobn.cli import main
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import zeros
from gyrobn.numerics.hessian import Hessian, flat_hessian


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
        return flat_hessian()


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
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "of ratios: natural, two" in " ".join(capsys.readouterr().out.split())


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


# ---------------------------------------------------------------------- a group that is curved


@dataclass(frozen=True)
class Quaternions(GyroSpace):
    """Unit quaternions with their product: a group that does not commute, of positive curvature.

    ``form`` is how its author states the mean Hessian, a·cot a across the axis and 1 along it.
    """

    form: str = field(default="applied", metadata={"choices": ("applied", "constant", "matrix")})

    gyrocommutative = False
    convexity_radius = math.pi / 2

    @property
    def point_shape(self):
        return (4,)

    @property
    def dim(self):
        return 3

    @classmethod
    def for_shape(cls, shape):
        return cls()

    @classmethod
    def examples(cls):
        return tuple(cls(form) for form in ("applied", "constant", "matrix"))

    def origin(self, like):
        return self.from_normal(zeros(3, like))

    def add(self, x, y):
        xp = self._namespace(x, y)
        a, b, c, d = (x[..., k] for k in range(4))
        e, f, g, h = (y[..., k] for k in range(4))
        parts = (
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        )
        return xp.stack(parts, axis=-1)

    def neg(self, x):
        return self._namespace(x).concat([x[..., :1], -x[..., 1:]], axis=-1)

    def to_normal(self, x):
        xp = self._namespace(x)
        sine = xp.sqrt(xp.sum(x[..., 1:] ** 2, axis=-1, keepdims=True) + 1e-30)
        return xp.atan2(sine, x[..., :1]) / sine * x[..., 1:]

    def from_normal(self, c):
        xp = namespace_of(c)
        a = xp.sqrt(xp.sum(c * c, axis=-1, keepdims=True) + 1e-30)
        return xp.concat([xp.cos(a), xp.sin(a) / a * c], axis=-1)

    def push(self, x, c):
        return self.add(x, namespace_of(c).concat([0.0 * c[..., :1], c], axis=-1))

    def pull(self, x, v):
        return self.add(self.neg(x), v)[..., 1:]

    def project(self, x):
        xp = self._namespace(x)
        return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))

    def violation(self, x):
        xp = self._namespace(x)
        off = xp.abs(xp.sum(x * x, axis=-1) - 1.0)
        return xp.where(xp.isfinite(off), off, xp.inf)

    def hessian(self, c, weights):
        xp = namespace_of(c)
        if self.form == "constant":  # as what comes out of a decomposition is
            c = backend_of(c).stop_gradient(c)
        square = xp.sum(c * c, axis=-1) + 1e-30
        across = xp.sqrt(square) / xp.tan(xp.sqrt(square))
        eye = xp.eye(3, dtype=c.dtype)
        along = ((1.0 - across) / square)[..., None, None] * c[..., :, None] * c[..., None, :]
        each = across[..., None, None] * eye + along
        matrix = xp.sum(weights[..., None, None] * each, axis=0)
        low = xp.sum(weights * across, axis=0)
        apply, lowest = lambda v: xp.matmul(matrix, v), lambda: low
        if self.form == "matrix":
            return Hessian(apply, lowest, lambda: matrix)
        return Hessian(apply, lowest)


def functions_of(M, c, weights):
    """A number made of a mean and a variance, by samples and weights."""
    mean, variance, *_ = frechet(M, M.from_normal(c), weights=weights)
    return (mean**3).sum() + variance


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch itself calls it
@pytest.mark.parametrize("M", Quaternions.examples(), ids=lambda M: M.form)
def test_second_derivatives_whatever_the_hessian_says(M):
    """They do not depend on whether its author thought of derivatives of the Hessian."""
    rng = np.random.default_rng(0)
    c, w = 0.5 * rng.standard_normal((5, 3)) + 0.2, rng.uniform(0.5, 1.5, 5)
    dc, dw = rng.standard_normal((5, 3)), 0.2 * rng.standard_normal(5)

    def along(array):
        given = [tuple(map(array, pair)) for pair in ((c, dc), (w, dw))]
        return lambda t: functions_of(M, *(a + t * d for a, d in given))

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value, h = along(torch.as_tensor), 1e-5
    (slope,) = torch.autograd.grad(value(t), t, create_graph=True)
    found = [torch.autograd.grad(slope, t)[0], torch.func.grad(torch.func.grad(value))(t.detach())]
    if M.form in ("constant", "matrix"):  # it compiles for seconds
        slope = jax.grad(along(jax.numpy.asarray))
        found.append(jax.jit(jax.jacfwd(slope))(0.0))
    first = torch.func.grad(value)
    expected = float(first(t.detach() + h) - first(t.detach() - h)) / (2 * h)
    for each in found:
        assert float(each) == pytest.approx(expected, rel=1e-6)


def test_a_third_derivative_is_refused():
    """Where the Hessian is a constant to derivatives, it would be wrong."""
    M, c = Quaternions(), 0.3 * np.random.default_rng(0).standard_normal((5, 3))
    c, w = torch.as_tensor(c), torch.ones(5, dtype=torch.float64)
    third = lambda t: functions_of(M, t * c, w)  # noqa: E731
    for _ in range(3):
        third = torch.func.grad(third)
    with pytest.raises(TypeError, match="third derivative"):
        third(torch.ones((), dtype=torch.float64))


def test_a_group_states_its_transport():
    """Gyrations would give a left translation, which is not parallel."""
    M = Quaternions()
    x, y, v = M.random(3, 4, rng=0)
    with pytest.raises(NotImplementedError, match=r"define transport\(self, x, y, v\)"):
        M.transport(x, y, M.push(x, M.to_normal(v)))
