"""The package's log lines in Dagster's log of a run: there by default, once, without secrets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.service.tables_file import TableSettings


def said(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    return [record.user_message for record in instance.all_logs(run_id) if not record.is_dagster_event]


def optimize(defs: dg.Definitions, instance: dg.DagsterInstance, table: TableSettings) -> list[str]:
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, asset_selection=[naming.job_key(table, "optimize")])
    return said(instance, result.run_id)


def test_a_run_says_what_it_does(
    instance: dg.DagsterInstance,
    make_table: Callable[..., TableSettings],
    make_definitions: Callable[..., dg.Definitions],
) -> None:
    table = make_table()
    lines = optimize(make_definitions(table), instance, table)
    assert sum(line.startswith("# Maintenance of ") for line in lines) == 1
    assert sum("step on version 2" in line for line in lines) == 1
    assert sum("committed version 3" in line for line in lines) == 1


def test_a_line_that_dagster_collects_itself_is_there_once(
    tmp_path: Path, make_table: Callable[..., TableSettings], make_definitions: Callable[..., dg.Definitions]
) -> None:
    overrides = {"python_logs": {"managed_python_loggers": ["dv_maintenance"], "python_log_level": "INFO"}}
    table = make_table()
    with dg.instance_for_test(overrides=overrides) as instance:
        lines = optimize(make_definitions(table), instance, table)
    assert sum("committed version 3" in line for line in lines) == 1


def test_each_log_has_its_own_lines_without_secrets() -> None:
    """A code server evaluates several sensors at once, in threads."""
    ours, met = logging.getLogger("dv_maintenance.anything"), threading.Barrier(2, timeout=20)
    heard: dict[str, list[str]] = {"a": [], "b": []}

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard[record.name.removeprefix("test.")].append(record.getMessage())

    def work(name: str) -> None:
        log = logging.getLogger(f"test.{name}")
        log.setLevel(logging.INFO)
        log.addHandler(Keep())
        with shown_in(log):
            met.wait()
            ours.info("%s opens https://h/t?sig=CaNaRy", name)
            met.wait()

    threads = [threading.Thread(target=work, args=[name]) for name in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours.info("nobody's")
    assert heard == {name: [f"{name} opens https://h/t?***"] for name in heard}


def test_it_is_quiet_outside_of_dagster(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("dv_maintenance.anything").info("nobody listens")
    assert "nobody listens" not in capsys.readouterr().err
