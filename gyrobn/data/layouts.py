"""How a row of numbers holds a sample: a vector, a flattened array, a triangle of a matrix."""

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

SHAPE = re.compile(r"([1-9]\d{0,8}(?:x[1-9]\d{0,8})*)(:columns)?")

TRIANGLES = ("upper", "lower")


@dataclass(frozen=True)
class Layout:
    """The order of the numbers in a row.

    ``shape`` is that of a sample, which is flattened row by row, or column by column if ``columns``
    is set. If there is a ``triangle`` instead, the row holds that part of a symmetric matrix, with
    its diagonal, row by row.
    """

    shape: tuple[int, ...] = ()
    columns: bool = False
    triangle: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Return the layout that a word describes.

        >>> Layout.parse("2x3:columns").unpack(np.arange(6.0)[None]).tolist()
        [[[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]]
        >>> Layout.parse("upper").unpack(np.arange(3.0)[None]).tolist()
        [[[0.0, 1.0], [1.0, 2.0]]]
        """
        if text in TRIANGLES:
            return cls(triangle=text)
        match = SHAPE.fullmatch(text)
        if match is None or (match[2] and "x" not in text):
            raise ValueError(
                f"expected a layout such as 4x4, 4x4:columns, upper or lower, got {text!r}"
            )
        return cls(tuple(map(int, match[1].split("x"))), columns=bool(match[2]))

    def __str__(self) -> str:
        if self.triangle is not None:
            return self.triangle
        return "x".join(map(str, self.shape)) + (":columns" if self.columns else "")

    def shape_of(self, count: int) -> tuple[int, ...]:
        """Return the shape of a sample that fills a row of ``count`` numbers."""
        if self.triangle is None:
            if math.prod(self.shape) != count:
                raise ValueError(f"layout {self} takes {math.prod(self.shape)} numbers per row")
            return self.shape
        n = _side(count)
        if n is None:
            raise ValueError(
                f"layout {self} takes n(n + 1)/2 numbers per row, such as 3, 6, 10 or 15"
            )
        return (n, n)

    def unpack(self, rows: Any) -> Any:
        """Return the samples in rows of numbers, shape (N, count)."""
        shape = self.shape_of(rows.shape[1])
        if self.triangle is not None:
            return rows[:, _places(self.triangle, shape[0])[1]]
        if not self.columns:
            return rows.reshape(len(rows), *shape)
        return rows.reshape(len(rows), *shape[:-2], *shape[:-3:-1]).swapaxes(-1, -2)

    def pack(self, samples: Any) -> Any:
        """Return samples as rows of numbers."""
        if self.triangle is not None:
            return samples[:, *_places(self.triangle, samples.shape[-1])[0]]
        if self.columns:
            samples = samples.swapaxes(-1, -2)
        return samples.reshape(len(samples), -1)


@cache
def _places(triangle: str, n: int) -> tuple[Any, Any]:
    """Return the entries of a triangle, and for each entry of the matrix its place among them."""
    at = np.triu_indices(n) if triangle == "upper" else np.tril_indices(n)
    table = np.empty((n, n), dtype=np.intp)
    table[at] = table.T[at] = np.arange(len(at[0]))
    return at, table


def _side(count: int) -> int | None:
    """Return n if there are n(n + 1)/2 numbers."""
    n = (math.isqrt(8 * count + 1) - 1) // 2
    return n if n > 0 and n * (n + 1) // 2 == count else None


def suggest(count: int) -> list[str]:
    """Return layouts of square matrices that fit rows of ``count`` numbers.

    >>> suggest(16), suggest(36), suggest(7)
    (['4x4'], ['6x6', 'upper', 'lower'], [])
    """
    n = math.isqrt(count)
    found = [f"{n}x{n}"] if n * n == count > 1 else []
    return found + (list(TRIANGLES) if count > 1 and _side(count) else [])
