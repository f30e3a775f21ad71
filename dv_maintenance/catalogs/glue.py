"""Tables of AWS Glue's Data Catalog: ``NAME.DATABASE.TABLE``.

Credentials are those that boto3 finds: environment, profile, role. The files are reached with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from dv_maintenance.catalogs.examination import Examined
from dv_maintenance.catalogs.keys import options_of, settings_of
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.catalogs.metastore import Entry
from dv_maintenance.catalogs.named import client_errors, found, in_schemas, schema_in, table_in
from dv_maintenance.errors import (
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UsageError,
)
from dv_maintenance.storage import plain_uri
from dv_maintenance.tables.publish import Overtaken
from dv_maintenance.tables.registry import Location

if TYPE_CHECKING:
    from dv_maintenance.tables.find import FoundTable

_RIGHTS: Final = (
    "check the credentials that boto3 finds; it takes glue:GetTable, glue:GetTables and glue:GetDatabases, "
    "and glue:UpdateTable to commit to Iceberg tables"
)
_REACH: Final = "check the region, the endpoint and the network"
_DENIED: Final = ("AccessDenied", "ExpiredToken", "UnrecognizedClient", "InvalidClientToken", "InvalidSignature")
_BUSY: Final = ("Throttling", "RequestLimitExceeded", "InternalService", "ServiceUnavailable", "OperationTimeout")
# boto3 renews credentials by itself, so they are asked for again before they may end.
_KEPT: Final = timedelta(minutes=20)


class Settings(CatalogSettings):
    """What boto3 does not find by itself.

    profile : of the AWS configuration.
    catalog_id : the account whose catalog it is, if that is another one.
    endpoint : of the service, such as a VPC endpoint.
    """

    type: Literal["glue"]
    region: str | None = None
    profile: str | None = None
    catalog_id: str | None = Field(default=None, coerce_numbers_to_str=True)
    endpoint: str | None = Field(default=None, pattern=r"^https?://")


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    """See ``kinds.CatalogKind``."""
    _, described = _resolved(name, settings)
    entry = _entry(described)
    if entry.format == "iceberg":
        return "iceberg", _iceberg(name, settings, entry, options)
    storage, handle = entry.opened(name, {})
    return entry.format, Location(
        type(storage)(storage.uri, file_options(name, settings, storage.uri, options)), handle
    )


def _iceberg(name: str, settings: Settings, entry: Entry, options: Mapping[str, str]) -> Location:
    from dv_maintenance.tables.iceberg.pointed import PointedTable, root_of

    entry.check(name)
    find = partial(newest, name, settings)
    known = file_options(name, settings, bucket_of(entry.metadata), options)
    return Location(
        root_of(name, entry.metadata, find, known), PointedTable(name, find, partial(_move, name, settings))
    )


def newest(name: str, settings: Settings) -> str:
    """The location of the newest metadata file of an Iceberg table. Raises as :func:`located`."""
    entry = _entry(_resolved(name, settings)[1])
    entry.check(name)
    return entry.metadata


def file_options(name: str, settings: Settings, place: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a storage at ``place``: with the caller's own credentials, unless ``options`` bring some."""
    known = options_of(name, settings, place, options) if place.startswith("s3://") else dict(options)
    if settings.region and not any("region" in each.lower() for each in known):
        known["aws_region"] = settings.region
    return known


def bucket_of(metadata: str) -> str:
    """The place for which an Iceberg table gets keys: its files need not be together."""
    return "/".join(plain_uri(metadata).split("/")[:3])


def _move(name: str, settings: Settings, old: str, new: str) -> None:
    """See ``PointedTable.move_pointer``. Glue changes the entry only if it still has the version that was read."""
    asked, described = _resolved(name, settings)
    parameters = described.get("Parameters") or {}
    if parameters.get("metadata_location") != old:
        raise Overtaken("the catalog names another metadata file, building on it")
    client, version = _client(settings, attempts=1), described.get("VersionId")
    if not version:
        raise RefusedError(
            f"{name}: Glue does not tell the version of the table's entry, so a change by others would go unnoticed",
            done="nothing was committed",
            next_step="commit with the table's engine",
        )
    known = client.meta.service_model.shape_for("TableInput").members
    entry = {key: value for key, value in described.items() if key in known}
    entry["Parameters"] = {**parameters, "metadata_location": new, "previous_metadata_location": old}
    where = {key: value for key, value in asked.items() if key != "Name"}
    with _errors(name):
        try:
            client.update_table(**where, TableInput=entry, VersionId=version, SkipArchive=True)
        except client.exceptions.ConcurrentModificationException as error:
            raise Overtaken("another writer changed the table's entry in Glue, building on it") from error


def rights(name: str, settings: Settings, format: str) -> Iterator[Examined]:
    """Glue tells none: what could be asked for was asked for already, and a change can't be tried."""
    del name, settings
    yield Examined("right to read", True, "glue:GetTable", "glue:GetTable")
    if format == "iceberg":
        yield Examined("right to commit", True, "Glue does not tell", "glue:UpdateTable")


