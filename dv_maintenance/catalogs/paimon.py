"""Tables of Paimon's catalogs: ``NAME.DATABASE.TABLE``. In a filesystem warehouse the folders are the catalog, a JDBC
catalog has a list beside them, a REST catalog is a server that makes the snapshots that are committed to it.

pypaimon does not run beside the pyarrow of this package, so the catalogs are asked without it.
Sources: Paimon's REST API (``rest-catalog-open-api.yaml``), ``FileSystemCatalog``, ``JdbcCatalog``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import quote, urlencode

from pydantic import Field, model_validator

from dv_maintenance.catalogs import jdbc, server
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.catalogs.named import found, in_schemas, left_alone, schema_in, table_in
from dv_maintenance.catalogs.server import Refusal, text
from dv_maintenance.errors import (
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.paimon.served import ServedTable
from dv_maintenance.tables.registry import Location, NamedTable, known_format

if TYPE_CHECKING:
    from dv_maintenance.tables.find import FoundTable

_NAME: Final = ("DATABASE", "TABLE")
_SUFFIX: Final = ".db"
_BRANCH: Final = re.compile(r"([^$]+)\$branch_([^$]+)")
_NEEDS: Final = "reading needs the right to select from the table"
# Types of Paimon's own tables. Others are names for files of another format.
_OWN: Final = ("", "table", "materialized-table")


class Settings(CatalogSettings):
    """As Paimon's options.

    warehouse : folder or prefix; of a REST catalog the name that the server knows.
    uri : of the server, or of the database of a JDBC catalog: ``jdbc:postgresql://...``, ``jdbc:mysql://...``,
        ``jdbc:sqlite:FILE``.
    token : of a REST catalog.
    catalog_key : of a JDBC catalog, whose database may have several.
    storage_options : to reach the warehouse; those of a table go first.
    """

    type: Literal["paimon"]
    metastore: Literal["filesystem", "rest", "jdbc"] = "filesystem"
    warehouse: str = Field(min_length=1)
    uri: str | None = Field(default=None, repr=False)
    token: str | None = Field(default=None, repr=False)
    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    catalog_key: str = "jdbc"
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _with_its_uri(self) -> Self:
        start = {"rest": r"https?://", "jdbc": jdbc.URI}.get(self.metastore, "")
        if start and not re.match(start, self.uri or ""):
            ways = {"rest": "http(s)://", "jdbc": "jdbc:postgresql://, jdbc:mysql:// or jdbc:sqlite:"}
            raise ValueError(f"metastore {self.metastore} takes a 'uri' that begins with {ways[self.metastore]}")
        return self


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    """See ``kinds.CatalogKind``. ``TABLE$branch_NAME`` is a branch."""
    database, table = table_in(name, "Paimon", *_NAME)
    options = {**settings.storage_options, **options}
    handle: NamedTable | ServedTable
    branch = _BRANCH.fullmatch(table)
    if branch is not None:
        table = branch[1]
    elif "$" in table:
        raise left_alone(name, "a system table", "name the table itself")
    if settings.metastore == "rest":
        place, handle = _served(name, settings, database, table, branch and branch[2], options)
    else:
        if settings.metastore == "jdbc" and table not in _rows(name, settings, _TABLES, database):
            raise _missing(name, "the catalog has no such table")
        place = Storage(f"{settings.warehouse.rstrip('/')}/{database}{_SUFFIX}/{table}", options)
        handle = NamedTable(name)
    if not _marked(place.first_names("schema")[0]):
        raise _missing(name, f"no Paimon table is at {place.uri}")
    if branch is not None:
        place = place.at(place.uri_of(f"branch/branch-{branch[2]}"))
    return "paimon", Location(place, handle)


def listed(name: str, settings: Settings) -> Iterator[FoundTable]:
    """See ``kinds.CatalogKind``."""
    (schema,) = schema_in(name, "Paimon", "DATABASE")
    match settings.metastore:
        case "rest":
            yield from _listed_by_server(name, settings, schema)
        case "jdbc":
            for database, before in in_schemas(lambda: _rows(name, settings, _DATABASES), schema):
                for each in _rows(name, settings, _TABLES, database):
                    yield found((*before, each), "paimon", "")
        case _:
            warehouse = Storage(settings.warehouse, settings.storage_options)

            def databases() -> Iterator[str]:
                return (each.removesuffix(_SUFFIX) for each in warehouse.folders() if each.endswith(_SUFFIX))

            for database, before in in_schemas(databases, schema):
                folder = f"{database}{_SUFFIX}"
                for each in warehouse.folders(folder):
                    if _marked(warehouse.first_names(f"{folder}/{each}/schema")[0]):
                        yield found((*before, each), "paimon", "")


def _marked(names: Sequence[str]) -> bool:
    paimon = known_format("paimon")
    return paimon is not None and paimon.marked_by(names)


def _missing(name: str, what: str) -> TableNotFoundError:
    return TableNotFoundError(f"{name}: {what}", next_step="check the name and the catalog's warehouse")


# -- REST --------------------------------------------------------------------------------------------------------------


def _served(
    name: str, settings: Settings, database: str, table: str, branch: str | None, options: Mapping[str, str]
) -> tuple[Storage, ServedTable]:
    """The files of a table of a REST catalog, and what commits to it. They are read only while the newest snapshot
    among them is the one that the server names.
    """
    base = _base(name, settings)
    path = f"{base}/databases/{_quoted(database)}/tables/{_quoted(table)}"
    body = _ask(name, settings, path)
    schema = body.get("schema")
    kind = text(schema.get("options"), "type") if isinstance(schema, Mapping) else ""
    if kind not in _OWN:
        raise left_alone(name, f"of the type {kind}")
    location = text(body, "path")
    if not location:
        raise StorageUnavailableError(f"{name}: the catalog's answer has no path", next_step="check the catalog's uri")
    place = Storage(plain_uri(location), options)
    try:
        newest = server.request(name, f"{path}/snapshot", token=settings.token).get("snapshot")
    except Refusal as refusal:
        if refusal.status != 404:
            raise server.failed(name, refusal, _NEEDS) from None
        newest = None
    number = _number(newest)
    if (number and not place.exists(f"snapshot/snapshot-{number}")) or place.exists(f"snapshot/snapshot-{number + 1}"):
        raise UnsupportedFeatureError(
            f"{name}: the catalog says that snapshot {number} is the newest, and the files say otherwise",
            features=("snapshots of a REST catalog",),
            next_step="read the table with an engine that asks the catalog",
        )
    identity = text(body, "id")
    named = _of_branch(path, branch)
    return place, ServedTable(
        name,
        identity,
        partial(_submit, name, settings, f"{named}/commit", identity),
        partial(_hidden, name, settings, f"{named}/auth"),
        partial(_branches, name, settings, path),
        partial(_snapshots, name, settings, path),
        partial(_consumers, name, settings, path),
    )


def _of_branch(path: str, branch: str | None) -> str:
    return f"{path}{_quoted(f'$branch_{branch}')}" if branch else path


def _submit(
    name: str,
    settings: Settings,
    url: str,
    identity: str,
    snapshot: Mapping[str, Any],
    statistics: Sequence[Mapping[str, Any]],
) -> bool:
    """See ``ServedTable.submit``."""
    asked = {"tableId": identity, "snapshot": snapshot, "statistics": statistics}
    try:
        return server.request(name, url, token=settings.token, body=asked).get("success") is True
    except Refusal as refusal:
        if not refusal.certain:
            raise StorageUnavailableError(f"{name}: the catalog did not confirm the commit ({refusal})") from None
        advice = "check the name, and the token; committing needs the right to change the table"
        raise StorageDeniedError(f"{name}: the catalog refused the commit ({refusal})", next_step=advice) from None


def _hidden(name: str, settings: Settings, url: str, columns: Sequence[str]) -> str:
    """See ``ServedTable.hides``."""
    try:
        answer = server.request(name, url, token=settings.token, body={"select": list(columns)})
    except Refusal as refusal:
        raise server.failed(name, refusal, _NEEDS) from None
    rules = {"rows": answer.get("filter"), "values": answer.get("columnMasking")}
    return " and ".join(what for what, rule in rules.items() if rule)


def _branches(name: str, settings: Settings, path: str) -> list[str]:
    """See ``ServedTable.branches``."""
    with _said(name, "branches"):
        return [str(each) for each in _all(name, settings, f"{path}/branches", "branches")]


def _snapshots(name: str, settings: Settings, path: str, branch: str | None) -> dict[str, Mapping[str, Any]]:
    """See ``ServedTable.snapshots``."""
    url, found = _of_branch(path, branch), {}
    with _said(name, "snapshots"):
        for each in _all(name, settings, f"{url}/snapshots", "snapshots"):
            found[f"snapshot/snapshot-{each['id']}"] = each
    with _said(name, "tags"):
        for tag in _all(name, settings, f"{url}/tags", "tags"):
            try:
                answer = server.request(name, f"{url}/tags/{_quoted(str(tag))}", token=settings.token)
            except Refusal as refusal:
                if refusal.status != 404:
                    raise
                continue  # it was deleted meanwhile
            found[f"tag/tag-{tag}"] = answer["snapshot"]
    return found


def _consumers(name: str, settings: Settings, path: str, branch: str | None) -> dict[str, int]:
    """See ``ServedTable.consumers``."""
    with _said(name, "consumers"):
        found = _all(name, settings, f"{_of_branch(path, branch)}/consumers", "consumers")
        return {str(each["consumerId"]): int(each["nextSnapshot"]) for each in found}


@contextmanager
def _said(name: str, what: str) -> Iterator[None]:
    """The answer is complete, or an error says that it is not."""
    try:
        yield
    except (Refusal, KeyError, TypeError, ValueError) as error:
        why = str(error) if isinstance(error, Refusal) else "the answer is not understood"
        raise RefusedError(
            f"{name}: its REST catalog does not say which {what} it has ({why}), and a vacuum must keep their files",
            next_step=Remedy("let Paimon do it: {}", (run("engine-sql", f"{name} vacuum"),)),
        ) from None


def _all(name: str, settings: Settings, url: str, key: str) -> list[Any]:
    """What all pages list. An empty list may be null, but not missing: that is another server's answer."""
    return [each for body in _bodies(name, settings, url) for each in body[key] or ()]


