"""Logs that are read here although the protocol forbids them: fsck says what other readers can't, and names the repair.

deltalake judges: it opens the table after the repair, and not before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.readers import with_deltalake

from dv_maintenance.cli import main
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.maintenance.changes import read_changes
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.maintenance.fsck import fsck
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.tables import open_table

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Version 1 of ten rows: one is deleted."""
    root = tmp_path / "t"
    rows = pa.table({"id": list(range(10)), "v": ["a"] * 10})
    deltalake.write_deltalake(root, rows, configuration={"delta.enableDeletionVectors": "true"})
    assert delete(root, "id = 3") == 0
    return root


def delete(root: Path, where: str) -> int:
    return main(["delete", str(root), "--where", where, "--engine", "local"])


def ids(root: Path) -> list[int]:
    return sorted(with_deltalake(root)["id"].to_pylist())


def edited(root: Path, version: int, kind: str, change: Edit) -> None:
    path = root / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if kind in action:
            change(action[kind])
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def without(name: str) -> Edit:
    return lambda action: action.pop(name)


def statistics(text: str) -> Edit:
    return lambda action: action.update(stats=text)


@pytest.mark.parametrize(
    ("version", "kind", "change", "reason"),
    [
        (1, "add", without("partitionValues"), "add.partitionValues is missing"),
        (1, "add", without("dataChange"), "add.dataChange is missing"),
        (0, "metaData", without("configuration"), "metaData.configuration is missing"),
        (0, "metaData", without("format"), "metaData.format is missing"),
        (0, "metaData", lambda each: each.update(format={"provider": "parquet"}), "metaData.format.options is missing"),
        (0, "metaData", lambda each: each.update(format={"options": {}}), "metaData.format.provider is missing"),
        (1, "add", statistics(""), "the statistics of 1 file are not a JSON object"),
        (1, "add", statistics("null"), "not a JSON object"),
        (1, "add", statistics('{"numRecords":'), "not a JSON object"),
        (1, "add", statistics('{"numRecords":10,"minValues":{"id":NaN}}'), "not a JSON object"),
        (1, "add", statistics('{"numRecords":10,"minValues":{"id":}}'), "not a JSON object"),
    ],
)
def test_what_other_readers_cannot_open_is_found_and_a_checkpoint_mends_it(
    root: Path, version: int, kind: str, change: Edit, reason: str
) -> None:
    before = ids(root)
    edited(root, version, kind, change)
    with pytest.raises(Exception, match=r"(?i)kernel"):
        with_deltalake(root)
    table = open_table(str(root))
    report = fsck(table)
    assert [reason in each.reason for each in report.damage] == [True]
    assert str(report.remedies[0].command).startswith("dvm.checkpoint(")
    checkpoint(table)
    assert ids(root) == before
    assert fsck(table).clean


def test_a_checkpoint_keeps_statistics_of_texts_that_look_like_numbers(root: Path) -> None:
    whole = '{"numRecords":10,"minValues":{"v":"a:NaN"},"maxValues":{"v":"b,Infinity"},"nullCount":{"v":0}}'
    edited(root, 1, "add", statistics(whole))
    checkpoint(open_table(str(root)))
    (path,) = (root / "_delta_log").glob("*.checkpoint.parquet")
    assert [each["stats"] for each in pq.read_table(path)["add"].to_pylist() if each] == [whole]


def test_a_remove_without_the_old_vector_is_found_and_a_restore_mends_it(root: Path) -> None:
    """Trino did so (#24648, #31253): the file stays live, and its rows come back or are doubled."""
    table = open_table(str(root))
    assert delete(root, "id = 5") == 0
    edited(root, 2, "remove", without("deletionVector"))
    assert [("is live more than once" in each.reason, each.path) for each in fsck(table).damage] == [
        (True, table.snapshot().files["path"][0].as_py())
    ]
    assert delete(root, "id = 6") == 3
    restore(table, version=1)
    assert fsck(table).clean
    with pytest.raises(RefusedError, match="live twice"):
        restore(table, version=2)


