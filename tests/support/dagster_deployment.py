"""A whole Dagster deployment of real processes on the loopback: code server, daemon and, where wanted, the webserver.

Nothing here stands in for Dagster: runs go through the queue, each in a process of its own, and what happened is read
from the instance's own storage (SQLite) afterwards.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import yaml
from dagster import DagsterEventType as Event

from support.unprivileged import obeying_permissions

__all__ = ["JOB", "LOCATION", "Deployment", "Event", "Span", "eventually"]

T = TypeVar("T")

SETTINGS = Path(__file__).parent.parent.parent / "sensors" / "dagster.yaml"
LOCATION = "soak"
# The job that "Materialize" launches on the page of an asset.
JOB = "__ASSET_JOB"
_REPOSITORY = "__repository__"
_ENDED = frozenset({Event.STEP_SUCCESS, Event.STEP_FAILURE, Event.STEP_UP_FOR_RETRY})
_CODE = """
import dagster as dg

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_job, build_dv_sensor
from dv_maintenance.service.tables_file import WatchConfig

tables = WatchConfig.load({tables!r}).tables
defs = dg.Definitions(
    assets=build_dv_assets(tables),
    jobs=[build_dv_job(tables)],
    sensors=[build_dv_sensor(tables, name=name, jobs=jobs, minimum_interval_seconds=1) for name, jobs in {sensors!r}],
    resources={{"spark": SparkResource(engine={engine!r})}},
    executor=dg.in_process_executor,
)
"""

# Dagster inspects backfills twice a minute, and has no setting for that.
_DAEMON = """
from dagster._daemon import controller

controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 3

from dagster._daemon.cli import main

main()
"""


@dataclass(frozen=True, slots=True)
class Span:
    """From when until when a run, or a step of it, was at work; seconds since the epoch."""

    run: str
    start: float
    end: float

    def overlaps(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


def eventually(what: str, probe: Callable[[], T | None], *, seconds: float = 300, every: float = 0.3) -> T:
    """The first true result of ``probe``. Raises AssertionError if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {what}"
        time.sleep(every)
    return found


