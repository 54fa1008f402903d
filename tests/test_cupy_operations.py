"""Every array operation of the mathematics, and whether it is known what CuPy makes of it.

The operations are collected twice: from the sources, which misses no branch, and from a run of
every public operation with a namespace that notes what is taken from it, which misses no spelling.
"""

import ast
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
from gyrobn.backends import DECOMPOSING
from gyrobn.backends.contract import DIFFERENTIABLE, STANDARD
from gyrobn.numerics import matrices

PACKAGE = Path(gyrobn.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
ROOMS = ("numerics", "manifolds", "statistics", "normalization", "estimator", "data")
"""The rooms whose code runs on arrays of any library."""

FACTS = tomllib.loads((DOCS / "cupy_operations.toml").read_text("utf-8"))
KNOWN = set(FACTS["same"].split()) | set(FACTS["differs"])
NO_OPERATIONS = {"__name__", "__array_namespace_info__", "linalg"}


def is_namespace(node):
    """Tell whether an expression is a namespace: ``xp``, or a call that returns one."""
    if isinstance(node, ast.Name):
        return node.id == "xp"
    function = getattr(node, "func", None)
    name = getattr(function, "id", None) or getattr(function, "attr", None)
    return isinstance(node, ast.Call) and name in ("namespace_of", "_namespace")


def written(text):
    """Return the operations in a source: attributes of a namespace or of its ``linalg``."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Attribute):
            continue
        home = node.value
        if is_namespace(home):
            found.add(node.attr)
        elif getattr(home, "attr", None) == "linalg" and is_namespace(home.value):
            found.add(f"linalg.{node.attr}")
    return found - NO_OPERATIONS


class Noting(ModuleType):
    """A namespace that notes what is taken from it."""

    def __init__(self, module, found, prefix=""):
        super().__init__(module.__name__)
        self.__dict__["_parts"] = module, found, prefix

    def __getattr__(self, name):
        module, found, prefix = self._parts
        value = getattr(module, name)
        if name == "linalg":
            return Noting(value, found, "linalg.")
        if name not in NO_OPERATIONS:
            found.add(prefix + name)
        return value


def variants():
    """Return one instance per family, metric and representation."""
    found = {}
    for M in GEOMETRIES:
        kind = type(M), getattr(M, "metric", None), getattr(M, "representation", None)
        found.setdefault(kind, M)
    return list(found.values())


@pytest.fixture(scope="module")
def in_sources():
    paths = [path for room in ROOMS for path in (PACKAGE / room).glob("*.py")]
    paths.append(PACKAGE / "backends" / "numpy.py")  # whose functions CuPy's shim takes
    return set().union(*(written(path.read_text("utf-8")) for path in paths))


@pytest.fixture(scope="module")
def in_runs():
    """What every public operation takes from the namespace of NumPy arrays."""
    found = set()
    before = backends._library_of(np.zeros(()))
    backends._known[np.ndarray] = Noting(before[0], found), before[1]
    try:
        for M in variants():
            given = values(M, np.zeros(()))
            for name, function in operations(M):
                call(M, name, function, given)
    finally:
        backends._known[np.ndarray] = before
    return found


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_every_operation_is_known(in_sources, in_runs):
    assert len(in_runs) > 50
    assert in_sources | in_runs <= KNOWN, "look it up for CuPy: docs/cupy_operations.toml"
    assert in_sources | in_runs >= KNOWN, "not used any more: take it off the list"
    assert not set(FACTS["same"].split()) & set(FACTS["differs"])
    assert set(STANDARD.split()) == KNOWN, "the list of the contract: gyrobn/backends/contract.py"


def leaf(value):
    """Return a value with its floating tensors as leaves of a graph."""
    if isinstance(value, gyrobn.Stats):
        return gyrobn.Stats(*map(leaf, value))
    if isinstance(value, tuple):
        return tuple(map(leaf, value))
    if isinstance(value, torch.Tensor):
        return value.clone().requires_grad_()
    return value


def noting_derivatives(namespace, found, prefix=""):
    """Return a namespace that notes which of its functions are differentiated."""
    noting = ModuleType(namespace.__name__)
    for name, value in vars(namespace).items():
        if name == "linalg":
            value = noting_derivatives(value, found, "linalg.")
        elif isfunction(value) or isbuiltin(value):

            def value(*args, own=value, name=name, **options):
                result = own(*args, **options)
                parts = result if isinstance(result, (tuple, list)) else (result,)
                if any(getattr(part, "requires_grad", False) for part in parts):
                    found.add(prefix + name)
                return result

        setattr(noting, name, value)
    return noting


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_what_is_differentiated(monkeypatch):
    """By torch, in a run of every public operation of one instance per family."""
    found, like = set(), torch.zeros((), dtype=torch.float64)
    namespace, backend = backends._library_of(like)
    monkeypatch.setitem(
        backends._known, torch.Tensor, (noting_derivatives(namespace, found), backend)
    )
    for M in variants():
        given = {name: leaf(value) for name, value in values(M, like).items()}
        for name, function in operations(M):
            call(M, name, function, given)
    assert len(found) > 25
    assert found <= set(DIFFERENTIABLE.split())


def test_sources_are_read_as_they_are_written():
    text = "xp = f(x)\nxp.linalg.pinv(A)\nnamespace_of(x, y).kron\nself._namespace(x).linalg.expm\n"
    assert written(text + "np.einsum\nx.linalg.no") == {"linalg.pinv", "kron", "linalg.expm"}


def test_what_differs_is_explained():
    for name, about in FACTS["differs"].items():
        assert set(about) == {"cupy", "here"}, name
        assert all(about.values()), name


def test_functions_of_matrices_raise():
    """The backend asks CuPy for errors in every function that calls cuSOLVER."""
    without = ("diagonal", "trace", "vector_norm")
    assert {f"linalg.{n}" for n in (*DECOMPOSING, *without)} == {
        n for n in KNOWN if n[:7] == "linalg."
    }


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
