"""``.mat`` files of MATLAB, by SciPy, which is imported on first use."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.data.stored import Form, StoredArray, choose
from gyrobn.numerics.checks import check_choice, parameter_error

__all__ = ["AXES", "create_mat", "open_mat"]

AXES = ("first", "last")

NUMBERS = frozenset(
    {"double", "single", "logical", "int8", "int16", "int32", "int64"}
    | {"uint8", "uint16", "uint32", "uint64"}
)
"""The classes of MATLAB whose arrays are numbers."""

FLOATS = {"double": np.float64, "single": np.float32}

MOST = 2**32
"""Bytes of a variable, at most, in the format that SciPy writes."""

SAVE = "save it in MATLAB with save('file.mat', 'X', '-v7')"


class LoadedArray(StoredArray):
    """An array that is in memory."""

    def __init__(self, path: Path, key: str, array: Any, form: Form) -> None:
        super().__init__(path, key, array.shape, array.dtype, form)
        self._array = array

    def _read(self, start: int, stop: int) -> Any:
        return self._array[start:stop]

    def close(self) -> None:
        """Do nothing: the file is closed."""


def open_mat(path: Path, key: str | None, axis: str | None) -> StoredArray:
    """Read a variable of a file, all of it: MATLAB compresses variables as a whole."""
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import matfile_version

    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about variables that are not read
        version = matfile_version(file)[0]
        if version != 1:
            kind = "in version 7.3, which is HDF5" if version == 2 else "in version 4"
            raise ValueError(f"it is {kind}: {SAVE}")
        file.seek(0)
        kinds = {name: (shape, kind) for name, shape, kind in whosmat(file)}
        key = choose(path, kinds, key)
        shape, kind = kinds[key]
        if kind not in NUMBERS:
            raise ValueError(f"{key} is a {kind}, expected an array of numbers")
        axis = _axis(path, key, shape, axis)
        file.seek(0)
        array = loadmat(file, variable_names=[key])[key]
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise ValueError(f"{key} is no array of shape {shape}")
    # whole numbers may be stored as integers; SciPy's mat_dtype would drop imaginary parts
    if kind in FLOATS and array.dtype.kind in "iu":
        array = array.astype(FLOATS[kind])
    array = np.ascontiguousarray(np.moveaxis(array, -1, 0) if axis == "last" else array)
    return LoadedArray(path, key, array, Form(axis=axis))


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
        whole = np.moveaxis(array, 0, -1) if form.axis == "last" else array
        savemat(file, {name: whole})
