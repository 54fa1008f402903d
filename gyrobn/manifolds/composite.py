"""Geometries that are computed in other ones: each operation is written once, for all of them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce, wraps
from inspect import signature
from itertools import islice
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, Arrays, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import check_coordinates, scalars_like
from gyrobn.numerics.hessian import Hessian, joined_hessian

KINDS = {"t": "number", "factor": "number", "c": "normal", "moments": "moments"}
"""The kinds of arguments by name; all others are points, or tangent vectors of the same shape."""


def of_parts(name: str, kind: str = "point") -> Callable[..., Any]:
    """Return the operation that is the one of every part; its result is of that kind."""
    template = getattr(GyroSpace, name)
    names = tuple(signature(template).parameters)[1:]

    @wraps(template, updated=())  # the template may be abstract
    def operation(self: "Composite", *values: Any, **more: Any) -> Any:
        given = dict(zip(names, values, strict=False)) | more
        given = {k: given[k] for k in names if given.get(k) is not None}
        points = [v for k, v in given.items() if k not in KINDS]
        if points:
            self._namespace(*points)
        if "c" in given:
            check_coordinates(self, given["c"])
        for k in given.keys() & {"t", "factor"}:
            given[k] = scalars_like(given[k], given["x"])
        parts = [self._split(KINDS.get(k, "point"), v) for k, v in given.items()]
        return self._join(kind, each(self._spaces, name, *parts))

    return operation


def law_of_parts(name: str) -> Any:
    """Return the property that a law holds on every part."""
    doc = getattr(GyroSpace, name).__doc__
    return property(lambda self: all(getattr(f, name) for f in self._spaces), doc=doc)


def each(objects: Sequence[Any], name: str, *columns: Sequence[Any]) -> list[Any]:
    """Call a method of every object with its entry of each column."""
    return [getattr(one, name)(*row) for one, *row in zip(objects, *columns, strict=True)]


class CentredParts(Centred):
    """The view of the parts of points from those of the mean: a view per geometry."""

    def __init__(self, space: "Composite", mean: Array, x: Array, saved: Arrays = ()) -> None:
        super().__init__(space, mean, x)
        points = space._split("point", mean), space._split("point", x)
        self.views: list[Centred] = each(space._spaces, "centred", *points)
        if saved:
            arrays = iter(saved)
            own = [tuple(islice(arrays, view.saves)) for view in self.views]
            self.views = each(space._spaces, "centred", *points, own)
        self.saves = sum(view.saves for view in self.views)
        self.images = sum(view.images for view in self.views)

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
        images = each(self.views, "followed", self.space._split("normal", step))
        return None if None in images else tuple(a for image in images for a in image)

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates of all parts."""
        return self.space._join("normal", [view.normal for view in self.views])

    def hessian(self, weights: Array) -> Hessian:
        """Return the Hessians of the parts."""
        parts = each(self.views, "hessian", self.space._split("weights", weights))
        hessian: Hessian = self.space._block_diagonal(parts)
        return hessian

    def shift(self, step: Array) -> Array:
        """Return the mean after a step, part by part."""
        means = each(self.views, "shift", self.space._split("normal", step))
        return self.space._join("point", means)

    def resolutions(self, weights: Array) -> Array:
        """Return how far rounding moves the mean, in every block."""
        parts = each(self.views, "resolutions", self.space._split("weights", weights))
        return self.space._join("blocks", parts)

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Scale and bias every part."""
        scales = self.space._split("number", scalars_like(factor, self.x))
        biases = [None] * len(scales) if bias is None else self.space._split("point", bias)
        return self.space._join("point", each(self.views, "standardize", scales, biases))


@dataclass(frozen=True)
class Composite(GyroSpace):
    """A geometry whose points have one part, or several, in other geometries.

    An operation is the same operation of every other geometry, on its parts of the arguments. A
    subclass says how to split an array into parts, and how to join what comes back.
    """

    _view: ClassVar[type[Centred]] = CentredParts

    @property
    @abstractmethod
    def _spaces(self) -> Sequence[GyroSpace]:
        """The other geometries."""

    @abstractmethod
    def _split(self, kind: str, a: Any) -> list[Any]:
        """Return the part of an array for each geometry.

        The kinds are ``point``; ``normal``, coordinates; ``number``, a multiplier for all or one
        per block; ``moments``; and ``weights``, of the samples.
        """

    @abstractmethod
    def _join(self, kind: str, parts: list[Array]) -> Array:
        """Return the result of all geometries.

        The kinds are ``point``, ``normal``, and ``moments``; ``length``, the root of the sum of
        squares; and ``blocks``, a number per block.
        """

    def _block_diagonal(self, parts: list[Hessian]) -> Hessian:
        return joined_hessian(parts, partial(self._split, "normal"), partial(self._join, "normal"))

    # ------------------------------------------------------------------ sizes and laws

    @property
    def dim(self) -> int:
        """Sum of the dimensions of the parts."""
        return sum(space.dim for space in self._spaces)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks of the parts, one after the other."""
        return tuple(size for space in self._spaces for size in space.blocks)

    gyrocommutative = law_of_parts("gyrocommutative")
    reductive = law_of_parts("reductive")
    gyrovector = law_of_parts("gyrovector")

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
    project = of_parts("project")
    push = of_parts("push")
    transport = of_parts("transport")
    relative_normal = of_parts("relative_normal", "normal")
    to_normal = of_parts("to_normal", "normal")
    pull = of_parts("pull", "normal")
    moments = of_parts("moments", "moments")
    start = of_parts("start")
    norm = of_parts("norm", "length")
    dist = of_parts("dist", "length")
    resolutions = of_parts("resolutions", "blocks")

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Return the Hessians of the parts, one per diagonal block."""
        columns = self._split("normal", c), self._split("weights", weights)
        return self._block_diagonal(each(self._spaces, "hessian", *columns))

    def cut_locus_angle(self, x: Array) -> Array:
        """Return the least angle of a part to its cut locus."""
        xp = self._namespace(x)
        return reduce(xp.minimum, each(self._spaces, "cut_locus_angle", self._split("point", x)))

    def resolution(self, x: Array) -> Array:
        """Return the largest resolution of a block."""
        return namespace_of(x).max(self.resolutions(x), axis=-1)
