"""Maintenance statements in delta-spark's SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

__all__ = ["EXTENSION", "statement"]

EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"

# VACUUM without RETAIN: delta-spark goes by the table's property, whatever the statement says.
_STATEMENTS: Final = {
    "optimize": "OPTIMIZE {table}",
    "purge": "REORG TABLE {table} APPLY (PURGE)",
    "vacuum": "VACUUM {table}",
}


def statement(storage: Storage, job: str) -> str:
    """Raises UsageError: there is no such job."""
    if job not in _STATEMENTS:
        raise UsageError(f"unknown job {job!r}", next_step=f"use one of {', '.join(_STATEMENTS)}")
    # Hadoop takes a path literally, nothing in it is percent-encoded.
    path = unquote(storage.uri).replace("`", "``")
    return _STATEMENTS[job].format(table=f"delta.`{path}`")
