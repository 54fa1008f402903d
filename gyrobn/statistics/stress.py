r"""The most likely points of a product of spaces of constant curvature for given distances.

A factor of curvature K < 0 is the hyperboloid, by the spatial part p of a point; one of K > 0 the
stereographic plane, by x = p/2; one of K = 0 is flat. So p is free, and every quasi-Newton method
can move it. With :math:`m = 2/(1 + K\|x\|^2)` the squared chord and the distance are

.. math:: q_{ij} = m_i m_j \|x_i - x_j\|^2, \qquad
          d_{ij} = \sqrt{q_{ij}}\,g(K q_{ij}/4), \qquad
          g(u) = \frac{\arcsin\sqrt u}{\sqrt u} .
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]
TINY = 1e-24
STARTS = 0.3, 2.0
"""Sizes of the curvature to start from, if the distances have root mean square one."""


@dataclass(frozen=True)
class Fit:
    """Points and curvatures, and how well they fit."""

    points: tuple[Matrix, ...]
    """The free coordinates p of each factor, shape (N, n)."""
    curvature: tuple[float, ...]
    stress: float
    error: float
    """Root mean square error relative to the root mean square distance."""


def fit(target: Matrix, dims: tuple[int, ...], signs: tuple[int, ...]) -> Fit:
    """Fit factors of given dimensions and signs of curvature, from the flat fit's points."""
    flat = _scaling(target, sum(dims))
    parts = np.split(flat, np.cumsum(dims)[:-1], axis=1)
    sizes = STARTS if any(signs) else (0.0,)
    tried = []
    for size in sizes:
        curvature = [sign * size for sign in signs]
        points = [_coordinates(c, K) for c, K in zip(parts, curvature, strict=True)]
        tried.append(_minimise(target, points, curvature))
    return min(tried, key=lambda found: found.stress)


def refit(target: Matrix, start: Fit, rows: Matrix) -> Fit:
    """Fit a part of the points, from their places in another fit."""
    return _minimise(target, [p[rows] for p in start.points], list(start.curvature))


def _scaling(target: Matrix, dim: int) -> Matrix:
    """Return the points of classical scaling: the leading eigenvectors of the centred squares."""
    squares = target**2
    centred = -0.5 * (
        squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    )
    values, vectors = np.linalg.eigh(centred)
    order = np.argsort(values)[::-1][:dim]
    points: Matrix = vectors[:, order] * np.sqrt(np.maximum(values[order], 1e-6))
    return points


def _coordinates(c: Matrix, K: float) -> Matrix:
    """Return the free coordinates of points with normal coordinates c."""
    size = np.linalg.norm(c, axis=1, keepdims=True)
    angle = np.maximum(abs(K) ** 0.5 * size, 1e-12)
    p: Matrix = c
    if K < 0:
        p = c * np.sinh(angle) / angle
    elif K > 0:
        p = c * np.tan(np.minimum(0.5 * angle, 1.3)) / (0.5 * angle)
    return p


def _minimise(target: Matrix, points: list[Matrix], curvature: list[float]) -> Fit:
    """Minimise the stress over points and curvatures of these signs."""
    from scipy.optimize import minimize

    shapes = [p.shape for p in points]
    cuts = np.cumsum([p.size for p in points])
    signs = np.sign(curvature)
    free = [k for k, sign in enumerate(signs) if sign != 0]
    total = float(np.sum(target**2))

    def unpack(z: Matrix) -> tuple[list[Matrix], Matrix]:
        *flat, logs = np.split(z, cuts)
        K = np.zeros(len(shapes))
        K[free] = signs[free] * np.exp(logs)
        return [p.reshape(shape) for p, shape in zip(flat, shapes, strict=True)], K

    def value(z: Matrix) -> tuple[float, Matrix]:
        p, K = unpack(z)
        stress, slopes, by_curvature = _stress(target, p, K)
        logs = (by_curvature * K)[free]  # the parameter is log|K|
        return stress / total, np.concatenate([*(s.ravel() for s in slopes), logs]) / total

    logs = np.log(np.abs(np.asarray(curvature)[free]))
    start = np.concatenate([*(p.ravel() for p in points), logs])
    bounds = [(None, None)] * int(cuts[-1]) + [(-14.0, 7.0)] * len(free)
    options = {"maxiter": 500, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-10}
    found = minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    p, K = unpack(found.x)
    stress = float(found.fun) * total
    return Fit(tuple(p), tuple(float(k) for k in K), stress, float(np.sqrt(found.fun)))


def _stress(target: Matrix, points: list[Matrix], K: Matrix) -> tuple[float, list[Matrix], Matrix]:
    """Return the stress over all ordered pairs, and its slopes by points and curvatures."""
    found = [_factor(p, float(k)) for p, k in zip(points, K, strict=True)]
    distance = np.sqrt(sum(d * d for d, _ in found) + TINY)
    off = distance - target
    slopes = [back(2.0 * off * d / distance) for d, back in found]
    by_points, by_curvature = zip(*slopes, strict=True)
    return float(np.sum(off**2)), list(by_points), np.asarray(by_curvature)


def _factor(p: Matrix, K: float) -> tuple[Matrix, Any]:
    """Return the distances in one factor, and what carries slopes by them back to p and K."""
    squares = np.sum(p * p, axis=1)
    if K < 0:
        w = np.sqrt(1.0 - K * squares)
        m = 1.0 + w
        x = p / m[:, None]
    else:
        x = 0.5 * p
        m = 2.0 / (1.0 + 0.25 * K * squares)
    gap = np.maximum(np.sum((x[:, None] - x) ** 2, axis=-1), TINY)
    q = m[:, None] * m * gap
    u = np.minimum(0.25 * K * q, 1.0 - 1e-12)
    g, slope = _arc(u)
    d = np.sqrt(q) * g

    def back(by_distance: Matrix) -> tuple[Matrix, float]:
        by_q = by_distance / (2.0 * np.sqrt(q) * np.sqrt(1.0 - u))
        by_curvature = float(np.sum(by_distance * np.sqrt(q) * slope * 0.25 * q))
        both = (by_q + by_q.T) * m[:, None] * m
        by_x = 2.0 * (both.sum(axis=1)[:, None] * x - both @ x)
        by_m = np.sum((by_q + by_q.T) * m * gap, axis=1)
        if K < 0:
            by_m = by_m - np.sum(by_x * p, axis=1) / m**2
            by_curvature += float(np.sum(by_m * -squares / (2.0 * w)))
            return by_x / m[:, None] - (by_m * K / w)[:, None] * p, by_curvature
        by_x = by_x - (by_m * m**2 * K)[:, None] * x
        by_curvature += float(np.sum(by_m * -0.125 * m**2 * squares))
        return 0.5 * by_x, by_curvature

    return d, back


def _arc(u: Matrix) -> tuple[Matrix, Matrix]:
    """Return g(u) and its derivative; by series where |u| is small."""
    small = np.abs(u) < 1e-3
    v = np.where(small, 0.5, u)
    root = np.sqrt(np.abs(v))
    g = np.where(v > 0, np.arcsin(np.minimum(root, 1.0)), np.arcsinh(root)) / root
    slope = (1.0 / np.sqrt(1.0 - v) - g) / (2.0 * v)
    series = 1.0 + u * (1 / 6 + u * (3 / 40 + u * (5 / 112 + u * 35 / 1152)))
    series_slope = 1 / 6 + u * (3 / 20 + u * (15 / 112 + u * 35 / 288))
    return np.where(small, series, g), np.where(small, series_slope, slope)
