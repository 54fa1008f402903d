"""Classes whose objects are pytrees of JAX, whether the first object or JAX comes first.

JAX must know a class before it meets an object of it, and a function under ``jit`` calls no code
of gyrobn before JAX has flattened the arguments. So JAX is told of a class at the first of:

* an object is made while JAX is there;
* a JAX array is seen, and the JAX shim imported;
* JAX is imported after an object was made: a finder on ``sys.meta_path`` waits for that.

The finder finds nothing itself and imports nothing before JAX is imported, and then it goes. There
is no other way: JAX takes an object of an unknown class for an array, and asks it for no more than
its dtype and ``__jax_array__``, which must return one array.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_classes: set[type] = set()
_followers: list[Callable[[type], None]] = []


def declare(cls: type) -> None:
    """Say that objects of a dataclass are pytrees; ``cls.parameters`` names the children."""
    if cls in _classes:
        return
    _classes.add(cls)
    if _followers:
        for register in _followers:
            register(cls)
    elif "jax" in sys.modules:
        _tell_jax()
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def follow(register: Callable[[type], None]) -> None:
    """Call ``register`` with every class that is declared, now or later."""
    _followers.append(register)
    for cls in tuple(_classes):
        register(cls)


def _tell_jax() -> None:
    import_module("gyrobn.backends.jax")  # which follows


class _WhenJaxIsImported(MetaPathFinder):
    """A finder that lets the others find JAX, and imports the shim once JAX has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "jax":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # as it was, should somebody ask the module for its loader
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _tell_jax()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _WhenJaxIsImported()
