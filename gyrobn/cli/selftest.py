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
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of
from gyrobn.cli.backends import LIBRARIES, in_a_line
from gyrobn.cli.console import Console
from gyrobn.cli.inputs import check_place
from gyrobn.cli.selftest_report import BOUNDS, report_of, table
from gyrobn.data.writing import replacing
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import normalize_batch
from gyrobn.numerics.checks import host
from gyrobn.statistics.frechet import frechet

COMPILED = "torch.compile"

NAMESPACES = {k: v for k, v in LIBRARIES.items() if k != "array-api-strict"}
NAMESPACES |= {"dpnp": "dpnp", COMPILED: LIBRARIES["torch"]}
"""What is tested, each with its namespace; array-api-strict has no device of its own."""

COUNT = {True: 32, False: 512}
"""Samples in a batch, quick or not."""

QUICK_JAX = ("poincare_ball", "spd")
"""What a quick run tests on JAX, which compiles each geometry for seconds."""

QUICK_COMPILED = ("poincare_ball",)
"""What a quick run of torch.compile tests; it takes many seconds for each geometry."""

EPS = 1e-5
STEP = 1e-5
"""The step of the difference quotient."""


class Place(NamedTuple):
    """A library and a device of it."""

    library: str
    device: str
    hardware: str
    """The device as its maker names it, for the report."""
    scalar: Callable[[str], Array]
    """Return a scalar of a dtype there."""
    context: Callable[[], AbstractContextManager[Any]]
    """Return the context in which the library has float64."""


class Row(NamedTuple):
    """The errors on one geometry, library, device and dtype."""

    geometry: str
    library: str
    device: str
    dtype: str
    errors: dict[str, float]
    """Largest error per kind; without ``slope`` if the library has no gradients."""
    seconds: float
    """Time of all operations and the normalization, the best of three runs."""
    problem: str | None = None
    """The error that ended the run."""

    @property
    def off(self) -> list[str]:
        """The kinds of errors that are above their bound; NaN is."""
        bounds = BOUNDS[self.dtype]
        return [kind for kind, error in self.errors.items() if not error <= bounds[kind]]

    @property
    def passed(self) -> bool:
        """Whether nothing is off."""
        return self.problem is None and not self.off


def run(options: Namespace, console: Console) -> None:
    """Check every geometry on every library, print a table, and write a report if asked."""
    check_place(options.report)
    # JAX has a thread per core on a CPU; two batched decompositions can occupy both of two for ever
    os.environ.setdefault("NPROC", "8")
    found, absent = places(options.library, options.quick)
    if not found:
        raise ImportError(f"{options.library} cannot be tested: {absent[options.library]}")
    runs = list(_runs(found, options.quick))
    rows = []
    with console.progress("selftest", len(runs)) as bar:
        for done, (M, place, dtype) in enumerate(runs):
            bar.update(done)
            rows.append(check(M, place, dtype, COUNT[options.quick]))
    devices = {f"{p.library} {p.device}": p.hardware for p in found}
    text = report_of(rows, devices, absent, COUNT[options.quick])
    if options.report is not None:
        with replacing(options.report) as path:
            path.write_text(text, encoding="utf-8")
    failed = [row for row in rows if not row.passed]
    each = [row._asdict() | {"off": row.off, "passed": row.passed} for row in rows]
    values: dict[str, Any] = {"rows": each, "not_tested": absent}
    values |= {"bounds": BOUNDS, "passed": not failed, "report": options.report}
    lines = [*table(rows), "", f"{len(rows) - len(failed)} of {len(rows)} rows passed"]
    lines += [f"not tested: {name}, {why}" for name, why in absent.items()]
    lines += [f"report: {options.report}"] if options.report is not None else []
    console.report(values, lines)
    if failed:
        first = failed[0]
        raise ValueError(
            f"{len(failed)} of {len(rows)} rows failed, the first is {first.geometry} on "
            f"{first.library} {first.device} {first.dtype}: {first.problem or ', '.join(first.off)}"
        )


def _runs(found: list[Place], quick: bool) -> Iterator[tuple[GyroSpace, Place, str]]:
    """Yield what to check: geometry, place and dtype."""
    some = {"jax": QUICK_JAX, COMPILED: QUICK_COMPILED}
    for name, cls in REGISTRY.items():
        examples = cls.examples()[: 1 if quick else None]
        for M, place in itertools.product(examples, found):
            if quick:
                if name in some.get(place.library, REGISTRY):
                    yield M, place, "float64"
            elif place.library != COMPILED:
                yield from ((M, place, dtype) for dtype in BOUNDS)
            elif M is examples[0]:
                yield M, place, "float64"


# ---------------------------------------------------------------------- libraries and devices


