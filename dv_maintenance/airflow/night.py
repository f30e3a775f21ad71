"""The work of many tables in one window: one task, one Spark session, an asset event for each table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dv_maintenance.airflow.assets import job_asset
from dv_maintenance.airflow.base import FILE_FIELDS, OnFile
from dv_maintenance.airflow.lineage import Writes
from dv_maintenance.airflow.many import problem_of
from dv_maintenance.airflow.render import as_text, as_xcom, ended
from dv_maintenance.airflow.spark import SPARK_FIELDS, OnSpark
from dv_maintenance.airflow.tables import in_airflow_terms
from dv_maintenance.service.night import NightPlan, NightTable, clock, opened_at, plan_night
from dv_maintenance.service.text import count

_NIGHT: Final = "night"
"""The XCom that the next night reads: the window, the seconds used in it, and since when tables wait."""


class DvNightOperator(OnSpark, OnFile, Writes):
    """Rewrites files of every table with ``optimize`` in the file, as far as its ``window`` and ``budget`` allow.

    :param fail: fail at the end if a table failed, or if somebody has to act. Airflow then creates no asset event.
        ``False``: leave it to a :class:`DvTablesCheckOperator` that follows.

    Each table whose files were rewritten has an event of its asset ``URI?dv=optimize``. One that has to wait keeps its
    place. If a table fails, the others continue.
    """

    template_fields: Sequence[str] = (*FILE_FIELDS, *SPARK_FIELDS)

    def __init__(self, *, fail: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail = fail

    def execute(self, context: Any) -> dict[str, Any]:
        with in_airflow_terms():
            config = self.config()
            tables = [table for table in config.tables if "optimize" in table.jobs]
            began = clock()
            memory = _Memory(context["ti"], began, opened_at(config.window, began))
            night = plan_night(
                tables, window=config.window, budget=config.budget, waiting=memory.waiting, spent=memory.spent
            )
            found = self._seen(context, memory, night.settled)
            if night.needs_engine:
                found += self.on_engine(lambda engine: self._seen(context, memory, night.work(engine)))
            else:
                found += self._seen(context, memory, _waiting(night))
        shown = _shown(found)
        return ended(context, shown, problem_of(shown) if self.fail else "")

    def _seen(self, context: Any, memory: _Memory, tables: Iterable[NightTable]) -> list[NightTable]:
        """Each table in the log, in the memory and, if it is maintained, as an event."""
        seen = []
        for each in tables:
            seen.append(each)
            memory.keep(each)
            if each.outcome is None:
                self.log.error("%s: %s", each.table.name, each.error)
                continue
            self.log.info("%s: %s", each.table.name, as_text(each.outcome))
            self.wrote(context, each.table, job_asset(each.table, "optimize"), each.outcome)
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
        spent = self.spent + (clock() - self.began) / 1000
        kept = {"opened": self.opened, "spent": spent, "waiting": self.waiting}
        self.instance.xcom_push(key=_NIGHT, value=kept)


def _waiting(night: NightPlan) -> Iterable[NightTable]:
    def none() -> Any:
        raise AssertionError("a night without work or time starts no engine")

    return night.work(none)


def _shown(found: Sequence[NightTable]) -> dict[str, Any]:
    """The XCom: a reason, then a sentence for each table."""
    done = [each for each in found if each.outcome is not None and each.outcome.numbers.get("steps")]
    waits = [each for each in found if each.waited_since is not None]
    failed = {each.table.name: _failure(each) for each in found if _failure(each)}
    alerts = [line for each in found if each.outcome is not None for line in each.outcome.lines.get("alerts", ())]
    reason = (
        f"{count(len(done), 'table')} of {len(found)} had work done, "
        f"{len(waits)} wait{'s' * (len(waits) == 1)}, {len(failed)} failed."
    )
    sentences = {each.table.name: as_xcom(each.outcome)["reason"] for each in found if each.outcome is not None}
    return {"reason": reason, "failed": failed, "alerts": list(dict.fromkeys(alerts)), "tables": sentences}


def _failure(table: NightTable) -> str:
    if table.outcome is None:
        return str(table.error)
    return f"not verified: {'; '.join(table.outcome.problems)}" if table.outcome.problems else ""
