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
        xp = namespace_of(c)
        w, stretch = half_turn(K, times(0.5, factor), c)
        least = xp.clip(w, min=held_width(c))
        y, kept = space._moved_with(xp, K, bias, Combination(stretch, c), least)
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


def held_width(like: Array) -> float:
    r"""Return :math:`w = 1 + K\|x\|^2` of points that are held inside the ball.

    If w were smaller, rounding a sum with such a point could lead out of the ball.
    """
    return 16.0 * float(namespace_of(like).finfo(like.dtype).eps)


def standardized(K: Any, x: Array, mean: Array, factor: Any, bias: Array) -> Array:
    r"""Return :math:`\beta \oplus (t \odot (\ominus\mu \oplus x))` of constants.

    Arrays of the size of the samples are read and written as few times as possible. The scalars per
    sample are computed in between.
    """
    shim, gap = backend_of(x), x - mean
    with shim.few(K, mean, dot(gap, gap)) as (K_, mean_, apart):
        xp = namespace_of(apart)
        m = apart / xp.clip(dot(mean_, mean_) + 1.0 / K_, max=float(xp.finfo(apart.dtype).eps) / K_)
    (m,) = shim.from_few((m,))
    v = Combination(1.0, gap, temporary=True).plus(m, mean).value()
    with shim.few(K, factor, bias, dot(x, x), m, dot(v, v)) as given:
        numbers = _multiple(*given)
    stretch, w, room = shim.from_few(numbers)
    hidden = shim.hides_values(x)
    y = Combination(stretch, v, temporary=not hidden).onto(bias).value()
    with shim.few(dot(y, y), w, room) as (square, w, room):
        n, xp = square / room, namespace_of(square)
        total = n + xp.maximum(w, 8.0 * float(xp.finfo(n.dtype).eps) * n)
        numbers = n, xp.reciprocal(total)
    n, ratio = shim.from_few(numbers)
    if hidden:  # to read the terms again costs a compiled program less than to write their sum
        return Combination(stretch, v).plus(1.0 + n, bias).times(ratio).value()
    y = shim.add_product(y, n, bias, y)
    y *= ratio[..., None]
    return y


def _multiple(K: Any, factor: Any, bias: Array, square: Array, m: Array, long: Array) -> State:
    r"""Return what combines x, μ and β, from :math:`\|x\|^2` and :math:`\|v\|^2`.

    With :math:`w = 1 + K\|x\|^2` and :math:`m = \|x - \mu\|^2/(\|\mu\|^2 + 1/K)`,

    .. math:: v = x - \mu + m\mu \propto \ominus\mu \oplus x, \qquad
              e^\theta = 1 + \tfrac2w(r - m), \qquad r = \sqrt{-K}\|v\| .

    Returned are :math:`\tanh(\tfrac t2\theta)/r`, which times v is
    :math:`t \odot (\ominus\mu \oplus x)`; :math:`\cosh^{-2}(\tfrac t2\theta)`; and the room of β.
    """
    xp = namespace_of(square)
    info = xp.finfo(square.dtype)
    eps, tiny = float(info.eps), float(info.smallest_normal)
    w = xp.clip(times(K, square) + 1.0, min=eps)
    size = xp.sqrt(times(-K, long) + tiny)  # so that quotients of lengths are their limit at 0
    angle = held(times(0.5, factor) * xp.log1p(2.0 * ((size - m) / w)), 2.0)
    room = xp.clip(-1.0 / K - dot(bias, bias), min=-eps / K)
    most = 1.0 - 8.0 * eps
    stretch = xp.clip(xp.tanh(angle), min=-most, max=most) / size
    return stretch, xp.clip(xp.cosh(angle) ** -2.0, min=held_width(square)), room


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
