"""Products of geometries, in one array."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, declare, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.composite import CentredParts, Composite, each
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.models import PoincareBall, Sphere
from gyrobn.numerics.arrays import check_coordinates, length, pieces


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
    _view: ClassVar[type[Centred]] = CentredParts

    def __init__(self, *spaces: GyroSpace, factors: Sequence[GyroSpace] = ()) -> None:
        # dataclasses.replace and JAX pass the factors by keyword
        object.__setattr__(self, "factors", (*spaces, *factors))
        if not self.factors:
            raise ValueError("Product needs one geometry at least, got none")
        for factor in spaces:
            if not isinstance(factor, GyroSpace):
                raise TypeError(f"Product takes geometries, such as Euclidean(3), got {factor!r}")
        declare(type(self))

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
        return self._split(x)

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

    @property
    def _spaces(self) -> Sequence[GyroSpace]:
        return self.factors

    def _split(self, x: Array) -> list[Array]:
        shapes = [f.point_shape for f in self.factors]
        parts = zip(shapes, pieces(x, [math.prod(shape) for shape in shapes]), strict=True)
        return [namespace_of(x).reshape(part, (*x.shape[:-1], *shape)) for shape, part in parts]

    def _join(self, parts: list[Array]) -> Array:
        return self.join(*parts)

    def _split_normal(self, c: Array) -> list[Array]:
        check_coordinates(self, c)
        return pieces(c, [f.dim for f in self.factors])

    def _join_normal(self, parts: list[Array]) -> Array:
        return _concat(parts)

    def _join_lengths(self, parts: list[Array]) -> Array:
        return length(namespace_of(*parts).stack(parts, axis=-1))

    def _split_factor(self, t: Any) -> list[Any]:
        sizes = [len(f.blocks) for f in self.factors]
        if isinstance(t, float) or t.ndim == 0 or sizes == [1]:
            return [t for _ in sizes]
        parts = [t for _ in sizes] if t.shape[-1] == 1 else pieces(t, sizes)
        return [
            part[..., 0] if size == 1 else part for size, part in zip(sizes, parts, strict=True)
        ]

    def _join_blocks(self, parts: list[Array]) -> Array:
        sizes = [len(f.blocks) for f in self.factors]
        shapes = [(*v.shape[:-1], size) for v, size in zip(parts, sizes, strict=True)]
        return _concat(list(map(namespace_of(*parts).broadcast_to, parts, shapes)))

    def origin(self, like: Array) -> Array:
        """Return the factors' identities."""
        xp = namespace_of(like)
        return _concat([xp.reshape(f.origin(like), (-1,)) for f in self.factors])

    # ------------------------------------------------------------------ points, good and bad

    def violation(self, x: Array) -> Array:
        """Return the largest violation of a factor."""
        return reduce(self._namespace(x).maximum, each(self.factors, "violation", self.split(x)))

    def contains(self, x: Array) -> Array:
        """Return whether every factor contains its part."""
        return reduce(self._namespace(x).logical_and, each(self.factors, "contains", self.split(x)))

    # ------------------------------------------------------------------ the mean

    @property
    def inside(self) -> Self:
        """The product of the spaces in which the factors are computed."""
        return replace(self, factors=tuple(f.inside for f in self.factors))

    def to_inside(self, x: Array) -> Array:
        """Carry every factor's point to the space in which it is computed."""
        return self.inside.join(*each(self.factors, "to_inside", self.split(x)))

    def from_inside(self, x: Array) -> Array:
        """Carry every factor's point back."""
        return self.join(*each(self.factors, "from_inside", self.inside.split(x)))

    def start(self, moments: Array) -> Array:
        """Return a first guess of the mean, factor by factor."""
        like = self.origin(moments)[None, ...]
        sizes = [part.shape[-1] for part in each(self.factors, "moments", self.split(like))]
        return self.join(*each(self.factors, "start", pieces(moments, sizes)))

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
