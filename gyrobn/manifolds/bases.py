r"""Subspaces as orthonormal bases: the space in which ``Grassmannian`` computes.

The rotation :math:`\operatorname{mexp}(\Omega_U)` that carries the identity
:math:`I_{p,n} = (I_p, 0)^\top` to U is the *direct rotation* between the two subspaces. Write U
with a symmetric positive semidefinite top block, :math:`U W^\top = (C, S)^\top`, where
:math:`U_1 = C W` is a polar decomposition. Then

.. math:: \operatorname{mexp}(\Omega_U) V = \begin{pmatrix} C V_1 - S^\top V_2 \\
          V_2 + S\bigl(V_1 - (I+C)^{-1} S^\top V_2\bigr) \end{pmatrix}

is exact and costs :math:`O(np^2)`, without an n × n matrix. The eigenvalues of C are the cosines
of the principal angles θ, and all else is a function of C.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from gyrobn.backends import Array, State, backend_of, device_of, namespace_of
from gyrobn.manifolds.bases_hessian import hessian_of_bases
from gyrobn.manifolds.centred import Decomposed
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.principal import direct_rotation, exponential, logarithm
from gyrobn.numerics.arrays import (
    Totals,
    broadcast_shapes,
    check_coordinates,
    samples_last,
    scalars_like,
    together,
)
from gyrobn.numerics.decompositions import Singular, eigh, svd
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.linalg import polar
from gyrobn.numerics.matrices import apart, beside, eye, matmul, transpose

Halves = tuple[Array, Array]
"""The upper p and the lower n − p rows of matrices."""
Rotation = tuple[Array, Array, Array]
"""C, S and (I + C)⁻¹ of a direct rotation."""


class _CentredBases(Decomposed):
    """The view of bases from the mean, with one decomposition of every upper block."""

    def _recall(self, normal: Array, *known: Array) -> None:
        self.normal, self._known = normal, Singular(*known)

    def _know(self, *arrays: Array) -> None:
        self._known, self._known_mean = Singular(*arrays[:3]), Singular(*arrays[3:])

    @property
    def seen(self) -> State:
        """The normal coordinates and the decompositions of the samples."""
        return (self.normal, *self._known)

    @cached_property
    def _known_mean(self) -> Singular:
        return svd(backend_of(self.mean).stop_gradient(self.mean[..., : self.space.p, :]))

    @cached_property
    def _rotation(self) -> Rotation:
        """The direct rotation to the mean."""
        return direct_rotation(self.mean, self._known_mean)

    @cached_property
    def _halves(self) -> Halves:
        space: Bases = self.space
        return space._rotate_halves(self._rotation, space._halves(self.x), -1.0)

    @cached_property
    def _known(self) -> Singular:
        return svd(backend_of(self.x).stop_gradient(self._halves[0]))

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates of the samples."""
        return self.space._flat(logarithm(*self._halves, self._known))

    def shift(self, c: Array) -> Array:
        """Return the mean ⊕ Exp(c), orthonormal to rounding without a QR decomposition."""
        return orthonormalized(self.space._rotate(self._rotation, self.space.from_normal(c)))

    def retract(self, step: Array) -> Array:
        """Return the point after a small step; :meth:`shift` returns another basis of it."""
        return orthonormalized(self.mean + self.push(step))

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian as a constant, with the directions of the decompositions."""
        p, stop = self.space.p, backend_of(self.x).stop_gradient
        return hessian_of_bases(stop(self.normal), stop(weights), p, lambda B: self._known.left)

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Return the bases at multiples of the angles, and carry them to the bias."""
        space: Bases = self.space
        t = space.by_coordinate(scalars_like(factor, self.x))
        z = exponential(space._block(t * self.normal))
        if bias is not None:
            z = space._rotate_halves(direct_rotation(bias), z)
        return space._stack(*z)


