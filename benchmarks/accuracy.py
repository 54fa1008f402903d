"""Accuracy: errors against 60 digits, and those of geoopt and pyRiemann beside them.

``python benchmarks/accuracy.py`` prints the table and writes docs/accuracy.md. The oracle, the
inputs and the bars are those of the tests.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import spd_oracle
import torch
from oracle import EPS, SAMPLES, SCALE, Case, apply
from pages import table
from spd_oracle import ill_conditioned
from test_oracle import BARS, C, bar

import gyrobn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # geoopt compiles with torch.jit.script, which is deprecated
    import geoopt
    import pyriemann
    from pyriemann.geometry.distance import distance_riemann

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1)
DIM = 8
RADII = (1, 5, 12)
ANGLES = (1, 2, 3)
LABELS = {
    "add": "x ⊕ y",
    "dist": "dist",
    "dist_close": "dist, 0.01 apart",
    "dist_inward": "dist to near e",
    "log": "log",
    "log_inward": "log to near e",
    "normalize": "normalize",
    "normalize_close": "normalize, collapsed",
}


# ---------------------------------------------------------------------- the others


def with_torch(f):
    """Let a function of tensors take and return NumPy arrays."""

    def g(*arrays):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return f(*(torch.asarray(a) for a in arrays)).numpy()

    return g


def normalize_with(add, neg, scale):
    """Compose Algorithm 1 from the operations of another library."""

    def normalize(x, mean, bias, variance):
        factor = SCALE / (variance + EPS) ** 0.5
        return add(bias, scale(factor, add(neg(mean), x)))

    return normalize


def geoopt_ball():
    M = geoopt.PoincareBall(c=1.0)

    def scale(t, x):
        return M.mobius_scalar_mul(t[..., None], x)

    operations = {
        "add": M.mobius_add,
        "scale": scale,
        "dist": M.dist,
        "log": M.logmap,
        "exp": M.expmap,
        "normalize": normalize_with(M.mobius_add, torch.neg, scale),
    }
    return {name: ("geoopt", with_torch(f)) for name, f in operations.items()}


def geoopt_surface(M):
    operations = {"dist": M.dist, "log": M.logmap, "exp": M.expmap}
    return {name: ("geoopt", with_torch(f)) for name, f in operations.items()}


def inner(x, y):
    return np.sum(x * y, axis=-1, keepdims=True)


def length(x):
    return np.sqrt(inner(x, x))


def direction(x):
    """Return x over its length; the paper treats zero as a case of its own."""
    return x / np.where(length(x) > 0, length(x), 1)


def paper_radius(K):
    """Eq. gyroadd_calmk and gyro_prod_calmk as they are printed, at curvature ±1."""
    cos, sin, acos = (np.cosh, np.sinh, np.arccosh) if K < 0 else (np.cos, np.sin, np.arccos)

    def add(x, y):
        (x_t, x_s), (y_t, y_s) = (x[..., :1], x[..., 1:]), (y[..., :1], y[..., 1:])
        a, b, n_x, n_y, s = 1 + x_t, 1 + y_t, inner(x_s, x_s), inner(y_s, y_s), inner(x_s, y_s)
        D = a**2 * b**2 - 2 * K * a * b * s + n_x * n_y
        N = a**2 * n_y + 2 * a * b * s + b**2 * n_x
        A_x, A_y = a * b**2 - 2 * K * b * s - K * a * n_y, b * (a**2 + K * n_x)
        space = 2 * (A_x * x_s + A_y * y_s) / (D + K * N)
        return np.concatenate([(D - K * N) / (D + K * N), space], axis=-1)

    def scale(t, x):
        angle = t[..., None] * acos(np.clip(x[..., :1], 1 if K < 0 else -1, None if K < 0 else 1))
        return np.concatenate([cos(angle), sin(angle) * direction(x[..., 1:])], axis=-1)

    def neg(x):
        return np.concatenate([x[..., :1], -x[..., 1:]], axis=-1)

    operations = {"add": add, "scale": scale, "normalize": normalize_with(add, neg, scale)}
    return {name: ("paper", f) for name, f in operations.items()}


def paper_klein():
    """Einstein operations and the theorem's distance, as they are printed, at curvature −1."""

    def add(x, y):
        w, s = np.sqrt(1 - inner(x, x)), inner(x, y)
        return (x + w * y + s * x / (1 + w)) / (1 + s)

    def scale(t, x):
        return np.tanh(t[..., None] * np.arctanh(length(x))) * direction(x)

    def dist(x, y):
        r = length(add(-x, y))
        return (2 * np.arctanh(r / (1 + np.sqrt(1 - r * r))))[..., 0]

    operations = {
        "add": add,
        "scale": scale,
        "dist": dist,
        "normalize": normalize_with(add, np.negative, scale),
    }
    return {name: ("paper", f) for name, f in operations.items()}


# ---------------------------------------------------------------------- the tables


def number(error):
    return f"{error:.1e}" if np.isfinite(error) else "off"


def cell(manifold, name, dtype, radius, other):
    """Return the worst errors of gyrobn and of the other library."""
    cases = [Case(name, manifold, radius, dtype, seed) for seed in SEEDS]
    error = max(case.worst(apply(name, manifold, case.arrays())) for case in cases)
    text = number(error)
    if manifold.curvature < 0 and radius in BARS[dtype] and error > bar(dtype, radius):
        text += " †" if error <= C * max(max(case.limits) for case in cases) else " ‡"
    if other is None:
        return text
    with np.errstate(all="ignore"):
        return f"{text}/{number(max(case.worst(other(*case.arrays())) for case in cases))}"


