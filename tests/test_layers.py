"""The layers on every geometry: the same numbers in every library, and derivatives that are right.

What one layer does beyond that, as the habits of its library, is in the file of its library.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import FIRST, GEOMETRIES
from test_gradients import CASES, kinds, samples

import gyrobn.equinox
import gyrobn.flax
import gyrobn.torch
from gyrobn import Hyperboloid, Stats, Stereographic, batch_stats, normalize, update_stats

KEEP = 0.9
"""The momentum of JAX's layers; torch's is one minus it."""

# ---------------------------------------------------------------------- one layer, four libraries


class Case:
    """A weighted batch, bias, scale and running statistics, all of them odd.

    Each channel holds data of another kind, so that one program computes on all of them.
    """

    def __init__(self, M, options):
        rng = np.random.default_rng(3)
        blocks = () if len(M.blocks) == 1 else (len(M.blocks),)
        x = np.stack([samples(M, data) for data in kinds(M)], axis=1)
        self.M, self.options, self.channels = M, options, x.shape[1]
        self.learnt = {
            "bias": 0.3 * rng.standard_normal((self.channels, M.dim)),
            "scale": rng.uniform(0.3, 0.7, (self.channels, *blocks)),
            "x": x,
            "weights": rng.uniform(0.5, 1.5, x.shape[:2]),
        }
        if options.get("learn_curvature"):
            self.learnt["raw_curvature"] = np.asarray(0.0 if M.required_sign else M.curvature)
        self.running = Stats(
            M.random(self.channels, rng=8, spread=0.3),
            rng.uniform(0.2, 0.9, (self.channels, *blocks)),
        )
        self.cotangent = rng.standard_normal(x.shape).astype(x.dtype)

    def by_numpy(self, training):
        """Values, from the functions that the layers are made of."""
        M, x, running, own = self.M, self.learnt["x"], self.running, self.learnt
        used = batch_stats(M, x, own["weights"]) if training else running
        y = normalize(M, x, used, M.from_normal(own["bias"]), own["scale"])
        new = update_stats(M, running, used, 1 - KEEP) if training else running
        return {"y": y, "mean": new.mean, "var": new.var}

    def by_torch(self, training):
        own = {k: torch.asarray(v).requires_grad_(True) for k, v in self.learnt.items()}
        layer = gyrobn.torch.GyroBN(
            self.M, self.channels, momentum=1 - KEEP, dtype=torch.float64, **self.options
        ).train(training)
        kept = dict(zip(("running_mean", "running_var"), self.running, strict=True))
        kept = {k: torch.asarray(v.copy()) for k, v in kept.items()}
        held = {k: v for k, v in own.items() if k not in ("x", "weights")} | kept
        y = torch.func.functional_call(layer, held, (own["x"], own["weights"]))
        y.backward(torch.asarray(self.cotangent))
        slopes = {k: 0 * v.detach() if v.grad is None else v.grad for k, v in own.items()}
        return {"y": y.detach(), "mean": kept["running_mean"], "var": kept["running_var"]} | slopes

    def by_jax(self, call):
        """Values and gradients, in training and in evaluation, from one program."""

        def program(learnt, running, cotangent):
            def loss(learnt, training):
                y, new = call(self, learnt, running, training)
                return (y * cotangent).sum().real, {"y": y, "mean": new.mean, "var": new.var}

            both = []
            for training in (True, False):
                slopes, found = jax.grad(loss, has_aux=True)(learnt, training)
                both.append(found | jax.tree.map(jnp.conj, slopes))  # torch's convention
            return both

        arguments = jax.tree.map(jnp.asarray, (self.learnt, self.running, self.cotangent))
        return jax.jit(program)(*arguments)


def by_flax(case, learnt, running, training):
    layer = gyrobn.flax.GyroBN(
        case.M, case.channels, momentum=KEEP, param_dtype=jnp.float64, **case.options
    )
    for name in ("bias", "scale", "raw_curvature"):
        if name in learnt:
            getattr(layer, name)[...] = learnt[name]
    layer.mean[...], layer.var[...] = running
    y = layer(learnt["x"], use_running_average=not training, weights=learnt["weights"])
    return y, Stats(layer.mean[...], layer.var[...])


def by_equinox(case, learnt, running, training):
    layer, state = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(
        case.M, case.channels, momentum=KEEP, **case.options
    )
    names = [name for name in ("bias", "scale", "raw_curvature") if name in learnt]
    values = [learnt[name] for name in names]
    layer = eqx.tree_at(lambda m: [getattr(m, name) for name in names], layer, values)
    state = state.set(layer.stats, running)
    y, state = layer(learnt["x"], state, inference=not training, weights=learnt["weights"])
    return y, state.get(layer.stats)


OPTIONS = {"steps": 1, "clamp": 1.2, "mean_gradient": "detach", "learn_curvature": True}


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")  # samples about a far identity
@pytest.mark.parametrize(
    ("M", "options"),
    [
        *(pytest.param(M, {}, id=repr(M)) for M in GEOMETRIES),
        pytest.param(Hyperboloid(2, -0.7), OPTIONS, id="options"),
        pytest.param(Stereographic(2, 0.2), {"steps": 1, "learn_curvature": True}, id="free"),
    ],
)
def test_the_same_in_every_library(M, options):
    """Output, running statistics, gradients: NumPy, torch, Flax and Equinox, to 1e-10.

    Compiling takes most of the time. As both of JAX's layers trace to the same program, the second
    finds it in the cache; as both call the same functions, Equinox takes one instance per family.
    """
    case = Case(M, options)
    layers = {"flax": case.by_jax(by_flax)}
    if options or M in FIRST:
        layers["equinox"] = case.by_jax(by_equinox)
    for i, training in enumerate((True, False)):
        expected = case.by_torch(training)
        assert expected.keys() == {*case.learnt, "y", "mean", "var"}
        for name, slope in expected.items():
            seen = name != "weights" or training
            assert bool(slope.isfinite().all())
            assert bool(slope.any()) == seen, name
        found = {name: both[i] for name, both in layers.items()}
        if not options:
            found["numpy"] = case.by_numpy(training)
        for library, results in found.items():
            for name, value in results.items():
                np.testing.assert_allclose(
                    value, expected[name], rtol=1e-10, atol=1e-10, err_msg=f"{library}: {name}"
                )


# ---------------------------------------------------------------------- against differences

STEP = 1e-4
NODES = torch.tensor([1.0, -1.0, 2.0, -2.0], dtype=torch.float64) * STEP
MOVED = "input", "bias", "scale", "weights"


def slope_from(values):
    """The derivative at 0, to the fourth order, from the values at the nodes."""
    return (8 * (values[..., 0] - values[..., 1]) - (values[..., 2] - values[..., 3])) / (12 * STEP)


class Sweep:
    """A number for the torch layer's output, which moves along a line for each of ``MOVED``.

    The samples keep to the manifold, as their normal coordinates move. Each channel is a run.
    """

    def __init__(self, M, data, training, **options):
        rng = np.random.default_rng(5)
        self.M, self.training, self.options = M, training, options
        self.blocks = () if len(M.blocks) == 1 else (len(M.blocks),)
        x, bias, centre = samples(M, data), *(M.random(rng=i, spread=0.3) for i in (7, 8))
        self.weights, self.coordinates, self.bias, self.centre, *self.lines = (
            torch.asarray(a)
            for a in (
                rng.uniform(0.5, 1.5, 5),
                M.to_normal(x),
                M.to_normal(bias),
                centre,
                rng.standard_normal((5, M.dim)),
                0.3 * rng.standard_normal(M.dim),
                rng.uniform(0.2, 0.4, self.blocks),
                rng.uniform(-0.3, 0.3, 5),
                *rng.standard_normal((2, 5, M.dim)),
            )
        )

    def __call__(self, t, raw=None, points_follow=True):
        """One number a run. The points follow a curvature by their normal coordinates.

        t
            How far each run is moved, one array for each of ``MOVED``.
        """
        M, count = self.M, t[0].shape[0]
        layer = gyrobn.torch.GyroBN(M, count, eps=1e-2, dtype=torch.float64, **self.options)
        moved = M
        if raw is not None:
            K = M.curvature * raw.exp() if M.required_sign else raw
            moved = replace(M, curvature=K)
        by_x, by_bias, by_scale, by_weights, linear, square = self.lines
        c = self.coordinates[:, None] + t[0][:, None] * by_x[:, None]
        held = {
            "bias": self.bias + t[1][:, None] * by_bias,
            "scale": 0.3 + t[2].reshape(-1, *(1 for _ in self.blocks)) * by_scale,
            "running_mean": self.centre.repeat(count, *(1 for _ in M.point_shape)),
            "running_var": torch.full((count, *self.blocks), 0.5, dtype=torch.float64),
        }
        held |= {} if raw is None else {"raw_curvature": raw}
        weights = self.weights[:, None] + t[3] * by_weights[:, None]
        x = (moved if points_follow else M).from_normal(c)
        layer.train(self.training)
        y = moved.to_normal(torch.func.functional_call(layer, held, (x, weights)))
        return (linear[:, None] * y + square[:, None] * y * y).sum((0, 2))


def assert_slope(found, expected):
    """To a relative 1e-6; where a derivative is zero, to the rounding of the difference."""
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")  # samples about a far identity
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("M", "data"), CASES)
def test_derivatives(M, data, training):
    """By the input, the bias, the scale and the weights, each on its own, and together."""
    value = Sweep(M, data, training)
    runs = torch.kron(torch.eye(4, dtype=torch.float64), NODES)
    expected = slope_from(value(runs).reshape(4, 4))
    for moved in (0,), (1,), (2,), (3,), (0, 1, 2, 3):
        t = [torch.zeros(1, dtype=torch.float64, requires_grad=i in moved) for i in range(4)]
        found = value(t)
        assert found.requires_grad == (training or moved != (3,))
        if found.requires_grad:
            found.sum().backward()
        for i in moved:
            slope = torch.zeros(1, dtype=torch.float64) if t[i].grad is None else t[i].grad
            assert_slope(slope[0], expected[i])
    nothing = {"weights"} if not training else set()
    if data == "collapsed" and training:
        nothing = {"weights", "scale"}  # all samples are their mean, whatever they weigh
    for name, slope in zip(MOVED, expected.abs(), strict=True):
        assert (float(slope) < 1e-9) == (name in nothing), name


CURVED = [(M, data) for M, data in CASES if "curvature" in M.parameters]


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("M", "data"), CURVED, ids=str)
def test_derivative_by_the_curvature(M, data, training):
    """With points of fixed normal coordinates; where points need not move with it, also fixed."""
    value = Sweep(M, data, training, learn_curvature=True)
    first, still = 0.0 if M.required_sign else M.curvature, torch.zeros((4, 1), dtype=torch.float64)
    for points_follow in (True, False)[: 2 if M.point_shape == (M.dim,) else 1]:
        values = [value(still, first + h, points_follow) for h in NODES]
        raw = torch.tensor(first, dtype=torch.float64, requires_grad=True)
        value(still, raw, points_follow).sum().backward()
        assert_slope(raw.grad, slope_from(torch.cat(values)))


# ---------------------------------------------------------------------- many updates


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_running_means_do_not_drift(M):
    """After 3,000 updates in float32 they are on the manifold, and where float64 has them."""
    means = M.random(8, rng=1, spread=0.5)

    def step(running, batch):
        return update_stats(M, running, Stats(batch, running.var), 0.1), None

    @jax.jit
    def run(means):
        start = Stats(M.origin(means), jnp.float32(1.0))
        return jax.lax.scan(step, start, jnp.tile(means, (375, *(1 for _ in M.point_shape))))[0]

    narrow = np.complex64 if M.complex_points else np.float32
    found = np.asarray(run(jnp.asarray(means, narrow)).mean)
    assert found.dtype == narrow
    assert float(M.violation(found)) < 1e-6
    expected = Stats(M.origin(means), 1.0)
    for k in range(160):  # what came before counts 1e-7
        expected = update_stats(M, expected, Stats(means[k % 8], 1.0), 0.1)
    assert float(M.dist(M.project(found.astype(means.dtype)), expected.mean)) < 1e-5
