"""Many matrices as one wide matrix, which a factor on their left multiplies in one product."""

import math

from gyrobn.backends import Array, namespace_of

__all__ = ["apart", "beside"]


def beside(A: Array, count: int) -> Array:
    """Put the matrices along the first ``count`` axes beside each other, as one wide matrix.

    One product with it is several times as fast as one product per matrix.
    """
    xp = namespace_of(A)
    axes = tuple(range(A.ndim))
    A = xp.permute_dims(A, (*axes[count:-1], *axes[:count], axes[-1]))
    return xp.reshape(A, (*A.shape[: -1 - count], math.prod(A.shape[-1 - count :])))


def apart(A: Array, sizes: tuple[int, ...]) -> Array:
    """Undo :func:`beside`: ``sizes`` are the lengths of the first axes and of the last one."""
    xp = namespace_of(A)
    A = xp.reshape(A, (*A.shape[:-1], *sizes))
    axes = tuple(range(A.ndim))
    rows = A.ndim - len(sizes)
    return xp.permute_dims(A, (*axes[rows:-1], *axes[:rows], axes[-1]))
