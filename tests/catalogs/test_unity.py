"""Tables of Unity Catalog: managed ones as the catalog says, external ones as at a path."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from golden_tables import NotThere
from support.managed import ManagedBackend
from support.places import GOLDEN
from support.unity import TOKEN, Unity, unity

from dv_maintenance.catalogs import located
from dv_maintenance.catalogs.unity.keys import vend
from dv_maintenance.cli import main
from dv_maintenance.errors import (
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.maintenance.read import read
from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

TABLES = GOLDEN / "unity"
EXPECTED = json.loads((TABLES / "expected.json").read_text()) if TABLES.is_dir() else {}
VERSIONS = [
    pytest.param(name, int(version), rows, id=f"{name}-{version}")
    for name, each in EXPECTED.items()
    for version, rows in each["versions"].items()
] or [pytest.param(NotThere("unity"), 0, [], id="missing")]


def golden_in(server: Unity, tmp_path: Path, name: str) -> Path:
    """A copy of a golden table, which the catalog knows as ``main.golden.NAME``."""
    place = tmp_path / name
    shutil.copytree(TABLES / name, place)
    table = json.loads((place / "catalog.json").read_text())
    (place / "catalog.json").unlink()
    server.add(table.pop("name"), place.as_uri(), **{key: each for key, each in table.items() if key != "location"})
    return place


def rows_of(place: str, version: int | None = None) -> list[list[Any]]:
    schema, batches = read(open_table(place), version)
    rows = pa.Table.from_batches(batches, schema).to_pylist()
    return sorted([list(row.values()) for row in rows], key=lambda row: row[0])


@pytest.mark.parametrize(("name", "version", "rows"), VERSIONS)
def test_every_version_is_what_the_catalog_says(
    server: Unity, tmp_path: Path, name: str, version: int, rows: Any
) -> None:
    golden_in(server, tmp_path, name)
    place = f"uc.main.golden.{name}"
    if isinstance(rows, dict):
        with pytest.raises(DamagedTableError, match="is missing"):
            rows_of(place, version)
        return
    assert rows_of(place, version) == rows
    assert open_table(place).version() == EXPECTED[name]["latest"]
    if version == EXPECTED[name]["latest"]:
        assert rows_of(place) == rows
        with pytest.raises(UsageError, match=f"version {version + 1} does not exist"):
            rows_of(place, version + 1)


@pytest.fixture
def staged(server: Unity, tmp_path: Path, golden: Path) -> Path:
    del golden
    return golden_in(server, tmp_path, "staged_tail")


def test_verbs_that_look(server: Unity, staged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del staged
    place = "uc.main.golden.staged_tail"
    verbs = {"health": 0, "fsck": 0, "history": 0, "read": 0, "simulate": 0, "changes --from 1": 0, "plan": 3}
    for verb, code in verbs.items():
        name, *flags = verb.split()
        assert main([name, place, "--json", *flags]) == code, capsys.readouterr()
        shown = capsys.readouterr()
        assert TOKEN not in shown.out + shown.err
    server.asked.clear()
    assert open_table(place).version() == 3
    assert len(server.asked) == 1, "to open it and for the version"


def test_times_are_those_of_the_commits(server: Unity, staged: Path) -> None:
    """A published file was copied at some other time."""
    del server, staged
    table = open_table("uc.main.golden.staged_tail")
    made = [1_790_000_000_000 + 1000 * version for version in range(4)]
    assert [each.timestamp for each in table.history()] == made[::-1]
    assert [table.version_at(table.snapshot(), time + 999) for time in made] == [0, 1, 2, 3]


def test_by_path_it_is_refused(staged: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged") as caught:
        open_table(str(staged)).snapshot()
    assert "by its name (UNITY.CATALOG.SCHEMA.TABLE)" in str(caught.value.next_step)


def test_an_external_table_is_one_at_a_path(server: Unity, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = DeltaBuilder(str(tmp_path / "t")).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(10)}))
    builder.delete(lambda rows: pa.array([row < 4 for row in rows["id"].to_pylist()]))
    server.add("main.a b.t", (tmp_path / "t").as_uri(), table_type="EXTERNAL")
    assert main(["purge", "uc.main.a b.t", "--engine", "local"]) == 0, capsys.readouterr()
    assert rows_of("uc.main.a b.t") == [[number] for number in range(4, 10)]


def damage(server: Unity, kind: str, staged: Path) -> None:
    body = server.tables["main.golden.staged_tail"]
    commits = body["commits"]
    match kind:
        case "gap":
            del commits[1]
        case "above":
            body["latest-table-version"] = 2
        case "name":
            commits[0]["file-name"] = "../../elsewhere.json"
        case "size":
            commits[0]["file-size"] += 1
        case "text":
            commits[0]["file-size"] = "many"
        case "gone":
            (staged / "_delta_log" / "_staged_commits" / commits[0]["file-name"]).unlink()


@pytest.mark.parametrize("kind", ["gap", "above", "name", "size", "text", "gone"])
def test_what_contradicts_itself_is_damage(server: Unity, staged: Path, kind: str) -> None:
    damage(server, kind, staged)
    with pytest.raises(DamagedTableError):
        rows_of("uc.main.golden.staged_tail")


def test_numbers_may_be_texts(server: Unity, staged: Path) -> None:
    del staged
    body = server.tables["main.golden.staged_tail"]
    body["latest-table-version"] = "3"
    for each in body["commits"]:
        each.update({key: str(value) for key, value in each.items()})
    assert rows_of("uc.main.golden.staged_tail") == EXPECTED["staged_tail"]["versions"]["3"]


def test_the_log_and_the_catalog_disagree(server: Unity, tmp_path: Path) -> None:
    DeltaBuilder(str(tmp_path / "t")).create(pa.schema([("id", pa.int64())]))
    server.add("main.s.t", (tmp_path / "t").as_uri(), latest=0)
    with pytest.raises(DamagedTableError, match="lacks the feature catalogManaged"):
        open_table("uc.main.s.t").snapshot()


def test_a_table_registered_with_its_history(server: Unity, staged: Path) -> None:
    del staged
    body = server.tables["main.golden.staged_tail"]
    del body["commits"], body["latest-table-version"]
    with pytest.raises(RefusedError, match="has ratified no commit"):
        open_table("uc.main.golden.staged_tail").snapshot()


def test_a_first_commit_that_others_publish_meanwhile(server: Unity, tmp_path: Path) -> None:
    """The catalog knows of it, unlike of a table's history."""
    backend = ManagedBackend(tmp_path / "orders", server)
    backend.create()
    table = open_table(backend.name)
    assert table.version() == 0
    later = open_table(backend.name)  # the catalog has told it that there is no commit yet
    backend.append("a", [(1, "a", "x")])
    assert later.snapshot().version == 1
    assert sorted(backend.rows()) == [(1, "a", "x")]


