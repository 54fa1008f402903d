r"""The Grassmannian: p-dimensional subspaces of :math:`\mathbb R^n`, as bases or as projectors.

The rotation :math:`\operatorname{mexp}(\Omega_U)` that maps the identity
:math:`I_{p,n} = (I_p, 0)^\top` to U is the *direct rotation* between the two subspaces. It is the
product of two reflections: the one about the identity, which changes the sign of the lower block,
and the one about the subspace halfway between the identity and U. With the polar decomposition
:math:`U_1 = C W` of the upper block, :math:`C = \cos\theta` symmetric, the latter is

.. math:: V \mapsto Y (I + C)^{-1} Y^\top V - V, \qquad Y = I_{p,n} + U W^\top ,

which is exact and costs :math:`O(np^2)`, without an n × n matrix.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.chart import Chart, Diffeomorphism
from gyrobn.manifolds.composite import Composite
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import eps_of
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, identity, matmul, symmetric
from gyrobn.numerics.matrix_functions import (
    Eigen,
    Spectral,
    change,
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


class Halfway(NamedTuple):
    """The reflection about the subspace halfway between those of two bases x and y."""

    Y: Array
    """The sum of x and :math:`y W^\\top`, the basis of its subspace next to x."""
    ratio: Array
    r""":math:`Y (I + C)^{-1}`, with the cosines C of the principal angles."""
    W: Array

    def reflect(self, V: Array) -> Array:
        """Apply the reflection; it exchanges x and :math:`y W^\\top`."""
        return matmul(self.ratio, matmul(adjoint(self.Y), V)) - V


def halfway(x: Array, y: Array) -> Halfway:
    """Return the reflection."""
    A = matmul(adjoint(x), y)
    W = polar(A)
    C, Y = symmetric(matmul(A, adjoint(W))), x + matmul(y, adjoint(W))
    ratio = namespace_of(Y).linalg.solve(identity(C) + C, adjoint(Y))  # C is never negative
    return Halfway(Y, adjoint(ratio), W)


STEP = Spectral(
    (lambda x: namespace_of(x).astype(x > 0, x.dtype) + 0.0 * x, *3 * (lambda x: 0.0 * x,))
)
"""One for positive numbers, zero for negative ones: its jump is never between close eigenvalues."""


def leading(A: Array, p: int) -> Array:
    r"""Return an orthonormal basis of the span of the p leading eigenvectors of symmetric matrices.

    The eigenvectors are constants. The projector to their span has the derivatives: it is a step
    function of A, with the step between two eigenvalues.
    """
    values, U = eigh(symmetric(A))
    middle = 0.5 * (values[..., -p, None] + values[..., -p - 1, None])
    projector = matrix_function(A, STEP, Eigen(values - middle, U))
    return orthonormalized(matmul(projector, U[..., -p:]))


# ---------------------------------------------------------------------- samples seen from a mean


class CentredInFrames(Centred):
    """A view whose first decomposition is that of the normal coordinates, too."""

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian, a constant to differentiation."""
        stop = backend_of(weights).stop_gradient
        hessian: Hessian = self.space.hessian(stop(self.normal), stop(weights), frames=self.saved)
        return hessian

    def _each(self, step: Array) -> Array:
        """Apply the Hessian of every sample to a step: the mean Hessian of one sample."""
        c = backend_of(step).stop_gradient(self.normal)[None, ...]
        frames, one = [a[None, ...] for a in self.saved], namespace_of(c).ones_like(c[..., 0])
        hessian: Hessian = self.space.hessian(c, one, frames=frames)
        return hessian.apply(step[..., None])[..., 0]


