"""MLX, Apple's library, on its GPUs and on any CPU.

Its arrays are lazy. A condition that is read makes it compute what the condition depends on.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from gyrobn.backends import numpy as eager
from gyrobn.backends import with_functions
from gyrobn.backends.contract import THIRD_ORDER, Array, Arrays, Loop
from gyrobn.backends.numpy import all_sum as all_sum
from gyrobn.backends.numpy import auto_sharded as auto_sharded

# ---------------------------------------------------------------------- values and derivatives

_in_jvp = ContextVar("_in_jvp", default=False)
"""Whether the rule of a forward derivative is under way. MLX then forgets how an array was
computed as soon as it has values, also if a further derivative needs to know."""


def _evaluated(*arrays: Any) -> bool:
    """Compute arrays, and return whether that is possible: not in ``compile`` and ``vmap``."""
    if _in_jvp.get():
        return False
    try:
        mx.eval(*arrays)
    except (ValueError, RuntimeError) as error:
        if "[eval] Attempting" not in str(error):  # there is no public test
            raise
        return False
    return True


def traced(x: Array) -> bool:
    """Return whether ``x`` is compiled, or batched by ``vmap``."""
    return not _evaluated(x)


def differentiable(*arrays: Any) -> bool:
    """Return whether there are arrays: MLX does not say which ones a transformation follows.

    To find out (evaluate them, and look whether MLX still knows how they were computed) would take
    more time under ``grad`` than it saves without.
    """
    return any(isinstance(a, mx.array) for a in arrays)


def stop_gradient(x: Array) -> Array:
    """Return ``x`` as a constant to differentiation."""
    return mx.stop_gradient(x)


def differentiate(function: Callable[..., Arrays], constants: Arrays, *inputs: Array) -> Arrays:
    """Return the values; their derivatives are those of the order that is needed."""
    count = len(constants)

    def order(k: int) -> Callable[..., Arrays]:
        return lambda *a: function(k, tuple(map(mx.stop_gradient, a[:count])), *a[count:])

    # constants are arguments, too: vmap does not know what a function closes over
    return _chain([order(k) for k in range(3)], *constants, *inputs)


def _chain(functions: list[Callable[..., Arrays]], *inputs: Array) -> Arrays:
    """Return the value of the first function, with derivatives that are those of the next ones.

    (Without both rules, MLX would differentiate the operations of the value.)
    """
    value = mx.custom_function(lambda inputs: functions[0](*map(mx.stop_gradient, inputs)))

    def pull(primals: Arrays, cotangents: Any, outputs: Arrays) -> Arrays:
        return _derivative(mx.vjp, functions[1:], primals, cotangents, outputs)

    def push(primals: Arrays, tangents: Any) -> Arrays:
        token = _in_jvp.set(True)
        try:
            return _derivative(mx.jvp, functions[1:], primals, tangents, primals)
        finally:
            _in_jvp.reset(token)

    value.vjp(pull)
    value.jvp(push)
    found: Arrays = value(inputs)  # one argument, a tuple
    return found


def _derivative(transform: Any, functions: Any, x: Arrays, v: Any, like: Arrays) -> Arrays:
    """Return a chain of the transforms of functions at x, applied to v."""
    if not functions:
        raise TypeError(THIRD_ORDER)

    def transformed(function: Callable[..., Arrays]) -> Callable[..., Arrays]:
        return lambda *a: tuple(transform(function, a[: len(x)], a[len(x) :])[1])

    full = [mx.zeros_like(a) if b is None else b for a, b in zip(like, v, strict=True)]
    return _chain([transformed(f) for f in functions], *x, *full)


def self_adjoint(solve: Callable[[Array], Array], v: Array) -> Array:
    """Return ``solve(v)``, with itself as its derivative."""
    return _linear(solve, solve, v)


def _linear(
    function: Callable[[Array], Array], transposed: Callable[[Array], Array], v: Array
) -> Array:
    """Return a linear function of v with its derivatives: itself, and its transpose."""
    value = mx.custom_function(lambda v: function(mx.stop_gradient(v)))
    value.vjp(lambda primal, cotangent, output: _linear(transposed, function, cotangent))
    value.jvp(lambda primal, tangent: _linear(function, transposed, tangent))
    found: Array = value(v)
    return found


# ---------------------------------------------------------------------- decompositions


def _constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition of constants, which MLX has on the CPU only.

    It is computed at once, so that what LAPACK cannot decompose is an error here.
    """

    def run(*arrays: Array) -> Any:
        found = function(*map(mx.stop_gradient, arrays), stream=mx.cpu)
        try:
            _evaluated(found)
        except RuntimeError as error:
            raise np.linalg.LinAlgError(str(error)) from error
        return found

    return run


_inv = _constant(mx.linalg.inv)
_qr = _constant(mx.linalg.qr)
_svd = _constant(mx.linalg.svd)
_triangle = _constant(mx.linalg.cholesky)


def _factor(A: Array) -> Array:
    """Return the Cholesky factor as a constant. MLX does not say if there is none."""
    L = _triangle(A)
    found = mx.all(_diagonal(L) > 0, axis=-1)
    if _evaluated(found) and not mx.all(found).item():
        raise np.linalg.LinAlgError("a matrix is not positive definite")
    return mx.where(found[..., None, None], L, mx.nan)