def orthonormalized(U: Array) -> Array:
    r"""Return nearly orthonormal columns after one Newton step, which squares their error.

    The step goes towards the polar factor: :math:`U(3I - U^\top U)/2`.
    """
    return 1.5 * U - 0.5 * matmul(U, matmul(transpose(U), U))


@dataclass(frozen=True)
class Bases(GyroSpace):
    """Subspaces as orthonormal bases, n × p: two bases of one subspace are the same point."""

    n: int
    p: int
    _view: ClassVar[type[_CentredBases]] = _CentredBases

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one basis: ``(n, p)``."""
        return self.n, self.p

    @property
    def dim(self) -> int:
        """Dimension (n − p) p."""
        return (self.n - self.p) * self.p

    @property
    def reductive(self) -> bool:
        """False: left reduction fails for sums that pass a principal angle of π/2."""
        return False

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        """Half the distance π/2 to the cut locus."""
        return math.pi / 4

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the space whose bases have the last two axes of ``shape``."""
        return cls(*shape[-2:])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return planes in space of four dimensions."""
        return (cls(4, 2),)

    def origin(self, like: Array) -> Array:
        """Return the first p coordinate vectors."""
        xp = namespace_of(like)
        return xp.eye(self.n, self.p, dtype=like.dtype, device=device_of(like))

    # ------------------------------------------------------------------ the direct rotation

    def _halves(self, U: Array) -> Halves:
        return U[..., : self.p, :], U[..., self.p :, :]

    def _stack(self, top: Array, bottom: Array) -> Array:
        """Stack the two blocks of a matrix, broadcasting their leading axes."""
        xp = namespace_of(top)
        batch = broadcast_shapes(top.shape[:-2], bottom.shape[:-2])
        parts = (xp.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (top, bottom))
        return xp.concat(list(parts), axis=-2)

    def _rotate(self, rotation: Rotation, V: Array, sign: float = 1.0) -> Array:
        """Apply the direct rotation, or with sign −1 its inverse, to n × k matrices."""
        return self._stack(*self._rotate_halves(rotation, self._halves(V), sign))

    def _rotate_halves(self, rotation: Rotation, V: Halves, sign: float = 1.0) -> Halves:
        """Rotate matrices given as their two blocks, and return the blocks."""
        C, S, inverse = rotation
        S = S if sign == 1.0 else -S
        count = max(V[0].ndim - C.ndim, 0)
        many = (*V[0].shape[:count], V[0].shape[-1])
        top, bottom = (beside(block, count) for block in V)
        inner = matmul(transpose(S), bottom)
        lower = bottom + matmul(S, top - matmul(inverse, inner))
        return apart(matmul(C, top) - inner, many), apart(lower, many)

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`\operatorname{mexp}(\Omega_x)\,y`."""
        self._namespace(x, y)
        return self._rotate(direct_rotation(x), y)

    def neg(self, x: Array) -> Array:
        """Gyroinverse: the lower block changes its sign."""
        self._namespace(x)
        top, bottom = self._halves(x)
        return self._stack(top, -bottom)

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\operatorname{mexp}(-\Omega_x)\,y`."""
        self._namespace(x, y)
        return self._rotate(direct_rotation(x), y, -1.0)

    def to_normal(self, x: Array) -> Array:
        r"""Entries of the block :math:`S\,\theta/\sin\theta` of :math:`\Omega_x`, row by row.

        At a principal angle of π/2, in the cut locus, Ω is not unique; one of them is returned.
        """
        self._namespace(x)
        return self._flat(logarithm(*self._halves(x)))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\operatorname{mexp}(-\Omega_x)\,y`."""
        self._namespace(x, y)
        return self._view(self, x, y).normal

    def _flat(self, B: Array) -> Array:
        return namespace_of(B).reshape(B, (*B.shape[:-2], self.dim))

    def _block(self, c: Array) -> Array:
        xp = check_coordinates(self, c)
        return xp.reshape(c, (*c.shape[:-1], self.n - self.p, self.p))

    def _tangent(self, B: Array) -> Array:
        """Return the tangent vector (0, B) at the identity."""
        xp = namespace_of(B)
        return self._stack(xp.zeros((self.p, self.p), dtype=B.dtype, device=device_of(B)), B)

    def from_normal(self, c: Array) -> Array:
        r"""Basis :math:`(\cos\sqrt{B^\top B},\ B\,\operatorname{sinc}\sqrt{B^\top B})^\top`."""
        return self._stack(*exponential(self._block(c)))

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`x \oplus (t \odot (\ominus x \oplus y))`, with one direct rotation."""
        self._namespace(x, y)
        view = self._view(self, x, y)
        c = self.by_coordinate(scalars_like(t, x)) * view.normal
        return self._rotate(view._rotation, self.from_normal(c))

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        r"""Centre, scale and bias: :math:`\beta \oplus (t \odot (\ominus\mu \oplus x))`."""
        self._namespace(x, mean, *(() if bias is None else (bias,)))
        return self._view(self, mean, x).standardize(factor, bias)

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        """Apply the gyration, an orthogonal map of each half of the space, to a tangent block.

        Sums lose some of their orthonormality. They get it back here, so that lengths are kept.
        """
        points = (orthonormalized(z) for z in (x, y, self.add(x, y)))
        first, second, both = (direct_rotation(z) for z in points)

        def gyrate(V: Array) -> Array:
            return self._rotate(both, self._rotate(first, self._rotate(second, V)), -1.0)

        _, turned = self._halves(gyrate(self._tangent(self._block(c))))
        upper, _ = self._halves(gyrate(self.origin(c)))
        return self._flat(matmul(turned, transpose(upper)))

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Horizontal lift, at the basis x, of :math:`\operatorname{mexp}(\Omega_x)(0, B)^\top`."""
        self._namespace(x)
        pushed = self._rotate(direct_rotation(x), self._tangent(self._block(c)))
        return matmul(pushed, polar(x[..., : self.p, :]))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        self._namespace(x, v)
        W = polar(x[..., : self.p, :])
        turned = self._rotate(direct_rotation(x), matmul(v, transpose(W)), -1.0)
        return self._flat(self._halves(turned)[1])

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Return an orthonormal basis of the columns' span, by a QR decomposition."""
        xp = self._namespace(x)
        Q, R = xp.linalg.qr(x)
        signs = 1.0 - 2.0 * xp.astype(xp.linalg.diagonal(R) < 0, x.dtype)
        return Q * signs[..., None, :]

    def violation(self, x: Array) -> Array:
        r"""Return the largest entry of :math:`|x^\top x - I|`."""
        xp = self._namespace(x)
        gram = matmul(transpose(x), x)
        off = xp.max(xp.abs(gram - eye(gram)), axis=(-2, -1))
        return xp.where(xp.isfinite(off), off, xp.inf)

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring bases in floating point, up to a small factor."""
        xp = self._namespace(x)
        eps = float(xp.finfo(x.dtype).eps)
        return xp.full(x.shape[:-2], eps * self.p**0.5, dtype=x.dtype, device=device_of(x))

    # ------------------------------------------------------------------ the mean

    def start(self, x: Array, weights: Array, total: Totals = together) -> Array:
        """First guess of the mean: four power iterations with the mean projector, never formed.

        Over several ranks it is the mean of their guesses in coordinates at e.
        """
        xp = self._namespace(x)
        Y, U = x[0, ...], beside(x, 1)
        w = xp.repeat(samples_last(weights), self.p, axis=-1)[..., None, :]
        for _ in range(4):  # rows times U is several times as fast as U times columns
            Y, _ = xp.linalg.qr(transpose(matmul(w * matmul(transpose(Y), U), transpose(U))))
        if total is together:
            return Y
        (mean,) = total(self.to_normal(Y))
        return self.from_normal(mean)

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Mean Hessian: see :func:`hessian_of_bases`."""
        directions = lambda B: eigh(matmul(transpose(B), B), exact=True).vectors  # noqa: E731
        return hessian_of_bases(c, weights, self.p, directions)
