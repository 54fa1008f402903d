r"""The mean of samples in a Dask array, exactly, by the same loop.

Each evaluation is one ``compute``: a task per block sums what it sees from the mean, as with a
chunk, and further tasks add the sums up a tree. The statistics of several domains are found
together, as channels: a task looks at the samples of each domain from the mean of that domain.
Before the first evaluation another ``compute`` checks the samples, and adds up weights and moments.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data.chunks import take
from gyrobn.data.dask import Block, DaskBlocks, lazy_samples
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import sum_samples, weighted_sum
from gyrobn.numerics.checks import host
from gyrobn.statistics.parts import Parts, weighted
from gyrobn.statistics.points import Moved, on_manifold
from gyrobn.statistics.samples import check_weights
from gyrobn.statistics.sources import Sums


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


class Domain(NamedTuple):
    """What is known of a domain before the search of its mean."""

    total: Any
    """Sum of the weights, shape (*channels,): float64, on the host."""
    some: int
    """Number of samples with a weight other than 0."""
    moments: Array
    """Sum of the weighted moments."""


class Survey(NamedTuple):
    """What the first compute finds."""

    error: Exception | None
    """The error of the first bad block, or None."""
    samples: int
    """Number of samples."""
    moved: Moved
    domains: dict[Any, Domain]


def survey(blocks: DaskBlocks, reading: Reading) -> Survey:
    """Check all samples, and add up their weights and moments: one compute."""
    found: Survey | None = blocks.reduce("gyrobn-check", _survey, _surveyed, reading)
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
    moved, manifold = Moved(), reading.manifold
    try:
        x, w = reading.samples(block, moved)
        check_weights(w, sum_samples(w) + 1.0)  # a block may weigh nothing
        places = reading.places(block)
    except (ValueError, TypeError) as error:
        return Survey(error, block.x.shape[0], moved, {})
    xp, moments, domains = namespace_of(x), manifold.inside.moments(manifold.to_inside(x)), {}
    for label, at in places.items():
        own = _some(w, at)
        some = host(own).reshape(own.shape[0], -1).any(axis=1).sum()
        total = host(xp.sum(xp.astype(own, xp.float64, copy=False), axis=0))
        domains[label] = Domain(total, int(some), weighted_sum(own, _some(moments, at)))
    return Survey(None, block.x.shape[0], moved, domains)


def _surveyed(parts: list[Survey]) -> Survey:
    """Merge the results of several blocks."""
    error = next((part.error for part in parts if part.error is not None), None)
    domains: dict[Any, Domain] = {}
    for part in parts:
        for label, own in part.domains.items():
            if label in domains:
                own = Domain(*(a + b for a, b in zip(domains[label], own, strict=True)))
            domains[label] = own
    moved = Moved.merged(part.moved for part in parts)
    return Survey(error, sum(part.samples for part in parts), moved, domains)


def _like(weights: Any, x: Array) -> Array:
    """Return weights, from whatever library, in the library, dtype and device of samples."""
    return backend_of(x).from_numpy(np.array(host(weights, "sample_weight")), x)


def _some(x: Array, at: Any) -> Array:
    """Return the samples with such indices; all of them by None."""
    return x if at is None else take(x, at)


class Scattered(Parts):
    """Samples in a Dask array, of one domain or of several, which are channels.

    Each evaluation is one compute.
    """

    def __init__(self, blocks: DaskBlocks, reading: Reading, found: Survey) -> None:
        self.blocks, self.reading, self.space = blocks, reading, reading.manifold.inside
        # the place of each domain in the arrays; None if there is only one
        labels = None if None in found.domains else list(found.domains)
        self.number = None if labels is None else {label: k for k, label in enumerate(labels)}
        totals, _, moments = zip(*found.domains.values(), strict=True)
        xp = namespace_of(moments[0])
        self.total_weight = totals[0] if labels is None else np.stack(totals)
        self.moments = moments[0] if labels is None else xp.stack(list(moments))

    def start(self) -> Array:
        """Return a first guess of the mean."""
        total = _like(self.total_weight, self.moments)
        return self.space.start(self.moments / total[..., None])

    def total(self, function: Callable[..., Sums], mean: Array, *arrays: Array) -> Sums:
        """Return the sum of ``function(view, w, *arrays)`` over all blocks, by one compute."""
        there = function, self.reading, self.total_weight, self.number, (mean, *arrays)
        found: dict[int, Sums] = self.blocks.reduce("gyrobn-evaluate", _part, _added, there)
        if self.number is None:
            return found[0]
        each = zip(*(found[k] for k in range(len(found))), strict=True)
        return Sums(*(namespace_of(mean).stack(list(sums)) for sums in each))


def _part(block: Block, there: tuple[Any, ...]) -> dict[int, Sums]:
    """Return the sums over a block, by the number of the domain; runs in a task."""
    function, reading, total, number, arrays = there
    manifold, found = reading.manifold, {}
    x, w = reading.samples(block)
    y = manifold.to_inside(x)
    for label, at in reading.places(block).items():
        k, which = (0, ...) if number is None else (number[label], (number[label], ...))
        mean, *rest = (a[which] for a in arrays)
        view = manifold.inside.centred(mean, _some(y, at))
        found[k] = function(view, _some(w, at) / _like(total[which], w), *rest)
    return found


def _added(parts: list[dict[int, Sums]]) -> dict[int, Sums]:
    """Add the sums of several blocks."""
    found: dict[int, Sums] = {}
    for part in parts:
        for k, new in part.items():
            old, xp = found.get(k), namespace_of(new.added)
            if old is not None:
                new = Sums(old.added + new.added, xp.maximum(old.most, new.most))
            found[k] = new
    return found


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
