"""PyTorch."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import array_api_compat.torch
import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import is_fake

from gyrobn.backends import with_functions
from gyrobn.backends.contract import SECOND_ORDER, Array, Partials, Rule, State
from gyrobn.backends.numpy import while_loop as _eager_while_loop

namespace = with_functions(
    array_api_compat.torch,
    clip=lambda x, /, min=None, max=None: torch.clamp(x, min, max),
    finfo=lru_cache(array_api_compat.torch.finfo),
    matmul=torch.matmul,
    maximum=torch.maximum,
    minimum=torch.minimum,
)
"""PyTorch as the standard has it, for arrays of one dtype."""


def differentiable(*arrays: Array) -> bool:
    """Tell whether autograd, backward or forward, follows any of ``arrays``."""
    if torch.is_grad_enabled():
        for a in arrays:
            if isinstance(a, torch.Tensor) and a.requires_grad:
                return True
    if (_no_transform() and forward_ad._current_level < 0) or torch.compiler.is_compiling():
        return False
    return any(
        torch._C._functorch.is_functorch_wrapped_tensor(a)
        or forward_ad.unpack_dual(a).tangent is not None  # type: ignore[no-untyped-call]
        for a in arrays
        if isinstance(a, torch.Tensor)
    )


def _no_transform() -> bool:
    """Tell whether no transformation of torch.func is under way."""
    return torch._C._functorch.peek_interpreter_stack() is None


def _is_plain(x: Array) -> bool:
    """Tell, fast, whether ``x`` has values: it is not traced by the compiler or by torch.func."""
    return type(x) in (torch.Tensor, torch.nn.Parameter) and _no_transform()


def hides_values(x: Array) -> bool:
    """Tell whether ``x`` is compiled or batched by ``vmap``, so that ``bool(x)`` would fail."""
    if torch.compiler.is_compiling():
        return True
    if _is_plain(x):
        return False
    if is_fake(x):
        return True
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def plain(x: Array) -> bool:
    """Tell whether what is computed from ``x`` may be kept: no transformation is under way.

    Autograd could not use tensors that were made in inference mode.
    """
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return False
    return _is_plain(x)


def stop_gradient(x: Array) -> Array:
    """Return the values of ``x`` outside the graph."""
    return x.detach()


def while_loop(
    condition: Callable[[State], Array], body: Callable[[State], State], state: State, limit: int
) -> State:
    """Run ``body`` while ``condition`` holds; under ``vmap``, exactly ``limit`` times.

    Under ``vmap`` no value can be looked at, so the body itself must leave a finished state alone.
    """
    if _only_shapes and is_fake(state[0]):
        return state
    if any(hides_values(s) for s in state if isinstance(s, torch.Tensor)):
        for _ in range(limit):
            state = body(state)
        return state
    return _eager_while_loop(condition, body, state, limit)


def opaque(key: Any, function: Callable[..., State], *arrays: Array) -> State:
    """Return ``function(*arrays)``; where a graph is compiled, as one operation of it.

    The graph holds the text of ``key``, not the function: it may be kept on the disk.
    """
    if torch.compiler.is_dynamo_compiling() or _is_plain(arrays[0]) or not is_fake(arrays[0]):
        return function(*arrays)
    text = repr(key)
    _functions[text] = function
    return tuple(torch.ops.gyrobn.opaque(text, list(arrays)))


_functions: dict[str, Callable[..., State]] = {}
_only_shapes: list[bool] = []
"""Not empty while the shapes of an opaque function's outputs are asked for."""


