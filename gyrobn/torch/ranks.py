"""Process groups of torch.distributed, and how their ranks agree on an error."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gyrobn.statistics.samples import Group

WORLD = "world"
"""All processes, whenever they are asked for: a layer may be built before they are connected."""


def group_of(process_group: Any, like: Tensor) -> Group | None:
    """Return the ranks to sum over; None for a single process, as ``nn.SyncBatchNorm`` does it."""
    if process_group is None or not dist.is_available() or not dist.is_initialized():
        return None
    ranks: Any = dist.group.WORLD if process_group == WORLD else process_group
    if dist.get_world_size(ranks) == 1:
        return None

    def agree(error: Exception | None) -> None:
        own = dist.get_rank()  # errors name a rank by its number among all processes
        flags = torch.zeros(dist.get_world_size(ranks), device=like.device)
        flags[dist.get_rank(ranks)] = float(error is not None)
        dist.all_reduce(flags, group=ranks)
        bad = [k for k, flag in enumerate(flags.tolist()) if flag]
        if error is not None:
            raise type(error)(f"on rank {own}: {error}") from error
        if bad:
            names = ", ".join(str(dist.get_global_rank(ranks, k)) for k in bad)
            raise RuntimeError(
                f"GyroBN has no statistics of this batch, because of rank{'s' * (len(bad) > 1)} "
                f"{names}: see the error there (this is rank {own})"
            )

    return Group(ranks, agree)
