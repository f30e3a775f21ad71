"""What ``fsck`` finds in a table of any format, and what it proposes. It changes nothing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.row_counts import Counted
from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck import FsckReport, damage_of, deep, fsck, quick_check
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.undelete import undelete
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.fsck import FsckTable
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, MemoryBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.contract import TableContract
from dv_maintenance.testing.history import TableHistory
from dv_maintenance.testing.memory import MemoryTable

BACKENDS: dict[str, Callable[[Path], TableBackend]] = {
    "delta": lambda path: DeltaBackend(str(path)),
    "lance": lambda path: LanceBackend(str(path)),
    "paimon": lambda path: PaimonBackend(str(path)),
}
FORMATS = tuple(BACKENDS)
# Golden tables whose data files, or parts of whose log, were never there; or that are damaged on purpose.
WITHOUT_FILES = {
    "canonicalized-paths-special-a",
    "crc-malformed",
    "data-reader-absolute-paths-escaped-chars",
    "deltalog-state-reconstruction-from-checkpoint-missing-protocol",
    "deltalog-state-reconstruction-without-protocol",
    "table-with-dv-gigantic",
}


class Place:
    """A table in a folder, and the files that its newest version needs."""

    def __init__(self, path: Path, history: TableHistory) -> None:
        self.path, self.history = path, history

    @property
    def table(self) -> Any:
        return self.history.backend.open()

    def file(self, kind: str) -> Path:
        """The needed file of this kind whose path comes first."""
        table = self.table
        rows = table.needed_files(table.snapshot()).to_pylist()
        return self.path / min(row["path"] for row in rows if row["kind"] == kind)

    def check(self, *, deep: bool = False) -> FsckReport:
        """``fsck``, which changes no file."""
        before = {path: path.read_bytes() for path in self.path.rglob("*") if path.is_file()}
        report = fsck(self.table, deep=deep)
        assert {path: path.read_bytes() for path in self.path.rglob("*") if path.is_file()} == before
        return report

    def can_be_read(self) -> bool:
        try:
            _, batches = read(self.table)
            list(batches)
        except DvMaintenanceError:
            return False
        return True


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, TableHistory]]:
    """The contract's table of each format, made once."""
    found = {}
    for name, backend in BACKENDS.items():
        path = tmp_path_factory.mktemp(name) / "a table"
        found[name] = path, TableContract.begun(backend(path))
    return found


@pytest.fixture(params=FORMATS)
def place(request: pytest.FixtureRequest, made: dict[str, tuple[Path, TableHistory]], tmp_path: Path) -> Place:
    original, history = made[request.param]
    path = tmp_path / "a table"
    shutil.copytree(original, path)
    return Place(path, history.copied_to(BACKENDS[request.param](path)))


def test_a_whole_table_is_clean(place: Place) -> None:
    quick, deep = place.check(), place.check(deep=True)
    assert quick.clean
    assert deep.clean
    assert (quick.files, quick.footers, quick.dvs) == (3, 0, 0)
    assert (deep.files, deep.footers, deep.dvs, deep.unread) == (3, 3, 2, 0)
    assert quick.remedies == ()
    assert quick.version == place.history.version
    assert isinstance(place.table, FsckTable)


def test_a_missing_data_file(place: Place) -> None:
    gone = place.file("data")
    gone.unlink()
    report = place.check()
    assert not place.can_be_read()
    (damage,) = report.damage
    assert (damage.kind, damage.fault, damage.files) == ("data", "missing", 1)
    assert damage.uri == place.table.storage.uri_of(gone.relative_to(place.path).as_posix())
    assert damage.live_rows == 10 - damage.deleted_rows
    assert damage.effect == f"{damage.live_rows} live rows can't be read."
    assert (report.files_damaged, report.live_rows_damaged) == (1, damage.live_rows)
    assert damage.since in range(place.history.version)
    assert report.remedies[0].loses == "Nothing."
    assert place.check(deep=True).damage == report.damage


def test_a_missing_deletion_vector(place: Place) -> None:
    place.file("dv").unlink()
    report = place.check()
    assert not place.can_be_read()
    assert {(damage.kind, damage.fault) for damage in report.damage} == {("dv", "missing")}
    assert sum(damage.deleted_rows for damage in report.damage) in {2, 5, 7}
    assert all("as deleted: without it" in damage.effect for damage in report.damage)
    assert place.check(deep=True).damage == report.damage


