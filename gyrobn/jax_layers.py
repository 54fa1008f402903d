"""What the layers for Flax and Equinox share: the call as a pure function of JAX arrays.

The layers hold parameters and running statistics; the mathematics is in :mod:`gyrobn.normalize`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import all_gather, stop_gradient

from gyrobn.arrays import check_floating
from gyrobn.backends import backend_of
from gyrobn.gyrospace import GyroSpace
from gyrobn.normalize import Stats, batch_stats, normalize, update_stats

__all__ = ["Parameters", "Settings", "forward"]


class Parameters(NamedTuple):
    """What a layer learns; None for what it does not."""

    bias: Array | None
    """Normal coordinates of the bias, shape (*channels, dim)."""
    scale: Array | None
    """Standard deviation of the output, shape (*channels,), or (*channels, blocks)."""
    raw_curvature: Array | None
    """The logarithm of the curvature's ratio to the initial one; where it is free, itself."""


@dataclass(frozen=True)
class Settings:
    """What a layer is told once. It is hashable, and so a constant to JAX's transformations."""

    geometry: GyroSpace
    channels: tuple[int, ...]
    eps: float
    momentum: float
    axis: tuple[int, ...]
    axis_name: Any
    mean_gradient: str
    steps: int | None
    clamp: float | None
    learn_curvature: bool
    tol: float | None
    max_iter: int

    @classmethod
    def of(
        cls,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        axis: int | Sequence[int],
        axis_name: Any,
        **options: Any,
    ) -> "Settings":
        """Check what a layer is built with."""
        channels = (channels,) if isinstance(channels, int) else tuple(channels)
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        lead = len(channels) + len(axes)
        if not axes or any(not -lead <= a < lead for a in axes):
            raise ValueError(
                f"axis must name batch axes among the {lead} in front of a point, got {axis}"
            )
        axes = tuple(sorted({a % lead for a in axes}))
        if len(axes) + len(channels) != lead:
            raise ValueError(f"axis names a batch axis twice: {axis}")
        names = tuple(axis_name) if isinstance(axis_name, list) else axis_name
        settings = cls(manifold, channels, axis=axes, axis_name=names, **options)
        if settings.mean_gradient not in ("implicit", "detach"):
            raise ValueError(
                f"mean_gradient must be 'implicit' or 'detach', got {settings.mean_gradient!r}"
            )
        if not 0 <= settings.momentum <= 1:
            raise ValueError(
                f"momentum is the fraction of the running statistics to keep, from 0 to 1, got "
                f"{settings.momentum}"
            )
        if settings.learn_curvature and "curvature" not in manifold.parameters:
            raise ValueError(f"{manifold!r} has no curvature to learn")
        try:
            hash(manifold)
        except TypeError:
            raise ValueError(
                f"a layer needs a geometry whose parameters are numbers, got {manifold!r}: give "
                "the initial curvature as a float, and learn_curvature=True to learn it"
            ) from None
        return settings

    # ------------------------------------------------------------------ to begin with

    def parameters(self, bias: bool, scale: bool, dtype: Any) -> Parameters:
        """Return what is learnt, as it is at first."""
        M = self.geometry
        raw = float(M.curvature) if self._free_curvature else 0.0  # type: ignore[attr-defined]
        return Parameters(
            jnp.zeros((*self.channels, M.dim), dtype) if bias else None,
            jnp.ones(self._statistics_shape, dtype) if scale else None,
            jnp.asarray(raw, dtype) if self.learn_curvature else None,
        )

    def statistics(self, dtype: Any) -> Stats:
        """Return the running statistics before the first batch: the identity and one."""
        e = self.geometry.origin(jnp.zeros((), dtype))
        mean = jnp.broadcast_to(e, (*self.channels, *e.shape))
        return Stats(mean, jnp.ones(self._statistics_shape, dtype))

    @property
    def _statistics_shape(self) -> tuple[int, ...]:
        blocks = len(self.geometry.blocks)
        return self.channels if blocks == 1 else (*self.channels, blocks)

    # ------------------------------------------------------------------ the geometry

    @property
    def _free_curvature(self) -> bool:
        return self.learn_curvature and getattr(self.geometry, "required_sign", None) is None

    def manifold(self, raw: Array | None) -> GyroSpace:
        """Return the geometry at a learnt curvature: :math:`K = K_0 e^r`, or K itself."""
        if raw is None:
            return self.geometry
        K = raw if self._free_curvature else self.geometry.curvature * jnp.exp(raw)  # type: ignore[attr-defined]
        return replace(self.geometry, curvature=K)  # type: ignore[call-arg]

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
        if x.ndim != lead + len(points) or x.shape[lead:] != points or found != self.channels:
            raise ValueError(
                f"GyroBN on {self.geometry!r} expects input of shape {self._wanted(lead, rest)}, "
                f"got {tuple(x.shape)}"
            )
        order = (*self.axis, *rest)
        if weights is not None and weights.ndim == lead:
            weights = jnp.transpose(weights, order)
        order = (*order, *range(lead, x.ndim))
        back = tuple(order.index(a) for a in range(x.ndim))
        return jnp.transpose(x, order), weights, lambda y: jnp.transpose(y, back)

    def _wanted(self, lead: int, rest: tuple[int, ...]) -> str:
        names = ["batch"] * lead
        for a, size in zip(rest, self.channels, strict=True):
            names[a] = str(size)
        example = [str(n) for n in (*self.channels, *self.geometry.point_shape)]
        text = f"({', '.join([*names, *example[len(self.channels) :]])})"
        if self.axis_name is not None:
            text += f", or one example ({', '.join(example)}) under the axis {self.axis_name!r}"
        return text

    def batch_stats(
        self, manifold: GyroSpace, x: Array, weights: Array | None, remedy: str
    ) -> Stats:
        """Return the statistics of a batch, of all its parts where a named axis has them."""
        k = len(self.axis)
        if self.axis_name is not None:
            # All samples, not their parts' means: the Fréchet mean is no average of averages.
            x = all_gather(x, self.axis_name, axis=0, tiled=True)
            if weights is not None:
                weights = all_gather(weights, self.axis_name, axis=0, tiled=True)
        if math.prod(x.shape[:k]) < 2:
            raise ValueError(
                "GyroBN in training needs more than one sample a channel, got a batch of shape "
                f"{tuple(x.shape)}: use a larger batch, or {remedy}"
            )
        stats = batch_stats(
            manifold,
            x,
            weights,
            axis=tuple(range(k)),
            steps=self.steps,
            tol=self.tol,
            max_iter=self.max_iter,
            mean_gradient=self.mean_gradient,
        )
        if not backend_of(x).hides_values(stats.var) and not bool(jnp.isfinite(stats.var).all()):
            raise ValueError(
                f"GyroBN on {self.geometry!r} finds no variance of this batch: "
                f"{self._where(x)}; check the layer before it, its learning rate, and "
                "manifold.contains(x)"
            )
        return stats

    def _where(self, x: Array) -> str:
        """Tell what is wrong with a batch that has no variance."""
        points = tuple(range(x.ndim - len(self.geometry.point_shape), x.ndim))
        bad = jnp.argwhere(~jnp.isfinite(x).all(axis=points))
        if bad.shape[0] == 0:
            return "no sample is NaN or infinite, so points are off the manifold or too far out"
        return f"the first NaN or infinite sample is at index {tuple(map(int, bad[0]))}"

    def running(self, manifold: GyroSpace, stats: Stats) -> Stats:
        """Return the running statistics as they are at a learnt curvature."""
        if not self.learn_curvature:
            return stats
        return Stats(manifold.project(stats.mean), stats.var)  # points of some models move with it


