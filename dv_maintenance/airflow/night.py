"""The work of many tables in one window: one task, one Spark session, an asset event for each table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from dv_maintenance.airflow.base import FILE_FIELDS
from dv_maintenance.airflow.many import OnMany, Result
from dv_maintenance.airflow.spark import SPARK_FIELDS, OnSpark
from dv_maintenance.airflow.tables import in_airflow_terms
from dv_maintenance.service.night import NightTable, opened_at, work_through
from dv_maintenance.units import count, epoch_millis

_NIGHT: Final = "night"
"""The XCom that the next night reads: the window, the seconds used in it, and since when tables wait."""


class DvNightOperator(OnSpark, OnMany):
    """Rewrites files of every table with ``optimize`` in the file, as far as its ``window`` and ``budget`` allow.

    :param fail: fail at the end if a table failed, or if somebody has to act. Airflow then creates no asset event.
        ``False``: leave it to a :class:`DvTablesCheckOperator` that follows.

    Each table whose files were rewritten has an event of its asset ``URI?dv=optimize``. One that has to wait keeps its
    place. If a table fails, the others continue.
    """

    job = "optimize"
    template_fields: Sequence[str] = (*FILE_FIELDS, *SPARK_FIELDS)

    def execute(self, context: Any) -> dict[str, Any]:
        with in_airflow_terms():
            config = self.config()
            tables = [table for table in config.tables if "optimize" in table.jobs]
            began = epoch_millis()
            memory = _Memory(context["ti"], began, opened_at(config.window, began))
            night = partial(
                work_through,
                tables,
                window=config.window,
                budget=config.budget,
                waiting=memory.waiting,
                spent=memory.spent,
            )
            found = self.on_engine(lambda engine: self._seen(context, memory, night(engine=engine)))
        worked = sum(each.outcome is not None and bool(each.outcome.numbers.get("steps")) for each in found)
        waits = sum(each.waited_since is not None for each in found)
        results = {each.table.name: _result(each) for each in found}
        done = f"{count(worked, 'table')} of {len(found)} had work done, {waits} wait{'s' * (waits == 1)}"
        return self.ended(context, results, done)

    def _seen(self, context: Any, memory: _Memory, tables: Iterable[NightTable]) -> list[NightTable]:
        seen = []
        for each in tables:
            seen.append(each)
            memory.keep(each)
            self.note(context, each.table, _result(each))
        return seen


class _Memory:
    """What one night leaves to the next, as an XCom. It is written after each table, so that a night that is killed
    leaves it, too.

    spent : seconds of the budget that earlier runs of this window have used.
    """

    def __init__(self, instance: Any, began: int, opened: int | None) -> None:
        found = instance.xcom_pull(key=_NIGHT, include_prior_dates=True)
        kept: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        self.instance, self.began, self.opened = instance, began, opened
        self.waiting: dict[str, int] = dict(kept.get("waiting", {}))
        self.spent: float = kept["spent"] if opened is not None and kept.get("opened") == opened else 0.0

    def keep(self, table: NightTable) -> None:
        # A table that failed keeps its place.
        if table.waited_since is not None:
            self.waiting[table.table.name] = table.waited_since
        elif table.outcome is not None:
            self.waiting.pop(table.table.name, None)
        spent = self.spent + (epoch_millis() - self.began) / 1000
        kept = {"opened": self.opened, "spent": spent, "waiting": self.waiting}
        self.instance.xcom_push(key=_NIGHT, value=kept)


def _result(table: NightTable) -> Result:
    found = table.error if table.outcome is None else table.outcome
    assert found is not None
    return found
