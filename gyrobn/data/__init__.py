"""Arrays in files, read and written in chunks: ``.npy``, ``.npz``, zarr, ``.csv``, MATLAB, HDF5."""

from gyrobn.data.files import StoredArray, open_array
from gyrobn.data.writing import ArrayWriter, create_array, replacing

__all__ = ["ArrayWriter", "StoredArray", "create_array", "open_array", "replacing"]
