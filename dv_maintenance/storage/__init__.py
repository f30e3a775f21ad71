"""One way to reach bytes: local disk, S3, GCS and Azure through obstore.

How paths are spelled: :mod:`~dv_maintenance.storage.paths`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

from dv_maintenance.access import Access
from dv_maintenance.credentials import COMMITTER, for_writing, reached
from dv_maintenance.errors import RefusedError, StorageUnavailableError, UsageError
from dv_maintenance.storage.diagnosis import diagnose
from dv_maintenance.storage.failures import (
    NO_FILE,
    Cause,
    FileExistsAlreadyError,
    Handle,
    name_taken,
    storage_errors,
    storage_failure,
    whole,
)
from dv_maintenance.storage.guards import NO_NAMES, Fence, StoreName, probe_path, prove, prove_at_once, try_to_put
from dv_maintenance.storage.interleaved import interleaved
from dv_maintenance.storage.paths import (
    NOT_PLAIN,
    FileInfo,
    Place,
    RawName,
    absolute_uri,
    hadoop_checksum,
    plain_uri,
    staged_for,
    stamp_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage.rehearsal import Rehearsal

__all__ = [
    "NOT_PLAIN",
    "FileExistsAlreadyError",
    "FileInfo",
    "RawName",
    "Storage",
    "absolute_uri",
    "hadoop_checksum",
    "plain_uri",
    "staged_for",
    "stamp_of",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DELETE_THREADS = 16
_LIST_THREADS = 16
_PAGE = 1000  # what object stores list, and S3 deletes, in one request


class Storage(Place):
    """Files of one table. Cheap to create, safe to share between threads, never shows its options.

    Attributes
    ----------
    access
        how this instance reaches its files; initially ``default_access``.
    fence
        where it may write.
    """

    default_access: ClassVar[Access] = Access()

    def __init__(self, place: str, options: Mapping[str, str] | None = None) -> None:
        super().__init__(place)
        self.options = dict(options or {})
        self.access = self.default_access
        self._stores: dict[str, Any] = {}
        self.fence = Fence(self.uri, self.access, self.options.get(COMMITTER))

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Storage, (self.uri, self.options))

    def at(self, place: str) -> Storage:
        """Storage of the same kind for another place."""
        return Storage(place, self.options)

    def rehearsed(self) -> Rehearsal:
        """The same files for dry runs; see ``Rehearsal.of``."""
        from dv_maintenance.storage.rehearsal import Rehearsal

        return Rehearsal(self.uri, self.options)

    # -- reading -----------------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        """All bytes. Raises FileNotFoundError, StorageError."""
        if self.on_disk(path):
            with storage_errors(path):
                # A log is a thousand small files: the store's own thread hops would cost more than reading them.
                return self.access.read(self.local(path))
        store, key = self._at(path)
        with storage_errors(path):
            found = store.get(key)
            return whole(bytes(found.bytes()), found.meta["size"], path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``; fewer only where the file ends before. Raises as ``get``."""
        store, key = self._at(path)
        with storage_errors(path):
            if self.on_disk(path):
                data = self.access.read_range(self.local(path), start, length)
                size = store.head(key)["size"] if len(data) < length else start + length
            else:
                try:
                    found = store.get(key, options={"range": (start, start + length)})
                except FileNotFoundError:
                    raise
                except Exception:
                    # An object store reports a range after the end as an error; local disk returns no bytes.
                    if start >= store.head(key)["size"]:
                        return b""
                    raise
                data, size = bytes(found.bytes()), found.meta["size"]
            return whole(data, min(length, size - start), path)

    def head(self, path: str) -> FileInfo:
        """Size and modification time. Raises FileNotFoundError, StorageError."""
        store, key = self._at(path)
        with storage_errors(path):
            meta = store.head(key)
        return FileInfo(path, meta["size"], _millis(meta["last_modified"]))

    def exists(self, path: str) -> bool:
        try:
            self.head(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str = "", *, after: str | None = None, staged: bool = False) -> list[FileInfo]:
        """Every file below ``prefix`` (a folder), sorted by name.

        On local disk a link to a folder is listed as a file of -1 bytes, and not followed. A missing folder is empty.
        Not for whole tables: see ``walk``.

        Parameters
        ----------
        after
            only files whose path sorts after this one.
        staged
            also files staged on local disk, see ``staged_for``.
        """
        if self.on_disk(prefix):
            with storage_errors(prefix):
                return sorted(self._list_local(prefix, staged, after), key=lambda info: info.path)
        store, key = self._at(prefix)
        cut = len(key) - len(prefix)
        with storage_errors(prefix):
            found = [
                FileInfo(meta["path"][cut:], meta["size"], _millis(meta["last_modified"]))
                for batch in store.list(key or None, offset=self._at(after)[1] if after else None)
                for meta in batch
            ]
        return sorted(found, key=lambda info: info.path)

    def _list_local(self, prefix: str, staged: bool, after: str | None) -> Iterator[FileInfo]:
        todo = [(self.local(prefix), prefix)]
        while todo:
            folder, path = todo.pop()
            try:
                entries = self.access.scan(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            with entries:
                for entry in entries:
                    name = f"{path}/{entry.name}" if path else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, name))
                    elif (after is None or name > after) and (staged or staged_for(entry.name) is None):
                        try:
                            found = entry.stat()
                        except OSError as error:
                            if isinstance(error, FileNotFoundError) or error.errno in NO_FILE:
                                continue  # removed during the listing, or a link to nothing
                            raise
                        size = -1 if stat.S_ISDIR(found.st_mode) else found.st_size
                        yield FileInfo(name, size, found.st_mtime_ns // 1_000_000)

    def first_names(self, folder: str) -> tuple[tuple[str, ...], bool]:
        """Names of the files directly in a folder, and whether the list is complete.

        On local disk it is complete and unordered, and no file is inspected. In an object store it is the answer to a
        single request: about a thousand names, the first ones if the store lists by name. A missing folder is empty.
        """
        found, complete = self.first_files(folder)
        return tuple(found), complete

    def first_files(self, folder: str) -> tuple[Mapping[str, FileInfo | None], bool]:
        """As ``first_names``, with what the listing says of each file: nothing on local disk."""
        if self.on_disk(folder):
            try:
                with storage_errors(folder), self.access.scan(self.local(folder)) as entries:
                    return {entry.name: None for entry in entries if not entry.is_dir()}, True
            except FileNotFoundError:
                return {}, True
        store, key = self._at(folder)
        with storage_errors(folder):
            metas: tuple[Any, ...] = tuple(next(iter(store.list(f"{key}/", chunk_size=_PAGE)), ()))
        found = {
            name: FileInfo(f"{folder}/{name}", meta["size"], _millis(meta["last_modified"]))
            for meta in metas
            if "/" not in (name := meta["path"][len(key) + 1 :])
        }
        return found, len(metas) < _PAGE

    def folders(self, path: str = "") -> tuple[str, ...]:
        """Names of the folders directly below a folder, sorted; none if it is missing. Links are not followed."""
        if self.on_disk(path):
            try:
                with storage_errors(path), self.access.scan(self.local(path)) as entries:
                    return tuple(sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))
            except FileNotFoundError:
                return ()
        store, key = self._at(path)
        with storage_errors(path):
            found = store.list_with_delimiter(f"{key}/" if key else None)["common_prefixes"]
        return tuple(sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in found))

    def walk(self, *, skip: Any = None, by_folder: bool = False) -> Iterator[FileInfo]:
        """Every file of the table, unordered.

        On local disk this is scandir, so ``size`` and ``modified`` are -1: a stat of each file would triple the time of
        a walk. See ``head``.

        Parameters
        ----------
        skip
            ``skip(name, is_dir)`` leaves out a file or a whole folder by its path.
        by_folder
            list the folders directly below the root of an object store in parallel. For tables with few files in
            the root itself, since these are listed at once.
        """
        if self.is_local:
            for _, paths in self.walk_folders(skip=(lambda path: skip(path, True)) if skip else None):
                yield from (FileInfo(path, -1, -1) for path in paths if not skip or not skip(path, False))
            return
        store, _ = self._at("")
        with storage_errors(""):
            for batch in self._batches(store, skip) if by_folder else store.list():
                for meta in batch:
                    path = meta["path"]
                    parts = path.split("/")
                    folders = ["/".join(parts[:n]) for n in range(1, len(parts))]
                    if skip and (any(skip(folder, True) for folder in folders) or skip(path, False)):
                        continue
                    yield FileInfo(path, meta["size"], _millis(meta["last_modified"]))

    def _batches(self, store: Any, skip: Any) -> Iterator[Any]:
        top = store.list_with_delimiter(None)
        yield top["objects"]
        folders = [each for each in top["common_prefixes"] if not skip or not skip(each, True)]
        yield from interleaved([store.list(each) for each in folders], _LIST_THREADS)

    def pages(self, after: str) -> Iterator[tuple[FileInfo, ...]]:
        """The objects whose path sorts after this one, a page per request; for object stores. Most stores list by name,
        but not all.
        """
        store, key = self._at(after)
        with storage_errors(""):
            for batch in store.list(offset=key, chunk_size=_PAGE):
                yield tuple(FileInfo(meta["path"], meta["size"], _millis(meta["last_modified"])) for meta in batch)

    def walk_folders(self, *, skip: Callable[[str], bool] | None = None) -> Iterator[tuple[str, Sequence[str]]]:
        """Every folder of a table on local disk, with the paths of the files in it, unordered. ``skip`` leaves out a
        folder, and all below it, by its path. Links are files.
        """
        todo = [""]
        while todo:
            folder = todo.pop()
            above = f"{folder}/" if folder else ""
            files = []
            for entry in self._entries(folder):
                path = above + entry.name
                if not entry.is_dir(follow_symlinks=False):
                    files.append(path)
                elif skip is None or not skip(path):
                    todo.append(path)
            yield folder, files

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with storage_errors(folder), self.access.scan(os.path.join(self._root, folder)) as entries:
                yield from entries
        except FileNotFoundError:
            pass  # removed while we walked

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        """A random-access file for Arrow. Local files are opened by Arrow itself; others are a ``RemoteInput``.

        Parameters
        ----------
        size
            of a file that was open before. Object stores are not asked for it again.
        """
        with storage_errors(path):
            if self.on_disk(path):
                return self.access.open_input(self.local(path))

            store, key = self._at(path)
            from dv_maintenance.storage.remote_input import remote_input

            def fetch(start: int, length: int) -> Any:
                return store.get(key, options={"range": (start, start + length)}).bytes()

            return remote_input(path, self.access.open_reader(store, key, size), fetch)

    # -- writing -----------------------------------------------------------------------------------------------

    def check_target(self, path: str) -> None:
        """Refuse to write or delete at ``path``; see ``Fence.check``. Raises RefusedError."""
        self.fence.check(path)

    def check_targets(self, paths: Iterable[str]) -> Sequence[str]:
        """The paths, each of which is checked as by ``check_target``."""
        paths = list(paths)
        folders: set[str] = set()
        for path in paths:
            folder, slash, name = path.rpartition("/")
            # Once for each folder: there may be a million files.
            if folder + slash not in folders or name in NO_NAMES:
                self.check_target(path)
                folders.add(folder + slash)
        return paths

    def beyond_link(self, path: str) -> bool:
        """Whether, on local disk, one of the folders between the table's root and ``path`` is a link."""
        return self.fence.beyond_link(path)

    def put(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        """Write all bytes, replacing an existing file, as one atomic step. ``staging``: see ``create``.

        Raises
        ------
        RefusedError
            see ``check_target``; every method that writes or deletes raises it.
        """
        self.check_target(path)
        self._check_free(path)
        store, key = self._at(path, write=True)
        with storage_errors(path):
            self._drop_checksum(path)
            if staging is None or not self.on_disk(path):
                store.put(key, data)
                return
            self.check_target(staging)
            target, staged = self.local(path), self.local(staging)
            self.access.make_folders(os.path.dirname(target))
            try:
                self.access.write_new(staged, data)
                self.access.rename(staged, target)
            except OSError as error:
                with suppress(OSError):
                    self.access.unlink(staged)
                raise storage_failure(path, error) from error

    def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        """Put-if-absent: exactly one of several racing writers wins.

        Parameters
        ----------
        staging
            path on local disk that holds the bytes until they are complete; by default ``path`` with ``#1``
            appended. Ignored by object stores.

        Raises
        ------
        FileExistsAlreadyError
            the name is taken.
        RefusedError
            a folder has the name.
        """
        self.check_target(path)
        self._check_free(path)
        if not self.is_local:
            self.prove_put_if_absent(path.rpartition("/")[0])
        store, key = self._at(path, write=True)
        with storage_errors(path):
            if staging is None or not self.on_disk(path):
                store.put(key, data, mode="create")
                return
            self.check_target(staging)
            target, staged = self.local(path), self.local(staging)
            try:
                self.access.write_new(staged, data)
                self.access.link(staged, target)
            except FileExistsError as error:
                raise FileExistsAlreadyError(f"{path} exists already") from error
            finally:
                # A full disk leaves a part of the file. If it can't be removed, the outcome is still certain.
                with suppress(OSError):
                    self.access.unlink(staged)

    def _check_free(self, path: str) -> None:
        """Refuse a name that a folder has: no other writer made it, so trying again does not help."""
        if self.is_folder(path):
            raise name_taken(self.uri, path)

    def prove_put_if_absent(self, folder: str, *, anyhow: bool = False) -> None:
        """Test the put-if-absent of an unknown store, once per process, before the first commit: put an object twice
        below ``folder``, see ``guards.prove``. ``anyhow``: test any store, even if it was tested before, and with
        writers at the same moment too, see ``guards.prove_at_once``.

        Raises
        ------
        RefusedError
            the store accepts a second put.
        StorageError
            it does not answer.
        """
        subject = StoreName.of(self.uri, self.options)
        if not anyhow and (self.is_local or subject.vouched_for):
            return
        path = probe_path(folder)
        store, key = self._at(path, write=True)
        with storage_errors(path):
            prove(subject, store, key, table=self.uri)
            if anyhow:
                prove_at_once(subject, store, key, table=self.uri)

    def check_creatable(self, folder: str) -> None:
        """Find out, without leaving a trace, whether this process may create files in a folder. A missing folder would
        be created, too. What shows only by trying, such as a full disk, goes unnoticed.

        Raises
        ------
        StorageDeniedError
            it may not.
        RefusedError
            see ``check_target`` and ``prove_put_if_absent``.
        """
        path = probe_path(folder)
        self.check_target(path)
        if self.is_local:
            place = self.local(folder)
            while not os.path.lexists(place):
                place = os.path.dirname(place)
            with storage_errors(folder):
                self.access.check_creatable(place)
            return
        self.prove_put_if_absent(folder)
        store, key = self._at(path, write=True)
        # Without an answer nothing is known: the commit itself will tell.
        with suppress(StorageUnavailableError), storage_errors(folder):
            try_to_put(store, key)

    def check_output(self, path: str) -> None:
        """Refuse to write a stream at ``path``: as ``check_target``, and a link is not followed."""
        self.check_target(path)
        if self.on_disk(path) and os.path.islink(self.local(path)):
            raise self.fence.refused(f"{path} is a link")

    def open_output(self, path: str) -> pa.NativeFile:
        """A sink for Arrow; the written bytes are visible on close at the latest."""
        import pyarrow as pa

        self.check_output(path)
        with storage_errors(path):
            if self.on_disk(path):
                target = self.local(path)
                self.access.make_folders(os.path.dirname(target))
                return self.access.open_output(target)
            store, key = self._at(path, write=True)
            return pa.PythonFile(Handle(path, self.access.open_writer(store, key)), mode="w")

    def delete(self, paths: Iterable[str]) -> int:
        """Delete files in parallel, and return how many existed. A missing file is not an error. A link itself is
        deleted, not its target. If one of the paths is refused, nothing is deleted.
        """
        paths = self.check_targets(paths)
        if self.is_local:
            return sum(self._unlink(path) for path in paths)
        batches = [paths[at : at + _PAGE] for at in range(0, len(paths), _PAGE)]
        with ThreadPoolExecutor(_DELETE_THREADS) as pool:
            failed = [path for batch in pool.map(self._delete_at_once, batches) for path in batch]
            return len(paths) - len(failed) + sum(pool.map(self._delete_one, failed))

    def move(self, source: str, target: str) -> bool:
        """Move a file of the table to an unused name; ``False`` if the file does not exist. On local disk this is a
        rename, elsewhere a copy and a delete: after a failure it may be repeated.

        Raises
        ------
        RefusedError
            see ``check_target``. FileExistsAlreadyError : the name is taken by another file.
        """
        self.check_target(source)
        self.check_target(target)
        try:
            with storage_errors(source):
                if not self.on_disk(source):
                    return self._copy_and_delete(source, target)
                place = self.local(target)
                self.access.make_folders(os.path.dirname(place))
                if os.path.lexists(place):
                    raise FileExistsAlreadyError(f"{target} exists already")
                self._drop_checksum(source)
                self.access.rename(self.local(source), place)
        except FileNotFoundError:
            return False
        return True

    def _copy_and_delete(self, source: str, target: str) -> bool:
        from obstore.exceptions import AlreadyExistsError

        store, key = self._at(source, write=True)
        wanted = self._at(target, write=True)[1]
        try:
            store.copy(key, wanted, overwrite=False)
        except AlreadyExistsError:
            if store.head(key)["size"] != store.head(wanted)["size"]:
                raise
        store.delete(key)
        return True

    def _drop_checksum(self, path: str) -> None:
        """Delete what Hadoop wrote beside a local file, before the file changes: it may do without a checksum, but must
        not contradict one.
        """
        if self.on_disk(path):
            with suppress(FileNotFoundError):
                self.access.unlink(self.local(hadoop_checksum(path)))

    def _unlink(self, path: str) -> int:
        with storage_errors(path):
            self._drop_checksum(path)
            try:
                self.access.unlink(self.local(path))
            except FileNotFoundError:
                return 0
        return 1

    def _delete_at_once(self, paths: Sequence[str]) -> Sequence[str]:
        """Delete objects with as few requests as the store offers. Returns the paths that are not sure to be gone."""
        found = [(path, *self._at(path, write=True)) for path in paths]
        store = found[0][1]
        keys = [key for _, each, key in found if each is store]
        if len(keys) > 1:
            with suppress(Exception):  # whatever it is, it is raised for the object that has it
                store.delete(keys)
                return [path for path, each, _ in found if each is not store]
        return paths

    def _delete_one(self, path: str) -> int:
        store, key = self._at(path, write=True)
        with storage_errors(path):
            try:
                store.delete(key)
            except FileNotFoundError:
                return 0
        return 1

    # -- plumbing ----------------------------------------------------------------------------------------------

    def _at(self, path: str, *, write: bool = False) -> tuple[Any, str]:
        """The obstore store that holds ``path``, and the key in it. ``write``: with the right to write."""
        if self.on_disk(path):
            # One store for the whole disk: it works before the table's folder exists, and for files outside it.
            return self._store("file://"), self.local(path).lstrip("/")
        if not reached(self.options, path if "://" in path else self.uri):
            raise RefusedError(
                f"{path} lies outside the table, where the keys that its catalog vends do not reach",
                table=self.uri,
                next_step="give keys of your own as storage options",
            )
        if "://" not in path:
            return self._store(self.uri, write), path
        parts = urlsplit(path)
        return self._store(f"{parts.scheme}://{parts.netloc}", write), unquote(parts.path).lstrip("/")

    def _store(self, root: str, write: bool = False) -> Any:
        options = for_writing(self.options) if write else self.options
        key = root if options is self.options else f"{root} for writing"
        if key not in self._stores:
            try:
                self._stores[key] = self.access.open_store(root, options)
            except BaseException as error:  # pyo3's PanicException (an unknown option) is not an Exception
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                found = diagnose(error)
                raise UsageError(f"cannot open storage {root}: {found.what}", next_step=found.next_step) from Cause(
                    error
                )
        return self._stores[key]


def _millis(when: Any) -> int:
    # Exact: the time of a file is the same, however it was asked for.
    return int((when - _EPOCH) // _MILLISECOND)
