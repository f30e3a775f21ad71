"""Requests to the server of a catalog. Its answers need not be JSON: proxies answer, too."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from dv_maintenance.catalogs.exchange import exchange
from dv_maintenance.errors import (
    DvMaintenanceError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
    TableNotFoundError,
    UsageError,
)

_SECONDS: Final = 30
_ATTEMPTS: Final = 3
_PAUSE: Final = 0.5  # seconds, doubled each time
_LONGEST_PAUSE: Final = 30.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Refusal(Exception):  # noqa: N818 - what it means depends on the request
    """The server turned a request down.

    kind : the type of its error, "" if it gave none.
    certain : whether the request had no effect: no earlier attempt at it stayed without an answer.
    """

    def __init__(self, status: int, kind: str, said: str, *, certain: bool) -> None:
        super().__init__(said or f"HTTP status {status}")
        self.status, self.kind, self.certain = status, kind, certain


def request(
    name: str,
    url: str,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    form: Mapping[str, str] | None = None,
    final: str = "",
) -> dict[str, Any]:
    """The object that the server answers to ``GET``, or with a body or a form to ``POST``. A request that nobody
    answered is repeated as it was.

    name : of the table or the catalog, for errors.
    final : the type of an error that a repetition does not change, although its status is 429.

    Raises
    ------
    Refusal : the server said no.
    StorageUnavailableError : nobody answered. Of a ``POST`` it is not known whether it had an effect.
    UsageError : a secret would be sent unencrypted.
    """
    data = json.dumps(body).encode() if body is not None else urlencode(form).encode() if form is not None else None
    kind_of_body = "application/x-www-form-urlencoded" if form is not None else "application/json"
    sent = {"Accept": "application/json", "Content-Type": kind_of_body, **(headers or {})}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    if token or form is not None:
        check_encrypted(name, url)
    certain = True
    for attempt in range(_ATTEMPTS):
        pause = _PAUSE * 2**attempt
        try:
            answer = exchange(url, sent, data, seconds=_SECONDS)
            if answer.status < 300:
                found = json.loads(answer.body)
                if isinstance(found, dict):
                    return found
                problem: DvMaintenanceError = _unavailable(name, "the catalog's answer is not an object")
            else:
                kind, said = _said(answer.body)
                pause = max(pause, _seconds(answer.headers.get("Retry-After")))
                certain = certain and (answer.status < 500 or data is None)
                if (answer.status != 429 and answer.status < 500) or (kind and kind == final):
                    raise Refusal(answer.status, kind, said, certain=certain)
                problem = _unavailable(name, f"the catalog did not answer ({said or f'HTTP status {answer.status}'})")
        except (ValueError, RecursionError):
            certain = data is None
            problem = _unavailable(name, "the catalog's answer is not JSON")
        except (OSError, http.client.HTTPException) as error:
            certain = data is None
            why = getattr(error, "reason", None) or error
            problem = _unavailable(name, f"the catalog at {_host(url)} can't be reached ({why})")
        if attempt == _ATTEMPTS - 1:
            raise problem
        time.sleep(min(pause, _LONGEST_PAUSE))
    raise AssertionError


def text(body: Any, key: str) -> str:
    """The text of a key; "" if there is none."""
    value = body.get(key) if isinstance(body, Mapping) else None
    return value if isinstance(value, str) else ""


def failed(name: str, refusal: Refusal, needed: str, what: str = "table") -> StorageError | TableNotFoundError:
    """``needed``: the rights, for somebody who lacks them. ``what``: belongs to the name."""
    if refusal.status == 404:
        return TableNotFoundError(f"{name}: the catalog has no such {what} ({refusal})", next_step="check the name")
    if refusal.status in (401, 403):
        return StorageDeniedError(f"{name}: the catalog refused ({refusal})", next_step=f"check the token; {needed}")
    return StorageDeniedError(f"{name}: the catalog refused the request ({refusal})", next_step="check the settings")


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def check_encrypted(name: str, uri: str) -> None:
    """Raise UsageError if a secret would go to another machine without encryption."""
    parts = urlsplit(uri)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise UsageError(
            f"{name}: a secret would go to {parts.hostname} unencrypted",
            next_step="give the catalog's uri with https",
        )


def _unavailable(name: str, what: str) -> StorageUnavailableError:
    return StorageUnavailableError(f"{name}: {what}", next_step="run it again")


def _said(answer: bytes) -> tuple[str, str]:
    """Type and message of an error. The body may be anything, also a proxy's page."""
    try:
        body = json.loads(answer)
    except (ValueError, RecursionError):
        return "", ""
    inner = body.get("error") if isinstance(body, Mapping) else None
    kind, said = text(inner, "type"), text(inner, "message")
    return kind or text(body, "error_code") or text(body, "errorCode"), said or text(body, "message")


def _seconds(value: str | None) -> float:
    return float(value) if value is not None and value.isdecimal() else 0.0
