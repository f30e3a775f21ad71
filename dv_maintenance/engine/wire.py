"""What crosses the border between a Spark driver and its Python workers: specs one way, outcomes the other, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from dv_maintenance import errors
from dv_maintenance.engine.rewrite import rewrite_retrying
from dv_maintenance.engine.values import scalar_of
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.model import RewriteResult, RewriteTask

__all__ = ["is_error", "result_of", "run_specs", "spec_of"]

_ERROR = '{"error": '


def spec_of(task: RewriteTask) -> str:
    return json.dumps(task.to_json())


def run_specs(batches: Iterable[pa.RecordBatch], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """The worker's side: batches of (id, spec) in, (id, outcome) out, a row at a time. Imports no pandas."""
    for batch in batches:
        for row in range(batch.num_rows):
            outcome = _outcome(batch.column("spec")[row].as_py(), options)
            columns = [batch.column("id").slice(row, 1), pa.repeat(scalar_of(outcome, pa.string(), "outcome"), 1)]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "outcome"])
            # The worker lives on: what a wide table made its pool grow to should not stay with it.
            pa.default_memory_pool().release_unused()


def _outcome(spec: str, options: Mapping[str, str]) -> str:
    try:
        return json.dumps(rewrite_retrying(RewriteTask.from_json(json.loads(spec)), options).to_json())
    except DvMaintenanceError as error:
        known = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in errors.__all__)
        return json.dumps({"error": known, "state": vars(error)})


def is_error(outcome: str) -> bool:
    return outcome.startswith(_ERROR)


def result_of(outcome: str) -> RewriteResult:
    """The driver's side. Raises the worker's error as the class it was."""
    body = json.loads(outcome)
    if not is_error(outcome):
        return RewriteResult.from_json(body)
    state = body["state"]
    raise errors.rebuild_error(getattr(errors, body["error"]), (state["message"],), state)
