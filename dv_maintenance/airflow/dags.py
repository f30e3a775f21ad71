"""DAGs from the file of tables that Dagster's component reads: the same keys, the same errors with file and line."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetAny, BaseHook, BaseOperator, Param, TaskGroup, task

from dv_maintenance.airflow.arguments import known, literal
from dv_maintenance.airflow.assets import due_asset, slug, vacuums_due_asset
from dv_maintenance.airflow.folders import configs
from dv_maintenance.airflow.hook import STORAGE_TYPES
from dv_maintenance.airflow.many import DvTablesCheckOperator
from dv_maintenance.airflow.night import DvNightOperator
from dv_maintenance.airflow.operators import DvCheckOperator, DvManifestOperator, DvOptimizeOperator, DvVacuumOperator
from dv_maintenance.airflow.reports import DvReportOperator, DvSimulationOperator
from dv_maintenance.airflow.spark import SPARK_TYPES
from dv_maintenance.airflow.timetable import BackfillTimetable, Clock
from dv_maintenance.airflow.trigger import DvTrigger, DvVacuumsTrigger
from dv_maintenance.airflow.vacuums import DvVacuumsOperator
from dv_maintenance.service.checks import FSCK
from dv_maintenance.service.partitions import KEY_FORMAT
from dv_maintenance.service.settings import ScheduledJob, scheduled_jobs
from dv_maintenance.service.tables_file import Job, TableSettings, WatchConfig

try:
    from airflow.sdk import AssetOrTimeSchedule
except ImportError:  # Airflow 3.1
    from airflow.timetables.assets import AssetOrTimeSchedule

# Folders are searched here if no watcher does. Airflow ends the reading of a DAG file after half a minute.
_SECONDS_KEPT: Final = 3600.0
_SECONDS_SEARCHED: Final = 20.0
# Backfills reach back to it, and a DAG with a schedule needs one.
_START: Final = datetime(2020, 1, 1, tzinfo=UTC)
_BY_WATCHER: Final = "{{ dag_run.run_type == 'asset_triggered' }}"
_PARAMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "dry_run": {"default": False, "type": "boolean", "description": "Change nothing, and say what would be done."},
    "purge": {
        "default": False,
        "type": "boolean",
        "description": "Purge every deletion vector, whatever the policy's thresholds.",
    },
    "policy": {
        "default": {},
        "type": "object",
        "description": 'Keys of the policy for this run, in place of the table\'s: {"max_deleted_ratio": 0.01}.',
    },
    "retention": {
        "default": None,
        "type": ["null", "string"],
        "description": "How long the vacuum keeps unneeded files, such as 168h, in place of the policy's.",
    },
    "partitions": {"default": [], "type": "array", "description": "Only these partitions, such as 2026-11-20."},
}
_RUN: Final = {
    "dry_run": "{{ params.dry_run }}",
    "purge": "{{ params.purge }}",
    "policy": "{{ params.policy | tojson }}",
}
_VACUUM: Final[Mapping[str, Any]] = {
    "dry_run": _RUN["dry_run"],
    "guards": {"retention": "{{ params.retention or '' }}"},
    "only_if_due": _BY_WATCHER,
}
_BEGIN: Final = {"hour": "0 * * * *", "day": "0 0 * * *", "month": "0 0 1 * *"}
"""When windows of time begin, as cron expressions."""


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
    pool : a pool that exists, such as ``dv_{table}`` for one per table; a table's own ``pool`` takes precedence.
    retries : of transient errors; others fail at once.
    fail_on : the severity from which on a check fails its run; ``None``: it only warns, and so does the check of a
        night with too little time.

    A DAG is scheduled on an asset that a watcher in the triggerer updates, if the file has a ``sensor``; by
    ``schedule`` if it has one; or by both. The vacuums that a watcher finds share one DAG, as do those of
    ``vacuum_cron``; with ``fsck_cron`` each table has a DAG for the check ``fsck``. ``NAME_report`` lists all tables,
    by ``report.cron`` if there is one. ``NAME_plan``, ``NAME_purge`` and ``NAME_simulation`` are started by hand. Other
    new DAGs are paused, unless the file's ``default_status`` is ``running``.

    Raises
    ------
    UsageError : names the YAML file and the line.
    A folder that can't be searched is a warning in the DAG processor's log; its tables are those found before.
    """
    path = os.path.abspath(config)
    options = {"tables_file": path, "storage_conn_id": storage_conn_id}
    shared = {"retries": retries, "retry_delay": timedelta(seconds=10), "retry_exponential_backoff": True}
    missing = _missing({storage_conn_id: STORAGE_TYPES, spark_conn_id: SPARK_TYPES})
    return [
        dag
        for each in configs(path, storage_conn_id, max_age=_SECONDS_KEPT, timeout=_SECONDS_SEARCHED)
        for dag in _Builder(
            each, options, _spark(each, spark_conn_id), pool, fail_on, {**shared, **(default_args or {})}, missing
        ).dags(per_table)
    ]


