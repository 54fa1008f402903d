"""Linear combinations of arrays that are put off until every scalar in them is known.

On a large batch the time goes into memory, not arithmetic: the operations of a constant curvature
model compute a few scalars a sample and combine the arrays that came in once, at the end.
"""

from typing import Any, NamedTuple, Self

from gyrobn.backends import Array, backend_of, dot, namespace_of

__all__ = ["Combination"]


class Term(NamedTuple):
    scalar: Any
    """A Python float, or an array with one number a sample."""
    vector: Array
    temporary: bool
    """Whether the vector is ours, read by no one else after this, and may be overwritten."""


class Combination:
    """The sum of scalar times vector.

    >>> import numpy as np
    >>> x = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> s = Combination(np.asarray([2.0, 3.0]), x)
    >>> (s * 10.0).plus(np.asarray([1.0, -1.0]), np.asarray([5.0, 5.0])).value()
    array([[25.,  5.],
           [-5., 25.]])
    """

    def __init__(self, scalar: Any, vector: Array, temporary: bool = False) -> None:
        self.terms = [Term(scalar, vector, temporary)]

    def plus(self, scalar: Any, vector: Array) -> Self:
        """Return the combination with one term more."""
        return self._of([*self.terms, Term(scalar, vector, False)])

    def __mul__(self, factor: Any) -> Self:
        return self._of([t._replace(scalar=factor * t.scalar) for t in self.terms])

    def dot(self, vector: Array) -> Array:
        """Return the inner product with a vector, from those of the terms."""
        products = [t.scalar * dot(t.vector, vector) for t in self.terms]
        return sum(products[1:], start=products[0])

    def value(self) -> Array:
        """Carry the combination out, with as little fresh memory as can be.

        Vectors that all samples share are combined by one product of matrices; a temporary is
        overwritten, unless automatic differentiation or ``vmap`` may still look at it.
        """
        parts = [t for t in self.terms if not _is_shared(t)]
        shared = [t for t in self.terms if _is_shared(t)]
        total: Any = None
        for part in (*parts, *_merged(shared)):
            term = _product(part)
            if total is None:
                total = term
                fresh = term is not part.vector or part.temporary
            elif fresh and _fits(term, total):
                total += term
            else:
                total, fresh = total + term, True
        return total

    @classmethod
    def _of(cls, terms: list[Term]) -> Self:
        new = cls.__new__(cls)
        new.terms = terms
        return new


def _is_shared(term: Term) -> bool:
    return term.vector.ndim == 1 and not isinstance(term.scalar, float) and term.scalar.ndim > 0


def _merged(terms: list[Term]) -> list[Term]:
    """Combine terms whose vectors are the same for all samples into one product of matrices."""
    if len(terms) < 2:
        return terms
    xp = namespace_of(terms[0].vector)
    scalars = xp.stack(xp.broadcast_arrays(*(t.scalar for t in terms)), axis=-1)
    return [Term(1.0, xp.matmul(scalars, xp.stack([t.vector for t in terms])), True)]


def _product(term: Term) -> Array:
    scalar, vector, temporary = term
    if isinstance(scalar, float):
        return vector if scalar == 1.0 else scalar * vector
    scalar = scalar[..., None]
    shim = backend_of(vector)
    if temporary and _fits(scalar, vector) and not shim.differentiable(vector):
        vector *= scalar
        return vector
    return scalar * vector


def _fits(small: Array, large: Array) -> bool:
    """Tell whether ``large`` can be updated in place with ``small``."""
    padded = (1,) * (large.ndim - small.ndim) + tuple(small.shape)
    shapes = len(padded) == large.ndim and all(
        a in (1, b) for a, b in zip(padded, large.shape, strict=True)
    )
    hidden = backend_of(large).hides_values  # under vmap there may be axes that no shape shows
    return shapes and not hidden(small) and not hidden(large)
