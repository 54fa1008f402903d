r"""The Grassmannian: p-dimensional subspaces of :math:`\mathbb R^n`, as bases or as projectors.

The rotation :math:`\operatorname{mexp}(\Omega_U)` that carries the identity
:math:`I_{p,n} = (I_p, 0)^\top` to U is the *direct rotation* between the two subspaces. Write U
with a symmetric positive semidefinite top block, :math:`U W^\top = (C, S)^\top`, where
:math:`U_1 = C W` is a polar decomposition. Then

.. math:: \operatorname{mexp}(\Omega_U) V = \begin{pmatrix} C V_1 - S^\top V_2 \\
          V_2 + S\bigl(V_1 - (I+C)^{-1} S^\top V_2\bigr) \end{pmatrix}

is exact and costs :math:`O(np^2)`, without an n × n matrix. The eigenvalues of C are the cosines
of the principal angles θ, and all else is a function of C. With the singular value decomposition
:math:`U_1 = P c\,T^\top` of the top block, :math:`C = P c P^\top` and :math:`W = P T^\top`.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.chart import Chart, Diffeomorphism
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import (
    check_coordinates,
    scalars_like,
    sum_of_products,
    weighted_sum,
)
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, eye, identity, matmul, symmetric
from gyrobn.numerics.matrix_functions import (
    eigh,
    matrix_functions,
    svd,
)
from gyrobn.numerics.orthogonal import (
    ANGLE,
    COSINE_OF_ROOT,
    SINC_OF_ROOT,
    off_orthonormal,
    orthonormalized,
    polar,
)

# ---------------------------------------------------------------------- blocks of bases

Blocks = tuple[Array, Array]
"""The upper p and the lower n − p rows of n × p matrices."""


def blocks_of(U: Array) -> Blocks:
    """Return the upper block, which is square, and the lower one."""
    p = U.shape[-1]
    return U[..., :p, :], U[..., p:, :]


def stacked(top: Array, bottom: Array) -> Array:
    """Undo :func:`blocks_of`."""
    return namespace_of(top).concat([top, bottom], axis=-2)


class Rotation(NamedTuple):
    r"""The direct rotation to a basis U, :math:`U W^\top = (C, S)^\top`."""

    C: Array
    S: Array
    inverse: Array
    """The inverse of I + C."""
    W: Array


def direct_rotation(U: Array, singular: Arrays | None = None) -> Rotation:
    """Return the direct rotation; ``singular`` decomposes the upper block, if that is known."""
    top, bottom = blocks_of(U)
    W = polar(top, singular=singular)
    C = symmetric(matmul(top, adjoint(W)))
    inverse = namespace_of(C).linalg.inv(identity(C) + C)
    return Rotation(C, matmul(bottom, adjoint(W)), inverse, W)


def rotated(rotation: Rotation, top: Array, bottom: Array, sign: float = 1.0) -> Blocks:
    """Apply the direct rotation, or with sign −1 its inverse, to the blocks of matrices."""
    C, S, inverse, _ = rotation
    inner = sign * matmul(adjoint(S), bottom)
    return matmul(C, top) - inner, bottom + sign * matmul(S, top - matmul(inverse, inner))


def logarithm(top: Array, bottom: Array, singular: Arrays | None = None) -> Array:
    r"""Return the block :math:`B = S\,\theta/\sin\theta` of Ω, (n − p) × p.

    ``singular`` decomposes the upper block, if that is known.
    """
    return matmul(bottom, adjoint(polar(top, ANGLE, singular)))


def exponential(B: Array) -> Blocks:
    r"""Return the blocks :math:`\cos A` and :math:`B\operatorname{sinc} A`, :math:`A^2 = B^\top B`.

    The eigenvalues of :math:`A^2` are the squares of the angles, which may have any size.
    """
    cos, sinc = matrix_functions(matmul(adjoint(B), B), (COSINE_OF_ROOT, SINC_OF_ROOT))
    return cos, matmul(B, sinc)


def leading(A: Array, p: int) -> Array:
    r"""Return an orthonormal basis of the span of the p leading eigenvectors of symmetric matrices.

    The eigenvectors are constants. The projector to their span has the derivatives: it is
    :math:`\tfrac12(I + \operatorname{sign}(A - m I))` with m between two eigenvalues, and the sign
    of a symmetric matrix is its polar factor.
    """
    xp, A = namespace_of(A), symmetric(A)
    values, U = eigh(A)
    low, high = (U + 0.0 * values[..., None, :])[..., :-p], U[..., -p:]  # NaN stays NaN
    middle = 0.5 * (values[..., -p, None] + values[..., -p - 1, None])
    singular = U, xp.abs(values - middle), adjoint(xp.concat([-low, high], axis=-1))
    sign = polar(A - middle[..., None] * identity(A), singular=singular)
    return orthonormalized(0.5 * (high + matmul(sign, high)))


# ---------------------------------------------------------------------- samples seen from a mean


class CentredBases(Centred):
    """The view of bases from the mean, with one decomposition of every upper block."""

    saves = 6

    def __init__(self, space: Any, mean: Array, x: Array, saved: Arrays = ()) -> None:
        super().__init__(space, mean, x)
        if saved:
            self._singular = saved[:3]
            self._singular_mean = tuple(a[0, ...] for a in saved[3:])

    @property
    def saved(self) -> Arrays:
        """The decompositions of the samples, and of the mean as of one sample."""
        return *self._singular, *(a[None, ...] for a in self._singular_mean)

    @cached_property
    def _singular_mean(self) -> Arrays:
        return svd(blocks_of(self.mean)[0])

    @cached_property
    def _singular(self) -> Arrays:
        return svd(self._blocks[0])

    @cached_property
    def _rotation(self) -> Rotation:
        return direct_rotation(self.mean, self._singular_mean)

    @cached_property
    def _blocks(self) -> Blocks:
        return rotated(self._rotation, *blocks_of(self.x), -1.0)

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates, shape (N, *channels, dim)."""
        return self.space._flat(logarithm(*self._blocks, self._singular))

    @cached_property
    def _curvature(self) -> "Curvature":
        """That of the samples, as a constant, with the directions of the decompositions."""
        B = self.space._block(backend_of(self.x).stop_gradient(self.normal))
        return Curvature(B, self._singular[0])

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian, a constant to differentiation."""
        return self._curvature.mean(backend_of(weights).stop_gradient(weights))

    def followed(self, step: Array) -> Arrays:
        r"""Return the normal coordinates if the mean moves by a step δ.

        A step changes the block B as the Hessian has it, and rotates both sides of it, since
        :math:`\operatorname{mexp}(\Omega_{\mu \oplus \delta})\operatorname{diag}(g_1, g_2)
        = \operatorname{mexp}(\Omega_\mu)\operatorname{mexp}(\Omega_\delta)`. With
        :math:`L = S(I + C)^{-1}` and the skew A for which
        :math:`CA + AC = S^\top\delta - \delta^\top S`,

        .. math:: dB = -H_B\,\delta + BA - (L\delta^\top - \delta L^\top - LAL^\top)\,B .
        """
        space, stop = self.space, backend_of(step).stop_gradient
        S, inverse = stop(self._rotation.S), stop(self._rotation.inverse)
        B, delta, L = self._curvature.B, space._block(step), matmul(S, inverse)
        P, c, _ = self._singular_mean
        xp = namespace_of(c)
        sums = xp.clip(c[..., :, None] + c[..., None, :], min=float(xp.finfo(c.dtype).eps))
        N = matmul(adjoint(P), adjoint(S), delta, P)
        A = matmul(P, (N - adjoint(N)) / sums, adjoint(P))
        along = matmul(adjoint(L), B)
        across = matmul(adjoint(delta), B) - matmul(A, along)
        rotation = matmul(B, A) + matmul(delta, along) - matmul(L, across)
        return (self.normal + space._flat(rotation - self._curvature.each(delta)),)

    def shift(self, step: Array) -> Array:
        """Return the mean after a step, as a basis that is the mean's own at zero.

        It is orthonormal to rounding without a QR decomposition.
        """
        U = rotated(self._rotation, *exponential(self.space._block(step)))
        return orthonormalized(matmul(stacked(*U), self._rotation.W))

    def push(self, step: Array) -> Array:
        """Return a step as a horizontal lift at the mean's basis."""
        zero = namespace_of(step).zeros_like(self._rotation.C)
        V = rotated(self._rotation, zero, self.space._block(step))
        return matmul(stacked(*V), self._rotation.W)


