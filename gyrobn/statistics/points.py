"""Whether arrays are points of a manifold, and an error that names the first one that is not.

The estimator and the layers of all frameworks check here, so they use the same words.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds import Correlation, Klein
from gyrobn.manifolds.constant_curvature import ConstantCurvature
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import blockwise, eps_of, scalars_like, square
from gyrobn.numerics.checks import host, warn_caller
from gyrobn.statistics.uniqueness import FrechetWarning, factors


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
        The geometry, and an array of what should be its points.
    name
        What to call the array in messages.
    project
        Whether to move points that are off, if they are finite.
    first
        The number of the first sample, if x is a chunk of many; or the numbers of all samples.
    moved
        Counts the points that are projected.
    eps
        Precision of the dtype that x had before it was converted to a wider one, if it was.
    advice, advice_nan
        What to do about points that are off, and about NaN and infinity. By default the advice is
        the parameter ``on_invalid`` of the estimator.
    """
    xp = namespace_of(x)

    def points(x: Array) -> Array:
        if eps is None:
            return blockwise(manifold.contains, x)
        return manifold.violation(x) <= eps**0.5

    with np.errstate(all="ignore"):  # what overflows is off the manifold
        if backend_of(x).traced(x):
            return manifold.project(x) if project else x
        good = points(x)
        if moved is not None:
            moved.total += math.prod(good.shape)
        if bool(xp.all(good)):
            return x
        finite, problem = _not_finite(manifold, x, name, first)
        off = xp.logical_and(finite, xp.logical_not(good))
        if problem and (project or not bool(xp.any(off))):
            raise ValueError(f"{problem}: {advice_nan}")
        if project:
            if moved is not None:
                moved.note(manifold, x, host(good), first)
            rest = (None,) * len(manifold.point_shape)
            x = xp.where(good[(..., *rest)], x, manifold.project(x))
            off = xp.logical_not(points(x))
            if not bool(xp.any(off)):
                return x
            advice = "it could not be projected either"
        also = f"{problem}: {advice_nan}; also, " if problem else ""
        raise _off(manifold, x, xp.logical_not(off), name, first, advice, also)


def check_finite(manifold: GyroSpace, x: Array, name: str, first: Any, advice: str) -> None:
    """Refuse NaN and infinity, which no projection repairs."""
    _, problem = _not_finite(manifold, x, name, first)
    if problem:
        raise ValueError(f"{problem}: {advice}")


def _not_finite(manifold: GyroSpace, x: Array, name: str, first: Any) -> tuple[Array, str]:
    """Return which points are finite, and what the others are."""
    xp = namespace_of(x)
    finite = xp.all(xp.isfinite(x), axis=tuple(range(-len(manifold.point_shape), 0)))
    if bool(xp.all(finite)):
        return finite, ""
    kinds = {"NaN": xp.isnan(x), "inf": xp.isinf(x)}
    kind = " and ".join(word for word, where in kinds.items() if bool(xp.any(where)))
    return finite, f"{name} has {kind} in {describe(finite, first)[0]}"


def _off(
    manifold: GyroSpace,
    x: Array,
    good: Array,
    name: str,
    first: Any,
    advice: str,
    before: str,
) -> ValueError:
    """Return the error for points that are off the manifold."""
    what, i = describe(good, first)
    off = float(manifold.violation(x[(*i, ...)]))
    text = f"{before}{name} is off {manifold!r} by {off:.3g} in {what}: "
    if name in ("mean", "bias", "reference"):
        return ValueError(f"{text}manifold.project gives a point near by")
    lack = flaw(manifold, x[(*i, ...)])
    if lack:
        text += (
            f"that matrix is {lack}. {SHRINK}: the variance of projected matrices depends on the "
            "floor under their eigenvalues; "
        )
    return ValueError(text + advice)


