"""``dv_maintenance.DvMaintainedTablesComponent``: the tables of a YAML file as Dagster definitions."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields.

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from packaging.version import Version
from pydantic import BaseModel, Field, PrivateAttr, create_model

from dv_maintenance.config import Document, Location
from dv_maintenance.dagster.assets import GROUP, build_dv_assets
from dv_maintenance.dagster.automation import build_dv_fsck_job, build_dv_job, build_dv_presets, build_dv_schedule
from dv_maintenance.dagster.backfills import build_dv_backfills
from dv_maintenance.dagster.checks import build_dv_checks
from dv_maintenance.dagster.folders import build_dv_folders_sensor
from dv_maintenance.dagster.internals import public
from dv_maintenance.dagster.lake import build_dv_lake_report
from dv_maintenance.dagster.night import build_dv_night
from dv_maintenance.dagster.op_spec import DvOpSpec
from dv_maintenance.dagster.resources import spark_resource
from dv_maintenance.dagster.scaffolder import DvScaffolder
from dv_maintenance.dagster.schema import with_precise_schema
from dv_maintenance.dagster.sensor import build_dv_sensor
from dv_maintenance.dagster.translator import DvTranslator, WrittenTranslator
from dv_maintenance.errors import UsageError
from dv_maintenance.service import settings
from dv_maintenance.service.file_check import remarks
from dv_maintenance.service.listing import Listing
from dv_maintenance.service.tables_file import TableSettings, WatchConfig

if TYPE_CHECKING:
    from dagster_shared.yaml_utils.source_position import SourcePositionTree


def _rendered(context: dg.ResolutionContext, value: Any) -> Any:
    """Plain data with templates resolved. Text without a template stays text: Dagster would make 5 of "5"."""
    if isinstance(value, dict):
        return {key: _rendered(context.at_path(key), each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rendered(context.at_path(at), each) for at, each in enumerate(value)]
    return context.resolve_value(value) if isinstance(value, str) and re.search(r"\{[{%]", value) else value


Translation = Annotated[TranslationFn[Any], TranslationFnResolver[Any](lambda data: {"table": data[0], "job": data[1]})]

if TYPE_CHECKING:

    class _Keys(BaseModel):
        folders: Any
else:
    # The keys of the file, as plain data: WatchConfig checks them. Dagster does not pass on a default that is not a
    # scalar.
    _Key = Annotated[Any, dg.Resolver(_rendered, model_field_type=Any)]
    _Keys = create_model(
        "_Keys", **{key: (_Key, Field(default=(), repr=False)) for key in WatchConfig.model_fields if key != "name"}
    )


if TYPE_CHECKING or Version(dg.__version__) >= Version("1.12"):
    from dv_maintenance.dagster.state import ListedOnce as _Listing
else:
    # Before Dagster 1.12 folders are searched at each load.
    from dv_maintenance.dagster.stateless import ListedAtEachLoad as _Listing


@public
@dg.scaffold_with(DvScaffolder)
class DvMaintainedTablesComponent(_Listing, _Keys):
    """Maintained tables: their assets, checks, sensor, jobs and schedules.

    Sensor and schedules start stopped, unless ``default_status`` is ``running``. ``translation`` changes keys and
    specs, and so may a subclass that overrides ``get_translator``.
    """

    name: str = WatchConfig.model_fields["name"].default
    translation: Translation | None = Field(
        default=None,
        description="Attributes of the assets; their templates see the table, and the job (null: the table itself).",
    )
    op: DvOpSpec | None = Field(default=None, description="How the ops run: their tags, pool and retries.")
    _source: Any = PrivateAttr(default=None)

    @classmethod
    def get_model_cls(cls) -> type[BaseModel] | None:
        model = super().get_model_cls()
        return None if model is None else with_precise_schema(model)

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Self:
        made: Self = super().resolve_from_model(context, model)
        # The line of every key: it is not available any more when the definitions are built.
        made._source = context.source_position_tree
        return made

    @public
    def get_translator(self) -> DvTranslator:
        """Override it to change keys and specs in ways that ``translation`` can't."""
        return DvTranslator()

    def has_folders(self) -> bool:
        """Whether a search is worth keeping: there are folders, and a YAML file from which relative ones start."""
        return bool(self.folders) and self._source is not None

    def search(self) -> str:
        """Search the folders, and return what they hold as text; see ``Listing``.

        Raises
        ------
        UsageError
            the definitions would not load with it.
        StorageError
            a folder can't be listed.
        """
        document = self._document()
        config = WatchConfig.of(document)
        listing = Listing({})
        rooted = config.rooted(os.path.dirname(os.path.abspath(document.source)))
        rooted.located(document.where, listing.finder(config, rooted))
        return listing.to_json()

    def build_defs_from_state(self, context: dg.ComponentLoadContext, state_path: Path | None) -> dg.Definitions:
        """Opens no table. Searches the folders that ``state_path`` lacks; all of them if it is ``None``.

        Raises
        ------
        UsageError
            names the YAML file and the line.
        StorageError
            a folder can't be listed.
        """
        document = self._document()
        written = WatchConfig.of(document)
        for remark in remarks(written, document):
            # `dg check defs` shows no other logger's lines, and no Python warnings.
            dg.get_dagster_logger().warning(remark)
        config = written.rooted(_folder(context, document))
        listing = Listing({}) if state_path is None else Listing.from_json(state_path.read_text(encoding="utf-8"))
        located = config.located(document.where, listing.finder(written, config))

        translator = self.get_translator()
        if self.translation is not None:
            translator = WrittenTranslator(translator, self.translation)
        op = self.op or DvOpSpec()
        tables = translator.tables(op.of(table) for _, table in located)
        assets = [
            each
            for (place, _), table in zip(located, tables, strict=True)
            for each in _assets(table, op, document.where(place))
        ]
        tags = config.defaults.run_tags
        scheduled = settings.scheduled_jobs(config.name, config.schedule)
        jobs = [build_dv_job(tables, name=each.name, jobs=each.jobs, tags=tags) for each in scheduled]
        schedules = [
            _schedule(config, job, each.cron, each.timezone)
            for each, job in zip(scheduled, jobs, strict=True)
            if each.cron is not None
        ]
        jobs += build_dv_presets(tables, name=config.name, tags=tags)
        if config.schedule is not None and config.schedule.fsck_cron is not None:
            fsck = build_dv_fsck_job(tables, name=f"{config.name}_fsck", tags=tags)
            jobs.append(fsck)
            schedules.append(_schedule(config, fsck, config.schedule.fsck_cron, config.schedule.timezone))
        if any(table.partitions is not None and "optimize" in table.jobs for table in tables):
            backfills = build_dv_backfills(tables, name=f"{config.name}_backfills", tags=tags)
            jobs.append(backfills)
            if config.schedule is not None and config.schedule.cron is not None and not config.at_night:
                schedules.append(_schedule(config, backfills, config.schedule.cron, config.schedule.timezone))
        if config.at_night:
            night = build_dv_night(
                tables,
                window=config.window,
                budget=config.budget,
                name=f"{config.name}_night",
                tags=tags,
                op_tags=op.tags,
                retry_policy=op.retries,
            )
            jobs.append(night)
            if config.window is not None:
                schedules.append(_schedule(config, night, config.window.cron, config.window.timezone))
        assets = translator.assets(tables, assets)
        report = None
        if config.report is not None:
            report = build_dv_lake_report(
                tables,
                name=f"{config.name}/lake_report",
                group_name=config.defaults.group_name or GROUP,
                owners=config.defaults.owners,
                tags=config.defaults.tags,
                metrics=config.report.metrics,
            )
            assets = [*assets, report]
            schedules += _report_schedule(report, f"{config.name}_report_schedule", config)
        return dg.Definitions(
            assets=assets,
            asset_checks=build_dv_checks(tables),
            jobs=jobs,
            schedules=schedules,
            sensors=[
                *_sensors(config, tables, report),
                *_folder_sensors(config, located, document, kept=state_path is not None),
            ],
            resources={} if config.spark is None else {"spark": spark_resource(config.spark)},
        )

    def _document(self) -> Document:
        """The settings as plain data, with the lines they were written in."""
        data = self.model_dump(mode="json", exclude_unset=True, include=set(WatchConfig.model_fields))
        tree: SourcePositionTree | None = self._source
        if tree is None:
            return Document(data, type(self).__name__)
        return Document(data, tree.position.filename, dict(_lines(tree.children.get("attributes", tree), ())))


