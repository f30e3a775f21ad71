"""The entries of a file of tables: one table, or a folder or schema of them; see ``tables_file``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from dv_maintenance import catalogs as naming
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.config import expand_env
from dv_maintenance.errors import DvMaintenanceError, UsageError
from dv_maintenance.maintenance.planning.partitioning import PartitioningSetting
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service import settings
from dv_maintenance.service.settings import Job
from dv_maintenance.storage import absolute_uri
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable, find_tables
from dv_maintenance.tables.registry import a_table, formats, known_format, named, title_of
from dv_maintenance.units import first_few

if TYPE_CHECKING:
    from dv_maintenance.tables.registry import Location, TableFormat
    from dv_maintenance.tables.table import Table

_log = logging.getLogger(__name__)
# Of the names in a schema that are left alone.
_SHOWN: Final = 10


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
            raise ValueError(f"{title_of(self.format or '')} tables have no partitions: leave out 'partitions'")
        return self


def _either(other: str) -> Callable[[dict[str, Any]], None]:
    """For a schema: an entry has a path, or the other key."""

    def add(schema: dict[str, Any]) -> None:
        schema.update({"if": {"not": {"required": [other]}}, "then": {"required": ["path"]}})

    return add


class Placed(Entry):
    """An entry for what is at a path, or has a name in a catalog."""

    _catalogs: Mapping[str, CatalogSettings] = PrivateAttr(default_factory=dict)

    @property
    def catalogs(self) -> Mapping[str, CatalogSettings]:
        """The catalogs of its file."""
        return self._catalogs

    def known_by(self, catalogs: Mapping[str, CatalogSettings]) -> Self:
        """The same, with these catalogs for its name. What both know of a catalog is taken from these."""
        made = self.model_copy()
        made._catalogs = {**self._catalogs, **catalogs}  # noqa: SLF001 (its own kind)
        return made


class TableSettings(Placed):
    """One table, at a path or by its name in a catalog."""

    model_config = ConfigDict(json_schema_extra=_either("table"))

    path: str = Field(
        default="", min_length=1, description="Path or URI; relative paths start at the YAML file's folder."
    )
    table: str | None = Field(
        default=None,
        description="In place of path: the table's name in one of the catalogs, such as unity.main.sales.orders.",
    )
    name: str = Field(
        default="",
        min_length=1,
        description="The table's name, its parts separated by slashes; by default the path's last part, or all parts "
        "of the name in a catalog but the catalog's own.",
    )
    asset: settings.NamedAsset | str | None = Field(
        default=None, description="Airflow: the name of the table's asset, or {name, uri}; both default to its URI."
    )
    _job_names: Mapping[Job, str] = PrivateAttr(default_factory=dict)

    @field_validator("table")
    @classmethod
    def _one_spelling(cls, name: str | None) -> str | None:
        return None if name is None else naming.canonical(name)

    @property
    def uri(self) -> str:
        """The URI of the table's path, or its name in a catalog: the same for every definition of the table."""
        return self.table or absolute_uri(self.path)

    @property
    def place(self) -> str:
        """The table's path, or its name in a catalog, as people write it."""
        return self.table or self.path

    def open(self) -> Table:
        """The table. Raises as ``open_table``; UsageError if its name is one of no known catalog."""
        found = self.located()
        return open_table(self.path, self.format, self.storage_options) if found is None else found[0].open(found[1])

    def located(self) -> tuple[TableFormat, Location] | None:
        """Where a table with a name is now, one request to its catalog; ``None`` for one at a path. Raises as
        :meth:`open`.
        """
        if self.table is None:
            return None
        found = named(self.table, self.storage_options, self._catalogs)
        if found is None:
            raise naming.unknown(self.table)
        if self.format not in {None, found[0].name}:
            raise UsageError(
                f"{self.table} is a table of the format {found[0].name}, and not {self.format}",
                next_step="omit its format",
            )
        return found

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
    def _named(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        path = values.get("path")
        if isinstance(path, str) and "table" not in values and naming.format_of(path):
            values = {**{key: each for key, each in values.items() if key != "path"}, "table": path}
        place = values.get("table", path)
        if isinstance(place, str) and "name" not in values:
            return {**values, "name": _name_of(place) if "table" in values else _last(place)}
        return values

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        _check_place(self, self.table, "table")
        return self


class TablesFolder(Placed):
    """Every table below a folder or prefix, or in a schema of a catalog. A table's name is its path below the folder,
    prefixed with ``name`` if given; in a schema that prefix is by default the schema's own name.
    """

    model_config = ConfigDict(json_schema_extra=_either("schema"))

    path: str = Field(
        default="", min_length=1, description="Folder or prefix; relative paths start at the YAML file's folder."
    )
    in_schema: str | None = Field(
        default=None,
        alias="schema",
        description="In place of path: a schema of one of the catalogs, such as unity.main.sales; unity.main.* has the "
        "tables of every schema.",
    )
    name: str = Field(default="", description="Prefix of the tables' names.")
    include: tuple[str, ...] = Field(
        default=("*",),
        description="Patterns of paths below the folder, or of names in the schema; * matches anything, including "
        "slashes.",
    )
    exclude: tuple[str, ...] = Field(default=(), description="Patterns of paths or names to leave out.")

    @field_validator("in_schema")
    @classmethod
    def _one_spelling(cls, name: str | None) -> str | None:
        return None if name is None else naming.canonical(name)

    @property
    def uri(self) -> str:
        """The URI of the folder's path, or the name of the schema."""
        return self.in_schema or absolute_uri(self.path)

    @property
    def key(self) -> str:
        """The path or the schema, as the file has it."""
        return self.in_schema or self.path

    def search(
        self,
        on_error: Callable[[str, DvMaintenanceError], None] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> list[FoundTable]:
        """Everything below it. ``on_error``: of ``find_tables``; ``storage_options``: behind its own. Raises
        StorageError.
        """
        if self.in_schema is not None:
            return naming.listed(self.in_schema, self._catalogs)
        return find_tables(self.path, {**(storage_options or {}), **self.storage_options}, on_error)

    def find(self, on_error: Callable[[str, DvMaintenanceError], None] | None = None) -> list[TableSettings]:
        """Its tables, by path. ``on_error``: of ``find_tables``. Raises as :meth:`search` and :meth:`among`."""
        return self.among(self.search(on_error))

    def among(self, found: Iterable[FoundTable]) -> list[TableSettings]:
        """Its tables among those that a search below it found. A schema without any may get some later, which a warning
        says. Raises UsageError if a folder has none: it may be misspelled, and stores know no folders.
        """
        below = [each for each in found if self._takes(each)]
        if others := [f"{each.path} ({each.left_alone})" for each in below if each.left_alone]:
            _log.warning("%s: left alone: %s", self.key, first_few(others, _SHOWN))
        below = [each for each in below if not each.left_alone]
        if not below and self.in_schema:
            _log.warning("%s: no table yet, or none that matches the patterns", self.key)
        elif not below:
            raise UsageError(
                "the folder contains no table, or none that matches the patterns",
                table=self.uri,
                next_step="check the path, the patterns, and the storage options if it is in object storage",
            )
        shared = {key: getattr(self, key) for key in Entry.model_fields}
        return [self._table(each, shared) for each in below]

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        _check_place(self, self.in_schema, "schema")
        return self

    def _takes(self, found: FoundTable) -> bool:
        """Whether patterns and ``format`` select a table; a folder may have tables of several formats."""
        if self.format not in {None, found.format} and not found.left_alone:
            return False
        return any(fnmatchcase(found.path, each) for each in self.include) and not any(
            fnmatchcase(found.path, each) for each in self.exclude
        )

    def _table(self, found: FoundTable, shared: Mapping[str, Any]) -> TableSettings:
        path = found.path
        if self.in_schema is not None:
            place = f"{self.in_schema.removesuffix('.*')}.{path}"
            below = "/".join(naming.parts_of(path))
            prefix = self.name.strip("/") or _name_of(self.in_schema.removesuffix(".*"))
        else:
            place = f"{self.path.rstrip('/')}/{path}" if path else self.path
            below, prefix = path or _last(place), self.name.strip("/")
        name = "/".join(part for part in (prefix, below) if part)
        if self.partitions is not None and not _is_partitioned(found.format):
            raise UsageError(
                f"'partitions' is set for {a_table(found.format)}, whose format has no partitions",
                table=place if self.in_schema else absolute_uri(place),
                next_step="exclude the table here and list it under 'tables', or give the folder a format",
            )
        # Not validated again: environment variables in the options are expanded already.
        known = {"format": found.format, "jobs": _jobs_of(found.format, self.jobs)}
        where = {"path": "", "table": place} if self.in_schema else {"path": place, "table": None}
        return TableSettings.model_construct(name=name, **where, **{**shared, **known}).known_by(self._catalogs)


def _jobs_of(format: str | None, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Without ``manifest`` where the format is known to have no symlink manifests."""
    known = known_format(format)
    return jobs if known is None or known.symlink_manifests else tuple(job for job in jobs if job != "manifest")


def _is_partitioned(format: str | None) -> bool:
    """Whether tables of the format can be partitioned; true while the format is unknown."""
    known = known_format(format)
    return known is None or known.partitions


def _last(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _name_of(name: str) -> str:
    """The name of a table for its name in a catalog, or a prefix of names for that of a schema."""
    parts = naming.parts_of(name.partition(":")[2]) if naming.format_of(name) else naming.parts_of(name)
    return "/".join(parts[1:]) or name


def _check_place(entry: TableSettings | TablesFolder, name: str | None, key: str) -> None:
    """Raises ValueError unless it has either a path or a name."""
    if bool(entry.path) == bool(name):
        raise ValueError(f"give either a path or a {key} of a catalog" + (", not both" if name else ""))