def test_a_deletion_vector_cut_short(place: Place) -> None:
    file = place.file("dv")
    file.write_bytes(file.read_bytes()[:-4])
    # The log of a Lance table has no sizes of deletion files.
    report = place.check(deep=place.table.format == "lance")
    assert {damage.kind for damage in report.damage} == {"dv"}
    assert {damage.fault for damage in report.damage} <= {"size", "content"}
    assert not place.can_be_read()


def test_one_bit_of_a_deletion_vector(place: Place) -> None:
    file = place.file("dv")
    data = bytearray(file.read_bytes())
    # Without a checksum, as in Lance, only the frame can tell.
    data[-1 if place.table.format == "lance" else len(data) // 2] ^= 4
    file.write_bytes(data)
    assert place.check().clean
    (damage, *_) = place.check(deep=True).damage
    assert (damage.kind, damage.fault) == ("dv", "content")
    assert not place.can_be_read()


def test_another_size(place: Place) -> None:
    file = place.file("data")
    size = file.stat().st_size
    file.write_bytes(file.read_bytes() + b"x")
    (damage,) = place.check().damage
    assert (damage.kind, damage.fault) == ("data", "size")
    assert damage.reason == f"it has {size + 1:,} bytes, the log says {size:,}"


def test_a_damaged_footer(place: Place) -> None:
    file = place.file("data")
    file.write_bytes(file.read_bytes()[:-8] + b"damaged!")
    assert place.check().clean
    (damage,) = place.check(deep=True).damage
    assert (damage.kind, damage.fault, damage.files) == ("data", "content", 1)
    assert not place.can_be_read()


def test_a_file_with_other_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = deep.counted

    def more(*of: Any) -> Counted:
        said = counted(*of)
        return replace(said, rows=(said.rows or 0) + 1)

    monkeypatch.setattr(deep, "counted", more)
    report = place.check(deep=True)
    if place.table.snapshot().exact_rows:
        assert {damage.fault for damage in report.damage} == {"rows"}
    else:
        assert report.clean
        assert "have a wrong row count" in report.warnings[-1]


def test_a_damaged_arrow_schema(tmp_path: Path) -> None:
    """Spark ignores it, as this package does; Arrow's readers fail."""
    deltalake.write_deltalake(tmp_path, pa.table({"id": [1, 2]}))
    (file,) = tmp_path.glob("*.parquet")
    data = file.read_bytes()
    at = data.index(b"/////", data.index(b"ARROW:schema"))
    file.write_bytes(data[:at] + b"????" + data[at + 4 :])
    with pytest.raises(pa.ArrowException):
        pq.read_schema(file)
    report = fsck(open_table(str(tmp_path)), deep=True)
    assert [(each.fault, each.files, each.reason) for each in report.damage] == [
        ("arrow", 1, "the Arrow schema in its footer is damaged")
    ]
    assert [each.loses for each in report.remedies] == ["Nothing."]


def test_a_row_count_that_is_only_a_statistic(tmp_path: Path) -> None:
    backend = DeltaBackend(str(tmp_path / "t"))
    TableContract.begun(backend)
    log = tmp_path / "t" / "_delta_log" / f"{1:020}.json"
    text = log.read_text()
    log.write_text(text.replace('numRecords\\":10', 'numRecords\\":11'))
    assert log.read_text() != text
    # The file got a deletion vector since, and is named by later versions.
    report = fsck(backend.open(), 1, deep=True)
    assert report.clean
    assert "11, its footer counts 10): dvm.recount(" in report.warnings[-1]


def test_every_damage_is_reported_once(place: Place) -> None:
    for kind in ("data", "dv"):
        for row in place.table.needed_files(place.table.snapshot()).to_pylist():
            if row["kind"] == kind:
                (place.path / row["path"]).unlink(missing_ok=True)
    report = place.check(deep=True)
    assert len({damage.path for damage in report.damage}) == len(report.damage) == report.files + report.dv_files
    assert report.live_rows_damaged == 23
    assert report.files_damaged == 3


def test_the_proposed_version_can_be_read(place: Place) -> None:
    place.file("dv").unlink()
    report = place.check()
    back = [each for each in report.remedies if "version" in each.how and "whose own files all exist" in each.how]
    back += [each for each in report.remedies if "snapshot" in each.how]
    assert len(back) == 1
    version = int(back[0].loses.rstrip(".").rsplit(" ", 1)[1])
    assert version < min(damage.since or 0 for damage in report.damage)
    assert fsck(place.table, version, deep=True).clean
    _, batches = read(place.table, version)
    assert sum(batch.num_rows for batch in batches) == len(place.history.versions[version])


def test_no_version_is_proposed_that_a_vacuum_took(place: Place) -> None:
    """Without any data file there is no version to go back to."""
    for row in place.table.needed_files(place.table.snapshot()).to_pylist():
        (place.path / row["path"]).unlink(missing_ok=True)
    assert not any("whose own files all exist" in each.how for each in place.check().remedies)


def test_a_log_that_cannot_be_read(place: Place) -> None:
    table = place.table
    logs = {"delta": "_delta_log/*.json", "lance": "_versions/*.manifest", "paimon": "manifest/manifest-*"}
    for log in place.path.glob(logs[table.format]):
        log.write_bytes(b"damaged!")
    report = place.check()
    assert (report.damage[0].kind, report.live_rows_damaged) == ("log", None)
    assert report.damage[0].reason


def test_a_table_without_files(tmp_path: Path) -> None:
    backend = DeltaBackend(str(tmp_path / "t"))
    backend.create()
    report = fsck(backend.open(), deep=True)
    assert (report.clean, report.files) == (True, 0)


def test_files_in_quarantine_are_put_back(tmp_path: Path) -> None:
    """A vacuum set files aside, and somebody brought a version back that needs them."""
    backend = DeltaBackend(str(tmp_path / "t"))
    table = TableHistory(backend)
    table.append("a", 10)
    table.append("a", 10)
    needed = table.version
    table.delete(range(20))
    vacuum(table.table, VacuumRequest(now=table.moment().time + backend.retention, guard=VacuumGuard(quarantine=True)))
    report = fsck(backend.open(), needed)
    assert [damage.fault for damage in report.damage] == ["missing", "missing"]
    assert report.remedies[0].command_line == f"dvm.undelete({backend.open().uri!r})"


def test_one_file_for_many_deletion_vectors(tmp_path: Path) -> None:
    backend = DeltaBackend(str(tmp_path / "t"))
    table = TableHistory(backend)
    for _ in range(3):
        table.append("a", 10)
    table.delete([1, 11, 12, 21])
    (file,) = {row["path"] for row in _needed(backend) if row["kind"] == "dv"}
    ends = sorted(row["size"] for row in _needed(backend) if row["kind"] == "dv")
    place = tmp_path / "t" / file
    # Only the last one is cut.
    place.write_bytes(place.read_bytes()[: ends[-1] - 1])
    (damage,) = fsck(backend.open()).damage
    assert (damage.files, damage.deleted_rows) in {(1, 1), (1, 2)}
    place.unlink()
    (damage,) = fsck(backend.open()).damage
    assert (damage.files, damage.live_rows, damage.deleted_rows) == (3, 26, 4)


def _needed(backend: TableBackend) -> list[dict[str, Any]]:
    table: Any = backend.open()
    found: list[dict[str, Any]] = table.needed_files(table.snapshot()).to_pylist()
    return found


def test_a_format_without_bytes_of_its_own(tmp_path: Path) -> None:
    """The memory table: its files can be missing; nobody here reads their format."""
    table = TableContract.begun(MemoryBackend(tmp_path / "t"))
    opened = table.table
    report = fsck(opened, deep=True)
    assert (report.clean, report.files, report.unread, report.footers) == (True, 3, 3, 0)
    first = min((tmp_path / "t").glob("*.json"))
    first.write_bytes(first.read_bytes() + b" ")
    assert [damage.fault for damage in fsck(opened).damage] == ["size"]
    first.unlink()
    (damage,) = fsck(opened).damage
    versions = list(table.versions)
    assert (damage.path, damage.fault, damage.since) == (first.name, "missing", versions[1])


def test_the_way_back_where_versions_are_no_numbers(tmp_path: Path) -> None:
    table = TableContract.begun(MemoryBackend(tmp_path / "t"))
    second, third = sorted((tmp_path / "t").glob("*.json"))[1:]
    third.unlink()
    assert f"Go back to version {list(table.versions)[2]}." in {each.how for each in fsck(table.table).remedies}
    second.unlink()
    assert f"Go back to version {list(table.versions)[1]}." in {each.how for each in fsck(table.table).remedies}


def test_indices_of_a_lance_table(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("lance/indexed")
    report = fsck(open_table(str(path)), deep=True)
    assert report.clean
    assert report.index_files > 0
    shutil.rmtree(next((path / "_indices").iterdir()))
    report = fsck(open_table(str(path)))
    assert [(damage.kind, damage.files, damage.live_rows) for damage in report.damage] == [("index", 0, None)]
    assert any("drop_index" in str(each.command) for each in report.remedies)
    assert not any("restore()" in str(each.command) for each in report.remedies)


def test_fragments_of_a_lance_table_without_data_files(tmp_path: Path) -> None:
    """Their columns with values were dropped: pylance 14 can't open the rows (lance-format/lance#7236)."""
    lance, place = pytest.importorskip("lance"), str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"a": [1, 2, 3]}), place).add_columns(pa.field("n", pa.int32()))
    assert fsck(open_table(place), deep=True).clean
    lance.dataset(place).drop_columns(["a"])
    with pytest.raises(Exception, match="does not contain any data"):
        lance.dataset(place).to_table()
    (damage,) = fsck(open_table(place)).damage
    assert "1 fragment with 3 rows" in damage.reason
    with pytest.raises(RefusedError, match="what is left has only nulls"):
        [*read(open_table(place))[1]]


