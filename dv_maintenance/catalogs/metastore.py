"""Tables as a Hive metastore describes them, and Glue after it: formats told apart by parameters, and where tables are.

Sources: ``HiveExternalCatalog`` of Spark, the Delta and Hive connectors of Trino, the DDL of Athena, and
``HiveCatalog`` of Paimon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dv_maintenance.catalogs.named import left_alone
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.storage import Storage, plain_uri
from dv_maintenance.tables.registry import NamedTable, known_format, quoted

_VIEWS: Final = {"VIRTUAL_VIEW": "a view", "MATERIALIZED_VIEW": "a materialized view"}
_HUDI: Final = "a Hudi table"
_METADATA: Final = "metadata_location"
_NO_METADATA: Final = "an Iceberg table whose metadata the catalog does not name"
# What Spark writes as the location of a table whose real one is in the parameters of its serde.
_PLACEHOLDER: Final = "-__PLACEHOLDER__"
# Part of the class of an input format or a storage handler -> the format.
_CLASSES: Final = {"paimon": "paimon", "hudi": "hudi", "iceberg": "iceberg", "io.delta.": "delta"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A table's entry.

    type : ``EXTERNAL_TABLE`` and the like, "" if there is none.
    serde : parameters of the serde, among which Spark keeps the real location.
    input_format : the class that reads its files.
    created : when the entry was made, as the metastore says it; with the name, what tells the table from a later one.
    """

    name: str
    type: str
    location: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    serde: Mapping[str, str] = field(default_factory=dict)
    input_format: str = ""
    created: str = ""

    @property
    def format(self) -> str:
        """The table's format, or the provider of its files if that is none, such as ``parquet``; "" for a table of
        Hive's own.
        """
        known = self.parameters.get("table_type") or self.parameters.get("spark.sql.sources.provider")
        if known:
            return known.lower()
        classes = f"{self.parameters.get('storage_handler', '')} {self.input_format}".lower()
        return next((each for part, each in _CLASSES.items() if part in classes), "")

    @property
    def metadata(self) -> str:
        """The location of the newest metadata file of an Iceberg table; "" if the entry does not say it."""
        return self.parameters.get(_METADATA, "")

    @property
    def left_alone(self) -> str:
        """Why it is not a table to maintain; "" if it is one. See ``FoundTable``."""
        if self.type in _VIEWS:
            return _VIEWS[self.type]
        if self.format == "hudi":
            return _HUDI
        if self.format == "iceberg" and not self.metadata:
            return _NO_METADATA
        if known_format(self.format) is None:
            return f"a table of the format {self.format}" if self.format else "a Hive table"
        return ""

    def uri(self, name: str) -> str:
        """Where the table is. Raises DamagedTableError if the entry does not say it."""
        place = self.serde.get("path") or self.location
        if not place or place.endswith(_PLACEHOLDER):
            what = "a placeholder of Spark's" if place else "nothing"
            raise DamagedTableError(
                f"{name}: the catalog has {what} for the table's location",
                next_step="open the table by its path, and set 'path' among its serde's parameters",
            )
        return plain_uri(place)

    def opened(self, name: str, options: Mapping[str, str]) -> tuple[Storage, NamedTable]:
        """The table's files, and its handle.

        Raises
        ------
        UnsupportedFeatureError : it is not a table to maintain. DamagedTableError : see :meth:`uri`.
        """
        self.check(name)
        return Storage(self.uri(name), options), NamedTable(name, f"{quoted([self.name])}@{self.created}")

    def check(self, name: str) -> None:
        """Raises UnsupportedFeatureError if it is not a table to maintain."""
        if why := self.left_alone:
            raise (left_alone(name, why, _FOLDER) if why == _NO_METADATA else left_alone(name, why))


_FOLDER: Final = "give the table's folder"
