"""Tables of Apache Gravitino: ``NAME.CATALOG.SCHEMA.TABLE``. Its lakehouse catalogs know format and place of each.

Source: Gravitino's REST API, as release 1.3 of its own Python client calls it. That client pins pyarrow, requests, and
tools for its own development to single releases, so nothing else can be installed beside it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from pydantic import Field, model_validator

from dv_maintenance.catalogs import parts_of, server
from dv_maintenance.catalogs.login import LoginSettings, request
from dv_maintenance.catalogs.named import (
    ALL,
    found,
    in_schemas,
    known_or_left,
    left_alone,
    looked_at,
    schema_in,
    table_in,
)
from dv_maintenance.catalogs.server import Refusal, text
from dv_maintenance.errors import DamagedTableError, StorageUnavailableError, TableNotFoundError
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.registry import Location, NamedTable

if TYPE_CHECKING:
    from dv_maintenance.tables.find import FoundTable

_NAME = ("CATALOG", "SCHEMA", "TABLE")
_TABLES = "relational"
_NEEDS = "it takes USE_CATALOG, USE_SCHEMA and SELECT_TABLE"


class Settings(LoginSettings):
    """uri : of the server, without a path.
    user : the name that a server without authentication, or with its simple one, records.
    storage_options : to reach files.
    """

    TOKENS = ""
    BASIC = False

    type: Literal["gravitino"]
    metalake: str = Field(min_length=1)
    user: str | None = None
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _knows_who_gives_tokens(self) -> Self:
        if self.client_id is not None and self.oauth2_server_uri is None:
            raise ValueError("a 'client_id' needs 'oauth2_server_uri': the server itself gives no tokens")
        if self.user is not None and (self.token or self.client_id):
            raise ValueError("give a 'user', a 'token', or a 'client_id', not several of them")
        return self

    @property
    def headers(self) -> Mapping[str, str]:
        accepted = {"Accept": "application/vnd.gravitino.v1+json"}
        if self.user is None:
            return accepted
        # Simple authentication takes any password.
        return {**accepted, "Authorization": f"Basic {b64encode(f'{self.user}:none'.encode()).decode()}"}


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    """See ``kinds.CatalogKind``."""
    table = _loaded(name, settings, *table_in(name, "Gravitino", *_NAME))
    kind, why = _format(table)
    if why:
        raise left_alone(name, why)
    place = text(table.get("properties"), "location")
    if not place:
        raise DamagedTableError(
            f"{name}: the catalog has no location for the table", next_step="open the table by its path"
        )
    return kind, Location(Storage(plain_uri(place), {**settings.storage_options, **options}), NamedTable(name))


def listed(name: str, settings: Settings) -> Iterator[FoundTable]:
    """See ``kinds.CatalogKind``. ``NAME.*`` is everything. The list has names alone, so each table is asked for."""
    for catalog, schema, before in _schemas(name, settings):

        def look(table: str, catalog: str = catalog, schema: str = schema) -> tuple[str, str]:
            return _format(_loaded(name, settings, catalog, schema, table))

        for table, kind, why in looked_at(_names(name, settings, catalog, schema), look):
            yield found((*before, table), kind, why)


def _schemas(name: str, settings: Settings) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The catalog and the name of each schema, and the parts that names of its tables begin with."""
    if parts_of(name)[1:] != (ALL,):
        catalog, schema = schema_in(name, "Gravitino", *_NAME[:2])
        for each, before in in_schemas(lambda: _names(name, settings, catalog), schema):
            yield catalog, each, before
        return
    body = _ask(name, settings, f"{_path(settings, '')}?details=true", "metalake")
    # Others have filesets, models and topics.
    catalogs = [text(each, "name") for each in body.get("catalogs") or () if text(each, "type").lower() == _TABLES]
    for catalog in catalogs:
        for schema in _names(name, settings, catalog):
            yield catalog, schema, (catalog, schema)


def _format(table: Mapping[str, Any]) -> tuple[str, str]:
    return known_or_left(text(table.get("properties"), "format"))


def _loaded(name: str, settings: Settings, catalog: str, schema: str, table: str) -> Mapping[str, Any]:
    body = _ask(name, settings, _path(settings, catalog, schema, table), "table")
    described = body.get("table")
    if not isinstance(described, Mapping):
        raise StorageUnavailableError(
            f"{name}: the answer is not one of Gravitino", next_step="check the catalog's uri"
        )
    return described


def _names(name: str, settings: Settings, *above: str) -> list[str]:
    body = _ask(name, settings, _path(settings, *above, ""), "schema")
    return [text(each, "name") for each in body.get("identifiers") or ()]


def _ask(name: str, settings: Settings, path: str, what: str) -> dict[str, Any]:
    try:
        return request(name, settings, path)
    except Refusal as refusal:
        error = server.failed(name, refusal, _NEEDS, what)
        if isinstance(error, TableNotFoundError):
            error.next_step = f"check the name, and the metalake {settings.metalake}"
        raise error from None


def _path(settings: Settings, *parts: str) -> str:
    """Of an object; of what is in the last one if the last part is empty."""
    kinds = ("metalakes", "catalogs", "schemas", "tables")
    pairs = zip(kinds, (settings.metalake, *parts), strict=False)
    return "/".join(["/api", *(f"{kind}/{quote(part, safe='')}" for kind, part in pairs)]).rstrip("/")