def test_golden_tables_are_clean(golden: Path) -> None:
    """Every golden table of each format, as the user would call it, and those that are damaged are not."""
    wrong = {}
    for marker in ("delta/**/_delta_log", "lance/**/_versions", "paimon/**/schema"):
        places = {path.parent for path in golden.glob(marker) if "branch" not in path.parts}
        assert places
        for place in places:
            try:
                clean = fsck(open_table(str(place)), deep=True).clean
            except RefusedError:
                continue  # a feature that is not read here
            if clean == (place.name in WITHOUT_FILES or place.name.startswith("bad_")):
                wrong[str(place.relative_to(golden))] = clean
    assert wrong == {}


def test_files_that_later_versions_no_longer_need(tmp_path: Path) -> None:
    """A table moves on during a check, and a vacuum without retention deletes files that the check still seeks."""
    table = MemoryTable(tmp_path / "t")
    first, second = table.append("", [1]), table.append("", [2])
    snapshot = table.snapshot()
    table.delete_where(lambda _, row: row == 1)
    (tmp_path / "t" / first).unlink()
    (tmp_path / "t" / second).unlink()
    assert len(quick_check(table, snapshot).faults) == 2
    assert [each.path for each in damage_of(table, snapshot) or ()] == [second]
    assert damage_of(table, snapshot, most=1) is None


