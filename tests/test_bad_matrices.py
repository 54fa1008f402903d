"""Matrices that are no points, through the estimator: what is said, and what becomes of them."""

import inspect
import re
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from conftest import ON_REQUEST, Library, host
from operations import COUNT, call, operations, values
from sklearn.base import clone

from gyrobn import (
    SPD,
    Chunks,
    Correlation,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    SpecialOrthogonal,
    batch_stats,
    frechet,
    reduce_rank,
)
from gyrobn.manifolds.correlation import CHARTS, covariance_to_correlation
from gyrobn.manifolds.spd import METRICS

wide = pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
LIBRARIES = [Library("numpy", "float64"), Library("torch", "float32")]


@pytest.fixture(params=LIBRARIES, ids=lambda lib: f"{lib.name}-{lib.dtype}")
def few(request):
    """One library a dtype: the others are held to them elsewhere."""
    return request.param


def spoil(M, change, index=4):
    """Ten good samples of which one is changed."""
    X = M.random(10, rng=0, spread=0.3)
    X[index] = change(X[index].copy())
    return X


def entry(i, j, value):
    def change(A):
        A[i, j] += value
        return A

    return change


def turned(*values, seed=0):
    """A symmetric matrix with the given eigenvalues, in a random basis."""
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values),) * 2))
    return Q @ np.diag(values) @ Q.T


def correlation(r):
    return np.asarray([[1.0, r, r], [r, 1.0, r], [r, r, 1.0]])


# geometry, what is wrong, how to make it so, and the size of the violation
CASES = [
    (SPD(3), "not symmetric", lambda A: turned(1, 2, 4) + 0.4 * np.eye(3, k=1), None),
    (SPD(3), "indefinite", lambda A: np.diag([2.0, 1.0, -0.5]), 0.25),
    (SPD(3), "negative definite", lambda A: -np.eye(3), 1.0),
    (SPD(3), "singular", lambda A: turned(1, 2, 0), 0.0),
    (SPD(3), "of rank one", lambda A: np.ones((3, 3)), 0.0),
    (SPD(3), "zero", lambda A: 0 * A, 0.0),
    (Correlation(3), "not symmetric", lambda A: entry(0, 2, 0.2)(np.eye(3)), 0.2),
    (Correlation(3), "indefinite", lambda A: correlation(-0.9), 0.8),
    (Correlation(3), "singular", lambda A: correlation(1.0), 0.0),
    (Correlation(3), "a diagonal of 1.5", lambda A: entry(1, 1, 0.5)(np.eye(3)), 0.5),
    (Correlation(3), "a covariance", lambda A: 3.0 * correlation(0.5), 2.0),
    (Correlation(3), "zero", lambda A: 0 * A, 1.0),
    (Grassmannian(4, 2), "not orthonormal", lambda A: 1.1 * A, 0.21),
    (Grassmannian(4, 2), "not orthogonal", lambda A: A @ [[1.0, 0.6], [0.0, 0.8]], 0.6),
    (Grassmannian(4, 2), "of rank one", lambda A: A[:, [0, 0]], 1.0),
    (Grassmannian(4, 2), "zero", lambda A: 0 * A, 1.0),
    (Grassmannian(4, 2, "projector"), "no projector", lambda A: 1.1 * A, 0.2),
    (Grassmannian(4, 2, "projector"), "of rank three", lambda A: np.diag([1.0, 1, 1, 0]), 1.0),
    (Grassmannian(4, 2, "projector"), "not symmetric", entry(0, 3, 0.3), None),
    (SpecialOrthogonal(3), "not orthogonal", lambda A: 1.1 * A, 0.21),
    (SpecialOrthogonal(3), "a reflection", lambda A: A * [1.0, 1.0, -1.0], 2.0),
    (SpecialOrthogonal(3), "singular", lambda A: A * [1.0, 1.0, 0.0], 1.0),
    (SpecialOrthogonal(3), "zero", lambda A: 0 * A, 1.0),
]
cases = pytest.mark.parametrize(
    ("M", "change", "size"),
    [pytest.param(M, f, size, id=f"{M!r}-{what}") for M, what, f, size in CASES],
)


