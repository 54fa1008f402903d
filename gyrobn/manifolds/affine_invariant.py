"""The affine-invariant metric on SPD matrices; ``SPD`` computes in this space."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.definite import Definite, exponential
from gyrobn.numerics.arrays import (
    eps_of,
    safe_sqrt,
    scalars_like,
    sum_of_products,
)
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import (
    adjoint,
    cholesky,
    congruence,
    diagonal_matrix,
    finite_or_identity,
    identity,
    matmul,
    pack,
    packed_operator,
    symmetric,
    unpack,
    warn_of_lost_digits,
)
from gyrobn.numerics.matrix_functions import (
    EXP,
    EXPM1,
    INVERSE,
    INVERSE_ROOT,
    LOG,
    ROOT,
    Eigen,
    change,
    eigh,
    inner_function,
    matrix_frame,
    matrix_function,
    matrix_power,
)
from gyrobn.numerics.scalar import cotangent


class CentredMatrices(Centred):
    r"""Matrices P as seen from the mean M; each is decomposed once.

    The computation is in the eigenbasis U of M: P becomes :math:`C = F^\top P F` with
    :math:`F = U\Lambda^{-1/2}`, and :math:`K C K^\top = R_M^{-1} P R_M^{-\top}` for an orthogonal
    K. If M and P have the condition number κ, that of C may be κ². F makes C *graded*: its entries
    fall as the eigenvalues of M grow. The eigenvalues of a graded matrix keep all digits that P and
    M determine, up to an error of about εκ. With :math:`M^{-1/2}` instead of F, eigenvalues below
    εκ² would be lost.

    Everything follows from :attr:`logs`, the logarithm of C in the eigenbasis W of its value: it is
    diagonal, with derivatives off the diagonal.
    """

    saves, images = 4, 2

    def __init__(self, space: Any, mean: Array, x: Array, saved: Arrays = ()) -> None:
        super().__init__(space, mean, x)
        if saved:
            values, W, of_mean, U = saved
            self.eigen, self.eigen_of_mean = Eigen(values, W), Eigen(of_mean[0, ...], U[0, ...])

    @property
    def saved(self) -> Arrays:
        """The eigendecompositions of C, and that of the mean."""
        values, U = self.eigen_of_mean
        return (*self.eigen, values[None, ...], U[None, ...])

    @cached_property
    def eigen_of_mean(self) -> Eigen:
        """Eigenvalues and eigenvectors of the mean."""
        return eigh(self.mean)

    @cached_property
    def eigen(self) -> Eigen:
        """Eigenvalues and eigenvectors of C."""
        values, U = self.eigen_of_mean
        F = U * INVERSE_ROOT.value(values)[..., None, :]
        return eigh(matmul(adjoint(F), backend_of(self.x).stop_gradient(self.x), F))

    @cached_property
    def frame(self) -> Array:
        """F."""
        return matrix_frame(self.mean, INVERSE_ROOT, self.eigen_of_mean)

    @cached_property
    def root(self) -> Array:
        r"""The inverse of Fᵀ, :math:`U\Lambda^{1/2}`."""
        return matrix_frame(self.mean, ROOT, self.eigen_of_mean)

    @cached_property
    def rotation(self) -> Array:
        r"""K, with :math:`K F^\top = R_M^{-1}`: U itself for the square root."""
        if self.space.cholesky:
            return matmul(self.space._back(self.mean), self.root)
        return self.eigen_of_mean.vectors

    @cached_property
    def logs(self) -> Array:
        r"""The logarithm of C in the basis W: that of :math:`V^\top P V`, :math:`V = F W`."""

        def function(order: int, saved: Arrays, mean: Array, x: Array) -> Arrays:
            values, W, *of_mean = saved
            if order == 0:
                return (diagonal_matrix(LOG.value(values)),)
            V = matmul(matrix_frame(mean, INVERSE_ROOT, Eigen(*of_mean)), W)
            return (inner_function(LOG, values, change(matmul(adjoint(V), x, V)), order),)

        constants = *self.eigen, *self.eigen_of_mean
        return backend_of(self.x).differentiate(function, constants, self.mean, self.x)[0]

    @property
    def image(self) -> Arrays:
        """The logarithms, and K, which depends on the mean in the group."""
        return self.logs, self.rotation

    def showing(self, *image: Array) -> Self:
        """Take such arrays as the image, and return the view."""
        self.logs, self.rotation = image
        return self

    def followed(self, step: Array) -> Arrays:
        r"""Return the image if the mean moves by a step δ.

        In the basis U the step is :math:`\delta' = \theta K^\top\delta K`, and changes F by
        :math:`dF^\top F^{-\top} = G`, so that

        .. math:: G_{ij} = \frac{-\sqrt{\lambda_j}}{\sqrt{\lambda_i} + \sqrt{\lambda_j}}
                  \,\delta'_{ij}, \qquad dC = G C + C G^\top, \qquad dK = -\Phi K - K G .

        Φ is the lower triangle of θδ, its diagonal halved: :math:`L^{-1}dL` of the Cholesky factor.
        """
        xp, stop = namespace_of(step), backend_of(step).stop_gradient
        (values, W), K, X = self.eigen, stop(self.rotation), self.space._matrix(step)
        root = ROOT.value(self.eigen_of_mean.values)[..., None, :]
        G = -(root / (root + adjoint(root))) * matmul(adjoint(K), X, K)
        half = matmul(adjoint(W), G, W) * values[..., None, :]
        quotients = LOG.difference(values[..., :, None], values[..., None, :])
        logs = self.logs + quotients * (half + adjoint(half))
        if not self.space.cholesky:
            return logs, self.rotation
        Phi = 0.5 * (xp.tril(X) + xp.tril(X, k=-1))
        return logs, self.rotation - matmul(Phi, K) - matmul(K, G)

    @property
    def uncertainty(self) -> Array:
        r"""Relative error of the smallest eigenvalue λ of C that rounding P and M may cause.

        With its eigenvector w it is :math:`\varepsilon\,(\|P\|/\lambda + \|M\|)\,\|F w\|^2`.
        """
        xp, (values, W) = namespace_of(self.x), self.eigen
        v = matmul(self.frame, W[..., :, :1])
        size = xp.max(xp.abs(self.x), axis=(-2, -1)) / xp.abs(values[..., 0])
        size = size + self.eigen_of_mean.values[..., -1]
        return eps_of(v) * size * xp.sum(v * v, axis=(-2, -1))

    # ------------------------------------------------------------------ what follows from the logs

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates of the samples."""
        Q = matmul(self.rotation, self.eigen.vectors)
        return self.space._coordinates(matmul(Q, self.logs, adjoint(Q)))

    @cached_property
    def squares(self) -> Array:
        r"""The squared distances of the samples; :math:`\sum_k \log^2\lambda_k` if α = θ = 1."""
        X = self.space._weighted(self.logs) / self.space.theta
        return namespace_of(X).sum(X * X, axis=(-2, -1))[..., None]

    def gradient(self, weights: Array) -> Array:
        """Return the mean logarithm."""
        W, K = self.eigen.vectors, self.rotation
        mean = sum_of_products(adjoint(W), weights[..., None, None] * matmul(self.logs, adjoint(W)))
        return self.space._coordinates(matmul(K, mean, adjoint(K)))

    def power(self, t: Array | float, Q: Array, other: Array | None = None) -> Array:
        r"""Return :math:`Q\,C^t Q^\top`, or with another matrix in place of the second Q."""
        t, W = scalars_like(t, self.x), self.eigen.vectors
        Y = matmul(Q, W)
        Z = Y if other is None else matmul(other, W)

        def function(order: int, constants: Arrays, X: Array) -> Arrays:
            (logs,) = constants
            return (inner_function(EXP, logs, change(X), order),)

        X, backend = self.logs * (t if isinstance(t, float) else t[..., None, None]), backend_of(Y)
        logs = namespace_of(X).linalg.diagonal(backend.stop_gradient(X))
        found = matmul(Y, *backend.differentiate(function, (logs,), X), adjoint(Z))
        return symmetric(found) if other is None else found

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Return the powers of the samples, translated to the bias."""
        K = self.rotation
        return self.power(factor, K if bias is None else matmul(self.space._root(bias), K))

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian as a constant, from the decompositions of C."""
        stop, (values, W) = backend_of(self.x).stop_gradient, self.eigen
        Q = matmul(stop(self.rotation), W)
        return _mean_hessian(stop(weights), LOG.value(values), Q)

    # ------------------------------------------------------------------ the mean

    def shift(self, step: Array) -> Array:
        r"""Return :math:`M \oplus \operatorname{Exp}_e(c) = M + R_M (\exp(\theta C) - I) R_M^\top`.

        So the rounding errors of a small step are small, too.
        """
        change = matrix_function(self.space._matrix(step), EXPM1)
        return self.mean + congruence(matmul(self.root, adjoint(self.rotation)), change)

    def resolutions(self, weights: Array) -> Array:
        r"""Return how far rounding moves the mean.

        The sum of two parts: the resolution of the mean itself; and a quarter of
        :math:`\varepsilon\sqrt{\sum_i w_i^2\kappa_i^2}`, the effect of rounding samples that have
        the condition numbers :math:`\kappa_i`.
        """
        xp, values = namespace_of(self.x), self.eigen.values
        conditions = weights * (values[..., -1] / values[..., 0])
        of_samples = xp.linalg.vector_norm(conditions, axis=0)
        unit = eps_of(values) * self.space._unit
        of_mean: Array = self.space._resolution(self.eigen_of_mean.values)
        return (of_mean + (0.25 * unit) * of_samples)[..., None]


