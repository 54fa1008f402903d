"""Whether arrays are points of a manifold, and what to say of the first that is not.

The estimator and the layers of all frameworks ask here, so they use the same words.
"""

from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.gyrospace import GyroSpace

__all__ = ["describe", "on_manifold"]


def on_manifold(
    manifold: GyroSpace,
    x: Array,
    name: str = "X",
    project: bool = False,
    first: Any = 0,
    *,
    eps: float | None = None,
    advice: str = "on_invalid='project' moves such samples onto it",
    advice_nan: str = "drop or impute NaN and inf first",
) -> Array:
    """Return ``x`` with all its points on the manifold, or say which one is not.

    Parameters
    ----------
    manifold, x
        The geometry, and arrays that should be points of it.
    name
        What to call them.
    project
        Whether to move those that are off, if they are finite.
    first
        The number of the first sample, where x is a chunk of many, or those of all.
    eps
        Precision of the dtype that x had before it was converted to a wider one, if it was.
    advice, advice_nan
        What to do about points that are off, and about NaN and infinity.
    """
    xp = namespace_of(x)
    if name in ("mean", "bias"):
        advice = "manifold.project gives a point near by"

    def points(x: Array) -> Array:
        return manifold.contains(x) if eps is None else manifold.violation(x) <= eps**0.5

    with np.errstate(all="ignore"):  # what overflows is off the manifold
        if backend_of(x).hides_values(x):
            return manifold.project(x) if project else x
        good = points(x)
        if bool(xp.all(good)):
            return x
        finite = xp.all(xp.isfinite(x), axis=tuple(range(-len(manifold.point_shape), 0)))
        if not bool(xp.all(finite)):
            what, i = describe(finite, first)
            kind = "NaN" if bool(xp.any(xp.isnan(x[(*i, ...)]))) else "inf"
            raise ValueError(f"{name} has {kind} in {what}: {advice_nan}")
        if project:
            rest = (None,) * len(manifold.point_shape)
            x = xp.where(good[(..., *rest)], x, manifold.project(x))
            good = points(x)
            if bool(xp.all(good)):
                return x
            advice = "it could not be projected either"
        what, i = describe(good, first)
        off = float(manifold.violation(x)[i])
    raise ValueError(f"{name} is off {manifold!r} by {off:.3g} in {what}: {advice}")


def describe(good: Array, first: Any = 0) -> tuple[str, tuple[int, ...]]:
    """Say how many entries are not good and which is the first; also return its index.

    In the text the samples are numbered from ``first`` on, or have the numbers in it.
    """
    xp = namespace_of(good)
    bad = xp.astype(xp.reshape(xp.logical_not(good), (-1,)), xp.int32)
    i = tuple(int(k) for k in np.unravel_index(int(xp.argmax(bad)), tuple(good.shape)))
    if not i:
        return "its one point", i
    what = f"{int(xp.sum(bad))} of {bad.shape[0]} samples, the first at index "
    shown = (first + i[0] if isinstance(first, int) else int(first[i[0]]), *i[1:])
    return what + str(shown[0] if len(i) == 1 else shown), i
