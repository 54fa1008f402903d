"""Import this module to pass geometries through ``jax.jit`` before any JAX array was seen.

A geometry is a pytree of JAX. It is registered when it is made after ``import jax``, or when gyrobn
sees its first JAX array. If a geometry was made before ``import jax`` and is the argument of a
jitted function, import this module first.
"""

from gyrobn.backends import jax as _registers  # noqa: F401
