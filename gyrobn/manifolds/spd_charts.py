"""One map per metric, from SPD matrices to a space in which that metric is simple."""

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.affine_invariant import AffineInvariant
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace, space_of
from gyrobn.numerics.decompositions import cholesky
from gyrobn.numerics.linalg import differential, logarithm, symmetric_functions
from gyrobn.numerics.matrices import (
    congruence,
    eye,
    from_triangle,
    matmul,
    pack,
    symmetric,
    to_triangle,
    transpose,
    unpack,
)
from gyrobn.numerics.spectral import EXP, LOG

__all__ = ["CHARTS", "Chart"]


class Chart:
    """The identity map, for the affine-invariant metrics; the base class of the other charts.

    If θ deforms the metric, points are :math:`P^\\theta` and not P.
    """

    deformed = True

    def __init__(self, by_cholesky: bool = False) -> None:
        self.by_cholesky = by_cholesky

    def inside(self, n: int, theta: float) -> GyroSpace:
        """Return the space to which the chart leads."""
        return space_of(AffineInvariant, n, self.by_cholesky, theta)

    def to(self, x: Array, theta: float) -> Array:
        """Carry points."""
        return symmetric(x)  # once, so that no decomposition has to

    def back(self, x: Array, n: int, theta: float) -> Array:
        """Carry points back, to n × n matrices."""
        return x

    def tangent_to(self, x: Array, v: Array, theta: float) -> Array:
        """Carry a tangent vector at x by the differential."""
        return v

    def tangent_back(self, x: Array, v: Array, theta: float) -> Array:
        """Carry a tangent vector back to x."""
        return v


class _Logarithm(Chart):
    """The packed logarithm, for the log-Euclidean metric; it does not depend on θ."""

    deformed = False

    def inside(self, n: int, theta: float) -> GyroSpace:
        return space_of(Euclidean, n * (n + 1) // 2)

    def to(self, x: Array, theta: float) -> Array:
        return pack(logarithm(x))

    def back(self, x: Array, n: int, theta: float) -> Array:
        return symmetric_functions(unpack(x, n), EXP)[0]

    def tangent_to(self, x: Array, v: Array, theta: float) -> Array:
        return pack(differential(LOG, x, v))

    def tangent_back(self, x: Array, v: Array, theta: float) -> Array:
        return differential(LOG, x, unpack(v, x.shape[-1]), inverse=True)


class _LogCholesky(_Logarithm):
    r"""The Cholesky factor with the logarithm of its diagonal, divided by θ.

    The differential of the factor is :math:`dL = L\,\Phi(L^{-1}\,dP\,L^{-\top})`, with Φ the lower
    triangle, its diagonal halved.
    """

    deformed = True

    def to(self, x: Array, theta: float) -> Array:
        L = cholesky(x)
        xp, diagonal = namespace_of(x), eye(x) > 0
        logs = xp.log(xp.where(diagonal, L, 1.0))
        return to_triangle(xp.where(diagonal, logs, L), diagonal=True) / theta

    def back(self, x: Array, n: int, theta: float) -> Array:
        C = theta * from_triangle(x, n, diagonal=True)
        xp, diagonal = namespace_of(x), eye(C) > 0
        L = xp.where(diagonal, xp.exp(xp.where(diagonal, C, 0.0)), C)
        return matmul(L, transpose(L))

    def tangent_to(self, x: Array, v: Array, theta: float) -> Array:
        xp, L = namespace_of(x), cholesky(x)
        phi = xp.tril(congruence(xp.linalg.inv(L), v)) * (1.0 - 0.5 * eye(x))
        change = xp.where(eye(x) > 0, phi, matmul(L, phi))
        return to_triangle(change, diagonal=True) / theta

    def tangent_back(self, x: Array, v: Array, theta: float) -> Array:
        xp, L = namespace_of(x), cholesky(x)
        change = theta * from_triangle(v, x.shape[-1], diagonal=True)
        dL = xp.where(eye(x) > 0, L * change, change)
        return 2.0 * symmetric(matmul(dL, transpose(L)))


CHARTS: dict[str, Chart] = {
    "affine_invariant": Chart(),
    "log_euclidean": _Logarithm(),
    "log_cholesky": _LogCholesky(),
    "cholesky_affine_invariant": Chart(by_cholesky=True),
}
