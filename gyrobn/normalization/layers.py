"""The call of a layer as a pure function, which the layers of all frameworks share.

A layer holds parameters and running statistics in the way of its framework and calls
:func:`forward`; the mathematics is in :mod:`gyrobn.normalization.normalize`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.dtypes import cast, common_dtype, is_half
from gyrobn.normalization.normalize import Output, Stats, normalize, normalize_to, update_stats
from gyrobn.normalization.settings import LayerSettings, Settings
from gyrobn.statistics.locate import as_few, locate
from gyrobn.statistics.mean_error import MeanError, measured, tell_error
from gyrobn.statistics.points import on_manifold
from gyrobn.statistics.samples import arrange, only_weighted, set_aside
from gyrobn.statistics.spread import Group, arrange_spread, withdraw
from gyrobn.statistics.uniqueness import warn

__all__ = [
    "Batch",
    "Learnt",
    "MeanError",
    "Settings",
    "apply",
    "arranged",
    "batch_stats",
    "cast_stats",
    "check_variance",
    "common_dtype",
    "forward",
    "initial",
    "is_half",
    "mean_error",
    "output_of",
    "prepare",
    "search_options",
    "update",
]


class Learnt(NamedTuple):
    """The parameters of a layer; None for those that it does not learn."""

    bias: Array | None
    """Normal coordinates of the bias, shape (*channels, dim)."""
    scale: Array | None
    """Standard deviation of the output, shape (*channels,), or (*channels, blocks)."""
    raw_curvature: Array | None
    """Logarithm of the curvature's ratio to the initial one; the curvature itself if its sign is
    free."""


def initial(
    settings: LayerSettings, like: Array, bias: bool, scale: bool, copies: tuple[int, ...] = ()
) -> tuple[Learnt, Stats]:
    """Return the parameters and running statistics of a new layer, in the dtype of ``like``.

    The statistics are the identity and one, in float32 at least. ``copies`` is their shape in
    front of the channels.
    """
    xp, device = namespace_of(like), device_of(like)
    own = {"dtype": like.dtype, "device": device}
    wide = {"dtype": common_dtype(like), "device": device}
    channels, shape = settings.channels, settings.statistics_shape
    raw = settings.initial_curvature if settings.learn_curvature else None
    learnt = Learnt(
        xp.zeros((*channels, settings.geometry.dim), **own) if bias else None,
        xp.ones(shape, **own) if scale else None,
        None if raw is None else xp.asarray(raw, **own),
    )
    e = settings.geometry.origin(xp.zeros((), **wide))
    mean = xp.zeros((*copies, *channels, *e.shape), **wide) + e  # no view: it is written to
    return learnt, Stats(mean, xp.ones((*copies, *shape), **wide))


class Batch(NamedTuple):
    """What a layer computes with: all arrays in one dtype, the batch axes in front."""

    manifold: GyroSpace
    learnt: Learnt
    running: Stats | None
    x: Array
    weights: Array | None
    checked: Array
    """The input, with the identity in place of samples without weight."""
    finish: Callable[[Array], Array]
    """Carries the output to the axes and the dtype of the input."""


def forward(
    settings: Settings,
    learnt: Learnt,
    running: Stats | None,
    x: Array,
    weights: Array | None,
    rate: Any,
    training: bool,
    group: Group | None = None,
) -> tuple[Array, Stats | None]:
    """Normalize a batch, with its own statistics in training and with the running ones otherwise.

    The computation is in the widest dtype of all arrays, and in float32 at least. The output has
    that dtype, or half precision if the input has. The statistics keep their dtype.

    Parameters
    ----------
    settings, learnt
        The options and the parameters of the layer.
    running
        The running statistics. With None, the layer keeps none and always uses those of the batch.
    x, weights
        The batch, and the weights of its samples.
    rate
        Fraction of the batch in the new running statistics.
    training
        Whether to use, and to learn, the statistics of the batch.
    group
        The ranks over which a training batch is spread; the statistics are those of all of it.

    Returns
    -------
    y, running
        The normalized batch, and the running statistics after it.
    """
    batch = prepare(settings, learnt, running, x, weights, group)
    manifold, _, old, x, weights, checked, finish = batch
    if not training and old is not None:
        return finish(apply(settings, batch, x, settings.running(manifold, old))), running
    if settings.formula is normalize:
        _check_count(settings, x, training and group is None)
        more = search_options(settings) | {"axes": len(settings.axis), "group": group}
        y, stats = normalize_to(manifold, x, weights, output_of(settings, batch), **more)
    else:
        stats = batch_stats(settings, manifold, x, weights, training, group)
        y = apply(settings, batch, x, stats)
    check_variance(settings, manifold, checked, stats, group=group)
    if old is not None and running is not None:
        running = cast_stats(update(settings, manifold, old, stats, rate), running)
    return finish(y), running


def prepare(
    settings: Settings,
    learnt: Learnt,
    running: Stats | None,
    x: Array,
    weights: Array | None,
    group: Group | None = None,
) -> Batch:
    """Check the input of a layer, and bring all arrays to one dtype and order of axes.

    An error on one rank is sent to the others of its group, which would wait for it otherwise.
    """
    if group is None:
        return _prepare(settings, learnt, running, x, weights)
    try:
        return _prepare(settings, learnt, running, x, weights)
    except (TypeError, ValueError) as error:
        dtype = common_dtype(x, *learnt, *(running or ()))
        like = namespace_of(x).zeros((), dtype=dtype, device=device_of(x))
        withdraw(settings.geometry, settings.channels, like, group, error)
        raise


def _prepare(
    settings: Settings, learnt: Learnt, running: Stats | None, x: Array, weights: Array | None
) -> Batch:
    return arranged(settings, learnt, running, x, *_batch_first(settings, x, weights))


def arranged(
    settings: LayerSettings,
    learnt: Learnt,
    running: Stats | None,
    given: Array,
    x: Array,
    weights: Array | None,
    undo: Callable[[Array], Array],
) -> Batch:
    """Check the input, and bring all arrays to one dtype.

    ``given`` is the input as it came, ``x`` and ``weights`` have the axes to average over in front,
    and ``undo`` carries an array like x to the axes of the input.
    """
    dtype = common_dtype(x, *learnt, *(running or ()))
    learnt = Learnt(*[cast(a, dtype) for a in learnt])
    running = None if running is None else Stats(*[cast(a, dtype) for a in running])
    manifold = settings.manifold(learnt.raw_curvature)
    checked = given if weights is None else undo(only_weighted(manifold, x, weights))
    if settings.check_input is True or (settings.check_input == "first" and not settings.seen):
        _check_points(settings, manifold, checked)
    if x.dtype != dtype:  # rounded to few digits, a point is not on the manifold
        x = manifold.project(cast(x, dtype))
    x, put_back = set_aside(manifold, x, weights)

    def finish(y: Array) -> Array:
        y = undo(put_back(y))
        return y if given.dtype == dtype or not is_half(given) else cast(y, given.dtype)

    return Batch(manifold, learnt, running, x, weights, checked, finish)


def _batch_first(
    settings: Settings, x: Array, weights: Array | None
) -> tuple[Array, Array | None, Callable[[Array], Array]]:
    """Return input and weights with the batch axes in front, and a function that undoes it."""
    axis, channels, points = settings.axis, settings.channels, settings.geometry.point_shape
    k, lead, shape = len(axis), len(channels) + len(axis), tuple(x.shape)
    if settings.axis_name is not None and shape == (*channels, *points):
        alone = (None,) * k  # one example: the batch is the named axis
        return x[alone], None if weights is None else weights[alone], lambda y: y[(0,) * k]
    rest = [a for a in range(lead) if a not in axis]
    if len(shape) != lead + len(points) or (*[shape[a] for a in rest], *shape[lead:]) != (
        *channels,
        *points,
    ):
        wanted = ["batch"] * lead
        for a, size in zip(rest, channels, strict=True):
            wanted[a] = str(size)
        text = f"({', '.join([*wanted, *map(str, points)])})"
        if settings.axis_name is not None:
            example = ", ".join(map(str, (*channels, *points)))
            text += f", or one example ({example}) under the axis {settings.axis_name!r}"
        raise ValueError(
            f"GyroBN on {settings.geometry!r} expects input of shape {text}, got {shape}"
        )
    front = tuple(range(k))
    if axis == front:
        return x, weights, lambda y: y
    xp = namespace_of(x)
    if weights is not None and weights.ndim == lead:
        weights = xp.moveaxis(weights, axis, front)
    return xp.moveaxis(x, axis, front), weights, lambda y: xp.moveaxis(y, front, axis)


def _check_points(settings: LayerSettings, manifold: GyroSpace, x: Array, first: Any = 0) -> None:
    """Refuse a batch with samples off the manifold, if its values can be seen.

    ``first`` has the numbers of the samples, if they are part of a batch.
    """
    shim = backend_of(x)
    if x.shape[0:1] == (0,) or any(
        shim.hides_values(a) for a in (x, *manifold.learnable()) if not isinstance(a, (int, float))
    ):
        return
    xp, x = namespace_of(x), shim.stop_gradient(x)
    eps = float(xp.finfo(x.dtype).eps) if is_half(x) else None
    on_manifold(
        manifold.with_learnable([float(value) for value in manifold.detached().learnable()]),
        x if eps is None else xp.astype(x, xp.float32),
        f"the input of {settings.name}",
        first=first,
        eps=eps,
        advice="give points, which manifold.from_normal makes of any numbers and "
        "manifold.project of numbers near by; check_input=False takes them as they are",
        advice_nan="check the layer before it, and its learning rate",
    )
    if not settings.seen:
        settings.seen.append(True)


# ---------------------------------------------------------------------- the statistics


def batch_stats(
    settings: Settings,
    manifold: GyroSpace,
    x: Array,
    weights: Array | None,
    several: bool,
    group: Group | None = None,
) -> Stats:
    """Return the statistics of a batch; ``several`` refuses a single sample."""
    _check_count(settings, x, several and group is None)
    axes = tuple(range(len(settings.axis)))
    samples, w, spread = arrange_spread(manifold, x, weights, axes, group)
    found, _ = locate(manifold, samples, w, spread=spread, **search_options(settings))
    return Stats(found.mean, found.variance)


def search_options(settings: LayerSettings) -> dict[str, Any]:
    """Return the options of :func:`gyrobn.statistics.locate.locate`."""
    return {
        "steps": settings.steps,
        "tol": settings.tol,
        "max_iter": settings.max_iter,
        "mean_gradient": settings.mean_gradient,
        "mean": settings.mean,
        "tell": partial(_tell, settings),
    }


def _tell(settings: LayerSettings, *found: Any) -> None:
    """Warn about a mean; look for a second one, or for an error, only in batches to check."""
    checks, asked = settings.check_input, settings.asked
    unique = checks is True or (checks == "first" and not asked)
    if settings.mean == "frechet":
        warn(*found, unique=unique)
    elif unique and found[3] is not None:  # samples on other ranks are not known here
        tell_error(*found)
    if unique and not asked:
        asked.append(True)


def mean_error(settings: Settings, learnt: Learnt, x: Array, weights: Array | None) -> MeanError:
    """Return how far the mean and variance that a layer takes are from those of Fréchet."""
    batch = prepare(settings, learnt, None, x, weights)
    samples, w = arrange(batch.manifold, batch.x, batch.weights, tuple(range(len(settings.axis))))
    return measured(batch.manifold, samples, w, **search_options(settings) | {"tell": warn})


def _check_count(settings: Settings, x: Array, several: bool) -> None:
    if several and math.prod(x.shape[: len(settings.axis)]) < 2:
        raise ValueError(
            "GyroBN needs more than one sample per channel for statistics, got a batch of shape "
            f"{tuple(x.shape)}: use a larger batch, or {settings.remedy}"
        )


def check_variance(
    settings: LayerSettings,
    manifold: GyroSpace,
    x: Array,
    stats: Stats,
    first: Any = 0,
    group: Group | None = None,
) -> None:
    """If a batch has no finite variance, name the sample, and the rank, that is the reason."""
    shim = backend_of(x)
    if shim.hides_values(stats.var):
        return
    var = shim.stop_gradient(stats.var)
    total = var if math.prod(var.shape) == 1 else namespace_of(var).sum(var)
    if math.isfinite(float(total)):
        return
    try:
        _check_points(settings, manifold, x, first)
    except ValueError as error:
        if group is not None:
            group.agree(error)
        raise
    if group is not None:
        group.agree(None)
    raise ValueError(
        f"{settings.name} on {settings.geometry!r} finds no variance of this batch: all samples "
        "are on the manifold, but too far out or too far apart; check the layer before it, and its "
        "learning rate"
    )


def update(
    settings: LayerSettings, manifold: GyroSpace, running: Stats, batch: Stats, rate: Any
) -> Stats:
    """Return the running statistics, moved towards a batch, without derivatives."""
    stop = backend_of(batch.var).stop_gradient
    constant = manifold.detached()
    old = settings.running(constant, Stats(stop(running.mean), stop(running.var)))

    given = *old, stop(batch.mean), stop(batch.var), rate
    with as_few(constant, *given) as (mean, var, new_mean, new_var, rate):
        new = update_stats(constant, Stats(mean, var), Stats(new_mean, new_var), rate)
    return Stats(*backend_of(batch.var).from_few(new))


def cast_stats(stats: Stats, like: Stats) -> Stats:
    """Return statistics in the dtypes of others."""
    return Stats(cast(stats.mean, like.mean.dtype), cast(stats.var, like.var.dtype))


# ---------------------------------------------------------------------- the output


def apply(settings: LayerSettings, batch: Batch, x: Array, stats: Stats) -> Array:
    """Normalize samples with given statistics, inside the manifold."""
    manifold, inside = batch.manifold, batch.manifold.inside
    stats, x = Stats(manifold.to_inside(stats.mean), stats.var), manifold.to_inside(x)
    y = settings.formula(inside, x, stats, *output_of(settings, batch))
    return manifold.from_inside(y)


def output_of(settings: LayerSettings, batch: Batch) -> Output:
    """Return what a layer does with centred samples."""
    bias, scale, _ = batch.learnt
    target = None if bias is None else batch.manifold.inside.from_normal(bias)
    return Output(target, 1.0 if scale is None else scale, settings.eps, settings.clamp)
