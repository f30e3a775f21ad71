"""A table in a catalog of a Spark session, whose pointer Iceberg's Java classes move: Hive with its locks, Glue, JDBC,
Nessie, and whatever else derives from Iceberg's metastore operations.

Files, manifests and the new metadata are made here as for other catalogs. The session's catalog writes the metadata
file and moves the pointer to it, by ``TableOperations.commit``, if nobody else committed meanwhile.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from dv_maintenance.errors import (
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UsageError,
)
from dv_maintenance.tables.iceberg.catalog import CatalogEntry
from dv_maintenance.tables.publish import Overtaken
from dv_maintenance.tables.registry import quoted

_COMMITS: Final = "org.apache.iceberg.BaseMetastoreTableOperations"
# REST sends the changes of a metadata object, which one that was read from a document does not have.
_NEXT: Final = {
    "RESTTableOperations": "add the catalog to pyiceberg's configuration, under this name",
    "HadoopTableOperations": "give the table's folder",
}
_CONNECT: Final = "only Iceberg's Java classes can commit to this catalog, and Spark Connect does not reach them"
# Java's exceptions, by what to do about them. Any of a chain of causes says it.
_NO_TABLE: Final = ("NoSuchTableException", "NoSuchNamespaceException")
_NO_CLASS: Final = ("ClassNotFoundException", "NoClassDefFoundError")
_DENIED: Final = re.compile(r"AccessControlException|AccessDenied|NotAuthorized|Forbidden|Authentication")
_UNREACHABLE: Final = re.compile(
    r"ConnectException|UnknownHostException|NoRouteToHost|SocketTimeout|TTransportException|CommunicationsException"
    r"|SQLNonTransientConnection|SQLTransientConnection|ServiceUnavailable|UncheckedSQLException|PSQLException"
)


def session_with(catalog: str) -> Any:
    """The Spark session of this process that has a catalog of this name: the active one, or else the first that was
    made. ``None`` without one. Starts none.
    """
    spark_sql = sys.modules.get("pyspark.sql")
    if spark_sql is None:
        return None
    kind = spark_sql.SparkSession
    for session in (kind.getActiveSession(), getattr(kind, "_instantiatedSession", None)):
        if session is not None and session.conf.get(f"spark.sql.catalog.{catalog}", None):
            return session
    return None


@dataclass(frozen=True, slots=True)
class SessionCatalogTable:
    """The handle of a table in a catalog of a Spark session. See ``registry.CatalogTable``.

    catalog : its name in the session.
    identifier : namespaces and the name of the table.
    session : returns the session, and may start it.
    find : asks the catalog for the newest metadata file without a session; ``None`` if only a session can.
    why_not : says why no session of this process will do, without starting one; "" if one does.
    """

    catalog: str
    identifier: tuple[str, ...]
    session: Callable[[], Any] = field(repr=False, compare=False)
    find: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    why_not: Callable[[], str] = field(default=lambda: "", repr=False, compare=False)

    @property
    def name(self) -> str:
        return quoted((self.catalog, *self.identifier))

    def newest(self) -> str:
        """The location of the newest metadata file. Raises as :meth:`load`, or what ``find`` raises."""
        return self.load().metadata if self.find is None else self.find()

    def load(self) -> CatalogEntry:
        """What the session's catalog says of the table now.

        Raises
        ------
        RefusedError : the session has no JVM of its own, as with Spark Connect, or the catalog is not one of Iceberg's.
        UsageError : a class is missing in it.
        TableNotFoundError : the catalog has no such table.
        StorageDeniedError, StorageUnavailableError : the catalog refused, or did not answer.
        """
        operations = self._operations()
        metadata = self._asked(operations.refresh)
        location = metadata.metadataFileLocation()
        if location is None:
            raise RefusedError(
                "the session's catalog does not say which metadata file is the newest", table=self.name,
                next_step="use the table's own engine",
            )  # fmt: skip
        return CatalogEntry(location, metadata.location(), {})

    def refusal(self) -> str:
        """Why nothing can be committed; "" if it can. Starts no session if the catalog can be asked without one."""
        if why := self.why_not():
            return why
        kind = "session" if self.find is not None else self._kind()
        known = f"its catalog in the Spark session commits by {kind}: {_NEXT.get(kind, 'let its engine do it')}"
        return "" if kind == "session" else known

    def _kind(self) -> str:
        """``session``, or the name of the Java class of a catalog that can't be committed to by this way."""
        found = self._operations().getClass()
        own, each = found.getSimpleName(), found
        while each is not None:
            if each.getName() == _COMMITS:
                return "session"
            each = each.getSuperclass()
        return str(own)

    def replace(self, old: str, document: Mapping[str, Any]) -> None:
        """Let the catalog name a new metadata file with this document instead of ``old``.

        Raises
        ------
        Overtaken : it does not name ``old``; nothing was changed.
        RefusedError : it is not the catalog that was asked before; nothing was changed.
        StorageUnavailableError : it is unknown whether the change was made.
        """
        operations = self._operations()
        before = self._asked(operations.refresh)
        if before.metadataFileLocation() != old:
            if self.find is not None and self.find() == old:
                raise RefusedError(
                    f"the Spark session's catalog {self.catalog} names {before.metadataFileLocation()} as the newest "
                    f"metadata file, and the settings of the catalog lead to one that names {old}",
                    table=self.name,
                    done="nothing was committed",
                    next_step="give the session and the settings the same configuration of the catalog",
                )
            raise Overtaken("the catalog names another metadata file, building on it")
        new = self._jvm().org.apache.iceberg.TableMetadataParser.fromJson(None, json.dumps(document))
        try:
            operations.commit(before, new)
        except Exception as error:
            # Its class, by whichever loader, says what it means.
            if _kind(error) == "CommitFailedException":
                raise Overtaken(f"the catalog refused: {_said(error)}") from error
            raise StorageUnavailableError(
                f"catalog {self.catalog} did not confirm the commit ({_kind(error)})", table=self.name
            ) from error

    def _jvm(self) -> Any:
        return self.session()._jvm  # noqa: SLF001 - there is no other way

    def _operations(self) -> Any:
        session = self.session()
        jvm, java_session = (getattr(session, each, None) for each in ("_jvm", "_jsparkSession"))
        if jvm is None or java_session is None:
            raise RefusedError(
                _CONNECT, table=self.name,
                next_step="run this in a session of its own cluster or machine, not through Connect",
            )  # fmt: skip
        name = ".".join("`" + each.replace("`", "``") + "`" for each in (self.catalog, *self.identifier))
        with _active(jvm, java_session):
            # Or it would be looked for in Spark's own catalog, if this one can't be loaded.
            self._asked(lambda: java_session.sessionState().catalogManager().catalog(self.catalog))
            table = self._asked(lambda: jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java_session, name))
        return table.operations()

    def _asked(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> DvMaintenanceError:
        causes, of = list(_causes(error)), f"catalog {self.catalog} of the Spark session"
        if any(each in _NO_TABLE for each, _ in causes):
            return TableNotFoundError(
                f"{of} has no table {'.'.join(self.identifier)}",
                table=self.name,
                next_step="check the names of the catalog, the namespace and the table",
            )
        if not causes and isinstance(error, TypeError):  # py4j's, for a class that is not there
            return UsageError(
                "the Spark session lacks Iceberg's runtime", table=self.name,
                next_step="add iceberg-spark-runtime for its version of Spark to spark.jars.packages, or its jar to "
                "spark.jars",
            )  # fmt: skip
        if missing := next(filter(None, (_missing(*each) for each in causes)), ""):
            return UsageError(
                f"the Spark session lacks {missing}, which catalog {self.catalog} needs",
                table=self.name,
                next_step="add its jar to spark.jars, or its package to spark.jars.packages",
            )
        for each, said in causes:
            if _DENIED.search(each):
                return StorageDeniedError(
                    f"{of} refused ({each})", table=self.name,
                    next_step="check the credentials in the session's configuration, and what they may do",
                )  # fmt: skip
            if _UNREACHABLE.search(each) or "connect to" in said:
                return StorageUnavailableError(
                    f"{of} can't be reached ({each})", table=self.name,
                    next_step=f"check spark.sql.catalog.{self.catalog}.uri and the network, then run again",
                )  # fmt: skip
        return StorageUnavailableError(
            f"{of} did not answer as expected ({_kind(error)})",
            table=self.name,
            next_step="check the session's configuration and the network, then run again",
        )


@contextmanager
def _active(jvm: Any, java_session: Any) -> Iterator[None]:
    """Spark loads catalogs by the settings of the active session, whichever session it is asked for them."""
    sessions = jvm.org.apache.spark.sql.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(java_session)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _missing(kind: str, said: str) -> str:
    """What a Java exception says is not there. Its text may have parts of the configuration, so only names of classes
    are shown.
    """
    if kind in _NO_CLASS:
        name = re.search(r"\w+(?:[./]\w+)+", said)
        return f"the class {name[0].replace('/', '.')}" if name else "a class"
    if name := re.search(r"(?:plugin class for|Catalog implementation)\D*?((?:\w+\.)+[A-Z]\w*)", said):
        return f"the class {name[1]}"
    return "the JDBC driver of the catalog's database" if "No suitable driver" in said else ""


def _causes(error: Exception) -> Iterator[tuple[str, str]]:
    """The class of an exception and of each of its causes, in Java, and the first lines of what they say."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(10):
        if java is None:
            return
        yield str(java.getClass().getSimpleName()), str(java.getMessage() or "").partition("\n")[0]
        java = java.getCause()


def _kind(error: Exception) -> str:
    """The class of an exception, in Java if it is from there."""
    java = getattr(error, "java_exception", None)
    if java is None:
        java = getattr(error, "_origin", None)
    return type(error).__name__ if java is None else str(java.getClass().getSimpleName())


def _said(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.getMessage())
    return text.splitlines()[0] if text else _kind(error)
