"""Stores that ignore If-None-Match lose commits: the first commit to one finds out, and so does ``dvm doctor``."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
import pytest
from support.served import served

from dv_maintenance.cli import main
from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage, guards
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.rows import DeletedRows, RowChanges, RowLevelTable
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.backends import DeltaBackend, PaimonBackend
from dv_maintenance.testing.delta_builder import DeltaBuilder

CONDITION = "if-none-match"
S3 = tuple[str, dict[str, str]]
# The object whose put is the commit of a version.
COMMITS = re.compile(r"_delta_log/\d+\.json|/snapshot/snapshot-\d+|_versions/\d+\.manifest")


@contextmanager
def proxy(target: str, kind: str, meet: Barrier | None = None) -> Iterator[tuple[str, list[str]]]:
    """In front of a store.

    kind : ``strips`` conditions; ``agrees`` to every put whatever became of it; ``looks`` for the object and puts it in
        a second step; "": none of them.
    meet : where the first commits of racing writers wait for each other.
    """
    host = urlsplit(target).netloc
    puts: list[str] = []
    there: set[str] = set()
    looked = Barrier(2)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {
                name: value
                for name, value in self.headers.items()
                if kind not in ("strips", "looks") or name.lower() != CONDITION
            }
            if kind == "looks" and self.command == "PUT" and self.path in there:
                self.send_response(412)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if kind == "looks" and self.command == "PUT":
                with suppress(BrokenBarrierError):
                    looked.wait(0.3)
            if meet is not None and self.command == "PUT" and COMMITS.search(self.path):
                with suppress(BrokenBarrierError):
                    meet.wait(10)
            upstream = http.client.HTTPConnection(host)
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            data, status = answer.read(), answer.status
            lie = self.command == "PUT" and kind == "agrees" and status != 200
            if self.command == "PUT":
                puts.append(self.path)
                there.add(self.path)
            if self.command in ("DELETE", "POST"):
                there.clear()
            self.send_response(200 if lie else status)
            if lie:
                self.send_header("ETag", '"0"')
            for name, value in answer.getheaders():
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
            upstream.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 - the server's names

    with served(Handler) as url:
        yield url, puts


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_PROVEN", set())


@pytest.mark.parametrize("kind", ["strips", "agrees", ""])
def test_the_first_commit_finds_out(
    s3: tuple[str, dict[str, str]], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, options = f"{s3[0]}/{tmp_path.name}/t", s3[1]
    DeltaBuilder(place, storage_options=options).create(pa.schema([("id", pa.int64())]))
    before = [info.path for info in Storage(place, options).list()]
    with proxy(options["aws_endpoint"], kind) as (endpoint, puts):
        storage = Storage(place, {**options, "aws_endpoint": endpoint})
        if kind:
            with pytest.raises(RefusedError, match=rf"{endpoint} ignores put-if-absent") as caught:
                commit_info_only(storage, "VACUUM START", {}, {})
            assert caught.value.exit_code == 3
            assert [info.path for info in Storage(place, options).list()] == before, "nothing stays of the probe"
        else:
            assert commit_info_only(storage, "VACUUM START", {}, {}) == 1
            assert commit_info_only(storage, "VACUUM END", {}, {}) == 2
            assert len([path for path in puts if "probe" in path]) == 2, "once, though there were two commits"
        shown = [f"{name}={value}" for name, value in storage.options.items()]
        flags = [word for each in shown for word in ("--storage-option", each)]
        main(["doctor", place, "--json", *flags])
        assert "put-if-absent" not in capsys.readouterr().out, "writes only if asked to"
        assert try_writing(place, storage.options, capsys)["ok"] == (not kind)
    assert not [info.path for info in Storage(place, options).list() if "probe" in info.path]


def test_doctor_finds_a_store_that_looks_before_it_writes(
    s3: S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One put after the other is turned down there, of two at once both succeed."""
    place, options = f"{s3[0]}/{tmp_path.name}/t", s3[1]
    DeltaBuilder(place, storage_options=options).create(pa.schema([("id", pa.int64())]))
    with proxy(options["aws_endpoint"], "looks") as (endpoint, _):
        check = try_writing(place, {**options, "aws_endpoint": endpoint}, capsys)
    assert not check["ok"]
    assert re.search(r"let \d of 8 simultaneous puts of one new object succeed", check["found"])
    assert "one process at a time" in check["how"]
    assert not [info.path for info in Storage(place, options).list() if "probe" in info.path]


