"""Many small samples, and few: NumPy and the estimator beside their peers, one thread, CPU time.

``python benchmarks/samples.py`` prints the tables and writes docs/speed_samples.md. It takes some
minutes and 3 GB of memory.
"""

from pathlib import Path

import timing  # first: it sets the number of threads

# isort: split
import statistics
import time
import tracemalloc
import warnings

import numpy as np
from pyriemann.geometry.mean import mean_riemann
from sklearn.preprocessing import StandardScaler
from speed import table

from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    Hyperboloid,
    Klein,
    PoincareBall,
    SpecialOrthogonal,
    Sphere,
    batch_stats,
    frechet,
    normalize,
)

MANY = 1_000_000


def medians(alternatives, rounds=3, repeats=1):
    """Return the median CPU seconds of each alternative, the alternatives taking turns."""
    times = {name: [] for name in alternatives}
    for _ in range(rounds):
        for name, f in alternatives.items():
            begin = time.process_time()
            for _ in range(repeats):
                f()
            times[name].append((time.process_time() - begin) / repeats)
    return {name: statistics.median(t) for name, t in times.items()}


def row(what, time, peer, of, bar, more=""):
    ratio = time / peer
    rows = (what, f"{time:.2g}", of, f"{ratio:.2f}", bar, "yes" if ratio <= bar else "no", more)
    print(*rows, flush=True)
    return rows


def peak(f):
    """Return the bytes that a function needs at most, of NumPy arrays."""
    tracemalloc.start()
    f()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def matrices():
    M = SPD(3)
    x = M.add(M.random(rng=1), M.random(MANY, rng=0, spread=0.5))
    bn = GyroBN(M, tol=1e-9).fit(x)
    t = medians(
        {
            "fit": lambda: bn.fit(x),
            "mean": lambda: mean_riemann(x, tol=1e-9),
            "transform": lambda: bn.transform(x),
            "eigh": lambda: np.linalg.eigh(x),
        }
    )
    gap = float(M.dist(bn.mean_, mean_riemann(x, tol=1e-9)))
    yield row("SPD(3), fit", t["fit"], t["mean"], "`mean_riemann`", 0.8, f"{gap:.0e} apart")
    yield row("SPD(3), transform", t["transform"], t["eigh"], "`np.linalg.eigh`", 3.0)


def rotations():
    M = SpecialOrthogonal(3)
    x = M.random(MANY, rng=0, spread=0.5)
    bn = GyroBN(M).fit(x)
    t = medians({"both": lambda: bn.fit(x).transform(x)})
    yield row("SO(3), fit and transform", t["both"], 1.0, "1 s", 10.0)


def vectors():
    """Samples of the wide sphere need more than half of it, so that a second mean is looked for."""
    x = {
        "ball": (PoincareBall(2), 0.5),
        "sphere": (Sphere(2), 0.25),
        "wide": (Sphere(2), 0.5),
    }
    x = {name: (M, M.random(MANY, rng=0, spread=s)) for name, (M, s) in x.items()}
    t = medians({name: lambda M=M, x=x: GyroBN(M).fit(x) for name, (M, x) in x.items()}, 5)
    yield row("Sphere(2), fit", t["sphere"], t["ball"], "PoincareBall(2)", 1.0)
    yield row("Sphere(2), fit, samples beyond a half", t["wide"], t["ball"], "PoincareBall(2)", 1.0)


def scaler():
    M = PoincareBall(16)
    x = np.concatenate([M.random(MANY // 4, rng=k, spread=0.5) for k in range(8)])
    bn, flat = GyroBN(M), StandardScaler()
    t = medians({"ours": lambda: bn.fit(x), "scaler": lambda: flat.fit(x)})
    memory = peak(lambda: bn.fit(x)) / x.nbytes, peak(lambda: flat.fit(x)) / x.nbytes
    more = "memory {:.2f} of the data, {:.2f}".format(*memory)
    yield row("2e6 × PoincareBall(16), fit", t["ours"], t["scaler"], "`StandardScaler`", 3.0, more)


def domains(count=20_000, many=1000):
    M = SPD(8)
    x, labels = M.random(count, rng=0, spread=0.5), np.arange(count) % many
    t = medians({"many": lambda: GyroBN(M).fit(x, domains=labels), "one": lambda: GyroBN(M).fit(x)})
    yield row("20,000 SPD(8) in 1,000 domains, fit", t["many"], t["one"], "one domain", 3.0)


SMALL = [
    Euclidean(16),
    PoincareBall(16),
    Hyperboloid(16),
    Sphere(16),
    Klein(16),
    SPD(3),
    SPD(8),
    Grassmannian(12, 3),
    SpecialOrthogonal(3),
    SpecialOrthogonal(5),
    Correlation(8),
]


def small():
    a, flat = np.ones(8), StandardScaler().fit(np.ones((8, 16)))
    table = np.random.default_rng(0).random((8, 16))

    def ufuncs():
        for _ in range(100):
            np.add(a, a)

    for M in SMALL:
        x = M.random(8, rng=0, spread=0.5)
        stats, bn = batch_stats(M, x), GyroBN(M).fit(x)
        t = medians(
            {
                "ufuncs": ufuncs,
                "stats": lambda M=M, x=x: batch_stats(M, x),
                "normalize": lambda M=M, x=x, s=stats: normalize(M, x, s),
                "transform": lambda x=x, bn=bn: bn.transform(x),
                "scaler": lambda: flat.transform(table),
            },
            rounds=25,
            repeats=10,
        )
        over = (t["transform"] - t["normalize"]) / t["scaler"]
        bar = 1.0 if len(M.point_shape) == 1 else 2.5
        rows = (
            f"`{M!r}`".replace(", theta=1.0", "").replace(", representation='basis'", ""),
            int(frechet(M, x).iterations),
            f"{1e3 * t['stats']:.2f}",
            f"{t['stats'] / t['ufuncs']:.0f}",
            f"{bar:g} ms: {'yes' if 1e3 * t['stats'] <= bar else 'no'}",
            f"{over:.2f}",
            "yes" if over <= 2.0 else "no",
        )
        print(*rows, flush=True)
        yield rows


if __name__ == "__main__":
    assert timing
    warnings.simplefilter("ignore", FrechetWarning)
    few = list(small())
    large = [*matrices(), *rotations(), *vectors(), *scaler(), *domains()]
    heads = (
        ("what", "s", "beside", "ratio", "bar", "met", ""),
        (
            "geometry",
            "evaluations",
            "`batch_stats`, ms",
            "of 100 ufuncs",
            "bar",
            "`transform`, overhead",
            "at most 2",
        ),
    )
    page = f"""<!-- made by: python benchmarks/samples.py -->
# Speed with many samples, and with few

NumPy, float64, one thread. Ratios of medians of CPU time, alternatives taking turns in one process.

## Many small samples

{MANY:,} samples, if nothing else is said. Large arrays are computed in blocks that fit the cache
({{doc}}`design`), so that `fit` needs little memory besides the data.

{table(heads[0], large)}

## Few samples

Eight samples: the time goes into calls, not arithmetic. 100 calls of `np.add` on eight numbers are
the unit of the fourth column. The overhead is what `GyroBN.transform` takes beyond `normalize`, in
units of `StandardScaler.transform`: checks of the input, of the output, and scikit-learn's own.

{table(heads[1], few)}
"""
    Path(__file__).parents[1].joinpath("docs", "speed_samples.md").write_text(page)
