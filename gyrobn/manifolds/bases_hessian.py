r"""The mean Hessian of half the squared distance between subspaces.

It acts on blocks V, (n − p) × p. With the singular value decomposition
:math:`B = Q \theta P^\top` of a sample's coordinates, its eigenvalues are :math:`a \cot a`. On the
entries (i, j) and (j, i) of :math:`Q^\top V P`, :math:`a = \theta_i - \theta_j` for their symmetric
and :math:`\theta_i + \theta_j` for their antisymmetric combination; off the span of Q,
:math:`a = \theta_j` on the column j.
"""

import math
from collections.abc import Callable
from functools import cache

from gyrobn.backends import Array, State, namespace_of
from gyrobn.numerics.arrays import samples_last, weighted_gram, weighted_sum
from gyrobn.numerics.hessian import Hessian, compact_hessian
from gyrobn.numerics.matrices import beside, matmul, transpose


def hessian_of_bases(
    c: Array, weights: Array, p: int, directions: Callable[[Array], Array]
) -> Hessian:
    """Return the mean Hessian; ``directions`` finds P of the blocks B, the angles ascending."""
    xp, shape = namespace_of(c), (c.shape[-1] // p, p)

    @cache
    def spectrum() -> State:
        B = xp.reshape(c, (*c.shape[:-1], *shape))
        return _spectrum(B, directions(B))

    @cache
    def tables() -> State:
        return _tables(weights, *spectrum())

    def lowest() -> Array:
        """Return the eigenvalue of the largest angles: a·cot a falls."""
        _, _, _, other, alone = spectrum()
        least = alone[..., -1] if p == 1 else other[..., -1, -2]
        return weighted_sum(weights, least)

    ricci = float(sum(shape) - 2)
    return compact_hessian(c, weights, ricci, lambda v: _apply(shape, v, tables()), lowest)


def _spectrum(B: Array, P: Array) -> State:
    """Return P, Q, and the eigenvalues for differences, for sums and for single angles."""
    xp = namespace_of(B)
    info = xp.finfo(B.dtype)
    tiny = float(info.smallest_normal) ** 0.5
    T = matmul(B, P)
    # the lengths of the columns are the angles with all their digits; cosines lack those
    theta = xp.sqrt(xp.sum(T * T, axis=-2))
    theta = xp.clip(theta, min=tiny, max=0.5 * math.pi * (1.0 - float(info.eps)))
    Q = T / theta[..., None, :]
    rows, columns = theta[..., :, None], theta[..., None, :]
    apart, both = abs(rows - columns) + tiny, rows + columns
    # a·cot a falls to −∞ towards π; a floor keeps one far sample from deciding the sum
    other = xp.clip(both / xp.tan(both), min=-1e3)
    return P, Q, apart / xp.tan(apart), other, theta / xp.tan(theta)


def _tables(weights: Array, P: Array, Q: Array, alike: Array, other: Array, alone: Array) -> State:
    """Return all Q beside each other; P and the factors of W and Wᵀ, samples last; Σ w P a Pᵀ."""
    heavy = weights[..., None, None]
    straight = heavy * (0.5 * (alike + other) - alone[..., None, :])
    crossed = heavy * (0.5 * (alike - other))
    last = (samples_last(a, 2)[..., None, :, :] for a in (P, straight, crossed))
    return beside(Q, 1), *last, weighted_gram(weights[..., None] * alone, transpose(P))


def _apply(shape: tuple[int, int], v: Array, tables: State) -> Array:
    r"""Apply H to columns (*channels, dim, k), for all samples in two products.

    With :math:`W = Q^\top V P`, and the symmetric and antisymmetric parts written as a sum of W and
    :math:`W^\top`, :math:`HV = \sum_i w_i (V P a P^\top + Q\,(\dots)\,P^\top)`.
    """
    xp = namespace_of(v)
    (m, p), (Q, P, straight, crossed, alone) = shape, tables
    batch, k, count = v.shape[:-2], v.shape[-1], P.shape[-4]
    V = xp.reshape(v, (*batch, m, p, k))
    W = matmul(transpose(Q), xp.reshape(V, (*batch, m, p * k)))
    b = len(batch) + 1  # with permute_dims, since torch's vmap does not know moveaxis
    W = xp.reshape(W, (*batch, count, p, p, k))
    W = xp.permute_dims(W, (*range(b), b + 2, b, b + 1))
    W = matmul(W, P)
    Z = matmul(straight * W + crossed * transpose(W), transpose(P))
    Z = xp.permute_dims(Z, (*range(b), b + 1, b + 2, b))
    Z = xp.reshape(Z, (*batch, count * p, p * k))
    whole = xp.reshape(matmul(Q, Z), V.shape) + matmul(alone[..., None, :, :], V)
    return xp.reshape(whole, v.shape)
