"""Which axes of its input a layer averages over, and how these come to the front."""

from collections.abc import Callable

from gyrobn.backends import Array, namespace_of
from gyrobn.normalization.settings import LayerSettings, SetSettings, Settings

Shape = tuple[int, ...]
Carry = Callable[[Array], Array]
InFront = tuple[Array, Array | None, int, Carry]


def in_front(settings: LayerSettings, x: Array, weights: Array | None) -> InFront:
    """Check the shapes of a layer's input and weights, and bring the axes to average over in front.

    Return both, the number of these axes, and a function that carries an array like x back.
    """
    if isinstance(settings, SetSettings):
        return _sets_first(settings, x, weights)
    assert isinstance(settings, Settings)
    return _batch_first(settings, x, weights)


def _batch_first(settings: Settings, x: Array, weights: Array | None) -> InFront:
    axis, channels, points = settings.axis, settings.channels, settings.geometry.point_shape
    k, lead, shape = len(axis), len(channels) + len(axis), tuple(x.shape)
    if settings.axis_name is not None and shape == (*channels, *points):
        alone = (None,) * k  # one example: the batch is the named axis
        w = None
        if weights is not None:
            _check_weights(settings, x, weights, (), channels)
            w = weights[alone]
        return x[alone], w, k, lambda y: y[(0,) * k]
    sizes = iter(channels)
    wanted = [*("batch" if a in axis else next(sizes) for a in range(lead)), *points]
    if len(shape) != len(wanted) or any(
        want not in ("batch", size) for want, size in zip(wanted, shape, strict=True)
    ):
        text = f"({', '.join(map(str, wanted))})"
        if settings.axis_name is not None:
            example = ", ".join(map(str, (*channels, *points)))
            text += f", or one example ({example}) under the axis {settings.axis_name!r}"
        raise ValueError(
            f"GyroBN on {settings.geometry!r} expects input of shape {text}, got {shape}"
        )
    batch = shape[:lead]
    in_order, undo = _order(batch, batch, axis)
    if weights is not None:
        _check_weights(settings, x, weights, tuple(batch[a] for a in axis), batch)
        if weights.ndim == lead:
            weights = in_order(weights)
    return in_order(x), weights, k, undo


def _check_weights(
    settings: Settings, x: Array, weights: Array, reduced: Shape, batch: Shape
) -> None:
    """Refuse weights of another shape: their own library would fail, or repeat them."""
    namespace_of(x, weights)  # refuses lists, and arrays of another library
    given = tuple(weights.shape)
    if given not in (reduced, batch):
        each = f", or {batch}, one per sample and channel" if reduced != batch else ""
        raise ValueError(
            f"{settings.name} expects weights of shape {reduced}, one per sample{each}; got {given}"
        )


def _sets_first(settings: SetSettings, x: Array, weights: Array | None) -> InFront:
    batch, lead, axes = _layout(settings, tuple(x.shape))
    in_order, undo = _order(batch, lead, axes)
    if weights is not None:  # in their own dtype: half precision would round them
        weights = in_order(_full_weights(settings, weights, x, batch))
    return in_order(x), weights, len(axes), undo


def _order(batch: Shape, lead: Shape, axes: Shape) -> tuple[Carry, Carry]:
    """Return a function that splits groups and brings axes to the front, and its inverse."""
    front = tuple(range(len(axes)))

    def in_order(a: Array) -> Array:
        xp = namespace_of(a)
        whole = a if lead == batch else xp.reshape(a, (*lead, *a.shape[len(batch) :]))
        return whole if axes == front else xp.moveaxis(whole, axes, front)

    def undo(a: Array) -> Array:
        xp = namespace_of(a)
        whole = a if axes == front else xp.moveaxis(a, front, axes)
        return whole if lead == batch else xp.reshape(whole, (*batch, *a.shape[len(lead) :]))

    return in_order, undo


def _layout(settings: SetSettings, shape: Shape) -> tuple[Shape, Shape, Shape]:
    """Return the leading axes of the input, the same with groups split, and which are a set's.

    If each point is a set, an axis of length one is added.
    """
    points, channels = settings.geometry.point_shape, settings.channels
    k = len(shape) - len(points)
    batch = shape[: max(k, 0)]
    inner = batch[1 : 1 + len(channels)]
    wanted = channels if settings.group is None else (channels[0] * settings.group,)
    if k < 1 or inner != wanted or shape[k:] != points:
        text = ", ".join(["batch", *map(str, wanted), "...", *map(str, points)])
        raise ValueError(
            f"{settings.name} on {settings.geometry!r} expects input of shape ({text}), got {shape}"
        )
    lead = batch if settings.group is None else (batch[0], *channels, settings.group, *batch[2:])
    if settings.axis is None:
        axes = tuple(range(1 + len(channels), len(lead)))
    else:
        axes = tuple(sorted({a % k for a in settings.axis if -k <= a < k}))
        if len(axes) < len(settings.axis):
            raise ValueError(
                f"axis of {settings.name} must name different axes among the {k} in front of a "
                f"point in input of shape {shape}, got {settings.axis}"
            )
    if axes:
        return batch, lead, axes
    if settings.centre:
        raise ValueError(
            f"in input of shape {shape} every set of {settings.name} is a single point, which "
            "centring moves to the bias: give it more axes, name those of a set with axis, or use "
            "GyroRMSNorm, which does not centre"
        )
    return batch, (1, *lead), (0,)


def _full_weights(settings: SetSettings, weights: Array, x: Array, batch: Shape) -> Array:
    """Return one weight per point."""
    xp, shape = namespace_of(x, weights), tuple(weights.shape)
    if len(shape) != len(batch) or any(n not in (1, m) for n, m in zip(shape, batch, strict=True)):
        raise ValueError(
            f"{settings.name} expects weights of the shape of its points, {batch}, or with axes of "
            f"length one, got {shape}"
        )
    return xp.broadcast_to(weights, batch)
