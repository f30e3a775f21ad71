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
      - table: unity.main.sales.returns
    folders:
      - path: s3://lake/raw
        exclude: ["*/scratch/*"]
      - schema: unity.main.shop
    catalogs:
      unity: {type: unity, uri: "https://host", token: "${UC_TOKEN}"}
    schedule: {cron: "0 3 * * *", timezone: UTC}
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema, model_validator

from dv_maintenance import catalogs as naming
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.config import Document, Duration, Location, load_documents, validate
from dv_maintenance.errors import DvMaintenanceError, UsageError
from dv_maintenance.maintenance.scheduling.window import Window
from dv_maintenance.service import settings
from dv_maintenance.service.entries import Entry, Placed, TableSettings, TablesFolder
from dv_maintenance.service.settings import Job

__all__ = ["Entry", "Job", "TableSettings", "TablesFolder", "WatchConfig", "table_called"]

# Which keys a catalog has depends on its type.
_CATALOGS: Final = {"type": "object", "additionalProperties": {"type": "object", "required": ["type"]}}
# For these keys, a table's values extend the defaults instead of replacing them.
_MERGED: Final = ("policy", "checks", "storage_options", "tags", "reads", "op_tags", "run_tags")
# Around the attributes of a component in a file of Dagster's.
_COMPONENT: Final = frozenset({"type", "attributes"})
# Where Dagster keeps what a search of the folders found, and what it calls its assets.
_DAGSTERS_OWN: Final = frozenset({"defs_state", "op", "translation"})
# Dagster's templates; only environment variables mean something without Dagster.
_TEMPLATE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_ENV: Final = re.compile(r"\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*")


class WatchConfig(settings.Keys):
    """The whole file. The listed entry wins for a table that is also found in a folder."""

    name: str = Field(
        default="dv_maintenance",
        min_length=1,
        description="Name of the job; names of the sensor and the schedule begin with it.",
    )
    defaults: Entry = Field(default_factory=Entry, description="Settings of every table that does not set its own.")
    tables: tuple[TableSettings, ...] = Field(default=(), description="Tables, one by one.")
    folders: tuple[TablesFolder, ...] = Field(
        default=(), description="Folders, and schemas of catalogs, whose tables are found by a search."
    )
    catalogs: Annotated[Mapping[str, CatalogSettings], WithJsonSchema(_CATALOGS)] = Field(
        default_factory=dict, repr=False, description="Catalogs by the name with which names of their tables begin."
    )
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
        for kind, at, entry, name in config._names():  # noqa: SLF001 (its own kind)
            if not naming.is_known(name, entry.catalogs):
                error = naming.unknown(name)
                key = "table" if kind == "tables" else "schema"
                error.message = f"{kind}.{at}.{key}: {error.message} ({document.where((kind, at, key))})"
                raise error
        naming.expect(config.catalogs)
        return config

    def _names(self) -> Iterator[tuple[str, int, Placed, str]]:
        """The entries that name something in a catalog."""
        for at, table in enumerate(self.tables):
            if table.table is not None:
                yield "tables", at, table, table.table
        for at, folder in enumerate(self.folders):
            if folder.in_schema is not None:
                yield "folders", at, folder, folder.in_schema

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
        places = {table.name: table.uri for table in self.tables}
        known = set(places.values())
        for at, folder in enumerate(self.folders):
            try:
                tables = find(folder)
            except DvMaintenanceError as error:
                error.message += f" ({where(('folders', at, 'schema' if folder.in_schema else 'path'))})"
                raise
            for table in tables:
                uri = table.uri
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
        for entry in (*self.tables, *self.folders):
            # They are parts of this file by now.
            entry._catalogs = {**self.catalogs, **entry._catalogs}  # noqa: SLF001
        return self


def table_called(configs: Iterable[WatchConfig], name: str) -> tuple[WatchConfig, TableSettings]:
    """The table of this name, and the document that has it. Raises UsageError if none has."""
    known = {table.name: (config, table) for config in configs for table in config.tables}
    if name not in known:
        near = [*get_close_matches(name, known, n=1), *known]
        step = f"choose one of its tables, such as {near[0]}" if near else "it has no tables yet"
        raise UsageError(f"the file has no table {name!r}", next_step=step)
    return known[name]


def _refuse_duplicates(config: WatchConfig, document: Document) -> None:
    """Raises UsageError with the lines of two tables of one name, or of one path."""
    names: dict[str, int] = {}
    paths: dict[str, int] = {}
    for at, table in enumerate(config.tables):
        for known, value, what in (
            (paths, table.uri, "have the name" if table.table else "have the path"),
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
    return {"path": entry.path and _rooted(entry.path, folder), "reads": reads}


def _rooted(path: str, folder: str) -> str:
    return path if "://" in path or path.startswith(("file:", "~")) else os.path.normpath(os.path.join(folder, path))
