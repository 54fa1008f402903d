"""Products of geometries, in one array."""

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, replace
from functools import cached_property, reduce
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.radius import Sphere
from gyrobn.manifolds.stereographic import PoincareBall
from gyrobn.numerics.arrays import Totals, check_coordinates, length, pieces, scalars_like, together
from gyrobn.numerics.hessian import Hessian, joined_hessian

__all__ = ["Product"]


@dataclass(frozen=True, init=False, repr=False)
class Product(GyroSpace):
    r"""The product of geometries, :math:`d^2 = \sum_k d_k^2`, each factor normalized on its own.

    A point is one vector: the factors' points, flattened and concatenated. Every factor has its own
    mean, and every block of a factor its own variance and scale.

    Parameters
    ----------
    *factors
        The geometries, at least one.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import batch_stats
    >>> M = Product(PoincareBall(2), Euclidean(3))
    >>> M.point_shape, M.dim, M.blocks
    ((5,), 5, (2, 3))
    >>> ball, flat = M.split(M.random(10, rng=0))
    >>> ball.shape, flat.shape
    ((10, 2), (10, 3))
    >>> batch_stats(M, M.join(ball, flat)).var.shape
    (2,)
    """

    factors: tuple[GyroSpace, ...]
    parameters: ClassVar[tuple[str, ...]] = ("factors",)

    @classmethod
    def checked(cls, one: "Field[Any]", value: Any) -> Any:
        """Return the factors, which the constructor checks."""
        return value

    def __init__(self, *spaces: GyroSpace, factors: Sequence[GyroSpace] = ()) -> None:
        # dataclasses.replace and JAX pass the factors by keyword
        object.__setattr__(self, "factors", (*spaces, *factors))
        if not self.factors:
            raise ValueError("Product needs one geometry at least, got none")
        for factor in spaces:
            if not isinstance(factor, GyroSpace):
                raise TypeError(f"Product takes geometries, such as Euclidean(3), got {factor!r}")
        self.__post_init__()

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.factors))})"

    # ------------------------------------------------------------------ sizes

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: the number of entries of all factors' points."""
        return (sum(math.prod(f.point_shape) for f in self.factors),)

    @property
    def dim(self) -> int:
        """Sum of the factors' dimensions."""
        return sum(f.dim for f in self.factors)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The factors' blocks, concatenated."""
        return tuple(size for f in self.factors for size in f.blocks)

    @property
    def gyrocommutative(self) -> bool:
        """Whether all factors are."""
        return all(f.gyrocommutative for f in self.factors)

    @property
    def reductive(self) -> bool:
        """Whether all factors are."""
        return all(f.reductive for f in self.factors)

    @property
    def gyrovector(self) -> bool:
        """Whether all factors are."""
        return all(f.gyrovector for f in self.factors)

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        """The least of the factors'."""
        return min(f.convexity_radius for f in self.factors)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Raise an error: the factors do not follow from a shape."""
        raise ValueError(
            "a product cannot be told from the shape of its points: give the geometry itself, "
            "Product(Euclidean(2), Sphere(2)) for example"
        )

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return a product of a curved space of each sign and a flat one."""
        return (cls(PoincareBall(2), Sphere(2), Euclidean(1)),)

    # ------------------------------------------------------------------ one array

    def split(self, x: Array) -> list[Array]:
        """Return the factors' points, each in its own shape."""
        xp = self._namespace(x)
        shapes = [f.point_shape for f in self.factors]
        parts = zip(shapes, pieces(x, [math.prod(shape) for shape in shapes]), strict=True)
        return [xp.reshape(part, (*x.shape[:-1], *shape)) for shape, part in parts]

    def join(self, *parts: Array) -> Array:
        """Put the factors' points into one array; leading axes are broadcast."""
        if len(parts) != len(self.factors):
            raise ValueError(f"{self!r} joins {len(self.factors)} arrays, got {len(parts)}")
        xp = namespace_of(*parts)
        flat = []
        for f, part in zip(self.factors, parts, strict=True):
            f._namespace(part)
            shape = f.point_shape
            flat.append(xp.reshape(part, (*part.shape[: -len(shape)], math.prod(shape))))
        return _concat(flat)

    def _split_normal(self, c: Array) -> list[Array]:
        check_coordinates(self, c)
        return pieces(c, [f.dim for f in self.factors])

    def _split_factor(self, t: Any) -> list[Any]:
        """Return a multiplier for each factor, from one for all or one per block."""
        sizes = [len(f.blocks) for f in self.factors]
        if isinstance(t, float) or t.ndim == 0 or sizes == [1]:
            return [t for _ in sizes]
        parts = [t for _ in sizes] if t.shape[-1] == 1 else pieces(t, sizes)
        return [
            part[..., 0] if size == 1 else part for size, part in zip(sizes, parts, strict=True)
        ]

    def _split_bias(self, bias: Array | None) -> list[Any]:
        return [None for _ in self.factors] if bias is None else self.split(bias)

    def parts(self, *points: Array) -> list[tuple[GyroSpace, *tuple[Array, ...]]]:
        """Return every factor with its part of the points."""
        return list(zip(self.factors, *(self.split(x) for x in points), strict=True))

    def _each(self, name: str, *points: Array) -> list[Any]:
        """Call a method of every factor with its part of the points."""
        return [getattr(f, name)(*p) for f, *p in self.parts(*points)]

    def _map(self, name: str, *columns: Sequence[Any]) -> list[Any]:
        """Call a method of every factor with its entry of each column."""
        return [getattr(f, name)(*row) for f, *row in zip(self.factors, *columns, strict=True)]

    # ------------------------------------------------------------------ gyro operations

    def origin(self, like: Array) -> Array:
        """Return the factors' identities."""
        return self.join(*(f.origin(like) for f in self.factors))

    def add(self, x: Array, y: Array) -> Array:
        """Add in every factor."""
        self._namespace(x, y)
        return self.join(*self._each("add", x, y))

    def neg(self, x: Array) -> Array:
        """Invert in every factor."""
        return self.join(*self._each("neg", x))

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y` in every factor."""
        self._namespace(x, y)
        return self.join(*self._each("relative", x, y))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`, factor by factor."""
        return _concat(self._each("relative_normal", x, y))

    def to_normal(self, x: Array) -> Array:
        """Normal coordinates of the factors, concatenated."""
        return _concat(self._each("to_normal", x))

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`."""
        return self.join(*self._map("from_normal", self._split_normal(c)))

    def scale(self, t: Array | float, x: Array) -> Array:
        """Multiply in every factor, by one number or by one per block."""
        return self.join(*self._map("scale", self._split_factor(scalars_like(t, x)), self.split(x)))

    def norm(self, x: Array) -> Array:
        """Root of the sum of the factors' squares."""
        return _root_sum(self._each("norm", x))

    def dist(self, x: Array, y: Array) -> Array:
        """Root of the sum of the factors' squared distances."""
        return _root_sum(self._each("dist", x, y))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        """Gyration in every factor."""
        return self.join(*self._each("gyration", x, y, z))

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        columns = self.split(x), self.split(y), self._split_normal(c)
        return _concat(self._map("_gyrate_normal", *columns))

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias in every factor."""
        self._namespace(x, mean, *(() if bias is None else (bias,)))
        scales, biases = self._split_factor(scalars_like(factor, x)), self._split_bias(bias)
        return self.join(*self._map("standardize", self.split(x), self.split(mean), scales, biases))

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        """Carry coordinates at e to a tangent vector at x, factor by factor."""
        return self.join(*self._map("push", self.split(x), self._split_normal(c)))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        return _concat(self._each("pull", x, v))

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        """Parallel transport, factor by factor."""
        return self.join(*self._each("transport", x, y, v))

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Project in every factor."""
        return self.join(*self._each("project", x))

    def violation(self, x: Array) -> Array:
        """Return the largest violation of a factor."""
        return reduce(self._namespace(x).maximum, self._each("violation", x))

    def contains(self, x: Array) -> Array:
        """Return whether every factor contains its part."""
        return reduce(self._namespace(x).logical_and, self._each("contains", x))

    def resolution(self, x: Array) -> Array:
        """Return the largest resolution of a factor."""
        return namespace_of(x).max(self.resolutions(x), axis=-1)

    def resolutions(self, x: Array) -> Array:
        """Return the resolution of every block."""
        return self._by_every_block(self._each("resolutions", x))

    def _by_every_block(self, values: Sequence[Array]) -> Array:
        """Concatenate the factors' values, which are one per block or one for all blocks."""
        parts = zip(self.factors, values, strict=True)
        return _concat(
            [namespace_of(v).broadcast_to(v, (*v.shape[:-1], len(f.blocks))) for f, v in parts]
        )

    # ------------------------------------------------------------------ the mean

    @property
    def inside(self) -> Self:
        """The product of the spaces in which the factors are computed."""
        return replace(self, factors=tuple(f.inside for f in self.factors))

    def to_inside(self, x: Array) -> Array:
        """Carry every factor's point to the space in which it is computed."""
        return self.inside.join(*self._each("to_inside", x))

    def from_inside(self, x: Array) -> Array:
        """Carry every factor's point back."""
        return self.join(*self._map("from_inside", self.inside.split(x)))

    def start(self, x: Array, weights: Array, total: Totals = together) -> Array:
        """First guess of the mean, factor by factor."""
        return self.join(*(f.start(part, weights, total) for f, part in self.parts(x)))

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Return the factors' Hessians, on their parts of the coordinates."""
        parts = zip(self.factors, self._split_normal(c), strict=True)
        return joined_hessian([(f.dim, f.hessian(part, weights)) for f, part in parts])

    def centred(
        self, mean: Array, x: Array, seen: tuple[Array, ...] = (), known: tuple[Array, ...] = ()
    ) -> Centred:
        """Return the view of the samples from the mean, factor by factor."""
        return _CentredParts(self, mean, x, seen, self._each("centred", mean, x))

    def joined(self, mean: Array, x: Array, views: Sequence[Centred]) -> Centred:
        """Return the view of a product's points from those of its factors."""
        return _CentredParts(self, mean, x, (), views)

    def learnable(self) -> list[Any]:
        """Return the values of the factors' parameters."""
        return [value for f in self.factors for value in f.learnable()]

    def with_learnable(self, values: Sequence[Any]) -> Self:
        """Return the product whose factors have these values of their parameters."""
        left = iter(values)
        factors = tuple(f.with_learnable([next(left) for _ in f.learnable()]) for f in self.factors)
        same = all(f is g for f, g in zip(self.factors, factors, strict=True))
        return self if same else replace(self, factors=factors)


