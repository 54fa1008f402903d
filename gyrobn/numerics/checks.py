"""One way to check a number or a name that a user gives, and one way to say what is wrong with it.

Every function returns the value as a plain Python object, or raises a ``ValueError`` that says what
came and what was expected.
"""

import operator
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from math import inf
from numbers import Real
from typing import Any

__all__ = [
    "check_choice",
    "check_integer",
    "check_integers",
    "check_number",
    "check_square",
    "did_you_mean",
]


def check_integer(name: str, value: Any, least: int | None = None) -> int:
    """Return an integer, of whatever library, as an ``int``; True and False are none.

    >>> import numpy as np
    >>> check_integer("n", np.int64(3), 1)
    3
    >>> check_integer("max_iter", 1.5, 1)
    Traceback (most recent call last):
        ...
    ValueError: max_iter must be a positive integer, got 1.5
    """
    try:
        number = None if _is_bool(value) else operator.index(value)
    except TypeError:
        number = None
    low = -(2**63) if least is None else least
    if number is None or not low <= number < 2**63:  # what arrays and files can hold
        kind = "a positive integer" if least == 1 else "an integer"
        bound = "" if least in (None, 1) else f" of at least {least}"
        raise ValueError(f"{name} must be {kind}{bound}, got {value!r}")
    return number


def check_integers(name: str, value: Any, least: int | None = None) -> tuple[int, ...]:
    """Return one integer, or several, as a tuple.

    >>> check_integers("axis", 0), check_integers("channels", [2, 3], 1)
    ((0,), (2, 3))
    """
    several = isinstance(value, Iterable) and getattr(value, "shape", None) != ()
    if isinstance(value, str) or not several:
        return (check_integer(name, value, least),)
    return tuple(check_integer(name, v, least) for v in value)


def check_square(rule: str, shape: Any) -> int:
    """Return n of matrices whose shape ends in (n, n); ``rule`` is the message for another shape.

    >>> check_square("covariances are square", (10, 3, 3))
    3
    """
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{rule}, got {tuple(shape)}")
    return int(shape[-1])


def check_number(
    name: str, value: Any, low: float = -inf, high: float = inf, above: float | None = None
) -> float:
    """Return a finite number from ``low`` to ``high``, or one above a bound, as a ``float``.

    >>> check_number("eps", 0, 0.0)
    0.0
    >>> check_number("eps", "1", 0.0)
    Traceback (most recent call last):
        ...
    ValueError: eps must be a finite number of at least 0, got '1'
    >>> check_number("clamp", 0.0, above=0.0)
    Traceback (most recent call last):
        ...
    ValueError: clamp must be a finite number above 0, got 0.0
    """
    number = inf
    if isinstance(value, Real) and not _is_bool(value):
        with suppress(OverflowError):  # of an integer that is too long
            number = float(value)
    if not (low <= number <= high and -inf < number < inf) or (
        above is not None and not number > above
    ):
        bound = f" of at least {low:g}" if low > -inf else ""
        bound = f" from {low:g} to {high:g}" if high < inf else bound
        bound = bound if above is None else f" above {above:g}"
        raise ValueError(f"{name} must be a finite number{bound}, got {value!r}")
    return number


def check_choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Return a word that is one of the known ones.

    >>> check_choice("unseen", "adapted", ["error", "adapt"])
    Traceback (most recent call last):
        ...
    ValueError: unseen must be 'error' or 'adapt', got 'adapted': did you mean 'adapt'?
    """
    known = list(known)
    if not isinstance(value, str) or value not in known:
        *most, last = map(repr, known)
        listed = f"{', '.join(most)} or {last}" if most else last
        raise ValueError(f"{name} must be {listed}, got {value!r}{did_you_mean(value, known)}")
    return value


def did_you_mean(value: Any, known: Iterable[str]) -> str:
    """Return a question for the end of a message, where a known name is near; else nothing.

    >>> did_you_mean("PoincareBall", ["sphere", "poincare_ball"])
    ": did you mean 'poincare_ball'?"
    >>> did_you_mean("banana", ["sphere", "poincare_ball"])
    ''
    """
    if not isinstance(value, str):
        return ""
    plain = {name.replace("_", ""): name for name in known}
    word = value.lower().translate({ord(c): None for c in "_- "})
    near = get_close_matches(word, plain, n=1)
    near = near or [name for name in plain if word and (name.startswith(word) or word in name)][:1]
    return f": did you mean {plain[near[0]]!r}?" if near else ""


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
