"""Second derivatives through matrix functions: against 60 digits, differences, and each other."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES

import gyrobn.torch
from gyrobn import (
    SPD,
    Grassmannian,
    Hyperboloid,
    Klein,
    PoincareBall,
    Sphere,
    Stereographic,
    frechet,
    normalize_batch,
)
from gyrobn.backends.contract import THIRD_ORDER
from gyrobn.normalization.normalize import normalize_to
from gyrobn.numerics.matrix_functions import (
    EXP,
    INVERSE,
    INVERSE_ROOT,
    LOG,
    ROOT,
    differential,
    matrix_function,
    matrix_power,
    power,
)
from gyrobn.numerics.orthogonal import ANGLE, COSINE_OF_ROOT, SINC_OF_ROOT, polar
from gyrobn.statistics.samples import Group

GAPS = (0.0, 1e-12, 1e-8, 1e-4, 0.5)
MP = mpmath.mp.clone()
MP.dps = 60

FUNCTIONS = {
    "log": (LOG, MP.log, 1.0),
    "exp": (EXP, MP.exp, 1.0),
    "root": (ROOT, MP.sqrt, 1e-6),
    "inverse root": (INVERSE_ROOT, lambda x: 1 / MP.sqrt(x), 1.0),
    "inverse": (INVERSE, lambda x: 1 / x, 1e3),
    "power": (power(-1.7), lambda x: x ** MP.mpf(-1.7), 1.0),
    "angle": (ANGLE, lambda x: MP.acos(x) / MP.sqrt((1 - x) * (1 + x)), 0.3),
    "cosine": (COSINE_OF_ROOT, lambda x: MP.cos(MP.sqrt(x)), 2.0),
    "sinc": (SINC_OF_ROOT, lambda x: MP.sin(MP.sqrt(x)) / MP.sqrt(x), 2.0),
    "cosine of large angles": (COSINE_OF_ROOT, lambda x: MP.cos(MP.sqrt(x)), 30.0),
    "sinc of large angles": (SINC_OF_ROOT, lambda x: MP.sin(MP.sqrt(x)) / MP.sqrt(x), 30.0),
}
"""The function, what it is to 60 digits, and an eigenvalue."""


# ---------------------------------------------------------------------- functions of matrices

Q = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
TURN = np.linalg.qr(np.random.default_rng(2).standard_normal((3, 3)))[0]
SLOPE, D1, D2 = np.random.default_rng(0).standard_normal((3, 3, 3))
D1, D2 = D1 + D1.T, D2 + D2.T


def matrices(base, right=Q):
    """One matrix per gap: two eigenvalues, or singular values, that far apart, and a third."""
    return np.stack([(Q * (base * np.asarray([1.0, 1.0 + g, 1.6]))) @ right.T for g in GAPS])


def second_difference(function, A):
    """Return the mixed second difference along D1 and D2, whose error is 1e-26."""
    h = MP.mpf(10) ** -13
    A, first, last = (MP.matrix(a.tolist()) for a in (A, D1, D2))
    total = MP.matrix(3, 3)
    for s in (1, -1):
        for t in (1, -1):
            total += s * t * function(A + s * h * first + t * h * last)
    total = np.asarray((total / (4 * h * h)).tolist(), dtype=float)
    return (total * SLOPE).sum()


def by_eigenvalues(exact):
    def function(A):
        values, U = MP.eigsy((A + A.T) / 2)
        return U * MP.diag([exact(v) for v in values]) * U.T

    return function


def polar_factor(A):
    values, U = MP.eigsy(A * A.T)
    return U * MP.diag([1 / MP.sqrt(v) for v in values]) * U.T * A


MATRIX = {
    name: (lambda A, f=f: matrix_function(A, f), by_eigenvalues(exact), matrices(base))
    for name, (f, exact, base) in FUNCTIONS.items()
}
MATRIX["power by an array"] = (
    lambda A: matrix_power(A, A[..., 0, 0] * 0.0 - 1.7),
    *MATRIX["power"][1:],
)
MATRIX["polar"] = (polar, polar_factor, matrices(1.0, TURN))


def torch_roads(value, A):
    """Return the second derivative along D1 and D2: reverse and forward, one over the other."""
    first, last = (torch.as_tensor(np.broadcast_to(D, A.shape).copy()) for D in (D1, D2))
    x = torch.tensor(A, requires_grad=True)
    (slope,) = torch.autograd.grad(value(x).sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad((slope * first).sum(), x)
    yield (twice * last).sum((-1, -2))
    slope = torch.func.grad(lambda A: value(A).sum())
    yield (torch.func.jvp(slope, (x.detach(),), (first,))[1] * last).sum((-1, -2))
    along = lambda A: torch.func.jvp(value, (A,), (first[0],))[1]  # noqa: E731
    slopes = torch.func.vmap(torch.func.grad(along))(x.detach())
    yield (slopes * last).sum((-1, -2))


def jax_roads(value, A):
    first, last = (jnp.broadcast_to(D, A.shape) for D in (D1, D2))

    @jax.jit
    def both(A):
        slope = jax.grad(lambda A: value(A).sum())
        forward = jax.jvp(jax.jit(slope), (A,), (first,))[1]
        reverse = jax.grad(lambda A: (slope(A) * first).sum())(A)
        along = jax.vmap(lambda A: jax.jvp(value, (A,), (D1,))[1])
        return forward, reverse, jax.grad(lambda A: along(A).sum())(A)

    for found in both(jnp.asarray(A)):
        yield (found * last).sum((-1, -2))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch itself calls it
@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.parametrize("roads", [torch_roads, jax_roads])
def test_matrix_function(name, roads):
    function, exact, A = MATRIX[name]
    expected = np.asarray([second_difference(exact, a) for a in A])

    def value(A):
        weight = torch.as_tensor(SLOPE) if isinstance(A, torch.Tensor) else SLOPE
        return (function(A) * weight).sum((-1, -2))

    for found in roads(value, A):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-11)


def logarithm_and_back(A, V, E):
    """Return the difference along E of the change of A that changes its logarithm by V."""
    h = MP.mpf(10) ** -13
    A, V, E = (MP.matrix(a.tolist()) for a in (A, V, E))
    log, exp, total = by_eigenvalues(MP.log), by_eigenvalues(MP.exp), MP.matrix(3, 3)
    for s in (1, -1):
        for t in (1, -1):
            total += s * t * exp(log(A + t * h * E) + s * h * V)
    return np.asarray((total / (4 * h * h)).tolist(), dtype=float)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("name", ["log", "power", "inverse of log"])
def test_differential(name):
    """The first derivative has a derivative, also at repeated eigenvalues: 60 digits tell it."""
    inverse = name.startswith("inverse")
    f, exact, base = FUNCTIONS["log" if inverse else name]
    A = matrices(base)
    A = 0.5 * (A + np.swapaxes(A, 1, 2))
    if inverse:
        expected = [(logarithm_and_back(a, D1, D2) * SLOPE).sum() for a in A]
    else:
        expected = [second_difference(by_eigenvalues(exact), a) for a in A]

    def value(A, V, weight):
        if inverse:
            return (differential(matrix_function(A, LOG), V, EXP) * weight).sum((-1, -2))
        return (differential(A, V, f) * weight).sum((-1, -2))

    V, weight = torch.as_tensor(D1), torch.as_tensor(SLOPE)
    x = torch.tensor(A, requires_grad=True)
    (slope,) = torch.autograd.grad(value(x, V, weight).sum(), x)
    found = [(slope * torch.as_tensor(D2)).sum((-1, -2))]
    along = torch.as_tensor(D2).expand(x.shape)
    found.append(torch.func.jvp(lambda A: value(A, V, weight), (x.detach(),), (along,))[1])
    by_jax = jax.jit(jax.grad(lambda A: value(A, jnp.asarray(D1), SLOPE).sum()))(jnp.asarray(A))
    found.append((by_jax * D2).sum((-1, -2)))
    for each in found:
        np.testing.assert_allclose(np.asarray(each), expected, rtol=1e-11)
    for k in (0, 1, 4):
        again = lambda A, V: value(A, V, weight)  # noqa: E731
        assert torch.autograd.gradgradcheck(again, (x[k], V.clone().requires_grad_()))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize(
    "M",
    [SPD(3, "log_euclidean"), SPD(3, theta=0.5), SPD(3, alpha=0.5, beta=1.0)],
    ids=repr,
)
def test_tangent_vectors_at_the_identity(M):
    """All eigenvalues are equal there: eigenvectors have no derivative, but these maps do."""
    c, d = torch.randn(2, M.dim, generator=torch.manual_seed(0), dtype=torch.float64)

    def there_and_back(x):
        x = M.from_normal(x)
        return M.pull(M.from_normal(d), M.push(x, c))

    zero = torch.zeros(M.dim, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(there_and_back, (zero,), check_forward_ad=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_every_road():
    """Whatever the order of transformations: the same numbers, at repeated eigenvalues."""
    A, D = torch.tensor(matrices(1.0)[0]), torch.as_tensor(D1)

    def value(A):
        W = polar(A)
        return (matrix_function(A, LOG) ** 3).sum() + (W * W * W).sum()

    func, ad = torch.func, torch.autograd.forward_ad
    slope = func.grad(value)
    expected = torch.autograd.functional.vhp(value, A, D)[1]
    found = [
        (func.hessian(value)(A) * D).sum((-1, -2)),
        (func.vmap(func.hessian(value))(A[None])[0] * D).sum((-1, -2)),
        (func.jacrev(func.jacfwd(value))(A) * D).sum((-1, -2)),
        (func.jacfwd(func.jacfwd(value))(A) * D).sum((-1, -2)),
    ]
    x = A.clone().requires_grad_()
    with ad.dual_level():
        dual = ad.make_dual(x, D)
        (back,) = torch.autograd.grad(value(dual), dual)
        found.append(ad.unpack_dual(back).tangent)  # forward over reverse
        pushed = ad.unpack_dual(value(dual)).tangent
        one = torch.ones((), dtype=A.dtype)
        changing = ad.make_dual(one, 2.0 * one)  # the slope that is pulled back
        (back,) = torch.autograd.grad(value(x), x, changing, create_graph=True)
        change = ad.unpack_dual(back).tangent
    np.testing.assert_allclose(change.detach(), 2.0 * slope(A), rtol=1e-11, atol=1e-12)
    found.append(torch.autograd.grad(pushed, x)[0])  # reverse over forward
    for k, way in enumerate(found):
        np.testing.assert_allclose(way.detach(), expected, rtol=1e-11, atol=1e-12, err_msg=str(k))

    A, D = jnp.asarray(A), jnp.asarray(D)
    slope = jax.grad(value)
    each = jax.grad(lambda A: (jax.lax.map(slope, A[None])[0] * D).sum())
    found = [(jax.hessian(value)(A) * D).sum((-1, -2)), each(A)]
    expected = np.asarray(expected)
    forward = jax.jvp(lambda A: jax.jvp(value, (A,), (A,))[1], (A,), (D,))[1]  # along A and D
    assert float(forward - (slope(A) * D).sum()) == pytest.approx(
        float((expected * np.asarray(A)).sum()), rel=1e-11
    )
    for k, way in enumerate(found):
        np.testing.assert_allclose(
            np.asarray(way), expected, rtol=1e-11, atol=1e-12, err_msg=str(k)
        )


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("M", [PoincareBall(2), Stereographic(2, 0.7), SPD(2)], ids=repr)
def test_every_road_through_a_mean(M):
    """The rules of a root meet the transformations of torch.func in any order."""
    x = torch.as_tensor(M.random(5, rng=0, spread=0.5))
    D = torch.as_tensor(np.random.default_rng(1).normal(size=x.shape))

    def value(x):
        mean, variance, *_ = frechet(M, x)
        return variance + (mean**3).sum()

    func, axes = torch.func, tuple(range(-x.ndim, 0))
    expected = torch.autograd.functional.vhp(value, x, D)[1]
    found = [
        (func.hessian(value)(x) * D).sum(axes),
        (func.vmap(func.hessian(value))(x[None])[0] * D).sum(axes),
        (func.jacrev(func.jacrev(value))(x) * D).sum(axes),
        (func.jacrev(func.jacfwd(value))(x) * D).sum(axes),
        func.jvp(func.grad(value), (x,), (D,))[1],
    ]
    for k, way in enumerate(found):
        np.testing.assert_allclose(way, expected, rtol=1e-11, atol=1e-12, err_msg=str(k))


@pytest.mark.parametrize("M", [SPD(3), Grassmannian(3, 1, "projector")], ids=repr)
def test_projections(M):
    """Of matrices that are not positive definite, or no projectors."""
    A = torch.tensor(matrices(1.0)[-1] - 1.2 * np.eye(3), requires_grad=True)
    assert torch.autograd.gradgradcheck(M.project, (A,))


@pytest.mark.parametrize("t", [0.0, 0.6])
def test_powers_by_their_exponent(t):
    """A power of zero is the identity, and changes with its exponent."""
    A = torch.tensor(matrices(1.0)[-1], requires_grad=True)
    t = torch.tensor(t, dtype=A.dtype, requires_grad=True)
    assert torch.autograd.gradgradcheck(matrix_power, (A, t))


# ---------------------------------------------------------------------- layers


def problem(M, like):
    """Return the layer's output as a function of coordinates, and those of three samples."""
    centre = M.random(rng=9, spread=0.3)
    c = np.random.default_rng(3).standard_normal((3, M.dim))
    c *= 0.4 * min(1.0, M.convexity_radius) / np.linalg.norm(c, axis=-1, keepdims=True)
    copy = gyrobn.backends.backend_of(like).from_numpy

    def outputs(c, *bias):
        y, stats = normalize_batch(M, M.add(copy(centre, like), M.from_normal(c)), scale=0.7)
        return y, stats.var

    return outputs, copy(c, like)


