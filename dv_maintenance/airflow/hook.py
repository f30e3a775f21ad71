"""The connection ``dv_storage``: options and secrets of the storage that tables are in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook, Connection

from dv_maintenance.errors import UsageError

__all__ = ["DvHook"]


class DvHook(BaseHook):
    """The storage options are the connection's extra: a JSON object with the keys of ``storage_options``."""

    conn_name_attr = "storage_conn_id"
    default_conn_name = "dv_storage_default"
    conn_type = "dv_storage"
    hook_name = "Table storage"

    def __init__(self, storage_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.storage_conn_id = storage_conn_id

    def get_conn(self) -> dict[str, str]:
        """The storage options. Raises UsageError."""
        return self._options(self.get_connection(self.storage_conn_id))

    async def aget_conn(self) -> dict[str, str]:
        """As :meth:`get_conn`, in a triggerer."""
        return self._options(await self.aget_connection(self.storage_conn_id))

    def _options(self, connection: Connection) -> dict[str, str]:
        extra: Any = connection.extra_dejson
        if not isinstance(extra, Mapping):
            raise UsageError(f"connection {self.storage_conn_id}: its extra is not a JSON object of storage options")
        return {str(key): str(value) for key, value in extra.items()}
