"""Python's garbage collector while Dagster makes the definitions of many tables.

They live as long as the process, and are some 500 objects for each table. The collector searches all that are alive
again whenever a quarter was added, which takes half the CPU time of a load. ``gc.freeze`` takes out what has survived
until the load is over; then everything is back, and the collector finds what has become garbage meanwhile.
"""

from __future__ import annotations

import gc
import time
from typing import Any, ClassVar, Final

__all__ = ["expect_definitions"]

# Fewer take less time than one look at the objects of all imported modules.
_MANY: Final = 100
# Objects that are made to load the definitions of a table and to describe them to Dagster, gone at the end or not.
# Measured with Dagster 1.13.
_OBJECTS_OF_A_TABLE: Final = 1000
# Nothing says when a load is over. It takes two milliseconds for a table, or ten times as long on a busy machine.
_SECONDS: Final = 60.0
_SECONDS_OF_A_TABLE: Final = 0.02


def expect_definitions(tables: int) -> None:
    """Keep the collector from searching the definitions of so many tables again and again, until as many objects have
    been made as these take, or ten times the usual time has passed. Nothing happens in a process that has frozen
    objects itself.
    """
    begun = _Freezing.left > 0
    if tables < _MANY or (not begun and gc.get_freeze_count()):
        return
    if not begun:
        gc.callbacks.append(_Freezing.after)
    _Freezing.left += tables * _OBJECTS_OF_A_TABLE
    _Freezing.until = time.monotonic() + _SECONDS + tables * _SECONDS_OF_A_TABLE


class _Freezing:
    left: ClassVar[int] = 0
    until: ClassVar[float] = 0.0

    @classmethod
    def after(cls, phase: str, info: dict[str, Any]) -> None:
        # The youngest generation is left alone: most of it is gone a moment later.
        if phase != "stop" or info["generation"] == 0:
            return
        gc.freeze()
        young, rounds, _ = gc.get_threshold()
        cls.left -= young * max(rounds, 1)
        if cls.left <= 0 or time.monotonic() > cls.until:
            cls.left = 0
            gc.callbacks.remove(cls.after)
            gc.unfreeze()