@pytest.mark.deep
def test_doctor_finds_it_in_a_real_one(other_s3: S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, options = f"{other_s3[0]}/{tmp_path.name}/t", other_s3[1]
    DeltaBuilder(place, storage_options=options).create(pa.schema([("id", pa.int64())]))
    assert not try_writing(place, options, capsys)["ok"]


def try_writing(place: str, options: dict[str, str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What ``dvm doctor --try-writing`` says of put-if-absent."""
    flags = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
    capsys.readouterr()
    main(["doctor", place, "--json", "--try-writing", *flags])
    (check,) = [each for each in json.loads(capsys.readouterr().out)["checks"] if each["name"] == "put-if-absent"]
    return dict(check)


@pytest.mark.parametrize(
    ("place", "options", "known"),
    [
        ("s3://b/t", {}, True),
        ("s3://b/t", {"aws_endpoint": "https://s3.eu-west-1.amazonaws.com"}, True),
        ("s3://b/t", {"AWS_ENDPOINT_URL": "http://minio:9000"}, False),
        ("s3://b/t", {"endpoint": "https://amazonaws.com.evil.example"}, False),
        ("gs://b/t", {}, True),
        ("abfss://c@a.dfs.core.windows.net/t", {}, True),
        ("https://host/dav/t", {}, False),
    ],
)
def test_which_stores_are_known(place: str, options: dict[str, str], known: bool) -> None:
    assert guards.StoreName.of(Storage(place, options).uri, options).vouched_for == known


def test_local_disks_are_not_tried(tmp_path: Path) -> None:
    Storage(str(tmp_path)).prove_put_if_absent("", anyhow=False)
    assert list(tmp_path.iterdir()) == []


def make_lance(place: str, options: dict[str, str]) -> None:
    import lance

    for rows in (("a", 1), ("b", 2)):
        table = pa.table({"id": [rows[1]], "p": [rows[0]], "v": ["x"]})
        mode = "create" if rows[1] == 1 else "append"
        lance.write_dataset(table, place, mode=mode, storage_options=options)


def make_delta(place: str, options: dict[str, str]) -> None:
    made = DeltaBackend(place, storage_options=options)
    made.create()
    made.append("a", [(1, "a", "x")])
    made.append("b", [(2, "b", "x")])


def make_paimon(place: str, options: dict[str, str]) -> None:
    made = PaimonBackend(place, storage_options=options)
    made.create()
    made.append("a", [(1, "a", "x")])
    made.append("b", [(2, "b", "x")])


def ids(table: Table) -> list[int]:
    return sorted(row["id"] for batch in read(table)[1] for row in batch.to_pylist())


def delete_file(table: Table, number: int) -> int | None:
    """Delete the rows of one file of a table, as DELETE does it. The version."""
    assert isinstance(table, RowLevelTable)
    snapshot = table.snapshot()
    key = FileKey(snapshot.files["path"][number].as_py(), None)
    changes = RowChanges((DeletedRows(key, DeletionVector.from_positions([0]), 1),))
    operation = {"name": "DELETE", "parameters": {}, "metrics": {}}
    return table.commit_changes(snapshot, changes, operation=operation, reads=lambda _: False).version


@pytest.mark.parametrize("proven", [pytest.param(False, marks=pytest.mark.deep), True], ids=["unproven", "proven"])
@pytest.mark.parametrize(("kind", "make"), [("delta", make_delta), ("paimon", make_paimon), ("lance", make_lance)])
def test_of_two_deletes_none_is_lost(
    s3: S3, kind: str, make: Callable[[str, dict[str, str]], None], proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers, each through a proxy of its own that strips the condition, commit the same version. Without the
    proof both report success and one delete is lost; with it both are refused. (Paimon's commit reads its snapshot
    back: there the loser may notice, but its delete is lost all the same.)
    """
    place, options = f"{s3[0]}/{uuid4()}/t", s3[1]
    make(place, options)
    if not proven:
        monkeypatch.setattr(Storage, "prove_put_if_absent", lambda *_, **__: None)
    together = Barrier(2)

    def run(number: int) -> int | str | None:
        with proxy(options["aws_endpoint"], "strips", together) as (endpoint, _):
            table = open_table(place, kind, {**options, "aws_endpoint": endpoint})
            try:
                return delete_file(table, number)
            except DvMaintenanceError as error:
                return error.message

    before = open_table(place, kind, options).version()
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(run, (0, 1)))
    after = open_table(place, kind, options)
    if proven:
        assert all("ignores put-if-absent" in str(each) for each in said)
        assert ids(after) == [1, 2]
        assert after.version() == before
    else:
        assert said.count(before + 1) == 2 or (kind == "paimon" and "overwrote our version" in str(said))
        assert len(ids(after)) == 1, "one of two deletes is lost"
