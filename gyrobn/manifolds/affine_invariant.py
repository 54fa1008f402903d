"""SPD matrices with the affine-invariant metric: the space in which ``SPD`` computes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Self

from gyrobn.arrays import check_coordinates, check_size, samples_last, scalars_like
from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.centred import Centred, Decomposed
from gyrobn.gyrospace import GyroSpace
from gyrobn.hessian import Hessian
from gyrobn.linalg import (
    Decomposition,
    cholesky,
    congruence,
    eigh,
    eye,
    finite_or_identity,
    log_squares,
    matmul,
    pack,
    symmetric,
    symmetric_functions,
    transpose,
    unpack,
)
from gyrobn.scalar import cotangent
from gyrobn.spectral import EXP, INVERSE, INVERSE_ROOT, LOG, POWER, ROOT, Spectral

__all__ = [
    "AffineInvariant",
    "nearest",
    "violation",
]


@dataclass(frozen=True)
class AffineInvariant(GyroSpace):
    r"""SPD matrices with the affine-invariant metric over θ², for :class:`SPD` to compute in.

    .. math:: \langle u, v \rangle_P = \tfrac1{\theta^2}\operatorname{tr}(P^{-1} u P^{-1} v),
              \qquad P \oplus Q = R\,Q\,R^\top

    where :math:`R = P^{1/2}` or, with ``cholesky``, the Cholesky factor of P: then ⊕ is a group.
    """

    n: int
    cholesky: bool = False
    theta: float = 1.0

    def __post_init__(self) -> None:
        check_size(self, n=self.n)
        super().__post_init__()

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n, n)``."""
        return self.n, self.n

    @property
    def dim(self) -> int:
        """Dimension n(n + 1)/2."""
        return self.n * (self.n + 1) // 2

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the space of matrices of the last two axes of ``shape``."""
        return cls(shape[-1])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return one space for each translation."""
        return cls(2), cls(2, cholesky=True)

    @property
    def gyrocommutative(self) -> bool:
        """Whether the translation is by the square root: the group does not commute."""
        return not self.cholesky

    @property
    def gyrovector(self) -> bool:
        """Whether the translation is by the square root: powers of P are no subgroup otherwise."""
        return not self.cholesky

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n)

    # ------------------------------------------------------------------ gyro operations

    def _root(self, x: Array) -> Array:
        return cholesky(x) if self.cholesky else symmetric_functions(x, ROOT)[0]

    def _back(self, x: Array) -> Array:
        """Return the inverse of the root."""
        if self.cholesky:
            return namespace_of(x).linalg.inv(cholesky(x))
        return symmetric_functions(x, INVERSE_ROOT)[0]

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`R_P\, Q\, R_P^\top`."""
        self._namespace(x, y)
        return congruence(self._root(x), y)

    def neg(self, x: Array) -> Array:
        r"""Gyroinverse :math:`R_P^{-1} R_P^{-\top}`, the inverse if R is the square root."""
        self._namespace(x)
        if self.cholesky:
            back = self._back(x)
            return matmul(back, transpose(back))
        return symmetric_functions(x, INVERSE)[0]

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus P \oplus Q = R_P^{-1}\, Q\, R_P^{-\top}`."""
        self._namespace(x, y)
        return congruence(self._back(x), y)

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`R_P \exp(\theta C) R_P^\top`."""
        return self.add(x, self.from_normal(c))

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`R_P (R_P^{-1} Q R_P^{-\top})^t R_P^\top`."""
        if self.cholesky:
            return super().geodesic(x, y, t)
        self._namespace(x, y)
        root, back = symmetric_functions(x, ROOT, INVERSE_ROOT)
        return congruence(root, self.scale(t, congruence(back, y)))

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication :math:`P^t`."""
        self._namespace(x)
        return symmetric_functions(x, POWER, t=scalars_like(t, x))[0]

    def to_normal(self, x: Array) -> Array:
        r"""Lower triangle of :math:`\log(P)/\theta`, times :math:`\sqrt2` off the diagonal."""
        self._namespace(x)
        return pack(symmetric_functions(x, LOG)[0]) / self.theta

    def from_normal(self, c: Array) -> Array:
        r"""Inverse of :meth:`to_normal`: :math:`\exp(\theta C)`."""
        check_coordinates(self, c)
        return symmetric_functions(self.theta * unpack(c, self.n), EXP)[0]

    def _turn(self, x: Array, y: Array) -> Array:
        """Return the orthogonal matrix by which the gyration of x and y turns."""
        return matmul(self._back(self.add(x, y)), self._root(x), self._root(y))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        r"""Gyration :math:`O Z O^\top`, :math:`O = (P \oplus Q)^{-1/2} P^{1/2} Q^{1/2}`.

        The group has none: there it returns z.
        """
        self._namespace(x, y, z)
        if self.cholesky:
            return z + 0.0 * (x + y)
        return congruence(self._turn(x, y), z)

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return c if self.cholesky else pack(congruence(self._turn(x, y), unpack(c, self.n)))

    def centred(self, mean: Array, x: Array, seen: tuple[Array, ...] = ()) -> Centred:
        """Return the samples seen from the mean, with one eigendecomposition each."""
        return _CentredMatrices(self, mean, x, seen)

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Carry normal coordinates to a tangent vector at P: :math:`\theta R_P\, C\, R_P^\top`.

        By parallel transport if R is the square root, by the group's translation otherwise.
        """
        self._namespace(x)
        return congruence(self._root(x), self.theta * unpack(c, self.n))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        self._namespace(x, v)
        return pack(congruence(self._back(x), v)) / self.theta

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport :math:`E\,v\,E^\top`, :math:`E = (Q P^{-1})^{1/2}`, from P to Q.

        .. math:: E = P^{1/2}(P^{-1/2} Q P^{-1/2})^{1/2} P^{-1/2}
        """
        self._namespace(x, y, v)
        root, back = symmetric_functions(x, ROOT, INVERSE_ROOT)
        return congruence(matmul(root, *symmetric_functions(congruence(back, y), ROOT), back), v)

    # ------------------------------------------------------------------ the mean

    def start(self, x: Array, weights: Array) -> Array:
        """First guess of the mean: the arithmetic mean, over what its determinant is too large.

        The mean's determinant is the geometric mean of the samples'; no step changes it any more.
        """
        xp = self._namespace(x)
        mean = xp.sum(weights[..., None, None] * x, axis=0)
        size = xp.linalg.trace(mean)[..., None, None] / self.n  # determinants of any matrix fit
        wanted = xp.sum(weights * xp.linalg.slogdet(x / size)[1], axis=0)
        excess = wanted - xp.linalg.slogdet(mean / size)[1]
        return xp.exp(xp.where(xp.isfinite(excess), excess, 0.0) / self.n)[..., None, None] * mean

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Return the mean of :math:`V \mapsto U(K \circ (U^\top V U))U^\top`.

        U and λ are eigenvectors and eigenvalues of :math:`\log P = \theta C`, and
        :math:`K_{ij} = a\coth a` with :math:`a = (\lambda_i - \lambda_j)/2`.
        """
        X = self.theta * unpack(c, self.n)
        return self.hessian_of(X, weights, lambda: eigh(X))

    def hessian_of(
        self, X: Array, weights: Array, decomposition: Callable[[], Decomposition]
    ) -> Hessian:
        """Return the Hessian for the logarithms X, whose decomposition may be known."""
        xp = namespace_of(X)
        n = self.n
        w = samples_last(weights)

        @cache
        def spectrum() -> tuple[Array, ...]:
            values, U = decomposition()
            a = 0.5 * (values[..., :, None] - values[..., None, :])
            K, U = samples_last(cotangent(-a * a, -1), 2), samples_last(U, 2)
            # all samples beside each other: what meets all of them is then one large product
            k = U.ndim - 3
            between = xp.permute_dims(U, (*range(k), k + 1, k, k + 2))
            wide = xp.reshape(between, (*U.shape[:-3], 1, n, U.shape[-3] * n))
            return w[..., None, None] * K, U, wide

        def apply(v: Array) -> Array:
            """Take columns (*channels, dim, k) as matrices, and give each to all samples."""
            K, U, wide = spectrum()
            V = unpack(transpose(v), n)
            many, flat = (*V.shape[:-2], U.shape[-3], n, n), (*V.shape[:-2], wide.shape[-1], n)
            inner = matmul(xp.reshape(matmul(transpose(wide), V), many), U[..., None, :, :, :])
            outer = matmul(K[..., None, :, :, :] * inner, transpose(U)[..., None, :, :, :])
            return transpose(pack(symmetric(matmul(wide, xp.reshape(outer, flat)))))

        def highest() -> Array:
            # a coth a is an operator concave function of a² (a sum of a²/(a² + k²π²)): its mean is
            # at most its value at the mean a², and that is at most the mean X²
            Y = samples_last(X - xp.linalg.trace(X)[..., None, None] / n * eye(X), 2)
            tall = xp.reshape(Y, (*Y.shape[:-3], Y.shape[-3] * n, n))
            heavy = xp.reshape(w[..., None, None] * Y, tall.shape)
            values, _ = eigh(matmul(transpose(heavy), tall))
            return cotangent(-values[..., -1], -1)

        return Hessian(apply, lambda: xp.sum(w, axis=-1), highest, dense=21, smooth=False)

    def resolution(self, x: Array) -> Array:
        """Distance that rounding moves samples seen from P: an eighth of its condition, in ulps."""
        xp = self._namespace(x)
        eps = float(xp.finfo(x.dtype).eps)
        low, high, bad = _definiteness(x)
        condition = xp.where(bad, 1.0 / eps, high / xp.where(bad, 1.0, low))
        ulps = 0.5 * self.n + self.n**2 / 256 + 0.125 * condition  # measured
        return eps / abs(self.theta) * ulps

    def project(self, x: Array) -> Array:
        """Return the symmetric part, its eigenvalues raised if it is not positive definite."""
        self._namespace(x)
        return nearest(x)

    def violation(self, x: Array) -> Array:
        """Return the largest of asymmetry and lack of definiteness, relative to the size."""
        self._namespace(x)
        return violation(x)


