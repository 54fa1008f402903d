"""Whether arrays are points of a manifold, and what to say of the first that is not.

The estimator and the layers of all frameworks ask here, so they use the same words.
"""

import math
import warnings
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds import Correlation
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import blockwise
from gyrobn.statistics.uniqueness import FrechetWarning

__all__ = ["Moved", "describe", "flaw", "on_manifold"]


def on_manifold(
    manifold: GyroSpace,
    x: Array,
    name: str = "X",
    project: bool = False,
    first: Any = 0,
    moved: "Moved | None" = None,
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
    moved
        Is told of the points that are projected.
    eps
        Precision of the dtype that x had before it was converted to a wider one, if it was.
    advice, advice_nan
        What to do about points that are off, and about NaN and infinity.
    """
    xp = namespace_of(x)
    if name in ("mean", "bias"):
        advice = "manifold.project gives a point near by"

    def points(x: Array) -> Array:
        if eps is None:
            return blockwise(manifold.contains, x)
        return manifold.violation(x) <= eps**0.5

    with np.errstate(all="ignore"):  # what overflows is off the manifold
        if backend_of(x).hides_values(x):
            return manifold.project(x) if project else x
        good = points(x)
        if moved is not None:
            moved.total += math.prod(good.shape)
        if bool(xp.all(good)):
            return x
        finite = xp.all(xp.isfinite(x), axis=tuple(range(-len(manifold.point_shape), 0)))
        if not bool(xp.all(finite)):
            what, i = describe(finite, first)
            kind = "NaN" if bool(xp.any(xp.isnan(x[(*i, ...)]))) else "inf"
            raise ValueError(f"{name} has {kind} in {what}: {advice_nan}")
        if project:
            rest = (None,) * len(manifold.point_shape)
            if moved is not None:
                moved.note(manifold, x, _host(good), first)
            x = xp.where(good[(..., *rest)], x, manifold.project(x))
            good = points(x)
            if bool(xp.all(good)):
                return x
            advice = "it could not be projected either"
        what, i = describe(good, first)
        off = float(manifold.violation(x)[i])
        lack = flaw(manifold, x[(*i, ...)])
    if lack and name not in ("mean", "bias"):
        advice = (
            f"that matrix is {lack}. {SHRINK}, for the variance of projected matrices is made of "
            f"the floor under their eigenvalues; {advice}"
        )
    raise ValueError(f"{name} is off {manifold!r} by {off:.3g} in {what}: {advice}")


def _host(x: Array) -> "np.ndarray[Any, Any]":
    shim = backend_of(x)
    return shim.to_numpy(shim.stop_gradient(x))


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


class Moved:
    """How many points a projection moved, and which of them were singular matrices."""

    def __init__(self) -> None:
        self.count = self.total = self.singular = 0
        self.which = ""

    def note(self, manifold: GyroSpace, x: Array, good: Any, first: int) -> None:
        """Add those of some samples, numbered from ``first`` on, before they are moved."""
        self.count += int(np.sum(~good))
        for index in np.argwhere(~good):
            i = tuple(map(int, index))
            what = flaw(manifold, x[(*i, ...)])
            self.singular += bool(what)
            if what and not self.which:
                i = (i[0] + first, *i[1:])
                self.which = f"the first, at index {i[0] if len(i) == 1 else i}, is {what}"

    def warn(self, manifold: GyroSpace, x: Array, method: str, level: int) -> None:
        """Say so where singular matrices got a floor under their eigenvalues."""
        if self.singular:
            floor = float(namespace_of(x).finfo(x.dtype).eps) ** 0.5
            warnings.warn(
                f"GyroBN.{method}() moved {self.count} of {self.total} samples onto {manifold!r}; "
                f"{self.singular} of them were not positive definite ({self.which}), and their "
                f"lowest eigenvalues are now {floor:.2g} of the largest: their distances and the "
                f"variance are made of this floor. {SHRINK}",
                FrechetWarning,
                stacklevel=level,
            )


SHRINK = "Shrink covariances first (sklearn.covariance.ledoit_wolf, pyRiemann's Covariances('lwf'))"


def flaw(manifold: GyroSpace, point: Array) -> str:
    """Say what a point lacks to be positive definite, if it should be and is not."""
    for space, part in manifold.parts(point):
        if space is not manifold:
            found = flaw(space, part)
            if found:
                return f"of {space!r} {found}"
        elif space.definite:
            A = _host(part)
            if isinstance(space, Correlation):  # whose scale does not count
                roots = np.sqrt(np.clip(np.diagonal(A), 0.0, None))
                A = A / np.where(roots > 0, roots, 1.0) / np.where(roots > 0, roots, 1.0)[:, None]
            n, values = len(A), np.linalg.eigvalsh((A + A.T) / 2)
            least = n * float(namespace_of(point).finfo(point.dtype).eps) * abs(values).max()
            if np.any(values < -least):
                return f"indefinite, with {np.sum(values < -least)} of {n} eigenvalues negative"
            if not np.all(values > least):
                return f"singular, of rank {np.sum(values > least)} of {n}"
    return ""
