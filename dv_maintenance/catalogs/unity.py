"""Tables of Unity Catalog, by its Delta API (``/delta/v1``).

A managed Delta table's newest version, and the commits that are not published yet, are what the catalog says: one
request for each look. An external table is one at a path, whose place has a name.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from dv_maintenance.catalogs import parts_of
from dv_maintenance.errors import (
    DamagedTableError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.delta.log.ratified import HeldCommit, Ratified
from dv_maintenance.tables.registry import Location

if TYPE_CHECKING:
    from dv_maintenance.catalogs import CatalogSettings

__all__ = ["UnityTable", "located"]

_API: Final = "/api/2.1/unity-catalog/delta/v1"
_SECONDS: Final = 30
_ATTEMPTS: Final = 3
_PAUSE: Final = 0.5
_FRESH: Final = 5.0  # seconds
_MANAGED: Final = "MANAGED"
_EXTERNAL: Final = "EXTERNAL"
_OPTIONS: Final = {
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "azure.sas-token": "azure_storage_sas_token",
    "gcs.oauth-token": "google_bearer_token",
}


@dataclass(frozen=True, slots=True)
class UnityTable:
    """The handle of a table. See ``registry.CatalogTable`` and ``log.ratified.ManagingCatalog``.

    name : as users write it: the name of the settings, then catalog, schema and table.
    managed : whether the catalog ratifies the table's commits.
    uuid : of the table that had the name when it was opened.
    """

    name: str
    managed: bool
    uuid: str
    settings: CatalogSettings = field(repr=False)
    opening: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list, repr=False, compare=False)

    @property
    def identity(self) -> str:
        return self.uuid

    def ratified(self) -> Ratified:
        """The newest version, and the commits that the catalog holds. The answer that the table was opened with serves
        its first look, too, if that follows at once.

        Raises
        ------
        TableNotFoundError : the name belongs to no table, or to another one by now.
        DamagedTableError : the answer contradicts itself.
        StorageDeniedError, StorageUnavailableError : the catalog refused, or did not answer.
        """
        at, first = self.opening.pop() if self.opening else (0.0, {})
        body = first if first and time.monotonic() - at < _FRESH else _ask(self.name, self.settings)
        uuid = _text(body.get("metadata"), "table-uuid")
        if uuid != self.uuid:
            raise TableNotFoundError(
                f"{self.name} is another table now ({uuid or 'without an id'}): it was dropped and created again",
                next_step="open it again",
            )
        return _ratified(self.name, body)


def located(name: str, settings: CatalogSettings, options: Mapping[str, str]) -> tuple[str, Location]:
    """Format and location of ``NAME.CATALOG.SCHEMA.TABLE``. ``options`` of the storage go before vended keys.

    Raises
    ------
    As :meth:`UnityTable.ratified`; UnsupportedFeatureError for a view or anything else that is not a Delta table of
    files.
    """
    body = _ask(name, settings)
    metadata = body.get("metadata") or {}
    kind, place = _text(metadata, "table-type"), _text(metadata, "location")
    if kind not in (_MANAGED, _EXTERNAL) or not place:
        raise UnsupportedFeatureError(
            f"{name} is of the type {kind or '(none)'}, and not a table of files",
            features=(kind or "no type",),
            next_step="name a managed or external Delta table",
        )
    uri = plain_uri(place)
    keys = {} if uri.startswith("file://") else _keys(name, settings, uri)
    handle = UnityTable(name, kind == _MANAGED, _text(metadata, "table-uuid"), settings, [(time.monotonic(), body)])
    return "delta", Location(Storage(uri, {**keys, **options}), handle)


def _ratified(name: str, body: Mapping[str, Any]) -> Ratified:
    try:
        latest = int(body.get("latest-table-version") or 0)
        held = {
            int(each["version"]): HeldCommit(
                str(each["file-name"]), int(each["file-size"]), int(each["file-modification-timestamp"])
            )
            for each in body.get("commits") or ()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedTableError(f"{name}: the catalog's answer can't be understood ({error!r})") from None
    return Ratified(latest, held)


def _keys(name: str, settings: CatalogSettings, uri: str) -> dict[str, str]:
    """The storage options that the catalog vends for reading the table: those of the longest prefix of its place."""
    body = _ask(name, settings, "/credentials?operation=READ")
    found = [
        each
        for each in body.get("storage-credentials") or ()
        if f"{uri}/".startswith(f"{plain_uri(_text(each, 'prefix') or uri).rstrip('/')}/")
    ]
    if not found:
        return {}
    best = max(found, key=lambda each: len(_text(each, "prefix")))
    return {_OPTIONS[key]: str(value) for key, value in (best.get("config") or {}).items() if key in _OPTIONS and value}


def _text(body: Any, key: str) -> str:
    value = body.get(key) if isinstance(body, Mapping) else None
    return value if isinstance(value, str) else ""


# -- requests ----------------------------------------------------------------------------------------------------------


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _ask(name: str, settings: CatalogSettings, more: str = "") -> Mapping[str, Any]:
    """The answer to ``GET`` of the table. A request that nobody answered is repeated."""
    parts = parts_of(name)[1:]
    if len(parts) != 3:
        raise UsageError(
            f"{name!r} is not the name of a table in Unity Catalog",
            next_step=f"write {name.partition('.')[0]}.CATALOG.SCHEMA.TABLE",
        )
    catalog, schema, table = (quote(each, safe="") for each in parts)
    url = f"{settings.uri.rstrip('/')}{_API}/catalogs/{catalog}/schemas/{schema}/tables/{table}{more}"
    headers = {"Accept": "application/json"}
    if settings.token:
        headers["Authorization"] = f"Bearer {settings.token}"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the settings allow http(s) alone
    opener = urllib.request.build_opener(_NoRedirects)
    for attempt in range(_ATTEMPTS):
        try:
            with opener.open(request, timeout=_SECONDS) as answer:
                body = json.loads(answer.read())
            break
        except urllib.error.HTTPError as error:
            failed = _failed(name, error)
        except ValueError:
            failed = StorageUnavailableError(f"{name}: the catalog's answer is not JSON", next_step="run it again")
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            failed = StorageUnavailableError(
                f"{name}: the catalog at {settings.uri} can't be reached ({why})", next_step="run it again"
            )
        if not isinstance(failed, StorageUnavailableError) or attempt == _ATTEMPTS - 1:
            raise failed
        time.sleep(_PAUSE * 2**attempt)
    if not isinstance(body, Mapping):
        raise StorageUnavailableError(f"{name}: the catalog's answer is not an object", next_step="run it again")
    return body


def _failed(name: str, error: urllib.error.HTTPError) -> StorageError | TableNotFoundError | UnsupportedFeatureError:
    """What an answer without success means. Its body may be anything, also a proxy's page."""
    kind, said = "", ""
    try:
        body = json.loads(error.read(65536))
        inner = body.get("error") if isinstance(body, Mapping) else None
        kind, said = _text(inner, "type"), _text(inner, "message")
    except (OSError, ValueError):
        pass
    why = said or f"HTTP status {error.code}"
    if error.code == 404:
        return TableNotFoundError(f"{name}: the catalog has no such table ({why})", next_step="check the name")
    if kind == "UnsupportedTableFormatException":
        return UnsupportedFeatureError(
            f"{name} is not a Delta table ({why})",
            features=("a format of the catalog",),
            next_step="open the table by its path if this package knows its format",
        )
    if error.code in (401, 403):
        return StorageDeniedError(
            f"{name}: the catalog refused ({why})",
            next_step="check the token; reading needs SELECT on the table, and USE on its schema and catalog",
        )
    if error.code == 429 or error.code >= 500:
        return StorageUnavailableError(f"{name}: the catalog did not answer ({why})", next_step="run it again")
    return StorageDeniedError(f"{name}: the catalog turned the request down ({why})", next_step="check the settings")