PEERS = {
    "PoincareBall": geoopt_ball(),
    "Hyperboloid": geoopt_surface(geoopt.Lorentz(k=1.0)) | paper_radius(-1),
    "Klein": paper_klein(),
    "Sphere": geoopt_surface(geoopt.Sphere()) | paper_radius(1),
}


def rows(geometry, names, radii):
    """Yield the rows of a geometry, one per operation."""
    manifold = getattr(gyrobn, geometry)(DIM)
    for name in names:
        beside, other = PEERS.get(geometry, {}).get(name.partition("_")[0], ("–", None))
        cells = [
            cell(manifold, name, dtype, radius, other)
            for dtype, chosen in ((np.float64, radii), (np.float32, radii[:2]))
            for radius in chosen
        ]
        yield (f"`{geometry}`", LABELS[name], beside, *cells)


# ---------------------------------------------------------------------- ill-conditioned matrices


def distances(n, dtype, condition, seeds):
    """Return median relative errors of the distance, gyrobn's and pyRiemann's, and their NaNs."""
    ours, theirs = [], []
    for seed in range(seeds):
        P, Q = ill_conditioned(n, condition, seed, "turned").astype(dtype)
        true = spd_oracle.dist(spd_oracle.exactly(P), spd_oracle.exactly(Q))
        if not spd_oracle.mp.isfinite(true):
            continue  # the floats are not positive definite
        size = max(true, spd_oracle.mp.one)
        ours.append(abs(float((gyrobn.SPD(n).dist(P, Q) - true) / size)))
        try:
            theirs.append(abs(float((distance_riemann(P, Q) - true) / size)))
        except np.linalg.LinAlgError:
            theirs.append(np.nan)

    def cell(errors):
        good = [e for e in errors if np.isfinite(e)]
        lost = len(errors) - len(good)
        number = f"{np.median(good):.0e}" if good else "–"
        return f"{number}, {lost} of {len(errors)} off" if lost else number

    return f"{cell(ours)}/{cell(theirs)}" if ours else "–"


def spd_rows():
    """Yield the rows of the distance of SPD matrices, one per size."""
    for n, seeds in ((4, 25), (16, 5)):
        cells = [
            f"κ = {c:.0e}: {distances(n, dtype, c, seeds)}"
            for dtype, chosen in ((np.float64, (1e0, 1e8, 1e12)), (np.float32, (1e0, 1e4)))
            for c in chosen
        ]
        yield ("`SPD`", f"dist, n = {n}", "pyRiemann", *cells)


PAGE = """<!-- made by: python benchmarks/accuracy.py -->
# Accuracy

Operations are accurate to the last digits that floating-point coordinates can hold. Every entry is
the largest error of {samples} samples in {dim} dimensions, of gyrobn and, after the slash, of the
library beside it. The reference is the paper's definitions, computed with 60 digits from the
exact values of the floats (`tests/oracle.py`); the tests hold each operation of each geometry to
it.

* The **error** of a point is its geodesic distance to the exact result.
* **R** is the distance of the data from the identity. Translations, means and biases have length
  1; `dist` is between two points at that distance. *normalize, collapsed* is a batch far out
  whose points lie close together.
* On the sphere, R is 1, 2 and 3, since the opposite point is at π. The first three columns are
  in float64.
* **paper** is the paper's closed form as printed. ***off*** is NaN, or a point outside of the
  model.
* **†** marks an error over the bar of the tests (1e-14, 1e-13, 1e-10 at R = 1, 5, 12 in float64)
  within {c:.0f} times the effect of half a unit in the last place of the input: no algorithm can
  do much better. **‡** would mark a larger one.

{table}

**Hyperbolic space.** Neighbouring floats are about $\\varepsilon e^R$ apart on the ball and the
hyperboloid, and $\\varepsilon e^{{2R}}$ on the Klein ball, so every error grows with R. geoopt
{geoopt} moves points of the ball to norm 1 − 1e-5 (R = 12.2; in float32 1 − 4e-3, R = 6.2), and
computes distances on the hyperboloid by the inverse hyperbolic cosine, which has no digits left
for close points.

**SPD.** The entries are median relative errors of the affine-invariant distance between two
random matrices of condition number κ, and of pyRiemann {pyriemann} (`distance_riemann`). gyrobn
computes in the eigenvectors of the first matrix and loses about εκ, as much as rounding the input
costs. If less than one digit is left, a `PrecisionWarning` says so. If both matrices have the
same eigenvectors, pyRiemann is up to ten times closer.
"""


def main():
    warnings.simplefilter("ignore", gyrobn.PrecisionWarning)
    np.seterr(invalid="ignore", divide="ignore")  # pyRiemann's logarithms of negative eigenvalues
    found = [
        *rows("PoincareBall", ["add", "dist", "log", "normalize", "normalize_close"], RADII),
        *rows("Hyperboloid", ["add", "dist", "log", "normalize", "normalize_close"], RADII),
        *rows("Klein", ["dist", "normalize"], RADII),
        *rows("Sphere", ["add", "dist_inward", "dist_close", "log_inward"], ANGLES),
        *spd_rows(),
    ]
    radii = [f"R = {r}" for r in RADII]
    head = ("geometry", "operation", "beside", *radii, *(f"{r}, float32" for r in radii[:2]))
    page = PAGE.format(
        samples=len(SEEDS) * SAMPLES,
        dim=DIM,
        c=C,
        geoopt=geoopt.__version__,
        pyriemann=pyriemann.__version__,
        table=table(head, found),
    )
    print(page)
    (ROOT / "docs" / "accuracy.md").write_text(page)


if __name__ == "__main__":
    main()
