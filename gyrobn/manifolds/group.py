r"""Lie groups with a bi-invariant metric, whose gyrations do nothing."""

from dataclasses import dataclass

from gyrobn.backends import Array
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.matrices import matmul


@dataclass(frozen=True)
class Group(GyroSpace):
    r"""A group of matrices with a bi-invariant metric: ⊕ is the product.

    A subclass writes ``neg``, the inverse; the logarithm and exponential, ``to_normal`` and
    ``from_normal``; left translation, ``push`` and ``pull``; and the Hessian. A group that is not
    one of matrices also writes ``add`` and the adjoint action.
    """

    @property
    def gyrocommutative(self) -> bool:
        """Whether the product commutes."""
        return False

    def add(self, x: Array, y: Array) -> Array:
        """Product xy."""
        self._namespace(x, y)
        return matmul(x, y)

    def adjoint_action(self, x: Array, c: Array) -> Array:
        r"""Coordinates of :math:`x X x^{-1}`, for the tangent vector X at e with coordinates c."""
        self._namespace(x)
        e = self.origin(c)
        return self.pull(e, matmul(x, self.push(e, c), self.neg(x)))

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
