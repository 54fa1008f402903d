"""Samples in a Dask array: blocks along the first axis, and sums of them up a tree.

The blocks are arrays of NumPy or of another eager library, and stay so. Dask is imported on first
use, by a function that was given a Dask array or asked for one.
"""

import uuid
from collections import ChainMap
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, device_of, namespace_of
from gyrobn.numerics.checks import host

TOGETHER = 8
"""How many results a task of the tree merges."""


class Block(NamedTuple):
    """Some neighbouring samples, in memory."""

    number: int
    first: int
    """The number of the first sample."""
    total: int
    """The number of samples in all blocks."""
    x: Any
    weights: Any = None
    labels: Any = None


def lazy_samples(X: Any, name: str = "X") -> Any:
    """Return a Dask array of samples, or say why its blocks hold none.

    NumPy numbers become floats. Arrays of other libraries must be floats, as in memory.

    >>> import dask.array as da
    >>> lazy_samples(da.ones((6, 2), chunks=(3, 1)))
    Traceback (most recent call last):
        ...
    ValueError: a block of X must hold whole samples, got chunks ((3, 3), (1, 1)): use \
X.rechunk({1: -1})
    """
    plain = type(X._meta) is np.ndarray
    if not plain and not _is_eager(X._meta):
        raise TypeError(
            f"the blocks of {name} are arrays of {type(X._meta).__module__}: GyroBN computes with "
            "Dask arrays of NumPy blocks, or of CuPy arrays, torch tensors or another eager "
            f"library, see {name}.map_blocks"
        )
    if X.ndim < 2:
        raise ValueError(f"expected {name} of shape (N, *channels, *point_shape), got {X.shape}")
    if plain and X.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers, got a Dask array of dtype {X.dtype}")
    cut = [axis for axis, chunks in enumerate(X.chunks) if axis and len(chunks) > 1]
    if cut:
        call = ", ".join(f"{axis}: -1" for axis in cut)
        raise ValueError(
            f"a block of {name} must hold whole samples, got chunks {X.chunks}: use "
            f"{name}.rechunk({{{call}}})"
        )
    return X.astype(np.float64) if plain and X.dtype not in (np.float32, np.float64) else X


def _is_eager(block: Any) -> bool:
    """Return whether Dask keeps such blocks as they are, and GyroBN can compute with them.

    Dask makes NumPy arrays of JAX arrays where it joins them. Subclasses of NumPy's arrays, such as
    masked arrays, have other rules.
    """
    if isinstance(block, np.ndarray) or compat.is_jax_array(block):
        return False
    return bool(compat.is_array_api_obj(block))


def stand_in(x: Any, rows: int) -> Array:
    """Return an array like the blocks of x, with ``rows`` samples, that takes no memory.

    Checks that need no values get it in place of x.
    """
    meta = x._meta
    xp = namespace_of(meta)
    zero = xp.zeros((), dtype=meta.dtype, device=device_of(meta))
    return xp.broadcast_to(zero, (rows, *x.shape[1:]))


