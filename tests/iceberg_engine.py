"""Iceberg's own Spark runtime, in the tests' Spark session: what it makes, reads, deletes, rewrites and expires."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["IcebergEngine"]


class IcebergEngine:
    """Tables are folders of Hadoop's catalog, each named by the folder that holds it: ``PLACE/NAME/table``."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self._spark = spark.newSession()
        self.place = place
        self.catalog = f"ice_{abs(hash(str(place)))}"
        prefix = f"spark.sql.catalog.{self.catalog}"
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": str(place),
            # Others commit, too.
            ".cache-enabled": "false",
        }.items():
            self._spark.conf.set(f"{prefix}{key}", value)

    @property
    def session(self) -> SparkSession:
        return self._spark

    def path(self, name: str) -> Path:
        return self.place / name / "table"

    def sql(self, text: str, name: str) -> list[tuple[object, ...]]:
        """Run a statement. ``{t}`` is the table in a query, ``{c}`` its catalog, ``{n}`` its name in a procedure."""
        full = text.format(t=f"{self.catalog}.{name}.table", c=f"{self.catalog}.system", n=f"{name}.table")
        return [tuple(row) for row in self._spark.sql(full).collect()]

    def create(self, name: str, columns: str, *, partitioned: str = "", properties: str = "") -> None:
        """``columns``, ``partitioned``, ``properties``: as in SQL."""
        by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
        modes = ", ".join(f"'write.{verb}.mode'='merge-on-read'" for verb in ("delete", "update", "merge"))
        more = f", {properties}" if properties else ""
        self.sql(
            f"CREATE TABLE {{t}} ({columns}) USING iceberg {by} TBLPROPERTIES ('format-version'='3', {modes}{more})",
            name,
        )

    def rows(self, name: str, ref: str = "main") -> list[str]:
        """All rows of a branch or tag with their lineage, in order."""
        at = "" if ref == "main" else f" VERSION AS OF '{ref}'"
        return sorted(map(repr, self.sql(f"SELECT *, _row_id, _last_updated_sequence_number FROM {{t}}{at}", name)))

    def java(self, name: str) -> Any:
        """The table as an object of Iceberg's Java library, newly loaded."""
        self.sql("DESCRIBE {t}", name)  # otherwise the session may not know its catalog yet
        util = self._spark._jvm.org.apache.iceberg.spark.Spark3Util
        return util.loadIcebergTable(self._spark._jsparkSession, f"{self.catalog}.{name}.table")

    def rewrite(self, name: str) -> None:
        self.sql("CALL {c}.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))", name)

    def expire(self, name: str) -> None:
        self.sql(
            "CALL {c}.expire_snapshots(table => '{n}', older_than => TIMESTAMP '2100-01-01 00:00:00', "
            "retain_last => 1)",
            name,
        )

    def orphans(self, name: str) -> list[tuple[object, ...]]:
        """Files that no snapshot reaches. They must be a day old at least: the caller makes them older."""
        return self.sql("CALL {c}.remove_orphan_files(table => '{n}', dry_run => true)", name)