@cases
class TestBadSamples:
    def test_the_error(self, M, change, size, few: Library):
        X = few.array(spoil(M, change))
        with pytest.raises(ValueError, match="1 of 10 samples, the first at index 4") as error:
            GyroBN(M).fit(X)
        message = str(error.value)
        assert message.startswith(f"X is off {M!r} by ")
        assert message.endswith("on_invalid='project' moves such samples onto it")
        found = float(message.removeprefix(f"X is off {M!r} by ").split(" in ")[0])
        assert found > few.eps**0.5
        if size is not None:  # a singular matrix is said to be off by 2√ε
            assert abs(found - size) < 1e-2 * size + 4 * few.eps**0.5

    @wide
    def test_projection(self, M, change, size, few: Library):
        X = few.array(spoil(M, change))
        bn = GyroBN(M, on_invalid="project").fit(X)
        assert np.isfinite(host(bn.mean_)).all()
        assert np.isfinite(host(bn.var_)).all()
        assert host(M.contains(bn.mean_))
        Y = bn.transform(X)
        assert np.isfinite(host(Y)).all()
        assert host(M.contains(Y)).all()
        assert Y.dtype == X.dtype
        good = [k for k in range(10) if k != 4]
        # the others go in as they are
        clean = host(X).copy()
        clean[4] = host(M.project(X))[4]
        expected = batch_stats(M, few.array(clean))
        np.testing.assert_array_equal(host(bn.mean_), host(expected.mean))
        assert host(M.violation(M.project(X)))[good].max() < 100 * few.eps

    def test_dropped(self, M, change, size, few: Library):
        """As if it had not been there; from transform it comes as NaN, in its place."""
        X, good = spoil(M, change), np.arange(10) != 4
        bn = GyroBN(M, on_invalid="drop")
        dropped = re.escape(f"GyroBN.fit() dropped 1 of 10 samples that are not on {M!r}, ")
        with pytest.warns(FrechetWarning, match=dropped + "the first at index 4"):
            bn.fit(few.array(X))
        rest = GyroBN(M).fit(few.array(X[good]))
        assert host(M.dist(bn.mean_, rest.mean_)) < 100 * few.eps
        np.testing.assert_allclose(host(bn.var_), host(rest.var_), rtol=100 * few.eps)
        assert bn.n_samples_seen_ == bn.weight_sum_ == 9
        with pytest.warns(FrechetWarning, match=r"GyroBN.transform\(\) returns NaN for 1 of 10"):
            Y = host(bn.transform(few.array(X)))
        assert np.isnan(Y[4]).all()
        np.testing.assert_array_equal(Y[good], host(bn.transform(few.array(X[good]))))

    def test_in_transform_and_with_channels(self, M, change, size):
        X = spoil(M, change)
        bn = GyroBN(M).fit(np.delete(X, 4, axis=0))
        for method in (bn.transform, bn.inverse_transform):
            with pytest.raises(ValueError, match="1 of 10 samples, the first at index 4"):
                method(X)
        channels = np.stack([np.delete(X, 4, axis=0)[:9], X[1:]], axis=1)
        with pytest.raises(ValueError, match=r"1 of 18 samples, the first at index \(3, 1\)"):
            GyroBN(M).fit(channels)


GEOMETRIES = [
    *(SPD(3, metric) for metric in METRICS),
    *(Correlation(3, metric) for metric in CHARTS),
    Grassmannian(4, 2),
    Grassmannian(4, 2, "projector"),
    SpecialOrthogonal(3),
]
geometries = pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
PROJECTORS = Grassmannian(4, 2, "projector")


