"""Running statistics of a network whose weights were averaged or changed after training."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gyrobn.torch.layers import NormalizationLayer


@torch.no_grad()
def update_bn(
    loader: Iterable[Any],
    model: nn.Module,
    device: Any = None,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> None:
    """Compute the running statistics anew, in one pass over data.

    This is ``torch.optim.swa_utils.update_bn``, which finds only the batch normalizations of torch,
    for networks that have layers of gyrobn, too. Use it after averaging weights
    (``torch.optim.swa_utils.AveragedModel``). Every batch counts the same, and parameters,
    ``momentum`` and the mode of the network stay as they are.

    Parameters
    ----------
    loader
        Batches: tensors, or lists or tuples whose first element is the input.
    model
        The network. Its layers of torch and of gyrobn with running statistics are updated.
    device
        If given, the input is moved there.
    forward
        Calls the network, as ``forward(model, batch)``, if it takes more than the first element of
        a batch: a :class:`DomainGyroBN` needs domains. Then nothing is moved to ``device``.

    Examples
    --------
    >>> import torch
    >>> from torch.optim.swa_utils import AveragedModel
    >>> from gyrobn import PoincareBall
    >>> from gyrobn.torch import GyroBN, update_bn
    >>> M = PoincareBall(2)
    >>> averaged = AveragedModel(torch.nn.Sequential(GyroBN(M)))
    >>> update_bn([M.random(8, rng=k, like=torch.zeros(1)) for k in range(3)], averaged)
    >>> averaged.module[0].num_batches_tracked
    tensor(3)
    """
    momenta: dict[Any, float | None] = {}
    for module in model.modules():
        tracks = isinstance(module, NormalizationLayer) and module.track_running_stats
        if tracks or isinstance(module, _BatchNorm):
            momenta[module] = module.momentum  # type: ignore[assignment]
            module.reset_running_stats()  # type: ignore[operator]
    if not momenta:
        return
    was_training = model.training
    model.train()
    try:
        for layer in momenta:
            layer.momentum = None
        for batch in loader:
            if forward is not None:
                forward(model, batch)
                continue
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(x if device is None else x.to(device))
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
        model.train(was_training)
