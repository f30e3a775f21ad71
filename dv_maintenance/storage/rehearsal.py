"""Storage for dry runs: whatever would be refused is refused, and nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dv_maintenance.storage import FileExistsAlreadyError, FileInfo, Storage
from dv_maintenance.storage.guards import StoreName, probe_path
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    import pyarrow as pa


@dataclass(slots=True)
class _Written:
    """``data``: ``None`` for files that were written as a stream. ``place``: theirs, until they are read back."""

    size: int
    data: bytes | None = None
    place: str | None = None


class Rehearsal(Storage):
    """The files of a table, as they are, for a verb that must not change them.

    Writes and deletes pass every check of a table's own storage, and then leave no trace there. A file that was written
    can be looked at and read by its name, but is in no listing. Streams go to the local disk; once they are read back,
    only their size is kept. So a dry run takes the way of the real one up to its end, and meets the same refusals.

    What shows only by writing stays unknown: whether the store has put-if-absent, whether the disk is full.
    """

    def __init__(self, place: str, options: Mapping[str, str] | None = None) -> None:
        super().__init__(place, options)
        self.forget()

    def forget(self) -> None:
        """Nothing has been written."""
        self._written: dict[str, _Written] = {}
        self._streams: TemporaryDirectory[str] | None = None

    @classmethod
    def of(cls, storage: Storage) -> Rehearsal:
        found = storage.rehearsed()
        found.access, found.fence = storage.access, storage.fence
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (Rehearsal, (self.uri, self.options))

    def at(self, place: str) -> Rehearsal:
        return Rehearsal(place, self.options)

    def assume(self, uri: str, size: int) -> None:
        """Take a file of ``size`` bytes for written: another process has rehearsed it."""
        self._written[self.uri_of(self.path_of_uri(uri))] = _Written(size)

    # -- reading -----------------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        found = self._written.get(self.uri_of(path))
        return super().get(path) if found is None or found.data is None else found.data

    def head(self, path: str) -> FileInfo:
        found = self._written.get(self.uri_of(path))
        return super().head(path) if found is None else FileInfo(path, found.size, epoch_millis())

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        import pyarrow as pa

        found = self._written.get(self.uri_of(path))
        if found is None:
            return super().open_input(path, size)
        if found.data is not None:
            return pa.BufferReader(found.data)
        place, found.place = found.place, None
        if place is None:
            raise FileNotFoundError(path)
        opened = pa.OSFile(place, "rb")
        os.unlink(place)
        return opened

    # -- writing -----------------------------------------------------------------------------------------------

    def put(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        for each in (path, staging):
            if each is not None:
                self.check_target(each)
        self._written[self.uri_of(path)] = _Written(len(data), data)

    def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        self.check_target(path)
        self._check_free(path)
        if self.exists(path):
            raise FileExistsAlreadyError(f"{path} exists already")
        self.put(path, data, staging=staging)

    def prove_put_if_absent(self, folder: str, *, anyhow: bool = False) -> None:
        """Only a write could prove it."""

    def check_creatable(self, folder: str) -> None:
        """As the storage's own, except in a store that may grant what it should turn down: it is not asked."""
        if StoreName.of(self.uri, self.options).vouched_for:
            super().check_creatable(folder)
        else:
            self.check_target(probe_path(folder))

    def open_output(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        self.check_output(path)
        if self._streams is None:
            from tempfile import TemporaryDirectory

            self._streams = TemporaryDirectory(prefix="dvm-dry-run-")
        place = os.path.join(self._streams.name, str(len(self._written)))
        written = self._written[self.uri_of(path)] = _Written(0, place=place)
        return pa.PythonFile(_Stream(place, written), mode="w")

    def delete(self, paths: Iterable[str]) -> int:
        return len(self.check_targets(paths))

    def move(self, source: str, target: str) -> bool:
        self.check_target(source)
        self.check_target(target)
        if self.exists(target):
            raise FileExistsAlreadyError(f"{target} exists already")
        return self.exists(source)


class _Stream:
    """A file on local disk, which tells its size to ``written``."""

    def __init__(self, place: str, written: _Written) -> None:
        self._file, self._written = open(place, "wb"), written  # noqa: SIM115 - closed by close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        self._written.size += len(memoryview(data).cast("B"))
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
