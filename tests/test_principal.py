"""The blocks of a basis: values against NumPy, derivatives against differences of 60 digits."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import torch
from conftest import assert_close, host

from gyrobn import Grassmannian
from gyrobn.manifolds.principal import direct_rotation, exponential, logarithm

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
cases = pytest.mark.parametrize(("m", "p", "name"), CASES)


@cases
class TestValues:
    def test_logarithm_and_exponential(self, m, p, name, lib):
        top, bottom, B = blocks(m, p, ANGLES[name])
        tol = 20 * lib.eps / np.cos(max(ANGLES[name][: min(m, p)]))
        assert_close(logarithm(lib.array(top), lib.array(bottom)), B, tol, like=lib.like)
        upper, lower = (host(a) for a in exponential(lib.array(B)))
        W = np.linalg.svd(top)[0] @ np.linalg.svd(top)[2]
        np.testing.assert_allclose(upper, top @ W.T, atol=tol)
        np.testing.assert_allclose(lower, bottom @ W.T, atol=tol)

    def test_direct_rotation(self, m, p, name, lib):
        top, bottom, _ = blocks(m, p, ANGLES[name])
        U = np.concatenate([top, bottom])
        C, S, inverse = (host(a) for a in direct_rotation(lib.array(U)))
        tol = 20 * lib.eps / np.cos(max(ANGLES[name][: min(m, p)]))
        np.testing.assert_allclose(inverse @ (np.eye(p) + C), np.eye(p), atol=tol)
        P, _, Th = np.linalg.svd(top)
        np.testing.assert_allclose(np.concatenate([C, S]) @ P @ Th, U, atol=tol)
        np.testing.assert_allclose(C, C.T, atol=tol)
        assert np.linalg.eigvalsh(C)[0] > -tol


def ratio(c):
    """θ/sin θ of c = cos θ, analytic through 1: off the manifold a cosine may exceed it."""
    c = mp.mpc(c)
    return mp.mpf(1) if c == 1 else mp.re(mp.acos(c) / mp.sqrt(1 - c * c))


def exact_logarithm(top, bottom):
    P, c, Th = mp.svd_r(top)
    return bottom * Th.T * mp.diag([ratio(a) for a in c]) * P.T


def exact_rotation(U):
    p = U.cols
    top, bottom = U[:p, :], U[p:, :]
    P, _, Th = mp.svd_r(top)
    back = (P * Th).T
    C = top * back
    return C, bottom * back, (mp.eye(p) + C) ** -1


def exact_exponential(B):
    square, P = mp.eigsy(B.T * B)
    theta = [mp.sqrt(max(u, 0)) for u in square]
    ratio = [mp.mpf(1) if a < mp.mpf(10) ** -18 else mp.sin(a) / a for a in theta]
    cos = mp.diag([mp.cos(a) for a in theta])
    return P * cos * P.T, B * P * mp.diag(ratio) * P.T


def exact_change(function, inputs, moves, h="1e-8"):
    """Return the changes along ``moves``, by central differences of fourth order."""
    with mp.workdps(60):
        h = mp.mpf(h)
        inputs, moves = ([mp.matrix(a.tolist()) for a in arrays] for arrays in (inputs, moves))

        def at(k):
            found = function(*(x + k * h * d for x, d in zip(inputs, moves, strict=True)))
            return found if isinstance(found, tuple) else (found,)

        ends = [at(k) for k in (-2, -1, 1, 2)]
        changes = [(a - 8 * b + 8 * c - d) / (12 * h) for a, b, c, d in zip(*ends, strict=True)]
        return [np.asarray([[float(v) for v in row] for row in a.tolist()]) for a in changes]


def everything(m, p, name):
    top, bottom, B = blocks(m, p, ANGLES[name])
    U = np.concatenate([top, bottom])
    yield direct_rotation, exact_rotation, (U,)
    yield lambda *x: (logarithm(*x),), exact_logarithm, (top, bottom)
    yield exponential, exact_exponential, (B,)
    yield exponential, exact_exponential, (4.0 * B,)  # angles beyond π, too


SOME = [(3, 3, "generic"), (5, 3, "repeated"), (1, 3, "generic"), (5, 3, "nearly right")]
SOME += [(5, 3, "small"), (2, 1, "generic"), (5, 3, "nearly repeated")]


@pytest.mark.parametrize(("m", "p", "name"), SOME)
class TestDerivatives:
    """On the manifold and off it: changes of all entries, scaled up so that they count."""

    def moves(self, inputs, seed=5):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(x.shape) for x in inputs]

    def test_torch(self, m, p, name):
        for function, exact, inputs in everything(m, p, name):
            moves = self.moves(inputs)
            changes = exact_change(exact, inputs, moves)
            weights = self.moves(changes, 6)
            size = max(1.0, *(abs(a).max() for a in changes))
            leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
            found = function(*leaves)
            sum(
                (a * torch.as_tensor(w)).sum() for a, w in zip(found, weights, strict=True)
            ).backward()
            back = sum(
                (x.grad * torch.as_tensor(d)).sum() for x, d in zip(leaves, moves, strict=True)
            )
            expected = sum((a * w).sum() for a, w in zip(changes, weights, strict=True))
            assert abs(float(back) - expected) < 1e-11 * size
            arrays = [tuple(map(torch.as_tensor, a)) for a in (inputs, moves)]
            forward = torch.func.jvp(function, *arrays)[1]
            for a, e in zip(forward, changes, strict=True):
                np.testing.assert_allclose(a, e, atol=1e-12 * size)

    def test_jax(self, m, p, name):
        if name not in ("generic", "small"):
            return
        for function, exact, inputs in everything(m, p, name):
            moves = self.moves(inputs)
            arrays = [tuple(map(jnp.asarray, a)) for a in (inputs, moves)]
            forward = jax.jvp(function, *arrays)[1]
            changes = exact_change(exact, inputs, moves)
            size = max(1.0, *(abs(a).max() for a in changes))
            for a, e in zip(forward, changes, strict=True):
                np.testing.assert_allclose(a, e, atol=1e-12 * size)


def test_changes_may_be_numpys_arrays():
    """``jax.jvp`` passes them on as they are, beside a point that is traced."""
    M = Grassmannian(4, 2)
    x, y = (M.random(rng=seed, spread=0.5) for seed in (1, 2))
    v = np.linspace(-1.0, 1.0, x.size).reshape(x.shape)

    def change(x, v):
        return jax.jvp(lambda x: M.relative_normal(x, jnp.asarray(y)), (x,), (v,))[1]

    found = jax.jit(lambda x: change(x, v))(jnp.asarray(x))
    np.testing.assert_allclose(found, change(jnp.asarray(x), jnp.asarray(v)), atol=1e-12)
