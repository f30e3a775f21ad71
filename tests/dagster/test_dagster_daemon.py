"""Under a real Dagster daemon, with a process per run: what is launched at one time, what fails and what is killed."""

from __future__ import annotations

import http.client
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from support.dagster_deployment import Deployment, Event, eventually
from support.read_only import read_only

from dv_maintenance.maintenance.checks import READABLE
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32())])
ROWS = [{"id": number, "day": date(2024, 11, 1 + number % 4)} for number in range(400)]
LEFT = [row for row in ROWS if row["id"] % 3]
DAYS = [f"2024-11-0{day}" for day in range(1, 5)]
SENSOR = "dv_accumulation"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    code: str


# A client of S3 does not repeat such a request by itself.
AWAY = Answer(400, "RequestTimeout")
DENIED = Answer(403, "AccessDenied")


class Gate:
    """In front of an S3: lets a table's log through, and its data only while nobody holds it up. Others pass.

    written : paths of the objects that it let somebody put.
    """

    def __init__(self, endpoint: str) -> None:
        self._upstream = urlsplit(endpoint)
        self._held: dict[str, threading.Event] = {}
        self._answers: dict[str, Answer] = {}
        self.written: list[str] = []
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if (answer := gate.answer(self.command, self.path)) is not None:
                    self._answer(answer.status, [], f"<Error><Code>{answer.code}</Code></Error>".encode())
                    return
                if self.command == "PUT":
                    gate.written.append(self.path)
                upstream = http.client.HTTPConnection(gate._upstream.hostname, gate._upstream.port)
                upstream.request(self.command, self.path, body, dict(self.headers))
                response = upstream.getresponse()
                self._answer(response.status, response.getheaders(), response.read())
                upstream.close()

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                sent = {name.lower(): value for name, value in headers} | {"connection": "close"}
                sent.pop("transfer-encoding", None)
                if self.command != "HEAD":
                    sent["content-length"] = str(len(body))
                self.send_response_only(status)
                for name, value in sent.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(BrokenPipeError):  # whoever asked was killed, or tired of waiting
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, command: str, path: str) -> Answer | None:
        """Its own answer; waits until it knows. It says at once whether a file exists: ticks ask."""
        data = urlsplit(path).path.endswith(".parquet")
        if data and command != "HEAD":
            for held in [opened for table, opened in self._held.items() if f"/{table}/" in path]:
                held.wait()
        given = next((answer for table, answer in self._answers.items() if f"/{table}/" in path), None)
        if given is AWAY:
            return given if data and command != "HEAD" else None
        return given if command in {"PUT", "DELETE"} else None

    @contextmanager
    def holding(self, table: str) -> Iterator[None]:
        self._held[table] = threading.Event()
        try:
            yield
        finally:
            self._held.pop(table).set()

    @contextmanager
    def answering(self, table: str, answer: Answer) -> Iterator[None]:
        """AWAY to all who want its data, DENIED to all who want to change something."""
        self._answers[table] = answer
        try:
            yield
        finally:
            del self._answers[table]

    def close(self) -> None:
        for held in self._held.values():
            held.set()
        self._server.shutdown()
        self._server.server_close()


