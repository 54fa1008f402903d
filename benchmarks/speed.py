"""Speed of the constant curvature models: ratios of medians, interleaved, one thread, float32.

``python benchmarks/speed.py`` prints the tables and writes docs/speed.md.
"""

import tracemalloc
from pathlib import Path

import timing  # first: it sets the number of threads

# isort: split
import geoopt
import numpy as np
import torch
from array_api_compat import array_namespace
from pages import table as table

import gyrobn
from gyrobn import Hyperboloid, PoincareBall, Sphere

N = 10_000


def by_definition(M, x, y):
    """Exp_x(PT(Log_e y)) with the operators of the paper's table, as its code composes them."""
    xp = array_namespace(x)
    K, k = M.curvature, abs(M.curvature) ** 0.5
    cos, sin, acos = (xp.cos, xp.sin, xp.acos) if K > 0 else (xp.cosh, xp.sinh, xp.acosh)
    y_t, y_s = y[..., :1], y[..., 1:]
    norm = xp.sqrt(xp.sum(y_s * y_s, axis=-1, keepdims=True))
    v_s = acos(xp.clip(k * y_t, min=1.0 if K < 0 else -1.0)) / (k * norm) * y_s
    x_t, x_s = x[..., :1], x[..., 1:]
    ratio = K * xp.sum(x_s * v_s, axis=-1, keepdims=True) / (1.0 + k * x_t)
    w = xp.concat([-ratio * (x_t + 1.0 / k), v_s - ratio * x_s], axis=-1)
    square = xp.sum(w[..., 1:] ** 2, axis=-1, keepdims=True)
    square = square + w[..., :1] ** 2 if K > 0 else square - w[..., :1] ** 2
    a = k * xp.sqrt(square)
    return cos(a) * x + sin(a) / a * w


def closed_form(M, x, y):
    """The closed form of the paper (its Equation for the radius gyroaddition)."""
    xp = array_namespace(x)
    K, k = M.curvature, abs(M.curvature) ** 0.5
    x_t, x_s, y_t, y_s = x[..., :1], x[..., 1:], y[..., :1], y[..., 1:]
    a, b = 1.0 + k * x_t, 1.0 + k * y_t
    n_x = xp.sum(x_s * x_s, axis=-1, keepdims=True)
    n_y = xp.sum(y_s * y_s, axis=-1, keepdims=True)
    s = xp.sum(x_s * y_s, axis=-1, keepdims=True)
    D = a**2 * b**2 - 2 * K * a * b * s + K**2 * n_x * n_y
    size = a**2 * n_y + 2 * a * b * s + b**2 * n_x
    A_s, A_y = a * b**2 - 2 * K * b * s - K * a * n_y, b * (a**2 + K * n_x)
    below = D + K * size
    return xp.concat([(D - K * size) / (k * below), 2 * (A_s * x_s + A_y * y_s) / below], axis=-1)


def addition():
    rows = []
    for cls in (Hyperboloid, Sphere):
        for name, like in (("NumPy", np.empty((), np.float32)), ("torch", torch.empty(()))):
            for n in (16, 32, 64, 128, 256, 1024, 2048):
                M = cls(n)
                x, y = (M.random(N, rng=seed, like=like) for seed in (0, 1))
                t = timing.medians(
                    {
                        "gyrobn": lambda M=M, x=x, y=y: M.add(x, y),
                        "definition": lambda M=M, x=x, y=y: by_definition(M, x, y),
                        "closed form": lambda M=M, x=x, y=y: closed_form(M, x, y),
                    },
                    rounds=9 if n > 500 else 25,
                )
                ours = t["gyrobn"]
                ratios = ours / t["definition"], ours / t["closed form"]
                rows.append(
                    (cls.__name__, name, n, f"{1e3 * ours:.2f}", *(f"{r:.2f}" for r in ratios))
                )
                print(*rows[-1], flush=True)
    return rows


def normalization():
    rows = []
    for n in (128, 1024):
        M, ball = PoincareBall(n), geoopt.PoincareBall(c=1.0)
        for name, like in (("NumPy", np.empty((), np.float32)), ("torch", torch.empty(()))):
            x = M.random(N, rng=0, like=like)
            m, b = (M.random(rng=seed, like=like, spread=0.5) for seed in (1, 2))
            stats = gyrobn.Stats(m, (m * m).sum() * 0 + 2.0)
            runs = {
                "gyrobn": lambda M=M, x=x, s=stats, b=b: gyrobn.normalize(M, x, s, b),
                "copy": (lambda x=x: x.copy()) if name == "NumPy" else (lambda x=x: x.clone()),
            }
            if name == "torch":
                t = 2.0**-0.5
                runs["geoopt"] = lambda x=x, m=m, b=b, t=t, ball=ball: ball.mobius_add(
                    b, ball.mobius_scalar_mul(torch.tensor(t), ball.mobius_add(-m, x))
                )
            with torch.no_grad():
                t = timing.medians(runs)
            beside = f"{t['gyrobn'] / t['geoopt']:.2f}" if "geoopt" in t else "–"
            rows.append(
                (name, n, f"{1e3 * t['gyrobn']:.1f}", beside, f"{t['gyrobn'] / t['copy']:.1f}")
            )
            print(*rows[-1], flush=True)
    return rows


def memory():
    """Peak extra memory of normalize in NumPy, in multiples of the output."""
    M = PoincareBall(1024)
    x = M.random(N, rng=0, like=np.empty((), np.float32))
    m, b = (M.random(rng=seed, like=x, spread=0.5) for seed in (1, 2))
    tracemalloc.start()
    y = gyrobn.normalize(M, x, gyrobn.Stats(m, np.float32(2.0)), b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / y.nbytes


if __name__ == "__main__":
    adding, normalizing, peak = addition(), normalization(), memory()
    print(f"peak memory of normalize: {peak:.2f} times the output")
    page = f"""<!-- made by: python benchmarks/speed.py -->
# Speed

The tables show ratios of medians, in float32 on {N:,} samples. The alternatives take turns in one
process on one thread. Smaller is better: a ratio of 0.25 means a quarter of the time.

## Gyroaddition on the radius model

Gyroaddition is compared with the definition Exp∘PT∘Log, composed from the operators of the paper's
table, and with the paper's closed form. On the sphere ours takes one inner product and one linear
combination; on the hyperboloid two of each, so that nothing cancels, see {{doc}}`design`.

{table(("geometry", "library", "n", "ms", "of the definition", "of the closed form"), adding)}

## Normalization on the Poincaré ball

{N:,} points are centred, scaled and moved to the bias. This is compared with the same composition
of geoopt's Möbius operations, and with a plain copy of the input.

{table(("library", "n", "ms", "of geoopt", "copies"), normalizing)}

Peak extra memory at n = 1024 (NumPy): {peak:.2f} times the output.
"""
    Path(__file__).parents[1].joinpath("docs", "speed.md").write_text(page)
