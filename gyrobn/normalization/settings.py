"""What a layer is told once: its options, how they are checked, and how they are documented."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, normalize
from gyrobn.numerics.checks import check_choice, check_integers, check_number
from gyrobn.statistics.newton import check_search

__all__ = ["LearntGeometry", "Settings", "documented"]


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


@dataclass(frozen=True)
class Settings(LearntGeometry):
    """The options of a layer. They are hashable, so a compiler may treat them as a constant."""

    channels: tuple[int, ...]
    axis: tuple[int, ...]
    eps: float
    mean_gradient: str
    steps: int | None
    clamp: float | None
    tol: float | None
    max_iter: int
    formula: Callable[..., Array] = normalize
    """What to do with the statistics; :mod:`gyrobn.normalization.baselines` has others."""
    axis_name: Any = None
    """JAX only: the named axes over which a batch is distributed."""
    axis_index_groups: Any = None
    """JAX only: groups of the indices of that axis, each a batch of its own."""
    remedy: str = "layer.eval()"
    """What to advise if a training batch has a single sample."""
    check_input: str | bool = "first"
    """Which batches to check for samples off the manifold: the first, all (True) or none."""
    seen: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Not empty once the first batch was checked. It does not count for equality, so a compiled
    program stays valid."""
    asked: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Not empty once a batch was checked for a second mean."""

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
        search, clamp = ("tol", "max_iter", "steps"), options["clamp"]
        plain = check_search(*(options[name] for name in search))
        options |= dict(zip(search, plain, strict=True))
        options["eps"] = check_number("eps", options["eps"], 0.0)
        options["clamp"] = None if clamp is None else check_number("clamp", clamp, above=0.0)
        check_choice("mean_gradient", options["mean_gradient"], ("implicit", "detach"))
        settings = cls(geometry=manifold, channels=channels, axis=axes, **options)
        return settings.checking(settings.check_input)

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """Shape of variance and scale."""
        return (*self.channels, *self.geometry.block_shape)

    def checking(self, check_input: Any) -> "Settings":
        """Return the same settings with another ``check_input``, before their first batch."""
        if not isinstance(check_input, bool) and check_input != "first":
            raise ValueError(f"check_input must be 'first', True or False, got {check_input!r}")
        return replace(self, check_input=check_input, seen=[], asked=[])

    def running(self, manifold: GyroSpace, stats: Stats) -> Stats:
        """Return running statistics for the manifold at the current curvature."""
        if not self.learn_curvature:
            return stats
        return Stats(manifold.project(stats.mean), stats.var)  # some models move with the curvature


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
    "options": r"""axis
    The batch axis, or axes; the other leading axes are the channels.
mean_gradient
    ``"implicit"`` for the exact derivative of the mean, ``"detach"`` to hold it constant.
steps
    Number of Newton steps for the mean; until convergence by default.
learn_curvature
    Whether the curvature is a parameter. It keeps its sign; on ``Stereographic`` it is free.
clamp
    Largest factor :math:`s/\sqrt{v^2+\epsilon}`, if any.
tol, max_iter
    As in :func:`gyrobn.frechet`.
check_input
    ``"first"`` to check the first batch, in training or evaluation, for samples off the manifold,
    and raise ValueError; True to check every batch, False for none. The same batches are checked
    for a second mean, with a warning. Compiled and vectorized functions (``torch.compile``,
    ``jit``, ``grad`` of JAX, ``vmap``) hide values, so nothing is checked there.""",
    "momentum": """momentum
    Fraction of the running statistics to keep at a new batch (one minus torch's ``momentum``).
    They start at the identity and one.""",
    "call": """x
    Points, shape ``(batch, *channels, *point_shape)``.
weights
    Weights of the samples in the statistics of the batch, as in :func:`gyrobn.frechet`.""",
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
    Other arguments of the layer; eps (or epsilon), tol and max_iter are the estimator's by
    default.""",
}
"""Paragraphs that the docstrings of all layers share."""

_Documented = TypeVar("_Documented")


def documented(thing: _Documented) -> _Documented:
    """Fill ``%(name)s`` in the docstring of a class or function with the shared paragraphs."""
    if thing.__doc__:
        thing.__doc__ = inspect.cleandoc(thing.__doc__) % _SHARED
    return thing
