"""Python's garbage collector while Dagster makes the definitions of many tables.

They live as long as the process, and are some 500 objects for each table. The collector searches all that are alive
again whenever a quarter was added, which takes half the CPU time of a load. Until the load is over, it searches only
what is young: what survives waits for the next full search, as ever. ``gc.collect`` finds all garbage at any time.
"""

from __future__ import annotations

import gc
import time
from typing import Any, ClassVar, Final

# Fewer take less time than one inspection of the objects of all imported modules.
_MANY: Final = 100
# Objects that are made to load the definitions of a table and to describe them to Dagster, gone at the end or not.
# Measured with Dagster 1.13.
_OBJECTS_OF_A_TABLE: Final = 1000
# Nothing says when a load is over. It takes two milliseconds for a table, or ten times as long on a busy machine.
_SECONDS: Final = 60.0
_SECONDS_OF_A_TABLE: Final = 0.02
# Collections of the middle generation before a full one.
_NEVER: Final = 1_000_000_000


def expect_definitions(tables: int) -> None:
    """Put off the collector's own full searches until as many objects have been made as the definitions of so many
    tables take, or ten times the usual time has passed.
    """
    if tables < _MANY:
        return
    if not _Load.left:
        _Load.usual = gc.get_threshold()
        gc.set_threshold(*_Load.usual[:2], _NEVER)
        gc.callbacks.append(_Load.after)
    _Load.left += tables * _OBJECTS_OF_A_TABLE
    _Load.until = time.monotonic() + _SECONDS + tables * _SECONDS_OF_A_TABLE


class _Load:
    left: ClassVar[int] = 0
    until: ClassVar[float] = 0.0
    usual: ClassVar[tuple[int, int, int]]

    @classmethod
    def after(cls, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop" or info["generation"] == 0:
            return
        young, rounds, full = gc.get_threshold()
        cls.left -= young * max(rounds, 1)
        if cls.left <= 0 or time.monotonic() > cls.until:
            cls.left = 0
            gc.callbacks.remove(cls.after)
            # Unless somebody else has changed it meanwhile.
            if full == _NEVER:
                gc.set_threshold(young, rounds, cls.usual[2])
