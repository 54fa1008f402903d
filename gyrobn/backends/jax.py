"""JAX."""

import os
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.version import __version_info__ as _version

from gyrobn.backends import declared, with_functions
from gyrobn.backends import numpy as eager
from gyrobn.backends.contract import THIRD_ORDER, Array, Arrays, Loop

if (0, 10) <= _version < (0, 11, 2) and "NPROC" not in os.environ:
    # pyproject.toml excludes them: a batch is split among threads, and one of them waits for all
    warnings.warn(
        "jaxlib 0.10.0 to 0.11.1 may hang on a CPU when a program decomposes several batches of "
        "matrices: install another version, or set the environment variable NPROC=8 before JAX "
        "starts",
        stacklevel=2,
    )

# ---------------------------------------------------------------------- arrays


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

    def automatic(*arrays: Array) -> tuple[list[Array], list[Array]]:
        for k, array in zip(places, arrays, strict=True):
            leaves[k] = array
        x, args = jax.tree.unflatten(tree, leaves)
        found, structure = jax.tree.flatten(function(x, *args))
        as_x = [jnp.shape(a) == x.shape for a in found]
        results[:] = structure, as_x
        both = list(zip(found, as_x, strict=True))
        others = [a for a, same in both if not same]
        shardings = (getattr(jax.lax.stop_gradient(a), "sharding", None) for a in arrays)
        place = next((s for s in shardings if isinstance(s, NamedSharding)), None)
        if place is not None and isinstance(place.mesh, Mesh):
            # eager results that were numbers on the host are not on the mesh yet
            others = jax.device_put(others, NamedSharding(place.mesh, everywhere))
        return [a for a, same in both if same], others

    everywhere = PartitionSpec()
    shardings = NamedSharding(mesh, jax.typeof(x).sharding.spec), NamedSharding(mesh, everywhere)
    call = jax.sharding.auto_axes(automatic, axes=mesh.explicit_axes, out_sharding=shardings)
    samples, others = map(iter, call(*(leaves[k] for k in places)))
    structure, as_x = results
    return jax.tree.unflatten(structure, [next(samples if same else others) for same in as_x])


_inv = partial(auto_sharded, jnp.linalg.inv)  # it fails on explicit axes
_matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
namespace = with_functions(
    jnp,
    linalg=with_functions(jnp.linalg, inv=_inv),
    matmul=_matmul,
    vecdot=lambda x, y, /: jnp.sum(x * y, axis=-1),
)
"""JAX as the standard has it. It would round float32 to ten bits on a GPU, and to seven on a TPU,
before it multiplies matrices or vectors."""


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

    @value.defjvp
    def derivative(primals: Any, tangents: Any) -> tuple[Arrays, Arrays]:
        constants, *inputs = primals
        outputs, v = value(*primals), tuple(jnp.asarray(t) for t in tangents[1:])
        fixed = tuple(stop_gradient(x) for x in inputs)
        first = jax.jvp(partial(function, 1, constants), fixed, v)[1]
        zeros = _second(partial(function, 2), False, constants, tuple(inputs), outputs, v)
        return outputs, tuple(a + b for a, b in zip(first, zeros, strict=True))

    return value(constants, *inputs)


def _second(function: Any, transposed: bool, *arrays: Arrays) -> Arrays:
    """Return zeros like the outputs, linear in v, with the second derivative of a function.

    ``arrays`` are constants, inputs, outputs, and v. The zeros are added to the derivative of
    ``function(constants, *inputs)`` along v; or, like the inputs, to the transposed map of v.
    JAX makes a reverse derivative by transposing a linear function, and takes all custom rules out
    of it. So what is to be done about its derivative, if anybody asks for it, has to be the rule of
    a primitive.
    """
    leaves, tree = jax.tree.flatten(arrays)
    return tuple(_second_p.bind(*leaves, rule=(function, transposed, tree)))


def _kinds(*leaves: Any, rule: Any) -> list[Any]:
    _, transposed, tree = rule
    return list(tree.unflatten(leaves)[1 if transposed else 2])


