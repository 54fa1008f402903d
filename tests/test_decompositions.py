"""How often matrices are decomposed: what is computed once and handed on is not computed again."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gyrobn
import gyrobn.torch
from gyrobn import SPD, Correlation, Grassmannian, Product, SpecialOrthogonal

LIKE = torch.zeros((), dtype=torch.float64)
DECOMPOSITIONS = {"_linalg_eigh", "_linalg_svd", "linalg_cholesky_ex", "linalg_qr"}


class Calls(TorchDispatchMode):
    """Count dispatched operations by name."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


# Evaluation: of the bias twice (from its coordinates, and its root or rotation), of the mean, of
# the samples; of bases twice, as cosines do not tell the small angles of which multiples are taken.
# A Cholesky factor more checks that the samples are positive definite. Training with one step: from
# two means, with their Hessian and the step, and the running mean is moved
MOST = [
    (SPD(8), 0, {"_linalg_eigh": 4, "linalg_cholesky_ex": 1}),
    (Grassmannian(12, 3), 0, {"_linalg_svd": 3, "_linalg_eigh": 2}),
    (SpecialOrthogonal(3), 0, {}),
    (SpecialOrthogonal(5), 0, {"_linalg_svd": 1, "_linalg_eigh": 3}),
    (Correlation(8), 0, {"linalg_cholesky_ex": 3}),
    (SPD(8), 1, {"_linalg_eigh": 9, "linalg_cholesky_ex": 1}),
    (Grassmannian(12, 3), 1, {"_linalg_svd": 8, "_linalg_eigh": 5, "linalg_qr": 2}),
    (SpecialOrthogonal(3), 1, {"_linalg_svd": 2}),
]


@pytest.mark.parametrize(("M", "steps", "most"), MOST, ids=lambda v: repr(v) if v else "")
def test_a_layer(M, steps, most):
    layer = gyrobn.torch.GyroBN(M, steps=1).double().train(bool(steps))
    x = M.random(16, rng=0, spread=0.5, like=LIKE)
    with torch.no_grad():
        layer(x)
        with Calls() as calls:
            layer(x)
    found = Counter({name: n for name, n in calls.names.items() if name in DECOMPOSITIONS})
    assert not found - Counter(most), found
    if SpecialOrthogonal(5) != M:  # which looks for half turns in several planes
        # the check of the samples waits for the device
        assert calls.names["_local_scalar_dense"] + calls.names["is_nonzero"] <= 4


def test_constants_are_ours():
    """No user holds an array that later calls compute with."""
    M = SPD(3)
    x = M.random(4, rng=0, like=LIKE)
    before = M.to_normal(x), Correlation(3).project(x)
    M.origin(x).fill_(7.0)
    M.to_normal(x).fill_(7.0)
    Correlation(3).origin(x).fill_(7.0)
    for a, b in zip(before, (M.to_normal(x), Correlation(3).project(x)), strict=True):
        assert torch.equal(a, b)


def test_constants_of_inference_mode_are_not_kept():
    M = SPD(9)  # a size that no other test has made constants for
    with torch.inference_mode():
        M.from_normal(torch.zeros(2, M.dim))
    c = torch.zeros(2, M.dim, requires_grad=True)
    M.from_normal(c).sum().backward()
    assert c.grad.isfinite().all()


# ---------------------------------------------------------------------- the estimator, on NumPy


@pytest.fixture
def linear_algebra(monkeypatch):
    """Count what NumPy decomposes: batches, by name."""
    calls, linalg = Counter(), gyrobn.backends.namespace_of(np.ones(1)).linalg

    def counted(name, inner):
        def count(x, *args, **kwargs):
            calls[name] += x.ndim > 2
            return inner(x, *args, **kwargs)

        monkeypatch.setattr(linalg, name, count)

    for name in ("eigh", "eigvalsh", "svd", "qr", "cholesky"):
        counted(name, getattr(linalg, name))
    return calls


def test_the_estimator_decomposes_each_evaluation_once(linear_algebra):
    """Checks of input (by fit and by transform) and output, a decomposition per evaluation, and one
    that normalizes."""
    x = SPD(8).random(200, rng=0, spread=0.5)
    bn = gyrobn.GyroBN("spd")
    linear_algebra.clear()
    bn.fit_transform(x)
    assert +linear_algebra == {"cholesky": 3, "eigh": bn.n_iter_ + 1}
    linear_algebra.clear()
    bn.transform(x)  # and of the mean, which is one matrix
    assert +linear_algebra == {"cholesky": 2, "eigh": 1}


def test_a_product_decomposes_what_its_factors_do(linear_algebra):
    """Each of them in each evaluation, until the last one has converged."""
    M = SPD(4)
    P = Product(M, M)
    y = P.join(*(M.random(200, rng=k, spread=0.5) for k in range(2)))
    linear_algebra.clear()
    bn = gyrobn.GyroBN(P, tol=1e-9).fit(y)
    bn.transform(y)
    assert +linear_algebra == {"cholesky": 6, "eigh": 2 * bn.n_iter_ + 2}


def test_definite_matrices_need_no_eigenvalues(linear_algebra):
    """A Cholesky factor shows them to be; of others the eigenvalues decide, as they always did."""
    M, rng = SPD(3), np.random.default_rng(0)
    x = M.random(50, rng=0)
    assert M.contains(x).all()
    assert not linear_algebra["eigvalsh"]
    rotation = np.linalg.qr(rng.standard_normal((50, 3, 3)))[0]
    for low in (-1e-3, 0.0, 1e-17, 1e-15, 3e-15, 1e-14, 1e-8):
        y = (rotation * np.asarray([low, 0.5, 1.0])) @ rotation.mT
        y = 0.5 * (y + y.mT)
        expected = M.violation(y) <= np.finfo(np.float64).eps ** 0.5
        assert [bool(M.contains(one)) for one in y] == expected.tolist()
    x[7, 0, 0] = np.nan
    assert np.flatnonzero(~M.contains(x)).tolist() == [7]
