"""What a layer is told once: its options, how they are checked, and how they are documented."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, normalize
from gyrobn.numerics.checks import check_choice, check_integer, check_integers, check_number
from gyrobn.statistics.locate import check_mean
from gyrobn.statistics.newton import check_search

__all__ = ["LayerSettings", "LearntGeometry", "SetSettings", "Settings", "documented"]


@dataclass(frozen=True)
class LearntGeometry:
    """A geometry, and whether its curvature is learnt."""

    geometry: GyroSpace
    learn_curvature: bool

    def __post_init__(self) -> None:
        manifold = self.geometry
        if self.learn_curvature and "curvature" not in manifold.parameters:
            raise ValueError(f"{manifold!r} has no curvature to learn")
        if not all(isinstance(value, (int, float)) for value in manifold.learnable()):
            raise ValueError(
                f"a layer needs a geometry whose parameters are numbers, got {manifold!r}: give "
                "the initial curvature as a float, and learn_curvature=True to learn it"
            )

    @property
    def _curvature(self) -> Any:
        return self.geometry.curvature  # type: ignore[attr-defined]

    @property
    def free_curvature(self) -> bool:
        """Whether a learnt curvature may have any sign. The parameter is then K itself."""
        return getattr(self.geometry, "required_sign", None) is None

    @property
    def initial_curvature(self) -> float:
        """The initial value of ``raw_curvature``."""
        return float(self._curvature) if self.free_curvature else 0.0

    def manifold(self, raw: Array | None) -> GyroSpace:
        """Return the geometry at a learnt curvature: :math:`K = K_0 e^r`, or K itself."""
        if raw is None:
            return self.geometry
        K = raw if self.free_curvature else self._curvature * namespace_of(raw).exp(raw)
        return replace(self.geometry, curvature=K)  # type: ignore[call-arg]

    def raw_shift(self, saved: GyroSpace, raw: float | None = None) -> float:
        """Compare the geometry of a saved state, and return what to add to its raw curvature.

        A layer that learns its curvature takes that of the state; all else must agree.

        Parameters
        ----------
        saved
            The geometry of the layer that wrote the state.
        raw
            The raw curvature in the state, if it is known.

        Returns
        -------
        float
            Nonzero if the two curvatures started from different values.
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
        """Return the error for a state of another geometry."""
        return ValueError(
            f"the state is of a layer on {saved}, and this one is on {self.geometry!r}: build the "
            "layer with the geometry of the state"
        )


@dataclass(frozen=True, kw_only=True)
class LayerSettings(LearntGeometry):
    """The options of a layer. They are hashable, so a compiler may treat them as a constant."""

    channels: tuple[int, ...]
    """Shape of what has a bias and a scale each."""
    eps: float
    clamp: float | None
    mean_gradient: str = "implicit"
    steps: int | None = None
    tol: float | None = None
    max_iter: int = 64
    mean: str = "frechet"
    formula: Callable[..., Array] = normalize
    """What to do with the statistics; :mod:`gyrobn.normalization.baselines` has others."""
    name: str = "GyroBN"
    """What errors call the layer."""
    check_input: str | bool = "first"
    """Which batches to check for samples off the manifold: the first, all (True) or none."""
    seen: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Not empty once the first batch was checked. It does not count for equality, so a compiled
    program stays valid."""
    asked: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Not empty once a batch was checked for a second mean."""

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """Shape of variance and scale."""
        return (*self.channels, *self.geometry.block_shape)

    def checking(self, check_input: Any) -> Self:
        """Return the same settings with another ``check_input``, before their first batch."""
        if not isinstance(check_input, bool) and check_input != "first":
            raise ValueError(f"check_input must be 'first', True or False, got {check_input!r}")
        return replace(self, check_input=check_input, seen=[], asked=[])

    def running(self, manifold: GyroSpace, stats: Stats) -> Stats:
        """Return running statistics for the manifold at the current curvature."""
        if not self.learn_curvature:
            return stats
        return Stats(manifold.project(stats.mean), stats.var)  # some models move with the curvature


@dataclass(frozen=True, kw_only=True)
class Settings(LayerSettings):
    """The options of a layer that normalizes batches."""

    axis: tuple[int, ...]
    axis_name: Any = None
    """JAX only: the named axes over which a batch is distributed."""
    axis_index_groups: Any = None
    """JAX only: groups of the indices of that axis, each a batch of its own."""
    remedy: str = "layer.eval()"
    """What to advise if a training batch has a single sample."""

    @classmethod
    def of(
        cls,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        axis: int | Sequence[int],
        **options: Any,
    ) -> "Settings":
        """Check the arguments of a layer, and return them as settings."""
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
        options = _checked(options)
        settings = cls(geometry=manifold, channels=channels, axis=axes, **options)
        return settings.checking(settings.check_input)


