"""Checks of what a user gives: a number, a word, an array.

Every check returns the value as a plain Python object or NumPy array, or raises an error that says
what came and what was expected.
"""

import operator
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from math import inf
from numbers import Real
from typing import Any

import array_api_compat as compat
import numpy as np
from numpy.typing import NDArray

from gyrobn.backends import backend_of, check_kind

_INNER = {"gyrobn", "sklearn", "torch", "jax", "flax", "equinox"}
"""Packages whose functions call each other between a user's line and a warning."""


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and point at the line of the user's own code.

    Python shows a warning once per line. If all of them came from one line of this package, a
    user would not see the second one.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in _INNER and frame.f_back:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def unmasked(value: Any, name: str) -> Any:
    """Return the value, or the data of an array whose mask hides nothing; refuse a real mask."""
    if isinstance(value, np.ma.MaskedArray) and not np.ma.is_masked(value):
        return value.data
    for part in value if isinstance(value, (list, tuple)) else (value,):
        check_kind(part, name)
    return value


def is_number(word: str) -> bool:
    """Return whether a word is a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def host(value: Any, name: str = "this", dtype: Any = None) -> NDArray[Any]:
    """Return numbers, from whatever library, as a NumPy array, perhaps without a copy.

    >>> host([1, 2]), host(0.5, dtype=np.float32)
    (array([1, 2]), array(0.5, dtype=float32))
    >>> host("1", "scale")
    Traceback (most recent call last):
        ...
    ValueError: scale must be numbers, got '1'
    """
    given = unmasked(value, name)
    if compat.is_array_api_obj(given):
        shim = backend_of(given)
        array = shim.to_numpy(shim.stop_gradient(given))
    else:
        array = np.asarray(given)
    kinds = "biufc" if dtype is None else "biuf"
    if array.dtype.kind not in kinds:  # NumPy would make numbers of words
        raise ValueError(f"{name} must be numbers, got {given!r}")
    return np.asarray(array, dtype=dtype)


def check_integer(name: str, value: Any, least: int | None = None) -> int:
    """Return an integer, from whatever library, as an ``int``; refuse True and False.

    >>> import numpy as np
    >>> check_integer("n", np.int64(3), 1)
    3
    >>> check_integer("max_iter", 1.5, 1)
    Traceback (most recent call last):
        ...
    ValueError: max_iter must be a positive integer, got 1.5
    """
    number = None
    if not _is_bool(value):
        with suppress(TypeError):
            number = operator.index(value)
    low = -(2**63) if least is None else least
    if number is None or not low <= number < 2**63:  # what arrays and files can hold
        kinds = {None: "an integer", 1: "a positive integer"}
        kind = kinds.get(least, f"an integer of at least {least}")
        raise ValueError(f"{name} must be {kind}, got {value!r}")
    return number


def check_integers(name: str, value: Any, least: int | None = None) -> tuple[int, ...]:
    """Return one integer, or several, as a tuple.

    >>> check_integers("axis", 0), check_integers("channels", [2, 3], 1)
    ((0,), (2, 3))
    """
    several = np.iterable(value) and not isinstance(value, str)
    values = value if several else (value,)
    return tuple(check_integer(name, v, least) for v in values)


def check_square(rule: str, shape: Any) -> int:
    """Return n of matrices whose shape ends in (n, n); ``rule`` is the message for another shape.

    >>> check_square("covariances are square", (10, 3, 3))
    3
    """
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"{rule}, got {tuple(shape)}")
    return int(shape[-1])


def check_number(
    name: str, value: Any, low: float = -inf, high: float = inf, above: float = -inf
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
    if not (low <= number <= high and above < number < inf):
        bound = f" of at least {low:g}" if low > -inf else ""
        bound = f" from {low:g} to {high:g}" if high < inf else bound
        bound = f" above {above:g}" if above > -inf else bound
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
        near = did_you_mean(value, known)
        raise ValueError(f"{name} must be {listed}, got {value!r}{near}")
    return value


def did_you_mean(value: Any, known: Iterable[str]) -> str:
    """Return a question for the end of a message, if a known name is close; else nothing.

    >>> did_you_mean("PoincareBall", ["sphere", "poincare_ball"])
    ": did you mean 'poincare_ball'?"
    >>> did_you_mean("banana", ["sphere", "poincare_ball"])
    ''
    """
    if not isinstance(value, str):
        return ""
    plain = {name.replace("_", ""): name for name in known}
    word = value.lower().translate({ord(c): None for c in "_- "})
    near = get_close_matches(word, plain, n=1, cutoff=0.5)
    return f": did you mean {plain[near[0]]!r}?" if near else ""


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
