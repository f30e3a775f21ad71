"""Random histories of Paimon append tables, judged by Paimon's readers in Rust."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from effort import examples
from hypothesis import settings

from dv_maintenance.testing.backends import PaimonBackend
from dv_maintenance.testing.stateful import HISTORIES, Judge, TableHistories


def with_rust(place: Path, version: int) -> pa.Table:
    from pypaimon_rust.datafusion import Table

    table = Table.from_resolved_schema(str(place), (place / "schema" / "schema-0").read_text())
    builder = table.new_read_builder({"scan.snapshot-id": str(version)})
    batches = builder.new_read().read(builder.new_scan().plan().splits())
    schema = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string())])
    return pa.Table.from_batches(batches) if batches else schema.empty_table()


class PaimonHistories(TableHistories):
    judges: ClassVar[dict[str, Judge]] = {"pypaimon-rust": with_rust}

    def backend(self, place: Path) -> PaimonBackend:
        # Small index files: what is left of them is rewritten more than once.
        return PaimonBackend(str(place), properties={"deletion-vector.index-file.target-size": "60"})


TestPaimonHistories = PaimonHistories.TestCase
TestPaimonHistories.settings = settings(HISTORIES, max_examples=examples(2))
