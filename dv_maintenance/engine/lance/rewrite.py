"""One rewrite task of a Lance table: Lance's library copies the rows, and this package checks by its own reading of the
files that none is lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.engine.lance.fragment import Fragment
from dv_maintenance.errors import VerificationError
from dv_maintenance.files.lance_footer import count_rows
from dv_maintenance.files.lance_library import lance_errors, open_dataset
from dv_maintenance.storage import Storage
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.work import OutputFile, RewriteResult

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dv_maintenance.tables.work import RewriteTask, SourceFile

# An engine runs as many tasks as there are cores.
_THREADS: Final = 1


def rewrite_fragments(task: RewriteTask, storage_options: Mapping[str, str] | None = None) -> RewriteResult:
    """Copy the live rows of the task's fragments, neighbours in one table, into new data files, in their order.
    ``details["lance"]`` of the result is Lance's own RewriteResult as JSON, the input of its commit.

    Files written before a failure remain in the storage unreferenced, as after any failed write of Lance.

    Raises
    ------
    DamagedDeletionVectorError : a deletion file is damaged, or contradicts the manifest; nothing was written.
    DamagedTableError : another file is missing or damaged.
    VerificationError : Lance would rewrite other fragments, or its new files have other row counts than it reports.
    StorageError : the storage did not answer.
    RefusedError : pylance is missing or too old.
    """
    started = time.perf_counter()
    storage = Storage(task.output_uri, storage_options)
    sources = task.scan.sources
    dataset, native, purged = lance_task(task, storage_options)
    with _errors(task):
        result = native.execute(dataset).json()
    outputs = _outputs(storage, json.loads(result)["new_fragments"])
    rows = [source.rows or 0 for source in sources]
    return RewriteResult(
        task_id=task.id,
        outputs=outputs,
        rows_read=sum(rows),
        rows_written=sum(output.rows for output in outputs),
        rows_purged=sum(purged),
        bytes_read=sum(source.size for source in sources),
        seconds=time.perf_counter() - started,
        source_rows=tuple(rows),
        source_purged=tuple(purged),
        details={"lance": result},
    )


def lance_task(task: RewriteTask, storage_options: Mapping[str, str] | None = None) -> tuple[Any, Any, list[int]]:
    """The dataset, Lance's task for it, and the deleted rows of each fragment. Raises as :func:`rewrite_fragments`."""
    storage, sources = Storage(task.output_uri, storage_options), task.scan.sources
    purged = [_deleted(source, storage) for source in sources]
    refs = [Fragment(**source.details) for source in sources]
    with _errors(task):
        dataset = open_dataset(Storage(refs[0].dataset, storage_options), refs[0].version)
        native = _lance_task(dataset, [each.id for each in refs], task)
    return dataset, native, purged


def _errors(task: RewriteTask) -> AbstractContextManager[None]:
    ref = Fragment(**task.scan.sources[0].details)
    return lance_errors(f"version {ref.version} of {ref.dataset}", version=ref.version)


def _deleted(source: SourceFile, storage: Storage) -> int:
    """The number of rows in a deletion file, after two checks that Lance does not make: the number equals that of the
    manifest, and no row is beyond the last one.
    """
    return 0 if source.dv is None else load(source.dv, storage.get_range, rows=source.rows).cardinality


def _lance_task(dataset: Any, ids: Sequence[int], task: RewriteTask) -> Any:
    """The task that Lance plans if it may only touch these fragments, and any deleted row is a reason to."""
    from lance.optimize import Compaction, CompactionOptions

    options: CompactionOptions = {
        "excluded_fragment_ids": sorted({each.fragment_id for each in dataset.get_fragments()} - set(ids)),
        "materialize_deletions_threshold": 0.0,
        # Our plan has chosen the fragments of a task by their rows: here only bytes limit the size of a new file.
        "target_rows_per_fragment": sum(source.rows or 0 for source in task.scan.sources) + 1,
        "max_bytes_per_file": task.target_bytes,
        "num_threads": _THREADS,
        "defer_index_remap": False,
    }
    # pylance's type annotations of a task lack its method json().
    planned: Sequence[Any] = Compaction.plan(dataset, options).tasks
    # Through JSON: the library's own class of fragments can't represent missing counts.
    bodies = [json.loads(native.json()) for native in planned]
    found = [[each["id"] for each in body["task"]["fragments"]] for body in bodies]
    if found != [list(ids)]:
        raise VerificationError(
            f"{task.id}: asked to rewrite the fragments {list(ids)}, Lance would rewrite {found}",
            next_step="report this bug and attach the plan; the table is unchanged",
        )
    return planned[0]


def _outputs(storage: Storage, fragments: Sequence[Mapping[str, Any]]) -> tuple[OutputFile, ...]:
    outputs = []
    for fragment in fragments:
        names = [file["path"] for file in fragment["files"]]
        info = storage.head(names[0])
        for name in names:
            rows = count_rows(storage, name, None)
            if rows != fragment["physical_rows"]:
                raise VerificationError(f"the new file {name} has {rows} rows, not {fragment['physical_rows']}")
        outputs.append(OutputFile(storage.uri_of(names[0]), info.size, fragment["physical_rows"], info.modified))
    return tuple(outputs)
