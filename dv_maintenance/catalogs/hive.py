"""Tables of a Hive metastore: ``NAME.DATABASE.TABLE``, by Thrift with the client that pyiceberg brings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from dv_maintenance.catalogs.examination import Examined
from dv_maintenance.catalogs.kinds import CatalogSettings
from dv_maintenance.catalogs.metastore import Entry
from dv_maintenance.catalogs.named import client_errors, found, in_schemas, schema_in, table_in
from dv_maintenance.errors import DvMaintenanceError, StorageDeniedError, StorageUnavailableError, TableNotFoundError
from dv_maintenance.tables.registry import Location

if TYPE_CHECKING:
    from dv_maintenance.tables.find import FoundTable

_PORT: Final = 9083
_SECONDS: Final = 30
_AT_ONCE: Final = 200  # tables in one answer
_LOCKS: Final = (
    "only Iceberg's Java classes take the locks under which a Hive metastore moves a table's pointer safely: describe "
    "the catalog as one of the type spark"
)
_REACH: Final = "check the catalog's uri and the network; a metastore with Kerberos needs 'kerberos_service'"


class Settings(CatalogSettings):
    """uri : of the metastore, ``thrift://HOST:PORT``, or several with commas, which are tried one after the other.
    user : as whom to ask, if the metastore checks that.
    kerberos_service : of a metastore with Kerberos, such as ``hive``.
    storage_options : to reach files; those of a table go first.
    """

    type: Literal["hive"]
    uri: str
    user: str | None = None
    kerberos_service: str | None = None
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)

    @field_validator("uri")
    @classmethod
    def _thrift(cls, uri: str) -> str:
        if any(re.fullmatch(r"\s*thrift://[\w.-]+(?::\d+)?/?\s*", each) is None for each in uri.split(",")):
            raise ValueError("must be thrift://HOST:PORT, or several with commas")
        return uri


def located(name: str, settings: Settings, options: Mapping[str, str]) -> tuple[str, Location]:
    """See ``kinds.CatalogKind``."""
    entry, known = _described(name, settings), {**settings.storage_options, **options}
    if entry.format != "iceberg":
        return entry.format, Location(*entry.opened(name, known))
    from dv_maintenance.tables.iceberg.pointed import PointedTable, root_of

    entry.check(name)
    find = partial(newest, name, settings)
    return "iceberg", Location(root_of(name, entry.metadata, find, known), PointedTable(name, find, why_not=_LOCKS))


def newest(name: str, settings: Settings) -> str:
    """The location of the newest metadata file of an Iceberg table. Raises as :func:`located`."""
    entry = _described(name, settings)
    entry.check(name)
    return entry.metadata


def _described(name: str, settings: Settings) -> Entry:
    database, table = table_in(name, "a Hive metastore", "DATABASE", "TABLE")
    with _asked(name, settings) as client:
        return _entry(_table(client, database, table))


def rights(name: str, settings: Settings, format: str) -> Iterator[Examined]:
    """The user's privileges. A metastore has some only if they are granted by SQL."""
    del format
    from hive_metastore.ttypes import HiveObjectRef, HiveObjectType
    from thrift.Thrift import TApplicationException

    database, table = table_in(name, "a Hive metastore", "DATABASE", "TABLE")
    user, granted, owner = settings.user or "", set[str](), ""
    with _asked(name, settings) as client:
        owner = getattr(_table(client, database, table), "owner", "") or ""
        try:
            found = client.get_privilege_set(HiveObjectRef(HiveObjectType.TABLE, database, table), user, [])
            for holders in (found.userPrivileges, found.groupPrivileges, found.rolePrivileges):
                granted |= {each.privilege.upper() for of in (holders or {}).values() for each in of}
        except TApplicationException as error:
            if error.type != TApplicationException.UNKNOWN_METHOD:
                raise
    if owner and owner == user:
        granted.add("ALL")
    as_whom = f"as {user}" if user else "without a user"
    # The metastore is only read, of whatever format the table is.
    needed, how = "SELECT, if the metastore checks rights", f"GRANT SELECT ON TABLE {database}.{table} TO USER ..."
    if not granted:
        yield Examined("right to read", True, f"the metastore tells none {as_whom}", needed)
        return
    shown = f"{', '.join(sorted(granted))} {as_whom}"
    yield Examined("right to read", bool(granted & {"ALL", "SELECT"}), shown, needed, how)


