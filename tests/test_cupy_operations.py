"""Every array operation of the mathematics, and whether it is known what CuPy makes of it.

The operations are collected twice: from the sources, which misses no branch, and from a run of
every public operation with a namespace that notes what is taken from it, which misses no spelling.
"""

import re
import tomllib
from inspect import isbuiltin, isfunction
from pathlib import Path
from types import ModuleType

import array_api_compat as compat
import array_api_strict
import numpy as np
import pytest
import torch
from conftest import GEOMETRIES
from operations import call, operations, values

import gyrobn
from gyrobn import backends
from gyrobn.backends.contract import DIFFERENTIABLE, STANDARD
from gyrobn.numerics import matrices

PACKAGE = Path(gyrobn.__file__).parent
FACTS = tomllib.loads((PACKAGE.parent / "docs" / "cupy_operations.toml").read_text("utf-8"))
KNOWN = set(FACTS["same"].split()) | set(FACTS["differs"])


@pytest.fixture(scope="module")
def in_sources():
    """Attributes of a namespace or of its ``linalg`` in all code that runs on any library."""
    rooms = ("numerics", "manifolds", "statistics", "normalization", "estimator", "data")
    paths = [path for room in rooms for path in (PACKAGE / room).glob("*.py")]
    # CuPy's backend takes the functions of NumPy's
    text = "".join(p.read_text("utf-8") for p in [*paths, PACKAGE / "backends" / "numpy.py"])
    namespace = r"(?:\bxp|\b_?namespace(?:_of)?\((?:[^()]|\([^()]*\))*\))"
    found = set(re.findall(rf"{namespace}\.((?:linalg\.)?[a-z]\w*)", text))
    return found - {"linalg"}


def noting(namespace, called, differentiated, prefix=""):
    """Return a namespace that notes which functions are called, and which are differentiated."""
    noted = ModuleType(namespace.__name__)
    for name, value in vars(namespace).items():
        if name == "linalg":
            value = noting(value, called, differentiated, "linalg.")
        elif (isfunction(value) or isbuiltin(value)) and not name.startswith("_"):

            def value(*args, own=value, name=prefix + name, **options):
                result = own(*args, **options)
                parts = result if isinstance(result, (tuple, list)) else (result,)
                called.add(name)
                if any(getattr(part, "requires_grad", False) for part in parts):
                    differentiated.add(name)
                return result

        setattr(noted, name, value)
    return noted


def leaf(value):
    """Return a value with its floating tensors as leaves of a graph."""
    if isinstance(value, gyrobn.Stats):
        return gyrobn.Stats(*map(leaf, value))
    if isinstance(value, tuple):
        return tuple(map(leaf, value))
    return value.clone().requires_grad_() if isinstance(value, torch.Tensor) else value


@pytest.fixture(scope="module")
def in_runs():
    """What every public operation calls and differentiates, by family, metric, representation."""
    found, like = (set(), set()), torch.zeros((), dtype=torch.float64)
    variants = {
        (type(M), getattr(M, "metric", None), getattr(M, "representation", None)): M
        for M in reversed(GEOMETRIES)
    }
    before = namespace, backend = backends._library_of(like)
    backends._known[torch.Tensor] = noting(namespace, *found), backend
    try:
        for M in variants.values():
            given = {name: leaf(value) for name, value in values(M, like).items()}
            for name, function in operations(M):
                call(M, name, function, given)
    finally:
        backends._known[torch.Tensor] = before
    return found


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_every_operation_is_known(in_sources, in_runs):
    called, differentiated = in_runs
    assert len(called) > 40
    assert in_sources | called <= KNOWN, "look it up for CuPy: docs/cupy_operations.toml"
    assert in_sources | called >= KNOWN, "not used any more: take it off the list"
    assert not set(FACTS["same"].split()) & set(FACTS["differs"])
    assert set(STANDARD.split()) == KNOWN, "the list of the contract: gyrobn/backends/contract.py"
    assert len(differentiated) > 25
    assert differentiated <= set(DIFFERENTIABLE.split())


def test_what_differs_is_explained():
    for name, about in FACTS["differs"].items():
        assert set(about) == {"cupy", "here"}, name
        assert all(about.values()), name


@pytest.mark.gpu
def test_a_gpu_raises():
    """An indefinite and a singular matrix in a stack, as on NumPy."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    good = cupy.eye(3)
    indefinite = cupy.stack([good, cupy.diag(cupy.asarray([1.0, -1.0, 1.0]))])
    with pytest.raises(ValueError, match="matrix 1 of the batch is not positive definite"):
        matrices.cholesky(indefinite)
    singular = cupy.stack([good, cupy.zeros((3, 3))])
    with pytest.raises(np.linalg.LinAlgError):
        backends.namespace_of(singular).linalg.solve(singular, cupy.ones((2, 3, 1)))


def test_names_are_in_the_standard():
    for name in KNOWN:
        module, _, leaf = name.rpartition(".")
        assert hasattr(getattr(array_api_strict, module) if module else array_api_strict, leaf), (
            name
        )


def test_names_are_in_cupy():
    """CuPy itself where it is installed (it imports without a GPU), else the layer's source."""
    try:
        import array_api_compat.cupy as xp
    except ImportError:
        folder = Path(compat.__file__).parent / "cupy"
        text = "".join(path.read_text("utf-8") for path in folder.glob("*.py"))
        for name in KNOWN:  # what the layer does not alias it takes from CuPy, under NumPy's names
            leaf = name.split(".")[-1]
            assert leaf in text or hasattr(np, leaf) or hasattr(np.linalg, leaf), name
    else:
        for name in KNOWN:
            assert hasattr(xp.linalg if "." in name else xp, name.split(".")[-1]), name
