"""The file of maintained tables, checked: defaults, overrides per table, folders of tables, and when to do what.

Every face reads the same file: ``TABLES.yaml``, or the ``defs.yaml`` of Dagster's component, whose ``attributes`` have
the same keys. Example::

    name: lake
    defaults:
      storage_options: {region: eu-central-1, secret_access_key: "${SECRET}"}
      policy: {max_deleted_ratio: 0.1}
    tables:
      - name: orders
        path: s3://lake/orders
        policy: {target_file_size: 512MiB}
        jobs: [optimize, vacuum, manifest]
        partitions: [{name: day, every: day, start: 2026-01-01}, region]
        owners: ["team:sales"]
    folders:
      - path: s3://lake/raw
        exclude: ["*/scratch/*"]
    schedule: {cron: "0 3 * * *", timezone: UTC}
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dv_maintenance.config import Document, Duration, Location, expand_env, load_documents, validate
from dv_maintenance.errors import DvMaintenanceError, UsageError
from dv_maintenance.maintenance.planning.partitioning import PartitioningSetting
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.scheduling.window import Window
from dv_maintenance.service import settings
from dv_maintenance.service.settings import Job
from dv_maintenance.storage import absolute_uri
from dv_maintenance.tables.find import FoundTable, find_tables
from dv_maintenance.tables.registry import formats, known_format

__all__ = ["Entry", "Job", "TableSettings", "TablesFolder", "WatchConfig"]

# For these keys, a table's values extend the defaults instead of replacing them.
_MERGED: Final = ("policy", "checks", "storage_options", "tags", "reads", "op_tags", "run_tags")
# Around the attributes of a component in a file of Dagster's.
_COMPONENT: Final = frozenset({"type", "attributes"})
# Where Dagster keeps what a search of the folders found, and what it calls its assets.
_DAGSTERS_OWN: Final = frozenset({"defs_state", "op", "translation"})
# Dagster's templates; only environment variables mean something without Dagster.
_TEMPLATE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_ENV: Final = re.compile(r"\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*")


class Entry(settings.Keys):
    """What an entry for one table and one for a folder have in common. A face shows ``group_name``, ``owners`` and
    ``tags`` if it has such things.
    """

    format: str | None = Field(default=None, description="Detected unless given.")
    storage_options: Mapping[str, Annotated[str, AfterValidator(expand_env)]] = Field(
        default_factory=dict,
        repr=False,
        description="Passed to the storage. Take secrets from {{ env.NAME }} or ${NAME}.",
    )
    policy: Policy = Field(
        default_factory=Policy, description="When a file is worth rewriting, and when checks warn or fail."
    )
    reads: settings.Reads | None = Field(default=None, description="Where reads of the table are observed.")
    jobs: tuple[Job, ...] = Field(
        default=("optimize", "vacuum"),
        description="The jobs to watch for and to schedule. Formats with manifests of their own need no manifest.",
    )
    partitions: PartitioningSetting | None = Field(
        default=None, description="Partition columns by which maintenance can be chosen; see the documentation."
    )
    observe: bool = Field(
        default=True, description="false: an asset of this name exists already; only its maintenance is added."
    )
    group_name: str | None = Field(default=None, description="Group of the table and its maintenance.")
    owners: tuple[str, ...] = Field(default=(), description="Email addresses, or team:NAME.")
    tags: Mapping[str, str] = Field(default_factory=dict, description="Tags, added to those of the defaults.")
    pool: str | None = Field(
        default=None,
        description="The pool in which its work waits. Dagster: by default one of its own; Airflow: it must exist.",
    )
    op_tags: Mapping[str, Any] = Field(
        default_factory=dict, description="Dagster: tags of the ops that maintain it, such as dagster-k8s/config."
    )
    run_tags: Mapping[str, str] = Field(
        default_factory=dict, description="Dagster: tags of runs, such as dagster/priority and dagster/max_runtime."
    )

    @field_validator("storage_options", "tags", "run_tags", mode="before")
    @classmethod
    def _texts(cls, values: Any) -> Any:
        return settings.as_texts(values)

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_built_in_default(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {key: value for key, value in values.items() if value is not None}

    @field_validator("format")
    @classmethod
    def _registered(cls, format: str | None) -> str | None:
        if format is not None and known_format(format) is None:
            raise ValueError(f"unknown table format {format!r}; use {', '.join(each.name for each in formats())}")
        return format

    @field_validator("jobs")
    @classmethod
    def _that_there_are(cls, jobs: tuple[Job, ...], info: ValidationInfo) -> tuple[Job, ...]:
        return _jobs_of(info.data.get("format"), jobs)

    @model_validator(mode="after")
    def _only_what_the_format_has(self) -> Self:
        if self.partitions is not None and not _is_partitioned(self.format):
            raise ValueError(f"{self.format} tables have no partitions: leave out 'partitions'")
        return self


class TableSettings(Entry):
    """One table."""

    path: str = Field(min_length=1, description="Path or URI; relative paths start at the YAML file's folder.")
    name: str = Field(
        default="",
        min_length=1,
        description="The table's name, its parts separated by slashes; by default the path's last part.",
    )
    asset: settings.NamedAsset | str | None = Field(
        default=None, description="Airflow: the name of the table's asset, or {name, uri}; both default to its URI."
    )
    _job_names: Mapping[Job, str] = PrivateAttr(default_factory=dict)

    @property
    def job_names(self) -> Mapping[Job, str]:
        """Names that a face gives to the table's jobs, where they differ from its own rule."""
        return self._job_names

    def with_job_names(self, names: Mapping[Job, str]) -> Self:
        """The same table under these names of its jobs."""
        made = self.model_copy()
        made._job_names = names  # noqa: SLF001 (its own kind)
        return made

    @model_validator(mode="before")
    @classmethod
    def _name_from_path(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "name" not in values and isinstance(values.get("path"), str):
            return {**values, "name": values["path"].rstrip("/").rsplit("/", 1)[-1]}
        return values


class TablesFolder(Entry):
    """Every table below a folder or prefix. A table's name is its path below the folder, prefixed with ``name`` if
    given.
    """

    path: str = Field(min_length=1, description="Folder or prefix; relative paths start at the YAML file's folder.")
    name: str = Field(default="", description="Prefix of the tables' names.")
    include: tuple[str, ...] = Field(
        default=("*",), description="Patterns of paths below the folder; * matches anything, including slashes."
    )
    exclude: tuple[str, ...] = Field(default=(), description="Patterns of paths to leave out.")

    def find(self, on_error: Callable[[str, DvMaintenanceError], None] | None = None) -> list[TableSettings]:
        """Its tables, by path. ``on_error``: of ``find_tables``. Raises UsageError if there are none; StorageError."""
        return self.among(find_tables(self.path, self.storage_options, on_error))

    def among(self, found: Iterable[FoundTable]) -> list[TableSettings]:
        """Its tables among those that a search below it found. Raises UsageError if there are none."""
        below = [each for each in found if self._takes(each)]
        if not below:
            raise UsageError(
                "the folder contains no table, or none that matches the patterns",
                table=absolute_uri(self.path),
                next_step="check the path, the patterns, and the storage options if it is in object storage",
            )
        shared = {key: getattr(self, key) for key in Entry.model_fields}
        return [self._table(each, shared) for each in below]

    def _takes(self, found: FoundTable) -> bool:
        """Whether patterns and ``format`` select a table; a folder may have tables of several formats."""
        if self.format not in {None, found.format}:
            return False
        return any(fnmatchcase(found.path, each) for each in self.include) and not any(
            fnmatchcase(found.path, each) for each in self.exclude
        )

    def _table(self, found: FoundTable, shared: Mapping[str, Any]) -> TableSettings:
        path = found.path
        place = f"{self.path.rstrip('/')}/{path}" if path else self.path
        last = place.rstrip("/").rsplit("/", 1)[-1]
        name = "/".join(part for part in (self.name.strip("/"), path or last) if part)
        if self.partitions is not None and not _is_partitioned(found.format):
            raise UsageError(
                f"'partitions' is set for a {found.format} table, whose format has no partitions",
                table=absolute_uri(place),
                next_step="exclude the table here and list it under 'tables', or give the folder a format",
            )
        # Not validated again: environment variables in the options are expanded already.
        known = {"format": found.format, "jobs": _jobs_of(found.format, self.jobs)}
        return TableSettings.model_construct(name=name, path=place, **{**shared, **known})


class WatchConfig(settings.Keys):
    """The whole file. The listed entry wins for a table that is also found in a folder."""

    name: str = Field(
        default="dv_maintenance",
        min_length=1,
        description="Name of the job; names of the sensor and the schedule begin with it.",
    )
    defaults: Entry = Field(default_factory=Entry, description="Settings of every table that does not set its own.")
    tables: tuple[TableSettings, ...] = Field(default=(), description="Tables, one by one.")
    folders: tuple[TablesFolder, ...] = Field(default=(), description="Folders whose tables are found by a search.")
    schedule: settings.Schedule | None = Field(default=None, description="null: jobs are started by hand.")
    sensor: settings.Sensor | None = Field(default=settings.Sensor(), description="null: no sensor.")
    spark: settings.Spark | None = Field(
        default=None,
        description="Dagster: without it, the location needs a resource spark: a SparkResource, or one with a "
        "spark_session.",
    )
    default_status: settings.Status = Field(
        default="stopped",
        description="running: sensors and schedules run as soon as they are loaded, and Airflow's DAGs are not paused.",
    )
    window: Window | None = Field(
        default=None, description="When files may be rewritten: one run works through all tables then."
    )
    budget: Duration | None = Field(
        default=None, gt=0, description="How long that run may work in one window, such as 30m."
    )
    report: settings.Report | None = Field(
        default=None, description="One asset (in Airflow a DAG) that lists all tables, the worst first."
    )

    @property
    def at_night(self) -> bool:
        """Whether rewrites wait for the one run within window and budget."""
        return self.window is not None or self.budget is not None

    @classmethod
    def load(cls, path: str) -> WatchConfig:
        """From a YAML file, with the folders' tables in ``tables``; relative paths start at the file's folder. Of
        a file of Dagster's component the ``attributes`` are read. ``{{ env.NAME }}`` is replaced by an environment
        variable anywhere in the file.

        Raises
        ------
        UsageError
            names the key, the file and the line.
        StorageError
            a folder can't be listed.
        """
        configs = cls.load_all(path)
        if len(configs) != 1:
            raise UsageError(f"{path} has {len(configs)} documents instead of one", next_step="split the file")
        return configs[0]

    @classmethod
    def load_all(cls, path: str) -> list[WatchConfig]:
        """Every document of a YAML file; see ``load``."""
        return [config.with_found(document.where) for config, document in cls.read(path)]

    @classmethod
    def read(cls, path: str) -> list[tuple[WatchConfig, Document]]:
        """Every document of a YAML file without searching folders, and the document without Dagster's own keys. Raises
        UsageError that names the key, the file and the line.
        """
        folder = os.path.dirname(os.path.abspath(path))
        documents = [_without_dagster(each) for each in load_documents(path)]
        return [(cls.of(each).rooted(folder), each) for each in documents]

    @classmethod
    def of(cls, document: Document) -> WatchConfig:
        """From plain data, without searching folders. Raises UsageError that names the key, the file and the line."""
        config = validate(cls, document, what="tables to maintain")
        _refuse_duplicates(config, document)
        return config

    def rooted(self, folder: str) -> WatchConfig:
        """The same with relative paths resolved against a folder."""
        return self.model_copy(
            update={
                "tables": tuple(each.model_copy(update=_paths(each, folder)) for each in self.tables),
                "folders": tuple(each.model_copy(update=_paths(each, folder)) for each in self.folders),
            }
        )

    def with_found(self, where: Callable[[Location], str]) -> WatchConfig:
        """The same with the folders' tables added after the listed ones. See ``located``."""
        return self.model_copy(update={"tables": tuple(table for _, table in self.located(where))})

    def located(
        self, where: Callable[[Location], str], find: Callable[[TablesFolder], list[TableSettings]] = TablesFolder.find
    ) -> list[tuple[Location, TableSettings]]:
        """The listed tables, then those in the folders, each with the key of its entry, such as ``("folders", 0)``.

            where : returns file and line of a key, for errors.
            find : returns the tables of a folder.

        Raises
        ------
        UsageError
            a folder has no tables, or a name appears twice.
        StorageError
            a folder can't be listed.
        """
        found: list[tuple[Location, TableSettings]] = [(("tables", at), each) for at, each in enumerate(self.tables)]
        places = {table.name: absolute_uri(table.path) for table in self.tables}
        known = set(places.values())
        for at, folder in enumerate(self.folders):
            try:
                tables = find(folder)
            except DvMaintenanceError as error:
                error.message += f" ({where(('folders', at, 'path'))})"
                raise
            for table in tables:
                uri = absolute_uri(table.path)
                if uri in known:
                    continue
                if table.name in places:
                    raise UsageError(
                        f"{uri} would have the name {table.name!r} of {places[table.name]} ({where(('folders', at))})",
                        next_step="give the folder a name, which becomes the prefix of its tables' names",
                    )
                known.add(uri)
                places[table.name] = uri
                found.append((("folders", at), table))
        return found

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        # A sensor exists unless it is null.
        values = {key: value for key, value in values.items() if value is not None or key == "sensor"}
        defaults = values.get("defaults")
        if not isinstance(defaults, Mapping):
            return values
        lists = {key: values[key] for key in ("tables", "folders") if isinstance(values.get(key), list)}
        return {**values, **{key: [_merged(defaults, each) for each in lists[key]] for key in lists}}

    @model_validator(mode="after")
    def _not_empty(self) -> WatchConfig:
        if not self.tables and not self.folders:
            raise ValueError("no tables: name some under 'tables', or a folder of them under 'folders'")
        return self


def _refuse_duplicates(config: WatchConfig, document: Document) -> None:
    """Raises UsageError with the lines of two tables of one name, or of one path."""
    names: dict[str, int] = {}
    paths: dict[str, int] = {}
    for at, table in enumerate(config.tables):
        for known, value, what in (
            (paths, absolute_uri(table.path), "have the path"),
            (names, table.name, "are called"),
        ):
            first = known.setdefault(value, at)
            if first != at:
                places = " and ".join(document.where(("tables", each)) for each in (first, at))
                raise UsageError(
                    f"tables to maintain: two tables {what} {value!r} ({places})",
                    next_step="give one of them a name" if known is names else "list the table once",
                )


def _without_dagster(document: Document) -> Document:
    """The keys that every face reads, from a file with or without Dagster's own around them."""
    data, lines = document.data, document.lines
    if isinstance(data, Mapping) and data.keys() >= _COMPONENT:
        lines = {place[1:]: line for place, line in lines.items() if place[:1] == ("attributes",)}
        attributes = data["attributes"]
        if isinstance(attributes, Mapping):
            attributes = {key: each for key, each in attributes.items() if key not in _DAGSTERS_OWN}
        document = Document(attributes, document.source, lines)
    return Document(_resolved(document.data, (), document), document.source, lines)


def _resolved(value: Any, place: Location, document: Document) -> Any:
    """Plain data with templates replaced by environment variables. Raises UsageError for any other template."""
    if isinstance(value, Mapping):
        return {key: _resolved(each, (*place, str(key)), document) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, (*place, at), document) for at, each in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        env = _ENV.fullmatch(match[1])
        if env is None:
            raise UsageError(
                f"a template that only Dagster can resolve ({document.where(place)})",
                next_step="use {{ env.NAME }} in files that Airflow or the command line also reads",
            )
        if env[1] not in os.environ:
            raise UsageError(f"environment variable {env[1]} is not set ({document.where(place)})")
        return os.environ[env[1]]

    return _TEMPLATE.sub(variable, value)


def _jobs_of(format: str | None, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Without ``manifest`` where the format is known to have no symlink manifests."""
    known = known_format(format)
    return jobs if known is None or known.symlink_manifests else tuple(job for job in jobs if job != "manifest")


def _is_partitioned(format: str | None) -> bool:
    """Whether tables of the format can be partitioned; true while the format is unknown."""
    known = known_format(format)
    return known is None or known.partitions


def _merged(defaults: Mapping[str, Any], table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table
    merged = {**defaults, **table}
    for key in _MERGED:
        if isinstance(defaults.get(key), Mapping) and isinstance(table.get(key), Mapping):
            merged[key] = _merged(defaults[key], table[key])
    return merged


def _paths(entry: TableSettings | TablesFolder, folder: str) -> dict[str, Any]:
    """The keys of an entry that are paths, resolved against a folder."""
    reads = entry.reads
    if reads is not None:
        places = {key: _rooted(place, folder) for key, place in reads.model_dump(exclude_none=True).items()}
        reads = reads.model_copy(update=places)
    return {"path": _rooted(entry.path, folder), "reads": reads}


def _rooted(path: str, folder: str) -> str:
    return path if "://" in path or path.startswith(("file:", "~")) else os.path.normpath(os.path.join(folder, path))
