"""Labels of domains, and the errors about them."""

from collections.abc import Container, Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from gyrobn.backends import backend_of
from gyrobn.normalization.domains import UNSEEN
from gyrobn.numerics.checks import check_choice, check_number


def check_policy(bn: Any) -> None:
    """Check the parameters for domains that ``fit`` did not see."""
    check_choice("unseen", bn.unseen, UNSEEN)
    check_number("adapt_rate", bn.adapt_rate, 0.0, 1.0)
    check_number("prior_strength", bn.prior_strength, 0.0)


def check_given(fitted: Any, domains: Any, method: str) -> None:
    """Refuse domains if fit had none, and their absence if fit had some."""
    if fitted is None and domains is not None:
        raise ValueError(
            f"GyroBN was fitted without domains: leave them out of {method}(), or give them to "
            "fit(X, domains=...), too, by name (the second argument of fit() is y, which is "
            "ignored)"
        )
    if fitted is not None and domains is None:
        raise ValueError(
            f"GyroBN was fitted with domains ({_listed(fitted)}): give {method}(X, domains=...), "
            f"too; in a pipeline, by metadata routing and set_{method}_request(domains=True)"
        )


def check_target(bn: Any, y: Any, domains: Any, method: str) -> None:
    """Refuse a y without domains if ``unseen`` shows that domains were meant."""
    if domains is None and y is not None and bn.unseen != "error":
        raise ValueError(
            f"unseen={bn.unseen!r} is for data with domains, and GyroBN.{method}() got y, which is "
            f"ignored, but no domains: give {method}(X, domains=...) by name (in a pipeline, by "
            "metadata routing and set_fit_request(domains=True)), or leave unseen at 'error'"
        )


def check_kind(fitted: Any, labels: Any) -> None:
    """Refuse strings if fit had integers as labels, and integers if it had strings."""
    if (labels.dtype.kind == "U") != (fitted.dtype.kind == "U"):
        raise ValueError(
            f"fit() saw domains {_listed(fitted)}, and now come {_listed(np.unique(labels))}: give "
            "labels of the same kind, integers or strings, to both"
        )


def unseen_among(
    bn: Any, labels: list[Any], known: Container[Any], method: str, ordered: bool = True
) -> list[Any]:
    """Return the labels without statistics, if ``unseen`` says what to do with their samples.

    Samples that are not ``ordered`` cannot be followed one by one.
    """
    new = [label for label in labels if label not in known]
    if not new:
        return new
    check_kind(bn.domains_, as_labels(new))
    check_policy(bn)
    undo = method == "inverse_transform"
    if not undo and (bn.unseen in ("refit", "adapt") or (bn.unseen == "online" and ordered)):
        return new
    advice = (
        "fit to it, too, or choose unseen='refit' or 'adapt', or 'online' for samples that come "
        "one by one"
    )
    if undo:
        advice = (
            "fit to it, too: inverse_transform() cannot know where its samples came from, since "
            "the statistics that transform() finds for a new domain are not kept"
        )
    elif bn.unseen == "online":
        advice = (
            "unseen='online' follows the order of its samples, but the blocks of a Dask array are "
            "computed in any order; give NumPy arrays, or the blocks one after the other to "
            "transform_chunks(), or choose unseen='refit' or 'adapt'"
        )
    raise ValueError(
        f"fit() did not see domain {_listed(new)} (it saw {_listed(bn.domains_)}), and "
        f"GyroBN.{method}() has no statistics of it: {advice}"
    )


def labels_for(domains: Any, count: int) -> Any:
    """Return the labels of the domains as a NumPy array, all integers or all strings.

    >>> labels_for(["b", "a"], 2)
    array(['b', 'a'], dtype='<U1')
    >>> labels_for([1, "a"], 2)
    Traceback (most recent call last):
        ...
    TypeError: domains must be all integers or all strings, got 'a' at index 1
    """
    if compat.is_array_api_obj(domains):
        if backend_of(domains).traced(domains):
            raise TypeError(
                "domains tell which samples go together, and in a traced function they have no "
                "values: give a NumPy array or a list that is not an argument of that function"
            )
        domains = backend_of(domains).to_numpy(domains)
    elif isinstance(domains, Sequence) and not isinstance(domains, str):
        domains = np.array(domains, dtype=object)  # NumPy would make 1 and "1" the same
    labels = np.asarray(domains)
    if labels.shape != (count,):
        raise ValueError(
            f"domains must have one label per sample, shape ({count},), got shape {labels.shape}"
        )
    if labels.dtype.kind in "iubU":
        return labels
    values = labels.tolist()
    kind = str if isinstance(values[0], str) else (int, np.integer)
    for i, value in enumerate(values):
        if not isinstance(value, kind):
            raise TypeError(
                f"domains must be all integers or all strings, got {value!r} at index {i}"
            )
    return as_labels(values)


def as_labels(values: list[Any]) -> Any:
    """Return labels, all strings or all integers, as an array that holds them exactly.

    >>> as_labels([1, 2**63])  # NumPy would make floats of them
    array([                  1, 9223372036854775808], dtype=uint64)
    """
    if isinstance(values[0], (str, bool)):
        return np.asarray(values)
    low, high = min(values), max(values)
    if low < -(2**63) or high >= (2**64 if low >= 0 else 2**63):
        raise ValueError(
            f"domains must be integers of at most 64 bits, got {low} to {high}: give strings"
        )
    return np.asarray(values, dtype=np.int64 if high < 2**63 else np.uint64)


def _listed(labels: Any) -> str:
    """Return labels for a message, at most ten of them."""
    first = ", ".join(repr(label) for label in np.asarray(labels)[:10].tolist())
    return first if len(labels) <= 10 else f"{first} and {len(labels) - 10} more"
