r"""The mean Hessian of SPD matrices, from the eigendecompositions of the samples.

It is the mean of :math:`V \mapsto U(K \circ (U^\top V U))U^\top` over the samples. U holds the
eigenvectors of a sample, and :math:`K_{ij} = a\coth a` with
:math:`a = \tfrac12(\log\lambda_i - \log\lambda_j)`.
"""

import math
from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import samples_last
from gyrobn.numerics.decompositions import finite_or_identity
from gyrobn.numerics.hessian import DENSE, Hessian
from gyrobn.numerics.matrices import (
    beside,
    matmul,
    mean_of_turned,
    pack,
    symmetric,
    transpose,
    unpack,
)
from gyrobn.numerics.scalar import cotangent

SMALL, ENTRIES = 36, 2**17
"""If values can be seen, H is formed up to this dimension, and so many entries of its tables:
beyond, conjugate gradients are faster. If not, the 24 products of Chebyshev steps are slower. On
several devices each of them would also be a reduction, and H takes only one."""


class Turned:
    """The Hessian on packed n × n matrices; each part is computed when it is first needed.

    Parameters
    ----------
    n
        Number of rows.
    weights
        Shape (N, *channels).
    known, curvature
        Functions; the first returns the logarithms of the eigenvalues and U, the second K.
    turn
        The orthogonal matrix from the basis in which U is written to that of the coordinates, if
        they differ.
    """

    def __init__(
        self,
        n: int,
        weights: Array,
        known: Callable[[], tuple[Array, Array]],
        curvature: Callable[[], Array],
        turn: Array | None = None,
    ) -> None:
        self.n, self.weights, self.known, self.curvature = n, weights, known, curvature
        self.turn = turn
        self._frames: dict[Any, tuple[Array, Array]] = {}
        self._tables: dict[Any, Array] = {}

    def hessian(self) -> Hessian:
        """Return it as an operator."""
        xp, weights, n = namespace_of(self.weights), self.weights, self.n
        dense = DENSE
        if not backend_of(weights).hides_values(weights):
            entries = math.prod(weights.shape) * n * n * (n + 1) // 2
            dense = SMALL if entries <= ENTRIES else 0
        return Hessian(
            self.apply,
            lambda: xp.sum(weights, axis=0),
            self.highest,
            rough=self.rough if weights.dtype == xp.float64 else None,
            matrix=self.matrix,
            dense=dense,
            at_least_one=True,
        )

    def _frame(self, dtype: Any) -> tuple[Array, Array]:
        """Return U, and all U of a channel beside each other: (*channels, 1, n, N n)."""
        if dtype not in self._frames:
            _, U = self.known()
            U = namespace_of(U).astype(U, dtype, copy=False)
            self._frames[dtype] = samples_last(U, 2), beside(U, 1)[..., None, :, :]
        return self._frames[dtype]

    def _table(self, dtype: Any) -> Array:
        """Return K times the weights."""
        if dtype not in self._tables:
            xp, w = namespace_of(self.weights), self.weights[..., None, None]
            tables = (samples_last(a, 2) for a in (w, self.curvature()))
            w, K = (xp.astype(a, dtype, copy=False) for a in tables)
            self._tables[dtype] = w * K
        return self._tables[dtype]

    def apply(self, v: Array, dtype: Any = None) -> Array:
        """Apply H to columns (*channels, dim, k), each of which is a packed matrix V."""
        xp, n, turn = namespace_of(v), self.n, self.turn
        dtype = v.dtype if dtype is None else dtype
        K, (U, wide) = self._table(dtype), self._frame(dtype)
        V = unpack(transpose(v), n)
        if turn is not None:
            V = matmul(transpose(turn)[..., None, :, :], V, turn[..., None, :, :])
        V = xp.astype(V, U.dtype, copy=False)
        many, flat = (*V.shape[:-2], U.shape[-3], n, n), (*V.shape[:-2], wide.shape[-1], n)
        inner = matmul(xp.reshape(matmul(transpose(wide), V), many), U[..., None, :, :, :])
        outer = matmul(K[..., None, :, :, :] * inner, transpose(U)[..., None, :, :, :])
        total = xp.astype(matmul(wide, xp.reshape(outer, flat)), v.dtype, copy=False)
        if turn is not None:
            total = matmul(turn[..., None, :, :], total, transpose(turn)[..., None, :, :])
        return transpose(pack(symmetric(total)))

    def rough(self, v: Array) -> Array:
        """Apply H in float32."""
        xp = namespace_of(v)
        tiny = float(xp.finfo(v.dtype).smallest_normal)
        size = xp.max(xp.abs(v), axis=-2, keepdims=True) + tiny  # float32 has a smaller range
        return size * self.apply(v / size, xp.float32)

    def highest(self) -> Array:
        """Return an upper bound of the eigenvalues.

        a coth a is an operator concave function of a² (a sum of a²/(a² + k²π²)): its mean is at
        most its value at the mean a², and that is at most the mean X².
        """
        xp, (logs, _) = namespace_of(self.weights), self.known()
        _, wide = self._frame(xp.float32)  # seven digits of a bound are enough
        off = logs - xp.mean(logs, axis=-1, keepdims=True)
        heavy = samples_last(self.weights[..., None] * off * off, 1)
        heavy = xp.reshape(heavy, (*wide.shape[:-2], 1, wide.shape[-1]))
        mean = matmul(wide * xp.astype(heavy, xp.float32, copy=False), transpose(wide))[
            ..., 0, :, :
        ]
        values = xp.linalg.eigvalsh(finite_or_identity(mean)[0])
        return cotangent(-xp.astype(values[..., -1], logs.dtype, copy=False), -1)

    def matrix(self) -> Array:
        """Return the Hessian as a matrix."""
        _, U = self.known()
        return mean_of_turned(
            self.curvature(), U if self.turn is None else matmul(self.turn, U), self.weights
        )
