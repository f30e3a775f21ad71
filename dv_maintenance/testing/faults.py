"""Storage that fails by a script, below all of the product: what real disks and object stores do on a bad day.

::

    script = Faults(seed=7, rate=0.1)
    with injected(script):
        purge(open_table(place), LocalEngine())
    print(script.injected)

Faults are raised where :class:`~dv_maintenance.access.Access` is, as the errors of the system and of obstore, so that
the product's own mapping is under test, and reach every :class:`~dv_maintenance.storage.Storage` that is *made* while
they are injected, by whomever, and no other: what is left over is looked at through storages made before or after. Out
of reach: what Lance's own library reads and writes, other processes, and Spark's reading of keys and sources.

What is promised under them: a table reads as before the verb or as after it; who gets no error finds the verb's work
done; who gets one finds it not done, unless the error says that this is not known, or what was done; the same verb, run
again, does the work; and a vacuum finds what was left behind. Listings may end with an error at any point, or lack what
was written last for a while (``LATE``): a reader sees an older version then, and commits are safe, as put-if-absent
decides and not a listing. Listings that lack older entries without an error are out of scope: no store in use has them.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from dv_maintenance.access import Access
from dv_maintenance.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Call", "Fault", "Faults", "FaultyAccess", "Kill", "Killed", "Recorder", "Script", "injected"]

_T = TypeVar("_T")

_DELAY: Final = 0.002  # seconds


class Fault(StrEnum):
    """What may happen to a call."""

    FAIL = "fail"  # it fails, and nothing was done
    THROTTLE = "throttle"  # it is refused for now
    FORBID = "forbid"  # it is refused for lack of permission
    DELAY = "delay"  # it takes a while
    DUPLICATE = "duplicate"  # it is carried out twice, and the second answer is what comes back
    LOSE_ANSWER = "lose answer"  # it is carried out, and fails all the same
    FULL = "full"  # there is no space
    FULL_HALFWAY = "full halfway"  # there is space for half of it
    CUT_LIST = "cut list"  # a listing fails in the middle
    LATE_LIST = "late list"  # a listing lacks what was written last
    SHORT_READ = "short read"  # less is read than was asked for


_ANY: Final = frozenset({Fault.FAIL, Fault.THROTTLE, Fault.FORBID, Fault.DELAY})
_CHANGE: Final = _ANY | {Fault.DUPLICATE, Fault.LOSE_ANSWER}
_WRITE: Final = _CHANGE | {Fault.FULL, Fault.FULL_HALFWAY}
_LIST: Final = _ANY | {Fault.CUT_LIST, Fault.LATE_LIST}
_STREAM: Final = _ANY | {Fault.FULL, Fault.FULL_HALFWAY}
"""A stream knows what it wrote: nothing is sent twice."""

# What can happen to a call of each kind.
_POSSIBLE: Final[Mapping[str, frozenset[Fault]]] = {
    "read": _ANY,
    "read range": _ANY | {Fault.SHORT_READ},
    "head": _ANY,
    "list": _LIST,
    "open input": _ANY,
    "read input": _ANY | {Fault.SHORT_READ},
    "put": _WRITE,
    "create": _WRITE,
    "write new": _STREAM,
    "open output": _STREAM - {Fault.FULL_HALFWAY},
    "write output": _STREAM,
    "close output": _ANY | {Fault.LOSE_ANSWER, Fault.FULL},
    "delete": _CHANGE,
    "link": _WRITE - {Fault.FULL_HALFWAY},
    "rename": _CHANGE,
    "make folder": _CHANGE | {Fault.FULL},
    "remove folder": _CHANGE,
}
_READS: Final = frozenset({"read", "read range", "head", "list", "open input", "read input"})


@dataclass(frozen=True, slots=True)
class Call:
    """One step: the ``number`` of the call, beginning with 1, what it does, to which path or key."""

    number: int
    operation: str
    path: str

    @property
    def changes(self) -> bool:
        return self.operation not in _READS

    @property
    def possible(self) -> frozenset[Fault]:
        return _POSSIBLE[self.operation]


class Killed(BaseException):
    """The process is dead: no code of it runs, and what does in a test has no effect on the storage."""


class Script(Protocol):
    """What happens to which call."""

    def fault(self, call: Call) -> Fault | None:
        """Raises Killed before the call: it has no effect, nor has any later one."""

    def done(self, call: Call) -> None:
        """The call took effect, or was answered with an error. Raises Killed: no later one has."""


@dataclass(slots=True)
class Faults:
    """Faults by chance, the same for the same ``seed`` and the same calls: of each call a share of ``rate``, until
    there were ``most``. ``injected``: how many of which.
    """

    seed: int
    rate: float = 0.1
    kinds: frozenset[Fault] = frozenset(Fault)
    most: int | None = None
    injected: Counter[Fault] = field(default_factory=Counter)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311 - to be repeated

    def fault(self, call: Call) -> Fault | None:
        drawn = self._random.random()
        kinds = sorted(self.kinds & call.possible)
        if drawn >= self.rate or not kinds or self.injected.total() == self.most:
            return None
        kind = self._random.choice(kinds)
        self.injected[kind] += 1
        return kind

    def done(self, call: Call) -> None:
        """Nothing more to it."""


@dataclass(slots=True)
class Recorder:
    """No fault: only what was called."""

    calls: list[Call] = field(default_factory=list)

    def fault(self, call: Call) -> None:
        self.calls.append(call)

    def done(self, call: Call) -> None:
        """Nothing more to it."""

    def points(self) -> list[Call]:
        """Calls before which the storage is as it never was before: those that change it. Of the writes to one file in
        a row only the first, as a file that nobody names is as good with one page as with two.
        """
        found: list[Call] = []
        for call in self.calls:
            same = found and (found[-1].operation, found[-1].path) == (call.operation, call.path)
            if call.changes and not (same and call.operation == "write output"):
                found.append(call)
        return found


@dataclass(slots=True)
class Kill:
    """Death at the call ``number``: ``before`` it, ``after`` it took effect, or ``halfway`` through, where it is
    something that can be left half done. ``by_signal``: the process dies indeed.
    """

    number: int
    when: str = "before"
    by_signal: bool = False

    def fault(self, call: Call) -> Fault | None:
        if call.number == self.number and self.when == "before":
            self._die(call)
        if call.number == self.number and self.when == "halfway" and Fault.FULL_HALFWAY in call.possible:
            return Fault.FULL_HALFWAY
        return None

    def done(self, call: Call) -> None:
        if call.number == self.number:
            self._die(call)

    def _die(self, call: Call) -> None:
        if self.by_signal:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Killed(f"{self.when} call {call.number}: {call.operation} {call.path}")


@contextmanager
def injected(script: Script) -> Iterator[FaultyAccess]:
    """Every storage made within has the faults of ``script``, as long as it lives."""
    before = Storage.default_access
    access = FaultyAccess(script, before)
    Storage.default_access = access
    try:
        yield access
    finally:
        Storage.default_access = before
        access.over = True


class FaultyAccess(Access):
    """Carries out what ``inner`` would, and disturbs it. ``over``: faults have ended, what died stays dead."""

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
        errors: _Errors,
        *,
        half: Callable[[], object] | None = None,
        undo: Callable[[], object] | None = None,
        cut: Callable[[bool], _T] | None = None,
    ) -> _T:
        """One step. ``half`` does half of it, and ``undo`` takes that back if it lives to do so; ``cut`` answers with
        half of it: as a listing that ends with an error there, or as all there is.
        """
        call, fault = self._fault(operation, path)
        match fault:
            case None:
                try:
                    result = effect()
                except Exception:
                    self._after(call)  # that something is not there is an answer, too
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

    def open_reader(self, store: Any, key: str) -> Any:
        def open_it() -> Any:
            return self.inner.open_reader(store.inner, key)

        return _Input(self, key, self.call("open input", key, open_it, store.errors), store.errors)

    def open_writer(self, store: Any, key: str) -> Any:
        def open_it() -> Any:
            return self.inner.open_writer(store.inner, key)

        return _Output(self, key, self.call("open output", key, open_it, store.errors), store.errors)

    # -- local disk ----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        return self.call("read", path, lambda: self.inner.read(path), _DISK)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        def read(share: int) -> bytes:
            return self.inner.read_range(path, start, length // share)

        return self.call("read range", path, lambda: read(1), _DISK, cut=lambda _: read(2))

    def scan(self, folder: str) -> Any:
        def entries() -> list[os.DirEntry[str]]:
            with self.inner.scan(folder) as found:
                return list(found)

        def cut(failing: bool) -> _Entries:
            found = entries()
            if not failing:
                return _Entries(_without_newest(found, lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns))
            return _Entries(found[: len(found) // 2], _DISK.of(Fault.CUT_LIST))

        return self.call("list", folder, lambda: _Entries(entries()), _DISK, cut=cut)

    def lstat(self, path: str) -> os.stat_result:
        return self.call("head", path, lambda: self.inner.lstat(path), _DISK)

    def open_input(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        raw = self.call("open input", path, lambda: io.FileIO(path), _DISK)
        return pa.PythonFile(_Input(self, path, raw, _DISK), mode="r")

    def open_output(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        raw = self.call("open output", path, lambda: io.FileIO(path, "wb"), _DISK)
        return pa.PythonFile(_Output(self, path, raw, _DISK), mode="w")

    def write_new(self, path: str, data: bytes) -> None:
        def half() -> None:
            self.inner.write_new(path, data[: len(data) // 2])

        self.call("write new", path, lambda: self.inner.write_new(path, data), _DISK, half=half)

    def make_folders(self, path: str) -> None:
        if not os.path.isdir(path):
            self.call("make folder", path, lambda: self.inner.make_folders(path), _DISK)

    def link(self, source: str, target: str) -> None:
        self.call("link", target, lambda: self.inner.link(source, target), _DISK)

    def rename(self, source: str, target: str) -> None:
        self.call("rename", target, lambda: self.inner.rename(source, target), _DISK)

    def unlink(self, path: str) -> None:
        self.call("delete", path, lambda: self.inner.unlink(path), _DISK)

    def rmdir(self, path: str) -> None:
        self.call("remove folder", path, lambda: self.inner.rmdir(path), _DISK)


# -- stores ------------------------------------------------------------------------------------------------------------


class _Store:
    """An obstore store, as far as ``Storage`` uses one."""

    def __init__(self, access: FaultyAccess, inner: Any, root: str) -> None:
        self.access, self.inner = access, inner
        self.local = root == "file://"
        self.errors: _Errors = _LOCAL_STORE if self.local else _REMOTE

    def get(self, key: str) -> _Bytes:
        return self.access.call("read", key, lambda: _Bytes(bytes(self.inner.get(key).bytes())), self.errors)

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        def read(share: int) -> bytes:
            return bytes(self.inner.get_range(key, start=start, length=max(1, length // share)))

        return self.access.call("read range", key, lambda: read(1), self.errors, cut=lambda _: read(2))

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
        # On disk the bytes are put beside their place first, under a name that nobody takes for an object's.
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

    def delete(self, key: str) -> Any:
        return self.access.call("delete", key, lambda: self.inner.delete(key), self.errors)


@dataclass(frozen=True, slots=True)
class _Bytes:
    data: bytes

    def bytes(self) -> bytes:
        return self.data


class _Entries:
    """What scandir gives, and a failure behind it."""

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
    newest = max(found, key=age, default=None)
    return [each for each in found if each is not newest]


# -- files -------------------------------------------------------------------------------------------------------------


class _Input:
    """A Python file for Arrow."""

    def __init__(self, access: FaultyAccess, path: str, inner: Any, errors: _Errors) -> None:
        self._access, self._path, self._inner, self._errors = access, path, inner, errors
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        def read(share: int) -> bytes:
            return bytes(self._inner.read(size if size < 0 else size // share))

        return self._access.call("read input", self._path, lambda: read(1), self._errors, cut=lambda _: read(2))

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
    """A Python file for Arrow. Of a dead process, what was written is there; an object in a store never comes to be."""

    def __init__(self, access: FaultyAccess, path: str, inner: Any, errors: _Errors) -> None:
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
            if self._errors is _DISK:
                self._inner.close()
            return
        try:
            self._access.call("close output", self._path, self._inner.close, self._errors)
        except BaseException:
            if self._errors is _DISK:
                self._inner.close()
            raise


# -- what they raise ---------------------------------------------------------------------------------------------------


class _Errors:
    """Of one kind of storage."""

    def of(self, fault: Fault) -> Exception:
        raise NotImplementedError


class _Disk(_Errors):
    numbers: ClassVar[Mapping[Fault, int]] = {
        Fault.THROTTLE: errno.EAGAIN,
        Fault.FORBID: errno.EACCES,
        Fault.LOSE_ANSWER: errno.ETIMEDOUT,
        Fault.FULL: errno.ENOSPC,
        Fault.FULL_HALFWAY: errno.ENOSPC,
    }

    def of(self, fault: Fault) -> Exception:
        number = self.numbers.get(fault, errno.EIO)
        return OSError(number, os.strerror(number))


class _LocalStore(_Disk):
    def of(self, fault: Fault) -> Exception:
        from obstore.exceptions import GenericError

        return GenericError(f"Generic LocalFileSystem error: {super().of(fault)}")


class _Remote(_Errors):
    answers: ClassVar[Mapping[Fault, str]] = {
        Fault.THROTTLE: "status code: 503 Service Unavailable: SlowDown",
        Fault.LOSE_ANSWER: "HTTP error: operation timed out",
        Fault.FULL: "status code: 507 Insufficient Storage",
        Fault.FULL_HALFWAY: "status code: 507 Insufficient Storage",
    }

    def of(self, fault: Fault) -> Exception:
        from obstore.exceptions import GenericError, PermissionDeniedError

        if fault is Fault.FORBID:
            return PermissionDeniedError("The operation lacked the necessary privileges: 403 Forbidden: AccessDenied")
        return GenericError(f"Generic S3 error: {self.answers.get(fault, 'status code: 500 Internal Server Error')}")


_DISK: Final = _Disk()
_LOCAL_STORE: Final = _LocalStore()
_REMOTE: Final = _Remote()
