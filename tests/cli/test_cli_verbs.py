"""Each verb on real tables: what it does, what it prints under --json, and what it leaves alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dv_maintenance import cli
from dv_maintenance.files.lance_library import FLOOR
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
DELTA = "delta"

Dvm = Callable[..., tuple[int, Any]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two partitions of two files with 1000 rows each; a tenth deleted everywhere, and another in one partition."""
    place = tmp_path / "orders"
    builder = DeltaBuilder(str(place)).create(
        SCHEMA, partition_by=["day"], properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    )
    days = pa.array(["a"] * 2000 + ["b"] * 2000)
    builder.append(pa.table({"id": range(4000), "day": days}, schema=SCHEMA), files=2)
    builder.delete(lambda rows: pc.equal(pc.subtract(rows["id"], pc.multiply(pc.divide(rows["id"], 10), 10)), 0))
    builder.delete(lambda rows: pc.and_(pc.equal(rows["day"], "b"), pc.less(rows["id"], 2100)))
    return place


def commits(table: Path) -> int:
    return len(list((table / "_delta_log").glob("*.json")))


def rows(table: Path) -> list[int]:
    schema, batches = read(open_table(str(table)), columns=["id"])
    return sorted(pa.Table.from_batches(batches, schema)["id"].to_pylist())


# -- looking -----------------------------------------------------------------------------------------------------------


def test_health(dvm: Dvm, table: Path) -> None:
    code, body = dvm("health", table)
    assert code == 0
    assert (body["version"], body["files"], body["files_with_dv"]) == (3, 4, 4)
    assert (body["physical_rows"], body["deleted_rows"], body["live_rows"]) == (4000, 490, 3510)
    assert body["deleted_ratio"] == pytest.approx(490 / 4000)
    assert [part["partition"] for part in body["partitions"]] == [{"day": "a"}, {"day": "b"}]
    assert {"format", "timestamp", "size_bytes", "warnings"} <= body.keys()
    assert dvm("health", table, "--version", 1)[1]["deleted_rows"] == 0


