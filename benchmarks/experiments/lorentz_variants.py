"""Choices for LNN that the paper leaves open, beside those of the main table."""

import torch
from torch import Tensor, nn

from gyrobn.torch.nn import LorentzLinear


class ChordDecoder(nn.Module):
    r"""Probability of an edge from the squared chord :math:`-2 - 2\langle x, y\rangle_L`.

    HCNN takes it for a squared distance.
    """

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the probabilities of pairs of points."""
        gap = x - y
        chord = (gap[..., 1:] ** 2).sum(-1) - gap[..., 0] ** 2
        return torch.sigmoid(2.0 - chord.clamp(max=50.0))


def chord(net: nn.Module, decoder: nn.Module) -> nn.Module:
    """Decode by the chord."""
    return ChordDecoder()


def chen(net: nn.Module, decoder: nn.Module) -> nn.Module:
    """Start as Chen et al. do: weights within 1/√rows, those of the time zero."""
    for layer in net.modules():
        if isinstance(layer, LorentzLinear):
            bound = len(layer.weight) ** -0.5
            with torch.no_grad():
                layer.weight.uniform_(-bound, bound)[:, 0] = 0.0
    return decoder


def drop(net: nn.Module, decoder: nn.Module) -> nn.Module:
    """Drop a fifth of each layer's inputs in training."""
    for layer in net.modules():
        if isinstance(layer, LorentzLinear):
            layer.drop = 0.2
    return decoder


VARIANTS = {"Chen's initialisation": chen, "chord in the decoder": chord, "dropout": drop}