def places(library: str | None = None, quick: bool = False) -> tuple[list[Place], dict[str, str]]:
    """Return the libraries and devices to test, and why others are not.

    A quick run tests torch.compile only if it is asked for.

    >>> [place.device for place in places("numpy")[0]]
    ['cpu']
    """
    found: list[Place] = []
    absent = {}
    for name in NAMESPACES if library is None else [library]:
        if name == COMPILED and library is None and quick:
            absent[name] = "it takes many seconds: see --library torch.compile"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns when it lists devices
                found += _places(name)
        except ModuleNotFoundError:
            absent[name] = "it is not installed"
        except Exception as error:  # a broken library, or one without a device, can raise anything
            absent[name] = in_a_line(error)
    return found, absent


def _places(name: str) -> list[Place]:
    xp = import_module(NAMESPACES[name])
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    if name == "jax":
        jax = import_module("jax")
        devices = jax.devices()
        home = jax if hasattr(jax, "enable_x64") else import_module("jax.experimental")
        context = partial(home.enable_x64, True)
    elif name == COMPILED:
        torch = import_module("torch")
        torch.compile(lambda x: x + 1.0)(torch.ones(8))  # raises without a C++ compiler
        devices = xp.__array_namespace_info__().devices()
        context = partial(warnings.catch_warnings, action="ignore")  # torch has its own
    elif name == "cupy":
        device = import_module("cupy").cuda.Device()  # the current one: CuPy computes nowhere else
        device.compute_capability  # noqa: B018  # raises without a GPU
        devices = [device]
    else:
        devices = xp.__array_namespace_info__().devices()

    def scalar_on(device: Any) -> Callable[[str], Array]:
        place = {} if name == "cupy" else {"device": device}
        return lambda dtype: xp.asarray(0.0, dtype=getattr(xp, dtype), **place)

    return [
        Place(name, _word(device), _hardware(name, device), scalar_on(device), context)
        for device in devices
        if device is not None and str(device) != "meta"
    ]


def _word(device: Any) -> str:
    """Return a device without spaces: <CUDA Device 0> is cuda:0."""
    return f"cuda:{device.id}" if "CUDA Device" in str(device) else str(device)


def _hardware(library: str, device: Any) -> str:
    """Return the name of a GPU, and of other devices what the library prints."""
    if library in ("torch", COMPILED) and str(device).startswith("cuda"):
        return str(import_module("torch").cuda.get_device_name(device))
    if library == "jax":
        return str(device.device_kind)
    if library == "cupy":
        properties = import_module("cupy").cuda.runtime.getDeviceProperties(device.id)
        return bytes(properties["name"]).decode()
    return str(device)


# ---------------------------------------------------------------------- one row


def check(M: GyroSpace, place: Place, dtype: str, count: int = 32) -> Row:
    """Run all checks of one geometry in one place, and return the errors.

    >>> from gyrobn import PoincareBall
    >>> (numpy,), _ = places("numpy")
    >>> check(PoincareBall(2), numpy, "float64").passed
    True
    """
    where = repr(M), place.library, place.device, dtype
    try:
        with place.context():
            errors, seconds = _errors(M, place.library, place.scalar(dtype), count)
    except Exception as error:  # the table shows it
        return Row(*where, {}, float("nan"), in_a_line(error))
    return Row(*where, errors, seconds)


def _errors(M: GyroSpace, library: str, like: Array, count: int) -> tuple[dict[str, float], float]:
    """Return the largest error per kind, and the time."""
    spread = _spread(M)
    copy = backend_of(like).from_numpy
    points = [copy(M.random(count, rng=seed, spread=spread), like) for seed in (1, 2, 3)]
    bias = copy(M.random(rng=4, spread=spread), like)
    # the reference gets the points as the dtype has rounded them
    exact = [host(p, dtype=np.float64) for p in (*points, bias)]
    inputs = *points, bias, copy(M.to_normal(exact[0]), like)
    outcomes = _runner(M, library)
    found, slope = outcomes(*inputs)
    seconds = min(_timed(outcomes, inputs) for _ in range(3))

    x, y, z, beta = exact
    known = _outcomes(M, x, y, z, beta)
    known["cancelled"], known["mean"], known["evaluated"] = y, beta, known["normalized"]
    known["gyrated"] = M.dist(y, z)
    known["variance"] = spread**2 * known["before"] / (known["before"] + EPS)
    errors: dict[str, float] = {}
    for name, result in found.items():
        result = host(result, dtype=np.float64)
        expected = known[name]
        if name in POINTS:
            error = M.dist(M.project(result), expected)
        else:
            error = np.abs(result - expected) / np.maximum(1.0, np.abs(expected))
        if name == "variance":
            error = np.abs(result / expected - 1.0)
        kind = KINDS.get(name, "values")
        errors[kind] = float(np.maximum(errors.get(kind, 0.0), np.max(error)))  # keeps NaN
    if slope is not None:
        errors["slope"] = _slope_error(M, host(inputs[-1], dtype=np.float64), slope)
    return errors, seconds


def _spread(M: GyroSpace) -> float:
    """Return a standard deviation, small enough for a closed space to have one mean."""
    return min(0.5, 0.15 * M.convexity_radius)


