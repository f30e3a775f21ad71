"""``dvm demo``: build six tables, let Dagster maintain them, compare their rows."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from dv_maintenance.cli.output import Output, count, dump_json, write_file
from dv_maintenance.errors import DvMaintenanceError, RefusedError, UsageError, VerificationError
from dv_maintenance.storage.paths import absolute_path
from dv_maintenance.tables.nested import check_outside_tables

if TYPE_CHECKING:
    from dv_maintenance.cli.demo.location import Location
    from dv_maintenance.cli.demo.report import Report
    from dv_maintenance.cli.demo.state import State
    from dv_maintenance.service.tables_file import TableSettings, WatchConfig

_MAX_ROWS = 20_000_000
_SILENT_SECONDS = 8.0
# Marks a folder that the next demo may delete.
_MARK = ".dvm-demo"
# Written last: `make ui` looks for it.
_REPORT = "report.json"


def demo(args: Namespace, out: Output) -> int:
    if not 1000 <= args.rows <= _MAX_ROWS:
        raise UsageError(f"--rows {args.rows} is out of range", next_step=f"choose from 1000 to {_MAX_ROWS}")
    if find_spec("dagster") is None:
        raise RefusedError(
            "the demo maintains its tables through Dagster, which is not installed",
            next_step="pip install 'dv-maintenance[dagster]'",
        )
    root = _checkout()
    folder = os.path.realpath(absolute_path(args.dir))
    check_outside_tables(os.path.join(folder, _REPORT))
    try:
        left_out = _prepare(root, folder)
    except OSError as error:
        if isinstance(error, DvMaintenanceError):
            raise
        raise UsageError(f"cannot write {folder}: {error.strerror}", next_step="choose another --dir") from error
    for why in left_out:
        out.note(why)

    from dv_maintenance.cli.demo.location import Location
    from dv_maintenance.service.tables_file import WatchConfig

    listed = os.path.join(folder, "tables.yaml")
    home, log = os.path.join(folder, "dagster"), os.path.join(folder, "dagster.log")
    with Location(root, home=home, tables=listed, engine=args.engine or "spark", log=log) as location:
        report = _play(
            WatchConfig.load(listed), location, args.rows, out, ui=_ui_command(root, folder, listed=bool(left_out))
        )
    document = report.to_json()
    write_file(os.path.join(folder, _REPORT), dump_json(document))
    out.result(document, report.to_text)
    return 0


def _checkout() -> str:
    """The repository: its ``sensors`` are the code location. A wheel has a copy of them beside this module."""
    here = os.path.dirname(os.path.abspath(__file__))
    packed = os.path.join(here, "checkout")
    return packed if os.path.isdir(packed) else os.path.normpath(os.path.join(here, *[os.pardir] * 3))


def _ui_command(root: str, folder: str, *, listed: bool) -> str:
    """``listed``: the page needs the demo's own list of tables."""
    if folder == os.path.join(root, "demo") and not listed:  # what sensors/tables.yaml names
        return "make ui"
    home, tables = shlex.quote(f"DAGSTER_HOME={folder}/dagster"), shlex.quote(f"DVM_TABLES={folder}/tables.yaml")
    python = shlex.quote(sys.executable)
    there = find_spec("dagster_webserver") and find_spec("dagster_dg_cli")
    install = "" if there else f"{python} -m pip install dagster-webserver dagster-dg-cli && "
    # It names the environment, or `dg` warns of another one.
    environment = shlex.quote(f"VIRTUAL_ENV={sys.prefix}")
    page = f"{shlex.quote(os.path.join(os.path.dirname(sys.executable), 'dg'))} dev --host 127.0.0.1"
    return f"{install}cd {shlex.quote(root)} && env {environment} {home} {tables} {page}"


