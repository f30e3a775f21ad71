"""The folders of a file of tables. Watchers search them; a Variable has what they found for the DAG processor, which
reads the file every half a minute, and for tasks. Whatever keeps a folder from being searched stops nothing else.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from threading import Lock
from typing import Any, Final

import orjson
from airflow.sdk import Variable

from dv_maintenance.airflow.hook import connected_by
from dv_maintenance.errors import UsageError, redacted
from dv_maintenance.service.tables_file import TableSettings, TablesFolder, WatchConfig
from dv_maintenance.tables.find import FoundTable

_log = logging.getLogger(__name__)
_SECONDS_AFTER_ERROR: Final = 300.0
_loading: Final = Lock()
# By file and connection: when the file was written, nanoseconds; when it was loaded, by a monotonic clock.
_loaded: Final[dict[tuple[str, str | None], tuple[int, float, Loaded]]] = {}

Kept = dict[str, Mapping[str, Any]]
"""By the folder's URI: ``tables``, each a path below it and a format; ``at``, epoch seconds; ``error``, why the last
search failed. Patterns and settings are applied later, and storage options are not kept.
"""


def configs(
    tables_file: str, storage_conn_id: str | None = None, *, max_age: float = inf, timeout: float = 300
) -> list[WatchConfig]:
    """Every document of a file, with the tables in its folders.

    max_age : seconds after which a folder is searched again.
    timeout : seconds that a search may take.

    Raises UsageError that names the key, the file and the line.
    """
    documents = WatchConfig.read(tables_file)
    places = sorted({folder.uri for config, _ in documents for folder in config.folders})
    if not places:
        return [config for config, _ in documents]
    # Not by the file: a DAG bundle has it elsewhere in each process.
    name = f"dv_maintenance.folders.{sha256(orjson.dumps(places)).hexdigest()[:8]}"
    kept = _kept(name)
    now: Kept = dict(kept)

    def find(folder: TablesFolder) -> list[TableSettings]:
        place = folder.uri
        last = now.get(place)
        age = inf if last is None else time.time() - last["at"]
        if last is None or age > (min(max_age, _SECONDS_AFTER_ERROR) if last["error"] else max_age):
            tables, error = last["tables"] if last else [], None
            try:
                tables = _searched(folder, storage_conn_id, timeout)
            except Exception as raised:  # noqa: BLE001 (what was found before still holds, and so does the rest)
                error = redacted(f"{type(raised).__name__}: {raised}")
            last = now[place] = {"tables": tables, "at": time.time(), "error": error}
        if last["error"]:
            _log.warning("%s could not be searched for tables: %s", place, last["error"])
        try:
            return folder.among([FoundTable(*each) for each in last["tables"]])
        except UsageError as error:
            _log.warning("%s", error)
            return []

    found = [
        config.model_copy(update={"tables": tuple(table for _, table in config.located(document.where, find))})
        for config, document in documents
    ]
    if now != kept:
        _keep(name, {place: now[place] for place in places if place in now})
    return found


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file of tables: its documents, and all their tables by name."""

    configs: list[WatchConfig]
    tables: Mapping[str, TableSettings]


def loaded(tables_file: str, storage_conn_id: str | None, max_age: float | None = None) -> Loaded:
    """The file as it is now. Raises as :func:`configs`.

    max_age : of watchers: each of thousands would load all of it for its own table. They share what any of them loaded
        in the last so many seconds, unless the file was written since.
    """
    if max_age is None:
        return _load(tables_file, storage_conn_id)
    key = tables_file, storage_conn_id
    with _loading:
        written, now = os.stat(tables_file).st_mtime_ns, time.monotonic()
        if key not in _loaded or _loaded[key][0] != written or now - _loaded[key][1] > max_age:
            _loaded[key] = written, now, _load(tables_file, storage_conn_id, max_age)
        return _loaded[key][2]


def _load(tables_file: str, storage_conn_id: str | None, max_age: float = inf) -> Loaded:
    found = configs(tables_file, storage_conn_id, max_age=max_age)
    return Loaded(found, {table.name: table for config in found for table in config.tables})


def _searched(folder: TablesFolder, storage_conn_id: str | None, timeout: float) -> list[list[str]]:
    connected = connected_by(storage_conn_id)
    folder = folder.known_by(connected.completed(folder.catalogs))
    pool = ThreadPoolExecutor(1)
    search: Callable[[], list[FoundTable]] = lambda: folder.search(storage_options=connected.options)  # noqa: E731
    try:
        return [[each.path, each.format, each.left_alone] for each in pool.submit(search).result(timeout)]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _kept(name: str) -> Kept:
    try:
        return dict(orjson.loads(Variable.get(name, default="{}")))
    except Exception as error:  # noqa: BLE001 (then it is searched)
        _log.debug("no folders are kept: %s", error)
        return {}


def _keep(name: str, found: Kept) -> None:
    try:
        Variable.set(name, orjson.dumps(found).decode(), description="The tables in the folders of a file of tables.")
    except Exception as error:  # noqa: BLE001 (then it is searched again)
        _log.warning("the tables in folders could not be kept: %s", redacted(str(error)))
