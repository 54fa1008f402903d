"""Affine-invariant distance, logarithm, mean and normalization of SPD matrices in 60 digits.

The input is the exact value of its floats, and nothing here knows how gyrobn computes: all of it is
a Cholesky factor and an eigenproblem, whose 60 digits make their cancellations harmless.
"""

import numpy as np
from mpmath import MPContext

mp = MPContext()  # of our own: the digits of the global one belong to others
mp.dps = 60


def ill_conditioned(n, condition, seed, kind="turned"):
    """Return two SPD matrices of this condition number, ``turned`` each in its own way or not.

    ``same``: both have the same random eigenvectors. ``rising`` and ``falling``: the first has
    the axes for eigenvectors, its eigenvalues in this order.
    """
    rng = np.random.default_rng(seed)
    turns = [np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2)]
    if kind == "same":
        turns[0] = turns[1]
    elif kind != "turned":
        turns[0] = np.eye(n)[:: 1 if kind == "rising" else -1]
    pair = []
    for turn in turns:
        exponents = np.sort(np.concatenate([[0.0, 1.0], rng.uniform(0, 1, n - 2)]))
        P = (turn.T * condition ** (exponents - 1.0)) @ turn
        pair.append(0.5 * (P + P.T))
    return np.asarray(pair)


def exactly(P):
    return mp.matrix(np.asarray(P, dtype=np.float64).tolist())


def _function(P, f):
    values, U = mp.eigsy(0.5 * (P + P.T))
    return U * mp.diag([f(value) for value in values]) * U.T


def root(P):
    return _function(P, mp.sqrt)


def seen_from(P, Q):
    """Return P^(-1/2) Q P^(-1/2), P^(1/2) and P^(-1/2)."""
    R = root(P)
    back = R**-1
    C = back * Q * back
    return 0.5 * (C + C.T), R, back


def dist(P, Q):
    """Distance; NaN where the floats are not positive definite."""
    try:
        L = mp.cholesky(P) ** -1
    except ValueError:
        return mp.nan
    C = L * Q * L.T
    values = mp.eigsy(0.5 * (C + C.T), eigvals_only=True)
    if min(values) <= 0:
        return mp.nan
    return mp.sqrt(mp.fsum(mp.log(value) ** 2 for value in values))


def log(P, Q):
    C, R, _ = seen_from(P, Q)
    return R * _function(C, mp.log) * R


def norm_at(P, v):
    """Riemannian norm of a tangent vector at P."""
    L = mp.cholesky(P) ** -1
    c = L * v * L.T
    return mp.sqrt(mp.fsum(c[i, j] ** 2 for i in range(c.rows) for j in range(c.cols)))


def normalize(P, mean, factor, bias):
    C, _, _ = seen_from(mean, P)
    R = root(bias)
    return R * _function(C, lambda value: value**factor) * R


def residual(samples, mean):
    """Length of the mean of the logarithms at ``mean``: zero at the mean."""
    n, back = mean.rows, root(mean) ** -1
    g = mp.zeros(n)
    for P in samples:
        C = back * P * back
        g += _function(0.5 * (C + C.T), mp.log) / len(samples)
    return mp.sqrt(mp.fsum(g[i, j] ** 2 for i in range(n) for j in range(n)))