POINTS = {"sum", "inverse", "scaled", "between", "returned", "cancelled", "mean", "normalized"}
POINTS |= {"evaluated"}
"""The outcomes that are points: their error is a distance."""

KINDS = {"cancelled": "laws", "gyrated": "laws", "mean": "mean", "variance": "variance"}
"""The kinds of outcomes that are compared with their exact values, not with the reference."""


def _outcomes(M: GyroSpace, x: Array, y: Array, z: Array, bias: Array) -> dict[str, Array]:
    """Run operations, laws and a normalization, and return all results by name."""
    normalized, stats = normalize_batch(M, x, bias=bias, scale=_spread(M), eps=EPS)
    after = frechet(M, normalized)
    together = M.add(x, y)
    return {
        "sum": together,
        "inverse": M.neg(x),
        "scaled": M.scale(0.7, x),
        "between": M.geodesic(x, y, 0.3),
        "returned": M.from_normal(M.to_normal(y)),
        "coordinates": M.to_normal(x),
        "distance": M.dist(x, y),
        "transported": M.norm(M.exp(y, M.transport(x, y, M.log(x, z)))),
        "cancelled": M.add(M.neg(x), together),
        "gyrated": M.dist(M.gyration(x, z, y), M.gyration(x, z, z)),
        "normalized": normalized,
        "before": stats.var,
        "mean": after.mean,
        "variance": after.variance,
    }


def _loss(M: GyroSpace, c: Array) -> Array:
    """Return a number that depends on the normal coordinates of samples by a normalization."""
    y, _ = normalize_batch(M, M.from_normal(c), scale=_spread(M), eps=EPS)
    return _number(y)


def _number(y: Array) -> Array:
    """Return one number that depends on all entries."""
    weights = np.cos(np.arange(np.prod(y.shape))).reshape(y.shape)
    return (backend_of(y).from_numpy(weights, y) * y).sum()


def _slope_error(M: GyroSpace, c: Any, slope: Array) -> float:
    """Return the relative error of a derivative along one direction, against differences."""
    v = np.sin(np.arange(c.size)).reshape(c.shape)
    quotient = (_loss(M, c + STEP * v) - _loss(M, c - STEP * v)) / (2.0 * STEP)
    along = np.sum(host(slope, dtype=np.float64) * v)
    return float(abs(along - quotient) / max(1.0, abs(quotient)))


def _runner(M: GyroSpace, library: str) -> Callable[..., tuple[dict[str, Array], Array | None]]:
    """Return a function of all inputs that returns outcomes and, if there is one, a gradient."""
    if library == "jax":
        jax = import_module("jax")
        slope = jax.grad(lambda c: _loss(M, c))
        return jax.jit(lambda *p: (_outcomes(M, *p[:-1]), slope(p[-1])))  # type: ignore[no-any-return]
    if library == "torch":
        grad = import_module("torch").autograd.grad

        def with_slope(*p: Array) -> tuple[dict[str, Array], Array]:
            c = p[-1].detach().requires_grad_()
            return _outcomes(M, *p[:-1]), grad(_loss(M, c), c)[0]

        return with_slope
    if library == COMPILED:
        return _compiled(M)
    return lambda *p: (_outcomes(M, *p[:-1]), None)


def _compiled(M: GyroSpace) -> Callable[..., tuple[dict[str, Array], Array]]:
    """Return such a function that runs a compiled layer, in training and in evaluation."""
    torch, GyroBN = import_module("torch"), import_module("gyrobn.torch").GyroBN
    torch.compiler.reset()  # else the layers of all geometries would be too many for its cache

    @cache
    def layer_in(dtype: Any, device: Any) -> tuple[Any, Any]:
        """Return a layer, whose running statistics are those of its last batch, and compile it."""
        layer = GyroBN(M, eps=EPS, momentum=1.0, dtype=dtype, device=device)
        torch.nn.init.constant_(layer.scale, _spread(M))
        return layer, torch.compile(layer, fullgraph=True)

    def run(x: Array, y: Array, z: Array, bias: Array, c: Array) -> tuple[dict[str, Array], Array]:
        layer, compiled = layer_in(x.dtype, x.device)
        torch.nn.init.zeros_(layer.train().bias)
        c = c.detach().requires_grad_()
        (slope,) = torch.autograd.grad(_number(compiled(M.from_normal(c))), c)
        with torch.no_grad():
            layer.bias.copy_(M.to_normal(bias))
        normalized = compiled(x.detach().requires_grad_()).detach()
        layer.eval()
        with torch.no_grad():
            evaluated = compiled(x)
        after = frechet(M, normalized)
        found = {"normalized": normalized, "evaluated": evaluated, "before": layer.running_var}
        return found | {"mean": after.mean, "variance": after.variance}, slope

    return run


def _timed(outcomes: Callable[..., Any], inputs: tuple[Array, ...]) -> float:
    begin = time.perf_counter()
    found, slope = outcomes(*inputs)
    host(found["normalized"] if slope is None else slope)  # waits for the device
    return time.perf_counter() - begin
