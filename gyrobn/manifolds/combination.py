"""Linear combinations of arrays that are put off until every scalar in them is known.

On a large batch the time goes into memory, not arithmetic: the operations of a constant curvature
model compute a few scalars per sample and combine the arrays that came in once, at the end.
"""

from typing import Any, NamedTuple, Self

from gyrobn.backends import Array, backend_of, dot
from gyrobn.numerics.scalar import times


class Term(NamedTuple):
    """A scalar times a vector."""

    scalar: Any
    """A Python float, or an array with one number per sample."""
    vector: Array
    temporary: bool
    """Whether the vector is ours, read by no one else after this, and may be overwritten."""


class Combination:
    """The sum of scalar times vector.

    >>> import numpy as np
    >>> x = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> s = Combination(np.asarray([2.0, 3.0]), x)
    >>> s.times(10.0).plus(np.asarray([1.0, -1.0]), np.asarray([5.0, 5.0])).value()
    array([[25.,  5.],
           [-5., 25.]])
    """

    def __init__(self, scalar: Any, vector: Array, temporary: bool = False) -> None:
        self.terms = [Term(scalar, vector, temporary)]

    def plus(self, scalar: Any, vector: Array) -> Self:
        """Return the combination with one term more."""
        return self._of([*self.terms, Term(scalar, vector, False)])

    def onto(self, vector: Array) -> Self:
        """Return the vector plus the combination."""
        return self._of([Term(1.0, vector, False), *self.terms])

    def times(self, factor: Any) -> Self:
        """Return the combination with every scalar multiplied.

        A method and no operator: ``torch.compile`` takes the product of a tensor and an object for
        one of its own.
        """
        return self._of([t._replace(scalar=times(factor, t.scalar)) for t in self.terms])

    def over(self, divisor: Any) -> Self:
        """Return the combination with every scalar divided."""
        return self._of([t._replace(scalar=t.scalar / divisor) for t in self.terms])

    def dot(self, vector: Array) -> Array:
        """Return the inner product with a vector, from those of the terms."""
        products = [t.scalar * dot(t.vector, vector) for t in self.terms]
        return sum(products[1:], start=products[0])

    def value(self) -> Array:
        """Compute the combination, with as little new memory as possible.

        A temporary is overwritten, unless automatic differentiation or ``vmap`` may still look at
        it: a derivative by one part of the combination may need the vector of another.
        """
        terms, shim = self.terms, backend_of(self.terms[0].vector)
        arrays = [a for t in terms for a in t[:2] if not isinstance(a, float)]
        constant = not shim.differentiable(*arrays)
        # under vmap, to which all is differentiable, there may be axes that no shape shows
        seen = not any(map(shim.hides_values, arrays[:1] if constant else arrays))
        if constant and not seen:
            # a compiler would compute the scalars again at each coordinate of the vectors
            terms = [
                t if isinstance(t.scalar, float) else t._replace(scalar=shim.stored(t.scalar))
                for t in terms
            ]
        writable = constant and seen
        (scalar, vector, temporary), *rest = terms
        ours = temporary and writable
        if isinstance(scalar, float):
            total, fresh = (vector, ours) if scalar == 1.0 else (scalar * vector, True)
        elif ours and _fits(scalar, vector, 1):
            vector *= scalar[..., None]
            total, fresh = vector, True
        else:
            total, fresh = scalar[..., None] * vector, True
        for scalar, vector, temporary in rest:
            out = None
            if fresh and seen and _fits(scalar, total, 1) and _fits(vector, total):
                out = total
            elif temporary and writable and _fits(scalar, vector, 1) and _fits(total, vector):
                out = vector
            total, fresh = shim.add_product(total, scalar, vector, out), True
        return total

    @classmethod
    def _of(cls, terms: list[Term]) -> Self:
        new = cls.__new__(cls)
        new.terms = terms
        return new


def _fits(part: Any, total: Array, trailing: int = 0) -> bool:
    """Return whether ``total`` can be updated in place with ``part`` and ``trailing`` axes of 1."""
    if isinstance(part, float):
        return True
    shape, own = part.shape, total.shape
    if shape == (own[:-1] if trailing else own):
        return True
    shape = (*shape, *(1,) * trailing)
    cut = len(own) - len(shape)
    return cut >= 0 and all(a in (1, b) for a, b in zip(shape, own[cut:], strict=True))
