"""The derivatives of a mean, which do not depend on how it was found."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from gyrobn.backends import Array, backend_of, device_of, dot, namespace_of
from gyrobn.backends.contract import RootRules, State
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics import solvers
from gyrobn.numerics.jets import change_of
from gyrobn.statistics.spread import Shared

Constants = tuple[Array, ...]
"""The mean, and the samples as they are seen from it."""


def learnt(space: GyroSpace) -> list[Array]:
    """Return the parameters of a geometry that are arrays."""
    return [v for v in space.learnable() if not isinstance(v, (int, float))]


def with_learnt(space: GyroSpace, arrays: Iterable[Array]) -> GyroSpace:
    """Return the geometry with other arrays for these parameters."""
    left, values = iter(arrays), space.learnable()
    return space.with_learnable([v if isinstance(v, (int, float)) else next(left) for v in values])


def onto(manifold: GyroSpace, constant: GyroSpace, mean: Array) -> Array:
    """Return the constant mean as a point that depends on the learnable curvature.

    The points of some models move when the curvature changes.
    """
    return mean if manifold is constant else manifold.project(mean)


def implicit(
    space: GyroSpace,
    view: Centred,
    x: Array,
    w: Array,
    shared: Shared | None = None,
    known: tuple[Array, ...] = (),
    variance: Array | None = None,
    tol: float = 0.0,
) -> tuple[Centred, Any]:
    r"""Return a constant view from a mean with its derivatives, to any order.

    The mean is where :math:`g(x, w, \theta; \mu) = \sum_i w_i \operatorname{Log}_e(\ominus\mu
    \oplus x_i)` is zero, θ the parameters of the geometry. So a change of the others moves it by
    :math:`\delta = H^{-1}\,dg` in normal coordinates at μ, μ held. If the points of a model move
    with θ, the mean moves with them. The rule consists of differentiable operations, with the mean
    itself in it, so that it can be differentiated again. It also returns the image of the samples
    as seen from the mean, which needs the same derivatives as g. H⁻¹ may have an error of ``tol``
    if H is too large to be formed.

    In a batch on several ranks, g and H are sums over all of them, and ``known`` has them. The
    variance, which is known too, then comes out of the same rule, so that one reduction serves its
    slope and that of the mean.
    """
    equation = _Equation(space, view, w, shared, known, tol)
    shown = view.image
    if shared is not None:
        shown = *shown, variance
    constants = view.mean, *view.decompositions, *known
    given = x, w, *learnt(space)
    mean, *found = backend_of(x).implicit(equation.rules, constants, shown, *given)
    if shared is not None:
        *found, variance = found
    return view.moved(space, mean, x).showing(*found), variance


@dataclass(eq=False)
class _Equation:
    """The equation g = 0, as the shims need it: see :class:`~gyrobn.backends.contract.RootRules`.

    Its inputs are samples, weights, and the parameters of the geometry that are arrays.
    """

    space: GyroSpace
    view: Centred
    weights: Array
    shared: Shared | None
    known: tuple[Array, ...]
    tol: float

    @property
    def rules(self) -> RootRules:
        """The rules for the derivative."""
        quick = self.view.slope_by_step is not None
        rules = RootRules(
            self.image,
            self.inverse,
            self.move,
            quick,
            self.shape,
            differentiable=cache(lambda: self.view.hessian(self.weights).differentiable),
        )
        if self.shared is None:
            known = self.view.slope_by_samples is not None and not learnt(self.space)
            return rules._replace(twice=self.twice, slopes=self.slopes if known else None)
        sums = self.sums if len(self.known) > 2 else None
        return rules._replace(total=self.shared.total, sums=sums, fall=self.fall)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a step."""
        mean = self.view.mean
        return (*mean.shape[: mean.ndim - len(self.space.point_shape)], self.space.dim)

    def seen(self, constants: Constants, x: Array, learnt: tuple[Array, ...]) -> Centred:
        """Return the samples as they are seen from the mean."""
        space = with_learnt(self.space, learnt)
        mean = space.project(constants[0]) if learnt else constants[0]
        return self.view.moved(space, mean, x, constants[1 : 1 + len(self.view.decompositions)])

    def image(self, constants: Constants, x: Array, w: Array, *learnt: Array) -> tuple[Array, ...]:
        """Return the image, in a batch on several ranks the variance here, and g."""
        at = self.seen(constants, x, learnt)
        summed = () if self.shared is None else (at.variance(w),)
        return *at.image, *summed, at.gradient(w)

    def inverse(
        self,
        image: tuple[Array, ...],
        slopes: tuple[Array, ...],
        constants: Constants,
        v: Array | None,
        also: Array | None,
        x: Array,
        w: Array,
        *learnt: Array,
        back: bool = False,
    ) -> tuple[Array, Array | None]:
        """Return H⁻¹v, and the sum of ``also`` over all ranks."""
        at = self.seen(constants, x, learnt).showing(*image)
        if slopes:
            more = at.slope_by_step(*slopes)
            v = more if v is None else v + more
        if self.shared is None:
            return solvers.inverse(at.hessian(w), v, self.tol), None
        if v is None:
            v = namespace_of(x).zeros(self.shape, dtype=x.dtype, device=device_of(x))
        whole = constants[len(constants) - len(self.known) + 1 :]
        rise = partial(self.rise, constants) if back else None
        return self.shared.inverse(at.hessian(w), whole, v, also, rise, self.tol)

    def slopes(self, constants: Constants, image: Array, slope: Array, x: Array, w: Array) -> State:
        r"""Return the slopes of samples and weights from that of the image.

        The image changes with the samples and with the mean: a slope by a step is one by g, times
        :math:`H^{-1}`, and :math:`dg = \sum_i w_i\,dc_i + c_i\,dw_i`.
        """
        at = self.seen(constants, x, ()).showing(image)
        v = solvers.inverse(at.hessian(w), at.slope_by_step(slope), self.tol)
        return at.slope_by_samples(slope + w[..., None] * v), dot(image, v)

    def sums(self, constants: Constants, x: Array, w: Array, *learnt: Array) -> tuple[Array, ...]:
        """Return H and a bound of its eigenvalues, sums over all ranks, with their derivatives."""
        assert self.shared is not None
        return self.shared.matrix(self.seen(constants, x, learnt).hessian(w), self.known[0])

    def fall(self, constants: Constants, step: Array) -> Array:
        """Return how a small step changes the variance."""
        return -2.0 * self.space.by_block(self.g(constants) * step)

    def rise(self, constants: Constants, slope: Array) -> Array:
        """Return the slope by a small step, from that by the variance."""
        each = self.space.by_coordinate(self.space.squeeze_blocks(slope))
        return -2.0 * self.g(constants) * each

    def g(self, constants: Constants) -> Array:
        """Return g of all samples, which is zero unless a number of steps was asked for."""
        return constants[len(constants) - len(self.known)]

    def move(self, constants: Constants, step: Array, x: Array, w: Array, *learnt: Array) -> Array:
        """Return the mean after a small step."""
        at = self.seen(constants, x, learnt)
        return at.mean + at.push(step)

    def twice(self, constants: Constants, x: Array, w: Array, *learnt: Array) -> tuple[Array, ...]:
        r"""Return the mean and the image, right to second order, where H is a constant.

        A step :math:`\mu \oplus H^{-1}g` with H held constant leaves an error of first order in the
        changes times the error before. So a first one from the constant mean is right to first
        order, and a second one to second order.
        """
        stop = backend_of(x).stop_gradient
        mean, *rest = constants
        hessian = self.seen(constants, stop(x), learnt).hessian(stop(w))
        for _ in range(2):
            at = self.seen((mean, *rest), x, learnt)
            g = at.gradient(w)
            moved = at.retract(solvers.inverse(hessian, change_of(g), self.tol))
            mean = constants[0] + (moved - stop(moved))
        return mean, *self.seen((mean, *rest), x, learnt).image
