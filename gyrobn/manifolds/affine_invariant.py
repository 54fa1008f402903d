"""SPD matrices with the affine-invariant metric: the space in which ``SPD`` computes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Self

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds import eigenbasis
from gyrobn.manifolds.centred import Decomposed
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import (
    Totals,
    check_coordinates,
    samples_last,
    scalars_like,
    sum_samples,
    surely,
    together,
    weighted_gram,
    weighted_sum,
)
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.linalg import (
    Eigen,
    cholesky,
    congruence,
    eigh,
    eye,
    finite_or_identity,
    framed_functions,
    kept_eye,
    logarithm,
    matmul,
    mean_of_turned,
    pack,
    spectrum_of,
    surely_definite,
    symmetric,
    symmetric_functions,
    transpose,
    unpack,
    warn_of_lost_digits,
)
from gyrobn.numerics.scalar import cotangent, safe_sqrt
from gyrobn.numerics.spectral import (
    EXP,
    INVERSE,
    INVERSE_ROOT,
    LOG,
    POWER,
    ROOT,
    Pairs,
    Spectral,
    mean_curvature,
)

__all__ = [
    "AffineInvariant",
    "contains",
    "nearest",
    "violation",
]

DENSE, ENTRIES = 36, 2**17
"""A Hessian is formed up to this dimension, if there are not more numbers in one per sample."""


@dataclass(frozen=True)
class AffineInvariant(GyroSpace):
    r"""SPD matrices with the affine-invariant metric over θ², for :class:`SPD` to compute in.

    .. math:: \langle u, v \rangle_P = \tfrac1{\theta^2}\operatorname{tr}(P^{-1} u P^{-1} v),
              \qquad P \oplus Q = R\,Q\,R^\top

    where :math:`R = P^{1/2}` or, with ``cholesky``, the Cholesky factor of P: then ⊕ is a group.
    Points are symmetric; of others, the lower triangle would count.
    """

    n: int
    cholesky: bool = False
    theta: float = 1.0

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
        return cholesky(x) if self.cholesky else _function(x, ROOT)

    def _back(self, x: Array) -> Array:
        """Return the inverse of the root."""
        if self.cholesky:
            return namespace_of(x).linalg.inv(cholesky(x))
        return _function(x, INVERSE_ROOT)

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
        return _function(x, INVERSE)

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus P \oplus Q = R_P^{-1}\, Q\, R_P^{-\top}`."""
        self._namespace(x, y)
        return congruence(self._back(x), y)

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`R_P \exp(\theta C) R_P^\top`."""
        return self.add(x, self.from_normal(c))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus P \oplus Q`."""
        return self._certain(x, y).normal

    def dist(self, x: Array, y: Array) -> Array:
        r"""Distance :math:`\|\log(P^{-1/2} Q P^{-1/2})\|/|\theta|`."""
        return safe_sqrt(self._certain(x, y).squares[..., 0])

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`R_P (R_P^{-1} Q R_P^{-\top})^t R_P^\top`."""
        self._namespace(x, y)
        view = self.centred(x, y)
        return view.carried(view.root, t)

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias."""
        self._namespace(x, mean)
        return self.centred(mean, x).standardize(factor, bias)

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication :math:`P^t`."""
        self._namespace(x)
        return symmetric_functions(x, POWER, t=scalars_like(t, x))[0]

    def to_normal(self, x: Array) -> Array:
        r"""Lower triangle of :math:`\log(P)/\theta`, times :math:`\sqrt2` off the diagonal."""
        self._namespace(x)
        return pack(logarithm(x)) / self.theta

    def from_normal(self, c: Array) -> Array:
        r"""Inverse of :meth:`to_normal`: :math:`\exp(\theta C)`."""
        check_coordinates(self, c)
        return _function(self._matrix(c), EXP)

    def _matrix(self, c: Array) -> Array:
        """Return the logarithm that normal coordinates stand for."""
        X = unpack(c, self.n)
        return X if self.theta == 1.0 else self.theta * X

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

    def centred(
        self, mean: Array, x: Array, seen: tuple[Array, ...] = (), known: tuple[Array, ...] = ()
    ) -> "_CentredMatrices":
        """Return the samples seen from the mean, with one eigendecomposition each."""
        return _CentredMatrices(self, mean, x, seen)

    def _certain(self, x: Array, y: Array) -> "_CentredMatrices":
        """Return y seen from x, with a warning if rounding decides what is seen."""
        self._namespace(x, y)
        view = self.centred(x, y)
        warn_of_lost_digits(view.uncertainty)
        return view

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Carry normal coordinates to a tangent vector at P: :math:`\theta R_P\, C\, R_P^\top`.

        By parallel transport if R is the square root, by the group's translation otherwise.
        """
        self._namespace(x)
        return congruence(self._root(x), self._matrix(c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        self._namespace(x, v)
        return pack(congruence(self._back(x), v)) / self.theta

    def log(self, x: Array, y: Array) -> Array:
        r"""Logarithm :math:`R_P \log(R_P^{-1} Q R_P^{-\top}) R_P^\top`."""
        view = self._certain(x, y)
        return congruence(view.root, view.logarithms)

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport :math:`E\,v\,E^\top`, :math:`E = (Q P^{-1})^{1/2}`, from P to Q.

        .. math:: E = P^{1/2}(P^{-1/2} Q P^{-1/2})^{1/2} P^{-1/2}
        """
        self._namespace(x, y, v)
        view = self.centred(x, y)
        return congruence(matmul(view.root, view.power(0.5), view.back), v)

    # ------------------------------------------------------------------ the mean

    def start(self, x: Array, weights: Array, total: Totals = together) -> Array:
        """First guess of the mean: the arithmetic mean, over what its determinant is too large.

        The mean's determinant is the geometric mean of the samples'; no step changes it any more.
        """
        xp = self._namespace(x)
        mean = sum_samples(weights[..., None, None] * x)
        mean, wanted = total(mean, weighted_sum(weights, xp.linalg.slogdet(x)[1]))
        excess = wanted - xp.linalg.slogdet(mean)[1]
        excess = xp.where(excess > -xp.inf, excess, 0.0)  # a sample may be singular
        return xp.exp((1.0 / self.n) * excess)[..., None, None] * mean

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Return the mean of :math:`V \mapsto U(K \circ (U^\top V U))U^\top`.

        U and λ are eigenvectors and eigenvalues of :math:`\log P = \theta C`, and
        :math:`K_{ij} = a\coth a` with :math:`a = (\lambda_i - \lambda_j)/2`.
        """
        known = cache(lambda: eigh(self._matrix(c), exact=True))
        return self.hessian_of(weights, known, lambda: mean_curvature(known().values))

    def hessian_of(
        self,
        weights: Array,
        decomposition: Callable[[], tuple[Array, Array]],
        curvature: Callable[[], Array],
        turn: Array | None = None,
    ) -> Hessian:
        """Return the Hessian, from functions that return λ and U, and K.

        They may be given in another frame: ``turn`` then leads from it to that of the coordinates.
        """
        xp = namespace_of(weights)
        n = self.n
        w = samples_last(weights)

        @cache
        def spectrum(dtype: Any) -> tuple[Array, ...]:
            K, (_, U) = curvature(), decomposition()
            K, U = (xp.astype(samples_last(a, 2), dtype, copy=False) for a in (K, U))
            # all samples beside each other: what meets all of them is then one large product
            k = U.ndim - 3
            between = xp.permute_dims(U, (*range(k), k + 1, k, k + 2))
            wide = xp.reshape(between, (*U.shape[:-3], 1, n, U.shape[-3] * n))
            return xp.astype(w, dtype, copy=False)[..., None, None] * K, U, wide

        def apply(v: Array, dtype: Any = weights.dtype) -> Array:
            """Take columns (*channels, dim, k) as matrices, and give each to all samples."""
            K, U, wide = spectrum(dtype)
            V = unpack(transpose(v), n)
            if turn is not None:
                V = matmul(transpose(turn)[..., None, :, :], V, turn[..., None, :, :])
            V = xp.astype(V, dtype, copy=False)
            many, flat = (*V.shape[:-2], U.shape[-3], n, n), (*V.shape[:-2], wide.shape[-1], n)
            inner = matmul(xp.reshape(matmul(transpose(wide), V), many), U[..., None, :, :, :])
            outer = matmul(K[..., None, :, :, :] * inner, transpose(U)[..., None, :, :, :])
            total = xp.astype(matmul(wide, xp.reshape(outer, flat)), v.dtype, copy=False)
            if turn is not None:
                total = matmul(turn[..., None, :, :], total, transpose(turn)[..., None, :, :])
            return transpose(pack(symmetric(total)))

        def rough(v: Array) -> Array:
            size = xp.max(xp.abs(v), axis=-2, keepdims=True)  # float32 has a smaller range
            size = xp.where(size > 0, size, 1.0)
            return size * apply(v / size, xp.float32)

        def highest() -> Array:
            # a coth a is an operator concave function of a² (a sum of a²/(a² + k²π²)): its mean is
            # at most its value at the mean a², and that is at most the mean X²
            logs, U = decomposition()
            off = logs - xp.mean(logs, axis=-1, keepdims=True)
            mean = weighted_gram(weights[..., None] * off * off, transpose(U))
            values, _ = eigh(mean, exact=True)
            return cotangent(-values[..., -1], -1)

        def matrix() -> Array:
            K, (_, U) = curvature(), decomposition()
            return mean_of_turned(K, U if turn is None else matmul(turn, U), weights)

        one = lambda: xp.sum(w, axis=-1)  # noqa: E731
        small = math.prod(weights.shape) * self.dim**2 <= ENTRIES
        dense = DENSE if small else 0
        return Hessian(
            *(apply, one, highest),
            rough=rough if weights.dtype == xp.float64 else None,
            matrix=matrix,
            dense=dense,
            at_least_one=True,
            smooth=False,
        )

    def resolution(self, x: Array) -> Array:
        """Distance that rounding moves samples seen from P: an eighth of its condition, in ulps."""
        self._namespace(x)
        A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
        return self._resolution(namespace_of(x).linalg.eigvalsh(A))

    def _resolution(self, values: Array) -> Array:
        """Return the resolution from the eigenvalues of P."""
        xp = namespace_of(values)
        eps, high = float(xp.finfo(values.dtype).eps), values[..., -1]
        condition = high / xp.maximum(values[..., 0], eps * high)
        ulps = 0.5 * self.n + self.n**2 / 256  # measured, as is the rest
        return (eps / abs(self.theta)) * (ulps + 0.125 * condition)

    def project(self, x: Array) -> Array:
        """Return the symmetric part, its eigenvalues raised if it is not positive definite."""
        self._namespace(x)
        return nearest(x)

    def violation(self, x: Array) -> Array:
        """Return the largest of asymmetry and lack of definiteness, relative to the size."""
        self._namespace(x)
        return violation(x)

    def contains(self, x: Array) -> Array:
        """Tell whether matrices are symmetric and positive definite."""
        self._namespace(x)
        return contains(x)


class _CentredMatrices(Decomposed):
    r"""Matrices P as they are seen from the mean M, decomposed once.

    They are seen from the eigenvectors U of M: P is :math:`C = B P B^\top` with
    :math:`B = \Lambda^{-1/2}U^\top`, and :math:`K C K^\top = R_M^{-1} P R_M^{-\top}` for an
    orthogonal K. If M and P have condition numbers κ, that of C may be κ². With B its entries are
    *graded*, from large to small, as the eigenvalues of M grow, and the eigenvalues of a graded
    matrix have all the digits that P and M determine, about εκ; with :math:`M^{-1/2}` in place of B
    those below εκ² would be lost.
    """

    def _recall(  # type: ignore[override]
        self, values: Array, W: Array, of_mean: Array, U: Array
    ) -> None:
        self._known, self._known_mean = Eigen(values, W), Eigen(of_mean[0, ...], U[0, ...])

    @property
    def seen(self) -> tuple[Array, ...]:
        """The decompositions of the samples, and that of the mean."""
        values, U = self._known_mean
        return (*self._known, values[None, ...], U[None, ...])

    @property
    def decompositions(self) -> tuple[Array, ...]:
        """Those of the samples and of the mean."""
        return (*self._known, *self._known_mean)

    def _know(self, *arrays: Array) -> None:
        self._known, self._known_mean = Eigen(*arrays[:2]), Eigen(*arrays[2:])

    def _share(self, other: Self) -> None:
        self._known, self._known_mean = other._known, other._known_mean

    @cached_property
    def _known_mean(self) -> Eigen:
        return eigh(backend_of(self.mean).stop_gradient(self.mean), exact=True)

    @cached_property
    def back(self) -> Array:
        """B."""
        return transpose(framed_functions(self.mean, self._known_mean, INVERSE_ROOT)[0])

    @cached_property
    def root(self) -> Array:
        r"""The inverse of B, :math:`U\Lambda^{1/2}`."""
        return framed_functions(self.mean, self._known_mean, ROOT)[0]

    @cached_property
    def turn(self) -> Array:
        r"""K, with :math:`K B = R_M^{-1}`: U itself for the square root."""
        if self.space.cholesky:
            return matmul(self.space._back(self.mean), self.root)
        return self._known_mean.vectors

    @property
    def image(self) -> tuple[Array, ...]:
        """What stands for the changes of the matrices C."""
        return (self._change,)

    def showing(self, change: Array) -> Self:
        """Take such an array as the image."""
        self._change = change
        return self

    @cached_property
    def _change(self) -> Array:
        """The change of C in its eigenbasis, by those of P and M."""
        shim = backend_of(self.x)
        back, root = (shim.stop_gradient(a) for a in (self.back, self.root))
        by_point = eigenbasis.change_by_matrix(self.x, back, self._known)
        if not shim.differentiable(self.mean):
            return by_point
        return by_point + eigenbasis.change_by_frame(self.back, root, self._known)

    @cached_property
    def _known(self) -> Eigen:
        stop = backend_of(self.x).stop_gradient
        back = stop(self.back)
        return eigh(matmul(back, stop(self.x), transpose(back)), exact=True)

    @property
    def uncertainty(self) -> Array:
        r"""Relative change of the smallest eigenvalue λ of C if P and M are rounded.

        With its eigenvector w it is :math:`\varepsilon\,(\|P\|/\lambda + \|M\|)\,\|B^\top w\|^2`.
        """
        xp = namespace_of(self.x)
        values, W = self._known
        v = matmul(transpose(self.back), W[..., :, :1])
        size = xp.max(xp.abs(self.x), axis=(-2, -1)) / xp.abs(values[..., 0])
        size = size + self._known_mean.values[..., -1]
        return float(xp.finfo(v.dtype).eps) * size * xp.sum(v * v, axis=(-2, -1))

    @cached_property
    def logarithms(self) -> Array:
        """Their logarithms in the frame of the mean."""
        return eigenbasis.function(self._change, self._known, LOG)

    def power(self, t: float) -> Array:
        """Return their powers in the frame of the mean."""
        return eigenbasis.function(self._change, self._known, POWER, t)

    def carried(self, R: Array, t: Array | float) -> Array:
        r"""Return :math:`R\,C^t R^\top`."""
        return eigenbasis.carried(self._change, self._known, R, self._number(t))

    def _number(self, t: Array | float) -> Array:
        t = scalars_like(t, self.x)
        if not isinstance(t, (int, float)):
            return t
        return namespace_of(self.x).full((), t, dtype=self.x.dtype, device=device_of(self.x))

    @cached_property
    def normal(self) -> Array:
        """Their normal coordinates."""
        return self._coordinates(self.logarithms)

    def _coordinates(self, X: Array) -> Array:
        c = pack(matmul(self.turn, X, transpose(self.turn)))
        return c if self.space.theta == 1.0 else c / self.space.theta

    def gradient(self, weights: Array) -> Array:
        """Return the mean logarithm."""
        return self._coordinates(eigenbasis.mean_logarithm(self._change, weights, self._known))

    @cached_property
    def squares(self) -> Array:
        r"""The squares of their distances, :math:`\sum_k \log^2\lambda_k/\theta^2`."""
        squares = eigenbasis.log_squares(self._change, self._known)[..., None]
        return squares if self.space.theta == 1.0 else squares / self.space.theta**2

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian, a constant: a logarithm has the eigenvectors of the matrix."""
        stop = backend_of(self.x).stop_gradient

        spectrum, U = spectrum_of(self._known), self._known.vectors
        hessian: Hessian = self.space.hessian_of(
            stop(weights),
            lambda: (spectrum.log, U),
            lambda: spectrum.pairs.curvature,
            stop(self.turn),
        )
        return hessian

    def shift(self, c: Array) -> Array:
        r"""Return :math:`M \oplus \operatorname{Exp}_e(c)` from the decomposition of the mean.

        It is the square of :math:`B^{-1} K^\top \exp(\theta C/2)`, so positive definite if the
        floats allow it: no projection is needed.
        """
        half = _function(0.5 * self.space._matrix(c), EXP)
        return _square(matmul(self._translation, half))

    def push(self, step: Array) -> Array:
        """Return a small step from the mean as a tangent vector there."""
        R = self._translation
        return matmul(R, self.space._matrix(step), transpose(R))

    @property
    def _translation(self) -> Array:
        r"""The root of the mean: :math:`R_M = B^{-1} K^\top`."""
        return matmul(self.root, transpose(self.turn))

    def resolutions(self, weights: Array) -> Array:
        r"""Return how far rounding moves the mean.

        By the resolution of the mean; and as it moves the samples, of condition κ, which errs by
        :math:`\varepsilon\sqrt{\sum_i w_i^2\kappa_i^2}`, of which this is a quarter.
        """
        xp, values = namespace_of(self.x), self._known.values
        conditions = weights * (values[..., -1] / values[..., 0])
        of_samples = xp.linalg.vector_norm(conditions, axis=0)
        eps = float(xp.finfo(values.dtype).eps)
        of_mean: Array = self.space._resolution(self._known_mean.values)
        return (of_mean + (0.25 * eps / abs(self.space.theta)) * of_samples)[..., None]

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Return the powers, and carry them to the bias."""
        R = self.turn if bias is None else matmul(self.space._root(bias), self.turn)
        return self.carried(R, factor)


def _square(Y: Array) -> Array:
    return matmul(Y, transpose(Y))


def _function(x: Array, f: Spectral) -> Array:
    """Return f of symmetric matrices."""
    known = eigh(backend_of(x).stop_gradient(x), exact=True)
    return symmetric_functions(x, f, known=known)[0]


# ---------------------------------------------------------------------- on the manifold or off it


def _definiteness(x: Array) -> tuple[Array, Array, Array]:
    """Return of each matrix the smallest eigenvalue, the largest, and whether that is too small.

    The largest is that of the absolute values if none is positive; a matrix that is not finite
    counts as the identity.
    """
    A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
    return _extremes(namespace_of(x).linalg.eigvalsh(A))


def _extremes(values: Array) -> tuple[Array, Array, Array]:
    """Return what :func:`_definiteness` does, from the eigenvalues."""
    xp = namespace_of(values)
    low, high = values[..., 0], values[..., -1]
    bad = low <= values.shape[-1] * float(xp.finfo(values.dtype).eps) * high
    return low, xp.where(high > 0, high, -low), bad


def contains(x: Array) -> Array:
    """Tell which matrices have no :func:`violation` beyond half the digits.

    Where all of them have a Cholesky factor, no eigenvalue is computed.
    """
    xp, shim = namespace_of(x), backend_of(x)
    some = float(xp.finfo(x.dtype).eps) ** 0.5
    if shim.hides_values(x):
        return violation(x) <= some
    x = shim.stop_gradient(x)
    same = bool(xp.all(x == transpose(x)))
    if not surely_definite(x if same else symmetric(x)):
        return violation(x) <= some
    small = xp.isfinite(2.0 * xp.linalg.trace(x))  # no entry is larger than the trace
    if same and surely(small):
        return small
    off, size = _asymmetry(x)
    return xp.logical_and(off <= some, xp.isfinite(2.0 * size))


def _asymmetry(x: Array) -> tuple[Array, Array]:
    """Return the asymmetry of each matrix, relative to its size, and that."""
    xp = namespace_of(x)
    size = xp.max(xp.abs(x), axis=(-2, -1))
    some = xp.where(size > 0, size, 1.0)
    return xp.max(xp.abs(x - transpose(x)), axis=(-2, -1)) / some, size


def violation(x: Array) -> Array:
    """Return the relative asymmetry or, if larger, what is missing to be positive definite."""
    xp = namespace_of(x)
    low, _, bad = _definiteness(x)
    asymmetry, size = _asymmetry(x)
    some = xp.where(size > 0, size, 1.0)
    missing = 2.0 * xp.finfo(x.dtype).eps ** 0.5 + xp.abs(low) / some
    found = xp.maximum(asymmetry, xp.where(bad, missing, 0.0))
    return xp.where(xp.isfinite(2.0 * size), found, xp.inf)  # x + xᵀ must not overflow


def _floor_quotient(pairs: Pairs, t: Array) -> Array:
    """Return (max(x, t) − max(y, t))/(x − y)."""
    x, y = pairs.of("x")
    xp = namespace_of(x)
    high, low = xp.maximum(x, y), xp.minimum(x, y)
    across = xp.logical_and(high > t, low < t)
    part = (high - t) / xp.where(across, high - low, 1.0)
    return xp.where(across, part, xp.where(low >= t, 1.0, 0.0))


FLOOR = Spectral(
    lambda s, t: namespace_of(s.x).maximum(s.x, t),
    _floor_quotient,
    lambda s, t: namespace_of(s.x).where(s.x < t, 1.0 + 0.0 * s.x, 0.0),
)


def nearest(x: Array) -> Array:
    """Return the symmetric part, eigenvalues raised to √eps of the largest if one is too small."""
    xp = namespace_of(x)
    nothing = xp.max(xp.abs(x), axis=(-2, -1), keepdims=True) == 0
    A = xp.where(nothing, kept_eye(x), symmetric(x))
    known = eigh(backend_of(x).stop_gradient(A), exact=True)
    _, high, bad = _extremes(known.values)
    least = float(xp.finfo(x.dtype).eps) ** 0.5 * high
    (raised,) = symmetric_functions(A, FLOOR, t=least, known=known)
    return xp.where(bad[..., None, None], raised, A)
