"""The scikit-learn estimator: the theorem through it, every error it can raise, its manners."""

import contextlib
import importlib
import pickle
import subprocess
import sys

import array_api_strict
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from conftest import EAGER, GEOMETRIES, dtype_for
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import gyrobn
from gyrobn import (
    REGISTRY,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    Hyperboloid,
    PoincareBall,
    Product,
    ProjectedHypersphere,
    SpecialOrthogonal,
    Sphere,
    frechet_variance,
)
from gyrobn.backends import backend_of, namespace_of


class Library:
    """One array library: NumPy arrays to its own, and back."""

    def __init__(self, name):
        self.name = name
        self.xp = importlib.import_module("jax.numpy" if name == "jax" else name)

    def __call__(self, a):
        return self.xp.asarray(np.array(a))

    def holds(self, x):
        return namespace_of(x) is namespace_of(self.xp.zeros(1))


def host(x):
    return np.asarray(backend_of(x).to_numpy(x))


@pytest.fixture(params=EAGER)
def eager(request):
    """The libraries that compile nothing: most tests run on these, for JAX takes a second a fit."""
    return Library(request.param)


@pytest.fixture(params=[*EAGER, "jax"])
def library(request):
    """All of them."""
    with contextlib.ExitStack() as stack:
        if request.param == "jax":
            stack.enter_context(importlib.import_module("jax").enable_x64(True))
        yield Library(request.param)


ALL = [
    pytest.param(name, manifold, id=repr(manifold))
    for name, family in REGISTRY.items()
    for manifold in family.examples()
]
ONE_EACH = [pytest.param(name, family.examples()[0], id=name) for name, family in REGISTRY.items()]


def samples(manifold, *batch, rng=0, spread=0.5):
    """Points about a centre that is not the identity."""
    centre = manifold.random(rng=rng + 100, spread=0.4)
    return manifold.add(centre, manifold.random(*batch, rng=rng, spread=spread))


# ---------------------------------------------------------------------- the theorem


def check_theorem(manifold, X, bn):
    """Output mean β and variance s²v²/(v²+ε), from the definitions of the two."""
    Y = bn.transform(X)
    assert type(Y) is type(X)
    assert (Y.shape, Y.dtype) == (X.shape, X.dtype)
    X, Y, mean = host(X), host(Y), host(bn.mean_)
    beta = np.asarray(bn.bias, dtype=X.dtype)
    v2 = frechet_variance(manifold, X, mean)
    np.testing.assert_allclose(np.sum(v2), np.mean(manifold.dist(mean, X) ** 2), rtol=1e-12)
    np.testing.assert_allclose(host(bn.var_), v2, rtol=1e-12)
    gradient = np.mean(manifold.relative_normal(beta, Y), axis=0)
    assert np.max(np.abs(gradient)) < 1e-11
    expected = bn.scale**2 * v2 / (v2 + bn.eps)
    np.testing.assert_allclose(frechet_variance(manifold, Y, beta), expected, rtol=1e-11)


@pytest.mark.parametrize(("name", "manifold"), ALL)
def test_theorem_numpy(name, manifold):
    X = samples(manifold, 40)
    bias = manifold.random(rng=7, spread=0.6)
    bn = GyroBN(manifold, bias=bias, scale=0.7, eps=0.1).fit(X)
    assert bn.converged_ is True
    assert isinstance(bn.n_iter_, int)
    assert bn.n_samples_seen_ == 40
    assert bn.n_features_in_ == X.shape[1]
    check_theorem(manifold, X, bn)


@pytest.mark.parametrize(("name", "manifold"), ONE_EACH)
def test_theorem_and_round_trip_on_every_library(name, manifold, library):
    X = library(samples(manifold, 10))
    bn = GyroBN(manifold, bias=manifold.random(rng=7, spread=0.6), scale=0.7, eps=0.1)
    Y = bn.fit_transform(X)
    assert all(library.holds(a) for a in (Y, bn.mean_, bn.var_))
    check_theorem(manifold, X, bn)
    back = bn.inverse_transform(Y)
    assert library.holds(back)
    assert back.dtype == X.dtype
    assert manifold.dist(host(back), host(X)).max() < 1e-12


NAMED = [case for case in ONE_EACH if case.id not in ("product", "fixed_rank_spd")]


def test_a_product_has_no_sizes_to_be_told_from_the_data():
    with pytest.raises(ValueError, match="give the geometry itself"):
        GyroBN("product").fit(np.zeros((4, 5)))


