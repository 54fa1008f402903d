r"""The Grassmannian: p-dimensional subspaces of :math:`\mathbb R^n`, as bases or as projectors."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.bases import Bases
from gyrobn.manifolds.composite import Composite
from gyrobn.manifolds.pullback import Pullback
from gyrobn.manifolds.specification import space_of
from gyrobn.numerics.decompositions import eigh
from gyrobn.numerics.linalg import symmetric_functions
from gyrobn.numerics.matrices import matmul, symmetric, transpose
from gyrobn.numerics.spectra import Pairs, Spectrum
from gyrobn.numerics.spectral import INVERSE_ROOT, Spectral
from gyrobn.numerics.triples import Triples


@dataclass(frozen=True)
class Grassmannian(Pullback):
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
    representation: str = field(default="basis", metadata={"choices": ("basis", "projector")})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p >= self.n:
            raise ValueError(
                f"Grassmannian needs subspaces smaller than the space, got p={self.p}, n={self.n}"
            )

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n, p)``, or ``(n, n)`` for projectors."""
        return self.n, self.p if self.representation == "basis" else self.n

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

    @property
    def inside(self) -> Bases:
        """The bases."""
        return space_of(Bases, self.n, self.p)

    def origin(self, like: Array) -> Array:
        """Return the span of the first p coordinate vectors."""
        return self.from_inside(self.inside.origin(like))

    def to_inside(self, x: Array) -> Array:
        r"""Return a basis of the range: the leading eigenvectors of a projector.

        The eigenvectors Y are constants; :math:`U = P Y (Y^\top P Y)^{-1/2}` has the derivative.
        """
        if self.representation == "basis":
            return x
        self._namespace(x)
        _, Y = eigh(x)
        Y = backend_of(x).stop_gradient(Y[..., self.n - self.p :])
        U = matmul(symmetric(x), Y)
        (normalizer,) = symmetric_functions(matmul(transpose(Y), U), INVERSE_ROOT)
        return matmul(U, normalizer)

    def from_inside(self, x: Array) -> Array:
        """Return the basis itself, or its projector."""
        return x if self.representation == "basis" else matmul(x, transpose(x))

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`\operatorname{mexp}(\Omega_x)\,y`; exactly y if x is e."""
        if self.representation == "basis":  # x ⊕ e is another basis of x, with its own derivative
            return Composite.add(self, x, y)
        return super().add(x, y)

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        r"""Return the horizontal lift :math:`\dot P U` of a tangent vector at a projector."""
        return v if self.representation == "basis" else matmul(v, self.to_inside(x))

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        r"""Return :math:`\dot P = \dot U U^\top + U \dot U^\top`."""
        if self.representation == "basis":
            return v
        return 2.0 * symmetric(matmul(v, transpose(self.to_inside(x))))

    def project(self, x: Array) -> Array:
        """Orthonormalise a basis, or return the projector to a matrix's leading eigenvectors."""
        self._namespace(x)
        if self.representation == "basis":
            return self.inside.project(x)
        return symmetric_functions(x, _leading(self.p))[0]

    def violation(self, x: Array) -> Array:
        r"""Return the largest entry of :math:`|U^\top U - I|`; for projectors, the largest of
        :math:`|P - P^\top|`, :math:`|P^2 - P|` and the distance of the trace from p.
        """
        xp = self._namespace(x)
        if self.representation == "basis":
            return self.inside.violation(x)
        off = xp.maximum(xp.abs(x - transpose(x)), xp.abs(matmul(x, x) - x))
        off = xp.max(off, axis=(-2, -1))
        off = xp.maximum(off, xp.abs(xp.linalg.trace(x) - float(self.p)))
        return xp.where(xp.isfinite(off), off, xp.inf)


def _leading(p: int) -> Spectral:
    """Return the function that is 1 at the last p eigenvalues, in ascending order, and else 0."""

    def value(s: Spectrum, t: Any) -> Array:
        return 0.0 * s.x + one_at(s.x, -1)

    def quotient(pairs: Pairs, t: Any) -> Array:
        x, y = pairs.of("x")
        xp = namespace_of(x)
        across = one_at(x, -2) - one_at(y, -1)
        gap = x - y
        return across / xp.where(xp.logical_and(across != 0, gap != 0), gap, 1.0)

    def one_at(x: Array, axis: int) -> Array:
        xp = namespace_of(x)
        n = x.shape[axis]
        last = xp.astype(xp.arange(n, device=device_of(x)) >= n - p, x.dtype)
        return xp.reshape(last, (n,) + (1,) * (-1 - axis))

    def second(p: Triples, t: Any) -> Array:
        """Return ±1/((x − z)(y − z)), where z is the one that is apart from the other two."""
        xp = namespace_of(p.mean)
        top = [one_at(x, axis) for x, axis in zip(p.all, (-3, -2, -1), strict=True)]
        total, found = top[0] + top[1] + top[2], 0.0
        for k in range(3):
            own, (x, y) = top[k], [a for j, a in enumerate(p.all) if j != k]
            alone = xp.where(total == 1.0, own, xp.where(total == 2.0, own - 1.0, 0.0))
            gaps = (p.all[k] - x) * (p.all[k] - y)
            found = found + alone / xp.where(xp.logical_and(alone != 0, gaps != 0), gaps, 1.0)
        return found

    return Spectral(value, quotient, second)


def of_projectors(x: "np.ndarray[Any, Any]") -> Grassmannian:
    """Return the geometry of an array of projectors; their rank is the median of their traces.

    >>> of_projectors(Grassmannian(4, 2, "projector").random(5, rng=0))
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
