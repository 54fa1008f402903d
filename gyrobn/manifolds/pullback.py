"""A geometry that is another one in disguise: it is computed there, and carried back."""

from abc import abstractmethod
from dataclasses import dataclass

from gyrobn.backends import Array
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import Totals, together
from gyrobn.numerics.hessian import Hessian

__all__ = ["Pullback"]


@dataclass(frozen=True)
class Pullback(GyroSpace):
    r"""The geometry that a map :math:`\varphi` onto another one, ``inside``, makes an isometry.

    .. math:: x \oplus y = \varphi^{-1}(\varphi(x) \oplus \varphi(y)), \qquad
              \operatorname{Log}_e x = \operatorname{Log}_{\varphi(e)} \varphi(x)

    A subclass says what is inside, and writes the map (``to_inside``, ``from_inside``), its
    differential both ways, ``origin``, ``project`` and ``violation``.
    """

    @property
    @abstractmethod
    def inside(self) -> GyroSpace:
        r"""The space to which :math:`\varphi` leads."""

    @abstractmethod
    def to_inside(self, x: Array) -> Array:
        r"""Carry points by :math:`\varphi`."""

    @abstractmethod
    def from_inside(self, x: Array) -> Array:
        r"""Carry points by :math:`\varphi^{-1}`."""

    @abstractmethod
    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        r"""Carry a tangent vector at x by :math:`d\varphi_x`."""

    @abstractmethod
    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        r"""Carry a tangent vector at :math:`\varphi(x)` by the inverse of :math:`d\varphi_x`."""

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
        """Whether the space inside is gyrocommutative."""
        return self.inside.gyrocommutative

    @property
    def reductive(self) -> bool:
        """Whether the space inside is reductive."""
        return self.inside.reductive

    @property
    def gyrovector(self) -> bool:
        """Whether multiples add up in the space inside."""
        return self.inside.gyrovector

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        """Convexity radius of the space inside."""
        return self.inside.convexity_radius

    def _to(self, *points: Array) -> tuple[Array, ...]:
        self._namespace(*points)
        return tuple(self.to_inside(x) for x in points)

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`\varphi^{-1}(\varphi(x) \oplus \varphi(y))`."""
        return self.from_inside(self.inside.add(*self._to(x, y)))

    def neg(self, x: Array) -> Array:
        r"""Gyroinverse :math:`\varphi^{-1}(\ominus\varphi(x))`."""
        return self.from_inside(self.inside.neg(*self._to(x)))

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y`."""
        return self.from_inside(self.inside.relative(*self._to(x, y)))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`."""
        return self.inside.relative_normal(*self._to(x, y))

    def to_normal(self, x: Array) -> Array:
        r"""Normal coordinates of :math:`\varphi(x)`."""
        return self.inside.to_normal(*self._to(x))

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`."""
        return self.from_inside(self.inside.from_normal(c))

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication :math:`\varphi^{-1}(t \odot \varphi(x))`."""
        return self.from_inside(self.inside.scale(t, *self._to(x)))

    def norm(self, x: Array) -> Array:
        r"""Gyronorm of :math:`\varphi(x)`."""
        return self.inside.norm(*self._to(x))

    def dist(self, x: Array, y: Array) -> Array:
        r"""Distance between :math:`\varphi(x)` and :math:`\varphi(y)`."""
        return self.inside.dist(*self._to(x, y))

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        """Point of the geodesic: x at t = 0, y at t = 1."""
        a, b = self._to(x, y)
        return self.from_inside(self.inside.geodesic(a, b, t))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        """Gyration of the space inside."""
        return self.from_inside(self.inside.gyration(*self._to(x, y, z)))

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        a, b = self._to(x, y)
        return self.inside._gyrate_normal(a, b, c)

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias in the space inside."""
        y, centre, *target = self._to(x, mean, *(() if bias is None else (bias,)))
        return self.from_inside(self.inside.standardize(y, centre, factor, *target))

    # ------------------------------------------------------------------ tangent vectors, the mean

    def push(self, x: Array, c: Array) -> Array:
        """Carry normal coordinates at e to a tangent vector at x, by way of the space inside."""
        (y,) = self._to(x)
        return self.tangent_from_inside(x, self.inside.push(y, c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        (y,) = self._to(x)
        return self.inside.pull(y, self.tangent_to_inside(x, v))

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        """Parallel transport, by way of the space inside."""
        a, b = self._to(x, y)
        moved = self.inside.transport(a, b, self.tangent_to_inside(x, v))
        return self.tangent_from_inside(y, moved)

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Hessian of the space inside."""
        return self.inside.hessian(c, weights)

    def start(self, x: Array, weights: Array, total: Totals = together) -> Array:
        """First guess of the mean: that of the space inside."""
        (y,) = self._to(x)
        return self.from_inside(self.inside.start(y, weights, total))

    def resolution(self, x: Array) -> Array:
        """Resolution of the space inside."""
        return self.inside.resolution(*self._to(x))

    def resolutions(self, x: Array) -> Array:
        """Resolutions of the space inside."""
        return self.inside.resolutions(*self._to(x))
