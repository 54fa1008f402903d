"""SPD matrices with the affine-invariant metric: the space in which ``SPD`` computes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, Self

from gyrobn.arrays import check_coordinates, check_size, samples_last, scalars_like, weighted_sum
from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.centred import Decomposed
from gyrobn.gyrospace import GyroSpace
from gyrobn.hessian import Hessian
from gyrobn.linalg import (
    Eigen,
    cholesky,
    congruence,
    eigh,
    eye,
    finite_or_identity,
    framed_functions,
    log_squares,
    logarithm,
    matmul,
    pack,
    spectrum_of,
    symmetric,
    symmetric_functions,
    transpose,
    unpack,
    warn_of_lost_digits,
)
from gyrobn.scalar import cotangent, safe_sqrt
from gyrobn.spectral import (
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
        return congruence(view.frame.root, view.power(t))

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

    def centred(self, mean: Array, x: Array, seen: tuple[Array, ...] = ()) -> "_CentredMatrices":
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
        return congruence(self._root(x), self.theta * unpack(c, self.n))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        self._namespace(x, v)
        return pack(congruence(self._back(x), v)) / self.theta

    def log(self, x: Array, y: Array) -> Array:
        r"""Logarithm :math:`R_P \log(R_P^{-1} Q R_P^{-\top}) R_P^\top`."""
        view = self._certain(x, y)
        return congruence(view.frame.root, view.logarithms)

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport :math:`E\,v\,E^\top`, :math:`E = (Q P^{-1})^{1/2}`, from P to Q.

        .. math:: E = P^{1/2}(P^{-1/2} Q P^{-1/2})^{1/2} P^{-1/2}
        """
        self._namespace(x, y, v)
        view = self.centred(x, y)
        return congruence(matmul(view.frame.root, view.power(0.5), view.frame.back), v)

    # ------------------------------------------------------------------ the mean

    def start(self, x: Array, weights: Array) -> Array:
        """First guess of the mean: the arithmetic mean, over what its determinant is too large.

        The mean's determinant is the geometric mean of the samples'; no step changes it any more.
        """
        xp = self._namespace(x)
        mean = weighted_sum(weights, x)
        size = xp.linalg.trace(mean)[..., None, None] / self.n  # determinants of any matrix fit
        wanted = weighted_sum(weights, xp.linalg.slogdet(x / size)[1])
        excess = wanted - xp.linalg.slogdet(mean / size)[1]
        return xp.exp(xp.where(xp.isfinite(excess), excess, 0.0) / self.n)[..., None, None] * mean

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Return the mean of :math:`V \mapsto U(K \circ (U^\top V U))U^\top`.

        U and λ are eigenvectors and eigenvalues of :math:`\log P = \theta C`, and
        :math:`K_{ij} = a\coth a` with :math:`a = (\lambda_i - \lambda_j)/2`.
        """
        X = self.theta * unpack(c, self.n)

        def decomposition() -> tuple[Array, Array]:
            logs, U = eigh(X, exact=True)
            return mean_curvature(logs), U

        return self.hessian_of(X, weights, decomposition)

    def hessian_of(
        self,
        X: Array,
        weights: Array,
        decomposition: Callable[[], tuple[Array, Array]],
        turn: Array | None = None,
    ) -> Hessian:
        """Return the Hessian for the logarithms X, from a function that returns their K and U.

        They may be given in another frame: ``turn`` then leads from it to that of the coordinates.
        """
        xp = namespace_of(X)
        n = self.n
        w = samples_last(weights)

        @cache
        def spectrum() -> tuple[Array, ...]:
            K, U = (samples_last(a, 2) for a in decomposition())
            # all samples beside each other: what meets all of them is then one large product
            k = U.ndim - 3
            between = xp.permute_dims(U, (*range(k), k + 1, k, k + 2))
            wide = xp.reshape(between, (*U.shape[:-3], 1, n, U.shape[-3] * n))
            return w[..., None, None] * K, U, wide

        def apply(v: Array) -> Array:
            """Take columns (*channels, dim, k) as matrices, and give each to all samples."""
            K, U, wide = spectrum()
            V = unpack(transpose(v), n)
            if turn is not None:
                V = matmul(transpose(turn)[..., None, :, :], V, turn[..., None, :, :])
            many, flat = (*V.shape[:-2], U.shape[-3], n, n), (*V.shape[:-2], wide.shape[-1], n)
            inner = matmul(xp.reshape(matmul(transpose(wide), V), many), U[..., None, :, :, :])
            outer = matmul(K[..., None, :, :, :] * inner, transpose(U)[..., None, :, :, :])
            total = matmul(wide, xp.reshape(outer, flat))
            if turn is not None:
                total = matmul(turn[..., None, :, :], total, transpose(turn)[..., None, :, :])
            return transpose(pack(symmetric(total)))

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


class Frame(NamedTuple):
    r"""How a matrix M sees others: from its eigenvectors U, and turned to its translation.

    Seen from M, a matrix P is :math:`C = B P B^\top` with :math:`B = \Lambda^{-1/2}U^\top`, and
    :math:`K C K^\top = R_M^{-1} P R_M^{-\top}` for an orthogonal K. If M and P have condition
    numbers κ, that of C may be κ². With B its entries are *graded*, from large to small, as the
    eigenvalues of M grow, and the eigenvalues of a graded matrix have all the digits that P and M
    determine, about εκ; with :math:`M^{-1/2}` in place of B those below εκ² would be lost.
    """

    turn: Array
    """K: U itself for the square root."""
    back: Array
    """B."""
    root: Array
    r"""The inverse of B, :math:`U\Lambda^{1/2}`; :math:`K B = R_M^{-1}`."""


class _CentredMatrices(Decomposed):
    """Matrices P as they are seen from the mean, decomposed once."""

    def _recall(  # type: ignore[override]
        self, logarithms: Array, values: Array, W: Array, of_mean: Array, U: Array
    ) -> None:
        self.logarithms, self._known = logarithms, Eigen(values, W)
        self._known_mean = Eigen(of_mean[0, ...], U[0, ...])

    @property
    def seen(self) -> tuple[Array, ...]:
        """Logarithms, their decompositions, and that of the mean."""
        values, U = self._known_mean
        return (self.logarithms, *self._known, values[None, ...], U[None, ...])

    def moved(self, mean: Array) -> Self:
        """Return the samples seen from a mean of the same value: with the same decompositions."""
        moved = super().moved(mean)
        moved._known_mean = self._known_mean
        return moved

    @cached_property
    def _known_mean(self) -> Eigen:
        return eigh(backend_of(self.mean).stop_gradient(self.mean), exact=True)

    @cached_property
    def frame(self) -> Frame:
        """What the mean sees others by."""
        root, back = framed_functions(self.mean, self._known_mean, ROOT, INVERSE_ROOT)
        turn = self._known_mean[1]
        if self.space.cholesky:
            turn = matmul(self.space._back(self.mean), root)
        return Frame(turn, transpose(back), root)

    @cached_property
    def _points(self) -> Array:
        back = self.frame.back
        return matmul(back, self.x, transpose(back))

    @cached_property
    def _known(self) -> Eigen:
        return eigh(backend_of(self.x).stop_gradient(self._points), exact=True)

    @property
    def uncertainty(self) -> Array:
        r"""Relative change of the smallest eigenvalue λ of C if P and M are rounded.

        With its eigenvector w it is :math:`\varepsilon\,(\|P\|/\lambda + \|M\|)\,\|B^\top w\|^2`.
        """
        xp = namespace_of(self.x)
        values, W = self._known
        v = matmul(transpose(self.frame.back), W[..., :, :1])
        size = xp.max(xp.abs(self.x), axis=(-2, -1)) / xp.abs(values[..., 0])
        size = size + self._known_mean[0][..., -1]
        return float(xp.finfo(v.dtype).eps) * size * xp.sum(v * v, axis=(-2, -1))

    @cached_property
    def logarithms(self) -> Array:
        """Their logarithms in the frame of the mean."""
        return symmetric_functions(self._points, LOG, known=self._known)[0]

    def power(self, t: Array | float) -> Array:
        """Return their powers in the frame of the mean."""
        t = scalars_like(t, self.x)
        return symmetric_functions(self._points, POWER, t=t, known=self._known)[0]

    @cached_property
    def normal(self) -> Array:
        """Their normal coordinates."""
        return pack(congruence(self.frame.turn, self.logarithms)) / self.space.theta

    def gradient(self, weights: Array) -> Array:
        """Return the mean logarithm."""
        X = weighted_sum(weights, self.logarithms)
        return pack(congruence(self.frame.turn, X)) / self.space.theta

    @cached_property
    def squares(self) -> Array:
        r"""The squares of their distances, :math:`\sum_k \log^2\lambda_k/\theta^2`."""
        return log_squares(self._points, self._known)[..., None] / self.space.theta**2

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian, a constant: a logarithm has the eigenvectors of the matrix."""
        stop = backend_of(self.x).stop_gradient
        turn = stop(self.frame.turn)
        hessian: Hessian = self.space.hessian_of(
            stop(self.logarithms),
            stop(weights),
            lambda: (spectrum_of(self._known).pairs.curvature, self._known.vectors),
            turn,
        )
        return hessian

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Return the powers, and carry them to the bias."""
        turn = self.frame.turn
        root = turn if bias is None else matmul(self.space._root(bias), turn)
        return congruence(root, self.power(factor))


# ---------------------------------------------------------------------- on the manifold or off it


def _definiteness(x: Array) -> tuple[Array, Array, Array]:
    """Return of each matrix the smallest eigenvalue, the largest, and whether that is too small.

    The largest is that of the absolute values if none is positive; a matrix that is not finite
    counts as the identity.
    """
    xp = namespace_of(x)
    A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
    values = xp.linalg.eigvalsh(A)
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
    _, high, bad = _definiteness(x)
    if not backend_of(x).hides_values(x) and not bool(xp.any(bad)):
        return symmetric(x)
    A = xp.where((high > 0)[..., None, None], symmetric(x), eye(x))
    (raised,) = symmetric_functions(A, FLOOR, t=xp.finfo(x.dtype).eps ** 0.5 * high)
    return xp.where(bad[..., None, None], raised, A)
