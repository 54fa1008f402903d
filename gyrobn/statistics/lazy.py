"""The mean of samples that are read block by block: of large arrays, chunks, and Dask arrays.

Each evaluation is one pass, or one ``compute``: what each block sees from the mean is summed, and
the sums are added up a tree. The statistics of several domains are found together, as channels: a
block looks at the samples of each domain from the mean of that domain. Before the first evaluation
another pass checks the samples, and adds up weights and moments.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.data.chunks import Chunks, take
from gyrobn.data.dask import Block, DaskBlocks, lazy_samples
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import blocks_of, real_dtype, real_like, sum_samples, weighted_sum
from gyrobn.numerics.checks import host
from gyrobn.numerics.hessian import DENSE
from gyrobn.statistics.points import Moved, on_manifold
from gyrobn.statistics.samples import (
    Memory,
    Ranks,
    Source,
    Sums,
    check_weights,
    set_aside,
    shape_error,
)


class Reading(NamedTuple):
    """How a block is read; it is sent to the workers."""

    manifold: GyroSpace
    split: Callable[[Any, int], dict[Any, Any]] | None = None
    """Returns the indices of each domain, for the labels and the number of samples."""
    check: bool = False
    """Whether samples must be on the manifold."""
    project: bool = False
    """Whether those that are not are projected."""

    def samples(self, block: Block, moved: Moved | None = None) -> tuple[Array, Array]:
        """Return samples, with padding set aside, and their weights, shape (n, *channels).

        With ``moved``, check the samples first.
        """
        manifold, x = self.manifold, backend_of(block.x).stop_gradient(block.x)
        if self.project or (self.check and moved is not None):
            x = on_manifold(manifold, x, project=self.project, first=block.first, moved=moved)
        xp = manifold._namespace(x)
        batch = tuple(x.shape[: x.ndim - len(manifold.point_shape)])
        if block.weights is None:
            return x, xp.ones(batch, dtype=real_dtype(x), device=device_of(x))
        w = _like(block.weights, x)
        if tuple(w.shape) not in (batch[:1], batch):
            raise shape_error(("N", *w.shape[1:]), ("N",), ("N", *batch[1:]))
        w = xp.broadcast_to(w[(..., *(None,) * (len(batch) - w.ndim))], batch)
        return set_aside(manifold, x, w)[0], w

    def places(self, block: Block) -> dict[Any, Any]:
        """Return the indices of the samples of each domain; the key None stands for all samples."""
        if block.labels is None or self.split is None:
            return {None: None}
        return self.split(block.labels, block.x.shape[0])


class LocalBlocks(NamedTuple):
    """Blocks that are read one after the other."""

    read: Callable[[], Iterable[Block]]

    def reduce(
        self,
        name: str,
        function: Callable[..., Any],
        merge: Callable[[list[Any]], Any],
        *common: Any,
    ) -> Any:
        """Return ``merge`` of ``function(block, *common)`` over all blocks, as ``DaskBlocks`` does.

        Sums of 2ᵏ blocks are merged, so rounding errors grow with the logarithm of their number.
        """
        found: list[Any] = []
        for number, block in enumerate(self.read(), 1):
            found.append(function(block, *common))
            del block  # before the next one comes
            while number % 2 == 0:
                found[-2:], number = [merge(found[-2:])], number // 2
        return merge(found) if found else None


# ---------------------------------------------------------------------- the first pass


class Domain(NamedTuple):
    """The sums over a domain before the search of its mean."""

    weight: Any
    """Sum of the weights, shape (*channels,): float64, on the host."""
    weighted: int
    """Number of samples with a weight other than 0."""
    moments: Array
    """Sum of the weighted moments."""

    def plus(self, other: "Domain") -> "Domain":
        """Return the sums over the samples of both."""
        return Domain(*(a + b for a, b in zip(self, other, strict=True)))


class Survey(NamedTuple):
    """What the first pass finds."""

    error: Exception | None
    """The error of the first bad block, or None."""
    samples: int
    """Number of samples."""
    moved: Moved
    domains: dict[Any, Domain]


def survey(blocks: DaskBlocks | LocalBlocks, reading: Reading) -> Survey:
    """Check all samples, and add up their weights and moments: one pass."""
    found: Survey | None = blocks.reduce("gyrobn-check", _survey, _surveyed, reading)
    if found is None:
        raise ValueError("an empty batch has no mean: there are no samples")
    if found.error is not None:
        raise found.error
    if not found.domains:  # no sample belongs to a requested domain
        return found
    labels = sorted(found.domains) if None not in found.domains else [None]
    domains = {d: found.domains[d] for d in labels}
    weights = _stacked(domains, [d.weight for d in domains.values()])
    check_weights(weights, weights)
    return found._replace(domains=domains)


def _survey(block: Block, reading: Reading) -> Survey:
    """Look at a block for the first time, in a task."""
    moved, manifold = Moved(), reading.manifold
    try:
        x, w = reading.samples(block, moved)
        check_weights(w, sum_samples(w) + 1.0, block.first)  # a block may weigh nothing
        places = reading.places(block)
    except (ValueError, TypeError) as error:
        return Survey(error, block.x.shape[0], moved, {})
    moments, domains = manifold.inside.moments(manifold.to_inside(x)), {}
    for label, at in places.items():
        own = _some(w, at)
        here = host(own).astype(np.float64)
        count = np.any(here.reshape(len(here), -1), axis=1).sum()
        domains[label] = Domain(here.sum(axis=0), int(count), weighted_sum(own, _some(moments, at)))
    return Survey(None, block.x.shape[0], moved, domains)


def _surveyed(parts: list[Survey]) -> Survey:
    """Merge the results of several blocks."""
    errors, counts, moved, domains = zip(*parts, strict=True)
    error = next((error for error in errors if error is not None), None)
    return Survey(error, sum(counts), Moved.merged(moved), _merged(list(domains)))


def _merged(parts: list[dict[Any, Any]]) -> dict[Any, Any]:
    """Merge the sums of several blocks, by label."""
    found: dict[Any, Any] = {}
    for part in parts:
        for label, new in part.items():
            found[label] = found[label].plus(new) if label in found else new
    return found


def _like(values: Any, x: Array) -> Array:
    """Return numbers, from whatever library, in the library, dtype and device of samples."""
    return backend_of(x).from_numpy(np.array(host(values, "sample_weight")), real_like(x))


def _some(x: Array, at: Any) -> Array:
    """Return the samples with such indices; all of them by None."""
    return x if at is None else take(x, at)


def _stacked(domains: dict[Any, Any], arrays: list[Array]) -> Array:
    """Return an array of each domain as one, the domains in order."""
    return arrays[0] if None in domains else namespace_of(arrays[0]).stack(arrays)


# ---------------------------------------------------------------------- the source


class Parts(Source):
    """Samples of which each evaluation reads all blocks, of one domain or of several as channels.

    There may be more of them than memory holds.
    """

    def __init__(
        self, blocks: DaskBlocks | LocalBlocks, reading: Reading, found: Survey | None = None
    ) -> None:
        self.blocks, self.reading, self.space = blocks, reading, reading.manifold.inside
        self.domains = (survey(blocks, reading) if found is None else found).domains
        self.weight = _stacked(self.domains, [d.weight for d in self.domains.values()])

    def start(self) -> Array:
        """Return a first guess of the mean."""
        moments = _stacked(self.domains, [d.moments for d in self.domains.values()])
        return self.space.start(moments / _like(self.weight, moments)[..., None])

    def total(self, function: Callable[..., Sums], view: Centred, *arrays: Array) -> Sums:
        """Return the sum over all blocks, in one pass."""
        # the place of each domain in the arrays
        places = {label: (k, ...) for k, label in enumerate(self.domains) if label is not None}
        there = function, self.reading, self.weight, places, (view.mean, *arrays)
        found = self.blocks.reduce("gyrobn-evaluation", _part, _merged, there)
        sums = zip(*(found[label] for label in self.domains), strict=True)
        return Sums(*(_stacked(self.domains, list(part)) for part in sums))


LEAST = 2**18
"""How many numbers the Hessians of samples may always have together."""


def _part(block: Block, there: tuple[Any, ...]) -> dict[Any, Sums]:
    """Return the sums over a block, by domain; runs in a task.

    A large block is cut again, so that the Hessians of its samples are not many times as large.
    """
    function, reading, weight, places, arrays = there
    (x, w), space = reading.samples(block), reading.manifold.inside
    found: dict[Any, Any] = {}
    x = reading.manifold.to_inside(x)
    for label, at in reading.places(block).items():
        place = places.get(label, ...)
        mean, *rest = (a[place] for a in arrays)
        y, own = _some(x, at), _some(w, at) / _like(weight[place], w)
        size = max(LEAST, 4 * math.prod(y.shape))
        rows = max(1, size // (space.dim**2 * math.prod(own.shape[1:])))
        found[label] = None
        for k in range(0, y.shape[0], rows):
            some = slice(k, min(k + rows, y.shape[0]))
            new = function(space.centred(mean, y[some, ...]), own[some, ...], *rest)
            found[label] = new if found[label] is None else found[label].plus(new)
    return found


def in_blocks(memory: Memory) -> Source:
    """Return samples in memory as blocks that fit the cache, if they are many NumPy arrays.

    Blocks take less time and memory, but nothing is saved of the samples seen from the mean.
    """
    x, w, space = memory.x, memory.w, memory.space
    blocks = blocks_of(x, 1024)
    if len(blocks) == 1 or isinstance(memory, Ranks) or space.flat or space.dim > DENSE:
        return memory
    each = LocalBlocks(lambda: (Block(0, x[b], w[b]) for b in blocks))
    return Parts(each, Reading(space))


def in_chunks(manifold: GyroSpace, chunks: Chunks, weights: Array | None) -> Parts:
    """Return samples in chunks."""
    if weights is not None and weights.shape[0] != chunks.total:
        raise ValueError(f"there are {chunks.total} samples and {weights.shape[0]} weights")

    def read() -> Iterator[Block]:
        for rows, x in chunks.numbered():
            yield Block(int(rows[0]), x, None if weights is None else take(weights, rows))

    return Parts(LocalBlocks(read), Reading(manifold))


def in_dask(manifold: GyroSpace, X: Any, weights: Any) -> tuple[Parts, Iterable[Array]]:
    """Return the samples of a Dask array, and an iterator over its blocks."""
    X = lazy_samples(X, "x")
    points = manifold.point_shape
    if X.shape[X.ndim - len(points) :] != points or X.ndim == len(points):
        raise ValueError(
            f"{manifold!r} expects x of shape (N, *channels, *{points}), got {X.shape}"
        )
    blocks = DaskBlocks(X, weights)
    return Parts(blocks, Reading(manifold)), blocks.each()
