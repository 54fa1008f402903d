"""A geometry that is another one in disguise: it is computed there, and carried back."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from gyrobn.backends import Array
from gyrobn.manifolds.composite import Composite
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.hessian import Hessian


@dataclass(frozen=True)
class Pullback(Composite):
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
    def _spaces(self) -> Sequence[GyroSpace]:
        return (self.inside,)

    def _split(self, x: Array) -> list[Array]:
        return [self.to_inside(x)]

    def _join(self, parts: list[Array]) -> Array:
        return self.from_inside(*parts)

    def _split_tangent(self, x: Array, v: Array) -> list[Array]:
        return [self.tangent_to_inside(x, v)]

    def _join_tangent(self, x: Array, parts: list[Array]) -> Array:
        return self.tangent_from_inside(x, *parts)

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`\varphi^{-1}(\varphi(x) \oplus \varphi(y))`; exactly y if x is e."""
        return self._with_identity(x, y, super().add(x, y))

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Hessian of the space inside."""
        return self.inside.hessian(c, weights)

    def resolutions(self, x: Array) -> Array:
        """Resolutions of the space inside."""
        return self.inside.resolutions(*self._points(x)[0])