class Lake:
    """The tables, each with 400 rows over 4 days in 2 files or more; nothing is due until somebody deletes. Maintenance
    reaches those in the bucket through the gate, everybody here past it. All but ``docs`` are Delta tables.
    """

    def __init__(self, folder: Path, bucket: str, options: dict[str, str], gate: Gate, lance: ModuleType) -> None:
        self._lance = lance
        self.file = folder / "tables.yaml"
        self._options = options
        settings = ", ".join(f"{key}: {value!r}" for key, value in (options | {"aws_endpoint": gate.endpoint}).items())
        remote = [
            f"- {{path: '{bucket}/{name}', storage_options: {{{settings}}}}}"
            for name in ("held", "away", "denied", "killed")
        ]
        self.file.write_text(
            "defaults: {policy: {min_file_size: 0}}\n"
            "tables:\n"
            "- {path: damaged}\n- {path: locked}\n- {path: late, policy: {erase_within: 8d, min_file_size: 0}}\n"
            "- {path: docs, format: lance}\n"
            "- {path: raced, partitions: {name: day, every: day, start: 2024-11-01}}\n" + "\n".join(remote)
        )
        self.tables: dict[str, TableSettings] = {table.name: table for table in WatchConfig.load(str(self.file)).tables}
        for table in self.tables.values():
            if table.format == "lance":
                lance.write_dataset(pa.Table.from_pylist(ROWS, SCHEMA), table.path, max_rows_per_file=200)
                continue
            builder = self._builder(table).create(SCHEMA, partition_by=["day"] if table.partitions else [])
            builder.append(pa.Table.from_pylist(ROWS, SCHEMA), files=2)

    def delete(self, name: str) -> int:
        """Every third row; the version."""
        if self.tables[name].format == "lance":
            dataset = self._lance.dataset(self.tables[name].path)
            dataset.delete("id % 3 = 0")
            return int(dataset.version)
        return self._builder(self.tables[name]).delete(
            lambda rows: pc.equal(pc.subtract(rows["id"], pc.multiply(pc.divide(rows["id"], 3), 3)), 0)
        )

    def is_clean(self, name: str) -> bool:
        return not health(self._open(name).snapshot()).counts.files_with_dv

    def rows(self, name: str) -> list[dict[str, Any]]:
        _, batches = read(self._open(name))
        return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["id"])

    def operations(self, name: str) -> list[str]:
        """Of every commit but the first two, which made the table."""
        return [entry.operation for entry in reversed(self._open(name).history(None))][2:]

    def _open(self, name: str) -> Any:
        table = self.tables[name]
        return open_table(table.path, table.format or "delta", self._options if table.storage_options else None)

    def _builder(self, table: TableSettings) -> DeltaBuilder:
        return DeltaBuilder(table.path, storage_options=self._options if table.storage_options else None)


@pytest.fixture(scope="module")
def gate(s3: tuple[str, dict[str, str]]) -> Iterator[Gate]:
    made = Gate(s3[1]["aws_endpoint"])
    yield made
    made.close()


@pytest.fixture(scope="module")
def lake(
    tmp_path_factory: pytest.TempPathFactory, gate: Gate, s3: tuple[str, dict[str, str]], pylance: ModuleType
) -> Lake:
    folder = tmp_path_factory.mktemp("lake")
    bucket, options = s3
    # A worker may come back to this module after another one.
    return Lake(folder, f"{bucket}/{uuid4().hex}", options, gate, pylance)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, lake: Lake, gate: Gate) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"), lake.file, sensors={SENSOR: ["optimize"]})
    try:
        made.start()
        made.switch_on(SENSOR)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module", autouse=True)
def race(deployment: Deployment, lake: Lake) -> tuple[str, str]:
    """A run and a backfill of the same table, launched from the page while the sensor sees that it is due. Started
    before the first test, which need not wait for them.
    """
    lake.delete("raced")
    span = {"dagster/asset_partition_range_start": DAYS[0], "dagster/asset_partition_range_end": DAYS[-1]}
    run = deployment.launch("raced/dv/raced_optimize", tags=span)
    backfill = deployment.backfill("raced/dv/raced_optimize", DAYS)
    eventually("the sensor saw that it is due", lambda: any(map(saw_it_due, deployment.ticks())))
    return run, backfill


def runs_of(deployment: Deployment, table: str, job: str = "optimize") -> list[dg.DagsterRun]:
    """Whoever launched them, oldest first."""
    key = dg.AssetKey([table, "dv", f"{table}_{job}"])
    return [run for run in reversed(deployment.instance.get_runs()) if key in (run.asset_selection or ())]


def started(deployment: Deployment, table: str) -> dg.DagsterRun:
    """The first run on a table, once it is in the middle of its step."""

    def found() -> dg.DagsterRun | None:
        runs = runs_of(deployment, table)
        return next((run for run in runs if deployment.events(run.run_id, Event.STEP_START)), None)

    return eventually(f"a run is at work on {table}", found, every=0.1)


def saw_it_due(tick: Any) -> bool:
    return bool(tick.run_ids) or "raced: optimize due" in (tick.skip_reason or "")


def over(deployment: Deployment, table: str) -> list[dg.DagsterRun]:
    """Every run on a table, once none is left to come."""

    def found() -> list[dg.DagsterRun] | None:
        runs = runs_of(deployment, table)
        return runs if runs and all(run.is_finished for run in runs) else None

    return eventually(f"the runs on {table} are over", found)


def assert_maintained(lake: Lake, table: str) -> None:
    """With one commit that did the work, and the rows as they were."""
    assert lake.rows(table) == LEFT
    assert lake.is_clean(table)
    assert lake.operations(table) == ["DELETE", "OPTIMIZE"]


