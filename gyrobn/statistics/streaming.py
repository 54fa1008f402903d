r"""The mean of more samples than memory holds, exactly, by the same loop.

Each evaluation is a pass over all chunks, and sums

.. math:: g = \sum_i w_i c_i, \qquad v^2 = \sum_i w_i \|c_i\|^2, \qquad
          c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i)

with the rounding errors of the sums carried along. The Hessian decides how fast the loop arrives,
and not where. It is summed, too, where it is a small matrix; otherwise it is that of some samples
that are kept in memory, drawn by lot. From their mean the loop starts. A large array in memory is
looked at in the same way, in blocks that fit the cache.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, device_of, namespace_of
from gyrobn.data.chunks import BYTES, Chunks, Rows, take
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import blocks_of, scalars_like, sum_samples
from gyrobn.numerics.hessian import DENSE, Hessian, matrix_hessian
from gyrobn.numerics.solvers import newton_step
from gyrobn.statistics.held import Held, Look, Samples, choose
from gyrobn.statistics.newton import Search, solve
from gyrobn.statistics.samples import check_weights, set_aside, shares

MOST = 8192
"""How many samples are kept in memory at most."""
SMALL = 32
"""Largest dimension in which the Hessians of all parts are summed."""


def streamed(manifold: GyroSpace, chunks: Chunks, weights: Array | None) -> "Streamed":
    """Return samples in chunks as the loop wants them, in the space inside a manifold."""
    if weights is not None and weights.shape[0] != chunks.total:
        raise ValueError(f"there are {chunks.total} samples and {weights.shape[0]} weights")
    kept, total = _draw(manifold, chunks, weights)

    def read() -> Iterator[tuple[Array, Array]]:
        for rows, x in chunks.numbered():
            x, w = weighted(manifold, x, rows, weights)
            yield manifold.to_inside(x), w / total

    return Streamed(read, kept)


class Sums(NamedTuple):
    """Sums over some samples, seen from a mean: a few numbers, which can be added."""

    g: Array
    variance: Array
    far: Array | None
    """This and the next are not added: the largest counts."""
    resolution: Array
    matrix: Array | None
    """The Hessian, if it is small."""
    lowest: Array | None
    """A lower bound of its eigenvalues."""
    one: bool
    """Whether none is below 1."""

    def look(self, mean: Array) -> Look:
        """Return the sums over all samples as the loop wants them."""
        hessian = None
        if self.matrix is not None:
            hessian = matrix_hessian(self.matrix, self.lowest, self.one)
        return Look(hessian, mean, *self[:4])


def look_at_part(manifold: GyroSpace, mean: Array, x: Array, w: Array) -> Sums:
    """Return the sums over some samples, seen from a mean."""
    view, _, *sums = Held(manifold, x, w).look(mean)
    hessian = small_hessian(view, w)
    if hessian is None or hessian.matrix is None:
        return Sums._make((*sums, None, None, False))
    return Sums._make((*sums, hessian.matrix(), hessian.lowest(), hessian.at_least_one))


class Streamed:
    """Samples that are read part by part: chunks, which are read again in each evaluation.

    Some of them are held in memory.
    """

    def __init__(self, read: Callable[[], Iterator[tuple[Array, Array]]], held: Held) -> None:
        self.manifold, self.read, self.held = held.manifold, read, held

    def start(self) -> Array:
        """Return the mean of the samples that are held, to a few digits."""
        return solve(self.held, None, Search(tol=1e-3)).mean

    def look(self, mean: Array) -> Look:
        """Return the sums over all parts."""
        xp = namespace_of(mean)
        g, variance, matrix, lowest = _Sum(), _Sum(), _Sum(), _Sum()
        far = resolution = None
        for x, w in self.read():
            own = look_at_part(self.manifold, mean, x, w)
            del x  # before the next part comes
            g.add(own.g)
            variance.add(own.variance)
            far = own.far if far is None else xp.maximum(far, own.far)
            fine = own.resolution
            resolution = fine if resolution is None else xp.maximum(resolution, fine)
            if own.matrix is not None:
                matrix.add(own.matrix)
                lowest.add(own.lowest)
        sums = Sums(g.total, variance.total, far, resolution, matrix.total, lowest.total, own.one)
        return sums.look(mean)

    def step(self, now: Look, accuracy: float) -> Array:
        """Return the Newton step, with the Hessian of samples that are held if there is no other.

        It decides how fast the loop arrives, and not where.
        """
        hessian = now.view
        if hessian is None:
            hessian = self.manifold.centred(now.mean, self.held.x).hessian(self.held.w)
        step: Array = newton_step(hessian, now.g, accuracy)
        return step

    def shift(self, now: Look, step: Array) -> Array:
        """Return the mean after a step, as any view would."""
        return self.manifold.centred(now.mean, now.mean[None, ...]).shift(step)

    def merged(self, take: Array, new: Look, old: Look) -> Look:
        """Return the new look for channels to take, else the old."""
        if take.all():
            return new
        if not take.any():
            return old
        look, after, before = old.unless(take, new), new.view, old.view
        if after is None:
            return look
        matrix = choose(take, after.matrix(), before.matrix())
        lowest = choose(take, after.lowest(), before.lowest())
        return look._replace(view=matrix_hessian(matrix, lowest, after.at_least_one))


class Blocks(Streamed):
    """An array of samples, looked at in blocks that fit the cache; none is kept between looks."""

    def __init__(self, held: Held) -> None:
        self.manifold, self.held = held.manifold, held

    def read(self) -> Iterator[tuple[Array, Array]]:
        """Yield the blocks, with their weights."""
        for block in blocks_of(self.held.x):
            yield self.held.x[block], self.held.w[block]

    def start(self) -> Array:
        """Return a first guess of the mean."""
        return self.held.start()


def in_memory(held: Held) -> Samples:
    """Return samples as the loop wants them: in blocks if they are many and their sums are small.

    Blocks take less time and memory, but nothing is kept of the samples seen from the mean.
    """
    if len(blocks_of(held.x, 1024)) > 1 and not held.manifold.flat:
        one = slice(0, 1)
        view = held.manifold.centred(held.x[0, ...], held.x[one])
        if small_hessian(view, held.w[one]) is not None:
            return Blocks(held)
    return held


def small_hessian(view: Centred, w: Array) -> Hessian | None:
    """Return the Hessian of some samples if it is a small matrix in closed form, to be summed."""
    if view.space.dim > SMALL:
        return None
    hessian = view.hessian(w)
    return None if hessian.matrix is None else hessian


class _Sum:
    """A sum, with the rounding error of each addition given to the next one (Kahan)."""

    total: Array = None
    lost: Array = 0.0

    def add(self, x: Array) -> None:
        if self.total is None:
            self.total = x
            return
        old, more = self.total, x + self.lost
        self.total = old + more
        part = self.total - old
        self.lost = (old - (self.total - part)) + (more - part)


def _draw(manifold: GyroSpace, chunks: Chunks, weights: Array | None) -> tuple[Held, Array]:
    """Return random samples with their weights, inside a manifold, and the sum of all weights.

    Each sample draws a number, and those with the lowest stay.
    """
    rng = np.random.default_rng(0)
    total = _Sum()
    kept: tuple[Any, Array, Array] | None = None
    for rows, x in chunks.numbered():
        xp = manifold._namespace(x)
        x, w = weighted(manifold, x, rows, weights)
        check_weights(w, sum_samples(w) + 1.0, int(rows[0]))  # a chunk may weigh nothing
        total.add(sum_samples(w))
        most = most_kept(manifold, x)
        drawn = rng.random(len(rows))
        if kept is not None:
            lucky = np.flatnonzero(drawn < kept[0].max() if len(kept[0]) == most else drawn < 1.0)
            drawn = np.concatenate([kept[0], drawn[lucky]])
            x = xp.concat([kept[1], take(x, lucky)])
            w = xp.concat([kept[2], take(w, lucky)])
        stay = np.argsort(drawn, kind="stable")[:most]
        kept = drawn[stay], take(x, stay), take(w, stay)
    if kept is None:
        raise ValueError("an empty batch has no mean: there are no samples")
    _, x, w = kept
    check_weights(w, total.total)
    held = Held(manifold.inside, manifold.to_inside(x), shares(w, sum_samples(w)))
    return held, total.total


def most_kept(manifold: GyroSpace, x: Array) -> int:
    """Return how many samples like x are kept in memory."""
    columns = manifold.dim if manifold.dim <= DENSE else 8  # the Hessian takes these at once
    size: int = 8 * math.prod(x.shape[1:]) * columns
    return min(MOST, max(64, 16 * BYTES // size))


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