@geometries
class TestEveryGeometry:
    @pytest.mark.parametrize("on_invalid", ["raise", "project"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_nan_and_infinity(self, M, value, on_invalid, few: Library):
        X = M.random(6, rng=0, spread=0.3)
        X[2, 1, 0] = X[5, 0, 1] = value
        kind = "NaN" if np.isnan(value) else "inf"
        message = f"X has {kind} in 2 of 6 samples, the first at index 2: drop or impute"
        with pytest.raises(ValueError, match=message):
            GyroBN(M, on_invalid=on_invalid).fit(few.array(X))

    @pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
    def test_what_is_dropped_has_no_weight(self, M):
        """Channels, weights, domains, chunks and coordinates; the other channel counts on."""
        X = M.random(12, 2, rng=0, spread=0.3)
        X[2, 1], X[7, 0, 1, 0] = -3.0 * X[2, 1], np.nan
        X[9] = np.inf
        valid, w, who = np.ones((12, 2)), np.linspace(0.5, 1.5, 12), np.repeat([0, 1], 6)
        valid[2, 1] = valid[7, 0] = valid[9] = 0.0
        clean = np.where(valid[..., None, None] == 1.0, X, M.origin(X))
        bn = GyroBN(M, on_invalid="drop", output="coordinates")
        plain = clone(bn).set_params(on_invalid="raise")
        bn.fit(X, sample_weight=w, domains=who)
        plain.fit(clean, sample_weight=valid * w[:, None], domains=who)
        for name in "mean_", "var_", "weight_sum_":
            np.testing.assert_array_equal(getattr(bn, name), getattr(plain, name))
        assert (bn.n_samples_seen_, plain.n_samples_seen_) == (11, 12)
        Y = bn.transform(X, domains=who).reshape(12, 2, M.dim)
        np.testing.assert_array_equal(np.isnan(Y).all(-1), valid == 0.0)
        expected = plain.transform(clean, domains=who).reshape(Y.shape)
        np.testing.assert_array_equal(Y[valid == 1.0], expected[valid == 1.0])
        back = bn.inverse_transform(Y.reshape(12, -1), domains=who)
        assert M.dist(back[valid == 1.0], X[valid == 1.0]).max() < 1e-8

        parts = Chunks(lambda: iter((X[:5], X[5:])))
        chunked = clone(bn).fit(parts, sample_weight=w, domains=who)
        assert M.dist(chunked.mean_, bn.mean_).max() < 1e-8
        Z = np.concatenate([*chunked.transform_chunks(parts, domains=who)])
        np.testing.assert_allclose(Z.reshape(Y.shape), Y, atol=1e-7)
        new = bn.set_params(unseen="refit").transform(X, domains=[5] * 12)
        expected = plain.fit(clean, sample_weight=valid).transform(clean)
        np.testing.assert_allclose(new[valid.all(1)], expected[valid.all(1)], atol=1e-10)

    def test_nan_beside_a_bad_sample(self, M):
        X = M.random(6, rng=0, spread=0.3)
        X[1] *= -3.0
        X[2, 1, 0] = np.nan
        with pytest.raises(ValueError, match="X has NaN in 1 of 6 samples, the first at index 2"):
            GyroBN(M, on_invalid="project").fit(X)
        assert np.isinf(M.violation(X)).tolist() == [k == 2 for k in range(6)]

    def test_shapes(self, M):
        for shape in ((6, 5, 4), (6, 9), (6, 3, 4), (3, 5, 5)):
            with pytest.raises(ValueError, match=r"expects X of shape \(N, \*channels, \*\("):
                GyroBN(M).fit(np.ones(shape))
        with pytest.raises(ValueError, match="expects X of shape"):  # one point is no batch
            GyroBN(M).fit(M.random(rng=0))

    def test_good_points_stay(self, M, eager: Library):
        x = M.random(20, rng=0, like=eager.like, spread=0.8)
        y = M.project(x)
        assert host(M.contains(x)).all()
        if isinstance(M, Grassmannian) and M.representation == "basis":
            x, y = (host(a) @ np.swapaxes(host(a), -1, -2) for a in (x, y))
        np.testing.assert_allclose(host(y), host(x), rtol=0, atol=40 * eager.eps)
        once = M.project(np.random.default_rng(0).standard_normal((8, *M.point_shape)))
        np.testing.assert_allclose(M.project(once), once, rtol=0, atol=1e-13)

    def test_small_errors_are_forgiven(self, M, few: Library):
        """Half the digits of the dtype: 1e-8 is rounding in float32, and close to it in float64."""
        x = host(M.random(6, rng=0, spread=0.3))
        noise = np.random.default_rng(0).standard_normal(x.shape)
        close = few.array(x + 0.02 * few.eps**0.5 * noise)
        far = few.array(x + 30.0 * few.eps**0.5 * noise)
        GyroBN(M).fit(close)
        with pytest.raises(ValueError, match="of 6 samples, the first at index 0"):
            GyroBN(M).fit(far)


def entry_is(value):
    """One entry above the diagonal: a Cholesky factor is not made of it."""

    def change(A):
        A[0, 1] = value
        return A

    return change


def signs(A):
    """Return a singular matrix, as its pattern of signs says, with ones on the diagonal."""
    s = np.where(np.arange(len(A)) % 2, -1.0, 1.0)
    return np.outer(s, s)[:, : A.shape[1]]


BAD = {
    "indefinite": lambda A: np.where(np.eye(*A.shape) > 0, 1.0, -0.9),
    "negative": lambda A: -A,
    "singular": lambda A: np.ones_like(A),
    "of signs": signs,
    "zero": lambda A: 0 * A,
    "NaN": entry_is(np.nan),
    "inf": entry_is(np.inf),
    "huge": lambda A: A * (0.9 * np.finfo(A.dtype).max / abs(A).max()),
}
OF_THE_BATCH = {
    *("batch_stats", "centred", "frechet", "frechet_mean", "frechet_variance", "normalize_batch"),
    *("start", "hessian"),
}
"""Operations in which samples meet."""
LENGTHS = ("norm", "dist", "to_normal", "relative_normal")


def attempt(function, *arguments):
    """Return what a ValueError says, and the result if there is none."""
    try:
        with np.errstate(all="ignore"):
            return "", function(*arguments)
    except ValueError as error:
        return str(error), None


good_values = cache(lambda M, lib: values(M, lib.like))
good_results = cache(lambda M, lib, name, f: call(M, name, f, good_values(M, lib)))


KINDS = [(LIBRARIES[0], kind) for kind in BAD]
KINDS += [(Library(name, "float64"), kind) for name in ON_REQUEST for kind in BAD]
KINDS += [(LIBRARIES[1], kind) for kind in ("indefinite", "of signs", "NaN")]


@geometries
@pytest.mark.parametrize(("few", "kind"), KINDS, ids=lambda p: getattr(p, "name", p))
@wide
@pytest.mark.filterwarnings("ignore::gyrobn.PrecisionWarning")
class TestOneBadMatrixInEveryOperation:
    @staticmethod
    def spoilt(M, kind, lib, role):
        """Arguments of which one is spoilt, at index 4."""
        given = good_values(M, lib)
        X = host(given[role]).astype(lib.dtype)
        with np.errstate(all="ignore"):
            X[4] = BAD[kind](X[4])
        return given | dict.fromkeys((role, "covariance") if role == "x" else (role,), lib.array(X))

    @pytest.mark.parametrize("role", ["x", "y"])
    def test_it_is_nan_or_named(self, M, kind, role, few: Library):
        """NaN, or an error that names the sample; never LAPACK's error, nor a change of others."""
        given = self.spoilt(M, kind, few, role)
        good = [k for k in range(COUNT) if k != 4]
        for name, function in operations(M):
            if role == "y" and "y" not in inspect.signature(function).parameters:
                continue
            said, found = attempt(call, M, name, function, given)
            assert not said or re.search(r"(matrix|sample) 4\b", said), name
            if not said and name not in OF_THE_BATCH:
                for a, b in zip(found, good_results(M, few, name, function), strict=True):
                    if tuple(a.shape[:1]) == (COUNT,):
                        a, b = host(a)[good], host(b)[good]
                        np.testing.assert_allclose(a, b, rtol=0, atol=1e3 * few.eps, err_msg=name)

    def test_no_length_is_wrong(self, M, kind, few: Library):
        """An indefinite matrix has no distance from others, nor has one with NaN."""
        definite = isinstance(M, (SPD, Correlation)) and kind in ("indefinite", "negative")
        if not definite and kind not in ("NaN", "inf"):
            return
        for role in ("x", "y"):
            given = self.spoilt(M, kind, few, role)
            for name in LENGTHS if role == "x" else LENGTHS[1::2]:
                said, found = attempt(call, M, name, getattr(M, name), given)
                assert said or not np.isfinite(host(found[0])[4]).all(), name

    def test_the_mean(self, M, kind, few: Library):
        """A channel without a mean stops at once, says why, and does not touch the others."""
        X, good = (host(self.spoilt(M, kind, few, "x")[name]) for name in ("x", "y"))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", FrechetWarning)
            said, found = attempt(frechet, M, few.array(np.stack([good, X], axis=1)))
        if said:
            assert "matrix 9 of the batch is not positive definite" in said
            return
        assert host(found.converged)[0]
        if host(found.converged)[1]:  # it has lengths, wrong ones: only GyroBN looks at the points
            # of a singular matrix, rounding decides about the sign of an eigenvalue
            assert not isinstance(M, (SPD, Correlation)) or kind in ("singular", "of signs", "huge")
            return
        expected = "1 of 6 samples of channel 1 are not on the manifold, the first at index 4; drop"
        assert expected in str(warned[0].message)
        if not np.isfinite(host(found.residual)[1]):
            assert host(found.iterations)[1] == 1
            assert np.isnan(host(found.mean)[1]).any()


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (["spd", "correlation", "special_orthogonal"], (6, 3, 4), r"X of shape \(6, 3, 4\).* no"),
        (["grassmannian"], (6, 3, 4), "smaller than the space"),
        (["grassmannian"], (6, 3, 3), "smaller than the space"),
        (["spd", "correlation", "special_orthogonal", "grassmannian"], (6, 4), "no points of"),
    ],
)
def test_shapes_of_no_points(names, shape, message):
    for name in names:
        with pytest.raises(ValueError, match=message):
            GyroBN(name).fit(np.ones(shape))


