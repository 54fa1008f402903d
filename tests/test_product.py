"""Products: each factor on its own, in one array."""

import math
import pickle
import warnings
from dataclasses import replace

import jax
import numpy as np
import pytest
import torch
from conftest import EAGER, Library, assert_close, host

from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    Hyperboloid,
    PoincareBall,
    Product,
    SpecialOrthogonal,
    Sphere,
    Stats,
    batch_stats,
    denormalize,
    frechet,
    frechet_variance,
    normalize,
    update_stats,
)

PRODUCTS = [
    Product(SPD(3), Correlation(3), Grassmannian(4, 2), PoincareBall(2)),
    Product(Euclidean(2), Sphere(2), Hyperboloid(3, curvature=-0.5)),
    Product(Correlation(4), SpecialOrthogonal(3)),
    Product(Product(PoincareBall(2), Correlation(3)), Product(Euclidean(1))),
    Product(SPD(2, "log_cholesky")),
]
products = pytest.mark.parametrize("M", PRODUCTS, ids=repr)


def parts_of(M, values):
    """Split numbers, one per block, as the factors take them."""
    ends = np.cumsum([len(f.blocks) for f in M.factors])[:-1]
    return [
        part[..., 0] if len(f.blocks) == 1 else part
        for f, part in zip(M.factors, np.split(values, ends, axis=-1), strict=True)
    ]


def blockwise(M, values):
    """Numbers of a factor or product, with an axis of blocks in any case."""
    return values[..., None] if len(M.blocks) == 1 else values


def samples(M, count=8, spread=0.5):
    """Samples about a point that is not the identity, factor by factor."""
    parts = []
    for k, f in enumerate(M.factors):
        if isinstance(f, Product):
            parts.append(samples(f, count, spread))
        else:
            centre = f.random(rng=50 + k, spread=0.5)
            parts.append(f.add(centre, f.random(count, rng=k, spread=spread)))
    return M.join(*parts)


POINTS = {"add": 2, "neg": 1, "relative": 2, "gyration": 3, "coadd": 2, "project": 1, "log": 2}
NUMBERS = {"dist": 2, "norm": 1}
VECTORS = {"exp": (0, 3), "transport": (0, 1, 3), "inner": (0, 3, 4)}


