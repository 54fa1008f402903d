"""Choices for LNN that the paper leaves open, beside those of the main table."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.experiments.layers import LorentzLinear


class ChordDecoder(nn.Module):
    r"""Probability of an edge from the squared chord :math:`-2 - 2\langle x, y\rangle_L`.

    HCNN takes it for a squared distance.
    """

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the probabilities of pairs of points."""
        gap = x - y
        chord = (gap[..., 1:] ** 2).sum(-1) - gap[..., 0] ** 2
        return torch.sigmoid(2.0 - chord.clamp(max=50.0))


def nothing(net: nn.Module, decoder: nn.Module) -> nn.Module:
    """Change nothing."""
    return decoder


def chord(net: nn.Module, decoder: nn.Module) -> nn.Module:
    """Decode by the chord."""
    return ChordDecoder()


def chen(net: nn.Module, decoder: nn.Module) -> nn.Module:
    """Start as Chen et al. do: weights within 1/√rows, those of the time zero."""
    for layer in _layers(net):
        bound = len(layer.weight) ** -0.5
        with torch.no_grad():
            layer.weight.uniform_(-bound, bound)[:, 0] = 0.0
    return decoder


def drop(net: nn.Module, decoder: nn.Module) -> nn.Module:
    """Drop a fifth of each layer's inputs in training."""
    for layer in _layers(net):
        layer.drop = 0.2
    return decoder


def learn(net: nn.Module, decoder: nn.Module) -> nn.Module:
    """Learn the largest length of the spatial part of each layer."""
    for layer in _layers(net):
        layer.log_reach = nn.Parameter(layer.weight.new_tensor(math.log(10.0)))
    return decoder


def _layers(net: nn.Module) -> list[LorentzLinear]:
    return [layer for layer in net.modules() if isinstance(layer, LorentzLinear)]


class Variant(NamedTuple):
    """What differs from the main table."""

    change: Callable[[nn.Module, nn.Module], nn.Module] = nothing
    """Change the network, and return the decoder."""
    decay: float = 1e-3
    longest: float = 15.0
    """Length to which longer features are shortened."""


VARIANTS = {
    "Chen's initialisation": Variant(chen),
    "chord in the decoder": Variant(chord),
    "dropout": Variant(drop),
    "learnt λ": Variant(learn),
    "no weight decay": Variant(decay=0.0),
    "features at most 1 long": Variant(longest=1.0),
}
