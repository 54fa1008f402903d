"""Half precision: a layer computes it in float32, and returns the dtype of its input."""

from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def wide(x: Tensor) -> Tensor:
    """Return an array in float32 if it is in half precision."""
    return x.float() if x.dtype in HALF else x


def wide_points(manifold: Any, x: Tensor) -> Tensor:
    """Return points in float32 if they are in half precision, projected as rounding moved them."""
    return manifold.project(x.float()) if x.dtype in HALF else x


def rounded(y: Tensor, *inputs: Tensor) -> Tensor:
    """Return the output in the dtype of the inputs, if they are in half precision."""
    dtype = inputs[0].dtype
    return y.to(dtype) if dtype in HALF and all(x.dtype == dtype for x in inputs) else y