@products
class TestFactorByFactor:
    @pytest.mark.parametrize(
        ("name", "dtype"),
        [(name, "float32" if name == "torch" else "float64") for name in EAGER],
    )
    def test_operations(self, M, name, dtype):
        eager = Library(name, dtype)
        x, y, z = (M.random(4, rng=seed, like=eager.like, spread=0.6) for seed in (1, 2, 3))
        given = x, y, z, M.log(x, y), M.log(x, z)
        calls = {k: tuple(range(n)) for k, n in (POINTS | NUMBERS).items()} | VECTORS
        for name, which in calls.items():
            split = [M.split(given[i]) for i in which]
            each = [getattr(f, name)(*(a[k] for a in split)) for k, f in enumerate(M.factors)]
            whole = getattr(M, name)(*(given[i] for i in which))
            if name in NUMBERS or name == "inner":
                total = sum(host(e) if name == "inner" else host(e) ** 2 for e in each)
                expected = total if name == "inner" else np.sqrt(total)
                limit = 1e-13 if eager.double else 1e-5
                np.testing.assert_allclose(host(whole), expected, atol=limit)
                continue
            for found, expected in zip(M.split(whole), each, strict=True):
                assert_close(found, expected, 20 * eager.eps)

    def test_coordinates(self, M):
        x = M.random(4, rng=0, spread=0.6)
        c = [f.to_normal(part) for f, part in zip(M.factors, M.split(x), strict=True)]
        np.testing.assert_array_equal(M.to_normal(x), np.concatenate(c, axis=-1))
        np.testing.assert_allclose(M.from_normal(M.to_normal(x)), x, atol=1e-13)
        assert M.dim == sum(f.dim for f in M.factors) == sum(M.blocks)
        np.testing.assert_allclose(M.norm(M.origin(x)), 0.0, atol=1e-15)

    def test_a_multiplier_a_block(self, M):
        x = M.random(4, rng=0, spread=0.6)
        t = np.linspace(0.3, 1.1, 4 * len(M.blocks)).reshape(4, -1)
        whole = t[..., 0] if len(M.blocks) == 1 else t
        for given, each in ((whole, parts_of(M, t)), (0.4, [0.4] * len(M.factors))):
            found = M.split(M.scale(given, x))
            for f, s, part, out in zip(M.factors, each, M.split(x), found, strict=True):
                np.testing.assert_allclose(out, f.scale(s, part), atol=1e-14)

    @pytest.mark.parametrize("weights", [None, np.linspace(0.5, 2.0, 8)])
    def test_statistics_and_normalize(self, M, weights):
        x = samples(M)
        stats = batch_stats(M, x, weights)
        assert np.shape(stats.var) == M.block_shape
        bias = M.random(rng=9, spread=0.4)
        scale = np.linspace(0.2, 0.5, len(M.blocks))
        s = scale[0] if len(M.blocks) == 1 else scale
        out = normalize(M, x, stats, bias, s, 1e-3)
        back = denormalize(M, out, stats, bias, s, 1e-3)
        assert float(np.max(M.dist(back, x))) < 1e-12
        new = batch_stats(M, M.random(8, rng=7, spread=0.3))
        moved = update_stats(M, stats, new, rate=0.3)
        np.testing.assert_allclose(moved.var, 0.7 * stats.var + 0.3 * new.var)
        numbers = parts_of(M, blockwise(M, np.asarray(stats.var))), parts_of(M, scale)
        points = map(M.split, (x, stats.mean, bias, out, new.mean, moved.mean))
        for f, var, t, part, mean, b, y, other, between in zip(
            M.factors, *numbers, *points, strict=True
        ):
            alone = batch_stats(f, part, weights)
            assert float(f.dist(mean, alone.mean)) < 1e-12
            np.testing.assert_allclose(var, alone.var, rtol=1e-12)
            expected = normalize(f, part, alone, b, t, 1e-3)
            assert float(np.max(f.dist(y, expected))) < 1e-12
            assert float(f.dist(f.geodesic(mean, other, 0.3), between)) < 1e-13

    def test_channels(self, M):
        x = M.random(6, 3, rng=0, spread=0.3)
        stats = batch_stats(M, x)
        assert stats.mean.shape == (3, *M.point_shape)
        assert blockwise(M, stats.var).shape == (3, len(M.blocks))
        out = normalize(M, x, stats, scale=0.3)
        for k in range(3):
            one = Stats(stats.mean[k], stats.var[k])
            np.testing.assert_allclose(out[:, k], normalize(M, x[:, k], one, scale=0.3), atol=1e-14)
        distance = frechet_variance(M, x, stats.mean)
        np.testing.assert_allclose(distance, stats.var, rtol=1e-12)


