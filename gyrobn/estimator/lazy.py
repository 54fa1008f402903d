"""The estimator on Dask arrays: ``fit`` computes, ``transform`` only describes what to compute.

A task holds one block of samples, an array of NumPy or of another eager library. Nothing else is
ever in one place.
"""

import copy
from functools import partial
from typing import Any

import array_api_compat as compat
import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import namespace_of
from gyrobn.data.dask import DaskBlocks, cut_like, lazy_samples, stand_in
from gyrobn.estimator import applying, fitting
from gyrobn.estimator import validation as check
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import places_of
from gyrobn.statistics import lazy
from gyrobn.statistics.frechet import check_search, of_source
from gyrobn.statistics.points import Moved
from gyrobn.statistics.uniqueness import Domains


def find(
    bn: Any, X: Any, sample_weight: Any, domains: Any, method: str, more: bool
) -> fitting.Finding:
    """Check the samples of a Dask array and find their statistics."""
    X = lazy_samples(X)
    blocks = DaskBlocks(X)
    like = head = check.as_array(bn, stand_in(X, blocks.total), method)
    if not more and check.depends_on_values(bn, X.shape):
        head = next(blocks.each(), head)
    manifold = bn.manifold_ if more else check.geometry_for(bn, head)
    check.affine_for(bn, manifold, like.shape[1:], like, method)
    batch = like.shape[: like.ndim - len(manifold.point_shape)]
    weights = check.weights_for(batch, like, sample_weight)
    blocks = blocks.with_parts(weights, _labels(domains, blocks.total))
    found, survey = find_stats(bn, manifold, blocks, method)
    survey.moved.warn(manifold, like, method)
    return manifold, found, survey.samples, survey.moved.count


def find_stats(
    bn: Any,
    manifold: GyroSpace,
    blocks: DaskBlocks,
    method: str,
    without: frozenset[Any] = frozenset(),
) -> tuple[fitting.Domains, lazy.Survey]:
    """Find the statistics of each domain in the blocks that is not among ``without``."""
    manifold, split = manifold.detached(), partial(_split, without=without)
    project = bn.on_invalid == "project"
    reading = lazy.Reading(manifold, split, check=True, project=project)
    survey = lazy.survey(blocks, reading)
    if not survey.domains:
        return {}, survey
    labels = None if None in survey.domains else list(survey.domains)
    for label, drawn in survey.domains.items():
        fitting.check_enough(label, drawn.weighted, method)
    search = check_search(bn.tol, bn.max_iter, None)
    named = None if labels is None else Domains(labels, np.zeros((0, len(labels)), dtype=int))
    # no samples are given to the warning: all were checked
    source = lazy.Parts(blocks, reading, survey)
    found = of_source(manifold, source, [], search, domains=named)
    fitting.check_found(manifold, found, labels, method)
    return fitting.fitted_domains(found, source.weight, labels), survey


def _split(labels: Any, count: int, without: frozenset[Any]) -> dict[Any, Any]:
    """Return the indices of the samples in a block, by domain; leave out those in ``without``."""
    places = places_of(check.labels_for(labels, count))
    return {label: at for label, at in places.items() if label not in without}


def _labels(domains: Any, count: float) -> Any:
    """Return the labels as an array, of Dask if they were given as one."""
    if domains is None or compat.is_dask_array(domains):
        return domains
    if np.isnan(count):
        raise ValueError(
            "the chunk sizes of X are not known, and so it is not known which sample each of the "
            "domains belongs to: give the domains as a Dask array that is cut as X is, or call "
            "X.compute_chunk_sizes() first"
        )
    return check.labels_for(domains, int(count))


def apply(bn: Any, X: Any, domains: Any, method: str) -> Any:
    """Return the Dask array of normalized samples, or of what undoes it.

    Nothing is computed, except the statistics of new domains if ``unseen`` requests them.
    """
    import dask.array as da
    from dask import delayed

    check_is_fitted(bn)
    X = lazy_samples(X)
    like = check.as_array(bn, stand_in(X, 1), method)
    if method != check.UNDO:
        check.check_table(bn, X.shape[1:], lazy=True)
    check.affine_for(bn, bn.manifold_, check.sample_shape(bn), like, method)
    check.check_given(bn.domains_, domains, method)
    labels, stats = _labels(domains, X.shape[0]), fitting.domains_of(bn)
    if compat.is_dask_array(labels):  # a task refuses new ones where they are not welcome
        new = method == "transform" and bn.unseen in ("refit", "adapt")
    else:
        names = [] if labels is None else sorted(set(labels.tolist()))
        new = bool(check.unseen_among(bn, names, stats, method, ordered=False))
    if new:  # in one set of passes
        blocks, known = DaskBlocks(X).with_parts(labels=labels), frozenset(stats)
        found, _ = find_stats(bn, bn.manifold_, blocks, method, without=known)
        check.unseen_among(bn, found, stats, method)
        stats |= applying.adapted(bn, found)
    tail = check.row_shape(bn, check.spaces(bn, method)[1])
    meta = namespace_of(X._meta).reshape(X._meta[:0, ...], (0,) * (1 + len(tail)))
    options = {"dtype": X.dtype, "meta": meta, "token": f"gyrobn-{method.replace('_', '-')}"}
    if tail != X.shape[1:]:
        options["chunks"] = (X.chunks[0], *((n,) for n in tail))
        options["drop_axis"], options["new_axis"] = [*range(1, X.ndim)], [*range(1, 1 + len(tail))]
    # a copy, since a later fit() must not change what was described before
    options["there"] = delayed((copy.copy(bn), stats, method, tail), pure=True, traverse=False)
    if labels is None:
        return X.map_blocks(_apply_block, **options)
    if not compat.is_dask_array(labels):
        labels = da.from_array(labels, chunks=(X.chunks[0],))
    labels = cut_like(labels, X.chunks[0], "domains")
    return X.map_blocks(_apply_block, labels[:, *(None,) * (X.ndim - 1)], **options)


def _apply_block(x: Any, labels: Any = None, *, there: Any, block_info: Any = None) -> Any:
    """Normalize a block, or undo it, in a task of ``map_blocks``."""
    bn, stats, method, tail = there
    if not x.shape[0]:
        return namespace_of(x).reshape(x, (0, *tail))
    start, moved = block_info[0]["array-location"][0][0], Moved()
    first = 0 if np.isnan(start) else int(start)
    try:
        labels = None if labels is None else check.labels_for(labels.reshape(-1), x.shape[0])
        x = check.checked(bn, x, method, first, moved)
        out = applying.apply_block(bn, x, labels, stats, method, first, ordered=False)
    except ValueError as error:
        if np.isnan(start):
            number = block_info[0]["chunk-location"][0]
            error.add_note(f"The index counts from the start of block {number} of X.")
        raise
    moved.warn(bn.manifold_, x, method)
    return out
