r"""Algorithm 1 of the paper as pure functions: GyroBN is

.. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
          (\ominus\mu \oplus x_i)\Bigr) .

By the homogeneity theorem the output has mean :math:`\beta` and variance
:math:`s^2 v^2/(v^2 + \epsilon)`.
"""

from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.manifolds.rebased import seen_from
from gyrobn.numerics.arrays import check_floating, length, real_dtype, real_like, scalars_like
from gyrobn.numerics.checks import check_number, host, warn_caller
from gyrobn.statistics.frechet import frechet, locate
from gyrobn.statistics.points import describe, is_hyperbolic, may_be_far_out
from gyrobn.statistics.samples import Group, arrange, set_aside
from gyrobn.statistics.uniqueness import FrechetWarning


class Stats(NamedTuple):
    """Statistics of a batch, or running statistics."""

    mean: Array
    """Fréchet mean, shape (*channels, *point_shape)."""
    var: Array
    """Fréchet variance, shape (*channels,), or (*channels, blocks) if there are several blocks; a
    plain number stands for all channels and blocks."""


class Road(NamedTuple):
    """Where samples go: they are seen from the centre, multiplied, and carried to the target."""

    centre: Array
    factor: Array
    target: Array | None
    """None for the identity."""


def batch_stats(
    manifold: GyroSpace, x: Array, weights: Array | None = None, axis: Any = 0, **options: Any
) -> Stats:
    """Return the Fréchet mean and variance of a batch ``(batch, *channels, *point_shape)``.

    Parameters
    ----------
    manifold, x, weights, axis, **options
        As in :func:`~gyrobn.frechet`.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Euclidean, batch_stats
    >>> batch_stats(Euclidean(1), np.asarray([[1.0], [3.0]]))
    Stats(mean=array([2.]), var=array(1.))
    """

    result = frechet(manifold, x, weights, axis, **options)
    return Stats(result.mean, result.variance)


def update_stats(manifold: GyroSpace, running: Stats, batch: Stats, rate: Any = 0.1) -> Stats:
    r"""Move running statistics towards those of a batch.

    The mean goes along the geodesic, to the barycentre
    :math:`\operatorname{argmin}_y\, \eta\, d^2(\mu_b, y) + (1-\eta)\, d^2(\mu_r, y)`, and the
    variance by the same rate: :math:`v_r^2 \leftarrow \eta v_b^2 + (1-\eta) v_r^2`.

    Parameters
    ----------
    manifold
        The geometry.
    running, batch
        The statistics so far and those of the new batch.
    rate
        Fraction :math:`\eta` of the new batch: 0 keeps the running statistics, 1 replaces them. A
        number, or an array that broadcasts against the channels.
        (torch calls it ``momentum``; flax's ``momentum`` is one minus it.)

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Euclidean, Stats, update_stats
    >>> old = Stats(np.asarray([0.0]), np.asarray(1.0))
    >>> new = Stats(np.asarray([1.0]), np.asarray(2.0))
    >>> mean, var = update_stats(Euclidean(1), old, new, rate=0.25)
    >>> mean, float(var)
    (array([0.25]), 1.25)
    """
    check_manifold(manifold)
    if isinstance(rate, (Real, str)):  # arrays may be traced: not checked
        check_number("rate", rate, 0.0, 1.0)
    elif manifold.block_shape:
        rate = rate[..., None]
    running, batch = (_with_array(stats, running.mean) for stats in (running, batch))
    inside, x, y = manifold.inside, *map(manifold.to_inside, (running.mean, batch.mean))
    mean = inside.geodesic(x, y, rate)
    if inside.drifts:  # so that many updates stay on the manifold
        mean = inside.project(mean)
    var = (1.0 - rate) * running.var + rate * batch.var
    return Stats(manifold.from_inside(mean), var)