class TestOneArray:
    M = Product(SPD(2), Euclidean(3), Grassmannian(3, 1))

    def test_split_and_join(self, eager: Library):
        M = self.M
        assert M.point_shape == (4 + 3 + 3,)
        x = M.random(5, 2, rng=0, like=eager.like)
        parts = M.split(x)
        assert [tuple(p.shape) for p in parts] == [(5, 2, 2, 2), (5, 2, 3), (5, 2, 3, 1)]
        assert_close(M.join(*parts), x, 0.0)
        np.testing.assert_array_equal(host(parts[0]).reshape(5, 2, 4), host(x)[..., :4])
        shapes = np.eye(2), np.ones((4, 1, 3)), np.ones((2, 3, 1)) / 3**0.5
        x = M.join(*map(eager.array, shapes))
        assert tuple(x.shape) == (4, 2, 10)
        np.testing.assert_array_equal(host(x)[3, 1, :7], [1, 0, 0, 1, 1, 1, 1])

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda M, x: M.join(*M.split(x)[:2]), ValueError, "joins 3 arrays, got 2"),
            (
                lambda M, x: M.join(M.split(x)[0], np.ones((5, 4)), M.split(x)[2]),
                ValueError,
                r"Euclidean\(n=3\) expects .*\(\.\.\., 3\), got \(5,",
            ),
            (
                lambda M, x: M.split(x[:, :9]),
                ValueError,
                r"Product\(SPD.* expects .*\(\.\.\., 10\), got \(5,",
            ),
            (lambda M, x: M.from_normal(x[0, :7]), ValueError, r"coordinates of shape \(\.\.\., 8"),
            (lambda M, x: M.add(x, x.astype("f")), TypeError, "mixed dtypes"),
            (lambda M, x: M.for_shape((5, 10)), ValueError, "cannot be told from the shape"),
            (lambda M, x: Product(), ValueError, "needs one geometry at least, got none"),
            (lambda M, x: Product(M, 3), TypeError, "takes geometries, such as Euclidean"),
            (lambda M, x: Product(M, "sphere"), TypeError, "takes geometries, such as Euclidean"),
        ],
    )
    def test_errors(self, call, error, message):
        with pytest.raises(error, match=message):
            call(self.M, self.M.random(5, rng=0))

    def test_values(self):
        M, same = self.M, Product(SPD(2), Euclidean(3), Grassmannian(3, 1))
        assert same == M
        assert hash(M) == hash(same)
        assert Product(Euclidean(3), SPD(2), Grassmannian(3, 1)) != M
        assert Product(Euclidean(2)) != Euclidean(2)
        assert pickle.loads(pickle.dumps(M)) == M
        assert repr(Product(Sphere(2), Product(Euclidean(1)))) == (
            "Product(Sphere(n=2, curvature=1.0), Product(Euclidean(n=1)))"
        )
        assert eval(repr(M)) == M
        other = replace(M, factors=(Sphere(2), *M.factors[1:]))
        assert other == Product(Sphere(2), Euclidean(3), Grassmannian(3, 1))
        assert len({M, same, other}) == 2
        with pytest.raises(AttributeError):
            M.factors = ()

    def test_the_laws_are_the_least(self):
        assert Product(Euclidean(1), PoincareBall(2)).reductive
        assert not Product(Euclidean(1), Grassmannian(4, 2)).reductive
        assert not Product(Euclidean(1), SpecialOrthogonal(3)).gyrocommutative
        assert not Product(Euclidean(1), SPD(2, "cholesky_affine_invariant")).gyrovector
        assert Product(Sphere(2), Euclidean(2)).convexity_radius == math.pi / 2
        assert Product(SPD(2), Euclidean(2)).convexity_radius == math.inf

    def test_nested(self):
        """A product of products is the product of all, but for the parentheses."""
        flat = Product(PoincareBall(2), Correlation(3), Euclidean(1))
        nested = Product(Product(PoincareBall(2), Correlation(3)), Euclidean(1))
        assert nested.blocks == flat.blocks == (2, 1, 2, 1)
        x, y = (flat.random(6, rng=seed, spread=0.5) for seed in (1, 2))
        np.testing.assert_array_equal(nested.add(x, y), flat.add(x, y))
        t = np.asarray([0.1, 0.5, 0.9, 1.3])
        np.testing.assert_array_equal(nested.scale(t, x), flat.scale(t, x))
        one, other = batch_stats(flat, x), batch_stats(nested, x)
        np.testing.assert_allclose(other.mean, one.mean, atol=1e-14)
        np.testing.assert_allclose(other.var, one.var, rtol=1e-13)
        out = normalize(flat, x, one, y[0], t)
        np.testing.assert_allclose(normalize(nested, x, other, y[0], t), out, atol=1e-13)

    def test_violation(self, eager: Library):
        """The largest of the factors, each by its own measure."""
        M = self.M
        x = host(M.random(4, rng=0))
        x[1, 1] += 0.5  # the SPD part is not symmetric
        x[2, 7:] *= 1.1  # the basis is no longer one
        x[3, 4] = np.nan
        x = eager.array(x)
        assert host(M.contains(x)).tolist() == [True, False, False, False]
        v = host(M.violation(x))
        assert v[0] < 10 * eager.eps
        np.testing.assert_allclose(v[2], 0.21, rtol=1e-4)
        assert np.isinf(v[3])
        y = M.project(x)
        assert host(M.contains(y))[:3].all()
        assert_close(y[0, ...], x[0, ...], 4 * eager.eps)


