r"""Direct rotation, logarithm and exponential of orthonormal bases, with their derivatives.

An n × p basis is split into its upper p rows and the other rows, of which there may be many. The
upper block has the singular value decomposition :math:`P c\,T^\top`, and c are the cosines of the
principal angles θ to the first p coordinates. Every function here multiplies the lower block by
p × p matrices that are functions of θ in the bases P and T. The same holds for the derivatives, so
each rule takes few products.
"""

from gyrobn.backends import Array, State, backend_of, namespace_of
from gyrobn.numerics.decompositions import Singular, again, eigh, spectrum_of, svd
from gyrobn.numerics.jets import change_of, function_jet, pair_sums, polar_jet
from gyrobn.numerics.matrices import compose, eye, matmul, symmetric, transpose
from gyrobn.numerics.spectra import Spectrum
from gyrobn.numerics.spectral import ANGLE, COSINE_OF_ROOT, SINC_OF_ROOT


def direct_rotation(U: Array, known: Singular | None = None) -> tuple[Array, Array, Array]:
    r"""Return C, S and :math:`(I + C)^{-1}`, where :math:`U W^\top = (C, S)^\top`.

    :math:`W = P T^\top` makes C symmetric. ``known`` is the decomposition of the upper block, if
    it was computed before.
    """
    xp = namespace_of(U)
    p = U.shape[-1]

    def primal(U: Array) -> tuple[State, State]:
        P, c, Th = svd(U[..., :p, :]) if known is None else known
        F = matmul(U[..., p:, :], transpose(Th))
        outputs = compose(P, c, P), matmul(F, transpose(P)), compose(P, 1.0 / (1.0 + c), P)
        return outputs, (P, c, Th, F)

    def reciprocals(c: Array) -> Array:
        """Return minus the divided differences of 1/(1 + c)."""
        k = 1.0 / (1.0 + c)
        return k[..., :, None] * k[..., None, :]

    def tangent(kept: State, dU: Array) -> State:
        P, c, Th, F = kept
        E = matmul(transpose(P), dU[..., :p, :], transpose(Th)) / pair_sums(c)
        half = E * c[..., None, :]
        change = half + transpose(half)
        inner = matmul(dU[..., p:, :], transpose(Th)) + matmul(F, transpose(E) - E)
        return (
            matmul(P, change, transpose(P)),
            matmul(inner, transpose(P)),
            matmul(P, -reciprocals(c) * change, transpose(P)),
        )

    def cotangent(kept: State, by_C: Array, by_S: Array, by_inverse: Array) -> State:
        P, c, Th, F = kept
        inner = matmul(transpose(P), by_C, P)
        inner = inner - reciprocals(c) * matmul(transpose(P), by_inverse, P)
        turned = matmul(by_S, P)
        M = matmul(transpose(F), turned)
        inner = (inner + transpose(inner)) * c[..., None, :] + (transpose(M) - M)
        upper = matmul(P, inner / pair_sums(c), Th)
        return (xp.concat([upper, matmul(turned, Th)], axis=-2),)

    def twice(kept: State, U: Array) -> State:
        W = polar_jet(kept[:3], U[..., :p, :])
        C, S = matmul(U[..., :p, :], transpose(W)), matmul(U[..., p:, :], transpose(W))
        return symmetric(C), S, xp.linalg.inv(symmetric(C) + eye(C))

    C, S, inverse = backend_of(U).with_derivative(primal, tangent, cotangent, U, twice=twice)
    return C, S, inverse


