"""Requests to a server of Unity Catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from dv_maintenance.catalogs import login, parts_of, server
from dv_maintenance.catalogs.server import Refusal, text
from dv_maintenance.errors import (
    StorageError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)

if TYPE_CHECKING:
    from dv_maintenance.catalogs.unity import Settings


_API: Final = "/api/2.1/unity-catalog"
# The answer of a table with too many unpublished commits. To repeat the request changes nothing.
FULL: Final = "ResourceExhaustedException"


def request(name: str, settings: Settings, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """See :func:`login.request`."""
    return login.request(name, settings, f"{_API}{path}", body=body, final=FULL)


def pages(name: str, settings: Settings, what: str, **query: str | int) -> Iterator[Mapping[str, Any]]:
    """The objects of a list of the generic API, such as ``tables``, page by page. ``name``: for errors.

    Raises
    ------
    TableNotFoundError, StorageDeniedError, StorageUnavailableError : as for every request.
    """
    token, seen = "", set[str]()
    while True:
        asked = urlencode({**query, **({"page_token": token} if token else {})})
        try:
            body = request(name, settings, f"/{what}?{asked}")
        except Refusal as refusal:
            raise server.failed(name, refusal, "a listing needs USE on the schema and its catalog", "schema") from None
        yield from (each for each in body.get(what) or () if text(each, "name"))
        token = text(body, "next_page_token")
        if not token:
            return
        if token in seen:
            raise StorageUnavailableError(f"{name}: the catalog's pages repeat", next_step="run it again")
        seen.add(token)


def table_path(name: str) -> str:
    parts = parts_of(name)[1:]
    if len(parts) != 3:
        raise UsageError(
            f"{name!r} is not the name of a table in Unity Catalog",
            next_step=f"write {name.partition('.')[0]}.CATALOG.SCHEMA.TABLE",
        )
    catalog, schema, table = (quote(each, safe="") for each in parts)
    return f"/delta/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"


def info_path(name: str) -> str:
    """Of what the generic API says of a table."""
    return f"/tables/{quote('.'.join(parts_of(name)[1:]), safe='')}"


def failed(name: str, refusal: Refusal, needed: str) -> StorageError | TableNotFoundError | UnsupportedFeatureError:
    """``needed``: the rights, for somebody who lacks them."""
    if refusal.kind == "UnsupportedTableFormatException":
        return UnsupportedFeatureError(
            f"{name} is not a Delta table ({refusal})",
            features=("a format of the catalog",),
            next_step="open the table by its path if this package knows its format",
        )
    return server.failed(name, refusal, needed)
