r"""Which geometry and curvature fit given distances: a fit for each sign, and its uncertainty.

Distances :math:`\delta_{ij}` are taken as those of points :math:`x_i` of a space of constant
curvature K, or of a product of such spaces, with errors of equal variance. The most likely points
and curvatures minimise the *stress*

.. math:: S(x, K) = \sum_{i<j} (d_K(x_i, x_j) - \delta_{ij})^2 .
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from gyrobn.manifolds import Euclidean, PoincareBall, Product, Sphere
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.checks import check_integer, check_integers
from gyrobn.statistics.stress import Fit, Matrix, fit, refit

MOST = 120
"""More points than this are replaced by a random part: the fit looks at all pairs."""
HALVES = 12
"""Random halves of the points that are fitted again, for the uncertainty."""
QUANTILE = 2.2
"""Of Student's distribution with HALVES − 1 degrees of freedom, for 95 %."""


@dataclass(frozen=True)
class Suggestion:
    """What :func:`suggest` found. ``print`` shows it."""

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
    fits: dict[str, float] = field(repr=False)
    """The error for each choice of signs, such as ``"-"``, ``"+"`` or ``"-+"``."""

    def __str__(self) -> str:
        """Return a few lines for people."""
        lines = [
            f"geometry            {self.geometry!r}",
            f"error of distances  {self.error:.2%}, in flat space {self.flat_error:.2%}",
            f"hyperbolicity       {self.hyperbolicity:.2f} (0 for a tree)",
        ]
        for k, (value, (low, high)) in enumerate(zip(self.curvature, self.interval, strict=True)):
            name = "curvature" if len(self.curvature) == 1 else f"curvature {k + 1}"
            sure = "" if low * high > 0 else "; the data do not decide its sign"
            lines.append(f"{name:<19} {value:.3g}, 95 % interval {low:.3g} to {high:.3g}{sure}")
        return "\n".join(lines) + f"\nfrom {self.points} points"


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
    fits = {s: fit(target, dims, s) for s in signs}
    best = min(fits.values(), key=lambda f: f.stress)
    spread = QUANTILE * np.std(_halves(target, list(fits.values()), generator), axis=0, ddof=1)
    unit, K = size**-2, np.asarray(best.curvature)
    low, high = K - spread, K + spread
    return Suggestion(
        geometry=_geometry(dims, K * unit, low * high > 0),
        curvature=tuple(float(k) for k in K * unit),
        interval=tuple((float(a), float(b)) for a, b in zip(low * unit, high * unit, strict=True)),
        error=best.error,
        flat_error=fit(target, dims, (0,) * len(dims)).error,
        hyperbolicity=_hyperbolicity(target, generator),
        points=len(target),
        fits={"".join("-+"[k > 0] for k in s): f.error for s, f in fits.items()},
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


def _halves(target: Matrix, fits: list[Fit], generator: np.random.Generator) -> Matrix:
    """Return the best curvatures for random halves of the points, shape (HALVES, factors)."""
    found = []
    for _ in range(HALVES):
        rows = generator.choice(len(target), len(target) // 2, replace=False)
        part = target[np.ix_(rows, rows)]
        found.append(min((refit(part, f, rows) for f in fits), key=lambda f: f.stress).curvature)
    return np.asarray(found)


def _geometry(dims: tuple[int, ...], curvature: Any, sure: Any) -> GyroSpace:
    """Return the space with these curvatures, flat where the sign is not sure."""
    factors: list[GyroSpace] = []
    for n, K, known in zip(dims, curvature, sure, strict=True):
        digits = float(f"{K:.3g}")
        if not known:
            factors.append(Euclidean(n))
        else:
            factors.append(PoincareBall(n, digits) if K < 0 else Sphere(n, digits))
    return factors[0] if len(factors) == 1 else Product(*factors)


def _distances(x: Any, distances: Any, neighbours: int) -> Matrix:
    """Check the input, and return a matrix of distances."""
    if (x is None) == (distances is None):
        raise ValueError("suggest takes points or distances: give one of them")
    if distances is None:
        return _along_graph(np.asarray(x, dtype=float), neighbours)
    found = np.asarray(distances, dtype=float)
    if found.ndim != 2 or found.shape[0] != found.shape[1]:
        raise ValueError(f"distances must be a square matrix, got shape {found.shape}")
    if not np.isfinite(found).all():
        i, j = (int(k[0]) for k in np.nonzero(~np.isfinite(found)))
        raise ValueError(
            f"distances must be finite, got {found[i, j]} between {i} and {j}: leave out points "
            "that no path reaches"
        )
    off = np.abs(found - found.T).max(initial=0.0)
    if off > 1e-6 * np.abs(found).max(initial=0.0) or found.min(initial=0.0) < 0.0:
        raise ValueError(
            "distances must be symmetric and not negative, got a largest asymmetry of "
            f"{off:.3g} and a least value of {found.min(initial=0.0):.3g}"
        )
    even: np.ndarray[Any, Any] = 0.5 * (found + found.T)
    np.fill_diagonal(even, 0.0)
    return even


def _along_graph(x: Matrix, neighbours: int) -> Matrix:
    """Return the lengths of shortest paths along the graph of nearest neighbours."""
    from scipy.sparse.csgraph import connected_components, shortest_path
    from sklearn.neighbors import kneighbors_graph

    if x.ndim != 2:
        raise ValueError(
            f"suggest takes vectors of shape (N, n), got {x.shape}: for points of a geometry M "
            "give distances=M.dist(x[:, None], x)"
        )
    if not np.isfinite(x).all():
        raise ValueError("the points contain NaN or infinity: leave those samples out")
    graph = kneighbors_graph(x, min(neighbours, len(x) - 1), mode="distance")
    parts, _ = connected_components(graph, directed=False)
    if parts > 1:
        raise ValueError(
            f"the graph of {neighbours} nearest neighbours falls into {parts} parts: give more "
            "neighbours, or leave out points that lie apart"
        )
    lengths: np.ndarray[Any, Any] = shortest_path(graph, directed=False)
    return lengths


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
