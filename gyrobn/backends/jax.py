"""JAX."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial, reduce
from typing import Any

import jax
import numpy as np
from jaxlib.version import __version_info__ as _version

from gyrobn.backends import with_functions
from gyrobn.backends.contract import Array, Loop, Partials, Primal, Rule, State
from gyrobn.backends.jax_axes import auto_sharded as auto_sharded
from gyrobn.backends.jax_axes import varies, varying
from gyrobn.backends.jax_twice import bent, filled, is_zero, replaced
from gyrobn.backends.numpy import few as few
from gyrobn.backends.numpy import from_few as from_few
from gyrobn.backends.numpy import opaque as opaque
from gyrobn.backends.numpy import stored as stored
from gyrobn.backends.numpy import while_loop as _eager_while_loop
from gyrobn.backends.pytrees import follow

SPLITS = (0, 10) <= _version < (0, 11, 2)
"""Whether jaxlib splits batches of matrices among threads, and may hang: see ``jax_turns``."""

if SPLITS:
    from gyrobn.backends.jax_turns import in_turn
    from gyrobn.backends.jax_turns import namespace as _namespace
else:
    _namespace = jax.numpy

    def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, a decomposition: it may run beside others."""
        return function


namespace = with_functions(
    _namespace,
    linalg=with_functions(
        _namespace.linalg,
        inv=partial(auto_sharded, _namespace.linalg.inv),  # it fails on explicit axes
    ),
    matmul=partial(jax.numpy.matmul, precision=jax.lax.Precision.HIGHEST),
)
"""JAX as the standard has it. It would round float32 to ten bits on a GPU, and to seven on a TPU,
before it multiplies matrices."""


def differentiable(*arrays: Array) -> bool:
    """Return whether a transformation may differentiate ``arrays``: if any of them is traced."""
    return any(isinstance(a, jax.core.Tracer) for a in arrays)


def hides_values(x: Array) -> bool:
    """Return whether ``x`` is traced."""
    return isinstance(x, jax.core.Tracer)


def plain(x: Array) -> bool:
    """Return False: under a transformation, arrays that are not traced give traced ones, too."""
    return False


def stop_gradient(x: Array) -> Array:
    """Return ``x`` as a constant to differentiation: an array of JAX, also if it is NumPy's."""
    found = jax.lax.stop_gradient(x)
    return found if isinstance(found, jax.Array) else jax.numpy.asarray(found)


def while_loop(
    condition: Callable[..., Array], body: Callable[..., Loop], state: Loop, limit: int
) -> Loop:
    """Run ``body`` while ``condition`` holds, at most ``limit`` times.

    In one compiled loop where the state is traced. Outside of ``jit`` an eager loop is far faster:
    JAX would compile the compiled one anew at every call.
    """
    if not any(hides_values(s) for s in state):
        return _eager_while_loop(condition, body, state, limit)

    def compiled(state: State) -> State:
        count = jax.numpy.zeros((), dtype=jax.numpy.int32)
        _, state = jax.lax.while_loop(
            lambda counted: (counted[0] < limit) & condition(counted[1]),
            lambda counted: (counted[0] + 1, body(counted[1])),
            (count, state),
        )
        return state

    return in_turn(compiled)(state)


def device(x: Array) -> Any:
    """Return None: JAX moves new arrays to where ``x`` is, also when that is a mesh of devices."""
    return None


def vecdot(x: Array, y: Array) -> Array:
    """Return the inner product along the last axis."""
    return jax.numpy.sum(x * y, axis=-1)


def take(x: Array, indices: Array) -> Array:
    """Return the entries at ``indices``, along the last axis, without a check for negative ones."""
    return jax.numpy.take(x, indices, axis=-1, mode="clip")


def norm(x: Array) -> Array:
    """Return the length along the last axis."""
    return jax.numpy.sqrt(vecdot(x, x))


def add_product(total: Array, scalar: Any, vector: Array, out: Any) -> Array:
    """Return ``total + scalar * vector``, with one scalar per vector; XLA fuses it."""
    return total + (scalar if isinstance(scalar, float) else scalar[..., None]) * vector


def with_derivative(
    primal: Primal, tangent: Rule, cotangent: Rule, *inputs: Array, twice: Rule | None = None
) -> State:
    """Return the outputs of ``primal`` with the derivative ``tangent``, which JAX transposes."""
    known = primal(*(stop_gradient(x) for x in inputs))
    if not differentiable(*inputs):
        return known[0]

    @jax.custom_jvp
    def ruled(inputs: State, known: tuple[State, State]) -> State:
        return known[0]

    def derivative(arrays: tuple[Any, ...], changes: tuple[Any, ...]) -> tuple[State, State]:
        inputs, (_, kept) = arrays
        found = tangent(kept, *map(filled, inputs, changes[0]))
        return ruled(*arrays), bent(twice, kept, inputs, changes[0], found)

    ruled.defjvp(derivative, symbolic_zeros=True)
    return ruled(inputs, known)