TORCH, JAX = torch.zeros((), dtype=torch.float64), jnp.zeros(())


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_layer(M):
    """Of the layer in training, by samples, scale and bias: through mean and variance."""
    _, c = problem(M, TORCH)
    layer = gyrobn.torch.GyroBN(M).double()
    centre = torch.as_tensor(M.random(rng=9, spread=0.3))
    values = [p.detach() for p in layer.parameters()]
    names = [name for name, _ in layer.named_parameters()]
    values = [v + 0.05 * torch.cos(torch.arange(v.numel())).reshape(v.shape) for v in values]

    def forward(c, *values):
        x = M.add(centre, M.from_normal(c))
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    inputs = [a.clone().requires_grad_() for a in (c, *values)]
    slope = torch.cos(torch.arange(3 * np.prod(M.point_shape)).double()).to(centre.dtype)
    slope = slope.reshape(3, *M.point_shape).requires_grad_()
    assert torch.autograd.gradgradcheck(
        forward, inputs, slope, fast_mode=True, atol=1e-6, rtol=1e-4, nondet_tol=1e-12
    )


SMALL = [SPD(2), Grassmannian(3, 1)]


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("M", SMALL, ids=repr)
def test_jax_agrees(M):
    """Forward over reverse and reverse over reverse on JAX, and both on torch."""

    def loss(outputs, c):
        y, var = outputs(c)
        return (y * y * y).sum() + var.sum()

    outputs, c = problem(M, TORCH)
    v = torch.sin(torch.arange(c.numel()).double()).reshape(c.shape)
    value = lambda c: loss(outputs, c)  # noqa: E731
    _, expected = torch.autograd.functional.vhp(value, c, v)
    _, forward = torch.func.jvp(torch.func.grad(value), (c,), (v,))
    np.testing.assert_allclose(forward, expected, rtol=1e-9, atol=1e-11)

    outputs, c = problem(M, JAX)
    slope = jax.grad(lambda c: loss(outputs, c))
    v = jnp.asarray(v)

    @jax.jit
    def both(c):
        linear = lambda c: (slope(c) * v).sum()  # noqa: E731
        return jax.jvp(slope, (c,), (v,))[1], jax.grad(linear)(c)

    for found in both(c):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_jax_of_a_batch_in_parts():
    """A sample per lane, and sums over the lanes: the Hessian of the search changes, too."""
    M, group = PoincareBall(2), Group(("batch", None))
    c = jnp.asarray(np.random.default_rng(0).normal(0.2, 0.5, (5, 2)))
    linear, v = (jnp.asarray(a) for a in np.random.default_rng(1).normal(size=(2, 5, 2)))

    def alone(c):
        given = M, M.from_normal(c)[None], None, None, 0.7, 1e-5, None
        return normalize_to(*given, group=group)[0][0]

    def second(function):
        slope = jax.grad(lambda c: (linear * function(c)).sum())
        return jax.jit(jax.grad(lambda c: (slope(c) * v).sum()))(c)

    expected = second(lambda c: normalize_batch(M, M.from_normal(c), scale=0.7)[0])
    found = second(jax.vmap(alone, axis_name="batch"))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


