r"""The rotation group SO(n) with its bi-invariant metric: LieBN's normalization of rotations."""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy as np

from gyrobn.backends import Array, backend_of, dot, namespace_of
from gyrobn.manifolds.bases import orthonormalized
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import (
    check_coordinates,
    constant,
    sum_samples,
    weighted_gram,
    weighted_sum,
)
from gyrobn.numerics.decompositions import Singular, eigh, svd
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.linalg import polar, symmetric_functions
from gyrobn.numerics.matrices import eye, from_triangle, matmul, symmetric, to_triangle, transpose
from gyrobn.numerics.scalar import arc, cotangent, safe_sqrt, sinc
from gyrobn.numerics.spectral import (
    ANGLE,
    COSINE_OF_ROOT,
    SINC_OF_ROOT,
)

__all__ = ["SpecialOrthogonal"]


@dataclass(frozen=True)
class SpecialOrthogonal(GyroSpace):
    r"""Rotations of :math:`\mathbb R^n`, at the distance :math:`\|\operatorname{mlog}(R^\top S)\|`.

    A group: :math:`R \oplus S = RS`, :math:`\ominus R = R^\top`, and gyrations do nothing. A turn
    by the angle θ in one plane has length :math:`\sqrt2\,\theta`.

    Parameters
    ----------
    n
        Dimension of the space that is rotated, at least 2.

    Examples
    --------
    >>> import numpy as np
    >>> M = SpecialOrthogonal(2)
    >>> quarter = np.asarray([[0.0, -1.0], [1.0, 0.0]])
    >>> bool(np.isclose(M.norm(quarter), np.pi / 2 * 2**0.5))
    True
    >>> M.scale(2.0, quarter).round(12) + 0.0
    array([[-1.,  0.],
           [ 0., -1.]])
    """

    n: int = field(metadata={"least": 2})

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one rotation: ``(n, n)``."""
        return self.n, self.n

    @property
    def dim(self) -> int:
        """Dimension n(n − 1)/2."""
        return self.n * (self.n - 1) // 2

    @property
    def gyrocommutative(self) -> bool:
        """False: rotations do not commute, and no gyration makes up for it (but in the plane)."""
        return self.n == 2

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        r"""Half the distance :math:`\sqrt2\,\pi` to the cut locus."""
        return math.pi / 2**0.5

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the group whose matrices end ``shape``."""
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ValueError(f"a rotation is a square matrix, shape (n, n), got {tuple(shape)}")
        return cls(shape[-1])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return rotations of space, and of a space of four dimensions."""
        return cls(3), cls(4)

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n)

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        """Product xy."""
        self._namespace(x, y)
        return matmul(x, y)

    def neg(self, x: Array) -> Array:
        """Transpose."""
        self._namespace(x)
        return transpose(x)

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        """Return z: in a group there is nothing to turn back."""
        self._namespace(x, y, z)
        return z + 0.0 * matmul(x, y)

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return c + 0.0 * matmul(x, y)[..., 0, :1]

    def to_normal(self, x: Array) -> Array:
        r"""Entries of :math:`\operatorname{mlog} x` below the diagonal, times :math:`\sqrt2`.

        With :math:`Q = x^{1/2}`, the orthogonal polar factor of :math:`I + x`,

        .. math:: \operatorname{mlog} x = 2 \operatorname{mlog} Q
                  + \operatorname{mlog}(Q^\top x\, Q^\top), \qquad
                  \operatorname{mlog} Q = \tfrac12(Q - Q^\top)\,f\bigl(\tfrac12(Q + Q^\top)\bigr)

        with :math:`f(\cos\theta) = \theta/\sin\theta`, smooth for the angles of Q, which end at
        π/2. The second term is rounding error, and takes back the digits that Q loses close to an
        angle of π. At π there is more than one logarithm, and one is returned.

        In three dimensions the unit quaternion has the axis and half the angle, without any
        decomposition.
        """
        self._namespace(x)
        if self.n == 3:
            return _logarithm_by_quaternion(x)
        one = eye(x)
        Q = polar(x + one, decompose=_svd_of_sum)
        (ratio,) = symmetric_functions(Q, ANGLE)
        left = matmul(transpose(Q), x, transpose(Q))
        rest = one - symmetric(left)  # 1 − cos of what is left
        series = one  # of θ/sin θ
        for k in (3.0 / 7.0, 2.0 / 5.0, 1.0 / 3.0):
            series = one + k * matmul(rest, series)
        whole = 2.0 * matmul(_skew(Q), ratio) + matmul(_skew(left), series)
        return to_triangle(_skew(whole), diagonal=False, weight=2**0.5)

    def from_normal(self, c: Array) -> Array:
        r"""Rotation :math:`\cos\sqrt{-X^2} + X \operatorname{sinc}\sqrt{-X^2}`, X skew."""
        check_coordinates(self, c)
        X = from_triangle(c, self.n, diagonal=False, weight=2**0.5, mirror=-1.0)
        if self.n <= 3:  # one plane: −X² is θ² times its projector
            square = 0.5 * dot(c, c)
            half = _sinc(0.25 * square)
            bend = matmul((0.5 * half * half)[..., None, None] * X, X)
            return eye(X) + (_sinc(square)[..., None, None] * X + bend)
        S = matmul(transpose(X), X)
        known = eigh(backend_of(S).stop_gradient(S), exact=True)
        cos, ratio = symmetric_functions(S, COSINE_OF_ROOT, SINC_OF_ROOT, known=known)
        return symmetric(cos) + matmul(X, ratio)  # by rounding, it is not quite

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        """Left translation xX of the skew matrix X with coordinates c."""
        self._namespace(x)
        check_coordinates(self, c)
        return matmul(x, from_triangle(c, self.n, diagonal=False, weight=2**0.5, mirror=-1.0))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        self._namespace(x, v)
        return to_triangle(_skew(matmul(transpose(x), v)), diagonal=False, weight=2**0.5)

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport :math:`x X \mapsto y\,h^\top X h`, :math:`h = (x^\top y)^{1/2}`."""
        half = self.scale(0.5, self.relative(x, y))
        return matmul(y, transpose(half), matmul(transpose(x), v), half)

    def centred(
        self, mean: Array, x: Array, seen: tuple[Array, ...] = (), known: tuple[Array, ...] = ()
    ) -> Centred:
        """Return the samples seen from the mean."""
        return _CentredRotations(self, mean, x, seen)

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Return the nearest rotation: the polar factor, its last axis turned if it reflects."""
        self._namespace(x)
        return polar(x, decompose=_svd_without_reflection)

    def violation(self, x: Array) -> Array:
        r"""Return the largest entry of :math:`|x^\top x - I|`, and 2 more for a reflection."""
        xp = self._namespace(x)
        finite = xp.all(xp.isfinite(x), axis=(-2, -1))
        safe = xp.where(finite[..., None, None], x, eye(x))
        gram = matmul(transpose(safe), safe)
        off = xp.max(xp.abs(gram - eye(x)), axis=(-2, -1))
        off = off + 2.0 * xp.astype(xp.linalg.det(safe) < 0, x.dtype)
        return xp.where(finite, off, xp.inf)

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring rotations in floating point, up to a small factor."""
        xp = self._namespace(x)
        return xp.finfo(x.dtype).eps * safe_sqrt(xp.sum(x * x, axis=(-2, -1)))

    # ------------------------------------------------------------------ the mean

    def start(self, x: Array, weights: Array) -> Array:
        """First guess of the mean: the rotation nearest to the mean matrix."""
        self._namespace(x)
        return self.project(weighted_sum(weights, x))

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Mean Hessian: :math:`a \cot a`, :math:`a = (\theta_i \pm \theta_j)/2`.

        In an eigenbasis of :math:`-X^2 = \theta^2` with :math:`X = \theta J`, the part of a skew
        matrix Y with :math:`J Y J = \pm Y` has the factor of :math:`\theta_i \pm \theta_j`.
        """
        if self.n == 3:
            return _hessian_of_axes(c, weights)
        xp = namespace_of(c)
        X = from_triangle(c, self.n, diagonal=False, weight=2**0.5, mirror=-1.0)

        @cache
        def spectrum() -> tuple[Array, ...]:
            square, V = eigh(matmul(transpose(X), X))
            theta = safe_sqrt(square)
            some = theta > 0
            root = xp.where(some, 1.0 / xp.sqrt(xp.where(some, theta, 1.0)), 0.0)
            J = matmul(transpose(V), X, V) * root[..., :, None] * root[..., None, :]
            rows, columns = theta[..., :, None], theta[..., None, :]
            alike = cotangent((0.5 * (rows - columns)) ** 2, 1)
            other = xp.clip(cotangent((0.5 * (rows + columns)) ** 2, 1), min=-1e3)
            return V, J, alike, other, theta

        def apply(v: Array) -> Array:
            """Take columns (*channels, dim, k) as matrices, a sample and a column at a time."""
            Y = from_triangle(transpose(v), self.n, diagonal=False, weight=2**0.5, mirror=-1.0)
            V, J, alike, other = (a[..., None, :, :] for a in spectrum()[:4])
            Y = matmul(transpose(V), Y, V)
            Y = 0.5 * ((other + alike) * Y + (other - alike) * matmul(J, Y, J))
            Y = matmul(V, Y, transpose(V))
            mean = weighted_sum(weights, Y)
            return transpose(to_triangle(mean, diagonal=False, weight=2**0.5))

        def lowest() -> Array:
            # the angles come in pairs, one pair a plane: the largest sum is that of two planes
            theta = spectrum()[4]
            largest = theta[..., -1] + (theta[..., -3] if self.n > 2 else -theta[..., -1])
            least = xp.clip(cotangent((0.5 * largest) ** 2, 1), min=-1e3)
            return weighted_sum(weights, least)

        def quick(g: Array) -> Array:
            """Divide by nearly the mean eigenvalue: a·cot a ≈ 1 − a²/3, summed without angles."""
            spread = weighted_sum(weights, xp.sum(c * c, axis=-1))
            middle = xp.clip(1.0 - (self.n - 2) / (12 * self.dim) * spread, min=0.25)
            return g / middle[..., None]

        return Hessian(apply, lowest, lambda: sum_samples(weights), quick, smooth=False)


class _CentredRotations(Centred):
    """Rotations as they are seen from the mean."""

    def shift(self, c: Array) -> Array:
        """Return the mean ⊕ Exp(c), a rotation to rounding: no projection is needed."""
        return orthonormalized(matmul(self.mean, self.space.from_normal(c)))


# ---------------------------------------------------------------------- of space


def _logarithm_by_quaternion(x: Array) -> Array:
    r"""Return the normal coordinates of 3 × 3 rotations, with all digits at any angle.

    The entries of x are linear in those of :math:`4qq^\top`, q the unit quaternion. Each row of it
    is a multiple of q, and that with the largest diagonal entry has no cancellation.
    """
    xp = namespace_of(x)
    flat = xp.reshape(x, (*x.shape[:-2], 9))
    squares = xp.matmul(flat, constant(_quaternion_map, x)) + constant(_quaternion_one, x)
    squares = xp.reshape(squares, (*x.shape[:-2], 4, 4))
    best = xp.argmax(xp.linalg.diagonal(squares), axis=-1, keepdims=True)
    pick = xp.astype(best == constant(_four, x), x.dtype)
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
    """Return the matrix that leads from the entries of R to those of 4qqᵀ − I.

    q is (w, z, −y, x): its last three are ordered, and signed, as normal coordinates.
    """
    entries = np.zeros((3, 3, 4, 4))
    order, sign = (0, 3, 2, 1), (1.0, 1.0, -1.0, 1.0)  # place and sign of w, x, y, z
    for i in range(4):
        for k in range(3):
            entries[k, k, order[i], order[i]] = 1.0 if i in (0, k + 1) else -1.0

    def put(a: int, b: int, i: int, j: int, factor: float) -> None:
        for p, r in ((a, b), (b, a)):
            entries[i, j, order[p], order[r]] = factor * sign[a] * sign[b]

    for axis, (i, j) in enumerate(((2, 1), (0, 2), (1, 0)), start=1):
        put(0, axis, i, j, 1.0)
        put(0, axis, j, i, -1.0)
    for a, b in ((1, 2), (1, 3), (2, 3)):
        put(a, b, a - 1, b - 1, 1.0)
        put(a, b, b - 1, a - 1, 1.0)
    return entries.reshape(9, 16)


def _quaternion_one() -> "np.ndarray[Any, Any]":
    return np.eye(4).reshape(-1)


def _four() -> "np.ndarray[Any, Any]":
    return np.arange(4)


def _sinc(square: Array) -> Array:
    """Return sin θ/θ from θ²; the series is for derivatives only."""
    if backend_of(square).differentiable(square):
        return sinc(square, 1)
    xp = namespace_of(square)
    theta = xp.sqrt(xp.clip(square, min=float(xp.finfo(square.dtype).smallest_normal)))
    return xp.sin(theta) / theta


def _hessian_of_axes(c: Array, weights: Array) -> Hessian:
    """Return the mean Hessian in space: 1 along the axis, a·cot a across, a half the angle."""
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
    )


# ---------------------------------------------------------------------- in more dimensions


def _skew(A: Array) -> Array:
    return 0.5 * (A - transpose(A))


def _svd_without_reflection(A: Array) -> Singular:
    """Decompose A = P c Tᵀ so that P Tᵀ is a rotation; the last of c is negative if A reflects.

    The sign is that of the determinant of P Tᵀ, which is 1 or −1 also where A is singular.
    """
    xp = namespace_of(A)
    P, c, Th = svd(A)
    last = eye(A)[-1, :]
    turn = 1.0 - 2.0 * last * xp.astype(xp.linalg.det(matmul(P, Th)) < 0, A.dtype)[..., None]
    return Singular(P * turn[..., None, :], c * turn, Th)


def _svd_of_sum(A: Array) -> Singular:
    r"""Decompose :math:`A = I + R = P c T^\top` so that :math:`P T^\top` is a root of R.

    The singular values 2 cos(θ/2) come in pairs, one pair per plane, the smallest last. In the
    plane of a half turn A is rounding error, and P is arbitrary there. But T spans the plane in
    every orientation, so the quarter turn of its two vectors takes the place of A.
    """
    xp = namespace_of(A)
    n, eps = A.shape[-1], float(xp.finfo(A.dtype).eps)
    P, c, Th = svd(A)
    if n < 4:  # there is one plane only, and its quarter turn is right at any angle
        turned, size = _quarter_turns(P, c, Th)
        near = size < 8.0 * eps**0.5
        return Singular(xp.where(near[..., None, :], turned, P), xp.clip(c, min=128.0 * eps), Th)
    R = A - eye(A)
    off = xp.max(xp.abs(matmul(transpose(R), R) - eye(A)), axis=(-2, -1))
    least = 64.0 * xp.clip(off, min=2.0 * eps)[..., None]

    # Planes of equal angles share their vectors, and a threshold may separate these: so the quarter
    # turns are added to A, and fade out. Where a sum happens to vanish, one is added again.
    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        A, *known = state
        turned, size = _quarter_turns(*known)
        push = least / (1.0 + (4.0 * size / least) ** 2)
        A = A + matmul(turned * push[..., None, :], known[2])
        return A, *svd(A)

    def condition(state: tuple[Array, ...]) -> Array:
        return xp.any(state[2] < 32.0 * least)

    _, P, c, Th = backend_of(A).while_loop(condition, body, (A, P, c, Th), 2)
    return Singular(P, c, Th)


def _quarter_turns(P: Array, c: Array, Th: Array) -> tuple[Array, Array]:
    r"""Return T J, J the quarter turn of each pair with the sign it has in A, and the pair's c."""
    xp = namespace_of(c)
    n = c.shape[-1]
    J, mean = constant(_quarter_turn, c, n), constant(_pair_mean, c, n)
    turned = matmul(transpose(Th), J)
    along = xp.matmul(c * xp.sum(P * turned, axis=-2), mean)
    return xp.where(along[..., None, :] < 0, -turned, turned), xp.matmul(c, mean)


def _quarter_turn(n: int) -> "np.ndarray[Any, Any]":
    """Return the quarter turn of every two coordinates from the last."""
    J = np.zeros((n, n))
    i = np.arange(n % 2, n, 2)
    J[i + 1, i], J[i, i + 1] = 1.0, -1.0
    return J


def _pair_mean(n: int) -> "np.ndarray[Any, Any]":
    """Return the mean over every two coordinates from the last."""
    mean: np.ndarray[Any, Any] = 0.5 * (np.abs(_quarter_turn(n)) + np.eye(n))
    mean[: n % 2, : n % 2] = 1.0
    return mean
