r"""Which geometry and curvature fit given distances: a fit for each sign, and its uncertainty.

Distances :math:`\delta_{ij}` are taken as those of points :math:`x_i` of a space of constant
curvature K, or of a product of such spaces, with errors of equal variance. The most likely points
and curvatures minimise the *stress*

.. math:: S(x, K) = \sum_{i<j} (d_K(x_i, x_j) - \delta_{ij})^2 .
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gyrobn.manifolds import Euclidean, PoincareBall, Product, Sphere
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.checks import check_integer, check_integers

Matrix = np.ndarray[Any, Any]
MOST = 120
"""More points than this are replaced by a random part: the fit looks at all pairs."""
HALVES = 12
"""Random halves of the points that are fitted again, for the uncertainty."""
QUANTILE = 2.2
"""Of Student's distribution with HALVES − 1 degrees of freedom, for 95 %."""


class Fit(NamedTuple):
    """Points and curvatures, and how well they fit."""

    points: Matrix
    """The free coordinates p, those of all factors side by side."""
    curvature: Matrix
    error: float
    """Root mean square error relative to the root mean square distance."""


@dataclass(frozen=True)
class Suggestion:
    """What :func:`suggest` found."""

    geometry: GyroSpace
    """A space to use: flat in each factor whose sign of curvature the data do not decide."""
    curvature: tuple[float, ...]
    """The most likely curvature of each factor."""
    interval: tuple[tuple[float, float], ...]
    """95 % interval of each curvature, from fits to random halves of the points."""
    error: float
    """Root mean square error of the distances, relative to their root mean square."""
    flat_error: float
    """The same error for flat space of the same dimensions."""
    hyperbolicity: float
    """Relative Gromov hyperbolicity 2δ/diameter: 0 for a tree, 1 at most."""
    points: int
    """Number of points that were fitted."""
    fits: dict[str, float]
    """The error for each choice of signs, such as ``"-"``, ``"+"`` or ``"-+"``."""


