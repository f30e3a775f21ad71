"""Requests to a server of Unity Catalog. Its answers need not be JSON: proxies answer, too."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from dv_maintenance.catalogs import parts_of
from dv_maintenance.errors import (
    DvMaintenanceError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)

if TYPE_CHECKING:
    from dv_maintenance.catalogs import CatalogSettings

_API: Final = "/api/2.1/unity-catalog"
_SECONDS: Final = 30
_ATTEMPTS: Final = 3
_PAUSE: Final = 0.5  # seconds, doubled each time
_LONGEST_PAUSE: Final = 30.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
# The answer of a table with too many unpublished commits. To repeat the request changes nothing.
FULL: Final = "ResourceExhaustedException"


class Refusal(Exception):  # noqa: N818 - what it means depends on the request
    """The server turned a request down.

    kind : the type of its error, "" if it gave none.
    certain : whether the request had no effect: no earlier attempt at it stayed without an answer.
    """

    def __init__(self, status: int, kind: str, said: str, *, certain: bool) -> None:
        super().__init__(said or f"HTTP status {status}")
        self.status, self.kind, self.certain = status, kind, certain


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def request(name: str, settings: CatalogSettings, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The object that the server answers to ``GET``, or with a body to ``POST``. A request that nobody answered is
    repeated as it was. ``name``: for errors.

    Raises
    ------
    Refusal : the server said no.
    StorageUnavailableError : nobody answered. Of a ``POST`` it is not known whether it had an effect.
    UsageError : the token would be sent unencrypted.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if settings.token:
        _check_encrypted(name, settings.uri)
        headers["Authorization"] = f"Bearer {settings.token}"
    url = f"{settings.uri.rstrip('/')}{_API}{path}"
    asked = urllib.request.Request(url, data, headers)  # noqa: S310 - the settings allow http(s) alone
    certain = True
    for attempt in range(_ATTEMPTS):
        pause = _PAUSE * 2**attempt
        try:
            with _OPENER.open(asked, timeout=_SECONDS) as answer:
                found = json.loads(answer.read())
            if isinstance(found, dict):
                return found
            problem: DvMaintenanceError = _unavailable(name, "the catalog's answer is not an object")
        except urllib.error.HTTPError as error:
            with error:
                kind, said = _said(error)
                pause = max(pause, _seconds(error.headers.get("Retry-After")))
            certain = certain and (error.code < 500 or body is None)
            if (error.code != 429 and error.code < 500) or kind == FULL:
                raise Refusal(error.code, kind, said, certain=certain) from None
            problem = _unavailable(name, f"the catalog did not answer ({said or f'HTTP status {error.code}'})")
        except ValueError:
            certain = body is None
            problem = _unavailable(name, "the catalog's answer is not JSON")
        except (OSError, http.client.HTTPException) as error:
            certain = body is None
            why = getattr(error, "reason", None) or error
            problem = _unavailable(name, f"the catalog at {settings.uri} can't be reached ({why})")
        if attempt == _ATTEMPTS - 1:
            raise problem
        time.sleep(min(pause, _LONGEST_PAUSE))
    raise AssertionError


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
    if refusal.status == 404:
        return TableNotFoundError(f"{name}: the catalog has no such table ({refusal})", next_step="check the name")
    if refusal.kind == "UnsupportedTableFormatException":
        return UnsupportedFeatureError(
            f"{name} is not a Delta table ({refusal})",
            features=("a format of the catalog",),
            next_step="open the table by its path if this package knows its format",
        )
    if refusal.status in (401, 403):
        return StorageDeniedError(f"{name}: the catalog refused ({refusal})", next_step=f"check the token; {needed}")
    return StorageDeniedError(f"{name}: the catalog refused the request ({refusal})", next_step="check the settings")


def text(body: Any, key: str) -> str:
    """The text of a key; "" if there is none."""
    value = body.get(key) if isinstance(body, Mapping) else None
    return value if isinstance(value, str) else ""


def _check_encrypted(name: str, uri: str) -> None:
    parts = urlsplit(uri)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise UsageError(
            f"{name}: the token would go to {parts.hostname} unencrypted",
            next_step="give the catalog's uri with https",
        )


def _unavailable(name: str, what: str) -> StorageUnavailableError:
    return StorageUnavailableError(f"{name}: {what}", next_step="run it again")


def _said(error: urllib.error.HTTPError) -> tuple[str, str]:
    """Type and message of an error. The body may be anything, also a proxy's page."""
    try:
        body = json.loads(error.read(65536))
    except (OSError, ValueError, http.client.HTTPException):
        return "", ""
    inner = body.get("error") if isinstance(body, Mapping) else None
    kind, said = text(inner, "type"), text(inner, "message")
    return kind or text(body, "error_code") or text(body, "errorCode"), said or text(body, "message")


def _seconds(value: str | None) -> float:
    return float(value) if value is not None and value.isdecimal() else 0.0
