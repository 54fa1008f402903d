"""GyroBN with separate statistics for each domain."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from gyrobn.backends.torch import all_sum, recomputing, recorded, traced, valueless
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import (
    UNSEEN,
    average_stats,
    by_domain,
    check_labels,
    check_range,
    domain_stats,
    not_seen,
    one_sample,
    places_of,
)
from gyrobn.normalization.layers import (
    Batch,
    apply,
    check_variance,
    first_reference,
    learn,
    prepare,
    search_options,
)
from gyrobn.normalization.normalize import Stats, update_stats
from gyrobn.normalization.online import OnlineStats, check_strength, online_stats
from gyrobn.numerics.checks import check_choice, check_integer
from gyrobn.statistics.samples import Group
from gyrobn.torch.layers import Constant, GyroBN, group_of, no_autocast, of_arrays


class DomainGyroBN(GyroBN):
    """GyroBN with statistics per domain (a subject, a session, a site), and one scale.

    This is the idea of SPDDSMBN (Kobler et al., 2022) on every geometry: all domains get the same
    mean and variance. The bias is one for all domains, or one per domain.

    Parameters
    ----------
    manifold
        The geometry of the points.
    domains
        Number of domains.
    channels, **options
        As in :class:`GyroBN`; ``axis`` is 0. A schedule of ``train_momentum`` is a function of the
        number of batches of the domain. There is one reference for all domains: ``"first_batch"``
        is the average of the means in the first training batch.
    unseen
        What evaluation does with a domain that training did not see: ``"error"``, ``"refit"`` (use
        the statistics of its batch), ``"adapt"`` (take a fraction ``momentum`` of those, and the
        rest of the average of the known domains), or ``"online"``: take one sample after the other,
        each with the statistics of those up to itself, and go on in the next call. These statistics
        are constants for the gradient. They are in the dictionary ``online``, by domain, and not in
        ``state_dict()``; a batch of training and :meth:`reset_online` empty it.
    domain_bias
        Whether each domain has a bias of its own: ``bias`` then has the shape ``(domains,
        *channels, dim)``. Equal means are the wrong goal if the classes of a domain have other
        frequencies than elsewhere; a bias of that domain, fitted without labels while all else is
        frozen, corrects it (SPDIM; Li et al., 2025). A state with one bias for all loads, too.
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
        unseen: str = "error",
        prior_strength: float = 4.0,
        domain_bias: bool = False,
        **options: Any,
    ) -> None:
        check_choice("unseen", unseen, UNSEEN)
        domains = check_integer("domains", domains, 1)
        if options.get("axis", 0) not in (0, (0,)) or not options.get("track_running_stats", True):
            raise ValueError("DomainGyroBN needs axis=0 and running statistics")
        super().__init__(manifold, channels, **options)
        for name, value in dict(self.named_buffers()).items():  # one row per domain
            if name != "reference":
                self.register_buffer(name, value.expand(domains, *value.shape).clone())
        self.domains, self.unseen, self.domain_bias = domains, unseen, domain_bias
        if domain_bias:
            if self.bias is None:
                raise ValueError("domain_bias needs a bias: leave out affine=False")
            own = self.bias.detach()
            self.bias = nn.Parameter(own.expand(domains, *own.shape).clone())
        self.prior_strength = check_strength(prior_strength)
        self.online: dict[int, OnlineStats] = {}

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
            try:
                places = self._places(x, domains, may_be_empty=group is not None)
                batch = prepare(self.settings, *of_arrays(self._given(x, weights)))
            except (TypeError, ValueError) as error:
                if group is not None:  # the others wait for the number of samples per domain
                    all_sum(torch.full((self.domains,), torch.nan, device=x.device), group.ranks)
                    group.agree(error)
                raise
            y = batch.x
            if self.training:
                batch, pairs = self._learn(batch, places, group)
                self.online = {}  # statistics of new domains began with an older average
            else:
                pairs = self._evaluation_stats(batch, places)
            target: Any = batch.output[0]
            if self.domain_bias:
                batch = batch._replace(output=(None, *batch.output[1:]))
            if places:
                y = by_domain(partial(apply, batch), y, *zip(*pairs, strict=True))
            if self.domain_bias:
                space = batch.space
                y = space.inside.add(target[domains.long()], space.to_inside(y))
                y = space.from_inside(y)
            if group is not None:  # every rank takes part in the backward pass of every domain
                some = pairs[0][1]
                y = y + 0.0 * (some.mean.sum() + some.var.sum())
            out: Tensor = batch.finish(y)
            return out

    def _check_domains(self, x: Tensor, domains: Tensor) -> None:
        check_labels(x, domains, self.domains, domains.dtype in _INTEGERS, "long()")

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
        given = self._given(x, weights) | {"domains": domains, "counts": self.num_batches_tracked}
        out: Tensor = recorded(_run_by_sample)(self._constant, given)
        return out

    def _places(self, x: Tensor, domains: Tensor, may_be_empty: bool) -> dict[int, Any]:
        """Return which samples each domain has."""
        self._check_domains(x, domains)
        if x.shape[0] == 0:
            if may_be_empty:
                return {}
            raise ValueError(f"an empty batch has no domains: x has shape {tuple(x.shape)}")
        places = places_of(domains.detach().cpu().numpy())
        check_range(list(places), self.domains)
        return places

    def _stats(self, batch: Batch, places: dict[int, Any], group: Group | None = None) -> Stats:
        """Return the statistics of some domains, from their samples in a batch."""
        given = batch.manifold, batch.x, places, batch.weights
        found = domain_stats(*given, group=group, **search_options(self.settings))
        stats = Stats(found.mean, found.variance)
        check_variance(batch, stats, group)
        return stats

    def _learn(
        self, batch: Batch, places: dict[int, Any], group: Group | None
    ) -> "tuple[Batch, _Pairs]":
        """Learn from every domain of a batch, on all ranks alike."""
        counts = torch.zeros(self.domains, device=batch.x.device)
        for k, place in places.items():
            counts[k] = len(place)
        if group is not None:
            counts = all_sum(counts, group.ranks)
            if bool(counts.isnan().any()):
                group.agree(None)
        rows = torch.nonzero(counts).flatten()
        for k in torch.nonzero(counts == 1).flatten().tolist():
            online = ", where unseen='online' follows single samples" * (self.unseen == "online")
            raise one_sample(k, f"; to evaluate, call layer.eval(){online}")
        places = {k: places.get(k, ()) for k in rows.tolist()}
        self._check_recomputing()
        stats = self._stats(batch, places, group)
        if self._needs_reference:
            means = Stats(stats.mean.detach(), stats.var.detach())
            batch = first_reference(batch, lambda: average_stats(batch.manifold, means).mean, True)
            assert self.reference is not None
            assert batch.reference is not None
            self.reference.copy_(batch.reference)
            self._needs_reference = False
        if not recomputing():
            stats = self._update(batch, rows, stats)
        return batch, _pairs(places, stats)

    def _update(self, batch: Batch, rows: Tensor, stats: Stats) -> Stats:
        """Update the statistics of some domains, and return those to normalize them with."""

        def each(values: Tensor) -> Tensor:  # one per domain, for all of its channels
            return values.to(stats.var.dtype)[(..., *(None,) * len(self.settings.channels))]

        counts = self.num_batches_tracked[rows]
        rate = 1.0 / each(counts + 1) if self.momentum is None else self.momentum
        running, table = self._running("running"), batch.running
        assert table is not None
        own = batch._replace(running=_rows(table, rows))
        new = learn(own, _rows(running, rows), stats, rate)
        assert new is not None
        running.mean[rows], running.var[rows] = new
        self.num_batches_tracked[rows] += 1
        rates: Any = self.train_momentum
        if rates is None:
            return stats
        if callable(rates):
            rates = each(stats.var.new_tensor([rates(count) for count in counts.tolist()]))
        running = self._running("training")
        stats = update_stats(batch.manifold, _rows(running, rows), stats, rates)
        running.mean[rows], running.var[rows] = stats.mean.detach(), stats.var.detach()
        return stats

    def _running(self, kind: str) -> Stats:
        return Stats(getattr(self, f"{kind}_mean"), getattr(self, f"{kind}_var"))

    def _evaluation_stats(self, batch: Batch, places: dict[int, Any]) -> "_Pairs":
        """Return the running statistics, or new ones of domains that have none."""
        table, known = batch.running, self.num_batches_tracked > 0
        assert table is not None
        seen = torch.nonzero(known).flatten().tolist()
        new = {k: places[k] for k in sorted(places.keys() - set(seen))}
        pairs = [(at, _rows(table, k)) for k, at in places.items() if k not in new]
        if not new:
            return pairs
        if self.unseen == "error":
            advice = "train on it, or give unseen='refit', 'adapt' or 'online'"
            raise not_seen("training", list(new), seen, advice)
        if self.unseen != "refit":
            if not seen:
                raise ValueError("no domain was seen in training, so there is none to adapt to")
            average = average_stats(batch.manifold, _rows(table, known))
        if self.unseen == "online":
            return pairs + self._online_stats(batch, new, OnlineStats(0, *average))
        for k, place in new.items():
            if len(place) == 1:
                raise ValueError(
                    f"domain {k} was not seen in training and has one sample in this batch, and "
                    f"unseen={self.unseen!r} needs at least two: give more samples of it at once, "
                    "or use unseen='online', which needs one"
                )
        stats = self._stats(batch, new)
        if self.unseen == "adapt":
            rate = 0.1 if self.momentum is None else self.momentum
            stats = update_stats(batch.manifold, average, stats, rate)
        return pairs + _pairs(new, stats)

    @torch.no_grad()
    def _online_stats(self, batch: Batch, new: dict[int, Any], start: OnlineStats) -> "_Pairs":
        """Return the statistics of new domains after each of their samples."""
        if batch.weights is not None:
            raise ValueError(
                f"domain {min(new)} was not seen in training, and unseen='online' counts every "
                "sample once: leave out the weights, and samples that shall not count"
            )
        if recomputing():
            raise RuntimeError(
                "torch.utils.checkpoint calls a layer again in the backward pass, and "
                "unseen='online' would count its samples twice: leave the layer out of the "
                "checkpoint"
            )
        online, pairs, manifold = dict(self.online), [], batch.manifold
        for k, place in new.items():
            x, before = batch.x[place], online.get(k, start)
            mean, var = (a.to(x) for a in before.stats)
            if mean.dtype != before.mean.dtype or not self.settings.fixed:
                mean = manifold.project(mean)
            before = OnlineStats(before.count, mean, var)
            states = online_stats(manifold, before, x, self.prior_strength)
            check_variance(batch, states[-1].stats)
            pairs += [(place[i : i + 1], state.stats) for i, state in enumerate(states)]
            online[k] = states[-1]
        self.online = online  # only now: a call that fails leaves everything as it was
        return pairs

    def reset_online(self) -> Self:
        """Forget the new domains that ``unseen="online"`` has followed; each starts anew."""
        self.online = {}
        return self

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
        return cls._of_model(bn, model, device, dtype, given | options)

    # ------------------------------------------------------------------ the buffers

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        """Load a state; one bias for all becomes that of every domain."""
        bias = state_dict.get(f"{prefix}bias")
        if self.domain_bias and bias is not None and bias.ndim == len(self.settings.channels) + 1:
            state_dict[f"{prefix}bias"] = bias.expand(self.domains, *bias.shape)
        super()._load_from_state_dict(state_dict, prefix, *given)

    def reset_running_stats(self) -> None:
        """Reset the statistics of all domains, also those of ``train_momentum`` and ``online``."""
        super().reset_running_stats()
        self.online = {}


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_Pairs = list[tuple[Any, Stats]]
"""Indices of the samples of a domain, and the statistics to normalize them with."""


def _pairs(places: dict[int, Any], stats: Stats) -> _Pairs:
    return [(place, _rows(stats, j)) for j, place in enumerate(places.values())]


def _rows(stats: Stats, k: Any) -> Stats:
    return Stats(stats.mean[k], stats.var[k])


def _run_by_sample(constant: Constant, given: dict[str, Tensor]) -> Tensor:
    """Normalize each sample with the running statistics of its domain; NaN if there are none."""
    domains, names = given["domains"].long(), ["running_mean", "running_var", "counts"]
    if "bias" in given and given["bias"].ndim == len(constant.settings.channels) + 2:
        names.append("bias")  # one per domain
    # not by brackets, where a negative number would count from the end
    own = {name: given[name].index_select(0, domains) for name in names}
    batch = prepare(constant.settings, *of_arrays(given | own))
    assert batch.running is not None
    y = apply(batch, batch.x, batch.running)
    known = (own["counts"] > 0)[(..., *(None,) * (y.ndim - 1))]
    out: Tensor = batch.finish(torch.where(known, y, torch.nan))
    return out
