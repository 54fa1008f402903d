r"""The mean of samples in a Dask array, exactly, by the same loop.

Each evaluation is one ``compute``: a task per block sums what it sees from the mean, as
:mod:`gyrobn.statistics.streaming` does with a chunk, and further tasks add the sums up a tree. The
statistics of several domains are found together, as channels: a task looks at the samples of each
domain from the mean of that domain. Before the first evaluation another ``compute`` checks the
samples, adds up the weights, and draws some samples by lot.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.data.chunks import take
from gyrobn.data.dask import Block, DaskBlocks, lazy_samples
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import sum_samples
from gyrobn.numerics.checks import host
from gyrobn.statistics.held import Held, Look
from gyrobn.statistics.points import Moved, on_manifold
from gyrobn.statistics.samples import check_weights, shares
from gyrobn.statistics.streaming import Streamed, Sums, look_at_part, most_kept, weighted

LEAST = 64
"""The least number of samples to keep per domain, if it has that many."""


class Reading(NamedTuple):
    """How a task reads a block; it is sent to the workers."""

    manifold: GyroSpace
    split: Callable[[Any, int], dict[Any, Any]] | None = None
    """Returns the indices of each domain, for the labels and the number of samples."""
    check: bool = False
    """Whether samples must be on the manifold."""
    project: bool = False
    """Whether those that are not are moved onto it."""

    def samples(self, block: Block, moved: Moved | None = None) -> tuple[Array, Array]:
        """Return samples and weights; with ``moved``, check the samples first."""
        x = backend_of(block.x).stop_gradient(block.x)
        if self.project or (self.check and moved is not None):
            x = on_manifold(self.manifold, x, project=self.project, first=block.first, moved=moved)
        weights = None if block.weights is None else _like(block.weights, x)
        return weighted(self.manifold, x, np.arange(x.shape[0]), weights)

    def places(self, block: Block) -> dict[Any, Any]:
        """Return the indices of the samples of each domain; the key None stands for all samples."""
        if block.labels is None or self.split is None:
            return {None: None}
        return self.split(block.labels, block.x.shape[0])


class Drawn(NamedTuple):
    """What is known of a domain before the search of its mean."""

    total: Any
    """Sum of the weights, shape (*channels,): float64, on the host."""
    some: int
    """Number of samples with a weight other than 0."""
    lot: Any
    """A random number per kept sample, on the host; the samples with the lowest are kept."""
    x: Array
    w: Array


class Survey(NamedTuple):
    """What the first compute finds."""

    error: Exception | None
    """The error of the first bad block, or None."""
    samples: int
    """Number of samples."""
    moved: Moved
    domains: dict[Any, Drawn]
    most: int = 0
    """How many samples are kept, of all domains together."""


def survey(blocks: DaskBlocks, reading: Reading) -> Survey:
    """Check all samples, add up their weights, and draw some: one compute."""
    found: Survey | None = blocks.reduce("gyrobn-check-and-draw", _survey, _surveyed, reading)
    if found is None:
        raise ValueError("an empty batch has no mean: there are no samples")
    if found.error is not None:
        raise found.error
    if not found.domains:  # no sample belongs to a requested domain
        return found
    labels = sorted(found.domains) if None not in found.domains else [None]
    totals = np.stack([found.domains[d].total for d in labels])
    if not totals.any():
        raise ValueError("sample_weight is zero for every sample: there is no mean")
    check_weights(totals, totals)
    return found._replace(domains={d: found.domains[d] for d in labels})


def _survey(block: Block, reading: Reading) -> Survey:
    """Look at a block for the first time, in a task."""
    moved = Moved()
    try:
        x, w = reading.samples(block, moved)
        check_weights(w, sum_samples(w) + 1.0)  # a block may weigh nothing
        places = reading.places(block)
    except (ValueError, TypeError) as error:
        return Survey(error, block.x.shape[0], moved, {})
    xp, count = namespace_of(x), x.shape[0]
    lot = np.random.default_rng([0, block.number]).random(count)
    most, domains = most_kept(reading.manifold, x), {}
    for label, at in places.items():
        own, size = _some(w, at), count if at is None else len(at)
        some = xp.any(xp.reshape(own, (size, -1)) != 0, axis=1)
        some = int(xp.sum(xp.astype(some, xp.int32)))
        total = host(xp.sum(xp.astype(own, xp.float64, copy=False), axis=0))
        drawn = Drawn(total, some, lot if at is None else lot[at], _some(x, at), own)
        # twice the share of the block, so that those with the lowest numbers of all are there
        domains[label] = _lucky(drawn, min(most, 2 * most * size // block.total))
    return Survey(None, count, moved, domains, most)


def _like(weights: Any, x: Array) -> Array:
    """Return weights, from whatever library, in the library, dtype and device of samples."""
    return backend_of(x).from_numpy(np.array(host(weights, "sample_weight")), x)


def _some(x: Array, at: Any) -> Array:
    """Return the samples with such indices; all of them by None."""
    return x if at is None else take(x, at)


def _surveyed(parts: list[Survey]) -> Survey:
    """Merge the results of several blocks."""
    error = next((part.error for part in parts if part.error is not None), None)
    moved = Moved.merged(part.moved for part in parts)
    labels = {label for part in parts for label in part.domains}
    most, domains = max(part.most for part in parts), {}
    for label in [] if error is not None else labels:
        found = [part.domains[label] for part in parts if label in part.domains]
        total, count = (sum(d[i] for d in found) for i in range(2))
        lot, x, w = (
            namespace_of(d[0]).concat(d) for d in zip(*(d[2:] for d in found), strict=True)
        )
        domains[label] = _lucky(Drawn(total, count, lot, x, w), most // len(labels))
    return Survey(error, sum(part.samples for part in parts), moved, domains, most)


def _lucky(drawn: Drawn, most: int) -> Drawn:
    """Keep the samples with the lowest numbers."""
    stay = np.argsort(drawn.lot, kind="stable")[: max(LEAST, most)]
    kept = (take(values, stay) for values in drawn[2:])
    return Drawn(*drawn[:2], *kept)


class Scattered(Streamed):
    """Samples in a Dask array, of one domain or of several, which are channels.

    Each look is one compute.
    """

    def __init__(self, blocks: DaskBlocks, reading: Reading, found: Survey) -> None:
        self.blocks, self.reading = blocks, reading
        drawn = list(found.domains.values())
        # the sums of all weights, on the host, and the place of each domain in these
        if None in found.domains:
            self.total, self.number = drawn[0].total, None
            x, w = drawn[0].x, drawn[0].w
        else:
            self.total = np.stack([d.total for d in drawn])
            self.number = {label: k for k, label in enumerate(found.domains)}
            x, w = _side_by_side(drawn)
        space, y = reading.manifold.inside, reading.manifold.to_inside(x)
        self.manifold, self.held = space, Held(space, y, shares(w, sum_samples(w)))

    def look(self, mean: Array) -> Look:
        """Return the sums over all blocks."""
        there = self.reading, mean, self.total, self.number  # which is sent to the workers
        sums: dict[int, Sums] = self.blocks.reduce("gyrobn-look-at-mean", _look_at, _add_up, there)
        if self.number is None:
            return sums[0].look(mean)
        *arrays, ones = zip(*(sums[k] for k in range(len(sums))), strict=True)
        xp = namespace_of(mean)
        stacked = (None if a[0] is None else xp.stack(a) for a in arrays)
        return Sums._make((*stacked, ones[0])).look(mean)


def _side_by_side(drawn: list[Drawn]) -> tuple[Array, Array]:
    """Return the samples of several domains as channels, (most, domains, ...).

    Padding has the weight 0 and is the first sample of the same domain, so it is never the
    farthest from the mean.
    """
    numbers, xp = np.arange(max(len(d.lot) for d in drawn)), namespace_of(drawn[0].x)
    rows = [np.where(numbers < len(d.lot), numbers, 0) for d in drawn]
    x, w = (
        xp.stack([take(d[i], at) for d, at in zip(drawn, rows, strict=True)], axis=1)
        for i in (3, 4)
    )
    padding = numbers[:, None] >= np.asarray([len(d.lot) for d in drawn])
    padding = xp.asarray(padding, device=device_of(w))[(..., *(None,) * (w.ndim - 2))]
    return x, xp.where(padding, 0.0, w)


def _look_at(block: Block, there: tuple[Reading, Array, Any, Any]) -> dict[int, Sums]:
    """Return the sums over a block, by the number of the domain; runs in a task."""
    reading, mean, total, number = there
    manifold, found = reading.manifold, {}
    x, w = reading.samples(block)
    y = manifold.to_inside(x)
    for label, at in reading.places(block).items():
        k, which = (0, ...) if number is None else (number[label], (number[label], ...))
        share = _some(w, at) / _like(total[which], w)
        found[k] = look_at_part(manifold.inside, mean[which], _some(y, at), share)
    return found


def _add_up(parts: list[dict[int, Sums]]) -> dict[int, Sums]:
    """Add the sums of several blocks."""
    found: dict[int, Sums] = {}
    for part in parts:
        for k, new in part.items():
            found[k] = new if k not in found else _added(found[k], new)
    return found


def _added(a: Any, b: Any) -> Sums:
    xp = namespace_of(a.g)
    return Sums(
        a.g + b.g,
        a.variance + b.variance,
        None if a.far is None else xp.maximum(a.far, b.far),
        xp.maximum(a.resolution, b.resolution),
        None if a.matrix is None else a.matrix + b.matrix,
        None if a.lowest is None else a.lowest + b.lowest,
        a.one,
    )


def scattered(manifold: GyroSpace, X: Any, weights: Any) -> Scattered:
    """Return the samples of a Dask array as the loop wants them, inside a manifold."""
    X = lazy_samples(X, "x")
    points = manifold.point_shape
    if X.shape[X.ndim - len(points) :] != points or X.ndim == len(points):
        raise ValueError(
            f"{manifold!r} expects x of shape (N, *channels, *{points}), got {X.shape}"
        )
    blocks = DaskBlocks(X).with_parts(weights)
    reading = Reading(manifold)
    return Scattered(blocks, reading, survey(blocks, reading))
