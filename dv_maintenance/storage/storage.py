"""One way to change bytes: whole files, put if absent, moved and deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.credentials import COMMITTER
from dv_maintenance.errors import StorageUnavailableError
from dv_maintenance.storage.failures import FileExistsAlreadyError, Handle, name_taken, storage_errors, storage_failure
from dv_maintenance.storage.guards import NO_NAMES, Fence, StoreName, probe_path, prove, prove_at_once, try_to_put
from dv_maintenance.storage.paths import hadoop_checksum
from dv_maintenance.storage.reading import PAGE, StoredFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage.rehearsal import Rehearsal

_DELETE_THREADS: Final = 16


class Storage(StoredFiles):
    """Files of one table. Cheap to create, safe to share between threads, never shows its options.

    Attributes
    ----------
    fence
        where it may write.
    """

    def __init__(self, place: str, options: Mapping[str, str] | None = None) -> None:
        super().__init__(place, options)
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

    # -- writing -----------------------------------------------------------------------------------------------

    def check_target(self, path: str) -> None:
        """Refuse to write or delete at ``path``; see ``Fence.check``. Raises RefusedError."""
        self.fence.check(path)

    def check_targets(self, paths: Iterable[str]) -> Sequence[str]:
        """The paths, if ``check_target`` accepts all of them. Raises RefusedError."""
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
        batches = [paths[at : at + PAGE] for at in range(0, len(paths), PAGE)]
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
