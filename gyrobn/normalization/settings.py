"""What a layer is told once: its options, and how they are checked."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.normalization.normalize import Stats, normalize
from gyrobn.numerics.checks import check_choice, check_integer, check_integers, check_number
from gyrobn.statistics.frechet import check_search


@dataclass(frozen=True)
class LearntGeometry:
    """A geometry, and whether its curvature is learnt."""

    geometry: GyroSpace
    learn_curvature: bool = False

    def __post_init__(self) -> None:
        manifold = check_manifold(self.geometry)
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
    clamp: float | None = None
    mean_gradient: str = "implicit"
    steps: int | None = None
    tol: float | None = None
    max_iter: int = 64
    formula: Callable[..., Array] = normalize
    """What to do with the statistics; :mod:`gyrobn.normalization.baselines` has others."""
    centre: bool = True
    """Whether to move the mean to the bias, or to scale from the identity alone."""
    name: str = "GyroBN"
    """What errors call the layer."""
    check_input: str | bool = True
    """Which batches to check for samples off the manifold: the first, all (True) or none."""
    axis_name: Any = None
    """JAX only: the named axes over which a batch is distributed."""
    axis_index_groups: Any = None
    """JAX only: groups of the indices of that axis, each a batch of its own."""
    seen: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Not empty once the first batch was checked. It does not count for equality, so a compiled
    program stays valid."""
    asked: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Not empty once a batch was checked for a second mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        tol, max_iter, steps = check_search(self.tol, self.max_iter, self.steps)
        check_choice("mean_gradient", self.mean_gradient, ("implicit", "detach"))
        eps, clamp, checks = check_number("eps", self.eps, 0.0), self.clamp, self.check_input
        if clamp is not None:
            clamp = check_number("clamp", clamp, above=0.0)
        if not isinstance(checks, bool) and checks != "first":
            raise ValueError(f"check_input must be 'first', True or False, got {checks!r}")
        plain = {"tol": tol, "max_iter": max_iter, "steps": steps, "eps": eps, "clamp": clamp}
        self.__dict__.update(plain)  # numbers of Python, also if those given were of NumPy

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """Shape of variance and scale."""
        return (*self.channels, *self.geometry.block_shape)

    def checking(self, check_input: Any) -> Self:
        """Return the same settings with another ``check_input``, before their first batch."""
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
    remedy: str = "layer.eval()"
    """What to advise if a training batch has a single sample."""

    @classmethod
    def of(
        cls,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        axis: int | Sequence[int],
        axis_name: Any = None,
        axis_index_groups: Any = None,
        **options: Any,
    ) -> Self:
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
        names = tuple(axis_name) if isinstance(axis_name, list) else axis_name
        if axis_index_groups is not None:
            axis_index_groups = tuple(tuple(group) for group in axis_index_groups)
            if names is None:
                raise ValueError("axis_index_groups are indices of an axis: give axis_name too")
        options |= {"axis_name": names, "axis_index_groups": axis_index_groups}
        return cls(geometry=manifold, channels=channels, axis=axes, **options)

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any], **more: Any) -> Self:
        """Do so for a constructor, given its ``locals()``: its arguments have the names here."""
        names = {own.name for own in fields(cls)}
        known = {name: value for name, value in arguments.items() if name in names}
        return cls.of(arguments["manifold"], **known | more)


@dataclass(frozen=True, kw_only=True)
class SetSettings(LayerSettings):
    """The options of a layer that normalizes sets of points within each sample.

    A set is some of the points of one sample: all of them (layer), those of one channel (instance),
    or those of a group of channels (group). Each set has its own mean and variance, and no set
    depends on the rest of the batch. Bias and scale are one per channel or group, and the same for
    all points of a set: only then is the mean of the set the bias, and its variance the square of
    the scale.

    Training and evaluation are the same, unless an instance normalization keeps running statistics:
    those of the average set of a channel, with which it normalizes in evaluation.
    """

    axis: tuple[int, ...] | None = None
    """The axes of a set; by default all leading axes but the first and the channels."""
    group: int | None = None
    """How many consecutive channels are one set; None if they are not grouped."""

    @classmethod
    def layer(
        cls,
        name: str,
        manifold: GyroSpace,
        axis: int | Sequence[int] | None,
        *,
        centre: bool = True,
        **options: Any,
    ) -> Self:
        """Return the settings of a layer with one bias and scale for all sets."""
        axes = None if axis is None else check_integers("axis", axis)
        return cls._of(name, manifold, options, channels=(), axis=axes, centre=centre)

    @classmethod
    def instance(
        cls, name: str, manifold: GyroSpace, channels: int | Sequence[int], **options: Any
    ) -> Self:
        """Return the settings of a layer whose sets are the positions of one channel."""
        return cls._of(name, manifold, options, channels=check_integers("channels", channels, 1))

    @classmethod
    def grouped(
        cls, name: str, manifold: GyroSpace, groups: int, channels: int, **options: Any
    ) -> Self:
        """Return the settings of a layer whose sets are the positions of several channels."""
        groups = check_integer("groups", groups, 1)
        channels = check_integer("channels", channels, 1)
        if channels % groups:
            raise ValueError(f"{channels} channels do not fall into {groups} groups of equal size")
        return cls._of(name, manifold, options, channels=(groups,), group=channels // groups)

    @classmethod
    def _of(cls, name: str, manifold: GyroSpace, options: dict[str, Any], **sets: Any) -> Self:
        known = {"clamp", "learn_curvature", "check_input"}
        if sets.get("centre", True):
            known |= {"tol", "max_iter", "steps", "mean_gradient"}
        unknown = options.keys() - known - {"eps"}
        if unknown:
            names = ", ".join(sorted(known))
            raise TypeError(f"{name} has no option {min(unknown)!r}; its options are {names}")
        return cls(name=name, geometry=manifold, **sets, **options)
