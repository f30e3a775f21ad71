"""A sensor that says which tables appeared in folders since they were searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import dagster as dg

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.units import first_few

if TYPE_CHECKING:
    from dv_maintenance.service.tables_file import TableSettings

_SHOWN: Final = 20


def build_dv_folders_sensor(
    search: Callable[[], Iterable[TableSettings]],
    tables: Iterable[TableSettings],
    *,
    name: str = "dv_folders",
    kept: bool,
    minimum_interval_seconds: int = 3600,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that searches folders and changes nothing; by default stopped until a user starts it.

    search : returns the tables that the location would have.
    tables : those that it has.
    kept : the location reads what is kept of a search, so that a reload alone does not show new tables.
    """
    known = frozenset(table.uri for table in tables)
    then = "Run `dg utils refresh-defs-state`, then reload the location." if kept else "Reload the location."

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Searches the folders and reports in its ticks which tables are new or gone. It requests no runs.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            found = {table.uri: table.name for table in search()}
        except DvMaintenanceError as error:
            context.log.warning(str(error))
            return dg.SkipReason(f"The folders can't be searched; the location keeps its tables. {error}")
        new = sorted(name for path, name in found.items() if path not in known)
        gone = sorted(known.difference(found))
        if not new and not gone:
            return dg.SkipReason(f"No new tables: the folders and the location have the same {len(found)}.")
        said = [
            f"{len(names)} {what}: {first_few(names, _SHOWN)}."
            for what, names in (("new", new), ("gone", gone))
            if names
        ]
        return dg.SkipReason(f"Tables in the folders: {' '.join(said)} {then}")

    return sensor
