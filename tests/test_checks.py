"""Numbers and names that users give: any integer is one, nothing else is, and all say it alike."""

import inspect
from dataclasses import MISSING, fields

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline

import gyrobn.equinox
import gyrobn.flax
import gyrobn.torch
from gyrobn import (
    SPD,
    Chunks,
    Correlation,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    PoincareBall,
    PrecisionWarning,
    SpecialOrthogonal,
    Sphere,
    Stats,
    Stereographic,
    frechet,
    merge_stats,
    normalize,
    normalize_batch,
    update_stats,
)
from gyrobn.manifolds import REGISTRY
from gyrobn.normalization.layers import Options

X = PoincareBall(2).random(10, rng=0)
STATS = Stats(X[0], np.asarray(1.0))

INTEGERS = [
    "1",
    1.5,
    1.0,
    np.float64(2.0),
    None,
    True,
    np.True_,
    torch.tensor(True),
    [2],
    -1,
    2**63,
]
NUMBERS = ["1", True, np.False_, [1.0], (), 1j, np.nan, np.inf, 10**400, -1.0, -1, {}]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32, torch.tensor, jnp.asarray])
def test_any_integer_is_a_size(kind):
    for name, cls in REGISTRY.items():
        if name == "product":
            continue
        sizes = (4, 2)[: sum(one.default is MISSING for one in fields(cls))]
        plain, other = cls(*sizes), cls(*map(kind, sizes))
        assert other == plain
        assert repr(other) == repr(plain)
        assert all(type(getattr(other, one.name)) is int for one in fields(cls)[: len(sizes)])


@pytest.mark.parametrize("value", [*INTEGERS, 0], ids=repr)
def test_what_is_no_size(value):
    for cls in (Euclidean, PoincareBall, Sphere, SPD, Correlation, SpecialOrthogonal):
        with pytest.raises(ValueError, match=f"n of {cls.__name__} must be an? .*integer.*, got "):
            cls(value)
    if value is not None:
        with pytest.raises(ValueError, match="p of Grassmannian must be a positive integer, got"):
            Grassmannian(4, value)


@pytest.mark.parametrize("value", [np.float32(-0.5), np.float64(-0.5), np.int8(-2), -2], ids=repr)
def test_any_number_is_a_curvature(value):
    M = PoincareBall(2, value)
    assert type(M.curvature) is float
    assert PoincareBall(2, float(value)) == M
    assert SPD(2, theta=value) == SPD(2, theta=float(value))


def test_what_is_no_curvature_and_no_theta():
    for value in ("1", True, np.nan, np.inf):
        with pytest.raises(ValueError, match="curvature of Stereographic must be a finite number"):
            Stereographic(2, value)
        with pytest.raises(ValueError, match="theta of SPD must be a finite number"):
            SPD(2, theta=value)


def users(name):
    """Return functions of one value, each of which hands it on as the parameter ``name``."""
    M, w, nn = PoincareBall(2), np.ones(10), gyrobn.torch
    found = {
        "eps": [lambda v: normalize(M, X, STATS, eps=v), lambda v: normalize_batch(M, X, eps=v)],
        "clamp": [lambda v: normalize(M, X, STATS, clamp=v)],
        "tol": [lambda v: frechet(M, X, tol=v), lambda v: frechet(M, Chunks(X), w, tol=v)],
        "max_iter": [lambda v, x=x: frechet(M, x, max_iter=v) for x in (X, Chunks(X))],
        "steps": [lambda v: frechet(M, X, steps=v)],
        "size": [lambda v: Chunks(X, size=v)],
        "spread": [lambda v: M.random(3, rng=0, spread=v)],
        "batch": [lambda v: M.random(3, v, rng=0)],
        "axis": [lambda v: frechet(M, X, axis=v)],
        "rate": [lambda v, f=f: f(M, STATS, STATS, v) for f in (update_stats, merge_stats)],
        "domains": [lambda v: nn.DomainGyroBN(M, v)],
        "train_momentum": [lambda v: nn.DomainGyroBN(M, 2, train_momentum=v)],
    }.get(name, [])
    if name in inspect.signature(GyroBN).parameters:
        found.append(lambda v: GyroBN(M, **{name: v}).fit(X))
    for cls in (gyrobn.torch.GyroBN, gyrobn.flax.GyroBN, gyrobn.equinox.GyroBN):
        own = "epsilon" if (name, cls) == ("eps", gyrobn.flax.GyroBN) else name
        if name in {"eps", *Options.__annotations__, *inspect.signature(cls).parameters}:
            found.append(lambda v, cls=cls, own=own: cls(M, **{own: v}))
    return found


