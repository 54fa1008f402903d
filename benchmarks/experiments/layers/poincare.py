"""Layers of Hyperbolic Neural Networks++ (Shimizu et al., 2021) on the Poincaré ball."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.experiments.layers.geometric import GeometryLayer
from gyrobn.manifolds.gyrospace import check_manifold
from gyrobn.manifolds.models import PoincareBall
from gyrobn.numerics.arrays import check_floating, dot, length, pieces
from gyrobn.numerics.checks import check_integer, check_integers
from gyrobn.numerics.scalar import arc, cosine, largest_angle, sinc
from gyrobn.torch.layers import no_autocast
from gyrobn.torch.nn import rounded, wide, wide_points


def check_ball(layer: object, manifold: Any) -> PoincareBall:
    """Return the geometry of a layer if it is a Poincaré ball; raise if not."""
    if not isinstance(check_manifold(manifold), PoincareBall):
        raise TypeError(
            f"{type(layer).__name__} works on a PoincareBall, got {manifold!r}: carry the points "
            "there first, for example with gyrobn.convert"
        )
    return manifold  # type: ignore[no-any-return]


class _Hyperplanes(GeometryLayer):
    r"""Hyperplanes of a Poincaré ball, each with a gain, and the scores of points against them.

    Hyperplane k is orthogonal to the unit vector :math:`\hat z_k` and meets the diameter along it
    at the distance :math:`2r_k` from the identity. With the lift of x to the hyperboloid,
    :math:`s = \lambda_x x` and :math:`t = \lambda_x - 1`, its distance from x is

    .. math:: d_k = \frac{\operatorname{asinh}(\sqrt{-K}\,m_k)}{\sqrt{-K}}, \qquad
              m_k = \langle s, \hat z_k\rangle \cosh(2\sqrt{-K}\,r_k)
                    - t\,\frac{\sinh(2\sqrt{-K}\,r_k)}{\sqrt{-K}} .
    """

    weight_v: nn.Parameter
    weight_g: nn.Parameter
    bias: nn.Parameter

    def __init__(
        self,
        manifold: PoincareBall,
        count: int,
        variance: float,
        learn_curvature: bool,
        device: Any,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(manifold, learn_curvature, device, dtype)
        self._count, self._deviation = count, variance**0.5
        own: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight_v = nn.Parameter(torch.empty(count, manifold.n, **own))
        self.weight_g = nn.Parameter(torch.empty(count, **own))
        self.bias = nn.Parameter(torch.empty(count, **own))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw normal weights; the gains are their lengths, and all hyperplanes pass through 0."""
        super().reset_parameters()
        with torch.no_grad():
            self.weight_v.normal_(0.0, self._deviation)
            self.weight_g.copy_(length(wide(self.weight_v)))
            self.bias.zero_()

    def _scores(self, M: PoincareBall, x: Tensor) -> Tensor:
        """Return :math:`v_k = 2 g_k d_k`, shape (..., count)."""
        M._namespace(x)  # checks the shape
        v, g, r = wide(self.weight_v), wide(self.weight_g), wide(self.bias)
        check_floating(x, v)
        K, conformal, _ = M._ball(x)
        size = length(v)
        direction = v / torch.where(size > 0, size, 1.0)[:, None]
        # large angles are clamped
        u = torch.clamp(4.0 * K * r * r, min=-(largest_angle(x) ** 2))
        cosh, sinh = cosine(u, -1), 2.0 * sinc(u, -1)  # sinh(2√-K r)/(√-K r)
        m = torch.matmul(x, (cosh[:, None] * direction).mT)
        m = conformal[..., None] * m - (conformal[..., None] - 1.0) * (r * sinh)
        m = _clamped(M, K, m, math.exp(largest_angle(x)))  # so that no square overflows
        scores: Tensor = 2.0 * g * _asinh(M, K, m)
        return scores


def _clamped(M: PoincareBall, K: Any, m: Tensor, most: float) -> Tensor:
    """Return m, clamped where its size times √-K is ``most``."""
    top = most / abs(K) ** 0.5
    return torch.clamp(m, -top, top)


# If the curvature is learnt, the derivatives by it need the series of these two functions near 0.


def _asinh(M: PoincareBall, K: Any, m: Tensor) -> Any:
    """Return asinh(√-K m)/√-K."""
    if not isinstance(K, float):
        u = K * m * m
        return m * arc(u, torch.sqrt(1.0 - u), -1)
    k = abs(K) ** 0.5
    return torch.asinh(k * m) / k


