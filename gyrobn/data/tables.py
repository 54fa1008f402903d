"""Tables of text, ``.csv`` and ``.tsv``: one row of numbers per sample, perhaps with a label."""

import csv
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gyrobn.data.layouts import Layout
from gyrobn.data.stored import Form, StoredArray, reading
from gyrobn.numerics.checks import check_choice, is_number, parameter_error

DELIMITERS = {".csv": ",", ".tsv": "\t"}

HEADERS = ("yes", "no")

FIELDS = 1 << 18
"""The approximate number of fields of a table that are parsed at once."""


class TableArray(StoredArray):
    """Rows of numbers in a temporary file, which it closes; ``count`` of them, each of ``width``.

    Text cannot be read in slices, so a table is unpacked once.
    """

    def __init__(
        self, path: Path, file: Any, count: int, width: int, dtype: Any, form: Form
    ) -> None:
        layout = form.layout
        try:
            shape = (width,) if layout is None else layout.shape_of(width)
        except ValueError as error:
            raise ValueError(f"{path} has {width} numbers per row, and {error}") from error
        super().__init__(path, None, (count, *shape), dtype, form, file)
        self._width = width

    def _read(self, start: int, stop: int) -> Any:
        rows = np.empty((stop - start, self._width), self.stored)
        with reading(self.path):
            self._file.seek(start * self._width * self.stored.itemsize)
            if self._file.readinto(rows.reshape(-1).view(np.uint8).data) != rows.nbytes:
                raise ValueError("its temporary copy was cut off")
        return rows if self.form.layout is None else self.form.layout.unpack(rows)


def spool(path: Path, blocks: Iterable[Any], width: int, dtype: Any, form: Form) -> TableArray:
    """Copy blocks of rows to a temporary file, and return the array in it."""
    file, count = tempfile.TemporaryFile(), 0  # noqa: SIM115 (its reader closes it)
    try:
        for rows in blocks:
            file.write(np.ascontiguousarray(rows, dtype).reshape(-1).view(np.uint8).data)
            count += len(rows)
        return TableArray(path, file, count, width, dtype, form)
    except BaseException:
        file.close()
        raise


def place_of(names: Sequence[str], domain_column: str) -> int:
    """Return the place of the column with labels."""
    if names.count(domain_column) != 1:
        found = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        raise ValueError(
            f"{names.count(domain_column)} of its columns are called {domain_column!r}, expected "
            f"one: they are {found}"
        )
    return names.index(domain_column)


# ---------------------------------------------------------------------- reading