@pytest.mark.deep
def test_two_jobs_on_one_table_take_turns(deployment: Deployment, lake: Lake, gate: Gate) -> None:
    with gate.holding("held"):
        lake.delete("held")
        optimize = started(deployment, "held").run_id
        vacuum = deployment.launch("held/dv/held_vacuum")

        def knows_its_place() -> bool:
            """It waits for the pool, in the queue or in its process; or it does not, and is at work already."""
            blocked = f"Run {vacuum} is blocked" in (deployment.folder / "daemon.log").read_text()
            return blocked or bool(deployment.events(vacuum, Event.STEP_START, Event.RUN_START))

        eventually("the vacuum has its place", knows_its_place)
        assert not deployment.run(optimize).is_finished
    assert deployment.finished(optimize).is_success
    assert deployment.finished(vacuum).is_success
    (rewritten,), (vacuumed,) = deployment.steps(optimize), deployment.steps(vacuum)
    assert rewritten.end <= vacuumed.start
    assert_maintained(lake, "held")


@pytest.mark.deep
def test_jobs_on_a_lance_table_take_turns_too(deployment: Deployment, lake: Lake) -> None:
    lake.delete("docs")
    launched = [deployment.launch(f"docs/dv/docs_{job}") for job in ("optimize", "vacuum")]
    assert all(deployment.finished(run).is_success for run in launched)
    runs = {run.run_id for job in ("optimize", "vacuum") for run in runs_of(deployment, "docs", job)}
    assert runs >= set(launched)
    spans = sorted((span for run in launched for span in deployment.steps(run)), key=lambda span: span.start)
    assert len(spans) == len(launched)
    assert not any(one.overlaps(other) for one, other in pairwise(spans))
    assert lake.rows("docs") == LEFT
    assert lake.is_clean("docs")
    assert lake.operations("docs").count("Rewrite") == 1


@pytest.mark.deep
def test_storage_that_is_away_for_a_moment_is_tried_again(deployment: Deployment, lake: Lake, gate: Gate) -> None:
    with gate.answering("away", AWAY):
        lake.delete("away")
        run = started(deployment, "away").run_id
        eventually("the step is to be tried again", lambda: deployment.events(run, Event.STEP_UP_FOR_RETRY))
    assert deployment.finished(run).is_success
    kinds = (Event.STEP_START, Event.STEP_UP_FOR_RETRY, Event.STEP_RESTARTED, Event.STEP_SUCCESS, Event.STEP_FAILURE)
    assert deployment.events(run, *kinds) == [
        Event.STEP_START,
        Event.STEP_UP_FOR_RETRY,
        Event.STEP_RESTARTED,
        Event.STEP_SUCCESS,
    ]
    assert [each.run_id for each in over(deployment, "away")] == [run]
    assert_maintained(lake, "away")


@pytest.mark.deep
def test_a_bucket_that_may_only_be_read_fails_at_once_and_nothing_is_rewritten(
    deployment: Deployment, lake: Lake, gate: Gate
) -> None:
    with gate.answering("denied", DENIED):
        lake.delete("denied")
        run = started(deployment, "denied").run_id
        failed = deployment.finished(run)
    assert_denied_once(deployment, failed, "HTTP 403 Forbidden (AccessDenied)")
    assert not [path for path in gate.written if "/denied/" in path]
    assert deployment.finished(deployment.launch("denied/dv/denied_optimize")).is_success
    assert_maintained(lake, "denied")


@pytest.mark.deep
def test_a_log_that_may_only_be_read_fails_at_once_and_nothing_is_rewritten(deployment: Deployment, lake: Lake) -> None:
    place = Path(lake.tables["locked"].path)
    lake.delete("locked")
    before = sorted(place.rglob("*.parquet"))
    with read_only(place / "_delta_log"):
        failed = deployment.finished(started(deployment, "locked").run_id)
        assert sorted(place.rglob("*.parquet")) == before
    assert_denied_once(deployment, failed, "_delta_log")
    assert deployment.finished(deployment.launch("locked/dv/locked_optimize")).is_success
    assert_maintained(lake, "locked")


