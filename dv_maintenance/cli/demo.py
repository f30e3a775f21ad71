"""``dvm demo``: the whole product in a minute. Build a table, let the Dagster job maintain it, compare."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dv_maintenance.cli.output import Output, bytes_text, count, percent, write_file
from dv_maintenance.errors import DvMaintenanceError, RefusedError, UsageError, VerificationError

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Table

__all__ = ["demo"]

_MAX_ROWS = 20_000_000
_JOB = "dv_maintenance"
# Says that a folder is ours to delete when the demo runs again.
_MARK = ".dvm-demo"
_TABLES = """\
# Made by `dvm demo`. Policy: purge every deletion vector; a real table keeps the default of 5 % deleted rows per file.
tables:
  - name: demo/orders
    path: orders
    policy: {max_deleted_ratio: 0}
    jobs: [optimize, vacuum, manifest]
"""
# One op of a table at a time; the sensor and the schedule wait for whoever starts them.
_DAGSTER = """\
concurrency:
  pools:
    granularity: op
    default_limit: 1
telemetry:
  enabled: false
"""


@dataclass(frozen=True, slots=True)
class State:
    """The table at one moment. ``disk_bytes``: its folder; ``scan_seconds``: of reading every row; ``content``: SHA-256
    over all rows in the order of their key.
    """

    version: int
    rows: int
    files: int
    files_with_dv: int
    deleted_rows: int
    deleted_ratio: float | None
    size_bytes: int
    disk_bytes: int
    scan_seconds: float
    content: str


def demo(args: Namespace, out: Output) -> int:
    if not 1000 <= args.rows <= _MAX_ROWS:
        raise UsageError(f"{args.rows} rows make no demo", next_step=f"choose from 1000 to {_MAX_ROWS}")
    root = _checkout()
    folder = os.path.abspath(args.dir)
    _prepare(folder)
    place = os.path.join(folder, "orders")

    from dv_maintenance.cli.demo_table import build
    from dv_maintenance.tables import open_table

    out.note(f"1/3  Building {place}: {count(args.rows)} orders, then three deletes with deletion vectors ...")
    build(place, args.rows)
    table = open_table(place)
    before = _state(table, place)
    out.note(f"2/3  Running the Dagster job {_JOB!r}: watch, purge, vacuum, manifests ({_engine(args)}) ...")
    started = time.perf_counter()
    _run_job(root, folder, args.engine)
    seconds = time.perf_counter() - started
    out.note("3/3  Reading the table again ...")
    after = _state(table, place)
    if (before.rows, before.content) != (after.rows, after.content):
        raise VerificationError("the table's content is not what it was", table=table.uri, version=after.version)
    ui = _ui_command(root, folder)
    manifests = os.path.join(place, "_symlink_format_manifest")
    document = {
        "table": table.uri,
        "before": asdict(before),
        "after": asdict(after),
        "content_unchanged": True,
        "manifests": manifests,
        "job_seconds": round(seconds, 1),
        "ui": ui,
    }
    if out.json:
        out.result(document, str)
    else:
        _show(before, after, seconds, manifests, ui)
    return 0


def _engine(args: Namespace) -> str:
    return "Spark, local[*]" if args.engine == "spark" else "without Spark"


def _checkout() -> str:
    """The repository: its ``sensors`` are the code location, and no wheel has them."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.exists(os.path.join(root, "sensors", "definitions.py")):
        raise RefusedError("the demo runs the repository's code location", next_step="run it from a git checkout")
    return root


def _ui_command(root: str, folder: str) -> str:
    if folder == os.path.join(root, "demo"):  # what sensors/tables.yaml names
        return "make ui"
    home, tables = shlex.quote(f"DAGSTER_HOME={folder}/dagster"), shlex.quote(f"DVM_TABLES={folder}/tables.yaml")
    return f"cd {shlex.quote(root)} && env {home} {tables} dagster dev -w workspace.yaml -h 127.0.0.1"


