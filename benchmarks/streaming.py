"""Memory needed for data larger than memory, read from a memory-mapped file.

``python benchmarks/streaming.py [gigabytes]`` makes a file of that size (4 by default) for each
geometry, fits GyroBN to it, writes the normalized file, and prints the memory and the time. It
writes docs/speed_streaming.md. It needs Linux, twice the size on the disk, and some minutes.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from pages import table

from gyrobn import SPD, Chunks, GyroBN, Hyperboloid, PoincareBall
from gyrobn.data import create_array

CASES = {
    "ball": PoincareBall(16),
    "hyperboloid": Hyperboloid(31),
    "log_cholesky": SPD(16, "log_cholesky"),
    "affine_invariant": SPD(16),
}
BOUND = 600
"""Extra memory that is allowed, in megabytes."""


def status(name):
    """Return an entry of the process's memory, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(s.split()[1] for s in lines if s.startswith(name + ":"))) / 1024


def generate(manifold, path, size):
    """Write samples about a centre, and return their number."""
    each = 8 * math.prod(manifold.point_shape)
    count, centre = round(size / each), manifold.random(rng=1, spread=0.7)
    rng = np.random.default_rng(0)
    with create_array(path, (count, *manifold.point_shape), np.float64) as out:
        for start in range(0, count, 100_000):
            cloud = manifold.random(min(100_000, count - start), rng=rng, spread=0.7)
            out.write(manifold.add(centre, cloud))
    return count


class Counted:
    """A memory map that counts how often it is read from the start."""

    def __init__(self, path):
        self.array = np.load(path, mmap_mode="r")
        self.passes = 0

    def __call__(self):
        self.passes += 1
        return iter(Chunks(self.array))


def measure(name, path):
    """Fit to the file and normalize it, in a separate process that starts small."""
    manifold = CASES[name]
    few = manifold.random(2000, rng=0)
    GyroBN(manifold).fit(few).transform(few[:10])  # load all code
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here on
    before = status("VmRSS")
    source = Counted(path)
    begin = time.perf_counter()
    bn = GyroBN(manifold, scale=0.5).fit(source)
    middle = time.perf_counter()
    out = path.with_name("out.npy")
    with create_array(out, source.array.shape, np.float64) as writer:
        for chunk in bn.transform_chunks(source.array):
            writer.write(chunk)
    end = time.perf_counter()
    peak = status("VmHWM") - before
    passes = source.passes - 1  # the first only looks at the first chunk
    print(peak, passes, middle - begin, end - middle, float(bn.converged_))


def main(gigabytes):
    rows = []
    for name, manifold in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.npy"
            count = generate(manifold, path, gigabytes * 1e9)
            command = [sys.executable, __file__, "--measure", name, str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peak, passes, fit, transform, converged = map(float, done.stdout.split())
            assert converged
            rows.append((f"`{manifold!r}`", f"{count:,}", f"{peak:.0f}", f"{passes:.0f}"))
            print(*rows[-1], f"fit {fit:.0f} s, transform {transform:.0f} s", flush=True)
            if peak > BOUND:
                print(f"MORE THAN {BOUND} MB", flush=True)
    head = ("geometry", "samples", "extra memory, MB", "passes")
    page = f"""<!-- made by: python benchmarks/streaming.py {gigabytes:g} -->
# Memory of streaming

GyroBN is fitted to a file of {gigabytes:g} GB (float64, `.npy`, memory-mapped), to the last digits
of the mean. The normalized samples are written to another file. Extra memory is the peak of the
process's resident memory, including pages of the map, minus what it had before. At most {BOUND} MB
are allowed. The process uses one thread.

{table(head, rows)}

The first pass checks the samples. Each other pass is one evaluation of the mean, or in more than
128 dimensions one product with the Hessian. See {{doc}}`streaming`.
"""
    Path(__file__).parents[1].joinpath("docs", "speed_streaming.md").write_text(page)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], Path(sys.argv[3]))
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)
