r"""The command selftest: every geometry on each installed library and device, against NumPy.

The reference is NumPy in float64. On a device without its own tests here, such as a GPU, this is
the way to find out whether its results can be trusted.

Each row runs the same functions on the same points. It compares operations with the reference,
tests laws, and tests the theorem: after normalization with bias :math:`\beta` and scale s, the mean
must be :math:`\beta` and the variance :math:`s^2 v^2/(v^2+\epsilon)`. Where a library has
gradients, the derivative of a whole normalization is compared with a difference quotient.

The rows of ``torch.compile`` compile the layer ``gyrobn.torch.GyroBN``, for training and for
evaluation, with torch's default compiler.
"""

import itertools
import os
import platform
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from importlib.metadata import distributions
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array
from gyrobn.cli.command import as_text, progress
from gyrobn.data.writing import replacing
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import normalize_batch
from gyrobn.numerics.arrays import cast, from_host, real_like
from gyrobn.numerics.checks import host
from gyrobn.statistics.frechet import frechet

COMPILED = "torch.compile"
SLOW = ("jax", COMPILED)
"""What compiles for seconds for each geometry."""

NAMESPACES = {
    "numpy": "array_api_compat.numpy",
    "torch": "array_api_compat.torch",
    "jax": "jax.numpy",
    "cupy": "array_api_compat.cupy",
    "dpnp": "dpnp",
    "mlx": "mlx.core",
    COMPILED: "array_api_compat.torch",
}
"""What is tested, each with its namespace."""

EPS = STEP = 1e-5
"""Of the normalization, and of the difference quotient."""

KINDS = "operations", "laws", "mean", "variance", "gradient"
BOUNDS = {
    "float64": dict.fromkeys(KINDS, 1e-12) | {"gradient": 1e-6},
    "float32": dict.fromkeys(KINDS, 2e-5) | {"gradient": 1e-3},
}
"""The largest errors that pass, for points at distances of about 1 from the identity.

On CPUs errors are below 2e-14 and 3e-6. Gradients are compared with differences, which are right
to 1e-8.
"""

Outcomes = dict[str, dict[str, Array]]
"""Results by name under ``operations``, and differences that should be zero under other kinds."""


class Place(NamedTuple):
    """A library and a device of it."""

    library: str
    device: str
    hardware: str
    """The device as its maker names it, for the report."""
    scalar: Callable[[str], Array]
    """Returns a scalar of a dtype there."""
    context: Callable[[], AbstractContextManager[Any]]
    """Returns the context in which the library has float64."""


def run(options: Namespace) -> dict[str, Any]:
    """Check every geometry on every library, and write a report if asked."""
    # JAX has a thread per core on a CPU; two batched decompositions can occupy both of two for ever
    os.environ.setdefault("NPROC", "8")
    found, absent = places(options.library, options.quick)
    if not found:
        raise ImportError(f"{options.library} cannot be tested: {absent[options.library]}")
    count = 32 if options.quick else 512
    runs = progress(options, "selftest", list(_runs(found, options.quick)))
    rows = [check(M, place, dtype, count) for M, place, dtype in runs]
    failed = sum(row["result"] != "ok" for row in rows)
    values: dict[str, Any] = {"rows": rows, "failed": f"{failed} of {len(rows)} rows"}
    values["not_tested"] = [f"{name}, {why}" for name, why in absent.items()] or None
    if options.report is not None:
        with replacing(options.report) as path:
            text = "\n".join(_markdown(as_text(values), found, count))
            path.write_text(text, encoding="utf-8")
    return values | {"passed": not failed, "report": options.report}


def _markdown(lines: list[str], found: list[Place], count: int) -> Iterator[str]:
    """Yield the lines of the report: versions, devices and the table."""
    names = ("gyrobn", "numpy", "torch", "jax", "cupy", "dpnp", "mlx", "array-api", "scikit")
    machine = platform.processor() or platform.machine()
    yield from ("# gyrobn selftest", "")
    yield f"* Python {platform.python_version()}, {platform.platform()}, {machine}"
    versions = sorted({f"{one.name} {one.version}" for one in distributions()}, key=str.lower)
    yield from (f"* {one}" for one in versions if one.lower().startswith(names))
    yield from (f"* device {p.library} {p.device}: {p.hardware}" for p in found)
    yield from ("", f"Batches of {count} samples; NumPy in float64 is the reference.")
    yield from ("", "```text", *lines, "```", "")


def _runs(found: list[Place], quick: bool) -> Iterator[tuple[GyroSpace, Place, str]]:
    """Yield what to check: geometry, place and dtype."""
    for cls, place in itertools.product(REGISTRY.values(), found):
        first, *others = cls.examples()
        dtypes = ["float32"] if place.library == "mlx" else list(BOUNDS)
        if quick or place.library == COMPILED:
            yield first, place, dtypes[0]
        else:
            yield from itertools.product([first, *others], [place], dtypes)


