"""What the models of hyperbolic space share, and those of them that contain the spatial part."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, State, backend_of, dot, namespace_of
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.constant_curvature import ConstantCurvature, Lifted
from gyrobn.numerics.arrays import unit


@dataclass(frozen=True)
class Hyperbolic(ConstantCurvature):
    """The models whose curvature is negative."""

    required_sign: ClassVar[int | None] = -1

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the plane, and a space of another curvature."""
        return cls(2), cls(3, -0.5)


@dataclass(frozen=True)
class Sheet(Hyperbolic):
    """The models whose points contain the spatial part s itself."""

    def _chord(self, K: Any, x: Lifted, y: Lifted) -> tuple[Any, Array]:
        # (1+t_x)(1+t_y)‖p_x − p_y‖² with p = s/(1+t), without forming p for the whole batch
        (t_x, _, s_x), (t_y, _, s_y) = x, y
        ratio = (1.0 + t_y) / (1.0 + t_x)
        return 1.0 / ratio, Combination(-ratio, s_x).plus(1.0, s_y).value()

    def _known(self, xp: Any, K: Any, y: Array) -> State:
        t, _, s = self._lift(xp, K, y)
        return 1.0 + t, s

    def _seen(self, xp: Any, K: Any, x: Array, y: Array, known: State) -> Lifted:
        r"""With :math:`\delta = s_y - \tfrac{1+t_y}{1+t_x}s_x`: :math:`s = \delta + m s_x`,
        :math:`m = \tfrac K2\|\delta\|^2/(1+t_y)`, and :math:`t - 1 = -m(1 + t_x)`.
        """
        above, s_y = known
        t, _, s = self._lift(xp, K, x)
        below = -1.0 - t
        gap = Combination(1.0, s_y).plus(above / below, s).value()
        m = 0.5 * K * dot(gap, gap) / above
        return m * below, 1.0, Combination(1.0, gap, temporary=True).plus(m, s).value()


def time_on_sheet(xp: Any, K: Any, s: Array) -> Array:
    """Return t = sqrt(1 - K‖s‖²)."""
    large, u = unit(s, least=1.0)
    return large * xp.sqrt((1.0 / large) ** 2 - K * dot(u, u))


def size_or_one(t: Array) -> Array:
    """Return a divisor, as a constant: t where squares of that size may overflow, else 1."""
    xp = namespace_of(t)
    t = backend_of(t).stop_gradient(t)
    return xp.where(t > float(xp.finfo(t.dtype).max) ** 0.25, t, 1.0)
