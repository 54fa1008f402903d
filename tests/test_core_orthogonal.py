"""The new core on subspaces and rotations beside the old one: operations, means, derivatives."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch

import gyrobn
from gyrobn.core.manifolds.grassmannian import Grassmannian
from gyrobn.core.manifolds.rotations import SpecialOrthogonal
from gyrobn.core.numerics.orthogonal import ANGLE, COSINE_OF_ROOT, SINC_OF_ROOT
from gyrobn.core.statistics.mean import Search, find

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
SUBSPACES = [(2, 1), (5, 1), (4, 2), (5, 3), (6, 5), (12, 4), (5, 2, "projector")]
PAIRS = [(gyrobn.Grassmannian(*sizes), Grassmannian(*sizes)) for sizes in SUBSPACES]
PAIRS += [(gyrobn.SpecialOrthogonal(n), SpecialOrthogonal(n)) for n in (2, 3, 4, 5, 8)]
EACH = pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda M: repr(M))
SMALL = [Grassmannian(4, 2), Grassmannian(3, 1, "projector")]
SMALL += [SpecialOrthogonal(n) for n in (3, 4)]
FEW = pytest.mark.parametrize("M", SMALL, ids=repr)

POINTS = {
    "add": lambda M, x, y, z, c: M.add(x, y),
    "neg": lambda M, x, y, z, c: M.neg(x),
    "relative": lambda M, x, y, z, c: M.relative(x, y),
    "scale": lambda M, x, y, z, c: M.scale(-0.7, x),
    "geodesic": lambda M, x, y, z, c: M.geodesic(x, y, 0.3),
    "gyration": lambda M, x, y, z, c: M.gyration(x, y, z),
    "coadd": lambda M, x, y, z, c: M.coadd(x, y),
    "from_normal": lambda M, x, y, z, c: M.from_normal(c),
    "far from_normal": lambda M, x, y, z, c: M.from_normal(6.0 * c),
    "shift": lambda M, x, y, z, c: M.shift(x, c),
    "exp": lambda M, x, y, z, c: M.exp(x, M.push(x, c)),
    "standardize": lambda M, x, y, z, c: M.standardize(x, y[0, ...], 0.7, z[0, ...]),
    "project": lambda M, x, y, z, c: M.project(1.1 * x + 0.1 * y),
}
"""Operations that return points, of which a basis is one of many."""
NUMBERS = {
    "dist": lambda M, x, y, z, c: M.dist(x, y),
    "norm": lambda M, x, y, z, c: M.norm(x),
    "to_normal": lambda M, x, y, z, c: M.to_normal(x),
    "relative_normal": lambda M, x, y, z, c: M.relative_normal(x, y),
    "push": lambda M, x, y, z, c: M.push(x, c),
    "pull": lambda M, x, y, z, c: M.pull(x, M.push(x, c)),
    "log": lambda M, x, y, z, c: M.log(x, y),
    "transport": lambda M, x, y, z, c: M.transport(x, y, M.push(x, c)),
    "inner": lambda M, x, y, z, c: M.inner(x, M.push(x, c), M.log(x, y)),
    "violation": lambda M, x, y, z, c: M.violation(1.1 * x),
    "hessian": lambda M, x, y, z, c: M.hessian(c, 0.1 + 0.0 * c[..., 0]).as_matrix(c[0, ...]),
}


def host(a):
    return np.asarray(a, dtype=float)


def same_span(M, x):
    """Return what does not depend on the basis: the projector."""
    return x @ np.swapaxes(x, -1, -2) if x.shape[-1] != M.point_shape[-2] else x


def cloud(M, count, size, seed=0):
    """Return points around one at some distance from the identity; bases of every orientation."""
    rng = np.random.default_rng(seed)
    c = size * rng.normal(size=(count, M.dim)) / M.dim**0.5
    x = M.add(M.random(rng=seed, spread=0.3 * M.convexity_radius), M.from_normal(c))
    if x.shape[-1] != M.point_shape[-2]:
        x = x @ np.linalg.qr(rng.normal(size=(count, M.p, M.p)))[0]
    return x


def arguments(M, size, dtype="float64"):
    c = size * np.random.default_rng(3).normal(size=(10, M.dim))
    return [a.astype(dtype) for a in (*(cloud(M, 10, size, seed) for seed in range(3)), c)]


def check(M, results, wanted, tolerance):
    for name, value in wanted.items():
        a, b = (
            host(v) if name in NUMBERS else same_span(M, host(v)) for v in (value, results[name])
        )
        scale = 1.0 + np.abs(a).max()
        np.testing.assert_allclose(b, a, rtol=0, atol=tolerance * scale, err_msg=name)


def everything(M, given):
    return {name: operation(M, *given) for name, operation in (POINTS | NUMBERS).items()}


@EACH
@pytest.mark.parametrize(
    ("library", "dtype"), [(np, "float64"), (np, "float32"), (torch, "float64")]
)
def test_operations(old, new, library, dtype):
    for size in (1e-9, 1e-3, 0.5):
        given = arguments(old, size, dtype)
        wanted = everything(old, given)
        found = everything(new, [library.asarray(a) for a in given])
        assert {str(v.dtype).removeprefix("torch.") for v in found.values()} == {dtype}
        check(old, found, wanted, 100 * np.finfo(dtype).eps)


@FEW
def test_jit(M):
    """Under jit, and in float32 with flushed subnormal numbers."""
    for dtype in ("float64", "float32"):
        given = arguments(M, 0.5, dtype)
        found = jax.jit(lambda *given: everything(M, given))(*given)
        check(M, found, everything(M, given), 200 * np.finfo(dtype).eps)


@FEW
def test_bad_samples(M):
    """A sample with NaN has NaN, and no other."""
    x, y, z, c = arguments(M, 0.5)
    for a in (x, c):
        a[3] = np.nan
    for name, value in everything(M, (x, y, z, c)).items():
        if name != "hessian":
            bad = ~np.isfinite(value).reshape(10, -1).all(-1)
            alone = bad.sum() == 1 and bad[3]
            assert alone or (name == "standardize" and not bad.all()) or name.endswith("normal"), (
                name
            )


# ---------------------------------------------------------------------- derivatives

DERIVATIVES = {
    "add": lambda M, x, y, z, v, t: M.to_normal(M.add(x, y)),
    "scale": lambda M, x, y, z, v, t: M.to_normal(M.scale(t, x)),
    "geodesic": lambda M, x, y, z, v, t: M.to_normal(M.geodesic(x, y, t)),
    "standardize": lambda M, x, y, z, v, t: M.to_normal(M.standardize(x, y[0], t, z[0])),
    "exp": lambda M, x, y, z, v, t: M.to_normal(M.exp(x, v)),
    "log": lambda M, x, y, z, v, t: M.pull(x, M.log(x, y)),
    "transport": lambda M, x, y, z, v, t: M.pull(y, M.transport(x, y, v)),
    "project": lambda M, x, y, z, v, t: M.to_normal(M.project(x + 0.01 * y)),
}


def coordinates(M, repeated):
    """Coordinates of points: in general position, or with equal angles and at the identity."""
    rng = np.random.default_rng(0)
    c = 0.3 * rng.normal(size=(4, 2, M.dim))
    if repeated:
        c[0], c[1] = np.linspace(0.4, 0.4, M.dim) * (np.arange(M.dim) % 3 == 0), 0.0
    return [torch.tensor(a) for a in c] + [torch.tensor([0.6, 1.3], dtype=torch.float64)]


@FEW
def test_derivatives(M):
    """First and second ones by differences, along geodesics through points with repeated values."""
    *given, t = coordinates(M, True)

    def values(c, d, e, f, t):
        x, y, z = (M.from_normal(a) for a in (c, d, e))
        v = M.push(x, f)
        return tuple(function(M, x, y, z, v, t) for function in DERIVATIVES.values())

    inputs = [a.requires_grad_() for a in (*given, t)]
    options = {"fast_mode": True, "atol": 1e-6, "rtol": 1e-4}
    assert torch.autograd.gradcheck(values, inputs, check_forward_ad=True, **options)
    assert torch.autograd.gradgradcheck(values, inputs, **options)


@FEW
def test_views(M):
    """With decompositions that were saved, derivatives of both orders are the same ones."""
    space = M.inside
    mean, x = (space.random(*n, rng=k, spread=0.4) for k, n in enumerate(((2,), (3, 2))))
    view = space.centred(mean, x)
    assert len(view.saved) == view.saves
    assert len(view.image) == view.images
    saved = tuple(map(torch.tensor, view.saved))
    step, move = (0.1 * torch.randn(*n, space.dim).double() for n in ((2,), (3, 2)))

    def normal(t, saved):
        at = space.shift(torch.tensor(mean), (t - 1.0) * step)
        return space.centred(at, space.shift(torch.tensor(x), (t - 1.0) * move), saved).normal

    one = torch.ones((), dtype=torch.float64)
    for order in (
        lambda f: f,
        torch.func.jacfwd,
        lambda f: torch.func.jacfwd(torch.func.jacrev(f)),
    ):
        one_by_one = [order(lambda t, s=s: normal(t, s).sum())(one) for s in (saved, ())]
        torch.testing.assert_close(*one_by_one, rtol=1e-10, atol=1e-10)


@FEW
def test_followed(M):
    """The change of the view with the mean is that of differences."""
    space = M.inside
    mean, x = (space.random(*n, rng=k, spread=0.5) for k, n in enumerate(((2,), (3, 2))))
    view = space.centred(torch.tensor(mean), torch.tensor(x))
    c = torch.randn(2, space.dim, dtype=torch.float64)
    (changed,) = torch.func.jvp(lambda s: view.followed(s)[0], (0.0 * c,), (c,))[1:]
    ends = [space.relative_normal(space.shift(mean, h * c.numpy()), x) for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(changed, (ends[0] - ends[1]) / 2e-5, atol=1e-8)


# ---------------------------------------------------------------------- means


def found(M, x, w):
    result = find(M.inside, M.to_inside(x), w, None, Search())
    return M.from_inside(result.mean), result.variance[..., 0]


@EACH
def test_means(old, new):
    """Two channels with weights, in float64 and float32, close to the identity and far from it."""
    x = np.stack([cloud(old, 20, 0.3 * old.convexity_radius, seed) for seed in (1, 2)], axis=1)
    w = np.random.default_rng(1).random((20, 2))
    w /= w.sum(0)
    wanted = gyrobn.frechet(old, x, w)
    for dtype in ("float64", "float32"):
        eps = float(np.finfo(dtype).eps)
        mean, variance = found(new, x.astype(dtype), w.astype(dtype))
        assert float(host(new.violation(mean)).max()) < 20 * eps
        assert float(old.dist(host(mean), wanted.mean).max()) < 100 * eps
        np.testing.assert_allclose(variance, wanted.variance, rtol=50 * eps)


@pytest.mark.parametrize(("n", "p"), [(40, 2), (30, 9), (100, 1)])
def test_first_guess(n, p):
    """That of subspaces far from the identity, without an n × n matrix, is nearly their mean."""
    M = Grassmannian(n, p).inside
    centre = np.linalg.qr(np.random.default_rng(0).normal(size=(n, p)))[0]
    for size in (0.0, 1e-6, 0.3):
        x = M.shift(centre, size * np.random.default_rng(1).normal(size=(15, M.dim)) / M.dim**0.5)
        moments = M.moments(x)
        assert moments.shape[-1] < n * (2 * p + 9)
        guess = M.start(moments.mean(0))
        assert M.violation(guess) < 1e-13
        assert M.dist(guess, centre) < size + 1e-12


@FEW
def test_derivatives_of_means(M):
    """First ones as the old core has them, second ones by differences, and JAX as torch."""
    rng = np.random.default_rng(0)
    c = torch.tensor(0.25 * rng.normal(size=(4, M.dim)))
    c[3] = c[2]
    w = torch.full((4,), 0.25, dtype=torch.float64)
    slope = rng.normal(size=M.dim)

    def loss(frechet, M, c, slope):
        mean, variance = frechet(M, M.from_normal(c))
        return (M.to_normal(mean) * slope).sum() + (variance**2).sum()

    new = lambda M, x: found(M, x, w if isinstance(x, torch.Tensor) else jnp.asarray(w))  # noqa: E731
    value = lambda c: loss(new, M, c, torch.tensor(slope))  # noqa: E731
    (gradient,) = torch.autograd.grad(value(c.requires_grad_()), c)
    old = getattr(gyrobn, type(M).__name__)(*vars_of(M))
    old_value = loss(lambda M, x: gyrobn.frechet(M, x)[:2], old, c, torch.tensor(slope))
    torch.testing.assert_close(gradient, torch.autograd.grad(old_value, c)[0], rtol=0, atol=1e-11)
    assert torch.autograd.gradgradcheck(value, (c,), atol=1e-6)
    if M.dim <= 4:
        hessian = jax.jit(jax.hessian(lambda c: loss(new, M, c, slope)))(jnp.asarray(c.detach()))
        by_torch = torch.func.hessian(value)(c.detach())
        np.testing.assert_allclose(hessian, by_torch, rtol=0, atol=1e-10)


def vars_of(M):
    return [getattr(M, name) for name in ("n", "p", "representation") if hasattr(M, name)]


# ---------------------------------------------------------------------- hard cases


def in_random_planes(n, planes, delta, count):
    """Rotations by π − δ in planes of every orientation."""
    rng = np.random.default_rng([n, planes])
    Q = np.linalg.qr(rng.standard_normal((count, n, n)))[0]
    turn, (cos, sin) = np.eye(n), (-np.cos(delta), np.sin(delta))
    for i in range(0, 2 * planes, 2):
        turn[i : i + 2, i : i + 2] = [[cos, -sin], [sin, cos]]
    return Q @ turn @ np.swapaxes(Q, -1, -2)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_half_turns(n, dtype):
    """Their logarithm has the right length, leads back, and has a finite derivative."""
    M, eps = SpecialOrthogonal(n), float(np.finfo(dtype).eps)
    for planes in range(1, n // 2 + 1):
        for delta in (0.0, 30 * eps, 1e4 * eps):
            x = in_random_planes(n, planes, delta, 200).astype(dtype)
            c = M.to_normal(x)
            size = (2 * planes) ** 0.5 * (np.pi - delta)
            np.testing.assert_allclose(np.linalg.norm(host(c), axis=-1), size, atol=800 * eps)
            np.testing.assert_allclose(M.from_normal(c), x, atol=800 * eps)
            leaf = torch.tensor(x, requires_grad=True)
            for value in (M.norm(leaf) ** 2, M.scale(0.3, leaf), M.project(leaf)):
                assert torch.autograd.grad(value.sum(), leaf)[0].isfinite().all()


def test_the_cut_locus():
    """Orthogonal subspaces: one of the shortest ways, and finite derivatives."""
    M = Grassmannian(5, 2)
    x = torch.eye(5, dtype=torch.float64)[:, 2:4].requires_grad_()
    e = M.origin(x)
    torch.testing.assert_close(M.dist(e, x), torch.tensor(np.pi / 2**0.5, dtype=torch.float64))
    back = M.exp(e, M.log(e, x))
    torch.testing.assert_close(back @ back.mT, x @ x.mT, rtol=0, atol=1e-14)
    for value in (M.dist(e, x), M.scale(0.5, x).sum(), M.add(x, e).sum(), M.log(e, x).sum()):
        assert torch.autograd.grad(value, x)[0].isfinite().all()


MP = mpmath.mp.clone()
MP.dps = 120
FUNCTIONS = [
    (ANGLE, lambda x: MP.acos(x) / MP.sqrt((1 - x) * (1 + x)), (1e-3, 0.3, 0.9, 1 - 1e-9)),
    (COSINE_OF_ROOT, lambda x: MP.cos(MP.sqrt(x)), (1e-9, 0.3, 0.99, 2.0, 30.0, 900.0)),
    (SINC_OF_ROOT, lambda x: MP.sin(MP.sqrt(x)) / MP.sqrt(x), (1e-9, 0.3, 0.99, 2.0, 30.0, 900.0)),
]


@pytest.mark.parametrize(("f", "exact", "bases"), FUNCTIONS, ids=["angle", "cosine", "sinc"])
def test_divided_differences(f, exact, bases):
    """Those of two and of three numbers, close or not, against 120 digits."""
    for base in bases:
        for gap in (0.0, 1e-9, 1e-3, 0.05, 0.5):
            x = [np.asarray(base * (1.0 - gap * k)) for k in (0.0, 0.6, 1.0)]
            a, b, c = (MP.mpf(float(v)) * (1 - k * MP.mpf(10) ** -25) for k, v in enumerate(x, 1))
            first, last = (exact(a) - exact(b)) / (a - b), (exact(b) - exact(c)) / (b - c)
            second = float((first - last) / (a - c))
            np.testing.assert_allclose(f.difference(*x[:2]), float(first), rtol=2e-14, atol=1e-15)
            np.testing.assert_allclose(f.difference(*x), second, rtol=2e-13, atol=1e-15)
