r"""The rotation group SO(n) with its bi-invariant metric: LieBN's normalization of rotations."""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Self

import numpy as np

from gyrobn.backends import Array, State, backend_of, dot, namespace_of
from gyrobn.manifolds.bases import orthonormalized
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.rotation_svd import svd_of_sum, svd_without_reflection
from gyrobn.manifolds.rotations_3d import hessian_of_axes, logarithm_by_quaternion, sinc_of_root
from gyrobn.numerics.arrays import Totals, check_coordinates, surely, together, weighted_sum
from gyrobn.numerics.checks import check_square
from gyrobn.numerics.decompositions import eigh
from gyrobn.numerics.hessian import Hessian, compact_hessian
from gyrobn.numerics.linalg import polar, symmetric_functions
from gyrobn.numerics.matrices import eye, from_triangle, matmul, symmetric, to_triangle, transpose
from gyrobn.numerics.scalar import cotangent, safe_sqrt
from gyrobn.numerics.spectral import ANGLE, COSINE_OF_ROOT, SINC_OF_ROOT

ROOT2 = 2.0**0.5


class _CentredRotations(Centred):
    """The view of rotations from the mean."""

    def shift(self, c: Array) -> Array:
        """Return the mean ⊕ Exp(c), a rotation to rounding without a projection."""
        return orthonormalized(matmul(self.mean, self.space.from_normal(c)))


