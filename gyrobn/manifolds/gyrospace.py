r"""GyroSpace: the primitives a geometry supplies, and everything that follows from them, once.

A geometry is a symmetric space with an identity :math:`e` whose left gyrotranslations are
isometries. All of it is written in *normal coordinates at e*: the coordinates of
:math:`\operatorname{Log}_e(x)` in an orthonormal basis of :math:`T_e\mathcal M`, a flat vector of
length ``dim``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import lru_cache
from numbers import Real
from typing import Any, ClassVar, Self, TypeVar

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.backends.pytrees import declare
from gyrobn.manifolds.centred import Centred
from gyrobn.numerics.arrays import check_floating, constant, length, scalars_like, weighted_sum
from gyrobn.numerics.checks import check_choice, check_integer, check_integers, check_number
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.scalar import safe_sqrt

__all__ = ["GyroSpace", "space_of"]

Space = TypeVar("Space", bound="GyroSpace")


@dataclass(frozen=True)
class GyroSpace(ABC):
    """Base of every geometry.

    A subclass states ``point_shape``, ``dim``, :meth:`for_shape` and :meth:`examples`, writes
    :meth:`origin`, :meth:`add`, :meth:`neg`, :meth:`to_normal`, :meth:`from_normal`, :meth:`push`,
    :meth:`pull`, :meth:`project`, :meth:`violation` and :meth:`hessian`, and may override anything
    else where it knows a faster or more accurate form; the law tests hold the override to the
    derived one.

    Every operation broadcasts over leading axes and keeps library, dtype and device.

    The fields of the dataclass say what a geometry can be told. One without a default is a size, a
    positive integer (``field(metadata={"least": 2})`` if 1 is too small); one with a default is an
    option: a number, or a word out of ``field(default=…, metadata={"choices": …})``. The
    constructor, the command line, files and the tables of the documentation follow from them.
    """

    parameters: ClassVar[tuple[str, ...]] = ()
    """The fields that may hold a number or a (traced, learnable) array; the others are sizes."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            object.__setattr__(self, one.name, self.checked(one, value))
        declare(type(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        declare(type(self))  # in this process there may have been none yet

    @classmethod
    def checked(cls, one: "Field[Any]", value: Any) -> Any:
        """Return a value for one of the fields, plain, or say what is wrong with it."""
        name = f"{one.name} of {cls.__name__}"
        if one.default is MISSING:
            return check_integer(name, value, one.metadata.get("least", 1))
        if one.metadata.get("choices") is not None:
            return check_choice(name, value, one.metadata["choices"])
        if isinstance(one.default, float) and isinstance(value, (Real, str)):  # it may be an array
            return check_number(name, value)
        return value

    @classmethod
    def options(cls) -> "dict[str, Field[Any]]":
        """Return the fields that are no sizes, by name."""
        return {one.name: one for one in fields(cls) if one.default is not MISSING}

    # ------------------------------------------------------------------ sizes

    @property
    @abstractmethod
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension: the length of the normal coordinates."""

    @classmethod
    @abstractmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the geometry, at its default parameters, whose points end in ``shape``."""

    @classmethod
    @abstractmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return small instances that stand for the family in tests, tables and pictures."""

    @property
    def blocks(self) -> tuple[int, ...]:
        """Lengths of the parts of the normal coordinates that have a variance and a scale each.

        Mostly one, the whole; a product has those of its factors. Where there is more than one,
        variances, scales and multipliers have a last axis of that length.
        """
        return (self.dim,)

    # ------------------------------------------------------------------ which laws hold

    @property
    def gyrocommutative(self) -> bool:
        r"""Whether :math:`x \oplus y = \operatorname{gyr}[x, y](y \oplus x)`."""
        return True

    @property
    def reductive(self) -> bool:
        r"""Whether :math:`\operatorname{gyr}[x, y] = \operatorname{gyr}[x \oplus y, y]`."""
        return True

    @property
    def gyrovector(self) -> bool:
        r"""Whether :math:`(s + t) \odot x = s \odot x \oplus t \odot x`."""
        return True

    @property
    def flat(self) -> bool:
        """Whether the mean is the mean of the coordinates, and :meth:`start` finds it."""
        return False

    # ------------------------------------------------------------------ the space it is computed in

    @property
    def inside(self) -> "GyroSpace":
        """The isometric space in which to compute, where that is another one: see ``Pullback``."""
        return self

    def to_inside(self, x: Array) -> Array:
        """Carry points to the space in which to compute."""
        return x

    def from_inside(self, x: Array) -> Array:
        """Carry points back from the space in which to compute."""
        return x

    # ------------------------------------------------------------------ primitives

    @abstractmethod
    def origin(self, like: Array) -> Array:
        """Return the identity e, in the library, dtype and device of ``like``."""

    @abstractmethod
    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition.

        .. math:: x \oplus y = \operatorname{Exp}_x(PT_{e \to x}(\operatorname{Log}_e y))

        On a group it is the product: then left translation takes the place of parallel transport,
        here and in :meth:`push` and :meth:`pull`.
        """

    @abstractmethod
    def neg(self, x: Array) -> Array:
        r"""Gyroinverse :math:`\ominus x`."""

    @abstractmethod
    def to_normal(self, x: Array) -> Array:
        r"""Orthonormal coordinates of :math:`\operatorname{Log}_e(x)`, shape ``(..., dim)``."""

    @abstractmethod
    def from_normal(self, c: Array) -> Array:
        r"""Inverse of :meth:`to_normal`: :math:`\operatorname{Exp}_e`."""

    @abstractmethod
    def push(self, x: Array, c: Array) -> Array:
        r"""Carry normal coordinates at e to a tangent vector at x, by :math:`PT_{e \to x}`."""

    @abstractmethod
    def pull(self, x: Array, v: Array) -> Array:
        r"""Inverse of :meth:`push`: a tangent vector at x to normal coordinates at e."""

    @abstractmethod
    def project(self, x: Array) -> Array:
        """Return the nearest sensible point; good points move by rounding error at most."""

    @abstractmethod
    def violation(self, x: Array) -> Array:
        """Return how far each array is from being a point, relative to its size; 0 for a point."""

    @abstractmethod
    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Mean Hessian at e of :math:`\tfrac12 d^2(\cdot, x_i)` over samples along the first axis.

        ``c`` holds the samples' normal coordinates, shape ``(N, *channels, dim)``, and
        ``weights`` of shape ``(N, *channels)`` sum to one over the first axis.
        """

    definite: ClassVar[bool] = False
    """Whether points are positive definite matrices, and singular ones a kind of bad data."""

    drifts: ClassVar[bool] = True
    """Whether rounding may lead off the manifold, so that a mean that moves often is projected."""

    ambient: ClassVar[bool] = True
    """Whether the average of some arrays, projected, is a point amid theirs."""

    convexity_radius: ClassVar[float] = float("inf")
    """Data inside a ball of this radius has one mean only."""

    def contains(self, x: Array) -> Array:
        """Tell, a sample at a time, whether ``x`` is a point to half the digits of its dtype."""
        xp = self._namespace(x)
        return self.violation(x) <= xp.finfo(x.dtype).eps ** 0.5

    def resolution(self, x: Array) -> Array:
        """Distance from x to its neighbours in floating point, up to a small factor."""
        xp = self._namespace(x)
        c = self.to_normal(x)
        return xp.finfo(x.dtype).eps * (1.0 + safe_sqrt(xp.sum(c * c, axis=-1)))

    def resolutions(self, x: Array) -> Array:
        """Return :meth:`resolution` for each block, shape (..., blocks) or (..., 1)."""
        return self.resolution(x)[..., None]

    # ------------------------------------------------------------------ derived gyro operations

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y`: y as seen from x."""
        return self.add(self.neg(x), y)

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`."""
        return self.to_normal(self.relative(x, y))

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication :math:`t \odot x = \operatorname{Exp}_e(t\operatorname{Log}_e x)`.

        ``t`` is a number, or an array with one number a point (a block, where there are several).
        """
        self._namespace(x)
        return self.from_normal(self.by_coordinate(scalars_like(t, x)) * self.to_normal(x))

    def norm(self, x: Array) -> Array:
        r"""Gyronorm :math:`\|x\| = d(e, x)`."""
        return length(self.to_normal(x))

    def dist(self, x: Array, y: Array) -> Array:
        r"""Geodesic distance :math:`d(x, y) = \|\ominus x \oplus y\|`."""
        return length(self.relative_normal(x, y))

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`x \oplus (t \odot (\ominus x \oplus y))`: x at t = 0, y at t = 1."""
        return self.relative(self.neg(x), self.scale(t, self.relative(x, y)))

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`x \oplus \operatorname{Exp}_e(c)`: from x along normal coordinates c."""
        return self.relative(self.neg(x), self.from_normal(c))

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        r"""Gyration.

        .. math:: \operatorname{gyr}[x, y] z = \ominus(x \oplus y) \oplus (x \oplus (y \oplus z))
        """
        return self.relative(self.add(x, y), self.add(x, self.add(y, z)))

    def coadd(self, x: Array, y: Array) -> Array:
        r"""Coaddition :math:`x \boxplus y = x \oplus \operatorname{gyr}[x, \ominus y]\,y`."""
        return self.add(x, self.gyration(x, self.neg(y), y))

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        r"""Centre, scale and bias: :math:`\beta \oplus (t \odot (\ominus\mu \oplus x))`."""
        z = self.scale(factor, self.relative(mean, x))
        return z if bias is None else self.add(bias, z)

    def known(self, x: Array) -> tuple[Array, ...]:
        """Return what :meth:`centred` needs of the samples alone, to be computed once: nothing."""
        self._namespace(x)
        return ()

    def centred(
        self, mean: Array, x: Array, seen: tuple[Array, ...] = (), known: tuple[Array, ...] = ()
    ) -> Centred:
        """Return samples as they are seen from a mean, to be asked for more than one thing.

        ``seen`` is what a view from the same mean has seen, ``known`` what :meth:`known` returns.
        """
        return Centred(self, mean, x, seen)

    # ------------------------------------------------------------------ Riemannian operators

    def exp(self, x: Array, v: Array) -> Array:
        r"""Exponential map: the point that the geodesic from x with velocity v reaches at time 1.

        .. math:: \operatorname{Exp}_x(v) = x \oplus \operatorname{Exp}_e(PT_{x \to e} v)
        """
        return self.shift(x, self.pull(x, v))

    def log(self, x: Array, y: Array) -> Array:
        r"""Logarithm, the inverse of :meth:`exp`: the velocity at x of the geodesic to y.

        .. math:: \operatorname{Log}_x(y) = PT_{e \to x} \operatorname{Log}_e(\ominus x \oplus y)
        """
        return self.push(x, self.relative_normal(x, y))

    def inner(self, x: Array, u: Array, v: Array) -> Array:
        r"""Riemannian inner product :math:`\langle u, v \rangle_x` of two tangent vectors at x."""
        c, d = self.pull(x, u), self.pull(x, v)
        return namespace_of(c).sum(c * d, axis=-1)

    def transport(self, x: Array, y: Array, v: Array) -> Array:
        r"""Parallel transport of v from x to y along the geodesic between them.

        .. math:: PT_{x \to y} = PT_{e \to y} \operatorname{gyr}[y, \ominus x]\, PT_{x \to e}
        """
        c = self.pull(x, v)
        return self.push(y, self._gyrate_normal(y, self.neg(x), c))

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        """Apply the linear map that the gyration of x and y is in normal coordinates."""
        return self.to_normal(self.gyration(x, y, self.from_normal(c)))

    # ------------------------------------------------------------------ points to begin with

    def start(self, x: Array, weights: Array) -> Array:
        """First guess of the mean of samples along axis 0: the mean of their coordinates at e."""
        return self.from_normal(weighted_sum(weights, self.to_normal(x)))

    def random(
        self,
        *batch: int,
        rng: int | np.random.Generator = 0,
        like: Array | None = None,
        spread: float = 1.0,
    ) -> Array:
        """Draw points whose coordinates at e are normal, at root mean square distance ``spread``.

        Parameters
        ----------
        *batch
            Shape of the sample; the result has shape ``(*batch, *point_shape)``.
        rng
            A seed or a NumPy generator: the same points on every library.
        like
            An array whose library, dtype and device to use; NumPy float64 by default.
        spread
            Root mean square distance from the identity.
        """
        batch = check_integers("batch", batch, 0)
        spread = check_number("spread", spread, 0.0)
        generator = np.random.default_rng(rng)
        c = generator.standard_normal((*batch, self.dim)) * (spread / self.dim**0.5)
        like = np.empty(()) if like is None else like
        return self.from_normal(backend_of(like).from_numpy(c, like))

    # ------------------------------------------------------------------ helpers for geometries

    def parts(self, *points: Array) -> list[tuple["GyroSpace", *tuple[Array, ...]]]:
        """Return the factors of a product, each with its part of the points; else the one space."""
        return [(self, *points)]

    def join(self, *parts: Array) -> Array:
        """Put the points of a product's factors into one array; else return the one there is."""
        (x,) = parts
        return x

    def joined(self, mean: Array, x: Array, views: Sequence[Centred]) -> Centred:
        """Return the view of a product's points from those of its factors; else the one."""
        (view,) = views
        return view

    def by_block(self, squares: Array) -> Array:
        """Sum values of the normal coordinates over each block: (..., dim) to (..., blocks)."""
        xp = namespace_of(squares)
        sizes = self.blocks
        if len(sizes) == 1:
            return xp.sum(squares, axis=-1, keepdims=True)
        return xp.matmul(squares, constant(_members, squares, *sizes))

    def by_coordinate(self, t: Any) -> Any:
        """Return multipliers, one a point or one a block, as the normal coordinates can meet them.

        Where there are several blocks, they are the last axis of ``t``.
        """
        if isinstance(t, float) or t.ndim == 0:
            return t
        if len(self.blocks) == 1:
            return t[..., None]
        if t.shape[-1] == 1:
            return t
        return backend_of(t).take(t, constant(_blocks, t, *self.blocks))

    def learnable(self) -> list[Any]:
        """Return the values of the parameters."""
        return [getattr(self, name) for name in self.parameters]

    def with_learnable(self, values: Sequence[Any]) -> Self:
        """Return the same geometry with these values of the parameters."""
        if all(new is old for new, old in zip(values, self.learnable(), strict=True)):
            return self
        return replace(self, **dict(zip(self.parameters, values, strict=True)))

    def detached(self) -> Self:
        """Return the same geometry with its parameters constant to differentiation."""
        return self.with_learnable(
            [
                v if isinstance(v, (int, float)) else backend_of(v).stop_gradient(v)
                for v in self.learnable()
            ]
        )

    def _namespace(self, *points: Array) -> Any:
        """Return the namespace of ``points`` after checking library, shape, dtype and device."""
        xp = namespace_of(*points)
        k = len(self.point_shape)
        for x in points:
            if x.ndim < k or tuple(x.shape[x.ndim - k :]) != self.point_shape:
                raise ValueError(
                    f"{self!r} expects arrays of shape (..., "
                    f"{', '.join(map(str, self.point_shape))}), got {tuple(x.shape)}"
                )
        check_floating(*points)
        return xp

    def _parameter(self, name: str, like: Array) -> Any:
        """Return a parameter as a Python float, or as an array in the dtype of ``like``."""
        value = getattr(self, name)
        if isinstance(value, (int, float)):
            return float(value)
        xp = namespace_of(like)
        if compat.is_array_api_obj(value) and namespace_of(value) is xp:
            return xp.astype(value, like.dtype, copy=False)
        return xp.asarray(value, dtype=like.dtype, device=device_of(like))


def space_of(cls: type[Space], *arguments: Any) -> Space:
    """Return a geometry that others compute in, made once: to check its fields takes a while."""
    space: Space = _made(cls, *arguments)
    return space


@lru_cache(maxsize=1024)
def _made(cls: type[GyroSpace], *arguments: Any) -> Any:
    return cls(*arguments)


def _blocks(*sizes: int) -> "np.ndarray[Any, Any]":
    """Return the number of the block that each coordinate belongs to."""
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


def _members(*sizes: int) -> "np.ndarray[Any, Any]":
    """Return the matrix that sums coordinates over each block."""
    return np.repeat(np.eye(len(sizes)), sizes, axis=0)