class Curvature:
    r"""The Hessians of half the squared distances to samples, on blocks V, (n − p) × p.

    With the singular value decomposition :math:`B = Q \theta P^\top` of a sample's coordinates,
    angles ascending, its eigenvalues are :math:`a \cot a`. On the entries (i, j) and (j, i) of
    :math:`W = Q^\top V P`, :math:`a = \theta_i - \theta_j` for their symmetric and
    :math:`\theta_i + \theta_j` for their antisymmetric combination; off the span of Q,
    :math:`a = \theta_j` on the column j.
    """

    def __init__(self, B: Array, P: Array) -> None:
        xp = namespace_of(B)
        info = xp.finfo(B.dtype)
        tiny = float(info.smallest_normal) ** 0.5
        T = matmul(B, P)
        # the lengths of the columns are the angles with all their digits; cosines lack those
        theta = xp.sqrt(xp.sum(T * T, axis=-2))
        theta = xp.clip(theta, min=tiny, max=0.5 * math.pi * (1.0 - float(info.eps)))
        rows, columns = theta[..., :, None], theta[..., None, :]
        apart, both = xp.abs(rows - columns) + tiny, rows + columns
        # a·cot a falls to −∞ towards π; a floor keeps one far sample from deciding the sum
        alike, other = apart / xp.tan(apart), xp.clip(both / xp.tan(both), min=-1e3)
        alone = theta / xp.tan(theta)
        self.B, self.least = B, alone[..., -1] if B.shape[-1] == 1 else other[..., -1, -2]
        # of W and of its transpose, beside those off the span
        straight = 0.5 * (alike + other) - alone[..., None, :]
        crossed = 0.5 * (alike - other)
        self.parts = P, T / columns, straight, crossed, alone[..., None, :]

    def each(self, V: Array) -> Array:
        """Apply the Hessian of every sample to its block."""
        return _applied(V, *self.parts)

    def mean(self, weights: Array) -> Hessian:
        """Return the mean Hessian."""
        xp, (m, p) = namespace_of(weights), self.B.shape[-2:]

        def apply(v: Array) -> Array:
            V = xp.reshape(adjoint(v), (*v.shape[:-2], v.shape[-1], m, p))
            V = weighted_sum(weights, _applied(V, *(a[..., None, :, :] for a in self.parts)))
            return adjoint(xp.reshape(V, (*V.shape[:-2], m * p)))

        def matrix() -> Array:
            """Return H from the products of entries, W_ij = Q_ai P_bj V_ab."""
            P, Q, straight, crossed, alone = map(adjoint, self.parts)
            shape, w = (*weights.shape, p * p, m * p), weights[..., None, None]
            T = xp.reshape(Q[..., None, :, :, None] * P[..., :, None, None, :], shape)
            swapped = xp.reshape(Q[..., :, None, :, None] * P[..., None, :, None, :], shape)
            straight, crossed = (xp.reshape(a, (*shape[:-1], 1)) for a in (straight, crossed))
            inside = sum_of_products(w * (straight * T + crossed * swapped), T)
            off = sum_of_products(w * alone * P, P)[..., None, :, None, :]
            return inside + xp.reshape(eye(off, m)[:, None, :, None] * off, inside.shape)

        return Hessian(apply, lambda: weighted_sum(weights, self.least), matrix)


