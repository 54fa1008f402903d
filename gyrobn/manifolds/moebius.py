r"""Möbius operations in closed form, with their first derivatives, where K < 0.

In the ball, with :math:`\delta = y - x` or :math:`\delta = x + y` and :math:`m = -1/K - \|x\|^2`,

.. math:: \ominus x \oplus y \propto \delta - n x, \qquad
          x \oplus y = \frac{\delta + n x}{n + 1 + K\|y\|^2}, \qquad n = \|\delta\|^2/m ,

so each slope is a combination of the slope that comes in, of δ and of the points.
"""

from typing import Any

from gyrobn.backends import Array, State, backend_of, dot, namespace_of
from gyrobn.manifolds.centred_vectors import CentredVectors
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.radial import Kept, Slopes, half_turn, held, is_constant, size_of, spread
from gyrobn.numerics.arrays import unit
from gyrobn.numerics.scalar import times

__all__ = ["CentredInBall", "carried", "exponential", "seen_multiple"]


def exponential(K: Any, c: Array) -> Array:
    r"""Return :math:`\operatorname{Exp}_e(c)`, held inside the ball."""

    def exact(c: Array, K: Any) -> State:
        return primal(c, K)[0]

    def primal(c: Array, K: Any) -> Kept:
        large, part = unit(c, least=1.0)
        w, stretch = half_turn(K, 0.5 * large, part)
        return (Combination(stretch, part).value(),), (w, stretch / large, part)

    def cotangent(inputs: Any, kept: State, slope: Array) -> Slopes:
        (c, K), (w, stretch, part) = inputs, kept
        more = 0.5 * w - stretch
        along = times(abs(K), more * dot(slope, part)) / size_of(K, part) ** 2
        return (
            lambda: Combination(stretch, slope).plus(along, part).value(),
            lambda: more * dot(slope, c) / (2.0 * K),
        )

    (y,) = backend_of(c).shortcut(exact, primal, cotangent, c, spread(K, tuple(c.shape[:-1])))
    return y


def carried(space: Any, K: Any, factor: Any, c: Array, bias: Array) -> Array:
    r"""Return :math:`\beta \oplus \operatorname{Exp}_e(t c)`."""
    batch = tuple(c.shape[:-1])

    def exact(c: Array, factor: Any, bias: Array, K: Any) -> State:
        return primal(c, factor, bias, K)[0]

    def primal(c: Array, factor: Any, bias: Array, K: Any) -> Kept:
        w, stretch = half_turn(K, times(0.5, factor), c)
        y, kept = space._moved_with(namespace_of(c), K, bias, Combination(stretch, c), w)
        return (y,), (w, stretch, *kept)

    def cotangent(inputs: Any, kept: State, slope: Array) -> Slopes:
        (c, factor, bias, K), (w, stretch, room, n, least) = inputs, kept
        xp, t, square = namespace_of(c), times(0.5, factor), size_of(K, c) ** 2
        scale = 1.0 / (n + least)
        gap = Combination(1.0, bias).plus(stretch, c).value()
        by_gap, by_bias = scale * dot(slope, gap), scale * dot(slope, bias)
        by_w = xp.where(w >= least, -scale * (by_gap + n * by_bias), 0.0)
        by_n = scale * (least * by_bias - by_gap) / room
        part = Combination(scale, slope).plus(2.0 * by_n, gap).value()
        by_stretch = dot(part, c)
        by_t = w * (by_stretch - 2.0 * square * stretch * by_w)
        more = t * by_t - stretch * by_stretch

        def all_by_bias() -> Array:
            each = Combination(n * scale, slope).plus(2.0 * n * by_n, bias).plus(1.0, part)
            return xp.sum(each.value(), axis=tuple(range(c.ndim - bias.ndim)))

        return (
            lambda: Combination(stretch, part).plus(times(abs(K), more) / square, c).value(),
            lambda: 0.5 * by_t,
            all_by_bias,
            lambda: more / (2.0 * K) - n * by_n / (K * K),
        )

    if is_constant(-1, K, factor, bias, c):
        return exact(c, factor, bias, K)[0]
    if c.shape[c.ndim - bias.ndim :] != bias.shape:
        bias = namespace_of(c).broadcast_to(bias, c.shape)
    given = c, spread(factor, batch), bias, spread(K, batch)
    (y,) = backend_of(c).shortcut(exact, primal, cotangent, *given)
    return y


def seen_multiple(
    xp: Any, K: Any, mean: Array, x: Array, room: Array, factor: Any
) -> tuple[Array, Combination]:
    r"""Return :math:`t \odot (\ominus\mu \oplus x) = v\tanh(\tfrac t2\theta)/\sqrt{-K}\|v\|`.

    And :math:`\cosh^{-2}(\tfrac t2\theta)` before it. ``room`` is :math:`-w/K` with
    :math:`w = 1 + K\|x\|^2`. The length of v takes no pass over v: with :math:`\delta = x - \mu`
    and :math:`m = \|\delta\|^2/(\|\mu\|^2 + 1/K) = -n`,

    .. math:: v = \delta + m\mu, \qquad \sqrt{-K}\|v\| = \sqrt{m(m - w)} =: r, \qquad
              e^\theta = 1 + \tfrac2w(r - m) .
    """
    info, gap = xp.finfo(x.dtype), x - mean
    m = dot(gap, gap) / xp.clip(dot(mean, mean) + 1.0 / K, max=float(info.eps) / K)
    v = Combination(1.0, gap, temporary=True).plus(m, mean).value()
    m = m - float(info.smallest_normal)  # so that quotients of lengths are their limit at 0
    size = xp.sqrt(m * (m - times(-K, room)))
    angle = xp.log1p(times(-2.0 / K, (size - m) / room))
    angle = held(times(0.5, factor) * angle, 2.0)
    return xp.cosh(angle) ** -2.0, Combination(xp.tanh(angle) / size, v, temporary=True)


class CentredInBall(CentredVectors):
    """Points of the ball as they are seen from the mean."""

    def slope_by_samples(self, slope: Array) -> Array:
        r"""Return the slope by the samples, from that by their normal coordinates, the mean held.

        With :math:`v = \delta - n\mu` and :math:`s = \lambda_x v`, the coordinates are
        :math:`c = v\,\theta/\sqrt{-K}\|v\|`, :math:`\sinh\theta = \sqrt{-K}\|s\|`.
        """
        space, mean, x, c = self.space, self.mean, self.x, self.normal
        xp, K = namespace_of(x), space._parameter("curvature", x)
        (a,) = space._known(xp, K, x)
        gap, room = x - mean, space._room(xp, K, mean)
        # by θ alone: of samples at the mean, n and v would be rounding
        angle, along = size_of(K, c), dot(slope, c)
        rate, per_sine = 1.0 / xp.cosh(angle), angle / xp.sinh(angle)
        stretch = a * per_sine
        more = times(abs(K), a * (rate - per_sine)) * along / (angle * angle)
        by_v = Combination(stretch, slope).plus(more, c).value()
        inside = xp.astype(a < 2.0 / float(xp.finfo(x.dtype).eps), x.dtype)
        by_a = inside * along * rate / per_sine
        by_gap = Combination(-2.0 * dot(by_v, mean) / room, gap)
        return by_gap.plus(times(-K, a * by_a), x).plus(1.0, by_v).value()
