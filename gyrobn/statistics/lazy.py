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
from gyrobn.statistics.parts import Parts, total, weighted
from gyrobn.statistics.points import Moved, on_manifold
from gyrobn.statistics.samples import Sums, check_weights


class Reading(NamedTuple):
    """How a task reads a block; it is sent to the workers."""

    manifold: GyroSpace
    split: Callable[[Any, int], dict[Any, Any]] | None = None
    """Returns the indices of each domain, for the labels and the number of samples."""
    check: bool = False
    """Whether samples must be on the manifold."""
    project: bool = False
    """Whether those that are not are projected."""

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
    """The sums over a domain before the search of its mean."""

    weight: Any
    """Sum of the weights, shape (*channels,): float64, on the host."""
    weighted: int
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
    weights = np.stack([found.domains[d].weight for d in labels])
    if not weights.any():
        raise ValueError("sample_weight is zero for every sample: there is no mean")
    check_weights(weights, weights)
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
        count = host(own).reshape(own.shape[0], -1).any(axis=1).sum()
        weight = host(xp.sum(xp.astype(own, xp.float64, copy=False), axis=0))
        domains[label] = Domain(weight, int(count), weighted_sum(own, _some(moments, at)))
    return Survey(None, block.x.shape[0], moved, domains)


def _surveyed(parts: list[Survey]) -> Survey:
    """Merge the results of several blocks."""
    errors, counts, moved, domains = zip(*parts, strict=True)
    error = next((error for error in errors if error is not None), None)
    return Survey(error, sum(counts), Moved.merged(moved), _merged(list(domains)))


def _merged(parts: list[dict[Any, Any]]) -> dict[Any, Any]:
    """Merge the sums of several blocks, by label: the last of :class:`Sums` is a largest number."""
    found: dict[Any, Any] = {}
    for part in parts:
        for label, new in part.items():
            old = found.get(label)
            if isinstance(old, Sums):
                most = namespace_of(new.most).maximum(old.most, new.most)
                new = Sums(old.added + new.added, most)
            elif old is not None:
                new = Domain(*(a + b for a, b in zip(old, new, strict=True)))
            found[label] = new
    return found


def _like(weights: Any, x: Array) -> Array:
    """Return weights, from whatever library, in the library, dtype and device of samples."""
    return backend_of(x).from_numpy(np.array(host(weights, "sample_weight")), x)


def _some(x: Array, at: Any) -> Array:
    """Return the samples with such indices; all of them by None."""
    return x if at is None else take(x, at)


class Lazy(Parts):
    """Samples in a Dask array, of one domain or of several, which are channels.

    Each evaluation is one compute.
    """

    def __init__(self, blocks: DaskBlocks, reading: Reading, found: Survey) -> None:
        self.blocks, self.reading, self.space = blocks, reading, reading.manifold.inside
        labels, weights = list(found.domains), [d.weight for d in found.domains.values()]
        # the place of each domain in the arrays
        self.places: dict[Any, Any] = {label: (k, ...) for k, label in enumerate(labels)}
        self.weight = np.stack(weights)
        if labels == [None]:
            self.places, self.weight = {None: ...}, weights[0]
        moments = [
            d.moments / _like(d.weight, d.moments)[..., None] for d in found.domains.values()
        ]
        self.start = lambda: self.space.start(self.stacked(moments))

    def stacked(self, arrays: list[Array]) -> Array:
        """Return an array of each domain as one, the domains in order."""
        return arrays[0] if None in self.places else namespace_of(arrays[0]).stack(arrays)

    def total(self, function: Callable[..., Sums], mean: Array, *arrays: Array) -> Sums:
        """Return the sum of ``function(view, w, *arrays)`` over all blocks, by one compute."""
        there = function, self.reading, self.weight, self.places, (mean, *arrays)
        found: dict[Any, Sums] = self.blocks.reduce("gyrobn-evaluation", _part, _merged, there)
        added, most = zip(*(found[label] for label in self.places), strict=True)
        return Sums(self.stacked(list(added)), self.stacked(list(most)))


def _part(block: Block, there: tuple[Any, ...]) -> dict[Any, Sums]:
    """Return the sums over a block, by domain; runs in a task."""
    function, reading, weight, places, arrays = there
    manifold, found = reading.manifold, {}
    x, w = reading.samples(block)
    y = manifold.to_inside(x)
    for label, at in reading.places(block).items():
        mean, *rest = (a[places[label]] for a in arrays)
        own = _some(w, at) / _like(weight[places[label]], w)
        found[label] = total(manifold.inside, [(_some(y, at), own)], function, mean, *rest)
    return found


def source_of(manifold: GyroSpace, X: Any, weights: Any) -> Lazy:
    """Return the samples of a Dask array as a source, inside a manifold."""
    X = lazy_samples(X, "x")
    points = manifold.point_shape
    if X.shape[X.ndim - len(points) :] != points or X.ndim == len(points):
        raise ValueError(
            f"{manifold!r} expects x of shape (N, *channels, *{points}), got {X.shape}"
        )
    blocks = DaskBlocks(X, weights)
    reading = Reading(manifold)
    return Lazy(blocks, reading, survey(blocks, reading))
