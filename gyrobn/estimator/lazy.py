"""The estimator on Dask arrays: ``fit`` computes, ``transform`` only describes what to compute.

A task holds one block of samples, an array of NumPy or of another eager library. Nothing else is
ever in one place.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_compat as compat
import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array, namespace_of
from gyrobn.data.dask import Block, DaskBlocks, cut_like, lazy_samples, stand_in
from gyrobn.estimator import applying, fitting, validation
from gyrobn.estimator.labels import as_labels, check_given, check_kind, check_policy, labels_for
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import places_of
from gyrobn.normalization.normalize import Stats
from gyrobn.numerics.checks import parameter_error
from gyrobn.statistics import lazy
from gyrobn.statistics.frechet import check_search, of_source
from gyrobn.statistics.points import Moved
from gyrobn.statistics.uniqueness import Domains


def finder(X: Any) -> Callable[..., fitting.Finding]:
    """Return the function that checks samples like X and finds their statistics."""
    return _find_lazily if compat.is_dask_array(X) else fitting.find


def applier(X: Any) -> Callable[..., Any]:
    """Return the function that normalizes samples like X, or undoes it."""
    return _apply_lazily if compat.is_dask_array(X) else applying.apply


def _find_lazily(
    estimator: Any, X: Any, sample_weight: Any, domains: Any, method: str
) -> fitting.Finding:
    """Check the samples of a Dask array and find their statistics."""
    more = fitting.goes_on(estimator, domains, method)
    X = lazy_samples(X)
    by_values = not more and isinstance(estimator.manifold, str)
    blocks = DaskBlocks(X, head=by_values and validation.depends_on_values(estimator, X.shape))
    shape = validation.as_array(estimator, blocks.stand_in, method)
    if more:
        manifold = estimator.manifold_
    else:
        manifold = validation.geometry_for(estimator, shape if blocks.head is None else blocks.head)
    _, scale = validation.affine_for(manifold, shape, estimator.bias, estimator.scale)
    validation.check_scale(scale, estimator.scale)
    if sample_weight is not None and not compat.is_dask_array(sample_weight):
        batch = shape.shape[: shape.ndim - len(manifold.point_shape)]
        sample_weight = validation.weights_for(batch, shape, sample_weight)
    if domains is not None and not compat.is_dask_array(domains):
        domains = labels_for(domains, blocks.total)
    blocks = blocks.with_parts(sample_weight, domains)
    known, seen = _statistics(estimator, manifold, blocks, method)
    seen.moved.warn(manifold, shape, method)
    return fitting.Finding(manifold, known, seen.samples, seen.moved.count, None, None)


def _statistics(
    estimator: Any,
    manifold: GyroSpace,
    blocks: DaskBlocks,
    method: str,
    without: frozenset[Any] = frozenset(),
) -> tuple[dict[Any, fitting.Fitted], lazy.Survey]:
    """Find the statistics of each domain in the blocks that is not among ``without``."""
    manifold, split = manifold.detached(), partial(_split, without=without)
    project = estimator.on_invalid == "project"
    reading = lazy.Reading(manifold, split, check=True, project=project)
    seen = lazy.survey(blocks, reading)
    if not seen.domains:
        return {}, seen
    labels = None if None in seen.domains else list(seen.domains)
    if labels is not None and method != "fit" and hasattr(estimator, "mean_"):
        check_kind(estimator.domains_, as_labels(labels))
    for label, drawn in seen.domains.items():
        fitting.check_enough(label, drawn.weighted, method)
    search = check_search(estimator.tol, estimator.max_iter, None)
    source = lazy.Lazy(blocks, reading, seen)
    named = None if labels is None else Domains(labels, np.zeros((0, len(labels)), dtype=int))
    # no samples are given to the warning: all were checked
    found = of_source(manifold, source, [], search, domains=named)
    fitting.check_found(manifold, found, labels, method)
    weight = validation.like(source.weight, found.mean)
    fitted = fitting.Fitted(found.mean, found.variance, weight, found.iterations, found.converged)
    return fitting.by_label(labels, fitted), seen


def _split(labels: Any, count: int, without: frozenset[Any]) -> dict[Any, Any]:
    """Return the indices of the samples in a block, by domain; leave out those in ``without``."""
    places = places_of(labels_for(labels, count))
    return {label: at for label, at in places.items() if label not in without}


def with_unseen(bn: Any, X: Any, domains: Any, method: str) -> Any:
    """Return the estimator, or a copy that also knows the domains that ``fit`` did not see.

    Their statistics follow the policy ``unseen``. They are found now, in one set of passes.
    """
    if domains is None or bn.unseen in ("error", "online") or method != "transform":
        return bn  # a new domain is then refused where its label is found
    check_policy(bn)
    seen = frozenset(bn.domains_.tolist())
    if not compat.is_dask_array(domains) and not np.isnan(X.shape[0]):
        domains = labels_for(domains, X.shape[0])
        if not _split(domains, len(domains), seen):
            return bn
    blocks = DaskBlocks(X).with_parts(labels=domains)
    new, _ = _statistics(bn, bn.manifold_, blocks, method, without=seen)
    if not new:
        return bn
    _, fitted = fitting.stacked(new)
    mean, variance = applying.unseen_stats(bn, Stats(fitted.mean, fitted.variance))
    new = fitting.by_label(new, fitted._replace(mean=mean, variance=variance))
    both = copy.copy(bn)
    both._keep(bn.manifold_, bn._known | new, bn.n_samples_seen_, bn.n_projected_)
    return both


def _apply_lazily(bn: Any, X: Any, domains: Any, method: str) -> Any:
    """Return the Dask array of normalized samples, or of what undoes it.

    Nothing is computed, but for the statistics of new domains, if ``unseen`` asks for them.
    """
    from dask import delayed

    check_is_fitted(bn)
    X = lazy_samples(X)
    rows = 1 if np.isnan(X.shape[0]) else max(1, X.shape[0])
    shape = validation.as_array(bn, stand_in(X, rows), method)
    applying.check_table(bn, shape, method, lazy=True)
    applying.check_action(bn, shape, method)
    check_given(bn.domains_, domains, method)
    bn = with_unseen(bn, X, domains, method)
    tail = validation.result_shape(bn, method)
    meta = namespace_of(X._meta).reshape(X._meta[:0, ...], (0,) * (1 + len(tail)))
    options = {"dtype": X.dtype, "meta": meta, "token": f"gyrobn-{method.replace('_', '-')}"}
    options["tail"] = tail
    if tail != X.shape[1:]:
        options["chunks"] = (X.chunks[0], *((n,) for n in tail))
        options["drop_axis"] = list(range(1, X.ndim))
        options["new_axis"] = list(range(1, 1 + len(tail)))
    # a copy, since a later fit() must not change what was described before
    options["bn"] = delayed(copy.copy(bn), pure=True, traverse=False)
    if domains is None:
        return X.map_blocks(_apply_block, method=method, **options)
    labels = _labels(bn, X, domains, method)[:, *(None,) * (X.ndim - 1)]
    return X.map_blocks(_apply_block, labels, method=method, **options)


def _labels(bn: Any, X: Any, domains: Any, method: str) -> Any:
    """Return the labels as a Dask array, cut as X is."""
    import dask.array as da

    if compat.is_dask_array(domains):
        return cut_like(domains, X.chunks[0], "domains")
    if np.isnan(X.shape[0]):
        raise ValueError(
            "the chunk sizes of X are not known, and so it is not known which sample each of the "
            "domains belongs to: give the domains as a Dask array that is cut as X is, or call "
            "X.compute_chunk_sizes() first"
        )
    labels = labels_for(domains, X.shape[0])
    _check_known(bn, labels, method)
    return da.from_array(labels, chunks=(X.chunks[0],))


def _check_known(bn: Any, labels: Any, method: str) -> None:
    """Refuse labels that ``fit`` did not see."""
    known = set(bn.domains_.tolist())
    new = [label for label in np.unique(labels).tolist() if label not in known]
    if new:
        check_kind(bn.domains_, labels)
        if bn.unseen == "online" and method == "transform":
            raise ValueError(
                f"fit() did not see domain {new[0]!r}, and unseen='online' follows the order of "
                "its samples, but the blocks of a Dask array are computed in any order: give "
                "transform() NumPy arrays, or the blocks one after the other to "
                "transform_chunks(), or choose unseen='refit' or 'adapt'"
            )
        raise parameter_error(
            f"fit() did not see domain {new[0]!r}, and GyroBN.{method}() has no statistics of it: "
            "fit to it, too, or choose what transform() does with new domains by ",
            "unseen",
            values=("refit", "adapt"),
        )


def _apply_block(
    x: Any,
    labels: Any = None,
    *,
    bn: Any,
    method: str,
    tail: tuple[int, ...],
    block_info: Any = None,
) -> Any:
    """Normalize a block, in a task of ``map_blocks``; ``tail`` is the shape of a result."""
    if not x.shape[0]:
        return namespace_of(x).reshape(x, (0, *tail))
    number = block_info[0]["chunk-location"][0]
    first = block_info[0]["array-location"][0][0]
    own = None if labels is None else labels.reshape(-1)
    block = Block(number, 0 if np.isnan(first) else int(first), x.shape[0], x, labels=own)
    moved = Moved()
    try:
        out = apply_block(block, bn, method, moved)
    except ValueError as error:
        if np.isnan(first):
            error.add_note(f"The index counts from the start of block {number} of X.")
        raise
    moved.warn(bn.manifold_, x, method)
    return out


def apply_block(block: Block, bn: Any, method: str, moved: Moved) -> Array:
    """Check a block of samples and normalize it, or undo it; ``moved`` counts the projected."""
    labels = None
    if block.labels is not None:
        labels = labels_for(block.labels, block.x.shape[0])
        _check_known(bn, labels, method)
    x = applying.checked(bn, block.x, method, block.first, moved)
    found = applying.Found(labels, applying.known_stats(bn))
    return applying.apply_chunk(bn, x, found, method, block.first)
