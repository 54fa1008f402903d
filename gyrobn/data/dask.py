"""Samples in a Dask array: blocks along the first axis, and sums of them up a tree.

The blocks are arrays of NumPy or of another eager library, and stay so. Dask is imported on first
use, by a function that was given a Dask array or asked for one.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, device_of, namespace_of
from gyrobn.numerics.checks import host

TOGETHER = 8
"""How many results a task of the tree merges."""


class Block(NamedTuple):
    """Some neighbouring samples, in memory."""

    first: int
    """The number of the first sample."""
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
    # Dask makes NumPy arrays of JAX arrays where it joins them; masked arrays have other rules
    other = isinstance(X._meta, np.ndarray) or compat.is_jax_array(X._meta)
    if not plain and (other or not compat.is_array_api_obj(X._meta)):
        raise TypeError(
            f"the blocks of {name} are arrays of {type(X._meta).__module__}: GyroBN computes with "
            "Dask arrays of NumPy blocks, or of CuPy arrays, torch tensors or another eager "
            f"library, see {name}.map_blocks"
        )
    if X.ndim < 2:
        raise ValueError(f"expected {name} of shape (N, *channels, *point_shape), got {X.shape}")
    if plain and X.dtype.kind not in "biufc":
        raise TypeError(f"{name} must be numbers, got a Dask array of dtype {X.dtype}")
    cut = [axis for axis, chunks in enumerate(X.chunks) if axis and len(chunks) > 1]
    if cut:
        call = ", ".join(f"{axis}: -1" for axis in cut)
        raise ValueError(
            f"a block of {name} must hold whole samples, got chunks {X.chunks}: use "
            f"{name}.rechunk({{{call}}})"
        )
    return X.astype(np.float64) if plain and X.dtype.char not in "dfDF" else X


def counted(x: Any) -> Any:
    """Return a Dask array with known chunk sizes; if they are not, one ``compute`` counts them."""
    return x if _known(x.chunks[0]) else x.copy().compute_chunk_sizes()


def stand_in(x: Any, rows: int) -> Array:
    """Return an array like the blocks of x, with ``rows`` samples, that takes no memory.

    Checks that need no values get it in place of x.
    """
    xp = namespace_of(x._meta)
    zero = xp.zeros((), dtype=x._meta.dtype, device=device_of(x._meta))
    return xp.broadcast_to(zero, (rows, *x.shape[1:]))


class DaskBlocks:
    """The blocks of a Dask array of samples, with their weights and labels.

    ``x`` comes from :func:`lazy_samples`. If its chunk sizes are not known, it is counted first.
    """

    def __init__(self, x: Any, weights: Any = None, labels: Any = None) -> None:
        from dask import optimize

        x = counted(x)
        parts = [optimize(x)[0].to_delayed(optimize_graph=False).ravel()]
        for values, name in ((weights, "sample_weight"), (labels, "domains")):
            cut = None if values is None else cut_like(values, x.chunks[0], name)
            parts.append([None] * len(parts[0]) if cut is None else cut.to_delayed().ravel())
        starts = np.cumsum([0, *x.chunks[0][:-1]]).tolist()
        self._blocks = list(zip(starts, *parts, strict=True))

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

        token, number = uuid.uuid4().hex, count()

        def task(name: str, function: Callable[..., Any], *given: Any) -> Any:
            call = delayed(function, pure=False, traverse=False)
            return call(*given, dask_key_name=f"{name}-{token}-{next(number)}")

        shared = [task(f"{name}-from", _same, value) for value in common]
        parts = [task(name, _call, function, *block, *shared) for block in self._blocks]
        merged = False
        while not merged:
            groups = [parts[i : i + TOGETHER] for i in range(0, len(parts), TOGETHER)]
            parts = [task(f"{name}-sum", _merge, merge, *group) for group in groups]
            merged = len(parts) == 1
        # in one layer: to look through many layers takes Dask longer than the tasks
        root = Delayed(parts[0].key, ensure_dict(parts[0].dask))
        return compute(root)[0]

    def each(self) -> Iterator[Array]:
        """Yield the samples of each block, computed one block at a time."""
        for _, block, *_ in self._blocks:
            x = block.compute()
            if x.shape[0]:
                yield x


def cut_like(values: Any, counts: Sequence[Any], name: str) -> Any:
    """Return values, one per sample, as a Dask array that is cut as the samples are, lazily."""
    import dask.array as da

    if not compat.is_dask_array(values):  # each task gets its part only
        values = values if isinstance(values, np.ndarray) else host(values, name)
        cut = tuple(counts) if len(values) == sum(counts) else -1
        values = da.from_array(values, chunks=(cut, *values.shape[1:]))
    known = _known(values.chunks[0]), _known(counts)
    if all(known) and len(values) != sum(counts):
        raise ValueError(f"{name} has {len(values)} entries, and X has {sum(counts)} samples")
    values = values.rechunk(dict.fromkeys(range(1, values.ndim), -1))
    if all(known):
        return values.rechunk({0: tuple(counts)})
    if known[0] or values.numblocks[0] != len(counts):
        raise ValueError(
            f"{name} and X have chunks of unknown sizes, {values.chunks[0]} and {tuple(counts)}, "
            f"and cannot be brought together: call compute_chunk_sizes() on both, or cut {name} as "
            "X is cut"
        )
    return values


def _known(counts: Sequence[Any]) -> bool:
    return not np.isnan(sum(counts))


def _same(value: Any) -> Any:
    return value


def _call(function: Callable[..., Any], first: int, x: Any, w: Any, labels: Any, *rest: Any) -> Any:
    """Call a function of a block in a task; a block without samples has no result."""
    if not x.shape[0]:
        return None
    for name, values in (("sample_weight", w), ("domains", labels)):
        if values is not None and values.shape[0] != x.shape[0]:
            raise ValueError(
                f"the block of {name} from sample {first} on has {values.shape[0]} entries, and "
                f"that of X {x.shape[0]} samples: cut {name} as X is cut"
            )
    with np.errstate(all="ignore"):  # what overflows is reported by the checks
        return function(Block(first, x, w, labels), *rest)


def _merge(merge: Callable[[list[Any]], Any], *parts: Any) -> Any:
    found = [part for part in parts if part is not None]
    return merge(found) if found else None
