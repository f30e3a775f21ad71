"""Observe one table: inspect it, and find its data version. Tables stay open, to keep connections to object stores. No
Spark session is started for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dv_maintenance.engine.spark.shared import only_looking
from dv_maintenance.errors import TableNotFoundError
from dv_maintenance.maintenance.checks import readable
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.service.checks import RepeatedChecks, has_partitions, work_left
from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.data_version import last_data_version
from dv_maintenance.service.inspection import Inspection, Seen, inspect_table, reads_now
from dv_maintenance.service.kept import kept_snapshots
from dv_maintenance.service.partitions import due_keys
from dv_maintenance.tables.registry import NamedTable
from dv_maintenance.tables.table import as_probed
from dv_maintenance.units import epoch_millis

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from dv_maintenance.catalogs.kinds import CatalogSettings
    from dv_maintenance.maintenance.checks import Finding
    from dv_maintenance.service.inspection import Downstream
    from dv_maintenance.service.tables_file import TableSettings
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.registry import Location
    from dv_maintenance.tables.table import Probe, Table


@dataclass(frozen=True, slots=True)
class _Open:
    """A table that stays open. ``access``: the options and catalogs that it was opened with. ``location``: of one with
    a name in a catalog.
    """

    access: tuple[Mapping[str, str], Mapping[str, CatalogSettings]]
    table: Table
    checks: RepeatedChecks
    location: Location | None


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation of one table.

    ``data_version`` : ``None`` if data versions are not tracked.
    ``due_keys`` : partitions to optimize, see ``partitions.due_keys``.
    ``snapshot`` : set only for a table with ``partitions``, and only if it changed.
    ``lineage`` : see ``TableState``.
    ``findings`` : of the checks that need only the log, if the table or its settings changed, or if a limit was crossed
        with time; ``None``: those of the last inspection still hold.
    """

    inspection: Inspection
    data_version: int | None = None
    due_keys: frozenset[str | None] = frozenset()
    snapshot: Snapshot | None = None
    findings: tuple[Finding, ...] | None = None
    lineage: str = ""
    readable: Finding | None = None
    """Whether readers can read the newest version; ``None``: the last answer still holds. Asked if the table
    changed, could not be read before, or has new work due."""

    @property
    def damaged(self) -> bool:
        return self.readable is not None and self.readable.severity == "error"


