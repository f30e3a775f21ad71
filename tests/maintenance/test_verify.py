"""The gates by themselves; what trips them in a run is in test_apply."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dv_maintenance.errors import VerificationError
from dv_maintenance.maintenance.execution.verify import check_outputs, check_result, check_version
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import Replacement
from dv_maintenance.tables.work import OutputFile, RewriteBin
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.testing.memory_engine import MemoryEngine


@pytest.fixture
def table(tmp_path: Path) -> MemoryTable:
    table = MemoryTable(tmp_path)
    table.delete(table.append("", [1, 2, 3]), [0])
    table.append("", [4])
    return table


def test_the_task_must_read_what_the_step_names(table: MemoryTable) -> None:
    snapshot = table.snapshot()
    step = build_plan(snapshot).steps[0]
    keys = tuple(FileKey(each.path, each.dv_id) for each in step.inputs)
    whole, half = table.rewrite_tasks(
        snapshot, [RewriteBin(step.id, "", keys), RewriteBin("half", "", keys[:1])], target_bytes=1
    )
    result = MemoryEngine().run([whole])[0]
    check_result(step, whole, result)
    with pytest.raises(VerificationError, match="does not read the files"):
        check_result(step, half, result)


def test_new_files_must_be_there(table: MemoryTable) -> None:
    table.storage.put("new file.json", b"12345")
    good = OutputFile(table.storage.uri_of("new file.json"), 5, 1, 0)
    check_outputs(table.storage, [good])
    with pytest.raises(VerificationError, match=r"new file\.json has 5 bytes, not 6"):
        check_outputs(table.storage, [OutputFile(good.uri, 6, 1, 0)])
    with pytest.raises(VerificationError, match=r"none\.json does not exist"):
        check_outputs(table.storage, [good, OutputFile(table.storage.uri_of("none.json"), 5, 1, 0)])
    with pytest.raises(VerificationError, match="same new file"):
        check_outputs(table.storage, [good, good])


def replaced(table: MemoryTable) -> tuple[int, FileKey, OutputFile]:
    """Replace data-0 as a commit would, and return the old and the new file."""
    gone = next(key for key in table.keys if key.path == "data-0.json")
    version = table.version()
    step = build_plan(table.snapshot(), purge=True).steps[0]
    bins = [RewriteBin(step.id, "", (gone,))]
    output = MemoryEngine().run(table.rewrite_tasks(table.snapshot(), bins, 1))[0].outputs[0]
    return version, gone, output


@pytest.mark.parametrize(
    ("happens", "complaint"),
    [
        (lambda table: None, None),
        (lambda table: table.append("", [9]), "data-3.json is live, but was not written by this run"),
        (lambda table: table.delete("data-2.json", [0]), "data-2.json is no longer live, but was not an input"),
    ],
)
def test_a_version_differs_by_what_was_replaced(
    table: MemoryTable, happens: Callable[[MemoryTable], object], complaint: str | None
) -> None:
    version, gone, output = replaced(table)
    before = table.snapshot()
    happens(table)
    table.commit(before, [Replacement("r", "", (gone,), (output,))], operation={"name": "X", "parameters": {}})
    found = check_version(table, table.snapshot(version), table.snapshot(), [gone], [(output, 0)])
    assert found == complaint


def test_inputs_still_live_and_outputs_missing(table: MemoryTable) -> None:
    version, gone, output = replaced(table)
    same = table.snapshot(version)
    assert check_version(table, same, same, [gone], [(output, 0)]) == "data-0.json is still live"
    assert "is not live" in (check_version(table, same, same, [], [(output, 0)]) or "")


def test_the_same_file_with_another_deletion_vector_is_another_file(table: MemoryTable) -> None:
    before = table.snapshot()
    old = next(key for key in table.keys if key.path == "data-0.json")
    table.delete("data-0.json", [1])
    after = table.snapshot()
    assert check_version(table, before, after, [], []) == "data-0.json is no longer live, but was not an input"
    assert "was not written by this run" in (check_version(table, before, after, [old], []) or "")
