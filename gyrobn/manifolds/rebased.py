r"""A geometry seen from another point: the isometric gyrospace whose identity is a reference.

The pullback of :math:`\oplus` by the isometry :math:`L(x) = \ominus r \oplus x`:

.. math:: x \oplus_r y = r \oplus \bigl((\ominus r \oplus x) \oplus (\ominus r \oplus y)\bigr)

Distances, geodesics and means are those of the geometry itself. Where the mean lies near the cut
locus of e, :math:`\ominus\mu \oplus x` changes much with μ; seen from a reference near the data, it
does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, declare
from gyrobn.manifolds.composite import Composite
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold


@dataclass(frozen=True, repr=False, eq=False)
class Rebased(Composite):
    r"""A geometry whose identity is ``reference``, of shape ``(*channels, *point_shape)``.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import PoincareBall
    >>> M = Rebased(PoincareBall(2), np.asarray([0.5, 0.0]))
    >>> M.norm(np.asarray([0.5, 0.0]))
    np.float64(0.0)
    """

    manifold: GyroSpace
    reference: Array
    parameters: ClassVar[tuple[str, ...]] = ("manifold", "reference")

    def __post_init__(self) -> None:  # JAX makes one with other things than arrays
        declare(type(self))

    def __repr__(self) -> str:
        return f"{self.manifold!r} seen from a reference"

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point."""
        return self.manifold.point_shape

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        """That of the geometry."""
        return self.manifold.convexity_radius

    @property
    def complex_points(self) -> bool:  # type: ignore[override]
        """Whether points are complex."""
        return self.manifold.complex_points

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Raise an error: the geometry does not follow from a shape."""
        raise ValueError("a rebased geometry cannot be told from the shape of its points")

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return nothing."""
        return ()

    def learnable(self) -> list[Any]:
        """Return the reference, and the parameters of the geometry."""
        return [self.reference, *self.manifold.learnable()]

    def with_learnable(self, values: Sequence[Any]) -> Self:
        """Return the geometry with other values of them."""
        reference, *rest = values
        return type(self)(self.manifold.with_learnable(rest), reference)

    # ------------------------------------------------------------------ translated points

    @property
    def inside(self) -> GyroSpace:
        """The space in which the geometry is computed."""
        return self.manifold.inside

    def to_inside(self, x: Array) -> Array:
        r"""Return :math:`\ominus r \oplus x`."""
        M = self.manifold
        return self.inside.relative(M.to_inside(self.reference), M.to_inside(x))

    def from_inside(self, x: Array) -> Array:
        r"""Return :math:`r \oplus x`."""
        M = self.manifold
        return M.from_inside(self.inside.add(M.to_inside(self.reference), x))

    @property
    def _spaces(self) -> Sequence[GyroSpace]:
        return (self.inside,)

    def _split(self, kind: str, a: Any) -> list[Any]:
        return [self.to_inside(a) if kind == "point" else a]

    def _join(self, kind: str, parts: list[Array]) -> Array:
        return self.from_inside(*parts) if kind == "point" else parts[0]

    def origin(self, like: Array) -> Array:
        """Return the reference."""
        return self.reference

    def start(self, moments: Array) -> Array:
        """Return the first guess of the mean."""
        return self.from_inside(self.inside.start(moments))

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from r, after :math:`\operatorname{gyr}[r, \ominus r \oplus x]`."""
        M = self.manifold
        seen = M.relative(self.reference, x)
        return M.push(x, M._gyrate_normal(self.reference, seen, c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        M = self.manifold
        return M._gyrate_normal(M.neg(self.reference), x, M.pull(x, v))

    # ------------------------------------------------------------------ as without a reference

    def dist(self, x: Array, y: Array) -> Array:
        """Geodesic distance."""
        return self.manifold.dist(x, y)

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        """Point of the geodesic from x to y."""
        return self.manifold.geodesic(x, y, t)

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        """Parallel transport from x to y."""
        return self.manifold.transport(x, y, v)

    def project(self, x: Array) -> Array:
        """Return the nearest sensible point."""
        return self.manifold.project(x)

    def violation(self, x: Array) -> Array:
        """Return how far each array is from being a point."""
        return self.manifold.violation(x)

    def contains(self, x: Array) -> Array:
        """Tell for each sample whether it is a point."""
        return self.manifold.contains(x)


def seen_from(manifold: GyroSpace, reference: Array | None, x: Array) -> GyroSpace:
    """Return a geometry, seen from a reference if there is one; x are samples on it."""
    if reference is None:
        return manifold
    check_manifold(manifold)._namespace(x, reference)
    return Rebased(manifold, reference)
