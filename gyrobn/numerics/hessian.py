"""The mean Hessian of half the squared distance, and its inverse."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.numerics.arrays import sum_samples

__all__ = ["DENSE", "Hessian", "flat_hessian", "joined_hessian", "matrix_hessian"]

DENSE = 128
"""Up to this dimension a Hessian is formed and solved; beyond, Chebyshev steps apply it."""
FEW, MANY = 4, 24
"""Up to a few rounds, Chebyshev steps are as good as conjugate gradients; more are not made."""
FIVE_DIGITS = 4e-6
"""What products in float32 can reach."""


@dataclass(frozen=True)
class Hessian:
    """A symmetric operator on normal coordinates; nothing is computed before it is asked for."""

    apply: Callable[[Array], Array]
    """Multiply columns: an array of shape (*channels, dim, k) to one of the same shape."""
    lowest: Callable[[], Array]
    """Return a lower bound of its eigenvalues, shape (*channels,)."""
    highest: Callable[[], Array]
    """Return an upper bound of its eigenvalues."""
    quick: Callable[[Array], Array] | None = None
    """Nearly H⁻¹g, linear in g, for a step on the way; where that is cheaper than to apply H."""
    matrix: Callable[[], Array] | None = None
    """Return H itself, where that takes less than to apply it to the identity."""
    rough: Callable[[Array], Array] | None = None
    """Multiply columns to five digits, where that takes less time than all of them."""
    dense: int = DENSE
    """The largest dimension in which to form the matrix."""
    by_part: Callable[[Callable[["Hessian", Array], Array], Array], Array] | None = None
    """Call a function with each part, and its part of g, where H falls into some."""
    at_least_one: bool = False
    """Whether no eigenvalue is below 1, as where no curvature is positive: it needs no shift."""
    smooth: bool = True
    """Whether the geometry has second derivatives, so that those of the mean may be asked for."""

    def solve(self, g: Array, tol: float) -> Array:
        """Return nearly H⁻¹g for g of shape (*channels, dim): a step towards the mean.

        ``tol`` is the error that may be left, relative to g; a quick step knows better.
        Where an eigenvalue may be negative, or nearly zero (samples beyond a hemisphere), H is
        shifted up.
        """
        if self.by_part is not None:
            return self.by_part(lambda part, piece: part.solve(piece, tol), g)
        if self.quick is not None and g.shape[-1] > self.dense:
            return self.quick(g)
        return self._solve(g, 0.25, tol)

    def inverse(self, g: Array, tol: float = 0.0) -> Array:
        """Return H⁻¹g to nearly all digits, or with an error of ``tol`` relative to g."""
        if self.by_part is not None:
            return self.by_part(lambda part, piece: part.inverse(piece, tol), g)
        least = float(namespace_of(g).finfo(g.dtype).eps) ** (2 / 3)
        return self._solve(g, 1e-3, max(tol, least))

    @cached_property
    def _full(self) -> Array | None:
        return None if self.matrix is None else self.matrix()

    @cached_property
    def _high(self) -> Array:
        return self.highest()

    def _solve(self, g: Array, floor: float, tol: float) -> Array:
        """Solve by a matrix where H is small, by Chebyshev steps where it is large."""
        xp, n = namespace_of(g), g.shape[-1]
        shift = None if self.at_least_one else xp.clip(floor - self.lowest(), min=0.0)
        if n <= self.dense:
            full = self._full
            if full is None or shift is not None:
                eye = xp.eye(n, dtype=g.dtype, device=device_of(g))
            if full is None:
                full = self.apply(xp.broadcast_to(eye, (*g.shape, n)))
            if shift is not None:
                full = full + shift[..., None, None] * eye
            return xp.linalg.solve(full, g[..., None])[..., 0]
        low, high, apply = self.lowest(), self._high, _to_vectors(self.apply)
        if shift is not None:
            low, high, shifted = low + shift, high + shift, apply
            apply = lambda v: shifted(v) + shift[..., None] * v  # noqa: E731
        shim = backend_of(g)
        if self.smooth or shim.hides_values(g) or shim.differentiable(g):
            return chebyshev(apply, g, low, high, tol)
        if self.rough is None:
            return _adaptive(apply, g, low, high, tol)
        rough = _to_vectors(self.rough)
        if tol > FIVE_DIGITS:
            return _adaptive(rough, g, low, high, tol)
        some = (0.1 * tol) ** 0.5
        v = _adaptive(rough, g, low, high, some)
        return v + _adaptive(rough, g - apply(v), low, high, some)


def _to_vectors(apply: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda v: apply(v[..., None])[..., 0]


def _adaptive(
    apply: Callable[[Array], Array], g: Array, low: Array, high: Array, tol: float
) -> Array:
    """Return nearly H⁻¹g, which need not be linear in g, for a constant H that can be seen.

    Where the bounds ask for many Chebyshev steps, conjugate gradients may take fewer.
    """
    most = float(namespace_of(g).max(_rounds(low, high, tol)))
    if most > FEW:
        return conjugate_gradients(apply, g, tol)
    return chebyshev(apply, g, low, high, tol)


def chebyshev(
    apply: Callable[[Array], Array], g: Array, low: Array, high: Array, tol: float
) -> Array:
    """Return nearly H⁻¹g, linear in g, for H with eigenvalues between ``low`` and ``high``.

    Each channel takes as many steps as leave an error of ``tol``, up to 24 (12 for a rough one).
    """
    xp = namespace_of(g)
    wanted = _rounds(low, high, tol)
    rounds = MANY if tol < 1e-6 else MANY // 2
    if not backend_of(wanted).hides_values(wanted):
        most = float(xp.max(wanted))
        rounds = int(most) if math.isfinite(most) else 0
    centre, half = 0.5 * (high + low)[..., None], 0.5 * (high - low)[..., None]
    v = g / centre
    step, factor = v, 2.0 + 0.0 * centre
    for k in range(rounds):
        factor = 1.0 / (1.0 - 0.25 * (half / centre) ** 2 * factor)
        step = (factor - 1.0) * step + factor * (g - apply(v)) / centre
        v = xp.where(wanted[..., None] > k, v + step, v)
    return v


def _rounds(low: Array, high: Array, tol: float) -> Array:
    """Return how many Chebyshev steps leave an error of ``tol``: k of them 2 rate^(k + 1)."""
    xp = namespace_of(high)
    root = xp.sqrt(high / low)
    tiny = float(xp.finfo(high.dtype).smallest_normal)
    rate = xp.clip((root - 1.0) / (root + 1.0), min=tiny, max=0.99)
    wanted = xp.round(math.log(0.5 * tol) / xp.log(rate)) - 1.0
    return xp.clip(wanted, min=0.0, max=float(MANY if tol < 1e-6 else MANY // 2))


def conjugate_gradients(apply: Callable[[Array], Array], g: Array, tol: float) -> Array:
    """Return nearly H⁻¹g, for H with no eigenvalue far below 1; each channel stops when it may."""
    xp = namespace_of(g)
    size = xp.max(xp.abs(g), axis=-1, keepdims=True)  # squares of very small slopes would be zero
    r = g / xp.where(size > 0, size, 1.0)
    v, p = 0.0 * r, r
    square = xp.sum(r * r, axis=-1, keepdims=True)
    goal = tol**2 * square
    for _ in range(MANY):
        going = square > goal
        if not bool(xp.any(going)):
            break
        Hp = apply(p)
        along = xp.where(going, square, 0.0) / xp.where(
            going, xp.sum(p * Hp, axis=-1, keepdims=True), 1.0
        )
        v, r = v + along * p, r - along * Hp
        new = xp.sum(r * r, axis=-1, keepdims=True)
        p = r + new / xp.where(going, square, 1.0) * p
        square = new
    return size * v


def flat_hessian(weights: Array) -> Hessian:
    """Return the Hessian of a flat metric: the identity, so that one Newton step is exact."""
    one = sum_samples(weights)
    return Hessian(lambda v: v, lambda: one, lambda: one, lambda g: g)


def matrix_hessian(matrix: Array, lowest: Array, at_least_one: bool) -> Hessian:
    """Return a Hessian that is known as a matrix."""
    xp = namespace_of(matrix)
    return Hessian(
        lambda v: xp.matmul(matrix, v),
        lambda: lowest,
        lambda: xp.linalg.matrix_norm(matrix),
        matrix=lambda: matrix,
        at_least_one=at_least_one,
        smooth=False,
    )


def joined_hessian(parts: Sequence[tuple[int, Hessian]]) -> Hessian:
    """Return the Hessian of a product, from the dimensions and Hessians of its factors."""
    sizes = [dim for dim, _ in parts]

    def apply(v: Array) -> Array:
        split = zip(parts, _split(v, sizes, -2), strict=True)
        return namespace_of(v).concat([h.apply(piece) for (_, h), piece in split], axis=-2)

    def lowest() -> Array:
        first, *rest = (h.lowest() for _, h in parts)
        return reduce(namespace_of(first).minimum, rest, first)

    def highest() -> Array:
        first, *rest = (h.highest() for _, h in parts)
        return reduce(namespace_of(first).maximum, rest, first)

    def by_part(function: Callable[[Hessian, Array], Array], g: Array) -> Array:
        split = zip(parts, _split(g, sizes, -1), strict=True)
        return namespace_of(g).concat([function(h, piece) for (_, h), piece in split], axis=-1)

    smooth = any(h.smooth for _, h in parts)
    return Hessian(apply, lowest, highest, by_part=by_part, smooth=smooth)


def _split(v: Array, sizes: Sequence[int], axis: int) -> list[Array]:
    pieces, start = [], 0
    for size in sizes:
        piece = v[..., start : start + size] if axis == -1 else v[..., start : start + size, :]
        pieces.append(piece)
        start += size
    return pieces