def test_another_table_of_that_name(server: Unity, staged: Path) -> None:
    del staged
    table = open_table("uc.main.golden.staged_tail")
    assert table.version() == 3
    server.tables["main.golden.staged_tail"]["metadata"]["table-uuid"] = "another"
    with pytest.raises(TableNotFoundError, match="dropped and created again"):
        table.version()


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (["busy", "drop"], None),
        (["text"], None),
        (["torn"], None),
        (["busy"] * 3, StorageUnavailableError),
        (["drop"] * 3, StorageUnavailableError),
        (["torn"] * 3, StorageUnavailableError),
        (["text"] * 3, StorageUnavailableError),
    ],
)
def test_a_catalog_that_stumbles(
    server: Unity, staged: Path, faults: list[str], error: type[DvMaintenanceError] | None
) -> None:
    del staged
    server.faults[:] = faults
    if error is None:
        assert open_table("uc.main.golden.staged_tail").version() == 3
        return
    with pytest.raises(error, match=r"uc\.main\.golden\.staged_tail"):
        open_table("uc.main.golden.staged_tail")


def test_a_redirect_does_not_get_the_token(server: Unity, staged: Path) -> None:
    del staged
    with unity() as other:
        server.faults[:] = [f"{other.url}/somewhere"]
        with pytest.raises(StorageDeniedError, match="HTTP status 302"):
            open_table("uc.main.golden.staged_tail")
        assert (other.asked, other.tokens) == ([], [])


@pytest.mark.usefixtures("golden")
def test_a_newest_version_without_a_file_is_damage(server: Unity, tmp_path: Path) -> None:
    """Not a table that is one version older."""
    place = golden_in(server, tmp_path, "all_published")
    (place / "_delta_log" / f"{2:020d}.json").unlink()
    table = open_table("uc.main.golden.all_published")
    assert rows_of("uc.main.golden.all_published", 1) == EXPECTED["all_published"]["versions"]["1"]
    for look in (table.snapshot, lambda: table.snapshot(2), table.history):
        with pytest.raises(DamagedTableError, match=r"00002\.json is missing"):
            look()


