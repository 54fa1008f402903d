"""Time of JAX on 1 to 8 host devices, and of Dask on 1 to 4 workers, against samples and dimension.

``python benchmarks/machines.py`` prints the tables and writes docs/speed_machines.md. It takes some
minutes. All devices and workers share the cores of one machine: with more of them than cores, the
times say what they cost, and not what they gain. ``python benchmarks/machines.py small`` runs a
part of it on few samples, and writes nothing.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import json
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dask.array as da
import numpy as np
from pages import table

from gyrobn import SPD, GyroBN, PoincareBall, normalize_batch
from gyrobn.data import create_array, open_array

SPACES = [PoincareBall(16), SPD(8)]
COUNTS = 1024, 8192
"""Samples of a batch on devices; the numbers of blocks for Dask are as far apart."""
BLOCKS = 8, 64
ROWS = {SPACES[0]: 100_000, SPACES[1]: 2_000}
"""Samples per block."""


def on_devices(devices, counts):
    """Print rows of a training step on host devices, in a process that has so many of them."""
    import jax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((devices,), ("b",), axis_types=(AxisType.Auto,))
    rows = []
    for space in SPACES:
        for count in counts:
            x = space.random(count, rng=0, like=jax.numpy.zeros(()), spread=0.5)
            x = jax.device_put(x, NamedSharding(mesh, P("b")))
            step = jax.grad(lambda x, M=space: (normalize_batch(M, x)[0] ** 3).sum())
            program = jax.jit(step).lower(x).compile()
            sent = sum("all-reduce(" in line for line in program.as_text().splitlines())
            ms = 1e3 * median(lambda p=program, x=x: p(x).block_until_ready(), 10)
            rows.append((repr(space), space.dim, count, devices, sent, f"{ms:.1f}"))
    print(json.dumps(rows))


def median(call, rounds):
    """Return the median of wall times, after a first call."""
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def peak():
    """Return the largest memory that this process had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def on_workers(workers, blocks, space, rows):
    """Return a row of a fit to a file, by worker processes of one thread each that start anew."""
    from distributed import Client, LocalCluster

    options = {"n_workers": workers, "threads_per_worker": 1, "processes": True}
    options |= {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        with create_array(path, (blocks * rows, *space.point_shape), np.float64) as out:
            for k in range(blocks):
                out.write(space.random(rows, rng=k, spread=0.5))
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            with open_array(path) as source:
                X = da.from_array(source, (rows, *source.shape[1:]), name=False, asarray=False)
            few = X[:rows] if workers == 1 else X[: workers * rows]
            GyroBN(space).fit(few)  # load all code
            before = max(client.run(peak).values())
            begin = time.perf_counter()
            bn = GyroBN(space).fit(X)
            seconds = time.perf_counter() - begin
            extra = max(client.run(peak).values()) - before
    size = f"{rows * 8 * np.prod(space.point_shape) / 1e6:.1f}"
    name, computes = repr(space), int(bn.n_iter_) + 1
    return name, space.dim, blocks, size, workers, computes, f"{seconds:.1f}", f"{extra:.0f}"


def devices_table(counts, devices):
    """Return the rows for JAX."""
    found = []
    for n in devices:
        flags = f"--xla_force_host_platform_device_count={n}"
        flags += " --xla_cpu_collective_call_terminate_timeout_seconds=600"
        # threads for all devices: a batched eigh would wait for one for ever (docs/backends.md)
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "NPROC": "32"}
        command = [sys.executable, __file__, "devices", str(n), *map(str, counts)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        found += json.loads(done.stdout.splitlines()[-1])
    order = [repr(space) for space in SPACES]
    return sorted(found, key=lambda row: (order.index(row[0]), row[2], row[3]))


def main(small):
    devices = devices_table((256,) if small else COUNTS, (1, 2) if small else (1, 2, 4, 8))
    workers = [
        on_workers(n, blocks, space, 100 if small else ROWS[space])
        for space in SPACES
        for blocks in ((3,) if small else BLOCKS)
        for n in ((1, 2) if small else (1, 2, 4))
    ]
    first = ("geometry", "dim", "samples", "devices", "all-reduces", "ms")
    second = ("geometry", "dim", "blocks", "MB per block", "workers", "computes", "s")
    second += ("more memory, MB",)
    page = f"""<!-- made by: python benchmarks/machines.py -->
# Speed on several devices and workers

All devices and workers share one machine with {os.cpu_count()} cores, so more of them than cores
make nothing faster: these rows show what they cost.

**JAX.** Forward and gradient of `normalize_batch` under `jit`, float64, on a batch that is sharded
over host devices. `all-reduces` are those in the compiled program; one of them is in the loop of
the mean, and runs once for each evaluation after the first.

{table(first, devices)}

**Dask.** `GyroBN.fit` of a `.npy` file by worker processes of one thread each. `computes` are one
to check the samples, and one per evaluation of the mean; each reads the file. `more memory` is what
the peak of the largest worker grew by, after a fit to one block per worker: by about two blocks at
most, whatever the number of blocks.

{table(second, workers)}
"""
    print(page)
    if not small:
        Path(__file__).parents[1].joinpath("docs", "speed_machines.md").write_text(page)


if __name__ == "__main__":
    if sys.argv[1:2] == ["devices"]:
        on_devices(int(sys.argv[2]), [int(n) for n in sys.argv[3:]])
    else:
        main(sys.argv[1:] == ["small"])