def open_text(
    path: Path,
    stream: TextIO,
    delimiter: str,
    layout: Layout | None,
    header: str | None,
    domain_column: str | None,
) -> StoredArray:
    """Read a table from text. For the options see :func:`~gyrobn.data.open_array`."""
    lines = _lines(stream, delimiter)
    first = next(lines, None)
    if first is None:
        raise ValueError("it is empty")
    names = first.fields if _is_header(path, first.fields, header) else None
    column = None
    if names is not None and "" in names:
        raise ValueError(
            f"column {names.index('') + 1} has no name in the header: if it is the index of a "
            "pandas table, write the table with index=False"
        )
    if domain_column is not None:
        if names is None:
            raise parameter_error(
                f"{path} has no header, a first line with names, which ", "domain_column", " needs"
            )
        column = place_of(names, domain_column)
    labels: list[str] = []
    width = len(first.fields)

    def rows() -> Iterator[_Line]:
        for line in lines if names is not None else chain([first], lines):
            if len(line.fields) != width:
                raise ValueError(
                    f"line {line.number} has {len(line.fields)} fields separated by "
                    f"{delimiter!r}, the first line has {width}"
                    + _other_delimiter(*first.fields, *line.fields)
                )
            if column is not None:
                labels.append(line.fields.pop(column).strip())
                if not labels[-1]:
                    raise ValueError(f"line {line.number} has no label")
            yield line

    def blocks() -> Iterator[Any]:
        samples, size = rows(), max(1, FIELDS // width)
        while block := list(islice(samples, size)):
            try:
                numbers = np.array([line.fields for line in block], dtype=np.float64)
            except ValueError as error:
                raise (_no_number(path, block, names, column) or error) from None
            yield numbers

    form = Form(table=True, layout=layout, names=None if names is None else tuple(names))
    array = spool(path, blocks(), width - (column is not None), np.float64, form)
    if column is not None:
        array.form = replace(form, labels=np.asarray(labels, dtype=np.str_), column=column)
    return array


@dataclass(slots=True)
class _Line:
    """The fields of a row, and the number of its last line in the file."""

    number: int
    fields: list[str]


def _lines(stream: TextIO, delimiter: str) -> Iterator[_Line]:
    """Yield the rows; only the last lines may be empty."""
    reader = csv.reader(stream, delimiter=delimiter, strict=True)
    empty = None
    for fields in reader:
        if not fields:
            empty = empty or reader.line_num
        elif empty:
            raise ValueError(f"line {empty} is empty")
        else:
            yield _Line(reader.line_num, fields)


def _is_header(path: Path, fields: list[str], header: str | None) -> bool:
    """Return whether the first line holds names, if nobody says so; names are no numbers."""
    if header is not None:
        return check_choice("header", header, HEADERS) == "yes"
    numbers = [is_number(field) for field in fields]
    counted = len(fields) > 1 and fields == [str(k) for k in range(len(fields))]
    if counted or any(numbers) != all(numbers):
        what = "0, 1, …" if counted else "words and numbers"
        hint = _other_delimiter(*fields)
        what += f"{hint}; or say" if hint else ": say"
        raise parameter_error(
            f"the first line of {path} holds {what} whether it is a header, with names, by ",
            "header",
            values=HEADERS,
        )
    return not any(numbers)


def _other_delimiter(*fields: str, marks: str = ";\t") -> str:
    """Return a hint if fields contain a character that other programs put between fields."""
    if not set("".join(fields)) & set(marks):
        return ""
    return ": .csv is for commas, .tsv for tabs, and numbers have decimal points"


def _no_number(
    path: Path, block: list[_Line], names: list[str] | None, column: int | None
) -> ValueError | None:
    """Return an error about the first field of some rows that is no number."""
    fields = ((line, k, field) for line in block for k, field in enumerate(line.fields))
    bad = [found for found in fields if not is_number(found[-1])]
    if not bad:
        return None
    line, k, field = bad[0]
    k += column is not None and k >= column
    text = f"line {line.number} of {path} has {field[:40]!r} in column {k + 1}"
    parts = field.replace(",", " ").split()  # a label may have spaces and commas, too
    numbers = len(parts) > 1 and all(map(is_number, parts))
    if hint := _other_delimiter(field, marks="; \t," if numbers else ";\t"):
        return ValueError(f"{text}, expected a number{hint}")
    if names is None or column is not None or not field.strip():
        return ValueError(f"{text}, expected a number")
    text += f", {names[k]}, expected a number: if that column holds labels, name it by "
    return parameter_error(text, "domain_column")


# ---------------------------------------------------------------------- writing


def flat(samples: Any, form: Form) -> Any:
    """Return samples as rows of numbers, in the order of a form."""
    return samples.reshape(len(samples), -1) if form.layout is None else form.layout.pack(samples)


@contextmanager
def create_text(path: Path, form: Form, delimiter: str) -> Iterator[Callable[[int, Any], Any]]:
    """Make a table; yield a function that appends samples."""
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        if form.names is not None:
            writer.writerow(form.names)

        def put(start: int, chunk: Any) -> None:
            chunk = flat(chunk, form)
            # the fewest digits that give the same number again; those of a list are of float64
            rows = (chunk if chunk.dtype == np.float64 else chunk.astype(np.str_)).tolist()
            if form.labels is not None:
                own = form.labels[start : start + len(rows)].tolist()
                for row, label in zip(rows, own, strict=True):
                    row.insert(form.column, label)
            writer.writerows(rows)

        yield put