def _zeros(*leaves: Any, rule: Any) -> list[Array]:
    return list(map(jnp.zeros_like, _kinds(*leaves, rule=rule)))


def _second_jvp(primals: Any, tangents: Any, rule: Any) -> tuple[Any, Any]:
    """Add the derivative by v to that by the inputs, which cannot be differentiated again."""
    function, transposed, tree = rule
    arrays = constants, inputs, _, v = tree.unflatten(primals)
    _, dx, _, dv = tree.unflatten([ad.instantiate_zeros(t) for t in tangents])

    def along(*inputs: Array) -> Any:
        at = partial(function, constants)
        return jax.vjp(at, *inputs)[1](v) if transposed else jax.jvp(at, inputs, v)[1]

    zeros, found = (_second(function, transposed, *arrays[:3], w) for w in (v, dv))
    if any(type(t) is not ad.Zero for t in tree.unflatten(tangents)[1]):
        fence, bend = _fence(*inputs), jax.jvp(along, inputs, dx)[1]
        found = tuple(a + b + fence.astype(b.dtype) for a, b in zip(found, bend, strict=True))
    return zeros, found


def _second_transpose(cotangents: Any, *leaves: Any, rule: Any) -> list[Any]:
    function, transposed, tree = rule
    *arrays, v = tree.unflatten(leaves)
    full = tuple(ad.instantiate_zeros(c) for c in cotangents)
    found = zip(v, _second(function, not transposed, *arrays, full), strict=True)
    others = [None] * (len(leaves) - len(v))
    return others + [c if ad.is_undefined_primal(x) else None for x, c in found]


def _second_batch(axis: Any, leaves: Any, axes: Any, rule: Any) -> tuple[Any, Any]:
    function, transposed, tree = rule
    place = None if all(k is None for k in axes) else 0
    if place == 0:
        both = zip(leaves, axes, strict=True)
        leaves = [batching.bdim_at_front(a, k, axis.size) for a, k in both]
    # the function may sum over that axis
    names = {"axis_name": axis.name, "axis_size": axis.size}
    function = jax.vmap(function, in_axes=place, out_axes=place, **names)
    found = _second(function, transposed, *tree.unflatten(leaves))
    # an output that is the same for all, such as a mean of all samples, stays so
    given = tree.unflatten(axes)[1 if transposed else 2]
    places = [None if k is None and not transposed else place for k in given]
    pairs = list(zip(found, places, strict=True))
    return [a[0] if k is None and place == 0 else a for a, k in pairs], places


@jax.custom_jvp
def _fence(*inputs: Array) -> Array:
    """Return zero, which cannot be differentiated."""
    return jnp.zeros(())


@_fence.defjvp
def _third(primals: Any, tangents: Any) -> Any:
    raise TypeError(THIRD_ORDER)


_second_p = Primitive("gyrobn_second")
_second_p.multiple_results = True
_second_p.def_impl(_zeros)
_second_p.def_abstract_eval(_kinds)
mlir.register_lowering(_second_p, mlir.lower_fun(_zeros, multiple_results=True))
ad.primitive_jvps[_second_p] = _second_jvp
ad.primitive_transposes[_second_p] = _second_transpose
batching.fancy_primitive_batchers[_second_p] = _second_batch


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

    if limit == 1:  # XLA would take what does not change out of a loop, and always compute it
        once = partial(body, constants)
        only: Loop = jax.lax.cond(condition(state), once, lambda same: same, state)
        return only
    found: Loop
    _, found = jax.lax.while_loop(
        lambda counted: (counted[0] < limit) & condition(counted[1]),
        lambda counted: (counted[0] + 1, body(constants, counted[1])),
        (jnp.zeros((), jnp.int32), state),
    )
    return found


def all_sum(x: Array, group: Any) -> Array:
    """Return the sum over a named axis: ``group`` is a pair of its name and groups of indices.

    The sum counts as one that differs between devices. Otherwise ``shard_map`` would sum cotangents
    where the sum meets the samples, as arrays with a row per sample, and not here.
    """
    name, groups = group
    total = jax.lax.psum(x, name, axis_index_groups=groups)
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


cached = eager.made  # a constant of the program, or an array anew


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