class TestDifferentSpreads:
    """The theorem holds for a block of any size beside any other."""

    @pytest.mark.parametrize("small", [1e-6, 1e-4])
    @pytest.mark.parametrize(
        ("M", "tiny"),
        [
            (Product(PoincareBall(3), Sphere(3)), 0),
            (Product(Sphere(3), PoincareBall(3)), 0),
            (Product(Grassmannian(4, 2), SPD(3)), 0),
            (Product(SPD(3), SpecialOrthogonal(3)), 0),
            (Product(SPD(3), SpecialOrthogonal(3)), 1),
            (Product(Correlation(4), Euclidean(2)), 0),
            (Product(Euclidean(2), Hyperboloid(2)), 1),
        ],
        ids=repr,
    )
    def test_theorem(self, M, tiny, small):
        parts = []
        for k, f in enumerate(M.factors):
            spread = small if k == tiny else min(1.0, 0.4 * f.convexity_radius)
            parts.append(f.add(f.random(rng=k, spread=0.5), f.random(20, rng=7 + k, spread=spread)))
        x = M.join(*parts)
        result = frechet(M, x)
        assert result.converged
        stats = Stats(result.mean, result.variance)
        bias = M.random(rng=3, spread=0.3)
        mean, var = batch_stats(M, normalize(M, x, stats, bias, 0.3, 0.0))
        for f, m, b in zip(M.factors, M.split(mean), M.split(bias), strict=True):
            assert float(f.dist(m, b)) < 1e-8
        np.testing.assert_allclose(var, 0.09, rtol=1e-8)

    @pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
    @pytest.mark.parametrize("seed", [0, 3])
    def test_no_factor_waits_for_another(self, seed):
        M = Product(SPD(6), PoincareBall(2))
        parts = [
            f.add(f.random(rng=seed, spread=0.7), f.random(12, rng=seed + 10, spread=spread))
            for f, spread in zip(M.factors, (1e-3, 0.7), strict=True)
        ]
        result = frechet(M, M.join(*parts))
        assert result.converged
        for f, part, mean in zip(M.factors, parts, M.split(result.mean), strict=True):
            assert float(f.dist(mean, frechet(f, part).mean)) < 1e-13


class TestLearnableCurvature:
    """Samples that keep their normal coordinates while the curvatures change."""

    coordinates = Product(PoincareBall(2), PoincareBall(2), Euclidean(1)).to_normal(
        Product(PoincareBall(2), PoincareBall(2), Euclidean(1)).random(6, rng=0, spread=0.9)
    ) + np.asarray([0.3, -0.2, 0.2, 0.1, 0.0])

    @staticmethod
    def loss(M, c):
        x = M.from_normal(c)
        out = normalize(M, x, batch_stats(M, x), scale=0.3)
        cubes = out * out * out
        return cubes.sum() + (cubes[..., :1] * out[..., 2:3]).sum()

    def slopes(self, space, curvatures, h=1e-4):
        found = []
        for k in range(len(curvatures)):
            step = h * np.eye(len(curvatures))[k]
            values = [
                float(self.loss(space(*(curvatures + t * step).tolist()), self.coordinates))
                for t in (-2, -1, 1, 2)
            ]
            found.append(np.dot([1, -8, 8, -1], values) / (12 * h))
        return found

    @pytest.mark.parametrize("models", [(Hyperboloid, PoincareBall), (PoincareBall, Sphere)])
    def test_torch(self, models):
        def space(*K):
            return Product(*(cls(2, k) for cls, k in zip(models, K, strict=True)), Euclidean(1))

        values = np.asarray([-0.8, 0.6 if models[1] is Sphere else -0.6])
        K = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]
        M = space(*K)
        assert [a is b for a, b in zip(M.learnable(), K, strict=True)] == [True, True]
        assert not any(k.requires_grad for k in M.detached().learnable())
        self.loss(M, torch.as_tensor(self.coordinates)).backward()
        found = [float(k.grad) for k in K]
        np.testing.assert_allclose(found, self.slopes(space, values), rtol=1e-7)

    def test_jax_pytree(self):
        def space(*K):
            return Product(PoincareBall(2, K[0]), Euclidean(3))

        M = space(jax.numpy.asarray(-0.8))
        leaves, tree = jax.tree_util.tree_flatten(M)
        assert [float(a) for a in leaves] == [-0.8]
        again = jax.tree_util.tree_unflatten(tree, leaves)
        assert [type(f) for f in again.factors] == [PoincareBall, Euclidean]
        c = jax.numpy.asarray(self.coordinates)
        slope = jax.jit(jax.grad(self.loss))(M, c)  # a Product whose curvature is the slope
        found = [float(slope.factors[0].curvature)]
        np.testing.assert_allclose(found, self.slopes(space, np.asarray([-0.8])), rtol=1e-7)


