"""Iceberg tables in a catalog of a Spark session: ``NAME.NAMESPACE.….TABLE``, as in SQL.

The session's own Java classes commit. It starts with the first commit, unless the process has one. Looks ask the
catalog itself, if it is one of Hive, Glue, JDBC, REST or Hadoop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, field_validator

from dv_maintenance.catalogs import glue, hive, jdbc, parts_of
from dv_maintenance.catalogs.examination import Examined
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.catalogs.named import ALL, found, in_schemas
from dv_maintenance.errors import DvMaintenanceError, TableNotFoundError, UsageError
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.find import FoundTable, find_tables
from dv_maintenance.tables.registry import Location, NamedTable, quoted

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.catalog import IcebergCatalogTable

# Above this layer, like Spark itself.
_SESSIONS: Final = "dv_maintenance.engine.spark.shared"
_OF_CLASS: Final = {
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.hadoop.HadoopCatalog": "hadoop",
}
_METASTORE: Final = ("spark.hadoop.hive.metastore.uris", "spark.hive.metastore.uris")
_KERBEROS: Final = "spark.hadoop.hive.metastore.sasl.enabled"
_COLUMNS: Final = "SELECT * FROM iceberg_tables WHERE catalog_name = ?"


class Settings(CatalogSettings):
    """conf : settings of the session, those of ``spark.sql.catalog.NAME`` among them. Those that are left out come from
        Spark's own files, or from the session that the process has.
    master : where a session starts for commits that no engine starts one for.
    storage_options : to reach files; those of a table go first.
    """

    type: Literal["spark"]
    conf: Mapping[str, str] = Field(default_factory=dict, repr=False)
    master: str | None = None
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, values: Any) -> Any:
        """YAML makes numbers and truth values of some."""
        if not isinstance(values, Mapping):
            return values
        return {
            key: str(each).lower() if isinstance(each, bool) else str(each) if isinstance(each, int | float) else each
            for key, each in values.items()
        }

    @field_validator("master")
    @classmethod
    def _with_a_jvm(cls, master: str | None) -> str | None:
        if master is not None and master.startswith("sc://"):
            raise ValueError("must not be Spark Connect, which does not reach the Java classes that commit")
        return master


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    """See ``kinds.CatalogKind``."""
    catalog, *identifier = parts_of(name)
    if len(identifier) < 2:
        raise UsageError(
            f"{name!r} is not the name of a table in a catalog of Spark",
            next_step=f"write {quoted([catalog])}.NAMESPACE.TABLE",
        )
    from dv_maintenance.tables.iceberg.catalog import at_entry, options_of

    known = {**settings.storage_options, **options}
    properties = _properties(catalog, settings)
    match _kind(properties):
        case "hadoop" if properties.get("warehouse"):
            place = "/".join([properties["warehouse"].rstrip("/"), *identifier])
            storage = Storage(plain_uri(place), {**options_of(properties), **known})
            if not storage.first_names("metadata")[0]:
                raise TableNotFoundError(f"{name}: no Iceberg table is at {storage.uri}", next_step="check the name")
            return "iceberg", Location(storage, NamedTable(name))
        case "rest":
            handle = _served(name, properties)
            return "iceberg", at_entry(handle, handle.load(), known)
    return "iceberg", _by_session(name, settings, known)


def _by_session(name: str, settings: Settings, options: Mapping[str, str]) -> Location:
    from dv_maintenance.tables.iceberg.catalog import at_entry, options_of
    from dv_maintenance.tables.iceberg.pointed import root_of
    from dv_maintenance.tables.iceberg.session_catalog import SessionCatalogTable

    catalog, *identifier = parts_of(name)
    properties = _properties(catalog, settings)
    options = {**options_of(properties), **options}
    sessions = import_module(_SESSIONS)
    needs = sessions.Needs(catalog, settings.master, settings.conf)
    sessions.needed(needs)
    session, why_not = partial(sessions.session_for, needs), partial(sessions.why_no_session, needs)
    if (find := _found_by(name, settings)) is not None:
        try:
            metadata = find()
        except DvMaintenanceError as error:
            # Verbs can do without the package, since they may start a session.
            if not isinstance(error.__cause__, ImportError) or sessions.is_only_looking():
                raise
        else:
            if _kind(properties) == "glue":
                options = glue.file_options(name, _glue(properties), glue.bucket_of(metadata), options)
            handle = SessionCatalogTable(catalog, tuple(identifier), session, find, why_not)
            return Location(root_of(name, metadata, find, options), handle)
    handle = SessionCatalogTable(catalog, tuple(identifier), session, None, why_not)
    return at_entry(handle, handle.load(), options)


def expected(name: str, settings: Settings) -> None:
    """See ``kinds.CatalogKind``. A session that an engine starts for another table must have this catalog, too."""
    if _kind(_properties(name, settings)) not in {"hadoop", "rest"}:
        sessions = import_module(_SESSIONS)
        sessions.needed(sessions.Needs(name, settings.master, settings.conf))


def rights(name: str, settings: Settings, format: str) -> Iterator[Examined]:
    """What a commit will need."""
    del format
    catalog = parts_of(name)[0]
    kind, sessions = _kind(_properties(catalog, settings)), import_module(_SESSIONS)
    if kind in {"hadoop", "rest"}:
        yield Examined("commits", True, "without a session", "a way to commit")
        return
    yield Examined("commits", True, "by a Spark session", "a way to commit")
    if why := sessions.why_no_session(sessions.Needs(catalog, settings.master, settings.conf)):
        yield Examined("session", False, why, "a session that can commit", "correct the conf of the catalog")


def listed(name: str, settings: Settings) -> Iterator[FoundTable]:
    """See ``kinds.CatalogKind``. Asks no session."""
    catalog, *namespace = parts_of(name)
    properties = _properties(catalog, settings)
    match _kind(properties):
        case "hadoop" if properties.get("warehouse"):
            yield from _in_folder(namespace, properties["warehouse"], settings)
        case "rest":
            yield from _in_server(name, namespace, properties)
        case "jdbc" if re.match(jdbc.URI, properties.get("uri", "")):
            yield from _in_database(name, namespace, properties)
        case "hive" if asked := _metastore(settings, properties):
            yield from (each for each in hive.listed(name, asked) if each.format == "iceberg")
        case "glue":
            yield from (each for each in glue.listed(name, _glue(properties)) if each.format == "iceberg")
        case _:
            raise UsageError(
                f"{name}: only a Spark session could list it",
                next_step="list the tables one by one, or give the catalog's spark.sql.catalog settings under 'conf'",
            )


def _properties(catalog: str, settings: Settings) -> dict[str, str]:
    """The catalog's own, as Iceberg calls them."""
    before = f"spark.sql.catalog.{catalog}."
    return {key.removeprefix(before): value for key, value in settings.conf.items() if key.startswith(before)}


