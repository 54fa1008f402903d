"""Compare the centroid with the Fréchet mean, and with what other layers do: docs/centroid.md.

``python benchmarks/centroid.py [FOLDER]`` prints the page's tables and writes the page. The folder
holds the data sets of benchmarks/experiments as ``.npz`` files; without it, the rows with real data
stay as they are on the page. All numbers are the same on every machine; tests/test_centroid.py
checks some of them.
"""

import sys
import warnings
from pathlib import Path

import numpy as np

import gyrobn

COUNT, SEED = 256, 0
PAGE = Path(__file__).parents[1] / "docs" / "centroid.md"
CLOUDS = [
    (n, spread, kind) for kind in ("one", "two") for n in (2, 16) for spread in (0.5, 1, 2, 4)
]
OTHERS = [
    gyrobn.PoincareBall(8),
    gyrobn.SPD(8),
    gyrobn.Correlation(8),
    gyrobn.Sphere(8),
    gyrobn.Grassmannian(12, 3),
    gyrobn.SpecialOrthogonal(3),
]
COUNTED = [
    (gyrobn.PoincareBall(16), {}),
    (gyrobn.Hyperboloid(16), {}),
    (gyrobn.Sphere(16), {}),
    (gyrobn.SPD(8), {"dtype": "float64"}),
    (gyrobn.Grassmannian(12, 3), {}),
    (gyrobn.Correlation(8), {}),
    (gyrobn.SpecialOrthogonal(3), {}),
]


def cloud(M, spread, kind):
    """Return samples around a point, or around two: a quarter of them 2 × spread away."""
    x = M.random(COUNT, rng=SEED, spread=spread)
    if kind == "two":
        axis = np.eye(M.dim)[0]
        x[: COUNT // 4] = M.add(M.from_normal(2.0 * spread * axis), x[: COUNT // 4])
    return x


def layers(M, x):
    """Return the outputs that should have the mean e and the variance 1, by layer."""
    mean, var = gyrobn.batch_stats(M, x)
    centroid, about = gyrobn.batch_stats(M, x, mean="centroid")
    distance = np.mean(M.dist(centroid, x))
    return {
        "Fréchet": M.standardize(x, mean, 1.0 / np.sqrt(var + 1e-5)),
        "centroid": M.standardize(x, centroid, 1.0 / np.sqrt(about + 1e-5)),
        "HCNN": M.standardize(x, centroid, 1.0 / (distance + 1e-5)),
        "ILNN": M.standardize(x, centroid, 1.0 / np.sqrt(distance + 1e-6)),
    }


def compared(name, M, x):
    """Return a row: the error that is told, and for each layer what its output has."""
    off, var = gyrobn.mean_error(M, x), gyrobn.batch_stats(M, x, mean="centroid").var
    cells = [name, f"{off.distance / np.sqrt(var + 1e-5):.2g}", f"{float(off.variance):.2g}"]
    for y in layers(M, x).values():
        mean, var = gyrobn.batch_stats(M, y)
        away = float(M.norm(mean))
        cells.append(f"{away:.2g}, {var:.3g}" if away > 1e-9 else f"0, {var:.3g}")
    return cells


def cloud_row(n, spread, kind):
    M = gyrobn.Hyperboloid(n)
    return compared(f"{kind}, n = {n}, spread {spread}", M, cloud(M, spread, kind))


def geometry_row(M, spread):
    """Return a row: how far the centroid is off, and what is told of it."""
    x = cloud(M, spread, "two")
    return told(f"`{type(M).__name__}{M.point_shape}`, spread {spread}", M, x)


def told(name, M, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gyrobn.FrechetWarning)  # of a mean that is not unique
        mean, var = gyrobn.batch_stats(M, x)
    centroid, about = gyrobn.batch_stats(M, x, mean="centroid")
    off, one = gyrobn.mean_error(M, x), gyrobn.mean_error(M, x, steps=1)
    gap = np.max((about - var) / about)
    cells = [M.dist(centroid, mean) / np.sqrt(np.sum(var)), gap]
    cells += [off.distance / np.sqrt(np.sum(var)), np.max(off.variance)]
    sure = "bound" if off.sure else "estimate"
    return [name, *(f"{c:.2g}" for c in cells), sure, f"{one.distance / np.sqrt(np.sum(var)):.1g}"]


def counted(M, options):
    """Return a row: operations of a training step, to convergence, with one step, centroid."""
    import operations  # not at the top: tests/ has a file of this name

    cells = []
    for more in ({}, {"steps": 1}, {"mean": "centroid"}):
        training, _ = operations.torch_counts(M, **options, **more)
        cells.append(f"{training.operations} ({training.syncs})")
    return [f"`{type(M).__name__}{M.point_shape}`", *cells]


def real(folder):
    """Return the rows of real data: hyperbolic features of a graph, and covariances of motions."""
    M, rows = gyrobn.Hyperboloid(11), {"others": [], "hyperbolic": []}
    data = np.load(folder / "disease_lp.npz")
    shape = data["feat_shape"]
    x = np.zeros(shape)
    x[np.repeat(np.arange(shape[0]), np.diff(data["feat_indptr"])), data["feat_indices"]] = data[
        "feat_data"
    ]
    x = x / x.std()
    rows["hyperbolic"].append(compared("disease, features / sd", M, M.from_normal(x)))
    for name in ("basicmotions", "natops"):
        X = np.load(folder / f"{name}.npz")["X"].astype(float)
        M = gyrobn.SPD(X.shape[1])
        x = np.stack([np.cov(series) for series in X])
        x = x + 1e-3 * np.trace(x, axis1=1, axis2=2)[:, None, None] / M.n * np.eye(M.n)
        rows["others"].append(told(f"{name}, {len(x)} covariances, n = {M.n}", M, x))
    return rows


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def kept(page, *starts):
    """Return the rows of the page as it is that start so."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells[0].startswith(starts)]


def main():
    old = PAGE.read_text(encoding="utf-8")
    if len(sys.argv) > 1:
        more = real(Path(sys.argv[1]))
    else:
        more = {
            "hyperbolic": kept(old, "disease"),
            "others": kept(old, "basicmotions", "natops"),
        }
    tables = {
        "hyperbolic": table(
            ["samples", "told: mean", "variance", "Fréchet", "centroid", "HCNN", "ILNN"],
            [cloud_row(*c) for c in CLOUDS] + more["hyperbolic"],
        ),
        "others": table(
            ["samples", "mean off", "variance off", "told: mean", "variance", "", "`steps=1`"],
            [geometry_row(M, s) for M in OTHERS for s in (0.3, 1.0)] + more["others"],
        ),
        "operations": table(
            ["geometry", "Fréchet", "`steps=1`", "centroid"], [counted(*c) for c in COUNTED]
        ),
    }
    for name, text in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = old.split(begin)
        old = head + begin + text + "\n" + end + rest.split(end)[1]
        print(text, "\n")
    PAGE.write_text(old, encoding="utf-8")


if __name__ == "__main__":
    main()
