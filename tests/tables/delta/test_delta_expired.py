"""What a vacuum may delete: the decision, case by case."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from support.raw_log import HOUR, NOW, Action, LogWriter, add, encoded, remove

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_with_tombstones
from dv_maintenance.tables.delta.vacuum.files import Scope, kind_of
from dv_maintenance.tables.delta.vacuum.run import _Rules
from dv_maintenance.tables.guard import VacuumRequest

CUTOFF = NOW - 168 * HOUR
OLD = CUTOFF - HOUR
RECENT = CUTOFF + HOUR


@pytest.fixture
def table(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "a table")


def rules(table: LogWriter, cutoff: int = CUTOFF) -> _Rules:
    snapshot, removed = load_with_tombstones(table.storage)
    return _Rules(table.storage, snapshot, removed, VacuumRequest(), 168 * HOUR, NOW - cutoff, cutoff)


def expired(table: LogWriter, cutoff: int = CUTOFF, scope: Scope | None = None) -> set[str]:
    """Of all files, those that may go; times of files are as they were written."""
    found = rules(table, cutoff)
    found.scope = scope = scope or found.scope
    listed = [scope.shown(*found) for found in table.storage.walk_folders(skip=lambda path: scope.skip(path, True))]
    walked = {info.path for info in table.storage.walk(skip=scope.skip)}
    assert {path for paths in listed for path in paths} == walked
    return {file.path for file in found.plan().files}


def test_live_files_stay_whatever_their_age_and_orphans_go_by_it(table: LogWriter) -> None:
    live, orphan, young = table.data(OLD), table.data(OLD), table.data(RECENT)
    table.append(add(live), at=OLD)
    assert expired(table) == {orphan}
    assert expired(table, NOW) == {orphan, young}


@pytest.mark.parametrize(
    ("deleted_at", "goes"), [(None, True), (0, True), (CUTOFF - 1, True), (CUTOFF, False), (RECENT, False)]
)
def test_a_tombstone_protects_until_it_expires(table: LogWriter, deleted_at: int | None, goes: bool) -> None:
    path, dv = table.data(OLD), table.dv(OLD)
    table.append(add(path, dv), at=OLD)
    table.append(remove(path, dv, at=deleted_at), at=OLD)
    assert expired(table) == ({path, table.dv_path(dv)} if goes else set())


@pytest.mark.parametrize(("kind", "prefix"), [("u", ""), ("u", "a%b"), ("u", "x/y"), ("p", ""), ("p", "part one/ü")])
def test_a_live_dv_file_of_every_kind_stays(table: LogWriter, kind: str, prefix: str) -> None:
    path, dv = table.data(OLD), table.dv(OLD, kind, prefix)
    table.append(add(path, dv), at=OLD)
    assert expired(table) == set()
    table.append(remove(path, dv, at=OLD), add(path), at=OLD)
    assert expired(table) == {table.dv_path(dv)}


def test_a_dv_file_stays_while_any_of_its_dvs_is_needed(table: LogWriter) -> None:
    uuid = uuid4()
    first, second = table.data(OLD), table.data(OLD)
    dvs = [table.dv(OLD, uuid=uuid, offset=1), table.dv(OLD, uuid=uuid, offset=50)]
    file = table.dv_path(dvs[0])
    table.append(add(first, dvs[0]), add(second, dvs[1]), at=OLD)
    table.append(remove(first, dvs[0], at=OLD), at=OLD)
    assert expired(table) == {first}, "the other DV of the file is live"
    table.append(remove(second, dvs[1], at=RECENT), at=RECENT)
    assert expired(table) == {first}, "and then inside the retention"
    assert expired(table, NOW) == {first, second, file}


def test_a_file_named_by_a_relative_and_by_an_absolute_dv_stays_for_either(table: LogWriter) -> None:
    first, second, uuid = table.data(OLD), table.data(OLD), uuid4()
    relative, absolute = table.dv(OLD, "u", uuid=uuid), table.dv(OLD, "p", uuid=uuid)
    table.append(add(first, relative), add(second, absolute), at=OLD)
    table.append(remove(first, relative, at=OLD), add(first), at=OLD)
    assert expired(table) == set()


def test_a_replaced_dv_takes_its_file_along_and_not_the_data(table: LogWriter) -> None:
    path, old, new = table.data(OLD), table.dv(OLD), table.dv(OLD)
    table.append(add(path, old), at=OLD)
    table.append(remove(path, old, at=OLD), add(path, new), at=OLD)
    assert expired(table) == {table.dv_path(old)}


def test_an_inline_dv_has_no_file(table: LogWriter) -> None:
    path, inline = table.data(OLD), table.dv(OLD, "i")
    table.append(add(path, inline), at=OLD)
    table.append(remove(path, inline, at=RECENT), add(path), at=RECENT)
    assert expired(table) == set()


def test_a_dv_tombstone_names_a_dv_file_by_its_path(table: LogWriter) -> None:
    file = table.dv_path(table.dv(OLD))
    assert file
    table.append(remove(file, at=RECENT), at=RECENT)
    assert expired(table) == set()
    assert expired(table, NOW) == {file}


@pytest.mark.parametrize(
    "name", ["p=a b/f.parquet", "p=a%20b/f.parquet", "é/f.parquet", "100%.parquet", "a#b?.parquet"]
)
@pytest.mark.parametrize("how", ["encoded", "absolute", "absolute, one slash", "plain path", "dotted", "as it is"])
def test_a_live_file_stays_however_the_log_spells_it(table: LogWriter, name: str, how: str) -> None:
    table.touch(name, OLD)
    uri = table.storage.uri_of(name)
    raw = {
        "encoded": encoded(name),
        "absolute": uri,
        "absolute, one slash": uri.replace("file://", "file:"),
        "plain path": uri.removeprefix("file://"),
        "dotted": f"./x/..//{encoded(name)}",
        "as it is": name,
    }[how]
    table.append(add(raw), at=OLD)
    assert expired(table) == set()
    table.append(remove(raw, at=OLD), at=OLD)
    assert expired(table) == {name}


def test_names_differ_by_case(table: LogWriter) -> None:
    table.touch("Part.parquet", OLD)
    table.touch("part.parquet", OLD)
    if len(table.files()) < 2:
        pytest.skip("this file system takes the two names for one")
    table.append(add("Part.parquet"), at=OLD)
    assert expired(table) == {"part.parquet"}


def test_a_table_reached_by_a_link_keeps_what_the_log_names_by_the_other_way(table: LogWriter, tmp_path: Path) -> None:
    path, other = table.data(OLD, "p=1"), table.data(OLD)
    table.append(add(table.storage.uri_of(path)), at=OLD)
    (tmp_path / "link").symlink_to(table.path)
    table.storage = Storage(str(tmp_path / "link"))
    assert expired(table) == {other}


def test_hidden_foreign_and_nested_files_are_left_alone(table: LogWriter) -> None:
    uuid = str(uuid4())
    for name in (
        f".part-{uuid}.parquet",
        f"_part-{uuid}.parquet",
        f"_staging/part-{uuid}.parquet",
        f"p=1/.tmp/part-{uuid}.parquet",
        f"_delta_index/part-{uuid}.parquet",
        f"_symlink_format_manifest/p=1/part-{uuid}.parquet",
        f"_change_data_backup/part-{uuid}.parquet",
        f"p=1/_change_data/part-{uuid}.parquet",
        "README.md",
        "_SUCCESS",
        "export.csv",
        f"metadata/list-{uuid}.avro",
        f"notes-{uuid}.txt",
        f"part-{uuid}.parquet.crc",
        "deletion_vectors.md",
        # Another table inside this one, and one deeper down.
        f"inner/part-{uuid}.parquet",
        f"inner/p=1/part-{uuid}.parquet",
        "inner/_delta_log/00000000000000000000.json",
        f"x/y/part-{uuid}.parquet",
        "x/y/_delta_log/00000000000000000000.json",
    ):
        table.touch(name, OLD)
    mine = {table.touch(f"x/part-{uuid}.parquet", OLD), table.touch(f"innermost/part-{uuid}.parquet", OLD)}
    assert expired(table) == mine


def test_a_file_of_an_odd_name_goes_if_the_log_once_named_it(table: LogWriter) -> None:
    table.touch("chunk.bin", OLD)
    table.append(add("chunk.bin"), at=OLD)
    table.append(remove("chunk.bin", at=OLD), at=OLD)
    assert expired(table) == {"chunk.bin"}


def test_folders_of_partition_columns_are_not_hidden(table: LogWriter) -> None:
    path, other = table.data(OLD, "_day=1"), table.data(OLD, "_night=1")
    spaced = table.data(OLD, "_a%3Ab=1")
    assert expired(table, scope=Scope(["_day", "_a:b"], iceberg=False)) == {path, spaced}
    assert expired(table, scope=Scope(["_night"], iceberg=False)) == {other}


def test_change_data_goes_by_its_age_alone(table: LogWriter) -> None:
    old, deep, young = (table.data(at, f"_change_data{sub}") for at, sub in ((OLD, ""), (OLD, "/p=1"), (RECENT, "")))
    change = {"cdc": {"path": old, "partitionValues": {}, "size": 1, "dataChange": False}}
    table.append(change, at=OLD)
    assert expired(table) == {old, deep}
    assert young in table.files()


def test_iceberg_metadata_is_hidden_where_the_table_is_also_one(table: LogWriter) -> None:
    path = table.data(OLD, "metadata")
    assert expired(table, scope=Scope((), iceberg=True)) == set()
    assert expired(table) == {path}


def test_an_unparsable_needed_dv_stops_the_vacuum(table: LogWriter) -> None:
    path, dv = table.data(OLD), {**table.dv(OLD), "pathOrInlineDv": "too short"}
    table.append(add(path), remove(path, dv, at=RECENT), at=RECENT)
    with pytest.raises(DamagedTableError, match="too few"):
        expired(table)
    assert expired(table, NOW), "an expired one protects nothing"


def test_a_dv_of_an_unknown_kind_stops_everything(table: LogWriter) -> None:
    path, dv = table.data(OLD), {**table.dv(OLD), "storageType": "r"}
    table.append(add(path), remove(path, dv, at=RECENT), at=RECENT)
    with pytest.raises(DamagedTableError, match="'r'"):
        expired(table)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("part-1.parquet", "data"),
        ("p=1/PART.PARQUET", "data"),
        ("deletion_vector_4d1e2f.bin", "dv"),
        ("ab/deletion_vector_4d1e2f.bin", "dv"),
        ("_change_data/cdc-1.parquet", "change"),
        ("_change_data/p=1/cdc-1.parquet", "change"),
        ("20240612_112233_00007_abcde_6b3c9a2e-52f6-4d6e-9f0b-0a7c3a2d1e4f", "other"),
        ("part-6b3c9a2e-52f6-4d6e-9f0b-0a7c3a2d1e4f.avro", None),
        ("_change_data/notes.txt", None),
        ("data.bin", None),
        ("part-1.parquet.tmp", None),
    ],
)
def test_kinds(path: str, kind: str | None) -> None:
    assert kind_of(path) == kind


@pytest.mark.parametrize(
    "path", ["../x.parquet", "..", "/etc/x.parquet", "file:///t/x.parquet", "a\0b.parquet", "a\udcff.parquet", "."]
)
def test_a_log_cannot_point_a_vacuum_outside_the_table(path: str) -> None:
    scope = Scope((), iceberg=False)
    assert not scope.holds(path)
    assert scope.holds("p=1/x.parquet")


def test_why_files_are_kept_is_counted(table: LogWriter) -> None:
    live, removed = table.data(OLD), table.data(OLD)
    table.data(RECENT)
    table.touch("README.md", OLD)
    elsewhere: Action = add(f"s3://bucket/{table.data(OLD)}")
    table.append(add(live), add(removed), elsewhere, at=OLD)
    table.append(remove(removed, at=RECENT), at=RECENT)
    found = rules(table)
    assert found.plan().files == []
    assert sorted((+found.kept).values()) == [1, 1, 1, 1, 1]
