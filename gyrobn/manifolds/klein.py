"""The Beltrami–Klein model: hyperbolic space as a ball with straight geodesics."""

from dataclasses import dataclass
from typing import Any

from gyrobn.backends import Array, State, backend_of, dot
from gyrobn.manifolds.ball import Ball
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.constant_curvature import Lifted
from gyrobn.manifolds.hyperbolic import Hyperbolic, size_or_one
from gyrobn.manifolds.radial import is_constant, root
from gyrobn.numerics.scalar import times


@dataclass(frozen=True)
class Klein(Hyperbolic, Ball):
    r"""The Beltrami–Klein ball :math:`\{x : \|x\|^2 < -1/K\}`, K < 0, with Einstein addition.

    The metric is :math:`\frac{\langle v, w\rangle}{1 + K\|x\|^2}
    - \frac{K\langle x, v\rangle\langle x, w\rangle}{(1 + K\|x\|^2)^2}`. A point lifts to

    .. math:: t = \gamma_x = \frac1{\sqrt{1 + K\|x\|^2}}, \qquad s = \gamma_x x .

    Rounding of a coordinate limits the distance from the identity to 18 in float64, half of that
    in the Poincaré ball.

    Parameters
    ----------
    n
        Dimension of the ball.
    curvature
        Sectional curvature K < 0; the radius of the ball is :math:`1/\sqrt{-K}`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([0.5, 0.0])
    >>> Klein(2).add(x, x)  # velocities add as in relativity
    array([0.8, 0. ])
    """

    def _lift(self, xp: Any, K: Any, x: Array) -> Lifted:
        w = xp.clip(1.0 - times(-K, dot(x, x)), min=xp.finfo(x.dtype).eps)
        t = w**-0.5
        return t, t, x

    def _drop(self, xp: Any, K: Any, t: Array, s: Combination) -> Array:
        # s/t, from s alone: at distance R a last digit of t would cost e^{2R} digits of s/t.
        # Points whose length would round to the radius are held inside the ball. Of t only the size
        # matters: where the square of s might overflow, s is divided by t first
        large = size_or_one(t)
        vector, least = s.over(large).value(), 1.0 / large
        room = 4.0 * float(xp.finfo(t.dtype).eps) ** 0.5
        if is_constant(self.sign, K, vector):
            size = times(root(xp, K), backend_of(vector).norm(vector))
            return vector / xp.hypot(size, xp.maximum(room * size, least))[..., None]
        square = times(-K, dot(vector, vector))
        rest = xp.maximum(room * room * square, least * least)
        return vector / xp.sqrt(square + rest)[..., None]

    def _chord(self, K: Any, x: Lifted, y: Lifted) -> tuple[Any, Array]:
        (t_x, _, v_x), (t_y, _, v_y) = x, y
        gap = Combination(t_y / (1.0 + t_y), v_y).plus(-t_x / (1.0 + t_x), v_x).value()
        return (1.0 + t_x) * (1.0 + t_y), gap

    def _known(self, xp: Any, K: Any, y: Array) -> State:
        t, _, _ = self._lift(xp, K, y)
        above = 1.0 + t
        return above, t / above

    def _seen(self, xp: Any, K: Any, x: Array, y: Array, known: State) -> Lifted:
        r"""With :math:`\delta = p_y - p_x`: :math:`s = (1+t_y)(\delta + \|\delta\|^2 h)`,
        :math:`h = \tfrac K2 s_x`, and :math:`t - 1 = (1+t_y)\|\delta\|^2 h_t`, :math:`h_t =
        -\tfrac K2(1+t_x)`.
        """
        above, part = known
        t, _, _ = self._lift(xp, K, x)
        half = 0.5 * K * t
        h, h_t = half[..., None] * x, -0.5 * K - half
        gap = Combination(1.0, h / h_t[..., None]).plus(part, y).value()
        square = dot(gap, gap)
        return square * h_t, above, Combination(1.0, gap, temporary=True).plus(square, h).value()

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring floating-point numbers at x, in the radial direction."""
        xp, K = self._given(x)
        t, _, _ = self._lift(xp, K, x)
        return xp.finfo(x.dtype).eps * t * t * xp.sqrt(dot(x, x))

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: :math:`c/t`, along x once more divided by t.

        .. math:: v = \frac1t\Bigl(c + \frac{Kt}{1+t}\langle x, c\rangle\,x\Bigr)
        """
        xp, K = self._given(x)
        t, _, _ = self._lift(xp, K, x)
        return Combination(1.0 / t, c).plus(K / (1.0 + t) * dot(x, c), x).value()

    def pull(self, x: Array, v: Array) -> Array:
        r"""Transport to the identity: :math:`tv`, along x once more times t.

        .. math:: c = t\Bigl(v - \frac{Kt^2}{1+t}\langle x, v\rangle\,x\Bigr)
        """
        xp, K = self._given(x, v)
        t, _, _ = self._lift(xp, K, x)
        return Combination(t, v).plus(-K * t**3 / (1.0 + t) * dot(x, v), x).value()