def _applied(V: Array, P: Array, Q: Array, straight: Array, crossed: Array, alone: Array) -> Array:
    VP = matmul(V, P)
    W = matmul(adjoint(Q), VP)
    W = matmul(Q, straight * W + crossed * adjoint(W))
    return matmul(W + VP * alone, adjoint(P))


# ---------------------------------------------------------------------- the geometries


@dataclass(frozen=True)
class Bases(GyroSpace):
    """Subspaces as orthonormal bases, n × p: two bases of one subspace are the same point."""

    n: int
    p: int
    _view: ClassVar[type[Centred]] = CentredBases

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
        bottom = xp.zeros((self.n - self.p, self.p), dtype=like.dtype, device=device_of(like))
        return stacked(eye(like, self.p), bottom)

    # ------------------------------------------------------------------ coordinates

    def _flat(self, B: Array) -> Array:
        return namespace_of(B).reshape(B, (*B.shape[:-2], self.dim))

    def _block(self, c: Array) -> Array:
        return namespace_of(c).reshape(c, (*c.shape[:-1], self.n - self.p, self.p))

    def to_normal(self, x: Array) -> Array:
        r"""Entries of the block :math:`S\,\theta/\sin\theta` of :math:`\Omega_x`, row by row.

        At a principal angle of π/2, in the cut locus, Ω is not unique; one of them is returned.
        """
        self._namespace(x)
        return self._flat(logarithm(*blocks_of(x)))

    def from_normal(self, c: Array) -> Array:
        r"""Basis :math:`(\cos\sqrt{B^\top B},\ B\,\operatorname{sinc}\sqrt{B^\top B})^\top`."""
        check_coordinates(self, c)
        return stacked(*exponential(self._block(c)))

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`\operatorname{mexp}(\Omega_x)\,y`."""
        self._namespace(x, y)
        return stacked(*rotated(direct_rotation(x), *blocks_of(y)))

    def neg(self, x: Array) -> Array:
        """Gyroinverse: the lower block changes its sign."""
        self._namespace(x)
        top, bottom = blocks_of(x)
        return stacked(top, -bottom)

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\operatorname{mexp}(-\Omega_x)\,y`."""
        self._namespace(x, y)
        return stacked(*rotated(direct_rotation(x), *blocks_of(y), -1.0))

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`x \oplus \operatorname{Exp}_e(c)`."""
        self._namespace(x)
        check_coordinates(self, c)
        return self.centred(x, x).shift(c)

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`x \oplus (t \odot (\ominus x \oplus y))`, with one direct rotation."""
        self._namespace(x, y)
        view = self.centred(x, y)
        return view.shift(self.by_coordinate(scalars_like(t, x)) * view.normal)

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Horizontal lift, at the basis x, of :math:`\operatorname{mexp}(\Omega_x)(0, B)^\top`."""
        self._namespace(x)
        check_coordinates(self, c)
        return self.centred(x, x).push(c)

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        self._namespace(x, v)
        rotation = direct_rotation(x)
        _, B = rotated(rotation, *blocks_of(matmul(v, adjoint(rotation.W))), -1.0)
        return self._flat(B)

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport: the direct rotation from the subspace of x to that of y."""
        self._namespace(x, y, v)
        here, there = direct_rotation(x), direct_rotation(self.relative(x, y))
        _, B = rotated(here, *blocks_of(matmul(v, adjoint(here.W))), -1.0)
        # what rounding adds along the subspace itself would grow from one step to the next
        V = rotated(there, namespace_of(B).zeros_like(there.C), B)
        return matmul(stacked(*rotated(here, *V)), there.W)

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Return an orthonormal basis of the columns' span, by a QR decomposition."""
        xp = self._namespace(x)
        Q, R = xp.linalg.qr(x)
        signs = 1.0 - 2.0 * xp.astype(xp.linalg.diagonal(R) < 0, x.dtype)
        return Q * signs[..., None, :]

    def violation(self, x: Array) -> Array:
        r"""Return the largest entry of :math:`|x^\top x - I|`."""
        self._namespace(x)
        return off_orthonormal(x)

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring bases in floating point, up to a small factor."""
        xp = self._namespace(x)
        eps = float(xp.finfo(x.dtype).eps)
        return xp.full(x.shape[:-2], eps * self.p**0.5, dtype=x.dtype, device=device_of(x))

    # ------------------------------------------------------------------ the mean

    def _sketch(self, like: Array) -> Array:
        """Return a constant n × k matrix of orthonormal columns, in general position."""
        k = min(self.n, 2 * self.p + 8)
        return backend_of(like).cached(_random_columns, like, self.n, k)

    def moments(self, x: Array) -> Array:
        r"""Entries of :math:`UU^\top G`, with a constant orthogonal matrix G, or some columns."""
        xp = self._namespace(x)
        sketch = matmul(x, matmul(adjoint(x), self._sketch(x)))
        return xp.reshape(sketch, (*x.shape[:-2], sketch.shape[-2] * sketch.shape[-1]))

    def start(self, moments: Array) -> Array:
        r"""First guess of the mean: leading left singular vectors of :math:`\bar P G`.

        Those are eigenvectors of the mean projector :math:`\bar P`, or nearly so in high dimension.
        """
        shape = *moments.shape[:-1], *self._sketch(moments).shape
        Y = namespace_of(moments).reshape(moments, shape)
        return self.project(matmul(Y, leading(matmul(adjoint(Y), Y), self.p)))

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Mean Hessian, from the singular vectors of each sample's coordinates."""
        B = self._block(c)
        return Curvature(B, eigh(matmul(adjoint(B), B)).vectors).mean(weights)


