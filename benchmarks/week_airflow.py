"""A week of accidents under a real Airflow: is everything that is due maintained, and every wait explained?

    python benchmarks/week_airflow.py [--formats delta,lance,...] [--only DAY ...] [--patience SECONDS] [--keep]

Scheduler, triggerer, DAG processor and API server (SQLite, LocalExecutor) on this machine, a DAG per table that a
watcher starts, the local engine. Runs are canceled on the page, processes are killed, folders vanish, files are
damaged, rights are taken away, tables are created again, a deadline can't be kept, the host goes down, and two DAG
files watch one table. See ``week``. Prints what happened; ends with 1 if a claim fails. Needs
``make airflow-environment``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from week import Lake, LakeTable, Run, Week, main, mentions

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.airflow_stack import Airflow, eventually

EVERY_SECONDS = 5
SETTINGS = (f"sensor: {{every_seconds: {EVERY_SECONDS}}}", "spark: {engine: local}")
VACUUM = "week_vacuum"
_CODE = "from dv_maintenance.airflow import dv_maintenance_dags\n\ndv_maintenance_dags({file!r}, fail_on=None)\n"
_STATES = {"success": "success", "failed": "failed"}
# A line of the triggerer: when, how bad, what, and the logger.
_LINE = re.compile(r"^(\S+Z) \[(\w+)\s*\] (.*?)\s+\[(dv_maintenance\.\S+|airflow\.jobs\S+)\](.*)$")
_FIRED = "Trigger fired event"
_MILLISECONDS = range(1_500_000_000_000, 2_500_000_000_000)


class Stack:
    """A watcher says once what stands in the way, and again when that changes.

    It learns of a run from the run's own task, so of none that was marked before its task began.
    """

    shared = "is watched as"
    forgetful = True

    # The watcher waits for five seconds after an event; the scheduler creates a run every few seconds.
    grace = 60.0

    def __init__(self, folder: Path, lake: Lake) -> None:
        self.lake = lake
        # By default a scheduler looks every five minutes for the tasks of one that is gone.
        self.airflow = Airflow(folder, AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL="30")
        for file in (lake.file, lake.twin):
            (self.airflow.dags / f"{file.stem}.py").write_text(_CODE.format(file=str(file)))
        self.dags = {f"week.{name}": name for name in lake.tables} | {f"twin.{Lake.OTHER}": Lake.OTHER, VACUUM: VACUUM}

    def start(self) -> None:
        begun = time.time()
        self.airflow.start()
        self.airflow.unpause(*self.dags)

        def watched() -> bool:
            lines = [text for _, _, text in self._lines(begun) if text.startswith("trigger ID")]
            return len(lines) >= watchers

        watchers = len(self.dags)
        eventually("all tables are watched", watched, seconds=600)
        if not self.airflow.runs():
            eventually("and were seen", lambda: len(self._seen()) >= watchers, seconds=600)

    def _seen(self) -> list[Any]:
        return self.airflow.rows("select asset_id from asset_state_store")

    def stop(self) -> None:
        self.airflow.stop()

    def crash(self) -> None:
        for part in list(self.airflow.processes):
            os.killpg(self.airflow.processes[part].pid, signal.SIGKILL)
        # Tasks are in sessions of their own, and outlive whoever started them.
        for run in self.active().values():
            self.kill(run)
        for part in list(self.airflow.processes):
            self.airflow.processes.pop(part).wait()

    def after_crash(self, week: Week, table: LakeTable, since: float) -> None:
        """The scheduler notices that the task's process is gone."""

    def runs(self) -> list[Run]:
        tasks = self.airflow.tasks()
        return [self._run(run, tasks) for run in self.airflow.runs()]

    def _run(self, run: dict[str, Any], tasks: list[dict[str, Any]]) -> Run:
        own = [task for task in tasks if task["run"] == run["run"] and task["dag"] == run["dag"]]
        own = [task for task in own if task["task"] in {"optimize", "vacuum"} and task["start"]]
        shown = [self.airflow.xcom(run["dag"], run["run"], task["task"]) for task in own]
        return Run(
            run["run"],
            self.dags.get(run["dag"], run["dag"]),
            "vacuum" if run["dag"] == VACUUM else "optimize",
            _STATES.get(run["state"], "active"),  # type: ignore[arg-type]
            _seconds(run["queued"]),
            [(_seconds(task["start"]), _seconds(task["end"]) if task["end"] else time.time()) for task in own],
            any(_worked(each) for each in shown if each) if shown else None,
        )

    def active(self) -> dict[str, str]:
        found = {self.dags[run["dag"]]: run["run"] for run in self.airflow.runs() if run["state"] not in _STATES}
        return found | ({Lake.TWICE: found[Lake.OTHER]} if Lake.OTHER in found else {})

    def hold(self, run: str) -> None:
        """A process that is in a call of the system, such as a commit's, stops only after it."""
        self._signal(run, signal.SIGSTOP)
        eventually("it is held", lambda: all(map(_is_stopped, self._at_work(run))), every=0.01)

    def release(self, run: str) -> None:
        self._signal(run, signal.SIGCONT)

    def cancel(self, run: str) -> None:
        self._mark_failed(self._dag_of(run), run)
        eventually("its tasks have ended", lambda: not self._processes(run), every=0.2)

    def cancel_early(self, table: LakeTable, job: str) -> bool:
        dag = VACUUM if job == "vacuum" else f"week.{table.name}"
        known = {run["run"] for run in self.airflow.runs(dag)}
        new = eventually(
            f"a run of {dag}",
            lambda: [run["run"] for run in self.airflow.runs(dag) if run["run"] not in known],
            seconds=300,
            every=0.05,
        )
        self._mark_failed(dag, new[0])
        eventually("its tasks have ended", lambda: not self._processes(new[0]), every=0.2)
        states = {task["state"] for task in self.airflow.tasks(dag) if task["run"] == new[0]}
        return "success" not in states

    def _mark_failed(self, dag: str, run: str) -> None:
        self.airflow.api("PATCH", f"/dags/{dag}/dagRuns/{quote(run, safe='')}", {"state": "failed"})

    def kill(self, run: str) -> None:
        self._signal(run, signal.SIGKILL)

    def _signal(self, run: str, number: int) -> None:
        for process in self._at_work(run):
            os.kill(process, number)

    def _at_work(self, run: str) -> list[int]:
        """By now, others may have the numbers of processes that have ended."""
        tasks = self.airflow.tasks()
        return [task["pid"] for task in tasks if task["run"] == run and task["state"] == "running" and task["pid"]]

    def _dag_of(self, run: str) -> str:
        return next(str(each["dag"]) for each in self.airflow.runs() if each["run"] == run)

    def _processes(self, run: str) -> list[int]:
        pids = [task["pid"] for task in self.airflow.tasks() if task["run"] == run and task["pid"]]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    def words(self, table: str, since: float) -> list[str]:
        names = (Lake.TWICE, Lake.OTHER) if table == Lake.TWICE else (table,)
        refused = self.airflow.rows("select message from dag_warning where dag_id = ?", f"week.{table}")
        said = [text for _, _, text in self._lines(since) if any(mentions(text, name) for name in names)]
        return [*(message.splitlines()[0] for (message,) in refused), *said]

    def last_word(self, table: str, since: float) -> str:
        """A line is not repeated as long as nothing changes: it may be older than the wait."""
        return next(reversed(self.words(table, since - self.grace)), "")

    def later(self, seconds: float) -> None:
        """While the triggerer was down."""
        self.airflow.kill("triggerer")
        variables = self.airflow.api("GET", "/variables?limit=1000")["variables"]
        for each in variables:
            body = {"key": each["key"], "value": _earlier(each["value"], seconds)}
            self.airflow.api("PATCH", f"/variables/{quote(each['key'], safe='')}", body)
        with closing(sqlite3.connect(self.airflow.home / "airflow.db", timeout=60)) as database, database:
            query = "select asset_id, key, value from asset_state_store"
            for asset, key, value in database.execute(query).fetchall():
                change = "update asset_state_store set value = ? where asset_id = ? and key = ?"
                database.execute(change, (_earlier(value, seconds), asset, key))
            for table in ("dag_run", "task_instance"):
                # A run that was marked before anything began has no start.
                query = f"select id, start_date, end_date from {table} where end_date is not null"
                for number, *dates in database.execute(query).fetchall():
                    back = [date and str(datetime.fromisoformat(date) - timedelta(seconds=seconds)) for date in dates]
                    change = f"update {table} set start_date = ?, end_date = ? where id = ?"
                    database.execute(change, (*back, number))
        self.airflow.start("triggerer")

    def data_versions(self, table: str) -> set[str]:
        """Consumers are told by their own assets."""
        del table
        return set()

    def checks(self, table: str) -> dict[str, bool]:
        dag = f"week.{table}"
        ended = [
            task["run"] for task in self.airflow.tasks(dag) if task["task"] == "check" and task["state"] == "success"
        ]
        shown = self.airflow.xcom(dag, ended[-1], "check") if ended else {"findings": []}
        return {each["check"]: each["severity"] == "ok" for each in shown["findings"]}

    def claims(self) -> Iterator[tuple[str, list[str]]]:
        died = [
            line[:500]
            for line in self._log().splitlines()
            if re.search(r"Trigger failed|trigger .*exited|Traceback", line)
        ]
        yield "no watcher died", died

    def _log(self) -> str:
        file = self.airflow.home / "triggerer.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def _lines(self, since: float) -> list[tuple[float, str, str]]:
        """When, by whom, and what; an event with what it carries."""
        found = []
        for line in self._log().splitlines():
            match = _LINE.match(line)
            if match is None or (at := datetime.fromisoformat(match[1]).timestamp()) < since:
                continue
            text = match[3]
            found.append((at, match[4], f"{text}{match[5]}" if text.startswith(_FIRED) else text))
        return found


def _worked(shown: dict[str, Any]) -> bool:
    """Of the vacuums, each table has a sentence."""
    vacuums = shown.get("tables", {}).values()
    return bool(shown.get("steps")) or any(not each.startswith("Nothing to do") for each in vacuums)


def _is_stopped(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "\nState:\tT" in status.read_text()


def _seconds(text: str | None) -> float:
    """Airflow writes UTC, without saying so."""
    return time.time() if text is None else datetime.fromisoformat(f"{text}+00:00").timestamp()


def _earlier(text: str, seconds: float) -> str:
    """JSON, in which times are epoch milliseconds, some of them in JSON in a text."""
    try:
        body = json.loads(text)
    except ValueError:
        return text
    return json.dumps(_moved(body, round(seconds * 1000)))


def _moved(value: Any, milliseconds: int) -> Any:
    match value:
        case dict():
            return {key: _moved(each, milliseconds) for key, each in value.items()}
        case list():
            return [_moved(each, milliseconds) for each in value]
        case int() if value in _MILLISECONDS:
            return value - milliseconds
        case str() if value.startswith("{"):
            return _earlier(value, milliseconds / 1000)
    return value


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda folder, lake: Stack(folder / "airflow", lake), SETTINGS))