WHOLE = ["max_iter", "steps", "size", "channels", "domains", "axis", "batch"]
REAL = ["eps", "clamp", "tol", "spread", "momentum", "adapt_rate", "train_momentum", "rate"]
TAKEN = {"steps": [None], "size": [None], "channels": [[2]], "axis": [[2], -1]}
"""What looks wrong and is not."""


@pytest.mark.parametrize("name", WHOLE)
def test_integers(name):
    assert users(name)
    for use in users(name):
        use(np.int64(0 if name == "axis" else 20))
        for value in INTEGERS:
            if repr(value) in map(repr, TAKEN.get(name, [])):
                continue
            with pytest.raises(ValueError, match=f"{name} must be an? .*integer.*, got "):
                use(value)


@pytest.mark.parametrize("name", REAL)
def test_numbers(name):
    assert users(name)
    for use in users(name):
        if name != "train_momentum":
            use(np.float32(0.5))
            use(1)
        for value in NUMBERS:
            if name == "rate" and not isinstance(value, (int, float, str)):
                continue  # arrays are taken, and may be traced
            with pytest.raises(ValueError, match=f"{name}.* must be a finite number.*, got "):
                use(value)


@pytest.mark.parametrize("value", ["1", ["1"], [None], 1j, {}, "sqrt"], ids=repr)
def test_scale_and_weights_are_numbers(value):
    with pytest.raises(ValueError, match=r"scale must be (a finite number|numbers).*, got"):
        GyroBN(PoincareBall(2), scale=value).fit(X)
    with pytest.raises(ValueError, match="sample_weight must be numbers"):
        GyroBN(PoincareBall(2)).fit(X, sample_weight=[value] * 10)
    with pytest.raises(ValueError, match="bias must be numbers"):
        GyroBN(PoincareBall(2), bias=[value] * 2).fit(X)


# ---------------------------------------------------------------------- warnings

WIDE = Sphere(2).random(200, rng=0, spread=2.0)
SINGULAR = np.stack([np.eye(2), np.diag([2.0, 1.0]), np.diag([1.0, 0.0])])
WARNED = {
    "frechet": lambda: frechet(Sphere(2), WIDE),
    "fit": lambda: GyroBN("sphere").fit(WIDE),
    "fit, chunks": lambda: GyroBN("sphere").fit(Chunks([WIDE[:100], WIDE[100:]])),
    "fit, pipeline": lambda: make_pipeline(GyroBN("sphere")).fit(WIDE),
    "fit, project": lambda: GyroBN("spd", on_invalid="project").fit(SINGULAR),
    "transform": lambda: GyroBN("sphere", scale=9.0).fit(CLOSE).transform(CLOSE),
    "norm": lambda: SPD(2).norm(np.diag([1.0, 1e-17])),
    "torch": lambda: gyrobn.torch.GyroBN(Sphere(2), dtype=torch.float64)(torch.as_tensor(WIDE)),
    "flax": lambda: gyrobn.flax.GyroBN(Sphere(2))(jnp.asarray(WIDE, jnp.float32)),
}
CLOSE = Sphere(2).random(50, rng=1, spread=0.3)


@pytest.mark.parametrize("road", WARNED)
def test_a_warning_points_at_the_line_of_the_user(road):
    with pytest.warns((FrechetWarning, PrecisionWarning)) as caught:
        WARNED[road]()
    assert {warning.filename for warning in caught} == {__file__}
