"""GyroBN with separate statistics for each domain."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from gyrobn.backends.torch import all_sum, recomputing, recorded, traced, valueless
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import (
    UNSEEN,
    adapt_stats,
    average_stats,
    by_domain,
    padded,
    places_of,
)
from gyrobn.normalization.dtypes import common_dtype
from gyrobn.normalization.layers import (
    Batch,
    Learnt,
    apply,
    batch_stats,
    check_variance,
    prepare,
    update,
)
from gyrobn.normalization.normalize import Stats, update_stats
from gyrobn.normalization.online import OnlineStats, check_strength, online_stats
from gyrobn.numerics.checks import check_choice, check_integer, check_number
from gyrobn.statistics.samples import Group
from gyrobn.torch.graphs import Constant, no_autocast
from gyrobn.torch.layer import GyroBN
from gyrobn.torch.ranks import group_of


class DomainGyroBN(GyroBN):
    """GyroBN with statistics per domain (a subject, a session, a site), and one bias and scale.

    This is the idea of SPDDSMBN (Kobler et al., 2022) on every geometry: all domains get the same
    mean and variance.

    Parameters
    ----------
    manifold
        The geometry of the points.
    domains
        Number of domains.
    channels, **options
        As in :class:`GyroBN`; ``axis`` is 0.
    train_momentum
        If given, training normalizes with running statistics too, which move towards each batch by
        this fraction: a number, or a function of the number of batches of the domain so far (a
        schedule). ``momentum`` is the fraction for the statistics of evaluation.
    unseen
        What evaluation does with a domain that training did not see: ``"error"``, ``"refit"`` (use
        the statistics of its batch), ``"adapt"`` (take a fraction ``momentum`` of those, and the
        rest of the average of the known domains), or ``"online"``: take one sample after the other,
        each with the statistics of those up to itself, and go on in the next call. These statistics
        are constants for the gradient. They are in the dictionary ``online``, by domain, and not in
        ``state_dict()``; a batch of training and :meth:`reset_online` empty it.
    prior_strength
        For ``"online"``, the number of samples that the average of the known domains counts as:
        :func:`~gyrobn.normalization.online.online_stats` has the formulas.
    """

    def __init__(
        self,
        manifold: GyroSpace,
        domains: int,
        channels: int | Sequence[int] = (),
        *,
        train_momentum: float | Callable[[int], float] | None = None,
        unseen: str = "error",
        prior_strength: float = 4.0,
        **options: Any,
    ) -> None:
        check_choice("unseen", unseen, UNSEEN)
        domains = check_integer("domains", domains, 1)
        if train_momentum is not None and not callable(train_momentum):
            check_number("train_momentum", train_momentum, 0.0, 1.0)
        if options.get("axis", 0) not in (0, (0,)) or not options.get("track_running_stats", True):
            raise ValueError("DomainGyroBN needs axis=0 and running statistics")
        self._copies = (domains,)
        super().__init__(manifold, channels, **options)
        self.domains = domains
        self.train_momentum, self.unseen = train_momentum, unseen
        self.prior_strength = check_strength(prior_strength)
        self.online: dict[int, OnlineStats] = {}
        if train_momentum is not None:
            self.register_buffer("training_mean", self.running_mean.clone())
            self.register_buffer("training_var", self.running_var.clone())

    def forward(  # type: ignore[override]
        self, x: Tensor, domains: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Normalize each sample with the statistics of its domain.

        Parameters
        ----------
        x
            Points, shape ``(batch, *channels, *point_shape)``.
        domains
            Domain of each sample, integers from 0, shape ``(batch,)``.
        weights
            Weights of the samples, shape ``(batch,)`` or ``(batch, *channels)``.
        """
        # The computation depends on the values of the domains. An exported graph does without.
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            run = torch.compiler.disable(DomainGyroBN.forward)  # type: ignore[no-untyped-call]
            return run(self, x, domains, weights)  # type: ignore[no-any-return]
        with no_autocast(x, domains):
            if traced(domains) or traced(x):
                return self._by_sample(x, domains, weights)
            group = group_of(self.process_group, x) if self.training else None
            running = Stats(self.running_mean, self.running_var)
            try:
                places = self._places(x, domains, may_be_empty=group is not None)
                batch = prepare(self.settings, self._learnt, running, self._checked(x), weights)
            except (TypeError, ValueError) as error:
                if group is not None:  # the others wait for the number of samples per domain
                    all_sum(torch.full((self.domains,), torch.nan, device=x.device), group.ranks)
                    group.agree(error)
                raise
            if group is not None:
                stats = self._spread_stats(batch, places, group)
            elif self.training:
                found = {k: self._batch_stats(batch, k, at) for k, at in places.items()}
                stats = {k: self._learnt_from(batch.manifold, k, f) for k, f in found.items()}
            if self.training:
                self.online = {}  # what is known of new domains began with an older average
                pairs = [(at, stats[k]) for k, at in places.items()]
            else:
                pairs = self._evaluation_stats(batch, places)
            y = batch.x
            if pairs:
                y = by_domain(partial(apply, self.settings, batch), y, *zip(*pairs, strict=True))
            if group is not None:  # every rank takes part in the backward pass of every domain
                some = next(iter(stats.values()))
                y = y + 0.0 * (some.mean.sum() + some.var.sum())
            out: Tensor = batch.finish(y)
            return out

    def _by_sample(self, x: Tensor, domains: Tensor, weights: Tensor | None) -> Tensor:
        """Normalize each sample with running statistics that are looked up for it alone.

        This needs no values: ``torch.export`` can record it, and it finds shapes on ``meta``.
        """
        self._check_domains(x, domains)
        shapes_only = not torch.compiler.is_exporting() and valueless(x)
        if self.training and not shapes_only:
            raise RuntimeError(
                "DomainGyroBN in training needs the values of domains, which torch.export and vmap "
                "hide: call layer.eval() first"
            )
        given = self._given(x, weights) | {"domains": domains, "seen": self.num_batches_tracked}
        out: Tensor = recorded(_run_by_sample)(self._constant, given)
        return out

    def _check_domains(self, x: Tensor, domains: Tensor) -> None:
        if tuple(domains.shape) != tuple(x.shape[:1]):
            raise ValueError(
                f"domains must have the shape of the batch, {tuple(x.shape[:1])}, "
                f"got {tuple(domains.shape)}"
            )
        if domains.dtype not in _INTEGERS:
            raise TypeError(
                f"domains must be integers from 0 to {self.domains - 1}, got {domains.dtype}: "
                "convert them, for example with domains.long()"
            )

    def _places(self, x: Tensor, domains: Tensor, may_be_empty: bool) -> dict[int, Any]:
        """Return which samples each domain has."""
        self._check_domains(x, domains)
        if x.shape[0] == 0:
            if may_be_empty:
                return {}
            raise ValueError(f"an empty batch has no domains: x has shape {tuple(x.shape)}")
        places = places_of(domains.detach().cpu().numpy())
        low, high = min(places), max(places)
        if not 0 <= low <= high < self.domains:
            raise ValueError(f"domains must be from 0 to {self.domains - 1}, got {low} to {high}")
        return places

    def _spread_stats(self, batch: Batch, places: dict[int, Any], group: Group) -> dict[int, Stats]:
        """Return the statistics of the domains that some rank has, solved as channels of one batch.

        They learn from all samples, on every rank alike.
        """
        counts = torch.zeros(self.domains, device=batch.x.device)
        for k, place in places.items():
            counts[k] = len(place)
        counts = all_sum(counts, group.ranks)
        if bool(counts.isnan().any()):
            group.agree(None)
        present = torch.nonzero(counts).flatten().tolist()
        for k in torch.nonzero(counts == 1).flatten().tolist():
            self._refuse_one(k)
        found = batch_stats(self.settings, self._columns(batch, places, present), group)
        check_variance(self.settings, batch, found, group=group)
        each = {k: Stats(found.mean[j], found.var[j]) for j, k in enumerate(present)}
        return {k: self._learnt_from(batch.manifold, k, own) for k, own in each.items()}

    def _columns(self, batch: Batch, places: dict[int, Any], present: list[int]) -> Batch:
        """Return samples (most, domains, ...), padded with the identity, and their weights."""
        manifold, x, weights = batch.manifold, batch.x, batch.weights
        rows = torch.as_tensor(padded([places.get(k, ()) for k in present]), device=x.device)
        e = manifold.origin(x).expand(1, *x.shape[1:])
        channels = self.settings.channels
        if weights is None:
            weights = x.new_ones(x.shape[0])
        weights = weights.to(x.dtype)[(..., *(None,) * (len(channels) + 1 - weights.ndim))]
        weights = weights.expand(x.shape[0], *channels)
        nothing = weights.new_zeros((1, *channels))
        both = torch.cat([x, e])[rows], torch.cat([weights, nothing])[rows]  # −1 is the last
        return batch._replace(x=both[0], weights=both[1])

    def _refuse_one(self, k: int) -> None:
        """Raise for a domain with a single sample, which has no variance."""
        if self.training:
            online = ", where unseen='online' follows single samples" * (self.unseen == "online")
            raise ValueError(
                f"domain {k} has one sample in this batch, and training needs at least two of each "
                "domain: use larger batches, or a sampler that draws several samples per domain; "
                f"to evaluate, call layer.eval(){online}"
            )
        raise ValueError(
            f"domain {k} was not seen in training and has one sample in this batch, and "
            f"unseen={self.unseen!r} needs at least two: give more samples of it at once, or use "
            "unseen='online', which needs one"
        )

    def _batch_stats(self, batch: Batch, k: int, place: Any) -> Stats:
        if len(place) == 1:
            self._refuse_one(k)
        x, weights = batch.x[place], None if batch.weights is None else batch.weights[place]
        part = batch._replace(x=x, weights=weights, checked=x)
        stats = batch_stats(self.settings, part)
        check_variance(self.settings, part, stats, first=place)
        return stats

    def _learnt_from(self, manifold: GyroSpace, k: int, batch: Stats) -> Stats:
        """Learn from the statistics of a batch, and return those to normalize it with."""
        if recomputing():
            if self.train_momentum is None:
                return batch
            raise RuntimeError(
                "torch.utils.checkpoint calls a layer again in the backward pass, and with "
                "train_momentum the statistics it used are gone by then: leave the layer out of "
                "the checkpoint"
            )
        count = int(self.num_batches_tracked[k])
        rate = 1.0 / (count + 1) if self.momentum is None else self.momentum
        with torch.no_grad():
            new = update(self.settings, manifold, self._of("running", k), batch, rate)
            self._store("running", k, new)
        self.num_batches_tracked[k] += 1
        if self.train_momentum is None:
            return batch
        rate = self.train_momentum(count) if callable(self.train_momentum) else self.train_momentum
        moved = update_stats(manifold, self._of("training", k), batch, rate)
        self._store("training", k, Stats(moved.mean.detach(), moved.var.detach()))
        return moved

    def _evaluation_stats(self, whole: Batch, places: dict[int, Any]) -> list[tuple[Any, Stats]]:
        """Return indices of samples, and the statistics to normalize them with."""
        pairs, online = [], dict(self.online)
        for k, place in places.items():
            if int(self.num_batches_tracked[k]) > 0:
                pairs.append((place, self.settings.running(whole.manifold, self._of("running", k))))
            elif self.unseen == "online":
                states = self._online_stats(whole, k, place)
                pairs += [(place[i : i + 1], state.stats) for i, state in enumerate(states)]
                online[k] = states[-1]
            else:
                pairs.append((place, self._unseen_stats(whole, k, place)))
        self.online = online
        return pairs

    @torch.no_grad()
    def _online_stats(self, whole: Batch, k: int, place: Any) -> list[OnlineStats]:
        """Return the statistics of a new domain after each of its samples."""
        if whole.weights is not None:
            raise ValueError(
                f"domain {k} was not seen in training, and unseen='online' counts every sample "
                "once: leave out the weights, and samples that shall not count"
            )
        if recomputing():
            raise RuntimeError(
                "torch.utils.checkpoint calls a layer again in the backward pass, and "
                "unseen='online' would count its samples twice: leave the layer out of the "
                "checkpoint"
            )
        manifold, x = whole.manifold, whole.x[place].detach()
        start = self.online.get(k)
        if start is None:
            start = OnlineStats(0, *average_stats(manifold, self._known(manifold)))
        mean, var = (a.to(device=x.device, dtype=x.dtype) for a in start.stats)
        if mean.dtype != start.mean.dtype or self.settings.learn_curvature:
            mean = manifold.project(mean)
        states = online_stats(manifold, OnlineStats(start.count, mean, var), x, self.prior_strength)
        part = whole._replace(checked=x)
        check_variance(self.settings, part, states[-1].stats, first=place)
        return states

    def reset_online(self) -> Self:
        """Forget the new domains that ``unseen="online"`` has followed; each starts anew."""
        self.online = {}
        return self

    def _known(self, manifold: GyroSpace) -> Stats:
        """Return the statistics of all domains that were seen in training."""
        seen = self.num_batches_tracked > 0
        if not bool(seen.any()):
            raise ValueError("no domain was seen in training, so there is none to adapt to")
        return self.settings.running(
            manifold, Stats(self.running_mean[seen], self.running_var[seen])
        )

    def _unseen_stats(self, whole: Batch, k: int, place: Any) -> Stats:
        """Return the statistics of a new domain from its samples in this batch."""
        manifold = whole.manifold
        if self.unseen == "error":
            known = [i for i, n in enumerate(self.num_batches_tracked.tolist()) if n > 0]
            raise ValueError(
                f"domain {k} was not seen in training (seen: {known}): train on it, or give "
                "unseen='refit', 'adapt' or 'online'"
            )
        batch = self._batch_stats(whole, k, place)
        if self.unseen == "refit":
            return batch
        rate = 0.1 if self.momentum is None else self.momentum
        return adapt_stats(manifold, self._known(manifold), batch, rate)

    # ------------------------------------------------------------------ the estimator

    @classmethod
    def from_estimator(
        cls, bn: Any, *, device: Any = None, dtype: torch.dtype | None = None, **options: Any
    ) -> Self:
        """Return a layer that does in evaluation what a :class:`gyrobn.GyroBN` with domains does.

        Domain k of the layer is ``bn.domains_[k]``.

        Parameters
        ----------
        bn
            The estimator, fitted with domains.
        device, dtype, **options
            As in :meth:`GyroBN.from_estimator`; ``unseen`` and ``prior_strength`` are the
            estimator's by default, and ``momentum`` its ``adapt_rate``.
        """
        from gyrobn.estimator.conversion import fitted

        model = fitted(bn, domains=True)
        given = {"domains": len(bn.domains_), "unseen": model.unseen, "momentum": model.adapt_rate}
        given["prior_strength"] = model.prior_strength
        layer = cls._of_model(bn, model, device, dtype, given | options)
        if layer.train_momentum is not None:
            for k in range(layer.domains):
                layer._store("training", k, layer._of("running", k))
        return layer

    # ------------------------------------------------------------------ the buffers

    def reset_running_stats(self) -> None:
        """Forget the statistics of all domains, also those of ``train_momentum`` and ``online``."""
        super().reset_running_stats()
        self.online = {}
        if self.train_momentum is not None:
            for k in range(self.domains):
                self._store("training", k, self._of("running", k))

    def _of(self, kind: str, k: int) -> Stats:
        """Return copies, because a graph may hold them when the buffers change."""
        mean, var = (getattr(self, f"{kind}_{name}")[k].clone() for name in ("mean", "var"))
        dtype = common_dtype(var)
        return Stats(mean.to(dtype), var.to(dtype))

    def _store(self, kind: str, k: int, stats: Stats) -> None:
        getattr(self, f"{kind}_mean")[k] = stats.mean
        getattr(self, f"{kind}_var")[k] = stats.var


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _run_by_sample(constant: Constant, given: dict[str, Tensor]) -> Tensor:
    """Normalize each sample with the running statistics of its domain; NaN if there are none."""
    settings, x, domains = constant.settings, given["x"], given["domains"].long()
    learnt = Learnt(given.get("bias"), given.get("scale"), given.get("raw_curvature"))
    # not by brackets, where a negative number would count from the end
    mean, var, seen = (given[name].index_select(0, domains) for name in ("mean", "var", "seen"))
    batch = prepare(settings, learnt, Stats(mean, var), x, given.get("weights"))
    assert batch.running is not None
    stats = settings.running(batch.manifold, batch.running)
    y = apply(settings, batch, batch.x, stats)
    known = (seen > 0)[(..., *(None,) * (y.ndim - 1))]
    out: Tensor = batch.finish(torch.where(known, y, torch.nan))
    return out
