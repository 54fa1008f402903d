"""Lazy imports, tracing, vmap, pytrees, and what keeps CuPy honest where there is no GPU."""

import importlib.util
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from inspect import isfunction, signature
from itertools import combinations
from pathlib import Path
from types import ModuleType

import array_api_compat as compat
import jax
import numpy as np
import pytest
import torch
from conftest import FIRST, GEOMETRIES, geometries_on, host

import gyrobn
from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    Grassmannian,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    SpecialOrthogonal,
    Sphere,
    Stats,
    Stereographic,
    batch_stats,
    frechet,
    normalize,
    normalize_batch,
)
from gyrobn.backends import Backend, backend_of
from gyrobn.manifolds.chart import Chart

PACKAGE = Path(gyrobn.__file__).parent


@pytest.mark.parametrize("M", FIRST, ids=repr)
def test_jax_multiplies_in_full_precision(M):
    """JAX rounds float32 on a GPU or TPU unless told otherwise; this default is like a TPU's."""

    def run(x):
        y = normalize(M, x, batch_stats(M, x, steps=1), bias=x[0], scale=0.3)
        return (M.add(x, y) ** 2).sum() + (M.to_normal(y) ** 2).sum()

    x = M.random(5, rng=0, like=jax.numpy.zeros((), "float32"), spread=0.3)
    with jax.default_matmul_precision("bfloat16"):
        assert "Precision.DEFAULT" not in str(jax.make_jaxpr(jax.value_and_grad(run))(x))


