"""The layers for batches and sets of points, with the conventions of torch's own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gyrobn.backends import namespace_of
from gyrobn.backends import torch as backend
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.layers import (
    Learnt,
    LearntGeometry,
    Options,
    Settings,
    State,
    common_dtype,
    forward,
    grouped,
    initial,
    initial_state,
    is_half,
    separated,
)
from gyrobn.normalization.normalize import Stats
from gyrobn.numerics.arrays import check_floating, real_dtype
from gyrobn.numerics.checks import check_number
from gyrobn.statistics.points import plain_geometry
from gyrobn.statistics.samples import Group


class GeometryState(nn.Module):
    """A module on one geometry, whose curvature may be learnt.

    Its state dict holds the geometry, and refuses that of a layer on another one.
    """

    settings: LearntGeometry
    raw_curvature: nn.Parameter | None
    _owners: tuple[Any, ...] = ()
    """Curvatures that others own; in a tuple, because torch registers bare parameters."""

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        both = self.raw_curvature, self.shared_curvature
        # in half precision, points are in float32
        wide = (None if a is None else a.float() if is_half(a) else a for a in both)
        return self.settings.manifold(*wide)

    @property
    def shared_curvature(self) -> Tensor | None:
        """The values of the curvatures that others own, or None if there are none."""
        return torch.stack([_value(own) for own in self._owners]) if self._owners else None

    @property
    def _settings_now(self) -> Any:
        """The options, on a geometry with the curvatures that others own as they are now."""
        shared = self.shared_curvature
        if shared is None or shared.is_meta:
            return self.settings
        now = plain_geometry(self.settings.manifold(None, shared))
        return replace(self.settings, geometry=now)

    def reset_parameters(self) -> None:
        """Reset the curvature."""
        if self.raw_curvature is not None:
            with torch.no_grad():
                start = self.settings.initial_curvature
                self.raw_curvature.copy_(torch.tensor(start, device="cpu"))

    def get_extra_state(self) -> Tensor:
        """Return the geometry as part of the state: its JSON description, as bytes in a tensor.

        Whatever stores the tensors of a state can store it.
        """
        from gyrobn.estimator.conversion import geometry_text

        text = geometry_text(self._settings_now).encode()
        return torch.tensor(list(text), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: the geometry is fixed, and ``_load_from_state_dict`` has compared it."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        """Load a state of the same geometry, or one without a geometry."""
        from gyrobn.estimator.conversion import raw_shift

        key, name = f"{prefix}_extra_state", f"{prefix}raw_curvature"
        if key in state_dict:
            letters = state_dict[key].to(torch.uint8)  # a whole state may have been cast
            text, raw = bytes(letters.tolist()).decode(), state_dict.get(name)
            try:
                values = None if raw is None else raw.detach().reshape(-1).tolist()
                shift = raw_shift(self.settings, text, values)
            except ValueError as error:
                *_, error_messages = given
                error_messages.append(
                    f"{prefix.rstrip('.') or type(self).__name__}: {error}; to load the numbers "
                    f"all the same, delete {key!r} from the state"
                )
                return
            if raw is not None and shift:
                state_dict[name] = raw + raw.new_tensor(shift).reshape(raw.shape)
        else:
            state_dict[key] = self.get_extra_state()
        super()._load_from_state_dict(state_dict, prefix, *given)


class Curvature(nn.Module):
    r"""A learnable curvature that several layers share: :math:`K = K_0 e^r`, which keeps its sign.

    Give it to geometries in place of a number. Layers on them take its current value and do not
    register it: it is a part of the network if the network holds it, and has one entry in the state
    dict.

    Parameters
    ----------
    initial
        :math:`K_0`, negative or positive.
    device, dtype
        Of the parameter.

    Attributes
    ----------
    raw : Parameter of shape ()
        r; it starts at zero.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall
    >>> from gyrobn.torch import Curvature, GyroBN
    >>> from gyrobn.torch.nn import GyroLinear
    >>> K = Curvature(-1.0)
    >>> M = PoincareBall(4, curvature=K)
    >>> net = torch.nn.Module()
    >>> net.K, net.layers = K, torch.nn.Sequential(GyroLinear(M, M), GyroBN(M))
    >>> [name for name, _ in net.named_parameters() if "layers.0" not in name]
    ['K.raw', 'layers.1.bias', 'layers.1.scale']
    """

    def __init__(
        self, initial: float = -1.0, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.initial = check_number("the initial curvature", initial)
        if self.initial == 0.0:
            raise ValueError("the initial curvature must not be 0: its sign is that of all others")
        self.raw = nn.Parameter(torch.zeros((), device=device, dtype=dtype))

    def forward(self) -> Tensor:
        """Return K."""
        raw = self.raw.float() if is_half(self.raw) else self.raw
        return self.initial * raw.exp()

    def extra_repr(self) -> str:
        """Return the initial curvature."""
        return f"initial={self.initial}"


def _value(owner: Any) -> Tensor:
    """Return the value of a curvature: a tensor with one element, or a module that returns one."""
    value = owner() if isinstance(owner, nn.Module) else owner
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            "the curvature of a layer must be a number (with learn_curvature=True to learn it), a "
            f"tensor with one element, or a module that returns one, got {owner!r}"
        )
    return value.reshape(())


def initial_value(owner: Any) -> float:
    """Return the value of a curvature when a layer is made, also on ``meta``."""
    if isinstance(owner, Curvature):
        return owner.initial
    return float(_value(owner).detach())


def current(manifold: GyroSpace) -> GyroSpace:
    """Return a geometry with the values of modules in their place."""
    values = (_value(v) if isinstance(v, nn.Module) else v for v in manifold.learnable())
    return manifold.with_learnable([*values])


class LayerOptions(Options, total=False):
    """The options of every layer of torch."""

    device: Any
    dtype: torch.dtype | None


class NormalizationLayer(GeometryState):
    """A layer with a learnable bias, scale and curvature; running statistics are in buffers."""

    settings: Settings
    bias: nn.Parameter | None
    scale: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    training_mean: Tensor
    training_var: Tensor
    reference: Tensor | None
    num_batches_tracked: Tensor
    process_group: Any = None

    def __init__(
        self,
        manifold: GyroSpace,
        own: dict[str, Any],
        momentum: float | None = None,
        track_running_stats: bool = False,
        /,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        if momentum is not None:
            check_number("momentum, the fraction of a new batch,", momentum, 0.0, 1.0)
        geometry, shared, owners = separated(manifold, initial_value)
        self._owners = tuple(owners)
        own = own | shared
        self.settings = Settings.of(type(self).__name__, geometry, options, eps=eps, **own)
        self._constant = Constant(self.settings)
        self.momentum, self.affine = momentum, affine
        self.track_running_stats = track_running_stats
        like = torch.empty((), device=device, dtype=dtype)
        learnt, stats = initial(self.settings, like, affine, affine)
        self.bias, self.scale, self.raw_curvature = (
            None if value is None else nn.Parameter(value) for value in learnt[:3]
        )
        state = initial_state(self.settings, stats, options.get("reference"), track_running_stats)
        buffers: dict[str, Tensor | None] = {**arrays_of(state)}
        if track_running_stats:
            buffers["num_batches_tracked"] = torch.zeros((), dtype=torch.long, device=device)
        # torch.export (2.13) miscounts buffers after one that is None: these are the last
        buffers |= {k: None for k in (*_STATE, "num_batches_tracked") if k not in buffers}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)
        self._needs_reference = self.settings.reference == "first_batch"

    @property
    def train_momentum(self) -> float | Callable[[int], float] | None:
        """The fraction of a batch in the statistics that training normalizes with."""
        return self.settings.train_momentum

    @property
    def check_input(self) -> str | bool:
        """Which batches to check for samples off the manifold: ``"first"``, True or False."""
        return self.settings.check_input

    @check_input.setter
    def check_input(self, value: str | bool) -> None:
        self.settings = self.settings.checking(value)
        self._constant = Constant(self.settings)

    # ------------------------------------------------------------------ the call

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Normalize a batch, or every set of it.

        Parameters
        ----------
        x
            Points, shape ``(batch, *channels, *point_shape)``. In layers of sets, axes of positions
            may follow the channels.
        weights
            Weights of the samples in the statistics of the batch, as in :func:`gyrobn.frechet`.
            In layers of sets, weights of the points in the statistics of their set, or a mask of
            booleans: an array of the shape of the points, ``(batch, *channels, *positions)``, in
            which axes may have length one. A point without weight is normalized with its set;
            padding that is no point, such as NaN, is returned as it came, and so is a set without
            weight.
        """
        sync = self.process_group is not None and self.training
        if sync and torch.compiler.is_dynamo_compiling():  # it runs between two graphs
            run = torch.compiler.disable(NormalizationLayer.forward)  # type: ignore[no-untyped-call]
            return run(self, x, weights)  # type: ignore[no-any-return]
        with no_autocast(x):
            group = group_of(self.process_group, x) if self.training else None
            rest = () if group is None else (group,)  # the compiler takes plain values only
            given = self._given(x, weights), self._rate, self.training
            more = self._train_rate(), self._needs_reference
            y, *new = backend.recorded(self._run)(self._constant, *given, *more, *rest)
            if new and self.training and not backend.recomputing():
                names = [name for name in _STATE if self._buffers.get(name) is not None]
                for name, value in zip(names, new, strict=True):
                    if name == "reference" and not self._needs_reference:
                        continue
                    # torch.compile (2.13) loses what is written into a float64 buffer without axes
                    # on a CPU, but not what is written into a view of it.
                    getattr(self, name).detach().copy_(value)
                if self.track_running_stats:
                    self.num_batches_tracked += 1
                self._needs_reference = False
        out: Tensor = y
        return out

    @staticmethod
    def _run(
        constant: "Constant",
        given: dict[str, Tensor],
        rate: Any,
        training: bool,
        train_rate: Any,
        first: bool,
        group: Group | None = None,
    ) -> tuple[Tensor, ...]:
        """Call :func:`gyrobn.normalization.layers.forward` with tensors only, for the compiler."""
        rest: Any = (rate, training, group, train_rate, first)
        y, new = forward(constant.settings, *of_arrays(given), *rest)
        return (y, *arrays_of(new).values())

    def _train_rate(self) -> float:
        """Return the fraction of the next batch in the statistics for training."""
        rate = self.train_momentum
        self._check_recomputing()
        if callable(rate):
            return rate(int(self.num_batches_tracked)) if self.training else 0.0
        return rate or 0.0

    def _check_recomputing(self) -> None:
        if self.train_momentum is not None and self.training and backend.recomputing():
            raise RuntimeError(
                "torch.utils.checkpoint calls a layer again in the backward pass, and with "
                "train_momentum the statistics it used are gone by then: leave the layer out "
                "of the checkpoint"
            )

    @property
    def _rate(self) -> Any:
        """The fraction of the next batch in the running statistics."""
        if self.momentum is None and self.track_running_stats:
            return 1.0 / (self.num_batches_tracked + 1).to(self.running_var.dtype)
        return 0.0 if self.momentum is None else self.momentum

    def _given(self, x: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Return the arrays of a call by name; refuse float64 mixed with other dtypes."""
        if self.settings.geometry.complex_points or x.dtype not in _REAL:
            check_floating(x, half=True, complex_points=self.settings.geometry.complex_points)
        arrays = self.scale, self.bias, self._buffers.get("running_var"), self.reference
        own = next((a for a in arrays if a is not None), None)
        # Not by common_dtype: it looks into a table that grows while a graph is made. The compiler
        # would guard the table, and compile the same batch once more.
        dtype = real_dtype(x)
        if own is not None and (dtype == torch.float64) != (real_dtype(own) == torch.float64):
            raise TypeError(
                f"{type(self).__name__} holds {own.dtype}, got input of {x.dtype}: convert the "
                f"layer, for example with layer.to({dtype}), or the input"
            )
        state = {name: self._buffers.get(name) for name in _STATE}
        if self.training:  # the backward pass needs them as they are before they learn
            copied = {name: state[name] for name in ("training_mean", "training_var")}
            state |= {name: a if a is None else a.clone() for name, a in copied.items()}
        given = {name: getattr(self, name) for name in Learnt._fields} | state
        given |= {"x": x, "weights": weights}
        return {name: a for name, a in given.items() if a is not None}

    # ------------------------------------------------------------------ torch's conventions

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert the layer, as ``half`` and ``to`` do, but keep the statistics in float32.

        Complex means are converted as two real numbers: torch would drop the imaginary part.
        """
        mean = self.running_mean
        pairs = mean is not None and mean.is_complex()
        if pairs:
            self.running_mean = torch.view_as_real(mean)
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, new in self._buffers.items():
            old = before[name]
            if old is not None and new is not None and new.is_floating_point() and is_half(new):
                self._buffers[name] = old.to(new.device, common_dtype(new))
        if pairs:
            self.running_mean = torch.view_as_complex(self.running_mean)
        return self

    def reset_running_stats(self) -> None:
        """Reset the running statistics: the mean is the identity, the variance one."""
        if self.track_running_stats:
            self.running_mean.copy_(self.settings.geometry.origin(self.running_mean))
            self.running_var.fill_(1.0)
            self.num_batches_tracked.zero_()
            if self.train_momentum is not None:
                self.training_mean.copy_(self.running_mean)
                self.training_var.copy_(self.running_var)

    def reset_parameters(self) -> None:
        """Reset the parameters, the running statistics, and the reference of the first batch."""
        self.reset_running_stats()
        super().reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.scale is not None and self.settings.scale is not None:
            nn.init.constant_(self.scale, self.settings.scale)
        if self.reference is not None and self.settings.reference == "first_batch":
            self.reference.fill_(torch.nan)
            self._needs_reference = True

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        """Load a state; what one of an older layer has not got stays as it is."""
        for name in ("training_mean", "training_var", "reference"):
            own = self._buffers.get(name)
            if own is not None:
                running = state_dict.get(prefix + name.replace("training", "running"), own)
                state_dict.setdefault(prefix + name, running)
        super()._load_from_state_dict(state_dict, prefix, *given)
        r = self.reference
        if r is not None and self.settings.reference == "first_batch" and not r.is_meta:
            self._needs_reference = bool(r.isnan().any())

    def parameter_groups(self, **scale_options: Any) -> list[dict[str, Any]]:
        """Return groups for an optimizer, the scale in one of its own with ``scale_options``.

        >>> import torch
        >>> from gyrobn import PoincareBall
        >>> from gyrobn.torch import GyroBN
        >>> layer = GyroBN(PoincareBall(4))
        >>> optimizer = torch.optim.SGD(layer.parameter_groups(lr=1e-3), lr=1e-2)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.001]
        """
        others = [p for name, p in self.named_parameters() if name != "scale"]
        scales = [] if self.scale is None else [self.scale]
        return [{"params": others}, {"params": scales, **scale_options}]

    def extra_repr(self) -> str:
        """Return the options that are not the default."""
        usual = {"momentum": 0.1, "affine": True, "track_running_stats": not self.settings.sets}
        more = {name: getattr(self, name) for name in usual}
        if not self.track_running_stats:
            del more["momentum"]
        text: str = self._settings_now.shown(**{k: v for k, v in more.items() if v != usual[k]})
        return text


_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def no_autocast(x: Any, *others: Any) -> Any:
    """Return a context without autocast on the device of x; refuse what is not a tensor."""
    for value in (x, *others):
        if not isinstance(value, Tensor):
            namespace_of(value)  # raises if the value is no array of a known library
            raise TypeError(
                f"a layer of gyrobn.torch takes torch tensors, got {type(value).__name__}: convert "
                "it first, for example with torch.as_tensor"
            )
    return backend.no_autocast(x)


class Constant:
    """Settings in a form that torch.compile accepts: it fails on frozen dataclasses (2.13)."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Any = settings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.settings == other.settings

    def __hash__(self) -> int:
        return hash(self.settings)


backend.register_constant(Constant)


_STATE = "running_mean", "running_var", "training_mean", "training_var", "reference"
"""The buffers of a layer, in the order of :class:`State`."""


def arrays_of(state: State) -> dict[str, Tensor]:
    """Return the arrays of a state by name, without those it has not got."""
    both = ((None, None) if stats is None else stats for stats in state[:2])
    arrays = zip(_STATE, (*(a for stats in both for a in stats), state.reference), strict=True)
    return {name: a for name, a in arrays if a is not None}


def of_arrays(given: dict[str, Tensor]) -> tuple[Learnt, State, Tensor, Tensor | None]:
    """Return the arguments of :func:`gyrobn.normalization.layers.forward` after the settings."""
    learnt = Learnt(*map(given.get, Learnt._fields))
    both = [
        Stats(given[f"{kind}_mean"], given[f"{kind}_var"]) if f"{kind}_mean" in given else None
        for kind in ("running", "training")
    ]
    running, training = both
    state = State(running, training, given.get("reference"))
    return learnt, state, given["x"], given.get("weights")


# Look up the namespace now: torch.compile cannot trace the lookup, and a layer may be compiled
# before its first call.
namespace_of(torch.empty(0), nn.Parameter(torch.empty(0)))


# ---------------------------------------------------------------------- batches

WORLD = "world"
"""All processes, whenever they are asked for: a layer may be built before they are connected."""


def group_of(process_group: Any, like: Tensor) -> Group | None:
    """Return the ranks to sum over; None for a single process, as ``nn.SyncBatchNorm`` does it."""
    if process_group is None or not dist.is_available() or not dist.is_initialized():
        return None
    ranks: Any = dist.group.WORLD if process_group == WORLD else process_group
    if dist.get_world_size(ranks) == 1:
        return None

    def agree(error: Exception | None) -> None:
        own = dist.get_rank()  # errors name a rank by its number among all processes
        flags = torch.zeros(dist.get_world_size(ranks), device=like.device)
        flags[dist.get_rank(ranks)] = float(error is not None)
        dist.all_reduce(flags, group=ranks)
        bad = [k for k, flag in enumerate(flags.tolist()) if flag]
        if error is not None:
            raise type(error)(f"on rank {own}: {error}") from error
        if bad:
            names = ", ".join(str(dist.get_global_rank(ranks, k)) for k in bad)
            raise RuntimeError(
                f"GyroBN has no statistics of this batch, because of rank{'s' * (len(bad) > 1)} "
                f"{names}: see the error there (this is rank {own})"
            )

    return Group(ranks, agree)


class GyroBN(NormalizationLayer):
    r"""Riemannian batch normalization.

    .. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
              (\ominus\mu \oplus x_i)\Bigr)

    In training :math:`\mu` and :math:`v^2` are the Fréchet mean and variance of the batch; in
    evaluation they are the running ones. The bias is :math:`\beta = \operatorname{Exp}_e(b)` with
    an unconstrained parameter b of ``manifold.dim`` numbers per channel, so any optimizer works.

    Parameters
    ----------
    manifold
        The geometry of the points. A curvature may also be a tensor or a :class:`Curvature` that
        others own: the layer takes its current value, and does not register it.
    channels
        Shape of the channels, which are normalized separately: the input has shape ``(batch,
        *channels, *point_shape)``.
    eps
        Added to the variance.
    momentum
        Fraction of a new batch in the running statistics; None for the average of all batches.
    affine
        Whether bias and scale are learnt.
    track_running_stats
        Whether to keep running statistics. Without them, evaluation uses those of the batch.
        ``torch.optim.swa_utils.update_bn`` skips this layer: after averaging weights, use
        :func:`gyrobn.torch.update_bn`.
    axis
        The batch axis, or axes; the other leading axes are the channels.
    process_group
        Processes of ``torch.distributed`` that share a training batch: the statistics are those of
        the whole batch, on every backend, gloo on a CPU included. ``"world"`` stands for all
        processes. None, the default, uses the samples of each process alone.
        :meth:`convert_sync` sets it in a whole network.
    device, dtype
        Of the parameters and running statistics. The statistics are in float32 at least, also after
        ``layer.half()``. Input in half precision is computed in float32 and rounded back.
    mean_gradient
        ``"implicit"`` (default) for the exact derivative of the mean, ``"detach"`` to take the mean
        as a constant.
    steps
        Number of Newton steps for the mean; until convergence by default. With 0 the mean is the
        centroid, in one pass over the batch; :func:`gyrobn.frechet` has a bound of its error.
    learn_curvature
        Whether the curvature is a parameter. It keeps its sign; on ``Stereographic`` it is free.
        A product learns one for each factor that has one.
    clamp
        Largest size of the factor :math:`s/\sqrt{v^2+\epsilon}`, if any.
    scale
        The initial scale, 1 by default. None to centre only: no division by the standard deviation,
        and no scale to learn.
    reference
        Where the geometry is seen from: a point of shape ``(*channels, *point_shape)`` or
        ``point_shape`` in place of the identity, or ``"first_batch"`` for the mean of the first
        training batch. It is a buffer, and saved. The bias is counted from there: as long as b is
        0, the mean of the output is the reference. Use it for data whose mean is close to the cut
        locus of the identity (a warning says so); :func:`gyrobn.normalize` has the formula.
    train_momentum
        If given, training normalizes with running statistics too, which move towards each batch by
        this fraction: a number, or a function of the number of batches so far (a schedule, which
        ``torch.compile`` calls between two graphs). ``momentum`` is the fraction for the statistics
        of evaluation.
    tol, max_iter
        As in :func:`gyrobn.frechet`.
    check_input
        True (default) to check every batch, in training and evaluation, for samples that are not on
        the manifold, and raise ValueError; ``"first"`` to check the first batch only, False for
        none. The first batch is also checked for a second mean, with a warning, unless it is False.
        In compiled and vectorized functions (``torch.compile``, ``vmap``) no error can be raised:
        with True, the output of a sample that is not on the manifold is NaN, and the others do not
        depend on it. It can be set later.

    Attributes
    ----------
    bias : Parameter of shape (*channels, dim), or None
        Normal coordinates b of the bias.
    scale : Parameter of shape (*channels,), or (*channels, blocks), or None
        Standard deviation s of the output.
    raw_curvature : Parameter, or None
        See :attr:`manifold`.
    running_mean, running_var, num_batches_tracked
        Buffers: the running statistics, and the number of batches in them.
    training_mean, training_var : Buffers, with ``train_momentum``
        The statistics that training normalizes with.
    reference : Buffer of shape (*channels, *point_shape), or None
        The point from which the geometry is seen; NaN before the first batch.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(4)
    >>> x = M.random(32, 3, rng=0, like=torch.zeros(1), spread=0.5)
    >>> layer = GyroBN(M, channels=3)
    >>> y = layer(x)
    >>> y.shape, bool((frechet(M, y).variance - 1.0).abs().max() < 1e-3)
    (torch.Size([32, 3, 4]), True)
    >>> sum(p.numel() for p in layer.parameters())  # 3 × (4 + 1)
    15
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int] = (),
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        axis: int | Sequence[int] = 0,
        process_group: Any = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        own = {"channels": channels, "axis": axis}
        super().__init__(manifold, own, momentum, track_running_stats, eps, affine, **options)
        self.process_group = process_group

    @classmethod
    def convert_sync(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Let all GyroBN layers of a network use the statistics of the batch on all processes.

        As ``nn.SyncBatchNorm.convert_sync_batchnorm`` does for torch's own layers: it recurses, and
        keeps parameters, buffers and mode. The layers are changed in place and synchronise in
        training only.

        Parameters
        ----------
        module
            A network, or a layer.
        process_group
            The processes; all of them by default.

        Examples
        --------
        >>> import torch
        >>> from gyrobn import PoincareBall
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), GyroBN(PoincareBall(4)))
        >>> GyroBN.convert_sync(net)[1].process_group
        'world'
        """
        for layer in module.modules():
            if isinstance(layer, GyroBN):
                layer.process_group = WORLD if process_group is None else process_group
        return module

    @classmethod
    def from_estimator(
        cls, bn: Any, *, device: Any = None, dtype: torch.dtype | None = None, **options: Any
    ) -> Self:
        """Return a layer that does in evaluation what a fitted :class:`gyrobn.GyroBN` does.

        Its statistics count as those of one batch (``num_batches_tracked``).

        Parameters
        ----------
        bn
            The estimator, fitted without domains.
        device, dtype
            Of the layer; by default those of the statistics if they are tensors, else torch's
            device and the dtype of the statistics.
        **options
            Other arguments of the layer; eps, tol and max_iter are the estimator's by default.

        Examples
        --------
        >>> import gyrobn
        >>> M = gyrobn.SPD(3)
        >>> bn = gyrobn.GyroBN(M).fit(M.random(20, rng=0))
        >>> layer = GyroBN.from_estimator(bn, momentum=0.01).eval()
        >>> x = M.random(5, rng=1)
        >>> y = layer(torch.as_tensor(x))
        >>> bool(abs(y.detach().numpy() - bn.transform(x)).max() < 1e-12)
        True
        """
        from gyrobn.estimator.conversion import fitted

        return cls._of_model(bn, fitted(bn), device, dtype, options)

    @classmethod
    def _of_model(cls, bn: Any, model: Any, device: Any, dtype: Any, more: Any) -> Self:
        """Return a layer with the parameters and statistics of an estimator, ``model`` in NumPy."""
        from gyrobn.estimator.conversion import values_for
        from gyrobn.estimator.validation import channels_of

        if device is None and isinstance(bn.mean_, Tensor):
            device = bn.mean_.device
        dtype = dtype or getattr(torch, model.var_.dtype.name)
        options: dict[str, Any] = {"eps": model.eps, "tol": model.tol, "max_iter": model.max_iter}
        options["reference"] = model.reference_
        options |= {"scale": None} if model.scale is None else {}
        options |= {"device": device, "dtype": dtype, **more}
        layer = cls(model.manifold_, channels=channels_of(model), **options)
        wide = np.float64 if dtype == torch.float64 else np.float32
        has = layer.bias is not None, layer.scale is not None, layer.track_running_stats
        learnt, stats = values_for(layer.settings, model, *has, wide)
        own = layer.bias, layer.scale, layer.running_mean, layer.running_var
        with torch.no_grad():
            for array, value in zip(own, (*learnt[:2], *stats), strict=True):
                if array is not None and value is not None:
                    array.copy_(torch.tensor(value, device="cpu"))
            if layer.train_momentum is not None:
                layer.training_mean.copy_(layer.running_mean)
                layer.training_var.copy_(layer.running_var)
            layer.num_batches_tracked.fill_(1)
        return layer


# ---------------------------------------------------------------------- sets


class _AxisNorm(NormalizationLayer):
    """A layer whose sets are given by their axes, with one bias and scale for all of them."""

    _centre: ClassVar[bool] = True

    def __init__(
        self,
        manifold: GyroSpace,
        axis: int | Sequence[int] | None = None,
        eps: float = 1e-5,
        affine: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        own = {"sets": True, "axis": axis, "centre": self._centre}
        super().__init__(manifold, own, None, False, eps, affine, **options)


class GyroLayerNorm(_AxisNorm):
    r"""Riemannian layer normalization: all points of a sample are one set.

    .. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
              (\ominus\mu \oplus x_i)\Bigr)

    with the Fréchet mean :math:`\mu` and variance :math:`v^2` of the set that :math:`x_i`
    belongs to. Every set of the output has the mean :math:`\beta = \operatorname{Exp}_e(b)` and the
    variance :math:`s^2 v^2/(v^2 + \epsilon)`. A set of a single point moves to :math:`\beta`.
    Training and evaluation are the same, without running statistics: a set never needs the rest of
    the batch.

    Parameters
    ----------
    manifold
        The geometry of the points. A curvature may also be a tensor or a :class:`Curvature` that
        others own: the layer takes its current value, and does not register it.
    axis
        The axis of a set, or axes, among those in front of a point; negative ones count from the
        point. By default all but the first: one set per sample. On ``(batch, tokens, heads,
        *point_shape)``, ``axis=-1`` normalizes the heads of each token.
    eps
        Added to the variance.
    affine
        Whether bias and scale are learnt, one of each for all sets.
    device, dtype
        Of the parameters. Input in half precision is computed in float32 and rounded back.
    mean_gradient, steps, learn_curvature, clamp, scale, tol, max_iter, check_input
        As in :class:`GyroBN`.

    Attributes
    ----------
    bias : Parameter of shape (dim,), or None
        Normal coordinates b of the bias.
    scale : Parameter of shape () or (blocks,), or None
        Standard deviation s of a set.
    raw_curvature : Parameter, or None
        See :attr:`manifold`.

    Examples
    --------
    A batch of two sequences of four tokens, of which the second has one token of padding:

    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(3)
    >>> x = M.random(2, 4, rng=0, like=torch.zeros(1), spread=0.5)
    >>> mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    >>> y = GyroLayerNorm(M)(x, mask)
    >>> found = frechet(M, y, mask, axis=1)
    >>> bool(found.mean.abs().max() < 1e-5), found.variance.round(decimals=3).tolist()
    (True, [1.0, 1.0])
    """


class GyroRMSNorm(_AxisNorm):
    r"""Riemannian root mean square normalization: sets are scaled from the identity, not centred.

    .. math:: \tilde x_i = \beta \oplus
              \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot x_i\Bigr), \qquad
              v^2 = \sum_j w_j\, d^2(e, x_j)

    with the mean over the set that :math:`x_i` belongs to. The points of a set keep their
    directions from the identity and the ratios of their distances. In the output the mean square of
    the distances from :math:`\beta = \operatorname{Exp}_e(b)` is
    :math:`s^2 v^2/(v^2 + \epsilon)`, per block. There is no mean to search, so this is the fastest
    normalization, and the one for sets of a single point. Training and evaluation are the same.

    Parameters
    ----------
    manifold, affine, device, dtype
        As in :class:`GyroLayerNorm`.
    axis
        As in :class:`GyroLayerNorm`; ``axis=()`` scales every point by itself, to distance s.
    eps
        Added to the mean square of the distances.
    learn_curvature, clamp, check_input
        As in :class:`GyroBN`.

    Attributes
    ----------
    bias, raw_curvature
        As in :class:`GyroLayerNorm`.
    scale : Parameter of shape () or (blocks,), or None
        Root mean square distance s of a set from the bias.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall
    >>> M = PoincareBall(2)
    >>> y = GyroRMSNorm(M)(M.random(3, rng=0, like=torch.zeros(1)))
    >>> M.norm(y).round(decimals=3).tolist()
    [1.0, 1.0, 1.0]
    """

    _centre = False


class GyroInstanceNorm(NormalizationLayer):
    r"""Riemannian instance normalization: the points of one channel of a sample are one set.

    The formula is that of :class:`GyroLayerNorm`. By default training and evaluation are the same,
    and a set never needs the rest of the batch. With ``track_running_stats`` evaluation takes
    :math:`\mu` and :math:`v^2` from running statistics, one of each per channel. In training each
    set still has its own. The running ones move towards the average set of the batch, with the
    Fréchet mean of the means and the mean of the variances, as in :func:`gyrobn.update_stats`. Sets
    without weight do not count. If a batch lies on several processes, each learns from its own
    samples.

    Parameters
    ----------
    manifold
        The geometry of the points. A curvature may also be a tensor or a :class:`Curvature` that
        others own: the layer takes its current value, and does not register it.
    channels
        Shape of the channels: the input has shape ``(batch, *channels, *positions,
        *point_shape)``, with at least one axis of positions.
    eps
        Added to the variance.
    affine
        Whether bias and scale are learnt, one of each per channel.
    momentum
        Fraction of a new batch in the running statistics; None for the average of all batches.
    track_running_stats
        Whether to keep running statistics, and to use them in evaluation.
    device, dtype
        Of the parameters. Input in half precision is computed in float32 and rounded back.
    mean_gradient, steps, learn_curvature, clamp, scale, tol, max_iter, check_input
        As in :class:`GyroBN`.

    Attributes
    ----------
    bias, scale, raw_curvature
        As in :class:`GyroBN`.
    running_mean, running_var, num_batches_tracked
        Buffers: the running statistics, and the number of batches in them; None without.

    Examples
    --------
    Images with 3 channels of 5 × 5 points:

    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(2)
    >>> x = M.random(2, 3, 5, 5, rng=0, like=torch.zeros(1), spread=0.5)
    >>> y = GyroInstanceNorm(M, 3)(x)
    >>> bool((frechet(M, y, axis=(2, 3)).variance - 1.0).abs().max() < 1e-3)
    True
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int],
        eps: float = 1e-5,
        affine: bool = True,
        *,
        momentum: float | None = 0.1,
        track_running_stats: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        own = {"sets": True, "axis": None, "channels": channels}
        super().__init__(manifold, own, momentum, track_running_stats, eps, affine, **options)