@dataclass(frozen=True, kw_only=True)
class SetSettings(LayerSettings):
    """The options of a layer that normalizes sets of points within each sample."""

    axis: tuple[int, ...] | None = None
    """The axes of a set; by default all leading axes but the first and the channels."""
    group: int | None = None
    """How many consecutive channels are one set; None if they are not grouped."""
    centre: bool = True
    """Whether to move the mean of a set to the bias, or to scale from the identity alone."""

    @classmethod
    def layer(
        cls, name: str, manifold: GyroSpace, axis: int | Sequence[int] | None, **options: Any
    ) -> Self:
        """Return the settings of a layer with one bias and scale for all sets."""
        axes = None if axis is None else check_integers("axis", axis)
        return cls._of(name, manifold, (), axis=axes, **options)

    @classmethod
    def instance(
        cls, name: str, manifold: GyroSpace, channels: int | Sequence[int], **options: Any
    ) -> Self:
        """Return the settings of a layer whose sets are the positions of one channel."""
        return cls._of(name, manifold, check_integers("channels", channels, 1), **options)

    @classmethod
    def grouped(
        cls, name: str, manifold: GyroSpace, groups: int, channels: int, **options: Any
    ) -> Self:
        """Return the settings of a layer whose sets are the positions of several channels."""
        groups = check_integer("groups", groups, 1)
        channels = check_integer("channels", channels, 1)
        if channels % groups:
            raise ValueError(f"{channels} channels do not fall into {groups} groups of equal size")
        return cls._of(name, manifold, (groups,), group=channels // groups, **options)

    @classmethod
    def _of(cls, name: str, manifold: GyroSpace, channels: tuple[int, ...], **options: Any) -> Self:
        known: dict[str, Any] = {"clamp": None, "learn_curvature": False, "check_input": "first"}
        if options.get("centre", True):
            known |= {"tol": None, "max_iter": 64, "steps": None, "mean_gradient": "implicit"}
        unknown = options.keys() - known.keys() - {"eps", "axis", "group", "centre"}
        if unknown:
            names = ", ".join(sorted(known))
            raise TypeError(f"{name} has no option {min(unknown)!r}; its options are {names}")
        options = _checked(known | options)
        settings = cls(name=name, geometry=manifold, channels=channels, **options)
        return settings.checking(settings.check_input)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that all layers share, checked."""
    search = [name for name in ("tol", "max_iter", "steps") if name in options]
    if search:
        plain = check_search(*(options[name] for name in search))
        options |= dict(zip(search, plain, strict=True))
        check_choice("mean_gradient", options["mean_gradient"], ("implicit", "detach"))
        check_mean(options.get("mean", "frechet"), options["steps"])
    clamp = options["clamp"]
    options["eps"] = check_number("eps", options["eps"], 0.0)
    options["clamp"] = None if clamp is None else check_number("clamp", clamp, above=0.0)
    return options


_MEAN = """mean_gradient
    ``"implicit"`` for the exact derivative of the mean, ``"detach"`` to hold it constant.
steps
    Number of Newton steps for the mean; until convergence by default.
"""
_CENTROID = """mean
    ``"frechet"``, or ``"centroid"`` for a formula in one pass over the batch, without a search. The
    mean and variance of the output are then off by what :meth:`mean_error` says. A warning tells if
    that is more than a tenth of the standard deviation, on the batches that ``check_input`` names.
"""
_FACTOR = r"""learn_curvature
    Whether the curvature is a parameter. It keeps its sign; on ``Stereographic`` it is free.
clamp
    Largest factor :math:`s/\sqrt{v^2+\epsilon}`, if any.
"""
_SEARCH = """tol, max_iter
    As in :func:`gyrobn.frechet`.
"""
_CHECK = """check_input
    ``"first"`` to check the first batch, in training or evaluation, for samples off the manifold,
    and raise ValueError; True to check every batch, False for none. """
_UNIQUE = """The same batches are checked
    for a second mean, with a warning. """
_HIDDEN = """Compiled and vectorized functions (``torch.compile``,
    ``jit``, ``grad`` of JAX, ``vmap``) hide values, so nothing is checked there."""

_SHARED = {
    "algorithm": r""".. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
          (\ominus\mu \oplus x_i)\Bigr)

In training :math:`\mu` and :math:`v^2` are the Fréchet mean and variance of the batch; in
evaluation they are the running ones. The bias is :math:`\beta = \operatorname{Exp}_e(b)` with an
unconstrained parameter b of ``manifold.dim`` numbers per channel, so any optimizer works.""",
    "points": """manifold
    The geometry of the points. Its parameters must be plain numbers.
channels
    Shape of the channels, which are normalized separately: the input has shape ``(batch,
    *channels, *point_shape)``.""",
    "options": """axis
    The batch axis, or axes; the other leading axes are the channels.
"""
    + _MEAN
    + _CENTROID
    + _FACTOR
    + _SEARCH
    + _CHECK
    + _UNIQUE
    + _HIDDEN,
    "set_options": _MEAN + _FACTOR + _SEARCH + _CHECK + _UNIQUE + _HIDDEN,
    "rms_options": _FACTOR + _CHECK + _HIDDEN,
    "sets": r""".. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
          (\ominus\mu \oplus x_i)\Bigr)

