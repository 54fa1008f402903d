"""Labels of domains, and the errors about them."""

from collections.abc import Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from gyrobn.backends import backend_of
from gyrobn.normalization.domains import UNSEEN
from gyrobn.normalization.online import check_strength
from gyrobn.numerics.checks import check_choice, check_number, parameter_error


def check_policy(given: Any) -> None:
    """Check the parameters for domains that ``fit`` did not see, of an estimator or a model."""
    check_choice("unseen", given.unseen, UNSEEN)
    check_number("adapt_rate", given.adapt_rate, 0.0, 1.0)
    check_strength(given.prior_strength)


def check_given(known: Any, domains: Any, method: str) -> None:
    """Refuse domains if fit had none, and their absence if fit had some."""
    if known is None and domains is not None:
        raise ValueError(
            f"GyroBN was fitted without domains: leave them out of {method}(), or give them to "
            "fit(X, domains=...), too, by name (the second argument of fit() is y, which is "
            "ignored)"
        )
    if known is not None and domains is None:
        raise parameter_error(
            f"GyroBN was fitted with domains ({_listed(known)}): give ",
            "domains",
            ", too",
            spelling=f"{method}(X, domains=...)",
            note=f"; in a pipeline, by metadata routing and set_{method}_request(domains=True)",
        )


def check_target(given: Any, y: Any, domains: Any, method: str) -> None:
    """Refuse a y without domains if the policy for new domains shows that domains were meant."""
    if domains is None and y is not None and given.unseen != "error":
        raise ValueError(
            f"unseen={given.unseen!r} is for data with domains, and GyroBN.{method}() got y, which "
            f"is ignored, but no domains: give {method}(X, domains=...) by name (in a pipeline, by "
            "metadata routing and set_fit_request(domains=True)), or leave unseen at 'error'"
        )


def check_kind(known: Any, labels: Any) -> None:
    """Refuse strings if fit had integers as labels, and integers if it had strings."""
    if (labels.dtype.kind == "U") != (known.dtype.kind == "U"):
        raise ValueError(
            f"fit() saw domains {_listed(known)}, and now come {_listed(np.unique(labels))}: give "
            "labels of the same kind, integers or strings, to both"
        )


def check_unseen(known: Any, labels: Any, new: list[Any], unseen: str, method: str) -> None:
    """Refuse domains that fit did not see, unless the policy allows them."""
    saw = f"fit() did not see domain {_listed(new)} (it saw {_listed(known)})"
    check_kind(known, labels)
    if method == "inverse_transform":
        saw += ", so GyroBN.inverse_transform() cannot know from where its samples came"
        if unseen == "online":
            raise ValueError(
                f"{saw} (by unseen='online' every sample has statistics of its own, which are not "
                "kept): fit to it, too"
            )
        after = " is not kept): fit to it, too"
        found = f"{saw} (what transform() finds by "
        raise parameter_error(found, "unseen", after, ("refit", "adapt"))
    if unseen == "error":
        raise parameter_error(
            f"{saw}: fit to it, too, or choose what GyroBN.transform() does with such a domain by ",
            "unseen",
            ", or 'online' for samples that come one by one",
            ("refit", "adapt"),
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
    wrong = [i for i, value in enumerate(values) if not isinstance(value, kind)]
    if wrong:
        raise TypeError(
            f"domains must be all integers or all strings, got {values[wrong[0]]!r} at index "
            f"{wrong[0]}"
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
