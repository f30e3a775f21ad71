"""Connections of tables' storage: our own type ``dv_storage``, and those of the providers of Amazon, Google and
Microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
from airflow.sdk import BaseHook

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["DvHook", "storage_options"]


class DvHook(BaseHook):
    """Storage options, from a connection of the type ``dv_storage``, whose extra is a JSON object with the keys of
    ``storage_options``, or of the types ``aws``, ``google_cloud_platform``, ``wasb`` and ``adls``.

    :param storage_conn_id: the connection.
    """

    conn_name_attr = "storage_conn_id"
    default_conn_name = "dv_storage_default"
    conn_type = "dv_storage"
    hook_name = "Table storage"

    def __init__(self, storage_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.storage_conn_id = storage_conn_id

    def get_conn(self) -> dict[str, str]:
        """The storage options. Raises UsageError."""
        return storage_options(self.get_connection(self.storage_conn_id))

    async def aget_conn(self) -> dict[str, str]:
        """As :meth:`get_conn`, in a triggerer."""
        return storage_options(await self.aget_connection(self.storage_conn_id))


def storage_options(connection: Connection) -> dict[str, str]:
    """The options of ``storage_options`` that a connection stands for.

    Raises UsageError for a connection of another type, and for settings that only its provider's hook can follow, such
    as a role to assume: the storage's client would use other rights than the connection has.
    """
    extra: Any = connection.extra_dejson
    if not isinstance(extra, Mapping):
        raise UsageError(f"connection {connection.conn_id}: its extra is not a JSON object of storage options")
    kind = connection.conn_type or DvHook.conn_type
    if kind not in _TYPES:
        raise UsageError(
            f"connection {connection.conn_id} is of the type {kind!r}",
            next_step=f"name one of the types {', '.join(_TYPES)} as storage_conn_id",
        )
    # Some providers prefix the keys of their extra.
    plain = {key.rpartition("__")[2]: value for key, value in extra.items()}
    strange = sorted(plain.keys() & _ONLY_BY_HOOKS)
    if kind != DvHook.conn_type and strange:
        raise UsageError(
            f"connection {connection.conn_id} sets {', '.join(strange)}, which only its provider's hook follows",
            next_step="give these rights to the task's own environment and leave storage_conn_id out, or name a "
            f"connection of the type {DvHook.conn_type}",
        )
    found = _TYPES[kind](connection, extra if kind == DvHook.conn_type else plain)
    return {str(key): str(value) for key, value in found.items() if kind == DvHook.conn_type or value}


_ONLY_BY_HOOKS: Final = frozenset(
    {
        "role_arn",
        "assume_role_method",
        "profile_name",
        "impersonation_chain",
        "key_secret_name",
        "credential_config_file",
    }
)


def _own(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    del connection
    return dict(extra)


def _aws(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    # apache-airflow-providers-amazon: connections/aws.html
    service = (extra.get("service_config") or {}).get("s3") or {}
    endpoint = service.get("endpoint_url") or extra.get("endpoint_url") or extra.get("host")
    return {
        "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
        "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "aws_region": extra.get("region_name") or (extra.get("session_kwargs") or {}).get("region_name"),
        "aws_endpoint": endpoint,
        "allow_http": "true" if str(endpoint).startswith("http://") else None,
    }


def _google(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    # apache-airflow-providers-google: connections/gcp.html
    del connection
    key = extra.get("keyfile_dict")
    return {
        "google_service_account": extra.get("key_path"),
        "google_service_account_key": key if key is None or isinstance(key, str) else orjson.dumps(key).decode(),
    }


def _azure(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    # apache-airflow-providers-microsoft-azure: connections/wasb.html
    parts = dict(part.partition("=")[::2] for part in str(extra.get("connection_string") or "").split(";"))
    tenant = extra.get("tenant_id")
    # With a tenant, login and password are those of a service principal, and the host is the account.
    host = (connection.host or "").removeprefix("https://").partition(".")[0]
    return {
        "azure_storage_account_name": parts.get("AccountName") or (host if tenant else connection.login),
        "azure_storage_account_key": parts.get("AccountKey") or (None if tenant else connection.password),
        "azure_storage_sas_key": parts.get("SharedAccessSignature") or extra.get("sas_token"),
        "azure_storage_tenant_id": tenant,
        "azure_storage_client_id": connection.login if tenant else None,
        "azure_storage_client_secret": connection.password if tenant else None,
    }


_TYPES: Final[Mapping[str, Callable[[Connection, Mapping[str, Any]], dict[str, Any]]]] = {
    DvHook.conn_type: _own,
    "aws": _aws,
    "google_cloud_platform": _google,
    "wasb": _azure,
    "adls": _azure,
}
