"""The timetables of generated DAGs, and the plugin that registers them with Airflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from airflow.plugins_manager import AirflowPlugin
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.timetables.trigger import CronTriggerTimetable

_LATE: Final = timedelta(hours=1)


class Clock(CronTriggerTimetable):
    """Runs by a cron expression. Airflow's own timetable also makes up for the newest time that passed while the DAG
    was paused, however long ago.

    :param late: how late a run may start; after that the next one counts.
    """

    def __init__(self, cron: str, *, late: timedelta = _LATE, **kwargs: Any) -> None:
        super().__init__(cron, **kwargs)
        self.late = late

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), "late": self.late.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Clock:
        made: Clock = super().deserialize(data)
        made.late = timedelta(seconds=data["late"])
        return made

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        found: DagRunInfo | None = super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        if found is None or datetime.now(found.run_after.tzinfo) - found.run_after <= self.late:
            return found
        after: DagRunInfo | None = super().next_dagrun_info(
            last_automated_data_interval=found.data_interval, restriction=restriction
        )
        return after


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
    """Registers the timetables, by the entry point ``airflow.plugins``."""

    name = "dv_maintenance"
    timetables: ClassVar = [BackfillTimetable, Clock]