def test_a_log_that_names_files_elsewhere(tmp_path: Path) -> None:
    """As a shallow clone does: each file is looked for where it is."""
    source, clone = tmp_path / "source", tmp_path / "clone"
    TableContract.begun(DeltaBackend(str(source), properties={}))
    shutil.copytree(source / "_delta_log", clone / "_delta_log")
    for log in (clone / "_delta_log").glob("*.json"):
        log.write_text(log.read_text().replace('"path":"p=', f'"path":"{source.as_uri()}/p='))
    assert {damage.kind for damage in fsck(open_table(str(clone))).damage} == {"dv"}
    for vectors in source.glob("*.bin"):
        shutil.copy(vectors, clone)
    assert fsck(open_table(str(clone)), deep=True).clean
    next(source.rglob("*.parquet")).unlink()
    (damage,) = fsck(open_table(str(clone))).damage
    assert damage.uri.startswith(source.as_uri())


def cloned(format: str, source: Path, clone: Path) -> None:
    """A shallow clone, which names the files of its source; in Delta by absolute paths, also of DVs."""
    if format == "lance":
        import lance

        dataset = lance.dataset(str(source))
        dataset.shallow_clone(str(clone), dataset.version)
        return
    shutil.copytree(source / "_delta_log", clone / "_delta_log")
    (dv,) = source.glob("*.bin")
    for log in (clone / "_delta_log").glob("*.json"):
        text = log.read_text().replace('"path":"p=', f'"path":"{source.as_uri()}/p=')
        place = f'"storageType":"p","pathOrInlineDv":"{source.as_uri()}/{dv.name}"'
        log.write_text(re.sub(r'"storageType":"u","pathOrInlineDv":"[^"]*"', place, text))