def test_a_look_is_one_request(server: Unity, staged: Path) -> None:
    del staged
    table = open_table("uc.main.golden.staged_tail")
    first = inspect_table(table, jobs=["optimize"])
    assert (first.version, len(server.asked)) == (3, 2), "and one, once, for the table's optimizer"
    second = inspect_table(table, last=first, jobs=["optimize"])
    assert (second.changed, len(server.asked)) == (False, 3)
    table.snapshot()
    assert len(server.asked) == 4


def test_an_observation_is_one_request_too(server: Unity, tmp_path: Path) -> None:
    """Its vacuum's part and its data version come from what the probe was answered."""
    backend = ManagedBackend(tmp_path / "orders", server)
    backend.create()
    backend.append("a", [(number, "a", "x") for number in range(20)])
    watched, last = TableSettings(path=backend.name, name="orders", jobs=("optimize", "vacuum")), None
    first = True
    observer = Observer(data_versions=True, checks=True)
    for changed in (True, False, True):
        if changed:
            backend.delete([server.tables[backend.table]["latest-table-version"]])
        server.asked.clear()
        found = observer.observe(watched, last, observer.probe(watched, last), busy=False)
        last = TableState(found.inspection, found.data_version)
        assert (found.inspection.changed, len(server.asked)) == (changed, 1 + first), "once for its optimizer"
        first = False


def test_a_look_builds_on_the_last_one_when_commits_were_published(server: Unity, tmp_path: Path, golden: Path) -> None:
    """The file of the version is another one then, of another time."""
    del golden
    place = golden_in(server, tmp_path, "staged_tail")
    body = server.tables["main.golden.staged_tail"]
    newest = body["commits"][0]
    body |= {"commits": body["commits"][1:], "latest-table-version": 2}
    table = open_table("uc.main.golden.staged_tail")
    kept = table.snapshot()
    log = place / "_delta_log"
    for each in body["commits"]:
        staged = log / "_staged_commits" / each["file-name"]
        (log / f"{each['version']:020d}.json").write_bytes(staged.read_bytes())
    body |= {"commits": [newest], "latest-table-version": 3}
    assert table.version() == 3
    found = table.advanced(kept, 3)
    assert found is not None
    assert found.files.sort_by("path").equals(table.snapshot(3).files.sort_by("path"))
    # Another commit of that size in its place.
    for each in log.glob(f"{2:020d}.json"):
        each.write_bytes(each.read_bytes().replace(b"1790000002000", b"1790000002007"))
    assert table.advanced(kept, 3) is None


def test_a_table_made_again_is_another_one(server: Unity, staged: Path) -> None:
    """At the same version, and in the same folder."""
    del staged
    last = inspect_table(open_table("uc.main.golden.staged_tail"), jobs=["optimize"])
    assert not inspect_table(open_table("uc.main.golden.staged_tail"), last=last, jobs=["optimize"]).another
    server.tables["main.golden.staged_tail"]["metadata"]["table-uuid"] = "another"
    assert inspect_table(open_table("uc.main.golden.staged_tail"), last=last, jobs=["optimize"]).another


@pytest.mark.usefixtures("golden")
def test_parts_of_names_may_be_quoted(server: Unity, tmp_path: Path) -> None:
    place = golden_in(server, tmp_path, "all_published")
    server.add("main.my schema.a.b`c/d", place.as_uri(), table_type="EXTERNAL")
    assert open_table("uc.main.`my schema`.`a.b``c/d`").uri == place.as_uri()
    assert server.asked[-1].endswith("/catalogs/main/schemas/my%20schema/tables/a.b%60c%2Fd")
    for wrong in ("uc.main.s.`t", "uc.main.s.``", "uc.main.s.t`u`", "uc.main.`s`t.u"):
        with pytest.raises(UsageError, match="is not the name of a table"):
            open_table(wrong)


def test_names_and_rights(server: Unity, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TableNotFoundError, match=r"no such table \(table main\.s\.none does not exist\)"):
        open_table("uc.main.s.none")
    with pytest.raises(UsageError, match=r"is not the name of a table in Unity Catalog"):
        open_table("uc.main.s")
    server.add("main.s.v", "file:///nowhere", table_type="VIEW")
    with pytest.raises(UnsupportedFeatureError, match="of the type VIEW"):
        open_table("uc.main.s.v")
    monkeypatch.setenv("UC_TOKEN", "hush-hush")
    with pytest.raises(StorageDeniedError, match="no right to it") as caught:
        open_table("uc.main.s.v")
    assert "hush-hush" not in f"{caught.value}{caught.value.next_step}{caught.value!r}"


