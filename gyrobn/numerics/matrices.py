"""Products, symmetric parts, identities and triangles of matrices."""

import math
from functools import reduce
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import constant, sum_of_products


def transpose(A: Array) -> Array:
    """Return the transposed matrices."""
    return namespace_of(A).matrix_transpose(A)


def symmetric(A: Array) -> Array:
    """Return the symmetric part of A."""
    return 0.5 * (A + transpose(A))


def congruence(R: Array, A: Array) -> Array:
    """Return the symmetric matrix R A Rᵀ."""
    return symmetric(matmul(R, A, transpose(R)))


def matmul(*factors: Array) -> Array:
    """Return the product of matrices, from left to right."""
    return reduce(namespace_of(factors[0]).matmul, factors)


def compose(U: Array, values: Array, V: Array) -> Array:
    """Return U diag(values) Vᵀ."""
    return matmul(U * values[..., None, :], transpose(V))


def beside(A: Array, count: int) -> Array:
    """Put the matrices along the first ``count`` axes beside each other, as one wide matrix.

    One product with it is several times as fast as one product per matrix.
    """
    xp = namespace_of(A)
    axes = tuple(range(A.ndim))
    A = xp.permute_dims(A, (*axes[count:-1], *axes[:count], axes[-1]))
    return xp.reshape(A, (*A.shape[: -1 - count], math.prod(A.shape[-1 - count :])))


def apart(A: Array, sizes: tuple[int, ...]) -> Array:
    """Undo :func:`beside`: ``sizes`` are the lengths of the first axes and of the last one."""
    xp = namespace_of(A)
    A = xp.reshape(A, (*A.shape[:-1], *sizes))
    axes = tuple(range(A.ndim))
    rows = A.ndim - len(sizes)
    return xp.permute_dims(A, (*axes[rows:-1], *axes[:rows], axes[-1]))


def diagonal_matrix(values: Array) -> Array:
    """Return the matrices with these values on the diagonal."""
    return values[..., None] * kept_eye(values)


def eye(like: Array, n: int | None = None) -> Array:
    """Return the n × n identity, in the library, dtype and device of ``like``."""
    size = like.shape[-1] if n is None else n
    # not eye of array_api_compat, which on torch writes into zeros: a graph for ONNX cannot
    return namespace_of(like).astype(constant(_on_diagonal, like, size), like.dtype)


def kept_eye(like: Array, n: int | None = None) -> Array:
    """Return the identity as :func:`eye` does, as a constant that must not reach a user."""
    return constant(np.eye, like, like.shape[-1] if n is None else n)


def _on_diagonal(n: int) -> "np.ndarray[Any, Any]":
    return np.eye(n) > 0


def with_diagonal(A: Array, value: float) -> Array:
    """Return A with ``value`` on the diagonal."""
    one = kept_eye(A)
    diagonal = constant(_on_diagonal, A, A.shape[-1])
    return namespace_of(A).where(diagonal, one if value == 1.0 else value * one, A)


def to_triangle(A: Array, diagonal: bool, weight: float = 1.0) -> Array:
    """Return the lower triangle of A as vectors, row by row, times ``weight`` off the diagonal.

    With weight √2 and the diagonal, the vectors of symmetric matrices have their Frobenius norm.
    """
    xp = namespace_of(A)
    n = A.shape[-1]
    flat = xp.reshape(A, (*A.shape[:-2], n * n))
    entries = backend_of(A).take(flat, constant(_triangle, A, n, diagonal))
    if diagonal and weight != 1.0:
        return entries * constant(_triangle_weights, A, n, weight)
    return entries if weight == 1.0 else weight * entries


def _triangle(n: int, diagonal: bool) -> "np.ndarray[Any, Any]":
    """Return where the entries of a lower triangle are, in a flat matrix."""
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    return (rows * n + columns).astype(np.int32)


def _triangle_weights(n: int, weight: float) -> "np.ndarray[Any, Any]":
    rows, columns = np.tril_indices(n)
    weights = np.ones(len(rows))  # np.where(…, 1.0, weight) would be float32 for torch.compile
    weights[rows != columns] = weight
    return weights


