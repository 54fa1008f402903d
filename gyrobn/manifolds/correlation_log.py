r"""Flat metrics of correlation matrices by the logarithm of a symmetric matrix."""

from typing import Any

import numpy as np

from gyrobn.backends import Array, State, backend_of, dot, namespace_of
from gyrobn.manifolds.correlation_matrices import CorrelationMatrices, to_unit_diagonal
from gyrobn.numerics.arrays import constant
from gyrobn.numerics.decompositions import eigh, finite_or_identity, solve
from gyrobn.numerics.jets import change_of, function_jet, twice_only
from gyrobn.numerics.linalg import differential, symmetric_functions
from gyrobn.numerics.matrices import (
    congruence,
    diagonal_matrix,
    eye,
    from_triangle,
    matmul,
    pack,
    symmetric,
    to_triangle,
    transpose,
    unpack,
    with_diagonal,
)
from gyrobn.numerics.spectra import Spectrum
from gyrobn.numerics.spectral import EXP, LOG

ROOT2 = 2.0**0.5


class OffLog(CorrelationMatrices):
    r"""The entries of log C off the diagonal, :math:`\sqrt2` times those below it.

    They determine the diagonal of log C, since :math:`\operatorname{diag}(C) = 1` (Archakov and
    Hansen, 2021).
    """

    def to_inside(self, x: Array) -> Array:
        """Return the entries of the logarithm."""
        (S,) = symmetric_functions(x, LOG)
        return to_triangle(S, diagonal=False, weight=ROOT2)

    def from_inside(self, x: Array) -> Array:
        """Return exp(S + D), with the diagonal matrix D for which its diagonal is one."""
        S = self._symmetric(x)
        (C,) = symmetric_functions(S + diagonal_matrix(_log_diagonal(S)), EXP)
        return with_diagonal(symmetric(C), 1.0)

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        """Return the entries of the change of the logarithm."""
        return to_triangle(differential(LOG, x, v), diagonal=False, weight=ROOT2)

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        r"""Return :math:`dC = d\exp(dS + dD)`, with dD such that its diagonal is zero."""
        xp = namespace_of(x, v)
        values, U = eigh(x)
        quotients = 1.0 / LOG.quotient(Spectrum(values).pairs, None)
        dS = self._symmetric(v)
        J, dC = _diagonal_jacobian(U, quotients), _across(U, quotients, dS)
        dD = -solve(J, xp.linalg.diagonal(dC))
        return with_diagonal(_across(U, quotients, dS + diagonal_matrix(dD)), 0.0)

    def _symmetric(self, y: Array) -> Array:
        return from_triangle(y, self.n, diagonal=False, weight=ROOT2, mirror=1.0)


def _log_diagonal(S: Array) -> Array:
    r"""Return the d for which :math:`\exp(S + \operatorname{diag} d)` has the diagonal one.

    Newton's method minimizes the convex :math:`\operatorname{tr}\exp(S + D) -
    \operatorname{tr} D`. Along a line of speed p the logarithm of its curvature changes no faster
    than :math:`\|p\|_\infty`, so :math:`\log(1 + \|p\|)/\|p\|` times the Newton step goes downhill
    from anywhere. With the Jacobian J of the exponential's diagonal with respect to d, a change of
    S changes d by :math:`-J^{-1}\operatorname{diag}(d\exp(dS))`.
    """
    xp, shim = namespace_of(S), backend_of(S)
    (d,) = shim.opaque("log diagonal", _search_log_diagonal, shim.stop_gradient(S))

    def primal(S: Array) -> tuple[State, State]:
        values, U = eigh(S + diagonal_matrix(d))
        quotients = EXP.quotient(Spectrum(values).pairs, None)
        J = _diagonal_jacobian(U, quotients)
        return (d + solve(J, 1.0 - _diagonal_of_exp(values, U)),), (values, U, quotients, J)

    def tangent(kept: State, dS: Array) -> State:
        _, U, quotients, J = kept
        return (-solve(J, xp.linalg.diagonal(_across(U, quotients, dS))),)

    def cotangent(kept: State, slope: Array) -> State:
        _, U, quotients, J = kept
        return (_across(U, quotients, diagonal_matrix(-solve(J, slope))),)

    def twice(kept: State, S: Array) -> State:
        """Take two steps with the constant Jacobian: the second is right to second order."""
        values, U, _, J = kept
        change, e = change_of(symmetric(S)), 0.0
        for _ in range(2):
            E = function_jet(EXP, values, U, change + e)
            e = e - diagonal_matrix(solve(J, change_of(xp.linalg.diagonal(E))))
        return (xp.linalg.diagonal(e),)

    (found,) = shim.with_derivative(primal, tangent, cotangent, S, twice=twice)
    return found


