"""What the layers for Flax and Equinox are held to: NumPy's values, torch's values and gradients.

Compiling a geometry takes seconds. So each half of the geometries is compiled with one of the two
layers, and test_equinox.py shows that on every geometry both trace to the same program.
"""

from typing import Any

import jax
import numpy as np
import torch
from conftest import FIRST

import gyrobn.torch
from gyrobn import Hyperboloid, Stats, batch_stats, normalize

HALVES = FIRST[::2], FIRST[1::2]
QUICK = {"xla_backend_optimization_level": 0}
"""For the compiler: these programs run once."""

CHEAP = {"manifold": Hyperboloid(2), "steps": 1}
"""A curved geometry that compiles fast, to test what does not depend on the geometry."""


def batches(M: Any, *shape: int, spread: float = 0.4) -> np.ndarray:
    """Points around one that is not the origin."""
    return M.add(M.random(rng=9, spread=0.5), M.random(*shape, rng=4, spread=spread))


class Case:
    """Two batches of a geometry with two channels, a bias and a scale, and what torch does."""

    momentum = 0.9

    def __init__(self, M: Any, batch: int = 5) -> None:
        rng = np.random.default_rng(3)
        blocks = () if len(M.blocks) == 1 else (len(M.blocks),)
        self.M, self.x = M, batches(M, 2, batch, 2)
        self.bias = 0.3 * rng.standard_normal((2, M.dim))
        self.scale = 0.5 + rng.random((2, *blocks))
        self.weight = rng.standard_normal(self.x.shape[1:])

    def torch_layer(self, **options: Any) -> Any:
        layer = gyrobn.torch.GyroBN(
            self.M, 2, momentum=1 - self.momentum, dtype=torch.float64, **options
        )
        with torch.no_grad():
            layer.bias.copy_(torch.as_tensor(self.bias))
            layer.scale.copy_(torch.as_tensor(self.scale))
        return layer

    def torch_step(self, layer: Any, i: int) -> dict[str, Any]:
        """Value, gradients and running statistics for one of the batches."""
        x = torch.as_tensor(self.x[i]).requires_grad_(True)
        layer.zero_grad()
        y = layer(x)
        (y * torch.as_tensor(self.weight)).sum().backward()
        found = {"y": y, "x": x.grad, "bias": layer.bias.grad, "scale": layer.scale.grad}
        if layer.raw_curvature is not None:
            found["raw_curvature"] = layer.raw_curvature.grad
        found |= {"mean": layer.running_mean, "var": layer.running_var}
        return {name: value.detach().numpy().copy() for name, value in found.items()}

    def numpy_values(self, stats: Stats | None = None) -> Any:
        x = self.x[0]
        stats = batch_stats(self.M, x) if stats is None else stats
        return normalize(self.M, x, stats, self.M.from_normal(self.bias), self.scale)


def check(case: Case, program: Any, **options: Any) -> None:
    """Hold ``program(x, training)``, which keeps its state, to NumPy and to torch."""
    layer = case.torch_layer(**options)
    for i in (0, 1):  # the second batch finds running statistics of its own
        expected = case.torch_step(layer, i)
        found = program(jax.numpy.asarray(case.x[i]), training=True)
        compare(found, expected)
        if i == 0 and not options:
            np.testing.assert_allclose(found["y"], case.numpy_values(), atol=1e-10)
    layer.eval()
    expected = case.torch_step(layer, 0)
    found = program(jax.numpy.asarray(case.x[0]), training=False)
    compare(found, expected)
    if not options:
        stats = Stats(expected["mean"], expected["var"])
        np.testing.assert_allclose(found["y"], case.numpy_values(stats), atol=1e-10)


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert np.isfinite(value).all()
        np.testing.assert_allclose(found[name], value, atol=1e-10, rtol=1e-10, err_msg=name)
