"""DAGs from the file of tables that Dagster's component reads: the same keys, the same errors with file and line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from airflow.sdk import DAG, AssetAny, BaseOperator, TaskGroup

from dv_maintenance.airflow.assets import due_asset, slug, vacuums_due_asset
from dv_maintenance.airflow.many import DvTablesCheckOperator
from dv_maintenance.airflow.night import DvNightOperator
from dv_maintenance.airflow.operators import DvCheckOperator, DvManifestOperator, DvOptimizeOperator, DvVacuumOperator
from dv_maintenance.airflow.timetable import BackfillTimetable
from dv_maintenance.airflow.trigger import DvTrigger, DvVacuumsTrigger
from dv_maintenance.airflow.vacuums import DvVacuumsOperator
from dv_maintenance.service.checks import FSCK
from dv_maintenance.service.settings import Schedule, ScheduledJob, scheduled_jobs
from dv_maintenance.service.tables_file import Job, TableSettings, WatchConfig

try:
    from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.assets import AssetOrTimeSchedule
    from airflow.timetables.trigger import CronTriggerTimetable

__all__ = ["dv_maintenance_dags"]

# Backfills reach back to it, and a DAG with a schedule needs one.
_START: Final = datetime(2020, 1, 1, tzinfo=UTC)
_BY_WATCHER: Final = "{{ dag_run.run_type == 'asset_triggered' }}"
_WINDOWS: Final = {
    "hour": ("0 * * * *", "%Y-%m-%d-%H:%M"),
    "day": ("0 0 * * *", "%Y-%m-%d"),
    "month": ("0 0 1 * *", "%Y-%m-%d"),
}


def dv_maintenance_dags(
    config: str,
    *,
    per_table: bool = True,
    storage_conn_id: str | None = None,
    spark_conn_id: str | None = None,
    pool: str | None = None,
    retries: int = 3,
    fail_on: Literal["warn", "error"] | None = "error",
    default_args: Mapping[str, Any] | None = None,
) -> list[DAG]:
    """One DAG per table, or one for all tables of a file, and one per table for backfills of its time windows. With
    ``window`` or ``budget`` in the file, one more DAG rewrites files of all tables; see :class:`.DvNightOperator`.

    config : path of the YAML file.
    storage_conn_id : a connection with the storage's options and secrets; those in the file take precedence.
    spark_conn_id : a connection of the Spark provider; it replaces ``spark`` of the file.
    pool : a pool that exists, such as ``dv_{table}`` for one per table; none by default.
    retries : of transient errors; others fail at once.
    fail_on : the severity from which on a check fails its run; ``None``: it only warns, and so does the check of a
        night with too little time.

    A DAG is scheduled on an asset that a watcher in the triggerer updates, if the file has a ``sensor``; by
    ``schedule`` if it has one; or by both. The vacuums that a watcher finds share one DAG, as do those of
    ``vacuum_cron``; with ``fsck_cron`` each table has a DAG for the check ``fsck``. New DAGs are paused.

    Raises
    ------
    UsageError : names the YAML file and the line.
    StorageError : a folder can't be listed.
    """
    path = os.path.abspath(config)
    options = {"tables_file": path, "storage_conn_id": storage_conn_id}
    shared = {"retries": retries, "retry_delay": timedelta(seconds=10), "retry_exponential_backoff": True}
    configs = WatchConfig.load_all(path)
    return [
        dag
        for each in configs
        for dag in _Builder(each, options, spark_conn_id, pool, fail_on, {**shared, **(default_args or {})}).dags(
            per_table
        )
    ]


class _Builder:
    def __init__(
        self,
        config: WatchConfig,
        options: Mapping[str, Any],
        spark_conn_id: str | None,
        pool: str | None,
        fail_on: Literal["warn", "error"] | None,
        default_args: Mapping[str, Any],
    ) -> None:
        self.config = config
        self.options = options
        self.pool = pool
        self.fail_on = fail_on
        self.default_args = dict(default_args)
        self.spark = _spark(config, spark_conn_id)

    def dags(self, per_table: bool) -> list[DAG]:
        made = []
        for job in scheduled_jobs(self.config.name, self.config.schedule):
            if per_table and job.jobs == ("vacuum",):
                continue
            tables = [table for table in self.config.tables if set(table.jobs) & set(job.jobs)]
            groups = [[table] for table in tables] if per_table else [tables]
            made += [self._dag(job, group, alone=per_table) for group in groups if group]
        if self.config.schedule is not None and self.config.schedule.fsck_cron is not None:
            made += [self._fsck(table, self.config.schedule) for table in self.config.tables]
        windows = [table for table in self.config.tables if _window(table) and "optimize" in table.jobs]
        made += [self._night()] if self.config.at_night else []
        made += self._vacuums() if per_table else []
        return [*made, *(self._backfills(table) for table in windows)]

    def _vacuums(self) -> list[DAG]:
        """One DAG for the vacuums that a watcher finds, or that have their own schedule. Those found due together share
        a run.
        """
        name = f"{self.config.name}_vacuum"
        own = [job for job in scheduled_jobs(self.config.name, self.config.schedule) if job.name == name]
        tables = [table for table in self.config.tables if "vacuum" in table.jobs]
        if not tables or not (own or self.config.sensor):
            return []
        clock = CronTriggerTimetable(own[0].cron, timezone=own[0].timezone) if own else None
        schedule: Any = clock
        if self.config.sensor is not None:
            every = self.config.sensor.every_seconds
            trigger = DvVacuumsTrigger(name=self.config.name, every_seconds=every, **self.options)
            due = AssetAny(vacuums_due_asset(self.options["tables_file"], self.config.name, trigger))
            schedule = due if clock is None else AssetOrTimeSchedule(assets=due, timetable=clock)
        with DAG(
            name,
            description="Vacuums every table whose vacuum is due.",
            schedule=schedule,
            start_date=_START,
            catchup=False,
            max_active_runs=1,
            default_args=self.default_args,
            tags=["dv_maintenance"],
        ) as dag:
            vacuum = DvVacuumsOperator(
                task_id="vacuum",
                name=self.config.name,
                only_if_due=_BY_WATCHER,
                fail=False,
                **self.options,
            )
            vacuum >> DvTablesCheckOperator(task_id="check", of="vacuum", retries=0)
        return [dag]

    def _night(self) -> DAG:
        """The tables' rewrites. Of two runs that rewrite the same files, the commit lets one win: it needs no pool."""
        window = self.config.window
        with DAG(
            f"{self.config.name}_night",
            description="Rewrites files of every table, within the window and budget.",
            schedule=None if window is None else CronTriggerTimetable(window.cron, timezone=window.timezone),
            start_date=_START,
            catchup=False,
            max_active_runs=1,
            # The next window continues, with what is left of the budget.
            default_args={**self.default_args, "retries": 0},
            tags=["dv_maintenance"],
        ) as dag:
            night = DvNightOperator(
                task_id="night",
                name=self.config.name,
                fail=False,
                **self.options,
                **self.spark,
            )
            night >> DvTablesCheckOperator(task_id="check", of="night", alerts=self.fail_on is not None)
        return dag

    def _dag(self, job: ScheduledJob, tables: Sequence[TableSettings], *, alone: bool) -> DAG:
        """A run at a time, and in it a task at a time, so that jobs of a table wait for each other."""
        with DAG(
            f"{job.name}.{slug(tables[0].name)}" if alone else job.name,
            description=f"Maintains {tables[0].name}." if alone else "Maintains every table.",
            schedule=self._schedule(job, tables, alone=alone),
            start_date=_START,
            catchup=False,
            max_active_runs=1,
            max_active_tasks=1,
            default_args=self.default_args,
            tags=sorted({tag for table in tables for tag in _tags(table)}),
        ) as dag:
            for table in tables:
                if alone:
                    self._tasks(table, job)
                else:
                    with TaskGroup(slug(table.name).replace(".", "_")):
                        self._tasks(table, job)
        return dag

    def _schedule(self, job: ScheduledJob, tables: Sequence[TableSettings], *, alone: bool) -> Any:
        clock = None if job.cron is None else CronTriggerTimetable(job.cron, timezone=job.timezone)
        if self.config.sensor is None:
            return clock
        every = self.config.sensor.every_seconds
        due = []
        for table in tables:
            wanted = [each for each in table.jobs if each in self._jobs(job)]
            # With a DAG for each table, vacuums have a separate watcher.
            jobs = [each for each in wanted if each != "vacuum"] if alone else wanted
            if jobs:
                trigger = DvTrigger(table.name, jobs=jobs, every_seconds=every, **self.options)
                due.append(due_asset(table, trigger, job.name))
        if not due:
            return clock
        return AssetAny(*due) if clock is None else AssetOrTimeSchedule(assets=AssetAny(*due), timetable=clock)

    def _tasks(self, table: TableSettings, job: ScheduledJob) -> None:
        """A rewrite that fails does not stop the vacuum. Manifests list what the rewrite wrote."""
        builders: dict[str, Any] = {"optimize": self._optimize, "manifest": self._manifest, "vacuum": self._vacuum}
        wanted = set(table.jobs) & set(self._jobs(job))
        tasks = {name: build(table) for name, build in builders.items() if name in wanted}
        if "optimize" in tasks and "manifest" in tasks:
            tasks["optimize"] >> tasks["manifest"]
        if "optimize" in job.jobs:
            list(tasks.values()) >> DvCheckOperator(task_id="check", fail_on=self.fail_on, **self._common(table))

    def _jobs(self, job: ScheduledJob) -> list[Job]:
        """Without those that a DAG for all tables does."""
        return [each for each in job.jobs if not (self.config.at_night and each == "optimize")]

    def _fsck(self, table: TableSettings, schedule: Schedule) -> DAG:
        """Reads every footer and deletion vector; apart from maintenance, which must not wait for it."""
        with DAG(
            f"{self.config.name}_fsck.{slug(table.name)}",
            description=f"Reads every footer and deletion vector of {table.name}.",
            schedule=CronTriggerTimetable(schedule.fsck_cron, timezone=schedule.timezone),
            start_date=_START,
            catchup=False,
            max_active_runs=1,
            default_args=self.default_args,
            tags=_tags(table),
        ) as dag:
            DvCheckOperator(task_id=FSCK, checks=[FSCK], fail_on=self.fail_on, **self._common(table))
        return dag

    def _optimize(self, table: TableSettings, **kwargs: Any) -> BaseOperator:
        # The first of those that could run: the vacuum then finds what it replaced.
        return DvOptimizeOperator(task_id="optimize", priority_weight=10, **self._common(table), **self.spark, **kwargs)

    def _manifest(self, table: TableSettings) -> BaseOperator:
        return DvManifestOperator(task_id="manifest", only_if_due=_BY_WATCHER, **self._common(table), **self.spark)

    def _vacuum(self, table: TableSettings) -> BaseOperator:
        return DvVacuumOperator(task_id="vacuum", only_if_due=_BY_WATCHER, **self._common(table))

    def _common(self, table: TableSettings) -> dict[str, Any]:
        return {
            "table": table.name,
            **self.options,
            **({"owner": ", ".join(table.owners)} if table.owners else {}),
            **({"pool": self.pool.format(table=slug(table.name))} if self.pool else {}),
        }

    def _backfills(self, table: TableSettings) -> DAG:
        """A data interval is a partition. It runs only when somebody starts it."""
        every, start = _window(table) or ("", None)
        cron, key = _WINDOWS[every]
        with DAG(
            f"{self.config.name}.{slug(table.name)}.partitions",
            description=f"Optimizes {table.name} by {every}: start a backfill to choose partitions.",
            schedule=BackfillTimetable(cron, timezone="UTC"),
            start_date=start,
            catchup=False,
            max_active_runs=1,
            default_args=self.default_args,
            tags=_tags(table),
        ) as dag:
            self._optimize(table, partitions=[f"{{{{ data_interval_start.strftime('{key}') }}}}"])
        return dag


def _spark(config: WatchConfig, conn_id: str | None) -> dict[str, Any]:
    """The session's settings, as arguments of an operator."""
    if conn_id is not None or config.spark is None or config.spark.resource is not None:
        return {"conn_id": conn_id}
    place = "spark.remote" if config.spark.master.startswith("sc://") else "spark.master"
    settings = {place: config.spark.master, **config.spark.conf}
    return {"config_kwargs": settings, "engine": config.spark.engine}


def _window(table: TableSettings) -> tuple[str, datetime] | None:
    """How long a window is and when the first one begins, if the table's keys are those of one column of windows."""
    columns = () if table.partitions is None else table.partitions.columns
    if len(columns) != 1 or columns[0].every is None or columns[0].start is None:
        return None
    return columns[0].every, columns[0].start.replace(tzinfo=UTC)


def _tags(table: TableSettings) -> list[str]:
    group = [table.group_name] if table.group_name else []
    return ["dv_maintenance", *group, *(f"{key}:{value}" if value else key for key, value in table.tags.items())]
