"""The engine Dask: tasks read, compute and write the samples, block by block and in parallel.

A task gets the paths of the files, and opens them where it runs.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.cli.console import Console
from gyrobn.cli.statistics import InOrder
from gyrobn.data import RegionWriter, StoredArray, create_regions
from gyrobn.data.chunks import rows_per_chunk
from gyrobn.data.dask import Block, DaskBlocks, from_stored
from gyrobn.data.joined import Change
from gyrobn.data.writing import PARALLEL
from gyrobn.estimator.applying import check_action
from gyrobn.estimator.labels import check_given, check_kind, labels_for
from gyrobn.estimator.lazy import apply_block, with_unseen
from gyrobn.estimator.validation import as_array
from gyrobn.statistics.points import Moved


@contextmanager
def on_dask(
    source: StoredArray, console: Console, workers: int | None, scheduler: str | None
) -> Iterator[InOrder]:
    """Yield an engine: the threads of this process, worker processes here, or a cluster."""
    if source.path.suffix.lower() not in PARALLEL:
        raise ValueError(
            f"{source.path} can only be read from its start: --engine dask takes .npy and .zarr "
            "files"
        )
    try:
        import dask.array
        import dask.diagnostics
    except ImportError as error:
        raise _missing("dask") from error
    engine = _OnDask(source, console)
    try:
        with ExitStack() as stack:
            if workers is not None or scheduler is not None:
                _connect(stack, workers, scheduler, console.live)
            elif console.live:
                stack.enter_context(dask.diagnostics.ProgressBar(out=sys.stderr))
            yield engine
    except Exception as error:
        if type(error).__name__ != "KilledWorker":
            raise
        raise OSError(
            "the workers died several times, perhaps for want of memory: give fewer --workers"
        ) from error


def _connect(stack: ExitStack, workers: int | None, scheduler: str | None, live: bool) -> None:
    """Start worker processes, or find the cluster."""
    try:
        import distributed
    except ImportError as error:
        raise _missing("distributed") from error
    # an interrupt leaves tasks behind, which Python would report one by one
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    place: Any = scheduler
    if place is None:
        # an error of a task is reported once, by the command
        place = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        )
        stack.enter_context(place)
    client = stack.enter_context(distributed.Client(place))
    if live and "dashboard" in client.scheduler_info()["services"]:
        print(f"gyrobn: progress at {client.dashboard_link}", file=sys.stderr)


class _OnDask(InOrder):
    """Tasks of Dask, one per block of samples."""

    def __init__(self, source: StoredArray, console: Console) -> None:
        super().__init__(source, console)
        self.rows = min(rows_per_chunk(source), len(source))
        self.blocks = from_stored(source, self.rows)

    def create(self, output: Path, change: Change) -> AbstractContextManager[Any]:
        """Return a context that makes the output and yields its writer."""
        return create_regions(output, change(self.source)[0], self.source.stored, self.rows)

    def samples(self, label: str) -> AbstractContextManager[Any]:
        """Return a context that yields the samples; Dask shows the progress."""
        return nullcontext(self.blocks)

    def write(self, bn: Any, out: Any, domains: Any, method: str) -> int:
        """Write the mapped samples; return how many points were moved onto the manifold."""
        check_given(bn.domains_, domains, method)
        labels = None if domains is None else labels_for(domains, len(self.source))
        _check_order(bn, labels)
        bn = with_unseen(bn, self.blocks, labels, method)
        blocks = DaskBlocks(self.blocks).with_parts(labels=labels)
        check_action(bn, as_array(bn, blocks.stand_in, method), method)
        found = blocks.reduce("gyrobn-transform-and-write", _write, _written, bn, out, method)
        if isinstance(found, Exception):
            raise found
        found.warn(bn.manifold_, np.zeros((), self.source.dtype), method)
        return int(found.count)


def _write(block: Block, bn: Any, out: RegionWriter, method: str) -> Moved | Exception:
    """Normalize a block and write it, in a task; an error is a result, so that one is reported."""
    moved = Moved()
    try:
        out.write(block.first, apply_block(block, bn, method, moved))
    except (ValueError, TypeError, OSError) as error:
        return error
    return moved


def _written(parts: list[Any]) -> Moved | Exception:
    """Return the first error, or how many points were moved."""
    error = next((part for part in parts if isinstance(part, Exception)), None)
    return Moved.merged(parts) if error is None else error


def _check_order(bn: Any, labels: Any) -> None:
    """Refuse to follow new domains sample by sample: blocks are computed in any order."""
    if labels is None or bn.unseen != "online":
        return
    check_kind(bn.domains_, labels)
    new = np.setdiff1d(labels, bn.domains_)
    if len(new):
        raise ValueError(
            f"the model does not know domain {new[0].item()!r}, and --unseen online follows the "
            "order of its samples, but --engine dask computes blocks in any order: leave out "
            "--engine, or choose --unseen refit or --unseen adapt"
        )


def _missing(name: str) -> ImportError:
    return ImportError(f"--engine dask needs {name}: install it with pip install 'gyrobn[dask]'")
