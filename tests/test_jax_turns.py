"""Decompositions of one JAX program take turns on a CPU: jaxlib 0.10 hangs if too many run at once.

See HANGS in gyrobn/backends/jax.py.
"""

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import gyrobn.backends.jax
from gyrobn.backends.jax import while_loop

if not gyrobn.backends.jax.HANGS:
    pytest.skip("this jaxlib does not split batches", allow_module_level=True)

xp = gyrobn.backends.jax.namespace

PROGRAM = """
import jax
import jax.numpy as jnp
from gyrobn import SPD

M = SPD(8, "log_euclidean")
x = M.random(1024, rng=0, like=jnp.zeros(()))
logs = jax.jit(lambda x: [M.to_normal(jnp.exp(k * jnp.sin(x))) for k in range(1, 9)])
for _ in range(60):
    jax.block_until_ready(logs(x))
"""
"""Eight independent decompositions. On two threads it hung in one of the first five runs."""


def test_a_program_with_many_decompositions_ends():
    environment = os.environ | {"NPROC": "2"}  # the number of threads of JAX, whatever the machine
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=120)


def definite(count=6, n=3):
    """Random positive definite matrices."""
    a = np.random.default_rng(0).standard_normal((count, n, n))
    return jnp.asarray(a @ a.swapaxes(-1, -2) + np.eye(n))


def several(A, linalg):
    """A function with decompositions that do not depend on one another, and a loop."""
    loop = while_loop if linalg is xp.linalg else plain_loop
    grow = lambda c, s: (s[0] + linalg.inv(s[0]),)  # noqa: E731
    (found,) = loop("grow", lambda s: jnp.all(s[0] < 9.0), grow, (), (A,), 3)
    values, U = linalg.eigh(A)
    _, c, _ = linalg.svd(A + 1.0, full_matrices=False)
    sign, size = linalg.slogdet(A)
    Q, R = linalg.qr(A)
    solved = linalg.solve(A + U * values[..., None, :], linalg.cholesky(A))
    rest = linalg.eigvalsh(A - 1.0), linalg.det(A)
    return jnp.sum(found) + sum(jnp.sum(x) for x in (c, sign, size, Q * R, solved, *rest))


def plain_loop(key, condition, body, constants, state, limit):
    """What ``while_loop`` of the shim compiles."""
    _, state = jax.lax.while_loop(
        lambda counted: (counted[0] < limit) & condition(counted[1]),
        lambda counted: (counted[0] + 1, body(constants, counted[1])),
        (0, state),
    )
    return state


TRANSFORMS = {
    "value": lambda f: f,
    "vmap": lambda f: jax.vmap(lambda A: jax.vmap(f)(A)),
    "slope": lambda f: lambda A: jax.jvp(f, (A,), (jnp.sin(A),))[1],
    "checkpoint": lambda f: jax.checkpoint(f),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_the_numbers_stay(transform):
    """To the last digit: taking turns only decides when something is computed."""
    A = definite()
    A = jnp.reshape(A, (2, 3, 1, 3, 3)) if transform is TRANSFORMS["vmap"] else A
    found, expected = (
        jax.jit(transform(partial(several, linalg=linalg)))(A) for linalg in (xp.linalg, jnp.linalg)
    )
    np.testing.assert_array_equal(found, expected)


def test_gradients_and_transposes_stay():
    A, b = definite(), jnp.ones((6, 3, 2))

    def loss(A, b, linalg):
        return jnp.sum(jnp.sin(linalg.solve(A, b))) + jnp.sum(linalg.cholesky(linalg.inv(A)))

    def slopes(A, b, linalg):
        return jnp.sum(jax.grad(loss)(A, b, linalg))

    for order in (jax.grad(loss, (0, 1)), jax.grad(slopes, (0, 1))):
        found, expected = (
            jax.jit(partial(order, linalg=linalg))(A, b) for linalg in (xp.linalg, jnp.linalg)
        )
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)


def test_a_loop_that_returns_what_it_was_given():
    A = definite()

    def given(A):
        inverse, values = xp.linalg.inv(A), xp.linalg.eigvalsh(A)
        grow = lambda c, s: (s[0], s[1] + s[0])  # noqa: E731
        return values, *while_loop("", lambda s: jnp.all(s[1] < 9.0), grow, (), (inverse, A), 3)

    _, inverse, total = jax.jit(given)(A)
    np.testing.assert_allclose(inverse, np.linalg.inv(A), rtol=1e-12)
    assert jnp.all(jnp.isfinite(total))


def test_no_samples():
    def both(A):
        return xp.linalg.eigh(A)[0], xp.linalg.inv(A)

    values, inverse = jax.jit(both)(jnp.zeros((0, 3, 3)))
    assert values.shape == (0, 3)
    assert inverse.shape == (0, 3, 3)


def program(function, *platforms, shape="6, 3, 3"):
    """Return the text of a program for some devices."""
    kind = jax.ShapeDtypeStruct(export.symbolic_shape(shape), "float32")
    return export.export(jax.jit(function), platforms=platforms)(kind).mlir_module()


def both(linalg):
    """Return a function with two independent decompositions."""
    return lambda A: (linalg.cholesky(A), linalg.cholesky(A + 1.0))


@pytest.mark.parametrize("shape", ["6, 3, 3", "count, 3, 3"])
def test_a_cpu_waits(shape):
    waits, plain = (program(both(linalg), "cpu", shape=shape) for linalg in (xp.linalg, jnp.linalg))
    assert waits.count("stablehlo.select") == plain.count("stablehlo.select") + 1


@pytest.mark.parametrize("platforms", [("cuda",), ("tpu",), ("cpu", "cuda")])
def test_other_devices_have_the_same_program(platforms):
    waits, plain = (program(both(linalg), *platforms) for linalg in (xp.linalg, jnp.linalg))
    assert waits.count("stablehlo.") == plain.count("stablehlo.")
