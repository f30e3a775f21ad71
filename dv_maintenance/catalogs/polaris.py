"""Generic tables of Apache Polaris: ``NAME.NAMESPACE.….TABLE``, as deep as namespaces go. Its Iceberg tables are named
through pyiceberg.

Source: Polaris' OpenAPI, ``generic-tables-api.yaml``, whose answers are called ``storage-credentials`` in some releases
and ``storage-access-configs`` in others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, urlencode

from pydantic import Field

from dv_maintenance.catalogs import parts_of, server
from dv_maintenance.catalogs.keys import nearest, options_of, settings_of
from dv_maintenance.catalogs.login import LoginSettings, request
from dv_maintenance.catalogs.named import ALL, found, known_or_left, left_alone, looked_at
from dv_maintenance.catalogs.server import Refusal, text
from dv_maintenance.errors import (
    DamagedTableError,
    DvMaintenanceError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UsageError,
)
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.registry import Location, NamedTable

if TYPE_CHECKING:
    from dv_maintenance.tables.find import FoundTable

_RIGHTS: Final = "it takes TABLE_READ_PROPERTIES, and TABLE_READ_DATA or TABLE_WRITE_DATA for keys to the files"
_ICEBERG: Final = "check the name; an Iceberg table is named iceberg:CATALOG.NAMESPACE.TABLE"
_VENDED: Final = {
    "Polaris-Generic-Table-Access-Delegation": "vended-credentials",
    "X-Iceberg-Access-Delegation": "vended-credentials",
}
# Start of the names of keys -> as credential providers of obstore name them.
_KEYS: Final = {
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "token",
    "gcs.oauth2.token": "token",
    "adls.sas-token": "sas_token",
}
_END: Final = re.compile(r"(?:s3\.session-token|gcs\.oauth2\.token|adls\.sas-token)-expires-at(?:-ms)?(?:\..*)?")
_OPTIONS: Final = {"client.region": "aws_region", "s3.region": "aws_region", "s3.endpoint": "aws_endpoint"}


class Settings(LoginSettings):
    """As pyiceberg's of a REST catalog.

    uri : with its path, such as ``https://host/api/catalog``.
    warehouse : the catalog's name on the server.
    realm : of a server with several.
    storage_options : to reach files; those of a table go first.
    """

    TOKENS = "/v1/oauth/tokens"
    BASIC = False

    type: Literal["polaris"]
    warehouse: str = Field(min_length=1)
    scope: str = "PRINCIPAL_ROLE:ALL"
    realm: str | None = None
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Polaris-Realm": self.realm} if self.realm else {}


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    """See ``kinds.CatalogKind``."""
    namespace, table = _split(name)
    body = _loaded(name, settings, namespace, table)
    kind, why = _format(body)
    if why:
        raise left_alone(name, why)
    described = body["table"]
    place = text(described, "base-location") or text(described.get("properties"), "location")
    if not place:
        raise DamagedTableError(
            f"{name}: the catalog has no location for the table", next_step="open the table by its path"
        )
    uri, options = plain_uri(place), {**settings.storage_options, **options}
    config = _config(uri, body)
    if config:
        told = {_OPTIONS[key]: value for key, value in config.items() if key in _OPTIONS}
        options = {**told, **options_of(name, settings, uri, options)}
    return kind, Location(Storage(uri, options), NamedTable(name))


def listed(name: str, settings: Settings) -> Iterator[FoundTable]:
    """See ``kinds.CatalogKind``. ``NAME.*`` is everything, also in the namespaces below. The list has names alone, so
    each table is asked for.
    """
    parts = parts_of(name)[1:]
    if not parts:
        raise UsageError(f"{name!r} is not the name of a namespace", next_step=f"write {name}.NAMESPACE, or {name}.*")
    deep = parts[-1] == ALL
    for namespace, before in _namespaces(name, settings, parts[:-1] if deep else parts, (), deep=deep):
        names = [text(each, "name") for each in _pages(name, settings, _tables(settings, namespace), "identifiers")]

        def look(table: str, namespace: tuple[str, ...] = namespace) -> tuple[str, str]:
            return _format(_loaded(name, settings, namespace, table, keys=False))

        for table, kind, why in looked_at(names, look):
            yield found((*before, table), kind, why)


def vend(options: Mapping[str, str]) -> dict[str, Any]:
    """Keys for the table's files. See ``dv_maintenance.credentials``."""
    name, place = options["catalog.table"], options["catalog.place"]
    config = _config(place, _loaded(name, settings_of(options), *_split(name)))
    keys = {
        known: value
        for key, value in config.items()
        for start, known in _KEYS.items()
        if (key == start or key.startswith(f"{start}.")) and value
    }
    if not keys:
        raise StorageDeniedError(
            f"{name}: the catalog vends no keys for {place}", next_step="give keys as storage options"
        )
    end = next((value for key, value in config.items() if _END.fullmatch(key) and value), None)
    return {**keys, "expires_at": None if end is None else datetime.fromtimestamp(int(end) / 1000, UTC)}


