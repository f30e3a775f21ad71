"""One verb on one table, disturbed again and again: by faults, or by death at each of its storage calls.

::

    trial = Trial(DeltaBackend(str(tmp_path / "table")), Folder(tmp_path / "table"), verb)
    for point in trial.points():
        trial.kill(Kill(point.number))

Each trial begins with the same files, and ends with all that must hold, whatever happened: the table reads as before or
as after the verb, an error says what is true and may be retried (no fault is taken for damage), the verb runs to its
end without faults, and a vacuum leaves nothing that no version needs. For a new format: give its verbs in
``testing.verbs``, and what only its log can say as ``leftovers``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import DvMaintenanceError, RetryableError, TableNotFoundError
from dv_maintenance.storage import Storage, staged_for
from dv_maintenance.testing.faults import Call, Kill, Killed, Meanwhile, Recorder
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.history import TableHistory, needed_files

if TYPE_CHECKING:
    from dv_maintenance.testing.backends import Row, TableBackend
    from dv_maintenance.testing.faults import Script
    from dv_maintenance.testing.grounds import Ground
    from dv_maintenance.testing.verbs import Verb

__all__ = ["ORPHAN_AGE", "Trial"]

# What an error says that is sure that there is nothing to see.
_NOTHING = re.compile(r"nothing was changed|(?!.*(?:not known|begun)).*nothing was committed")

_HINT = re.compile(r"_last_|LATEST|EARLIEST|latest_version_hint")

# Milliseconds in which a file that nothing names becomes an orphan, beyond a table's retention.
ORPHAN_AGE: Final = 8 * 86_400_000

# Of the paths of files those, besides data and DVs, that nothing needs once a vacuum is done with a table.
Leftovers = Callable[[Collection[str]], Iterable[str]]


class Trial:
    """``ground``: where the backend's table is, which is made here."""

    def __init__(self, backend: TableBackend, ground: Ground, verb: Verb, leftovers: Leftovers = lambda _: ()) -> None:
        self.backend, self.ground, self.verb, self.leftovers = backend, ground, verb, leftovers
        history = TableHistory(backend)
        for partition, rows in (("a", 6), ("a", 6), ("b", 4)):
            history.append(partition, rows)
        history.delete([0, 4])
        history.delete([12])
        verb.prepare(history)
        self.history = history
        self.before = self._rows()
        self.version = self._version()
        self.wanted = sorted(verb.rows(history).values(), key=lambda row: row[0])
        ground.save()
        self._reset()
        self.files = self._files()

    def points(self, *, all_calls: bool = False) -> list[Call]:
        """What the verb calls when nothing goes wrong; see ``Recorder.points``."""
        self._reset()
        recorder = Recorder()
        with injected(recorder):
            self.verb.run(self.backend, self.now)
        assert self._rows() == self.wanted, f"{self.verb.name} itself"
        self._settle()
        return recorder.calls if all_calls else recorder.points()

    def kill(self, script: Kill) -> bool:
        """Die at a call. Whether it came to that."""
        self._reset()
        # Where an error was about to be raised, death comes while it is cleaned up after.
        with injected(script) as access, suppress(Killed, DvMaintenanceError):
            self.verb.run(self.backend, self.now)
        self.look()
        return access.dead is not None

    def survive(self, death: Callable[[], object]) -> None:
        """Another process runs the verb, and dies at it."""
        self._reset()
        death()
        self.look()

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
        """Run with faults. The error that the verb ended with."""
        self._reset()
        error = None
        with injected(script):
            try:
                self.verb.run(self.backend, self.now)
            except DvMaintenanceError as raised:
                error = raised
        assert error is None or isinstance(error, RetryableError), error.to_json()
        if error is None:
            assert self._rows() == self.wanted, "it was reported as done"
        elif self.verb.unreadable:
            assert not _NOTHING.fullmatch(str(error.to_json()["done"])) or self.files == self._files(), error.to_json()
        elif _NOTHING.fullmatch(str(error.to_json()["done"])):
            assert (self._version(), self._rows()) == (self.version, self.before), error.to_json()
            assert self.files.items() <= self._files().items(), error.to_json()
        self.look()
        return error

    def version_after(self, script: Script) -> int | None:
        """The newest version after a run with faults that the verb has to get over by itself."""
        self._reset()
        with injected(script):
            self.verb.run(self.backend, self.now)
        version = self._version()
        self.look()
        return version

    def look(self) -> None:
        """What holds after whatever happened; then the verb is run to its end."""
        if not self.verb.unreadable:
            assert self._rows() in (self.before, self.wanted)
        self._settle()

    def _settle(self) -> None:
        self.verb.run(self.backend, self.now)
        assert self._rows() == self.wanted
        assert not self.verb.left(self.history)
        from dv_maintenance.maintenance.vacuum import vacuum

        vacuum(self.backend.open(), now=self.backend.moment() + self.backend.retention + ORPHAN_AGE)
        assert self._rows() == self.wanted
        table, stored = self.backend.open(), self.history.stored()
        needed = needed_files(table)
        assert not (gone := needed - stored), f"live files are gone: {sorted(gone)}"
        assert not (left := stored - needed), f"vacuum leaves files behind: {sorted(left)}"
        files = self.ground.files()
        staged = [path for path in files if staged_for(path)]
        assert not staged, f"vacuum leaves what was staged: {sorted(staged)}"
        more = set(self.leftovers(files))
        assert not more, f"vacuum leaves files behind: {sorted(more)}"

    def _reset(self) -> None:
        self.ground.reset()
        self.now = self.backend.moment() + self.backend.retention

    def _rows(self) -> list[Row] | None:
        """``None``: it is no table."""
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
        """What is in which file, hints aside."""
        files = self.ground.files()
        return {path: data for path, data in files.items() if not _HINT.match(PurePosixPath(path).name)}