class DaskBlocks:
    """The blocks of a Dask array of samples, with their weights and labels.

    ``x`` comes from :func:`lazy_samples`. If its chunk sizes are not known, the blocks are counted
    first, by one ``compute``.
    """

    def __init__(self, x: Any) -> None:
        import dask

        (optimized,) = dask.optimize(x)
        self._x = list(optimized.to_delayed(optimize_graph=False).ravel())
        self._weights: Sequence[Any] = [None] * len(self._x)
        self._labels: Sequence[Any] = self._weights
        self.counts: tuple[int, ...] = x.chunks[0]
        if not _known(x):
            self._first, self.total = [0] * len(self._x), 0
            found = self.reduce("gyrobn-count-samples", _count, _joined) or {}
            self.counts = tuple(found.get(number, 0) for number in range(len(self._x)))
        *self._first, self.total = np.cumsum([0, *self.counts]).tolist()

    def with_parts(self, weights: Any = None, labels: Any = None) -> "DaskBlocks":
        """Return the blocks with the weights and labels of their samples."""
        other = copy(self)
        if weights is not None:
            if not compat.is_dask_array(weights):
                weights = host(weights, "sample_weight")  # so that a task gets its part only
            other._weights = self._cut(weights, "sample_weight")
        if labels is not None:
            other._labels = self._cut(labels, "domains")
        return other

    def _cut(self, values: Any, name: str) -> list[Any]:
        """Return the part of each block."""
        if compat.is_dask_array(values):
            cut = cut_like(values, self.counts, name)
            return list(cut.to_delayed().ravel())
        return [
            values[first : first + count]
            for first, count in zip(self._first, self.counts, strict=True)
        ]

    def reduce(
        self,
        name: str,
        function: Callable[..., Any],
        merge: Callable[[list[Any]], Any],
        *common: Any,
    ) -> Any:
        """Return ``merge`` of ``function(block, *common)`` over all blocks, by one ``compute``.

        Blocks without samples are left out. ``merge`` takes a list of results in the order of the
        blocks and returns one of the same kind. ``name`` is that of the tasks, for progress bars
        and dashboards. What is ``common`` is sent to each worker once.
        """
        from dask import compute, delayed
        from dask.delayed import Delayed
        from dask.utils import ensure_dict

        token = uuid.uuid4().hex
        shared = [
            delayed(value, name=f"{name}-from-{token}-{i}", traverse=False)
            for i, value in enumerate(common)
        ]
        call, join = (delayed(task, pure=False, traverse=False) for task in (_call, _merge))
        parts, each = [], zip(self._first, self._x, self._weights, self._labels, strict=True)
        for number, (first, *own) in enumerate(each):
            given = (function, number, first, self.total, *own, *shared)
            parts.append(call(*given, dask_key_name=f"{name}-{token}-{number}"))
        level = 0
        while level == 0 or len(parts) > 1:
            level += 1
            parts = [
                join(
                    merge, *parts[i : i + TOGETHER], dask_key_name=f"{name}-sum-{token}-{level}-{i}"
                )
                for i in range(0, len(parts), TOGETHER)
            ]
        # in one layer: to look through many layers takes Dask longer than the tasks
        root = Delayed(parts[0].key, ensure_dict(parts[0].dask))
        (result,) = compute(root)
        return result

    def each(self) -> Any:
        """Yield the samples of each block, computed one block at a time."""
        for block in self._x:
            x = block.compute()
            if x.shape[0]:
                yield x


def cut_like(values: Any, counts: Sequence[Any], name: str) -> Any:
    """Return a Dask array of values, one per sample, cut as the samples are, lazily."""
    values = values.rechunk(dict.fromkeys(range(1, values.ndim), -1))
    if _known(values) and not np.isnan(sum(counts)):
        if values.shape[0] != sum(counts):
            raise ValueError(
                f"{name} has {values.shape[0]} entries, and X has {sum(counts)} samples"
            )
        return values.rechunk({0: tuple(counts)})
    if values.numblocks[0] != len(counts) or (_known(values) and np.isnan(sum(counts))):
        raise ValueError(
            f"{name} and X have chunks of unknown sizes, {values.chunks[0]} and {tuple(counts)}, "
            f"and cannot be brought together: call compute_chunk_sizes() on both, or cut {name} as "
            "X is cut"
        )
    return values


def _known(x: Any) -> bool:
    """Return whether the sizes of the chunks are known."""
    return not np.isnan(sum(x.chunks[0]))


def _call(
    function: Callable[..., Any],
    number: int,
    first: int,
    total: int,
    x: Any,
    weights: Any,
    labels: Any,
    *common: Any,
) -> Any:
    """Call a function of a block in a task; a block without samples has no result."""
    count = x.shape[0]
    if not count:
        return None
    for name, values in (("sample_weight", weights), ("domains", labels)):
        if values is not None and values.shape[0] != count:
            raise ValueError(
                f"block {number} of {name} has {values.shape[0]} entries, and that of X {count} "
                f"samples: cut {name} as X is cut"
            )
    with np.errstate(all="ignore"):  # what overflows is reported by the checks
        return function(Block(number, first, total, x, weights, labels), *common)


def _merge(merge: Callable[[list[Any]], Any], *parts: Any) -> Any:
    found = [part for part in parts if part is not None]
    return merge(found) if found else None


def _count(block: Block) -> dict[int, int]:
    return {block.number: block.x.shape[0]}


def _joined(parts: list[dict[int, int]]) -> dict[int, int]:
    return dict(ChainMap(*parts))
