"""Positive semidefinite matrices of fixed rank: covariances of dependent channels."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.chart import Chart, Diffeomorphism
from gyrobn.manifolds.grassmannian import Grassmannian, leading
from gyrobn.manifolds.product import Product
from gyrobn.manifolds.spd import SPD
from gyrobn.numerics.matrices import adjoint, congruence, identity, matmul, symmetric
from gyrobn.numerics.matrix_functions import eigh
from gyrobn.numerics.orthogonal import polar


class RangeAndCore(Diffeomorphism):
    r"""The range of P, by a basis U, and the core :math:`S = U^\top P U`.

    Of all bases of the range, U is the one whose first p rows are symmetric and positive
    semidefinite, nearest to the first p coordinate vectors: the gauge.
    """

    inside: Product

    def __init__(self, n: int, p: int) -> None:
        self.p, self.inside = p, Product(Grassmannian(n, p), SPD(p))

    def _gauge(self, U: Array) -> Array:
        return matmul(U, adjoint(polar(U[..., : self.p, :])))

    def forward(self, x: Array) -> Array:
        """Return basis and core, in one vector."""
        U = self._gauge(leading(x, self.p))
        return self.inside.join(U, congruence(adjoint(U), x))

    def inverse(self, y: Array) -> Array:
        r"""Return :math:`U S U^\top`."""
        U, S = self.inside.split(y)
        return congruence(self._gauge(U), S)

    def _turn(self, U: Array, H: Array) -> Array:
        r"""Return the skew A for which :math:`\dot U = H + UA` keeps the gauge."""
        top, change = U[..., : self.p, :], H[..., : self.p, :]
        values, V = eigh(symmetric(top))
        skew = matmul(adjoint(V), adjoint(change) - change, V)
        return matmul(V, skew / (values[..., :, None] + values[..., None, :]), adjoint(V))

    def differential(self, x: Array, v: Array) -> Array:
        """Return the change of basis, horizontal, and core."""
        U, S = self.inside.split(self.forward(x))
        vU = matmul(v, U)
        H = adjoint(namespace_of(S).linalg.solve(S, adjoint(vU - matmul(U, adjoint(U), vU))))
        A = self._turn(U, H)
        change = matmul(adjoint(U), vU) + matmul(S, A) - matmul(A, S)
        return self.inside._join("point", [H, change])

    def inverse_differential(self, x: Array, u: Array) -> Array:
        """Return the change of the matrix."""
        U, S = self.inside.split(self.forward(x))
        H, change = self.inside._split("point", u)
        half = matmul(H + matmul(U, self._turn(U, H)), S, adjoint(U))
        return 2.0 * symmetric(half) + congruence(U, change)


@dataclass(frozen=True)
class FixedRankSPD(Chart):
    r"""Symmetric positive semidefinite n × n matrices of rank p < n, with two blocks.

    A matrix :math:`P = U S U^\top` is a subspace, the range, and a positive definite p × p matrix
    S, in the basis U of the range whose first p rows are symmetric and positive semidefinite. The
    metric is that of the product of the Grassmannian and :class:`SPD`. Subspaces at a right angle
    to one of the first p coordinates have no such basis.

    Parameters
    ----------
    n, p
        Number of rows, and the rank.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import FixedRankSPD
    >>> M = FixedRankSPD(3, 2)
    >>> bool(np.isclose(M.norm(np.diag([np.e, 1.0, 0.0])), 1.0))
    True
    """

    n: int
    p: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one matrix: ``(n, n)``."""
        return self.n, self.n

    @cached_property
    def chart(self) -> RangeAndCore:
        """Range and core."""
        return RangeAndCore(self.n, self.p)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Raise an error: the rank does not follow from a shape."""
        raise ValueError(
            "the rank cannot be told from the shape of the matrices: give the geometry itself, "
            f"FixedRankSPD({shape[-1]}, p)"
        )

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return matrices of rank two."""
        return (cls(4, 2),)

    def origin(self, like: Array) -> Array:
        """Return the matrix with p ones on the diagonal, then zeros."""
        E = backend_of(like).cached(np.eye, like, self.n, self.p)
        return matmul(E, adjoint(E))

    def project(self, x: Array) -> Array:
        """Return the part of the p largest eigenvalues, raised if they are too small."""
        self._namespace(x)
        U = leading(x, self.p)
        return congruence(U, SPD(self.p).project(congruence(adjoint(U), x)))

    def violation(self, x: Array) -> Array:
        """Return the largest of asymmetry, other eigenvalues, and what the core violates."""
        xp, x = self._namespace(x), backend_of(x).stop_gradient(x)
        finite = xp.all(xp.isfinite(x), axis=(-2, -1), keepdims=True)
        A = xp.where(finite, x, 0.0 * identity(x))
        size = xp.max(xp.abs(A), axis=(-2, -1))
        some = xp.where(size > 0, size, 1.0)[..., None, None]
        values = xp.linalg.eigvalsh(symmetric(A) / some)
        rest = xp.max(xp.abs(values[..., : -self.p]), axis=-1)
        asymmetry = xp.max(xp.abs(A - adjoint(A)) / some, axis=(-2, -1))
        core = SPD(self.p).violation(
            values[..., -self.p :, None] * identity(values[..., -self.p :])
        )
        off = xp.maximum(xp.maximum(rest, asymmetry), core)
        return xp.where(finite[..., 0, 0], off, xp.inf)
