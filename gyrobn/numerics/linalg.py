r"""Functions of matrices with derivatives that are exact and finite at repeated eigenvalues.

A function of a symmetric matrix, :math:`f(A) = U f(\Lambda) U^\top`, has the derivative

.. math:: df(A) = U\bigl(L \circ (U^\top dA\, U)\bigr)U^\top, \qquad
          L_{ij} = \frac{f(\lambda_i) - f(\lambda_j)}{\lambda_i - \lambda_j}

(Daleckii and Krein), where the derivatives of U and Λ on their own are infinite or arbitrary. The
quotients :math:`L` are computed without cancellation. For second derivatives there are
:mod:`gyrobn.numerics.jets`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.backends.contract import State
from gyrobn.numerics.arrays import broadcast_shapes
from gyrobn.numerics.decompositions import (
    Eigen,
    Singular,
    again,
    eigh,
    spectrum_of,
    svd,
    warn_of_lost_digits,
)
from gyrobn.numerics.jets import bent_by, change_of, inner_jet, one_more_axis, pair_sums, polar_jet
from gyrobn.numerics.matrices import congruence, diagonal_matrix, matmul, symmetric, transpose
from gyrobn.numerics.spectra import Spectrum
from gyrobn.numerics.spectral import LOG, Spectral


def symmetric_functions(
    A: Array,
    *functions: Spectral,
    t: Any = None,
    known: Eigen | None = None,
    framed: bool = False,
) -> State:
    r"""Return f(A, t) for each of ``functions``, from one eigendecomposition.

    Parameters
    ----------
    A
        Symmetric matrices; of others, the symmetric part is taken.
    *functions
        What to apply to the eigenvalues.
    t
        The functions' second argument: a number, or an array with one number a matrix.
    known
        Eigenvalues and eigenvectors of A, if they are known, as constants. Then A, and what its
        functions are multiplied by to differentiate them, must be symmetric.
    framed
        Return :math:`f(A, t)\,U` for the known eigenvectors U. Its columns are
        :math:`f(\lambda_k)\,u_k`, so even the smallest has all its digits;
        :math:`U f(\Lambda) U^\top` mixes columns of different sizes and rounds to the largest.
        And it takes one product less.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn.numerics.spectral import power
    >>> A = np.asarray([[2.0, 1.0], [1.0, 2.0]])
    >>> root, back = symmetric_functions(A, power(0.5), power(-0.5))
    >>> bool(np.allclose(root @ root, A)), bool(np.allclose(root @ back, np.eye(2)))
    (True, True)
    """

    def back(inner: Array, U: Array) -> Array:
        """Return a matrix that is given in the eigenbasis."""
        return matmul(U, inner) if framed else matmul(U, inner, transpose(U))

    def primal(A: Array, *s: Array) -> tuple[State, State]:
        found = eigh(A) if known is None else known
        at, spectrum, U = _one(s, t), spectrum_of(found), found.vectors
        scaled = (U * f.value(spectrum, at)[..., None, :] for f in functions)
        return tuple(a if framed else matmul(a, transpose(U)) for a in scaled), (*found, *s)

    def tangent(kept: State, dA: Array, *ds: Array) -> State:
        values, U, *s = kept
        change = matmul(transpose(U), dA if known else symmetric(dA), U)
        changes = _changes(functions, again(known, values), _one(s, t), change, ds)
        return tuple(back(d, U) for d in changes)

    def cotangent(kept: State, *slopes: Array) -> State:
        values, U, *s = kept
        right = () if framed else (U,)
        inner = (matmul(transpose(U), slope, *right) for slope in slopes)
        total, by_t = _slopes(functions, again(known, values), _one(s, t), inner, s)
        total = total if known and not framed else symmetric(total)
        return matmul(U, total, transpose(U)), *by_t

    def twice(kept: State, A: Array, *s: Array) -> State:
        values, U, *_ = kept
        A = A if known and not framed else symmetric(A)
        E = matmul(transpose(U), change_of(A), U)
        return tuple(back(inner_jet(f, values, E, _one(s, t)), U) for f in functions)

    second = None if any(f.second is None for f in functions) else twice
    rules = primal, tangent, cotangent
    return tuple(backend_of(A).with_derivative(*rules, *_inputs(A, t), twice=second))


def symmetric_function(A: Array, f: Spectral) -> Array:
    """Return f(A) of matrices that are symmetric but for rounding."""
    known = eigh(backend_of(A).stop_gradient(A), exact=True)
    return symmetric_functions(A, f, known=known)[0]


def polar(A: Array, decompose: Callable[[Array], Singular] | None = None) -> Array:
    r"""Return the orthogonal factor W of A = C W, C symmetric.

    From a singular value decomposition :math:`A = P c T^\top` it is :math:`W = P T^\top`, and with
    :math:`E = P^\top dA\, T`

    .. math:: (P^\top dW\, T)_{ij} = \frac{E_{ij} - E_{ji}}{c_i + c_j} .

    A singular matrix has more than one orthogonal factor; one of them is returned. ``decompose``
    decides which: it takes the place of :func:`svd`.
    """
    decompose = decompose or svd

    def primal(A: Array) -> tuple[State, State]:
        found = decompose(A)
        return (matmul(found.left, found.right),), found

    def change(kept: State, change: Array) -> State:
        """Return the change of W; the map is its own transpose."""
        P, c, Th = kept
        E = matmul(transpose(P), change, transpose(Th))
        return (matmul(P, (E - transpose(E)) / pair_sums(c), Th),)

    twice = lambda kept, A: (polar_jet(kept, A),)  # noqa: E731
    (W,) = backend_of(A).with_derivative(primal, change, change, A, twice=twice)
    return W


def _changes(
    functions: Sequence[Spectral], spectrum: Spectrum, t: Any, change: Array, ds: Any
) -> Iterable[Array]:
    """Yield the changes of f(A, t) by that of A and by that of t, all in the eigenbasis of A."""
    for f in functions:
        inner = f.quotient(spectrum.pairs, one_more_axis(t)) * change
        if ds and f.slope is not None:
            inner = inner + diagonal_matrix(f.slope(spectrum, t) * ds[0][..., None])
        yield inner


def _slopes(
    functions: Sequence[Spectral], spectrum: Spectrum, t: Any, slopes: Iterable[Array], s: Any
) -> tuple[Any, State]:
    """Transpose :func:`_changes`: return the slope by A, in its eigenbasis, and by t if given."""
    total: Any = None
    by_t = tuple(namespace_of(a).zeros_like(a) for a in s)
    for f, inner in zip(functions, slopes, strict=True):
        product = f.quotient(spectrum.pairs, one_more_axis(t)) * inner
        total = product if total is None else total + product
        if by_t and f.slope is not None:
            xp = namespace_of(inner)
            along = xp.sum(f.slope(spectrum, t) * xp.linalg.diagonal(inner), axis=-1)
            by_t = (by_t[0] + along,)
    return total, by_t


def _inputs(A: Array, t: Any) -> State:
    """Return what to differentiate by: the matrices and, where it is an array, t, of one shape."""
    xp = namespace_of(A)
    if t is None or isinstance(t, (int, float)):
        return (A,)
    batch = broadcast_shapes(A.shape[:-2], t.shape)
    return xp.broadcast_to(A, (*batch, *A.shape[-2:])), xp.broadcast_to(t, batch)


def _one(s: Any, t: Any) -> Any:
    """Return t, reshaped to broadcast against eigenvalues: one number, or one per matrix."""
    return s[0][..., None] if s else t


def differential(f: Spectral, A: Array, dA: Array, inverse: bool = False) -> Array:
    r"""Return the change of f(A) by that of A, or the change of A by that of f(A); all symmetric.

    If A changes by X in its eigenbasis, f(A) changes by :math:`L \circ X`. That in turn changes by

    .. math:: d(L \circ X) = L \circ dX + B(dA), \qquad
              B(E)_{ij} = \sum_k L_{ikj}\,(E_{ik} X_{kj} + X_{ik} E_{kj})

    with the first and second divided differences of f. A second derivative by A would be the third
    one of f, and is refused.
    """
    xp, known = namespace_of(A, dA), eigh(backend_of(A).stop_gradient(A))

    def across(values: Array, S: Array) -> Array:
        L = f.quotient(Spectrum(values).pairs, None)
        return S / L if inverse else S * L

    def bent(values: Array, E: Array, X: Array) -> Array:
        half = bent_by(f, values, E, X)  # all are symmetric, so the other half is its transpose
        return half + transpose(half)

    def moved(values: Array, E: Array, X: Array) -> Array:
        change = bent(values, E, X)
        return -across(values, change) if inverse else change

    def primal(A: Array, V: Array) -> tuple[State, State]:
        values, U = known
        S = congruence(transpose(U), V)
        found = across(values, S)
        return (congruence(U, found),), (values, U, found if inverse else S)

    def tangent(kept: State, E: Array, dV: Array) -> State:
        values, U, X = kept
        E, S = (congruence(transpose(U), a) for a in (E, dV))
        return (congruence(U, across(values, S) + moved(values, E, X)),)

    def cotangent(kept: State, slope: Array) -> State:
        values, U, X = kept
        s = congruence(transpose(U), slope)
        r = across(values, s)
        return congruence(U, bent(values, -r if inverse else s, X)), congruence(U, r)

    def twice(kept: State, A: Array, V: Array) -> State:
        values, U, _ = kept
        E, S = (congruence(transpose(U), a) for a in (change_of(A, times=1), V))
        found = across(values, S)
        return (congruence(U, found + moved(values, E, found if inverse else S)),)

    rules = primal, tangent, cotangent
    shape = broadcast_shapes(A.shape, dA.shape)
    given = (xp.broadcast_to(a, shape) for a in (A, dA))
    (change,) = backend_of(A).with_derivative(*rules, *given, twice=twice)
    return change


def logarithm(A: Array) -> Array:
    """Return the logarithm of SPD matrices; warn if one is singular up to rounding."""
    values, _ = known = eigh(backend_of(A).stop_gradient(A))
    eps = float(namespace_of(A).finfo(A.dtype).eps)
    warn_of_lost_digits(abs(eps * values[..., -1] / values[..., 0]))
    return symmetric(symmetric_functions(symmetric(A), LOG, known=known)[0])
