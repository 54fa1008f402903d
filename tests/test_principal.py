"""Bases at given angles: values against NumPy, derivatives against differences of 60 digits."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.linalg
import torch
from conftest import assert_close

from gyrobn import Grassmannian

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

ANGLES = {
    "generic": (0.2, 0.5, 1.1),
    "repeated": (0.7, 0.7, 0.2),
    "nearly repeated": (0.7, 0.7 + 1e-9, 0.2),
    "small": (1e-9, 1e-5, 1e-3),
    "zero": (0.0, 0.0, 0.0),
    "some zero": (0.0, 0.9, 0.9),
    "nearly right": (1.5, 1.55, 0.3),
}
SHAPES = [(3, 3), (5, 3), (1, 3), (2, 1)]
"""Sizes of the lower block: as many rows as columns, more, and fewer."""


def orthogonal(n, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]


def blocks(m, p, angles, seed=0):
    """Return the blocks of a basis, and that of its logarithm, at the angles."""
    k = min(m, p)
    theta = np.zeros(p)
    theta[:k] = angles[:k]
    P, Q, T = orthogonal(p, seed), orthogonal(m, seed + 1), orthogonal(p, seed + 2)
    tall = np.zeros((3, m, p))
    tall[:, range(k), range(k)] = np.stack([np.sin(theta), theta, np.cos(theta)])[:, :k]
    return P * np.cos(theta) @ T.T, Q @ tall[0] @ T.T, Q @ tall[1] @ P.T


CASES = [(m, p, name) for m, p in SHAPES for name in ANGLES]


@pytest.mark.parametrize(("m", "p", "name"), CASES)
def test_values(m, p, name, lib):
    """Logarithm, exponential, and the rotation that leads from the identity to the subspace."""
    M = Grassmannian(m + p, p)
    top, bottom, B = blocks(m, p, ANGLES[name])
    tol = 20 * lib.eps / np.cos(max(ANGLES[name][: min(m, p)]))
    U, V = np.concatenate([top, bottom]), orthogonal(m + p, 9)[:, :p]
    c = lib.array(B.reshape(-1))
    assert_close(M.to_normal(lib.array(U)), B.reshape(-1), tol, like=lib.like)
    P, _, Th = np.linalg.svd(top)
    assert_close(M.from_normal(c), U @ (P @ Th).T, tol, like=lib.like)
    Omega = np.zeros((m + p, m + p))
    Omega[p:, :p], Omega[:p, p:] = B, -B.T
    expected = scipy.linalg.expm(Omega) @ V
    assert_close(M.add(lib.array(U), lib.array(V)), expected, tol, like=lib.like)


def ratio(c):
    """θ/sin θ of c = cos θ, analytic through 1: off the manifold a cosine may exceed it."""
    c = mp.mpc(c)
    return mp.mpf(1) if c == 1 else mp.re(mp.acos(c) / mp.sqrt(1 - c * c))


def exact_logarithm(U):
    p = U.cols
    P, c, Th = mp.svd_r(U[:p, :])
    return U[p:, :] * Th.T * mp.diag([ratio(a) for a in c]) * P.T


def exact_sum(U, V):
    p = U.cols
    P, _, Th = mp.svd_r(U[:p, :])
    back = (P * Th).T
    C, S = U[:p, :] * back, U[p:, :] * back
    inner = S.T * V[p:, :]
    top = C * V[:p, :] - inner
    bottom = V[p:, :] + S * (V[:p, :] - (mp.eye(p) + C) ** -1 * inner)
    return mp.matrix(top.tolist() + bottom.tolist())


def exact_exponential(B):
    square, P = mp.eigsy(B.T * B)
    theta = [mp.sqrt(max(u, 0)) for u in square]
    ratio = [mp.mpf(1) if a < mp.mpf(10) ** -18 else mp.sin(a) / a for a in theta]
    cos = P * mp.diag([mp.cos(a) for a in theta]) * P.T
    return mp.matrix(cos.tolist() + (B * P * mp.diag(ratio) * P.T).tolist())


def exact_change(function, inputs, moves, h="1e-8"):
    """Return the changes along ``moves``, by central differences of fourth order."""
    with mp.workdps(60):
        h = mp.mpf(h)
        inputs, moves = ([mp.matrix(a.tolist()) for a in arrays] for arrays in (inputs, moves))

        def at(k):
            return function(*(x + k * h * d for x, d in zip(inputs, moves, strict=True)))

        a, b, c, d = map(at, (-2, -1, 1, 2))
        change = (a - 8 * b + 8 * c - d) / (12 * h)
        return np.asarray([[float(v) for v in row] for row in change.tolist()])


def everything(m, p, name):
    M = Grassmannian(m + p, p)
    top, bottom, B = blocks(m, p, ANGLES[name])
    U = np.concatenate([top, bottom])
    yield M.add, exact_sum, (U, orthogonal(m + p, 9)[:, :p])
    yield lambda U: M.to_normal(U).reshape(m, p), exact_logarithm, (U,)
    for factor in (1.0, 4.0):  # angles beyond π, too
        yield lambda B: M.from_normal(B.reshape(-1)), exact_exponential, (factor * B,)


SOME = [(3, 3, "generic"), (5, 3, "repeated"), (1, 3, "generic"), (5, 3, "nearly right")]
SOME += [(5, 3, "small"), (2, 1, "generic"), (5, 3, "nearly repeated")]


@pytest.mark.parametrize(("m", "p", "name"), SOME)
class TestDerivatives:
    """On the manifold and off it: changes of all entries, scaled up so that they count."""

    def moves(self, inputs, seed=5):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(x.shape) for x in inputs]

    def test_torch_and_jax(self, m, p, name):
        for function, exact, inputs in everything(m, p, name):
            moves = self.moves(inputs)
            change = exact_change(exact, inputs, moves)
            (weight,) = self.moves([change], 6)
            size = max(1.0, abs(change).max())
            leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
            total = (function(*leaves) * torch.as_tensor(weight)).sum()
            slopes = torch.autograd.grad(total, leaves)
            back = sum((g.numpy() * d).sum() for g, d in zip(slopes, moves, strict=True))
            assert abs(back - (change * weight).sum()) < 1e-11 * size
            ways = [(torch.func.jvp, torch.as_tensor)]
            ways += [(jax.jvp, jnp.asarray)] if name in ("generic", "small") else []
            for jvp, array in ways:
                forward = jvp(function, *(tuple(map(array, a)) for a in (inputs, moves)))[1]
                np.testing.assert_allclose(forward, change, atol=1e-12 * size)


def test_changes_may_be_numpys_arrays():
    """``jax.jvp`` passes them on as they are, beside a point that is traced."""
    M = Grassmannian(4, 2)
    x, y = (M.random(rng=seed, spread=0.5) for seed in (1, 2))
    v = np.linspace(-1.0, 1.0, x.size).reshape(x.shape)

    def change(x, v):
        return jax.jvp(lambda x: M.relative_normal(x, jnp.asarray(y)), (x,), (v,))[1]

    found = jax.jit(lambda x: change(x, v))(jnp.asarray(x))
    np.testing.assert_allclose(found, change(jnp.asarray(x), jnp.asarray(v)), atol=1e-12)