def test_a_file_that_a_commit_failed_to_remove_is_found(root: Path) -> None:
    first, second = (root / "_delta_log" / f"{version:020d}.json" for version in (1, 2))
    second.write_text("".join(line + "\n" for line in first.read_text().splitlines() if '"remove"' in line))
    (damage,) = fsck(open_table(str(root))).damage
    assert "is still live: version 2 removes it without naming its deletion vector" in damage.reason


def test_vectors_that_the_protocol_does_not_announce_are_found(root: Path) -> None:
    edited(root, 0, "protocol", lambda each: each.update(readerFeatures=[], writerFeatures=[]))
    (damage,) = fsck(open_table(str(root))).damage
    assert "the protocol lacks the feature deletionVectors" in damage.reason


@pytest.mark.parametrize(
    ("name", "value"), [("cardinality", -1), ("sizeInBytes", -5), ("offset", -1), ("storageType", "x")]
)
def test_a_descriptor_out_of_range_is_named_with_its_file(root: Path, name: str, value: object) -> None:
    path = open_table(str(root)).snapshot().files["path"][0].as_py()
    edited(root, 1, "add", lambda each: each["deletionVector"].update({name: value}))
    (damage,) = fsck(open_table(str(root))).damage
    assert f"data file {path} has a deletion vector" in damage.reason


def test_columns_that_differ_in_case_are_found(root: Path) -> None:
    def twice(body: dict[str, Any]) -> None:
        schema = json.loads(body["schemaString"])
        schema["fields"].append({**schema["fields"][0], "name": "ID"})
        body["schemaString"] = json.dumps(schema)

    edited(root, 0, "metaData", twice)
    (damage,) = fsck(open_table(str(root))).damage
    assert "the columns id and ID, which differ only in case" in damage.reason


def test_a_partition_column_that_is_named_twice_is_found_and_a_checkpoint_mends_it(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"id": [1, 2], "p": ["a", "b"]}), partition_by=["p"])
    edited(tmp_path, 0, "metaData", lambda each: each.update(partitionColumns=["p", "p"]))
    with pytest.raises(Exception, match="Duplicate partition column"):
        deltalake.DeltaTable(tmp_path)
    (damage,) = fsck(open_table(str(tmp_path))).damage
    assert damage.reason == "metaData.partitionColumns names p more than once"
    checkpoint(open_table(str(tmp_path)))
    assert fsck(open_table(str(tmp_path))).clean
    assert deltalake.DeltaTable(tmp_path).metadata().partition_columns == ["p"]


# -- checkpoints ------------------------------------------------------------------------------------------------------


