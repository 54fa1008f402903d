"""How a Hessian is inverted: by a matrix, by Chebyshev steps, or by conjugate gradients."""

import math
from collections.abc import Callable

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.numerics.hessian import Hessian

__all__ = ["inverse", "newton_step"]

FEW, MANY = 4, 24
"""Up to a few rounds, Chebyshev steps are as good as conjugate gradients; more are not made."""
FIVE_DIGITS = 4e-6
"""What products in float32 can reach."""


def newton_step(h: Hessian, g: Array, tol: float) -> Array:
    """Return nearly H⁻¹g for g of shape (*channels, dim): a step towards the mean.

    ``tol`` is the error that may be left, relative to g. A quick step has an accuracy of its own.
    Where an eigenvalue may be negative, or nearly zero (samples beyond a hemisphere), H is shifted
    up.
    """
    if h.by_part is not None:
        return h.by_part(lambda part, piece: newton_step(part, piece, tol), g)
    if h.quick is not None and g.shape[-1] > h.dense:
        return h.quick(g)
    return _solve(h, g, 0.25, tol)


def inverse(h: Hessian, g: Array, tol: float = 0.0) -> Array:
    """Return H⁻¹g to nearly all digits, or with an error of ``tol`` relative to g."""
    if h.by_part is not None:
        return h.by_part(lambda part, piece: inverse(part, piece, tol), g)
    least = float(namespace_of(g).finfo(g.dtype).eps) ** (2 / 3)
    return _solve(h, g, 1e-3, max(tol, least))


def _solve(h: Hessian, g: Array, floor: float, tol: float) -> Array:
    """Solve by a matrix where H is small, by Chebyshev steps where it is large."""
    xp, n = namespace_of(g), g.shape[-1]
    shift = None if h.at_least_one else xp.clip(floor - h.lowest(), min=0.0)
    if n <= h.dense:
        full = h.formed
        if full is None or shift is not None:
            eye = xp.eye(n, dtype=g.dtype, device=device_of(g))
        if full is None:
            full = h.apply(xp.broadcast_to(eye, (*g.shape, n)))
        if shift is not None:
            full = full + shift[..., None, None] * eye
        return xp.linalg.solve(full, g[..., None])[..., 0]
    low, high, apply = h.lowest(), h.top, _to_vectors(h.apply)
    if shift is not None:
        low, high, shifted = low + shift, high + shift, apply
        apply = lambda v: shifted(v) + shift[..., None] * v  # noqa: E731
    shim = backend_of(g)
    if h.smooth or shim.hides_values(g) or shim.differentiable(g):
        return chebyshev(apply, g, low, high, tol)
    if h.rough is None:
        return _adaptive(apply, g, low, high, tol)
    rough = _to_vectors(h.rough)
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