def _prepare(folder: str) -> None:
    """An empty folder with settings. Replaces an earlier demo, and nothing else."""
    if os.path.exists(folder) and os.listdir(folder):
        if not os.path.exists(os.path.join(folder, _MARK)):
            raise RefusedError(f"{folder} is not empty and no demo made it", next_step="choose another --dir")
        shutil.rmtree(folder)
    os.makedirs(os.path.join(folder, "dagster"), exist_ok=True)
    for name, text in ((_MARK, ""), ("tables.yaml", _TABLES), (os.path.join("dagster", "dagster.yaml"), _DAGSTER)):
        write_file(os.path.join(folder, name), text)


def _run_job(root: str, folder: str, engine: str) -> None:
    """``dagster job execute`` in a process of its own; its log goes to a file, its events to the demo's instance."""
    log = os.path.join(folder, "dagster.log")
    config = os.path.join(folder, "run.yaml")
    write_file(config, f"resources: {{spark: {{config: {{engine: {engine}}}}}}}\n")
    command = [sys.executable, "-m", "dagster", "job", "execute", "-m", "sensors.definitions", "-d", root]
    environment = {
        **os.environ,
        "DAGSTER_HOME": os.path.join(folder, "dagster"),
        "DVM_TABLES": os.path.join(folder, "tables.yaml"),
    }
    with open(log, "wb") as sink:
        done = subprocess.run(  # noqa: S603
            [*command, "-j", _JOB, "-c", config], cwd=folder, env=environment, stdout=sink, stderr=sink, check=False
        )
    if done.returncode:
        raise DvMaintenanceError(
            f"the Dagster job ended with {done.returncode}",
            next_step=f"see {log}, and 'dvm doctor' for what is missing",
        )


def _state(table: Table, place: str) -> State:
    from dv_maintenance.maintenance.health import health
    from dv_maintenance.maintenance.read import read

    counts = health(snapshot := table.snapshot()).counts
    started = time.perf_counter()
    schema, batches = read(table)
    rows = pa.Table.from_batches(batches, schema)
    seconds = time.perf_counter() - started
    return State(
        version=snapshot.version,
        rows=rows.num_rows,
        files=counts.files,
        files_with_dv=counts.files_with_dv,
        deleted_rows=counts.deleted_rows,
        deleted_ratio=counts.deleted_ratio,
        size_bytes=counts.size_bytes,
        disk_bytes=sum(
            os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(place) for name in names
        ),
        scan_seconds=round(seconds, 3),
        content=_content(rows),
    )


def _content(rows: pa.Table) -> str:
    """SHA-256 of the rows, in the order of the first column, which is a key: files may come in any order."""
    ordered = rows.combine_chunks().sort_by(rows.column_names[0])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ordered.schema) as writer:
        writer.write_table(ordered.combine_chunks(), max_chunksize=1 << 20)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _show(before: State, after: State, seconds: float, manifests: str, ui: str) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    lines: list[tuple[str, Any, Any]] = [
        ("version", before.version, after.version),
        ("rows that a query sees", count(before.rows), count(after.rows)),
        ("data files", count(before.files), count(after.files)),
        ("files with a deletion vector", count(before.files_with_dv), count(after.files_with_dv)),
        ("deleted rows still in the files", count(before.deleted_rows), count(after.deleted_rows)),
        ("share of deleted rows", percent(before.deleted_ratio), percent(after.deleted_ratio)),
        ("live data files", bytes_text(before.size_bytes), bytes_text(after.size_bytes)),
        ("all files on disk", bytes_text(before.disk_bytes), bytes_text(after.disk_bytes)),
        ("full scan", f"{before.scan_seconds:.2f} s", f"{after.scan_seconds:.2f} s"),
        ("SHA-256 of all rows", before.content[:16], after.content[:16]),
    ]
    shown = RichTable("", "before", "after", title="demo/orders")
    for name, was, became in lines:
        shown.add_row(name, str(was), str(became))
    console = Console()
    console.print(shown)
    console.print(
        f"The Dagster job took {seconds:.0f} s, starting Spark included. The content is the same, row by row.\n"
        "Vacuum could show its work at once because this table keeps nothing it no longer needs (retention 0 s); "
        "a real table keeps a week for running readers and time travel.\n"
        f"Manifests: {manifests}\n"
        f"Open the UI on http://127.0.0.1:3000 with: {ui}",
        highlight=False,
        soft_wrap=True,
    )