@pytest.mark.parametrize(("name", "manifold"), NAMED)
def test_a_name_takes_its_sizes_from_the_data(name, manifold):
    X = REGISTRY[name].for_shape(manifold.point_shape).random(20, 3, rng=0, spread=0.3)
    bn = GyroBN(name, scale=0.3).fit(X)
    assert bn.manifold_ == REGISTRY[name].for_shape(manifold.point_shape)
    assert bn.transform(X).shape == X.shape
    assert bn.manifold == name


def test_coordinates_as_channels_are_ordinary_standardization():
    X = np.random.default_rng(0).normal(3.0, [1.0, 20.0, 0.1], (50, 3))
    Y = GyroBN(Euclidean(1), eps=0.0).fit_transform(X[..., None])[..., 0]
    np.testing.assert_allclose(Y, StandardScaler().fit_transform(X), rtol=1e-11, atol=1e-12)


def test_new_samples_use_the_statistics_of_fit():
    M = PoincareBall(3)
    X, new = samples(M, 40), samples(M, 5, rng=1)
    bn = GyroBN(M, bias=[0.1, 0.0, 0.2], scale=2.0).fit(X)
    z = M.scale(2.0 / np.sqrt(bn.var_ + 1e-5), M.add(M.neg(bn.mean_), new))
    np.testing.assert_allclose(bn.transform(new), M.add(np.asarray([0.1, 0.0, 0.2]), z), rtol=1e-12)


# ---------------------------------------------------------------------- channels and weights


