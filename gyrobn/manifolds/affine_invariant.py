"""The affine-invariant metric on SPD matrices; ``SPD`` computes in this space."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Self

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.centred_matrices import CentredMatrices
from gyrobn.manifolds.definite import Definite
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.turned import Turned
from gyrobn.numerics.arrays import (
    Totals,
    check_coordinates,
    scalars_like,
    sum_samples,
    together,
    weighted_sum,
)
from gyrobn.numerics.decompositions import cholesky, eigh, finite_or_identity, warn_of_lost_digits
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.linalg import logarithm, symmetric_function, symmetric_functions
from gyrobn.numerics.matrices import congruence, matmul, pack, symmetric, transpose, unpack
from gyrobn.numerics.scalar import safe_sqrt
from gyrobn.numerics.spectra import mean_curvature
from gyrobn.numerics.spectral import EXP, INVERSE, INVERSE_ROOT, POWER, ROOT


@dataclass(frozen=True)
class AffineInvariant(Definite, GyroSpace):
    r"""SPD matrices with the affine-invariant metric over θ², in which :class:`SPD` computes.

    .. math:: \langle u, v \rangle_P = \tfrac1{\theta^2}\operatorname{tr}(P^{-1} u P^{-1} v),
              \qquad P \oplus Q = R\,Q\,R^\top

    where :math:`R = P^{1/2}` or, with ``cholesky``, the Cholesky factor of P; then ⊕ is a group.
    Points must be symmetric: only the lower triangle of a matrix is read.
    """

    n: int
    cholesky: bool = False
    theta: float = 1.0

    drifts: ClassVar[bool] = False  # a mean is the product of a matrix and its transpose
    _view: ClassVar[type[CentredMatrices]] = CentredMatrices

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
        """Whether the translation is by the square root; the group is not commutative."""
        return not self.cholesky

    @property
    def gyrovector(self) -> bool:
        """Whether the translation is by the square root; else powers of P are no subgroup."""
        return not self.cholesky

    # ------------------------------------------------------------------ gyro operations

    def _root(self, x: Array) -> Array:
        return cholesky(x) if self.cholesky else symmetric_function(x, ROOT)

    def _back(self, x: Array) -> Array:
        """Return the inverse of the root."""
        if self.cholesky:
            return namespace_of(x).linalg.inv(cholesky(x))
        return symmetric_function(x, INVERSE_ROOT)

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
        return symmetric_function(x, INVERSE)

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
        x, y, t = self._from_nearer_end(x, y, t)
        view = self._view(self, x, y)
        return view.carried(view.root, t)

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias."""
        self._namespace(x, mean)
        return self._view(self, mean, x).standardize(factor, bias)

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
        return symmetric_function(self._matrix(c), EXP)

    def _matrix(self, c: Array) -> Array:
        """Return the logarithm that normal coordinates stand for."""
        X = unpack(c, self.n)
        return X if self.theta == 1.0 else self.theta * X

    def _turn(self, x: Array, y: Array) -> Array:
        """Return the orthogonal matrix O of the gyration of x and y."""
        return matmul(self._back(self.add(x, y)), self._root(x), self._root(y))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        r"""Gyration :math:`O Z O^\top`, :math:`O = (P \oplus Q)^{-1/2} P^{1/2} Q^{1/2}`.

        In the group it is the identity, and z is returned.
        """
        self._namespace(x, y, z)
        if self.cholesky:
            return z + 0.0 * (x + y)
        return congruence(self._turn(x, y), z)

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return c if self.cholesky else pack(congruence(self._turn(x, y), unpack(c, self.n)))

    def _certain(self, x: Array, y: Array) -> CentredMatrices:
        """Return the view of y from x; warn if rounding leaves it no certain digit."""
        self._namespace(x, y)
        view = self._view(self, x, y)
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
        view = self._view(self, x, y)
        return congruence(matmul(view.root, view.power(0.5), view.back), v)

    # ------------------------------------------------------------------ the mean

    def start(self, x: Array, weights: Array, total: Totals = together) -> Array:
        """Return a first guess of the mean: the arithmetic mean, rescaled to the right determinant.

        The determinant of the mean is the geometric mean of the determinants of the samples. So
        the guess has the right determinant, and the steps of the loop keep it.
        """
        xp = self._namespace(x)
        mean = sum_samples(weights[..., None, None] * x)
        mean, wanted = total(mean, weighted_sum(weights, xp.linalg.slogdet(x)[1]))
        excess = wanted - xp.linalg.slogdet(mean)[1]
        excess = xp.where(excess > -xp.inf, excess, 0.0)  # -inf if a sample is singular
        return xp.exp((1.0 / self.n) * excess)[..., None, None] * mean

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Return the mean of :math:`V \mapsto U(K \circ (U^\top V U))U^\top`.

        U and λ are eigenvectors and eigenvalues of :math:`\log P = \theta C`, and
        :math:`K_{ij} = a\coth a` with :math:`a = (\lambda_i - \lambda_j)/2`.
        """
        known = cache(lambda: eigh(self._matrix(c), exact=True))
        return Turned(self.n, weights, known, lambda: mean_curvature(known().values)).hessian()

    def resolution(self, x: Array) -> Array:
        """Return how far rounding moves samples seen from P: about κ(P)/8 ulps."""
        self._namespace(x)
        A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
        return self._resolution(namespace_of(x).linalg.eigvalsh(A))

    def _resolution(self, values: Array) -> Array:
        """Return the resolution from the eigenvalues of P."""
        xp = namespace_of(values)
        eps, high = float(xp.finfo(values.dtype).eps), values[..., -1]
        condition = high / xp.maximum(values[..., 0], eps * high)
        ulps = 0.5 * self.n + self.n**2 / 256  # measured, as is the factor of the condition
        return (eps / abs(self.theta)) * (ulps + 0.125 * condition)