def merge_stats(manifold: GyroSpace, first: Stats, second: Stats, rate: Any) -> Stats:
    r"""Put the statistics of two sets of samples together.

    .. math:: \mu = \mu_1 \oplus (\eta \odot (\ominus\mu_1 \oplus \mu_2)), \qquad
              v^2 = (1-\eta) v_1^2 + \eta v_2^2 + \eta(1-\eta)\, d^2(\mu_1, \mu_2)

    The last term is the squared distance of the means, per block; :func:`update_stats`, which
    forgets, leaves it out. On a flat geometry both formulas are exact. On a curved one the mean is
    that of the two means, and the variance is computed from there as in flat space. It is never too
    large if the curvature is nowhere positive, and never too small if the curvature is nowhere
    negative (and the samples are within the convexity radius).

    Parameters
    ----------
    manifold
        The geometry.
    first, second
        The statistics of the two sets.
    rate
        The share :math:`\eta` of the second set in the number of samples, or in the sum of weights:
        a number, or an array of the shape of the channels.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Euclidean, batch_stats, merge_stats
    >>> x = np.asarray([[0.0], [2.0], [4.0], [10.0]])
    >>> one, two = (batch_stats(Euclidean(1), part) for part in (x[:1], x[1:]))
    >>> mean, var = merge_stats(Euclidean(1), one, two, rate=3 / 4)
    >>> float(mean[0]), round(float(var), 12), batch_stats(Euclidean(1), x)
    (4.0, 14.0, Stats(mean=array([4.]), var=array(14.)))
    """
    check_floating(*map(real_like, (first.mean, second.mean)))
    mean, var = update_stats(manifold, first, second, rate)
    c = manifold.relative_normal(first.mean, second.mean)
    apart = manifold.squeeze_blocks(manifold.by_block(c * c))
    if manifold.block_shape and not isinstance(rate, Real):
        rate = rate[..., None]
    return Stats(mean, var + rate * (1.0 - rate) * apart)


def normalize(
    manifold: GyroSpace,
    x: Array,
    stats: Stats,
    bias: Array | None = None,
    scale: Array | float | str | None = 1.0,
    eps: float = 1e-5,
    clamp: float | None = None,
    *,
    reference: Array | None = None,
    check: bool = True,
) -> Array:
    r"""Normalize a batch: :math:`\beta \oplus (s/\sqrt{v^2+\epsilon} \odot (\ominus\mu \oplus x))`.

    Parameters
    ----------
    manifold
        The geometry.
    x
        Points, shape ``(batch, *channels, *point_shape)``.
    stats
        Mean ``(*channels, *point_shape)`` and variance ``(*channels,)``, of this batch or running;
        the variance is ``(*channels, blocks)`` if the geometry has several blocks.
    bias
        The mean of the output, shape ``(*channels, *point_shape)`` or ``point_shape``; the identity
        by default, or the reference.
    scale
        Standard deviation s of the output, a number or an array of the variance's shape; or
        ``"sqrt_dim"``, the root of the dimension (of each block), for a variance of one per normal
        coordinate. None to centre only: the factor is 1, and the variance stays that of the input.
    eps
        Added to the variance, so that a collapsed batch stays finite.
    clamp
        Largest size of the factor :math:`s/\sqrt{v^2+\epsilon}`, if any; where it applies, the
        variance of the output is smaller than the theorem's.
    reference
        A point r, shape ``(*channels, *point_shape)`` or ``point_shape``, from which the geometry
        is seen, as if it were the identity: the operations are those of the isometry
        :math:`x \mapsto \ominus r \oplus x`. Mean and variance of the output are the same. Where
        :math:`\mu` is close to the cut locus of e, :math:`\ominus\mu \oplus x` turns samples by
        very different rotations for nearly equal means (:meth:`GyroSpace.cut_locus_angle` tells);
        give a point near the data then, such as the mean itself.
    check
        Whether to warn of samples that are scaled farther than coordinates reach.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import PoincareBall, batch_stats, normalize
    >>> M = PoincareBall(2)
    >>> x = M.add(np.asarray([0.3, 0.4]), M.random(100, rng=0))
    >>> y = normalize(M, x, batch_stats(M, x), scale=0.5)
    >>> mean, var = batch_stats(M, y)
    >>> bool(abs(mean).max() < 1e-12), round(float(var), 4)
    (True, 0.25)
    """
    space = seen_from(manifold, reference, x)
    road = route(space, x, stats, bias, scale, eps, clamp)
    y = space.standardize(x, *road)
    if check:
        _warn_if_clamped("normalize()", space, x, y, road, *_deviation(space, stats, scale))
    return y