def test_channels_are_independent(eager):
    M = Hyperboloid(2)
    X, w = samples(M, 20, 2, 3), np.random.default_rng(0).uniform(0.5, 2.0, (20, 2, 3))
    bias, scale = M.random(2, 3, rng=5), np.arange(1.0, 7.0).reshape(2, 3)
    bn = GyroBN(M, bias=bias, scale=scale).fit(eager(X), sample_weight=w)
    Y, Z = bn.transform(eager(X)), bn.inverse_transform(bn.transform(eager(X)))
    assert bn.mean_.shape == (2, 3, 3)
    assert bn.var_.shape == bn.n_iter_.shape == bn.converged_.shape == (2, 3)
    assert eager.holds(bn.n_iter_)
    assert host(bn.converged_).all()
    for i, j in np.ndindex(2, 3):
        one = GyroBN(M, bias=bias[i, j], scale=scale[i, j]).fit(X[:, i, j], None, w[:, i, j])
        np.testing.assert_allclose(host(bn.mean_)[i, j], one.mean_, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(
            host(Y)[:, i, j], one.transform(X[:, i, j]), rtol=1e-10, atol=1e-12
        )
    np.testing.assert_allclose(host(Z), X, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("name", "manifold"), ONE_EACH)
def test_weights_equal_repetition(name, manifold):
    X, w = samples(manifold, 12), np.asarray([1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4])
    weighted = GyroBN(manifold).fit(X, sample_weight=w)
    repeated = GyroBN(manifold).fit(np.repeat(X, w, axis=0))
    np.testing.assert_allclose(weighted.mean_, repeated.mean_, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(weighted.var_, repeated.var_, rtol=1e-11)
    assert not np.allclose(weighted.mean_, GyroBN(manifold).fit(X).mean_)


def test_weights_of_any_kind(eager):
    M = PoincareBall(2)
    X, w = samples(M, 6), np.asarray([1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    mean = GyroBN(M).fit(X, sample_weight=w).mean_
    for weights in (w, w.tolist(), pd.Series(w), eager(w), w.astype(np.float32), w.astype(int)):
        bn = GyroBN(M).fit(eager(X), sample_weight=weights)
        np.testing.assert_allclose(host(bn.mean_), mean, rtol=1e-12)
    Y = GyroBN(M).fit_transform(X, sample_weight=w)
    np.testing.assert_array_equal(Y, GyroBN(M).fit(X, sample_weight=w).transform(X))


# ---------------------------------------------------------------------- dtypes, libraries, devices


def test_float32_stays_float32(eager):
    M = PoincareBall(3)
    X = eager(samples(M, 30).astype(np.float32))
    bn = GyroBN(M, bias=[0.1, 0.2, 0.3], scale=0.5).fit(X, sample_weight=np.ones(30))
    Y = bn.transform(X)
    assert bn.mean_.dtype == bn.var_.dtype == Y.dtype == X.dtype
    assert bn.inverse_transform(Y).dtype == X.dtype
    np.testing.assert_allclose(host(bn.inverse_transform(Y)), host(X), atol=2e-6)


@pytest.mark.parametrize("kind", ["list", "int", "float16", "frame"])
def test_what_becomes_numpy(kind):
    X = np.asarray([[1, 2], [3, 5], [4, 4]])
    given = {"list": X.tolist(), "int": X, "float16": X.astype("f2"), "frame": pd.DataFrame(X)}[
        kind
    ]
    Y = GyroBN().fit_transform(given)
    assert type(Y) is np.ndarray
    assert Y.dtype == np.float64
    np.testing.assert_array_equal(Y, GyroBN().fit_transform(X.astype(float)))


def test_input_is_left_alone():
    M = PoincareBall(2)
    X = samples(M, 10)
    X[3] = [0.9, 0.9]
    copy, w = X.copy(), np.ones(10)
    for a in (X, w):
        a.flags.writeable = False
    bn = GyroBN(M, on_invalid="project").fit(X, sample_weight=w)
    bn.inverse_transform(bn.transform(X))
    np.testing.assert_array_equal(X, copy)


def test_torch_gradients_reach_x_but_not_the_statistics():
    import torch

    M = PoincareBall(2)
    X = torch.asarray(samples(M, 10)).requires_grad_(True)
    bn = GyroBN(M).fit(X)
    assert not bn.mean_.requires_grad
    assert not bn.var_.requires_grad
    new = torch.asarray(samples(M, 3, rng=1)).requires_grad_(True)
    (gradient,) = torch.autograd.grad(bn.transform(new).sum(), new)
    step = torch.zeros_like(new)
    step[1, 0] = 1e-6
    with torch.no_grad():
        slope = (bn.transform(new + step).sum() - bn.transform(new - step).sum()) / 2e-6
    torch.testing.assert_close(gradient[1, 0], slope, rtol=1e-7, atol=1e-8)


def test_transform_can_be_traced():
    import jax

    with jax.enable_x64(True):
        M = PoincareBall(2)
        X = jax.numpy.asarray(samples(M, 10))
        bn = GyroBN(M, bias=[0.1, 0.2], scale=0.5).fit(X)
        np.testing.assert_allclose(jax.jit(bn.transform)(X), bn.transform(X), rtol=1e-12)
        out = X.at[2].set(0.9)
        bn = GyroBN(M, on_invalid="project").fit(X)
        with pytest.warns(FrechetWarning, match="the first at index 2, farther than coordinates"):
            expected = bn.transform(out)  # a point at the boundary, scaled up
        np.testing.assert_allclose(jax.jit(bn.transform)(out), expected, rtol=1e-12)
        with pytest.raises(TypeError, match=r"traced function.*gyrobn\.batch_stats"):
            jax.jit(lambda x: GyroBN(M).fit(x).mean_)(X)


def test_another_library_is_an_error(library):
    X = samples(PoincareBall(2), 10)
    bn = GyroBN("poincare_ball").fit(library(X))
    other = Library("torch" if library.name == "numpy" else "numpy")
    for method in ("transform", "inverse_transform"):
        message = (
            rf"GyroBN\.{method}\(\) must use the same namespace .* got {other.name} .* fitted to "
            rf"{library.name} .* convert X, or fit"
        )
        with pytest.raises(ValueError, match=message):
            getattr(bn, method)(other(X))


def test_another_device_is_an_error_and_the_same_is_kept():
    X = samples(PoincareBall(2), 10)
    first, second = (array_api_strict.Device(d) for d in ("CPU_DEVICE", "device1"))
    there = array_api_strict.asarray(X, device=second)
    bn = GyroBN("poincare_ball", bias=[0.1, 0.2], scale=0.5).fit(there, sample_weight=np.ones(10))
    assert bn.mean_.device == bn.transform(there).device == second
    with pytest.raises(ValueError, match=r"same device .*'CPU_DEVICE'.*fitted to.*'device1'"):
        bn.transform(array_api_strict.asarray(X, device=first))


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex128", "float16"])
def test_other_dtypes_are_an_error(dtype):
    import torch

    X = torch.ones((3, 2), dtype=getattr(torch, dtype))
    with pytest.raises(
        TypeError, match=rf"float32 and float64 arrays of torch.*{dtype}: convert X"
    ):
        GyroBN().fit(X)


def test_imports_no_framework_and_sklearn_only_when_asked():
    code = """
import sys, numpy as np
import gyrobn
assert "sklearn" not in sys.modules
assert "GyroBN" in dir(gyrobn)
X = gyrobn.PoincareBall(2).random(20, rng=0)
bn = gyrobn.GyroBN("poincare_ball", bias=[0.1, 0.2]).fit(X, sample_weight=np.ones(20))
bn.inverse_transform(bn.transform(X))
assert "sklearn" in sys.modules
assert not {"torch", "jax", "cupy"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="module 'gyrobn' has no attribute 'GyroBatchNorm'"):
        gyrobn.GyroBatchNorm  # noqa: B018


# ---------------------------------------------------------------------- points off the manifold


def test_off_the_manifold(library):
    M = PoincareBall(2)
    X = samples(M, 10)
    good, bad = library(X), X.copy()
    bad[3], bad[7] = [1.2, 0.9], [1.0, 0.0]
    message = (
        r"X is off PoincareBall\(n=2, curvature=-1\.0\) by 0\.5 in 2 of 10 samples, the first at "
        r"index 3: on_invalid='project' moves"
    )
    bn = GyroBN(M).fit(good)
    for method in (GyroBN(M).fit, bn.transform, bn.inverse_transform):
        with pytest.raises(ValueError, match=message):
            method(library(bad))
    projected = GyroBN(M, on_invalid="project").fit(library(bad))
    by_hand = host(M.project(library(bad)))
    assert not np.allclose(by_hand[3], bad[3])
    expected = GyroBN(M).fit(library(by_hand))
    np.testing.assert_array_equal(host(projected.mean_), host(expected.mean_))
    np.testing.assert_array_equal(
        host(projected.transform(library(bad))), host(expected.transform(library(by_hand)))
    )


@pytest.mark.parametrize("on_invalid", ["raise", "project"])
@pytest.mark.parametrize("manifold", ["euclidean", "poincare_ball", "hyperboloid", "sphere"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(manifold, value, on_invalid):
    X = samples(REGISTRY[manifold].for_shape((3,)), 10)
    bad = X.copy()
    bad[4:, 1] = value
    kind = "NaN" if np.isnan(value) else "inf"
    bn = GyroBN(manifold, on_invalid=on_invalid).fit(X)
    for method in (clone(bn).fit, bn.transform, bn.inverse_transform):
        with pytest.raises(
            ValueError,
            match=f"X has {kind} in 6 of 10 samples, the first at index 4: drop or impute",
        ):
            method(bad)


def test_nan_on_every_library(eager):
    X = samples(PoincareBall(2), 6, 2)
    X[2, 1, 0] = np.nan
    with pytest.raises(
        ValueError, match=r"X has NaN in 1 of 12 samples, the first at index \(2, 1\)"
    ):
        GyroBN("poincare_ball", on_invalid="project").fit(eager(X))


def test_what_cannot_be_projected():
    """A point so far out that its square overflows is on the sheet, but its mean has no digits."""
    with pytest.warns(FrechetWarning, match="does not resolve a distance of 1 there"):
        bn = GyroBN("hyperboloid", on_invalid="project").fit([[1.0, 1e200]] * 2)
    assert not bn.converged_


# ---------------------------------------------------------------------- where there is no answer

OPPOSITE = r"Points 3\.142 apart are antipodal, .* drop such samples"


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_samples_without_a_mean(eager):
    X = eager([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"GyroBN\.fit\(\) finds no mean .*" + OPPOSITE):
        GyroBN("sphere").fit(X)


def test_sample_opposite_to_the_mean(eager):
    bn = GyroBN("sphere").fit(eager([[0.8, 0.6, 0], [0.8, -0.6, 0], [0.8, 0, 0.6], [0.8, 0, -0.6]]))
    X = eager([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(host(bn.mean_), host(X[0, ...]))
    message = r"transform\(\) finds no point of Sphere.* 1 of 2 samples, the first at index 1, at "
    with pytest.raises(ValueError, match=message + r"distance 3\.142 from the mean; .*" + OPPOSITE):
        bn.transform(X)


def test_sample_opposite_to_the_bias():
    M = Sphere(2)
    bn = GyroBN(M, bias=[0.0, 1.0, 0.0]).fit(samples(M, 20, 2))
    X = np.tile([0.0, 0.0, 1.0], (3, 2, 1))
    X[2, 1] = [0.0, -1.0, 0.0]
    message = r"inverse_transform\(\) finds no .* 1 of 6 samples, the first at index \(2, 1\), at "
    with pytest.raises(ValueError, match=message + r"distance 3\.142 from the bias; .*" + OPPOSITE):
        bn.inverse_transform(X)


def test_bias_opposite_to_the_identity():
    M = Sphere(2)
    X = samples(M, 20)
    with pytest.raises(ValueError, match=r"20 of 20 samples.* bias at 3\.142\. " + OPPOSITE):
        GyroBN(M, bias=[-1.0, 0.0, 0.0]).fit_transform(X)


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_overflow():
    with pytest.raises(ValueError, match=r"finds no mean.* leave the range of float64: rescale"):
        GyroBN().fit([[1e200], [-1e200]])
    with pytest.raises(ValueError, match=r"1 of 1 samples.*range of float64.* a larger eps"):
        GyroBN(eps=0.0).fit([[1.0], [1.0]]).transform([[1.0]])
    assert GyroBN().fit_transform([[1.0], [1.0]]).tolist() == [[0.0], [0.0]]


def test_warnings_of_the_mean_come_through():
    with pytest.warns(FrechetWarning, match="did not converge in 1 iterations"):
        bn = GyroBN("poincare_ball", max_iter=1).fit(samples(PoincareBall(2), 20, spread=2.0))
    assert bn.converged_ is False
    assert bn.n_iter_ == 1
    X = samples(PoincareBall(2), 20, spread=2.0)
    loose = GyroBN("poincare_ball", tol=1e-2).fit(X)
    assert loose.n_iter_ < GyroBN("poincare_ball").fit(X).n_iter_


# ---------------------------------------------------------------------- parameters and shapes

BALL = samples(PoincareBall(2), 10)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"manifold": "ball"}, ValueError, r"unknown manifold 'ball': .*'euclidean', .*'sphere'"),
        (
            {"manifold": PoincareBall},
            TypeError,
            r"manifold must be a geometry such as .*, got <class",
        ),
        ({"manifold": 3}, TypeError, r"manifold must be a geometry .* got 3"),
        ({"manifold": PoincareBall(3)}, ValueError, r"expects X of shape \(N, .*3.* got \(10, 2\)"),
        (
            {"on_invalid": "ignore"},
            ValueError,
            "on_invalid must be 'raise', 'project' or 'drop', got 'ignore'",
        ),
        ({"eps": -1.0}, ValueError, r"eps must be a finite number of at least 0, got -1\.0"),
        ({"eps": np.nan}, ValueError, "eps must be a finite number of at least 0, got nan"),
        ({"scale": np.inf}, ValueError, "scale must be a finite number.* got inf"),
        (
            {"scale": [1.0, np.nan]},
            ValueError,
            r"scale must be a finite number.* got \[1\.0, nan\]",
        ),
        ({"scale": [1.0, 2.0]}, ValueError, r"scale must be .* one per channel, of shape \(\)"),
        ({"max_iter": 0}, ValueError, "max_iter must be a positive integer, got 0"),
        (
            {"bias": [1.0]},
            ValueError,
            r"bias must be a point of Poinc.*shape \(2,\).* got shape \(1,\)",
        ),
        ({"bias": [[0.1, 0.2]] * 3}, ValueError, r"bias must .* got shape \(3, 2\)"),
        (
            {"bias": [1.0, 1.0]},
            ValueError,
            r"bias is off Poinc.* by 0\.414 .*: manifold\.project gives",
        ),
        ({"bias": [np.nan, 0.0]}, ValueError, "bias has NaN in its one point"),
    ],
)
@pytest.mark.parametrize("on_invalid", ["raise", "project"])
def test_bad_parameters(options, error, message, on_invalid):
    bn = GyroBN(**{"manifold": "poincare_ball", "on_invalid": on_invalid, **options})
    with pytest.raises(error, match=message):
        bn.fit(BALL)
    assert not [name for name in vars(bn) if name in ("mean_", "var_", "manifold_")]


def test_bad_bias_of_one_channel():
    bias = [[0.1, 0.2], [0.1, 0.2], [1.2, 0.9]]
    with pytest.raises(ValueError, match=r"bias is off .* by 0\.5 in 1 of 3 .* first at index 2"):
        GyroBN("poincare_ball", bias=bias).fit(samples(PoincareBall(2), 10, 3))


def test_bias_and_scale_of_any_kind(eager):
    M = PoincareBall(2)
    X = samples(M, 10, 3)
    bias, scale = np.asarray([0.1, 0.2]), np.asarray([1.0, 2.0, 3.0])
    expected = GyroBN(M, bias=bias, scale=scale).fit_transform(X)
    for b, s in ((bias.tolist(), scale.tolist()), (eager(bias), eager(scale))):
        bn = GyroBN(M, bias=b, scale=s)
        np.testing.assert_allclose(host(bn.fit_transform(eager(X))), expected, rtol=1e-11)
        np.testing.assert_allclose(bn.fit_transform(X), expected, rtol=1e-11)


def test_scale_zero_cannot_be_undone():
    for scale in (0.0, 0):
        bn = GyroBN("poincare_ball", bias=[0.1, 0.2], scale=scale).fit(BALL)
        np.testing.assert_allclose(bn.transform(BALL), np.tile([0.1, 0.2], (10, 1)), rtol=1e-13)
        with pytest.raises(ValueError, match=r"scale=0.* to one point, which cannot be undone"):
            bn.inverse_transform(BALL)
    bn = GyroBN("poincare_ball", scale=[1.0, 0.0]).fit(samples(PoincareBall(2), 10, 2))
    with pytest.raises(ValueError, match=r"scale=\[1\.0, 0\.0\] takes all samples to one point"):
        bn.inverse_transform(np.zeros((1, 2, 2)))


def test_bad_weights():
    for weights, message in (
        (np.zeros(10), "sample_weight is zero for every sample"),
        (np.ones(9), r"weights must have the shape .*\(10,\).* got \(9,\)"),
        (-np.ones(10), "non-negative"),
        (np.full(10, np.nan), "finite and non-negative"),
    ):
        with pytest.raises(ValueError, match=message):
            GyroBN("poincare_ball").fit(BALL, sample_weight=weights)


def test_bad_shapes(eager):
    with pytest.raises(ValueError, match=r"\(0, 2\)"):
        GyroBN().fit(eager(np.zeros((0, 2))))
    with pytest.raises(ValueError, match=r"1D array|got \(3,\)"):
        GyroBN().fit(eager(np.zeros(3)))
    with pytest.raises(ValueError, match=r"shape \(4, 1\), with 1 feature\(s\), .* of hyperboloid"):
        GyroBN("hyperboloid").fit(eager(np.ones((4, 1))))
    bn = GyroBN().fit(eager(np.zeros((4, 3))))
    with pytest.raises(ValueError, match="X has 2 features, but GyroBN is expecting 3 features"):
        bn.transform(eager(np.zeros((4, 2))))
    message = (
        r"GyroBN\.{}\(\) expects samples of shape \({}\), as fit\(\) saw them, got X of shape {}"
    )
    for method, X in (("inverse_transform", np.zeros((4, 2))), ("transform", np.zeros((4, 3, 3)))):
        with pytest.raises(ValueError, match=message.format(method, "3,", r"\(4")):
            getattr(bn, method)(eager(X))
    bn = GyroBN().fit(eager(np.zeros((4, 2, 3))))
    for shape in ((4, 5, 3), (4, 2), (4, 2, 2)):
        with pytest.raises(ValueError, match=message.format("transform", "2, 3", r"\(4")):
            bn.transform(eager(np.zeros(shape)))


def test_not_fitted():
    for method in ("transform", "inverse_transform"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(GyroBN("poincare_ball"), method)(BALL)


# ---------------------------------------------------------------------- scikit-learn


def test_constructor_only_stores():
    bias = [5.0]
    bn = GyroBN("no such", bias, "x", -1, "y", None, "z", "u", "r")
    assert vars(bn) == {
        "manifold": "no such",
        "bias": bias,
        "scale": "x",
        "eps": -1,
        "tol": "y",
        "max_iter": None,
        "on_invalid": "z",
        "unseen": "u",
        "adapt_rate": "r",
        "prior_strength": 4.0,
        "output": "points",
        "without_domains": "error",
        "reference": None,
    }
    assert bn.bias is bias


def test_clone_and_pickle(eager):
    M = PoincareBall(2, curvature=-0.5)
    X = eager(samples(M, 10))
    bn = GyroBN(M, bias=[0.1, 0.2], scale=0.5).fit(X)
    same = pickle.loads(pickle.dumps(bn))
    assert eager.holds(same.mean_)
    np.testing.assert_array_equal(host(same.transform(X)), host(bn.transform(X)))
    fresh = clone(bn)
    assert fresh.get_params() == bn.get_params()
    assert not hasattr(fresh, "mean_")
    np.testing.assert_array_equal(host(fresh.fit_transform(X)), host(bn.transform(X)))


def test_data_frames_keep_their_names():
    frame = pd.DataFrame(BALL, columns=["a", "b"], index=range(100, 110))
    bn = GyroBN("poincare_ball").fit(frame)
    assert bn.feature_names_in_.tolist() == bn.get_feature_names_out().tolist() == ["a", "b"]
    Y = bn.transform(frame)
    assert type(Y) is np.ndarray
    bn.inverse_transform(Y)  # no names, and no warning about it
    bn.set_output(transform="pandas")
    out = bn.transform(frame)
    pd.testing.assert_frame_equal(out, pd.DataFrame(Y, columns=["a", "b"], index=frame.index))
    with pytest.raises(ValueError, match="feature names should match"):
        bn.transform(frame[["b", "a"]])
    assert GyroBN().fit(BALL).get_feature_names_out().tolist() == ["x0", "x1"]


def test_tags():
    tags = get_tags(GyroBN())
    assert tags.input_tags.two_d_array
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.allow_nan
    assert tags.array_api_support
    assert tags.transformer_tags.preserves_dtype == ["float64", "float32"]


@parametrize_with_checks(
    [
        GyroBN("euclidean"),
        GyroBN("poincare_ball", on_invalid="project"),
        GyroBN("hyperboloid", on_invalid="project"),
    ]
)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    monkeypatch.setenv(
        "SCIPY_ARRAY_API", "1"
    )  # without it the checks of other libraries are skipped
    given = getattr(check, "keywords", {})
    if given.get("device") == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU (scikit-learn asks only whether torch was built for one)")
    if given.get("array_namespace") == "array_api_strict" and sklearn.__version__ < "1.7":
        pytest.skip("scikit-learn 1.6 tests with a standard in which where takes no numbers")
    check(estimator)


@pytest.mark.parametrize("M", GEOMETRIES, ids=str)
def test_statistics_of_float32_meet_samples_of_float64(M):
    X = M.random(30, rng=0, spread=0.3)
    X = X if M.convexity_radius == np.inf else M.add(M.random(rng=1, spread=0.2), X)
    bn = GyroBN(M, scale=0.3).fit(X.astype(dtype_for(M, np.float32)))
    Y = bn.transform(X)
    assert Y.dtype == dtype_for(M, np.float64)
    assert M.contains(Y).all()
    assert M.dist(bn.inverse_transform(Y), X).max() < 1e-6


@pytest.mark.parametrize("domains", [None, np.arange(60) % 2])
@pytest.mark.parametrize(
    ("M", "scale"),
    [
        (Sphere(2), 2.0),
        (Sphere(2, 0.25), 4.0),
        (ProjectedHypersphere(3), 2.0),
        (Grassmannian(5, 2), 1.2),
        (SpecialOrthogonal(3), 3.0),
        (Product(Sphere(2), Euclidean(2)), [2.0, 9.0]),
    ],
    ids=str,
)
def test_a_scale_that_goes_all_the_way_around_is_told_of(M, scale, domains):
    X = M.random(60, rng=0, spread=0.15)
    good = np.asarray(scale) * 0.3
    bn = GyroBN(M, scale=good if good.ndim else float(good)).fit(X, domains=domains)
    Y = bn.transform(X, domains=domains)  # a warning is an error here
    assert M.dist(bn.inverse_transform(Y, domains=domains), X).max() < 1e-8
    bn.set_params(scale=scale)
    with pytest.warns(FrechetWarning, match=r"scales \d+ of 60 samples, the first at index \d+"):
        Y = bn.transform(X, domains=domains)
    assert M.dist(bn.inverse_transform(Y, domains=domains), X).max() > 0.1  # as it says
    bn.set_params(scale=0.02 * good if good.ndim else 0.02 * float(good))
    with pytest.warns(FrechetWarning, match=r"inverse_transform\(\) scales"):
        bn.inverse_transform(Y, domains=domains)
