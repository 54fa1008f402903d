"""Second derivatives on JAX that are another computation, made only if they are asked for.

JAX makes a reverse derivative by transposing a linear function, and takes all custom rules out of
it. So a rule for the derivative of a derivative has to be that of a primitive. There are two, and
neither computes anything: one returns the tangents that it is given, one returns zeros.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gyrobn.backends.contract import THIRD_ORDER, Array, Arrays


def is_zero(change: Any) -> bool:
    """Return whether a change is known to be zero."""
    return isinstance(change, jax.custom_derivatives.SymbolicZero)


def filled(x: Array, change: Any) -> Array:
    """Return the change, as an array of JAX: the user may have passed NumPy's to ``jax.jvp``."""
    return jax.numpy.zeros_like(x) if is_zero(change) else jax.numpy.asarray(change)


def replaced(arrays: Arrays, places: Sequence[int], others: Arrays) -> list[Array]:
    """Return the arrays with others in some places."""
    new = list(arrays)
    for k, other in zip(places, others, strict=True):
        new[k] = other
    return new


def bent(
    twice: Callable[..., Arrays], kept: Any, inputs: Arrays, changes: Sequence[Any], found: Arrays
) -> Arrays:
    """Return the changes ``found`` of outputs, with the derivatives of those by the inputs.

    They are the second derivatives of ``twice(kept, *inputs)``. ``kept`` are constants.
    """
    constants, tree = jax.tree.flatten(kept)
    moving = tuple(k for k, change in enumerate(changes) if not is_zero(change))
    bend = _Bend(twice, tree, len(constants), len(inputs), moving)
    some = (changes[k] for k in moving)
    return tuple(_pushed_p.bind(*constants, *inputs, *some, *found, bend=bend))


class _Bend:
    """The second derivative of a function of which some inputs change."""

    def __init__(
        self,
        twice: Callable[..., Arrays],
        tree: Any,
        kept: int,
        inputs: int,
        moving: tuple[int, ...],
    ) -> None:
        self.twice, self.tree, self.kept, self.moving = twice, tree, kept, moving
        self.given = kept + inputs

    def batched(self, axis_name: Any) -> "_Bend":
        """Return the same for a further axis, the first of all arrays."""
        twice = jax.vmap(self.twice, axis_name=axis_name)
        return _Bend(twice, self.tree, self.kept, self.given - self.kept, self.moving)

    def at(self, given: Arrays) -> Arrays:
        """Return the inputs that change."""
        return tuple(given[self.kept + k] for k in self.moving)

    def along(self, given: Arrays, moves: Sequence[Any], derivative: Callable[..., Any]) -> Arrays:
        """Return how a derivative changes; it takes a function and the inputs that change."""
        kept = jax.tree.unflatten(self.tree, given[: self.kept])

        def of_inputs(*inputs: Array) -> Any:
            def function(*some: Array) -> Arrays:
                return tuple(self.twice(kept, *replaced(inputs, self.moving, some)))

            return derivative(function, tuple(inputs[k] for k in self.moving))

        full = tuple(ad.instantiate_zeros(m) for m in moves)
        found = jax.jvp(of_inputs, tuple(given[self.kept :]), full)[1]
        fence = _fence_p.bind(*given[self.kept :])
        return tuple(y + jax.numpy.asarray(fence, y.dtype) for y in found)


def _pushed(*arrays: Array, bend: _Bend) -> list[Array]:
    """Return ``found``, the last arrays; before them are the changes of which it is a function."""
    return list(arrays[bend.given + len(bend.moving) :])


def _pulled(*arrays: Array, bend: _Bend) -> list[Array]:
    """Transpose that: return zeros, as a function of the slopes, which are the last arrays."""
    return [jax.numpy.zeros_like(x) for x in bend.at(arrays)]


def _pushed_jvp(primals: Arrays, tangents: Any, *, bend: _Bend) -> tuple[Any, Any]:
    changes = tuple(primals[bend.given : bend.given + len(bend.moving)])
    push = lambda function, at: jax.jvp(function, at, changes)[1]  # noqa: E731
    return _derivative(_pushed_p, primals, tangents, bend, push)


