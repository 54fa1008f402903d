"""torch.utils.checkpoint calls a layer twice for a batch, which counts once."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gyrobn import SPD, PoincareBall
from gyrobn.torch import DomainGyroBN, GyroBN

LIKE = torch.zeros((), dtype=torch.float64)
DOMAINS = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 1, 0])


def trained(layer, given, reentrant=None):
    """Train on three batches; return the gradients of the last."""
    for k in range(3):
        x = layer.manifold.random(10, like=LIKE, rng=k).requires_grad_()
        if reentrant is None:
            y = layer(x, *given)
        else:
            y = checkpoint(layer, x, *given, use_reentrant=reentrant)
        layer.zero_grad()
        (y**3).sum().backward()
    return [x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("M", [PoincareBall(2), SPD(2)], ids=repr)
@pytest.mark.parametrize("domains", [False, True])
def test_a_batch_counts_once(M, momentum, reentrant, domains):
    options = {"momentum": momentum, "dtype": torch.float64}
    plain = DomainGyroBN(M, 2, **options) if domains else GyroBN(M, **options)
    again, given = copy.deepcopy(plain), (DOMAINS,) if domains else ()
    expected, found = trained(plain, given), trained(again, given, reentrant)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert again.num_batches_tracked.tolist() == ([3, 3] if domains else 3)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=1e-13)


def test_statistics_that_are_gone_are_not_made_up():
    layer = DomainGyroBN(PoincareBall(2), 2, train_momentum=0.5, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="leave the layer out of the checkpoint"):
        trained(layer, (DOMAINS,), reentrant=False)
