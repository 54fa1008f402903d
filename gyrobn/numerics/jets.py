r"""Matrix functions as polynomials of a change: what has exact first and second derivatives.

With the eigenvectors U and the eigenvalues λ of a matrix :math:`A_0`, as constants,

.. math:: f(A) = U\bigl(f(\Lambda) + L \circ E + \textstyle\sum_k L_{ikj} E_{ik} E_{kj}\bigr)U^\top
          + O(E^3), \qquad E = U^\top(A - A_0)U

where :math:`L_{ij}` and :math:`L_{ikj}` are the first and second divided differences of f, finite
at repeated eigenvalues. At :math:`A = A_0` the polynomial has the value and the first two
derivatives of f, and any automatic differentiation finds them: reverse, forward, one over the
other. A third derivative is refused.
"""

from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.backends.contract import THIRD_ORDER
from gyrobn.numerics.matrices import diagonal_matrix, kept_eye, matmul, transpose
from gyrobn.numerics.spectra import Spectrum
from gyrobn.numerics.spectral import Spectral
from gyrobn.numerics.triples import Triples


def twice_only(x: Array, times: int = 2) -> Array:
    """Return x, as an array that can be differentiated so many ``times``; once more is an error."""
    (same,) = backend_of(x).smooth(
        lambda x: (1.0 * x,), lambda given, _: [[lambda: _one(given[0], times - 1)]], x
    )
    return same


def _one(x: Array, left: int) -> Array:
    """Return ones that depend on x: ``left`` derivatives of them are zero, one more is an error."""

    def partials(given: Any, _: Any) -> Any:
        def slope() -> Array:
            if not left:
                raise TypeError(THIRD_ORDER)
            return 0.0 * _one(given[0], left - 1)

        return [[slope]]

    (one,) = backend_of(x).smooth(lambda x: (namespace_of(x).ones_like(x),), partials, x)
    return one


def change_of(x: Array, times: int = 2) -> Array:
    """Return x minus its value: zero, with the derivatives of x, so many ``times``."""
    x = twice_only(x, times)
    return x - backend_of(x).stop_gradient(x)


def inner_jet(f: Spectral, values: Array, E: Array, t: Any = None) -> Array:
    """Return f(A, t) in the eigenbasis, from the change E of A there.

    ``t`` is a number, or an array with one number per matrix and an axis more, and may change too.
    """
    spectrum, by_pair = Spectrum(values), one_more_axis(t)
    first = f.quotient(spectrum.pairs, by_pair)
    bent = bent_by(f, values, E, E, one_more_axis(by_pair))
    return diagonal_matrix(f.value(spectrum, t)) + first * E + bent


def one_more_axis(t: Any) -> Any:
    """Return t, reshaped to broadcast against pairs instead of single eigenvalues."""
    return t if t is None or isinstance(t, (int, float)) else t[..., None]


def bent_by(f: Spectral, values: Array, X: Array, Y: Array, t: Any = None) -> Array:
    r"""Return :math:`\sum_k L_{ikj} X_{ik} Y_{kj}`, with the second divided differences of f."""
    assert f.second is not None
    x, y = values[..., :, None, None], values[..., None, :, None]
    second = f.second(Triples(x, y, values[..., None, None, :]), t)
    return namespace_of(X).sum(second * X[..., :, :, None] * Y[..., None, :, :], axis=-2)


def function_jet(f: Spectral, values: Array, U: Array, change: Array) -> Array:
    """Return f(A) from the decomposition of its value and from the change of A."""
    inner = inner_jet(f, values, matmul(transpose(U), change, U))
    return matmul(U, inner, transpose(U))


def polar_jet(known: tuple[Array, ...], A: Array) -> Array:
    r"""Return the orthogonal factor W of A, whose value is :math:`P c\,T^\top`.

    With :math:`E = P^\top dA\,T` it is :math:`P\,e^X T^\top` for an antisymmetric X. That
    :math:`(c + E)\,e^{-X}` is symmetric gives :math:`X = Y + Z`, where

    .. math:: Y_{ij} = \frac{E_{ij} - E_{ji}}{c_i + c_j}, \qquad
              Z_{ij} = \frac{M_{ij} - M_{ji}}{c_i + c_j}, \quad M = \tfrac12 c\,Y^2 - E\,Y .
    """
    P, c, Th = known
    sums = pair_sums(c)
    E = matmul(transpose(P), change_of(A), transpose(Th))
    Y = (E - transpose(E)) / sums
    square = matmul(Y, Y)
    M = 0.5 * c[..., :, None] * square - matmul(E, Y)
    inner = kept_eye(Y) + Y + (M - transpose(M)) / sums + 0.5 * square
    return matmul(P, inner, Th)


def pair_sums(c: Array) -> Array:
    """Return c_i + c_j, not zero: a singular matrix has no derivative, but no NaN either."""
    xp = namespace_of(c)
    least = float(xp.finfo(c.dtype).eps)
    return xp.clip(c[..., :, None] + c[..., None, :], min=least)
