"""The mean Hessian of half the squared distance, and its inverse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gyrobn.backends import Array, device_of, namespace_of

__all__ = ["DENSE", "Hessian", "chebyshev", "flat_hessian", "joined_hessian"]

DENSE = 128
"""Up to this dimension a Hessian is formed and solved; beyond, Chebyshev steps apply it."""


@dataclass(frozen=True)
class Hessian:
    """A symmetric operator on normal coordinates; nothing is computed before it is asked for."""

    apply: Callable[[Array], Array]
    """Multiply columns: an array of shape (*channels, dim, k) to one of the same shape."""
    bounds: Callable[[], tuple[Array, Array]]
    """Return a lower and an upper bound of its eigenvalues, each of shape (*channels,)."""
    quick: Callable[[Array], Array] | None = None
    """Nearly H⁻¹g, linear in g, for a step on the way; where that is cheaper than to apply H."""
    dense: int = DENSE
    """The largest dimension in which to form the matrix."""
    solver: Callable[[Array, bool], Array] | None = None
    """How to solve it instead, where it falls into parts that are solved by themselves."""

    def solve(self, g: Array, exact: bool) -> Array:
        """Return H⁻¹g for g of shape (*channels, dim), linear in g.

        Solved where H is small, by Chebyshev steps where it is large. Where an eigenvalue may be
        negative, or nearly zero (samples beyond a hemisphere), H is shifted up. ``exact`` asks for
        all digits, as derivatives need them; otherwise it is a step on the way to the mean.
        """
        if self.solver is not None:
            return self.solver(g, exact)
        xp = namespace_of(g)
        dim = g.shape[-1]
        if self.quick is not None and not exact and dim > self.dense:
            return self.quick(g)
        floor, rounds = (1e-3, 24) if exact else (0.25, 8)
        low, high = self.bounds()
        shift = xp.clip(floor - low, min=0.0)
        if dim <= self.dense:
            eye = xp.eye(dim, dtype=g.dtype, device=device_of(g))
            matrix = self.apply(xp.broadcast_to(eye, (*g.shape, dim)))
            return xp.linalg.solve(matrix + shift[..., None, None] * eye, g[..., None])[..., 0]

        def shifted(v: Array) -> Array:
            return self.apply(v[..., None])[..., 0] + shift[..., None] * v

        return chebyshev(shifted, g, low + shift, high + shift, rounds)


def chebyshev(
    apply: Callable[[Array], Array], g: Array, low: Array, high: Array, rounds: int
) -> Array:
    """Return nearly H⁻¹g, linear in g, for H with eigenvalues between ``low`` and ``high``."""
    centre, half = 0.5 * (high + low)[..., None], 0.5 * (high - low)[..., None]
    v = g / centre
    step, factor = v, 2.0 + 0.0 * centre
    for _ in range(rounds):
        factor = 1.0 / (1.0 - 0.25 * (half / centre) ** 2 * factor)
        step = (factor - 1.0) * step + factor * (g - apply(v)) / centre
        v = v + step
    return v


def flat_hessian(weights: Array) -> Hessian:
    """Return the Hessian of a flat metric: the identity, so that one Newton step is exact."""
    one = namespace_of(weights).sum(weights, axis=0)
    return Hessian(lambda v: v, lambda: (one, one), lambda g: g)


def joined_hessian(parts: Sequence[tuple[int, Hessian]]) -> Hessian:
    """Return the Hessian of a product, from the dimensions and Hessians of its factors."""
    sizes = [dim for dim, _ in parts]

    def apply(v: Array) -> Array:
        split = zip(parts, _split(v, sizes, -2), strict=True)
        return namespace_of(v).concat([h.apply(piece) for (_, h), piece in split], axis=-2)

    def bounds() -> tuple[Array, Array]:
        (low, high), *rest = (part.bounds() for _, part in parts)
        xp = namespace_of(low)
        for other_low, other_high in rest:
            low, high = xp.minimum(low, other_low), xp.maximum(high, other_high)
        return low, high

    def solver(g: Array, exact: bool) -> Array:
        split = zip(parts, _split(g, sizes, -1), strict=True)
        return namespace_of(g).concat([h.solve(piece, exact) for (_, h), piece in split], axis=-1)

    return Hessian(apply, bounds, solver=solver)


def _split(v: Array, sizes: Sequence[int], axis: int) -> list[Array]:
    pieces, start = [], 0
    for size in sizes:
        piece = v[..., start : start + size] if axis == -1 else v[..., start : start + size, :]
        pieces.append(piece)
        start += size
    return pieces