class GyroGroupNorm(NormalizationLayer):
    r"""Riemannian group normalization: the points of a group of channels are one set.

    The formula is that of :class:`GyroLayerNorm`. Training and evaluation are the same, without
    running statistics.

    Parameters
    ----------
    manifold
        The geometry of the points. A curvature may also be a tensor or a :class:`Curvature` that
        others own: the layer takes its current value, and does not register it.
    groups
        Number of groups of consecutive channels, of equal size.
    channels
        Number of channels: the input has shape ``(batch, channels, *positions, *point_shape)``.
    eps
        Added to the variance.
    affine
        Whether bias and scale are learnt, one of each per group. (Group normalization of vectors
        has one per channel, but then the mean and variance of a group do not follow from its
        parameters.)
    device, dtype
        Of the parameters. Input in half precision is computed in float32 and rounded back.
    mean_gradient, steps, learn_curvature, clamp, scale, tol, max_iter, check_input
        As in :class:`GyroBN`.

    Attributes
    ----------
    bias : Parameter of shape (groups, dim), or None
        Normal coordinates b of the bias.
    scale : Parameter of shape (groups,), or (groups, blocks), or None
        Standard deviation s of a set.
    raw_curvature : Parameter, or None
        See :attr:`manifold`.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall, frechet
    >>> M = PoincareBall(2)
    >>> x = M.random(2, 6, 5, rng=0, like=torch.zeros(1), spread=0.5)
    >>> y = GyroGroupNorm(M, 3, 6)(x).reshape(2, 3, 2 * 5, 2)
    >>> bool((frechet(M, y, axis=2).variance - 1.0).abs().max() < 1e-3)
    True
    """

    def __init__(
        self,
        manifold: GyroSpace,
        groups: int,
        channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        own = grouped(groups, channels)
        super().__init__(manifold, own, None, False, eps, affine, **options)
