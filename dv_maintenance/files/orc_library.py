"""pyorc, which reads and writes what Arrow's library does not read from ORC files or write to them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dv_maintenance.errors import MissingSoftwareError

if TYPE_CHECKING:
    from types import ModuleType


def library() -> ModuleType:
    """The module ``pyorc``. Raises MissingSoftwareError."""
    try:
        return import_module("pyorc")
    except ImportError as error:
        raise MissingSoftwareError(
            "ORC files of this table hold timestamps, maps or rows that Arrow's library does not read or write as they "
            f"are, and pyorc, which does, is not installed ({error})",
            next_step="pip install 'dv-maintenance[orc]', here and in the Python of Spark's workers",
        ) from error


def is_there() -> bool:
    """Whether pyorc is installed."""
    try:
        library()
    except MissingSoftwareError:
        return False
    return True
