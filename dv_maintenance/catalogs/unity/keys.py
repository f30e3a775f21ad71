"""Keys that Unity Catalog vends for the files of a table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.catalogs.keys import nearest, settings_of
from dv_maintenance.catalogs.server import Refusal
from dv_maintenance.catalogs.unity.client import failed, request, table_path
from dv_maintenance.credentials import OPERATION
from dv_maintenance.errors import StorageDeniedError

if TYPE_CHECKING:
    from dv_maintenance.catalogs.unity import Settings

# As the catalog names them -> as credential providers of obstore do.
_NAMES: Final = {
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "token",
    "azure.sas-token": "sas_token",
    "gcs.oauth-token": "token",
}
_NEEDS: Final = {
    "READ": "reading needs SELECT on the table, and USE on its schema and catalog",
    "READ_WRITE": "writing needs MODIFY and SELECT on the table, and USE on its schema and catalog",
}


def vend(options: Mapping[str, str]) -> dict[str, Any]:
    """Those keys for the table's place that have the longest prefix, with ``expires_at``.

    Raises
    ------
    StorageDeniedError : the catalog vends none. StorageError, TableNotFoundError : as for every request.
    """
    name, place, operation = options["catalog.table"], options["catalog.place"], options[OPERATION]
    settings: Settings = settings_of(options)
    try:
        body = request(name, settings, f"{table_path(name)}/credentials?operation={operation}")
    except Refusal as refusal:
        raise failed(name, refusal, _NEEDS[operation]) from None
    best = nearest(place, body.get("storage-credentials") or ())
    config = best.get("config") or {}
    keys = {_NAMES[key]: str(value) for key, value in config.items() if key in _NAMES and value}
    if not keys:
        raise StorageDeniedError(
            f"{name}: the catalog vends no keys for {place} ({operation})",
            next_step="give keys as storage options, or have the catalog's administrator turn on credential vending",
        )
    end = best.get("expiration-time-ms")
    return {**keys, "expires_at": None if not end else datetime.fromtimestamp(int(end) / 1000, UTC)}
