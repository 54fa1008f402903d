"""Derivatives on PyTorch: rules that a function brings with it, for backward and forward mode.

Each rule is a ``torch.autograd.Function`` that is given the rules as an argument.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad

from gyrobn.backends.contract import Array, Partials, Primal, Rule, State
from gyrobn.backends.torch_values import (
    by_numpy,
    differentiable,
    if_few,
    no_autocast,
    no_transform,
    owned,
    tensor,
)


def _without_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule that computes in the dtype of its slopes."""

    @wraps(backward)
    def full(ctx: Any, *slopes: Array | None) -> Any:
        some = next((s for s in slopes if s is not None), None)
        with nullcontext() if some is None else no_autocast(some):
            return backward(ctx, *slopes)

    return full


class Function(torch.autograd.Function):
    """A function with derivatives that can be applied without a look at its signature.

    Its backward pass runs without autocast, also if ``backward()`` is called inside of one.
    """

    generate_vmap_rule = True

    def __init_subclass__(cls) -> None:
        cls.backward = staticmethod(_without_autocast(cls.backward))  # type: ignore[method-assign]

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Apply the function: torch would bind the arguments to names, which takes a while."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)  # type: ignore[no-untyped-call]
        return super(torch.autograd.Function, cls).apply(*arguments)  # type: ignore[misc]


@dataclass(eq=False)
class Rules:
    """A function with its derivatives.

    Of a shortcut, ``tangent`` is the exact function.
    """

    primal: Primal
    tangent: Rule
    cotangent: Callable[..., Any]
    twice: Rule | None = None
    count: int = 0
    """How many outputs the function has, once it was called."""
    kept: State = ()
    """What NumPy found for the derivative of a shortcut."""


class Pull:
    """A function's outputs, and how their slopes are pulled back to its inputs, more than once.

    The slopes of the inputs that are wanted can be differentiated again if those, or the slopes of
    the outputs, can be.
    """

    def __init__(
        self,
        function: Callable[..., State],
        inputs: State,
        wanted: tuple[bool, ...],
        slopes: Sequence[Array],
    ) -> None:
        self.again = differentiable(*inputs, *slopes)
        self.back: Any = None
        if not no_transform():
            outputs, self.back, *_ = torch.func.vjp(lambda *x: tuple(function(*x)), *inputs)
            self.outputs: State = outputs
            return
        with torch.enable_grad():
            own = [x.view_as(x) if self.again else x.detach() for x in inputs]
            self.own = [
                x.requires_grad_() if want else None for x, want in zip(own, wanted, strict=True)
            ]
            self.outputs = tuple(function(*own))

    def __call__(
        self, slopes: Sequence[Array | None], which: slice = slice(None)
    ) -> list[Array | None]:
        """Return the slopes by some inputs from those by the outputs, of which some may be None."""
        if self.back is not None:
            return list(self.back(filled(self.outputs, slopes))[which])
        mine = [x for x in self.own[which] if x is not None]
        both = [(o, s) for o, s in zip(self.outputs, slopes, strict=True) if s is not None]
        if not both or not mine:
            return [None for _ in self.own[which]]
        outputs, given = zip(*both, strict=True)
        found = iter(
            torch.autograd.grad(
                outputs, mine, given, retain_graph=True, create_graph=self.again, allow_unused=True
            )
        )
        return [None if x is None else next(found) for x in self.own[which]]


def smooth(function: Rule, partials: Partials, *inputs: Array) -> State:
    """Return the outputs of an elementwise function, with its derivatives if they are asked for."""
    if not differentiable(*inputs):
        return function(*inputs)
    if torch.compiler.is_dynamo_compiling():
        return _linear_smooth(function, partials, *inputs)
    check_forward(*inputs)
    return _Smooth.apply(function, partials, *inputs)


def _linear_smooth(function: Rule, partials: Partials, *inputs: Array) -> State:
    """Return the outputs as constants, plus zero with their first derivative.

    For Dynamo, which cannot follow a ``Function`` that is given its rules; a graph that it makes
    has no second derivative anyway.
    """
    fixed = tuple(x.detach() for x in inputs)
    outputs = function(*fixed)
    rows = partials(fixed, outputs)
    return tuple(
        out + add_up(p() * (x - f) for p, x, f in zip(row, inputs, fixed, strict=True))
        for out, row in zip(outputs, rows, strict=True)
    )


def shortcut(exact: Rule, primal: Primal, cotangent: Callable[..., Any], *inputs: Any) -> State:
    """Return the outputs, with ``cotangent`` as their derivative unless that is differentiated.

    Forward mode and the transformations of torch.func do not take the shortcut.
    """
    if not differentiable(*inputs):
        return primal(*inputs)[0]
    compiling = torch.compiler.is_dynamo_compiling()
    if compiling or not no_transform() or forward_ad._current_level >= 0:
        return exact(*inputs)
    rules = Rules(primal, exact, cotangent)
    results = _Short.apply(rules, *inputs)
    return tuple(results[: rules.count])


