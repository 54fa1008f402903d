"""SPD matrices as seen from a mean, with the affine-invariant metric."""

from functools import cached_property
from typing import Self

from gyrobn.backends import Array, State, backend_of, device_of, namespace_of
from gyrobn.manifolds import eigenbasis
from gyrobn.manifolds.centred import Decomposed
from gyrobn.manifolds.turned import Turned
from gyrobn.numerics.arrays import scalars_like
from gyrobn.numerics.decompositions import Eigen, eigh, spectrum_of
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.linalg import symmetric_function, symmetric_functions
from gyrobn.numerics.matrices import matmul, pack, symmetric, transpose
from gyrobn.numerics.spectral import EXP, INVERSE_ROOT, LOG, POWER, ROOT, Spectral


class CentredMatrices(Decomposed):
    r"""Matrices P as seen from the mean M; each is decomposed once.

    The computation is in the eigenbasis U of M: P becomes :math:`C = B P B^\top` with
    :math:`B = \Lambda^{-1/2}U^\top`, and :math:`K C K^\top = R_M^{-1} P R_M^{-\top}` for an
    orthogonal K. If M and P have the condition number κ, that of C may be κ². B makes C *graded*:
    its entries fall as the eigenvalues of M grow. The eigenvalues of a graded matrix keep all
    digits that P and M determine, up to an error of about εκ. With :math:`M^{-1/2}` instead of B,
    eigenvalues below εκ² would be lost.
    """

    def _recall(  # type: ignore[override]
        self, values: Array, W: Array, of_mean: Array, U: Array
    ) -> None:
        self._known, self._known_mean = Eigen(values, W), Eigen(of_mean[0, ...], U[0, ...])

    @property
    def seen(self) -> State:
        """The eigendecompositions of the samples, and that of the mean."""
        values, U = self._known_mean
        return (*self._known, values[None, ...], U[None, ...])

    def _know(self, *arrays: Array) -> None:
        self._known, self._known_mean = Eigen(*arrays[:2]), Eigen(*arrays[2:])
        self._at_mean = True

    def _share(self, other: Self) -> None:
        super()._share(other)
        self._at_mean = True

    _at_mean = False
    """Whether this is the view from the mean that was found, where the gradient is zero."""

    @cached_property
    def _known_mean(self) -> Eigen:
        return eigh(backend_of(self.mean).stop_gradient(self.mean), exact=True)

    @cached_property
    def back(self) -> Array:
        """B."""
        return transpose(self._of_mean(INVERSE_ROOT))

    @cached_property
    def root(self) -> Array:
        r"""The inverse of B, :math:`U\Lambda^{1/2}`."""
        return self._of_mean(ROOT)

    def _of_mean(self, f: Spectral) -> Array:
        return symmetric_functions(self.mean, f, known=self._known_mean, framed=True)[0]

    @cached_property
    def turn(self) -> Array:
        r"""K, with :math:`K B = R_M^{-1}`: U itself for the square root."""
        if self.space.cholesky:
            return matmul(self.space._back(self.mean), self.root)
        return self._known_mean.vectors

    @property
    def image(self) -> State:
        """The change of C: see :mod:`gyrobn.manifolds.eigenbasis`."""
        return (self._change,)

    def showing(self, change: Array) -> Self:
        """Take an array as the change of C, and return the view."""
        self._change = change
        return self

    @cached_property
    def _change(self) -> Array:
        """The change of C in its eigenbasis, with what P and M contribute."""
        shim = backend_of(self.x)
        root = (shim.stop_gradient(self.root),) if shim.differentiable(self.mean) else ()
        return eigenbasis.change_by(self.x, self.back, self._known, *root)

    @cached_property
    def _known(self) -> Eigen:
        stop = backend_of(self.x).stop_gradient
        back = stop(self.back)
        return eigh(matmul(back, stop(self.x), transpose(back)), exact=True)

    @property
    def uncertainty(self) -> Array:
        r"""Relative error of the smallest eigenvalue λ of C that rounding P and M may cause.

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
        """The logarithms of C."""
        return eigenbasis.function(self._change, self._known, LOG)

    def power(self, t: float) -> Array:
        """Return the powers of C."""
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
        """The normal coordinates of the samples."""
        return self._coordinates(self.logarithms)

    def _coordinates(self, X: Array) -> Array:
        c = pack(matmul(self.turn, X, transpose(self.turn)))
        return c if self.space.theta == 1.0 else c / self.space.theta

    def gradient(self, weights: Array) -> Array:
        """Return the mean logarithm."""
        mean = eigenbasis.mean_logarithm(self._change, weights, self._known, self._at_mean)
        return self._coordinates(mean)

    def slope_by_step(self, slope: Array) -> Array:
        r"""Turn a slope by the change of C into one by a step δ of the mean, in normal coordinates.

        In the basis U the step is :math:`\delta' = \theta K^\top\delta K`, and it changes B by
        :math:`(dB\,B^{-1})_{ij} = -\delta'_{ij}\sqrt{\lambda_j}/(\sqrt{\lambda_i} +
        \sqrt{\lambda_j})`.
        """
        by_frame = eigenbasis.slope_by_frame(slope, self._known, self.mean.shape)
        root = spectrum_of(self._known_mean).root[..., None, :]
        by_step = symmetric(by_frame * root / (root + transpose(root)))
        return -self.space.theta * pack(matmul(self.turn, by_step, transpose(self.turn)))

    @cached_property
    def squares(self) -> Array:
        r"""The squared distances of the samples, :math:`\sum_k \log^2\lambda_k/\theta^2`."""
        squares = eigenbasis.log_squares(self._change, self._known)[..., None]
        return squares if self.space.theta == 1.0 else squares / self.space.theta**2

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian as a constant, from the decompositions of C."""
        stop = backend_of(self.x).stop_gradient
        spectrum, U = spectrum_of(self._known), self._known.vectors
        known, curvature = lambda: (spectrum.log, U), lambda: spectrum.pairs.curvature
        turned = Turned(self.space.n, stop(weights), known, curvature, stop(self.turn))
        return turned.hessian()

    def shift(self, c: Array) -> Array:
        r"""Return :math:`M \oplus \operatorname{Exp}_e(c)` from the decomposition of the mean.

        It is :math:`Y Y^\top` with :math:`Y = B^{-1} K^\top \exp(\theta C/2)`, so it is positive
        definite up to rounding and needs no projection.
        """
        half = symmetric_function(0.5 * self.space._matrix(c), EXP)
        Y = matmul(self._translation, half)
        return matmul(Y, transpose(Y))

    def push(self, step: Array) -> Array:
        """Return a small step from the mean as a tangent vector at the mean."""
        R = self._translation
        return matmul(R, self.space._matrix(step), transpose(R))

    @property
    def _translation(self) -> Array:
        r"""The root of the mean: :math:`R_M = B^{-1} K^\top`."""
        return matmul(self.root, transpose(self.turn))

    def resolutions(self, weights: Array) -> Array:
        r"""Return how far rounding moves the mean.

        The sum of two parts: the resolution of the mean itself; and a quarter of
        :math:`\varepsilon\sqrt{\sum_i w_i^2\kappa_i^2}`, the effect of rounding samples that have
        the condition numbers :math:`\kappa_i`.
        """
        xp, values = namespace_of(self.x), self._known.values
        conditions = weights * (values[..., -1] / values[..., 0])
        of_samples = xp.linalg.vector_norm(conditions, axis=0)
        eps = float(xp.finfo(values.dtype).eps)
        of_mean: Array = self.space._resolution(self._known_mean.values)
        return (of_mean + (0.25 * eps / abs(self.space.theta)) * of_samples)[..., None]

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Return the powers of the samples, translated to the bias."""
        R = self.turn if bias is None else matmul(self.space._root(bias), self.turn)
        return self.carried(R, factor)
