"""The fields of a geometry's dataclass: sizes, options and parameters."""

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar, Self

import array_api_compat as compat

from gyrobn.backends import Array, backend_of, declare, device_of, namespace_of
from gyrobn.numerics.checks import check_choice, check_integer, check_number


@dataclass(frozen=True)
class Specified:
    """Base of :class:`GyroSpace`: checks the fields, and makes geometries pytrees of JAX.

    A field without a default is a size, a positive integer (``field(metadata={"least": 2})`` if 1
    is too small). A field with a default is an option: a number, or a word out of
    ``field(default=…, metadata={"choices": …})``. The constructor, the command line, files and the
    tables of the documentation follow from the fields.
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
        declare(type(self))  # this process may not have made such a geometry yet

    @classmethod
    def checked(cls, one: "Field[Any]", value: Any) -> Any:
        """Return the value of a field as a plain number or word; raise if it is wrong."""
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
        """Return the fields that are options, by name."""
        return {one.name: one for one in fields(cls) if one.default is not MISSING}

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

    def _parameter(self, name: str, like: Array) -> Any:
        """Return a parameter as a Python float, or as an array in the dtype of ``like``."""
        value = getattr(self, name)
        if isinstance(value, (int, float)):
            return float(value)
        xp = namespace_of(like)
        if compat.is_array_api_obj(value) and namespace_of(value) is xp:
            return xp.astype(value, like.dtype, copy=False)
        return xp.asarray(value, dtype=like.dtype, device=device_of(like))
