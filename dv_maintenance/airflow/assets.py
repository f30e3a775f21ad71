"""A table as Airflow sees it: its names and its assets.

Airflow has one name for each URI, and an ``Asset(uri)`` without a name is called by its URI. So are all of these: an
asset that others define for the same URI is then the same one.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import quote

from airflow.sdk import Asset, AssetWatcher

from dv_maintenance.airflow.trigger import DvTrigger, DvVacuumsTrigger
from dv_maintenance.service.settings import NamedAsset
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.storage.paths import absolute_uri

_WORDS = r"[A-Za-z0-9.-]+(_[A-Za-z0-9.-]+)*"
_PLAIN = re.compile(f"{_WORDS}(/{_WORDS})*")


def table_asset(table: TableSettings) -> Asset:
    """The table, by its URI or under the name of its ``asset`` key. Only work that changes its rows creates events:
    maintenance wakes no consumer.
    """
    named = NamedAsset(name=table.asset) if isinstance(table.asset, str) else table.asset
    uri = table.uri.rstrip("/")
    return Asset(uri) if named is None else Asset(name=named.name, uri=named.uri or uri)


def job_asset(table: TableSettings, job: str) -> Asset:
    """One job's result, such as ``s3://lake/orders?dv=optimize``: an event for each run that changed something."""
    return Asset(_below(table.uri, job))


def due_asset(table: TableSettings, trigger: DvTrigger, name: str) -> Asset:
    """An event for each data change that made work due, found by the triggerer.

    name : of the DAG's file of tables or of its schedule. Two of one name share a watcher.
    """
    return _watched(_below(table.uri, "due", name), trigger)


def vacuums_due_asset(tables_file: str, name: str, trigger: DvVacuumsTrigger) -> Asset:
    """An event for the vacuums that one inspection of a file's tables finds due."""
    return _watched(_below(absolute_uri(tables_file), "vacuums_due", name), trigger)


def _below(uri: str, what: str, name: str = "") -> str:
    # In the order that Airflow sorts them into: its name is then its URI.
    return f"{uri.rstrip('/')}?dv={quote(what)}{f'&name={quote(name)}' if name else ''}"


def _watched(uri: str, trigger: DvTrigger | DvVacuumsTrigger) -> Asset:
    return Asset(uri, watchers=[AssetWatcher(name=uri, trigger=trigger)])


def slug(name: str) -> str:
    """A table's name in the letters of DAG and pool names: ``a/b`` becomes ``a__b``. A hash distinguishes names that
    would become equal.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name.replace("/", "__"))
    return safe if _PLAIN.fullmatch(name) else f"{safe}_{sha256(name.encode()).hexdigest()[:6]}"