def _number(newest: Any) -> int:
    """Of a snapshot; 0 for none. The server wraps it in statistics."""
    inner = newest.get("snapshot", newest) if isinstance(newest, Mapping) else None
    found = inner.get("id") if isinstance(inner, Mapping) else None
    return int(found) if isinstance(found, int | str) and str(found).isdecimal() else 0


def _listed_by_server(name: str, settings: Settings, schema: str) -> Iterator[FoundTable]:
    base = _base(name, settings)
    for database, before in in_schemas(lambda: _pages(name, settings, f"{base}/databases", "databases"), schema):
        path = f"{base}/databases/{_quoted(database)}/table-details"
        for each in _pages(name, settings, path, "tableDetails"):
            described = each.get("schema")
            kind = text(described.get("options"), "type") if isinstance(described, Mapping) else ""
            why = "" if kind in _OWN else f"of the type {kind}"
            yield found((*before, text(each, "name")), "paimon", why)


def _base(name: str, settings: Settings) -> str:
    """The server says the prefix of its paths."""
    uri = str(settings.uri).rstrip("/")
    config = _ask(name, settings, f"{uri}/v1/config?{urlencode({'warehouse': settings.warehouse})}", what="warehouse")
    prefix = text(config.get("overrides"), "prefix") or text(config.get("defaults"), "prefix")
    return f"{uri}/v1/{_quoted(prefix)}" if prefix else f"{uri}/v1"


