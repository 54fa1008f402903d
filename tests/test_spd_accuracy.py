"""Affine-invariant SPD operations on ill-conditioned matrices, against 60 digits.

Rounding the input alone changes a distance by about εκ, κ the larger condition number; no
operation may lose much more than that, whatever the eigenvectors are.
"""

import warnings

import numpy as np
import pytest
import spd_oracle as exact
from conftest import LIBRARIES, host
from spd_oracle import ill_conditioned, mp

from gyrobn import SPD, PrecisionWarning, Stats, frechet, normalize

CONDITIONS = {"float64": (1.0, 1e4, 1e8, 1e10, 1e12, 1e14), "float32": (1.0, 1e2, 1e4, 1e5, 1e6)}
KINDS = ("turned", "same", "rising", "falling")
METRICS = ("affine_invariant", "cholesky_affine_invariant")
LOST = 32.0  # units of εκ; at most 13 were measured
libraries = pytest.mark.parametrize("lib", LIBRARIES, ids=lambda lib: f"{lib.name}-{lib.dtype}")


def cases(lib, sizes=(2, 4), kinds=KINDS, seeds=(0, 1)):
    for condition in CONDITIONS[lib.dtype]:
        for n in sizes:
            for kind in kinds:
                for seed in seeds:
                    pair = ill_conditioned(n, condition, seed, kind).astype(lib.dtype)
                    if not mp.isnan(exact.dist(*map(exact.exactly, pair))):
                        yield condition, pair


@libraries
@pytest.mark.filterwarnings("ignore::gyrobn.PrecisionWarning")
def test_distance(lib):
    larger = cases(lib, (8, 16), ("turned",), (3,)) if lib.name == "numpy" else ()
    for condition, (P, Q) in (*cases(lib), *larger):
        M, n = SPD(P.shape[-1]), P.shape[-1]
        true = exact.dist(exact.exactly(P), exact.exactly(Q))
        error = abs(float(host(M.dist(lib.array(P), lib.array(Q))) - true))
        assert error <= lib.eps * (LOST * condition + 8 * n + 4 * float(true))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_logarithm(dtype, metric):
    (lib,) = (lib for lib in LIBRARIES if (lib.name, lib.dtype) == ("torch", dtype))
    for condition, (P, Q) in cases(lib, seeds=(0,)):
        if condition * lib.eps > 0.05:
            continue
        M, n = SPD(P.shape[-1], metric), P.shape[-1]
        v = host(M.log(lib.array(P), lib.array(Q)))
        true = exact.log(exact.exactly(P), exact.exactly(Q))
        # half an ulp of each entry of the result is worth εκ in the metric at P
        size = float(exact.norm_at(exact.exactly(P), true))
        error = float(exact.norm_at(exact.exactly(P), exact.exactly(v) - true))
        assert error <= LOST * n * lib.eps * condition * (1.0 + size)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_normalization(dtype):
    (lib,) = (lib for lib in LIBRARIES if (lib.name, lib.dtype) == ("torch", dtype))
    for condition, (mean, P) in cases(lib, seeds=(0,)):
        if condition * lib.eps > 0.01:
            continue
        M = SPD(P.shape[-1])
        bias = ill_conditioned(M.n, 10.0, 5)[0].astype(dtype)
        stats = Stats(lib.array(mean), lib.array(np.asarray(3.9)))
        y = host(normalize(M, lib.array(P[None]), stats, lib.array(bias), eps=0.1)[0])
        true = exact.normalize(*map(exact.exactly, (P, mean)), mp.mpf(0.5), exact.exactly(bias))
        # the relative condition is up to κ², that of the output κ: rounding it costs εκ
        error = exact.dist(true, exact.exactly(y))
        assert float(error) <= LOST * lib.eps * condition * 8.0


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_mean(dtype, metric):
    eps = np.finfo(dtype).eps
    for condition in (1e2, 1e4) if dtype == "float32" else (1e4, 1e8, 1e10):
        for n in (2, 4):
            pairs = [ill_conditioned(n, condition, seed, "turned") for seed in range(3)]
            x = np.concatenate(pairs).astype(dtype)
            result = frechet(SPD(n, metric), x)
            assert result.converged
            left = exact.residual([exact.exactly(P) for P in x], exact.exactly(result.mean))
            assert float(left) <= LOST * eps * condition


def test_the_norm_of_a_relative_point_says_that_it_has_no_digits():
    P, Q = ill_conditioned(2, 1e10, 0)
    for metric in METRICS:
        M = SPD(2, metric)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            M.dist(P, Q)  # has digits
        told = pytest.warns(PrecisionWarning, match=r"1 of 1 matrices .* dist\(x, y\)")
        # by rounding its smallest eigenvalue is positive, negative or zero
        with np.errstate(invalid="ignore", divide="ignore"), told:
            M.norm(M.relative(P, Q))


@pytest.mark.parametrize("M", [SPD(3), SPD(3, "log_euclidean")], ids=repr)
def test_a_matrix_that_is_singular_up_to_rounding_is_told(M):
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    x = np.stack([np.eye(3), (turn * [1.0, 0.5, 3e-16]) @ turn.T])
    x = x + (np.linalg.eigvalsh(x)[:, 0] <= 0)[:, None, None] * 1e-15 * np.eye(3)
    with pytest.warns(PrecisionWarning, match="1 of 2 matrices are singular up to rounding"):
        M.norm(x)
    with pytest.warns(PrecisionWarning):
        M.dist(M.random(2, rng=0), x)
