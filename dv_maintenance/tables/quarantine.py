"""Expired files that are moved instead of deleted: ``_dvm_quarantine/TIME-ID/path``, until they expire there as well.

The folder lies right below the table's root. Its name begins with ``_``, and no format uses it: readers, vacuums and
cleaners of Delta, Lance and Paimon ignore it, and so do those of this package. TIME is when the vacuum ran, in UTC; it
alone decides when a batch expires. ID separates two runs within the same second.

An undelete takes two steps. First the format decides which files can return without harm (:class:`UndeleteRules`), by
inspecting the table as it would be (:class:`Restored`). Then the files move, those that name other files last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

from dv_maintenance.errors import DvMaintenanceError, StorageError
from dv_maintenance.storage import FileInfo, Storage
from dv_maintenance.tables.reports import UndeleteReport
from dv_maintenance.tables.sweep import delete_batch, remove_empty_folders

if TYPE_CHECKING:
    from collections.abc import Callable

QUARANTINE: Final = "_dvm_quarantine"
_FORMAT: Final = "%Y-%m-%dT%H-%M-%SZ"
_BATCH: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ)-[0-9a-f]{8}")
_AT_ONCE: Final = 1000
_LINK: Final = "a link to a folder"


@dataclass(frozen=True, slots=True)
class _Batch:
    folder: str
    at: int  # epoch milliseconds


def new_batch(now: int) -> str:
    """The folder for files that a vacuum sets aside at ``now``, epoch milliseconds."""
    return f"{QUARANTINE}/{datetime.fromtimestamp(now / 1000, UTC).strftime(_FORMAT)}-{uuid4().hex[:8]}"


def set_aside(storage: Storage, paths: Sequence[str], folder: str) -> tuple[int, StorageError | None]:
    """Move files into a batch. Returns how many were moved, and the first failure. A failure does not stop the rest."""
    return _move(storage, ((path, f"{folder}/{path}") for path in paths))


def put_back(storage: Storage, paths: Iterable[str], folder: str) -> int:
    """Move files of a batch back to where they were. Raises StorageError."""
    moved, failure = _move(storage, ((f"{folder}/{path}", path) for path in paths))
    if failure is not None:
        raise failure
    return moved


def empty(storage: Storage, before: int) -> int:
    """Delete the batches older than ``before``, epoch milliseconds. Returns how many files. Raises StorageError."""
    deleted = 0
    for batch in _batches(storage):
        if batch.at >= before:
            continue
        try:
            paths = [info.path for info in storage.list(batch.folder)]
            for at in range(0, len(paths), _AT_ONCE):
                gone, failure = delete_batch(storage, paths[at : at + _AT_ONCE])
                deleted += gone
                if failure is not None:
                    raise failure
        except StorageError as error:
            error.done = f"{deleted} expired files in quarantine deleted" if deleted else None
            raise
        remove_empty_folders(storage, paths)
    return deleted


def overdue(storage: Storage, before: int) -> int:
    """How many batches are older than ``before``, epoch milliseconds: :func:`empty` would delete their files."""
    return sum(batch.at < before for batch in _batches(storage))


def quarantined(storage: Storage, paths: Iterable[str]) -> set[str]:
    """The paths whose files were quarantined and can be undeleted."""
    wanted, found = set(paths), set[str]()
    for batch in _batches(storage):
        found |= {info.path[len(batch.folder) + 1 :] for info in storage.list(batch.folder)} & wanted
    return found


# -- undeleting -----------------------------------------------------------------------------------------------------


class Restored(Storage):
    """A read-only view of a table's storage, as if quarantined files were back in their places."""

    def __init__(self, storage: Storage, places: Mapping[str, str]) -> None:
        super().__init__(storage.uri, storage.options)
        self.access, self.places = storage.access, places

    def get(self, path: str) -> bytes:
        return super().get(self.places.get(path, path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return super().get_range(self.places.get(path, path), start, length)

    def head(self, path: str) -> FileInfo:
        found = super().head(self.places.get(path, path))
        return FileInfo(path, found.size, found.modified)


class UndeleteRules(Protocol):
    """A format's rules for files that return from quarantine."""

    def kept(self, restored: Restored) -> Mapping[str, str]:
        """The paths of ``restored.places`` that must remain in quarantine, each with the reason."""

    def order(self, path: str) -> tuple[int, int]:
        """Sort key for moving files, before the path: a file that names others moves after them."""

    def settle(self, paths: Sequence[str]) -> None:
        """Finish once the files are back in place: update hints, for instance."""


def undelete(
    storage: Storage,
    version: Callable[[], int],
    rules: UndeleteRules | None = None,
    *,
    since: int | None = None,
    until: int | None = None,
    dry_run: bool = False,
) -> UndeleteReport:
    """Undelete the files that vacuums quarantined from ``since`` to ``until``, epoch milliseconds; see
    ``UndeletableTable``.

    version : the table's newest version.
    rules : the format's rules, ``None`` if no quarantined file names another one.
    """
    newest, taken = version(), list[str]()
    files: dict[str, FileInfo] = {}
    links = 0
    # Of several files with one path, the one quarantined last is the newest.
    for batch in sorted(_batches(storage), key=lambda batch: batch.at, reverse=True):
        if (since is not None and batch.at < since) or (until is not None and batch.at > until):
            continue
        for info in storage.list(batch.folder):
            path = info.path[len(batch.folder) + 1 :]
            if info.size < 0:
                links += 1  # no vacuum sets a link aside; restoring it would bring an outside place into the table
            elif path in files or storage.exists(path):
                taken.append(path)
            else:
                files[path] = info
    places = {path: info.path for path, info in files.items()}
    kept = rules.kept(Restored(storage, places)) if rules is not None and files else {}
    order = rules.order if rules is not None else _as_they_come
    wanted = sorted(files.keys() - kept.keys(), key=lambda path: (order(path), path))
    storage.check_targets([*wanted, *(places[path] for path in wanted)])
    if dry_run:
        back, gone = wanted, 0
    else:
        back, more, gone = _return(storage, wanted, places)
        taken += more
        if rules is not None:
            # A file that is in place already may have been undeleted by an interrupted run.
            try:
                rules.settle([*back, *taken])
            except DvMaintenanceError as error:
                error.done = error.done or f"{len(back)} of {len(wanted)} files are back"
                raise
    size = sum(files[path].size for path in back)
    reasons = dict(Counter([*kept.values(), *[_LINK] * links]))
    return UndeleteReport(newest, dry_run, len(back), size, len(taken), gone, reasons)


def _as_they_come(path: str) -> tuple[int, int]:
    del path
    return 0, 0


def _return(storage: Storage, paths: Sequence[str], places: Mapping[str, str]) -> tuple[list[str], list[str], int]:
    """The paths undeleted, the paths whose names are taken by now, and the number of files that no longer exist."""
    back: list[str] = []
    taken: list[str] = []
    gone = 0
    try:
        for path in paths:
            try:
                moved = storage.move(places[path], path)
            except FileExistsError:
                taken.append(path)
                continue
            if moved:
                back.append(path)
            else:
                gone += 1
    except DvMaintenanceError as error:
        error.done = error.done or f"{len(back)} of {len(paths)} files are back"
        error.next_step = error.next_step or "run again: it continues with the rest"
        raise
    finally:
        remove_empty_folders(storage, (places[path] for path in paths))
    return back, taken, gone


def _move(storage: Storage, pairs: Iterable[tuple[str, str]]) -> tuple[int, StorageError | None]:
    moved, failure = 0, None
    for source, target in pairs:
        try:
            moved += storage.move(source, target)
        except StorageError as error:
            failure = failure or error
    return moved, failure


def _batches(storage: Storage) -> list[_Batch]:
    found = ((name, _BATCH.fullmatch(name)) for name in storage.folders(QUARANTINE))
    return [_Batch(f"{QUARANTINE}/{name}", _millis(match[1])) for name, match in found if match]


def _millis(text: str) -> int:
    return int(datetime.strptime(text, _FORMAT).replace(tzinfo=UTC).timestamp() * 1000)
