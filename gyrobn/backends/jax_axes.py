"""What JAX knows of arrays on several devices: how they are distributed, and where they differ."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from gyrobn.backends.contract import Array


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
        as_x.extend(jax.numpy.shape(a) == x.shape for a in found)
        both = list(zip(found, as_x, strict=True))
        return [a for a, same in both if same], [a for a, same in both if not same]

    spec = jax.typeof(x).sharding.spec
    everywhere = PartitionSpec()  # type: ignore[no-untyped-call]
    shardings = NamedSharding(mesh, spec), NamedSharding(mesh, everywhere)
    call = jax.sharding.auto_axes(automatic, axes=mesh.explicit_axes, out_sharding=shardings)
    samples, others = map(iter, call(*(leaves[k] for k in places)))
    return jax.tree.unflatten(results[0], [next(samples if same else others) for same in as_x])