def _pages(name: str, settings: Settings, url: str, key: str) -> Iterator[Any]:
    try:
        for body in _bodies(name, settings, url):
            yield from body.get(key) or ()
    except Refusal as refusal:
        raise server.failed(name, refusal, _NEEDS, "database") from None


def _bodies(name: str, settings: Settings, url: str) -> Iterator[dict[str, Any]]:
    """The answers, page by page. Raises Refusal."""
    more: dict[str, str] = {}
    while True:
        body = server.request(name, f"{url}?{urlencode(more)}", token=settings.token)
        yield body
        following = text(body, "nextPageToken")
        if not following or following == more.get("pageToken"):
            return
        more = {"pageToken": following}


def _ask(name: str, settings: Settings, url: str, what: str = "table") -> dict[str, Any]:
    try:
        return server.request(name, url, token=settings.token)
    except Refusal as refusal:
        raise server.failed(name, refusal, _NEEDS, what) from None


def _quoted(part: str) -> str:
    return quote(part, safe="")


# -- JDBC --------------------------------------------------------------------------------------------------------------

_TABLES: Final = "SELECT table_name FROM paimon_tables WHERE catalog_key = ? AND database_name = ?"
_DATABASES: Final = "SELECT DISTINCT database_name FROM paimon_tables WHERE catalog_key = ?"


def _rows(name: str, settings: Settings, query: str, *arguments: str) -> list[str]:
    """The first column of a query on the catalog's database."""
    found = jdbc.rows(
        name,
        str(settings.uri),
        settings.user,
        settings.password,
        "paimon_tables",
        query,
        settings.catalog_key,
        *arguments,
    )
    return sorted(str(next(iter(each.values()))) for each in found)
