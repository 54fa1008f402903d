"""GyroBN with separate statistics for each domain."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gyrobn.backends.torch import all_sum
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import UNSEEN, adapt_stats, by_domain, places_of
from gyrobn.normalization.layers import (
    Batch,
    apply,
    batch_stats,
    check_variance,
    common_dtype,
    prepare,
    update,
)
from gyrobn.normalization.normalize import Stats, update_stats
from gyrobn.numerics.checks import check_choice, check_integer, check_number
from gyrobn.statistics.spread import Group
from gyrobn.torch.graphs import no_autocast, recomputing
from gyrobn.torch.layer import GyroBN, _place
from gyrobn.torch.ranks import group_of

__all__ = ["DomainGyroBN"]


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
        the statistics of its batch), or ``"adapt"`` (take a fraction ``momentum`` of those, and the
        rest of the average of the known domains).
    """

    def __init__(
        self,
        manifold: GyroSpace,
        domains: int,
        channels: int | Sequence[int] = (),
        *,
        train_momentum: float | Callable[[int], float] | None = None,
        unseen: str = "error",
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
        run = self._by_domain
        if torch.compiler.is_dynamo_compiling():  # the computation depends on the domains
            run = torch.compiler.disable(run)  # type: ignore[no-untyped-call]
        return run(x, domains, weights)

    def _by_domain(self, x: Tensor, domains: Tensor, weights: Tensor | None) -> Tensor:
        with no_autocast(x, domains):
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
            else:
                choose = self._training_stats if self.training else self._evaluation_stats
                stats = {k: choose(batch, k, place) for k, place in places.items()}
            normalized, own = partial(apply, self.settings, batch), list(places.values())
            y = batch.x
            if own:
                y = by_domain(normalized, y, own, [stats[k] for k in places])
            if group is not None:  # every rank takes part in the backward pass of every domain
                some = next(iter(stats.values()))
                y = y + 0.0 * (some.mean.sum() + some.var.sum())
            out: Tensor = batch.finish(y)
            return out

    def _places(self, x: Tensor, domains: Tensor, may_be_empty: bool) -> dict[int, Any]:
        """Return which samples each domain has."""
        if tuple(domains.shape) != tuple(x.shape[:1]):
            raise ValueError(
                f"domains must have the shape of the batch, {tuple(x.shape[:1])}, "
                f"got {tuple(domains.shape)}"
            )
        if x.shape[0] == 0:
            if may_be_empty:
                return {}
            raise ValueError(f"an empty batch has no domains: x has shape {tuple(x.shape)}")
        places = places_of(domains.cpu().numpy())
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
        x, weights = self._columns(batch, places, present)
        found = batch_stats(self.settings, batch.manifold, x, weights, several=True, group=group)
        check_variance(self.settings, batch.manifold, batch.checked, found, group=group)
        each = {k: Stats(found.mean[j], found.var[j]) for j, k in enumerate(present)}
        return {k: self._learnt_from(batch.manifold, k, own) for k, own in each.items()}

    def _columns(
        self, batch: Batch, places: dict[int, Any], present: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Return samples (most, domains, ...), padded with the identity, and their weights."""
        manifold, x, weights = batch.manifold, batch.x, batch.weights
        none = np.empty(0, dtype=np.int64)
        most = max([1, *map(len, places.values())])
        rows = np.full((most, len(present)), -1)
        for j, k in enumerate(present):
            place = places.get(k, none)
            rows[: len(place), j] = place
        padding = torch.as_tensor(rows < 0, device=x.device)
        e = manifold.origin(x).expand(1, *x.shape[1:])
        numbers = torch.as_tensor(np.where(rows < 0, x.shape[0], rows), device=x.device)
        columns = torch.cat([x, e])[numbers]
        if weights is None:
            weights = x.new_ones(x.shape[: x.ndim - len(manifold.point_shape)])
        weights = torch.cat([weights, weights.new_zeros((1, *weights.shape[1:]))])[numbers]
        weights = weights.masked_fill(padding[(..., *(None,) * (weights.ndim - 2))], 0.0)
        channels = len(self.settings.channels)
        wide = weights[(..., *(None,) * (channels + 2 - weights.ndim))]
        return columns, wide.expand(columns.shape[: channels + 2]).to(x.dtype)

    def _batch_stats(self, batch: Batch, place: Any) -> Stats:
        x, weights = batch.x[place], None if batch.weights is None else batch.weights[place]
        stats = batch_stats(self.settings, batch.manifold, x, weights, several=True)
        check_variance(self.settings, batch.manifold, x, stats, first=place)
        return stats

    def _training_stats(self, whole: Batch, k: int, place: Any) -> Stats:
        """Return the statistics to normalize samples of one domain with, and learn from them."""
        return self._learnt_from(whole.manifold, k, self._batch_stats(whole, place))

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

    def _evaluation_stats(self, whole: Batch, k: int, place: Any) -> Stats:
        manifold = whole.manifold
        if int(self.num_batches_tracked[k]) > 0:
            return self.settings.running(manifold, self._of("running", k))
        if self.unseen == "error":
            known = [i for i, n in enumerate(self.num_batches_tracked.tolist()) if n > 0]
            raise ValueError(
                f"domain {k} was not seen in training (seen: {known}): train on it, or give "
                "unseen='refit' or 'adapt'"
            )
        batch = self._batch_stats(whole, place)
        if self.unseen == "refit":
            return batch
        seen = self.num_batches_tracked > 0
        if not bool(seen.any()):
            raise ValueError("no domain was seen in training, so there is none to adapt to")
        others = Stats(self.running_mean[seen], self.running_var[seen])
        others = self.settings.running(manifold, others)
        return adapt_stats(manifold, others, batch, 0.1 if self.momentum is None else self.momentum)

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
            As in :meth:`GyroBN.from_estimator`; ``unseen`` is the estimator's by default, and
            ``momentum`` its ``adapt_rate``.
        """
        from gyrobn.estimator.conversion import fitted

        model = fitted(bn, domains=True)
        given = {"domains": len(bn.domains_), "unseen": model.unseen, "momentum": model.adapt_rate}
        layer = cls._of_model(model, given | _place(bn, model, device, dtype) | options)
        if layer.train_momentum is not None:
            for k in range(layer.domains):
                layer._store("training", k, layer._of("running", k))
        return layer

    def to_estimator(self, *, labels: Any = None, like: Any = None) -> Any:
        """Return a fitted :class:`gyrobn.GyroBN` with the domains that were seen in training.

        Parameters
        ----------
        labels
            Labels of all domains of the layer, all integers or all strings; the numbers of the
            domains by default.
        like
            As in :meth:`GyroBN.to_estimator`.
        """
        from gyrobn.estimator.conversion import layer_to_estimator
        from gyrobn.estimator.labels import labels_for

        labels = np.arange(self.domains) if labels is None else labels
        if len(labels) != self.domains:
            raise ValueError(f"labels must be {self.domains}, one a domain, got {len(labels)}")
        names = labels_for(labels, self.domains)
        if len(np.unique(names)) < self.domains:
            raise ValueError("labels must differ from one another")
        order = [k for k in np.argsort(names).tolist() if int(self.num_batches_tracked[k]) > 0]
        if not order:
            raise ValueError("no domain was seen in training: there are no statistics to keep")
        return layer_to_estimator(
            self.settings,
            self._learnt,
            Stats(self.running_mean[order], self.running_var[order]),
            like,
            domains=names[order],
            unseen=self.unseen,
            adapt_rate=0.1 if self.momentum is None else self.momentum,
        )

    # ------------------------------------------------------------------ the buffers

    def _of(self, kind: str, k: int) -> Stats:
        """Return copies, because a graph may hold them when the buffers change."""
        mean, var = (getattr(self, f"{kind}_{name}")[k].clone() for name in ("mean", "var"))
        dtype = common_dtype(var)
        return Stats(mean.to(dtype), var.to(dtype))

    def _store(self, kind: str, k: int, stats: Stats) -> None:
        getattr(self, f"{kind}_mean")[k] = stats.mean
        getattr(self, f"{kind}_var")[k] = stats.var
