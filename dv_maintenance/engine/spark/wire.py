"""Messages between a Spark driver and its Python workers, as JSON: specs to the workers, outcomes back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance import errors
from dv_maintenance.engine.rewrite import rewrite_retrying
from dv_maintenance.engine.rows.values import scalar_of
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.work import RewriteResult, RewriteTask

if TYPE_CHECKING:
    from dv_maintenance.engine.rows_so_far import OnRows

__all__ = ["result_of", "run_specs", "specs_of"]

_ERROR_KEYS = {"error", "state"}


def specs_of(task: RewriteTask) -> pa.Table:
    """The driver's side: one row with the column ``spec``."""
    return pa.table({"spec": _texts(json.dumps(task.to_json()))})


def run_specs(
    batches: Iterable[pa.RecordBatch], options: Mapping[str, str], on_rows: OnRows | None = None
) -> Iterator[pa.RecordBatch]:
    """The worker's side: from batches with the column ``spec`` to batches with ``outcome``. Does not import pandas.
    ``on_rows``: see ``rewrite``.
    """
    for batch in batches:
        for spec in batch.column("spec"):
            yield pa.RecordBatch.from_arrays([_texts(_outcome(spec.as_py(), options, on_rows))], names=["outcome"])
            # The worker process is reused: the memory that a wide table needed should not remain in its pool.
            pa.default_memory_pool().release_unused()


def _texts(text: str) -> pa.Array:
    return pa.repeat(scalar_of(text, pa.string(), "text"), 1)


def _outcome(spec: str, options: Mapping[str, str], on_rows: OnRows | None) -> str:
    try:
        return json.dumps(rewrite_retrying(RewriteTask.from_json(json.loads(spec)), options, on_rows).to_json())
    except DvMaintenanceError as error:
        known = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in errors.__all__)
        return json.dumps({"error": known, "state": vars(error)})


def result_of(outcome: str) -> RewriteResult:
    """The driver's side. Raises the worker's error with its original class."""
    body = json.loads(outcome)
    if body.keys() != _ERROR_KEYS:
        return RewriteResult.from_json(body)
    state = body["state"]
    raise errors.rebuild_error(getattr(errors, body["error"]), (state["message"],), state)