def _sinh(M: PoincareBall, K: Any, v: Tensor) -> Any:
    """Return sinh(√-K v)/√-K."""
    if not isinstance(K, float):
        return v * sinc(K * v * v, -1)
    k = abs(K) ** 0.5
    return torch.sinh(k * v) / k


class PoincareLinear(_Hyperplanes):
    r"""The fully connected layer of Hyperbolic Neural Networks++, from ball to ball.

    Output k is the point whose signed distances to the coordinate hyperplanes are the scores
    :math:`v_k` of :class:`PoincareMLR`:

    .. math:: y = \frac{w}{1 + \sqrt{1 - K\|w\|^2}}, \qquad
              w_k = \frac{\sinh(\sqrt{-K}\,v_k(x))}{\sqrt{-K}} .

    The weights start at normal numbers of variance :math:`1/(2nm)` for n inputs and m outputs,
    the gains at their lengths, and the offsets at 0. For dropout on the directions, register
    ``torch.nn.Dropout`` as a parametrization of ``weight_v`` (``torch.nn.utils.parametrize``).

    Parameters
    ----------
    manifold
        The ball of the input, of any negative curvature.
    out_features
        Dimension of the ball of the output, which has the same curvature.
    learn_curvature
        Whether the curvature is a parameter, as in :class:`gyrobn.torch.GyroBN`.
    device, dtype
        Of the parameters, and of the input.

    Attributes
    ----------
    weight_v : Parameter of shape (out_features, n)
        Directions of the normals; only their direction matters.
    weight_g : Parameter of shape (out_features,)
        Gains :math:`g_k`, the lengths of the normals.
    bias : Parameter of shape (out_features,)
        Offsets :math:`r_k` of the hyperplanes along their normals.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall
    >>> layer = PoincareLinear(PoincareBall(4, curvature=-0.5), 3)
    >>> x = layer.manifold.random(5, 2, rng=0, like=torch.zeros(1))
    >>> y = layer(x)
    >>> y.shape, bool(layer.out_manifold.contains(y).all())
    (torch.Size([5, 2, 3]), True)
    """

    def __init__(
        self,
        manifold: PoincareBall,
        out_features: int,
        learn_curvature: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        count = check_integer("out_features", out_features, 1)
        variance = 0.5 / (count * check_ball(self, manifold).n)
        super().__init__(manifold, count, variance, learn_curvature, device, dtype)

    @property
    def out_manifold(self) -> PoincareBall:
        """The ball of the output, with the curvature learnt so far."""
        out: PoincareBall = replace(self.manifold, n=self._count)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return points of the output's ball, shape (..., out_features), for points (..., n)."""
        with no_autocast(x):
            M, out = self.manifold, self.out_manifold
            points = wide_points(M, x)
            K = M._parameter("curvature", points)
            most = largest_angle(points) - 0.5 * math.log(out.n)  # the sum does not overflow
            w = _sinh(M, K, _clamped(M, K, self._scores(M, points), most))
            y: Tensor = out._drop(K, 1.0 + torch.sqrt(1.0 - K * dot(w, w)), 1.0, w)
            return rounded(y, x)

    def extra_repr(self) -> str:
        """Return the options to print."""
        return f"{super().extra_repr()}, out_features={self._count}"


class PoincareMLR(_Hyperplanes):
    r"""Multinomial logistic regression on the Poincaré ball, as in Hyperbolic Neural Networks++.

    The score of a class is twice the signed distance to its hyperplane, times a gain:

    .. math:: v_k(x) = \frac{2 g_k}{\sqrt{-K}} \operatorname{asinh}\bigl(
              \lambda_x\langle \sqrt{-K}\,x, \hat z_k\rangle \cosh(2\sqrt{-K}\,r_k)
              - (\lambda_x - 1)\sinh(2\sqrt{-K}\,r_k)\bigr), \qquad
              \lambda_x = \frac2{1 + K\|x\|^2} .

    As K tends to 0 it becomes :math:`4(\langle g_k\hat z_k, x\rangle - g_k r_k)`. The scores are
    logits, for ``torch.nn.CrossEntropyLoss``. The weights start at normal numbers of variance
    :math:`-1/(nK)`, the gains at their lengths, and the offsets at 0.

    Parameters
    ----------
    manifold
        The ball, of any negative curvature.
    classes
        Number of classes.
    learn_curvature, device, dtype
        As in :class:`PoincareLinear`.

    Attributes
    ----------
    weight_v : Parameter of shape (classes, n)
        Directions of the normals; only their direction matters.
    weight_g : Parameter of shape (classes,)
        Gains :math:`g_k`, the lengths of the normals.
    bias : Parameter of shape (classes,)
        Offsets :math:`r_k` of the hyperplanes along their normals.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall
    >>> layer = PoincareMLR(PoincareBall(2), 2)
    >>> layer.load_state_dict(
    ...     {"weight_v": torch.eye(2), "weight_g": torch.ones(2), "bias": torch.tensor([0.0, 1.0])}
    ... )
    <All keys matched successfully>
    >>> x = torch.tensor([0.5, 0.0])
    >>> layer(x).detach()  # the first is twice the distance from the identity
    tensor([ 2.1972, -4.9982])
    """

    def __init__(
        self,
        manifold: PoincareBall,
        classes: int,
        learn_curvature: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        count = check_integer("classes", classes, 1)
        variance = -1.0 / (check_ball(self, manifold).n * manifold.curvature)
        super().__init__(manifold, count, variance, learn_curvature, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the score of every class, shape (..., classes), for points (..., n)."""
        with no_autocast(x):
            M = self.manifold
            return rounded(self._scores(M, wide_points(M, x)), x)

    def extra_repr(self) -> str:
        """Return the options to print."""
        return f"{super().extra_repr()}, classes={self._count}"


class BetaConcat(GeometryLayer):
    r"""Concatenation of points of several balls into one, as in Hyperbolic Neural Networks++.

    .. math:: y = \operatorname{Exp}_0\Bigl(\frac{\beta_n}{\beta_{n_1}}\operatorname{Log}_0 x_1,
              \dots, \frac{\beta_n}{\beta_{n_k}}\operatorname{Log}_0 x_k\Bigr), \qquad
              \beta_a = B\bigl(\tfrac a2, \tfrac12\bigr), \quad n = \sum_i n_i .

    A vector of length R in a random direction of :math:`\mathbb R^a` has coordinates of the mean
    size :math:`R\beta_a/\pi`. So if the parts are such vectors, the coordinates of the result have
    the mean size that they have for a vector of length R in :math:`\mathbb R^n`.

    Parameters
    ----------
    manifold
        The ball of the result, of dimension n.
    sizes
        The dimensions :math:`n_i` of the parts, whose balls have the same curvature.
    learn_curvature, device, dtype
        As in :class:`PoincareLinear`.

    Examples
    --------
    >>> import torch
    >>> from gyrobn import PoincareBall
    >>> layer = BetaConcat(PoincareBall(3), (1, 2))
    >>> y = layer(torch.tensor([0.5]), torch.tensor([0.0, 0.5]))
    >>> y
    tensor([0.2530, 0.0000, 0.3974])
    >>> layer.split(y)
    (tensor([0.5000]), tensor([0.0000, 0.5000]))
    """

    _shown = ("sizes",)

    def __init__(
        self,
        manifold: PoincareBall,
        sizes: Sequence[int],
        learn_curvature: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(check_ball(self, manifold), learn_curvature, device, dtype)
        self.sizes = check_integers("sizes", sizes, 1)
        if sum(self.sizes) != manifold.n:
            raise ValueError(
                f"BetaConcat needs sizes that sum to the dimension of {manifold!r}, got "
                f"{self.sizes}, of which the sum is {sum(self.sizes)}"
            )
        self._factors = [_beta(manifold.n) / _beta(size) for size in self.sizes]

    def forward(self, *parts: Tensor) -> Tensor:
        """Return one point, shape (..., n), for one point of each part's ball."""
        if len(parts) != len(self.sizes):
            raise ValueError(f"BetaConcat expects {len(self.sizes)} parts, got {len(parts)}")
        with no_autocast(*parts):
            M = self.manifold
            logs = [
                factor * ball.to_normal(wide_points(ball, x))
                for factor, ball, x in zip(self._factors, self._balls(M), parts, strict=True)
            ]
            check_floating(*logs)
            batch = torch.broadcast_shapes(*(c.shape[:-1] for c in logs))  # type: ignore[no-untyped-call]
            y: Tensor = M.from_normal(torch.cat([c.expand(*batch, -1) for c in logs], dim=-1))
            return rounded(y, *parts)

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        """Undo the concatenation: return one point of each part's ball."""
        with no_autocast(y):
            M = self.manifold
            parts = pieces(M.to_normal(wide_points(M, y)), self.sizes)
            both = zip(self._factors, self._balls(M), parts, strict=True)
            return tuple(rounded(ball.from_normal(c / factor), y) for factor, ball, c in both)

    def _balls(self, M: PoincareBall) -> list[PoincareBall]:
        return [replace(M, n=size) for size in self.sizes]


def _beta(a: int) -> float:
    r"""Return :math:`\beta_a = B(a/2, 1/2)`."""
    return math.exp(math.lgamma(0.5 * a) + math.lgamma(0.5) - math.lgamma(0.5 * (a + 1)))
