"""The settings of maintained tables as people write them in YAML: one file for every face.

These models describe the keys. :class:`~dv_maintenance.service.tables_file.WatchConfig` checks what they mean, once the
defaults are merged into each table. A face shows ``group_name``, ``owners`` and ``tags`` if it has such things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dv_maintenance.maintenance.scheduling.window import valid_zone
from dv_maintenance.service import cron

__all__ = [
    "JOBS",
    "Folder",
    "Job",
    "NamedAsset",
    "Reads",
    "Report",
    "Schedule",
    "ScheduledJob",
    "Sensor",
    "Settings",
    "Spark",
    "Status",
    "Table",
    "Window",
    "scheduled_jobs",
]

Job = Literal["optimize", "vacuum", "manifest"]
Status = Literal["running", "stopped"]
JOBS: tuple[Job, ...] = ("optimize", "vacuum", "manifest")


def _as_texts(values: Any) -> Any:
    """YAML turns 5 into a number. So do Dagster's templates, even with quotes around it."""
    if not isinstance(values, Mapping):
        return values
    return {key: str(each) if type(each) in {int, float} else each for key, each in values.items()}


class _Written(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Reads(_Written):
    """Where the reads of tables are observed."""

    spark_events: str | None = Field(
        default=None, description="Folder or prefix of Spark's event logs (spark.eventLog.dir)."
    )
    state: str | None = Field(
        default=None,
        description="A JSON file that keeps what the event logs showed, so that only new events are read.",
    )


class NamedAsset(_Written):
    """An asset that the orchestrator's users have named themselves."""

    name: str
    uri: str | None = Field(default=None, description="By default the table's.")


class Settings(_Written):
    """What tables may have in common."""

    format: str | None = Field(default=None, description="Detected unless given.")
    storage_options: Mapping[str, str] | None = Field(
        default=None, repr=False, description="Passed to the storage. Take secrets from {{ env.NAME }}."
    )
    policy: Any = Field(default=None, description="When a file is worth rewriting, and when checks warn or fail.")
    reads: Reads | None = Field(default=None, description="Where reads of the table are observed.")
    jobs: Sequence[Job] | None = Field(default=None, description="The jobs to watch for and to schedule.")
    partitions: Any = Field(
        default=None, description="Partition columns by which maintenance can be chosen; see the documentation."
    )
    observe: bool | None = Field(
        default=None, description="false: an asset of this name exists already; only its maintenance is added."
    )
    group_name: str | None = Field(default=None, description="Group of the table and its maintenance.")
    owners: Sequence[str] | None = Field(default=None, description="Email addresses, or team:NAME.")
    tags: Mapping[str, str] | None = Field(default=None, description="Tags, added to those of the defaults.")
    pool: str | None = Field(
        default=None, description="Dagster: the pool in which its work waits; by default one of its own."
    )
    op_tags: Mapping[str, Any] | None = Field(
        default=None, description="Dagster: tags of the ops that maintain it, such as dagster-k8s/config."
    )
    run_tags: Mapping[str, str] | None = Field(
        default=None, description="Dagster: tags of runs, such as dagster/priority and dagster/max_runtime."
    )

    @field_validator("storage_options", "tags", "run_tags", mode="before")
    @classmethod
    def _texts(cls, values: Any) -> Any:
        return _as_texts(values)


class Table(Settings):
    """One table."""

    path: str = Field(description="Path or URI; relative paths start at the YAML file's folder.")
    name: str | None = Field(
        default=None, description="The table's name, its parts separated by slashes; by default the path's last part."
    )
    asset: NamedAsset | str | None = Field(
        default=None, description="Airflow: the name of the table's asset, or {name, uri}; both default to its URI."
    )


class Folder(Settings):
    """Every table below a folder or prefix."""

    path: str = Field(description="Folder or prefix; relative paths start at the YAML file's folder.")
    name: str | None = Field(default=None, description="Prefix of the tables' names.")
    include: Sequence[str] | None = Field(
        default=None, description="Patterns of paths below the folder; all by default."
    )
    exclude: Sequence[str] | None = Field(default=None, description="Patterns of paths to leave out.")


class Schedule(_Written):
    """When all tables are maintained, regardless of the sensor."""

    cron: str
    vacuum_cron: str | None = Field(
        default=None,
        description="Gives vacuums their own job and schedule, so that a failed rewrite never delays them.",
    )
    fsck_cron: str | None = Field(
        default=None,
        description="When the check fsck reads every footer and every deletion vector of all tables.",
    )
    timezone: str = "UTC"
    default_status: Status | None = Field(default=None, description="In place of the file's default_status.")

    @field_validator("cron", "vacuum_cron", "fsck_cron")
    @classmethod
    def _five_fields(cls, text: str | None) -> str | None:
        return None if text is None else cron.checked(text)

    @field_validator("timezone")
    @classmethod
    def _known(cls, zone: str) -> str:
        return valid_zone(zone)


class Sensor(_Written):
    """How often the tables' logs are inspected."""

    every_seconds: int = Field(default=60, ge=1)
    default_status: Status | None = Field(default=None, description="In place of the file's default_status.")


class Spark(_Written):
    """The engine that rewrites run on."""

    master: str = Field(default="local[*]", description="Spark master, or sc://host:15002 for Spark Connect.")
    conf: Mapping[str, str] = Field(default={}, description="Spark settings for the session that it starts.")
    engine: Literal["spark", "local", "auto"] = Field(
        default="spark", description="local: in the run's own process; auto: there if it reads at most 1 GiB of files."
    )
    resource: str | None = Field(
        default=None,
        description="Dagster: the location's own resource with a spark_session, like pyspark; instead of other keys.",
    )

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, values: Any) -> Any:
        return _as_texts(values)

    @model_validator(mode="after")
    def _one_session(self) -> Self:
        others = self.model_fields_set - {"resource"}
        if self.resource is not None and others:
            raise ValueError(f"resource {self.resource} brings its own session: omit {', '.join(sorted(others))}")
        return self


class Report(_Written):
    """When the report of all tables is refreshed."""

    every_seconds: int = Field(
        default=3600, ge=1, description="The sensor refreshes it if tables changed, at most this often."
    )
    metrics: str | None = Field(
        default=None,
        repr=False,
        description="For Prometheus: a .prom file for the textfile collector, or the URL of a push gateway.",
    )
    cron: str | None = Field(default=None, description="A schedule also refreshes it then, whatever the sensor found.")
    timezone: str = "UTC"


class Window(_Written):
    """When files may be rewritten: one run works through all tables then."""

    start: str | int = Field(description='Time of day, such as "01:00".')
    length: str = Field(description="How long it is open, such as 1h; at most a day.")
    timezone: str = "UTC"
    days: Sequence[str] | None = Field(default=None, description="The days on which it opens: mon to sun.")


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """One job over all tables. ``cron``: ``None``: started by hand only."""

    name: str
    jobs: tuple[Job, ...]
    cron: str | None
    timezone: str


def scheduled_jobs(name: str, schedule: Schedule | None) -> list[ScheduledJob]:
    """The jobs that a file describes, in order: one for everything, or vacuums apart."""
    if schedule is None or schedule.vacuum_cron is None:
        cron, timezone = (None, "UTC") if schedule is None else (schedule.cron, schedule.timezone)
        return [ScheduledJob(name, JOBS, cron, timezone)]
    return [
        ScheduledJob(name, ("optimize", "manifest"), schedule.cron, schedule.timezone),
        ScheduledJob(f"{name}_vacuum", ("vacuum",), schedule.vacuum_cron, schedule.timezone),
    ]
