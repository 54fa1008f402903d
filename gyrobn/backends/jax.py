"""JAX."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib.version import __version_info__ as _version

from gyrobn.backends import declared, with_functions
from gyrobn.backends import numpy as eager
from gyrobn.backends.contract import Array, Arrays, Loop
from gyrobn.backends.jax_twice import bent, is_zero, replaced

SPLITS = (0, 10) <= _version < (0, 11, 2)
"""Whether jaxlib splits batches of matrices among threads, and may hang: see ``jax_turns``."""

if SPLITS:
    from gyrobn.backends.jax_turns import in_turn
    from gyrobn.backends.jax_turns import namespace as _namespace
else:
    _namespace = jnp

    def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, a decomposition: it may run beside others."""
        return function


def auto_sharded(function: Callable[..., Any], x: Array, *args: Any) -> Any:
    """Return ``function(x, *args)`` with the axes of a mesh as ``Auto`` that are ``Explicit``.

    With explicit axes, the default of ``jax.make_mesh``, each operation must be told how its result
    is distributed if the batch axis is summed over, sliced or reshaped.
    """
    leaves, tree = jax.tree.flatten((x, args))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    meshes = (jax.typeof(leaves[k]).sharding.mesh for k in places)
    mesh = next((m for m in meshes if m.explicit_axes), None)
    if mesh is None:
        return function(x, *args)
    results: list[Any] = []
    as_x: list[bool] = []

    def automatic(*arrays: Array) -> tuple[list[Array], list[Array]]:
        for k, array in zip(places, arrays, strict=True):
            leaves[k] = array
        x, args = jax.tree.unflatten(tree, leaves)
        found, structure = jax.tree.flatten(function(x, *args))
        results.append(structure)
        as_x.extend(jnp.shape(a) == x.shape for a in found)
        both = list(zip(found, as_x, strict=True))
        return [a for a, same in both if same], [a for a, same in both if not same]

    spec = jax.typeof(x).sharding.spec
    everywhere = PartitionSpec()  # type: ignore[no-untyped-call]
    shardings = NamedSharding(mesh, spec), NamedSharding(mesh, everywhere)
    call = jax.sharding.auto_axes(automatic, axes=mesh.explicit_axes, out_sharding=shardings)
    samples, others = map(iter, call(*(leaves[k] for k in places)))
    return jax.tree.unflatten(results[0], [next(samples if same else others) for same in as_x])


namespace = with_functions(
    _namespace,
    linalg=with_functions(
        _namespace.linalg,
        inv=partial(auto_sharded, _namespace.linalg.inv),  # it fails on explicit axes
    ),
    matmul=partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST),
)
"""JAX as the standard has it. It would round float32 to ten bits on a GPU, and to seven on a TPU,
before it multiplies matrices."""


def traced(x: Array) -> bool:
    """Return whether ``x`` is traced."""
    return isinstance(x, jax.core.Tracer)


def differentiable(*arrays: Any) -> bool:
    """Return whether any of ``arrays`` is traced: a transformation may differentiate it."""
    return any(isinstance(a, jax.core.Tracer) for a in arrays)


def stop_gradient(x: Array) -> Array:
    """Return ``x`` as a constant to differentiation: an array of JAX, also if it is NumPy's."""
    found = jax.lax.stop_gradient(x)
    return found if isinstance(found, jax.Array) else jnp.asarray(found)


# ---------------------------------------------------------------------- derivatives


def differentiate(function: Callable[..., Arrays], constants: Arrays, *inputs: Array) -> Arrays:
    """Return the values; their derivatives are those of the graph of the order that is needed."""
    if not differentiable(*inputs):
        return function(0, constants, *inputs)

    @jax.custom_jvp
    def value(constants: Arrays, *inputs: Array) -> Arrays:
        return function(0, constants, *inputs)

    def derivative(arrays: Any, tangents: Any) -> tuple[Arrays, Arrays]:
        constants, *inputs = arrays
        moving = [k for k, t in enumerate(tangents[1:]) if not is_zero(t)]
        fixed = [stop_gradient(x) for x in inputs]

        def among(*some: Array) -> Arrays:
            return function(1, constants, *replaced(tuple(fixed), moving, some))

        at, along = ([a[k] for k in moving] for a in (fixed, tangents[1:]))
        found = jax.jvp(among, at, [jnp.asarray(t) for t in along])[1]
        twice = partial(function, 2)
        return value(*arrays), bent(twice, constants, tuple(inputs), tangents[1:], found)

    value.defjvp(derivative, symbolic_zeros=True)
    return value(constants, *inputs)


