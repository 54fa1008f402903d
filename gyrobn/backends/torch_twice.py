"""Derivatives on PyTorch whose own derivatives are another computation, made only if asked for."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gyrobn.backends.contract import SECOND_ORDER, Array, Primal, Rule, State
from gyrobn.backends.torch_rules import Function, Pull, Rules, check_forward, filled, orders
from gyrobn.backends.torch_values import differentiable, no_transform


def with_derivative(
    primal: Primal, tangent: Rule, cotangent: Rule, *inputs: Array, twice: Rule | None = None
) -> State:
    """Return the outputs of ``primal``, with ``cotangent`` and ``tangent`` as its derivatives."""
    if not differentiable(*inputs):
        return primal(*inputs)[0]
    if torch.compiler.is_dynamo_compiling():
        return _linear(primal, tangent, *inputs)
    check_forward(*inputs)
    order = orders(*inputs)
    if order == 0 and twice is not None:  # vmap alone
        return primal(*inputs)[0]
    # a Function that holds arrays of its own does not work inside of torch.func
    if order > 1 or (twice is not None and not no_transform()):
        outputs, kept = primal(*(x.detach() for x in inputs))
        changing = (twice or refuse)(kept, *inputs)
        return tuple(out + (c - c.detach()) for out, c in zip(outputs, changing, strict=True))
    rules = Rules(primal, tangent, cotangent, twice or refuse)
    results = _Ruled.apply(rules, *inputs)
    return tuple(results[: rules.count])


def _linear(primal: Callable[..., Any], tangent: Rule, *inputs: Array) -> State:
    """Return the outputs as constants, plus zero with their first derivative, for Dynamo."""
    fixed = tuple(x.detach() for x in inputs)
    outputs, kept = primal(*fixed)
    changes = tangent(kept, *(x - f for x, f in zip(inputs, fixed, strict=True)))
    return tuple(out + change for out, change in zip(outputs, changes, strict=True))


def refuse(*arrays: Any) -> State:
    """Stand for a function that has no second derivative."""
    raise RuntimeError(SECOND_ORDER)


class _Ruled(Function):
    """A function whose rules come with it; what they need is returned as further outputs."""

    @staticmethod
    def forward(rules: Any, *inputs: Array) -> tuple[Array, ...]:
        outputs, kept = rules.primal(*inputs)
        rules.count = len(outputs)
        kept = tuple(k.view_as(k) if any(k is x for x in inputs) else k for k in kept)
        return (*outputs, *kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Array, ...]) -> None:
        ctx.rules, *given = inputs
        ctx.given = len(given)
        outputs, kept = output[: ctx.rules.count], output[ctx.rules.count :]
        ctx.shapes = [out.shape for out in outputs]
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)  # what is kept has no slope, and needs no zeros
        ctx.save_for_backward(*given, *kept)
        ctx.save_for_forward(*given, *kept)

    @staticmethod
    def backward(ctx: Any, *slopes: Array) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint gives them no second time
        given, kept = saved[: ctx.given], saved[ctx.given :]
        each = zip(slopes[: ctx.rules.count], ctx.shapes, strict=True)
        slopes = tuple(given[0].new_zeros(shape) if s is None else s for s, shape in each)
        found = ctx.rules.cotangent(kept, *slopes)
        if not may_follow(*given):
            return None, *found
        found = filled(given, found)

        def again(*arrays: Array) -> Sequence[Array]:
            inputs, kept, slopes = split(arrays, len(given), len(saved))
            return pull(lambda *x: ctx.rules.twice(kept, *x), inputs, slopes)

        return None, *lazily(found, again, *saved, *slopes)

    @staticmethod
    def jvp(ctx: Any, _: None, *changes: Array) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint gives them no second time
        given, kept = saved[: ctx.given], saved[ctx.given :]
        changes = filled(given, changes)
        found = ctx.rules.tangent(kept, *changes)
        if may_follow(*given):

            def again(*arrays: Array) -> Sequence[Array]:
                inputs, kept, changes = split(arrays, len(given), len(saved))
                return push(lambda *x: ctx.rules.twice(kept, *x), inputs, changes, ctx.shapes)

            found = lazily(found, again, *saved, *changes)
        return *found, *(None for _ in kept)


def may_follow(*given: Array) -> bool:
    """Return whether another derivative may follow; torch.func announces it before the first."""
    return no_transform() and differentiable(*given)


def split(arrays: State, first: int, second: int) -> tuple[State, State, State]:
    """Return the arrays cut in two places."""
    return arrays[:first], arrays[first:second], arrays[second:]


def pull(function: Rule, inputs: State, slopes: State) -> State:
    """Return the slopes by all inputs, as a function that can be differentiated."""
    found = Pull(function, inputs, tuple(True for _ in inputs), slopes)(slopes)
    return filled(inputs, found)


def push(function: Rule, inputs: State, changes: State, shapes: Sequence[Any]) -> State:
    """Return the changes of the outputs, which have these shapes, by those of the inputs.

    What pulls slopes back is linear in them, and its transpose is what pushes changes forward.
    """
    at = tuple(inputs[0].new_zeros(shape) for shape in shapes)
    return pull(lambda *slopes: pull(function, inputs, slopes), at, changes)


def lazily(
    found: Sequence[Array | None], function: Callable[..., Sequence[Array]], *arrays: Array
) -> list[Array | None]:
    """Return ``found``, the value of ``function(*arrays)``, with the derivatives of that function.

    The function is called only to be differentiated, and returns nothing for what is None.
    """
    some = [f for f in found if f is not None]
    each = iter(_Lazy.apply(function, len(some), *some, *arrays))
    return [None if f is None else next(each) for f in found]


class _Lazy(Function):
    """The first ``count`` arrays, as a function of the others."""

    @staticmethod
    def forward(function: Any, count: int, *arrays: Array) -> State:
        return tuple(a.clone() for a in arrays[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        ctx.function, ctx.count, *arrays = inputs
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)

    @staticmethod
    def backward(ctx: Any, *slopes: Array) -> tuple[Any, ...]:
        count, arrays = ctx.count, ctx.saved_tensors[ctx.count :]
        wanted = ctx.needs_input_grad[2 + count :]
        found = Pull(ctx.function, arrays, wanted, slopes)(slopes)
        return None, None, *(None for _ in range(count)), *found

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> State:
        saved = ctx.saved_tensors
        shapes, arrays = [a.shape for a in saved[: ctx.count]], saved[ctx.count :]
        return push(ctx.function, arrays, filled(arrays, changes[2 + ctx.count :]), shapes)
