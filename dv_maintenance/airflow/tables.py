"""The table that an operator, a sensor or a trigger names: by a path, by settings, or by its name in a tables file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from dv_maintenance.airflow.folders import loaded
from dv_maintenance.airflow.hook import Connected, connected_by
from dv_maintenance.catalogs import is_known
from dv_maintenance.config import Document
from dv_maintenance.errors import DvMaintenanceError, RetryableError, UsageError
from dv_maintenance.resources import system_errors
from dv_maintenance.service.tables_file import TableSettings, WatchConfig


def watched(
    table: str | Mapping[str, Any],
    tables_file: str | None = None,
    storage_conn_id: str | None = None,
    *,
    max_age: float | None = None,
) -> TableSettings:
    """The table's settings.

    table : its path, URI or name in a catalog, or a mapping with the keys of a table in YAML; with ``tables_file``, its
        name there.
    storage_conn_id : a connection with catalogs, and storage options; the table's own take precedence.
    max_age : of a watcher: see ``folders.loaded``.

    Raises UsageError that names the key, and the file and line.
    """
    connected = connected_by(storage_conn_id)
    if tables_file is None:
        catalogs = connected.completed({})
        key = "table" if isinstance(table, str) and is_known(table, catalogs) else "path"
        entry = {key: table} if isinstance(table, str) else dict(table)
        document = Document({"tables": [entry], "catalogs": catalogs}, "the operator's table")
        found = WatchConfig.of(document).tables[0]
    else:
        known = loaded(tables_file, storage_conn_id, max_age).tables
        if not isinstance(table, str) or table not in known:
            some = ", ".join([*dict.fromkeys([*get_close_matches(str(table), known, n=1), *known])][:10])
            raise UsageError(f"{tables_file} has no table {table!r}", next_step=f"choose one of its tables: {some}")
        found = known[table]
    return _with(connected, found)


def watch_config(
    tables_file: str, name: str | None, storage_conn_id: str | None, *, max_age: float | None = None
) -> WatchConfig:
    """The settings of a file, or of the document of this name in it. ``max_age``: as of :func:`watched`.

    Raises UsageError if the file has no such document, or several and ``name`` chooses none; else as :func:`watched`.
    """
    documents = loaded(tables_file, storage_conn_id, max_age).configs
    found = [each for each in documents if name is None or each.name == name]
    if len(found) != 1:
        wanted = "documents" if name is None else f"documents called {name!r}"
        raise UsageError(f"{tables_file} has {len(found)} {wanted} instead of one", next_step="choose one by its name")
    connected = connected_by(storage_conn_id)
    return found[0].model_copy(update={"tables": tuple(_with(connected, each) for each in found[0].tables)})


def _with(connected: Connected, table: TableSettings) -> TableSettings:
    options = {**connected.options, **table.storage_options}
    known = table.known_by(connected.completed(table.catalogs))
    return known.model_copy(update={"storage_options": options})


@contextmanager
def in_airflow_terms() -> Iterator[None]:
    """Transient errors keep their class, and Airflow retries them; all others fail the task at once."""
    try:
        with system_errors():
            yield
    except DvMaintenanceError as error:
        if isinstance(error, RetryableError):
            raise
        raise AirflowFailException(str(error)) from error
