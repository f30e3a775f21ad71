"""Maintenance statements in delta-spark's SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from dv_maintenance.errors import UsageError
from dv_maintenance.tables.capabilities import EngineName
from dv_maintenance.tables.delta.permissions import check_permitted

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.model import Snapshot

# VACUUM without RETAIN: delta-spark applies the table's property, whatever the statement says.
_STATEMENTS: Final = {
    "optimize": "OPTIMIZE {table}",
    "purge": "REORG TABLE {table} APPLY (PURGE)",
    "vacuum": "VACUUM {table}",
}


def engine_name(storage: Storage, settings: Mapping[str, str], wanted: str | None) -> EngineName:
    """The table's name, made from its path. Raises UsageError if ``wanted`` names a table in a catalog,
    RefusedError for a table that delta-spark does not maintain.
    """
    del settings
    check_permitted(storage, "engine-sql")
    if wanted is not None:
        raise UsageError("a Delta table is named by its path, not by a name in a catalog", table=storage.uri)
    # Hadoop takes a path literally: nothing in it is percent-encoded.
    path = unquote(storage.uri).replace("`", "``")
    return EngineName("", "delta", f"`{path}`")


def statements(job: str, name: EngineName, snapshot: Snapshot) -> tuple[str, ...]:
    """The statements of a job. Raises UsageError if the job is unknown."""
    del snapshot
    if job not in _STATEMENTS:
        raise UsageError(f"unknown job {job!r}", next_step=f"use one of {', '.join(_STATEMENTS)}")
    return (_STATEMENTS[job].format(table=f"{name.database}.{name.table}"),)
