"""The new core on vectors beside the old one: operations, means, and derivatives of both orders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import gyrobn
from gyrobn.core.manifolds import models
from gyrobn.core.manifolds.euclidean import Euclidean
from gyrobn.core.manifolds.product import Product
from gyrobn.core.statistics.mean import Search, find

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
PAIRS = [
    (gyrobn.PoincareBall(3, -0.7), models.PoincareBall(3, -0.7)),
    (gyrobn.Klein(3), models.Klein(3)),
    (gyrobn.Hyperboloid(2, -2.0), models.Hyperboloid(2, -2.0)),
    (gyrobn.ProperVelocity(3), models.ProperVelocity(3)),
    (gyrobn.Sphere(3, 0.5), models.Sphere(3, 0.5)),
    (gyrobn.ProjectedHypersphere(2), models.ProjectedHypersphere(2)),
    (gyrobn.Stereographic(3, 0.4), models.Stereographic(3, 0.4)),
    (gyrobn.Stereographic(3, 0.0), models.Stereographic(3, 0.0)),
    (gyrobn.Euclidean(3), Euclidean(3)),
    (
        gyrobn.Product(gyrobn.PoincareBall(2), gyrobn.Sphere(2), gyrobn.Euclidean(1)),
        Product(models.PoincareBall(2), models.Sphere(2), Euclidean(1)),
    ),
]
EACH = pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda M: repr(M))
OPERATIONS = {
    "add": lambda M, x, y, z, c: M.add(x, y),
    "neg": lambda M, x, y, z, c: M.neg(x),
    "relative": lambda M, x, y, z, c: M.relative(x, y),
    "scale": lambda M, x, y, z, c: M.scale(-0.7, x),
    "dist": lambda M, x, y, z, c: M.dist(x, y),
    "norm": lambda M, x, y, z, c: M.norm(x),
    "geodesic": lambda M, x, y, z, c: M.geodesic(x, y, 0.3),
    "gyration": lambda M, x, y, z, c: M.gyration(x, y, z),
    "coadd": lambda M, x, y, z, c: M.coadd(x, y),
    "to_normal": lambda M, x, y, z, c: M.to_normal(x),
    "from_normal": lambda M, x, y, z, c: M.from_normal(c),
    "push": lambda M, x, y, z, c: M.push(x, c),
    "pull": lambda M, x, y, z, c: M.pull(x, M.push(x, c)),
    "exp": lambda M, x, y, z, c: M.exp(x, M.push(x, c)),
    "log": lambda M, x, y, z, c: M.log(x, y),
    "transport": lambda M, x, y, z, c: M.transport(x, y, M.push(x, c)),
    "inner": lambda M, x, y, z, c: M.inner(x, M.push(x, c), M.log(x, y)),
    "standardize": lambda M, x, y, z, c: M.standardize(x, y[0], 0.7, z[0]),
    "project": lambda M, x, y, z, c: M.project(1.2 * x),
    "violation": lambda M, x, y, z, c: M.violation(1.2 * x),
}


def points(M, count, size, seed=0):
    rng = np.random.default_rng(seed)
    return M.from_normal(size * rng.normal(size=(count, M.dim)) / M.dim**0.5)


@EACH
@pytest.mark.parametrize("size", [1e-9, 1e-2, 0.8, 2.0])
def test_operations(old, new, size):
    radius = old.convexity_radius
    size = min(size, 0.4 * radius)
    x, y, z = (points(old, 20, size, seed) for seed in range(3))
    c = size * np.random.default_rng(3).normal(size=(20, old.dim))
    for name, operation in OPERATIONS.items():
        a, b = operation(old, x, y, z, c), operation(new, x, y, z, c)
        scale = np.abs(a).max() if name in ("dist", "norm", "to_normal") else 1.0 + np.abs(a).max()
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-12 * scale, err_msg=name)


def test_far_out():
    """Ends of geodesics, points on the surface, and samples that are as far as floats reach."""
    for M in (models.PoincareBall(2), models.Hyperboloid(2), models.ProperVelocity(2)):
        x, y = M.from_normal(np.asarray([9.0, 12.0])), M.from_normal(np.asarray([-12.0, 9.0]))
        for t, end in ((0.0, x), (1.0, y)):
            assert float(M.dist(M.geodesic(x, y, t), end)) < 1e-8
        far = M.from_normal(np.asarray([[1e200, 0.0], [3.0, 1e3]]))
        assert np.all(M.contains(far))
    assert np.all(np.isfinite(models.ProperVelocity(2).from_normal(np.full((1, 2), 1e300))))


def found(new, x, w):
    result = find(new, x, w, None, Search())
    return result.mean, result.variance


@EACH
def test_means_and_their_derivatives(old, new):
    """Values and gradients of torch and JAX, beside those of the old core."""
    centre = points(old, 1, 0.5, seed=7)[0]
    x = old.add(centre, points(old, 40, 0.6).reshape(20, 2, -1))
    w = np.random.default_rng(1).random((20, 2))
    w /= w.sum(0)
    wanted = gyrobn.frechet(old, x, w)
    mean, variance = found(new, x, w)
    np.testing.assert_allclose(mean, wanted.mean, rtol=0, atol=1e-13)
    np.testing.assert_allclose(new.squeeze_blocks(variance), wanted.variance, rtol=1e-12)

    slope = np.random.default_rng(2).normal(size=mean.shape)

    def loss(mean, variance):
        return (mean * slope_like(mean, slope)).sum() + (variance**2).sum()

    def slope_like(mean, slope):
        return torch.as_tensor(slope) if isinstance(mean, torch.Tensor) else slope

    given = [torch.tensor(a, requires_grad=True) for a in (x, w)]
    one = torch.autograd.grad(loss(*found(new, *given)), given)
    result = gyrobn.frechet(old, *given)
    # the old function divides the weights by their sum: compare changes that keep it
    two = torch.autograd.grad(loss(result.mean, old.expand_blocks(result.variance)), given)
    along = old.push(torch.tensor(x), torch.randn(20, 2, old.dim, dtype=torch.float64))
    changes = [(by[0] * along).sum(-1) for by in (one, two)]
    torch.testing.assert_close(*changes, rtol=1e-9, atol=1e-11)
    middle = (one[1] * given[1]).sum(0)
    torch.testing.assert_close(one[1] - middle, two[1], rtol=1e-9, atol=1e-11)
    program = jax.jit(jax.grad(lambda x: loss(*found(new, x, jnp.asarray(w)))))
    np.testing.assert_allclose(program(jnp.asarray(x)), one[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("new", [PAIRS[k][1] for k in (0, 2, 4, 6)], ids=repr)
def test_second_derivatives(new):
    """Through coordinates, so that points stay on the manifold; also where samples coincide."""
    rng = np.random.default_rng(0)
    c = torch.tensor(0.3 * rng.normal(size=(5, new.dim)))
    c[3] = c[2]
    w = torch.full((5,), 0.2, dtype=torch.float64)
    slope = torch.tensor(rng.normal(size=new.dim))

    def loss(c, slope):
        mean, variance = found(new, new.from_normal(c), w)
        return (new.to_normal(mean) * slope).sum() + (variance**2).sum()

    assert torch.autograd.gradcheck(lambda c: loss(c, slope), (c.requires_grad_(),), atol=1e-7)
    assert torch.autograd.gradgradcheck(lambda c: loss(c, slope), (c,), atol=1e-6)
    by_torch = torch.func.hessian(lambda c: loss(c, slope))(c.detach())

    def in_jax(c):
        mean, variance = found(new, new.from_normal(c), jnp.asarray(w))
        return jnp.sum(new.to_normal(mean) * jnp.asarray(slope)) + jnp.sum(variance**2)

    by_jax = jax.jit(jax.hessian(in_jax))(jnp.asarray(c.detach()))
    np.testing.assert_allclose(by_jax, by_torch.detach(), rtol=0, atol=1e-11)


def test_a_third_derivative_is_an_error():
    M = models.PoincareBall(2)
    x = torch.tensor(points(M, 4, 0.5), requires_grad=True)
    w = torch.full((4,), 0.25, dtype=torch.float64)
    value = found(M, x, w)[0].sum()
    for _ in range(2):
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        value = slope.square().sum()
    with pytest.raises(RuntimeError, match="third derivatives"):
        torch.autograd.grad(value, x, create_graph=True)

    def in_jax(x):
        return found(M, x, jnp.asarray(w))[0].sum()

    with pytest.raises(TypeError, match="third derivatives"):
        jax.jit(jax.jacfwd(jax.jacfwd(jax.grad(in_jax))))(jnp.asarray(x.detach()))


def test_curvature_has_a_derivative():
    def loss(curvature, x):
        M = models.Stereographic(2, curvature)
        mean, variance = found(M, x, torch.full((6,), 1 / 6, dtype=torch.float64))
        return mean.sum() + variance.sum()

    x = torch.tensor(points(models.PoincareBall(2, -0.5), 6, 0.5))
    for start in (-0.5, 0.0, 0.4):
        K = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda K: loss(K, x), (K,), atol=1e-7)
        assert torch.autograd.gradgradcheck(lambda K: loss(K, x), (K,), atol=1e-6)


def test_a_compiled_layer_is_exact_where_the_loop_goes_on():
    """Samples all over a ball take more rounds than a graph has: the operation goes on."""
    M = models.PoincareBall(2)
    x = torch.tensor(M.add(points(M, 1, 2.5, 5), points(M, 16, 3.0)))

    def recorded(x):
        w = torch.full((16,), 1 / 16, dtype=x.dtype)
        result = find(M, x, w, None, Search())
        return result.view.standardize(1.0 / torch.sqrt(result.variance[..., 0] + 1e-5), None)

    def call(x):
        return torch._dynamo.nonstrict_trace(recorded)(x)

    assert int(find(M, x, torch.full((16,), 1 / 16).double(), None, Search()).evaluations) > 3
    both = []
    for function in (torch.compile(call, backend="aot_eager", fullgraph=True), recorded):
        own = x.clone().requires_grad_()
        y = function(own)
        y.square().sum().backward()
        both.append((y.detach(), own.grad))
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
