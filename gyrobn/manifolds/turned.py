r"""The mean Hessian of matrices whose logarithms have the eigenvectors U.

It is the mean of :math:`V \mapsto U(K \circ (U^\top V U))U^\top` over the samples, with
:math:`K_{ij} = a\coth a` and a half the difference of two logarithms of eigenvalues.
"""

import math
from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import samples_last, weighted_gram
from gyrobn.numerics.decompositions import finite_or_identity
from gyrobn.numerics.hessian import DENSE, Hessian
from gyrobn.numerics.matrices import matmul, mean_of_turned, pack, symmetric, transpose, unpack
from gyrobn.numerics.scalar import cotangent

__all__ = ["turned_hessian"]

SMALL, ENTRIES = 36, 2**17
"""If values can be seen, H is formed up to this dimension, and so many entries of its tables:
beyond, conjugate gradients are faster. If not, the 24 products of Chebyshev steps are slower. On
several devices each of them would also be a reduction, and H takes only one."""


def turned_hessian(
    n: int,
    weights: Array,
    decomposition: Callable[[], tuple[Array, Array]],
    curvature: Callable[[], Array],
    turn: Array | None = None,
) -> Hessian:
    """Return the Hessian on packed n × n matrices.

    Parameters
    ----------
    n
        Number of rows.
    weights
        Shape (N, *channels).
    decomposition, curvature
        Functions that return the logarithms of the eigenvalues and U, and K.
    turn
        An orthogonal matrix that leads from the frame of U to that of the coordinates, if they
        differ.
    """
    xp = namespace_of(weights)
    mean = _Turned(n, weights, decomposition, curvature, turn)
    dim = n * (n + 1) // 2
    dense = DENSE
    if not backend_of(weights).hides_values(weights):
        dense = SMALL if math.prod(weights.shape) * n * dim <= ENTRIES else 0
    return Hessian(
        mean.apply,
        lambda: xp.sum(weights, axis=0),
        mean.highest,
        rough=mean.rough if weights.dtype == xp.float64 else None,
        matrix=mean.matrix,
        dense=dense,
        at_least_one=True,
        smooth=False,
    )


class _Turned:
    """What a Hessian is asked for; nothing is computed before."""

    def __init__(self, n: int, weights: Array, known: Any, curvature: Any, turn: Any) -> None:
        self.n, self.weights, self.known, self.curvature = n, weights, known, curvature
        self.turn = turn
        self._spectra: dict[Any, tuple[Array, ...]] = {}

    def _spectrum(self, dtype: Any) -> tuple[Array, ...]:
        """Return K times the weights, U, and all U of a channel beside each other."""
        if dtype not in self._spectra:
            arrays = self.curvature(), self.known()[1], self.weights[..., None, None]
            xp = namespace_of(self.weights)
            K, U, w = (xp.astype(samples_last(a, 2), dtype, copy=False) for a in arrays)
            k = U.ndim - 3
            between = xp.permute_dims(U, (*range(k), k + 1, k, k + 2))
            wide = xp.reshape(between, (*U.shape[:-3], 1, self.n, U.shape[-3] * self.n))
            self._spectra[dtype] = w * K, U, wide
        return self._spectra[dtype]

    def apply(self, v: Array, dtype: Any = None) -> Array:
        """Take columns (*channels, dim, k) as matrices, and give each to all samples."""
        xp, n, turn = namespace_of(v), self.n, self.turn
        K, U, wide = self._spectrum(v.dtype if dtype is None else dtype)
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
        """Do the same in float32."""
        xp = namespace_of(v)
        tiny = float(xp.finfo(v.dtype).smallest_normal)
        size = xp.max(xp.abs(v), axis=-2, keepdims=True) + tiny  # float32 has a smaller range
        return size * self.apply(v / size, xp.float32)

    def highest(self) -> Array:
        """Return an upper bound of the eigenvalues.

        a coth a is an operator concave function of a² (a sum of a²/(a² + k²π²)): its mean is at
        most its value at the mean a², and that is at most the mean X².
        """
        xp, (logs, U) = namespace_of(self.weights), self.known()
        off = logs - xp.mean(logs, axis=-1, keepdims=True)
        mean = weighted_gram(self.weights[..., None] * off * off, transpose(U))
        values = xp.linalg.eigvalsh(finite_or_identity(mean)[0])
        return cotangent(-values[..., -1], -1)

    def matrix(self) -> Array:
        """Return the Hessian as a matrix."""
        _, U = self.known()
        return mean_of_turned(
            self.curvature(), U if self.turn is None else matmul(self.turn, U), self.weights
        )