class _Short(Function):
    """A function with two derivatives: a quick one, and one to be differentiated again.

    What the quick one needs is returned as further outputs, or kept with the rules by NumPy.
    """

    @staticmethod
    def forward(rules: Any, *inputs: Any) -> State:
        values = if_few(inputs)
        if values is not None:
            with np.errstate(all="ignore"):
                outputs, kept = rules.primal(*values)
            rules.count, rules.kept = len(outputs), tuple(owned(a) for a in kept)
            return tuple(tensor(a) for a in outputs)
        outputs, kept = rules.primal(*inputs)
        rules.count = len(outputs)
        return (*outputs, *(k.view_as(k) if any(k is o for o in outputs) else k for k in kept))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        ctx.rules, *given = inputs
        kept = output[ctx.rules.count :]
        ctx.mark_non_differentiable(*kept)
        ctx.plain = [None if isinstance(x, torch.Tensor) else (x,) for x in given]
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*tensors, *kept)

    @staticmethod
    def backward(ctx: Any, *slopes: Array) -> tuple[Any, ...]:
        saved, rules = ctx.saved_tensors, ctx.rules
        count, needed = sum(x is None for x in ctx.plain), ctx.needs_input_grad[1:]
        tensors, kept, slopes = saved[:count], saved[count:] + rules.kept, slopes[: rules.count]

        def with_plain(tensors: State) -> list[Any]:
            """Return all inputs, also those that are no tensors."""
            left = iter(tensors)
            return [next(left) if x is None else x[0] for x in ctx.plain]

        if differentiable(*tensors, *slopes):
            wanted = tuple(n for n, x in zip(needed, ctx.plain, strict=True) if x is None)
            pull = Pull(lambda *x: rules.tangent(*with_plain(x)), tensors, wanted, slopes)
            found = iter(pull(slopes))
            return None, *(next(found) if x is None else None for x in ctx.plain)

        def cotangent(*arrays: Any) -> State:
            given, more = with_plain(arrays[:count]), arrays[count:]
            each = rules.cotangent(given, more[: len(kept)], *more[len(kept) :])
            return tuple(by() if need else None for by, need in zip(each, needed, strict=True))

        return None, *by_numpy(cotangent, *tensors, *kept, *slopes)


def check_forward(*arrays: Array) -> None:
    """Refuse two forward modes of torch.func, one over the other: torch would return zero."""
    if no_transform():
        return
    forward = torch._C._functorch.TransformType.Jvp
    for x in arrays:
        if sum(key == forward for _, key, _ in _wrappers(x)) > 1:
            raise RuntimeError(FORWARD_TWICE)


def orders(*arrays: Array) -> int:
    """Return how many derivatives follow ``arrays``, as far as that is known: one over another."""
    found = set()
    kinds = torch._C._functorch.TransformType
    for x in arrays:
        plain = x
        for level, key, wrapped in _wrappers(x):
            plain = torch._C._functorch.get_unwrapped(wrapped)
            if key == kinds.Jvp or (key == kinds.Grad and wrapped.requires_grad):
                found.add(level)
        if torch.is_grad_enabled() and plain.requires_grad:
            found.add("graph")
        if plain is x and forward_ad._current_level >= 0 and no_transform():
            tangent = forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call]
            found.update(() if tangent is None else ("dual",))
    return len(found)


def _wrappers(x: Array) -> Iterable[tuple[Any, Any, Array]]:
    """Yield the transformations of torch.func that wrap ``x``: level, kind and wrapped tensor."""
    functorch = torch._C._functorch
    if no_transform():
        return
    kinds = {level.level(): level.key() for level in functorch.get_interpreter_stack()}
    while functorch.is_functorch_wrapped_tensor(x):
        level = functorch.maybe_get_level(x)
        yield level, kinds.get(level), x
        x = functorch.get_unwrapped(x)


FORWARD_TWICE = (
    "torch has no forward mode of a forward mode through functions with rules of their own: take "
    "torch.func.hessian, or jacrev for one of the two"
)


class _Smooth(Function):
    """An elementwise function: its derivatives are computed from what came in and went out."""

    @staticmethod
    def forward(function: Any, partials: Partials, *inputs: Array) -> State:
        outputs: State = function(*inputs)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        _, ctx.partials, *given = inputs
        ctx.given = len(given)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *output)
        ctx.save_for_forward(*given, *output)

    @staticmethod
    def backward(ctx: Any, *slopes: Array) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint gives them no second time
        rows = ctx.partials(saved[: ctx.given], saved[ctx.given :])
        found = [
            add_up(s * row[j]() for s, row in zip(slopes, rows, strict=True) if s is not None)
            if needed
            else None
            for j, needed in enumerate(ctx.needs_input_grad[2:])
        ]
        return None, None, *found

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *changes: Array) -> State:
        saved = ctx.saved_tensors
        rows = ctx.partials(saved[: ctx.given], saved[ctx.given :])
        return tuple(
            add_up(p() * c for p, c in zip(row, changes, strict=True) if c is not None)
            for row in rows
        )


def add_up(terms: Iterable[Array | None]) -> Any:
    """Return the sum of the terms that are not None, or None without any."""
    total = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total


def filled(arrays: Iterable[Array], others: Iterable[Array | None]) -> State:
    """Return the others, with zeros like the arrays in place of None."""
    both = zip(arrays, others, strict=True)
    return tuple(torch.zeros_like(x) if other is None else other for x, other in both)