class DvMaintainedTables(DvMaintainedTablesComponent):
    """The old name of ``dv_maintenance.DvMaintainedTablesComponent``."""

    def build_defs_from_state(self, context: dg.ComponentLoadContext, state_path: Path | None) -> dg.Definitions:
        dg.get_dagster_logger().warning(
            f"{self._document().source}: DvMaintainedTables is now called DvMaintainedTablesComponent. The old name "
            "still works, and a later release removes it: change `type:`, or the import"
        )
        return super().build_defs_from_state(context, state_path)


def _assets(table: TableSettings, op: DvOpSpec, where: str) -> list[dg.AssetsDefinition]:
    """``where``: file and line of the table's entry, for errors in what only Dagster checks."""
    try:
        return build_dv_assets([table], retry_policy=op.retries)
    except (dg.DagsterInvalidDefinitionError, dg.DagsterInvariantViolationError) as error:
        raise UsageError(f"{table.name}: {error} ({where})") from error


def _sensors(
    config: WatchConfig, tables: list[TableSettings], report: dg.AssetsDefinition | None
) -> Iterator[dg.SensorDefinition]:
    if config.sensor is not None:
        every = config.sensor.every_seconds
        yield build_dv_sensor(
            tables,
            name=f"{config.name}_sensor",
            minimum_interval_seconds=every,
            rewrites=not config.at_night,
            report=report,
            report_every_seconds=3600 if config.report is None else config.report.every_seconds,
            default_status=_sensor_status(config, config.sensor),
        )