def _run(key: str, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    return [a.clone() for a in _functions[key](*arrays)]  # they may not share memory


def _shapes(key: str, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    _only_shapes.append(True)
    try:
        return [torch.empty_like(a) for a in _functions[key](*arrays)]
    finally:
        _only_shapes.pop()


_library = torch.library.Library("gyrobn", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("opaque(str key, Tensor[] arrays) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.impl("opaque", _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("gyrobn::opaque", _shapes, lib=_library)


def stored(x: Array) -> Array:
    """Return ``x``, which has no derivative, as an array that a compiler puts into memory.

    It would fuse the computation of one number a sample into the loop over the coordinates. A view
    by strides needs memory to look at, and costs nothing. A graph for export stays without it.
    """
    compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return x.as_strided(x.size(), x.stride()) if compiling and _no_transform() else x


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
    if x is y and not differentiable(x):
        return torch.linalg.vector_norm(x, dim=-1).square()  # reads x once, and makes no array
    # a compiler makes no temporary, and a choice by size would bind its program to some sizes
    small = torch.compiler.is_compiling() or max(x.numel(), y.numel()) * y.element_size() < 2**25
    if small:
        return (x * y).sum(-1)
    return torch.matmul(x[..., None, :], y[..., None])[..., 0, 0]


def take(x: Array, indices: Array) -> Array:
    """Return the entries at ``indices``, along the last axis."""
    return x.index_select(-1, indices)


def norm(x: Array) -> Array:
    """Return the length along the last axis."""
    return torch.linalg.vector_norm(x, dim=-1)


def add_product(total: Array, scalar: Any, vector: Array, out: Any) -> Array:
    """Return ``total + scalar * vector``, with one scalar a vector, without a temporary."""
    if isinstance(scalar, float):
        return (total.add_ if out is total else total.add)(vector, alpha=scalar)
    scalar = scalar[..., None]
    if out is total:  # with its derivative, which is not to be had with out=
        return total.addcmul_(scalar, vector)
    return torch.addcmul(total, scalar, vector, out=out)


def with_derivative(
    primal: Callable[..., tuple[tuple[Array, ...], tuple[Array, ...]]],
    tangent: Rule,
    cotangent: Rule,
    *inputs: Array,
) -> tuple[Array, ...]:
    """Return the outputs of ``primal``, with ``cotangent`` and ``tangent`` as its derivatives."""
    if not differentiable(*inputs):
        return primal(*inputs)[0]
    rules = _Rules(primal, tangent, cotangent)
    results = _Ruled.apply(rules, *inputs)
    return tuple(results[: rules.count])


class _Function(torch.autograd.Function):
    """A function with derivatives that can be applied without a look at its signature."""

    generate_vmap_rule = True

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Apply the function: torch would bind the arguments to names, which takes a while."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)  # type: ignore[no-untyped-call]
        return super(torch.autograd.Function, cls).apply(*arguments)  # type: ignore[misc]


class _Rules:
    """A function with its derivatives; and, once it was called, how many outputs it has.

    Of a shortcut, ``tangent`` is the exact function.
    """

    def __init__(self, primal: Any, tangent: Rule, cotangent: Rule) -> None:
        self.primal, self.tangent, self.cotangent = primal, tangent, cotangent
        self.count = 0


class _Ruled(_Function):
    """A function whose rules come with it; what they need is returned as further outputs."""

    @staticmethod
    def forward(rules: Any, *inputs: Array) -> tuple[Array, ...]:
        outputs, kept = rules.primal(*inputs)
        rules.count = len(outputs)
        kept = tuple(k.view_as(k) if any(k is x for x in inputs) else k for k in kept)
        return (*outputs, *kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Array, ...]) -> None:
        ctx.rules, *given = inputs
        ctx.given = len(given)
        outputs, kept = output[: ctx.rules.count], output[ctx.rules.count :]
        ctx.shapes = [out.shape for out in outputs]
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)  # what is kept has no slope, and needs no zeros
        ctx.save_for_backward(*given, *kept)
        ctx.save_for_forward(*given, *kept)

    @staticmethod
    def backward(ctx: Any, *slopes: Array) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint gives them no second time
        given, kept = saved[: ctx.given], saved[ctx.given :]
        each = zip(slopes[: ctx.rules.count], ctx.shapes, strict=True)
        slopes = tuple(given[0].new_zeros(shape) if s is None else s for s, shape in each)
        return None, *_only_once(ctx.rules.cotangent(kept, *slopes), given)

    @staticmethod
    def jvp(ctx: Any, _: None, *changes: Array) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint gives them no second time
        given, kept = saved[: ctx.given], saved[ctx.given :]
        both = zip(given, changes, strict=True)
        changes = tuple(torch.zeros_like(x) if d is None else d for x, d in both)
        found = ctx.rules.tangent(kept, *changes)
        return *_only_once(found, given), *(None for _ in kept)


def _only_once(found: State, given: State) -> State:
    """Return ``found``, which depends on ``given`` in a way that has no rule: say so when asked."""
    if not differentiable(*given):
        return found
    return _Once.apply(len(found), *found, *given)


class _Once(_Function):
    """The first ``count`` arguments, not to be differentiated by any."""

    @staticmethod
    def forward(count: int, *arrays: Array) -> tuple[Array, ...]:
        return tuple(a.clone() for a in arrays[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Array, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Array) -> tuple[Any, ...]:
        raise RuntimeError(SECOND_ORDER)

    @staticmethod
    def jvp(ctx: Any, *changes: Array) -> tuple[Any, ...]:
        raise RuntimeError(SECOND_ORDER)


def implicit(rules: Any, constants: State, image: State, *inputs: Array) -> State:
    """Return the first of ``constants``, a root that depends on ``inputs``, and ``image``."""
    if not differentiable(*inputs):
        return constants[0], *image
    counts = len(constants), len(image)
    return _Root.apply(rules, counts, *constants, *image, *inputs)


class _Root(_Function):
    """A root with the rules for its derivative, which call the root again for the next one."""

    @staticmethod
    def forward(rules: Any, counts: tuple[int, int], *arrays: Array) -> State:
        first, shown = counts
        return tuple(a.view_as(a) for a in (arrays[0], *arrays[first : first + shown]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        ctx.rules, ctx.counts, *arrays = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)

    @staticmethod
    def _again(ctx: Any) -> tuple[Any, State, State]:
        """Return the rules, the constants with the root as a function of the inputs, and those."""
        arrays, (first, shown) = ctx.saved_tensors, ctx.counts
        constants, inputs = arrays[:first], arrays[first + shown :]
        if differentiable(*inputs):
            constants = _Root.apply(ctx.rules, ctx.counts, *arrays)[0], *constants[1:]
        return ctx.rules, constants, inputs

    @staticmethod
    def backward(ctx: Any, by_root: Array | None, *by_image: Array | None) -> tuple[Any, ...]:
        (image, inverse, move, quick, shape), constants, inputs = _Root._again(ctx)
        root, *rest = constants
        wanted = ctx.needs_input_grad[2 + sum(ctx.counts) :]
        slopes = [s for s in (by_root, *by_image) if s is not None]
        pull = _Pull(
            lambda root, *x: image((root, *rest), *x), (root, *inputs), (True, *wanted), slopes
        )
        quick = quick and not pull.again and all(s is not None for s in by_image)
        if not quick:
            (more,) = pull((*by_image, None), slice(1))
            by_root = _sum(s for s in (by_root, more) if s is not None)
        by_step, direct = None, [None for _ in inputs]
        if by_root is not None:
            step = root.new_zeros(shape)
            moved = lambda step, *x: (move(constants, step, *x),)  # noqa: E731
            by_step, *direct = _Pull(moved, (step, *inputs), (True, *wanted), slopes)((by_root,))
        shown = by_image if quick else ()
        v = inverse(pull.outputs[:-1], shown, constants, by_step, *inputs)
        found = pull((*by_image, v), slice(1, None))
        total = (_sum(s for s in two if s is not None) for two in zip(found, direct, strict=True))
        return None, None, *(None for _ in range(sum(ctx.counts))), *total

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> State:
        (image, inverse, move, *_), constants, inputs = _Root._again(ctx)
        root, *rest = constants
        moves = tuple(
            torch.zeros_like(x) if d is None else d
            for x, d in zip(inputs, changes[2 + sum(ctx.counts) :], strict=True)
        )

        def seen(root: Array, *x: Array) -> State:
            return tuple(image((root, *rest), *x))

        dg = _along(lambda *x: seen(root, *x)[-1], inputs, moves)
        step = inverse(seen(root, *inputs)[:-1], (), constants, dg, *inputs)
        at = torch.zeros_like(step), *inputs
        moved = _along(lambda s, *x: move(constants, s, *x), at, (step, *moves))
        shown = (
            _along(lambda *given, k=k: seen(*given)[k], (root, *inputs), (moved, *moves))
            for k in range(ctx.counts[1])
        )
        return moved, *shown


def _along(function: Callable[..., Array], inputs: State, moves: State) -> Array:
    """Return the change of a function along ``moves``."""
    try:
        return torch.func.jvp(function, inputs, moves)[1]
    except RuntimeError as error:
        if str(error) != FORWARD_TWICE:
            raise
    # what pulls slopes back is linear in them, and its slope is what pushes changes forward
    value, back, *_ = torch.func.vjp(function, *inputs)

    def along(slope: Array) -> Array:
        return _sum((by * move).sum() for by, move in zip(back(slope), moves, strict=True))

    total, forth, *_ = torch.func.vjp(along, torch.zeros_like(value))
    return forth(torch.ones_like(total))[0]


class _Pull:
    """A function's outputs, and how their slopes are pulled back to its inputs, more than once.

    The slopes of the inputs that are wanted can be differentiated again if those, or the slopes of
    the outputs, can be.
    """

    def __init__(
        self,
        function: Callable[..., State],
        inputs: State,
        wanted: tuple[bool, ...],
        slopes: Sequence[Array],
    ) -> None:
        self.again = differentiable(*inputs, *slopes)
        self.back: Any = None
        if not _no_transform():
            outputs, self.back, *_ = torch.func.vjp(lambda *x: tuple(function(*x)), *inputs)
            self.outputs: State = outputs
            return
        with torch.enable_grad():
            own = [x.view_as(x) if self.again else x.detach() for x in inputs]
            self.own = [
                x.requires_grad_() if want else None for x, want in zip(own, wanted, strict=True)
            ]
            self.outputs = tuple(function(*own))

    def __call__(
        self, slopes: Sequence[Array | None], which: slice = slice(None)
    ) -> list[Array | None]:
        """Return the slopes by some inputs from those by the outputs, of which some may be None."""
        if self.back is not None:
            full = (
                torch.zeros_like(out) if s is None else s
                for out, s in zip(self.outputs, slopes, strict=True)
            )
            return list(self.back(tuple(full))[which])
        mine = [x for x in self.own[which] if x is not None]
        both = [(o, s) for o, s in zip(self.outputs, slopes, strict=True) if s is not None]
        if not both or not mine:
            return [None for _ in self.own[which]]
        found = iter(
            torch.autograd.grad(
                *([o for o, _ in both], mine, [s for _, s in both]),
                retain_graph=True,
                create_graph=self.again,
                allow_unused=True,
            )
        )
        return [None if x is None else next(found) for x in self.own[which]]


def smooth(function: Callable[..., State], partials: Partials, *inputs: Array) -> State:
    """Return the outputs of an elementwise function, with its derivatives where they are asked."""
    if not differentiable(*inputs):
        return function(*inputs)
    if torch.compiler.is_dynamo_compiling():
        return _linear_smooth(function, partials, *inputs)
    if not _no_transform() and any(_forward_levels(x) > 1 for x in inputs):
        raise RuntimeError(FORWARD_TWICE)  # torch would return zero
    return _Smooth.apply(function, partials, *inputs)


def _linear_smooth(function: Callable[..., State], partials: Partials, *inputs: Array) -> State:
    """Return the outputs as constants, plus zero with their first derivative.

    For Dynamo, which cannot follow a ``Function`` that is given its rules; a graph that it makes
    has no second derivative anyway.
    """
    fixed = tuple(x.detach() for x in inputs)
    outputs = function(*fixed)
    rows = partials(fixed, outputs)
    return tuple(
        out + _sum(p() * (x - f) for p, x, f in zip(row, inputs, fixed, strict=True))
        for out, row in zip(outputs, rows, strict=True)
    )


def shortcut(
    exact: Callable[..., State],
    primal: Callable[..., tuple[State, State]],
    cotangent: Callable[..., Any],
    *inputs: Any,
) -> State:
    """Return the outputs, with ``cotangent`` as their derivative unless that is differentiated.

    Forward mode and the transformations of torch.func do not take the shortcut.
    """
    if not differentiable(*inputs):
        return primal(*inputs)[0]
    compiling = torch.compiler.is_dynamo_compiling()
    if compiling or not _no_transform() or forward_ad._current_level >= 0:
        return exact(*inputs)
    rules = _Rules(primal, exact, cotangent)
    results = _Short.apply(rules, *inputs)
    return tuple(results[: rules.count])


class _Short(_Function):
    """A function with two derivatives: a quick one, and one to be differentiated again.

    What the quick one needs is returned as further outputs.
    """

    @staticmethod
    def forward(rules: Any, *inputs: Any) -> State:
        outputs, kept = rules.primal(*inputs)
        rules.count = len(outputs)
        return (*outputs, *(k.view_as(k) if any(k is o for o in outputs) else k for k in kept))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        ctx.rules, *given = inputs
        kept = output[ctx.rules.count :]
        ctx.mark_non_differentiable(*kept)
        ctx.plain = [None if isinstance(x, torch.Tensor) else (x,) for x in given]
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        ctx.save_for_backward(*tensors, *kept)

    @staticmethod
    def backward(ctx: Any, *slopes: Array) -> tuple[Any, ...]:
        saved, rules = ctx.saved_tensors, ctx.rules
        count, needed = sum(x is None for x in ctx.plain), ctx.needs_input_grad[1:]
        tensors, kept, slopes = saved[:count], saved[count:], slopes[: rules.count]

        def filled(tensors: State) -> list[Any]:
            left = iter(tensors)
            return [next(left) if x is None else x[0] for x in ctx.plain]

        if differentiable(*tensors, *slopes):
            wanted = tuple(n for n, x in zip(needed, ctx.plain, strict=True) if x is None)
            pull = _Pull(lambda *x: rules.tangent(*filled(x)), tensors, wanted, slopes)
            found = iter(pull(slopes))
            return None, *(next(found) if x is None else None for x in ctx.plain)
        each = rules.cotangent(filled(tensors), kept, *slopes)
        return None, *(by() if need else None for by, need in zip(each, needed, strict=True))


def _forward_levels(x: Array) -> int:
    """Return how many forward modes of torch.func follow ``x``."""
    functorch, forward = torch._C._functorch, set()
    for level in functorch.get_interpreter_stack():
        if level.key() == functorch.TransformType.Jvp:
            forward.add(level.level())
    count = 0
    while functorch.is_functorch_wrapped_tensor(x):
        count += functorch.maybe_get_level(x) in forward
        x = functorch.get_unwrapped(x)
    return count


FORWARD_TWICE = (
    "torch has no forward mode of a forward mode through functions with rules of their own: take "
    "torch.func.hessian, or jacrev for one of the two"
)


class _Smooth(_Function):
    """An elementwise function: its derivatives are computed from what came in and went out."""

    @staticmethod
    def forward(function: Any, partials: Partials, *inputs: Array) -> State:
        outputs: State = function(*inputs)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        _, ctx.partials, *given = inputs
        ctx.given = len(given)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *output)
        ctx.save_for_forward(*given, *output)

    @staticmethod
    def backward(ctx: Any, *slopes: Array) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: torch.utils.checkpoint gives them no second time
        rows = ctx.partials(saved[: ctx.given], saved[ctx.given :])
        found = [
            _sum(s * row[j]() for s, row in zip(slopes, rows, strict=True) if s is not None)
            if needed
            else None
            for j, needed in enumerate(ctx.needs_input_grad[2:])
        ]
        return None, None, *found

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *changes: Array) -> State:
        saved = ctx.saved_tensors
        rows = ctx.partials(saved[: ctx.given], saved[ctx.given :])
        return tuple(
            _sum(p() * c for p, c in zip(row, changes, strict=True) if c is not None)
            for row in rows
        )


def _sum(terms: Iterable[Array]) -> Any:
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total


def to_numpy(x: Array) -> "np.ndarray[Any, Any]":
    """Return the values of ``x`` on the host."""
    if _no_transform():
        return x.detach().cpu().numpy()
    return np.asarray(x.tolist(), dtype=str(x.dtype).removeprefix("torch."))


def from_numpy(a: "np.ndarray[Any, Any]", like: Array) -> Array:
    """Return ``a`` as a tensor in the dtype and on the device of ``like``."""
    return torch.as_tensor(a, dtype=like.dtype, device=like.device)