class TestWhatTheProjectionDoes:
    def test_spd_has_a_floor(self):
        """The nearest symmetric matrix whose eigenvalues are at least √ε of the largest."""
        A = turned(4.0, 1.0, -2.0) + 0.3 * np.asarray([[0, 1, 0], [-1, 0, 0], [0, 0, 0]])
        found = SPD(3).project(A)
        np.testing.assert_allclose(found, turned(4.0, 1.0, 4.0 * 2.0**-26), atol=1e-14)

    def test_covariance_becomes_its_correlation(self):
        rng = np.random.default_rng(0)
        A = rng.standard_normal((6, 3, 9))
        S = A @ np.swapaxes(A, -1, -2)
        scales = np.sqrt(np.diagonal(S, axis1=-2, axis2=-1))
        expected = S / (scales[:, :, None] * scales[:, None, :])
        for unit in (1.0, 1e-26, 1e20):
            found = Correlation(3).project(unit * S)
            np.testing.assert_allclose(found, expected, atol=1e-15)
            np.testing.assert_allclose(covariance_to_correlation(unit * S), expected, atol=1e-15)
        np.testing.assert_array_equal(np.diagonal(found, axis1=-2, axis2=-1), 1.0)

    def test_a_basis_of_the_same_span(self):
        A = np.random.default_rng(0).standard_normal((5, 6, 2))
        U = Grassmannian(6, 2).project(A)
        inside = U @ np.swapaxes(U, -1, -2) @ A
        np.testing.assert_allclose(inside, A, atol=1e-13)
        P = Grassmannian(6, 2, "projector").project(A @ np.swapaxes(A, -1, -2))
        np.testing.assert_allclose(P @ A, A, atol=1e-13)

    @pytest.mark.parametrize("M", [*GEOMETRIES, SPD(6), Correlation(6), Grassmannian(47, 10)])
    def test_float32_comes_back_on_the_manifold(self, M):
        rng = np.random.default_rng(0)
        A = rng.standard_normal((20, *M.point_shape)).astype(np.float32)
        x = M.project(A)
        assert x.dtype == np.float32
        assert M.contains(x).all()

    @pytest.mark.parametrize("noise", [0.0, 0.05])
    @pytest.mark.parametrize(
        "M",
        [SPD(3), Correlation(3), Grassmannian(4, 2), PROJECTORS, SpecialOrthogonal(3)],
        ids=repr,
    )
    def test_gradients(self, M, noise):
        """At points, and close to them, against differences; a bad sample spoils no other."""
        rng = np.random.default_rng(0)
        x = M.random(5, rng=0, spread=0.3) + noise * rng.standard_normal((5, *M.point_shape))
        v, target = rng.standard_normal((2, *x.shape))
        x[3] = 0.0

        leaf = torch.as_tensor(x).requires_grad_(True)
        (M.project(leaf)[:3] * torch.as_tensor(target[:3])).sum().backward()
        found = np.sum(host(leaf.grad)[:3] * v[:3])
        h = 1e-5 if noise else 1e-7  # Correlation leaves what is as good as a point alone
        up, down = (np.sum(M.project(x + t * v)[:3] * target[:3]) for t in (h, -h))
        if noise or not isinstance(M, Correlation):
            assert abs(found - (up - down) / (2 * h)) < 1e-5 * (1 + abs(found))
        assert np.isfinite(found)


