"""DELETE, UPDATE and MERGE of Iceberg tables: what they leave, and what concurrent commits do to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.iceberg_edits import edit
from support.tables import iceberg_table as opened

from dv_maintenance.dml.delete import delete
from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError, VerificationError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables.iceberg.rows.new_rows import row_rules
from dv_maintenance.tables.iceberg.rows.transforms import NewPartitions, transformed
from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.tables.model import FileKey, Snapshot
from dv_maintenance.tables.rows import AddedFile, ChangesOutcome, DeletedRows, RowChanges
from dv_maintenance.testing.backends import IcebergBackend, Row
from dv_maintenance.testing.iceberg_builder import IcebergBuilder
from dv_maintenance.testing.verbs import row_work

OF_VERSION_3 = pytest.mark.parametrize("backend", ["3"], indirect=True)


@pytest.fixture(params=["3", "2"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergBackend:
    """Two files of ten rows; one of them has a deletion vector, or a file of position deletes in format version 2."""
    backend = IcebergBackend(str(tmp_path / "t"), properties={"format-version": request.param})
    backend.create()
    backend.append("a", [(at, "a", "old") for at in range(10)])
    backend.append("b", [(at, "b", "old") for at in range(10, 20)])
    backend.delete([0])
    return backend


def table_of(backend: IcebergBackend) -> IcebergTable:
    return opened(backend.place)


def rows_of(table: IcebergTable) -> dict[int, tuple[Any, ...]]:
    """By id: partition, value, and in format version 3 row id, sequence number."""
    _, batches = read(table, None, columns=["id", "p", "v", *table.snapshot().hidden_columns.names])
    return {row["id"]: tuple(row.values())[1:] for batch in batches for row in batch.to_pylist()}


class Change:
    """An operation whose rows were found, and that commits later."""

    def __init__(self, table: IcebergTable, name: str, new: Sequence[Row] = (), gone: Sequence[int] = ()) -> None:
        self.table, self.name, self.base = table, name, table.snapshot()
        self.work = row_work(table, self.base, lambda _: (set(gone), list(new)))

    def commit(self, reads: Callable[[Snapshot], bool] | None = None, *, dry_run: bool = False) -> ChangesOutcome:
        operation = {"name": self.name}
        reads = reads or self.work.reads
        return self.table.commit_changes(
            self.base, self.work.changes, operation=operation, reads=reads, dry_run=dry_run
        )


@OF_VERSION_3
def test_lineage_of_changed_and_new_rows(backend: IcebergBackend) -> None:
    table = table_of(backend)
    before = rows_of(table)
    outcome = Change(table, "MERGE", [(1, "a", "new"), (12, "c", "moved"), (99, "c", "inserted")], [2]).commit()
    assert (outcome.rows_deleted, outcome.files_added, outcome.dvs_added, outcome.dvs_removed) == (3, 2, 2, 1)
    after, snapshot = rows_of(table), table.snapshot()
    assert snapshot.entry is not None
    assert snapshot.entry.operation == "overwrite"
    newest = snapshot.entry.sequence
    assert after[1] == ("a", "new", before[1][2], newest)
    assert after[12] == ("c", "moved", before[12][2], newest)
    assert after[99][3] == newest
    assert after[99][2] not in {row[2] for row in before.values()}
    assert {key: row for key, row in after.items() if key not in {1, 12, 99}} == {
        key: row for key, row in before.items() if key not in {1, 2, 12}
    }
    assert {each["partition"]: each["deleted_rows"] for each in snapshot.files.to_pylist() if each["dv_id"]} == {
        "p=a": 3,
        "p=b": 1,
    }
    # A purge keeps all that.
    purge(table, LocalEngine())
    assert rows_of(table) == after
    assert not fsck(table).files_damaged


@OF_VERSION_3
def test_an_update_of_updated_rows(backend: IcebergBackend) -> None:
    """Some are in a file that stores ids, some are not."""
    table = table_of(backend)
    before = rows_of(table)
    Change(table, "UPDATE", [(1, "a", "one"), (2, "a", "two")]).commit()
    Change(table, "UPDATE", [(1, "a", "uno"), (3, "a", "tres")]).commit()
    after = rows_of(table)
    assert {key: row[2] for key, row in after.items()} == {key: row[2] for key, row in before.items()}
    sequences = [after[key][3] for key in (1, 3, 2, 4)]
    assert sequences == sorted(sequences, reverse=True)
    assert len(set(sequences)) == 3


@pytest.mark.parametrize("name", ["DELETE", "UPDATE"])
def test_other_rows_deleted_meanwhile_stay_deleted(backend: IcebergBackend, name: str) -> None:
    table = table_of(backend)
    new: list[Row] = [(1, "a", "new")] if name == "UPDATE" else []
    change = Change(table, name, new, [] if new else [1])
    backend.delete([5])
    outcome = change.commit()
    assert outcome.version is not None
    assert sorted(rows_of(table)) == [key for key in range(1, 20) if key != 5 and (new or key != 1)]


def test_the_same_rows_deleted_meanwhile(backend: IcebergBackend) -> None:
    table = table_of(backend)
    update = Change(table, "UPDATE", [(1, "a", "new"), (2, "a", "new")])
    some, all_of_it = Change(table, "DELETE", gone=[1, 3]), Change(table, "DELETE", gone=[1])
    backend.delete([1])
    assert "deleted rows of" in update.commit().conflict
    assert some.commit().rows_deleted == 1
    before = table.version()
    assert all_of_it.commit() == ChangesOutcome(None, 1)
    assert (sorted(rows_of(table)), table.version()) == ([2, *range(4, 20)], before)


def test_a_file_that_was_rewritten_meanwhile(backend: IcebergBackend) -> None:
    table = table_of(backend)
    change = Change(table, "UPDATE", [(1, "a", "new")])
    purge(table, LocalEngine())
    assert "removed or rewrote" in change.commit().conflict


def test_rows_that_another_writer_brought_back(backend: IcebergBackend) -> None:
    """With them, the operation might find others."""
    table = table_of(backend)
    change = Change(table, "DELETE", gone=[1])
    (path,) = (row["path"] for row in table.snapshot().files.to_pylist() if row["dv_id"])
    backend._builder.commit("overwrite", dvs={path: DeletionVector.from_positions([5])})
    assert "brought rows of" in change.commit().conflict
    assert sorted(rows_of(table)) == [at for at in range(20) if at != 5]


@pytest.mark.parametrize(
    ("level", "read_it", "conflict"), [("", True, True), ("", False, False), ("snapshot", True, False)]
)
@pytest.mark.parametrize("name", ["DELETE", "UPDATE", "MERGE"])
def test_rows_added_meanwhile(tmp_path: Path, name: str, level: str, read_it: bool, conflict: bool) -> None:
    properties = {f"write.{name.lower()}.isolation-level": level} if level else {}
    backend = IcebergBackend(str(tmp_path / "t"), properties=properties)
    backend.create()
    backend.append("a", [(at, "a", "old") for at in range(10)])
    table = table_of(backend)
    change = Change(table, name, [] if name == "DELETE" else [(1, "a", "new")], [2])
    backend.append("a", [(50, "a", "added")])
    seen: list[int] = []

    def reads(added: Snapshot) -> bool:
        seen.append(added.files.num_rows)
        return read_it

    outcome = change.commit(reads)
    assert seen == ([] if level else [1])
    assert ("has to read" in outcome.conflict) == conflict == (outcome.version is None)


def test_a_purge_of_other_files_meanwhile_adds_no_rows(backend: IcebergBackend) -> None:
    table = table_of(backend)
    change = Change(table, "UPDATE", [(11, "b", "new")])
    purge(table, LocalEngine())
    assert change.commit(lambda _: True).version is not None
    assert rows_of(table)[11][1] == "new"


def test_a_new_schema_meanwhile(backend: IcebergBackend) -> None:
    table = table_of(backend)
    change = Change(table, "UPDATE", [(1, "a", "new")])
    edit(backend.place, lambda body: body["schemas"].append({**body["schemas"][0], "schema-id": 1}))
    edit(backend.place, lambda body: body.update({"current-schema-id": 1}))
    assert "schema" in change.commit().conflict


def test_a_file_that_loses_all_rows_goes_with_its_deletion_vector(backend: IcebergBackend) -> None:
    table = table_of(backend)
    outcome = Change(table, "UPDATE", [(at, "a", "new") for at in range(1, 10)]).commit()
    assert (outcome.files_removed, outcome.dvs_added, outcome.dvs_removed) == (1, 0, 1)
    deletes = table.snapshot().deletes
    assert (deletes.dvs.num_rows, deletes.positions.num_rows) == (0, 0)
    assert len(rows_of(table)) == 19


def test_changes_that_can_not_be_right(backend: IcebergBackend) -> None:
    table = table_of(backend)
    base = table.snapshot()
    change = Change(table, "UPDATE", [(1, "a", "new")])
    (added,) = change.work.changes.added
    row = next(each for each in base.files.to_pylist() if each["dv_id"])
    key = FileKey(row["path"], row["dv_id"])
    for changes, says in (
        (RowChanges((DeletedRows(key, DeletionVector.from_positions([0])),)), "already deleted"),
        (RowChanges((DeletedRows(key, DeletionVector.from_positions([10])),)), "not within"),
        (RowChanges((DeletedRows(FileKey(key.path), None),)), "not live with"),
        (RowChanges((DeletedRows(key), DeletedRows(key))), "share a file"),
        (RowChanges(added=(added, added)), "share a name"),
        (RowChanges(added=(AddedFile(replaced(added.output, size=1), added.partition),)), "bytes, not 1"),
    ):
        with pytest.raises(VerificationError, match=says):
            table.commit_changes(base, changes, operation={"name": "UPDATE"}, reads=lambda _: False)
    assert table.version() == base.version


def replaced(output: Any, **values: Any) -> Any:
    from dataclasses import replace

    return replace(output, **values)


# -- catalogs, and folders ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("golden")
def test_a_dry_run_on_a_table_of_a_catalog(laid_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg.catalog.sql")
    place = laid_copy("jdbc_catalog")
    monkeypatch.setenv("PYICEBERG_CATALOG__J__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__J__URI", f"sqlite:///{place.parent / 'catalog.db'}")
    table = opened("iceberg:j.jdbc_catalog.table")
    before = table.version()
    column = table.snapshot().schema.names[0]
    report = delete(table, LocalEngine(), f"{column} IS NOT NULL", dry_run=True)
    assert report.rows_deleted
    assert opened("iceberg:j.jdbc_catalog.table").version() == before


def test_a_table_without_a_snapshot(tmp_path: Path) -> None:
    """There are no manifests to take a schema from."""
    place = tmp_path / "t"
    builder = IcebergBuilder(place)
    builder.create({"id": "long", "p": "string", "v": "string"}, ["p"])
    edit(place, without_snapshots)
    table = opened(place)
    assert table.snapshot().entry is None
    assert Change(table, "MERGE", [(1, "a", "x"), (2, "b", "y")]).commit().files_added == 2
    assert {key: row[:2] for key, row in rows_of(table).items()} == {1: ("a", "x"), 2: ("b", "y")}
    snapshot = table.snapshot()
    assert snapshot.entry is not None
    assert (snapshot.entry.operation, snapshot.entry.parent) == ("append", None)
    assert {each.name for each in snapshot.partitions} == {"p=a", "p=b"}


def without_snapshots(body: dict[str, Any]) -> None:
    body |= {"snapshots": [], "snapshot-log": [], "refs": {}, "next-row-id": 0, "last-sequence-number": 0}
    del body["current-snapshot-id"]


def test_where_new_files_go(tmp_path: Path) -> None:
    properties = {
        "write.data.path": f"{tmp_path}/t/rows",
        "write.metadata.path": f"{tmp_path}/t/meta",
        "write.object-storage.enabled": "true",
    }
    backend = IcebergBackend(str(tmp_path / "t"), properties=properties)
    backend.create()
    backend.append("a", [(at, "a", "old") for at in range(10)])
    table = table_of(backend)
    Change(table, "UPDATE", [(1, "a", "new")]).commit()
    (new,) = (each for each in table.snapshot().files["path"].to_pylist() if "/rows/" in each)
    assert new.removeprefix(f"{tmp_path}/t/rows/")[:15].replace("/", "").strip("01") == ""
    assert "/p=a/" in new
    assert [each.suffix for each in (tmp_path / "t" / "meta").iterdir()] == [".avro"] * 3
    # A folder outside the table is not written to.
    edit(tmp_path / "t", lambda body: body["properties"].update({"write.data.path": f"{tmp_path}/elsewhere"}))
    Change(table, "UPDATE", [(2, "a", "new")]).commit()
    assert not (tmp_path / "elsewhere").exists()
    assert rows_of(table)[2][1] == "new"


# -- rules and partitions ----------------------------------------------------------------------------------------------


def test_the_rules_of_new_rows(tmp_path: Path) -> None:
    place = tmp_path / "t"
    IcebergBuilder(place).create(
        {"id": "long", "at": "timestamptz", "n": "decimal(9, 2)", "s": "string", "b": "binary"}
    )

    def rules(body: dict[str, Any]) -> None:
        fields = body["schemas"][0]["fields"]
        fields[0]["required"] = True
        defaults = ("2026-01-01T00:00:00+00:00", "1.50", "it's \\", "00ff")
        for field, default in zip(fields[1:], defaults, strict=True):
            field["write-default"] = default
        inner = [
            {"id": 11, "name": "x`y", "type": "int", "required": True},
            {
                "id": 12,
                "name": "many",
                "required": False,
                "type": {
                    "type": "list",
                    "element-id": 13,
                    "element": "int",
                    "element-required": True,
                },
            },
        ]
        struct = {"type": "struct", "fields": inner}
        fields.append({"id": 10, "name": "in", "required": False, "type": struct, "write-default": {}})

    edit(place, rules)
    found = row_rules(opened(place).snapshot())
    assert found.not_null == ("`id`",)
    assert found.checks == {
        "required fields within in": "(`in` IS NULL OR `in`.`x``y` IS NOT NULL) AND "
        "coalesce(forall(`in`.`many`, x0 -> x0 IS NOT NULL), true)"
    }
    assert list(found.fixed) == ["in"]
    assert found.defaults["b"] == "unhex('00ff')"
    assert found.defaults["n"] == "CAST(CAST(unhex('312e3530') AS STRING) AS DECIMAL(9, 2))"
    assert found.defaults["at"].endswith("AS TIMESTAMP)")
    assert found.row_ids


def test_an_unknown_transform_is_refused(tmp_path: Path) -> None:
    backend = IcebergBackend(str(tmp_path / "t"))
    backend.create()
    edit(tmp_path / "t", lambda body: body["partition-specs"][0]["fields"][0].update(transform="hilbert"))
    table = table_of(backend)
    for verb in ("update", "merge"):
        with pytest.raises(RefusedError, match="hilbert"):
            table.check_writable(table.snapshot(), verb)


RANDOM = Random(7)
MANY = 200
MICROS = [RANDOM.randint(-(3 * 10**15), 3 * 10**15) for _ in range(MANY)] + [-1, 0, 1, -3_600_000_000]
DAYS = [RANDOM.randint(-30_000, 30_000) for _ in range(MANY)] + [-1, 0, 1, -365]
LONGS = [RANDOM.randint(-(2**62), 2**62) for _ in range(MANY)]
TEXTS = ["".join(RANDOM.choice("abé漢😀") for _ in range(RANDOM.randint(0, 9))) for _ in range(MANY)]
BYTES = [RANDOM.randbytes(RANDOM.randint(0, 9)) for _ in range(MANY)]
DECIMALS = [Decimal(RANDOM.randint(-(10**12), 10**12)).scaleb(-2) for _ in range(MANY)]


@pytest.mark.parametrize(
    ("kind", "arrow", "values", "transforms"),
    [
        ("timestamp", pa.timestamp("us"), MICROS, "year month day hour bucket[16] identity"),
        ("date", pa.date32(), DAYS, "year month day bucket[7] identity"),
        ("int", pa.int32(), DAYS, "bucket[16] truncate[10] identity"),
        ("long", pa.int64(), LONGS, "bucket[16] truncate[7] identity"),
        ("string", pa.string(), TEXTS, "bucket[16] truncate[3] identity"),
        ("binary", pa.binary(), BYTES, "bucket[16] truncate[3] identity"),
        ("decimal(18, 2)", pa.decimal128(18, 2), DECIMALS, "bucket[16] truncate[50] identity"),
    ],
)
def test_transforms_are_those_of_pyiceberg(kind: str, arrow: pa.DataType, values: list[Any], transforms: str) -> None:
    pyiceberg = pytest.importorskip("pyiceberg.transforms")
    from pydantic import TypeAdapter
    from pyiceberg.types import IcebergType

    source = TypeAdapter(IcebergType).validate_python(kind)
    stored = pa.array(values, pa.int32()).cast(arrow) if arrow == pa.date32() else pa.array(values, arrow)
    for transform in transforms.split():
        theirs = [pyiceberg.parse_transform(transform).transform(source)(each) for each in values]
        ours = transformed(transform, pa.concat_arrays([stored, pa.nulls(1, arrow)]))
        if pa.types.is_decimal(arrow) and "bucket" not in transform:
            assert {len(each) for each in ours[:-1]} == {8}
            ours = [each and Decimal(int.from_bytes(each, "big", signed=True)).scaleb(-2) for each in ours]
        assert ours == [*theirs, None], transform


@pytest.mark.parametrize(
    ("arrow", "value", "truncated"),
    [(pa.int32(), -(1 << 31), 2_147_477_296), (pa.int64(), -(1 << 63), 9_223_372_036_854_771_616)],
)
def test_a_truncation_below_the_type_wraps(arrow: pa.DataType, value: int, truncated: int) -> None:
    """As in Iceberg's Java library, which looks for the row there (apache/iceberg#9767)."""
    assert transformed("truncate[10000]", pa.array([value, -1], arrow)) == [truncated, -10_000]


