"""What goes in: no public function changes it, and none computes in half precision."""

import inspect
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import FIRST, GEOMETRIES, LIBRARIES, Library, geometries_on, host
from operations import call, operations, values

import gyrobn
from gyrobn import SPD, GyroBN, PoincareBall

wide = pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
DOUBLES = [lib for lib in LIBRARIES if lib.double]


def arrays_in(value: Any) -> list[Any]:
    """Return the arrays of an argument."""
    if isinstance(value, tuple):
        return [a for part in value for a in arrays_in(part)]
    return [value] if hasattr(value, "dtype") else []


def frozen(value: Any, lib: Library) -> Any:
    """Return an argument with its arrays made anew; read-only where the library knows that."""
    if isinstance(value, gyrobn.Stats):
        return gyrobn.Stats(*(frozen(a, lib) for a in value))
    if isinstance(value, tuple):
        return tuple(frozen(a, lib) for a in value)
    return lib.array(host(value)) if hasattr(value, "dtype") else value


class Unchanged:
    """Hold arrays to what they were; on torch, to not having been written to at all."""

    def __init__(self, *arguments: Any) -> None:
        self.arrays = [a for value in arguments for a in arrays_in(value)]
        self.before = [host(a).copy() for a in self.arrays]
        self.versions = [getattr(a, "_version", 0) for a in self.arrays]

    def check(self, name: str) -> None:
        for a, before, version in zip(self.arrays, self.before, self.versions, strict=True):
            np.testing.assert_array_equal(host(a), before, err_msg=name)
            assert getattr(a, "_version", 0) == version, name


CASES = [(lib, M) for lib in DOUBLES for M in geometries_on(lib)]
ON_JAX = [PoincareBall.examples()[0]]  # its arrays cannot be written to
CASES = [(lib, M) for lib, M in CASES if lib.name != "jax" or M in ON_JAX]


@wide
@pytest.mark.parametrize(
    ("library", "M"), CASES, ids=lambda p: p.name if isinstance(p, Library) else repr(p)
)
def test_no_operation_changes_its_input(library, M):
    given = {name: frozen(v, library) for name, v in values(M, library.like).items()}
    arguments = Unchanged(*given.values())
    for name, function in operations(M):
        call(M, name, function, given)
        arguments.check(name)


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("M", [M for M in FIRST if len(M.point_shape) == 1], ids=repr)
def test_nor_do_large_batches(M, name):
    """Beyond 4 MB sums are made in place, of arrays that are our own."""
    lib = Library(name, "float64")
    count = 2**22 // (8 * M.point_shape[0]) + 1
    given = {k: frozen(v, lib) for k, v in values(M, lib.like).items()}
    x = lib.array(np.tile(host(given["x"]), (count // 6 + 1, 1)))
    arguments = Unchanged(x, *given.values())
    mean, bias = given["mean"], given["bias"]
    for function in (
        lambda: M.standardize(x, mean, 0.7, bias),
        lambda: M.add(x, mean),
        lambda: M.exp(x, M.log(x, mean)),
        lambda: gyrobn.normalize_batch(M, x, bias=bias, steps=1),
    ):
        function()
        arguments.check(repr(M))


@wide
@pytest.mark.parametrize(
    "library", [lib for lib in DOUBLES if lib.name != "jax"], ids=lambda lib: lib.name
)
def test_nor_does_the_estimator(library):
    """Its methods with samples, found by their first parameter."""
    M = PoincareBall(2)
    X = library.array(M.random(8, rng=0, spread=0.4))
    weights = np.linspace(1.0, 2.0, 8)
    bn, arguments, found = GyroBN(M).fit(X), Unchanged(X, weights), set()
    for name in dir(bn):
        method = None if name.startswith("_") else getattr(bn, name)
        names = inspect.signature(method).parameters if callable(method) else ()
        if "X" in names:
            options = {"sample_weight": weights} if "sample_weight" in names else {}
            result = method(X, **options)
            if inspect.isgenerator(result):
                list(result)
            arguments.check(name)
            found.add(name)
    assert {"fit", "fit_transform", "transform", "inverse_transform"} <= found


# ---------------------------------------------------------------------- half precision

KEPT = {"by_block", "by_coordinate", "expand_blocks", "join", "origin", "split", "squeeze_blocks"}
"""Operations that only move or make numbers, of any dtype."""
INSIDE = {"from_inside", "to_inside", "tangent_from_inside", "tangent_to_inside"}
"""Maps that may return what they are given."""
FLAT = {"push", "pull", "inner"}
"""On a vector space, these may too."""
WORDS = (
    r"expected (float32 or float64|complex64 or complex128), got .*: convert it first, "
    r"for example with x\.(astype|to)\("
)


def narrowed(value: Any, dtype: Any) -> Any:
    """Return an argument in half precision."""
    if isinstance(value, gyrobn.Stats):
        return gyrobn.Stats(*(narrowed(a, dtype) for a in value))
    if isinstance(value, tuple):
        return tuple(narrowed(a, dtype) for a in value)
    if isinstance(value, torch.Tensor):
        return value.real.to(dtype)
    return value.real.astype(dtype) if hasattr(value, "dtype") else value


def refusal(M: Any, name: str, function: Any, given: dict[str, Any]) -> str:
    """Return what the error says, nothing if there is none."""
    try:
        call(M, name, function, given)
    except TypeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("dtype", [np.float16, np.longdouble, torch.bfloat16], ids=str)
def test_half_precision_is_refused_in_words(M, dtype):
    like = torch.zeros((), dtype=torch.float64) if dtype is torch.bfloat16 else np.zeros(())
    given = {name: narrowed(v, dtype) for name, v in values(M, like).items()}
    for name, function in operations(M):
        if name in KEPT | {"centred", "hessian", "start"}:  # of samples that were checked
            continue
        said = refusal(M, name, function, given)
        passes = name in INSIDE or (name in FLAT and isinstance(M, gyrobn.Euclidean))
        assert re.match(WORDS, said) or (passes and not said), f"{name}: {said}"
    with pytest.raises(TypeError, match=WORDS):
        M.random(3, rng=0, like=given["x"])


def test_half_precision_on_jax():
    x = jnp.asarray(SPD(2).random(5, rng=0), jnp.bfloat16)
    for function in (SPD(2).norm, lambda x: gyrobn.frechet(SPD(2), x)):
        with pytest.raises(TypeError, match=WORDS):
            function(x)
