"""The engine of memory tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

from dv_maintenance.storage import Storage
from dv_maintenance.tables.work import OutputFile, RewriteResult, RewriteTask


@dataclass
class MemoryEngine:
    """Runs rewrites of a :class:`MemoryTable`. ``spoil`` sees each result before anybody else, and may change it or
    raise; it is handed the storage too.
    """

    spoil: Callable[[RewriteResult, Storage], RewriteResult] = lambda result, _: result
    runs: int = 0
    name: ClassVar[str] = "memory"

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        self.runs += 1
        results = []
        for task in tasks:
            storage = Storage(task.output_uri, storage_options)
            result = self.spoil(_rewrite(task, storage, f"{uuid4()}.json"), storage)
            results.append(result)
            if on_done is not None:
                on_done(result)
        return results

    def close(self) -> None:
        """Nothing to stop."""


def _rewrite(task: RewriteTask, storage: Storage, path: str) -> RewriteResult:
    kept: list[Any] = []
    read: list[int] = []
    purged: list[int] = []
    for source in task.scan.sources:
        rows = json.loads(storage.get(storage.path_of_uri(source.uri)))
        deleted = set(json.loads(source.dv.inline or "[]")) if source.dv else set()
        kept += [row for position, row in enumerate(rows) if position not in deleted]
        read.append(len(rows))
        purged.append(len(deleted))
    outputs = (write_file(storage, path, kept),) if kept else ()
    return RewriteResult(
        task_id=task.id,
        outputs=outputs,
        rows_read=sum(read),
        rows_written=len(kept),
        rows_purged=sum(purged),
        bytes_read=sum(source.size for source in task.scan.sources),
        seconds=0.0,
        source_rows=tuple(read),
        source_purged=tuple(purged),
    )


def write_file(storage: Storage, path: str, rows: Sequence[Any]) -> OutputFile:
    data = json.dumps(list(rows)).encode()
    storage.put(path, data)
    return OutputFile(storage.uri_of(path), len(data), len(rows), 0)
