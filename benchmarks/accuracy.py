"""Accuracy: errors against 60 digits, and those of geoopt and pyRiemann beside them.

``python benchmarks/accuracy.py`` prints the tables and writes docs/accuracy.md. The oracle, the
inputs and the bars are those of the tests.
"""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import spd_oracle
import torch
from oracle import EPS, OPERATIONS, SAMPLES, SCALE, Case, apply
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
FLOATS = (np.float64, np.float32)
RADII = (1, 3, 5, 8, 12)
ANGLES = (1, 2, 3, 3.1)
LABELS = {
    "add": "x ⊕ y",
    "add_from_near": "y ⊕ x",
    "scale": "t ⊙ x",
    "dist": "dist",
    "dist_close": "dist, 0.01 apart",
    "dist_inward": "dist to near e",
    "log": "log",
    "log_close": "log, 0.01 apart",
    "log_inward": "log to near e",
    "exp": "exp",
    "transport": "transport to radius 1",
    "transport_close": "transport, 0.01 apart",
    "transport_across": "transport, both far",
    "normalize": "normalize",
    "normalize_shrink": "normalize, by 1/R",
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


def cell(manifold, name, dtype, radius, other, with_limit=False):
    """Return the worst errors of gyrobn and of the other library, and the limit if asked."""
    cases = [Case(name, manifold, radius, dtype, seed) for seed in SEEDS]
    error = max(case.worst(apply(name, manifold, case.arrays())) for case in cases)
    entries = [number(error)]
    over = manifold.curvature < 0 and radius in BARS[dtype] and error > bar(dtype, radius)
    limit = max(max(case.limits) for case in cases) if over or with_limit else None
    if over:
        entries[0] += " †" if error <= C * limit else " ‡"
    if other is not None:
        with np.errstate(all="ignore"):
            entries.append(number(max(case.worst(other(*case.arrays())) for case in cases)))
    elif any_other(manifold):
        entries.append("–")
    if with_limit:
        entries.append(number(limit))
    return " / ".join(entries)


def any_other(manifold):
    return type(manifold).__name__ in PEERS


PEERS = {
    "PoincareBall": geoopt_ball(),
    "Hyperboloid": geoopt_surface(geoopt.Lorentz(k=1.0)) | paper_radius(-1),
    "Klein": paper_klein(),
    "Sphere": geoopt_surface(geoopt.Sphere()) | paper_radius(1),
}


def table(geometry, names, radii, with_limit=False, word="radius"):
    manifold = getattr(gyrobn, geometry)(DIM)
    lines = [
        f"| operation | dtype | beside | {' | '.join(f'{word} {r}' for r in radii)} |",
        "|---|---|---|" + "---|" * len(radii),
    ]
    for name in names:
        beside, other = PEERS.get(geometry, {}).get(name.partition("_")[0], ("–", None))
        for dtype in FLOATS:
            # float32 has no Klein coordinates at radius 8
            row = [
                "–"
                if geometry == "Klein" and dtype is np.float32 and radius > 5
                else cell(manifold, name, dtype, radius, other, with_limit)
                for radius in radii
            ]
            label = LABELS[name]
            lines.append(f"| {label} | {dtype.__name__} | {beside} | {' | '.join(row)} |")
    return "\n".join(lines)


# ---------------------------------------------------------------------- ill-conditioned matrices


def distances(n, dtype, condition, kind, seeds):
    """Return median relative errors of the distance, gyrobn's and pyRiemann's, and their NaNs."""
    ours, theirs = [], []
    for seed in range(seeds):
        P, Q = ill_conditioned(n, condition, seed, kind).astype(dtype)
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
        return f"{number} ({lost} of {len(errors)} off)" if lost else number

    return f"{cell(ours)} / {cell(theirs)}" if ours else "–"


def spd_table(dtype, conditions):
    lines = [
        f"| n | eigenvectors | {' | '.join(f'{c:.0e}' for c in conditions)} |",
        "|---|---|" + "---|" * len(conditions),
    ]
    for n, seeds in ((2, 25), (4, 25), (8, 11), (16, 5)):
        for kind, word in (("turned", "different"), ("same", "the same")):
            row = [distances(n, dtype, c, kind, seeds) for c in conditions]
            lines.append(f"| {n} | {word} | {' | '.join(row)} |")
    return "\n".join(lines)


PAGE = """<!-- made by: python benchmarks/accuracy.py -->
# Accuracy

Every entry is the largest error of {samples} samples in {dim} dimensions. The reference is the
paper's own definitions, computed with 60 digits from the exact values of the floats
(`tests/oracle.py`). The first number is the error of gyrobn. The second, after the slash, is the
error of the library named in that row. `paper` is the paper's formula as printed.

* The **error** of a point is its geodesic distance to the exact result. For tangent vectors it is
  the Riemannian norm of the difference, and for distances the difference.
* **Radius** is the distance of the data from the identity e. A translation, a step, a mean and a
  bias have length 1. `dist` and `log` are between two points at that radius, unless the row says
  otherwise. Directions are random, except in one sample with parallel directions (for `dist` and
  `log` the same point) and one with opposite directions per seed.
* The **bars** are 1e-14, 1e-13 and 1e-10 at radius 1, 5 and 12 in float64, and 1e-6, 4e-5 and 1e-3
  at radius 1, 5 and 8 in float32.
* The **limit** is the effect of half a unit in the last place of each input, or of the result.
* **†** marks an error over the bar, but within {c:.0f} times the limit. **‡** marks an error over
  both.
* ***off*** means NaN, or a point outside the model.

## Poincaré ball

{ball}

geoopt {geoopt} projects every point it returns to norm 1 − 4e-3 in float32, which is radius 6.2,
and to 1 − 1e-5 in float64, which is radius 12.2. It clamps the argument of artanh to 1 − 1e-7,
which is distance 16.8. Beyond these its errors reach whole numbers. Inside, its Möbius formulas
add a near point as accurately as ours. Between two points that are both far out their terms
cancel. This affects `dist`, `log`, and the normalization of a batch that is far out and narrow.

## Hyperboloid

{hyperboloid}

geoopt's Lorentz model has no gyro-operations, so these are compared with the paper's closed forms.
geoopt recomputes the time of the result of `expmap`. It keeps the squared length of a tangent
vector above 1e-8 and that of a distance above 1e-15. It computes distances by the inverse
hyperbolic cosine, which has no digits left for close points. Most † come from logarithms over a
length of R or 2R: such a vector is that long, and so is its unit in the last place.

## Klein, and what its coordinates can hold

The third number is the limit. Neighbouring floats at radius R are $e^{{2R}}$ times as far apart as
at e. In the Poincaré ball the factor is $e^R$. In float32 the boundary comes before radius 8.

{klein}

## Sphere, up to the point opposite to e

The radius is an angle here, and no translation reaches the point at angle π. The third number is
the limit. geoopt's sphere has no identity and no gyro-operations.

{sphere}

## SPD: ill-conditioned matrices

Each entry is the median error of the affine-invariant distance between two random matrices. It is
relative if the distance is above 1. The head of each column is the condition number. The first
number is the error of gyrobn, the second that of pyRiemann {pyriemann} (`distance_riemann`, a
generalized eigenproblem). *off* counts results that are NaN or an error.

float64:

{spd64}

float32:

{spd32}

If both matrices have condition number κ and different eigenvectors, the relative matrix has
condition number κ². gyrobn computes it in the eigenvectors of the first matrix. There it is graded,
so the result loses about εκ, as much as rounding the input costs. If less than one digit is left, a
`PrecisionWarning` says so. If the eigenvectors are the same, a generalized eigenproblem loses less,
and pyRiemann is up to ten times closer in float64, and more in float32. `norm(relative(x, y))`
cannot be as accurate as `dist(x, y)`, because the relative point is rounded. It gives a warning.
"""


def main():
    warnings.simplefilter("ignore", gyrobn.PrecisionWarning)
    np.seterr(invalid="ignore", divide="ignore")  # pyRiemann's logarithms of negative eigenvalues
    ball = ["add", "add_from_near", "scale", "dist", "dist_close", "dist_inward", "log"]
    ball += ["log_close", "log_inward", "exp", "normalize", "normalize_shrink", "normalize_close"]
    ball += ["transport", "transport_close", "transport_across"]
    assert set(ball) == set(OPERATIONS)
    short = ["add", "scale", "dist", "dist_close", "log_close", "exp", "normalize"]
    sphere = ["add", "scale", "dist_inward", "dist_close", "log_inward", "log_close", "exp"]
    page = PAGE.format(
        samples=len(SEEDS) * SAMPLES,
        dim=DIM,
        c=C,
        geoopt=geoopt.__version__,
        ball=table("PoincareBall", ball, RADII),
        hyperboloid=table("Hyperboloid", ball, RADII),
        klein=table("Klein", short, RADII, with_limit=True),
        pyriemann=pyriemann.__version__,
        spd64=spd_table(np.float64, (1e0, 1e4, 1e8, 1e10, 1e12, 1e14)),
        spd32=spd_table(np.float32, (1e0, 1e2, 1e4, 1e5, 1e6)),
        sphere=table("Sphere", sphere, ANGLES, with_limit=True, word="angle"),
    )
    print(page)
    (ROOT / "docs" / "accuracy.md").write_text(page)


if __name__ == "__main__":
    main()
