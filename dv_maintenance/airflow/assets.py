"""A table as Airflow sees it: its settings, its names and its assets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetWatcher

from dv_maintenance.airflow.trigger import DvTrigger, DvVacuumsTrigger
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.storage.paths import absolute_uri

__all__ = ["assets_of", "due_asset", "job_asset", "slug", "table_asset", "vacuums_due_asset"]

_WORDS = r"[A-Za-z0-9.-]+(_[A-Za-z0-9.-]+)*"
_PLAIN = re.compile(f"{_WORDS}(/{_WORDS})*")


def table_asset(table: TableSettings) -> Asset:
    """The table. Only work that changes its rows creates events: maintenance wakes no consumer."""
    return Asset(name=table.name, uri=absolute_uri(table.path))


def job_asset(table: TableSettings, job: str) -> Asset:
    """One job's result, below the table's URI: an event for each run of it."""
    return Asset(name=f"{table.name}/dv/{job}", uri=f"{absolute_uri(table.path)}/?dv={quote(job)}")


def due_asset(table: TableSettings, trigger: DvTrigger, name: str = "due") -> Asset:
    """An event for each data change that made work due, found by the triggerer."""
    asset = job_asset(table, name)
    return Asset(name=asset.name, uri=asset.uri, watchers=[AssetWatcher(name=asset.name, trigger=trigger)])


def vacuums_due_asset(tables_file: str, name: str, trigger: DvVacuumsTrigger) -> Asset:
    """An event for the vacuums that one inspection of a file's tables finds due."""
    uri = f"{absolute_uri(tables_file)}/?dv=vacuums_due&name={quote(name)}"
    asset = f"{name}/dv/vacuums_due"
    return Asset(name=asset, uri=uri, watchers=[AssetWatcher(name=asset, trigger=trigger)])


def slug(name: str) -> str:
    """A table's name in the letters of DAG and pool names: ``a/b`` becomes ``a__b``. A hash distinguishes names that
    would become equal.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name.replace("/", "__"))
    return safe if _PLAIN.fullmatch(name) else f"{safe}_{sha256(name.encode()).hexdigest()[:6]}"


def assets_of(table: str | Mapping[str, Any], tables_file: str | None) -> list[Asset]:
    """The asset of an operator's table, unless only a run knows the table."""
    path = table.get("path") if isinstance(table, Mapping) else table
    if tables_file is not None or not isinstance(path, str) or "{{" in path:
        return []
    name = table.get("name") if isinstance(table, Mapping) else None
    uri = absolute_uri(path)
    return [Asset(name=name or uri, uri=uri)]
