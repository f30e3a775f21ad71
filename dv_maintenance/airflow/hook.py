"""Connections of tables' storage: our own type ``dvstorage``, and those of the providers of Amazon, Google and
Microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
from airflow.sdk import BaseHook

from dv_maintenance.catalogs import from_plain
from dv_maintenance.catalogs.examination import examined
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.errors import DvMaintenanceError, UsageError, redacted
from dv_maintenance.storage import Storage

if TYPE_CHECKING:
    from airflow.sdk import Connection


_CATALOGS: Final = "catalogs"


class DvHook(BaseHook):
    """Storage options, from a connection of the type ``dvstorage``, whose extra is a JSON object with the keys of
    ``storage_options``, or of the types ``aws``, ``google_cloud_platform``, ``wasb`` and ``adls``.

    :param storage_conn_id: the connection.
    """

    conn_name_attr = "storage_conn_id"
    default_conn_name = "dv_storage_default"
    # Without "_", which no scheme of a URI has: Airflow warns whenever it makes one.
    conn_type = "dvstorage"
    hook_name = "Table storage"

    def __init__(self, storage_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.storage_conn_id = storage_conn_id

    def get_conn(self) -> dict[str, str]:
        """The storage options. Raises UsageError."""
        return storage_options(self.get_connection(self.storage_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Lists the host, if it is a URI such as ``s3://bucket/prefix``, with the options."""
        try:
            connection = self.get_connection(self.storage_conn_id)
            options = storage_options(connection)
            for name, settings in connected_by(self.storage_conn_id).completed({}).items():
                if problem := next((each for each in examined(name, {name: settings}) if not each.ok), None):
                    return False, redacted(f"catalog {name}: {problem.found}. Next: {problem.how}")
            if "://" not in (connection.host or ""):
                return True, "The options are complete. Set the host to a URI, such as s3://bucket/prefix, to try them."
            folders = Storage(connection.host, options).folders()
        except Exception as error:  # noqa: BLE001 (each provider's hook has its own)
            name = "" if isinstance(error, DvMaintenanceError) else f"{type(error).__name__}: "
            return False, redacted(f"{name}{error}")
        return True, f"{connection.host} can be listed: {len(folders)} folders at its top."


@dataclass(frozen=True)
class Connected:
    """What a connection says of the storage, and of catalogs: under ``catalogs`` in its extra, with the keys that they
    have in a file of tables.
    """

    conn_id: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _catalogs: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def completed(self, catalogs: Mapping[str, CatalogSettings]) -> Mapping[str, CatalogSettings]:
        """The catalogs of a file of tables, with what the connection adds to each of them, and those that it describes
        itself. It may complete the catalogs of several files. Raises UsageError.
        """
        if not self._catalogs:
            return catalogs
        written = {name: each.model_dump(exclude_none=True) for name, each in catalogs.items()}
        merged = {name: {**written.get(name, {}), **each} for name, each in self._catalogs.items()}
        whole = {name: each for name, each in merged.items() if name in catalogs or "type" in each}
        return {**catalogs, **from_plain(whole, f"connection {self.conn_id}")}


def connected_by(conn_id: str | None) -> Connected:
    """What a connection says, if there is one. Raises UsageError."""
    if conn_id is None:
        return Connected()
    connection = DvHook.get_connection(conn_id)
    options = storage_options(connection)
    catalogs = connection.extra_dejson.get(_CATALOGS) or {}
    if not isinstance(catalogs, Mapping) or not all(isinstance(each, Mapping) for each in catalogs.values()):
        raise UsageError(f"connection {conn_id}: 'catalogs' in its extra is not an object of objects")
    return Connected(conn_id, options, catalogs)


def storage_options(connection: Connection) -> dict[str, str]:
    """The options of ``storage_options`` that a connection stands for. Credentials that its provider's hook obtains,
    such as those of a role, end some time: they are obtained again for each task and each inspection of a watcher.

    Raises UsageError for a connection of another type, and for settings that need a provider that is not installed.
    """
    extra: Any = connection.extra_dejson
    if not isinstance(extra, Mapping):
        raise UsageError(f"connection {connection.conn_id}: its extra is not a JSON object of storage options")
    kind = connection.conn_type or DvHook.conn_type
    if kind in _OWN:
        return {str(key): str(value) for key, value in extra.items() if key != _CATALOGS}
    if kind not in _OF_PROVIDERS:
        raise UsageError(
            f"connection {connection.conn_id} is of the type {kind!r}",
            next_step=f"name one of the types {', '.join(STORAGE_TYPES)} as storage_conn_id",
        )
    # Some providers prefix the keys of their extra.
    plain = {key.rpartition("__")[2]: value for key, value in extra.items()}
    found = _OF_PROVIDERS[kind](connection, plain)
    if strange := sorted(plain.keys() & _ONLY_BY_HOOKS):
        found |= _by_hook(connection, strange)
    return {key: str(value) for key, value in found.items() if value}


def _by_hook(connection: Connection, settings: list[str]) -> dict[str, Any]:
    """The credentials that the provider's hook obtains. Raises UsageError if the provider is not installed."""
    try:
        return (_aws_session if connection.conn_type == "aws" else _google_token)(connection.conn_id)
    except ModuleNotFoundError as error:
        package = "amazon" if connection.conn_type == "aws" else "google"
        raise UsageError(
            f"connection {connection.conn_id} sets {', '.join(settings)}, which only its provider's hook follows",
            next_step=f"pip install apache-airflow-providers-{package}, or give these rights to the task's own "
            "environment and leave storage_conn_id out",
        ) from error


def _aws_session(conn_id: str) -> dict[str, Any]:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook

    hook = AwsGenericHook(aws_conn_id=conn_id, client_type="s3")
    found = hook.get_credentials()
    return {
        "aws_access_key_id": found.access_key,
        "aws_secret_access_key": found.secret_key,
        "aws_session_token": found.token,
        "aws_region": hook.region_name,
    }


def _google_token(conn_id: str) -> dict[str, Any]:
    from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
    from google.auth.transport.requests import Request

    credentials = GoogleBaseHook(gcp_conn_id=conn_id).get_credentials()
    credentials.refresh(Request())
    # The key belongs to whoever impersonates.
    return {
        "google_service_account": None,
        "google_service_account_key": None,
        "google_bearer_token": credentials.token,
    }


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


# The second is an old name.
_OWN: Final = (DvHook.conn_type, "dv_storage")
_OF_PROVIDERS: Final[Mapping[str, Callable[[Connection, Mapping[str, Any]], dict[str, Any]]]] = {
    "aws": _aws,
    "google_cloud_platform": _google,
    "wasb": _azure,
    "adls": _azure,
}
STORAGE_TYPES: Final = (*_OWN, *_OF_PROVIDERS)
