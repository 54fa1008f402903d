r"""A geometry as a diffeomorphism and the space inside, to which it leads.

The map :math:`\varphi` is an isometry by definition:

.. math:: x \oplus y = \varphi^{-1}(\varphi(x) \oplus \varphi(y)), \qquad
          \operatorname{Log}_e x = \operatorname{Log}_{\varphi(e)} \varphi(x) .
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gyrobn.backends import Array
from gyrobn.manifolds.composite import Composite
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import check_coordinates, check_floating


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
class Chart(Composite):
    r"""The geometry that a map onto another one makes an isometry.

    A subclass says what the map is, and writes ``origin``, ``project`` and ``violation``.
    """

    @property
    @abstractmethod
    def chart(self) -> Diffeomorphism:
        r"""The map :math:`\varphi`."""

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

    # ------------------------------------------------------------------ the one part

    @property
    def _spaces(self) -> Sequence[GyroSpace]:
        return (self.inside,)

    def _split(self, kind: str, a: Any) -> list[Any]:
        return [self.chart.forward(a) if kind == "point" else a]

    def _join(self, kind: str, parts: list[Array]) -> Array:
        return self.chart.inverse(*parts) if kind == "point" else parts[0]

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`x \oplus y`."""
        return self._with_identity(x, y, super().add(x, y))

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`."""
        check_coordinates(self, c)
        return self.chart.exponential(c)

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        """Carry normal coordinates at e to a tangent vector at x."""
        check_coordinates(self, c)
        return self.tangent_from_inside(x, self.inside.push(self.to_inside(x), c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        return self.inside.pull(self.to_inside(x), self.tangent_to_inside(x, v))

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        """Parallel transport from x to y."""
        points = self.to_inside(x), self.to_inside(y)
        u = self.inside.transport(*points, self.tangent_to_inside(x, v))
        return self.tangent_from_inside(y, u)
