"""Tables of Lance namespaces: ``NAME.NAMESPACE.….TABLE``, as deep as namespaces go. Lance's own library asks them: a
directory, or a server of the Lance REST namespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import Field, model_validator

from dv_maintenance.catalogs import parts_of
from dv_maintenance.catalogs.keys import options_of, settings_of
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.catalogs.named import ALL, client_errors, found, left_alone
from dv_maintenance.catalogs.server import check_encrypted
from dv_maintenance.credentials import COMMITTER
from dv_maintenance.errors import (
    DvMaintenanceError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.registry import Location, NamedTable, format_called

if TYPE_CHECKING:
    from dv_maintenance.tables.find import FoundTable

_DECLARED: Final = "only declared, without data"
# Options of object stores, as namespaces vend them -> as credential providers of obstore name them.
_KEYS: Final = {
    "aws_access_key_id": "access_key_id",
    "access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "secret_access_key": "secret_access_key",
    "aws_session_token": "token",
    "session_token": "token",
    "google_storage_token": "token",
    "azure_storage_sas_token": "sas_token",
    "azure_storage_sas_key": "sas_token",
    "sas_token": "sas_token",
}
_DENIED: Final = ("HTTP status 401", "HTTP status 403")
_END: Final = "expires_at_millis"


class Settings(CatalogSettings):
    """Of a directory ``root``, of a server ``uri``.

    properties : more that Lance's library takes, such as ``delimiter`` and ``header.NAME``.
    storage_options : to reach the root; those of a table go first.
    """

    type: Literal["lance"]
    root: str | None = None
    uri: str | None = Field(default=None, pattern=r"^https?://")
    token: str | None = Field(default=None, repr=False)
    properties: Mapping[str, str] = Field(default_factory=dict, repr=False)
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.root is None) == (self.uri is None):
            raise ValueError("give either 'root', for a directory, or 'uri', for a server")
        return self


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    """See ``kinds.CatalogKind``."""
    known = _described(name, settings)
    if known.is_only_declared:
        raise left_alone(name, _DECLARED)
    uri = plain_uri(str(known.location or ""))
    options = {**settings.storage_options, **options}
    given = {key: value for key, value in (known.storage_options or {}).items() if key != _END}
    if any(key.lower() in _KEYS for key in given):
        plain = {key: value for key, value in given.items() if key.lower() not in _KEYS}
        options = {**plain, **options_of(name, settings, uri, options)}
    else:
        options = {**given, **options}
    if known.managed_versioning:
        options[COMMITTER] = name.partition(".")[0]
        _check_newest(name, settings, Storage(uri, options))
    return "lance", Location(Storage(uri, options), NamedTable(name))


def _check_newest(name: str, settings: Settings, storage: Storage) -> None:
    """Raise UnsupportedFeatureError unless the newest version among the files is the one that the namespace names."""
    with _errors(name):
        from lance_namespace import ListTableVersionsRequest

        request = ListTableVersionsRequest(id=list(parts_of(name)[1:]), limit=1, descending=True)
        known = _connected(name, settings).list_table_versions(request).versions
    newest = max((each.version for each in known or ()), default=0)
    if format_called("lance").open(Location(storage)).version() != newest:
        raise UnsupportedFeatureError(
            f"{name}: the namespace says that version {newest} is the newest, and the files say otherwise",
            features=("versions of a namespace",),
            next_step="read the table with Lance's own library through this namespace",
        )


def listed(name: str, settings: Settings) -> Iterator[FoundTable]:
    """See ``kinds.CatalogKind``. ``NAME.*`` is everything, also in the namespaces below."""
    parts = list(parts_of(name)[1:])
    if not parts:
        raise UsageError(f"{name!r} is not the name of a namespace", next_step=f"write {name}.NAMESPACE, or {name}.*")
    deep = parts[-1] == ALL
    yield from _below(name, settings, parts[:-1] if deep else parts, (), deep=deep)


def _below(
    name: str, settings: Settings, namespace: list[str], before: tuple[str, ...], *, deep: bool
) -> Iterator[FoundTable]:
    for each in _pages(name, settings, "tables", namespace):
        yield found((*before, each), "lance", "")
    if deep:
        for each in _pages(name, settings, "namespaces", namespace):
            yield from _below(name, settings, [*namespace, each], (*before, each), deep=True)


def vend(options: Mapping[str, str]) -> dict[str, Any]:
    """The keys that the namespace gives with the table. See ``dv_maintenance.credentials``."""
    name = options["catalog.table"]
    given = _described(name, settings_of(options)).storage_options or {}
    keys = {_KEYS[key.lower()]: str(value) for key, value in given.items() if key.lower() in _KEYS and value}
    if not keys:
        raise StorageDeniedError(
            f"{name}: the namespace gives no keys for the table any more", next_step="give keys as storage options"
        )
    end = given.get(_END)
    return {**keys, "expires_at": None if not end else datetime.fromtimestamp(int(end) / 1000, UTC)}


def _described(name: str, settings: Settings) -> Any:
    identifier = list(parts_of(name)[1:])
    with _errors(name):
        from lance_namespace import DescribeTableRequest

        request = DescribeTableRequest(id=identifier, vend_credentials=True, check_declared=True)
        described = _connected(name, settings).describe_table(request)
    if not described.location:
        raise StorageUnavailableError(f"{name}: the namespace's answer has no location", next_step="check its settings")
    return described


def _pages(name: str, settings: Settings, what: Literal["tables", "namespaces"], namespace: list[str]) -> Iterator[str]:
    token: str | None = None
    while True:
        with _errors(name):
            import lance_namespace

            client = _connected(name, settings)
            if what == "tables":
                asked = lance_namespace.ListTablesRequest(id=namespace, page_token=token, include_declared=False)
                page = client.list_tables(asked)
            else:
                page = client.list_namespaces(lance_namespace.ListNamespacesRequest(id=namespace, page_token=token))
        yield from sorted(getattr(page, what) or ())
        if not page.page_token or page.page_token == token:
            return
        token = page.page_token


def _connected(name: str, settings: Settings) -> Any:
    if settings.uri is None:
        return _client("dir", settings.model_dump_json())
    if settings.token:
        check_encrypted(name, settings.uri)
    return _client("rest", settings.model_dump_json())


@lru_cache(maxsize=16)
def _client(way: str, settings_json: str) -> Any:
    from lance_namespace import connect

    settings = Settings.model_construct(**json.loads(settings_json))
    stored = {f"storage.{key}": value for key, value in settings.storage_options.items()}
    sent = {"header.Authorization": f"Bearer {settings.token}"} if settings.token else {}
    place = {"root": str(settings.root)} if way == "dir" else {"uri": str(settings.uri)}
    return connect(way, {**place, **stored, **sent, **settings.properties})


def _failed(name: str, error: Exception) -> DvMaintenanceError:
    from lance_namespace import errors

    # Answers that are not Lance's, such as a proxy's page, come as internal errors with a status.
    status = re.search(r"status=(\d{3})", str(error)) if isinstance(error, errors.InternalError) else None
    why = f"HTTP status {status[1]}" if status else type(error).__name__.removesuffix("Error")
    if why in _DENIED:
        error = errors.PermissionDeniedError(why)
    match error:
        case errors.TableNotFoundError() | errors.NamespaceNotFoundError():
            return TableNotFoundError(f"{name}: the namespace has no such table", next_step="check the name")
        case errors.PermissionDeniedError() | errors.UnauthenticatedError():
            return StorageDeniedError(
                f"{name}: the namespace refused ({why})", next_step="check the token, and what it may read"
            )
        case errors.InvalidInputError() | errors.UnsupportedOperationError():
            return UsageError(f"{name}: the namespace does not take the request ({why})", next_step="check the name")
    # Its text may have parts of the settings.
    return StorageUnavailableError(
        f"{name}: the namespace did not answer as expected ({why})", next_step="check its settings and the network"
    )


_errors = partial(client_errors, package="lance-namespace", extra="lance", failed=_failed)
