r"""GyroSpace: the primitives that a geometry supplies, and everything that follows from them.

A geometry is a symmetric space with an identity :math:`e` whose left gyrotranslations are
isometries. Everything is written in *normal coordinates at e*: the ``dim`` coordinates of
:math:`\operatorname{Log}_e(x)` in an orthonormal basis.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import partial
from numbers import Real
from operator import is_
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, declare, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.numerics.arrays import (
    check_floating,
    eps_of,
    from_host,
    length,
    pieces,
    real_dtype,
    scalars_like,
)
from gyrobn.numerics.checks import check_choice, check_integer, check_integers, check_number
from gyrobn.numerics.hessian import Hessian


@dataclass(frozen=True)
class GyroSpace(ABC):
    """Base of every geometry.

    A subclass is a frozen dataclass. A field without a default is a size, a positive integer
    (``field(metadata={"least": 2})`` if 1 is too small). A field with a default is an option: a
    number, or a word out of ``field(default=…, metadata={"choices": …})``, for which others may
    stand (``{"aliases": …}``). The constructor, the command line, files and the tables of the
    documentation follow from the fields.

    It states ``point_shape``,
    ``dim``, :meth:`for_shape` and :meth:`examples`, and writes :meth:`origin`, :meth:`add`,
    :meth:`neg`, :meth:`to_normal`, :meth:`from_normal`, :meth:`push`, :meth:`pull`,
    :meth:`project`, :meth:`violation` and :meth:`hessian`. It may override any other method with a
    faster or more accurate form; the law tests compare the two.

    Every operation broadcasts over leading axes and keeps library, dtype and device.
    """

    # ------------------------------------------------------------------ fields

    parameters: ClassVar[tuple[str, ...]] = ()
    """The fields that may hold a number or a (traced, learnable) array; the others are constant."""

    def __post_init__(self) -> None:
        """Check the fields; a number or a word becomes a plain one."""
        for one in fields(self):
            name, value = f"{one.name} of {type(self).__name__}", getattr(self, one.name)
            if one.default is MISSING:
                value = check_integer(name, value, one.metadata.get("least", 1))
            elif "choices" in one.metadata:
                aliases = one.metadata.get("aliases", {})
                word = aliases.get(value, value) if isinstance(value, str) else value
                value = check_choice(name, word, one.metadata["choices"])
            elif isinstance(one.default, float) and isinstance(value, (Real, str)):
                value = check_number(name, value)  # it may be an array
            object.__setattr__(self, one.name, value)
        declare(type(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        declare(type(self))  # this process may not have made such a geometry yet

    @classmethod
    def options(cls) -> "dict[str, Field[Any]]":
        """Return the fields that are options, by name."""
        return {one.name: one for one in fields(cls) if one.default is not MISSING}

    def learnable(self) -> list[Any]:
        """Return the values of the parameters."""
        return list(map(partial(getattr, self), self.parameters))

    def required_signs(self) -> list[int | None]:
        """Return the sign that each of these values must have; None where it is free."""
        return [getattr(self, "required_sign", None) for _ in self.parameters]

    def with_learnable(self, values: Sequence[Any]) -> Self:
        """Return the same geometry with these values of the parameters."""
        if all(map(is_, values, self.learnable())):
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

    def _parameter(self, name: str, like: Array) -> Any:
        """Return a parameter as a Python float, or as an array in the dtype of ``like``."""
        return scalars_like(getattr(self, name), like)

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
        """Return small instances, which represent the family in tests, tables and pictures."""

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

    flat: ClassVar[bool] = False
    """Whether the mean is the mean of the coordinates, which :meth:`start` returns."""

    # ------------------------------------------------------------------ the space it is computed in

    @property
    def inside(self) -> "GyroSpace":
        """The isometric space in which to compute: this one, unless it is a ``Chart``."""
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

        On a group it is the product, and left translation replaces parallel transport here, in
        :meth:`push` and in :meth:`pull`.
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

    complex_points: ClassVar[bool] = False
    """Whether points are arrays of complex numbers."""

    definite: ClassVar[bool] = False
    """Whether points are positive definite matrices, so that singular ones are bad data."""

    drifts: ClassVar[bool] = True
    """Whether rounding may leave the manifold, so that a mean that moves often is projected."""

    convexity_radius: ClassVar[float] = float("inf")
    """Data inside a ball of this radius has only one mean."""

    _view: ClassVar[type[Centred]] = Centred
    """What :meth:`centred` returns."""

    def contains(self, x: Array) -> Array:
        """Tell for each sample whether it is a point to half the digits of its dtype."""
        return self.violation(x) <= eps_of(x) ** 0.5

    def cut_locus_angle(self, x: Array) -> Array:
        r"""Angle, in radians, between x and the cut locus of e; infinite where there is none.

        The cut locus is where geodesics from e end to be shortest: the antipode on a sphere, a
        principal angle of π/2 on a Grassmannian, a rotation by π. A mean :math:`\mu` close to it
        makes :math:`\ominus\mu \oplus x` change much with :math:`\mu`; seen from a ``reference``
        near the data it does not.
        """
        xp = self._namespace(x)
        batch = x.shape[: x.ndim - len(self.point_shape)]
        return xp.full(batch, xp.inf, dtype=real_dtype(x), device=device_of(x))

    def resolution(self, x: Array) -> Array:
        """Distance from x to its neighbours in floating point, up to a small factor."""
        return eps_of(x) * (1.0 + self.norm(x))

    def resolutions(self, x: Array) -> Array:
        """Return :meth:`resolution` for each block, shape (..., blocks) or (..., 1)."""
        return self.resolution(x)[..., None]

    def _with_identity(self, x: Array, y: Array, total: Array, right: bool = True) -> Array:
        """Return the sum of x and y, to the last digit the one where the other is e.

        Only values are replaced: a derivative is that of the sum. Without ``right`` they are
        replaced only where x is e: the sum of x and e may be the same point in another
        representation, with derivatives of its own.
        """
        xp, stop, e = namespace_of(total), backend_of(total).stop_gradient, self.origin(total)
        entries = tuple(range(-len(self.point_shape), 0))
        is_x, is_y = (xp.all(z == e, axis=entries, keepdims=True) for z in (x, y))
        exact = xp.logical_or(is_x, is_y) if right else is_x
        moving = xp.where(exact, total, 0.0)
        return xp.where(exact, xp.where(is_x, stop(y), stop(x)) + (moving - stop(moving)), total)

    # ------------------------------------------------------------------ derived gyro operations

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y`: y as seen from x."""
        return self.add(self.neg(x), y)

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`."""
        return self.to_normal(self.relative(x, y))

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication :math:`t \odot x = \operatorname{Exp}_e(t\operatorname{Log}_e x)`.

        ``t`` is a number, or an array with one number per point, or per point and block if there
        are several blocks.
        """
        return self.from_normal(self.by_coordinate(scalars_like(t, x)) * self.to_normal(x))

    def norm(self, x: Array) -> Array:
        r"""Gyronorm :math:`\|x\| = d(e, x)`."""
        return length(self.to_normal(x))

    def dist(self, x: Array, y: Array) -> Array:
        r"""Geodesic distance :math:`d(x, y) = \|\ominus x \oplus y\|`."""
        return length(self.relative_normal(x, y))

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`x \oplus (t \odot (\ominus x \oplus y))`: x at t = 0, y at t = 1.

        Far out, rounding errors grow along the way: it starts at the nearer end, unless several
        geodesics may join two points, or there are blocks, each with a time of its own.
        """
        xp, t = self._namespace(x, y), scalars_like(t, x)
        if self.convexity_radius == float("inf") and not self.block_shape:
            t = t + xp.zeros((), dtype=real_dtype(x), device=device_of(x))
            late = t > 0.5
            each = late[(..., *(None,) * len(self.point_shape))]
            x, y, t = xp.where(each, y, x), xp.where(each, x, y), xp.where(late, 1.0 - t, t)
        return self.shift(x, self.by_coordinate(t) * self.relative_normal(x, y))

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

    def centred(self, mean: Array, x: Array, saved: Arrays = ()) -> Centred:
        """Return the view of samples from a mean, for all that statistics need of them.

        ``saved`` are the decompositions of a view of the same values.
        """
        return self._view(self, mean, x, saved)

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

        The formula holds if the space is gyrocommutative; another one has to write this method.
        """
        if not self.gyrocommutative:
            raise NotImplementedError(
                f"{type(self).__name__} is not gyrocommutative, so gyrations do not give its "
                "parallel transport: define transport(self, x, y, v) in the class"
            )
        c = self.pull(x, v)
        return self.push(y, self._gyrate_normal(y, self.neg(x), c))

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        """Apply the gyration of x and y, a linear map in normal coordinates."""
        return self.to_normal(self.gyration(x, y, self.from_normal(c)))

    def moments(self, x: Array) -> Array:
        """Return numbers of each sample, (..., k), whose means give a first guess of the mean."""
        return self.to_normal(x)

    def start(self, moments: Array) -> Array:
        """Return a first guess of the mean, from the means of the :meth:`moments`."""
        return self.from_normal(moments)

    def random(
        self,
        *batch: int,
        rng: int | np.random.Generator | None = None,
        like: Array | None = None,
        spread: float = 1.0,
    ) -> Array:
        """Draw points whose coordinates at e are normal, at root mean square distance ``spread``.

        Parameters
        ----------
        *batch
            Shape of the sample; the result has shape ``(*batch, *point_shape)``.
        rng
            A seed or a NumPy generator: the same points on every library. None, the default, draws
            new points in every call, as :func:`numpy.random.default_rng` does.
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
        return self.from_normal(from_host(c, like))

    # ------------------------------------------------------------------ blocks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Lengths of the parts of the normal coordinates that have a variance and a scale each.

        Most geometries have one block, the whole; a product has those of its factors. With more
        than one, variances, scales and multipliers have a last axis of that length.
        """
        return (self.dim,)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one variance or scale: ``()`` for one block, ``(blocks,)`` for several."""
        count = len(self.blocks)
        return () if count == 1 else (count,)

    def squeeze_blocks(self, values: Array) -> Array:
        """Drop the last axis of values per block if there is only one block."""
        return values[..., 0] if len(self.blocks) == 1 else values

    def expand_blocks(self, values: Array) -> Array:
        """Undo :meth:`squeeze_blocks`: the last axis of the result is that of the blocks."""
        return values[..., None] if len(self.blocks) == 1 else values

    def _factors(self, *points: Array) -> list[tuple[Any, ...]]:
        """Return the geometries of whose metrics this one is the sum, each with parts of points."""
        return [(self, *points)]

    def by_block(self, squares: Array) -> Array:
        """Sum values of the normal coordinates over each block: (..., dim) to (..., blocks)."""
        xp = namespace_of(squares)
        if not self.block_shape:
            return xp.sum(squares, axis=-1, keepdims=True)
        sums = [xp.sum(part, axis=-1) for part in pieces(squares, self.blocks)]
        return xp.stack(sums, axis=-1)

    def by_coordinate(self, t: Any) -> Any:
        """Return multipliers per point, or per point and block, as multipliers per coordinate."""
        if isinstance(t, float) or t.ndim == 0:
            return t
        t = self.expand_blocks(t)
        if t.shape[-1] == 1:
            return t
        return namespace_of(t).take(t, backend_of(t).cached(_blocks, t, *self.blocks), axis=-1)

    # ------------------------------------------------------------------ checks

    def _namespace(self, *points: Array) -> Any:
        """Return the namespace of ``points`` after checking library, shape, dtype and device."""
        xp, shape = check_floating(*points, complex_points=self.complex_points), self.point_shape
        for x in points:
            if tuple(x.shape[max(x.ndim - len(shape), 0) :]) != shape:
                raise ValueError(
                    f"{self!r} expects arrays of shape (..., "
                    f"{', '.join(map(str, shape))}), got {tuple(x.shape)}"
                )
        return xp


def _blocks(*sizes: int) -> "np.ndarray[Any, Any]":
    """Return the number of the block that each coordinate belongs to."""
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


def check_manifold(value: Any) -> GyroSpace:
    """Return a geometry; refuse anything else, with what to write in its place.

    >>> check_manifold(4)
    Traceback (most recent call last):
        ...
    TypeError: manifold must be a geometry, such as gyrobn.PoincareBall(2), got 4
    """
    if isinstance(value, GyroSpace):
        return value
    if isinstance(value, type) and issubclass(value, GyroSpace):
        raise TypeError(
            f"manifold must be a geometry, got the class {value.__name__}: give it its size, for "
            f"example gyrobn.{value.examples()[0]!r}"
        )
    plain = value is None or isinstance(value, (int, float, str))
    got = repr(value) if plain else f"an object of type {type(value).__name__}"
    raise TypeError(f"manifold must be a geometry, such as gyrobn.PoincareBall(2), got {got}")