@dataclass
class _Builder:
    config: WatchConfig
    options: Mapping[str, Any]
    spark: Mapping[str, Any]
    pool: str | None
    fail_on: Literal["warn", "error"] | None
    default_args: dict[str, Any]
    doc_md: str | None

    def dags(self, per_table: bool) -> list[DAG]:
        made: list[DAG | None] = []
        for job in scheduled_jobs(self.config.name, self.config.schedule):
            if per_table and job.jobs == ("vacuum",):
                continue
            tables = [table for table in self.config.tables if set(table.jobs) & set(job.jobs)]
            groups = [[table] for table in tables] if per_table else [tables]
            made += [self._maintenance(job, group, alone=per_table) for group in groups if group]
        schedule = self.config.schedule
        if schedule is not None and schedule.fsck_cron is not None:
            clock = Clock(schedule.fsck_cron, timezone=schedule.timezone)
            made += [self._fsck(table, clock) for table in self.config.tables]
        optimized = [table for table in self.config.tables if "optimize" in table.jobs]
        made += [self._night(optimized, per_table)] if self.config.at_night else []
        made += [self._vacuums()] if per_table else []
        made += [self._backfills(table) for table in optimized if _window(table)]
        made += [self._preset("plan", "dry_run", optimized), self._preset("purge", "purge", optimized)]
        made += [self._report(), self._simulation()] if self.config.tables else []
        return [dag for dag in made if dag is not None]

    def _dag(self, name: str, description: str, schedule: Any, tags: Sequence[str] = (), **more: Any) -> DAG:
        """A DAG with a run at a time. One that nothing starts by itself is not paused, and neither is one whose file
        says ``running``; for others Airflow's own setting decides.
        """
        config = self.config
        own = [each.default_status or config.default_status for each in (config.sensor, config.schedule) if each]
        if schedule is None or isinstance(schedule, BackfillTimetable) or "running" in own:
            more["is_paused_upon_creation"] = False
        more = {"start_date": _START, "default_args": self.default_args, **more}
        return DAG(
            name,
            description=description,
            schedule=schedule,
            catchup=False,
            doc_md=self.doc_md,
            max_active_runs=1,
            tags=sorted({"dv_maintenance", *tags}),
            **more,
        )

    def _vacuums(self) -> DAG | None:
        """One DAG for the vacuums that a watcher finds, or that have their own schedule. Those found due together share
        a run.
        """
        sensor, when = self.config.sensor, self.config.schedule
        clock = Clock(when.vacuum_cron, timezone=when.timezone) if when and when.vacuum_cron else None
        if not any("vacuum" in table.jobs for table in self.config.tables) or not (clock or sensor):
            return None
        name, described = f"{self.config.name}_vacuum", "Vacuums every table whose vacuum is due."
        due = []
        if sensor is not None:
            every = sensor.every_seconds
            trigger = DvVacuumsTrigger(name=self.config.name, every_seconds=every, dag_id=name, **self.options)
            due.append(vacuums_due_asset(self.options["tables_file"], self.config.name, trigger))
        with self._dag(name, described, _schedule(due, clock), params=_params("dry_run", "retention")) as dag:
            vacuum = DvVacuumsOperator(task_id="vacuum", name=self.config.name, fail=False, **_VACUUM, **self.options)
            vacuum >> DvTablesCheckOperator(task_id="check", of="vacuum", retries=0)
        return dag

    def _night(self, tables: Sequence[TableSettings], per_table: bool) -> DAG:
        """The tables' rewrites. Of two runs that rewrite the same files, the commit lets one win: it needs no pool."""
        window = self.config.window
        late = timedelta() if window is None else timedelta(milliseconds=window.length)
        clock = None if window is None else Clock(window.cron, timezone=window.timezone, late=late)
        # The next window continues, with what is left of the budget.
        again = {**self.default_args, "retries": 0}
        name, what = f"{self.config.name}_night", "Rewrites files of every table, within the window and budget."
        with self._dag(name, what, clock, default_args=again) as dag:
            night = DvNightOperator(task_id="night", name=self.config.name, fail=False, **self.options, **self.spark)
            night >> DvTablesCheckOperator(task_id="check", of="night", alerts=self.fail_on is not None)
            if per_table and self.config.schedule is None:
                # Nothing else would check them.
                checks = DvCheckOperator.partial(
                    task_id="checks", fail_on=self.fail_on, trigger_rule="all_done", **self.options
                )
                night >> checks.expand(table=[table.name for table in tables])
        return dag

    def _maintenance(self, job: ScheduledJob, tables: Sequence[TableSettings], *, alone: bool) -> DAG:
        """A task at a time, so that jobs of a table wait for each other."""
        wanted = {each for table in tables for each in self._jobs(job, table)}
        params = _params(
            "dry_run",
            *(("purge", "policy") if "optimize" in wanted else ()),
            *(("retention",) if "vacuum" in wanted else ()),
            *(("partitions",) if alone and tables[0].partitions and "optimize" in wanted else ()),
        )
        name = f"{job.name}.{slug(tables[0].name)}" if alone else job.name
        with self._dag(
            name,
            f"Maintains {tables[0].name}." if alone else "Maintains every table.",
            self._when(name, job, tables, alone=alone),
            [tag for table in tables for tag in _tags(table)],
            max_active_tasks=1,
            params=params,
        ) as dag:
            for table in tables:
                with nullcontext() if alone else TaskGroup(slug(table.name).replace(".", "_")):
                    self._tasks(table, job, chosen="partitions" in params)
        return dag

    def _when(self, dag_id: str, job: ScheduledJob, tables: Sequence[TableSettings], *, alone: bool) -> Any:
        clock = None if job.cron is None else Clock(job.cron, timezone=job.timezone)
        if self.config.sensor is None:
            return clock
        due = []
        for table in tables:
            # With a DAG for each table, vacuums have a separate watcher.
            jobs = [each for each in self._jobs(job, table) if not (alone and each == "vacuum")]
            if jobs:
                every = self.config.sensor.every_seconds
                trigger = DvTrigger(table.name, jobs=jobs, every_seconds=every, dag_id=dag_id, **self.options)
                due.append(due_asset(table, trigger, job.name))
        return _schedule(due, clock)

    def _jobs(self, job: ScheduledJob, table: TableSettings) -> list[Job]:
        """Without those that a DAG for all tables does."""
        both = [each for each in table.jobs if each in job.jobs]
        return [each for each in both if not (self.config.at_night and each == "optimize")]

    def _tasks(self, table: TableSettings, job: ScheduledJob, *, chosen: bool) -> None:
        """A rewrite that fails stops neither the vacuum nor the checks. Manifests list what the rewrite wrote."""
        common = self._common(table)
        tasks: dict[str, Any] = {}
        for each in self._jobs(job, table):
            if each == "optimize":
                partitions = {"partitions": "{{ params.partitions | tojson }}"} if chosen else {}
                tasks[each] = self._optimize(table, **partitions)
            elif each == "manifest":
                tasks[each] = DvManifestOperator(
                    task_id=each, only_if_due=_BY_WATCHER, dry_run=_RUN["dry_run"], **common, **self.spark
                )
            else:
                tasks[each] = DvVacuumOperator(task_id=each, **_VACUUM, **common)
        if "optimize" in tasks and "manifest" in tasks:
            tasks["optimize"] >> tasks["manifest"]
        if "optimize" in job.jobs:
            check = DvCheckOperator(task_id="check", fail_on=self.fail_on, trigger_rule="all_done", **common)
            list(tasks.values()) >> check
            # A run has the state of its last task: one that needs no worker, and fails with any of the others.
            [*tasks.values(), check] >> EmptyOperator(task_id="done", owner=check.owner)

    def _fsck(self, table: TableSettings, clock: Clock) -> DAG:
        """Maintenance must not wait for it."""
        described = f"Reads every footer and deletion vector of {table.name}."
        with self._dag(f"{self.config.name}_fsck.{slug(table.name)}", described, clock, _tags(table)) as dag:
            DvCheckOperator(task_id=FSCK, checks=[FSCK], fail_on=self.fail_on, **self._common(table))
        return dag

    def _optimize(self, table: TableSettings, **kwargs: Any) -> BaseOperator:
        # The first of those that could run: the vacuum then finds what it replaced.
        return DvOptimizeOperator(
            task_id="optimize", priority_weight=10, **_RUN, **self._common(table), **self.spark, **kwargs
        )

    def _common(self, table: TableSettings) -> dict[str, Any]:
        pool = table.pool or (None if self.pool is None else self.pool.format(table=slug(table.name)))
        return {
            "table": table.name,
            **self.options,
            **({"owner": ", ".join(table.owners)} if table.owners else {}),
            **({"pool": pool} if pool else {}),
        }

    def _backfills(self, table: TableSettings) -> DAG:
        """A data interval is a partition. It runs only when somebody starts it."""
        every, start = _window(table) or ("", None)
        key = f"data_interval_start.strftime('{KEY_FORMAT[every]}')"
        interval = f"({key} if data_interval_start is defined and data_interval_start else '')"
        with self._dag(
            f"{self.config.name}.{slug(table.name)}.partitions",
            f"Optimizes {table.name} by {every}: start a backfill to choose partitions.",
            BackfillTimetable(_BEGIN[every], timezone="UTC"),
            _tags(table),
            start_date=start,
            params=_params("dry_run", "purge", "policy", "partitions"),
        ) as dag:
            # A backfill has its own limit of runs. Two of one table would rewrite the same files.
            self._optimize(
                table,
                max_active_tis_per_dag=1,
                partitions=f"{{{{ params.partitions | tojson if params.partitions else {interval} }}}}",
            )
        return dag

    def _report(self) -> DAG:
        when = self.config.report
        clock = None if when is None or when.cron is None else Clock(when.cron, timezone=when.timezone)
        with self._dag(f"{self.config.name}_report", "Lists every table, the worst first.", clock) as dag:
            DvReportOperator(task_id="report", name=self.config.name, **self.options)
        return dag

    def _simulation(self) -> DAG:
        """Started by hand."""
        params = {"tables": _tables(self.config.tables), **_params("policy")}
        params["since"] = Param("30d", type="string", description="How far to go back.")
        described = "What the past of every table would have cost under its policy and another one."
        with self._dag(f"{self.config.name}_simulation", described, None, params=params) as dag:
            DvSimulationOperator(
                task_id="simulation",
                name=self.config.name,
                tables="{{ params.tables | tojson }}",
                policy=_RUN["policy"],
                since="{{ params.since }}",
                **self.options,
            )
        return dag

    def _preset(self, what: str, key: str, tables: Sequence[TableSettings]) -> DAG | None:
        """Started by hand, for all tables or those chosen in the page."""
        if not tables:
            return None
        params = _params(*_RUN)
        params[key].value = True
        params["tables"] = _tables(tables)
        described = {
            "plan": "Plans the rewrites of every table, and changes nothing.",
            "purge": "Purges every deletion vector of every table, whatever the policies' thresholds.",
        }[what]
        with self._dag(f"{self.config.name}_{what}", described, None, params=params, max_active_tasks=1) as dag:
            chosen = task(task_id="tables")(_chosen)()
            DvOptimizeOperator.partial(task_id=what, **_RUN, **self.options, **self.spark).expand(table=chosen)
        return dag