def _pulled_jvp(primals: Arrays, tangents: Any, *, bend: _Bend) -> tuple[Any, Any]:
    slopes = tuple(primals[bend.given :])
    pull = lambda function, at: jax.vjp(function, *at)[1](slopes)  # noqa: E731
    return _derivative(_pulled_p, primals, tangents, bend, pull)


def _derivative(
    primitive: Any, primals: Arrays, tangents: Any, bend: _Bend, derivative: Callable[..., Any]
) -> tuple[Any, Any]:
    """Add what the vectors change, in which a primitive is linear, and what the inputs change."""
    outputs = primitive.bind(*primals, bend=bend)
    given, terms = primals[: bend.given], []
    moves, vectors = tangents[bend.kept : bend.given], tangents[bend.given :]
    if any(type(t) is not ad.Zero for t in vectors):
        linear = (ad.instantiate_zeros(t) for t in vectors)
        terms.append(primitive.bind(*given, *linear, bend=bend))
    if any(type(m) is not ad.Zero for m in moves):
        terms.append(bend.along(given, moves, derivative))
    if not terms:
        return outputs, [jax.numpy.zeros_like(out) for out in outputs]
    return outputs, [reduce(operator.add, each) for each in zip(*terms, strict=True)]


def _pushed_transpose(slopes: Any, *arrays: Any, bend: _Bend) -> list[Any]:
    slopes = [ad.instantiate_zeros(s) for s in slopes]
    pulled = _pulled_p.bind(*arrays[: bend.given], *slopes, bend=bend)
    return _to_vectors(arrays, bend, [*pulled, *slopes])


def _pulled_transpose(changes: Any, *arrays: Any, bend: _Bend) -> list[Any]:
    changes = [ad.instantiate_zeros(c) for c in changes]
    found = (jax.numpy.zeros(v.aval.shape, v.aval.dtype) for v in arrays[bend.given :])
    pushed = _pushed_p.bind(*arrays[: bend.given], *changes, *found, bend=bend)
    return _to_vectors(arrays, bend, pushed)


def _to_vectors(arrays: Any, bend: _Bend, found: Sequence[Array]) -> list[Any]:
    """Return a slope for each vector that is a variable, and None for all else."""
    both = zip(arrays[bend.given :], found, strict=True)
    return [None] * bend.given + [f if ad.is_undefined_primal(v) else None for v, f in both]


def _primitive(name: str, function: Callable[..., Any], jvp: Any, transpose: Any) -> Any:
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(function)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True))
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose

    def batch(axis: Any, arrays: Any, dims: Any, *, bend: _Bend) -> tuple[Any, Any]:
        every = (
            jax.numpy.broadcast_to(a, (axis.size, *a.shape))
            if d is None
            else jax.numpy.moveaxis(a, d, 0)
            for a, d in zip(arrays, dims, strict=True)
        )
        outputs = primitive.bind(*every, bend=bend.batched(axis.name))
        return outputs, [0 for _ in outputs]

    batching.fancy_primitive_batchers[primitive] = batch
    return primitive


def _third(primals: Any, tangents: Any) -> Any:
    raise TypeError(THIRD_ORDER)


def _zero(*inputs: Array) -> Array:
    return jax.numpy.zeros(())


_fence_p = Primitive("gyrobn_fence")
"""The number zero, which cannot be differentiated."""
_fence_p.def_impl(_zero)
_fence_p.def_abstract_eval(lambda *inputs: jax.core.ShapedArray((), jax.numpy.zeros(()).dtype))
mlir.register_lowering(_fence_p, mlir.lower_fun(_zero, multiple_results=False))
ad.primitive_jvps[_fence_p] = _third
batching.primitive_batchers[_fence_p] = lambda arrays, dims: (_fence_p.bind(), None)


_pushed_p = _primitive("gyrobn_pushed", _pushed, _pushed_jvp, _pushed_transpose)
_pushed_p.def_abstract_eval(_pushed)
_pulled_p = _primitive("gyrobn_pulled", _pulled, _pulled_jvp, _pulled_transpose)
_pulled_p.def_abstract_eval(lambda *avals, bend: list(bend.at(avals)))
