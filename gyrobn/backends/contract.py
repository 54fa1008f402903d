"""The contract of a backend: what gyrobn needs of an array library and the Array API lacks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy as np

Array = Any
"""An array of any library that follows the standard (there is no common static type yet)."""

Arrays = tuple[Array, ...]

Loop = TypeVar("Loop", bound=Arrays)
"""The state of a loop, which may be a ``NamedTuple`` of arrays."""

THIRD_ORDER = (
    "third derivatives through a matrix function or a Fréchet mean are not available: take "
    "differences of the second ones, or stop the gradient of one of the three"
)


DIFFERENTIABLE = """
abs astype atan2 broadcast_arrays broadcast_to clip concat cos cosh exp expm1 imag linalg.cholesky
linalg.det linalg.diagonal linalg.inv linalg.qr linalg.slogdet linalg.solve linalg.trace
linalg.vector_norm log log1p matmul matrix_transpose max maximum minimum moveaxis permute_dims
real reshape sin sinh sqrt squeeze stack sum take tan tanh tril vecdot where
"""
"""The functions of the standard that a library with derivatives has to differentiate twice.

Where a library lacks the derivative of a decomposition, a backend can get it by
:meth:`Backend.differentiate`, with steps of Newton's method: see ``gyrobn/backends/mlx.py``."""

STANDARD = f"""
{DIFFERENTIABLE}
all any argmax asarray bool complex64 complex128 empty_like float32 float64 finfo full full_like inf
int32 isdtype isfinite isinf isnan linalg.eigh linalg.eigvalsh linalg.svd logical_and logical_not
logical_or min nan ones ones_like result_type round take_along_axis zeros zeros_like
"""
"""All names of the standard that the package uses. Indices, masks and decompositions that are
constants need no derivative: eigenvectors are never differentiated. Where a matrix has no Cholesky
factor or no inverse, functions raise one of :data:`gyrobn.numerics.matrices.LAPACK_ERRORS` when
they are called, and not when values are read; in traced code the result is NaN. If ``float64``
is ``float32``, arrays of float64 are refused."""


class Backend(Protocol):
    """The functions of a backend, one module per library.

    A backend holds no mathematics. In doubt, answer as ``gyrobn/backends/numpy.py`` does: no values
    are hidden, nothing is differentiated, nothing is compiled. A module may also have
    ``namespace``: the functions in :data:`STANDARD`, where the library itself differs from it.
    """

    def traced(self, x: Array) -> bool:
        """Return whether the values of ``x`` cannot be read: ``bool(x)`` would fail.

        Arrays that do not depend on what is traced may be read, or not: a function that mixes them
        with others must ask about all of them.
        """

    def differentiable(self, *arrays: Any) -> bool:
        """Return whether a derivative may be asked for by ``arrays``; numbers have none.

        True is always right, and may cost time.
        """

    def stop_gradient(self, x: Array) -> Array:
        """Return the values of ``x`` as a constant to differentiation."""

    def differentiate(
        self, function: Callable[..., Arrays], constants: Arrays, *inputs: Array
    ) -> Arrays:
        """Return ``function(order, constants, *inputs)`` with derivatives by the inputs.

        ``order`` says up to which order the derivatives of the outputs must be right: 0, 1 or 2.
        The backend asks for no more than is needed, so a second derivative that nobody takes costs
        nothing. A third one is an error with the text :data:`THIRD_ORDER`.

        The values of order 0 may be made of constants only: their derivative by the inputs is not
        the one that is wanted, in no mode. An input may depend on another one, and each gets its
        partial derivative. ``constants`` are arguments since a library may have to batch them.
        """

    def self_adjoint(self, solve: Callable[[Array], Array], v: Array) -> Array:
        """Return ``solve(v)``, where ``solve`` is linear and its own transpose.

        Its derivative is ``solve`` of the derivative of ``v``. (What an iteration does to a vector
        need not be linear in it to the last digit, nor differentiable.) It closes over arrays
        that may be traced.
        """

    def while_loop(
        self,
        key: Any,
        condition: Callable[[Loop], Array],
        body: Callable[[Arrays, Loop], Loop],
        constants: Arrays,
        state: Loop,
        limit: int,
    ) -> Loop:
        """Run ``state = body(constants, state)`` while a condition holds, ``limit`` times at most.

        A library that cannot read the condition may run the body more often: the body must leave a
        finished state as it is. Nothing is differentiated. A compiler that has no loops may keep
        the body as one operation of its graph: it gets all its arrays as arguments, and
        ``repr(key)`` identifies it in a graph on disk.
        """

    def all_sum(self, x: Array, group: Any) -> Array:
        """Return the sum of ``x`` over the processes or devices of a group, the same on each.

        In a derivative, the cotangents of all members are summed likewise.
        """

    def auto_sharded(self, function: Callable[..., Any], x: Array, *args: Any) -> Any:
        """Return ``function(x, *args)``; a compiler is to choose how arrays are distributed in it.

        Only JAX has arrays whose distribution each operation must be told (explicit mesh axes).
        """

    def cached(self, make: Callable[..., Any], like: Array, *key: Any) -> Array:
        """Return the NumPy array ``make(*key)`` in the library and on the device of ``like``.

        It is kept where that is possible, since a copy to a GPU waits for the GPU: so it must not
        be written to. Floats take the dtype of ``like``.
        """

    def device(self, x: Array) -> Any:
        """Return the device on which to create arrays that are combined with ``x``, or None."""

    def to_numpy(self, x: Array) -> "np.ndarray[Any, Any]":
        """Return the values of ``x`` on the host, as a copy or a view."""

    def from_numpy(self, a: "np.ndarray[Any, Any]", like: Array) -> Array:
        """Return ``a`` as an array in the library, dtype and device of ``like``."""


if TYPE_CHECKING:  # mypy compares names, parameters and types of every backend with the contract
    from gyrobn.backends import cupy, jax, mlx, numpy, torch

    _backends: tuple[Backend, ...] = (numpy, torch, jax, cupy, mlx)
