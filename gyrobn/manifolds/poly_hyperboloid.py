"""The product of hyperboloids of dimension 1, 2, ..., m: one per row, all computed at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.composite import Composite
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.radius import Hyperboloid
from gyrobn.manifolds.specification import space_of
from gyrobn.numerics.arrays import Totals, check_coordinates, length, together
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import from_triangle, to_triangle


@dataclass(frozen=True)
class PolyHyperboloid(Composite):
    r"""The product :math:`\mathbb H^1 \times \mathbb H^2 \times \dots \times \mathbb H^m`.

    A point is an m × (m + 1) array: row k is a point of the unit hyperboloid, time first, whose
    spatial part has k coordinates, followed by zeros. Zeros change no inner product and stay zero,
    so all rows are points of one :math:`\mathbb H^m` and need no loop. Each row has its own
    variance and scale. The normal coordinates are those of the rows, one after the other.

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
    array([[1.543, 1.175, 0.   ],
           [3.762, 0.   , 3.627]])
    """

    m: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(m, m + 1)``."""
        return (self.m, self.m + 1)

    @property
    def dim(self) -> int:
        """Dimension 1 + 2 + ... + m."""
        return self.m * (self.m + 1) // 2

    @property
    def blocks(self) -> tuple[int, ...]:
        """One block per row: (1, 2, ..., m)."""
        return tuple(range(1, self.m + 1))

    @property
    def row(self) -> Hyperboloid:
        """The hyperboloid that contains every row, with its zeros."""
        return space_of(Hyperboloid, self.m)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the product whose points end in ``shape``."""
        return cls(shape[-2])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the product of a line, a plane and a space."""
        return (cls(3),)

    # ------------------------------------------------------------------ all rows as one part

    @property
    def _spaces(self) -> Sequence[GyroSpace]:
        return (self.row,)

    def _split_normal(self, c: Array) -> list[Array]:
        check_coordinates(self, c)
        return [self._unpack(c)]

    def _join_normal(self, parts: list[Array]) -> Array:
        return self._pack(*parts)

    def _split_factor(self, t: Any) -> list[Any]:
        return [t if isinstance(t, float) or t.ndim == 0 else self.expand_blocks(t)]

    def _join_lengths(self, parts: list[Array]) -> Array:
        return length(*parts)

    def _pack(self, rows: Array) -> Array:
        """Return the coordinates of the rows, one after the other, without the zeros."""
        return to_triangle(rows, diagonal=True)

    def _unpack(self, c: Array) -> Array:
        return from_triangle(c, self.m, diagonal=True)

    # ------------------------------------------------------------------ points, and their mean

    def origin(self, like: Array) -> Array:
        """Return the identity of the hyperboloid in every row."""
        return namespace_of(like).broadcast_to(self.row.origin(like), self.point_shape)

    def project(self, x: Array) -> Array:
        """Recompute the times from the spatial parts."""
        self._namespace(x)
        return self.row.project(x)

    def violation(self, x: Array) -> Array:
        """Return the largest violation of a row."""
        xp = self._namespace(x)
        return xp.max(self.row.violation(x), axis=-1)

    def resolutions(self, x: Array) -> Array:
        """Return the resolution of each row."""
        self._namespace(x)
        return self.row.resolution(x)

    def start(self, x: Array, weights: Array, total: Totals = together) -> Array:
        """First guess of the mean, row by row."""
        self._namespace(x)
        return self.row.start(x, self._weights(weights), total)

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Return the mean Hessian, block diagonal in the rows, which are solved together."""
        xp = namespace_of(c)
        rows = self.row.hessian(self._unpack(c), self._weights(weights))

        def apply(v: Array) -> Array:
            columns = self._unpack(xp.matrix_transpose(v))  # (*channels, k, m, m)
            # with permute_dims, since torch's vmap does not know moveaxis
            *lead, k, i, j = range(columns.ndim)
            found = rows.apply(xp.permute_dims(columns, (*lead, i, j, k)))
            return xp.matrix_transpose(self._pack(xp.permute_dims(found, (*lead, j, k, i))))

        def by_part(function: Callable[[Hessian, Array], Array], g: Array) -> Array:
            """Solve m systems of size m: on the zeros of a row, H is a multiple of the identity."""
            return self._pack(function(rows, self._unpack(g)))

        return Hessian(
            apply,
            lambda: xp.min(rows.lowest(), axis=-1),
            lambda: xp.max(rows.highest(), axis=-1),
            by_part=by_part,
            differentiable=rows.differentiable,
        )

    def _weights(self, weights: Array) -> Array:
        xp = namespace_of(weights)
        return xp.broadcast_to(weights[..., None], (*weights.shape, self.m))
