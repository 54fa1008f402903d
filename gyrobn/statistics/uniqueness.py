"""Whether a mean was found, and whether it is the only one: the warnings about it."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.product import Product
from gyrobn.manifolds.rebased import Rebased
from gyrobn.numerics.arrays import blockwise
from gyrobn.numerics.checks import host, warn_caller
from gyrobn.statistics.samples import of_channel


class FrechetWarning(UserWarning):
    """A mean or a variance is not what it seems.

    The mean did not converge or need not be the only one, samples were scaled too far, or singular
    matrices were projected, so that their variance depends on the floor under their eigenvalues.
    """


class Domains(NamedTuple):
    """The domains that a warning names, if they are the first axis of the channels."""

    labels: Sequence[Any]
    rows: "np.ndarray[Any, Any]"
    """The number of each sample, (most, domains); −1 for padding of a domain with fewer."""

    def name(self, which: Array) -> str:
        """Return words for the domains of some channels."""
        chosen = np.flatnonzero(which.reshape(which.shape[0], -1).any(axis=1))
        found = [repr(self.labels[int(k)]) for k in chosen]
        more = f" and {len(found) - 10} more" if len(found) > 10 else ""
        return f"of domain{'s' if len(found) > 1 else ''} {', '.join(found[:10])}{more} "


def warn_of(
    manifold: GyroSpace,
    given: Iterable[Array],
    weighted: tuple[Array, Array] | None,
    found: Any,
    limit: int,
    *,
    domains: Domains | None = None,
    unique: bool = True,
) -> None:
    """Warn if there is no mean, if it did not converge, or if there may be more than one.

    ``given`` are the user's samples, in one piece or several; ``weighted`` the samples and weights
    inside the manifold. Without those, the largest distance from the mean decides. ``found`` is the
    result, its numbers on the host; ``unique`` says whether to look for a second mean at all.
    """

    if isinstance(manifold, Rebased):  # inside and in its words it is the geometry itself
        manifold = manifold.manifold

    def of(which: Array) -> str:
        return "" if domains is None else domains.name(which)

    bad = ~found.converged
    if bad.any():
        off, advice = _off(manifold, given, bad, domains), "raise max_iter or tol"
        lost = not np.isfinite(host(found.variance)[bad]).all()
        if lost:
            advice = (
                "some distances are not finite: they overflow, or samples are opposite to each "
                "other; start elsewhere, with init"
            )
        elif host(manifold.inside.resolution(found.mean)).max() >= 1.0:
            advice = (
                f"it lies so far out that {found.mean.dtype} does not resolve a distance of 1 "
                "there; use a wider dtype, or move and scale the data"
            )
        often = "" if lost else f" in {limit} iterations"
        warn_caller(
            f"the Fréchet mean {of(bad)}on {manifold!r} did not converge{often} ({bad.sum()} of "
            f"{bad.size} channels, largest residual {np.where(bad, found.residual, 0.0).max():.2e})"
            f": {off or advice}",
            FrechetWarning,
        )
    space, far = manifold.detached().inside, found.sums.most
    if not unique or not far.shape[-1]:
        return
    far, first = host(far), 0
    slack = 1.0 - 8.0 * float(np.finfo(far.dtype).eps)  # half a sphere counts, rounded or not
    if not (far**0.5 >= space.convexity_radius * slack).any():
        return
    arrays: tuple[Array, ...] = ()
    if weighted is not None:
        x, w = weighted
        centre = backend_of(x).stop_gradient(found.mean)
        counts = (w > 0)[(..., *(None,) * len(space.point_shape))]
        arrays = namespace_of(x).where(counts, x, centre), centre
    for factor, part, *points in factors(manifold, space, *arrays):
        enough, blocks = part.convexity_radius * slack, len(part.blocks)
        radius = far[..., first : first + blocks].sum(axis=-1) ** 0.5
        first, what = first + blocks, "lie up to {:.3f} from their mean"
        if points and (radius >= enough).any():
            samples, mean = points
            radius = host(enclosing_radius(part, samples, mean, enough))
            what = "need a ball of radius {:.3f}"
        if (radius >= enough).any():
            where = "" if factor is manifold else f"the factor {factor!r} of "
            warn_caller(
                f"the samples {of(radius >= enough)}on {where}{manifold!r} "
                f"{what.format(radius.max())}, beyond the {enough:.3f} within which a mean is sure "
                "to be unique: another mean may fit as well",
                FrechetWarning,
            )


def _off(manifold: GyroSpace, given: Iterable[Array], bad: Array, domains: Domains | None) -> str:
    """Name the samples off the manifold in the first of the bad channels that has some."""
    on = [host(manifold.contains(x)) for x in given]
    if not on:
        return ""
    off = ~np.concatenate(on) & bad
    if domains is not None:
        off &= (domains.rows >= 0).reshape(*domains.rows.shape, *(1,) * (off.ndim - 2))
    if not off.any():
        return ""
    channel = np.argwhere(off.any(axis=0))[0].tolist()
    off = off[:, *channel]
    numbers = np.arange(len(off)) if domains is None else domains.rows[:, channel.pop(0)]
    return (
        f"{off.sum()} of {np.sum(numbers >= 0)} samples{of_channel(channel)} are not on the "
        f"manifold, the first at index {numbers[off][0]}; drop them, or move them onto it with "
        "manifold.project (NaN stays NaN)"
    )


def factors(manifold: GyroSpace, space: GyroSpace, *arrays: Array) -> Iterator[tuple[Any, ...]]:
    """Yield the factors of a metric, and factors of those; the one space otherwise.

    Each comes as the user gave it, as the space to compute in, and with its parts of the arrays.
    Points of a geometry with a reference come as they are seen from there.
    """
    if isinstance(manifold, Rebased):
        M = manifold.manifold
        arrays = tuple(M.relative(manifold.reference, a) for a in arrays)
        manifold = space = M
    parts = space._factors(*arrays)
    if parts[0][0] is space:
        yield manifold, space, *arrays
        return
    given = manifold.factors if isinstance(manifold, Product) else [part for part, *_ in parts]
    for own, part in zip(given, parts, strict=True):
        yield from factors(own, *part)


def enclosing_radius(
    manifold: GyroSpace, x: Array, centre: Array, enough: float = 0.0, rounds: int = 64
) -> Array:
    """Return nearly the radius of the smallest ball around samples (Bădoiu and Clarkson).

    The centre moves towards the sample farthest from it, by ever smaller parts of the way. The
    search ends as soon as the radius is below ``enough`` in every channel.
    """
    xp, best = namespace_of(x), np.inf
    points = (None,) * len(manifold.point_shape)
    for k in range(2, rounds + 2):
        distance = blockwise(partial(manifold.dist, centre), x)
        best = xp.clip(xp.max(distance, axis=0), max=best)
        if not bool(xp.any(best >= enough)):
            break
        index = xp.argmax(distance, axis=0)[(None, ..., *points)]
        index = xp.broadcast_to(index, (1, *x.shape[1:]))
        farthest = xp.take_along_axis(x, index, axis=0)[0, ...]
        centre = manifold.project(manifold.geodesic(centre, farthest, 1.0 / k))
    return best
