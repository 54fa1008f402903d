"""Products of geometries, in one array."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import is_
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, declare, namespace_of
from gyrobn.manifolds.composite import Composite, each
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.models import PoincareBall, Sphere
from gyrobn.numerics.arrays import length, pieces


@dataclass(frozen=True, init=False, repr=False)
class Product(Composite):
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
    >>> M = Product(PoincareBall(2), Euclidean(3))
    >>> M.point_shape, M.dim, M.blocks
    ((5,), 5, (2, 3))
    >>> ball, flat = M.split(M.random(10, rng=0))
    >>> ball.shape, flat.shape
    ((10, 2), (10, 3))
    """

    factors: tuple[GyroSpace, ...]
    parameters: ClassVar[tuple[str, ...]] = ("factors",)

    def __init__(self, *spaces: GyroSpace, factors: Sequence[GyroSpace] = ()) -> None:
        # dataclasses.replace and JAX pass the factors by keyword
        object.__setattr__(self, "factors", (*spaces, *factors))
        if not self.factors:
            raise ValueError("Product needs one geometry at least, got none")
        for factor in spaces:
            if not isinstance(factor, GyroSpace):
                raise TypeError(f"Product takes geometries, such as Euclidean(3), got {factor!r}")
        if len({factor.complex_points for factor in self.factors}) > 1:
            raise TypeError(f"{self!r} mixes factors of complex and of real points")
        declare(type(self))

    @property
    def complex_points(self) -> bool:  # type: ignore[override]
        """Whether the factors' points are complex."""
        return self.factors[0].complex_points

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.factors))})"

    # ------------------------------------------------------------------ sizes

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: the number of entries of all factors' points."""
        return (sum(math.prod(f.point_shape) for f in self.factors),)

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
        self._namespace(x)
        return self._split("point", x)

    def join(self, *parts: Array) -> Array:
        """Put the factors' points into one array; leading axes are broadcast."""
        if len(parts) != len(self.factors):
            raise ValueError(f"{self!r} joins {len(self.factors)} arrays, got {len(parts)}")
        for f, part in zip(self.factors, parts, strict=True):
            f._namespace(part)
        return self._join("point", list(parts))

    @property
    def _spaces(self) -> Sequence[GyroSpace]:
        return self.factors

    def _split(self, kind: str, a: Any) -> list[Any]:
        if kind == "weights" or isinstance(a, float) or a.ndim == 0:
            return [a for _ in self.factors]
        if kind == "moments":
            return pieces(a, [f.moments(f.origin(a)).shape[-1] for f in self.factors])
        xp = namespace_of(a)
        if kind == "number":
            a = self.expand_blocks(a)
            a = xp.broadcast_to(a, (*a.shape[:-1], len(self.blocks)))
        shapes: list[tuple[int, ...]] = [
            {"point": f.point_shape, "normal": (f.dim,), "number": f.block_shape}[kind]
            for f in self.factors
        ]
        parts = zip(pieces(a, list(map(math.prod, shapes))), shapes, strict=True)
        return [xp.reshape(part, (*a.shape[:-1], *shape)) for part, shape in parts]

    def _join(self, kind: str, parts: list[Array]) -> Array:
        xp = namespace_of(*parts)
        if kind == "length":
            return length(xp.stack(parts, axis=-1))
        if kind == "point":
            shapes = [f.point_shape for f in self.factors]
            parts = [
                xp.reshape(part, (*part.shape[: part.ndim - len(shape)], math.prod(shape)))
                for part, shape in zip(parts, shapes, strict=True)
            ]
        batch = xp.broadcast_arrays(*(p[..., 0] for p in parts))[0].shape
        return xp.concat([xp.broadcast_to(p, (*batch, p.shape[-1])) for p in parts], axis=-1)

    def origin(self, like: Array) -> Array:
        """Return the factors' identities."""
        return self._join("point", [f.origin(like) for f in self.factors])

    def _factors(self, *points: Array) -> list[tuple[Any, ...]]:
        return list(zip(self.factors, *map(self.split, points), strict=True))

    # ------------------------------------------------------------------ points, good and bad

    def violation(self, x: Array) -> Array:
        """Return the largest violation of a factor."""
        return reduce(self._namespace(x).maximum, each(self.factors, "violation", self.split(x)))

    def contains(self, x: Array) -> Array:
        """Tell for each sample whether all its factors' points are points."""
        return reduce(self._namespace(x).logical_and, each(self.factors, "contains", self.split(x)))

    # ------------------------------------------------------------------ the mean

    @property
    def inside(self) -> Self:
        """The product of the spaces in which the factors are computed."""
        return replace(self, factors=tuple(f.inside for f in self.factors))

    def to_inside(self, x: Array) -> Array:
        """Carry every factor's point to the space in which it is computed."""
        return self.inside._join("point", each(self.factors, "to_inside", self.split(x)))

    def from_inside(self, x: Array) -> Array:
        """Carry every factor's point back."""
        return self._join("point", each(self.factors, "from_inside", self.inside.split(x)))

    def learnable(self) -> list[Any]:
        """Return the values of the factors' parameters."""
        return [value for f in self.factors for value in f.learnable()]

    def required_signs(self) -> list[int | None]:
        """Return the signs that the parameters of the factors must have."""
        return [sign for f in self.factors for sign in f.required_signs()]

    def with_learnable(self, values: Sequence[Any]) -> Self:
        """Return the product whose factors have these values of their parameters."""
        left = iter(values)
        factors = tuple(f.with_learnable([next(left) for _ in f.learnable()]) for f in self.factors)
        return self if all(map(is_, factors, self.factors)) else replace(self, factors=factors)
