"""What JAX knows of arrays under ``shard_map``: along which axes they differ between devices."""

from typing import Any

import jax

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
