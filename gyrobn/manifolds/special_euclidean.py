"""Rigid motions: poses of cameras, robots and molecules."""

from dataclasses import dataclass, field
from typing import Any, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.group import Group
from gyrobn.manifolds.rotations import SpecialOrthogonal
from gyrobn.numerics.arrays import check_coordinates, pieces
from gyrobn.numerics.checks import check_square
from gyrobn.numerics.hessian import Hessian, flat_hessian, joined_hessian
from gyrobn.numerics.matrices import adjoint, eye, matmul


@dataclass(frozen=True)
class SpecialEuclidean(Group):
    r"""Rigid motions of :math:`\mathbb R^n` as homogeneous matrices, with two blocks.

    .. math:: \begin{pmatrix} R & t \\ 0 & 1 \end{pmatrix}, \qquad
              (R, t) \oplus (S, u) = (RS, Ru + t), \qquad
              d^2 = \|\operatorname{mlog}(R^\top S)\|^2 + \|t - u\|^2

    Left translations are isometries of this product metric of SO(n) and :math:`\mathbb R^n`, which
    is not bi-invariant. Rotations and translations have a variance and a scale each.

    Parameters
    ----------
    n
        Dimension of the space that moves, at least 2.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import SpecialEuclidean
    >>> M = SpecialEuclidean(2)
    >>> step = np.asarray([[0.0, -1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> M.add(step, step)[:, 2]  # forward, a quarter turn to the left, forward
    array([1., 1., 1.])
    """

    n: int = field(metadata={"least": 2})

    @property
    def rotations(self) -> SpecialOrthogonal:
        """The space of the rotations."""
        return SpecialOrthogonal(self.n)

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one matrix: ``(n + 1, n + 1)``."""
        return self.n + 1, self.n + 1

    @property
    def dim(self) -> int:
        """Dimension n(n + 1)/2."""
        return sum(self.blocks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Rotation and translation."""
        return self.rotations.dim, self.n

    @property
    def gyrovector(self) -> bool:
        """False: multiples of a motion are multiples of its parts."""
        return False

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        """That of the rotations."""
        return self.rotations.convexity_radius

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the motions whose matrices have the last two axes of ``shape``."""
        return cls(check_square("a motion is a square matrix, shape (n + 1, n + 1)", shape) - 1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return motions of space, and of the plane."""
        return cls(3), cls(2)

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n + 1)

    def _parts(self, x: Array) -> tuple[Array, Array]:
        """Return rotation and translation, NaN if the last row is."""
        return x[..., : self.n, : self.n], x[..., : self.n, self.n] + 0.0 * x[..., self.n, : self.n]

    def _factors(self, *points: Array) -> list[tuple[Any, ...]]:
        columns = zip(*map(self._parts, points), strict=True)
        both = list(columns) if points else [(), ()]
        return [(self.rotations, *both[0]), (Euclidean(self.n), *both[1])]

    def _motion(self, R: Array, t: Array, last: float = 1.0) -> Array:
        """Return homogeneous matrices; tangent vectors have zeros in the last row."""
        xp = namespace_of(t)
        row = xp.concat([0.0 * t, 0.0 * t[..., :1] + last], axis=-1)[..., None, :]
        return xp.concat([xp.concat([R, t[..., None]], axis=-1), row], axis=-2)

    def neg(self, x: Array) -> Array:
        r"""Inverse :math:`(R^\top, -R^\top t)`."""
        self._namespace(x)
        R, t = self._parts(x)
        return self._motion(adjoint(R), -matmul(adjoint(R), t[..., None])[..., 0])

    def to_normal(self, x: Array) -> Array:
        """Coordinates of the rotation, and the translation."""
        xp = self._namespace(x)
        R, t = self._parts(x)
        return xp.concat([self.rotations.to_normal(R), t], axis=-1)

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`."""
        check_coordinates(self, c)
        turn, t = pieces(c, self.blocks)
        return self._motion(self.rotations.from_normal(turn), t)

    def push(self, x: Array, c: Array) -> Array:
        """Left translation of the tangent vector with coordinates c."""
        check_coordinates(self, c)
        turn, t = pieces(c, self.blocks)
        R, e = self._parts(x)[0], self.rotations.origin(x)
        return matmul(x, self._motion(self.rotations.push(e + 0.0 * R, turn), t, last=0.0))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        R, (dR, dt) = self._parts(x)[0], self._parts(v)
        turn = self.rotations.pull(R, dR)
        return namespace_of(x).concat([turn, matmul(adjoint(R), dt[..., None])[..., 0]], axis=-1)

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        """Parallel transport of both parts; a translation stays as it is."""
        (R, _), (S, _), (dR, dt) = map(self._parts, (x, y, v))
        return self._motion(self.rotations.transport(R, S, dR), dt, last=0.0)

    def project(self, x: Array) -> Array:
        """Return the motion with the nearest rotation."""
        self._namespace(x)
        R, t = self._parts(x)
        return self._motion(self.rotations.project(R), t)

    def violation(self, x: Array) -> Array:
        """Return the largest violation of the rotation and of the last row."""
        xp = self._namespace(x)
        R, t = self._parts(x)
        row = xp.max(xp.abs(x[..., self.n, :] - eye(x)[self.n, :]), axis=-1)
        off = xp.maximum(self.rotations.violation(R), row) + 0.0 * xp.sum(t, axis=-1)
        return xp.where(xp.isfinite(off), off, xp.inf)

    def cut_locus_angle(self, x: Array) -> Array:
        """That of the rotation."""
        self._namespace(x)
        return self.rotations.cut_locus_angle(self._parts(x)[0])

    def moments(self, x: Array) -> Array:
        """Entries of the matrix."""
        return self._namespace(x).reshape(x, (*x.shape[:-2], (self.n + 1) ** 2))

    def start(self, moments: Array) -> Array:
        """First guess of the mean: the nearest rotation, and the mean translation."""
        shape = (*moments.shape[:-1], *self.point_shape)
        return self.project(namespace_of(moments).reshape(moments, shape))

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Return the Hessian of the rotations, and the identity."""
        parts = self.rotations.hessian(pieces(c, self.blocks)[0], weights), flat_hessian()
        join = lambda parts: namespace_of(c).concat(parts, axis=-1)  # noqa: E731
        return joined_hessian(parts, lambda v: pieces(v, self.blocks), join)
