r"""Algorithm 1 without derivatives on models with K < 0: few passes over the samples.

It is the plain form of :meth:`ConstantCurvature.standardize`, block by block, with vectors changed
in place. Normal coordinates are not formed: with :math:`\theta` the angle of
:math:`\ominus\mu \oplus x = \lambda v`, its multiple has the ball coordinates
:math:`v\,\lambda\tanh(\tfrac t2\theta)/\sinh\theta`.
"""

import math
from typing import Any

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.numerics.arrays import square, times

NUMBERS = 2**20
"""How many numbers of samples to compute with at a time, so that temporaries stay in the cache."""


def fits(x: Array, t: Any, *points: Array) -> bool:
    """Return whether points and multipliers are one for all samples of a channel."""
    shape = tuple(x.shape)
    return all(
        len(own) < len(whole) and own == whole[len(whole) - len(own) :]
        for own, whole in (
            *((tuple(a.shape), shape) for a in points),
            (() if isinstance(t, float) else tuple(t.shape), shape[:-1]),
        )
    )


def standardized(space: Any, K: Any, x: Array, mean: Array, t: Any, bias: Array | None) -> Array:
    r"""Return :math:`\beta \oplus (t \odot (\ominus\mu \oplus x))`."""
    xp, top = namespace_of(x), 0.5 * space._reach(x)
    tiny = float(xp.finfo(x.dtype).smallest_normal)
    above_mean, p = space._ball(K, mean)
    above_bias, b = (2.0, 0.0) if bias is None else space._ball(K, bias)

    def multiples(x: Array) -> Array:
        above, q = space._ball(K, x)
        v = q - p
        n = -0.5 * K * above_mean * square(v)
        m = above * n + tiny
        sinh = xp.sqrt(m) * xp.sqrt(m + 2.0)
        half = xp.clip(0.5 * t * xp.log1p(m + sinh), min=-top, max=top)
        ratio, above = above * xp.tanh(half) / sinh, 2.0 * xp.cosh(half) ** 2
        v *= ratio[..., None]
        v -= times(ratio * n, p)
        if bias is None:
            return space._drop(K, above - 2.0, above, v)
        v += b
        n = -0.5 * K * above_bias * square(v)
        v += times(n, b)
        return space._drop(K, above * n, above, v)

    rows = max(1, NUMBERS * x.shape[0] // max(1, math.prod(x.shape)))
    if rows >= x.shape[0] or str(device_of(x)) != "cpu" or backend_of(x).traced(x):
        return multiples(x)
    y = xp.empty_like(x)
    for i in range(0, x.shape[0], rows):
        y[i : i + rows, ...] = multiples(x[i : i + rows, ...])
    return y
