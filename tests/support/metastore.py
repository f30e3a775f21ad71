"""A Hive metastore in this process, by Thrift: as much of it as names of tables need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from hive_metastore.ThriftHiveMetastore import Processor
from hive_metastore.ttypes import (
    Database,
    GetTableResult,
    GetTablesResult,
    MetaException,
    NoSuchObjectException,
    PrincipalPrivilegeSet,
    PrivilegeGrantInfo,
    SerDeInfo,
    StorageDescriptor,
    Table,
)
from thrift.protocol.TBinaryProtocol import TBinaryProtocolFactory
from thrift.server.TServer import TThreadedServer
from thrift.transport.TSocket import TServerSocket
from thrift.transport.TTransport import TBufferedTransportFactory

__all__ = ["Metastore", "metastore"]


@dataclass
class Metastore:
    """Its database is ``shop``.

    tables : by name.
    modern : it has only the requests of later metastores.
    refusal : what it says instead of an answer.
    asked : what was asked for.
    privileges : of the user ``me``; ``None``: it knows no such request.
    """

    url: str = ""
    tables: dict[str, Table] = field(default_factory=dict)
    modern: bool = False
    refusal: str = ""
    asked: list[Any] = field(default_factory=list)
    privileges: list[str] | None = None

    def add(
        self, name: str, parameters: dict[str, str], location: str | None = None, path: str = "", **more: Any
    ) -> None:
        serde = SerDeInfo(parameters={"path": path} if path else {})
        described = StorageDescriptor(location=location, serdeInfo=serde, inputFormat="org.x.In") if location else None
        made = {"tableType": "EXTERNAL_TABLE", "createTime": 1000, **more}
        self.tables[name] = Table(tableName=name, dbName="shop", sd=described, parameters=parameters, **made)

    # -- requests --------------------------------------------------------------------------------------------------

    def set_ugi(self, user: str, groups: list[str]) -> list[str]:
        self.asked.append((user, groups))
        return []

    def get_privilege_set(self, of: Any, user: str, groups: list[str]) -> PrincipalPrivilegeSet:
        assert (of.dbName, of.objectName, user, groups) == ("shop", "orders", "me", [])
        return PrincipalPrivilegeSet(
            userPrivileges={user: [PrivilegeGrantInfo(privilege=each) for each in self.privileges or ()]}
        )

    def get_all_databases(self) -> list[str]:
        return ["shop"]

    def get_database(self, name: str) -> Database:
        if self.refusal:
            raise MetaException(message=self.refusal)
        if name != "shop":
            raise NoSuchObjectException(message=f"database {name}")
        return Database(name=name)

    def get_all_tables(self, database: str) -> list[str]:
        assert database == "shop"
        return sorted(self.tables)

    def get_table_objects_by_name_req(self, request: Any) -> GetTablesResult:
        self.asked.append(len(request.tblNames))
        return GetTablesResult(tables=[self.tables[each] for each in request.tblNames])

    def get_table_req(self, request: Any) -> GetTableResult:
        if self.refusal:
            raise MetaException(message=self.refusal)
        if (request.dbName, request.tblName in self.tables) != ("shop", True):
            raise NoSuchObjectException(message=f"{request.dbName}.{request.tblName} table not found")
        return GetTableResult(table=self.tables[request.tblName])


class _Old:
    """With the requests of earlier metastores."""

    def __init__(self, server: Metastore) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def get_table(self, database: str, table: str) -> Table:
        from hive_metastore.ttypes import GetTableRequest

        return self._server.get_table_req(GetTableRequest(dbName=database, tblName=table)).table

    def get_table_objects_by_name(self, database: str, names: list[str]) -> list[Table]:
        del database
        self._server.asked.append(len(names))
        return [self._server.tables[each] for each in names]


@contextmanager
def metastore() -> Iterator[Metastore]:
    server = Metastore()
    processor = Processor(_Old(server))
    old = ("get_table", "get_table_objects_by_name")
    methods = dict(processor._processMap)
    serve = processor.process

    def process(*arguments: Any) -> Any:
        # A method that is not in the map is answered with "unknown method".
        unknown = {*(old if server.modern else ()), *(() if server.privileges else ("get_privilege_set",))}
        processor._processMap = {k: v for k, v in methods.items() if k not in unknown}
        return serve(*arguments)

    processor.process = process
    listening = TServerSocket(host="127.0.0.1", port=0)
    listening.listen()
    server.url = f"thrift://127.0.0.1:{listening.handle.getsockname()[1]}"
    listening.listen = lambda: None
    loop = TThreadedServer(processor, listening, TBufferedTransportFactory(), TBinaryProtocolFactory(), daemon=True)

    def run() -> None:
        # Not `serve`, which tries on after the socket is closed, and fills the log.
        with suppress(OSError, AttributeError):
            while True:
                Thread(target=loop.handle, args=(listening.accept(),), daemon=True).start()

    Thread(target=run, daemon=True).start()
    try:
        yield server
    finally:
        listening.close()
