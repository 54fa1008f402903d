"""The mean Hessian of half the squared distance, and its inverse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gyrobn.backends import Array, device_of, namespace_of

__all__ = ["DENSE", "Hessian", "flat_hessian", "joined_hessian"]

DENSE = 128
"""Up to this dimension the Hessian is formed and solved; beyond, Chebyshev steps apply it."""


@dataclass(frozen=True)
class Hessian:
    """A symmetric operator on normal coordinates."""

    apply: Callable[[Array], Array]
    """Multiply columns: an array of shape (*channels, dim, k) to one of the same shape."""
    low: Array
    """A lower bound of its eigenvalues, of shape (*channels,)."""
    high: Array
    """An upper bound of its eigenvalues."""
    middle: Array | None = None
    """A number to divide by instead, where that is much cheaper than to apply the operator."""
    parts: Sequence[tuple[int, "Hessian"]] = ()
    """Dimensions and Hessians of the blocks it falls into, if it does."""

    def solve(self, g: Array, exact: bool) -> Array:
        """Return H⁻¹g for g of shape (*channels, dim), linear in g.

        Solved where H is small, by Chebyshev steps where it is large. Where an eigenvalue may be
        negative, or nearly zero (samples beyond a hemisphere), H is shifted up. ``exact`` asks for
        all digits, as derivatives need them; otherwise it is a step on the way to the mean.
        """
        xp = namespace_of(g)
        if self.parts:
            ends = [0]
            for dim, _ in self.parts:
                ends.append(ends[-1] + dim)
            solved = [
                part.solve(g[..., i:j], exact)
                for (_, part), i, j in zip(self.parts, ends[:-1], ends[1:], strict=True)
            ]
            return xp.concat(solved, axis=-1)
        dim = g.shape[-1]
        if dim > DENSE and self.middle is not None and not exact:
            return g / self.middle[..., None]
        floor, rounds = (1e-3, 24) if exact else (0.25, 8)
        shift = xp.clip(floor - self.low, min=0.0)[..., None, None]
        b = g[..., None]
        if dim <= DENSE:
            eye = xp.eye(dim, dtype=g.dtype, device=device_of(g))
            matrix = self.apply(xp.broadcast_to(eye, (*g.shape, dim))) + shift * eye
            return xp.linalg.solve(matrix, b)[..., 0]
        low, high = self.low[..., None, None] + shift, self.high[..., None, None] + shift
        centre, half = 0.5 * (high + low), 0.5 * (high - low)
        x = b / centre
        step, factor = x, 2.0 * xp.ones_like(centre)
        for _ in range(rounds):
            factor = 1.0 / (1.0 - 0.25 * (half / centre) ** 2 * factor)
            rest = b - self.apply(x) - shift * x
            step = (factor - 1.0) * step + factor * rest / centre
            x = x + step
        return x[..., 0]


def flat_hessian(weights: Array) -> Hessian:
    """Return the Hessian of a flat metric: the identity, so that one Newton step is exact."""
    one = namespace_of(weights).sum(weights, axis=0)
    return Hessian(lambda v: v, one, one, one)


def joined_hessian(parts: Sequence[tuple[int, Hessian]]) -> Hessian:
    """Return the Hessian of a product, from the dimensions and Hessians of its factors."""
    xp = namespace_of(parts[0][1].low)
    low, high = parts[0][1].low, parts[0][1].high
    for _, part in parts[1:]:
        low, high = xp.minimum(low, part.low), xp.maximum(high, part.high)

    def apply(v: Array) -> Array:
        found, start = [], 0
        for dim, part in parts:
            found.append(part.apply(v[..., start : start + dim, :]))
            start += dim
        return xp.concat(found, axis=-2)

    return Hessian(apply, low, high, parts=tuple(parts))
