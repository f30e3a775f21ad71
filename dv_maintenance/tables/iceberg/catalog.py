"""A table in a catalog that pyiceberg reaches: REST, SQL, Hive, Glue, DynamoDB, by pyiceberg's own configuration
(``.pyiceberg.yaml``, environment variables ``PYICEBERG_CATALOG__NAME__...``).

The catalog says which metadata file is the newest. Everything else is read from files: pyiceberg knows neither every
type of format version 3 nor equality deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import (
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UsageError,
)
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.tables.publish import Overtaken
from dv_maintenance.tables.registry import Location

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.commit.change import Change
    from dv_maintenance.tables.iceberg.log.metadata import Ref
    from dv_maintenance.tables.iceberg.session_catalog import SessionCatalogTable

# pyiceberg's names for what a catalog says of its storage -> obstore's.
_OPTIONS: Final = {
    "s3.endpoint": "aws_endpoint",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "client.access-key-id": "aws_access_key_id",
    "client.secret-access-key": "aws_secret_access_key",
    "client.session-token": "aws_session_token",
    "client.region": "aws_region",
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.client-id": "azure_client_id",
    "adls.client-secret": "azure_client_secret",
    "adls.tenant-id": "azure_tenant_id",
}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """What a catalog says of a table.

    metadata : location of the newest metadata file.
    location : of the table, as its metadata spells it.
    io : what the catalog says of the storage, credentials among it.
    """

    metadata: str
    location: str
    io: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class IcebergCatalogTable:
    """The handle of a table in a catalog. See ``registry.CatalogTable``.

    catalog : its name in pyiceberg's configuration.
    identifier : namespaces and the name of the table.
    properties : of the catalog, as pyiceberg calls them, in place of those of its configuration.
    """

    catalog: str
    identifier: tuple[str, ...]
    properties: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    _client: list[Any] = field(default_factory=list, repr=False, compare=False)

    @property
    def name(self) -> str:
        return ".".join((self.catalog, *self.identifier))

    @classmethod
    def called(cls, name: str) -> IcebergCatalogTable:
        """The handle for ``CATALOG.NAMESPACE.TABLE``. Raises UsageError."""
        catalog, *identifier = name.split(".")
        if len(identifier) < 2 or not all((catalog, *identifier)):
            raise UsageError(
                f"{name!r} is not the name of a table in a catalog",
                next_step="write iceberg:CATALOG.NAMESPACE.TABLE, with a catalog of pyiceberg's configuration",
            )
        return cls(catalog, tuple(identifier))

    def configured(self) -> bool:
        """Whether pyiceberg's configuration has the catalog."""
        try:
            from pyiceberg.utils.config import Config
        except ImportError:
            return False
        return Config().get_catalog_config(self.catalog) is not None

    def load(self) -> CatalogEntry:
        """What the catalog says of the table now.

        Raises
        ------
        RefusedError : pyiceberg is not installed, or can't read the table's metadata.
        UsageError : pyiceberg's configuration has no such catalog, or lacks a part of it.
        TableNotFoundError : the catalog has no such table.
        StorageUnavailableError, StorageDeniedError : the catalog did not answer, or refused to.
        """
        client = self._connection()
        try:
            found = client.load_table(self.identifier)
        except Exception as error:
            raise self._failed(error) from error
        io = {name: str(value) for name, value in {**client.properties, **found.io.properties}.items()}
        return CatalogEntry(found.metadata_location, found.metadata.location, io)

    def newest(self) -> str:
        """The location of the newest metadata file. Raises as :meth:`load`."""
        return self.load().metadata

    def refusal(self) -> str:
        """Why nothing can be committed; "" if it can. Raises as :meth:`load`."""
        kind = self.kind()
        if kind in {"rest", "sql"}:
            return ""
        return (
            f"through pyiceberg this release commits to REST and SQL catalogs, not to its {kind}; describe the catalog "
            "as one of the type glue or spark, or use a Spark session of this process that has it"
        )

    def namespaces(self) -> list[tuple[str, ...]]:
        """The namespaces of the catalog that are in no other one. Raises as :meth:`load`."""
        client = self._connection()
        try:
            return [tuple(each) for each in client.list_namespaces()]
        except Exception as error:
            raise self._failed(error) from error

    def listed(self) -> list[str]:
        """The names of the tables in the namespace ``identifier``. Raises as :meth:`load`."""
        client = self._connection()
        try:
            return [each[-1] for each in client.list_tables(self.identifier)]
        except Exception as error:
            raise self._failed(error) from error

    def kind(self) -> str:
        """``rest``, ``sql``, or the name of pyiceberg's class for a catalog that can't be committed to here. Raises as
        :meth:`load`.
        """
        known = {"RestCatalog": "rest", "SqlCatalog": "sql"}
        names = [each.__name__ for each in type(self._connection()).__mro__]
        return next((known[each] for each in names if each in known), names[0])

    def move_pointer(self, old: str, new: str) -> None:
        """Let a SQL catalog name the metadata file ``new`` instead of ``old``.

        Raises
        ------
        Overtaken : it does not name ``old``; nothing was changed.
        StorageUnavailableError : it is unknown whether the pointer was moved.
        """
        from pyiceberg.catalog import Catalog
        from pyiceberg.catalog.sql import IcebergTables
        from sqlalchemy import update
        from sqlalchemy.exc import SQLAlchemyError

        client = self._connection()
        row = (
            IcebergTables.catalog_name == client.name,
            IcebergTables.table_namespace == Catalog.namespace_to_string(self.identifier[:-1]),
            IcebergTables.table_name == self.identifier[-1],
            IcebergTables.metadata_location == old,
        )
        moved = update(IcebergTables).where(*row).values(metadata_location=new, previous_metadata_location=old)
        try:
            with client.engine.begin() as connection:
                rows = connection.execute(moved).rowcount
        except SQLAlchemyError as error:
            raise self._unsure(error) from error
        if not rows:
            raise Overtaken("the catalog names another metadata file, building on it")

    def commit(self, uuid: str, refs: Mapping[str, Ref], change: Change) -> None:
        """Let the server of a REST catalog make a change, on the condition that the references are still ``refs``.

        Raises
        ------
        Overtaken : they are not; nothing was changed.
        RefusedError, StorageDeniedError : the server refused.
        StorageUnavailableError : it is unknown whether the change was made.
        """
        from pyiceberg import exceptions
        from pyiceberg.table import update as u
        from pyiceberg.table.snapshots import Snapshot

        client = self._connection()
        requirements: list[Any] = [u.AssertTableUUID(uuid=uuid)]
        updates: list[Any] = [u.RemoveSnapshotRefUpdate(ref_name=each) for each in change.refs]
        # A reference to a snapshot that goes may have been made in the meantime: the server refuses that.
        now = {change.branch: None} | {name: each.snapshot for name, each in refs.items()}
        watched = now if change.removed else {change.branch: now[change.branch]}
        requirements += [u.AssertRefSnapshotId(ref=name, snapshot_id=number) for name, number in watched.items()]
        if change.snapshot is not None:
            body = refs[change.branch].body if change.branch in refs else {}
            kept = {name: each for name, each in body.items() if name not in {"snapshot-id", "type"}}
            number = change.snapshot["snapshot-id"]
            updates.append(u.AddSnapshotUpdate(snapshot=Snapshot(**change.snapshot)))
            updates.append(
                u.SetSnapshotRefUpdate(**{"ref-name": change.branch, "type": "branch", "snapshot-id": number, **kept})
            )
        if change.removed:
            updates.append(u.RemoveSnapshotsUpdate(snapshot_ids=list(change.removed)))
        try:
            client.commit_table(client.load_table(self.identifier), tuple(requirements), tuple(updates))
        except exceptions.CommitFailedException as error:
            raise Overtaken(f"the catalog refused: {str(error).splitlines()[0]}") from error
        except (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError) as error:
            raise self._failed(error) from error
        except exceptions.BadRequestError as error:
            raise RefusedError(
                f"the catalog refused the commit: {str(error).splitlines()[0]}",
                table=self.name,
                done="nothing was committed",
                next_step="check that the server supports the table's format version, and report this if it does",
            ) from error
        except Exception as error:
            raise self._unsure(error) from error

    def _unsure(self, error: Exception) -> StorageUnavailableError:
        return StorageUnavailableError(
            f"catalog {self.catalog} did not confirm the commit ({type(error).__name__})", table=self.name
        )

    def _connection(self) -> Any:
        if not self._client:
            self._client.append(self._connected())
        return self._client[0]

    def _connected(self) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.utils.config import Config
        except ImportError as error:
            raise RefusedError(
                f"it is a table of a catalog, and pyiceberg, which asks catalogs, is not installed ({error})",
                table=self.name,
                next_step="install dv-maintenance[iceberg], or give the table's folder or metadata file",
            ) from error
        config = Config()
        found: Any = self.properties or config.get_catalog_config(self.catalog)
        if found is None:
            known = ", ".join(sorted(config.get_known_catalogs())) or "none"
            raise UsageError(
                f"pyiceberg's configuration has no catalog {self.catalog!r}",
                table=self.name,
                next_step=f"add it to .pyiceberg.yaml or the environment, which have: {known}",
            )
        try:
            return load_catalog(self.catalog, **found)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> DvMaintenanceError:
        from pydantic import ValidationError
        from pyiceberg import exceptions

        kind = type(error).__name__
        if isinstance(error, exceptions.NoSuchTableError | exceptions.NoSuchNamespaceError):
            return TableNotFoundError(
                f"catalog {self.catalog} has no table {'.'.join(self.identifier)}",
                table=self.name,
                next_step="check the names of the catalog, the namespace and the table",
            )
        if isinstance(error, exceptions.UnauthorizedError | exceptions.ForbiddenError | exceptions.OAuthError):
            return StorageDeniedError(
                f"catalog {self.catalog} refused ({kind})",
                table=self.name,
                next_step="check the credentials in pyiceberg's configuration, and what they may do",
            )
        if isinstance(error, ValidationError):
            return RefusedError(
                "pyiceberg can't read the table's metadata, so the catalog's answer is unknown: it may have a type "
                "that pyiceberg does not know",
                table=self.name,
                next_step="give the table's metadata file instead, or use a newer pyiceberg",
            )
        if isinstance(error, ValueError | ImportError | exceptions.NotInstalledError):
            return UsageError(
                f"pyiceberg can't open catalog {self.catalog}: {str(error).splitlines()[0] if str(error) else kind}",
                table=self.name,
                next_step="check the catalog in pyiceberg's configuration",
            )
        # Its text may have parts of the configuration.
        return StorageUnavailableError(
            f"catalog {self.catalog} did not answer as expected ({kind})",
            table=self.name,
            next_step="check the catalog and the network, then run again",
        )


