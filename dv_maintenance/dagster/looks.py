"""A sensor's look at one table. Tables stay open from tick to tick, so that an object store keeps its connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dv_maintenance.dagster.ranges import due_keys
from dv_maintenance.dagster.state import Seen, last_data_version

if TYPE_CHECKING:
    from dv_maintenance.maintenance.tables_file import WatchedTable
    from dv_maintenance.maintenance.watch import Look
    from dv_maintenance.tables.model import Snapshot, Table

__all__ = ["Found", "Looker"]


@dataclass(frozen=True, slots=True)
class Found:
    """``due_keys``: Dagster partitions to optimize, see ``ranges.due_keys``. ``snapshot``: only of a table split into
    partitions, and only if it changed.
    """

    look: Look
    data_version: int | None = None
    due_keys: frozenset[str | None] = frozenset()
    snapshot: Snapshot | None = None


class Looker:
    """Looks at tables, from several threads. ``observes``: wants data versions and partitions too."""

    def __init__(self, *, observes: bool) -> None:
        self.observes = observes
        self._open: dict[str, Table] = {}

    def look(
        self,
        watched: WatchedTable,
        last: Seen | None,
        *,
        busy: bool,
        before: Callable[[], tuple[int, int] | None] = lambda: None,
    ) -> Found:
        """``busy``: somebody is at work on it, so that what to run need not be known. ``before``: see
        ``state.observed_before``, asked of a table that changed. Raises what the table raises.
        """
        from dv_maintenance.tables import open_table

        try:
            if watched.name not in self._open:
                self._open[watched.name] = open_table(watched.path, watched.format, watched.storage_options)
            return self._look(watched, self._open[watched.name], last, busy, before)
        except BaseException:
            # It may be another table, or of another format, when it is back.
            self._open.pop(watched.name, None)
            raise

    def _look(
        self,
        watched: WatchedTable,
        table: Table,
        last: Seen | None,
        busy: bool,
        before: Callable[[], tuple[int, int] | None],
    ) -> Found:
        from dv_maintenance.maintenance.watch import Look, look_at

        last = last or Seen(Look(watched.name))
        version, known = last.look.version, last.data_version
        look = look_at(
            table, watched.policy, last.look if version is not None else None, name=watched.name, jobs=watched.jobs
        )
        if self.observes and (look.changed or known is None):
            seen = [] if version is None or known is None else [(version, known)]
            observed = before()
            # Where somebody looked later, the versions up to there need not exist any more.
            seen += [observed] if observed is not None and observed[0] <= (look.version or 0) else []
            known = last_data_version(table, max(seen, default=None))
        to_plan = watched.partitions is not None and "optimize" in look.due and not busy
        if not to_plan and (watched.partitions is None or not look.changed):
            return Found(look, known)
        snapshot = table.snapshot(look.version)
        keys = due_keys(watched, snapshot) if to_plan else frozenset()
        return Found(look, known, keys, snapshot if look.changed else None)
