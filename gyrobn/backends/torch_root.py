"""The derivative of a root on PyTorch: that of the equation that the root solves."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gyrobn.backends.contract import Array, State
from gyrobn.backends.torch_rules import (
    FORWARD_TWICE,
    Function,
    Pull,
    add_up,
    by_numpy,
    differentiable,
    filled,
    no_transform,
    orders,
)
from gyrobn.backends.torch_twice import lazily, may_follow, push, refuse

__all__ = ["implicit"]


def implicit(rules: Any, constants: State, image: State, *inputs: Array) -> State:
    """Return the first of ``constants``, a root that depends on ``inputs``, and ``image``."""
    if not differentiable(*inputs):
        return constants[0], *image
    if not rules.smooth and (orders(*inputs) > 1 or not no_transform()):
        changing = (rules.twice or refuse)(constants, *inputs)
        both = zip((constants[0], *image), changing, strict=True)
        return tuple(out + (c - c.detach()) for out, c in both)
    counts = len(constants), len(image)
    return _Root.apply(rules, counts, *constants, *image, *inputs)


class _Root(Function):
    """A root with the rules for its derivative, which call the root again for the next one."""

    @staticmethod
    def forward(rules: Any, counts: tuple[int, int], *arrays: Array) -> State:
        first, shown = counts
        return tuple(a.view_as(a) for a in (arrays[0], *arrays[first : first + shown]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        ctx.rules, ctx.counts, *arrays = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)

    @staticmethod
    def backward(ctx: Any, *slopes: Array | None) -> tuple[Any, ...]:
        rules, (first, shown), arrays = ctx.rules, ctx.counts, ctx.saved_tensors
        lead, wanted = first + shown, ctx.needs_input_grad[2 + first + shown :]
        nothing = None, None, *(None for _ in range(lead))
        inputs = arrays[lead:]
        if rules.smooth or not may_follow(*inputs):
            return *nothing, *_slopes(rules, ctx.counts, wanted, arrays, *slopes)
        given = [s for s in slopes if s is not None]
        with torch.no_grad():
            fixed = [a.detach() for a in arrays]
            found = _slopes(rules, ctx.counts, wanted, fixed, *slopes)

        def again(*arrays: Array) -> list[Array]:
            constants, inputs = arrays[:first], arrays[first : first + len(wanted)]
            few = iter(arrays[first + len(wanted) :])
            by = [None if s is None else next(few) for s in slopes]
            pull = Pull(lambda *x: (rules.twice or refuse)(constants, *x), inputs, wanted, given)
            both = zip(filled(inputs, pull(by)), found, strict=True)
            return [a for a, f in both if f is not None]

        return *nothing, *lazily(found, again, *arrays[:first], *inputs, *given)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> State:
        rules, (first, shown), arrays = ctx.rules, ctx.counts, ctx.saved_tensors
        inputs = arrays[first + shown :]
        moves = filled(inputs, changes[2 + first + shown :])
        if rules.smooth or not may_follow(*inputs):
            return _changes(rules, ctx.counts, arrays, moves)
        with torch.no_grad():
            found = _changes(rules, ctx.counts, [a.detach() for a in arrays], moves)
        shapes = [f.shape for f in found]

        def again(*arrays: Array) -> State:
            constants, inputs = arrays[:first], arrays[first : first + len(moves)]
            twice = lambda *x: (rules.twice or refuse)(constants, *x)  # noqa: E731
            return push(twice, inputs, arrays[first + len(moves) :], shapes)

        return tuple(lazily(found, again, *arrays[:first], *inputs, *moves))


def _at(rules: Any, counts: tuple[int, int], arrays: Sequence[Array]) -> tuple[State, State]:
    """Return the constants, the root among them as a function of the inputs, and those."""
    first, shown = counts
    constants, inputs = tuple(arrays[:first]), tuple(arrays[first + shown :])
    if differentiable(*inputs):
        constants = _Root.apply(rules, counts, *arrays)[0], *constants[1:]
        if rules.sums is not None:
            constants = *constants[:-2], *rules.sums(constants, *inputs)
    return constants, inputs


def _slopes(
    rules: Any,
    counts: tuple[int, int],
    wanted: tuple[bool, ...],
    arrays: Sequence[Array],
    by_root: Array | None,
    *by_image: Array | None,
) -> list[Array | None]:
    """Return the slopes of the inputs from those of the root and of the image."""
    if rules.slopes is not None and by_root is None and not differentiable(*arrays, *by_image):
        first = counts[0]
        given = *arrays[: first + 1], *by_image, *arrays[first + 1 :]
        return by_numpy(lambda *a: rules.slopes(a[:first], *a[first:]), *given)
    constants, inputs = _at(rules, counts, arrays)
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
        by_root = add_up(s for s in (by_root, more) if s is not None)
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
    return [add_up(s for s in two if s is not None) for two in zip(found, direct, strict=True)]


def _changes(rules: Any, counts: tuple[int, int], arrays: Sequence[Array], moves: State) -> State:
    """Return the changes of the root and of the image from those of the inputs."""
    constants, inputs = _at(rules, counts, arrays)
    root, *rest = constants

    def seen(root: Array, *x: Array) -> State:
        return tuple(rules.image((root, *rest), *x))

    dg = _along(lambda *x: seen(root, *x)[-1], inputs, moves)
    count = counts[1] - (rules.total is not None)
    step, _ = rules.inverse(seen(root, *inputs)[:count], (), constants, dg, None, *inputs)
    at = torch.zeros_like(step), *inputs
    moved = _along(lambda s, *x: rules.move(constants, s, *x), at, (step, *moves))
    shown = [
        _along(lambda *given, k=k: seen(*given)[k], (root, *inputs), (moved, *moves))
        for k in range(counts[1])
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
    # what pulls slopes back is linear in them, and its slope is what pushes changes forward
    value, back, *_ = torch.func.vjp(function, *inputs)

    def along(slope: Array) -> Array:
        return add_up((by * move).sum() for by, move in zip(back(slope), moves, strict=True))

    total, forth, *_ = torch.func.vjp(along, torch.zeros_like(value))
    return forth(torch.ones_like(total))[0]
