"""The timetable of DAGs for backfills, and the plugin that registers it with Airflow."""

from __future__ import annotations

from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

__all__ = ["BackfillTimetable", "DvPlugin"]


class BackfillTimetable(CronDataIntervalTimetable):
    """Data intervals by a cron expression, for backfills: the scheduler starts no run by itself.

    Airflow's backfills need a periodic timetable, and an unpaused DAG that has one also runs for its newest interval.
    Airflow asks for a backfill's intervals with ``catchup``, and for a scheduled run with the DAG's own ``catchup``,
    which is off.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        if not restriction.catchup:
            return None
        found: DagRunInfo | None = super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        return found


class DvPlugin(AirflowPlugin):
    """Registers the timetable, by the entry point ``airflow.plugins``."""

    name = "dv_maintenance"
    timetables: ClassVar = [BackfillTimetable]
