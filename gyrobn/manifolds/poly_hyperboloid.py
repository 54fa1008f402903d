"""The product of hyperboloids of dimension 1, 2, ..., m: one per row, all computed at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.composite import Composite
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.models import ProperVelocity
from gyrobn.numerics.arrays import length, zeros
from gyrobn.numerics.matrices import from_triangle, to_triangle


@dataclass(frozen=True)
class PolyHyperboloid(Composite):
    r"""The product :math:`\mathbb H^1 \times \mathbb H^2 \times \dots \times \mathbb H^m`.

    A point is one vector, as in ``Product(ProperVelocity(1), ..., ProperVelocity(m))``: the spatial
    parts of points of the unit hyperboloids, one after the other. They are computed as the rows of
    a lower triangular matrix. Zeros change no inner product and stay zero, so all rows are points
    of one :math:`\mathbb H^m` and need no loop. Each row has its own variance and scale.

    Parameters
    ----------
    m
        Number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> M = PolyHyperboloid(2)
    >>> M.dim, M.blocks
    (3, (1, 2))
    >>> M.from_normal(np.asarray([1.0, 0.0, 2.0])).round(3)
    array([1.175, 0.   , 3.627])
    """

    m: int
    drifts: ClassVar[bool] = False
    cut_locus_angle = GyroSpace.cut_locus_angle

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(dim,)``."""
        return (self.dim,)

    @property
    def dim(self) -> int:
        """Dimension 1 + 2 + ... + m."""
        return self.m * (self.m + 1) // 2

    @property
    def blocks(self) -> tuple[int, ...]:
        """One block per row: (1, 2, ..., m)."""
        return tuple(range(1, self.m + 1))

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the product whose points end in ``shape``."""
        return cls(math.isqrt(2 * shape[-1]))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the product of a line, a plane and a space."""
        return (cls(3),)

    # ------------------------------------------------------------------ all rows as one part

    @cached_property
    def _spaces(self) -> Sequence[GyroSpace]:
        return (ProperVelocity(self.m),)

    def _split(self, kind: str, a: Any) -> list[Any]:
        if kind == "weights":
            return [namespace_of(a).broadcast_to(a[..., None], (*a.shape, self.m))]
        if kind == "number":
            return [a if isinstance(a, float) or a.ndim == 0 else self.expand_blocks(a)]
        if kind == "moments":
            return [namespace_of(a).reshape(a, (*a.shape[:-1], self.m, self.m + 1))]
        return [from_triangle(a, self.m, diagonal=True)]

    def _join(self, kind: str, parts: list[Array]) -> Array:
        (rows,) = parts
        if kind == "length":
            return length(rows)
        if kind == "blocks":
            return rows[..., 0]
        if kind == "moments":
            return namespace_of(rows).reshape(rows, (*rows.shape[:-2], self.m * (self.m + 1)))
        return to_triangle(rows, diagonal=True)

    # ------------------------------------------------------------------ points, and their mean

    def origin(self, like: Array) -> Array:
        """Return the zero vector."""
        return zeros(self.dim, like)

    def violation(self, x: Array) -> Array:
        """Return 0 for every finite vector and infinity for the others."""
        self._namespace(x)
        return Euclidean(self.dim).violation(x)