def _search_log_diagonal(S: Array) -> State:
    xp = namespace_of(S)
    tol = float(xp.finfo(S.dtype).eps) ** 0.5

    def body(state: State) -> State:
        d, done = state
        values, U = eigh(S + diagonal_matrix(d))
        J = _diagonal_jacobian(U, EXP.quotient(Spectrum(values).pairs, None))
        p = solve(J, 1.0 - _diagonal_of_exp(values, U))
        size = xp.max(xp.abs(p), axis=-1)
        some = xp.where(size > 0, size, 1.0)
        damping = xp.where(size > 0, xp.log1p(some) / some, 1.0)
        d = xp.where(done[..., None], d, d + damping[..., None] * p)
        return d, xp.logical_or(done, xp.logical_not(size > tol))

    d = xp.zeros_like(S[..., 0])
    for _ in range(2):  # the fixed point iteration of Archakov and Hansen, a contraction
        values, U = eigh(S + diagonal_matrix(d))
        d = d - xp.log(_diagonal_of_exp(values, U))
    state = (d, xp.max(xp.abs(d), axis=-1) < 0)
    d, _ = backend_of(S).while_loop(lambda s: xp.logical_not(xp.all(s[1])), body, state, 50)
    return (d,)


def _across(U: Array, quotients: Array, change: Array) -> Array:
    """Return the change of a matrix function, by the quotients in the eigenbasis U."""
    return congruence(U, quotients * congruence(transpose(U), change))


def _diagonal_of_exp(values: Array, U: Array) -> Array:
    """Return the diagonal of the exponential of a matrix, from its decomposition."""
    return dot(U * U, namespace_of(U).exp(values)[..., None, :])


def _diagonal_jacobian(U: Array, quotients: Array) -> Array:
    r"""Return the derivative of diag(exp A) with respect to diag(A); W are the quotients.

    .. math:: J_{ij} = \sum_{kl} U_{ik}U_{jk}\, W_{kl}\, U_{il}U_{jl}
    """
    xp = namespace_of(U)
    n = U.shape[-1]
    pairs = xp.reshape(U[..., :, None] * U[..., None, :], (*U.shape[:-1], n * n))
    weighted = pairs * xp.reshape(quotients, (*U.shape[:-2], n * n))[..., None, :]
    return matmul(weighted, transpose(pairs))


class LogScaled(CorrelationMatrices):
    r"""The logarithm of :math:`\Delta C\Delta`, whose positive diagonal Δ makes row sums 1.

    The vector of ones is then an eigenvector of eigenvalue 1. With an orthonormal basis Q of its
    orthogonal complement, the coordinates are :math:`\log(Q^\top\Delta C\Delta Q)`.
    """

    def to_inside(self, x: Array) -> Array:
        """Return the entries of the logarithm in the complement."""
        (S,) = symmetric_functions(_restrict(_scaled(x, _unit_row_sums(x))), LOG)
        return pack(S)

    def from_inside(self, x: Array) -> Array:
        """Return the exponential, divided by the roots of its diagonal."""
        (E,) = symmetric_functions(unpack(x, self.n - 1), EXP)
        return to_unit_diagonal(symmetric(_extend(E - eye(E)) + eye(E, self.n)))

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        r"""Return the change of the logarithm, from that of :math:`\Delta C\Delta`."""
        xp = namespace_of(x, v)
        d = _unit_row_sums(x)
        M, dM = _scaled(x, d), _scaled(symmetric(v), d)
        u = -solve(M + eye(M), xp.sum(dM, axis=-1))  # the relative change of Δ
        dM = dM + u[..., :, None] * M + u[..., None, :] * M
        Q = constant(_helmert, x, self.n)
        return pack(differential(LOG, _restrict(M), congruence(transpose(Q), dM)))

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        """Return the change of C, from that of the exponential."""
        d = _unit_row_sums(x)
        M = _restrict(_scaled(x, d))
        dM = _extend(differential(LOG, M, unpack(v, self.n - 1), inverse=True))
        dC = dM / (d[..., :, None] * d[..., None, :])
        half = 0.5 * namespace_of(x, v).linalg.diagonal(dC)
        return with_diagonal(dC - (half[..., :, None] + half[..., None, :]) * x, 0.0)


def _scaled(A: Array, d: Array) -> Array:
    """Return DAD, D = diag(d)."""
    return d[..., :, None] * A * d[..., None, :]


