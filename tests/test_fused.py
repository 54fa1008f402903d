"""Algorithm 1 without derivatives takes few passes over the samples: it equals the plain form."""

import numpy as np
import pytest
import torch

from gyrobn import Hyperboloid, Klein, PoincareBall, ProperVelocity, Stereographic
from gyrobn.manifolds import fused

MODELS = [
    PoincareBall(3, -2.0),
    Stereographic(2, -0.3),
    Hyperboloid(3, -0.5),
    Klein(2),
    ProperVelocity(2),
]


@pytest.mark.parametrize("M", MODELS, ids=repr)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("channels", [(), (2,)], ids=str)
@pytest.mark.parametrize("count", [7, 3_000])
def test_both_forms(M, dtype, channels, count, monkeypatch):
    """Torch takes the plain form where a derivative may be asked for."""
    monkeypatch.setattr(fused, "NUMBERS", 2**10)  # several blocks
    like = torch.zeros((), dtype=getattr(torch, dtype))
    x = M.random(count, *channels, rng=0, like=like, spread=0.7)
    eps = torch.finfo(like.dtype).eps
    mean, bias = (M.random(*channels, rng=rng, like=like, spread=0.7) for rng in (1, 2))
    x[0], x[1] = mean, bias
    for target, t in ((bias, 0.7), (None, -1.5), (bias, like + 2.0)):
        plain = M.standardize(x.clone().requires_grad_(), mean, t, target).detach()
        numbers = t if isinstance(t, float) else t.numpy()
        given = None if target is None else target.numpy()
        in_numpy = M.standardize(x.numpy(), mean.numpy(), numbers, given)
        assert np.isfinite(in_numpy).all()
        for y in (M.standardize(x, mean, t, target), torch.as_tensor(in_numpy)):
            angle = abs(M.curvature) ** 0.5 * max(1.0, abs(float(t))) * M.dist(mean, x)
            limit = M.resolution(plain) + M.resolution(x) + eps * angle.cosh()
            assert float((M.dist(y, plain) / limit).max()) < 40.0
