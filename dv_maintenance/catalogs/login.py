"""Requests of somebody whom the server knows: by a token, or as a client that gets one for its secret.

Source: RFC 6749, 4.4 (client credentials).
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping
from threading import Lock
from typing import Any, ClassVar, Final, Self

from pydantic import Field, model_validator

from dv_maintenance.catalogs import server
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.catalogs.server import Refusal, text
from dv_maintenance.errors import StorageDeniedError, StorageUnavailableError

_DEFAULT_SECONDS: Final = 600.0


class LoginSettings(CatalogSettings):
    """uri : of the server.
    oauth2_server_uri : where tokens are given, if that is not ``TOKENS`` of the server.
    """

    TOKENS: ClassVar[str]
    """The path below ``uri`` that gives tokens."""
    BASIC: ClassVar[bool]
    """Whether the secret goes in the header, not in the body."""

    uri: str = Field(pattern=r"^https?://")
    token: str | None = Field(default=None, repr=False)
    client_id: str | None = None
    client_secret: str | None = Field(default=None, repr=False)
    scope: str = ""
    oauth2_server_uri: str | None = Field(default=None, pattern=r"^https?://")

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> Self:
        if (self.client_id is None) != (self.client_secret is None) or (self.token and self.client_id):
            raise ValueError("give a 'token', or a 'client_id' and a 'client_secret', or none of them")
        return self

    @property
    def headers(self) -> Mapping[str, str]:
        """Of every request."""
        return {}


def request(
    name: str,
    settings: LoginSettings,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    final: str = "",
) -> dict[str, Any]:
    """:func:`server.request` to a path below the server's ``uri``. A token that ended early is replaced.

    Raises
    ------
    StorageDeniedError : the client gets no token. Others: as :func:`server.request`.
    """
    url = f"{settings.uri.rstrip('/')}{path}"
    sent = {**(headers or {}), **settings.headers}
    token = _TOKENS.of(name, settings)
    try:
        return server.request(name, url, token=token, headers=sent, body=body, final=final)
    except Refusal as refusal:
        if refusal.status != 401 or not _TOKENS.forget(settings, token):
            raise
        first = refusal
    token = _TOKENS.of(name, settings)
    try:
        return server.request(name, url, token=token, headers=sent, body=body, final=final)
    except Refusal as refusal:
        refusal.certain = refusal.certain and first.certain
        raise


class _Tokens:
    """Tokens that clients have got, kept until half of their time has passed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tokens: dict[Any, tuple[str, float]] = {}

    def of(self, name: str, settings: LoginSettings) -> str | None:
        if settings.client_id is None or settings.client_secret is None:
            return settings.token
        key = _key(settings)
        with self._lock:
            token, until = self._tokens.get(key, ("", 0.0))
            if until <= time.monotonic():
                token, seconds = _got(name, settings, settings.client_id, settings.client_secret)
                self._tokens[key] = token, time.monotonic() + seconds / 2
            return token

    def forget(self, settings: LoginSettings, token: str | None) -> bool:
        """Whether there was a token to forget. Another thread may have replaced it."""
        key = _key(settings)
        with self._lock:
            known = self._tokens.get(key)
            if known is not None and known[0] == token:
                del self._tokens[key]
            return known is not None


def _key(settings: LoginSettings) -> Any:
    who = (settings.client_id, settings.client_secret, settings.scope, *settings.headers.items())
    return settings.uri, settings.oauth2_server_uri, who


def _got(name: str, settings: LoginSettings, client: str, secret: str) -> tuple[str, float]:
    """A token, and for how many seconds it holds."""
    url = settings.oauth2_server_uri or f"{settings.uri.rstrip('/')}{settings.TOKENS}"
    form = {"grant_type": "client_credentials", "scope": settings.scope}
    headers = {**settings.headers, "Accept": "application/json"}
    if settings.BASIC:
        headers["Authorization"] = f"Basic {b64encode(f'{client}:{secret}'.encode()).decode()}"
    else:
        form |= {"client_id": client, "client_secret": secret}
    try:
        body = server.request(name, url, form=form, headers=headers)
    except Refusal as refusal:
        raise StorageDeniedError(
            f"{name}: the catalog gives no token to the client ({refusal})",
            next_step="check client_id, client_secret and scope",
        ) from None
    token, seconds = text(body, "access_token"), body.get("expires_in")
    if not token:
        raise StorageUnavailableError(f"{name}: the answer has no token", next_step="check oauth2_server_uri")
    return token, float(seconds) if isinstance(seconds, int | float) else _DEFAULT_SECONDS


_TOKENS: Final = _Tokens()