def _kind(properties: Mapping[str, str]) -> str:
    return properties.get("type", "").lower() or _OF_CLASS.get(properties.get("catalog-impl", ""), "")


# -- the newest metadata file, without a session -----------------------------------------------------------------------


def _found_by(name: str, settings: Settings) -> Callable[[], str] | None:
    """What asks the catalog for a table's newest metadata file; ``None`` if only a session can."""
    catalog, *_ = parts_of(name)
    properties = _properties(catalog, settings)
    match _kind(properties):
        case "jdbc" if re.match(jdbc.URI, properties.get("uri", "")):
            return partial(_in_row, name, properties)
        case "hive" if asked := _metastore(settings, properties):
            return partial(hive.newest, name, asked)
        case "glue":
            return partial(glue.newest, name, _glue(properties))
    return None


def _metastore(settings: Settings, properties: Mapping[str, str]) -> hive.Settings | None:
    """``None`` if Spark's own files say where it is."""
    uri = properties.get("uri") or next((settings.conf[each] for each in _METASTORE if each in settings.conf), "")
    service = "hive" if settings.conf.get(_KERBEROS) == "true" else None
    return hive.Settings(type="hive", uri=uri, kerberos_service=service) if uri else None


def _glue(properties: Mapping[str, str]) -> glue.Settings:
    return glue.Settings(
        type="glue",
        region=properties.get("client.region"),
        catalog_id=properties.get("glue.id"),
        endpoint=properties.get("glue.endpoint"),
    )


def _rows(name: str, properties: Mapping[str, str], query: str, *arguments: str) -> list[Mapping[str, Any]]:
    """Of the catalog's own table. Views have rows of their own there."""
    asked = jdbc.rows(
        name,
        properties["uri"],
        properties.get("jdbc.user"),
        properties.get("jdbc.password"),
        "iceberg_tables",
        query,
        parts_of(name)[0],
        *arguments,
    )
    return [each for each in asked if each.get("iceberg_type") in {None, "TABLE"}]


def _in_row(name: str, properties: Mapping[str, str]) -> str:
    _, *namespace, table = parts_of(name)
    query = f"{_COLUMNS} AND table_namespace = ? AND table_name = ?"
    for each in _rows(name, properties, query, ".".join(namespace), table):
        return str(each["metadata_location"])
    raise TableNotFoundError(f"{name}: the catalog's database does not have it", next_step="check the name")


def _in_database(name: str, namespace: list[str], properties: Mapping[str, str]) -> Iterator[FoundTable]:
    rows = _rows(name, properties, _COLUMNS)

    for schema, before in in_schemas(lambda: {each["table_namespace"] for each in rows}, ".".join(namespace)):
        for each in rows:
            if each["table_namespace"] == schema:
                yield found((*(before and schema.split(".")), each["table_name"]), "iceberg", "")


# -- catalogs without a session ----------------------------------------------------------------------------------------


def _served(name: str, properties: Mapping[str, str]) -> IcebergCatalogTable:
    """By pyiceberg, which takes the same properties."""
    from dv_maintenance.tables.iceberg.catalog import IcebergCatalogTable

    catalog, *identifier = parts_of(name)
    own = {key: value for key, value in properties.items() if key not in {"type", "catalog-impl", "io-impl"}}
    return IcebergCatalogTable(catalog, tuple(identifier), {**own, "type": "rest"})


def _in_server(name: str, namespace: list[str], properties: Mapping[str, str]) -> Iterator[FoundTable]:
    handle = _served(name, properties)
    spaces = handle.namespaces() if namespace == [ALL] else [tuple(namespace)]
    for each in spaces:
        before = each if namespace == [ALL] else ()
        for table in _served(quoted((parts_of(name)[0], *each)), properties).listed():
            yield found((*before, table), "iceberg", "")


def _in_folder(namespace: list[str], warehouse: str, settings: Settings) -> Iterator[FoundTable]:
    below = [] if namespace == [ALL] else namespace
    for each in find_tables(plain_uri("/".join([warehouse.rstrip("/"), *below])), settings.storage_options):
        if each.format == "iceberg" and each.path and (not below or "/" not in each.path):
            yield found(each.path.split("/"), "iceberg", "")