def normalize_batch(
    manifold: GyroSpace,
    x: Array,
    weights: Array | None = None,
    bias: Array | None = None,
    scale: Array | float | str | None = 1.0,
    eps: float = 1e-5,
    clamp: float | None = None,
    axes: int = 1,
    reference: Array | None = None,
    **options: Any,
) -> tuple[Array, Stats]:
    """Normalize a batch with its own statistics, and return them too.

    The result is that of :func:`batch_stats` and :func:`normalize`. What both need, such as the
    decompositions of the centred samples, is computed once.

    Parameters
    ----------
    manifold, x, weights, bias, scale, eps, clamp, reference
        As in :func:`normalize`; ``weights`` as in :func:`~gyrobn.frechet`. A sample of weight zero
        that is no point of the manifold (padding, NaN) is returned unchanged.
    axes
        Number of batch axes, in front of the channels.
    **options
        As in :func:`batch_stats`, except ``axis``.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import SPD, normalize_batch
    >>> y, stats = normalize_batch(SPD(3), SPD(3).random(20, rng=0), scale=0.5)
    >>> y.shape, stats.mean.shape
    ((20, 3, 3), (3, 3))
    """
    check_manifold(manifold)

    def run(
        x: Array, M: GyroSpace, r: Any, weights: Any, bias: Any, scale: Any, options: Any
    ) -> Any:
        M = seen_from(M, r, x)
        target = None if bias is None else M.to_inside(bias)
        x, put_back = set_aside(M, x, weights)
        y, stats = normalize_to(M, x, weights, target, scale, eps, clamp, axes, **options)
        road = route(M, x, stats, bias, scale, eps, clamp)
        _warn_if_clamped("normalize_batch()", M, x, y, road, *_deviation(M, stats, scale))
        return put_back(y), stats

    given = manifold, reference, weights, bias, scale, options
    found: Any = backend_of(x).auto_sharded(run, x, *given)
    return found  # type: ignore[no-any-return]


def normalize_to(
    manifold: GyroSpace,
    x: Array,
    weights: Array | None,
    target: Array | None,
    scale: Any,
    eps: float,
    clamp: float | None,
    axes: int = 1,
    centre: bool = True,
    group: Group | None = None,
    **options: Any,
) -> tuple[Array, Stats]:
    r"""Do what :func:`normalize_batch` does, with valid samples; the bias, ``target``, is inside.

    The samples may be a part of a batch that is distributed over a group of ranks. Without
    ``centre`` they are scaled from the identity e, which stands for the mean:

    .. math:: v^2 = \sum_i w_i\, d^2(e, x_i), \qquad
              \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot x_i\Bigr)

    The mean square of the output's distances from :math:`\beta` is :math:`s^2 v^2/(v^2+\epsilon)`.
    """
    samples, w = arrange(manifold, x, weights, tuple(range(axes)), group)
    if centre:
        found = locate(manifold, samples, w, group=group, **options)
        view, stats = found.view, Stats(found.mean, found.variance)
    else:
        inside, y = manifold.inside, manifold.to_inside(samples)
        view = inside.centred(inside.origin(y), y)
        stats = Stats(manifold.origin(x), manifold.squeeze_blocks(view.variance(w)))
    factor = multiplier(x, stats, scale_for(manifold, scale), eps, clamp)
    y = manifold.from_inside(view.standardize(factor, target))
    if 0 in x.shape:  # a rank without samples has a placeholder
        y = y[:0, ...]
    return y if y.ndim == x.ndim else namespace_of(x).reshape(y, x.shape), stats


def denormalize(
    manifold: GyroSpace,
    x: Array,
    stats: Stats,
    bias: Array | None = None,
    scale: Array | float | str | None = 1.0,
    eps: float = 1e-5,
    clamp: float | None = None,
    *,
    reference: Array | None = None,
    check: bool = True,
) -> Array:
    r"""Undo :func:`normalize`.

    .. math:: x_i = \mu \oplus \Bigl(\frac{\sqrt{v^2+\epsilon}}s \odot
              (\ominus\beta \oplus \tilde x_i)\Bigr)

    Parameters
    ----------
    manifold, x, stats, bias, scale, eps, clamp, reference, check
        What :func:`normalize` was given; ``scale`` may not be zero.
    """
    space = seen_from(manifold, reference, x)
    road = route(space, x, stats, bias, scale, eps, clamp, inverse=True)
    y = space.standardize(x, *road)
    if check:
        _warn_if_clamped("denormalize()", space, x, y, road, *_deviation(space, stats, None))
    return y


def route(
    manifold: GyroSpace,
    x: Array,
    stats: Stats,
    bias: Array | None,
    scale: Array | float | str | None,
    eps: float,
    clamp: float | None,
    inverse: bool = False,
) -> Road:
    """Return the road of a normalization; the inverse exchanges mean and bias, and divides."""
    check_manifold(manifold)
    factor = multiplier(x, stats, scale_for(manifold, scale), eps, clamp)
    if not inverse:
        return Road(stats.mean, factor, bias)
    return Road(manifold.origin(x) if bias is None else bias, 1.0 / factor, stats.mean)


def _deviation(manifold: GyroSpace, stats: Stats, scale: Any) -> tuple[Any, float]:
    """Return the standard deviation of the output as a number and its exponent."""
    return (stats.var, 0.5) if scale is None else (scale_for(manifold, scale), 1.0)