def implicit(rules: Any, constants: State, image: State, *inputs: Array) -> State:
    """Return the first of ``constants``, a root that depends on ``inputs``, and ``image``."""
    if not differentiable(*inputs):
        return constants[0], *image
    count, shown = len(constants), len(constants) + len(image)
    differentiable_rule = rules.differentiable()

    @jax.custom_jvp
    def root(*arrays: Array) -> State:
        return arrays[0], *arrays[count:shown]

    def derivative(arrays: State, changes: State) -> tuple[State, State]:
        outputs, changes = root(*arrays), changes[shown:]
        here = outputs[0], *arrays[1:count], *outputs[1:], *arrays[shown:]
        if not differentiable_rule:
            here = tuple(stop_gradient(a) for a in arrays)
        at = here[:count]
        found = _moves(rules, at, here[count:shown], here[shown:], changes)
        if differentiable_rule:
            return outputs, found
        return outputs, bent(rules.twice, at, arrays[shown:], changes, found)

    root.defjvp(derivative, symbolic_zeros=True)
    return root(*constants, *image, *inputs)


def _moves(rules: Any, at: State, image: State, inputs: State, changes: Sequence[Any]) -> State:
    """Return the changes of a root and its image by those of the inputs that change."""
    moving = [k for k, change in enumerate(changes) if not is_zero(change)]
    values, slopes = (tuple(a[k] for k in moving) for a in (inputs, changes))

    def among(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of its first argument and of the inputs that change."""
        return lambda first, *some: function(first, *replaced(inputs, moving, some))

    if rules.sums is not None:
        at = *at[:-2], *_recalled(rules.sums, at, inputs)
    show = among(lambda mean, *x: rules.image((mean, *at[1:]), *x))
    _, push = jax.linearize(show, at[0], *values)
    dg, also = push(jax.numpy.zeros_like(at[0]), *slopes), None
    if rules.total is not None:
        image, also = image[:-1], dg[-2]
    step, also = rules.inverse(image, (), at, dg[-1], also, *inputs)
    move = among(lambda step, *x: rules.move(at, step, *x))
    _, moved = jax.jvp(move, (jax.numpy.zeros_like(step), *values), (step, *slopes))
    changed = list(push(moved, *slopes)[:-1])
    if rules.total is not None:
        changed[-1] = also + rules.fall(at, step)
    return moved, *changed


def _recalled(sums: Callable[..., State], constants: State, inputs: State) -> State:
    """Return the last two constants, which are known; ``sums`` computes only their derivatives."""

    @jax.custom_jvp
    def recalled(constants: State, *inputs: Array) -> State:
        return constants[-2:]

    @recalled.defjvp
    def derivative(arrays: tuple[Any, ...], changes: tuple[Any, ...]) -> tuple[State, State]:
        return recalled(*arrays), jax.jvp(sums, arrays, changes)[1]

    return recalled(constants, *inputs)


def all_sum(x: Array, group: Any) -> Array:
    """Return the sum over a named axis: ``group`` is a pair of its name and groups of indices.

    The sum counts as one that differs between devices. Otherwise ``shard_map`` would sum slopes
    where the sum meets the samples, as arrays with a row per sample, and not here.
    """
    name, groups = group
    total = jax.lax.psum(x, name, axis_index_groups=groups)  # type: ignore[no-untyped-call]
    return varying(total, name) if varies(x) else total


def smooth(function: Rule, partials: Partials, *inputs: Array) -> State:
    """Return the outputs of an elementwise function, with its derivatives where it is traced."""
    if not differentiable(*inputs):
        return function(*inputs)

    @jax.custom_jvp
    def ruled(*inputs: Array) -> State:
        return function(*inputs)

    @ruled.defjvp
    def derivative(inputs: State, changes: State) -> tuple[State, State]:
        outputs = ruled(*inputs)
        rows = partials(inputs, outputs)
        terms = ([p() * c for p, c in zip(row, changes, strict=True)] for row in rows)
        return outputs, tuple(reduce(operator.add, each) for each in terms)

    return ruled(*inputs)


def shortcut(exact: Rule, primal: Primal, cotangent: Callable[..., Any], *inputs: Any) -> State:
    """Return the outputs: a derivative that is traced may be differentiated again."""
    return exact(*inputs)


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


def _register(cls: type) -> None:
    """Make a dataclass a pytree: the fields that ``cls.parameters`` names are its children."""
    children: tuple[str, ...] = cls.parameters  # type: ignore[attr-defined]
    constants = [f.name for f in fields(cls) if f.name not in children]
    jax.tree_util.register_dataclass(cls, data_fields=list(children), meta_fields=constants)


follow(_register)
