"""Far out in hyperbolic space: nothing leaves the model, and no digit is lost that floats can hold.

At distance R floats are about ε·sinh R apart, and a sample that is scaled to the distance d from
its centre cannot be placed better than ε·sinh d, wherever it is carried to. The references are
exact: the hyperboloid in 60 digits, or a road that leads back to where it started.
"""

import jax
import numpy as np
import oracle
import pytest
import torch
from conftest import GEOMETRIES, host
from oracle import mp

from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    FrechetWarning,
    GyroBN,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    ProperVelocity,
    Stats,
    Stereographic,
    batch_stats,
    denormalize,
    frechet,
    normalize,
    normalize_batch,
    update_stats,
)

MODELS = [
    PoincareBall(2),
    PoincareBall(3, -2.0),
    Stereographic(3, -0.3),
    Hyperboloid(2),
    Hyperboloid(3, -0.5),
    Klein(2),
    Klein(3, -0.5),
    ProperVelocity(2),
    ProperVelocity(3, -0.5),
]
models = pytest.mark.parametrize("M", MODELS, ids=repr)
dtypes = pytest.mark.parametrize("dtype", ["float64", "float32"])


def eps(dtype):
    return float(np.finfo(dtype).eps)


def radius(M, dtype):
    """Return a distance at which half of the digits, or more, are left."""
    far = 15.0 if dtype == "float64" else 6.0
    return far / (2.0 if isinstance(M, Klein) else 1.0) / abs(M.curvature) ** 0.5


def at(M, distance, count, seed, dtype):
    """Return points at one distance from e, in all directions."""
    c = np.random.default_rng(seed).standard_normal((count, M.dim))
    c *= distance / np.linalg.norm(c, axis=-1, keepdims=True)
    return M.from_normal(c.astype(dtype))


def lifted(M, x):
    """Return the exact point of the hyperboloid, time first, that floats stand for."""
    sheet, p = oracle.Radius(M.n, M.curvature), oracle.exactly(x)
    if isinstance(M, Hyperboloid):
        return sheet.point(x)
    if isinstance(M, ProperVelocity):
        return sheet.point([0.0, *x])
    w = 1 + sheet.K * oracle.dot(p, p)
    t, a = (1 / mp.sqrt(w), 1 / mp.sqrt(w)) if isinstance(M, Klein) else (2 / w - 1, 2 / w)
    return [t / sheet.k, *oracle.times(a, p)]


def errors(M, found, exact):
    """Return the exact distances of points in floats from exact points."""
    sheet = oracle.Radius(M.n, M.curvature)
    return np.asarray(
        [float(sheet.dist(lifted(M, x), e)) for x, e in zip(found, exact, strict=True)]
    )


