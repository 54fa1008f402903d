"""``.mat`` files of MATLAB, versions 5 to 7.

SciPy writes them. It does not read them here, because its reader trusts the numbers in a file, and
a damaged one can end the process.
"""

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gyrobn.data.npy import GROWTH
from gyrobn.data.stored import Form, SlicedArray, StoredArray, choose
from gyrobn.numerics.checks import check_choice, parameter_error

AXES = ("first", "last")

NUMBERS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8"}
NUMBERS |= {15: "u8"}
"""The classes of arrays of numbers in MATLAB, each with its dtype."""
OTHERS = {1: "cell array", 2: "struct", 4: "char array", 5: "sparse matrix", 16: "function handle"}

STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8"}
STORED |= {13: "u8"}
"""The types of numbers in a file: MATLAB stores whole numbers as integers if that is shorter."""
MATRIX, COMPRESSED = 14, 15
COMPLEX = 0x800

HEAD = 128
"""Bytes before the first variable."""
BEGINNING = 1 << 12
"""Bytes in which the description of a variable ends."""
MOST = 2**32
"""Bytes of a variable, at most."""

SAVE = "save it in MATLAB with save('file.mat', 'X', '-v7')"


# ---------------------------------------------------------------------- reading


def open_mat(path: Path, key: str | None, axis: str | None) -> StoredArray:
    """Read a variable of a file, all of it: MATLAB compresses variables as a whole."""
    data = memoryview(path.read_bytes())
    order = {b"IM": "<", b"MI": ">"}.get(bytes(data[HEAD - 2 : HEAD]))
    if order is None:
        raise ValueError(f"it is no .mat file of version 5 to 7: {SAVE}")
    if struct.unpack_from(f"{order}H", data, HEAD - 4)[0] >> 8 != 1:
        raise ValueError(f"it is a .mat file of version 7.3, which is HDF5: {SAVE}")
    variables = {one.name: one for one in _variables(data[HEAD:], order) if one.name}
    key = choose(path, variables, key)
    one = variables[key]
    if one.kind not in NUMBERS:
        what = OTHERS.get(one.kind, "object")
        raise ValueError(f"{key} is a {what}, expected an array of numbers")
    if len(one.shape) < 2 or min(one.shape) < 0:
        raise ValueError(f"{key} has the shape {one.shape}, which is none")
    axis = _axis(path, key, one.shape, axis)
    array = _array(one, order)
    array = np.ascontiguousarray(np.moveaxis(array, -1, 0) if axis == "last" else array)
    return SlicedArray(path, key, array, Form(axis=axis))


class _Variable(NamedTuple):
    """What a file says of a variable."""

    name: str
    kind: int
    is_complex: bool
    shape: tuple[int, ...]
    start: int
    """Where its numbers begin."""
    data: memoryview
    packed: bool


def _element(
    data: memoryview, at: int, order: str, whole: bool = True
) -> tuple[int, memoryview, int]:
    """Return type and content of the element at a place, and where the next one begins.

    If ``whole`` is not set, the content may end where the data end.
    """
    if at + 8 > len(data):
        raise ValueError("it is cut off")
    code, size = struct.unpack_from(f"{order}II", data, at)
    if code >> 16:  # a short one, inside of its tag
        start, size, code, following = at + 4, code >> 16, code & 0xFFFF, at + 8
    else:
        start = at + 8
        following = start + size + (-size % 8 if code != COMPRESSED else 0)
    if whole and start + size > len(data):
        raise ValueError("it is cut off")
    return code, data[start : start + size], following


def _variables(data: memoryview, order: str) -> Iterator[_Variable]:
    """Yield the variables of a file, of which only the beginnings are unpacked."""
    at = 0
    while at < len(data):
        code, content, at = _element(data, at, order)
        head, packed = content, code == COMPRESSED
        if packed:
            unpacked = zlib.decompressobj().decompress(content, BEGINNING)
            code, head, _ = _element(memoryview(unpacked), 0, order, whole=False)
        if code != MATRIX:
            raise ValueError(f"it has an element of type {code} where a variable should be")
        yield _Variable(*_described(head, order), content, packed)


def _described(data: memoryview, order: str) -> tuple[str, int, bool, tuple[int, ...], int]:
    """Return the first fields of a variable, from its first bytes: flags, shape, name."""
    _, first, at = _element(data, 0, order)
    (flags,) = struct.unpack_from(f"{order}I", first)
    kind, sizes = flags & 0xFF, memoryview(b"")
    if kind in NUMBERS or kind in OTHERS:  # an object has no shape
        _, sizes, at = _element(data, at, order)
    _, name, at = _element(data, at, order)
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    return bytes(name).decode("utf-8"), kind, bool(flags & COMPLEX), shape, at


def _array(one: _Variable, order: str) -> Any:
    """Return the numbers of a variable."""
    if one.is_complex:
        raise ValueError(f"{one.name} holds complex numbers, expected real ones")
    data = _unpacked(one.data, order) if one.packed else one.data
    code, content, _ = _element(data, one.start, order)
    if code not in STORED:
        raise ValueError(f"{one.name} is damaged or cut off")
    stored, size = np.dtype(order + STORED[code]), len(content)
    if math.prod(one.shape) * stored.itemsize != size:
        raise ValueError(f"{one.name} of shape {one.shape} has {size:,} bytes of {stored}")
    numbers = np.frombuffer(content, stored).astype(NUMBERS[one.kind])
    return numbers.reshape(one.shape, order="F")


def _unpacked(packed: memoryview, order: str) -> memoryview:
    """Unpack a variable, compare its check sum, and return its bytes after the tag."""
    stream = zlib.decompressobj()
    _, size = struct.unpack(f"{order}II", stream.decompress(packed, 8))
    if size > GROWTH * len(packed):
        raise ValueError(f"it declares {size:,} bytes, more than are in it")
    data = stream.decompress(stream.unconsumed_tail, size)
    rest = stream.decompress(stream.unconsumed_tail, 1)
    if len(data) != size or rest or not stream.eof:
        raise ValueError("a compressed variable is cut off")
    return memoryview(data)


def _axis(path: Path, key: str, shape: tuple[int, ...], axis: str | None) -> str:
    """Return the axis that counts the samples: the given one, or that beside square matrices."""
    if axis is not None:
        return check_choice("axis", axis, AXES)
    if len(shape) == 3 and (shape[0] == shape[1]) != (shape[1] == shape[2]):
        return "last" if shape[0] == shape[1] else "first"
    size = " × ".join(map(str, shape))
    raise parameter_error(
        f"{key} of {path} is {size}, {shape[0]} samples of shape {shape[1:]} or {shape[-1]} of "
        f"shape {shape[:-1]}: say which axis counts the samples by ",
        "axis",
        values=AXES,
    )


# ---------------------------------------------------------------------- writing


@contextmanager
def create_mat(
    path: Path, shape: tuple[int, ...], dtype: "np.dtype[Any]", key: str | None, form: Form
) -> Iterator[Callable[[int, Any], Any]]:
    """Collect samples in memory and write them at the end; yield a function that puts them."""
    from scipy.io import savemat

    if math.prod(shape) * dtype.itemsize >= MOST:
        raise ValueError("a .mat file holds at most 4 GB: name a .npy or .zarr file")
    array = np.empty(shape, dtype.newbyteorder("="))
    name = key if key and key.isidentifier() and key.isascii() and key[0] != "_" else "X"
    with path.open("xb") as file:

        def put(start: int, chunk: Any) -> None:
            array[start : start + len(chunk)] = chunk

        yield put
        savemat(file, {name: np.moveaxis(array, 0, -1) if form.axis == "last" else array})
