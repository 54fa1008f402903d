"""Tables that are generated when the documentation is built, measured or read from the classes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import array_api_strict
import jax
import numpy as np
import torch

import gyrobn
from gyrobn.numerics.checks import host

FAMILIES = {name: cls.examples()[0] for name, cls in gyrobn.REGISTRY.items()}
"""One small instance of each geometry."""


def variants() -> list[gyrobn.GyroSpace]:
    """Return one small instance for each metric and representation of each geometry."""
    found: dict[Any, gyrobn.GyroSpace] = {}
    for cls in gyrobn.REGISTRY.values():
        for M in cls.examples():
            kind = (cls, getattr(M, "metric", None), getattr(M, "representation", None))
            found.setdefault(kind, M)
    return list(found.values())


def write(folder: Path) -> None:
    """Write all tables, as Markdown to include."""
    folder.mkdir(exist_ok=True)
    errors = dict(library_columns())
    glance = {k: v for k, v in errors.items() if "32" not in k and k != "CuPy"}
    tables = {
        "geometries_table": (["geometry", "example", *glance], family_rows(glance, example=True)),
        "support_libraries": (["geometry", *errors], family_rows(errors)),
        "support_derivatives": DERIVATIVES,
        "support_properties": PROPERTIES,
    }
    for name, (header, rows) in tables.items():
        rows = rows() if callable(rows) else rows
        lines = [header, ["---"] * len(header), *rows]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def family_rows(columns: dict[str, dict[str, str]], example: bool = False) -> list[list[str]]:
    """Return a row for each geometry with its entry in each column."""
    return [
        [f"`{name}`", *[f"`{M!r}`"] * example, *(column[name] for column in columns.values())]
        for name, M in FAMILIES.items()
    ]


# ---------------------------------------------------------------------- array libraries


def libraries() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each library and dtype, a scalar of it, and a context to use it in."""
    plain = contextlib.nullcontext()
    device = array_api_strict.Device("device1")
    for bits in (64, 32):
        dtype = f"float{bits}"
        suffix = "" if bits == 64 else ", float32"
        yield f"NumPy{suffix}", np.zeros((), dtype), plain
        yield f"torch{suffix}", torch.zeros((), dtype=getattr(torch, dtype)), plain
        if bits == 64:  # compiling each operation for another dtype would take long
            with jax.enable_x64(True):
                yield "JAX", jax.numpy.zeros(()), jax.enable_x64(True)
            yield "array-api-strict", array_api_strict.zeros((), device=device), plain


def library_columns() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield for each library the results of :func:`measure` on each geometry."""
    for name, like, context in libraries():
        with context:
            yield name, {key: measure(M, like) for key, M in FAMILIES.items()}
    like = cupy_scalar()
    if like is None:
        yield "CuPy", dict.fromkeys(FAMILIES, "not run")
    else:
        yield "CuPy", {key: measure(M, like) for key, M in FAMILIES.items()}


def cupy_scalar() -> Any:
    """Return a scalar on the GPU, or None if there is no GPU."""
    try:
        import cupy
    except ImportError:
        return None
    return cupy.zeros(()) if cupy.cuda.is_available() else None


def measure(M: gyrobn.GyroSpace, like: Any) -> str:
    """Normalize points and return the distance of the output's mean from the bias."""
    spread = min(1.0, 0.3 * M.convexity_radius)
    x = M.random(50, rng=0, like=like, spread=spread)
    bias = M.random(rng=1, like=like, spread=0.5)
    y, _ = gyrobn.normalize_batch(M, x, bias=bias, scale=0.5)
    mean, target = (host(point, dtype=np.float64) for point in (gyrobn.frechet_mean(M, y), bias))
    return number(float(M.dist(mean, target)))


def number(value: float) -> str:
    """Return one digit, with a non-breaking hyphen."""
    return f"{value:.0e}".replace("-", "\N{NON-BREAKING HYPHEN}")


# ---------------------------------------------------------------------- derivatives


def derivative_rows() -> list[list[str]]:
    """Return the outcome of the first and second derivative on each variant."""
    with jax.enable_x64(True):
        return [[f"`{M!r}`", *by_torch(M), *by_jax(M)] for M in variants()]


def problem(M: gyrobn.GyroSpace, like: Any) -> tuple[Any, Any, Any]:
    """Return a function of coordinates through a whole normalization, a point and a direction."""
    c = M.to_normal(M.random(12, rng=0, spread=min(1.0, 0.3 * M.convexity_radius)))
    copy = gyrobn.backends.backend_of(like).from_numpy
    slope = copy(np.cos(np.arange(12 * np.prod(M.point_shape))).reshape(12, *M.point_shape), like)

    def loss(c: Any) -> Any:
        y, _ = gyrobn.normalize_batch(M, M.from_normal(c), scale=0.5)
        return (y * slope).sum()

    return loss, copy(c, like), copy(np.sin(np.arange(c.size)).reshape(c.shape), like)


def by_torch(M: gyrobn.GyroSpace) -> tuple[str, str]:
    """Return the errors of the first and second derivative, against differences."""
    loss, c, v = problem(M, torch.zeros((), dtype=torch.float64))

    def slope(c: Any) -> Any:
        c = c.clone().requires_grad_()
        return c, torch.autograd.grad(loss(c), c, create_graph=True)[0]

    h = 1e-5
    c1, first = slope(c)
    difference = (loss(c + h * v) - loss(c - h * v)) / (2 * h)
    errors = [relative((first.detach() * v).sum(), difference)]
    try:
        (second,) = torch.autograd.grad((first * v).sum(), c1)
    except RuntimeError as error:
        if "derivative of a matrix function is not available" not in str(error):
            raise
        return errors[0], "refused"
    difference = (slope(c + h * v)[1] - slope(c - h * v)[1]).detach() / (2 * h)
    return errors[0], relative(second, difference)


def relative(found: Any, expected: Any) -> str:
    """Return the relative error of a derivative, and raise if it is large."""
    error = float((found - expected).norm() / expected.norm())
    if not error < 1e-5:
        raise RuntimeError(f"a derivative is off by {error}")
    return number(error)


def by_jax(M: gyrobn.GyroSpace) -> tuple[str, str]:
    """Return whether the first and second derivative can be traced, the first step of ``jit``.

    Compiling and running them would take minutes.
    """
    loss, c, v = problem(M, jax.numpy.zeros(()))
    try:
        jax.make_jaxpr(lambda c: jax.jvp(jax.grad(loss), (c,), (v,)))(c)
    except TypeError as error:
        if "derivative of a matrix function is not available" not in str(error):
            raise
        jax.make_jaxpr(jax.grad(loss))(c)
        return "traced", "refused"
    return "traced", "traced"


DERIVATIVES = (
    ["geometry", "torch, first", "torch, second", "JAX, first", "JAX, second"],
    derivative_rows,
)


# ---------------------------------------------------------------------- properties


def property_rows() -> list[list[str]]:
    """Return the properties that each variant declares."""
    return [
        [
            f"`{M!r}`",
            f"`{M.point_shape}`",
            str(M.dim),
            f"`{M.blocks}`",
            *("yes" if law else "no" for law in (M.gyrocommutative, M.reductive, M.gyrovector)),
            "yes" if "curvature" in M.parameters else "no",
            "∞" if M.convexity_radius == float("inf") else f"{M.convexity_radius:.3f}",
        ]
        for M in variants()
    ]


PROPERTIES = (
    [
        "geometry",
        "point shape",
        "dim",
        "blocks",
        "gyrocommutative",
        "reductive",
        "gyrovector",
        "learnable curvature",
        "convexity radius",
    ],
    property_rows,
)
