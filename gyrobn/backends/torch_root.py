"""The derivative of a root on PyTorch: that of the equation that the root solves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gyrobn.backends.contract import Array, State
from gyrobn.backends.torch_rules import FORWARD_TWICE, Function, Pull, add_up, filled, orders
from gyrobn.backends.torch_twice import lazily, may_follow, push, refuse, split
from gyrobn.backends.torch_values import by_numpy, differentiable, no_transform


def implicit(rules: Any, constants: State, image: State, *inputs: Array) -> State:
    """Return the first of ``constants``, a root that depends on ``inputs``, and ``image``."""
    if not differentiable(*inputs):
        return constants[0], *image
    if (orders(*inputs) > 1 or not no_transform()) and not rules.differentiable():
        changing = (rules.twice or refuse)(constants, *inputs)
        both = zip((constants[0], *image), changing, strict=True)
        return tuple(out + (c - c.detach()) for out, c in both)
    return _Root.apply(_Rule(rules, len(constants), len(image)), *constants, *image, *inputs)


@dataclass(eq=False)
class _Rule:
    """The rules of a root, and how many of the arrays are constants, and how many its image.

    It is not a tuple: the vmap of torch.func would take a tuple for several arguments.
    """

    rules: Any
    first: int
    shown: int

    def split(self, arrays: Sequence[Array]) -> tuple[State, State, State]:
        """Return constants, image and inputs."""
        return split(tuple(arrays), self.first, self.first + self.shown)

    def twice(self, constants: State) -> Callable[..., State]:
        """Return the root and its image as a function of the inputs, for a second derivative."""
        return partial(self.rules.twice or refuse, constants)


class _Root(Function):
    """A root with the rules for its derivative, which call the root again for the next one."""

    @staticmethod
    def forward(rule: _Rule, *arrays: Array) -> State:
        constants, image, _ = rule.split(arrays)
        return tuple(a.view_as(a) for a in (constants[0], *image))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        ctx.rule, *arrays = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)

    @staticmethod
    def backward(ctx: Any, *slopes: Array | None) -> tuple[Any, ...]:
        rule, arrays = ctx.rule, ctx.saved_tensors
        constants, image, inputs = rule.split(arrays)
        wanted = ctx.needs_input_grad[-len(inputs) :]
        nothing = None, *(None for _ in (*constants, *image))
        if not may_follow(*inputs) or rule.rules.differentiable():
            return *nothing, *_slopes(rule, wanted, arrays, *slopes)
        given = [s for s in slopes if s is not None]
        with torch.no_grad():
            found = _slopes(rule, wanted, [a.detach() for a in arrays], *slopes)

        def again(*arrays: Array) -> list[Array]:
            constants, inputs, few = split(arrays, rule.first, rule.first + len(wanted))
            left = iter(few)
            by = [None if s is None else next(left) for s in slopes]
            pull = Pull(rule.twice(constants), inputs, wanted, given)
            both = zip(filled(inputs, pull(by)), found, strict=True)
            return [a for a, f in both if f is not None]

        return *nothing, *lazily(found, again, *constants, *inputs, *given)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> State:
        rule, arrays = ctx.rule, ctx.saved_tensors
        constants, _, inputs = rule.split(arrays)
        moves = filled(inputs, changes[-len(inputs) :])
        if not may_follow(*inputs) or rule.rules.differentiable():
            return _changes(rule, arrays, moves)
        with torch.no_grad():
            found = _changes(rule, [a.detach() for a in arrays], moves)
        shapes, count = [f.shape for f in found], len(inputs)

        def again(*arrays: Array) -> State:
            constants, inputs, moves = split(arrays, rule.first, rule.first + count)
            return push(rule.twice(constants), inputs, moves, shapes)

        return tuple(lazily(found, again, *constants, *inputs, *moves))


def _at(rule: _Rule, arrays: Sequence[Array]) -> tuple[State, State]:
    """Return the constants, with the root as a function of the inputs, and the inputs."""
    constants, _, inputs = rule.split(arrays)
    if differentiable(*inputs):
        constants = _Root.apply(rule, *arrays)[0], *constants[1:]
        if rule.rules.sums is not None:
            constants = *constants[:-2], *rule.rules.sums(constants, *inputs)
    return constants, inputs


def _slopes(
    rule: _Rule,
    wanted: tuple[bool, ...],
    arrays: Sequence[Array],
    by_root: Array | None,
    *by_image: Array | None,
) -> list[Array | None]:
    """Return the slopes of the inputs from those of the root and of the image."""
    rules, first = rule.rules, rule.first
    if rules.slopes is not None and by_root is None and not differentiable(*arrays, *by_image):
        given = *arrays[: first + 1], *by_image, *arrays[first + 1 :]
        return by_numpy(lambda *a: rules.slopes(a[:first], *a[first:]), *given)
    constants, inputs = _at(rule, arrays)
    root, *rest = constants
    also: tuple[Array | None, ...] = ()  # the slope of a sum over all ranks
    if rules.total is not None:
        *by_image, last = by_image  # type: ignore[assignment]
        also = (last,)
    slopes = [s for s in (by_root, *by_image, *also) if s is not None]
    pull = Pull(
        lambda root, *x: rules.image((root, *rest), *x), (root, *inputs), (True, *wanted), slopes
    )
    quick = rules.quick and not pull.again and all(s is not None for s in by_image)
    if not quick:  # what the root changes of the summed variance is left to ``inverse``
        (more,) = pull((*by_image, *(None for _ in also), None), slice(1))
        by_root = add_up((by_root, more))
    by_step, direct = None, [None for _ in inputs]
    if by_root is not None:
        step = root.new_zeros(rules.shape)
        moved = lambda step, *x: (rules.move(constants, step, *x),)  # noqa: E731
        by_step, *direct = Pull(moved, (step, *inputs), (True, *wanted), slopes)((by_root,))
    shown, seen = by_image if quick else (), pull.outputs[: len(by_image)]
    if by_step is None and not shown:  # nothing depends on the root
        by_step = root.new_zeros(rules.shape)
    given = seen, shown, constants, by_step, also[0] if also else None
    v, last = rules.inverse(*given, *inputs, back=True)
    found = pull((*by_image, *(last for _ in also), v), slice(1, None))
    return [add_up(two) for two in zip(found, direct, strict=True)]


def _changes(rule: _Rule, arrays: Sequence[Array], moves: State) -> State:
    """Return the changes of the root and of the image from those of the inputs."""
    constants, inputs = _at(rule, arrays)
    root, *rest = constants
    rules = rule.rules

    def seen(root: Array, *x: Array) -> State:
        return tuple(rules.image((root, *rest), *x))

    dg = _along(lambda *x: seen(root, *x)[-1], inputs, moves)
    count = rule.shown - (rules.total is not None)
    step, _ = rules.inverse(seen(root, *inputs)[:count], (), constants, dg, None, *inputs)
    at = torch.zeros_like(step), *inputs
    moved = _along(lambda s, *x: rules.move(constants, s, *x), at, (step, *moves))
    shown = [
        _along(lambda *given, k=k: seen(*given)[k], (root, *inputs), (moved, *moves))
        for k in range(rule.shown)
    ]
    if rules.total is not None:
        shown[-1] = rules.total(shown[-1])
    return moved, *shown


def _along(function: Callable[..., Array], inputs: State, moves: State) -> Array:
    """Return the change of a function along ``moves``."""
    try:
        return torch.func.jvp(function, inputs, moves)[1]
    except RuntimeError as error:
        if str(error) != FORWARD_TWICE:
            raise
    shape = function(*inputs).shape
    return push(lambda *x: (function(*x),), inputs, moves, [shape])[0]
