"""Metadata that is read here, though Iceberg's Java library refuses it, is a finding of fsck."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.tables import open_table
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

Edit = Callable[[dict[str, Any]], object]


def tag(body: dict[str, Any], **fields: Any) -> None:
    body["refs"]["q"] = {"snapshot-id": body["current-snapshot-id"], "type": "tag", **fields}


EDITS: dict[str, tuple[Edit, str]] = {
    "sort order": (lambda body: body.update({"default-sort-order-id": 44}), "default sort order 44"),
    "kind": (lambda body: tag(body, type="twig"), "type 'twig'"),
    "age": (lambda body: tag(body, **{"max-ref-age-ms": 0}), "max-ref-age-ms 0"),
    "main": (lambda body: body["refs"]["main"].update(type="tag"), "tag named main"),
    "snapshots": (lambda body: body["snapshots"].append(body["snapshots"][0]), "twice"),
    "sequence": (lambda body: body.update({"last-sequence-number": 1}), "last sequence number 1"),
    "names": (
        lambda body: body["schemas"][0]["fields"].append({"id": 9, "name": "ID", "type": "int", "required": False}),
        "differ only in case",
    ),
    "transform": (
        lambda body: body["partition-specs"].append(
            {"spec-id": 5, "fields": [{"source-id": 1, "field-id": 1009, "transform": "zorder[3]", "name": "z"}]}
        ),
        "'zorder[3]'",
    ),
}


def made(root: Path, change: Edit) -> Path:
    builder = IcebergBuilder(str(root))
    builder.create({"id": "long"})
    builder.append(pa.table({"id": pa.array(range(10), pa.int64())}))
    newest = max(root.glob("metadata/v*.metadata.json"), key=lambda path: int(path.name[1:].partition(".")[0]))
    body = json.loads(newest.read_text())
    change(body)
    newest.write_text(json.dumps(body))
    return root


def test_what_java_reads_is_clean(tmp_path: Path) -> None:
    assert not fsck(open_table(str(made(tmp_path / "t", lambda body: tag(body, **{"max-ref-age-ms": 5}))))).damage


@pytest.mark.parametrize(("change", "reason"), EDITS.values(), ids=EDITS)
def test_what_java_refuses_is_found(tmp_path: Path, change: Edit, reason: str) -> None:
    table = open_table(str(made(tmp_path / "t", change)))
    assert table.snapshot().files.num_rows == 1
    (fault,) = fsck(table).damage
    assert reason in fault.reason


def test_row_ids_that_would_be_given_twice(tmp_path: Path) -> None:
    table = open_table(str(made(tmp_path / "t", lambda body: body.update({"next-row-id": 7}))))
    (fault,) = fsck(table).damage
    assert "has the next row id 7, although ids up to 9 are in use" in fault.reason
    delete(table, LocalEngine(), "id = 3")
    assert table.snapshot().metadata.body["next-row-id"] >= 10
    assert not fsck(table).damage
