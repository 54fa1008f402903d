"""The derivatives of a mean, which do not depend on how it was found."""

from functools import partial
from typing import Any

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.backends.contract import RootRules
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics import solvers
from gyrobn.statistics.spread import Shared

__all__ = ["implicit", "onto"]

Constants = tuple[Array, ...]
"""The mean, and what is known of the samples as they are seen from it."""


def onto(manifold: GyroSpace, constant: GyroSpace, mean: Array) -> Array:
    """Return the mean, which is a constant, as the point it is at the learnable curvature.

    The points of some models move when the curvature changes.
    """
    return mean if manifold is constant else manifold.project(mean)


def implicit(
    space: GyroSpace,
    view: Centred,
    x: Array,
    w: Array,
    tol: float,
    shared: Shared | None = None,
    known: tuple[Array, ...] = (),
    variance: Array | None = None,
) -> tuple[Centred, Any]:
    r"""Return a constant view from a mean with its derivatives, to any order.

    The mean is where :math:`g(x, w, \theta; \mu) = \sum_i w_i \operatorname{Log}_e(\ominus\mu
    \oplus x_i)` is zero, θ the parameters of the geometry. So a change of the others moves it by
    :math:`\delta = H^{-1}\,dg` in normal coordinates at μ, μ held; and where the points of a model
    move with θ, by that. The rule is built of differentiable operations, with the mean itself in
    it, so that it can be differentiated again. The image of the samples, as they are seen from the
    mean, comes with it: what follows from it needs the same derivatives as g. H⁻¹ may have an error
    of ``tol`` where H is too large to be formed.

    In a batch on several ranks, g and H are sums over all of them. The variance, which is known,
    then comes out of the same rule, so that one reduction serves its slope and that of the mean.
    """
    values = space.learnable()
    learnt = [v for v in values if not isinstance(v, (int, float))]

    def seen(constants: Constants, x: Array, learnt: tuple[Array, ...]) -> Centred:
        left = iter(learnt)
        own = space.with_learnable(
            [v if isinstance(v, (int, float)) else next(left) for v in values]
        )
        mean = own.project(constants[0]) if learnt else constants[0]
        return view.moved(own, mean, x, constants[1 : 1 + len(view.decompositions)])

    def image(constants: Constants, x: Array, w: Array, *learnt: Array) -> tuple[Array, ...]:
        at = seen(constants, x, learnt)
        summed = () if shared is None else (at.variance(w),)
        return *at.image, *summed, at.gradient(w)

    def inverse(
        image: tuple[Array, ...],
        slopes: tuple[Array, ...],
        constants: Constants,
        v: Array | None,
        also: Array | None,
        x: Array,
        w: Array,
        *learnt: Array,
    ) -> tuple[Array, Array | None]:
        at = seen(constants, x, learnt).showing(*image)
        if slopes:
            more = at.slope_by_step(*slopes)
            v = more if v is None else v + more
        if shared is None:
            return solvers.inverse(at.hessian(w), v, tol), None
        if v is None:
            v = namespace_of(x).zeros(rules.shape, dtype=x.dtype, device=device_of(x))
        whole = constants[len(constants) - len(known) + 1 :]
        return shared.inverse(partial(solvers.inverse, tol=tol), at.hessian(w), whole, v, also)

    def sums(constants: Constants, x: Array, w: Array, *learnt: Array) -> tuple[Array, ...]:
        assert shared is not None
        return shared.matrix(seen(constants, x, learnt).hessian(w), known[0])

    def fall(constants: Constants, step: Array) -> Array:
        g = constants[len(constants) - len(known)]
        return -2.0 * space.by_block(g * step)

    def move(constants: Constants, step: Array, x: Array, w: Array, *learnt: Array) -> Array:
        at = seen(constants, x, learnt)
        return at.mean + at.push(step)

    quick = view.slope_by_step is not None
    channels = tuple(view.mean.shape[: view.mean.ndim - len(space.point_shape)])
    rules = RootRules(image, inverse, move, quick, (*channels, space.dim))
    shown = view.image
    if shared is not None:
        rules = rules._replace(total=shared.total, sums=sums if len(known) > 1 else None, fall=fall)
        shown = *shown, variance
    constants = view.mean, *view.decompositions, *known
    mean, *found = backend_of(x).implicit(rules, constants, shown, x, w, *learnt)
    if shared is not None:
        *found, variance = found
    return view.moved(space, mean, x).showing(*found), variance