def _random_columns(n: int, k: int) -> "np.ndarray[Any, Any]":
    return np.linalg.qr(np.random.default_rng(0).standard_normal((n, k)))[0]


# ---------------------------------------------------------------------- representations


class AsBases(Diffeomorphism):
    """Points are the bases themselves."""

    def __init__(self, n: int, p: int) -> None:
        self.inside, self.point_shape = Bases(n, p), (n, p)
        self.project, self.violation = self.inside.project, self.inside.violation

    def forward(self, x: Array) -> Array:
        """Return the basis."""
        return x

    def inverse(self, y: Array) -> Array:
        """Return the basis."""
        return y

    def differential(self, x: Array, v: Array) -> Array:
        """Return the tangent vector."""
        return v

    def inverse_differential(self, x: Array, u: Array) -> Array:
        """Return the tangent vector."""
        return u


class AsProjectors(Diffeomorphism):
    r"""Points are the projectors :math:`UU^\top`."""

    def __init__(self, n: int, p: int) -> None:
        self.n, self.p, self.inside, self.point_shape = n, p, Bases(n, p), (n, n)

    def forward(self, x: Array) -> Array:
        """Return a basis of the range."""
        return leading(x, self.p)

    def inverse(self, y: Array) -> Array:
        """Return the projector of a basis."""
        return matmul(y, adjoint(y))

    def differential(self, x: Array, v: Array) -> Array:
        r"""Return the horizontal lift :math:`\dot P U` of a tangent vector at a projector."""
        return matmul(v, self.forward(x))

    def inverse_differential(self, x: Array, u: Array) -> Array:
        r"""Return :math:`\dot P = \dot U U^\top + U \dot U^\top`."""
        return 2.0 * symmetric(matmul(u, adjoint(self.forward(x))))

    def project(self, x: Array) -> Array:
        """Return the projector to the leading eigenvectors."""
        return self.inverse(leading(x, self.p))

    def violation(self, x: Array) -> Array:
        """Return the largest violation of symmetry, of P² = P and of the trace p."""
        xp = namespace_of(x)
        off = xp.maximum(xp.abs(x - adjoint(x)), xp.abs(matmul(x, x) - x))
        off = xp.max(off, axis=(-2, -1))
        off = xp.maximum(off, xp.abs(xp.linalg.trace(x) - float(self.p)))
        return xp.where(xp.isfinite(off), off, xp.inf)


