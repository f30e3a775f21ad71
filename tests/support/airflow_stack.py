"""A whole Airflow of its own: scheduler, triggerer, DAG processor and API server as processes on 127.0.0.1."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from dv_maintenance.service.cursor import Cursor
from dv_maintenance.tables import open_table
from support.places import ROOT
from support.unprivileged import obeying_permissions

__all__ = [
    "ENVIRONMENT",
    "EVERY_SECONDS",
    "PARTS",
    "Airflow",
    "due",
    "ended",
    "eventually",
    "maintain",
    "watched_up_to_now",
    "without_airflow",
]

ENVIRONMENT = Path(os.environ.get("DVM_AIRFLOW", ROOT / ".cache" / "airflow"))
"""Where ``make airflow-environment`` puts Airflow: an environment of its own, from the same lock."""
EVERY_SECONDS = 3
"""How often watchers look."""
PARTS = ("api-server", "dag-processor", "scheduler", "triggerer")


def without_airflow(environment: Mapping[str, str]) -> dict[str, str]:
    """Nothing of the caller's: a developer may have an Airflow of their own. Bytecode on disk: it imports for 20 s."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("AIRFLOW", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"))
    }


class Airflow:
    """SQLite and LocalExecutor below ``home``; ``home/dags`` has the DAGs."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.dags = home / "dags"
        self.dags.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.env = without_airflow(os.environ) | {
            "PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),  # not the checkout that the environment was made for
            "AIRFLOW_HOME": str(home),
            # On a busy machine a writer holds SQLite for longer than the five seconds others wait by default.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}?timeout=60",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": "of-a-test",
            "AIRFLOW__API_AUTH__JWT_SECRET": "of-a-test-and-long-enough-for-the-algorithm-that-signs-the-tokens",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "PYSPARK_PYTHON": str(ENVIRONMENT / "bin" / "python"),
            **settings,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cli(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            [ENVIRONMENT / "bin" / "airflow", *words], env=self.env, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def start(self, *parts: str) -> None:
        """All parts unless some are named; returns when the API answers."""
        if not (self.home / "airflow.db").exists():
            self.cli("db", "migrate")
        for part in parts or PARTS:
            quiet = ["--skip-serve-logs"] if part in {"scheduler", "triggerer"} else []
            log = (self.home / f"{part}.log").open("ab")
            self.processes[part] = subprocess.Popen(
                [*obeying_permissions(), ENVIRONMENT / "bin" / "airflow", part, *quiet],
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            log.close()
        eventually("the API answers", self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.api("GET", "/monitor/health"))
        except (OSError, urllib.error.URLError):
            return False

    def kill(self, part: str) -> None:
        """SIGKILL, with everything it started."""
        process = self.processes.pop(part)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.processes.clear()

    # -- what it knows -----------------------------------------------------------------------------------------------

    def api(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/v2{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token()}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def _token(self) -> str:
        if not hasattr(self, "_known_token"):
            with urllib.request.urlopen(f"{self.url}/auth/token", timeout=30) as answer:
                self._known_token = json.loads(answer.read())["access_token"]
        return str(self._known_token)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """From the metadata database, read only."""
        connection = sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True, timeout=30)
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def unpause(self, *dags: str) -> None:
        for dag in dags:
            eventually(f"the DAG {dag} is there", lambda dag=dag: self.rows("select 1 from dag where dag_id = ?", dag))
            self.api("PATCH", f"/dags/{dag}?update_mask=is_paused", {"is_paused": False})

    def runs(self, dag: str | None = None) -> list[dict[str, Any]]:
        """Runs of a DAG, oldest first."""
        found = self.rows(
            "select dag_id, run_id, run_type, state, queued_at, start_date, end_date from dag_run"
            + (" where dag_id = ?" if dag else "")
            + " order by id",
            *([dag] if dag else []),
        )
        return [dict(zip(("dag", "run", "type", "state", "queued", "start", "end"), row, strict=True)) for row in found]

    def tasks(self, dag: str | None = None) -> list[dict[str, Any]]:
        found = self.rows(
            "select dag_id, run_id, task_id, state, start_date, end_date, try_number, pid from task_instance"
            + (" where dag_id = ?" if dag else "")
            + " order by start_date",
            *([dag] if dag else []),
        )
        names = ("dag", "run", "task", "state", "start", "end", "try", "pid")
        return [dict(zip(names, row, strict=True)) for row in found]

    def xcom(self, dag: str, run: str, task: str, key: str = "return_value") -> Any:
        found = self.rows(
            "select value from xcom where dag_id = ? and run_id = ? and task_id = ? and key = ?", dag, run, task, key
        )
        return json.loads(found[0][0]) if found else None

    def events(self, asset: str) -> list[dict[str, Any]]:
        """The payloads of an asset's events, oldest first. ``asset``: a name, or a pattern of SQL's LIKE."""
        found = self.rows(
            "select e.extra from asset_event e join asset a on a.id = e.asset_id where a.name like ? order by e.id",
            asset,
        )
        return [json.loads(extra) for (extra,) in found]


def eventually(what: str, true: Callable[[], Any], *, seconds: float = 120, every: float = 0.5) -> Any:
    """What ``true`` returns, once that is true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := true():
            return found
        time.sleep(every)
    raise AssertionError(f"not within {seconds} s: {what}")


