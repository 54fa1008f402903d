"""One decomposition at a time in a compiled program on a CPU: jaxlib 0.10 can hang on several.

This module is imported for versions 0.10.0 to 0.11.1 alone. They split the batch of a decomposition
among the threads of the CPU, and one of these threads waits for all parts. If every thread waits,
none is left to compute. So each decomposition here depends on the result of the one before it, by a
comparison that is never true. The dependency is made when JAX translates a program for the CPU:
after all transformations, and at no cost on other devices.
``optimization_barrier`` does not help: XLA removes it before it orders the operations of a CPU.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import ad, batching, mlir

from gyrobn.backends import with_decompositions
from gyrobn.backends.contract import Array, Arrays

WHOLE = ("func.call", "stablehlo.while")
"""Operations that are a decomposition, as the functions of ``jax.numpy`` are, or contain one."""


def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, which decomposes matrices, as one that waits for the one before it."""

    @wraps(function)
    def waiting(*arrays: Any, **options: Any) -> Any:
        results, tree = jax.tree.flatten(function(*arrays, **options))
        if not any(isinstance(x, jax.core.Tracer) for x in results):
            return jax.tree.unflatten(tree, results)
        return jax.tree.unflatten(tree, _turn_p.bind(*results))

    return waiting


def _same(*results: Any) -> list[Any]:
    """Return the results of a decomposition."""
    return list(results)


def _lowered(context: Any, *results: Any) -> list[Any]:
    """Let the operation that computed ``results`` wait for the last one before it, and follow it.

    The last one in the same block, that is: in one function, or in the body of a loop. The loop
    waits as a whole. With several devices nothing waits: one would wait for values on another.
    """
    module = context.module_context
    devices = getattr(module.axis_context, "num_devices", None)
    if tuple(module.platforms) != ("cpu",) or devices != 1:
        return list(results)
    turns, block = module.cached_primitive_lowerings, mlir.ir.InsertionPoint.current.block
    before = turns.get((_turn_p, block))
    for value, kind in zip(results, context.avals_in, strict=True):
        if _has_floats(kind) and _follows(value.owner, block, before):
            if before is not None:
                _wait(context, value.owner, *before)
            turns[_turn_p, block] = value, kind
            break
    return list(results)


def _follows(operation: Any, block: Any, before: Any) -> bool:
    """Return whether an operation is one that waits, in this block and after the last one.

    A loop may return an array that it was given, and that another operation computed.
    """
    if isinstance(operation, mlir.ir.Block) or operation.name not in WHOLE:
        return False
    operation = operation.operation
    here: bool = operation.block == block
    return here and (before is None or before[0].owner.operation.is_before_in_block(operation))


def _has_floats(kind: Any) -> bool:
    """Return whether an array has a first number to compare."""
    return jnp.issubdtype(kind.dtype, jnp.floating) and 0 not in kind.shape


def _wait(context: Any, operation: Any, last: Any, kind: Any) -> None:
    """Replace the first array of floats that an operation is given, x, by (never ? -x : x)."""
    floats = ("f32", "f64")
    given = [str(mlir.ir.RankedTensorType(x.type).element_type) for x in operation.operands]
    first = next((k for k, element in enumerate(given) if element in floats), None)
    if first is None:
        return
    flag = context.replace(avals_in=[kind], avals_out=[jax.core.ShapedArray((), jnp.bool_)])
    with mlir.ir.InsertionPoint(operation):
        (never,) = mlir.lower_fun(_never, multiple_results=False)(flag, last)
        x = operation.operands[first]
        operation.operands[first] = hlo.select(never, hlo.negate(x), x)


def _never(last: Array) -> Array:
    """Return False. XLA does not know that no float is below minus infinity."""
    corner = jax.lax.slice(last, (0,) * last.ndim, (1,) * last.ndim)
    return jnp.reshape(corner, ()) < -jnp.inf


def _bound(results: Arrays, others: Any) -> tuple[Any, Any]:
    """Return the results; their changes, or their batch axes, stay as they are."""
    return _turn_p.bind(*results), list(others)


def _transposed(slopes: Any, *results: Any) -> list[Any]:
    """Return the slopes: a solution is linear in the right-hand side."""
    return list(slopes)


_turn_p = Primitive("gyrobn_turn")
_turn_p.multiple_results = True
_turn_p.def_impl(_same)
_turn_p.def_abstract_eval(_same)
ad.primitive_jvps[_turn_p] = _bound
ad.primitive_transposes[_turn_p] = _transposed
batching.primitive_batchers[_turn_p] = _bound
mlir.register_lowering(_turn_p, _lowered, cacheable=False)  # it depends on the place

namespace = with_decompositions(jnp, in_turn)
"""JAX as the standard has it, with decompositions that take turns."""
