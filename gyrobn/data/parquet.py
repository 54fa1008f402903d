"""Tables in ``.parquet`` files, by pyarrow, which is imported on first use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.data.layouts import Layout
from gyrobn.data.stored import Form, StoredArray, library
from gyrobn.data.tables import FIELDS, flat, place_of, spool

LIBRARIES = ("pyarrow", "pyarrow.parquet")


def open_parquet(path: Path, layout: Layout | None, domain_column: str | None) -> StoredArray:
    """Read a table whose columns are numbers, except for one that may hold labels."""
    arrow, parquet = (library(name, ".parquet") for name in LIBRARIES)
    with path.open("rb") as stream, parquet.ParquetFile(stream) as file:
        schema = file.schema_arrow
        names = list(schema.names)
        column = None if domain_column is None else place_of(names, domain_column)
        types = [kind for k, kind in enumerate(schema.types) if k != column]
        for name, kind in zip(names, schema.types, strict=True):
            if name != domain_column and kind not in (arrow.float32(), arrow.float64()):
                raise ValueError(
                    f"column {name!r} holds {kind}, expected float or double: write the table "
                    "without it, or convert it"
                )
        dtype = np.float32 if all(kind == arrow.float32() for kind in types) else np.float64
        labels: list[Any] = []

        def blocks() -> Iterator[Any]:
            for batch in file.iter_batches(max(1, FIELDS // max(1, len(names)))):
                columns = list(batch.columns)
                if column is not None:
                    own = columns.pop(column).to_pylist()
                    if None in own:
                        row = len(labels) + own.index(None)
                        raise ValueError(f"row {row} has no label in {domain_column!r}")
                    labels.extend(own)
                # what is missing becomes NaN, which is reported as such
                arrays = [one.to_numpy(zero_copy_only=False) for one in columns]
                yield np.stack(arrays, axis=1) if arrays else np.empty((len(batch), 0))

        form = Form(table=True, layout=layout, names=tuple(names))
        array = spool(path, blocks(), len(types), dtype, form)
    if column is not None:
        kind = schema.types[column]
        kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
        if arrow.types.is_integer(kind):  # NumPy would make floats of some integers of 64 bits
            values = np.asarray(labels, dtype=kind.to_pandas_dtype())
        else:
            # others, such as dates, stay as they are, for the error that names the first of them
            text = all(isinstance(label, str) for label in labels)
            values = np.asarray(labels, dtype=np.str_ if text else object)
        array.form = replace(form, labels=values, column=column)
    return array


@contextmanager
def create_parquet(
    path: Path, width: int, dtype: "np.dtype[Any]", form: Form
) -> Iterator[Callable[[int, Any], Any]]:
    """Make a table with columns of numbers; yield a function that appends samples."""
    arrow, parquet = (library(name, ".parquet") for name in LIBRARIES)
    numbers = arrow.from_numpy_dtype(dtype.newbyteorder("="))
    fields = [(f"x{k}", numbers) for k in range(width)]
    if form.names is not None:
        names, kinds = list(form.names), [numbers] * width
        if form.labels is not None:
            kinds.insert(form.column, arrow.array(form.labels[:1]).type)
        fields = list(zip(names, kinds, strict=True))
    schema = arrow.schema(fields)
    with path.open("xb") as stream, parquet.ParquetWriter(stream, schema) as writer:

        def put(start: int, chunk: Any) -> None:
            rows = flat(chunk, form).astype(dtype.newbyteorder("="), copy=False)
            columns = [arrow.array(rows[:, k]) for k in range(width)]
            if form.labels is not None:
                own = arrow.array(form.labels[start : start + len(rows)])
                columns.insert(form.column, own)
            writer.write_batch(arrow.record_batch(columns, schema=schema))

        yield put
