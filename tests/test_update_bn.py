"""``gyrobn.torch.update_bn`` has the habits of torch's, for layers of gyrobn and of torch."""

import copy

import pytest
import torch
from conftest import GEOMETRIES
from torch import nn
from torch.optim import swa_utils

from gyrobn import Euclidean, PoincareBall, Stats, batch_stats, update_stats
from gyrobn.torch import DomainGyroBN, GyroBN, GyroInstanceNorm, GyroLayerNorm, update_bn
from gyrobn.torch.baselines import LRBN

DOUBLE = torch.zeros((), dtype=torch.float64)


def batches(M, *shape, count=3):
    spread = min(0.4, 0.3 * M.convexity_radius)
    return [M.random(*shape, rng=k, like=DOUBLE, spread=spread) for k in range(count)]


def average(M, found):
    """The statistics of several batches, each with the same weight."""
    total = found[0]
    for k, stats in enumerate(found[1:], start=2):
        total = update_stats(M, total, stats, 1.0 / k)
    return total


def close(layer, stats, k=()):
    # a point of a Grassmannian may be given by another basis
    assert float(layer.manifold.dist(layer.running_mean[k], stats.mean).max()) < 1e-9
    torch.testing.assert_close(layer.running_var[k], stats.var, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_statistics_are_those_of_the_loader(M):
    """Old ones do not count; momentum, mode and parameters stay."""
    layer = GyroBN(M, dtype=torch.float64, momentum=0.3)
    net = swa_utils.AveragedModel(nn.Sequential(layer)).eval()
    layer = net.module[0]
    layer.running_var.fill_(9.0)
    data = batches(M, 6)
    parameters = copy.deepcopy(list(net.parameters()))
    update_bn(((x, "label") for x in data), net)
    close(layer, average(M, [batch_stats(M, x) for x in data]))
    assert (layer.momentum, net.training, layer.training) == (0.3, False, False)
    assert int(layer.num_batches_tracked) == len(data)
    assert all(map(torch.equal, parameters, net.parameters()))
    assert layer(data[0]).grad_fn is not None  # outside of update_bn, gradients are as before


def test_torch_layers_in_the_same_network():
    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), GyroBN(Euclidean(4)))

    net, other = made(), made()
    data = [torch.randn(8, 3) for _ in range(3)]
    update_bn(data, net)
    swa_utils.update_bn(data, other)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(net[1], name), getattr(other[1], name))
    assert net.training
    assert not torch.equal(net[2].running_var, other[2].running_var)  # torch skips it


def test_momentum_of_each_layer():
    M = PoincareBall(2)
    net = nn.Sequential(GyroBN(M, momentum=0.2), GyroBN(M, momentum=None), LRBN(M, momentum=0.5))
    net.double()
    update_bn(batches(M, 6), net)
    assert [layer.momentum for layer in net] == [0.2, None, 0.5]
    assert [int(layer.num_batches_tracked) for layer in net] == [3, 3, 3]


def test_instances():
    M = PoincareBall(2)
    layer = GyroInstanceNorm(M, 2, track_running_stats=True, dtype=torch.float64)
    same = copy.deepcopy(layer)
    same.momentum = None
    data = batches(M, 5, 2, 4)
    layer(data[2])
    update_bn(data, layer)
    for x in data:
        same(x)
    close(layer, Stats(same.running_mean, same.running_var))


def test_nothing_to_update():
    """As in torch, the network is not called then; nor is a mode changed."""
    M = PoincareBall(2)

    def data():
        raise AssertionError("not to be read")
        yield

    for layer in (nn.Linear(2, 2), GyroLayerNorm(M), GyroBN(M, track_running_stats=False)):
        update_bn(data(), layer)


@pytest.mark.parametrize("momentum", [None, 0.5])
def test_domains(momentum):
    M = PoincareBall(2)
    layer = DomainGyroBN(M, 3, dtype=torch.float64, train_momentum=momentum)
    net = nn.ModuleDict({"norm": layer})
    data, domains = batches(M, 8), torch.arange(8) % 2
    layer(data[2], torch.full((8,), 2))  # a domain that the loader does not have is forgotten
    update_bn([(x, domains) for x in data], net, forward=lambda net, batch: net["norm"](*batch))
    assert layer.num_batches_tracked.tolist() == [3, 3, 0]
    for k in range(2):
        close(layer, average(M, [batch_stats(M, x[domains == k]) for x in data]), k)
    assert not layer.running_mean[2].any()
    if momentum is not None:
        assert not layer.training_mean[2].any()
        assert bool(layer.training_mean[:2].any())


def test_an_error_leaves_momentum_and_mode():
    M = PoincareBall(2)
    layer = GyroBN(M, momentum=0.2).eval()
    with pytest.raises(ValueError, match="expects input of shape"):
        update_bn([torch.zeros(4, 3)], layer)
    assert (layer.momentum, layer.training) == (0.2, False)


def test_domains_made_without_memory():
    """``reset_parameters`` fills every buffer."""
    M = PoincareBall(2)
    layer = DomainGyroBN(M, 3, train_momentum=0.1, device="meta").to_empty(device="cpu")
    for buffer in layer.buffers():
        buffer.fill_(7)
    layer.reset_parameters()
    fresh = DomainGyroBN(M, 3, train_momentum=0.1)
    torch.testing.assert_close(layer.state_dict(), fresh.state_dict(), rtol=0.0, atol=0.0)