@dataclass(frozen=True)
class SpecialOrthogonal(GyroSpace):
    r"""Rotations of :math:`\mathbb R^n`, at the distance :math:`\|\operatorname{mlog}(R^\top S)\|`.

    They are a group: :math:`R \oplus S = RS`, :math:`\ominus R = R^\top`, and gyrations do nothing.
    The distance from the identity to a turn by the angle θ in one plane is
    :math:`\sqrt2\,\theta`.

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
    _view: ClassVar[type[Centred]] = _CentredRotations

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
        """False except in the plane: rotations do not commute, and gyrations do nothing."""
        return self.n == 2

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        r"""Half the distance :math:`\sqrt2\,\pi` to the cut locus."""
        return math.pi / 2**0.5

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the group whose matrices have the last two axes of ``shape``."""
        return cls(check_square("a rotation is a square matrix, shape (n, n)", shape))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return rotations of space, and of a space of four dimensions."""
        return cls(3), cls(4)

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n)

    def _skew_of(self, c: Array) -> Array:
        """Return the skew matrix with coordinates c."""
        return from_triangle(c, self.n, diagonal=False, weight=ROOT2, mirror=-1.0)

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
        """Return z: the gyrations of a group do nothing."""
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
        π/2. The second term is a rounding error: it restores the digits that Q loses close to an
        angle of π. At π the logarithm is not unique, and one of them is returned.

        In three dimensions the unit quaternion gives the axis and half the angle, without a
        decomposition.
        """
        self._namespace(x)
        if self.n == 3:
            return logarithm_by_quaternion(x)
        one = eye(x)
        Q = polar(x + one, decompose=svd_of_sum)
        (ratio,) = symmetric_functions(Q, ANGLE)
        left = matmul(transpose(Q), x, transpose(Q))
        rest = one - symmetric(left)  # 1 − cos of what is left
        series = one  # of θ/sin θ
        for k in (3.0 / 7.0, 2.0 / 5.0, 1.0 / 3.0):
            series = one + k * matmul(rest, series)
        whole = 2.0 * matmul(_skew(Q), ratio) + matmul(_skew(left), series)
        return _coordinates_of(whole)

    def from_normal(self, c: Array) -> Array:
        r"""Rotation :math:`\cos\sqrt{-X^2} + X \operatorname{sinc}\sqrt{-X^2}`, X skew."""
        check_coordinates(self, c)
        X = self._skew_of(c)
        if self.n <= 3:  # one plane: −X² is θ² times its projector
            square = 0.5 * dot(c, c)
            half = sinc_of_root(0.25 * square)
            bend = matmul((0.5 * half * half)[..., None, None] * X, X)
            return eye(X) + (sinc_of_root(square)[..., None, None] * X + bend)
        S = matmul(transpose(X), X)
        known = eigh(backend_of(S).stop_gradient(S), exact=True)
        cos, ratio = symmetric_functions(S, COSINE_OF_ROOT, SINC_OF_ROOT, known=known)
        return symmetric(cos) + matmul(X, ratio)  # rounding leaves cos not quite symmetric

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        """Left translation xX of the skew matrix X with coordinates c."""
        self._namespace(x)
        check_coordinates(self, c)
        return matmul(x, self._skew_of(c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        self._namespace(x, v)
        return _coordinates_of(matmul(transpose(x), v))

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport :math:`x X \mapsto y\,h^\top X h`, :math:`h = (x^\top y)^{1/2}`."""
        half = self.scale(0.5, self.relative(x, y))
        return matmul(y, transpose(half), matmul(transpose(x), v), half)

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Return the nearest rotation: the polar factor, with one axis flipped if it reflects."""
        self._namespace(x)
        return polar(x, decompose=svd_without_reflection)

    def contains(self, x: Array) -> Array:
        """Return which matrices have a :meth:`violation` of at most √ε."""
        xp, shim = self._namespace(x), backend_of(x)
        some = float(xp.finfo(x.dtype).eps) ** 0.5
        x = shim.stop_gradient(x)
        if not shim.hides_values(x):
            with np.errstate(all="ignore"):  # the exact test looks at what overflows
                right = xp.linalg.det(x) > 0
                if surely(right) and surely(xp.abs(matmul(transpose(x), x) - eye(x)) <= some):
                    return right
        return self.violation(x) <= some

    def violation(self, x: Array) -> Array:
        r"""Return the largest entry of :math:`|x^\top x - I|`, plus 2 for a reflection."""
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

    def start(self, x: Array, weights: Array, total: Totals = together) -> Array:
        """First guess of the mean: the rotation nearest to the mean matrix."""
        self._namespace(x)
        (mean,) = total(weighted_sum(weights, x))
        return self.project(mean)

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Mean Hessian: :math:`a \cot a`, :math:`a = (\theta_i \pm \theta_j)/2`.

        In an eigenbasis of :math:`-X^2 = \theta^2` with :math:`X = \theta J`, the part of a skew
        matrix Y with :math:`J Y J = \pm Y` has the factor of :math:`\theta_i \pm \theta_j`.
        """
        if self.n == 3:
            return hessian_of_axes(c, weights)
        xp = namespace_of(c)
        X = self._skew_of(c)

        @cache
        def spectrum() -> State:
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
            """Apply H to columns (*channels, dim, k), as one matrix per sample and column."""
            Y = self._skew_of(transpose(v))
            V, J, alike, other = (a[..., None, :, :] for a in spectrum()[:4])
            Y = matmul(transpose(V), Y, V)
            Y = 0.5 * ((other + alike) * Y + (other - alike) * matmul(J, Y, J))
            Y = matmul(V, Y, transpose(V))
            mean = weighted_sum(weights, Y)
            return transpose(to_triangle(mean, diagonal=False, weight=ROOT2))

        def lowest() -> Array:
            # the angles come in pairs, one pair per plane: the largest sum is that of two planes
            theta = spectrum()[4]
            largest = theta[..., -1] + (theta[..., -3] if self.n > 2 else -theta[..., -1])
            least = xp.clip(cotangent((0.5 * largest) ** 2, 1), min=-1e3)
            return weighted_sum(weights, least)

        return compact_hessian(c, weights, (self.n - 2) / 4, apply, lowest)


def _skew(A: Array) -> Array:
    return 0.5 * (A - transpose(A))


def _coordinates_of(A: Array) -> Array:
    """Return the normal coordinates of the skew part."""
    return to_triangle(_skew(A), diagonal=False, weight=ROOT2)