def test_import_brings_no_framework():
    code = (
        "import sys, gyrobn, numpy as np\n"
        "M = gyrobn.PoincareBall(2); x = M.random(9, rng=0)\n"
        "gyrobn.normalize(M, x, gyrobn.batch_stats(M, x))\n"
        "loaded = {'torch', 'jax', 'cupy', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_versions_of_jax_that_may_hang_warn():
    """As NPROC is set for these tests, nothing else would show it."""
    code = "import jaxlib.version as v; v.__version_info__ = (0, 10, 2); import gyrobn.backends.jax"
    environment = {k: v for k, v in os.environ.items() if k != "NPROC"}
    for more in ({}, {"NPROC": "8"}):
        command = [sys.executable, "-c", code]
        found = subprocess.run(command, env=environment | more, capture_output=True, text=True)
        assert ("NPROC=8" in found.stderr) != bool(more)


CONTRACT = {n: f for n, f in vars(Backend).items() if isfunction(f) and not n.startswith("_")}
SHIMS = ("cupy", "jax", "mlx", "numpy", "torch")


class TestShims:
    """Names and parameters of the contract; mypy compares the types."""

    @pytest.fixture(params=SHIMS)
    def shim(self, request, monkeypatch):
        """A shim; that of CuPy or MLX with NumPy's functions where there is no such library."""
        name = f"gyrobn.backends.{request.param}"
        if request.param == "mlx" and importlib.util.find_spec("mlx") is None:
            core = ModuleType("mlx.core")
            vars(core).update(vars(np) | {"cpu": None})
            monkeypatch.setitem(sys.modules, "mlx", ModuleType("mlx"))
            monkeypatch.setitem(sys.modules, "mlx.core", core)
            monkeypatch.delitem(sys.modules, name, raising=False)
            monkeypatch.setattr(gyrobn.backends, "mlx", None, raising=False)
            module = importlib.import_module(name)
            monkeypatch.delitem(sys.modules, name)
            return module
        if request.param == "cupy" and importlib.util.find_spec("cupy") is None:
            for module in ("cupy", "cupyx"):
                monkeypatch.setitem(sys.modules, module, ModuleType(module))
            monkeypatch.setitem(sys.modules, "array_api_compat.cupy", compat.numpy)
            monkeypatch.setattr(compat, "cupy", compat.numpy, raising=False)
            monkeypatch.delitem(sys.modules, name, raising=False)
            monkeypatch.setattr(gyrobn.backends, "cupy", None, raising=False)
            module = importlib.import_module(name)
            monkeypatch.delitem(sys.modules, name)  # the tests after this one know of none
            return module
        return importlib.import_module(name)

    def test_it_has_the_parameters_of_the_contract(self, shim):
        for name, method in CONTRACT.items():
            own = getattr(shim, name)
            _, *expected = signature(method).parameters.values()
            found = signature(own).parameters.values()
            shown = [[(p.name, p.kind, p.default) for p in some] for some in (found, expected)]
            assert shown[0] == shown[1], name
            assert method.__doc__, name
            assert own.__doc__, name

    def test_all_are_here_and_checked_by_mypy(self):
        assert len(CONTRACT) <= 12
        files = {path.stem for path in (PACKAGE / "backends").glob("*.py")}
        source = (PACKAGE / "backends" / "contract.py").read_text()
        (line,) = re.findall(r"_backends: tuple\[Backend, ...\] = \((.*)\)", source)
        assert sorted(line.split(", ")) == sorted(files - {"__init__", "contract"}) == list(SHIMS)

    def test_round_trip(self, lib):
        x = lib.array([[1.0, 2.0], [3.0, 4.0]])
        shim = backend_of(x)
        back = shim.from_numpy(shim.to_numpy(x), x)
        assert type(back) is type(x)
        assert back.dtype == x.dtype
        np.testing.assert_array_equal(host(back), host(x))


def test_cupys_solve_does_not_broadcast(monkeypatch):
    """What stands in for a GPU; tests/test_contract.py has the names of operations."""
    import array_api_compat.numpy as xnp

    solve = xnp.linalg.solve

    def strict_solve(a, b):
        assert a.shape[:-2] == b.shape[:-2]
        assert a.ndim == b.ndim
        return solve(a, b)

    monkeypatch.setattr(xnp.linalg, "solve", strict_solve)
    for M in FIRST:
        x = M.random(6, 2, 3, rng=0, spread=0.4)
        for axis in (0, (0, 2), (0, 1, 2)):
            frechet(M, x, axis=axis)


@pytest.mark.gpu
def test_cupy_on_a_gpu():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    for M in FIRST:
        x = M.random(20, rng=0, like=cupy.zeros(()), spread=0.5)
        y = normalize(M, x, batch_stats(M, x), scale=0.5)
        assert isinstance(y, cupy.ndarray)
        expected = normalize_batch(M, M.random(20, rng=0, spread=0.5), scale=0.5)[0]
        np.testing.assert_allclose(cupy.asnumpy(y), expected, atol=1e-12)


def everything(M, x, y, z):
    """Use each operation once, and return arrays only."""
    v = M.log(x, y)
    return (
        M.add(x, y),
        M.neg(x),
        M.scale(0.7, x),
        M.norm(x),
        M.dist(x, y),
        M.geodesic(x, y, 0.3),
        M.gyration(x, y, z),
        M.coadd(x, y),
        M.to_normal(x),
        M.from_normal(M.to_normal(y)),
        M.exp(x, v),
        M.transport(x, y, v),
        M.inner(x, v, v),
        M.project(x),
        M.violation(x),
        M.standardize(x, y, 1.2, z),
    )


def maps(M, x, y, z):
    """Use what is a chart's own, each once; the other operations are made of these."""
    v = M.push(z, M.to_normal(y))
    inner = M.tangent_to_inside(z, v)
    return (
        M.to_inside(x),
        M.from_inside(M.to_inside(y)),
        inner,
        M.tangent_from_inside(x, inner),
        M.project(x),
        M.violation(x),
    )


FLAT = [M for M in GEOMETRIES if isinstance(M, Chart) and isinstance(M.inside, Euclidean)]
FIRST_FLAT = {type(M): M for M in reversed(FLAT)}


def program(M):
    """Return what JAX compiles: for a family's flat charts after the first, only their maps.

    Their other operations are the same code as the first one's, and the maps of some take XLA a
    second each time they occur.
    """
    return maps if M in FLAT and FIRST_FLAT[type(M)] != M else everything


def three(M):
    """Return three arrays of points."""
    spread = min(0.5, 0.3 * M.convexity_radius)
    return tuple(M.random(20, rng=i, spread=spread) for i in (1, 2, 3))


OPTIMIZED = {
    "xla_cpu_use_fusion_emitters": True,
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
}
"""The defaults of the compiler, with which users run; the other tests compile without."""


@pytest.mark.parametrize("M", [Klein(2), SPD(2), Grassmannian(4, 2), Correlation(3)], ids=repr)
def test_normalize_under_jit(M):
    """With all optimizations; test_layers.py has every geometry without."""
    x, _, _ = three(M)

    @partial(jax.jit, compiler_options=OPTIMIZED)
    def f(x):
        return normalize(M, x, batch_stats(M, x), scale=0.5)

    expected = normalize(M, x, batch_stats(M, x), scale=0.5)
    np.testing.assert_allclose(f(jax.numpy.asarray(x)), expected, atol=1e-12)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
class TestTracing:
    def test_jit_and_vmap(self, M):
        points, computed = three(M), program(M)
        expected = computed(M, *points)
        arrays = [jax.numpy.asarray(p) for p in points]
        # the geometry is a pytree: its curvature is an argument of the compiled function
        by_vmap = jax.jit(jax.vmap(computed, in_axes=(None, 0, 0, 0)))(M, *arrays)
        for a, b in zip(by_vmap, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-13)

    def test_torch_vmap(self, M):
        points = three(M)
        tensors = [torch.as_tensor(p) for p in points]
        found = torch.func.vmap(lambda *p: everything(M, *p))(*tensors)
        for a, b in zip(found, everything(M, *points), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-13)

    def test_normalize_under_torch_vmap(self, M):
        """Over stacked batches, where no value can be looked at; only one argument is batched."""
        vmap, x = torch.func.vmap, np.stack(three(M))
        tensors = torch.as_tensor(x)
        found = vmap(lambda b: normalize(M, b, batch_stats(M, b, max_iter=12)))(tensors)
        for y, batch in zip(found, x, strict=True):
            np.testing.assert_allclose(y, normalize_batch(M, batch)[0], atol=1e-12)
        one, stats = tensors[0], batch_stats(M, tensors[0])
        scaled = vmap(lambda s: normalize(M, one, stats, scale=s))(
            torch.tensor([0.5, 1.5]).double()
        )
        expected = normalize(M, x[0], Stats(stats.mean.numpy(), stats.var.numpy()), scale=1.5)
        np.testing.assert_allclose(scaled[1], expected, atol=1e-13)
        shifted = vmap(lambda b: normalize(M, one, stats, bias=b))(tensors[1])
        assert shifted.shape == (20, 20, *M.point_shape)


PICKLED = pickle.dumps(PoincareBall(2))
MAKE = "import gyrobn; M = gyrobn.PoincareBall(2)"
PYTREES = {
    "an object, an array that gyrobn has seen": f"{MAKE}; import jax; M.norm(jax.numpy.ones(2))",
    "gyrobn, JAX, an object": "import gyrobn, jax; M = gyrobn.PoincareBall(2)",
    "gyrobn.jax, then a class of one's own": (
        "import gyrobn.jax, jax; M = type('Mine', (gyrobn.PoincareBall,), {})(2)"
    ),
    "an object from elsewhere": f"import gyrobn.jax, jax; M = pickle.loads({PICKLED!r})",
    "a class of one's own, then gyrobn.jax": (
        "import gyrobn; M = type('Mine', (gyrobn.PoincareBall,), {})(2); import jax, gyrobn.jax"
    ),
}


class TestGeometriesAreValues:
    @pytest.mark.parametrize("M", FIRST, ids=repr)
    def test_hash_equality_pickle(self, M):
        assert pickle.loads(pickle.dumps(M)) == M
        assert len({M, replace(M)}) == 1

    def test_pytree(self):
        M = PoincareBall(3, -0.5)
        leaves, structure = jax.tree.flatten(M)
        assert leaves == [-0.5]
        assert jax.tree.unflatten(structure, leaves) == M
        x = jax.numpy.asarray(M.random(4, rng=0))
        slope = jax.grad(lambda M: M.dist(x[0], x[1]))(M)
        assert isinstance(slope, PoincareBall)
        h = 1e-6
        up, down = (PoincareBall(3, -0.5 + s).dist(x[0], x[1]) for s in (h, -h))
        assert float(slope.curvature) == pytest.approx(float(up - down) / (2 * h), rel=1e-6)

    @pytest.mark.parametrize("order", PYTREES)
    def test_pytree_in_whatever_order(self, order):
        """JAX knows a geometry once gyrobn has seen an array of JAX, or gyrobn.jax is imported."""
        code = f"""
import pickle, sys
{PYTREES[order]}
assert jax.jit(lambda M, x: M.norm(x))(M, jax.numpy.ones(2) / 2) > 0
assert jax.tree.leaves(M) == [-1.0]
assert not [f for f in sys.meta_path if type(f).__module__.startswith("gyrobn")]
assert "exec_module" not in vars(jax.__spec__.loader)
"""
        subprocess.run([sys.executable, "-c", code], check=True)

    @pytest.mark.parametrize("cls", [PoincareBall, Hyperboloid, Sphere, Stereographic])
    def test_curvature_may_be_an_array(self, cls):
        """Of another dtype than the points: a parameter never changes the dtype of the data."""
        M = cls(3)
        x = M.random(5, rng=0, like=np.zeros((), np.float32), spread=0.4)
        learnt = replace(M, curvature=np.asarray(M.curvature, np.float64))
        y = learnt.add(x, x[::-1])
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, M.add(x, x[::-1]), rtol=1e-5, atol=1e-6)
        K = torch.tensor(M.curvature, dtype=torch.float64, requires_grad=True)
        z = replace(M, curvature=K).dist(torch.as_tensor(x), torch.as_tensor(x[::-1].copy()))
        assert z.dtype == torch.float32
        z.sum().backward()
        assert torch.isfinite(K.grad)


