"""One verb on one table, disturbed repeatedly: by faults, or by a kill at each of its storage calls.

::

    trial = Trial(DeltaBackend(str(tmp_path / "table")), Folder(tmp_path / "table"), verb)
    for point in trial.points():
        trial.kill(Kill(point.number))

Each trial begins with the same files, and checks at the end what must hold in every case: the table reads as before or
as after the verb; an error reports the truth and may be retried, unless the storage denied a call (a fault is never
reported as damage); the verb succeeds without faults; and a vacuum leaves no file that no version needs. To add a
format, list its verbs in ``testing.verbs``, and pass ``leftovers`` for files that only its log can recognize.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import DvMaintenanceError, RetryableError, StorageDeniedError, TableNotFoundError
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.storage import Storage, staged_for
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.faults import Call, Killed, Meanwhile, Recorder
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.history import TableHistory, needed_files
from dv_maintenance.units import DAY

if TYPE_CHECKING:
    from dv_maintenance.testing.backends import Row, TableBackend
    from dv_maintenance.testing.faults import Script
    from dv_maintenance.testing.locations import TableLocation
    from dv_maintenance.testing.verbs import Verb

# The ``done`` of an error which guarantees that nothing has changed.
_NOTHING = re.compile(r"nothing was changed|(?!.*(?:not known|begun)).*nothing was committed")

_HINT = re.compile(r"_last_|LATEST|EARLIEST|latest_version_hint")

# Milliseconds beyond a table's retention after which an unreferenced file is an orphan.
ORPHAN_AGE: Final = 8 * DAY

# Filters paths down to files, besides data and DVs, that nothing needs after a vacuum.
Leftovers = Callable[[Collection[str]], Iterable[str]]


def prepared(backend: TableBackend, verb: Verb) -> TableHistory:
    """A new table on which the verb has something to do."""
    history = TableHistory(backend)
    for partition, rows in (("a", 6), ("a", 6), ("b", 4)):
        history.append(partition, rows)
    history.delete([0, 4])
    history.delete([12])
    verb.prepare(history)
    return history


class Trial:
    """Disturbs ``verb`` on a table that it creates.

    location : where the backend's table is.
    """

    def __init__(
        self, backend: TableBackend, location: TableLocation, verb: Verb, leftovers: Leftovers = lambda _: ()
    ) -> None:
        self.backend, self.location, self.verb, self.leftovers = backend, location, verb, leftovers
        self.history = history = prepared(backend, verb)
        self.before = self._rows()
        self.version = self._version()
        self.wanted = sorted(verb.rows(history).values(), key=lambda row: row[0])
        location.save()
        self._reset()
        self.files = self._files()

    def points(self, *, all_calls: bool = False) -> list[Call]:
        """The calls of the undisturbed verb; see ``Recorder.points``."""
        self._reset()
        recorder = Recorder()
        with injected(recorder):
            self.verb.run(self.backend, self.now)
        assert self._rows() == self.wanted, f"{self.verb.name} itself"
        self._settle()
        return recorder.calls if all_calls else recorder.points()

    def kill(self, script: Script) -> bool:
        """Die at a call. Returns whether the call was reached."""
        self._reset()
        # If the verb was about to raise an error, the kill happens during its cleanup.
        with injected(script) as access, suppress(Killed, DvMaintenanceError):
            self.verb.run(self.backend, self.now)
        self._check()
        return access.dead is not None

    def survive(self, death: Callable[[], object]) -> None:
        """Another process runs the verb, and dies during it."""
        self._reset()
        death()
        self._check()

    def interrupt(self, number: int, other: Verb) -> tuple[DvMaintenanceError | None, DvMaintenanceError | None]:
        """Another process runs a whole verb of maintenance at a call of this one. The errors of both, this one's first.

        The table can be read throughout; whether either verb has done its work is for the caller to judge.
        """
        self._reset()
        undisturbed = Storage.default_access
        others: list[DvMaintenanceError | None] = []

        def run(verb: Verb) -> DvMaintenanceError | None:
            try:
                verb.run(self.backend, self.now)
            except DvMaintenanceError as error:
                return error
            return None

        def meanwhile() -> None:
            disturbed, Storage.default_access = Storage.default_access, undisturbed
            try:
                others.append(run(other))
            finally:
                Storage.default_access = disturbed

        with injected(Meanwhile(number, meanwhile)):
            error = run(self.verb)
        theirs = sorted(other.rows(self.history).values(), key=lambda row: row[0])
        assert self._rows() in (self.before, self.wanted, theirs), (error, others)
        return error, others[0]

    def disturb(self, script: Script) -> DvMaintenanceError | None:
        """Run with faults. Returns the error that the verb ended with."""
        self._reset()
        error = None
        with injected(script):
            try:
                self.verb.run(self.backend, self.now)
            except DvMaintenanceError as raised:
                error = raised
        assert error is None or isinstance(error, RetryableError | StorageDeniedError), error.to_json()
        if error is None:
            assert self._rows() == self.wanted, "it was reported as done"
        elif self.verb.unreadable:
            assert not _NOTHING.fullmatch(str(error.to_json()["done"])) or self.files == self._files(), error.to_json()
        elif _NOTHING.fullmatch(str(error.to_json()["done"])):
            assert (self._version(), self._rows()) == (self.version, self.before), error.to_json()
            assert self.files.items() <= self._files().items(), error.to_json()
        self._check()
        return error

    def version_after(self, script: Script) -> int | None:
        """The newest version after a run with faults from which the verb must recover by itself."""
        self._reset()
        with injected(script):
            self.verb.run(self.backend, self.now)
        version = self._version()
        self._check()
        return version

    def _check(self) -> None:
        """Check what must hold in every case, then run the verb to its end."""
        if not self.verb.unreadable:
            assert self._rows() in (self.before, self.wanted)
        self._settle()

    def _settle(self) -> None:
        self.verb.run(self.backend, self.now)
        assert self._rows() == self.wanted
        assert not self.verb.left(self.history)
        vacuum(self.backend.open(), VacuumRequest(now=self.backend.moment() + self.backend.retention + ORPHAN_AGE))
        assert self._rows() == self.wanted
        table, stored = self.backend.open(), self.history.stored()
        needed = needed_files(table)
        assert not (gone := needed - stored), f"live files are gone: {sorted(gone)}"
        assert not (left := stored - needed), f"vacuum leaves files that no version needs: {sorted(left)}"
        files = self.location.files()
        staged = [path for path in files if staged_for(path)]
        assert not staged, f"vacuum leaves staged files: {sorted(staged)}"
        more = set(self.leftovers(files))
        assert not more, f"vacuum leaves files that no version needs: {sorted(more)}"

    def _reset(self) -> None:
        self.location.reset()
        self.now = self.backend.moment() + self.backend.retention

    def _rows(self) -> list[Row] | None:
        """The live rows by id; ``None`` if the table does not exist."""
        try:
            return sorted(self.backend.rows(), key=lambda row: row[0])
        except TableNotFoundError:
            return None

    def _version(self) -> int | None:
        try:
            return self.backend.open().version()
        except TableNotFoundError:
            return None

    def _files(self) -> dict[str, bytes]:
        """Path -> content of every file, without hints."""
        files = self.location.files()
        return {path: data for path, data in files.items() if not _HINT.match(PurePosixPath(path).name)}