def test_names_of_new_partitions(tmp_path: Path) -> None:
    place = tmp_path / "t"
    kinds = {"s": "string", "n": "decimal(9, 2)", "day": "date", "f": "double", "b": "binary"}
    IcebergBuilder(place).create(kinds, list(kinds))
    snapshot = opened(place).snapshot()
    assert isinstance(snapshot, IcebergSnapshot)
    partitions = NewPartitions.of(snapshot.metadata)
    rows = [
        {"s": "a/b", "n": Decimal("-1.50"), "day": date(1969, 12, 31), "f": -0.0, "b": b"\x00\xff"},
        {"s": "", "n": None, "day": None, "f": float("nan"), "b": b""},
        {"s": None, "n": Decimal("1.50"), "day": date(2026, 1, 1), "f": 0.0, "b": None},
    ]
    names = partitions.names(pa.RecordBatch.from_pylist(rows, snapshot.schema))
    assert len(set(names)) == 3
    values = [partitions.values(each) for each in names]
    assert values[0] == ("a/b", (-150).to_bytes(4, "big", signed=True), -1, -0.0, b"\x00\xff")
    assert values[1][:3] == ("", None, None)
    assert values[2][2:] == (20454, 0.0, None)
    assert partitions.folder(names[0]) == "s=a%2Fb/n=-1.50/day=1969-12-31/f=-0.0/b=AP8%3D"