def _unit_row_sums(C: Array) -> Array:
    r"""Return the positive x with :math:`x_i (Cx)_i = 1`: ΔCΔ has row sums one for Δ = diag(x).

    Newton's method minimizes :math:`\tfrac12 x^\top Cx - \sum\log x_i`, which is self-concordant:
    if the decrement λ is large, 1/(1 + λ) of the step goes downhill and keeps x positive, and a
    line search goes further. With the Hessian :math:`H = \Delta C\Delta + I`, a change of C changes
    x by :math:`-\Delta H^{-1}\Delta\,dC\,x`.
    """
    xp, shim = namespace_of(C), backend_of(C)
    known, finite = finite_or_identity(shim.stop_gradient(C))
    (x,) = shim.opaque("unit row sums", _search_unit_row_sums, known)

    def row_sums(x: Array, C: Array) -> Array:
        return x * matmul(C, x[..., None])[..., 0]

    def primal(C: Array) -> tuple[State, State]:
        H, rest = _scaled(known, x) + eye(known), 1.0 - row_sums(x, C)
        found = x * (1.0 + solve(H, rest))
        # if C is not positive definite, there may be no such x, and the search ends anywhere
        good = xp.max(xp.abs(rest), axis=-1, keepdims=True) < 0.5
        return (xp.where(xp.logical_and(finite[..., 0], good), found, xp.nan),), (x, H)

    def tangent(kept: State, dC: Array) -> State:
        x, H = kept
        return (-x * solve(H, row_sums(x, dC)),)

    def cotangent(kept: State, slope: Array) -> State:
        x, H = kept
        by_sums = -x * solve(H, x * slope)
        return (by_sums[..., :, None] * x[..., None, :],)

    def twice(kept: State, C: Array) -> State:
        """Take two steps with the constant Hessian: the second is right to second order."""
        x, H = kept
        C, y = twice_only(C), x
        for _ in range(2):
            y = y * (1.0 - solve(H, row_sums(y, C) - shim.stop_gradient(row_sums(y, C))))
        return (y,)

    (found,) = shim.with_derivative(primal, tangent, cotangent, C, twice=twice)
    return found


def _search_unit_row_sums(C: Array) -> State:
    xp, loop = namespace_of(C), backend_of(C).while_loop
    eps = float(xp.finfo(C.dtype).eps)

    def body(state: State) -> State:
        x, done = state
        M = _scaled(C, x)
        q = solve(M + eye(M), 1.0 - xp.sum(M, axis=-1))  # the step, relative to x
        turn = matmul(M, q[..., None])[..., 0]
        bend, slope = xp.clip(dot(q, turn), min=0.0), xp.sum(turn, axis=-1)
        decrement = xp.sqrt(dot(q, q) + bend)

        def along(state: State) -> State:
            (t,) = state
            share = q / (1.0 + t[..., None] * q)
            gradient = slope + bend * t - xp.sum(share, axis=-1)
            root = xp.sqrt(bend + dot(share, share))
            root = xp.where(root > 0, root, 1.0)
            return (t - gradient / (root * (root + xp.abs(gradient))),)

        # the same method along the line, where it costs little
        (t,) = loop(lambda state: True, along, (1.0 / (1.0 + decrement),), 6)
        t = xp.where(decrement > 0.25, t, 1.0)
        x = xp.where(done[..., None], x, x * (1.0 + t[..., None] * q))
        noise = C.shape[-1] * eps * xp.max(xp.abs(M), axis=(-2, -1))  # of the row sums
        return x, xp.logical_or(done, xp.logical_not(decrement > xp.clip(noise, min=eps**0.5)))

    total = xp.clip(xp.sum(C, axis=(-2, -1)), min=eps)
    x = xp.sqrt(C.shape[-1] / total)[..., None] * xp.ones_like(C[..., 0])
    state = (x, total < 0)
    x, _ = loop(lambda s: xp.logical_not(xp.all(s[1])), body, state, 60)
    return (x,)


def _helmert(n: int) -> "np.ndarray[Any, Any]":
    """Return n × (n−1): its columns are an orthonormal basis of the vectors of sum 0."""
    k = np.arange(1, n)
    Q = np.triu(np.ones((n, n - 1)))
    Q[k, k - 1] = -k
    return Q / np.sqrt(k * (k + 1.0))


def _restrict(M: Array) -> Array:
    """Return QᵀMQ; exactly the identity for the identity."""
    Q = constant(_helmert, M, M.shape[-1])
    return eye(M, M.shape[-1] - 1) + matmul(transpose(Q), M - eye(M), Q)


def _extend(A: Array) -> Array:
    """Return QAQᵀ."""
    Q = constant(_helmert, A, A.shape[-1] + 1)
    return matmul(Q, A, transpose(Q))
