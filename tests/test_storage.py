"""Storage on local disk and on S3: names, put-if-absent, walking, and what a failure looks like."""

from __future__ import annotations

import errno
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.access import Access
from dv_maintenance.errors import RefusedError, StorageError, UsageError
from dv_maintenance.storage import FileExistsAlreadyError, RawName, Storage, absolute_uri, plain_uri
from dv_maintenance.storage.failures import Handle, storage_errors
from dv_maintenance.testing.faults import Call, Fault
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.locations import Bucket

AWKWARD = ["a b", "a%20b", "é", "x#y?", "a=b&c", "a:b", "100%", "~t", "{z}", "[b]", "star*"]


@pytest.fixture(params=["local", "s3", "s3, shared client"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage(str(tmp_path / "a table"))
    bucket, options = request.getfixturevalue("s3")
    # An escape in its URI gives a table a client of its own.
    name = "a table" if request.param == "s3" else "a_table"
    return Storage(f"{bucket}/{tmp_path.name}/{name}", options)


@pytest.mark.parametrize("name", AWKWARD)
def test_any_name_is_written_read_listed_and_deleted(storage: Storage, name: str) -> None:
    storage.put(f"dir/{name}.bin", b"0123456789")
    if storage.is_local:
        assert (Path(storage.local("dir")) / f"{name}.bin").read_bytes() == b"0123456789"
    assert storage.get(f"dir/{name}.bin") == b"0123456789"
    assert storage.get_range(f"dir/{name}.bin", 3, 4) == b"3456"
    assert [info.path for info in storage.list("dir")] == [f"dir/{name}.bin"]
    assert [info.path for info in storage.walk()] == [f"dir/{name}.bin"]
    assert storage.delete([f"dir/{name}.bin"]) == 1
    assert not storage.exists(f"dir/{name}.bin")


def test_tables_of_a_bucket_share_its_connections(
    s3: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(storage: Storage) -> Any:
        return storage._store(storage.uri).inner

    bucket, options = s3
    whole, one, two = (Storage(f"{bucket}/{name}", options) for name in ("", tmp_path.name, f"{tmp_path.name}-2"))
    for storage in (one, two):
        storage.put("log/a", storage.uri.encode())
        assert storage.get("log/a") == storage.uri.encode()
        assert [info.path for info in storage.list()] == ["log/a"], "not the other's, whose name begins the same"
        assert [info.path for info in storage.walk(by_folder=True)] == ["log/a"]
        assert storage.folders() == ("log",)
    one.put("log/b", b"")
    assert one.delete(["log/a", "log/b"]) == 2
    assert one.list() == []
    assert two.exists("log/a")
    assert f"{tmp_path.name}-2" in whole.folders()
    assert client(one) is client(two) is client(whole)
    assert client(Storage(one.uri, {**options, "aws_access_key_id": "another"})) is not client(one)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    assert client(Storage(one.uri, options)) is not client(one)


@pytest.mark.parametrize("name", AWKWARD)
def test_a_uri_and_a_relative_path_reach_the_same_file(storage: Storage, name: str) -> None:
    storage.put(f"dir/{name}", b"x")
    uri = storage.uri_of(f"dir/{name}")
    assert storage.get(uri) == b"x"
    assert storage.head(uri).size == 1
    assert storage.path_of_uri(uri) == f"dir/{name}"


def test_names_in_logs_are_decoded_once(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    assert storage.path_of(RawName("part=a%2520b/f.parquet")) == "part=a%20b/f.parquet"
    assert storage.path_of(RawName("s3a://bucket/x%20y")) == "s3://bucket/x%20y"
    local = storage.uri[len("file://") :]
    assert storage.path_of(RawName(f"file:{local}/f%20g.parquet")) == "f g.parquet"
    assert storage.path_of(RawName("file:///elsewhere/f%20g.parquet")) == "file:///elsewhere/f%20g.parquet"


def test_paths_and_names_of_logs_are_not_mixed_up(tmp_path: Path) -> None:
    """Whoever decodes a path once more names another file: neither mypy nor the interpreter lets them."""
    storage: Any = Storage(str(tmp_path))
    with pytest.raises(AttributeError):
        storage.path_of("p=a%3Ab/f")
    for call in (storage.get, storage.put, storage.uri_of, storage.exists):
        with pytest.raises((TypeError, AttributeError)):
            call(RawName("p=a%3Ab/f"), *([b""] if call == storage.put else []))
    with pytest.raises(ValueError, match="not an absolute URI"):
        storage.path_of_uri("p=a%3Ab/f")


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("file:/x/p=a%3Ab/f", "file:///x/p=a%253Ab/f"),
        ("file:///x/a b", "file:///x/a%20b"),
        ("/x/a%b", "file:///x/a%25b"),
        ("s3a://b/p=a%3Ab", "s3://b/p=a%253Ab"),
    ],
)
def test_what_hadoop_prints_is_not_encoded(text: str, uri: str) -> None:
    assert plain_uri(text) == uri


def test_a_short_read_gives_what_is_there(storage: Storage) -> None:
    storage.put("f", b"abc")
    assert storage.get_range("f", 2, 100) == b"c"
    assert storage.get_range("f", 50, 100) == b""


def test_create_lets_exactly_one_racing_writer_win(storage: Storage) -> None:
    storage.put("seed", b"")
    won: list[int] = []

    def race(number: int) -> None:
        try:
            storage.create("log/1.json", str(number).encode())
        except FileExistsAlreadyError:
            return
        won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.get("log/1.json") == str(won[0]).encode()


def test_only_the_store_itself_says_that_a_name_is_taken() -> None:
    """An error that merely has the name of obstore's does not decide a commit."""

    class AlreadyExistsError(Exception):
        pass

    with pytest.raises(StorageError) as failed, storage_errors("a"):
        raise AlreadyExistsError
    assert not isinstance(failed.value, FileExistsAlreadyError)


def test_what_is_staged_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.put("log/seed", b"")
    storage.create("log/1", b"first", staging="log/.1.tmp")
    with pytest.raises(FileExistsAlreadyError):
        storage.create("log/1", b"second", staging="log/.2.tmp")
    assert storage.get("log/1") == b"first"
    assert {info.path for info in storage.list("log")} == {"log/1", "log/seed"}


def test_what_is_staged_on_a_disk_that_fills_up_is_not_there(tmp_path: Path) -> None:
    class FullDisk(Access):
        def write_new(self, path: str, data: bytes) -> None:
            super().write_new(path, data[:2])
            assert not (tmp_path / "log" / "1").exists(), "readers see a part of the file"
            raise OSError(errno.ENOSPC, "No space left on device")

    storage = Storage(str(tmp_path))
    storage.put("log/seed", b"")
    storage.access = FullDisk()
    with pytest.raises(StorageError):
        storage.create("log/1", b"first", staging="log/.1.tmp")
    assert {info.path for info in storage.list("log", staged=True)} == {"log/seed"}


def test_list_after_a_name_starts_behind_it(storage: Storage) -> None:
    for number in range(5):
        storage.put(f"log/{number}", b"")
    assert [info.path for info in storage.list("log", after="log/2")] == ["log/3", "log/4"]


def test_walk_leaves_out_what_it_is_told_to(storage: Storage) -> None:
    for name in ("a/1", "a/2", "_hidden/3", "_hidden/deep/4"):
        storage.put(name, b"")
    seen = {info.path for info in storage.walk(skip=lambda path, is_dir: is_dir and path.startswith("_"))}
    assert seen == {"a/1", "a/2"}


def test_what_is_missing_is_file_not_found(storage: Storage) -> None:
    storage.put("there", b"")
    for call in (storage.get, storage.head, lambda path: storage.get_range(path, 0, 1), storage.open_input):
        with pytest.raises(FileNotFoundError):
            call("gone")
    storage.delete(["gone", "there"])
    assert not storage.exists("there")
    assert storage.list("gone") == []


def test_arrow_writes_and_reads_through_it(storage: Storage) -> None:
    rows = pa.table({"a": range(1000)})
    with storage.open_output("d/t.parquet") as sink:
        pq.write_table(rows, sink)
    with storage.open_input("d/t.parquet") as source:
        assert pq.read_table(source).equals(rows)


def test_options_never_show(tmp_path: Path) -> None:
    storage = Storage(f"s3://bucket/{tmp_path.name}", {"aws_secret_access_key": "hunter2", "nonsense": "1"})
    assert "hunter2" not in repr(storage)
    with pytest.raises((UsageError, StorageError)) as error:
        storage.get("x")
    assert "hunter2" not in str(error.value)
    assert pickle.loads(pickle.dumps(storage)).options == storage.options


@pytest.mark.parametrize(
    ("place", "uri"),
    [
        ("s3a://b/t/", "s3://b/t"),
        ("gcs://b/t", "gs://b/t"),
        ("file:/d/t%20x", "file:///d/t%20x"),
        ("file:///d/../e", "file:///e"),
        ("/d/t x", "file:///d/t%20x"),
    ],
)
def test_one_spelling_per_place(place: str, uri: str) -> None:
    assert absolute_uri(place) == uri


def test_an_empty_place_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="empty"):
        absolute_uri(" ")


# -- nothing outside of the root -------------------------------------------------------------------------------------


def writes(storage: Storage, path: str) -> list[Callable[[], object]]:
    return [
        lambda: storage.put(path, b"x"),
        lambda: storage.create(path, b"x"),
        lambda: storage.create(path, b"x", staging=f"{path}.tmp"),
        lambda: storage.create("plain", b"x", staging=path) if storage.is_local else storage.put(path, b"x"),
        lambda: storage.open_output(path),
        lambda: storage.delete(["fine", path]),
    ]


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("path", ["link/f", "link/sub/f", "a/link/f"])
def test_nothing_is_written_or_deleted_through_a_link(tmp_path: Path, path: str, outside: bool) -> None:
    root, target = tmp_path / "t", tmp_path / ("elsewhere" if outside else "t/here")
    for folder in (root / "a", target / "sub"):
        folder.mkdir(parents=True)
    for kept in (root / "fine", target / "f", target / "sub" / "f"):
        kept.write_text("kept")
    (root / path.partition("link")[0] / "link").symlink_to(target)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    storage = Storage(str(root))
    assert storage.get(path) == b"kept", "reading is fine"
    for write in (*writes(storage, path), *writes(storage, storage.uri_of(path))):
        with pytest.raises(RefusedError, match="link"):
            write()
    assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == before
    assert storage.beyond_link(path)


@pytest.mark.parametrize(
    "path", ["../f", "a/../../f", "/f", "a//f", "./f", "a/./f", "..", "", "a/", "file:///f", "s3://b/f"]
)
def test_nothing_is_written_or_deleted_outside_of_the_table(storage: Storage, path: str) -> None:
    storage.put("fine", b"x")
    for write in writes(storage, path):
        with pytest.raises(RefusedError, match="refusing to write or delete there"):
            write()
    assert [info.path for info in storage.walk()] == ["fine"]


def test_what_the_table_names_elsewhere_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path)
    storage, place = Storage(str(tmp_path / "t")), absolute_uri(str(tmp_path / "elsewhere"))
    storage.fence.outside = (place,)
    storage.put(f"{place}/a%20b", b"x")
    assert (tmp_path / "elsewhere" / "a b").read_bytes() == b"x"
    assert storage.delete([f"{place}/a%20b"]) == 1
    for path in (f"{place}/link/f", f"{place}/../f", f"{place}2/f"):
        with pytest.raises(RefusedError):
            storage.put(path, b"x")