def listed(name: str, settings: Settings) -> Iterator[FoundTable]:
    """See ``kinds.CatalogKind``."""
    (schema,) = schema_in(name, "Glue", "DATABASE")
    pages = partial(_pages, name, settings)
    for database, before in in_schemas(
        lambda: (each["Name"] for each in pages("get_databases", "DatabaseList")), schema
    ):
        for each in pages("get_tables", "TableList", DatabaseName=database):
            # What a link points to is asked for when the table is opened.
            entry = _entry(each)
            why = "a link to a table elsewhere" if each.get("TargetTable") else entry.left_alone
            yield found((*before, entry.name), entry.format, why)


def vend(options: Mapping[str, str]) -> dict[str, Any]:
    """The caller's own credentials, for the files. See ``dv_maintenance.credentials``."""
    name = options["catalog.table"]
    with _errors(name):
        credentials = _session(settings_of(options)).get_credentials()
        keys = None if credentials is None else credentials.get_frozen_credentials()
    if keys is None:
        raise StorageDeniedError(f"{name}: boto3 finds no credentials", next_step=_RIGHTS)
    token = {"token": keys.token} if keys.token else {}
    return {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        **token,
        "expires_at": datetime.now(UTC) + _KEPT,
    }


def _entry(table: Mapping[str, Any]) -> Entry:
    described = table.get("StorageDescriptor") or {}
    return Entry(
        table["Name"],
        table.get("TableType") or "",
        described.get("Location") or "",
        table.get("Parameters") or {},
        (described.get("SerdeInfo") or {}).get("Parameters") or {},
        described.get("InputFormat") or "",
        str(table.get("CreateTime") or ""),
    )


def _of(settings: Settings) -> dict[str, str]:
    return {"CatalogId": settings.catalog_id} if settings.catalog_id else {}


def _resolved(name: str, settings: Settings) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    """What to ask for, and the entry of the table. A link to a table of another catalog is followed."""
    database, table = table_in(name, "Glue", "DATABASE", "TABLE")
    asked = {**_of(settings), "DatabaseName": database, "Name": table}
    found = _table(name, settings, **asked)
    if link := found.get("TargetTable"):
        asked = {key: link[key] for key in ("CatalogId", "DatabaseName", "Name") if key in link}
        found = _table(name, settings, **asked)
    return asked, found


def _table(name: str, settings: Settings, **arguments: str) -> Mapping[str, Any]:
    with _errors(name):
        found: Mapping[str, Any] = _part(name, _client(settings).get_table(**arguments), "Table")
    return found


def _pages(name: str, settings: Settings, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    pages: Iterator[Any] | None = None
    while True:
        with _errors(name):
            pages = pages or iter(_client(settings).get_paginator(operation).paginate(**_of(settings), **arguments))
            page = next(pages, None)
        if page is None:
            return
        yield from _part(name, page, key)


def _part(name: str, answer: Mapping[str, Any], key: str) -> Any:
    """boto3 takes anything with a status of success for an answer, also a proxy's page."""
    if key not in answer:
        raise StorageUnavailableError(f"{name}: the answer is not Glue's", next_step=_REACH)
    return answer[key]


@lru_cache(maxsize=32)
def _session(settings: Settings) -> Any:
    from boto3.session import Session

    return Session(profile_name=settings.profile, region_name=settings.region)


@lru_cache(maxsize=32)
def _client(settings: Settings, attempts: int = 3) -> Any:
    """``attempts``: 1 for a change: a second one would be refused because of the first, whose answer was lost."""
    session = _session(settings)
    from botocore.config import Config

    config = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": attempts})
    return session.client("glue", endpoint_url=settings.endpoint, config=config)


def _failed(name: str, error: Exception) -> DvMaintenanceError:
    """What an exception of boto3 means."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        said = str(error.response.get("Error", {}).get("Message", "")).partition("\n")[0]
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == "EntityNotFoundException":
            return TableNotFoundError(
                f"{name}: Glue does not have it ({said})", next_step="check the name and the region"
            )
        if code.startswith(_BUSY) or status >= 500:
            return StorageUnavailableError(f"{name}: Glue did not answer ({code or status})", next_step="run it again")
        why = f"{code}: {said}" if code.startswith(_DENIED) or code.isalpha() else f"HTTP status {status}"
        return StorageDeniedError(f"{name}: Glue refused ({why})", next_step=_RIGHTS)
    if isinstance(error, exceptions.NoRegionError):
        return UsageError(f"{name}: boto3 finds no region", next_step="give the catalog's 'region', or set AWS_REGION")
    if isinstance(error, exceptions.ProfileNotFound):
        return UsageError(f"{name}: {error}", next_step="check the catalog's 'profile'")
    if isinstance(
        error,
        exceptions.NoCredentialsError
        | exceptions.PartialCredentialsError
        | exceptions.CredentialRetrievalError
        | exceptions.SSOError,
    ):
        return StorageDeniedError(f"{name}: boto3 finds no credentials ({type(error).__name__})", next_step=_RIGHTS)
    kind = type(error).__name__
    return StorageUnavailableError(f"{name}: Glue can't be reached ({kind})", next_step=_REACH)


_errors = partial(client_errors, package="boto3", extra="glue", failed=_failed)
