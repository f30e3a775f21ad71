"""DataFrames that are computed once and queried several times."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import EngineUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dv_maintenance.dml.operation import Work
    from dv_maintenance.tables.model import Snapshot

_EVALUATIONS: Final = 4
_SHAPES: Final = re.compile(r"geo(?:metry|graphy)\(")
# In Spark's message, if a part of a local checkpoint is gone.
_GONE: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"


class LostRowsError(EngineUnavailableError):
    """An executor died that held rows of a ``cached`` DataFrame."""


def cached(rows: DataFrame) -> DataFrame:
    """The rows as they are now: they are computed once, by the first query, and never again.

    What Spark merely caches, it computes again if an executor dies. A source that changes, or is not deterministic,
    then has other rows than earlier queries saw, and a MERGE inserts rows that the table already has. So the cache is
    filled from a local checkpoint, which keeps no way back to the source: once rows are lost, queries fail. The
    checkpoint is on disk, so it takes no memory. delta-spark does the same (``MergeIntoMaterializeSource``).
    """
    from pyspark import StorageLevel

    held = rows.localCheckpoint(False, StorageLevel.DISK_ONLY)
    # Spark's cache takes no shapes. A name that looks like their type costs only the cache.
    return held if _SHAPES.search(rows.schema.simpleString()) else held.cache()


def lost_rows(text: str) -> LostRowsError | None:
    """The error, if Spark's message says so."""
    if _GONE not in text:
        return None
    return LostRowsError(
        "rows of the source were lost with the Spark executor that held them; nothing was changed",
        next_step="run it again, on executors that live until it ends",
    )


def again_if_lost(find: Callable[[Snapshot], Work], release: Callable[[], None]) -> Callable[[Snapshot], Work]:
    """``find``, tried again if rows that it cached are lost. ``release`` forgets them: the next try computes them."""

    def found(snapshot: Snapshot) -> Work:
        for _ in range(1, _EVALUATIONS):
            try:
                return find(snapshot)
            except LostRowsError:
                release()
        return find(snapshot)

    return found
