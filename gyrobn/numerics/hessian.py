"""The mean Hessian of half the squared distance, as an operator; ``solvers`` invert it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from gyrobn.backends import Array, namespace_of
from gyrobn.numerics.arrays import pieces, sum_samples, weighted_sum
from gyrobn.numerics.matrices import kept_eye

DENSE = 128
"""Up to this dimension a Hessian is formed and solved; beyond, Chebyshev steps apply it."""


@dataclass(frozen=True)
class Hessian:
    """A symmetric operator on normal coordinates; nothing is computed before it is asked for."""

    apply: Callable[[Array], Array]
    """Multiply columns: an array of shape (*channels, dim, k) to one of the same shape."""
    lowest: Callable[[], Array]
    """Return a lower bound of its eigenvalues, shape (*channels,)."""
    highest: Callable[[], Array]
    """Return an upper bound of its eigenvalues."""
    quick: Callable[[Array, Array | None], Array] | None = None
    """Nearly H⁻¹g, linear in g, for a step on the way; where that is cheaper than to apply H. The
    second argument is the variance of all samples, if they are not all here."""
    matrix: Callable[[], Array] | None = None
    """Return H itself, where that takes less than to apply it to the identity."""
    rough: Callable[[Array], Array] | None = None
    """Multiply columns to five digits, where that takes less time than all of them."""
    dense: int = DENSE
    """The largest dimension in which to form the matrix."""
    by_part: Callable[[Callable[["Hessian", Array], Array], Array], Array] | None = None
    """Call a function with each part of H and its part of g, if H is block diagonal."""
    at_least_one: bool = False
    """Whether no eigenvalue is below 1, as where no curvature is positive: it needs no shift."""
    identity: bool = False
    """Whether H is the identity."""
    differentiable: bool = False
    """Whether H has derivatives by the samples and weights. If not, it is a constant to them: the
    mean then has its first two derivatives, which do not need those of H, and no third one."""

    @cached_property
    def formed(self) -> Array | None:
        """H itself, formed once; None if only its application is known."""
        return None if self.matrix is None else self.matrix()

    def as_matrix(self, like: Array) -> Array:
        """Return H as a matrix, for vectors of the shape of ``like``, (*channels, dim)."""
        if self.formed is not None:
            return self.formed
        columns = namespace_of(like).broadcast_to(kept_eye(like), (*like.shape, like.shape[-1]))
        return self.apply(columns)

    @cached_property
    def top(self) -> Array:
        """The upper bound of its eigenvalues, computed once."""
        return self.highest()


def flat_hessian(weights: Array) -> Hessian:
    """Return the Hessian of a flat metric: the identity, so that one Newton step is exact."""
    one = sum_samples(weights)
    return Hessian(lambda v: v, lambda: one, lambda: one, identity=True, differentiable=True)


def matrix_hessian(matrix: Array, lowest: Array, at_least_one: bool) -> Hessian:
    """Return a Hessian that is known as a matrix."""
    xp = namespace_of(matrix)
    return Hessian(
        lambda v: xp.matmul(matrix, v),
        lambda: lowest,
        lambda: xp.linalg.matrix_norm(matrix),
        matrix=lambda: matrix,
        at_least_one=at_least_one,
    )


def compact_hessian(
    c: Array,
    weights: Array,
    ricci: float,
    apply: Callable[[Array], Array],
    lowest: Callable[[], Array],
) -> Hessian:
    r"""Return a Hessian whose eigenvalues are :math:`a \cot a \le 1`, as on compact spaces.

    ``quick`` divides by nearly their mean, :math:`a \cot a \approx 1 - a^2/3`: in an Einstein space
    the :math:`a^2` of one sample add up to its Ricci curvature, ``ricci`` times :math:`\|c\|^2`.
    """
    xp = namespace_of(c)

    def quick(g: Array, spread: Array | None = None) -> Array:
        if spread is None:
            spread = weighted_sum(weights, xp.sum(c * c, axis=-1))
        middle = xp.clip(1.0 - ricci / (3 * c.shape[-1]) * spread, min=0.25)
        return g / middle[..., None]

    return Hessian(apply, lowest, lambda: sum_samples(weights), quick)


def joined_hessian(parts: Sequence[tuple[int, Hessian]]) -> Hessian:
    """Return the Hessian of a product, from the dimensions and Hessians of its factors."""
    sizes = [dim for dim, _ in parts]

    def apply(v: Array) -> Array:
        split = zip(parts, pieces(v, sizes, -2), strict=True)
        return namespace_of(v).concat([h.apply(piece) for (_, h), piece in split], axis=-2)

    def lowest() -> Array:
        first, *rest = (h.lowest() for _, h in parts)
        return reduce(namespace_of(first).minimum, rest, first)

    def highest() -> Array:
        first, *rest = (h.highest() for _, h in parts)
        return reduce(namespace_of(first).maximum, rest, first)

    def by_part(function: Callable[[Hessian, Array], Array], g: Array) -> Array:
        split = zip(parts, pieces(g, sizes), strict=True)
        return namespace_of(g).concat([function(h, piece) for (_, h), piece in split], axis=-1)

    differentiable = all(h.differentiable for _, h in parts)
    return Hessian(apply, lowest, highest, by_part=by_part, differentiable=differentiable)