class Deployment:
    """``folder`` holds everything: the instance, the code location, a log file per process.

    ``tables_file``: the tables to maintain, with the ``engine``. ``sensors``: jobs by name of the sensor;
    they are stopped, and evaluate every few seconds once they are switched on. ``others``: more code locations with
    such sensors, the file of tables by name. The instance has the settings that ``sensors/dagster.yaml`` recommends,
    but monitors its processes every other second.
    """

    def __init__(
        self,
        folder: Path,
        tables_file: Path,
        *,
        sensors: Mapping[str, Sequence[str]],
        engine: str = "local",
        others: Mapping[str, Path] | None = None,
    ) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self._code: dict[str, Path] = {}
        for location, tables in {LOCATION: tables_file, **(others or {})}.items():
            code = self._code[location] = folder / f"location_{location}.py"
            wanted = [(name, list(jobs)) for name, jobs in sensors.items()]
            code.write_text(_CODE.format(tables=str(tables), sensors=wanted, engine=engine))
        settings = yaml.safe_load(SETTINGS.read_text())
        sooner = {"poll_interval_seconds", *settings["run_monitoring"]} - {"enabled", "max_runtime_seconds"}
        settings["run_monitoring"] |= dict.fromkeys(sooner, 2)
        settings["telemetry"] = {"enabled": False}
        (self.home / "dagster.yaml").write_text(yaml.safe_dump(settings))
        self.instance = dg.DagsterInstance.from_config(str(self.home))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._web: int | None = None

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """All of them, and returns once the page's API answers and the daemon is at work."""
        self._web = _free_port()
        ports = {location: _free_port() for location in self._code}
        servers = [
            {"grpc_server": {"host": "127.0.0.1", "port": port, "location_name": location}}
            for location, port in ports.items()
        ]
        workspace = self.folder / "workspace.yaml"
        workspace.write_text(yaml.safe_dump({"load_from": servers}))
        for location, port in ports.items():
            code = ["-p", str(port), "-f", str(self._code[location])]
            self._run(f"code_{location}", "-m", "dagster", "api", "grpc", "-h", "127.0.0.1", *code)
        eventually("the code servers listen", lambda: self._alive() and all(map(_listens, ports.values())))
        self._run("daemon", "-c", _DAEMON, "run", "-w", str(workspace))
        web = ["-h", "127.0.0.1", "-p", str(self._web), "-w", str(workspace)]
        self._run("web", "-m", "dagster_webserver", *web)
        eventually("the webserver knows the locations", lambda: self._alive() and self._knows_the_locations())
        eventually("the daemon is at work", lambda: self._alive() and self.instance.get_daemon_statuses())

    def stop(self) -> None:
        """Every process and what it started."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
        self.instance.dispose()

    def crash(self) -> None:
        """SIGKILL to all of them at once, runs included, as when the host goes down. ``start`` brings it up again."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def owns(self, process: int) -> bool:
        """Whether it is one of the deployment's processes."""
        try:
            return os.getpgid(process) in {each.pid for each in self._processes}
        except ProcessLookupError:
            return False

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*obeying_permissions(), sys.executable, *arguments],
                    cwd=self.folder,
                    env={**os.environ, "DAGSTER_HOME": str(self.home)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _alive(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                logs = [f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log"))]
                raise AssertionError("\n".join(["a process of the deployment is gone", *logs]))
        return True

    def _knows_the_locations(self) -> bool:
        with suppress(OSError, json.JSONDecodeError):
            found = self.ask("{locationStatusesOrError {... on WorkspaceLocationStatusEntries {entries {loadStatus}}}}")
            return [entry["loadStatus"] for entry in found["entries"]] == ["LOADED"] * len(self._code)
        return False

    # -- what the page does ----------------------------------------------------------------------------------------

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The one answer to a GraphQL query or mutation with one field."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._web}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: dict[str, dict[str, dict[str, Any]]] = json.load(response)
        assert "errors" not in answer, answer["errors"]
        ((_, found),) = answer["data"].items()
        return found

    def switch_on(self, *sensors: str) -> None:
        """In each code location."""
        for location, sensor in product(self._code, sensors):
            selector = {"repositoryLocationName": location, "repositoryName": _REPOSITORY, "sensorName": sensor}
            answer = self.ask(
                "mutation($s: SensorSelector!) {startSensor(sensorSelector: $s)"
                " {__typename ... on PythonError {message}}}",
                s=selector,
            )
            assert answer["__typename"] == "Sensor", answer

    def launch(self, *assets: str, tags: Mapping[str, str] | None = None) -> str:
        """Materialize assets in one run, by the names that the page shows; the run's id."""
        chosen = {"assetSelection": [{"path": asset.split("/")} for asset in assets], "assetCheckSelection": []}
        selector = {"repositoryLocationName": LOCATION, "repositoryName": _REPOSITORY, "jobName": JOB} | chosen
        metadata = {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]}
        answer = self.ask(
            "mutation($p: ExecutionParams!) {launchPipelineExecution(executionParams: $p)"
            " {__typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}",
            p={"selector": selector, "mode": "default", "runConfigData": "{}", "executionMetadata": metadata},
        )
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def cancel(self, run: str) -> None:
        """As the page does. Nothing happens to a run that is over by then."""
        answer = self.ask(
            "mutation($r: String!) {terminateRun(runId: $r) {__typename ... on TerminateRunFailure {message}"
            " ... on PythonError {message}}}",
            r=run,
        )
        assert answer["__typename"] == "TerminateRunSuccess" or self.run(run).is_finished, answer

    def backfill(self, asset: str, partitions: Iterable[str]) -> str:
        """Materialize partitions of an asset; the backfill's id."""
        answer = self.ask(
            "mutation($p: LaunchBackfillParams!) {launchPartitionBackfill(backfillParams: $p)"
            " {__typename ... on LaunchBackfillSuccess {backfillId} ... on PythonError {message}}}",
            p={"assetSelection": [{"path": asset.split("/")}], "partitionNames": list(partitions)},
        )
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return str(answer["backfillId"])

    # -- what happened ---------------------------------------------------------------------------------------------

    def run(self, run: str) -> dg.DagsterRun:
        found = self.instance.get_run_by_id(run)
        assert found is not None, run
        return found

    def finished(self, run: str, *, seconds: float = 300) -> dg.DagsterRun:
        """The run once it is over, however it ended."""
        eventually(f"run {run} is over", lambda: self._alive() and self.run(run).is_finished, seconds=seconds)
        return self.run(run)

    def events(self, run: str, *kinds: Event) -> list[Event]:
        """What a run went through, of these kinds, in order."""
        return [entry.dagster_event.event_type for entry in self._log(run, kinds) if entry.dagster_event]

    def steps(self, run: str) -> list[Span]:
        """Each attempt of each step of a run, in order; one cut short lasts until the end of the run."""
        started: dict[str | None, float] = {}
        spans = []
        for entry in self._log(run, (Event.STEP_START, Event.STEP_RESTARTED, *_ENDED)):
            event = entry.dagster_event
            assert event is not None
            if event.event_type in _ENDED:
                # A step that failed before its body began has no start.
                spans.append(Span(run, started.pop(event.step_key, entry.timestamp), entry.timestamp))
            else:
                started[event.step_key] = entry.timestamp
        record = self.instance.get_run_record_by_id(run)
        end = (record and record.end_time) or float("inf")
        return [*spans, *(Span(run, start, end) for start in started.values())]

    def materialized(self, run: str) -> dict[str, dict[str, Any]]:
        """Numbers and texts of what a run materialized, by the asset's name; of partitions the last one's."""
        found = {}
        for entry in self._log(run, (Event.ASSET_MATERIALIZATION,)):
            asset = entry.asset_materialization
            assert asset is not None
            found[asset.asset_key.to_user_string()] = {key: value.value for key, value in asset.metadata.items()}
        return found

    def process_of(self, run: str) -> int | None:
        """The process in which a run is at work; ``None`` before it has one."""
        for entry in self._log(run, (Event.ENGINE_EVENT,)):
            pid = entry.dagster_event.engine_event_data.metadata.get("pid") if entry.dagster_event else None
            if pid is not None:
                return int(str(pid.value))
        return None

    def ticks(self) -> Iterator[Any]:
        """Every tick of every sensor (``InstigatorTick``)."""
        from dagster._core.definitions.run_request import InstigatorType

        for state in self.instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
            yield from self.instance.get_ticks(state.instigator_origin_id, state.selector_id)

    def said(self, tick: Any) -> str:
        """What a tick shows on the page: why it was skipped, and its log."""
        from dagster._core.definitions.instigation_logger import get_instigation_log_records

        records = [] if tick.log_key is None else get_instigation_log_records(self.instance, tick.log_key)
        lines = [re.sub(rf"^{_REPOSITORY} - \S+ - ", "", record["msg"]) for record in records]
        return "\n".join(filter(None, [*lines, tick.skip_reason, tick.error and tick.error.message]))

    def later(self, seconds: float) -> None:
        """Everything on record about runs so far happened that much longer ago."""
        history = self.home / "history"
        with closing(sqlite3.connect(history / "runs.db", timeout=60)) as runs, runs:
            runs.execute("update runs set start_time = start_time - ?1, end_time = end_time - ?1", (seconds,))
            for column in ("create_timestamp", "update_timestamp"):
                back = f"strftime('%Y-%m-%d %H:%M:%f', {column}, '-{seconds} seconds')"
                runs.execute(f"update runs set {column} = {back}")
        for file in (history / "runs").glob("*-*.db"):
            with closing(sqlite3.connect(file, timeout=60)) as log, log:
                for number, text in log.execute("select id, event from event_logs").fetchall():
                    event = json.loads(text)
                    event["timestamp"] -= seconds
                    log.execute("update event_logs set event = ? where id = ?", (json.dumps(event), number))

    def _log(self, run: str, kinds: Iterable[Event]) -> Sequence[Any]:
        return self.instance.all_logs(run, of_type=set(kinds))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