def _concat(parts: list[Array]) -> Array:
    """Concatenate vectors, broadcasting their leading axes."""
    xp = namespace_of(*parts)
    if any(p.shape[:-1] != parts[0].shape[:-1] for p in parts):
        batch = xp.broadcast_arrays(*(p[..., 0] for p in parts))[0].shape
        parts = [xp.broadcast_to(p, (*batch, p.shape[-1])) for p in parts]
    return xp.concat(parts, axis=-1)


def _root_sum(lengths: list[Array]) -> Array:
    return length(namespace_of(*lengths).stack(lengths, axis=-1))


class _CentredParts(Centred):
    """The view of a product's points from the mean: a view per factor."""

    def __init__(
        self,
        space: Product,
        mean: Array,
        x: Array,
        seen: tuple[Array, ...],
        views: Sequence[Centred],
    ) -> None:
        self.views = views
        super().__init__(space, mean, x, seen)

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates, factor by factor."""
        return _concat([view.normal for view in self.views])

    def gradient(self, weights: Array) -> Array:
        """Return the mean of the normal coordinates."""
        return _concat([view.gradient(weights) for view in self.views])

    @cached_property
    def squares(self) -> Array:
        """The squared distances, block by block."""
        return _concat([view.squares for view in self.views])

    def hessian(self, weights: Array) -> Hessian:
        """Return the factors' Hessians."""
        parts = zip(self.space.factors, self.views, strict=True)
        return joined_hessian([(f.dim, view.hessian(weights)) for f, view in parts])

    def shift(self, step: Array) -> Array:
        """Return the mean after a step, factor by factor."""
        parts = zip(self.views, self.space._split_normal(step), strict=True)
        return self.space.join(*(view.shift(part) for view, part in parts))

    def resolutions(self, weights: Array) -> Array:
        """Return how far rounding moves the mean, in every block."""
        return self.space._by_every_block([view.resolutions(weights) for view in self.views])

    def standardize(self, factor: Array, bias: Array | None) -> Array:
        """Scale and bias in every factor."""
        space = self.space
        scales = space._split_factor(scalars_like(factor, self.x))
        parts = zip(self.views, scales, space._split_bias(bias), strict=True)
        return space.join(*(view.standardize(t, b) for view, t, b in parts))