@pytest.mark.parametrize("aside", [True, False])
@pytest.mark.parametrize("format", ["delta", "lance"])
def test_a_clone_whose_source_was_vacuumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str, aside: bool
) -> None:
    """The report was silent on whose files are gone, and did not find them in the quarantine of their table."""
    source, clone = tmp_path / "lake" / "source", tmp_path / "lake" / "clone"
    backend = DeltaBackend(str(source)) if format == "delta" else LanceBackend(str(source))
    backend.create()
    backend.append("a", [(number, "a", "x") for number in range(4)])
    backend.delete([1])
    cloned(format, source, clone)
    assert fsck(open_table(str(clone))).clean
    purge(backend.open(), LocalEngine())
    later = backend.moment() + backend.retention + 1
    kept = vacuum(backend.open(), VacuumRequest(now=later, clones=[str(clone)], dry_run=True))
    assert (kept.data_files, kept.dv_files) == (0, 0), "a vacuum that knows the clone keeps its files"
    vacuum(backend.open(), VacuumRequest(now=later, guard=VacuumGuard(quarantine=aside)))

    report = fsck(open_table(str(clone)))
    assert {damage.kind for damage in report.damage} == {"data", "dv"}
    owner = f"It belongs to {source.as_uri()}: this table is a shallow clone."
    assert all(owner in damage.effect for damage in report.damage)
    commands = [remedy.command_line for remedy in report.remedies]
    undo = f"dvm.undelete({source.as_uri()!r})"
    assert (undo in commands) is aside
    assert f"(clones={clone.as_uri()!r})" in report.remedies[-1].how, "the way that loses most"
    assert main(["health", str(clone)]) == 5
    assert owner in capsys.readouterr().out
    if aside:
        assert commands[0] == undo, "the one that loses nothing comes first"
        undelete(backend.open())
        assert fsck(open_table(str(clone)), deep=True).clean


def _tag_without_manifest(path: Path, format: str) -> None:
    """A tag that needs a file which does not exist, though the newest version can be read."""
    if format == "lance":
        (path / "_refs" / "tags").mkdir(parents=True)
        (path / "_refs" / "tags" / "old.json").write_text('{"version":987654321,"manifestSize":100}')
        return
    oldest = min((path / "snapshot").glob("snapshot-*"), key=lambda file: int(file.name.rpartition("-")[2]))
    body = json.loads(oldest.read_text())
    body["baseManifestList"] = "manifest-list-11111111-1111-4111-8111-111111111111-0"
    (path / "tag").mkdir()
    (path / "tag" / "tag-old").write_text(json.dumps(body))


@pytest.mark.parametrize("format", ["lance", "paimon"])
def test_what_stops_every_vacuum_is_found(
    made: dict[str, tuple[Path, TableHistory]], tmp_path: Path, format: str
) -> None:
    """Nobody knows which files such a tag keeps. A vacuum that went on could delete them."""
    path = tmp_path / "a table"
    shutil.copytree(made[format][0], path)
    table = open_table(str(path))
    assert fsck(table).clean
    _tag_without_manifest(path, format)
    (damage,) = fsck(table).damage
    assert (damage.kind, damage.files) == ("log", 0)
    assert damage.effect == "The newest version can be read, but every vacuum stops."
    with pytest.raises(DamagedTableError, match=re.escape(damage.reason)):
        vacuum(table, VacuumRequest(dry_run=True))
    assert damage_of(table, table.snapshot()) == (), "no reader of the newest version fails"