def _split(name: str) -> tuple[tuple[str, ...], str]:
    catalog, *namespace, table = parts_of(name)
    if not namespace:
        raise UsageError(
            f"{name!r} is not the name of a table in Polaris", next_step=f"write {catalog}.NAMESPACE.TABLE"
        )
    return tuple(namespace), table


def _format(body: Mapping[str, Any]) -> tuple[str, str]:
    return known_or_left(text(body.get("table"), "format"))


def _config(place: str, body: Mapping[str, Any]) -> dict[str, str]:
    """What the catalog says of access to a place; nothing if it says nothing."""
    said = body.get("storage-credentials") or body.get("storage-access-configs") or ()
    config = nearest(place, said).get("config")
    return {str(key): str(value) for key, value in config.items()} if isinstance(config, Mapping) else {}


def _namespaces(
    name: str, settings: Settings, namespace: tuple[str, ...], before: tuple[str, ...], *, deep: bool
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    if namespace:
        yield namespace, before
    if deep:
        above = {"parent": "\x1f".join(namespace)} if namespace else {}
        path = f"/v1/{_quoted(settings.warehouse)}/namespaces"
        for each in _pages(name, settings, path, "namespaces", above):
            last = str(each[-1])
            yield from _namespaces(name, settings, (*namespace, last), (*before, last), deep=True)


# -- requests ----------------------------------------------------------------------------------------------------------


def _loaded(
    name: str, settings: Settings, namespace: tuple[str, ...], table: str, *, keys: bool = True
) -> dict[str, Any]:
    path = f"{_tables(settings, namespace)}/{_quoted(table)}"
    try:
        body = request(name, settings, path, headers=_VENDED if keys else {})
    except Refusal as refusal:
        error = _failed(name, refusal, "table")
        if isinstance(error, TableNotFoundError):
            error.next_step = _ICEBERG
        raise error from None
    if not isinstance(body.get("table"), Mapping):
        raise StorageUnavailableError(f"{name}: the answer is not one of Polaris", next_step="check the catalog's uri")
    return body


def _pages(name: str, settings: Settings, path: str, key: str, query: Mapping[str, str] | None = None) -> Iterator[Any]:
    asked = dict(query or {})
    while True:
        try:
            body = request(name, settings, f"{path}?{urlencode(asked)}")
        except Refusal as refusal:
            raise _failed(name, refusal, "namespace") from None
        yield from body.get(key) or ()
        following = text(body, "next-page-token")
        if not following or following == asked.get("pageToken"):
            return
        asked["pageToken"] = following


def _failed(name: str, refusal: Refusal, what: str) -> DvMaintenanceError:
    return server.failed(name, refusal, _RIGHTS, what)


def _tables(settings: Settings, namespace: tuple[str, ...]) -> str:
    start = f"/polaris/v1/{_quoted(settings.warehouse)}"
    return f"{start}/namespaces/{_quoted(chr(0x1F).join(namespace))}/generic-tables"


def _quoted(part: str) -> str:
    return quote(part, safe="")