def forward(
    settings: Settings,
    parameters: Parameters,
    stats: Stats,
    x: Array,
    weights: Array | None,
    training: bool,
    remedy: str,
) -> tuple[Array, Stats]:
    """Normalize a batch, with its own statistics in training and with the running ones otherwise.

    Parameters
    ----------
    settings, parameters, stats
        Of the layer; ``stats`` are the running statistics.
    x, weights
        The batch, and the weights of its samples.
    training
        Whether to use, and to learn, the statistics of the batch.
    remedy
        What to advise where training is asked of a single sample.

    Returns
    -------
    y, stats
        The normalized batch and the running statistics after it, in the dtype they had.
    """
    check_floating(x)
    learnt = [p for p in parameters if p is not None]
    # Half precision would leave the geometry three digits.
    dtype = jnp.promote_types(jnp.result_type(x, *learnt, *stats), jnp.float32)
    x, *held = jax.tree.map(lambda a: a.astype(dtype), (x, parameters, stats))
    bias, scale, raw = held[0]
    manifold = settings.manifold(raw)
    x, weights, undo = settings.arrange(x, weights)
    if training:
        used = settings.batch_stats(manifold, x, weights, remedy)
        constant = manifold.detached()
        new = update_stats(
            constant,
            settings.running(constant, stop_gradient(held[1])),
            stop_gradient(used),
            1.0 - settings.momentum,
        )
        stats = Stats(new.mean.astype(stats.mean.dtype), new.var.astype(stats.var.dtype))
    else:
        used = settings.running(manifold, held[1])
    beta = None if bias is None else manifold.from_normal(bias)
    s = 1.0 if scale is None else scale
    return undo(normalize(manifold, x, used, beta, s, settings.eps, settings.clamp)), stats
