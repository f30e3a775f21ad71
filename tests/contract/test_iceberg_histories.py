"""Random histories of Iceberg tables, judged by pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from effort import examples
from hypothesis import settings

from dv_maintenance.testing.backends import IcebergBackend
from dv_maintenance.testing.stateful import HISTORIES, Judge, TableHistories


def with_pyiceberg(place: Path, version: int) -> pa.Table:
    from pyiceberg.table import StaticTable

    newest = (place / "metadata" / "version-hint.text").read_text()
    table = StaticTable.from_metadata(str(place / "metadata" / f"v{newest}.metadata.json"))
    return table.scan(snapshot_id=version).to_arrow()


class IcebergHistories(TableHistories):
    judges: ClassVar[dict[str, Judge]] = {"pyiceberg": with_pyiceberg}
    version: ClassVar[str] = "3"

    def backend(self, place: Path) -> IcebergBackend:
        properties = {"format-version": self.version, "commit.manifest.min-count-to-merge": "3"}
        return IcebergBackend(str(place), properties=properties)


class IcebergHistories2(IcebergHistories):
    """Of format version 2, with position delete files."""

    version = "2"


TestIcebergHistories = IcebergHistories.TestCase
TestIcebergHistories.settings = settings(HISTORIES, max_examples=examples(2))
TestIcebergHistories2 = IcebergHistories2.TestCase
TestIcebergHistories2.settings = settings(HISTORIES, max_examples=examples(1))