def with_checkpoint(root: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """A changed checkpoint of version 1, and a commit after it."""
    checkpoint(open_table(str(root)))
    deltalake.write_deltalake(root, pa.table({"id": [90], "v": ["b"]}), mode="append")
    (path,) = (root / "_delta_log").glob("*.checkpoint.parquet")
    pq.write_table(change(pq.read_table(path)), path)


@pytest.mark.parametrize("kind", ["metaData", "protocol"])
def test_a_checkpoint_without_schema_or_protocol_is_refused(root: Path, kind: str) -> None:
    """The rows were read as none, and the table was counted as if nothing had happened."""
    with_checkpoint(root, lambda rows: rows.filter(rows[kind].is_null()))
    table = open_table(str(root))
    for verb in (lambda: read(table), table.snapshot, lambda: checkpoint(table)):
        with pytest.raises(DamagedTableError, match=f"the checkpoint of version 1 has no {kind}.*do without it"):
            verb()
    assert [f"has no {kind}" in each.reason for each in fsck(table).damage] == [True]
    for path in (root / "_delta_log").glob("*checkpoint*"):
        path.unlink()
    assert len(ids(root)) == 10
    assert sum(batch.num_rows for batch in read(table)[1]) == 10


def test_a_log_without_schema_is_not_read_as_no_rows(root: Path) -> None:
    with_checkpoint(root, lambda rows: rows.filter(rows["metaData"].is_null()))
    for version in (0, 1):
        (root / "_delta_log" / f"{version:020d}.json").unlink()
    table = open_table(str(root))
    with pytest.raises(DamagedTableError, match="has no metaData"):
        read(table)
    assert not fsck(table).clean


def test_a_file_that_a_checkpoint_names_twice_is_read_once(root: Path) -> None:
    """As Spark does; deltalake doubles its rows."""
    with_checkpoint(root, lambda rows: pa.concat_tables([rows, rows]))
    assert len(ids(root)) > 10
    table = open_table(str(root))
    assert (sum(batch.num_rows for batch in read(table)[1]), table.snapshot().files.num_rows) == (10, 2)
    assert ["names a file twice" in each.reason for each in fsck(table).damage] == [True]
    checkpoint(table)
    assert len(ids(root)) == 10
    assert fsck(table).clean


def test_changes_need_no_damaged_checkpoint(root: Path) -> None:
    """The versions in question are whole, and every other verb reads them past it."""
    with_checkpoint(root, lambda rows: rows)
    (path,) = (root / "_delta_log").glob("*.checkpoint.parquet")
    path.write_bytes(b"PAR1")
    assert sum(batch.num_rows for batch in read_changes(open_table(str(root)), 1, 2)[1]) == 2


def put_bad_add(root: Path, **fields: Any) -> None:
    """Version 2 adds a file, whose add says something that can't be."""
    pq.write_table(pa.table({"id": [99], "v": ["b"]}), root / "b.parquet")
    size = (root / "b.parquet").stat().st_size
    add = {"path": "b.parquet", "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    body = {name: value for name, value in {**add, **fields}.items() if value is not None}
    commit = f"{json.dumps({'commitInfo': {'operation': 'WRITE'}})}\n{json.dumps({'add': body})}\n"
    (root / "_delta_log" / f"{2:020d}.json").write_text(commit)


@pytest.mark.parametrize(
    "fields",
    [
        {"size": None},
        {"size": -3},
        {"modificationTime": None},
        {
            "deletionVector": {
                "storageType": "i",
                "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
            }
        },
        {"deletionVector": {"storageType": "z", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}},
    ],
    ids=["no size", "negative size", "no time", "no cardinality", "unknown vector"],
)
def test_a_restore_leaves_a_version_that_can_not_be_read(root: Path, fields: dict[str, Any]) -> None:
    before = ids(root)
    put_bad_add(root, **fields)
    with pytest.raises(DamagedTableError):
        read(open_table(str(root)))
    found = fsck(open_table(str(root)))
    back = next(each for each in found.remedies if each.command and "restore" in str(each.command))
    assert "version=1" in str(back.command)
    restored = restore(open_table(str(root)), version=1)
    assert restored.verified
    if any("checkpoint" in str(each.command) for each in fsck(open_table(str(root))).remedies):
        with pytest.raises(deltalake.exceptions.DeltaError):  # the log still has the bad add
            ids(root)
        checkpoint(open_table(str(root)))
    assert ids(root) == before


@pytest.mark.parametrize(
    "schema", ["{", json.dumps({"type": "struct", "fields": [{"name": "id", "type": "nonsense"}]})]
)
def test_a_restore_leaves_a_schema_that_can_not_be_read(root: Path, schema: str) -> None:
    before = ids(root)
    actions = [json.loads(line) for line in (root / "_delta_log" / f"{0:020d}.json").read_text().splitlines()]
    metadata = next(each for each in actions if "metaData" in each)
    metadata["metaData"]["schemaString"] = schema
    (root / "_delta_log" / f"{2:020d}.json").write_text(json.dumps(metadata) + "\n")
    restored = restore(open_table(str(root)), version=1)
    assert restored.verified
    assert restored.schema_changed
    assert ids(root) == before


def test_a_restore_says_why_it_can_not_leave_a_broken_log(root: Path) -> None:
    (root / "_delta_log" / f"{2:020d}.json").write_text("{")
    with pytest.raises(DamagedTableError, match=r"can be restored: a restore adds a commit.*2\.json, line 1"):
        restore(open_table(str(root)), version=1)


def test_a_commit_without_its_in_commit_timestamp_is_read_but_not_built_on(root: Path) -> None:
    """As delta-spark 4.4, which reads it; DELETE and TIMESTAMP AS OF fail with DELTA_MISSING_COMMIT_TIMESTAMP."""
    log = root / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    metadata = next(each for each in actions if "metaData" in each)
    metadata["metaData"]["configuration"]["delta.enableInCommitTimestamps"] = "true"
    protocol = next(each for each in actions if "protocol" in each)
    protocol["protocol"]["writerFeatures"].append("inCommitTimestamp")
    stamped = {"commitInfo": {"inCommitTimestamp": 1_700_000_000_000, "timestamp": 1_700_000_000_000}}
    (log / f"{2:020d}.json").write_text("".join(json.dumps(each) + "\n" for each in (stamped, protocol, metadata)))
    (log / f"{3:020d}.json").write_text('{"commitInfo":{"operation":"WRITE"}}\n')
    table = open_table(str(root))
    assert sum(batch.num_rows for batch in read(table)[1]) == 9
    assert any("in-commit timestamps" in each for each in table.snapshot().warnings)
    assert delete(root, "id = 5") == 5
    with pytest.raises(DamagedTableError, match="does not begin with one"):
        restore(table, timestamp=1_800_000_000_000)
    (fault,) = fsck(table).damage
    assert "nobody can write to the table" in fault.effect
    assert restore(table, version=2).verified
    assert delete(root, "id = 5") == 0


@pytest.mark.parametrize("verb", ["purge", "delete"])
@pytest.mark.parametrize("dry", [True, False], ids=["dry", "real"])
def test_a_table_with_files_but_no_columns_is_refused(
    root: Path, verb: str, dry: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark: DELTA_READ_TABLE_WITHOUT_COLUMNS. A rewrite would lose what the files hold."""
    actions = [json.loads(line) for line in (root / "_delta_log" / f"{0:020d}.json").read_text().splitlines()]
    metadata = next(each for each in actions if "metaData" in each)
    metadata["metaData"]["schemaString"] = '{"type":"struct","fields":[]}'
    (root / "_delta_log" / f"{2:020d}.json").write_text(json.dumps(metadata) + "\n")
    where = ["--where", "1 = 1"] if verb == "delete" else []
    assert main([verb, str(root), *where, "--engine", "local", *["--dry-run"] * dry]) == 3
    assert "has files but no columns" in capsys.readouterr().err
    assert main(["health", str(root)]) == 0


@pytest.mark.parametrize(
    ("type", "text", "plain"),
    [
        ("decimal(10,2)", "1.5", False),
        ("decimal(10,2)", "1", False),
        ("decimal(10,2)", "-1.50", True),
        ("date", "2024-01-05 00:00:00", False),
        ("date", "2024-01-05T00:00:00", False),
        ("date", "2024-1-5", True),
        ("timestamp", "2024-01-05T10:00:00", False),
        ("timestamp", "2024-01-05", False),
        ("timestamp", "2024-01-05 10:00", False),
        ("timestamp", "2024-01-05 10:00:00.123456789", True),
        ("timestamp", "2024-01-05T10:00:00.123456Z", True),
        ("timestamp", "2024-01-05 10:00:00+02:00", True),
    ],
)
def test_partition_values_that_only_some_readers_understand(root: Path, type: str, text: str, plain: bool) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "p", "type": type}]
    for field in fields:
        field |= {"nullable": True, "metadata": {}}
    schema = json.dumps({"type": "struct", "fields": fields})
    edited(root, 0, "metaData", lambda body: body.update(schemaString=schema, partitionColumns=["p"]))
    for version in (0, 1):
        for kind in ("add", "remove"):
            edited(root, version, kind, lambda body: body.update(partitionValues={"p": text}))
    try:
        ids(root)
        readable = True
    except deltalake.exceptions.DeltaError:
        readable = False
    assert readable is plain
    found = fsck(open_table(str(root)))
    assert [text in each.reason for each in found.damage] == [True] * (not plain)
    assert sum(batch.num_rows for batch in read(open_table(str(root)))[1]) == 9


def test_a_row_count_beyond_64_bits(root: Path) -> None:
    edited(root, 1, "add", lambda body: body.update(stats=json.dumps({"numRecords": 1 << 65})))
    with pytest.raises(deltalake.exceptions.DeltaError):
        ids(root)
    (fault,) = fsck(open_table(str(root))).damage
    assert "more rows than 64 bits" in fault.reason
    assert main(["recount", str(root)]) == 0
    assert len(ids(root)) == 9
    assert not fsck(open_table(str(root))).damage


def test_files_without_columns_are_not_rewritten(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited(root, 0, "metaData", lambda each: each.update(partitionColumns=["id", "v"]))
    for dry in (["--dry-run"], []):
        assert main(["purge", str(root), "--engine", "local", *dry]) == 3
        assert "every column is a partition column" in capsys.readouterr().err


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("what", ["metadata", "protocol"])
def test_a_checksum_that_contradicts_the_log(root: Path, what: str, later: bool) -> None:
    """Delta's kernel believes it (delta-io/delta#5468): deltalake finds other columns, polars deleted rows."""
    log, before = root / "_delta_log", ids(root)
    actions: dict[str, Any] = {}
    for line in (log / f"{0:020d}.json").read_text().splitlines():
        actions |= json.loads(line)
    counts = {"tableSizeBytes": 1, "numFiles": 1, "numMetadata": 1, "numProtocol": 1}
    said = {**counts, "metadata": actions["metaData"], "protocol": actions["protocol"]}
    checksum = log / f"{1:020d}.crc"
    checksum.write_text(json.dumps(said))
    assert fsck(open_table(str(root))).clean
    if what == "metadata":
        said["metadata"]["schemaString"] = said["metadata"]["schemaString"].replace('"id"', '"other"')
    else:
        said["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 2}
    checksum.write_text(json.dumps(said))
    if what == "metadata":
        with pytest.raises(KeyError):
            ids(root)
    if later:
        assert delete(root, "id = 5") == 0
        before.remove(5)
    else:
        assert f"contradicts the {what} of the log" in open_table(str(root)).snapshot().warnings[-1]
    (damage,) = fsck(open_table(str(root))).damage
    assert damage.path == f"_delta_log/{1:020d}.crc"
    assert damage.reason.startswith(f"contradicts the {what} of the log")
    checksum.unlink()
    assert ids(root) == before
    assert fsck(open_table(str(root))).clean


def test_a_checksum_from_before_a_change_of_the_schema(root: Path) -> None:
    log = root / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    (metadata,) = (each["metaData"] for each in first if "metaData" in each)
    (log / f"{1:020d}.crc").write_text(json.dumps({"metadata": metadata}))
    rows = pa.table({"id": [99], "v": ["b"], "more": [1]})
    deltalake.write_deltalake(root, rows, mode="append", schema_mode="merge")
    assert fsck(open_table(str(root))).clean


def test_files_without_the_value_of_a_partition_column(tmp_path: Path) -> None:
    """As a compaction of one partition wrote them that kept only the columns of its filter: their rows have a null."""
    root = tmp_path / "t"
    rows = pa.table({"id": [1, 2, 3], "day": ["d1", "d2", None], "shop": ["x", "y", "z"]})
    deltalake.write_deltalake(root, rows, partition_by=["day", "shop"])
    table = open_table(str(root))
    assert fsck(table).clean
    deltalake.write_deltalake(root, rows, mode="append")
    edited(root, 1, "add", lambda each: each["partitionValues"].pop("shop"))
    (damage,) = fsck(table).damage
    assert "the partition column shop has no value in 3 files" in damage.reason
    # Whoever leaves out nulls says nothing else than who writes them.
    edited(root, 1, "add", lambda each: each["partitionValues"].update(shop="x"))
    edited(root, 1, "add", lambda each: each["partitionValues"]["day"] or each["partitionValues"].pop("day"))
    assert fsck(table).clean


def test_a_commit_that_lost_its_actions_is_found(root: Path) -> None:
    """The file system kept the name of the newest commit, but not its bytes (ClickHouse/ClickHouse#111738)."""
    commit = root / "_delta_log" / f"{1:020d}.json"
    text = commit.read_bytes()
    commit.write_bytes(b"")
    assert ids(root) == list(range(10))  # the deletion is gone, and no reader says so
    (fault,) = fsck(open_table(str(root))).damage
    assert fault.path == f"_delta_log/{commit.name}"
    assert "holds no action" in fault.reason
    commit.write_bytes(text)
    assert not fsck(open_table(str(root))).damage
    commit.write_bytes(b"")
    checkpoint(open_table(str(root)))
    assert not fsck(open_table(str(root))).damage
