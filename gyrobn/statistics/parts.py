"""Samples that are read part by part in each evaluation: chunks, and blocks of large arrays."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Self

from gyrobn.backends import Array, Arrays, device_of, namespace_of
from gyrobn.data.chunks import Chunks, Rows, take
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import scalars_like, sum_samples
from gyrobn.statistics.samples import (
    Evaluation,
    Memory,
    Sums,
    applied,
    check_weights,
    evaluation_of,
    first_sums,
    set_aside,
    sums_of,
)


class Parts:
    """Samples of which each evaluation reads all parts; ``read`` yields them with their weights.

    There may be more of them than memory holds. A Hessian beyond ``DENSE`` dimensions is not
    summed: each product with it is one more pass.
    """

    exact = False

    def __init__(
        self,
        space: GyroSpace,
        read: Callable[[], Iterable[tuple[Array, Array]]],
        start: Callable[[], Array],
    ) -> None:
        self.space, self.read, self.start = space, read, start

    def arrays(self) -> Arrays:
        """Return no arrays: nothing is traced."""
        return ()

    def with_arrays(self) -> Self:
        """Return the source."""
        return self

    def view(self, mean: Array, saved: Arrays = ()) -> Centred:
        """Return the view of a mean from itself."""
        return self.space.centred(mean, mean[None, ...])

    def evaluate(self, mean: Array) -> Evaluation:
        """Return what is seen from a mean, in one pass."""
        view, sums = self.view(mean), self.total(sums_of, mean)
        shape = view.hessian(namespace_of(mean).ones_like(view.squares[..., 0]))
        apply = lambda k, v: self.total(partial(applied, k), mean, v).added  # noqa: E731
        return evaluation_of(view, shape, sums, apply)

    def total(self, function: Callable[..., Sums], mean: Array, *arrays: Array) -> Sums:
        """Return the sum of ``function(view, w, *arrays)`` over all parts."""
        return total(self.space, self.read(), function, mean, *arrays)


Source = Memory | Parts
"""Samples whose mean is searched for."""


LEAST = 2**18
"""How many numbers the Hessians of samples may always have together."""


def total(
    space: GyroSpace,
    parts: Iterable[tuple[Array, Array]],
    function: Callable[..., Sums],
    mean: Array,
    *arrays: Array,
) -> Sums:
    """Return the sum of ``function(view, w, *arrays)`` over parts.

    A large part is cut again, so that the Hessians of its samples are not many times as large.
    """
    xp, added, most = namespace_of(mean), Sum(), None
    for x, w in parts:
        count = x.shape[0]
        rows = max(1, max(LEAST, 4 * math.prod(x.shape)) // (space.dim**2 * math.prod(w.shape[1:])))
        for k in range(0, count, rows):
            part = slice(k, k + rows) if k + rows < count else slice(k, None)
            view = space.centred(mean, x[part, ...])
            here = function(view, w[part, ...], *arrays)
            added.add(here.added)
            most = here.most if most is None else xp.maximum(most, here.most)
            del view
        del x  # before the next part comes
    return Sums(added.total, most)


class Sum:
    """A sum, with the rounding error of each addition given to the next one (Kahan)."""

    total: Array = None
    lost: Array = 0.0

    def add(self, x: Array) -> None:
        """Add numbers."""
        if self.total is None:
            self.total = x
            return
        old, more = self.total, x + self.lost
        self.total = old + more
        part = self.total - old
        self.lost = (old - (self.total - part)) + (more - part)


def in_chunks(manifold: GyroSpace, chunks: Chunks, weights: Array | None) -> Parts:
    """Return samples in chunks, in the space inside a manifold; one pass checks their weights."""
    if weights is not None and weights.shape[0] != chunks.total:
        raise ValueError(f"there are {chunks.total} samples and {weights.shape[0]} weights")
    space, sums = manifold.inside, Sum()
    for rows, x in chunks.numbered():
        manifold._namespace(x)
        x, w = weighted(manifold, x, rows, weights)
        check_weights(w, sum_samples(w) + 1.0, int(rows[0]))  # a chunk may weigh nothing
        sums.add(first_sums(space, manifold.to_inside(x), w))
    if sums.total is None:
        raise ValueError("an empty batch has no mean: there are no samples")
    whole = sums.total[..., 0]
    check_weights(w, whole)

    def read() -> Iterator[tuple[Array, Array]]:
        for rows, x in chunks.numbered():
            x, w = weighted(manifold, x, rows, weights)
            yield manifold.to_inside(x), w / whole

    return Parts(space, read, lambda: space.start(sums.total[..., 1:] / whole[..., None]))


def weighted(
    manifold: GyroSpace, x: Array, rows: Rows, weights: Array | None
) -> tuple[Array, Array]:
    """Return a chunk with padding set aside, and its weights, shape (n, *channels)."""
    xp = namespace_of(x)
    batch = tuple(x.shape[: x.ndim - len(manifold.point_shape)])
    if weights is None:
        return x, xp.ones(batch, dtype=x.dtype, device=device_of(x))
    w = take(scalars_like(weights, x), rows)
    if tuple(w.shape) not in (batch[:1], batch):
        raise ValueError(
            f"weights must have the shape of the samples, (N,), or of the whole batch, "
            f"(N, {', '.join(map(str, batch[1:]))}); got {tuple(weights.shape)}"
        )
    w = xp.broadcast_to(w[(..., *(None,) * (len(batch) - w.ndim))], batch)
    return set_aside(manifold, x, w)[0], w