class TestUnits:
    @staticmethod
    def covariances(n=4, count=20, seed=0):
        A = np.random.default_rng(seed).standard_normal((count, n, 3 * n))
        return A @ np.swapaxes(A, -1, -2) / (3 * n)

    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("unit", [1e-26, 1e-12, 1e15])
    def test_covariances_in_volts(self, metric, unit, few: Library):
        S = self.covariances()
        bn = GyroBN(SPD(4, metric), scale=0.5)
        Y = host(bn.fit(few.array(unit * S)).transform(few.array(unit * S)))
        assert np.isfinite(Y).all()
        if metric != "log_cholesky":
            expected = host(bn.fit_transform(few.array(S)))
            np.testing.assert_allclose(Y, expected, atol=2e3 * few.eps)
            back = host(bn.fit(few.array(unit * S)).inverse_transform(few.array(Y))) / unit
            np.testing.assert_allclose(back, S, atol=2e4 * few.eps)

    @pytest.mark.parametrize("unit", [1e-26, 1.0, 1e20])
    def test_violations_do_not_depend_on_the_unit(self, unit):
        S = self.covariances()
        S[3, 0, 1] += 0.5 * abs(S[3]).max()
        with pytest.raises(ValueError, match=r"by 0\.5 in 1 of 20 samples, the first at index 3"):
            GyroBN(SPD(4)).fit(unit * S)

    @pytest.mark.parametrize("unit", [1e-26, 1.0, 1e20])
    def test_covariances_as_correlations(self, unit):
        S = self.covariances()
        with pytest.raises(ValueError, match=r"is off Correlation.* in 20 of 20 samples"):
            GyroBN(Correlation(4)).fit(unit * S)
        bn = GyroBN(Correlation(4), on_invalid="project").fit(unit * S)
        expected = GyroBN(Correlation(4)).fit(covariance_to_correlation(S))
        np.testing.assert_allclose(bn.mean_, expected.mean_, atol=1e-14)
        np.testing.assert_allclose(bn.var_, expected.var_, rtol=1e-12)


