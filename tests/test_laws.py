"""The gyrogroup and gyrovector laws, on every geometry of the registry and every library."""

from functools import cache

import numpy as np
import pytest
import torch
from conftest import GEOMETRIES, Library, assert_close, assert_same, host, per_block

from gyrobn import (
    ComplexBall,
    Grassmannian,
    GyroSpace,
    Klein,
    PoincareBall,
    ProperVelocity,
    SiegelDisk,
    Stereographic,
)


@pytest.fixture(params=GEOMETRIES, ids=repr)
def M(request):
    return request.param


@pytest.fixture
def xyz(M, lib):
    return points(M, lib)


@cache
def points(M, lib):
    """Three arrays of points, drawn once: test_inputs.py holds that no operation writes to them."""
    spread = 0.3 if isinstance(M, (ComplexBall, SiegelDisk)) else 0.6  # of curvatures down to -4
    return tuple(M.random(20, rng=seed, like=lib.like, spread=spread) for seed in (1, 2, 3))


def apart(M, x, y):
    """Largest distance between the points of two arrays."""
    return float(host(M.dist(x, y)).max())


def tolerance(lib: Library, M: GyroSpace) -> float:
    # the largest radius in these tests is about 4, where coordinates resolve e⁴ = 55 ulp; a power
    # deformation divides all lengths by θ, and with them the rounding errors of the powers
    return 100 * lib.eps / getattr(M, "theta", 1.0)


@pytest.fixture
def near(M, lib, record_property):
    """Hold an error to the tolerance, and put it into the table that the run prints at the end."""

    def check(error):
        record_property("laws", [repr(M), f"{lib.name} {lib.dtype}", error])
        assert error < tolerance(lib, M)

    return check


class TestGyrogroup:
    def test_identity(self, M, lib, xyz):
        x, _, _ = xyz
        e = M.origin(x)
        assert e.shape == M.point_shape
        np.testing.assert_array_equal(host(M.add(e, x)), host(x))  # to the last digit
        if not (isinstance(M, Grassmannian) and M.representation == "basis"):
            np.testing.assert_array_equal(host(M.add(x, e)), host(x))
        assert_same(M, M.add(x, e), x, tolerance(lib, M))
        assert_same(M, M.add(x, M.add(M.neg(x), x)), x, tolerance(lib, M))

    def test_inverse(self, M, lib, xyz, near):
        x, _, _ = xyz
        for zero in (M.add(M.neg(x), x), M.add(x, M.neg(x))):
            near(float(host(M.norm(zero)).max()))

    def test_left_gyroassociativity(self, M, lib, xyz, near):
        x, y, z = xyz
        left, right = M.add(x, M.add(y, z)), M.add(M.add(x, y), M.gyration(x, y, z))
        near(apart(M, left, right))

    def test_reduction(self, M, lib, xyz, near):
        x, y, z = xyz
        near(apart(M, M.gyration(M.neg(x), x, z), z))
        if not M.reductive:  # it holds for small angles only: see TestGrassmannian
            x, y, z = (M.scale(0.3, p) for p in xyz)
        near(apart(M, M.gyration(x, y, z), M.gyration(M.add(x, y), y, z)))

    def test_gyrocommutativity(self, M, lib, xyz, near):
        x, y, _ = xyz
        for gap in (
            apart(M, M.add(x, y), M.gyration(x, y, M.add(y, x))),
            apart(M, M.coadd(x, y), M.coadd(y, x)),
        ):
            if M.gyrocommutative:
                near(gap)
            else:
                assert gap > 0.01

    def test_left_cancellation(self, M, lib, xyz, near):
        x, y, _ = xyz
        near(apart(M, M.add(M.neg(x), M.add(x, y)), y))

    def test_gyrosum_inversion(self, M, lib, xyz, near):
        x, y, _ = xyz
        right = M.gyration(x, y, M.add(M.neg(y), M.neg(x)))
        near(apart(M, M.neg(M.add(x, y)), right))

    def test_gyration_is_the_gyrator_identity(self, M, lib, xyz, near):
        near(apart(M, M.gyration(*xyz), GyroSpace.gyration(M, *xyz)))


