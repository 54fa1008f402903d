"""The names of the contract: what the package takes from a library, and differentiates."""

import ast
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
ANY_LIBRARY = ("numerics", "manifolds", "statistics", "normalization", "estimator", "data")
NAMES = set(STANDARD.split())
OTHERS = {"__name__", "__array_namespace_info__", "linalg"}


def is_namespace(node):
    """Tell whether an expression is ``xp``, or a call that returns a namespace."""
    if isinstance(node, ast.Name):
        return node.id == "xp"
    function = getattr(node, "func", None)
    name = getattr(function, "id", None) or getattr(function, "attr", None)
    return isinstance(node, ast.Call) and name in ("namespace_of", "_namespace")


def used(text):
    """Return the attributes of a namespace, and of its ``linalg``, in a source."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            home = node.value
            if is_namespace(home):
                found.add(node.attr)
            elif getattr(home, "attr", None) == "linalg" and is_namespace(home.value):
                found.add(f"linalg.{node.attr}")
    return found - OTHERS


def test_the_contract_lists_what_is_used():
    paths = [path for package in ANY_LIBRARY for path in (PACKAGE / package).glob("*.py")]
    paths.append(PACKAGE / "backends" / "numpy.py")  # CuPy's backend takes its functions
    assert set().union(*(used(path.read_text("utf-8")) for path in paths)) <= NAMES
    assert used("xp.a(x)\nself._namespace(x).linalg.b\nnp.c\nx.linalg.d\n") == {"a", "linalg.b"}


def test_names_are_in_the_standard_and_in_cupy():
    """CuPy imports without a GPU. Where it is not installed, NumPy has its names."""
    try:
        import array_api_compat.cupy as cupy
    except ImportError:
        folder = Path(compat.__file__).parent / "cupy"
        text = "".join(path.read_text("utf-8") for path in folder.glob("*.py"))
        cupy = None
    for name in NAMES:
        home, _, leaf = name.rpartition(".")
        assert hasattr(getattr(array_api_strict, home) if home else array_api_strict, leaf), name
        if cupy is None:
            assert leaf in text or hasattr(np, leaf) or hasattr(np.linalg, leaf), name
        else:
            assert hasattr(getattr(cupy, home) if home else cupy, leaf), name


def leaves(value):
    """Return a value with its floating tensors as leaves of a graph."""
    if isinstance(value, gyrobn.Stats):
        return gyrobn.Stats(*map(leaves, value))
    if isinstance(value, tuple):
        return tuple(map(leaves, value))
    return value.clone().requires_grad_() if isinstance(value, torch.Tensor) else value


def noting(namespace, found, prefix=""):
    """Return a namespace that notes which of its functions are differentiated."""
    copy = ModuleType(namespace.__name__)
    for name, value in vars(namespace).items():
        if name == "linalg":
            value = noting(value, found, "linalg.")
        elif isfunction(value) or isbuiltin(value):

            def value(*args, own=value, name=name, **options):
                result = own(*args, **options)
                parts = result if isinstance(result, (tuple, list)) else (result,)
                if any(getattr(part, "requires_grad", False) for part in parts):
                    found.add(prefix + name)
                return result

        setattr(copy, name, value)
    return copy


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_what_is_differentiated(monkeypatch):
    """By torch, in a run of every public operation of one instance per metric."""
    found, like = set(), torch.zeros((), dtype=torch.float64)
    namespace, backend = backends._library_of(like)
    monkeypatch.setitem(backends._known, torch.Tensor, (noting(namespace, found), backend))
    variants = {}
    for M in GEOMETRIES:
        kind = type(M), getattr(M, "metric", None), getattr(M, "representation", None)
        variants.setdefault(kind, M)
    for M in variants.values():
        given = {name: leaves(value) for name, value in values(M, like).items()}
        for name, function in operations(M):
            call(M, name, function, given)
    assert len(found) > 25
    assert found <= set(DIFFERENTIABLE.split())


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