def maintain(airflow: Airflow, folder: Path, name: str, *tables: str) -> Path:
    """A file of tables, and a DAG for each, unpaused and watching."""
    file = folder / "tables.yaml"
    entries = [f"- {{path: {table}, jobs: [optimize]}}" for table in tables]
    head = [f"name: {name}", f"sensor: {{every_seconds: {EVERY_SECONDS}}}", "spark: {engine: local}", "tables:"]
    file.write_text("\n".join([*head, *entries]))
    (airflow.dags / f"{name}.py").write_text(
        f"from dv_maintenance.airflow import dv_maintenance_dags\n\ndv_maintenance_dags({str(file)!r}, fail_on=None)\n"
    )
    airflow.unpause(*(f"{name}.{table}" for table in tables))
    for table in tables:
        watched_up_to_now(airflow, folder / table)
    return file


def due(table: Path) -> str:
    """The asset that a watcher of the table updates, in whichever file of tables."""
    return f"file://{table}?dv=due&name=%"


def watched_up_to_now(airflow: Airflow, table: Path) -> None:
    """The watcher has seen the newest version. It fires for what it sees before it writes down that it saw it."""
    version = open_table(str(table)).version()
    stored = airflow.rows("select 1 from sqlite_master where name = 'asset_state_store'")

    def seen() -> bool:
        if not stored:  # before Airflow 3.3
            newest = open_table(str(table)).version()
            return f"{table.name}: version {newest}, due: nothing" in (airflow.home / "triggerer.log").read_text()
        kept = airflow.rows(
            "select s.value from asset_state_store s join asset a on a.id = s.asset_id where a.name like ?",
            due(table),
        )
        cursors = [Cursor.from_json(json.loads(value)["cursor"]) for (value,) in kept]
        return version in {state.inspection.version for cursor in cursors for state in cursor.tables.values()}

    eventually(f"{table.name} was seen at version {version}", seen)


def ended(airflow: Airflow, dag: str, runs: int, watched: Path | None = None) -> list[dict[str, Any]]:
    """All runs, once that many have ended and the table's watcher has seen what they wrote."""

    def all_of_them() -> bool:
        found = airflow.runs(dag)
        return len(found) >= runs and all(run["state"] in {"success", "failed"} for run in found)

    eventually(f"{runs} runs of {dag}", all_of_them, seconds=300)
    if watched is not None:
        watched_up_to_now(airflow, watched)
        eventually(f"no run of {dag} is at work", all_of_them)
    return airflow.runs(dag)
