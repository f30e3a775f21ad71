"""An Iceberg table without an engine, for catalogs that only name its newest metadata file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from dv_maintenance.tables.iceberg.log.pointer import newest_metadata
from dv_maintenance.testing.backends import IcebergBackend

__all__ = ["SQL", "iceberg_table", "named_in_sqlite", "newest_of", "of_version_2"]

SQL = (
    "CREATE TABLE iceberg_tables (catalog_name VARCHAR, table_namespace VARCHAR, table_name VARCHAR, "
    "metadata_location VARCHAR, previous_metadata_location VARCHAR, iceberg_type VARCHAR)"
)


def iceberg_table(place: Path | str, storage_options: dict[str, str] | None = None) -> IcebergBackend:
    """Twenty rows in two files, three of them deleted."""
    backend = IcebergBackend(str(place), storage_options=storage_options)
    backend.create()
    backend.append("a", [(at, "a", "old") for at in range(10)])
    backend.append("b", [(at, "b", "old") for at in range(10, 20)])
    backend.delete([0, 1, 10])
    return backend


def newest_of(backend: IcebergBackend) -> str:
    """The location of its newest metadata file."""
    layout = backend.open().layout  # type: ignore[attr-defined]
    return f"{backend.place.rstrip('/')}/{newest_metadata(layout)}"


def of_version_2(place: Path, properties: dict[str, str]) -> str:
    """A metadata file, as pyiceberg writes it, which can't write version 3. Returns its location."""
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    unsorted = (UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER)
    made = new_table_metadata(Schema(), *unsorted, str(place), {"format-version": "2", **properties})
    file = place / "metadata" / f"00000-{made.table_uuid}.metadata.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(made.model_dump_json())
    return str(file)


def named_in_sqlite(database: Path, catalog: str, namespace: str, name: str, metadata: str, kind: str | None) -> None:
    """As a JDBC catalog does it."""
    with closing(sqlite3.connect(database)) as connection, connection:
        if not connection.execute("SELECT name FROM sqlite_master").fetchall():
            connection.execute(SQL)
        row = (catalog, namespace, name, metadata, None, kind)
        connection.execute("INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, ?, ?)", row)