class TestUniqueness:
    """Only a factor whose own samples are spread too far may have another mean."""

    M = Product(Sphere(2), Euclidean(2))

    def data(self, sphere, flat):
        rng = np.random.default_rng(0)
        points = Sphere(2).from_normal(np.clip(rng.standard_normal((20, 2)), -1, 1) * sphere)
        return self.M.join(points, flat * rng.standard_normal((20, 2)))

    @pytest.mark.parametrize("M", [M, Product(M, Euclidean(1))], ids=repr)
    def test_wide_vectors(self, M):
        x = self.data(0.3, 100.0)
        x = np.pad(x, ((0, 0), (0, M.point_shape[0] - x.shape[1])))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert frechet(M, x).converged

    def test_wide_points_of_the_sphere(self):
        message = (
            r"samples on the factor Sphere\(n=2, curvature=1\.0\) of Product\(Sphere.*beyond the "
            r"1\.571"
        )
        with pytest.warns(FrechetWarning, match=message) as record:
            frechet(self.M, self.data(1.9, 1.0))
        assert len(record) == 1

    def test_each_factor_has_its_radius(self):
        """1.2 is beyond the radius of lines, π/4, and within that of rotations, π/√2."""
        M = Product(SpecialOrthogonal(3), Grassmannian(3, 1))
        c = [1.2 * np.vstack([np.eye(n), -np.eye(n), np.eye(n)])[:6] for n in (3, 2)]
        x = M.join(*(f.from_normal(each) for f, each in zip(M.factors, c, strict=True)))
        with pytest.warns(FrechetWarning, match="beyond the 0.785") as record:
            frechet(M, x)
        assert len(record) == 1
        assert "the factor Grassmannian(n=3, p=1" in str(record[0].message)


class TestEstimator:
    M = Product(SPD(3), Correlation(3), Grassmannian(4, 2), PoincareBall(2))

    @pytest.mark.parametrize("name", ["numpy", "torch"])
    def test_a_scale_a_block(self, name):
        M, library = self.M, Library(name, "float64")
        assert len(M.blocks) == 5
        x = library.array(samples(M, 12, spread=0.3))
        bias = M.random(rng=3, spread=0.4)
        scale = [0.1, 0.2, 0.3, 0.25, 0.5]
        bn = GyroBN(M, bias=bias, scale=scale, eps=0.0).fit(x)
        assert tuple(bn.mean_.shape) == M.point_shape
        assert tuple(bn.var_.shape) == (5,)
        out = bn.transform(x)
        again = GyroBN(M).fit(out)
        np.testing.assert_allclose(host(again.var_), np.square(scale), rtol=1e-10)
        assert float(M.dist(host(again.mean_), bias)) < 1e-12
        assert float(np.max(M.dist(host(bn.inverse_transform(out)), host(x)))) < 1e-12
        single = GyroBN(M, scale=0.3, eps=0.0).fit(x)
        np.testing.assert_allclose(host(GyroBN(M).fit(single.transform(x)).var_), 0.09, rtol=1e-10)

    @pytest.mark.parametrize("scale", [[0.1, 0.2, 0.3, 0.4], [[0.1] * 5]])
    def test_a_wrong_number_of_scales(self, scale):
        message = r"scale must be .*one per channel and block, of shape \(5,\)"
        with pytest.raises(ValueError, match=message):
            GyroBN(self.M, scale=scale).fit(samples(self.M, 6))

    def test_a_bad_part(self):
        M, x = self.M, samples(self.M, 6)
        x[4, 9] = 3.0  # a diagonal entry of the correlation matrix
        with pytest.raises(ValueError, match=r"is off Product\(SPD.* by 2 in 1 of 6 .* index 4"):
            GyroBN(M).fit(x)
        bn = GyroBN(M, on_invalid="project").fit(x)
        assert np.isfinite(bn.mean_).all()
        assert M.contains(bn.mean_)
