r"""The rotation group SO(n) with its bi-invariant metric: LieBN's normalization of rotations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.grassmannian import CentredInFrames
from gyrobn.manifolds.group import Group
from gyrobn.manifolds.models import Sphere
from gyrobn.numerics.arrays import check_coordinates, dot, eps_of, times
from gyrobn.numerics.checks import check_square
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import (
    adjoint,
    eye,
    finite_or_identity,
    from_triangle,
    identity,
    matmul,
    symmetric,
    to_triangle,
)
from gyrobn.numerics.matrix_functions import (
    Eigen,
    eigh,
    matrix_function,
    matrix_functions,
    svd,
)
from gyrobn.numerics.orthogonal import (
    ANGLE,
    COSINE_OF_ROOT,
    SINC_OF_ROOT,
    hessian_in_frames,
    off_orthonormal,
    orthonormalized,
    polar,
)
from gyrobn.numerics.scalar import arc, sinc

ROOT2 = 2.0**0.5


def skew(A: Array) -> Array:
    """Return the skew part of A."""
    return 0.5 * (A - adjoint(A))


def coordinates(A: Array) -> Array:
    """Return the normal coordinates of the skew part: the entries below the diagonal, times √2."""
    return to_triangle(skew(A), diagonal=False, weight=ROOT2)


def skew_matrix(c: Array, n: int) -> Array:
    """Return the skew matrix with coordinates c."""
    return from_triangle(c, n, diagonal=False, weight=ROOT2, mirror=-1.0)


# ---------------------------------------------------------------------- logarithms


def logarithm_in_space(x: Array) -> Array:
    r"""Return the normal coordinates of 3 × 3 rotations, with all digits at any angle.

    The entries of x are linear in those of :math:`4qq^\top`, with the unit quaternion q. Each row
    is a multiple of q, and the row with the largest diagonal entry has no cancellation.
    """
    xp, cached = namespace_of(x), backend_of(x).cached
    flat = xp.reshape(x, (*x.shape[:-2], 9))
    squares = xp.reshape(xp.matmul(flat, cached(_quaternion_map, x)), (*x.shape[:-2], 4, 4))
    squares = squares + identity(squares)
    best = xp.argmax(xp.linalg.diagonal(squares), axis=-1, keepdims=True)
    pick = xp.astype(best == cached(np.arange, x, 4), x.dtype)
    row = xp.sum(pick[..., None] * squares, axis=-2)
    q = row / xp.sqrt(dot(row, row))[..., None]
    q = q * (1.0 - 2.0 * xp.astype(q[..., :1] < 0, x.dtype))  # an angle of at most π
    s = q[..., 1:]  # its length is the sine of half the angle
    return times(8.0**0.5 * arc(dot(s, s), q[..., 0], 1), s)


def _quaternion_map() -> "np.ndarray[Any, Any]":
    r"""Return the 9 × 16 matrix that maps the entries of R to those of

    .. math:: 4qq^\top - I = \begin{pmatrix} \operatorname{tr} R & a^\top \\
              a & R + R^\top - \operatorname{tr} R\,I \end{pmatrix},

    a the axial vector of :math:`R - R^\top`. The vectors (x, y, z) appear as (z, −y, x), in the
    order and with the signs of normal coordinates.
    """
    R, found = np.eye(9).reshape(9, 3, 3), np.zeros((9, 4, 4))
    Rt, (rows, columns) = R.swapaxes(1, 2), np.tril_indices(3, -1)
    order, trace = np.fliplr(np.diag([1.0, -1.0, 1.0])), R.trace(axis1=1, axis2=2)
    found[:, 0, 0] = trace
    found[:, 0, 1:] = found[:, 1:, 0] = (R - Rt)[:, rows, columns]
    found[:, 1:, 1:] = order @ (R + Rt) @ order - trace[:, None, None] * np.eye(3)
    return found.reshape(9, 16)


def logarithm(x: Array, saved: Arrays) -> Array:
    r"""Return :math:`\operatorname{mlog} x`, from the :func:`decompositions` of x.

    With :math:`Q = x^{1/2}`, the orthogonal polar factor of :math:`I + x`,

    .. math:: \operatorname{mlog} x = 2 \operatorname{mlog} Q
              + \operatorname{mlog}(Q^\top x\, Q^\top), \qquad
              \operatorname{mlog} Q = \tfrac12(Q - Q^\top)\,f\bigl(\tfrac12(Q + Q^\top)\bigr)

    with :math:`f(\cos\theta) = \theta/\sin\theta`, smooth for the angles of Q, which end at
    π/2. The second term is a rounding error: it restores the digits that Q loses close to an
    angle of π. At π the logarithm is not unique, and one of them is returned.
    """
    one = identity(x)
    Q = polar(0.5 * (one + x), saved[:3])
    ratio = matrix_function(Q, ANGLE, Eigen(*saved[3:]))
    left = matmul(adjoint(Q), x, adjoint(Q))
    rest = one - symmetric(left)  # 1 − cos of what is left
    series = one  # of θ/sin θ
    for k in range(6, 0, -1):
        series = one + k / (2 * k + 1) * matmul(rest, series)
    return 2.0 * matmul(skew(Q), ratio) + matmul(skew(left), series)


def decompositions(x: Array, imaginary: bool = False) -> Arrays:
    r"""Decompose :math:`\tfrac12(I + x) = P c\,T^\top` so that :math:`P T^\top` is a root of x.

    Return P, c, :math:`T^\top`, and eigenvalues and eigenvectors of the symmetric part of the root.

    The singular values cos(θ/2) come in pairs, one pair per plane, the smallest last. In the plane
    of a half turn the matrix is rounding error, so P is arbitrary. But T still spans the plane, so
    the quarter turn of its two vectors replaces the matrix there. If ``imaginary``, the vectors are
    the real and imaginary parts of complex ones, and the quarter turn is their product with i.
    """
    xp, backend, n = namespace_of(x), backend_of(x), x.shape[-1]
    x = backend.stop_gradient(x)
    A, eps = 0.5 * (identity(x) + x), eps_of(x)
    # rounding errors are not linear over the complex numbers: stay far above them there
    floor = eps**0.5 / 32.0 if imaginary else 2.0 * eps
    least = 32.0 * xp.clip(off_orthonormal(x), min=floor, max=1.0)[..., None]

    # Planes of equal angles mix their vectors, and a threshold could separate these. So quarter
    # turns replace A with a weight that fades out, and again if a sum happens to vanish.
    def body(constants: Arrays, state: Arrays) -> Arrays:
        (J,), (least, A, P, c, Th) = constants, state
        turns, size = matmul(J, adjoint(Th)), 2.0 * c
        if not imaginary:
            turns = matmul(adjoint(Th), J)
            along, size = (v + xp.matmul(v, J * J) for v in (c * xp.sum(P * turns, axis=-2), c))
            turns = xp.where(along[..., None, :] < 0, -turns, turns)  # as A orients them
        fade = 1.0 / (1.0 + (2.0 * size / least) ** 2)
        change = (least * fade)[..., None, :] * turns - (c * fade)[..., None, :] * P
        A = A + matmul(change, Th)
        if imaginary:
            A = 0.5 * (A - matmul(J, A, J))  # linear over the complex numbers
        return least, A, *svd(A)

    def condition(state: Arrays) -> Array:
        least, _, _, c, _ = state
        return xp.any(c < 32.0 * least)

    J = backend.cached(imaginary_unit if imaginary else _quarter_turn, x, n)
    state = least, A, *svd(A)
    _, _, P, c, Th = backend.while_loop("root of a rotation", condition, body, (J,), state, 2)
    return P, c, Th, *eigh(symmetric(matmul(P, Th)))


def _quarter_turn(n: int) -> "np.ndarray[Any, Any]":
    """Return the quarter turn of each pair of coordinates, counted from the last."""
    J = np.zeros((n, n))
    i = np.arange(n % 2, n, 2)
    J[i + 1, i], J[i, i + 1] = 1.0, -1.0
    return J


def imaginary_unit(n: int) -> "np.ndarray[Any, Any]":
    """Return the product with i of vectors of real and imaginary parts in turn."""
    return np.kron(np.eye(n // 2), [[0.0, -1.0], [1.0, 0.0]])


# ---------------------------------------------------------------------- the geometry


class CentredRotations(CentredInFrames):
    """The view of rotations from the mean."""

    @property
    def saves(self) -> int:  # type: ignore[override]
        """Number of arrays in ``saved``: none in the plane and in space."""
        return 5 if self.space.n > 3 else 0

    @cached_property
    def saved(self) -> Arrays:
        """The decompositions of the samples as they are seen."""
        return decompositions(self._relative, self.space.imaginary) if self.saves else ()

    @cached_property
    def _relative(self) -> Array:
        return matmul(adjoint(self.mean), self.x)

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates, shape (N, *channels, dim)."""
        return self.space._normal(self._relative, self.saved)

    def followed(self, step: Array) -> Arrays:
        r"""Return the normal coordinates if the mean moves by a step δ.

        .. math:: dX = \tfrac12(X\delta - \delta X) - H_X\,\delta
        """
        n, c = self.space.n, backend_of(step).stop_gradient(self.normal)
        rotation = coordinates(matmul(skew_matrix(c, n), skew_matrix(step, n)))
        return (self.normal + rotation - self._each(step),)

    def shift(self, step: Array) -> Array:
        """Return the mean after a step, a rotation to rounding without a projection."""
        return orthonormalized(matmul(self.mean, self.space.from_normal(step)))


