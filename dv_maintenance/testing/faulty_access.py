"""An :class:`~dv_maintenance.access.Access` that carries out a script of faults, below all code of the product.

Faults affect every :class:`~dv_maintenance.storage.Storage` that is *created* while they are injected, and no other, so
tests check the result through storages created before or after. Not affected: reads and writes of Lance's own library,
other processes, and Spark's reading of keys and sources.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dv_maintenance.access import Access
from dv_maintenance.storage import Storage
from dv_maintenance.testing.fault_errors import DISK, LOCAL_STORE, REMOTE
from dv_maintenance.testing.faults import Call, Fault, Killed

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.testing.fault_errors import Errors
    from dv_maintenance.testing.faults import Script

_T = TypeVar("_T")

_DELAY: Final = 0.002  # seconds


@contextmanager
def injected(script: Script) -> Iterator[FaultyAccess]:
    """Inject the faults of ``script`` into every storage that is created within."""
    before = Storage.default_access
    access = FaultyAccess(script, before)
    Storage.default_access = access
    try:
        yield access
    finally:
        Storage.default_access = before
        access.over = True


class FaultyAccess(Access):
    """Disturbs the calls of ``inner``. ``over``: no more faults; a dead process stays dead."""

    def __init__(self, script: Script, inner: Access) -> None:
        self.script, self.inner = script, inner
        self.dead: Killed | None = None
        self.over = False
        self._count = 0
        self._lock = threading.Lock()

    def call(
        self,
        operation: str,
        path: str,
        effect: Callable[[], _T],
        errors: Errors,
        *,
        half: Callable[[], object] | None = None,
        undo: Callable[[], object] | None = None,
        cut: Callable[[bool], _T] | None = None,
    ) -> _T:
        """Carry out one call, or its fault.

        half : does half of the call.
        undo : reverts ``half``, unless the process is dead.
        cut : returns half of the result, with an error at the end or without.
        """
        call, fault = self._fault(operation, path)
        match fault:
            case None:
                try:
                    result = effect()
                except Exception:
                    self._after(call)  # an error such as a missing file is an answer, too
                    raise
            case Fault.DELAY:
                time.sleep(_DELAY)
                result = effect()
            case Fault.DUPLICATE:
                effect()
                result = effect()
            case Fault.LOSE_ANSWER:
                effect()
                raise errors.of(fault)
            case Fault.CUT_LIST | Fault.LATE_LIST | Fault.SHORT_READ if cut is not None:
                result = cut(fault is Fault.CUT_LIST)
            case Fault.FULL_HALFWAY if half is not None:
                half()
                self._after(call)
                if undo is not None:
                    undo()
                raise errors.of(fault)
            case _:
                raise errors.of(fault)
        self._after(call)
        return result

    def _fault(self, operation: str, path: str) -> tuple[Call, Fault | None]:
        with self._lock:
            if self.dead is not None:
                raise Killed(str(self.dead))
            self._count += 1
            call = Call(self._count, operation, path)
            if self.over:
                return call, None
            try:
                return call, self.script.fault(call)
            except Killed as death:
                self.dead = death
                raise

    def _after(self, call: Call) -> None:
        with self._lock:
            if self.over:
                return
            try:
                self.script.done(call)
            except Killed as death:
                self.dead = death
                raise

    # -- object stores, and the local disk as one ----------------------------------------------------------------------

    def open_store(self, root: str, options: Mapping[str, str]) -> Any:
        return _Store(self, self.inner.open_store(root, options), root)

    def open_reader(self, store: Any, key: str, size: int | None = None) -> Any:
        def open_it() -> Any:
            return self.inner.open_reader(store.inner, key, size)

        return _Input(self, key, self.call("open input", key, open_it, store.errors), store.errors)

    def open_writer(self, store: Any, key: str) -> Any:
        def open_it() -> Any:
            return self.inner.open_writer(store.inner, key)

        return _Output(self, key, self.call("open output", key, open_it, store.errors), store.errors)

    # -- local disk ----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        # Python reads until the end of the file, so a short read is an error here.
        return self.call("read", path, lambda: self.inner.read(path), DISK)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        def read(share: int) -> bytes:
            return self.inner.read_range(path, start, length // share)

        return self.call("read range", path, lambda: read(1), DISK, cut=lambda _: read(2))

    def scan(self, folder: str) -> Any:
        def entries() -> list[os.DirEntry[str]]:
            with self.inner.scan(folder) as found:
                return list(found)

        def cut(failing: bool) -> _Entries:
            found = entries()
            if not failing:
                return _Entries(_without_newest(found, lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns))
            return _Entries(found[: len(found) // 2], DISK.of(Fault.CUT_LIST))

        return self.call("list", folder, lambda: _Entries(entries()), DISK, cut=cut)

    def stat(self, path: str) -> os.stat_result:
        return self.call("head", path, lambda: self.inner.stat(path), DISK)

    def lstat(self, path: str) -> os.stat_result:
        return self.call("head", path, lambda: self.inner.lstat(path), DISK)

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        raw = self.call("open input", path, lambda: io.FileIO(path), DISK)
        return pa.PythonFile(_Input(self, path, raw, DISK), mode="r")

    def open_output(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        raw = self.call("open output", path, lambda: io.FileIO(path, "wb"), DISK)
        return pa.PythonFile(_Output(self, path, raw, DISK), mode="w")

    def write_new(self, path: str, data: bytes) -> None:
        def half() -> None:
            self.inner.write_new(path, data[: len(data) // 2])

        self.call("write new", path, lambda: self.inner.write_new(path, data), DISK, half=half)

    def make_folders(self, path: str) -> None:
        if not os.path.isdir(path):
            self.call("make folder", path, lambda: self.inner.make_folders(path), DISK)

    def link(self, source: str, target: str) -> None:
        self.call("link", target, lambda: self.inner.link(source, target), DISK)

    def rename(self, source: str, target: str) -> None:
        self.call("rename", target, lambda: self.inner.rename(source, target), DISK)

    def unlink(self, path: str) -> None:
        self.call("delete", path, lambda: self.inner.unlink(path), DISK)

    def rmdir(self, path: str) -> None:
        self.call("remove folder", path, lambda: self.inner.rmdir(path), DISK)


# -- stores ------------------------------------------------------------------------------------------------------------


class _Store:
    """An obstore store, as far as ``Storage`` uses one."""

    def __init__(self, access: FaultyAccess, inner: Any, root: str) -> None:
        self.access, self.inner = access, inner
        self.local = root == "file://"
        self.errors: Errors = LOCAL_STORE if self.local else REMOTE

    def get(self, key: str, *, options: Mapping[str, Any] | None = None) -> _Object:
        def read(share: int) -> _Object:
            found = self.inner.get(key, options=options)
            data = bytes(found.bytes())
            return _Object(data[: len(data) // share], found.meta)

        operation = "read range" if options else "read"
        return self.access.call(operation, key, lambda: read(1), self.errors, cut=lambda _: read(2))

    def head(self, key: str) -> Any:
        return self.access.call("head", key, lambda: self.inner.head(key), self.errors)

    def list(self, prefix: str | None = None, **options: Any) -> Iterator[list[Any]]:
        def batches() -> list[list[Any]]:
            return [list(batch) for batch in self.inner.list(prefix, **options)]

        def cut(failing: bool) -> Iterator[list[Any]]:
            found = [meta for batch in batches() for meta in batch]
            if not failing:
                return iter([_without_newest(found, lambda meta: meta["last_modified"])])
            return _cut([found[: len(found) // 2]], self.errors.of(Fault.CUT_LIST))

        return self.access.call("list", prefix or "", lambda: iter(batches()), self.errors, cut=cut)

    def list_with_delimiter(self, prefix: str | None) -> Any:
        def cut(_: bool) -> Any:
            raise self.errors.of(Fault.CUT_LIST)

        return self.access.call(
            "list", prefix or "", lambda: self.inner.list_with_delimiter(prefix), self.errors, cut=cut
        )

    def put(self, key: str, data: bytes, **options: Any) -> Any:
        operation = "create" if options.get("mode") == "create" else "put"
        # On disk the bytes are staged beside the target first, under a name that is not an object's.
        staged = f"/{key}#1"

        def half() -> None:
            if self.local:
                os.makedirs(os.path.dirname(staged), exist_ok=True)
                with open(staged, "wb") as file:
                    file.write(data[: len(data) // 2])

        def undo() -> None:
            if self.local:
                os.unlink(staged)

        return self.access.call(
            operation, key, lambda: self.inner.put(key, data, **options), self.errors, half=half, undo=undo
        )

    def copy(self, source: str, target: str, *, overwrite: bool) -> Any:
        return self.access.call(
            "copy", target, lambda: self.inner.copy(source, target, overwrite=overwrite), self.errors
        )

    def delete(self, keys: str | Sequence[str]) -> Any:
        if isinstance(keys, str):
            return self.access.call("delete", keys, lambda: self.inner.delete(keys), self.errors)

        def half() -> None:
            self.inner.delete(keys[: len(keys) // 2])

        return self.access.call("delete", keys[0], lambda: self.inner.delete(keys), self.errors, half=half)


@dataclass(frozen=True, slots=True)
class _Object:
    """The answer of a store to a GET."""

    data: bytes
    meta: Any

    def bytes(self) -> bytes:
        return self.data


class _Entries:
    """The entries of scandir, followed by a failure."""

    def __init__(self, entries: Iterable[os.DirEntry[str]], failure: Exception | None = None) -> None:
        self._entries = _cut([list(entries)], failure)

    def __enter__(self) -> Iterator[os.DirEntry[str]]:
        return (entry for batch in self._entries for entry in batch)

    def __exit__(self, *_: object) -> None:
        """Everything was read when it was opened."""

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self.__enter__()


def _cut(batches: list[list[_T]], failure: Exception | None) -> Iterator[list[_T]]:
    yield from batches
    if failure is not None:
        raise failure


def _without_newest(found: list[_T], age: Callable[[_T], Any]) -> list[_T]:
    """All but the newest entry. The only file of a folder, such as a schema, counts as old."""
    if len(found) < 2:
        return found
    newest = max(found, key=age)
    return [each for each in found if each is not newest]


# -- files -------------------------------------------------------------------------------------------------------------


class _Input:
    """A Python file for Arrow. Arrow reads a local file until its end, so a short read is an error there."""

    def __init__(self, access: FaultyAccess, path: str, inner: Any, errors: Errors) -> None:
        self._access, self._path, self._inner, self._errors = access, path, inner, errors
        self.closed = False

    @property
    def size(self) -> int:
        return int(self._inner.size)

    def read(self, size: int = -1) -> bytes:
        def read(share: int) -> bytes:
            return bytes(self._inner.read(size if size < 0 else size // share))

        cut = None if self._errors is DISK else lambda _: read(2)
        return self._access.call("read input", self._path, lambda: read(1), self._errors, cut=cut)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._inner.seek(offset, whence))

    def tell(self) -> int:
        return int(self._inner.tell())

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
        self._inner.close()


class _Output:
    """A Python file for Arrow. A dead process leaves what it wrote to a local file; an object is never created."""

    def __init__(self, access: FaultyAccess, path: str, inner: Any, errors: Errors) -> None:
        self._access, self._path, self._inner, self._errors = access, path, inner, errors
        self.closed = False

    def write(self, data: Any) -> int:
        data = bytes(data)

        def half() -> None:
            self._inner.write(data[: len(data) // 2])

        self._access.call("write output", self._path, lambda: self._inner.write(data), self._errors, half=half)
        return len(data)

    def flush(self) -> None:
        """Every write went through."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._access.dead is not None:
            if self._errors is DISK:
                self._inner.close()
            return
        try:
            self._access.call("close output", self._path, self._inner.close, self._errors)
        except BaseException:
            if self._errors is DISK:
                self._inner.close()
            raise
