"""The contract of a backend: what gyrobn needs of an array library and the Array API lacks.

A shim is a module of functions with exactly the names and signatures of :class:`Backend`. mypy
checks the types of every shim against it, and ``tests/test_backends.py`` the names.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy as np

Array = Any
"""An array of any library that follows the standard (there is no common static type yet)."""

State = tuple[Array, ...]
"""Several arrays."""

Loop = TypeVar("Loop", bound=State)
"""The state of a loop, which may be a ``NamedTuple``, also with further tuples in it."""

Rule = Callable[..., State]
"""A function of arrays that returns several arrays."""

Primal = Callable[..., tuple[State, State]]
"""A function that returns its outputs, and the arrays that its derivative needs."""

Partials = Callable[[State, State], Sequence[Sequence[Callable[[], Array]]]]
"""A function of inputs and outputs: per output and input, a function that returns a derivative."""

SECOND_ORDER = (
    "the second derivative of a matrix function is not available: take it by differences of the "
    "first, or stop the gradient of one of the two"
)
"""The error of a shim whose ``with_derivative`` is differentiated twice, and has no rule for it."""

THIRD_ORDER = (
    "the third derivative of a matrix function or of a mean is not available: take it by "
    "differences of the second, or stop the gradient of one of the three"
)
"""The error of a matrix function, or of a mean, that is differentiated three times."""


class RootRules(NamedTuple):
    """The rules from which :meth:`Backend.implicit` derives the derivative of a root."""

    image: Callable[..., State]
    """``image(constants, *inputs)`` returns the arrays of the image as functions of the root and
    the inputs, and last the gradient, which is zero at the root."""
    inverse: Callable[..., tuple[Array, Array | None]]
    """``inverse(image, slopes, constants, v, also, *inputs, back=False)`` returns minus the inverse
    of the gradient's derivative by the root, in coordinates, applied to v. With a shortcut, it
    takes slopes of the image and adds to v what they contribute to a step. If the batch lies on
    several ranks, it sums v and ``also`` over them, and returns both. ``also`` is the change of the
    summed array of the image. With ``back`` it is the slope of that array, and v gets what it
    contributes to a step, too."""
    move: Callable[..., Array]
    """``move(constants, step, *inputs)`` returns the root after a small step in coordinates."""
    quick: bool
    """Whether a first derivative has a shortcut."""
    shape: tuple[int, ...]
    """The shape of a step."""
    slopes: Callable[..., State] | None = None
    """``slopes(constants, image, slope, *inputs)`` returns the slopes of the inputs from that of an
    image of one array, if there is a formula for constants."""
    total: Callable[[Array], Array] | None = None
    """In a batch on several ranks: the sum over them. The gradient is that of the samples here,
    and so is the last array of the image, whose value is the sum over all ranks."""
    fall: Callable[[State, Array], Array] | None = None
    """``fall(constants, step)`` returns how a small step changes that sum."""
    sums: Callable[..., State] | None = None
    """``sums(constants, *inputs)`` returns the last two of the constants, which are sums over all
    ranks, with their derivatives. Only a second derivative needs it."""
    differentiable: Callable[[], bool] = lambda: True
    """Return whether the rule can be differentiated, to any order."""
    twice: Callable[..., State] | None = None
    """If it cannot: ``twice(constants, *inputs)`` returns the root and the image by operations that
    can be differentiated twice. None refuses a second derivative."""


class Backend(Protocol):
    """The functions of a shim.

    A shim holds no mathematics. Where a library has no gradients, no tracing and no compiler, most
    of the functions return their argument; ``gyrobn/backends/numpy.py`` has them in that form, to
    be imported by other shims.
    """

    # ------------------------------------------------------------------ what is known of an array

    def differentiable(self, *arrays: Array) -> bool:
        """Return whether a gradient may be asked for through ``arrays``; numbers have none."""

    def hides_values(self, x: Array) -> bool:
        """Return whether ``x`` is traced: its values cannot be read, and ``bool(x)`` fails."""

    def plain(self, x: Array) -> bool:
        """Return whether a later call may reuse what this call computes from ``x``.

        Not while a transformation or a compiler runs: its intermediate arrays must not leak.
        """

    def device(self, x: Array) -> Any:
        """Return the device on which to create arrays that are combined with ``x``.

        None if the library moves new arrays to where they are needed.
        """

    # ------------------------------------------------------------------ control of a computation

    def stop_gradient(self, x: Array) -> Array:
        """Return the values of ``x`` as a constant to differentiation."""

    def while_loop(
        self, condition: Callable[..., Array], body: Callable[..., Loop], state: Loop, limit: int
    ) -> Loop:
        """Run ``state = body(state)`` while ``condition(state)`` holds, at most ``limit`` times.

        A library that cannot read the condition may run the body ``limit`` times: the body itself
        must leave a finished state as it is.
        """

    def opaque(self, key: Any, function: Rule, *arrays: Array) -> State:
        """Return ``function(*arrays)``, as one operation of a graph that is being compiled.

        The function has no derivative and may read values. ``key`` has a ``repr`` that identifies
        the function: a graph on disk holds that text.
        """

    def auto_sharded(self, function: Callable[..., Any], x: Array, *args: Any) -> Any:
        """Return ``function(x, *args)``, where a compiler may distribute the arrays over devices.

        JAX's default meshes ask every operation how its result is distributed. Results of the shape
        of ``x`` are distributed as ``x`` is, all others are on every device. ``function`` must not
        hold other arrays.
        """

    def few(self, *arrays: Any) -> AbstractContextManager[list[Any]]:
        """Return a context with ``arrays``, constants, as NumPy's if that takes less time.

        It does if they are few and in memory: then the time goes into starting operations. Some of
        ``arrays`` may be plain numbers. They must not meet other arrays in the context.
        """

    def from_few(self, values: Iterable[Any]) -> list[Any]:
        """Return what was computed in :meth:`few` as arrays of this library; None stays None."""

    def stored(self, x: Array) -> Array:
        """Return the values of ``x``, which a compiler then computes once and keeps in memory."""

    # ------------------------------------------------------------------ arithmetic with less memory

    def vecdot(self, x: Array, y: Array) -> Array:
        """Return the inner product along the last axis, if possible without a temporary array."""

    def norm(self, x: Array) -> Array:
        """Return the length along the last axis. Nothing differentiates it."""

    def take(self, x: Array, indices: Array) -> Array:
        """Return the entries of the last axis at ``indices``, of which none is negative."""

    def add_product(self, total: Array, scalar: Any, vector: Array, out: Any) -> Array:
        """Return ``total + scalar * vector``, with a float or one scalar per vector.

        ``out`` is an array to overwrite, which may be one of the two, or None.
        """

    # ------------------------------------------------------------------ derivatives

    def with_derivative(
        self,
        primal: Primal,
        tangent: Rule,
        cotangent: Rule,
        *inputs: Array,
        twice: Rule | None = None,
    ) -> State:
        """Return the outputs of ``primal``, with the derivative that the two rules state.

        ``primal(*inputs)`` returns the outputs and the arrays that the derivative needs;
        ``tangent(kept, *changes)`` returns the changes of the outputs, and
        ``cotangent(kept, *slopes)`` the slopes of the inputs, None for zero. ``twice(kept,
        *inputs)`` returns the outputs, up to constants, by operations that can be differentiated
        twice. It is called only for a second derivative; without it, that is an error with the text
        :data:`SECOND_ORDER`.
        """

    def smooth(self, function: Rule, partials: Partials, *inputs: Array) -> State:
        """Return the outputs of an elementwise function, with its partial derivatives.

        ``partials(inputs, outputs)`` returns, for each output, one function per input: it computes
        the derivative of the one by the other with operations that can be differentiated again.
        All inputs have one shape. Undefined values are NaN or infinite, without a warning.
        """

    def shortcut(
        self, exact: Rule, primal: Primal, cotangent: Callable[..., Any], *inputs: Any
    ) -> State:
        """Return the outputs of a function that has a cheap first derivative.

        ``exact(*inputs)`` returns the outputs by operations that can be differentiated to any
        order; some inputs may be plain numbers, or None. ``primal(*inputs)`` returns the same
        outputs for less, and the arrays that the first derivative needs:
        ``cotangent(inputs, kept, *slopes)`` returns one function per input, which computes its
        slope.
        """

    def implicit(self, rules: "RootRules", constants: State, image: State, *inputs: Array) -> State:
        """Return the first of ``constants``, a root that depends on ``inputs``, and ``image``.

        The derivatives follow from the equation: see :class:`RootRules`.
        """

    def all_sum(self, x: Array, group: Any) -> Array:
        """Return the sum of ``x`` over the processes or devices of a group, the same on each.

        In a derivative, the slopes that reach the sum are summed over the group likewise.
        """

    # ------------------------------------------------------------------ to and from the host

    def to_numpy(self, x: Array) -> "np.ndarray[Any, Any]":
        """Return the values of ``x`` on the host, as a copy or a view."""

    def from_numpy(self, a: "np.ndarray[Any, Any]", like: Array) -> Array:
        """Return ``a`` as an array in the library, dtype and device of ``like``."""


if TYPE_CHECKING:  # mypy compares names, parameters and types of every shim with the contract
    from gyrobn.backends import cupy, jax, numpy, torch

    _shims: tuple[Backend, ...] = (numpy, torch, jax, cupy)