def located(name: str, options: Mapping[str, str] | None = None) -> Location:
    """The location of ``CATALOG.NAMESPACE.TABLE``. ``options`` of the storage go before those of the catalog. A catalog
    that pyiceberg does not know is looked for in this process's Spark session. Raises as
    :meth:`IcebergCatalogTable.load`.
    """
    from dv_maintenance.tables.iceberg.session_catalog import SessionCatalogTable, session_with

    known_to_pyiceberg = IcebergCatalogTable.called(name)
    handle: IcebergCatalogTable | SessionCatalogTable = known_to_pyiceberg
    session = None if known_to_pyiceberg.configured() else session_with(handle.catalog)
    if session is not None:
        handle = SessionCatalogTable(handle.catalog, handle.identifier, lambda: session)
    return at_entry(handle, handle.load(), options)


def at_entry(
    handle: IcebergCatalogTable | SessionCatalogTable, entry: CatalogEntry, options: Mapping[str, str] | None
) -> Location:
    """The location of a table, by what its catalog says. ``options`` of the storage go before those of the catalog."""
    return Location(Storage(plain_uri(entry.location), {**options_of(entry.io), **(options or {})}), handle)


def options_of(io: Mapping[str, str]) -> dict[str, str]:
    """The storage options in the properties of a catalog."""
    known = {_OPTIONS[key]: value for key, value in io.items() if key in _OPTIONS and value}
    if known.get("aws_endpoint", "").startswith("http://"):
        known["allow_http"] = "true"
    return known


def listed(name: str) -> Iterator[FoundTable]:
    """The tables of ``CATALOG.NAMESPACE``. Raises as :meth:`IcebergCatalogTable.load`."""
    catalog, *namespace = name.split(".")
    if not namespace or not all((catalog, *namespace)) or "*" in namespace:
        raise UsageError(f"{name!r} is not the name of a namespace", next_step="write iceberg:CATALOG.NAMESPACE")
    handle = IcebergCatalogTable(catalog, tuple(namespace))
    for table in handle.listed():
        yield FoundTable(table, "iceberg", "a name with a dot" if "." in table else "")