def _prepare(root: str, folder: str) -> list[str]:
    """Make an empty folder with the settings of ``sensors``, in place of an earlier demo. Returns the tables that are
    left out, and why.
    """
    import yaml

    from dv_maintenance.cli.demo.tables import DEMO_TABLES

    if os.path.exists(folder) and os.listdir(folder):
        if not os.path.exists(os.path.join(folder, _MARK)):
            raise RefusedError(f"{folder} is not empty and was not made by a demo", next_step="choose another --dir")
        shutil.rmtree(folder)
    os.makedirs(os.path.join(folder, "dagster"), exist_ok=True)
    write_file(os.path.join(folder, _MARK), "")
    sensors = os.path.join(root, "sensors")
    shutil.copy(os.path.join(sensors, "dagster.yaml"), os.path.join(folder, "dagster"))
    with open(os.path.join(sensors, "tables.yaml"), encoding="utf-8") as file:
        listed = yaml.safe_load(file)
    left_out = []
    for name, demo_table in DEMO_TABLES.items():
        try:
            demo_table.needs()
        except RefusedError as error:
            listed["tables"] = [table for table in listed["tables"] if table["name"] != name]
            left_out.append(f"without {name}: {error}")
    for table in listed["tables"]:
        table["path"] = os.path.basename(table["path"])
    text = yaml.safe_dump(listed, sort_keys=False)
    write_file(os.path.join(folder, "tables.yaml"), f"# Made by `dvm demo`, from sensors/tables.yaml.\n{text}")
    return left_out


def _play(config: WatchConfig, location: Location, rows: int, out: Output, *, ui: str) -> Report:
    """Build, maintain, compare, use again."""
    from dv_maintenance.cli.demo.report import Report, TableReport
    from dv_maintenance.cli.demo.tables import DEMO_TABLES
    from dv_maintenance.maintenance.planning.plan import build_plan
    from dv_maintenance.service.inspection import inspect_tables
    from dv_maintenance.tables import open_table

    watched = {table.name: table for table in config.tables}
    with _Silence(out) as doing:
        out.note(f"1/4  Building {len(watched)} tables with {count(rows)} rows, deleting many of them ...")
        for name, table in watched.items():
            doing(f"building {name}")
            DEMO_TABLES[name].build(table.path, round(rows * DEMO_TABLES[name].share))
        before = _states(watched, doing)
        doing("Dagster: starting, and observing all tables")
        location.tick(list(watched))
        out.note("2/4  Dagster: running what the sensor requests, then the job for all tables ...")
        started = time.perf_counter()
        runs = location.maintain(doing)
        seconds = round(time.perf_counter() - started, 1)
        out.note("3/4  Reading all rows again ...")
        after = _states(watched, doing)
        _compare(before, after, watched)
        plans = {name: build_plan(open_table(table.path).snapshot(), table.policy) for name, table in watched.items()}
        out.note("4/4  Changing the tables again, so that Dagster has work to show ...")
        for name, table in watched.items():
            doing(f"changing {name}")
            DEMO_TABLES[name].use(table.path)
        doing("Dagster: observing all tables")
        location.tick(list(watched))
        inspections = {each.name: each for each in inspect_tables(config)[0]}
    return Report(
        tables=[
            TableReport(
                name=name,
                uri=plans[name].table,
                before=before[name],
                after=after[name],
                left_alone=[each for each in plans[name].left_alone if each.deleted_rows],
                used=DEMO_TABLES[name].used,
                due=inspections[name],
            )
            for name in watched
        ],
        runs=runs,
        seconds=seconds,
        manifests=os.path.join(watched["demo/orders"].path, "_symlink_format_manifest"),
        ui=ui,
    )


class _Silence:
    """Breaks it: says what is being done, and for how long, whenever ten seconds are nearly over."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._doing, self._since = "", time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._break, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, what: str) -> None:
        self._doing, self._since = what, time.monotonic()

    def _break(self) -> None:
        while not self._ended.wait(_SILENT_SECONDS):
            self._out.note(f"     {self._doing}, for {time.monotonic() - self._since:.0f} s")


def _states(watched: Mapping[str, TableSettings], doing: Callable[[str], None]) -> dict[str, State]:
    from dv_maintenance.cli.demo.state import measure
    from dv_maintenance.tables import open_table

    found = {}
    for name, table in watched.items():
        doing(f"reading {name}")
        found[name] = measure(open_table(table.path), table.path)
    return found


def _compare(before: Mapping[str, State], after: Mapping[str, State], watched: Mapping[str, TableSettings]) -> None:
    for name, state in after.items():
        if (before[name].rows, before[name].content) != (state.rows, state.content):
            raise VerificationError(
                "maintenance changed the table's content", table=watched[name].path, version=state.version
            )
