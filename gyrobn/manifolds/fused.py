r"""Algorithm 1 without derivatives on models with K < 0: few passes over the samples.

It is the plain form of :meth:`ConstantCurvature.standardize`, block by block, with vectors changed
in place. Normal coordinates are not formed: with :math:`\theta` the angle of
:math:`\ominus\mu \oplus x = \lambda v`, its multiple has the ball coordinates
:math:`v\,\lambda\tanh(\tfrac t2\theta)/\sinh\theta`.
"""

import math
from typing import Any

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.numerics.arrays import square, times, tiny_of

NUMBERS = 2**17
"""How many numbers of samples to compute with at a time, so that temporaries stay in the cache."""


def fits(x: Array, t: Any, *points: Array) -> bool:
    """Return whether points and multipliers are one for all samples of a channel."""
    shape = tuple(x.shape)
    multiplier = *getattr(t, "shape", ()), shape[-1]
    shapes = multiplier, *(tuple(point.shape) for point in points)
    return all(len(own) < len(shape) and own == shape[-len(own) :] for own in shapes)


def standardized(space: Any, x: Array, mean: Any, t: Any, bias: Any) -> Array:
    r"""Return :math:`\beta \oplus (t \odot (\ominus\mu \oplus x))`, given K, λ and p of μ and β."""
    xp, top = namespace_of(x), 0.5 * space._reach(x)
    tiny = tiny_of(x)
    (K, above_mean, p), (_, above_bias, b) = mean, bias or (None, 2.0, 0.0)

    def part(x: Array) -> Array:
        _, above, q = space._ball(x)
        v = q - p
        n = (-0.5 * K * above_mean) * square(v)
        m = above * n + tiny
        sinh = xp.sqrt(m) * xp.sqrt(m + 2.0)
        half = xp.clip(0.5 * t * xp.log1p(m + sinh), min=-top, max=top)
        ratio, above = above * xp.tanh(half) / sinh, 2.0 * xp.cosh(half) ** 2
        v *= ratio[..., None]
        v -= times(ratio * n, p)
        v += b
        n = (-0.5 * K * above_bias) * square(v)
        v += n[..., None] * b
        return space._drop(K, 2.0 + above * n, above, v)

    rows = NUMBERS // max(1, math.prod(x.shape[1:])) + 1
    if rows >= x.shape[0] or str(device_of(x)) != "cpu" or backend_of(x).traced(x):
        return part(x)
    y = xp.empty_like(x)
    for i in range(0, x.shape[0], rows):
        y[i : i + rows] = part(x[i : i + rows])
    return y
