"""Fréchet mean and variance, with exact derivatives: the functions that a user calls."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import array_api_compat as compat

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.data.chunks import Chunks
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.numerics.arrays import check_floating, weighted_sum
from gyrobn.numerics.checks import check_choice
from gyrobn.statistics import lazy
from gyrobn.statistics.mean import Found, centroid, check_search, find, like, solve
from gyrobn.statistics.parts import in_chunks
from gyrobn.statistics.samples import arrange
from gyrobn.statistics.sources import Group
from gyrobn.statistics.uniqueness import warn


class FrechetResult(NamedTuple):
    """What :func:`frechet` returns; every field but ``mean`` has the shape of the channels.

    On a geometry of several blocks the variance has one entry per block, (*channels, blocks).
    """

    mean: Array
    """The Fréchet mean, shape (*channels, *point_shape)."""
    variance: Array
    """Mean squared distance to the mean."""
    iterations: Array
    """How many times the centred samples were computed for the channel."""
    residual: Array
    """Length of the gradient, the mean of the centred samples' normal coordinates."""
    converged: Array
    """Whether the residual met the tolerance, or the limit of the arithmetic."""


def frechet(
    manifold: GyroSpace,
    x: Array,
    weights: Array | None = None,
    axis: int | tuple[int, ...] = 0,
    tol: float | None = None,
    max_iter: int = 64,
    init: Array | None = None,
    steps: int | None = None,
    mean_gradient: str = "implicit",
) -> FrechetResult:
    r"""Find the Fréchet mean and variance of samples on a manifold.

    .. math:: \mu = \operatorname{argmin}_y \sum_i w_i d^2(x_i, y), \qquad
              v^2 = \sum_i w_i d^2(x_i, \mu)

    Parameters
    ----------
    manifold
        The geometry of the points.
    x
        Samples, shape ``(*batch, *point_shape)``. Batch axes that are not reduced are channels.
        Or :class:`~gyrobn.Chunks` of them, or a Dask array, which may be more than memory holds:
        then the mean is a constant, and each iteration a pass over the chunks or one ``compute``.
    weights
        Non-negative weights, of the shape of the reduced axes or of the whole batch; they are
        divided by their sum. Equal by default. A sample whose weight is 0 is left out, whatever
        it is: NaN, or padding that is no point.
    axis
        The batch axis, or axes, to average over.
    tol
        Largest residual, relative to the square root of the variance; 8 ulp by default.
    max_iter
        Most evaluations; a warning tells when they do not suffice.
    init
        Where to start, shape ``(*channels, *point_shape)``.
    steps
        Take just so many Newton steps and no convergence test, as in the paper's experiments. The
        derivative is that of a mean, as if the steps had reached it.
    mean_gradient
        ``"implicit"``: the mean has its exact derivative. ``"detach"``: it is a constant, and the
        variance has the derivative of the mean squared distance to it.

    Returns
    -------
    FrechetResult
        Mean, variance, iterations, residual, converged. The mean and the variance carry the exact
        first and second derivatives with respect to the samples, the weights and the curvature on
        torch and JAX, whatever the number of iterations was. (A third derivative raises an error,
        unless the geometry is flat.)

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(2)
    >>> x = np.asarray([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5], [0.0, -0.5]])
    >>> result = frechet(M, x)
    >>> bool(abs(result.mean).max() < 1e-15), bool(result.converged)
    (True, True)
    >>> round(float(result.variance), 12)
    1.206948960813
    """
    if isinstance(x, Chunks) or compat.is_dask_array(x):
        if axis not in (0, (0,)) or steps is not None:
            raise ValueError("samples in chunks are averaged over their first axis, to convergence")
        search = check_search(tol, max_iter, None)
        constant = check_manifold(manifold).detached()  # the mean is a constant, too
        given: Iterable[Array]
        if isinstance(x, Chunks):
            parts, given = in_chunks(constant, x, weights), x
        else:
            parts = lazy.scattered(constant, x, weights)
            given = parts.blocks.each()
        start = None if init is None else constant.to_inside(init)
        return told(manifold, solve(parts, start, search), given, search.max_iter)

    def run(x: Array, manifold: GyroSpace, weights: Array | None, init: Array) -> FrechetResult:
        samples, w = arrange(manifold, x, weights, axis)
        found, _ = locate(manifold, samples, w, tol, max_iter, init, steps, mean_gradient)
        return result_of(found)

    found: FrechetResult = backend_of(x).auto_sharded(run, x, manifold, weights, init)
    return found


