"""Singular value decompositions from which rotations follow: the nearest one, and square roots."""

from typing import Any

import numpy as np

from gyrobn.backends import Array, State, backend_of, namespace_of
from gyrobn.numerics.arrays import constant
from gyrobn.numerics.decompositions import Singular, svd
from gyrobn.numerics.matrices import eye, matmul, transpose


def svd_without_reflection(A: Array) -> Singular:
    """Decompose A = P c Tᵀ so that P Tᵀ is a rotation; the last of c is negative if A reflects.

    The sign is that of the determinant of P Tᵀ, which is 1 or −1 even if A is singular.
    """
    xp = namespace_of(A)
    P, c, Th = svd(A)
    last = eye(A)[-1, :]
    turn = 1.0 - 2.0 * last * xp.astype(xp.linalg.det(matmul(P, Th)) < 0, A.dtype)[..., None]
    return Singular(P * turn[..., None, :], c * turn, Th)


def svd_of_sum(A: Array) -> Singular:
    r"""Decompose :math:`A = I + R = P c T^\top` so that :math:`P T^\top` is a root of R.

    The singular values 2 cos(θ/2) come in pairs, one pair per plane, the smallest last. In the
    plane of a half turn A is rounding error, so P is arbitrary. But T still spans the plane, so the
    quarter turn of its two vectors replaces A there.
    """
    xp = namespace_of(A)
    n, eps = A.shape[-1], float(xp.finfo(A.dtype).eps)
    P, c, Th = svd(A)
    if n < 4:  # there is only one plane, and its quarter turn is correct at any angle
        turned, size = _quarter_turns(P, c, Th)
        near = size < 8.0 * eps**0.5
        return Singular(xp.where(near[..., None, :], turned, P), xp.clip(c, min=128.0 * eps), Th)
    R = A - eye(A)
    off = xp.max(xp.abs(matmul(transpose(R), R) - eye(A)), axis=(-2, -1))
    least = 64.0 * xp.clip(off, min=2.0 * eps)[..., None]

    # Planes of equal angles mix their vectors, and a threshold could separate these. So quarter
    # turns are added to A with a weight that fades out, and again if a sum happens to vanish.
    def body(state: State) -> State:
        A, *known = state
        turned, size = _quarter_turns(*known)
        push = least / (1.0 + (4.0 * size / least) ** 2)
        A = A + matmul(turned * push[..., None, :], known[2])
        return A, *svd(A)

    def condition(state: State) -> Array:
        return xp.any(state[2] < 32.0 * least)

    _, P, c, Th = backend_of(A).while_loop(condition, body, (A, P, c, Th), 2)
    return Singular(P, c, Th)


def _quarter_turns(P: Array, c: Array, Th: Array) -> tuple[Array, Array]:
    r"""Return T J, with the quarter turn J of each pair as A orients it, and the pair's mean c."""
    xp = namespace_of(c)
    n = c.shape[-1]
    J, mean = constant(_quarter_turn, c, n), constant(_pair_mean, c, n)
    turned = matmul(transpose(Th), J)
    along = xp.matmul(c * xp.sum(P * turned, axis=-2), mean)
    return xp.where(along[..., None, :] < 0, -turned, turned), xp.matmul(c, mean)


def _quarter_turn(n: int) -> "np.ndarray[Any, Any]":
    """Return the quarter turn of each pair of coordinates, counted from the last."""
    J = np.zeros((n, n))
    i = np.arange(n % 2, n, 2)
    J[i + 1, i], J[i, i + 1] = 1.0, -1.0
    return J


def _pair_mean(n: int) -> "np.ndarray[Any, Any]":
    """Return the mean over each pair of coordinates, counted from the last."""
    mean: np.ndarray[Any, Any] = 0.5 * (np.abs(_quarter_turn(n)) + np.eye(n))
    mean[: n % 2, : n % 2] = 1.0
    return mean
