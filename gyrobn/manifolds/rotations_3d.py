"""Rotations of three-dimensional space: their logarithm and Hessian without decompositions."""

from functools import cache
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, dot, namespace_of
from gyrobn.numerics.arrays import constant, sum_samples, weighted_gram, weighted_sum
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import eye, kept_eye, matmul
from gyrobn.numerics.scalar import arc, cotangent, sinc


def logarithm_by_quaternion(x: Array) -> Array:
    r"""Return the normal coordinates of 3 × 3 rotations, with all digits at any angle.

    The entries of x are linear in those of :math:`4qq^\top`, with the unit quaternion q. Each row
    is a multiple of q, and the row with the largest diagonal entry has no cancellation.
    """
    xp = namespace_of(x)
    flat = xp.reshape(x, (*x.shape[:-2], 9))
    squares = xp.reshape(xp.matmul(flat, constant(_quaternion_map, x)), (*x.shape[:-2], 4, 4))
    squares = squares + kept_eye(x, 4)
    best = xp.argmax(xp.linalg.diagonal(squares), axis=-1, keepdims=True)
    pick = xp.astype(best == constant(np.arange, x, 4), x.dtype)
    row = xp.sum(pick[..., None] * squares, axis=-2)
    q = row / xp.sqrt(dot(row, row))[..., None]
    q = q * (1.0 - 2.0 * xp.astype(q[..., :1] < 0, x.dtype))  # an angle of at most π
    v, cos = q[..., 1:], q[..., 0]
    square = dot(v, v)
    if backend_of(x).differentiable(x):
        ratio = arc(square, cos, 1)
    else:
        sine = xp.sqrt(xp.clip(square, min=float(xp.finfo(x.dtype).smallest_normal)))
        ratio = xp.atan2(sine, cos) / sine
    return (8.0**0.5 * ratio)[..., None] * v


def _quaternion_map() -> "np.ndarray[Any, Any]":
    """Return the 9 × 16 matrix that maps the entries of R to those of 4qqᵀ − I.

    q is (w, z, −y, x), so its last three entries have the order and signs of normal coordinates.
    """
    R = np.eye(9).reshape(3, 3, 9)
    a, b, c = R[0, 0], R[1, 1], R[2, 2]
    wz, wy, wx = R[1, 0] - R[0, 1], R[2, 0] - R[0, 2], R[2, 1] - R[1, 2]
    zy, zx, yx = -R[1, 2] - R[2, 1], R[0, 2] + R[2, 0], -R[0, 1] - R[1, 0]
    entries = [
        [a + b + c, wz, wy, wx],
        [wz, c - a - b, zy, zx],
        [wy, zy, b - a - c, yx],
        [wx, zx, yx, a - b - c],
    ]
    return np.asarray(entries).reshape(16, 9).T.copy()


def sinc_of_root(square: Array) -> Array:
    """Return sin θ/θ from θ²; only derivatives need the series."""
    if backend_of(square).differentiable(square):
        return sinc(square, 1)
    xp = namespace_of(square)
    theta = xp.sqrt(xp.clip(square, min=float(xp.finfo(square.dtype).smallest_normal)))
    return xp.sin(theta) / theta


def hessian_of_axes(c: Array, weights: Array) -> Hessian:
    """Return the mean Hessian: 1 along the axis, a·cot a across it; a is half the angle."""
    xp = namespace_of(c)
    square = dot(c, c)
    across = cotangent(0.125 * square, 1)

    @cache
    def matrix() -> Array:
        least = float(xp.finfo(c.dtype).smallest_normal)
        along = weights * (1.0 - across) / xp.clip(square, min=least)
        mean = weighted_sum(weights, across)[..., None, None] * eye(c)
        return mean + weighted_gram(along[..., None], c[..., None, :])

    return Hessian(
        lambda v: matmul(matrix(), v),
        lambda: weighted_sum(weights, across),
        lambda: sum_samples(weights),
        matrix=matrix,
        differentiable=True,
    )