class TestGeodesics:
    @dtypes
    @models
    @pytest.mark.parametrize("inward", [False, True])
    @pytest.mark.parametrize("t", [0.0, 0.25, 0.5, 0.9, 1.0, 1.05])
    def test_from_the_nearer_end(self, M, dtype, t, inward):
        R = radius(M, dtype)
        x, y = at(M, R, 6, 1, dtype), at(M, 0.5 if inward else R, 6, 2, dtype)
        sheet = oracle.Radius(M.n, M.curvature)
        exact = []
        for a, b in zip(x, y, strict=True):
            p, q = lifted(M, a), lifted(M, b)
            exact.append(sheet.exp(p, oracle.times(mp.mpf(t), sheet.log(p, q))))
        limit = float(max(M.resolution(x).max(), M.resolution(y).max()))
        for times in (t, np.full(6, t, dtype=dtype)):
            assert errors(M, M.geodesic(x, y, times), exact).max() < 8 * limit

    @pytest.mark.parametrize("kind", [float, torch.tensor])
    @pytest.mark.parametrize(
        "M", [*MODELS, Euclidean(2), SPD(3), SPD(3, "cholesky_affine_invariant")], ids=repr
    )
    @pytest.mark.parametrize("t", [0.3, 0.8])
    def test_derivatives(self, M, t, kind):
        """They are those of x ⊕ (t ⊙ (⊖x ⊕ y))."""
        wide = {"dtype": torch.float64}
        points = [
            torch.as_tensor(M.to_normal(M.random(4, rng=k, spread=0.5))).requires_grad_()
            for k in (1, 2)
        ]
        x, y = map(M.from_normal, points)
        time = t if kind is float else torch.full((4,), t, **wide, requires_grad=True)
        inputs = points if kind is float else [*points, time]
        slopes = []
        for z in (M.geodesic(x, y, time), M.add(x, M.scale(time, M.add(M.neg(x), y)))):
            c = M.to_normal(z)
            weights = torch.linspace(-1.0, 1.0, c.numel(), **wide).reshape(c.shape)
            slopes.append(torch.autograd.grad(c, inputs, weights, retain_graph=True))
        for found, expected in zip(*slopes, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


class TestRateOne:
    @dtypes
    @pytest.mark.parametrize("M", [*MODELS, Product(PoincareBall(2), Hyperboloid(2))], ids=repr)
    def test_the_mean_is_replaced(self, M, dtype):
        R = 6.0 if isinstance(M, Product) else radius(M, dtype)
        x, y = at(M, R, 2, 1, dtype)
        var = np.ones(M.block_shape, dtype=dtype)
        mean, _ = update_stats(M, Stats(x, var), Stats(y, var), rate=1.0)
        assert M.dist(mean, y) < 2 * float(M.resolution(y))

    @pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
    def test_the_variance_is_replaced(self, M):
        x = M.random(2, rng=0, spread=0.5)
        old, new = (np.full(M.block_shape, v) for v in (1e3, 1.25e-20))
        mean, var = update_stats(M, Stats(x[0], old), Stats(x[1], new), rate=1.0)
        np.testing.assert_array_equal(var, new)
        np.testing.assert_allclose(host(M.dist(mean, x[1])), 0.0, atol=1e-14)
        _, var = update_stats(M, Stats(x[0], new), Stats(x[1], old), rate=0.0)
        np.testing.assert_array_equal(var, new)

    def test_numbers_of_other_sizes(self):
        old, new = np.asarray([1e17, 1.0]), np.asarray([1.234, 3.0])
        np.testing.assert_array_equal(Euclidean(2).geodesic(old, new, 1.0), new)
        np.testing.assert_array_equal(Euclidean(2).geodesic(old, new, 0.0), old)

    def test_correlations(self):
        M = Correlation(4)
        x, y = at(M, 10.0, 2, 1, "float64")
        np.testing.assert_allclose(M.geodesic(x, y, 1.0), y, rtol=0, atol=4e-15)


# mean and bias, samples, the standard deviation of the output: distances in units of 1/√−K
SETTINGS = [
    (3, 6, 2.0),
    (5, 6, 1.5),
    (8, 8, 1.0),
    (1, 8, 3.0),
    (6, 1, 1.0),
    (8, 2, 5.0),
    (8, 8, 0.1),
]


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
class TestOnTheModel:
    """However far the statistics are from the samples."""

    @dtypes
    @models
    def test_normalize(self, M, dtype):
        k, longer = abs(M.curvature) ** 0.5, 1.0 if dtype == "float32" else 2.1
        for centre, distance, scale in SETTINGS:
            mean, bias = at(M, longer * centre / k, 2, 1, dtype)
            x, one = at(M, longer * distance / k, 500, 2, dtype), np.ones((), dtype=dtype)
            constants = Stats(mean, one), bias, scale
            for target in (bias, mean, None):
                self.check(M, normalize(M, x, Stats(mean, one), target, scale))
            self.check(M, denormalize(M, x, *constants))
            self.check(M, normalize_batch(M, x, bias=bias, scale=5 * scale)[0])
            stats = Stats(torch.tensor(mean), torch.tensor(one))
            for target in (torch.tensor(bias), stats.mean, None):
                y = normalize(M, torch.tensor(x).requires_grad_(), stats, target, scale)
                self.check(M, y.detach().numpy())

    @dtypes
    @models
    def test_other_operations(self, M, dtype):
        k = abs(M.curvature) ** 0.5
        for far, other in ((8, 8), (8, 2), (12, 12)):
            x, y = at(M, far / k, 500, 1, dtype), at(M, other / k, 500, 2, dtype)
            for z in (
                M.add(x, y),
                M.relative(x, y),
                M.coadd(x, y),
                M.gyration(x, y, y),
                M.geodesic(x, y, 0.3),
                M.geodesic(x, y, 2.0),
                M.exp(x, M.log(x, y)),
                M.scale(2.0, x),
            ):
                self.check(M, z)

    @pytest.mark.parametrize("M", [PoincareBall(2), Hyperboloid(2)], ids=repr)
    def test_compiled(self, M):
        mean, bias = at(M, 5.0, 2, 1, "float32")
        x = at(M, 6.0, 500, 2, "float32")
        out = jax.jit(lambda x, m, b: normalize(M, x, Stats(m, x[0, 0] * 0 + 1), b, 2.0))
        self.check(M, np.asarray(out(x, mean, mean)))
        self.check(M, np.asarray(out(x, mean, bias)))

    @staticmethod
    def check(M, y):
        assert M.contains(y).all()
        if isinstance(M, Hyperboloid):
            assert M.violation(y).max() < 8 * eps(y.dtype)


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
class TestThereAndBack:
    """With the mean for a bias, and factor one, a sample comes back to where it was."""

    @dtypes
    @pytest.mark.parametrize("slopes", [False, True])
    @models
    def test_normalize(self, M, dtype, slopes):
        k = abs(M.curvature) ** 0.5
        for centre, distance in (
            ((8, 2), (10, 10), (2, 10)) if dtype == "float64" else ((4, 1), (5, 5))
        ):
            x, mean = at(M, distance / k, 200, 1, dtype), at(M, centre / k, 1, 2, dtype)[0]
            self.check(M, x, mean, slopes)

    @dtypes
    @models
    def test_sums(self, M, dtype):
        k = abs(M.curvature) ** 0.5
        far = 7.0 if dtype == "float64" else 3.0
        x, mean = at(M, far / k, 200, 1, dtype), at(M, far / k, 200, 2, dtype)
        seen = M.relative(mean, x)
        limit = self.limit(M, x, mean) + M.resolution(seen)
        assert (M.dist(M.add(mean, seen), x) < 8 * limit).all()

    @pytest.mark.parametrize("K", [-1.0, -0.3])
    def test_curvature_of_either_sign(self, K):
        """As of a layer that learns it: the sign is not known in advance."""
        known, M = Stereographic(2, K), Stereographic(2, np.asarray(K))
        for centre, distance in ((8, 2), (10, 10), (2, 10)):
            x, mean = at(known, distance, 200, 1, "float64"), at(known, centre, 1, 2, "float64")[0]
            back = M.standardize(x, mean, 1.0, mean)
            assert (known.dist(back, x) < 100 * self.limit(known, x, mean)).all()

    @dtypes
    @pytest.mark.parametrize("slopes", [False, True])
    @models
    def test_batches(self, M, dtype, slopes):
        """With the standard deviation that they have."""
        k, far = abs(M.curvature) ** 0.5, 6.0 if dtype == "float64" else 3.0
        x = M.add(at(M, far / k, 1, 2, dtype), at(M, far / k, 64, 1, dtype))
        given = torch.tensor(x).requires_grad_() if slopes else x
        stats = batch_stats(M, x)
        bias = torch.tensor(stats.mean) if slopes else stats.mean
        back, _ = normalize_batch(M, given, bias=bias, scale=float(stats.var) ** 0.5, eps=0.0)
        back = back.detach().numpy() if slopes else back
        assert (M.dist(back, x) < 20 * self.limit(M, x, stats.mean)).all()

    def check(self, M, x, mean, slopes):
        given, centre = (torch.tensor(a) if slopes else a for a in (x, mean))
        if slopes:
            given.requires_grad_()
        back = normalize(M, given, Stats(centre, centre[0] * 0 + 1), centre, eps=0.0)
        back = back.detach().numpy() if slopes else back
        assert (M.dist(back, x) < 8 * self.limit(M, x, mean)).all()

    @staticmethod
    def limit(M, x, mean):
        """Return what rounding costs: of the sample as the mean sees it, and of both."""
        seen = eps(x.dtype) * np.sinh(abs(M.curvature) ** 0.5 * M.dist(mean, x))
        return seen + M.resolution(x) + M.resolution(mean)


@models
def test_normalize_against_the_oracle(M):
    """Mean and bias far out and close to each other, the samples and the output near e."""
    k = abs(M.curvature) ** 0.5
    x, mean = at(M, 1.0 / k, 8, 1, "float64"), at(M, 7.0 / k, 1, 2, "float64")[0]
    bias = M.add(mean, at(M, 0.5 / k, 1, 3, "float64")[0])
    sheet, t = oracle.Radius(M.n, M.curvature), 0.95
    found = normalize(M, x, Stats(mean, np.asarray(1.0)), bias, scale=t, eps=0.0)
    m, b = lifted(M, mean), lifted(M, bias)
    exact = [sheet.normalize(lifted(M, a), m, b, mp.mpf(t)) for a in x]
    limit = TestThereAndBack.limit(M, x, mean) + M.resolution(bias)
    assert (errors(M, found, exact) < 8 * limit).all()


SCALED = r"{} scales {} samples, the first at index \d+, farther than"


class TestWarning:
    """Samples that coordinates cannot reach are held, and a warning says so."""

    @pytest.mark.parametrize("array", [np.asarray, torch.tensor, jax.numpy.asarray])
    @pytest.mark.parametrize(
        "M", [PoincareBall(2), Klein(2), Product(PoincareBall(2), Euclidean(1))], ids=repr
    )
    def test_far_statistics(self, M, array):
        mean = array(at(M, 4.0, 1, 1, "float32")[0])
        x = array(at(M, 6.0, 500, 2, "float32"))
        stats = Stats(mean, array(np.ones(M.block_shape, dtype="float32")))
        with pytest.warns(FrechetWarning, match=SCALED.format(r"normalize\(\)", r"\d+ of 500")):
            assert M.contains(normalize(M, x, stats, mean, scale=2.0)).all()
        normalize(M, x, stats, mean, scale=0.1)  # this is in reach: no warning

    def test_what_is_held_on_the_way(self):
        """The result is close to the identity, but what is scaled is too far from the mean.

        A sample that is NaN is nothing to warn of.
        """
        M = PoincareBall(2)
        mean = M.from_normal(np.asarray([9.0, 0.0], dtype="float32"))
        x = M.from_normal(np.asarray([[-9.0, 0.0], [8.0, 0.0], [8.0, 0.0]], dtype="float32"))
        x[2] = np.nan
        stats = Stats(mean, np.ones((), dtype="float32"))
        with pytest.warns(FrechetWarning, match="scales 1 of 3 samples, the first at index 0,"):
            y = normalize(M, x, stats, mean)
        np.testing.assert_array_equal(np.isnan(y).any(axis=-1), [False, False, True])
        assert np.isnan(normalize(M, x[2:], Stats(M.origin(x), stats.var))).all()

    def test_every_function_has_its_name(self):
        M = PoincareBall(2)
        x = M.random(50, rng=0)
        with pytest.warns(FrechetWarning, match=r"normalize_batch\(\) scales"):
            _, stats = normalize_batch(M, x, scale=40.0)
        text = r"denormalize\(\) scales .* closer to the identity"
        with pytest.warns(FrechetWarning, match=text):
            denormalize(M, x, Stats(stats.mean, np.asarray(1600.0)))
        near = M.add(at(M, 3.0, 1, 1, "float32"), M.random(50, rng=0, spread=0.5).astype("float32"))
        bn = GyroBN(M, bias=M.from_normal(np.asarray([3.0, 0.0], dtype="float32")), scale=2.0)
        bn.fit(near)
        text = SCALED.format(r"GyroBN.transform\(\)", r"\d+ of 500")
        with pytest.warns(FrechetWarning, match=text):
            assert M.contains(bn.transform(at(M, 6.0, 500, 2, "float32"))).all()


@pytest.mark.parametrize("M", [Hyperboloid(2), ProperVelocity(2)], ids=repr)
@pytest.mark.parametrize(("radius", "resolved"), [(30.0, True), (100.0, False), (300.0, False)])
def test_a_mean_that_is_not_resolved_has_not_converged(M, radius, resolved):
    x = M.from_normal(np.full((2, 2), radius / 2**0.5))
    if resolved:
        assert frechet(M, x).converged
        return
    with pytest.warns(FrechetWarning, match="float64 does not resolve a distance of 1 there"):
        assert not frechet(M, x).converged
