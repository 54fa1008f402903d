r"""Totally geodesic subspaces of other geometries, with a point format of their own.

A subspace N of M is totally geodesic if geodesics that begin in it stay in it: then means,
variances and Hessians of points of N, computed in M, are those of N.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.chart import Chart, Diffeomorphism
from gyrobn.manifolds.composite import Composite
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import real_like
from gyrobn.numerics.checks import check_square
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, matmul


@dataclass(frozen=True, init=False, repr=False)
class Image(Composite):
    r"""The points of a subspace as points of the larger space, which computes with them.

    Coordinates are those of the subspace: with the orthonormal basis E of its tangent space at e,
    and lengths that are :math:`\rho` times those in the larger space, :math:`c = \rho E^\top c_M`.
    """

    part: "Subspace"

    def __init__(self, part: "Subspace") -> None:
        object.__setattr__(self, "part", part)

    def __repr__(self) -> str:
        return f"the image of {self.part!r}"

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of a point of the larger space."""
        return self.part.whole.point_shape

    @property
    def dim(self) -> int:
        """Dimension of the subspace."""
        return self.part.dim

    @property
    def blocks(self) -> tuple[int, ...]:
        """One block."""
        return (self.dim,)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Raise an error: the subspace does not follow from a shape."""
        raise ValueError("a subspace cannot be told from the shape of the larger space's points")

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return nothing: each subspace has examples of its own."""
        return ()

    @property
    def _spaces(self) -> Sequence[GyroSpace]:
        return (self.part.whole,)

    def _split(self, kind: str, a: Any) -> list[Any]:
        return [self._times(a, inverse=True) if kind == "normal" else a]

    def _join(self, kind: str, parts: list[Array]) -> Array:
        (a,) = parts
        if kind == "normal":
            return self._times(a, inverse=False)
        return self.part.ratio * a if kind in ("length", "blocks") else a

    def _times(self, c: Array, inverse: bool) -> Array:
        E = backend_of(c).cached(_coordinate_map, c, self.part, inverse)
        return namespace_of(c).matmul(c[..., None, :], E)[..., 0, :]

    def _block_diagonal(self, parts: list[Hessian]) -> Hessian:
        """Return the restriction of the Hessian to the subspace: other directions are separate."""
        (whole,) = parts

        def apply(v: Array) -> Array:
            E = backend_of(v).cached(_directions, v, self.part)
            inside = whole.apply(matmul(adjoint(E), v))
            return matmul(E, inside)

        form = whole.matrix

        def matrix() -> Array:
            assert form is not None
            H = form()
            E = backend_of(H).cached(_directions, H, self.part)
            return matmul(E, H, adjoint(E))

        formed = None if form is None else matrix
        return Hessian(apply, whole.lowest, formed, whole.identity)

    def origin(self, like: Array) -> Array:
        """Return the identity of the larger space."""
        return self.part.whole.origin(like)

    def violation(self, x: Array) -> Array:
        """Return how far each array is from a point of the larger space."""
        return self.part.whole.violation(x)

    def project(self, x: Array) -> Array:
        """Return the nearest point of the subspace."""
        return self.part._lift(self.part.project(self.part._drop(x)))

    def start(self, moments: Array) -> Array:
        """Return the first guess of the larger space, in the subspace."""
        return self.project(self.part.whole.start(moments))


class Linear(Diffeomorphism):
    """A linear map of matrices or vectors, onto the image of a subspace."""

    def __init__(self, part: "Subspace") -> None:
        self.part, self.inside = part, Image(part)

    def forward(self, x: Array) -> Array:
        """Return the point of the larger space."""
        return self.part._lift(x)

    def inverse(self, y: Array) -> Array:
        """Return the point of the subspace."""
        return self.part._drop(y)

    def differential(self, x: Array, v: Array) -> Array:
        """Return the tangent vector of the larger space."""
        return self.part._lift(v)

    def inverse_differential(self, x: Array, u: Array) -> Array:
        """Return the tangent vector of the subspace."""
        return self.part._drop(u)