@pytest.mark.deep
def test_a_deadline_that_can_not_be_kept_fails_its_check_and_maintenance_goes_on(
    deployment: Deployment, lake: Lake
) -> None:
    """Eight days to erase rows: seven in which the table keeps files, one between vacuums, and a margin are more."""
    lake.delete("late")
    assert deployment.finished(started(deployment, "late").run_id).is_success
    assert_maintained(lake, "late")

    def results() -> dict[str, AssetCheckExecutionRecordStatus]:
        keys = [dg.AssetCheckKey(dg.AssetKey("late"), name) for name in (READABLE, "erase_within")]
        found = deployment.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        return {key.name: record.status for key, record in found.items()}

    wanted = {
        READABLE: AssetCheckExecutionRecordStatus.SUCCEEDED,
        "erase_within": AssetCheckExecutionRecordStatus.FAILED,
    }
    eventually("the check that is named after it fails, and no other", lambda: results() == wanted)


def assert_denied_once(deployment: Deployment, failed: dg.DagsterRun, said: str) -> None:
    """One try of the step, no further run, and the reason where people and the sensor look for it."""
    assert failed.status == dg.DagsterRunStatus.FAILURE
    kinds = (Event.STEP_START, Event.STEP_UP_FOR_RETRY, Event.STEP_FAILURE)
    assert deployment.events(failed.run_id, *kinds) == [Event.STEP_START, Event.STEP_FAILURE]
    run = deployment.run(failed.run_id)
    assert said in run.tags["dv/not_retryable"]

    def explained() -> bool:
        return any(
            said in (tick.skip_reason or "") and "waiting for" in tick.skip_reason for tick in deployment.ticks()
        )

    eventually("a tick says why it waits", explained)


@pytest.mark.deep
def test_a_damaged_table_is_left_alone_and_maintained_when_it_is_mended(deployment: Deployment, lake: Lake) -> None:
    lake.delete("damaged")
    (victim,) = Path(lake.tables["damaged"].path).glob("deletion_vector_*.bin")
    away = victim.rename(victim.with_suffix(".away"))
    check = dg.AssetCheckKey(dg.AssetKey("damaged"), READABLE)

    def seen() -> bool:
        history = deployment.instance.event_log_storage.get_asset_check_execution_history(check, limit=1)
        return bool(history) and history[0].status == AssetCheckExecutionRecordStatus.FAILED

    def explained() -> bool:
        said = f"nothing is started on a damaged table: {victim.name}: it does not exist"
        return any(said in (tick.skip_reason or "") for tick in deployment.ticks())

    eventually("the sensor sees the damage", seen)
    eventually("a tick says why nothing is started", explained)
    assert not runs_of(deployment, "damaged")
    away.rename(victim)
    eventually("the table is maintained", lambda: lake.is_clean("damaged"))
    (run,) = over(deployment, "damaged")
    assert run.is_success
    assert_maintained(lake, "damaged")


@pytest.mark.deep
def test_the_work_of_a_killed_run_is_done_by_one_that_follows(deployment: Deployment, lake: Lake, gate: Gate) -> None:
    with gate.holding("killed"):
        lake.delete("killed")
        run = started(deployment, "killed").run_id
        process = deployment.process_of(run)
        assert process is not None
        assert deployment.owns(process)
        os.kill(process, signal.SIGKILL)
        assert deployment.finished(run).status == dg.DagsterRunStatus.FAILURE
    # It gave nothing back, its place in the pool included.
    eventually("the table is maintained", lambda: lake.is_clean("killed"))
    # Dagster's retry, the sensor's run, or both: the retry may miss a run whose status it reads before that is written,
    # and the sensor may look between the failure and the retry. The run that comes second finds nothing to do.
    (_, *others) = over(deployment, "killed")
    assert others
    assert {other.status for other in others} == {dg.DagsterRunStatus.SUCCESS}
    spans = sorted((span for each in others for span in deployment.steps(each.run_id)), key=lambda span: span.start)
    assert not any(one.overlaps(other) for one, other in pairwise(spans))
    assert_maintained(lake, "killed")


@pytest.mark.processes
def test_launched_three_ways_at_one_time_a_table_is_maintained_once(
    deployment: Deployment, lake: Lake, race: tuple[str, str]
) -> None:
    run, backfill = race

    def done() -> bool:
        found = deployment.instance.get_backfill(backfill)
        return found is not None and found.status == BulkActionStatus.COMPLETED_SUCCESS

    eventually("the backfill is over", done)
    runs = over(deployment, "raced")
    assert {run} < {each.run_id for each in runs}
    assert {each.status for each in runs} == {dg.DagsterRunStatus.SUCCESS}
    assert_maintained(lake, "raced")
    spans = sorted((span for each in runs for span in deployment.steps(each.run_id)), key=lambda span: span.start)
    assert not any(one.overlaps(other) for one, other in pairwise(spans))