def from_triangle(
    c: Array, n: int, diagonal: bool, weight: float = 1.0, mirror: float = 0.0
) -> Array:
    """Undo :func:`to_triangle`; the upper triangle is ``mirror`` times the lower one."""
    xp = namespace_of(c)
    entries = backend_of(c).take(c, constant(_places, c, n, diagonal))
    factors = constant(_factors, c, n, diagonal, weight, mirror)
    return xp.reshape(entries * factors, (*c.shape[:-1], n, n))


def _places(n: int, diagonal: bool) -> "np.ndarray[Any, Any]":
    """Return where the entries of a flat matrix are in its lower triangle."""
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    place = np.zeros((n, n), dtype=np.int32)
    place[columns, rows] = place[rows, columns] = np.arange(len(rows))
    return place.reshape(-1)


def _factors(n: int, diagonal: bool, weight: float, mirror: float) -> "np.ndarray[Any, Any]":
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    factor = np.zeros((n, n))
    factor[columns, rows] = mirror / weight
    factor[rows, columns] = 1.0 / weight
    if diagonal:
        np.fill_diagonal(factor, 1.0)
    return factor.reshape(-1)


def pack(A: Array) -> Array:
    """Return symmetric matrices as vectors of the same norm."""
    return to_triangle(A, diagonal=True, weight=2.0**0.5)


def unpack(c: Array, n: int) -> Array:
    """Undo :func:`pack`."""
    return from_triangle(c, n, diagonal=True, weight=2.0**0.5, mirror=1.0)


def mean_of_turned(K: Array, U: Array, weights: Array) -> Array:
    r"""Return the weighted sum of :math:`V \mapsto U(K \circ (U^\top V U))U^\top` as a matrix.

    It acts on packed V. Shapes are (N, *channels, n, n), K symmetric, and (N, *channels). Its value
    at :math:`e_c e_d^\top` has the entry :math:`Q_{ac,bd}` in row a and column b, where

    .. math:: Q = \sum_i w_i\,P_i^\top K_i P_i, \qquad P_{k,ac} = U_{ak} U_{ck} .

    P has n rows, so Q takes fewer products than a sum over pairs of eigenvectors.
    """
    shim, xp, n = backend_of(U), namespace_of(U), U.shape[-1]
    d = n * (n + 1) // 2
    sides = shim.take(transpose(U), constant(_sides, U, n))
    P = sides[..., :d] * sides[..., d:]
    Q = sum_of_products(weights[..., None, None] * matmul(K, P), P)
    entries = shim.take(xp.reshape(Q, (*Q.shape[:-2], d * d)), constant(_exchanged, U, n))
    both = xp.reshape(entries, (*Q.shape[:-2], 2 * d, d))
    return (both[..., :d, :] + both[..., d:, :]) * constant(_halves, U, n)


def _sides(n: int) -> "np.ndarray[Any, Any]":
    """Return the rows of the entries of a lower triangle, and then their columns."""
    return np.concatenate(np.tril_indices(n)).astype(np.int32)


def _exchanged(n: int) -> "np.ndarray[Any, Any]":
    """Return where Q has, for each ab and cd, the entries of ac and bd, and then of ad and bc."""
    d, place = n * (n + 1) // 2, _places(n, True).reshape(n, n)
    rows, columns = np.tril_indices(n)
    a, b = rows[:, None], columns[:, None]
    pairs = (place[a, rows], place[b, columns]), (place[a, columns], place[b, rows])
    # Q is symmetric but for rounding errors, and what is made of it shall be exactly so
    flat = [np.minimum(p, q) * d + np.maximum(p, q) for p, q in pairs]
    return np.stack(flat).reshape(-1).astype(np.int32)


def _halves(n: int) -> "np.ndarray[Any, Any]":
    """Return 2fᵢfⱼ: packing stands for the basis f(eeᵀ + eeᵀ), f = 1/√2, or ½ on the diagonal."""
    factors = 0.5 * _triangle_weights(n, 2.0**0.5)
    return np.asarray(2.0 * factors[:, None] * factors)
