"""Tables under a real Airflow while writers keep changing them: is each maintained, once per change, without a storm?

    python benchmarks/soak_airflow.py [--minutes 10] [--tables 3] [--writers 4] [--seed 1] [--keep]

Scheduler, triggerer, DAG processor and API server (SQLite, LocalExecutor) on this machine, a DAG per table that a
watcher starts, the local engine. Writers append and delete, and remember what each table must contain. In the middle
the triggerer is killed, and started again half a minute later. Then the writers stop, and the tables come to rest.
Prints what happened; ends with 1 if a claim fails. Needs `make airflow-environment`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from soak_dagster import Claims, WrittenTable

from dv_maintenance.maintenance.health import health
from dv_maintenance.service.inspection import inspect_tables
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.tables import open_table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.airflow_stack import Airflow, eventually

NO_LIMITS = [f"{name}: {{warn: {top}, error: {top}}}" for name, top in {"deleted_ratio": 1, "retention": "0s"}.items()]
EVERY_SECONDS = 5
PAUSE_SECONDS = 2.0
WITHOUT_TRIGGERER_SECONDS = 30.0
REST_SECONDS = 900.0
QUIET_SECONDS = 30.0


class Soak:
    def __init__(self, folder: Path, tables: int, writers: int, seed: int) -> None:
        places = [folder / "lake" / f"t{number}" for number in range(tables)]
        self.tables = [WrittenTable(place, random.Random(seed + number)) for number, place in enumerate(places)]
        self.file = folder / "tables.yaml"
        lines = [
            "name: soak",
            f"sensor: {{every_seconds: {EVERY_SECONDS}}}",
            "spark: {engine: local}",
            "defaults:",
            "  jobs: [optimize, vacuum]",
            # Of what a writer just deleted, a check would say that it is too much.
            f"  policy: {{vacuum_every: 60s, checks: {{{', '.join(NO_LIMITS)}}}}}",
            "tables:",
        ]
        self.file.write_text("\n".join([*lines, *(f"- {{path: {place}}}" for place in places)]))
        self.airflow = Airflow(folder / "airflow")
        (self.airflow.dags / "soak.py").write_text(
            f"from dv_maintenance.airflow import dv_maintenance_dags\n\ndv_maintenance_dags({str(self.file)!r})\n"
        )
        self.dags = [f"soak.{table.name}" for table in self.tables]
        self.chances = [random.Random(seed * 100 + number) for number in range(writers)]
        self.over = threading.Event()
        self.errors: list[BaseException] = []

    def last(self, seconds: float) -> None:
        self.airflow.start()
        self.airflow.unpause(*self.dags, "soak_vacuum")
        eventually(
            "the tables are watched", lambda: len(self.airflow.rows("select 1 from asset_watcher")) >= len(self.dags)
        )
        threads = [threading.Thread(target=self._write, args=(chance,)) for chance in self.chances]
        for thread in threads:
            thread.start()
        self.over.wait(seconds / 2)
        self.airflow.kill("triggerer")
        self.over.wait(WITHOUT_TRIGGERER_SECONDS)
        self.airflow.start("triggerer")
        self.over.wait(seconds / 2 - WITHOUT_TRIGGERER_SECONDS)
        self.over.set()
        for thread in threads:
            thread.join()

    def _write(self, chance: random.Random) -> None:
        try:
            while not self.over.wait(PAUSE_SECONDS * chance.random() * 2):
                table = chance.choice(self.tables)
                with table.lock:
                    table.change()
        except BaseException as error:  # noqa: BLE001 (reported at the end)
            self.errors.append(error)
            self.over.set()

    def come_to_rest(self) -> float:
        """Seconds until nothing was due any more and no run was under way, for a while."""
        start, quiet = time.monotonic(), [0.0]

        def at_rest() -> bool:
            active = any(run["state"] in {"queued", "running"} for run in self.airflow.runs())
            due = any(each.due or each.error for each in inspect_tables(WatchConfig.load(str(self.file)))[0])
            if active or due:
                quiet[0] = 0.0
            elif not quiet[0]:
                quiet[0] = time.monotonic()
            return bool(quiet[0]) and time.monotonic() - quiet[0] > QUIET_SECONDS

        eventually("the tables come to rest", at_rest, seconds=REST_SECONDS, every=2)
        return quiet[0] - start


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def overlapping(what: list[dict[str, Any]]) -> list[str]:
    """Neighbours in time that were at work together."""
    spans = sorted((seconds(each["start"]), seconds(each["end"]), each["run"]) for each in what if each["end"])
    return [f"{one[2]} and {two[2]}" for one, two in pairwise(spans) if two[0] < one[1]]


def report(soak: Soak, rest: float) -> list[str]:
    claims, airflow = Claims(), soak.airflow
    runs, tasks = airflow.runs(), airflow.tasks()
    events = {table.name: airflow.events(f"file://{table.path}?dv=due&name=%") for table in soak.tables}
    payloads = {name: [each["payload"] for each in found] for name, found in events.items()}
    idle = [
        run
        for run in runs
        if run["dag"] in soak.dags
        and all(_did_nothing(airflow.xcom(run["dag"], run["run"], task)) for task in ("optimize", "vacuum"))
    ]
    claims.tell("commits of the writers", sum(table.changes for table in soak.tables))
    claims.tell("  races that they lost to maintenance", sum(table.lost_races for table in soak.tables))
    claims.tell("events", {name: len(found) for name, found in events.items()})
    claims.tell("runs", {dag: sum(run["dag"] == dag for run in runs) for dag in soak.dags})
    claims.tell("runs of vacuums", sum(run["dag"] == "soak_vacuum" for run in runs))
    claims.tell(
        "events of vacuums", {each.name: len(airflow.events(f"file://{each.path}?dv=vacuum")) for each in soak.tables}
    )
    claims.tell("  by state", dict(Counter(run["state"] for run in runs)))
    claims.tell("  with nothing left to do", len(idle))
    claims.tell("tasks", dict(Counter((task["task"], task["state"]) for task in tasks)))
    claims.tell("seconds until nothing was due any more", f"{rest:.0f}")

    claims.hold("the writers did their work", [repr(error) for error in soak.errors])
    claims.hold(
        "every table contains what was written", [each for table in soak.tables if (each := table.difference())]
    )
    left = [table.name for table in soak.tables if health(open_table(str(table.path)).snapshot()).counts.files_with_dv]
    claims.hold("no deletion vector is left", left)
    claims.hold("every run succeeded", [run["run"] for run in runs if run["state"] != "success"])
    claims.hold("no task was tried twice", [task["run"] for task in tasks if task["try"] > 1])
    of_dag = {dag: [run for run in runs if run["dag"] == dag] for dag in soak.dags}
    claims.hold("runs of a table never overlap", [each for found in of_dag.values() for each in overlapping(found)])
    of_table = {dag: [task for task in tasks if task["dag"] == dag] for dag in soak.dags}
    claims.hold("tasks of a table never overlap", [each for found in of_table.values() for each in overlapping(found)])
    claims.hold("no event fired twice for one data change", list(_repeated(payloads)))
    storm = [
        dag for dag, table in zip(soak.dags, soak.tables, strict=True) if len(of_dag[dag]) > len(events[table.name])
    ]
    claims.hold("no more runs than events", storm)
    many = [table.name for table in soak.tables if len(events[table.name]) > table.changes + 5]
    claims.hold("no more events than changes, and a few vacuums", many)
    return claims.failed


def _did_nothing(shown: dict[str, Any] | None) -> bool:
    return shown is None or not (shown.get("steps") or shown.get("files_deleted"))


def _repeated(payloads: dict[str, list[dict[str, Any]]]) -> Any:
    """A rewrite that was due before at the same data."""
    for name, found in payloads.items():
        seen = Counter(each["data_version"] for each in found if "optimize" in each["due"])
        newer = [each["data_version"] for each in found]
        yield from (f"{name}: {version} {times} times" for version, times in seen.items() if times > 1)
        if newer != sorted(newer):
            yield f"{name}: not in order"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tables", type=int, default=3)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", action="store_true", help="keep tables and Airflow's folder, and print their location"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, options.tables, options.writers, options.seed)
    try:
        soak.last(options.minutes * 60)
        failed = report(soak, soak.come_to_rest())
    finally:
        soak.over.set()
        soak.airflow.stop()
        if options.keep:
            print(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
