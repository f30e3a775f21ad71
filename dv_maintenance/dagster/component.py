"""``dv_maintenance.DvMaintainedTables``: what Python users build, from YAML."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields.

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import dagster as dg
from pydantic import BaseModel, Field, PrivateAttr

from dv_maintenance.config import Document, Location, validate
from dv_maintenance.dagster.assets import build_dv_assets
from dv_maintenance.dagster.automation import build_dv_job, build_dv_schedule
from dv_maintenance.dagster.checks import build_dv_checks
from dv_maintenance.dagster.resources import SparkResource
from dv_maintenance.dagster.scaffolder import DvScaffolder
from dv_maintenance.dagster.sensor import build_dv_sensor
from dv_maintenance.dagster.translator import DvTranslator
from dv_maintenance.errors import UsageError
from dv_maintenance.service.policies import Policy
from dv_maintenance.service.tables_file import Job, WatchConfig, WatchedTable

if TYPE_CHECKING:
    from dagster_shared.yaml_utils.source_position import SourcePositionTree

__all__ = ["DvMaintainedTables"]

# What only Dagster wants to know; the rest is for `WatchConfig`.
_SHOWN = frozenset({"group_name", "owners", "tags"})

_JOBS: tuple[Job, ...] = ("optimize", "vacuum", "manifest")


def _as_it_is(context: dg.ResolutionContext, value: Any) -> Any:
    del context
    return value


# Any: of a model that is not of its own making, Dagster refuses fields with constraints. In YAML it is a Policy.
PolicyAttributes = Annotated[Any, dg.Resolver(_as_it_is, model_field_type=Policy)]


class TableSettings(dg.Model, dg.Resolvable):
    """What tables may have in common."""

    format: str | None = Field(default=None, description="Found out unless given.")
    storage_options: dict[str, str] | None = Field(
        default=None, repr=False, description="Passed to the storage. Take secrets from {{ env.NAME }}."
    )
    policy: PolicyAttributes = Field(
        default=None, description="When a file is worth rewriting, and when checks complain."
    )
    jobs: list[Literal["optimize", "vacuum", "manifest"]] | None = Field(default=None, description="Work to look for.")
    partitions: str | list[Any] | dict[str, Any] | None = Field(
        default=None, description="Partition columns by which maintenance can be chosen; see the documentation."
    )
    observe: bool | None = Field(
        default=None, description="false: the location has an asset of this key already; only its maintenance is added."
    )
    group_name: str | None = Field(default=None, description="Asset group of the table and its maintenance.")
    owners: list[str] | None = Field(default=None, description="Email addresses, or team:NAME.")
    tags: dict[str, str] | None = Field(default=None, description="Asset tags, on top of those of the defaults.")


class TableAttributes(TableSettings):
    """One table."""

    path: str = Field(description="Path or URI; relative ones start at the YAML file's folder.")
    name: str | None = Field(
        default=None, description="Asset key, parts divided by slashes; else the path's last part."
    )


class FolderAttributes(TableSettings):
    """Every table below a folder or prefix."""

    path: str = Field(description="Folder or prefix; relative ones start at the YAML file's folder.")
    name: str | None = Field(default=None, description="Goes in front of the tables' paths below the folder.")
    include: list[str] | None = Field(default=None, description="Patterns of paths below the folder; all by default.")
    exclude: list[str] | None = Field(default=None, description="Patterns of paths to leave out.")


class ScheduleAttributes(dg.Model, dg.Resolvable):
    """When all tables are maintained, whatever the sensor saw."""

    cron: str
    vacuum_cron: str | None = Field(
        default=None,
        description="Vacuums have a job and a schedule of their own, so that no rewrite that fails holds them up.",
    )
    timezone: str = "UTC"


class SensorAttributes(dg.Model, dg.Resolvable):
    """How often the sensor looks at the tables' logs."""

    every_seconds: int = Field(default=60, ge=1)


class SparkAttributes(dg.Model, dg.Resolvable):
    """The location's ``spark`` resource."""

    master: str = Field(default="local[*]", description="Spark master, or sc://host:15002 for Spark Connect.")
    conf: dict[str, str] = Field(default={})
    engine: Literal["spark", "local"] = "spark"