def test_random(lib):
    """``rng=None``, the default, means fresh entropy; a seed repeats, and on every library."""
    for M in geometries_on(lib):
        if M.complex_points:  # test_spaces.py has those
            continue
        points = [host(M.random(3, like=lib.like)) for _ in range(2)]
        points.append(host(M.random(3, rng=None, like=lib.like)))
        for a, b in combinations(points, 2):
            assert not np.any(np.all(a == b, axis=tuple(range(1, a.ndim)))), M
        found = M.random(3, 2, rng=5, like=lib.like)
        assert found.shape == (3, 2, *M.point_shape)
        assert found.dtype == lib.like.dtype
        np.testing.assert_array_equal(host(found), host(M.random(3, 2, rng=5, like=lib.like)))
        np.testing.assert_allclose(host(found), M.random(3, 2, rng=5), atol=100 * lib.eps)


def test_random_of_a_generator():
    M, generator = FIRST[0], np.random.default_rng(0)
    assert not np.allclose(M.random(2, rng=generator), M.random(2, rng=generator))


@pytest.mark.parametrize("M", [Hyperboloid(2), SpecialOrthogonal(3), Product(Sphere(2), Klein(2))])
def test_jax_arrays_are_not_tied_to_a_device(M):
    """As long as none that came in is: pmap, shard_map and sharded data refuse those that are."""
    x = M.random(2, rng=0, like=jax.numpy.zeros(()))
    c = M.to_normal(x)
    found = x, M.origin(x), M.project(x), c, M.from_normal(c), M.by_block(c)
    assert [a.committed for a in found] == [False] * len(found)
    tied = jax.device_put(x, jax.devices()[0])
    assert M.random(2, rng=0, like=tied).committed


def test_jax_on_a_mesh():
    """Sharded samples, replicated mean: in a process of its own, with eight devices."""
    code = """
import os
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import gyrobn
jax.config.update("jax_enable_x64", True)
mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
M = gyrobn.Hyperboloid(3)
x = M.random(16, rng=0)
shared = jax.device_put(x, NamedSharding(mesh, P("batch")))
stats = gyrobn.batch_stats(M, shared)
y = gyrobn.normalize(M, shared, stats)
expected = gyrobn.normalize(M, x, gyrobn.batch_stats(M, x))
np.testing.assert_allclose(y, expected, atol=1e-12)
assert len(y.devices()) == 8

# what is drawn goes where it is needed, unless `like` is tied to a device
from jax import numpy as jnp
drawn = M.random(16, rng=0, like=jnp.zeros(()))
again = M.random(16, rng=0, like=shared)
assert len((shared + drawn).devices()) == len((shared + again).devices()) == 8
assert len(jax.pmap(lambda x: 2 * x)(drawn[:8]).devices()) == 8
there = jax.device_put(jnp.zeros(()), jax.devices()[3])
assert M.random(2, rng=0, like=there).devices() == {jax.devices()[3]}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
