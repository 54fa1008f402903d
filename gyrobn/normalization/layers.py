"""What the layers of all frameworks share: their settings, and the call as a pure function.

A layer holds parameters and running statistics in the way of its framework and calls
:func:`forward`; the mathematics is in :mod:`gyrobn.normalization.normalize`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, normalize, normalize_to, update_stats
from gyrobn.numerics.checks import check_choice, check_integers, check_number
from gyrobn.statistics.frechet import locate
from gyrobn.statistics.newton import check_search
from gyrobn.statistics.points import on_manifold
from gyrobn.statistics.samples import arrange, only_weighted, set_aside
from gyrobn.statistics.uniqueness import warn

__all__ = ["Learnt", "Settings", "common_dtype", "forward", "is_half"]


class Learnt(NamedTuple):
    """What a layer learns; None for what it does not."""

    bias: Array | None
    """Normal coordinates of the bias, shape (*channels, dim)."""
    scale: Array | None
    """Standard deviation of the output, shape (*channels,), or (*channels, blocks)."""
    raw_curvature: Array | None
    """The logarithm of the curvature's ratio to the initial one; where it is free, itself."""


@dataclass(frozen=True)
class Settings:
    """What a layer is told once. It is hashable, and so a constant to compilers."""

    geometry: GyroSpace
    channels: tuple[int, ...]
    axis: tuple[int, ...]
    eps: float
    mean_gradient: str
    steps: int | None
    clamp: float | None
    learn_curvature: bool
    tol: float | None
    max_iter: int
    formula: Callable[..., Array] = normalize
    """What to do with the statistics; :mod:`gyrobn.normalization.baselines` has others."""
    axis_name: Any = None
    """Of JAX: the named axes over which a batch is distributed."""
    remedy: str = "layer.eval()"
    """What to advise where training is asked of a single sample."""
    check_input: str | bool = "first"
    """Whether to look for samples off the manifold: at the first batch, at each, or at none."""
    seen: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Not empty once the first batch was looked at. It is no setting: what is compiled for settings
    is the same before and after."""
    asked: list[bool] = field(default_factory=list, compare=False, repr=False)
    """The same, once it was asked whether the mean of a batch is the only one."""

    @classmethod
    def of(
        cls,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        axis: int | Sequence[int],
        **options: Any,
    ) -> "Settings":
        """Check what a layer is built with."""
        channels = check_integers("channels", channels, 1)
        axes = check_integers("axis", axis)
        lead = len(channels) + len(axes)
        if not axes or any(not -lead <= a < lead for a in axes):
            raise ValueError(
                f"axis must name batch axes among the {lead} in front of a point, got {axis}"
            )
        axes = tuple(sorted({a % lead for a in axes}))
        if len(axes) + len(channels) != lead:
            raise ValueError(f"axis names a batch axis twice: {axis}")
        search, clamp = ("tol", "max_iter", "steps"), options["clamp"]
        plain = check_search(*(options[name] for name in search))
        options |= dict(zip(search, plain, strict=True))
        options["eps"] = check_number("eps", options["eps"], 0.0)
        options["clamp"] = None if clamp is None else check_number("clamp", clamp, above=0.0)
        check_choice("mean_gradient", options["mean_gradient"], ("implicit", "detach"))
        settings = cls(manifold, channels, axes, **options)
        settings = settings.checking(settings.check_input)
        if settings.learn_curvature and "curvature" not in manifold.parameters:
            raise ValueError(f"{manifold!r} has no curvature to learn")
        if not all(isinstance(value, (int, float)) for value in manifold.learnable()):
            raise ValueError(
                f"a layer needs a geometry whose parameters are numbers, got {manifold!r}: give "
                "the initial curvature as a float, and learn_curvature=True to learn it"
            )
        return settings

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """Shape of variance and scale."""
        return (*self.channels, *self.geometry.block_shape)

    def checking(self, check_input: Any) -> "Settings":
        """Return the same settings with another ``check_input``, before their first batch."""
        if not isinstance(check_input, bool) and check_input != "first":
            raise ValueError(f"check_input must be 'first', True or False, got {check_input!r}")
        return replace(self, check_input=check_input, seen=[], asked=[])

    # ------------------------------------------------------------------ the geometry

    @property
    def _curvature(self) -> Any:
        return self.geometry.curvature  # type: ignore[attr-defined]

    @property
    def free_curvature(self) -> bool:
        """Whether a learnt curvature may have any sign, so that the parameter is K itself."""
        return getattr(self.geometry, "required_sign", None) is None

    @property
    def initial_curvature(self) -> float:
        """The value of ``raw_curvature`` to begin with."""
        return float(self._curvature) if self.free_curvature else 0.0

    def manifold(self, raw: Array | None) -> GyroSpace:
        """Return the geometry at a learnt curvature: :math:`K = K_0 e^r`, or K itself."""
        if raw is None:
            return self.geometry
        K = raw if self.free_curvature else self._curvature * namespace_of(raw).exp(raw)
        return replace(self.geometry, curvature=K)  # type: ignore[call-arg]

    def raw_shift(self, saved: GyroSpace, raw: float | None = None) -> float:
        """Refuse a state of another geometry; return what to add to the raw curvature in it.

        Where the curvature is learnt, that of the state is taken over, and all else must agree.

        Parameters
        ----------
        saved
            The geometry of the layer that the state comes from.
        raw
            The raw curvature in the state, if it is known.

        Returns
        -------
        float
            Not zero where the two curvatures began at different values.
        """
        own, learns, free = self.geometry, self.learn_curvature, self.free_curvature
        if saved == own and (learns or raw is None):
            return 0.0
        if "curvature" in own.parameters and type(saved) is type(own):
            first: Any = saved.curvature  # type: ignore[attr-defined]
            if replace(saved, curvature=self._curvature) == own:  # type: ignore[call-arg]
                if learns:
                    return 0.0 if free else math.log(first / self._curvature)
                if raw is not None:
                    first = raw if free else first * math.exp(raw)
                    if math.isclose(first, self._curvature, rel_tol=1e-6):
                        return 0.0
                    raise self.foreign(f"{replace(saved, curvature=first)!r}")  # type: ignore[call-arg]
        raise self.foreign(repr(saved))

    def foreign(self, saved: str) -> ValueError:
        """Return what to say of a state of another geometry."""
        return ValueError(
            f"the state is of a layer on {saved}, and this one is on {self.geometry!r}: build the "
            "layer with the geometry of the state"
        )

    # ------------------------------------------------------------------ the input

    def arrange(
        self, x: Array, weights: Array | None
    ) -> tuple[Array, Array | None, Callable[[Array], Array]]:
        """Return input and weights with the batch axes in front, and how to undo that."""
        k = len(self.axis)
        lead, points = len(self.channels) + k, self.geometry.point_shape
        rest = tuple(a for a in range(lead) if a not in self.axis)
        if self.axis_name is not None and tuple(x.shape) == (*self.channels, *points):
            alone = (None,) * k  # one example: the batch is the named axis
            return x[alone], None if weights is None else weights[alone], lambda y: y[(0,) * k]
        found = tuple(x.shape[a] for a in rest) if x.ndim >= lead else ()
        if (
            x.ndim != lead + len(points)
            or tuple(x.shape[lead:]) != points
            or found != self.channels
        ):
            raise ValueError(
                f"GyroBN on {self.geometry!r} expects input of shape {self._wanted(lead, rest)}, "
                f"got {tuple(x.shape)}"
            )
        order = (*self.axis, *rest)
        if order == tuple(range(lead)):
            return x, weights, lambda y: y
        xp = namespace_of(x)
        if weights is not None and weights.ndim == lead:
            weights = xp.permute_dims(weights, order)
        order = (*order, *range(lead, x.ndim))
        back = tuple(order.index(a) for a in range(x.ndim))
        return xp.permute_dims(x, order), weights, lambda y: xp.permute_dims(y, back)

    def _wanted(self, lead: int, rest: tuple[int, ...]) -> str:
        names = ["batch"] * lead
        for a, size in zip(rest, self.channels, strict=True):
            names[a] = str(size)
        example = [str(n) for n in (*self.channels, *self.geometry.point_shape)]
        text = f"({', '.join([*names, *example[len(self.channels) :]])})"
        if self.axis_name is not None:
            text += f", or one example ({', '.join(example)}) under the axis {self.axis_name!r}"
        return text

    def check(self, manifold: GyroSpace, x: Array) -> None:
        """Refuse a batch with samples off the manifold, if it is one to look at."""
        if self.check_input is False or (self.check_input == "first" and self.seen):
            return
        if self.inspect(manifold, x) and not self.seen:
            self.seen.append(True)

    def inspect(self, manifold: GyroSpace, x: Array, first: Any = 0) -> bool:
        """Refuse a batch with samples off the manifold; tell whether there were values to look at.

        ``first`` has the numbers of the samples, where they are some of a batch.
        """
        shim = backend_of(x)
        if x.shape[0:1] == (0,) or any(
            shim.hides_values(a)
            for a in (x, *manifold.learnable())
            if not isinstance(a, (int, float))
        ):
            return False
        xp, x = namespace_of(x), shim.stop_gradient(x)
        eps = float(xp.finfo(x.dtype).eps) if is_half(x) else None
        on_manifold(
            manifold.with_learnable([float(value) for value in manifold.detached().learnable()]),
            x if eps is None else xp.astype(x, xp.float32),
            "the input of GyroBN",
            first=first,
            eps=eps,
            advice="give points, which manifold.from_normal makes of any numbers and "
            "manifold.project of numbers near by; check_input=False takes them as they are",
            advice_nan="check the layer before it, and its learning rate",
        )
        return True

    def widen(self, manifold: GyroSpace, x: Array, dtype: Any) -> Array:
        """Return points in a dtype; what was rounded to a narrower one is not on the manifold."""
        if x.dtype == dtype:
            return x
        return manifold.project(namespace_of(x).astype(x, dtype))

    # ------------------------------------------------------------------ the statistics

    def batch_stats(
        self, manifold: GyroSpace, x: Array, weights: Array | None, several: bool
    ) -> Stats:
        """Return the statistics of a batch, which may have to have several samples."""
        self._check_count(x, several)
        samples, w = arrange(manifold, x, weights, tuple(range(len(self.axis))))
        found, _ = locate(manifold, samples, w, **self._options)
        return Stats(found.mean, found.variance)

    def normalize_batch(
        self, manifold: GyroSpace, learnt: Learnt, x: Array, weights: Array | None, several: bool
    ) -> tuple[Array, Stats]:
        """Normalize a batch with its own statistics."""
        if self.formula is not normalize:
            stats = self.batch_stats(manifold, x, weights, several)
            return self.apply(manifold, learnt, x, stats), stats
        self._check_count(x, several)
        target, scale = self._affine(manifold.inside, learnt)
        return normalize_to(
            manifold,
            x,
            weights,
            target,
            scale,
            self.eps,
            self.clamp,
            axes=len(self.axis),
            **self._options,
        )

    @property
    def _options(self) -> dict[str, Any]:
        names = ("steps", "tol", "max_iter", "mean_gradient")
        return {name: getattr(self, name) for name in names} | {"tell": self._tell}

    def _tell(self, *found: Any) -> None:
        """Warn of a mean; whether it is the only one is asked of the batches that are checked."""
        unique = self.check_input is True or (self.check_input == "first" and not self.asked)
        warn(*found, unique=unique)
        if unique and not self.asked:
            self.asked.append(True)

    def _check_count(self, x: Array, several: bool) -> None:
        if several and math.prod(x.shape[: len(self.axis)]) < 2:
            raise ValueError(
                "GyroBN needs more than one sample a channel for statistics, got a batch of shape "
                f"{tuple(x.shape)}: use a larger batch, or {self.remedy}"
            )

    def check_variance(self, manifold: GyroSpace, x: Array, stats: Stats, first: Any = 0) -> None:
        """Say which sample has left a batch without a variance."""
        if backend_of(x).hides_values(stats.var):
            return
        var = backend_of(x).stop_gradient(stats.var)
        total = var if math.prod(var.shape) == 1 else namespace_of(var).sum(var)
        if math.isfinite(float(total)):
            return
        self.inspect(manifold, x, first)
        raise ValueError(
            f"GyroBN on {self.geometry!r} finds no variance of this batch: all samples are on the "
            "manifold, but too far out or too far apart; check the layer before it, and its "
            "learning rate"
        )

    def running(self, manifold: GyroSpace, stats: Stats) -> Stats:
        """Return the running statistics as they are at a learnt curvature."""
        if not self.learn_curvature:
            return stats
        return Stats(manifold.project(stats.mean), stats.var)  # points of some models move with it

    def update(self, manifold: GyroSpace, running: Stats, batch: Stats, rate: Any) -> Stats:
        """Return the running statistics, moved towards a batch, without derivatives."""
        stop = backend_of(batch.var).stop_gradient
        constant = manifold.detached()
        old = self.running(constant, Stats(stop(running.mean), stop(running.var)))
        return update_stats(constant, old, Stats(stop(batch.mean), stop(batch.var)), rate)

    def apply(self, manifold: GyroSpace, learnt: Learnt, x: Array, stats: Stats) -> Array:
        """Normalize with given statistics, inside the manifold: there the bias need not leave."""
        inside = manifold.inside
        bias, scale = self._affine(inside, learnt)
        stats = Stats(manifold.to_inside(stats.mean), stats.var)
        y = self.formula(inside, manifold.to_inside(x), stats, bias, scale, self.eps, self.clamp)
        return manifold.from_inside(y)

    def _affine(self, manifold: GyroSpace, learnt: Learnt) -> tuple[Array | None, Any]:
        """Return bias, as a point, and scale."""
        bias = None if learnt.bias is None else manifold.from_normal(learnt.bias)
        return bias, 1.0 if learnt.scale is None else learnt.scale


def forward(
    settings: Settings,
    learnt: Learnt,
    running: Stats | None,
    x: Array,
    weights: Array | None,
    rate: Any,
    training: bool,
    gather: Callable[[Array], Array] | None = None,
) -> tuple[Array, Stats | None]:
    """Normalize a batch, with its own statistics in training and with the running ones otherwise.

    The computation is in the widest dtype of all arrays, float32 at least. The output has that
    dtype, but half precision where the input has; the statistics keep theirs.

    Parameters
    ----------
    settings, learnt
        Of the layer.
    running
        The running statistics; None if the layer keeps none, and always uses those of the batch.
    x, weights
        The batch, and the weights of its samples.
    rate
        Fraction of the batch in the new running statistics.
    training
        Whether to use, and to learn, the statistics of the batch.
    gather
        Puts the parts of a distributed batch together: all samples, not the means of the parts, for
        the Fréchet mean is no average of averages.

    Returns
    -------
    y, running
        The normalized batch, and the running statistics after it.
    """
    given, kept = x, running
    x, weights, undo = settings.arrange(x, weights)
    dtype = common_dtype(x, *learnt, *(running or ()))
    learnt = Learnt(*(_cast(a, dtype) for a in learnt))
    running = None if running is None else Stats(*(_cast(a, dtype) for a in running))
    manifold = settings.manifold(learnt.raw_curvature)
    counted = given if weights is None else undo(only_weighted(manifold, x, weights))
    settings.check(manifold, counted)
    x, put_back = set_aside(manifold, settings.widen(manifold, x, dtype), weights)
    if not training and running is not None:
        y = settings.apply(manifold, learnt, x, settings.running(manifold, running))
        return _back(undo(put_back(y)), given), kept
    if gather is None:
        y, stats = settings.normalize_batch(manifold, learnt, x, weights, several=training)
    else:
        shared = None if weights is None else gather(weights)
        stats = settings.batch_stats(manifold, gather(x), shared, several=training)
        y = settings.apply(manifold, learnt, x, stats)
    settings.check_variance(manifold, counted, stats)
    if running is not None and kept is not None:
        new = settings.update(manifold, running, stats, rate)
        kept = Stats(*(_cast(a, old.dtype) for a, old in zip(new, kept, strict=True)))
    return _back(undo(put_back(y)), given), kept


def is_half(x: Array) -> bool:
    """Tell whether an array is in half precision: float16 or bfloat16."""
    return bool(namespace_of(x).finfo(x.dtype).bits < 32)


def common_dtype(*arrays: Array | None) -> Any:
    """Return the dtype to compute in: the widest, float32 at least.

    In half precision geometry would have three digits.
    """
    here = [a for a in arrays if a is not None]
    xp = namespace_of(*here)
    return xp.result_type(xp.float32, *(a.dtype for a in here))


def _cast(x: Array | None, dtype: Any) -> Any:
    return None if x is None else namespace_of(x).astype(x, dtype, copy=False)


def _back(y: Array, given: Array) -> Array:
    """Return the output, in half precision if the input was."""
    return _cast(y, given.dtype) if is_half(given) else y