class Observer:
    """Observes tables; safe to use from several threads, for different tables.

    data_versions : also find data versions and partitions.
    checks : also evaluate the checks that need only the log.
    """

    def __init__(self, *, data_versions: bool, checks: bool = False) -> None:
        self.data_versions = data_versions
        self.checks = checks
        self._open: dict[str, _Open] = {}
        self._names: dict[str, str] = {}

    def probe(self, watched: TableSettings, last: TableState | None) -> Probe:
        """The table's newest version, which :meth:`observe` needs. Raises the errors of the table."""
        version = None if last is None else last.inspection.version
        known = self._open.get(watched.name)
        with self._reopened_after_errors(watched), only_looking():
            if known is not None:
                self._follow(watched, known.location)
            try:
                return self._opened(watched).table.probe(version)
            except TableNotFoundError:
                if known is None or watched.table is None:
                    raise
                # A catalog says so of a table that was dropped, also if its name has been given to another one.
                del self._open[watched.name]
                return self._opened(watched).table.probe(version)

    def _follow(self, watched: TableSettings, known: Location | None) -> None:
        """A catalog that leaves commits to the files is asked whether the name still belongs to the same table: one
        request. The others are asked by the table itself.
        """
        if known is None or not isinstance(known.catalog, NamedTable):
            return
        _, now = watched.located() or (None, known)
        if (now.storage.uri, now.catalog) != (known.storage.uri, known.catalog):
            del self._open[watched.name]

    def observe(
        self,
        watched: TableSettings,
        last: TableState | None,
        newest: Probe,
        *,
        busy: bool,
        observed: Callable[[], tuple[int, int] | None] = lambda: None,
        downstream: Downstream = lambda _now: None,
    ) -> Observation:
        """Inspect one table.

        newest : what :meth:`probe` returned just now.
        busy : a run works on the table, so the partitions to run are not needed.
        observed : returns version and data version of the newest recorded observation; called only for a changed table.
        downstream : returns the reads by downstream assets; called only where they matter.

        Raises the errors of the table.
        """
        with self._reopened_after_errors(watched), as_probed(), only_looking():
            opened = self._opened(watched)
            return self._observe(watched, opened.table, opened.checks, last, newest, busy, observed, downstream)

    def _opened(self, watched: TableSettings) -> _Open:
        found = self._open.get(watched.name)
        access = watched.storage_options, watched.catalogs
        if found is None or found.access != access:
            # Credentials may end: the table is the same, and what was found out about it still holds.
            checks = RepeatedChecks() if found is None else found.checks
            named = watched.located()
            table = watched.open() if named is None else named[0].open(named[1])
            found = self._open[watched.name] = _Open(access, table, checks, None if named is None else named[1])
            self._warn_of_another_name(watched.name, table.uri)
        return found

    def place(self, watched: TableSettings) -> str:
        """The URI of a table's files, if it is open; else what its settings say."""
        known = self._open.get(watched.name)
        return watched.uri if known is None else known.table.uri

    def _warn_of_another_name(self, name: str, place: str) -> None:
        """Only an opened table shows where it is: one that is named by its path, and in a catalog, looks like two."""
        other = self._names.setdefault(place, name)
        if other == name:
            return
        known = self._open.get(other)
        if known is None or known.table.uri != place:
            self._names[place] = name
            return
        _log.warning(
            "%s and %s are the same table, at %s: work may be done twice, keep one of them", other, name, place
        )

    @contextmanager
    def _reopened_after_errors(self, watched: TableSettings) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # When it is available again, it may be another table, or have another format.
            self._open.pop(watched.name, None)
            raise

    def _observe(
        self,
        watched: TableSettings,
        table: Table,
        kept_checks: RepeatedChecks,
        last: TableState | None,
        newest: Probe,
        busy: bool,
        observed: Callable[[], tuple[int, int] | None],
        downstream: Downstream,
    ) -> Observation:
        reads = reads_now(watched, downstream)
        last = last or TableState(Inspection(watched.name))
        version, known, seen = last.inspection.version, last.data_version, Seen(kept=kept_snapshots())
        found = inspect_table(
            table,
            watched.policy,
            last.inspection if version is not None else None,
            name=watched.name,
            jobs=watched.jobs,
            reads=reads,
            seen=seen,
            newest=newest,
        )
        if found.another:
            last, version, known, observed = TableState(Inspection(watched.name)), None, None, lambda: None
            kept_checks.forget()
        if self.data_versions and (found.changed or known is None):
            since = None if version is None or known is None else (version, known)
            known = last_data_version(table, _newer(table, since, observed(), newest.version))
        other = self.checks and self._is_other(last.inspection, found)
        findings = self._findings(watched, table, kept_checks, last, found, seen) if self.checks else None
        # A tick has no time for the files of a large table: their check is left to its own runs.
        answer = _readable(table, seen.read(table, found.version)) if self._to_look_at_files(found, last) else None
        now_or_before = [each for each in (found, last.inspection) if "optimize" in each.due]
        due = "optimize" in found.due
        # That work became due, or no longer is, is news without a commit.
        news = self.checks and has_partitions(watched) and (other or len(now_or_before) == 1)
        to_plan = watched.partitions is not None and due and (not busy or news)
        if not to_plan and not news and (watched.partitions is None or not found.changed):
            return Observation(found, known, findings=findings, readable=answer)
        snapshot = seen.read(table, found.version)
        now, plan = epoch_millis(), None
        if to_plan:
            plan = decide_for(table, snapshot, watched.policy, reads=reads(now)[0], now=now)
        if news:
            findings = (*(findings or ()), work_left(watched, snapshot, plan))
        keys = frozenset[str | None]() if plan is None else due_keys(watched, snapshot, plan)
        return Observation(found, known, keys, snapshot if found.changed else None, findings, readable=answer)

    def _to_look_at_files(self, found: Inspection, last: TableState) -> bool:
        news = self.data_versions and (found.changed or last.readable is None)
        return news or last.readable is False or not set(found.due) <= set(last.inspection.due)

    def readable(self, watched: TableSettings) -> Finding | None:
        """Look again at the files of a table that :meth:`observe` just read; ``None`` if it is not open any more.
        Raises the errors of the table.
        """
        if watched.name not in self._open:
            return None
        table = self._opened(watched).table
        return _readable(table, table.snapshot())

    @staticmethod
    def _is_other(last: Inspection, found: Inspection) -> bool:
        return found.changed or found.another or found.settings != last.settings

    def _findings(
        self,
        watched: TableSettings,
        table: Table,
        kept_checks: RepeatedChecks,
        last: TableState,
        found: Inspection,
        seen: Seen,
    ) -> tuple[Finding, ...] | None:
        now = epoch_millis()
        crossed = last.checked_until is not None and last.checked_until <= now
        if not crossed and not self._is_other(last.inspection, found):
            return None
        seen.read(table, found.version)
        return tuple(kept_checks.findings(watched, table, seen, now))


def _newer(
    table: Table, known: tuple[int, int] | None, recorded: tuple[int, int] | None, newest: int
) -> tuple[int, int] | None:
    """The later one of two observations: the versions before it need not exist any more. An observation of a version
    that is not one of the table's does not count.
    """
    if recorded is None or (recorded[0] != newest and not table.follows(newest, recorded[0])):
        return known
    return recorded if known is None or table.follows(recorded[0], known[0]) else known


def _readable(table: Table, snapshot: Snapshot) -> Finding:
    answer = readable(table, snapshot)
    # The log can be read: a process that watches it need not have access to the files.
    return replace(answer, severity=None) if answer.severity == "warn" and "error" in answer.numbers else answer
