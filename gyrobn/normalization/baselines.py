r"""The normalizations that the paper compares with: LRBN and ManifoldNorm, as pure functions.

They use the Riemannian operators exp, log and parallel transport, and take the arguments of
:func:`~gyrobn.normalize`, so only the formula differs. Mean and variance of the output:

==================== ================ ============================================
method               mean             variance
==================== ================ ============================================
GyroBN               :math:`\beta`    :math:`s^2 v^2/(v^2+\epsilon)`
LRBN                 :math:`\beta`    :math:`s^2 v^2/(v^2+\epsilon)`, see :func:`lrbn`
ManifoldNorm         :math:`\beta`    not controlled: v is not in its formula
ManifoldNorm, groups :math:`\beta`    :math:`s^2 v^2/(v^2+\epsilon)`: it is GyroBN
==================== ================ ============================================
"""

from typing import Any

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds import SpecialOrthogonal
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, multiplier, normalize
from gyrobn.numerics.arrays import check_floating, scalars_like


def lrbn(
    manifold: GyroSpace,
    x: Array,
    stats: Stats,
    bias: Array | None = None,
    scale: Array | float = 1.0,
    eps: float = 1e-5,
    clamp: float | None = None,
) -> Array:
    r"""Normalize as Lou et al. (2020, Algorithm 2) do: from the mean straight to the bias.

    .. math:: \tilde x_i = \operatorname{Exp}_\beta\Bigl(\frac{s}{\sqrt{v^2+\epsilon}}\,
              PT_{\mu \to \beta} \operatorname{Log}_\mu(x_i)\Bigr)

    The logarithms at :math:`\mu` sum to zero. Transport is linear and keeps lengths, so those at
    :math:`\beta` sum to zero, too. With an exact mean and exact operators the output therefore has
    the mean and variance of GyroBN's, if the scaled vectors are shorter than the injectivity
    radius. The points differ: they are turned about :math:`\beta` by the holonomy of the triangle
    :math:`\mu, e, \beta`.

    Parameters
    ----------
    manifold, x, stats, bias, scale, eps, clamp
        As in :func:`~gyrobn.normalize`.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import PoincareBall, batch_stats
    >>> M = PoincareBall(2)
    >>> x = M.add(np.asarray([0.3, 0.4]), M.random(100, rng=0))
    >>> mean, var = batch_stats(M, lrbn(M, x, batch_stats(M, x), np.asarray([0.0, 0.5])))
    >>> mean.round(4) + 0.0, round(float(var), 4)
    (array([0. , 0.5]), 1.0)
    """
    factor = multiplier(x, stats, scale, eps, clamp)
    centre = manifold.origin(x) if bias is None else bias
    v = manifold.transport(stats.mean, centre, manifold.log(stats.mean, x))
    c = manifold.by_coordinate(factor) * manifold.pull(centre, v)  # one factor per block
    return manifold.exp(centre, manifold.push(centre, c))


def manifold_norm(
    manifold: GyroSpace,
    x: Array,
    stats: Stats,
    bias: Array | None = None,
    scale: Array | float = 1.0,
) -> Array:
    r"""Normalize as Chakraborty (2020, Algorithms 1–2) does on homogeneous spaces.

    .. math:: x_i^1 = \operatorname{Exp}_e(PT_{\mu \to e} \operatorname{Log}_\mu(x_i)), \qquad
              x_i^2 = \operatorname{Exp}_e(S \operatorname{Log}_e(x_i^1)), \qquad
              \tilde x_i = g \cdot x_i^2

    The formula does not use the variance of the batch. The variance of the output is the sum of
    :math:`\|S\operatorname{Log}_e(x_i^1)\|^2/N`, which grows with that of the input.

    Parameters
    ----------
    manifold, x
        As in :func:`~gyrobn.normalize`.
    stats
        Its mean is used; its variance is not.
    bias
        The point to which the isometry g carries the identity; g is the left gyrotranslation by it.
        Any other isometry differs by one that can be applied to the output.
    scale
        Diagonal of S: a number, or an array that broadcasts against normal coordinates
        ``(*channels, dim)``.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import PoincareBall, batch_stats
    >>> M = PoincareBall(2)
    >>> x = M.add(np.asarray([0.3, 0.4]), M.random(100, rng=0, spread=0.5))
    >>> stats = batch_stats(M, x)
    >>> mean, var = batch_stats(M, manifold_norm(M, x, stats))
    >>> bool(M.norm(mean) < 1e-12), bool(abs(var - stats.var) < 1e-12)
    (True, True)
    """
    namespace_of(x, stats.mean)
    check_floating(x, stats.mean)
    e = manifold.origin(x)
    v = manifold.transport(stats.mean, e, manifold.log(stats.mean, x))
    y = manifold.from_normal(scalars_like(scale, x) * manifold.pull(e, v))
    return y if bias is None else manifold.add(bias, y)


def manifold_norm_group(
    manifold: GyroSpace, x: Array, stats: Stats, *args: Any, **options: Any
) -> Array:
    r"""Normalize as Chakraborty (2020, Algorithms 3–4) does on matrix groups.

    .. math:: \tilde x_i = b \exp\Bigl(\frac{s}{\sqrt{v^2+\epsilon}} \log(\mu^{-1} x_i)\Bigr)

    with the distance :math:`\|\log(x^{-1} y)\|`. Gyroaddition is the product there, so this is
    :func:`~gyrobn.normalize` itself.

    Parameters
    ----------
    manifold
        ``SpecialOrthogonal``: the matrix group with that distance.
    x, stats, *args, **options
        As in :func:`~gyrobn.normalize`.
    """
    if not isinstance(manifold, SpecialOrthogonal):
        raise TypeError(
            f"{manifold!r} is not a matrix group with the distance |log(x⁻¹y)|: use "
            "manifold_norm, which is for every geometry, or SpecialOrthogonal"
        )
    return normalize(manifold, x, stats, *args, **options)
