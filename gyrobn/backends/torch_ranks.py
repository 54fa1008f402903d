"""Sums over the processes of a group on PyTorch."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from gyrobn.backends.contract import Array
from gyrobn.backends.torch_rules import Function
from gyrobn.backends.torch_values import differentiable


def all_sum(x: Array, group: Any) -> Array:
    """Return the sum over a process group; None is the group of all processes."""
    if differentiable(x):
        return _Total.apply(x, group)
    x = x.clone(memory_format=torch.contiguous_format)
    try:
        dist.all_reduce(x, group=group)
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"GyroBN cannot sum its statistics over the ranks: {_missing(group)}; {error}"
        ) from error
    return x


class _Total(Function):
    """A sum over a process group. The slopes of the ranks, which all depend on it, are summed too.

    (After an all-reduce in place, autograd would differentiate a copy.)
    """

    @staticmethod
    def forward(x: Array, group: Any) -> Array:
        return all_sum(x, group)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:
        _, ctx.group = inputs

    @staticmethod
    def backward(ctx: Any, slope: Array) -> tuple[Any, ...]:
        return all_sum(slope, ctx.group), None

    @staticmethod
    def jvp(ctx: Any, change: Array, _: None) -> Array:
        return all_sum(change, ctx.group)


def _missing(ranks: Any, seconds: float = 5.0) -> str:
    """Return words for the ranks that do not answer, from the store that connected them all."""
    own, world = dist.get_rank(), dist.get_world_size(ranks)
    try:
        store = PrefixStore("gyrobn", dist.distributed_c10d._get_default_store())
        store.set(f"alive {own}", "yes")
        gone = []
        for k in range(world):
            name = dist.get_global_rank(ranks, k)
            try:
                store.wait([f"alive {name}"], timedelta(seconds=seconds))
            except RuntimeError:
                gone.append(str(name))
                seconds = 0.1
        found = f"rank {', '.join(gone)} does not answer" if gone else "all ranks still answer"
    except (RuntimeError, dist.DistError):
        found = "rank 0, which keeps the store of the group, does not answer"
    return f"{found} (this is rank {own}, in a group of {world})"
