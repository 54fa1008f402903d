"""The dtype in which a layer computes: the widest of its arrays, and float32 at least."""

from typing import Any

from gyrobn.backends import Array, namespace_of


def is_half(x: Array) -> bool:
    """Return whether an array is in half precision: float16 or bfloat16."""
    return bool(namespace_of(x).finfo(x.dtype).bits < 32)


def common_dtype(*arrays: Array | None) -> Any:
    """Return the widest dtype, float32 at least: in half precision geometry has three digits."""
    here = [a for a in arrays if a is not None]
    xp, dtype = namespace_of(*here), here[0].dtype
    dtypes = {a.dtype for a in here}
    if dtypes == {dtype} and dtype in (xp.float32, xp.float64):
        return dtype  # asking the library takes longer
    return xp.result_type(xp.float32, *dtypes)


def cast(x: Array | None, dtype: Any) -> Any:
    """Return an array in a dtype; None stays None."""
    return x if x is None or x.dtype == dtype else namespace_of(x).astype(x, dtype)
