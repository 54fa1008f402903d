"""The mean Hessian of half the squared distance, and how it is inverted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import eps_of
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

    def by_part(self, function: Callable[..., Array], g: Array, *options: Any) -> Array:
        """Apply a function to each diagonal block and its part of a vector; the identity is g."""
        if self.identity:
            return g
        parts = zip(self.parts, self.split(g), strict=True)
        return self.join([function(h, part, *options) for h, part in parts])

    def as_matrix(self, like: Array) -> Array:
        """Return H as a matrix, for vectors of the shape of ``like``, (*channels, dim)."""
        if self.matrix is not None:
            return self.matrix()
        columns = namespace_of(like).broadcast_to(identity(like), (*like.shape, like.shape[-1]))
        return self.apply(columns)

    def raised(self, least: float, like: Array) -> Array:
        """Return what to add to the diagonal, so that the bound is at least as large."""
        xp = namespace_of(like)
        low = xp.ones_like(like[..., 0]) if self.lowest is None else self.lowest()
        return xp.clip(least - low, min=0.0)


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

    def one(h: Hessian, v: Array) -> Array:
        return h.apply(v[..., None])[..., 0]

    def apply(v: Array) -> Array:
        columns = [joined.by_part(one, v[..., k]) for k in range(v.shape[-1])]
        return namespace_of(v).stack(columns, axis=-1)

    bounds = [h.lowest for h in parts if h.lowest is not None]

    def lowest() -> Array:
        return reduce(namespace_of(bounds[0]()).minimum, [bound() for bound in bounds])

    flat = all(h.identity for h in parts)
    joined = Hessian(apply, lowest if bounds else None, None, flat, tuple(parts), split, join)
    return joined


def newton_step(h: Hessian, g: Array, tol: float) -> Array:
    """Return nearly H⁻¹g for g of shape (*channels, dim): a step towards the mean.

    ``tol`` is the error that may be left, relative to g, if H is not formed. Where an eigenvalue
    is negative, or nearly zero (samples beyond a hemisphere), H is shifted up.
    """
    if h.identity or h.parts:
        return h.by_part(newton_step, g, tol)
    xp, shift = namespace_of(g), h.raised(FLOOR, g)
    if g.shape[-1] > DENSE:
        return _iterated(h, g, shift, tol)
    full = h.as_matrix(g)
    if h.lowest is not None and not backend_of(g).traced(shift) and bool(xp.any(shift > 0)):
        # The bound takes the worst direction of each sample. On a few samples all over a sphere it
        # is negative at most means, and steps that are too short do not converge.
        low = xp.linalg.eigvalsh(finite_or_identity(full)[0])[..., 0]
        shift = xp.clip(LEAST - low, min=0.0)
    return solve(full + shift[..., None, None] * identity(g), g)


def inverse(h: Hessian, g: Array, tol: float = 0.0) -> Array:
    """Return H⁻¹g to nearly all digits, or with an error of ``tol`` if H is not formed.

    A matrix is inverted as it is: a bound of its eigenvalues says little if samples are beyond a
    hemisphere, and the derivative of the mean is large where one of them is nearly zero.
    """
    if h.identity or h.parts:
        return h.by_part(inverse, g, tol)
    if g.shape[-1] <= DENSE:
        # a rounding error more keeps a singular matrix, of two opposite samples, from an error
        return solve(h.as_matrix(g) + 4.0 * eps_of(g) * identity(g), g)
    shift, tol = h.raised(1e-3, g), max(tol, eps_of(g) ** (2 / 3))
    return backend_of(g).self_adjoint(lambda v: _iterated(h, v, shift, tol), g)


def _iterated(h: Hessian, g: Array, shift: Array, tol: float) -> Array:
    """Return nearly (H + shift)⁻¹g by conjugate gradients; each channel stops when it may."""
    xp = namespace_of(g)
    size = xp.max(xp.abs(g), axis=-1, keepdims=True)  # squares of very small numbers would be zero
    r = g / xp.where(size > 0, size, 1.0)
    square = _dot(r, r)
    goal = tol**2 * square
    v, p = xp.zeros_like(r), r
    for _ in range(MANY):
        going = square > goal
        if not backend_of(g).traced(g) and not bool(xp.any(going)):
            break
        Hp = h.apply(p[..., None])[..., 0] + shift[..., None] * p
        bend = xp.where(going, _dot(p, Hp), 1.0)
        along = xp.where(going, square / bend, 0.0)
        v, r = v + along * p, r - along * Hp
        new = _dot(r, r)
        p = r + new / xp.where(going, square, 1.0) * p
        square = xp.where(going, new, square)
    return size * v


def _dot(x: Array, y: Array) -> Array:
    return namespace_of(x).sum(x * y, axis=-1, keepdims=True)