def _mean_hessian(weights: Array, values: Array, Q: Array) -> Hessian:
    r"""Return the mean of :math:`V \mapsto Q(K \circ (Q^\top V Q))Q^\top` on packed matrices.

    Q and λ are eigenvectors and eigenvalues of the logarithm of each sample, and
    :math:`K_{ij} = a\coth a` with :math:`a = (\lambda_i - \lambda_j)/2`.
    """
    n, a = Q.shape[-1], 0.5 * (values[..., :, None] - values[..., None, :])
    K = weights[..., None, None] * cotangent(-a * a, -1)

    def apply(v: Array) -> Array:
        """Multiply columns (*channels, dim, k), each of which is a packed matrix V."""
        Qt, V = adjoint(Q)[..., None, :, :], unpack(adjoint(v), n)
        inner = matmul(Qt, V, adjoint(Qt))
        inner *= K[..., None, :, :]  # in place: fresh memory takes longer than the product
        each = namespace_of(Q).broadcast_to(Qt, inner.shape)
        return adjoint(pack(symmetric(sum_of_products(each, matmul(inner, Qt)))))

    return Hessian(apply, None, lambda: packed_operator(K, Q))


@dataclass(frozen=True)
class AffineInvariant(Definite):
    r"""SPD matrices with an affine-invariant metric over θ², in which :class:`SPD` computes.

    .. math:: \langle u, v \rangle_P = \tfrac1{\theta^2}\bigl(\alpha
              \operatorname{tr}(P^{-1} u P^{-1} v) + \beta \operatorname{tr}(P^{-1} u)
              \operatorname{tr}(P^{-1} v)\bigr), \qquad P \oplus Q = R\,Q\,R^\top

    where :math:`R = P^{1/2}` or, with ``cholesky``, the Cholesky factor of P; then ⊕ is a group.
    Points must be symmetric: only the lower triangle of a matrix is read.
    """

    cholesky: bool = False
    theta: float = 1.0
    alpha: float = 1.0
    beta: float = 0.0

    drifts: ClassVar[bool] = False  # a mean is symmetric, and each step from it
    _view: ClassVar[type[CentredMatrices]] = CentredMatrices

    @property
    def dim(self) -> int:
        """Dimension n(n + 1)/2."""
        return self.n * (self.n + 1) // 2

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
        """Whether the translation is by the square root; else powers of P are not a subgroup."""
        return not self.cholesky

    # ------------------------------------------------------------------ gyro operations

    def _root(self, x: Array) -> Array:
        return cholesky(x) if self.cholesky else matrix_function(x, ROOT)

    def _back(self, x: Array) -> Array:
        """Return the inverse of the root."""
        if self.cholesky:
            return namespace_of(x).linalg.inv(cholesky(x))
        return matrix_function(x, INVERSE_ROOT)

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`R_P\, Q\, R_P^\top`."""
        return self._with_identity(x, y, congruence(self._root(x), y))

    def neg(self, x: Array) -> Array:
        r"""Gyroinverse :math:`R_P^{-1} R_P^{-\top}`, the inverse if R is the square root."""
        if self.cholesky:
            back = self._back(x)
            return matmul(back, adjoint(back))
        return matrix_function(x, INVERSE)

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus P \oplus Q = R_P^{-1}\, Q\, R_P^{-\top}`."""
        return congruence(self._back(x), y)

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`R_P \exp(\theta C) R_P^\top`, from the root of the exponential.

        So a C between ill-conditioned matrices, whose condition may be κ², leads from one to the
        other.
        """
        Y = matmul(self._root(x), matrix_function(0.5 * self._matrix(c), EXP))
        return matmul(Y, adjoint(Y))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus P \oplus Q`."""
        return self._certain(x, y).normal

    def dist(self, x: Array, y: Array) -> Array:
        r"""Distance :math:`\|\log(P^{-1/2} Q P^{-1/2})\|/|\theta|`, weighted by α and β."""
        return safe_sqrt(self._certain(x, y).squares[..., 0])

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`R_P (R_P^{-1} Q R_P^{-\top})^t R_P^\top`."""
        view = self._view(self, x, y)
        return view.power(t, view.root)

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias."""
        return self._view(self, mean, x).standardize(factor, bias)

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication :math:`P^t`."""
        return matrix_power(x, scalars_like(t, x))

    def to_normal(self, x: Array) -> Array:
        r"""Lower triangle of :math:`\log(P)/\theta`, times :math:`\sqrt2` off the diagonal.

        That is so for α = 1 and β = 0; otherwise the logarithm is weighted first.
        """
        return self._coordinates(logarithm(x))

    def from_normal(self, c: Array) -> Array:
        r"""Inverse of :meth:`to_normal`: :math:`\exp(\theta C)`, clamped before it is singular."""
        return exponential(self._matrix(c))

    def _matrix(self, c: Array) -> Array:
        """Return the logarithm that normal coordinates stand for."""
        return self.theta * self._weighted(unpack(c, self.n), inverse=True)

    def _coordinates(self, X: Array) -> Array:
        """Return the normal coordinates of the point with the logarithm X."""
        return pack(self._weighted(X)) / self.theta

    def _weighted(self, X: Array, inverse: bool = False) -> Array:
        r"""Return :math:`\sqrt\alpha X_0 + \sqrt{\alpha + n\beta}\,X_1`, or the inverse map.

        :math:`X_1 = \tfrac1n\operatorname{tr}(X) I` and :math:`X_0 = X - X_1`, of symmetric X.
        This makes an isometry of :math:`\alpha\|X\|^2 + \beta\operatorname{tr}^2 X`.
        """
        if self.alpha == 1.0 and self.beta == 0.0:
            return X
        a, b = (w**0.5 for w in self._weights)
        a, b = (1.0 / a, 1.0 / b) if inverse else (a, b)
        trace = namespace_of(X).sum(X * identity(X), axis=(-2, -1), keepdims=True)
        X_1 = (trace / self.n) * identity(X)
        return a * (X - X_1) + b * X_1

    @property
    def _weights(self) -> tuple[float, float]:
        """The weights of the traceless part and of the trace."""
        return self.alpha, self.alpha + self.n * self.beta

    @property
    def _unit(self) -> float:
        """The largest length of a matrix of norm 1."""
        return float(max(self._weights) ** 0.5 / abs(self.theta))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        r"""Gyration :math:`O Z O^\top`, :math:`O = (P \oplus Q)^{-1/2} P^{1/2} Q^{1/2}`.

        In the group it is the identity, and z is returned.
        """
        if self.cholesky:
            return z + 0.0 * (x + y)
        rotation = matmul(self._back(self.add(x, y)), self._root(x), self._root(y))
        return congruence(rotation, z)

    def _certain(self, x: Array, y: Array) -> CentredMatrices:
        """Return the view of y from x; warn if rounding leaves it no certain digit."""
        view = self._view(self, x, y)
        warn_of_lost_digits(view.uncertainty)
        return view

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Carry normal coordinates to a tangent vector at P: :math:`\theta R_P\, C\, R_P^\top`.

        By parallel transport if R is the square root, by the group's translation otherwise.
        """
        return congruence(self._root(x), self._matrix(c))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        return self._coordinates(congruence(self._back(x), v))

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport :math:`E\,v\,E^\top`, :math:`E = (Q P^{-1})^{1/2}`, from P to Q.

        .. math:: E = P^{1/2}(P^{-1/2} Q P^{-1/2})^{1/2} P^{-1/2} = F^{-\top} C^{1/2} F^\top
        """
        view = self._view(self, x, y)
        return congruence(view.power(0.5, view.root, view.frame), v)

    # ------------------------------------------------------------------ the mean

    def moments(self, x: Array) -> Array:
        """Return the entries of each matrix, and the logarithm of its determinant."""
        xp = namespace_of(x)
        return xp.concat([pack(x), xp.linalg.slogdet(x)[1][..., None]], axis=-1)

    def start(self, moments: Array) -> Array:
        """Return a first guess of the mean: the arithmetic mean, rescaled to the right determinant.

        The determinant of the mean is the geometric mean of the determinants of the samples. So
        the guess has the right determinant, and the steps of the loop keep it.
        """
        xp = namespace_of(moments)
        mean = unpack(moments[..., :-1], self.n)
        excess = moments[..., -1] - xp.linalg.slogdet(mean)[1]
        excess = xp.where(excess > -xp.inf, excess, 0.0)  # -inf if a sample is singular
        return xp.exp((1.0 / self.n) * excess)[..., None, None] * mean

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Return the mean Hessian, from the eigenvalues of the logarithms."""
        return _mean_hessian(weights, *eigh(self._matrix(c)))

    def resolution(self, x: Array) -> Array:
        """Return how far rounding moves samples seen from P: about κ(P)/8 ulps."""
        A, _ = finite_or_identity(symmetric(backend_of(x).stop_gradient(x)))
        return self._resolution(namespace_of(x).linalg.eigvalsh(A))

    def _resolution(self, values: Array) -> Array:
        """Return the resolution from the eigenvalues of P."""
        xp = namespace_of(values)
        eps, high = eps_of(values), values[..., -1]
        condition = high / xp.maximum(values[..., 0], eps * high)
        ulps = 1.0 * self.n + self.n**2 / 256  # measured, as is the factor of the condition
        return (eps * self._unit) * (ulps + 0.125 * condition)


def logarithm(A: Array) -> Array:
    """Return the logarithm of SPD matrices; warn if one is singular up to rounding."""
    values, _ = eigen = eigh(symmetric(A))
    eps = eps_of(A)
    warn_of_lost_digits(abs(eps * values[..., -1] / values[..., 0]))
    return symmetric(matrix_function(A, LOG, eigen))
