"""Reads of a table's files: local disk, S3, GCS and Azure through obstore."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from dv_maintenance.access import Access
from dv_maintenance.credentials import for_writing, reached
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.storage.diagnosis import diagnose
from dv_maintenance.storage.failures import NO_FILE, Cause, storage_errors, whole
from dv_maintenance.storage.interleaved import interleaved
from dv_maintenance.storage.paths import FileInfo, Place, staged_for

if TYPE_CHECKING:
    import pyarrow as pa


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LIST_THREADS = 16
PAGE: Final = 1000
"""What object stores list, and S3 deletes, in one request."""


class StoredFiles(Place):
    """The files of one table, to be read.

    Attributes
    ----------
    access
        how this instance reaches its files; initially ``default_access``.
    """

    default_access: ClassVar[Access] = Access()

    def __init__(self, place: str, options: Mapping[str, str] | None = None) -> None:
        super().__init__(place)
        self.options = dict(options or {})
        self.access = self.default_access
        self._stores: dict[str, Any] = {}

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

    def info(self, path: str) -> FileInfo | None:
        """As ``head``; ``None`` if the file does not exist."""
        try:
            return self.head(path)
        except FileNotFoundError:
            return None

    def exists(self, path: str) -> bool:
        return self.info(path) is not None

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
            except OSError as error:
                if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno in NO_FILE:
                    continue
                raise
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

    def names(self, folder: str) -> Sequence[str]:
        """Names of all files in a folder, and the paths from there of those below it, unordered."""
        names, complete = self.first_names(folder)
        return names if complete else [info.path[len(folder) + 1 :] for info in self.list(folder)]

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
            metas: tuple[Any, ...] = tuple(next(iter(store.list(f"{key}/", chunk_size=PAGE)), ()))
        found = {
            name: FileInfo(f"{folder}/{name}", meta["size"], _millis(meta["last_modified"]))
            for meta in metas
            if "/" not in (name := meta["path"][len(key) + 1 :])
        }
        return found, len(metas) < PAGE

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
            for batch in store.list(offset=key, chunk_size=PAGE):
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
