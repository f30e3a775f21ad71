"""A table's observations in Dagster, their data versions, and the observation that a run leaves behind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.checks import checked_after
from dv_maintenance.errors import redacted
from dv_maintenance.service import verbs

if TYPE_CHECKING:
    from dv_maintenance.service.outcome import TableReport
    from dv_maintenance.service.tables_file import TableSettings
    from dv_maintenance.tables.table import Table

_TAG: Final = "dagster/data_version"
_FORM: Final = re.compile(r"(\d+)(?:\.([0-9a-f]+))?")


def data_version_tag(version: int | None, lineage: str) -> Mapping[str, str]:
    """The tag of an observation. A table that was dropped and created again counts its versions from 0. With its
    lineage no data version of the one equals one of the other, so consumers notice.
    """
    return {_TAG: f"{version}.{lineage}" if lineage else str(version)}


def observed_before(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[int, int] | None:
    """The version and the data version of the table's last observation: where
    :func:`~dv_maintenance.service.data_version.last_data_version` continues. ``None``: there is no observation, or
    another asset reports the data version.

    Without it the history would have to be read to its beginning, and a history that a vacuum shortened does not show
    which version was the last to change data.
    """
    found = _last(instance, key)
    return None if found is None else found[:2]


def data_version_of(instance: dg.DagsterInstance, key: dg.AssetKey, version: int | None) -> str:
    """The data version that a run observes: with the lineage of the last observation, which only the sensor changes."""
    found = _last(instance, key)
    return data_version_tag(version, "" if found is None else found[2])[_TAG]


def _last(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[int, int, str] | None:
    for record in instance.fetch_observations(key, limit=1).records:
        observation = record.asset_observation
        version = observation.metadata.get("version") if observation is not None else None
        tag = observation.tags.get(_TAG, "") if observation is not None else ""
        match = _FORM.fullmatch(tag)
        if version is not None and isinstance(version.value, int) and match is not None:
            return version.value, int(match[1]), match[2] or ""
    return None


def observe_after(
    context: dg.OpExecutionContext,
    table: TableSettings,
    opened: Table | None = None,
    report: TableReport | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Show on the table's page, and in its checks, what a run left: without a sensor nothing else does. It never fails
    the run.

    report : of the table, if it is known already.
    more : entries to show first.
    """
    key = naming.table_key(table)
    try:
        opened = opened or verbs.opened(table)
        report = report or verbs.report_table(
            table, opened, opened.snapshot(), lambda: observed_before(context.instance, key)
        )
    except Exception as error:  # noqa: BLE001 (the work is done, whatever becomes of the report)
        context.log.warning("%s: not observed: %s", table.name, redacted(str(error)))
        return
    entries = {
        **(more or {}),
        **metadata.of_table(report),
        **metadata.of_findings(checked_after(context, table, opened)),
    }
    tags = None
    if report.data_version is not None:
        tags = {_TAG: data_version_of(context.instance, key, report.data_version)}
    context.log_event(dg.AssetObservation(key, metadata=entries, tags=tags))
