"""Samples of constant curvature as they are seen from a mean, and the Hessian there."""

from functools import cached_property
from typing import Any

from gyrobn.backends import Array, dot, namespace_of
from gyrobn.manifolds import radial
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.combination import Combination
from gyrobn.numerics.arrays import Totals, samples_last, scalars_like, weighted_sum
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import kept_eye
from gyrobn.numerics.scalar import bend, cotangent, times


def curving(space: Any, c: Array) -> tuple[Array, Array]:
    r"""Return h and :math:`(1-h)/\|c\|^2` of the Hessian for each sample."""
    xp = namespace_of(c)
    K = space._parameter("curvature", c)
    if radial.is_constant(space.sign, K, c):
        angle = radial.size_of(K, c)
        h = angle / (xp.tanh(angle) if space.sign == -1 else xp.tan(angle))
        h = h if space.sign == -1 else xp.clip(h, min=-1e3)
        return h, times(abs(K), 1.0 - h) / (angle * angle)
    square = dot(c, c)
    u = 0.0 * square if space.sign == 0 else times(K, square)
    h = cotangent(u, space.sign)
    if space.sign != -1:
        # a·cot a falls to −∞ towards π; a floor keeps one far sample from deciding the sum
        h = xp.clip(h, min=-1e3)
    return h, times(K, bend(u, h))


def centroid(space: Any, x: Array, weights: Array, total: Totals) -> Array:
    """Return the centroid in the ambient space, put back on the quadric."""
    xp, K = space._given(x)
    t, a, v = space._lift(xp, K, x)
    t, s = total(weighted_sum(weights, t), weighted_sum(weights * a, v))
    eps = float(xp.finfo(x.dtype).eps)
    square = t * t + radial.square_of(space.sign, K, s)
    good = square > 0  # not so if rounding hides it, far out, or if samples are no points
    size = xp.sqrt(xp.where(good, square, 1.0))
    t = xp.where(good, t / size, 1.0)
    if space.sign == -1:
        scaled = Combination(xp.astype(good, x.dtype) / size, s)
    else:
        s = xp.where(good[..., None], s / size[..., None], 0.0)
        # no translation leads to the point opposite to e: start beside it
        nudge = eps**0.5 * xp.astype(1.0 + t < 4.0 * eps, x.dtype)
        scaled = Combination(1.0, s + nudge[..., None] / space.n**0.5)
    return space._drop(xp, K, t, scaled)


def mean_hessian(space: Any, c: Array, weights: Array, h: Array, per_square: Array) -> Hessian:
    """Return the mean Hessian from what :func:`curving` returns."""
    xp = namespace_of(c)
    mean, rank_one = weighted_sum(weights, h), weights * per_square
    rows = samples_last(c, 1)
    columns = xp.matrix_transpose(rows * samples_last(rank_one)[..., None])

    def apply(v: Array) -> Array:
        return mean[..., None, None] * v + xp.matmul(columns, xp.matmul(rows, v))

    def matrix() -> Array:
        return mean[..., None, None] * kept_eye(c) + xp.matmul(columns, rows)

    return Hessian(
        apply,
        lambda: xp.clip(mean, max=1.0),
        lambda: xp.clip(mean, min=1.0),
        matrix=matrix,
        at_least_one=space.sign == -1,
        differentiable=True,
    )


class CentredVectors(Centred):
    """Points as they are seen from the mean, in normal coordinates."""

    @cached_property
    def normal(self) -> Array:
        """Their normal coordinates, shape (N, *channels, n)."""
        return self.space.relative_normal(self.mean, self.x, self.known)

    def slope_by_step(self, slope: Array) -> Array:
        r"""Return the slope by a step δ of the mean, from those by the normal coordinates.

        A step changes them as the Hessian has it, and turns them, since
        :math:`\ominus(\mu \oplus \varepsilon) \oplus x = \operatorname{gyr}[\mu,
        \varepsilon](\ominus\varepsilon \oplus (\ominus\mu \oplus x))`. With p the ball
        coordinates of the mean,

        .. math:: dc = -H_c\,\delta + K\bigl(\langle p, c\rangle\,\delta
                  - \langle\delta, c\rangle\,p\bigr) .
        """
        space, c = self.space, self.normal
        xp = namespace_of(c)
        K = space._parameter("curvature", c)
        h, per_square = self._curving
        p = space._ball_point(xp, K, self.mean)
        across = times(K, dot(c, p)) - h
        along = per_square * dot(c, slope) + times(K, dot(slope, p))
        return weighted_sum(across, slope) - weighted_sum(along, c)

    @cached_property
    def _curving(self) -> tuple[Array, Array]:
        return curving(self.space, self.normal)

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian."""
        return mean_hessian(self.space, self.normal, weights, *self._curving)

    def shift(self, step: Array) -> Array:
        """Return the mean after a step; in one combination if no rounding leads off the model."""
        if self.space.drifts:
            return super().shift(step)
        return self.space._carried(step, 1.0, self.mean)

    def standardize(self, factor: Array, bias: Array | None) -> Array:
        r"""Scale and bias, in one combination :math:`a_i c_i + b_i \beta`."""
        return self.space._carried(self.normal, scalars_like(factor, self.normal), bias)