def _folder_sensors(
    config: WatchConfig, located: list[tuple[Location, TableSettings]], document: Document, *, kept: bool
) -> Iterator[dg.SensorDefinition]:
    if config.sensor is not None and config.folders:
        yield build_dv_folders_sensor(
            lambda: [table for _, table in config.located(document.where)],
            [table for _, table in located],
            name=f"{config.name}_folders_sensor",
            kept=kept,
            default_status=_sensor_status(config, config.sensor),
        )


def _sensor_status(config: WatchConfig, sensor: settings.Sensor) -> dg.DefaultSensorStatus:
    return dg.DefaultSensorStatus[(sensor.default_status or config.default_status).upper()]


def _schedule_status(config: WatchConfig) -> dg.DefaultScheduleStatus:
    own = None if config.schedule is None else config.schedule.default_status
    return dg.DefaultScheduleStatus[(own or config.default_status).upper()]


def _schedule(config: WatchConfig, job: Any, cron: str, timezone: str) -> dg.ScheduleDefinition:
    return build_dv_schedule(
        job,
        name=f"{job.name}_schedule",
        cron_schedule=cron,
        execution_timezone=timezone,
        default_status=_schedule_status(config),
    )


def _report_schedule(report: dg.AssetsDefinition, name: str, config: WatchConfig) -> Iterator[dg.ScheduleDefinition]:
    when = config.report
    if when is not None and when.cron is not None:
        yield dg.ScheduleDefinition(
            name=name,
            target=dg.AssetSelection.assets(report.key),
            cron_schedule=when.cron,
            execution_timezone=when.timezone,
            default_status=_schedule_status(config),
        )


def _lines(tree: "SourcePositionTree", location: Location) -> Iterator[tuple[Location, int]]:
    yield location, tree.position.start.line
    for key, child in tree.children.items():
        yield from _lines(child, (*location, key))


def _folder(context: dg.ComponentLoadContext, document: Document) -> str:
    """The folder of the YAML file or of the Python module, where relative paths start."""
    if document.lines:
        return os.path.dirname(os.path.abspath(document.source))
    return str(context.path if context.path.is_dir() else context.path.parent)
