"""Every public operation of a geometry and every public function, with arguments to call it by.

The operations are found by introspection and called by the names of their parameters: a new one
is tested without being listed, and one with a parameter that has no value here fails.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from conftest import per_block

import gyrobn.manifolds.centred
import gyrobn.numerics.hessian
from gyrobn.numerics.hessian import inverse, newton_step

COUNT = 6
"""Samples in the batch."""

NO_ARRAYS = {
    "examples",
    "for_shape",
    "detached",
    "learnable",
    "with_learnable",
    "required_signs",
    "random",
    "joined",
    "checked",
    "options",
}
"""Methods that take no array of the user's to compute with."""


def operations(M: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the name and the function of everything public that computes on M."""
    for name in sorted(dir(M)):
        if not name.startswith("_") and name not in NO_ARRAYS and callable(getattr(M, name)):
            yield name, getattr(M, name)
    no_points = {"suggest", "reduce_rank"}  # they look at values, of other arrays than points
    no_points |= set() if hasattr(M, "curvature") else {"convert"}
    no_points |= set() if isinstance(M, gyrobn.Correlation) else {"covariance_to_correlation"}
    for name in sorted({*gyrobn.__all__} - no_points):
        if inspect.isfunction(getattr(gyrobn, name)):
            yield name, getattr(gyrobn, name)


def values(M: Any, like: Any) -> dict[str, Any]:
    """Return a value for every parameter, points around the identity."""
    x, y, z = (M.random(COUNT, rng=seed, like=like, spread=0.5) for seed in (1, 2, 3))
    c, v, u = M.to_normal(y), M.log(x, y), M.log(x, z)
    t = per_block(M, 0.1 * c[:, 0] * c[:, 0] + 0.7)
    first = gyrobn.Stats(x[0, ...], t[0, ...])
    second = gyrobn.Stats(y[0, ...], t[1, ...])
    w = 0.0 * c[:, 0] + 1.0 / COUNT
    same = {
        ("manifold", "source", "target"): M,
        ("x", "like", "covariance"): x,
        ("y",): y,
        ("z",): z,
        ("c",): c,
        ("v",): v,
        ("u",): u,
        ("t", "factor"): t,
        ("squares", "values"): c * c,
        ("weights",): w,
        ("mean", "init"): z[0, ...],
        ("bias",): y[0, ...],
        ("points",): (x, y),
        ("parts",): tuple(M.split(x)) if isinstance(M, gyrobn.Product) else (),
        ("moments",): M.moments(x)[0, ...],
        ("tangents",): (u, v),
        ("stats", "first", "running"): first,
        ("second", "batch"): second,
        ("rate",): 0.3,
        ("scale",): t[0, ...],
    }
    return {name: value for names, value in same.items() for name in names}


def call(M: Any, name: str, function: Callable[..., Any], given: dict[str, Any]) -> list[Any]:
    """Call an operation with the values of its parameters, and return the arrays it gives."""
    if name == "from_inside":
        given = given | {"x": M.to_inside(given["x"])}
    if name == "tangent_from_inside":
        given = given | {"v": M.tangent_to_inside(given["x"], given["v"])}
    arguments: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments += given[parameter.name]
        elif parameter.name in given or parameter.default is parameter.empty:
            arguments.append(given[parameter.name])
        else:
            arguments.append(parameter.default)
    return list(_arrays(function(*arguments), given))


def _arrays(result: Any, given: dict[str, Any]) -> Iterator[Any]:
    """Yield the arrays of a result; what is computed when it is asked for is asked for."""
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from _arrays(part, given)
    elif isinstance(result, gyrobn.manifolds.centred.Centred):
        weights, factor = given["weights"], given["factor"]
        yield from (*result.image, result.gradient(weights), result.variance(weights))
        yield result.standardize(factor, None)
    elif isinstance(result, gyrobn.numerics.hessian.Hessian):
        yield newton_step(result, given["c"][0, ...], 1e-2)
        yield inverse(result, given["c"][0, ...])
    elif not isinstance(result, gyrobn.GyroSpace):
        yield result
