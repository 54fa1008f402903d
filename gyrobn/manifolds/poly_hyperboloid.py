"""The product of hyperboloids of dimension 1, 2, ..., m: one per row, all computed at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace, space_of
from gyrobn.manifolds.radius import Hyperboloid
from gyrobn.numerics.arrays import Totals, check_coordinates, length, together
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import from_triangle, to_triangle

__all__ = ["PolyHyperboloid"]


@dataclass(frozen=True)
class PolyHyperboloid(GyroSpace):
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

    def _pack(self, rows: Array) -> Array:
        """Return the coordinates of the rows, one after the other, without the zeros."""
        return to_triangle(rows, diagonal=True)

    def _unpack(self, c: Array) -> Array:
        return from_triangle(c, self.m, diagonal=True)

    def _by_row(self, t: Any) -> Any:
        """Return multipliers with an axis for the rows, or a number for all of them."""
        return self.expand_blocks(t) if getattr(t, "ndim", 0) else t

    # ------------------------------------------------------------------ gyro operations

    def origin(self, like: Array) -> Array:
        """Return the identity of the hyperboloid in every row."""
        return namespace_of(like).broadcast_to(self.row.origin(like), self.point_shape)

    def add(self, x: Array, y: Array) -> Array:
        """Gyroaddition of every row."""
        self._namespace(x, y)
        return self.row.add(x, y)

    def neg(self, x: Array) -> Array:
        """Gyroinverse of every row."""
        self._namespace(x)
        return self.row.neg(x)

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y` for every row."""
        self._namespace(x, y)
        return self.row.relative(x, y)

    def to_normal(self, x: Array) -> Array:
        """Normal coordinates of the rows, one after the other."""
        self._namespace(x)
        return self._pack(self.row.to_normal(x))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`."""
        self._namespace(x, y)
        return self._pack(self.row.relative_normal(x, y))

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`."""
        check_coordinates(self, c)
        return self.row.from_normal(self._unpack(c))

    def scale(self, t: Array | float, x: Array) -> Array:
        """Gyromultiplication of every row, by one number per row or one for all."""
        self._namespace(x)
        return self.row.scale(self._by_row(t), x)

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias every row."""
        self._namespace(x, mean, *(() if bias is None else (bias,)))
        return self.row.standardize(x, mean, self._by_row(factor), bias)

    def norm(self, x: Array) -> Array:
        r"""Gyronorm :math:`\sqrt{\sum_k \|x_k\|^2}`."""
        self._namespace(x)
        return length(self.row.norm(x))

    def dist(self, x: Array, y: Array) -> Array:
        r"""Distance :math:`\sqrt{\sum_k d^2(x_k, y_k)}`."""
        self._namespace(x, y)
        return length(self.row.dist(x, y))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        """Gyration of every row."""
        self._namespace(x, y, z)
        return self.row.gyration(x, y, z)

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return self._pack(self.row._gyrate_normal(x, y, self._unpack(c)))

    # ------------------------------------------------------------------ points and tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        """Carry normal coordinates at e to a tangent vector at x, row by row."""
        return self.row.push(x, self._unpack(c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        return self._pack(self.row.pull(x, v))

    def project(self, x: Array) -> Array:
        """Recompute the times from the spatial parts."""
        self._namespace(x)
        return self.row.project(x)

    def violation(self, x: Array) -> Array:
        """Return the largest violation of a row."""
        xp = self._namespace(x)
        return xp.max(self.row.violation(x), axis=-1)

    def resolution(self, x: Array) -> Array:
        """Return the largest resolution of a row."""
        return namespace_of(x).max(self.resolutions(x), axis=-1)

    def resolutions(self, x: Array) -> Array:
        """Return the resolution of each row."""
        self._namespace(x)
        return self.row.resolution(x)

    # ------------------------------------------------------------------ the mean

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
        )

    def _weights(self, weights: Array) -> Array:
        xp = namespace_of(weights)
        return xp.broadcast_to(weights[..., None], (*weights.shape, self.m))
