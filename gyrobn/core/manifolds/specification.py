"""The fields of a geometry's dataclass: sizes, options and parameters."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from importlib import import_module
from numbers import Real
from typing import Any, ClassVar, Self

import array_api_compat as compat

from gyrobn.core.backends import Array, backend_of, device_of, namespace_of
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


# ---------------------------------------------------------------------- pytrees of JAX

_classes: set[type] = set()
_register: list[Callable[[type], None]] = []


def declare(cls: type) -> None:
    """Make a geometry a pytree of JAX; ``cls.parameters`` names the children.

    JAX must know a class before it meets an object of it: the first object that is made while JAX
    is imported, or the first JAX array that is seen, imports the backend, which registers all.
    """
    if cls in _classes:
        return
    _classes.add(cls)
    for register in _register:
        register(cls)
    if not _register and "jax" in sys.modules:
        import_module("gyrobn.core.backends.jax")


def register_all(register: Callable[[type], None]) -> None:
    """Call ``register`` with every geometry, those that were declared and those to come."""
    _register.append(register)
    for cls in tuple(_classes):
        register(cls)