@dataclass(frozen=True)
class SpecialOrthogonal(Group):
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
    >>> from gyrobn import SpecialOrthogonal
    >>> M = SpecialOrthogonal(2)
    >>> quarter = np.asarray([[0.0, -1.0], [1.0, 0.0]])
    >>> bool(np.isclose(M.norm(quarter), np.pi / 2 * 2**0.5))
    True
    >>> M.scale(2.0, quarter).round(12) + 0.0
    array([[-1.,  0.],
           [ 0., -1.]])
    """

    n: int = field(metadata={"least": 2})
    _view: ClassVar[type[Centred]] = CentredRotations
    convexity_radius: ClassVar[float] = math.pi / ROOT2
    r"""Half the distance :math:`\sqrt2\,\pi` to the cut locus."""
    imaginary: ClassVar[bool] = False
    """Whether half turns are made by the imaginary unit."""

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

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the group whose matrices have the last two axes of ``shape``."""
        return cls(check_square("a rotation is a square matrix, shape (n, n)", shape))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return rotations of space, and of a space of four dimensions."""
        return cls(3), cls(4)

    @cached_property
    def _quaternions(self) -> Sphere:
        """The sphere of unit quaternions, at the scale of the distance here; a circle for n = 2."""
        return Sphere(self.dim, 0.125)

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n)

    # ------------------------------------------------------------------ gyro operations

    def neg(self, x: Array) -> Array:
        """Transpose."""
        self._namespace(x)
        return adjoint(x)

    def to_normal(self, x: Array) -> Array:
        r"""Entries of :math:`\operatorname{mlog} x` below the diagonal, times :math:`\sqrt2`.

        At an angle of π the logarithm is not unique, and one of them is returned. In the plane and
        in space the angle and the unit quaternion give it, without a decomposition.
        """
        self._namespace(x)
        return self._normal(x, decompositions(x, self.imaginary) if self.n > 3 else ())

    def _normal(self, x: Array, saved: Arrays) -> Array:
        if self.n > 3:
            return coordinates(logarithm(x, saved))
        if self.n == 3:
            return logarithm_in_space(x)
        sine, cosine = x[..., 1, 0] - x[..., 0, 1], x[..., 0, 0] + x[..., 1, 1]
        return ROOT2 * namespace_of(x).atan2(sine, cosine)[..., None]

    def from_normal(self, c: Array) -> Array:
        r"""Rotation :math:`\cos\sqrt{-X^2} + X \operatorname{sinc}\sqrt{-X^2}`, X skew."""
        check_coordinates(self, c)
        X = skew_matrix(c, self.n)
        if self.n <= 3:  # one plane: −X² is θ² times its projector
            square = 0.5 * dot(c, c)
            half = sinc(0.25 * square, 1)
            bend = matmul((0.5 * half * half)[..., None, None] * X, X)
            return identity(X) + (sinc(square, 1)[..., None, None] * X + bend)
        cos, ratio = matrix_functions(matmul(adjoint(X), X), (COSINE_OF_ROOT, SINC_OF_ROOT))
        return symmetric(cos) + matmul(X, ratio)  # rounding leaves cos not quite symmetric

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        """Left translation xX of the skew matrix X with coordinates c."""
        self._namespace(x)
        check_coordinates(self, c)
        return matmul(x, skew_matrix(c, self.n))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        self._namespace(x, v)
        return coordinates(matmul(adjoint(x), v))

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Return the nearest rotation: the polar factor, with one axis flipped if it reflects.

        The determinant of the polar factor is 1 or −1 even if x is singular.
        """
        xp = self._namespace(x)
        P, c, Th = svd(x)
        factor, _ = finite_or_identity(matmul(P, Th))
        reflects = xp.astype(xp.linalg.det(factor) < 0, x.dtype)[..., None]
        signs = 1.0 - 2.0 * reflects * identity(x)[-1, :]
        return polar(x, (P * signs[..., None, :], c * signs, Th))

    def violation(self, x: Array) -> Array:
        r"""Return the largest entry of :math:`|x^\top x - I|`, plus 2 for a reflection."""
        xp, off = self._namespace(x), off_orthonormal(x)
        det = xp.linalg.det(xp.where(off[..., None, None] < xp.inf, x, identity(x)))
        return off + 2.0 * xp.astype(det < 0, x.dtype)

    def cut_locus_angle(self, x: Array) -> Array:
        """π less the largest rotation angle."""
        _, angles, _ = svd(skew_matrix(self.to_normal(x), self.n))
        return math.pi - angles[..., 0]

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring rotations in floating point, up to a small factor."""
        eps = float(self._namespace(x).finfo(x.dtype).eps)
        return eps * self.n**0.5 + 0.0 * x[..., 0, 0]

    # ------------------------------------------------------------------ the mean

    def moments(self, x: Array) -> Array:
        """Entries of the matrix."""
        return self._namespace(x).reshape(x, (*x.shape[:-2], self.n * self.n))

    def start(self, moments: Array) -> Array:
        """First guess of the mean: the rotation nearest to the mean matrix."""
        shape = (*moments.shape[:-1], self.n, self.n)
        return self.project(namespace_of(moments).reshape(moments, shape))

    def hessian(self, c: Array, weights: Array, *, frames: Sequence[Array] = ()) -> Hessian:
        r"""Mean Hessian, of eigenvalues :math:`a \cot a`, :math:`a = (\theta_i \pm \theta_j)/2`.

        The subspaces :math:`\{(v, Rv)\}` of :math:`\mathbb R^{2n}` form a totally geodesic part of
        the Grassmannian, in which half of :math:`\operatorname{mlog} R` is the block. In the plane
        and in space, unit quaternions on their sphere have the same Hessian.
        """
        if self.n <= 3:
            return self._quaternions.hessian(c, weights)
        half = lambda c: 0.5 * skew_matrix(c, self.n)  # noqa: E731
        back = lambda X: coordinates(2.0 * X)  # noqa: E731
        return hessian_in_frames(c, weights, frames[0] if frames else None, half, back)