def self_adjoint(solve: Callable[[Array], Array], v: Array) -> Array:
    """Return ``solve(v)``, with itself as its derivative."""
    # the matrix is not needed: ``solve`` alone defines the value, and its transpose
    found: Array = jax.lax.custom_linear_solve(
        lambda x: x, v, lambda _, b: solve(b), symmetric=True
    )
    return found


# ---------------------------------------------------------------------- loops and devices


def while_loop(
    key: Any,
    condition: Callable[[Loop], Array],
    body: Callable[[Arrays, Loop], Loop],
    constants: Arrays,
    state: Loop,
    limit: int,
) -> Loop:
    """Run ``body`` while ``condition`` holds; in one compiled loop if the state is traced.

    Outside of ``jit`` an eager loop is far faster: JAX would compile the loop at every call.
    """
    if not any(traced(s) for s in jax.tree.leaves(state)):
        return eager.while_loop(key, condition, body, constants, state, limit)

    def compiled(state: Loop) -> Any:
        _, found = jax.lax.while_loop(
            lambda counted: (counted[0] < limit) & condition(counted[1]),
            lambda counted: (counted[0] + 1, body(constants, counted[1])),
            (jnp.zeros((), jnp.int32), state),
        )
        return found

    found: Loop = in_turn(compiled)(state)
    return found


def all_sum(x: Array, group: Any) -> Array:
    """Return the sum over a named axis: ``group`` is a pair of its name and groups of indices.

    The sum counts as one that differs between devices. Otherwise ``shard_map`` would sum cotangents
    where the sum meets the samples, as arrays with a row per sample, and not here.
    """
    name, groups = group
    total = jax.lax.psum(x, name, axis_index_groups=groups)  # type: ignore[no-untyped-call]
    return varying(total, name) if varies(x) else total


def varying(x: Array, name: Any) -> Array:
    """Return ``x`` as an array that may differ between the devices of an axis of ``shard_map``."""
    names = (name,) if isinstance(name, str) else tuple(name)
    missing = tuple(n for n in names if n not in varies(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def varies(x: Array) -> Any:
    """Return the axes of ``shard_map`` along which ``x`` varies; none without ``check_vma``."""
    kind = jax.typeof(x)
    kind = getattr(kind, "mat", kind)  # JAX 0.10 has "mat.varying", others "vma" or nothing
    return getattr(kind, "varying", getattr(kind, "vma", ()))


def cached(make: Callable[..., Any], like: Array, *key: Any) -> Array:
    """Return ``make(*key)`` like ``like``: a constant of the program, or an array anew."""
    return eager.made(make, like, *key)


def device(x: Array) -> Any:
    """Return None: JAX moves new arrays to where ``x`` is, also when that is a mesh of devices."""
    return None


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` on the host."""
    return np.asarray(x)


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` as a JAX array in the dtype of ``like``, committed to a device if that is.

    An array that is not committed goes where it is needed, also to the devices of a mesh.
    """
    x = jnp.asarray(a, dtype=like.dtype)
    if isinstance(like, jax.core.Tracer) or not like.committed or len(like.devices()) > 1:
        return x
    return jax.device_put(x, *like.devices())


# ---------------------------------------------------------------------- geometries as pytrees


def register() -> None:
    """Make the declared dataclasses pytrees: the fields in ``cls.parameters`` are the children."""
    while declared:
        cls: Any = declared.pop()
        children = list(cls.parameters)
        others = [f.name for f in fields(cls) if f.name not in children]
        jax.tree_util.register_dataclass(cls, data_fields=children, meta_fields=others)


register()
