r"""Functions of :math:`C = B X B^\top`, differentiated in the known eigenbasis W of C.

To differentiate a function of C, :math:`dC` is first written in the eigenbasis,
:math:`W^\top dC\,W`. Several functions of the same C need this same matrix, so it is an array of
its own here, called the *change*. Only its derivatives matter; its values have no meaning. In a
backward pass autograd adds up the slopes of all functions by the change, and one rule then carries
the sum to X and to B.
"""

from typing import Any

from gyrobn.backends import Array, State, backend_of, namespace_of
from gyrobn.numerics.arrays import broadcast_shapes, weighted_gram
from gyrobn.numerics.decompositions import Eigen, again, spectrum_of
from gyrobn.numerics.jets import change_of, inner_jet
from gyrobn.numerics.matrices import beside, compose, diagonal_matrix, matmul, symmetric, transpose
from gyrobn.numerics.spectra import Spectrum
from gyrobn.numerics.spectral import LOG, POWER, Spectral


def change_by(X: Array, B: Array, known: Eigen, *back: Array) -> Array:
    r"""Return the change of :math:`C = B X B^\top` by X and by B.

    .. math:: W^\top dC\,W = V^\top dX\,V + E + E^\top, \qquad
              V = B^\top W, \quad E = W^\top dB\,B^{-1}W\Lambda

    ``back`` is the inverse of B, as a constant, if B is differentiated.
    """
    shim = backend_of(X)
    by_X, stop = shim.differentiable(X), shim.stop_gradient
    if not (by_X or back):
        return known.vectors

    def primal(X: Array, B: Array) -> tuple[State, State]:
        return (stop(known.vectors),), (*known, stop(B), *back)

    def tangent(kept: State, dX: Array, dB: Array) -> State:
        values, W, B, *back = kept
        total: Any = 0.0
        if back:
            E = matmul(transpose(W), matmul(dB, *back), W) * values[..., None, :]
            total = E + transpose(E)
        if by_X:
            V = matmul(transpose(B), W)
            total = total + matmul(transpose(V), dX, V)
        return (total,)

    def cotangent(kept: State, slope: Array) -> tuple[Array | None, ...]:
        values, W, B, *back = kept
        of_X = of_B = None
        if by_X:
            V = matmul(transpose(B), W)
            of_X = matmul(V, slope, transpose(V))
        if back:
            of_B = matmul(slope_by_frame(slope, Eigen(values, W), B.shape), transpose(*back))
        return of_X, of_B

    def twice(kept: State, X: Array, B: Array) -> State:
        V = matmul(transpose(B), kept[1])
        return (matmul(transpose(V), X, V),)

    X = namespace_of(X).broadcast_to(X, known.vectors.shape)
    (change,) = shim.with_derivative(primal, tangent, cotangent, X, B, twice=twice)
    return change


def slope_by_frame(slope: Array, known: Eigen, shape: tuple[int, ...]) -> Array:
    r"""Turn a slope by the change into one by :math:`dB\,B^{-1}`, for B of the given shape."""
    values, W = known
    by_E = matmul(W, (2.0 * values)[..., None, :] * slope)
    return _sum_of_products(by_E, W, shape)


def function(change: Array, known: Eigen, f: Spectral, t: Any = None) -> Array:
    """Return f(C, t) for a number t."""

    def primal(change: Array) -> tuple[State, State]:
        U = known.vectors
        return (compose(U, f.value(spectrum_of(known), t), U),), known

    def tangent(kept: State, change: Array) -> State:
        values, W = kept
        inner = f.quotient(again(known, values).pairs, t) * change
        return (matmul(W, inner, transpose(W)),)

    def cotangent(kept: State, slope: Array) -> State:
        values, W = kept
        inner = matmul(transpose(W), symmetric(slope), W)  # dC is symmetric, so its slope is
        return (f.quotient(again(known, values).pairs, t) * inner,)

    def twice(kept: State, change: Array) -> State:
        values, W = kept
        return (matmul(W, inner_jet(f, values, change_of(symmetric(change)), t), transpose(W)),)

    (found,) = backend_of(change).with_derivative(primal, tangent, cotangent, change, twice=twice)
    return found


