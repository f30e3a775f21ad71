"""Methods of a table that are functions of its format's modules. A module is imported at the first call of one of its
functions, so that opening a table costs nothing.

A format's ``table.py`` imports its modules for the type checker only, and gets them from :func:`deferred` at run time.
A function whose first parameter is something that the table has, such as its storage, becomes a method with
:class:`Receiver`; one that needs nothing of the table with ``staticmethod``. The type checker sees the signatures of
the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Method(Generic[P, R]):
    """A function as a method of a table. ``of``: what the function gets of the table, as its first argument."""

    function: Callable[..., R]
    of: Callable[[Any], Any]

    @property
    def __name__(self) -> str:
        """Of the function, as every method has it."""
        return str(getattr(self.function, "name", "") or self.function.__name__)

    def __call__(self, table: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(self.of(table), *args, **kwargs)

    @overload
    def __get__(self, table: None, owner: type[Any]) -> Method[P, R]: ...

    @overload
    def __get__(self, table: object, owner: type[Any]) -> Callable[P, R]: ...

    def __get__(self, table: object | None, owner: type[Any]) -> Method[P, R] | Callable[P, R]:
        return self if table is None else MethodType(self, table)


class Receiver(Generic[A]):
    """Makes methods of functions that get the attribute ``name`` of the table, of type ``A``."""

    def __init__(self, name: str) -> None:
        self._of = attrgetter(name)

    def __call__(self, function: Callable[Concatenate[A, P], R]) -> Method[P, R]:
        return Method(function, self._of)


@dataclass(frozen=True, slots=True)
class _Function:
    module: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(self.module), self.name)(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _Module:
    path: str

    def __getattr__(self, name: str) -> _Function:
        return _Function(self.path, name)


def deferred(package: str, *modules: str) -> tuple[Any, ...]:
    """Stand-ins for modules of ``package``, of which only functions can be called."""
    return tuple(_Module(f"{package}.{each}") for each in modules)
