"""Second derivatives on JAX that are another computation, made only if they are asked for.

JAX makes a reverse derivative by transposing a linear function, and takes all custom rules out of
it. So a rule for the derivative of a derivative has to be that of a primitive. There are two, and
neither computes anything: one returns the changes that it is given, one returns zeros.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gyrobn.backends.contract import SECOND_ORDER, Array, Rule, State


def is_zero(change: Any) -> bool:
    """Return whether a change is known to be zero."""
    return isinstance(change, jax.custom_derivatives.SymbolicZero)


def filled(x: Array, change: Any) -> Array:
    """Return the change, as an array of JAX: the user may have passed NumPy's to ``jax.jvp``."""
    return jax.numpy.zeros_like(x) if is_zero(change) else jax.numpy.asarray(change)


def replaced(arrays: State, places: Sequence[int], others: State) -> list[Array]:
    """Return the arrays with others in some places."""
    new = list(arrays)
    for k, other in zip(places, others, strict=True):
        new[k] = other
    return new


def bent(
    twice: Rule | None, kept: Any, inputs: State, changes: Sequence[Any], found: State
) -> State:
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
        self, twice: Rule | None, tree: Any, kept: int, inputs: int, moving: tuple[int, ...]
    ) -> None:
        self.twice, self.tree, self.kept, self.moving = twice, tree, kept, moving
        self.given = kept + inputs

    def batched(self) -> "_Bend":
        """Return the same for a further axis, the first of all arrays."""
        twice = None if self.twice is None else jax.vmap(self.twice)
        return _Bend(twice, self.tree, self.kept, self.given - self.kept, self.moving)

    def at(self, given: State) -> State:
        """Return the inputs that change."""
        return tuple(given[self.kept + k] for k in self.moving)

    def along(self, given: State, moves: Sequence[Any], derivative: Callable[..., Any]) -> State:
        """Return how a derivative changes; it takes a function and the inputs that change."""
        if self.twice is None:
            raise TypeError(SECOND_ORDER)
        kept = jax.tree.unflatten(self.tree, given[: self.kept])

        def of_inputs(*inputs: Array) -> Any:
            def function(*some: Array) -> State:
                return tuple(self.twice(kept, *replaced(inputs, self.moving, some)))  # type: ignore[misc]

            return derivative(function, tuple(inputs[k] for k in self.moving))

        full = tuple(ad.instantiate_zeros(m) for m in moves)
        return tuple(jax.jvp(of_inputs, tuple(given[self.kept :]), full)[1])


def _pushed(*arrays: Array, bend: _Bend) -> list[Array]:
    """Return ``found``, the last arrays; before them are the changes of which it is a function."""
    return list(arrays[bend.given + len(bend.moving) :])


def _pulled(*arrays: Array, bend: _Bend) -> list[Array]:
    """Transpose that: return zeros, as a function of the slopes, which are the last arrays."""
    return [jax.numpy.zeros_like(x) for x in bend.at(arrays)]


def _pushed_jvp(primals: State, tangents: Any, *, bend: _Bend) -> tuple[Any, Any]:
    changes = tuple(primals[bend.given : bend.given + len(bend.moving)])
    push = lambda function, at: jax.jvp(function, at, changes)[1]  # noqa: E731
    return _derivative(_pushed_p, primals, tangents, bend, push)


def _pulled_jvp(primals: State, tangents: Any, *, bend: _Bend) -> tuple[Any, Any]:
    slopes = tuple(primals[bend.given :])
    pull = lambda function, at: jax.vjp(function, *at)[1](slopes)  # noqa: E731
    return _derivative(_pulled_p, primals, tangents, bend, pull)


def _derivative(
    primitive: Any, primals: State, tangents: Any, bend: _Bend, derivative: Callable[..., Any]
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

    def batch(arrays: Any, dims: Any, *, bend: _Bend) -> tuple[Any, Any]:
        size = next(a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None)
        every = (
            jax.numpy.broadcast_to(a, (size, *a.shape))
            if d is None
            else jax.numpy.moveaxis(a, d, 0)
            for a, d in zip(arrays, dims, strict=True)
        )
        outputs = primitive.bind(*every, bend=bend.batched())
        places: list[int | None] = [0 for _ in outputs]
        if function is _pushed and bend.twice is None:
            # A sum over the lanes (axis_name) has one value, and is not mapped. It has no second
            # derivative, so the value of the first lane is all there is to it.
            places = [d if d is None else 0 for d in dims[bend.given + len(bend.moving) :]]
            outputs = [x[0] if d is None else x for x, d in zip(outputs, places, strict=True)]
        return outputs, places

    batching.primitive_batchers[primitive] = batch
    return primitive


_pushed_p = _primitive("gyrobn_pushed", _pushed, _pushed_jvp, _pushed_transpose)
_pushed_p.def_abstract_eval(_pushed)
_pulled_p = _primitive("gyrobn_pulled", _pulled, _pulled_jvp, _pulled_transpose)
_pulled_p.def_abstract_eval(lambda *avals, bend: list(bend.at(avals)))
