"""How a Hessian is inverted: by a matrix, by Chebyshev steps, or by conjugate gradients."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.decompositions import eigh
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import kept_eye

Operator = Callable[[Array], Array]
Bounds = tuple[Array, ...]
"""The least and the largest eigenvalue of each channel; on the host if they can be seen."""

FEW, MANY = 4, 24
"""Up to a few rounds, Chebyshev steps are as good as conjugate gradients; more are not made."""
FIVE_DIGITS = 4e-6
"""What products in float32 can reach."""
FLOOR = 0.25
"""The least bound of the eigenvalues with which a step is made."""
LEAST = 0.05
"""The least eigenvalue of a matrix with which a step is made: a loop checks how far it leads."""


def newton_step(h: Hessian, g: Array, tol: float) -> Array:
    """Return nearly H⁻¹g for g of shape (*channels, dim): a step towards the mean.

    ``tol`` is the error that may be left, relative to g. A quick step has an accuracy of its own.
    Where an eigenvalue is negative, or nearly zero (samples beyond a hemisphere), H is shifted up.
    """
    if h.identity:
        return g
    if h.by_part is not None:
        return h.by_part(lambda part, piece: newton_step(part, piece, tol), g)
    if g.shape[-1] <= h.dense:
        return _by_matrix(h, g, _shift(h, g))
    return _by_steps(h, g, FLOOR, tol) if h.quick is None else h.quick(g, None)


def inverse(h: Hessian, g: Array, tol: float = 0.0) -> Array:
    """Return H⁻¹g to nearly all digits, or with an error of ``tol`` relative to g.

    A matrix is inverted as it is: a bound of its eigenvalues says little if samples are beyond a
    hemisphere, and the derivative of the mean is large where one of them is nearly zero.
    """
    if h.identity:
        return g
    if h.by_part is not None:
        return h.by_part(lambda part, piece: inverse(part, piece, tol), g)
    eps = float(namespace_of(g).finfo(g.dtype).eps)
    if g.shape[-1] <= h.dense:
        # a rounding error more keeps a singular matrix, of two opposite samples, from an error
        return _by_matrix(h, g, None if h.at_least_one else 4.0 * eps)
    return _by_steps(h, g, 1e-3, max(tol, eps ** (2 / 3)))


def _shift(h: Hessian, g: Array) -> Array | None:
    """Return the shift of a matrix with which a step is made, if it may need one.

    If values can be seen and the bound of the eigenvalues asks for a shift, the least eigenvalue
    itself decides. The bound takes that of each sample, in whatever direction. On a few samples all
    over a sphere it is negative at most means, and steps that are too short do not converge.
    """
    if h.at_least_one:
        return None
    xp = namespace_of(g)
    shift = xp.clip(FLOOR - h.lowest(), min=0.0)
    if not backend_of(g).hides_values(shift) and bool(xp.any(shift > 0)):
        shift = xp.clip(LEAST - eigh(h.as_matrix(g)).values[..., 0], min=0.0)
    return shift[..., None, None]


def _by_matrix(h: Hessian, g: Array, shift: Any) -> Array:
    """Solve by the matrix, with a shift of its eigenvalues."""
    full = h.as_matrix(g)
    if shift is not None:
        full = full + shift * kept_eye(g)
    return namespace_of(g).linalg.solve(full, g[..., None])[..., 0]


def _by_steps(h: Hessian, g: Array, floor: float, tol: float) -> Array:
    """Solve by Chebyshev steps, where H is large; its eigenvalues are shifted to ``floor``."""
    xp = namespace_of(g)
    low, high, apply = h.lowest(), h.top, _to_vectors(h.apply)
    if not h.at_least_one:
        shift = xp.clip(floor - low, min=0.0)
        low, high, shifted = low + shift, high + shift, apply
        apply = lambda v: shifted(v) + shift[..., None] * v  # noqa: E731
    shim = backend_of(g)
    bounds = low, high
    if not (shim.hides_values(high) or shim.differentiable(low, high)):
        bounds = tuple(shim.to_numpy(xp.stack(bounds)))
    if h.differentiable or shim.hides_values(g) or shim.differentiable(g):
        return chebyshev(apply, g, bounds, tol)
    if h.rough is None:
        return _adaptive(apply, g, bounds, tol)
    rough = _to_vectors(h.rough)
    if tol > FIVE_DIGITS:
        return _adaptive(rough, g, bounds, tol)
    some = (0.1 * tol) ** 0.5
    v = _adaptive(rough, g, bounds, some)
    return v + _adaptive(rough, g - apply(v), bounds, some)


def _to_vectors(apply: Operator) -> Operator:
    return lambda v: apply(v[..., None])[..., 0]


def _adaptive(apply: Operator, g: Array, bounds: Bounds, tol: float) -> Array:
    """Return nearly H⁻¹g, which need not be linear in g, for a constant H that can be seen.

    If the bounds ask for many Chebyshev steps, conjugate gradients may take fewer.
    """
    if float(_rounds(bounds, tol).max()) > FEW:
        return conjugate_gradients(apply, g, tol)
    return chebyshev(apply, g, bounds, tol)


def chebyshev(apply: Operator, g: Array, bounds: Bounds, tol: float) -> Array:
    """Return nearly H⁻¹g, linear in g, for H with eigenvalues between the bounds.

    Each channel takes as many steps as leave an error of ``tol``, up to 24 (12 for a rough one).
    """
    xp, shim, (low, high) = namespace_of(g), backend_of(g), bounds

    def like_g(numbers: Array) -> Array:
        """Return one number per channel, to be multiplied by vectors."""
        if namespace_of(numbers) is not xp:
            if not numbers.shape:
                return float(numbers)
            numbers = shim.from_numpy(numbers, g)
        return xp.astype(numbers, g.dtype, copy=False)[..., None]

    wanted = _rounds(bounds, tol)
    rounds = MANY if tol < 1e-6 else MANY // 2
    if not backend_of(wanted).hides_values(wanted):
        most = float(namespace_of(wanted).max(wanted))
        rounds = int(most) if math.isfinite(most) else 0
    centre, rate, factor = 0.5 * (high + low), (high - low) / (high + low), 2.0
    v = step = g / like_g(centre)
    for k in range(rounds):
        factor = 1.0 / (1.0 - 0.25 * rate * rate * factor)
        rest = like_g(factor / centre) * (g - apply(v))
        step = like_g(factor - 1.0) * step + rest
        v = v + like_g(wanted > k) * step
    return v


def _rounds(bounds: Bounds, tol: float) -> Array:
    """Return how many Chebyshev steps leave an error of ``tol``: k steps leave 2 rate^(k + 1)."""
    low, high = bounds
    xp = namespace_of(high)
    with np.errstate(all="ignore"):
        root = xp.sqrt(high / low)
        rate = (root - 1.0) / (root + 1.0)
    tiny = float(xp.finfo(high.dtype).smallest_normal)
    wanted = xp.round(math.log(0.5 * tol) / xp.log(xp.clip(rate, min=tiny, max=0.99))) - 1.0
    return xp.clip(wanted, min=0.0, max=float(MANY if tol < 1e-6 else MANY // 2))


def conjugate_gradients(apply: Operator, g: Array, tol: float) -> Array:
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
