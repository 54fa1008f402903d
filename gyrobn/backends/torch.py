"""PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gyrobn.backends import Array
from gyrobn.backends.numpy import while_loop as eager_while_loop

State = tuple[Array, ...]


def differentiable(*arrays: Array) -> bool:
    """Tell whether autograd, backward or forward, follows any of ``arrays``."""
    tensors = [a for a in arrays if isinstance(a, torch.Tensor)]
    if torch.is_grad_enabled() and any(a.requires_grad for a in tensors):
        return True
    return any(
        torch._C._functorch.is_functorch_wrapped_tensor(a)
        or torch.autograd.forward_ad.unpack_dual(a).tangent is not None  # type: ignore[no-untyped-call]
        for a in tensors
    )


def hides_values(x: Array) -> bool:
    """Tell whether ``x`` is batched by ``vmap``, so that ``bool(x)`` would fail."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def stop_gradient(x: Array) -> Array:
    """Return the values of ``x`` outside the graph."""
    return x.detach()


def while_loop(
    condition: Callable[[State], Array], body: Callable[[State], State], state: State, limit: int
) -> State:
    """Run ``body`` while ``condition`` holds; under ``vmap``, exactly ``limit`` times.

    Under ``vmap`` no value can be looked at, so the body itself must leave a finished state alone.
    """
    if any(hides_values(s) for s in state):
        for _ in range(limit):
            state = body(state)
        return state
    return eager_while_loop(condition, body, state, limit)


def device(x: Array) -> Any:
    """Return the device of ``x``."""
    return x.device


def vecdot(x: Array, y: Array) -> Array:
    """Return the inner product along the last axis.

    A product of matrices where the elementwise product would be large: above 32 MiB, fresh memory
    comes from the operating system a page at a time, and that costs more than the arithmetic.
    """
    if y.ndim == 1:
        return torch.matmul(x, y)
    if max(x.nbytes, y.nbytes) < 2**25:
        return (x * y).sum(-1)
    return torch.matmul(x[..., None, :], y[..., None])[..., 0, 0]


def add_product(total: Array, scalar: Any, vector: Array, in_place: bool) -> Array:
    """Return ``total + scalar * vector``, with one scalar a vector, without a temporary."""
    if isinstance(scalar, float):
        return total.add_(vector, alpha=scalar) if in_place else total.add(vector, alpha=scalar)
    scalar = scalar[..., None]
    return total.addcmul_(scalar, vector) if in_place else total.addcmul(scalar, vector)


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` on the host."""
    return x.detach().cpu().numpy()


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` as a tensor in the dtype and on the device of ``like``."""
    return torch.as_tensor(a, dtype=like.dtype, device=like.device)
