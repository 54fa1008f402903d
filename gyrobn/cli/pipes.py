"""Standard input and output in place of a file, written ``-``."""

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gyrobn.data import ArrayWriter, StoredArray, check_options, create_array
from gyrobn.data.joined import Change, as_it_was
from gyrobn.data.npy import copied
from gyrobn.data.stored import reading
from gyrobn.data.tables import DELIMITERS, open_text

PIPE = Path("-")

FORMATS = ("npy", "csv", "tsv")
"""Formats that can be read from a pipe, and written to one."""

STDIN = Path("stdin")


def open_pipe(kind: str | None, given: dict[str, Any]) -> StoredArray:
    """Read an array from standard input into a temporary file, with options of ``open_array``."""
    suffix = f".{kind or FORMATS[0]}"
    check_options(STDIN, suffix, given)
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or stream.isatty():
        raise ValueError("IN is -, and nothing is piped into this command")
    try:
        with reading(STDIN):
            if suffix in DELIMITERS:
                text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
                how = (given[name] for name in ("layout", "header", "domain_column"))
                try:
                    return open_text(STDIN, text, DELIMITERS[suffix], *how)
                finally:
                    text.detach()  # or it would close standard input
            return copied(STDIN, None, stream)
    except ValueError as error:
        if kind is None:
            error.add_note("a pipe holds a .npy file unless --format csv or --format tsv says so")
        raise


@contextmanager
def create_pipe(
    kind: str | None, source: StoredArray, change: Change = as_it_was
) -> Iterator[ArrayWriter]:
    """Write an array to a temporary file, and that to standard output when it is complete."""
    stream: Any = getattr(sys.stdout, "buffer", None)
    if stream is None or stream.isatty():
        raise ValueError("OUT is -, and standard output is no pipe and no file")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"stdout.{kind or FORMATS[0]}"
        shape, form = change(source)
        with create_array(path, shape, source.stored, form=form) as out:
            yield out
        sys.stdout.flush()
        with path.open("rb") as file:
            shutil.copyfileobj(file, stream)
        stream.flush()