def carried(change: Array, known: Eigen, R: Array, t: Array) -> Array:
    r"""Return :math:`R\,C^t R^\top` as :math:`Y Y^\top`, :math:`Y = R\,W\Lambda^{t/2}`.

    This takes two products and is exactly symmetric. Its derivative is
    :math:`Y(Q \circ W^\top dC\,W)Y^\top`, where Q holds the divided differences of
    :math:`\lambda^t` over :math:`(\lambda_i\lambda_j)^{t/2}`. ``even_power`` returns half of Q.
    """
    xp, shape = namespace_of(change), R.shape

    def primal(change: Array, R: Array, t: Array) -> tuple[State, State]:
        roots = xp.exp((0.5 * t)[..., None] * spectrum_of(known).log)
        T = known.vectors * roots[..., None, :]
        Y = matmul(R, T)
        return (matmul(Y, transpose(Y)),), (*known, T, Y, t)

    def tangent(kept: State, change: Array, dR: Array, dt: Array) -> State:
        values, _, T, Y, t = kept
        spectrum = again(known, values)
        inner = spectrum.pairs.even_power(t[..., None, None]) * change
        inner = inner + diagonal_matrix((0.5 * dt)[..., None] * spectrum.log)
        half = matmul(dR, T) + matmul(Y, inner)
        whole = matmul(half, transpose(Y))
        return (whole + transpose(whole),)

    def cotangent(kept: State, slope: Array) -> State:
        values, _, T, Y, t = kept
        spectrum = again(known, values)
        by_Y = matmul(slope + transpose(slope), Y)
        inner, by_R = matmul(transpose(Y), by_Y), _sum_of_products(by_Y, T, shape)
        del by_Y  # the tables reuse its memory
        by_t = 0.5 * xp.sum(spectrum.log * xp.linalg.diagonal(inner), axis=-1)
        inner *= spectrum.pairs.even_power(t[..., None, None])
        return inner, by_R, by_t

    def twice(kept: State, change: Array, R: Array, t: Array) -> State:
        values, W, *_ = kept
        Y = matmul(R, W)
        inner = inner_jet(POWER, values, change_of(symmetric(change)), t[..., None])
        return (matmul(Y, inner, transpose(Y)),)

    batch = broadcast_shapes(change.shape[:-2], R.shape[:-2], t.shape)
    t = xp.broadcast_to(t, batch)
    if batch != tuple(change.shape[:-2]):
        change = xp.broadcast_to(change, (*batch, *change.shape[-2:]))
    (y,) = backend_of(change).with_derivative(primal, tangent, cotangent, change, R, t, twice=twice)
    return y


def log_squares(change: Array, known: Eigen) -> Array:
    r"""Return :math:`\|\log C\|^2`, of derivative :math:`2\operatorname{tr}(C^{-1}\log C\,dC)`."""
    xp = namespace_of(change)

    def primal(change: Array) -> tuple[State, State]:
        logs = spectrum_of(known).log
        return (xp.sum(logs * logs, axis=-1),), (known.values,)

    def slopes(values: Array) -> Array:
        return 2.0 * again(known, values).log / values

    def tangent(kept: State, change: Array) -> State:
        return (xp.sum(slopes(*kept) * xp.linalg.diagonal(change), axis=-1),)

    def cotangent(kept: State, by_square: Array) -> State:
        return (diagonal_matrix(by_square[..., None] * slopes(*kept)),)

    def twice(kept: State, change: Array) -> State:
        """With E, add half the quotients of 2 log(x)/x times E², all products of it summed up."""
        (values,), E = kept, change_of(symmetric(change))
        spectrum = Spectrum(values)
        rows, columns = 1.0 / values[..., :, None], (spectrum.log / values)[..., None, :]
        bend = 2.0 * rows * (LOG.quotient(spectrum.pairs, None) - columns)
        along = xp.sum(slopes(values) * xp.linalg.diagonal(E), axis=-1)
        return (along + 0.5 * xp.sum(bend * E * transpose(E), axis=(-2, -1)),)

    (squares,) = backend_of(change).with_derivative(primal, tangent, cotangent, change, twice=twice)
    return squares


def mean_logarithm(change: Array, weights: Array, known: Eigen, at_mean: bool = False) -> Array:
    """Return the weighted sum of log C over the first axis, without forming the logarithms.

    Shapes are (N, *channels, n, n) and (N, *channels). With ``at_mean`` the sum is known to be
    zero, and only its derivative is needed.
    """
    xp = namespace_of(change)

    def primal(change: Array, w: Array) -> tuple[State, State]:
        if at_mean:
            return (0.0 * known.vectors[0, ...],), (*known, w)
        heavy = w[..., None] * spectrum_of(known).log
        return (weighted_gram(heavy, transpose(known.vectors)),), (*known, w)

    def tangent(kept: State, change: Array, dw: Array) -> State:
        values, W, w = kept
        spectrum = again(known, values)
        inner = w[..., None, None] * (LOG.quotient(spectrum.pairs, None) * change)
        inner = inner + diagonal_matrix(dw[..., None] * spectrum.log)
        return (_sum_of_products(matmul(W, inner), W, W.shape[1:]),)

    def cotangent(kept: State, slope: Array) -> State:
        values, W, w = kept
        spectrum = again(known, values)
        inner = matmul(transpose(W), symmetric(slope), W)
        by_w = xp.sum(spectrum.log * xp.linalg.diagonal(inner), axis=-1)
        inner *= LOG.quotient(spectrum.pairs, None)
        inner *= w[..., None, None]
        return inner, by_w

    def twice(kept: State, change: Array, w: Array) -> State:
        values, W, _ = kept
        inner = w[..., None, None] * inner_jet(LOG, values, change_of(symmetric(change)))
        return (_sum_of_products(matmul(W, inner), W, W.shape[1:]),)

    (total,) = backend_of(change).with_derivative(
        primal, tangent, cotangent, change, weights, twice=twice
    )
    return total


def _sum_of_products(A: Array, T: Array, shape: tuple[int, ...]) -> Array:
    """Return A Tᵀ, summed over the axes along which an array of this shape was broadcast."""
    xp = namespace_of(A)
    if tuple(A.shape[1:]) == tuple(shape):  # a sum over samples is one large product
        return matmul(beside(A, 1), transpose(beside(T, 1)))
    full = matmul(A, transpose(T))
    lead = full.ndim - len(shape)
    full = xp.sum(full, axis=tuple(range(lead))) if lead else full
    alike = tuple(k for k, n in enumerate(shape) if n == 1 and full.shape[k] != 1)
    return xp.sum(full, axis=alike, keepdims=True) if alike else full