def _warn_if_clamped(
    name: str, manifold: GyroSpace, x: Array, y: Array, road: Road, unit: Any, power: float
) -> None:
    """Warn if samples of a hyperbolic space were scaled farther than coordinates reach.

    The output has the standard deviation ``unit`` to the ``power``.
    """
    if is_hyperbolic(manifold) and not any(map(backend_of(x).traced, (x, y, road.factor))):
        good = arrived(manifold, x, y, road, float(np.abs(host(unit)).max() ** power))
        if not np.all(good):
            warn_of_distances(name, manifold, x, good)


def arrived(
    manifold: GyroSpace, x: Array, y: Array, road: Road, unit: float, closed: bool = False
) -> Any:
    """Return which samples are as far from the target as they should be, or True for all.

    On a hyperbolic space others were clamped where coordinates end, or lost their digits; on a
    ``closed`` one they came back from the other side. ``unit`` is the standard deviation of y.
    """
    stop, space = backend_of(x).stop_gradient, manifold.detached()
    x, y, *parts = (None if a is None else stop(a) for a in (x, y, *road))
    centre, factor, target = parts
    with np.errstate(all="ignore"):
        far = may_be_far_out(space, x, centre, factor, target)
        if not far and not (closed and np.abs(host(factor)).max() > 1.0):
            return True
        c = space.by_coordinate(factor) * space.relative_normal(centre, x)
        reach = 2.0 * space.convexity_radius if closed else np.inf
        if not far and float(namespace_of(c).max(length(c))) <= reach:
            return True
        return goes_as_far(space, c, y, target, unit)


def goes_as_far(manifold: GyroSpace, c: Array, y: Array, target: Array | None, unit: float) -> Any:
    """Return which points y, seen from the target, have the coordinates c, on the host.

    They may be off by a hundredth, also of ``unit``. Samples that are NaN are not looked at.
    """
    target = manifold.origin(y) if target is None else target
    off = np.linalg.norm(host(manifold.relative_normal(target, y) - c), axis=-1)
    wanted = np.linalg.norm(host(c), axis=-1)
    near = off <= 0.01 * (unit + wanted) + 1e-300
    return np.isnan(wanted) | (near & np.isfinite(wanted))


def warn_of_distances(
    name: str,
    manifold: GyroSpace,
    x: Array,
    good: Any,
    first: Any = 0,
    closed: bool = False,
    more: str = "",
) -> None:
    """Warn of samples whose output is not as far from its centre as was asked for."""
    why, advice = [], "give a smaller scale"
    if closed:
        why.append("beyond the opposite point, from where they come back on the other side")
    if is_hyperbolic(manifold):
        why.append(f"farther than coordinates in {x.dtype} reach, where they are held")
        advice += ", or a bias closer to the identity"
    warn_caller(
        f"{name} scales {describe(good, first)[0]}, {', or '.join(why)}: on {manifold!r} the "
        "output then has not the variance that was asked for, and cannot be undone; "
        f"{advice}{more}",
        FrechetWarning,
    )


def scale_for(manifold: GyroSpace, scale: Any) -> Any:
    r"""Return a scale as numbers: ``"sqrt_dim"`` is :math:`\sqrt{\dim}`, per block.

    The output then has a variance of one per normal coordinate.

    >>> from gyrobn import SPD, Correlation
    >>> scale_for(SPD(8), "sqrt_dim"), scale_for(Correlation(3), "sqrt_dim")
    (6.0, [1.0, 1.4142135623730951])
    """
    if not isinstance(scale, str):
        return scale
    if scale != "sqrt_dim":
        raise ValueError(
            f"scale must be a finite number, an array of them, None or 'sqrt_dim', got {scale!r}"
        )
    roots = [size**0.5 for size in manifold.blocks]
    return roots[0] if len(roots) == 1 else roots


def _with_array(stats: Stats, like: Array) -> Stats:
    """Return statistics whose variance is an array, also if a plain number was given."""
    if type(stats.var) not in (int, float):
        return stats
    var = check_number("the variance", stats.var, 0.0)
    xp = namespace_of(like)
    return Stats(stats.mean, xp.asarray(var, dtype=real_dtype(like), device=device_of(like)))


def multiplier(
    x: Array, stats: Stats, scale: Array | float | None, eps: float, clamp: float | None
) -> Array:
    """Return s/√(v²+ε), at most ``clamp`` in size, in the dtype of x; 1 without a scale."""
    eps = check_number("eps", eps, 0.0)
    clamp = None if clamp is None else check_number("clamp", clamp, above=0.0)
    stats = _with_array(stats, x)
    xp = check_floating(*map(real_like, (x, stats.mean)), stats.var)
    if scale is None:
        return xp.ones_like(stats.var)
    factor = scalars_like(scale, x) / xp.sqrt(stats.var + eps)
    return factor if clamp is None else xp.clip(factor, min=-clamp, max=clamp)
