"""What torch itself asks of a layer: autocast, checkpoints, and the gate of the compiler."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import register_constant

from gyrobn.backends import namespace_of
from gyrobn.backends import torch as backend
from gyrobn.normalization.layers import Learnt, forward
from gyrobn.normalization.normalize import Stats
from gyrobn.normalization.settings import LayerSettings
from gyrobn.statistics.samples import Group


def no_autocast(x: Any, *others: Any) -> Any:
    """Return a context without autocast on the device of x; refuse what is not a tensor."""
    for value in (x, *others):
        if not isinstance(value, Tensor):
            namespace_of(value)  # raises if the value is no array of a known library
            raise TypeError(
                f"a layer of gyrobn.torch takes torch tensors, got {type(value).__name__}: convert "
                "it first, for example with torch.as_tensor"
            )
    return backend.no_autocast(x)


def recomputing() -> bool:
    """Return whether this call repeats one for the backward pass, as ``checkpoint`` does.

    The running statistics have learnt from the batch already. (torch's own layers learn twice:
    https://github.com/pytorch/pytorch/issues/96136.)
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class Constant:
    """Settings in a form that torch.compile accepts: it fails on frozen dataclasses (2.13)."""

    def __init__(self, settings: LayerSettings) -> None:
        self.settings: Any = settings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.settings == other.settings

    def __hash__(self) -> int:
        return hash(self.settings)


register_constant(Constant)


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors; the compiler gets its operations and not its Python code.

    This compiles faster, and no construct of the language can stop it. It loads torch._dynamo.
    """
    if not torch.compiler.is_dynamo_compiling():
        return function
    traced: Callable[..., Any] = torch._dynamo.nonstrict_trace(function)
    return traced


def run_forward(
    constant: Constant,
    given: dict[str, Tensor],
    rate: Any,
    training: bool,
    group: Group | None = None,
) -> tuple[Tensor, ...]:
    """Call :func:`gyrobn.normalization.layers.forward` with tensors only, for the compiler."""
    learnt = Learnt(given.get("bias"), given.get("scale"), given.get("raw_curvature"))
    running = Stats(given["mean"], given["var"]) if "mean" in given else None
    own = learnt, running, given["x"], given.get("weights")
    y, new = forward(constant.settings, *own, rate, training, group)
    return (y,) if new is None else (y, *new)
