"""Geometries that are computed in other ones: each operation is written once, for all of them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import signature
from itertools import islice
from typing import Any, Self

from gyrobn.backends import Array, Arrays, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import scalars_like
from gyrobn.numerics.hessian import Hessian, joined_hessian

SPLIT: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    **dict.fromkeys(("x", "y", "z", "mean", "bias"), lambda space, y, x: space._split(y)),
    **dict.fromkeys(("t", "factor"), lambda space, t, x: space._split_factor(scalars_like(t, x))),
    "v": lambda space, v, x: space._split_tangent(x, v),
    "c": lambda space, c, x: space._split_normal(c),
    "weights": lambda space, weights, x: space._split_weights(weights),
}
"""How an argument is split into parts, by its name; x is the argument of that name."""

NUMBERS = ("t", "factor", "c", "weights")
"""The arguments that are neither points nor tangent vectors."""


def of_parts(name: str, join: str = "_join") -> Callable[..., Any]:
    """Return the operation that is the one of every part; a method joins what they return."""
    template = getattr(GyroSpace, name)
    names = tuple(signature(template).parameters)[1:]

    @wraps(template, updated=())  # the template may be abstract
    def operation(self: "Composite", *values: Any, **more: Any) -> Any:
        given = {**dict(zip(names, values, strict=False)), **more}
        given = {k: given[k] for k in names if given.get(k) is not None}
        points = [value for k, value in given.items() if k not in NUMBERS]
        if points:
            self._namespace(*points)
        parts = [SPLIT[k](self, value, given.get("x")) for k, value in given.items()]
        return getattr(self, join)(each(self._spaces, name, *parts))

    return operation


def each(objects: Sequence[Any], name: str, *columns: Sequence[Any]) -> list[Any]:
    """Call a method of every object with its entry of each column."""
    return [getattr(one, name)(*row) for one, *row in zip(objects, *columns, strict=True)]


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
        return parts[0]

    def _split_normal(self, c: Array) -> list[Array]:
        return [c]

    def _join_normal(self, parts: list[Array]) -> Array:
        return parts[0]

    def _split_factor(self, t: Any) -> list[Any]:
        """Return a multiplier for each geometry, from one for all or one per block."""
        return [t]

    def _split_tangent(self, x: Array, v: Array) -> list[Array]:
        """Return the parts of a tangent vector at x."""
        return self._split(v)

    def _join_tangent(self, x: Array, parts: list[Array]) -> Array:
        """Undo :meth:`_split_tangent`."""
        return self._join(parts)

    def _join_lengths(self, parts: list[Array]) -> Array:
        """Return the root of the sum of squares."""
        return parts[0]

    def _split_weights(self, weights: Array) -> list[Array]:
        """Return the weights of the samples for each geometry."""
        return [weights for _ in self._spaces]

    def _join_blocks(self, parts: list[Array]) -> Array:
        """Return values per block, from those of each geometry: one per block, or one for all."""
        return parts[0]

    def _join_hessian(self, parts: list[Hessian]) -> Hessian:
        return joined_hessian(parts, self._split_normal, self._join_normal)

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

    # ------------------------------------------------------------------ operations

    add = of_parts("add")
    neg = of_parts("neg")
    relative = of_parts("relative")
    from_normal = of_parts("from_normal")
    scale = of_parts("scale")
    geodesic = of_parts("geodesic")
    shift = of_parts("shift")
    gyration = of_parts("gyration")
    standardize = of_parts("standardize")
    relative_normal = of_parts("relative_normal", "_join_normal")
    to_normal = of_parts("to_normal", "_join_normal")
    pull = of_parts("pull", "_join_normal")
    moments = of_parts("moments", "_join_normal")
    project = of_parts("project")
    norm = of_parts("norm", "_join_lengths")
    dist = of_parts("dist", "_join_lengths")
    resolutions = of_parts("resolutions", "_join_blocks")
    hessian = of_parts("hessian", "_join_hessian")

    def push(self, x: Array, c: Array) -> Array:
        """Carry normal coordinates at e to a tangent vector at x, part by part."""
        self._namespace(x)
        parts = each(self._spaces, "push", self._split(x), self._split_normal(c))
        return self._join_tangent(x, parts)

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        """Parallel transport of every part."""
        self._namespace(x, y, v)
        columns = self._split(x), self._split(y), self._split_tangent(x, v)
        return self._join_tangent(y, each(self._spaces, "transport", *columns))

    def resolution(self, x: Array) -> Array:
        """Return the largest resolution of a block."""
        return namespace_of(x).max(self.resolutions(x), axis=-1)


class CentredParts(Centred):
    """The view of the parts of points from those of the mean: a view per geometry."""

    def __init__(self, space: Composite, mean: Array, x: Array, saved: Arrays = ()) -> None:
        super().__init__(space, mean, x)
        points = space._split(mean), space._split(x)
        self.views: list[Centred] = each(space._spaces, "centred", *points)
        if saved:
            arrays = iter(saved)
            own = [tuple(islice(arrays, view.saves)) for view in self.views]
            self.views = each(space._spaces, "centred", *points, own)

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
        arrays = iter(image)
        for view in self.views:
            view.showing(*islice(arrays, view.images))
        return self

    def followed(self, step: Array) -> Arrays | None:
        """Return the images if the mean moves by a step, where every part has a formula."""
        images = each(self.views, "followed", self.space._split_normal(step))
        return None if None in images else tuple(a for image in images for a in image)

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates of all parts."""
        return self.space._join_normal([view.normal for view in self.views])

    def gradient(self, weights: Array) -> Array:
        """Return the mean of the normal coordinates."""
        parts = each(self.views, "gradient", self.space._split_weights(weights))
        return self.space._join_normal(parts)

    @cached_property
    def squares(self) -> Array:
        """The squared distances, block by block."""
        return self.space._join_blocks([view.squares for view in self.views])

    def hessian(self, weights: Array) -> Hessian:
        """Return the Hessians of the parts."""
        parts = each(self.views, "hessian", self.space._split_weights(weights))
        hessian: Hessian = self.space._join_hessian(parts)
        return hessian

    def shift(self, step: Array) -> Array:
        """Return the mean after a step, part by part."""
        return self.space._join(each(self.views, "shift", self.space._split_normal(step)))

    def push(self, step: Array) -> Array:
        """Return a small step as a tangent vector, part by part."""
        return self.space._join(each(self.views, "push", self.space._split_normal(step)))

    def resolutions(self, weights: Array) -> Array:
        """Return how far rounding moves the mean, in every block."""
        parts = each(self.views, "resolutions", self.space._split_weights(weights))
        return self.space._join_blocks(parts)

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Scale and bias every part."""
        scales = self.space._split_factor(scalars_like(factor, self.x))
        biases = [None for _ in scales] if bias is None else self.space._split(bias)
        return self.space._join(each(self.views, "standardize", scales, biases))