def suggest(
    x: Any = None,
    *,
    distances: Any = None,
    dim: int | Sequence[int] = 2,
    neighbours: int = 10,
    rng: int | np.random.Generator = 0,
) -> Suggestion:
    """Suggest a geometry and its curvature for points, or for a matrix of distances.

    Spaces of negative, zero and positive curvature are fitted to the distances, and fitted again to
    random halves of the points. The spread of those fits is the uncertainty (a delete-half
    jackknife). If the interval of a curvature contains zero, the flat space is suggested.

    Parameters
    ----------
    x
        Vectors, shape (N, n). Their distances are measured along the graph of nearest neighbours,
        so a curved surface shows its own curvature and not that of the space around it.
    distances
        A symmetric matrix of distances, in place of x: for example the lengths of shortest paths in
        a graph, or ``M.dist(x[:, None], x)`` for points of any geometry M.
    dim
        Dimension of the space. Several numbers stand for a product, whose factors have a curvature
        each.
    neighbours
        Number of neighbours of a point in the graph. It has no effect on given distances.
    rng
        Seed or generator that chooses the points if there are more than 120, and the halves.

    Examples
    --------
    Points of a hyperbolic plane of curvature −2 are recognised:

    >>> from gyrobn import PoincareBall, suggest
    >>> M = PoincareBall(2, curvature=-2.0)
    >>> points = M.random(60, rng=0)
    >>> found = suggest(distances=M.dist(points[:, None], points))
    >>> found.geometry, round(found.curvature[0], 3)
    (PoincareBall(n=2, curvature=-2.0), -2.0)
    """
    generator = np.random.default_rng(rng)
    dims = check_integers("dim", dim, 1)
    target = _distances(x, distances, check_integer("neighbours", neighbours, 1))
    target, size = _in_units(target, dims, generator)
    signs = list(product((-1, 1), repeat=len(dims)))
    if len(set(dims)) == 1:  # the order of equal factors does not matter
        signs = [s for s in signs if list(s) == sorted(s)]
    fits = {"".join("-+"[k > 0] for k in s): fit(target, dims, s) for s in signs}
    best = min(fits.values(), key=lambda f: f.error)
    halves = []
    for _ in range(HALVES):
        rows = generator.choice(len(target), len(target) // 2, replace=False)
        part = target[np.ix_(rows, rows)]
        again = (_minimise(part, dims, f.points[rows], f.curvature) for f in fits.values())
        halves.append(min(again, key=lambda f: f.error).curvature)
    spread = QUANTILE * np.std(halves, axis=0, ddof=1)
    K, low, high = (
        k / size**2 for k in (best.curvature, best.curvature - spread, best.curvature + spread)
    )
    factors: list[GyroSpace] = [Euclidean(n) for n in dims]
    for i in np.flatnonzero(low * high > 0):
        factors[i] = (PoincareBall if K[i] < 0 else Sphere)(dims[i], float(f"{K[i]:.3g}"))
    return Suggestion(
        geometry=factors[0] if len(factors) == 1 else Product(*factors),
        curvature=tuple(K.tolist()),
        interval=tuple(zip(low.tolist(), high.tolist(), strict=True)),
        error=best.error,
        flat_error=fit(target, dims, (0,) * len(dims)).error,
        hyperbolicity=_hyperbolicity(target, generator),
        points=len(target),
        fits={name: f.error for name, f in fits.items()},
    )


def _in_units(
    target: Matrix, dims: tuple[int, ...], generator: np.random.Generator
) -> tuple[Matrix, float]:
    """Return the distances of a part of the points over their root mean square, and that."""
    least = 4 * (sum(dims) + 2)
    if len(target) < least:
        raise ValueError(
            f"a curvature in {sum(dims)} dimensions needs at least {least} points, got "
            f"{len(target)}"
        )
    if len(target) > MOST:
        chosen = np.sort(generator.choice(len(target), MOST, replace=False))
        target = target[np.ix_(chosen, chosen)]
    size = float(np.sqrt(np.mean(target**2)))
    if size == 0.0:
        raise ValueError("all distances are zero: there is no geometry to find")
    return target / size, size


def _distances(x: Any, distances: Any, neighbours: int) -> Matrix:
    """Check the input, and return a matrix of distances."""
    if (x is None) == (distances is None):
        raise ValueError("suggest takes points or distances: give one of them")
    d = np.asarray(distances if x is None else _along_graph(x, neighbours), dtype=float)
    good = d.ndim == 2 and d.shape[0] == d.shape[1] and np.isfinite(d).all() and (d >= 0.0).all()
    if not good or abs(d - d.T).max(initial=0.0) > 1e-6 * d.max(initial=0.0):
        raise ValueError(
            f"distances must be a square, symmetric matrix of finite numbers, none negative, got "
            f"shape {d.shape}: leave out points that no path reaches, or give more neighbours"
        )
    even: Matrix = 0.5 * (d + d.T) * (1.0 - np.eye(len(d)))
    return even


def _along_graph(x: Any, neighbours: int) -> Any:
    """Return the lengths of shortest paths along the graph of nearest neighbours."""
    from scipy.sparse.csgraph import shortest_path
    from sklearn.neighbors import kneighbors_graph

    x = np.asarray(x, dtype=float)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ValueError(
            f"suggest takes vectors of shape (N, n) without NaN and infinity, got {x.shape}: for "
            "points of a geometry M give distances=M.dist(x[:, None], x)"
        )
    graph = kneighbors_graph(x, min(neighbours, len(x) - 1), mode="distance")
    return shortest_path(graph, directed=False)


def _hyperbolicity(target: Matrix, generator: np.random.Generator) -> float:
    """Return 2δ/diameter, with δ the largest over some base points.

    δ at a base point is the largest of min((i·k), (k·j)) − (i·j) over all i, j, k, where (i·j) is
    the Gromov product. Over all base points it is at most twice that of any of them.
    """
    largest = 0.0
    for base in generator.choice(len(target), min(len(target), 12), replace=False):
        gromov = 0.5 * (target[base][:, None] + target[base] - target)
        through = np.stack([np.minimum(row[:, None], gromov).max(axis=0) for row in gromov])
        largest = max(largest, float((through - gromov).max()))
    return 2.0 * largest / float(target.max())


# ---------------------------------------------------------------------- the most likely points

TINY = 1e-24
STARTS = 0.3, 2.0
"""Sizes of the curvature to start from, if the distances have root mean square one."""


def fit(target: Matrix, dims: tuple[int, ...], signs: tuple[int, ...]) -> Fit:
    """Fit factors of given dimensions and signs of curvature, from the flat fit's points."""
    flat, tried = _parts(_scaling(target, sum(dims)), dims), []
    for size in STARTS:
        K = size * np.asarray(signs, dtype=float)
        points = np.hstack([_coordinates(c, k) for c, k in zip(flat, K, strict=True)])
        tried.append(_minimise(target, dims, points, K))
    return min(tried, key=lambda found: found.error)


def _parts(points: Matrix, dims: tuple[int, ...]) -> list[Matrix]:
    """Return the coordinates of each factor."""
    return np.split(points, np.cumsum(dims)[:-1], axis=1)


def _scaling(target: Matrix, dim: int) -> Matrix:
    """Return the points of classical scaling: the leading eigenvectors of the centred squares."""
    centring = np.eye(len(target)) - 1.0 / len(target)
    values, vectors = np.linalg.eigh(-0.5 * centring @ target**2 @ centring)
    points: Matrix = vectors[:, -dim:] * np.sqrt(np.maximum(values[-dim:], 1e-6))
    return points[:, ::-1]


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


def _minimise(target: Matrix, dims: tuple[int, ...], points: Matrix, curvature: Matrix) -> Fit:
    """Minimise the stress over points and the logarithms of the curvatures."""
    from scipy.optimize import minimize

    signs, count, total = np.sign(curvature), points.size, float(np.sum(target**2))

    def unpack(z: Matrix) -> tuple[Matrix, Matrix]:
        return z[:count].reshape(points.shape), signs * np.exp(z[count:])

    def value(z: Matrix) -> tuple[float, Matrix]:
        p, K = unpack(z)
        factors = [_factor(x, float(k)) for x, k in zip(_parts(p, dims), K, strict=True)]
        distance = np.sqrt(sum(d * d for d, _ in factors) + TINY)
        off = distance - target
        slopes = [back(2.0 * off * d / distance) for d, back in factors]
        by_points, by_curvature = zip(*slopes, strict=True)
        slope = np.concatenate([np.hstack(by_points).ravel(), np.asarray(by_curvature) * K])
        return float(np.sum(off**2)) / total, slope / total

    start = np.concatenate([points.ravel(), np.log(np.where(signs, abs(curvature), 1.0))])
    bounds = [(None, None)] * count + [(-14.0, 7.0)] * len(dims)
    options = {"maxiter": 500, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-10}
    found = minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return Fit(*unpack(found.x), float(np.sqrt(found.fun)))


def _factor(p: Matrix, K: float) -> tuple[Matrix, Any]:
    r"""Return the distances in one factor, and a function that pulls gradients back to p and K.

    A factor of curvature K < 0 is the hyperboloid, by the spatial part p of a point; one of K > 0
    the stereographic plane, by x = p/2; one of K = 0 is flat. So p is free, and a quasi-Newton
    method can move it. With :math:`m = 2/(1 + K\|x\|^2)` the squared chord and the distance are

    .. math:: q_{ij} = m_i m_j \|x_i - x_j\|^2, \qquad
              d_{ij} = \sqrt{q_{ij}}\,g(K q_{ij}/4), \qquad
              g(u) = \frac{\arcsin\sqrt u}{\sqrt u} .
    """
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
    small, series = np.abs(u) < 1e-3, [35 / 1152, 5 / 112, 3 / 40, 1 / 6, 1.0]
    v = np.where(small, 0.5, u)
    root = np.sqrt(np.abs(v))
    g = np.where(v > 0, np.arcsin(np.minimum(root, 1.0)), np.arcsinh(root)) / root
    slope = (1.0 / np.sqrt(1.0 - v) - g) / (2.0 * v)
    near, near_slope = np.polyval(series, u), np.polyval(np.polyder(series), u)
    return np.where(small, near, g), np.where(small, near_slope, slope)
