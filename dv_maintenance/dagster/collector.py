"""Python's garbage collector while Dagster makes the definitions of many tables.

They live as long as the process, and are some 500 objects for each table. The collector searches all that are alive
again whenever a quarter was added, which takes half the CPU time of a load. ``gc.freeze`` takes out what has survived:
new objects are still collected.
"""

from __future__ import annotations

import gc
from typing import Any, ClassVar, Final

__all__ = ["expect_definitions"]

# Fewer take less time than one look at the objects of all imported modules.
_MANY: Final = 100
# Objects that are made to load the definitions of a table and to describe them to Dagster, gone at the end or not.
# Measured with Dagster 1.13.
_OBJECTS_OF_A_TABLE: Final = 1000


def expect_definitions(tables: int) -> None:
    """Keep the collector from searching the definitions of so many tables again and again, until as many objects have
    been made as these take. Their garbage that forms later is not found any more.
    """
    if tables < _MANY:
        return
    if _Freezing.left <= 0:
        gc.callbacks.append(_Freezing.after)
    _Freezing.left += tables * _OBJECTS_OF_A_TABLE


class _Freezing:
    left: ClassVar[int] = 0

    @classmethod
    def after(cls, phase: str, info: dict[str, Any]) -> None:
        # The youngest generation is left alone: most of it is gone a moment later.
        if phase != "stop" or info["generation"] == 0:
            return
        gc.freeze()
        young, rounds, _ = gc.get_threshold()
        cls.left -= young * max(rounds, 1)
        if cls.left <= 0:
            gc.callbacks.remove(cls.after)