def describe(good: Array, first: Any = 0) -> tuple[str, tuple[int, ...]]:
    """Say how many entries are not good and which is the first; also return its index.

    In the text, ``first`` is the number of the first sample, or holds the numbers of all.
    """
    xp = namespace_of(good)
    bad = xp.astype(xp.reshape(xp.logical_not(good), (-1,)), xp.int32)
    i = tuple(int(k) for k in np.unravel_index(int(xp.argmax(bad)), tuple(good.shape)))
    if not i:
        return "its one point", i
    return f"{int(xp.sum(bad))} of {bad.shape[0]} samples, the first {at_index(i, first)}", i


def at_index(i: tuple[int, ...], first: Any = 0) -> str:
    """Say where a point is: the number of its sample, and the channel if there are several.

    >>> at_index((3,)), at_index((3, 1), first=10)
    ('at index 3', 'at index (13, 1)')
    """
    number = first + i[0] if isinstance(first, int) else int(first[i[0]])
    return f"at index {number if len(i) == 1 else (number, *i[1:])}"


def is_hyperbolic(manifold: GyroSpace) -> bool:
    """Return whether coordinates have an end: of a hyperbolic space, or of a factor that is one."""
    return any(_ends(space) for space, _ in factors(manifold, manifold))


def _ends(space: GyroSpace) -> bool:
    return isinstance(space, ConstantCurvature) and space.sign == -1


def may_be_far_out(
    manifold: GyroSpace, x: Array, centre: Array, factor: Any, target: Array | None
) -> bool:
    """Return whether samples of a hyperbolic space may be scaled to where two digits are left.

    They are seen from the centre, multiplied by the factor, and translated to the target. Points
    that coordinates cannot reach are clamped farther out than that. Distances are bounded by the
    triangle inequality: what is far out only in between is found, too.

    >>> import numpy as np
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(1)
    >>> x, centre = M.from_normal(np.asarray([[10.0], [13.0]])), M.from_normal(np.asarray([-10.0]))
    >>> [may_be_far_out(M, x, centre, t, centre) for t in (0.5, 1.0)]
    [False, True]
    """
    if 0 in x.shape:
        return False
    manifold, xp, block = manifold.detached(), namespace_of(x), 0
    factor = scalars_like(factor, x)
    several = manifold.block_shape and getattr(factor, "shape", ())
    if several:
        factor = xp.broadcast_to(factor, (*factor.shape[:-1], *manifold.block_shape))
    target = manifold.origin(x) if target is None else target
    for space, _, *points in factors(manifold, manifold, x, centre, target):
        t, block = factor[..., block] if several else factor, block + len(space.blocks)
        if _ends(space):
            of_x, of_centre, of_target = (_farthest(space, y) for y in points)
            way = float(xp.max(abs(t) * (of_x + of_centre)) + of_target)
            growth = math.cosh(min(abs(float(*space.learnable())) ** 0.5 * way, 300.0))
            spacing = eps_of(x) * growth ** (1 + isinstance(space, Klein))
            if not spacing <= 0.01:  # also if a sample is NaN, which must not hide others
                return True
    return False


def _farthest(space: GyroSpace, x: Array) -> Array:
    """Return the largest distance from the identity: in every model, that of the longest vector."""
    xp, rows = namespace_of(x), namespace_of(x).reshape(x, (-1, x.shape[-1]))
    with np.errstate(over="ignore"):
        longest = xp.argmax(square(rows), axis=0, keepdims=True)
    return space.norm(xp.take(rows, longest, axis=0))[0]


def plain_geometry(geometry: GyroSpace) -> GyroSpace:
    """Return the geometry with plain numbers for parameters that are arrays (learnt).

    >>> import numpy as np
    >>> from gyrobn import PoincareBall
    >>> plain_geometry(PoincareBall(2, curvature=np.asarray(-0.5)))
    PoincareBall(n=2, curvature=-0.5)
    """
    values = []
    for value in geometry.learnable():
        if not isinstance(value, (int, float)):
            array = host(value)
            if array.ndim > 0:
                raise ValueError(
                    f"only a geometry whose parameters are numbers can be kept, got an array of "
                    f"shape {array.shape} in {type(geometry).__name__}: use one geometry for each"
                )
            value = float(array)
        values.append(value)
    return geometry.with_learnable(values)


