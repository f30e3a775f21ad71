"""What a server of Unity Catalog lets the user of a token do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.catalogs.examination import Examined
from dv_maintenance.catalogs.server import Refusal, text
from dv_maintenance.catalogs.unity.client import info_path, request, table_path
from dv_maintenance.errors import StorageDeniedError, StorageError, UsageError

if TYPE_CHECKING:
    from dv_maintenance.catalogs.unity import Settings

_RIGHTS: Final = {
    "READ": ("right to read", "SELECT on the table, and USE on its schema and catalog"),
    "READ_WRITE": ("right to write", "MODIFY and SELECT on the table, and USE on its schema and catalog"),
}
_PERMISSIONS: Final = {
    "DATA_REORGANIZATION": "to purge, compact and order",
    "DATA_CLEANUP": "to vacuum",
    "METADATA_CLEANUP": "to clean the log",
}
_DENIED: Final = (401, 403)


def examine(name: str, settings: Settings) -> Iterator[Examined]:
    """For a catalog, whether it answers and takes the token. For a table also the rights on it, and what maintenance
    the catalog permits. Raises UsageError for a name of neither.
    """
    own, dot, _ = name.partition(".")
    reached = f"{settings.uri} answers"
    try:
        request(own, settings, "/catalogs?max_results=1")
    except Refusal as refusal:
        yield Examined("catalog", True, reached, "a server that answers")
        if refusal.status == 401 or (refusal.status == 403 and not dot):
            how = f"have the administrator of {own} issue a token, and set it in the settings of {own}"
            yield Examined("token", False, str(refusal), "a token that the server takes", how)
            return
    except StorageDeniedError as error:
        yield Examined("token", False, error.message, "a token for the client", str(error.next_step))
        return
    except (StorageError, UsageError) as error:
        how = str(error.next_step or "") if isinstance(error, UsageError) else "check uri, the network, and the server"
        yield Examined("catalog", False, error.message, "a server that answers", how)
        return
    else:
        yield Examined("catalog", True, reached, "a server that answers")
    token = "it is taken" if settings.token or settings.client_id else "none"
    yield Examined("token", True, token, "a token, if the server asks for one")
    if dot:
        yield from _of_table(name, own, settings)


def _of_table(name: str, own: str, settings: Settings) -> Iterator[Examined]:
    path = table_path(name)
    grant = f"ask the owner of the table, its schema or catalog, or the administrator of {own}, to grant"
    try:
        body: Mapping[str, Any] = request(name, settings, path)
    except Refusal as refusal:
        what, right = _RIGHTS["READ"]
        if refusal.status in _DENIED:
            yield Examined(what, False, str(refusal), right, f"{grant} {right}")
        else:
            yield Examined("table in the catalog", False, str(refusal), "a Delta table", "check the name")
        return
    except StorageError as error:
        yield Examined("table in the catalog", False, error.message, "an answer", "run it again")
        return
    kind = text(body.get("metadata"), "table-type")
    yield Examined("table in the catalog", True, f"a table of the type {kind}", "a Delta table")
    for operation, (what, right) in _RIGHTS.items():
        try:
            request(name, settings, f"{path}/credentials?operation={operation}")
        except Refusal as refusal:
            how = f"{grant} {right} (on Databricks also EXTERNAL USE SCHEMA)"
            yield Examined(what, False, str(refusal), right, how if refusal.status in _DENIED else "check the server")
        except StorageError as error:
            yield Examined(what, False, error.message, right, "run it again")
        else:
            yield Examined(what, True, "granted", right)
    if kind != "MANAGED":
        return
    allowed = body.get("allowed-maintenance-operations") or ()
    for permission, purpose in _PERMISSIONS.items():
        ok = permission in allowed
        how = "" if ok else f"ask the owner of the table, or the administrator of {own}, to permit it"
        yield Examined(permission, ok, "permitted" if ok else "not permitted", purpose, how)
    yield from _optimizer(name, settings)


def _optimizer(name: str, settings: Settings) -> Iterator[Examined]:
    from dv_maintenance.catalogs.unity import hidden_rows, optimizer_of

    try:
        info = request(name, settings, info_path(name))
    except (Refusal, StorageError):
        return
    if why := hidden_rows(info):
        how = "maintain it with the catalog's own engine"
        yield Examined("filters", False, why, "a table without row filters and column masks", how)
    if other := optimizer_of(info):
        yield Examined("optimizer", True, f"{other}: policies leave the table to it", "beside_optimizer changes that")
