"""The derivative of a root on PyTorch: that of the equation that the root solves."""

from collections.abc import Callable
from typing import Any

import torch

from gyrobn.backends.contract import Array, State
from gyrobn.backends.torch_rules import FORWARD_TWICE, Function, Pull, add_up, differentiable

__all__ = ["implicit"]


def implicit(rules: Any, constants: State, image: State, *inputs: Array) -> State:
    """Return the first of ``constants``, a root that depends on ``inputs``, and ``image``."""
    if not differentiable(*inputs):
        return constants[0], *image
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
    def _again(ctx: Any) -> tuple[Any, State, State]:
        """Return the rules, the constants with the root as a function of the inputs, and those."""
        arrays, (first, shown) = ctx.saved_tensors, ctx.counts
        constants, inputs = arrays[:first], arrays[first + shown :]
        if differentiable(*inputs):
            constants = _Root.apply(ctx.rules, ctx.counts, *arrays)[0], *constants[1:]
            if ctx.rules.sums is not None:
                constants = *constants[:-2], *ctx.rules.sums(constants, *inputs)
        return ctx.rules, constants, inputs

    @staticmethod
    def backward(ctx: Any, by_root: Array | None, *by_image: Array | None) -> tuple[Any, ...]:
        rules, constants, inputs = _Root._again(ctx)
        root, *rest = constants
        also: tuple[Array | None, ...] = ()  # the slope of a sum over all ranks
        if rules.total is not None:
            *by_image, last = by_image  # type: ignore[assignment]
            also = (last,)
        wanted = ctx.needs_input_grad[2 + sum(ctx.counts) :]
        slopes = [s for s in (by_root, *by_image, *also) if s is not None]
        pull = Pull(
            lambda root, *x: rules.image((root, *rest), *x),
            (root, *inputs),
            (True, *wanted),
            slopes,
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
        given = seen, shown, constants, by_step, also[0] if also else None
        v, last = rules.inverse(*given, *inputs, back=True)
        found = pull((*by_image, *(last for _ in also), v), slice(1, None))
        total = (add_up(s for s in two if s is not None) for two in zip(found, direct, strict=True))
        return None, None, *(None for _ in range(sum(ctx.counts))), *total

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> State:
        rules, constants, inputs = _Root._again(ctx)
        root, *rest = constants
        moves = tuple(
            torch.zeros_like(x) if d is None else d
            for x, d in zip(inputs, changes[2 + sum(ctx.counts) :], strict=True)
        )

        def seen(root: Array, *x: Array) -> State:
            return tuple(rules.image((root, *rest), *x))

        dg = _along(lambda *x: seen(root, *x)[-1], inputs, moves)
        count = ctx.counts[1] - (rules.total is not None)
        step, _ = rules.inverse(seen(root, *inputs)[:count], (), constants, dg, None, *inputs)
        at = torch.zeros_like(step), *inputs
        moved = _along(lambda s, *x: rules.move(constants, s, *x), at, (step, *moves))
        shown = [
            _along(lambda *given, k=k: seen(*given)[k], (root, *inputs), (moved, *moves))
            for k in range(ctx.counts[1])
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