# ---------------------------------------------------------------------- libraries and devices


def places(library: str | None = None, quick: bool = False) -> tuple[list[Place], dict[str, str]]:
    """Return the libraries and devices to test, and why others are not.

    A quick run tests what compiles only if it is given by name.

    >>> [place.device for place in places("numpy")[0]]
    ['cpu']
    """
    found: list[Place] = []
    absent = {}
    for name in NAMESPACES if library is None else [library]:
        if quick and library is None and name in SLOW:
            absent[name] = f"it compiles for a long time: see --library {name}"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns when it lists devices
                found += _places(name)
        except ModuleNotFoundError:
            absent[name] = "it is not installed"
        except Exception as error:  # a broken library, or one without a device, can raise anything
            absent[name] = _in_a_line(error)
    return found, absent


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _places(name: str) -> Iterator[Place]:
    xp = import_module(NAMESPACES[name])
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    if name == "jax":
        jax = import_module("jax")
        devices = jax.devices()
        home = jax if hasattr(jax, "enable_x64") else import_module("jax.experimental")
        context = partial(home.enable_x64, True)
    elif name == "cupy":
        devices = [xp.cuda.Device()]  # the current one: CuPy computes nowhere else
        devices[0].compute_capability  # noqa: B018  # raises without a GPU
    elif name == "mlx":
        devices = [xp.default_device()]
    else:
        devices = xp.__array_namespace_info__().devices()
    if name == COMPILED:
        torch = import_module("torch")
        torch.compile(lambda x: x + 1.0)(torch.ones(8))  # raises without a C++ compiler
        context = partial(warnings.catch_warnings, action="ignore")  # torch has its own

    def scalar(device: Any, dtype: str) -> Array:
        where = {} if name == "mlx" else {"device": device}
        return xp.asarray(0.0, dtype=getattr(xp, dtype), **where)

    for device in devices:
        if device is not None and str(device) != "meta":
            hardware = getattr(device, "device_kind", device)
            if str(device).startswith("cuda"):
                hardware = xp.cuda.get_device_name(device)
            yield Place(name, str(device), str(hardware), partial(scalar, device), context)


# ---------------------------------------------------------------------- one row


def check(M: GyroSpace, place: Place, dtype: str, count: int = 32) -> dict[str, Any]:
    """Run all checks of one geometry in one place, and return a row of the table.

    >>> from gyrobn import PoincareBall
    >>> (numpy,), _ = places("numpy")
    >>> check(PoincareBall(2), numpy, "float64")["result"]
    'ok'
    """
    row: dict[str, Any] = {"geometry": repr(M), "library": place.library, "device": place.device}
    row |= {"dtype": dtype, **dict.fromkeys((*KINDS, "milliseconds"))}
    try:
        with place.context():
            errors, seconds = _errors(M, place.library, place.scalar(dtype), count)
    except Exception as error:  # the table shows it
        return row | {"result": f"FAILED: {_in_a_line(error)}"}
    bounds = BOUNDS[dtype]
    off = ", ".join(kind for kind, e in errors.items() if not e <= bounds[kind])  # also if NaN
    return row | errors | {"milliseconds": 1e3 * seconds, "result": f"OFF: {off}" if off else "ok"}


def _errors(M: GyroSpace, library: str, like: Array, count: int) -> tuple[dict[str, float], float]:
    """Return the largest error per kind, and the best time of three runs."""
    sizes: list[tuple[int, ...]] = [(count,), (count,), (count,), ()]
    points = [M.random(*s, rng=k, spread=_spread(M)) for k, s in enumerate(sizes, 1)]
    inputs = [from_host(p, like) for p in (*points, M.to_normal(points[0]))]
    run, times = _runner(M, library), []
    for _ in range(4):  # the first one compiles
        begin = time.perf_counter()
        found, gradient = run(*inputs)
        host(found["operations"]["normalized"] if gradient is None else gradient)  # waits for it
        times.append(time.perf_counter() - begin)
    # the reference gets the points as the dtype has rounded them
    *exact, c = (cast(host(p), np.float64) for p in inputs)
    wanted = _outcomes(M, *exact)["operations"]
    wanted["evaluated"] = wanted["normalized"]
    errors = {}
    for kind, outcomes in found.items():
        right = wanted if kind == "operations" else dict.fromkeys(outcomes, np.zeros(()))
        each = [_error(value, right[name]) for name, value in outcomes.items()]
        errors[kind] = float(np.max(each))  # NaN if one is
    if gradient is not None:
        v = np.sin(np.arange(c.size)).reshape(c.shape)
        quotient = (_loss(M, exact[-1], c + STEP * v) - _loss(M, exact[-1], c - STEP * v)) / (
            2.0 * STEP
        )
        errors["gradient"] = _error(np.sum(host(gradient, dtype=np.float64) * v), quotient)
    return errors, min(times[1:])


