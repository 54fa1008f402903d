"""The options of a layer and its call as a pure function, which all frameworks share.

A layer holds parameters and running statistics in the way of its framework and calls
:func:`forward`; the mathematics is in :mod:`gyrobn.normalization.normalize`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.manifolds.rebased import seen_from
from gyrobn.normalization.domains import average_stats
from gyrobn.normalization.normalize import Stats, normalize_to, route, update_stats
from gyrobn.numerics.arrays import cast, eps_of, real_dtype
from gyrobn.numerics.checks import (
    check_choice,
    check_integer,
    check_integers,
    check_number,
    host,
    warn_caller,
)
from gyrobn.statistics.frechet import check_search, locate
from gyrobn.statistics.points import on_manifold, plain_geometry
from gyrobn.statistics.samples import Group, arrange, withdraw
from gyrobn.statistics.uniqueness import FrechetWarning, warn_of

Shape = tuple[int, ...]


# ---------------------------------------------------------------------- options


@dataclass(frozen=True)
class LearntGeometry:
    """A geometry, and which of its curvatures are learnt or belong to others.

    A product has the curvatures of its factors, in their order.
    """

    geometry: GyroSpace
    """With the curvatures of the start, which are numbers."""
    learn_curvature: bool = False
    shared: tuple[int, ...] = field(default=(), repr=False)
    """The places of the curvatures that others own, as :func:`separated` finds them."""

    def __post_init__(self) -> None:
        manifold = check_manifold(self.geometry)
        if self.learn_curvature and not self.learnt:
            raise ValueError(f"{manifold!r} has no curvature to learn")
        if not all(isinstance(value, (int, float)) for value in manifold.learnable()):
            raise ValueError(
                f"a layer needs a geometry whose parameters are numbers, got {manifold!r}: give "
                "the initial curvature as a float, and learn_curvature=True to learn it"
            )

    @property
    def learnt(self) -> tuple[int, ...]:
        """The places of the curvatures that are learnt."""
        places = range(len(self.geometry.learnable()) if self.learn_curvature else 0)
        return tuple(i for i in places if i not in self.shared)

    @property
    def fixed(self) -> bool:
        """Whether the curvature never changes."""
        return not (self.learn_curvature or self.shared)

    @property
    def initial_curvature(self) -> Any:
        """The initial ``raw_curvature``: a number, or a list with one for each learnt curvature."""
        signs, values = self.geometry.required_signs(), self.geometry.learnable()
        raw = [0.0 if signs[i] else float(values[i]) for i in self.learnt]
        return raw[0] if self.geometry.parameters == ("curvature",) else raw

    def manifold(self, raw: Array | None, shared: Array | None = None) -> GyroSpace:
        """Return the geometry at its curvatures now.

        A learnt one is :math:`K = K_0 e^r`, or r itself if any sign will do; ``shared`` holds the
        values of those that others own.
        """
        signs, values = self.geometry.required_signs(), self.geometry.learnable()
        if raw is not None:
            for i, r in zip(self.learnt, _numbers(raw), strict=True):
                values[i] = values[i] * namespace_of(r).exp(r) if signs[i] else r
        if shared is not None:
            for i, K in zip(self.shared, _numbers(shared), strict=True):
                values[i] = K
        return self.geometry.with_learnable(values)

    def raw_shift(self, saved: Any, raw: Sequence[float] | None = None) -> tuple[float, ...]:
        """Compare the geometry of a saved state, and return what to add to its raw curvatures.

        A layer that learns its curvature takes that of the state, and a curvature that another
        owns is not compared; all else must agree.

        Parameters
        ----------
        saved
            The geometry of the layer that wrote the state.
        raw
            The raw curvatures in the state, if there are any.

        Returns
        -------
        tuple of float
            Empty if all curvatures started from the same values.
        """
        own, signs = self.geometry, self.geometry.required_signs()
        if saved == own and (self.learn_curvature or raw is None):
            return ()
        if type(saved) is not type(own) or saved.required_signs() != signs:
            raise self.foreign(repr(saved))
        mine, theirs, learnt = own.learnable(), saved.learnable(), self.learnt
        if saved.with_learnable(mine) != own:
            raise self.foreign(repr(saved))
        pairs = [(1.0, 1.0) if signs[i] is None else (theirs[i], mine[i]) for i in learnt]
        shift = tuple(math.log(K / K_0) for K, K_0 in pairs)
        if raw is not None and not learnt:  # the other layer learnt them
            if len(raw) != len(theirs):  # but not all of them, and which is not known
                raise self.foreign(repr(saved))
            each = zip(theirs, raw, signs, strict=True)
            theirs = [K * math.exp(r) if sign else r for K, r, sign in each]
            saved = saved.with_learnable(theirs)
        for i in set(range(len(mine))) - {*learnt, *self.shared}:
            if not math.isclose(theirs[i], mine[i], rel_tol=0.0 if raw is None else 1e-6):
                raise self.foreign(repr(saved))
        return shift if any(shift) else ()

    def foreign(self, saved: str) -> ValueError:
        """Return the error for a state of another geometry."""
        return ValueError(
            f"the state is of a layer on {saved}, and this one is on {self.geometry!r}: build the "
            "layer with the geometry of the state"
        )


def _numbers(values: Array) -> list[Array]:
    """Return the entries of a vector; a number is the only one."""
    return [values] if values.ndim == 0 else [values[i] for i in range(values.shape[0])]


def separated(
    manifold: GyroSpace, number: Callable[[Any], float]
) -> tuple[GyroSpace, dict[str, Any], list[Any]]:
    """Separate a geometry from curvatures that others own.

    ``number`` returns the value of such a curvature, as the framework of a layer has it.

    Returns
    -------
    geometry, own, owners
        The geometry with numbers in their place, the option ``shared`` of the layer, if there are
        any, and the curvatures themselves.
    """
    values = check_manifold(manifold).learnable()
    places = tuple(i for i, v in enumerate(values) if not isinstance(v, (int, float)))
    owners = [values[i] for i in places]
    for i in places:
        values[i] = number(values[i])
    return manifold.with_learnable(values), {"shared": places} if places else {}, owners


SEARCH = "steps", "tol", "max_iter", "mean_gradient"
"""The options of a search for a mean, as in :func:`gyrobn.frechet`."""


class Options(TypedDict, total=False):
    """The options of every layer, beside those in its signature: fields of :class:`Settings`."""

    clamp: float | None
    scale: float | None
    reference: Any
    train_momentum: float | Callable[[int], float] | None
    learn_curvature: bool
    check_input: str | bool
    mean_gradient: str
    steps: int | None
    tol: float | None
    max_iter: int


BATCHES_ONLY = "reference", "train_momentum"
"""The options of layers with statistics of batches, which those of sets have not."""


class FirstBatch:
    """Whether a layer has checked a batch, looked for a second mean, and warned of the first."""

    checked = searched = warned = False
    batches = 0
    """The number of batches of training whose values could be read."""


@dataclass(frozen=True, kw_only=True)
class Settings(LearntGeometry):
    """The options of a layer. They are hashable, so a compiler may treat them as a constant.

    A layer averages over the samples of a batch, per channel; or over *sets*, some of the points of
    one sample: all of them (layer), those of one channel (instance), or those of a group of
    channels (group). Each set has its own mean and variance, and no set depends on the rest of the
    batch. Bias and scale are one per channel or group, and the same for all points of a set: only
    then is the mean of the set the bias, and its variance the square of the scale.
    """

    name: str = field(default="GyroBN", repr=False)
    """What errors call the layer."""
    remedy: str = field(default="layer.eval()", repr=False)
    """What to advise if a training batch has a single sample."""
    channels: tuple[int, ...] = ()
    """Shape of what has a bias and a scale each."""
    sets: bool = field(default=False, repr=False)
    """Whether the layer averages over sets within each sample."""
    axis: tuple[int, ...] | None = (0,)
    """The axes to average over, among those in front of a point. None: the positions, all axes but
    the first and the channels."""
    group: int | None = field(default=None, repr=False)
    """How many consecutive channels are one set; None if they are not grouped."""
    centre: bool = field(default=True, repr=False)
    """Whether to move the mean to the bias, or to scale from the identity alone."""
    eps: float = 1e-5
    """Added to the variance."""
    clamp: float | None = None
    """Largest size of the factor :math:`s/\\sqrt{v^2+\\epsilon}`, if any."""
    scale: float | None = 1.0
    """Standard deviation of the output at first, or always if it is not learnt. None to centre
    only: there is no scale, and the factor is 1."""
    reference: str | None = None
    """The point from which the geometry is seen, as if it were the identity, for data whose mean is
    near the cut locus of e (see :func:`~gyrobn.normalize`); the bias is counted from it. A layer is
    given a ``"point"``, of shape (*channels, *point_shape) or point_shape, or ``"first_batch"`` for
    the mean of the first training batch, which it keeps."""
    train_momentum: float | Callable[[int], float] | None = None
    """If given, training normalizes with running statistics too, which move towards each batch by
    this fraction: a number, or a function of the number of batches so far (a schedule)."""
    mean_gradient: str = "implicit"
    steps: int | None = None
    tol: float | None = None
    max_iter: int = 64
    check_input: str | bool = field(default=True, repr=False)
    """Which batches to check for samples off the manifold: the first, all (True) or none."""
    axis_name: Any = None
    """JAX only: the named axes over which a batch is distributed."""
    axis_index_groups: Any = None
    """JAX only: groups of the indices of that axis, each a batch of its own."""
    first: FirstBatch = field(default_factory=FirstBatch, compare=False, repr=False)
    """It does not count for equality, so a compiled program stays valid."""

    @classmethod
    def of(cls, name: str, manifold: GyroSpace, options: Mapping[str, Any], **own: Any) -> Self:
        """Return the settings of a layer; ``options`` are those that its user gave by name."""
        known = {*Options.__annotations__}
        if own.get("sets"):
            known -= {*BATCHES_ONLY}
        if not own.get("centre", True):
            known -= {*SEARCH, "scale"}
        if unknown := options.keys() - known:
            names = ", ".join(sorted(known))
            raise TypeError(f"{name} has no option {min(unknown)!r}; its options are {names}")
        reference = options.get("reference")
        if isinstance(reference, str):
            check_choice("reference, unless it is a point,", reference, ("first_batch",))
        elif reference is not None:
            options = {**options, "reference": "point"}
        return cls(geometry=manifold, name=name, **own, **options)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mean_gradient", self.mean_gradient, ("implicit", "detach"))
        check = self.check_input
        if not isinstance(check, bool) and check != "first":
            raise ValueError(f"check_input must be 'first', True or False, got {check!r}")
        clamp, scale, rates = self.clamp, self.scale, self.train_momentum
        names, groups = self.axis_name, self.axis_index_groups
        if groups is not None and names is None:
            raise ValueError("axis_index_groups are indices of an axis: give axis_name too")
        channels = check_integers("channels", self.channels, 1)
        plain: dict[str, Any] = {  # numbers of Python, also if those given were of NumPy
            **check_search(self.tol, self.max_iter, self.steps)._asdict(),
            "eps": check_number("eps", self.eps, 0.0),
            "clamp": clamp if clamp is None else check_number("clamp", clamp, above=0.0),
            "scale": scale if scale is None else check_number("scale", scale),
            "channels": channels,
            "axis": _axes(self.axis, self.sets, len(channels)),
            "axis_name": tuple(names) if isinstance(names, list) else names,
            "axis_index_groups": groups and tuple(map(tuple, groups)),
        }
        if rates is not None and not callable(rates):
            plain["train_momentum"] = check_number("train_momentum", rates, 0.0, 1.0)
        self.__dict__.update(plain)

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """Shape of variance and scale."""
        return (*self.channels, *self.geometry.block_shape)

    def checking(self, check_input: Any) -> Self:
        """Return the same settings with another ``check_input``, before their first batch."""
        return replace(self, check_input=check_input, first=FirstBatch())

    def shown(self, **more: Any) -> str:
        """Return the options for the ``repr`` of a layer: those that are not the default."""
        shown = {one.name: one.default for one in fields(self)[1:] if one.repr}
        shown["axis"] = None if self.sets else (0,)
        values = {name: getattr(self, name) for name in shown}
        values = {k: v for k, v in values.items() if v != shown[k]}
        if self.group is not None:
            values |= {"channels": self.channels[0] * self.group, "groups": self.channels[0]}
        values |= more
        return ", ".join([repr(self.geometry), *(f"{k}={v!r}" for k, v in values.items())])


def _axes(axis: Any, sets: bool, channels: int) -> tuple[int, ...] | None:
    """Return the axes to average over; those of a batch are counted from the first."""
    if sets and axis is None:
        return None
    axes = check_integers("axis", axis)
    if sets:  # the number of axes is that of the input
        return axes
    lead = channels + len(axes)
    if not axes or any(not -lead <= a < lead for a in axes):
        raise ValueError(
            f"axis must name batch axes among the {lead} in front of a point, got {axis}"
        )
    axes = tuple(sorted({a % lead for a in axes}))
    if len(axes) + channels != lead:
        raise ValueError(f"axis names a batch axis twice: {axis}")
    return axes


def grouped(groups: int, channels: int) -> dict[str, Any]:
    """Return the settings of sets of consecutive channels."""
    groups = check_integer("groups", groups, 1)
    channels = check_integer("channels", channels, 1)
    if channels % groups:
        raise ValueError(f"{channels} channels do not fall into {groups} groups of equal size")
    return {"sets": True, "axis": None, "channels": (groups,), "group": channels // groups}


# ---------------------------------------------------------------------- the call


class Learnt(NamedTuple):
    """The parameters of a layer; None for those that it does not learn."""

    bias: Array | None
    """Normal coordinates of the bias, shape (*channels, dim)."""
    scale: Array | None
    """Standard deviation of the output, shape (*channels,), or (*channels, blocks)."""
    raw_curvature: Array | None
    """Logarithm of the curvature's ratio to the initial one; the curvature itself if its sign is
    free. A vector with one entry for each on a product."""
    shared_curvature: Array | None = None
    """The values of the curvatures that others own, a vector."""


class State(NamedTuple):
    """What a layer keeps from batch to batch; None for what it does not keep."""

    running: Stats | None = None
    """The statistics for evaluation. Without them it uses those of the batch."""
    training: Stats | None = None
    """Those for training, of ``train_momentum``."""
    reference: Array | None = None
    """The reference, shape (*channels, *point_shape); NaN before the first batch."""


def initial(settings: Settings, like: Array, bias: bool, scale: bool) -> tuple[Learnt, Stats]:
    """Return the parameters and running statistics of a new layer, in the dtype of ``like``.

    The statistics are the identity and one, in float32 at least.
    """
    xp, device = namespace_of(like), device_of(like)
    own = {"dtype": like.dtype, "device": device}
    wide = {"dtype": common_dtype(like), "device": device}
    channels, shape = settings.channels, settings.statistics_shape
    learnt = Learnt(
        xp.zeros((*channels, settings.geometry.dim), **own) if bias else None,
        xp.full(shape, settings.scale, **own) if scale and settings.scale is not None else None,
        xp.asarray(settings.initial_curvature, **own) if settings.learn_curvature else None,
    )
    e = settings.geometry.origin(xp.zeros((), **wide))
    mean = xp.zeros((*channels, *e.shape), **wide) + e  # no view: it is written to
    return learnt, Stats(mean, xp.ones(shape, **wide))


def initial_state(
    settings: Settings, stats: Stats, reference: Any = None, track: bool = True
) -> State:
    """Return the state of a new layer; ``stats`` are those of :func:`initial`.

    ``reference`` is the option that the user gave.
    """
    running = stats if track else None
    if settings.train_momentum is not None and not track:
        raise ValueError("train_momentum needs running statistics")
    training = None if settings.train_momentum is None else Stats(*(1.0 * a for a in stats))
    if settings.reference is None:
        return State(running, training)
    M, shape = settings.geometry, tuple(stats.mean.shape)
    if settings.reference == "first_batch":
        point = np.full(shape, np.nan)
    else:
        point = host(reference, "reference").astype(
            np.complex128 if M.complex_points else np.float64
        )
        if point.shape not in (shape, M.point_shape):
            raise ValueError(
                f"reference must be a point of shape {M.point_shape}, or one per channel, of shape "
                f"{shape}, got {point.shape}"
            )
        given = getattr(reference, "dtype", None)
        eps = 1.2e-7 if "float32" in str(given) else None
        point = on_manifold(M, point, "reference", eps=eps, advice="manifold.project gives a point")
        point = np.broadcast_to(M.project(point), shape)
    return State(running, training, backend_of(stats.mean).from_numpy(point.copy(), stats.mean))


def forward(
    settings: Settings,
    learnt: Learnt,
    state: State,
    x: Array,
    weights: Array | None,
    rate: Any = 0.0,
    training: bool = True,
    group: Group | None = None,
    train_rate: Any = None,
    first: bool | None = None,
) -> tuple[Array, State]:
    """Normalize a batch, or every set of points within each sample.

    Training uses the statistics of the batch or set, evaluation the running ones. The computation
    is in the widest dtype of all arrays, and in float32 at least. The output has that dtype, or
    half precision if the input has. The statistics keep their dtype.

    Parameters
    ----------
    settings, learnt
        The options and the parameters of the layer.
    state
        What the layer keeps.
    x
        Points, shape ``(batch, *channels, *point_shape)``, or
        ``(batch, *channels, *positions, *point_shape)`` if they form sets.
    weights
        The weights of the samples. Those of points in sets have as many axes as x has in front of a
        point, of the same lengths or of length one; a set that weighs nothing is returned as it
        came.
    rate
        Fraction of the batch in the new running statistics.
    training
        Whether to use, and to learn, the statistics of the batch.
    group
        The ranks that share a training batch; the statistics are those of all of it.
    train_rate
        Fraction of the batch in the statistics of ``train_momentum``.
    first
        Whether no batch has set the reference, if that is known.

    Returns
    -------
    y, state
        The normalized batch, and the state after it.
    """
    batch = prepare(settings, learnt, state, x, weights, training, group)
    if not training and batch.running is not None:
        return batch.finish(apply(batch, batch.x, batch.running)), state
    reference = state.reference
    if training and settings.reference == "first_batch" and first is not False:
        batch = first_reference(batch, partial(_constant_mean, batch, group), first)
        reference = cast(batch.reference, real_dtype(reference))
    moving = None
    if training and batch.training is not None:
        stats = statistics(batch, group)
        moving = learn(batch._replace(running=batch.training), state.training, stats, train_rate)
        y = apply(batch, batch.x, update_stats(batch.manifold, batch.training, stats, train_rate))
    else:
        given, search = (
            (batch.space, batch.x, batch.weights, *batch.output),
            search_options(settings),
        )
        centre = settings.centre
        y, stats = normalize_to(*given, axes=batch.axes, centre=centre, group=group, **search)
    new = learn(batch, state.running, stats, rate, group)
    return batch.finish(y), State(new, moving, reference) if training else state


# ---------------------------------------------------------------------- the input


class Batch(NamedTuple):
    """What a layer computes with: all arrays in one dtype, the axes to average over in front."""

    settings: Settings
    manifold: GyroSpace
    running: Stats | None
    """The running statistics, on the manifold at the current curvature."""
    training: Stats | None
    """Those of ``train_momentum``, likewise."""
    reference: Array | None
    """The point from which the geometry is seen; NaN before the first batch."""
    output: tuple[Array | None, Array | float | None, float, float | None]
    """Bias (inside the manifold), scale, eps and clamp."""
    x: Array
    weights: Array | None
    axes: int
    """The number of axes to average over."""
    checked: Array
    """The input, with the identity in place of samples that do not count."""
    hidden: bool
    """Whether values are traced, so that no error can name a sample."""
    empty: Array | None
    """Which sets, or channels, have no weight: their weights here are ones. None if all have."""
    finish: Callable[[Array], Array]
    """Returns the output in the order of axes and the dtype of the input."""

    @property
    def space(self) -> GyroSpace:
        """The geometry as it is seen from the reference, and from the identity if none is set."""
        r = self.reference
        if r is not None and self.settings.reference == "first_batch":
            xp = namespace_of(r)
            r = xp.where(xp.isnan(r), self.manifold.origin(r), r)
        return seen_from(self.manifold, r, self.x)


def prepare(
    settings: Settings,
    learnt: Learnt,
    state: State,
    given: Array,
    weights: Array | None,
    training: bool = False,
    group: Group | None = None,
) -> Batch:
    """Check the input of a layer, and bring all arrays to one dtype and order of axes.

    A sample that is not on the manifold is an error. Where values are traced, its weight is zero
    instead, and its output NaN. What has no weight and is not on the manifold, as padding, is
    returned as it came, and so is a set without weight.

    An error on one rank is sent to the others of its group, which would wait for it otherwise.
    """
    running, training_stats, reference = state
    xp, dtype = namespace_of(given), common_dtype(given, *learnt[:3], *(running or ()), reference)
    check, out, empty = settings.check_input, None, None
    try:
        x, weights, axes, undo = _in_front(settings, given, weights)
        bias, scale, raw, shared = (cast(a, dtype) for a in learnt)
        manifold = settings.manifold(raw, shared)
        if training and group is None:
            _check_count(settings, tuple(x.shape), axes, running)
        hidden = any(map(_traced, (x, weights, *manifold.learnable())))
        absent = None if weights is None else weights == 0
        if absent is not None and not hidden and not bool(xp.any(absent)):
            absent = None
        checked = x if absent is None else _replaced(manifold, absent, x)
        if not hidden and (check is True or (check == "first" and not settings.first.checked)):
            _check_points(settings, manifold, undo(checked))
    except (TypeError, ValueError) as error:
        if group is not None:
            like = xp.zeros((), dtype=dtype, device=device_of(given))
            withdraw(settings.geometry, settings.channels, like, group, error)
        raise
    came = cast(x, dtype)
    if absent is not None or (hidden and check is True):
        out = xp.logical_not(_are_points(manifold, x))
        if not hidden or check is not True:
            out = xp.logical_and(out, absent)
        elif training or settings.sets or running is None:
            ones = xp.ones(out.shape, dtype=dtype, device=device_of(x))
            weights = xp.where(out, 0.0, ones if weights is None else weights)
        if weights is not None:  # in evaluation, samples do not depend on each other
            x = _replaced(manifold, out, x)
    if weights is not None and (settings.sets or (hidden and group is None)):
        # Without weights there is no mean. Any weights give numbers, which are not used.
        empty = xp.all(weights == 0, axis=tuple(range(axes)), keepdims=True)
        weights = xp.where(empty, xp.ones_like(weights), weights)
    if real_dtype(x) != dtype:  # rounded to few digits, a point is not on the manifold
        x = manifold.project(cast(x, dtype))

    def point(a: Array) -> Array:
        # the points of some models move with the curvature
        return cast(a, dtype) if settings.fixed else manifold.project(cast(a, dtype))

    running, training_stats = (
        both and Stats(point(both.mean), cast(both.var, dtype))
        for both in (running, training_stats)
    )
    if reference is not None:
        reference = point(reference)

    def finish(y: Array) -> Array:
        if empty is not None and settings.sets:
            y = xp.where(_of_points(manifold, empty), came, y)
        if out is not None:
            kept = (
                xp.nan if absent is None else xp.where(_of_points(manifold, absent), came, xp.nan)
            )
            y = xp.where(_of_points(manifold, out), kept, y)
        y = undo(y)
        return cast(y, given.dtype) if is_half(given) else y

    target = None if bias is None else manifold.inside.from_normal(bias)
    output = target, settings.scale if scale is None else scale, settings.eps, settings.clamp
    kept = manifold, running, training_stats, reference, output
    return Batch(settings, *kept, x, weights, axes, undo(checked), hidden, empty, finish)


def _in_front(
    settings: Settings, x: Array, weights: Array | None
) -> tuple[Array, Array | None, int, Callable[[Array], Array]]:
    """Check the shapes of the input and its weights, and move the averaged axes to the front.

    Return both, the number of these axes, and a function that undoes it on an array like x.
    """
    batch, lead, axes = _layout(settings, tuple(x.shape))
    xp, front = namespace_of(x), tuple(range(len(axes)))

    def in_order(a: Array) -> Array:
        whole = a if lead == batch else xp.reshape(a, (*lead, *a.shape[len(batch) :]))
        return whole if axes == front else xp.moveaxis(whole, axes, front)

    def undo(a: Array) -> Array:
        whole = a if axes == front else xp.moveaxis(a, front, axes)
        return whole if lead == batch else xp.reshape(whole, (*batch, *a.shape[len(lead) :]))

    if weights is not None:
        namespace_of(x, weights)  # refuses lists, and arrays of another library
        given, reduced = tuple(weights.shape), tuple(lead[a] for a in axes)
        pairs = zip(given, batch, strict=False)
        if settings.sets:
            kinds, fits = f"{batch}, in which axes may have length one", len(given) == len(batch)
            fits = fits and all(n in (1, m) for n, m in pairs)
        else:
            kinds, fits = f"{reduced} or {batch}", given in (reduced, batch)
        if not fits:
            raise ValueError(f"{settings.name} expects weights of shape {kinds}; got {given}")
        if len(given) < len(batch):
            weights = xp.reshape(weights, [n if a in axes else 1 for a, n in enumerate(batch)])
        weights = in_order(xp.broadcast_to(weights, batch))
    return in_order(x), weights, len(axes), undo


def _layout(settings: Settings, shape: Shape) -> tuple[Shape, Shape, Shape]:
    """Return the leading axes of the input, the same as they are averaged, and which of them are.

    Groups of channels are split into two axes. If each point is a set, an axis of length one is
    added.
    """
    name, points = settings.name, settings.geometry.point_shape
    channels, axis, sets = settings.channels, settings.axis, settings.sets
    batch = shape[: max(len(shape) - len(points), 0)]
    sizes = list(channels) if settings.group is None else [channels[0] * settings.group]
    wanted: list[Any] = ["batch", *sizes, *["..."] * sets]
    if not sets and axis is not None:
        left = iter(sizes)
        wanted = ["batch" if a in axis else next(left) for a in range(len(axis) + len(sizes))]
    fits = all(n in ("batch", "...", m) for n, m in zip(wanted, batch, strict=False))
    least = 1 + len(sizes) if sets else len(wanted)
    if (
        shape[len(batch) :] != points
        or not fits
        or not least <= len(batch) <= (math.inf if sets else least)
    ):
        text = f"({', '.join(map(str, [*wanted, *points]))})"
        if settings.axis_name is not None:
            one = (*channels, *points)
            text += f", or one example {one} under the axis {settings.axis_name!r}"
        on = f"{name} on {settings.geometry!r}"
        raise ValueError(f"{on} expects input of shape {text}, got {shape}")
    if not sets:
        return batch, batch, axis or ()
    lead = batch
    if settings.group is not None:
        lead = (batch[0], *channels, settings.group, *batch[2:])
    axes = tuple(range(1 + len(channels), len(lead)))
    if axis is not None:
        k = len(batch)
        axes = tuple(sorted({a % k for a in axis if -k <= a < k}))
        if len(axes) < len(axis):
            raise ValueError(
                f"axis of {name} must name different axes among the {k} in front of a "
                f"point in input of shape {shape}, got {axis}"
            )
    if axes:
        return batch, lead, axes
    if settings.centre:
        raise ValueError(
            f"in input of shape {shape} every set of {name} is a single point, which "
            "centring moves to the bias: give it more axes, name those of a set with axis, or use "
            "GyroRMSNorm, which does not centre"
        )
    return batch, (1, *lead), (0,)


# ---------------------------------------------------------------------- checks


def _traced(value: Any) -> bool:
    """Return whether an array is traced, or what it is computed from."""
    if value is None or isinstance(value, (int, float)):
        return False
    backend = backend_of(value)
    return bool(backend.traced(backend.stop_gradient(value)))


def _of_points(manifold: GyroSpace, mask: Array) -> Array:
    """Return a mask of samples with the axes of points."""
    return mask[(..., *(None,) * len(manifold.point_shape))]


def _replaced(manifold: GyroSpace, out: Array, x: Array) -> Array:
    """Return samples with the identity in place of some."""
    return namespace_of(x).where(_of_points(manifold, out), manifold.origin(x), x)


def _are_points(manifold: GyroSpace, x: Array) -> Array:
    """Return which samples are on the manifold; in half precision, to its digits."""
    xp, x = namespace_of(x), backend_of(x).stop_gradient(x)
    if not is_half(x):
        return manifold.contains(x)
    return manifold.violation(xp.astype(x, xp.float32)) <= eps_of(x) ** 0.5


def _check_points(settings: Settings, manifold: GyroSpace, x: Array) -> None:
    """Refuse a batch with samples that are not on the manifold; its values can be read."""
    if x.shape[0:1] == (0,):
        return
    xp, x, eps = namespace_of(x), backend_of(x).stop_gradient(x), None
    if is_half(x):
        eps, x = eps_of(x), xp.astype(x, xp.float32)
    on_manifold(
        plain_geometry(manifold),
        x,
        f"the input of {settings.name}",
        eps=eps,
        advice="give points, which manifold.from_normal makes of any numbers and "
        "manifold.project of numbers near by; check_input=False takes them as they are",
        advice_nan="check the layer before it, and its learning rate",
    )
    settings.first.checked = True


def _check_count(settings: Settings, shape: Shape, axes: int, running: Stats | None) -> None:
    """Refuse to learn statistics from a single sample, or from sets of a single point."""
    if math.prod(shape[:axes]) < 2 and (running is not None or not settings.sets):
        kind = "point per set" if settings.sets else "sample per channel"
        raise ValueError(
            f"{settings.name} needs more than one {kind} for statistics, got samples of shape "
            f"{shape}: give more, or use {settings.remedy}"
        )


def check_variance(batch: Batch, stats: Stats, group: Group | None = None) -> None:
    """If a batch has no finite variance, name the sample, and the rank, that is the reason."""
    settings, shim = batch.settings, backend_of(stats.var)
    if shim.traced(stats.var):
        return
    if math.isfinite(float(namespace_of(stats.var).sum(shim.stop_gradient(stats.var)))):
        settings.first.searched = True
        return
    error: ValueError | None = None
    try:
        if not batch.hidden:
            _check_points(settings, batch.manifold, batch.checked)
    except ValueError as found:
        error = found
    if group is not None:
        group.agree(error)
    raise error or ValueError(
        f"{settings.name} on {settings.geometry!r} finds no variance of this batch: all samples "
        "are on the manifold, but too far out or too far apart; check the layer before it, and its "
        "learning rate"
    )


# ---------------------------------------------------------------------- statistics and output


def search_options(settings: Settings) -> dict[str, Any]:
    """Return the options of :func:`gyrobn.statistics.frechet.locate`.

    A second mean is looked for in the first batch only.
    """
    unique = settings.check_input is not False and not settings.first.searched
    warn = partial(warn_of, unique=unique)
    return {name: getattr(settings, name) for name in SEARCH} | {"warn": warn}


def statistics(batch: Batch, group: Group | None = None, **options: Any) -> Stats:
    """Return the statistics of a batch, with their derivatives."""
    axes, manifold = tuple(range(batch.axes)), batch.manifold
    samples, w = arrange(manifold, batch.x, batch.weights, axes, group)
    search = search_options(batch.settings) | options
    found = locate(manifold, samples, w, group=group, **search)
    return Stats(found.mean, found.variance)


def _constant_mean(batch: Batch, group: Group | None) -> Array:
    """Return the mean of a batch, without derivatives and warnings."""
    stop, w = backend_of(batch.x).stop_gradient, batch.weights
    batch = batch._replace(manifold=batch.manifold.detached(), x=stop(batch.x))
    batch = batch._replace(weights=w if w is None else stop(w))
    return statistics(batch, group, warn=lambda *_, **__: None).mean


def first_reference(batch: Batch, mean: Callable[[], Array], first: bool | None = None) -> Batch:
    """Return a batch whose reference is set: by its mean, a constant, if it was not before."""
    xp, backend, r = namespace_of(batch.x), backend_of(batch.x), batch.reference
    if first:
        return batch._replace(reference=backend.stop_gradient(mean()))

    def body(_: Any, state: tuple[Array]) -> tuple[Array]:
        return (xp.where(xp.isnan(state[0]), backend.stop_gradient(mean()), state[0]),)

    unset = lambda state: xp.any(xp.isnan(state[0]))  # noqa: E731
    (r,) = backend.while_loop("first reference", unset, body, (), (r,), 1)
    return batch._replace(reference=r)


NEAR = math.radians(10.0)
"""The angle between a mean and the cut locus below which a layer warns."""
EVERY = 64
"""The number of batches from one look at that angle to the next, which waits for a GPU."""


def check_cut_locus(batch: Batch, mean: Array) -> None:
    """Warn once if the mean of a batch is close to the cut locus of the identity."""
    settings, first = batch.settings, batch.settings.first
    backend = backend_of(mean)
    if settings.sets or settings.check_input is False or first.warned or backend.traced(mean):
        return
    if batch.manifold.convexity_radius == math.inf:
        return
    first.batches += 1
    if first.batches % EVERY != 1:
        return
    angles = batch.space.detached().cut_locus_angle(backend.stop_gradient(mean))
    angle = float(namespace_of(mean).min(angles))
    if angle < NEAR:
        first.warned = True
        seen, advice = "identity", "reference='first_batch', or a point near the data,"
        if settings.reference is not None:
            seen, advice = "reference", "a reference nearer to the data"
        warn_caller(
            f"{settings.name} on {settings.geometry!r}: the mean of a batch is "
            f"{math.degrees(angle):.2g}° from the cut locus of the {seen}, where small changes of "
            f"the mean move the centred samples far: give {advice} to normalize from there",
            FrechetWarning,
        )


def learn(
    batch: Batch, running: Stats | None, stats: Stats, rate: Any, group: Group | None = None
) -> Stats | None:
    """Return the running statistics, moved towards those of a batch, without derivatives.

    From sets they learn the average of those with weight. A channel without any keeps its
    statistics, and so does one without a good sample where no error can be raised.
    """
    check_variance(batch, stats, group)
    check_cut_locus(batch, stats.mean)
    if running is None or batch.running is None:
        return None
    settings, stop = batch.settings, backend_of(stats.var).stop_gradient
    manifold, xp = batch.manifold.detached(), namespace_of(stats.var)
    old, stats = (Stats(stop(both.mean), stop(both.var)) for both in (batch.running, stats))
    lost = None if batch.empty is None else batch.empty[(0,) * batch.axes]
    if settings.sets:
        weights = None
        if lost is not None:
            some, lost = xp.logical_not(lost), xp.all(lost, axis=0)
            weights = xp.astype(xp.logical_or(lost, some), stats.var.dtype)
        stats = average_stats(manifold, stats, weights, **search_options(settings))
    new, k = update_stats(manifold, old, stats, rate), len(settings.channels)
    if batch.hidden:
        for a in new:
            bad = xp.any(xp.logical_not(xp.isfinite(xp.reshape(a, (*a.shape[:k], -1)))), axis=-1)
            lost = bad if lost is None else xp.logical_or(bad, lost)
    if lost is not None:
        pairs = zip(old, new, strict=True)
        new = Stats(*(xp.where(lost[(..., *(None,) * (b.ndim - k))], a, b) for a, b in pairs))
    return Stats(*(cast(b, real_dtype(a)) for a, b in zip(running, new, strict=True)))


def apply(batch: Batch, x: Array, stats: Stats) -> Array:
    """Normalize samples with given statistics."""
    space = batch.space
    inside, x = space.inside, space.to_inside(x)
    stats = Stats(space.to_inside(stats.mean), stats.var)
    return space.from_inside(inside.standardize(x, *route(inside, x, stats, *batch.output)))


# ---------------------------------------------------------------------- the dtype


def is_half(x: Array) -> bool:
    """Return whether an array is in half precision: float16 or bfloat16."""
    return bool(namespace_of(x).finfo(x.dtype).bits < 32)


def common_dtype(*arrays: Array | None) -> Any:
    """Return the widest real dtype, float32 at least: half precision has three digits."""
    here = [a for a in arrays if a is not None]
    xp, dtype = namespace_of(*here), real_dtype(here[0])
    dtypes = {real_dtype(a) for a in here}
    if dtypes == {dtype} and dtype in (xp.float32, xp.float64):
        return dtype  # asking the library takes longer
    return xp.result_type(xp.float32, *dtypes)