def test_a_link_is_deleted_and_replaced_itself(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "really").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "really")
    storage = Storage(str(tmp_path / "t"))
    for write in (
        lambda: storage.put("f", b"x"),
        lambda: storage.delete(["f"]),
    ):
        (tmp_path / "t" / "f").symlink_to(precious)
        write()
        assert not (tmp_path / "t" / "f").is_symlink()
        (tmp_path / "t" / "f").unlink(missing_ok=True)
    (tmp_path / "t" / "f").symlink_to(precious)
    with pytest.raises(RefusedError):
        storage.open_output("f")
    with pytest.raises(FileExistsAlreadyError):
        storage.create("f", b"x")
    assert precious.read_text() == "kept"


def test_a_listing_names_links_to_folders_and_does_not_follow_them(tmp_path: Path) -> None:
    (tmp_path / "t" / "a").mkdir(parents=True)
    (tmp_path / "t" / "a" / "f").write_text("abc")
    (tmp_path / "t" / "a" / "f#1").write_text("staged by the store")
    (tmp_path / "t" / "loop").symlink_to(tmp_path / "t")
    (tmp_path / "t" / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "t" / "linked").symlink_to(tmp_path / "t" / "a" / "f")
    found = [(info.path, info.size) for info in Storage(str(tmp_path / "t")).list()]
    assert found == [("a/f", 3), ("linked", 3), ("loop", -1)]
    assert "a/f#1" in {info.path for info in Storage(str(tmp_path / "t")).list("a", staged=True)}


