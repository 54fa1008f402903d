"""Geometries that are computed in other ones: each operation is written once, for all of them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gyrobn.core.backends import Array, namespace_of
from gyrobn.core.manifolds.gyrospace import GyroSpace
from gyrobn.core.numerics.arrays import scalars_like


@dataclass(frozen=True)
class Composite(GyroSpace):
    """A geometry whose points have one part, or several, in other geometries.

    An operation is the same operation of every other geometry, on its parts of the arguments. A
    subclass says how to split points, normal coordinates, multipliers and tangent vectors into
    parts, and how to join what comes back. By default there is one part, the argument itself.
    """

    @property
    @abstractmethod
    def _spaces(self) -> Sequence[GyroSpace]:
        """The other geometries."""

    def _split(self, x: Array) -> list[Array]:
        """Return a point of each of them."""
        return [x]

    def _join(self, parts: list[Array]) -> Array:
        """Undo :meth:`_split`."""
        (x,) = parts
        return x

    def _split_normal(self, c: Array) -> list[Array]:
        return [c]

    def _join_normal(self, parts: list[Array]) -> Array:
        (c,) = parts
        return c

    def _split_factor(self, t: Any) -> list[Any]:
        """Return a multiplier for each geometry, from one for all or one per block."""
        return [t]

    def _split_tangent(self, x: Array, v: Array) -> list[Array]:
        """Return the parts of a tangent vector at x."""
        (parts,) = self._points(v)
        return parts

    def _join_tangent(self, x: Array, parts: list[Array]) -> Array:
        """Undo :meth:`_split_tangent`."""
        return self._join(parts)

    def _join_lengths(self, parts: list[Array]) -> Array:
        """Return the root of the sum of squares."""
        (total,) = parts
        return total

    def _points(self, *points: Array) -> list[list[Array]]:
        """Return the parts of each point."""
        self._namespace(*points)
        return [self._split(x) for x in points]

    def _each(self, name: str, *columns: Sequence[Any]) -> list[Any]:
        """Call a method of every geometry with its entry of each column."""
        return [
            getattr(space, name)(*row) for space, *row in zip(self._spaces, *columns, strict=True)
        ]

    # ------------------------------------------------------------------ sizes and laws

    @property
    def dim(self) -> int:
        """Sum of the dimensions of the parts."""
        return sum(space.dim for space in self._spaces)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks of the parts, one after the other."""
        return tuple(size for space in self._spaces for size in space.blocks)

    @property
    def gyrocommutative(self) -> bool:
        """Whether every part is."""
        return all(space.gyrocommutative for space in self._spaces)

    @property
    def reductive(self) -> bool:
        """Whether every part is."""
        return all(space.reductive for space in self._spaces)

    @property
    def gyrovector(self) -> bool:
        """Whether multiples add up in every part."""
        return all(space.gyrovector for space in self._spaces)

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        """The least convexity radius of a part."""
        return min(space.convexity_radius for space in self._spaces)

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`x \oplus y` of every part."""
        return self._join(self._each("add", *self._points(x, y)))

    def neg(self, x: Array) -> Array:
        r"""Gyroinverse :math:`\ominus x` of every part."""
        return self._join(self._each("neg", *self._points(x)))

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y` for every part."""
        return self._join(self._each("relative", *self._points(x, y)))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`."""
        return self._join_normal(self._each("relative_normal", *self._points(x, y)))

    def to_normal(self, x: Array) -> Array:
        """Normal coordinates of the parts, one after the other."""
        return self._join_normal(self._each("to_normal", *self._points(x)))

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`."""
        return self._join(self._each("from_normal", self._split_normal(c)))

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication :math:`t \odot x`, by one number or by one per block."""
        (parts,) = self._points(x)
        return self._join(self._each("scale", self._split_factor(scalars_like(t, x)), parts))

    def norm(self, x: Array) -> Array:
        """Gyronorm: the root of the sum of the parts' squares."""
        return self._join_lengths(self._each("norm", *self._points(x)))

    def dist(self, x: Array, y: Array) -> Array:
        """Distance: the root of the sum of the parts' squares."""
        return self._join_lengths(self._each("dist", *self._points(x, y)))

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        """Point of the geodesic: x at t = 0, y at t = 1."""
        times = self._split_factor(scalars_like(t, x))
        return self._join(self._each("geodesic", *self._points(x, y), times))

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`x \oplus \operatorname{Exp}_e(c)` of every part."""
        return self._join(self._each("shift", *self._points(x), self._split_normal(c)))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        """Gyration of every part."""
        return self._join(self._each("gyration", *self._points(x, y, z)))

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        columns = *self._points(x, y), self._split_normal(c)
        return self._join_normal(self._each("_gyrate_normal", *columns))

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias every part."""
        columns = self._points(x, mean, *(() if bias is None else (bias,)))
        columns.insert(2, self._split_factor(scalars_like(factor, x)))
        return self._join(self._each("standardize", *columns))

    # ------------------------------------------------------------------ tangent vectors, the mean

    def push(self, x: Array, c: Array) -> Array:
        """Carry normal coordinates at e to a tangent vector at x, part by part."""
        parts = self._each("push", *self._points(x), self._split_normal(c))
        return self._join_tangent(x, parts)

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        return self._join_normal(self._each("pull", *self._points(x), self._split_tangent(x, v)))

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        """Parallel transport of every part."""
        parts = self._each("transport", *self._points(x, y), self._split_tangent(x, v))
        return self._join_tangent(y, parts)

    def resolution(self, x: Array) -> Array:
        """Return the largest resolution of a block."""
        return namespace_of(x).max(self.resolutions(x), axis=-1)