def test_derivatives_at_the_identity(M):
    """Sums are exact there, and still have their derivatives: those of central differences."""
    y, h = M.random(rng=1, spread=0.5), 1e-5
    weights = np.linspace(-1.0, 1.0, M.dim)
    sums = (lambda c: M.add(M.from_normal(c), other), lambda c: M.add(other, M.from_normal(c)))
    for total in sums:
        other, c = torch.as_tensor(y), torch.zeros(M.dim, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(M.to_normal(total(c)), c, torch.as_tensor(weights))
        other = y
        steps = [
            (M.to_normal(total(d)) - M.to_normal(total(-d))) / (2 * h) for d in h * np.eye(M.dim)
        ]
        np.testing.assert_allclose(slope, np.asarray(steps) @ weights, rtol=0, atol=1e-8)


class TestGrassmannian:
    """Pseudo-reductive everywhere, reductive only as long as no sum passes an angle of π/2."""

    @pytest.mark.parametrize(("spread", "holds"), [(0.2, True), (1.0, False)])
    def test_left_reduction(self, spread, holds):
        M = Grassmannian(5, 2)
        x, y, z = (M.random(200, rng=seed, spread=spread) for seed in (1, 2, 3))
        gap = apart(M, M.gyration(x, y, z), M.gyration(M.add(x, y), y, z))
        assert gap < 1e-14 if holds else gap > 0.3
        assert apart(M, M.gyration(M.neg(x), x, z), z) < 1e-14
        assert apart(M, M.add(M.neg(x), M.add(x, y)), y) < 1e-14


class TestGyrovectorSpace:
    s, t = 0.7, -1.3

    def test_one(self, M, lib, xyz, near):  # V1
        x, _, _ = xyz
        near(apart(M, M.scale(1.0, x), x))
        if M.gyrovector:
            near(apart(M, M.scale(-1.0, x), M.neg(x)))

    def test_scalar_distributivity(self, M, lib, xyz, near):  # V2
        x, _, _ = xyz
        both = M.add(M.scale(self.s, x), M.scale(self.t, x))
        gap = apart(M, M.scale(self.s + self.t, x), both)
        if M.gyrovector:
            near(gap)
        else:
            assert gap > 0.01

    def test_scalar_associativity(self, M, lib, xyz, near):  # V3
        x, _, _ = xyz
        twice = M.scale(self.s, M.scale(self.t, x))
        near(apart(M, M.scale(self.s * self.t, x), twice))

    def test_gyrations_are_automorphisms(self, M, lib, xyz, near):  # V4
        x, y, z = xyz
        left, right = M.gyration(x, y, M.scale(self.t, z)), M.scale(self.t, M.gyration(x, y, z))
        near(apart(M, left, right))

    def test_gyrations_along_a_line(self, M, lib, xyz, near):  # V5
        x, _, z = xyz
        turned = M.gyration(M.scale(self.s, x), M.scale(self.t, x), z)
        near(apart(M, turned, z))

    def test_scalars_may_differ_by_sample(self, M, lib, xyz):
        x, _, _ = xyz
        t = np.linspace(-1.0, 1.5, 20)
        expected = np.stack([host(M.scale(float(a), x[i, ...])) for i, a in enumerate(t)])
        found = M.scale(per_block(M, lib.array(t)), x)
        assert_close(found, expected, tolerance(lib, M), like=x)


class TestIsometries:
    def test_translations_and_gyrations_preserve_distance(self, M, lib, xyz):
        x, y, z = xyz
        before, after = M.dist(y, z), M.dist(M.add(x, y), M.add(x, z))
        assert_close(after, before, tolerance(lib, M))
        before, after = M.dist(x, z), M.dist(M.gyration(y, z, x), M.gyration(y, z, z))
        assert_close(after, before, tolerance(lib, M))

    def test_distance_is_a_metric(self, M, lib, xyz, near):
        x, y, z = xyz
        assert_close(M.dist(x, y), M.dist(y, x), tolerance(lib, M))
        near(float(host(M.dist(x, x)).max()))
        slack = host(M.dist(x, y)) + host(M.dist(y, z)) - host(M.dist(x, z))
        assert slack.min() > -tolerance(lib, M)

    def test_geodesic_has_constant_speed(self, M, lib, xyz, near):
        x, y, _ = xyz
        d = host(M.dist(x, y))
        near(apart(M, M.geodesic(x, y, 0.0), x))
        near(apart(M, M.geodesic(x, y, 1.0), y))
        part = M.geodesic(x, y, 0.3)
        np.testing.assert_allclose(host(M.dist(x, part)), 0.3 * d, atol=tolerance(lib, M))
        np.testing.assert_allclose(host(M.dist(part, y)), 0.7 * d, atol=tolerance(lib, M))

    @pytest.mark.parametrize("move", ["right", "left coaddition", "right coaddition"])
    def test_the_other_translations_do_not(self, move):
        """The paper's remark on other candidates, on the Poincaré ball."""
        M = PoincareBall(3)
        x, y, z = (M.random(50, rng=seed) for seed in (1, 2, 3))
        translate = {
            "right": lambda p: M.add(p, x),
            "left coaddition": lambda p: M.coadd(x, p),
            "right coaddition": lambda p: M.coadd(p, x),
        }[move]
        change = abs(M.dist(translate(y), translate(z)) - M.dist(y, z))
        assert change.max() > 0.1


class TestDerivedForms:
    """An override is held to the form that follows from the primitives."""

    def test_normal_coordinates(self, M, lib, xyz, near):
        x, _, _ = xyz
        c = M.to_normal(x)
        assert c.shape == (20, M.dim)
        near(apart(M, M.from_normal(c), x))
        np.testing.assert_allclose(
            host(M.norm(x)), np.linalg.norm(host(c), axis=-1), rtol=1e3 * lib.eps
        )

    @pytest.mark.parametrize("name", ["relative_normal", "dist"])
    def test_of_two_points(self, M, lib, xyz, name):
        x, y, _ = xyz
        assert_close(getattr(M, name)(x, y), getattr(GyroSpace, name)(M, x, y), tolerance(lib, M))

    def test_relative(self, M, lib, xyz):
        x, y, _ = xyz
        assert_same(M, M.relative(x, y), GyroSpace.relative(M, x, y), tolerance(lib, M))
        assert_same(M, M.geodesic(x, y, 0.4), GyroSpace.geodesic(M, x, y, 0.4), tolerance(lib, M))

    def test_scale(self, M, lib, xyz):
        x, _, _ = xyz
        assert_same(M, M.scale(0.4, x), GyroSpace.scale(M, 0.4, x), tolerance(lib, M))

    def test_one_scale_a_block(self, M, lib, xyz):
        x, _, _ = xyz
        if len(M.blocks) == 1:
            return
        t = np.linspace(0.3, 0.9, len(M.blocks))
        c = host(M.to_normal(x)) * np.repeat(t, M.blocks)
        np.testing.assert_allclose(
            host(M.to_normal(M.scale(lib.array(t), x))), c, atol=tolerance(lib, M)
        )

    @pytest.mark.parametrize("with_bias", [True, False])
    def test_standardize(self, M, lib, xyz, with_bias):
        x, y, z = xyz
        bias = z[0, ...] if with_bias else None
        expected = M.scale(0.8, M.relative(y[0, ...], x))
        expected = expected if bias is None else M.add(bias, expected)
        assert_same(M, M.standardize(x, y[0, ...], 0.8, bias), expected, tolerance(lib, M))

    def test_riemannian_operators(self, M, lib, xyz, near):
        x, y, z = xyz
        v, u = M.log(x, y), M.log(x, z)
        near(apart(M, M.exp(x, v), y))
        length = np.sqrt(host(M.inner(x, v, v)))
        np.testing.assert_allclose(length, host(M.dist(x, y)), atol=tolerance(lib, M))
        moved = [M.transport(x, y, w) for w in (u, v)]
        assert_close(M.inner(y, *moved), M.inner(x, u, v), tolerance(lib, M))
        # a geodesic carries its own velocity: Log_y(x) is minus the transported Log_x(y)
        assert_close(moved[1], -M.log(y, x), tolerance(lib, M))

    def test_transport_is_that_of_the_gyrations(self, M, lib, xyz):
        if not M.gyrocommutative:
            pytest.skip("on a group, gyrations do nothing")
        x, y, z = xyz
        c = M.pull(y, M.transport(x, y, M.push(x, M.to_normal(z))))
        expected = M.to_normal(GyroSpace.gyration(M, y, M.neg(x), z))
        assert_close(c, expected, tolerance(lib, M))


class TestBroadcasting:
    def test_leading_axes(self, M, eager):
        lib = eager
        x = M.random(4, 1, 3, rng=1, like=lib.like, spread=0.5)
        y = M.random(2, 1, rng=2, like=lib.like, spread=0.5)
        z = M.random(rng=3, like=lib.like, spread=0.5)
        shape = (4, 2, 3)
        assert M.add(x, y).shape == shape + M.point_shape
        assert M.gyration(x, y, z).shape == shape + M.point_shape
        assert M.dist(x, y).shape == shape
        assert M.standardize(z, y, 0.5, x).shape == shape + M.point_shape
        assert_close(M.add(x, y)[3, 1, 2, ...], M.add(x[3, 0, 2, ...], y[1, 0, ...]), 8 * lib.eps)
        single = M.standardize(z, y[1, 0, ...], 0.5, x[3, 0, 2, ...])
        assert_close(M.standardize(z, y, 0.5, x)[3, 1, 2, ...], single, 50 * lib.eps)

    def test_multipliers(self, M, eager):
        """Many multipliers of few points."""
        x, y, z = (M.random(rng=seed, like=eager.like, spread=0.5) for seed in (1, 2, 3))
        t = np.linspace(-0.5, 1.5, 6).reshape(3, 2)
        several = per_block(M, eager.array(t))
        for operation in (
            lambda t: M.scale(t, x),
            lambda t: M.geodesic(x, y, t),
            lambda t: M.standardize(x, y, t),
            lambda t: M.standardize(x, y, t, z),
        ):
            found = operation(several)
            assert found.shape == (3, 2, *M.point_shape)
            assert_close(found[2, 0, ...], operation(float(t[2, 0])), 50 * eager.eps)

    def test_derivatives(self, M):
        """The slopes of arrays that are broadcast are those of the whole arrays, summed up."""
        like = torch.zeros((), dtype=torch.float64)
        x, mean, bias = (
            M.random(*shape, rng=seed, like=like, spread=0.5).requires_grad_()
            for seed, shape in enumerate([(2,), (), (3, 1)])
        )
        t = per_block(M, torch.linspace(0.5, 1.5, 4, dtype=torch.float64)[:, None, None])
        given = x, mean, t.requires_grad_(), bias
        ends = M.point_shape, M.point_shape, t.shape[3:], M.point_shape
        whole = [a.expand((4, 3, 2, *end)) for a, end in zip(given, ends, strict=True)]
        found, expected = (M.standardize(*arrays) for arrays in (given, whole))
        slope = torch.linspace(-1.0, 1.0, found.numel(), dtype=found.dtype).reshape(found.shape)
        for a, b in zip(
            torch.autograd.grad(found, given, slope),
            torch.autograd.grad(expected, given, slope),
            strict=True,
        ):
            assert_close(a, b, 1e-12)


@pytest.mark.parametrize("cls", [PoincareBall, Stereographic, Klein, ProperVelocity])
def test_several_curvatures_in_one_array(cls, eager):
    """Also of single points, which then have fewer axes than the result."""
    K = (-1.5, -0.5)
    M, each = cls(3, eager.array(K)), [cls(3, k) for k in K]
    x, y, z = (each[1].random(rng=seed, like=eager.like, spread=0.3) for seed in (1, 2, 3))
    for operation in (
        lambda M: M.add(x, y),
        lambda M: M.relative(x, y),
        lambda M: M.dist(x, y),
        lambda M: M.geodesic(x, y, 0.3),
        lambda M: M.standardize(x, y, 0.5, z),
    ):
        expected = np.stack([host(operation(one)) for one in each])
        assert_close(operation(M), expected, 50 * eager.eps, like=x)