def test_keys_are_those_of_the_longest_prefix(server: Unity) -> None:
    server.add("main.s.t", "s3a://lake/sales/t", table_type="EXTERNAL")
    server.keys["main.s.t"] = lambda _: [
        {"prefix": "s3://lake", "config": {"s3.access-key-id": "far"}},
        {"prefix": "s3://lake/sales", "config": {"s3.access-key-id": "near", "s3.secret-access-key": "x"}},
        {"prefix": "s3://lake/sal", "config": {"s3.access-key-id": "beside"}},
    ]
    found = located("uc.main.s.t", {"aws_region": "here"})
    assert found is not None
    storage = found[1].storage
    assert (storage.uri, storage.options["aws_region"]) == ("s3://lake/sales/t", "here")
    assert vend(storage.options) == {"access_key_id": "near", "secret_access_key": "x", "expires_at": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("catalogs:\n  uc: {type: blue, uri: 'http://h'}\n", r"catalogs\.yaml line 2"),
        ("catalogs:\n  uc:\n    type: unity\n    uri: file:///x\n", r"catalogs\.yaml line 4"),
        ("catalogs:\n  uc: {type: unity, uri: 'http://h', token: '${NOWHERE}'}\n", "NOWHERE is not set"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    (tmp_path / "catalogs.yaml").write_text(text)
    monkeypatch.setenv("DVM_CATALOGS", str(tmp_path / "catalogs.yaml"))
    with pytest.raises(UsageError, match=said):
        open_table("uc.main.s.t")


@pytest.mark.parametrize("read_part", ["get", "get_range", "open_input"])
def test_a_torn_commit_is_damage_however_it_is_read(server: Unity, staged: Path, read_part: str) -> None:
    table = open_table("uc.main.golden.staged_tail")
    torn = held(server, staged, 3)
    # At the end of a line, what is left looks whole. Large commits are read in parts.
    torn.write_bytes(torn.read_bytes().splitlines(keepends=True)[0])
    ways: dict[str, Callable[[str], object]] = {
        "get": table.storage.get,
        "get_range": lambda path: table.storage.get_range(path, 0, 1 << 20),
        "open_input": table.storage.open_input,
    }
    with pytest.raises(DamagedTableError, match="bytes, not the 1423 that were ratified"):
        ways[read_part](f"_delta_log/{3:020d}.json")


@pytest.mark.parametrize("look", ["snapshot", "version_at", "history", "changes_since"])
def test_a_ratified_commit_without_its_file_is_damage(server: Unity, staged: Path, look: str) -> None:
    table = open_table("uc.main.golden.staged_tail")
    newest = table.snapshot()
    held(server, staged, 2).unlink()
    looks: dict[str, Callable[[], object]] = {
        "snapshot": lambda: table.snapshot(2),
        "version_at": lambda: table.version_at(newest, (newest.timestamp or 0) - 500),
        "history": table.history,
        "changes_since": lambda: table.changes_since(0),
    }
    with pytest.raises(DamagedTableError, match=r"_staged_commits/0{19}2\..*json does not exist"):
        looks[look]()


def test_another_process_reads_what_this_one_was_answered(server: Unity, staged: Path) -> None:
    del staged
    table = open_table("uc.main.golden.staged_tail")
    assert table.version() == 3
    asked, sent = len(server.asked), pickle.dumps(table)
    assert TOKEN.encode() not in sent
    schema, batches = read(pickle.loads(sent))
    rows = pa.Table.from_batches(batches, schema).to_pylist()
    assert sorted([*row.values()] for row in rows) == EXPECTED["staged_tail"]["versions"]["3"]
    assert len(server.asked) == asked


def test_whether_the_store_has_put_if_absent_is_not_tried(server: Unity, staged: Path) -> None:
    """Nothing depends on it: the catalog decides who commits."""
    del server
    before = sorted(staged.rglob("*"))
    open_table("uc.main.golden.staged_tail").storage.prove_put_if_absent("_delta_log", anyhow=True)
    assert sorted(staged.rglob("*")) == before


def held(server: Unity, place: Path, version: int) -> Path:
    """The file that the catalog names for a version of ``staged_tail``."""
    commits = server.tables["main.golden.staged_tail"]["commits"]
    name = next(each["file-name"] for each in commits if each["version"] == version)
    return place / "_delta_log" / "_staged_commits" / name