def logarithm(top: Array, bottom: Array, known: Singular | None = None) -> Array:
    r"""Return the block of Ω: :math:`\mathrm{bottom}\,J`, :math:`J = T(\theta/\sin\theta)P^\top`.

    With :math:`E = P^\top d\mathrm{top}\,T`, and L the divided differences of θ/sin θ as a
    function of cos θ,

    .. math:: T^\top dJ\,P = \alpha \circ E + (L - \alpha) \circ E^\top, \qquad
              \alpha_{ij} = \frac{L_{ij} c_j - \theta_j/\sin\theta_j}{c_i + c_j} .

    ``known`` is the decomposition of the upper block, if it was computed before.
    """

    def primal(top: Array, bottom: Array) -> tuple[State, State]:
        found = svd(top) if known is None else known
        P, _, Th = found
        J = matmul(transpose(Th) * spectrum_of(found).stretch[..., None, :], transpose(P))
        return (tall_product(bottom, J),), (*found, J, bottom)

    def tangent(kept: State, dtop: Array, dbottom: Array) -> State:
        P, c, Th, J, bottom = kept
        direct, turned = again(known, c).pairs.logarithm
        E = matmul(transpose(P), dtop, transpose(Th))
        dJ = matmul(transpose(Th), direct * E + turned * transpose(E), transpose(P))
        return (tall_product(dbottom, J) + tall_product(bottom, dJ),)

    def cotangent(kept: State, slope: Array) -> State:
        P, c, Th, J, bottom = kept
        direct, turned = again(known, c).pairs.logarithm
        M = matmul(Th, matmul(transpose(bottom), slope), P)
        by_top = matmul(P, direct * M + transpose(turned * M), Th)
        return by_top, tall_product(slope, transpose(J))

    def twice(kept: State, top: Array, bottom: Array) -> State:
        P, c, Th, *_ = kept
        W = polar_jet((P, c, Th), top)
        C = symmetric(matmul(top, transpose(W)))
        ratio = function_jet(ANGLE, c, P, change_of(C))
        return (matmul(bottom, matmul(transpose(W), ratio)),)

    (B,) = backend_of(top).with_derivative(primal, tangent, cotangent, top, bottom, twice=twice)
    return B


def exponential(B: Array) -> tuple[Array, Array]:
    r"""Return the blocks :math:`\cos A` and :math:`B\operatorname{sinc} A`, :math:`A^2 = B^\top B`.

    The eigenvalues of :math:`A^2` are the squares of the angles, which may have any size.
    """

    def primal(B: Array) -> tuple[State, State]:
        values, P = eigh(matmul(transpose(B), B), exact=True)
        spectrum = Spectrum(values)
        ratio = compose(P, spectrum.sinc_of_root, P)
        outputs = compose(P, spectrum.cosine_of_root, P), tall_product(B, ratio)
        return outputs, (values, P, ratio, B)

    def tangent(kept: State, dB: Array) -> State:
        values, P, ratio, B = kept
        by_cosine, by_sinc = Spectrum(values).pairs.quotients_of_root
        gram = matmul(transpose(B), dB)
        change = matmul(transpose(P), gram + transpose(gram), P)
        dcos, dratio = (matmul(P, f * change, transpose(P)) for f in (by_cosine, by_sinc))
        return dcos, tall_product(dB, ratio) + tall_product(B, dratio)

    def cotangent(kept: State, by_top: Array, by_bottom: Array) -> State:
        values, P, ratio, B = kept
        by_cosine, by_sinc = Spectrum(values).pairs.quotients_of_root
        change = by_cosine * matmul(transpose(P), by_top, P)
        change = change + by_sinc * matmul(transpose(P), matmul(transpose(B), by_bottom), P)
        gram = matmul(P, change + transpose(change), transpose(P))
        return (tall_product(by_bottom, ratio) + tall_product(B, gram),)

    def twice(kept: State, B: Array) -> State:
        values, P, *_ = kept
        change = change_of(matmul(transpose(B), B))
        cos, ratio = (function_jet(f, values, P, change) for f in (COSINE_OF_ROOT, SINC_OF_ROOT))
        return cos, matmul(B, ratio)

    top, bottom = backend_of(B).with_derivative(primal, tangent, cotangent, B, twice=twice)
    return top, bottom


def tall_product(A: Array, B: Array) -> Array:
    """Return AB for a tall A, as the transpose of BᵀAᵀ: this takes a third of the time."""
    return transpose(matmul(transpose(B), transpose(A)))
