"""The keys of a file of tables that concern all of them; those of a table are in ``tables_file``.

These models are the only ones: the component's schema and the tables of the documentation are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dv_maintenance.maintenance.scheduling.window import valid_zone
from dv_maintenance.service import cron

Job = Literal["optimize", "vacuum", "manifest"]
Status = Literal["running", "stopped"]
JOBS: tuple[Job, ...] = ("optimize", "vacuum", "manifest")


def as_texts(values: Any) -> Any:
    """YAML turns 5 into a number. So do Dagster's templates, even with quotes around it."""
    if not isinstance(values, Mapping):
        return values
    return {key: str(each) if type(each) in {int, float} else each for key, each in values.items()}


class Keys(BaseModel):
    """A mapping in YAML that has only these keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reads(Keys):
    """Where the reads of tables are observed."""

    spark_events: str | None = Field(
        default=None, description="Folder or prefix of Spark's event logs (spark.eventLog.dir)."
    )
    state: str | None = Field(
        default=None,
        description="A JSON file that keeps what the event logs showed, so that only new events are read.",
    )


class NamedAsset(Keys):
    """An asset that the orchestrator's users have named themselves."""

    name: str
    uri: str | None = Field(default=None, description="By default the table's.")


class Schedule(Keys):
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


class Sensor(Keys):
    """How often the tables' logs are inspected."""

    every_seconds: int = Field(default=60, ge=1)
    default_status: Status | None = Field(default=None, description="In place of the file's default_status.")


class Spark(Keys):
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
        return as_texts(values)

    @model_validator(mode="after")
    def _one_session(self) -> Self:
        others = self.model_fields_set - {"resource"}
        if self.resource is not None and others:
            raise ValueError(f"resource {self.resource} brings its own session: omit {', '.join(sorted(others))}")
        return self


class Report(Keys):
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
