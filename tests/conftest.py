"""The libraries that every law is tested on. One that is missing fails: it does not skip."""

import gc
import importlib
import os
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

# JAX reads this when it starts. Most of the time of these tests is XLA's: for functions that run
# once, it compiles five times as fast without its new code generator and without optimizations.
# test_backends.py compiles with the defaults, too.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1",
)

os.environ.setdefault("NPROC", "16")  # some versions of jaxlib hang with a thread per core

import array_api_strict
import jax
import numpy as np
import pytest
import threadpoolctl
import torch

from gyrobn import REGISTRY, PrecisionWarning
from gyrobn.backends import backend_of

if "PYTEST_XDIST_WORKER" in os.environ:  # the processes share the cores, and threads would wait
    threadpoolctl.threadpool_limits(1)
    torch.set_num_threads(1)

# Tracing and compiling make many objects that live: at Python's default of 700 new ones per
# collection, collections take a twentieth of the time, and a quarter of that of collecting tests.
gc.set_threshold(50_000, 20, 20)

jax.config.update("jax_enable_x64", True)
# Outside of jit, JAX compiles every operation for every shape: share that between the processes.
folder = os.path.join(tempfile.gettempdir(), f"gyrobn-tests-jax-{os.getuid()}")
jax.config.update("jax_compilation_cache_dir", folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

STRICT_DEVICE = array_api_strict.Device("device1")  # as far from the host as CuPy's arrays are


@dataclass(frozen=True)
class Library:
    """A library, a device and a dtype to run a test on."""

    name: str
    dtype: str

    def array(self, values: Any) -> Any:
        """Return ``values`` as an array of this library; complex numbers stay complex."""
        a = np.asarray(values)
        a = np.asarray(
            a, dtype=np.result_type(self.dtype, np.complex64) if a.dtype.kind == "c" else self.dtype
        )
        if self.name == "numpy":
            a = a.copy()
            a.flags.writeable = False  # no kernel may write to its input
            return a
        if self.name == "torch":
            return torch.as_tensor(a.copy())
        if self.name == "jax":
            return jax.numpy.asarray(a)
        if self.name == "dpnp":
            return importlib.import_module("dpnp").asarray(a)
        if self.name == "mlx":
            return importlib.import_module("mlx.core").array(a)
        return array_api_strict.asarray(a, device=STRICT_DEVICE)

    @property
    def like(self) -> Any:
        """An array in this library, dtype and device."""
        return self.array(0.0)

    @property
    def eps(self) -> float:
        """The precision of the dtype."""
        return float(np.finfo(self.dtype).eps)

    @property
    def double(self) -> bool:
        """Whether the dtype is float64."""
        return self.dtype == "float64"


ON_REQUEST = ("dpnp", "mlx")
"""Libraries that only ``--library`` runs, each in an environment of its own."""

NAMES = ("numpy", "torch", "jax", "array_api_strict", *ON_REQUEST)
EAGER = tuple(name for name in NAMES if name not in ("jax", "mlx"))
"""Names of the libraries that compile nothing, and have float64."""

LIBRARIES = [
    Library(name, dtype)
    for name in NAMES
    for dtype in ("float64", "float32")
    if (name, dtype) != ("mlx", "float64")  # its functions have seven digits in float64
]


@pytest.fixture(params=LIBRARIES, ids=lambda lib: f"{lib.name}-{lib.dtype}")
def lib(request: pytest.FixtureRequest) -> Library:
    """A library and a dtype."""
    return request.param


@pytest.fixture(params=[lib for lib in LIBRARIES if lib.name != "jax"], ids=str)
def eager(request: pytest.FixtureRequest) -> Library:
    """A library and a dtype, without JAX: for many shapes, each of which JAX would compile."""
    return request.param


GEOMETRIES = [M for cls in REGISTRY.values() for M in cls.examples()]
"""Every small instance that the registry offers."""


FIRST = [cls.examples()[0] for cls in REGISTRY.values()]
"""One instance per family."""


@cache
def geometries_on(lib: Library) -> list[Any]:
    """Return the instances to test on a library and dtype: on NumPy and torch all of them.

    array-api-strict is slow. It refuses an array of float64 among those of float32, so float32
    finds more there: float64 takes one instance per family.

    Outside of jit JAX compiles each operation for each shape and dtype. So it takes vectors only,
    the first instance of a family in float64, the others in float32. Matrices meet JAX under jit:
    test_backends.py holds every operation on every instance to NumPy's result, and test_layers.py
    the derivatives to torch's.
    """
    if lib.name == "array_api_strict":
        return FIRST if lib.double else GEOMETRIES
    if lib.name == "jax":
        return [M for M in GEOMETRIES if len(M.point_shape) == 1 and (M in FIRST) == lib.double]
    return GEOMETRIES


def pytest_addoption(parser: Any) -> None:
    """Let one library be chosen."""
    parser.addoption(
        "--library",
        choices=NAMES,
        help="run only the tests that take a library as a parameter, on this one",
    )


QUICK = {
    "test_checks",
    "test_public_names",
    "test_laws",
    "test_normalize",
    "test_operation_gradients",
    "test_operations",
    "test_spd_accuracy",
}
"""Files for the everyday loop, ``pytest -m quick``: of each, what runs on NumPy in float64."""


NEW = {
    name: REGISTRY[name]
    for name in (
        "torus",
        "special_euclidean",
        "hpd",
        "unitary",
        "special_unitary",
        "matrix_ball",
        "complex_ball",
        "siegel_disk",
        "fixed_rank_spd",
    )
}
"""The youngest families. Not every file of tests is adapted to them yet (complex points)."""
ADAPTED = {
    "test_domains",
    "test_edges",
    "test_frechet",
    "test_gradients",
    "test_laws",
    "test_normalize",
    "test_operation_gradients",
    "test_properties",
    "test_second_derivatives",
    "test_selftest",
    "test_spaces",
    "test_transport",
    "test_weights",
}
"""The files that run on all families."""


def is_new(value: Any) -> bool:
    """Tell whether a parameter of a test is a geometry of the youngest families, or names one."""
    if isinstance(value, tuple):
        return any(map(is_new, value))
    if isinstance(value, str):
        return value in NEW
    return (isinstance(value, type) and value in NEW.values()) or type(value) in NEW.values()


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marks
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what :func:`geometries_on` leaves out, and libraries that are not asked for."""
    asked, kept, left = config.getoption("library"), [], []
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {})
        lib, M = values.get("lib") or values.get("eager"), values.get("M")
        names = {getattr(v, "name", v) for v in values.values() if isinstance(v, (Library, str))}
        wanted = asked in names if asked else names.isdisjoint(ON_REQUEST)
        wanted = wanted and (item.path.stem in ADAPTED or not any(map(is_new, values.values())))
        if isinstance(lib, Library) and M in GEOMETRIES:
            wanted = wanted and M in geometries_on(lib)
        if item.path.stem in QUICK and lib in (None, LIBRARIES[0]):
            item.add_marker("quick")
        (kept if wanted else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Give each process one part of the suite, so that it finds again what it has compiled."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_collection_finish() -> None:
    """Keep what was imported out of garbage collections, which then take less than half as long."""
    gc.collect()
    gc.freeze()


def cloud(M: Any, count: int, spread: float, like: Any, offset: float = 1.0) -> Any:
    """Samples at root mean square distance ``spread`` around a point ``offset`` from the origin."""
    centre = M.random(rng=100, like=like, spread=offset)
    with warnings.catch_warnings():  # far out, matrices are held where float32 ends
        warnings.simplefilter("ignore", PrecisionWarning)
        samples = M.random(count, rng=0, like=like, spread=spread)
    return M.add(centre, samples)


def host(x: Any) -> np.ndarray:
    """Return the values of ``x`` as float64 or complex128 on the host."""
    a = np.asarray(backend_of(x).to_numpy(x))
    return np.asarray(a, dtype=np.complex128 if a.dtype.kind == "c" else np.float64)


def dtype_for(M: Any, dtype: Any) -> Any:
    """Return the dtype of points of M whose coordinates have such a real dtype."""
    return np.result_type(dtype, np.complex64) if M.complex_points else np.dtype(dtype)


def assert_like(actual: Any, model: Any) -> None:
    """Check library, dtype and device; a number of NumPy counts as an array."""
    kinds = [np.ndarray if isinstance(a, np.generic) else type(a) for a in (actual, model)]
    assert kinds[0] is kinds[1], f"{kinds[0]} where {kinds[1]} was expected"
    assert actual.dtype == model.dtype
    assert getattr(actual, "device", None) == getattr(model, "device", None)


def assert_close(actual: Any, expected: Any, atol: float, like: Any = None) -> None:
    """Check library, dtype and shape against ``like`` (by default ``expected``), and the values."""
    assert_like(actual, expected if like is None else like)
    if like is None:
        assert tuple(actual.shape) == tuple(expected.shape)
    e = expected if isinstance(expected, (float, np.ndarray)) else host(expected)
    np.testing.assert_allclose(host(actual), e, rtol=0, atol=atol)


def assert_same(M: Any, actual: Any, expected: Any, tolerance: float) -> None:
    """Check library, dtype, shape, and that the points are the same, whatever represents them."""
    assert_like(actual, expected)
    assert tuple(actual.shape) == tuple(expected.shape)
    assert float(host(M.dist(actual, expected)).max()) < tolerance


def per_block(M: Any, values: Any) -> Any:
    """Give numbers, one per point or channel, the axis of the blocks where M has several."""
    return values if len(M.blocks) == 1 else values[..., None]