def test_health_as_text(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", str(table)]) == 0
    out = capsys.readouterr().out
    assert "version 3" in out
    assert "day=b" in out
    assert "12.25%" in out


@pytest.mark.parametrize(
    ("name", "code"),
    [("catalog_managed_0", 3), ("table_with_liquid_clustering", 3), ("crc-malformed", 5), ("dat-deletion_vectors", 0)],
)
def test_golden_tables_are_planned_or_refused(dvm: Dvm, golden: Path, name: str, code: int) -> None:
    got, body = dvm("plan", golden / DELTA / name)
    assert got == code, body
    assert ("error" in body) == (code != 0)


# Each takes a fifth of a short verb's time or more, or brings what does.
HEAVY = {
    *("pyspark", "pandas", "dagster", "pydantic", "rich", "yaml", "pyarrow.parquet", "pyarrow.fs", "obstore", "ssl"),
    *("email", "importlib.metadata", "tempfile", "hashlib"),
    *("dv_maintenance.tables.capabilities", "dv_maintenance.tables.work", "dv_maintenance.maintenance.planning.plan"),
    *("dv_maintenance.maintenance.execution.apply", "dv_maintenance.engine.rewrite"),
}


@pytest.mark.parametrize("verb", ["health", "purge"])
def test_a_verb_with_nothing_to_do_imports_nothing_heavy(verb: str, tmp_path: Path) -> None:
    """Nor does naming the engine that it would need."""
    builder = DeltaBuilder(str(tmp_path / "t")).create(SCHEMA)
    builder.append(pa.table({"id": [1], "day": ["a"]}, SCHEMA))
    script = (
        "import sys; from dv_maintenance.cli import main\n"
        f"assert main([{verb!r}, {str(tmp_path / 't')!r}, '--json']) == 0\n"
        "from dv_maintenance.engine.spark import SparkEngine\n"
        f"assert not (heavy := {HEAVY!r} & set(sys.modules)), heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_a_plan_without_a_deadline_imports_no_vacuum(table: Path) -> None:
    script = (
        "import sys; from dv_maintenance.cli import main\n"
        f"assert main(['plan', {str(table)!r}, '--json']) == 0\n"
        "heavy = {'dv_maintenance.maintenance.vacuum', 'dv_maintenance.tables.capabilities'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_numpy_starts_no_threads_for_linear_algebra(given: dict[str, str], threads: str, table: Path) -> None:
    """It reads the variable when it is imported, so that has to come later. The user's own setting stands."""
    script = (
        "import os, sys; from dv_maintenance import cli\n"
        "start = cli._start_fast\n"
        "def watched():\n"
        "    assert 'numpy' not in sys.modules\n"
        "    start()\n"
        "cli._start_fast = watched\n"
        f"sys.argv = ['dvm', 'health', {str(table)!r}]\n"
        "assert cli.main() == 0\n"
        f"assert os.environ['OPENBLAS_NUM_THREADS'] == {threads!r} and 'numpy' in sys.modules"
    )
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"} | given
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL, env=environment)


def test_what_needs_no_spark_starts_none(table: Path) -> None:
    """Even where --engine spark is asked for, which it is by default."""
    lines = [
        ["plan"],
        ["read"],
        ["history"],
        ["vacuum", "--dry-run"],
        ["apply", "--dry-run"],
        ["apply", "--set", "max_deleted_ratio=1", "--set", "min_file_size=0"],
        ["manifest"],
    ]
    script = (
        "import sys; from dv_maintenance.cli import main\n"
        f"codes = [main([verb, {str(table)!r}, *options, '--json']) for verb, *options in {lines}]\n"
        "assert codes == [0, 0, 0, 0, 0, 0, 3], codes\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_plan_goes_to_a_file_that_apply_runs(dvm: Dvm, table: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    code, plan = dvm("plan", table, "-o", saved)
    assert code == 0
    assert json.loads(saved.read_text()) == plan
    assert plan["version"] == 3
    assert {"action", "reason", "inputs", "expected", "cost"} <= plan["steps"][0].keys()
    before = rows(table)
    code, report = dvm("apply", table, "--plan", saved)
    assert code == 0
    assert report["verified"] is True
    assert len(report["steps"]) == len(plan["steps"]) == 2
    assert rows(table) == before


def test_plan_follows_the_policy(dvm: Dvm, table: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("max_deleted_ratio: 0.12\nmin_file_size: 0\n")
    _, plan = dvm("plan", table, "--policy", policy)
    assert [step["partition"] for step in plan["steps"]] == ["day=b"]
    assert sum(group["files"] for group in plan["left_alone"]) == 3
    _, plan = dvm("plan", table, "--policy", policy, "--set", "max_deleted_ratio=0.5")
    assert plan["steps"] == []


def test_history(dvm: Dvm, table: Path) -> None:
    code, body = dvm("history", table, "--limit", 2)
    assert code == 0
    assert [entry["version"] for entry in body["versions"]] == [3, 2]
    assert [entry["operation"] for entry in body["versions"]] == ["DELETE", "DELETE"]
    assert body["versions"][1]["dvs_added"] == 4


def test_watch(dvm: Dvm, table: Path, tmp_path: Path) -> None:
    listed = tmp_path / "tables.yaml"
    listed.write_text("tables:\n- {path: orders}\n- {name: lost, path: nowhere}\n")
    code, body = dvm("watch", listed, "--once")
    first, lost = body["tables"]
    assert code == 1, "a table that cannot be looked at is no success"
    assert (first["name"], first["version"], first["changed"]) == ("orders", 3, True)
    assert first["deleted_ratio"] == pytest.approx(0.1225)
    assert "optimize" in first["due"]
    assert "no table found" in lost["error"]
    listed.write_text("tables:\n- {path: orders}\n")
    assert dvm("watch", listed, "--once")[0] == 0
    assert dvm("watch", listed)[0] == 2


# -- reading -----------------------------------------------------------------------------------------------------------


def test_plan_like_a_sensor(dvm: Dvm, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the policy in the file."""
    file, cursor, saved = tmp_path / "tables.yaml", tmp_path / "cursor", tmp_path / "plan.json"
    file.write_text("tables: [{path: orders, jobs: [optimize], policy: {max_deleted_ratio: 0.2}}]\n")
    code, body = dvm("plan", file, "orders", "-o", saved)
    assert code == 0
    assert body.keys() == {
        *("table", "version", "requested", "decision", "due", "held", "warnings", "refused", "unknown", "plan")
    }
    assert (body["requested"], body["decision"]["kind"]) == ([{"jobs": ["optimize"], "partitions": None}], "new")
    assert body["plan"]["policy"]["max_deleted_ratio"] == 0.2
    assert json.loads(saved.read_text()) == body["plan"]
    assert dvm("apply", table, "--plan", saved)[0] == 0
    code, body = dvm("plan", file, "orders")
    assert (code, body["requested"], body["decision"]["kind"]) == (0, [], "nothing")
    assert cli.main(["plan", str(file), "orders"]) == 0
    assert "A sensor would request no run: nothing is due." in capsys.readouterr().out
    for text in ("{}", "no cursor", '{"form": 1}'):
        cursor.write_text(text)
        body = dvm("plan", file, "orders", "--cursor", cursor)[1]
        assert body["message"] == "the cursor is not that of a sensor of this package"
        assert body["next_step"]
    for wrong in (["none"], [], ["orders", "--set", "max_files=1"], ["orders", "--cursor", cursor]):
        assert dvm("plan", file, *wrong)[0] == 2
    assert dvm("plan", table, "--cursor", cursor)[0] == 2
    assert dvm("plan", table, "orders")[0] == 2


@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
def test_read_writes_files(dvm: Dvm, table: Path, tmp_path: Path, kind: str) -> None:
    output = tmp_path / f"rows.{kind}"
    code, body = dvm("read", table, "--columns", "day,id", "--limit", 100, "-o", output)
    assert (code, body) == (0, {"rows": 100, "output": str(output)})
    if kind == "parquet":
        got = pq.read_table(output)
    elif kind == "arrow":
        got = pa.ipc.open_file(output).read_all()
    else:
        got = pa.Table.from_pylist([json.loads(line) for line in output.read_text().splitlines()])
    assert got.column_names == ["day", "id"]
    assert got.num_rows == 100


def test_read_counts_and_travels(dvm: Dvm, table: Path) -> None:
    assert dvm("read", table) == (0, {"rows": 3510, "output": None})
    assert dvm("read", table, "--version", 1)[1]["rows"] == 4000
    assert dvm("read", table, "--version", 9)[0] == 2


def test_read_shows_a_few_rows(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["read", str(table)]) == 0
    out, err = capsys.readouterr()
    shown = [json.loads(line) for line in out.splitlines()]
    assert len(shown) == 20
    assert shown[0].keys() == {"id", "day"}
    assert "--limit" in err
    assert cli.main(["read", str(table), "--limit", "0"]) == 0


# -- working -----------------------------------------------------------------------------------------------------------


def test_purge_then_nothing_to_do(dvm: Dvm, table: Path) -> None:
    before = rows(table)
    code, report = dvm("purge", table)
    assert code == 0
    assert (report["version_before"], report["version_after"]) == (3, 4)
    assert sum(step["dvs_removed"] for step in report["steps"]) == 4
    assert sum(step["rows_purged"] for step in report["steps"]) == 490
    wanted = {"action", "version", "files_removed", "files_added", "bytes_in", "bytes_out", "attempts", "seconds"}
    assert wanted <= report["steps"][0].keys()
    assert rows(table) == before
    assert dvm("health", table)[1]["files_with_dv"] == 0
    code, again = dvm("purge", table)
    assert (code, again["steps"], again["version_after"]) == (0, [], 4)


def test_purge_of_partitions(dvm: Dvm, table: Path) -> None:
    code, report = dvm("purge", table, "--partition", "day=b")
    assert code == 0
    assert {step["partition"] for step in report["steps"]} == {"day=b"}
    assert dvm("health", table)[1]["files_with_dv"] == 2
    assert dvm("purge", table, "--partition", "nonsense")[0] == 2
    assert dvm("purge", table, "--partition", "shop=1")[0] == 2


def test_purge_of_a_partition_that_does_not_exist_is_an_error(dvm: Dvm, table: Path) -> None:
    code, error = dvm("purge", table, "--partition", "day=c")
    assert (code, error["message"]) == (2, "no live file is in day=c")
    assert "--missing-ok" in error["next_step"]
    assert commits(table) == 4
    code, report = dvm("purge", table, "--partition", "day=c", "--partition", "day=b", "--missing-ok")
    assert (code, report["missing_partitions"]) == (0, ["day=c"])
    assert {step["partition"] for step in report["steps"]} == {"day=b"}
    assert dvm("zorder", table, "--columns", "id", "--partition", "day=c", "--dry-run")[0] == 2
    assert dvm("zorder", table, "--columns", "id", "--partition", "day=c", "--dry-run", "--missing-ok")[0] == 0


def test_a_policy_for_a_partition_that_does_not_exist_yet_warns(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", str(table), "--set", "partitions=[day=c]"]) == 0
    assert "of the policy's partitions, no live file is in day=c" in capsys.readouterr().err


def test_apply_dry_run_changes_nothing(dvm: Dvm, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, body = dvm("apply", table, "--dry-run")
    assert code == 0
    assert body == dvm("plan", table)[1]
    assert commits(table) == 4
    assert cli.main(["apply", str(table), "--dry-run"]) == 0
    assert "purges" in capsys.readouterr().out


def test_apply_takes_one_kind_of_instruction(dvm: Dvm, table: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    dvm("plan", table, "-o", saved)
    assert dvm("apply", table, "--plan", saved, "--set", "max_files=1")[0] == 2
    saved.write_text("{}")
    assert dvm("apply", table, "--plan", saved)[0] == 2
    assert dvm("apply", table, "--plan", tmp_path / "none.json")[0] == 2
    assert commits(table) == 4


def test_vacuum(dvm: Dvm, table: Path) -> None:
    dvm("purge", table)
    code, dry = dvm("vacuum", table, "--dry-run")
    assert code == 0
    assert (dry["data_files"], dry["dv_files"]) == (4, 2)
    assert len(dry["paths"]) == 6
    assert dry["bytes"] > 0
    assert all((table / path).exists() for path in dry["paths"])
    code, done = dvm("vacuum", table)
    assert (code, done["data_files"], done["dv_files"]) == (0, 4, 2)
    assert "cutoff" in done
    assert "paths" not in done
    assert not any((table / path).exists() for path in dry["paths"])
    assert len(rows(table)) == 3510
    assert dvm("vacuum", table)[1]["data_files"] == 0


def test_vacuum_below_the_tables_retention_is_refused(dvm: Dvm, golden_copy: Callable[[str], Path]) -> None:
    table = golden_copy("delta/table-with-dv-small")
    files = sorted(path.name for path in table.iterdir())
    code, body = dvm("vacuum", table, "--retention", "1h")
    assert (code, body["error"]) == (3, "RefusedError")
    assert sorted(path.name for path in table.iterdir()) == files
    assert dvm("vacuum", table, "--retention", "1h", "--allow-short-retention")[0] == 0
    assert dvm("vacuum", table, "--retention", "7d", "--dry-run")[0] == 0
    assert dvm("vacuum", table, "--retention", "168h", "--dry-run", "--lite")[0] == 0


def test_manifest(dvm: Dvm, table: Path) -> None:
    code, body = dvm("manifest", table)
    assert (code, body["error"]) == (3, "RefusedError")
    assert "purge" in body["next_step"]
    code, body = dvm("manifest", table, "--purge-first")
    assert (code, body["files"]) == (0, 2)
    assert [os.path.dirname(path).rsplit("/", 1)[-1] for path in body["manifests"]] == ["day=a", "day=b"]
    listed = [line for path in body["manifests"] for line in (table / path).read_text().split()]
    assert len(listed) == 2
    assert all(line.endswith(".parquet") for line in listed)


def test_results_as_text(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, said in [
        (["purge"], "verified"),
        (["purge"], "nothing to do"),
        (["vacuum", "--dry-run"], "would be deleted: 4 data, 2 DV"),
        (["vacuum", "--dry-run", "--quarantine"], "would be quarantined: 4 data, 2 DV.\n"),
        (["vacuum"], "were deleted: 4 data, 2 DV"),
        (["manifest"], "day=a/manifest"),
        (["history"], "VACUUM END"),
        (["plan"], "Nothing to do"),
    ]:
        assert cli.main([argv[0], str(table), *argv[1:], "--engine", "local"]) == 0
        assert said in capsys.readouterr().out


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor(dvm: Dvm, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, body = dvm("doctor", table)
    checks = {check["name"]: check for check in body["checks"]}
    assert {"python", "java", "pyspark", "pyarrow", "temp", "table"} <= checks.keys()
    assert all(check.keys() == {"name", "ok", "found", "needed", "how"} for check in body["checks"])
    assert checks["table"]["ok"]
    assert "version 3" in checks["table"]["found"]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, body = dvm("doctor")
    java = next(check for check in body["checks"] if check["name"] == "java")
    assert (code, java["ok"], java["found"]) == (1, False, None)
    assert "openjdk" in java["how"]
    assert dvm("doctor", tmp_path / "nothing")[0] == 1


@pytest.mark.parametrize(
    ("installed", "without", "of_lance"),
    [(None, True, False), ("11.0.0", False, False), ("12.0.0", True, True), ("14.0.2", True, True)],
)
def test_doctor_knows_which_pylance_will_do(
    dvm: Dvm,
    golden: Path,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: str | None,
    without: bool,
    of_lance: bool,
) -> None:
    """None at all will do as long as there are no Lance tables; one that brings rows back never does."""
    original = metadata.version

    def version(name: str) -> str:
        if name != "pylance":
            return original(name)
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    for place, good in ((table, without), (golden / "lance" / "array_small", of_lance)):
        (found,) = [check for check in dvm("doctor", place)[1]["checks"] if check["name"] == "pylance"]
        assert (found["ok"], found["found"]) == (good, installed)
        assert found["how"] == (None if good else "pip install 'pylance>=12.0.0'")


@pytest.mark.parametrize(("place", "good"), [("delta/table-with-dv-small", True), ("paimon/append_dv/table", False)])
def test_doctor_asks_for_fastavro_where_there_is_a_paimon_table(
    dvm: Dvm, golden: Path, monkeypatch: pytest.MonkeyPatch, place: str, good: bool
) -> None:
    original = metadata.version

    def version(name: str) -> str:
        if name == "fastavro":
            raise metadata.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(metadata, "version", version)
    (found,) = [check for check in dvm("doctor", golden / place)[1]["checks"] if check["name"] == "fastavro"]
    assert (found["ok"], found["how"]) == (good, None if good else "pip install 'fastavro>=1.9'")


def test_the_extra_has_the_library_s_floor() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    least = ".".join(map(str, FLOOR))
    assert project["optional-dependencies"]["lance"] == [f"pylance>={least}"]


@pytest.mark.parametrize(
    ("name", "old", "floor"),
    [("pyarrow", "20.0.0", "21"), ("obstore", "0.11.9", "0.12"), ("dagster", "1.11.6", "1.11.7")],
)
def test_doctor_refuses_what_the_package_itself_refuses(
    dvm: Dvm, monkeypatch: pytest.MonkeyPatch, name: str, old: str, floor: str
) -> None:
    original = metadata.version
    monkeypatch.setattr(metadata, "version", lambda asked: old if asked == name else original(asked))
    code, body = dvm("doctor")
    (found,) = [check for check in body["checks"] if check["name"] == name]
    assert (code, found["ok"], found["found"]) == (1, False, old)
    assert found["needed"].startswith(f"{floor} or newer")
    assert f"{name}" in found["how"]
    assert f">={floor}" in found["how"]


def test_doctor_names_everything_that_the_package_requires(dvm: Dvm) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["dagster"], *extras["lance"], *extras["paimon"]]
    names = {check["name"] for check in dvm("doctor")[1]["checks"]}
    assert {re.split(r"[<>=\[]", each)[0] for each in declared} <= names
