"""torch.compile and autocast helpers of the layers."""

from typing import Any

from torch import Tensor

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


class Constant:
    """Settings in a form that torch.compile accepts: it fails on frozen dataclasses (2.13)."""

    def __init__(self, settings: LayerSettings) -> None:
        self.settings: Any = settings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.settings == other.settings

    def __hash__(self) -> int:
        return hash(self.settings)


backend.register_constant(Constant)


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
