"""Requests to a server of Unity Catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from dv_maintenance.catalogs import parts_of, server
from dv_maintenance.catalogs.server import Refusal, text
from dv_maintenance.errors import StorageError, TableNotFoundError, UnsupportedFeatureError, UsageError

if TYPE_CHECKING:
    from dv_maintenance.catalogs.unity import Settings

__all__ = ["FULL", "Refusal", "failed", "request", "table_path", "text"]

_API: Final = "/api/2.1/unity-catalog"
# The answer of a table with too many unpublished commits. To repeat the request changes nothing.
FULL: Final = "ResourceExhaustedException"


def request(name: str, settings: Settings, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """See :func:`server.request`."""
    url = f"{settings.uri.rstrip('/')}{_API}{path}"
    return server.request(name, url, token=settings.token, body=body, final=FULL)


def table_path(name: str) -> str:
    parts = parts_of(name)[1:]
    if len(parts) != 3:
        raise UsageError(
            f"{name!r} is not the name of a table in Unity Catalog",
            next_step=f"write {name.partition('.')[0]}.CATALOG.SCHEMA.TABLE",
        )
    catalog, schema, table = (quote(each, safe="") for each in parts)
    return f"/delta/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"


def failed(name: str, refusal: Refusal, needed: str) -> StorageError | TableNotFoundError | UnsupportedFeatureError:
    """``needed``: the rights, for somebody who lacks them."""
    if refusal.kind == "UnsupportedTableFormatException":
        return UnsupportedFeatureError(
            f"{name} is not a Delta table ({refusal})",
            features=("a format of the catalog",),
            next_step="open the table by its path if this package knows its format",
        )
    return server.failed(name, refusal, needed)
