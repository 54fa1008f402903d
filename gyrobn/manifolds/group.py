r"""Lie groups with a bi-invariant metric, whose gyrations do nothing."""

from abc import abstractmethod
from dataclasses import dataclass

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace


@dataclass(frozen=True)
class Group(GyroSpace):
    r"""A Lie group with a bi-invariant metric: ⊕ is the product, and ⊖ the inverse.

    A subclass writes them; the logarithm and exponential, ``to_normal`` and ``from_normal``; left
    translation, ``push`` and ``pull``; the adjoint action; and the Hessian.
    """

    @abstractmethod
    def adjoint_action(self, x: Array, c: Array) -> Array:
        r"""Return the coordinates of :math:`x \operatorname{Exp}_e(c)\,x^{-1}`."""

    @property
    def gyrocommutative(self) -> bool:
        """Whether the product commutes."""
        return False

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        """Return z: products are associative."""
        self._namespace(x, y, z)
        return z + 0.0 * (x + y)

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return c

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport, of coordinates by the adjoint action of :math:`h^{-1}`.

        .. math:: h = (x^{-1} y)^{1/2}
        """
        half = self.scale(0.5, self.relative(x, y))
        return self.push(y, self.adjoint_action(self.neg(half), self.pull(x, v)))
