"""Speed of the matrix geometries: ratios of medians, interleaved, one thread.

``python benchmarks/matrices.py`` prints the tables and writes docs/speed_matrices.md.
"""

from pathlib import Path

import timing  # first: it sets the number of threads

# isort: split
import numpy as np
import torch
from pyriemann.geometry.mean import mean_riemann
from speed import table

from gyrobn import SPD, Correlation, Grassmannian, PoincareBall, frechet, normalize_batch
from gyrobn.manifolds.correlation import covariance_to_correlation

BATCH, CHANNELS, P = 30, 8, 10
EPS = 1e-5

# ---------------------------------------------------------------------- Grassmannian


def subspaces(n):
    """Return the geometry, samples, a bias and a scale per channel, and an output gradient."""
    M, like = Grassmannian(n, P), torch.empty(())
    mean, bias = (M.random(CHANNELS, rng=seed, like=like, spread=0.7) for seed in (1, 2))
    x = M.add(mean, M.random(BATCH, CHANNELS, rng=0, like=like))
    slope = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return M, x, bias, torch.full((CHANNELS,), 0.9), slope


def forward_and_backward(layer, slope, *leaves):
    leaves = [a.detach().requires_grad_() for a in leaves]

    def run():
        for a in leaves:
            a.grad = None
        layer(*leaves).backward(slope)

    return run


def ours(n):
    """Return a pass through the library: one mean step, gradients of the mean included."""
    M, x, bias, scale, slope = subspaces(n)

    def layer(x, bias, scale):
        return normalize_batch(M, x, None, bias, scale, EPS, steps=1)[0]

    return forward_and_backward(layer, slope, x, bias, scale)


def published(n, exponential):
    """Return a pass through the layer as the paper has it: rotations as n × n matrices.

    One Karcher step from the first sample, logarithms by p × p singular value decompositions, mean
    and variance without gradients. ``exponential`` takes the skew matrices to the rotations.
    """
    _, x, bias, scale, slope = subspaces(n)

    def layer(x, bias, scale):
        with torch.no_grad():
            mean = geodesic_step(x[0], logarithm(x[0], x).mean(0))
            cosines = torch.linalg.svdvals(mean.mT @ x).clamp(0.0, 1.0)
            var = (torch.acos(cosines) ** 2).sum(-1).mean(0)
        centred = exponential(-skew(block(mean))) @ x
        factor = (scale / torch.sqrt(var + EPS))[..., None, None]
        scaled = exponential(factor * skew(block(centred)))[..., :P]
        return exponential(skew(bias)) @ scaled

    return forward_and_backward(layer, slope, x, block(bias), scale)  # bias: a tangent vector


def ratio_of_angle(cosines):
    """θ/sin θ, away from the identity, where it would be 0/0."""
    sines = torch.sqrt(1.0 - cosines.clamp(0.0, 1.0 - 1e-6) ** 2)
    return torch.asin(sines) / sines


def logarithm(U, V):
    Q, cosines, Rh = torch.linalg.svd(V.mT @ U)
    V = V @ Q
    return ((V - U @ (U.mT @ V)) * ratio_of_angle(cosines)[..., None, :]) @ Rh


def geodesic_step(U, tangent):
    Q, angles, Rh = torch.linalg.svd(tangent, full_matrices=False)
    cos, sin = torch.cos(angles)[..., None, :], torch.sin(angles)[..., None, :]
    return (U @ Rh.mT * cos + Q * sin) @ Rh


def block(U):
    """Lower block of the logarithm at the identity (the paper's proposition on brackets)."""
    Q, cosines, Rh = torch.linalg.svd(U[..., :P, :].mT)
    return ((U[..., P:, :] @ Q) * ratio_of_angle(cosines)[..., None, :]) @ Rh


def skew(B):
    n = sum(B.shape[-2:])
    X = B.new_zeros((*B.shape[:-2], n, n))
    X[..., P:, :P] = B
    X[..., :P, P:] = -B.mT
    return X


def cayley(X):
    """First order in place of the exponential: (I − X/2)⁻¹ (I + X/2)."""
    eye = torch.eye(X.shape[-1])
    return torch.linalg.solve(eye - 0.5 * X, eye + 0.5 * X)


def grassmannian():
    rows = []
    for n, rounds in ((93, 9), (150, 9), (400, 2)):
        runs = {"gyrobn": ours(n), "Cayley": published(n, cayley)}
        if n == 93:
            runs["exponential"] = published(n, torch.matrix_exp)
        t = timing.medians(runs, rounds)
        others = (f"{t['gyrobn'] / t[k]:.3f}" if k in t else "–" for k in ("Cayley", "exponential"))
        rows.append((n, f"{1e3 * t['gyrobn']:.0f}", f"{1e3 * t['Cayley']:.0f}", *others))
        print(*rows[-1], flush=True)
    return rows


def growth():
    sizes = (50, 100, 200, 400, 800)
    t = timing.medians({n: ours(n) for n in sizes}, 11)
    rows = []
    for small, n in zip((None, *sizes), sizes, strict=False):
        # what a row of the bases costs from one size to the next: constant where it is linear
        more = "–" if small is None else f"{1e3 * (t[n] - t[small]) / (n - small):.2f}"
        rows.append((n, f"{1e3 * t[n]:.0f}", more))
        print(*rows[-1], flush=True)
    return rows


