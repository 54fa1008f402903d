r"""A geometry as a diffeomorphism and the space inside, to which it leads.

The map :math:`\varphi` is an isometry by definition:

.. math:: x \oplus y = \varphi^{-1}(\varphi(x) \oplus \varphi(y)), \qquad
          \operatorname{Log}_e x = \operatorname{Log}_{\varphi(e)} \varphi(x) .
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from gyrobn.core.backends import Array
from gyrobn.core.manifolds.gyrospace import GyroSpace
from gyrobn.core.numerics.arrays import check_coordinates, check_floating
from gyrobn.core.numerics.hessian import Hessian


class Diffeomorphism(ABC):
    r"""A map :math:`\varphi` onto the points of another space; its arguments have been checked."""

    inside: GyroSpace
    r"""The space to which :math:`\varphi` leads."""

    @abstractmethod
    def forward(self, x: Array) -> Array:
        r"""Return :math:`\varphi(x)`."""

    @abstractmethod
    def inverse(self, y: Array) -> Array:
        r"""Return :math:`\varphi^{-1}(y)`."""

    @abstractmethod
    def differential(self, x: Array, v: Array) -> Array:
        r"""Return :math:`d\varphi_x(v)`, for a tangent vector v at x."""

    @abstractmethod
    def inverse_differential(self, x: Array, u: Array) -> Array:
        r"""Return the tangent vector v at x for which :math:`d\varphi_x(v) = u`."""

    def exponential(self, c: Array) -> Array:
        r"""Return the point with the normal coordinates c."""
        return self.inverse(self.inside.from_normal(c))


@dataclass(frozen=True)
class Chart(GyroSpace):
    r"""The geometry that a map onto another one makes an isometry.

    A subclass says what the map is, and writes ``origin``, ``project`` and ``violation``.
    """

    @property
    @abstractmethod
    def chart(self) -> Diffeomorphism:
        r"""The map :math:`\varphi`."""

    # ------------------------------------------------------------------ the map, with checks

    @property
    def inside(self) -> GyroSpace:
        r"""The space to which :math:`\varphi` leads."""
        return self.chart.inside

    def to_inside(self, x: Array) -> Array:
        r"""Map points by :math:`\varphi`."""
        self._namespace(x)
        return self.chart.forward(x)

    def from_inside(self, x: Array) -> Array:
        r"""Map points by :math:`\varphi^{-1}`."""
        check_floating(x)
        return self.chart.inverse(x)

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        r"""Map a tangent vector at x by :math:`d\varphi_x`."""
        self._namespace(x, v)
        return self.chart.differential(x, v)

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        r"""Map a tangent vector at :math:`\varphi(x)` by the inverse of :math:`d\varphi_x`."""
        self._namespace(x)
        return self.chart.inverse_differential(x, v)

    def _inside(self, *points: Array) -> list[Array]:
        self._namespace(*points)
        return [self.chart.forward(x) for x in points]

    # ------------------------------------------------------------------ sizes and laws

    @property
    def dim(self) -> int:
        """Dimension of the space inside."""
        return self.inside.dim

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks of the space inside."""
        return self.inside.blocks

    @property
    def gyrocommutative(self) -> bool:
        """Whether the space inside is."""
        return self.inside.gyrocommutative

    @property
    def reductive(self) -> bool:
        """Whether the space inside is."""
        return self.inside.reductive

    @property
    def gyrovector(self) -> bool:
        """Whether multiples add up in the space inside."""
        return self.inside.gyrovector

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        """Convexity radius of the space inside."""
        return self.inside.convexity_radius

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`x \oplus y`."""
        return self.chart.inverse(self.inside.add(*self._inside(x, y)))

    def neg(self, x: Array) -> Array:
        r"""Gyroinverse :math:`\ominus x`."""
        return self.chart.inverse(self.inside.neg(*self._inside(x)))

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y`."""
        return self.chart.inverse(self.inside.relative(*self._inside(x, y)))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`."""
        return self.inside.relative_normal(*self._inside(x, y))

    def to_normal(self, x: Array) -> Array:
        """Normal coordinates of the point inside."""
        return self.inside.to_normal(*self._inside(x))

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`."""
        check_coordinates(self, c)
        return self.chart.exponential(c)

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication :math:`t \odot x`, by one number or by one per block."""
        return self.chart.inverse(self.inside.scale(t, *self._inside(x)))

    def norm(self, x: Array) -> Array:
        """Gyronorm of the point inside."""
        return self.inside.norm(*self._inside(x))

    def dist(self, x: Array, y: Array) -> Array:
        """Distance of the points inside."""
        return self.inside.dist(*self._inside(x, y))

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        """Point of the geodesic: x at t = 0, y at t = 1."""
        return self.chart.inverse(self.inside.geodesic(*self._inside(x, y), t))

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`x \oplus \operatorname{Exp}_e(c)`."""
        return self.chart.inverse(self.inside.shift(*self._inside(x), c))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        """Gyration of the points inside."""
        return self.chart.inverse(self.inside.gyration(*self._inside(x, y, z)))

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return self.inside._gyrate_normal(*self._inside(x, y), c)

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias the points inside."""
        y, centre, *target = self._inside(x, mean, *(() if bias is None else (bias,)))
        return self.chart.inverse(self.inside.standardize(y, centre, factor, *target))

    # ------------------------------------------------------------------ tangent vectors, the mean

    def push(self, x: Array, c: Array) -> Array:
        """Carry normal coordinates at e to a tangent vector at x."""
        return self.chart.inverse_differential(x, self.inside.push(*self._inside(x), c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        return self.inside.pull(*self._inside(x), self.tangent_to_inside(x, v))

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        """Parallel transport of the tangent vector inside."""
        u = self.inside.transport(*self._inside(x, y), self.tangent_to_inside(x, v))
        return self.chart.inverse_differential(y, u)

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Hessian of the space inside."""
        return self.inside.hessian(c, weights)

    def moments(self, x: Array) -> Array:
        """Moments of the points inside."""
        return self.inside.moments(*self._inside(x))

    def start(self, moments: Array) -> Array:
        """First guess of the mean, from the means of the moments inside."""
        return self.chart.inverse(self.inside.start(moments))

    def resolution(self, x: Array) -> Array:
        """Return the largest resolution of a block."""
        resolutions = self.resolutions(x)
        xp: Any = self._namespace(x)
        largest: Array = xp.max(resolutions, axis=-1)
        return largest

    def resolutions(self, x: Array) -> Array:
        """Resolutions of the point inside."""
        return self.inside.resolutions(*self._inside(x))
