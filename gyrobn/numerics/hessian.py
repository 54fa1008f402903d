"""The mean Hessian of half the squared distance, and how it is inverted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.matrices import finite_or_identity, identity, solve

DENSE = 128
"""Up to this dimension a Hessian is formed and solved; beyond, conjugate gradients apply it."""
LEAST = 0.05
"""The least eigenvalue of a matrix with which a step is made: a loop checks how far it leads."""
FLOOR = 0.25
"""The least bound of the eigenvalues with which a step is made."""
MANY = 24
"""Most rounds of conjugate gradients."""


@dataclass(frozen=True, eq=False)
class Hessian:
    """A symmetric operator on normal coordinates; nothing is computed before it is needed."""

    apply: Callable[[Array], Array]
    """Multiply columns: an array of shape (*channels, dim, k) to one of the same shape."""
    lowest: Callable[[], Array] | None
    """Return a lower bound of the eigenvalues, shape (*channels,); None if none is below 1."""
    matrix: Callable[[], Array] | None = None
    """Return H as a matrix, where that takes less than to apply it to the identity."""
    identity: bool = False
    """Whether H is the identity, as on a flat space."""
    parts: "Sequence[Hessian]" = ()
    """The diagonal blocks, if H is block diagonal."""
    split: Callable[[Array], list[Array]] = lambda g: [g]
    """Return the part of a vector for each block."""
    join: Callable[[list[Array]], Array] = lambda parts: parts[0]
    """Undo ``split``."""

    def by_part(self, function: "Callable[[Hessian, Array], Array]", g: Array) -> Array:
        """Apply a function to each diagonal block and its part of a vector."""
        return self.join([function(h, v) for h, v in zip(self.parts, self.split(g), strict=True)])

    @cached_property
    def formed(self) -> Array:
        """H as a matrix, formed once."""
        assert self.matrix is not None
        return self.matrix()

    def as_matrix(self, like: Array) -> Array:
        """Return H as a matrix, for vectors of the shape of ``like``, (*channels, dim)."""
        if self.matrix is not None:
            return self.formed
        columns = namespace_of(like).broadcast_to(identity(like), (*like.shape, like.shape[-1]))
        return self.apply(columns)


def flat_hessian() -> Hessian:
    """Return the Hessian of a flat metric: the identity, so that one Newton step is exact."""
    return Hessian(lambda v: v, None, identity=True)


def joined_hessian(
    parts: Sequence[Hessian],
    split: Callable[[Array], list[Array]],
    join: Callable[[list[Array]], Array],
) -> Hessian:
    """Return the Hessian of a product, from those of its factors.

    ``split`` and ``join`` lead from normal coordinates to those of the factors and back.
    """

    def apply(v: Array) -> Array:
        """Apply each part; in ``split``, the columns are an axis before the coordinates."""
        first = v.ndim - 2

        def one(h: Hessian, part: Array) -> Array:
            axes = list(range(part.ndim))
            last = [*axes[:first], *axes[first + 1 :], first]
            back = [*axes[:first], axes[-1], *axes[first:-1]]
            permute = namespace_of(part).permute_dims
            return permute(h.apply(permute(part, last)), back)

        transpose: Callable[[Array], Array] = namespace_of(v).matrix_transpose
        return transpose(joined.by_part(one, transpose(v)))

    bounds = [h.lowest for h in parts if h.lowest is not None]

    def lowest() -> Array:
        first, *rest = (bound() for bound in bounds)
        return reduce(namespace_of(first).minimum, rest, first)

    flat = all(h.identity for h in parts)
    bound = lowest if bounds else None
    joined = Hessian(apply, bound, None, flat, tuple(parts), split, join)
    return joined


def newton_step(h: Hessian, g: Array, tol: float) -> Array:
    """Return nearly H⁻¹g for g of shape (*channels, dim): a step towards the mean.

    ``tol`` is the error that may be left, relative to g, if H is not formed. Where an eigenvalue
    is negative, or nearly zero (samples beyond a hemisphere), H is shifted up.
    """
    if h.identity:
        return g
    if h.parts:
        return h.by_part(lambda part, own: newton_step(part, own, tol), g)
    xp = namespace_of(g)
    shift = None if h.lowest is None else xp.clip(FLOOR - h.lowest(), min=0.0)
    if g.shape[-1] > DENSE:
        return _iterated(h, g, shift, tol)
    if shift is not None and not backend_of(g).traced(shift) and bool(xp.any(shift > 0)):
        # The bound takes the worst direction of each sample. On a few samples all over a sphere it
        # is negative at most means, and steps that are too short do not converge.
        low = xp.linalg.eigvalsh(finite_or_identity(h.as_matrix(g))[0])[..., 0]
        shift = xp.clip(LEAST - low, min=0.0)
    return _solved(h, g, shift)


def inverse(h: Hessian, g: Array, tol: float = 0.0) -> Array:
    """Return H⁻¹g to nearly all digits, or with an error of ``tol`` if H is not formed.

    A matrix is inverted as it is: a bound of its eigenvalues says little if samples are beyond a
    hemisphere, and the derivative of the mean is large where one of them is nearly zero.
    """
    if h.identity:
        return g
    if h.parts:
        return h.by_part(lambda part, own: inverse(part, own, tol), g)
    xp = namespace_of(g)
    eps = float(xp.finfo(g.dtype).eps)
    if g.shape[-1] <= DENSE:
        # a rounding error more keeps a singular matrix, of two opposite samples, from an error
        return _solved(h, g, None if h.lowest is None else xp.full_like(g[..., 0], 4.0 * eps))
    shift = None if h.lowest is None else xp.clip(1e-3 - h.lowest(), min=0.0)
    tol = max(tol, eps ** (2 / 3))
    return backend_of(g).self_adjoint(lambda v: _iterated(h, v, shift, tol), g)


def _solved(h: Hessian, g: Array, shift: Array | None) -> Array:
    full = h.as_matrix(g)
    return solve(full if shift is None else full + shift[..., None, None] * identity(g), g)


def _iterated(h: Hessian, g: Array, shift: Array | None, tol: float) -> Array:
    def apply(v: Array) -> Array:
        Hv = h.apply(v[..., None])[..., 0]
        return Hv if shift is None else Hv + shift[..., None] * v

    return conjugate_gradients(apply, g, tol)


def conjugate_gradients(apply: Callable[[Array], Array], g: Array, tol: float) -> Array:
    """Return nearly H⁻¹g, for H with no eigenvalue far below 1; each channel stops when it may."""
    xp = namespace_of(g)
    size = xp.max(xp.abs(g), axis=-1, keepdims=True)  # squares of very small numbers would be zero
    r = g / xp.where(size > 0, size, 1.0)
    square = xp.sum(r * r, axis=-1, keepdims=True)
    goal = tol**2 * square
    v, p = xp.zeros_like(r), r
    for _ in range(MANY):
        going = square > goal
        if not backend_of(g).traced(g) and not bool(xp.any(going)):
            break
        Hp = apply(p)
        bend = xp.where(going, xp.sum(p * Hp, axis=-1, keepdims=True), 1.0)
        along = xp.where(going, square / bend, 0.0)
        v, r = v + along * p, r - along * Hp
        new = xp.sum(r * r, axis=-1, keepdims=True)
        p = r + new / xp.where(going, square, 1.0) * p
        square = xp.where(going, new, square)
    return size * v
