"""The gates: maintenance never changes what a query returns, or nothing is committed.

Before a commit, each rewrite is checked against the row counts of the log. After it, the committed version is compared
with its predecessor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import VerificationError
from dv_maintenance.files.arrays import combined, strings
from dv_maintenance.tables.gates import not_stored
from dv_maintenance.tables.model import FileKey

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.steps import PlanStep
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import OutputFile, RewriteResult, RewriteTask


def check_result(step: PlanStep, task: RewriteTask, result: RewriteResult) -> None:
    """Check the row counts of a rewrite; the task must read exactly the files that the step names.

    Rows read = rows written + rows purged. Rows purged = rows that the deletion vectors (DVs) name. Rows read = rows
    in the log, if its counts are exact. If the engine counted per source, this holds for each source. Rows that
    Iceberg's equality deletes take have no count before the rewrite: they are not compared.

    Raises
    ------
    VerificationError : they differ.
    """
    inputs = {FileKey(each.path, each.dv_id): each for each in step.inputs}
    sources = [inputs.get(source.key) for source in task.scan.sources]
    if len(sources) != len(inputs) or {source.key for source in task.scan.sources} != set(inputs):
        raise VerificationError(f"{step.id}: the task does not read the files that the step names")
    written, read, purged = result.rows_written, result.rows_read, result.rows_purged
    _equal(step, "rows read", read, "rows written and purged", written + purged)
    _equal(step, "rows in the new files", sum(output.rows for output in result.outputs), "rows written", written)
    if not any(source.details.get("without") for source in task.scan.sources):
        _equal(step, "rows purged", purged, "rows that the DVs name", sum(each.deleted_rows for each in step.inputs))
    physical = [each.physical_rows for each in step.inputs]
    if None not in physical and all(source.exact_rows for source in task.scan.sources):
        _equal(step, "rows read", read, "rows in the log", sum(rows or 0 for rows in physical))
    for counts, name in ((result.source_rows, "physical_rows"), (result.source_purged, "deleted_rows")):
        if counts:
            _equal(step, "sources counted", len(counts), "inputs", len(inputs))
        for source, each, found in zip(task.scan.sources, sources, counts, strict=False):
            promised = None if source.details.get("without") else getattr(each, name)
            if each is not None and promised is not None and (source.exact_rows or name != "physical_rows"):
                _equal(step, f"rows counted in {each.path}", found, f"in the log ({name})", promised)


def check_outputs(storage: Storage, outputs: Sequence[OutputFile]) -> None:
    """Check that every new file exists, has the reported size, and has a unique name.

    Raises
    ------
    VerificationError : a file does not.
    """
    paths = [storage.path_of_uri(output.uri) for output in outputs]
    if len(set(paths)) < len(paths):
        raise VerificationError("two tasks report the same new file")
    if (problem := not_stored(storage, outputs)) is not None:
        raise VerificationError(problem)


def check_version(
    table: Table,
    before: Snapshot,
    after: Snapshot,
    inputs: Iterable[FileKey],
    outputs: Iterable[tuple[OutputFile, int]],
    moved: Mapping[FileKey, FileKey] | None = None,
    recounted: int = 0,
) -> str | None:
    """What is wrong with a committed version; ``None`` if nothing is.

    ``before`` without ``inputs`` must equal ``after`` without ``outputs``, logical file by logical file. That is
    stricter than equal row counts, and works if the log has no row counts.

    before : the version right before the commit.
    after : the committed version.
    outputs : new files with the number of rows deleted in them.
    moved : files whose DV has a new location and the same content.
    recounted : rows that the inputs have beyond what the log says, see ``Replacement``.
    """
    new = {table.storage.path_of_uri(output.uri): (output, deleted) for output, deleted in outputs}
    old_keys, new_keys = _keys(before), _keys(after)
    left = before.files.filter(pc.invert(pc.is_in(old_keys, value_set=new_keys)))
    came = after.files.filter(pc.invert(pc.is_in(new_keys, value_set=old_keys)))
    left_keys, wanted = {FileKey(**row) for row in left.select(["path", "dv_id"]).to_pylist()}, set(inputs)
    came_rows = came.select(["path", "dv_id", "deleted_rows", "physical_rows"]).to_pylist()
    if moved:
        came_keys = {FileKey(row["path"], row["dv_id"]) for row in came_rows}
        if strays := {old for old, new in moved.items() if old not in left_keys or new not in came_keys}:
            return f"the deletion vector of {min(strays, key=_path).path} is not at its new location"
        left_keys -= set(moved)
        came_rows = [row for row in came_rows if FileKey(row["path"], row["dv_id"]) not in set(moved.values())]
    if wanted - left_keys:
        return f"{min(wanted - left_keys, key=_path).path} is still live"
    if left_keys - wanted:
        return f"{min(left_keys - wanted, key=_path).path} is no longer live, but was not an input"
    for row in came_rows:
        output, deleted = new.pop(table.path_of(row["path"]), (None, 0))
        if output is None or row["deleted_rows"] != deleted:
            return f"{row['path']} is live, but was not written by this run"
        if row["physical_rows"] not in (None, output.rows):
            return f"{row['path']} is listed with {row['physical_rows']} rows, but has {output.rows}"
    if new:
        return f"the new file {min(new)} is not live"
    rows_before, rows_after = _live_rows(left), _live_rows(came)
    if rows_before is not None and rows_after is not None and rows_before + recounted != rows_after:
        return f"{rows_before + recounted} live rows became {rows_after}"
    return None


def _live_rows(files: pa.Table) -> int | None:
    """``None``: the log does not say."""
    if files["physical_rows"].null_count:
        return None
    return int(pc.sum(pc.subtract(files["physical_rows"], files["deleted_rows"])).as_py() or 0)


def _keys(snapshot: Snapshot) -> pa.Array:
    """Logical files as one column. A missing DV id differs from an empty one."""
    path, dv_id = snapshot.files["path"], snapshot.files["dv_id"]
    parts = [path.cast(pa.large_string()), dv_id.cast(pa.large_string())]
    between = strings(["\n"]).cast(pa.large_string())[0]
    return combined(pc.binary_join_element_wise(*parts, between, null_handling="replace", null_replacement="\r"))


def _path(key: FileKey) -> str:
    return key.path


def _equal(step: PlanStep, left_name: str, left: int, right_name: str, right: int) -> None:
    if left != right:
        raise VerificationError(f"{step.id}: {left} {left_name}, but {right} {right_name}")