class Moved:
    """How many points were projected, which of them were singular matrices; and which dropped."""

    def __init__(self) -> None:
        self.count = self.total = self.singular = self.dropped = self.lost = 0
        self.which = ""
        self.valid = dict[int, Array]()
        """Which points of a chunk are valid, if invalid ones are dropped, by its first number."""

    @classmethod
    def merged(cls, parts: Iterable["Moved"]) -> "Moved":
        """Return the counts of several parts of the samples, given in order, as one."""
        both = cls()
        for part in parts:
            both.add(part)
        return both

    def add(self, part: "Moved") -> None:
        """Add the counts of further samples."""
        self.count += part.count
        self.total += part.total
        self.singular += part.singular
        self.which = self.which or part.which

    def note(self, manifold: GyroSpace, x: Array, good: Any, first: Any) -> None:
        """Count the bad points of a chunk, before they are moved."""
        for i in map(tuple, np.argwhere(~good).tolist()):
            what = flaw(manifold, x[(*i, ...)])
            self.count += 1
            self.singular += bool(what)
            if what and not self.which:
                self.which = f"the first, {at_index(i, first)}, is {what}"

    def drop(self, manifold: GyroSpace, x: Array, first: int) -> Array:
        """Put the identity in place of invalid points, NaN among them."""
        xp = namespace_of(x)
        if backend_of(x).traced(x):
            return x
        if first not in self.valid:
            with np.errstate(all="ignore"):
                good = self.valid[first] = blockwise(manifold.contains, x)
            self.total += math.prod(good.shape)
            self.dropped += (lost := int(np.sum(~host(good))))
            if lost and not self.which:
                self.which = describe(good, first)[0].partition(", ")[2]
        valid = self.valid[first][(..., *(None,) * len(manifold.point_shape))]
        return xp.where(valid, x, manifold.origin(x))

    def warn(self, manifold: GyroSpace, x: Array, method: str) -> None:
        """Warn if points were dropped, or singular matrices got a floor under their eigenvalues."""
        if self.dropped:
            what = "dropped" if "fit" in method else "returns NaN for"
            warn_caller(
                f"GyroBN.{method}() {what} {self.dropped} of {self.total} samples that are not on "
                f"{manifold!r}, {self.which}",
                FrechetWarning,
            )
        if self.singular:
            floor = eps_of(x) ** 0.5
            warn_caller(
                f"GyroBN.{method}() moved {self.count} of {self.total} samples onto {manifold!r}; "
                f"{self.singular} of them were not positive definite ({self.which}), and their "
                f"lowest eigenvalues are now {floor:.2g} of the largest: their distances and the "
                f"variance depend on this floor. {SHRINK}",
                FrechetWarning,
            )


SHRINK = (
    "Shrink covariances first (sklearn.covariance.ledoit_wolf, pyRiemann's Covariances('lwf')), or "
    "if all lack the same directions, as after an average reference, reduce them to their common "
    "subspace (gyrobn.reduce_rank)"
)


def flaw(manifold: GyroSpace, point: Array) -> str:
    """Return why a matrix that should be positive definite is not; else an empty text."""
    for space, _, part in factors(manifold, manifold, point):
        if not space.definite:
            continue
        A = host(part)
        if isinstance(space, Correlation):  # the scale of its rows does not matter
            roots = np.sqrt(np.clip(np.diagonal(A), 0.0, None))
            A = A / np.where(roots > 0, roots, 1.0) / np.where(roots > 0, roots, 1.0)[:, None]
        n, values = len(A), np.linalg.eigvalsh((A + A.T) / 2)
        limit = 1.0 / (n * eps_of(point))
        least = abs(values).max() / limit
        of = "" if space is manifold else f"of {space!r} "
        if np.any(values < -least):
            return f"{of}indefinite, with {np.sum(values < -least)} of {n} eigenvalues negative"
        if not np.all(values > least):
            number = values[-1] / values[0] if values[0] > 0 else np.inf
            return (
                f"{of}singular, of rank {np.sum(values > least)} of {n} (condition number "
                f"{number:.2g}; the limit in {point.dtype} is {limit:.2g})"
            )
    return ""