@dataclass(frozen=True)
class Subspace(Chart):
    r"""A totally geodesic subspace of ``whole``, into which a linear map leads.

    A subclass states ``whole``, the map :meth:`_lift`, its inverse :meth:`_drop` on the image (on
    other arrays, the inverse of the nearest image), and :meth:`_basis`.
    """

    ratio: ClassVar[float] = 1.0
    """Lengths in the subspace, divided by those in the larger space."""

    @property
    @abstractmethod
    def whole(self) -> GyroSpace:
        """The larger space."""

    @abstractmethod
    def _lift(self, x: Array) -> Array:
        """Return a point, or tangent vector, of the larger space."""

    @abstractmethod
    def _drop(self, y: Array) -> Array:
        """Undo :meth:`_lift`."""

    @abstractmethod
    def _basis(self) -> "np.ndarray[Any, Any]":
        """Return an orthogonal basis of the tangent space at e, shape (dim, *point_shape)."""

    @cached_property
    def chart(self) -> Diffeomorphism:
        """The map, onto its image."""
        return Linear(self)

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        """That of the larger space, in lengths of the subspace."""
        return self.ratio * self.whole.convexity_radius

    def origin(self, like: Array) -> Array:
        """Return the identity."""
        return self._drop(self.whole.origin(real_like(like)))

    def violation(self, x: Array) -> Array:
        """Return the violation of the larger space."""
        self._namespace(x)
        return self.whole.violation(self._lift(x))

    def project(self, x: Array) -> Array:
        """Return the nearest sensible point, found in the larger space."""
        self._namespace(x)
        return self._drop(self.whole.project(self._lift(x)))


@cache
def _directions(part: Subspace) -> "np.ndarray[Any, Any]":
    """Return E, the coordinates of the basis in the larger space, as orthonormal rows."""
    vectors = part._lift(part._basis())
    c = np.asarray(part.whole.pull(part.whole.origin(vectors), vectors))
    return np.asarray(c / np.linalg.norm(c, axis=-1, keepdims=True))


def _coordinate_map(part: Subspace, inverse: bool) -> "np.ndarray[Any, Any]":
    r"""Return what multiplies rows of coordinates, :math:`E/\rho` or :math:`\rho E^\top`."""
    E = _directions(part)
    return np.asarray(E / part.ratio if inverse else E.T * part.ratio)


# ---------------------------------------------------------------------- complex matrices


class ComplexMatrices(Subspace):
    r"""Complex matrices as real ones of twice the size, with which the larger space computes.

    Each entry becomes a block :math:`\begin{pmatrix} a & -b \\ b & a \end{pmatrix}`, for a + ib. So
    triangular matrices with a real diagonal stay triangular.
    """

    complex_points: ClassVar[bool] = True
    ratio: ClassVar[float] = 0.5**0.5

    def _lift(self, x: Array) -> Array:
        """Return the real matrix."""
        xp = namespace_of(x)
        re, im = xp.real(x), xp.imag(x)
        rows = [xp.stack([re, -im], axis=-1), xp.stack([im, re], axis=-1)]
        *batch, m, n = x.shape
        return xp.reshape(xp.stack(rows, axis=-3), (*batch, 2 * m, 2 * n))

    def _drop(self, y: Array) -> Array:
        """Return the complex matrix, the mean of both copies of its entries."""
        *batch, m, n = y.shape
        y = namespace_of(y).reshape(y, (*batch, m // 2, 2, n // 2, 2))
        re = y[..., 0, :, 0] + y[..., 1, :, 1]
        return 0.5 * re + 0.5j * (y[..., 1, :, 0] - y[..., 0, :, 1])


@dataclass(frozen=True)
class SquareComplexMatrices(ComplexMatrices):
    """Complex n × n matrices."""

    n: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one matrix: ``(n, n)``."""
        return self.n, self.n

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the space of matrices of the last two axes of ``shape``."""
        return cls(check_square("expected square matrices, shape (..., n, n)", shape))
