"""JAX."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gyrobn.backends import Array
from gyrobn.backends.numpy import SECOND_ORDER, Rule
from gyrobn.backends.numpy import opaque as opaque
from gyrobn.backends.numpy import stored as stored
from gyrobn.backends.numpy import while_loop as eager_while_loop

State = tuple[Array, ...]


def differentiable(*arrays: Array) -> bool:
    """Tell whether a transformation may differentiate any of ``arrays``: whenever one is traced."""
    return any(isinstance(a, jax.core.Tracer) for a in arrays)


def hides_values(x: Array) -> bool:
    """Tell whether ``x`` is traced."""
    return isinstance(x, jax.core.Tracer)


def stop_gradient(x: Array) -> Array:
    """Return ``x`` as a constant to differentiation."""
    return jax.lax.stop_gradient(x)


def while_loop(
    condition: Callable[[State], Array], body: Callable[[State], State], state: State, limit: int
) -> State:
    """Run ``body`` while ``condition`` holds, at most ``limit`` times.

    In one compiled loop where the state is traced. Outside of ``jit`` an eager loop is far faster:
    JAX would compile the compiled one anew at every call.
    """
    if not any(hides_values(s) for s in state):
        return eager_while_loop(condition, body, state, limit)
    count = jax.numpy.zeros((), dtype=jax.numpy.int32)
    _, state = jax.lax.while_loop(
        lambda counted: (counted[0] < limit) & condition(counted[1]),
        lambda counted: (counted[0] + 1, body(counted[1])),
        (count, state),
    )
    return state


def device(x: Array) -> Any:
    """Return None: JAX moves new arrays to where ``x`` is, also when that is a mesh of devices."""
    return None


def vecdot(x: Array, y: Array) -> Array:
    """Return the inner product along the last axis."""
    return jax.numpy.sum(x * y, axis=-1)


def add_product(total: Array, scalar: Any, vector: Array, in_place: bool) -> Array:
    """Return ``total + scalar * vector``, with one scalar a vector; XLA fuses it."""
    return total + (scalar if isinstance(scalar, float) else scalar[..., None]) * vector


def with_derivative(
    primal: Callable[..., tuple[tuple[Array, ...], tuple[Array, ...]]],
    tangent: Rule,
    cotangent: Rule,
    *inputs: Array,
) -> tuple[Array, ...]:
    """Return the outputs of ``primal`` with the derivative ``tangent``, which JAX transposes."""

    @jax.custom_jvp
    def function(*inputs: Array) -> tuple[Array, ...]:
        return primal(*inputs)[0]

    @function.defjvp
    def derivative(inputs: State, changes: State) -> tuple[State, State]:
        outputs, kept = primal(*(_once(x) for x in inputs))
        return outputs, tangent(kept, *changes)

    return function(*inputs)


@jax.custom_jvp
def _once(x: Array) -> Array:
    """Return ``x``; nothing that is computed from it may be differentiated again."""
    return x


@_once.defjvp
def _refuse(inputs: State, changes: State) -> tuple[Array, Array]:
    raise TypeError(SECOND_ORDER)


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` on the host."""
    return np.asarray(x)


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` as a JAX array in the dtype of ``like``, committed to a device if that is.

    An array that is not committed goes where it is needed, also to the devices of a mesh.
    """
    x = jax.numpy.asarray(a, dtype=like.dtype)
    if isinstance(like, jax.core.Tracer) or not like.committed or len(like.devices()) > 1:
        return x
    return jax.device_put(x, *like.devices())