@dg.scaffold_with(DvScaffolder)
class DvMaintainedTables(dg.Component, dg.Model, dg.Resolvable):
    """Tables kept free of deletion vectors: their assets, checks, sensor, job and schedule.

    Sensor and schedule start stopped. A subclass may override :meth:`get_translator` to change keys and specs.
    """

    name: str = Field(
        default="dv_maintenance", description="Name of the job; sensor and schedule have it in front of theirs."
    )
    defaults: TableSettings | None = Field(
        default=None, description="Settings of every table that has none of its own."
    )
    tables: list[TableAttributes] | None = None
    folders: list[FolderAttributes] | None = None
    schedule: ScheduleAttributes | None = None
    sensor: SensorAttributes | None = Field(default=SensorAttributes(), description="null: no sensor.")
    spark: SparkAttributes | None = Field(
        default=None,
        description="Left out, the location must have a resource spark: a SparkResource, or what has a spark_session.",
    )

    _source: Any = PrivateAttr(default=None)

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Self:
        made: Self = super().resolve_from_model(context, model)
        # Where every key is in the YAML file: gone by the time the definitions are built.
        made._source = context.source_position_tree
        return made

    def get_translator(self) -> DvTranslator:
        """How keys and specs differ from the usual."""
        return DvTranslator()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Finds the tables of folders; opens none.

        Raises
        ------
        UsageError : names the YAML file and the line.
        StorageError : a folder can't be listed.
        """
        document = self._document()
        config = validate(WatchConfig, document, what="tables to maintain").rooted(_folder(context, document))
        located = config.located(document.where)

        translator = self.get_translator()
        tables = translator.tables(table for _, table in located)
        assets = self._as_written(tables, [at for at, _ in located], document).assets(tables, build_dv_assets(tables))
        apart = self.schedule is not None and self.schedule.vacuum_cron is not None
        job = build_dv_job(tables, name=self.name, jobs=("optimize", "manifest") if apart else _JOBS)
        jobs = [job, *([build_dv_job(tables, name=f"{self.name}_vacuum", jobs=("vacuum",))] if apart else [])]
        return dg.Definitions(
            assets=translator.assets(tables, assets),
            asset_checks=build_dv_checks(tables),
            jobs=jobs,
            schedules=list(self._schedules(*jobs)),
            sensors=list(self._sensors(tables)),
            resources={} if self.spark is None else {"spark": SparkResource(**self.spark.model_dump())},
        )

    def _schedules(self, *jobs: Any) -> Iterator[dg.ScheduleDefinition]:
        if self.schedule is None:
            return
        for job, cron in zip(jobs, (self.schedule.cron, self.schedule.vacuum_cron), strict=False):
            yield build_dv_schedule(
                job, name=f"{job.name}_schedule", cron_schedule=cron or "", execution_timezone=self.schedule.timezone
            )

    def _sensors(self, tables: list[WatchedTable]) -> Iterator[dg.SensorDefinition]:
        if self.sensor is not None:
            yield build_dv_sensor(
                tables, name=f"{self.name}_sensor", minimum_interval_seconds=self.sensor.every_seconds
            )

    def _document(self) -> Document:
        """What ``WatchConfig`` has to know, with the lines it was written in."""
        data: dict[str, Any] = {
            key: [_given(each, without=_SHOWN) for each in entries]
            for key, entries in (("tables", self.tables), ("folders", self.folders))
            if entries is not None
        }
        if self.defaults is not None:
            data["defaults"] = _given(self.defaults, without=_SHOWN)
        tree: SourcePositionTree | None = self._source
        if tree is None:
            return Document(data, type(self).__name__)
        return Document(data, tree.position.filename, dict(_lines(tree.children.get("attributes", tree), ())))

    def _as_written(self, tables: list[WatchedTable], places: list[Location], document: Document) -> DvTranslator:
        """Groups, owners and tags as this component's attributes say."""
        shared = {} if self.defaults is None else _given(self.defaults, only=_SHOWN)
        shown = {}
        for table, place in zip(tables, places, strict=True):
            entries: Any = getattr(self, str(place[0]))
            own = _given(entries[place[1]], only=_SHOWN)
            tags = {**(shared.get("tags") or {}), **(own.get("tags") or {})}
            shown[table.name] = ({**shared, **own, "tags": tags}, document.where(place))
        return _AsWritten(shown)


class _AsWritten(DvTranslator):
    def __init__(self, shown: Mapping[str, tuple[Mapping[str, Any], str]]) -> None:
        self._shown = shown

    def get_asset_spec(self, table: WatchedTable, job: Job | None, spec: dg.AssetSpec) -> dg.AssetSpec:
        del job
        shown, where = self._shown[table.name]
        try:
            if shown.get("group_name"):
                spec = spec.replace_attributes(group_name=shown["group_name"])
            return spec.merge_attributes(owners=shown.get("owners") or (), tags=shown["tags"])
        except (dg.DagsterInvalidDefinitionError, dg.DagsterInvariantViolationError) as error:
            raise UsageError(f"{table.name}: {error} ({where})") from error


def _given(model: BaseModel, *, only: frozenset[str] | None = None, without: frozenset[str] = frozenset()) -> Any:
    """What was given, and not null."""
    values = model.model_dump(mode="json", exclude=set(without), exclude_unset=True)
    return {key: value for key, value in values.items() if value is not None and (only is None or key in only)}


def _lines(tree: "SourcePositionTree", location: Location) -> Iterator[tuple[Location, int]]:
    yield location, tree.position.start.line
    for key, child in tree.children.items():
        yield from _lines(child, (*location, key))


def _folder(context: dg.ComponentLoadContext, document: Document) -> str:
    """Where relative paths start: the folder of the YAML file, or of the Python module."""
    if document.lines:
        return os.path.dirname(os.path.abspath(document.source))
    return str(context.path if context.path.is_dir() else context.path.parent)
