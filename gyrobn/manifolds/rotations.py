r"""The rotation group SO(n) with its bi-invariant metric: LieBN's normalization of rotations."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from gyrobn.arrays import check_coordinates, check_size, sum_samples, weighted_sum
from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.gyrospace import GyroSpace
from gyrobn.hessian import Hessian
from gyrobn.linalg import (
    Decomposition,
    eigh,
    eye,
    from_triangle,
    matmul,
    polar,
    svd,
    symmetric,
    symmetric_functions,
    to_triangle,
    transpose,
)
from gyrobn.scalar import cotangent, safe_sqrt
from gyrobn.spectral import (
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

    n: int

    def __post_init__(self) -> None:
        check_size(self, 2, n=self.n)
        super().__post_init__()

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
        """
        self._namespace(x)
        one = eye(x)
        (Q,) = polar(x + one, decompose=_svd_of_sum)
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
        cos, ratio = symmetric_functions(matmul(transpose(X), X), COSINE_OF_ROOT, SINC_OF_ROOT)
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

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Return the nearest rotation: the polar factor, its last axis turned if it reflects."""
        self._namespace(x)
        (rotation,) = polar(x, decompose=_svd_without_reflection)
        return rotation

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


def _skew(A: Array) -> Array:
    return 0.5 * (A - transpose(A))


def _svd_without_reflection(A: Array) -> Decomposition:
    """Decompose A = P c Tᵀ so that P Tᵀ is a rotation; the last of c is negative if A reflects.

    The sign is that of the determinant of P Tᵀ, which is 1 or −1 also where A is singular.
    """
    xp = namespace_of(A)
    P, c, Th = svd(A)
    last = eye(A)[-1, :]
    turn = 1.0 - 2.0 * last * xp.astype(xp.linalg.det(matmul(P, Th)) < 0, A.dtype)[..., None]
    return P * turn[..., None, :], c * turn, Th


def _svd_of_sum(A: Array) -> Decomposition:
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
        return xp.where(near[..., None, :], turned, P), xp.clip(c, min=128.0 * eps), Th
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
    return P, c, Th


def _quarter_turns(P: Array, c: Array, Th: Array) -> tuple[Array, Array]:
    r"""Return T J, J the quarter turn of each pair with the sign it has in A, and the pair's c."""
    xp = namespace_of(c)
    J, mean = (backend_of(c).from_numpy(a, c) for a in _pairing(c.shape[-1]))
    turned = matmul(transpose(Th), J)
    along = xp.matmul(c * xp.sum(P * turned, axis=-2), mean)
    return xp.where(along[..., None, :] < 0, -turned, turned), xp.matmul(c, mean)


@cache
def _pairing(n: int) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Return the quarter turn of every two coordinates from the last, and their projector."""
    J = np.zeros((n, n))
    i = np.arange(n % 2, n, 2)
    J[i + 1, i], J[i, i + 1] = 1.0, -1.0
    mean = 0.5 * (np.abs(J) + np.eye(n))
    mean[: n % 2, : n % 2] = 1.0
    return J, mean
