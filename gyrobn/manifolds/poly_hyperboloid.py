"""The product of hyperboloids of dimension 1, 2, ..., m: one per row, all computed at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.composite import CentredParts, Composite
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.models import ProperVelocity
from gyrobn.numerics.arrays import check_coordinates, length, zeros
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
    _view: ClassVar[type[Centred]] = CentredParts

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

    @cached_property
    def row(self) -> ProperVelocity:
        """The space that contains every row, with its zeros."""
        return ProperVelocity(self.m)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the product whose points end in ``shape``."""
        return cls(math.isqrt(2 * shape[-1]))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the product of a line, a plane and a space."""
        return (cls(3),)

    # ------------------------------------------------------------------ all rows as one part

    @property
    def _spaces(self) -> Sequence[GyroSpace]:
        return (self.row,)

    def _split(self, x: Array) -> list[Array]:
        return [from_triangle(x, self.m, diagonal=True)]

    def _join(self, parts: list[Array]) -> Array:
        (rows,) = parts
        return to_triangle(rows, diagonal=True)

    def _split_normal(self, c: Array) -> list[Array]:
        check_coordinates(self, c)
        return self._split(c)

    def _join_normal(self, parts: list[Array]) -> Array:
        return self._join(parts)

    def _split_factor(self, t: Any) -> list[Any]:
        return [t if isinstance(t, float) or t.ndim == 0 else self.expand_blocks(t)]

    def _join_lengths(self, parts: list[Array]) -> Array:
        return length(*parts)

    def _split_weights(self, weights: Array) -> list[Array]:
        shape = (*weights.shape, self.m)
        return [namespace_of(weights).broadcast_to(weights[..., None], shape)]

    def _join_blocks(self, parts: list[Array]) -> Array:
        (rows,) = parts
        return rows[..., 0]

    # ------------------------------------------------------------------ points, and their mean

    def origin(self, like: Array) -> Array:
        """Return the zero vector."""
        return zeros(self.dim, like)

    def violation(self, x: Array) -> Array:
        """Return 0 for every finite vector and infinity for the others."""
        self._namespace(x)
        return Euclidean(self.dim).violation(x)

    def moments(self, x: Array) -> Array:
        """Return the moments of the rows."""
        self._namespace(x)
        rows = self.row.moments(*self._split(x))
        return namespace_of(x).reshape(rows, (*x.shape[:-1], self.m * (self.m + 1)))

    def start(self, moments: Array) -> Array:
        """Return a first guess of the mean, row by row."""
        shape = (*moments.shape[:-1], self.m, self.m + 1)
        return self._join([self.row.start(namespace_of(moments).reshape(moments, shape))])