with the Fréchet mean :math:`\mu` and variance :math:`v^2` of the set that :math:`x_i` belongs to.
Every set of the output has the mean :math:`\beta = \operatorname{Exp}_e(b)` and the variance
:math:`s^2 v^2/(v^2 + \epsilon)`. A set of a single point moves to :math:`\beta`.""",
    "no_running": """Training and evaluation are the same, without running statistics: a set never
needs the rest of the batch.""",
    "instance_running": r"""By default training and evaluation are the same, and a set never needs
the rest of the batch. With ``track_running_stats`` evaluation takes :math:`\mu` and :math:`v^2`
from running statistics, one of each per channel. In training each set still has its own. The
running ones move towards the average set of the batch, with the Fréchet mean of the means and the
mean of the variances, as in :func:`gyrobn.update_stats`. Sets without weight do not count. If a
batch lies on several processes or devices, each learns from its own samples.""",
    "rms": r""".. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot x_i
          \Bigr), \qquad v^2 = \sum_j w_j\, d^2(e, x_j)

with the mean over the set that :math:`x_i` belongs to. The points of a set keep their directions
from the identity and the ratios of their distances. In the output the mean square of the distances
from :math:`\beta = \operatorname{Exp}_e(b)` is :math:`s^2 v^2/(v^2 + \epsilon)`, per block. There
is no mean to search, so this is the fastest normalization, and the one for sets of a single
point.""",
    "set_manifold": """manifold
    The geometry of the points. Its parameters must be plain numbers.""",
    "set_axis": """axis
    The axis of a set, or axes, among those in front of a point; negative ones count from the
    point. By default all but the first: one set per sample. On ``(batch, tokens, heads,
    *point_shape)``, ``axis=-1`` normalizes the heads of each token.""",
    "rms_axis": """axis
    The axis of a set, or axes, as in :class:`GyroLayerNorm`; by default one set per sample.
    ``axis=()`` scales every point by itself, to distance s.""",
    "instance_channels": """channels
    Shape of the channels: the input has shape ``(batch, *channels, *positions,
    *point_shape)``, with at least one axis of positions.""",
    "group_channels": """groups
    Number of groups of consecutive channels, of equal size.
channels
    Number of channels: the input has shape ``(batch, channels, *positions, *point_shape)``.""",
    "torch_dtype": """device, dtype
    Of the parameters. Input in half precision is computed in float32 and rounded back.""",
    "flax_dtype": """param_dtype
    Of the parameters. The computation is in the wider dtype of the layer and the input, and in
    float32 at least; half precision in gives half precision out.
rngs
    Not used, since nothing starts at random; every Flax layer accepts it.""",
    "equinox_dtype": """dtype
    Of the parameters; JAX's default by default. The computation is in the wider dtype of the
    layer and the input, and in float32 at least; half precision in gives half precision out.""",
    "set_call": """x
    Points, shape ``(batch, *channels, *positions, *point_shape)``.
weights
    Weights of the points in the statistics of their set, or a mask of booleans: an array of the
    shape of the points, ``(batch, *channels, *positions)``, in which axes may have length one. A
    point without weight is normalized with its set; padding that is no point, such as NaN, is
    returned as it came, and so is a set without weight.""",
    "momentum": """momentum
    Fraction of the running statistics to keep at a new batch (one minus torch's ``momentum``).
    They start at the identity and one.""",
    "call": """x
    Points, shape ``(batch, *channels, *point_shape)``.
weights
    Weights of the samples in the statistics of the batch, as in :func:`gyrobn.frechet`.""",
    "mean_error": """Of the batch itself, not of running statistics, and of the samples that are
given, on this process. With ``steps`` it is the error of those steps. See
:func:`gyrobn.mean_error`, which returns the same.

Parameters
----------
x, weights
    As in the call of the layer.""",
    "to_estimator": """The running statistics become its mean and variance, the bias a point, and a
learnt curvature a number. A layer does not count samples: ``n_samples_seen_``, ``weight_sum_`` and
``n_iter_`` are zero, and ``converged_`` is False. The estimator can be saved, with ``save``.

Parameters
----------
like
    An array whose library, dtype and device the statistics get; NumPy by default.""",
    "dtype": """The
    statistics are in float32 at least. The computation is in the wider dtype of the layer and the
    input, and in float32 at least; half precision in gives half precision out.""",
    "bn": """bn
    The estimator, fitted without domains.
**options
    Other arguments of the layer; eps (or epsilon), tol, max_iter and mean are the estimator's by
    default.""",
}
"""Paragraphs that the docstrings of all layers share."""

_Documented = TypeVar("_Documented")


def documented(thing: _Documented) -> _Documented:
    """Fill ``%(name)s`` in the docstring of a class or function with the shared paragraphs."""
    if thing.__doc__:
        thing.__doc__ = inspect.cleandoc(thing.__doc__) % _SHARED
    return thing