VECTORS = [Klein(2, -0.5), PoincareBall(3), Hyperboloid(3, -2.0), Sphere(2), Stereographic(2, 0.5)]
COLLAPSED = [*VECTORS, SPD(2)]  # of whose matrices all eigenvalues are equal


@pytest.mark.parametrize("M", COLLAPSED, ids=repr)
def test_samples_at_the_mean(M):
    """Equal samples are at their mean, or a rounding error beside it: no quotient of both."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        c = np.repeat(0.4 * rng.standard_normal((1, M.dim)), 4, axis=0)
        R, v = rng.standard_normal((2, 4, M.dim))

        def loss(c, R=R):
            y, _ = normalize_batch(M, M.from_normal(c), eps=1e-2, scale=0.7)
            return (M.to_normal(y) * R).sum()

        def slope(c, again=False, loss=loss, R=R, v=v):
            c = torch.as_tensor(c).requires_grad_()
            (g,) = torch.autograd.grad(loss(c, torch.as_tensor(R)), c, create_graph=again)
            return c, (g * torch.as_tensor(v)).sum()

        expected = (slope(c + 1e-3 * v)[1] - slope(c - 1e-3 * v)[1]) / 2e-3
        given, first = slope(c.copy(), again=True)
        (found,) = torch.autograd.grad(first, given)
        found = [(found * torch.as_tensor(v)).sum()]
        if seed < 2:
            found.append(float(jnp.sum(jax.jvp(jax.grad(loss), (c,), (v,))[1] * v)))
        for each in found:
            np.testing.assert_allclose(float(each), float(expected), rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_third_derivative():
    A = matrices(1.0)[0]
    mean = lambda A: frechet(PoincareBall(3), 0.1 * A).mean  # noqa: E731
    for function in (polar, lambda A: matrix_function(A, LOG), mean):
        value = lambda A, function=function: (function(A) ** 3).sum()  # noqa: E731
        hessian = torch.func.hessian(value)
        with pytest.raises((RuntimeError, TypeError), match=THIRD_ORDER[:20]):
            torch.func.jacrev(hessian)(torch.tensor(A))
        x = torch.tensor(A, requires_grad=True)
        for _ in range(2):
            (slope,) = torch.autograd.grad(value(x).sum(), x, create_graph=True)
            (slope,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        with pytest.raises((RuntimeError, TypeError), match=THIRD_ORDER[:20]):
            torch.autograd.grad(slope.sum(), x)
        with pytest.raises((RuntimeError, TypeError), match=THIRD_ORDER[:20]):
            jax.jacrev(jax.hessian(value))(jnp.asarray(A))