class CentredBases(CentredInFrames):
    """The view of bases from the mean, with one decomposition of every upper block."""

    saves = 3

    @cached_property
    def saved(self) -> Arrays:
        """The singular value decompositions of the upper blocks."""
        return svd(self._relative[..., : self.space.p, :])

    @cached_property
    def _halfway(self) -> Halfway:
        return halfway(self.space.origin(self.mean), self.mean)

    @cached_property
    def _relative(self) -> Array:
        return self.space.neg(self._halfway.reflect(self.x))

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates, shape (N, *channels, dim)."""
        return self.space._logarithm(self._relative, self.saved)

    def followed(self, step: Array) -> Arrays:
        r"""Return the normal coordinates if the mean moves by a step δ.

        A step changes the block B as the Hessian has it, and rotates both sides of it, since
        :math:`\operatorname{mexp}(\Omega_{\mu \oplus \delta})\operatorname{diag}(g_1, g_2)
        = \operatorname{mexp}(\Omega_\mu)\operatorname{mexp}(\Omega_\delta)`. With
        :math:`L = S(I + C)^{-1}` and the derivative A of the polar factor of
        :math:`C + S^\top\delta`,

        .. math:: dB = -H_B\,\delta + BA - (L\delta^\top - \delta L^\top - LAL^\top)\,B .
        """
        space, stop = self.space, backend_of(step).stop_gradient
        Y, L = (stop(a) for a in self._halfway[:2])
        p, B, delta = space.p, space._block(stop(self.normal)), space._block(step)
        S, L = Y[..., p:, :], L[..., p:, :]
        A = change(polar(Y[..., :p, :] - identity(Y) + matmul(adjoint(S), delta)))
        along = matmul(adjoint(L), B)
        across = matmul(adjoint(delta), B) - matmul(A, along)
        rotation = matmul(B, A) + matmul(delta, along) - matmul(L, across)
        return (self.normal + space._flat(rotation) - self._each(step),)

    def shift(self, step: Array) -> Array:
        """Return the mean after a step, as a basis that is the mean's own at zero.

        It is orthonormal to rounding without a QR decomposition.
        """
        U = self._halfway.reflect(self.space.neg(self.space.from_normal(step)))
        return orthonormalized(matmul(U, self._halfway.W))


# ---------------------------------------------------------------------- the geometries


@dataclass(frozen=True)
class Bases(GyroSpace):
    """Subspaces as orthonormal bases, n × p: two bases of one subspace are the same point."""

    n: int
    p: int
    _view: ClassVar[type[Centred]] = CentredBases
    reductive: ClassVar[bool] = False  # left reduction fails for sums that pass an angle of π/2
    convexity_radius: ClassVar[float] = math.pi / 4
    """Half the distance π/2 to the cut locus."""

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one basis: ``(n, p)``."""
        return self.n, self.p

    @property
    def dim(self) -> int:
        """Dimension (n − p) p."""
        return (self.n - self.p) * self.p

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
        return 1.0 * backend_of(like).cached(np.eye, like, self.n, self.p)

    # ------------------------------------------------------------------ blocks and coordinates

    def _flat(self, B: Array) -> Array:
        return namespace_of(B).reshape(B, (*B.shape[:-2], self.dim))

    def _block(self, c: Array) -> Array:
        return namespace_of(c).reshape(c, (*c.shape[:-1], self.n - self.p, self.p))

    def _lift(self, c: Array) -> Array:
        """Return the horizontal lift at the identity: the block B below zeros."""
        B = self._block(c)
        return namespace_of(B).concat([0.0 * B[..., :1, :] * identity(B), B], axis=-2)

    def _logarithm(self, U: Array, singular: Arrays) -> Array:
        """Return :meth:`to_normal`; ``singular`` decomposes the upper block."""
        top, bottom = U[..., : self.p, :], U[..., self.p :, :]
        Wt, (P, c, _) = adjoint(polar(top, singular)), singular
        angle = matrix_function(matmul(top, Wt), ANGLE, Eigen(c, P))
        return self._flat(matmul(bottom, Wt, angle))

    def to_normal(self, x: Array) -> Array:
        r"""Entries of the block :math:`S\,\theta/\sin\theta` of :math:`\Omega_x`, row by row.

        At a principal angle of π/2, in the cut locus, Ω is not unique; one of them is returned.
        """
        return self._logarithm(x, svd(x[..., : self.p, :]))

    def from_normal(self, c: Array) -> Array:
        r"""Basis :math:`(\cos\sqrt{B^\top B},\ B\,\operatorname{sinc}\sqrt{B^\top B})^\top`.

        The eigenvalues of :math:`B^\top B` are the squares of the angles, which may have any size.
        """
        B = self._block(c)
        cos, sinc = matrix_functions(matmul(adjoint(B), B), (COSINE_OF_ROOT, SINC_OF_ROOT))
        return namespace_of(B).concat([cos, matmul(B, sinc)], axis=-2)

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`\operatorname{mexp}(\Omega_x)\,y`."""
        return halfway(self.origin(x), x).reflect(self.neg(y))

    def neg(self, x: Array) -> Array:
        """Gyroinverse: the lower block changes its sign, by the reflection about the identity."""
        xp = namespace_of(x)
        return xp.concat([x[..., : self.p, :], -x[..., self.p :, :]], axis=-2)

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\operatorname{mexp}(-\Omega_x)\,y`."""
        return self.neg(halfway(self.origin(x), x).reflect(y))

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`x \oplus \operatorname{Exp}_e(c)`, by the basis x at c = 0."""
        return self.centred(x, x).shift(c)

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Horizontal lift, at the basis x, of :math:`\operatorname{mexp}(\Omega_x)(0, B)^\top`."""
        return self.transport(self.origin(x), x, self._lift(c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        return self._flat(self.transport(x, self.origin(x), v)[..., self.p :, :])

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport: minus the reflection about the subspace halfway from x to y."""
        between = halfway(x, y)
        moved = matmul(between.reflect(-v), between.W)
        # what rounding adds along the subspace itself would grow from one step to the next
        return moved - matmul(y, matmul(adjoint(y), moved))

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Return an orthonormal basis of the columns' span, by a QR decomposition."""
        xp = namespace_of(x)
        Q, R = xp.linalg.qr(x)
        signs = 1.0 - 2.0 * xp.astype(xp.linalg.diagonal(R) < 0, x.dtype)
        return Q * signs[..., None, :]

    def violation(self, x: Array) -> Array:
        r"""Return the largest entry of :math:`|x^\top x - I|`."""
        return off_orthonormal(x)

    def cut_locus_angle(self, x: Array) -> Array:
        """π/2 less the largest principal angle, whose cosine is a singular value of the top."""
        xp, (_, c, _) = namespace_of(x), svd(x[..., : self.p, :])
        least = c[..., -1]
        return xp.atan2(least, xp.sqrt(xp.clip(1.0 - least * least, min=0.0)))

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring bases in floating point, up to a small factor."""
        eps = eps_of(x)
        return eps * self.p**0.5 + 0.0 * x[..., 0, 0]

    # ------------------------------------------------------------------ the mean

    def moments(self, x: Array) -> Array:
        r"""Entries of :math:`UU^\top G`, with a constant orthogonal matrix G, or some columns."""
        k = min(self.n, 2 * self.p + 8)
        G = backend_of(x).cached(_random_columns, x, self.n, k)
        columns = matmul(x, matmul(adjoint(x), G))
        return namespace_of(x).reshape(columns, (*x.shape[:-2], self.n * k))

    def start(self, moments: Array) -> Array:
        r"""First guess of the mean: leading left singular vectors of :math:`\bar P G`.

        Those are eigenvectors of the mean projector :math:`\bar P`, or nearly so in high dimension.
        """
        shape = *moments.shape[:-1], self.n, moments.shape[-1] // self.n
        Y = namespace_of(moments).reshape(moments, shape)
        return self.project(matmul(Y, eigh(matmul(adjoint(Y), Y)).vectors[..., -self.p :]))

    def hessian(self, c: Array, weights: Array, *, frames: Sequence[Array] = ()) -> Hessian:
        """Mean Hessian; ``frames`` begins with right singular vectors of the blocks, if known."""
        return hessian_in_frames(c, weights, frames[0] if frames else None, self._block, self._flat)


def _random_columns(n: int, k: int) -> "np.ndarray[Any, Any]":
    return np.linalg.qr(np.random.default_rng(0).standard_normal((n, k)))[0]


# ---------------------------------------------------------------------- representations


class AsBases(Diffeomorphism):
    """Points are the bases themselves."""

    def __init__(self, n: int, p: int) -> None:
        self.inside, self.point_shape = Bases(n, p), (n, p)
        self.violation = self.inside.violation

    def forward(self, x: Array) -> Array:
        """Return the basis."""
        return x

    def differential(self, x: Array, v: Array) -> Array:
        """Return the tangent vector."""
        return v

    def inverse(self, y: Array) -> Array:
        """Return the basis."""
        return y

    def inverse_differential(self, x: Array, u: Array) -> Array:
        """Return the tangent vector."""
        return u


class AsProjectors(Diffeomorphism):
    r"""Points are the projectors :math:`UU^\top`."""

    def __init__(self, n: int, p: int) -> None:
        self.p, self.inside, self.point_shape = p, Bases(n, p), (n, n)

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

    def violation(self, x: Array) -> Array:
        """Return the largest violation of symmetry, of P² = P and of the trace p."""
        xp = namespace_of(x)
        off = xp.maximum(xp.abs(x - adjoint(x)), xp.abs(matmul(x, x) - x))
        trace = xp.abs(xp.linalg.trace(x) - float(self.p))
        off = xp.maximum(xp.max(off, axis=(-2, -1)), trace)
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

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`x \oplus y`; :math:`x \oplus e` may be another basis of x."""
        total = Composite.add(self, x, y)
        return self._with_identity(x, y, total, right=self.representation == "projector")

    def origin(self, like: Array) -> Array:
        """Return the span of the first p coordinate vectors."""
        return self.chart.inverse(self.inside.origin(like))

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
    n, traces = x.shape[-1], np.trace(x, axis1=-2, axis2=-1)
    finite = traces[np.isfinite(traces)]
    trace = float(np.median(finite)) if len(finite) else math.nan
    if not 0.5 <= trace < n - 0.5:
        raise ValueError(
            f"the first samples have the trace {trace:.4g}, which is not the rank of a projector "
            f"to a subspace of {n} dimensions, from 1 to {n - 1}"
        )
    return Grassmannian(n, round(trace), "projector")