class _CentredMatrices(Decomposed):
    """Matrices P as they are seen from the mean, decomposed once."""

    def _recall(self, logarithms: Array, values: Array, U: Array) -> None:  # type: ignore[override]
        self._logarithms, self._known = logarithms, (values, U)

    @property
    def seen(self) -> tuple[Array, ...]:
        """Logarithms, eigenvalues and eigenvectors."""
        return (self._logarithms, *self._known)

    @cached_property
    def _points(self) -> Array:
        back = self.space._back(self.mean)
        return matmul(back, self.x, transpose(back))

    @cached_property
    def _known(self) -> Decomposition:
        return eigh(backend_of(self.x).stop_gradient(self._points))

    @cached_property
    def _logarithms(self) -> Array:
        return symmetric_functions(self._points, LOG, known=self._known)[0]

    @cached_property
    def normal(self) -> Array:
        """Their normal coordinates."""
        return pack(symmetric(self._logarithms)) / self.space.theta

    def gradient(self, weights: Array) -> Array:
        """Return the mean logarithm."""
        X = namespace_of(weights).sum(weights[..., None, None] * self._logarithms, axis=0)
        return pack(symmetric(X)) / self.space.theta

    @cached_property
    def squares(self) -> Array:
        r"""The squares of their distances, :math:`\sum_k \log^2\lambda_k/\theta^2`."""
        return log_squares(self._points, self._known)[..., None] / self.space.theta**2

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian, a constant: a logarithm has the eigenvectors of the matrix."""
        values, U = self._known
        stop = backend_of(values).stop_gradient
        X, decomposed = stop(self._logarithms), (namespace_of(values).log(values), U)
        hessian: Hessian = self.space.hessian_of(X, stop(weights), lambda: decomposed)
        return hessian

    def standardize(self, factor: Array, bias: Array | None) -> Array:
        """Return the powers, and carry them to the bias."""
        t = scalars_like(factor, self.x)
        (z,) = symmetric_functions(self._points, POWER, t=t, known=self._known)
        return symmetric(z) if bias is None else self.space.add(bias, z)


# ---------------------------------------------------------------------- on the manifold or off it


def _definiteness(x: Array) -> tuple[Array, Array, Array]:
    """Return of each matrix the smallest eigenvalue, the largest, and whether that is too small.

    The largest is that of the absolute values if none is positive; a matrix that is not finite
    counts as the identity.
    """
    xp = namespace_of(x)
    A, _ = finite_or_identity(backend_of(x).stop_gradient(x))
    values = xp.linalg.eigvalsh(symmetric(A))
    low, high = values[..., 0], values[..., -1]
    bad = low <= x.shape[-1] * xp.finfo(x.dtype).eps * high
    return low, xp.where(high > 0, high, -low), bad


def violation(x: Array) -> Array:
    """Return the relative asymmetry or, if larger, what is missing to be positive definite."""
    xp = namespace_of(x)
    low, _, bad = _definiteness(x)
    size = xp.max(xp.abs(x), axis=(-2, -1))
    some = xp.where(size > 0, size, 1.0)
    asymmetry = xp.max(xp.abs(x - transpose(x)), axis=(-2, -1)) / some
    missing = 2.0 * xp.finfo(x.dtype).eps ** 0.5 + xp.abs(low) / some
    found = xp.maximum(asymmetry, xp.where(bad, missing, 0.0))
    return xp.where(xp.isfinite(size), found, xp.inf)


def _floor_quotient(x: Array, y: Array, t: Array) -> Array:
    """Return (max(x, t) − max(y, t))/(x − y)."""
    xp = namespace_of(x)
    high, low = xp.maximum(x, y), xp.minimum(x, y)
    across = xp.logical_and(high > t, low < t)
    part = (high - t) / xp.where(across, high - low, 1.0)
    return xp.where(across, part, xp.where(low >= t, 1.0, 0.0))


FLOOR = Spectral(
    lambda x, t: namespace_of(x).maximum(x, t),
    _floor_quotient,
    lambda x, t: namespace_of(x).where(x < t, 1.0 + 0.0 * x, 0.0),
)


def nearest(x: Array) -> Array:
    """Return the symmetric part, eigenvalues raised to √eps of the largest if one is too small."""
    xp = namespace_of(x)
    _, high, bad = _definiteness(x)
    if not backend_of(x).hides_values(x) and not bool(xp.any(bad)):
        return symmetric(x)
    A = xp.where((high > 0)[..., None, None], symmetric(x), eye(x))
    (raised,) = symmetric_functions(A, FLOOR, t=xp.finfo(x.dtype).eps ** 0.5 * high)
    return xp.where(bad[..., None, None], raised, A)
