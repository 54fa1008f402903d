"""The isometries between the models of one space."""

from typing import Any

from gyrobn.backends import Array
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.constant_curvature import ConstantCurvature
from gyrobn.manifolds.gyrospace import check_manifold


def convert(
    source: ConstantCurvature, target: ConstantCurvature, x: Array, *tangents: Array
) -> Any:
    r"""Carry points, and tangent vectors, from one model to another of the same curvature.

    The map φ is the isometry of the paper (stereographic to radius and back, Klein to ball and
    back, and their compositions). It preserves :math:`\oplus` and :math:`\odot`. Its differential
    is ``target.push(φ(x), source.pull(x, v))``.

    Parameters
    ----------
    source, target
        The two models, of equal dimension and curvature.
    x
        Points of ``source``.
    *tangents
        Tangent vectors at x, if any.

    Returns
    -------
    The points in ``target``; with tangent vectors, a tuple of points and vectors.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Klein, PoincareBall
    >>> convert(PoincareBall(2), Klein(2), np.asarray([0.5, 0.0]))
    array([0.8, 0. ])
    """
    for space in (source, target):
        if not isinstance(check_manifold(space), ConstantCurvature):
            raise TypeError(f"convert takes models of constant curvature, got {space!r}")
    same = source.n == target.n and (
        source.curvature is target.curvature or bool(source.curvature == target.curvature)
    )
    if not same:
        raise ValueError(
            f"{source!r} and {target!r} differ in dimension or curvature, so no isometry joins them"
        )
    xp, K = source._given(x)
    t, a, v = source._lift(xp, K, x)
    y = target._drop(xp, K, t, Combination(a, v))
    if not tangents:
        return y
    return y, *(target.push(y, source.pull(x, u)) for u in tangents)
