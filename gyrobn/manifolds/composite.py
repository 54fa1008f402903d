"""Geometries that are computed in other ones: each operation is written once, for all of them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from gyrobn.backends import Array, Arrays, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import scalars_like
from gyrobn.numerics.hessian import Hessian, joined_hessian


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

    def _split_weights(self, weights: Array) -> list[Array]:
        """Return the weights of the samples for each geometry."""
        return [weights for _ in self._spaces]

    def _join_blocks(self, parts: list[Array]) -> Array:
        """Return values per block, from those of each geometry: one per block, or one for all."""
        (values,) = parts
        return values

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

    def resolutions(self, x: Array) -> Array:
        """Return the resolution of every block."""
        return self._join_blocks(self._each("resolutions", *self._points(x)))

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Return the Hessians of the parts, on their coordinates."""
        columns = self._split_normal(c), self._split_weights(weights)
        parts = self._each("hessian", *columns)
        return joined_hessian(parts, self._split_normal, self._join_normal)


class CentredParts(Centred):
    """The view of the parts of points from those of the mean: a view per geometry."""

    def __init__(self, space: Composite, mean: Array, x: Array, saved: Arrays = ()) -> None:
        super().__init__(space, mean, x)
        points = space._points(mean, x)
        self.views: list[Centred] = space._each("centred", *points)
        if saved:
            self.views = space._each("centred", *points, _shared(self.views, saved, "saves"))

    def _each(self, name: str, *columns: Sequence[Any]) -> list[Any]:
        """Call a method of every view with its entry of each column."""
        return [getattr(view, name)(*row) for view, *row in zip(self.views, *columns, strict=True)]

    @property
    def saves(self) -> int:  # type: ignore[override]
        """Number of arrays in ``saved``."""
        return sum(view.saves for view in self.views)

    @property
    def images(self) -> int:  # type: ignore[override]
        """Number of arrays in ``image``."""
        return sum(view.images for view in self.views)

    @property
    def saved(self) -> Arrays:
        """The decompositions of all factors."""
        return tuple(a for view in self.views for a in view.saved)

    @property
    def image(self) -> Arrays:
        """The images of all factors."""
        return tuple(a for view in self.views for a in view.image)

    def showing(self, *image: Array) -> Self:
        """Take arrays as the images of the factors, and return the view."""
        for view, own in zip(self.views, _shared(self.views, image, "images"), strict=True):
            view.showing(*own)
        return self

    def followed(self, step: Array) -> Arrays | None:
        """Return the images if the mean moves by a step, where every part has a formula."""
        each = self._each("followed", self.space._split_normal(step))
        return None if None in each else tuple(a for image in each for a in image)

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates of all parts."""
        return self.space._join_normal([view.normal for view in self.views])

    def gradient(self, weights: Array) -> Array:
        """Return the mean of the normal coordinates."""
        parts = self._each("gradient", self.space._split_weights(weights))
        return self.space._join_normal(parts)

    @cached_property
    def squares(self) -> Array:
        """The squared distances, block by block."""
        return self.space._join_blocks([view.squares for view in self.views])

    def hessian(self, weights: Array) -> Hessian:
        """Return the Hessians of the parts."""
        space, parts = self.space, self._each("hessian", self.space._split_weights(weights))
        return joined_hessian(parts, space._split_normal, space._join_normal)

    def shift(self, step: Array) -> Array:
        """Return the mean after a step, part by part."""
        return self.space._join(self._each("shift", self.space._split_normal(step)))

    def push(self, step: Array) -> Array:
        """Return a small step as a tangent vector, part by part."""
        return self.space._join(self._each("push", self.space._split_normal(step)))

    def resolutions(self, weights: Array) -> Array:
        """Return how far rounding moves the mean, in every block."""
        parts = self._each("resolutions", self.space._split_weights(weights))
        return self.space._join_blocks(parts)

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Scale and bias every part."""
        scales = self.space._split_factor(scalars_like(factor, self.x))
        biases = [None for _ in scales] if bias is None else self.space._points(bias)[0]
        return self.space._join(self._each("standardize", scales, biases))


def _shared(views: Sequence[Centred], arrays: Arrays, count: str) -> list[Arrays]:
    """Return the arrays of each view, from those of all of them."""
    found, stop = [], 0
    for view in views:
        start, stop = stop, stop + getattr(view, count)
        found.append(arrays[start:stop])
    return found
