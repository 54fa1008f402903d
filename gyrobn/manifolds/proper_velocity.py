"""The proper velocity model of hyperbolic space: all vectors, without a boundary."""

from dataclasses import dataclass
from typing import Any

from gyrobn.backends import Array, dot
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.constant_curvature import Lifted
from gyrobn.manifolds.euclidean import Vectors
from gyrobn.manifolds.hyperbolic import Sheet, time_on_sheet


@dataclass(frozen=True)
class ProperVelocity(Sheet, Vectors):
    r"""Hyperbolic space as the spatial parts of the hyperboloid, K < 0.

    A point lifts to :math:`s = x`, :math:`t = \sqrt{1 - K\|x\|^2}`. Every vector is a point, so no
    result can leave the model, and coordinates keep all their digits at any distance.

    Parameters
    ----------
    n
        Dimension, the number of coordinates.
    curvature
        Sectional curvature K < 0, that of the hyperboloid.

    Examples
    --------
    >>> import numpy as np
    >>> ProperVelocity(2).from_normal(np.asarray([1.0, 0.0])).round(4)  # sinh(1)
    array([1.1752, 0.    ])
    """

    def _lift(self, xp: Any, K: Any, x: Array) -> Lifted:
        return time_on_sheet(xp, K, x), 1.0, x

    def _drop(self, xp: Any, K: Any, t: Array, s: Combination) -> Array:
        return s.value()

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: :math:`c - \frac{K\langle x, c\rangle}{1+t}\,x`."""
        _, v = self._push_lifted(*self._given(x), x, c)
        return v

    def pull(self, x: Array, v: Array) -> Array:
        r"""Inverse of :meth:`push`, from :math:`\dot t = -K\langle x, v\rangle/t`."""
        xp, K = self._given(x, v)
        t, _, s = self._lift(xp, K, x)
        return self._pull_lifted(xp, K, x, -K * dot(s, v) / t, v)
