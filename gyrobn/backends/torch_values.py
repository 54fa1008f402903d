"""What is known of tensors; and constants with which NumPy computes in torch's place."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad

from gyrobn.backends.contract import Array, State


def differentiable(*arrays: Array) -> bool:
    """Return whether autograd, backward or forward, follows any of ``arrays``."""
    if torch.is_grad_enabled():
        for a in arrays:
            if isinstance(a, torch.Tensor) and a.requires_grad:
                return True
    if (no_transform() and forward_ad._current_level < 0) or torch.compiler.is_compiling():
        return False
    return any(
        torch._C._functorch.is_functorch_wrapped_tensor(a)
        or forward_ad.unpack_dual(a).tangent is not None  # type: ignore[no-untyped-call]
        for a in arrays
        if isinstance(a, torch.Tensor)
    )


def no_transform() -> bool:
    """Return whether no transformation of torch.func is under way."""
    return torch._C._functorch.peek_interpreter_stack() is None


_PLAIN = torch.Tensor, torch.nn.Parameter


def is_plain(x: Array) -> bool:
    """Return, fast, whether ``x`` has values: it is not traced by the compiler or by torch.func."""
    return type(x) in _PLAIN and no_transform()


FEW = 2**15
"""Up to this size NumPy takes less time. torch gives larger arrays to several threads."""


def few(*arrays: Any) -> AbstractContextManager[list[Any]]:
    """Return a context with constants: as NumPy's arrays, if they are few."""
    if torch.compiler.is_compiling():
        return nullcontext(list(arrays))
    values = if_few(arrays)
    return nullcontext(from_few(arrays)) if values is None else _Quiet(values)


class _Quiet(np.errstate):
    """A context with some values, in which NumPy warns of nothing."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(all="ignore")
        self.values = values

    def __enter__(self) -> list[Any]:  # type: ignore[override]
        super().__enter__()
        return self.values


def no_autocast(x: Array) -> AbstractContextManager[Any]:
    """Return a context without autocast on the device of ``x``; torch raises for those without it.

    A context that does nothing stays out of graphs.
    """
    kind = x.device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def from_few(values: Iterable[Any]) -> list[Any]:
    """Return tensors of NumPy's arrays and numbers; what is a tensor, or None, stays."""
    return [tensor(a) if isinstance(a, (np.ndarray, np.generic)) else a for a in values]


def by_numpy(function: Callable[..., State], *arrays: Any) -> list[Any]:
    """Return ``function(*arrays)``, of constants; NumPy computes it if they are few."""
    values = if_few(arrays)  # and not the context above, which takes longer
    if values is None:
        return from_few(function(*from_few(arrays)))
    with np.errstate(all="ignore"):
        return from_few(function(*values))


def if_few(arrays: Iterable[Any]) -> list[Any] | None:
    """Return constants as NumPy's arrays, or None if torch has to compute with them.

    It has to if they are many, or while a dispatch mode records or counts the operations.
    """
    if torch._C._len_torch_dispatch_stack() or not no_transform():
        return None
    values = []
    for a in arrays:
        if isinstance(a, torch.Tensor):
            if type(a) not in _PLAIN or not a.is_cpu or a.numel() > FEW or a.is_neg():
                return None
            a = seen_by_numpy(a)
        values.append(a)
    return values


def seen_by_numpy(a: Array) -> "np.ndarray[Any, Any]":
    """Return the memory of a plain tensor as an array of NumPy.

    FSDP frees the memory of parameters, which torch refuses once it has handed it to NumPy itself.
    So memory that may be a parameter's takes the way of the standard, which torch does not record.
    """
    own = a.grad_fn is None and (a.requires_grad or type(a) is not torch.Tensor)
    values: np.ndarray[Any, Any]
    values = np.from_dlpack(a.detach()) if own or a._is_view() else a.detach().numpy()
    return values


def quicker_by_numpy(least: int, *arrays: Array) -> bool:
    """Return whether NumPy multiplies constants, one of ``least`` numbers, faster than torch.

    It does on one thread. torch multiplies while a dispatch mode records or counts the operations.
    """
    return (
        not torch.compiler.is_compiling()  # a size would bind a program to some sizes
        and torch.get_num_threads() == 1
        and not torch._C._len_torch_dispatch_stack()
        and not differentiable(*arrays)
        and all(is_plain(a) and a.is_cpu and not a.is_neg() for a in arrays)
        and max(a.numel() for a in arrays) >= least
    )


def through_numpy(function: Callable[..., Any], *arrays: Array) -> Array:
    """Return what a function of NumPy, which makes a new array, computes of plain tensors."""
    with np.errstate(all="ignore"):  # torch does not warn of infinities either
        return torch.from_numpy(function(*map(seen_by_numpy, arrays)))


def owned(a: Any) -> Any:
    """Return an array in memory of its own: the owner of other memory may free or change it."""
    view = isinstance(a, np.ndarray) and not (a.flags.owndata and a.flags.writeable)
    return a.copy() if view else a


def tensor(a: Any) -> Any:
    """Return an array of NumPy, or a number, as a tensor."""
    return torch.from_numpy(owned(np.asarray(a)))
