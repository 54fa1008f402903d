"""The command backends: what is installed, and what each geometry takes."""

import itertools
import re
import warnings
from argparse import Namespace
from dataclasses import fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

import gyrobn
from gyrobn.backends import Array
from gyrobn.cli.console import Console
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import batch_stats, normalize
from gyrobn.numerics.checks import host
from gyrobn.statistics.frechet import frechet

LIBRARIES = {
    "numpy": "array_api_compat.numpy",
    "torch": "array_api_compat.torch",
    "jax": "jax.numpy",
    "cupy": "array_api_compat.cupy",
    "array-api-strict": "array_api_strict",
}
"""Array libraries, each with its namespace of the Array API standard."""

HELPERS = (
    *("scikit-learn", "flax", "equinox", "matplotlib", "zarr", "pyarrow", "dask", "distributed"),
    "shtab",
)


def run(options: Namespace, console: Console) -> None:
    """Print what is installed, with devices and default dtypes, and the options of geometries."""
    libraries = {name: _library(name) for name in LIBRARIES}
    helpers = {name: version_of(name) for name in HELPERS}
    geometries = {name: _geometry(cls) for name, cls in REGISTRY.items()}
    lines = [f"gyrobn {gyrobn.__version__}", "", "array libraries"]
    for name, about in libraries.items():
        text = about.get("error") or "not installed"
        if "devices" in about:
            dtype = about["default_dtypes"]["real floating"]
            text = f"{about['version']:12}{', '.join(about['devices'])}; default dtype {dtype}"
        lines.append(f"  {name:18}{text}")
    lines += ["", "other packages"]
    lines += [f"  {name:18}{found or 'not installed'}" for name, found in helpers.items()]
    lines += ["", "geometries, float32 and float64 on every library"]
    for name, about in geometries.items():
        lines.append(f"  {name:22}points of shape {about['point_shape']}")
        lines += [f"  {'':22}--{key} {text}" for key, text in about["options"].items()]
    values = {"gyrobn": gyrobn.__version__, "libraries": libraries, "packages": helpers}
    values["geometries"] = geometries
    if options.check:
        installed = [name for name, about in libraries.items() if "devices" in about]
        values["check"], table = _check(installed, console)
        lines += ["", "distance of the output's mean from where it should be", *table]
    console.report(values, lines)


def version_of(name: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def in_a_line(error: Exception) -> str:
    """Return kind and text of an error on one line, for a table."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _library(name: str) -> dict[str, Any]:
    """Return version, devices and default dtypes of an array library."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns when it lists devices
            xp = import_module(LIBRARIES[name])
            info = xp.__array_namespace_info__()
            dtypes = info.default_dtypes().items()
            devices = [_word(device) for device in info.devices() if device is not None]
    except ModuleNotFoundError:
        return {"version": None}
    except Exception as error:  # a broken library can raise anything
        return {"version": version_of(name), "error": f"cannot be used: {in_a_line(error)}"}
    found = version_of(name) or getattr(xp, "__version__", None)
    return {
        "version": found,
        "devices": devices,
        "default_dtypes": {k: _word(v) for k, v in dtypes},
    }


def _word(value: Any) -> str:
    """Return the name of a dtype or device, without its module and class."""
    text = str(value)
    quoted = re.search("'(.+)'", text)
    return quoted[1] if quoted else text.rpartition(".")[2]


def _geometry(cls: type[GyroSpace]) -> dict[str, Any]:
    """Return the shape of the points of a family, and its options with their values."""
    options = {}
    for name, one in cls.options().items():
        number = f"number, {one.default:g} by default" if isinstance(one.default, float) else ""
        options[name] = number or ", ".join(one.metadata["choices"])
    return {"point_shape": _shape_of(cls), "options": options}


def _shape_of(cls: type[GyroSpace]) -> str:
    """Return the shape of a point in letters, which fit all examples."""
    if cls is gyrobn.Product:
        return "(sum of the factors,); not on the command line, but in a model"
    sizes = [one.name for one in fields(cls) if one.name not in cls.options()]
    plain = {name: one.default for name, one in cls.options().items()}
    examples = [
        M
        for M in cls.examples()
        if all(type(v) is float or getattr(M, k) == v for k, v in plain.items())
    ]

    def letter(axis: int) -> str:
        for name, more in itertools.product(sizes, (0, 1)):
            if all(M.point_shape[axis] == getattr(M, name) + more for M in examples):
                return f"{name} + 1" if more else name
        return " or ".join(dict.fromkeys(str(M.point_shape[axis]) for M in examples))

    letters = [letter(axis) for axis in range(len(examples[0].point_shape))]
    return f"({letters[0]},)" if len(letters) == 1 else f"({', '.join(letters)})"


def _check(names: list[str], console: Console) -> tuple[dict[str, Any], list[str]]:
    """Run GyroBN on each geometry and library; return the errors of the mean, and a table."""
    found: dict[str, Any] = {name: {} for name in REGISTRY}
    pairs = list(itertools.product(REGISTRY, names))
    with console.progress("check", len(pairs)) as bar:
        for done, (name, library) in enumerate(pairs):
            bar.update(done)
            like = import_module(LIBRARIES[library]).zeros(())
            try:
                found[name][library] = mean_error(REGISTRY[name].examples()[0], like)
            except Exception as error:  # the table shows it
                found[name][library] = in_a_line(error)
    rows = [f"  {'':22}" + "".join(f"{library:>18}" for library in names)]
    for name, row in found.items():
        cells = (f"{error:.0e}" if isinstance(error, float) else "no" for error in row.values())
        rows.append(f"  {name:22}" + "".join(f"{cell:>18}" for cell in cells))
    return found, rows


def mean_error(manifold: GyroSpace, like: Array) -> float:
    """Normalize points, and return the distance from their mean to the bias."""
    spread = min(1.0, 0.3 * manifold.convexity_radius)
    x = manifold.random(50, rng=0, like=like, spread=spread)
    bias = manifold.random(rng=1, like=like, spread=0.5)
    found = frechet(manifold, normalize(manifold, x, batch_stats(manifold, x), bias, scale=0.5))
    if not bool(found.converged):
        raise ValueError("the mean does not converge")
    mean, bias = (host(point, dtype=np.float64) for point in (found.mean, bias))
    return float(manifold.dist(mean, bias))