REPRESENTATIONS: dict[str, type[AsBases] | type[AsProjectors]] = {
    "basis": AsBases,
    "projector": AsProjectors,
}


@dataclass(frozen=True)
class Grassmannian(Chart):
    r"""The p-dimensional subspaces of :math:`\mathbb R^n`, at the distance :math:`\|\theta\|`.

    A point is an n × p orthonormal basis, of which only the span matters, or the n × n projector
    :math:`UU^\top`. The identity is :math:`I_{p,n}`, the span of the first p coordinates.

    Parameters
    ----------
    n
        Dimension of the space.
    p
        Dimension of the subspaces, less than n.
    representation
        ``"basis"`` or ``"projector"``.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Grassmannian
    >>> M = Grassmannian(3, 1)
    >>> x = np.asarray([[0.6], [0.8], [0.0]])
    >>> float(M.dist(x, -x))  # another basis of the same line
    0.0
    >>> M.scale(0.5, x).round(4)
    array([[0.8944],
           [0.4472],
           [0.    ]])
    """

    n: int
    p: int
    representation: str = field(default="basis", metadata={"choices": tuple(REPRESENTATIONS)})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p >= self.n:
            raise ValueError(
                f"Grassmannian needs subspaces smaller than the space, got p={self.p}, n={self.n}"
            )

    @cached_property
    def chart(self) -> AsBases | AsProjectors:
        """The map from a point to a basis."""
        return REPRESENTATIONS[self.representation](self.n, self.p)

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n, p)``, or ``(n, n)`` for projectors."""
        return self.chart.point_shape

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the space whose bases have the last two axes of ``shape``."""
        if len(shape) < 2:
            raise ValueError(f"a basis is a matrix, shape (n, p), got {tuple(shape)}")
        return cls(shape[-2], shape[-1])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return planes, projectors, and subspaces of more than half the dimension."""
        return cls(4, 2), cls(5, 2, "projector"), cls(5, 3)

    def origin(self, like: Array) -> Array:
        """Return the span of the first p coordinate vectors."""
        return self.chart.inverse(self.chart.inside.origin(like))

    def project(self, x: Array) -> Array:
        """Orthonormalise a basis, or return the projector to a matrix's leading eigenvectors."""
        self._namespace(x)
        return self.chart.project(x)

    def violation(self, x: Array) -> Array:
        r"""Return the largest entry of :math:`|U^\top U - I|`; for projectors, the largest of
        :math:`|P - P^\top|`, :math:`|P^2 - P|` and the distance of the trace from p.
        """
        self._namespace(x)
        return self.chart.violation(x)


def of_projectors(x: "np.ndarray[Any, Any]") -> Grassmannian:
    """Return the geometry of an array of projectors; their rank is the median of their traces.

    >>> of_projectors(Grassmannian(4, 2, "projector").random(5))
    Grassmannian(n=4, p=2, representation='projector')
    """
    if x.ndim < 3 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"projectors are square, shape (N, ..., n, n), got {x.shape}")
    n = x.shape[-1]
    traces = np.trace(x.reshape(-1, n, n), axis1=-2, axis2=-1)
    finite = traces[np.isfinite(traces)]
    trace = float(np.median(finite)) if len(finite) else float("nan")
    if not 0.5 <= trace < n - 0.5:
        raise ValueError(
            f"the first samples have the trace {trace:.4g}, which is not the rank of a projector "
            f"to a subspace of {n} dimensions, from 1 to {n - 1}"
        )
    return Grassmannian(n, round(trace), "projector")