def _error(value: Array, right: Any) -> float:
    """Return the largest error of numbers, relative if they are large."""
    error = np.abs(host(value, dtype=np.float64) - right) / np.maximum(1.0, np.abs(right))
    return float(np.max(error))


def _spread(M: GyroSpace) -> float:
    """Return a standard deviation, small enough for a closed space to have one mean."""
    return min(0.5, 0.15 * M.convexity_radius)


def _outcomes(M: GyroSpace, x: Array, y: Array, z: Array, bias: Array) -> Outcomes:
    """Run operations, laws and a normalization; points are given by their normal coordinates."""
    normalized, stats = normalize_batch(M, x, bias=bias, scale=_spread(M), eps=EPS)
    cancelled = M.add(M.neg(x), M.add(x, y))
    gyrated = M.dist(M.gyration(x, z, y), M.gyration(x, z, z))
    values = {
        "sum": M.to_normal(M.add(x, y)),
        "inverse": M.to_normal(M.neg(x)),
        "scaled": M.to_normal(M.scale(0.7, x)),
        "between": M.to_normal(M.geodesic(x, y, 0.3)),
        "returned": M.to_normal(M.from_normal(M.to_normal(y))),
        "distance": M.dist(x, y),
        "transported": M.norm(M.exp(y, M.transport(x, y, M.log(x, z)))),
    }
    laws = {"cancelled": M.to_normal(cancelled) - M.to_normal(y), "gyrated": gyrated - M.dist(y, z)}
    found = _theorem(M, normalized, stats.var, bias)
    return found | {"operations": values | found["operations"], "laws": laws}


def _theorem(M: GyroSpace, normalized: Array, before: Array, bias: Array) -> Outcomes:
    """Return what a normalization gives, and how far mean and variance are from their targets."""
    after, expected = frechet(M, normalized), _spread(M) ** 2 * before / (before + EPS)
    return {
        "operations": {"normalized": M.to_normal(normalized), "before": before},
        "mean": {"": M.to_normal(after.mean) - M.to_normal(bias)},
        "variance": {"": after.variance / expected - 1.0},
    }


def _loss(M: GyroSpace, bias: Array, c: Array) -> Array:
    """Return a number that depends on the normal coordinates of samples by a normalization."""
    y, _ = normalize_batch(M, M.from_normal(c), bias=bias, scale=_spread(M), eps=EPS)
    return (real_like(y) ** 3).sum()


def _runner(M: GyroSpace, library: str) -> Callable[..., tuple[Outcomes, Array | None]]:
    """Return a function of all inputs that returns outcomes and, if there is one, a gradient."""
    if library == "jax":
        jax = import_module("jax")
        gradient = jax.grad(partial(_loss, M), argnums=1)
        return jax.jit(lambda *p: (_outcomes(M, *p[:-1]), gradient(*p[-2:])))  # type: ignore[no-any-return]
    if library == "mlx":
        derivative = import_module("mlx.core").grad(partial(_loss, M), argnums=1)
        return lambda *p: (_outcomes(M, *p[:-1]), derivative(*p[-2:]))
    if library == "torch":
        grad = import_module("torch").autograd.grad

        def with_gradient(*p: Array) -> tuple[Outcomes, Array]:
            c = p[-1].detach().requires_grad_()
            return _outcomes(M, *p[:-1]), grad(_loss(M, p[-2], c), c)[0]

        return with_gradient
    return _compiled(M) if library == COMPILED else lambda *p: (_outcomes(M, *p[:-1]), None)


def _compiled(M: GyroSpace) -> Callable[..., tuple[Outcomes, Array]]:
    """Return such a function that runs a compiled layer, in training and in evaluation."""
    torch, GyroBN = import_module("torch"), import_module("gyrobn.torch").GyroBN
    torch.compiler.reset()  # else the layers of all geometries would be too many for its cache
    layer = GyroBN(M, eps=EPS, momentum=1.0)  # running statistics are those of the last batch
    compiled = torch.compile(layer, fullgraph=True)

    def run(x: Array, y: Array, z: Array, bias: Array, c: Array) -> tuple[Outcomes, Array]:
        torch.nn.init.constant_(layer.to(c).train().scale, _spread(M))
        with torch.no_grad():
            layer.bias.copy_(M.to_normal(bias))
        c = c.detach().requires_grad_()
        normalized = compiled(M.from_normal(c))
        (gradient,) = torch.autograd.grad((real_like(normalized) ** 3).sum(), c)
        layer.eval()
        with torch.no_grad():
            found = _theorem(M, normalized.detach(), layer.running_var, bias)
            found["operations"]["evaluated"] = M.to_normal(compiled(x))
        return found, gradient

    return run