def locate(
    manifold: GyroSpace,
    x: Array,
    w: Array,
    tol: float | None = None,
    max_iter: int = 64,
    init: Array | None = None,
    steps: int | None = None,
    mean_gradient: str = "implicit",
    tell: Callable[..., None] = warn,
    group: Group | None = None,
    mean: str = "frechet",
) -> tuple[Found, Centred]:
    """Return what was found, and the samples ``inside`` the manifold as seen from the mean.

    Samples (N, *channels, *point_shape) and weights (N, *channels) come from :func:`arrange`, with
    the same group. ``tell`` is what warns of a mean that was not found, or is not the only one.
    With the mean ``"centroid"`` nothing is searched for: it is the geometry's first guess.
    """
    search = check_search(tol, max_iter, steps)
    check_mean(mean, search.steps, init is not None)
    check_choice("mean_gradient", mean_gradient, ("implicit", "detach"))
    if init is not None:
        check_floating(x, init)
        if tuple(init.shape) != tuple(x.shape[1:]):
            raise ValueError(f"init must have shape {tuple(x.shape[1:])}, got {tuple(init.shape)}")
    stop, exact = backend_of(x).stop_gradient, mean_gradient == "implicit"
    space, y = manifold.inside, manifold.to_inside(x)
    if mean == "centroid":
        found = centroid(space, y, w, exact, group)
    else:
        start = None if init is None else stop(manifold.to_inside(init))
        found = find(space, y, w, start, search, exact, group)
    if search.steps is None and not backend_of(x).traced(found.mean):
        # of samples on other ranks, only the distance of those here is known
        given = (stop(x),), (stop(y), stop(w)) if group is None else None
        tell(manifold, space.detached(), *given, found, search.max_iter)
    return outside(manifold, found), found.view


def check_mean(mean: Any, steps: int | None, started: bool = False) -> None:
    """Refuse a kind of mean that is not known, and a centroid that is searched for."""
    check_choice("mean", mean, ("frechet", "centroid"))
    if mean == "centroid" and (steps is not None or started):
        name = "init" if steps is None else "steps"
        raise ValueError(
            f"mean='centroid' takes no step from any start, so {name} has no meaning: leave it "
            "out, or use mean='frechet'"
        )


def outside(manifold: GyroSpace, found: Found) -> Found:
    """Carry the mean out of the space in which it was found; one block needs no axis."""
    variance = manifold.squeeze_blocks(found.variance)
    return found._replace(mean=manifold.from_inside(found.mean), variance=variance)


def result_of(found: Found) -> FrechetResult:
    """Return what was found as arrays of the library of the samples."""
    mean, count = found.mean, found.evaluations
    residual, converged = (like(values, mean) for values in found.status())
    if isinstance(count, int):
        xp = namespace_of(mean)
        count = xp.full(residual.shape, count, dtype=xp.int32, device=device_of(mean))
    return FrechetResult(mean, found.variance, like(count, mean), residual, converged)


def told(
    manifold: GyroSpace, found: Found, given: Iterable[Array], max_iter: int, **options: Any
) -> FrechetResult:
    """Return what was found of samples not in memory, with the warnings about it."""
    warn(manifold, manifold.detached().inside, given, None, found, max_iter, **options)
    return result_of(outside(manifold, found))


def frechet_mean(
    manifold: GyroSpace, x: Array, weights: Array | None = None, **options: Any
) -> Array:
    """Return only the mean: see :func:`frechet` for the options."""
    return frechet(manifold, x, weights, **options).mean


def frechet_variance(
    manifold: GyroSpace,
    x: Array,
    mean: Array | None = None,
    weights: Array | None = None,
    axis: int | tuple[int, ...] = 0,
) -> Array:
    """Return the mean squared distance of samples to ``mean``, the Fréchet mean by default.

    Parameters
    ----------
    manifold, x, weights, axis
        As in :func:`frechet`.
    mean
        Point to measure from, shape ``(*channels, *point_shape)``.
    """
    if mean is None:
        return frechet(manifold, x, weights, axis).variance

    def run(x: Array, manifold: GyroSpace, mean: Array, weights: Array | None) -> Array:
        samples, w = arrange(manifold, x, weights, axis)
        if not manifold.block_shape:
            distance = manifold.dist(mean, samples)
            return weighted_sum(w, distance * distance)
        return manifold.centred(mean, samples).variance(w)

    return backend_of(x).auto_sharded(run, x, manifold, mean, weights)