class ShortReads:
    """Whatever is read comes back cut in half."""

    def fault(self, call: Call) -> Fault | None:
        return Fault.SHORT_READ if Fault.SHORT_READ in call.possible else None

    def done(self, call: Call) -> None:
        pass


@pytest.mark.parametrize(
    ("place", "read"),
    [
        ("", lambda storage: storage.get_range("f", 4, 100)),
        ("s3://lake", lambda storage: storage.get_range("f", 4, 100)),
        ("s3://lake", lambda storage: storage.get("f")),
        ("s3://lake", lambda storage: storage.open_input("f").read(100)),
        ("s3://lake", lambda storage: storage.open_input("f").read()),
    ],
)
def test_an_answer_that_breaks_off_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, read: Callable[[Storage], bytes]
) -> None:
    monkeypatch.setattr(Storage, "default_access", Bucket())
    sound = Storage(place or str(tmp_path))
    sound.put("f", bytes(200))
    assert len(read(sound)) in {100, 200}
    with injected(ShortReads()), pytest.raises(StorageError, match=r"only \d+ of \d+ bytes of f arrived") as caught:
        read(Storage(sound.uri))
    assert caught.value.to_json()["retryable"]


def test_arrow_writes_every_kind_of_bytes_to_a_store() -> None:
    """Its own buffers are of signed bytes, which obstore refuses: a second footer never arrived."""
    import obstore
    from obstore.store import MemoryStore

    store = MemoryStore()
    with pa.PythonFile(Handle("k", obstore.open_writer(store, "k")), mode="w") as sink:
        sink.write(b"one, ")
        sink.write(pa.py_buffer(b"two, "))
        sink.write(memoryview(bytearray(b"three")))
    assert bytes(store.get("k").bytes()) == b"one, two, three"


def test_hadoops_checksums_go_with_their_files(tmp_path: Path) -> None:
    """Hadoop refuses a file that its checksum contradicts, and nobody else ever deletes a checksum."""
    storage = Storage(str(tmp_path))
    names = ["_log/_last", "p=1/a b.parquet", "c.bin"]
    for name in names:
        storage.put(name, b"old")
        folder, file = (tmp_path / name).parent, (tmp_path / name).name
        (folder / f".{file}.crc").write_bytes(b"crc")
    (tmp_path / ".other.crc").write_bytes(b"crc")
    storage.put(names[0], b"new")
    assert storage.delete([names[1]]) == 1
    assert storage.move(names[2], "aside/c.bin")
    assert [path.name for path in tmp_path.rglob("*.crc")] == [".other.crc"]
    assert storage.get(names[0]) == b"new"