# ---------------------------------------------------------------------- SPD


def covariances(mixing, n=32, count=200, samples=64):
    """Sample covariances of mixed sources, the mixing varying from one matrix to the next."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal((n, n))
    A = common + mixing * rng.standard_normal((count, n, n))
    z = A @ rng.standard_normal((count, n, samples))
    return z @ z.swapaxes(-1, -2) / samples


def spd():
    rows, M = [], SPD(32)
    for mixing in (0.05, 0.3, 1.0):
        x = covariances(mixing)
        t = timing.medians(
            {
                "gyrobn": lambda x=x: frechet(M, x, tol=1e-9),
                "pyRiemann": lambda x=x: mean_riemann(x, tol=1e-9),
            }
        )
        gap = M.dist(frechet(M, x, tol=1e-9).mean, mean_riemann(x, tol=1e-9))
        ratio = f"{t['gyrobn'] / t['pyRiemann']:.2f}"
        rows.append((mixing, f"{1e3 * t['gyrobn']:.0f}", ratio, f"{float(gap):.0e}"))
        print(*rows[-1], flush=True)
    return rows


# ---------------------------------------------------------------------- correlation


def by_rows(C, bias, scale):
    """GyroBN of the Poincaré ball of each Cholesky row in turn, as the paper defines it."""
    xp = np if isinstance(C, np.ndarray) else torch
    n = C.shape[-1]
    L, L_bias = xp.linalg.cholesky(C), xp.linalg.cholesky(bias)
    out = xp.zeros_like(L)
    out[..., 0, 0] = 1.0
    for i in range(1, n):
        ball = PoincareBall(i)
        x, b = (A[..., i, :i] / (1.0 + A[..., i, i, None]) for A in (L, L_bias))
        y = normalize_batch(ball, x, None, b, scale, EPS)[0]
        square = (y * y).sum(-1)
        out[..., i, :i] = 2.0 * y / (1.0 + square)[..., None]
        out[..., i, i] = (1.0 - square) / (1.0 + square)
    return out @ xp.swapaxes(out, -1, -2)


def correlation(n=28, count=1000):
    z = np.random.default_rng(0).standard_normal((count + 1, n, 2 * n))
    C = covariance_to_correlation(z @ z.swapaxes(-1, -2)).astype(np.float32)
    rows, M = [], Correlation(n)
    for name, convert in (("NumPy", np.asarray), ("torch", torch.asarray)):
        x, bias = convert(C[1:]), convert(C[0])

        def together(x=x, bias=bias):
            return normalize_batch(M, x, None, bias, 0.5, EPS)[0]

        t = timing.medians({"gyrobn": together, "rows": lambda x=x, b=bias: by_rows(x, b, 0.5)}, 11)
        gap = float(abs(together() - by_rows(x, bias, 0.5)).max())
        ratio = f"{t['gyrobn'] / t['rows']:.2f}"
        rows.append((name, f"{1e3 * t['gyrobn']:.0f}", ratio, f"{gap:.0e}"))
        print(*rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    against, growing, means, correlations = grassmannian(), growth(), spd(), correlation()
    heads = (
        ("n", "ms", "Cayley, ms", "of Cayley", "of the exponential"),
        ("n", "ms", "ms per additional row"),
        ("mixing", "ms", "of pyRiemann", "distance between the means"),
        ("library", "ms", "of the loop", "largest difference"),
    )
    page = f"""<!-- made by: python benchmarks/matrices.py -->
# Speed with matrices

The tables show ratios of medians. The alternatives take turns in one process on one thread. Smaller
is better: a ratio of 0.25 means a quarter of the time.

## Normalization on the Grassmannian

One layer in torch, forward and backward, one step to the mean: {BATCH} × {CHANNELS} bases of
n × {P}, float32. It is compared with the published layer, which computes rotations as n × n
matrices by a Cayley map (a linear solve, which only approximates the exponential) or by
`torch.matrix_exp`. The published layer treats the mean as constant in the gradient. Our time
includes the derivative of the mean. Our layer is exact and forms no n × n matrix, see
{{doc}}`design`.

{table(heads[0], against)}

The time grows linearly with n:

{table(heads[1], growing)}

## The affine-invariant mean

200 covariance matrices, 32 × 32, of 64 samples each, float64, NumPy. They are compared with
`pyriemann.geometry.mean.mean_riemann`, both at a tolerance of 1e-9. The mixing of sources varies
by the factor in the first column.

{table(heads[2], means)}

## Normalization of correlation matrices

1,000 matrices, 28 × 28, metric `poly_hyperbolic_cholesky`, float32, including the statistics. They
are compared with a loop over the rows of the Cholesky factor, in which this library normalizes each
row on its own Poincaré ball.

{table(heads[3], correlations)}
"""
    Path(__file__).parents[1].joinpath("docs", "speed_matrices.md").write_text(page)