# ---------------------------------------------------------------------- dropped, and reduced


def test_where_nothing_can_be_dropped():
    X, bn = SPD(3).random(6, rng=0), GyroBN("spd", on_invalid="drop")
    with pytest.raises(ValueError, match="none of the 6 samples is on the manifold"):
        bn.fit(-X)
    import dask.array as da

    with pytest.raises(ValueError, match="drop those of a Dask array before"):
        bn.fit(da.from_array(X))
    X[2, 0, 0] = np.nan
    with pytest.warns(FrechetWarning, match="dropped 1 of 6"):
        bn.set_params(unseen="online").fit(X, domains=[0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="X has NaN in 1 of 6 samples, the first at index 2"):
        bn.transform(X, domains=[2] * 6)
    with pytest.raises(ValueError, match="on_invalid must be 'raise', 'project' or 'drop'"):
        bn.set_params(on_invalid="skip").fit(X)
    tasks = bn.set_params(on_invalid="drop", unseen="error").transform(
        da.from_array(X, chunks=(4, 3, 3)), domains=[0, 0, 0, 1, 1, 1]
    )
    with pytest.warns(FrechetWarning, match="returns NaN for 1 of 4"):
        assert np.isnan(tasks.compute()).any(axis=(1, 2)).tolist() == [k == 2 for k in range(6)]


def test_covariances_of_an_average_reference(lib: Library):
    """All lack one direction: on the others they are points, with the same distances."""
    centring, P = np.eye(5) - 0.2, SPD(5).random(20, rng=0)
    X = lib.array(centring @ P @ centring)
    with pytest.raises(ValueError, match=r"rank 4 of 5.*common subspace \(gyrobn\.reduce_rank\)"):
        GyroBN("spd").fit(X)
    Y, W = reduce_rank(X)
    assert Y.dtype == X.dtype
    np.testing.assert_allclose(host(W.T @ W), np.eye(4), atol=10 * lib.eps)
    np.testing.assert_allclose(host(W @ Y @ W.T), host(X), atol=100 * lib.eps)
    assert GyroBN("spd").fit(Y).converged_
    helmert = np.linalg.qr(centring[:, :4])[0]  # another basis of the same subspace
    other = lib.array(helmert.T @ P @ helmert)
    np.testing.assert_allclose(host(frechet(SPD(4), Y)[1]), host(frechet(SPD(4), other)[1]), 1e-4)
    assert reduce_rank(lib.array(P))[0].shape == (20, 5, 5)
    with pytest.raises(ValueError, match="expected square matrices"):
        reduce_rank(X[:, :3, :])


def test_names_of_metrics_that_pyriemann_has():
    X = SPD(3).random(9, rng=0)
    names = {"riemann": "affine_invariant", "logeuclid": "log_euclidean"}
    for name, metric in (names | {"logchol": "log_cholesky"}).items():
        assert SPD(3, name) == SPD(3, metric)
        assert GyroBN("spd", metric=name).fit(X).manifold_ == SPD(3, metric)
    with pytest.raises(ValueError, match="got 'wasserstein'"):
        SPD(3, "wasserstein")
