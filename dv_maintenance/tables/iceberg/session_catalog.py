"""A table in a catalog of the user's own Spark session, whose pointer only Iceberg's Java classes can move: Hive with
its locks, Glue with its versions, JDBC, Nessie, and whatever else derives from Iceberg's metastore operations.

Files, manifests and the new metadata are made here as for other catalogs. The session's catalog writes the metadata
file and moves the pointer to it, by ``TableOperations.commit``, if nobody else committed meanwhile.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dv_maintenance.errors import (
    DvMaintenanceError,
    RefusedError,
    StorageUnavailableError,
    TableNotFoundError,
    UsageError,
)
from dv_maintenance.tables.iceberg.catalog import CatalogEntry
from dv_maintenance.tables.publish import Overtaken

_COMMITS: Final = "org.apache.iceberg.BaseMetastoreTableOperations"
# REST sends the changes of a metadata object, which one that was read from a document does not have.
_NEXT: Final = {
    "RESTTableOperations": "add the catalog to pyiceberg's configuration, under this name",
    "HadoopTableOperations": "give the table's folder",
}


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
    """

    catalog: str
    identifier: tuple[str, ...]
    session: Any = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return ".".join((self.catalog, *self.identifier))

    def load(self) -> CatalogEntry:
        """What the catalog says of the table now.

        Raises
        ------
        RefusedError : the session has no JVM of its own, as with Spark Connect, or the catalog is not one of Iceberg's.
        TableNotFoundError : the catalog has no such table.
        StorageUnavailableError : the catalog did not answer.
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

    def kind(self) -> str:
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
        StorageUnavailableError : it is unknown whether the change was made.
        """
        operations = self._operations()
        before = self._asked(operations.refresh)
        if before.metadataFileLocation() != old:
            raise Overtaken("the catalog names another metadata file, building on it")
        parser = self.session._jvm.org.apache.iceberg.TableMetadataParser  # noqa: SLF001 - there is no other way
        new = parser.fromJson(None, json.dumps(document))
        try:
            operations.commit(before, new)
        except Exception as error:
            # Its class, by whichever loader, says what it means.
            if _kind(error) == "CommitFailedException":
                raise Overtaken(f"the catalog refused: {_said(error)}") from error
            raise StorageUnavailableError(
                f"catalog {self.catalog} did not confirm the commit ({_kind(error)})", table=self.name
            ) from error

    def _operations(self) -> Any:
        jvm, java_session = (getattr(self.session, each, None) for each in ("_jvm", "_jsparkSession"))
        if jvm is None or java_session is None:
            raise RefusedError(
                "only Iceberg's Java classes can commit to this catalog, and Spark Connect does not reach them",
                table=self.name,
                next_step="run this in a session of its own cluster or machine, not through Connect",
            )
        table = self._asked(lambda: jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java_session, self.name))
        return table.operations()

    def _asked(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> DvMaintenanceError:
        kind = _kind(error)
        if kind in {"NoSuchTableException", "NoSuchNamespaceException"}:
            return TableNotFoundError(
                f"catalog {self.catalog} of the Spark session has no table {'.'.join(self.identifier)}",
                table=self.name,
                next_step="check the names of the catalog, the namespace and the table",
            )
        if kind == "TypeError":  # py4j's, for a class that is not there
            return UsageError(
                "the Spark session lacks Iceberg's runtime", table=self.name,
                next_step="add iceberg-spark-runtime to its packages",
            )  # fmt: skip
        return StorageUnavailableError(
            f"catalog {self.catalog} of the Spark session did not answer as expected ({kind})",
            table=self.name,
            next_step="check the session's configuration and the network, then run again",
        )


def remedy(kind: str) -> str:
    """What to do about a table whose operations are of this Java class."""
    return _NEXT.get(kind, "let its engine do it")


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