def listed(name: str, settings: Settings) -> Iterator[FoundTable]:
    """See ``kinds.CatalogKind``."""
    (schema,) = schema_in(name, "a Hive metastore", "DATABASE")
    known: list[tuple[tuple[str, ...], Entry]] = []
    with _asked(name, settings) as client:
        for database, before in in_schemas(client.get_all_databases, schema):
            # An unknown database would be one without tables.
            client.get_database(database)
            names = client.get_all_tables(database)
            for at in range(0, len(names), _AT_ONCE):
                known += [(before, _entry(each)) for each in _tables(client, database, names[at : at + _AT_ONCE])]
    for before, entry in known:
        yield found((*before, entry.name), entry.format, entry.left_alone)


def _entry(table: Any) -> Entry:
    described = table.sd
    serde = described.serdeInfo if described is not None else None
    return Entry(
        table.tableName,
        table.tableType or "",
        (described.location if described is not None else None) or "",
        table.parameters or {},
        (serde.parameters if serde is not None else None) or {},
        (described.inputFormat if described is not None else None) or "",
        str(table.createTime or ""),
    )


def _table(client: Any, database: str, table: str) -> Any:
    """Later metastores have only the second request."""
    from hive_metastore.ttypes import GetTableRequest
    from thrift.Thrift import TApplicationException

    try:
        return client.get_table(database, table)
    except TApplicationException as error:
        if error.type != TApplicationException.UNKNOWN_METHOD:
            raise
    return client.get_table_req(GetTableRequest(dbName=database, tblName=table)).table


def _tables(client: Any, database: str, names: Sequence[str]) -> Sequence[Any]:
    from hive_metastore.ttypes import GetTablesRequest
    from thrift.Thrift import TApplicationException

    try:
        found: Sequence[Any] = client.get_table_objects_by_name(database, names)
    except TApplicationException as error:
        if error.type != TApplicationException.UNKNOWN_METHOD:
            raise
        request = GetTablesRequest(dbName=database, tblNames=names)
        found = client.get_table_objects_by_name_req(request).tables
    return found


@contextmanager
def _asked(name: str, settings: Settings) -> Iterator[Any]:
    """A client, connected. What it raises in the meantime becomes an error of this package."""
    failed = partial(_failed, settings)
    with client_errors(name, package="thrift or pyiceberg", extra="hive", failed=failed):
        transport, client = _connected(settings)
        try:
            yield client
        finally:
            transport.close()


def _connected(settings: Settings) -> tuple[Any, Any]:
    from hive_metastore.ThriftHiveMetastore import Client
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.transport import TSocket, TTransport

    *others, last = (urlsplit(each.strip()) for each in settings.uri.split(","))
    for place in (*others, last):
        socket = TSocket.TSocket(place.hostname, place.port or _PORT)
        socket.setTimeout(_SECONDS * 1000)
        if settings.kerberos_service:
            transport = TTransport.TSaslClientTransport(socket, place.hostname, settings.kerberos_service)
        else:
            transport = TTransport.TBufferedTransport(socket)
        try:
            transport.open()
        except TTransport.TTransportException:
            if place is last:
                raise
            continue
        client = Client(TBinaryProtocol(transport))
        if settings.user:
            client.set_ugi(settings.user, [])
        return transport, client
    raise AssertionError


def _failed(settings: Settings, name: str, error: Exception) -> DvMaintenanceError:
    from hive_metastore.ttypes import InvalidOperationException, MetaException, NoSuchObjectException
    from thrift.transport.TTransport import TTransportException

    said = str(getattr(error, "message", None) or type(error).__name__).partition("\n")[0]
    if isinstance(error, NoSuchObjectException):
        return TableNotFoundError(f"{name}: the metastore does not have it ({said})", next_step="check the name")
    if isinstance(error, MetaException | InvalidOperationException):
        if re.search("permission|denied|not authorized|AccessControl", said, re.IGNORECASE):
            return StorageDeniedError(
                f"{name}: the metastore refused ({said})", next_step="ask for SELECT on the table, or give 'user'"
            )
        return StorageUnavailableError(f"{name}: the metastore failed ({said})", next_step="run it again")
    if isinstance(error, TTransportException | OSError):
        return StorageUnavailableError(
            f"{name}: the metastore at {settings.uri} can't be reached, or broke off ({said})", next_step=_REACH
        )
    return StorageUnavailableError(
        f"{name}: the answer is not one of a metastore ({type(error).__name__})", next_step=_REACH
    )