# MLX has no derivatives of these. Newton's method, with a constant inverse, gives them: each step
# from the values makes derivatives of one more order right.


def _solve(A: Array, b: Array, /) -> Array:
    """Return the solutions of linear systems."""

    def steps(order: int, constants: Arrays, A: Array, b: Array) -> Arrays:
        (W,) = constants
        X = W @ b
        for _ in range(order + 1):
            X = X + W @ (b - A @ X)
        return (X,)

    return differentiate(steps, (_inv(A),), A, b)[0]


def _cholesky(A: Array, /) -> Array:
    """Return the Cholesky factors."""

    def steps(order: int, constants: Arrays, A: Array) -> Arrays:
        (C,) = constants
        L, W = C, _inv(C) if order else C
        for _ in range(order):
            L = L + C @ _half(W @ (A - L @ L.mT) @ W.mT)
        return (L,)

    return differentiate(steps, (_factor(A),), A)[0]


def _orthogonalize(A: Array, /) -> Arrays:
    """Return Q and R, of Gram's matrix AᵀA = RᵀR."""

    def steps(order: int, constants: Arrays, A: Array) -> Arrays:
        Q, C = constants
        R, W = C, _inv(C) if order else C
        for _ in range(order):
            B, T = A @ W, R @ W
            R = R + _half(B.mT @ B - T.mT @ T).mT @ C
            Q = Q + (A - Q @ R) @ W
        return Q, R

    return differentiate(steps, _qr(A), A)


def _half(S: Array) -> Array:
    """Return the triangular T with T + Tᵀ = S."""
    return mx.tril(S) * (1.0 - 0.5 * mx.eye(S.shape[-1]))


def _singular(A: Array, /, full_matrices: bool = False) -> Arrays:
    """Return the singular value decomposition; MLX has the full one."""
    U, s, V = _svd(A)
    return U[..., : s.shape[-1]], s, V[..., : s.shape[-1], :]


# ---------------------------------------------------------------------- the standard


def _diagonal(A: Array, /) -> Array:
    """Return the diagonals. (MLX has one with a derivative that has no forward derivative.)"""
    return mx.sum(mx.where(mx.eye(A.shape[-1]) > 0, A, 0.0), axis=-1)


def _take(x: Array, indices: Array, /, *, axis: int) -> Array:
    """Return entries along an axis; its transpose has a forward derivative, which MLX lacks."""

    def take(x: Array) -> Array:
        return mx.take(x, indices, axis=axis)

    def put(y: Array) -> Array:
        return mx.vjp(take, [mx.zeros(x.shape, x.dtype)], [y])[1][0]

    return _linear(take, put, x)


def _on_its_device(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function with arguments of the standard; arrays of MLX are on no device."""

    def made(*args: Any, device: None = None, copy: bool | None = None, **options: Any) -> Array:
        return function(*args, **options)

    return made


_creating = "asarray astype empty empty_like full full_like ones ones_like zeros zeros_like"

linalg = with_functions(
    mx.linalg,
    cholesky=_cholesky,
    det=partial(mx.linalg.det, stream=mx.cpu),
    diagonal=_diagonal,
    # "U" is "L" to LAPACK, which counts by columns, and as accurate for graded matrices as NumPy's
    eigh=_constant(partial(mx.linalg.eigh, UPLO="U")),
    eigvalsh=_constant(partial(mx.linalg.eigvalsh, UPLO="U")),
    inv=lambda A, /: _solve(A, mx.eye(A.shape[-1])),
    qr=_orthogonalize,
    slogdet=partial(mx.linalg.slogdet, stream=mx.cpu),
    solve=_solve,
    svd=_singular,
    trace=lambda A, /: mx.sum(_diagonal(A), axis=-1),
    vector_norm=mx.linalg.norm,
)

namespace = with_functions(
    mx,
    **{name: _on_its_device(getattr(mx, name)) for name in _creating.split()},
    bool=mx.bool_,
    clip=lambda x, /, min=None, max=None: mx.clip(x, min, max),
    float64=mx.float32,
    linalg=linalg,
    take=_take,
    vecdot=lambda x, y, /, *, axis=-1: mx.sum(x * y, axis=axis),
)
"""MLX as the standard has it. Its functions have seven digits, of float64 too: it is refused."""


# ---------------------------------------------------------------------- loops, and the host


def while_loop(
    key: Any,
    condition: Callable[[Loop], Array],
    body: Callable[[Arrays, Loop], Loop],
    constants: Arrays,
    state: Loop,
    limit: int,
) -> Loop:
    """Run ``body`` while ``condition`` holds; ``limit`` times if it cannot be read."""
    if _evaluated(constants, state):
        return eager.while_loop(key, condition, body, constants, state, limit)
    for _ in range(limit):
        state = body(constants, state)
    return state


def cached(make: Callable[..., Any], like: Array, *key: Any) -> Array:
    """Return ``make(*key)`` like ``like``, anew: memory is shared, so nothing waits for a copy."""
    return eager.made(make, like, *key)


def device(x: Array) -> Any:
    """Return None: operations have a device, and arrays have none."""
    return None


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` on the host."""
    return np.array(x)


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` as an array of MLX in the dtype of ``like``."""
    return mx.array(np.asarray(a), dtype=like.dtype)