def _missing(connections: Mapping[str | None, Collection[str]]) -> str | None:
    """What a DAG's page says of connections that don't exist. Raises UsageError for one of another type.

    connections : the types that each may have.
    """
    missing = []
    for conn_id, types in connections.items():
        try:
            found = BaseHook.get_connection(conn_id) if conn_id is not None and literal(conn_id) else None
        except Exception:  # noqa: BLE001 (a DAG processor need not have access to the secrets)
            missing.append(f"There is no connection `{conn_id}`, or the DAG processor can't read it.")
            continue
        if found is not None:
            known(found.conn_type, types, f"the type of connection {conn_id}")
    return "\n".join(missing) or None


def _chosen(params: Any = None) -> list[str]:
    """The tables of a preset's run."""
    return list(params["tables"])


def _tables(tables: Sequence[TableSettings]) -> Param:
    names = [table.name for table in tables]
    return Param(names, type="array", description="Only these tables.", items={"enum": names})


def _params(*names: str) -> dict[str, Param]:
    return {name: Param(**_PARAMS[name]) for name in names}


def _schedule(due: Sequence[Asset], clock: Clock | None) -> Any:
    if not due:
        return clock
    return AssetAny(*due) if clock is None else AssetOrTimeSchedule(assets=AssetAny(*due), timetable=clock)


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
    return [*group, *(f"{key}:{value}" if value else key for key, value in table.tags.items())]
